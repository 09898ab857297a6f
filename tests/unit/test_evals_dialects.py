"""Tools and calls in the three dialects: conversations become messages, and messages become replies."""

import json
from typing import Any

import pytest
from jsonschema_rs import validator_for

from mcp_mirror.evals.conversation import Call, Entry, Image, Reply, Result, Tool, Usage, User
from mcp_mirror.evals.dialects import DIALECTS, ToolsMode, write_messages

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
COUNT = Tool("count", "Count words.", SCHEMA)
SHAPE = Tool(
    "shape",
    "",
    {
        "type": "object",
        "properties": {"point": {"$ref": "#/$defs/point"}, "other": {"$ref": "https://e.org/x"}, "any": True},
        "required": ["point"],
        "$defs": {"point": {"type": "array", "items": {"type": "integer"}}},
    },
)
CALL = Call("c1", "count", {"text": "é"})
TALK: tuple[Entry, ...] = (User("Count."), Reply(calls=(CALL,)), Result(CALL, "1"), User("Well?"), Reply(answer="One."))


def test_native_messages_are_those_of_the_api() -> None:
    assert write_messages(DIALECTS["native"], "Be kind.", TALK) == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Count."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "count", "arguments": '{"text": "é"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "user", "content": "Well?"},
        {"role": "assistant", "content": "One."},
    ]


@pytest.mark.parametrize("mode", ["json_schema", "json_text"])
def test_adjacent_user_messages_are_joined(mode: ToolsMode) -> None:
    assert write_messages(DIALECTS[mode], "", TALK) == [
        {"role": "user", "content": "Count."},
        {"role": "assistant", "content": '{"name": "count", "arguments": {"text": "é"}}'},
        {"role": "user", "content": "count answered:\n1\n\nWell?"},
        {"role": "assistant", "content": '{"name": "reply_to_user", "arguments": {"answer": "One."}}'},
    ]


def test_models_that_see_get_the_images_after_all_results() -> None:
    image = Image("image/png", "aGk=")
    other = Call("c2", "count", {"text": "b"})
    talk = (User("Go."), Reply(calls=(CALL, other)), Result(CALL, "one", images=(image,)), Result(other, "two"))
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    seen = {"role": "user", "content": [{"type": "text", "text": "Images of count:"}, url]}
    native = write_messages(DIALECTS["native"], "", talk, with_images=True)
    assert [message["role"] for message in native] == ["user", "assistant", "tool", "tool", "user"]
    assert native[-1] == seen
    assert write_messages(DIALECTS["native"], "", talk) == native[:-1]
    (*_, joined) = write_messages(DIALECTS["json_text"], "", talk, with_images=True)
    answered = [{"type": "text", "text": f"count answered:\n{text}"} for text in ("one", "two")]
    assert joined == {"role": "user", "content": [*answered, *seen["content"]]}


def test_text_of_the_model_is_sent_back_unchanged() -> None:
    written = ' {"name":"count" ,"arguments":{"text":"a"}}'
    for mode in ("json_schema", "json_text"):
        reply = DIALECTS[mode].read({"content": written})
        assert DIALECTS[mode].write_reply(reply)["content"] == written


def test_tools_are_described_in_the_request_or_in_the_prompt() -> None:
    assert DIALECTS["native"].body([COUNT]) == {
        "tools": [
            {"type": "function", "function": {"name": "count", "description": "Count words.", "parameters": SCHEMA}}
        ]
    }
    assert DIALECTS["native"].body([]) == {}
    assert DIALECTS["native"].instructions([COUNT]) == ""
    assert DIALECTS["json_text"].body([COUNT]) == {}
    for mode in ("json_schema", "json_text"):
        assert '{"name": "count", "description": "Count words."' in DIALECTS[mode].instructions([COUNT])


def test_the_schema_accepts_only_valid_calls() -> None:
    body = DIALECTS["json_schema"].body([COUNT, SHAPE])["response_format"]["json_schema"]["schema"]
    schema = validator_for(json.loads(json.dumps(body).replace("https://e.org/x", "#")))
    for name, arguments, is_valid in (
        ("count", {"text": "a"}, True),
        ("count", {}, False),
        ("other", {"text": "a"}, False),
        ("shape", {"point": [1, 2]}, True),
        ("shape", {"point": ["a"]}, False),
        ("reply_to_user", {"answer": "a"}, True),
        ("reply_to_user", {}, False),
    ):
        assert schema.is_valid({"name": name, "arguments": arguments}) == is_valid, (name, arguments)
    assert "$defs" not in DIALECTS["json_schema"].body([COUNT])["response_format"]["json_schema"]["schema"]


def native(*functions: Any) -> dict[str, Any]:
    return {"content": None, "tool_calls": [{"id": "c1", "function": function} for function in functions]}


@pytest.mark.parametrize(
    ("message", "read"),
    [
        (native({"name": "count", "arguments": '{"text": "é"}'}), Reply(calls=(CALL,))),
        (native({"name": "count", "arguments": {"text": "é"}}), Reply(calls=(CALL,))),
        (native({"name": "list", "arguments": ""}), Reply(calls=(Call("c1", "list", {}),))),
        (native({"name": "list"}), Reply(calls=(Call("c1", "list", {}),))),
        ({"content": "One.", "tool_calls": None}, Reply("One.", answer="One.")),
        ({"content": [{"type": "text", "text": "One"}, {"text": "."}, 1, {}]}, Reply("One.", answer="One.")),
        ({"content": {"a": 1}, "tool_calls": 7}, Reply("", answer="")),
        ({"content": "half \ud83d"}, Reply("half ?", answer="half ?")),
    ],
)
def test_native_replies_are_read(message: dict[str, Any], read: Reply) -> None:
    assert DIALECTS["native"].read(message) == read


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ({"name": "count", "arguments": "{text: a"}, "no JSON object"),
        ({"name": "count", "arguments": "[1]"}, "no JSON object"),
        ({"name": "count", "arguments": "[" * 100_000}, "no JSON object"),
        ({"arguments": "{}"}, "names no function"),
        ("count", "names no function"),
    ],
)
def test_the_model_reads_why_a_native_call_is_invalid(function: Any, problem: str) -> None:
    (call,) = DIALECTS["native"].read(native(function)).calls
    assert problem in call.problem


def test_a_native_call_that_is_not_an_object_is_invalid() -> None:
    (call,) = DIALECTS["native"].read({"tool_calls": ["count"]}).calls
    assert call.problem


CALLED = (("count", {"text": "a"}),)


@pytest.mark.parametrize(
    ("text", "calls", "answer"),
    [
        ('{"name": "count", "arguments": {"text": "a"}}', CALLED, None),
        ('I count.\n```json\n{"name": "count", "arguments": {"text": "a"}}\n```', CALLED, None),
        ('<tool_call>{"name": "count", "arguments": "{\\"text\\": \\"a\\"}"}</tool_call>', CALLED, None),
        ('{"tool": "count", "parameters": {"text": "a"}}', CALLED, None),
        ('{"function": {"name": "count", "arguments": {"text": "a"}}}', CALLED, None),
        ('{"function": "count", "args": {"text": "a"}} and {"name": "list"}', (*CALLED, ("list", {})), None),
        ('{broken {"name": "count", "arguments": {"text": "a"}}', CALLED, None),
        ('{"name": "reply_to_user", "arguments": {"answer": "One."}}', (), "One."),
        ('{"name": "reply_to_user", "arguments": {"answer": {"words": 1}}}', (), '{"words": 1}'),
        ('{"name": "reply_to_user", "arguments": {}}', (), ""),
        ('{"name": "count", "arguments": {"text": "a"}} {"name": "reply_to_user", "arguments": {}}', CALLED, None),
        ('The first is {"name": "Ines", "city": "Turin"}.', (), 'The first is {"name": "Ines", "city": "Turin"}.'),
        ("One.", (), "One."),
        ('{"half": "', (), '{"half": "'),
    ],
)
def test_calls_in_text_are_read_leniently(text: str, calls: tuple[Any, ...], answer: str | None) -> None:
    reply = DIALECTS["json_text"].read({"content": text})
    assert tuple((call.name, call.arguments) for call in reply.calls) == calls
    assert (reply.answer, reply.problem) == (answer, "")


@pytest.mark.parametrize(
    ("mode", "text"), [("json_text", " "), ("json_schema", "One."), ("json_schema", '{"name": "cou')]
)
def test_the_model_reads_that_a_reply_is_neither_call_nor_answer(mode: ToolsMode, text: str) -> None:
    reply = DIALECTS[mode].read({"content": text})
    assert (reply.calls, reply.answer) == ((), None)
    assert "That is no call." in reply.problem


def test_with_a_schema_only_the_first_call_is_read() -> None:
    two = '{"name": "count", "arguments": {"text": "a"}}' * 2
    assert len(DIALECTS["json_schema"].read({"content": two}).calls) == 1


def test_usage_adds_up() -> None:
    assert (Usage(1, 2) + Usage(3, 4)).total == 10

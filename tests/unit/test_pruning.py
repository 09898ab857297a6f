"""The pruned parts, their order and their stubs, case by case."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_mirror.paths import find_notice_bases, is_whole_notice, parse_path, read_notice_path
from mcp_mirror.prune import ChatFormat, Pruned, prune_messages, pruned_paths, restore_messages

Message = dict[str, Any]

LONG = "word " * 200
ROWS = json.dumps({"rows": list(range(300))}, indent=1) + "\n"


def count(message: Message) -> int:
    return len(json.dumps(message))


def prune(messages: list[Message], budget: int, provider: ChatFormat = "openai") -> Pruned:
    return prune_messages(messages, budget, provider, estimate=count)


def kept(messages: list[Message], provider: ChatFormat) -> tuple[Pruned, dict[str, bytes]]:
    """Prune everything possible into a memory, and check that it can be restored."""
    memory: dict[str, bytes] = {}
    pruned = prune_messages(messages, 0, provider, memory, estimate=count)
    assert json.dumps(restore_messages(pruned.messages, memory.get, provider)) == json.dumps(messages)
    return pruned, memory


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str | None, *calls: tuple[str, str]) -> Message:
    made = [
        {"id": identity, "type": "function", "function": {"name": "look", "arguments": given}}
        for identity, given in calls
    ]
    return {"role": "assistant", "content": text, **({"tool_calls": made} if made else {})}


def tool(identity: str, text: Any) -> Message:
    return {"role": "tool", "tool_call_id": identity, "content": text}


ARGUMENTS = json.dumps({"query": LONG})
CHAT = [
    {"role": "system", "content": LONG},
    user(LONG),
    assistant(LONG, ("a", ARGUMENTS)),
    tool("a", LONG),
    assistant(LONG),
    user(LONG),
    assistant(None, ("b", ARGUMENTS)),
    tool("b", LONG),
    assistant(LONG),
    user(LONG),
]


def test_pruning_stops_as_soon_as_the_budget_is_met() -> None:
    places = []
    budget = prune(CHAT, 1 << 30).tokens
    while (pruned := prune(CHAT, budget - 1)).fits:
        budget = pruned.tokens
        places.append([(cut.phase, cut.message) for cut in pruned.cuts])
    all_cuts = [
        ("tool results", 3),
        ("tool inputs", 2),
        ("tool inputs", 6),
        ("last tool result", 7),
        ("assistant text", 2),
        ("assistant text", 4),
        ("user text", 5),
    ]
    assert [cut for cut in places if cut == all_cuts[: len(cut)]] == [all_cuts[: n + 1] for n in range(len(all_cuts))]
    assert [(cut.phase, cut.message) for cut in pruned.cuts] == all_cuts


def test_inputs_of_the_latest_assistant_message_are_never_pruned() -> None:
    pruned = prune(CHAT[:8], 0)
    assert [cut.message for cut in pruned.cuts if cut.phase == "tool inputs"] == [2]


def test_all_items_of_the_latest_model_turn_of_responses_are_kept() -> None:
    def call(identity: str) -> Message:
        return {"type": "function_call", "call_id": identity, "name": "look", "arguments": ARGUMENTS}

    text = {"type": "output_text", "text": LONG, "annotations": []}
    message = {"type": "message", "role": "assistant", "id": "m", "status": "completed", "content": [text]}
    thought = {"type": "reasoning", "id": "r", "summary": []}
    done = [{"type": "function_call_output", "call_id": name, "output": "ok"} for name in ("b", "c")]
    first_turn = [call("a"), {"type": "function_call_output", "call_id": "a", "output": "ok"}]
    for latest in (
        [thought, message, call("b"), call("c")],
        [call("b"), message, call("c")],
        [call("b"), call("c"), message],
        [call("b"), thought, call("c")],
    ):
        pruned = prune([user("x"), *first_turn, *latest, *done], 0, "openai-responses")
        assert [cut.message for cut in pruned.cuts] == [1]
    assert prune([call("a"), call("b")], 0, "openai-responses").cuts == ()


def results(*texts: str) -> list[Message]:
    """A conversation with a result for each text, all read by the model, and a small last result."""
    names = [f"c{number}" for number in range(len(texts))]
    calls = [assistant(None, (name, "{}")) for name in names]
    pairs = zip(calls, map(tool, names, texts), strict=True)
    return [user("x"), *(message for pair in pairs for message in pair), *CHAT_END]


CHAT_END = [assistant(None, ("z", "{}")), tool("z", "ok"), assistant("done")]


@pytest.mark.parametrize(
    ("sizes", "order"),
    [
        ((100, 100, 100), (0, 1, 2)),  # of one size class, the oldest first
        ((100, 120, 90), (0, 1, 2)),  # similar sizes are one size class
        ((100, 2000, 100), (1, 0, 2)),  # much larger ones first
        ((100, 30000, 2000), (1, 2, 0)),
    ],
)
def test_large_results_are_pruned_first_then_old_ones(sizes: tuple[int, ...], order: tuple[int, ...]) -> None:
    messages = results(*("word " * size for size in sizes))
    gone: list[int] = []
    budget = prune(messages, 1 << 30).tokens
    while (pruned := prune(messages, budget - 1)).cuts and len(gone) < len(sizes):
        gone += [cut.message // 2 - 1 for cut in pruned.cuts if cut.message // 2 - 1 not in gone]
        budget = pruned.tokens
    assert tuple(gone) == order


def test_results_that_the_model_has_not_read_are_pruned_last() -> None:
    both = assistant(None, ("a", "{}"), ("b", "{}"))
    messages = [user("x"), assistant(None, ("o", "{}")), tool("o", LONG), both, tool("a", LONG * 9), tool("b", LONG)]
    assert [cut.message for cut in prune(messages, count_all(messages) - 1).cuts] == [2]
    read = [*messages, assistant("done")]
    assert [cut.message for cut in prune(read, count_all(read) - 1).cuts] == [4]


def count_all(messages: list[Message]) -> int:
    return sum(map(count, messages))


def test_parts_that_fit_again_are_restored() -> None:
    messages = results("word " * 40, "word " * 4000)
    large, small = prune(messages, 0).cuts[:2]
    assert (large.message, small.message) == (4, 2)
    messages = results("word " * 30, "word " * 40)  # of one size class: the older is pruned first
    both = prune(messages, 0).cuts
    pruned = prune(messages, count_all(messages) - both[0].tokens - 1)
    assert [cut.message for cut in pruned.cuts] == [4]


@pytest.mark.parametrize("power", [0.99, 1.01])
def test_a_budget_is_met_with_an_estimate_that_is_not_additive(power: float) -> None:
    blocks = [{"type": "tool_use", "id": f"c{n}", "name": "look", "input": {"n": n}} for n in range(9)]
    answers = [{"type": "tool_result", "tool_use_id": f"c{n}", "content": LONG} for n in range(9)]
    messages: list[Message] = [
        user("x"),
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": answers},
        {"role": "assistant", "content": "done"},
    ]

    def estimate(message: Message) -> int:
        return int(len(json.dumps(message)) ** power)

    total, smallest = sum(map(estimate, messages)), prune_messages(messages, 0, "anthropic", estimate=estimate).tokens
    for budget in range(total, 0, -97):
        pruned = prune_messages(messages, budget, "anthropic", estimate=estimate)
        assert pruned.tokens == sum(map(estimate, pruned.messages))
        assert pruned.fits == (pruned.tokens <= budget) == (smallest <= budget)
        for cut in pruned.cuts if pruned.fits else ():
            content = list(pruned.messages[2]["content"])
            content[int(cut.where[1])] = answers[int(cut.where[1])]
            before = estimate(pruned.messages[2])
            assert pruned.tokens - before + estimate({"role": "user", "content": content}) > budget


def test_a_part_is_restored_only_if_its_whole_message_fits() -> None:
    """The estimate of a part may exceed the part's share of its message."""
    answers = [{"type": "tool_result", "tool_use_id": f"c{n}", "content": LONG} for n in range(3)]
    messages: list[Message] = [{"role": "user", "content": answers}, {"role": "assistant", "content": "done"}]

    def estimate(message: Message) -> int:
        size = len(json.dumps(message))
        return size - 12 * (len(message["content"]) if isinstance(message["content"], list) else 0)

    exact = [prune_messages(messages, budget, "anthropic", estimate=estimate) for budget in range(300, 3200, 5)]
    assert all(pruned.tokens == sum(map(estimate, pruned.messages)) for pruned in exact)
    for pruned, budget in zip(exact, range(300, 3200, 5), strict=True):
        assert pruned.fits == (pruned.tokens <= budget)


def measure_work(messages: list[Message], budget: int, weight: Callable[[Message], int]) -> float:
    """Prune, check the budget, and return how many times the text of the conversation was estimated."""
    work = 0

    def estimate(message: Message) -> int:
        nonlocal work
        work += count(message)
        return weight(message)

    pruned = prune_messages(messages, budget, "anthropic", estimate=estimate)
    assert pruned.tokens == sum(map(weight, pruned.messages)) <= budget
    return work / count_all(messages)


@pytest.mark.parametrize("power", [0.99, 1, 1.01])
def test_a_message_with_many_parts_is_estimated_only_a_few_times(power: float) -> None:
    """After the largest part, which is pruned last, most of the others are restored."""
    answers = [
        {"type": "tool_result", "tool_use_id": f"c{n}", "content": f"{n} " + LONG * (100 if n == 200 else 1)}
        for n in range(201)
    ]
    messages: list[Message] = [{"role": "user", "content": answers}, {"role": "assistant", "content": "done"}]

    def weight(message: Message) -> int:
        return int(count(message) ** power)

    total = sum(map(weight, messages))
    assert max(measure_work(messages, total * part // 20, weight) for part in range(3, 20)) < 25


@pytest.mark.parametrize("budget", [-1, 0])
def test_no_messages_and_no_budget(budget: int) -> None:
    assert prune([], budget) == Pruned([], 0, 0, fits=budget >= 0, cuts=())


def test_parts_smaller_than_their_stub_are_kept() -> None:
    messages = results("some words", "a little more than that")
    assert prune(messages, 0) == Pruned(messages, count_all(messages), count_all(messages), fits=False, cuts=())


def test_a_part_has_the_same_stub_each_time() -> None:
    first, memory = kept(CHAT, "openai")
    later, more = kept([*CHAT, assistant("more"), user("and?"), assistant("yes")], "openai")
    assert first.messages[:8] == later.messages[:8]
    assert memory.items() <= more.items()
    twins = [user("x"), assistant(None, ("a", "{}"), ("b", "{}")), tool("a", LONG), tool("b", LONG), assistant("done")]
    assert len(kept(twins, "openai")[1]) == 2


def test_stubs_name_the_pruned_part_and_its_path() -> None:
    pruned, memory = kept(CHAT, "openai")
    text = pruned.messages[3]["content"]
    path = pruned.cuts[0].path
    assert path is not None
    assert text == (
        f'"{path}"\nThis path stands for what was pruned: 1,002 bytes of tool result.\n'
        "Use it as the argument of the next tool."
    )
    assert is_whole_notice(text)
    assert find_notice_bases(text) == {path}
    arguments = json.loads(pruned.messages[2]["tool_calls"][0]["function"]["arguments"])
    assert arguments == {"memory_path": pruned.cuts[1].path, "pruned": "1,013 bytes of tool input"}
    assert find_notice_bases(json.dumps(arguments)) == {arguments["memory_path"]}
    assert all(parse_path(path) for path in memory)
    assert prune(CHAT, 0).messages[3]["content"] == "Pruned: 1,002 bytes of tool result."
    assert set(pruned_paths(pruned.messages, "openai")) == set(memory)
    assert pruned_paths(prune(CHAT, 0).messages, "openai") == ()


@pytest.mark.parametrize(
    ("text", "blob"),
    [
        (LONG, json.dumps(LONG)),
        (ROWS, ROWS),  # to the byte, so that its keys have paths
        ("  " + ROWS, "  " + ROWS),
        (f"[{LONG}", json.dumps(f"[{LONG}")),
        (json.dumps(LONG), json.dumps(json.dumps(LONG))),
        ("1" * 300, json.dumps("1" * 300)),
        ("\u00e4\u0000\U0001f600" * 80, None),
        ("[1e400, 12345678901234567890.50]" + " " * 200, "[1e400, 12345678901234567890.50]" + " " * 200),
        ("{" + " " * 300 + "}", "{" + " " * 300 + "}"),
        ("[NaN]" + " " * 200, json.dumps("[NaN]" + " " * 200)),
        ("[" * 3000, json.dumps("[" * 3000)),
    ],
)
def test_json_text_is_stored_as_json_and_other_text_as_a_string(text: str, blob: str | None) -> None:
    messages = [user("x"), assistant(None, ("a", "{}")), tool("a", text), assistant("done")]
    _, memory = kept(messages, "openai")
    assert len(memory) == 1
    assert blob is None or [str(value, "utf-8") for value in memory.values()] == [blob]


NOTICE = (
    '"fetch-03381d7c-ea34-408f-8c2d-16e7326f8d9b"\nThis path stands for object: "/'
    + "x" * 300
    + '" 19.8 MB.\nUse it as the argument of the next tool.'
)


@pytest.mark.parametrize(
    "text",
    ["\ud800" * 300, NOTICE],
    ids=["a lone surrogate", "a notice"],
)
def test_notices_and_unencodable_texts_are_kept(text: str) -> None:
    messages = [user("x"), assistant(None, ("a", text)), tool("a", text), assistant(None, ("b", "{}")), tool("b", "ok")]
    assert all(cut.message != 2 for cut in prune(messages, 0).cuts)


SHOWN = "rows-03381d7c-ea34-408f-8c2d-16e7326f8d9b"
ROWS_SHOWN = f'{json.dumps(["a b c"] * 100)}\n\nPath: "{SHOWN}"\nResult ends.'
TEXT_SHOWN = f'"{SHOWN}/text"\n\n{"a b c " * 100}\n\nAs an argument, the path stands for the text.\nResult ends.'


@pytest.mark.parametrize(("text", "path"), [(ROWS_SHOWN, SHOWN), (TEXT_SHOWN, f"{SHOWN}/text")])
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_the_stub_of_a_value_that_is_shown_names_the_path_of_the_value(
    text: str, path: str, provider: ChatFormat
) -> None:
    messages = [user("x"), assistant(None, ("a", "{}")), tool("a", text), assistant("done")]
    if provider == "anthropic":
        content = [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": text}]}]
        use = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
        messages = [user("x"), {"role": "assistant", "content": [use]}, {"role": "user", "content": content}]
    pruned, memory = kept(messages, provider)
    assert list(memory) == [cut.path for cut in pruned.cuts] == list(pruned_paths(pruned.messages, provider))
    content = pruned.messages[2]["content"]
    stub = content if isinstance(content, str) else content[0]["content"][0]["text"]
    assert stub.startswith(f'"{path}"\nThis path stands for what was pruned: ')
    assert read_notice_path(stub) == parse_path(path)
    assert not prune(pruned.messages, 0, provider).cuts
    lost = prune(messages, 0, provider)
    assert path in json.dumps(lost.messages)
    assert not prune(lost.messages, 0, provider).cuts
    assert pruned_paths(lost.messages, provider) == ()


def test_a_text_too_long_for_a_notice_is_pruned() -> None:
    messages = [user("x"), assistant(None, ("a", "{}")), tool("a", NOTICE.replace("x", "x" * 9)), assistant("done")]
    assert len(kept(messages, "openai")[1]) == 1


SPOOFED_PATH = "pruned-03381d7c-ea34-408f-8c2d-16e7326f8d9b"


@pytest.mark.parametrize(
    ("given", "is_stub"),
    [
        ({"memory_path": SPOOFED_PATH, "pruned": "9,000 bytes of tool input"}, True),
        ({"pruned": "9,000 bytes of tool input"}, True),
        ({"pruned": "9,000 bytes of tool input", "memory_path": None}, False),
        ({"pruned": "9,000 bytes of tool input", "memory_path": "elsewhere"}, False),
        ({"pruned": "9,000 bytes of something"}, False),
        ({"pruned": 1}, False),
        ({"memory_path": SPOOFED_PATH}, False),
        ({"pruned": "9,000 bytes of tool input", "why": ""}, False),
        ([1], False),
        ("pruned", False),
    ],
)
def test_only_an_exact_json_stub_is_recognized(given: Any, is_stub: bool) -> None:  # noqa: FBT001  # a table
    messages = [user("x"), assistant(None, ("a", json.dumps(given))), tool("a", "ok"), assistant("done")]
    has_path = is_stub and "memory_path" in given
    assert pruned_paths(messages, "openai") == ((SPOOFED_PATH,) if has_path else ())
    padded = [user("x"), assistant(None, ("a", json.dumps(given).ljust(190))), tool("a", "ok"), assistant("done")]
    assert bool(prune(padded, 0).cuts) != is_stub


def test_a_stub_without_its_stored_part_is_not_restored() -> None:
    pruned, memory = kept(CHAT, "openai")
    assert restore_messages(pruned.messages, lambda _: None, "openai") is pruned.messages
    first = pruned.cuts[0].path
    assert first is not None
    partly = restore_messages(pruned.messages, {first: memory[first]}.get, "openai")
    assert partly[3] == CHAT[3]
    assert first not in pruned_paths(partly, "openai")
    others = dict.fromkeys(memory, b'"something else"')
    assert restore_messages(pruned.messages, lambda path: others[path], "openai") is pruned.messages
    views = {path: memoryview(blob) for path, blob in memory.items()}
    assert restore_messages(pruned.messages, lambda path: views[path], "openai") == CHAT


def test_messages_added_after_pruning_are_kept() -> None:
    pruned, memory = kept(CHAT, "openai")
    more = [*pruned.messages, assistant("and now"), user(pruned.messages[3]["content"])]
    assert restore_messages(more, memory.get, "openai") == [*CHAT, *more[len(CHAT) :]]


def test_legacy_functions_and_custom_tools_of_chat_completions() -> None:
    messages: list[Message] = [
        user("x"),
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": ARGUMENTS}},
        {"role": "function", "name": "look", "content": LONG},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "run", "input": LONG}}],
        },
        tool("c", [{"type": "text", "text": LONG}, {"type": "text", "text": "more"}]),
        assistant("done"),
    ]
    pruned, memory = kept(messages, "openai")
    assert [cut.message for cut in pruned.cuts] == [2, 1, 3, 4]
    assert json.loads(list(memory.values())[-1]) == [LONG, "more"]


def test_shell_output_and_patches_of_the_responses_api() -> None:
    exited = {"type": "exit", "exit_code": 0}
    messages: list[Message] = [
        user("x"),
        {"type": "apply_patch_call", "call_id": "a", "operation": {"type": "create_file", "path": "f", "diff": LONG}},
        {"type": "apply_patch_call_output", "call_id": "a", "status": "failed", "output": LONG},
        {"type": "shell_call", "call_id": "s", "action": {"commands": ["make"]}},
        {
            "type": "shell_call_output",
            "call_id": "s",
            "output": [
                {"stdout": LONG, "stderr": "", "outcome": exited},
                {"stdout": "", "stderr": LONG, "outcome": exited},
            ],
        },
        assistant("done"),
    ]
    pruned, _ = kept(messages, "openai-responses")
    assert [cut.message for cut in pruned.cuts] == [2, 4, 4, 1]
    assert pruned.messages[1]["operation"] | {"diff": LONG} == messages[1]["operation"]
    assert [chunk["outcome"] for chunk in pruned.messages[4]["output"]] == [exited, exited]


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo" * 90}}


def answered(content: Any, **more: Any) -> list[Message]:
    """An Anthropic conversation with one result."""
    call = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": content, **more}
    return [
        user("x"),
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
        {"role": "assistant", "content": "done"},
    ]


CACHED = {"cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    ("content", "blob"),
    [
        (ROWS, ROWS),
        ([{"type": "text", "text": ROWS}], ROWS),
        ([{"type": "text", "text": LONG, **CACHED}], json.dumps(LONG)),
        ([{"type": "text", "text": LONG, "title": "x"}], json.dumps(LONG)),
        ([{"type": "text", "text": LONG}, {"type": "text", "text": "b"}], json.dumps([LONG, "b"])),
        ([{"type": "text", "text": "a"}, IMAGE], json.dumps(["a", IMAGE])),
        ([IMAGE], json.dumps([IMAGE])),
        ([{"text": LONG, "type": "text"}, IMAGE], json.dumps([{"text": LONG, "type": "text"}, IMAGE])),
        (
            [IMAGE, {"type": "text", "text": LONG, **CACHED}],
            json.dumps([IMAGE, {"type": "text", "text": LONG, **CACHED}]),
        ),
    ],
)
def test_blocks_are_stored_as_a_text_or_an_array_of_texts(content: Any, blob: str) -> None:
    messages = answered(content, is_error=True, **CACHED)
    pruned, memory = kept(messages, "anthropic")
    [value] = memory.values()
    assert value.replace(b" ", b"") == blob.encode().replace(b" ", b"")
    result = pruned.messages[2]["content"][0]
    assert {key: result[key] for key in ("type", "tool_use_id", "is_error", "cache_control")} == {
        key: messages[2]["content"][0][key] for key in ("type", "tool_use_id", "is_error", "cache_control")
    }
    if isinstance(content, list):
        [block] = result["content"]
        assert block["type"] == "text"
        assert ("cache_control" in block) == any("cache_control" in given for given in content)


@pytest.mark.parametrize(
    "content",
    [
        [],
        None,
        [LONG],
        [{"type": "tool_reference", "tool_name": LONG}, {"type": "text", "text": LONG}],
        [{"type": "text", "text": [LONG]}],
        [{"type": "text", "text": [LONG]}, {"type": "text", "text": "a"}],
        [{**IMAGE, "source": float("nan")}, {"type": "text", "text": LONG}],
        [{**IMAGE, "source": (LONG,)}],
        [{**IMAGE, "source": {1: LONG}}],
        [{**IMAGE, "source": object()}],
        [{"type": {}, "text": LONG}],
        [{"type": "text", "text": NOTICE}],
    ],
)
def test_unknown_and_unrestorable_results_are_kept(content: Any) -> None:
    messages = answered(content)
    pruned = prune_messages(messages, 0, "anthropic", {}, estimate=lambda message: len(str(message)))
    assert pruned.messages is messages


def test_a_value_nested_too_deep_is_kept() -> None:
    deep: Any = LONG
    for _ in range(100_000):
        deep = [deep]
    messages = answered([{**IMAGE, "source": deep}])
    assert prune_messages(messages, 0, "anthropic", {}, estimate=lambda _: 9).cuts == ()
    while isinstance(deep, list):  # let go of it level by level
        deep = deep.pop()


SIGNED: dict[ChatFormat, Message] = {
    "anthropic": {"role": "assistant", "content": [{"type": "text", "text": LONG, "citations": [{"type": "x"}]}]},
    "vercel": {
        "role": "assistant",
        "content": [
            {
                "type": "tool-call",
                "toolCallId": "t",
                "toolName": "look",
                "input": {"query": LONG},
                "providerOptions": {"google": {"thoughtSignature": "s"}},
            },
            {"type": "tool-call", "toolCallId": "u", "toolName": "web", "input": {"q": LONG}, "providerExecuted": True},
            {"type": "text", "text": LONG, "providerMetadata": {"google": {"thoughtSignature": "s"}}},
            {"type": "reasoning", "text": LONG},
        ],
    },
    "openai": {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "t",
                "type": "function",
                "function": {"name": "look", "arguments": ARGUMENTS},
                "extra_content": {"google": {"thought_signature": "s"}},
            }
        ],
    },
    "openai-responses": {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": LONG, "annotations": [{"type": "url_citation"}]}],
    },
}


@pytest.mark.parametrize("provider", SIGNED)
def test_signed_cited_and_provider_executed_parts_are_kept(provider: ChatFormat) -> None:
    messages = [user("x"), SIGNED[provider], user("y"), assistant("done")]
    assert prune(messages, 0, provider).messages is messages


def test_text_with_unsigned_metadata_is_pruned() -> None:
    options = {"google": {"thoughtSignature": "", "region": "eu"}, "x": 1}
    part = {"type": "text", "text": LONG, "providerOptions": options}
    messages = [user("x"), {"role": "assistant", "content": [part]}, assistant("done")]
    pruned, _ = kept(messages, "vercel")
    assert pruned.messages[1]["content"][0]["providerOptions"] is part["providerOptions"]


def vercel(**result: Any) -> list[Message]:
    named = {"type": "tool-result", "toolCallId": "t", "toolName": "look"}
    call = {"type": "tool-call", "toolCallId": "t", "toolName": "look", "input": {}}
    return [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [call]},
        {"role": "tool", "content": [{**named, **result}]},
        {"role": "assistant", "content": "done"},
    ]


WORDS = "1,002 bytes of tool result"


@pytest.mark.parametrize(
    ("result", "stub"),
    [
        ({"output": {"type": "text", "value": LONG}}, {"output": {"type": "text", "value": f"Pruned: {WORDS}."}}),
        (
            {"output": {"type": "error-text", "value": LONG}},
            {"output": {"type": "error-text", "value": f"Pruned: {WORDS}."}},
        ),
        ({"output": {"type": "json", "value": LONG}}, {"output": {"type": "json", "value": {"pruned": WORDS}}}),
        (
            {"output": {"type": "error-json", "value": [LONG[2:-2]]}},
            {"output": {"type": "error-json", "value": {"pruned": "1,000 bytes of tool result"}}},
        ),
        (
            {"output": {"type": "content", "value": [{"type": "text", "text": LONG}]}},
            {"output": {"type": "content", "value": [{"type": "text", "text": f"Pruned: {WORDS}."}]}},
        ),
        ({"result": LONG, "isError": True}, {"result": {"pruned": WORDS}, "isError": True}),
        ({"output": {"type": "execution-denied", "reason": LONG}}, None),
        ({"output": {"type": "content", "value": [{"type": "custom", "x": LONG}]}}, None),
        ({"output": {"type": "json", "value": NOTICE}}, None),
        ({"output": LONG}, None),
        ({"result": LONG, "experimental_content": [{"type": "text", "text": LONG}]}, None),
    ],
)
def test_results_of_the_ai_sdk(result: Message, stub: Message | None) -> None:
    messages = vercel(**result)
    part = prune(messages, 0, "vercel").messages[2]["content"][0]
    assert {key: part[key] for key in result} == (stub or result)
    kept(messages, "vercel")


def test_the_last_of_several_results_of_the_ai_sdk_is_pruned_last() -> None:
    outputs = ({"type": "json", "value": LONG}, {"type": "text", "value": LONG}, {"type": "error-text", "value": LONG})
    messages = vercel()
    parts = [{**messages[2]["content"][0], "toolCallId": str(at), "output": one} for at, one in enumerate(outputs)]
    messages[2] = {"role": "tool", "content": parts}
    cuts = prune(messages, 0, "vercel").cuts
    assert [cut.where[1] for cut in cuts] == [0, 1, 2]
    assert [cut.phase for cut in cuts] == ["tool results", "tool results", "last tool result"]


def test_calls_of_the_ai_sdk_in_both_spellings_are_pruned() -> None:
    for name in ("input", "args"):
        messages = [*vercel(result="ok"), *vercel(result="ok")[1:]]
        call = {"type": "tool-call", "toolCallId": "t", "toolName": "look", name: {"query": LONG}}
        messages[1] = {"role": "assistant", "content": [call]}
        pruned, _ = kept(messages, "vercel")
        assert pruned.messages[1]["content"][0][name]["pruned"] == "1,012 bytes of tool input"


def test_arguments_that_are_not_json_are_not_a_stub() -> None:
    messages = [user("x"), assistant(None, ("a", "{" * 150)), tool("a", "ok"), assistant("done")]
    assert [cut.message for cut in prune(messages, 0).cuts] == [1]


@pytest.mark.parametrize("text", ["", "\n"])
def test_an_empty_text_is_not_the_latest(text: str) -> None:
    messages = [user("x"), assistant(LONG), user("y"), assistant(text, ("a", "{}")), tool("a", "ok")]
    assert prune(messages, 0).cuts == ()
    assert [cut.message for cut in prune([*messages, assistant("done")], 0).cuts] == [1]


def test_unknown_message_shapes_are_kept() -> None:
    odd: list[Message] = [
        {"role": "assistant", "content": LONG, "tool_calls": [LONG, {"function": LONG}]},
        {"role": "tool", "content": 1},
        {"role": ["user"], "content": LONG},
        {"content": LONG},
        {"role": "user", "content": [LONG, {"type": "text"}]},
        {"role": "user", "content": {"text": LONG}},
    ]
    for provider in SIGNED:
        assert prune(odd, 0, provider).messages is odd


def test_an_unknown_format_and_a_wrong_message_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^Unknown format 'gemini'\. Use one of openai, .*vercel\.$"):
        prune_messages([], 0, "gemini")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^Message 1 is of type str\. Pass plain dicts"):
        prune_messages([user("x"), "y"], 0, "openai")
    with pytest.raises(ValueError, match="Unknown format"):
        restore_messages([], {}.get, "gemini")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Message 0"):
        pruned_paths(["y"], "openai")


def test_messages_that_can_be_read_only_once_are_refused() -> None:
    once: Any = (message for message in [user("x")])
    expected = r"^The messages are of type generator\. Pass a list of plain dicts\.$"
    with pytest.raises(TypeError, match=expected):
        prune_messages(once, 9, "openai")
    with pytest.raises(TypeError, match=expected):
        restore_messages(once, dict[str, bytes]().get, "openai")
    with pytest.raises(TypeError, match=expected):
        pruned_paths(once, "openai")
    assert list(once) == [user("x")]


def test_the_default_estimate_accepts_values_that_are_not_json() -> None:
    messages = [user("x"), {"role": "user", "content": [{"type": "image", "image": object()}]}]
    assert prune_messages(messages, 1 << 20, "vercel").fits
    assert prune_messages([{**user("x"), "type": {}, "more": {"type": ["string"]}}], 1 << 20, "vercel").fits


def test_the_example_of_the_guide_prints_its_comments(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "pruning.md").read_text(encoding="utf-8")
    example = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    exec(example, {})  # noqa: S102  # it is ours
    printed = [line.removeprefix("# ") for line in example.splitlines() if line.startswith("# ")]
    assert capsys.readouterr().out.splitlines() == printed

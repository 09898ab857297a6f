"""`mcp-mirror call`: arguments are converted to the tool's types, and it does not wait for unneeded upstreams."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from tests.end_to_end.conftest import BOUND

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.conftest import Configured, Run

TYPES: dict[str, Any] = {
    "text": {"type": "string"},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "number": {"type": "number"},
    "whole": {"type": "integer"},
    "either": {"type": ["string", "number"]},
    "lines": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    "map": {"type": "object"},
    "flag": {"type": "boolean"},
    "any": {},
}
READ: list[tuple[str, str, str]] = [
    *(("text", text, json.dumps(text)) for text in ("123", "1.50", "true", "null", "[1]", '{"a":1}', "NaN", "")),
    *(("text", text, json.dumps(text)) for text in ("a=b", '"7"', " 1 ")),
    ("text", "\u00e9", '"\u00e9"'),
    *(("maybe", "123", '"123"'), ("maybe", "null", "null"), ("maybe", "word", '"word"'), ("maybe", '"7"', '"\\"7\\""')),
    *(("number", "1.50", "1.50"), ("number", "1e400", "1e400")),
    *(("whole", "9" * 5000, "9" * 5000), ("whole", "-0", "-0")),
    *(("either", "7", "7"), ("either", '"7"', '"7"'), ("either", "seven", '"seven"'), ("either", "[7]", '"[7]"')),
    *(("lines", '["a"]', '["a"]'), ("lines", "a", '"a"'), ("lines", "5", '"5"')),
    *(("map", '{"a": 1.0}', '{"a": 1.0}'), ("flag", "true", "true")),
    *(("any", "5.0", "5.0"), ("any", "word", '"word"'), ("any", '"5"', '"5"'), ("any", "NaN", '"NaN"')),
    ("unheard_of", "1", "1"),
]
"""What a value's type is, what is typed, and what the tool gets."""
PROPERTIES = TYPES | {f"{name}{at}": TYPES[name] for at, (name, *_) in enumerate(READ) if name in TYPES}
"""A key of its own for each value, so that one call has all of them."""


@pytest.fixture
def config(configured: Configured, raw: Any, tmp_path: Path) -> str:
    (tmp_path / "tools").write_text(
        json.dumps([{"name": "hear", "inputSchema": {"type": "object", "properties": PROPERTIES}}])
    )
    upstreams = {"raw": raw("ok", "--tools", str(tmp_path / "tools"))}
    return str(configured(upstreams, mirror={"capture": "never"}))


async def test_a_value_is_read_as_the_tool_declares_it(config: str, run: Run) -> None:
    options = [f"--arg={name}{at}={text}" for at, (name, text, _) in enumerate(READ)]
    ended = await run("call", "--config", config, "hear_mirrored", *options)
    assert ended.code == 0, ended.out + ended.err
    for at, (name, text, wanted) in enumerate(READ):
        assert f'"{name}{at}":{wanted}' in ended.out, text


async def test_a_value_of_the_wrong_type_is_an_error(config: str, run: Run) -> None:
    for text in ("whole=word", "map=[1]", "flag=7"):
        ended = await run("call", "--config", config, "hear_mirrored", "--arg", text)
        assert ended.code == 1
        assert f"do not fit tool 'hear_mirrored': {text.partition('=')[0]}" in ended.out


async def test_the_arguments_may_be_one_json_object(config: str, run: Run) -> None:
    text = '{"text0": "7", "map": {"a": [1.50, null]}, "whole": 1}'
    ended = await run("call", "--config", config, "hear_mirrored", text, "--arg", "whole=2")
    assert ended.code == 0, ended.out + ended.err
    for wanted in ('"text0":"7"', '"map":{"a": [1.50, null]}', '"whole":2'):
        assert wanted in ended.out


@pytest.mark.parametrize("text", ["text=hello", "[1]", '{"a":', "7"])
async def test_arguments_that_are_no_json_object_are_an_error(configured: Configured, run: Run, text: str) -> None:
    ended = await run("call", "--config", str(configured({})), "x", text)
    assert (ended.code, ended.out) == (2, "")
    assert "must be a JSON object" in ended.err
    assert "--arg" in ended.err


async def test_an_invalid_argument_is_reported_before_anything_starts(configured: Configured, run: Run) -> None:
    for text, message in (("text", "must be KEY=VALUE"), ("=x", "must be KEY=VALUE"), (b"text=\xff", "must be UTF-8")):
        ended = await run("call", "--config", str(configured({})), "x", "--arg", text)
        assert (ended.code, ended.out) == (2, "")
        assert message in ended.err


async def test_only_the_tools_own_upstream_is_waited_for(configured: Configured, run: Run, raw: Any) -> None:
    late = raw("silent", startup_timeout=10 * BOUND)  # `run` waits for `BOUND`
    config = str(configured({"late": late, "raw": raw()}, mirror={"startup_wait": 10 * BOUND}))
    ended = await run("call", "--config", config, "hear_mirrored", "--arg", "text=hello")
    assert ended.code == 0
    assert "hello" in ended.out


async def test_an_unknown_tool_is_reported_after_all_upstreams_answered(
    configured: Configured, run: Run, raw: Any
) -> None:
    ended = await run("call", "--config", str(configured({"raw": raw()})), "send_mail")
    assert ended.code == 1
    assert "Unknown tool 'send_mail'." in ended.out
    assert ended.err == "mcp-mirror: `mcp-mirror check` lists all tools.\n"


async def test_a_path_of_another_gateway_needs_a_store_on_disk(configured: Configured, run: Run, raw: Any) -> None:
    for store, has_note in ({}, True), ({"store": {"kind": "disk"}}, False):
        config = str(configured({"raw": raw()}, **store))
        ended = await run("call", "--config", config, "hear_mirrored", "--arg", f"text=say-{uuid4()}")
        assert (ended.code, "No value is stored under" in ended.out) == (1, True)
        assert ("`store: {kind: disk}`" in ended.err) == has_note


@pytest.mark.parametrize("tool", ["find_tools", "call_tool"])
async def test_the_search_tools_take_names_without_the_suffix(
    tool: str, configured: Configured, run: Run, raw: Any
) -> None:
    config = str(configured({"raw": raw()}, mirror={"listing": "search"}))
    ended = await run("call", "--config", config, tool, "--arg", "name=hear")
    assert ended.code == 0, ended.out
    wanted = '{"name":"hear_mirrored"' if tool == "find_tools" else '"params":{"name":"hear","arguments":{}}'
    assert wanted in ended.out


async def test_a_memory_tool_does_not_wait_for_upstreams(configured: Configured, run: Run, raw: Any) -> None:
    config = str(configured({"late": raw("silent")}))
    ended = await run("call", "--config", config, "retrieve_final_answer_from_memory", "--arg", "memory_path=7")
    assert ended.code == 1
    assert 'No value is stored under "7".' in ended.out


async def test_only_the_content_of_a_result_is_printed(configured: Configured, run: Run, raw: Any) -> None:
    config = str(configured({"raw": raw()}, mirror={"capture": "never"}))
    result = '{"content":[{"type":"text","text":"5"}],"structuredContent":{"n":' + "9" * 5000 + "}}"
    ended = await run("call", "--config", config, "say_mirrored", "--arg", f"result={json.dumps(result)}")
    assert (ended.code, ended.out, ended.err) == (0, "5\n", "")


@pytest.mark.parametrize(
    ("result", "printed"),
    [
        ("{}", ""),
        ('{"content":[]}', ""),
        ('{"content":[],"structuredContent":{"n":5}}', '{"n":5}\n'),
        ('{"structuredContent":{"n":5},"isError":true}', '{"n":5}\n'),
        (
            '{"content":[{"type":"text","text":null},{"type":"text"}]}',
            '{"type": "text", "text": null}\n{"type": "text"}\n',
        ),
    ],
)
async def test_a_result_without_text_is_printed(
    result: str, printed: str, configured: Configured, run: Run, raw: Any
) -> None:
    config = str(configured({"raw": raw()}, mirror={"capture": "never"}))
    ended = await run("call", "--config", config, "say_mirrored", "--arg", f"result={json.dumps(result)}")
    assert (ended.code, ended.out, ended.err) == (int("isError" in result), printed, "")

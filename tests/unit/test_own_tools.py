"""The memory tools as clients see them: their list, their sizes and their descriptions."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from msgspec.structs import replace

from mcp_mirror.errors import ToolError
from mcp_mirror.memory.code.run import add_run
from mcp_mirror.memory.tools.roots import Roots
from mcp_mirror.memory.tools.table import QUERY, RETRIEVE, RUN, SLUGS, TOOLS, explain_unserved, own_tools
from mcp_mirror.memory.tools.tool import Arguments
from mcp_mirror.settings.policies import MemoryToolSet, MemoryToolsPolicy, ScriptAccess

WEEK = 7 * 86_400.0
ROOTED = MemoryToolsPolicy("all", roots=("/exchange",))
FILES = {"memory_import", "memory_export"}
ADDED = "Every client pays for a new tool: see `Add a memory tool` in docs/internals/extending.md."


def test_all_definitions_together_are_short(count_tokens: Callable[[str], int]) -> None:
    adverts = [tool.advert for tool in own_tools(ROOTED, WEEK).values()]
    assert len(adverts) == 11, ADDED
    assert count_tokens(msgspec.json.encode(adverts).decode()) <= 900, ADDED


def test_files_are_out_of_reach_where_no_root_is_named() -> None:
    assert set(TOOLS) - set(own_tools(MemoryToolsPolicy("all"), WEEK)) == FILES


@pytest.mark.parametrize("has_sql", [True, False])
def test_the_standard_set_costs_at_most_600_tokens(*, has_sql: bool, count_tokens: Callable[[str], int]) -> None:
    tools = add_run(own_tools(MemoryToolsPolicy(), WEEK, has_sql=has_sql, has_run=True), "read_only")
    shown = [{key: tool.advert[key] for key in ("name", "description", "inputSchema")} for tool in tools.values()]
    assert 0 < count_tokens(msgspec.json.encode(shown).decode()) <= 600


def test_one_tool_has_the_example_of_a_join() -> None:
    without_run = own_tools(MemoryToolsPolicy(), WEEK, has_sql=True)
    assert "JOIN drivers" in without_run[QUERY].description
    with_both = add_run(own_tools(MemoryToolsPolicy(), WEEK, has_sql=True, has_run=True), "read_only")
    assert next(iter(with_both)) == RUN
    assert "names[t[...]]" in with_both[RUN].description
    assert "JOIN" not in with_both[QUERY].description
    assert "inputs" in with_both[QUERY].description


def test_the_guide_has_the_tokens_of_the_sets(count_tokens: Callable[[str], int]) -> None:
    def count(kind: MemoryToolSet, *, has_sql: bool = False, has_run: bool = False) -> int:
        tools = own_tools(MemoryToolsPolicy(kind), WEEK, has_sql=has_sql, has_run=has_run)
        tools = add_run(tools, "read_only") if has_run else tools
        shown = [{key: one.advert[key] for key in ("name", "description", "inputSchema")} for one in tools.values()]
        return count_tokens(msgspec.json.encode(shown).decode())

    guide = (Path(__file__).parents[2] / "docs/guides/memory-tools.md").read_text(encoding="utf-8")
    written = re.findall(r"^\| `(\w+)`[^|]*\|[^|]*\| (\d+)(?:, with `memory_run` (\d+))? \|$", guide, re.MULTILINE)
    assert written == [
        ("minimal", str(count("minimal")), ""),
        ("standard", str(count("standard")), str(count("standard", has_run=True))),
        ("all", str(count("all")), str(count("all", has_run=True))),
    ], "Write the numbers on the right into the table of sets in docs/guides/memory-tools.md."
    alone, beside = (
        count("standard", has_sql=True, has_run=has_run) - count("standard", has_run=has_run)
        for has_run in (False, True)
    )
    assert f"`memory_query` has {alone} tokens more, or {beside} beside `memory_run`" in guide


def test_the_script_tool_names_tools_only_where_there_are_any() -> None:
    own = own_tools(MemoryToolsPolicy(), WEEK, has_run=True)
    described = {access: add_run(own, access)[RUN].description for access in get_args(ScriptAccess)}
    alone = described.pop("none")
    assert "tools." not in alone
    assert described == {
        "read_only": f"{alone}\nTools that only read: await tools.name(argument=...).",
        "listed": f"{alone}\nTools: await tools.name(argument=...).",
        "all": f"{alone}\nTools: await tools.name(argument=...).",
    }


STANDARD = {RETRIEVE, "memory_read", "memory_grep", "memory_query", "memory_edit"}


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        (MemoryToolsPolicy("minimal"), {RETRIEVE, "memory_read"}),
        (MemoryToolsPolicy("minimal", roots=("/a",)), {RETRIEVE, "memory_read", *FILES}),
        (MemoryToolsPolicy(), STANDARD),
        (MemoryToolsPolicy(deny=("memory_edit",)), STANDARD - {"memory_edit"}),
        (MemoryToolsPolicy("all"), set(TOOLS) - FILES),
        (MemoryToolsPolicy(allow=("memory_query", "memory_l*")), {"memory_query", "memory_list"}),
        (MemoryToolsPolicy(allow=()), set()),
    ],
)
def test_a_set_has_its_tools(policy: MemoryToolsPolicy, served: set[str]) -> None:
    assert set(own_tools(policy, WEEK)) == served
    assert policy.admits("memory_run") == (policy.set != "minimal" and policy.allow is None)


@pytest.mark.parametrize(
    ("name", "policy", "reason"),
    [
        ("memory_put", MemoryToolsPolicy(), "`memory_tools: all` in the gateway's configuration serves it."),
        ("memory_query", MemoryToolsPolicy("minimal"), "`memory_tools: all` in the gateway's configuration serves it."),
        ("memory_edit", MemoryToolsPolicy(deny=("memory_e*",)), "`memory_tools.deny` in the gateway's configuration"),
        ("memory_put", MemoryToolsPolicy(allow=("memory_read",)), "`memory_tools.allow` in the gateway's"),
        ("memory_import", MemoryToolsPolicy(), "It needs folders in `memory_tools.roots`"),
        ("memory_run", MemoryToolsPolicy(), "It needs the extra `code`"),
        ("memory_run", MemoryToolsPolicy("minimal"), "`memory_tools: all` in the gateway's configuration"),
    ],
)
def test_the_error_names_the_key_that_serves_a_tool(name: str, policy: MemoryToolsPolicy, reason: str) -> None:
    assert (explain_unserved(name, policy) or "").startswith(
        f"Unknown tool {name!r}: this memory tool is not served. {reason}"
    )


def test_other_names_are_not_memory_tools() -> None:
    assert explain_unserved("memory_of_mine", MemoryToolsPolicy()) is None


@pytest.mark.parametrize(
    ("allow", "deny", "served"),
    [
        (("*",), ("*",), set()),
        (("memory_r*",), (), {"memory_read"}),
        (("*",), ("memory_*",), {RETRIEVE}),
        (("memory_l*", "memory_i*"), ("memory_list",), {"memory_import"}),
    ],
)
def test_each_tool_can_be_switched_off(allow: tuple[str, ...], deny: tuple[str, ...], served: set[str]) -> None:
    assert set(own_tools(replace(ROOTED, allow=allow, deny=deny), WEEK)) == served


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (WEEK, "7 days"),
        (86_400.0, "24 hours"),
        (5400.0, "90 minutes"),
        (60.0, "60 seconds"),
        (1.0, "1 second"),
        (0.5, "0.5 seconds"),
    ],
)
def test_descriptions_of_storing_tools_state_the_lifetime(seconds: float, expected: str) -> None:
    tools = own_tools(ROOTED, seconds)
    for name in (*SLUGS - {"pruned", RUN}, "memory_list"):
        assert f"kept {expected} after last use" in tools[name].description
    assert all("{" not in tool.description for tool in tools.values())


@pytest.mark.parametrize(
    ("tool", "arguments", "read"),
    [
        ("memory_read", b'{"memory_path":"p","offset":"-5","limit":2.0}', {"offset": -5, "limit": 2}),
        ("memory_read", b'{"memory_path":"p","offset":null}', {"offset": 0}),
        ("memory_edit", b'{"memory_path":"p","old_text":"a","new_text":"b","all":"true"}', {"all": True}),
        ("memory_edit", b'{"memory_path":"p","old_text":"a","new_text":"b","all":false}', {"all": False}),
    ],
)
def test_texts_with_a_number_are_accepted_as_numbers(tool: str, arguments: bytes, read: dict[str, int]) -> None:
    parsed = TOOLS[tool].read_arguments(arguments)
    assert {name: parsed.flag(name) if name == "all" else parsed.number(name) for name in read} == read


@pytest.mark.parametrize(
    ("tool", "arguments", "read"),
    [
        ("memory_read", {"path": "p"}, {"memory_path": "p"}),
        ("memory_read", {"file_path": "p", "by": "line"}, {"memory_path": "p", "by": "lines"}),
        ("memory_read", {"path": "p", "start_index": 9, "head": 5}, {"offset": "9", "limit": "5"}),
        ("memory_edit", {"path": "p", "find": "a", "replace": "b"}, {"old_text": "a", "new_text": "b"}),
        ("memory_grep", {"path": "p", "pattern": "x", "before": 2}, {"context": "2"}),
        ("memory_grep", {"path": "p", "query": "x", "-C": 2}, {"memory_path": "p", "pattern": "x", "context": "2"}),
        ("memory_grep", {"memory_path": "p", "regex": "x", "-A": 3}, {"pattern": "x", "context": "3"}),
        ("memory_grep", {"memory_path": "p", "pattern": "x", "head_limit": 9}, {"limit": "9"}),
        ("memory_grep", {"memory_path": "p", "pattern": "x", "maxCount": 9}, {"limit": "9"}),
        ("memory_grep", {"memory_path": "p", "pattern": "x", "output_mode": "content", "-n": True}, {"pattern": "x"}),
        ("memory_grep", {"memory_path": "p", "pattern": "x", "-i": True}, {"ignore_case": "True"}),
        ("memory_query", {"path": "p", "query": "[0]"}, {"memory_path": "p", "expression": "[0]"}),
        (
            "memory_edit",
            {"file_path": "p", "old_string": "a", "new_string": "", "replace_all": True},
            {"memory_path": "p", "old_text": "a", "new_text": "", "all": "True"},
        ),
        ("memory_import", {"path": "f"}, {"file": "f"}),
    ],
)
def test_arguments_with_the_names_of_other_tools_are_read(
    tool: str, arguments: dict[str, Any], read: dict[str, str]
) -> None:
    parsed = TOOLS[tool].read_arguments(json.dumps(arguments).encode())
    assert {name: parsed.text(name) for name in read} == read
    assert TOOLS[tool].advert["inputSchema"]["properties"].keys() == TOOLS[tool].properties.keys()


@pytest.mark.parametrize(
    ("tool", "argument", "written", "kept"),
    [
        ("memory_edit", "patch", b'[{"op":"add","path":"/a","value":1.0}]', b'[{"op":"add","path":"/a","value":1.0}]'),
        ("memory_edit", "patch", b'"[{\\"op\\":\\"remove\\"}]"', b'[{"op":"remove"}]'),
        ("memory_edit", "merge", b'{"a":1e400}', b'{"a":1e400}'),
        ("memory_edit", "merge", b'" {\\"a\\":1.0}"', b'{"a":1.0}'),
    ],
)
def test_json_is_kept_as_it_is_written(tool: str, argument: str, written: bytes, kept: bytes) -> None:
    parsed = TOOLS[tool].read_arguments(b'{"memory_path":"p","%b":%b}' % (argument.encode(), written))
    assert parsed.json(argument) == kept


@pytest.mark.parametrize(
    ("text", "code"),
    [
        *(("```python\nx = 1\n\nx\n```", "x = 1\n\nx"), ("\n``` \r\nx```\n", "x"), ("```sql\n```", "")),
        *(("x", "x"), ("```", "```"), ("```x```", "```x```"), ("```x y\nz\n```", "```x y\nz\n```")),
        *(("```\nx", "```\nx"), ("```\n" + " " * 300_000 + "x", "```\n" + " " * 300_000 + "x")),
    ],
)
def test_code_is_read_without_a_fence_around_it(text: str, code: str) -> None:
    """A pattern with white space before the closing fence would take minutes for the last text."""
    assert Arguments({"code": text}, b"").code("code") == code


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        (
            "memory_read",
            b"[]",
            "JSON object. It takes memory_path, and may take by (chars, lines, items or keys), offset (from 0; -1: the",
        ),
        ("memory_read", b'{"\xff":"p"}', "The arguments are not a JSON object."),
        ("memory_read", b"{}", "memory_read needs 'memory_path'."),
        ("memory_read", b'{"memory_path":"p","ofset":1}', "has no argument 'ofset'. Did you mean 'offset'?"),
        (
            "memory_read",
            b'{"memory_path":"p","lines":"1-3"}',
            """has no argument 'lines'. Write by="lines". It takes""",
        ),
        ("memory_query", b'{"sql":"SELECT 1"}', "has no argument 'sql'. It needs the extra `sql`: pip install"),
        ("memory_grep", b'{"zzzz":1}', "has no argument 'zzzz'. It takes memory_path"),
        ("memory_read", b'{"name":"p"}', "has no argument 'name'. Did you mean 'memory_path'?"),
        ("memory_read", b'{"path":7}', "has no argument 'path'. It takes memory_path"),
        ("memory_read", b'{"path":"p","memory_path":"p"}', "has no argument 'path'. Give 'memory_path' once."),
        ("memory_export", b'{"path":"p"}', "has no argument 'path'. Did you mean 'memory_path'?"),
        (
            "memory_grep",
            b'{"memory_path":"p","search_for":"x"}',
            "has no argument 'search_for'. Did you mean 'pattern'?",
        ),
        (
            "memory_grep",
            b'{"memory_path":"p","pattern":"x","-A":1,"-B":2}',
            "has no argument '-B'. Give 'context' once.",
        ),
        ("memory_grep", b'{"memory_path":"p","pattern":"x","output_mode":"count"}', "must be one of content."),
        ("memory_read", b'{"memory_pat":"p","memory_path":"p"}', "has no argument 'memory_pat'. It takes memory_path"),
        ("memory_read", b'{"memory_path":"p","zzzz":1}', "has no argument 'zzzz'. It takes memory_path"),
        ("memory_read", b'{"memory_path":7}', "'memory_path' of memory_read must be text."),
        ("memory_read", b'{"memory_path":"p","offset":1.5}', "'offset' of memory_read must be a whole number."),
        (
            "memory_read",
            b'{"memory_path":"p","by":"words"}',
            "'by' of memory_read must be one of chars, lines, items, keys.",
        ),
        ("memory_edit", b'{"memory_path":"p","all":1}', "'all' of memory_edit must be true or false."),
        ("memory_edit", b'{"memory_path":"p","patch":{}}', "'patch' of memory_edit must be a list."),
        ("memory_edit", b'{"memory_path":"p","patch":"[{"}', "'patch' of memory_edit must be a list."),
        ("memory_edit", b'{"memory_path":"p","patch":"{}"}', "'patch' of memory_edit must be a list."),
        ("memory_edit", b'{"memory_path":"p","merge":"x"}', "'merge' of memory_edit must be an object."),
        ("memory_list", b'{"x":1}', "memory_list has no argument 'x'. It may take tool, after."),
        ("memory_forget", b'{"memory_path":"p","x":1}', "It takes memory_path."),
    ],
)
def test_a_wrong_argument_is_answered_with_what_to_do(tool: str, arguments: bytes, expected: str) -> None:
    with pytest.raises(ToolError) as error:
        TOOLS[tool].read_arguments(arguments)
    assert expected in str(error.value)


@pytest.mark.parametrize("arguments", [b'{"inputs":"p","code":"1"}', b'{"memory_path":"p","code":"1"}'])
def test_the_error_about_inputs_of_a_script_shows_their_form(arguments: bytes) -> None:
    tool = add_run(own_tools(MemoryToolsPolicy(), WEEK, has_run=True), "none")[RUN]
    with pytest.raises(ToolError, match=re.escape('It takes inputs ({"name": path}), code.')):
        tool.read_arguments(arguments)


def test_a_path_of_a_file_is_bounded() -> None:
    with (
        pytest.raises(ToolError, match="longer than 32,768 characters"),
        Roots((str(Path.cwd()),)).open_file(f"/{'a/' * 20_000}x"),
    ):
        pass

"""Search of tools: what clients see, find and call where most tools are not listed (`mirror.listing`)."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from contextlib import AsyncExitStack
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from gateway_processes import forked_upstream
from mcp import MCPError
from mcp_types import INVALID_PARAMS, ElicitResult, InputRequiredResult
from notices import path_in
from samples import sample
from tests.auth.conftest import HASHES, serving_gateway
from tests.auth.strangers import Visitor, visiting
from tests.end_to_end.conftest import BOUND, scripted_upstream
from waiting import until

from mcp_mirror import Mirror, SyncMirror

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp import Client
    from tests.end_to_end.conftest import Configured, Connect, Lines, OpenClient, OpenLines, Run

RELAY = Path(__file__).parents[1] / "relay" / "upstream.py"
SEARCH = {"listing": "search"}
NAMES = ("say_mirrored", "say")
LARGE = {"result": json.dumps({"content": [], "structuredContent": {"rows": [{"n": n} for n in range(2_000)]}})}
FILES = [
    {
        "name": "read_text_file",
        "description": "Read a text file. Fails for others.\nMore about it.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "tail": {"type": "integer"},
                "by": {"enum": ["line", "byte"]},
                "edits": {"type": ["array", "null"]},
            },
            "required": ["path"],
        },
    },
    {"name": "delete_folder", "description": "Delete a folder.", "inputSchema": {"type": "object"}},
    {"name": "say", "description": "Say it.", "inputSchema": {"type": "object"}},
    {"name": "hear", "description": "Hear it.", "inputSchema": {"type": "object"}},
]


def write_files(folder: Path, more: int = 0, **keys: Any) -> dict[str, Any]:
    """An upstream with the tools above, and others of no use."""
    path = folder / "tools.json"
    others = [
        {"name": f"other{n}", "description": "word " * 50, "inputSchema": {"type": "object"}} for n in range(more)
    ]
    path.write_text(json.dumps([*FILES, *others]))
    return scripted_upstream("ok", "--tools", str(path), **keys)


@pytest.fixture
def files(tmp_path: Path) -> Any:
    return partial(write_files, tmp_path)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(shared_client: Any, tmp_path_factory: pytest.TempPathFactory) -> Client:
    """A client of a gateway that has those tools behind the search."""
    client: Client = await shared_client({"files": write_files(tmp_path_factory.mktemp("files"))}, mirror=SEARCH)
    return client


async def search(client: Client, **arguments: Any) -> str:
    result = await client.call_tool("find_tools", arguments)
    assert not result.is_error
    return str(result.content[0].text)  # type: ignore[union-attr]


async def call(client: Client, name: str, arguments: Any = None) -> str:
    result = await client.call_tool("call_tool", {"name": name, "arguments": arguments or {}})
    return str(result.content[0].text)  # type: ignore[union-attr]


async def names(client: Client) -> list[str]:
    return [tool.name for tool in (await client.list_tools(cache_mode="refresh")).tools]


@pytest.mark.parametrize(
    ("transport", "mode"),
    sample(product(("stdio", "http"), ("legacy", "auto")), [("stdio", "legacy"), ("http", "auto")].__contains__),
)
async def test_a_tool_is_found_and_called_with_a_memory_path(
    configured: Configured, connect: Connect, files: Any, transport: str, mode: str
) -> None:
    async with connect(configured({"files": files()}, mirror=SEARCH), transport, mode=mode) as client:
        listed = await names(client)
        assert listed[:2] == ["find_tools", "call_tool"]
        assert not [name for name in listed if name.endswith("_mirrored")]
        assert "find one with find_tools" in (client.instructions or "")
        found = await search(client, query="say a text")
        assert found.startswith("say_mirrored()\n  Say it.")
        path = path_in(await call(client, "say_mirrored", LARGE))
        received = await call(client, "hear_mirrored", {"what": f"{path}/rows/7"})
        assert json.loads(received.split("\n")[0])["params"]["arguments"] == {"what": {"n": 7}}
        direct = await client.call_tool("hear_mirrored", {"what": f"{path}/rows/8/n"})
        assert '"what":8' in direct.content[0].text.replace(" ", "")  # type: ignore[union-attr]
        assert '"/n": 7' in await call(client, "memory_read", {"memory_path": f"{path}/rows/7"})


async def test_memory_tools_that_change_values_are_found_by_a_search(
    configured: Configured, connect: Connect, files: Any
) -> None:
    config = configured({"files": files()}, mirror=SEARCH, memory_tools={"set": "all"})
    async with connect(config) as client:
        assert not {"memory_edit", "memory_put", "memory_list", "memory_forget"} & set(await names(client))
        found = await search(client, query="replace a text in a stored value")
        assert "memory_edit(memory_path: string, patch?: array" in found
        assert "memory_forget(memory_path: string)\n  Delete a stored value." in await search(
            client, query="delete value"
        )
        path = path_in(await call(client, "memory_put", {"value": "a stored text"}))
        edited = await call(client, "memory_edit", {"memory_path": path, "old_text": "stored", "new_text": "changed"})
        assert "a changed text" in await call(client, "memory_read", {"memory_path": path_in(edited)})


async def test_a_list_to_search_costs_at_most_600_tokens(
    configured: Configured, connect: Connect, files: Any, count_tokens: Callable[[str], int]
) -> None:
    config = configured({"files": files(500)}, mirror=SEARCH, memory_tools={"set": "all"})
    async with connect(config) as client:
        tools = (await client.list_tools()).tools
        own = ["memory_run", "retrieve_final_answer_from_memory", "memory_read", "memory_grep"]
        assert [tool.name for tool in tools] == ["find_tools", "call_tool", *own]
        shown = [{"name": one.name, "description": one.description, "inputSchema": one.input_schema} for one in tools]
        assert count_tokens(json.dumps(shown, separators=(",", ":"))) <= 600
        assert "memory_query(" in await search(client, query="group stored values; SQL over stored rows")


async def test_without_scripts_the_query_tool_is_listed(configured: Configured, connect: Connect, files: Any) -> None:
    config = configured({"files": files()}, mirror=SEARCH, memory_tools={"deny": ["memory_run"]})
    async with connect(config) as client:
        assert "memory_query" in await names(client)
        assert "memory_query(" not in await search(client, query="group stored values")


async def test_matches_have_arguments_and_one_line(client: Client) -> None:
    first, second, *_ = (await search(client, query="show the text in a file")).split("\n")
    assert first == "read_text_file_mirrored(path: string, tail?: int, by?: line|byte, edits?: array)"
    assert second == "  Read a text file."
    definition = json.loads(await search(client, name="read_text_file_mirrored"))
    assert definition["inputSchema"] == FILES[0]["inputSchema"]
    assert definition["description"].startswith(FILES[0]["description"])
    assert json.loads(await search(client, name="memory_read"))["name"] == "memory_read"
    assert await search(client, query="xyzzy") == (
        'No tool matches "xyzzy". Use other words. Servers with tools: files (4).'
    )
    assert await search(client) == "Servers with tools: files (4)."
    unknown = await client.call_tool("find_tools", {"name": "read_file"})
    assert unknown.is_error
    assert "read_text_file_mirrored" in str(unknown.content)


async def test_an_unknown_name_beside_a_query_returns_the_matches(client: Client) -> None:
    first, second, *_ = (await search(client, query="delete a folder", name="remove_dir")).split("\n")
    assert first == 'No tool has the name "remove_dir". Tools that match the query:'
    assert second.startswith("delete_folder_mirrored(")
    nothing = await search(client, query="xyzzy", name="remove_dir")
    assert nothing.startswith('No tool has the name "remove_dir". No tool matches "xyzzy".')
    assert json.loads(await search(client, query="delete", name="say_mirrored"))["name"] == "say_mirrored"


async def test_further_matches_are_named(configured: Configured, connect: Connect, files: Any) -> None:
    async with connect(configured({"files": files(30)}, mirror=SEARCH)) as client:
        lines = (await search(client, query="word")).split("\n")
        assert len(lines) == 11
        assert lines[-1].startswith("Also: ")
        assert lines[-1].count("other") == 10


async def test_the_name_of_a_twin_may_lack_its_suffix(client: Client) -> None:
    assert json.loads(await search(client, name="say"))["name"] == "say_mirrored"
    both = [await call(client, name, {"result": '{"content": [{"type": "text", "text": "a"}]}'}) for name in NAMES]
    assert both == ["a", "a"]
    assert "Unknown tool 'sa'" in await call(client, "sa", {})


async def test_errors_of_call_tool_name_the_next_step(client: Client) -> None:
    assert "call_tool needs 'name'" in str((await client.call_tool("call_tool", {})).content)
    flat = await client.call_tool("call_tool", {"name": "say_mirrored", "path": "x"})
    assert "call_tool has no argument 'path'" in str(flat.content)
    assert "cannot call itself" in await call(client, "call_tool", {"name": "call_tool"})
    assert "Unknown tool 'tool-of-none'. Take a name from find_tools." in await call(client, "tool-of-none")
    assert "Nearest are read_text_file_mirrored" in await call(client, "read_text_fil")
    invalid = await client.call_tool("call_tool", {"name": "read_text_file_mirrored", "arguments": {}})
    assert invalid.is_error
    as_text = {
        "name": "say_mirrored",
        "arguments": json.dumps({"result": '{"content":[{"type":"text","text":"a"}]}'}),
    }
    assert (await client.call_tool("call_tool", as_text)).content[0].text == "a"  # type: ignore[union-attr]


async def test_configured_tools_are_listed_beside_the_search(
    configured: Configured, connect: Connect, files: Any
) -> None:
    upstream = files(overrides={"read_*": {"listed": True}})
    async with connect(configured({"files": upstream}, mirror=SEARCH)) as client:
        assert (await names(client))[:3] == ["read_text_file_mirrored", "find_tools", "call_tool"]
        assert "delete_folder_mirrored" in await search(client, query="remove a directory")


@pytest.mark.parametrize(("budget", "is_search"), [(1_000, True), (100_000, False)])
async def test_auto_searches_above_its_budget(
    configured: Configured, connect: Connect, files: Any, budget: int, *, is_search: bool
) -> None:
    mirror = {"listing": "auto", "listing_budget": budget}
    async with connect(configured({"files": files(60)}, mirror=mirror)) as client:
        listed = await names(client)
        assert ("find_tools" in listed) is is_search
        assert ("say_mirrored" in listed) is not is_search
        assert ("find_tools" in (client.instructions or "")) is is_search
        assert "say_mirrored" in await search(client, query="say")  # cached names work


async def test_the_instructions_name_only_tools_that_are_listed(
    configured: Configured, connect: Connect, files: Any
) -> None:
    for mirror in ({}, SEARCH):
        async with connect(configured({"files": files()}, mirror=mirror)) as client:
            named = set(re.findall(r"\b(?:memory|find|call)_\w+", client.instructions or ""))
            assert named
            assert named <= set(await names(client))


async def test_nothing_changes_without_the_setting(configured: Configured, connect: Connect, files: Any) -> None:
    async with connect(configured({"files": files()})) as client:
        listed = await names(client)
        assert "say_mirrored" in listed
        assert "find_tools" not in listed
        assert (await client.call_tool("find_tools", {"query": "say"})).is_error


async def test_a_transparent_gateway_can_be_searched(configured: Configured, connect: Connect, files: Any) -> None:
    mirror = {**SEARCH, "suffix": "", "capture": "never"}
    async with connect(configured({"files": files()}, mirror=mirror)) as client:
        assert await names(client) == ["find_tools", "call_tool"]
        assert (await search(client, query="delete")).startswith("delete_folder()")
        assert '"arguments"' in await call(client, "hear", {"a": 1})


async def test_the_audit_log_names_the_tool_that_was_called(
    open_client: OpenClient, files: Any, tmp_path: Path
) -> None:
    async with open_client({"files": files()}, mirror=SEARCH, audit={"path": "audit.jsonl"}) as client:
        await client.text("call_tool", {"name": "say_mirrored", "arguments": LARGE})
        await client.text("find_tools", {"query": "say"})
        await client.text("call_tool", {"arguments": {}})
    records = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(one["tool"], one["outcome"]) for one in records] == [
        ("say_mirrored", "stored"),
        ("find_tools", "ok"),
        ("call_tool", "error"),
    ]
    assert records[0]["upstream"] == "files"


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_an_input_round_belongs_to_the_tool_that_required_it(
    configured: Configured, connect: Connect, version: str
) -> None:
    upstream = forked_upstream(str(RELAY), "stdio", version)

    async def accept(_context: Any, _params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"name": "Ada"})

    async with connect(configured({"relay": upstream}, mirror=SEARCH), elicitation_callback=accept) as client:
        wrapped = {"name": "interview_mirrored", "arguments": {"rounds": "form"}}
        first = await client.session.call_tool("call_tool", wrapped, allow_input_required=True)
        assert isinstance(first, InputRequiredResult)
        again: dict[str, Any] = {
            "input_responses": {key: ElicitResult(action="decline") for key in first.input_requests or {}},
            "request_state": first.request_state,
            "allow_input_required": True,
        }
        with pytest.raises(MCPError) as caught:
            await client.session.call_tool("call_tool", {**wrapped, "name": "echo_mirrored"}, **again)
        assert caught.value.error.code == INVALID_PARAMS
        answered = await client.session.call_tool("call_tool", wrapped, **again)
        assert '"decline"' in answered.content[0].text


@pytest.mark.posix
async def test_a_reload_changes_what_clients_see(configured: Configured, open_lines: OpenLines, files: Any) -> None:
    config = configured({"files": files()})
    async with open_lines(config) as client:
        await client.greet()
        assert "say_mirrored" in str(await client.request("tools/list"))
        for mirror, wanted in ((SEARCH, True), ({"listing": "auto"}, False), ({**SEARCH, "listing_budget": 1}, True)):
            configured({"files": files()}, mirror=mirror)
            client.process.send_signal(signal.SIGHUP)
            assert b"list_changed" in await until_changed(client)
            assert ("find_tools" in str(await client.request("tools/list"))) is wanted


async def until_changed(client: Lines) -> bytes:
    async with asyncio.timeout(BOUND):
        while b"tools/list_changed" not in (line := await client.receive()):
            pass
    return line


async def test_check_prints_what_clients_see(configured: Configured, run: Run, files: Any) -> None:
    upstream = files(overrides={"say": {"listed": True}})
    ended = await run("check", "--config", str(configured({"files": upstream}, mirror=SEARCH)))
    assert ended.code == 0
    assert re.search(r"clients see \d+ tools, [\d,]+ tokens, and search the others\n", ended.out)
    assert "find_tools" in ended.out


async def test_the_call_command_searches(configured: Configured, run: Run, files: Any) -> None:
    config = str(configured({"files": files()}, mirror=SEARCH))
    ended = await run("call", "find_tools", "--config", config, "--arg", "query=delete")
    assert ended.out.startswith("delete_folder_mirrored()")


async def until_found(client: Lines, query: str, wanted: str) -> None:
    await until(lambda: client.text("find_tools", {"query": query}), lambda found: wanted in found)


@pytest.mark.parametrize("tool", sample(["find_tools", "call_tool"], lambda tool: tool == "call_tool"))
async def test_a_name_without_the_suffix_waits_for_a_starting_upstream(
    tool: str, open_client: OpenClient, raw: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    async with open_client({"late": raw("ok", "--gate", str(gate))}, mirror=SEARCH) as client:
        params = {"name": tool, "arguments": {"name": "hear"}}
        await client.send(json.dumps({"jsonrpc": "2.0", "id": "early", "method": "tools/call", "params": params}))
        await client.request("ping")  # the call was read before
        gate.touch()
        while (answer := json.loads(await client.receive())).get("id") != "early":
            pass
    assert "isError" not in answer["result"], answer
    wanted = '{"name":"hear_mirrored"' if tool == "find_tools" else '"params":{"name":"hear","arguments":{}}'
    assert wanted in answer["result"]["content"][0]["text"]


async def test_a_changed_list_is_searched(open_client: OpenClient, raw: Any) -> None:
    async with open_client({"one": raw()}, mirror=SEARCH) as client:
        assert "No tool" in await client.text("find_tools", {"query": "weather"})
        await client.text("call_tool", {"name": "grow_mirrored", "arguments": {"name": "weather"}})
        await until_found(client, "weather", "weather_mirrored")


async def test_denied_and_quarantined_tools_are_not_found(
    configured: Configured, connect: Connect, run: Run, files: Any, tmp_path: Path
) -> None:
    config = configured({"files": files(tools={"deny": ["delete_*"]})}, mirror=SEARCH)
    assert (await run("lock", "--config", str(config))).code == 0
    tools = json.loads((tmp_path / "tools.json").read_text())
    (tmp_path / "tools.json").write_text(json.dumps([{**tool, "description": "Other."} for tool in tools]))
    async with connect(config) as client:
        assert "delete_folder" not in await search(client, query="delete a folder")
        await until(lambda: search(client, query="say"), lambda found: "none" in found)
        assert "quarantined" in await call(client, "say_mirrored")
        assert (await client.call_tool("find_tools", {"name": "say_mirrored"})).is_error


@pytest.mark.parametrize("modern", [False, True])
async def test_principals_find_only_their_tools(configured: Configured, files: Any, *, modern: bool) -> None:
    auth = {"tokens": {"alice": {"hash": HASHES["alice"], "scopes": ["files.delete"]}, "bob": HASHES["bob"]}}
    upstream = files(overrides={"delete_*": {"required_scopes": ["files.delete"]}})
    config = configured({"files": upstream}, mirror=SEARCH, auth=auth)

    async def ask(visitor: Visitor, tool: str, **arguments: Any) -> str:
        return await visitor.ask("tools/call", {"name": tool, "arguments": arguments}, modern=modern)

    async with AsyncExitStack() as stack:
        url = (await stack.enter_async_context(serving_gateway(config))).url
        alice, bob = [await stack.enter_async_context(visiting(url, name)) for name in ("alice", "bob")]
        assert "delete_folder_mirrored" in await ask(alice, "find_tools", query="delete a folder")
        assert "delete_folder" not in await ask(bob, "find_tools", query="remove it")
        assert "delete_folder_mirrored(" not in await ask(bob, "find_tools", name="delete_folder_mirrored")
        assert "Unknown tool" in await ask(bob, "call_tool", name="delete_folder_mirrored")
        assert "delete_folder" in await ask(alice, "call_tool", name="delete_folder_mirrored")


def test_the_library_lists_and_calls_in_the_same_way(configured: Configured, files: Any) -> None:
    config = configured({"files": files()}, mirror=SEARCH)
    with SyncMirror(upstreams=config) as mirror:
        listed = [one["function"]["name"] for one in mirror.tools("openai")]
        assert listed[:2] == ["find_tools", "call_tool"]
        assert "say_mirrored" not in listed
        assert "find_tools" in mirror.instructions
        assert "say_mirrored" in mirror.call("find_tools", {"query": "say"}).text
        reply = mirror.call("call_tool", {"name": "say_mirrored", "arguments": LARGE})
        assert reply.path is not None
        assert mirror.read(reply.path)["rows"][5] == {"n": 5}


async def test_functions_can_be_listed() -> None:
    mirror = Mirror(upstreams={"mirror": SEARCH, "upstreams": {}})

    @mirror.tool(listed=True)
    def shown(a: int) -> int:
        """Double it."""
        return 2 * a

    @mirror.tool
    def found(a: int) -> int:
        """Halve a number."""
        return a // 2

    async with mirror:
        assert [one["name"] for one in mirror.tools("mcp")][:3] == ["shown_mirrored", "find_tools", "call_tool"]
        assert (await mirror.call("find_tools", {"query": "half of a number"})).text.startswith(
            "found_mirrored(a: int)"
        )
        assert (await mirror.call("call_tool", {"name": "found_mirrored", "arguments": {"a": 8}})).text == "4"

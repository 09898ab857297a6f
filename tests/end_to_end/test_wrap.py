"""`mcp-mirror wrap` stands in for one server, and `mcp-mirror memory` serves the memory that wrapped servers share."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from gateway_processes import Start, client_transport
from mcp import Client, MCPError
from notices import path_in
from tests.end_to_end.conftest import BOUND, SERVERS, Lines, run_command

from mcp_mirror.errors import unwrap_error_group

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Listening, Run

RETRIEVE = "retrieve_final_answer_from_memory"
OWN = [RETRIEVE, "memory_read"]
LONG = "\n".join(f"line {number}: caf\u00e9 \u2028 \U0001f600" for number in range(400))

Wrap = Callable[..., AbstractAsyncContextManager[Lines]]


def server(script: str, *args: str) -> list[str]:
    return ["--", sys.executable, str(SERVERS / script), *args]


def long_result(text: str = LONG) -> dict[str, Any]:
    return {"result": json.dumps({"content": [{"type": "text", "text": text}]})}


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of a user without data."""
    return {**os.environ, "XDG_DATA_HOME": str(tmp_path / "data"), "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def command(start: Start, home: dict[str, str]) -> Wrap:
    """A client by hand on the standard streams of a command."""

    def run_wrap(*args: str, env: dict[str, str] | None = None) -> AbstractAsyncContextManager[Lines]:
        return run_command(start, *args, env=env or home)

    return run_wrap


async def tool_names(client: Lines) -> list[str]:
    return [tool["name"] for tool in json.loads(await client.request("tools/list"))["result"]["tools"]]


async def test_clients_see_the_identity_and_the_tool_names_of_the_server(command: Wrap) -> None:
    async with command("wrap", *server("raw.py", "ok", "--name", "original")) as client:
        greeting = await client.greet()
        assert greeting["serverInfo"] == {"name": "original", "version": "7"}
        assert greeting["instructions"].startswith("I am original. xxx")
        assert "memory path" in greeting["instructions"]
        assert "resources" not in greeting["capabilities"]
        names = await tool_names(client)
        assert {"say", "hear", "die"} <= set(names)
        assert [name for name in names if "mirrored" in name or name.startswith("memory_")] == ["memory_read"]
        assert names[-2:] == OWN


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_each_protocol_version_sees_the_same_server(start: Start, home: dict[str, str], mode: Any) -> None:
    process = await start("wrap", *server("surroundings.py"), stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=home)
    async with asyncio.timeout(BOUND), Client(client_transport(process, BOUND), mode=mode) as client:
        assert client.protocol_version == {"legacy": "2025-11-25", "auto": "2026-07-28"}[mode]
        assert client.server_info is not None
        assert client.server_info.model_dump(by_alias=True, mode="json", exclude_none=True) == {
            "name": "surroundings",
            "title": "All around",
            "version": "3.1",
            "description": "Looks around.",
            "websiteUrl": "https://example.com/around",
            "icons": [{"src": "https://example.com/around.png", "mimeType": "image/png", "sizes": ["48x48"]}],
        }
        for _ in range(2):  # the second call does not enter the SDK
            listed = await client.list_tools()
            assert [tool.name for tool in listed.tools] == ["look", *OWN]
            result = await client.call_tool("look", {})
            assert not result.is_error
            stamp = (result.meta or {}).get("io.modelcontextprotocol/serverInfo")
            brief = {"name": "surroundings", "title": "All around", "version": "3.1"}
            assert stamp == {"legacy": None, "auto": brief}[mode]


async def test_a_server_may_ask_for_roots_before_it_lists_its_tools(command: Wrap) -> None:
    async with command("wrap", *server("raw.py", "asks")) as client:
        await client.greet(roots={})
        await client.send('{"jsonrpc":"2.0","id":"list","method":"tools/list"}')
        while (message := json.loads(await client.receive())).get("id") != "list":
            if message.get("method") == "roots/list":
                roots = [{"uri": "file:///project", "name": "project"}]
                await client.send(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"roots": roots}}))
        assert "project" in [tool["name"] for tool in message["result"]["tools"]]


async def test_a_client_may_stop_waiting_for_discover_and_send_initialize(command: Wrap, tmp_path: Path) -> None:
    gate, client_info = tmp_path / "gate", {"name": "hand", "version": "0"}
    meta = {"protocolVersion": "2026-07-28", "clientInfo": client_info, "clientCapabilities": {"roots": {}}}
    probe = {"_meta": {f"io.modelcontextprotocol/{key}": value for key, value in meta.items()}}
    handshake = {"protocolVersion": "2025-11-25", "capabilities": {"roots": {}}, "clientInfo": client_info}
    async with command("wrap", *server("raw.py", "asks", "--gate", str(gate))) as client:
        for method, params in (("server/discover", probe), ("initialize", handshake)):
            await client.send(json.dumps({"jsonrpc": "2.0", "id": method, "method": method, "params": params}))
        given_up = json.loads(await client.receive())
        assert (given_up["id"], given_up["error"]["code"]) == ("server/discover", -32600)
        gate.touch()
        greeting = json.loads(await client.receive())
        assert (greeting["id"], greeting["result"]["protocolVersion"]) == ("initialize", "2025-11-25")
        await client.send('{"jsonrpc":"2.0","method":"notifications/initialized"}')
        asked = json.loads(await client.receive())
        assert asked["method"] == "roots/list"  # a request of the server outside a call
        roots = [{"uri": "file:///project", "name": "project"}]
        await client.send(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": roots}}))
        assert "project" in await tool_names(client)
        assert path_of(await client.text("say", long_result())).startswith("say-")


async def test_a_client_may_send_initialize_after_the_answer_to_discover(command: Wrap) -> None:
    meta = {"protocolVersion": "2026-07-28", "clientInfo": {"name": "hand", "version": "0"}, "clientCapabilities": {}}
    probe = {"_meta": {f"io.modelcontextprotocol/{key}": value for key, value in meta.items()}}
    async with command("wrap", *server("raw.py", "ok")) as client:
        assert "result" in json.loads(await client.request("server/discover", json.dumps(probe)))
        assert (await client.greet())["serverInfo"] == {"name": "raw", "version": "7"}
        assert "say" in await tool_names(client)


async def test_a_client_that_sends_discover_without_a_version_has_one_session(command: Wrap) -> None:
    async with command("wrap", *server("raw.py", "ok")) as client:
        assert "error" in json.loads(await client.request("server/discover"))
        await client.greet()
        await client.send(
            '{"jsonrpc":"2.0","id":"grow","method":"tools/call","params":{"name":"grow","arguments":{"name":"new"}}}'
        )
        while json.loads(await client.receive()).get("method") != "notifications/tools/list_changed":
            pass
        assert "new" in await tool_names(client)


async def test_a_server_that_asks_for_roots_while_it_lists_is_ready(command: Wrap) -> None:
    async with command("wrap", *server("raw.py", "asks_first")) as client:
        greeting = await client.greet(roots={})
        assert greeting["serverInfo"] == {"name": "raw", "version": "7"}
        assert "is starting" not in greeting["instructions"]
        assert "resources" not in greeting["capabilities"]


async def test_the_server_gets_the_whole_environment_folder_and_arguments(command: Wrap, home: dict[str, str]) -> None:
    odd = {"ODD_NAME": "a=b ${HOME} \U0001f600", "LANG": "C", "EMPTY": ""}
    literal = ["--flag", "${NOT_A_VARIABLE}", "--", "-y", "two words", ""]
    async with command("wrap", *server("surroundings.py", *literal), env={**home, **odd}) as client:
        await client.greet()
        found = json.loads((await client.text("look")).removeprefix("look: "))
        assert found["args"] == literal
        assert found["cwd"] == os.getcwd()  # noqa: PTH109  # as the server says it
        expected = {**home, **odd}
        assert {name: found["env"].get(name) for name in expected} == expected


@pytest.mark.executable  # PYTHONPATH
async def test_modules_for_the_server_are_not_the_gateway_s(
    command: Wrap, home: dict[str, str], tmp_path: Path
) -> None:
    for name in ("typer", "yaml", "msgspec"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError")
    async with command("wrap", *server("surroundings.py"), env={**home, "PYTHONPATH": str(tmp_path)}) as client:
        await client.greet()
        found = json.loads((await client.text("look")).removeprefix("look: "))
        assert found["env"]["PYTHONPATH"] == str(tmp_path)


async def test_the_dashes_before_the_command_may_be_absent(command: Wrap) -> None:
    dashes, *words = server("surroundings.py", "-y", "--name", "x")
    assert dashes == "--"
    async with command("wrap", "--name", "around", *words) as client:
        await client.greet()
        assert json.loads((await client.text("look")).removeprefix("look: "))["args"] == ["-y", "--name", "x"]


async def test_what_the_server_prints_reaches_the_log_byte_for_byte(command: Wrap) -> None:
    async with command("wrap", *server("surroundings.py")) as client:
        await client.greet()
    assert b"listening, \xff\xfe\n" in b"".join(client.stderr)


async def test_small_results_stay_untouched_and_large_ones_get_a_path(command: Wrap) -> None:
    async with command("wrap", *server("raw.py", "ok")) as client:
        await client.greet()
        small = json.loads(await client.call("say", json.dumps(long_result("small {}" * 100))))["result"]
        assert small == {"content": [{"type": "text", "text": "small {}" * 100}]}
        notice = await client.text("say", long_result())
        assert "memory_" not in notice
        assert await client.text(RETRIEVE, {"memory_path": f"{path_of(notice)}"}) == LONG


async def test_a_model_reads_the_rest_of_a_preview_without_the_memory_server(command: Wrap) -> None:
    lines = "\n".join(f"line {number}" for number in range(20_000))
    async with command("wrap", *server("raw.py", "ok")) as client:
        await client.greet()
        path = path_of(await client.text("say", long_result(lines)))
        window = await client.text("memory_read", {"memory_path": path, "by": "lines", "offset": 12_345, "limit": 1})
        assert "line 12345" in window
        refused = await client.text("memory_grep", {"memory_path": path, "pattern": "777"})
        assert "`mcp-mirror memory` serves it" in refused


async def test_a_server_beside_the_memory_server_may_have_no_memory_tools(command: Wrap) -> None:
    alone = ("--set", "memory_tools.allow=[]")
    async with command("wrap", *alone, *server("raw.py", "ok")) as client, command("memory") as memory:
        instructions = (await client.greet())["instructions"]
        await memory.greet()
        assert not {RETRIEVE, "memory_read"} & set(await tool_names(client))
        assert "memory_read" not in instructions
        path = path_in(await client.text("say", long_result()))
        assert "line 399" in await memory.text("memory_read", {"memory_path": path, "offset": -1, "by": "lines"})
        heard = path_of(await client.text("hear", {"text": path}))
        assert await memory.text(RETRIEVE, {"memory_path": f"{heard}/params/arguments/text"}) == LONG
        unserved = await client.text("memory_read", {"memory_path": path})
        assert "`mcp-mirror memory` serves" in unserved


def path_of(notice: str) -> str:
    return notice.splitlines()[0].strip('"')


async def test_a_path_of_one_wrapped_server_is_an_argument_of_another(command: Wrap) -> None:
    async with (
        command("wrap", *server("raw.py", "ok", "--name", "first")) as first,
        command("wrap", *server("raw.py", "ok", "--name", "second"), "more") as second,
        command("memory") as memory,
    ):
        for one in (first, second, memory):
            await one.greet()
        path = path_of(await first.text("say", long_result()))
        reply = await second.text("hear", {"given": path})
        line = await second.text(RETRIEVE, {"memory_path": path_of(reply)})
        assert json.loads(line)["params"]["arguments"] == {"given": LONG}
        assert await memory.text("memory_read", {"memory_path": path, "by": "lines", "limit": 1}) != ""
        put = path_in(await memory.text("memory_put", {"value": "words " * 5})) or ""
        assert json.loads(await first.text("hear", {"given": put}))["params"]["arguments"] == {"given": "words " * 5}


async def test_a_mistaken_path_of_another_process_is_an_error(command: Wrap, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"name": "only_here", "inputSchema": {"type": "object"}}]))
    async with (
        command("wrap", *server("raw.py", "ok")) as first,
        command("wrap", *server("raw.py", "ok", "--tools", str(tools))) as second,
    ):
        await first.greet()
        await second.greet()
        path = path_of(await first.text("say", long_result()))
        wrong = f"say-{uuid4()}"
        for mistaken in (wrong, path[:-3]):
            result = json.loads(await second.call("only_here", json.dumps({"given": mistaken})))["result"]
            assert result["isError"]
            assert path in result["content"][0]["text"]
        sent = await second.text("only_here", {"given": f"unknown-{uuid4()}"})
        assert "unknown-" in sent


async def test_values_survive_the_processes_that_stored_them(command: Wrap) -> None:
    async with command("wrap", *server("raw.py", "ok")) as killed:
        await killed.greet()
        path = path_of(await killed.text("say", long_result()))
        killed.process.kill()
        await asyncio.wait_for(killed.process.wait(), BOUND)
    async with command("wrap", *server("raw.py", "ok")) as second:
        await second.greet()
        assert await second.text(RETRIEVE, {"memory_path": path}) == LONG


async def test_commands_read_values_of_wrapped_servers_without_a_configuration(
    command: Wrap, home: dict[str, str], run: Run, tmp_path: Path
) -> None:
    own = {**home, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    async with command("wrap", *server("raw.py", "ok")) as client:
        await client.greet()
        path = path_of(await client.text("say", long_result()))
    run_own = partial(run, env=own)
    for words in (("values", "list"), ("stats",), ("usage", "--by", "tool"), ("values", "lineage", path)):
        ended = await run_own(*words)
        assert ended.code == 0, ended.err
        assert "no configuration was found; using the values of wrapped servers" in ended.err
        assert "say" in ended.out or words == ("stats",), ended.out
    store = tmp_path / "data" / "mcp-mirror" / "store"
    shown = await run_own("values", "show", path, "--store", str(store))
    assert (shown.code, shown.err) == (0, "")
    assert "line 0: caf\u00e9" in shown.out


async def test_users_do_not_share_values(command: Wrap, home: dict[str, str], tmp_path: Path) -> None:
    other = {**home, "XDG_DATA_HOME": str(tmp_path / "other")}
    async with (
        command("wrap", *server("raw.py", "ok")) as first,
        command("wrap", *server("raw.py", "ok"), env=other) as second,
        command("wrap", "--store", str(tmp_path / "third"), *server("raw.py", "ok")) as third,
    ):
        await first.greet()
        path = path_of(await first.text("say", long_result()))
        for stranger in (second, third):
            await stranger.greet()
            result = json.loads(await stranger.call(RETRIEVE, json.dumps({"memory_path": path})))["result"]
            assert result["isError"]


async def test_names_like_our_tools_stay_except_for_the_served_ones(command: Wrap, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    names = ["memory_grep", "memory_run", RETRIEVE]
    tools.write_text(json.dumps([{"name": name, "inputSchema": {"type": "object"}} for name in names]))
    async with command("wrap", "--name", "raw", *server("raw.py", "ok", "--tools", str(tools))) as client:
        await client.greet()
        assert await tool_names(client) == ["memory_grep", "memory_run", f"raw_{RETRIEVE}", *OWN]
        assert json.loads(await client.text("memory_grep", {"x": 1}))["params"]["arguments"] == {"x": 1}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), ["get.repo/issue", "a" * 100, "GET", "get", "gr__e_6662af"]),
        (("--suffix", "_x"), ["get_repo_issue_x"]),
    ],
)
async def test_names_that_mcp_allows_stay_as_they_are(
    command: Wrap, tmp_path: Path, options: tuple[str, ...], expected: list[str]
) -> None:
    tools = tmp_path / "tools.json"
    names = ["get.repo/issue", "a" * 100, "GET", "get", "gr\u00fc\u00dfe"]
    tools.write_text(json.dumps([{"name": name, "inputSchema": {"type": "object"}} for name in names]))
    async with command("wrap", *options, *server("raw.py", "ok", "--tools", str(tools))) as client:
        await client.greet()
        assert (await tool_names(client))[: len(expected)] == expected
        called = json.loads(await client.text(expected[0], {"x": 1}))["params"]
        assert called == {"name": names[0], "arguments": {"x": 1}}


async def test_options_choose_suffix_capture_and_budget(command: Wrap) -> None:
    options = ("--suffix", "_kept", "--capture", "auto", "--inline-budget", "10")
    async with command("wrap", *options, *server("raw.py", "ok")) as client:
        greeting = await client.greet()
        assert "Tools whose name ends with _kept" in greeting["instructions"]
        assert "say_kept" in await tool_names(client)
        assert path_of(await client.text("say_kept", long_result("word " * 30))).startswith("say-")


async def test_the_error_of_a_limit_names_an_option_that_raises_it(command: Wrap) -> None:
    async with command("wrap", "--set", "max_request_bytes=1KB", *server("raw.py", "ok")) as client:
        await client.greet()
        refused = await client.text("hear", {"text": "x" * 2000})
        assert "takes 1,000 (`max_request_bytes`)" in refused
        assert "raise the setting: `mcp-mirror wrap --set max_request_bytes=BYTES`." in refused
    async with command("wrap", "--set", "max_request_bytes=1MB", *server("raw.py", "ok")) as client:
        await client.greet()
        assert "x" * 2000 in await client.text("hear", {"text": "x" * 2000})


async def test_resources_are_the_server_s_alone(command: Wrap) -> None:
    async with command("wrap", *server("raw.py", "ok", "--shelf")) as client:
        greeting = await client.greet()
        assert "resources" in greeting["capabilities"]
        path = path_of(await client.text("say", long_result()))
        listed = json.loads(await client.request("resources/list"))["result"]["resources"]
        assert [one["uri"] for one in listed] == ["raw://process"]
        read = json.loads(await client.request("resources/read", json.dumps({"uri": f"memory://{path}"})))
        assert "memory" not in json.dumps(read.get("result", {}).get("contents", [{}])[0].get("uri", ""))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--", "no-such-program-of-ours"], "does not exist"),
        (server("raw.py", "exits"), "no licence found"),
    ],
)
async def test_a_server_that_does_not_start_is_an_error_for_client_and_log(
    command: Wrap, words: list[str], reason: str
) -> None:
    async with command("wrap", "--name", "broken", *words) as client:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "0"}}
        error = json.loads(await client.request("initialize", json.dumps(params)))["error"]
        assert "Server 'broken' did not start" in error["message"]
        assert reason in error["message"]
    assert client.process.returncode == 2
    assert reason.encode() in b"".join(client.stderr)


async def test_a_store_that_cannot_be_opened_is_an_error_for_the_client(command: Wrap, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with command("memory", "--store", str(tmp_path / "file")) as client:
        error = json.loads(await client.request("initialize"))["error"]
        assert f"The store in {tmp_path / 'file'} failed" in error["message"]
    assert client.process.returncode == 2


@pytest.mark.parametrize("does_exist", [True, False])
async def test_a_program_that_does_not_exist_is_an_error_also_without_a_client(
    *, does_exist: bool, run: Run, home: dict[str, str]
) -> None:
    ended = await run("wrap", *(server("raw.py", "ok") if does_exist else ("--", "/nope")), env=home)
    reason = "Server 'nope' did not start: It cannot start: the command '/nope' does not exist."
    assert ended.code == (0 if does_exist else 2)
    assert (reason in ended.err) is not does_exist


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_clients_read_why_a_server_did_not_start(start: Start, home: dict[str, str], mode: Any) -> None:
    process = await start("wrap", *server("raw.py", "exits"), stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=home)
    with pytest.raises((MCPError, ExceptionGroup)) as caught:
        async with asyncio.timeout(BOUND), Client(client_transport(process, BOUND), mode=mode):
            pass
    assert "Server 'raw' did not start: " in str(unwrap_error_group(caught.value))
    assert "no licence found" in str(unwrap_error_group(caught.value))


@pytest.mark.parametrize(
    ("transport", "header"),
    [
        ("http", ("--header", "X-Key: ${THE_KEY}")),
        ("http", ("--header-env", "X-Key=THE_KEY")),
        ("sse", ()),
    ],
)
async def test_a_remote_server_is_served_by_its_address(
    command: Wrap, listening: Listening, home: dict[str, str], transport: str, header: tuple[str, ...]
) -> None:
    async with listening("chemist.py", transport) as port:
        words = ("--url", f"http://127.0.0.1:{port}/{'mcp' if transport == 'http' else 'sse'}", *header)
        async with command("wrap", *words, env={**home, "THE_KEY": "k"}) as client:
            greeting = await client.greet()
            assert greeting["serverInfo"]["name"] != "mcp-mirror"
            names = await tool_names(client)
            assert names[-2:] == OWN
            assert len(names) > 2


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "after `--`"),
        (["--url", "http://127.0.0.1:1/mcp", "--", "x"], "after `--`"),
        (["--capture", "some", "--", "x"], "--capture: "),
        (["--suffix", "a b", "--", "x"], "--suffix: "),
        (["--url", "http://127.0.0.1:1/mcp", "--header", "nothing"], "NAME: VALUE"),
        (["--url", "http://127.0.0.1:1/mcp", "--header-env", "Key"], "--header-env must be NAME=VARIABLE, not 'Key'"),
        (["--url", "ftp://x"], "expected an address"),
        (["--name", "a b", "--", "x"], "expected a name"),
    ],
)
async def test_unusable_options_are_refused(run: Run, words: list[str], problem: str) -> None:
    ended = await run("wrap", *words)
    assert ended.code == 2
    assert problem in ended.err


async def test_the_memory_command_serves_the_memory_tools_alone(command: Wrap) -> None:
    async with command("memory") as client:
        greeting = await client.greet()
        assert greeting["serverInfo"]["name"] == "mcp-mirror"
        assert "Results of tools of other servers can be memory paths" in greeting["instructions"]
        names = await tool_names(client)
        assert {RETRIEVE, "memory_read", "memory_list"} <= set(names)
        assert all(name == RETRIEVE or name.startswith("memory_") for name in names)


@pytest.mark.parametrize("code", ["await tools.read_text_file(path='/a')", "getattr(tools, 'read_text_file')"])
async def test_scripts_of_the_memory_command_are_not_offered_tools(command: Wrap, code: str) -> None:
    pytest.importorskip("pydantic_monty")
    async with command("memory") as client:
        await client.greet()
        listed = json.loads(await client.request("tools/list"))["result"]["tools"]
        (description,) = [tool["description"] for tool in listed if tool["name"] == "memory_run"]
        assert "tools." not in description
        result = json.loads(await client.call("memory_run", json.dumps({"code": code})))["result"]
        assert result["isError"]
        assert "no tools that a script can call. Call the tool first, then give" in result["content"][0]["text"]


async def test_no_process_remains_after_an_unusable_option(run: Run, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    wait = f"threading.Event().wait({BOUND})"  # also after the end of its input, until it is killed
    script = f"import os, threading; open({str(note)!r}, 'w').write(str(os.getpid())); {wait}"
    ended = await run("wrap", "--suffix", "a b", "--", sys.executable, "-c", script)
    assert ended.code == 2
    if note.exists() and note.read_text():  # it was killed before or after it wrote this
        with pytest.raises(ProcessLookupError):
            os.kill(int(note.read_text()), 0)


async def test_many_wrapped_servers_that_start_at_once_share_one_new_store(command: Wrap) -> None:
    async with contextlib.AsyncExitStack() as stack:
        starts = (command("wrap", *server("raw.py", "ok")) for _ in range(6))
        clients = [await stack.enter_async_context(start) for start in starts]

        async def store(client: Lines) -> str:
            await client.greet()
            return path_of(await client.text("say", long_result()))

        paths = await asyncio.gather(*map(store, clients))
        assert len(set(paths)) == len(clients)
        for client, path in zip(reversed(clients), paths, strict=True):
            assert await client.text(RETRIEVE, {"memory_path": path}) == LONG


async def test_a_slow_server_is_served_from_its_last_listing(command: Wrap, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    words = ("wrap", *server("raw.py", "ok", "--name", "slow", "--gate", str(gate)))
    gate.touch()
    async with command(*words) as client:
        await client.greet()
    gate.unlink()
    async with command(*words) as client:
        greeting = await client.greet()
        assert greeting["serverInfo"] == {"name": "slow", "version": "7"}
        assert greeting["instructions"].startswith("I am slow.")
        assert "say" in await tool_names(client)
        gate.touch()
        assert json.loads(await client.text("hear", {"x": 1}))["params"]["arguments"] == {"x": 1}


async def test_a_server_that_dies_is_started_again_with_the_same_environment(
    command: Wrap, home: dict[str, str]
) -> None:
    async with command("wrap", *server("raw.py", "ok"), env={**home, "SECRET": "of the client"}) as client:
        await client.greet()
        assert json.loads(await client.call("die"))["result"]["isError"]
        error = json.loads(await client.call("refuse"))["result"]
        assert error["isError"]
        assert "no such key" in error["content"][0]["text"]
    assert b"fell over" in b"".join(client.stderr)

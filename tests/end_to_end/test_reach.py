"""The gateway starts and connects to only the configured servers."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
import pytest
from process_tree import offspring
from tests.end_to_end.conftest import BOUND
from waiting import until

from mcp_mirror.security import ssrf_guard
from mcp_mirror.security.ssrf_guard import PRIVATE, AddressPolicy, SSRFGuardTransport
from mcp_mirror.server.auth.keys import KeySet, KeysUnavailableError
from mcp_mirror.system.http_connections import Receiver, open_connection

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Lines, Listening, OpenLines, Run

LOOKS_PUBLIC = "0x7f.1"
"""A name with a dot, which looks public; every system's resolver resolves it to 127.0.0.1."""
STARTED = """
import json, os, sys
json.dump([dict(os.environ), sys.argv[1:], os.getsid(0) == os.getpid()], open(sys.argv[1], "w"))
"""


@asynccontextmanager
async def trap() -> AsyncIterator[tuple[int, list[bytes]]]:
    """A port, and the first bytes of each connection to it."""
    came: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(b"")
        came[-1] = await reader.read(100)
        writer.close()

    async with await asyncio.start_server(note, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], came


async def test_a_public_name_with_a_private_address_needs_permission(
    configured: Configured, run: Run, listening: Listening
) -> None:
    async with listening("raw_http.py") as port, trap() as (trapped, came):
        upstreams = {
            "rebound": {"url": f"http://{LOOKS_PUBLIC}:{trapped}/mcp"},
            "older": {"url": f"http://{LOOKS_PUBLIC}:{trapped}/sse", "transport": "sse"},
            "allowed": {"url": f"http://{LOOKS_PUBLIC}:{port}/mcp", "allow_private": True},
            "named": {"url": f"http://127.0.0.1:{port}/mcp"},
            "local": {"url": f"http://localhost:{port}/mcp"},
        }
        checked = await run("check", "--config", str(configured(upstreams)))
        problems = [line for line in checked.err.splitlines() if line.startswith("problem:")]
        assert [line.split()[1] for line in problems] == ["rebound:", "older:"], checked.err
        assert PRIVATE in problems[0]
        assert came == []


async def test_a_redirect_to_another_origin_is_not_followed(
    configured: Configured, run: Run, listening: Listening
) -> None:
    async with trap() as (trapped, came), AsyncExitStack() as stack:
        upstreams = {}
        for status in ("302", "307"):
            to = ("--status", status, "--location", f"http://127.0.0.1:{trapped}/latest/meta-data/")
            port = await stack.enter_async_context(listening("raw_http.py", *to))
            upstreams[f"to{status}"] = {"url": f"http://127.0.0.1:{port}/mcp", "startup_timeout": 5}
        checked = await run("check", "--config", str(configured(upstreams)))
        assert checked.err.count("problem: to30") == 2
        assert came == []


async def test_urls_that_a_server_names_must_be_public() -> None:
    async with trap() as (port, came):
        named = AddressPolicy.from_urls("https://mcp.example.com/mcp")
        async with httpx2.AsyncClient(transport=SSRFGuardTransport(named)) as client:
            for host in ("127.0.0.1", "localhost", LOOKS_PUBLIC, "[::ffff:127.0.0.1]", "2130706433"):
                with pytest.raises(httpx2.ConnectError, match="private address"):
                    await client.get(f"http://{host}:{port}/")
            with pytest.raises(httpx2.ConnectError, match="private address"):
                await client.get("http://169.254.169.254/latest/meta-data/")
        with pytest.raises(KeysUnavailableError):
            await KeySet(f"https://{LOOKS_PUBLIC}:{port}/jwks", lambda: 0.0).find(None, "RS256")
        assert came == []
        with pytest.raises(KeysUnavailableError):  # the server there does not serve keys
            await KeySet(f"https://{LOOKS_PUBLIC}:{port}/jwks", lambda: 0.0, allow_private=True).find(None, "RS256")
        assert len(came) == 1


async def test_a_silent_address_of_a_host_falls_back_to_another_address(listening: Listening) -> None:
    async with listening("raw_http.py") as port:
        transport = SSRFGuardTransport(
            AddressPolicy.from_urls("http://localhost/")
        )  # also ::1, where no server listens
        async with httpx2.AsyncClient(transport=transport) as client:
            assert (await client.get(f"http://localhost:{port}/mcp")).status_code == 405


async def test_a_refused_connection_leaves_no_garbage() -> None:
    """The gateway tries again and again to reach a server that is down."""
    transport = SSRFGuardTransport(AddressPolicy.from_urls("http://127.0.0.1/"))
    kept: list[weakref.ref[httpx2.ConnectError]] = []
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        gc.disable()
        try:
            try:
                await transport.handle_async_request(
                    httpx2.Request("GET", f"http://127.0.0.1:{unheard.getsockname()[1]}/")
                )
            except httpx2.ConnectError as error:
                kept.append(weakref.ref(error))
            assert [one() for one in kept] == [None]
        finally:
            gc.enable()


@pytest.mark.slow
async def test_names_that_the_system_looks_for_long_delay_no_other_name(
    monkeypatch: pytest.MonkeyPatch, listening: Listening
) -> None:
    look_up, is_over, sought = socket.getaddrinfo, threading.Event(), list[bytes]()

    def look_up_slowly(host: bytes, *args: Any, **keys: Any) -> Any:
        sought.append(host)
        if host.endswith(b".silent.test"):
            is_over.wait(BOUND)
        return look_up(host, *args, **keys)

    monkeypatch.setattr(socket, "getaddrinfo", look_up_slowly)
    transport = SSRFGuardTransport(AddressPolicy.from_urls("http://localhost/", admits_private=True))
    async with listening("raw_http.py") as port, httpx2.AsyncClient(transport=transport, timeout=BOUND) as client:

        async def fail(number: int) -> None:
            with pytest.raises(httpx2.ConnectError, match="lookup of its host name takes too long"):
                await client.get(f"http://{number % 50}.silent.test:{port}/")

        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(100):
                    tasks.create_task(fail(number))
                await until(lambda: len(sought) == 50)
                for host in ("127.0.0.1", "localhost"):
                    assert (await client.get(f"http://{host}:{port}/mcp")).status_code == 405
                assert len(sought) == 51  # an address is not looked up, and a name once at a time
        finally:
            is_over.set()


async def test_a_connection_that_opens_while_it_is_cancelled_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = asyncio.Event()

    async def wait_for_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        ended.set()

    scope = anyio.CancelScope()

    async def connect_and_cancel(address: str, port: int) -> Receiver:
        receiver = await open_connection(address, port)
        scope.cancel()
        return receiver

    monkeypatch.setattr(ssrf_guard, "open_connection", connect_and_cancel)
    async with await asyncio.start_server(wait_for_end, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with httpx2.AsyncClient(transport=SSRFGuardTransport(AddressPolicy.from_urls(url))) as client:
            with scope:
                await client.get(url)
        assert scope.cancelled_caught
        await asyncio.wait_for(ended.wait(), BOUND)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no sessions of processes")
async def test_a_program_gets_its_arguments_as_they_are_and_little_else(
    configured: Configured, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_SECRET", "c4nary")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "c4nary")
    report, made = tmp_path / "told", tmp_path / "made"
    odd = [f"; touch {made}", f"$(touch {made})", f"`touch {made}`", "| x", "a b", "*", "'\"\\"]
    upstream = {"command": sys.executable, "args": ["-c", STARTED, str(report), *odd], "env": {"MINE": "$(id) 7"}}
    await run("check", "--config", str(configured({"one": upstream})))
    environment, arguments, is_leader = json.loads(report.read_text())
    assert arguments[1:] == odd
    assert is_leader
    assert environment.pop("MINE") == "$(id) 7"
    assert environment.keys() <= {"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LC_CTYPE"}
    assert not made.exists()


async def _everything(client: Lines, strings: list[str]) -> None:
    """Each tool and request that takes a text gets each of these for all of its texts."""
    tools = json.loads(await client.request("tools/list"))["result"]["tools"]
    odd = ("command", "args", "env", "url", "cwd", "headers", "uri", "jwks", "file", "path")
    for text in strings:
        for tool in tools:
            arguments = dict.fromkeys((*tool["inputSchema"].get("properties", {}), *odd), text)
            await client.call(tool["name"], json.dumps(arguments))
        for method, member in (("resources/read", "uri"), ("resources/subscribe", "uri"), ("prompts/get", "name")):
            await client.request(method, json.dumps({member: text, "url": text, "command": text}))
        reference = {"type": "ref/resource", "uri": text}
        await client.request(
            "completion/complete", json.dumps({"ref": reference, "argument": {"name": "a", "value": text}})
        )
        meta = {"_meta": {"command": text, "url": text, "io.modelcontextprotocol/serverInfo": {"url": text}}}
        await client.request("tools/list", json.dumps(meta))


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
async def test_no_client_request_starts_a_program_or_a_connection(
    configured: Configured, open_lines: OpenLines, raw: Any, tmp_path: Path
) -> None:
    made, channel = tmp_path / "made", tmp_path / "exchange"
    channel.mkdir()
    config = configured({"up": raw()}, memory_tools={"roots": [str(channel)]})
    async with trap() as (port, came), open_lines(config) as client:
        await client.greet()
        await client.call("hear_mirrored", '{"text":"first"}')
        before = offspring(client.process.pid)
        where = f"127.0.0.1:{port}"
        strings = [f"http://{where}/", f"https://{where}/mcp", f"redis://{where}", f"//{where}/x", f"touch {made}"]
        await _everything(client, [*strings, f"$(touch {made})", f"file://{made}", str(made), "../made"])
        # A process has no command while it starts, and after its end until the gateway has waited for it.
        await until(lambda: all(offspring(client.process.pid).values()))
        after = offspring(client.process.pid)
        own = {pid: command for pid, command in after.items() if pid not in before and "mcp_mirror." not in command}
        assert own == {}  # but for our own worker, which looks into values
        assert came == []
        assert not made.exists()
        assert not list(tmp_path.glob("**/made"))

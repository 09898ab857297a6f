"""Cookies that an HTTP upstream sets: each returns only with requests of the owner that it was set for."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count, product
from typing import TYPE_CHECKING, Any, Final

import pytest
from samples import sample
from tests.auth.conftest import HASHES, serving_gateway
from tests.auth.strangers import visiting

from mcp_mirror.server.auth.keys import KeySet

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured

OLD: Final = "2025-11-25"
NEW: Final = "2026-07-28"
TOOL: Final = {"name": "hear", "inputSchema": {"type": "object"}}
STAMP: Final = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
VISITORS: Final = (("alice_1", "alice"), ("alice_2", "alice"), ("bob_1", "bob"))
"""Two sessions of one principal, and one of another."""


class Baker(ThreadingHTTPServer):
    """An upstream that sets a cookie per response, named after the caller, and records the cookies of each call."""

    daemon_threads = True

    def __init__(self, version: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.version = version
        self.numbers = count()
        self.calls: list[tuple[str, set[str]]] = []
        """The caller and the names of the cookies of each tool call."""
        self.gets: list[str] = []
        """The cookies of each GET request."""
        self.more = 0
        """The number of further cookies that each response sets, with other names each time."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Baker

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's name
        pass

    def do_GET(self) -> None:
        self.server.gets.append(self.headers.get("cookie", ""))
        self.reply(200 if "jwks" in self.path else 405, b'{"keys": []}', "application/json")

    def do_DELETE(self) -> None:
        self.reply(200, b"", "text/plain")

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        identity, params = message.get("id"), message.get("params") or {}
        if identity is None:
            self.reply(202, b"", "text/plain")
            return
        caller = params.get("arguments", {}).get("caller", "")
        if caller:
            cookies = {one.partition("=")[0].strip() for one in self.headers.get("cookie", "").split(";")} - {""}
            self.server.calls.append((caller, cookies))
        result = self.results().get(message["method"])
        answer = {"result": result} if result else {"error": {"code": -32601, "message": "Method not found"}}
        body = json.dumps({"jsonrpc": "2.0", "id": identity, **answer}).encode()
        self.reply(200, body, "application/json", caller)

    def results(self) -> dict[str, dict[str, Any]]:
        shared: dict[str, dict[str, Any]] = {
            "tools/list": {"tools": [TOOL]},
            "tools/call": {"content": [{"type": "text", "text": "heard"}]},
        }
        if self.server.version == NEW:
            discovered = {"supportedVersions": [NEW], "capabilities": {"tools": {}}}
            return {
                method: {**result, **STAMP} for method, result in (shared | {"server/discover": discovered}).items()
            }
        greeting = {"protocolVersion": OLD, "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "0"}}
        return shared | {"initialize": greeting}

    def reply(self, status: int, body: bytes, kind: str, caller: str = "") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.send_header("set-cookie", f"{caller or f'handshake_{next(self.server.numbers)}'}=1; Path=/")
        self.send_header("set-cookie", f"second_{caller}=caf\xe9; Path=/; HttpOnly")
        self.send_header("x-name", "caf\xe9")
        for _ in range(self.server.more):
            self.send_header("set-cookie", f"more_{next(self.server.numbers)}=1; Path=/")
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def baking(version: str) -> Iterator[Baker]:
    with Baker(version) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


CASES = [*product((None, "shared", "principal", "session"), (OLD, NEW), (OLD, NEW))]


def is_quick(case: tuple[str | None, str, str]) -> bool:
    """Whether `make test` has a case: all pairs of scope, version of the upstream, and version of the client."""
    scope, version, client = case
    return (version == client) == (scope in {None, "principal"})


@pytest.mark.parametrize(("scope", "version", "client"), sample(CASES, is_quick))
async def test_cookies_return_only_with_requests_of_their_owner(
    configured: Configured, scope: str | None, version: str, client: str
) -> None:
    async with AsyncExitStack() as stack:
        upstream = stack.enter_context(baking(version))
        endpoint = {"url": f"http://127.0.0.1:{upstream.server_port}/mcp", **({"scope": scope} if scope else {})}
        config = configured({"up": endpoint}, auth={"tokens": HASHES}, mirror={"capture": "never"})
        url = (await stack.enter_async_context(serving_gateway(config))).url
        visitors = [(name, await stack.enter_async_context(visiting(url, who))) for name, who in VISITORS]
        for _ in range(3):
            for name, visitor in visitors:
                call = {"name": "hear_mirrored", "arguments": {"caller": name}}
                assert "heard" in await visitor.ask("tools/call", call, modern=client == NEW)
    is_per_session = client == OLD and scope != "principal"
    for caller, cookies in upstream.calls:
        owner = caller if is_per_session else caller.partition("_")[0]
        foreign = {one for one in cookies if "handshake" not in one and owner not in one and one != "second_"}
        assert not foreign, upstream.calls
    seen = {caller: cookies for caller, cookies in upstream.calls}  # noqa: C416  # the last call of each
    is_own = scope != "shared" and (version == OLD or (client == NEW and scope is not None))
    if is_own:  # as a load balancer with sticky sessions needs it
        assert all({caller, f"second_{caller}"} <= cookies for caller, cookies in seen.items()), seen
        handshakes = [{one for one in seen[name] if "handshake" in one} for name in ("alice_1", "bob_1")]
        assert not handshakes[0] & handshakes[1]
    else:
        assert not any(cookies for _, cookies in upstream.calls), upstream.calls


async def test_a_connection_keeps_few_cookies_and_renews_them(configured: Configured) -> None:
    async with AsyncExitStack() as stack:
        upstream = stack.enter_context(baking(OLD))
        upstream.more = 900
        url = f"http://127.0.0.1:{upstream.server_port}/mcp"
        config = configured({"up": {"url": url}}, auth={"tokens": HASHES}, mirror={"capture": "never"})
        gateway = await stack.enter_async_context(serving_gateway(config))
        visitor = await stack.enter_async_context(visiting(gateway.url, "alice"))
        for _ in range(3):
            call = {"name": "hear_mirrored", "arguments": {"caller": "alice"}}
            assert "heard" in await visitor.ask("tools/call", call, modern=False)
    counts = [len(cookies) for _, cookies in upstream.calls]
    assert counts == [50, 50, 50]
    assert all("second_" in cookies for _, cookies in upstream.calls)


async def test_requests_for_public_keys_send_no_cookies() -> None:
    with baking(NEW) as server:
        keys = KeySet(f"http://127.0.0.1:{server.server_port}/jwks", count(step=1000).__next__)
        for _ in range(3):
            assert await keys.find("unknown", "ES256") is None
    assert len(server.gets) > 2
    assert set(server.gets) == {""}

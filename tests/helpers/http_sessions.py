"""Scripted clients: HTTP sessions of protocol version 2025-11-25, and what requests of 2026-07-28 contain."""

import json
from collections.abc import Mapping
from typing import Any, Final

import httpx2

HEADERS: Final = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
HELLO: Final = json.dumps({
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "0"}},
})  # fmt: skip
META: Final[dict[str, Any]] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "hand", "version": "0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
"""`_meta` of a request of the version 2026-07-28, over HTTP and over stdio."""
_BOUND: Final = 60.0


async def open_session(
    client: httpx2.AsyncClient, url: str, capabilities: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Open a session and return the headers of its requests."""
    hello = json.loads(HELLO)
    hello["params"]["capabilities"] = capabilities or {}
    answer = await client.post(url, json=hello, headers=HEADERS)
    assert answer.status_code == 200, answer.text
    session = {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
    initialized = '{"jsonrpc":"2.0","method":"notifications/initialized"}'
    assert (await client.post(url, content=initialized, headers=HEADERS | session)).status_code == 202
    return session


async def session_of(url: str, shown: dict[str, str]) -> dict[str, str]:
    """Open a session with headers of the caller, such as a token; return the headers of its requests."""
    async with httpx2.AsyncClient(headers=shown, timeout=_BOUND) as client:
        return await open_session(client, url)

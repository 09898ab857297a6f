"""MCP clients without an SDK, over stdio and over HTTP, of the versions 2025-11-25 and 2026-07-28."""

import asyncio
import json
import socket
import subprocess
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol, Self

OLD: Final = "2025-11-25"
NEW: Final = "2026-07-28"
_PREFIX: Final = "io.modelcontextprotocol/"
_CLIENT: Final = {"name": "raw", "version": "1"}
_META: Final = {f"{_PREFIX}protocolVersion": NEW, f"{_PREFIX}clientInfo": _CLIENT, f"{_PREFIX}clientCapabilities": {}}
HELLO: Final = {"protocolVersion": OLD, "capabilities": {}, "clientInfo": _CLIENT}
_INITIALIZED: Final = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
_BOUND: Final = 120.0
"""Seconds that an answer may take."""


def encode(identity: int, method: str, params: dict[str, Any], version: str) -> bytes:
    """Return a request as JSON text."""
    members = params | {"_meta": _META} if version == NEW else params
    message = {"jsonrpc": "2.0", "id": identity, "method": method, "params": members}
    return json.dumps(message, separators=(",", ":")).encode()


class RawClient(Protocol):
    """A client of one connection."""

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request, wait for the response and return its result."""


class StdioClient:
    """Starts a program and talks to it over blocking pipes."""

    def __init__(self, argv: Sequence[str], version: str = OLD) -> None:
        self._version = version
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._identity = 0
        self.pid = self._process.pid
        self.notifications: list[str] = []

    def __enter__(self) -> Self:
        if self._version == OLD:
            self.request("initialize", HELLO)
            self._write(_INITIALIZED)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=_BOUND)

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its result; keep the methods of notifications."""
        self._identity += 1
        self._write(encode(self._identity, method, params, self._version))
        while (message := self._read()).get("id") != self._identity:
            self.notifications.append(message["method"])
        return result_of(message)

    def wait_for(self, method: str) -> None:
        """Wait for a notification, unless it has come already."""
        while method not in self.notifications:
            self.notifications.append(self._read()["method"])

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        if not (line := self._process.stdout.readline()):
            raise EOFError("the server ended")
        message: dict[str, Any] = json.loads(line)
        return message

    def _write(self, line: bytes) -> None:
        assert self._process.stdin
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()


class Reply(NamedTuple):
    """An HTTP response."""

    status: int
    session: str
    body: bytes

    @property
    def result(self) -> dict[str, Any]:
        """The result of the last message, which a JSON body or the last server-sent event contains."""
        assert self.status == 200, self
        data = self.body if self.body.startswith(b"{") else self.body.rpartition(b"data: ")[2]
        return result_of(json.loads(data))


def read_reply(data: bytes) -> Reply | None:
    """Parse a response; None if it is not complete."""
    head, found, body = data.partition(b"\r\n\r\n")
    if not found:
        return None
    first, *lines = head.split(b"\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    if fields.get(b"transfer-encoding") == b"chunked":
        if not body.endswith(b"\r\n0\r\n\r\n"):
            return None
        body = _join_chunks(body)
    elif len(body) < int(fields.get(b"content-length", b"0")):
        return None
    return Reply(int(first.split()[1]), fields.get(b"mcp-session-id", b"").decode(), body)


def _join_chunks(body: bytes) -> bytes:
    parts: list[bytes] = []
    size, _, body = body.partition(b"\r\n")
    while length := int(size, 16):
        parts.append(body[:length])
        size, _, body = body[length + 2 :].partition(b"\r\n")
    return b"".join(parts)


class HttpSession:
    """The messages of one HTTP client, as complete requests."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._identity = 0
        self._session = ""

    def encode(self, method: str, params: dict[str, Any]) -> bytes:
        """Return a request with head and body."""
        self._identity += 1
        name = f"mcp-name: {params['name']}\r\n" if "name" in params else ""
        stamps = f"mcp-protocol-version: {self._version}\r\n" if method != "initialize" else ""
        stamps += f"mcp-method: {method}\r\n{name}" if self._version == NEW else ""
        return self._head(encode(self._identity, method, params, self._version), stamps)

    def encode_initialized(self, reply: Reply) -> bytes:
        """Take the session from the response to `initialize`, and return the notification that follows it."""
        self._session = f"mcp-session-id: {reply.session}\r\n" if reply.session else ""
        return self._head(_INITIALIZED, f"mcp-protocol-version: {self._version}\r\n")

    def _head(self, body: bytes, stamps: str) -> bytes:
        head = (
            "POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: application/json, text/event-stream\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{self._session}{stamps}\r\n"
        )
        return head.encode() + body


class HttpClient:
    """One blocking connection that stays open."""

    def __init__(self, port: int, version: str = OLD) -> None:
        self._session, self._version = HttpSession(version), version
        self._socket = socket.create_connection(("127.0.0.1", port), _BOUND)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        if self._version == OLD:
            self._exchange(self._session.encode_initialized(self._exchange(self._session.encode("initialize", HELLO))))
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its result."""
        return self._exchange(self._session.encode(method, params)).result

    def _exchange(self, request: bytes) -> Reply:
        self._socket.sendall(request)
        data = b""
        while (reply := read_reply(data)) is None:
            part = self._socket.recv(1 << 16)
            assert part, "the server closed the connection"
            data += part
        return reply


class AsyncHttpClient(asyncio.Protocol):
    """One connection of many in an event loop."""

    def __init__(self, version: str) -> None:
        self._session, self._version = HttpSession(version), version
        self._data = b""
        self._reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    async def open(self, port: int) -> None:
        """Connect, and open the session of 2025-11-25."""
        self.transport, _ = await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", port)
        if self._version == OLD:
            reply = await self._exchange(self._session.encode("initialize", HELLO))
            assert reply.status == 200, reply
            await self._exchange(self._session.encode_initialized(reply))

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its result."""
        return (await self._exchange(self._session.encode(method, params))).result

    async def _exchange(self, request: bytes) -> Reply:
        self._data, self._reply = b"", asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await asyncio.wait_for(self._reply, _BOUND)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if (reply := read_reply(self._data)) and not self._reply.done():
            self._reply.set_result(reply)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._reply.done():
            self._reply.set_exception(error or EOFError("the server closed the connection"))


def result_of(message: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a response.

    Raises:
        AssertionError: The response is an error, or the result of a failed tool call.
    """
    result: dict[str, Any] = message.get("result", {})
    assert "result" in message, message
    assert not result.get("isError"), result
    return result

"""An upstream without an SDK: `raw_server.py [--http] [--tools N]`. Standard library only; an answer takes some 20 µs.

It speaks the protocol versions 2025-11-25 and 2026-07-28, over stdio or over HTTP, where it prints its port. Tools:
`echo(text)`, `log(characters, first)`, which returns lines of a log, `change()`, which changes the description of one
tool and sends a notification (stdio only), and N others.
"""

import argparse
import asyncio
import json
import sys
from itertools import count
from typing import Any

ECHO: dict[str, Any] = {
    "name": "echo",
    "description": "Answer with the text.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}
LOG: dict[str, Any] = {
    "name": "log",
    "description": "Return lines of a log.",
    "inputSchema": {"type": "object", "properties": {"characters": {"type": "integer"}, "first": {"type": "integer"}}},
}
STAMP = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
"""Members that 2026-07-28 requires in results that clients may cache."""
CAPABILITIES = {"tools": {"listChanged": True}}
INFO = {"name": "raw", "version": "1"}
CHANGED = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n'


class Server:
    """Answers requests, each a JSON text."""

    def __init__(self, tools: int) -> None:
        self._changes = 0
        self._others = [_tool(number) for number in range(tools)]
        self._list()

    def _list(self) -> None:
        changing = {"name": "change", "description": f"Change {self._changes}.", "inputSchema": {"type": "object"}}
        self._tools = json.dumps({"tools": [ECHO, LOG, changing, *self._others], **STAMP})

    def answer(self, line: bytes) -> tuple[bytes, bytes]:
        """Return the response, empty for a notification, and a notification to send after the response."""
        message = json.loads(line)
        if "id" not in message:
            return b"", b""
        params, after, error = message.get("params", {}), b"", ""
        match message["method"]:
            case "tools/call" if params["name"] == "change":
                self._changes += 1
                self._list()
                result, after = '{"content":[]}', CHANGED
            case "tools/call":
                text = json.dumps(
                    write_log(**params["arguments"]) if params["name"] == "log" else params["arguments"]["text"]
                )
                result = f'{{"resultType":"complete","content":[{{"type":"text","text":{text}}}]}}'
            case "tools/list":
                result = self._tools
            case "initialize" if self.version == "2025-11-25":
                version = {"protocolVersion": self.version, "capabilities": CAPABILITIES, "serverInfo": INFO}
                result = json.dumps(version)
            case "server/discover" if self.version == "2026-07-28":
                found = {"supportedVersions": [self.version], "capabilities": CAPABILITIES, "serverInfo": INFO, **STAMP}
                result = json.dumps(found)
            case _:
                result, error = "", '{"code":-32601,"message":"Method not found"}'
        outcome = f'"error":{error}' if error else f'"result":{result}'
        return f'{{"jsonrpc":"2.0","id":{json.dumps(message["id"])},{outcome}}}\n'.encode(), after

    version = "2025-11-25"


class Connection(asyncio.Protocol):
    """One HTTP connection that stays open; bodies have a length."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            fields = dict(line.split(b":", 1) for line in self._data[:end].lower().split(b"\r\n")[1:])
            stop = end + 4 + int(fields.get(b"content-length", b"0"))
            if len(self._data) < stop:
                return
            is_post = self._data.startswith(b"POST")
            body, self._data = self._data[end + 4 : stop], self._data[stop:]
            self._transport.write(self._reply(body) if is_post else _reply(b"405 Method Not Allowed", b""))

    def _reply(self, body: bytes) -> bytes:
        answer, _ = self._server.answer(body)
        return _reply(b"200 OK" if answer else b"202 Accepted", answer)


def _reply(status: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


def write_log(characters: int, first: int) -> str:
    """Return so many characters of a log; `first` makes it different from other logs."""
    lines = (f"12:{at // 60 % 60:02}:{at % 60:02} worker-{at % 7} took {at * 7919 % 997} ms" for at in count(first))
    written, size = list[str](), 0
    while size < characters:
        written.append(next(lines))
        size += len(written[-1]) + 1
    return "\n".join(written)[:characters]


def _tool(number: int) -> dict[str, Any]:
    """Return a definition of the size that tools of today's servers have."""
    described = {"type": "string", "description": "An argument, described in a sentence of usual length."}
    schema = {"type": "object", "properties": dict.fromkeys(("path", "query", "filter"), described)}
    return {"name": f"tool_{number}", "description": f"Tool {number} does one thing. " * 4, "inputSchema": schema}


async def serve_http(server: Server) -> None:
    """Serve forever, and print the port."""
    listening = await asyncio.get_running_loop().create_server(lambda: Connection(server), "127.0.0.1", 0, backlog=512)
    print(listening.sockets[0].getsockname()[1], flush=True)  # noqa: T201  # the only output
    await listening.serve_forever()


def main() -> None:
    """Serve until the input ends, or forever over HTTP."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--tools", type=int, default=0)
    parser.add_argument("--version", default="2025-11-25")
    options = parser.parse_args()
    server = Server(options.tools)
    server.version = options.version
    if options.http:
        asyncio.run(serve_http(server))
    else:
        for line in sys.stdin.buffer:
            sys.stdout.buffer.write(b"".join(server.answer(line)))
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

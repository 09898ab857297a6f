"""An upstream that sends given bytes: `parrot.py stdio`, or `parrot.py http`, which prints its port.

`parrot(bytes, nonce)` writes these bytes (base64), with the request's id in place of `@ID@`, and then the correct
answer: the nonce. Over HTTP the bytes are the response body, or with a status line the whole response; no other answer
follows. `steady(nonce)` returns the correct answer at once.
"""

import base64
import json
import secrets
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("parrot", "steady")]
INITIALIZED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "p", "version": "0"},
}
HEADS = {"json": "application/json", "events": "text/event-stream", "text": "text/plain"}


def message(identity: Any, **members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": identity, **members}).encode()


def truth(identity: Any, nonce: str) -> bytes:
    return message(identity, result={"content": [{"type": "text", "text": nonce}]})


def refusal(identity: Any) -> bytes:
    return message(identity, error={"code": -32602, "message": "these arguments are not mine"})


def bytes_of(identity: Any, arguments: Any) -> bytes:
    return base64.b64decode(arguments["bytes"]).replace(b"@ID@", json.dumps(identity).encode())


def plain(asked: Any) -> bytes | None:
    """The answer to all but a call of the parrot."""
    identity, params = asked.get("id"), asked.get("params") or {}
    match asked.get("method"):
        case "initialize":
            return message(identity, result=INITIALIZED)
        case "tools/list":
            return message(identity, result={"tools": TOOLS})
        case "tools/call" if params["name"] == "steady":
            return truth(identity, params["arguments"]["nonce"])
    return message(identity, error={"code": -32601, "message": "no such method"}) if identity is not None else None


def is_parrot(asked: Any) -> bool:
    return bool(asked.get("method") == "tools/call" and asked["params"]["name"] == "parrot")


def lines_for(asked: Any) -> bytes:
    if is_parrot(asked):
        given = asked["params"]["arguments"]
        return bytes_of(asked["id"], given) + b"\n" + truth(asked["id"], given["nonce"]) + b"\n"
    answer = plain(asked)
    return b"" if answer is None else answer + b"\n"


def serve_lines() -> None:
    write: Callable[[bytes], object] = sys.stdout.buffer.write
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        if "method" not in asked:
            continue
        try:
            write(lines_for(asked))
        except (KeyError, TypeError, ValueError):  # a fuzzed client's arguments must not end the process
            write(refusal(asked.get("id")) + b"\n")
        sys.stdout.buffer.flush()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's word
        pass

    def do_GET(self) -> None:
        self.reply(405, b"")

    def do_DELETE(self) -> None:
        self.reply(200, b"")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if is_parrot(asked):
            self.repeat(bytes_of(asked["id"], asked["params"]["arguments"]))
        elif (answer := plain(asked)) is None:
            self.reply(202, b"")
        else:
            self.reply(200, answer)

    def repeat(self, data: bytes) -> None:
        """`json`, `events` or `text` on the first line: of which kind the rest is; else all is the response."""
        first, _, rest = data.partition(b"\n")
        self.close_connection = True
        if kind := HEADS.get(first.decode("latin-1")):
            self.wfile.write(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n".encode() + rest)
        else:
            self.wfile.write(data)

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("mcp-session-id", secrets.token_hex(4))
        self.end_headers()
        self.wfile.write(body)


class Quiet(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A gateway that hangs up is what is to be expected."""


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        serve_lines()
    else:
        server = Quiet(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        sys.stdout.write(f"{server.server_port}\n")
        sys.stdout.flush()
        server.serve_forever()

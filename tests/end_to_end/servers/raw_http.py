"""A scripted 2025-11-25 upstream over Streamable HTTP: `raw_http.py [PORT] [--style S] [--encoding E] [--log FILE]`.

It prints its port. Sessions end with the process; unknown sessions get the same answer as from the SDK's servers.
"""

import argparse
import gzip
import json
import secrets
import sys
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.set_int_max_str_digits(0)
parser = argparse.ArgumentParser()
parser.add_argument("port", nargs="?", type=int, default=0)
parser.add_argument("--style", default="json", choices=["json", "lf", "crlf", "cr"])
parser.add_argument("--encoding", default="identity", choices=["identity", "gzip", "members", "deflate", "raw"])
parser.add_argument("--status", type=int, help="answer every request with this status")
parser.add_argument("--location", help="and redirect there")
parser.add_argument("--standing", type=float, help="a GET is a stream: silent so many seconds, then a tool is new")
parser.add_argument("--late", type=float, default=0, help="the head of such a stream comes after so many seconds")
parser.add_argument("--silent", action="store_true", help="such a stream ends without a message")
parser.add_argument("--broken", action="store_true", help="such a stream breaks off")
parser.add_argument("--busy", type=int, help="the second and the third such stream are refused with this status")
parser.add_argument("--forgetful", action="store_true", help="no session is known, as with another server at the URL")
parser.add_argument("--max-body", type=int, default=1 << 30, help="larger bodies are refused with 413")
parser.add_argument("--log")
options = parser.parse_args()
lock = threading.Lock()
sessions: set[str] = set()
opened: list[str] = []
"""The sessions of the requests for an event stream."""
results: dict[str, str] = {}
"""By the id of the event that the client saw last: what it resumes with."""

BREAK = {"lf": "\n", "crlf": "\r\n", "cr": "\r", "json": "\n"}[options.style]
TOOLS = ["say", "hear", "cut", "resume", "rot", "nothing", "forget", "deny", "hang", "ask", "request"]
INITIALIZED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {"listChanged": True}},
    "serverInfo": {"name": "raw", "version": "7"},
}


def encoded(body: bytes) -> bytes:
    match options.encoding:
        case "gzip":
            return gzip.compress(body)
        case "members":
            half = len(body) // 2
            return gzip.compress(body[:half]) + gzip.compress(body[half:])
        case "deflate":
            return zlib.compress(body)
        case "raw":
            compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
            return compressor.compress(body) + compressor.flush()
    return body


def event(text: str, identity: str = "") -> bytes:
    """One message as an event: a comment, an id, and the data over several lines."""
    lines = [": a comment", "database: not data", *([f"id: {identity}"] if identity else []), "event: message"]
    cut = text.find(",") + 1
    lines += [f"data: {text[:cut]}", f"data:{text[cut:]}"] if cut else [f"data: {text}"]
    return BREAK.join((*lines, "", "")).encode()


def wait(arguments: dict[str, Any]) -> None:
    """Note the start of a call, and wait for a file, if the arguments name these files."""
    if "until" in arguments:
        Path(arguments["started"]).touch()
        while not Path(arguments["until"]).exists():
            time.sleep(0.01)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's word
        pass

    def do_DELETE(self) -> None:
        self.note("DELETE")
        self.reply(200, b"", "text/plain")

    def do_GET(self) -> None:
        seen = self.headers.get("last-event-id", "")
        self.note(f"GET {seen}".strip())
        if seen in results:
            self.stream(event(results.pop(seen), "2"))
        elif options.standing and self.headers.get("mcp-session-id") not in sessions:
            self.refuse(404, None, "Session not found")
        elif options.busy and 1 <= len(opened) < 3:
            opened.append(self.headers["mcp-session-id"])
            self.refuse(options.busy, None, "Conflict")
        elif options.standing:
            opened.append(self.headers["mcp-session-id"])
            time.sleep(options.late)
            self.note("a stream is open")
            self.stream(b": standing\n\n", whole=not options.broken)
            self.wfile.flush()
            time.sleep(options.standing)
            if options.silent:
                return
            TOOLS.append("new")
            self.wfile.write(event('{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'))
        else:
            self.reply(405, b"", "text/plain")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if len(body) > options.max_body:
            self.reply(413, b"Request body too large", "text/plain")
            return
        message = json.loads(body)
        method, identity, params = message.get("method"), message.get("id"), message.get("params") or {}
        self.note(str(method))
        if options.status:
            self.reply(options.status, json.dumps({"seen": str(self.headers), "at": self.path}).encode(), "text/html")
        elif method == "initialize":
            session = secrets.token_hex(8)
            sessions.update(() if options.forgetful else (session,))
            self.answer(identity, json.dumps(INITIALIZED), session)
        elif method == "server/discover":
            self.refuse(200, identity, "no such method")
        elif self.headers.get("mcp-session-id") not in sessions:
            self.refuse(404, None, "Session not found")
        elif identity is None:
            self.reply(202, b"", "text/plain")
        elif method == "tools/list":
            listed = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]
            self.answer(identity, json.dumps({"tools": listed}))
        else:
            self.call(identity, params["name"], params.get("arguments") or {}, body.decode())

    def call(self, identity: Any, tool: str, arguments: dict[str, Any], body: str) -> None:
        wait(arguments)
        received = json.dumps({"content": [{"type": "text", "text": body}]})
        message = f'{{"jsonrpc":"2.0","id":{identity},"result":{received}}}'
        match tool:
            case "say":
                self.answer(identity, arguments["result"])
            case "cut":  # the connection breaks in the middle of an event
                self.stream(event(message)[:40], whole=False)
            case "rot":  # a body that is not what its encoding says
                self.reply(200, b"\x1f\x8b not gzip at all", "application/json", encoding="gzip")
            case "nothing":
                self.close_connection = True
            case "resume":
                results["1"] = message
                self.stream(b"id: 1\nretry: 10\ndata:\n\n")
            case "deny":  # carried out, and refused in words that speak of a session
                self.refuse(400, identity, "Paid, but the browser session could not be closed")
            case "ask" | "request":  # the client; `ask` in a session that is not known any more when the answer comes
                sessions.difference_update(tuple(sessions) if tool == "ask" else ())
                self.stream(event('{"jsonrpc":"2.0","id":"question","method":"roots/list"}'))
                self.wfile.flush()
                self.rfile.read(1)
            case _:
                sessions.difference_update(tuple(sessions) if tool == "forget" else ())
                self.answer(identity, received)

    def answer(self, identity: Any, result: str, session: str = "") -> None:
        message = f'{{"jsonrpc":"2.0","id":{json.dumps(identity)},"result":{result}}}'
        if options.style == "json":
            self.reply(200, encoded(message.encode()), "application/json", session, options.encoding)
        else:
            note = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"hello"}}'
            self.reply(200, encoded(event(note) + event(message)), "text/event-stream", session, options.encoding)

    def refuse(self, status: int, identity: Any, message: str) -> None:
        error = {"jsonrpc": "2.0", "id": identity, "error": {"code": -32600, "message": message}}
        self.reply(status, json.dumps(error).encode(), "application/json")

    def stream(self, data: bytes, *, whole: bool = True) -> None:
        """A body whose end is the connection's; one that is not whole promises more than it gives."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        if not whole:
            self.send_header("content-length", str(len(data) + 100))
        self.end_headers()
        self.wfile.write(data)
        self.close_connection = True

    def reply(self, status: int, body: bytes, kind: str, session: str = "", encoding: str = "identity") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        if encoding != "identity":
            self.send_header("content-encoding", {"members": "gzip", "raw": "deflate"}.get(encoding, encoding))
        if session:
            self.send_header("mcp-session-id", session)
        if options.location:
            self.send_header("location", options.location)
        self.end_headers()
        self.wfile.write(body)

    def note(self, what: str) -> None:
        if options.log:
            with lock, Path(options.log).open("a") as file:
                file.write(what + "\n")


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    server.daemon_threads = True
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()

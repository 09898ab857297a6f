"""An upstream over Streamable HTTP whose tools are the faults: `python -m tests.faults.servers.http [PORT]`.

It is based on raw_http.py. In the environment: `WITNESS` and `ERA`, as for the upstream over stdio.
"""

import io
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from tests.end_to_end.servers import raw_http
from tests.faults.servers.lines import DISCOVERED, KINDS, MODERN, STAMP, text_of
from tests.faults.servers.reports import report

lock = threading.Lock()
standing: list[BufferedIOBase] = []
"""The streams that a GET opened."""
calls: dict[Any, str] = {}
"""The key of each call by its request's id."""


def message_of(identity: Any, text: str) -> str:
    return text_of(identity, text).decode()


class Handler(raw_http.Handler):
    disable_nagle_algorithm = True  # a head and a body in two writes would wait for each other

    def do_GET(self) -> None:  # noqa: N802  # the base class's name
        self.stream(b": standing\n\n")
        self.wfile.flush()
        standing.append(self.wfile)
        select.select([self.connection], [], [])  # until the other end closes it

    def do_POST(self) -> None:  # noqa: N802  # as above
        body = self.rfile.read(int(self.headers["content-length"]))
        message = json.loads(body)
        if message.get("method") in ("tools/list", "notifications/cancelled"):
            identity = (message.get("params") or {}).get("requestId")
            report(message["method"], id=identity, key=calls.get(identity))
        incoming, self.rfile = self.rfile, io.BytesIO(body)  # the base class reads it
        try:
            super().do_POST()
        finally:
            self.rfile = incoming

    def answer(self, identity: Any, result: str, session: str = "") -> None:
        if MODERN and session:  # a handshake
            super().refuse(404, identity, "Method not found")
            return
        super().answer(identity, json.dumps({**json.loads(result), **STAMP}) if MODERN else result, session)

    def refuse(self, status: int, identity: Any, message: str) -> None:
        if MODERN and message == "no such method":
            self.answer(identity, json.dumps(DISCOVERED))
        else:
            super().refuse(status, identity, message)

    def call(self, identity: Any, tool: str, arguments: dict[str, Any], body: str) -> None:  # noqa: ARG002
        calls[identity] = arguments["key"]
        report("called", key=arguments["key"], id=identity, tool=tool)
        CALLS[tool](self, identity, arguments)

    def say(self, text: str) -> None:
        self.reply(200, text.encode(), "application/json")

    def begin(self, kind: str) -> None:
        """A response without a length, whose end is the connection's."""
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True

    def has_left(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0.05)
        return bool(readable) and not self.connection.recv(1, 2)  # MSG_PEEK


def echo(to: Handler, identity: Any, arguments: dict[str, Any]) -> None:
    to.say(message_of(identity, f"echo {arguments['key']}"))


def after_gate(to: Handler, identity: Any, arguments: dict[str, Any]) -> None:
    """Answer, at length if so asked, once the file is there; notice a caller that leaves."""
    deadline = time.monotonic() + 60
    while not Path(arguments["gate"]).exists() and time.monotonic() < deadline:
        if to.has_left():
            report("left", key=arguments["key"])
            report("over")
            to.close_connection = True
            return
    to.say(message_of(identity, f"echo {arguments['key']}" + " word" * arguments.get("words", 0)))
    report("over")


def crash(_to: Handler, _identity: Any, _arguments: dict[str, Any]) -> None:
    report("struck")
    os._exit(3)


def kill(_to: Handler, _identity: Any, _arguments: dict[str, Any]) -> None:
    report("struck")
    os.kill(os.getpid(), signal.SIGKILL)


def hang(to: Handler, _identity: Any, _arguments: dict[str, Any]) -> None:
    report("struck")
    while not to.has_left():
        pass
    to.close_connection = True


def freeze(to: Handler, _identity: Any, _arguments: dict[str, Any]) -> None:
    report("struck")
    os.kill(os.getpid(), signal.SIGSTOP)
    while not to.has_left():
        pass
    to.close_connection = True


def late(to: Handler, identity: Any, arguments: dict[str, Any]) -> None:
    report("struck")
    time.sleep(0.3)
    echo(to, identity, arguments)


def wrong_id(to: Handler, _identity: Any, arguments: dict[str, Any]) -> None:
    report("struck")
    to.say(message_of(987_654, f"echo {arguments['key']}"))


def wrong_ids(to: Handler, identity: Any, arguments: dict[str, Any]) -> None:
    report("struck")
    wrong = (987_654, "no such id", None, [identity], f"{identity}0")
    to.stream(b"".join(raw_http.event(message_of(one, f"echo {arguments['key']}")) for one in wrong))


def twice(to: Handler, identity: Any, arguments: dict[str, Any]) -> None:
    report("struck")
    texts = (f"echo {arguments['key']}", "echo twice")
    to.stream(b"".join(raw_http.event(message_of(identity, text)) for text in texts))


def garbage(to: Handler, identity: Any, arguments: dict[str, Any]) -> None:
    """Events that are not messages, then the answer."""
    report("struck")
    noise = ("not json", "{", "[]", "null", '{"jsonrpc":"2.0"}', '{"id":99999,"result":{}}')
    events = b"".join(raw_http.event(text) for text in noise) + b"data: \xff\xfe\n\n\x00\n\nnonsense: 1\n\n"
    to.stream(events + raw_http.event(message_of(identity, f"echo {arguments['key']}")))


def no_json(to: Handler, _identity: Any, _arguments: dict[str, Any]) -> None:
    report("struck")
    to.say("<html>\x07 not JSON")


def no_mcp(to: Handler, _identity: Any, _arguments: dict[str, Any]) -> None:
    report("struck")
    to.reply(502, b"<html>Bad Gateway</html>", "text/html")


def endless(to: Handler, identity: Any, arguments: dict[str, Any]) -> None:
    """One event that is far over the bound; it ends in the end."""
    report("struck")
    to.begin("text/event-stream")
    to.wfile.write(b"data: " + message_of(identity, "").encode()[:-5])
    for _ in range(arguments.get("megabytes", 16)):
        to.wfile.write(b"x" * 1_000_000)
    to.wfile.write(b'"}]}}\n\n')


def endless_body(to: Handler, identity: Any, arguments: dict[str, Any]) -> None:
    report("struck")
    to.begin("application/json")
    to.wfile.write(message_of(identity, "").encode()[:-5])
    for _ in range(arguments.get("megabytes", 16)):
        to.wfile.write(b"x" * 1_000_000)
    to.wfile.write(b'"}]}}')


def changed(kind: str) -> bytes:
    return raw_http.event(f'{{"jsonrpc":"2.0","method":"notifications/{kind}/list_changed"}}')


def storm(to: Handler, identity: Any, arguments: dict[str, Any]) -> None:
    """Announce changes on a standing stream, the last of a tool that is new; the answer comes at once."""

    def announce() -> None:
        report("storming")
        for index in range(arguments["times"]):
            kind = KINDS[index % 3]
            standing[-1].write(changed(kind))
        raw_http.TOOLS.extend([arguments["adds"]] if "adds" in arguments else [])
        standing[-1].write(changed("tools"))
        report("stormed")

    echo(to, identity, arguments)
    threading.Thread(target=announce, daemon=True).start()


CALLS: dict[str, Callable[[Handler, Any, dict[str, Any]], None]] = {
    "echo": echo, "brief": echo, "wait": after_gate, "crash": crash, "kill": kill, "hang": hang, "freeze": freeze,
    "late": late, "wrong_id": wrong_id, "wrong_ids": wrong_ids, "twice": twice, "garbage": garbage, "no_json": no_json,
    "no_mcp": no_mcp, "endless": endless, "endless_body": endless_body, "storm": storm,
}  # fmt: skip

if __name__ == "__main__":
    raw_http.TOOLS[:] = [*CALLS]
    if MODERN:
        raw_http.sessions.add(None)  # type: ignore[arg-type]  # requests of 2026-07-28 have no session
    server = ThreadingHTTPServer(("127.0.0.1", raw_http.options.port), Handler)
    server.daemon_threads = True
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()

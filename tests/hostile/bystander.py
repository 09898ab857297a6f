"""Scripted clients over HTTP: one that makes calls, and one that measures its waiting times during them."""

from __future__ import annotations

import http.client
import json
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from http_sessions import HEADERS as JSON_HEADERS
from http_sessions import META

if TYPE_CHECKING:
    from collections.abc import Iterator

MODERN = "2026-07-28"
HANDSHAKE = "2025-11-25"
HEADERS = {**JSON_HEADERS, "mcp-protocol-version": MODERN}


class HttpClient:
    """One connection that stays open, of a client of the 2026-07-28 version."""

    def __init__(self, url: str, timeout: float = 60) -> None:
        address = urlsplit(url)
        self._path = address.path
        self._connection = http.client.HTTPConnection(address.netloc, timeout=timeout)

    def send(self, method: str, params: bytes, name: str | None = None) -> bytes:
        """Send a request whose `params` is JSON text without its last brace; gives the raw answer."""
        meta = json.dumps(META).encode()
        body = b'{"jsonrpc":"2.0","id":1,"method":"%b","params":%b"_meta":%b}}' % (method.encode(), params, meta)
        headers = {**HEADERS, "mcp-method": method, **({"mcp-name": name} if name else {})}
        self._connection.request("POST", self._path, body, headers)
        with self._connection.getresponse() as answer:
            return answer.read()

    def call(self, tool: str, arguments: bytes = b"{}") -> bytes:
        """Call a tool; gives the raw answer: a JSON body, or server-sent events."""
        return self.send("tools/call", b'{"name":"%b","arguments":%b,' % (tool.encode(), arguments), tool)

    def text(self, tool: str, arguments: Any = None) -> str:
        """Call a tool; gives its first text."""
        answer = message_of(self.call(tool, json.dumps(arguments or {}).encode()))
        return str(answer["result"]["content"][0]["text"] if "result" in answer else answer["error"]["message"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def message_of(answer: bytes) -> Any:
    """The last message of an answer."""
    if answer.startswith(b"{"):
        return json.loads(answer)
    data = [line[6:] for line in answer.splitlines() if line.startswith(b"data: ") and len(line) > 6]
    return json.loads(data[-1])


class Waits:
    """How long each call of a bystander took, in seconds."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.failures: list[str] = []

    @property
    def longest(self) -> float:
        """The longest, with that which was not answered yet."""
        return max(self.times, default=0.0)

    @property
    def p99(self) -> float:
        """99 of 100 took no longer."""
        return sorted(self.times)[int(len(self.times) * 0.99)] if self.times else 0.0

    def __str__(self) -> str:
        summary = f"{len(self.times)} calls, p99 {1000 * self.p99:.0f} ms, longest {1000 * self.longest:.0f} ms"
        return summary + (f", failed: {self.failures[:3]}" if self.failures else "")


@contextmanager
def bystander(url: str, tool: str) -> Iterator[Waits]:
    """Calls a tool of an honest upstream repeatedly, on its own connection, for the duration of the context."""
    waits, over = Waits(), threading.Event()

    def run() -> None:
        with HttpClient(url) as client:
            while not over.is_set():
                began = time.perf_counter()
                try:
                    answer = client.text(tool, {"text": "hello"})
                except (OSError, http.client.HTTPException, ValueError) as error:
                    answer = repr(error)
                waits.failures += [] if "hello" in answer else [answer[:200]]
                waits.times.append(time.perf_counter() - began)
                over.wait(0.005)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield waits
    finally:
        over.set()
        thread.join(60)

"""A TCP proxy before an HTTP upstream that does to connections what networks do.

A fault is armed; the next connection on which a call goes meets it: the call reaches the upstream, and its answer
meets the fault on the way back. The other connections are not touched.
"""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

_CALL = b"tools/call"
_HEAD_END = b"\r\n\r\n"
_ENDLESS = b'HTTP/1.1 200 OK\r\ncontent-type: %b\r\nconnection: close\r\n\r\n%b{"jsonrpc":"2.0","id":1,"result":"'

Fault = Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]
"""Given where the gateway reads and the whole answer that was meant for it."""


async def delay(client: asyncio.StreamWriter, answer: bytes) -> None:
    await asyncio.sleep(0.3)
    client.write(answer)


async def drip(client: asyncio.StreamWriter, answer: bytes) -> None:
    for at in range(len(answer)):
        client.write(answer[at : at + 1])
        await client.drain()
        await asyncio.sleep(0.001)


async def reset(client: asyncio.StreamWriter, _answer: bytes) -> None:
    break_off(client)


async def half_and_reset(client: asyncio.StreamWriter, answer: bytes) -> None:
    client.write(answer[: (answer.index(_HEAD_END) + len(answer)) // 2])
    await client.drain()
    break_off(client)


async def half_and_close(client: asyncio.StreamWriter, answer: bytes) -> None:
    client.write(answer[: (answer.index(_HEAD_END) + len(answer)) // 2])
    client.close()


async def close(client: asyncio.StreamWriter, _answer: bytes) -> None:
    client.close()


async def noise(client: asyncio.StreamWriter, _answer: bytes) -> None:
    client.write(b"\x16\x03\x01 this is not HTTP \xff\x00\r\n\r\n" * 20)
    client.close()


async def silence(_client: asyncio.StreamWriter, _answer: bytes) -> None:
    """The connection stays, and nothing comes."""


async def _without_end(client: asyncio.StreamWriter, kind: bytes, start: bytes) -> None:
    client.write(_ENDLESS % (kind, start))
    while not client.is_closing():
        client.write(b"x" * 65_536)
        await client.drain()
        await asyncio.sleep(0.005)


async def event_without_end(client: asyncio.StreamWriter, _answer: bytes) -> None:
    await _without_end(client, b"text/event-stream", b"data: ")


async def body_without_end(client: asyncio.StreamWriter, _answer: bytes) -> None:
    await _without_end(client, b"application/json", b"")


def break_off(writer: asyncio.StreamWriter) -> None:
    """Close so that the other end reads a reset."""
    sock: socket.socket | None = writer.get_extra_info("socket")
    if sock is not None and not writer.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@dataclass(eq=False)
class _Link:
    """One connection of the gateway's, and ours to the upstream behind it."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    fault: Fault | None = None
    spoilt: bool = False
    """A fault has struck it: nothing that comes on it is of use."""


@dataclass
class FaultProxy:
    """Listens, passes on, and strikes once when it is armed."""

    target: int
    struck: Callable[[float], None]
    """Called with the time of each fault."""
    port: int = 0
    _armed: Fault | None = None
    _links: set[_Link] = field(default_factory=set)
    _server: asyncio.Server | None = None
    _closed: asyncio.Event = field(default_factory=asyncio.Event)

    def arm(self, fault: Fault) -> None:
        self._armed = fault

    @property
    def spoilt(self) -> int:
        """How many connections that a fault has struck are open still."""
        return sum(link.spoilt for link in self._links)

    async def rest(self) -> None:
        """Wait until all connections that a fault has struck are closed."""
        while self.spoilt:
            await self._closed.wait()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def go_away(self) -> None:
        """Break every connection off and take none any more, until opened again."""
        self.struck(time.monotonic())
        self.close()

    def close(self) -> None:
        """Close the listener and every connection."""
        assert self._server is not None
        self._server.close()
        self.break_all()

    def break_all(self) -> None:
        for link in tuple(self._links):
            break_off(link.client)
            break_off(link.server)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, onward = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        link = _Link(writer, onward)
        self._links.add(link)
        ways = [asyncio.ensure_future(self._requests(link, reader)), asyncio.ensure_future(self._answers(link, back))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._links.discard(link)
            self._closed.set()
            self._closed = asyncio.Event()
            writer.close()
            onward.close()

    async def _requests(self, link: _Link, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if _CALL in data and self._armed:
                    link.fault, self._armed = self._armed, None
                link.server.write(data)
                await link.server.drain()

    async def _answers(self, link: _Link, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while data := await reader.read(1 << 16):
                if link.fault is None:
                    link.client.write(data)
                    await link.client.drain()
                    continue
                message = await _whole(data, reader)
                self.struck(time.monotonic())
                fault, link.fault, link.spoilt = link.fault, None, True
                await fault(link.client, message)


async def _whole(data: bytes, reader: asyncio.StreamReader) -> bytes:
    """An answer of which this much has come, read to its end."""
    while _HEAD_END not in data:
        data += await reader.readuntil(_HEAD_END)
    head = data.index(_HEAD_END) + len(_HEAD_END)
    lengths = [line for line in data[:head].lower().split(b"\r\n") if line.startswith(b"content-length:")]
    missing = head + int(lengths[0].split(b":")[1]) - len(data) if lengths else 0
    return data + await reader.readexactly(missing)


@asynccontextmanager
async def proxying(target: int, struck: Callable[[float], None]) -> AsyncIterator[FaultProxy]:
    proxy = FaultProxy(target, struck)
    await proxy.open()
    try:
        yield proxy
    finally:
        proxy.close()

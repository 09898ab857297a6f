"""Raw TCP connections to a gateway, for requests that no HTTP library sends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class HeldConnection(asyncio.Protocol):
    """A raw connection, and what came over it."""

    def __init__(self) -> None:
        self.received = b""
        self.over = asyncio.Event()
        self.writable = asyncio.Event()
        """Set unless much that was written has not been sent; also set when the connection is over."""
        self.writable.set()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the base class's name
        self.over.set()
        self.writable.set()


class Holder:
    """Keeps raw connections open."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        assert address.port is not None
        self.place = (address.hostname, address.port)
        self.open: list[HeldConnection] = []

    async def hold(self, head: bytes = b"") -> HeldConnection:
        """Open one more connection, and send so much."""
        transport, connection = await asyncio.get_running_loop().create_connection(HeldConnection, *self.place)
        transport.write(head)
        self.open.append(connection)
        return connection

    async def hold_many(self, number: int, head: bytes = b"") -> None:
        for at in range(0, number, 100):
            await asyncio.gather(*(self.hold(head) for _ in range(min(100, number - at))), return_exceptions=True)

    def count_open(self) -> int:
        return sum(not connection.over.is_set() for connection in self.open)


@asynccontextmanager
async def holding(url: str) -> AsyncIterator[Holder]:
    holder = Holder(url)
    try:
        yield holder
    finally:
        for connection in holder.open:
            if connection.transport is not None and not connection.over.is_set():
                connection.transport.abort()

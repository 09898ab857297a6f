"""A relay over stdio: `relay.py COMMAND...`. It gives each request an id of its own and does nothing else.

Its time is the least that an asyncio program between a client and a server takes on the same machine.
"""

import asyncio
import os
import sys
from collections.abc import Callable

import msgspec


class Frame(msgspec.Struct):
    """A JSON-RPC message; its members are the received bytes."""

    id: msgspec.Raw = msgspec.Raw(b"")
    method: msgspec.Raw = msgspec.Raw(b"")
    params: msgspec.Raw = msgspec.Raw(b"{}")
    result: msgspec.Raw = msgspec.Raw(b"{}")


_DECODER = msgspec.json.Decoder(Frame)


class Lines(asyncio.Protocol):
    """Splits what arrives into lines."""

    def __init__(self, take: Callable[[bytes], None], end: Callable[[], None]) -> None:
        self._take, self._end = take, end
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        """Pass the complete lines on."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the signature of asyncio
        """Report the end of the stream."""
        self._end()


class Relay:
    """The two directions of one connection."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._count = 0
        self._ids: dict[bytes, bytes] = {}
        """The client's id of each open request."""

    def send(self, line: bytes) -> None:
        """Send a message of the client to the server."""
        frame = _DECODER.decode(line)
        if bytes(frame.id):
            self._count += 1
            self._ids[b"%d" % self._count] = bytes(frame.id)
            members = (self._count, bytes(frame.method), bytes(frame.params))
            line = b'{"jsonrpc":"2.0","id":%d,"method":%b,"params":%b}' % members
        os.write(self._server, line + b"\n")

    def answer(self, line: bytes) -> None:
        """Send a message of the server to the client."""
        frame = _DECODER.decode(line)
        if bytes(frame.id):
            line = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (self._ids.pop(bytes(frame.id)), bytes(frame.result))
        os.write(1, line + b"\n")


async def main() -> None:
    """Relay until the client closes its end."""
    loop = asyncio.get_running_loop()
    server_input, to_server = os.pipe()
    from_server, server_output = os.pipe()
    process = await asyncio.create_subprocess_exec(*sys.argv[1:], stdin=server_input, stdout=server_output)
    os.close(server_input)
    os.close(server_output)
    relay, ended = Relay(to_server), asyncio.Event()
    for descriptor, take in ((from_server, relay.answer), (0, relay.send)):
        lines = Lines(take, ended.set)
        await loop.connect_read_pipe(lambda lines=lines: lines, os.fdopen(descriptor, "rb"))  # type: ignore[misc]
    await ended.wait()
    os.close(to_server)
    await process.wait()


if __name__ == "__main__":
    asyncio.run(main())

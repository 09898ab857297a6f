"""Receives the reports of scripted upstreams and the fault proxy, so that tests wait for events and never sleep."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

BOUND = 60.0
"""Seconds that anything may take."""

Word = dict[str, Any]
"""One thing that happened: `what`, `at` (seconds of CLOCK_MONOTONIC), `pid`, and more."""


@dataclass
class Witness:
    """All reports in the order of arrival."""

    port: int = 0
    words: list[Word] = field(default_factory=list)
    _notifier: asyncio.Event = field(default_factory=asyncio.Event)

    def record(self, word: Word) -> None:
        self.words.append(word)
        self._notifier.set()
        self._notifier = asyncio.Event()

    def all(self, what: str, **details: Any) -> list[Word]:
        wanted = {"what": what, **details}
        return [word for word in self.words if all(word.get(key) == value for key, value in wanted.items())]

    async def see(self, what: str, times: int = 1, **details: Any) -> Word:
        """The last of so many such words, once it has come."""
        async with asyncio.timeout(BOUND):
            while len(found := self.all(what, **details)) < times:
                await self._notifier.wait()
        return found[times - 1]

    async def listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # at the end of the test
            while line := await reader.readline():
                self.record(json.loads(line))
        writer.close()


@asynccontextmanager
async def witnessing() -> AsyncIterator[Witness]:
    witness = Witness()
    server = await asyncio.start_server(witness.listen, "127.0.0.1", 0)
    witness.port = server.sockets[0].getsockname()[1]
    try:
        yield witness
    finally:
        server.close()

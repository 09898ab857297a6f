"""Lists whose changes an upstream has announced, until the gateway has read them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio

_TOOLS: Final = "tools"
_LONGEST_WAIT: Final = 2.0
"""Seconds from the beginning of a reading in which clients wait for it: a server may not answer."""


class ListChanges:
    """The changed lists of one connection that are not read yet: `tools`, `resources` or `prompts`."""

    def __init__(self) -> None:
        self._noted: set[str] = set()
        """Changes that nothing reads yet."""
        self._reading = frozenset[str]()
        self._began = 0.0
        """When the last reading began."""
        self._has_noted = anyio.Event()
        self._is_read = anyio.Event()
        """Set when the changes that are being read now have been read."""
        self._is_pausing = False

    def note(self, kind: str) -> None:
        """Note that a list changed. However many announcements come, this starts no tasks."""
        self._noted.add(kind)
        self._has_noted.set()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[set[str]]:
        """Wait for changes, and yield them; they are read at the end of the context."""
        await self._has_noted.wait()
        self._has_noted = anyio.Event()
        kinds, self._noted = self._noted, set()
        self._reading, self._began = frozenset(kinds), anyio.current_time()
        try:
            yield kinds
        finally:
            self._reading = frozenset[str]()
            self._is_read.set()
            self._is_read = anyio.Event()

    async def pause(self, seconds: float) -> None:
        """Wait between two readings."""
        self._is_pausing = True
        try:
            await anyio.sleep(seconds)
        finally:
            self._is_pausing = False

    async def settle_tools(self) -> None:
        """Wait while changes of the tools are being read; those that wait for the end of a pause do not count."""
        is_reading = _TOOLS in self._reading
        if is_reading or (_TOOLS in self._noted and not self._is_pausing):
            began = self._began if is_reading else anyio.current_time()
            with anyio.CancelScope(deadline=began + _LONGEST_WAIT):
                await self._is_read.wait()

"""Lists that have changed, or may have, until the gateway has read them; and the subscription to their changes."""

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import mcp_types as types
from mcp import MCPError

from mcp_mirror.upstreams.reconnect import Backoff
from mcp_mirror.upstreams.session import UpstreamSession

_logger = logging.getLogger(__name__)

_TOOLS: Final = "tools"
_INTERVAL: Final = 1.0
"""Seconds between two readings for a server that keeps announcing changes, at least."""
_LONGEST_INTERVAL: Final = 10.0
"""The same, at most. After a long reading the pause is as long: to read thousands of tools delays other calls."""
_OUTDATED_AFTER: Final = 10.0
"""Seconds after which the tools are read again for a client. A server may change them without an announcement, such as
a server without sessions that a new version replaces."""
_LONGEST_WAIT: Final = 2.0
"""Seconds from the beginning of a reading in which clients wait for it: a server may not answer."""
_SUBSCRIPTION_DELAYS: Final = (1.0, 4.0)
"""Seconds between two attempts to subscribe to list changes: at first, and at most."""
NO_SUBSCRIPTION: Final = (types.METHOD_NOT_FOUND, types.INVALID_REQUEST, types.INVALID_PARAMS)
"""Errors of servers that do not support subscriptions."""


class ListChanges:
    """The changed lists of one connection that are not read yet: `tools`, `resources` or `prompts`."""

    def __init__(self) -> None:
        self._noted: set[str] = set()
        """Changes that nothing reads yet."""
        self._reading: set[str] = set()
        self._began = 0.0
        """When the last reading began."""
        self._listed_at = math.inf
        """When the tools were last read, in vain or not."""
        self._has_noted = anyio.Event()
        self._is_read = anyio.Event()
        """Set when the changes that are being read now have been read."""
        self._is_pausing = False

    def note(self, kind: str) -> None:
        """Note that a list changed. However many announcements come, this starts no tasks."""
        self._noted.add(kind)
        self._has_noted.set()

    async def follow(self, read: Callable[[set[str]], Awaitable[None]]) -> None:
        """Have changed lists read, at most once a second and half of the time, until cancelled.

        The tools were read just before.

        Clients that wait for a change wait until `read` has returned, so it also announces the change.
        """
        self._listed_at = anyio.current_time()
        while True:
            await self._has_noted.wait()
            self._has_noted = anyio.Event()
            self._reading, self._noted = self._noted, set()
            self._began = anyio.current_time()
            if _TOOLS in self._reading:
                self._listed_at = self._began
            try:
                await read(self._reading.copy())
            finally:
                self._reading = set()
                self._is_read.set()
                self._is_read = anyio.Event()
            self._is_pausing = True
            try:
                await anyio.sleep(min(max(_INTERVAL, anyio.current_time() - self._began), _LONGEST_INTERVAL))
            finally:
                self._is_pausing = False

    async def wait_for_tools(self) -> None:
        """Have the tools read if that was long ago, and wait while they are being read.

        Changes that wait for the end of a pause do not count.
        """
        if anyio.current_time() - self._listed_at > _OUTDATED_AFTER:
            self.note(_TOOLS)
        is_reading = _TOOLS in self._reading
        if is_reading or (_TOOLS in self._noted and not self._is_pausing):
            began = self._began if is_reading else anyio.current_time()
            with anyio.CancelScope(deadline=began + _LONGEST_WAIT):
                await self._is_read.wait()


async def subscribe_to_changes(session: UpstreamSession) -> None:
    """Subscribe to list changes of a 2026-07-28 server, and subscribe again with backoff when the stream ends."""
    wanted = {
        f"{kind}ListChanged": True for kind in ("tools", "resources", "prompts") if session.offers(kind, "list_changed")
    }
    backoff = Backoff(*_SUBSCRIPTION_DELAYS)
    while session.is_stateless and wanted:
        began = anyio.current_time()
        try:
            await session.listen(**wanted)
        except MCPError as error:
            if error.code in NO_SUBSCRIPTION:
                _logger.warning("upstream %s does not support subscriptions (error %d)", session.name, error.code)
                return
        await anyio.sleep(backoff.next_delay(anyio.current_time() - began))

"""The memory of an upstream's messages that wait for clients: notifications, and requests without an answer.

The connections to an upstream share one bound, which is divided among the queues that contain messages. So clients that
do not read leave room for the messages to others, and many of them together take little more memory than one.
"""

import logging
from typing import Final

from mcp_mirror.system.limited_logs import RepeatedLog

REQUEST_COPIES: Final = 2
"""How often a request that waits for its answer is in memory: as the server sent it, and as the client received it."""
MESSAGE_OVERHEAD: Final = 500
"""Bytes that a message that waits costs beside its own."""

_logger = logging.getLogger(__name__)


class ClientBacklog:
    """The messages of one upstream that wait for clients."""

    def __init__(self, limit: int) -> None:
        """Start without messages; `limit` is the bound in bytes."""
        self.limit: int = limit
        self.log: RepeatedLog = RepeatedLog(_logger)
        self._size = 0
        self._parts = 0
        """The number of parts that contain messages."""

    def has_room(self, present: int, more: int) -> bool:
        """Return whether a part of `present` bytes may take a message of `more` bytes.

        A part without messages takes one of any size while the parts together are within the bound.
        """
        if not present and self._size <= self.limit:
            return True
        return present + more <= self.limit // (self._parts + (not present))

    def change(self, before: int, after: int) -> None:
        """Count the new size of a part."""
        self._size += after - before
        self._parts += (after > 0) - (before > 0)


class BacklogPart:
    """The messages of one queue in a backlog."""

    def __init__(self, backlog: ClientBacklog) -> None:
        self.backlog: ClientBacklog = backlog
        self._size = 0

    def take(self, size: int) -> bool:
        """Add a message of `size` bytes; return False, without any effect, if it has no room."""
        if not self.backlog.has_room(self._size, size):
            return False
        self._resize(self._size + size)
        return True

    def give_back(self, size: int) -> None:
        """Remove a message of `size` bytes, unless `clear` has removed it."""
        self._resize(max(self._size - size, 0))

    def clear(self) -> None:
        """Remove all messages."""
        self._resize(0)

    def _resize(self, size: int) -> None:
        self.backlog.change(self._size, size)
        self._size = size

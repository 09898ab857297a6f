"""A collector of messages in memory, for tests of the framing."""

from mcp_mirror.payload.framing import HEAD, DiscardedFrame
from mcp_mirror.types import Buffer


class MemoryCollector:
    """Buffers a message in memory, up to a size limit."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pieces: list[bytes] = []
        self.size: int = 0

    def add(self, piece: Buffer) -> None:
        """Append the next bytes while the message is within the limit."""
        was_within, self.size = self.size <= self._max_bytes, self.size + len(piece)
        if self.size <= self._max_bytes:
            self._pieces.append(bytes(piece))
        elif was_within:
            self._pieces = [b"".join((*self._pieces, piece))[: min(HEAD, self._max_bytes)]]

    def take(self) -> bytes | DiscardedFrame:
        """Return the message and begin the next one."""
        message, size = b"".join(self._pieces), self.size
        self._pieces, self.size = [], 0
        return message if size <= self._max_bytes else DiscardedFrame(message, size)

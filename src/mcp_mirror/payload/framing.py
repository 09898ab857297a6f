"""Splits a byte stream into messages: lines of stdio, server-sent events of HTTP.

Pure and linear: each byte is read once and passed to a collector, which decides where the message is buffered. A stream
that is fed whole or byte by byte gives the same messages.
"""

from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer

HEAD: Final = 1 << 16
"""Bytes that are kept of a discarded message, to find its id."""
END: Final = 1 << 10
"""Bytes that are kept of the end of a discarded message, because many servers write the id last."""

_BOM: Final = b"\xef\xbb\xbf"
_FIELDS: Final = frozenset((b"event", b"id", b"retry"))
"""The fields of an event beside `data`."""
_DELAY: Final = lazy_pattern(rb"retry: ?[0-9]{1,6}")
"""A delay that is used: up to 1,000 seconds. Every other one is ignored, as those that are not a number must be."""

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class DiscardedFrame(NamedTuple):
    """A message that could not be buffered. The bytes between its head and its end were discarded."""

    head: bytes
    size: int
    failure: str | None = None
    """Why no file could be written for the message; None: the message is over the size limit."""
    end: bytes = b""

    def explain(self) -> str:
        """The error for the sender of the message."""
        if self.failure is None:
            return f"A message of {self.size:,} bytes is over `limits.max_message_bytes`: send less, or raise it."
        return (
            f"A message of {self.size:,} bytes was discarded, because temporary files cannot be written: "
            f"{self.failure}. The log of the gateway names their folder: make room there, or correct it."
        )


class Collector(Protocol[T_co]):
    """Buffers one message after another."""

    def add(self, piece: Buffer) -> None:
        """Append the next bytes. The caller may overwrite them afterwards."""

    def take(self) -> T_co:
        """Return the message and begin the next one."""

    @property
    def size(self) -> int:
        """Bytes of the message so far."""


class LineReader(Generic[T]):
    """Splits a stream into lines, one message each. Empty lines are skipped."""

    def __init__(self, collector: Collector[T]) -> None:
        self._collector = collector

    def feed(self, data: bytes) -> list[T]:
        """Return the messages that end in `data`, without their newline."""
        if b"\n" not in data:
            self._collector.add(data)
            return []
        *ended, rest = data.split(b"\n")
        lines: list[T] = []
        for piece in ended:
            if piece:  # collectors keep pieces, so empty ones would accumulate without bound
                self._collector.add(piece)
            if self._collector.size:
                lines.append(self._collector.take())
        if rest:
            self._collector.add(rest)
        return lines


class ServerSentEvent(msgspec.Struct, Generic[T], frozen=True):
    """One server-sent event."""

    fields: tuple[bytes, ...]
    """The lines of `event`, `id` and `retry` as received, of a repeated field the last one."""
    data: T | None


class EventReader(Generic[T]):
    """Splits a stream into server-sent events (WHATWG HTML, "Server-sent events", section 9.2.6)."""

    def __init__(self, collector: Collector[T]) -> None:
        self._collector = collector
        self._fields: dict[bytes, bytes] = {}
        self._line = b""
        """The beginning of a line whose field is unknown so far or is not `data`."""
        self._in_data = False
        self._has_data = False
        self._after_return = False
        self._first = True

    def feed(self, data: bytes) -> list[ServerSentEvent[T]]:
        """Return the events that end in `data`."""
        events: list[ServerSentEvent[T]] = []
        if self._after_return:
            data = data.removeprefix(b"\n")
        self._after_return = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *ended, rest = data.split(b"\n")
        for line in ended:
            self._add(line)
            if (event := self._end_line()) is not None:
                events.append(event)
        self._add(rest)
        return events

    def _add(self, piece: bytes) -> None:
        if self._in_data:
            self._collector.add(piece)
            return
        self._line += piece[: HEAD - len(self._line)]  # only `data` is long, but a comment may be endless
        if self._first and len(self._line) >= len(_BOM):  # at the beginning of the stream only
            self._line, self._first = self._line.removeprefix(_BOM), False
        if self._line.startswith(b"data:") and len(self._line) > len(b"data:"):
            self._open_data(self._line[5:])

    def _open_data(self, value: bytes) -> None:
        if self._has_data:
            self._collector.add(b"\n")
        self._in_data = self._has_data = True
        self._line = b""
        self._collector.add(value.removeprefix(b" "))

    def _end_line(self) -> ServerSentEvent[T] | None:
        self._first = False
        if not self._in_data and self._line in (b"data", b"data:"):
            self._open_data(b"")
        if self._in_data:
            self._in_data = False
            return None
        if self._line:
            name = self._line.partition(b":")[0]
            is_valid = name != b"retry" or _DELAY.fullmatch(self._line)
            if name in _FIELDS and is_valid:  # a server may send comments and other fields without end
                self._fields[name] = self._line
            self._line = b""
            return None
        return self._dispatch()

    def _dispatch(self) -> ServerSentEvent[T] | None:
        if not self._fields and not self._has_data:
            return None
        event = ServerSentEvent(tuple(self._fields.values()), self._collector.take() if self._has_data else None)
        self._fields, self._has_data = {}, False
        return event

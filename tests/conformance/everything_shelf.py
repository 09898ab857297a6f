"""What the fixture remembers while it runs, the small media that it serves, and its event store.

It knows nothing of tools, prompts or resources.
"""

import base64
import io
import struct
import wave
import zlib
from dataclasses import dataclass, field
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId
from mcp.server.subscriptions import InMemorySubscriptionBus
from mcp_types import JSONRPCMessage, LoggingLevel

Ctx = ServerRequestContext[Any, Any]


@dataclass(slots=True)
class Shelf:
    """What calls change: which of the lists has its additional entry, who wants which log lines, who watches what."""

    bus: InMemorySubscriptionBus = field(default_factory=InMemorySubscriptionBus)
    more_tools: bool = False
    more_prompts: bool = False
    levels: dict[str, LoggingLevel] = field(default_factory=dict)
    watched: set[tuple[str, str]] = field(default_factory=set)


def name_session(ctx: Ctx) -> str:
    """The connection of a 2025-11-25 request."""
    return str(ctx.request.headers.get("mcp-session-id", "")) if ctx.request is not None else ""


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def draw_image() -> str:
    """A PNG of one red pixel, in base64."""
    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0\xff\0\0")
    png = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")
    return base64.b64encode(png).decode()


def record_sound() -> str:
    """A WAV of eight silent samples, in base64."""
    into = io.BytesIO()
    with wave.open(into, "wb") as sound:
        sound.setparams((1, 1, 8000, 8, "NONE", "not compressed"))
        sound.writeframes(b"\x80" * 8)
    return base64.b64encode(into.getvalue()).decode()


class Replay(EventStore):
    """Every event that was sent, so that a client whose stream was closed gets what it missed."""

    def __init__(self) -> None:
        self._events: list[tuple[StreamId, JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: EventId, send_callback: EventCallback) -> StreamId | None:
        after = int(last_event_id)
        stream = self._events[after - 1][0]
        for number, (of, message) in enumerate(self._events[after:], after + 1):
            if of == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream

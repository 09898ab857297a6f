"""The messages that a server sends on its own: notifications, and requests to the client."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from mcp_mirror.payload.json_bounds import estimate_memory
from mcp_mirror.payload.json_rpc import Message, RequestId
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.rebuilt_messages import MAX_BOUNDED

_MAX_ESCAPES: Final = 1_000_000
"""Backslashes in a request of a server: to decode 2,000,000 escapes takes 80 ms."""


@dataclass(frozen=True, slots=True)
class ServerMessage:
    """A request or a notification that the server sent on its own."""

    method: str
    params: Mapping[str, Any]
    id: RequestId | None
    """None for a notification."""
    about: str | None
    """The token of the gateway's request on whose stream it came; None if the transport has only one stream."""
    fault: str | None = None
    """Why its parameters cannot be read, a sentence; they are empty then."""
    size: int = field(default=0, compare=False)
    """Its size on the wire, in bytes."""
    memory: int = field(default=0, compare=False)
    """Bytes that its parameters take in memory, about."""


def decode_server_message(message: Message, method: str, about: str | None, frame: Buffer) -> ServerMessage:
    """Decode a message that the server sent on its own; the long members of a notification are left out."""
    params = message.params if isinstance(message.params, dict) else {}
    identity = message.id if isinstance(message.id, int | str) else None
    if identity is not None and len(frame) > _MAX_ESCAPES and bytes(frame).count(b"\\") > _MAX_ESCAPES:
        return ServerMessage(method, {}, identity, about, f"The message has more than {_MAX_ESCAPES:,} backslashes.")
    if identity is not None or len(frame) <= MAX_BOUNDED:
        memory = estimate_memory(frame)
    else:  # a notification of which at most small members are relayed
        params = {key: raw for key, raw in params.items() if len(memoryview(raw)) <= MAX_BOUNDED}
        memory = len(frame)
    try:
        decoded = {key: msgspec.json.decode(raw) for key, raw in params.items()}
        return ServerMessage(method, decoded, identity, about, size=len(frame), memory=memory)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return ServerMessage(method, {}, identity, about, f"The message cannot be read: {error}.")

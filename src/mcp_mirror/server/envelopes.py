"""The envelopes of 2026-07-28 requests that the SDK has accepted.

An envelope contains the members of a request's `_meta` that MCP reserves: protocol version, client, capabilities
and log level. Whether the SDK accepts an envelope depends only on its text.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from mcp.server.session import ServerSession

from mcp_mirror.payload.json_rpc import open_object
from mcp_mirror.server.request_context import Context
from mcp_mirror.types import Buffer

RESERVED: Final = "io.modelcontextprotocol/"
"""The prefix of the members of `_meta` that MCP reserves."""
_MAX_ENVELOPES: Final = 256
"""Accepted envelopes. Above this number the least recently used ones are dropped."""
_MAX_BYTES: Final = 4096
"""Bytes of an envelope; larger ones are not recorded."""


Envelope = frozenset[tuple[str, bytes]]
"""The reserved members with their JSON text."""
NO_ENVELOPE: Final[Envelope] = frozenset()
"""The envelope of a 2025-11-25 request."""


def read_envelope(meta: Buffer) -> Envelope:
    """Return the envelope in a request's `_meta`, JSON text."""
    members = open_object(meta) or {}
    return frozenset((key, bytes(text)) for key, text in members.items() if key.startswith(RESERVED))


class AcceptedEnvelope(msgspec.Struct, frozen=True):
    """The contents of an envelope."""

    protocol_version: str
    capabilities: Mapping[str, Any]
    """The client's capabilities."""
    server_session: ServerSession
    """The SDK's session of the request with the envelope, which has the client's connection on stdio."""


class AcceptedEnvelopes:
    """The accepted envelopes of all clients."""

    def __init__(self) -> None:
        self._contents: OrderedDict[Envelope, AcceptedEnvelope] = OrderedDict()

    def add(self, params: Mapping[str, Buffer], context: Context, capabilities: Mapping[str, Any]) -> None:
        """Record the envelope of a tool call."""
        envelope = read_envelope(params.get("_meta", b"{}"))
        if not envelope or sum(len(text) for _, text in envelope) > _MAX_BYTES:
            return
        self._contents[envelope] = AcceptedEnvelope(context.protocol_version, capabilities, context.session)
        if len(self._contents) > _MAX_ENVELOPES:
            self._contents.popitem(last=False)

    def find(self, envelope: Envelope) -> AcceptedEnvelope | None:
        """Return the contents of an envelope; None if the SDK has not accepted it."""
        contents = self._contents.get(envelope)
        if contents is not None:
            self._contents.move_to_end(envelope)
        return contents

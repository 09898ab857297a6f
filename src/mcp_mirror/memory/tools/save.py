"""How a value that a tool of ours made is kept: as a result of an upstream would be, with the usual notice."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

import anyio.to_thread

from mcp_mirror.core.capture import CaptureRules
from mcp_mirror.core.result_processing import ProcessedResult, ProcessingOptions, RejectedFrame, process_frame
from mcp_mirror.errors import ToolError, WireError
from mcp_mirror.memory.tools.tool import Content, ToolInput, text_content
from mcp_mirror.memory.value_lookup import FoundValue
from mcp_mirror.paths import new_base
from mcp_mirror.payload.framing import Overlong
from mcp_mirror.payload.spool import Frame, SpooledFrame, discard_after
from mcp_mirror.security.flows import labels_as_text
from mcp_mirror.settings.labels import MODEL, Labels
from mcp_mirror.types import Buffer, Provenance

UPSTREAM: Final = "mcp-mirror"
"""Whose tools ours are, in what is told of a value."""

_AT_ONCE: Final = 1 << 18
"""Bytes up to which a value is kept without leaving the event loop."""
_TOLD_BYTES: Final = 1 << 10
"""How much of the arguments a notice may tell."""


@dataclass(frozen=True, slots=True)
class NewValue:
    """A value that was made."""

    pieces: Iterable[Buffer]
    """Its JSON text; read in a thread."""
    of: tuple[FoundValue, ...] = ()
    """The values that it was made of."""
    source: str = MODEL
    """Whose else it is: what says how to make it."""
    is_shown: bool = True
    """A small one may be shown beside its path."""
    is_said: bool = False
    """It is a text that was said: where that is JSON, that is the value."""
    is_content: bool = False
    """It is a content block."""
    preview: bool = True
    """A model may be told what is in it though it has not asked."""
    size: int = _AT_ONCE + 1
    """Bytes, where they are known to be few."""


class SavedValue(NamedTuple):
    """A value that was stored."""

    path: str
    notice: str


async def keep(call: ToolInput, made: NewValue) -> Content:
    """Store a value; gives the notice.

    Raises:
        ToolError: It cannot be stored.
    """
    return text_content((await store(call, made)).notice)


async def store(call: ToolInput, made: NewValue) -> SavedValue:
    """Store a value.

    Raises:
        ToolError: It cannot be stored.
    """
    memory = call.memory
    frame = _frame(call, made) if made.size <= _AT_ONCE else await anyio.to_thread.run_sync(_frame, call, made)
    if isinstance(frame, Overlong):
        limit = memory.limits.max_message_bytes
        raise ToolError(f"The value would be over {limit:,} bytes (`limits.max_message_bytes`). Make a smaller one.")
    labels = _labels(call, made)
    order = _order(call, made)
    if not memory.flows.may_show(labels):
        order = order.path_only()
    with discard_after(frame):
        try:
            digest = await _digest(call, frame, order)
        except WireError as error:
            raise ToolError(f"The value cannot be stored. {error}") from None
        if isinstance(digest, RejectedFrame) or digest.captured.value is None:
            raise ToolError("null is no value that is stored. Store something else.")
        arguments = hashlib.sha256(call.given.raw).hexdigest()
        provenance = Provenance(UPSTREAM, call.tool, arguments, tuple(str(one.path) for one in made.of))
        await memory.writer.keep(call.namespace, provenance, order, digest.captured, labels_as_text(labels))
        memory.trace.path = order.base
    return SavedValue(order.base, digest.notice)


def _labels(call: ToolInput, made: NewValue) -> Labels:
    flows = call.memory.flows
    known = [flows.labels_of(one.known) for one in made.of if one.known]
    return flows.join(flows.labels_from(made.source), *known)


def _order(call: ToolInput, made: NewValue) -> ProcessingOptions:
    mirror = call.memory.mirror
    inline_budget = mirror.inline_budget if made.is_shown else 0
    rules = CaptureRules("always", inline_budget, mirror.error_budget, wrapped=False, preview=made.preview)
    return ProcessingOptions(
        rules=rules,
        style=mirror.notice,
        tool=call.tool,
        arguments=call.given.raw[:_TOLD_BYTES],
        base=new_base(call.tool, call.memory.new_id()),
        companion_base=new_base(call.tool, call.memory.new_id()),
        max_key_bytes=call.memory.limits.max_key_bytes,
        provider=mirror.provider,
    )


def _frame(call: ToolInput, made: NewValue) -> Frame:
    """The value as the response of an upstream that gave it: in memory, or past a size in a file."""
    collector = call.memory.spool.collector()
    before, behind = _CONTENT if made.is_content else _SAID if made.is_said else _STRUCTURED
    try:
        for piece in chain((before,), made.pieces, (behind,)):
            collector.add(piece)
        return collector.take()
    finally:
        collector.close()


_STRUCTURED: Final = (b'{"jsonrpc":"2.0","id":0,"result":{"content":[],"structuredContent":', b"}}")
_CONTENT: Final = (b'{"jsonrpc":"2.0","id":0,"result":{"content":[', b"]}}")
_SAID: Final = (b'{"jsonrpc":"2.0","id":0,"result":{"content":[{"type":"text","text":', b"}]}}")


async def _digest(
    call: ToolInput, frame: bytes | SpooledFrame, order: ProcessingOptions
) -> ProcessedResult | RejectedFrame:
    if isinstance(frame, SpooledFrame):
        return await call.memory.scanner.scan(frame, order)
    if len(frame) > _AT_ONCE:
        return await anyio.to_thread.run_sync(process_frame, frame, order, order.estimate)
    return process_frame(frame, order, order.estimate)

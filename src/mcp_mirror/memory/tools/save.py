"""Stores the values that the gateway's own tools make, in the same way as results of upstreams."""

import hashlib
from collections.abc import Iterable
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from mcp_mirror.callers import OWN_NAME
from mcp_mirror.core.results.capture import PASS_THROUGH_TOKENS, CaptureRules
from mcp_mirror.core.results.processing import QUOTED_BYTES, ProcessingOptions, RejectedFrame, process_frame
from mcp_mirror.core.value_sizes import count_value_tokens
from mcp_mirror.errors import StoreError, ToolError, WireError
from mcp_mirror.memory.tools.tool import Content, ToolInput, build_text_content
from mcp_mirror.memory.value_lookup import FoundValue
from mcp_mirror.paths import NewBases
from mcp_mirror.payload.framing import DiscardedFrame
from mcp_mirror.payload.json_rpc import as_plain_text
from mcp_mirror.payload.spool import Frame, SpooledFrame, discard_after
from mcp_mirror.security.flows import format_labels
from mcp_mirror.settings.labels import MODEL, Labels
from mcp_mirror.system.slices import INLINE_BYTES, run_by_size, run_by_values
from mcp_mirror.types import Buffer, Provenance

_SHOWN_BYTES: Final = 1 << 20
"""Bytes above which a computed value is stored without an estimate of its tokens."""

_STRUCTURED: Final = (b'{"jsonrpc":"2.0","id":0,"result":{"content":[],"structuredContent":', b"}}")
_CONTENT: Final = (b'{"jsonrpc":"2.0","id":0,"result":{"content":[', b"]}}")
_TEXT: Final = (b'{"jsonrpc":"2.0","id":0,"result":{"content":[{"type":"text","text":', b"}]}}")


class NewValue(msgspec.Struct, frozen=True):
    """A value to store."""

    pieces: Iterable[Buffer]
    """The JSON text. Pieces of large values, and of values of unknown size, are read in a thread."""
    inputs: tuple[FoundValue, ...] = ()
    """The stored values that it was made of; their flow labels apply to it."""
    labels: tuple[Labels, ...] = ()
    """The flow labels of further values that it was made of."""
    paths: tuple[str, ...] = ()
    """The memory paths of these values."""
    source: str = MODEL
    """The flow label of everything else that it was made of."""
    most_shown: int | None = None
    """The tokens of the largest value that the notice shows whole. Default: `mirror.inline_budget`."""
    is_text: bool = False
    """It is a JSON string; if the string contains JSON, that JSON is stored."""
    is_content: bool = False
    """It is a content block."""
    preview: bool = True
    """The model may see parts of the value, and of the further values that it was made of, without a request."""
    size: int | None = None
    """The size in bytes, if it is known."""


class SavedValue(NamedTuple):
    """A value that was stored."""

    path: str
    notice: str


async def save_hidden(call: ToolInput, value: NewValue) -> Content:
    """Store a value that the model must not see, and return only its path.

    If the value cannot be stored, because it is too large for example, the error is stored: it may depend on the value.
    """
    try:
        saved = await save_value(call, value)
    except (ToolError, StoreError) as error:
        failed = msgspec.json.encode({"error": str(error)})
        saved = await save_value(call, msgspec.structs.replace(value, pieces=(failed,), size=len(failed)))
    return build_text_content(f"{saved.path}\n")


def show(call: ToolInput, value: NewValue) -> str | None:
    """Return a computed value as it is; None if it must be stored: a large value, an object, one without preview."""
    memory, (blob,) = call.memory, tuple(value.pieces)
    is_short = blob[:1] != b"{" and len(blob) <= _SHOWN_BYTES and value.preview
    if is_short and count_value_tokens(blob, memory.estimate) < min(PASS_THROUGH_TOKENS, memory.mirror.inline_budget):
        return as_plain_text(blob)
    return None


async def save_and_reply(call: ToolInput, value: NewValue) -> Content:
    """Store a value and return its notice as a text block; see `save_value`."""
    return build_text_content((await save_value(call, value)).notice)


async def save_value(call: ToolInput, value: NewValue) -> SavedValue:
    """Store a value and return its path and notice.

    Raises:
        ToolError: The value is null, too large or nested too deeply.
        StoreError: The store failed, or temporary files cannot be written.
    """
    memory, flows = call.memory, call.memory.flows
    frame = await _make_frame(call, value)
    of_inputs = [flows.read_labels(source.descriptor) for source in value.inputs]
    labels = flows.join(flows.labels_of_place(value.source), *of_inputs, *value.labels)
    options = _choose_options(call, value)
    if not flows.may_show(labels):
        options = options.path_only()
    with discard_after(frame):
        try:
            if isinstance(frame, SpooledFrame):
                result = await memory.services.scanner.scan(frame, options, call.namespace)
            else:
                result = await run_by_values((frame,), process_frame, frame, options, principal=call.namespace)
        except WireError as error:
            raise ToolError(f"The value cannot be stored. {error}") from None
        if isinstance(result, RejectedFrame) or result.captured.value is None:
            raise ToolError("null cannot be stored. Store another value.")
        given = call.arguments.raw
        digest = await run_by_size(len(given), hashlib.sha256, given, principal=call.namespace)
        inputs = (*(str(source.path) for source in value.inputs), *value.paths)
        provenance = Provenance(OWN_NAME, call.tool, digest.hexdigest(), inputs, memory.trace.traceparent)
        writer = memory.services.writer
        await writer.store_result(call.namespace, provenance, options.bases, result.captured, format_labels(labels))
        memory.trace.path = options.bases.value
    return SavedValue(options.bases.value, result.notice)


async def _make_frame(call: ToolInput, value: NewValue) -> bytes | SpooledFrame:
    """Return the value in an upstream's response; a value that is too large is not made, if its size is known.

    A call can name a large value many times.
    """
    limit = call.memory.services.limits.max_message_bytes
    oversize = ToolError(
        f"The value would be larger than {limit:,} bytes (`limits.max_message_bytes`). Make a smaller one."
    )
    size = INLINE_BYTES + 1 if value.size is None else value.size
    if value.size is not None and size > limit:
        raise oversize
    frame = await run_by_size(size, _build_frame, call, value, principal=call.namespace)
    if isinstance(frame, DiscardedFrame):
        raise oversize if frame.failure is None else StoreError(frame.explain())
    return frame


def _choose_options(call: ToolInput, value: NewValue) -> ProcessingOptions:
    mirror = call.memory.mirror
    inline_budget = mirror.inline_budget if value.most_shown is None else min(value.most_shown, mirror.inline_budget)
    preview = value.preview and all(source.preview for source in value.inputs)
    rules = CaptureRules("always", inline_budget, mirror.error_budget, is_wrapped=False, preview=preview)
    return ProcessingOptions(
        rules=rules,
        style=mirror.notice,
        tool=call.tool,
        arguments=bytes(call.arguments.raw[:QUOTED_BYTES]),
        bases=NewBases(call.tool, call.memory.services.new_id),
        max_key_bytes=call.memory.services.limits.max_key_bytes,
        provider=mirror.provider,
    )


def _build_frame(call: ToolInput, value: NewValue) -> Frame:
    """Wrap the value in an upstream's response, which is spooled to a file if it is large."""
    collector = call.memory.services.spool.collector()
    before, after = _STRUCTURED
    if value.is_content:
        before, after = _CONTENT
    elif value.is_text:
        before, after = _TEXT
    try:
        for piece in chain((before,), value.pieces, (after,)):
            collector.add(piece)
        return collector.take()
    finally:
        collector.close()

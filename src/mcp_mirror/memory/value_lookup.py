"""Looks up the value of a memory path."""

from bisect import bisect_right
from contextlib import suppress
from operator import attrgetter, indexOf
from typing import Final, NamedTuple

import msgspec

from mcp_mirror.core.conversion import Resolved
from mcp_mirror.core.results.media import has_content
from mcp_mirror.core.results.parsed_result import find_unwrapped_key
from mcp_mirror.memory.lookup_errors import ErrorContent, deleted_error, expired_error, missing_key_error, quote_path
from mcp_mirror.paths import MemoryPath, read_steps
from mcp_mirror.payload.json_bounds import MAX_VALUES, has_more_values
from mcp_mirror.payload.json_spans import INDEX, Miss, item, kind_at, locate, skip_space
from mcp_mirror.stores.base import Store, Tombstone
from mcp_mirror.system.fair_threads import run_fairly
from mcp_mirror.system.slices import INLINE_BYTES
from mcp_mirror.types import Buffer, Descriptor, FileSpan, JsonToken, Kind, Location, Span
from mcp_mirror.workers.frames import FrameScanner

_KEY: Final = attrgetter("key")
"""Returns the key of a member."""
_WORKER_BYTES: Final = 1 << 23
"""Values above this size in a file are searched in a worker process."""


class FoundValue(Resolved, frozen=True, kw_only=True):
    """The value of a path."""

    descriptor: Descriptor

    @property
    def quoted_path(self) -> str:
        """The path for an error message."""
        return quote_path(self.path)

    @property
    def producer(self) -> str:
        """The trace context of the call that produced the value; empty without traces."""
        return self.descriptor.provenance.traceparent

    def without_index(self) -> "FoundValue":
        """The same value without the places of its members, which a call that waits would keep in memory.

        Those of an object with 10,000 keys are 50,000 objects, which every collection of garbage visits.
        """
        descriptor = msgspec.structs.replace(self.descriptor, members=())
        return msgspec.structs.replace(self, descriptor=descriptor) if self.descriptor.members else self


_ANY_CONTENT: Final = ErrorContent()


async def look_up(
    store: Store, scanner: FrameScanner, namespace: str, path: MemoryPath, content: ErrorContent = _ANY_CONTENT
) -> FoundValue | None:
    """Return the value of a path; None if its base was never stored. Errors are those of `look_up_described`."""
    described = await store.describe(namespace, path.base, will_read=True)
    return None if described is None else await look_up_described(store, scanner, namespace, path, described, content)


async def look_up_described(
    store: Store,
    scanner: FrameScanner,
    namespace: str,
    path: MemoryPath,
    described: Descriptor | Tombstone,
    content: ErrorContent,
) -> FoundValue:
    """Return the value of a path whose descriptor or tombstone was read; large values are searched in workers.

    ToolError if the value is gone or has no such key; `content` is what the error may contain.
    """
    if isinstance(described, Tombstone):
        raise expired_error(path, described)
    start = _find_start(described, path)
    if start.span is None:
        path = _strip_wrapper_key(described, path)
        start = _find_start(described, path)
    item = await _look_up_indexed(store, namespace, path, described, start)
    if item is not None:
        return item
    blob = await store.read(namespace, path.base, start.span, described)
    if blob is None:
        left = await store.describe(namespace, path.base)
        raise expired_error(path, left) if isinstance(left, Tombstone) else deleted_error(path)
    file = await _find_file(store, namespace, path.base, start, blob)
    in_worker = start.tokens and len(blob) > INLINE_BYTES
    span = await scanner.locate(blob, file, start.tokens, namespace) if in_worker else locate(blob, start.tokens)
    if not isinstance(span, Miss):
        return _build_found_value(path, described, blob, span, file)
    depth = len(path.tokens) - len(start.tokens) + span.depth
    meant = _read_as_meant(path, depth, span)
    if meant != path:
        return await look_up_described(store, scanner, namespace, meant, described, content)
    value = b"" if span.depth else blob
    raise await run_fairly(namespace, missing_key_error, path, described, depth, span, value, content)


class _Start(NamedTuple):
    """Where the lookup of a path begins: at an indexed member of the value, or at the value itself."""

    span: Span | None
    """The place of the member; None for the whole value."""
    tokens: Location
    """The tokens of the path below it."""


def _find_start(described: Descriptor, path: MemoryPath) -> _Start:
    """Find the indexed member that the first token of a path names by key or position."""
    if path.tokens and described.kind == "object":
        first = path.tokens[0]
        with suppress(ValueError):  # a call may name a thousand of ten thousand members, so no step runs in Python
            position = first if isinstance(first, int) else indexOf(map(_KEY, described.members), first)
            if position < len(described.members):
                return _Start(described.members[position].span, path.tokens[1:])
    return _Start(None, path.tokens)


async def _look_up_indexed(
    store: Store, namespace: str, path: MemoryPath, described: Descriptor, start: _Start
) -> FoundValue | None:
    """Return the value of a path in the indexed array of a value, of which only a part is read.

    Returns None if the path is not in that array, if it does not exist, or if the part is large.
    """
    array = described.array
    if array is None or not start.tokens:
        return None
    is_indexed = start.span == array.span if start.span else described.kind == "array"
    token, *below = start.tokens
    if not is_indexed or not INDEX.fullmatch(str(token)) or (index := int(token)) >= array.length:
        return None
    nearest = bisect_right(array.indices, index) - 1  # the last item before it whose offset is known
    offset = array.offsets[nearest]
    stop = array.offsets[nearest + 1] if nearest + 1 < len(array.offsets) else array.span.length
    if stop - offset > _WORKER_BYTES:
        return None
    part = await store.read(namespace, path.base, Span(array.span.start + offset, stop - offset), described)
    if part is None:
        return None
    span = await run_fairly(namespace, _locate_below, part, index - array.indices[nearest], tuple(below))
    return None if isinstance(span, Miss) else _build_found_value(path, described, part, span)


def _locate_below(part: Buffer, index: int, tokens: Location) -> Span | Miss:
    """Follow tokens from the item at `index` of a part of an array, which begins with an item."""
    span = item(part, Span(-1, len(part) + 1), index)
    return locate(part, tokens, span) if isinstance(span, Span) else Miss(0, "array")


def _strip_wrapper_key(described: Descriptor, path: MemoryPath) -> MemoryPath:
    """The path without the key of a wrapper that was removed from the value: models know it from the output schema."""
    first = path.tokens[0] if path.tokens else None
    if not isinstance(first, str) or first != find_unwrapped_key(described.other_members):
        return path
    is_key = any(member.key == first for member in described.members)
    return path if is_key else MemoryPath(path.base, path.tokens[1:])


def _read_as_meant(path: MemoryPath, depth: int, miss: Miss) -> MemoryPath:
    """The path without a slash or quotes at its end, or with several keys in place of one such as `rows[0].name`.

    All later keys are read in the same way, so that a lookup of a path with a thousand such keys is repeated once.
    `depth` is the number of tokens before the missing key, and `miss` the value without the key.
    """
    if path.tokens[-1] == "":
        return MemoryPath(path.base, path.tokens[:-1])
    if (bare := path.without_wrapping) != path:
        return bare
    steps: list[JsonToken] = []
    for token in path.tokens[depth:]:
        read = read_steps(f".{token}") if isinstance(token, str) else ()
        steps += read or (token,)
    first = str(steps[0])
    is_item = miss.kind == "array" and INDEX.fullmatch(first) is not None and int(first) < miss.length
    if not is_item and first not in miss.keys:
        return path
    return MemoryPath(path.base, (*path.tokens[:depth], *steps))


async def _find_file(store: Store, namespace: str, base: str, start: _Start, blob: Buffer) -> FileSpan | None:
    """The position in a file where a worker process begins the lookup; None if the value is not in a file.

    Only a value that is large, or has very many members or items, is searched in a worker process.
    """
    is_costly = len(blob) > _WORKER_BYTES
    if INLINE_BYTES < len(blob) <= _WORKER_BYTES and kind_at(blob, skip_space(blob, 0)) != "text":
        is_costly = await run_fairly(namespace, has_more_values, blob, MAX_VALUES)
    whole = await store.file_of(namespace, base) if is_costly else None
    offset = start.span.start if start.span else 0
    return FileSpan(whole.path, Span(whole.span.start + offset, len(blob))) if whole else None


def _build_found_value(
    path: MemoryPath, descriptor: Descriptor, blob: Buffer, span: Span, file: FileSpan | None = None
) -> FoundValue:
    """The part of a value at a span, or the whole value. `file` is the place of the blob in a file."""
    kind: Kind = descriptor.kind
    if not path.tokens and kind in ("object", "array"):
        span = Span(0, len(blob))  # with the white space around it: a string argument gets exactly the result's text
        part = blob
    else:
        part = memoryview(blob)[span.start : span.stop]
    if path.tokens:
        kind = kind_at(blob, span.start)
        kind = "binary" if kind == "object" and has_content(part) else kind
        part = bytes(part) if len(part) <= INLINE_BYTES else part  # a view would keep the map of a large value
    in_file = FileSpan(file.path, Span(file.span.start + span.start, len(part))) if file else None
    return FoundValue(path, part, kind, descriptor.preview, file=in_file, descriptor=descriptor)

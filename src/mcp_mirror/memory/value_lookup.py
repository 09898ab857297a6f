"""Looks up the value of a memory path."""

from bisect import bisect_right
from contextlib import suppress
from operator import indexOf, itemgetter
from typing import Final

import anyio.to_thread
import msgspec

from mcp_mirror.core.conversion import Resolved
from mcp_mirror.core.media import find_embedded_text, has_content
from mcp_mirror.core.parsed_result import find_unwrapped_key
from mcp_mirror.memory.lookup_errors import ErrorContent, deleted_error, expired_error, missing_key_error, quote_path
from mcp_mirror.paths import MemoryPath, read_steps
from mcp_mirror.payload.json_bounds import MAX_VALUES, has_more_values
from mcp_mirror.payload.json_spans import INDEX, Miss, item, kind_at, locate, skip_space, trim
from mcp_mirror.stores.base import Store, Tombstone
from mcp_mirror.system.fair_threads import run_fairly
from mcp_mirror.system.slices import INLINE_BYTES
from mcp_mirror.types import Buffer, Descriptor, FileSpan, JsonToken, Kind, Location, Member, Span
from mcp_mirror.workers.frames import FrameScanner

_KEY: Final = itemgetter(0)
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
    content: ErrorContent = _ANY_CONTENT,
) -> FoundValue:
    """Return the value of a path whose descriptor or tombstone was read; large values are searched in workers.

    Raises:
        ToolError: The value has expired or was evicted, or it has no such key; `content` is what the error may contain.
    """
    if isinstance(described, Tombstone):
        raise expired_error(path, described)
    member = _find_member(described, path)
    if member is None:
        path = _strip_wrapper_key(described, path)
        member = _find_member(described, path)
    if (found := await _look_up_indexed(store, namespace, path, described, member)) is not None:
        return found
    blob = await store.read(namespace, path.base, member.span if member else None, described)
    if blob is None:
        left = await store.describe(namespace, path.base)
        raise expired_error(path, left) if isinstance(left, Tombstone) else deleted_error(path)
    tokens = path.tokens[1:] if member else path.tokens
    file = await _find_file(store, namespace, path.base, member, len(blob)) if await _is_costly(blob) else None
    span = await _locate(scanner, file, blob, tokens)
    if isinstance(span, Miss):
        depth = len(path.tokens) - len(tokens) + span.depth
        if (meant := _read_as_meant(path, depth, span)) != path:
            return await look_up_described(store, scanner, namespace, meant, described, content)
        text = await run_fairly(namespace, _read_literal, blob) if not span.depth else b""
        raise await run_fairly(namespace, missing_key_error, path, described, depth, span, text, content)
    found = _build_found_value(path, described, blob, span)
    if file is None:
        return found
    start = file.span.start + (0 if found.blob is blob else span.start)
    return msgspec.structs.replace(found, file=FileSpan(file.path, Span(start, len(found.blob))))


def _read_literal(blob: Buffer) -> Buffer:
    """The JSON string of a text, or of the text in an embedded resource; empty for any other value."""
    span = find_embedded_text(blob) or trim(blob)
    return memoryview(blob)[span.start : span.stop] if kind_at(blob, span.start) == "text" else b""


async def _look_up_indexed(
    store: Store, namespace: str, path: MemoryPath, described: Descriptor, member: Member | None
) -> FoundValue | None:
    """Return the value of a path in the indexed array of a value, of which only a part is read.

    Returns None if the path is not in that array, if it does not exist, or if the part is large.
    """
    known, depth = described.array, 1 if member else 0
    is_array = known is not None and (member.span == known.span if member else described.kind == "array")
    if known is None or not is_array or len(path.tokens) <= depth:
        return None
    token = str(path.tokens[depth])
    if not INDEX.fullmatch(token) or (index := int(token)) >= known.length:
        return None
    at = bisect_right(known.indices, index) - 1
    start = known.offsets[at]
    stop = known.offsets[at + 1] if at + 1 < len(known.offsets) else known.span.length
    if stop - start > _WORKER_BYTES:
        return None
    part = await store.read(namespace, path.base, Span(known.span.start + start, stop - start), described)
    if part is None:
        return None
    below, first = path.tokens[depth + 1 :], known.indices[at]
    found = await anyio.to_thread.run_sync(_locate_below, part, index - first, below)
    return None if isinstance(found, Miss) else _build_found_value(path, described, part, found)


def _locate_below(part: Buffer, index: int, tokens: Location) -> Span | Miss:
    """Follow tokens from the item at `index` of a part of an array, which begins with an item."""
    found = item(part, Span(-1, len(part) + 1), index)
    return locate(part, tokens, found) if isinstance(found, Span) else Miss(0, "array")


async def _is_costly(blob: Buffer) -> bool:
    """Whether a worker process should search a value: it is large, or has very many members or items."""
    if not INLINE_BYTES < len(blob) <= _WORKER_BYTES:
        return len(blob) > _WORKER_BYTES
    is_text = kind_at(blob, skip_space(blob, 0)) == "text"
    return not is_text and await anyio.to_thread.run_sync(has_more_values, blob, MAX_VALUES)


def _strip_wrapper_key(described: Descriptor, path: MemoryPath) -> MemoryPath:
    """The path without the key of a wrapper that was removed from the value: models know it from the output schema."""
    first = path.tokens[0] if path.tokens else None
    if not isinstance(first, str) or first != find_unwrapped_key(described.other_members):
        return path
    is_key = any(member.key == first for member in described.members)
    return path if is_key else MemoryPath(path.base, path.tokens[1:])


def _read_as_meant(path: MemoryPath, depth: int, miss: Miss) -> MemoryPath:
    """The path without quotes at its end, or with several keys and indices in place of one such as `rows[0].name`.

    All later keys are read in the same way, so that a lookup of a path with a thousand such keys is repeated once.
    `depth` is the number of tokens before the missing key, and `miss` the value without the key.
    """
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


def _find_member(described: Descriptor, path: MemoryPath) -> Member | None:
    """The indexed member that the first token of a path names by key or position; None if it does not exist."""
    if not path.tokens or described.kind != "object":
        return None
    first = path.tokens[0]
    if isinstance(first, int):
        return described.members[first] if first < len(described.members) else None
    with suppress(ValueError):  # a call may name a thousand of ten thousand members, so no step runs in Python
        return described.members[indexOf(map(_KEY, described.members), first)]
    return None


async def _find_file(store: Store, namespace: str, base: str, member: Member | None, size: int) -> FileSpan | None:
    """The position of a value, or of its member, in a file; None if it is not in a file."""
    whole = await store.file_of(namespace, base)
    start = member.span.start if member else 0
    return FileSpan(whole.path, Span(whole.span.start + start, size)) if whole else None


async def _locate(scanner: FrameScanner, file: FileSpan | None, blob: Buffer, tokens: Location) -> Span | Miss:
    """Search a small value here and a large one in a worker."""
    if not tokens or len(blob) <= INLINE_BYTES:
        return locate(blob, tokens)
    return await scanner.locate(blob, file, tokens)


def _build_found_value(path: MemoryPath, descriptor: Descriptor, blob: Buffer, span: Span) -> FoundValue:
    """The part of a value at a span, or the whole value."""
    kind: Kind = descriptor.kind
    part: Buffer = memoryview(blob)[span.start : span.stop]
    if path.tokens:
        kind = kind_at(blob, span.start)
        kind = "binary" if kind == "object" and has_content(part) else kind
        part = bytes(part) if len(part) <= INLINE_BYTES else part  # a view would keep the map of a large value
    elif kind in ("object", "array"):
        part = blob  # with the white space around it: a string argument gets exactly the text of the result
    return FoundValue(path, part, kind, descriptor.preview, descriptor=descriptor)

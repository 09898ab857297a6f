"""The jobs of the frame scanner. They run in worker processes, so this module imports nothing that jobs do not use."""

from array import array
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Final

import msgspec

from mcp_mirror.core.conversion import Resolved, convert
from mcp_mirror.core.resolve import EscapedPath, Pointer, check_pointer_count, find_pointers
from mcp_mirror.core.results.processing import (
    ProcessedResult,
    ProcessingOptions,
    RejectedFrame,
    bound_other_members,
    process_frame,
    read_result_members,
)
from mcp_mirror.errors import ToolError, WireError
from mcp_mirror.paths import MemoryPath
from mcp_mirror.payload.json_bounds import check_envelope, check_request, has_more_values
from mcp_mirror.payload.json_rpc import (
    MAX_MEMBERS,
    OTHER_MEMBERS,
    RESULT_MEMBERS,
    Lifted,
    lift_params,
    object_of,
    open_items,
    open_message,
)
from mcp_mirror.payload.json_spans import Miss, locate
from mcp_mirror.query.indexes import find_item, keep_indexes
from mcp_mirror.system.files import write_all
from mcp_mirror.system.mapped_files import map_file, map_sent, map_span
from mcp_mirror.system.pages import find_address
from mcp_mirror.types import Buffer, Draft, FileSpan, Location, Span
from mcp_mirror.workers.child import put_in_file

_LIST_VALUES: Final = 4_000_000
"""Limit of members and items in a page of a list."""
_LIST_ITEMS: Final = 100_000
"""Limit of items in a page of a list."""
_LIST_MEMBERS: Final = ("ttlMs", "cacheScope", "nextCursor")
_SMALL: Final = 1 << 14
_SENT_BYTES: Final = 1 << 16
"""Bytes of the largest converted text that is sent through the pipe."""


class OpenedList(msgspec.Struct, frozen=True):
    """A page of a list that is in a file."""

    bounds: "array[int]"
    """The start and stop offsets of all items, one after another."""
    members: Mapping[str, bytes]
    """The other members that MCP defines, as far as they are small."""
    cut: str | None
    """The limit that the page exceeds, if items were dropped."""
    whole: Buffer = b""
    """All bytes of the page; the worker process sends none."""


class Scanned(msgspec.Struct, frozen=True):
    """A processed result without its bytes: the `file` of each draft locates them."""

    result: ProcessedResult
    members: Mapping[str, FileSpan]


def find(arguments: FileSpan | Buffer, known: frozenset[str], most: int) -> tuple[Pointer | EscapedPath, ...]:
    """Find the pointers in arguments; ToolError if there are more than `most`."""
    found = find_pointers(map_span(arguments), known)
    check_pointer_count(found, most)
    return found


def locate_in(value: FileSpan | bytes, tokens: Location) -> Span | Miss:
    """Follow JSON Pointer tokens from a value."""
    blob = map_sent(value)
    with keep_indexes(value, blob) if isinstance(value, FileSpan) else nullcontext():
        return locate(blob, tokens, find_item=find_item)


def convert_text(value: FileSpan | bytes, wanted: frozenset[str], result_file: str) -> FileSpan | bytes | None:
    """Convert a text to the first accepted JSON type that fits; None if none fits, and ToolError for a too large text.

    A large result is written to `result_file`.
    """
    blob = map_sent(value)
    try:
        form = convert(Resolved(MemoryPath(""), blob, "text"), wanted)
        result = None if form is None else b"".join(form)
    except MemoryError:
        raise ToolError(
            f"The text is too large to be read as {' or '.join(sorted(wanted))}. Pass a part of its data."
        ) from None
    return None if result is None else put_in_file(result, result_file, _SENT_BYTES)


def lift(frame: Buffer, token: str, max_depth: int, most: int) -> Lifted | None:
    """Check a client's message, and lift the parameters out of it; None for a message that is not passed on.

    `token` marks the stub. The message may have `max_depth` levels of nesting, and `most` bytes without its parameters.

    Raises:
        WireError: The message is not a JSON-RPC message, or is over a limit.
    """
    check_request(frame)
    lifted = lift_params(open_message(frame, max_depth), token)
    check_envelope(frame if lifted is None else lifted.stub, most)
    return lifted


def lift_from(path: str, token: str, max_depth: int, most: int) -> tuple[bytes, Mapping[str, FileSpan]] | None:
    """As `lift`, for a message in a file: the stub and the file spans of the parameters."""
    files = _Files(path)
    lifted = lift(files.frame, token, max_depth, most)
    if lifted is None:
        return None
    return lifted.stub, {name: files.locate(raw) for name, raw in lifted.members.items()}


def open_members(path: str, max_depth: int) -> Mapping[str, FileSpan] | RejectedFrame:
    """Read the members of a result in a file."""
    files = _Files(path)
    members = read_result_members(files.frame, max_depth)
    return members if isinstance(members, RejectedFrame) else files.locate_members(members)


def open_list(path: str, member: str, most: int) -> OpenedList | RejectedFrame:
    """Split a page of a list that is in a file.

    Raises:
        WireError: The frame is not a JSON-RPC response with a list, or has too many values.
    """
    frame = map_file(path)
    if has_more_values(frame, _LIST_VALUES):
        raise WireError(f"The list has more than {_LIST_VALUES:,} members and items.")
    members = read_result_members(frame)
    if isinstance(members, RejectedFrame):
        return members
    start, size, bounds, cut = find_address(frame), 0, array("Q"), None
    for item in open_items(members.get(member, b"[]")):
        size += len(item)
        if size > most:
            cut = f"`limits.max_listing_bytes` ({most:,})"
            break
        if len(bounds) == 2 * _LIST_ITEMS:
            cut = f"{_LIST_ITEMS:,} items in a page"
            break
        at = find_address(item) - start
        bounds.extend((at, at + len(item)))
    small = {name: bytes(raw) for name, raw in members.items() if name in _LIST_MEMBERS and len(raw) <= _SMALL}
    return OpenedList(bounds, small, cut)


def scan(path: str, options: ProcessingOptions) -> Scanned | RejectedFrame:
    """Process a response in a file."""
    files = _Files(path)
    result = process_frame(files.frame, options, files.keep)
    if isinstance(result, RejectedFrame):
        return result
    captured = result.captured
    value, companion = files.locate_draft(captured.value), files.locate_draft(captured.companion)
    passed = tuple(bytes(block) for block in captured.passed)
    other_members = bound_other_members(captured.other_members)
    captured = msgspec.structs.replace(
        captured, value=value, companion=companion, other_members=other_members, passed=passed
    )
    members = {} if value else files.locate_members(result.members)
    return Scanned(msgspec.structs.replace(result, captured=captured, members={}), members)


class _Files:
    """The file of a frame, and the files of texts that were decoded from it."""

    def __init__(self, path: str) -> None:
        self.frame = map_file(path)
        self._path = path
        self._maps = {path: self.frame}

    def keep(self, pieces: Iterable[Buffer]) -> Buffer:
        """Write a decoded text into a new file and return its bytes, memory-mapped."""
        path = f"{self._path}.text{len(self._maps)}"
        try:
            with Path(path).open("xb", buffering=0) as file:
                for piece in pieces:
                    write_all(file.fileno(), piece)
        except BaseException:
            Path(path).unlink()
            raise
        self._maps[path] = map_file(path)
        return self._maps[path]

    def locate_draft(self, draft: Draft | None) -> Draft | None:
        """The draft with the file span of its bytes in place of the bytes."""
        return msgspec.structs.replace(draft, blob=b"", file=self.locate(draft.blob)) if draft else None

    def locate_members(self, members: Mapping[str, Buffer]) -> dict[str, FileSpan]:
        """The file spans of a result's members. Of very many, those that MCP does not define are one piece."""
        if len(members) <= MAX_MEMBERS:
            return {name: self.locate(raw) for name, raw in members.items()}
        named = {name: self.locate(raw) for name, raw in members.items() if name in RESULT_MEMBERS}
        rest = object_of({name: raw for name, raw in members.items() if name not in RESULT_MEMBERS})
        return {**named, OTHER_MEMBERS: self.locate(b"".join(rest)[1:-1])}

    def locate(self, blob: Buffer) -> FileSpan:
        """The file span of a blob: within one of the files, or in a new file if the blob was assembled."""
        for path, whole in self._maps.items():
            offset = find_address(blob) - find_address(whole)
            if 0 <= offset <= len(whole) - len(blob):
                return FileSpan(path, Span(offset, len(blob)))
        path = f"{self._path}.part{len(blob)}"
        Path(path).write_bytes(blob)
        return FileSpan(path, Span(0, len(blob)))

"""Scans large frames in worker processes, because the JSON scanner does not release the interpreter lock.

Requests and responses contain file names and offsets, not the bytes of values.
"""

import ctypes
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import msgspec

from mcp_mirror.core.resolve import EscapedPath, Pointer, check_pointer_count, find_pointers
from mcp_mirror.core.result_processing import (
    ProcessedResult,
    ProcessingOptions,
    RejectedFrame,
    process_frame,
    read_result_members,
)
from mcp_mirror.errors import ToolError, UpstreamError, WireError
from mcp_mirror.paths import has_candidates
from mcp_mirror.payload.json_rpc import (
    MAX_MEMBERS,
    OTHER_MEMBERS,
    RESULT_MEMBERS,
    has_more_values,
    join,
    object_of,
    open_array,
)
from mcp_mirror.payload.json_spans import Miss, locate, text_pieces, trim
from mcp_mirror.payload.spool import SpooledFrame, map_file
from mcp_mirror.query.indexes import find_item, keep_indexes
from mcp_mirror.settings.limits import MAX_DEPTH
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.types import Buffer, Draft, FileSpan, Location, Span
from mcp_mirror.workers.pool import PoolSize, WorkerDiedError, WorkerPool

_SIZE: Final = PoolSize(processes=2, per_principal=2)

_AT_ONCE: Final = 1 << 17
"""Bytes of arguments that are searched inline, in the event loop."""
_LOCATED: Final = 1 << 22
"""Bytes of a value that a thread searches. The search locks the interpreter for 40 ms at most."""
_LIST_VALUES: Final = 4_000_000
"""Limit of members and items in a page of a list."""
_LIST_ITEMS: Final = 100_000
"""Limit of items in a page of a list."""
_LIST_MEMBERS: Final = ("ttlMs", "cacheScope", "nextCursor")
_SMALL: Final = 1 << 14
_SENT: Final = 64 << 20
"""Bytes of arguments or of a value up to which they are sent to a worker process."""


@dataclass(frozen=True, slots=True)
class _Scan:
    path: str
    options: ProcessingOptions


@dataclass(frozen=True, slots=True)
class _Open:
    path: str
    max_depth: int


@dataclass(frozen=True, slots=True)
class _Find:
    arguments: bytes
    known: frozenset[str]
    most: int


@dataclass(frozen=True, slots=True)
class _Locate:
    value: FileSpan | bytes
    tokens: Location


@dataclass(frozen=True, slots=True)
class _OpenList:
    path: str
    member: str
    most: int
    max_depth: int


@dataclass(frozen=True, slots=True)
class OpenedList:
    """A page of a list that is in a file."""

    whole: Buffer
    """All bytes of the page."""
    bounds: "array[int]"
    """The start and stop offsets of all items, one after another."""
    members: Mapping[str, bytes]
    """The other members that MCP defines, as far as they are small."""
    cut: str | None
    """The limit that the page exceeds, if items were dropped."""


@dataclass(frozen=True, slots=True)
class _ListBounds:
    bounds: "array[int]"
    members: Mapping[str, bytes]
    cut: str | None


_Job = _Scan | _Open | _Find | _Locate | _OpenList


@dataclass(frozen=True, slots=True)
class _Scanned:
    """A processed result without its bytes: the `file` of each draft locates them."""

    result: ProcessedResult
    members: Mapping[str, FileSpan]


class FrameScanner:
    """Scans frames in worker processes, which start when they are first needed and restart after they died."""

    def __init__(self, child_watchdog: ChildWatchdog) -> None:
        self._pool = WorkerPool(child_watchdog, _SIZE)

    async def scan(self, frame: SpooledFrame, options: ProcessingOptions) -> ProcessedResult | RejectedFrame:
        """Process a response in a file. The bytes of the result are memory-mapped from the file.

        Raises:
            WireError: The frame is not a JSON-RPC response, or exceeds a limit.
            UpstreamError: The worker process died.
        """
        answer = await self._run(_Scan(str(frame.path), options))
        return answer if isinstance(answer, RejectedFrame) else _map_result(answer)

    async def open(self, frame: SpooledFrame, max_depth: int) -> Mapping[str, Buffer] | RejectedFrame:
        """The members of a result in a file, memory-mapped; members that MCP does not define are one, `OTHER_MEMBERS`.

        Raises:
            WireError: The frame is not a JSON-RPC response.
            UpstreamError: The worker process died.
        """
        answer: Mapping[str, FileSpan] | RejectedFrame = await self._run(_Open(str(frame.path), max_depth))
        return answer if isinstance(answer, RejectedFrame) else _map_spans(answer)

    async def open_list(self, frame: SpooledFrame, member: str, most: int) -> OpenedList | RejectedFrame:
        """Split a page of a list that is in a file.

        Args:
            frame: The response.
            member: The member of the result that contains the list.
            most: Bytes that all items may have.

        Raises:
            WireError: The frame is not a JSON-RPC response, or has too many values.
            UpstreamError: The worker process died.
        """
        answer = await self._run(_OpenList(str(frame.path), member, most, MAX_DEPTH))
        if isinstance(answer, RejectedFrame):
            return answer
        return OpenedList(frame.view, answer.bounds, answer.members, answer.cut)

    async def find(self, arguments: Buffer, known: frozenset[str], most: int) -> tuple[Pointer | EscapedPath, ...]:
        """Find the pointers in arguments, at most `most` (see `find_pointers`), without delaying other calls.

        Raises:
            ToolError: The arguments contain more pointers.
            UpstreamError: The worker process died.
        """
        if len(arguments) <= _AT_ONCE or not has_candidates(arguments):
            return _find(arguments, known, most)
        if len(arguments) > _SENT:
            return await anyio.to_thread.run_sync(_find, arguments, known, most)
        found: tuple[Pointer | EscapedPath, ...] = await self._run(_Find(bytes(arguments), known, most))
        return found

    async def locate(self, file: FileSpan, tokens: Location) -> Span | Miss | None:
        """Follow JSON Pointer tokens from a value in a file. The returned span is relative to that value.

        Returns None if the file no longer exists.

        Raises:
            UpstreamError: The worker process died.
        """
        found: Span | Miss | None = await self._run(_Locate(file, tokens))
        return found

    async def locate_sent(self, blob: Buffer, tokens: Location) -> Span | Miss:
        """Follow JSON Pointer tokens from a value that is not in a file. A large value is sent to a worker process.

        Raises:
            UpstreamError: The worker process died.
        """
        if not _LOCATED < len(blob) <= _SENT:
            return await anyio.to_thread.run_sync(locate, blob, tokens)
        found: Span | Miss = await self._run(_Locate(bytes(blob), tokens))
        return found

    async def aclose(self) -> None:
        """Stop the worker processes."""
        await self._pool.aclose()

    async def _run(self, job: _Job) -> Any:
        try:
            answer = await self._pool.run("", partial(_run_job, job), None)
        except WorkerDiedError:
            raise UpstreamError("The worker process that reads large results died. Try again.") from None
        if isinstance(answer, WireError | ToolError):
            raise answer
        return answer


def _map_result(scanned: _Scanned) -> ProcessedResult:
    """The processed result with its bytes memory-mapped from their files."""

    def with_bytes(draft: Draft | None) -> Draft | None:
        return replace(draft, blob=_map_spans({"": draft.file})[""]) if draft and draft.file else draft

    captured = scanned.result.captured
    captured = msgspec.structs.replace(
        captured, value=with_bytes(captured.value), companion=with_bytes(captured.companion)
    )
    return msgspec.structs.replace(scanned.result, captured=captured, members=_map_spans(scanned.members))


def _map_spans(files: Mapping[str, FileSpan]) -> dict[str, Buffer]:
    """The bytes of each file span, memory-mapped."""
    maps = {path: map_file(path) for path in {file.path for file in files.values()}}
    return {name: maps[file.path][file.span.start : file.span.stop] for name, file in files.items()}


def _find(arguments: Buffer, known: frozenset[str], most: int) -> tuple[Pointer | EscapedPath, ...]:
    found = find_pointers(arguments, known)
    check_pointer_count(found, most)
    return found


# The following runs in the worker process.


def _run_job(job: _Job) -> object:
    try:
        match job:
            case _Scan():
                result: object = _scan(job)
            case _Open():
                result = _open(job)
            case _OpenList():
                result = _open_list(job)
            case _Find():
                result = _find(job.arguments, job.known, job.most)
            case _Locate():
                result = _locate(job)
    except (WireError, ToolError) as error:
        return error
    except Exception as error:  # noqa: BLE001  # the caller needs a result for any error
        return WireError(f"The message cannot be read: {type(error).__name__}.")
    return result


def _locate(job: _Locate) -> Span | Miss | None:
    if isinstance(job.value, bytes):
        return locate(job.value, job.tokens, find_item=find_item)
    span = job.value.span
    try:
        whole = map_file(job.value.path)
    except FileNotFoundError:
        return None
    with keep_indexes(job.value):
        return locate(whole[span.start : span.stop], job.tokens, find_item=find_item)


def _open(job: _Open) -> Mapping[str, FileSpan] | RejectedFrame:
    files = _Files(job.path)
    members = read_result_members(files.frame, job.max_depth)
    return members if isinstance(members, RejectedFrame) else files.locate_members(members)


def _open_list(job: _OpenList) -> _ListBounds | RejectedFrame:
    frame = map_file(job.path)
    if has_more_values(frame, _LIST_VALUES):
        raise WireError(f"The list has more than {_LIST_VALUES:,} members and items.")
    members = read_result_members(frame, job.max_depth)
    if isinstance(members, RejectedFrame):
        return members
    start, size, bounds, cut = _find_address(frame), 0, array("Q"), None
    for item in open_array(members.get(job.member, b"[]")) or []:
        size += len(item)
        if size > job.most:
            cut = f"`limits.max_listing_bytes` ({job.most:,})"
            break
        if len(bounds) == 2 * _LIST_ITEMS:
            cut = f"{_LIST_ITEMS:,} items in a page"
            break
        at = _find_address(item) - start
        bounds.extend((at, at + len(item)))
    small = {name: bytes(raw) for name, raw in members.items() if name in _LIST_MEMBERS and len(raw) <= _SMALL}
    return _ListBounds(bounds, small, cut)


def _scan(job: _Scan) -> _Scanned | RejectedFrame:
    files = _Files(job.path)
    result = process_frame(files.frame, job.options, job.options.estimate, files.decode)
    if isinstance(result, RejectedFrame):
        return result
    captured = result.captured
    value, companion = files.locate_draft(captured.value), files.locate_draft(captured.companion)
    passed = tuple(bytes(block) for block in captured.passed)
    captured = msgspec.structs.replace(captured, value=value, companion=companion, passed=passed)
    members = {} if value else files.locate_members(result.members)
    return _Scanned(msgspec.structs.replace(result, captured=captured, members={}), members)


class _Files:
    """The file of a frame, and the files of texts that were decoded from it."""

    def __init__(self, path: str) -> None:
        self.frame = map_file(path)
        self._path = path
        self._maps = {path: self.frame}

    def decode(self, literal: Buffer) -> Buffer:
        """Decode a JSON string into a new file and return its bytes, memory-mapped."""
        path = f"{self._path}.text{len(self._maps)}"
        with Path(path).open("xb") as file:
            file.writelines(text_pieces(literal, trim(literal)))
        self._maps[path] = map_file(path)
        return self._maps[path]

    def locate_draft(self, draft: Draft | None) -> Draft | None:
        """The draft with the file span of its bytes in place of the bytes."""
        return replace(draft, blob=b"", file=self.locate(draft.blob)) if draft else None

    def locate_members(self, members: Mapping[str, Buffer]) -> dict[str, FileSpan]:
        """The file spans of a result's members. Of very many, those that MCP does not define are one piece."""
        if len(members) <= MAX_MEMBERS:
            return {name: self.locate(raw) for name, raw in members.items()}
        named = {name: self.locate(raw) for name, raw in members.items() if name in RESULT_MEMBERS}
        rest = object_of({name: raw for name, raw in members.items() if name not in RESULT_MEMBERS})
        return {**named, OTHER_MEMBERS: self.locate(join(rest)[1:-1])}

    def locate(self, blob: Buffer) -> FileSpan:
        """The file span of a blob: within one of the files, or in a new file if the blob was assembled."""
        for path, whole in self._maps.items():
            offset = _find_address(blob) - _find_address(whole)
            if 0 <= offset <= len(whole) - len(blob):
                return FileSpan(path, Span(offset, len(blob)))
        path = f"{self._path}.part{len(blob)}"
        Path(path).write_bytes(blob)
        return FileSpan(path, Span(0, len(blob)))


class _PyBuffer(ctypes.Structure):
    """CPython's `Py_buffer` (https://docs.python.org/3/c-api/buffer.html)."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


def _find_address(buffer: Buffer) -> int:
    """The memory address of a buffer's bytes. Offsets are computed from it, since the scanner returns only values."""
    view = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(buffer), ctypes.byref(view), 0)
    address = int(view.buf or 0)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))
    return address

"""Reads large frames in a process of its own: the JSON scanner holds the interpreter lock for as long as it scans.

What goes to the process and back are file names and offsets, never the bytes of a value.
"""

import ctypes
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio.to_thread

from mcp_mirror.core.resolve import EscapedPath, Pointer, check_pointer_count, find_pointers
from mcp_mirror.core.result_processing import (
    ProcessedResult,
    ProcessingOptions,
    RejectedFrame,
    process_frame,
    read_result_members,
)
from mcp_mirror.errors import ToolError, UpstreamError, WireError
from mcp_mirror.paths import find_candidate_offsets
from mcp_mirror.payload.json_rpc import (
    MOST_MEMBERS,
    REST,
    RESULT_MEMBERS,
    has_more_values,
    join,
    object_of,
    open_array,
)
from mcp_mirror.payload.json_spans import Miss, locate, text_pieces, trim
from mcp_mirror.payload.spool import SpooledFrame, map_file
from mcp_mirror.settings.limits import MAX_DEPTH
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.types import Buffer, Draft, FileSpan, Location, Span
from mcp_mirror.workers.pool import Pool, PoolSize, WorkerDiedError

_SIZE: Final = PoolSize(processes=2, per_principal=2)

_AT_ONCE: Final = 1 << 17
"""Bytes of arguments that are searched without leaving the event loop."""
_LOCATED: Final = 1 << 22
"""Bytes of a value that a thread searches: it holds the interpreter lock for 40 ms at most."""
_LIST_VALUES: Final = 4_000_000
"""Members and items in a page of a list."""
_LIST_ITEMS: Final = 100_000
"""Items of a page of a list."""
_LIST_MEMBERS: Final = ("ttlMs", "cacheScope", "nextCursor")
_SMALL: Final = 1 << 14
_SENT: Final = 64 << 20
"""Bytes of arguments that are sent to the process."""


@dataclass(frozen=True, slots=True)
class _Scan:
    path: str
    order: ProcessingOptions


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
    place: FileSpan | bytes
    """The value: in a file, or itself."""
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
    """All of its bytes."""
    bounds: "array[int]"
    """Where each item begins and ends in it, one after another."""
    members: Mapping[str, bytes]
    """The other members that MCP names, of those that are small."""
    cut: str | None
    """The bound that the page is over, where items are missing."""


@dataclass(frozen=True, slots=True)
class _Places:
    bounds: "array[int]"
    members: Mapping[str, bytes]
    cut: str | None


_Question = _Scan | _Open | _Find | _Locate | _OpenList


@dataclass(frozen=True, slots=True)
class _Scanned:
    """A digest without its bytes: drafts tell by their `file` where those are."""

    digest: ProcessedResult
    members: Mapping[str, FileSpan]


class FrameScanner:
    """Starts processes when they are first needed and keeps them; one that dies is started again."""

    def __init__(self, child_watchdog: ChildWatchdog) -> None:
        self._pool = Pool(child_watchdog, _SIZE)

    async def scan(self, frame: SpooledFrame, order: ProcessingOptions) -> ProcessedResult | RejectedFrame:
        """Read a response that is in a file; the digest's bytes are mapped from there.

        Raises:
            WireError: It is no JSON-RPC response, or past a bound.
            UpstreamError: The process died.
        """
        answer = await self._ask(_Scan(str(frame.path), order))
        return answer if isinstance(answer, RejectedFrame) else _mapped(answer)

    async def open(self, frame: SpooledFrame, max_depth: int) -> Mapping[str, Buffer] | RejectedFrame:
        """The members of the result in a file, mapped from there; those that MCP does not name as one, see `REST`.

        Raises:
            WireError: It is no JSON-RPC response.
            UpstreamError: The process died.
        """
        answer: Mapping[str, FileSpan] | RejectedFrame = await self._ask(_Open(str(frame.path), max_depth))
        return answer if isinstance(answer, RejectedFrame) else _views(answer)

    async def open_list(self, frame: SpooledFrame, member: str, most: int) -> OpenedList | RejectedFrame:
        """A page of a list that is in a file.

        Args:
            frame: The response.
            member: Of the result; it has the list.
            most: Bytes that all items may have.

        Raises:
            WireError: It is no JSON-RPC response, or has too many values.
            UpstreamError: The process died.
        """
        answer = await self._ask(_OpenList(str(frame.path), member, most, MAX_DEPTH))
        if isinstance(answer, RejectedFrame):
            return answer
        return OpenedList(frame.view, answer.bounds, answer.members, answer.cut)

    async def find(self, arguments: Buffer, known: frozenset[str], most: int) -> tuple[Pointer | EscapedPath, ...]:
        """The pointers in arguments, at most `most`; see `find_pointers`. Large arguments do not hold up other calls.

        Raises:
            ToolError: There are more.
            UpstreamError: The process died.
        """
        if len(arguments) <= _AT_ONCE or not find_candidate_offsets(arguments):
            return _found(arguments, known, most)
        if len(arguments) > _SENT:
            return await anyio.to_thread.run_sync(_found, arguments, known, most)
        found: tuple[Pointer | EscapedPath, ...] = await self._ask(_Find(bytes(arguments), known, most))
        return found

    async def locate(self, place: FileSpan, tokens: Location) -> Span | Miss | None:
        """Follow JSON Pointer tokens from a value in a file; the span found is relative to that value.

        None where the file is gone.

        Raises:
            UpstreamError: The process died.
        """
        found: Span | Miss | None = await self._ask(_Locate(place, tokens))
        return found

    async def locate_sent(self, blob: Buffer, tokens: Location) -> Span | Miss:
        """Follow JSON Pointer tokens from a value that is in no file; a large one is sent to the process.

        Raises:
            UpstreamError: The process died.
        """
        if not _LOCATED < len(blob) <= _SENT:
            return await anyio.to_thread.run_sync(locate, blob, tokens)
        found: Span | Miss = await self._ask(_Locate(bytes(blob), tokens))
        return found

    async def aclose(self) -> None:
        """End the processes."""
        await self._pool.aclose()

    async def _ask(self, question: _Question) -> Any:
        try:
            answer = await self._pool.ask("", partial(_answer, question), None)
        except WorkerDiedError:
            raise UpstreamError("The process that reads large results died. Try again.") from None
        if isinstance(answer, WireError | ToolError):
            raise answer
        return answer


def _mapped(scanned: _Scanned) -> ProcessedResult:
    """The digest with its bytes mapped from where they are."""

    def opened(draft: Draft | None) -> Draft | None:
        return replace(draft, blob=_views({"": draft.file})[""]) if draft and draft.file else draft

    captured = scanned.digest.captured
    captured = replace(captured, value=opened(captured.value), companion=opened(captured.companion))
    return replace(scanned.digest, captured=captured, members=_views(scanned.members))


def _views(places: Mapping[str, FileSpan]) -> dict[str, Buffer]:
    """The bytes at each place, mapped."""
    maps = {path: map_file(path) for path in {place.path for place in places.values()}}
    return {name: maps[place.path][place.span.start : place.span.stop] for name, place in places.items()}


def _found(arguments: Buffer, known: frozenset[str], most: int) -> tuple[Pointer | EscapedPath, ...]:
    found = find_pointers(arguments, known)
    check_pointer_count(found, most)
    return found


# What runs in the other process.


def _answer(question: _Question) -> object:
    try:
        return _answered(question)
    except (WireError, ToolError) as error:
        return error
    except Exception as error:  # noqa: BLE001  # the asker must hear of it, whatever it is
        return WireError(f"The message cannot be read: {type(error).__name__}.")


def _answered(question: _Question) -> object:
    match question:
        case _Scan():
            return _scan(question)
        case _Open():
            files = _Files(question.path)
            members = read_result_members(files.frame, question.max_depth)
            return members if isinstance(members, RejectedFrame) else files.places(members)
        case _OpenList():
            return _open_list(question)
        case _Find():
            return _found(question.arguments, question.known, question.most)
    return _locate(question)


def _locate(question: _Locate) -> Span | Miss | None:
    if isinstance(question.place, bytes):
        return locate(question.place, question.tokens)
    span = question.place.span
    try:
        whole = map_file(question.place.path)
    except FileNotFoundError:
        return None
    return locate(whole[span.start : span.stop], question.tokens)


def _open_list(question: _OpenList) -> _Places | RejectedFrame:
    frame = map_file(question.path)
    if has_more_values(frame, _LIST_VALUES):
        raise WireError(f"The list has more than {_LIST_VALUES:,} members and items.")
    members = read_result_members(frame, question.max_depth)
    if isinstance(members, RejectedFrame):
        return members
    start, size, bounds, cut = _address(frame), 0, array("Q"), None
    for item in open_array(members.get(question.member, b"[]")) or []:
        size += len(item)
        if size > question.most:
            cut = f"`limits.max_listing_bytes` ({question.most:,})"
            break
        if len(bounds) == 2 * _LIST_ITEMS:
            cut = f"{_LIST_ITEMS:,} items in a page"
            break
        at = _address(item) - start
        bounds.extend((at, at + len(item)))
    small = {name: bytes(raw) for name, raw in members.items() if name in _LIST_MEMBERS and len(raw) <= _SMALL}
    return _Places(bounds, small, cut)


def _scan(question: _Scan) -> _Scanned | RejectedFrame:
    files = _Files(question.path)
    digest = process_frame(files.frame, question.order, question.order.estimate, files.decode)
    if isinstance(digest, RejectedFrame):
        return digest
    captured = digest.captured
    value, companion = files.placed(captured.value), files.placed(captured.companion)
    passed = tuple(bytes(block) for block in captured.passed)
    captured = replace(captured, value=value, companion=companion, passed=passed)
    members = {} if value else files.places(digest.members)
    return _Scanned(replace(digest, captured=captured, members={}), members)


class _Files:
    """A frame, and beside it what was decoded from texts of it."""

    def __init__(self, path: str) -> None:
        self.frame = map_file(path)
        self._path = path
        self._maps = {path: self.frame}

    def decode(self, literal: Buffer) -> Buffer:
        """A JSON string's text, in a file of its own."""
        path = f"{self._path}.text{len(self._maps)}"
        with Path(path).open("xb") as file:
            file.writelines(text_pieces(literal, trim(literal)))
        self._maps[path] = map_file(path)
        return self._maps[path]

    def placed(self, draft: Draft | None) -> Draft | None:
        """The draft with the place of its bytes instead of them."""
        return replace(draft, blob=b"", file=self.place(draft.blob)) if draft else None

    def places(self, members: Mapping[str, Buffer]) -> dict[str, FileSpan]:
        """Where the members of a result are; of very many, those that MCP does not name are one piece."""
        if len(members) <= MOST_MEMBERS:
            return {name: self.place(raw) for name, raw in members.items()}
        named = {name: self.place(raw) for name, raw in members.items() if name in RESULT_MEMBERS}
        rest = object_of({name: raw for name, raw in members.items() if name not in RESULT_MEMBERS})
        return {**named, REST: self.place(join(rest)[1:-1])}

    def place(self, blob: Buffer) -> FileSpan:
        """Where a blob is: inside one of the files, or, if it was put together, in a new one."""
        for path, whole in self._maps.items():
            offset = _address(blob) - _address(whole)
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


def _address(buffer: Buffer) -> int:
    """Where a buffer's bytes begin in memory: the scanner tells values, not offsets."""
    view = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(buffer), ctypes.byref(view), 0)
    address = int(view.buf or 0)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))
    return address

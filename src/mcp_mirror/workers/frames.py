"""Scans large frames in worker processes, because the JSON scanner does not release the interpreter lock.

Requests and responses contain file names and offsets, not the bytes of values.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeVar

import anyio.lowlevel
import msgspec

from mcp_mirror.core.conversion import Resolved
from mcp_mirror.core.resolve import EscapedPath, Pointer
from mcp_mirror.core.results.processing import ProcessedResult, ProcessingOptions, RejectedFrame
from mcp_mirror.errors import UpstreamError, WireError
from mcp_mirror.paths import cut_for_candidates, has_candidates
from mcp_mirror.payload.json_rpc import Lifted
from mcp_mirror.payload.json_spans import Miss, locate
from mcp_mirror.payload.spool import Spool, SpooledFrame
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.system.fair_threads import run_fairly
from mcp_mirror.system.mapped_files import map_file, map_span
from mcp_mirror.system.slices import has_few_parts
from mcp_mirror.types import Buffer, Draft, FileSpan, Location, Segments, Span
from mcp_mirror.workers.frame_jobs import (
    OpenedList,
    Scanned,
    convert_text,
    find,
    lift_from,
    locate_in,
    open_list,
    open_members,
    scan,
)
from mcp_mirror.workers.pool import PoolSize, PreemptedError, StartError, TaskError, WorkerDiedError, WorkerPool
from mcp_mirror.workers.transfer import TransferFiles

Answer = TypeVar("Answer")
T = TypeVar("T")

_SIZE: Final = PoolSize(processes=3, per_principal=2, memory=2 << 30, preempts=False)
"""The results of one principal leave a process for others. A task is not stopped for another principal: the tool that
answered would have to be called again. The memory limit does not count mapped files."""
_SIZE_FOR_CLIENTS: Final = PoolSize(processes=2, per_principal=1)
"""The size of the pool for messages of clients, of which one principal leaves a process for others."""

_UPSTREAMS: Final = ""
"""In place of a principal: lists belong to upstreams, which share processes with principals as one more of them."""
_AT_ONCE: Final = 1 << 17
"""Bytes of arguments that are searched inline, in the event loop."""
_LOCATED: Final = 1 << 22
"""Bytes of a value that a thread searches. The search locks the interpreter for 40 ms at most."""


class FrameScanner:
    """Scans frames in worker processes, which start when they are first needed and restart after they died.

    Methods raise UpstreamError if the worker process died or a file cannot be mapped, and WireError for a frame that is
    not the expected JSON-RPC message or exceeds a limit. Principals share the worker processes fairly.
    """

    def __init__(self, child_watchdog: ChildWatchdog, spool: Spool) -> None:
        self._pool = WorkerPool(child_watchdog, _SIZE)
        self._pool_for_clients = WorkerPool(child_watchdog, _SIZE_FOR_CLIENTS)
        self._spool = spool

    async def scan(
        self, frame: SpooledFrame, options: ProcessingOptions, principal: str
    ) -> ProcessedResult | RejectedFrame:
        """Process a response in a file. The bytes of the result are memory-mapped from the file."""
        return await self._open(partial(scan, str(frame.path), options), _map_result, principal)

    async def lift(self, frame: SpooledFrame, token: str, limits: WirePolicy, principal: str) -> Lifted | None:
        """Lift the parameters out of a client's message in a file; None for a message that is not passed on.

        `token` marks the stub. The work may be stopped for another principal, with an UpstreamError.
        """
        job = partial(lift_from, str(frame.path), token, limits.max_depth, limits.max_envelope_bytes)
        try:
            answer = await self._run(job, principal, self._pool_for_clients)
        except PreemptedError:
            raise UpstreamError(
                "The message was not read to its end because another principal was waiting. Send a smaller message."
            ) from None
        return None if answer is None else Lifted(answer[0], _map_files(_map_spans, answer[1]))

    async def open(self, frame: SpooledFrame, max_depth: int, principal: str) -> Mapping[str, Buffer] | RejectedFrame:
        """The members of a result in a file, memory-mapped; those that MCP does not define are in `OTHER_MEMBERS`."""
        return await self._open(partial(open_members, str(frame.path), max_depth), _map_spans, principal)

    async def open_list(self, frame: SpooledFrame, member: str, most: int) -> OpenedList | RejectedFrame:
        """Split a page of a list in a file: `member` of the result, whose items may have `most` bytes together."""
        job = partial(open_list, str(frame.path), member, most)
        return await self._open(job, lambda opened: msgspec.structs.replace(opened, whole=frame.view), _UPSTREAMS)

    async def find(
        self, arguments: Buffer, known: frozenset[str], most: int, principal: str
    ) -> tuple[Pointer | EscapedPath, ...]:
        """Find the pointers in arguments without delaying other calls; ToolError if there are more than `most`."""
        if len(arguments) <= _AT_ONCE and has_few_parts(arguments):
            return find(arguments, known, most)
        if not await _has_candidates_in_slices(arguments):
            return ()
        with TransferFiles(self._spool) as files:
            return await self._run(partial(find, await files.place(arguments), known, most), principal)

    async def locate(self, blob: Buffer, file: FileSpan | None, tokens: Location, principal: str) -> Span | Miss:
        """Follow JSON Pointer tokens from a value. `file` has the same bytes, if the value is in one.

        A worker process searches a large value, and one in a file.
        """
        if file is None and len(blob) <= _LOCATED:
            return await run_fairly(principal, locate, blob, tokens)
        with TransferFiles(self._spool) as files:
            return await files.run_with(
                lambda placed: self._run(partial(locate_in, placed, tokens), principal), blob, file
            )

    async def convert(self, value: Resolved, wanted: frozenset[str], principal: str) -> Segments | None:
        """Convert a large text to a JSON type that an argument accepts; None if no form fits (`core/conversion.py`).

        The bytes of a large result are memory-mapped. A text may be too large: ToolError.
        """
        with TransferFiles(self._spool) as files:
            job = partial(convert_text, wanted=wanted, result_file=files.new_result_path())
            answer = await files.run_with(
                lambda placed: self._run(partial(job, placed), principal), value.blob, value.file
            )
            return None if answer is None else (_map_files(map_span, answer),)

    async def aclose(self) -> None:
        """Stop the worker processes."""
        await self._pool.aclose()
        await self._pool_for_clients.aclose()

    async def _open(
        self, job: Callable[[], Answer | RejectedFrame], read: Callable[[Answer], T], principal: str
    ) -> T | RejectedFrame:
        """Run a job on a response in a file, and return its answer with bytes that are memory-mapped."""
        answer = await self._run(job, principal)
        return answer if isinstance(answer, RejectedFrame) else _map_files(read, answer)

    async def _run(self, job: Callable[[], T], principal: str, pool: WorkerPool | None = None) -> T:
        try:
            return await (pool or self._pool).run(principal, job, None)
        except StartError as error:
            raise UpstreamError(f"The worker process that reads large messages cannot start: {error}.") from None
        except WorkerDiedError:
            raise UpstreamError("The worker process that reads large messages died. Try again.") from None
        except TaskError as error:
            many_values = "it has too many members and items for the memory of a process"
            reason = many_values if str(error) == MemoryError.__name__ else str(error)
            raise WireError(f"The message cannot be read: {reason}.") from None


async def _has_candidates_in_slices(arguments: Buffer) -> bool:
    """Whether arguments contain a possible memory path; other tasks run between the slices."""
    for part in cut_for_candidates(memoryview(arguments)):
        if has_candidates(part):
            return True
        await anyio.lowlevel.checkpoint()
    return False


def _map_files(read: Callable[[Answer], T], answer: Answer) -> T:
    try:
        return read(answer)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UpstreamError(f"A large message cannot be read: {reason}. Try again later.") from None


def _map_result(scanned: Scanned) -> ProcessedResult:
    """The processed result with its bytes memory-mapped from their files."""

    def with_bytes(draft: Draft | None) -> Draft | None:
        return msgspec.structs.replace(draft, blob=map_span(draft.file)) if draft and draft.file else draft

    captured = scanned.result.captured
    captured = msgspec.structs.replace(
        captured, value=with_bytes(captured.value), companion=with_bytes(captured.companion)
    )
    return msgspec.structs.replace(scanned.result, captured=captured, members=_map_spans(scanned.members))


def _map_spans(files: Mapping[str, FileSpan]) -> dict[str, Buffer]:
    """The bytes of each file span, memory-mapped."""
    maps = {path: map_file(path) for path in {file.path for file in files.values()}}
    return {name: maps[file.path][file.span.start : file.span.stop] for name, file in files.items()}

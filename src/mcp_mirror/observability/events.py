"""The log of calls: collects finished calls, and writes them to the event log of the store in the background.

Calls do not wait for the store. What is costly, such as the description of the arguments, happens in a thread when the
calls are written, every two seconds and at shutdown. A killed gateway loses the calls of the last two seconds. If the
store fails, the gateway tries again later, with a bounded number of calls.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import anyio
import anyio.to_thread
import msgspec

from mcp_mirror.core.amounts import format_count
from mcp_mirror.errors import StoreError
from mcp_mirror.observability.argument_shapes import describe_arguments, describe_size, explain_unused_paths
from mcp_mirror.settings.policies import EventsPolicy
from mcp_mirror.stores.event_log import HOUR, EventLog, SumKey, Sums
from mcp_mirror.system.limited_logs import OutageLog

_logger = logging.getLogger(__name__)

_PAUSE: Final = 2.0
"""Seconds between two writes to the store."""
_MAX_PENDING: Final = 20_000
"""Calls that wait for the next write."""
_MAX_PENDING_BYTES: Final = 16 << 20
"""Bytes of the arguments of these calls. Those of further calls are only counted."""
_MAX_UNWRITTEN_BYTES: Final = 16 << 20
"""Bytes of the entries that are kept while the store fails."""
MAX_ARGUMENTS: Final = 64 << 10
"""Bytes of arguments that are described; of larger ones the log has the size."""
_MAX_SENTENCE: Final = 600
"""Characters of the reason of a refusal."""
_MAX_INPUTS: Final = 100
"""Memory paths of one call."""
_MAX_PATH: Final = 400
"""Characters of a memory path."""
_FAILED: Final = frozenset({"error", "cancelled"})


class CallEvent(msgspec.Struct, array_like=True, frozen=True):
    """One call in the log. Later versions may add members with defaults at the end."""

    id: str
    """The correlation id, which the audit log has too."""
    at: float
    """When the call began, in seconds since the epoch."""
    milliseconds: float
    tool: str
    """The name by which the client called it; `(unknown)` if no tool has that name."""
    upstream: str
    """Empty for the gateway's own tools."""
    outcome: str
    """ok, stored, error, refused, asked (the upstream required input) or cancelled."""
    reason: str
    """The reason of a refusal, a `RefusalReason`; else empty."""
    bytes: int
    """Bytes of the reply."""
    sent: int
    """Tokens of the reply; 0 if a script made the call, because the model does not read the reply."""
    kept_out: int
    """Tokens that the result would have cost in addition if it had not been stored."""
    path: str = ""
    """The memory path of the stored result; empty if nothing was stored."""
    inputs: tuple[str, ...] = ()
    """The memory paths of the stored values that the call used, at most 100."""
    arguments: str = "{}"
    """JSON text; see `describe_arguments`."""
    why: tuple[tuple[str, str, str], ...] = ()
    """The strings of the arguments that resemble memory paths and were not used as such: location, text and reason of
    each. For a refusal one more, without location and text."""
    parent: str = ""
    """The id of the script's call that made this call; else empty."""


class FinishedCall(msgspec.Struct):
    """A call at its end, with the parts of its entry that a thread describes later."""

    namespace: str
    event: CallEvent
    """The entry, complete except for `at`, `arguments` and `why`."""
    arguments: bytes | None
    """JSON text; None if it is too large to be described."""
    argument_bytes: int
    path_slugs: frozenset[str] | None
    """The slugs by which memory paths in the arguments were searched; None if they were not searched."""
    refusal: str
    """The error message of a refusal; else empty."""
    began: float = 0.0
    """When the call began, in seconds since the epoch. The recorder sets it."""


class _Batch(msgspec.Struct):
    """The additions of one namespace to the log."""

    entries: list[bytes] = msgspec.field(default_factory=list)
    sums: dict[SumKey, Sums] = msgspec.field(default_factory=dict)

    def count(self, call: FinishedCall) -> None:
        event = call.event
        sums = Sums(
            calls=1,
            errors=int(event.outcome in _FAILED),
            refused=int(event.outcome == "refused"),
            bytes=event.bytes,
            sent=event.sent,
            kept_out=event.kept_out,
            milliseconds=round(event.milliseconds),
        )
        self._add((int(call.began) // HOUR, event.upstream, event.tool), sums)

    def extend(self, other: "_Batch") -> None:
        self.entries.extend(other.entries)
        for key, sums in other.sums.items():
            self._add(key, sums)

    def _add(self, key: SumKey, sums: Sums) -> None:
        self.sums[key] = self.sums[key].plus(sums) if key in self.sums else sums


class EventRecorder:
    """Collects finished calls and writes them to an event log."""

    def __init__(self, log: EventLog, policy: EventsPolicy, clock: Callable[[], float], pause: float = _PAUSE) -> None:
        """Start without calls.

        The clock returns seconds since the epoch. `pause` is the time between two writes to the log in seconds.
        """
        self._log = log
        self._policy = policy
        self._clock = clock
        self._pause = pause
        self._finished: deque[FinishedCall] = deque()
        self._held_bytes = 0
        self._batches: dict[str, _Batch] = {}
        """What is ready to be written, by namespace."""
        self.lost: int = 0
        """Calls that are counted in the sums but missing among the entries."""
        self._reported_lost = 0
        self._outages = OutageLog(_logger)
        self._writing = anyio.Lock()

    def add(self, call: FinishedCall) -> None:
        """Collect a call that has just ended."""
        call.began = self._clock() - call.event.milliseconds / 1000
        if len(self._finished) >= _MAX_PENDING:
            self.lost += 1
            self._find_batch(call.namespace).count(call)
            return
        if call.arguments is not None:
            self._held_bytes += len(call.arguments)
            if self._held_bytes > _MAX_PENDING_BYTES:
                call.arguments = None
        if call.arguments is None:  # the paths in them may be as large
            call.event = msgspec.structs.replace(call.event, inputs=_shorten_paths(call.event.inputs))
        self._finished.append(call)

    async def flush(self) -> bool:
        """Write the collected calls; if the store fails, keep them for the next time, and return False."""
        async with self._writing:
            finished, self._finished, self._held_bytes = self._finished, deque(), 0
            if finished:
                with anyio.CancelScope(shield=True):  # a cancellation would lose the calls
                    encoded = await anyio.to_thread.run_sync(self._encode, finished)
                for namespace, batch in encoded.items():
                    self._find_batch(namespace).extend(batch)
            for namespace in tuple(self._batches):
                batch = self._batches.pop(namespace)  # during the write, `add` may count calls in a new one
                try:
                    with anyio.CancelScope(shield=True):  # a cancelled write could count calls twice
                        await self._log.append(namespace, tuple(batch.entries), batch.sums, keep=self._policy.max_calls)
                except StoreError as error:
                    self._keep(namespace, batch, error)
                    return False
                self._report_recovery()
            return True

    async def close(self) -> None:
        """Write the collected calls at the end of the gateway, and report those that the store does not accept."""
        if await self.flush():
            return
        missing = sum(one.calls for batch in self._batches.values() for one in batch.sums.values())
        _logger.warning(
            "%s missing in the event log: its store still failed when the gateway ended.", _count_calls(missing)
        )

    async def run(self) -> None:
        """Flush every `pause` seconds, until cancelled."""
        while True:
            await anyio.sleep(self._pause)
            await self.flush()

    def _encode(self, finished: deque[FinishedCall]) -> dict[str, _Batch]:
        """Describe calls, and free each of them here: to free thousands at once would stall the event loop."""
        batches: dict[str, _Batch] = {}
        with_values = self._policy.arguments == "values"
        while finished:
            call = finished.popleft()
            batch = batches.setdefault(call.namespace, _Batch())
            batch.count(call)
            batch.entries.append(msgspec.msgpack.encode(_build_event(call, with_values=with_values)))
        return batches

    def _find_batch(self, namespace: str) -> _Batch:
        return self._batches.setdefault(namespace, _Batch())

    def _report_recovery(self) -> None:
        lost = self.lost - self._reported_lost
        rest = f" {_count_calls(lost)} counted in its sums and missing among its entries." if lost else ""
        if self._outages.recover("Calls are added to the event log again.%s", rest):
            self._reported_lost = self.lost

    def _keep(self, namespace: str, batch: _Batch, error: StoreError) -> None:
        """Keep a batch that could not be written; without its entries if too many wait."""
        self._find_batch(namespace).extend(batch)
        self._outages.fail("store", "Calls could not be added to the event log and are added later. %s", error)
        waiting = sum(len(entry) for one in self._batches.values() for entry in one.entries)
        if waiting > _MAX_UNWRITTEN_BYTES:
            for one in self._batches.values():
                self.lost += len(one.entries)
                one.entries.clear()


async def read_calls(
    log: EventLog, namespace: str, *, before: str | None = None, after: str | None = None, limit: int
) -> tuple[tuple[str, CallEvent], ...]:
    """Return the newest calls of a namespace with their cursors, newest first; see `EventLog.read`.

    Entries that cannot be decoded, such as those of another program in Redis, are left out.

    Raises:
        StoreError: The store failed.
        ValueError: A cursor is not one of this log.
    """
    found: list[tuple[str, CallEvent]] = []
    is_complete = False
    while len(found) < limit and not is_complete:
        entries = await log.read(namespace, before=before, after=after, limit=limit)
        found += await anyio.to_thread.run_sync(_decode, entries)
        is_complete, before = len(entries) < limit, entries[-1][0] if entries else before
    return tuple(found[:limit])


_decoder: Final = msgspec.msgpack.Decoder(CallEvent)


def _decode(entries: Sequence[tuple[str, bytes]]) -> list[tuple[str, CallEvent]]:
    found: list[tuple[str, CallEvent]] = []
    for cursor, entry in entries:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            found.append((cursor, _decoder.decode(entry)))
    return found


def _count_calls(number: int) -> str:
    return f"{format_count(number, 'call')} {'is' if number == 1 else 'are'}"


def _shorten_paths(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(path[:_MAX_PATH] for path in paths[:_MAX_INPUTS])


def _build_event(call: FinishedCall, *, with_values: bool) -> CallEvent:
    event, why = call.event, list[tuple[str, str, str]]()
    if call.arguments is None:
        described = describe_size(call.argument_bytes)
    else:
        described = describe_arguments(call.arguments, with_values=with_values)
        if call.path_slugs is not None:
            why += explain_unused_paths(call.arguments, call.path_slugs, event.inputs, with_values=with_values)
    if call.refusal:
        why.append(("", "", call.refusal[:_MAX_SENTENCE]))
    return msgspec.structs.replace(
        event,
        at=call.began,
        milliseconds=round(event.milliseconds, 1),
        inputs=_shorten_paths(event.inputs),
        arguments=described,
        why=tuple(why),
    )

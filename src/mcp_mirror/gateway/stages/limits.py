"""Bounds calls: by quotas, rate and concurrency limits, and the context budget (`context.window`) of a conversation."""

from calendar import monthrange
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

import anyio
import msgspec

from mcp_mirror.core.amounts import format_count
from mcp_mirror.core.budgets import estimate_wanted_tokens
from mcp_mirror.core.replies import EMPTY_ERROR, ToolResult, build_error_reply, count_result_tokens
from mcp_mirror.errors import BusyError, RefusalReason, RefusedError, StoreError, ToolError
from mcp_mirror.gateway.call import Call, Next, reply_to_error
from mcp_mirror.gateway.context_budgets import ContextBudgets, Reservation
from mcp_mirror.gateway.tool_search import choose_listing
from mcp_mirror.memory.tools.table import RETRIEVE
from mcp_mirror.observability.events import EventRecorder
from mcp_mirror.security.rate_limits import PrincipalLimiter
from mcp_mirror.settings.limits import CallQuota
from mcp_mirror.stores.event_log import DAY, EventLog
from mcp_mirror.system.slices import finish, run_by_values
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.content_filter import is_for_client

_PAUSE: Final = 2.0
"""Seconds between two reads of the counts."""
_IDLE: Final = 60.0
"""Seconds after which the count of a principal without calls is dropped, and read again at the next call."""


class _Count(msgspec.Struct):
    """The calls of one principal."""

    stored: dict[int, int] = msgspec.field(default_factory=dict)
    """Calls in the event log, by day."""
    pending: int = 0
    """Calls that have ended and may not be in the log yet."""
    running: int = 0
    used: float = 0.0
    """The time of the last call."""


class CallQuotas:
    """The stage of `limits.calls_per_day` and `limits.calls_per_month` (UTC), which refuses calls over a quota.

    It counts calls in the event log, which replicas share.
    A gateway knows its own calls at once and those of replicas every few seconds, so several replicas together may
    admit some calls more. If the store fails, the gateway continues with the counts that it has.
    """

    def __init__(self, log: EventLog, recorder: EventRecorder, clock: Callable[[], float]) -> None:
        """Start without counts; the clock returns seconds since the epoch."""
        self._log, self._recorder, self._clock = log, recorder, clock
        self._counts: dict[str, _Count] = {}
        self._refreshing = anyio.Lock()

    async def __call__(self, call: Call, call_next: Next) -> ToolResult:
        """Answer a call that is within the quota; a refusal is a tool error, which models read."""
        if not call.is_limited:
            return await call_next(call)
        try:
            await self._begin(call.namespace, call.config.call_quota_of(call.namespace))
        except ToolError as error:
            return reply_to_error(call, error)
        try:
            return await call_next(call)
        finally:
            count = self._counts[call.namespace]
            count.running -= 1
            count.pending += 1

    async def _begin(self, namespace: str, quota: CallQuota) -> None:
        """Count a call as running; raise an error if a quota is used up."""
        if namespace not in self._counts:
            stored = await self._read(namespace)
            self._counts.setdefault(namespace, _Count(stored or {}))
        count = self._counts[namespace]
        count.used = self._clock()
        error = self._find_excess(namespace, quota)
        if error and count.pending:
            await self.refresh()  # a call that ended during the last refresh is counted twice
            error = self._find_excess(namespace, quota)
        if error:
            raise error
        count.running += 1

    def _find_excess(self, namespace: str, quota: CallQuota) -> ToolError | None:
        """Return the error of a quota that is used up."""
        count, now = self._counts[namespace], self._clock()
        today, date = int(now) // DAY, datetime.fromtimestamp(now, UTC)
        recent = count.pending + count.running
        if quota.calls_per_day and count.stored.get(today, 0) + recent >= quota.calls_per_day:
            return _build_error("calls_per_day", quota.calls_per_day, "today", date + timedelta(days=1))
        if quota.calls_per_month:
            first = today - date.day + 1
            month = sum(calls for day, calls in count.stored.items() if day >= first)
            if month + recent >= quota.calls_per_month:
                next_month = date.replace(day=1) + timedelta(days=monthrange(date.year, date.month)[1])
                return _build_error("calls_per_month", quota.calls_per_month, "this month", next_month)
        return None

    async def refresh(self) -> None:
        """Write the ended calls to the log, and read the counts from it, with the calls of other gateways."""
        async with self._refreshing:
            ended = {namespace: count.pending for namespace, count in self._counts.items()}
            if not await self._recorder.flush():
                return
            for namespace, pending in ended.items():
                count = self._counts[namespace]
                if count.running == count.pending == 0 and self._clock() - count.used > _IDLE:
                    del self._counts[namespace]
                    continue
                stored = await self._read(namespace)
                if stored is not None:
                    count.stored = stored
                    count.pending -= pending

    async def run(self) -> None:
        """Refresh the counts every few seconds, until cancelled."""
        while True:
            await anyio.sleep(_PAUSE)
            if self._counts:  # without quotas there are none
                await self.refresh()

    async def _read(self, namespace: str) -> dict[int, int] | None:
        """The calls of this month by day; None if the store fails."""
        now = self._clock()
        first = now - (datetime.fromtimestamp(now, UTC).day - 1) * DAY
        try:
            return dict(await self._log.daily_calls(namespace, first))
        except StoreError:
            return None


def _build_error(key: str, most: int, period: str, restart: datetime) -> ToolError:
    calls = format_count(most, "call")
    return ToolError(
        f"The principal of this client has made the {calls} that it may make {period} with all its clients (`{key}`). "
        f"It can call again from {restart:%Y-%m-%d} 00:00 UTC. Ask the operator if it needs more.",
        RefusalReason.QUOTA,
    )


class ConcurrencyStage(msgspec.Struct, frozen=True):
    """Queues calls over `limits.calls_per_principal` and refuses calls over the queue or the rate."""

    limiter: PrincipalLimiter

    async def __call__(self, call: Call, call_next: Next) -> ToolResult:
        """Answer a call when its principal has room for one more; a refusal is a tool error, which models read."""
        if not call.is_limited:
            return await call_next(call)
        namespace = call.namespace
        has_place = call.script is not None  # that of the script: waiting for a second one could deadlock
        try:
            if has_place:
                self.limiter.count(namespace)
            else:
                await self.limiter.enter(namespace)
        except BusyError as error:
            return reply_to_error(call, error)
        try:
            return await call_next(call)
        finally:
            if not has_place:
                self.limiter.leave(namespace)


class ContextBudgetStage(msgspec.Struct, frozen=True):
    """Reserves tokens before a call and settles them after it."""

    budgets: ContextBudgets
    estimate: Callable[[Buffer], int]
    """Returns the tokens of a text."""

    async def __call__(self, call: Call, call_next: Next) -> ToolResult:
        """Answer a call within its reservation; a reply that does not fit becomes an error that fits.

        Raises:
            RefusedError: The upstream's JSON-RPC error goes to the client, and there is room for it.
        """
        if call.conversation is None:
            return await call_next(call)
        entry = call.catalog.entries.get(call.name)
        inline_budget = entry.rules.inline_budget if entry else 0
        wanted = estimate_wanted_tokens(call.config.mirror, inline_budget, is_retrieval=call.name == RETRIEVE)
        with self.budgets.reserve(
            call.namespace, call.conversation, wanted, lambda: self._count_definition_tokens(call)
        ) as held:
            if held.is_exhausted:
                full = (
                    f"This conversation's context is full: {held.left:,} tokens are left for tool results. Nothing was "
                    "called. Compact the conversation, or start a new one."
                )
                reply = reply_to_error(call, ToolError(full, RefusalReason.CONTEXT_FULL))
            else:
                try:
                    reply = await call_next(replace(call, reservation=held))
                except RefusedError as error:
                    if is_for_client(error) or _settle(call, held, self.estimate(str(error).encode())):
                        raise
                    reply = build_error_reply(str(error))
            return await self._bound(call, held, reply)

    def _count_definition_tokens(self, call: Call) -> int:
        """Return the tokens of the listed definitions, with which every conversation begins."""
        listing = finish(choose_listing(call.config.mirror, call.catalog, call.own_tools))
        return self.estimate(msgspec.json.encode(listing.adverts))

    async def _bound(self, call: Call, held: Reservation, reply: ToolResult) -> ToolResult:
        """Return the reply if it fits, else an error that fits, at worst an empty one."""
        cost = await run_by_values(
            reply.values(), count_result_tokens, reply, self.estimate, call.trace.shown, principal=call.namespace
        )
        if _settle(call, held, cost):
            return reply
        error = build_error_reply(
            f"The answer of {call.name} takes about {cost:,} tokens; {held.left:,} are left in this conversation's "
            "context. Ask for less, or compact the conversation."
        )
        if _settle(call, held, count_result_tokens(error, self.estimate)):
            return error
        _settle(call, held, 0)
        return EMPTY_ERROR


def _settle(call: Call, held: Reservation, cost: int) -> bool:
    """Count the tokens of a reply; False, without counting them, if the reply does not fit."""
    if not held.widen(cost):
        return False
    held.settle(cost)
    call.trace.sent = cost
    return True

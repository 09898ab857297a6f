"""Quotas of calls by principal, per day and per month (UTC), counted in the event log, which replicas share.

A gateway knows its own calls at once and those of replicas every few seconds, so several replicas together may admit
some calls more. If the store fails, the gateway continues with the counts that it has.
"""

from calendar import monthrange
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import anyio

from mcp_mirror.errors import RefusalReason, StoreError, ToolError
from mcp_mirror.observability.events import EventRecorder
from mcp_mirror.settings.limits import CallQuota
from mcp_mirror.stores.event_log import DAY, EventLog

_PAUSE: Final = 2.0
"""Seconds between two reads of the counts."""
_IDLE: Final = 60.0
"""Seconds after which the count of a principal without calls is dropped, and read again at the next call."""


@dataclass(slots=True)
class _Count:
    """The calls of one principal."""

    stored: dict[int, int] = field(default_factory=dict)
    """Calls in the event log, by day."""
    pending: int = 0
    """Calls that have ended and may not be in the log yet."""
    running: int = 0
    used: float = 0.0
    """The time of the last call."""


class CallQuotas:
    """Counts calls and refuses those over a quota."""

    def __init__(
        self,
        log: EventLog,
        recorder: EventRecorder,
        quota_of: Callable[[str], CallQuota],
        clock: Callable[[], float],
    ) -> None:
        """Start without counts.

        Args:
            log: The event log.
            recorder: Writes the calls of this gateway to the log.
            quota_of: Returns the quota of a namespace.
            clock: Seconds since the epoch.
        """
        self._log, self._recorder, self._quota_of, self._clock = log, recorder, quota_of, clock
        self._counts: dict[str, _Count] = {}

    async def begin(self, namespace: str) -> None:
        """Count a call as running. `end` must follow.

        Raises:
            ToolError: A quota is used up; the message says when it starts again.
        """
        quota = self._quota_of(namespace)
        if namespace not in self._counts:
            stored = await self._read(namespace)
            self._counts.setdefault(namespace, _Count(stored or {}))
        count, now = self._counts[namespace], self._clock()
        today, date = int(now) // DAY, datetime.fromtimestamp(now, UTC)
        recent = count.pending + count.running
        if quota.calls_per_day and count.stored.get(today, 0) + recent >= quota.calls_per_day:
            raise _build_error("calls_per_day", quota.calls_per_day, "today", date + timedelta(days=1))
        if quota.calls_per_month:
            first = today - date.day + 1
            month = sum(calls for day, calls in count.stored.items() if day >= first)
            if month + recent >= quota.calls_per_month:
                next_month = date.replace(day=1) + timedelta(days=monthrange(date.year, date.month)[1])
                raise _build_error("calls_per_month", quota.calls_per_month, "this month", next_month)
        count.running += 1
        count.used = now

    def end(self, namespace: str) -> None:
        """Count a running call as ended."""
        count = self._counts[namespace]
        count.running -= 1
        count.pending += 1

    async def refresh(self) -> None:
        """Write the ended calls to the log, and read the counts from it, with the calls of other gateways."""
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
    return ToolError(
        f"This client has made the {most:,} calls that it may make {period} (`limits.{key}`). It can call again from "
        f"{restart:%Y-%m-%d} 00:00 UTC. Ask the operator if it needs more.",
        RefusalReason.QUOTA,
    )

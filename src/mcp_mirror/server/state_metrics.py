"""The metrics of state that the gateway has anyway: connections, queues, sessions, the store and the event loop.

They are read when they are exported, so calls do not pay for them.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import anyio

from mcp_mirror.errors import StoreError
from mcp_mirror.gateway.services import Services
from mcp_mirror.observability.metrics import Metrics, Samples, State
from mcp_mirror.security.rate_limits import PrincipalLimiter
from mcp_mirror.server.sessions import Sessions
from mcp_mirror.stores.base import Store
from mcp_mirror.system.event_loop import MeasuredLoop
from mcp_mirror.types import StoreTotals
from mcp_mirror.upstreams.connection import ReconnectingConnection
from mcp_mirror.upstreams.registry import Upstream, UpstreamRegistry

_STATES: Final = ("starting", "ready", "down")
_STORE_TIMEOUT: Final = 2.0
"""Seconds that an export waits for the store."""
_UPSTREAM: Final = ("upstream",)


def register_states(metrics: Metrics, services: Services, limiter: PrincipalLimiter, sessions: Sessions) -> None:
    """Export the state of a gateway."""
    size, lag = _StoreSize(services.writer.store), _LoopLag()
    metrics.add_refresher(size.refresh)
    metrics.add_refresher(lag.refresh)
    metrics.add_state(
        *_upstream_states(services.upstreams),
        State("mcp_mirror_inflight_calls", "Calls in progress.", (), lambda: [((), metrics.inflight_calls)]),
        State("mcp_mirror_queued_calls", "Calls that wait for a place.", (), lambda: [((), limiter.waiting_count)]),
        State("mcp_mirror_sessions", "Open sessions of 2025-11-25 clients.", (), lambda: [((), len(list(sessions)))]),
        State(
            "mcp_mirror_audit_records",
            "Records of the audit log.",
            ("result",),
            lambda: [((name,), number) for name, number in services.audit.counts.items()],
            "counter",
        ),
        State("mcp_mirror_store_up", "1 if the store has answered.", (), size.read_up),
        State("mcp_mirror_store_values", "Values of all principals.", (), size.reader(lambda one: one.values)),
        State("mcp_mirror_store_bytes", "Bytes of all values.", (), size.reader(lambda one: one.size)),
        State(
            "mcp_mirror_store_evictions",
            "Values that this process has evicted.",
            (),
            size.reader(lambda one: one.evicted),
            "counter",
        ),
        State("mcp_mirror_event_loop_lag_seconds", "Duration of a pass of the event loop.", (), lag.read),
        State(
            "mcp_mirror_event_loop_stalls",
            "Stalls of the event loop by their least duration in seconds.",
            ("over",),
            _read_stalls,
            "counter",
        ),
    )


def _upstream_states(upstreams: UpstreamRegistry) -> Iterator[State]:
    def by_upstream(read: Callable[[Upstream], float]) -> Callable[[], Samples]:
        return lambda: [((one.policy.name,), read(one)) for one in upstreams]

    def read_status() -> Samples:
        return [((one.policy.name, state), one.status.state == state) for one in upstreams for state in _STATES]

    def read_connects() -> Samples:
        for name, connection in _first_connections(upstreams):
            counts = connection.settings.counts
            yield (name, "opened"), counts.opened
            yield (name, "failed"), counts.failed

    def read_lost() -> Samples:
        return [((name,), one.settings.counts.lost) for name, one in _first_connections(upstreams)]

    def read_queued() -> Samples:
        return [((name,), one.settings.limiter.waiting_count) for name, one in _first_connections(upstreams)]

    def read_open_circuits() -> Samples:
        return [((one.policy.name,), sum(each.is_circuit_open for each in one.connections)) for one in upstreams]

    yield State("mcp_mirror_upstream_state", "1 for the state of the upstream.", ("upstream", "state"), read_status)
    yield State(
        "mcp_mirror_upstream_connections",
        "Connections to the upstream, open or reconnecting.",
        _UPSTREAM,
        by_upstream(lambda one: len(one.connections)),
    )
    yield State(
        "mcp_mirror_upstream_inflight_requests",
        "Requests that wait for the upstream.",
        _UPSTREAM,
        by_upstream(lambda one: one.inflight_count),
    )
    yield State(
        "mcp_mirror_upstream_queued_requests", "Requests that wait for a place at the upstream.", _UPSTREAM, read_queued
    )
    yield State(
        "mcp_mirror_upstream_connects", "Attempts to connect.", ("upstream", "result"), read_connects, "counter"
    )
    yield State("mcp_mirror_upstream_disconnects", "Connections that ended.", _UPSTREAM, read_lost, "counter")
    yield State(
        "mcp_mirror_upstream_open_circuit_breakers", "Connections that fail at once.", _UPSTREAM, read_open_circuits
    )


def _first_connections(upstreams: UpstreamRegistry) -> Iterator[tuple[str, ReconnectingConnection]]:
    """Yield a connection of each upstream that has some; all of them share their settings."""
    for upstream in upstreams:
        for connection in upstream.connections[:1]:
            yield upstream.policy.name, connection


def _read_stalls() -> Samples:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, MeasuredLoop) or not loop.is_measured:
        return []
    return [((f"{bound:g}",), count) for bound, count in loop.stalls.counts.items()]


@dataclass(slots=True)
class _StoreSize:
    """The size of a store, as it answered last."""

    store: Store
    totals: StoreTotals | None = None
    """None while the store does not answer."""

    async def refresh(self) -> None:
        totals = None
        with anyio.move_on_after(_STORE_TIMEOUT):
            try:
                totals = await self.store.totals()
            except StoreError:
                totals = None
        self.totals = totals

    def read_up(self) -> Samples:
        return [((), self.totals is not None)]

    def reader(self, select: Callable[[StoreTotals], float]) -> Callable[[], Samples]:
        return lambda: [] if self.totals is None else [((), select(self.totals))]


@dataclass(slots=True)
class _LoopLag:
    """The duration of one pass of the event loop."""

    seconds: float = 0.0

    async def refresh(self) -> None:
        began = time.perf_counter()
        await anyio.lowlevel.checkpoint()
        self.seconds = time.perf_counter() - began

    def read(self) -> Samples:
        return [((), self.seconds)]

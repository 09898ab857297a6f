"""The metrics of state that the gateway has anyway: connections, queues, sessions, the store and the event loop.

They are read when they are exported, so calls do not pay for them.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import anyio
import msgspec

from mcp_mirror.errors import StoreError
from mcp_mirror.gateway.gateway import Gateway
from mcp_mirror.observability.metrics import Metrics, Samples, State
from mcp_mirror.observability.signals import ReloadStatus
from mcp_mirror.security.rate_limits import PrincipalLimiter
from mcp_mirror.server.http.probes import STORE_TIMEOUT
from mcp_mirror.server.http.rejected_requests import RejectedRequests
from mcp_mirror.server.sessions import Sessions
from mcp_mirror.stores.base import Store
from mcp_mirror.system.event_loop import find_stalls
from mcp_mirror.types import StoreTotals
from mcp_mirror.upstreams.connection_settings import ConnectionSettings
from mcp_mirror.upstreams.registry import Upstream, UpstreamRegistry

_STATES: Final = ("starting", "ready", "down")


def register_states(
    metrics: Metrics,
    gateway: Gateway,
    limiter: PrincipalLimiter,
    sessions: Sessions,
    rejected_requests: RejectedRequests,
    reloads: ReloadStatus,
) -> None:
    """Export the state of a gateway."""
    store, lag = _StoreSize(gateway.services.writer.store), _LoopLag()
    metrics.add_refresher(store.refresh)
    metrics.add_refresher(lag.refresh)
    reload = "mcp_mirror_config_last_reload"
    applied = "When the configuration in use was applied, in seconds since 1970."
    metrics.add_state(
        *_upstream_states(gateway.upstreams),
        State(f"{reload}_successful", "1 if the last reload succeeded.", lambda: reloads.is_successful),
        State(f"{reload}_success_timestamp_seconds", applied, lambda: reloads.succeeded_at),
        State("mcp_mirror_inflight_calls", "Calls in progress.", lambda: metrics.inflight_calls),
        State("mcp_mirror_queued_calls", "Calls that wait for a place.", lambda: limiter.waiting_count),
        State("mcp_mirror_sessions", "Open sessions of 2025-11-25 clients.", lambda: len(list(sessions))),
        State(
            "mcp_mirror_rejected_requests",
            "HTTP requests that the gateway rejected before they reached MCP.",
            lambda: [((reason.replace(" ", "_"),), number) for reason, number in rejected_requests.counts.items()],
            ("reason",),
            "counter",
        ),
        State(
            "mcp_mirror_audit_records",
            "Records of the audit log.",
            lambda: [((name,), number) for name, number in gateway.audit.counts.items()],
            ("result",),
            "counter",
        ),
        State("mcp_mirror_store_up", "1 if the store has answered.", lambda: store.totals is not None),
        State("mcp_mirror_store_values", "Values of all principals.", store.reader(lambda one: one.values)),
        State("mcp_mirror_store_bytes", "Bytes of all values.", store.reader(lambda one: one.size)),
        State(
            "mcp_mirror_store_evictions",
            "Values that this process has evicted.",
            store.reader(lambda one: one.evicted),
            kind="counter",
        ),
        State("mcp_mirror_event_loop_lag_seconds", "Duration of a pass of the event loop.", lambda: lag.seconds),
        State(
            "mcp_mirror_event_loop_stalls",
            "Stalls of the event loop by their least duration in seconds.",
            _read_stalls,
            ("over",),
            "counter",
        ),
    )


def _upstream_states(upstreams: UpstreamRegistry) -> Iterator[State]:
    def each(read: Callable[[Upstream], float]) -> Callable[[], Samples]:
        return lambda: [((one.policy.name,), read(one)) for one in upstreams]

    def each_shared(read: Callable[[ConnectionSettings], float], *labels: str) -> Callable[[], Samples]:
        """Read the settings that the connections of each upstream share."""
        return lambda: [
            ((one.policy.name, *labels), read(connection.settings))
            for one in upstreams
            for connection in one.connections[:1]
        ]

    def read_status() -> Samples:
        return [((one.policy.name, state), one.status.state == state) for one in upstreams for state in _STATES]

    prefix, name, result = "mcp_mirror_upstream", ("upstream",), ("upstream", "result")
    connections = each(lambda one: len(one.connections))
    inflight = each(lambda one: one.inflight_count)
    broken = each(lambda one: sum(connection.is_circuit_open for connection in one.connections))
    queued = each_shared(lambda shared: shared.limiter.waiting_count)
    opened = each_shared(lambda shared: shared.counts.opened, "opened")
    failed = each_shared(lambda shared: shared.counts.failed, "failed")
    lost = each_shared(lambda shared: shared.counts.lost)
    yield State(f"{prefix}_state", "1 for the state of the upstream.", read_status, ("upstream", "state"))
    yield State(f"{prefix}_connections", "Connections to the upstream, open or reconnecting.", connections, name)
    yield State(f"{prefix}_inflight_requests", "Requests that wait for the upstream.", inflight, name)
    yield State(f"{prefix}_open_circuit_breakers", "Connections that fail at once.", broken, name)
    yield State(f"{prefix}_queued_requests", "Requests that wait for a place at the upstream.", queued, name)
    yield State(f"{prefix}_connects", "Attempts to connect.", lambda: (*opened(), *failed()), result, "counter")
    yield State(f"{prefix}_disconnects", "Connections that ended.", lost, name, "counter")


def _read_stalls() -> Samples:
    stalls = find_stalls()
    return [((f"{bound:g}",), count) for bound, count in stalls.counts.items()] if stalls else []


class _StoreSize(msgspec.Struct):
    """The size of a store, as it answered last."""

    store: Store
    totals: StoreTotals | None = None
    """None while the store does not answer."""

    async def refresh(self) -> None:
        totals = None
        with anyio.move_on_after(STORE_TIMEOUT), suppress(StoreError):
            totals = await self.store.totals()
        self.totals = totals

    def reader(self, select: Callable[[StoreTotals], float]) -> Callable[[], float | None]:
        return lambda: None if self.totals is None else select(self.totals)


class _LoopLag(msgspec.Struct):
    """The duration of one pass of the event loop."""

    seconds: float = 0.0

    async def refresh(self) -> None:
        began = time.perf_counter()
        await anyio.lowlevel.checkpoint()
        self.seconds = time.perf_counter() - began

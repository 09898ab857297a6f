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
from mcp_mirror.gateway.services import Services
from mcp_mirror.observability.metrics import Metrics, Samples, State
from mcp_mirror.observability.reload_status import ReloadStatus
from mcp_mirror.security.rate_limits import PrincipalLimiter
from mcp_mirror.server.probes import STORE_TIMEOUT
from mcp_mirror.server.rejected_requests import RejectedRequests
from mcp_mirror.server.sessions import Sessions
from mcp_mirror.stores.base import Store
from mcp_mirror.system.event_loop import find_stalls
from mcp_mirror.types import StoreTotals
from mcp_mirror.upstreams.connection_settings import ConnectionSettings
from mcp_mirror.upstreams.registry import Upstream, UpstreamRegistry

_STATES: Final = ("starting", "ready", "down")


def register_states(
    metrics: Metrics,
    services: Services,
    limiter: PrincipalLimiter,
    sessions: Sessions,
    rejected_requests: RejectedRequests,
    reloads: ReloadStatus,
) -> None:
    """Export the state of a gateway."""
    size, lag = _StoreSize(services.writer.store), _LoopLag()
    metrics.add_refresher(size.refresh)
    metrics.add_refresher(lag.refresh)
    metrics.add_state(
        *_upstream_states(services.upstreams),
        *_reload_states(reloads),
        State("mcp_mirror_inflight_calls", "Calls in progress.", (), lambda: [((), metrics.inflight_calls)]),
        State("mcp_mirror_queued_calls", "Calls that wait for a place.", (), lambda: [((), limiter.waiting_count)]),
        State("mcp_mirror_sessions", "Open sessions of 2025-11-25 clients.", (), lambda: [((), len(list(sessions)))]),
        State(
            "mcp_mirror_rejected_requests",
            "HTTP requests that the gateway rejected before they reached MCP.",
            ("reason",),
            lambda: [((reason.replace(" ", "_"),), number) for reason, number in rejected_requests.counts.items()],
            "counter",
        ),
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


def _reload_states(reloads: ReloadStatus) -> Iterator[State]:
    name = "mcp_mirror_config_last_reload"
    yield State(f"{name}_successful", "1 if the last reload succeeded.", (), lambda: [((), reloads.is_successful)])
    applied = "When the configuration in use was applied, in seconds since 1970."
    yield State(f"{name}_success_timestamp_seconds", applied, (), lambda: [((), reloads.succeeded_at)])


def _upstream_states(upstreams: UpstreamRegistry) -> Iterator[State]:
    def of_upstreams(name: str, help_text: str, read: Callable[[Upstream], float]) -> State:
        def read_all() -> Samples:
            return [((one.policy.name,), read(one)) for one in upstreams]

        return State(f"mcp_mirror_upstream_{name}", help_text, ("upstream",), read_all)

    def read_status() -> Samples:
        return [((one.policy.name, state), one.status.state == state) for one in upstreams for state in _STATES]

    def read_connects() -> Samples:
        for name, shared in _list_settings(upstreams):
            yield (name, "opened"), shared.counts.opened
            yield (name, "failed"), shared.counts.failed

    def read_lost() -> Samples:
        return [((name,), shared.counts.lost) for name, shared in _list_settings(upstreams)]

    def read_queued() -> Samples:
        return [((name,), shared.limiter.waiting_count) for name, shared in _list_settings(upstreams)]

    yield State("mcp_mirror_upstream_state", "1 for the state of the upstream.", ("upstream", "state"), read_status)
    yield of_upstreams(
        "connections", "Connections to the upstream, open or reconnecting.", lambda one: len(one.connections)
    )
    yield of_upstreams("inflight_requests", "Requests that wait for the upstream.", lambda one: one.inflight_count)
    yield of_upstreams(
        "open_circuit_breakers",
        "Connections that fail at once.",
        lambda one: sum(each.is_circuit_open for each in one.connections),
    )
    waiting = "Requests that wait for a place at the upstream."
    yield State("mcp_mirror_upstream_queued_requests", waiting, ("upstream",), read_queued)
    labels = ("upstream", "result")
    yield State("mcp_mirror_upstream_connects", "Attempts to connect.", labels, read_connects, "counter")
    yield State("mcp_mirror_upstream_disconnects", "Connections that ended.", ("upstream",), read_lost, "counter")


def _list_settings(upstreams: UpstreamRegistry) -> Iterator[tuple[str, ConnectionSettings]]:
    """Yield the settings that the connections of each upstream share."""
    for upstream in upstreams:
        for connection in upstream.connections[:1]:
            yield upstream.policy.name, connection.settings


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

    def read_up(self) -> Samples:
        return [((), self.totals is not None)]

    def reader(self, select: Callable[[StoreTotals], float]) -> Callable[[], Samples]:
        return lambda: [] if self.totals is None else [((), select(self.totals))]


class _LoopLag(msgspec.Struct):
    """The duration of one pass of the event loop."""

    seconds: float = 0.0

    async def refresh(self) -> None:
        began = time.perf_counter()
        await anyio.lowlevel.checkpoint()
        self.seconds = time.perf_counter() - began

    def read(self) -> Samples:
        return [((), self.seconds)]

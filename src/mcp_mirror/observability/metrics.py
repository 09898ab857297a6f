"""The instruments of the gateway, in the types of `prometheus_client`. Loaded only if the configuration has metrics.

Names and attributes follow the OpenTelemetry conventions for MCP where they exist, in Prometheus spelling:
`mcp.server.operation.duration` in seconds is `mcp_server_operation_duration_seconds`. The number of time series is
bounded: tools have the names of the catalog, up to a limit, and no label contains a principal, a path or a value.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Literal

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

_METHOD: Final = "tools/call"
OTHER: Final = "(other)"
"""Replaces the names of tools over the limit."""
_OTHER_ERROR: Final = "_OTHER"
"""Replaces the codes of errors over the limit, by the conventions for `error.type`."""
_MAX_TOOLS: Final = 2_000
"""Names of tools that have time series: an upstream can list new names at any time."""
_MAX_CODES: Final = 1_000
"""Pairs of a tool and the code of a JSON-RPC error that have time series: an upstream can answer with any number."""
_SECONDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""Bucket bounds of the conventions for MCP."""
_SHORT_SECONDS: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)
_SESSION_SECONDS: Final = (1, 10, 60, 300, 1_800, 3_600, 21_600, 86_400)

Samples = Iterable[tuple[Sequence[str], float]]
"""Values of the labels, and the value of the sample."""


class State(msgspec.Struct, frozen=True):
    """A gauge or a counter that is read when it is exported, because the gateway knows its value anyway."""

    name: str
    documentation: str
    read: Callable[[], Samples | float | None]
    """Returns the samples, or the only one without labels; None if it is not known now."""
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter"] = "gauge"

    def collect(self) -> Metric:
        """Return the present samples."""
        create = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family: CounterMetricFamily | GaugeMetricFamily = create(self.name, self.documentation, labels=self.labels)
        read = self.read()
        samples = [((), read)] if isinstance(read, int | float) else read or ()
        for labels, value in samples:
            family.add_metric(labels, value)
        return family


class _CallChildren(msgspec.Struct, frozen=True):
    """The time series of one tool and one class of errors."""

    seconds: Callable[[float], None]
    bytes: Callable[[float], None]
    shown: Callable[[float], None]
    kept_out: Callable[[float], None]


class Metrics(Collector):
    """All instruments of one gateway process."""

    def __init__(self, version: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry: Final = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._states: list[State] = []
        self._refreshers: list[Callable[[], Awaitable[None]]] = []
        self._families: tuple[Metric, ...] = ()
        """The states that were read last, so that another thread can encode them."""
        self.registry.register(self)
        self._info = InfoMetricFamily("mcp_mirror_build", "Version of the gateway.", {"version": version})
        self.inflight_calls: int = 0
        self._tools: set[str] = set()
        self._codes: set[tuple[str, str]] = set()
        self._calls: dict[tuple[str, str], _CallChildren] = {}
        self._server = self._histogram(
            "mcp_server_operation_duration_seconds",
            "Duration of MCP requests that the gateway answered.",
            ("mcp_method_name", "gen_ai_tool_name", "error_type"),
        )
        self._client = self._histogram(
            "mcp_client_operation_duration_seconds",
            "Duration of MCP requests that the gateway sent to upstreams.",
            ("mcp_method_name", "gen_ai_tool_name", "upstream", "error_type"),
        )
        self._session = self._histogram(
            "mcp_server_session_duration_seconds",
            "Duration of sessions of 2025-11-25 clients.",
            ("mcp_protocol_version", "network_transport"),
            _SESSION_SECONDS,
        )
        self._store = self._histogram(
            "mcp_mirror_store_operation_duration_seconds",
            "Duration of operations of the store.",
            ("operation", "error_type"),
            _SHORT_SECONDS,
        )
        self._bytes = self._counter("mcp_mirror_result_bytes", "Bytes of results for clients.", ("gen_ai_tool_name",))
        self._tokens = self._counter(
            "mcp_mirror_result_tokens",
            "Estimated tokens of results: shown to models, or kept out because a path replaces the value.",
            ("gen_ai_tool_name", "part"),
        )
        self._refusals = self._counter("mcp_mirror_refusals", "Calls that the gateway refused.", ("reason",))

    def add_state(self, *states: State) -> None:
        """Export more states."""
        self._states.extend(states)

    def add_refresher(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """Call a function before states are read; it must end within a few seconds."""
        self._refreshers.append(refresh)

    async def refresh(self) -> None:
        """Read all states. Afterwards any thread may collect the registry."""
        for refresh in self._refreshers:
            await refresh()
        self._families = (self._info, *(state.collect() for state in self._states))

    def collect(self) -> tuple[Metric, ...]:
        """Return the states that were read last, for the registry."""
        return self._families

    def record_call(self, tool: str, error: str, seconds: float, sizes: tuple[int, int, int], refusal: str) -> None:
        """Count a call that the gateway has answered.

        `error` is the class of the error, and `refusal` the reason why the gateway refused the call; each may be empty.
        `sizes` are the bytes of the result, the tokens that the model reads, and the tokens that a path replaces.
        """
        children = self._calls.get((tool, error)) or self._create_call_children(tool, error)
        children.seconds(seconds)
        children.bytes(sizes[0])
        children.shown(sizes[1])
        children.kept_out(sizes[2])
        if refusal:
            self._refusals.labels(refusal).inc()

    def record_request(self, tool: str, upstream: str, error: str, seconds: float) -> None:
        """Count a tool call that the gateway has sent to an upstream."""
        name = self._bound_tool(tool)
        self._client.labels(_METHOD, name, upstream, self._bound_error(name, error)).observe(seconds)

    def record_store_operation(self, operation: str, seconds: float, error: str) -> None:
        """Count an operation of the store."""
        self._store.labels(operation, error).observe(seconds)

    def record_session(self, version: str, seconds: float) -> None:
        """Count a session over HTTP that has ended."""
        self._session.labels(version, "tcp").observe(seconds)

    def _create_call_children(self, tool: str, error: str) -> _CallChildren:
        name = self._bound_tool(tool)
        children = _CallChildren(
            self._server.labels(_METHOD, name, self._bound_error(name, error)).observe,
            self._bytes.labels(name).inc,
            self._tokens.labels(name, "shown").inc,
            self._tokens.labels(name, "kept_out").inc,
        )
        if len(self._calls) < 2 * _MAX_TOOLS:
            self._calls[tool, error] = children
        return children

    def _bound_tool(self, name: str) -> str:
        if name in self._tools or len(self._tools) < _MAX_TOOLS:
            self._tools.add(name)
            return name
        return OTHER

    def _bound_error(self, tool: str, error: str) -> str:
        if not error.lstrip("-").isdecimal():  # a word of the gateway
            return error
        if (tool, error) in self._codes or len(self._codes) < _MAX_CODES:
            self._codes.add((tool, error))
            return error
        return _OTHER_ERROR

    def _histogram(
        self, name: str, documentation: str, labels: Sequence[str], buckets: Sequence[float] = _SECONDS
    ) -> Histogram:
        return Histogram(name, documentation, labels, registry=self.registry, buckets=buckets)

    def _counter(self, name: str, documentation: str, labels: Sequence[str]) -> Counter:
        return Counter(name, documentation, labels, registry=self.registry)

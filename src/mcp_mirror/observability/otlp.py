"""Exports metrics, traces and logs by OpenTelemetry. Loaded only if `OTEL_*` variables ask for it: the SDK is an extra.

Metrics: The instruments are those of `server.metrics`: their registry is converted at every export, so calls pay for
them once. The conventions for MCP write names with dots. Other names keep the spelling of Prometheus without `_total`,
so a collector that passes the metrics on to Prometheus restores the names of `server.metrics`.

Logs: The SDK's own handler exports messages and tracebacks of exceptions, which may quote values. `LogExport` exports
the text that standard error gets.

Failures: The exporters log each failed export, with data that may be secret. `ExportFailures` replaces these messages.
"""

import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import anyio
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context, get_current
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import INVALID_SPAN, get_current_span, set_span_in_context
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from mcp_mirror.observability.logging import OWN_LOGGER, SafeFormatter
from mcp_mirror.observability.metrics import Metrics
from mcp_mirror.observability.signals import Signals
from mcp_mirror.observability.tracing import Tracing
from mcp_mirror.settings.policies import Config
from mcp_mirror.system.limited_logs import RepeatedLog

_logger = logging.getLogger(__name__)

_EXPORTER_LOGGER: Final = "opentelemetry.exporter"
_CUMULATIVE: Final = sdk.AggregationTemporality.CUMULATIVE
_INTERVAL: Final = 60.0
"""Seconds between two exports, by the specification of the SDK."""
_LAST_REFRESH: Final = 2.0
"""Seconds that a shutdown waits for the states."""
_DURATIONS: Final[Mapping[str, str]] = {
    "mcp_server_operation_duration_seconds": "mcp.server.operation.duration",
    "mcp_client_operation_duration_seconds": "mcp.client.operation.duration",
    "mcp_server_session_duration_seconds": "mcp.server.session.duration",
}
"""Metrics of the conventions, in seconds."""
_ATTRIBUTES: Final[Mapping[str, str]] = {
    "mcp_method_name": "mcp.method.name",
    "gen_ai_tool_name": "gen_ai.tool.name",
    "error_type": "error.type",
    "mcp_protocol_version": "mcp.protocol.version",
    "network_transport": "network.transport",
}


class MetricExport:
    """Exports metrics periodically in a thread until `close`."""

    def __init__(self, metrics: Metrics, resource: Resource, version: str, environ: Mapping[str, str]) -> None:
        self._metrics = metrics
        self._resource = resource
        self._scope = InstrumentationScope("mcp-mirror", version)
        self._interval = _read_interval(environ)
        self._began = time.time_ns()
        self._exporter = OTLPMetricExporter()
        self._due = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._export_when_due, name="otlp-metrics", daemon=True)
        self._thread.start()

    async def run(self) -> None:
        """Read states and export all metrics at every interval; when cancelled, read the states for the last export."""
        try:
            while True:
                await anyio.sleep(self._interval)
                await self._metrics.refresh()
                self._due.set()
        finally:
            with anyio.move_on_after(_LAST_REFRESH, shield=True):
                await self._metrics.refresh()

    def close(self) -> None:
        """Export the last metrics."""
        self._is_closed = True
        self._due.set()
        self._thread.join()
        self._exporter.shutdown()

    def _export_when_due(self) -> None:
        is_last = False
        while not is_last:
            self._due.wait()
            self._due.clear()
            is_last = self._is_closed
            metrics = list(_convert_metrics(self._metrics.registry.collect(), self._began, time.time_ns()))
            scopes = [sdk.ScopeMetrics(self._scope, metrics, "")]
            self._exporter.export(sdk.MetricsData([sdk.ResourceMetrics(self._resource, scopes, "")]))


def _convert_metrics(families: Iterable[Metric], began: int, now: int) -> Iterator[sdk.Metric]:
    """Yield metrics of Prometheus as metrics of OpenTelemetry, without those that have no time series yet.

    A metric without data points has no type in the protocol, so collectors report it as an error.
    `began` is the start of counting, and `now` the present time, in nanoseconds since 1970.
    """
    for family in families:
        if not family.samples:
            continue
        unit, name = ("s", _DURATIONS[family.name]) if family.name in _DURATIONS else ("", family.name)
        data: sdk.Sum | sdk.Gauge | sdk.Histogram
        if family.type == "histogram":
            points = [_convert_histogram(samples, began, now) for samples in _group_samples(family.samples)]
            data = sdk.Histogram(points, _CUMULATIVE)
        else:
            numbers = [
                sdk.NumberDataPoint(_convert_labels(sample.labels), began, now, float(sample.value))
                for sample in family.samples
            ]
            data = sdk.Sum(numbers, _CUMULATIVE, is_monotonic=True) if family.type == "counter" else sdk.Gauge(numbers)
        if family.type == "info":
            name += "_info"
        yield sdk.Metric(name, family.documentation, unit, data)


def _group_samples(samples: Iterable[Sample]) -> Iterable[Sequence[Sample]]:
    """Return the samples of each time series of a histogram."""
    series: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in samples:
        key = tuple((name, value) for name, value in sample.labels.items() if name != "le")
        series.setdefault(key, []).append(sample)
    return series.values()


def _convert_histogram(samples: Sequence[Sample], began: int, now: int) -> sdk.HistogramDataPoint:
    buckets = [sample for sample in samples if sample.name.endswith("_bucket")]
    totals = [0, *(int(sample.value) for sample in buckets)]
    [total] = [sample.value for sample in samples if sample.name.endswith("_sum")]
    return sdk.HistogramDataPoint(
        _convert_labels(buckets[0].labels),
        began,
        now,
        totals[-1],
        total,
        [after - before for before, after in pairwise(totals)],
        [float(sample.labels["le"]) for sample in buckets[:-1]],
        min=None,  # type: ignore[arg-type]  # optional in the protocol, and unknown
        max=None,  # type: ignore[arg-type]  # as above
    )


def _convert_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return labels as attributes; an empty one is absent, as `error.type` of a successful call by the conventions."""
    return {_ATTRIBUTES.get(name, name): value for name, value in labels.items() if value and name != "le"}


def _read_interval(environ: Mapping[str, str]) -> float:
    """Return the seconds between two exports."""
    try:
        seconds = float(environ.get("OTEL_METRIC_EXPORT_INTERVAL", "")) / 1000
    except ValueError:
        return _INTERVAL
    return seconds if seconds > 0 else _INTERVAL


_SEVERITIES: Final[Mapping[int, tuple[str, SeverityNumber]]] = {
    logging.DEBUG: ("DEBUG", SeverityNumber.DEBUG),
    logging.INFO: ("INFO", SeverityNumber.INFO),
    logging.WARNING: ("WARN", SeverityNumber.WARN),
    logging.ERROR: ("ERROR", SeverityNumber.ERROR),
    logging.CRITICAL: ("FATAL", SeverityNumber.FATAL),
}
_FAILED: Final = range(400, 600)
"""HTTP status codes of errors."""
_KINDS: Final[Mapping[str, str]] = {"trace_exporter": "traces", "metric_exporter": "metrics", "_log_exporter": "logs"}
"""The exported data, by a part of the exporter's module."""
_NO_SPAN: Final = set_span_in_context(INVALID_SPAN, Context())


class LogExport(logging.Handler):
    """Exports the gateway's own log records until `close`. A thread of the SDK sends them in batches."""

    def __init__(self, formatter: logging.Formatter, resource: Resource) -> None:
        """Start the export; the formatter redacts."""
        super().__init__()
        self.setFormatter(formatter)
        self._provider = LoggerProvider(resource, shutdown_on_exit=False)
        self._provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
        logging.getLogger(OWN_LOGGER).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, with the context of the current span."""
        if record.name == __name__:  # a failed export would be exported, and fail again
            return
        text, number = _SEVERITIES.get(record.levelno, (record.levelname, SeverityNumber.UNSPECIFIED))
        self._provider.get_logger(record.name).emit(
            LogRecord(
                timestamp=int(record.created * 1e9),
                # A connection that a call opens has the span of the call as its current one, also after the call.
                context=get_current() if get_current_span().is_recording() else _NO_SPAN,
                severity_text=text,
                severity_number=number,
                body=self.format(record),
            )
        )

    def close(self) -> None:
        """Export the last records."""
        logging.getLogger(OWN_LOGGER).removeHandler(self)
        self._provider.shutdown()
        super().close()


class ExportFailures(logging.Handler):
    """Logs failures of the exporters in the gateway's words, with the status or the kind of error as the cause."""

    def __init__(self) -> None:
        """Take the messages of the exporters, which no other handler gets."""
        super().__init__(logging.WARNING)
        self._log = RepeatedLog(_logger)
        exporters = logging.getLogger(_EXPORTER_LOGGER)
        exporters.handlers = [self]
        exporters.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Log a failure once in an interval."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        statuses = [f"HTTP {one}" for one in arguments if isinstance(one, int) and one in _FAILED]
        errors = [
            type(one).__name__ for one in (*arguments, *(record.exc_info or ())[1:2]) if isinstance(one, Exception)
        ]
        self._log.warning(
            "The OpenTelemetry collector does not accept %s (%s). Check the collector and the addresses in "
            "`OTEL_EXPORTER_OTLP_*`.",
            next((kind for part, kind in _KINDS.items() if part in record.name), "data"),
            next(iter((*statuses, *errors)), "no answer"),
        )


def open_exports(wanted: Collection[str], config: Config, version: str, environ: Mapping[str, str]) -> Signals:
    """Return the signals that are exported.

    `wanted` has `METRICS`, `TRACES`, `LOGS` or some of them. The log redacts the secrets of the configuration.
    """
    is_named = "OTEL_SERVICE_NAME" in environ or "service.name=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({"service.version": version} | ({} if is_named else {"service.name": "mcp-mirror"}))
    metrics = Metrics(version) if "METRICS" in wanted else None
    ExportFailures()
    return Signals(
        metrics,
        Tracing(resource, version) if "TRACES" in wanted else None,
        MetricExport(metrics, resource, version, environ) if metrics else None,
        LogExport(SafeFormatter(config), resource) if "LOGS" in wanted else None,
    )

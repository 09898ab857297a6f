"""The signals of a gateway for monitoring systems: each is None unless it is configured; and the last reload."""

import logging
import threading
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from mcp_mirror.settings.policies import Config

if TYPE_CHECKING:
    from mcp_mirror.observability.metrics import Metrics
    from mcp_mirror.observability.otlp import LogExport, MetricExport
    from mcp_mirror.observability.tracing import Tracing

_logger = logging.getLogger(__name__)

_EXPORTS: Final = ("METRICS", "TRACES", "LOGS")
_FLUSH_TIMEOUT: Final = 5.0
"""Seconds that a shutdown waits for the last exports."""


class Signals(msgspec.Struct, frozen=True):
    """Metrics, traces and logs."""

    metrics: "Metrics | None" = None
    tracing: "Tracing | None" = None
    metric_export: "MetricExport | None" = None
    log_export: "LogExport | None" = None

    async def run(self) -> None:
        """Export metrics periodically until cancelled. The store is open."""
        if self.metric_export is not None:
            await self.metric_export.run()

    def close(self) -> None:
        """Export what is left, all signals at once, and drop what has not arrived after 5 seconds."""
        exports = (self.log_export, self.metric_export, self.tracing)
        threads = [threading.Thread(target=one.close, daemon=True) for one in exports if one is not None]
        deadline = time.monotonic() + _FLUSH_TIMEOUT
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0))


NO_SIGNALS: Final = Signals()


class ReloadStatus(msgspec.Struct):
    """Whether the last reload succeeded, and when the configuration in use was applied. A start counts as a reload."""

    is_successful: bool = True
    succeeded_at: float = msgspec.field(default_factory=time.time)
    """Seconds since the epoch."""

    def note(self, *, is_successful: bool) -> None:
        """Note the outcome of a reload that has just ended."""
        self.is_successful = is_successful
        if is_successful:
            self.succeeded_at = time.time()


def open_signals(config: Config, version: str, environ: Mapping[str, str]) -> Signals:
    """Return the signals that a configuration and the `OTEL_*` variables ask for."""
    signals = _open_exports(config, version, environ)
    if config.server.metrics is None or signals.metrics is not None:
        return signals
    from mcp_mirror.observability.metrics import Metrics  # noqa: PLC0415  # only if configured

    return msgspec.structs.replace(signals, metrics=Metrics(version))


def _open_exports(config: Config, version: str, environ: Mapping[str, str]) -> Signals:
    wanted = [name for name in _EXPORTS if _is_wanted(name, environ)]
    if not wanted:
        return NO_SIGNALS
    try:
        from mcp_mirror.observability.otlp import open_exports  # noqa: PLC0415  # an extra
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        _logger.warning("The environment asks for OpenTelemetry, which needs an extra: pip install 'mcp-mirror[otel]'.")
        return NO_SIGNALS
    _warn_of_protocols(wanted, environ)
    return open_exports(wanted, config, version, environ)


def _is_wanted(name: str, environ: Mapping[str, str]) -> bool:
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if not any(environ.get(one) for one in ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{name}_ENDPOINT")):
        return False
    exporters = {one.strip() for one in (environ.get(f"OTEL_{name}_EXPORTER") or "otlp").split(",")}
    if exporters - {"otlp", "none"}:
        _logger.warning(
            "The environment variable `OTEL_%s_EXPORTER` names an exporter that the gateway does not have. Set it to "
            "`otlp` or `none`.",
            name,
        )
    return "otlp" in exporters


def _warn_of_protocols(wanted: Collection[str], environ: Mapping[str, str]) -> None:
    """Warn once if the environment asks for another protocol than the exporters have."""
    variables = ("OTEL_EXPORTER_OTLP_PROTOCOL", *(f"OTEL_EXPORTER_OTLP_{name}_PROTOCOL" for name in wanted))
    for variable in variables:
        if environ.get(variable, "") not in ("", "http/protobuf"):
            _logger.warning(
                "The environment variable `%s` has no effect: the gateway exports OTLP only over HTTP with protobuf. "
                "Set it to `http/protobuf`, and the endpoint to the collector's port for HTTP, usually 4318.",
                variable,
            )
            return

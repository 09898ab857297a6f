"""Opens the exports by OpenTelemetry. Loaded only if `OTEL_*` variables ask for one: the SDK is an extra."""

from collections.abc import Collection, Mapping

from opentelemetry.sdk.resources import Resource

from mcp_mirror.observability.log_export import LogExport
from mcp_mirror.observability.logging import create_message_formatter
from mcp_mirror.observability.metric_export import MetricExport
from mcp_mirror.observability.metrics import Metrics
from mcp_mirror.observability.signals import Signals
from mcp_mirror.observability.tracing import Tracing
from mcp_mirror.settings.policies import Config


def open_exports(wanted: Collection[str], config: Config, version: str, environ: Mapping[str, str]) -> Signals:
    """Return the signals that are exported.

    Args:
        wanted: `METRICS`, `TRACES`, `LOGS` or some of them.
        config: The configuration with the secrets that the log redacts.
        version: The version of the gateway.
        environ: The environment.
    """
    resource = _build_resource(version, environ)
    metrics = Metrics(version) if "METRICS" in wanted else None
    return Signals(
        metrics,
        Tracing(resource, version) if "TRACES" in wanted else None,
        MetricExport(metrics, resource, version, environ) if metrics else None,
        LogExport(create_message_formatter(config), resource) if "LOGS" in wanted else None,
    )


def _build_resource(version: str, environ: Mapping[str, str]) -> Resource:
    is_named = "OTEL_SERVICE_NAME" in environ or "service.name=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return Resource.create({"service.version": version} | ({} if is_named else {"service.name": "mcp-mirror"}))

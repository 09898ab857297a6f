"""Traces by OpenTelemetry, with the extra `otel`. Configured only by the standard `OTEL_*` variables.

Spans contain names, sizes and hashes, but no value, argument or complete memory path.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_FIELDS: Final = ("traceparent", "tracestate")
_METHOD: Final = "tools/call"


class Tracing:
    """Creates spans and exports them until `close`."""

    def __init__(self, resource: Resource, version: str) -> None:
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("mcp-mirror", version)
        self._propagator = TraceContextTextMapPropagator()

    def start_server_span(self, tool: str, meta: Mapping[str, Any]) -> Span:
        """Return the span of a client's call, a child of the span that its `_meta` names."""
        parent = self._propagator.extract({key: meta[key] for key in _FIELDS if isinstance(meta.get(key), str)})
        return self._start(tool, parent, SpanKind.SERVER)

    def start_child_span(self, tool: str, parent: Span | None, *, is_client: bool) -> Span:
        """Return the span of a call of an upstream (`is_client`), or of a call that a script makes."""
        context = trace.set_span_in_context(parent) if parent is not None else None
        return self._start(tool, context, SpanKind.CLIENT if is_client else SpanKind.INTERNAL)

    def use(self, span: Span) -> AbstractContextManager[Span]:
        """Make a span the current one during the context, for the log."""
        return trace.use_span(span, record_exception=False, set_status_on_exception=False)

    def inject(self, meta: Mapping[str, Any], span: Span) -> Mapping[str, Any]:
        """Return the `_meta` of a request with the context of a span."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, trace.set_span_in_context(span))
        return {**{key: value for key, value in meta.items() if key not in _FIELDS}, **carrier}

    def format_context(self, span: Span) -> str:
        """Return the context of a span as a `traceparent`, to store it with a value."""
        return str(self.inject({}, span).get("traceparent", ""))

    def link(self, span: Span, traceparent: str) -> None:
        """Link a span to the call that produced one of its input values."""
        context = trace.get_current_span(self._propagator.extract({"traceparent": traceparent})).get_span_context()
        if context.is_valid:
            span.add_link(context)

    def end(self, span: Span, error: str) -> None:
        """End a span, with the class of its error; empty for none."""
        if error:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def close(self) -> None:
        """Export the last spans."""
        self._provider.shutdown()

    def _start(self, tool: str, context: Any, kind: SpanKind) -> Span:
        attributes = {"mcp.method.name": _METHOD, "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool}
        return self._tracer.start_span(f"{_METHOD} {tool}", context, kind, attributes)

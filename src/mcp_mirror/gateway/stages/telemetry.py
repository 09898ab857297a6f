"""Measures and traces calls, and the requests that they send to upstreams (`server.metrics`, OpenTelemetry)."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from mcp_mirror.callers import ClientChannel
from mcp_mirror.core.catalog import CatalogEntry
from mcp_mirror.core.replies import Reply, count_reply_bytes
from mcp_mirror.errors import RefusedError, UpstreamError
from mcp_mirror.gateway.call import Call, Next, name_tool
from mcp_mirror.security.sanitize import PathHasher
from mcp_mirror.upstreams.elicitation import InputRequired
from mcp_mirror.upstreams.session import ConnectionLostError, SessionLostError, UpstreamRequest
from mcp_mirror.upstreams.transports.requests import RawResponse

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from mcp_mirror.observability.metrics import Metrics
    from mcp_mirror.observability.tracing import Tracing

TOOL_ERROR: Final = "tool_error"
"""The class of errors in results, by the conventions for MCP."""
_CANCELLED: Final = "cancelled"

Response = RawResponse | InputRequired
SendRequest = Callable[[UpstreamRequest], Awaitable[Response]]
"""Sends a request to the upstream."""
RequestObserver = Callable[[Call, CatalogEntry, UpstreamRequest, SendRequest], Awaitable[Response]]
"""Sends the request of a call to an upstream, which it may measure or change."""


@dataclass(frozen=True, slots=True)
class CallMetricsStage:
    """Measures calls."""

    metrics: "Metrics"

    async def __call__(self, call: Call, call_next: Next) -> Reply:
        """Answer a call and measure it."""
        metrics, began, error = self.metrics, time.perf_counter(), _CANCELLED
        reply: Reply = {}
        metrics.inflight_calls += 1
        try:
            reply = await call_next(call)
            error = classify_reply(call, reply)
        except Exception as failure:
            error = classify_error(failure)
            raise
        finally:
            metrics.inflight_calls -= 1
            trace = call.trace
            metrics.record_call(
                name_tool(call),
                error,
                time.perf_counter() - began,
                (count_reply_bytes(reply), trace.sent or 0, trace.kept_out),
                (trace.reason or "").replace(" ", "_"),
            )
        return reply


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """A `RequestObserver` that measures requests to upstreams."""

    metrics: "Metrics"

    async def __call__(self, _call: Call, entry: CatalogEntry, request: UpstreamRequest, send: SendRequest) -> Response:
        """Send a request and measure it."""
        began, error = time.perf_counter(), _CANCELLED
        try:
            response = await send(request)
            error = classify_response(response)
        except Exception as failure:
            error = classify_error(failure)
            raise
        finally:
            self.metrics.record_request(entry.tool, entry.upstream, error, time.perf_counter() - began)
        return response


def classify_reply(call: Call, reply: Reply) -> str:
    """Return the class of the error that a reply contains; empty for none."""
    if call.trace.reason is not None:
        return call.trace.reason.replace(" ", "_")
    return TOOL_ERROR if reply.get("isError", b"false") != b"false" else ""


def classify_response(response: Response) -> str:
    """Return the class of the error in an upstream's response; empty for none, and for one in a spool file."""
    return TOOL_ERROR if isinstance(response, Mapping) and response.get("isError") == b"true" else ""


def classify_error(error: Exception) -> str:
    """Return the class of an exception: the code of a JSON-RPC error, or a word."""
    if isinstance(error, RefusedError):
        return str(error.code)
    if isinstance(error, ConnectionLostError | SessionLostError):
        return "connection_lost"
    return "upstream_error" if isinstance(error, UpstreamError) else "_OTHER"


@dataclass(frozen=True, slots=True)
class TracingStage:
    """Records the span of a call of a client or a script, with links to the calls that produced its input values."""

    tracing: "Tracing"
    end_span: Callable[..., None]
    path_hasher: PathHasher
    describe_client: Callable[[ClientChannel], Mapping[str, str]]
    """Returns the attributes of the client's protocol version and transport."""

    async def __call__(self, call: Call, call_next: Next) -> Reply:
        """Answer a call and record its span."""
        span, error, call_trace = self._start_span(call), _CANCELLED, call.trace
        call_trace.span, call_trace.traceparent = span, self.tracing.format_context(span)
        try:
            with self.tracing.use(span):
                reply = await call_next(call)
            error = classify_reply(call, reply)
            span.set_attribute("mcp_mirror.result.bytes", count_reply_bytes(reply))
        except Exception as failure:
            error = classify_error(failure)
            raise
        finally:
            for producer in call_trace.producers:
                self.tracing.link(span, producer)
            if call.script is None:
                span.set_attributes(self.describe_client(call.channel))
            span.set_attribute("mcp_mirror.call.id", call.id)
            span.set_attribute("mcp_mirror.tokens.shown", call_trace.sent or 0)
            span.set_attribute("mcp_mirror.tokens.kept_out", call_trace.kept_out)
            if call_trace.path:
                span.set_attribute("mcp_mirror.path.hash", self.path_hasher.hash_path(call_trace.path))
            self.end_span(span, error)
        return reply

    def _start_span(self, call: Call) -> "Span":
        if call.script is None:
            return self.tracing.start_server_span(name_tool(call), call.meta)
        return self.tracing.start_script_span(name_tool(call), call.script.span)


@dataclass(frozen=True, slots=True)
class RequestTracing:
    """A `RequestObserver` that records the span of a request, and sends its context to the upstream."""

    tracing: "Tracing"
    end_span: Callable[..., None]
    following: RequestObserver | None = field(default=None)

    async def __call__(self, call: Call, entry: CatalogEntry, request: UpstreamRequest, send: SendRequest) -> Response:
        """Send a request and record its span."""
        span, error = self.tracing.start_client_span(entry.tool, call.trace.span), _CANCELLED
        span.set_attribute("mcp_mirror.upstream", entry.upstream)
        request = msgspec.structs.replace(request, meta=self.tracing.inject(request.meta, span))
        try:
            if self.following is None:
                response = await send(request)
            else:
                response = await self.following(call, entry, request, send)
            error = classify_response(response)
        except Exception as failure:
            error = classify_error(failure)
            raise
        finally:
            self.end_span(span, error)
        return response

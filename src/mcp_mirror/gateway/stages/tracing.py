"""Records a span for each call and for its request to the upstream, for OpenTelemetry."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from mcp_mirror.callers import ClientChannel
from mcp_mirror.core.catalog import CatalogEntry
from mcp_mirror.core.replies import Reply, count_reply_bytes
from mcp_mirror.gateway.call import Call, Next
from mcp_mirror.gateway.call_record import name_tool
from mcp_mirror.gateway.stages.call_metrics import (
    RequestObserver,
    Response,
    SendRequest,
    classify_error,
    classify_reply,
    classify_response,
)
from mcp_mirror.security.path_hash import PathHasher
from mcp_mirror.upstreams.session import UpstreamRequest

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from mcp_mirror.observability.tracing import Tracing

_CANCELLED = "cancelled"


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

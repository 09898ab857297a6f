"""Measures and traces calls, and the requests that they send to upstreams (`server.metrics`, OpenTelemetry)."""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final

import msgspec

from mcp_mirror.callers import ClientChannel
from mcp_mirror.core.catalog import CatalogEntry
from mcp_mirror.core.replies import ToolResult, count_reply_bytes
from mcp_mirror.errors import RefusedError, UpstreamError
from mcp_mirror.gateway.call import CANCELLED, Call, CallEnd, Next, answer_and_report, name_tool
from mcp_mirror.observability.signals import Signals
from mcp_mirror.security.sanitize import PathHasher
from mcp_mirror.upstreams.elicitation import InputRequired
from mcp_mirror.upstreams.registry import Upstream
from mcp_mirror.upstreams.request_failures import (
    ConnectionLostError,
    RejectedRequestError,
    SessionLostError,
    UpstreamTimeoutError,
)
from mcp_mirror.upstreams.transports.requests import RawResponse
from mcp_mirror.upstreams.upstream_request import UpstreamRequest

if TYPE_CHECKING:
    from mcp_mirror.observability.metrics import Metrics
    from mcp_mirror.observability.tracing import Tracing

_TOOL_ERROR: Final = "tool_error"
"""The class of errors in results, by the conventions for MCP."""
_ERROR_CLASSES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (ConnectionLostError, "connection_lost"),
    (SessionLostError, "connection_lost"),
    (UpstreamTimeoutError, "timeout"),
    (RejectedRequestError, "rejected"),
    (UpstreamError, "upstream_error"),
)


class TelemetryStage(msgspec.Struct, frozen=True):
    """Measures and traces calls.

    The span of a call has links to the calls that produced its input values.
    """

    metrics: "Metrics | None"
    tracing: "Tracing | None"
    path_hasher: PathHasher
    describe_client: Callable[[ClientChannel], Mapping[str, str]]
    """Returns the attributes of the client's protocol version and transport."""

    async def __call__(self, call: Call, call_next: Next) -> ToolResult:
        """Answer a call, measure it and record its span."""
        with self._open_span(call):
            if self.metrics is not None:
                self.metrics.inflight_calls += 1
            return await answer_and_report(call, call_next, time.perf_counter, self._report)

    def _open_span(self, call: Call) -> AbstractContextManager[object]:
        if self.tracing is None:
            return nullcontext()
        if call.script is None:
            span = self.tracing.start_server_span(name_tool(call), call.meta)
        else:
            span = self.tracing.start_child_span(name_tool(call), call.script.span, is_client=False)
        call.trace.span, call.trace.traceparent = span, self.tracing.format_context(span)
        return self.tracing.use(span)

    def _report(self, call: Call, end: CallEnd) -> None:
        if self.metrics is not None:
            self._measure(self.metrics, call, end)
        if self.tracing is not None:
            self._end_span(self.tracing, call, end)

    def _measure(self, metrics: "Metrics", call: Call, end: CallEnd) -> None:
        trace = call.trace
        metrics.inflight_calls -= 1
        metrics.record_call(
            name_tool(call),
            _classify_end(call, end),
            end.milliseconds / 1000,
            (count_reply_bytes(end.reply), trace.sent or 0, trace.kept_out),
            (trace.reason or "").replace(" ", "_"),
        )

    def _end_span(self, tracing: "Tracing", call: Call, end: CallEnd) -> None:
        trace = call.trace
        for producer in dict.fromkeys(filter(None, trace.inputs.values())):
            tracing.link(trace.span, producer)
        if call.script is None:
            trace.span.set_attributes(self.describe_client(call.channel))
        if end.reply:
            trace.span.set_attribute("mcp_mirror.result.bytes", count_reply_bytes(end.reply))
        trace.span.set_attribute("mcp_mirror.call.id", call.id)
        trace.span.set_attribute("mcp_mirror.tokens.shown", trace.sent or 0)
        trace.span.set_attribute("mcp_mirror.tokens.kept_out", trace.kept_out)
        if trace.path:
            trace.span.set_attribute("mcp_mirror.path.hash", self.path_hasher.hash_path(trace.path))
        tracing.end(trace.span, _classify_end(call, end))


async def send_request(
    signals: Signals,
    call: Call,
    entry: CatalogEntry,
    request: UpstreamRequest,
    upstream: Upstream,
    channel: ClientChannel,
) -> RawResponse | InputRequired:
    """Send a call's request to its upstream, with the context of its span if calls are traced.

    Its duration and the class of its error are reported also if it fails or is cancelled.
    """
    span = None
    if signals.tracing is not None:
        span = signals.tracing.start_child_span(entry.tool, call.trace.span, is_client=True)
        span.set_attribute("mcp_mirror.upstream", entry.upstream)
        request = msgspec.structs.replace(request, meta=signals.tracing.inject(request.meta, span))
    began, error = time.perf_counter(), CANCELLED
    try:
        response = await upstream.request(request, channel, call.input_round)
        is_error = isinstance(response, Mapping) and response.get("isError") == b"true"
        error = _TOOL_ERROR if is_error else ""
    except Exception as failure:
        error = _classify_error(failure)
        raise
    finally:
        if signals.metrics is not None:
            signals.metrics.record_request(entry.tool, entry.upstream, error, time.perf_counter() - began)
        if signals.tracing is not None and span is not None:
            signals.tracing.end(span, error)
    return response


def _classify_end(call: Call, end: CallEnd) -> str:
    """Return the class of the error with which a call ended; empty for none."""
    if end.error is not None:
        return _classify_error(end.error)
    if end.outcome == CANCELLED:
        return CANCELLED
    if call.trace.reason is not None:
        return call.trace.reason.replace(" ", "_")
    return _TOOL_ERROR if end.reply.get("isError", b"false") != b"false" else ""


def _classify_error(error: Exception) -> str:
    """Return the class of an exception: the code of a JSON-RPC error, or a word."""
    if isinstance(error, RefusedError):
        return str(error.code)
    return next((name for kind, name in _ERROR_CLASSES if isinstance(error, kind)), "_OTHER")

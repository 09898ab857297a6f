"""The errors of requests to upstreams: what went wrong, and what the caller can do."""

from typing import Any

import mcp_types as types
import msgspec
from mcp import MCPError

from mcp_mirror.errors import RefusedError, UpstreamError
from mcp_mirror.upstreams.connection_settings import ConnectionSettings
from mcp_mirror.upstreams.content_filter import build_hidden_refusal, refusal_log_line
from mcp_mirror.upstreams.rebuilt_messages import rebuild_code, rebuild_data
from mcp_mirror.upstreams.transports.network_errors import (
    CUT_STREAM,
    LOST_SESSION,
    FailureKind,
    omit_media_type,
    omit_scopes,
    read_failure,
)
from mcp_mirror.upstreams.transports.payloads import PayloadBypass
from mcp_mirror.upstreams.transports.requests import (
    MisdirectedResponseError,
    PausableTimeout,
    PendingRequest,
    RequestTimeoutError,
    UnknownSessionError,
)
from mcp_mirror.upstreams.upstream_request import UpstreamRequest


class ConnectionLostError(UpstreamError):
    """The connection ended before the response: the server may or may not have executed the request."""


class SessionLostError(UpstreamError):
    """The server did not get the request or does not know the session: the request may be sent in a new session."""


class UpstreamTimeoutError(UpstreamError):
    """The server did not answer within the timeout of the request."""


class RejectedRequestError(UpstreamError):
    """An HTTP server, or a proxy before it, answered without MCP, or a person has to sign in to the server."""


class FailedRequest(msgspec.Struct, frozen=True):
    """A request without a result, and what is known of its end."""

    settings: ConnectionSettings
    request: UpstreamRequest
    pending: PendingRequest
    timeout: PausableTimeout
    bypass: PayloadBypass
    """That of the connection."""
    is_content_hidden: bool
    """The error must not contain text of the server."""

    @property
    def is_stuck(self) -> bool:
        """Whether the server, of a request whose timeout is over, cannot be used any more."""
        if self.timeout.reason:
            return False
        return not self.pending.is_sent or self.bypass.is_blocked() or self.bypass.has_hung(self.pending.id)

    def explain(self, error: Exception) -> UpstreamError:
        """Return the error for the caller, whatever the cause."""
        name, what = self.settings.policy.name, self.request.what
        upstream = f"Upstream {name!r}"
        match error:
            case UpstreamError():
                return error
            case RequestTimeoutError():
                kind = UpstreamError if self.timeout.reason else UpstreamTimeoutError
                is_read = self.is_stuck and self.pending.is_sent  # the server may have executed it before
                advice = f" {what} has no answer; {self.request.after_loss}." if is_read else ""
                return kind(f"{upstream} {self.explain_timeout()}{advice}")
            case UnknownSessionError():
                return SessionLostError(f"{upstream} did not know the gateway's session during {what}; {LOST_SESSION}.")
            case MisdirectedResponseError():
                return UpstreamError(f"{upstream} answered {what} under another request's id.")
            case MCPError():
                failure = self._explain_response(error)
                is_unsent = isinstance(failure, ConnectionLostError) and not self.pending.is_sent
                return SessionLostError(str(failure)) if is_unsent else failure
        return UpstreamError(f"{upstream} failed during {what} ({type(error).__name__}); {self.request.after_loss}.")

    def explain_timeout(self) -> str:
        """Return what the server did instead of an answer."""
        if self.timeout.reason:
            return self.timeout.reason
        if not self.pending.is_sent:
            return "does not read its input, so the gateway restarts it."
        if self.bypass.is_blocked():
            return "sends a message over `limits.max_message_bytes` that does not end, so the gateway restarts it."
        if self.bypass.has_hung(self.pending.id):
            return "has answered nothing for a long time, not even a ping, so the gateway restarts it."
        request = self.request
        return f"did not answer {request.what} within {self.timeout.seconds:g} s (`timeout`); {request.after_loss}."

    def _explain_response(self, error: MCPError) -> UpstreamError:
        """Return the error of a request that the server, the SDK or the transport answered with a JSON-RPC error."""
        name, what = self.settings.policy.name, self.request.what
        upstream = f"Upstream {name!r}"
        kind, reason = read_failure(error)
        match kind:
            case None | FailureKind.CUT:
                return self._explain_error(error, kind)
            case FailureKind.LOST:
                return ConnectionLostError(f"{upstream} did not answer {what}. {reason}")
            case FailureKind.ANSWERED:
                shown = omit_media_type(reason) if self.is_content_hidden else reason
                return RejectedRequestError(f"{upstream} failed during {what}: {shown}")
            case FailureKind.NO_TOKEN | FailureKind.NO_SIGN_IN:
                shown = omit_scopes(reason) if self.is_content_hidden else reason
                message = f"{upstream} requires authorization for {what}. {shown}"
                unauthorized: UpstreamError = RejectedRequestError(message)
                if kind is FailureKind.NO_TOKEN:  # the log has the reason already
                    unauthorized = UpstreamError(f"{message} Try again in a moment.")
                return unauthorized.with_log_message(omit_scopes(str(unauthorized)))
        if self.is_content_hidden:
            return build_hidden_refusal(name, what, types.INTERNAL_ERROR, None)
        problem = f"{upstream} sent an invalid answer"
        if kind is FailureKind.DISCARDED:
            problem = f"The gateway could not keep an answer of upstream {name!r}"
        unread = RefusedError(f"{problem} to {what}. {reason}", types.INTERNAL_ERROR)
        return unread.with_log_message(f"{problem}. {reason}")

    def _explain_error(self, error: MCPError, kind: FailureKind | None) -> UpstreamError:
        """Return the error of a request that ended with an error of the server, or with the connection."""
        name, what, advice = self.settings.policy.name, self.request.what, self.request.after_loss
        if kind is FailureKind.CUT:
            advice += CUT_STREAM
        elif not is_closed(error):
            code, message, data = error.error.code, error.error.message, error.error.data
            return build_refusal(self.settings, what, code, message, data, is_content_hidden=self.is_content_hidden)
        if reason := self.bypass.end_reason.removeprefix("It "):
            return ConnectionLostError(f"Upstream {name!r} {reason} {what} has no answer; {advice}.")
        return ConnectionLostError(f"Upstream {name!r} closed the connection during {what}; {advice}.")


def build_refusal(
    settings: ConnectionSettings, what: str, code: int, message: str, data: Any = None, *, is_content_hidden: bool
) -> RefusedError:
    """Return a JSON-RPC error of an upstream as an exception: with its message, without secrets, or without its text.

    `what` names the request; see `UpstreamRequest.what`.
    """
    name = settings.policy.name
    if is_content_hidden or not settings.policy.preview:
        return build_hidden_refusal(name, what, code, data)
    code, data = rebuild_code(code), rebuild_data(code, data, is_content_hidden=False)
    quoted = settings.redactor.quote(message)
    text = f"Upstream {name!r} refused {what}: {quoted.rstrip().rstrip('.')} (error {code})."
    refusal = RefusedError(text, code, quoted, settings.redactor.clean_tree(data))
    return refusal.with_log_message(refusal_log_line(name, code))


def is_closed(error: BaseException) -> bool:
    """Whether the SDK reports that the connection ended; servers use the same code for errors of their own."""
    return isinstance(error, MCPError) and error.args[:2] == (types.CONNECTION_CLOSED, "Connection closed")

"""Direct requests over Streamable HTTP; see `direct_path`.

A 2025-11-25 client that disconnects does not cancel its request; a 2026-07-28 client does.
"""

from functools import lru_cache
from typing import Final

import anyio
import mcp_types as types
from mcp.server.streamable_http import REQUEST_CANCELLED, check_accept_headers
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.inbound import decode_header_value
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.types import Scope, Send

from mcp_mirror.callers import Caller
from mcp_mirror.errors import WireError
from mcp_mirror.payload.json_rpc import check_request
from mcp_mirror.server.auth.principals import read_scopes
from mcp_mirror.server.client_channel import Session
from mcp_mirror.server.connections import watch_disconnect
from mcp_mirror.server.direct_path import TOOL_CALL, DirectPath, DirectRequest, Origin
from mcp_mirror.server.response_stream import ClientRequests, ResponseStream
from mcp_mirror.server.sessions import HttpRequest, Sessions
from mcp_mirror.types import Buffer, Segments

_SESSION_HEADER: Final = "mcp-session-id"
_JSON: Final = "application/json"
_ACCEPTED: Final = 202
_CANCELLED: Final = "notifications/cancelled"
_REQUEST_CANCELLED: Final = types.ErrorData(code=REQUEST_CANCELLED, message="Request cancelled")


class DirectHttp:
    """Answers direct requests over HTTP."""

    def __init__(self, direct_path: DirectPath, sessions: Sessions, path: str) -> None:
        """Create the direct path of an HTTP server.

        Args:
            direct_path: Answers the requests.
            sessions: The sessions of 2025-11-25 clients.
            path: The path of the MCP endpoint.
        """
        self._direct_path = direct_path
        self.sessions = sessions
        self._path = path
        self._client_requests = ClientRequests()

    def has_endpoint(self, request: HttpRequest) -> bool:
        """Whether the endpoint of a request exists for its sender, and the session was created there."""
        upstream = request.upstream
        if upstream:
            sender = Caller(request.namespace, scopes=read_scopes(request.scope), upstream=upstream)
            if not self._direct_path.sees_upstream(sender):
                return False
        return self.sessions.is_created_at(request.session_key, upstream)

    async def serve(self, body: Buffer, request: HttpRequest, send: Send) -> bool:
        """Answer a POST request if it is a direct one, or the client's response to a request of one.

        Args:
            body: The body of the request.
            request: The head of the request.
            send: Sends the response.

        Returns:
            False if the SDK must handle the request. Nothing was sent then.
        """
        opened = self._direct_path.open_request(body)
        if opened is None:
            session = self.sessions.find(request.session_key)
            return (
                session is not None
                and bool(session.direct_requests)
                and await self._apply(body, session, request, send)
            )
        if request.scope["path"] != self._path or not _is_acceptable(opened, request):
            return False
        origin = self._direct_path.find_origin(opened, request.session_key, request.namespace, request)
        if origin is None or self.sessions.is_anonymous(request.namespace):
            return False
        session_id = request.headers.get(_SESSION_HEADER) if origin.session else None
        response = ResponseStream(send, origin, session_id, self._client_requests)
        try:
            outcome = await self._run(opened, origin, response, request.scope)
            if outcome is not None:
                await response.send_outcome(opened.id, outcome)
            elif origin.session is not None and self.sessions.find(request.session_key) is origin.session:
                await response.send_outcome(opened.id, _REQUEST_CANCELLED)
            elif origin.session is not None:  # its session has ended
                await response.end()
        finally:
            response.close()
        return True

    async def _run(
        self, opened: DirectRequest, origin: Origin, response: ResponseStream, scope: Scope
    ) -> Segments | types.ErrorData | None:
        """Return the outcome of a request; None if it was cancelled."""
        cancel, request_id = anyio.CancelScope(), coerce_request_id(opened.id)
        if origin.session is None:
            watch_disconnect(scope, cancel.cancel)
        else:
            origin.session.direct_requests[request_id] = cancel
        outcome: Segments | types.ErrorData | None = None
        try:
            with cancel:
                outcome = await self._direct_path.answer(opened, origin, response)
        finally:
            if origin.session is None:
                watch_disconnect(scope, None)
            elif origin.session.direct_requests.get(request_id) is cancel:
                del origin.session.direct_requests[request_id]
        return None if cancel.cancel_called else outcome

    async def _apply(self, body: Buffer, session: Session, request: HttpRequest, send: Send) -> bool:
        """Apply a message to the direct requests of its session.

        Returns:
            Whether the message is a response to a request that the gateway sent for one of them. The SDK
            handles all others too.
        """
        try:
            check_request(body)
            message = types.jsonrpc_message_adapter.validate_json(bytes(body), by_name=False)
        except (WireError, ValueError):
            return False  # the SDK's path reports the error
        if isinstance(message, types.JSONRPCRequest):
            session.direct_requests.pop(coerce_request_id(message.id), None)  # a later cancellation is for this request
        elif isinstance(message, types.JSONRPCNotification):
            cancelled = cancelled_request_id_from_params(message.params) if message.method == _CANCELLED else None
            cancel = None if cancelled is None else session.direct_requests.get(coerce_request_id(cancelled))
            if cancel is not None:
                cancel.cancel()
        elif self._client_requests.resolve(session, message):
            session_id = request.headers[_SESSION_HEADER].encode("latin-1")
            headers = [(_SESSION_HEADER.encode(), session_id), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": _ACCEPTED, "headers": headers})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return True
        return False


def _is_acceptable(opened: DirectRequest, request: HttpRequest) -> bool:
    """Whether the SDK would accept the headers of a request."""
    headers = request.headers
    if len(headers) < len(request.scope["headers"]) or not _accepts_both(headers.get("accept", "")):
        return False
    if headers["content-type"].partition(";")[0].strip() != _JSON:
        return False
    version = headers.get("mcp-protocol-version")
    if not opened.envelope:
        return version is None or version in HANDSHAKE_PROTOCOL_VERSIONS
    # The SDK has accepted the envelope before; what is left to compare are the headers.
    return (
        version == opened.meta.get(types.PROTOCOL_VERSION_META_KEY)
        and headers.get("mcp-method") == opened.method
        and (opened.method != TOOL_CALL or decode_header_value(headers.get("mcp-name")) == opened.name)
    )


@lru_cache(32)
def _accepts_both(accept: str) -> bool:
    """Whether an `Accept` header admits JSON and event streams."""
    return check_accept_headers(Request({"type": "http", "headers": [(b"accept", accept.encode("latin-1"))]})) == (
        True,
        True,
    )

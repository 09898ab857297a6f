"""The Streamable HTTP transport of the server: an ASGI middleware around the SDK's application.

It limits requests, lifts the parameters out of request bodies before the SDK parses them, and splices results into JSON
bodies and server-sent events.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_mirror.payload.framing import DiscardedFrame
from mcp_mirror.payload.json_rpc import MARK, RequestId, replace_line_breaks
from mcp_mirror.payload.spool import Frame, Spool, SpoolCollector, discard_after, frame_id
from mcp_mirror.server.auth.principals import build_scope_entries, read_namespace
from mcp_mirror.server.connections import find_connection
from mcp_mirror.server.direct_http import DirectHttp
from mcp_mirror.server.event_streams import EventStreams
from mcp_mirror.server.graceful_shutdown import set_request_id
from mcp_mirror.server.hosts import AddressCheck
from mcp_mirror.server.http_exchange import replay_body, send_body
from mcp_mirror.server.pending_payloads import PendingPayloads, refuse_response
from mcp_mirror.server.rejected_requests import RejectedRequests, build_busy_response, build_error_response
from mcp_mirror.server.repeated_ids import RepeatedIds
from mcp_mirror.server.request_context import HttpRequest
from mcp_mirror.system.fair_queue import FairQueue
from mcp_mirror.types import Segments

_MARK: Final = MARK.encode()
_DATA: Final = b"data: "
_BAD_REQUEST: Final = 400
_NOT_FOUND: Final = 404
_MIN_BYTES_PER_SECOND: Final = 1024
"""The average speed of a body that takes longer than `limits.body_timeout`."""
_PARTS_AT_ONCE: Final = 4
"""Parts of bodies, of up to 256 KiB, that a pass of the event loop handles."""
_OUTCOMES: Final = {
    400: "malformed message",
    403: "foreign origin",
    404: "unknown endpoint",
    408: "body did not come",
    413: "message too large",
    415: "encoded body",
    421: "foreign host",
    429: "too many",
}
"""The outcome of a rejected request in the audit log, by its status."""
_SDK_OUTCOMES: Final = {
    400: "malformed message",
    404: "unknown session",
    405: "method not allowed",
    406: "not acceptable",
}
"""The same for a request that the SDK rejects."""


class _RejectedError(Exception):
    """A request is rejected with a response."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code)
        self.response = response


class PayloadMiddleware:
    """An ASGI middleware that carries payloads past the SDK's application."""

    def __init__(
        self,
        app: ASGIApp,
        pending_payloads: PendingPayloads,
        spool: Spool,
        addresses: AddressCheck,
        rejected_requests: RejectedRequests,
        direct_http: DirectHttp,
    ) -> None:
        self._rejected_requests = rejected_requests
        self._direct_http = direct_http
        self._app = app
        self._event_streams = EventStreams(app)
        self._sessions = direct_http.sessions
        self._pending_payloads = pending_payloads
        self._spool = spool
        self._addresses = addresses
        self._traffic = spool.policy.traffic
        self._turns = FairQueue(_PARTS_AT_ONCE)
        """Turns of principals to handle a part of a body."""
        self._open_requests: Counter[str] = Counter()
        """The number of open requests by namespace."""
        self._new_sessions: dict[int, str] = {}
        """The namespaces of the requests whose sessions have not begun yet, by the identity of the request."""
        self._repeated_ids = RepeatedIds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or reject it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._serve(self._admit(scope), receive, send)
        except _RejectedError as rejected:
            status = rejected.response.status_code
            self._report(scope, status, _OUTCOMES.get(status, "not taken"))
            await rejected.response(scope, receive, send)

    def _report(self, scope: Scope, status: int, outcome: str) -> None:
        explanation = f"The response has HTTP status {status}."
        self._rejected_requests.report(outcome, explanation, read_namespace(scope))

    def _admit(self, scope: Scope) -> HttpRequest:
        """Return the head of a request that is served.

        Raises:
            _RejectedError: The host, the origin or the endpoint is unknown, or too many requests are open.
        """
        # Checked first, so that a web page in the user's browser cannot make the gateway read a body.
        if refusal := self._addresses.refuse(scope):
            raise _RejectedError(refusal)
        request, limit = self._direct_http.read_request(scope), self._traffic.requests_per_principal
        if self._open_requests[request.namespace] >= limit:
            raise _RejectedError(build_busy_response(429, "requests_per_principal", limit, "requests are open"))
        if not self._direct_http.has_endpoint(request):
            path = self._direct_http.path
            reason = f"Not Found. The endpoint is {path} (`server.path`). Correct the URL or the proxy."
            raise _RejectedError(PlainTextResponse(reason, _NOT_FOUND))
        return request

    async def _serve(self, request: HttpRequest, receive: Receive, send: Send) -> None:
        """Serve an admitted request, and count it while it is open."""
        scope, session = request.scope, request.session_key
        if self._sessions.is_closing(session):
            self._report(scope, _NOT_FOUND, _SDK_OUTCOMES[_NOT_FOUND])
            response = build_error_response(_NOT_FOUND, types.INVALID_REQUEST, "Session not found")
            await response(scope, receive, send)
            return
        self._open_requests[request.namespace] += 1
        try:
            with self._sessions.in_use(session):
                if scope["method"] == "POST":
                    await self._post(request, receive, send)
                elif scope["method"] == "GET":
                    await self._event_streams.serve(scope, session, receive, self._watch_session(request, send))
                else:
                    await self._app(scope, receive, self._watch_session(request, send))
        finally:
            self._open_requests[request.namespace] -= 1
            if not self._open_requests[request.namespace]:
                del self._open_requests[request.namespace]
        if scope["method"] == "DELETE":
            self._sessions.end(session)

    async def _post(self, request: HttpRequest, receive: Receive, send: Send) -> None:
        if not request.headers.get("content-type", "").lower().startswith("application/json"):
            raise _RejectedError(PlainTextResponse("The body must be application/json.", 400))
        if connection := find_connection(request.scope):
            connection.is_admitted = True
        try:
            body = await self._read_body(request, receive)
        except ClientDisconnect:
            return
        if not isinstance(body, bytes) or not await self._direct_http.answer(body, request, send):
            with self._spool.holding(body):
                await self._serve_with_sdk(body, request, receive, send)

    async def _serve_with_sdk(self, body: Frame, request: HttpRequest, receive: Receive, send: Send) -> None:
        """Lift the parameters out of a body, and let the SDK serve the rest.

        Raises:
            _RejectedError: The body is not a JSON-RPC message or could not be read, or there are too many sessions.
        """
        with discard_after(body):
            stub, message, token = await self._lift_params(body, request)
        try:
            if self._direct_http.apply(message, request):
                accepted = Response(status_code=202, headers={"mcp-session-id": request.headers["mcp-session-id"]})
                await accepted(request.scope, receive, send)
                return
            if isinstance(message, types.JSONRPCRequest):
                set_request_id(request.scope, message.id)
                self._check_new_session(message, request)
            # A 2025-11-25 client that disconnects does not cancel its request. If the SDK noticed it, the response
            # would go to the next request with this id.
            further = _receive_nothing if request.session_key else receive
            with self._repeated_ids.replaced(message, request.session_key) as (own_message, ids):
                if own_message is not message:
                    stub = own_message.model_dump_json(by_alias=True, exclude_unset=True).encode()
                writer = _ResponseWriter(self._pending_payloads, self._watch_session(request, send), ids)
                scope, replay = _with_length(request.scope, len(stub)), replay_body(stub, further)
                if isinstance(message, types.JSONRPCRequest):
                    await self._app(scope, replay, writer.send)
                else:
                    await _send_late(self._app, scope, replay, writer.send)
        finally:
            self._new_sessions.pop(id(request), None)
            self._pending_payloads.discard(token)

    async def _lift_params(self, body: Frame, request: HttpRequest) -> tuple[bytes, types.JSONRPCMessage, str | None]:
        """Lift the parameters out of a body; see `PendingPayloads.lift_params`.

        An error answers the request to the client whose response is rejected.

        Raises:
            _RejectedError: The body is not a JSON-RPC message, is over a limit, or could not be read.
        """
        try:
            session = self._sessions.find(request.session_key)
            return await self._pending_payloads.lift_params(body, request.namespace, session)
        except MCPError as failure:
            error = failure.error
        status = 413 if isinstance(body, DiscardedFrame) else 400
        if error.code == types.INTERNAL_ERROR:
            status = 503
        if (refused := refuse_response(body, error)) is None:
            raise _reject(status, error.code, error.message, frame_id(body))
        if not self._direct_http.apply(refused, request):
            message = refused.model_dump_json(exclude_unset=True).encode()
            scope = _with_length(request.scope, len(message))
            await self._app(scope, replay_body(message, _receive_nothing), _ignore_response)
        raise _reject(status, error.code, error.message)

    def _check_new_session(self, message: types.JSONRPCRequest, request: HttpRequest) -> None:
        """Count the session that a request is to begin until it has begun, or the request has ended.

        Raises:
            _RejectedError: The principal has too many sessions.
        """
        if "mcp-session-id" in request.headers or message.method != "initialize":
            return
        namespace, limit = request.namespace, self._traffic.sessions_per_principal
        beginning = sum(one == namespace for one in self._new_sessions.values())
        if self._sessions.count(namespace) + beginning >= limit:
            raise _RejectedError(build_busy_response(429, "sessions_per_principal", limit, "sessions are open"))
        self._new_sessions[id(request)] = namespace

    async def _read_body(self, request: HttpRequest, receive: Receive) -> Frame:
        """Return the body of a request.

        Raises:
            _RejectedError: The body is encoded or too slow.
            ClientDisconnect: The client disconnected.
        """
        if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise _reject(415, types.INVALID_REQUEST, "Send the body without a content-encoding.")
        collector = self._spool.collector()
        try:
            connection = find_connection(request.scope)
            if (body := connection.take_body() if connection else None) is None:
                await self._collect(collector, request.namespace, receive)
            else:
                collector.add(body)
            return collector.take()
        finally:
            collector.close()

    async def _collect(self, collector: SpoolCollector, namespace: str, receive: Receive) -> None:
        """Receive a body. Each part must come in time, and a body that takes longer must have an average speed.

        Raises:
            _RejectedError: The body is too slow.
            ClientDisconnect: The client disconnected.
        """
        timeout = self._traffic.body_timeout
        deadline = anyio.current_time() + timeout
        size, has_more = 0, True
        while has_more:
            with anyio.CancelScope(deadline=min(anyio.current_time() + timeout, deadline)) as waiting:
                message = await receive()
            if waiting.cancelled_caught:
                reason = f"The body was too slow. See `limits.body_timeout` ({timeout:g} s)."
                slow = _reject(408, types.INVALID_REQUEST, reason)
                slow.response.headers["connection"] = "close"  # the rest of the body would keep it open
                raise slow
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            part = message.get("body", b"")
            size += len(part)
            deadline += len(part) / _MIN_BYTES_PER_SECOND + await self._wait_for_turn(namespace)
            collector.add(part)
            # A body over the limit is received with the id at its end, but not without an end.
            has_more = message.get("more_body", False) and size <= 2 * self._spool.policy.max_message_bytes

    async def _wait_for_turn(self, namespace: str) -> float:
        """Wait until a part of a body may be handled, and return the seconds: few parts in each pass of the event loop.

        Without a turn the client's connection is not read, so its body waits with the client.
        """
        began = anyio.current_time()
        if not self._turns.try_enter(namespace, _PARTS_AT_ONCE):
            await self._turns.wait(namespace, _PARTS_AT_ONCE, None)
        asyncio.get_running_loop().call_soon(self._turns.release, namespace)
        return anyio.current_time() - began

    def _watch_session(self, request: HttpRequest, send: Send) -> Send:
        """Return a `send` that records the session which a response of the SDK creates or does not know.

        It reports requests that the SDK rejects. To 2026-07-28 clients, errors of MCP have statuses too.
        """
        is_modern = request.headers.get("mcp-protocol-version") in MODERN_PROTOCOL_VERSIONS

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                if status in _SDK_OUTCOMES and not (is_modern and status <= _NOT_FOUND):
                    self._report(request.scope, status, _SDK_OUTCOMES[status])
                if status == _NOT_FOUND and _is_json(message):
                    self._sessions.end(request.session_key)
                session_id = Headers(raw=message["headers"]).get("mcp-session-id")
                if session_id is not None and status < _BAD_REQUEST:
                    self._new_sessions.pop(id(request), None)
                    self._sessions.add_http_session(request.namespace, session_id, request.upstream)
            await send(message)

        return watch


def make_session_closer(app: ASGIApp, path: str) -> Callable[[str], Awaitable[None]]:
    """Return a function that ends a session of the SDK by its key, with a DELETE request like that of a client."""

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def close(key: str) -> None:
        session_id, _, namespace = key.partition(" ")
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "DELETE",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"localhost:0"), (b"mcp-session-id", session_id.encode("latin-1", "replace"))],
            **(build_scope_entries(namespace) if namespace else {}),
        }
        await app(scope, receive, _ignore_response)  # the SDK may have ended the session before

    return close


class _ResponseWriter:
    """Sends one response of the SDK, with pending results spliced in."""

    def __init__(self, pending_payloads: PendingPayloads, send: Send, ids: tuple[bytes, bytes] | None) -> None:
        """Send a response, with the second of two ids in place of the first."""
        self._pending_payloads = pending_payloads
        self._send = send
        self._ids = ids
        self._start: Message | None = None
        """The start of a JSON response, which is sent with the length of the body."""
        self._body: list[bytes] = []

    async def send(self, message: Message) -> None:
        """Send an ASGI message of the application."""
        if self._ids is not None and "body" in message:
            message = {**message, "body": message["body"].replace(*self._ids)}
        if message["type"] == "http.response.start":
            if _is_json(message):
                self._start = message
            else:
                await self._send(message)
        elif self._start is not None:
            await self._send_json(self._start, message)
        else:
            await self._send_event(message)

    async def _send_json(self, start: Message, message: Message) -> None:
        self._body.append(message.get("body", b""))
        if message.get("more_body", False):
            return
        segments = self._pending_payloads.splice_result(b"".join(self._body))
        await self._send(_with_length(start, sum(map(len, segments))))
        await send_body(self._send, segments)

    async def _send_event(self, message: Message) -> None:
        body: bytes = message.get("body", b"")
        if _MARK not in body:
            await self._send(message)
            return
        lines = [self._splice_line(line) for line in body.splitlines(keepends=True)]
        pieces = (piece for line in lines for piece in line)
        await send_body(self._send, pieces, has_more=message.get("more_body", False))

    def _splice_line(self, line: bytes) -> Segments:
        if not line.startswith(_DATA) or _MARK not in line:
            return (line,)
        data = line.rstrip(b"\r\n")
        end = line[len(data) :]
        payload = self._pending_payloads.splice_result(data[len(_DATA) :])
        return (_DATA, *map(replace_line_breaks, payload), end)


async def _send_late(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Have the SDK take a notification or a response, and send the HTTP response when the SDK has taken it.

    The SDK answers such messages before it takes them, one in each pass of the event loop. A client that sends them
    faster would fill the memory with messages that wait.
    """
    parts: list[Message] = []
    is_complete = False

    async def keep(part: Message) -> None:
        nonlocal is_complete
        if not is_complete:  # the SDK sends a second response to a message that it could not take
            parts.append(part)
            is_complete = part["type"] == "http.response.body" and not part.get("more_body", False)

    await app(scope, receive, keep)
    for part in parts:
        await send(part)


def _is_json(start: Message) -> bool:
    return Headers(raw=start["headers"]).get("content-type", "").startswith("application/json")


def _with_length(head: Scope | Message, length: int) -> Scope | Message:
    """Return the head of a request or response with the length of another body."""
    headers = MutableHeaders(raw=list(head["headers"]))
    headers["content-length"] = str(length)
    del headers["transfer-encoding"]
    return {**head, "headers": headers.raw}


async def _receive_nothing() -> Message:
    """Wait until cancelled."""
    message: Message = await asyncio.get_running_loop().create_future()
    return message


async def _ignore_response(_message: Message) -> None:
    """Ignore a part of a response."""


def _reject(status: int, code: int, message: str, request_id: RequestId | None = None) -> _RejectedError:
    return _RejectedError(build_error_response(status, code, message, request_id))

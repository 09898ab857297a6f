"""Our face on Streamable HTTP: an ASGI layer around the SDK's application that carries payloads past it.

Request bodies come in whole and bounded, with a request's parameters lifted out; results are spliced into JSON bodies
and server-sent events on their way out.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_mirror.errors import WireError
from mcp_mirror.observability.audit import Audit, AuditRecord
from mcp_mirror.payload.framing import Overlong
from mcp_mirror.payload.json_rpc import MARK, RequestId, chunks_of, open_message, recover_id
from mcp_mirror.payload.spool import Spool, SpooledFrame
from mcp_mirror.server.auth.principals import namespace_in, owner_scope
from mcp_mirror.server.connections import admit_connection
from mcp_mirror.server.hosts import AddressCheck
from mcp_mirror.server.pending_payloads import PendingPayloads
from mcp_mirror.server.sessions import Sessions, session_name
from mcp_mirror.types import Buffer, Segments

_MARK: Final = MARK.encode()
_DATA: Final = b"data: "
_SESSION: Final = b"mcp-session-id"
_BAD: Final = 400
_NOT_FOUND: Final = 404
_SLOWEST: Final = 1024
"""Bytes a second at which a body must come on the average, once `limits.body_timeout` is over."""
_RETRY: Final = 5
"""Seconds."""
_INTERNAL_ERROR: Final = -32603
_PARSE_ERROR: Final = -32700
_INVALID_REQUEST: Final = -32600
_OUTCOMES: Final = {
    400: "malformed message",
    403: "foreign origin",
    408: "body did not come",
    413: "message too large",
    415: "encoded body",
    421: "foreign host",
    429: "too many",
}
"""What the audit log says of a request that is not taken, by its status."""


class PayloadMiddleware:
    """Wraps an ASGI application that speaks MCP."""

    def __init__(
        self,
        app: ASGIApp,
        pending_payloads: PendingPayloads,
        spool: Spool,
        addresses: AddressCheck,
        sessions: Sessions,
        audit: Audit,
    ) -> None:
        """Wrap an application.

        Args:
            app: What speaks MCP.
            pending_payloads: Holds the payloads.
            spool: Where large bodies go.
            addresses: Refuses requests of web pages that must not reach the gateway.
            sessions: Told which of them are in use, and which a client has ended.
            audit: Told which requests are not taken.
        """
        self._audit = audit
        self._app = app
        self._sessions = sessions
        self._pending_payloads = pending_payloads
        self._spool = spool
        self._addresses = addresses
        self._traffic = spool.policy.traffic
        self._open: Counter[str] = Counter()
        """How many requests each principal has open."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Before a byte is read: a web page in the user's browser must not make us read what it likes.
        if refusal := self._addresses.refuse(Request(scope)):
            await self._refuse(refusal, scope, receive, send)
            return
        namespace = namespace_in(scope)
        if self._open[namespace] >= (most := self._traffic.requests_per_principal):
            await self._refuse(_too_many("requests_per_principal", most, "requests are open"), scope, receive, send)
            return
        session = session_name(namespace, Request(scope).headers.get("mcp-session-id", ""))
        if self._sessions.is_over(session):
            await _refusal(_NOT_FOUND, _INVALID_REQUEST, "Session not found", None)(scope, receive, send)
            return
        send = self._watching(session, send)
        with self._sessions.using(session), self._counted(namespace):
            await (self._post if scope["method"] == "POST" else self._app)(scope, receive, send)
        if scope["method"] == "DELETE":
            self._sessions.end(session)

    def _watching(self, session: str, send: Send) -> Send:
        """Sends, and learns from the status that the SDK has ended a session."""

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == _NOT_FOUND and _is_json(message):
                self._sessions.end(session)
            await send(message)

        return watch

    @contextmanager
    def _counted(self, namespace: str) -> Iterator[None]:
        self._open[namespace] += 1
        try:
            yield
        finally:
            self._open[namespace] -= 1
            if not self._open[namespace]:
                del self._open[namespace]

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not Request(scope).headers.get("content-type", "").lower().startswith("application/json"):
            refusal = PlainTextResponse("The body must be application/json.", 400)
            await self._refuse(refusal, scope, receive, send)
            return
        admit_connection(scope)
        taken = await self._take(scope, receive)
        if not isinstance(taken, tuple):
            if taken is not None:
                await self._refuse(taken, scope, receive, send)
            return
        body, token = taken
        try:
            outgoing = _ResponseWriter(self._pending_payloads, self._noting(namespace_in(scope), send))
            await self._app(_with_length(scope, len(body)), _replay(body, receive), outgoing.send)
        finally:
            self._pending_payloads.discard(token)

    async def _refuse(self, refusal: Response, scope: Scope, receive: Receive, send: Send) -> None:
        outcome = _OUTCOMES.get(refusal.status_code, "not taken")
        self._audit.write(AuditRecord("refusal", namespace_in(scope), "", outcome))
        await refusal(scope, receive, send)

    async def _take(self, scope: Scope, receive: Receive) -> tuple[bytes, str | None] | JSONResponse | None:
        """What the SDK is to see of the body, and the letter that holds the rest; or a refusal.

        None where nobody is there any more.
        """
        body = await self._receive(scope, receive)
        if body is None or isinstance(body, JSONResponse):
            return body
        if "mcp-session-id" not in Request(scope).headers and self._is_over(namespace_in(scope), body):
            return _too_many("sessions_per_principal", self._traffic.sessions_per_principal, "sessions are open")
        try:
            frame, token = self._pending_payloads.inbound(body)
        except WireError as error:
            return _refusal(400, _PARSE_ERROR, str(error), recover_id(body))
        return bytes(frame), token

    async def _receive(self, scope: Scope, receive: Receive) -> Buffer | JSONResponse | None:
        """The body, within its bounds."""
        if Request(scope).headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            return _refusal(415, _INVALID_REQUEST, "Bodies are taken without a content-encoding alone.", None)
        try:
            body = await self._read(receive)
        except TimeoutError:
            said = f"The body came too slowly: see `limits.body_timeout` ({self._traffic.body_timeout:g} s)."
            return _refusal(408, _INVALID_REQUEST, said, None)
        except ClientDisconnect:
            return None
        if isinstance(body, Overlong):
            return _refusal(413, _INVALID_REQUEST, _too_large(body), recover_id(body.head))
        return body

    def _is_over(self, namespace: str, frame: Buffer) -> bool:
        """Whether a request would begin a session more than its principal may have."""
        if self._sessions.count(namespace) < self._traffic.sessions_per_principal:
            return False
        try:
            return open_message(frame).method == "initialize"
        except WireError:
            return False  # it will be refused for that

    def _noting(self, namespace: str, send: Send) -> Send:
        """Sends, and learns of the session that an answer begins."""

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < _BAD:
                begun = [value for name, value in message["headers"] if name.lower() == _SESSION]
                for identity in begun:
                    self._sessions.begin(namespace, identity.decode("ascii", "replace"))
            await send(message)

        return note

    async def _read(self, receive: Receive) -> Buffer | Overlong:
        """The whole body; a large one mapped from a file, one past the bound not at all.

        Raises:
            TimeoutError: It does not come.
        """
        collector = self._spool.collector()
        latest = anyio.current_time() + self._traffic.body_timeout
        size = 0
        try:
            while True:
                silent = anyio.current_time() + self._traffic.body_timeout
                with anyio.fail_at(min(silent, latest + size / _SLOWEST)):
                    message = await receive()
                size += len(message.get("body", b""))
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                collector.add(message.get("body", b""))
                if not message.get("more_body", False):
                    frame = collector.take()
                    break
        finally:
            collector.close()
        if isinstance(frame, SpooledFrame):
            with frame:
                return frame.view
        return frame


def _too_large(body: Overlong) -> str:
    return f"The message of {body.size:,} bytes is over `limits.max_message_bytes`."


def session_closer(app: ASGIApp, path: str) -> Callable[[str], Awaitable[None]]:
    """What ends a session in the SDK as its client does: with a DELETE request."""

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(_message: Message) -> None:
        """Whether the SDK still had the session makes no difference."""

    async def close(key: str) -> None:
        identity, _, namespace = key.partition(" ")
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
            "headers": [(b"host", b"localhost:0"), (_SESSION, identity.encode("latin-1", "replace"))],
            **(owner_scope(namespace) if namespace else {}),
        }
        await app(scope, receive, send)

    return close


class _ResponseWriter:
    """One response on its way out."""

    def __init__(self, pending_payloads: PendingPayloads, send: Send) -> None:
        self._pending_payloads = pending_payloads
        self._send = send
        self._start: Message | None = None
        self._held: list[bytes] = []

    async def send(self, message: Message) -> None:
        """Pass a message of the application's on, payloads spliced in."""
        if message["type"] == "http.response.start":
            if _is_json(message):
                self._start = message  # its length is known only with the body
            else:
                await self._send(message)
        elif self._start is not None:
            await self._send_json(message)
        else:
            await self._send_event(message)

    async def _send_json(self, message: Message) -> None:
        assert self._start is not None  # noqa: S101  # the caller's condition
        self._held.append(message.get("body", b""))
        if message.get("more_body", False):
            return
        segments = self._pending_payloads.outbound(b"".join(self._held))
        length = str(sum(len(segment) for segment in segments)).encode()
        headers = [(name, value) for name, value in self._start["headers"] if name.lower() != b"content-length"]
        await self._send({**self._start, "headers": [*headers, (b"content-length", length)]})
        await self._send_pieces(segments, more=False)

    async def _send_event(self, message: Message) -> None:
        body: bytes = message.get("body", b"")
        if _MARK not in body:
            await self._send(message)
            return
        lines = [self._line(line) for line in body.splitlines(keepends=True)]
        await self._send_pieces((piece for line in lines for piece in line), more=message.get("more_body", False))

    def _line(self, line: bytes) -> Segments:
        if not line.startswith(_DATA) or _MARK not in line:
            return (line,)
        data = line.rstrip(b"\r\n")
        end = line[len(data) :]
        payload = self._pending_payloads.outbound(data[len(_DATA) :])
        return (_DATA, *(_one_line(segment) for segment in payload), end)

    async def _send_pieces(self, segments: Iterable[Buffer], *, more: bool) -> None:
        for chunk in chunks_of(segments):
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        await self._send({"type": "http.response.body", "body": b"", "more_body": more})


def _one_line(segment: Buffer) -> Buffer:
    """A line break between tokens of a payload would end the event's line; a space there means the same."""
    text = bytes(segment)
    return text.replace(b"\n", b" ").replace(b"\r", b" ") if b"\n" in text or b"\r" in text else segment


def _is_json(start: Message) -> bool:
    kinds = [value for name, value in start.get("headers", ()) if name.lower() == b"content-type"]
    return any(kind.startswith(b"application/json") for kind in kinds)


def _with_length(scope: Scope, length: int) -> Scope:
    headers = [
        (name, value) for name, value in scope["headers"] if name not in (b"content-length", b"transfer-encoding")
    ]
    return {**scope, "headers": [*headers, (b"content-length", str(length).encode())]}


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once, then whatever the client does next."""
    pending = [body]

    async def replay() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        return await receive()

    return replay


def _too_many(name: str, most: int, what: str) -> JSONResponse:
    said = f"`limits.{name}` ({most:,}) {what}. Try again in {_RETRY} s."
    response = _refusal(429, _INTERNAL_ERROR, said, None)
    response.headers["retry-after"] = str(_RETRY)
    return response


def _refusal(status: int, code: int, message: str, identity: RequestId | None) -> JSONResponse:
    body = {"jsonrpc": "2.0", "id": identity, "error": {"code": code, "message": message}}
    return JSONResponse(body, status_code=status)

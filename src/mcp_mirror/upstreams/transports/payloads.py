"""The gateway's own requests to a server, and the messages that the server sends on its own.

The SDK performs the handshake and keeps its transports. Requests of the gateway do not enter the SDK: the bypass gives
each an id that the SDK does not use, the transport sends it, and the bypass hands its result to the waiting caller as
the bytes that the server sent. Notifications and requests of the server go to the dispatcher. Only the other messages,
such as responses to the SDK's own requests, reach the SDK.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import anyio
import anyio.lowlevel
import mcp_types as types
import msgspec
from mcp import MCPError
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.message import SessionMessage

from mcp_mirror.errors import WireError
from mcp_mirror.payload.floods import Flood
from mcp_mirror.payload.framing import DiscardedFrame
from mcp_mirror.payload.json_bounds import MAX_VALUES, check_envelope, has_more_values
from mcp_mirror.payload.json_rpc import (
    Message,
    RequestId,
    decode_as,
    object_of,
    open_message,
    open_object,
    open_server_message,
    read_error,
    recover_id,
    recover_method,
)
from mcp_mirror.payload.spool import Frame, SpooledFrame, frame_id
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer, Segments
from mcp_mirror.upstreams.transports.abandoned import AbandonedRequests
from mcp_mirror.upstreams.transports.requests import (
    MisdirectedResponseError,
    Outcome,
    PausableTimeout,
    PendingRequest,
    RawResult,
    RequestSink,
    RequestTimeoutError,
    UnknownSessionError,
)
from mcp_mirror.upstreams.transports.server_messages import ServerMessage, decode_server_message

_MAX_ERROR: Final = 1 << 16
"""Bytes of a JSON-RPC error that are read whole."""
LISTS: Final = frozenset({"tools/list", "resources/list", "resources/templates/list", "prompts/list"})
_UNREAD: Final = frozenset({"tools/call", "tasks/result", "resources/read", "prompts/get"}) | LISTS
"""Methods whose large results pass unread: the caller reads them where that does not block the event loop."""
_FIRST_ID: Final = 1_000_000_000
"""The id of the first request. The SDK counts its own requests from 1."""
_NUMBER: Final = lazy_pattern("[0-9]{1,19}")
"""A number as a text, as which some servers return an id."""
_CANCEL_TIMEOUT: Final = 5.0
"""Seconds for sending a cancellation."""
_PROBE_TIMEOUT: Final = 0.2
"""Seconds for sending a request after a cancelled one: a server that does not read does not answer it either."""
_INITIALIZE: Final = b'"initialize"'
_HEAD_SIZE: Final = 200
"""Bytes at the beginning of a frame that contain its method."""
_BROKEN: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError)
NOT_JSON_RPC: Final = "The message does not conform to JSON-RPC."


class PayloadBypass:
    """The requests of the gateway that are in flight on one connection.

    The session sends them with `exchange`, and removes them with `close`. The transport gives what it receives to
    `take_result` or `inbound`, and reports failures to `fail` and `end`.
    """

    def __init__(
        self,
        capabilities: Mapping[str, Any] | None = None,
        dispatch: Callable[[ServerMessage], None] = lambda _message: None,
        limits: WirePolicy | None = None,
    ) -> None:
        """Create the bypass of a new connection.

        The handshake declares the client's `capabilities`; None: those of the SDK. `dispatch` is called with each
        message that the server sends on its own, in the order of arrival.
        """
        self.ended: anyio.Event = anyio.Event()
        """Set when either side has ended the connection."""
        self.is_unknown_session: bool = False
        """The server does not know the session any more."""
        self.unreachable: str | None = None
        """Why the server cannot be reached now, a sentence: the last attempt to open a stream of the session failed."""
        self.is_stuck: bool = False
        """The server neither reads nor writes readable messages, so the transport does not wait for it to exit."""
        self.end_reason: str = ""
        """Why the gateway has ended the connection, a sentence about the server; empty if the gateway has not."""
        self.is_blocked: Callable[[], bool] = lambda: False
        """Returns whether a message over its limit blocks the only stream of the server."""
        self.flood: Flood = Flood()
        """Counts the messages that the gateway did not request."""
        self._dispatch = dispatch
        self._limits = limits or WirePolicy()
        self._capabilities = capabilities
        self._sink = RequestSink()
        self._is_closed = False
        """`end` has failed the requests in flight, and further ones fail at once."""
        self._pending: dict[RequestId, PendingRequest] = {}
        """By id."""
        self._abandoned = AbandonedRequests()
        self._next_id = _FIRST_ID
        self._is_idle: anyio.Event | None = None
        """Set without requests in flight; None if nothing waits for that."""

    def connect(self, sink: RequestSink) -> None:
        """Send requests to the transport that was opened."""
        self._sink = sink

    def __len__(self) -> int:
        """The number of requests in flight."""
        return len(self._pending)

    async def exchange(self, request: PendingRequest, limit: PausableTimeout) -> None:
        """Send a request, under a new id, and wait for its result; the caller takes it, and closes the request.

        If the caller is cancelled or the timeout is over, cancel the request at the server.

        Raises:
            RequestTimeoutError: The timeout is over.
            MCPError: The server answered with an error, or the connection has ended.
            UnknownSessionError: The server does not know the session.
            MisdirectedResponseError: The server answered under the id of another request.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()
        if self._is_closed:
            raise _build_closed_error()
        self.begin(request)
        try:
            if not self._sink.send_at_once(request):
                with limit.cancelling():
                    await self._sink.send_request(request)
            await request.wait(limit)
        except _BROKEN:
            raise _build_closed_error() from None
        except (RequestTimeoutError, anyio.get_cancelled_exc_class()):
            await self._cancel(request.id)
            request.is_abandoned = request.outcome is None
            raise
        if isinstance(request.outcome, Exception):
            raise request.outcome
        if isinstance(error := request.outcome, types.ErrorData):
            raise MCPError(error.code, error.message, error.data)

    def begin(self, request: PendingRequest) -> None:
        """Give a request a new id, and take messages for that id from now on."""
        if request.id:
            self.close(request)
        request.id, self._next_id = self._next_id, self._next_id + 1
        request.outcome = None
        request.is_abandoned = False
        self._pending[request.id] = request

    def close(self, request: PendingRequest) -> None:
        """Remove a request, answered or not. Delete the spool file of a result that was not taken."""
        if self._pending.pop(request.id, None) is not None and self._is_idle is not None and not self._pending:
            self._is_idle.set()
        if isinstance(request.outcome, SpooledFrame):
            request.outcome.discard()
        elif isinstance(request.outcome, Exception):
            request.outcome = None  # its traceback refers to the request

    async def abandon(self, request: PendingRequest, probe: PendingRequest, on_end: Callable[[], None]) -> None:
        """Call a function when the server has answered a cancelled request, or reads its input again.

        `probe` is a request without effects, which a server answers that does not answer the cancelled one. It is sent
        even if the caller is cancelled.
        """
        self._abandoned.add(request.id, on_end)
        self.begin(probe)
        with anyio.move_on_after(_PROBE_TIMEOUT, shield=True), suppress(*_BROKEN):
            if not self._sink.send_at_once(probe):
                await self._sink.send_request(probe)
        self.close(probe)

    async def _cancel(self, identity: int) -> None:
        """Cancel a request at the server; no longer than a few seconds, even if the caller is cancelled."""
        params = {"requestId": identity, "reason": "caller cancelled"}
        message = types.JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=params)
        with anyio.move_on_after(_CANCEL_TIMEOUT, shield=True), suppress(*_BROKEN):
            await self._sink.send(SessionMessage(message))

    async def drain(self) -> None:
        """Wait until no request is in flight; call it once."""
        if self._pending:
            self._is_idle = anyio.Event()
            await self._is_idle.wait()

    def end(self) -> None:
        """Fail all requests: the connection has ended."""
        self.ended.set()
        self._is_closed = True
        self._abandoned.end_all()
        for request in self._pending.values():
            if request.outcome is None:
                request.finish(_build_closed_error())

    def give_up(self, reason: str) -> None:
        """End the connection without waiting for the server, because of a reason for `end_reason`."""
        self.is_stuck = True
        self.end_reason = reason
        self.ended.set()

    def report_unknown_session(self, identity: RequestId | None) -> None:
        """End the connection because the server does not know its session; fail the request that was answered so."""
        if (request := self.find(identity)) is not None:
            request.finish(UnknownSessionError())
        self.is_unknown_session = True
        self.ended.set()

    def fail_call(self, token: str, error: types.ErrorData | None) -> None:
        """Fail the request with this token: the server waits for an answer that it has refused.

        Without an error, it does not know the session either.
        """
        for request in self._pending.values():
            if request.token == token and request.outcome is None:
                request.finish(error or _build_closed_error())

    def find(self, identity: RequestId | None) -> PendingRequest | None:
        """Return the request with this id if it waits for its response."""
        request = None if identity is None else self._pending.get(coerce_request_id(identity))
        return request if request is not None and request.outcome is None else None

    def fail(self, identity: RequestId | None, error: types.ErrorData) -> bool:
        """Fail the request with this id; return whether there is one."""
        self._note_response(identity)
        request = self.find(identity)
        if request is None:
            return False
        self._answer(request, error)
        return True

    def has_ended(self, identity: RequestId | None) -> bool:
        """Whether a request of the gateway had this id and waits no longer."""
        return self._has_issued(identity) and self.find(identity) is None

    def has_hung(self, identity: int) -> bool:
        """Whether the server most likely never answers again, after the timeout of the request with this id.

        It has sent nothing since an earlier request was cancelled, not even an answer to the probe after it, and does
        not work on a request that is older than these.
        """
        if not self._abandoned.is_silent(identity):
            return False
        return all(int(one) >= self._abandoned.silent_since for one in self._pending)

    def _has_issued(self, identity: RequestId | None) -> bool:
        """Whether a request of the gateway had this id."""
        identity = None if identity is None else coerce_request_id(identity)
        return isinstance(identity, int) and _FIRST_ID <= identity < self._next_id

    def _note_response(self, identity: RequestId | None) -> None:
        """Note that the server has answered the request with this id."""
        if identity is not None and self._has_issued(identity):
            self._abandoned.end_until(int(identity))

    def _find_token(self, identity: RequestId | None) -> str | None:
        request = None if identity is None else self._pending.get(coerce_request_id(identity))
        return request.token if request is not None else None

    def _answer(self, request: PendingRequest, outcome: Outcome) -> None:
        self.flood.give_back()
        request.finish(outcome)

    def outbound(self, frame: bytes) -> Segments:
        """Return the message to send for a message of the SDK: the handshake declares the client's capabilities."""
        if self._capabilities is None or _INITIALIZE not in frame[:_HEAD_SIZE]:
            return (frame,)
        request = open_object(frame) or {}
        params = open_object(request.get("params", b"null")) or {}
        params["capabilities"] = msgspec.json.encode(self._capabilities)
        return (b"".join(object_of({**request, "params": b"".join(object_of(params))})),)

    def take_result(self, frame: Frame) -> bool:
        """Take the result of a request in flight; return False, without any effect, for every other message."""
        if not isinstance(frame, bytes):
            return False
        try:
            message = open_message(frame, self._limits.max_depth)
        except WireError:
            return False
        if not isinstance(message.id, int | str) or not isinstance(message.result, dict):
            return False
        is_other = message.method is not msgspec.UNSET or message.error is not msgspec.UNSET
        if is_other or (request := self.find(message.id)) is None:
            return False
        self._abandoned.silent_since = 0
        if self._abandoned.ends:
            self._abandoned.end_until(request.id)
        request.finish({key: memoryview(raw) for key, raw in message.result.items()})
        return True

    def inbound(self, frame: Frame, about: RequestId | None = None) -> Buffer | None:
        """Take a received frame; return it if it is for the SDK, else None.

        `about` is the id of the request on whose stream the frame came; None if the transport has only one stream.

        Raises:
            WireError: The frame is not a JSON-RPC message, or was discarded.
        """
        self.flood.take()
        self._abandoned.silent_since = 0
        if isinstance(frame, DiscardedFrame):
            raise WireError(frame.explain())
        return self._take_spooled(frame, about) if isinstance(frame, SpooledFrame) else self._take_frame(frame, about)

    def _take_spooled(self, frame: SpooledFrame, about: RequestId | None) -> Buffer | None:
        """Pass a large response to its caller unread; drop one that comes too late."""
        identity = frame_id(frame)
        self._note_response(identity)
        request = self.find(identity)
        if request is not None and request.method in _UNREAD:
            self._answer(request, frame)
            return None
        with frame:
            if request is None and self._has_issued(identity):
                return None
            # Worker processes read results of `_UNREAD`. Other large messages are refused before they are opened.
            is_large = frame.size > self._limits.max_envelope_bytes or has_more_values(frame.view, MAX_VALUES)
            if not is_large:
                return self._take_frame(frame.view, about)
            fault = f"The message of {frame.size:,} bytes is too large or has too many values for its kind."
            if (method := recover_method(frame.head)) is None:
                raise WireError(fault)
            self._dispatch(ServerMessage(method, {}, identity, self._find_token(about), fault, frame.size))
            return None

    def _take_frame(self, frame: Buffer, about: RequestId | None) -> Buffer | None:
        try:
            message, frame = open_server_message(frame, self._limits.max_depth)
            identity = message.id if isinstance(message.id, int | str) else None
            if isinstance(identity, str) and not _NUMBER.fullmatch(identity):
                identity = None  # neither the gateway nor the SDK has made a request with this id
            if not isinstance(message.result, dict) or self.find(identity) is None:
                check_envelope(frame, self._limits.max_envelope_bytes)
        except WireError as error:
            if (method := recover_method(frame)) is None:
                raise
            self._dispatch(ServerMessage(method, {}, recover_id(frame), self._find_token(about), str(error)))
            return None
        if isinstance(message.method, str):
            self._dispatch(decode_server_message(message, message.method, self._find_token(about), frame))
            return None
        return self._take_response(message, identity, frame, about)

    def _take_response(
        self, message: Message, identity: RequestId | None, frame: Buffer, about: RequestId | None
    ) -> Buffer | None:
        """Hand a response to the request that it answers; return it if it is for the SDK.

        `identity` is that of the response, and `about` that of the request on whose stream it came.
        """
        self._note_response(identity)
        request, expected = self.find(identity), self.find(about)
        if request is None and _has_error(message):
            request = expected  # a server that could not read a request does not know its id
        if request is not None:
            self._answer(request, _read_outcome(message, frame))
        if expected is not None and expected.outcome is None and isinstance(message.result, dict):
            if decode_as((open_object(frame) or {}).get("jsonrpc"), str) != "2.0":
                raise WireError(NOT_JSON_RPC)  # noise before the response
            self._answer(expected, MisdirectedResponseError())
            return None
        # The SDK would parse a response that it does not expect once more, and log its id.
        is_foreign = identity is None and isinstance(message.id, str)
        return None if request is not None or is_foreign or self._has_issued(identity) else frame


def _build_closed_error() -> MCPError:
    """Return the exception with which the SDK fails requests of its own when the connection ends."""
    return MCPError(types.CONNECTION_CLOSED, "Connection closed")


def _has_error(message: Message) -> bool:
    return not isinstance(message.error, msgspec.UnsetType)


def _read_outcome(message: Message, frame: Buffer) -> RawResult | types.ErrorData:
    """Return the result or the error of a response; a WireError if it has neither."""
    is_long = _has_error(message) and len(memoryview(message.error)) > _MAX_ERROR  # type: ignore[arg-type]  # it is set
    if isinstance(message.result, dict) and not is_long:
        return {key: memoryview(raw) for key, raw in message.result.items()}
    if isinstance(message.error, msgspec.UnsetType) or isinstance(message.id, msgspec.UnsetType):
        raise WireError(NOT_JSON_RPC)
    if not is_long:
        with suppress(ValueError):
            return types.JSONRPCError.model_validate_json(bytes(frame), by_name=False).error
    code, text = read_error(message.error)
    return types.ErrorData(code=code, message=text)

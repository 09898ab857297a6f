"""The payloads of one connection, which bypass the SDK, and the messages that the server sends on its own.

The SDK handles handshakes, ids and headers. Of a result it sees a stub; the server's notifications and requests do not
reach it.
"""

import secrets
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import anyio
import mcp_types as types
import msgspec
from mcp.shared.dispatcher import coerce_request_id

from mcp_mirror.errors import WireError
from mcp_mirror.payload.floods import Flood
from mcp_mirror.payload.framing import Overlong
from mcp_mirror.payload.json_rpc import (
    HEADER_MARK,
    MAX_VALUES,
    Marked,
    Message,
    RequestId,
    check_envelope,
    empty_result,
    find_mark,
    has_more_values,
    join,
    lift_result,
    object_of,
    open_message,
    open_object,
    recover_id,
    recover_method,
    short_error,
    splice,
)
from mcp_mirror.payload.spool import Frame, SpooledFrame, frame_id
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.types import Buffer, Segments

_MAX_ERROR: Final = 1 << 16
"""Bytes of a JSON-RPC error that the SDK reads whole."""
RawResult = Mapping[str, Buffer]
"""The members of a result, each as the bytes that the upstream sent."""

RawResponse = RawResult | SpooledFrame
"""A result as it arrived: its members, or the whole response, unread, in a spool file."""

LISTS: Final = frozenset({"tools/list", "resources/list", "resources/templates/list", "prompts/list"})
_UNREAD: Final = frozenset({"tools/call", "resources/read", "prompts/get"}) | LISTS
"""Methods whose large results pass unread: the caller reads them where that does not block the event loop."""
_MAX_HEADER_LIST: Final = 4 << 20
"""Bytes of a list of tools that the SDK may read, to learn which arguments go into HTTP headers."""
_MAX_ENDED: Final = 256
"""Ids of ended requests that are remembered."""
_INITIALIZE: Final = b'"initialize"'
_HEAD_SIZE: Final = 200
"""Bytes at the beginning of a frame that contain its method."""


@dataclass(frozen=True, slots=True)
class ServerMessage:
    """A request or a notification that the server sent on its own."""

    method: str
    params: Mapping[str, Any]
    id: RequestId | None
    """None for a notification."""
    about: str | None
    """The token of the gateway's request on whose stream it came; None if the transport has only one stream."""
    fault: str | None = None
    """Why its parameters cannot be read, a sentence; they are empty then."""
    size: int = field(default=0, compare=False)
    """Its size on the wire, in bytes."""


@dataclass(slots=True)
class PendingRequest:
    """A request whose payload bypasses the SDK."""

    method: str
    params: Mapping[str, Segments] | None
    capabilities: Mapping[str, Any] | None
    """The caller's capabilities, if the request declares them itself."""
    ids: list[RequestId] = field(default_factory=list)
    """The ids under which it was sent, one per attempt."""
    response: RawResponse | None = None
    """None until the result has come."""
    has_unknown_session: bool = False
    """The server does not know the session, so it did not execute the request."""
    is_sent: bool = False
    """The transport has sent all of it."""


class OutboundMessage(NamedTuple):
    """A message to the server."""

    segments: Segments
    pending: PendingRequest | None
    """The request, if it is one of the gateway's; the transport sets `is_sent` on it."""


class PayloadBypass:
    """Carries the payloads of one connection past the SDK.

    A request leaves its parameters under a token and is marked with it; the transport splices them into the outgoing
    bytes, learns the request's id, and lifts the result out of the response with that id.
    """

    def __init__(
        self,
        capabilities: Mapping[str, Any] | None = None,
        dispatch: Callable[[ServerMessage], None] = lambda _message: None,
        limits: WirePolicy | None = None,
    ) -> None:
        """Create the bypass of a new connection.

        Args:
            capabilities: The client capabilities that the handshake declares; None for those of the SDK.
            dispatch: Called with each message that the server sends on its own, in the order of arrival.
            limits: The limits on messages.
        """
        self.ended: anyio.Event = anyio.Event()
        """Set when either side has ended the connection."""
        self.is_stuck: bool = False
        """The server neither reads nor writes readable messages, so the transport does not wait for it to exit."""
        self.flood: Flood = Flood()
        """Counts the messages that the gateway did not request."""
        self.is_blocked: Callable[[], bool] = lambda: False
        """Whether a message over its limit blocks the only stream of the transport."""
        self._dispatch = dispatch
        self._limits = limits or WirePolicy()
        self._drop_request: Callable[[RequestId], None] = lambda _identity: None
        self._capabilities = capabilities
        self._pending: dict[str, PendingRequest] = {}
        self._awaited: dict[RequestId, str] = {}
        self._ended_ids: deque[RequestId] = deque(maxlen=_MAX_ENDED)
        """Ids of requests that have ended: late messages for them are dropped."""

    def attach(
        self,
        *,
        is_blocked: Callable[[], bool] | None = None,
        drop_request: Callable[[RequestId], None] | None = None,
    ) -> None:
        """Attach the transport that was opened.

        Args:
            is_blocked: Whether a message over its limit blocks its only stream.
            drop_request: Called with the id of each request that has ended, answered or not.
        """
        self.is_blocked = is_blocked or self.is_blocked
        self._drop_request = drop_request or self._drop_request

    def __len__(self) -> int:
        """The number of requests in flight."""
        return len(self._pending)

    def open(
        self,
        method: str,
        params: Mapping[str, Segments] | None = None,
        capabilities: Mapping[str, Any] | None = None,
    ) -> str:
        """Register a request; return its token.

        Args:
            method: Its method.
            params: The parameters to splice into it.
            capabilities: The caller's capabilities, if the request must declare them.
        """
        token = secrets.token_hex(16)
        self._pending[token] = PendingRequest(method, params, capabilities)
        return token

    def close(self, token: str) -> None:
        """Remove a request, answered or not."""
        pending = self._pending.pop(token)
        for identity in pending.ids:
            self._awaited.pop(identity, None)
            self._ended_ids.append(identity)
            self._drop_request(identity)
        if isinstance(pending.response, SpooledFrame):
            pending.response.discard()

    def take(self, token: str) -> RawResponse | None:
        """Return the result of a request, once; None before it has come."""
        response, self._pending[token].response = self._pending[token].response, None
        return response

    def pending(self, token: str) -> PendingRequest:
        """Return a request in flight."""
        return self._pending[token]

    def give_up(self) -> None:
        """End the connection without waiting for the server."""
        self.is_stuck = True
        self.ended.set()

    def report_unknown_session(self, identity: RequestId) -> None:
        """Note that the server does not know the session of a request, and end the connection."""
        if pending := self._find_awaiting(identity):
            pending.has_unknown_session = True
        self.ended.set()

    def outbound(self, frame: bytes) -> OutboundMessage:
        """Return the message to send for a message of the SDK. A frame may be sent again, as for an auth retry."""
        marked = find_mark(frame)
        pending = self._pending.get(marked.token) if marked else None
        if marked is None or pending is None or marked.id is None:
            return OutboundMessage(self._with_client_capabilities(frame), None)
        identity = coerce_request_id(marked.id)
        self._awaited[identity] = marked.token
        pending.ids.append(identity)
        return OutboundMessage(splice(_with_capabilities(marked, pending.capabilities), pending.params or {}), pending)

    def inbound(self, frame: Frame, about: RequestId | None = None) -> Buffer | None:
        """Return the message that the SDK sees for a received frame; None if it sees nothing.

        Args:
            frame: The received frame.
            about: The request on whose own stream it came.

        Raises:
            WireError: The frame is not a JSON-RPC message, or is too large.
        """
        self.flood.take()
        if isinstance(frame, Overlong):
            raise WireError(f"A message of {frame.size:,} bytes is over `limits.max_message_bytes`.")
        return self._pass_spooled(frame, about) if isinstance(frame, SpooledFrame) else self._open_frame(frame, about)

    def _pass_spooled(self, frame: SpooledFrame, about: RequestId | None) -> Buffer | None:
        """Pass a large response to its caller unread; drop one that comes too late."""
        identity = frame_id(frame)
        pending = None if identity is None else self._find_awaiting(identity)
        if identity is not None and pending is not None and self._is_passed_unread(pending, frame):
            if pending.response is not None:
                frame.discard()
                return None
            self.flood.give_back()
            pending.response = frame
            return empty_result(pending.method, identity)
        with frame:
            if identity is not None and coerce_request_id(identity) in self._ended_ids:
                return None
            # Lists have a limit of their own. Other large messages are refused before they are opened.
            is_large = frame.size > self._limits.max_envelope_bytes or has_more_values(frame.view, MAX_VALUES)
            if pending is not None or not is_large:
                return self._open_frame(frame.view, about)
            fault = f"The message of {frame.size:,} bytes is too large or has too many values for its kind."
            if (method := recover_method(frame.head)) is None:
                raise WireError(fault)
            self._dispatch(ServerMessage(method, {}, identity, self._find_token(about), fault, frame.size))
            return None

    def _is_passed_unread(self, pending: PendingRequest, frame: SpooledFrame) -> bool:
        if pending.method == "tools/list" and frame.size <= _MAX_HEADER_LIST and HEADER_MARK in bytes(frame.view):
            return False
        return pending.method in _UNREAD

    def _open_frame(self, frame: Buffer, about: RequestId | None) -> Buffer | None:
        try:
            message = open_message(frame, self._limits.max_depth)
            if not isinstance(message.result, dict) or not self.awaits(_read_id(message)):
                check_envelope(frame, self._limits.max_envelope_bytes)
        except WireError as error:
            if (method := recover_method(frame)) is None:
                raise
            self._dispatch(ServerMessage(method, {}, recover_id(frame), self._find_token(about), str(error)))
            return None
        if isinstance(message.method, str):
            self._dispatch(_decode_server_message(message, message.method, self._find_token(about), len(frame)))
            return None
        identity = None if (given := _read_id(message)) is None else coerce_request_id(given)
        pending = None if identity is None else self._find_awaiting(identity)
        if pending is None:
            return _build_empty_response(message) if identity in self._ended_ids else frame
        return self._lift(message, pending, frame)

    def _lift(self, message: Message, pending: PendingRequest, frame: Buffer) -> Buffer | None:
        """Return what the SDK sees of a response to a pending request."""
        self.flood.give_back()
        if pending.response is not None:  # a second response; the first is about to be taken
            return None
        if not isinstance(message.error, msgspec.UnsetType) and len(memoryview(message.error)) > _MAX_ERROR:
            return short_error(message)
        lifted = lift_result(message, pending.method)
        if lifted is None:
            return frame
        pending.response = lifted.members
        return lifted.stub

    def awaits(self, identity: RequestId | None) -> bool:
        """Whether a request with this id is in flight."""
        return identity is not None and coerce_request_id(identity) in self._awaited

    def _find_awaiting(self, identity: RequestId) -> PendingRequest | None:
        return self._pending.get(self._awaited.get(coerce_request_id(identity), ""))

    def _find_token(self, identity: RequestId | None) -> str | None:
        return None if identity is None else self._awaited.get(coerce_request_id(identity))

    def _with_client_capabilities(self, frame: bytes) -> Segments:
        """Declare the client's capabilities in the handshake, instead of those of the SDK."""
        if self._capabilities is None or _INITIALIZE not in frame[:_HEAD_SIZE]:
            return (frame,)
        request = open_object(frame) or {}
        params = open_object(request.get("params", b"null")) or {}
        params["capabilities"] = msgspec.json.encode(self._capabilities)
        return (join(object_of({**request, "params": join(object_of(params))})),)


def _read_id(message: Message) -> RequestId | None:
    return message.id if isinstance(message.id, int | str) else None


def _with_capabilities(marked: Marked, capabilities: Mapping[str, Any] | None) -> Marked:
    """Declare the caller's capabilities in a 2026-07-28 request, instead of those of the SDK."""
    if capabilities is None:
        return marked
    meta = open_object(marked.body.get("_meta", b"{}")) or {}
    meta[types.CLIENT_CAPABILITIES_META_KEY] = msgspec.json.encode(capabilities)
    return Marked(
        marked.token,
        marked.id,
        marked.envelope,
        {**marked.body, "_meta": join(object_of(meta))},
        is_request=marked.is_request,
    )


def _decode_server_message(message: Message, method: str, about: str | None, size: int) -> ServerMessage:
    """Decode a message that the server sent on its own; such messages are small."""
    params = message.params if isinstance(message.params, dict) else {}
    identity = message.id if isinstance(message.id, int | str) else None
    try:
        return ServerMessage(
            method, {key: msgspec.json.decode(raw) for key, raw in params.items()}, identity, about, size=size
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return ServerMessage(method, {}, identity, about, f"The message cannot be read: {error}.")


def _build_empty_response(message: Message) -> bytes:
    """Return what the SDK sees of a response to a request that has ended."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": message.id, "result": {}})

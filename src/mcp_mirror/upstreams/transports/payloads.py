"""The way past the SDK for one upstream's connection: payloads of requests and results, and all that it says itself.

The SDK is left with handshakes, ids and headers; results reach it as stubs, and what the server says or asks of its
own accord does not reach it at all.
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

MOST_BYTES: Final = 1 << 16
"""Of a JSON-RPC error that is read whole."""
RawResult = Mapping[str, Buffer]
"""The members of a result, each as the bytes that came."""

RawResponse = RawResult | SpooledFrame
"""A result as it arrived: its members, or the whole response, unread, in a file."""

LISTS: Final = frozenset({"tools/list", "resources/list", "resources/templates/list", "prompts/list"})
_UNREAD: Final = frozenset({"tools/call", "resources/read", "prompts/get"}) | LISTS
"""Methods whose large results go on unread: who asked reads them where that holds up nobody."""
_HEADERS: Final = 4 << 20
"""Bytes of a list of tools that the SDK may read to learn which arguments go into HTTP headers."""
_REMEMBERED: Final = 256
_INITIALIZE: Final = b'"initialize"'
_HEAD: Final = 200
"""Bytes of a frame in which its method stands."""


@dataclass(frozen=True, slots=True)
class ServerMessage:
    """A request or a notification of the server's own."""

    method: str
    params: Mapping[str, Any]
    id: RequestId | None
    """None: a notification."""
    about: str | None
    """The token of the request of ours on whose stream it came; None where the transport has one stream for all."""
    fault: str | None = None
    """Why what it holds cannot be read, a sentence; its parameters are not there then."""
    size: int = field(default=0, compare=False)
    """Bytes that it came in."""


@dataclass(slots=True)
class PendingRequest:
    """One request whose payload goes past the SDK."""

    method: str
    params: Mapping[str, Segments] | None
    capabilities: Mapping[str, Any] | None
    """What the caller can do, where the request says so itself."""
    ids: list[RequestId] = field(default_factory=list)
    """The ids it was sent under: one a send."""
    arrival: RawResponse | None = None
    """None: no result of its has come."""
    forgotten: bool = False
    """The server does not know the session that it was sent in, so it was not carried out."""
    is_sent: bool = False
    """The transport has taken all of it."""


class OutboundMessage(NamedTuple):
    """A message on its way out."""

    segments: Segments
    pending: PendingRequest | None
    """The request that it is, if it is one of the gateway's: the transport says when the other end has taken it."""


class PayloadBypass:
    """The payloads of one connection on their way past the SDK.

    A request leaves its parameters under a token and is marked with it; the transport splices them into the outgoing
    bytes, learns the request's id, and lifts the result out of the response with that id.
    """

    def __init__(self, capabilities: Mapping[str, Any] | None = None) -> None:
        """Make one for a new connection.

        Args:
            capabilities: What the handshake says that the client can do; None for what the SDK says.
        """
        self.ended = anyio.Event()
        """Set when nothing more can come, whoever has ended it."""
        self.hear: Callable[[ServerMessage], None] = lambda _said: None
        """Told of all that the server says of its own accord, in the order in which it came."""
        self.is_stuck = False
        """The server neither reads nor says anything that can be read: it is not waited for."""
        self.is_dropping: Callable[[], bool] = lambda: False
        """Set by a transport that has one stream for all: a message past its bound holds up the others."""
        self.flood = Flood()
        """Counts what the server says unasked."""
        self.limits = WirePolicy()
        """What the transport goes by."""
        self.on_over: Callable[[RequestId], None] = lambda _identity: None
        """Told of each request that is over, answered or not."""
        self._capabilities = capabilities
        self._passages: dict[str, PendingRequest] = {}
        self._awaited: dict[RequestId, str] = {}
        self._over: deque[RequestId] = deque(maxlen=_REMEMBERED)
        """Ids of requests that are answered or given up: what comes for them is for nobody."""

    def __len__(self) -> int:
        """How many requests are under way."""
        return len(self._passages)

    def open(
        self,
        method: str,
        params: Mapping[str, Segments] | None = None,
        capabilities: Mapping[str, Any] | None = None,
    ) -> str:
        """A token for one request, with the parameters to splice into it."""
        token = secrets.token_hex(16)
        self._passages[token] = PendingRequest(method, params, capabilities)
        return token

    def close(self, token: str) -> None:
        """Forget a request, answered or not."""
        pending = self._passages.pop(token)
        for identity in pending.ids:
            self._awaited.pop(identity, None)
            self._over.append(identity)
            self.on_over(identity)
        if isinstance(pending.arrival, SpooledFrame):
            pending.arrival.discard()

    def take(self, token: str) -> RawResponse | None:
        """What was lifted out of the answer; None where nothing was."""
        arrival, self._passages[token].arrival = self._passages[token].arrival, None
        return arrival

    def pending(self, token: str) -> PendingRequest:
        """What is known of a request that is under way."""
        return self._passages[token]

    def give_up(self) -> None:
        """End the connection without waiting for the server."""
        self.is_stuck = True
        self.ended.set()

    def forgotten(self, identity: RequestId) -> None:
        """Told by the transport that the server does not know the session that this request was sent in."""
        if pending := self._awaiting(identity):
            pending.forgotten = True
        self.ended.set()

    def outbound(self, frame: bytes) -> OutboundMessage:
        """What to send for a message of the SDK's. A frame may be sent again (an auth retry, a redirect)."""
        marked = find_mark(frame)
        pending = self._passages.get(marked.token) if marked else None
        if marked is None or pending is None or marked.id is None:
            return OutboundMessage(self._presented(frame), None)
        identity = coerce_request_id(marked.id)
        self._awaited[identity] = marked.token
        pending.ids.append(identity)
        return OutboundMessage(splice(_with_capabilities(marked, pending.capabilities), pending.params or {}), pending)

    def inbound(self, frame: Frame, about: RequestId | None = None) -> Buffer | None:
        """The message that the SDK is to see for a frame that came; None where there is nothing to see.

        Args:
            frame: What came.
            about: The request on whose own stream it came.

        Raises:
            WireError: The frame is no JSON-RPC message, or too large.
        """
        self.flood.take()
        if isinstance(frame, Overlong):
            raise WireError(f"A message of {frame.size:,} bytes is over `limits.max_message_bytes`.")
        return self._spooled(frame, about) if isinstance(frame, SpooledFrame) else self._opened(frame, about)

    def _spooled(self, frame: SpooledFrame, about: RequestId | None) -> Buffer | None:
        """A large answer to a call goes on unread to the caller; one that comes too late goes nowhere."""
        identity = frame_id(frame)
        pending = None if identity is None else self._awaiting(identity)
        if identity is not None and pending is not None and self._goes_unread(pending, frame):
            if pending.arrival is not None:
                frame.discard()
                return None
            self.flood.give_back()
            pending.arrival = frame
            return empty_result(pending.method, identity)
        with frame:
            if identity is not None and coerce_request_id(identity) in self._over:
                return None
            # A list has a bound of its own. Anything else that is large is refused before it is opened.
            is_large = frame.size > self.limits.max_envelope_bytes or has_more_values(frame.view, MAX_VALUES)
            if pending is not None or not is_large:
                return self._opened(frame.view, about)
            fault = f"The message of {frame.size:,} bytes is too large or has too many values for its kind."
            if (method := recover_method(frame.head)) is None:
                raise WireError(fault)
            self.hear(ServerMessage(method, {}, identity, self._token_of(about), fault, frame.size))
            return None

    def _goes_unread(self, pending: PendingRequest, frame: SpooledFrame) -> bool:
        if pending.method == "tools/list" and frame.size <= _HEADERS and HEADER_MARK in bytes(frame.view):
            return False
        return pending.method in _UNREAD

    def _opened(self, frame: Buffer, about: RequestId | None) -> Buffer | None:
        try:
            message = open_message(frame, self.limits.max_depth)
            if not isinstance(message.result, dict) or not self.awaits(_id_of(message)):
                check_envelope(frame, self.limits.max_envelope_bytes)
        except WireError as error:
            if (method := recover_method(frame)) is None:
                raise
            self.hear(ServerMessage(method, {}, recover_id(frame), self._token_of(about), str(error)))
            return None
        if isinstance(message.method, str):
            self.hear(_said(message, message.method, self._token_of(about), len(frame)))
            return None
        identity = None if (given := _id_of(message)) is None else coerce_request_id(given)
        pending = None if identity is None else self._awaiting(identity)
        if pending is None:
            return _nothing(message) if identity in self._over else frame
        return self._answered(message, pending, frame)

    def _answered(self, message: Message, pending: PendingRequest, frame: Buffer) -> Buffer | None:
        """What the SDK sees of an answer to a request of ours."""
        self.flood.give_back()
        if pending.arrival is not None:  # it has been answered; its caller is on the way to take the answer
            return None
        if not isinstance(message.error, msgspec.UnsetType) and len(memoryview(message.error)) > MOST_BYTES:
            return short_error(message)
        lifted = lift_result(message, pending.method)
        if lifted is None:
            return frame
        pending.arrival = lifted.members
        return lifted.stub

    def awaits(self, identity: RequestId | None) -> bool:
        """Whether a request with this id is under way."""
        return identity is not None and coerce_request_id(identity) in self._awaited

    def _awaiting(self, identity: RequestId) -> PendingRequest | None:
        return self._passages.get(self._awaited.get(coerce_request_id(identity), ""))

    def _token_of(self, identity: RequestId | None) -> str | None:
        return None if identity is None else self._awaited.get(coerce_request_id(identity))

    def _presented(self, frame: bytes) -> Segments:
        """The handshake says what the caller can do, not what we can."""
        if self._capabilities is None or _INITIALIZE not in frame[:_HEAD]:
            return (frame,)
        request = open_object(frame) or {}
        params = open_object(request.get("params", b"null")) or {}
        params["capabilities"] = msgspec.json.encode(self._capabilities)
        return (join(object_of({**request, "params": join(object_of(params))})),)


def _id_of(message: Message) -> RequestId | None:
    return message.id if isinstance(message.id, int | str) else None


def _with_capabilities(marked: Marked, capabilities: Mapping[str, Any] | None) -> Marked:
    """The 2026 era's requests say what the client can do: what the caller can, not what we can."""
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


def _said(message: Message, method: str, about: str | None, size: int) -> ServerMessage:
    """What a server says of its own accord is small and meant for people: it is read, and written anew."""
    params = message.params if isinstance(message.params, dict) else {}
    identity = message.id if isinstance(message.id, int | str) else None
    try:
        return ServerMessage(
            method, {key: msgspec.json.decode(raw) for key, raw in params.items()}, identity, about, size=size
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return ServerMessage(method, {}, identity, about, f"The message cannot be read: {error}.")


def _nothing(message: Message) -> bytes:
    """What the SDK sees of a large answer that nobody waits for any more."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": message.id, "result": {}})

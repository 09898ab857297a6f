"""The way past the SDK for the payloads of one upstream's connection."""

import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import msgspec
from mcp.shared.dispatcher import coerce_request_id

from mcp_mirror.errors import WireError
from mcp_mirror.frames import Overlong
from mcp_mirror.models import Buffer, Segments
from mcp_mirror.spool import Frame, SpooledFrame, identity_of
from mcp_mirror.wire import Message, RequestId, array_of, find_mark, join, lift_result, open_array, open_message, splice

RawResult = Mapping[str, Buffer]
"""The members of a `tools/call` result, each as the bytes that came."""

Arrival = RawResult | SpooledFrame
"""A result as it arrived: its members, or the whole response, unread, in a file."""

_REMEMBERED: Final = 256
_EMPTY_RESULT: Final[Mapping[str, Any]] = {"content": [], "resultType": "complete"}
_HEADER: Final = b'"x-mcp-header"'
"""In the tools from whose schemas the SDK computes headers: the others it need not know."""
_SDK_READS: Final = frozenset({"content", "isError", "resultType", "tools", "nextCursor", "ttlMs", "cacheScope"})


@dataclass(slots=True)
class _Passage:
    """One request whose payload goes past the SDK."""

    arguments: Segments | None
    ids: list[RequestId] = field(default_factory=list)
    """The ids it was sent under: one a send."""
    arrival: Arrival | None = None
    """None: no result of its has come."""
    forgotten: bool = False
    """The server does not know the session that it was sent in, so it was not carried out."""


class Bypass:
    """The payloads of one connection on their way past the SDK.

    A call leaves its arguments under a token and marks its request with it; the transport splices them into the
    outgoing bytes, learns the request's id, and lifts the result out of the response with that id.
    """

    def __init__(self) -> None:
        self.ended = anyio.Event()
        """Set by the transport when nothing more can come."""
        self._passages: dict[str, _Passage] = {}
        self._awaited: dict[RequestId, _Passage] = {}
        self._over: deque[RequestId] = deque(maxlen=_REMEMBERED)
        """Ids of requests that are answered or given up: what comes for them is for nobody."""

    def __len__(self) -> int:
        """How many requests are under way."""
        return len(self._passages)

    def open(self, arguments: Segments | None = None) -> str:
        """A token for one request; with the arguments to splice into it, if it is a call."""
        token = secrets.token_hex(16)
        self._passages[token] = _Passage(arguments)
        return token

    def close(self, token: str) -> None:
        """Forget a request, answered or not."""
        passage = self._passages.pop(token)
        for identity in passage.ids:
            self._awaited.pop(identity, None)
            self._over.append(identity)
        if isinstance(passage.arrival, SpooledFrame):
            passage.arrival.discard()

    def take(self, token: str) -> Arrival | None:
        """What was lifted out of the answer; None where nothing was."""
        arrival, self._passages[token].arrival = self._passages[token].arrival, None
        return arrival

    def was_forgotten(self, token: str) -> bool:
        """Whether the server refused the request for want of its session."""
        return self._passages[token].forgotten

    def forgotten(self, identity: RequestId) -> None:
        """Told by the transport that the server does not know the session that this request was sent in."""
        if passage := self._awaited.get(coerce_request_id(identity)):
            passage.forgotten = True
        self.ended.set()

    def outbound(self, frame: bytes) -> Segments:
        """The bytes to send for a message of the SDK's. A frame may be sent again (an auth retry, a redirect)."""
        marked = find_mark(frame)
        passage = self._passages.get(marked.token) if marked else None
        if marked is None or passage is None or marked.id is None:
            return (frame,)
        identity = coerce_request_id(marked.id)
        self._awaited[identity] = passage
        passage.ids.append(identity)
        return splice(marked, {} if passage.arguments is None else {"arguments": passage.arguments})

    def inbound(self, frame: Frame) -> Buffer | None:
        """The message that the SDK is to see for a frame that came; None where there is nothing to see.

        Raises:
            WireError: The frame is no JSON-RPC message, or too large.
        """
        if isinstance(frame, Overlong):
            raise WireError(f"A message of {frame.size:,} bytes is over `limits.max_message_bytes`.")
        return self._spooled(frame) if isinstance(frame, SpooledFrame) else self._opened(frame)

    def _spooled(self, frame: SpooledFrame) -> Buffer | None:
        """A large answer to a call goes on unread to the caller; one that comes too late goes nowhere."""
        identity = identity_of(frame)
        key = None if identity is None else coerce_request_id(identity)
        passage = self._awaited.get(key) if key is not None else None
        if passage is not None and passage.arguments is not None:
            passage.arrival = frame
            return msgspec.json.encode({"jsonrpc": "2.0", "id": identity, "result": _EMPTY_RESULT})
        with frame:
            return None if key in self._over else self._opened(bytes(frame.view))

    def _opened(self, frame: bytes) -> Buffer:
        message = open_message(frame)
        identity = coerce_request_id(message.id) if isinstance(message.id, int | str) else None
        passage = self._awaited.get(identity) if identity is not None else None
        if passage is None:
            return _nothing(message) if identity in self._over else frame
        lifted = lift_result(_without_extras(message), "tools/list" if passage.arguments is None else "tools/call")
        if lifted is None or not isinstance(message.result, dict):
            return frame
        passage.arrival = {key: memoryview(raw) for key, raw in message.result.items()}
        return lifted.stub

    def awaits(self, identity: RequestId | None) -> bool:
        """Whether a request with this id is under way."""
        return identity is not None and coerce_request_id(identity) in self._awaited


def _without_extras(message: Message) -> Message:
    """The message with no more in its result than the SDK acts on: it would stumble over what it does not know."""
    if not isinstance(message.result, dict):
        return message
    read = {key: raw for key, raw in message.result.items() if key in _SDK_READS}
    if tools := read.get("tools"):
        annotated = [raw for raw in open_array(memoryview(tools)) or () if _HEADER in bytes(raw)]
        read["tools"] = msgspec.Raw(join(array_of(annotated)))
    return msgspec.structs.replace(message, result=read)


def _nothing(message: Message) -> bytes:
    """What the SDK sees of a large answer that nobody waits for any more."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": message.id, "result": {}})

"""Requests that a server sends to the client, such as elicitation requests: their limits, answers and cancellations.

Each request is refused or accepted as it arrives. An accepted one is answered in a task of its own: by the client, or
with an error if the client cannot have it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel
import mcp_types as types
import msgspec
from anyio.abc import TaskGroup
from mcp.shared.message import ServerMessageMetadata, SessionMessage

from mcp_mirror.callers import CAPABILITY_OF
from mcp_mirror.errors import BusyError, RefusedError, summarize_traceback
from mcp_mirror.payload.json_rpc import RequestId
from mcp_mirror.payload.pipes import MessageSink
from mcp_mirror.security.rate_limits import Limit, TokenBucket, explain_too_many_requests
from mcp_mirror.settings.limits import UpstreamBounds
from mcp_mirror.system.limited_logs import RepeatedLog
from mcp_mirror.system.slices import Pacer
from mcp_mirror.upstreams.client_backlog import MESSAGE_OVERHEAD, REQUEST_COPIES, BacklogPart, ClientBacklog
from mcp_mirror.upstreams.content_filter import filter_content
from mcp_mirror.upstreams.inflight import InflightRequest, InflightRequests
from mcp_mirror.upstreams.transports.server_messages import ServerMessage

if TYPE_CHECKING:
    from mcp_mirror.upstreams.notifications import NotificationQueue

_MAX_QUEUED_REFUSALS: Final = 1_000
"""Error responses to requests over `limits.max_input_requests` that wait to be sent."""

_logger = logging.getLogger(__name__)


class _AcceptedRequest(msgspec.Struct, eq=False):
    """A request of the server that has no response yet."""

    message: ServerMessage
    id: RequestId
    cost: int
    """Bytes that it takes of the backlog; 0 once they are given back."""
    about: str | None
    """The token of the call that waits for the answer, as far as it is known."""
    answering: anyio.CancelScope = msgspec.field(default_factory=anyio.CancelScope)
    """All of its answer; cancelled when the server cancels the request, which then gets no response."""
    waiting: anyio.CancelScope = msgspec.field(default_factory=anyio.CancelScope)
    """The wait for the client; cancelled if its call has ended and another request needs the room."""
    call: InflightRequest | None = None
    """The call that it is about, while the client has it and has not answered."""
    ended: asyncio.Event = msgspec.field(default_factory=asyncio.Event)


class ServerRequests:
    """The requests that one server has made of its clients on one connection."""

    def __init__(
        self,
        tasks: TaskGroup,
        bounds: UpstreamBounds,
        backlog: ClientBacklog,
        inflight: InflightRequests,
        owner_queue: "NotificationQueue | None",
    ) -> None:
        """Start without requests.

        Args:
            tasks: The task group of the connection, in which requests are answered.
            bounds: The limits of the upstream.
            backlog: The memory of messages that wait for clients.
            inflight: The calls that the requests may be about.
            owner_queue: The notifications to the client of a dedicated connection; None if it has several clients.
        """
        self._tasks = tasks
        self._bounds = bounds
        self._backlog = BacklogPart(backlog)
        """The requests that wait for answers."""
        self._inflight = inflight
        self._owner_queue = owner_queue
        self._log = RepeatedLog(_logger)
        limit = Limit("max_input_requests_per_call", bounds.max_input_requests_per_call)
        self._outside_calls = TokenBucket(limit, "The connection", anyio.current_time)
        """Limits the requests that the server makes outside of calls."""
        self._sink = MessageSink()
        self._accepted: dict[_AcceptedRequest, None] = {}
        """The requests without a response, oldest first."""
        self._by_id: dict[RequestId, _AcceptedRequest] = {}
        """Those that the server may still cancel; a server may use an id twice."""
        self._unstarted: deque[_AcceptedRequest] = deque()
        """Those that no task answers yet."""
        self._refusals: deque[types.JSONRPCError] = deque()
        """The responses to requests over a limit, to be sent."""

    def connect(self, sink: MessageSink) -> None:
        """Send responses to the transport that was opened."""
        self._sink = sink

    def close(self) -> None:
        """Give back the memory of the requests: the connection has ended."""
        self._backlog.clear()

    def accept(self, message: ServerMessage, identity: RequestId) -> None:
        """Answer a request in a task; refuse it if too many requests wait, or if they take too much memory."""
        if len(self._accepted) >= self._bounds.max_input_requests and not self._make_room():
            self._refuse(message, identity, f"`limits.max_input_requests` ({self._bounds.max_input_requests:,})")
            return
        cost = REQUEST_COPIES * message.memory + MESSAGE_OVERHEAD
        request = _AcceptedRequest(message, identity, cost, message.about)
        while not self._backlog.take(request.cost):
            if not self._make_room():
                limit = self._backlog.backlog.limit
                self._refuse(message, identity, f"`limits.max_queued_notification_bytes` ({limit:,}) of")
                return
        self._accepted[request] = None
        self._by_id[identity] = request
        if not self._unstarted:
            self._tasks.start_soon(self._start_answers)
        self._unstarted.append(request)

    def cancel(self, identity: RequestId) -> None:
        """Stop answering a request: the server has cancelled it."""
        if request := self._by_id.get(identity):
            request.answering.cancel()
            if request.call is not None:
                request.call.queue.cancellations.append(request.ended)

    def _make_room(self) -> bool:
        """Drop the oldest request about a call that has ended; return whether there was one.

        Servers end calls without cancelling what they asked. Until another request needs the room, the client may still
        answer: which call a request is about is not always known.
        """
        for request in self._accepted:
            if request.call is not None and request.call.is_over:
                request.call = None
                request.waiting.cancel()
                self._release(request)
                return True
        return False

    def _release(self, request: _AcceptedRequest) -> None:
        """Give back the memory of a request; only the first call has an effect."""
        self._backlog.give_back(request.cost)
        request.cost = 0

    def _refuse(self, message: ServerMessage, identity: RequestId, limit: str) -> None:
        """Queue an error response to a request over a limit; drop it if that queue is full too."""
        self._log.warning(f"%s is refused: {limit} requests wait for answers", _name(message))
        if not self._refusals:
            self._tasks.start_soon(self._send_refusals)
        if len(self._refusals) < _MAX_QUEUED_REFUSALS:
            reason = f"{limit} requests wait for their answers. Wait for one."
            error = types.ErrorData(code=types.INVALID_REQUEST, message=reason)
            self._refusals.append(types.JSONRPCError(jsonrpc="2.0", id=identity, error=error))

    async def _send_refusals(self) -> None:
        pacer = Pacer()
        while self._refusals:
            pacer.begin()
            await self._send(self._refusals[0])
            await pacer.end()
            self._refusals.popleft()  # after the pause, in which `_refuse` starts no second task

    async def _start_answers(self) -> None:
        """Answer the accepted requests, each in a task, one in each pass of the event loop."""
        while self._unstarted:
            self._tasks.start_soon(self._answer, self._unstarted[0])
            await anyio.lowlevel.checkpoint()
            self._unstarted.popleft()

    async def _answer(self, request: _AcceptedRequest) -> None:
        """Answer a request of the server with the client's answer, unless the server cancels it."""
        try:
            with request.answering:
                await anyio.lowlevel.checkpoint_if_cancelled()  # cancelled before this task began
                response = await self._build_response(request)
            if not request.answering.cancelled_caught:
                await self._send(response, request.about)
        finally:
            del self._accepted[request]
            if self._by_id.get(request.id) is request:
                del self._by_id[request.id]
            self._release(request)
            request.ended.set()

    async def _build_response(self, request: _AcceptedRequest) -> types.JSONRPCResponse | types.JSONRPCError:
        identity = request.id
        try:
            result = await self._request_client(request)
            return types.JSONRPCResponse(jsonrpc="2.0", id=identity, result=dict(result))
        except RefusedError as error:
            data = types.ErrorData(code=error.code, message=error.peer_message, data=error.data)
        except Exception as error:  # noqa: BLE001  # a client's failure must not end the upstream's connection
            _logger.error("%s could not be relayed: %s", _name(request.message), summarize_traceback(error))  # noqa: TRY400  # no values
            data = types.ErrorData(code=types.INTERNAL_ERROR, message="The request could not be relayed to the client.")
        return types.JSONRPCError(jsonrpc="2.0", id=identity, error=data)

    async def _request_client(self, request: _AcceptedRequest) -> Mapping[str, Any]:
        """Relay a request to the client, and return the client's result."""
        message = request.message
        if message.method == "ping":
            return {}
        if message.fault:
            raise RefusedError(message.fault, types.INVALID_PARAMS)
        if message.method not in CAPABILITY_OF:
            raise RefusedError(f"This client does not support {message.method}.", types.METHOD_NOT_FOUND)
        call, queue = await self._find_client(message)
        if not queue.channel.caller.can_answer(message.method):
            raise RefusedError(
                f"The client has not declared `{CAPABILITY_OF[message.method]}`.", types.METHOD_NOT_FOUND
            )
        if call is None:
            self._count_outside_calls()
        else:
            request.about = call.token
            await self._count(message, call)
        channel = filter_content(queue.channel) if self._inflight.may_be_hidden(message) else queue.channel
        if call is None:
            return await channel.request(message.method, message.params)
        with request.waiting, call.timeout.paused():
            request.call = call
            try:
                return await channel.request(message.method, message.params)
            finally:
                request.call = None
        raise RefusedError("The call that this request was about has ended.", types.INVALID_REQUEST)

    async def _find_client(self, message: ServerMessage) -> "tuple[InflightRequest | None, NotificationQueue]":
        """Return the call that a request is about, and the queue of its client, once earlier notifications are sent.

        Raises:
            RefusedError: Several clients use the connection, and no call of one of them is in flight.
        """
        ended: InflightRequest | None = None
        while True:
            call = self._inflight.find(message) or (None if self._owner_queue else ended)
            queue = call.queue if call else self._owner_queue
            if queue is None:
                reason = "Send the request during a call: the connection does not belong to one client."
                raise RefusedError(reason, types.INVALID_REQUEST)
            await queue.drain()
            if call is None or call is ended or not call.is_over:
                return call, queue
            ended = call  # its client listens for messages about it no longer, so find another one

    def _count_outside_calls(self) -> None:
        try:
            self._outside_calls.take()
        except BusyError as error:
            raise RefusedError(str(error), types.INVALID_REQUEST) from None

    async def _count(self, message: ServerMessage, call: InflightRequest) -> None:
        """Count a request to the client against its call, or against the least used one if the server names no call.

        A request over the limit is refused after its call was cancelled, because the server would continue otherwise.
        """
        if message.about is None:
            call = self._inflight.find_least_used() or call
        call.server_requests += 1
        limit = self._bounds.max_input_requests_per_call
        if call.server_requests > limit:
            call.timeout.stop(reason := explain_too_many_requests(limit))
            await call.wait_until_over()
            raise RefusedError(f"The server {reason}", types.INVALID_REQUEST)

    async def _send(self, response: types.JSONRPCResponse | types.JSONRPCError, about: str | None = None) -> None:
        metadata = ServerMessageMetadata(related_request_id=about)
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._sink.send(SessionMessage(response, metadata))


def _name(message: ServerMessage) -> str:
    """Return the method of a request for the log, only if it is known: a server may use any text as a method."""
    return message.method if message.method in CAPABILITY_OF or message.method == "ping" else "an unknown request"

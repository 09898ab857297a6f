"""Messages that a server sends on its own: progress, log lines, list changes, and requests to the client.

Each message goes to the caller of the request that it is about, in the order of arrival. A message that names no
request goes to the one client of a dedicated connection. How messages reach a client is the server package's concern.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, Final, Self

import anyio
import anyio.lowlevel
import mcp_types as types
import msgspec
from anyio.abc import TaskGroup
from mcp.shared.dispatcher import as_request_id
from mcp.shared.message import SessionMessage

from mcp_mirror.callers import CAPABILITY_OF, ClientChannel
from mcp_mirror.errors import BusyError, RefusedError, summarize_traceback
from mcp_mirror.payload.floods import RepeatedLog
from mcp_mirror.payload.json_rpc import RequestId
from mcp_mirror.payload.pipes import MessageSink
from mcp_mirror.security.rate_limits import Limit, TokenBucket, explain_too_many_requests
from mcp_mirror.settings.limits import UpstreamBounds
from mcp_mirror.system.slices import Pacer
from mcp_mirror.upstreams.client_backlog import REQUEST_COPIES, ClientBacklog
from mcp_mirror.upstreams.content_filter import filter_content, is_filtered
from mcp_mirror.upstreams.rebuilt_messages import MAX_BOUNDED, rebuild_notification
from mcp_mirror.upstreams.transports.payloads import ServerMessage
from mcp_mirror.upstreams.transports.requests import PausableTimeout

_DELIVERY_TIMEOUT: Final = 5.0
"""Seconds that the delivery of one notification may take."""
_QUEUE_OVERHEAD: Final = 500
"""Bytes that a queued notification costs beside its own."""
_MAX_UPDATE_MEMORY: Final = 1 << 18
"""Bytes that an update of a resource may take in memory: a thousand may wait for each client."""
_MAX_QUEUED_REFUSALS: Final = 1_000
"""Error responses to requests over `limits.max_input_requests` that wait to be sent."""

CHANGES: Final[Mapping[str, str]] = {
    "notifications/tools/list_changed": "tools",
    "notifications/resources/list_changed": "resources",
    "notifications/prompts/list_changed": "prompts",
}
"""The changed list, by the notification that announces it."""

_logger = logging.getLogger(__name__)


class NotificationQueue:
    """Delivers notifications to one client, one after another."""

    def __init__(self, channel: ClientChannel, tasks: TaskGroup, backlog: ClientBacklog) -> None:
        self.channel = channel
        self._tasks = tasks
        self._part = backlog.new_part()
        self._queue: deque[tuple[str, Mapping[str, Any], int]] = deque()
        self._idle: anyio.Event | None = None
        self.cancellations: list[asyncio.Event] = []
        """One for each request of the server that it has cancelled: set when the client has been notified."""

    def post(self, method: str, params: Mapping[str, Any], size: int = 0) -> None:
        """Queue a notification that takes `size` bytes in memory; drop it if the queue is full."""
        size += _QUEUE_OVERHEAD
        if not self._part.take(size):
            backlog = self._part.backlog
            backlog.log.warning(
                "a notification is dropped: its client's part of `limits.max_queued_notification_bytes` (%d) is full",
                backlog.limit,
            )
            return
        self._queue.append((method, params, size))
        if self._idle is None:
            self._idle = anyio.Event()
            self._tasks.start_soon(self._deliver, self._idle)

    def close(self) -> None:
        """Drop the queued notifications."""
        self._queue.clear()
        self._part.clear()

    @property
    def is_delivering(self) -> bool:
        """Whether the queue is not empty, or a notification or a cancellation is being delivered."""
        return self._idle is not None or not all(one.is_set() for one in self.cancellations)

    async def drain(self) -> None:
        """Wait until the queue is empty and all cancellations are delivered."""
        if self._idle is not None:
            await self._idle.wait()
        for cancellation in self.cancellations:
            await cancellation.wait()

    async def _deliver(self, idle: anyio.Event) -> None:
        pacer = Pacer()
        try:
            while self._queue:
                method, params, size = self._queue.popleft()
                self._part.give_back(size)
                pacer.begin()
                try:
                    with anyio.move_on_after(_DELIVERY_TIMEOUT):
                        await self.channel.notify(method, params)
                except Exception as error:  # noqa: BLE001  # a client's failure must not end the upstream's connection
                    _logger.error("%s could not be delivered: %s", _log_name(method), summarize_traceback(error))  # noqa: TRY400  # no values
                await pacer.end()
        finally:
            self._idle = None
            idle.set()


class InflightRequest(msgspec.Struct):
    """A request of a caller that waits for its response, for the duration of its context."""

    channel: ClientChannel
    """The channel of the caller."""
    timeout: PausableTimeout
    resets_timeout: bool
    """Progress starts the timeout again."""
    _token: str
    _tracked: dict[str, "InflightRequest"]
    """The requests of the connection that wait, by token."""
    _make_queue: Callable[[ClientChannel], NotificationQueue]
    server_requests: int = 0
    """Requests that the server has made of the client during this one."""
    is_over: bool = False
    """The request has ended."""
    _queue: NotificationQueue | None = None
    _end: asyncio.Event | None = None
    """None while nothing waits for the end: for most requests, the server sends only the response."""

    @property
    def queue(self) -> NotificationQueue:
        """The notifications about the request."""
        if self._queue is None:
            self._queue = self._make_queue(self.channel)
        return self._queue

    @property
    def is_delivering(self) -> bool:
        """Whether messages about the request wait for the caller."""
        return self._queue is not None and self._queue.is_delivering

    async def wait_until_over(self) -> None:
        """Wait until the request has ended, and the gateway has sent its cancellation to the server."""
        if not self.is_over:
            self._end = self._end or asyncio.Event()
            await self._end.wait()

    def __enter__(self) -> Self:
        self._tracked[self._token] = self
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over = True
        del self._tracked[self._token]
        if self._queue is not None:
            self._queue.close()
        if self._end is not None:
            self._end.set()


class ConnectionOwner(msgspec.Struct, frozen=True):
    """The session or principal that a connection belongs to, and the listeners to the server's changes."""

    on_change: Callable[[str], anyio.Event | None]
    """Called with the changed list. Returns an event that is set when clients see the change; None if they do."""
    on_update: Callable[[str, Mapping[str, Any]], None]
    """Called with the URI of an updated resource, and the parameters of the notification."""
    channel: ClientChannel | None = None
    """The channel of the one client that the connection belongs to; None if it has several."""
    capabilities: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The client capabilities that the handshake declares."""
    name: str | None = None
    """The name of the owner, a session or a `Caller.principal_key`; None if the connection is shared by all."""
    is_shared: bool = False
    """Requests of several principals or sessions use the connection."""


class _AcceptedRequest(msgspec.Struct, eq=False):
    """A request of the server that waits for the client's answer."""

    message: ServerMessage
    id: RequestId
    cost: int
    """Bytes that it takes of the backlog; 0 once they are given back."""
    scope: anyio.CancelScope = msgspec.field(default_factory=anyio.CancelScope)
    """Cancelled when the server cancels the request."""
    call: InflightRequest | None = None
    """The call that it is about, while the client has it and has not answered."""
    wait: anyio.CancelScope = msgspec.field(default_factory=anyio.CancelScope)
    """The wait for the answer; cancelled if the call has ended and another request needs the room."""
    ended: asyncio.Event = msgspec.field(default_factory=asyncio.Event)


class NotificationDispatcher:
    """Dispatches the messages that one server sends on its own."""

    def __init__(
        self, tasks: TaskGroup, owner: ConnectionOwner, bounds: UpstreamBounds, backlog: ClientBacklog
    ) -> None:
        """Create a dispatcher that delivers messages in tasks of the connection's task group."""
        self._tasks = tasks
        self._bounds = bounds
        self._backlog = backlog.new_part()
        """The requests that wait for answers."""
        self._log = RepeatedLog(_logger)
        limit = Limit("max_input_requests_per_call", self._bounds.max_input_requests_per_call)
        self._outside_calls = TokenBucket(limit, "The connection", anyio.current_time)
        """Limits the requests that the server makes outside of calls."""
        self._owner = owner
        self._sink = MessageSink()
        self._owner_queue = NotificationQueue(owner.channel, tasks, backlog) if owner.channel else None
        self._make_queue = partial(NotificationQueue, tasks=tasks, backlog=backlog)
        self._inflight: dict[str, InflightRequest] = {}
        self._accepted: dict[_AcceptedRequest, None] = {}
        """The requests of the server that have no response yet, oldest first."""
        self._by_id: dict[RequestId, _AcceptedRequest] = {}
        """Those that the server may still cancel; a server may use an id twice."""
        self._unstarted: deque[_AcceptedRequest] = deque()
        """Those that no task answers yet."""
        self._refusals: deque[types.JSONRPCError] = deque()
        """The responses to requests over a limit, to be sent."""
        self._is_subscribed = False
        self.task_changes: dict[str, anyio.Event] = {}  # by the id of a task that `run_as_task` waits for

    def connect(self, sink: MessageSink) -> None:
        """Send responses to the transport that was opened."""
        self._sink = sink

    def close(self) -> None:
        """Give back the memory of all messages that wait: the connection has ended."""
        self._backlog.clear()
        if self._owner_queue is not None:
            self._owner_queue.close()

    def track(
        self, token: str, channel: ClientChannel, timeout: PausableTimeout, *, resets_timeout: bool
    ) -> InflightRequest:
        """Route messages about a request to its caller for the duration of the context."""
        return InflightRequest(channel, timeout, resets_timeout, token, self._inflight, self._make_queue)

    def dispatch(self, message: ServerMessage) -> None:
        """Handle a notification at once, or answer a request in a task."""
        if message.fault and message.id is None:
            self._log.warning("%s is not relayed: %s", _log_name(message.method), message.fault)
        elif message.id is None:
            self.HANDLERS.get(message.method, NotificationDispatcher._relay)(self, message)
        else:
            self._accept(message, message.id)

    def _accept(self, message: ServerMessage, identity: RequestId) -> None:
        """Answer a request in a task; refuse it if too many requests wait, or if they take too much memory."""
        if len(self._accepted) >= self._bounds.max_input_requests and not self._make_room():
            self._refuse(message, identity, f"`limits.max_input_requests` ({self._bounds.max_input_requests:,})")
            return
        request = _AcceptedRequest(message, identity, REQUEST_COPIES * message.memory + _QUEUE_OVERHEAD)
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

    def _release(self, request: _AcceptedRequest) -> None:
        """Give back the memory of a request; only the first call has an effect."""
        self._backlog.give_back(request.cost)
        request.cost = 0

    def _relay_progress(self, message: ServerMessage) -> None:
        inflight = self._inflight.get(str(message.params.get("progressToken")))
        if inflight is None:
            return
        if inflight.resets_timeout:
            inflight.timeout.restart()
        if inflight.channel.wants_progress:
            self._post(message, inflight.queue, is_content_hidden=False)

    def _relay(self, message: ServerMessage) -> None:
        if queue := self._find_queue(message):
            self._post(message, queue, is_content_hidden=self._may_be_hidden(message))

    def _post(self, message: ServerMessage, queue: NotificationQueue, *, is_content_hidden: bool) -> None:
        is_hidden = is_content_hidden and not is_filtered(queue.channel)  # a filtered channel rebuilds it itself
        params = rebuild_notification(message.method, message.params, is_content_hidden=is_hidden, size=message.size)
        if params is None:
            self._log.warning(
                "%s is dropped: it is hidden, too large, or does not conform to MCP", _log_name(message.method)
            )
        else:
            queue.post(message.method, params, message.memory)

    def _may_be_hidden(self, message: ServerMessage) -> bool:
        """Whether a message that names no request may be about one whose values are hidden."""
        return message.about is None and any(is_filtered(one.channel) for one in self._inflight.values())

    def _announce_change(self, message: ServerMessage) -> None:
        self._owner.on_change(CHANGES[message.method])

    def _announce_update(self, message: ServerMessage) -> None:
        if message.size <= MAX_BOUNDED and message.memory <= _MAX_UPDATE_MEMORY:
            self._owner.on_update(str(message.params.get("uri", "")), message.params)

    def _cancel_request(self, message: ServerMessage) -> None:
        identity = as_request_id(message.params.get("requestId"))
        if identity is not None and (request := self._by_id.get(identity)):
            request.scope.cancel()
            if request.call is not None:
                request.call.queue.cancellations.append(request.ended)

    def _confirm_subscription(self, _message: ServerMessage) -> None:
        """Announce the lists that may have changed before this subscription, or since the last one ended."""
        kinds = CHANGES.values() if self._is_subscribed else ("tools",)
        self._is_subscribed = True
        for kind in kinds:
            self._owner.on_change(kind)

    def _note_task_change(self, message: ServerMessage) -> None:
        self.task_changes.get(str(message.params.get("taskId")), anyio.Event()).set()

    def _find_inflight(self, message: ServerMessage) -> InflightRequest | None:
        """Return the request that a message is about: by its stream, else one of the only caller's requests.

        Of several, return the one with the fewest requests of the server, of those that the client waits for: a client
        gives up a call that needs many input rounds. If the client waits for none, return the latest: it may never
        come back to an earlier one.
        """
        if message.about is not None:
            return self._inflight.get(message.about)
        inflight = list(self._inflight.values())
        if len({one.channel.caller.identity for one in inflight}) != 1:
            return None
        return min(self._list_awaited(), key=attrgetter("server_requests"), default=inflight[-1])

    def _list_awaited(self) -> list[InflightRequest]:
        """Return the requests that their clients wait for, oldest first."""
        return [one for one in self._inflight.values() if one.channel.is_waiting]

    def _find_queue(self, message: ServerMessage) -> NotificationQueue | None:
        inflight = self._find_inflight(message)
        return inflight.queue if inflight else self._owner_queue

    def _refuse(self, message: ServerMessage, identity: RequestId, limit: str) -> None:
        """Queue an error response to a request over a limit; drop it if that queue is full too."""
        self._log.warning(f"%s is refused: {limit} requests wait for answers", _log_name(message.method))
        if not self._refusals:
            self._tasks.start_soon(self._send_refusals)
        if len(self._refusals) < _MAX_QUEUED_REFUSALS:
            reason = f"{limit} requests wait for their answers. Wait for one."
            error = types.ErrorData(code=types.INVALID_REQUEST, message=reason)
            self._refusals.append(types.JSONRPCError(jsonrpc="2.0", id=identity, error=error))

    async def _send_refusals(self) -> None:
        while self._refusals:
            await self._send(self._refusals[0])
            self._refusals.popleft()

    async def _send(self, response: types.JSONRPCResponse | types.JSONRPCError) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._sink.send(SessionMessage(response))

    async def _start_answers(self) -> None:
        """Answer the accepted requests, each in a task, one in each pass of the event loop."""
        while self._unstarted:
            self._tasks.start_soon(self._answer, self._unstarted[0])
            await anyio.lowlevel.checkpoint()
            self._unstarted.popleft()

    async def _answer(self, request: _AcceptedRequest) -> None:
        """Answer a request of the server with the client's answer, unless the server cancels it."""
        try:
            with request.scope:
                await anyio.lowlevel.checkpoint_if_cancelled()  # cancelled before this task began
                response = await self._build_response(request)
            if not request.scope.cancelled_caught:
                await self._send(response)
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
            _logger.error("%s could not be relayed: %s", _log_name(request.message.method), summarize_traceback(error))  # noqa: TRY400  # no values
            data = types.ErrorData(code=types.INTERNAL_ERROR, message="The request could not be relayed to the client.")
        return types.JSONRPCError(jsonrpc="2.0", id=identity, error=data)

    async def _request_client(self, request: _AcceptedRequest) -> Mapping[str, Any]:
        """Relay a request of the server to the client, and return the client's result."""
        message = request.message
        if message.method == "ping":
            return {}
        if message.fault:
            raise RefusedError(message.fault, types.INVALID_PARAMS)
        if message.method not in CAPABILITY_OF:
            raise RefusedError(f"This client does not support {message.method}.", types.METHOD_NOT_FOUND)
        inflight, queue = self._find_inflight(message), self._find_queue(message)
        if queue is None:
            raise RefusedError(
                "Send the request during a call: the connection does not belong to one client.", types.INVALID_REQUEST
            )
        if not queue.channel.caller.can_answer(message.method):
            raise RefusedError(
                f"The client has not declared `{CAPABILITY_OF[message.method]}`.", types.METHOD_NOT_FOUND
            )
        await queue.drain()  # earlier notifications come first
        await self._count(message, inflight)
        channel = filter_content(queue.channel) if self._may_be_hidden(message) else queue.channel
        if inflight is None:
            return await channel.request(message.method, message.params)
        with request.wait, inflight.timeout.paused():
            request.call = inflight
            try:
                return await channel.request(message.method, message.params)
            finally:
                request.call = None
        raise RefusedError("The call that this request was about has ended.", types.INVALID_REQUEST)

    def _make_room(self) -> bool:
        """Drop the oldest request about a call that has ended; return whether there was one.

        Servers end calls without cancelling what they asked. Until another request needs the room, the client may still
        answer: which call a request is about is not always known.
        """
        for request in self._accepted:
            if request.call is not None and request.call.is_over:
                request.call = None
                request.wait.cancel()
                self._release(request)
                return True
        return False

    async def _count(self, message: ServerMessage, inflight: InflightRequest | None) -> None:
        """Count a request to the client against its call.

        If the server does not name the call, the request counts against the call with the fewest requests, of those
        that a client waits for if there are any: calls that clients abandoned do not lend their limit to others.
        A request over the limit is refused after its call was cancelled, because the server would continue otherwise.
        """
        if inflight is None:
            try:
                self._outside_calls.take()
            except BusyError as error:
                raise RefusedError(str(error), types.INVALID_REQUEST) from None
            return
        if message.about is None:
            candidates = self._list_awaited() or self._inflight.values()
            inflight = min(candidates, key=attrgetter("server_requests"), default=inflight)
        inflight.server_requests += 1
        limit = self._bounds.max_input_requests_per_call
        if inflight.server_requests > limit:
            inflight.timeout.stop(reason := explain_too_many_requests(limit))
            await inflight.wait_until_over()
            raise RefusedError(f"The server {reason}", types.INVALID_REQUEST)

    HANDLERS: ClassVar[Mapping[str, Callable[["NotificationDispatcher", ServerMessage], None]]] = {
        **dict.fromkeys(CHANGES, _announce_change),
        "notifications/progress": _relay_progress,
        "notifications/resources/updated": _announce_update,
        "notifications/cancelled": _cancel_request,
        "notifications/subscriptions/acknowledged": _confirm_subscription,
        "notifications/tasks/status": _note_task_change,
    }
    """The handler of each notification; all others are relayed as they are."""


_LOGGED: Final = frozenset({*NotificationDispatcher.HANDLERS, *CAPABILITY_OF, "notifications/message", "ping"})


def _log_name(method: str) -> str:
    """Return a method for the log, only if it is known: a server may use any text as a method."""
    return method if method in _LOGGED else "a message of an unknown method"

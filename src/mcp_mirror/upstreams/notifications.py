"""What a server says of its own accord: progress, log lines, changes, and questions to the user.

Each is passed on to the caller whose request it is about, in the order in which it came; what cannot be attributed
goes to the one client whose connection this is, if it is one client's alone. How it reaches a client is not known here.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.shared.dispatcher import as_request_id
from mcp.shared.message import SessionMessage

from mcp_mirror.callers import CAPABILITY_OF, ClientChannel
from mcp_mirror.errors import BusyError, RefusedError, summarize_traceback
from mcp_mirror.payload.floods import Pacer, RepeatedLog
from mcp_mirror.payload.json_rpc import RequestId
from mcp_mirror.payload.pipes import MessageSink
from mcp_mirror.security.rate_limits import Limit, TokenBucket
from mcp_mirror.settings.limits import UpstreamBounds
from mcp_mirror.upstreams.content_filter import filter_content, is_filtered
from mcp_mirror.upstreams.fields import MOST_BYTES, rebuild_notification
from mcp_mirror.upstreams.transports.payloads import ServerMessage

_DELIVERY: Final = 5.0
"""Seconds that passing one notification on may take."""
_KEPT: Final = 500
"""Bytes that keeping a notification costs beside its own."""
_REFUSALS: Final = 1_000
"""Answers to requests past `limits.max_questions` that wait to be sent."""
_ANY_URI: Final = ""

CHANGES: Final[Mapping[str, str]] = {
    "notifications/tools/list_changed": "tools",
    "notifications/resources/list_changed": "resources",
    "notifications/prompts/list_changed": "prompts",
}
"""What is announced to have changed, by the announcement."""

log = logging.getLogger(__name__)


class PausableTimeout:
    """How long a request may still take. It stands still while a person is asked."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.scope = anyio.CancelScope(deadline=anyio.current_time() + seconds)
        self.reason: str | None = None
        """Why the request was ended before its time, what follows the upstream's name in an error."""
        self._left = 0.0
        self._pauses = 0

    def stop(self, reason: str) -> None:
        """End the request now."""
        self.reason = reason
        self.scope.cancel()

    def restart(self) -> None:
        """All the time again: the server is at work."""
        if not self._pauses:
            self.scope.deadline = anyio.current_time() + self.seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop it meanwhile."""
        if not self._pauses:
            self._left = self.scope.deadline - anyio.current_time()
            self.scope.deadline = float("inf")
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                self.scope.deadline = anyio.current_time() + self._left


class NotificationQueue:
    """Passes notifications on to one client, one after another."""

    def __init__(self, channel: ClientChannel, tasks: TaskGroup, bounds: UpstreamBounds | None = None) -> None:
        self.channel = channel
        self._tasks = tasks
        self._most = (bounds or UpstreamBounds()).max_queued_news_bytes
        self._queue: deque[tuple[str, Mapping[str, Any], int]] = deque()
        self._size = 0
        self._is_full = False
        self._idle: anyio.Event | None = None

    def post(self, method: str, params: Mapping[str, Any], size: int = 0) -> None:
        """Pass it on when those before it have been; drop it where too much waits.

        Args:
            method: Of the notification.
            params: Its parameters.
            size: Bytes that it came in.
        """
        if self._size + size > self._most and self._queue:
            if not self._is_full:
                log.warning("notifications are dropped: over `limits.max_queued_news_bytes` (%d) wait", self._most)
            self._is_full = True
            return
        size += _KEPT
        self._size += size
        self._queue.append((method, params, size))
        if self._idle is None:
            self._idle = anyio.Event()
            self._tasks.start_soon(self._carry, self._idle)

    def close(self) -> None:
        """Pass nothing on any more."""
        self._queue.clear()
        self._size = 0

    async def drain(self) -> None:
        """Wait until all has been passed on."""
        if self._idle is not None:
            await self._idle.wait()

    async def _carry(self, idle: anyio.Event) -> None:
        pacer = Pacer()
        try:
            while self._queue:
                method, params, size = self._queue.popleft()
                self._size -= size
                pacer.begin()
                try:
                    with anyio.move_on_after(_DELIVERY):
                        await self.channel.notify(method, params)
                except Exception as error:  # noqa: BLE001  # a client's side must not cost the upstream its connection
                    log.error("%s could not be passed on: %s", _known(method), summarize_traceback(error))  # noqa: TRY400  # no values
                await pacer.end()
        finally:
            self._idle, self._is_full = None, False
            idle.set()


@dataclass(slots=True)
class InflightRequest:
    """One request under way, and its caller."""

    outbox: NotificationQueue
    clock: PausableTimeout
    resets: bool
    """Progress gives it all its time again."""
    asked: int = 0
    """How many requests the server has made of the client within it."""
    is_over: anyio.Event = field(default_factory=anyio.Event)
    """Set when the request has ended; the server has been sent its cancellation, if it was cancelled."""


@dataclass(frozen=True, slots=True)
class ConnectionOwner:
    """For whom a connection is made, and who is told of what the server announces."""

    on_change: Callable[[str], anyio.Event | None]
    """Which list has changed. Returns an event that is set once clients see it; None if they do already."""
    on_update: Callable[[str, Mapping[str, Any]], None]
    """Which resource was updated, and the notification's parameters."""
    session_channel: ClientChannel | None = None
    """The one client whose connection it is; None where several share it."""
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    """What the handshake says that the client can do."""
    name: str | None = None
    """Whose connection it is; None where it is everybody's. See `Caller.party`."""
    is_shared: bool = False
    """Requests of several principals or sessions go over the connection."""


class NotificationDispatcher:
    """Hears one server."""

    def __init__(self, tasks: TaskGroup, owner: ConnectionOwner, bounds: UpstreamBounds | None = None) -> None:
        """Begin to hear; what is passed on is passed on in tasks of the connection's."""
        self._tasks = tasks
        self._bounds = bounds or UpstreamBounds()
        self._answering = 0
        self._log = RepeatedLog(log)
        most = Limit("max_questions_per_call", self._bounds.max_questions_per_call)
        self._unasked = TokenBucket(most, "The connection", anyio.current_time)
        """Requests of the server's outside of any call."""
        self._owner = owner
        self.sink = MessageSink()
        """Takes our answers; the transport's, once it is there."""
        self._home = NotificationQueue(owner.session_channel, tasks, self._bounds) if owner.session_channel else None
        self._attended: dict[str, InflightRequest] = {}
        self._questions: dict[RequestId, anyio.CancelScope] = {}
        self._refused: deque[RequestId] = deque()
        self._subscribed = False

    @contextmanager
    def attending(
        self, token: str, channel: ClientChannel, clock: PausableTimeout, *, resets: bool
    ) -> Iterator[InflightRequest]:
        """While a request is under way, what the server says about it goes to its caller."""
        inflight = self._attended[token] = InflightRequest(
            NotificationQueue(channel, self._tasks, self._bounds), clock, resets
        )
        try:
            yield inflight
        finally:
            del self._attended[token]
            inflight.is_over.set()

    def hear(self, said: ServerMessage) -> None:
        """Take what the server says."""
        if said.fault and said.id is None:
            self._log.warning("%s is not passed on: %s", _known(said.method), said.fault)
        elif said.id is None:
            _HEARD.get(said.method, NotificationDispatcher._pass_on)(self, said)
        elif self._answering >= self._bounds.max_questions:
            self._log.warning("%s is refused: `limits.max_questions` (%d) wait", _known(said.method), self._answering)
            self._refuse(said.id)
        else:
            self._answering += 1
            self._tasks.start_soon(self._take_up, said, said.id)

    def _progress(self, said: ServerMessage) -> None:
        inflight = self._attended.get(str(said.params.get("progressToken")))
        if inflight is None:
            return
        if inflight.resets:
            inflight.clock.restart()
        if inflight.outbox.channel.wants_progress:
            self._post(said, inflight.outbox, hidden=False)

    def _pass_on(self, said: ServerMessage) -> None:
        if outbox := self._courier_for(said):
            self._post(said, outbox, hidden=self._may_be_hidden(said))

    def _post(self, said: ServerMessage, outbox: NotificationQueue, *, hidden: bool) -> None:
        hidden = hidden and not is_filtered(outbox.channel)  # which rebuilds it itself
        params = rebuild_notification(said.method, said.params, hidden=hidden, size=said.size)
        if params is None:
            self._log.warning(
                "%s is dropped: it is hidden, too large, or not of the protocol's form", _known(said.method)
            )
        else:
            outbox.post(said.method, params, said.size)

    def _may_be_hidden(self, said: ServerMessage) -> bool:
        """Whether a message that names no request may be about one whose values are hidden."""
        return said.about is None and any(is_filtered(one.outbox.channel) for one in self._attended.values())

    def _change(self, said: ServerMessage) -> None:
        self._owner.on_change(CHANGES[said.method])

    def _update(self, said: ServerMessage) -> None:
        if said.size <= MOST_BYTES:
            self._owner.on_update(str(said.params.get("uri", _ANY_URI)), said.params)

    def _cancel(self, said: ServerMessage) -> None:
        identity = as_request_id(said.params.get("requestId"))
        if identity is not None and (scope := self._questions.get(identity)):
            scope.cancel()

    def _acknowledged(self, _said: ServerMessage) -> None:
        """It tells us from now on; what changed since it last did, it has not told."""
        kinds = CHANGES.values() if self._subscribed else ("tools",)
        self._subscribed = True
        for kind in kinds:
            self._owner.on_change(kind)

    def _ignore(self, said: ServerMessage) -> None:
        log.debug("%s is not passed on", _known(said.method))

    def _attendance_for(self, said: ServerMessage) -> InflightRequest | None:
        """The request that it is about: that on whose stream it came, else one under way of the one caller's.

        The first that the client waits for; where it waits for none, the latest: it may never come back to others.
        """
        if said.about is not None:
            return self._attended.get(said.about)
        attended = list(self._attended.values())
        if len({inflight.outbox.channel.caller.identity for inflight in attended}) != 1:
            return None
        waited_for = self._waited_for()
        return waited_for[0] if waited_for else attended[-1]

    def _waited_for(self) -> list[InflightRequest]:
        """The requests under way that their clients wait for, oldest first."""
        return [inflight for inflight in self._attended.values() if inflight.outbox.channel.is_waiting]

    def _courier_for(self, said: ServerMessage) -> NotificationQueue | None:
        inflight = self._attendance_for(said)
        return inflight.outbox if inflight else self._home

    async def _take_up(self, said: ServerMessage, identity: RequestId) -> None:
        try:
            await self._answer(said, identity)
        finally:
            self._answering -= 1

    def _refuse(self, identity: RequestId) -> None:
        """Answer a request that is one too many; where too many such answers wait too, drop it."""
        if not self._refused:
            self._tasks.start_soon(self._send_refusals)
        if len(self._refused) < _REFUSALS:
            self._refused.append(identity)

    async def _send_refusals(self) -> None:
        said = f"`limits.max_questions` ({self._bounds.max_questions:,}) requests wait for their answers. Wait for one."
        wrong = types.ErrorData(code=types.INVALID_REQUEST, message=said)
        while self._refused:
            await self._send(types.JSONRPCError(jsonrpc="2.0", id=self._refused[0], error=wrong))
            self._refused.popleft()

    async def _send(self, answer: types.JSONRPCResponse | types.JSONRPCError) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self.sink.send(SessionMessage(answer))

    async def _answer(self, said: ServerMessage, identity: RequestId) -> None:
        """Answer a request of the server's, with what its caller answers."""
        with anyio.CancelScope() as scope:
            self._questions[identity] = scope
            try:
                result = await self._asked(said)
                answer: types.JSONRPCResponse | types.JSONRPCError = types.JSONRPCResponse(
                    jsonrpc="2.0", id=identity, result=dict(result)
                )
            except RefusedError as error:
                wrong = types.ErrorData(code=error.code, message=error.peer_message, data=error.data)
                answer = types.JSONRPCError(jsonrpc="2.0", id=identity, error=wrong)
            except Exception as error:  # noqa: BLE001  # a client's side must not cost the upstream its connection
                log.error("%s could not be asked: %s", _known(said.method), summarize_traceback(error))  # noqa: TRY400  # no values
                wrong = types.ErrorData(code=types.INTERNAL_ERROR, message="The client could not be asked.")
                answer = types.JSONRPCError(jsonrpc="2.0", id=identity, error=wrong)
            finally:
                if self._questions.get(identity) is scope:  # a server may use an id twice
                    del self._questions[identity]
            await self._send(answer)

    async def _asked(self, said: ServerMessage) -> Mapping[str, Any]:
        if said.method == "ping":
            return {}
        if said.fault:
            raise _refused(types.INVALID_PARAMS, said.fault)
        if said.method not in CAPABILITY_OF:
            raise _refused(types.METHOD_NOT_FOUND, f"This client takes no {said.method}.")
        inflight, outbox = self._attendance_for(said), self._courier_for(said)
        if outbox is None:
            raise _refused(types.INVALID_REQUEST, "It cannot be told whose request this is about: nobody is asked.")
        if not outbox.channel.caller.can_answer(said.method):
            raise _refused(types.METHOD_NOT_FOUND, f"The client has not declared `{CAPABILITY_OF[said.method]}`.")
        await outbox.drain()  # what the server said before comes before
        await self._count(said, inflight)
        channel = filter_content(outbox.channel, may_show=not self._may_be_hidden(said))
        assert channel is not None  # noqa: S101  # there is an outbox
        if inflight is None:
            return await channel.request(said.method, said.params)
        with inflight.clock.paused():
            return await channel.request(said.method, said.params)

    async def _count(self, said: ServerMessage, inflight: InflightRequest | None) -> None:
        """Count a request to the client against its call.

        Where the server does not say which call it is about, the call with the fewest requests is charged, of those
        that a client waits for if there are any: calls that clients left open lend no requests to others.
        A request over the limit is refused after its call was cancelled, or the server would continue to ask.

        Raises:
            RefusedError: There are too many: the call ends.
        """
        if inflight is None:
            try:
                self._unasked.take()
            except BusyError as error:
                raise _refused(types.INVALID_REQUEST, str(error)) from None
            return
        if said.about is None:
            inflight = min(self._waited_for() or self._attended.values(), key=lambda one: one.asked)
        inflight.asked += 1
        most = self._bounds.max_questions_per_call
        if inflight.asked > most:
            inflight.clock.stop(reason := asks_too_often(most))
            await inflight.is_over.wait()
            raise _refused(types.INVALID_REQUEST, f"The server {reason}")


def asks_too_often(most: int) -> str:
    """The rest of a sentence about a server that asks for input without end."""
    return (
        f"asked for input more than `limits.max_questions_per_call` ({most:,}) times in one call, so it was ended. "
        "Raise the limit if the server needs more."
    )


_HEARD: Final[Mapping[str, Callable[[NotificationDispatcher, ServerMessage], None]]] = {
    **dict.fromkeys(CHANGES, NotificationDispatcher._change),  # noqa: SLF001  # its own table
    "notifications/progress": NotificationDispatcher._progress,  # noqa: SLF001
    "notifications/resources/updated": NotificationDispatcher._update,  # noqa: SLF001
    "notifications/cancelled": NotificationDispatcher._cancel,  # noqa: SLF001
    "notifications/subscriptions/acknowledged": NotificationDispatcher._acknowledged,  # noqa: SLF001
    "notifications/tasks/status": NotificationDispatcher._ignore,  # noqa: SLF001
}
"""What is done with each notification; all others are passed on as they are."""


def _known(method: str) -> str:
    """A method as a log may name it: a server may call its own anything."""
    return method if method in _LOGGED else "a message of an unknown method"


_LOGGED: Final = frozenset({*_HEARD, *CAPABILITY_OF, "notifications/message", "ping"})


def _refused(code: int, said: str) -> RefusedError:
    return RefusedError(said, code, said)

"""Messages that a server sends on its own: progress, log lines, list changes, and requests to the client.

Each message goes to the caller of the request that it is about, in the order of arrival. A message that names no
request goes to the one client of a dedicated connection. How messages reach a client is the server package's concern.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Final

import anyio
import msgspec
from anyio.abc import TaskGroup
from mcp.shared.dispatcher import as_request_id

from mcp_mirror.callers import ClientChannel
from mcp_mirror.errors import summarize_traceback
from mcp_mirror.payload.pipes import MessageSink
from mcp_mirror.settings.limits import UpstreamBounds
from mcp_mirror.system.limited_logs import RepeatedLog
from mcp_mirror.system.slices import Pacer
from mcp_mirror.upstreams.client_backlog import MESSAGE_OVERHEAD, BacklogPart, ClientBacklog
from mcp_mirror.upstreams.content_filter import is_filtered
from mcp_mirror.upstreams.inflight import InflightRequests
from mcp_mirror.upstreams.rebuilt_messages import MAX_BOUNDED, rebuild_notification
from mcp_mirror.upstreams.server_requests import ServerRequests
from mcp_mirror.upstreams.transports.server_messages import ServerMessage

_DELIVERY_TIMEOUT: Final = 5.0
"""Seconds that the delivery of one notification may take."""
_MAX_UPDATE_MEMORY: Final = 1 << 18
"""Bytes that an update of a resource may take in memory: a thousand may wait for each client."""

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
        self._part = BacklogPart(backlog)
        self._queue: deque[tuple[str, Mapping[str, Any], int]] = deque()
        self._idle: anyio.Event | None = None
        self.cancellations: list[asyncio.Event] = []
        """One for each request of the server that it has cancelled: set when the client has been notified."""

    def post(self, method: str, params: Mapping[str, Any], size: int = 0) -> None:
        """Queue a notification that takes `size` bytes in memory; drop it if the queue is full."""
        size += MESSAGE_OVERHEAD
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
    key: str | None = None
    """The key of the connection, see `ConnectionKey`; None if the connection is shared by all."""
    is_shared: bool = False
    """Requests of several principals or sessions use the connection."""


class NotificationDispatcher:
    """Dispatches the messages that one server sends on its own on one connection."""

    def __init__(
        self, tasks: TaskGroup, owner: ConnectionOwner, bounds: UpstreamBounds, backlog: ClientBacklog
    ) -> None:
        """Create a dispatcher that delivers messages in tasks of the connection's task group."""
        self._owner = owner
        self._owner_queue = NotificationQueue(owner.channel, tasks, backlog) if owner.channel else None
        self.inflight: InflightRequests = InflightRequests(partial(NotificationQueue, tasks=tasks, backlog=backlog))
        self._requests = ServerRequests(tasks, bounds, backlog, self.inflight, self._owner_queue)
        self._log = RepeatedLog(_logger)
        self._is_subscribed = False
        self.task_changes: dict[str, anyio.Event] = {}
        """Set by a change of a task that `run_as_task` waits for, by the id of the task."""
        self.unconfirmed: dict[str, anyio.Event] = {}
        """Set by the server's acknowledgement of a subscription to a resource, by the URI."""

    def connect(self, sink: MessageSink) -> None:
        """Send responses to the transport that was opened."""
        self._requests.connect(sink)

    def close(self) -> None:
        """Give back the memory of all messages that wait: the connection has ended."""
        self._requests.close()
        if self._owner_queue is not None:
            self._owner_queue.close()

    def dispatch(self, message: ServerMessage) -> None:
        """Handle a notification at once, or answer a request in a task."""
        if message.fault and message.id is None:
            self._log.warning("%s is not relayed: %s", _log_name(message.method), message.fault)
        elif message.id is None:
            self.HANDLERS.get(message.method, NotificationDispatcher._relay)(self, message)
        else:
            self._requests.accept(message, message.id)

    def _relay_progress(self, message: ServerMessage) -> None:
        inflight = self.inflight.get(str(message.params.get("progressToken")))
        if inflight is None:
            return
        if inflight.resets_timeout:
            inflight.timeout.restart()
        if inflight.channel.wants_progress:
            self._post(message, inflight.queue, is_content_hidden=False)

    def _relay(self, message: ServerMessage) -> None:
        inflight = self.inflight.find(message)
        if queue := inflight.queue if inflight else self._owner_queue:
            self._post(message, queue, is_content_hidden=self.inflight.may_be_hidden(message))

    def _post(self, message: ServerMessage, queue: NotificationQueue, *, is_content_hidden: bool) -> None:
        is_hidden = is_content_hidden and not is_filtered(queue.channel)  # a filtered channel rebuilds it itself
        params = rebuild_notification(message.method, message.params, is_content_hidden=is_hidden, size=message.size)
        if params is None:
            self._log.warning(
                "%s is dropped: it is hidden, too large, or does not conform to MCP", _log_name(message.method)
            )
        else:
            queue.post(message.method, params, message.memory)

    def _announce_change(self, message: ServerMessage) -> None:
        self._owner.on_change(CHANGES[message.method])

    def _announce_update(self, message: ServerMessage) -> None:
        if message.size <= MAX_BOUNDED and message.memory <= _MAX_UPDATE_MEMORY:
            self._owner.on_update(str(message.params.get("uri", "")), message.params)

    def _cancel_request(self, message: ServerMessage) -> None:
        identity = as_request_id(message.params.get("requestId"))
        if identity is not None:
            self._requests.cancel(identity)

    def _confirm_subscription(self, message: ServerMessage) -> None:
        """Note that the server sends the updates of resources, or the changes of lists.

        Lists may have changed before this subscription, or since the last one ended.
        """
        accepted = message.params.get("notifications")
        if isinstance(accepted, Mapping) and isinstance(uris := accepted.get("resourceSubscriptions"), list):
            for uri in uris:
                if isinstance(uri, str) and (event := self.unconfirmed.pop(uri, None)):
                    event.set()
            return
        kinds = CHANGES.values() if self._is_subscribed else ("tools",)
        self._is_subscribed = True
        for kind in kinds:
            self._owner.on_change(kind)

    def _note_task_change(self, message: ServerMessage) -> None:
        self.task_changes.get(str(message.params.get("taskId")), anyio.Event()).set()

    HANDLERS: ClassVar[Mapping[str, Callable[["NotificationDispatcher", ServerMessage], None]]] = {
        **dict.fromkeys(CHANGES, _announce_change),
        "notifications/progress": _relay_progress,
        "notifications/resources/updated": _announce_update,
        "notifications/cancelled": _cancel_request,
        "notifications/subscriptions/acknowledged": _confirm_subscription,
        "notifications/tasks/status": _note_task_change,
    }
    """The handler of each notification; all others are relayed as they are."""


_LOGGED: Final = frozenset({*NotificationDispatcher.HANDLERS, "notifications/message"})


def _log_name(method: str) -> str:
    """Return a method for the log, only if it is known: a server may use any text as a method."""
    return method if method in _LOGGED else "a message of an unknown method"

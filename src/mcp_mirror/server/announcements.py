"""Change notifications to clients: on the session of 2025-11-25 clients, on the streams that 2026-07-28 clients open.

Repeated changes of one list or resource are merged, so a slow client gets one notification for all of them.
"""

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NoReturn

import anyio
import mcp_types as types
import msgspec
from anyio.abc import TaskGroup
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.exceptions import MCPError

from mcp_mirror.callers import Caller
from mcp_mirror.server.client_channel import Session
from mcp_mirror.server.request_context import Context
from mcp_mirror.server.sessions import Sessions
from mcp_mirror.system.slices import Pacer

_NOTIFY_TIMEOUT: Final = 5.0
"""Seconds that a notification to one session may take."""
_MAX_STREAMS: Final = 1024
_MAX_UPDATES: Final = 1_000
"""Updates of different resources that wait for one client: an upstream chooses the URIs below a subscribed one."""
UPDATED: Final = "notifications/resources/updated"


class ListChange(msgspec.Struct, frozen=True):
    """A change of a list, and the clients that may see it."""

    kind: str
    """`tools`, `resources` or `prompts`."""
    owner: str | None = None
    """The key of the connection with the change; None: a shared connection."""
    namespace: str | None = None
    """The namespace of the principal with the list; None: all principals."""
    required: tuple[str, ...] = ()
    """The OAuth scopes that a client needs to see the change."""
    upstream: str | None = None
    """The upstream whose list changed, or `OWN_UPSTREAM`; None: any may have changed."""

    def is_visible_to(self, caller: Caller) -> bool:
        """Whether a client may get a notification of the change."""
        is_affected = self.owner in (None, caller.session, caller.principal_key)
        is_affected = is_affected and self.namespace in (None, caller.namespace)
        is_served = caller.upstream is None or self.upstream in (None, caller.upstream)
        return is_affected and is_served and caller.has_scopes(self.required)


class SubscriptionStream:
    """A `subscriptions/listen` stream of one client."""

    def __init__(self, wanted: types.SubscriptionFilter, caller: Caller) -> None:
        self.caller = caller
        self.wanted: types.SubscriptionFilter = types.SubscriptionFilter(
            tools_list_changed=wanted.tools_list_changed or None,
            resources_list_changed=wanted.resources_list_changed or None,
            prompts_list_changed=wanted.prompts_list_changed or None,
            resource_subscriptions=list(wanted.resource_subscriptions) if wanted.resource_subscriptions else None,
        )
        self._pending: dict[tuple[str, str], Mapping[str, Any]] = {}
        """Parameters of unsent notifications by method and URI; a new one replaces the last with the same key."""
        self._has_pending = anyio.Event()

    def list_changed(self, kind: str) -> None:
        """Notify the client that a list has changed, if the client subscribed to it."""
        if getattr(self.wanted, f"{kind}_list_changed"):
            self._enqueue(f"notifications/{kind}/list_changed", {})

    def resource_updated(self, uri: str, params: Mapping[str, Any]) -> None:
        """Notify the client that a resource was updated; drop the update if too many wait."""
        if len(self._pending) < _MAX_UPDATES or (UPDATED, uri) in self._pending:
            self._enqueue(UPDATED, {**params, "uri": uri})

    def _enqueue(self, method: str, params: Mapping[str, Any]) -> None:
        self._pending[method, str(params.get("uri", ""))] = params
        self._has_pending.set()

    async def run(self, context: Context) -> NoReturn:
        """Acknowledge the subscription, then send notifications until cancelled."""
        meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: context.request_id}
        acknowledged = types.SubscriptionsAcknowledgedNotificationParams(notifications=self.wanted, _meta=meta)
        await context.session.send_notification(
            types.SubscriptionsAcknowledgedNotification(params=acknowledged), related_request_id=context.request_id
        )
        while True:
            if not self._pending:
                self._has_pending = anyio.Event()
                await self._has_pending.wait()
            method, uri = next(iter(self._pending))
            params = self._pending.pop((method, uri))
            given = params.get("_meta")  # of the upstream, which may send any JSON
            params = {**params, "_meta": {**given, **meta} if isinstance(given, Mapping) else meta}
            notification: Any = types.Notification[Any, str](method=method, params=params)
            with suppress(ValueError):  # a member of the upstream's is nested deeper than the SDK writes
                await context.session.send_notification(notification, related_request_id=context.request_id)


class Announcements:
    """Sends change notifications to all sessions and subscription streams."""

    def __init__(self, sessions: Sessions, tasks: TaskGroup, max_streams: int) -> None:
        self._max_streams = max_streams
        self._sessions = sessions
        self._tasks = tasks
        self._streams: set[SubscriptionStream] = set()
        self._updates: dict[Session, dict[str, Mapping[str, Any]]] = {}
        """Parameters of unsent resource updates by session and URI."""
        self._waiting: deque[Session] = deque()
        """Sessions whose updates are not sent yet."""

    def open(self, wanted: types.SubscriptionFilter, caller: Caller) -> SubscriptionStream:
        """Open a stream for a client.

        Raises:
            MCPError: The principal, or the gateway, has too many streams.
        """
        if len(self._streams) >= _MAX_STREAMS:
            raise MCPError(types.INTERNAL_ERROR, f"{_MAX_STREAMS} streams are open. Close one first.")
        if sum(stream.caller.namespace == caller.namespace for stream in self._streams) >= self._max_streams:
            limit = f"`limits.streams_per_principal` ({self._max_streams:,})"
            raise MCPError(types.INTERNAL_ERROR, f"{limit} streams of this client are open. Close one first.")
        stream = SubscriptionStream(wanted, caller)
        self._streams.add(stream)
        return stream

    def close(self, stream: SubscriptionStream) -> None:
        """Remove a stream."""
        self._streams.discard(stream)

    def resource_updated(self, session: Session, uri: str, params: Mapping[str, Any]) -> None:
        """Notify one session that a resource was updated; drop the update if too many wait."""
        if (pending := self._updates.get(session)) is None:
            pending = self._updates[session] = {}
            if not self._waiting:
                self._tasks.start_soon(self._begin_updates)
            self._waiting.append(session)
        if len(pending) < _MAX_UPDATES or uri in pending:
            pending[uri] = {**params, "uri": uri}

    async def list_changed(self, change: ListChange) -> None:
        """Notify the clients that may see a change; a session that does not read does not delay the others.

        Other tasks run in between: a notification takes about 0.2 ms, and thousands of clients may be connected.
        """
        pacer = Pacer()
        for stream in tuple(self._streams):
            if change.is_visible_to(stream.caller):
                stream.list_changed(change.kind)
                await pacer.end()
        async with anyio.create_task_group() as tasks:
            for session in self._sessions:
                if change.is_visible_to(session.caller) and session.ready.is_set():
                    tasks.start_soon(_notify, session, f"notifications/{change.kind}/list_changed", {})
                    await pacer.end()

    async def _begin_updates(self) -> None:
        """Begin to send updates to the sessions that wait. Other tasks run in between, as in `list_changed`."""
        pacer = Pacer()
        while self._waiting:
            session = self._waiting.popleft()
            self._tasks.start_soon(self._send_updates, session, self._updates[session])
            await pacer.end()

    async def _send_updates(self, session: Session, pending: dict[str, Mapping[str, Any]]) -> None:
        try:
            while pending:
                await _notify(session, UPDATED, pending.pop(next(iter(pending))))
        finally:
            del self._updates[session]


async def _notify(session: Session, method: str, params: Mapping[str, Any]) -> None:
    with anyio.move_on_after(_NOTIFY_TIMEOUT), suppress(ValueError):  # as in `SubscriptionStream.run`
        await session.notify(method, params)

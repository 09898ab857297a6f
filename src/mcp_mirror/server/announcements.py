"""Word of changes to clients: to 2025-era sessions as notifications, to 2026-era ones on the streams they opened.

However often a thing changes, a client that is slow to listen is told once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.exceptions import MCPError

from mcp_mirror.callers import Caller
from mcp_mirror.server.client_channel import Context, Session
from mcp_mirror.server.sessions import Sessions

_TELLING: Final = 5.0
"""Seconds that telling one session may take."""
_MAX_STREAMS: Final = 1024
UPDATED: Final = "notifications/resources/updated"

Kind = str
"""`tools`, `resources` or `prompts`."""


@dataclass(frozen=True, slots=True)
class ListChange:
    """A list is no longer what it was."""

    kind: Kind
    owner: str | None = None
    """Whose connection it was told on; None: everybody's."""
    namespace: str | None = None
    """The principal whose list it is; None: all."""
    required: tuple[str, ...] = ()
    """The scopes of those who may know of it."""

    def concerns(self, caller: Caller) -> bool:
        """Whether somebody is to hear of it."""
        is_theirs = self.owner in (None, caller.connection_key) and self.namespace in (None, caller.namespace)
        return is_theirs and caller.has_scopes(self.required)


class Stream:
    """One `subscriptions/listen` stream of a client's."""

    def __init__(self, wanted: types.SubscriptionFilter, caller: Caller) -> None:
        self.caller = caller
        self.wanted = types.SubscriptionFilter(
            tools_list_changed=wanted.tools_list_changed or None,
            resources_list_changed=wanted.resources_list_changed or None,
            prompts_list_changed=wanted.prompts_list_changed or None,
            resource_subscriptions=list(wanted.resource_subscriptions) if wanted.resource_subscriptions else None,
        )
        self._pending: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._notifier = anyio.Event()
        self._over = False

    def post(self, method: str, params: Mapping[str, Any]) -> None:
        """Tell the client of it, once if it has not been told yet."""
        self._pending[method, str(params.get("uri", ""))] = params
        self._notifier.set()

    def changed(self, kind: Kind) -> None:
        """Tell the client that a list has changed, if it wants to know."""
        if getattr(self.wanted, f"{kind}_list_changed"):
            self.post(f"notifications/{kind}/list_changed", {})

    def updated(self, uri: str, params: Mapping[str, Any]) -> None:
        """Tell the client that a resource was updated."""
        self.post(UPDATED, {**params, "uri": uri})

    def end(self) -> None:
        """Let the stream end, when all has been told."""
        self._over = True
        self._notifier.set()

    async def serve(self, context: Context) -> types.SubscriptionsListenResult:
        """Acknowledge, then pass on what comes, until the client leaves or the stream is ended."""
        meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: context.request_id}
        params = types.SubscriptionsAcknowledgedNotificationParams(notifications=self.wanted, _meta=meta)
        acknowledged = types.SubscriptionsAcknowledgedNotification(params=params)
        await context.session.send_notification(acknowledged, related_request_id=context.request_id)
        while not self._over or self._pending:
            if not self._pending:
                self._notifier = anyio.Event()
                await self._notifier.wait()
                continue
            (method, _), told = self._pending.popitem()
            stamped: Any = types.Notification[Any, str](
                method=method, params={**told, "_meta": {**told.get("_meta", {}), **meta}}
            )
            await context.session.send_notification(stamped, related_request_id=context.request_id)
        return types.SubscriptionsListenResult(_meta=meta)


class Announcements:
    """Tells clients of changes."""

    def __init__(self, sessions: Sessions, tasks: TaskGroup, most: int = 200) -> None:
        """Tell nobody yet; one principal has `most` streams."""
        self._most = most
        self._sessions = sessions
        self._tasks = tasks
        self._streams: set[Stream] = set()
        self._updates: dict[Session, dict[str, Mapping[str, Any]]] = {}

    def open(self, wanted: types.SubscriptionFilter, caller: Caller) -> Stream:
        """A stream for a client.

        Raises:
            MCPError: There are too many.
        """
        if len(self._streams) >= _MAX_STREAMS:
            raise MCPError(types.INTERNAL_ERROR, f"{_MAX_STREAMS} streams are open; end one first.")
        if sum(stream.caller.namespace == caller.namespace for stream in self._streams) >= self._most:
            bound = f"`limits.streams_per_principal` ({self._most:,})"
            raise MCPError(types.INTERNAL_ERROR, f"{bound} streams of this client are open; end one first.")
        stream = Stream(wanted, caller)
        self._streams.add(stream)
        return stream

    def close(self, stream: Stream) -> None:
        """The client has left."""
        self._streams.discard(stream)

    def end_all(self) -> None:
        """We are stopping: every stream ends in good order."""
        for stream in self._streams:
            stream.end()

    def updated(self, session: Session, uri: str, params: Mapping[str, Any]) -> None:
        """Tell one session of a resource's update, once if it has not been told yet."""
        if (pending := self._updates.get(session)) is None:
            pending = self._updates[session] = {}
            self._tasks.start_soon(self._tell_updates, session, pending)
        pending[uri] = {**params, "uri": uri}

    async def announce(self, change: ListChange) -> None:
        """Tell whom it concerns that a list has changed; a deaf one holds up no other."""
        for stream in self._streams:
            if change.concerns(stream.caller):
                stream.changed(change.kind)
        async with anyio.create_task_group() as tasks:
            for one in self._sessions:
                if change.concerns(one.caller) and one.ready.is_set():
                    tasks.start_soon(self._tell, one, f"notifications/{change.kind}/list_changed")

    async def _tell_updates(self, session: Session, pending: dict[str, Mapping[str, Any]]) -> None:
        try:
            while pending:
                told = pending.pop(next(iter(pending)))
                with anyio.move_on_after(_TELLING):
                    await session.notify(UPDATED, told)
        finally:
            del self._updates[session]

    async def _tell(self, session: Session, method: str) -> None:
        with anyio.move_on_after(_TELLING):
            await session.notify(method, {})

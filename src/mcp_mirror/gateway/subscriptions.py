"""Who wants to be told of which resource's updates, and how each upstream is asked to tell.

An upstream of the 2025 era is subscribed to with a request; one of the 2026 era with a stream that is kept open.
"""

import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup
from mcp import MCPError

from mcp_mirror.callers import Caller, ClientChannel
from mcp_mirror.core.merged_lists import ResourceOrigin
from mcp_mirror.errors import ToolError, UpstreamError
from mcp_mirror.gateway.relay import Relay
from mcp_mirror.upstreams.connection import ReconnectingConnection
from mcp_mirror.upstreams.registry import UpstreamRegistry
from mcp_mirror.upstreams.session import UpstreamRequest, UpstreamSession

_PAUSE: Final = 1.0
"""Seconds before a subscription that was lost is made again."""

Watcher = Callable[[str, Mapping[str, Any]], None]
"""Told of an update: the URI as clients know it, and the notification's parameters."""


@dataclass(slots=True)
class _Watch:
    """One resource over one connection, and all who watch it."""

    place: ResourceOrigin
    link: ReconnectingConnection
    watchers: dict[Hashable, tuple[Watcher, ClientChannel]] = field(default_factory=dict)
    """Who is told, and the way to them: it tells over which connection, and what they may know of."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class Subscriptions:
    """The resources that clients watch."""

    def __init__(self, upstreams: UpstreamRegistry, relay: Relay, tasks: TaskGroup, most: int = 1000) -> None:
        """Watch nothing yet; streams are kept open in `tasks`. One principal watches `most` resources."""
        self._most = most
        self._whose: dict[Hashable, str] = {}
        """The principal of each who watches something."""
        self._upstreams = upstreams
        self._relay = relay
        self._tasks = tasks
        self._watches: dict[tuple[ResourceOrigin, str | None], _Watch] = {}

    async def subscribe(self, channel: ClientChannel, uri: str, who: Hashable, watcher: Watcher) -> None:
        """Tell `watcher` of each update of a resource from now on.

        Raises:
            ToolError: The client watches too many.
            UpstreamError: Its upstream refused, or is away.
        """
        namespace = channel.caller.namespace
        if who not in self._whose and sum(one == namespace for one in self._whose.values()) >= self._most:
            raise ToolError(
                f"This client watches `limits.subscriptions_per_principal` ({self._most:,}) resources already. "
                "Leave one first (resources/unsubscribe)."
            )
        place = await self._relay.place_of(uri, channel)
        link = await self._upstreams[place.upstream].connection_for(channel)
        watch = self._watches.get(key := (place, link.owner.name))
        if watch is None:
            watch = _Watch(place, link)
            connection = await link.get_session()
            if not connection.modern:
                await connection.request(_order("resources/subscribe", place), channel)
            if (other := self._watches.get(key)) is None:  # nobody has come meanwhile
                self._watches[key] = watch
                self._tasks.start_soon(self._keep, watch, connection)
            else:
                watch = other
        watch.watchers[who] = watcher, channel
        self._whose[who] = namespace

    async def unsubscribe(self, channel: ClientChannel, uri: str, who: Hashable) -> None:
        """Tell nobody under this name any more; whoever watches may leave, though they see less now than then.

        Raises:
            RefusedError: Nobody has such a resource.
            UpstreamError: Its upstream refused.
        """
        if who not in self._whose:
            await self._relay.place_of(uri, channel)
        for key, watch in tuple(self._watches.items()):
            if self._leave(key, watch, who):
                await self._end(watch, channel)

    def forget(self, who: Hashable) -> None:
        """A client has gone; its upstreams are told so in their own time."""
        for key, watch in tuple(self._watches.items()):
            if self._leave(key, watch, who):
                self._tasks.start_soon(self._end_quietly, watch)

    def forget_session(self, session: str) -> None:
        """The client of a session has gone: the upstreams' connections that were its own go without a word."""
        for key, watch in tuple(self._watches.items()):
            for who in tuple(watch.watchers):
                if isinstance(who, tuple) and who[0] == session and self._leave(key, watch, who):
                    watch.scope.cancel()

    def _leave(self, key: tuple[ResourceOrigin, str | None], watch: _Watch, who: Hashable) -> bool:
        """Whether nobody watches any more."""
        if who not in watch.watchers:
            return False
        del watch.watchers[who]
        self._whose.pop(who, None)
        if watch.watchers:
            return False
        del self._watches[key]
        return True

    async def _end(self, watch: _Watch, channel: ClientChannel | None = None) -> None:
        watch.scope.cancel()
        if (connection := watch.link.current_session) and not connection.modern:
            await connection.request(_order("resources/unsubscribe", watch.place), channel)
            if (watch.place, watch.link.owner.name) in self._watches:  # somebody has come meanwhile
                await connection.request(_order("resources/subscribe", watch.place), channel)

    async def _end_quietly(self, watch: _Watch) -> None:
        with contextlib.suppress(UpstreamError):
            await self._end(watch)

    def updated(self, upstream: str, owner: str | None, uri: str, params: Mapping[str, Any]) -> None:
        """Told by an upstream, over the connection of a party or over one for all, that a resource was updated."""
        for watch in tuple(self._watches.values()):
            if watch.place.upstream == upstream and watch.link.owner.name == owner and _covers(watch.place.key, uri):
                self._tell(watch, uri, params)

    def _tell(self, watch: _Watch, uri: str, params: Mapping[str, Any]) -> None:
        if not self._relay.may_show(watch.place.upstream):
            uri, params = watch.place.key, {}
        for watcher, channel in self._entitled(watch):
            watcher(self._relay.name_of(ResourceOrigin(watch.place.upstream, uri), _caller_of(channel)), params)

    def _entitled(self, watch: _Watch) -> Sequence[tuple[Watcher, ClientChannel]]:
        """Those who may know of the upstream now: its scopes can be others than when they began, and theirs too."""
        try:
            required = self._upstreams[watch.place.upstream].policy.required_scopes
        except UpstreamError:
            return ()
        return [one for one in watch.watchers.values() if _caller_of(one[1]).has_scopes(required)]

    async def _keep(self, watch: _Watch, connection: UpstreamSession) -> None:
        """Stay subscribed over connections that come and go; what may have been missed counts as an update."""
        subscribed: UpstreamSession | None = None if connection.modern else connection
        with watch.scope:
            while True:
                with contextlib.suppress(UpstreamError, MCPError):
                    await self._follow(watch, connection, is_subscribed=subscribed is connection)
                await anyio.sleep(_PAUSE)
                if not (entitled := self._entitled(watch)):
                    continue
                try:
                    watch.link = await self._upstreams[watch.place.upstream].connection_for(entitled[0][1])
                    connection = await watch.link.get_session()
                except UpstreamError:
                    continue
                self._tell(watch, watch.place.key, {"uri": watch.place.key})

    async def _follow(self, watch: _Watch, connection: UpstreamSession, *, is_subscribed: bool) -> None:
        with watch.link.kept_open():
            await self._stay(watch, connection, is_subscribed=is_subscribed)

    async def _stay(self, watch: _Watch, connection: UpstreamSession, *, is_subscribed: bool) -> None:
        if connection.modern:
            await connection.listen(resourceSubscriptions=[watch.place.key])
            return
        if not is_subscribed:
            await connection.request(_order("resources/subscribe", watch.place))
        await connection.ended.wait()


def _caller_of(channel: ClientChannel) -> Caller:
    """Who somebody is now: a session goes on with other tokens than that of the request which began something."""
    return (channel.session_channel or channel).caller


def _order(method: str, place: ResourceOrigin) -> UpstreamRequest:
    return UpstreamRequest(method, {}, {"uri": place.key})


def _covers(watched: str, updated: str) -> bool:
    """Whether an update is one of what is watched: the resource itself, or one below it."""
    return updated == watched or updated.startswith(f"{watched.rstrip('/')}/")

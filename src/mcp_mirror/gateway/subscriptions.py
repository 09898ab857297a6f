"""Resource subscriptions: which clients get the updates of a resource, and how its upstream is subscribed to.

Upstreams of protocol version 2025-11-25 get a `resources/subscribe` request, those of 2026-07-28 a stream that stays
open.
"""

import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskGroup
from mcp import MCPError

from mcp_mirror.callers import Caller, ClientChannel, NullChannel
from mcp_mirror.core.merged_lists import ResourceOrigin
from mcp_mirror.errors import RefusedError, ToolError, UpstreamError
from mcp_mirror.gateway.relay import Relay
from mcp_mirror.upstreams.connection import ReconnectingConnection
from mcp_mirror.upstreams.list_changes import NO_SUBSCRIPTION
from mcp_mirror.upstreams.reconnect import Backoff
from mcp_mirror.upstreams.registry import UpstreamRegistry
from mcp_mirror.upstreams.session import UpstreamSession
from mcp_mirror.upstreams.upstream_request import UpstreamRequest

_PAUSE: Final = 1.0
"""Seconds before a lost subscription is renewed."""
_LONGEST_PAUSE: Final = 60.0
"""The same, at most, for a server that ends the streams of its subscriptions again and again."""
_MAX_LEVELS: Final = 100
"""Levels of the URI of an update at which a watched resource is searched: URIs of servers have few levels."""

UpdateListener = Callable[[str, Mapping[str, Any]], None]
"""Gets each update: the URI as the client knows it, and the notification's parameters."""
_Key = tuple[ResourceOrigin, str | None]
"""A resource and the key of the connection; None for the shared connection."""


class _Subscription(msgspec.Struct):
    """The subscription of one resource over one connection, and its subscribers."""

    key: _Key
    origin: ResourceOrigin
    connection: ReconnectingConnection
    subscribers: dict[Hashable, tuple[UpdateListener, ClientChannel, str]] = msgspec.field(default_factory=dict)
    """The channel determines the connection and the scopes of a subscriber. The text is the URI of its request."""
    scope: anyio.CancelScope = msgspec.field(default_factory=anyio.CancelScope)
    confirmed: anyio.Event = msgspec.field(default_factory=anyio.Event)
    """Set once the upstream sends updates, or cannot be subscribed to now."""


class _Subscriber(msgspec.Struct, eq=False):
    """A subscriber, while it has subscriptions or a request about them."""

    namespace: str
    keys: set[_Key] = msgspec.field(default_factory=set)
    """The keys of its subscriptions: there may be thousands of others."""
    lock: anyio.Lock = msgspec.field(default_factory=anyio.Lock)
    """Held by a request of the subscriber, for which the next one waits."""


class Subscriptions:
    """The resources that clients are subscribed to."""

    def __init__(self, upstreams: UpstreamRegistry, relay: Relay, tasks: TaskGroup, limit: int) -> None:
        self._limit = limit
        self._subscribers: dict[Hashable, _Subscriber] = {}
        self._counts: Counter[str] = Counter()
        """The number of subscribers by namespace."""
        self._upstreams = upstreams
        self._relay = relay
        self._tasks = tasks
        self._subscriptions: dict[_Key, _Subscription] = {}
        self._watched: defaultdict[ResourceOrigin, dict[_Key, _Subscription]] = defaultdict(dict)
        """The same subscriptions by their resources without slashes at the end: there may be thousands of others."""

    async def subscribe(
        self, channel: ClientChannel, uri: str, subscriber: Hashable, listener: UpdateListener
    ) -> anyio.Event | None:
        """Pass each update of a resource to a listener from now on.

        Args:
            channel: The client.
            uri: The resource as the client knows it.
            subscriber: Identifies the subscription in later calls.
            listener: Gets the updates.

        Returns:
            An event that is set once the upstream has confirmed the subscription, or ended it. None for the gateway's
            own resources, whose URIs no upstream gets: stored values never change.

        Raises:
            ToolError: The client has too many subscriptions.
            UpstreamError: The upstream refused, is not connected, or does not exist.
        """
        namespace = channel.caller.namespace
        if self._relay.owns(uri, channel.caller):
            return None
        if subscriber not in self._subscribers and self._counts[namespace] >= self._limit:
            raise ToolError(
                f"This client has {self._limit:,} resource subscriptions, as many as "
                "`limits.subscriptions_per_principal` allows. End one first (resources/unsubscribe)."
            )
        async with self._take_turn(subscriber, namespace) as keys:
            subscription = await self._open(channel, uri)
            # The channel of the request would keep the whole request in memory, about 25 KB for each subscription.
            lasting = NullChannel(channel.caller, session_channel=channel.session_channel)
            subscription.subscribers[subscriber] = listener, lasting, uri
            keys.add(subscription.key)
        return subscription.confirmed

    @contextlib.asynccontextmanager
    async def _take_turn(self, subscriber: Hashable, namespace: str) -> AsyncIterator[set[_Key]]:
        """Wait until earlier requests of a subscriber have taken effect; yield the keys of its subscriptions."""
        if (known := self._subscribers.get(subscriber)) is None:
            known = self._subscribers[subscriber] = _Subscriber(namespace)
            self._counts[namespace] += 1
        try:
            async with known.lock:
                yield known.keys
        finally:
            self._drop_idle(subscriber)

    def _drop_idle(self, subscriber: Hashable) -> None:
        """Forget a subscriber without subscriptions and requests."""
        known = self._subscribers.get(subscriber)
        if known and not known.keys and not known.lock.locked():
            del self._subscribers[subscriber]
            self._counts[known.namespace] -= 1
            if not self._counts[known.namespace]:
                del self._counts[known.namespace]

    async def _open(self, channel: ClientChannel, uri: str) -> _Subscription:
        """Return the subscription of a resource; subscribe to its upstream if necessary."""
        origin = await self._relay.find_resource(uri, channel)
        connection = await self._upstreams[origin.upstream].connection_for(channel)
        key = origin, connection.owner.key
        if key not in self._subscriptions:
            session = await connection.get_session()
            if not session.is_stateless:
                await session.request(_request_for("resources/subscribe", origin), channel)
            if key not in self._subscriptions:  # else another client subscribed while this one waited
                subscription = self._subscriptions[key] = _Subscription(key, origin, connection)
                self._watched[_strip(origin)][key] = subscription
                self._tasks.start_soon(self._keep, subscription, session)
        return self._subscriptions[key]

    async def unsubscribe(self, channel: ClientChannel, uri: str, subscriber: Hashable) -> None:
        """End a subscription, also of a resource that the client may not see any more.

        Raises:
            RefusedError: The client is not subscribed, and its upstreams do not have the resource.
            UpstreamError: The upstream refused.
        """
        async with self._take_turn(subscriber, channel.caller.namespace) as keys:
            if not keys and not self._relay.owns(uri, channel.caller):
                await self._relay.find_resource(uri, channel)
            for subscription in self._remove_all(subscriber):
                await self._end(subscription, channel)

    def drop(self, subscriber: Hashable) -> None:
        """End the subscription of a client that has disconnected; its upstream is notified in a task."""
        if subscriber in self._subscribers:
            for subscription in self._remove_all(subscriber):
                self._tasks.start_soon(self._end_quietly, subscription)

    def drop_session(self, session: str) -> None:
        """End the subscriptions of a session that has ended: without a request on its own connections, which close."""
        for subscriber in tuple(self._subscribers):
            if isinstance(subscriber, tuple) and subscriber[0] == session:
                for subscription in self._remove_all(subscriber):
                    if subscription.connection.owner.name == session:
                        subscription.scope.cancel()
                    else:
                        self._tasks.start_soon(self._end_quietly, subscription)

    def _remove_all(self, subscriber: Hashable) -> Sequence[_Subscription]:
        """Remove a subscriber from its subscriptions; return those that have no others, and must end."""
        keys = self._subscribers[subscriber].keys
        left = [self._subscriptions[key] for key in keys]
        keys.clear()
        self._drop_idle(subscriber)
        for subscription in left:
            del subscription.subscribers[subscriber]
            if not subscription.subscribers:
                del self._subscriptions[subscription.key]
                watched = self._watched[_strip(subscription.origin)]
                del watched[subscription.key]
                if not watched:
                    del self._watched[_strip(subscription.origin)]
        return [subscription for subscription in left if not subscription.subscribers]

    async def _end(self, subscription: _Subscription, channel: ClientChannel | None = None) -> None:
        subscription.scope.cancel()
        origin, connection = subscription.origin, subscription.connection
        if (session := connection.current_session) and not session.is_stateless:
            await session.request(_request_for("resources/unsubscribe", origin), channel)
            if subscription.key in self._subscriptions:  # a client subscribed during the request
                await session.request(_request_for("resources/subscribe", origin), channel)

    async def _end_quietly(self, subscription: _Subscription) -> None:
        with contextlib.suppress(UpstreamError):
            await self._end(subscription)

    def updated(self, upstream: str, owner: str | None, uri: str, params: Mapping[str, Any]) -> None:
        """Pass `notifications/resources/updated` of an owner's connection, or of the shared one, to the subscribers."""
        for place in dict.fromkeys(islice(_list_places(uri), _MAX_LEVELS)):
            for subscription in tuple(self._watched.get(ResourceOrigin(upstream, place), {}).values()):
                if subscription.connection.owner.key == owner and _covers(subscription.origin.key, uri):
                    self._notify(subscription, uri, params)

    def _notify(self, subscription: _Subscription, uri: str, params: Mapping[str, Any]) -> None:
        upstream = subscription.origin.upstream
        if not self._relay.gateway.may_show(upstream):
            uri, params = subscription.origin.key, {}
        for listener, channel, requested in self._select_entitled(subscription):
            if prefix := requested.removesuffix(subscription.origin.key):  # also of a URI that only a template matches
                listener(f"{prefix}{uri}", params)
            else:
                listener(self._relay.uri_for(ResourceOrigin(upstream, uri), _read_current_caller(channel)), params)

    def _select_entitled(self, subscription: _Subscription) -> Sequence[tuple[UpdateListener, ClientChannel, str]]:
        """The subscribers that may see the upstream now: its scopes or theirs may have changed since they began."""
        try:
            required = self._upstreams[subscription.origin.upstream].policy.required_scopes
        except UpstreamError:
            return ()
        return [
            subscriber
            for subscriber in subscription.subscribers.values()
            if _read_current_caller(subscriber[1]).has_scopes(required)
        ]

    async def _keep(self, subscription: _Subscription, session: UpstreamSession) -> None:
        """Renew the subscription on each new connection. Updates may be lost between two, so that is one update."""
        subscribed: UpstreamSession | None = None if session.is_stateless else session
        backoff = Backoff(_PAUSE / 2, _LONGEST_PAUSE)
        with subscription.scope:
            while True:
                began = anyio.current_time()
                with contextlib.suppress(UpstreamError, MCPError), subscription.connection.kept_open():
                    await self._wait_for_end(subscription, session, is_subscribed=subscribed is session)
                is_stream_over = not session.ended.is_set()
                await anyio.sleep(backoff.next_delay(anyio.current_time() - began) if is_stream_over else _PAUSE)
                session = await self._renew(subscription)
                self._notify(subscription, subscription.origin.key, {"uri": subscription.origin.key})

    async def _renew(self, subscription: _Subscription) -> UpstreamSession:
        """Wait until the upstream is connected and a subscriber may see it; return the session.

        The connection reconnects with its own backoff: a subscription requests no attempts.
        """
        backoff = Backoff(_PAUSE / 2, _LONGEST_PAUSE)
        while True:
            with anyio.move_on_after(backoff.next_delay(0)):
                if entitled := self._select_entitled(subscription):
                    with contextlib.suppress(UpstreamError):
                        upstream = self._upstreams[subscription.origin.upstream]
                        subscription.connection = connection = await upstream.connection_for(entitled[0][1])
                        while (session := connection.current_session) is None:
                            await connection.wait_for_change()
                        return session
                await self._upstreams.wait_for_replacement()

    async def _wait_for_end(
        self, subscription: _Subscription, session: UpstreamSession, *, is_subscribed: bool
    ) -> None:
        """Subscribe if that is not done yet, and wait until the session or its stream ends.

        A server that refuses the subscription gets no second request in the same session.
        """
        origin = subscription.origin
        try:
            if session.is_stateless:
                await session.watch_resource(origin.key, subscription.confirmed)
                return
            if not is_subscribed:
                await session.request(_request_for("resources/subscribe", origin))
            subscription.confirmed.set()
        except MCPError as error:
            if error.code not in NO_SUBSCRIPTION:
                raise
        except RefusedError:
            pass
        await session.ended.wait()


def _read_current_caller(channel: ClientChannel) -> Caller:
    """The caller by the session's current token: a session may have other tokens than the request that began it."""
    return (channel.session_channel or channel).caller


def _request_for(method: str, origin: ResourceOrigin) -> UpstreamRequest:
    return UpstreamRequest(method, {}, {"uri": origin.key})


def _strip(origin: ResourceOrigin) -> ResourceOrigin:
    """The resource without slashes at the end of its URI, as `_list_places` names it."""
    return origin._replace(key=origin.key.rstrip("/"))


def _list_places(uri: str) -> Iterator[str]:
    """The URI, and each part of it that ends before a slash, without slashes at their ends."""
    yield uri.rstrip("/")
    end = uri.find("/")
    while end >= 0:
        yield uri[:end]
        end = uri.find("/", end + 1)


def _covers(watched: str, updated: str) -> bool:
    """Whether an update concerns a watched resource: the resource itself or one below it."""
    return updated == watched or updated.startswith(f"{watched.rstrip('/')}/")

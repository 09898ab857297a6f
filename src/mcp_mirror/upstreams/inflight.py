"""The requests of one connection that wait for their responses, and which of them a message of the server is about."""

import asyncio
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Self

import msgspec

from mcp_mirror.callers import ClientChannel
from mcp_mirror.upstreams.content_filter import is_filtered
from mcp_mirror.upstreams.transports.requests import PausableTimeout
from mcp_mirror.upstreams.transports.server_messages import ServerMessage

if TYPE_CHECKING:
    from mcp_mirror.upstreams.notifications import NotificationQueue


class InflightRequest(msgspec.Struct):
    """A request of a caller that waits for its response, for the duration of its context."""

    channel: ClientChannel
    """The channel of the caller."""
    timeout: PausableTimeout
    resets_timeout: bool
    """Progress starts the timeout again."""
    is_interactive: bool
    """Clients of both protocol versions answer requests of the server about it."""
    token: str
    """Names the request in messages about it; see `ServerMessage.about`."""
    _tracked: dict[str, "InflightRequest"]
    """The requests of the connection that wait, by token."""
    _make_queue: "Callable[[ClientChannel], NotificationQueue]"
    server_requests: int = 0
    """Requests that the server has made of the client during this one."""
    is_over: bool = False
    """The request has ended."""
    _queue: "NotificationQueue | None" = None
    _end: asyncio.Event | None = None
    """None while nothing waits for the end: for most requests, the server sends only the response."""

    @property
    def queue(self) -> "NotificationQueue":
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
        self._tracked[self.token] = self
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over = True
        del self._tracked[self.token]
        if self._queue is not None:
            self._queue.close()
        if self._end is not None:
            self._end.set()


class InflightRequests:
    """The requests of callers that wait for their responses on one connection."""

    def __init__(self, make_queue: "Callable[[ClientChannel], NotificationQueue]") -> None:
        """Start without requests; `make_queue` makes the queue of notifications to a caller."""
        self._make_queue = make_queue
        self._by_token: dict[str, InflightRequest] = {}
        """Oldest first."""
        self._namespaces: set[str] = set()
        """The principals of all requests so far: a server may send messages about a request that has ended."""
        self._has_hidden_rest = False
        """The server may still work on a request whose values are hidden, although its caller waits no longer."""

    def track(
        self,
        token: str,
        channel: ClientChannel,
        timeout: PausableTimeout,
        *,
        resets_timeout: bool,
        is_interactive: bool = True,
    ) -> InflightRequest:
        """Route messages about a request to its caller for the duration of the context."""
        self._namespaces.add(channel.caller.namespace)
        return InflightRequest(
            channel, timeout, resets_timeout, is_interactive, token, self._by_token, self._make_queue
        )

    def get(self, token: str) -> InflightRequest | None:
        """Return the request with a token."""
        return self._by_token.get(token)

    def find(self, message: ServerMessage) -> InflightRequest | None:
        """Return the request that a message is about: by its stream, else one of the only caller's requests.

        A connection that several principals have used has no only caller. Of several requests, return the one with the
        fewest requests of the server, of those that the client waits for: a client gives up a call that needs many
        input rounds. If the client waits for none, return the latest: it may never come back to an earlier one.
        Interactive ones come first: during others, only 2025-11-25 clients answer requests.
        """
        if message.about is not None:
            return self._by_token.get(message.about)
        requests = list(self._by_token.values())
        callers = {one.channel.caller.identity for one in requests}
        if len(callers) != 1 or len(self._namespaces) != 1:
            return None
        if interactive := [one for one in requests if one.is_interactive]:
            requests = interactive
        elif message.id is not None:
            requests = [one for one in requests if not one.channel.caller.is_stateless]
        awaited = [one for one in requests if one.channel.is_waiting]
        return min(awaited, key=attrgetter("server_requests"), default=requests[-1] if requests else None)

    def find_least_used(self) -> InflightRequest | None:
        """Return the request with the fewest requests of the server, of those that a client waits for if there are any.

        So calls that clients abandoned do not lend their limit to others.
        """
        awaited = [one for one in self._by_token.values() if one.channel.is_waiting]
        candidates = awaited or self._by_token.values()
        return min(candidates, key=attrgetter("server_requests"), default=None)

    def note_abandoned(self, channel: ClientChannel | None) -> None:
        """Note that the caller of a request waits no longer, and that the server has not answered it."""
        self._has_hidden_rest = self._has_hidden_rest or is_filtered(channel)

    def may_be_hidden(self, message: ServerMessage) -> bool:
        """Whether a message that names no request may be about one whose values are hidden."""
        if message.about is not None:
            return False
        return self._has_hidden_rest or any(is_filtered(one.channel) for one in self._by_token.values())

"""All upstreams: they start together, and each is replaced and stopped on its own.

A failing upstream reconnects; the others are not affected.
"""

import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio

from mcp_mirror.callers import Caller, ClientChannel
from mcp_mirror.errors import UpstreamError
from mcp_mirror.settings.upstreams import UpstreamPolicy
from mcp_mirror.upstreams.local import LocalFunctions, LocalUpstream
from mcp_mirror.upstreams.upstream import ServerUpstream, UpstreamDependencies

_logger = logging.getLogger(__name__)

Upstream = ServerUpstream | LocalUpstream
"""A source of tools: one of the user's MCP servers, or functions of the program that embeds the gateway."""

_MAX_NAMED: Final = 20
"""Upstreams that a sentence names."""
_DRAIN_INTERVAL: Final = 0.05
"""Seconds between two checks whether the calls of a removed upstream have ended."""


class UpstreamRegistry:
    """All upstreams of the configuration, and one more if there are local functions."""

    def __init__(
        self,
        policies: Iterable[UpstreamPolicy],
        dependencies: UpstreamDependencies,
        functions: LocalFunctions | None = None,
    ) -> None:
        self._dependencies = dependencies
        self._client: ClientChannel | None = None
        self._local = LocalUpstream(functions, dependencies.listeners) if functions is not None else None
        self._servers = {policy.name: self._create(policy) for policy in policies}
        self.client_header_names: frozenset[str] = self._find_client_header_names()
        """The headers of requests whose values upstreams get, in lower case."""
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._tasks = anyio.create_task_group()
        self._started = float("inf")
        self._replaced = anyio.Event()

    def __iter__(self) -> Iterator[Upstream]:
        servers = tuple(self._servers.values())
        return iter((self._local, *servers) if self._local else servers)

    def __getitem__(self, name: str) -> Upstream:
        if (server := self._servers.get(name)) is not None:
            return server
        if self._local and name == self._local.policy.name:
            return self._local
        raise UpstreamError(f"Upstream {name!r} is not in the configuration any more. List the tools again.")

    def visible_to(self, caller: Caller) -> tuple[Upstream, ...]:
        """Return the upstreams that a caller's endpoint serves and its token gives access to."""
        return tuple(
            one
            for one in self
            if caller.upstream in (None, one.policy.name) and caller.has_scopes(one.policy.required_scopes)
        )

    @property
    def are_scoped(self) -> bool:
        """Whether callers may see different upstreams or tools."""
        return any(one.policy.is_scoped for one in self)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Allow to start upstreams for the duration of the context; stop all at its end."""
        async with self._tasks as tasks:
            yield
            tasks.cancel_scope.cancel()

    def start(self, client: ClientChannel | None = None) -> None:
        """Start all upstreams; on behalf of `client` if the gateway serves only this one, on standard streams."""
        self._started = anyio.current_time()
        if client is not None:
            self._client = client
            self._servers = {name: self._create(server.policy) for name, server in self._servers.items()}
        for upstream in self:
            self._start(upstream)

    def replace(self, policies: Iterable[UpstreamPolicy], drain: float) -> None:
        """Use other upstreams: stop those that are not among `policies`, start new ones, restart changed ones.

        Local functions stay. Calls in flight to a stopped upstream get `drain` seconds to end.
        """
        before, self._servers = self._servers, {}
        for policy in policies:
            known = before.get(policy.name)
            is_unchanged = known is not None and known.policy == policy
            self._servers[policy.name] = before.pop(policy.name) if is_unchanged else self._create(policy)
        self.client_header_names = self._find_client_header_names()
        for name, server in before.items():
            if (scope := self._scopes.pop(name, None)) is not None:
                self._tasks.start_soon(_stop_when_drained, server, scope, drain)
        for name, server in self._servers.items():
            if self._started != float("inf") and name not in self._scopes:
                self._start(server)
        self._replaced.set()
        self._replaced = anyio.Event()

    def _find_client_header_names(self) -> frozenset[str]:
        each = (server.policy.client_values.values() for server in self._servers.values())
        return frozenset(name.lower() for names in each for name in names)

    async def wait_for_replacement(self) -> None:
        """Wait for the next call of `replace`."""
        await self._replaced.wait()

    def end_session(self, session: str) -> None:
        """Close the dedicated connections of a client session that has ended."""
        for server in self._servers.values():
            server.release_owner(session)

    async def set_level(self, channel: ClientChannel, level: str) -> None:
        """Set the log level of the servers on the dedicated connections of a 2025-11-25 client."""
        async with anyio.create_task_group() as tasks:
            for server in self._servers.values():
                for connection in server.connections:
                    if connection.client_session == channel.caller.session and (session := connection.current_session):
                        tasks.start_soon(session.set_level, level)

    async def notify(self, session: str | None, method: str) -> None:
        """Forward a client's notification to the 2025-11-25 servers on its dedicated connections, to all at once."""
        async with anyio.create_task_group() as tasks:
            for server in self._servers.values():
                for connection in server.connections:
                    current = connection.current_session
                    if connection.client_session == session and current and not current.is_stateless:
                        tasks.start_soon(current.notify, method)

    async def connect_unlisted(self, caller: Caller) -> None:
        """Reconnect now the upstreams of a caller that have not listed any tools yet, and wait for the attempts."""
        async with anyio.create_task_group() as tasks:
            for upstream in self.visible_to(caller):
                if isinstance(upstream, ServerUpstream) and upstream.listing is None:
                    tasks.start_soon(upstream.connect)

    def may_show(self, name: str) -> bool:
        """Whether models may see an upstream's text."""
        with suppress(UpstreamError):  # a reload has removed it
            return self[name].policy.preview
        return False

    async def wait_for_attempts(self, seconds: float, caller: Caller | None = None) -> None:
        """Wait, until `seconds` after the start, for the first attempts of the upstreams (that `caller` sees)."""
        await self._wait([one.settled for one in (self if caller is None else self.visible_to(caller))], seconds)

    async def wait_for_listings(self, seconds: float, caller: Caller) -> None:
        """Wait until each upstream of a caller has a listing, of this run or an earlier one; see above."""
        await self._wait([upstream.listed for upstream in self.visible_to(caller)], seconds)

    async def wait_for_changes(self, channel: ClientChannel) -> None:
        """Wait for a short time while changes of the tools that a caller sees are being read."""
        async with anyio.create_task_group() as tasks:
            for upstream in self.visible_to(channel.caller):
                if isinstance(upstream, ServerUpstream):
                    tasks.start_soon(upstream.wait_for_changes, channel)

    async def wait_for_attempt(self, name: str, seconds: float) -> bool:
        """Wait until the first attempt of one upstream has ended; see above. Return whether that needed a wait."""
        settled = self[name].settled
        if settled.is_set():
            return False
        await self._wait([settled], seconds)
        return True

    async def _wait(self, events: Sequence[anyio.Event], seconds: float) -> None:
        pending = [event for event in events if not event.is_set()]
        if pending:
            with anyio.CancelScope(deadline=self._started + seconds):
                for event in pending:
                    await event.wait()

    def _create(self, policy: UpstreamPolicy) -> ServerUpstream:
        return ServerUpstream(policy, self._dependencies, self._client)

    def _start(self, upstream: Upstream) -> None:
        name = upstream.policy.name
        self._scopes[name] = anyio.CancelScope()
        self._tasks.start_soon(_run, upstream, self._scopes[name], name=f"upstream {name}")


def explain_missing(upstreams: Iterable[Upstream], caller: Caller) -> str:
    """Return sentences for models about upstreams that are starting, are down, or need a header; or no text."""
    sentences: list[str] = []
    starting: list[str] = []
    down: list[str] = []
    for one in upstreams:
        is_down, header = one.status.state == "down", one.find_missing_header(caller)
        if is_down and header:
            sentences.append(f"Server {one.policy.name} needs the header {header} in requests.")
        elif is_down and not one.needs_headers(caller):
            down.append(one.policy.name)
        elif not one.listing:
            starting.append(one.policy.name)
    sentences += (
        _write_missing(starting, "starting", "may appear later"),
        _write_missing(down, "down", "cannot be called now"),
    )
    return " ".join(filter(None, sentences))


def _write_missing(names: Sequence[str], state: str, effect: str) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    servers, verb, whose = ("Server", "is", "its") if len(names) == 1 else ("Servers", "are", "their")
    return f"{servers} {', '.join(names[:_MAX_NAMED])}{more} {verb} {state}: {whose} tools {effect}."


async def _run(upstream: Upstream, scope: anyio.CancelScope) -> None:
    with scope:
        await upstream.run()


async def _stop_when_drained(upstream: Upstream, scope: anyio.CancelScope, drain: float) -> None:
    """Stop a removed upstream when its calls have ended, at the latest after `drain` seconds."""
    with anyio.move_on_after(drain):
        while upstream.is_in_use:  # noqa: ASYNC110  # requests end in many places, and this runs rarely
            await anyio.sleep(_DRAIN_INTERVAL)
    if upstream.is_in_use:
        _logger.warning(
            "upstream %s was stopped by a reload, and requests failed that had not ended within %g s (`server.drain`).",
            upstream.policy.name,
            drain,
        )
    scope.cancel()

"""All upstreams: they start together, and each is replaced and stopped on its own.

A failing upstream reconnects; the others are not affected.
"""

import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
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
        local = LocalUpstream(functions, dependencies.listeners) if functions is not None else None
        self._local: dict[str, Upstream] = {local.policy.name: local} if local else {}
        self._client: ClientChannel | None = None
        self._all = self._local | {policy.name: self._create(policy) for policy in policies}
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._tasks = anyio.create_task_group()
        self._started = float("inf")
        self._replaced = anyio.Event()

    def __iter__(self) -> Iterator[Upstream]:
        return iter(tuple(self._all.values()))

    def __getitem__(self, name: str) -> Upstream:
        try:
            return self._all[name]
        except KeyError:
            raise UpstreamError(
                f"Upstream {name!r} is not in the configuration any more. List the tools again."
            ) from None

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
        if self._started != float("inf"):
            return
        self._started = anyio.current_time()
        if client is not None:
            self._client = client
            policies = [upstream.policy for name, upstream in self._all.items() if name not in self._local]
            self._all = self._local | {policy.name: self._create(policy) for policy in policies}
        for upstream in self:
            self._start(upstream)

    def replace(self, policies: Iterable[UpstreamPolicy], drain: float) -> None:
        """Use other upstreams: stop those that are not among `policies`, start new ones, restart changed ones.

        Local functions stay. Calls in flight to a stopped upstream get `drain` seconds to end.
        """
        before, self._all = self._all, dict(self._local)
        for name in self._local:
            del before[name]
        for policy in policies:
            known = before.get(policy.name)
            if known is not None and known.policy == policy:
                self._all[policy.name] = before.pop(policy.name)
                continue
            self._all[policy.name] = self._create(policy)
        for name, upstream in before.items():
            if (scope := self._scopes.pop(name, None)) is not None:
                self._tasks.start_soon(_stop_when_drained, upstream, scope, drain)
        for name, upstream in self._all.items():
            if self._started != float("inf") and name not in self._scopes:
                self._start(upstream)
        self._replaced.set()
        self._replaced = anyio.Event()

    async def wait_for_replacement(self) -> None:
        """Wait for the next call of `replace`."""
        await self._replaced.wait()

    def end_session(self, session: str) -> None:
        """Close the dedicated connections of a client session that has ended."""
        for upstream in self:
            upstream.release(session)

    async def set_level(self, channel: ClientChannel, level: str) -> None:
        """Set the log level of the servers on the dedicated connections of a 2025-11-25 client."""
        async with anyio.create_task_group() as tasks:
            for upstream in self:
                for connection in upstream.connections:
                    if connection.client_session == channel.caller.session and (session := connection.current_session):
                        tasks.start_soon(session.set_level, level)

    async def notify(self, session: str | None, method: str) -> None:
        """Forward a client's notification to the 2025-11-25 servers on its dedicated connections."""
        for upstream in self:
            for connection in upstream.connections:
                current = connection.current_session
                if connection.client_session == session and current and not current.is_stateless:
                    await current.notify(method)

    async def connect_unlisted(self, caller: Caller) -> None:
        """Reconnect now the upstreams of a caller that have not listed any tools yet, and wait for the attempts."""
        async with anyio.create_task_group() as tasks:
            for upstream in self.visible_to(caller):
                if upstream.listing is None:
                    tasks.start_soon(upstream.connect)

    def may_show(self, name: str) -> bool:
        """Whether models may see an upstream's text."""
        return name in self._all and self._all[name].policy.preview

    async def settle(self, seconds: float, caller: Caller | None = None) -> None:
        """Wait, until `seconds` after the start, for the first attempts of the upstreams (that `caller` sees)."""
        await self._wait([one.settled for one in (self if caller is None else self.visible_to(caller))], seconds)

    async def settle_listings(self, seconds: float, caller: Caller) -> None:
        """Wait until each upstream of a caller has a listing, of this run or an earlier one; see `settle`."""
        await self._wait([upstream.listed for upstream in self.visible_to(caller)], seconds)

    async def settle_changes(self, caller: Caller) -> None:
        """Wait while changes of the tools that a caller sees are being read, for two seconds at most."""
        async with anyio.create_task_group() as tasks:
            for upstream in self.visible_to(caller):
                tasks.start_soon(upstream.settle_changes, caller)

    async def settle_one(self, name: str, seconds: float) -> bool:
        """Wait until the first attempt of one upstream has ended; see `settle`. Return whether that needed a wait."""
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

    def _create(self, policy: UpstreamPolicy) -> Upstream:
        return ServerUpstream(policy, self._dependencies, self._client)

    def _start(self, upstream: Upstream) -> None:
        name = upstream.policy.name
        self._scopes[name] = anyio.CancelScope()
        self._tasks.start_soon(_run, upstream, self._scopes[name], name=f"upstream {name}")


def explain_missing(upstreams: Iterable[Upstream]) -> str:
    """Return a sentence for models about upstreams that are starting, and one about those that are down; or no text."""
    starting: list[str] = []
    down: list[str] = []
    for one in upstreams:
        if one.status.state == "down":
            down.append(one.policy.name)
        elif not one.listing:
            starting.append(one.policy.name)
    sentences = (
        _write_missing(starting, "starting", "appear later"),
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

"""Keeps each upstream connected in a task of its own, and says how it is.

An upstream that fails is reported and tried again, more and more slowly; the others do not notice.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn

import anyio
import httpx2
import mcp_types as types
from mcp import MCPError
from mcp.client.subscriptions import SubscriptionLost

from mcp_mirror.errors import MirrorError, UpstreamError
from mcp_mirror.models import Segments
from mcp_mirror.policies import HttpEndpoint, UpstreamPolicy
from mcp_mirror.upstreams.base import Connection, Listing, RawResult, open_connection
from mcp_mirror.upstreams.http import HttpTransport
from mcp_mirror.upstreams.stdio import LastWords, StdioTransport

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
_RELIST_PAUSE: Final = 1.0
"""Seconds between two listings of an upstream that keeps announcing changes."""

State = Literal["starting", "ready", "down"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Status:
    """How an upstream is."""

    state: State
    detail: str = ""
    """Why it is down, a sentence for an operator."""


class Upstream:
    """One of the user's MCP servers, connected again and again."""

    def __init__(self, policy: UpstreamPolicy, max_message_bytes: int, client_info: types.Implementation) -> None:
        self.policy = policy
        self.status = Status("starting")
        self.listing: Listing | None = None
        self.settled = anyio.Event()
        """Set once the first attempt to connect has ended, well or not."""
        self._client_info = client_info
        self._max_message_bytes = max_message_bytes
        self._connection: Connection | None = None
        self._changed = anyio.Event()
        self._attempts = 0

    async def call_tool(
        self, tool: str, arguments: Segments, headers: Mapping[str, Any], seconds: float | None
    ) -> RawResult:
        """Call a tool; see `Connection.call_tool`.

        Raises:
            UpstreamError: It is not connected, or the call failed.
        """
        if self._connection is None:
            why = f": {self.status.detail}" if self.status.detail else ""
            raise UpstreamError(f"Upstream {self.policy.name!r} is {self.status.state}{why} Try again in a moment.")
        return await self._connection.call_tool(tool, arguments, headers=headers, timeout=seconds)

    async def run(self, on_change: Callable[[], None]) -> NoReturn:
        """Connect, serve, and connect again when it goes down; until cancelled."""
        while True:
            try:
                await self._serve(on_change)
            except UpstreamError as error:
                self._set_down(str(error), on_change)
            await anyio.sleep(min(_FIRST_PAUSE * 2**self._attempts, _LONGEST_PAUSE))
            self._attempts += 1

    async def _serve(self, on_change: Callable[[], None]) -> None:
        last_words = LastWords(self.policy.name, getattr(self.policy.endpoint, "env", {}))
        transport = self._transport(last_words)
        try:
            async with self._connected(transport) as connection:
                self.status, self._connection = Status("ready"), connection
                self._attempts = 0
                self.settled.set()
                on_change()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._follow_changes, connection)
                    tasks.start_soon(self._relist, connection, on_change)
                    await connection.bypass.ended.wait()
                    raise UpstreamError("It ended the connection.")
        except Exception as error:  # noqa: BLE001  # whatever a server can do must cost the others nothing
            said = f" Its last words: {words}" if (words := str(last_words)) else ""
            raise UpstreamError(f"{_reason(error)}{said}") from None
        finally:
            self._connection = None

    @asynccontextmanager
    async def _connected(self, transport: StdioTransport | HttpTransport) -> AsyncIterator[Connection]:
        policy = self.policy
        with anyio.CancelScope() as scope:
            scope.deadline = anyio.current_time() + policy.startup_timeout
            opened = open_connection(policy.name, transport.open, policy.timeout, self._announce, self._client_info)
            async with opened as connection:
                self.listing = await connection.list_tools()
                scope.deadline = float("inf")
                yield connection
        if scope.cancelled_caught:
            raise UpstreamError(
                f"It did not connect and list its tools within {policy.startup_timeout:g} s (`startup_timeout`)."
            )

    def _transport(self, last_words: LastWords) -> StdioTransport | HttpTransport:
        endpoint, policy = self.policy.endpoint, self.policy
        if isinstance(endpoint, HttpEndpoint):
            return HttpTransport(endpoint, max(policy.timeout, 300.0), self._max_message_bytes)
        return StdioTransport(policy.name, endpoint, self._max_message_bytes, last_words)

    def _announce(self) -> None:
        self._changed.set()

    async def _follow_changes(self, connection: Connection) -> None:
        """Listen for announcements; where the stream is lost, what was missed is made up for by listing again."""
        while connection.announces_changes:
            try:
                async for _ in connection.each_change():
                    self._announce()
            except SubscriptionLost:
                self._announce()
            except MCPError as error:
                log.warning("upstream %s takes no subscription (error %d)", self.policy.name, error.error.code)
                return
            await anyio.sleep(_RELIST_PAUSE)

    async def _relist(self, connection: Connection, on_change: Callable[[], None]) -> None:
        """List again after changes: however many were announced, once a second at most."""
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            try:
                self.listing = await connection.list_tools()
            except UpstreamError as error:
                log.warning("%s", error)
            else:
                on_change()
            await anyio.sleep(_RELIST_PAUSE)

    def _set_down(self, detail: str, on_change: Callable[[], None]) -> None:
        self.status, self.listing = Status("down", detail), None
        self.settled.set()
        log.warning("upstream %s is down: %s", self.policy.name, detail)
        on_change()


class Upstreams:
    """All upstreams, side by side."""

    def __init__(
        self, policies: Iterable[UpstreamPolicy], max_message_bytes: int, client_info: types.Implementation
    ) -> None:
        self._all = {policy.name: Upstream(policy, max_message_bytes, client_info) for policy in policies}

    def __iter__(self) -> Iterator[Upstream]:
        return iter(self._all.values())

    def __getitem__(self, name: str) -> Upstream:
        return self._all[name]

    @asynccontextmanager
    async def running(self, on_change: Callable[[], None]) -> AsyncIterator[None]:
        """Start every upstream at once; stop them all at the end. `on_change` is told of every new listing."""
        async with anyio.create_task_group() as tasks:
            for upstream in self:
                tasks.start_soon(upstream.run, on_change, name=f"upstream {upstream.policy.name}")
            yield
            tasks.cancel_scope.cancel()

    async def settle(self, seconds: float) -> None:
        """Wait until each upstream has been tried once, and no longer than this."""
        with anyio.move_on_after(seconds):
            for upstream in self:
                await upstream.settled.wait()


def _reason(error: BaseException) -> str:
    """What went wrong, in a sentence that holds no header and no URL."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MirrorError):
        return str(error)
    if isinstance(error, MCPError):
        return f"It refused to connect: {error.error.message[:300]} (error {error.error.code})."
    if isinstance(error, httpx2.HTTPStatusError):
        return f"It answered with HTTP status {error.response.status_code}."
    return f"It failed with {type(error).__name__}."

"""Keeps each upstream connected in a task of its own, and says how it is.

An upstream that fails is reported and tried again, more and more slowly; the others do not notice.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn

import anyio
import anyio.lowlevel
import httpx2
import mcp_types as types
from mcp import MCPError
from mcp.client.subscriptions import SubscriptionLost

from mcp_mirror.errors import MirrorError, UpstreamError
from mcp_mirror.models import Segments
from mcp_mirror.policies import HttpEndpoint, UpstreamPolicy
from mcp_mirror.spool import Spool
from mcp_mirror.upstreams.base import Connection, Listing, Mode, SessionLostError, is_closed, open_connection
from mcp_mirror.upstreams.bypass import Arrival
from mcp_mirror.upstreams.http import HttpTransport
from mcp_mirror.upstreams.redaction import Redactor
from mcp_mirror.upstreams.stdio import LastWords, StdioTransport

_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 60.0
_STEADY: Final = 10.0
"""Seconds after which what ended had worked: it is begun again at once."""
_PATIENCE: Final = 5.0
"""Seconds that a call waits for an upstream that is being connected."""
_LONGEST_DEAFNESS: Final = 4.0
"""Seconds between two attempts to subscribe to an upstream's announcements."""
_NO_SUBSCRIPTION: Final = (types.METHOD_NOT_FOUND, types.INVALID_REQUEST, types.INVALID_PARAMS)
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


class EndedEarlyError(UpstreamError):
    """The server ended the connection before it had answered."""


class Upstream:
    """One of the user's MCP servers, connected again and again."""

    def __init__(self, policy: UpstreamPolicy, spool: Spool, client_info: types.Implementation) -> None:
        self.policy = policy
        self.status = Status("starting")
        self.listing: Listing | None = None
        """The last there was: a server that is away for a while keeps its tools, and others keep their names."""
        self.settled = anyio.Event()
        """Set once the first attempt to connect has ended, well or not."""
        self._client_info = client_info
        self._spool = spool
        self._redactor = Redactor(policy.endpoint)
        self._connection: Connection | None = None
        self._moved = anyio.Event()
        self._changed = anyio.Event()
        self._wanted = anyio.Event()
        self._failures = 0
        self._mode: Mode = "auto"

    @property
    def under_way(self) -> int:
        """How many requests to it wait for their answers."""
        return len(self._connection.bypass) if self._connection else 0

    async def call_tool(
        self, tool: str, arguments: Segments, headers: Mapping[str, Any], seconds: float | None
    ) -> Arrival:
        """Call a tool; see `Connection.call_tool`.

        Raises:
            UpstreamError: It is not connected, the arguments are over its limit, or the call failed.
        """
        self._check_size(sum(len(segment) for segment in arguments))
        connection = await self._usable()
        try:
            return await connection.call_tool(tool, arguments, headers=headers, timeout=seconds)
        except SessionLostError:
            connection = await self._usable()
        return await connection.call_tool(tool, arguments, headers=headers, timeout=seconds)

    def _check_size(self, size: int) -> None:
        """Some servers end at a message that is too large for them: it is not sent."""
        limit = self.policy.request_limit
        if limit is not None and size > limit:
            raise UpstreamError(
                f"The arguments are {size:,} bytes and upstream {self.policy.name!r} takes {limit:,} "
                "(`max_request_bytes`). Pass a smaller part of the value; if the server takes more, raise the setting."
            )

    def quote(self, message: str) -> str:
        """The server's message as a part of a sentence of ours, without the secrets that it was given."""
        return self._redactor.quote(message)

    async def run(self, on_change: Callable[[], None]) -> NoReturn:
        """Connect, serve, and connect again when it goes down; until cancelled."""
        attempts = 0
        while True:
            self._wanted = anyio.Event()
            began = anyio.current_time()
            try:
                await self._serve(on_change)
            except UpstreamError as error:
                if self._tries_the_other_era(error):
                    continue
                self._set_down(str(error))
            attempts = 0 if anyio.current_time() - began > _STEADY else attempts + 1
            await anyio.sleep(_FIRST_PAUSE)
            with anyio.move_on_after(min(_FIRST_PAUSE * 2**attempts, _LONGEST_PAUSE)):
                await self._wanted.wait()

    def _tries_the_other_era(self, error: UpstreamError) -> bool:
        """Whether to try at once in the other way: some servers of the 2025 era die of a question that is newer."""
        if self.status.state == "ready":
            return False  # what has worked is kept
        self._mode = "legacy" if self._mode == "auto" else "auto"
        return self._mode == "legacy" and isinstance(error, EndedEarlyError)

    async def _serve(self, on_change: Callable[[], None]) -> None:
        last_words = LastWords(self._redactor)
        try:
            async with self._connected(self._transport(last_words)) as connection:
                self._settle(connection)
                on_change()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._follow_changes, connection)
                    tasks.start_soon(self._relist, connection, on_change)
                    await connection.bypass.ended.wait()
                    self._settle(None)
                    raise UpstreamError("It ended the connection.")  # noqa: TRY301  # one way out for every end
        except anyio.get_cancelled_exc_class():
            await anyio.lowlevel.checkpoint_if_cancelled()  # goes on where it is we who are stopped
            raise UpstreamError("It broke the connection off.") from None  # the SDK's #3560: it only looks like that
        except Exception as error:  # noqa: BLE001  # whatever a server can do must cost the others nothing
            said = f" Its last words: {words}" if (words := str(last_words)) else ""
            cause = _innermost(error)
            kind = EndedEarlyError if is_closed(cause) else UpstreamError
            raise kind(f"{_reason(cause, self._redactor)}{said}") from None
        finally:
            self._settle(None)

    @asynccontextmanager
    async def _connected(self, transport: StdioTransport | HttpTransport) -> AsyncIterator[Connection]:
        policy = self.policy
        with anyio.CancelScope() as scope:
            scope.deadline = anyio.current_time() + policy.startup_timeout
            opened = open_connection(
                policy, transport.open, self._redactor, self._changed_now, self._client_info, self._mode
            )
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
            return HttpTransport(endpoint, policy.timeout, self._spool)
        return StdioTransport(policy.name, endpoint, self._spool, last_words)

    def _settle(self, connection: Connection | None) -> None:
        self._connection = connection
        if connection is not None:
            self.status = Status("ready")
            self.settled.set()
        self._tell_moved()

    def _tell_moved(self) -> None:
        self._moved.set()
        self._moved = anyio.Event()

    async def _usable(self) -> Connection:
        """The connection; where there is none, it is tried for now and not only when its pause is over."""
        failures = self._failures
        self._wanted.set()
        with anyio.move_on_after(_PATIENCE):
            while self._is_away() and self._failures == failures:
                await self._moved.wait()
        if self._connection is None or self._is_away():
            why = f": {self.status.detail}" if self.status.detail else "."
            raise UpstreamError(f"Upstream {self.policy.name!r} is {self.status.state}{why} Try again in a moment.")
        return self._connection

    def _is_away(self) -> bool:
        return self._connection is None or self._connection.bypass.ended.is_set()

    def _changed_now(self) -> None:
        self._changed.set()

    async def _follow_changes(self, connection: Connection) -> None:
        """Listen for announcements, again and again where the stream is lost."""
        attempts = 0
        while connection.announces_changes:
            began = anyio.current_time()
            try:
                async for _ in connection.each_change():
                    self._changed_now()
            except MCPError as error:
                if error.code in _NO_SUBSCRIPTION:
                    log.warning("upstream %s takes no subscription (error %d)", self.policy.name, error.code)
                    return
            except (SubscriptionLost, TimeoutError):
                pass
            attempts = 0 if anyio.current_time() - began > _STEADY else attempts + 1
            await anyio.sleep(min(_RELIST_PAUSE * 2**attempts, _LONGEST_DEAFNESS))

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

    def _set_down(self, detail: str) -> None:
        self._failures += self.status.state != "ready"
        self.status = Status("down", detail)
        self.settled.set()
        self._tell_moved()
        log.warning("upstream %s is down: %s", self.policy.name, detail)


class Upstreams:
    """All upstreams, side by side."""

    def __init__(self, policies: Iterable[UpstreamPolicy], spool: Spool, client_info: types.Implementation) -> None:
        self._all = {policy.name: Upstream(policy, spool, client_info) for policy in policies}
        self._started = float("inf")

    def __iter__(self) -> Iterator[Upstream]:
        return iter(self._all.values())

    def __getitem__(self, name: str) -> Upstream:
        return self._all[name]

    @asynccontextmanager
    async def running(self, on_change: Callable[[], None]) -> AsyncIterator[None]:
        """Start every upstream at once; stop them all at the end. `on_change` is told of every new listing."""
        async with anyio.create_task_group() as tasks:
            self._started = anyio.current_time()
            for upstream in self:
                tasks.start_soon(upstream.run, on_change, name=f"upstream {upstream.policy.name}")
            yield
            tasks.cancel_scope.cancel()

    async def settle(self, seconds: float) -> None:
        """Wait until each upstream has been tried once, and no longer than this many seconds after their start."""
        with anyio.CancelScope(deadline=self._started + seconds):
            for upstream in self:
                await upstream.settled.wait()


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _reason(error: BaseException, redactor: Redactor) -> str:
    """What went wrong, in a sentence that holds no header and no URL."""
    if isinstance(error, MirrorError):
        return redactor.clean(str(error))
    if is_closed(error):
        return "It ended the connection before it had answered."
    if isinstance(error, MCPError):
        return f"It refused to connect: {redactor.quote(error.error.message)} (error {error.error.code})."
    if isinstance(error, httpx2.HTTPStatusError):
        return f"It answered with HTTP status {error.response.status_code}."
    return f"It failed with {type(error).__name__}."

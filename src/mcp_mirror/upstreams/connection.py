"""One kept connection to an upstream: made again when it ends, more and more slowly where it cannot be made.

A request waits for the connection a little while it is being made. Where it failed again and again, requests fail at
once and at most one a second tries it: the upstream has a word in the error, and no caller waits for nothing.
"""

import logging
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal, NoReturn

import anyio
import anyio.lowlevel
import httpx2
import mcp_types as types
from mcp import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS, is_version_at_least

from mcp_mirror.callers import ClientChannel
from mcp_mirror.errors import MirrorError, RefusedError, UpstreamError, unwrap_error_group
from mcp_mirror.payload.spool import Spool
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.settings.policies import HttpEndpoint, StdioEndpoint, UpstreamPolicy
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.system.file_handles import explain_shortage
from mcp_mirror.upstreams.limiter import UpstreamLimiter
from mcp_mirror.upstreams.listing_cache import ListingCache
from mcp_mirror.upstreams.notifications import ConnectionOwner
from mcp_mirror.upstreams.oauth import Authorizer
from mcp_mirror.upstreams.session import (
    ConnectionLostError,
    Examine,
    Listing,
    Mode,
    OpenList,
    Page,
    SessionLostError,
    UpstreamRequest,
    UpstreamSession,
    is_closed,
    open_connection,
)
from mcp_mirror.upstreams.transports.http import HttpTransport, TakesCookies
from mcp_mirror.upstreams.transports.network_errors import explain_failed_connection, explain_response, read_marked
from mcp_mirror.upstreams.transports.payloads import RawResponse
from mcp_mirror.upstreams.transports.server_output import ServerOutput
from mcp_mirror.upstreams.transports.stdio import StdioTransport

_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 60.0
_DOUBLINGS: Final = 16
"""Times that a pause is doubled: past it every bound is reached."""
_JITTER: Final = 0.2
"""Share of a pause by which it varies."""
_STEADY: Final = 10.0
"""Seconds after which what ended had worked: it is begun again at once."""
_PATIENCE: Final = 5.0
"""Seconds that a call waits for an upstream that is being connected."""
_BREAKER: Final = 5
"""Failures in a row after which calls fail at once."""
_HALF_OPEN: Final = 1.0
"""Seconds between two attempts that calls bring about once they fail at once."""
_LONGEST_DEAFNESS: Final = 4.0
"""Seconds between two attempts to subscribe to an upstream's announcements."""
_NO_SUBSCRIPTION: Final = (types.METHOD_NOT_FOUND, types.INVALID_REQUEST, types.INVALID_PARAMS)
_SLOW_START: Final = "A first start may install it, as with npx: raise `startup_timeout`, or run its command by hand."
_SLOW_ANSWER: Final = "See whether its `url` answers, or raise `startup_timeout`."
_NOT_MCP: Final = (
    "Check that `command` and `args` start an MCP server on standard input and output, and that it prints its logs on "
    "standard error."
)
_QUOTED: Final = 2_000
"""Characters of the error with which a server refuses to connect."""
_RELIST_PAUSE: Final = 1.0
"""Seconds between two listings of an upstream that keeps announcing changes."""

State = Literal["starting", "ready", "down"]

Modes = tuple[Mode, ...]
"""The ways to connect, in the order in which they are tried."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Status:
    """How an upstream is."""

    state: State
    detail: str = ""
    """Why it is down, a sentence for an operator."""
    output: tuple[str, ...] = ()
    """What the server printed before it failed at its start, for operators only: the last lines of standard error."""


_JUST_ENDED: Final = Status("down", "It ended the connection.")


class FloodError(UpstreamError):
    """The server sent too much that nobody asked for: it is connected again with backoff."""


class EndedEarlyError(UpstreamError):
    """The server ended the connection before it had answered."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """What every connection to one upstream is made with."""

    policy: UpstreamPolicy
    spool: Spool
    child_watchdog: ChildWatchdog
    client_info: types.Implementation
    redactor: Redactor
    examine: Examine
    open_list: OpenList
    authorizer: Authorizer | None = None
    """Has the tokens that the upstream wants; None where it wants none."""
    limiter: UpstreamLimiter | None = None
    """The way in for requests over all connections; None: each connection has one of its own."""
    listings: ListingCache | None = None
    """Keeps listings from run to run; None: nothing does."""

    def transport(self, output: ServerOutput, takes_cookies: TakesCookies) -> StdioTransport | HttpTransport:
        """A transport, single use."""
        endpoint = self.policy.endpoint
        if isinstance(endpoint, HttpEndpoint):
            return HttpTransport(endpoint, self.policy.timeout, self.spool, takes_cookies, output, self.authorizer)
        assert isinstance(endpoint, StdioEndpoint)  # noqa: S101  # to local functions there is no link
        return StdioTransport(self.policy.name, endpoint, self.spool, self.child_watchdog, output)


class ReconnectingConnection:
    """A connection for one party, kept."""

    def __init__(
        self,
        connection_settings: ConnectionSettings,
        owner: ConnectionOwner,
        modes: Modes = ("auto", "legacy"),
        *,
        is_kept: bool = False,
    ) -> None:
        """Make a link that is not connected.

        Args:
            connection_settings: What connections are made with.
            owner: Whom it is for.
            modes: How to connect, in this order.
            is_kept: Its listings are kept for the next run.
        """
        self._is_kept = is_kept
        self.connection_settings = connection_settings
        self._limiter = connection_settings.limiter or UpstreamLimiter(
            connection_settings.policy.name, connection_settings.policy.bounds
        )
        self.owner = replace(owner, on_change=self._changed_now)
        self.status = Status("starting")
        self.listing: Listing | None = None
        """The last there was: a server that is away for a while keeps its tools, and others keep their names."""
        self._output: tuple[str, ...] = ()
        self._logged_output: tuple[str, ...] = ()
        self.settled = anyio.Event()
        """Set once the first attempt to connect has ended, well or not."""
        self.listed = anyio.Event()
        """Set once there is a listing, of this run or an earlier one, or the first attempt to connect has ended."""
        self.failure: UpstreamError | None = None
        """Why the last attempt failed; None while it is connected, or before the first."""
        self.last_used = anyio.current_time()
        self.pins = 0
        """For how many reasons it is kept though nothing is asked."""
        self._announce = owner.on_change
        self._connection: UpstreamSession | None = None
        self._moved = anyio.Event()
        self._changed: set[str] = set()
        self._change = anyio.Event()
        self._wanted = anyio.Event()
        self._tried = -_HALF_OPEN
        self._ready_since = 0.0
        self._vain = 0
        """Attempts that came to nothing."""
        self._failures = 0
        """In a row: attempts that came to nothing, and connections that did not last."""
        self._modes = modes
        self._mode: Mode = modes[0]

    @property
    def inflight_count(self) -> int:
        """How many requests wait for their answers."""
        return len(self._connection.bypass) if self._connection else 0

    @property
    def client_session(self) -> str | None:
        """Whose it is; None where it is everybody's or a principal's."""
        return self.owner.session_channel.caller.session if self.owner.session_channel else None

    @property
    def current_session(self) -> UpstreamSession | None:
        """The connection of now; None while there is none."""
        return None if self._is_away() else self._connection

    async def request(self, order: UpstreamRequest, channel: ClientChannel | None) -> RawResponse:
        """Send a request; see `UpstreamSession.request`.

        Raises:
            UpstreamError: Too many are under way, or it failed.
        """
        async with self._limiter.acquire(channel):
            return await self._request(order, channel)

    async def list_all(self, method: str, member: str, channel: ClientChannel) -> Page:
        """A list for a caller; see `UpstreamSession.list_all`.

        Raises:
            UpstreamError: Too many requests are under way, or it failed.
        """
        async with self._limiter.acquire(channel):
            return await (await self.get_session()).list_all(method, member, channel)

    async def _request(self, order: UpstreamRequest, channel: ClientChannel | None) -> RawResponse:
        with self._in_use():
            connection = await self.get_session()
            try:
                return await connection.request(order, channel)
            except SessionLostError:
                connection = await self.get_session()
            except ConnectionLostError:
                if not order.is_repeatable:
                    raise
                connection = await self.get_session()
            return await connection.request(order, channel)

    async def get_session(self) -> UpstreamSession:
        """The connection; where there is none, it is tried for now and not only when its pause is over.

        Raises:
            UpstreamError: It cannot be made.
        """
        if self._connection is not None and not self._is_away():
            return self._connection
        vain = self._vain
        if self._failures < _BREAKER or anyio.current_time() >= self._tried + _HALF_OPEN:
            self._tried = anyio.current_time()
            self._wanted.set()
            with anyio.move_on_after(_PATIENCE):
                while self._is_away() and self._vain == vain:
                    await self._moved.wait()
        if self._connection is None or self._is_away():
            status = _JUST_ENDED if self.status.state == "ready" else self.status
            why = f": {status.detail}" if status.detail else "."
            name = self.connection_settings.policy.name
            raise UpstreamError(f"Upstream {name!r} is {status.state}{why} Try again in a moment.")
        return self._connection

    async def run(self) -> NoReturn:
        """Connect, serve, and connect again when it goes down; until cancelled."""
        attempts = 0
        while True:
            self._wanted = anyio.Event()
            began = anyio.current_time()
            try:
                await self._serve()
            except UpstreamError as error:
                self.failure = error
                if self._tries_the_other_way(error):
                    continue
                if self.listing and self.listing.is_stale:
                    self.listing = None
                    await self._tell_change("tools")
                self._set_down(error)
            attempts = 0 if anyio.current_time() - began > _STEADY else attempts + 1
            await anyio.sleep(_FIRST_PAUSE)
            with anyio.move_on_after(jittered(pause_after(attempts, _FIRST_PAUSE, _LONGEST_PAUSE))):
                await self._wanted.wait()

    async def restore(self) -> None:
        """Serve the listing of an earlier run until the first attempt to connect has ended."""
        connection_settings = self.connection_settings
        if connection_settings.listings is None:
            return
        kept = await connection_settings.listings.load(
            connection_settings.policy, connection_settings.redactor, self.owner.capabilities
        )
        if kept is None:
            return
        examined = await connection_settings.examine(connection_settings.policy, kept.tools)
        if self.listing is not None or self.settled.is_set():
            return
        self.listing = Listing(
            tools=tuple(dict(one.raw) for one in examined),
            instructions=kept.instructions,
            protocol_version=kept.protocol_version,
            server=kept.server,
            capabilities=kept.capabilities,
            hints=((0, "private"),),  # clients must not keep it
            examined=examined,
            is_stale=True,
        )
        await self._tell_change("tools")
        self.listed.set()

    async def _save_listing(self) -> None:
        if self._is_kept and self.listing and self.connection_settings.listings:
            connection_settings, capabilities = self.connection_settings, self.owner.capabilities
            await self.connection_settings.listings.save(
                connection_settings.policy, connection_settings.redactor, capabilities, self.listing
            )

    def _tries_the_other_way(self, error: UpstreamError) -> bool:
        """Whether to try the next way at once: servers of one era die of a question of the other's, or refuse it."""
        if self.status.state == "ready":
            return False  # what has worked is kept
        mode, following = self._mode, self._modes.index(self._mode) + 1
        self._mode = self._modes[following % len(self._modes)]
        of_the_other_era = mode == "legacy" and isinstance(error, RefusedError)
        return following < len(self._modes) and (isinstance(error, EndedEarlyError) or of_the_other_era)

    async def _serve(self) -> None:
        output = ServerOutput(self.connection_settings.redactor)
        try:
            async with self._connected(self.connection_settings.transport(output, self._takes_cookies)) as connection:
                await self._tell_change("tools")
                self._settle(connection)
                for kind in (kind for kind in ("resources", "prompts") if connection.offers(kind)):
                    await self._tell_change(kind)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._follow_changes, connection)
                    tasks.start_soon(self._relist, connection)
                    tasks.start_soon(self._save_listing)
                    await connection.bypass.ended.wait()
                    self._settle(None)
                    if reason := connection.bypass.flood.reason:
                        raise FloodError(reason)  # noqa: TRY301  # one way out for every end
                    raise UpstreamError("It ended the connection.")  # noqa: TRY301
        except anyio.get_cancelled_exc_class():
            await anyio.lowlevel.checkpoint_if_cancelled()  # goes on where it is we who are stopped
            raise UpstreamError("It broke the connection off.") from None  # the SDK's #3560: it only looks like that
        except Exception as error:  # noqa: BLE001  # whatever a server can do must cost the others nothing
            raise self._ended(unwrap_error_group(error), output) from None
        finally:
            self._settle(None)

    def _ended(self, cause: BaseException, output: ServerOutput) -> UpstreamError:
        is_starting = self.status.state != "ready"
        self._output = output.lines if is_starting else ()
        reason, logged = _reason(cause, self.connection_settings.redactor)
        if is_starting and output.refusal:
            reason = logged = output.refusal
        printed = [f"Its error output: {words}"] if (words := output.summary) else []
        if is_starting and (stray := output.stray) is not None:
            printed = [f'It printed something that is not MCP: "{stray}". {_NOT_MCP}', *printed]
            logged = f"{logged} It printed something that is not MCP. {_NOT_MCP}"
        message = " ".join((reason, *printed)) if self.connection_settings.policy.preview else logged
        if isinstance(cause, MCPError) and not is_closed(cause) and read_marked(cause.error.message) is None:
            return RefusedError(message, cause.error.code, message).with_log_message(logged)
        kind = FloodError if isinstance(cause, FloodError) else UpstreamError
        ended = EndedEarlyError(message) if is_closed(cause) else kind(message)
        return ended.with_log_message(f"{logged} `mcp-mirror check` shows its error output." if words else logged)

    @asynccontextmanager
    async def _connected(self, transport: StdioTransport | HttpTransport) -> AsyncIterator[UpstreamSession]:
        connection_settings, seconds = self.connection_settings, self.connection_settings.policy.startup_timeout
        with anyio.CancelScope() as scope:
            scope.deadline = anyio.current_time() + seconds
            opened = open_connection(
                connection_settings.policy,
                transport.open,
                connection_settings.redactor,
                self.owner,
                connection_settings.client_info,
                self._mode,
            )
            async with opened as connection:
                _check_protocol(connection_settings.policy.oldest_protocol, connection.client.protocol_version)
                connection.open_list = connection_settings.open_list
                self.listing = await connection.list_tools(connection_settings.examine)
                scope.deadline = float("inf")
                yield connection
        if scope.cancelled_caught:
            hint = _SLOW_START if isinstance(connection_settings.policy.endpoint, StdioEndpoint) else _SLOW_ANSWER
            raise UpstreamError(f"It did not connect and list its tools within {seconds:g} s. {hint}")

    def _takes_cookies(self, version: str | None) -> bool:
        """Whether to keep cookies of an answer: a load balancer may need them to find the session again.

        A connection of one party keeps all. A connection that several callers share keeps only those of its own
        handshake in the 2025 protocol, which has sessions, and none where `scope` is `shared`.
        """
        if not self.owner.is_shared:
            return True
        is_handshake = self._connection is None and version not in MODERN_PROTOCOL_VERSIONS
        return is_handshake and self.connection_settings.policy.scope != "shared"

    def _settle(self, connection: UpstreamSession | None) -> None:
        self._connection = connection
        if connection is not None:
            self.failure = None
            self._ready_since = anyio.current_time()
            self.status = Status("ready")
            self.settled.set()
            self.listed.set()
        self._tell_moved()

    async def _tell_change(self, kind: str) -> None:
        """Announce that a list has changed, and wait until clients see it."""
        if (is_seen := self._announce(kind)) is not None:
            await is_seen.wait()

    def _tell_moved(self) -> None:
        self._moved.set()
        self._moved = anyio.Event()

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Meanwhile it is in use, though nothing is asked."""
        self.pins += 1
        try:
            yield
        finally:
            self.pins -= 1
            self.last_used = anyio.current_time()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.last_used = anyio.current_time()

    def _is_away(self) -> bool:
        return self._connection is None or self._connection.bypass.ended.is_set()

    def _changed_now(self, kind: str) -> None:
        """However many announcements come: it is noted which lists changed, and nothing is spawned."""
        self._changed.add(kind)
        self._change.set()

    async def _follow_changes(self, connection: UpstreamSession) -> None:
        """Listen for announcements, again and again where the stream is lost."""
        wanted = {
            f"{kind}ListChanged": True
            for kind in ("tools", "resources", "prompts")
            if connection.offers(kind, "list_changed")
        }
        attempts = 0
        while connection.modern and wanted:
            began = anyio.current_time()
            try:
                await connection.listen(**wanted)
            except MCPError as error:
                if error.code in _NO_SUBSCRIPTION:
                    log.warning("upstream %s takes no subscription (error %d)", connection.name, error.code)
                    return
            attempts = 0 if anyio.current_time() - began > _STEADY else attempts + 1
            await anyio.sleep(pause_after(attempts, _RELIST_PAUSE, _LONGEST_DEAFNESS))

    async def _relist(self, connection: UpstreamSession) -> None:
        """Follow changes: however many were announced, once a second at most."""
        while True:
            await self._change.wait()
            self._change = anyio.Event()
            changed, self._changed = self._changed, set()
            try:
                if "tools" in changed:
                    self.listing = await connection.list_tools(self.connection_settings.examine)
                    await self._save_listing()
            except UpstreamError as error:
                log.warning("%s", error.log_message)
                changed.discard("tools")
            for kind in sorted(changed):
                await self._tell_change(kind)
            await anyio.sleep(_RELIST_PAUSE)

    def _set_down(self, error: UpstreamError) -> None:
        self._vain += self.status.state != "ready"
        lasted = self.status.state == "ready" and anyio.current_time() - self._ready_since > _STEADY
        worked = lasted and not isinstance(error, FloodError)
        self._failures = 0 if worked else self._failures + 1
        self.status = Status("down", str(error), self._output)
        self.settled.set()
        self.listed.set()
        self._tell_moved()
        log.warning("upstream %s is down: %s", self.connection_settings.policy.name, error.log_message)
        self._log_output()

    def _log_output(self) -> None:
        """Log what the server printed, unless it is what was logged last.

        A server that fails at its start has not been given any value that it could print.
        """
        if self._output == self._logged_output or not self.connection_settings.policy.preview:
            return
        self._logged_output = self._output
        for line in self._output:
            log.warning("upstream %s printed: %s", self.connection_settings.policy.name, line)


def pause_after(attempts: int, first: float, longest: float) -> float:
    """Seconds until the next attempt: twice as many after each, up to a bound, however many there were."""
    return min(first * (1 << min(attempts, _DOUBLINGS)), longest)


def jittered(seconds: float) -> float:
    """A pause, a little shorter or longer by chance: what went down together does not come back together."""
    return seconds * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311  # no secret


def _check_protocol(oldest: str | None, spoken: str) -> None:
    if oldest and not is_version_at_least(spoken, oldest):
        raise UpstreamError(f"It speaks {spoken}, below `oldest_protocol` ({oldest}). Update it, or lower that.")


def _reason(error: BaseException, redactor: Redactor) -> tuple[str, str]:
    """What went wrong, in a sentence that holds no header and no URL; and for the log, in one of ours alone."""
    if isinstance(error, MirrorError):
        return redactor.clean(str(error)), redactor.clean(error.log_message)
    if shortage := explain_shortage(error):
        said = f"It cannot be reached now: {shortage}."
        return said, said
    if isinstance(error, MCPError) and (failed := read_marked(error.error.message)):
        return failed, failed
    if isinstance(error, MCPError) and not is_closed(error):
        code = error.error.code
        said = redactor.quote(error.error.message, _QUOTED).rstrip(".")
        return f"It refused to connect: {said} (error {code}).", f"It refused to connect (error {code})."
    if is_closed(error):
        said = "It ended the connection before it had answered."
    elif isinstance(error, httpx2.HTTPStatusError):
        said = explain_response(error.response)
    elif isinstance(error, httpx2.TransportError):
        said = explain_failed_connection(error, error.request.url)
    else:
        said = f"It failed with {type(error).__name__}."
    return said, said

"""One connection to an upstream: the SDK's session for the protocol, and the way past it for payloads.

What a result means is not known here: a request gives the members of the result as the bytes that came.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import anyio
import mcp_types as types
import msgspec
from mcp import Client, MCPError
from mcp.client import Transport
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from mcp_mirror.callers import ClientChannel
from mcp_mirror.core.result_processing import RejectedFrame
from mcp_mirror.core.tool_inspection import InspectedTool
from mcp_mirror.errors import RefusedError, UpstreamError, WireError
from mcp_mirror.payload.floods import Steps, take_sliced
from mcp_mirror.payload.json_rpc import MARK, is_input_required, open_array
from mcp_mirror.payload.spool import SpooledFrame
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.settings.policies import UpstreamPolicy
from mcp_mirror.types import Buffer, Segments
from mcp_mirror.upstreams.content_filter import filter_content, is_filtered, refused, unsaid
from mcp_mirror.upstreams.fields import rebuild_code, rebuild_data
from mcp_mirror.upstreams.notifications import ConnectionOwner, InflightRequest, NotificationDispatcher, PausableTimeout
from mcp_mirror.upstreams.transports.network_errors import read_marked
from mcp_mirror.upstreams.transports.payloads import PayloadBypass, RawResponse
from mcp_mirror.workers.frames import OpenedList

RawTool = dict[str, Any]
"""A tool as its upstream lists it, unknown members included."""

log = logging.getLogger(__name__)

_STILL: Final = 5.0
"""Seconds that a server's notifications may take to reach a caller once its result is there."""
_DEFAULT_LEVEL: Final = "info"
"""What a 2025-era client that has not said which log lines it wants is told of by a 2026-era server."""


class _Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


_RESULT: Final = TypeAdapter(_Anything)

Mode = Literal["auto", "legacy"]
"""`auto`: ask which protocol era the server is of; `legacy`: shake hands as in the 2025 era."""

OpenTransport = Callable[[PayloadBypass], AbstractAsyncContextManager[Any]]
"""Makes a transport, single use, that sends and receives through a bypass."""


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """A request for an upstream."""

    method: str
    params: Mapping[str, Segments]
    """Its parameters but `_meta`, JSON text; they pass the SDK by."""
    shown: Mapping[str, Any] = field(default_factory=dict)
    """What the SDK is to see of them: a name or URI, and the arguments that go into HTTP headers too."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """What the caller said in `_meta`, for the upstream."""
    timeout: float | None = None
    """Seconds; None for the upstream's own."""
    is_repeatable: bool = False
    """It changes nothing, and the user lets it be made again where the connection is lost."""

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(len(segment) for segments in self.params.values() for segment in segments)

    @property
    def what(self) -> str:
        """How a message to an operator or a model names it."""
        name = self.shown.get("name", self.shown.get("uri"))
        return repr(str(name)[:200]) if name else self.method

    def with_params(self, **params: Any) -> "UpstreamRequest":
        """The same with more parameters."""
        more = {key: (msgspec.json.encode(value),) for key, value in params.items() if value is not None}
        return replace(self, params={**self.params, **more})


Examine = Callable[[UpstreamPolicy, Sequence[Buffer]], Awaitable[tuple[InspectedTool, ...]]]
"""Examines the tools of an upstream's listing, JSON text."""


OpenList = Callable[[SpooledFrame, str, int], Awaitable[OpenedList | RejectedFrame]]
"""Reads a page of a list that arrived in a file: the page, the member with the list, the bytes that it may have."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What an upstream said of itself when it was connected."""

    tools: tuple[RawTool, ...]
    instructions: str | None
    protocol_version: str
    server: str
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    hints: tuple[tuple[int | None, str | None], ...] = ()
    """How long and for whom each page of the tools may be kept: `ttlMs` and `cacheScope`."""
    problems: tuple[str, ...] = ()
    """What is wrong with the listing, a sentence each, for an operator."""
    examined: tuple[InspectedTool, ...] = ()
    """What was found out about the tools."""
    size: int = 0
    """Bytes of the tools, as they were listed."""
    is_stale: bool = False
    """It is of an earlier run: the upstream has not been connected yet."""

    @property
    def modern(self) -> bool:
        """Whether it speaks the 2026 era on this connection."""
        return self.protocol_version in MODERN_PROTOCOL_VERSIONS


@dataclass(slots=True)
class Page:
    """All pages of a list as one: the items as the bytes that came."""

    items: list[Buffer] = field(default_factory=list)
    hints: list[tuple[int | None, str | None]] = field(default_factory=list)
    cut: str | None = None
    """Which bound ends it, where it is not all that there is."""
    size: int = 0
    """Bytes of the items."""

    def add(self, items: Iterable[Buffer], most: int) -> Steps[None]:
        """One more page, as far as there is room for it, in steps of an item."""
        for item in items:
            self.size += len(item)
            if self.size > most:
                self.cut = f"`limits.max_listing_bytes` ({most:,})"
                return
            self.items.append(item)
            yield


class ConnectionLostError(UpstreamError):
    """The connection ended before the answer: whether the server has carried the request out is not known."""


class SessionLostError(UpstreamError):
    """The server does not know the session, so it has not carried out the request: it may be sent in a new one."""


@dataclass(slots=True)
class UpstreamSession:
    """A session with one upstream. Errors of every kind come out as `UpstreamError` that names it."""

    policy: UpstreamPolicy
    client: Client
    bypass: PayloadBypass = field(repr=False)
    redactor: Redactor = field(repr=False)
    dispatcher: NotificationDispatcher = field(repr=False)
    log_level: str | None = None
    """What a 2025-era server was told to log."""
    open_list: OpenList | None = field(default=None, repr=False)
    """Reads what arrived in a file; None: such lists are empty."""

    @property
    def name(self) -> str:
        """The upstream's, in the configuration."""
        return self.policy.name

    @property
    def modern(self) -> bool:
        """Whether the server speaks the 2026 era on this connection."""
        return self.client.protocol_version in MODERN_PROTOCOL_VERSIONS

    def offers(self, capability: str, detail: str = "") -> bool:
        """Whether the server has a capability, and within it a detail."""
        offered = getattr(self.client.server_capabilities, capability, None)
        return offered is not None and (not detail or bool(getattr(offered, detail, None)))

    async def list_tools(self, examine: Examine) -> Listing:
        """All that the server says of itself, its tools page by page."""
        page = await self.list_all("tools/list", "tools") if self.offers("tools") else Page()
        cut = f"Upstream {self.name!r} lists more tools than {page.cut} lets it: those after are not served."
        info = self.client.server_info
        examined = await examine(self.policy, page.items)
        return Listing(
            tools=tuple(dict(one.raw) for one in examined),
            examined=examined,
            instructions=self.client.instructions,
            protocol_version=self.client.protocol_version,
            server=f"{info.name} {info.version}".strip() if info else "unnamed",
            capabilities=self.client.server_capabilities.model_dump(by_alias=True, exclude_none=True),
            hints=tuple(page.hints),
            problems=(cut,) if page.cut else (),
            size=page.size,
        )

    async def list_all(self, method: str, member: str, channel: ClientChannel | None = None) -> Page:
        """A list, all its pages."""
        page = Page()
        cursor: str | None = None
        seen: set[str | None] = set()
        bounds = self.policy.bounds
        while cursor not in seen and len(seen) < bounds.max_listing_pages:
            seen.add(cursor)
            shown = {} if cursor is None else {"cursor": cursor}
            arrival = await self.request(UpstreamRequest(method, {}, shown), channel)
            members = await self._add(page, arrival, method, member)
            page.hints.append((_scalar(members.get("ttlMs"), int), _scalar(members.get("cacheScope"), str)))
            cursor = _scalar(members.get("nextCursor"), str)
            if cursor is None or page.cut:
                return page
        page.cut = f"`limits.max_listing_pages` ({bounds.max_listing_pages:,})"
        return page

    async def _add(self, page: Page, arrival: RawResponse, method: str, member: str) -> Mapping[str, Buffer]:
        """Add the items of a page to the others; its other members.

        Raises:
            UpstreamError: It cannot be read.
        """
        most = self.policy.bounds.max_listing_bytes
        if isinstance(arrival, Mapping):
            await take_sliced(page.add(open_array(arrival.get(member, b"[]")) or [], most))
            return arrival
        with arrival:
            if self.open_list is None:
                return {}
            try:
                opened = await self.open_list(arrival, member, most)
            except WireError as error:
                raise UpstreamError(f"Upstream {self.name!r} answered {method} unreadably. {error}") from None
            if isinstance(opened, RejectedFrame):
                raise self.refusal(method, opened.code, opened.message)
            whole, places = memoryview(opened.whole), iter(opened.bounds)
            await take_sliced(page.add((bytes(whole[start:stop]) for start, stop in zip(places, places)), most))  # noqa: B905
            page.cut = page.cut or opened.cut
            return opened.members

    async def request(self, order: UpstreamRequest, channel: ClientChannel | None = None) -> RawResponse:
        """Send a request, and pass on what the server says about it meanwhile.

        Raises:
            UpstreamError: The upstream answered with a protocol error, not in time, or is gone.
        """
        channel = filter_content(channel, may_show=self.policy.preview)
        clock = PausableTimeout(order.timeout or self.policy.timeout)
        token = self.bypass.open(order.method, order.params, self._capabilities(channel))
        attending = (
            self.dispatcher.attending(token, channel, clock, resets=self.policy.progress_resets_timeout)
            if channel
            else nullcontext()
        )
        try:
            with attending as inflight:
                try:
                    await self._follow_level(channel)
                    async with self._bounded(order.what, clock, token, hidden=is_filtered(channel)):
                        await self._send(order, self._meta(order, channel, token))
                except UpstreamError:
                    await _drain(inflight)
                    raise
                await _drain(inflight)
            if (arrival := self.bypass.take(token)) is None:
                raise UpstreamError(f"Upstream {self.name!r} answered {order.what} under another request's id.")
            if not self.modern and isinstance(arrival, Mapping) and is_input_required(arrival):
                raise UpstreamError(f"Upstream {self.name!r} asks for input in a form that its protocol does not have.")
            return arrival
        finally:
            self.bypass.close(token)

    async def listen(self, **wanted: Any) -> None:
        """Subscribe to announcements, in the 2026 era, until the server ends the subscription.

        Raises:
            MCPError: It takes no subscription, or the stream broke.
        """
        params = {"notifications": wanted}
        await self.client.session.send_request(
            types.Request[dict[str, Any], str](method="subscriptions/listen", params=params), _RESULT
        )

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Tell the server something."""
        notification: Any = types.Notification[Any, str](method=method, params=dict(params) if params else None)
        await self.client.session.send_notification(notification)

    async def set_level(self, level: str) -> None:
        """Tell a 2025-era server what to log."""
        if self.modern or not self.offers("logging") or self.log_level == level:
            return
        self.log_level = level
        await self.request(UpstreamRequest("logging/setLevel", {}, {"level": level}))

    async def _follow_level(self, channel: ClientChannel | None) -> None:
        """As far as the server takes it: what it logs is no reason to fail a call."""
        if channel and channel.log_level:
            try:
                await self.set_level(channel.log_level)
            except UpstreamError as error:
                log.warning("%s", error.log_message)

    def _capabilities(self, channel: ClientChannel | None) -> Mapping[str, Any] | None:
        return channel.caller.capabilities if channel and self.modern else None

    def _meta(self, order: UpstreamRequest, channel: ClientChannel | None, token: str) -> dict[str, Any]:
        meta: dict[str, Any] = {**order.meta, MARK: token}
        if channel and (channel.wants_progress or self.policy.progress_resets_timeout):
            meta["progressToken"] = token
        if channel and self.modern:
            level = channel.log_level or (None if channel.caller.is_stateless else _DEFAULT_LEVEL)
            meta |= {types.LOG_LEVEL_META_KEY: level} if level else {}
        return meta

    async def _send(self, order: UpstreamRequest, meta: dict[str, Any]) -> None:
        params = {**order.shown, "_meta": meta}
        if order.method == "tools/list":  # the SDK learns from it which arguments go into headers
            await self.client.session.list_tools(params=types.PaginatedRequestParams.model_validate(params))
            return
        request = types.Request[dict[str, Any], str](method=order.method, params=params)
        try:
            await self.client.session.send_request(request, _RESULT)
        except MCPError as error:
            if error.code != types.HEADER_MISMATCH or order.method != "tools/call":
                raise
            # The schema that its headers come from has changed: the SDK learns it, and the request is sent again.
            await self.list_all("tools/list", "tools")
            await self.client.session.send_request(request, _RESULT)

    @asynccontextmanager
    async def _bounded(self, what: str, clock: PausableTimeout, token: str, *, hidden: bool) -> AsyncIterator[None]:
        """The one place where a request's foreign errors become ours, and where one that cannot be sent ends."""
        try:
            with clock.scope:
                yield
            if clock.scope.cancelled_caught:
                raise self._late(what, clock, token)  # noqa: TRY301  # one way out for every end
        except UpstreamError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever a server can do must cost one request alone
            if self.bypass.pending(token).forgotten:
                message = f"Upstream {self.name!r} had forgotten our session during {what}; try again in a moment."
                raise SessionLostError(message) from None
            if is_closed(error):
                self.bypass.ended.set()
            raise self._explained(error, what, hidden=hidden) from None

    def _late(self, what: str, clock: PausableTimeout, token: str) -> UpstreamError:
        if clock.reason:
            return UpstreamError(f"Upstream {self.name!r} {clock.reason}")
        if not self.bypass.pending(token).is_sent:
            self.bypass.give_up()
            return UpstreamError(f"Upstream {self.name!r} does not read what it is sent; it is started anew.")
        if self.bypass.is_dropping():
            self.bypass.give_up()
            return UpstreamError(
                f"Upstream {self.name!r} sends a message over `limits.max_message_bytes` without an end; it is started "
                "anew."
            )
        late = f"did not answer {what} within {clock.seconds:g} s; try again or raise its `timeout`"
        return UpstreamError(f"Upstream {self.name!r} {late}.")

    def _explained(self, error: Exception, what: str, *, hidden: bool) -> UpstreamError:
        if isinstance(error, MCPError) and (failed := read_marked(error.error.message)):
            return ConnectionLostError(f"Upstream {self.name!r} did not answer {what}. {failed}")
        match error:
            case MCPError() if is_closed(error) or error.message.startswith("SSE stream "):
                said = f"closed the connection during {what}; try again in a moment"
                return ConnectionLostError(f"Upstream {self.name!r} {said}.")
            case MCPError():
                return self.refusal(what, error.error.code, error.error.message, error.error.data, hidden=hidden)
            case ValidationError() | ValueError() | WireError():
                said = f"answered {what} with something that is not of the protocol's form"
            case _:
                said = f"failed during {what} ({type(error).__name__}); try again in a moment"
        return UpstreamError(f"Upstream {self.name!r} {said}.")

    def refusal(self, what: str, code: int, message: str, data: Any = None, *, hidden: bool = False) -> RefusedError:
        """A JSON-RPC error of the upstream's, for a model and for a client; without the secrets it was given."""
        if hidden or not self.policy.preview:
            return unsaid(self.name, what, code, data)
        code, data = rebuild_code(code), rebuild_data(code, data, hidden=False)
        said = self.redactor.quote(message)
        told = f"Upstream {self.name!r} refused {what}: {said.rstrip('.')} (error {code})."
        refusal = RefusedError(told, code, said, self.redactor.clean_tree(data))
        return refusal.with_log_message(refused(self.name, code))


async def _drain(inflight: InflightRequest | None) -> None:
    """What was said about a request comes before its result."""
    if inflight is not None:
        with anyio.move_on_after(_STILL):
            await inflight.outbox.drain()
        inflight.outbox.close()


def _scalar(raw: Buffer | None, kind: type[Any]) -> Any:
    """A small member of a result; None for anything else."""
    try:
        return None if raw is None else msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def is_closed(error: BaseException) -> bool:
    """Whether it is the SDK's word that the connection has ended: servers use its code for errors of their own."""
    return isinstance(error, MCPError) and error.args[:2] == (types.CONNECTION_CLOSED, "Connection closed")


@asynccontextmanager
async def open_connection(
    policy: UpstreamPolicy,
    open_transport: OpenTransport,
    redactor: Redactor,
    owner: ConnectionOwner,
    client_info: types.Implementation,
    mode: Mode,
) -> AsyncIterator[UpstreamSession]:
    """Connect, find out which protocol era the upstream speaks, and shake hands."""
    bypass = PayloadBypass(owner.capabilities)
    async with anyio.create_task_group() as tasks:
        dispatcher = NotificationDispatcher(
            tasks,
            replace(owner, session_channel=filter_content(owner.session_channel, may_show=policy.preview)),
            policy.bounds,
        )
        bypass.hear = dispatcher.hear

        @asynccontextmanager
        async def heard() -> AsyncIterator[Any]:
            async with open_transport(bypass) as (read, write):
                dispatcher.sink = write
                yield read, write

        transport: Transport = heard()
        async with Client(transport, mode=mode, client_info=client_info, cache=None) as client:
            try:
                yield UpstreamSession(policy, client, bypass, redactor, dispatcher)
            finally:
                bypass.ended.set()  # by us: those who wait for its end must hear of it too
        tasks.cancel_scope.cancel()

"""One session with an upstream, from the handshake to its end: requests, timeouts and errors.

The SDK's client performs the handshake, and subscribes to changes. All other requests bypass it, see `PayloadBypass`:
the session writes what the SDK's client would write, and a request returns the members of the result as the bytes that
the upstream sent. A session does not interpret results.
"""

import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, nullcontext, suppress
from functools import partial
from itertools import count
from secrets import token_hex
from typing import Any, Final, Literal

import anyio
import anyio.to_thread
import mcp_types as types
import msgspec
from mcp import Client, MCPError
from mcp.client import Transport
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from pydantic_core import to_json

from mcp_mirror.callers import ClientChannel
from mcp_mirror.core.results.processing import RejectedFrame
from mcp_mirror.errors import UpstreamError, WireError
from mcp_mirror.payload.json_rpc import decode_as, is_input_required, object_of, open_items
from mcp_mirror.settings.upstreams import HttpEndpoint, StdioEndpoint, UpstreamPolicy
from mcp_mirror.system.slices import take_sliced
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.connection_settings import ConnectionSettings
from mcp_mirror.upstreams.content_filter import filter_content, is_filtered
from mcp_mirror.upstreams.listing import CacheScope, Listing, PagedList
from mcp_mirror.upstreams.notifications import ConnectionOwner, NotificationDispatcher
from mcp_mirror.upstreams.request_failures import FailedRequest, build_refusal, is_closed
from mcp_mirror.upstreams.tasks import find_task_tools, run_as_task
from mcp_mirror.upstreams.transports.payloads import PayloadBypass
from mcp_mirror.upstreams.transports.request_headers import RequestHeaders
from mcp_mirror.upstreams.transports.requests import (
    PausableTimeout,
    PendingRequest,
    RawResponse,
    RequestSink,
    RequestTimeoutError,
)
from mcp_mirror.upstreams.upstream_request import INTERACTIVE_METHODS, UpstreamRequest

_logger = logging.getLogger(__name__)

_DRAIN_TIMEOUT: Final = 5.0
"""Seconds that the notifications of a request may take to reach its caller before its result does."""
_DEFAULT_LEVEL: Final = "info"
"""The log level for 2026-07-28 servers if the client's protocol version is 2025-11-25 and it has not set a level."""
_IDENTITY: Final = {"name", "title", "version"}
"""The members of a server's description that clients see in any case."""
_MAX_DESCRIPTION_BYTES: Final = 1 << 16
"""Bytes of a server's whole description, with which icons are relayed; they may contain their images."""


def _describe_server(info: types.Implementation) -> dict[str, Any]:
    """Return the description of a server, without icons, description and website if they are too large."""
    whole = info.model_dump(by_alias=True, mode="json", exclude_none=True)
    if len(msgspec.json.encode(whole)) <= _MAX_DESCRIPTION_BYTES:
        return whole
    return {key: whole[key] for key in _IDENTITY & whole.keys()}


Mode = Literal["auto", "legacy"]
"""`auto`: detect the protocol version; `legacy`: the handshake of protocol version 2025-11-25."""

OpenTransport = Callable[[PayloadBypass], AbstractAsyncContextManager[Any]]
"""Opens a transport, for one session, that sends and receives through a bypass."""


class UpstreamSession:
    """A session with one upstream. All errors are an `UpstreamError` that names the upstream."""

    def __init__(
        self, settings: ConnectionSettings, client: Client, bypass: PayloadBypass, dispatcher: NotificationDispatcher
    ) -> None:
        version, policy = client.protocol_version, settings.policy
        self.policy: UpstreamPolicy = policy
        self.name: str = policy.name
        """The name of the upstream in the configuration."""
        self.ended: anyio.Event = bypass.ended
        """Set when the upstream, the gateway or the network has ended the session."""
        self.is_stateless: bool = version in MODERN_PROTOCOL_VERSIONS
        """The session uses protocol version 2026-07-28 or later."""
        self.client: Client = client
        self._settings = settings
        self._bypass = bypass
        self._dispatcher = dispatcher
        self._task_tools = frozenset[str]()
        """The tools that run only as tasks."""
        self._log_level: str | None = None
        """The level that `set_level` set last, on 2025-11-25 servers."""
        uses_http = isinstance(policy.endpoint, HttpEndpoint)
        self._headers = RequestHeaders(version, is_stateless=self.is_stateless) if uses_http else None
        self._client_info = settings.services.client_info.model_dump(by_alias=True, mode="json", exclude_none=True)
        self._token = token_hex(8)
        """The beginning of the tokens of this session's requests."""
        self._request_numbers = count()

    @property
    def is_unknown(self) -> bool:
        """Whether the server does not know the session any more."""
        return self._bypass.is_unknown_session

    @property
    def unreachable(self) -> str | None:
        """Why the server cannot be reached now, a sentence; the session may still exist there."""
        return self._bypass.unreachable

    @property
    def flood_reason(self) -> str | None:
        """Why the gateway ended the session if the server sent too many unrequested messages."""
        return self._bypass.flood.reason

    @property
    def restart_reason(self) -> str:
        """Why the gateway ended the session of a server that it cannot use any more, a sentence; else empty."""
        return self._bypass.end_reason

    @property
    def inflight_count(self) -> int:
        """The number of requests that wait for their responses."""
        return len(self._bypass)

    def offers(self, capability: str, detail: str = "") -> bool:
        """Whether the server has a capability, and within it a detail."""
        offered = getattr(self.client.server_capabilities, capability, None)
        return offered is not None and (not detail or bool(getattr(offered, detail, None)))

    async def list_tools(self) -> Listing:
        """Read all pages of the tools, and return them with the server's description."""
        listed = await self._list_tools() if self.offers("tools") else PagedList()
        cut = f"Upstream {self.name!r} lists more tools than {listed.cut} allows. The gateway does not serve the rest."
        info = self.client.server_info
        inspected = await self._settings.services.inspect_tools(self.policy, listed.items)
        if not self.is_stateless:
            self._task_tools = find_task_tools((one.raw for one in inspected), self.client.server_capabilities)
        return Listing(
            tools=tuple(one.raw for one in inspected),
            inspected=inspected,
            instructions=self.client.instructions,
            protocol_version=self.client.protocol_version,
            server=f"{info.name} {info.version}".strip() if info else "unnamed",
            capabilities=self.client.server_capabilities.model_dump(by_alias=True, exclude_none=True),
            hints=tuple(listed.hints),
            problems=(cut,) if listed.cut else (),
            size=listed.size,
            info=_describe_server(info) if info else {},
        )

    async def _list_tools(self) -> PagedList:
        """Read all pages of the tools, and note which of their arguments go into headers."""
        listed = await self.list_all("tools/list", "tools")
        if self._headers is not None and self.is_stateless:
            await anyio.to_thread.run_sync(self._headers.note_tools, listed.items)
        return listed

    async def list_all(self, method: str, member: str, channel: ClientChannel | None = None) -> PagedList:
        """Read all pages of a list.

        Raises:
            UpstreamError: A page cannot be read.
        """
        listed = PagedList()
        cursor: str | None = None
        seen: set[int] = set()  # hashes, because a cursor may have a megabyte
        bounds = self.policy.bounds
        while hash(cursor) not in seen and len(seen) < bounds.max_listing_pages:
            seen.add(hash(cursor))
            shown = {} if cursor is None else {"cursor": cursor}
            response = await self.request(UpstreamRequest(method, {}, shown), channel)
            members = await self._add_page(listed, response, method, member)
            listed.hints.append(
                (decode_as(members.get("ttlMs"), int), decode_as(members.get("cacheScope"), CacheScope))
            )
            cursor = decode_as(members.get("nextCursor"), str)
            if not cursor or listed.cut:  # some servers end a list with an empty cursor
                return listed
        listed.cut = f"`limits.max_listing_pages` ({bounds.max_listing_pages:,})"
        return listed

    async def _add_page(
        self, listed: PagedList, response: RawResponse, method: str, member: str
    ) -> Mapping[str, Buffer]:
        """Add the items of a page, and return its other members."""
        limit = self.policy.bounds.max_listing_bytes
        try:
            if isinstance(response, Mapping):
                views = open_items(response.get(member, b"[]"))
                await take_sliced(listed.add(map(bytes, views), limit))  # a view would keep the whole page in memory
                return response
            with response:
                opened = await self._settings.services.open_list(response, member, limit)
        except WireError as error:
            raise UpstreamError(f"Upstream {self.name!r} sent an unreadable answer to {method}. {error}") from None
        if isinstance(opened, RejectedFrame):
            raise build_refusal(self._settings, method, opened.code, opened.message, is_content_hidden=False)
        text, offsets = memoryview(opened.whole), iter(opened.bounds)
        items = (bytes(text[start:stop]) for start, stop in zip(offsets, offsets))  # noqa: B905  # pairs
        await take_sliced(listed.add(items, limit))
        listed.cut = listed.cut or opened.cut
        return opened.members

    async def request(self, request: UpstreamRequest, channel: ClientChannel | None = None) -> RawResponse:
        """Send a request, and relay the notifications and requests that the server sends about it to the caller.

        Raises:
            UpstreamError: The upstream answered with a protocol error, not in time, or the session ended.
        """
        if channel is not None and not self.policy.preview:
            channel = filter_content(channel)
        timeout = PausableTimeout(request.timeout or self.policy.timeout, self._settings.timer)
        token = f"{self._token}-{next(self._request_numbers)}"
        shown = {key: to_json(value) for key, value in request.shown.items() if key not in request.params}
        meta = self._build_meta(request, channel, token)
        meta_member = {"_meta": to_json(meta, inf_nan_mode="null")} if meta else {}
        pending = PendingRequest(request.method, object_of({**shown, **request.params, **meta_member}), token=token)
        inflight = None
        if channel is not None:
            inflight = self._dispatcher.inflight.track(
                token,
                channel,
                timeout,
                resets_timeout=self.policy.progress_resets_timeout,
                is_interactive=request.method in INTERACTIVE_METHODS,
            )
        failure = None
        try:
            with inflight or nullcontext():
                try:
                    if channel is not None and channel.log_level:
                        await self.set_level(channel.log_level)
                    await self._send(request, pending, timeout)
                except Exception as error:  # noqa: BLE001  # a server's failure must fail only this request
                    failure = self._fail(error, request, pending, timeout, channel)
                if inflight is not None and inflight.is_delivering:  # its notifications come before its result
                    with anyio.move_on_after(_DRAIN_TIMEOUT):
                        await inflight.queue.drain()
            if failure is not None:
                raise failure
            response = pending.take()
        finally:
            failure = None  # its traceback refers to this variable
            timeout.close()
            self._bypass.close(pending)
            if pending.is_abandoned:
                self._dispatcher.inflight.note_abandoned(channel)
                await self._hold_place(pending, channel)
        self._check_is_final(response)
        return response

    async def drain(self) -> None:
        """Wait until all requests in flight have ended, at the latest with their timeouts."""
        await self._bypass.drain()

    async def listen(self, **wanted: Any) -> None:
        """Subscribe to changes on a 2026-07-28 server, until the server ends the subscription.

        Raises:
            MCPError: The server does not support subscriptions, or the stream broke.
        """
        request = types.Request[dict[str, Any], str](method="subscriptions/listen", params={"notifications": wanted})
        with suppress(ValidationError):  # the result only says that the subscription has ended
            await self.client.session.send_request(request, types.EmptyResult)

    async def watch_resource(self, uri: str, confirmed: anyio.Event) -> None:
        """Subscribe to updates of a resource on a 2026-07-28 server, until the server ends the subscription.

        `confirmed` is set when the server has acknowledged the subscription, at the latest at its end.

        Raises:
            MCPError: The server does not support subscriptions, or the stream broke.
        """
        unconfirmed = self._dispatcher.unconfirmed
        unconfirmed[uri] = confirmed
        try:
            await self.listen(resourceSubscriptions=[uri])
        finally:
            confirmed.set()
            unconfirmed.pop(uri, None)

    async def notify(self, method: str) -> None:
        """Send a notification without parameters to the server; drop it if the connection has ended."""
        notification: Any = types.Notification[Any, str](method=method, params=None)
        with suppress(MCPError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self.client.session.send_notification(notification)

    async def set_level(self, level: str) -> None:
        """Set the log level of a 2025-11-25 server that has the `logging` capability; log it if the server refuses."""
        if self.is_stateless or not self.offers("logging") or self._log_level == level:
            return
        self._log_level = level
        try:
            await self.request(UpstreamRequest("logging/setLevel", {}, {"level": level}))
        except UpstreamError as error:
            _logger.warning("%s", error.log_message)

    def _build_meta(self, request: UpstreamRequest, channel: ClientChannel | None, token: str) -> Mapping[str, Any]:
        meta = dict(request.meta)
        if channel and (channel.wants_progress or self.policy.progress_resets_timeout):
            meta["progressToken"] = token
        if not self.is_stateless:
            return meta
        if channel and (level := channel.log_level or (None if channel.caller.is_stateless else _DEFAULT_LEVEL)):
            meta[types.LOG_LEVEL_META_KEY] = level
        meta[types.PROTOCOL_VERSION_META_KEY] = self.client.protocol_version
        meta[types.CLIENT_INFO_META_KEY] = self._client_info
        meta[types.CLIENT_CAPABILITIES_META_KEY] = channel.caller.capabilities if channel else {}
        return meta

    def _check_is_final(self, response: RawResponse) -> None:
        """Refuse a request for input from a server of a protocol version without them (UpstreamError)."""
        if not self.is_stateless and isinstance(response, dict) and is_input_required(response):
            raise UpstreamError(
                f"Upstream {self.name!r} requests input in a form that its protocol version does not have."
            )

    async def _hold_place(self, pending: PendingRequest, channel: ClientChannel | None) -> None:
        """Let a cancelled request take a place until a server that reads one stream has ended it."""
        if channel is None or not isinstance(self.policy.endpoint, StdioEndpoint):
            return
        self._settings.limiter.hold(channel)
        probe = UpstreamRequest("server/discover" if self.is_stateless else "ping", {})
        meta = self._build_meta(probe, None, "")
        params = object_of({"_meta": to_json(meta)} if meta else {})
        on_end = partial(self._settings.limiter.leave, channel)
        await self._bypass.abandon(pending, PendingRequest(probe.method, params), on_end)

    def _send(self, request: UpstreamRequest, pending: PendingRequest, limit: PausableTimeout) -> Awaitable[None]:
        if request.method == "tools/call" and request.shown.get("name") in self._task_tools:
            pending.headers = self._headers.build(request.method, request.shown) if self._headers else {}
            return run_as_task(self._bypass, pending, limit, self._dispatcher.task_changes)
        if self._headers is None:
            return self._bypass.exchange(pending, limit)
        return self._send_with_headers(self._headers, request, pending, limit)

    async def _send_with_headers(
        self, headers: RequestHeaders, request: UpstreamRequest, pending: PendingRequest, limit: PausableTimeout
    ) -> None:
        pending.headers = headers.build(request.method, request.shown)
        try:
            await self._bypass.exchange(pending, limit)
        except MCPError as error:
            if error.code != types.HEADER_MISMATCH or request.method != "tools/call":
                raise
            # The schema that the headers come from has changed: read it again before the second attempt.
            with limit.cancelling():
                await self._list_tools()
            pending.headers = headers.build(request.method, request.shown)
            await self._bypass.exchange(pending, limit)

    def _fail(
        self,
        error: Exception,
        request: UpstreamRequest,
        pending: PendingRequest,
        timeout: PausableTimeout,
        channel: ClientChannel | None,
    ) -> UpstreamError:
        """Return the error of a failed request, and end the session if it cannot be used any more."""
        is_hidden = is_filtered(channel) or not self.policy.preview
        failed = FailedRequest(self._settings, request, pending, timeout, self._bypass, is_hidden)
        if isinstance(error, RequestTimeoutError) and failed.is_stuck:
            self._bypass.give_up(f"It {failed.explain_timeout()}")
        elif is_closed(error):
            self.ended.set()
        return failed.explain(error)


@asynccontextmanager
async def open_session(
    settings: ConnectionSettings, open_transport: OpenTransport, owner: ConnectionOwner, mode: Mode
) -> AsyncIterator[UpstreamSession]:
    """Open a transport, detect the protocol version, and perform the handshake."""
    policy = settings.policy
    channel = owner.channel if owner.channel is None or policy.preview else filter_content(owner.channel)
    visible = msgspec.structs.replace(owner, channel=channel)
    async with anyio.create_task_group() as tasks:
        dispatcher = NotificationDispatcher(tasks, visible, policy.bounds, settings.backlog)
        bypass = PayloadBypass(owner.capabilities, dispatcher.dispatch, settings.services.spool.policy)

        @asynccontextmanager
        async def open_streams() -> AsyncIterator[Any]:
            try:
                async with open_transport(bypass) as (read, write):
                    dispatcher.connect(write)
                    bypass.connect(write)
                    yield read, write
            finally:  # the sink refers to both, which would stay in memory
                dispatcher.connect(RequestSink())
                bypass.connect(RequestSink())

        transport: Transport = open_streams()
        with closing(dispatcher):
            try:
                async with Client(
                    transport, mode=mode, client_info=settings.services.client_info, cache=None
                ) as client:
                    try:
                        yield UpstreamSession(settings, client, bypass, dispatcher)
                    finally:
                        bypass.end()  # tasks that wait for the end must also see an end by the gateway
            except BaseException as error:
                traceback.clear_frames(error.__traceback__)  # `AsyncExitStack.__aexit__` has its own in a variable
                raise
        tasks.cancel_scope.cancel()

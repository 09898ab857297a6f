"""The transport to a URL: Streamable HTTP, or the older HTTP+SSE.

The SDK's clients speak the protocol. Between them and the network is an `httpx2` transport that writes the bodies of
the gateway's own requests, and takes their responses out of JSON bodies and server-sent events of any size.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final

import anyio
import httpx2
import mcp_types as types
import msgspec
from anyio.abc import TaskGroup
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import ClientMessageMetadata, SessionMessage

from mcp_mirror.payload.pipes import MessageStream
from mcp_mirror.payload.spool import Spool
from mcp_mirror.security.ssrf_guard import AddressPolicy, SSRFGuardTransport
from mcp_mirror.settings.upstreams import HttpEndpoint
from mcp_mirror.upstreams.oauth import Authorizer, AuthorizingTransport
from mcp_mirror.upstreams.transports.cookies import AcceptCookies, BoundedCookies, CookieFilter
from mcp_mirror.upstreams.transports.http_messages import DELETE_TIMEOUT, LiftingTransport
from mcp_mirror.upstreams.transports.payloads import PayloadBypass
from mcp_mirror.upstreams.transports.requests import PendingRequest, RequestSink
from mcp_mirror.upstreams.transports.server_output import ServerOutput

_CONNECT_TIMEOUT: Final = 10.0
"""Seconds for connecting to the host."""


class _HttpReader(MessageStream):
    """Reads messages of the SDK's transport; its errors for requests of the gateway go to the bypass."""

    def __init__(self, inner: Any, bypass: PayloadBypass) -> None:
        self._inner = inner
        self._bypass = bypass

    async def receive(self) -> SessionMessage | Exception:
        try:
            while True:
                item: SessionMessage | Exception = await self._inner.receive()
                if isinstance(item, Exception) or not self._bypass.resolve(item.message):
                    return item
        except anyio.EndOfStream:
            self._bypass.end()
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()


class _HttpWriter(RequestSink):
    """Writes messages to the SDK's transport."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def send(self, item: SessionMessage) -> None:
        await self._inner.send(item)

    async def send_request(self, request: PendingRequest) -> None:
        stub = types.JSONRPCRequest(jsonrpc="2.0", id=request.id, method=request.method)
        await self._inner.send(SessionMessage(stub, ClientMessageMetadata(headers=dict(request.headers))))

    async def aclose(self) -> None:
        await self._inner.aclose()


class _StreamableWriter(_HttpWriter):
    """Sends most requests of the gateway past the SDK's transport."""

    def __init__(self, inner: Any, transport: LiftingTransport, cookies: httpx2.Cookies, tasks: TaskGroup) -> None:
        super().__init__(inner)
        self._transport = transport
        self._cookies = cookies
        self._tasks = tasks

    async def send_request(self, request: PendingRequest) -> None:
        if not await self._transport.direct_posts.post(request, self._cookies, self._tasks):
            await super().send_request(request)

    def drop_request(self, identity: int) -> None:
        self._transport.drop_request(identity, self._tasks)


class HttpTransport(msgspec.Struct, frozen=True):
    """Exchanges messages with the server at a URL."""

    endpoint: HttpEndpoint
    timeout: float
    """Seconds without a byte after which anything but a request fails; requests have their own timeout."""
    spool: Spool
    accept_cookies: AcceptCookies
    output: ServerOutput
    authorizer: Authorizer | None = None
    """Provides OAuth tokens; None if the server needs none."""

    def open(self, bypass: PayloadBypass) -> AbstractAsyncContextManager[Any]:
        """Open the streams for the SDK, once."""
        return self._open_legacy(bypass) if self.endpoint.legacy_sse else self._open_streamable(bypass)

    @asynccontextmanager
    async def _open_streamable(self, bypass: PayloadBypass) -> AsyncIterator[Any]:
        url, transport = self.endpoint.url, self._create_lifting_transport(bypass)
        async with (
            self._create_client(transport) as client,
            streamable_http_client(url, http_client=client, max_sse_event_size=None) as (read, write),
            anyio.create_task_group() as tasks,
        ):
            try:
                yield _HttpReader(read, bypass), _StreamableWriter(write, transport, client.cookies, tasks)
                tasks.cancel_scope.cancel()
            except anyio.get_cancelled_exc_class():
                with anyio.move_on_after(DELETE_TIMEOUT, shield=True), suppress(httpx2.TransportError):
                    if transport.session:  # the SDK's own request to end the session is lost if it is cancelled
                        await client.delete(url, headers=transport.session)
                raise

    @asynccontextmanager
    async def _open_legacy(self, bypass: PayloadBypass) -> AsyncIterator[Any]:
        def client(*_: object, **_given: object) -> httpx2.AsyncClient:
            """Ignore the arguments of the SDK, which the gateway did not give."""
            return self._create_client(self._create_lifting_transport(bypass))

        async with sse_client(self.endpoint.url, httpx_client_factory=client) as (read, write):
            yield _HttpReader(read, bypass), _HttpWriter(write)

    def _create_lifting_transport(self, bypass: PayloadBypass) -> LiftingTransport:
        addresses = AddressPolicy.from_urls(self.endpoint.url, admits_private=self.endpoint.allow_private)
        inner: httpx2.AsyncBaseTransport = SSRFGuardTransport(addresses)
        if self.authorizer:
            inner = AuthorizingTransport(inner, self.authorizer)
        inner = CookieFilter(inner, self.accept_cookies)
        return LiftingTransport(self.endpoint, inner, bypass, self.spool, self.output)

    def _create_client(self, transport: LiftingTransport) -> httpx2.AsyncClient:
        timeout = httpx2.Timeout(self.timeout, connect=_CONNECT_TIMEOUT)
        headers = {"accept-encoding": "identity", **self.endpoint.headers}
        return httpx2.AsyncClient(transport=transport, headers=headers, timeout=timeout, cookies=BoundedCookies())

"""The transport to a URL: Streamable HTTP, or the older HTTP+SSE."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import msgspec
from mcp.shared.message import SessionMessage

from mcp_mirror.payload.spool import Spool
from mcp_mirror.security.ssrf_guard import AddressPolicy, SSRFGuardTransport
from mcp_mirror.settings.upstreams import HttpEndpoint
from mcp_mirror.upstreams.oauth import Authorizer, AuthorizingTransport
from mcp_mirror.upstreams.transports.cookies import AcceptCookies
from mcp_mirror.upstreams.transports.http_bodies import BodyReader
from mcp_mirror.upstreams.transports.http_requests import HttpRequests
from mcp_mirror.upstreams.transports.http_streams import HttpStreams, LegacySse, StreamableHttp
from mcp_mirror.upstreams.transports.payloads import PayloadBypass
from mcp_mirror.upstreams.transports.server_output import ServerOutput


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

    @asynccontextmanager
    async def open(self, bypass: PayloadBypass) -> AsyncIterator[Any]:
        """Open the streams for the SDK, once."""
        addresses = AddressPolicy.from_urls(self.endpoint.url, admits_private=self.endpoint.allow_private)
        inner: httpx2.AsyncBaseTransport = SSRFGuardTransport(addresses)
        if self.authorizer:
            inner = AuthorizingTransport(inner, self.authorizer)
        sender, receiver = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        http = HttpRequests(self.endpoint, self.timeout, inner, self.accept_cookies)
        bodies = BodyReader(bypass, self.spool, self.output, sender)
        kind: type[HttpStreams] = LegacySse if self.endpoint.legacy_sse else StreamableHttp
        async with sender, receiver, inner, anyio.create_task_group() as tasks:
            streams = kind(http, bodies, bypass, self.output, tasks)
            try:
                await streams.start()
                yield receiver, streams
            finally:
                await streams.end()
                tasks.cancel_scope.cancel()

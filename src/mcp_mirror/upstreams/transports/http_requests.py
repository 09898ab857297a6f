"""HTTP requests to one server: headers, cookies, timeouts, and redirects within the server.

They do not pass `httpx2.AsyncClient`, which costs as much CPU as all other work of a small request.
"""

from base64 import b64encode
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Final

import anyio
import httpx2

from mcp_mirror.payload.content_encodings import MAX_ERROR_BYTES, read_beginning
from mcp_mirror.payload.json_rpc import chunks_of
from mcp_mirror.settings.upstreams import HttpEndpoint
from mcp_mirror.types import Segments
from mcp_mirror.upstreams.oauth.tokens import Authorizer, send_authorized
from mcp_mirror.upstreams.transports.cookies import AcceptCookies, create_cookies, keep_cookies
from mcp_mirror.upstreams.transports.network_errors import find_followed

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
SESSION_HEADER: Final = "mcp-session-id"
VERSION_HEADER: Final = "mcp-protocol-version"
END_TIMEOUT: Final = 1.0
"""Seconds in which a body that nothing reads may end, so that its connection stays open."""
_CONNECT_TIMEOUT: Final = 10.0
"""Seconds for connecting to the host."""
_MAX_REDIRECTS: Final = 20


class _RequestBody(httpx2.AsyncByteStream):
    """A request body in segments; it can be sent again."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        for chunk in chunks_of(self._segments):
            yield chunk


class HttpRequests:
    """Sends the requests of one connection."""

    def __init__(
        self,
        endpoint: HttpEndpoint,
        timeout: float,
        inner: httpx2.AsyncBaseTransport,
        accept_cookies: AcceptCookies,
        authorizer: Authorizer | None,
    ) -> None:
        """Send through `inner`; see `HttpTransport`."""
        self.url: Final = httpx2.URL(endpoint.url)
        self.timeout: Final = timeout
        self._inner = inner
        self._accept_cookies = accept_cookies
        self._authorizer = authorizer
        self._cookies = create_cookies()
        self._headers = _build_common_headers(endpoint, self.url)

    async def send(
        self, method: str, headers: Mapping[str, str], body: Segments | None = None, url: httpx2.URL | None = None
    ) -> httpx2.Response:
        """Send a request, to `url` or to that of the server, and return the response, whose body is not read yet.

        Raises:
            httpx2.TransportError: The request failed.
        """
        target = url or self.url
        all_headers = {**self._headers, **headers}
        if body is not None:
            all_headers["content-type"] = JSON
            all_headers["content-length"] = str(sum(map(len, body)))
        encoded = httpx2.Headers(all_headers, encoding="utf-8")  # servers choose ids and cookies
        limit = self.timeout
        extensions = {"timeout": {"connect": _CONNECT_TIMEOUT, "read": None, "write": limit, "pool": limit}}
        for _ in range(_MAX_REDIRECTS):
            request = httpx2.Request(
                method, target, headers=encoded, stream=_RequestBody(body or ()), extensions=extensions
            )
            request.headers.encoding = "utf-8"
            if self._cookies:
                self._cookies.set_cookie_header(request)
            try:
                response = await send_authorized(self._inner, request, self._authorizer)
            except httpx2.TransportError as error:
                error.request = request
                raise
            response.request = request
            if "set-cookie" in response.headers and self._accept_cookies(headers.get(VERSION_HEADER)):
                keep_cookies(self._cookies, response)
            if (followed := find_followed(response)) is None:
                break
            await discard(response)
            target = followed
        return response


def _build_common_headers(endpoint: HttpEndpoint, url: httpx2.URL) -> dict[str, str]:
    """Return the headers that all requests have, in lower case."""
    common = {
        "host": url.netloc.decode("ascii"),
        "accept": f"{JSON}, {EVENTS}",
        "connection": "keep-alive",
        "user-agent": f"mcp-mirror/{version('mcp-mirror')}",
        "accept-encoding": "identity",
        **{name.lower(): value for name, value in endpoint.headers.items() if name.lower() != "accept"},
    }
    if url.username or url.password:
        common["authorization"] = "Basic " + b64encode(f"{url.username}:{url.password}".encode()).decode()
    return common


async def discard(response: httpx2.Response) -> None:
    """Close a response. After a success, and if its body is small and ends soon, its connection can be used again."""
    try:
        with anyio.move_on_after(END_TIMEOUT), suppress(httpx2.TransportError):
            if response.is_success or response.has_redirect_location:
                await read_beginning(response, MAX_ERROR_BYTES)
    finally:
        await close(response)


async def close(response: httpx2.Response) -> None:
    """Close a response and, unless it was read to its end, its connection.

    Some servers close the connection after an error without a notice, and would not read the next request.
    """
    with anyio.CancelScope(shield=True):
        await response.aclose()

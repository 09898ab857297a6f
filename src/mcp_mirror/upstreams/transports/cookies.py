"""The cookies that servers set: few, small, and only where a connection may keep them."""

from collections.abc import Callable
from http.cookiejar import Cookie, CookieJar
from typing import Final

import httpx2

_MAX_COOKIES: Final = 50
"""Cookies of one response, and of one connection: as many as RFC 6265, section 6.1, requires of a browser."""
_MAX_COOKIE: Final = 1 << 12
"""Bytes of one cookie with its attributes."""
_SET_COOKIE: Final = b"set-cookie"

AcceptCookies = Callable[[str | None], bool]
"""Whether to keep the cookies of a response, by the protocol version that the request names (None: none)."""


class BoundedCookies(CookieJar):
    """The cookies of one connection. A server may set new ones with every response."""

    def set_cookie(self, cookie: Cookie) -> None:
        """Keep a cookie in place of one with the same name, or if there are few others."""
        others = [one for one in self if (one.domain, one.path, one.name) != (cookie.domain, cookie.path, cookie.name)]
        if len(others) < _MAX_COOKIES:
            super().set_cookie(cookie)


class CookieFilter(httpx2.AsyncBaseTransport):
    """Sends through `inner`, and removes the cookies of responses that the connection must not keep."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, accept_cookies: AcceptCookies) -> None:
        self._inner = inner
        self._accept_cookies = accept_cookies

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request."""
        response = await self._inner.handle_async_request(request)
        if "set-cookie" in response.headers:
            is_kept = self._accept_cookies(request.headers.get("mcp-protocol-version"))
            headers = response.headers.raw  # of any encoding
            cookies = [one for one in headers if one[0].lower() == _SET_COOKIE and len(one[1]) <= _MAX_COOKIE]
            others = [one for one in headers if one[0].lower() != _SET_COOKIE]
            response.headers = httpx2.Headers([*others, *(cookies[:_MAX_COOKIES] if is_kept else ())])
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()

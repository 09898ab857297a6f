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


class _BoundedCookies(CookieJar):
    """The cookies of one connection. A server may set new ones with every response."""

    def set_cookie(self, cookie: Cookie) -> None:
        """Keep a cookie in place of one with the same name, or if there are few others."""
        others = [one for one in self if (one.domain, one.path, one.name) != (cookie.domain, cookie.path, cookie.name)]
        if len(others) < _MAX_COOKIES:
            super().set_cookie(cookie)


def create_cookies() -> httpx2.Cookies:
    """Return the empty cookies of a connection, with bounds."""
    return httpx2.Cookies(_BoundedCookies())


def keep_cookies(cookies: httpx2.Cookies, response: httpx2.Response) -> None:
    """Keep the cookies of a response as far as its connection may keep them."""
    headers = response.headers.raw  # of any encoding
    small = [one for one in headers if one[0].lower() == _SET_COOKIE and len(one[1]) <= _MAX_COOKIE]
    response.headers = httpx2.Headers(
        [*(one for one in headers if one[0].lower() != _SET_COOKIE), *small[:_MAX_COOKIES]]
    )
    cookies.extract_cookies(response)

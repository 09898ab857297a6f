"""Requests to the authorization servers of one upstream, and what they last answered.

They use an HTTP client of their own, which shares nothing with the connection to the upstream.
"""

import json
from typing import Final

import anyio
import httpx2
import msgspec
from mcp.client.auth.utils import issuers_match

from mcp_mirror.errors import UpstreamError
from mcp_mirror.payload.content_encodings import read_beginning, replace_body
from mcp_mirror.security.ssrf_guard import AddressPolicy, SSRFGuardTransport
from mcp_mirror.settings.access import is_confidential
from mcp_mirror.upstreams.oauth.failures import read_error_code

_TRANSIENT: Final = frozenset({408, 429, *range(500, 600)})
"""Statuses of an authorization server that does not decide about the token now."""
_DECIDED: Final = frozenset({400, 401})
"""Statuses with which it refuses a refresh token (RFC 6749, section 5.2); others may be those of a proxy before it."""
_TIMEOUT: Final = 20.0
"""Seconds for a request to an authorization server."""
_MAX_RESPONSE: Final = 1 << 18
"""Bytes of its response."""
_MAX_PARTS: Final = 5000
"""Members and items of its response: the SDK reads 25,000 addresses in 0.1 s, in which no other call continues."""


class Answer(msgspec.Struct, frozen=True):
    """What an authorization server answered instead of a token, if anything."""

    error: str = ""
    """The status and the OAuth error in parentheses, after a space; empty without an error."""
    is_undecided: bool = False
    """It may give a token later."""


class AuthorizationServers:
    """The authorization servers that an upstream names."""

    def __init__(self, addresses: AddressPolicy, issuer: str | None) -> None:
        """Send requests to permitted addresses; of several servers, prefer the one with the configured `issuer`."""
        self._addresses = addresses
        self._issuer = issuer
        self.last_answer: Answer = Answer()
        """The last answer of the present exchange."""

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request: within limits, and never unencrypted.

        Raises:
            UpstreamError: The URL is not safe.
            ValueError: The response is too large.
        """
        if not is_confidential(str(request.url)):
            raise UpstreamError("it names an authorization server without https, which is not safe")
        with anyio.fail_after(_TIMEOUT):
            async with httpx2.AsyncClient(transport=SSRFGuardTransport(self._addresses), timeout=_TIMEOUT) as client:
                response = await client.send(request, stream=True, follow_redirects=False)
                body = await read_beginning(response, _MAX_RESPONSE + 1)
                if len(body) > _MAX_RESPONSE or body.count(b",") > _MAX_PARTS:
                    raise ValueError
        received = replace_body(response, content=body, request=request)
        received.next_request = response.next_request
        self.last_answer = _read_answer(received)
        return _put_issuer_first(received, self._issuer) if self._issuer else received


def _read_answer(response: httpx2.Response) -> Answer:
    """Return the OAuth error of a response, or an HTTP status without one, such as that of a proxy's page."""
    try:
        code = read_error_code(response.json()["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        code = ""
    status, error = response.status_code, ""
    if code:
        error = f" (HTTP status {status}, {code})"
    elif not response.is_success:
        error = f" (HTTP status {status})"
    return Answer(error, status in _TRANSIENT or not (code or status in _DECIDED))


def _put_issuer_first(answer: httpx2.Response, issuer: str) -> httpx2.Response:
    """Return the metadata of a protected resource with this authorization server first: the SDK takes the first one.

    Any other response stays as it is.
    """
    try:
        document = answer.json()
        servers = document["authorization_servers"] if answer.is_success else ()
        servers = servers if isinstance(servers, list) else ()
        ordered = sorted(servers, key=lambda server: not issuers_match(server, issuer))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return answer
    if not ordered:
        return answer
    content = json.dumps({**document, "authorization_servers": ordered}).encode()
    return httpx2.Response(answer.status_code, content=content, request=answer.request)

"""Why an authorization server gave no token, without text of servers or of the SDK, which repeats text of servers."""

from typing import Final

import httpx2
from mcp.client.auth import OAuthFlowError, OAuthRegistrationError, OAuthTokenError

from mcp_mirror.errors import MirrorError
from mcp_mirror.security.ssrf_guard import PRIVATE
from mcp_mirror.system.forward_proxies import ForwardProxyError
from mcp_mirror.system.patterns import lazy_pattern

_SAFE: Final = lazy_pattern(r"[a-z_]{1,40}")
"""The form of an OAuth error code; other text is not repeated."""
_FAILURES: Final[tuple[tuple[tuple[type[Exception], ...], str], ...]] = (
    ((OAuthTokenError,), "returned no token"),
    (
        (OAuthRegistrationError,),
        "does not register this client; check the requested scopes, or set `auth.oauth.client_id`",
    ),
    ((OAuthFlowError, ValueError, OverflowError, httpx2.InvalidURL), "returned an invalid response"),
    ((TimeoutError, httpx2.TimeoutException), "did not answer in time"),
)
_FLOW_FAILURES: Final = (
    ("Protected resource metadata request failed", "its metadata cannot be read now"),
    (
        "Protected resource ",
        "its metadata names another resource than `url`. Correct `url`, or the public address in the server's settings",
    ),
    (
        "Authorization server metadata issuer mismatch",
        "its authorization server names another issuer than the upstream does, or than `issuer`. Correct the wrong one",
    ),
    (
        "Authorization response iss mismatch",
        "the browser's redirect names another authorization server (`iss`) than the gateway asked. Correct its issuer",
    ),
    (
        "Authorization response missing iss",
        "the browser's redirect names no authorization server (`iss`), though the metadata announce one. Correct them",
    ),
    ("State parameter mismatch", "the browser returned from another sign-in. Start again, and open only the new URL"),
)
"""How messages of the SDK begin, and the explanations."""


def explain_failure(error: Exception) -> str:
    """Return why an exchange with an authorization server failed, as the end of a sentence."""
    if isinstance(error, MirrorError):
        return str(error)
    unreached = "leads to a private address (`allow_private`)" if PRIVATE in str(error) else "could not be reached"
    if isinstance(error, ForwardProxyError):
        unreached += f" ({error})"
    kind = next((text for of, text in _FAILURES if isinstance(error, of)), unreached)
    known = (text for begin, text in _FLOW_FAILURES if str(error).startswith(begin))
    return next(known, f"its authorization server {kind}")


def read_error_code(found: object) -> str:
    """Return an OAuth error code; an empty text for anything else, which is not repeated."""
    return found if isinstance(found, str) and _SAFE.fullmatch(found) else ""

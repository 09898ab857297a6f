"""Explanations of HTTP failures: the address, the cause, and what to try.

They do not repeat the text of a library's error, which may quote the server. They name only host and port of the URL,
because the rest may contain a secret.
"""

import errno
import socket
import ssl
from enum import Enum, auto
from typing import Final

import httpx2
import mcp_types as types
from mcp import MCPError

from mcp_mirror.errors import walk_causes
from mcp_mirror.payload.content_encodings import BodyError
from mcp_mirror.payload.framing import DiscardedFrame
from mcp_mirror.payload.spool import Frame
from mcp_mirror.settings.declarations import DEFAULT_PORTS
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.system.resources import explain_shortage


class FailureKind(Enum):
    """Why a transport answers a request of the gateway with a JSON-RPC error of its own.

    It is the `data` of such an error. No server can send it, since it is not JSON.
    """

    LOST = auto()
    """The server did not respond."""
    ANSWERED = auto()
    """The server responded, but not with MCP."""
    REFUSED = auto()
    """The same, to a request of the SDK: a server may refuse the handshake of a protocol version."""
    CUT = auto()
    """The event stream with the response ended before it."""
    INVALID = auto()
    """The response cannot be read."""
    DISCARDED = auto()
    """The gateway could not buffer the response, for example on a full disk."""
    NO_TOKEN = auto()
    """The request has no token that the server accepts."""
    NO_SIGN_IN = auto()
    """The same, until a person signs in."""


_UNREACHABLE: Final = (errno.ENETUNREACH, errno.EHOSTUNREACH)
_NEVER_RESPONDS: Final = "See the server's log; if it never responds, check scheme and port in `url`"
_TYPES: Final[tuple[tuple[tuple[type[BaseException], ...], str, str], ...]] = (
    ((ConnectionRefusedError,), "nothing listens there", "Start the server, or correct `url`"),
    ((socket.gaierror,), "the host name has no address", "Correct the host name in `url`, or check this machine's DNS"),
    (
        (httpx2.ConnectTimeout, httpx2.PoolTimeout),
        "it did not accept the connection in time",
        "Check the address in `url`, and the firewalls on the way",
    ),
    ((httpx2.TimeoutException,), "it was silent for too long", "Check whether the server is busy, or raise `timeout`"),
    (
        (httpx2.RemoteProtocolError,),
        "it ended the connection, or sent something that is not HTTP",
        "Check scheme and port in `url`, and the server's log",
    ),
    ((httpx2.NetworkError,), "it was lost", f"Try again. {_NEVER_RESPONDS}"),
)
"""The cause and what to try, by type of error, the most specific first."""


_SCOPE_OPTION: Final = lazy_pattern(r" --scope '[^']*'")
_ANSWERED_TYPE: Final = lazy_pattern(r"(?<= answered with )[a-z]+/[a-z0-9.+-]+")
_LATER: Final = ": try again later"
_BUSY: Final = (429, 503)
"""Statuses whose `Retry-After` names when to try again."""
_ELSEWHERE: Final = "Check the path in `url`; many servers use /mcp"
_STATUS_ADVICE: Final = {
    400: f"{_ELSEWHERE}. The gateway sends no client certificate",
    401: "It requires a token: set `headers`, or `auth` and run `mcp-mirror login`; for a wrapped server give "
    "--header, or run `mcp-mirror login NAME --url URL`",
    403: "Its token may not do this: check `headers` or `auth`",
    405: "Check the path in `url`; a server of the older transport needs `transport: sse`, or --sse if it is wrapped",
    407: "A proxy on the way requires a sign-in: put user and password into `HTTP_PROXY`",
    408: "It, or a proxy in front of it, waited too long: try again",
    421: "It does not accept the host in `url`: correct it, or add it to the server's allowed hosts",
    429: f"It limits the rate of requests{_LATER}",
    501: _ELSEWHERE,
    502: "A proxy in front of it has no response of the server: check whether the server runs, and the proxy's log",
    503: f"It, or a proxy in front of it, is busy or not ready{_LATER}",
    504: "A proxy in front of it waited too long for the server's response: raise that proxy's timeout",
}
"""What to try, by HTTP status."""
SESSION_AFFINITY: Final = (
    "If `url` leads to several servers, their load balancer must send each session to the server that opened it"
)
LOST_SESSION: Final = f"try again. {SESSION_AFFINITY}"
"""What to try if the server does not know the gateway's session."""
CUT_STREAM: Final = ". If it does so after the same time, raise the timeout of the proxy in front of it"
"""What to try if an event stream ends without the response."""
_NOT_TLS: Final = f"If the server uses TLS, use https:// in `url`. {_ELSEWHERE}"
_CREDENTIALS_ADVICE: Final = (
    "It rejected the token: with `headers`, `client_headers` or --header, check whether the token has expired; with "
    "`mcp-mirror login`, whether the server accepts tokens of that authorization server for its `url`"
)
_NOT_SSE: Final = (
    "Check the path in `url`; a server of Streamable HTTP needs `transport: streamable-http`, or no --sse if wrapped"
)
_RETRY_AFTER: Final = lazy_pattern(r"[0-9]{1,5}")
_REPEATING: Final = frozenset({307, 308})
"""Statuses of redirects after which a client sends the same message again."""
_REDIRECTED: Final = "The gateway does not follow it: find the address with `curl -i`, and set `url` to it"
_UNKNOWN_AUTHORITY: Final = (18, 19, 20, 21)
"""OpenSSL's codes for a certificate that no known authority has signed."""
_SET_AUTHORITIES: Final = (
    "If an authority of your organization signed it, set `SSL_CERT_FILE` to a PEM file with the certificate of that "
    "authority"
)
_REFUSED_TLS: Final = "See the server's log; the gateway uses TLS 1.2 or later, and has no client certificate"
_MEDIA_TYPE: Final = lazy_pattern(r"[a-z]{1,20}/[a-z0-9.+-]{1,40}")


class AuthorizationError(httpx2.TransportError):
    """A request has no token that the server accepts; the message is a sentence with the reason and the next step."""

    def __init__(self, message: str, *, reason: str = "", kind: FailureKind = FailureKind.NO_TOKEN) -> None:
        """Create an error; `reason` is why the authorization server gave no token, if the message says more."""
        super().__init__(message)
        self.reason = reason or message.rstrip(".")
        self.kind: FailureKind = kind


def explain_failed_connection(error: httpx2.TransportError, url: httpx2.URL) -> str:
    """Return a sentence with the address and the cause, and one with what to try."""
    cause, advice = _explain_cause(error)
    return f"The connection to {format_address(url)} failed: {cause}. {advice}."


def explain_response(response: httpx2.Response) -> str:
    """Return a sentence with the HTTP response that is not MCP, and one with what to try."""
    if response.status_code != httpx2.codes.OK:
        shown = f"HTTP status {response.status_code}"
    else:
        kind = read_media_type(response)
        shown = kind if _MEDIA_TYPE.fullmatch(kind) else "no media type"
    return f"{format_address(response.request.url)} answered with {shown} instead of MCP. {_advise(response)}."


def read_media_type(response: httpx2.Response) -> str:
    """Return the media type of a response, in lower case; empty if it names none."""
    media_type, _, _ = response.headers.get("content-type", "").partition(";")
    return media_type.strip().lower()


def explain_large_message(url: httpx2.URL, size: int) -> str:
    """Return the same for a message of so many bytes that got HTTP status 413."""
    return (
        f"{format_address(url)} answered with HTTP status 413 to a message of {size:,} bytes. Pass a smaller part of "
        "the value, or raise the limit of the server, or of a proxy in front of it, and `max_request_bytes` with it."
    )


def _advise(response: httpx2.Response) -> str:
    status, request = response.status_code, response.request
    if response.has_redirect_location:
        return "Use https:// in `url`" if _leads_to_https(response) else _REDIRECTED
    if status == httpx2.codes.METHOD_NOT_ALLOWED and request.method == "GET":
        return _NOT_SSE  # only the older transport opens its stream before a session
    if status == httpx2.codes.BAD_REQUEST and request.url.scheme == "http":
        return _NOT_TLS  # such a response comes from a TLS server without a handshake
    if status == httpx2.codes.UNAUTHORIZED and "authorization" in request.headers:
        return _CREDENTIALS_ADVICE
    advice = _STATUS_ADVICE.get(status, "See the server's log" if response.is_server_error else _ELSEWHERE)
    delay = response.headers.get("retry-after", "")
    if status in _BUSY and _RETRY_AFTER.fullmatch(delay):
        advice = f"{advice.removesuffix(_LATER)}. It asks to try again in {delay} s"
    return advice


def find_followed(response: httpx2.Response) -> httpx2.URL | None:
    """Return the address at the same server to which a redirect sends a request again; None for any other response."""
    sent, target = response.request.url, _find_target(response)
    if target is None or (response.request.method != "GET" and response.status_code not in _REPEATING):
        return None
    if target.userinfo not in (b"", sent.userinfo) or target.host != sent.host:
        return None
    is_upgrade = (sent.scheme, target.scheme, sent.port, target.port) == ("http", "https", None, None)
    return target if is_upgrade or (sent.scheme, sent.port) == (target.scheme, target.port) else None


def _leads_to_https(response: httpx2.Response) -> bool:
    """Whether a redirect only changes the scheme."""
    sent, target = response.request.url, _find_target(response)
    return target is not None and (sent.scheme, target.scheme, target.host) == ("http", "https", sent.host)


def _find_target(response: httpx2.Response) -> httpx2.URL | None:
    """Return the URL that a redirect leads to; None for another response, and for an invalid URL."""
    if not response.has_redirect_location:
        return None
    try:
        return response.request.url.join(response.headers["location"])
    except (httpx2.InvalidURL, ValueError):
        return None


def build_failure(kind: FailureKind, message: str, code: int = types.INTERNAL_ERROR) -> types.ErrorData:
    """Return the JSON-RPC error with which a transport answers a request."""
    return types.ErrorData(code=code, message=message, data=kind)


def build_http_failure(error: httpx2.TransportError, url: httpx2.URL) -> types.ErrorData:
    """Return the same for a request that failed."""
    if isinstance(error, AuthorizationError):
        return build_failure(error.kind, str(error))
    return build_failure(FailureKind.LOST, explain_failed_connection(error, url))


def classify_unread_frame(frame: Frame) -> FailureKind:
    """Return why a received frame is not read: it is invalid or too large, or the gateway could not buffer it."""
    is_lost = isinstance(frame, DiscardedFrame) and frame.failure is not None
    return FailureKind.DISCARDED if is_lost else FailureKind.INVALID


def read_failure(error: BaseException) -> tuple[FailureKind | None, str]:
    """Return the kind and the message of an error that a transport made; no kind for any other error."""
    if isinstance(error, AuthorizationError):
        return error.kind, str(error)
    if isinstance(error, MCPError) and isinstance(error.data, FailureKind):
        return error.data, error.message
    return None, ""


def omit_scopes(message: str) -> str:
    """Return the message of an `AuthorizationError` without scopes, which are words of the server."""
    return _SCOPE_OPTION.sub("", message)


def omit_media_type(message: str) -> str:
    """Return the sentence of `explain_response` without the media type, which is words of the server."""
    return _ANSWERED_TYPE.sub("another media type", message)


def format_address(url: httpx2.URL) -> str:
    """Return host and port of a URL."""
    host = f"[{url.host}]" if ":" in url.host else url.host
    return f"{host}:{url.port or DEFAULT_PORTS.get(url.scheme, 0)}"


def _explain_cause(error: httpx2.TransportError) -> tuple[str, str]:
    """Return the cause of an error, and what to try."""
    if shortage := explain_shortage(error):
        cause, _, advice = shortage.partition(". ")
        return cause, advice
    causes = tuple(walk_causes(error))
    for one in causes:
        if known := _explain_precise_cause(one):
            return known
    for kinds, cause, advice in _TYPES:
        if any(isinstance(one, kinds) for one in causes):
            return cause, advice
    return type(error).__name__, "Check `url`, and the server's log"


def _explain_precise_cause(error: BaseException) -> tuple[str, str] | None:
    if isinstance(error, httpx2.TransportError):
        return _explain_own_error(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        is_unknown = error.verify_code in _UNKNOWN_AUTHORITY
        advice = _SET_AUTHORITIES if is_unknown else "Use a certificate that this machine trusts"
        return f"its certificate is not valid ({error.verify_message.rstrip('.')})", advice
    if isinstance(error, ssl.SSLError):
        reason = error.reason or "no reason"
        is_refused = "_ALERT_" in reason  # the server speaks TLS
        advice = _REFUSED_TLS if is_refused else "If the server uses plain HTTP, use http:// in `url`"
        return f"TLS failed ({reason})", advice
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return "this machine has no route to it", "Check this machine's network, and the address in `url`"
    return None


def _explain_own_error(error: httpx2.TransportError) -> tuple[str, str] | None:
    """Explain an error that the gateway's own HTTP connections raise; None for any other one."""
    # These import an HTTP client, which stdio does not need.
    from mcp_mirror.security.ssrf_guard import PRIVATE, SLOW_LOOKUP  # noqa: PLC0415
    from mcp_mirror.system.forward_proxies import ForwardProxyError  # noqa: PLC0415
    from mcp_mirror.system.http_connections import NO_AUTHORITIES, SLOW_HANDSHAKE  # noqa: PLC0415
    from mcp_mirror.system.http_responses import CLOSED_EARLY, LARGE_HEAD  # noqa: PLC0415

    cause = str(error)
    if isinstance(error, ForwardProxyError):
        return cause, error.advice
    if isinstance(error, BodyError):
        return cause, "Correct the server, or a proxy in front of it"
    advice = {
        PRIVATE: "If this is intended, set `allow_private: true` for this upstream",
        SLOW_LOOKUP: "Check this machine's DNS",
        SLOW_HANDSHAKE: "Check host and port in `url`; if the server uses plain HTTP, use http://",
        NO_AUTHORITIES: "Set it to a PEM file with the certificates of the authorities that this machine trusts",
        LARGE_HEAD: "Check which headers or cookies the server, or a proxy in front of it, adds",
        CLOSED_EARLY: _NEVER_RESPONDS,
    }
    return (cause, advice[cause]) if cause in advice else None

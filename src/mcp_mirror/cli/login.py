"""A person signs in to an upstream, with a browser, once: the tokens go into the upstream's token file.

The browser comes back to a loopback port (RFC 8252, section 7.3), where one request is served: the one that it brings.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
from anyio.abc import SocketAttribute, SocketStream
from mcp.shared.auth import AuthorizationCodeResult
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from mcp_mirror.errors import MirrorError
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.security.ssrf_guard import AddressPolicy, SSRFGuardTransport
from mcp_mirror.settings.policies import HttpEndpoint, UpstreamPolicy
from mcp_mirror.upstreams.oauth import AuthorizationError, Authorizer, Person

_PATH: Final = "/callback"
_PATIENCE: Final = 600.0
"""Seconds that a person may take."""
_CONNECT: Final = 20.0
_LARGEST: Final = 1 << 14
"""Bytes of the head of a browser's request."""
_SEEN: Final = "You are signed in. This window can be closed."
_NOT_HERE: Final = "There is nothing here."

_VERSION: Final = HANDSHAKE_PROTOCOL_VERSIONS[-1]
_SESSION: Final = "mcp-session-id"
_HEADERS: Final = {
    "accept": "application/json, text/event-stream",
    "content-type": "application/json",
    "mcp-protocol-version": _VERSION,
}
_HELLO: Final = {
    "protocolVersion": _VERSION,
    "capabilities": {},
    "clientInfo": {"name": "mcp-mirror", "version": "0"},
}
_KNOCKS: Final[tuple[Mapping[str, Any], ...]] = (
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": _HELLO},
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}},
)
"""What a server is asked until it asks who we are: some greet strangers."""

Show = Callable[[str], Awaitable[None]]
"""Shows a person a URL to open."""


async def sign_in(upstream: UpstreamPolicy, scopes: tuple[str, ...], show: Show) -> str:
    """Have a person sign in.

    Args:
        upstream: To what.
        scopes: What to ask for beside what the upstream and its policy say.
        show: Shows the person where to do it.

    Returns:
        The file in which the tokens are.

    Raises:
        MirrorError: It is no upstream to sign in to, or signing in came to nothing.
    """
    endpoint = upstream.endpoint
    oauth = endpoint.oauth if isinstance(endpoint, HttpEndpoint) else None
    if not isinstance(endpoint, HttpEndpoint) or oauth is None or oauth.grant != "authorization_code":
        raise MirrorError(
            f"Nobody signs in to upstream {upstream.name!r}: it has no 'auth: {{oauth: {{}}}}' with the grant "
            "'authorization_code'."
        )
    asking = replace(endpoint, oauth=replace(oauth, scopes=tuple(dict.fromkeys((*oauth.scopes, *scopes)))))
    async with _returning(oauth.redirect_port) as (url, returned):
        authorizer = Authorizer(upstream.name, asking, Redactor(endpoint), Person(url, show, returned.wait))
        failure = await _try(authorizer, endpoint)
    if failure:
        raise MirrorError(f"Nobody is signed in to upstream {upstream.name!r}: {failure}.")
    return oauth.token_file


async def _try(authorizer: Authorizer, endpoint: HttpEndpoint) -> str | None:
    """Have the person sign in; why that came to nothing, if it did."""
    try:
        with anyio.fail_after(_PATIENCE):
            request, refusal = await _knock(endpoint)
            await authorizer.sign_in(request, refusal)
    except TimeoutError:
        return f"nobody has come back within {_PATIENCE:g} s"
    except AuthorizationError as error:
        return str(error)
    except httpx2.HTTPError:
        return "it could not be reached"
    return None


async def _knock(endpoint: HttpEndpoint) -> tuple[httpx2.Request, httpx2.Response]:
    """A request without a token, and its refusal, which says where tokens are had; one of ours where all are let in."""
    headers = {**endpoint.headers, **_HEADERS}
    guarded = SSRFGuardTransport(AddressPolicy.of(endpoint.url, everywhere=endpoint.allow_private))
    async with httpx2.AsyncClient(transport=guarded, timeout=_CONNECT, follow_redirects=False) as client:
        for message in _KNOCKS:
            request = client.build_request("POST", endpoint.url, content=json.dumps(message), headers=headers)
            response = await client.send(request, stream=True)
            await response.aclose()
            if response.status_code == httpx2.codes.UNAUTHORIZED:
                break
            if _SESSION in response.headers:
                headers[_SESSION] = response.headers[_SESSION]
        else:
            response = httpx2.Response(httpx2.codes.UNAUTHORIZED, headers={"www-authenticate": "Bearer"})
        if _SESSION in headers:
            await client.delete(endpoint.url, headers=headers)
    return request, httpx2.Response(response.status_code, headers=response.headers, request=request)


@dataclass(slots=True)
class _Returned:
    """What the browser has brought."""

    event: anyio.Event = field(default_factory=anyio.Event)
    said: dict[str, str] = field(default_factory=dict)

    async def wait(self) -> AuthorizationCodeResult:
        await self.event.wait()
        if "code" not in self.said:
            raise MirrorError("the authorization server says that it was not allowed")
        return AuthorizationCodeResult(code=self.said["code"], state=self.said.get("state"), iss=self.said.get("iss"))


@asynccontextmanager
async def _returning(port: int) -> AsyncIterator[tuple[str, _Returned]]:
    """Where the browser is to come back to, and what it brings; open meanwhile."""
    returned = _Returned()
    try:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
    except OSError:
        raise MirrorError(f"Port {port} (`redirect_port`) is taken. Choose another, or 0 for any.") from None
    async with listener, anyio.create_task_group() as tasks:
        bound = listener.extra(SocketAttribute.local_port)  # noqa: S610  # of a socket

        async def serve(stream: SocketStream) -> None:
            async with stream:
                with anyio.move_on_after(_CONNECT):
                    await _answer(stream, returned)

        tasks.start_soon(listener.serve, serve)
        yield f"http://127.0.0.1:{bound}{_PATH}", returned
        tasks.cancel_scope.cancel()


async def _answer(stream: SocketStream, returned: _Returned) -> None:
    try:
        head = await _read_head(stream)
        target = urlsplit(head.split(b" ", 2)[1].decode("ascii"))
        told = {name: values[0] for name, values in parse_qs(target.query).items()}
        is_return = head.startswith(b"GET ") and target.path == _PATH and bool(told.keys() & {"code", "error"})
        await stream.send(_page("200 OK" if is_return else "404 Not Found", _SEEN if is_return else _NOT_HERE))
    except (ValueError, IndexError, anyio.EndOfStream, anyio.BrokenResourceError):
        return
    if is_return and not returned.event.is_set():
        returned.said = told
        returned.event.set()


async def _read_head(stream: SocketStream) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head:
        head += await stream.receive()
        if len(head) > _LARGEST:
            raise ValueError
    return head


def _page(status: str, text: str) -> bytes:
    body = text.encode()
    headers: dict[str, Any] = {
        "content-type": "text/plain; charset=utf-8",
        "content-length": len(body),
        "referrer-policy": "no-referrer",
        "connection": "close",
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body

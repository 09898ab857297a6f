"""The command `mcp-mirror login`: a user signs in to an upstream with a browser, and a file stores the tokens.

The authorization server redirects the browser to a loopback port (RFC 8252, section 7.3).
"""

import json
import logging
import os
import sys
import webbrowser
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Annotated, Any, Final

import anyio
import anyio.to_thread
import httpx2
import msgspec
import typer
from mcp.shared.auth import AuthorizationCodeResult
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mcp_mirror.cli.options import ConfigOption, VerboseOption
from mcp_mirror.cli.run import load, print_note, run_until_signal
from mcp_mirror.errors import MirrorError
from mcp_mirror.observability.logging import configure_logging
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.security.ssrf_guard import AddressPolicy, SSRFGuardTransport
from mcp_mirror.server.http.server import HttpServer, format_url, listen
from mcp_mirror.settings.upstreams import HttpEndpoint, UpstreamPolicy
from mcp_mirror.upstreams.oauth.failures import read_error_code
from mcp_mirror.upstreams.oauth.providers import BrowserSignIn
from mcp_mirror.upstreams.oauth.tokens import Authorizer
from mcp_mirror.upstreams.transports.network_errors import AuthorizationError, explain_failed_connection

_HOST: Final = "127.0.0.1"
_PATH: Final = "/callback"
_SIGN_IN_TIMEOUT: Final = 600.0
"""Seconds that a user may take to sign in."""

_CONTINUED: Final = "mcp-mirror continues in the terminal and prints the result there. You can close this window."
_DENIED: Final = "You are not signed in: the authorization server reports an error. The terminal shows the next step."
_ELSEWHERE: Final = (
    f"A browser on another machine ends at an address on {_HOST} that does not open there. Copy this address, and open "
    "it on this machine: curl 'ADDRESS'"
)
_LOGGERS: Final = ("mcp.client.auth", "mcp_mirror.upstreams.oauth.tokens")
"""They log each failure that the command prints."""

_VERSION: Final = HANDSHAKE_PROTOCOL_VERSIONS[-1]
_SESSION: Final = "mcp-session-id"
_HEADERS: Final = {
    "accept": "application/json, text/event-stream",
    "content-type": "application/json",
    "mcp-protocol-version": _VERSION,
}
_INITIALIZE: Final = {
    "protocolVersion": _VERSION,
    "capabilities": {},
    "clientInfo": {"name": "mcp-mirror", "version": "0"},
}
_PROBES: Final[tuple[Mapping[str, Any], ...]] = (
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": _INITIALIZE},
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}},
)
"""Requests without a token, sent until the server rejects one: some servers allow `initialize`."""

Show = Callable[[str], Awaitable[None]]
"""Shows the user a URL to open."""


def login(
    upstream: Annotated[
        str, typer.Argument(help="The upstream's name in the configuration, or the name of a wrapped server.")
    ],
    url: Annotated[
        str | None, typer.Option(help="The address of a server that `wrap` serves, which needs no configuration.")
    ] = None,
    scope: Annotated[
        str, typer.Option(help="Scopes to request in addition to those that the server requires, space-separated.")
    ] = "",
    browser: Annotated[bool, typer.Option(help="Open the page in a browser if there is a terminal.")] = True,
    config: ConfigOption = None,
    verbose: VerboseOption = 0,
) -> None:
    """Sign in to an upstream that requires OAuth, with a browser.

    The gateway stores the tokens and refreshes them.

    Example: mcp-mirror login search
    """
    configure_logging(verbose)
    if not verbose:
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
    upstreams = _describe_wrapped(upstream, url) if url else load(config, verbose, is_quiet=True).upstreams
    policy = next((one for one in upstreams if one.name == upstream), None)
    if policy is None:
        names = ", ".join(one.name for one in upstreams) or "none"
        raise MirrorError(f"The configuration has no upstream {upstream!r}. Its upstreams: {names}.")

    async def show(url: str) -> None:
        print_note(f"To sign in, open this URL in a browser:\n{url}")
        is_open = browser and sys.stderr.isatty()
        if is_open:
            is_open = await anyio.to_thread.run_sync(webbrowser.open, url, abandon_on_cancel=True)
        if not is_open:
            print_note(_ELSEWHERE)

    async def run() -> None:
        file = await sign_in(policy, tuple(scope.split()), show)
        print_note(f"Signed in to {upstream}. The tokens are in {file}.")

    run_until_signal(run())


def _describe_wrapped(name: str, url: str) -> tuple[UpstreamPolicy, ...]:
    """Return the remote server as `wrap` serves it."""
    from mcp_mirror.cli.wrapped_server import build_wrap_config, describe_remote  # noqa: PLC0415  # it imports the gateway

    return build_wrap_config(name, describe_remote(url), {}, None, os.environ).upstreams


async def sign_in(upstream: UpstreamPolicy, scopes: tuple[str, ...], show: Show) -> str:
    """Let the user sign in to an upstream with `scopes` in addition to its own; return the file with the tokens.

    `show` gets the URL of the page. A MirrorError says why the upstream has no sign-in, or why it failed.
    """
    endpoint, named = upstream.endpoint, f"Upstream {upstream.name!r}"
    if not isinstance(endpoint, HttpEndpoint):
        raise MirrorError(f"{named} is a program, which has no sign-in. Give it credentials in `env`.")
    if (oauth := endpoint.oauth) is None:
        raise MirrorError(f"{named} has no sign-in. Configure `auth: {{oauth: {{}}}}` for it.")
    if oauth.grant != "authorization_code":
        raise MirrorError(f"{named} signs in by itself (`grant: {oauth.grant}`). Run `mcp-mirror check` to try it.")
    requested = replace(endpoint, oauth=replace(oauth, scopes=tuple(dict.fromkeys((*oauth.scopes, *scopes)))))
    async with _open_redirect(oauth.redirect_port) as (url, redirect):
        authorizer = Authorizer(upstream.name, requested, Redactor(endpoint), BrowserSignIn(url, show, redirect.wait))
        failure = await _sign_in(authorizer, endpoint)
    if failure:
        raise MirrorError(f"Signing in to upstream {upstream.name!r} failed: {failure}.")
    return oauth.token_file


async def _sign_in(authorizer: Authorizer, endpoint: HttpEndpoint) -> str | None:
    """Run the OAuth flow; return the reason of a failure, or None."""
    try:
        with anyio.fail_after(_SIGN_IN_TIMEOUT):
            request, refusal = await _probe(endpoint)
            await authorizer.sign_in(request, refusal)
    except TimeoutError:
        return f"the browser did not return within {_SIGN_IN_TIMEOUT:g} s"
    except AuthorizationError as error:
        return error.reason
    except httpx2.TransportError as error:
        reason = explain_failed_connection(error, error.request.url).removesuffix(".")
        return reason[:1].lower() + reason[1:]
    return None


async def _probe(endpoint: HttpEndpoint) -> tuple[httpx2.Request, httpx2.Response]:
    """Return a request without a token and its 401 response; a made-up one if the server accepts every request."""
    headers = {**endpoint.headers, **_HEADERS}
    challenge = httpx2.Headers({"www-authenticate": "Bearer"})  # if the server accepts every request
    guarded = SSRFGuardTransport(AddressPolicy.from_urls(endpoint.url, admits_private=endpoint.allow_private))
    async with httpx2.AsyncClient(transport=guarded, timeout=20.0, follow_redirects=False) as client:
        for message in _PROBES:
            request = client.build_request("POST", endpoint.url, content=json.dumps(message), headers=headers)
            response = await client.send(request, stream=True)
            await response.aclose()
            if response.status_code == httpx2.codes.UNAUTHORIZED:
                challenge = response.headers
                break
            if _SESSION in response.headers:
                headers[_SESSION] = response.headers[_SESSION]
        if _SESSION in headers:
            with suppress(httpx2.TransportError):  # the server ends the session later
                await client.delete(endpoint.url, headers=headers)
    return request, httpx2.Response(httpx2.codes.UNAUTHORIZED, headers=challenge, request=request)


class _Redirect(msgspec.Struct):
    """The parameters that the browser was redirected with."""

    event: anyio.Event = msgspec.field(default_factory=anyio.Event)
    parameters: dict[str, str] = msgspec.field(default_factory=dict)

    async def answer(self, request: Request) -> Response:
        """Answer the browser. A web page that requests the address in the background does not end the sign-in."""
        parameters = dict(request.query_params)
        is_navigation = request.headers.get("sec-fetch-dest", "document") == "document"
        if request.method != "GET" or not is_navigation or not parameters.keys() & {"code", "error"}:
            return PlainTextResponse("Page not found.", HTTPStatus.NOT_FOUND)
        if not self.event.is_set():
            self.parameters = parameters
            self.event.set()
        page = _CONTINUED if "code" in parameters else _DENIED
        return PlainTextResponse(page, headers={"referrer-policy": "no-referrer", "connection": "close"})

    async def wait(self) -> AuthorizationCodeResult:
        await self.event.wait()
        if "code" not in self.parameters:
            code = read_error_code(self.parameters["error"])
            reported = {"": "an error", "access_denied": "that access was denied"}.get(code, f"an error ({code})")
            raise MirrorError(f"the authorization server reports {reported}")
        return AuthorizationCodeResult(
            code=self.parameters["code"], state=self.parameters.get("state"), iss=self.parameters.get("iss")
        )


@asynccontextmanager
async def _open_redirect(port: int) -> AsyncIterator[tuple[str, _Redirect]]:
    """Listen for the browser; yield the redirect URL and the parameters that arrive there."""
    redirect, closing = _Redirect(), anyio.Event()
    try:
        listening = listen(_HOST, port)
    except MirrorError:
        raise MirrorError(f"Port {port} (`redirect_port`) is in use. Choose another, or 0 for any free port.") from None
    app = Starlette(routes=[Route(_PATH, redirect.answer)])
    with listening:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(HttpServer(app).serve_until, closing, listening)
            yield format_url(_HOST, listening, _PATH), redirect
            closing.set()

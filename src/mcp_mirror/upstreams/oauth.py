"""OAuth tokens for an upstream: sent with each request, refreshed, and requested if the grant allows it.

The SDK's providers implement the protocol, but they serialize all requests. So the gateway uses a provider only if a
token is missing, has expired, or was rejected. Requests to authorization servers use an HTTP client of their own, which
shares nothing with the connection to the upstream.
"""

import json
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
import httpx2
import msgspec
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import extract_field_from_www_auth, issuers_match, union_scopes
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata
from pydantic import AnyUrl

from mcp_mirror.errors import MirrorError, UpstreamError
from mcp_mirror.payload.content_encodings import MAX_ERROR_BYTES, read_beginning, replace_body
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.security.ssrf_guard import AddressPolicy, SSRFGuardTransport
from mcp_mirror.settings.access import is_confidential
from mcp_mirror.settings.upstreams import HttpEndpoint
from mcp_mirror.upstreams.oauth_failures import explain_failure, read_error_code
from mcp_mirror.upstreams.token_file import TokenFile
from mcp_mirror.upstreams.transports.network_errors import AuthorizationError, FailureKind

_logger = logging.getLogger(__name__)

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
_REJECTED_FOR: Final = 30.0
"""Seconds for which a rejected token is not sent again."""
_SCOPE: Final = re.compile(r'\bscope=(?:"[^"]*"|[^\s,]+)')
_SCOPES: Final = re.compile(r"[!#-&(-\[\]-~ ]{1,200}")
"""Scopes that are safe between single quotes in a shell: a server must not choose what a person runs."""
_UNUSED_REDIRECT: Final = "http://127.0.0.1/callback"
"""The redirect URL without a browser."""


class BrowserSignIn(msgspec.Struct, frozen=True):
    """A person who can sign in with a browser."""

    redirect_url: str
    """The URL that the browser returns to."""
    show: Callable[[str], Awaitable[None]]
    """Opens a URL in the browser."""
    wait: Callable[[], Awaitable[AuthorizationCodeResult]]
    """Returns the authorization code that the browser brings."""


class Authorizer:
    """The OAuth tokens of one upstream, for all its connections."""

    def __init__(
        self, name: str, endpoint: HttpEndpoint, redactor: Redactor, browser: BrowserSignIn | None = None
    ) -> None:
        """Create an authorizer; it reads the token file at the first request.

        Without `browser`, no person can sign in.
        """
        assert endpoint.oauth is not None  # noqa: S101  # the caller's condition
        self._name = name
        self._is_wrapped = endpoint.is_wrapped
        self._policy = endpoint.oauth
        self._url = str(httpx2.URL(endpoint.url).copy_with(query=None, fragment=None, userinfo=b""))
        named = (endpoint.url, endpoint.oauth.issuer, endpoint.oauth.client_metadata_url)
        self._addresses = AddressPolicy.from_urls(*named, admits_private=endpoint.allow_private)
        self._redactor = redactor
        self._browser = browser
        self._provider: OAuthClientProvider | None = None
        self._storage: TokenFile
        """The storage of the provider."""
        self._lock = anyio.Lock()
        self._server_error, self._is_undecided = "", False
        """What an authorization server last answered instead of a token, and whether it may give one later."""
        self._ended = ""
        """The refresh token in the file if the authorization server refused it: it is not sent again."""
        self._ended_error = ""
        self._required_scope: str | None = None
        """The scope that the upstream required when it last rejected a request."""
        self._rejected, self._rejected_at = "", 0.0
        self._failure: AuthorizationError
        """Why an authorization server gave no token last; set with the time."""
        self._failed_at = 0.0

    async def sign_in(self, request: httpx2.Request, refusal: httpx2.Response) -> None:
        """Let the person sign in, even if there are tokens.

        Raises:
            AuthorizationError: The sign-in failed.
        """
        async with self._lock:
            await self._load_context()
            await self._run_flow(request, self._with_scopes(refusal), anyio.current_time())

    async def prepare(self, request: httpx2.Request) -> None:
        """Add the token to a request; refresh it first if it has expired. A wrapped server may need none.

        Raises:
            AuthorizationError: A token is missing, and no person can sign in.
        """
        arrived = anyio.current_time()
        async with self._lock:
            context = await self._load_context()
            if not context.is_token_valid() and context.can_refresh_token():
                await self._refresh(context, request, arrived)
            may_be_open = self._is_wrapped and not context.current_tokens and not self._ended
            if self._needs_sign_in and not may_be_open and (not context.current_tokens or self._is_rejected(context)):
                raise self._build_sign_in(self._required_scope)
            _add_token(request, context)

    async def renew(self, request: httpx2.Request, refusal: httpx2.Response) -> None:
        """Get another token for a rejected request, and add it to the request.

        Raises:
            AuthorizationError: Another token is not available.
        """
        shown, arrived = request.headers.get("authorization"), anyio.current_time()
        async with self._lock:
            context = await self._load_context()
            await self._read_tokens(context)
            if context.is_token_valid():
                _add_token(request, context)
            if request.headers.get("authorization") != shown:  # another request, gateway or sign-in got one already
                return
            if refusal.status_code == httpx2.codes.UNAUTHORIZED and context.current_tokens:
                self._storage.reject(context.current_tokens)
                await self._refresh(context, request, arrived)
                _add_token(request, context)
            if context.is_token_valid() and request.headers.get("authorization") != shown:
                return
            if self._needs_sign_in:
                self._required_scope = extract_field_from_www_auth(refusal, "scope")
                if refusal.status_code == httpx2.codes.UNAUTHORIZED and shown:
                    self._rejected, self._rejected_at = shown, anyio.current_time()
                raise self._build_sign_in(
                    self._required_scope, is_step_up=refusal.status_code == httpx2.codes.FORBIDDEN
                )
            await self._run_flow(request, self._with_scopes(refusal), arrived)

    async def _load_context(self) -> OAuthContext:
        if self._provider is None:
            self._provider = await self._create_provider()
        context = self._provider.context
        if context.current_tokens is None:
            await self._read_tokens(context)
        return context

    async def _read_tokens(self, context: OAuthContext) -> None:
        try:
            context.current_tokens = await context.storage.get_tokens() or context.current_tokens
            context.client_info = await context.storage.get_client_info() or context.client_info
            self._ended = self._ended if _read_refresh_token(context) == self._ended else ""
        except UpstreamError as error:
            raise AuthorizationError(str(error)) from None

    async def _refresh(self, context: OAuthContext, request: httpx2.Request, arrived: float) -> None:
        """Refresh the tokens, unless another gateway with the same token file has; without success there are none.

        An authorization server may accept each refresh token once, and end all tokens at a second use. So one gateway
        at a time refreshes, the file is read before, and a refresh that was sent is not cancelled.
        """
        async with self._storage.lock():
            await self._read_tokens(context)
            if context.is_token_valid() or not context.can_refresh_token():
                return
            if self._ended:
                context.clear_tokens()
                return
            with anyio.CancelScope(shield=True):
                await self._run_flow(request, None, arrived)
        if context.current_tokens is None:
            await self._read_tokens(context)
            if not context.is_token_valid():
                self._note_refusal(context)
                context.clear_tokens()

    def _note_refusal(self, context: OAuthContext) -> None:
        """Note that the authorization server did not refresh the tokens.

        Raises:
            AuthorizationError: It may refresh them later, so that a person need not sign in.
        """
        if not self._is_undecided:
            self._ended, self._ended_error = _read_refresh_token(context), self._server_error
        elif self._policy.grant == "authorization_code":
            context.clear_tokens()
            refusal = UpstreamError("its authorization server did not renew the token")
            raise self._build_failure(refusal if self._server_error else ValueError())

    async def _run_flow(self, request: httpx2.Request, refusal: httpx2.Response | None, arrived: float) -> None:
        """Run the provider's flow for a request, after its `refusal` if it was sent, up to where it would send it.

        If a flow failed since the request arrived, its error is that of this request too: an authorization server
        without an answer would otherwise make each waiting request wait for all requests before it.
        """
        if arrived < self._failed_at:
            raise self._failure
        assert self._provider is not None  # noqa: S101  # `_loaded` comes first
        flow = self._provider.async_auth_flow(request)
        self._server_error, self._is_undecided = "", False
        try:
            outgoing = await anext(flow)
            while True:
                if outgoing is not request:
                    self._check_metadata(outgoing)
                    answer = await self._send(outgoing)
                elif refusal is None:
                    return
                else:
                    answer, refusal = refusal, None
                outgoing = await flow.asend(answer)
        except StopAsyncIteration:  # the flow has ended
            return
        except (OAuthFlowError, MirrorError, httpx2.HTTPError, OSError, ValueError, OverflowError) as error:
            self._provider = None
            raise self._build_failure(error) from None
        finally:
            await flow.aclose()

    def _check_metadata(self, request: httpx2.Request | None = None) -> None:
        """Check that the endpoints of the authorization server are known before a request to one of them.

        Without metadata, the SDK takes the default endpoints at the upstream's own origin, and so would send it the
        client's secret and the person's authorization code.

        Raises:
            UpstreamError: The upstream names an authorization server that has no metadata or registers no clients, or
                to which the configured client does not belong: the SDK would register another client.
        """
        assert self._provider is not None  # noqa: S101  # `_run_flow` checks it
        context = self._provider.context
        if request is not None and request.method == "GET":  # of metadata
            return
        if self._policy.client_id and context.client_info is None:
            raise UpstreamError(
                "`client_id` belongs to another authorization server than the upstream names. Correct `issuer`, or the "
                "client"
            )
        if context.auth_server_url and context.oauth_metadata is None:
            raise UpstreamError("its authorization server has no metadata now")
        if context.client_info is None and context.oauth_metadata and not context.oauth_metadata.registration_endpoint:
            raise UpstreamError(
                "its authorization server registers no clients. Register one by hand, and set `auth.oauth.client_id`"
            )

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request to an authorization server: with its own client, within limits, and never unencrypted."""
        if not is_confidential(str(request.url)):
            raise UpstreamError("it names an authorization server without https, which is not safe")
        with anyio.fail_after(_TIMEOUT):
            async with httpx2.AsyncClient(transport=SSRFGuardTransport(self._addresses), timeout=_TIMEOUT) as client:
                response = await client.send(request, stream=True, follow_redirects=False)
                body = await read_beginning(response, _MAX_RESPONSE + 1)
                if len(body) > _MAX_RESPONSE or body.count(b",") > _MAX_PARTS:
                    raise ValueError
        answer = replace_body(response, content=body, request=request)
        answer.next_request = response.next_request
        self._note_error(answer)
        return _put_issuer_first(answer, self._policy.issuer) if self._policy.issuer else answer

    def _note_error(self, answer: httpx2.Response) -> None:
        """Note an OAuth error, or an HTTP status without one, such as that of a proxy's page."""
        try:
            code = read_error_code(answer.json()["error"])
        except (ValueError, KeyError, TypeError, RecursionError):
            code = ""
        status = answer.status_code
        self._is_undecided = status in _TRANSIENT or not (code or status in _DECIDED)
        self._server_error = ""
        if code:
            self._server_error = f" (HTTP status {status}, {code})"
        elif not answer.is_success:
            self._server_error = f" (HTTP status {status})"

    def _with_scopes(self, refusal: httpx2.Response) -> httpx2.Response:
        """Return the response with the scopes of the configuration added to its challenge."""
        if not self._policy.scopes:
            return refusal
        header = refusal.headers.get("www-authenticate", "Bearer")
        wanted = union_scopes(" ".join(self._policy.scopes), extract_field_from_www_auth(refusal, "scope"))
        rest = _SCOPE.sub("", header).rstrip(" ,")
        challenge = f'{rest}{"," if "=" in rest else ""} scope="{wanted}"'
        return httpx2.Response(refusal.status_code, headers={"www-authenticate": challenge}, request=refusal.request)

    @property
    def _needs_sign_in(self) -> bool:
        """Whether only a person could get tokens, and no person can sign in."""
        return self._policy.grant == "authorization_code" and not self._browser

    def _is_rejected(self, context: OAuthContext) -> bool:
        """Whether the upstream rejected the current token a short time ago, so that it is not sent again yet."""
        assert context.current_tokens is not None  # noqa: S101  # the caller's condition
        is_same = self._rejected == f"Bearer {context.current_tokens.access_token}"
        return is_same and anyio.current_time() < self._rejected_at + _REJECTED_FOR

    def _build_sign_in(self, scope: str | None, *, is_step_up: bool = False) -> AuthorizationError:
        self._provider = None  # a person may sign in at any time
        option = f" --scope '{self._redactor.clean(scope)}'" if scope and _SCOPES.fullmatch(scope) else ""
        address = f" --url '{self._redactor.clean(self._url)}'" if self._is_wrapped else ""
        cause = ""
        if is_step_up:
            cause = "It requires a scope that the gateway's token does not have. "
        elif self._ended:
            cause = f"Its authorization server did not renew the token{self._ended_error}. "
        command = f"mcp-mirror login {self._name}{address}{option}"
        alternative = ", or wrap it with --header" if self._is_wrapped and not cause else ""
        message = f"{cause}A person has to sign in to it{' again' if cause else ''}: run `{command}`{alternative}."
        return AuthorizationError(message, kind=FailureKind.NO_SIGN_IN)

    def _build_failure(self, error: Exception) -> AuthorizationError:
        """Return the error without text of the SDK, which repeats text of servers."""
        if isinstance(error, AuthorizationError):
            return error
        reason = explain_failure(error)
        _logger.warning("No token for upstream %s: %s%s", self._name, reason, self._server_error)
        reason += self._server_error
        self._failure = AuthorizationError(f"The gateway has no token for it: {reason}.", reason=reason)
        self._failed_at = anyio.current_time()
        return self._failure

    async def _create_provider(self) -> OAuthClientProvider:
        provider: OAuthClientProvider
        path, client, is_new = self._policy.token_file, self._configured_client(), bool(self._browser)
        self._storage = TokenFile(path, self._redactor, client, lambda: provider.context, is_new=is_new)
        is_client = self._policy.grant == "client_credentials"
        provider = await self._create_client_provider() if is_client else self._create_user_provider()
        return provider

    def _create_user_provider(self) -> OAuthClientProvider:
        browser, policy = self._browser, self._policy
        metadata = OAuthClientMetadata(
            client_name="mcp-mirror",
            redirect_uris=[AnyUrl(browser.redirect_url if browser else _UNUSED_REDIRECT)],
            scope=" ".join(policy.scopes) or None,
        )

        async def show(url: str) -> None:
            self._check_metadata()
            assert browser is not None  # noqa: S101  # the caller's condition
            await browser.show(_correct_query(url, provider.context))

        provider = OAuthClientProvider(
            self._url,
            metadata,
            self._storage,
            show if browser else None,
            browser.wait if browser else None,
            policy.client_metadata_url,
        )
        return provider

    async def _create_client_provider(self) -> OAuthClientProvider:
        policy = self._policy
        known: dict[str, Any] = {
            "server_url": self._url,
            "storage": self._storage,
            "client_id": policy.client_id,
            "scope": " ".join(policy.scopes) or None,
            "issuer": policy.issuer,
        }
        if policy.private_key is None:
            return ClientCredentialsOAuthProvider(client_secret=policy.client_secret or "", **known)
        signed = SignedJWTParameters(
            issuer=policy.client_id or "",
            subject=policy.client_id or "",
            signing_key=await _read_key(policy.private_key),
            signing_algorithm=policy.signing_algorithm,
        )
        return PrivateKeyJWTOAuthProvider(assertion_provider=signed.create_assertion_provider(), **known)

    def _configured_client(self) -> OAuthClientInformationFull | None:
        policy = self._policy
        if policy.client_id is None:
            return None
        return OAuthClientInformationFull(
            client_id=policy.client_id,
            client_secret=policy.client_secret,
            token_endpoint_auth_method="client_secret_basic" if policy.client_secret else "none",
            redirect_uris=[AnyUrl(self._browser.redirect_url)] if self._browser else None,
            scope=" ".join(policy.scopes) or None,
            issuer=policy.issuer,
        )


def _put_issuer_first(answer: httpx2.Response, issuer: str) -> httpx2.Response:
    """Return the metadata of a protected resource with this authorization server first: the SDK takes the first one.

    Any other response stays as it is.
    """
    try:
        document = answer.json()
        named = document["authorization_servers"] if answer.is_success else None
        ordered = sorted(named, key=lambda server: not issuers_match(server, issuer)) if isinstance(named, list) else []
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return answer
    if not ordered:
        return answer
    content = json.dumps({**document, "authorization_servers": ordered}).encode()
    return httpx2.Response(answer.status_code, content=content, request=answer.request)


class AuthorizingTransport(httpx2.AsyncBaseTransport):
    """Sends through `inner` with a token; if the server rejects it, once more with another."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, authorizer: Authorizer) -> None:
        self._inner = inner
        self._authorizer = authorizer

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request.

        Raises:
            AuthorizationError: The request has no token.
        """
        await self._authorizer.prepare(request)
        response = await self._inner.handle_async_request(request)
        if not _is_rejected(response):
            return response
        body = await read_beginning(response, MAX_ERROR_BYTES)
        await self._authorizer.renew(request, replace_body(response, content=body, request=request))
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


def _correct_query(url: str, context: OAuthContext) -> str:
    """Return the URL of the page with one `?`: the SDK adds another to an endpoint with a query (RFC 6749, 3.1)."""
    endpoint = str(context.oauth_metadata.authorization_endpoint) if context.oauth_metadata else ""
    return f"{endpoint}&{url[len(endpoint) + 1 :]}" if "?" in endpoint else url


def _is_rejected(response: httpx2.Response) -> bool:
    if response.status_code == httpx2.codes.FORBIDDEN:
        return extract_field_from_www_auth(response, "error") == "insufficient_scope"
    return response.status_code == httpx2.codes.UNAUTHORIZED


def _read_refresh_token(context: OAuthContext) -> str:
    return (context.current_tokens and context.current_tokens.refresh_token) or ""


def _add_token(request: httpx2.Request, context: OAuthContext) -> None:
    if context.current_tokens:
        request.headers["authorization"] = f"Bearer {context.current_tokens.access_token}"


async def _read_key(path: str) -> str:
    try:
        return await anyio.Path(path).read_text(encoding="ascii")
    except (OSError, ValueError):
        raise AuthorizationError(
            f"`private_key` ({path}) cannot be read. Correct its path or its permissions."
        ) from None

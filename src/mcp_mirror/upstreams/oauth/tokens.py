"""OAuth tokens for an upstream: sent with each request, refreshed, and requested if the grant allows it.

The SDK's providers implement the protocol, but they serialize all requests. So the gateway uses a provider only if a
token is missing, has expired, or was rejected.
"""

import logging
from typing import Final

import anyio
import httpx2
import msgspec
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import extract_field_from_www_auth, union_scopes

from mcp_mirror.errors import MirrorError, UpstreamError
from mcp_mirror.payload.content_encodings import MAX_ERROR_BYTES, read_beginning, replace_body
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.security.ssrf_guard import AddressPolicy
from mcp_mirror.settings.upstreams import HttpEndpoint
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.upstreams.oauth.failures import explain_failure
from mcp_mirror.upstreams.oauth.providers import BrowserSignIn, Provider, check_metadata, create_provider
from mcp_mirror.upstreams.oauth.servers import Answer, AuthorizationServers
from mcp_mirror.upstreams.transports.network_errors import AuthorizationError, FailureKind

_logger = logging.getLogger(__name__)

_REJECTED_FOR: Final = 30.0
"""Seconds for which a rejected token is not sent again."""
_FLOW_ERRORS: Final = (
    *(OAuthFlowError, MirrorError, httpx2.HTTPError, httpx2.InvalidURL),
    *(OSError, ValueError, OverflowError),
)
"""What the SDK's providers and requests to authorization servers raise."""
_SCOPE: Final = lazy_pattern(r'\bscope=(?:"[^"]*"|[^\s,]+)')
_SCOPES: Final = lazy_pattern(r"[!#-&(-\[\]-~ ]{1,200}")
"""Scopes that are safe between single quotes in a shell: a server must not choose what a person runs."""


class _RefusedRefresh(msgspec.Struct, frozen=True):
    """A refresh token that the authorization server refused: it is not sent again."""

    token: str
    error: str
    """See `Answer.error`."""


class _RejectedToken(msgspec.Struct, frozen=True):
    """A token that the upstream rejected: it is not sent again for some time."""

    authorization: str
    """The header with it."""
    since: float


class _FailedFlow(msgspec.Struct, frozen=True):
    """The last attempt to get a token that failed."""

    error: AuthorizationError
    ended: float


class Authorizer:
    """The OAuth tokens of one upstream, for all its connections. One request at a time reads, refreshes or requests."""

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
        urls = (endpoint.url, endpoint.oauth.issuer, endpoint.oauth.client_metadata_url)
        addresses = AddressPolicy.from_urls(*urls, admits_private=endpoint.allow_private)
        self._servers = AuthorizationServers(addresses, endpoint.oauth.issuer)
        self._redactor = redactor
        self._browser = browser
        self._lock = anyio.Lock()
        self._provider: Provider | None = None
        """None before the first request, and after a failure: the next one reads the token file again."""
        self._refused_refresh: _RefusedRefresh | None = None
        self._rejected_token: _RejectedToken | None = None
        self._failed_flow: _FailedFlow | None = None
        self._required_scope: str | None = None
        """The scope that the upstream required when it last rejected a request."""

    async def sign_in(self, request: httpx2.Request, refusal: httpx2.Response) -> None:
        """Let the person sign in, even if there are tokens.

        Raises:
            AuthorizationError: The sign-in failed.
        """
        async with self._lock:
            provider = await self._load()
            await self._run_flow(provider, request, self._with_scopes(refusal), anyio.current_time())

    async def prepare(self, request: httpx2.Request) -> None:
        """Add the token to a request; refresh it first if it has expired. A wrapped server may need none.

        Raises:
            AuthorizationError: A token is missing, and no person can sign in.
        """
        arrived = anyio.current_time()
        async with self._lock:
            provider = await self._load()
            context = provider.context
            if not context.is_token_valid() and context.can_refresh_token():
                await self._refresh(provider, request, arrived)
            may_be_open = self._is_wrapped and not context.current_tokens and not self._refused_refresh
            if self._needs_sign_in and not may_be_open and (not context.current_tokens or self._was_rejected(context)):
                raise self._build_sign_in(self._required_scope)
            _add_token(request, context)

    async def renew(self, request: httpx2.Request, refusal: httpx2.Response) -> None:
        """Get another token for a rejected request, and add it to the request.

        Raises:
            AuthorizationError: Another token is not available.
        """
        shown, arrived = request.headers.get("authorization"), anyio.current_time()
        is_unauthorized = refusal.status_code == httpx2.codes.UNAUTHORIZED
        async with self._lock:
            provider = await self._load()
            context = provider.context
            await self._read_tokens(context)
            if _add_other_token(request, context, shown):  # of another request, gateway or sign-in
                return
            if is_unauthorized and context.current_tokens:
                provider.storage.reject(context.current_tokens)
                await self._refresh(provider, request, arrived)
                if _add_other_token(request, context, shown):
                    return
            if not self._needs_sign_in:
                await self._run_flow(provider, request, self._with_scopes(refusal), arrived)
                return
            self._required_scope = extract_field_from_www_auth(refusal, "scope")
            if is_unauthorized and shown:
                self._rejected_token = _RejectedToken(shown, anyio.current_time())
            is_step_up = refusal.status_code == httpx2.codes.FORBIDDEN
            raise self._build_sign_in(self._required_scope, is_step_up=is_step_up)

    async def _load(self) -> Provider:
        """Return the provider, with the tokens of the file if it has none."""
        if self._provider is None:
            self._provider = await create_provider(self._url, self._policy, self._redactor, self._browser)
        provider = self._provider
        if provider.context.current_tokens is None:
            await self._read_tokens(provider.context)
        return provider

    async def _read_tokens(self, context: OAuthContext) -> None:
        try:
            context.current_tokens = await context.storage.get_tokens() or context.current_tokens
            context.client_info = await context.storage.get_client_info() or context.client_info
        except UpstreamError as error:
            raise AuthorizationError(str(error)) from None
        if self._refused_refresh and self._refused_refresh.token != _read_refresh_token(context):
            self._refused_refresh = None

    async def _refresh(self, provider: Provider, request: httpx2.Request, arrived: float) -> None:
        """Refresh the tokens, unless another gateway with the same token file has; without success there are none.

        An authorization server may accept each refresh token once, and end all tokens at a second use. So one gateway
        at a time refreshes, the file is read before, and a refresh that was sent is not cancelled.
        """
        context = provider.context
        async with provider.storage.lock():
            await self._read_tokens(context)
            if context.is_token_valid() or not context.can_refresh_token():
                return
            if self._refused_refresh:
                context.clear_tokens()
                return
            with anyio.CancelScope(shield=True):
                await self._run_flow(provider, request, None, arrived)
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
        answer = self._servers.last_answer
        if not answer.is_undecided:
            token = _read_refresh_token(context)
            self._refused_refresh = _RefusedRefresh(token, answer.error) if token else None
        elif self._policy.grant == "authorization_code":
            context.clear_tokens()
            refusal = UpstreamError("its authorization server did not renew the token")
            raise self._build_failure(refusal if answer.error else ValueError())

    async def _run_flow(
        self, provider: Provider, request: httpx2.Request, refusal: httpx2.Response | None, arrived: float
    ) -> None:
        """Run the provider's flow for a request, after its `refusal` if it was sent, up to where it would send it.

        If a flow failed since the request arrived, its error is that of this request too: an authorization server
        without an answer would otherwise make each waiting request wait for all requests before it.
        """
        if self._failed_flow and arrived < self._failed_flow.ended:
            raise self._failed_flow.error
        flow = provider.sdk.async_auth_flow(request)
        self._servers.last_answer = Answer()
        try:
            provider.storage.check_writable()
            outgoing = await anext(flow)
            while True:
                if outgoing is not request:  # but one to an authorization server
                    if outgoing.method != "GET":  # of metadata
                        check_metadata(self._policy, provider.context)
                    answer = await self._servers.send(outgoing)
                elif refusal is not None:  # the request was sent before, and refused
                    answer, refusal = refusal, None
                else:
                    return
                outgoing = await flow.asend(answer)
        except StopAsyncIteration:  # the flow has ended
            return
        except _FLOW_ERRORS as error:
            self._provider = None
            raise self._build_failure(error) from None
        finally:
            await flow.aclose()

    def _with_scopes(self, refusal: httpx2.Response) -> httpx2.Response:
        """Return the response with the scopes of the configuration added to its challenge."""
        if not self._policy.scopes:
            return refusal
        header = refusal.headers.get("www-authenticate", "Bearer")
        scopes = union_scopes(" ".join(self._policy.scopes), extract_field_from_www_auth(refusal, "scope"))
        without_scope = _SCOPE.sub("", header).rstrip(" ,")
        challenge = f'{without_scope}{"," if "=" in without_scope else ""} scope="{scopes}"'
        headers = httpx2.Headers({"www-authenticate": challenge}, encoding="utf-8")  # a realm may have any letters
        return httpx2.Response(refusal.status_code, headers=headers, request=refusal.request)

    @property
    def _needs_sign_in(self) -> bool:
        """Whether only a person could get tokens, and no person can sign in."""
        return self._policy.grant == "authorization_code" and not self._browser

    def _was_rejected(self, context: OAuthContext) -> bool:
        """Whether the upstream rejected the current token a short time ago, so that it is not sent again yet."""
        assert context.current_tokens is not None  # noqa: S101  # the caller's condition
        rejected, shown = self._rejected_token, f"Bearer {context.current_tokens.access_token}"
        if rejected is None or rejected.authorization != shown:
            return False
        return anyio.current_time() < rejected.since + _REJECTED_FOR

    def _build_sign_in(self, scope: str | None, *, is_step_up: bool = False) -> AuthorizationError:
        self._provider = None  # a person may sign in at any time
        option = f" --scope '{self._redactor.clean(scope)}'" if scope and _SCOPES.fullmatch(scope) else ""
        address = f" --url '{self._redactor.clean(self._url)}'" if self._is_wrapped else ""
        cause = ""
        if is_step_up:
            cause = "It requires a scope that the gateway's token does not have. "
        elif self._refused_refresh:
            cause = f"Its authorization server did not renew the token{self._refused_refresh.error}. "
        command = f"mcp-mirror login {self._name}{address}{option}"
        alternative = ", or wrap it with --header" if self._is_wrapped and not cause else ""
        message = f"{cause}A person has to sign in to it{' again' if cause else ''}: run `{command}`{alternative}."
        return AuthorizationError(message, kind=FailureKind.NO_SIGN_IN)

    def _build_failure(self, error: Exception) -> AuthorizationError:
        """Return the error without text of the SDK, which repeats text of servers."""
        if isinstance(error, AuthorizationError):
            return error
        reason = explain_failure(error)
        answer = self._servers.last_answer
        _logger.warning("No token for upstream %s: %s%s", self._name, reason, answer.error)
        reason += answer.error
        failure = AuthorizationError(f"The gateway has no token for it: {reason}.", reason=reason)
        self._failed_flow = _FailedFlow(failure, anyio.current_time())
        return failure


async def send_authorized(
    transport: httpx2.AsyncBaseTransport, request: httpx2.Request, authorizer: Authorizer | None
) -> httpx2.Response:
    """Send a request with a token, if there is an authorizer; if the server rejects the token, once more with another.

    Raises:
        AuthorizationError: The request has no token.
    """
    if authorizer is None:
        return await transport.handle_async_request(request)
    await authorizer.prepare(request)
    response = await transport.handle_async_request(request)
    if response.status_code == httpx2.codes.FORBIDDEN:
        is_rejected = extract_field_from_www_auth(response, "error") == "insufficient_scope"
    else:
        is_rejected = response.status_code == httpx2.codes.UNAUTHORIZED
    if not is_rejected:
        return response
    body = await read_beginning(response, MAX_ERROR_BYTES)
    await authorizer.renew(request, replace_body(response, content=body, request=request))
    return await transport.handle_async_request(request)


def _read_refresh_token(context: OAuthContext) -> str:
    return (context.current_tokens and context.current_tokens.refresh_token) or ""


def _add_token(request: httpx2.Request, context: OAuthContext) -> None:
    if context.current_tokens:
        request.headers["authorization"] = f"Bearer {context.current_tokens.access_token}"


def _add_other_token(request: httpx2.Request, context: OAuthContext, shown: str | None) -> bool:
    """Add the token to a request if it is valid; return whether it is another one than the request has `shown`."""
    if context.is_token_valid():
        _add_token(request, context)
    return request.headers.get("authorization") != shown

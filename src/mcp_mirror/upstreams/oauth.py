"""Tokens for an upstream that wants OAuth: shown with each request, renewed, and asked for where they may be.

The SDK's providers know the protocol. They would let one request through at a time, up to its answer; here a provider
is asked only where a token is missing, has ended, or is refused. What it asks of authorization servers goes over a
client of its own: nothing of an upstream's connection goes there, nor the other way.
"""

import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import anyio
import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import extract_field_from_www_auth, union_scopes
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata
from pydantic import AnyUrl

from mcp_mirror.errors import MirrorError, UpstreamError
from mcp_mirror.payload.content_encodings import read_beginning
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.security.ssrf_guard import PRIVATE, AddressPolicy, SSRFGuardTransport
from mcp_mirror.settings.access import is_private_to_us
from mcp_mirror.settings.policies import HttpEndpoint
from mcp_mirror.upstreams.token_file import TokenFile

_logger = logging.getLogger(__name__)

_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_PATIENCE: Final = 20.0
"""Seconds that an authorization server may take."""
_LARGEST: Final = 1 << 18
"""Bytes of what it says."""
_REFUSAL: Final = 1 << 16
_RESPITE: Final = 30.0
"""Seconds for which a token that was refused is not tried again."""
_ENDED: Final = 1.0
"""A time long ago, seconds since the epoch."""
_SCOPE: Final = re.compile(r'\bscope=(?:"[^"]*"|[^\s,]+)')
_SCOPES: Final = re.compile(r"[!#-&(-\[\]-~ ]{1,200}")
"""Scopes that can stand between single quotes in a shell: a server is not to choose what somebody runs."""
_SAFE: Final = re.compile(r"[a-z_]{1,40}")
"""What an error code of OAuth's looks like; anything else is not repeated."""
_NOWHERE: Final = "http://127.0.0.1/callback"
"""Where the browser would come back to, if there were one."""


class AuthorizationError(httpx2.TransportError):
    """There is no token for a request; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who can sign in with a browser."""

    redirect_url: str
    """Where the browser comes back to."""
    show: Callable[[str], Awaitable[None]]
    """Opens a URL for them."""
    wait: Callable[[], Awaitable[AuthorizationCodeResult]]
    """What the browser brings back."""


class Authorizer:
    """The tokens of one upstream, for all its connections."""

    def __init__(self, name: str, endpoint: HttpEndpoint, redactor: Redactor, person: Person | None = None) -> None:
        """Read nothing yet.

        Args:
            name: The upstream's.
            endpoint: Where it is, and how its tokens are had.
            redactor: Learns every token.
            person: Who signs in where that is needed; None: nobody is there.
        """
        assert endpoint.oauth is not None  # noqa: S101  # the caller's condition
        self._name = name
        self._policy = endpoint.oauth
        self._url = str(httpx2.URL(endpoint.url).copy_with(query=None, fragment=None, userinfo=b""))
        named = (endpoint.url, endpoint.oauth.issuer, endpoint.oauth.client_metadata_url)
        self._reach = AddressPolicy.of(*named, everywhere=endpoint.allow_private)
        self._redactor = redactor
        self._person = person
        self._provider: OAuthClientProvider | None = None
        self._lock = anyio.Lock()
        self._complaint = ""
        self._wanted: str | None = None
        """The scope that the upstream wanted last where it refused."""
        self._refused, self._refused_at = "", 0.0

    async def sign_in(self, request: httpx2.Request, refusal: httpx2.Response) -> None:
        """Let the person sign in, whatever tokens there are.

        Raises:
            AuthorizationError: It came to nothing.
        """
        async with self._lock:
            await self._loaded()
            await self._drive(request, self._wanting(refusal))

    async def prepare(self, request: httpx2.Request) -> None:
        """Show the token that there is, renewed if it has ended.

        Raises:
            AuthorizationError: There is none, and nobody who could sign in.
        """
        async with self._lock:
            context = await self._loaded()
            if not context.is_token_valid() and context.can_refresh_token():
                await self._drive(request, None)
            if self._needs_person and (context.current_tokens is None or self._is_refused(context)):
                raise self._sign_in(self._wanted)
            _show(request, context)

    async def renew(self, request: httpx2.Request, refusal: httpx2.Response) -> None:
        """Have another token for a request that was refused, and show it.

        Raises:
            AuthorizationError: None is to be had.
        """
        shown = request.headers.get("authorization")
        async with self._lock:
            context = await self._loaded()
            _show(request, context)
            if request.headers.get("authorization") != shown:  # another request has had one meanwhile
                return
            if refusal.status_code == _UNAUTHORIZED and context.can_refresh_token():
                context.token_expiry_time = _ENDED
                await self._drive(request, None)
            if context.is_token_valid() and request.headers.get("authorization") != shown:
                return
            if self._needs_person:
                self._wanted = extract_field_from_www_auth(refusal, "scope")
                if refusal.status_code == _UNAUTHORIZED and shown:
                    self._refused, self._refused_at = shown, anyio.current_time()
                raise self._sign_in(self._wanted)
            await self._drive(request, self._wanting(refusal))

    async def _loaded(self) -> OAuthContext:
        if self._provider is None:
            self._provider = await self._make()
        context = self._provider.context
        if context.current_tokens is None:
            try:
                context.current_tokens = await context.storage.get_tokens()
                context.client_info = await context.storage.get_client_info()
            except UpstreamError as error:
                raise AuthorizationError(str(error)) from None
        return context

    async def _drive(self, request: httpx2.Request, refusal: httpx2.Response | None) -> None:
        """Let the provider do what it does around a request, up to where the request would be sent.

        Args:
            request: What is given a token.
            refusal: The upstream's answer to it; None where it was not sent.
        """
        assert self._provider is not None  # noqa: S101  # `_loaded` comes first
        flow, self._complaint = self._provider.async_auth_flow(request), ""
        try:
            outgoing = await anext(flow)
            while True:
                if outgoing is not request:
                    answer = await self._ask(outgoing)
                elif refusal is None:
                    return
                else:
                    answer, refusal = refusal, None
                outgoing = await flow.asend(answer)
        except StopAsyncIteration:  # it has nothing more to do
            return
        except (OAuthFlowError, MirrorError, httpx2.HTTPError, OSError, ValueError) as error:
            self._provider = None
            raise self._failure(error) from None
        finally:
            await flow.aclose()

    async def _ask(self, request: httpx2.Request) -> httpx2.Response:
        """Ask an authorization server: over a client of our own, with bounds, and never in the clear."""
        if not is_private_to_us(str(request.url)):
            raise UpstreamError("it names an authorization server that is not safe to ask (https is needed)")
        with anyio.fail_after(_PATIENCE):
            async with httpx2.AsyncClient(transport=SSRFGuardTransport(self._reach), timeout=_PATIENCE) as client:
                response = await client.send(request, stream=True, follow_redirects=False)
                body = await _bounded(response)
                await response.aclose()
        kept = [(name, value) for name, value in response.headers.raw if name.lower() not in _OF_BODY]
        answer = httpx2.Response(response.status_code, headers=kept, content=body, request=request)
        answer.next_request = response.next_request
        self._note(answer)
        return answer

    def _note(self, answer: httpx2.Response) -> None:
        if answer.status_code < httpx2.codes.BAD_REQUEST:
            return
        try:
            code = answer.json()["error"]
        except (ValueError, KeyError, TypeError, RecursionError):
            code = ""
        told = f", {code}" if isinstance(code, str) and _SAFE.fullmatch(code) else ""
        self._complaint = f" (HTTP status {answer.status_code}{told})"

    def _wanting(self, refusal: httpx2.Response) -> httpx2.Response:
        """The refusal with the scopes that the configuration asks for beside its own."""
        if not self._policy.scopes:
            return refusal
        said = refusal.headers.get("www-authenticate", "Bearer")
        wanted = union_scopes(" ".join(self._policy.scopes), extract_field_from_www_auth(refusal, "scope"))
        rest = _SCOPE.sub("", said).rstrip(" ,")
        challenge = f'{rest}{"," if "=" in rest else ""} scope="{wanted}"'
        return httpx2.Response(refusal.status_code, headers={"www-authenticate": challenge}, request=refusal.request)

    @property
    def _needs_person(self) -> bool:
        """Whether only a person could get tokens, and there is none here."""
        return self._policy.grant == "authorization_code" and not self._person

    def _is_refused(self, context: OAuthContext) -> bool:
        """Whether what there is was refused just now: until somebody signs in it is not shown again and again."""
        assert context.current_tokens is not None  # noqa: S101  # the caller's condition
        is_same = self._refused == f"Bearer {context.current_tokens.access_token}"
        return is_same and anyio.current_time() < self._refused_at + _RESPITE

    def _sign_in(self, scope: str | None) -> AuthorizationError:
        self._provider = None  # somebody may sign in meanwhile
        asked = f" --scope '{self._redactor.clean(scope)}'" if scope and _SCOPES.fullmatch(scope) else ""
        return AuthorizationError(f"somebody has to sign in to it. Run: mcp-mirror login {self._name}{asked}")

    def _failure(self, error: Exception) -> AuthorizationError:
        """What went wrong, in words of ours: the SDK's repeat what servers say."""
        if isinstance(error, AuthorizationError):
            return error
        unreached = "leads to a private address (`allow_private`)" if PRIVATE in str(error) else "could not be reached"
        kind = next((said for of, said in _FAILURES if isinstance(error, of)), unreached)
        told = str(error) if isinstance(error, MirrorError) else f"its authorization server {kind}"
        _logger.warning("No token for upstream %s: %s%s", self._name, told, self._complaint)
        return AuthorizationError(f"there is no token for it: {told}{self._complaint}")

    async def _make(self) -> OAuthClientProvider:
        storage = TokenFile(self._policy.token_file, self._redactor, self._client(), is_new=bool(self._person))
        if self._policy.grant == "client_credentials":
            provider = await self._make_alone(storage)
        else:
            provider = self._make_with_person(storage)
        storage.context = provider.context
        return provider

    def _make_with_person(self, storage: TokenFile) -> OAuthClientProvider:
        person, policy = self._person, self._policy
        metadata = OAuthClientMetadata(
            client_name="mcp-mirror",
            redirect_uris=[AnyUrl(person.redirect_url if person else _NOWHERE)],
            scope=" ".join(policy.scopes) or None,
        )
        return OAuthClientProvider(
            self._url,
            metadata,
            storage,
            person.show if person else None,
            person.wait if person else None,
            policy.client_metadata_url,
        )

    async def _make_alone(self, storage: TokenFile) -> OAuthClientProvider:
        policy = self._policy
        known: dict[str, Any] = {
            "server_url": self._url,
            "storage": storage,
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

    def _client(self) -> OAuthClientInformationFull | None:
        policy = self._policy
        if policy.client_id is None:
            return None
        return OAuthClientInformationFull(
            client_id=policy.client_id,
            client_secret=policy.client_secret,
            token_endpoint_auth_method="client_secret_basic" if policy.client_secret else "none",
            redirect_uris=[AnyUrl(self._person.redirect_url)] if self._person else None,
            scope=" ".join(policy.scopes) or None,
            issuer=policy.issuer,
        )


_OF_BODY: Final = frozenset({b"content-length", b"content-encoding", b"transfer-encoding"})
_FAILURES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (OAuthTokenError, "gave none"),
    (OAuthRegistrationError, "does not register this client; set `auth.oauth.client_id`"),
    (OAuthFlowError, "did not answer as it must"),
    (ValueError, "did not answer as it must"),
)


class AuthorizingTransport(httpx2.AsyncBaseTransport):
    """Sends through `inner`, with a token; once more with another where the first is refused."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, authorizer: Authorizer) -> None:
        self._inner = inner
        self._authorizer = authorizer

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request.

        Raises:
            AuthorizationError: There is no token for it.
        """
        await self._authorizer.prepare(request)
        response = await self._inner.handle_async_request(request)
        if not _is_refused(response):
            return response
        body = await read_beginning(response, _REFUSAL)
        await response.aclose()
        kept = [(name, value) for name, value in response.headers.raw if name.lower() not in _OF_BODY]
        refusal = httpx2.Response(response.status_code, headers=kept, content=body, request=request)
        await self._authorizer.renew(request, refusal)
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


def _is_refused(response: httpx2.Response) -> bool:
    if response.status_code == _FORBIDDEN:
        return extract_field_from_www_auth(response, "error") == "insufficient_scope"
    return response.status_code == _UNAUTHORIZED


def _show(request: httpx2.Request, context: OAuthContext) -> None:
    if context.current_tokens:
        request.headers["authorization"] = f"Bearer {context.current_tokens.access_token}"


async def _bounded(response: httpx2.Response) -> bytes:
    body = await read_beginning(response, _LARGEST + 1)
    if len(body) > _LARGEST:
        raise ValueError
    return body


async def _read_key(path: str) -> str:
    try:
        return await anyio.Path(path).read_text(encoding="ascii")
    except (OSError, ValueError):
        raise AuthorizationError(f"the key {path} that signs for the gateway cannot be read") from None

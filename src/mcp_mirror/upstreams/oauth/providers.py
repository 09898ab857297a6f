"""The OAuth providers of the SDK for upstreams, each with the storage of its tokens.

A person signs in (`authorization_code`), or the gateway authenticates by itself (`client_credentials`), with a secret
or with a private key.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
import msgspec
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata
from pydantic import AnyUrl

from mcp_mirror.errors import UpstreamError
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.settings.access import OAuthPolicy, is_confidential
from mcp_mirror.upstreams.oauth.token_file import TokenFile
from mcp_mirror.upstreams.transports.network_errors import AuthorizationError

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


class Provider(msgspec.Struct, frozen=True):
    """A provider of the SDK, which implements OAuth for one upstream."""

    sdk: OAuthClientProvider
    storage: TokenFile

    @property
    def context(self) -> OAuthContext:
        """The tokens and what is known of the authorization server."""
        return self.sdk.context


async def create_provider(url: str, policy: OAuthPolicy, redactor: Redactor, browser: BrowserSignIn | None) -> Provider:
    """Return a provider for the upstream at a URL; it reads the token file when it is asked for tokens.

    Raises:
        AuthorizationError: The private key cannot be read.
    """
    provider: OAuthClientProvider
    client = _build_configured_client(policy, browser)
    storage = TokenFile(policy.token_file, redactor, client, lambda: provider.context, is_new=browser is not None)
    if policy.grant == "client_credentials":
        provider = await _create_client_provider(url, policy, storage)
    else:
        provider = _create_user_provider(url, policy, storage, browser)
    return Provider(provider, storage)


def _create_user_provider(
    url: str, policy: OAuthPolicy, storage: TokenFile, browser: BrowserSignIn | None
) -> OAuthClientProvider:
    metadata = OAuthClientMetadata(
        client_name="mcp-mirror",
        redirect_uris=[AnyUrl(browser.redirect_url if browser else _UNUSED_REDIRECT)],
        scope=" ".join(policy.scopes) or None,
    )

    async def show(page: str) -> None:
        check_metadata(policy, provider.context)
        if not is_confidential(page):
            raise UpstreamError("its authorization server has a sign-in page without https, which is not safe")
        assert browser is not None  # noqa: S101  # the caller's condition
        await browser.show(_correct_query(page, provider.context))

    provider = OAuthClientProvider(
        url,
        metadata,
        storage,
        show if browser else None,
        browser.wait if browser else None,
        policy.client_metadata_url,
    )
    return provider


async def _create_client_provider(url: str, policy: OAuthPolicy, storage: TokenFile) -> OAuthClientProvider:
    known: dict[str, Any] = {
        "server_url": url,
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


def _build_configured_client(policy: OAuthPolicy, browser: BrowserSignIn | None) -> OAuthClientInformationFull | None:
    """Return the client of the configuration; None if the gateway registers itself."""
    if policy.client_id is None:
        return None
    return OAuthClientInformationFull(
        client_id=policy.client_id,
        client_secret=policy.client_secret,
        token_endpoint_auth_method="client_secret_basic" if policy.client_secret else "none",
        redirect_uris=[AnyUrl(browser.redirect_url)] if browser else None,
        scope=" ".join(policy.scopes) or None,
        issuer=policy.issuer,
    )


def check_metadata(policy: OAuthPolicy, context: OAuthContext) -> None:
    """Check that the endpoints of the authorization server are known, before a browser or a request goes to one.

    Without metadata, the SDK takes the default endpoints at the upstream's own origin, and so would send it the
    client's secret and the person's authorization code.

    Raises:
        UpstreamError: The upstream names an authorization server that has no metadata or registers no clients, or to
            which the configured client does not belong: the SDK would register another client.
    """
    if policy.client_id and context.client_info is None:
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


def _correct_query(url: str, context: OAuthContext) -> str:
    """Return the URL of the page with one `?`: the SDK adds another to an endpoint with a query (RFC 6749, 3.1)."""
    endpoint = str(context.oauth_metadata.authorization_endpoint) if context.oauth_metadata else ""
    return f"{endpoint}&{url[len(endpoint) + 1 :]}" if "?" in endpoint else url


async def _read_key(path: str) -> str:
    try:
        return await anyio.Path(path).read_text(encoding="ascii")
    except (OSError, ValueError):
        raise AuthorizationError(
            f"`private_key` ({path}) cannot be read. Correct its path or its permissions."
        ) from None

"""The file in which the tokens for one upstream are kept, for this user alone to read.

Beside them stands what the SDK needs to renew them after a restart: when they end, who the client is, and which
authorization server they are from. Tokens for one URL are never taken for another.
"""

import json
from pathlib import Path
from typing import Final

from mcp.client.auth import TokenStorage
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken, ProtectedResourceMetadata
from pydantic import BaseModel, ValidationError

from mcp_mirror.errors import UpstreamError
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.system.atomic_write import atomic_write
from mcp_mirror.system.private_files import UnsafePathError, open_secret

_LARGEST: Final = 1 << 20
"""Bytes."""


class _Kept(BaseModel):
    url: str
    tokens: OAuthToken
    ends: float | None = None
    """Seconds since the epoch."""
    client: OAuthClientInformationFull | None = None
    server: OAuthMetadata | None = None
    resource: ProtectedResourceMetadata | None = None


class TokenFile(TokenStorage):
    """Keeps what an OAuth provider of the SDK's gives it, and gives it back with all that belongs to it."""

    def __init__(
        self, path: str, redactor: Redactor, client: OAuthClientInformationFull | None, *, is_new: bool
    ) -> None:
        """Read nothing yet.

        Args:
            path: The file.
            redactor: Learns every token.
            client: Who the configuration says the client is; None: whoever it was registered as.
            is_new: What the file holds is to be replaced, and not used.
        """
        self._path = Path(path)
        self._redactor = redactor
        self._client = client
        self._is_new = is_new
        self.context: OAuthContext | None = None
        """The provider's; set before the provider is used."""

    async def get_tokens(self) -> OAuthToken | None:
        """The tokens; beside, the provider is told when they end and whose they are.

        Raises:
            UpstreamError: The file cannot be read, or others can read it.
        """
        context, kept = self._context, self._load()
        if kept is None:
            return None
        context.token_expiry_time = kept.ends
        context.oauth_metadata = kept.server
        context.protected_resource_metadata = kept.resource
        servers = kept.resource.authorization_servers if kept.resource else ()
        context.auth_server_url = str(servers[0]) if servers else None
        self._hide(kept.tokens)
        return kept.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep tokens; see `TokenStorage`."""
        self._hide(tokens)
        self._save(tokens)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Who the client is."""
        if self._client is not None:
            return self._client
        kept = self._load()
        return kept.client if kept else None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep who the client was registered as: together with its tokens, if any come."""
        if client_info.client_secret:
            self._redactor.learn(client_info.client_secret)

    @property
    def _context(self) -> OAuthContext:
        assert self.context is not None  # noqa: S101  # set with the provider
        return self.context

    def _hide(self, tokens: OAuthToken) -> None:
        for secret in (tokens.access_token, tokens.refresh_token):
            if secret:
                self._redactor.learn(secret)

    def _load(self) -> _Kept | None:
        if self._is_new:
            return None
        try:
            with open(open_secret(self._path), "rb") as file:  # noqa: PTH123  # a descriptor
                kept = _Kept.model_validate_json(file.read(_LARGEST))
        except FileNotFoundError:
            return None
        except UnsafePathError as error:
            raise UpstreamError(str(error)) from None
        except ValidationError:  # whose message would show what is in it
            raise UpstreamError(f"The tokens in {self._path} cannot be read. Remove the file.") from None
        except OSError as error:
            raise UpstreamError(f"The tokens in {self._path} cannot be read: {error.strerror}.") from None
        return kept if kept.url == self._context.server_url else None

    def _save(self, tokens: OAuthToken) -> None:
        context = self._context
        kept = _Kept(
            url=context.server_url,
            tokens=tokens,
            ends=context.token_expiry_time,
            client=None if self._client else context.client_info,
            server=context.oauth_metadata,
            resource=context.protected_resource_metadata,
        )
        text = json.dumps(kept.model_dump(mode="json", exclude_none=True))
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic_write(self._path, (text.encode(),))
        except OSError as error:
            raise UpstreamError(f"Tokens cannot be kept in {self._path}: {error.strerror}.") from None

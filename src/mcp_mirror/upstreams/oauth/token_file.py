"""The file with the OAuth tokens for one upstream, readable only by this user.

It also contains the data with which the SDK refreshes the tokens after a restart: expiry, client registration and
metadata of the authorization server. Tokens of one URL are never used for another.
"""

import json
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
from mcp.client.auth import TokenStorage
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken, ProtectedResourceMetadata
from pydantic import BaseModel, ValidationError

from mcp_mirror.errors import UpstreamError
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.system.files import (
    NO_LOCKS,
    UnsafePathError,
    atomic_write,
    create_folder,
    open_lock,
    open_secret,
    try_lock,
)
from mcp_mirror.system.patterns import lazy_pattern

_logger = logging.getLogger(__name__)

_MAX_BYTES: Final = 1 << 20
"""Bytes of the file."""
_LOCK_TIMEOUT: Final = 25.0
"""Seconds to wait for another gateway; a refresh takes at most 20."""
_PAUSE: Final = 0.02
_TOKEN: Final = lazy_pattern(r"[!-~](?:[ -~]*[!-~])?")
"""An access token (RFC 6749, appendix A.12), without spaces around it."""
_SECRET: Final = lazy_pattern(r"[ -~]*")
"""A refresh token, and the secret of a client (RFC 6749, appendices A.2 and A.17)."""
_MAX_SECRET: Final = 1 << 16
"""Characters of a token, and of the secret of a client."""
_EXPIRED: Final = 1.0
"""A time in the past, in seconds since the epoch."""


class _StoredTokens(BaseModel):
    url: str
    tokens: OAuthToken
    ends: float | None = None
    """Seconds since the epoch."""
    client: OAuthClientInformationFull | None = None
    server: OAuthMetadata | None = None
    resource: ProtectedResourceMetadata | None = None


class TokenFile(TokenStorage):
    """Stores the tokens of an OAuth provider of the SDK, with the data that refreshing them needs."""

    def __init__(
        self,
        path: str,
        redactor: Redactor,
        client: OAuthClientInformationFull | None,
        get_context: Callable[[], OAuthContext],
        *,
        is_new: bool,
    ) -> None:
        """Create a storage; it reads the file when the provider asks for tokens.

        `client` is that of the configuration; None: the one that was registered. `get_context` returns the context of
        the provider that uses the storage. `is_new`: replace the content of the file without using it.
        """
        self._path = Path(path)
        self._redactor = redactor
        self._client = client
        self._get_context = get_context
        self._is_new = is_new
        self._rejected = ""
        """The access token that the upstream rejected last."""

    def reject(self, tokens: OAuthToken) -> None:
        """Note that the upstream rejected tokens before their time: they have expired, also in the file."""
        self._rejected = tokens.access_token
        self._get_context().token_expiry_time = _EXPIRED

    @asynccontextmanager
    async def lock(self) -> AsyncIterator[None]:
        """Wait until no other gateway refreshes the tokens in the file, and keep others from it.

        Where files cannot be locked, and after a bounded time, it continues without the lock.
        """
        try:
            file = open_lock(self._path.with_name(f".{self._path.name}.lock"))
        except OSError:
            yield
            return
        try:
            with anyio.move_on_after(_LOCK_TIMEOUT):
                while not _is_locked_now(file):  # noqa: ASYNC110  # another process unlocks it
                    await anyio.sleep(_PAUSE)
            yield
        finally:
            os.close(file)

    async def get_tokens(self) -> OAuthToken | None:
        """Return the tokens, and set their expiry and authorization server in the provider's context.

        Raises:
            UpstreamError: The file cannot be read, or other users can read it.
        """
        context, stored = self._get_context(), self._load()
        if stored is None:
            return None
        context.token_expiry_time = _EXPIRED if stored.tokens.access_token == self._rejected else stored.ends
        context.oauth_metadata = stored.server
        context.protected_resource_metadata = stored.resource
        servers = stored.resource.authorization_servers if stored.resource else ()
        context.auth_server_url = str(servers[0]) if servers else None
        self._redact(stored.tokens)
        return stored.tokens

    def check_writable(self) -> None:
        """Write a refresh token again: the next one may replace it only if the file can be written.

        Raises:
            UpstreamError: The file cannot be written.
        """
        if (stored := self._load()) and stored.tokens.refresh_token:
            self._write(stored)

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Write tokens; see `TokenStorage`.

        Raises:
            UpstreamError: A token is not one, or the file cannot be written. Without a refresh token, the tokens are
                then only in memory, because the next ones need no earlier ones.
        """
        if not _TOKEN.fullmatch(tokens.access_token):  # else each request would fail until the token expires
            raise UpstreamError("its authorization server returned a token that no header may contain")
        for secret in (tokens.access_token, tokens.refresh_token):
            _check_secret(secret or "")
        self._redact(tokens)
        if self._is_new:  # written last, so that a gateway does not replace them by earlier ones that it refreshes now
            async with self.lock():
                self._save(tokens)
        else:
            self._save(tokens)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the client of the configuration, or the registered one."""
        if self._client is not None:
            return self._client
        stored = self._load()
        return stored.client if stored else None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Note the secret of a registered client; the registration is written with the first tokens.

        Raises:
            UpstreamError: The secret is not one.
        """
        if client_info.client_secret:
            _check_secret(client_info.client_secret)
            self._redactor.learn(client_info.client_secret)

    def _redact(self, tokens: OAuthToken) -> None:
        for secret in (tokens.access_token, tokens.refresh_token):
            if secret:
                self._redactor.learn(secret)

    def _load(self) -> _StoredTokens | None:
        if self._is_new:
            return None
        try:
            with open(open_secret(self._path), "rb") as file:  # noqa: PTH123  # a descriptor
                stored = _StoredTokens.model_validate_json(file.read(_MAX_BYTES))
        except FileNotFoundError:
            return None
        except UnsafePathError as error:
            raise UpstreamError(str(error)) from None
        except ValidationError:  # its message would show the content
            raise UpstreamError(f"The tokens in {self._path} cannot be read. Remove the file.") from None
        except OSError as error:
            raise UpstreamError(f"The tokens in {self._path} cannot be read: {error.strerror}.") from None
        return stored if stored.url == self._get_context().server_url else None

    def _save(self, tokens: OAuthToken) -> None:
        context = self._get_context()
        stored = _StoredTokens(
            url=context.server_url,
            tokens=tokens,
            ends=context.token_expiry_time,
            client=None if self._client else context.client_info,
            server=context.oauth_metadata,
            resource=context.protected_resource_metadata,
        )
        try:
            self._write(stored)
        except UpstreamError as error:
            if self._is_new or tokens.refresh_token:
                raise
            _logger.warning("The token for %s is only in memory: %s.", self._redactor.clean(stored.url), error)

    def _write(self, stored: _StoredTokens) -> None:
        text = json.dumps(stored.model_dump(mode="json", exclude_none=True))
        try:
            create_folder(self._path.parent)
            atomic_write(self._path, (text.encode(),))
        except OSError as error:
            raise UpstreamError(f"its tokens cannot be written to {self._path}: {error.strerror}") from None


def _check_secret(secret: str) -> None:
    if len(secret) > _MAX_SECRET or not _SECRET.fullmatch(secret):
        raise UpstreamError(
            "its authorization server returned a token or a client secret that is not ASCII text of up to "
            f"{_MAX_SECRET:,} characters"
        )


def _is_locked_now(file: int) -> bool:
    """Lock a file unless another process has; return whether waiting is over."""
    try:
        try_lock(file)
    except OSError as error:
        return error.errno in NO_LOCKS
    return True

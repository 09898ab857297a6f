"""An issuer's public keys (JWKS, RFC 7517): from a file or a URL, kept for a while.

A token may name a key that has come meanwhile: then they are asked for anew, but not oftener than strangers may make us
ask.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import httpx2
import jwt

from mcp_mirror.errors import MirrorError
from mcp_mirror.payload.content_encodings import read_beginning
from mcp_mirror.security.ssrf_guard import AddressPolicy, SSRFGuardTransport

_logger = logging.getLogger(__name__)

_FRESH: Final = 600.0
"""Seconds for which keys are not asked for again."""
_STALE: Final = 86_400.0
"""Seconds for which they are used where they cannot be had again."""
_PAUSE: Final = 10.0
"""Seconds between two times that a key which we do not know makes us ask."""
_LARGEST: Final = 1 << 18
"""Bytes."""
_PATIENCE: Final = 5.0
"""Seconds that asking may take."""


class KeysUnavailableError(MirrorError):
    """An issuer's keys cannot be had: whose a token is cannot be told now."""


class Keys:
    """The keys of one issuer."""

    def __init__(self, source: str, clock: Callable[[], float], *, allow_private: bool = False) -> None:
        """Ask for none yet.

        Args:
            source: A URL or a file.
            clock: Seconds that only grow.
            allow_private: A name that looks public may have a private address.
        """
        self._allow_private = allow_private
        self._source = source
        self._clock = clock
        self._keys: Sequence[Mapping[str, Any]] = ()
        self._had = -_STALE
        self._asked = -_FRESH
        self._lock = anyio.Lock()

    async def find(self, kid: str | None, algorithm: str) -> jwt.PyJWK | None:
        """The key that a token names, for an algorithm; None where the issuer has none.

        Args:
            kid: The key's name; None where the token has none, and only one key fits.
            algorithm: One that the configuration allows.

        Raises:
            KeysUnavailableError: They cannot be had.
        """
        if self._clock() - self._asked >= _FRESH:
            await self._refresh(_FRESH)
        found = self._choose(kid, algorithm)
        if found is None and self._clock() - self._asked >= _PAUSE:
            await self._refresh(_PAUSE)
            found = self._choose(kid, algorithm)
        if self._clock() - self._had >= _STALE:
            raise KeysUnavailableError("The keys that tokens are checked with cannot be had now. Try again later.")
        return found

    def _choose(self, kid: str | None, algorithm: str) -> jwt.PyJWK | None:
        fitting = [key for key in self._keys if kid is None or key.get("kid") == kid]
        usable = [key for one in fitting if (key := _usable(one, algorithm))]
        return usable[0] if len(usable) == 1 or (usable and kid is not None) else None

    async def _refresh(self, pause: float) -> None:
        async with self._lock:
            if self._clock() - self._asked < pause:  # another request has asked meanwhile
                return
            try:
                self._keys = _read(await self._fetch())
                self._had = self._clock()
            except (OSError, ValueError, RecursionError, httpx2.HTTPError) as error:
                _logger.warning("The keys of an issuer cannot be had: %s", type(error).__name__)
            finally:  # and not before: who comes meanwhile waits for them
                self._asked = self._clock()

    async def _fetch(self) -> bytes:
        if self._source.startswith(("https://", "http://")):
            with anyio.fail_after(_PATIENCE):
                return await _download(self._source, AddressPolicy.of(self._source, everywhere=self._allow_private))
        return await anyio.to_thread.run_sync(_read_file, self._source)


async def _download(url: str, reach: AddressPolicy) -> bytes:
    """What is at a URL, and nowhere else: where it leads elsewhere, that is not asked."""
    async with (
        httpx2.AsyncClient(transport=SSRFGuardTransport(reach), timeout=_PATIENCE, follow_redirects=False) as client,
        client.stream("GET", url, headers={"accept": "application/json", "accept-encoding": "identity"}) as response,
    ):
        if response.status_code != httpx2.codes.OK:
            raise ValueError
        body = await read_beginning(response, _LARGEST + 1)
    if len(body) > _LARGEST:
        raise ValueError
    return body


def _read_file(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(_LARGEST)


def _read(text: bytes) -> Sequence[Mapping[str, Any]]:
    """Raises `ValueError` for what is no JWKS."""
    read = json.loads(text)
    keys = read.get("keys") if isinstance(read, dict) else None
    if not isinstance(keys, list):
        raise ValueError  # noqa: TRY004  # what was read is wrong, not who called
    return [key for key in keys if isinstance(key, dict)]


def _usable(key: Mapping[str, Any], algorithm: str) -> jwt.PyJWK | None:
    """The key for checking this algorithm's signatures; None where it is for something else."""
    if key.get("use", "sig") != "sig" or key.get("alg", algorithm) != algorithm or key.get("kty") == "oct":
        return None
    try:
        return jwt.PyJWK(dict(key), algorithm)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None

"""The last listing of each upstream on disk, so that the first `tools/list` after a start is complete at once.

A file is named by a digest of how the upstream is started or reached. Secrets are redacted before they get into the
digest, and environment variables and headers count by their names only.
"""

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import msgspec

from mcp_mirror.errors import MirrorError
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.settings.policies import HttpEndpoint, StdioEndpoint, UpstreamPolicy
from mcp_mirror.system.atomic_write import DRAFT_NAMES, atomic_write
from mcp_mirror.system.private_files import open_folder, open_secret
from mcp_mirror.upstreams.session import Listing

_VERSION: Final = 1
_LARGEST: Final = 1 << 22
"""Bytes of a listing that is kept."""
_MOST: Final = 200
"""Listings that are kept; the oldest are removed."""
_NAMES: Final = ("*.json", "*.json.*", DRAFT_NAMES)

log = logging.getLogger(__name__)


class KeptListing(msgspec.Struct):
    """What an upstream listed in an earlier run."""

    version: int
    tools: list[msgspec.Raw]
    instructions: str | None
    protocol_version: str
    server: str
    capabilities: dict[str, Any]


class ListingCache:
    """Reads and writes listings. A file that cannot be used is reported in the log and ignored."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[str, bytes] = {}

    async def load(
        self, policy: UpstreamPolicy, redactor: Redactor, capabilities: Mapping[str, Any]
    ) -> KeptListing | None:
        """The last listing of an upstream with this configuration, for a client with these capabilities, if any."""
        name = _name_of(policy, redactor, capabilities)
        try:
            raw = await anyio.to_thread.run_sync(_read, self._folder / name)
            kept = msgspec.json.decode(raw, type=KeptListing)
        except FileNotFoundError:
            return None
        except (OSError, MirrorError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            log.warning("The listing of upstream %s in %s is not used: %s", policy.name, self._folder / name, error)
            return None
        self._written[name] = raw
        return kept if kept.version == _VERSION else None

    async def save(
        self, policy: UpstreamPolicy, redactor: Redactor, capabilities: Mapping[str, Any], listing: Listing
    ) -> None:
        """Keep a listing, unless it is too large or kept already."""
        name = _name_of(policy, redactor, capabilities)
        if listing.size > _LARGEST:
            return
        try:
            raw = msgspec.json.encode(
                {
                    "version": _VERSION,
                    "tools": listing.tools,
                    "instructions": listing.instructions,
                    "protocol_version": listing.protocol_version,
                    "server": listing.server,
                    "capabilities": listing.capabilities,
                }
            )
            if len(raw) <= _LARGEST and self._written.get(name) != raw:
                await anyio.to_thread.run_sync(_write, self._folder, name, raw)
                self._written[name] = raw
        except (OSError, MirrorError, UnicodeEncodeError, OverflowError) as error:
            log.warning("The listing of upstream %s cannot be kept in %s: %s", policy.name, self._folder, error)


def _read(path: Path) -> bytes:
    with open(open_secret(path), "rb") as file:  # noqa: PTH123  # a descriptor
        return file.read(_LARGEST + 1)


def _write(folder: Path, name: str, raw: bytes) -> None:
    open_folder(folder, _NAMES)
    atomic_write(folder / name, (raw,))
    kept = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in kept[_MOST:]:
        path.unlink(missing_ok=True)


def _name_of(policy: UpstreamPolicy, redactor: Redactor, capabilities: Mapping[str, Any]) -> str:
    """Some servers list other tools for clients with other capabilities, such as roots."""
    client = sorted(capabilities)
    identity = {"name": policy.name, "scope": policy.scope, "client": client, **_identity_of(policy, redactor)}
    return f"{hashlib.sha256(msgspec.json.encode(identity, order='sorted')).hexdigest()[:40]}.json"


def _identity_of(policy: UpstreamPolicy, redactor: Redactor) -> Mapping[str, Any]:
    endpoint = policy.endpoint
    if isinstance(endpoint, StdioEndpoint):
        args = [redactor.clean(argument) for argument in endpoint.args]
        return {"command": endpoint.command, "args": args, "env": sorted(endpoint.env), "cwd": endpoint.cwd}
    if isinstance(endpoint, HttpEndpoint):
        return {"url": redactor.clean(endpoint.url), "headers": sorted(endpoint.headers), "sse": endpoint.legacy_sse}
    return {}

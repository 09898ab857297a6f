"""The listing of an upstream: its tools, its instructions, pages of its other lists; and a cache of it on disk.

With the cache, the first `tools/list` after a start is complete at once. The name of a file is a digest of how the
upstream is started or reached. Secrets are redacted first; of environment variables and headers the digest has only
the names.
"""

import hashlib
import logging
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import anyio.to_thread
import msgspec
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec.structs import replace

from mcp_mirror.core.schemas.tool_inspection import InspectedTool
from mcp_mirror.errors import MirrorError
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.settings.upstreams import HttpEndpoint, StdioEndpoint, UpstreamPolicy
from mcp_mirror.system.files import UNFINISHED_NAMES, atomic_write, open_folder, open_secret
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.system.slices import Steps
from mcp_mirror.types import Buffer

CacheScope = Literal["public", "private"]

RawTool = Mapping[str, Any]
"""A tool as its upstream lists it, unknown members included."""
_MAX_ITEMS: Final = 100_000
"""Items of a list, all pages together: an item of one byte takes several hundred bytes of memory."""
_VERSION: Final = 1
_MAX_BYTES: Final = 1 << 22
"""Bytes of a listing; larger ones are not kept."""
_MAX_LISTINGS: Final = 200
"""Listings in the cache; the oldest are removed."""
_ADDRESS: Final = lazy_pattern(r"https?://\S+")
_NAMES: Final = ("*.json", "*.json.*", UNFINISHED_NAMES)

_logger = logging.getLogger(__name__)


class Listing(msgspec.Struct, frozen=True, dict=True):
    """The tools and the description of an upstream, read after the handshake."""

    tools: tuple[RawTool, ...]
    instructions: str | None
    protocol_version: str
    server: str
    capabilities: Mapping[str, Any] = msgspec.field(default_factory=dict)
    hints: tuple[tuple[int | None, str | None], ...] = ()
    """`ttlMs` and `cacheScope` of each page of the tools."""
    problems: tuple[str, ...] = ()
    """Problems of the listing, a sentence each, for an operator."""
    inspected: tuple[InspectedTool, ...] = ()
    """The results of inspecting the tools."""
    size: int = 0
    """Bytes of the tools as listed."""
    info: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """How the server describes itself: name, title, version."""
    is_stale: bool = False
    """The listing is from an earlier run: the upstream has not connected yet."""

    @cached_property
    def is_stateless(self) -> bool:
        """The upstream uses protocol version 2026-07-28 or later."""
        return self.protocol_version in MODERN_PROTOCOL_VERSIONS


class PagedList(msgspec.Struct):
    """All pages of a list joined; items are the bytes that the upstream sent."""

    items: list[Buffer] = msgspec.field(default_factory=list)
    hints: list[tuple[int | None, str | None]] = msgspec.field(default_factory=list)
    cut: str | None = None
    """The limit that cut the list off; None if the list is complete."""
    size: int = 0
    """Bytes of the items."""

    def add(self, items: Iterable[Buffer], limit: int) -> Steps[None]:
        """Add a page, up to `limit` bytes and 100,000 items in total, one item a step."""
        for item in items:
            self.size += len(item)
            if self.size > limit:
                self.cut = f"`limits.max_listing_bytes` ({limit:,})"
                return
            if len(self.items) == _MAX_ITEMS:
                self.cut = f"the limit of {_MAX_ITEMS:,} items"
                return
            self.items.append(item)
            yield


class CachedListing(msgspec.Struct):
    """The listing of an earlier run."""

    version: int
    tools: list[msgspec.Raw]
    instructions: str | None
    protocol_version: str
    server: str
    capabilities: dict[str, Any]
    info: dict[str, Any]


class ListingCache:
    """Reads and writes listings. A file that cannot be read is logged and ignored."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[str, bytes] = {}
        self._is_failing = False
        """The system has refused a file."""

    async def load(
        self, policy: UpstreamPolicy, redactor: Redactor, capabilities: Mapping[str, Any]
    ) -> CachedListing | None:
        """Return the last listing of an upstream with this configuration, for a client with these capabilities."""
        name = _name_of(policy, redactor, capabilities)
        try:
            raw = await anyio.to_thread.run_sync(_read, self._folder / name)
            cached = msgspec.json.decode(raw, type=CachedListing)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._report_failure(error)
            return None
        except (MirrorError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            _logger.warning("The listing of upstream %s in %s is not used: %s", policy.name, self._folder / name, error)
            return None
        self._written[name] = raw
        return cached if cached.version == _VERSION else None

    async def save(
        self, policy: UpstreamPolicy, redactor: Redactor, capabilities: Mapping[str, Any], listing: Listing
    ) -> None:
        """Write a listing, unless it is too large or unchanged."""
        name = _name_of(policy, redactor, capabilities)
        if listing.size > _MAX_BYTES:
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
                    "info": listing.info,
                }
            )
            if len(raw) <= _MAX_BYTES and self._written.get(name) != raw:
                await anyio.to_thread.run_sync(_write, self._folder, name, raw)
                self._written[name] = raw
                self._is_failing = False
        except OSError as error:
            self._report_failure(error)
        except (MirrorError, UnicodeEncodeError, OverflowError) as error:
            _logger.warning("The listing of upstream %s cannot be written to %s: %s", policy.name, self._folder, error)

    def _report_failure(self, error: OSError) -> None:
        """Log the first failure of the system: the others have the same cause."""
        if not self._is_failing:
            self._is_failing = True
            _logger.warning(
                "Listings of upstreams cannot be kept in %s: %s. Until that is corrected, each start waits for its "
                "upstreams.",
                self._folder,
                error.strerror or error,
            )


def _read(path: Path) -> bytes:
    with open(open_secret(path), "rb") as file:  # noqa: PTH123  # a descriptor
        return file.read(_MAX_BYTES + 1)


def _write(folder: Path, name: str, raw: bytes) -> None:
    open_folder(folder, _NAMES)
    atomic_write(folder / name, (raw,))
    for path in sorted(folder.glob("*.json"), key=_read_time, reverse=True)[_MAX_LISTINGS:]:
        path.unlink(missing_ok=True)


def _read_time(path: Path) -> float:
    """Return when a file was written; 0 for one that another gateway has removed."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _name_of(policy: UpstreamPolicy, redactor: Redactor, capabilities: Mapping[str, Any]) -> str:
    """Return the name of the file. Some servers list other tools for clients with other capabilities, such as roots."""
    client = sorted(capabilities)
    identity = {"name": policy.name, "scope": policy.scope, "client": client, **_describe_identity(policy, redactor)}
    return f"{hashlib.sha256(msgspec.json.encode(identity, order='sorted')).hexdigest()[:40]}.json"


def _describe_identity(policy: UpstreamPolicy, redactor: Redactor) -> Mapping[str, Any]:
    endpoint = policy.endpoint
    if isinstance(endpoint, StdioEndpoint):
        args = [_describe_argument(argument, endpoint, redactor) for argument in endpoint.args]
        names = [] if endpoint.is_wrapped else sorted(endpoint.env)  # a whole environment has other names in each shell
        return {"command": endpoint.command, "args": args, "env": names, "cwd": endpoint.cwd}
    if isinstance(endpoint, HttpEndpoint):
        return {"url": redactor.clean(endpoint.url), "headers": sorted(endpoint.headers), "sse": endpoint.legacy_sse}
    return {}


def _describe_argument(argument: str, endpoint: StdioEndpoint, redactor: Redactor) -> str:
    """Return an argument without secrets; of one with an address, the address as of an upstream's `url`.

    Bridges such as `npx mcp-remote https://...` start servers that only the address tells apart.
    """
    address = _ADDRESS.search(argument)
    if address is None:
        return redactor.clean(argument)
    return Redactor(replace(endpoint, args=())).clean(Redactor(HttpEndpoint(url=address[0])).clean(address[0]))

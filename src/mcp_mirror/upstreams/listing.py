"""What an upstream lists: its tools, its instructions, and pages of its other lists."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_mirror.core.tool_inspection import InspectedTool
from mcp_mirror.payload.floods import Steps
from mcp_mirror.types import Buffer

RawTool = Mapping[str, Any]
"""A tool as its upstream lists it, unknown members included."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The tools and the description of an upstream, read after the handshake."""

    tools: tuple[RawTool, ...]
    instructions: str | None
    protocol_version: str
    server: str
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    hints: tuple[tuple[int | None, str | None], ...] = ()
    """`ttlMs` and `cacheScope` of each page of the tools."""
    problems: tuple[str, ...] = ()
    """Problems of the listing, a sentence each, for an operator."""
    examined: tuple[InspectedTool, ...] = ()
    """The results of examining the tools."""
    size: int = 0
    """Bytes of the tools as listed."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """How the server describes itself: name, title, version."""
    is_stale: bool = False
    """The listing is from an earlier run: the upstream has not connected yet."""

    @property
    def is_stateless(self) -> bool:
        """Whether the upstream uses protocol version 2026-07-28 or later."""
        return self.protocol_version in MODERN_PROTOCOL_VERSIONS


@dataclass(slots=True)
class Page:
    """All pages of a list joined; items are the bytes that the upstream sent."""

    items: list[Buffer] = field(default_factory=list)
    hints: list[tuple[int | None, str | None]] = field(default_factory=list)
    cut: str | None = None
    """The limit that cut the list off; None if the list is complete."""
    size: int = 0
    """Bytes of the items."""

    def add(self, items: Iterable[Buffer], limit: int) -> Steps[None]:
        """Add a page, up to `limit` bytes in total, one item a step."""
        for item in items:
            self.size += len(item)
            if self.size > limit:
                self.cut = f"`limits.max_listing_bytes` ({limit:,})"
                return
            self.items.append(item)
            yield

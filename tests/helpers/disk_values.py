"""Values for a store on disk, and a store of a short lifetime by a clock that a test sets."""

from pathlib import Path
from typing import Any

from clocks import Clock

from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.disk.store import DiskStore
from mcp_mirror.types import Descriptor, FileSpan, Provenance

TTL = 1000.0
BASE = "grid-01234567-89ab-4cde-8f01-23456789abcd"
SMALL, LARGE = b'{"a":[1]}', b"0123456789abcdef" * 10_000


def opened(folder: Path, clock: Clock, **policy: Any) -> DiskStore:
    """Return a store in a folder, whose values expire after `TTL`; a test opens it as a context."""
    return DiskStore(StorePolicy(**{"ttl": TTL, **policy}), clock, folder)


async def put(store: DiskStore, clock: Clock, base: str, blob: bytes, file: FileSpan | None = None) -> Descriptor:
    """Store a value, and return its descriptor."""
    known = Descriptor(base, "text", len(blob), 7, (), clock.now, clock.now + TTL, Provenance("up", "grid", "0" * 64))
    await store.put("me", known, (blob,), file)
    return known


async def read(store: DiskStore, base: str) -> bytes:
    """Return the bytes of a value; none if it does not exist."""
    return bytes((await store.read("me", base)) or b"")

"""How much a store takes, and what it says of more. Every store obeys these; none is known here."""

from dataclasses import replace
from typing import Final

from mcp_mirror.errors import StoreError
from mcp_mirror.models import Descriptor
from mcp_mirror.policies import StorePolicy
from mcp_mirror.stores.base import Reason, Tombstone

MAX_TOMBSTONES: Final = 10_000
REMEMBERED: Final = 30 * 86_400.0
"""Seconds for which a tombstone is kept."""

_BOUNDS: Final = {
    "max_value_bytes": "one value may have",
    "namespace_bytes": "the values of one principal may have",
    "max_bytes": "the store holds",
}


def refuse_oversized(size: int, policy: StorePolicy) -> None:
    """Refuse a value that would not fit into an empty store; any other fits once others have made room.

    Raises:
        StoreError: It is over a bound; the message names which.
    """
    for name, said in _BOUNDS.items():
        if size > (bound := getattr(policy, name)):
            raise StoreError(
                f"The result has {size:,} bytes and {said} {bound:,} (`store.{name}`). Ask the tool for less."
            )


def buried(descriptor: Descriptor, reason: Reason, at: float) -> Tombstone:
    """What is left of a value: where it came from, and no more."""
    return Tombstone(replace(descriptor, members=(), envelope=b"{}"), reason, at)

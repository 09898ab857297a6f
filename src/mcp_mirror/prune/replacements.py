"""Computes the path of a pruned part, and replaces values in messages."""

import hashlib
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from mcp_mirror.paths import PRUNED_LABEL, new_base
from mcp_mirror.prune.formats import Slot
from mcp_mirror.prune.stubs import Domain
from mcp_mirror.types import Buffer, Location


def compute_path(slot: Slot, domain: Domain, blob: Buffer) -> str:
    """The path of a pruned part, derived from its content and owner: the same part always has the same path."""
    digest = hashlib.sha256(f"{domain}\0{slot.owner}\0".encode())
    digest.update(blob)
    return new_base(PRUNED_LABEL, UUID(bytes=digest.digest()[:16], version=4))


def replace_values(changes: Mapping[Location, Any], node: Any) -> Any:
    """A JSON value with other values at some locations; the copy shares everything else with it."""
    if () in changes:
        return changes[()]
    below: dict[Any, dict[Location, Any]] = {}
    for (step, *rest), value in changes.items():
        below.setdefault(step, {})[tuple(rest)] = value
    copy = node.copy()
    for step, inner in below.items():
        copy[step] = replace_values(inner, node[step])
    return copy

"""From a memory path to the bytes behind it, or to an error that says what to do instead."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import SequenceMatcher
from typing import Final

from mcp_mirror.errors import ToolError
from mcp_mirror.models import Buffer, Descriptor, Kind, Span
from mcp_mirror.notice import quoted
from mcp_mirror.paths import MemoryPath
from mcp_mirror.spans import Miss, kind_at, locate
from mcp_mirror.stores.base import Store, Tombstone

_NEAREST: Final = 3
_KEYS: Final = 12
_KEY: Final = 80


@dataclass(frozen=True, slots=True)
class Recalled:
    """What a path leads to."""

    path: MemoryPath
    blob: Buffer
    kind: Kind


async def recall(store: Store, namespace: str, path: MemoryPath) -> Recalled | None:
    """The value behind a path; None where nothing is or was stored under its base.

    Raises:
        ToolError: The value is gone, or has no such key.
    """
    described = await store.describe(namespace, path.base)
    if described is None:
        return None
    if isinstance(described, Tombstone):
        raise ToolError(_gone(path, described))
    member = next((member for member in described.members if path.tokens[:1] == (member.key,)), None)
    blob = await store.read(namespace, path.base, member.span if member else None)
    if blob is None:
        raise ToolError(f"The value of {str(path)!r} has just gone. Call the tool that made it again.")
    return _below(path, described, blob, path.tokens[1:] if member else path.tokens)


async def unknown_path(store: Store, namespace: str, text: str) -> ToolError:
    """What to answer for a path under which nothing is stored: the nearest of the caller's own."""
    bases = [descriptor.base for descriptor in await store.list(namespace)]
    nearest = [f'"{base}"' for base in nearest_first(text.partition("/")[0], bases)[:_NEAREST]]
    advice = f"Nearest are {', '.join(nearest)}." if nearest else "Nothing is stored yet: call a tool first."
    return ToolError(f"No value is stored under {quoted(text, 160)}. {advice} Copy a path to the letter.")


def nearest_first(text: str, names: Iterable[str]) -> list[str]:
    """Names in the order of their likeness to `text`."""
    return sorted(names, key=lambda name: -SequenceMatcher(None, text, name).quick_ratio())


def _below(path: MemoryPath, descriptor: Descriptor, blob: Buffer, tokens: tuple[str, ...]) -> Recalled:
    found = locate(blob, tokens)
    if isinstance(found, Miss):
        raise ToolError(_miss(path, len(path.tokens) - len(tokens) + found.depth, found))
    if path.tokens:
        return Recalled(path, memoryview(blob)[found.start : found.stop], kind_at(blob, found.start))
    return Recalled(path, _untrimmed(blob, found, descriptor.kind), descriptor.kind)


def _untrimmed(blob: Buffer, found: Span, kind: Kind) -> Buffer:
    """A whole JSON document keeps the white space around it: it goes to a string argument as the very text it was."""
    return blob if kind in ("object", "array") else memoryview(blob)[found.start : found.stop]


def _miss(path: MemoryPath, depth: int, miss: Miss) -> str:
    here = str(MemoryPath(path.base, path.tokens[:depth]))
    token = path.tokens[depth]
    if miss.kind == "object":
        keys = nearest_first(token, miss.keys)
        listed = ", ".join(quoted(str(MemoryPath("", (key,))), _KEY) for key in keys[:_KEYS])
        more = f" and {len(keys) - _KEYS:,} more" if len(keys) > _KEYS else ""
        there = f"There is {listed}{more}." if keys else "It is an empty object."
    elif miss.kind == "array":
        there = f"It is an array whose items are 0 to {miss.length - 1}." if miss.length else "It is an empty array."
    else:
        there = f"It is {miss.kind} and has nothing below it: use that path."
    return f'Under "{here}" there is no key {quoted(token, _KEY)}. {there}'


def _gone(path: MemoryPath, tombstone: Tombstone) -> str:
    at = datetime.fromtimestamp(tombstone.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    provenance = tombstone.descriptor.provenance
    return (
        f'The value of "{path}" {_REASONS[tombstone.reason]} at {at}. It came from tool {provenance.tool!r} of '
        f"upstream {provenance.upstream!r}: call it again and use the new path."
    )


_REASONS: Final = {"expired": "expired", "evicted": "was evicted to make room"}

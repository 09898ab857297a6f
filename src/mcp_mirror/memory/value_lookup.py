"""From a memory path to the bytes behind it, or to an error that says what to do instead."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from difflib import SequenceMatcher
from typing import Final

import anyio.to_thread

from mcp_mirror.core.capture import unwrapped_key
from mcp_mirror.core.media import read_media
from mcp_mirror.errors import ToolError
from mcp_mirror.paths import MemoryPath, bases_in_notice, label_of, label_of_near_miss, position_token, unescape_token
from mcp_mirror.payload.json_rpc import MAX_VALUES, has_more_values
from mcp_mirror.payload.json_spans import Miss, kind_at, locate
from mcp_mirror.security.sanitize import as_json_string
from mcp_mirror.stores.base import Store, Tombstone
from mcp_mirror.types import Buffer, Descriptor, FileSpan, Kind, Location, Member, Span
from mcp_mirror.workers.frames import FrameScanner

_AT_ONCE: Final = 1 << 17
"""Bytes up to which a value is searched without leaving the event loop: what it costs goes by its keys."""
_APART: Final = 1 << 23
"""Bytes from which on it is searched in another process, where it is in a file."""
_LISTED: Final = 2000
"""Keys among which the nearest to one that is not there are looked for."""
_NEAREST: Final = 3
_RECENT: Final = 64
"""Of a caller's values, as many of the newest are compared with a path that is not there."""
_BESIDE: Final = 6
"""And as many on each side of where that path would stand in alphabetical order."""
_LIKE: Final = 0.5
"""From this ratio of equal characters on, one name is worth naming for another."""
_TELLING: Final = 3
"""Characters from which on a name that stands in another says something."""
_LONG: Final = 200
"""Characters of a name that are looked at."""
_COMPARED: Final = 40
"""Names that are compared character by character: those that have most characters in common."""
_KEYS: Final = 12
_KEY: Final = 80
_PATH: Final = 300
"""Bytes of a path that are repeated."""


@dataclass(frozen=True, slots=True)
class FoundValue:
    """What a path leads to."""

    path: MemoryPath
    blob: Buffer
    kind: Kind
    file: FileSpan | None = None
    """Where a large one also is."""
    preview: bool = True
    """A model may be told what is in it though it has not asked."""
    known: Descriptor | None = field(default=None, compare=False, repr=False)
    """What is known of the whole value."""


async def recall(
    store: Store,
    scanner: FrameScanner,
    namespace: str,
    path: MemoryPath,
    known: Descriptor | Tombstone | None = None,
    *,
    tells: bool = True,
) -> FoundValue | None:
    """The value behind a path; None where nothing is or was stored under its base.

    Args:
        store: Where it is.
        scanner: Scans what is too large to be scanned here.
        namespace: Whose it is.
        path: The path.
        known: What is known of the value, where it was looked at already.
        tells: An error may say what is in the value.

    Raises:
        ToolError: The value is gone, or has no such key.
    """
    described = known or await store.describe(namespace, path.base)
    if described is None:
        return None
    if isinstance(described, Tombstone):
        raise ToolError(_gone(path, described))
    path = _without_wrapper(described, path)
    member = _member_at(described, path)
    blob = await store.read(namespace, path.base, member.span if member else None)
    if blob is None:
        raise ToolError(
            f"The value of {as_json_string(str(path), _PATH)} has just gone. Call the tool that made it again."
        )
    tokens = path.tokens[1:] if member else path.tokens
    place = await _place_of(store, namespace, path.base, member, len(blob)) if _is_costly(blob) else None
    found = await _locate(scanner, place, blob, tokens)
    if isinstance(found, Miss):
        depth = len(path.tokens) - len(tokens) + found.depth
        raise ToolError(_miss(path, depth, found, tells_keys=described.preview) if tells else _untold(path))
    found_value = _at(path, described, blob, found)
    return (
        found_value if place is None else _in_file(found_value, place, 0 if found_value.blob is blob else found.start)
    )


def _is_costly(blob: Buffer) -> bool:
    """Whether another process is to search a value: it is large, or has very many members or items."""
    return len(blob) > _APART or (len(blob) > _AT_ONCE and has_more_values(blob, MAX_VALUES))


def _without_wrapper(described: Descriptor, path: MemoryPath) -> MemoryPath:
    """The path without the key of a wrapper that was taken off the value: models know it from the output schema."""
    first = path.tokens[0] if path.tokens else None
    is_key = any(member.key == first for member in described.members)
    if not isinstance(first, str) or is_key or first != unwrapped_key(described.envelope):
        return path
    return MemoryPath(path.base, path.tokens[1:])


def _member_at(described: Descriptor, path: MemoryPath) -> Member | None:
    """What is indexed under the first step of a path, be it a key or a position."""
    if not path.tokens or described.kind != "object":
        return None
    first = path.tokens[0]
    if isinstance(first, int):
        return described.members[first] if first < len(described.members) else None
    return next((member for member in described.members if member.key == first), None)


async def _place_of(store: Store, namespace: str, base: str, member: Member | None, size: int) -> FileSpan | None:
    """Where in a file what was read is; None where it is in none."""
    whole = await store.file_of(namespace, base)
    start = member.span.start if member else 0
    return FileSpan(whole.path, Span(whole.span.start + start, size)) if whole else None


async def _locate(scanner: FrameScanner, place: FileSpan | None, blob: Buffer, tokens: Location) -> Span | Miss:
    """Search a small blob here, a large one where it is in a file, if it still is there: what was read of it stays."""
    if not tokens or len(blob) <= _AT_ONCE:
        return locate(blob, tokens)
    if place and (found := await scanner.locate(place, tokens)):
        return found
    return await scanner.locate_sent(blob, tokens)


async def unknown_path(store: Store, namespace: str, text: str) -> ToolError:
    """What to answer for a path under which nothing is stored: what the caller may have meant of what it has."""
    if len(named := bases_in_notice(text)) > 1:
        paths = " or ".join(f'"{base}"' for base in sorted(named, key=text.index))
        return ToolError(f"That is a whole notice, which names several paths. Give one alone: {paths}.")
    newest = await store.newest(namespace, _RECENT)
    asked = text[:_LONG].partition("/")[0]
    near = await _bases_near(store, namespace, asked) if newest else ()
    advice = await anyio.to_thread.run_sync(_advice, asked.casefold(), newest, (*newest, *near))
    return ToolError(f"No value is stored under {as_json_string(text, 160)}. {advice}")


async def _bases_near(store: Store, namespace: str, asked: str) -> tuple[str, ...]:
    """Bases that begin as a text does, or with another tool's label and the same digits."""
    texts = {asked, asked.lower()}
    if label := label_of_near_miss(asked):
        labels = await store.labels(namespace)
        digits = asked.partition(f"{label}-")[2].lower()
        texts |= {f"{one}-{digits}" for one in nearest(label, labels)}
    found = [await store.bases_near(namespace, one, _BESIDE) for one in sorted(texts)]
    return tuple(base for bases in found for base in bases)


def _advice(asked: str, newest: Sequence[str], bases: Sequence[str]) -> str:
    """What the caller may have meant of these bases; the newest ones, where none is like the text."""
    if not bases:
        return "Nothing is stored yet: call a tool first."
    bases = tuple(dict.fromkeys(bases))
    same_tool = [base for base in bases if asked.startswith(f"{label_of(base)}-".casefold())]
    near = nearest(asked, bases) or same_tool
    listed = ", ".join(f'"{base}"' for base in (near or newest)[:_NEAREST])
    return f"{'Nearest' if near else 'Newest'} are {listed}. Copy a path to the letter."


def nearest(text: str, names: Iterable[str]) -> list[str]:
    """The few names that are like `text`, the likest first; none where no name has enough in common with it."""
    likeness = _likeness_to(text, SequenceMatcher.ratio)
    compared = {name: likeness(name) for name in nearest_first(text, names)[:_COMPARED]}
    return sorted((name for name in compared if compared[name] >= _LIKE), key=lambda name: -compared[name])[:_NEAREST]


def nearest_first(text: str, names: Iterable[str]) -> list[str]:
    """All names, in the order of the characters that they have in common with `text`; case does not matter."""
    likeness = _likeness_to(text, SequenceMatcher.quick_ratio)
    return sorted(names, key=lambda name: -likeness(name))


def _likeness_to(text: str, ratio: Callable[[SequenceMatcher[str]], float]) -> Callable[[str], float]:
    """From 0 to 1; beyond 1 where one stands in the other, as a tool's name does in its twin's."""
    asked = text[:_LONG].casefold()
    matcher = SequenceMatcher(None, "", asked, autojunk=False)  # what it computes of the second text, it keeps

    def likeness(name: str) -> float:
        other = name[:_LONG].casefold()
        matcher.set_seq1(other)
        shorter, longer = sorted((asked, other), key=len)
        return ratio(matcher) + (len(shorter) >= _TELLING and shorter in longer)

    return likeness


def _at(path: MemoryPath, descriptor: Descriptor, blob: Buffer, found: Span) -> FoundValue:
    """What was found in a blob."""
    if path.tokens:
        part = memoryview(blob)[found.start : found.stop]
        kind = kind_at(blob, found.start)
        kind = "binary" if kind == "object" and read_media(part) else kind
        return FoundValue(path, part, kind, preview=descriptor.preview, known=descriptor)
    whole = _untrimmed(blob, found, descriptor.kind)
    return FoundValue(path, whole, descriptor.kind, preview=descriptor.preview, known=descriptor)


def _in_file(found_value: FoundValue, place: FileSpan, start: int) -> FoundValue:
    """What was found, with where it is in the file that `place` is of: `start` bytes into it."""
    return replace(found_value, file=FileSpan(place.path, Span(place.span.start + start, len(found_value.blob))))


def _untrimmed(blob: Buffer, found: Span, kind: Kind) -> Buffer:
    """A whole JSON document keeps the white space around it: it goes to a string argument as the very text it was."""
    return blob if kind in ("object", "array") else memoryview(blob)[found.start : found.stop]


def _untold(path: MemoryPath) -> str:
    return f'There is no "{path}". What is there cannot be told: its labels keep it from the model.'


def _miss(path: MemoryPath, depth: int, miss: Miss, *, tells_keys: bool) -> str:
    here = str(MemoryPath(path.base, path.tokens[:depth]))
    token = str(MemoryPath("", path.tokens[depth : depth + 1]))[1:]
    if miss.kind == "object":
        there = _keys_of(miss, unescape_token(token)) if tells_keys else _positions_of(miss)
    elif miss.kind == "array":
        there = f"It is an array whose items are 0 to {miss.length - 1}." if miss.length else "It is an empty array."
    else:
        there = f"It is {miss.kind} and has nothing below it: use that path."
    return f"Under {as_json_string(here, _PATH)} there is no key {as_json_string(token, _KEY)}. {there}"


def _keys_of(miss: Miss, wanted: str) -> str:
    keys = nearest_first(wanted, miss.keys[:_LISTED])
    listed = ", ".join(as_json_string(str(MemoryPath("", (key,))), _KEY) for key in keys[:_KEYS])
    more = f" and {len(miss.keys) - _KEYS:,} more" if len(miss.keys) > _KEYS else ""
    return f"There is {listed}{more}." if keys else "It is an empty object."


def _positions_of(miss: Miss) -> str:
    if not miss.keys:
        return "It is an empty object."
    last = f' to "/{position_token(len(miss.keys) - 1)}"' if len(miss.keys) > 1 else ""
    return f'Its keys are told by position alone: "/{position_token(0)}"{last}.'


def _gone(path: MemoryPath, tombstone: Tombstone) -> str:
    at = datetime.fromtimestamp(tombstone.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    provenance = tombstone.descriptor.provenance
    return (
        f"The value of {as_json_string(str(path), _PATH)} {_REASONS[tombstone.reason]} at {at}. It came from tool "
        f"{as_json_string(provenance.tool, _KEY)} of "
        f"upstream {provenance.upstream!r}: call it again and use the new path."
    )


_REASONS: Final = {"expired": "expired", "evicted": "was evicted to make room"}

"""What the model reads in place of a stored result: one text, under 2 KB, in one of four styles.

A path ends with a newline or a quote: models glue what follows to a path that ends otherwise. Keys and previews
come from strangers, so they are shown as JSON strings, bounded, with nothing invisible in them.
"""

import json
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from mcp_mirror.models import Buffer, Kind, Member, Span
from mcp_mirror.paths import MemoryPath
from mcp_mirror.policies import NoticeStyle
from mcp_mirror.spans import count_items, items, kind_at, trim

_TINY: Final = 48
"""Bytes of JSON up to which a key's value is shown instead of described."""
_COUNTED: Final = 1 << 25
"""Bytes up to which an array's items are counted."""
_KEYS_BYTES: Final = 1000
"""Characters that the list of keys may take."""
_KEY: Final = 120
_FIRST_LINE: Final = 80
_ARGUMENTS: Final = 300
_SIDES: Final = 4
"""Levels of nested arrays that are told."""
_UNITS: Final = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))

_USE: Final = "Pass the path or path/key as a tool argument."


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored value as its notice needs it."""

    path: str
    tool: str
    arguments: Buffer
    """The call's arguments as the model gave them, a JSON object."""
    blob: Buffer
    kind: Kind
    tokens: int
    members: tuple[Member, ...]
    media_type: str | None = None
    shown: str | None = None
    """The value itself, where it fits the inline budget."""
    companion: str | None = None
    """The path of what else the result said."""
    head: str | None = None
    """The beginning of an error."""


def write_notice(stored: Stored, style: NoticeStyle) -> str:
    """The notice of a stored result."""
    return _STYLES[style](stored)


def human_bytes(size: int) -> str:
    """A size for people and models: `19.8 MB`."""
    for unit, scale in _UNITS:
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} B"


def quoted(text: str, limit: int) -> str:
    """A stranger's text as a JSON string: bounded, and nothing invisible in it."""
    cut = text if len(text) <= limit else text[: limit - 3] + "..."
    return "".join(_visible(character) for character in json.dumps(cut, ensure_ascii=False))


def _bare(text: str, limit: int) -> str:
    """A stranger's JSON, shown as it is but bounded and with nothing invisible in it."""
    return quoted(text, limit)[1:-1].replace('\\"', '"')


def _visible(character: str) -> str:
    hidden = unicodedata.category(character) in ("Cc", "Cf", "Co", "Cs", "Zl", "Zp")
    return json.dumps(character)[1:-1] if hidden else character


def _compact(stored: Stored) -> str:
    lines = ["Stored in memory:", stored.path]
    if stored.head is not None:
        lines += [f"The error ({_outline(stored)}) begins:", stored.head]
    elif stored.shown is not None:
        lines.append(stored.shown)
    else:
        lines.append(f"{_outline(stored)}{_listed(stored)}")
    if stored.companion:
        lines += ["The same result's text:", stored.companion]
    return "\n".join((*lines, _USE))


def _paper(stored: Stored) -> str:
    given = _bare(str(stored.arguments, "utf-8", "replace"), _ARGUMENTS)
    keys = "\n".join(f'- "{MemoryPath(stored.path).child(key)}"' for key, _ in _shown_members(stored))
    content = f"\nThe content of the output is:\n{stored.shown}" if stored.shown is not None else ""
    error = f"\nThe output is an error that begins:\n{stored.head}" if stored.head is not None else ""
    also = f'\nThe text of the same output is stored under the path "{stored.companion}".' if stored.companion else ""
    several = f"\nThe output is a dictionary whose keys are stored under these paths:\n{keys}" if keys else ""
    return (
        f"The function {stored.tool} was executed with the input {given}.\n"
        f'The output was stored in memory under the path "{stored.path}".{several}{content}{error}{also}\n'
        "Do not look at the content. Give a path, exactly as it is written, as input to another function."
    )


def _json(stored: Stored) -> str:
    stub: dict[str, Any] = {"memory_path": stored.path, "kind": stored.kind, "size": human_bytes(len(stored.blob))}
    if stored.members and stored.shown is None:
        stub["keys"] = dict(_shown_members(stored))
    optional = {"content": stored.shown, "error_begins": stored.head, "text_path": stored.companion}
    stub |= {key: value for key, value in optional.items() if value is not None}
    return json.dumps(stub | {"use": _USE}, ensure_ascii=False)


def _opaque(stored: Stored) -> str:
    return f"{stored.path}\n"


_STYLES: Final[Mapping[NoticeStyle, Callable[[Stored], str]]] = {
    "compact": _compact,
    "paper": _paper,
    "json": _json,
    "opaque": _opaque,
}


def _outline(stored: Stored) -> str:
    size = human_bytes(len(stored.blob))
    if stored.kind == "binary":
        return f"{quoted(stored.media_type or 'binary', _KEY)}, {size}"
    whole = trim(stored.blob)
    if stored.kind == "text":
        return f"{size} of text, begins {_first_line(stored.blob, whole)}"
    return f"{_describe(stored.blob, whole)}, {size}"


def _listed(stored: Stored) -> str:
    listed = ", ".join(f"{quoted('/' + key, _KEY + 1)} {value}" for key, value in _shown_members(stored))
    return f": {listed}" if listed else ""


def _shown_members(stored: Stored) -> Iterator[tuple[str, str]]:
    """Each key with what it holds, as long as there is room; last, how many were left out."""
    room, shown = _KEYS_BYTES, 0
    for member in stored.members:
        said = _value(stored.blob, member.span)
        room -= len(member.key) + len(said) + 6
        if room < 0 or len(member.key) > _KEY:
            break
        shown += 1
        yield member.key, said
    if left := len(stored.members) - shown:
        yield "...", f"and {left:,} more keys"


def _value(blob: Buffer, span: Span) -> str:
    if span.length <= _TINY:
        text = str(blob[span.start : span.stop], "utf-8", "replace")
        return _bare(text if '"' in text else text.replace(", ", ","), _TINY)
    return f"{_describe(blob, span)} {human_bytes(span.length)}"


def _describe(blob: Buffer, span: Span) -> str:
    """`object`, `array[12] of object`, `array[128x128x128]`: as deep as the first item of each level tells."""
    sides: list[str] = []
    kind, here = kind_at(blob, span.start), span
    if kind != "array" or span.length > _COUNTED:
        return kind
    while kind == "array" and len(sides) < _SIDES:
        sides.append(str(count_items(blob, here)))
        first = next(items(blob, here), None)
        if first is None:
            break
        kind, here = kind_at(blob, first.start), first
    return f"array[{'x'.join(sides)}]{' of object' if kind == 'object' else ''}"


def _first_line(blob: Buffer, span: Span) -> str:
    for stop in range(span.start + 400, span.start + 384, -1):
        try:
            text: str = msgspec.json.decode(bytes(blob[span.start : stop]).removesuffix(b'"') + b'"', type=str)
        except (msgspec.DecodeError, UnicodeError):
            continue
        return quoted(text.strip().partition("\n")[0], _FIRST_LINE)
    return '""'

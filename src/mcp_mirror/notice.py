"""What the model reads in place of a stored result: one text, under 2 KB, in one of four styles.

A path ends with a newline or a quote: models glue what follows to a path that ends otherwise. Keys and previews
come from strangers, so they are shown as JSON strings, bounded, with nothing invisible in them.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcp_mirror.models import Buffer, Kind, Member, Span
from mcp_mirror.paths import escape_token, position_token, unescape_token
from mcp_mirror.policies import NoticeStyle
from mcp_mirror.spans import count_items, items, kind_at, trim
from mcp_mirror.visible import bare, cut, plain_lines, quoted, visible

_TINY: Final = 48
"""Bytes of JSON up to which a key's value is shown instead of described."""
_COUNTED: Final = 1 << 25
"""Bytes up to which an array's items are counted."""
_KEYS: Final = 1000
"""Bytes that the list of keys may take."""
_KEY: Final = 120
"""Bytes of a key that is told whole; a longer one is not told."""
_NAME: Final = 120
_ARGUMENTS: Final = 300
_HEAD: Final = 1000
_SIDES: Final = 4
"""Levels of nested arrays that are told."""
_UNITS: Final = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))

_ONE: Final = 0.9995
"""From here on a size is told in the larger unit."""
_WHOLE: Final = 99.95
"""From here on a size is told without a fraction."""

_USE: Final = "Use it as the argument of the next tool."
_USE_BELOW: Final = "Use it or path/key as argument of next tool."
_STANDS: Final = "This path stands for"
_STRING_OR_SPACE: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\s+')
"""In JSON text: a string, or what stands between its parts and means nothing."""


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
    preview: bool = True
    """Something of the value may be told. False: keys by their positions, values by type and size."""
    is_error: bool = False


def write_notice(stored: Stored, style: NoticeStyle) -> str:
    """The notice of a stored result."""
    return _STYLES[style](stored)


def human_bytes(size: int) -> str:
    """A size for people and models: `19.8 MB`."""
    for unit, scale in _UNITS:
        if (amount := size / scale) >= _ONE:
            return f"{amount:.0f} {unit}" if amount >= _WHOLE else f"{amount:.3g} {unit}"
    return f"{size} B"


def _compact(stored: Stored) -> str:
    """The path first: what models paste into an argument begins with what a notice begins with."""
    also = ("The same result's text:", stored.companion) if stored.companion else ()
    return "\n".join((f'"{stored.path}"', *_told(stored), *also, _use(stored)))


def _told(stored: Stored) -> tuple[str, ...]:
    """What the value is; one that fits the budget, and the beginning of an error, stand there as they are."""
    if stored.is_error and not stored.preview:
        return (f"{_STANDS} an error ({_outline(stored)}).",)
    if stored.head is not None:
        return (f"{_STANDS} an error ({_outline(stored)}) that begins:", cut(plain_lines(stored.head), _HEAD))
    if stored.shown is not None:
        return (f"{_STANDS} this value:", stored.shown)
    if listed := _listed(stored):
        return (f"{_STANDS} {stored.kind}{listed}.",)
    return (f"This path ({_outline(stored)}) stands for the result.",)  # what such a line ends with, models copy


def _use(stored: Stored) -> str:
    """What to do with the path; only what has something below it is said to."""
    return _USE_BELOW if stored.kind in ("object", "array") else _USE


def _listed(stored: Stored) -> str:
    shown, left = _shown_keys(stored, lambda key, value: f"{quoted(f'/{key}', _KEY)} {value}", _KEYS)
    listed = ", ".join((*shown, *([f"and {left:,} more keys"] if left else ())))
    return f": {listed}" if listed else ""


def _paper(stored: Stored) -> str:
    given = bare(str(bytes(stored.arguments[: 2 * _ARGUMENTS]), "utf-8", "ignore"), _ARGUMENTS)
    content = f"\nThe content of the output is:\n{stored.shown}" if stored.shown is not None else ""
    also = f'\nThe text of the same output is stored under the path "{stored.companion}".' if stored.companion else ""
    first = f"The function {bare(stored.tool, _NAME)} was executed with the input {given}.\n"
    told = _paper_error(stored) or _paper_keys(stored)
    return (
        f'{first}The output was stored in memory under the path "{stored.path}".{told}{content}{also}\n'
        f"{'' if stored.shown is not None else 'Do not look at the content. '}"
        "Give a path, exactly as it is written, as input to another function."
    )


def _paper_error(stored: Stored) -> str:
    if stored.is_error and not stored.preview:
        return "\nThe output is an error."
    if stored.head is None:
        return ""
    return f"\nThe output is an error that begins:\n{cut(plain_lines(stored.head), _HEAD)}"


def _paper_keys(stored: Stored) -> str:
    shown, left = _shown_keys(stored, lambda key, _: f"- {quoted(f'{stored.path}/{key}', 2 * _KEY + _NAME)}", _KEYS)
    listed = "\n".join((*shown, *([f"and {left:,} more"] if left else ())))
    return f"\nThe output is a dictionary whose keys are stored under these paths:\n{listed}" if listed else ""


def _json(stored: Stored) -> str:
    stub: dict[str, Any] = {"result": stored.path, "kind": stored.kind, "size": human_bytes(len(stored.blob))}
    if stored.shown is None and stored.head is None:
        shown, left = _shown_keys(stored, lambda key, value: _dumped({unescape_token(key): value}), _KEYS)
        stub |= {"keys": {key: value for pair in shown for key, value in json.loads(pair).items()}} if shown else {}
        stub |= {"more_keys": left} if left else {}
    stub |= {} if stored.head is None else {"error_begins": _json_head(stored.head)}
    stub |= {"is_error": True} if stored.is_error and not stored.preview else {}
    members = {key: _dumped(value) for key, value in stub.items()}
    members |= {} if stored.shown is None else {"content": _json_content(stored.shown, stored.kind)}
    members |= {} if stored.companion is None else {"text_path": _dumped(stored.companion)}
    members["use"] = _dumped(f"{_STANDS} the result. {_use(stored)}")
    return "{" + ", ".join(f'"{key}": {text}' for key, text in members.items()) + "}"


def _json_content(shown: str, kind: Kind) -> str:
    """A value that is shown: text as a string, JSON as the JSON it is, to the digit, on one line."""
    if kind == "text":
        return _dumped(shown)
    return _STRING_OR_SPACE.sub(lambda part: visible(part[0]) if part[0][0] == '"' else "", shown)


def _dumped(value: Any) -> str:
    return visible(json.dumps(value, ensure_ascii=False))


def _json_head(head: str) -> str:
    """As much of an error as fits when it is quoted."""
    text: str = json.loads(f'"{cut(_dumped(plain_lines(head))[1:-1], _HEAD)}"')
    return text


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
        return f"{quoted(stored.media_type or 'binary', _KEY)} {size}"
    whole = trim(stored.blob)
    if stored.kind == "text":
        return f"{size} of text"
    return f"{_describe(stored.blob, whole)} {size}"


def _shown_keys(stored: Stored, say: Callable[[str, str], str], room: int) -> tuple[list[str], int]:
    """Each key with what it holds, as long as there is room, in the words of `say`; and how many were left out.

    Keys are as they stand in paths, or their positions where nothing of the value may be told.
    """
    shown: list[str] = []
    for position, member in enumerate(stored.members if stored.kind == "object" else ()):
        if stored.preview and (
            len(member.key) > _KEY or len(quoted(escape_token(member.key), 2 * _KEY).encode()) > _KEY
        ):
            continue
        token = escape_token(member.key) if stored.preview else position_token(position)
        tell = outline_value if stored.preview else outline_unseen
        said = say(token, tell(stored.blob, member.span))
        room -= len(said.encode()) + 2
        if room < 0:
            break
        shown.append(said)
    return shown, len(stored.members) - len(shown) if stored.kind == "object" else 0


def outline_value(blob: Buffer, span: Span) -> str:
    """A tiny value as it is, any other as what it is and how large."""
    if span.length <= _TINY:
        text = str(bytes(blob[span.start : span.stop]), "utf-8", "replace")
        return bare(text if '"' in text else re.sub(r"\s+", "", text), _TINY)
    return outline_unseen(blob, span)


def outline_unseen(blob: Buffer, span: Span) -> str:
    """A value as what it is and how large, no byte of it among that; the sides of a grid say both."""
    described = _describe(blob, span)
    is_grid = "x" in described.partition("[")[2]
    return described if is_grid else f"{described} {human_bytes(span.length)}"


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

"""What the model reads in place of a stored result: one text, under 2 KB, in one of four styles.

A path ends with a newline or a quote: models glue what follows to a path that ends otherwise. Keys and previews
come from strangers, so they are shown as JSON strings, bounded, with nothing invisible in them.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from mcp_mirror.models import Buffer, Kind, Member, Span
from mcp_mirror.paths import MemoryPath, escape_token
from mcp_mirror.policies import NoticeStyle
from mcp_mirror.spans import count_items, items, kind_at, text_start, trim

_TINY: Final = 48
"""Bytes of JSON up to which a key's value is shown instead of described."""
_COUNTED: Final = 1 << 25
"""Bytes up to which an array's items are counted."""
_KEYS: Final = 1000
"""Bytes that the list of keys may take."""
_KEY: Final = 120
"""Bytes of a key that is told whole; a longer one is not told."""
_NAME: Final = 120
_FIRST_LINE: Final = 80
_ARGUMENTS: Final = 300
_HEAD: Final = 1000
_SIDES: Final = 4
"""Levels of nested arrays that are told."""
_HIDDEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]"
)
"""What is not seen though its category says otherwise (Unicode, Default_Ignorable_Code_Point; the blank of Braille)."""
_UNIT: Final = re.compile(r"\\u[0-9a-f]{4}|\\.|.", re.DOTALL)
"""One character or one escape."""
_UNITS: Final = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))

_ONE: Final = 0.9995
"""From here on a size is told in the larger unit."""
_WHOLE: Final = 99.95
"""From here on a size is told without a fraction."""

_USE: Final = "Pass path as tool argument."
_USE_BELOW: Final = "Pass path or path/key as tool argument."
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


def write_notice(stored: Stored, style: NoticeStyle) -> str:
    """The notice of a stored result."""
    return _STYLES[style](stored)


def human_bytes(size: int) -> str:
    """A size for people and models: `19.8 MB`."""
    for unit, scale in _UNITS:
        if (amount := size / scale) >= _ONE:
            return f"{amount:.0f} {unit}" if amount >= _WHOLE else f"{amount:.3g} {unit}"
    return f"{size} B"


def quoted(text: str, limit: int) -> str:
    """A stranger's text as a JSON string: nothing invisible in it, at most `limit` bytes between the quotes."""
    return f'"{_cut(_visible(json.dumps(text[: limit + 1], ensure_ascii=False)[1:-1]), limit)}"'


def _bare(text: str, limit: int) -> str:
    """A stranger's JSON, shown as it is but bounded and with nothing invisible in it."""
    return _cut(_visible(text[: limit + 1]), limit)


def _visible(text: str) -> str:
    """What is not seen, or breaks a line, as a JSON escape."""
    return "".join(_escaped(character) if _is_hidden(character) else character for character in text)


def _is_hidden(character: str) -> bool:
    hidden = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")
    return unicodedata.category(character) in hidden or _HIDDEN.match(character) is not None


def _escaped(character: str) -> str:
    code = ord(character)
    if code <= 0xFFFF:  # noqa: PLR2004  # the Basic Multilingual Plane
        return f"\\u{code:04x}"
    return f"\\u{0xD7C0 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def _cut(text: str, limit: int) -> str:
    """At most `limit` bytes of a text, no escape cut in two; three dots stand for the rest."""
    if len(text.encode()) <= limit:
        return text
    units: list[str] = _UNIT.findall(text)
    sizes = accumulate(len(unit.encode()) for unit in units)
    return "".join(unit for unit, size in zip(units, sizes, strict=True) if size <= limit - 3) + "..."


def _plain_lines(text: str) -> str:
    """An error's text as it is, but for what is not seen; its line breaks stay."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join("".join(c for c in line if c == "\t" or not _is_hidden(c)) for line in lines)


def _compact(stored: Stored) -> str:
    lines = ["Stored in memory:", stored.path]
    if stored.head is not None:
        lines += [f"The error ({_outline(stored)}) begins:", _cut(_plain_lines(stored.head), _HEAD)]
    elif stored.shown is not None:
        lines.append(stored.shown)
    else:
        lines.append(f"{_outline(stored)}{_listed(stored)}")
    if stored.companion:
        lines += ["The same result's text:", stored.companion]
    return "\n".join((*lines, _use(stored)))


def _use(stored: Stored) -> str:
    """What to do with the path; only what has something below it is said to."""
    return _USE_BELOW if stored.kind in ("object", "array") else _USE


def _listed(stored: Stored) -> str:
    shown, left = _shown_keys(stored, lambda key, value: f"{quoted(f'/{escape_token(key)}', _KEY)} {value}", _KEYS)
    listed = ", ".join((*shown, *([f"and {left:,} more keys"] if left else ())))
    return f": {listed}" if listed else ""


def _paper(stored: Stored) -> str:
    given = _bare(str(bytes(stored.arguments[: 2 * _ARGUMENTS]), "utf-8", "ignore"), _ARGUMENTS)
    content = f"\nThe content of the output is:\n{stored.shown}" if stored.shown is not None else ""
    also = f'\nThe text of the same output is stored under the path "{stored.companion}".' if stored.companion else ""
    first = f"The function {_bare(stored.tool, _NAME)} was executed with the input {given}.\n"
    told = _paper_error(stored) or _paper_keys(stored)
    return (
        f'{first}The output was stored in memory under the path "{stored.path}".{told}{content}{also}\n'
        f"{'' if stored.shown is not None else 'Do not look at the content. '}"
        "Give a path, exactly as it is written, as input to another function."
    )


def _paper_error(stored: Stored) -> str:
    if stored.head is None:
        return ""
    return f"\nThe output is an error that begins:\n{_cut(_plain_lines(stored.head), _HEAD)}"


def _paper_keys(stored: Stored) -> str:
    path = MemoryPath(stored.path)
    shown, left = _shown_keys(stored, lambda key, _: f"- {quoted(str(path.child(key)), 2 * _KEY + _NAME)}", _KEYS)
    listed = "\n".join((*shown, *([f"and {left:,} more"] if left else ())))
    return f"\nThe output is a dictionary whose keys are stored under these paths:\n{listed}" if listed else ""


def _json(stored: Stored) -> str:
    stub: dict[str, Any] = {"memory_path": stored.path, "kind": stored.kind, "size": human_bytes(len(stored.blob))}
    if stored.shown is None and stored.head is None:
        shown, left = _shown_keys(stored, lambda key, value: _dumped({key: value}), _KEYS)
        stub |= {"keys": {key: value for pair in shown for key, value in json.loads(pair).items()}} if shown else {}
        stub |= {"more_keys": left} if left else {}
    stub |= {} if stored.head is None else {"error_begins": _json_head(stored.head)}
    members = {key: _dumped(value) for key, value in stub.items()}
    members |= {} if stored.shown is None else {"content": _json_content(stored.shown, stored.kind)}
    members |= {} if stored.companion is None else {"text_path": _dumped(stored.companion)}
    members["use"] = _dumped(_use(stored))
    return "{" + ", ".join(f'"{key}": {text}' for key, text in members.items()) + "}"


def _json_content(shown: str, kind: Kind) -> str:
    """A value that is shown: text as a string, JSON as the JSON it is, to the digit, on one line."""
    if kind == "text":
        return _dumped(shown)
    return _STRING_OR_SPACE.sub(lambda part: _visible(part[0]) if part[0][0] == '"' else "", shown)


def _dumped(value: Any) -> str:
    return _visible(json.dumps(value, ensure_ascii=False))


def _json_head(head: str) -> str:
    """As much of an error as fits when it is quoted."""
    text: str = json.loads(f'"{_cut(_dumped(_plain_lines(head))[1:-1], _HEAD)}"')
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
        return f"{size} of text, begins {_first_line(stored.blob, whole)}"
    return f"{_describe(stored.blob, whole)} {size}"


def _shown_keys(stored: Stored, say: Callable[[str, str], str], room: int) -> tuple[list[str], int]:
    """Each key with what it holds, as long as there is room, in the words of `say`; and how many were left out."""
    shown: list[str] = []
    for member in stored.members if stored.kind == "object" else ():
        if len(member.key) > _KEY or len(quoted(escape_token(member.key), 2 * _KEY).encode()) > _KEY:
            continue
        said = say(member.key, outline_value(stored.blob, member.span))
        room -= len(said.encode()) + 2
        if room < 0:
            break
        shown.append(said)
    return shown, len(stored.members) - len(shown) if stored.kind == "object" else 0


def outline_value(blob: Buffer, span: Span) -> str:
    """A tiny value as it is, any other as what it is and how large."""
    if span.length <= _TINY:
        text = str(bytes(blob[span.start : span.stop]), "utf-8", "replace")
        return _bare(text if '"' in text else re.sub(r"\s+", "", text), _TINY)
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
    return quoted(text_start(blob, span, 4 * _FIRST_LINE).strip().partition("\n")[0], _FIRST_LINE)

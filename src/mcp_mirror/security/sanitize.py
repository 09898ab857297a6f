"""A stranger's text as it may be shown to a model or an operator: bounded, and with nothing invisible in it."""

import json
import re
import unicodedata
from itertools import accumulate
from typing import Final

_HIDDEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]"
)
"""What is not seen though its category says otherwise (Unicode, Default_Ignorable_Code_Point; the blank of Braille)."""
_LONGEST_ESCAPE: Final = 12
"""Bytes that stand for one hidden character at most."""
_OMITTED: Final = "\n...\n"
_UNIT: Final = re.compile(r"\\u[0-9a-f]{4}|\\.|.", re.DOTALL)
"""One character or one escape."""


def as_json_string(text: str, limit: int) -> str:
    """A stranger's text as a JSON string: nothing invisible in it, at most `limit` bytes between the quotes."""
    return f'"{cut(sanitize(json.dumps(text[: limit + 1], ensure_ascii=False)[1:-1]), limit)}"'


def strip_invisible(text: str, limit: int) -> str:
    """A stranger's JSON, shown as it is but bounded and with nothing invisible in it."""
    return cut(sanitize(text[: limit + 1]), limit)


def sanitize(text: str) -> str:
    """A text in which what is not seen, or breaks a line, is a JSON escape."""
    return "".join(_escaped(character) if _is_hidden(character) else character for character in text)


def sanitize_lines(text: str, limit: int) -> str:
    """A text of several lines, in which no stranger's part is hidden; at most `limit` bytes."""
    shown = "".join(c if c in "\n\t" else _escaped(c) if _is_hidden(c) else c for c in text[: limit + 1])
    return cut(shown, limit)


def sanitize_ends(text: str, limit: int) -> str:
    """The same; of a longer text the beginning and the end, where the cause of an error often is."""
    if len(text) <= limit:
        shown = sanitize_lines(text, _LONGEST_ESCAPE * limit)
        if len(shown.encode()) <= limit:
            return shown
    half = limit // 2 - len(_OMITTED)
    end = sanitize_lines(text[-half:], _LONGEST_ESCAPE * half).encode()[-half:].decode(errors="ignore")
    return f"{sanitize_lines(text, half)}{_OMITTED}{end}"


def _is_hidden(character: str) -> bool:
    hidden = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")
    return unicodedata.category(character) in hidden or _HIDDEN.match(character) is not None


def _escaped(character: str) -> str:
    code = ord(character)
    if code <= 0xFFFF:  # noqa: PLR2004  # the Basic Multilingual Plane
        return f"\\u{code:04x}"
    return f"\\u{0xD7C0 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def cut(text: str, limit: int) -> str:
    """At most `limit` bytes of a text, no escape cut in two; three dots stand for the rest."""
    if len(text.encode()) <= limit:
        return text
    units: list[str] = _UNIT.findall(text)
    sizes = accumulate(len(unit.encode()) for unit in units)
    return "".join(unit for unit, size in zip(units, sizes, strict=True) if size <= limit - 3) + "..."


def sanitize_to_lines(text: str) -> str:
    """An error's text as it is, but for what is not seen; its line breaks stay."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join("".join(c for c in line if c == "\t" or not _is_hidden(c)) for line in lines)

"""Sanitizes untrusted text for models and operators, and replaces memory paths in logs by hashes."""

import hmac
import json
import re
import unicodedata
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import accumulate
from typing import Final

from mcp_mirror.paths import BASE_PATTERN, CUT
from mcp_mirror.payload.json_strings import decode_escapes
from mcp_mirror.system.patterns import lazy_pattern

_HIDDEN: Final = lazy_pattern(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]"
)
"""Invisible characters of visible categories (Unicode Default_Ignorable_Code_Point, and the Braille blank)."""
_HIDDEN_CATEGORIES: Final = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")
_PRINTABLE_KEPT: Final = lazy_pattern(rf'["\\]|{_HIDDEN.pattern}')
"""Characters that Python calls printable, and that remain escapes in JSON."""
_LONGEST_ESCAPE: Final = 12
"""Bytes of the longest escape of an invisible character."""
_OMITTED: Final = "\n...\n"
_UNIT: Final = lazy_pattern(r"\\u[0-9a-f]{4}|\\.|.", re.DOTALL)
"""One character or one escape."""
_DIGITS: Final = 16
"""Hexadecimal digits: 64 bits."""
_BELOW: Final = r"(?:/[^\s\"'`,;)\]}]*)?"
_IN_TEXT: Final = (
    lazy_pattern(rf"(?P<quote>[\"'`])(?P<path>{BASE_PATTERN}(?:/.*?)?)(?:(?P=quote)(?![A-Za-z0-9])|\Z)", re.DOTALL),
    lazy_pattern(rf"(?P<path>{BASE_PATTERN}{_BELOW})"),
)
"""A quoted path ends at its closing quote or at the end of the text, any other path at the end of the word.

If a path without a closing quote did not match, each such path would be searched to the end of the text.
"""


def as_json_string(text: str, limit: int) -> str:
    """Untrusted text as a JSON string without invisible characters, at most `limit` bytes between the quotes."""
    return f'"{cut(sanitize(json.dumps(text[: limit + 1], ensure_ascii=False)[1:-1]), limit)}"'


def as_expression_key(key: str, limit: int) -> str:
    """An untrusted key as a JMESPath expression contains it: a short name as it is, any other key as a JSON string."""
    return key if key.isascii() and key.isidentifier() and len(key) <= limit else as_json_string(key, limit)


def strip_invisible(text: str, limit: int) -> str:
    """Untrusted JSON text with invisible characters escaped, at most `limit` bytes."""
    return cut(sanitize(text[: limit + 1]), limit)


def sanitize(text: str) -> str:
    """Escape invisible characters and line breaks as JSON escapes."""
    return text.translate({ord(one): _escape_character(one) for one in _find_hidden(text)})


def sanitize_lines(text: str, limit: int) -> str:
    """Escape invisible characters, but keep line breaks and tabs; at most `limit` bytes."""
    text = text[: limit + 1]
    return cut(text.translate({ord(one): _escape_character(one) for one in _find_hidden(text, "\n\t")}), limit)


def sanitize_ends(text: str, limit: int) -> str:
    """As `sanitize_lines`, but a long text keeps its beginning and its end, where the cause of an error often is."""
    if len(text) <= limit:
        shown = sanitize_lines(text, _LONGEST_ESCAPE * limit)
        if len(shown.encode()) <= limit:
            return shown
    half = limit // 2 - len(_OMITTED)
    end = sanitize_lines(text[-half:], _LONGEST_ESCAPE * half).encode()[-half:].decode(errors="ignore")
    return f"{sanitize_lines(text, half)}{_OMITTED}{end}"


def show_characters(json_text: bytes) -> bytes:
    """JSON text as a model reads it: as of `decode_escapes`, but invisible characters stay escapes."""
    return decode_escapes(json_text, _escape_hidden)


def _escape_hidden(text: str) -> str:
    """Escape invisible characters, quotes and backslashes as JSON escapes."""
    if text.isprintable() and not _PRINTABLE_KEPT.search(text):  # almost every text
        return text
    return text.translate({ord(one): _escape_character(one) for one in ('"', "\\", *_find_hidden(text))})


def _find_hidden(text: str, kept: str = "") -> list[str]:
    """The different invisible characters of a text, without those that are kept."""
    shown = text.translate(dict.fromkeys(map(ord, kept))) if kept else text
    if shown.isprintable() and (shown.isascii() or not _HIDDEN.search(shown)):  # almost every text
        return []
    return [one for one in set(shown) if unicodedata.category(one) in _HIDDEN_CATEGORIES or _HIDDEN.match(one)]


def _escape_character(character: str) -> str:
    code = ord(character)
    if code <= 0xFFFF:  # noqa: PLR2004  # the Basic Multilingual Plane
        return f"\\u{code:04x}"
    return f"\\u{0xD7C0 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def cut(text: str, limit: int) -> str:
    """At most `limit` bytes of a text, with `CUT` for the rest. Escapes are never split."""
    if len(text) <= limit and len(text.encode()) <= limit:
        return text
    units: list[str] = _UNIT.findall(text[: limit + _LONGEST_ESCAPE])
    sizes = accumulate(len(unit.encode()) for unit in units)
    return "".join(unit for unit, size in zip(units, sizes, strict=True) if size <= limit - len(CUT)) + CUT


def sanitize_to_lines(text: str) -> str:
    """Remove invisible characters from a text and keep its line breaks."""
    text = text.replace("\r\n", "\n")
    return text.translate(dict.fromkeys(map(ord, _find_hidden(text, "\n\t"))))


@dataclass(frozen=True, slots=True)
class PathHasher:
    """Replaces memory paths in logs and in the audit log by short keyed hashes.

    With the key, a reader can tell whether two lines are about the same value, but not which value it is.
    """

    key: bytes = field(repr=False)

    def hash_path(self, path: str) -> str:
        """The hash of a path's base and, for a path below the base, `/` and the hash of the whole path."""
        base, slash, _ = path.partition("/")
        return f"{self.hash_text(base)}/{self.hash_text(path)}" if slash else self.hash_text(base)

    def replace_paths(self, text: str) -> str:
        """Replace all memory paths in a text by their hashes."""
        for pattern in _IN_TEXT:
            text = pattern.sub(lambda found: f"(path {self.hash_path(found['path'])})", text)
        return text

    def hash_text(self, text: str) -> str:
        """The hash of any text."""
        return hmac.new(self.key, text.encode("utf-8", "surrogatepass"), sha256).hexdigest()[:_DIGITS]

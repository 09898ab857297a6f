"""Short keyed hashes that stand for memory paths where none may stand: in logs and in the audit log.

Who has the key can tell whether two lines are of one value, and nobody which value it is.
"""

import hmac
import re
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from mcp_mirror.paths import BASE_PATTERN

_DIGITS: Final = 16
"""Hexadecimal digits: 64 bits."""
_BELOW: Final = r"(?:/[^\s\"'`,;)\]}]*)?"
_IN_TEXT: Final = (
    re.compile(rf"(?P<quote>[\"'`])(?P<path>{BASE_PATTERN}(?:/.*?)?)(?P=quote)(?![A-Za-z0-9])", re.DOTALL),
    re.compile(rf"(?P<path>{BASE_PATTERN}{_BELOW})"),
)
"""A path in quotes goes as far as they do, another one to what ends a word."""


@dataclass(frozen=True, slots=True)
class PathHasher:
    """Says paths in short."""

    key: bytes = field(repr=False)

    def of(self, path: str) -> str:
        """What stands for a path: a hash of its base, and, for a path below it, one of the whole path behind that."""
        base, slash, _ = path.partition("/")
        return f"{self._hash(base)}/{self._hash(path)}" if slash else self._hash(base)

    def hide(self, text: str) -> str:
        """A text with what stands for them in the place of all memory paths."""
        for pattern in _IN_TEXT:
            text = pattern.sub(lambda found: f"(path {self.of(found['path'])})", text)
        return text

    def _hash(self, text: str) -> str:
        return hmac.new(self.key, text.encode("utf-8", "surrogatepass"), sha256).hexdigest()[:_DIGITS]

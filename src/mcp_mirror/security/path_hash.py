"""Short keyed hashes that replace memory paths in logs and in the audit log.

With the key, a reader can tell whether two lines are about the same value, but not which value it is.
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
"""A quoted path ends at its closing quote, any other path at the end of the word."""


@dataclass(frozen=True, slots=True)
class PathHasher:
    """Hashes memory paths with a key."""

    key: bytes = field(repr=False)

    def hash_path(self, path: str) -> str:
        """The hash of a path's base and, for a path below the base, `/` and the hash of the whole path."""
        base, slash, _ = path.partition("/")
        return f"{self._hash(base)}/{self._hash(path)}" if slash else self._hash(base)

    def replace_paths(self, text: str) -> str:
        """Replace all memory paths in a text by their hashes."""
        for pattern in _IN_TEXT:
            text = pattern.sub(lambda found: f"(path {self.hash_path(found['path'])})", text)
        return text

    def _hash(self, text: str) -> str:
        return hmac.new(self.key, text.encode("utf-8", "surrogatepass"), sha256).hexdigest()[:_DIGITS]

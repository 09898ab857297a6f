"""Remembers which values recent notices describe: models paste a notice without its first line, the path."""

import hashlib
from dataclasses import dataclass, field
from typing import Final

from mcp_mirror.paths import MemoryPath, is_pathless_notice

_MAX_REMEMBERED: Final = 1_024
"""Notices of all principals together; each takes about 300 bytes."""


@dataclass(frozen=True, slots=True)
class RecentNotices:
    """The values of the newest notices of this process, by the text below their paths."""

    _bases: dict[bytes, str | None] = field(default_factory=dict)
    """By the digest of namespace and text; None if several values have this text."""

    def add(self, namespace: str, notice: str, base: str) -> None:
        """Remember a notice that begins with the path of its value; ignore other notices."""
        text = notice.partition("\n")[2]
        if not is_pathless_notice(text):
            return
        key = _digest(namespace, text)
        self._bases[key] = None if key in self._bases else base
        if len(self._bases) > _MAX_REMEMBERED:
            del self._bases[next(iter(self._bases))]

    def find(self, namespace: str, text: str) -> MemoryPath | None:
        """Return the path of the only value with this notice; None without such a value or with several ones."""
        text = text.strip()
        base = self._bases.get(_digest(namespace, text)) if is_pathless_notice(text) else None
        return MemoryPath(base) if base else None


def _digest(namespace: str, text: str) -> bytes:
    return hashlib.blake2b(f"{namespace}\0{text}".encode(), digest_size=16).digest()

"""Remembers the texts of recent notices: models paste a notice without its first line, the path."""

from dataclasses import dataclass, field
from typing import Final

from mcp_mirror.paths import MemoryPath, find_copied_notice, is_pathless_notice

_MAX_REMEMBERED: Final = 256
"""Notices of all principals together; each has less than 2 KB."""


@dataclass(frozen=True, slots=True)
class RecentNotices:
    """The newest notices of this process that begin with a path."""

    _texts: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Namespace, and text below the path, by base."""

    def add(self, namespace: str, notice: str, base: str) -> None:
        """Remember a notice that begins with the path of its value; ignore other notices."""
        text = notice.partition("\n")[2]
        if is_pathless_notice(text):
            self._texts[base] = (namespace, text)
            if len(self._texts) > _MAX_REMEMBERED:
                del self._texts[next(iter(self._texts))]

    def find(self, namespace: str, text: str) -> MemoryPath | None:
        """Return the path of the notice of which a text is a copy without the path; None if that is uncertain."""
        if not is_pathless_notice(text.strip()):
            return None
        base = find_copied_notice(text, {base: known for base, (own, known) in self._texts.items() if own == namespace})
        return MemoryPath(base) if base else None

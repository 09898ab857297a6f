"""Remembers recent notices, because models copy them and their previews in place of the path."""

from itertools import islice
from typing import Final

import msgspec

from mcp_mirror.core.results.notice import PREVIEW_MARK
from mcp_mirror.paths import (
    CUT,
    MemoryPath,
    find_copied_notice,
    is_pathless_notice,
    parse_path,
    parse_wrapped_path,
)
from mcp_mirror.system.fair_map import FairMap
from mcp_mirror.system.patterns import lazy_pattern

_MAX_REMEMBERED: Final = 2048
"""Notices of all principals together; each has less than 2 KB."""
_MAX_OF_PRINCIPAL: Final = 256
"""Those of one principal, with which a text is compared."""
_MAX_CUTS: Final = 1_000
"""Places of a text that are compared with the previews."""
_CUT_END: Final = lazy_pattern(r"\.\.\.(?!\.)")
_COMPARED: Final = 32
"""Characters at the end of a cut line that are compared: no other text has them by chance."""
_CUT_BYTES: Final = 140
"""Bytes of a line of a preview from which it may have been cut; shorter ones end in `...` themselves."""
_OMITTED: Final = lazy_pattern(r"\.\.\. [0-9,]{1,20} lines? \.\.\.")
"""The mark of omitted lines. Other texts may have it, too."""
_MAX_OMITTED: Final = 8
"""Marks of omitted lines that are compared."""


class _Notice(msgspec.Struct, frozen=True):
    text: str
    """The lines below the path."""
    cuts: frozenset[str]
    """The last characters of each line of the preview that was cut."""
    omitted: str
    """The mark of omitted lines; empty without one."""
    longest: str
    """The longest line of the preview."""

    @property
    def description(self) -> str:
        """The line above the preview."""
        return self.text.partition("\n")[0]


class RecentNotices(msgspec.Struct, frozen=True):
    """The newest notices of this process that begin with a path: models paste a notice without its first line."""

    _known: FairMap[_Notice] = msgspec.field(default_factory=lambda: FairMap(_MAX_REMEMBERED, _MAX_OF_PRINCIPAL))
    """By namespace and path."""

    def add(self, namespace: str, notice: str) -> None:
        """Remember a notice that begins with the path of its value; ignore other notices."""
        first, _, text = notice.partition("\n")
        path = parse_wrapped_path(first)
        if path and is_pathless_notice(text):
            self._known.put(namespace, str(path), _read_notice(text))

    def newest(self, namespace: str) -> str | None:
        """Return the path of a namespace's newest notice; None without one."""
        return next(reversed(self._known.of(namespace)), None)

    def find(self, namespace: str, text: str) -> MemoryPath | None:
        """Return the path of the notice of which a text is a copy without the path; None if that is uncertain."""
        if not is_pathless_notice(text.strip()):
            return None
        known = {path: notice.text for path, notice in self._known.of(namespace).items()}
        path = find_copied_notice(text, known)
        return parse_path(path) if path else None

    def find_preview(self, namespace: str, text: str) -> str | None:
        """Return the path of the newest notice of whose preview a text has a cut line; None without one.

        The mark of omitted lines counts if the text has the longest line, too. A text with the description of the value
        quotes the notice, and does not count.
        """
        ends = (mark.end() for mark in islice(_CUT_END.finditer(text), _MAX_CUTS))
        cuts = {text[max(end - _COMPARED, 0) : end] for end in ends}
        omitted = {mark[0] for mark in islice(_OMITTED.finditer(text), _MAX_OMITTED)}
        for path, notice in reversed(self._known.of(namespace).items()) if cuts else ():
            is_copied = not cuts.isdisjoint(notice.cuts) or (notice.omitted in omitted and notice.longest in text)
            if is_copied and notice.description not in text:
                return path
        return None


def _read_notice(text: str) -> _Notice:
    lines = [line.removeprefix(PREVIEW_MARK) for line in text.split("\n") if line.startswith(PREVIEW_MARK)]
    cuts = frozenset(line[-_COMPARED:] for line in lines if line.endswith(CUT) and len(line.encode()) >= _CUT_BYTES)
    omitted = next(filter(_OMITTED.fullmatch, lines), "")
    longest = max((line for line in lines if line != omitted), key=len, default="")
    return _Notice(text, cuts, omitted, longest)

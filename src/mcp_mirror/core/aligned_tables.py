"""Finds the table that a text aligns with spaces, as command lines do: `docker ps`, `kubectl get`, `pip list`.

Its columns begin where the groups of a line of hyphens below the header begin. Without such a line, the header has
upper-case letters and no digits, and its words begin where the cells below them begin.
"""

import re
from collections.abc import Sequence
from typing import Final

from mcp_mirror.core.pipe_tables import PipeTable

_MIN_COLUMNS, _MIN_ROWS = 2, 2
_RULE: Final = re.compile(r" *-{2,}(?: +-{2,})+ *")
_DIGIT: Final = re.compile(r"\d")
_UNIT: Final = re.compile(r"\([a-z]+\)")
"""The unit of a column, which may have lower-case letters: `CPU(cores)`."""
_WORD: Final = re.compile(r"\S+")


def find_aligned_table(text: str) -> PipeTable | None:
    """Find the table that is a whole text; None for any other text, and if a cell crosses the beginning of a column."""
    if "\t" in text:
        return None
    header, *rows = (line.rstrip() for line in text.strip("\r\n").split("\n"))
    if rows and _RULE.fullmatch(rows[0]):
        starts = [word.start() for word in _WORD.finditer(rows.pop(0))]
        is_aligned = all(_is_free(line, starts) for line in (header, *rows))
    elif _UNIT.sub("", header).isupper() and not (_DIGIT.search(header) or all(map(str.isupper, rows))):
        starts = [word.start() for word in _WORD.finditer(header) if _begins_column(header, rows, word.start())]
        is_aligned = all(_is_free(line, starts) and _is_left_aligned(line, starts) for line in rows)
    else:
        return None
    is_table = is_aligned and len(starts) >= _MIN_COLUMNS and len(rows) >= _MIN_ROWS and all(rows)
    return PipeTable(_cut(header, starts), [_cut(row, starts) for row in rows]) if is_table else None


def _begins_column(header: str, rows: Sequence[str], start: int) -> bool:
    """Whether a word of the header begins a column: two spaces precede it, or cells begin below it and none crosses."""
    if not header[max(start - 2, 0) : start].strip():
        return True
    return any(row[start : start + 1].strip() for row in rows) and all(_is_free(row, (start,)) for row in rows)


def _is_free(line: str, starts: Sequence[int]) -> bool:
    """Whether no cell of a line crosses the beginning of a column."""
    return not any(line[start - 1 : start].strip() for start in starts if start)


def _is_left_aligned(line: str, starts: Sequence[int]) -> bool:
    return not any(cell[:1] == " " and cell.strip() for cell in _slice(line, starts))


def _slice(line: str, starts: Sequence[int]) -> list[str]:
    return [line[start:stop] for start, stop in zip(starts, (*starts[1:], None), strict=True)]


def _cut(line: str, starts: Sequence[int]) -> list[str]:
    return [cell.strip() for cell in _slice(line, starts)]

"""Finds the table that a text aligns with spaces around columns of numbers: `df -h`, `free`, `ps aux`, `top`.

The cells of a column begin where its name begins, or end where it ends, or are within its width. In lines without empty
cells, others may follow a number that is too wide for its column, as `ps` prints them.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from mcp_mirror.core.texts.pipe_tables import PipeTable
from mcp_mirror.system.patterns import lazy_pattern

MAX_CHARACTERS: Final = 1 << 17
"""Characters of the longest text that may be such a table, because all lines decide."""
_MAX_HEADER: Final = 400
"""Characters of the longest header."""
_MAX_CELLS: Final = 6000
"""Words of the header times rows: the time to find a table grows with them."""
_MIN_NAMES, _MIN_NUMBERS, _MIN_ROWS = 3, 2, 2
"""Columns, columns of numbers and rows of a table: a few words may be aligned by chance."""
_WORD: Final = lazy_pattern(r"\S+")
_NUMBER: Final = lazy_pattern(r"[-+]?[\d.,:/-]*\d\+?(?:%|[A-Za-z]{1,2}|[A-Za-z]iB)?|NaN")
"""A number, size, time or date, or a missing number. It is not the name of a column."""
_INDEX: Final = lazy_pattern(r"[^\W\d]\S*")
"""The name of an index."""
_TWO_WORDS: Final = lazy_pattern(r"[A-Z][a-z]\S* [a-z]{2,}")
"""A name of two words, such as `Mounted on`."""
_EVEN_WIDTH: Final = lazy_pattern("[ -~\u2500-\u257f]*")
"""Characters for which all programs leave the same room, also the lines of trees."""
_TAKEN: Final = bytes(code != ord(" ") for code in range(256))
"""1 for each ASCII character but the space."""
_GAP_CHARACTERS: Final = 200
"""Characters of a cell that may contain the gap before a further column."""


class _Cell(NamedTuple):
    text: str
    """Without spaces around it; may be empty."""
    start: int
    stop: int
    shift: int = 0
    """Characters by which it may be to the right of its place, after a number that is too wide."""


def find_number_table(text: str) -> PipeTable | None:
    """Find the table that is a whole text; None for any other text, and if the column of a cell is in doubt."""
    if "\t" in text or len(text) > MAX_CHARACTERS:
        return None
    header, *lines = _join_header(text.strip("\r\n").split("\n"))
    names = header.split()
    if len(header.rstrip()) > _MAX_HEADER or not _MIN_ROWS <= len(lines) <= _MAX_CELLS // max(len(names), 1):
        return None
    numbers = sum(_NUMBER.fullmatch(word) is not None for word in lines[0].split())
    if len(names) < _MIN_NUMBERS or numbers < _MIN_NUMBERS or any(map(_NUMBER.fullmatch, names)):
        return None
    header, *rows = (line.rstrip() for line in (header, *lines))
    if not all(rows):
        return None
    tables = (_build_table(rows, split_cells(header, rows)) for split_cells in (_split_at_gaps, _split_words))
    return next(filter(None, tables), None)


def _join_header(lines: list[str]) -> list[str]:
    """The lines with the name of an index in the first one: pandas prints it below the names of the columns."""
    index = lines[1].rstrip() if len(lines) > 1 else ""
    has_name = _INDEX.fullmatch(index) and not lines[0][: len(index) + 1].strip()
    return [index + lines[0][len(index) :], *lines[2:]] if has_name else lines


def _split_at_gaps(header: str, rows: Sequence[str]) -> list[list[_Cell]]:
    """The cells of each line between positions that are blank in all lines.

    A word of the header without cells below it, at the end, is part of the last name: `Mounted on`.
    """
    longest = max(map(len, rows))
    found = [start for start in _find_starts((header, *rows), len(header)) if start < longest]
    starts = _join_words(header, rows, found)
    spans = [*zip(starts, (*starts[1:], None), strict=True)]
    return [[_read_cell(line, start, stop) for start, stop in spans] for line in (header, *rows)]


def _join_words(header: str, rows: Sequence[str], starts: Sequence[int]) -> Sequence[int]:
    """The positions without those between two words of a cell: only one of these words is below or above a name.

    The first column may be a date and a time. Below no name, it is the index of a data frame, whose other columns may
    have words that are aligned to the right.
    """
    has_name = [bool(header[start:stop].strip()) for start, stop in pairwise((*starts, len(header)))]
    if has_name[:2] == [True, False]:
        is_time = all(row[starts[1] - 2 : starts[1] - 1].strip() for row in rows)
        return [starts[0], *starts[2:]] if is_time else starts
    return [start for at, start in enumerate(starts) if at < 2 or has_name[0] or has_name[at - 1]]  # noqa: PLR2004


def _find_starts(lines: Iterable[str], stop: int) -> list[int]:
    """The positions before `stop` that are not blank in all lines, and whose position before is."""
    taken = 0
    for line in lines:
        taken |= int.from_bytes(line[:stop].encode("ascii", "replace").translate(_TAKEN), "little")
    marks = taken.to_bytes(stop, "little")
    return [at for at, mark in enumerate(marks) if mark and not (at and marks[at - 1])]


def _read_cell(line: str, start: int, stop: int | None) -> _Cell:
    padded = line[start:stop]
    text = padded.strip()
    start += len(padded) - len(padded.lstrip())
    return _Cell(text, start, start + len(text))


def _split_words(header: str, rows: Sequence[str]) -> list[list[_Cell]]:
    """The words of each line, and the rest of it below the last name; no cells if a line has fewer words."""
    names = [_Cell(word[0], *word.span()) for word in _WORD.finditer(header)]
    lines = [names]
    for row in rows:
        cells: list[_Cell] = []
        for name, word in zip(names[:-1], _WORD.finditer(row), strict=False):
            cell = _Cell(word[0], *word.span())
            shift = _measure_shift(cell, name, cells[-1]) if cells else 0
            cells.append(cell._replace(shift=shift) if shift else cell)
        last = _read_cell(row, cells[-1].stop, None)
        if not last.text:
            return [[]]
        if _NUMBER.fullmatch(last.text):
            last = last._replace(shift=_measure_shift(last, names[-1], cells[-1]))
        lines.append([*cells, last])
    return lines


def _measure_shift(cell: _Cell, name: _Cell, before: _Cell) -> int:
    """Characters by which a cell is to the right of its place; 0 if no wide number can be the cause.

    The place of a number ends where its name ends, that of any other cell begins where its name begins.
    """
    is_near = cell.start == before.stop + 1
    if not is_near and not before.shift:
        return 0
    is_number = _NUMBER.fullmatch(cell.text) is not None
    shift = cell.stop - name.stop if is_number else cell.start - name.start
    is_pushed = is_near and (is_number or before.shift > 0)
    return shift if shift > 0 and (is_pushed or shift <= before.shift) else 0


def _build_table(rows: Sequence[str], lines: Sequence[Sequence[_Cell]]) -> PipeTable | None:
    """The table of the cells of all lines, of which the first one has the names; None if the table is in doubt."""
    names, *cells_of_rows = lines
    if len(names) < _MIN_NAMES or not all(name.text for name in names[1:]):
        return None
    columns: list[_Column] = []
    index = {cells[0].text for cells in cells_of_rows}
    is_frame = not names[0].text and len(index) == len(cells_of_rows) and all(map(str.isdecimal, index))
    for name, *cells in zip(*lines, strict=True):
        filled = [cell for cell in cells if cell.text]
        has_numbers = all(_NUMBER.fullmatch(cell.text) for cell in filled)
        columns.append(_Column(name, filled, len(cells), has_numbers, is_frame))
    is_doubtful = (
        # Wide characters hide where the cells after them begin.
        not all(_EVEN_WIDTH.fullmatch(row, 0, names[-1].start) for row in rows)
        or any(column.may_be_one_with(following) for column, following in pairwise(columns))
        # A row with an empty cell may have two cells below the last name.
        or any("  " in cells[-1].text and not all(cell.text for cell in cells) for cells in cells_of_rows)
        # A row with only the first cell is a line of words.
        or any(not any(cell.text for cell in cells[1:]) for cells in cells_of_rows)
        or any(" " in name.text for name in names[:-1])
    )
    numbers = sum(column.has_numbers for column in columns)
    if is_doubtful or numbers < _MIN_NUMBERS or not all(column.is_aligned for column in columns) or columns[-1].has_gap:
        return None
    return PipeTable([name.text for name in names], [[cell.text for cell in cells] for cells in cells_of_rows])


class _Column(msgspec.Struct, frozen=True):
    """A column with those of its cells that are not empty."""

    name: _Cell
    cells: Sequence[_Cell]
    rows: int
    """The number of its cells, with empty ones."""
    has_numbers: bool
    is_of_frame: bool
    """The table begins with the numbers of its rows, as pandas prints it: all cells may be aligned to the right."""

    @property
    def is_aligned(self) -> bool:
        """Whether the cells are below the name. The first column may have no name, but then it has all cells."""
        name, cells = self.name, self.cells
        if not name.text:
            return len(cells) == self.rows
        if cells and self.has_numbers and all(cell.shift > 0 for cell in cells):
            return True
        has_words = any(" " in cell.text for cell in cells)
        if " " in name.text and (has_words or not _TWO_WORDS.fullmatch(name.text)):
            return False
        begin, end = [cell.start == name.start for cell in cells], [cell.stop == name.stop for cell in cells]
        within = [name.start <= cell.start and cell.stop <= name.stop for cell in cells]
        return any(
            any(are_placed)
            and all(is_placed or cell.shift > 0 for is_placed, cell in zip(are_placed, cells, strict=True))
            for are_placed in ((begin, *([end] if self.is_of_frame else [])) if has_words else (begin, end, within))
        )

    @property
    def has_gap(self) -> bool:
        """Whether all cells may have a second part, below no name: after two blank positions, or after a number."""
        blanks_of_cells = [
            {cell.start + at for at, character in enumerate(cell.text[:_GAP_CHARACTERS]) if character == " "}
            for cell in self.cells
        ]
        blanks = set.intersection(*blanks_of_cells)
        begin_with_numbers = all(_NUMBER.fullmatch(cell.text.partition(" ")[0]) for cell in self.cells)
        return bool(blanks if begin_with_numbers else blanks & {at + 1 for at in blanks})

    def may_be_one_with(self, following: "_Column") -> bool:
        """Whether the name may be the first of two words, and the cells the first words of others."""
        name, next_name = self.name, following.name
        has_empty = min(len(self.cells), len(following.cells)) < self.rows
        if not name.text or name.stop + 1 != next_name.start:
            return False
        if self.has_numbers and following.has_numbers and not has_empty:
            return False
        have_words = not (self.has_numbers or following.has_numbers)
        may_be_words = have_words and has_empty and not next_name.text.isupper()
        return may_be_words or _TWO_WORDS.fullmatch(f"{name.text} {next_name.text}") is not None

"""Finds the table that a text draws with bars, as Markdown, psql and MySQL do, with box characters, or with spaces."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from mcp_mirror.system.patterns import lazy_pattern

_BAR: Final = lazy_pattern(r"(?<!\\)\|")
"""A bar between two cells; a bar with a backslash is part of a cell."""
_BOX_BAR: Final = lazy_pattern("[\u2502\u2503\u2551]")
_BOX: Final = str.maketrans(
    dict.fromkeys(map(chr, range(0x2500, 0x2574)), "+")
    | dict.fromkeys("\u2502\u2503\u2551", "|")
    | dict.fromkeys("\u2500\u2501\u2550", "-")
)
"""Box characters, and the characters of rules that they stand for."""
_RULE_CHARACTERS: Final = frozenset("|+-=: \t") | frozenset(map(chr, _BOX))
_RULE_CELL: Final = lazy_pattern(r"\s*:?[-=]+:?\s*")
_FOOTER_RULE: Final = lazy_pattern("[\u251c\u2523\u2560].*[\u2534\u253b\u2569]")
"""A rule that ends all columns: below it is one cell, as DuckDB prints the number of rows, and another rule."""
_FOOTER_LINES: Final = 3
_CONTINUED: Final = lazy_pattern("[+\u21b5\u21b4][|\u2502\u2503\u2551]|\u21b5$")
"""The mark of psql and ClickHouse after a line of a cell that has more of them: `line one+| next cell`."""
_TYPE: Final = lazy_pattern(
    r"(?:u?(?:tiny|small|big|huge)?int(?:eger)?\d*|text|real|float|double|boolean|blob|json|uuid|interval|date|time"
    r"|(?:varchar|timestamp|decimal|numeric|enum|struct|map|union)\b.*)(?:\[\d*\])*",
    re.IGNORECASE,
)
"""The type of a column, which some databases print below its name."""
_MIN_SHARE: Final = 0.5
"""The least share of a text's lines that a table takes; a document that contains a table is not one."""
_MIN_ALIGNED_COLUMNS, _MIN_ALIGNED_ROWS = 2, 2
_HYPHENS: Final = lazy_pattern(r" *-{2,}(?: +-{2,})+ *")
"""The line of hyphens below the header of an aligned table."""
_DIGIT: Final = lazy_pattern(r"\d")
_UNIT: Final = lazy_pattern(r"\([a-z]+\)")
"""The unit of a column, which may have lower-case letters: `CPU(cores)`."""
_WORD: Final = lazy_pattern(r"\S+")
_RECORD: Final = lazy_pattern(r"-\[ RECORD \d+ \][-+]*|\*{3,} \d+\. row \*{3,}|Row \d+:|\d+\. row")
"""The line above each row that psql, mysql, ClickHouse or another program prints with a line for each column."""
_UNDERLINE: Final = lazy_pattern("\u2500+")
"""The line below that line, as ClickHouse prints it."""
_ROWS_IN_SET: Final = lazy_pattern(r"\d+ rows? in set\b.*|Result: \d+ rows?\b.*")
_NAMED_BORDER: Final = lazy_pattern("[\u250c\u2514]\u2500+[^\\s\u2500-\u257f].*[\u2510\u2518]")
"""The upper or lower border of a table that contains the names of the columns, as ClickHouse prints it."""
_BORDER_JOINT: Final = lazy_pattern("\u2500[\u252c\u2534]\u2500")
_ROW_NUMBER: Final = lazy_pattern("\\A\\d+\\. (?=[\u2502\u2503])")
"""The number before a row."""


class PipeTable(msgspec.Struct, frozen=True):
    """The table of a text."""

    header: list[str]
    rows: list[list[str]]
    """The cells of each row, as many as the header has, without the spaces around them."""


def find_pipe_table(text: str) -> PipeTable | None:
    """Find the only table of a text, which may have lines before and after it.

    Returns:
        None if the text has no table or several, if most of its lines are not part of the table, if a row has more
        cells than the header, so that no cell is lost, or if a cell has several lines, so that each row is one line.
        Words in a box are not a table either.
    """
    lines = [*_open_borders(line.strip() for line in text.split("\n") if line.strip())]
    rules = {at: rule for at, rule in enumerate(map(_read_rule, lines)) if rule}
    header_rules = [
        at for at in rules if at and at - 1 not in rules and _has_bar(lines[at - 1], is_box=_is_box(lines[at]))
    ]
    if not header_rules:
        return None
    drawing = _read_drawing(lines, rules, header_rules[0])
    header, rows = drawing.read_header(), drawing.read_rows()
    are_words = drawing.is_framed and not rows
    has_lost_cells = len(header) != _count_columns(drawing.rule) or any(len(row) > len(header) for row in rows)
    is_part = len(rows) + 2 < _MIN_SHARE * len(lines)
    has_second_header = header_rules[-1] >= len(lines) - len(drawing.below)
    has_second_rule = any(rule and not rule.startswith("+") for rule in drawing.body_rules)
    if are_words or has_lost_cells or is_part or has_second_header or has_second_rule or drawing.has_multiline_cells:
        return None
    return PipeTable(header, [row + [""] * (len(header) - len(row)) for row in rows])


def _open_borders(lines: Iterable[str]) -> Iterator[str]:
    """The lines of a table with a line of names below its upper border, and without names in its borders.

    Several tables with the same names become one. Other names are a row that is too long for the table above.
    """
    header: list[str] = []
    for line in lines:
        if not _NAMED_BORDER.fullmatch(line):
            yield _ROW_NUMBER.sub("", line, count=1) if line[0].isdigit() else line
            continue
        names = [name.strip("\u2500") for name in _BORDER_JOINT.split(line[1:-1])]
        if line.startswith("\u250c") and names != header:
            header += names
            yield "\u2502{}\u2502".format("\u2502".join(header))
        yield "\u251c{}\u2524".format("\u253c".join(["\u2500"] * len(names)))


class _Drawing(NamedTuple):
    """The lines that draw a table, and those below it.

    +----+------+
    | id | name |   above
    +----+------+   rule
    |  1 | Ada  |   body
    +----+------+   body
    """

    above: Sequence[str]
    """The lines with the names of the columns."""
    rule: str
    """The rule below them, in ASCII as all rules here: `+----+------+`."""
    body: Sequence[str]
    """The rows, and the rules between and below them."""
    body_rules: Sequence[str]
    """For each line of the body the rule that it is; empty for a row."""
    footer: Sequence[str]
    below: Sequence[str]
    """The lines that are not part of the table."""
    is_box: bool
    """The bars are box characters."""
    has_outer_bars: bool

    @property
    def is_framed(self) -> bool:
        """Whether a frame surrounds the cells, not as in Markdown and psql."""
        return self.rule.startswith("+")

    def read_header(self) -> list[str]:
        """The names of the columns."""
        names, *others = map(self._split_cells, self.above)
        if len(others) == 1 and all(map(_TYPE.fullmatch, others[0])):
            return names
        return [" ".join(filter(None, words)) for words in zip(names, *others, strict=False)]

    def read_rows(self) -> list[list[str]]:
        """The cells of each row."""
        return [self._split_cells(line) for line, rule in zip(self.body, self.body_rules, strict=True) if not rule]

    def _split_cells(self, line: str) -> list[str]:
        if self.has_outer_bars:
            line = line[1:] if _starts_with_bar(line) else line
            line = line if line.endswith(r"\|") or not _starts_with_bar(line[-1:]) else line[:-1]
        if self.is_box:
            return [cell.strip() for cell in _BOX_BAR.split(line)]
        return [cell.strip().replace(r"\|", "|") for cell in _BAR.split(line)]

    @property
    def has_multiline_cells(self) -> bool:
        """Whether a cell of a table, other than one of Markdown, has several lines, as databases print line breaks."""
        if "+" not in self.rule:
            return False
        if any(map(_CONTINUED.search, self.body)) or (self.is_framed and not self._is_closed):
            return True
        has_rules_between = any(self.body_rules[:-1])  # then a line below a row may continue it
        for (line, rule), (below, rule_below) in pairwise(zip(self.body, self.body_rules, strict=True)):
            if rule:
                continue
            if line.endswith("+") and not any(self._split_cells(below)[:-1]):
                return True
            if has_rules_between and not rule_below and not self._split_cells(below)[0]:
                return True
        return False

    @property
    def _is_closed(self) -> bool:
        """Whether the rows in a frame begin and end with a bar, and no lines follow without a rule between."""
        drawn = (*self.body, *self.footer)
        are_closed = ((_starts_with_bar(line) and _starts_with_bar(line[-1])) or _read_rule(line) for line in drawn)
        if self.has_outer_bars and not all(are_closed):
            return False
        ends_in_rule = not drawn or _read_rule(drawn[-1]) != ""
        return ends_in_rule or not any(_has_bar(line, is_box=self.is_box) for line in self.below)


def _read_drawing(lines: Sequence[str], rules: Mapping[int, str], header_rule: int) -> _Drawing:
    """Read the table around the rule below its header. `rules` has the rules among the lines by their positions."""
    is_box = _is_box(lines[header_rule])
    start = header_rule - 1
    while start and start - 1 not in rules and _has_bar(lines[start - 1], is_box=is_box):
        start -= 1
    if start - 1 not in rules:  # lines before the table that have bars too
        start = header_rule - 1
    body_start = stop = header_rule + 1
    while stop < len(lines) and (
        _FOOTER_RULE.match(lines[stop]) is None if stop in rules else _has_bar(lines[stop], is_box=is_box)
    ):
        stop += 1
    footer_stop = stop + (_FOOTER_LINES if stop in rules else 0)
    return _Drawing(
        above=lines[start:header_rule],
        rule=rules[header_rule],
        body=lines[body_start:stop],
        body_rules=[rules.get(at, "") for at in range(body_start, stop)],
        footer=lines[stop:footer_stop],
        below=lines[footer_stop:],
        is_box=is_box,
        has_outer_bars=_starts_with_bar(lines[header_rule - 1]),
    )


def _read_rule(line: str) -> str:
    """A line such as `|---|:-:|` or `+---+---+`, with these in place of box characters; empty for any other line."""
    rule = line.translate(_BOX) if _RULE_CHARACTERS.issuperset(line) else ""
    return rule if _count_columns(rule) else ""


def _count_columns(rule: str) -> int:
    """The columns of a rule; 0 for other texts of the same characters."""
    if not ("|" in rule or "+" in rule):
        return 0
    cells = re.split(r"[|+]", rule.strip("|+"))
    return len(cells) if all(_RULE_CELL.fullmatch(cell) for cell in cells) else 0


def _is_box(rule: str) -> bool:
    return not rule.isascii()


def _has_bar(line: str, *, is_box: bool) -> bool:
    """Whether a line has a bar between cells."""
    return _BOX_BAR.search(line) is not None if is_box else "|" in line


def _starts_with_bar(line: str) -> bool:
    return line.startswith("|") or _BOX_BAR.match(line) is not None


def find_record_table(text: str) -> PipeTable | None:
    """Find the table that is a text with a line for each column of each row, as `psql -x` and `mysql -E` print it.

        -[ RECORD 1 ]
        id   | 1
        name | Ada

    Returns:
        None for any other text, if rows have different columns, or if a cell has several lines.
    """
    stripped = (line.strip() for line in text.split("\n"))
    lines = [line for line in stripped if line and not _UNDERLINE.fullmatch(line)]
    if not lines or not _RECORD.fullmatch(lines[0]):
        return None
    separator = "|" if lines[0].startswith("-") else ":"
    records: list[list[tuple[str, str]]] = []
    for line in lines[:-1] if _ROWS_IN_SET.fullmatch(lines[-1]) else lines:
        name, has_separator, value = line.partition(separator)
        if _RECORD.fullmatch(line):
            records.append([])
        elif has_separator:
            records[-1].append((name.strip(), value.strip()))
        else:
            return None
    header = [name for name, _ in records[0]]
    if not header or not all(header) or any([name for name, _ in record] != header for record in records):
        return None
    return PipeTable(header, [[value for _, value in record] for record in records])


def find_first_records(lines: Sequence[str]) -> PipeTable | None:
    """Find such a table in the first lines of a text, of which the last row may be cut, unless it is the only one."""
    last = next((at for at in range(len(lines) - 1, 0, -1) if _RECORD.fullmatch(lines[at].strip())), len(lines))
    return find_record_table("\n".join(lines[:last]))


def find_aligned_table(text: str) -> PipeTable | None:
    """Find the table that a whole text aligns with spaces, as command lines do: `docker ps`, `kubectl get`, `pip list`.

        NAME   READY  STATUS
        web-1  1/1    Running
        web-2  0/1    Pending

    Its columns begin where the groups of a line of hyphens below the header begin. Without such a line, the header has
    upper-case letters and no digits, and its words begin where the cells below them begin. Returns None for any other
    text, and if a cell crosses the beginning of a column.
    """
    if "\t" in text:
        return None
    header, *rows = (line.rstrip() for line in text.strip("\r\n").split("\n"))
    if rows and _HYPHENS.fullmatch(rows[0]):
        starts = [hyphens.start() for hyphens in _WORD.finditer(rows.pop(0))]
        is_aligned = not any(_crosses_start(line, starts) for line in (header, *rows))
    elif _UNIT.sub("", header).isupper() and not (_DIGIT.search(header) or all(map(str.isupper, rows))):
        starts = [word.start() for word in _WORD.finditer(header) if _begins_column(header, rows, word.start())]
        is_aligned = all(not _crosses_start(line, starts) and _is_left_aligned(line, starts) for line in rows)
    else:
        return None
    is_table = is_aligned and len(starts) >= _MIN_ALIGNED_COLUMNS and len(rows) >= _MIN_ALIGNED_ROWS and all(rows)
    return PipeTable(_strip_cells(header, starts), [_strip_cells(row, starts) for row in rows]) if is_table else None


def _begins_column(header: str, rows: Sequence[str], start: int) -> bool:
    """Whether a word of the header begins a column: two spaces precede it, or cells begin below it and none crosses."""
    if not header[start - 2 : start].strip():
        return True
    has_cells_below = any(row[start : start + 1].strip() for row in rows)
    return has_cells_below and not any(_crosses_start(row, (start,)) for row in rows)


def _crosses_start(line: str, starts: Sequence[int]) -> bool:
    """Whether a cell of a line crosses the beginning of a column, which is impossible at 0."""
    return any(line[start - 1 : start].strip() for start in starts)


def _is_left_aligned(line: str, starts: Sequence[int]) -> bool:
    return not any(cell[:1] == " " and cell.strip() for cell in _slice_at(line, starts))


def _slice_at(line: str, starts: Sequence[int]) -> list[str]:
    return [line[start:stop] for start, stop in zip(starts, (*starts[1:], None), strict=True)]


def _strip_cells(line: str, starts: Sequence[int]) -> list[str]:
    return [cell.strip() for cell in _slice_at(line, starts)]

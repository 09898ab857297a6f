"""Finds the table that a text draws with bars, as Markdown, psql and MySQL do, with box characters, or with spaces."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Final, NamedTuple

import msgspec

_BAR: Final = re.compile(r"(?<!\\)\|")
"""A bar between two cells; a bar with a backslash is part of a cell."""
_BOX_BAR: Final = re.compile("[\u2502\u2503\u2551]")
_BOX: Final = str.maketrans(
    dict.fromkeys(map(chr, range(0x2500, 0x2574)), "+")
    | dict.fromkeys("\u2502\u2503\u2551", "|")
    | dict.fromkeys("\u2500\u2501\u2550", "-")
)
"""Box characters, and the characters of rules that they stand for."""
_RULE_CHARACTERS: Final = frozenset("|+-=: \t") | frozenset(map(chr, _BOX))
_RULE_CELL: Final = re.compile(r"\s*:?[-=]+:?\s*")
_FOOTER_RULE: Final = re.compile("[\u251c\u2523\u2560].*[\u2534\u253b\u2569]")
"""A rule that ends all columns: below it is one cell, as DuckDB prints the number of rows, and another rule."""
_FOOTER_LINES: Final = 3
_CONTINUED: Final = re.compile("[+\u21b5\u21b4][|\u2502\u2503\u2551]|\u21b5$")
"""The mark of psql and ClickHouse after a line of a cell that has more of them: `line one+| next cell`."""
_TYPE: Final = re.compile(
    r"(?:u?(?:tiny|small|big|huge)?int(?:eger)?\d*|text|real|float|double|boolean|blob|json|uuid|interval|date|time"
    r"|(?:varchar|timestamp|decimal|numeric|enum|struct|map|union)\b.*)(?:\[\d*\])*",
    re.IGNORECASE,
)
"""The type of a column, which some databases print below its name."""
_MIN_SHARE: Final = 0.5
"""The least share of a text's lines that a table takes; a document that contains a table is not one."""
_MIN_ALIGNED_COLUMNS, _MIN_ALIGNED_ROWS = 2, 2
_GROUPS: Final = re.compile(r" *-{2,}(?: +-{2,})+ *")
"""The line of hyphens below the header of an aligned table."""
_DIGIT: Final = re.compile(r"\d")
_UNIT: Final = re.compile(r"\([a-z]+\)")
"""The unit of a column, which may have lower-case letters: `CPU(cores)`."""
_WORD: Final = re.compile(r"\S+")


_RECORD: Final = re.compile(r"-\[ RECORD \d+ \][-+]*|\*{3,} \d+\. row \*{3,}|Row \d+:|\d+\. row")
"""The line above each row that psql, mysql, ClickHouse or another program prints with a line for each column."""
_UNDERLINE: Final = re.compile("\u2500+")
"""The line below that line, as ClickHouse prints it."""
_ROWS_IN_SET: Final = re.compile(r"\d+ rows? in set\b.*|Result: \d+ rows?\b.*")
_NAMED_BORDER: Final = re.compile("[\u250c\u2514]\u2500+[^\\s\u2500-\u257f].*[\u2510\u2518]")
"""The upper or lower border of a table that contains the names of the columns, as ClickHouse prints it."""
_BORDER_JOINT: Final = re.compile("\u2500[\u252c\u2534]\u2500")
_ROW_NUMBER: Final = re.compile("\\d+\\. (?=[\u2502\u2503])")
"""The number before a row."""


class PipeTable(msgspec.Struct, frozen=True):
    """The table of a text."""

    header: list[str]
    rows: list[list[str]]
    """The cells of each row, as many as the header has, without the spaces around them."""


class _Form(NamedTuple):
    """How a table is drawn."""

    is_box: bool
    has_outer_bars: bool


def find_pipe_table(text: str) -> PipeTable | None:
    """Find the only table of a text, which may have lines before and after it.

    Returns:
        None if the text has no table or several, if most of its lines are not part of the table, if a row has more
        cells than the header, so that no cell is lost, or if a cell has several lines, so that each row is one line.
        Words in a box are not a table either.
    """
    lines = [*_open_borders(line.strip() for line in text.split("\n") if line.strip())]
    rules = {at: text for at, text in enumerate(map(_read_rule, lines)) if text}
    below_header = [at for at in rules if at and at - 1 not in rules and _has_bar(lines[at - 1], lines[at])]
    if not below_header:
        return None
    rule = below_header[0]
    form = _Form(_is_box(lines[rule]), _starts_with_bar(lines[rule - 1]))
    header = _read_header(lines, rules, rule, form)
    rows: list[list[str]] = []
    end = rule + 1
    while end < len(lines) and (end in rules or _has_bar(lines[end], lines[rule])):
        if end not in rules:
            rows.append(_split_cells(lines[end], form))
        elif _FOOTER_RULE.match(lines[end]):
            end += _FOOTER_LINES
            break
        elif not rules[end].startswith("+"):  # the rule of another table
            return None
        end += 1
    is_whole = all(len(row) <= len(header) for row in rows) and (rows or not rules[rule].startswith("+"))
    is_only = all(at < end for at in below_header[1:])
    if _count_columns(rules[rule]) != len(header) or not is_whole or not is_only:
        return None
    if len(rows) + 2 < _MIN_SHARE * len(lines) or _has_cells_of_lines(lines[rule:], end - rule, form):
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


def find_record_table(text: str) -> PipeTable | None:
    """Find the table that is a text with a line for each column of each row, as `psql -x` and `mysql -E` print it.

    Returns:
        None for any other text, if rows have different columns, or if a cell has several lines.
    """
    stripped = (line.strip() for line in text.split("\n"))
    lines = [line for line in stripped if line and not _UNDERLINE.fullmatch(line)]
    if not lines or not _RECORD.fullmatch(lines[0]):
        return None
    separator = "|" if lines[0].startswith("-") else ":"
    cells: list[tuple[str, str, str]] = []
    rows: list[int] = []
    for line in lines[:-1] if _ROWS_IN_SET.fullmatch(lines[-1]) else lines:
        if _RECORD.fullmatch(line):
            rows.append(len(cells))
        else:
            cells.append(line.partition(separator))
    header = [name.strip() for name, _, _ in cells[: rows[1] if len(rows) > 1 else len(cells)]]
    width = len(header)
    names = (name.strip() for name, _, _ in cells)
    if not all(header) or rows != [width * at for at in range(len(rows))] or len(cells) != width * len(rows):
        return None
    if any(name != header[at % width] for at, name in enumerate(names)) or not all(mark for _, mark, _ in cells):
        return None
    if not cells:
        return None
    return PipeTable(header, [[value.strip() for _, _, value in cells[at : at + width]] for at in rows])


def find_first_records(lines: Sequence[str]) -> PipeTable | None:
    """The same for the first lines of a text: the last row may be cut, unless it is the only one."""
    last = next((at for at in range(len(lines) - 1, 0, -1) if _RECORD.fullmatch(lines[at].strip())), len(lines))
    return find_record_table("\n".join(lines[:last]))


def _has_cells_of_lines(lines: Sequence[str], count: int, form: _Form) -> bool:
    """Whether a cell of a table, other than one of Markdown, has several lines, as databases print line breaks.

    Args:
        lines: The lines from the rule below the header on.
        count: How many of them are part of the table.
        form: How it is drawn.
    """
    rule = _read_rule(lines[0])
    if "+" not in rule:
        return False
    drawn = list(takewhile(lambda line: not _FOOTER_RULE.match(line), lines[1:count]))
    if any(map(_CONTINUED.search, drawn)) or (rule.startswith("+") and not _is_closed(lines, count, form)):
        return True
    are_rules = [_read_rule(line) != "" for line in drawn]
    for line, below, is_rule in zip(drawn, drawn[1:], are_rules, strict=False):
        if line.endswith("+") and not is_rule and not any(_split_cells(below, form)[:-1]):
            return True
    followers = [line for line, of_two in zip(drawn[1:], pairwise(are_rules), strict=True) if not any(of_two)]
    return any(are_rules[:-1]) and any(not _split_cells(line, form)[0] for line in followers)


def _is_closed(lines: Sequence[str], count: int, form: _Form) -> bool:
    """Whether the rows of a box begin and end with a bar, and no lines follow without a rule between."""
    table, below = lines[:count], lines[count:]
    ends = (line for line in table if not (_starts_with_bar(line) and _starts_with_bar(line[-1])))
    if form.has_outer_bars and not all(map(_read_rule, ends)):
        return False
    return _read_rule(table[-1]) != "" or not any(_has_bar(line, lines[0]) for line in below)


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


def _has_bar(line: str, rule: str) -> bool:
    """Whether a line has a bar between cells, of the kind that fits a rule."""
    return _BOX_BAR.search(line) is not None if _is_box(rule) else "|" in line


def _starts_with_bar(line: str) -> bool:
    return line.startswith("|") or _BOX_BAR.match(line) is not None


def _read_header(lines: Sequence[str], rules: Mapping[int, str], rule: int, form: _Form) -> list[str]:
    """The names of the columns above a rule: of the lines below another rule, or of one line."""
    first = rule - 1
    while first and first - 1 not in rules and _has_bar(lines[first - 1], lines[rule]):
        first -= 1
    names, *others = (_split_cells(line, form) for line in lines[first if first - 1 in rules else rule - 1 : rule])
    if len(others) == 1 and all(map(_TYPE.fullmatch, others[0])):
        return names
    return [" ".join(filter(None, cells)) for cells in zip(names, *others, strict=False)]


def _split_cells(line: str, form: _Form) -> list[str]:
    if form.has_outer_bars:
        line = line[1:] if _starts_with_bar(line) else line
        line = line if line.endswith(r"\|") or not _starts_with_bar(line[-1:]) else line[:-1]
    if form.is_box:
        return [cell.strip() for cell in _BOX_BAR.split(line)]
    return [cell.strip().replace(r"\|", "|") for cell in _BAR.split(line)]


def find_aligned_table(text: str) -> PipeTable | None:
    """Find the table that a whole text aligns with spaces, as command lines do: `docker ps`, `kubectl get`, `pip list`.

    Its columns begin where the groups of a line of hyphens below the header begin. Without such a line, the header has
    upper-case letters and no digits, and its words begin where the cells below them begin. Returns None for any other
    text, and if a cell crosses the beginning of a column.
    """
    if "\t" in text:
        return None
    header, *rows = (line.rstrip() for line in text.strip("\r\n").split("\n"))
    if rows and _GROUPS.fullmatch(rows[0]):
        starts = [word.start() for word in _WORD.finditer(rows.pop(0))]
        is_aligned = all(_is_free(line, starts) for line in (header, *rows))
    elif _UNIT.sub("", header).isupper() and not (_DIGIT.search(header) or all(map(str.isupper, rows))):
        starts = [word.start() for word in _WORD.finditer(header) if _begins_column(header, rows, word.start())]
        is_aligned = all(_is_free(line, starts) and _is_left_aligned(line, starts) for line in rows)
    else:
        return None
    is_table = is_aligned and len(starts) >= _MIN_ALIGNED_COLUMNS and len(rows) >= _MIN_ALIGNED_ROWS and all(rows)
    return PipeTable(_cut(header, starts), [_cut(row, starts) for row in rows]) if is_table else None


def _begins_column(header: str, rows: Sequence[str], start: int) -> bool:
    """Whether a word of the header begins a column: two spaces precede it, or cells begin below it and none crosses."""
    if not header[start - 2 : start].strip():
        return True
    return any(row[start : start + 1].strip() for row in rows) and all(_is_free(row, (start,)) for row in rows)


def _is_free(line: str, starts: Sequence[int]) -> bool:
    """Whether no cell of a line crosses the beginning of a column, which nothing can do at 0."""
    return not any(line[start - 1 : start].strip() for start in starts)


def _is_left_aligned(line: str, starts: Sequence[int]) -> bool:
    return not any(cell[:1] == " " and cell.strip() for cell in _slice(line, starts))


def _slice(line: str, starts: Sequence[int]) -> list[str]:
    return [line[start:stop] for start, stop in zip(starts, (*starts[1:], None), strict=True)]


def _cut(line: str, starts: Sequence[int]) -> list[str]:
    return [cell.strip() for cell in _slice(line, starts)]

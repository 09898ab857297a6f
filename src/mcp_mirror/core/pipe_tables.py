"""Finds the table that a text draws with bars, as Markdown, psql and the clients of MySQL do."""

import re
from typing import Final

import msgspec

_BAR: Final = re.compile(r"(?<!\\)\|")
"""A bar between two cells; a bar with a backslash is part of a cell."""
_RULE_CHARACTERS: Final = frozenset("|+-=: \t")
_RULE_CELL: Final = re.compile(r"\s*:?[-=]+:?\s*")
_MIN_SHARE: Final = 0.5
"""The least share of a text's lines that a table takes; a document that contains a table is not one."""


class PipeTable(msgspec.Struct, frozen=True):
    """The table of a text."""

    header: list[str]
    rows: list[list[str]]
    """The cells of each row, as many as the header has, without the spaces around them."""


def find_pipe_table(text: str) -> PipeTable | None:
    """Find the only table of a text, which may have lines before and after it.

    Returns:
        None if the text has no table or several, if most of its lines are not part of the table, or if a row has
        more cells than the header, so that no cell is lost.
    """
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    rules = dict.fromkeys(at for at, line in enumerate(lines) if _count_columns(line))
    below_header = [at for at in rules if at and at - 1 not in rules and "|" in lines[at - 1]]
    if not below_header:
        return None
    rule = below_header[0]
    has_outer_bars = lines[rule - 1].startswith("|")
    header = _split_cells(lines[rule - 1], has_outer_bars=has_outer_bars)
    rows: list[list[str]] = []
    end = rule + 1
    while end < len(lines) and (end in rules or "|" in lines[end]):
        if end not in rules:
            rows.append(_split_cells(lines[end], has_outer_bars=has_outer_bars))
        elif not lines[end].startswith("+"):  # the rule of another table
            return None
        end += 1
    is_whole = all(len(row) <= len(header) for row in rows)
    is_only = all(at < end and lines[at].startswith("+") for at in below_header[1:])
    if _count_columns(lines[rule]) != len(header) or not is_whole or not is_only:
        return None
    if len(rows) + 2 < _MIN_SHARE * len(lines):
        return None
    return PipeTable(header, [row + [""] * (len(header) - len(row)) for row in rows])


def _count_columns(line: str) -> int:
    """The columns of a line such as `|---|:-:|` or `+---+---+`; 0 for any other line."""
    if not _RULE_CHARACTERS.issuperset(line) or not ("|" in line or "+" in line):
        return 0
    cells = re.split(r"[|+]", line.strip("|+"))
    return len(cells) if all(_RULE_CELL.fullmatch(cell) for cell in cells) else 0


def _split_cells(line: str, *, has_outer_bars: bool) -> list[str]:
    if has_outer_bars:
        line = line.removeprefix("|")
        line = line if line.endswith(r"\|") else line.removesuffix("|")
    return [cell.strip().replace(r"\|", "|") for cell in _BAR.split(line)]

"""Writes the tables of measurements into the documentation, each with the commit and the date of its run."""

import subprocess
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "operations" / "performance.md"
_BEGIN: Final = "<!-- bench {}: written by `make bench` -->"
_END: Final = "<!-- end of bench {} -->"


class Recorder(Console):
    """A console that keeps the tables that it prints."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[Table] = []

    def print(self, *objects: Any, **settings: Any) -> None:
        """Print, and keep tables."""
        super().print(*objects, **settings)
        self.tables += [one for one in objects if isinstance(one, Table)]


def write_tables(name: str, tables: Iterable[Table], page: Path = PAGE) -> None:
    """Replace the section of a measurement in the documentation; a page without the section stays as it is."""
    begin, end = _BEGIN.format(name), _END.format(name)
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        return
    stamp = f"Commit {commit()}, {datetime.now(UTC):%Y-%m-%d}."
    text = "\n".join((begin, stamp, *(line for table in tables for line in markdown_of(table)), end))
    page.write_text(f"{before}{text}{after}", encoding="utf-8")


def commit() -> str:
    """Return the short name of the current commit; `-dirty` follows if files of the product or of tests differ."""
    argv = ["git", "describe", "--always", "--exclude=*", "--abbrev=8"]
    name = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    argv = ["git", "diff", "--quiet", "HEAD", "--", "src", "tests"]
    return name if subprocess.run(argv, cwd=ROOT, check=False, timeout=30).returncode == 0 else f"{name}-dirty"


def markdown_of(table: Table) -> Iterator[str]:
    """Return the lines of a table in Markdown, after a blank line, its title and another blank line."""
    lines: list[Sequence[str]] = [[str(column.header) for column in table.columns]]
    lines += zip(*([str(cell) for cell in column.cells] for column in table.columns), strict=True)
    widths = [max(len(line[at]) for line in lines) for at in range(len(table.columns))]
    lines.insert(1, ["-" * widths[0], *(f"{'-' * (width - 1)}:" for width in widths[1:])])
    yield from ("", f"{table.title}:", "")
    for line in lines:
        yield f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |"
    yield ""

"""The console that tables, problems and progress are printed to."""

import os
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NoReturn

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

IS_GATEWAY: Final = (
    "It is an mcp-mirror gateway, and memory paths of one gateway do not work through another. Connect the client to "
    "it directly."
)
"""The problem of an upstream that is a gateway."""
_INDENT: Final = "    "
_NO_BREAK: Final = "\u00a0"
"""A space at which a line is not wrapped."""
VALUES_IN_MEMORY: Final = "A gateway on stdio keeps values in memory, and loses them when it ends."
"""The beginning of a warning of `check` about the store that a gateway on stdio opens by default."""


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        """Raise the error: rich raises SystemExit, at which asyncio leaves its other tasks as they are."""
        raise BrokenPipeError from None


def open_console(*, is_stderr: bool = False) -> Console:
    """Return a console; where its output goes into a file or a pipe, it is wide enough not to cut tables."""
    console = _Console(stderr=is_stderr, soft_wrap=True)
    # Columns of other output; its tables may be wider.
    return console if console.is_terminal else _Console(stderr=is_stderr, soft_wrap=True, width=250)


def new_table(texts: Iterable[str], numbers: Iterable[str] = ()) -> Table:
    """Return a table with columns of texts and then columns of numbers."""
    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in texts:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def print_table(table: Table, title: int = 0) -> None:
    """Print a table of texts whole, never a part of it. The text of the column `title` begins a paragraph.

    If a terminal is too narrow for it, the names of columns get two lines. If it is still too narrow, each row is a
    paragraph. Files and pipes always get the table.
    """
    console = open_console()
    names = [str(column.header) for column in table.columns]
    width = _measure(table, console)
    if console.is_terminal and width > console.width:
        for column in table.columns:
            column.header = str(column.header).replace(" ", "\n", 1)
        width = _measure(table, console)
    if console.is_terminal and width > console.width:
        for line in _list_paragraphs(table, names, title, console.width):
            console.print(line, markup=False, highlight=False)
    else:
        console.print(table, markup=False, highlight=False, width=width)


def _measure(table: Table, console: Console) -> int:
    """Return the width of a table whose cells are not wrapped."""
    return console.measure(table, options=console.options.update(max_width=1 << 16)).maximum


def _list_paragraphs(table: Table, names: list[str], title: int, width: int) -> Iterator[str]:
    """Yield the lines of each row: the title as it is, then the other texts with the names of their columns."""
    wrapper = textwrap.TextWrapper(
        width, initial_indent=_INDENT, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False
    )
    for row in zip(*(map(str, column.cells) for column in table.columns), strict=True):
        facts = dict(zip(names, row, strict=True))
        yield facts.pop(names[title])
        shown = [f"{name}: {text}".replace(" ", _NO_BREAK) for name, text in facts.items() if text]
        for line in wrapper.wrap(", ".join(shown)):
            yield line.replace(_NO_BREAK, " ")


def print_problems(problems: Iterable[str], kind: str = "problem") -> None:
    """Print problems or warnings to standard error, one a line; equal ones once, with their number."""
    console = open_console(is_stderr=True)
    for problem, count in Counter(problems).items():
        times = f" ({count:,} times)" if count > 1 else ""
        console.print(f"{kind}: {problem}{times}", style="yellow", highlight=False, markup=False)


def can_show_progress(console: Console) -> bool:
    """Whether the console writes to a terminal that can replace lines."""
    # FORCE_COLOR makes rich treat a pipe as a terminal, but it is about colors only.
    is_terminal = console.file.isatty() or os.environ.get("TTY_COMPATIBLE") == "1"
    return console.is_interactive and is_terminal


def show_progress(console: Console, describe: Callable[[], str]) -> AbstractContextManager[object]:
    """Show lines on a terminal for the duration of the context, and erase them at its end.

    Files and pipes get nothing. A thread calls `describe` for the lines several times a second. Lines wider than the
    terminal are cut.
    """
    if not can_show_progress(console):
        return nullcontext()
    from rich.live import Live  # noqa: PLC0415  # for terminals only

    def write_lines() -> Text:
        return Text(describe(), no_wrap=True, overflow="ellipsis")

    return Live(get_renderable=write_lines, console=console, transient=True, redirect_stdout=False)


def describe_progress(notification: Mapping[str, Any]) -> str:
    """Return the parameters of a progress notification in one line, such as `2/5, Reading page 2`."""
    done, total = notification.get("progress", 0), notification.get("total")
    counts = _format_number(done) if total is None else f"{_format_number(done)}/{_format_number(total)}"
    message = " ".join(str(notification.get("message", "")).split())
    return f"{counts}, {message}" if message else counts


def _format_number(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else f"{number:,.2f}"

"""The console that tables and problems are printed to."""

from collections.abc import Iterable
from typing import Final

from rich.console import Console

_WIDTH: Final = 250
"""Columns of a table that is not printed to a terminal."""


def open_console(*, is_stderr: bool = False) -> Console:
    """Return a console; where its output goes into a file or a pipe, it is wide enough not to cut tables."""
    console = Console(stderr=is_stderr, soft_wrap=True)
    return console if console.is_terminal else Console(stderr=is_stderr, soft_wrap=True, width=_WIDTH)


def print_problems(problems: Iterable[str]) -> None:
    """Print problems to standard error, one a line."""
    for problem in problems:
        open_console(is_stderr=True).print(f"problem: {problem}", style="yellow", highlight=False, markup=False)

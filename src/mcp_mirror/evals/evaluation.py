"""`mcp-mirror eval`: the runs with a progress bar, the table, and the exit code. Ctrl-C stops it at any time."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mcp_mirror.evals.log import VOID, Log, Record
from mcp_mirror.evals.matrix import Setting
from mcp_mirror.evals.options import Options, read_matrix
from mcp_mirror.evals.report import By, Format, Row, as_json, as_markdown, as_table, rows_of, skipped_rows
from mcp_mirror.evals.runs import MAX_CONSECUTIVE_FAILURES, check_matrix, run_all

_FAILED: Final = 1
_INTERRUPTED: Final = 130
_FILE_WIDTH: Final = 250
"""Columns of a table that is not written to a terminal."""


@dataclass(frozen=True, slots=True)
class Output:
    """The format of the output, and the required share of successes."""

    by: By
    form: Format
    require: float = 0.0
    """The share of runs that must succeed."""


def run_evaluation(options: Options, log: Path | None, jobs: int, output: Output) -> int:
    """Perform the runs, print the table, and return the exit code.

    Raises:
        MirrorError: An option, a file or a configuration is not valid.
    """
    matrix = read_matrix(options)
    settings = check_matrix(matrix)
    records = _run_missing(settings, Log(log), jobs)
    skipped = [] if output.by == "setting" else skipped_rows(matrix)
    _print([*rows_of(records, output.by), *skipped], output)
    has_void = any(record["end"] == VOID for record in records)
    if len(records) < len(settings):
        return _FAILED if has_void else _INTERRUPTED
    has_enough = sum(record["success"] for record in records) >= output.require * len(settings)
    return 0 if has_enough and not has_void else _FAILED


def _print_error(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201  # for the operator


def _run_missing(settings: Sequence[Setting], log: Log, jobs: int) -> list[Record]:
    """Perform the runs that are not in the log. Returns all records, even after an interrupt."""
    keys = [setting.key for setting in settings]
    console = Console(stderr=True)
    printed: set[str] = set()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("runs", total=len(settings), completed=sum(map(log.has, keys)))

        def done(record: Record) -> None:
            successes = sum(one["success"] for one in log.of(keys))
            progress.update(task, advance=1, description=f"runs, {successes} succeeded; last {record['case']}")
            if record["end"] == VOID and record["detail"] not in printed:
                printed.add(record["detail"])
                console.print(f"mcp-mirror: a run failed: {record['detail']}", highlight=False, markup=False)

        try:
            anyio.run(run_all, settings, log, jobs, done)
        except KeyboardInterrupt:
            _print_error("Interrupted. Continue with the same command and the same --log.")
        else:
            if len(log.of(keys)) < len(settings):
                _print_error(f"mcp-mirror: stopped, because {MAX_CONSECUTIVE_FAILURES} runs in a row failed.")
    return log.of(keys)


def _print(rows: Sequence[Row], output: Output) -> None:
    if output.form == "table":
        console = Console()
        (console if console.is_terminal else Console(width=_FILE_WIDTH)).print(as_table(rows))
    else:
        print((as_markdown if output.form == "markdown" else as_json)(rows))  # noqa: T201  # the output

"""An evaluation from what was asked for to its table: a bar while it runs, Ctrl-C at any time, an exit code."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mcp_mirror.errors import MirrorError
from mcp_mirror.evals.asking import Asked, read_matrix
from mcp_mirror.evals.campaign import HOPELESS, check_matrix, run_all
from mcp_mirror.evals.log import VOID, Log, Record
from mcp_mirror.evals.matrix import Setting
from mcp_mirror.evals.report import By, Format, as_json, as_markdown, as_table, rows_of

_UNMET: Final = 1
_MISUSED: Final = 2
_INTERRUPTED: Final = 130
_UNCUT: Final = 250
"""Columns of a table that is no terminal's."""


@dataclass(frozen=True, slots=True)
class Output:
    """What is printed, and what must be met."""

    by: By
    form: Format
    require: float = 0.0
    """The share of runs that must do well."""


def conduct(asked: Asked, log: Path | None, jobs: int, output: Output) -> int:
    """Run what is asked for and print it; the exit code."""
    try:
        settings = check_matrix(read_matrix(asked))
        records = _run(settings, Log(log), jobs)
    except MirrorError as error:
        _say(f"mcp-mirror: {error}")
        return _MISUSED
    _print(records, output)
    is_whole = all(record["end"] != VOID for record in records)
    if len(records) < len(settings):
        return _INTERRUPTED if is_whole else _UNMET
    is_enough = sum(record["success"] for record in records) >= output.require * len(settings)
    return 0 if is_whole and is_enough else _UNMET


def _say(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201  # to the operator


def _run(settings: Sequence[Setting], log: Log, jobs: int) -> list[Record]:
    """Make what is missing; what was made before it was broken off is told too."""
    keys = [setting.key for setting in settings]
    console = Console(stderr=True)
    told: set[str] = set()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("runs", total=len(settings), completed=sum(map(log.has, keys)))

        def done(record: Record) -> None:
            good = sum(one["success"] for one in log.of(keys))
            progress.update(task, advance=1, description=f"runs, {good} well; last {record['case']}")
            if record["end"] == VOID and record["detail"] not in told:
                told.add(record["detail"])
                console.print(f"mcp-mirror: a run failed: {record['detail']}", highlight=False, markup=False)

        try:
            anyio.run(run_all, settings, log, jobs, done)
        except KeyboardInterrupt:
            _say("Broken off. The same command with the same --log goes on.")
        else:
            if len(log.of(keys)) < len(settings):
                _say(f"mcp-mirror: {HOPELESS} runs in a row failed, so that no more are made.")
    return log.of(keys)


def _print(records: Sequence[Record], output: Output) -> None:
    rows = rows_of(records, output.by)
    if output.form == "table":
        console = Console()
        (console if console.is_terminal else Console(width=_UNCUT)).print(as_table(rows))
    else:
        print((as_markdown if output.form == "markdown" else as_json)(rows))  # noqa: T201  # the output

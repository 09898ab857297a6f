"""`mcp-mirror eval`: its options, the runs with a progress bar, the table, and the exit code."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import anyio
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mcp_mirror.evals.dialects import ToolsMode
from mcp_mirror.evals.log import VOID, Log, Record
from mcp_mirror.evals.matrix import Setting
from mcp_mirror.evals.profiles import read_matrix
from mcp_mirror.evals.report import By, Format, Row, as_json, as_markdown, as_table, rows_of, skipped_rows
from mcp_mirror.evals.runs import MAX_CONSECUTIVE_FAILURES, check_matrix, run_all

Both = Literal["yes", "no", "both"]

_FLAGS: Final[Mapping[Both, tuple[bool, ...]]] = {"yes": (True,), "no": (False,), "both": (True, False)}


def evaluate(  # noqa: PLR0913, PLR0917  # the options of a command line
    cases: Annotated[list[str] | None, typer.Argument(help="Case files, folders of them, or globs.")] = None,
    model: Annotated[str | None, typer.Option(help="The model's name at the endpoint.")] = None,
    base_url: Annotated[str | None, typer.Option(help="The endpoint, such as http://127.0.0.1:8080/v1.")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="The environment variable with its key.")] = None,
    tools: Annotated[ToolsMode | None, typer.Option(help="How the model calls tools. By default native.")] = None,
    profile: Annotated[str | None, typer.Option(help="A model or matrix of a YAML file.", metavar="FILE:NAME")] = None,
    notice: Annotated[str | None, typer.Option(help="Styles of notices, separated by commas.")] = None,
    variant: Annotated[str | None, typer.Option(help="Variants of the profile file, separated by commas.")] = None,
    few_shot: Annotated[Both | None, typer.Option(help="With the examples of the cases. By default no.")] = None,
    gateway: Annotated[Both | None, typer.Option(help="With the gateway. By default yes.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Runs of each combination.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the first repeat; each later one adds 1.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="By default that of the endpoint.")] = None,
    log: Annotated[Path | None, typer.Option(help="JSON lines, one per run. A run in the log is not repeated.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Concurrent runs.")] = 1,
    by: Annotated[By, typer.Option(help="The rows of the table.")] = "both",
    form: Annotated[Format, typer.Option("--format", help="Output format.")] = "table",
    require: Annotated[float, typer.Option(min=0, max=1, help="The share of runs that must succeed.")] = 0.0,
) -> None:
    """Run a model on cases, check its calls, and print a table.

    The exit code is 0 if all runs completed, 1 if an endpoint or a server failed in a run or fewer runs succeeded than
    --require demands, 2 if an option, a file or a configuration is not valid.

    Example: mcp-mirror eval evals/cases --model qwen --base-url http://127.0.0.1:8080/v1 --repeats 5
    """
    model_options = _without_none(
        model=model, base_url=base_url, api_key_env=api_key_env, tools=tools, temperature=temperature
    )
    changes = _without_none(
        notice=_split(notice),
        variants=_split(variant),
        repeats=repeats,
        seed=seed,
        few_shot=_FLAGS[few_shot] if few_shot else None,
        gateway=_FLAGS[gateway] if gateway else None,
    )
    matrix = read_matrix(cases or (), profile, model_options, changes)
    settings = check_matrix(matrix)
    records = _run_missing(settings, Log(log), jobs)
    skipped = [] if by == "setting" else skipped_rows(matrix)
    _print([*rows_of(records, by), *skipped], form)
    raise typer.Exit(_find_exit_code(settings, records, require))


def _without_none(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _split(names: str | None) -> tuple[str, ...] | None:
    return tuple(name.strip() for name in names.split(",")) if names else None


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
            end = "Interrupted. Continue with the same command and the same --log."
        else:
            end = f"mcp-mirror: stopped, because {MAX_CONSECUTIVE_FAILURES} runs in a row failed."
    records = log.of(keys)
    if len(records) < len(settings):
        print(end, file=sys.stderr)  # noqa: T201  # for the operator
    return records


def _print(rows: Sequence[Row], form: Format) -> None:
    if form == "table":
        console = Console()
        (console if console.is_terminal else Console(width=250)).print(as_table(rows))
    else:
        print((as_markdown if form == "markdown" else as_json)(rows))  # noqa: T201  # the output


def _find_exit_code(settings: Sequence[Setting], records: Sequence[Record], require: float) -> int:
    if any(record["end"] == VOID for record in records):
        return 1
    if len(records) < len(settings):  # interrupted
        return 130
    return 0 if sum(record["success"] for record in records) >= require * len(settings) else 1

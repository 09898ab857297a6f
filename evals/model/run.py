"""`make eval`: fetches and serves the model, runs it on the small set, and prints the table.

One table has two harnesses: our own loop, as in `mcp-mirror eval`, and BeeAI's RequirementAgent with the first notice
style only. Each run is in the log as soon as it ends, so the same command continues an interrupted evaluation.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import anyio
from rich.console import Console

from beeai import in_beeai, run_missing
from fetch import QWEN, MissingWeightsError, cache_folder, fetch
from mcp_mirror.errors import MirrorError
from mcp_mirror.evals.log import Log, Record
from mcp_mirror.evals.matrix import Matrix
from mcp_mirror.evals.profiles import read_matrix
from mcp_mirror.evals.report import Row, as_markdown, as_table, rows_of, skipped_rows
from mcp_mirror.evals.runs import check_matrix, run_all

_HERE: Final = Path(__file__).parent
_HARNESSES: Final = ("loop", "beeai")
_PARALLEL: Final = 4
"""Prompts in the server's cache. Cases take turns, and processing a prompt again takes half a minute."""
_WIDTH: Final = 250
"""Columns of the table."""


@contextmanager
def served(python: Path, weights: Path, threads: int) -> Iterator[str]:
    """Serve the model for the duration of the context; yields the base URL."""
    command = [str(python), str(_HERE / "serve.py"), "--weights", str(weights), "--threads", str(threads)]
    command += ["--parallel", str(_PARALLEL)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603  # our own program
        try:
            if not (url := server.stdout.readline().strip() if server.stdout else ""):
                sys.exit("The model's server did not start. Its error output is above.")
            yield url
        finally:
            server.terminate()


def read_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Run a small model on cases and print a table.")
    parser.add_argument("cases", nargs="*", help="case files; by default those of the profile")
    parser.add_argument("--profile", default=str(_HERE.parent / "profiles.yaml") + ":small", metavar="FILE:NAME")
    parser.add_argument("--notice", help="styles of notices, separated by commas")
    parser.add_argument("--repeats", type=int, help="runs of each combination")
    parser.add_argument("--seed", type=int, help="seed of the first run")
    parser.add_argument("--harness", choices=_HARNESSES, action="append", help="by default both")
    parser.add_argument("--log", type=Path, default=Path(".eval/runs.jsonl"))
    parser.add_argument("--threads", type=int, default=2, help="threads of the model's server")
    parser.add_argument("--markdown", action="store_true", help="print the table for a README")
    parser.add_argument(
        "--python", type=Path, default=Path(".venv-eval/bin/python"), help="an environment with BeeAI and xllamacpp"
    )
    return parser.parse_args()


def matrix_of(given: argparse.Namespace, base_url: str) -> Matrix:
    """Return the matrix of the command line.

    Raises:
        ConfigError: A file or a name in it cannot be used.
    """
    chosen = {
        "notice": given.notice.split(",") if given.notice else None,
        "repeats": given.repeats,
        "seed": given.seed,
    }
    wanted = {name: value for name, value in chosen.items() if value is not None}
    return read_matrix(given.cases, given.profile, {"base_url": base_url, "model": QWEN.name}, wanted)


def run(given: argparse.Namespace, base_url: str) -> list[Row]:
    """Perform the runs that are not in the log, and return the rows of the table.

    Raises:
        MirrorError: A case, a profile or a configuration is not valid.
    """
    log, matrix, keys = Log(given.log), matrix_of(given, base_url), list[str]()
    harnesses = given.harness or _HARNESSES
    if "loop" in harnesses:
        settings = check_matrix(matrix)
        anyio.run(run_all, settings, log, 1, _print_progress)
        keys += [setting.key for setting in settings]
    if "beeai" in harnesses:
        keys += run_missing(in_beeai(replace(matrix, styles=matrix.styles[:1])), log, given.python, _print_progress)
    return [*rows_of(log.of(keys), "case"), *skipped_rows(matrix)]


def _print_progress(record: Record) -> None:
    outcome = "succeeded" if record["success"] else f"failed, {record['end']}"
    print(f"{record['model']}, {record['notice']}, {record['case']} {record['repeat']}: {outcome}", file=sys.stderr)


def main() -> None:
    """Run the evaluation and print the table."""
    given = read_arguments()
    try:
        with served(given.python, fetch(QWEN, cache_folder()), given.threads) as base_url:
            rows = run(given, base_url)
    except (MirrorError, MissingWeightsError) as error:
        sys.exit(f"make eval: {error}")
    except KeyboardInterrupt:
        sys.exit("Interrupted. Continue with the same command.")
    Console(width=_WIDTH).print(as_markdown(rows) if given.markdown else as_table(rows), markup=False)


if __name__ == "__main__":
    main()

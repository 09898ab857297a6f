"""`make eval`: fetch the model, serve it, let it work on the small set, print the table.

Two harnesses in one table: our own loop, as `mcp-mirror eval` runs it, and BeeAI's RequirementAgent, for which the
gateway's own style of notices is enough. Each run is in the log as soon as it ends: the same command goes on.
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
from mcp_mirror.evals.asking import Asked, read_matrix
from mcp_mirror.evals.campaign import check_matrix, run_all
from mcp_mirror.evals.log import Log, Record
from mcp_mirror.evals.matrix import Matrix
from mcp_mirror.evals.report import as_markdown, as_table, rows_of

_HERE: Final = Path(__file__).parent
_HARNESSES: Final = ("loop", "beeai")
_KEPT: Final = 4
"""Prompts whose beginnings the server keeps read: cases take turns, and to read one anew takes half a minute."""
_UNCUT: Final = 250
"""Columns of a table that is no terminal's."""


@contextmanager
def served(python: Path, weights: Path, threads: int) -> Iterator[str]:
    """The base URL of a server that runs as long as this is open."""
    command = [str(python), str(_HERE / "serve.py"), "--weights", str(weights), "--threads", str(threads)]
    command += ["--parallel", str(_KEPT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603  # our own program
        try:
            if not (url := server.stdout.readline().strip() if server.stdout else ""):
                sys.exit("The model's server has not started; what it said is above.")
            yield url
        finally:
            server.terminate()


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Let a small model work on cases, and print what came of it.")
    parser.add_argument("cases", nargs="*", help="case files; by default the profile's")
    parser.add_argument("--profile", default=str(_HERE.parent / "profiles.yaml") + ":small", metavar="FILE:NAME")
    parser.add_argument("--notice", help="styles of notices, with commas between")
    parser.add_argument("--repeats", type=int, help="runs of each combination")
    parser.add_argument("--seed", type=int, help="of the first run")
    parser.add_argument("--harness", choices=_HARNESSES, action="append", help="by default both")
    parser.add_argument("--log", type=Path, default=Path(".eval/runs.jsonl"))
    parser.add_argument("--threads", type=int, default=2, help="of the model's server")
    parser.add_argument("--markdown", action="store_true", help="print the table for a README")
    parser.add_argument(
        "--python", type=Path, default=Path(".venv-eval/bin/python"), help="that has BeeAI and xllamacpp"
    )
    return parser.parse_args()


def matrix_of(given: argparse.Namespace, base_url: str) -> Matrix:
    """What is to be run.

    Raises:
        ConfigError: A file or a name in it cannot be used.
    """
    chosen = {
        "styles": given.notice.split(",") if given.notice else None,
        "repeats": given.repeats,
        "seed": given.seed,
    }
    wanted = {name: value for name, value in chosen.items() if value is not None}
    return read_matrix(Asked(given.cases, given.profile, {"base_url": base_url, "model": QWEN.name}, wanted))


def run(given: argparse.Namespace, base_url: str) -> list[Record]:
    """Make the runs that the log does not have.

    Raises:
        MirrorError: Something must be mended first.
    """
    log, matrix, keys = Log(given.log), matrix_of(given, base_url), list[str]()
    harnesses = given.harness or _HARNESSES
    if "loop" in harnesses:
        settings = check_matrix(matrix)
        anyio.run(run_all, settings, log, 1, _tell)
        keys += [setting.key for setting in settings]
    if "beeai" in harnesses:
        keys += run_missing(in_beeai(replace(matrix, styles=matrix.styles[:1])), log, given.python, _tell)
    return log.of(keys)


def _tell(record: Record) -> None:
    well = "well" if record["success"] else record["end"]
    print(f"{record['model']}, {record['notice']}, {record['case']} {record['repeat']}: {well}", file=sys.stderr)


def main() -> None:
    """Run, and print the table."""
    given = read_arguments()
    try:
        with served(given.python, fetch(QWEN, cache_folder()), given.threads) as base_url:
            records = run(given, base_url)
    except (MirrorError, MissingWeightsError) as error:
        sys.exit(f"make eval: {error}")
    except KeyboardInterrupt:
        sys.exit("Broken off. The same command goes on.")
    rows = rows_of(records, "case")
    Console(width=_UNCUT).print(as_markdown(rows) if given.markdown else as_table(rows), markup=False)


if __name__ == "__main__":
    main()

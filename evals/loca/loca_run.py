"""`make loca`: runs tasks of LOCA-bench in five arms, with a model at an endpoint or with the oracle; prints the table.

Each run is in the log as soon as it ends, so the same command continues an interrupted evaluation.
"""

import argparse
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import anyio
import httpx2
from rich.console import Console

from loca_arms import ARMS, OpenArm
from loca_oracle import Oracle
from loca_report import FORMATS, write_docs, write_report
from loca_runs import Plan, Player, run_missing
from loca_scripts import SCRIPTS
from loca_suite import SIZES, Suite, Task, read_tasks
from mcp_mirror.errors import ConfigError, MirrorError
from mcp_mirror.evals.cases import Limits
from mcp_mirror.evals.endpoint import Endpoint
from mcp_mirror.evals.log import VOID, Log, Record
from mcp_mirror.evals.loop import Complete

ROOT = Path(__file__).resolve().parents[2]
_WIDTH: Final = 160
"""Characters of the widest table."""
INSTALLED = Suite(
    source=Path(os.environ.get("LOCA_SOURCE") or ROOT / ".venv-loca" / "LOCA-bench"),
    python=ROOT / ".venv-loca" / "bin" / "python",
    node_modules=ROOT / "tests" / "node" / "node_modules",
)


def load_tokenizer() -> Callable[[str], int]:
    """OpenAI's o200k."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the package reads its data in an old way
        import bpe_openai  # noqa: PLC0415  # must be where the warning is caught

        encoding = bpe_openai.get_encoding("o200k_base")
    at_once = 50_000  # the package refuses texts of more than 200,000 tokens

    def count(text: str) -> int:
        return sum(len(encoding.encode(text[start : start + at_once])) for start in range(0, len(text), at_once))

    return count


def make_oracle(count_tokens: Callable[[str], int]) -> Player:
    """The oracle as a player."""

    def complete_in(task: Task, arm: OpenArm) -> Complete:
        return Oracle(SCRIPTS[task.name][arm.arm](), arm, count_tokens).complete

    return Player(
        name="oracle",
        complete_in=complete_in,
        can_play=lambda task, arm: arm in SCRIPTS.get(task.name, {}),
        limits=Limits(calls=1_000_000, tokens=10**12, seconds=3600),
        count_tokens=count_tokens,
    )


def make_model(options: argparse.Namespace, client: httpx2.AsyncClient) -> Player:
    """A model at an endpoint as a player.

    Raises:
        ConfigError: The environment has no API key.
    """
    key = os.environ.get(options.api_key_env) if options.api_key_env else None
    if options.api_key_env and not key:
        raise ConfigError(f"The environment variable {options.api_key_env} (the API key) is not set.")
    endpoint = Endpoint(client, options.base_url, options.model, key)
    sampling = {"temperature": options.temperature, "max_tokens": options.max_tokens}
    return Player(
        name=options.model,
        complete_in=lambda _task, _arm: endpoint.complete,
        can_play=lambda _task, _arm: True,
        limits=Limits(calls=options.max_calls, tokens=options.max_total, seconds=options.seconds),
        tools=options.tools,
        sampling={name: value for name, value in sampling.items() if value is not None},
    )


def read_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", nargs="+", choices=SIZES, default=["8k"])
    parser.add_argument("--task", nargs="+", default=[], help="names without S2LEnv; default: all")
    parser.add_argument("--seed", nargs="+", type=int, default=[42], help="seeds of the suite; 0: all")
    parser.add_argument("--arm", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--oracle", action="store_true", help="the scripted model instead of an endpoint")
    parser.add_argument("--model", help="the model's name at the endpoint")
    parser.add_argument("--base-url", help="an endpoint with OpenAI's chat completions")
    parser.add_argument("--api-key-env", help="the environment variable with the API key")
    parser.add_argument("--tools", choices=["native", "json_schema", "json_text"], default="native")
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--max-tokens", type=int, help="tokens of one reply")
    parser.add_argument("--max-calls", type=int, default=100, help="calls of one run")
    parser.add_argument("--max-total", type=int, default=20_000_000, help="tokens read and written in one run")
    parser.add_argument("--seconds", type=float, default=3600, help="seconds of one run")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--log", type=Path, help="JSON lines; runs that it has are not repeated")
    parser.add_argument("--format", choices=list(FORMATS), default="table")
    parser.add_argument("--require", type=float, default=0.0, help="exit code 1 if a smaller share of runs succeeds")
    parser.add_argument("--report", action="store_true", help="only print the tables of the runs in the log")
    parser.add_argument("--write-docs", action="store_true", help="write the first table into docs/evaluation/loca.md")
    options = parser.parse_args()
    if not options.oracle and not (options.model and options.base_url):
        parser.error("Give --oracle, or --model and --base-url.")
    return options


def origin() -> str:
    """The day and the commits of the figures."""
    commits = []
    for folder in (ROOT, INSTALLED.source):
        command = ["git", "-C", str(folder), "rev-parse", "--short=12", "HEAD"]
        commits.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())  # noqa: S603
    return f"{datetime.now(UTC):%Y-%m-%d}, commit {commits[0]}, LOCA-bench {commits[1]}:"


def show(record: Record) -> None:
    """Print one line about a run."""
    outcome = "void" if record["end"] == VOID else "passed" if record["success"] else f"failed ({record['end']})"
    sys.stderr.write(f"{record['key']}: {outcome}\n")


async def main() -> int:
    """Perform the missing runs and print the table."""
    options = read_options()
    if not INSTALLED.is_installed:
        raise ConfigError("LOCA-bench is not installed. Run: make loca")
    tasks = read_tasks(INSTALLED, options.size, options.task, [seed for seed in options.seed if seed])
    log = Log(options.log)
    async with httpx2.AsyncClient(timeout=options.seconds) as client:
        player = make_oracle(load_tokenizer()) if options.oracle else make_model(options, client)
        plan = Plan(INSTALLED, tasks, options.arm, player, options.repeats)
        if not options.report:
            await run_missing(plan, log, show)
    records = log.of(plan.keys())
    write_report(records, options.format, Console(width=max(Console().width, _WIDTH)))
    if options.write_docs:
        write_docs(records, ROOT / "docs" / "evaluation" / "loca.md", origin())
    valid = [record for record in records if record["end"] != VOID]
    passed = sum(record["success"] for record in valid)
    return 0 if len(valid) == len(records) and passed >= options.require * len(valid) else 1


if __name__ == "__main__":
    try:
        sys.exit(anyio.run(main))
    except MirrorError as error:
        sys.exit(str(error))

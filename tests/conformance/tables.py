"""Prints the gateway's results in the official conformance suite: as a server and as a client, in both revisions.

`tables.py [--direct] [--handshake-only]`: without the gateway; only with an upstream of protocol version 2025-11-25.
"""

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from suite import EXTENSIONS, REVISIONS, Report, Scenario, is_signed_in, require, run_client, run_server, tell_missing
from under_test import HANDSHAKE_ONLY, fixture_on_http, gateway_before

Try = Callable[[set[str]], Awaitable[Report]]

_WIDE: Final = 160
"""Columns without a terminal."""


@asynccontextmanager
async def _server(flags: set[str]) -> AsyncIterator[str]:
    options = HANDSHAKE_ONLY if "--handshake-only" in flags else ()
    async with fixture_on_http(*options) as url:
        if "--direct" in flags:
            yield url
            return
        async with gateway_before({"url": url}) as gateway:
            yield gateway


async def _try_server(revision: str, flags: set[str]) -> Report:
    async with _server(flags) as url:
        return await run_server(url, revision, f"server {revision}")


async def _try_client(revision: str, flags: set[str]) -> Report:
    script = [sys.executable, str(Path(__file__).with_name("client.py")), *(flags & {"--direct"})]
    wanted = [name for name in require("client", revision) if not ("--direct" in flags and is_signed_in(name))]
    return await _try_scenarios(f"client {revision}", script, dict.fromkeys(wanted, revision))


async def _try_extensions(flags: set[str]) -> Report:
    script = [sys.executable, str(Path(__file__).with_name("client.py"))]
    wanted = () if "--direct" in flags else EXTENSIONS
    return await _try_scenarios("client, extensions", script, dict.fromkeys(wanted))


async def _try_scenarios(title: str, script: list[str], wanted: Mapping[str, str | None]) -> Report:
    tried = [await run_client(shlex.join(script), name, revision) for name, revision in wanted.items()]
    scenarios = tuple(scenario for report in tried for scenario in report.scenarios)
    return Report(title, max((report.exit_code for report in tried), default=0), scenarios, "")


def _mark(scenario: Scenario) -> str:
    return "passed" if scenario.passed else "FAILED" if scenario.scored else "not passed, not required"


def draw(report: Report) -> Table:
    """One run as a table."""
    table = Table(title=f"{report.title}: {report.score}", title_justify="left", box=box.SIMPLE)
    table.add_column("scenario", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("why", overflow="fold")
    for scenario in report.scenarios:
        why = "" if scenario.passed or not scenario.scored else "\n".join(scenario.complaints)[:1000]
        table.add_row(scenario.name, _mark(scenario), why)
    return table


async def main(flags: set[str]) -> int:
    """Run everything; how many runs did not pass."""
    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else _WIDE)
    failed = 0
    tries: list[Try] = [partial(attempt, revision) for attempt in (_try_server, _try_client) for revision in REVISIONS]
    for go in (*tries, _try_extensions):
        report = await go(flags)
        console.print(draw(report))
        failed += report.exit_code != 0 or not all(scenario.passed for scenario in report.scored)
    return failed


if __name__ == "__main__":
    if missing := tell_missing():
        sys.exit(missing)
    try:
        sys.exit(asyncio.run(main(set(sys.argv[1:]))))
    except RuntimeError as unstarted:
        sys.exit(str(unstarted))

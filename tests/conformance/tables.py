"""Prints how the gateway fares in the official conformance suite: as a server and as a client, in both revisions.

`tables.py [--direct] [--handshake-only]`: without the gateway; before an upstream of the handshake era alone.
"""

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from suite import REVISIONS, Report, Scenario, require, run_client, run_server, tell_missing
from under_test import HANDSHAKE_ONLY, fixture_on_http, gateway_before

_WIDE: Final = 160
"""Columns where there is no terminal."""


@asynccontextmanager
async def _server(flags: set[str]) -> AsyncIterator[str]:
    era = HANDSHAKE_ONLY if "--handshake-only" in flags else ()
    async with fixture_on_http(*era) as url:
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
    tried = [await run_client(shlex.join(script), name, revision) for name in require("client", revision)]
    scenarios = tuple(scenario for report in tried for scenario in report.scenarios)
    return Report(f"client {revision}", max(report.exit_code for report in tried), scenarios, "")


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
    for attempt in (_try_server, _try_client):
        for revision in REVISIONS:
            report = await attempt(revision, flags)
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

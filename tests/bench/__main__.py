"""Measures the gateway beside what it is held against, interleaved in one run, and prints tables. Nothing fails here.

make bench                      everything
python tests/bench grid cpu     some of it; --runs N, --large for the gigabyte and a million values,
                                --write-docs to update docs/operations/performance.md
"""

import argparse
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import anyio
from docs_page import Recorder, write_tables
from many_clients import changes, clients, vanishing
from measures import concurrent, cpu, grid, latency, memory, neighbour, rates, stalls
from raw_measures import ordinary, small
from rich.console import Console
from scripts import scripts
from sql import sql
from startup import startup
from stores import sealing, values

Measure = Callable[[Console, int, bool], Awaitable[None]]

MEASURES: Final[Mapping[str, Measure]] = {
    "grid": grid,
    "cpu": cpu,
    "latency": latency,
    "concurrent": concurrent,
    "neighbour": neighbour,
    "stalls": stalls,
    "memory": memory,
    "rates": rates,
    "sealing": sealing,
    "small": small,
    "ordinary": ordinary,
    "clients": clients,
    "vanishing": vanishing,
    "changes": changes,
    "startup": startup,
    "scripts": scripts,
    "sql": sql,
    "values": values,
}


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description="Measure the gateway.")
    parser.add_argument("measures", nargs="*", choices=[*MEASURES, []], default=[])
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs of which the median is shown")
    parser.add_argument("--large", action="store_true", help="1 GiB, grids twice as text, a million values")
    parser.add_argument("--write-docs", action="store_true", help="write the tables into the documentation")
    options = parser.parse_args()

    async def run() -> None:
        for name in options.measures or MEASURES:
            console = Recorder()
            await MEASURES[name](console, options.runs, options.large)
            if options.write_docs:
                write_tables(name, console.tables)

    anyio.run(run)


if __name__ == "__main__":
    main()

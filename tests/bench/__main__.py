"""Measures the gateway beside what it is held against, interleaved in one run, and prints tables. Nothing fails here.

make bench                      everything
python tests/bench grid cpu     some of it; --runs N, --large for the gigabyte
"""

import argparse
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import anyio
from measures import concurrent, cpu, grid, latency, memory, neighbour, rates, stalls
from rich.console import Console
from stores import sealing

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
}


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description="Measure the gateway.")
    parser.add_argument("measures", nargs="*", choices=[*MEASURES, []], default=[])
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs of which the median is shown")
    parser.add_argument("--large", action="store_true", help="with results of 1 GiB and grids twice as text")
    given = parser.parse_args()

    async def run() -> None:
        console = Console()
        for name in given.measures or MEASURES:
            await MEASURES[name](console, given.runs, given.large)

    anyio.run(run)


if __name__ == "__main__":
    main()

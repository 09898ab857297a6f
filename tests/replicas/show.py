"""`show.py [--rounds N]`: two gateways behind HAProxy over one Redis server; prints a table."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from cluster import MISSING, start_cluster
from journeys import run_all, table


async def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with start_cluster(Path(folder)) as cluster:
            sys.stdout.write(f"{table(await run_all(cluster, rounds))}\n")


if __name__ == "__main__":
    if MISSING:
        sys.exit(f"Not installed: {', '.join(MISSING)}. On Debian and Ubuntu: apt-get install {' '.join(MISSING)}")
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    asyncio.run(main(parser.parse_args().rounds))

"""Fuzz both transports of a gateway: `make soak`, or `python -m tests.fuzz.fuzz_transports [SECONDS] [SIDE ...]`.

The sides share the seconds. Harmful inputs are kept in `.fuzz/` and printed with their seeds.
"""

import asyncio
import itertools
import secrets
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.transports import SIDES, attempts_on, corpus_of, mutations_of, open_stage

SECONDS = 600.0
KEPT = Path(".fuzz")


async def fuzz(side: str, seconds: float) -> int:
    """How many inputs a side has taken."""
    seed, until, count = secrets.randbits(32), time.monotonic() + seconds, 0
    corpus = corpus_of(side)
    with tempfile.TemporaryDirectory() as folder:
        async with open_stage(Path(folder)) as stage, attempts_on(stage, side) as attempt:
            for data in itertools.chain(corpus, mutations_of(corpus, seed)):
                if time.monotonic() > until:
                    break
                try:
                    await attempt(data)
                except BaseException as error:
                    file = KEPT / f"{side}-{seed}-{count}"
                    KEPT.mkdir(exist_ok=True)
                    file.write_bytes(data)
                    error.add_note(f"The input is in {file}.")
                    raise
                count += 1
    return count


def main() -> None:
    """Each side in turn."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    sides = sys.argv[2:] or SIDES
    for side in sides:
        count = asyncio.run(fuzz(side, seconds / len(sides)))
        sys.stdout.write(f"{side}: {count:,} inputs, each answered or refused, and no value changed\n")


if __name__ == "__main__":
    main()

"""Processes that write into one disk store.

    disk_writers.py FOLDER hammer NAME     write, read, share, evict and forget for a while, and print the results
    disk_writers.py FOLDER crash CYCLES    kill two writers repeatedly

If SEALED is set in the environment, the values are encrypted.

In `crash` each cycle ends with a line of JSON with the acknowledged values on standard output; the next cycle begins
with a line on standard input.
"""

import hashlib
import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio

from mcp_mirror.settings.store import EncryptionPolicy, StorePolicy
from mcp_mirror.stores.disk.store import DiskStore
from mcp_mirror.types import Descriptor, FileSpan, Provenance, Span

KEYS = EncryptionPolicy(("an example of a secret of 32 characters",), enabled="SEALED" in os.environ)
ROOMY = StorePolicy(kind="disk", max_values=10_000, encryption=KEYS)
TIGHT = StorePolicy(kind="disk", max_values=7, max_bytes=1 << 20, encryption=KEYS)
SIZES = (10, 3000, 60_000, 66_000, 150_000, 400_000)
LIFE = 0.05
"""Seconds that a process lives at most before it is killed."""
BOUND = 60.0
ROUNDS = 150


def content_of(base: str) -> bytes:
    """What is stored under a base: its size and its bytes follow from the name; every fifth is like another."""
    number = int(base.rpartition("-")[2])
    seed = base if number % 5 else f"shared-{number % 3}"
    digest = hashlib.sha256(seed.encode()).digest()
    return digest * (SIZES[digest[0] % len(SIZES)] // len(digest))


async def put(store: DiskStore, base: str) -> None:
    """Store what belongs to a base, every third time by way of a file."""
    blob, file = content_of(base), None
    known = Descriptor(base, "text", len(blob), 7, (), time.time(), time.time() + 9e5, Provenance("up", "t", "0" * 64))
    if int(base.rpartition("-")[2]) % 3 == 0:
        frame = store.scratch / f"frame-{base}"
        frame.write_bytes(b"head" + blob + b"tail")
        file = FileSpan(str(frame), Span(4, len(blob)))
    await store.put("me", known, (blob,), file)
    if file:
        Path(file.path).unlink()


async def write_on(folder: Path, policy: StorePolicy, name: str, acknowledge: Callable[[str], object]) -> None:
    """Write values until killed."""
    async with DiskStore(policy, time.time, folder) as store:
        for number in range(10_000):
            await put(store, f"{name}-{number}")
            acknowledge(f"{name}-{number}")


async def hammer(folder: Path, name: str) -> None:
    """Every value that is read is complete, even if another process evicts it during the read."""
    dice, found_count, gone = random.Random(name), 0, 0  # noqa: S311  # no secret
    async with DiskStore(TIGHT, time.time, folder) as store:
        for number in range(ROUNDS):
            await put(store, f"{name}-{number}")
            for base in [one.base for one in await store.list("me")]:
                if (read := await store.read("me", base)) is None:
                    gone += 1
                    continue
                assert bytes(read) == content_of(base), base
                found_count += 1
                if dice.random() < 0.1:
                    await store.delete("me", base)
    print(json.dumps({"whole": found_count, "gone": gone}))  # noqa: T201  # the output


def crash(folder: Path, cycles: int) -> None:
    """Two processes a cycle, each killed at a time of its own: in the first cycle before they open the store."""
    dice = random.Random(5)  # noqa: S311  # no secret
    for cycle in range(cycles):
        policy = ROOMY if cycle % 4 else TIGHT
        children = [_fork(folder, policy, f"c{cycle}{which}", opens=cycle > 0) for which in "ab"]
        for process, pipe in children:
            if cycle % 3:
                select.select([pipe], [], [], BOUND)
            time.sleep(dice.uniform(0, LIFE) if cycle else 0)
            os.kill(process, signal.SIGKILL)
        acknowledged = [base for process, pipe in children for base in _reap(process, pipe)]
        print(json.dumps({"acknowledged": acknowledged, "tight": policy is TIGHT}), flush=True)  # noqa: T201  # as above
        sys.stdin.readline()


def _fork(folder: Path, policy: StorePolicy, name: str, *, opens: bool) -> tuple[int, int]:
    """Fork a writer, which waits for its end if it does not open the store.

    Returns:
        Its process id and the pipe on which it reports acknowledged values.
    """
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    try:
        if not opens:
            signal.pause()
        anyio.run(write_on, folder, policy, name, lambda base: os.write(writing, base.encode() + b"\n"))
    finally:
        os._exit(1)


def _reap(process: int, pipe: int) -> list[str]:
    with os.fdopen(pipe) as reader:
        lines = reader.read()
    os.waitpid(process, 0)
    return lines.splitlines()


if __name__ == "__main__":
    place, mode, argument = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    if mode == "crash":
        crash(place, int(argument))
    else:
        anyio.run(hammer, place, argument)

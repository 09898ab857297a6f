"""Several processes on one disk store, and processes that are killed while they write (`make soak`: more of them)."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from samples import sample

from mcp_mirror.stores.base import Tombstone
from mcp_mirror.stores.disk.store import DiskStore
from mcp_mirror.types import Descriptor

if TYPE_CHECKING:
    from tests.integration.conftest import Audit

WRITERS = Path(__file__).parent / "disk_writers.py"
CYCLES = int(os.environ.get("SOAK_CYCLES", "80"))
FEW = 20
"""Cycles of `make test`."""
BOUND = 60.0
"""Seconds that anything may take."""


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("disk_writers", WRITERS)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


writers = _load()


async def start(folder: Path, *arguments: str, sealed: bool = False) -> Process:
    environment = {**os.environ, "SEALED": "yes"} if sealed else None
    return await asyncio.create_subprocess_exec(
        sys.executable, str(WRITERS), str(folder), *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment
    )


@pytest.mark.slow
@pytest.mark.parametrize("sealed", sample([False, True], bool))
async def test_three_processes_hammer_one_folder_and_the_books_are_exact(
    sealed: bool,  # noqa: FBT001  # both ways
    tmp_path: Path,
    audit: Audit,
) -> None:
    folder = tmp_path / "store"
    processes = [await start(folder, "hammer", name, sealed=sealed) for name in ("one", "two", "three")]
    outputs = [await asyncio.wait_for(process.communicate(), BOUND) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert sum(json.loads(out)["whole"] for out, _ in outputs) > 3 * writers.ROUNDS
    assert 0 < len(audit(folder)) <= writers.TIGHT.max_values


async def check(folder: Path, acknowledged: list[str], *, tight: bool) -> None:
    """Everything that was acknowledged is whole; where there was no room, it may say that it made some."""
    async with DiskStore(writers.ROOMY, time.time, folder) as store:
        for base in acknowledged:
            known = await store.describe("me", base)
            assert isinstance(known, Descriptor | Tombstone), base
            if isinstance(known, Tombstone):
                assert tight
                assert known.reason == "evicted"
            else:
                assert bytes((await store.read("me", base)) or b"") == writers.content_of(base)


async def clear(folder: Path) -> None:
    async with DiskStore(writers.ROOMY, time.time, folder) as store:
        for known in await store.list("me"):
            await store.delete("me", known.base)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked, so that there can be many")
@pytest.mark.timeout(60 + CYCLES)
@pytest.mark.parametrize(
    ("cycles", "sealed"),
    sample([(FEW, False), (CYCLES, False), (max(10, CYCLES // 20), True)], lambda case: case == (FEW, False)),
)
async def test_processes_killed_while_writing_lose_no_acknowledged_value(
    cycles: int,
    sealed: bool,  # noqa: FBT001  # both ways
    tmp_path: Path,
    audit: Audit,
) -> None:
    folder, acknowledged, empty = tmp_path / "store", 0, 0
    crashing = await start(folder, "crash", str(cycles), sealed=sealed)
    assert crashing.stdin
    assert crashing.stdout
    for _ in range(cycles):
        line = await asyncio.wait_for(crashing.stdout.readline(), BOUND)
        assert line, await crashing.communicate()
        cycle = json.loads(line)
        acknowledged += len(cycle["acknowledged"])
        empty += not cycle["acknowledged"]
        await check(folder, cycle["acknowledged"], tight=cycle["tight"])
        assert len(audit(folder)) >= (0 if cycle["tight"] else len(cycle["acknowledged"]))
        await clear(folder)
        assert audit(folder) == set()
        crashing.stdin.write(b"\n")
    assert await asyncio.wait_for(crashing.wait(), BOUND) == 0
    assert acknowledged > cycles
    assert 0 < empty < cycles / 2

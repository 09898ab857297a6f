"""The time of a change to the disk store does not tell whether another principal keeps the same bytes."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest
from statistical_tests import mann_whitney
from tests.hostile.conftest import full_size

from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.disk.store import DiskStore
from mcp_mirror.types import Descriptor, Provenance

if TYPE_CHECKING:
    from pathlib import Path

PAIRS = 100
SIZE = 8 << 20
CERTAIN = 4.9
"""Deviates of U that chance exceeds once in a million runs. Where principals share files, deleting measures 7."""


async def put(store: DiskStore, owner: str, base: str, blob: bytes) -> None:
    now = time.time()
    known = Descriptor(base, "text", len(blob), 1, (), now, now + 9e5, Provenance("up", "tool", "0" * 64))
    await store.put(owner, known, (blob,))


@full_size
@pytest.mark.timeout(600)
async def test_the_time_to_put_or_delete_tells_nothing_of_another(tmp_path: Path) -> None:
    rng = random.Random(14)  # noqa: S311  # no secret
    stored = rng.randbytes(SIZE)
    times: dict[str, tuple[list[float], list[float]]] = {"put": ([], []), "delete": ([], [])}
    async with DiskStore(StorePolicy(fsync=False), time.time, tmp_path / "store") as store:
        await put(store, "alice", "t-1", stored + b".")
        for _ in range(PAIRS):
            for which in rng.sample((0, 1), 2):
                new = rng.randbytes(SIZE)  # the same work before each put
                blob = b"".join((new if which else stored, b"."))  # and each blob just written to memory
                began = time.perf_counter()
                await put(store, "bob", "t-2", blob)
                put_at = time.perf_counter()
                assert await store.delete("bob", "t-2")
                times["put"][which].append(put_at - began)
                times["delete"][which].append(time.perf_counter() - put_at)
    scores = {what: mann_whitney(*measured) for what, measured in times.items()}
    print(scores)  # noqa: T201  # for runs with -s
    assert max(map(abs, scores.values())) < CERTAIN, scores

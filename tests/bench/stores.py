"""The costs of encryption: values are written to and read from a store in clear and encrypted, interleaved."""

import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from measures import MB, show
from redis_process import COMMAND, RedisProcess
from rich.console import Console

from mcp_mirror.settings.policies import EncryptionPolicy, StoreKind, StorePolicy
from mcp_mirror.stores.base import Store
from mcp_mirror.stores.disk.store import DiskStore
from mcp_mirror.stores.redis.store import RedisStore
from mcp_mirror.types import Descriptor, Provenance, Span

_SIZES = (("1 KB", 1000, 40), ("1 MB", MB, 10), ("100 MB", 100 * MB, 1))
"""Name, bytes, and how many of each a run measures."""
_SEALED = EncryptionPolicy(("an example of a secret of 32 characters",))
_READ_PAGES = 1 << 12


async def sealing(console: Console, runs: int, large: bool) -> None:  # noqa: ARG001, FBT001  # a table of one signature
    """Put, read whole and read 100 bytes of values on the disk and, where it is installed, in Redis."""
    kinds: list[StoreKind] = ["disk", "redis"] if COMMAND else ["disk"]
    for kind in kinds:
        rows = []
        for name, size, times in _SIZES:
            async with _opened(kind, None) as clear, _opened(kind, _SEALED) as sealed:
                pairs = [
                    (await _measured(clear, size, number), await _measured(sealed, size, number))
                    for number in range(runs * times)
                ]
            columns = [zip(*(pair[form] for pair in pairs), strict=True) for form in (0, 1)]
            before, after = ([statistics.median(each) for each in column] for column in columns)
            told = (f"{b * 1000:.2f} ms, {b / a:.2f}" for a, b in zip(before, after, strict=True))
            rows.append((name, *told))
        show(console, f"{kind}: sealed, and its ratio to clear", ("value", "put", "read", "read of 100 bytes"), rows)


async def _measured(store: Store, size: int, number: int) -> tuple[float, float, float]:
    """Seconds of a put, a read of all, looked at, and a read of 100 bytes."""
    blob, now = bytes(range(256)) * (size // 256 + 1), time.time()
    known = Descriptor(f"t-{number}", "text", size, 1, (), now, now + 9e5, Provenance("up", "tool", "0" * 64))
    begin = time.perf_counter()
    await store.put("me", known, (memoryview(blob)[:size],))
    put = time.perf_counter()
    assert sum(memoryview((await store.read("me", known.base)) or b"")[::_READ_PAGES]) >= 0
    read = time.perf_counter()
    await store.stats("me")  # the thread that has read lets go of what it gave
    part = time.perf_counter()
    assert len((await store.read("me", known.base, Span(size // 2, 100))) or b"") == 100
    return put - begin, read - put, time.perf_counter() - part


@asynccontextmanager
async def _opened(kind: StoreKind, encryption: EncryptionPolicy | None) -> AsyncIterator[Store]:
    folder = Path(tempfile.mkdtemp())
    try:
        if kind == "disk":
            async with DiskStore(StorePolicy(kind=kind, encryption=encryption), time.time, folder / "store") as disk:
                yield disk
            return
        with RedisProcess(folder) as server:
            policy = StorePolicy(kind=kind, url=server.url, encryption=encryption)
            async with RedisStore(policy, time.time, lambda: folder) as redis:
                yield redis
    finally:
        shutil.rmtree(folder, ignore_errors=True)

"""Stores: what encryption costs, and how the operations of a store take longer with the number of values."""

import asyncio
import gc
import itertools
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from measures import MB, show, timed
from msgspec.structs import replace
from redis_process import COMMAND, RedisProcess
from rich.console import Console

from mcp_mirror.cli.run import COLLECTOR_THRESHOLDS, SWITCH_INTERVAL
from mcp_mirror.errors import StoreError
from mcp_mirror.settings.store import EncryptionPolicy, StoreKind, StorePolicy
from mcp_mirror.stores.base import Store
from mcp_mirror.stores.disk.store import DiskStore
from mcp_mirror.stores.memory import MemoryStore
from mcp_mirror.stores.redis.store import RedisStore
from mcp_mirror.types import Descriptor, Provenance, Span

_SIZES = (("1 KB", 1000, 40), ("1 MB", MB, 10), ("100 MB", 100 * MB, 1))
"""Name, bytes, and how many of each a run measures."""
_SEALED = EncryptionPolicy(("an example of a secret of 32 characters",))
_READ_PAGES = 1 << 12
_SLUGS = 20
"""Tools from which the values of `values` come."""
_TASKS = {"redis": 8}
"""Tasks that fill a store; one fills the others fastest."""
_LIFETIME = 7 * 86_400.0
_EXPIRY = 5.0
"""Seconds for which values are stored and read after all others have expired."""
_TEXT = "x" * 988


async def sealing(console: Console, runs: int, large: bool) -> None:  # noqa: ARG001, FBT001  # a table of one signature
    """Put, read whole and read 100 bytes of values on the disk and, where it is installed, in Redis."""
    kinds: list[StoreKind] = ["disk", "redis"] if COMMAND else ["disk"]
    for kind in kinds:
        rows = []
        for name, size, times in _SIZES:
            async with _opened(StorePolicy(kind)) as clear, _opened(StorePolicy(kind, encryption=_SEALED)) as sealed:
                pairs = [
                    (await _measured(clear, size, number), await _measured(sealed, size, number))
                    for number in range(runs * times)
                ]
            columns = [zip(*(pair[form] for pair in pairs), strict=True) for form in (0, 1)]
            before, after = ([statistics.median(each) for each in column] for column in columns)
            cells = (f"{b * 1000:.2f} ms, {b / a:.2f}" for a, b in zip(before, after, strict=True))
            rows.append((name, *cells))
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


async def values(console: Console, runs: int, large: bool) -> None:  # noqa: FBT001
    """Fill stores with values of 1 KB, and measure what grows with their number."""
    fillings: list[tuple[StoreKind, int]] = [("disk", 100_000), ("memory", 100_000)]
    fillings += [("redis", 100_000)] if COMMAND else []
    fillings += [(kind, 1_000_000) for kind, _ in fillings] if large else []
    rows = []
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL)
    for kind, number in sorted(fillings):
        policy = StorePolicy(kind, fsync=False, max_values=2 * number, max_bytes=1 << 40)
        clock = Clock()
        async with _opened(policy, clock) as store:
            filled = await _fill(store, clock, number, _TASKS.get(kind, 1))
            size = f"{store.index_bytes() / number:,.0f}" if isinstance(store, CountedDiskStore) else "-"
            slug = f"tool{number % _SLUGS}-"
            middle = _base_of(number // 2)
            jobs: tuple[Callable[[], Awaitable[object]], ...] = (
                partial(store.list, "me", limit=21),
                partial(store.list, "me", limit=101, after=middle),
                partial(store.list, "me", limit=21, slug=slug),
                partial(store.stats, "me"),
                partial(store.bases_near, "me", f"{middle[:-4]}x", 5),
            )
            cells = [f"{1e3 * statistics.median([await timed(job) for _ in range(runs)]):.1f} ms" for job in jobs]
            waits = await _waits_at_expiry(store, clock, number)
        rows.append((f"{kind}, {number:,}", f"{1e6 * filled / number:.0f} µs", *cells, *waits, size))
    header = ("values of 1 KB", "put", "first page", "page in the middle", "page of a tool", "stats", "names near",
              "longest put at expiry", "longest read at expiry", "index bytes a value")  # fmt: skip
    show(console, "Stores with many values", header, rows)


class Clock:
    """Seconds since the epoch, which a measurement may advance."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


def _base_of(number: int) -> str:
    """Return a base like that of a stored value; bases are spread over the alphabet."""
    spread = number * 2654435761 % (1 << 32)
    return f"tool{number % _SLUGS}-{spread:08x}-0000-4000-8000-{number:012x}"


async def _fill(store: Store, clock: Clock, number: int, workers: int) -> float:
    """Store values of 1 KB; return the seconds."""
    left = iter(range(number))
    began = time.perf_counter()

    async def work() -> None:
        for at in left:
            await _put(store, clock, at)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(workers):
            tasks.create_task(work())
    return time.perf_counter() - began


async def _put(store: Store, clock: Clock, number: int) -> None:
    now, base = clock(), _base_of(number)
    text = f'"{number:010d}{_TEXT}"'.encode()
    origin = Provenance("up", base.partition("-")[0], f"{number:064x}")
    await store.put("me", Descriptor(base, "text", len(text), 300, (), now, now + _LIFETIME, origin), (text,))


async def _waits_at_expiry(store: Store, clock: Clock, number: int) -> tuple[str, str]:
    """Let all values expire, then store and read for some seconds; return the longest put and the longest read.

    Time in which the machine ran other programs is not counted.
    """
    clock.ahead = 2 * _LIFETIME
    end = time.perf_counter() + _EXPIRY
    longest, refused = {"put": 0.0, "read": 0.0}, 0

    async def repeat(name: str, jobs: Iterator[Callable[[], Awaitable[object]]]) -> None:
        nonlocal refused
        while (began := time.perf_counter()) < end:
            delayed = _run_queue_delay()
            try:
                await next(jobs)()
            except StoreError:
                refused += 1
            delayed -= _run_queue_delay()
            longest[name] = max(longest[name], time.perf_counter() - began + delayed)

    new = itertools.count(number)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(repeat("put", (partial(_put, store, clock, at) for at in new)))
        tasks.create_task(repeat("read", itertools.repeat(partial(store.read, "me", _base_of(number)))))
    errors = f", {refused} refused" if refused else ""
    return f"{1e3 * longest['put']:.1f} ms{errors}", f"{1e3 * longest['read']:.1f} ms"


def _run_queue_delay() -> float:
    """Seconds that threads of this process were ready to run and another program ran instead."""
    return sum(int(path.read_text().split()[1]) for path in Path("/proc/self/task").glob("*/schedstat")) / 1e9


class CountedDiskStore(DiskStore):
    """A disk store that knows the size of its index."""

    def __init__(self, policy: StorePolicy, clock: Callable[[], float], folder: Path) -> None:
        super().__init__(policy, clock, folder)
        self._path = folder / "index.sqlite"

    def index_bytes(self) -> int:
        """Return the bytes of the index, without its log."""
        return self._path.stat().st_size


@asynccontextmanager
async def _opened(policy: StorePolicy, clock: Callable[[], float] = time.time) -> AsyncIterator[Store]:
    folder = Path(tempfile.mkdtemp())
    try:
        if policy.kind == "disk":
            async with CountedDiskStore(policy, clock, folder / "store") as disk:
                yield disk
        elif policy.kind == "memory":
            async with MemoryStore(policy, clock, lambda: folder) as memory:
                yield memory
        else:
            with RedisProcess(folder) as server:
                async with RedisStore(replace(policy, url=server.url), clock, lambda: folder) as redis:
                    yield redis
    finally:
        shutil.rmtree(folder, ignore_errors=True)

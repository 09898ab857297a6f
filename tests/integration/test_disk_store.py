"""Values on disk outlive the store, in files that only this user can read."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import stat
import sys
import threading
from contextlib import closing
from itertools import product
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from clocks import Clock
from disk_values import BASE, LARGE, SMALL, TTL, opened, put, read

from mcp_mirror.errors import StoreError
from mcp_mirror.stores.base import Tombstone
from mcp_mirror.stores.disk import blobs
from mcp_mirror.stores.disk.blobs import Blobs
from mcp_mirror.stores.disk.process_dir import lock_folder
from mcp_mirror.types import Descriptor, FileSpan, Provenance, Span

if TYPE_CHECKING:
    from tests.integration.conftest import Audit


async def test_values_and_tombstones_outlive_the_store(folder: Path, clock: Clock, audit: Audit) -> None:
    async with opened(folder, clock) as store:
        await put(store, clock, "t-gone", SMALL)
        clock.now += TTL
        gone = await store.describe("me", "t-gone")
        known = [await put(store, clock, base, blob) for base, blob in ((BASE, LARGE), ("t-2", SMALL))]
    assert len(audit(folder)) == 2
    clock.now += 1
    async with opened(folder, clock) as store:
        assert await store.list("me") == tuple(reversed(known))
        assert (await read(store, BASE), await read(store, "t-2")) == (LARGE, SMALL)
        assert isinstance(gone, Tombstone)
        assert await store.describe("me", "t-gone") == gone
        assert await store.slugs() >= {"grid"}


async def test_other_users_cannot_read_values_or_infer_them_from_names(folder: Path, clock: Clock) -> None:
    async with opened(folder, clock) as store:
        for base, blob in ((BASE, LARGE), ("secret-tool", SMALL)):
            await put(store, clock, base, blob)
        everything = [folder, *folder.rglob("*")]
        assert len(everything) >= 7
        for path in everything:
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
        assert not any("grid" in path.name or "secret" in path.name for path in everything)


async def test_equal_large_values_share_one_file_until_the_last_goes(folder: Path, clock: Clock, audit: Audit) -> None:
    async with opened(folder, clock) as first, opened(folder, clock) as second:
        await put(first, clock, "t-1", LARGE)
        await put(second, clock, "t-2", LARGE)
        assert len(list((folder / "blobs").iterdir())) == 1
        await second.delete("me", "t-1")
        assert await read(first, "t-2") == LARGE
        await first.delete("me", "t-2")
        assert list((folder / "blobs").iterdir()) == []
    assert audit(folder) == set()


async def test_values_that_differ_in_one_byte_share_no_file(folder: Path, clock: Clock, audit: Audit) -> None:
    values = {f"t-{at}": LARGE[:at] + b"X" + LARGE[at + 1 :] for at in (0, 4_095, 9_000, 80_000, len(LARGE) - 1)}
    values["t-longer"] = LARGE + b"0"
    async with opened(folder, clock) as store:
        for suffix in ("", "-again"):
            for base, blob in values.items():
                await put(store, clock, f"{base}{suffix}", blob)
        for suffix in ("", "-again"):
            for base, blob in values.items():
                assert await read(store, f"{base}{suffix}") == blob
        assert len(list((folder / "blobs").iterdir())) == len(values)
    assert len(audit(folder)) == 2 * len(values)


async def test_a_value_in_pieces_shares_the_file_of_the_whole(folder: Path, clock: Clock, audit: Audit) -> None:
    known = Descriptor("t-2", "text", len(LARGE), 7, (), clock.now, clock.now + TTL, Provenance("up", "g", "0" * 64))
    async with opened(folder, clock) as store:
        await put(store, clock, "t-1", LARGE)
        await store.put("me", known, (LARGE[:1], b"", memoryview(LARGE)[1:70_001], LARGE[70_001:]))
        assert await read(store, "t-2") == LARGE
        assert len(list((folder / "blobs").iterdir())) == 1
    assert len(audit(folder)) == 2


async def test_an_evicted_value_is_stored_again_with_equal_bytes(folder: Path, clock: Clock, audit: Audit) -> None:
    async with opened(folder, clock, max_values=1) as store:
        for base in ("t-1", "t-2", "t-2", "t-3"):
            await put(store, clock, base, LARGE)
            assert await read(store, base) == LARGE
        assert len(list((folder / "blobs").iterdir())) == 1
    assert audit(folder) == {("me", "t-3")}


async def test_equal_values_of_two_owners_share_no_file(folder: Path, clock: Clock, audit: Audit) -> None:
    known = Descriptor("t-1", "text", len(LARGE), 7, (), clock.now, clock.now + TTL, Provenance("up", "g", "0" * 64))
    async with opened(folder, clock) as store:
        for namespace in ("me", "you"):
            await store.put(namespace, known, (LARGE,))
        assert len({blob.stat().st_ino for blob in (folder / "blobs").iterdir()}) == 2
        await store.delete("me", "t-1")
        assert len(list((folder / "blobs").iterdir())) == 1
        assert bytes(await store.read("you", "t-1") or b"") == LARGE
    assert audit(folder) == {("you", "t-1")}


async def test_a_spooled_message_is_linked_and_not_copied(folder: Path, clock: Clock, tmp_path: Path) -> None:
    frame = tmp_path / "frame"
    frame.write_bytes(b"head" + LARGE + b"tail")
    async with opened(folder, clock) as store:
        await put(store, clock, BASE, LARGE, FileSpan(str(frame), Span(4, len(LARGE))))
        location = await store.file_of("me", BASE)
        assert location is not None
        assert Path(location.path).samefile(frame)
        assert location.span == Span(4, len(LARGE))


async def test_uses_are_written_once_a_minute_and_extend_the_expiry(folder: Path, clock: Clock) -> None:
    async with opened(folder, clock, ttl=100 * TTL) as store, opened(folder, clock, ttl=100 * TTL) as other:
        await put(store, clock, BASE, SMALL)
        with closing(sqlite3.connect(folder / "index.sqlite")) as index:
            changes = []
            for _ in range(121):
                clock.now += 1
                await store.read("me", BASE)
                changes += index.execute("PRAGMA data_version").fetchone()
        assert len(set(changes)) <= 4
        clock.now += 100 * TTL - 0.01
        assert await other.list("me") != ()
        clock.now += 60.02
        assert await other.list("me") == ()


async def test_a_use_that_was_not_written_yet_is_when_the_store_is_closed(folder: Path, clock: Clock) -> None:
    async with opened(folder, clock) as store:
        for base in ("t-1", "t-2"):
            await put(store, clock, base, SMALL)
            await store.read("me", base)
        clock.now += 1
        await store.read("me", "t-1")
    async with opened(folder, clock, max_values=2) as store:
        await put(store, clock, "t-3", SMALL)
        assert {one.base for one in await store.list("me")} == {"t-1", "t-3"}


async def test_files_of_a_killed_gateway_are_removed_and_of_a_live_one_kept(
    folder: Path, clock: Clock, audit: Audit
) -> None:
    async with opened(folder, clock) as living:
        await put(living, clock, BASE, LARGE)
        draft = living.scratch / "draft"
        draft.write_bytes(b"half a value")
        dead = folder / "live-0123456789abcdef"
        (dead / "mcp-mirror-spool").mkdir(parents=True)
        (dead / "mcp-mirror-spool" / "frame").write_bytes(b"half a message")
        (dead / "lock").touch()
        (folder / "blobs" / ("0" * 64)).write_bytes(b"nobody's")
        async with opened(folder, clock):
            assert draft.exists()
            assert not dead.exists()
            assert [path.name for path in (folder / "blobs").iterdir()] != []
            assert not (folder / "blobs" / ("0" * 64)).exists()
        assert await read(living, BASE) == LARGE
    assert audit(folder) == {("me", BASE)}


@pytest.mark.parametrize("left", [None, b"", b"half", b"more than all of it" * 10_000])
async def test_a_value_whose_file_is_not_whole_is_forgotten_at_the_start(
    left: bytes | None, folder: Path, clock: Clock, audit: Audit, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(folder, clock) as store:
        await put(store, clock, BASE, LARGE)
        await put(store, clock, "t-2", SMALL)
    (blob,) = (folder / "blobs").iterdir()
    blob.unlink() if left is None else blob.write_bytes(left)
    async with opened(folder, clock) as store:
        assert await store.describe("me", BASE) is None
        assert "1 values in" in caplog.text
        await put(store, clock, BASE, LARGE)
        assert await read(store, BASE) == LARGE
    assert audit(folder) == {("me", BASE), ("me", "t-2")}


async def test_a_lost_blob_is_not_shared_with_the_next_equal_value(folder: Path, clock: Clock) -> None:
    async with opened(folder, clock) as store:
        await put(store, clock, "t-1", LARGE)
        (blob,) = (folder / "blobs").iterdir()
        blob.unlink()
        assert await store.read("me", "t-1") is None
        await put(store, clock, "t-2", LARGE)
        assert (await read(store, "t-1"), await read(store, "t-2")) == (b"", LARGE)


async def test_a_blob_that_goes_while_it_is_to_be_shared_is_written(folder: Path, clock: Clock, audit: Audit) -> None:
    removed: list[Path] = []

    class RemovingClock(Clock):
        def __call__(self) -> float:
            if not removed:  # within the change that adds the second value, before the file is used
                removed.extend((folder / "blobs").iterdir())
                removed[0].unlink()
            return self.now

    async with opened(folder, clock) as store:
        await put(store, clock, "t-1", LARGE)
    async with opened(folder, RemovingClock(), max_values=1) as store:
        await put(store, clock, "t-2", LARGE)
        assert removed
        assert await read(store, "t-2") == LARGE
    assert audit(folder) == {("me", "t-2")}


async def test_a_changed_file_is_not_shared_with_a_value_of_its_old_bytes(folder: Path, clock: Clock) -> None:
    changed = LARGE[:9_000] + b"X" + LARGE[9_001:]
    async with opened(folder, clock) as store:
        await put(store, clock, "t-1", LARGE)
        (blob,) = (folder / "blobs").iterdir()
        blob.write_bytes(changed)
        await put(store, clock, "t-2", LARGE)
        assert (await read(store, "t-1"), await read(store, "t-2")) == (changed, LARGE)


async def test_a_file_that_was_to_be_removed_stays_where_a_new_value_needs_it(
    folder: Path, clock: Clock, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_use, remove = [True], Path.unlink

    def unlink(path: Path, **options: Any) -> None:
        if in_use[0] and path.parent.name == "blobs":
            raise PermissionError(13, "in use")
        remove(path, **options)

    monkeypatch.setattr(Path, "unlink", unlink)
    async with opened(folder, clock) as store:
        for base, blob in (("t-1", LARGE), ("t-2", LARGE * 2)):
            await put(store, clock, base, blob)
            await store.delete("me", base)
        assert len(list((folder / "blobs").iterdir())) == 2
        in_use[0] = False
        await put(store, clock, "t-3", LARGE)
        assert await read(store, "t-3") == LARGE
        assert len(list((folder / "blobs").iterdir())) == 1
    assert audit(folder) == {("me", "t-3")}


async def test_the_index_needs_650_bytes_for_a_value_beside_its_bytes(folder: Path, clock: Clock) -> None:
    values, index, stored = 2000, folder / "index.sqlite", 0
    async with opened(folder, clock, fsync=False) as store:
        for number in range(values):
            base = f"list_orders-{number * 2654435761 % (1 << 32):08x}-0000-4000-8000-{number:012x}"
            stored += (await put(store, clock, base, b"x" * (500 + number % 1000))).size
    assert (index.stat().st_size - stored) / values <= 650


@pytest.mark.parametrize("difference", [-1, 1])
async def test_a_store_of_another_format_is_refused_and_not_changed(
    difference: int, folder: Path, clock: Clock
) -> None:
    async with opened(folder, clock) as store:
        await put(store, clock, BASE, SMALL)
    with closing(sqlite3.connect(folder / "index.sqlite")) as index:
        (ours,) = index.execute("PRAGMA user_version").fetchone()
        index.execute(f"PRAGMA user_version = {ours + difference}")
    with pytest.raises(
        StoreError,
        match=rf"The store in {folder} has format {ours + difference} .* knows format {ours}\. .*`store.path`",
    ):
        await opened(folder, clock).__aenter__()
    with closing(sqlite3.connect(folder / "index.sqlite")) as index:
        assert index.execute("SELECT count(*) FROM entries").fetchone() == (1,)
        index.execute(f"PRAGMA user_version = {ours}")
    async with opened(folder, clock) as store:
        assert await read(store, BASE) == SMALL


async def test_tombstones_are_bounded_in_number_and_time(
    folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_mirror.stores.disk.eviction.MAX_TOMBSTONES", 5)
    async with opened(folder, clock, max_values=1) as store:
        for number in range(12):
            clock.now += 1
            await put(store, clock, f"t-{number}", SMALL)
        left = [number for number in range(12) if isinstance(await store.describe("me", f"t-{number}"), Tombstone)]
        assert left == [6, 7, 8, 9, 10]
        clock.now += 31 * 86_400
        await store.describe("me", "t-11")
        assert [isinstance(await store.describe("me", f"t-{n}"), Tombstone) for n in (10, 11)] == [False, True]


async def test_an_index_locked_by_another_gateway_fails_writes_not_reads(
    folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_mirror.stores.disk.index._LOCK_TIMEOUT", 50)
    async with opened(folder, clock) as store:
        await put(store, clock, "t-1", SMALL)
        with closing(sqlite3.connect(folder / "index.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match="keeps it locked: call again later"):
                await put(store, clock, "t-2", LARGE)
            assert await read(store, "t-1") == SMALL
            assert list((folder / "blobs").iterdir()) == []
        await put(store, clock, "t-2", LARGE)
        assert await read(store, "t-2") == LARGE


async def test_a_start_does_not_wait_for_a_change_by_another_gateway(
    folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_mirror.stores.disk.index._LOCK_TIMEOUT", 50)
    async with opened(folder, clock) as store:
        await put(store, clock, BASE, LARGE)
        with closing(sqlite3.connect(folder / "index.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            async with opened(folder, clock) as late:
                assert await read(late, BASE) == LARGE


@pytest.mark.slow
async def test_reads_do_not_wait_for_values_that_wait_for_another_gateway(folder: Path, clock: Clock) -> None:
    async with opened(folder, clock) as store:
        for number, blob in enumerate((SMALL, LARGE)):
            await put(store, clock, f"t-{number}", blob)
        with closing(sqlite3.connect(folder / "index.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting = [asyncio.create_task(put(store, clock, f"w-{number}", SMALL)) for number in range(20)]
            for _ in range(10):
                assert await read(store, "t-0") == SMALL
                assert await read(store, "t-1") == LARGE
                assert len(await store.list("me")) == 2
            assert not any(task.done() for task in waiting)  # they wait for ten seconds
            other.execute("ROLLBACK")
            await asyncio.gather(*waiting)
        assert len(await store.list("me")) == 22


async def test_reads_do_not_wait_for_an_expired_value_that_waits(folder: Path, clock: Clock) -> None:
    async with opened(folder, clock) as store:
        for number, blob in enumerate((SMALL, LARGE, SMALL)):
            await put(store, clock, f"t-{number}", blob)
        with closing(sqlite3.connect(folder / "index.sqlite", isolation_level=None)) as other:
            other.execute("UPDATE entries SET expires = 0 WHERE base = 't-2'")
            other.execute("BEGIN IMMEDIATE")
            waiting = asyncio.create_task(store.describe("me", "t-2"))
            for _ in range(10):
                assert await read(store, "t-0") == SMALL
                assert await read(store, "t-1") == LARGE
            assert not waiting.done()  # it waits for ten seconds
            other.execute("ROLLBACK")
            assert isinstance(await waiting, Tombstone)


async def test_a_folder_locked_by_another_gateway_is_an_error(
    folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_mirror.stores.disk.process_dir._LOCK_TIMEOUT", 0.05)
    folder.mkdir(parents=True)
    with lock_folder(folder), pytest.raises(StoreError, match="Another gateway is still opening it: end that gateway"):
        await opened(folder, clock).__aenter__()
    async with opened(folder, clock) as store:
        await put(store, clock, BASE, LARGE)


async def test_room_that_small_values_took_is_given_back_at_the_next_start(folder: Path, clock: Clock) -> None:
    async with opened(folder, clock) as store:
        for number in range(50):
            await put(store, clock, f"t-{number}", LARGE[:60_000])
    full = (folder / "index.sqlite").stat().st_size
    async with opened(folder, clock) as store:
        for number in range(50):
            await store.delete("me", f"t-{number}")
    async with opened(folder, clock):
        pass
    assert full > 50 * 60_000
    assert (folder / "index.sqlite").stat().st_size < full / 10


async def test_a_put_that_waits_for_the_disk_does_not_block_other_calls(
    folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, continues = threading.Event(), threading.Event()

    def fsync(file: int) -> None:
        if stat.S_ISREG(os.fstat(file).st_mode):
            waits.set()
            assert continues.wait(20)
        os.fsync(file)

    monkeypatch.setattr(blobs, "os", SimpleNamespace(**vars(os) | {"fsync": fsync}))
    async with opened(folder, clock) as store:
        await put(store, clock, "t-1", SMALL)
        putting = asyncio.create_task(put(store, clock, "t-2", LARGE))
        await asyncio.wait_for(asyncio.to_thread(waits.wait, 20), 20)
        assert await read(store, "t-1") == SMALL
        await put(store, clock, "t-3", SMALL)
        assert await store.describe("me", "t-2") is None
        assert not putting.done()
        continues.set()
        await putting
        assert await read(store, "t-2") == LARGE


async def test_slow_reads_and_writes_of_a_principal_do_not_delay_another(
    folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    continues = threading.Event()

    def wait(*_: object) -> bytes:
        assert continues.wait(20)
        return LARGE

    async with opened(folder, clock) as store:
        known = await put(store, clock, "t-0", SMALL)
        await store.put("other", known, (LARGE,))
        monkeypatch.setattr(Blobs, "_write_file", wait)
        monkeypatch.setattr("mcp_mirror.stores.disk.store.map_file", wait)
        slow = [asyncio.create_task(store.read("other", "t-0")) for _ in range(20)]
        slow += [asyncio.create_task(store.put("other", known, (LARGE + b" ",))) for _ in range(20)]
        try:
            async with asyncio.timeout(10):
                assert await read(store, "t-0") == SMALL
                await put(store, clock, "t-1", SMALL)
            assert not any(task.done() for task in slow)
        finally:
            continues.set()
            await asyncio.gather(*slow, return_exceptions=True)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other locks")
async def test_a_file_system_without_locks_is_named_as_the_cause_at_once(
    folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(_file: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    began = perf_counter()
    with pytest.raises(StoreError, match=r"Its file system has no locks: choose a folder on a local disk"):
        await opened(folder, clock).__aenter__()
    assert perf_counter() - began < 5


async def test_a_closed_store_raises_an_error(folder: Path, clock: Clock) -> None:
    async with opened(folder, clock) as store:
        pass
    with pytest.raises(StoreError, match="closed"):
        await put(store, clock, BASE, SMALL)


async def test_a_page_takes_no_longer_with_many_values(tmp_path: Path, clock: Clock) -> None:
    """SQLite must not sort all values for each page."""
    runs: dict[tuple[int, str], list[float]] = {}
    async with (
        opened(tmp_path / "few", clock, fsync=False) as few,
        opened(tmp_path / "many", clock, fsync=False) as many,
    ):
        stores = {30: few, 3000: many}
        for count, store in stores.items():
            for number in range(count):
                clock.now += 0.001
                await put(store, clock, f"grid-01234567-89ab-4cde-8f01-{number:012x}", b"1")
        for _ in range(20):  # in turns, because other programs may run for a part of the time
            for (count, store), slug in product(stores.items(), ("", "grid")):
                began = perf_counter()
                assert len(await store.list("me", slug=slug, limit=20)) == 20
                runs.setdefault((count, slug), []).append(perf_counter() - began)
    seconds = {key: min(taken) for key, taken in runs.items()}
    assert seconds[3000, ""] < 3 * seconds[30, ""]
    assert seconds[3000, "grid"] < 3 * seconds[30, "grid"]

"""Encrypted stores: other users cannot read values, and no principal gets values of another."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from mcp_mirror.errors import StoreError
from mcp_mirror.settings.store import EncryptionPolicy, StorePolicy
from mcp_mirror.stores.base import Store, Tombstone
from mcp_mirror.stores.disk.store import INLINE_BYTES, DiskStore
from mcp_mirror.stores.encryption import SEALED_CHUNK
from mcp_mirror.stores.redis.store import RedisStore
from mcp_mirror.types import Descriptor, FileSpan, Member, Provenance, Span

if TYPE_CHECKING:
    from redis_process import RedisProcess
    from tests.integration.conftest import Audit

CANARY = b"canary-5f1c"
FIRST, SECOND = "an example of a secret of 32 characters", "another example of a secret of 32 characters"
SMALL = b'{"' + CANARY + b'": 1}'
LARGE = (CANARY + b" ") * 20_000
CHANGED = "was changed or moved outside the gateway"


def sealed(*keys: str, **more: Any) -> EncryptionPolicy:
    return EncryptionPolicy(keys or (FIRST,), **more)


def disk(folder: Path, encryption: EncryptionPolicy | None = None, **more: Any) -> DiskStore:
    return DiskStore(StorePolicy(kind="disk", encryption=encryption, **more), time.time, folder)


async def put(store: Store, namespace: str, base: str, blob: bytes, file: FileSpan | None = None) -> None:
    canary = CANARY.decode()
    known = Descriptor(
        base, "object", len(blob), 7, (Member(canary, Span(0, 1)),), time.time(), time.time() + 9e5,
        Provenance(canary, canary, canary, (canary,)), canary, {canary: canary}, canary, b'{"%b":1}' % CANARY,
    )  # fmt: skip
    await store.put(namespace, known, (blob,), file)


async def read(store: Store, namespace: str, base: str) -> bytes:
    return bytes((await store.read(namespace, base)) or b"")


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def test_nothing_of_a_value_is_in_the_folder(tmp_path: Path, audit: Audit) -> None:
    folder, frame = tmp_path / "store", tmp_path / "frame"
    frame.write_bytes(LARGE)
    async with disk(folder, sealed(), max_values=4) as store:
        for base in ("t-gone", "t-1", "t-2"):
            await put(store, "me", base, SMALL)
        await put(store, "me", "t-3", LARGE)
        await put(store, "me", "t-4", LARGE, FileSpan(str(frame), Span(0, len(LARGE))))
        await store.delete("me", "t-2")
        assert isinstance(await store.describe("me", "t-gone"), Tombstone)
        assert CANARY not in everything_in(folder)
        assert (folder / "index.sqlite-wal").stat().st_size > 0
    assert CANARY not in everything_in(folder)
    assert len(audit(folder)) == 3
    async with disk(folder, sealed()) as store:
        assert await read(store, "me", "t-1") == SMALL
        assert await read(store, "me", "t-4") == LARGE
        assert bytes(await store.read("me", "t-4", Span(99_990, 30)) or b"") == LARGE[99_990:100_020]
        assert await store.file_of("me", "t-4") is None
    async with disk(tmp_path / "clear") as store:  # where it is found if it is there
        await put(store, "me", "t-1", SMALL)
        assert CANARY in everything_in(tmp_path / "clear")


async def test_equal_values_are_sealed_apart(tmp_path: Path) -> None:
    async with disk(tmp_path / "store", sealed()) as store:
        for namespace in ("me", "you"):
            await put(store, namespace, "t-1", LARGE)
    first, second = (path.read_bytes() for path in (tmp_path / "store" / "blobs").iterdir())
    assert first[:32] != second[:32]


MINE, YOURS, MY_OTHER = ("me", "t-1"), ("you", "t-1"), ("me", "t-2")
BYTES, RECORD = ("content", "digest"), ("descriptor",)
WHERE = "namespace = ? AND base = ?"


def channel(index: sqlite3.Connection, columns: tuple[str, ...], one: tuple[str, str], other: tuple[str, str]) -> None:
    """Give two values each other's columns."""
    names = ", ".join(columns)
    rows = [index.execute(f"SELECT {names} FROM entries WHERE {WHERE}", key).fetchone() for key in (one, other)]  # noqa: S608  # ours
    for key, row in zip((other, one), rows, strict=True):
        assignments = ", ".join(f"{column} = ?" for column in columns)
        index.execute(f"UPDATE entries SET {assignments} WHERE {WHERE}", (*row, *key))  # noqa: S608  # ours


def rename(index: sqlite3.Connection) -> None:
    index.execute(f"DELETE FROM entries WHERE {WHERE}", MINE)  # noqa: S608  # ours
    index.execute(f"UPDATE entries SET namespace = 'me' WHERE {WHERE}", YOURS)  # noqa: S608  # ours


def resize(index: sqlite3.Connection, size: str) -> None:
    index.execute(f"UPDATE entries SET size = {size} WHERE {WHERE}", MINE)  # noqa: S608  # ours


ROWS: dict[str, Callable[[sqlite3.Connection], None]] = {
    "another principal's bytes": lambda index: channel(index, BYTES, MINE, YOURS),
    "another value's bytes": lambda index: channel(index, BYTES, MINE, MY_OTHER),
    "another principal's record": lambda index: channel(index, RECORD, MINE, YOURS),
    "another principal's row": lambda index: channel(index, BYTES + RECORD, MINE, YOURS),
    "another value's row": lambda index: channel(index, BYTES + RECORD, MINE, MY_OTHER),
    "a row under another name": rename,
    "a shorter value": lambda index: resize(index, "size - 1"),
    "an empty value": lambda index: resize(index, "0"),
}


@pytest.mark.parametrize("size", [100, INLINE_BYTES + 1, 3 * INLINE_BYTES])
@pytest.mark.parametrize("spoil", ROWS.values(), ids=ROWS)
async def test_rows_that_were_exchanged_give_nothing(
    spoil: Callable[[sqlite3.Connection], None], size: int, tmp_path: Path
) -> None:
    folder, dice = tmp_path / "store", Random(size)  # noqa: S311  # no secret
    async with disk(folder, sealed()) as store:
        for key in (MINE, MY_OTHER, YOURS):
            await put(store, *key, dice.randbytes(size))
        with closing(sqlite3.connect(folder / "index.sqlite")) as index:
            index.execute("DROP TRIGGER blob_released")
            spoil(index)
            index.commit()
        for span in (None, Span(0, 1)):
            with pytest.raises(StoreError, match=CHANGED):
                await store.read(*MINE, span)


def swap(mine: Path, yours: Path) -> None:
    content = mine.read_bytes()
    mine.write_bytes(yours.read_bytes())
    yours.write_bytes(content)


def turn(mine: Path, _: Path) -> None:
    content = mine.read_bytes()
    mine.write_bytes(content[SEALED_CHUNK : 2 * SEALED_CHUNK] + content[:SEALED_CHUNK] + content[2 * SEALED_CHUNK :])


FILES: dict[str, Callable[[Path, Path], object]] = {
    "another's file": swap,
    "chunks in another order": turn,
    "a file without its end": lambda mine, _: os.truncate(mine, SEALED_CHUNK),
    "an empty file": lambda mine, _: os.truncate(mine, 0),
}


@pytest.mark.parametrize("spoil", FILES.values(), ids=FILES)
async def test_files_that_were_changed_give_nothing(spoil: Callable[[Path, Path], object], tmp_path: Path) -> None:
    folder = tmp_path / "store"
    async with disk(folder, sealed()) as store:
        await put(store, *MINE, LARGE)
        (mine,) = (folder / "blobs").iterdir()
        await put(store, *YOURS, LARGE)
        (yours,) = set((folder / "blobs").iterdir()) - {mine}
        spoil(mine, yours)
        with pytest.raises(StoreError, match=CHANGED):
            await store.read(*MINE)


async def test_forged_clear_values_are_refused_if_clear_is_refuse(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    async with disk(folder) as store:
        await put(store, *MINE, SMALL)
        await put(store, *MY_OTHER, LARGE)
    async with disk(folder, sealed(clear="refuse")) as store:
        for key in (MINE, MY_OTHER):
            for use in (store.read, store.describe, store.file_of):
                with pytest.raises(StoreError, match=r"`store.encryption.clear` is refuse"):
                    await use(*key)
        assert await store.list("me") == ()


async def test_encryption_is_turned_on_and_off_again_and_keys_are_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "store"
    steps = {
        "t-1": None,
        "t-2": sealed(FIRST),
        "t-3": sealed(SECOND, FIRST),
        "t-4": sealed(SECOND, FIRST, enabled=False),
    }
    for number, (base, encryption) in enumerate(steps.items(), 1):
        async with disk(folder, encryption) as store:
            await put(store, "me", base, LARGE)
            await put(store, "me", f"{base}-small", SMALL)
            assert len(await store.list("me")) == 2 * number
            for each in list(steps)[:number]:
                assert (await read(store, "me", each), await read(store, "me", f"{each}-small")) == (LARGE, SMALL)
    for missing, encryption in ((4, None), (2, sealed(FIRST)), (2, sealed(SECOND))):
        with pytest.raises(StoreError, match=rf"The store in .* has {missing} values of keys that are not in"):
            async with disk(folder, encryption):
                pass
    async with disk(folder, sealed(SECOND, FIRST)) as store:
        for base in ("t-2", "t-2-small"):
            await store.delete("me", base)
    async with disk(folder, sealed(SECOND)) as store:  # nothing of the first key is left
        assert len(await store.list("me")) == 6
    assert caplog.records == []


async def test_a_value_of_an_unknown_key_does_not_affect_other_values(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two gateways on one folder: one has the new key, the other does not know it yet."""
    folder = tmp_path / "store"
    async with disk(folder, sealed(FIRST), max_values=2) as old, disk(folder, sealed(SECOND, FIRST)) as new:
        await put(new, *MINE, SMALL)
        with pytest.raises(StoreError, match=r"encrypted with a key that is not in `store.encryption.keys`"):
            await old.describe(*MINE)
        with pytest.raises(StoreError, match=r"encrypted with a key"):
            await old.read(*MINE)
        with caplog.at_level(logging.WARNING):
            await put(old, *MY_OTHER, SMALL)
            assert [one.base for one in await old.list("me")] == ["t-2"]
        assert "encrypted with a key" in caplog.text
        assert CANARY.decode() not in caplog.text
        await put(old, "me", "t-3", SMALL)  # makes room, by what it cannot read
        assert {one.base for one in await new.list("me")} == {"t-2", "t-3"}
        assert await new.describe(*MINE) is None


def redis(server: RedisProcess, tmp_path: Path, encryption: EncryptionPolicy | None) -> RedisStore:
    policy = StorePolicy(kind="redis", url=server.url, prefix=f"{tmp_path}:", encryption=encryption)
    return RedisStore(policy, time.time, lambda: tmp_path)


HUGE = (CANARY + b" ") * 500_000


async def test_nothing_of_a_value_is_in_redis(own_redis: RedisProcess, tmp_path: Path) -> None:
    own_redis.run("CONFIG", "SET", "rdbcompression", "no")
    async with redis(own_redis, tmp_path, sealed()) as store:
        for base, blob in (("t-1", SMALL), ("t-2", LARGE), ("t-3", HUGE), ("t-4", b"")):
            await put(store, "me", base, blob)
        assert await read(store, "me", "t-3") == HUGE
        assert bytes(await store.read("me", "t-3", Span(5_000_000, 200_000)) or b"") == HUGE[5_000_000:5_200_000]
        own_redis.run("SAVE")
        dump = (tmp_path / "dump.rdb").read_bytes()
        assert len(dump) > len(HUGE)
        assert CANARY not in dump
        assert CANARY not in everything_in(tmp_path / "appendonlydir")
    async with redis(own_redis, tmp_path, None) as store:  # where it is found if it is there
        await put(store, "me", "t-5", SMALL)
        own_redis.run("SAVE")
        assert CANARY in (tmp_path / "dump.rdb").read_bytes()


async def test_keys_of_redis_that_were_exchanged_give_nothing(redis_server: RedisProcess, tmp_path: Path) -> None:
    prefix = f"{tmp_path}:2:"
    async with redis(redis_server, tmp_path, sealed()) as store:
        for key in (MINE, YOURS):
            await put(store, *key, LARGE)
        mine, yours = f"{prefix}value:me:t-1", f"{prefix}value:you:t-1"
        marks = [(name, redis_server.run("HGET", f"{prefix}value:{name}:t-1", "mark")) for name in ("me", "you")]
        blobs = [f"{prefix}blob:{name}:t-1:{mark.decode()}:0" for name, mark in marks]
        chunk = redis_server.run("GET", blobs[0])
        redis_server.run("COPY", blobs[1], blobs[0], "REPLACE")
        with pytest.raises(StoreError, match=CHANGED):
            await store.read(*MINE)
        turned = chunk[SEALED_CHUNK : 2 * SEALED_CHUNK] + chunk[:SEALED_CHUNK] + chunk[2 * SEALED_CHUNK :]
        redis_server.run("SET", blobs[0], turned)
        with pytest.raises(StoreError, match=CHANGED):
            await store.read(*MINE)
        redis_server.run("SET", blobs[0], chunk[:-1])
        assert await store.read(*MINE) is None
        redis_server.run("SET", blobs[0], chunk)
        assert await read(store, *MINE) == LARGE
        redis_server.run("HSET", mine, "size", 0)
        with pytest.raises(StoreError, match=CHANGED):
            await store.read(*MINE)
        redis_server.run("HSET", mine, "size", len(LARGE), "record", redis_server.run("HGET", yours, "record"))
        for use in (store.read, store.describe):
            with pytest.raises(StoreError, match=CHANGED):
                await use(*MINE)
        redis_server.run("DEL", mine)
        assert await store.read(*MINE) is None
        assert await read(store, *YOURS) == LARGE


async def test_keys_can_change_in_redis_and_a_wrong_key_is_reported(
    redis_server: RedisProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for base, encryption in (("t-1", None), ("t-2", sealed(FIRST)), ("t-3", sealed(SECOND, FIRST))):
        async with redis(redis_server, tmp_path, encryption) as store:
            await put(store, "me", base, LARGE)
            assert base in {one.base for one in await store.list("me")}
            assert await read(store, "me", base) == LARGE
    async with redis(redis_server, tmp_path, sealed(SECOND, FIRST)) as store:
        assert [await read(store, "me", base) for base in ("t-1", "t-2", "t-3")] == [LARGE] * 3
    async with redis(redis_server, tmp_path, sealed(FIRST)) as store:
        for use in (store.read, store.describe):
            with pytest.raises(StoreError, match=r"encrypted with a key that is not in `store.encryption.keys`"):
                await use("me", "t-3")
        assert {one.base for one in await store.list("me")} == {"t-1", "t-2"}
        assert "encrypted with a key" in caplog.text
        assert await store.delete("me", "t-3") is True

"""Records that cannot be decoded, because they are damaged or of a later version, in a store with others."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec
import pytest
from clocks import Clock
from disk_values import LARGE, TTL
from disk_values import opened as open_disk
from disk_values import put as put_on_disk
from redis_values import opened as open_redis
from redis_values import put as put_in_redis

from mcp_mirror.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

    from redis_process import RedisProcess

DAMAGED = [b"", b"\xff\x00", msgspec.msgpack.encode([99]), msgspec.msgpack.encode({"kind": "later"})]


def spoil(index: Path, base: str, record: bytes) -> None:
    """Replace the record of a value; if the new one is empty, make the value one of a later kind."""
    with closing(sqlite3.connect(index)) as raw:
        if not record:
            (found,) = raw.execute("SELECT descriptor FROM entries WHERE base = ?", (base,)).fetchone()
            record = msgspec.msgpack.encode([99, *msgspec.msgpack.decode(found)[1:]])
        raw.execute("UPDATE entries SET descriptor = ? WHERE base = ?", (record, base))
        raw.commit()


@pytest.mark.parametrize("record", DAMAGED)
async def test_an_unreadable_record_on_disk_costs_only_its_value(record: bytes, tmp_path: Path, clock: Clock) -> None:
    folder = tmp_path / "store"
    async with open_disk(folder, clock, max_values=3) as store:
        for number in range(3):
            clock.now += 1
            await put_on_disk(store, clock, f"t-{number}", b'"x"')
        spoil(folder / "index.sqlite", "t-0", record)
        with pytest.raises(StoreError, match=r"cannot be read.*Call the tool that created it again"):
            await store.describe("me", "t-0")
        assert [one.base for one in await store.list("me")] == ["t-2", "t-1"]
        for number in range(3, 5):  # these evict the unreadable one
            clock.now += 1
            await put_on_disk(store, clock, f"t-{number}", b'"x"')
        assert [one.base for one in await store.list("me")] == ["t-4", "t-3", "t-2"]
        spoil(folder / "index.sqlite", "t-3", record)
        clock.now += TTL
        await put_on_disk(store, clock, "t-5", b'"x"')
        assert [one.base for one in await store.list("me")] == ["t-5"]


async def test_an_unreadable_record_in_redis_costs_only_its_value(redis_server: RedisProcess, tmp_path: Path) -> None:
    async with open_redis(redis_server, tmp_path, max_values=3) as store:
        for number in range(3):
            await put_in_redis(store, f"t-{number}")
        for record in DAMAGED[1:]:
            redis_server.run("HSET", f"{tmp_path}:2:value:me:t-0", "record", record)
            with pytest.raises(StoreError, match=r"cannot be read.*Call the tool that created it again"):
                await store.describe("me", "t-0")
            assert [one.base for one in await store.list("me")] == ["t-2", "t-1"]
        for number in range(3, 5):
            await put_in_redis(store, f"t-{number}")
        assert [one.base for one in await store.list("me")] == ["t-4", "t-3", "t-2"]


async def test_an_index_with_a_text_that_cannot_be_decoded_is_set_aside(tmp_path: Path, clock: Clock) -> None:
    folder = tmp_path / "store"
    async with open_disk(folder, clock) as store:
        await put_on_disk(store, clock, "t-0", LARGE)
    with closing(sqlite3.connect(folder / "index.sqlite")) as raw:
        raw.execute("UPDATE blobs SET digest = CAST(x'61ff' AS TEXT)")
        raw.commit()
    async with open_disk(folder, clock) as store:
        await put_on_disk(store, clock, "t-1", LARGE)
        assert [one.base for one in await store.list("me")] == ["t-1"]
    assert len(list(folder.glob("index.sqlite.damaged-*[0-9]"))) == 1

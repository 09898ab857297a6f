"""The contract of all stores; lines in `STORES` and `NEEDS` add a store."""

import asyncio
import errno
import gc
import operator
import shutil
import sys
import threading
from bisect import insort
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
from clocks import Clock
from msgspec.structs import replace
from removed_files import wait_until_gone
from samples import sample
from tests.load import measure_pause, slowness
from waiting import until

from mcp_mirror.errors import StoreError
from mcp_mirror.settings.limits import PrincipalLimits
from mcp_mirror.settings.store import EncryptionPolicy, StorePolicy
from mcp_mirror.stores.base import Store, Tombstone
from mcp_mirror.stores.disk.store import DiskStore
from mcp_mirror.stores.memory import MemoryStore
from mcp_mirror.stores.redis.store import RedisStore
from mcp_mirror.stores.s3 import S3Blobs
from mcp_mirror.stores.sorted_items import SortedItems
from mcp_mirror.system.mapped_files import map_file
from mcp_mirror.types import (
    ArrayIndex,
    Descriptor,
    FileSpan,
    Kind,
    Member,
    Provenance,
    Span,
    StoreStats,
    StoreTotals,
    Traffic,
)

TTL = 100.0
ROOM = 1000


def open_with_bucket(policy: StorePolicy, clock: Clock, folder: Callable[[], Path]) -> RedisStore:
    return RedisStore(replace(policy, kind="redis"), clock, folder, S3Blobs(policy.blobs or ""))


STORES: dict[str, Callable[[StorePolicy, Clock, Callable[[], Path]], AbstractAsyncContextManager[Store]]] = {
    "memory": MemoryStore,
    "disk": lambda policy, clock, _: DiskStore(policy, clock, Path(policy.path or "")),
    "redis": RedisStore,
    "sealed disk": lambda policy, clock, _: DiskStore(policy, clock, Path(policy.path or "")),
    "sealed redis": RedisStore,
    "s3": open_with_bucket,
    "sealed s3": open_with_bucket,
}
NEEDS: dict[str, Callable[[pytest.FixtureRequest, Path], dict[str, Any]]] = {
    "disk": lambda _, folder: {"path": str(folder / "store")},
    "redis": lambda test, folder: {"url": test.getfixturevalue("redis_server").url, "prefix": f"{folder}:"},
    "s3": lambda test, folder: NEEDS["redis"](test, folder) | {"blobs": test.getfixturevalue("bucket").url},
}
"""The settings of a kind beside those of a test: the place of the store."""

SEALED = {"encryption": EncryptionPolicy(("an example of a secret of 32 characters",), clear="refuse")}

OpenStore = Callable[..., AbstractAsyncContextManager[Store]]


@pytest.fixture(params=sample(STORES, lambda name: name not in {"sealed redis", "sealed s3"}))
def open_store(request: pytest.FixtureRequest, clock: Clock, tmp_path: Path) -> OpenStore:
    """Opens an empty store of each kind with the given policy."""
    name, kind = request.param, request.param.rpartition(" ")[2]
    needed = (NEEDS[kind](request, tmp_path) if kind in NEEDS else {}) | (SEALED if kind != name else {})
    return lambda **policy: STORES[name](StorePolicy(kind=kind, ttl=TTL, **needed, **policy), clock, lambda: tmp_path)


@pytest.fixture
async def store(open_store: OpenStore) -> AsyncIterator[Store]:
    """A store of each kind with little room."""
    async with open_store(max_bytes=ROOM) as opened:
        yield opened


@pytest.fixture
async def roomy(open_store: OpenStore) -> AsyncIterator[Store]:
    """A store of each kind that takes large values."""
    async with open_store() as opened:
        yield opened


def descriptor(base: str, blob: bytes, clock: Clock, **more: Any) -> Descriptor:
    members = (Member("a", Span(5, 3)),)
    provenance = Provenance("up", "tool", "0" * 64, ("other-path",))
    return Descriptor(
        base,
        "object",
        len(blob),
        7,
        members,
        clock.now,
        clock.now + TTL,
        provenance,
        labels={"x": "y"},
        preview=False,
        **more,
    )


async def put(store: Store, clock: Clock, base: str, blob: bytes = b'{"a":[1]}', namespace: str = "me") -> Descriptor:
    described = descriptor(base, blob, clock)
    await store.put(namespace, described, (blob[:4], memoryview(blob)[4:]))
    return described


async def test_a_value_comes_back_as_it_was_put(store: Store, clock: Clock) -> None:
    described = await put(store, clock, "t-1")
    assert await store.describe("me", "t-1") == described
    assert bytes(await store.read("me", "t-1") or b"") == b'{"a":[1]}'


async def test_a_range_is_read_without_the_rest(store: Store, clock: Clock) -> None:
    await put(store, clock, "t-1")
    assert bytes(await store.read("me", "t-1", Span(5, 3)) or b"") == b"[1]"
    assert bytes(await store.read("me", "t-1", Span(0, 0)) or b"") == b""


async def test_an_unknown_value_is_none(store: Store) -> None:
    assert await store.describe("me", "t-1") is None
    assert await store.read("me", "t-1") is None
    assert await store.delete("me", "t-1") is False
    assert await store.list("me") == ()
    assert (await store.stats("me")).values == 0


async def test_a_namespace_without_a_name_has_its_own_quota(open_store: OpenStore, clock: Clock) -> None:
    async with open_store(max_values=9, namespace_values=2) as store:
        for base, namespace in (("t-1", "me"), ("t-2", "me"), ("t-3", ""), ("t-4", "")):
            await put(store, clock, base, namespace=namespace)
            clock.now += 1
        for namespace in ("me", ""):
            assert (await store.stats(namespace)).values == 2
        await put(store, clock, "t-5", namespace="")
        assert [found.base for found in await store.list("")] == ["t-5", "t-4"]
        assert [found.base for found in await store.list("me")] == ["t-2", "t-1"]


async def test_namespaces_do_not_see_each_other(store: Store, clock: Clock) -> None:
    await put(store, clock, "t-1", b'{"mine": 1}', "me")
    await put(store, clock, "t-1", b'{"yours": 1}', "you")
    assert bytes(await store.read("me", "t-1") or b"") == b'{"mine": 1}'
    assert bytes(await store.read("you", "t-1") or b"") == b'{"yours": 1}'
    assert await store.delete("you", "t-1") is True
    assert await store.describe("you", "t-1") is None
    assert await store.describe("me", "t-1") is not None
    assert [one.base for one in await store.list("me")] == ["t-1"]
    assert await store.list("stranger") == ()
    clock.now += 2 * TTL
    assert isinstance(await store.describe("me", "t-1"), Tombstone)
    assert await store.describe("stranger", "t-1") is None


async def test_a_deleted_value_leaves_no_trace(store: Store, clock: Clock) -> None:
    await put(store, clock, "t-1")
    assert await store.delete("me", "t-1") is True
    assert await store.delete("me", "t-1") is False
    assert await store.describe("me", "t-1") is None
    assert (await store.stats("me")).size == 0


async def test_values_are_listed_newest_first_and_counted(store: Store, clock: Clock) -> None:
    for index in range(3):
        await put(store, clock, f"t-{index}", b'{"a":[1]}' + b" " * index)
        clock.now += 1
    await store.read("me", "t-0")
    assert [one.base for one in await store.list("me")] == ["t-2", "t-1", "t-0"]
    assert [one.base for one in await store.list("me", limit=2)] == ["t-2", "t-1"]
    assert await store.list("stranger", limit=2) == ()
    assert await store.stats("me") == await store.stats("me")
    assert ((await store.stats("me")).values, (await store.stats("me")).size) == (3, 9 + 10 + 11)


@pytest.mark.parametrize("use", ["describe", "read", "range"])
async def test_every_use_puts_the_expiry_off(use: str, store: Store, clock: Clock) -> None:
    await put(store, clock, "t-1")
    for _ in range(5):
        clock.now += TTL - 1
        if use == "describe":
            assert isinstance(await store.describe("me", "t-1"), Descriptor)
        else:
            assert await store.read("me", "t-1", Span(0, 1) if use == "range" else None) is not None
    described = await store.describe("me", "t-1")
    assert isinstance(described, Descriptor)
    assert described.expires == clock.now + TTL


async def test_clock_jumps_neither_expire_a_value_early_nor_keep_it_forever(store: Store, clock: Clock) -> None:
    await put(store, clock, "t-1")
    clock.now -= TTL
    assert isinstance(await store.describe("me", "t-1"), Descriptor)
    clock.now += 1.5 * TTL
    assert isinstance(await store.describe("me", "t-1"), Descriptor)
    clock.now += 1.1 * TTL
    assert isinstance(await store.describe("me", "t-1"), Tombstone)


async def test_all_unexpired_values_are_listed_after_clock_jumps(store: Store, clock: Clock) -> None:
    for base, jump in (("t-1", 5 * TTL), ("t-2", -5 * TTL), ("t-3", 1.5 * TTL)):
        await put(store, clock, base)
        clock.now += jump
    assert [found.base for found in await store.list("me")] == ["t-2"]
    assert await store.bases_near("me", "t-", 9) == ("t-2",)
    assert (await store.stats("me")).values == 1
    assert "me" in await store.namespaces()
    assert isinstance(await store.describe("me", "t-2"), Descriptor)


async def test_listing_does_not_extend_the_expiry(store: Store, clock: Clock) -> None:
    await put(store, clock, "t-1")
    clock.now += TTL - 1
    await store.list("me")
    await store.stats("me")
    clock.now += 1
    assert await store.list("me") == ()


async def test_an_expired_value_leaves_a_tombstone_with_the_time(store: Store, clock: Clock) -> None:
    await put(store, clock, "t-1")
    await put(store, clock, "t-2")
    clock.now += TTL / 2
    await store.read("me", "t-2")
    clock.now += TTL / 2
    gone = await store.describe("me", "t-1")
    assert isinstance(gone, Tombstone)
    assert (gone.reason, gone.at, gone.descriptor.provenance.tool) == ("expired", clock.now, "tool")
    assert await store.read("me", "t-1") is None
    assert await store.delete("me", "t-1") is False
    assert isinstance(await store.describe("me", "t-2"), Descriptor)
    assert (await store.stats("me")).values == 1


async def test_a_value_that_expired_long_before_has_a_tombstone_with_that_time(store: Store, clock: Clock) -> None:
    """A gateway may have been stopped in the meantime."""
    await put(store, clock, "t-1")
    expiry = clock.now + TTL
    clock.now += 10_000 * TTL
    gone = await store.describe("me", "t-1")
    assert isinstance(gone, Tombstone)
    assert (gone.reason, gone.at) == ("expired", expiry)


async def test_the_least_recently_used_value_is_evicted(store: Store, clock: Clock) -> None:
    for index in range(4):
        await put(store, clock, f"t-{index}", b'"' + b"x" * 248 + b'"')
        clock.now += 1
    await store.read("me", "t-0")
    await put(store, clock, "t-4", b'"' + b"x" * 400 + b'"')
    evicted = [await store.describe("me", f"t-{index}") for index in (1, 2)]
    assert all(isinstance(one, Tombstone) and one.reason == "evicted" for one in evicted)
    assert {one.base for one in await store.list("me")} == {"t-0", "t-3", "t-4"}
    assert (await store.stats("me")).size <= ROOM


async def test_a_value_that_cannot_fit_is_refused_and_costs_the_others_nothing(store: Store, clock: Clock) -> None:
    await put(store, clock, "t-1")
    with pytest.raises(StoreError, match=r"1,001 bytes; the limit of the store is 1,000 \(`store.max_bytes`\)"):
        await put(store, clock, "t-2", b"x" * (ROOM + 1))
    assert [one.base for one in await store.list("me")] == ["t-1"]
    assert await store.describe("me", "t-2") is None
    await put(store, clock, "t-3", b"x" * ROOM)
    assert (await store.stats("me")).size == ROOM


async def test_a_value_put_again_takes_the_place_of_the_first(store: Store, clock: Clock) -> None:
    for _ in range(200):
        await put(store, clock, "t-1", b'"' + b"x" * 300 + b'"')
    assert ((await store.stats("me")).values, (await store.stats("me")).size) == (1, 302)
    await put(store, clock, "t-2", b'"' + b"x" * 300 + b'"')
    assert isinstance(await store.describe("me", "t-1"), Descriptor)


async def test_an_expired_value_frees_its_room(store: Store, clock: Clock) -> None:
    await put(store, clock, "t-1", b"x" * ROOM)
    clock.now += TTL
    await put(store, clock, "t-2", b"x" * ROOM)
    gone = await store.describe("me", "t-1")
    assert isinstance(gone, Tombstone)
    assert gone.reason == "expired"


async def test_a_small_part_of_a_message_does_not_keep_the_message(tmp_path: Path) -> None:
    clock, message = Clock(), bytes(500)
    store = MemoryStore(StorePolicy(max_bytes=ROOM, ttl=TTL), clock, lambda: tmp_path)
    for base, size in (("small", 100), ("large", 450)):
        await store.put("me", descriptor(base, message[:size], clock), (memoryview(message)[:size],))
    blobs = {base: await store.read("me", base) for base in ("small", "large")}
    assert isinstance(blobs["small"], bytes)
    assert isinstance(blobs["large"], memoryview)
    assert blobs["large"].obj is message


SIZES = (0, 1, 9, 65_536, 65_537, 3_000_000)


def content(size: int) -> bytes:
    return (b"0123456789abcdef" * (size // 16 + 1))[:size]


@pytest.mark.parametrize("size", SIZES)
async def test_a_value_of_any_size_and_every_range_of_it_comes_back(roomy: Store, clock: Clock, size: int) -> None:
    blob = content(size)
    await put(roomy, clock, "t-1", blob)
    assert bytes((await roomy.read("me", "t-1")) or b"") == blob
    for start, length in ((0, 0), (0, size), (size // 3, size // 2), (max(size - 1, 0), min(size, 1)), (size, 0)):
        part = await roomy.read("me", "t-1", Span(start, length))
        assert part is not None
        assert bytes(part) == blob[start : start + length]


async def test_all_that_is_known_about_a_value_comes_back(roomy: Store, clock: Clock) -> None:
    members = tuple(Member(f'key {number} "\u00e9\u2603"', Span(number, 2)) for number in range(5000))
    index = ArrayIndex(Span(5, 1 << 33), 1 << 32, tuple(range(1024)), tuple(range(1, 1025)))
    details = {"media_type": "image/png", "companion": "t-9", "other_members": b'{"_meta":{"a":1.0}}', "array": index}
    provenance = Provenance("up", "t\u00f6\u00f6l", "0" * 64, ("a-1", "b-2/c"))
    known = Descriptor("t-1", "binary", 9, 1 << 40, members, clock.now, clock.now + TTL, provenance, **details)  # type: ignore[arg-type]
    await roomy.put("me", known, (b'{"a":[1]}',))
    assert await roomy.describe("me", "t-1") == known
    assert await roomy.list("me") == (replace(known, members=(), other_members=b"{}", array=None),)


@pytest.mark.parametrize("digest", ["0123456789abcdef" * 4, "0123456789ABCDEF" * 4, "ab", "", "not hexadecimal"])
async def test_every_kind_and_digest_comes_back(digest: str, roomy: Store, clock: Clock) -> None:
    kinds = get_args(Kind)
    for number, kind in enumerate(kinds):
        origin = Provenance("up", "tool", digest)
        known = Descriptor(f"t-{number}", kind, 4, 1, (), clock.now, clock.now + TTL, origin)
        await roomy.put("me", known, (b"null",))
        assert await roomy.describe("me", known.base) == known
    assert {one.kind for one in await roomy.list("me")} == set(kinds)


async def test_values_in_memory_do_not_slow_the_garbage_collector(tmp_path: Path) -> None:
    clock, store = Clock(), MemoryStore(StorePolicy(ttl=TTL), Clock(), lambda: tmp_path)
    gc.collect()
    before = len(gc.get_objects())
    for number in range(2000):
        await put(store, clock, f"t-{number}")
    gc.collect()
    assert len(gc.get_objects()) - before < 200


async def test_one_value_over_its_bound_is_refused_by_name(open_store: OpenStore, clock: Clock) -> None:
    async with open_store(max_value_bytes=100) as store:
        with pytest.raises(StoreError, match=r"101 bytes; the limit of one value is 100 \(`store.max_value_bytes`\)"):
            await put(store, clock, "t-1", b"x" * 101)
        await put(store, clock, "t-1", b"x" * 100)


async def test_totals_count_all_namespaces_and_evictions(open_store: OpenStore, clock: Clock) -> None:
    async with open_store(max_values=4) as store:
        assert await store.totals() == StoreTotals(0, 0, 0)
        for index in range(6):
            clock.now += 1
            await put(store, clock, f"t-{index}", b"12345", namespace=f"owner {index % 2}")
        assert await store.totals() == StoreTotals(4, 20, 2)
        await store.delete("owner 1", "t-5")
        assert await store.totals() == StoreTotals(3, 15, 2)


async def test_a_namespace_over_its_share_evicts_only_its_own_values(open_store: OpenStore, clock: Clock) -> None:
    async with open_store(namespace_bytes=500) as store:
        await put(store, clock, "t-old", b"x" * 500, "you")
        for index in range(4):
            clock.now += 1
            await put(store, clock, f"t-{index}", b"x" * 200)
        assert [one.base for one in await store.list("me")] == ["t-3", "t-2"]
        assert [one.base for one in await store.list("you")] == ["t-old"]
        gone = await store.describe("me", "t-0")
        assert isinstance(gone, Tombstone)
        assert gone.reason == "evicted"
        with pytest.raises(StoreError, match=r"501 bytes; .* \(`namespace_bytes`\)"):
            await put(store, clock, "t-9", b"x" * 501)


async def test_a_single_principal_has_another_share(open_store: OpenStore, clock: Clock) -> None:
    own = (PrincipalLimits("alice", namespace_bytes=4, namespace_values=1),)
    alice = '["token", "alice"]'
    async with open_store(principals=own) as store:
        for namespace in (alice, "me"):
            for base in ("t-1", "t-2"):
                await put(store, clock, base, b"[1]", namespace)
        assert [one.base for one in await store.list(alice)] == ["t-2"]
        assert [one.base for one in await store.list("me")] == ["t-2", "t-1"]
        with pytest.raises(StoreError, match=r"\(`namespace_bytes`\)"):
            await put(store, clock, "t-3", b"[1, 2]", alice)


@pytest.mark.parametrize("bound", ["max_values", "namespace_values"])
async def test_the_number_of_values_is_limited(bound: str, open_store: OpenStore, clock: Clock) -> None:
    async with open_store(**{bound: 3}) as store:
        for index in range(5):
            clock.now += 1
            await put(store, clock, f"t-{index}")
            if index > 1:
                await store.read("me", "t-0")
        assert [one.base for one in await store.list("me")] == ["t-4", "t-3", "t-0"]
        assert (await store.stats("me")).values == 3


async def test_all_namespaces_share_the_whole(open_store: OpenStore, clock: Clock) -> None:
    async with open_store(max_values=3) as store:
        for index, namespace in enumerate(("a", "b", "a", "c")):
            clock.now += 1
            await put(store, clock, f"t-{index}", namespace=namespace)
        assert [one.base for one in await store.list("a")] == ["t-2"]
        assert isinstance(await store.describe("a", "t-0"), Tombstone)
        assert await store.describe("b", "t-0") is None


@pytest.mark.parametrize("bound", [{"max_bytes": 1000}, {"max_values": 10}])
async def test_the_largest_holder_makes_room_first(bound: dict[str, Any], open_store: OpenStore, clock: Clock) -> None:
    async with open_store(**bound) as store:
        for index in range(3):  # used longest ago, and yet not what goes
            await put(store, clock, f"t-{index}", b"x" * 100, "quiet")
            clock.now += 1
        for index in range(40):
            await put(store, clock, f"t-{index}", b"x" * 100, "loud")
            clock.now += 1
        assert [one.base for one in await store.list("quiet")] == ["t-2", "t-1", "t-0"]
        assert (await store.stats("loud")).values == 7
        gone = await store.describe("loud", "t-32")
        assert isinstance(gone, Tombstone)
        assert gone.reason == "evicted"
        for index in range(3, 40):
            await put(store, clock, f"t-{index}", b"x" * 100, "quiet")
            clock.now += 1
        assert [(await store.stats(name)).values for name in ("loud", "quiet")] == [5, 5]


async def test_a_value_over_what_others_fairly_keep_is_refused(open_store: OpenStore, clock: Clock) -> None:
    async with open_store(max_bytes=1000) as store:
        for index in range(5):
            await put(store, clock, f"t-{index}", b"x" * 100, "quiet")
            clock.now += 1
        with pytest.raises(StoreError, match=r"600 bytes, and only 500 .*`store\.max_bytes`"):
            await put(store, clock, "t-0", b"x" * 600, "loud")
        assert (await store.stats("quiet")).values == 5
        assert await store.describe("loud", "t-0") is None
        await put(store, clock, "t-1", b"x" * 500, "loud")
        await put(store, clock, "t-2", b"x" * 500, "loud")
        assert [one.base for one in await store.list("loud")] == ["t-2"]
        assert (await store.stats("quiet")).values == 5


async def test_a_newcomer_gets_room_from_who_keeps_more(open_store: OpenStore, clock: Clock) -> None:
    async with open_store(max_bytes=1000) as store:
        for index, (name, size) in enumerate((("first", 400), ("first", 200), ("second", 200), ("second", 200))):
            await put(store, clock, f"t-{index}", b"x" * size, name)
            clock.now += 1
        await put(store, clock, "t-9", b"x" * 300, "new")
        assert [(await store.stats(name)).size for name in ("first", "second", "new")] == [200, 400, 300]


async def test_expired_values_of_anybody_go_before_any_other(open_store: OpenStore, clock: Clock) -> None:
    async with open_store(max_values=150) as store:
        for index in range(149):
            await put(store, clock, f"t-{index}", namespace="gone")
        clock.now += TTL
        await put(store, clock, "t-0")
        for index in range(1, 150):
            await put(store, clock, f"t-{index}")
        assert (await store.stats("me")).values == 150
        assert (await store.stats("gone")).values == 0


async def test_others_read_while_one_value_makes_many_go(open_store: OpenStore, clock: Clock) -> None:
    async with open_store(namespace_bytes=1000, fsync=False) as store:
        await put(store, clock, "t-0", namespace="you")
        for index in range(1000):
            await put(store, clock, f"t-{index}", b"1")
        reads, storing = 0, asyncio.ensure_future(put(store, clock, "t-1000", b"x" * 1000))
        while not storing.done():
            assert await store.read("you", "t-0") == b'{"a":[1]}'
            await asyncio.sleep(0)
            reads += 1
        await storing
        assert reads > 3
        assert [one.base for one in await store.list("me")] == ["t-1000"]
        assert (await store.totals()).evicted == 1000


async def test_one_namespaces_tombstones_do_not_push_out_anothers(
    open_store: OpenStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("memory", "disk.eviction", "redis.store"):
        monkeypatch.setattr(f"mcp_mirror.stores.{module}.NAMESPACE_TOMBSTONES", 5)
    async with open_store(namespace_values=1) as store:
        for namespace, count in (("quiet", 3), ("loud", 30)):
            for index in range(count):
                clock.now += 1
                await put(store, clock, f"t-{index}", namespace=namespace)
        described = [isinstance(await store.describe("quiet", f"t-{index}"), Tombstone) for index in range(3)]
        assert described == [True, True, False]
        described = [isinstance(await store.describe("loud", f"t-{index}"), Tombstone) for index in range(30)]
        assert described == [False] * 24 + [True] * 5 + [False]


def based(label: str, number: int) -> str:
    return f"{label}-{number:08x}-89ab-4cde-8f01-23456789abcd"


async def test_a_list_is_read_page_by_page_while_it_changes(roomy: Store, clock: Clock) -> None:
    bases = [based(f"tool_{index % 2}", index * 7919 % 50) for index in range(50)]
    for base in bases:
        await put(roomy, clock, base)
        await put(roomy, clock, base, namespace="you")
        clock.now += 1
    wanted, read, after = bases[::-1], list[str](), None
    while page := [one.base for one in await roomy.list("me", after=after, limit=7)]:
        read += page
        after = page[-1]
        await put(roomy, clock, based("new", len(read)))
        await roomy.read("me", bases[3])  # a use changes no order
        if wanted[-2] not in read:
            await roomy.delete("me", wanted.pop(-2))
    assert read == wanted


@pytest.mark.slow
async def test_a_list_of_values_with_many_keys_does_not_stall_others(roomy: Store, clock: Clock) -> None:
    known = replace(descriptor("t-0", b"{}", clock), members=(Member("key", Span(5, 3)),) * 20_000)
    for number in range(100):
        await roomy.put("me", replace(known, base=f"t-{number}"), (b"{}",))
    gc.disable()  # as in the gateway, which collects while it is idle
    try:
        pauses = [await measure_pause(roomy.list("me")) for _ in range(3)]
        assert min(pauses) < 0.1 * slowness()  # before: 0.4
        assert await measure_pause(roomy.list("me", limit=64)) < 0.1 * slowness()
    finally:
        gc.enable()


async def test_a_page_can_be_limited_to_one_tool(roomy: Store, clock: Clock) -> None:
    for index in range(20):
        await put(roomy, clock, based(("grid", "grid_2", "sheet")[index % 3], index))
        clock.now += 1
    page = [one.base for one in await roomy.list("me", slug="grid", limit=3)]
    assert page == [based("grid", index) for index in (18, 15, 12)]
    page = [one.base for one in await roomy.list("me", slug="grid", after=page[-1])]
    assert page == [based("grid", index) for index in (9, 6, 3, 0)]
    assert await roomy.list("me", slug="gri") == ()
    assert await roomy.slugs("me") == {"grid", "grid_2", "sheet"}
    assert await roomy.slugs("you") == frozenset()


async def test_a_page_after_a_value_that_is_gone_is_an_error(roomy: Store, clock: Clock) -> None:
    await put(roomy, clock, "t-1")
    await put(roomy, clock, "t-2", namespace="you")
    for after in ("t-0", "t-2"):
        with pytest.raises(LookupError):
            await roomy.list("me", after=after)
    clock.now += TTL
    with pytest.raises(LookupError):
        await roomy.list("me", after="t-1")


async def test_the_bases_next_to_a_text_are_found(roomy: Store, clock: Clock) -> None:
    for number in range(20):
        await put(roomy, clock, based("grid", number << 20))
    await put(roomy, clock, based("grid", 5 << 20), namespace="you")
    near = await roomy.bases_near("me", based("grid", (5 << 20) + 1), 2)
    assert near == tuple(based("grid", number << 20) for number in (4, 5, 6, 7))
    assert await roomy.bases_near("me", "a", 1) == (based("grid", 0),)
    assert await roomy.bases_near("me", "z", 1) == (based("grid", 19 << 20),)
    assert await roomy.bases_near("stranger", "a", 1) == ()


async def test_the_sums_are_exact_whatever_becomes_of_values(store: Store, clock: Clock) -> None:
    for index in range(6):
        await put(store, clock, f"t-{index}", b"x" * 10)
        await put(store, clock, f"t-{index}", b"x" * 20, "you")
        clock.now += 1
    await store.delete("me", "t-5")
    await put(store, clock, "t-4", b"x" * 11)
    clock.now += TTL - 5
    assert await store.stats("me") == StoreStats(3, 31)
    assert await store.stats("you") == StoreStats(4, 80)
    await store.describe("me", "t-0")
    assert await store.stats("me") == StoreStats(3, 31)


async def test_a_tombstone_keeps_only_the_origin_of_its_value(store: Store, clock: Clock) -> None:
    await store.put("me", descriptor("t-1", b"x" * 600, clock, other_members=b'{"much":1}'), (b"x" * 600,))
    clock.now += 1
    await put(store, clock, "t-2", b"x" * 600)
    gone = await store.describe("me", "t-1")
    assert isinstance(gone, Tombstone)
    assert (gone.descriptor.members, gone.descriptor.other_members, gone.at) == ((), b"{}", clock.now)
    assert (gone.descriptor.provenance.tool, gone.descriptor.size) == ("tool", 600)
    await put(store, clock, "t-1", b"x")
    await store.delete("me", "t-1")
    assert await store.describe("me", "t-1") is None


async def test_labels_include_those_of_tombstones(store: Store, clock: Clock) -> None:
    identity = "-01234567-89ab-4cde-8f01-23456789abcd"
    assert await store.slugs() == frozenset()
    await put(store, clock, f"grid-of{identity}", b"x" * 600)
    await put(store, clock, f"sheet{identity}", b"x" * 450, "you")
    assert await store.slugs() == {"grid-of", "sheet"}


async def test_tokens_are_counted_by_namespace_and_outlive_the_values(store: Store, clock: Clock) -> None:
    assert await store.namespaces() == frozenset()
    assert (await store.stats("me")).traffic == Traffic()
    await store.count("me", Traffic(5, 1 << 40))
    await put(store, clock, "t-1")
    await store.count("me", Traffic(7, 1))
    await store.count("y:o%u \u00fc", Traffic(0, 3))
    assert await store.stats("me") == StoreStats(1, 9, Traffic(12, (1 << 40) + 1))
    assert await store.namespaces() == {"me", "y:o%u \u00fc"}
    clock.now += 2 * TTL
    assert await store.stats("me") == StoreStats(0, 0, Traffic(12, (1 << 40) + 1))
    assert await store.stats("y:o%u \u00fc") == StoreStats(0, 0, Traffic(0, 3))
    assert (await store.stats("stranger")).traffic == Traffic()


async def test_tokens_counted_outlive_the_store_where_its_values_do(open_store: OpenStore) -> None:
    async with open_store() as store:
        await store.count("me", Traffic(1, 2))
        keeps = not isinstance(store, MemoryStore)
    async with open_store() as store:
        await store.count("me", Traffic(10, 20))
        assert (await store.stats("me")).traffic == (Traffic(11, 22) if keeps else Traffic(10, 20))


async def test_equal_values_do_not_go_with_one_another(roomy: Store, clock: Clock) -> None:
    blob = content(100_000)
    for base, namespace in (("t-1", "me"), ("t-2", "me"), ("t-1", "you")):
        await put(roomy, clock, base, blob, namespace)
    assert (await roomy.stats("me")).size == 200_000
    await roomy.delete("me", "t-1")
    await roomy.delete("you", "t-1")
    assert bytes((await roomy.read("me", "t-2")) or b"") == blob


async def test_read_bytes_stay_readable_after_eviction(roomy: Store, clock: Clock) -> None:
    for size in SIZES:
        blob = content(size)
        await put(roomy, clock, "t-1", blob)
        read = await roomy.read("me", "t-1")
        part = await roomy.read("me", "t-1", Span(size // 2, size // 4))
        await roomy.delete("me", "t-1")
        await put(roomy, clock, "t-1", b"other")
        assert bytes(read or b"") == blob
        assert bytes(part or b"") == blob[size // 2 :][: size // 4]


def values_in(folder: Path) -> list[Path]:
    """The files that hold single values."""
    return [path for path in folder.rglob("*") if path.is_file() and len(path.name) in (32, 64)]


async def test_expired_values_make_room_for_a_namespace_without_a_name(store: Store, clock: Clock) -> None:
    await put(store, clock, "t-1", bytes(500), "")
    for number in range(3):
        await put(store, clock, f"old-{number}", bytes(150), "other")
    clock.now += TTL - 1
    assert isinstance(await store.describe("", "t-1"), Descriptor)
    clock.now += 2
    await put(store, clock, "t-2", bytes(450), "new")
    assert isinstance(await store.describe("", "t-1"), Descriptor)


@pytest.mark.parametrize("junk", [0, 50_000, 900_000])
async def test_a_value_in_a_file_survives_the_removal_of_that_file(
    roomy: Store, clock: Clock, tmp_path: Path, junk: int
) -> None:
    blob, frame = content(100_000), tmp_path / "frame"
    for base in ("t-1", "t-2"):
        frame.write_bytes(b"j" * junk + blob + b"junk")
        await roomy.put("me", descriptor(base, blob, clock), (blob,), FileSpan(str(frame), Span(junk, len(blob))))
        frame.unlink()
    assert bytes((await roomy.read("me", "t-2")) or b"") == blob
    assert bytes((await roomy.read("me", "t-1", Span(99_990, 10))) or b"") == blob[-10:]
    if file := await roomy.file_of("me", "t-1"):
        assert bytes(map_file(file.path)[file.span.start : file.span.stop]) == blob
    assert await roomy.file_of("you", "t-1") is None


async def test_a_file_goes_with_its_value_and_not_before_its_readers(
    roomy: Store, clock: Clock, tmp_path: Path
) -> None:
    blob, frame = content(100_000), tmp_path / "frame"
    frame.write_bytes(blob)
    await roomy.put("me", descriptor("t-1", blob, clock), (blob,), FileSpan(str(frame), Span(0, len(blob))))
    frame.unlink()
    read = await roomy.read("me", "t-1")
    files = values_in(tmp_path)
    await roomy.delete("me", "t-1")
    for file in files:
        wait_until_gone(file)
    assert bytes(read or b"") == blob


async def test_an_expired_value_leaves_no_file(roomy: Store, clock: Clock, tmp_path: Path) -> None:
    await put(roomy, clock, "t-1", content(100_000))
    clock.now += TTL
    await roomy.describe("me", "t-1")
    assert values_in(tmp_path) == []


async def test_a_file_of_another_disk_is_copied(
    roomy: Store, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EXDEV, "another disk")

    copyfile, threads = shutil.copyfile, list[threading.Thread]()

    def copy(source: str, target: str) -> str:
        threads.append(threading.current_thread())
        return str(copyfile(source, target))

    monkeypatch.setattr("os.link", link)
    monkeypatch.setattr("shutil.copyfile", copy)
    blob, frame = content(100_000), tmp_path / "frame"
    frame.write_bytes(b"head" + blob)
    await roomy.put("me", descriptor("t-1", blob, clock), (blob,), FileSpan(str(frame), Span(4, len(blob))))
    frame.unlink()
    assert bytes((await roomy.read("me", "t-1")) or b"") == blob
    assert threading.main_thread() not in threads


# Many values that expire at once.

MANY = 300


async def count_kept(store: Store) -> int:
    """The number of values that the store has not removed, expired ones included."""
    if isinstance(store, MemoryStore):
        return len(store._values)  # noqa: SLF001  # not visible
    if isinstance(store, DiskStore):
        return int(store._index._read_rows("SELECT count(*) FROM entries", ())[0][0])  # noqa: SLF001  # not visible
    assert isinstance(store, RedisStore)
    [count] = await store._redis.run([("ZCARD", store._keys.of("order"))])  # noqa: SLF001  # not visible
    return int(count)


async def fill_and_expire(store: Store, clock: Clock, namespace: str = "me") -> None:
    for index in range(MANY):
        await put(store, clock, based("old", index), namespace=namespace)
    clock.now += TTL


@pytest.mark.usefixtures("without_background_removal")
async def test_expired_values_are_invisible_before_they_are_removed(roomy: Store, clock: Clock) -> None:
    await fill_and_expire(roomy, clock)
    assert await roomy.stats("me") == StoreStats(0, 0)
    assert (await roomy.list("me"), await roomy.namespaces()) in [
        ((), frozenset()),
        ((), {"me"}),  # Redis keeps the names of namespaces longer
    ]
    assert await roomy.bases_near("me", based("old", 5), 3) == ()
    assert await roomy.describe("me", based("old", 0)) is not None
    assert await roomy.read("me", based("old", 1)) is None
    assert await count_kept(roomy) > MANY - 5


@pytest.mark.slow
@pytest.mark.usefixtures("without_background_removal")
@pytest.mark.parametrize("few", [1000, 2])
async def test_unexpired_values_are_listed_among_many_expired_ones(
    few: int, roomy: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("memory", "disk.listings"):
        monkeypatch.setattr(f"mcp_mirror.stores.{module}._FEW", few)
    await fill_and_expire(roomy, clock)
    bases = [based(label, number) for number in range(3) for label in ("new", "zoo")]
    for base in bases:
        clock.now += 1
        await put(roomy, clock, base)
    assert await count_kept(roomy) > MANY - 15
    assert [one.base for one in await roomy.list("me", limit=4)] == bases[:1:-1]
    assert [one.base for one in await roomy.list("me", after=bases[2])] == bases[1::-1]
    assert [one.base for one in await roomy.list("me", slug="zoo", limit=2)] == [bases[5], bases[3]]
    assert [one.base for one in await roomy.list("me", limit=2)] == [bases[5], bases[4]]
    assert await roomy.bases_near("me", bases[1], 2) in [(bases[2], bases[4], bases[1], bases[3]), (bases[1], bases[3])]
    assert await roomy.stats("me") == StoreStats(6, 54)
    with pytest.raises(LookupError):
        await roomy.list("me", after=based("old", 200))


@pytest.mark.usefixtures("without_background_removal")
async def test_a_page_after_a_value_that_expires_now_does_not_begin_again(roomy: Store, clock: Clock) -> None:
    await put(roomy, clock, "t-1")
    clock.now += 1
    await put(roomy, clock, "t-2")
    clock.now += TTL / 2
    await put(roomy, clock, "t-3")
    clock.now += TTL / 2 - 1
    clock.step = 0.6  # at the first look, t-1 has expired, at the second t-2
    with suppress(LookupError):
        assert await roomy.list("me", after="t-2") == ()


@pytest.mark.usefixtures("without_background_removal")
async def test_a_put_removes_only_a_few_expired_values(roomy: Store, clock: Clock) -> None:
    await fill_and_expire(roomy, clock)
    await put(roomy, clock, "t-1")
    assert await count_kept(roomy) >= MANY + 1 - 3


@pytest.mark.slow
@pytest.mark.usefixtures("without_background_removal")
@pytest.mark.parametrize("bound", [{"max_values": MANY}, {"namespace_values": MANY}, {"max_bytes": 9 * MANY}])
async def test_a_put_into_a_store_full_of_expired_values_removes_only_a_few(
    bound: dict[str, int], open_store: OpenStore, clock: Clock
) -> None:
    async with open_store(**bound) as store:
        await fill_and_expire(store, clock)
        await put(store, clock, "t-1")
        assert await count_kept(store) >= MANY + 1 - 3
        await put(store, clock, "t-2", b"x" * 45)
        assert await store.stats("me") == StoreStats(2, 54)


async def test_expired_values_of_others_take_no_room_from_a_large_value(open_store: OpenStore, clock: Clock) -> None:
    async with open_store(max_bytes=9 * MANY, namespace_bytes=9 * MANY) as store:
        await fill_and_expire(store, clock, "gone")
        await put(store, clock, "t-1", b"x" * 9 * MANY)
        assert await store.stats("me") == StoreStats(1, 9 * MANY)


async def test_expiry_work_does_not_grow_with_the_number_of_namespaces(clock: Clock, tmp_path: Path) -> None:
    store = MemoryStore(StorePolicy(kind="memory", ttl=TTL, max_bytes=9 * MANY), clock, lambda: tmp_path)
    for index in range(MANY):
        await put(store, clock, based("old", index), b"x" * 9, f"n{index}")
    clock.now += TTL
    functions: list[object] = []
    sys.setprofile(lambda frame, event, _: functions.append(frame.f_code) if event == "call" else None)
    try:
        await put(store, clock, "t-1", b"x" * 9 * MANY)
    finally:
        sys.setprofile(None)
    assert await store.totals() == StoreTotals(1, 9 * MANY, 0)
    assert len(functions) < 100 * MANY


async def expire_beside(store: Store, clock: Clock, kept: Sequence[int]) -> None:
    """Let four values of one namespace expire, and not those of another with the given sizes."""
    for index in range(4):
        await put(store, clock, f"t-{index}", b"x" * 25, "gone")
    for index, size in enumerate(kept):
        await put(store, clock, f"t-{index}", b"x" * size, "quiet")
    clock.now += TTL - 1
    for index in range(len(kept)):
        await store.read("quiet", f"t-{index}")
    clock.now += 1


async def test_expired_values_take_nothing_from_a_fair_share(store: Store, clock: Clock) -> None:
    await expire_beside(store, clock, (300, 600))
    with pytest.raises(StoreError, match="600 bytes, and only 500"):
        await put(store, clock, "t-0", b"x" * 600)
    assert await store.stats("quiet") == StoreStats(2, 900)


async def test_expired_values_go_first_for_a_namespace_over_its_quota(open_store: OpenStore, clock: Clock) -> None:
    async with open_store(max_bytes=1000, namespace_bytes=500) as store:
        await expire_beside(store, clock, (250, 250))
        await put(store, clock, "t-0", b"x" * 400)
        clock.now += 1
        await put(store, clock, "t-1", b"x" * 500)
        assert await store.stats("quiet") == StoreStats(2, 500)
        gone = [await store.describe("gone", f"t-{index}") for index in range(4)]
        assert [isinstance(one, Tombstone) and one.reason for one in gone] == ["expired"] * 4


async def test_expired_values_are_removed_in_the_background(
    open_store: OpenStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_mirror.stores.quotas._IDLE", 0.01)
    async with open_store() as store:
        await fill_and_expire(store, clock)
        await until(lambda: count_kept(store), operator.not_)
        gone = [await store.describe("me", based("old", index)) for index in range(MANY)]
        assert all(isinstance(one, Tombstone) and one.reason == "expired" for one in gone)


def test_sorted_items_are_those_of_a_sorted_list() -> None:
    random, items, expected = Random(7), SortedItems[int](), list[int]()  # noqa: S311  # no secret
    for number in random.sample(range(100_000), 9000):
        items.add(number)
        insort(expected, number)
    for number in random.sample(expected, 8000):
        items.remove(number)
        expected.remove(number)
        if not len(expected) % 500:
            at = random.randrange(len(expected) + 1)
            edge = expected[at] if at < len(expected) else 100_000
            assert list(items.ascend(edge)) == expected[at:]
            assert list(items.descend(edge)) == expected[:at][::-1]
            assert list(items.descend()) == expected[::-1]
    for number in expected:
        items.remove(number)
    assert not items

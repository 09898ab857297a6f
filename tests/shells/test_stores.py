"""What every store does; a later one joins by a line in `STORES`."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from mcp_mirror.errors import StoreError
from mcp_mirror.models import Descriptor, FileSpan, Member, Provenance, Span
from mcp_mirror.policies import StorePolicy
from mcp_mirror.spool import map_file
from mcp_mirror.stores.base import Store, Tombstone
from mcp_mirror.stores.disk import DiskStore
from mcp_mirror.stores.memory import MemoryStore
from mcp_mirror.stores.redis import RedisStore

TTL = 100.0
ROOM = 1000


@dataclass
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


STORES: dict[str, Callable[[StorePolicy, Clock, Callable[[], Path]], Store]] = {
    "memory": MemoryStore,
    "disk": DiskStore,
    "redis": RedisStore,
}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=STORES)
def policy(request: pytest.FixtureRequest, tmp_path: Path) -> StorePolicy:
    kind = request.param
    url = request.getfixturevalue("redis_server").url if kind == "redis" else None
    return StorePolicy(kind=kind, url=url, prefix=f"{tmp_path}:", max_bytes=ROOM, ttl=TTL)


@pytest.fixture
async def store(policy: StorePolicy, clock: Clock, tmp_path: Path) -> AsyncIterator[Store]:
    async with STORES[policy.kind or "memory"](policy, clock, lambda: tmp_path) as opened:
        yield opened


def descriptor(base: str, blob: bytes, clock: Clock) -> Descriptor:
    members = (Member("a", Span(5, 3)),)
    provenance = Provenance("up", "tool", "0" * 64, ("other-path",))
    return Descriptor(base, "object", len(blob), 7, members, clock.now, clock.now + TTL, provenance, labels={"x": "y"})


async def put(store: Store, clock: Clock, base: str, blob: bytes = b'{"a":[1]}', namespace: str = "me") -> Descriptor:
    described = descriptor(base, blob, clock)
    await store.put(namespace, described, (blob[:4], memoryview(blob)[4:]))
    return described


async def test_a_value_comes_back_as_it_was_put(store: Store, clock: Clock) -> None:
    described = await put(store, clock, "t-1")
    assert await store.describe("me", "t-1") == described
    assert bytes(await store.read("me", "t-1") or b"") == b'{"a":[1]}'


async def test_a_range_is_read_alone(store: Store, clock: Clock) -> None:
    await put(store, clock, "t-1")
    assert bytes(await store.read("me", "t-1", Span(5, 3)) or b"") == b"[1]"
    assert bytes(await store.read("me", "t-1", Span(0, 0)) or b"") == b""


async def test_what_was_never_stored_is_none(store: Store) -> None:
    assert await store.describe("me", "t-1") is None
    assert await store.read("me", "t-1") is None
    assert await store.delete("me", "t-1") is False
    assert await store.list("me") == ()
    assert (await store.stats("me")).values == 0


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


async def test_listing_is_no_use(store: Store, clock: Clock) -> None:
    await put(store, clock, "t-1")
    clock.now += TTL - 1
    await store.list("me")
    await store.stats("me")
    clock.now += 1
    assert await store.list("me") == ()


async def test_an_expired_value_is_gone_and_says_when(store: Store, clock: Clock) -> None:
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


async def test_what_was_used_longest_ago_makes_room(store: Store, clock: Clock) -> None:
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
    with pytest.raises(StoreError, match=r"1,001 bytes and the store holds 1,000 \(`store.max_bytes`\)"):
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


async def test_an_expired_value_is_no_longer_in_the_way(store: Store, clock: Clock) -> None:
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
    kept = {base: await store.read("me", base) for base in ("small", "large")}
    assert isinstance(kept["small"], bytes)
    assert isinstance(kept["large"], memoryview)
    assert kept["large"].obj is message


async def test_a_value_that_is_in_a_file_is_linked_and_outlives_the_files_name(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    frame = folder / "frame"
    frame.write_bytes(b'junk{"a":[1]}junk')
    described = descriptor("t-1", b'{"a":[1]}', clock)
    await store.put("me", described, (b'{"a":[1]}',), FileSpan(str(frame), Span(4, 9)))
    frame.unlink()
    assert bytes(await store.read("me", "t-1") or b"") == b'{"a":[1]}'
    kept = await store.file_of("me", "t-1")
    if isinstance(store, RedisStore):
        assert kept is None
        return
    assert kept is not None
    assert bytes(map_file(kept.path)[kept.span.start : kept.span.stop]) == b'{"a":[1]}'
    assert await store.file_of("you", "t-1") is None


async def test_a_file_goes_with_its_value_and_not_before_its_readers(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    frame = tmp_path / "frame"
    frame.write_bytes(b'{"a":[1]}')
    await store.put("me", descriptor("t-1", b'{"a":[1]}', clock), (b'{"a":[1]}',), FileSpan(str(frame), Span(0, 9)))
    frame.unlink()
    read = await store.read("me", "t-1")
    await store.delete("me", "t-1")
    assert list(tmp_path.iterdir()) == []
    assert bytes(read or b"") == b'{"a":[1]}'


async def test_an_expired_value_leaves_no_file(store: Store, clock: Clock, tmp_path: Path) -> None:
    await put(store, clock, "t-1")
    clock.now += TTL
    await store.describe("me", "t-1")
    assert list(tmp_path.iterdir()) == []

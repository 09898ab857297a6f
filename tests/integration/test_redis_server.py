"""Servers of the Redis store that fail, refuse, change or are slow, and the connections to them."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import uuid
import weakref
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from clocks import PassTime
from msgspec.structs import replace
from redis.exceptions import ResponseError
from redis_process import COMMAND, MISSING, RedisProcess, free_port
from redis_values import check_accounts, descriptor, opened, our_keys, put, refused
from samples import sample
from tests.load import slowness
from waiting import until

import mcp_mirror.stores.redis.store
from mcp_mirror.errors import StoreError
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.redis.records import CHUNK, FORMAT
from mcp_mirror.stores.redis.store import RedisStore
from mcp_mirror.types import Descriptor, Span

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

SCRIPT = Path(mcp_mirror.stores.redis.store.__file__).with_name("store.lua")
MIB = 1 << 20
LIMIT = 2.0
"""Seconds within which a failure must be reported on an idle machine."""
CONNECTION_LOG = "mcp_mirror.stores.redis.connection"
RETURN = 20.0
"""Seconds after its return within which the server has to be used again."""


@pytest.fixture
async def store(redis_server: RedisProcess, tmp_path: Path) -> AsyncIterator[RedisStore]:
    async with opened(redis_server, tmp_path) as store:
        yield store


USES: dict[str, Callable[[RedisStore], Awaitable[object]]] = {
    "put": lambda store: put(store, "t-9"),
    "put large": lambda store: put(store, "t-9", bytes(20 * MIB)),
    "describe": lambda store: store.describe("me", "t-1"),
    "read": lambda store: store.read("me", "t-1"),
    "list": lambda store: store.list("me"),
    "stats": lambda store: store.stats("me"),
    "delete": lambda store: store.delete("me", "t-8"),
}


async def back(store: RedisStore, base: str = "t-back") -> None:
    """Wait until the store is used again."""

    async def is_used() -> bool:
        with suppress(StoreError):
            await put(store, base)
            return True
        return False

    await until(is_used, within=RETURN)
    assert await store.read("me", base) == b'"x"'


OUTAGES = [(use, fault) for use in USES for fault in ("kill", "pause")]
SAMPLE = {("put", "kill"), ("put large", "pause"), ("read", "kill"), ("list", "pause"), ("delete", "kill")}
"""Outages of `make test`."""


@pytest.mark.alone
@pytest.mark.parametrize(("use", "fault"), sample(OUTAGES, SAMPLE.__contains__))
async def test_a_server_outage_is_reported_in_time_and_recovered_from(
    use: str, fault: str, own_redis: RedisProcess, tmp_path: Path
) -> None:
    async with opened(own_redis, tmp_path) as store:
        await put(store, "t-1")
        getattr(own_redis, fault)()
        outcomes = [await refused(USES[use](store)) for _ in range(2)]
        assert max(seconds for _, seconds in outcomes) < LIMIT * slowness()
        assert outcomes[0][0].startswith("The store's Redis server ")
        own_redis.start() if fault == "kill" else own_redis.resume()
        await back(store)
        assert await store.read("me", "t-1") == b'"x"'
        check_accounts(own_redis, tmp_path)


@pytest.mark.alone
async def test_waiting_requests_to_a_silent_server_fail_with_the_first(own_redis: RedisProcess, tmp_path: Path) -> None:
    async with opened(own_redis, tmp_path) as store:
        await put(store, "t-1")
        own_redis.pause()
        started = time.monotonic()
        uses = [refused(use(store)) for _ in range(30) for use in USES.values()]
        outcomes = await asyncio.gather(*uses)
        bound = (LIMIT + 0.5) * slowness()  # 210 of them in one process, each with its own clock
        assert time.monotonic() - started < bound
        assert max(seconds for _, seconds in outcomes) < bound
        own_redis.resume()
        await back(store)


async def test_a_server_that_is_not_there_at_the_start_may_come_later(
    absent_redis: RedisProcess, tmp_path: Path
) -> None:
    async with opened(absent_redis, tmp_path) as store:
        assert await store.slugs() == frozenset()
        message, _ = await refused(put(store, "t-1"))
        assert "cannot be reached" in message
        absent_redis.start()
        await back(store)


async def test_a_value_that_could_not_be_stored_leaves_the_memory(absent_redis: RedisProcess, tmp_path: Path) -> None:
    class Value(bytearray):
        """Bytes that can be referred to weakly."""

    async with opened(absent_redis, tmp_path) as store:
        blob = Value(MIB)
        kept = weakref.ref(blob)
        with suppress(StoreError):
            await store.put("me", descriptor("t-1", MIB), (memoryview(blob),))
        del blob
        await until(lambda: kept() is None, within=1)  # before the store's own work finds the next outage


@pytest.mark.parametrize(
    ("host", "reason"), [("127.0.0.1", "Connection refused"), ("redis.example.com", "the host name was not found")]
)
async def test_the_log_says_why_a_server_cannot_be_reached(
    host: str,
    reason: str,
    absent_redis: RedisProcess,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find_no_host(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "redis.example.com is unknown")

    if "name" in reason:
        monkeypatch.setattr(socket, "getaddrinfo", find_no_host)
    async with opened(absent_redis, tmp_path, url=f"redis://{host}:{absent_redis.port}/0"):
        pass
    [line] = [record.getMessage() for record in caplog.records if record.name == CONNECTION_LOG]
    assert line == f"The store's Redis server cannot be reached. Try again in a moment. (ConnectionError: {reason})"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems lack the second address, or refuse connections")
async def test_a_silent_address_of_the_host_does_not_hide_another_one(
    redis_server: RedisProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_both(*asked: Any) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, asked[1])) for one in ("127.0.0.2", "127.0.0.1")]

    with ExitStack() as sockets:
        silent = sockets.enter_context(socket.socket())
        silent.bind(("127.0.0.2", redis_server.port))
        silent.listen(0)
        for _ in range(2):  # the queue is full, so the system drops the packets of further connections
            waiting = sockets.enter_context(socket.socket())
            waiting.settimeout(0)
            waiting.connect_ex(silent.getsockname())
        monkeypatch.setattr(socket, "getaddrinfo", find_both)
        async with opened(redis_server, tmp_path, url=f"redis://redis.internal:{redis_server.port}/0") as store:
            await put(store, "t-1")
            assert await store.read("me", "t-1") is not None


@pytest.mark.parametrize(
    "url",
    [
        "redis://:pa@ss/word@127.0.0.1:6379/0",
        "redis://:pa@ss#word@127.0.0.1:6379/0",
        "redis://:pa/word@127.0.0.1:6379/0",
        "redis://127.0.0.1:6379/production",
    ],
)
async def test_an_url_with_a_wrong_part_is_not_used_in_part(url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"`store\.url` is not the address .* percent-encoded") as refusal:
        RedisStore(StorePolicy(kind="redis", url=url), time.time, lambda: tmp_path)
    assert "word" not in str(refusal.value).replace("password", "")


@pytest.mark.alone
async def test_a_read_only_server_is_reported(own_redis: RedisProcess, tmp_path: Path) -> None:
    async with opened(own_redis, tmp_path) as store:
        await put(store, "t-1")
        own_redis.run("CONFIG", "SET", "replica-serve-stale-data", "yes")
        own_redis.run("REPLICAOF", "127.0.0.1", free_port())
        message, seconds = await refused(put(store, "t-2"))
        assert "read-only" in message
        assert seconds < LIMIT * slowness()
        assert isinstance(await store.describe("me", "t-1"), Descriptor)
        assert await store.read("me", "t-1") == b'"x"'
        assert [one.base for one in await store.list("me")] == ["t-1"]
        assert "read-only" in (await refused(store.delete("me", "t-1")))[0]
        assert "read-only" in (await refused(store.check()))[0]
        own_redis.run("REPLICAOF", "NO", "ONE")
        await back(store)
        assert await store.describe("me", "t-2") is None


async def test_a_read_only_server_is_logged_once_although_reads_succeed(
    own_redis: RedisProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(own_redis, tmp_path) as store:
        await put(store, "t-1")
        own_redis.run("REPLICAOF", "127.0.0.1", free_port())
        for _ in range(5):
            await refused(put(store, "t-2"))
            assert await store.read("me", "t-1") == b'"x"'
        [line] = [record.getMessage() for record in caplog.records if record.name == CONNECTION_LOG]
        assert line.startswith("The store's Redis server is read-only. ")
        own_redis.run("REPLICAOF", "NO", "ONE")
        await back(store)
        assert caplog.messages[-1] == "The store's Redis server is used again."


async def test_reads_succeed_while_a_large_write_is_refused(own_redis: RedisProcess, tmp_path: Path) -> None:
    async with opened(own_redis, tmp_path) as store:
        await put(store, "t-1")
        own_redis.run("REPLICAOF", "127.0.0.1", free_port())
        for _ in range(5):
            writing = asyncio.gather(*(refused(put(store, f"t-{number}", bytes(CHUNK))) for number in (2, 3)))
            while not writing.done():
                assert await asyncio.gather(*(store.read("me", "t-1") for _ in range(30))) == [b'"x"'] * 30
            assert all("read-only" in message for message, _ in await writing)


@pytest.mark.skipif(COMMAND is None, reason=MISSING)
async def test_after_a_failover_one_error_is_enough_to_find_the_new_primary(tmp_path: Path) -> None:
    address, folders = tmp_path / "primary", (tmp_path / "one", tmp_path / "two")
    for folder in folders:
        folder.mkdir()
    one, two = (RedisProcess(folder, "--unixsocket", str(folder / "socket")) for folder in folders)
    with one, two:
        address.symlink_to(folders[0])
        async with opened(one, tmp_path, url=f"unix://{address}/socket") as store:
            await put(store, "t-1")
            await asyncio.gather(*(store.read("me", "t-1") for _ in range(16)))
            address.unlink()
            address.symlink_to(folders[1])
            one.run("REPLICAOF", "127.0.0.1", two.port)
            message, _ = await refused(put(store, "t-2"))
            assert "read-only" in message
            await asyncio.gather(*(put(store, f"t-{number}") for number in range(3, 19)))
        assert our_keys(two, tmp_path)


async def test_values_stay_readable_while_replicas_are_missing(own_redis: RedisProcess, tmp_path: Path) -> None:
    async with opened(own_redis, tmp_path) as store:
        await put(store, "t-1")
        own_redis.run("CONFIG", "SET", "min-replicas-to-write", 1)
        message, _ = await refused(put(store, "t-2"))
        assert "replicas are missing" in message
        assert await store.read("me", "t-1") == b'"x"'


async def fill(store: RedisStore, size: int) -> None:
    for number in range(20):
        await put(store, f"t-{number + 2}", bytes(size))


@pytest.mark.parametrize("size", [3 * MIB, 30 * MIB])
async def test_a_server_out_of_memory_is_reported_and_keeps_its_values(
    size: int, own_redis: RedisProcess, tmp_path: Path
) -> None:
    async with opened(own_redis, tmp_path) as store:
        await put(store, "t-1")
        own_redis.run("CONFIG", "SET", "maxmemory-policy", "noeviction")
        own_redis.run("CONFIG", "SET", "maxmemory", own_redis.run("INFO", "memory")["used_memory"] + 2 * MIB)
        with pytest.raises(StoreError, match="out of memory"):
            await fill(store, size)
        own_redis.run("CONFIG", "SET", "maxmemory", 0)
        await back(store)
        assert await store.read("me", "t-1") == b'"x"'
        check_accounts(own_redis, tmp_path)


async def test_a_server_near_its_memory_limit_is_logged_once(
    own_redis: RedisProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(own_redis, tmp_path) as store:
        own_redis.run("CONFIG", "SET", "maxmemory-policy", "noeviction")
        own_redis.run("CONFIG", "SET", "maxmemory", own_redis.run("INFO", "memory")["used_memory"] + 8 * MIB)
        for number in range(3):
            assert "out of memory" in (await refused(put(store, f"t-{number}", bytes(30 * MIB))))[0]
            await back(store, f"t-small-{number}")
        [line] = [record.getMessage() for record in caplog.records if record.name == CONNECTION_LOG]
        assert line.startswith("The store's Redis server is out of memory. ")
        monkeypatch.setattr("mcp_mirror.system.limited_logs._INTERVAL", 0.0)
        await put(store, "t-last")
        assert caplog.messages[-1] == "The store's Redis server is used again."


@pytest.mark.parametrize(
    ("policy", "most", "warning"),
    [
        ("noeviction", 0, ""),
        ("noeviction", 200 * MIB, ""),
        ("allkeys-lru", 0, ""),
        ("allkeys-lru", 200 * MIB, "`maxmemory-policy` allkeys-lru"),
        ("noeviction", 20 * MIB, "`maxmemory` of the store's Redis server is 21 MB, and `store.max_bytes` 105 MB"),
    ],
)
async def test_settings_of_the_server_that_lose_values_are_warned_about(
    policy: str, most: int, warning: str, own_redis: RedisProcess, tmp_path: Path, caplog: Any
) -> None:
    own_redis.run("CONFIG", "SET", "maxmemory-policy", policy)
    own_redis.run("CONFIG", "SET", "maxmemory", most)
    async with opened(own_redis, tmp_path, max_bytes=100 * MIB) as store:
        await put(store, "t-1")
    assert len(caplog.messages) == bool(warning)
    assert warning in "".join(caplog.messages)


@pytest.mark.parametrize("number", ["1", "2", "3"])
async def test_values_of_another_format_are_warned_about(
    number: str, redis_server: RedisProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    redis_server.run("ZADD", f"{tmp_path}:{number}:order", 1, "me:expired", round(time.time()), "me:t-1")
    async with opened(redis_server, tmp_path):
        warned = f"has 1 value of format {number}, and this mcp-mirror knows format {FORMAT}: it does not find them."
        assert (warned in caplog.text) == (number != FORMAT)


class Network:
    """What lies between: it can fall silent for those who are connected, as where a machine is exchanged."""

    def __init__(self, server: RedisProcess) -> None:
        self._server = server
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: list[asyncio.StreamWriter] = []
        self._unanswered: dict[asyncio.StreamWriter, int] = {}
        self.requests = 0
        """Parts that clients have sent; a small exchange has one."""
        self.uploads = 0
        """The most connections at once on which more than a MiB was sent that is not answered yet."""
        self.admits_uploads = asyncio.Event()
        self.admits_uploads.set()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[str]:
        async with await asyncio.start_server(self._connected, "127.0.0.1", 0) as listening:
            yield f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
            self.fall_silent()
            for end in self._ends:
                end.close()
            await asyncio.gather(*self._tasks, *(end.wait_closed() for end in self._ends), return_exceptions=True)

    def fall_silent(self) -> None:
        """Nothing passes any more on the connections that there are."""
        for task in self._tasks:
            task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._server.port)
        self._ends += [writer, back]
        for source, sink in ((reader, back), (there, writer)):
            self._tasks.add(asyncio.create_task(self._forward(source, sink, back)))

    async def _forward(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, back: asyncio.StreamWriter
    ) -> None:
        while data := await source.read(1 << 16):
            self.requests += sink is back
            self._unanswered[back] = self._unanswered.get(back, 0) + len(data) if sink is back else 0
            self.uploads = max(self.uploads, sum(size > MIB for size in self._unanswered.values()))
            if self._unanswered[back] > MIB:
                await self.admits_uploads.wait()
            sink.write(data)
            await sink.drain()
        sink.close()


@asynccontextmanager
async def connected(server: RedisProcess, tmp_path: Path) -> AsyncIterator[tuple[Network, RedisStore]]:
    """A store with one value and many connections through a network."""
    network = Network(server)
    async with network.opened() as url, opened(server, tmp_path, url=url) as store:
        await put(store, "t-1")
        await asyncio.gather(*(store.read("me", "t-1") for _ in range(100)))
        yield network, store


@pytest.mark.alone
async def test_connections_that_have_gone_dead_are_given_up_together(
    redis_server: RedisProcess, tmp_path: Path
) -> None:
    async with connected(redis_server, tmp_path) as (network, store):
        for _ in range(5):
            network.fall_silent()
            started = time.monotonic()
            with suppress(pytest.fail.Exception):  # the background removal of expired values noticed the silence first
                _, seconds = await refused(store.read("me", "t-1"))
                break
        else:
            pytest.fail("the background removal noticed each silence first")
        assert seconds < LIMIT * slowness()
        assert await asyncio.gather(*(store.read("me", "t-1") for _ in range(50))) == [b'"x"'] * 50
        await put(store, "t-2")
        assert time.monotonic() - started < RETURN * slowness()


@pytest.mark.usefixtures("without_background_removal")
async def test_the_tools_of_a_namespace_take_one_exchange(redis_server: RedisProcess, tmp_path: Path) -> None:
    async with connected(redis_server, tmp_path) as (network, store):
        for tool, namespace in (("grid", "me"), ("list", "me"), ("sheet", "you")):
            await put(store, f"{tool}-{uuid.uuid4()}", namespace=namespace)
        await store.slugs("me")
        before = network.requests
        assert await store.slugs("me") == {"grid", "list"}
        assert network.requests - before == 1


async def test_large_values_do_not_take_the_time_of_each_others_exchanges(
    redis_server: RedisProcess, tmp_path: Path
) -> None:
    async with connected(redis_server, tmp_path) as (network, store):
        blob = bytes(range(256)) * (3 * CHUNK // 256)
        await asyncio.gather(*(put(store, f"t-{number}", blob) for number in range(10)))
        assert 1 <= network.uploads <= 2
        assert all([await store.read("me", f"t-{number}") == blob for number in range(10)])


@pytest.mark.usefixtures("without_background_removal")
@pytest.mark.parametrize("is_answering", [True, False])
async def test_a_slow_transfer_has_time_while_the_server_answers_others(
    *,
    is_answering: bool,
    redis_server: RedisProcess,
    tmp_path: Path,
    pass_time: PassTime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mcp_mirror.stores.redis.connection._TIMEOUT", 60.0)
    monkeypatch.setattr("mcp_mirror.stores.redis.connection._LONGEST_TRANSFER", 600.0)
    async with connected(redis_server, tmp_path) as (network, store):
        network.admits_uploads.clear()
        putting = asyncio.create_task(put(store, "t-2", bytes(CHUNK)))
        for _ in range(3):
            await anyio.wait_all_tasks_blocked()
            await pass_time(25)
            if is_answering:
                assert await store.read("me", "t-1") == b'"x"'
        if is_answering:
            network.admits_uploads.set()
            await putting
            assert await store.read("me", "t-2") == bytes(CHUNK)
        else:
            with pytest.raises(StoreError, match="did not answer"):
                await putting
            network.admits_uploads.set()


@pytest.mark.usefixtures("without_background_removal")
async def test_an_exchange_that_outlives_an_outage_fails_no_later_write(
    redis_server: RedisProcess, tmp_path: Path, pass_time: PassTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_mirror.stores.redis.connection._TIMEOUT", 60.0)
    async with connected(redis_server, tmp_path) as (network, store):
        network.fall_silent()
        reading = asyncio.create_task(refused(store.read("me", "t-1")))
        await anyio.wait_all_tasks_blocked()
        await pass_time(20)
        writing = asyncio.create_task(refused(put(store, "t-2")))  # on another of the silent connections
        await anyio.wait_all_tasks_blocked()
        await pass_time(41)
        await reading
        putting = asyncio.create_task(put(store, "t-3"))  # waits for the other write
        await anyio.wait_all_tasks_blocked()
        await pass_time(20)
        await writing
        await putting
        assert await store.read("me", "t-3") == b'"x"'


async def test_out_of_memory_what_is_kept_is_read_and_can_be_deleted(own_redis: RedisProcess, tmp_path: Path) -> None:
    async with opened(own_redis, tmp_path) as store:
        without_values = own_redis.run("INFO", "memory")["used_memory"]
        for base in (bases := [f"t-{number}" for number in range(1, 6)]):
            await put(store, base, base.encode() * MIB)
        # Less than five values, and more than three with a buffer of a fourth, which the server frees at some time.
        own_redis.run("CONFIG", "SET", "maxmemory", without_values + 59 * MIB // 4)
        assert "out of memory" in (await refused(put(store, "t-9")))[0]
        assert isinstance(await store.describe("me", "t-1"), Descriptor)
        assert bytes(await store.read("me", "t-1") or b"") == b"t-1" * MIB
        assert await store.read("me", "t-3", Span(3, 3)) == b"t-3"
        assert [one.base for one in await store.list("me")] == bases[::-1]
        for base in ("t-2", "t-4"):
            assert await store.delete("me", base) is True
            assert await store.describe("me", base) is None
        await put(store, "t-9")
        check_accounts(own_redis, tmp_path)


async def test_a_restart_between_two_uses_is_not_felt(own_redis: RedisProcess, tmp_path: Path) -> None:
    async with opened(own_redis, tmp_path) as store:
        await asyncio.gather(*(put(store, f"t-{index}") for index in range(20)))
        own_redis.kill()
        own_redis.start()
        read = await asyncio.gather(*(store.read("me", f"t-{index}") for index in range(20)))
        assert read == [b'"x"'] * 20
        await put(store, "t-20")


async def test_a_killed_server_with_appendfsync_always_loses_nothing(own_redis: RedisProcess, tmp_path: Path) -> None:
    acknowledged: list[str] = []

    async def write(store: RedisStore, writer: int) -> None:
        for number in range(1000):
            base = f"t-{writer}-{number}"
            try:
                await put(store, base, base.encode())
            except StoreError:
                return
            acknowledged.append(base)

    async with opened(own_redis, tmp_path) as store:
        writing = asyncio.gather(*(write(store, writer) for writer in range(8)))
        await until(lambda: len(acknowledged) >= 100)
        own_redis.kill()
        await asyncio.wait_for(writing, 60)
        own_redis.start()
        for base in acknowledged:
            assert await store.read("me", base) == base.encode()
        check_accounts(own_redis, tmp_path)


# Addresses.


async def test_a_user_and_a_password_are_given_in_the_address(own_redis: RedisProcess, tmp_path: Path) -> None:
    allowed = ("~mirror:*", "-@all", "+@read", "+@write", "+@connection", "+evalsha", "+script|load")
    own_redis.run("ACL", "SETUSER", "me", "on", ">hunter2", *allowed)
    own_redis.run("ACL", "SETUSER", "default", "off")
    for user, words in (("me:hunter2", None), ("me:hunter3", "user or password"), ("", "user or password")):
        url = f"redis://{user}@127.0.0.1:{own_redis.port}"
        async with opened(own_redis, tmp_path, url=url, prefix="mirror:") as store:
            if words is None:
                await put(store, "t-1", bytes(CHUNK + MIB))
                assert len(await store.read("me", "t-1") or b"") == CHUNK + MIB
                assert await store.delete("me", "t-1")
            else:
                assert words in (await refused(put(store, "t-2")))[0]
    async with opened(own_redis, tmp_path, url=f"redis://me:hunter2@127.0.0.1:{own_redis.port}") as store:
        assert "ACL" in (await refused(put(store, "t-1")))[0]


async def test_a_command_in_the_script_that_may_not_be_run_is_the_cause(
    own_redis: RedisProcess, tmp_path: Path
) -> None:
    allowed = ("~mirror:*", "-@all", "+@read", "+@connection", "+evalsha", "+script|load")
    own_redis.run("ACL", "SETUSER", "me", "on", ">hunter2", *allowed)
    url = f"redis://me:hunter2@127.0.0.1:{own_redis.port}"
    async with opened(own_redis, tmp_path, url=url, prefix="mirror:") as store:
        assert "Extend its ACL" in (await refused(put(store, "t-1")))[0]


async def test_a_server_that_refuses_some_commands_is_logged_once(
    own_redis: RedisProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own_redis.run("ACL", "SETUSER", "me", "on", ">hunter2", "~mirror:*", "-@all", "+@read", "+@connection")
    url = f"redis://me:hunter2@127.0.0.1:{own_redis.port}"
    async with opened(own_redis, tmp_path, url=url, prefix="mirror:") as store:
        for _ in range(20):
            assert "Extend its ACL" in (await refused(put(store, "t-1")))[0]
            assert (await store.totals()).values == 0
    lines = [record.getMessage() for record in caplog.records if record.name == CONNECTION_LOG]
    assert [line.partition(".")[0].removeprefix("The store's Redis ") for line in lines] == [
        "user may not run a command that the store needs",
        "server is used again",
        "user may not run a command that the store needs",
    ]


@pytest.mark.parametrize(
    ("option", "database", "cause"),
    [
        ("--cluster-enabled yes --cluster-port {free}", 0, "is in cluster mode, which the store does not support."),
        ("--databases 2", 2, "does not have the database in `store.url`."),
    ],
)
async def test_a_server_that_does_not_fit_the_address_is_the_cause(
    option: str, database: int, cause: str, tmp_path: Path
) -> None:
    with RedisProcess(tmp_path, *option.format(free=free_port()).split()) as server:
        async with opened(server, tmp_path, url=f"redis://127.0.0.1:{server.port}/{database}") as store:
            assert cause in (await refused(put(store, "t-1")))[0]


@pytest.mark.usefixtures("without_background_removal")
@pytest.mark.parametrize(
    ("setting", "value", "cause"),
    [("maxclients", 1, "Increase `maxclients`."), ("requirepass", "hunter2", "refuses the user or password")],
)
async def test_a_server_that_refuses_connections_is_used_over_the_present_ones(
    setting: str, value: str | int, cause: str, own_redis: RedisProcess, tmp_path: Path
) -> None:
    async with opened(own_redis, tmp_path) as store:
        await put(store, "t-1")
        own_redis.run("CONFIG", "SET", setting, value)
        for _ in range(20):
            outcomes = await asyncio.gather(*(refused_or_read(store) for _ in range(10)))
            assert any(cause in outcome for outcome in outcomes)
            assert await store.read("me", "t-1") == b'"x"'


async def refused_or_read(store: RedisStore) -> str:
    try:
        return str(await store.read("me", "t-1"))
    except StoreError as error:
        return str(error)


@pytest.mark.parametrize(
    ("scheme", "greeting", "cause"),
    [
        ("redis", b"-DENIED Redis is running in protected mode because", "is in protected mode"),
        ("rediss", b"-ERR max number of clients reached", "A TLS connection to the store's Redis server failed."),
    ],
)
async def test_a_server_that_refuses_the_connection_is_the_cause(
    scheme: str, greeting: bytes, cause: str, redis_server: RedisProcess, tmp_path: Path
) -> None:
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting + b"\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as listening:
        url = f"{scheme}://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        async with opened(redis_server, tmp_path, url=url) as store:
            assert cause in (await refused(put(store, "t-1")))[0]


@pytest.mark.parametrize(
    "reply",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"$-5\r\n", b"*1\r\n" * 3000 + b"*0\r\n"],
    ids=["HTTP", "a negative length", "many levels"],
)
async def test_another_program_at_the_address_is_named_as_the_cause(
    reply: bytes, redis_server: RedisProcess, tmp_path: Path
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 16):
            writer.write(reply)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        url = f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        async with opened(redis_server, tmp_path, url=url) as store:
            assert "is not a reply of a Redis server" in (await refused(put(store, "t-1")))[0]


async def test_a_server_that_runs_an_endless_script_is_reported(own_redis: RedisProcess, tmp_path: Path) -> None:
    async with opened(own_redis, tmp_path) as store:
        await put(store, "t-1")
        own_redis.run("CONFIG", "SET", "busy-reply-threshold", 1)
        running = asyncio.create_task(asyncio.to_thread(own_redis.run, "EVAL", "while true do end", 0))
        async with asyncio.timeout(60):
            while "is busy with" not in (await refused(read_until_busy(store)))[0]:
                pass
        own_redis.run("SCRIPT", "KILL")
        with pytest.raises(ResponseError):
            await running
        assert await store.read("me", "t-1") == b'"x"'


async def read_until_busy(store: RedisStore) -> None:
    while True:
        await store.read("me", "t-1")


async def test_a_server_that_has_lost_its_primary_is_reported(own_redis: RedisProcess, tmp_path: Path) -> None:
    async with opened(own_redis, tmp_path) as store:
        await put(store, "t-1")
        own_redis.run("CONFIG", "SET", "replica-serve-stale-data", "no")
        own_redis.run("REPLICAOF", "127.0.0.1", free_port())
        for use in (store.read("me", "t-1"), put(store, "t-2"), store.slugs("me")):
            assert "has lost its primary" in (await refused(use))[0]


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    return make_certificate(tmp_path)


def make_certificate(folder: Path) -> Path:
    """A new certificate that is its own authority, in place of the previous one."""
    made = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1")
    named = ("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem")
    subprocess.run(["openssl", "req", *made, *named], cwd=folder, check=True, capture_output=True)
    return folder / "cert.pem"


@contextmanager
def encrypted(certificate: Path, tmp_path: Path) -> Iterator[tuple[RedisProcess, str]]:
    """A server with TLS, and its address."""
    port = free_port()
    files = ("--tls-cert-file", str(certificate), "--tls-key-file", str(tmp_path / "key.pem"))
    with RedisProcess(
        tmp_path, "--tls-port", str(port), *files, "--tls-auth-clients", "no", "--tls-ca-cert-file", str(certificate)
    ) as server:
        yield server, f"rediss://127.0.0.1:{port}"


async def test_the_way_to_the_server_may_be_encrypted(certificate: Path, tmp_path: Path) -> None:
    with encrypted(certificate, tmp_path) as (server, url):
        async with opened(server, tmp_path, url=f"{url}?ssl_ca_certs={certificate}") as store:
            await put(store, "t-1", bytes(20 * MIB))
            assert len(await store.read("me", "t-1") or b"") == 20 * MIB
        async with opened(server, tmp_path, url=url) as store:
            assert "TLS certificate" in (await refused(store.read("me", "t-1")))[0]


async def test_many_connections_with_tls_read_the_authorities_once(
    certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read those of the system takes 20 ms, in which the event loop does nothing else, and a megabyte of memory."""
    made: list[ssl.SSLContext] = []
    create = ssl.create_default_context

    def create_counted() -> ssl.SSLContext:
        made.append(create())
        return made[-1]

    monkeypatch.setattr(ssl, "create_default_context", create_counted)
    with encrypted(certificate, tmp_path) as (server, url):
        async with opened(server, tmp_path, url=f"{url}?ssl_ca_certs={certificate}") as store:
            await put(store, "t-1")
            await asyncio.gather(*(store.read("me", "t-1") for _ in range(20)))
            assert int(server.run("INFO", "clients")["connected_clients"]) > 10
    assert len(made) == 1


async def test_new_connections_use_a_renewed_certificate(certificate: Path, tmp_path: Path) -> None:
    with encrypted(certificate, tmp_path) as (server, url):
        async with opened(server, tmp_path, url=f"{url}?ssl_ca_certs={certificate}") as store:
            await put(store, "t-1")
            server.kill()
            make_certificate(tmp_path)
            server.start()
            await back(store)


async def test_the_log_has_the_reason_why_a_certificate_is_not_valid(
    certificate: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with encrypted(certificate, tmp_path) as (server, url):
        other_name = f"{url.replace('127.0.0.1', 'localhost')}?ssl_ca_certs={certificate}"
        async with opened(server, tmp_path, url=other_name) as store:
            await refused(store.read("me", "t-1"))
    [line] = [record.getMessage() for record in caplog.records if record.name == CONNECTION_LOG]
    assert line.endswith("(ConnectionError: Hostname mismatch)")


async def test_a_silent_server_with_tls_cancels_no_call(
    certificate: Path, tmp_path: Path, pass_time: PassTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_mirror.stores.redis.connection._TIMEOUT", 60.0)  # handshakes take long on a busy machine
    with encrypted(certificate, tmp_path) as (server, url):
        async with opened(server, tmp_path, url=f"{url}?ssl_ca_certs={certificate}") as store:
            await put(store, "t-1")
            await asyncio.gather(*(store.read("me", "t-1") for _ in range(10)))
            server.pause()
            reads = asyncio.gather(*(store.read("me", "t-1") for _ in range(2)), return_exceptions=True)
            await anyio.wait_all_tasks_blocked()
            await pass_time(61)
            assert [type(error) for error in await reads] == [StoreError, StoreError]
            server.resume()
            await back(store)
            assert await store.read("me", "t-1") == b'"x"'


async def test_a_unix_socket_will_do(redis_server: RedisProcess, tmp_path: Path) -> None:
    assert redis_server.port
    with tempfile.TemporaryDirectory() as folder, RedisProcess(tmp_path, "--unixsocket", f"{folder}/s") as server:
        async with opened(server, tmp_path, url=f"unix://{folder}/s") as store:
            await put(store, "t-1")
            assert await store.read("me", "t-1") == b'"x"'


@pytest.mark.parametrize("url", ["http://x", "redis://h:port", "redis://:hunter2@h:99999999/x", "", "redis://h/0?db=x"])
def test_an_address_that_cannot_be_used_is_refused_without_being_quoted(url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        RedisStore(StorePolicy(kind="redis", url=url), time.time, lambda: tmp_path)
    assert "redis://HOST:PORT/DB" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@h/0?ssl_ca_certs=hunter2.pem",
        "redis://h/0?retry=hunter2",
        "rediss://h/0?ssl_ca_cert=hunter2.pem",
        "rediss://h/0?ssl_ca_certs=hunter2.pem",
        f"rediss://h/0?ssl_ca_certs={__file__}",
        "rediss://h/0?ssl_cert_reqs=CERT_NONE",
    ],
)
def test_options_that_redis_connections_do_not_accept_are_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"An option after `\?` in `store\.url`") as caught:
        RedisStore(StorePolicy(kind="redis", url=url), time.time, lambda: tmp_path)
    assert "hunter2" not in str(caught.value)


def test_a_missing_redis_url_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"`store\.url`"):
        RedisStore(replace(StorePolicy(), kind="redis"), time.time, lambda: tmp_path)

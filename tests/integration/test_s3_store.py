"""Large values of the Redis store as objects of an S3-compatible server: removals and failures."""

from __future__ import annotations

import asyncio
import itertools
import operator
import os
import re
import resource
import ssl
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from redis_process import RedisProcess
from redis_values import descriptor
from removed_files import wait_until_empty
from resource_limits import limited
from s3_process import BUCKET, ENVIRONMENT, IS_INSTALLED, MISSING, CheckingS3Process, S3Process
from samples import sample
from store_errors import time_store_error
from tests.load import slowness
from waiting import until

from mcp_mirror.errors import StoreError
from mcp_mirror.settings.store import EncryptionPolicy, StorePolicy
from mcp_mirror.stores import s3
from mcp_mirror.stores.base import Tombstone
from mcp_mirror.stores.redis.store import OBJECT_BYTES, RedisStore
from mcp_mirror.stores.s3 import S3Blobs
from mcp_mirror.types import Descriptor, Span

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

HELPERS = Path(__file__).parents[1] / "helpers"
MIB = 1 << 20
LARGE = bytes(range(256)) * (12 * MIB // 256)


class Clock:
    ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


@asynccontextmanager
async def opened(
    redis: RedisProcess, bucket: S3Process | None, tmp_path: Path, clock: Callable[[], float] = time.time, **keys: Any
) -> AsyncIterator[RedisStore]:
    settings: Any = {"kind": "redis", "url": redis.url, "prefix": f"{tmp_path}:", "ttl": 60.0} | keys
    async with RedisStore(
        StorePolicy(**settings), clock, lambda: tmp_path, S3Blobs(bucket.url) if bucket else None
    ) as store:
        yield store


@pytest.fixture
def bucket(bucket: S3Process) -> S3Process:
    """The server of all tests, empty."""
    bucket.reset()
    return bucket


@pytest.fixture
def own_bucket(own_s3: S3Process, monkeypatch: pytest.MonkeyPatch) -> S3Process:
    """A server that the test may stop."""
    for name, value in own_s3.environment.items():
        monkeypatch.setenv(name, value)
    return own_s3


async def put(store: RedisStore, base: str, blob: bytes = LARGE, namespace: str = "me") -> None:
    await store.put(namespace, descriptor(base, len(blob)), (blob[:1000], memoryview(blob)[1000:]))


async def read(store: RedisStore, base: str, span: Span | None = None) -> bytes | None:
    found = await store.read("me", base, span)
    return None if found is None else bytes(found)


async def wait_for_objects(bucket: S3Process, number: int) -> None:
    await until(lambda: len(bucket.names()) == number)


@pytest.mark.parametrize("encryption", [None, EncryptionPolicy(("an example of a secret of 32 characters",))])
async def test_large_values_are_objects_and_small_ones_are_not(
    encryption: EncryptionPolicy | None, redis_server: RedisProcess, bucket: S3Process, tmp_path: Path
) -> None:
    async with opened(redis_server, bucket, tmp_path, encryption=encryption) as store:
        await put(store, "t-small", LARGE[:OBJECT_BYTES])
        assert bucket.names() == []
        await put(store, "t-large")
        [name] = bucket.names()
        assert name.startswith("pre/fix/")
        assert "t-large" not in name
        assert await read(store, "t-large") == LARGE
        for start, length in ((0, 0), (0, 1), (5_000_000, 100), (len(LARGE) - 7, 7), (65_530, 70_000)):
            assert await read(store, "t-large", Span(start, length)) == LARGE[start : start + length]
        assert (LARGE[:4096] in bucket.request("GET", f"/{BUCKET}/{name}")) == (encryption is None)
        assert sum(redis_server.keys(f"{tmp_path}").values()) > 0
        assert min(redis_server.keys(f"{tmp_path}").values()) > 0


@pytest.mark.slow
@pytest.mark.skipif(not IS_INSTALLED, reason=MISSING)
async def test_a_server_with_credentials_needs_the_documented_permissions(
    redis_server: RedisProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/s3.md").read_text()
    permissions = sorted(set(re.findall(r"`(s3:\w+)`", guide)))
    assert permissions
    with CheckingS3Process(permissions) as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        async with opened(redis_server, bucket, tmp_path) as store:
            await put(store, "t-large")
            assert await read(store, "t-large") == LARGE
            blobs = S3Blobs(bucket.url)

            async def count_objects() -> int:
                return len([item async for page in blobs.list("") for item in page])

            assert await count_objects() == 1
            assert await store.delete("me", "t-large")
            await until(count_objects, operator.not_)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        async with opened(redis_server, bucket, tmp_path) as store:
            with pytest.raises(StoreError, match="refuses access"):
                await put(store, "t-large")
            await put(store, "t-small", b"1")
            assert await read(store, "t-small") == b"1"
            with pytest.raises(StoreError, match="refuses access"):
                await store.check()


async def test_a_value_over_16_mib_is_mapped_and_leaves_no_file(
    redis_server: RedisProcess, bucket: S3Process, tmp_path: Path
) -> None:
    blob = LARGE * 2
    async with opened(redis_server, bucket, tmp_path) as store:
        await put(store, "t-1", blob)
        assert await read(store, "t-1") == blob
    wait_until_empty(tmp_path)


@pytest.mark.parametrize("way", sample(["delete", "expire", "evict", "replace"], {"delete", "evict"}.__contains__))
async def test_the_object_of_a_removed_value_is_removed(
    way: str, redis_server: RedisProcess, bucket: S3Process, tmp_path: Path, clock: Clock
) -> None:
    async with opened(redis_server, bucket, tmp_path, clock, max_bytes=2 * len(LARGE)) as store:
        await put(store, "t-1")
        await put(store, "t-2", LARGE[: 2 * MIB])
        if way == "delete":
            assert await store.delete("me", "t-1")
        elif way == "expire":
            clock.ahead = 50
            assert await read(store, "t-2") == LARGE[: 2 * MIB]
            clock.ahead = 80
        elif way == "evict":
            clock.ahead = 1
            await read(store, "t-2")
            await put(store, "t-3")
            await store.delete("me", "t-3")
        else:
            await put(store, "t-1", b'"small"')
        await wait_for_objects(bucket, 1)
        assert await read(store, "t-2") == LARGE[: 2 * MIB]
        assert await read(store, "t-1") == (b'"small"' if way == "replace" else None)
        assert isinstance(await store.describe("me", "t-1"), Tombstone) == (way in ("expire", "evict"))


async def test_two_gateways_share_the_objects(redis_server: RedisProcess, bucket: S3Process, tmp_path: Path) -> None:
    async with opened(redis_server, bucket, tmp_path) as one, opened(redis_server, bucket, tmp_path) as two:
        await asyncio.gather(
            *(put(store, f"t-{name}-{number}") for name, store in (("a", one), ("b", two)) for number in range(3))
        )
        for name, store in (("a", two), ("b", one)):
            for number in range(3):
                assert await read(store, f"t-{name}-{number}") == LARGE
        assert await two.delete("me", "t-a-0")
        assert await read(one, "t-a-0") is None
        await wait_for_objects(bucket, 5)


WRITER = """
import asyncio, sys, time
from pathlib import Path
from redis_values import descriptor
from mcp_mirror.settings.policies import StorePolicy
from mcp_mirror.stores.redis.store import RedisStore
from mcp_mirror.stores.s3 import S3Blobs

async def main(url, prefix, bucket):
    policy = StorePolicy(kind="redis", url=url, prefix=prefix, ttl=60.0)
    async with RedisStore(policy, time.time, Path.cwd, S3Blobs(bucket)) as store:
        for number in range(10_000):
            blob = number.to_bytes(4, "big") * (3 << 20)
            await store.put("me", descriptor(f"t-{number}", len(blob)), (blob,))
            print(number, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.slow
async def test_a_gateway_killed_during_a_put_loses_nothing_and_leaves_no_object(
    redis_server: RedisProcess, bucket: S3Process, tmp_path: Path, clock: Clock
) -> None:
    delays = Random(5)  # noqa: S311  # no secret
    environment = bucket.environment | {"PYTHONPATH": str(HELPERS)}
    for _ in range(3):
        writing = subprocess.Popen(  # noqa: ASYNC220  # nothing else runs
            [sys.executable, "-c", WRITER, redis_server.url, f"{tmp_path}:", bucket.url],
            env=environment, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert writing.stdout is not None
        assert writing.stdout.readline()
        await asyncio.sleep(delays.uniform(0, 0.5))  # where in a put it is hit is chance
        writing.kill()
        acknowledged = [0, *map(int, writing.stdout.read().split())]
        writing.wait(20)
        writing.stdout.close()
    async with opened(redis_server, bucket, tmp_path, clock) as store:
        for number in acknowledged:
            assert await read(store, f"t-{number}") == number.to_bytes(4, "big") * (3 * MIB)
        values = await store.list("me")
        clock.ahead = 50
        for known in values:
            assert await read(store, known.base) is not None
        for ahead in (100, 150):  # uses keep the values
            clock.ahead = ahead
            for known in values:
                assert isinstance(await store.describe("me", known.base), Descriptor)
        redis_server.run("ZADD", f"{tmp_path}:2:objects", "XX", 1, *uploads(redis_server, tmp_path))
        await wait_for_objects(bucket, len(values))


def uploads(redis: RedisProcess, tmp_path: Path) -> list[bytes]:
    """The uploads that are recorded, or one that does not exist, with a score between them."""
    names = redis.run("ZRANGE", f"{tmp_path}:2:objects", "(0", "+inf", "BYSCORE") or [b"none"]
    return [*itertools.chain.from_iterable((name, b"1") for name in names)][:-1]


async def test_objects_that_redis_does_not_know_are_removed_later(
    redis_server: RedisProcess, bucket: S3Process, tmp_path: Path, clock: Clock
) -> None:
    async with opened(redis_server, bucket, tmp_path) as store:
        await put(store, "t-1")
        folder = bucket.names()[0].rpartition("/")[0]
        lost = f"{folder}/{32 * '0'}"
        for name in (lost, "pre/fix/another store/object", "another program's"):
            bucket.request("PUT", f"/{BUCKET}/{name.replace(' ', '%20')}")
        assert len(bucket.names()) == 4
    redis_server.run("DEL", f"{tmp_path}:2:searched")
    clock.ahead = 7200
    async with opened(redis_server, bucket, tmp_path, clock, ttl=1e6) as store:
        await wait_for_objects(bucket, 3)
        assert await read(store, "t-1") == LARGE
        assert lost not in bucket.names()


async def test_who_writes_to_redis_does_not_reach_other_objects(
    redis_server: RedisProcess, bucket: S3Process, tmp_path: Path, clock: Clock
) -> None:
    bucket.request("PUT", f"/{BUCKET}/pre/fix/backups/one", b"another program's")
    async with opened(redis_server, bucket, tmp_path) as store:
        await put(store, "t-1")
        redis_server.run("ZADD", f"{tmp_path}:2:objects", 0, "backups/one", 0, b"\xff")
        redis_server.run("HSET", f"{tmp_path}:2:value:me:t-1", "mark", "backups/one", "size", 17)
        with pytest.raises(StoreError, match="another program uses keys"):
            await read(store, "t-1")
        await until(lambda: not redis_server.run("ZCOUNT", f"{tmp_path}:2:objects", 0, 0))
    redis_server.run("DEL", f"{tmp_path}:2:searched")
    redis_server.run("SET", f"{tmp_path}:2:bucket", "")
    clock.ahead = 7200
    async with opened(redis_server, bucket, tmp_path, clock, ttl=1e6) as store:
        with pytest.raises(StoreError, match="another program uses keys"):
            await put(store, "t-2")
        await until(lambda: redis_server.run("EXISTS", f"{tmp_path}:2:searched"))
    assert "pre/fix/backups/one" in bucket.names()


async def test_an_object_that_someone_else_removed_is_an_error_with_advice(
    redis_server: RedisProcess, bucket: S3Process, tmp_path: Path
) -> None:
    async with opened(redis_server, bucket, tmp_path) as store:
        await put(store, "t-1")
        bucket.remove(bucket.names()[0])
        with pytest.raises(StoreError, match=r"object .* is missing: a lifecycle rule .* Call the tool"):
            await read(store, "t-1")


@pytest.mark.parametrize("size", [0, 1, len(LARGE) - 1])
async def test_a_truncated_object_is_an_error_and_not_a_shorter_value(
    size: int, redis_server: RedisProcess, bucket: S3Process, tmp_path: Path
) -> None:
    async with opened(redis_server, bucket, tmp_path) as store:
        await put(store, "t-1")
        bucket.request("PUT", f"/{BUCKET}/{bucket.names()[0]}", LARGE[:size])
        with pytest.raises(StoreError, match=r"object .* is shorter than the value: .* Call the tool"):
            await read(store, "t-1")


async def test_a_check_leaves_no_key_without_an_expiry(
    redis_server: RedisProcess, bucket: S3Process, tmp_path: Path
) -> None:
    async with opened(redis_server, bucket, tmp_path) as store:
        await store.check()
        keys = redis_server.keys(str(tmp_path))
        assert keys
        assert min(keys.values()) > 0


async def test_a_check_reports_a_bucket_that_does_not_exist(
    redis_server: RedisProcess, bucket: S3Process, tmp_path: Path
) -> None:
    async with opened(redis_server, bucket, tmp_path) as store:
        await store.check()
        bucket.request("DELETE", f"/{BUCKET}")
        with pytest.raises(StoreError, match=r"The bucket of `store\.blobs` does not exist"):
            await store.check()


async def test_a_gateway_without_the_bucket_says_so(
    redis_server: RedisProcess, bucket: S3Process, tmp_path: Path
) -> None:
    async with opened(redis_server, bucket, tmp_path) as store, opened(redis_server, None, tmp_path) as other:
        await put(store, "t-1")
        assert isinstance(await other.describe("me", "t-1"), Descriptor)
        with pytest.raises(StoreError, match=r"this gateway has no `store\.blobs`"):
            await read(other, "t-1")


# What goes wrong.


SECRETS = ("127.0.0.1", "s3://", "hunter2", "pre/fix", "t-9")
"""Texts that no error quotes."""


async def refused(use: Awaitable[object]) -> tuple[str, float]:
    return await time_store_error(use, SECRETS)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "pause"])
async def test_an_outage_of_the_object_store_is_reported_in_time(
    fault: str, redis_server: RedisProcess, own_bucket: S3Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "_REQUEST_SECONDS", 1)
    async with opened(redis_server, own_bucket, tmp_path) as store:
        await put(store, "t-1")
        own_bucket.__exit__() if fault == "kill" else own_bucket.pause()
        for use in (put(store, "t-9"), read(store, "t-1")):
            message, seconds = await refused(use)
            assert message.startswith("The object store of `store.blobs` ")
            assert seconds < 5 * slowness()
        await put(store, "t-small", b'"x"')
        assert await read(store, "t-small") == b'"x"'
        assert isinstance(await store.describe("me", "t-1"), Descriptor)
        assert await store.describe("me", "t-9") is None
        if fault == "pause":
            own_bucket.resume()
            assert await read(store, "t-1") == LARGE
            await put(store, "t-9")
            assert await read(store, "t-9") == LARGE
            await wait_for_objects(own_bucket, 2)


@asynccontextmanager
async def answering(*answers: tuple[int, bytes], tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The address of an object store that gives these answers to requests, and then the last one to all."""
    left = [*answers]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        status, body = left.pop(0) if len(left) > 1 else left[0]
        writer.write(b"HTTP/1.1 %d Answer\r\nconnection: close\r\n\r\n%b" % (status, body))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as server:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The variables of the gateway; they have credentials."""
    for name, value in {**ENVIRONMENT, "AWS_ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (301, "PermanentRedirect", "Set AWS_REGION "),
        (400, "AuthorizationHeaderMalformed", "Set AWS_REGION "),
        (400, "ExpiredToken", "Check the credentials "),
        (400, "XMinioAdminBucketQuotaExceeded", "Make room "),
        (403, "AccessDenied", "Check the credentials "),
        (403, "QuotaExceeded", "Make room "),
        (403, "RequestTimeTooSkewed", "Synchronize the clocks."),
        (507, "XMinioStorageFull", "Make room "),
    ],
)
async def test_an_error_of_the_object_store_names_its_next_step(
    status: int, code: str, advice: str, variables: pytest.MonkeyPatch
) -> None:
    async with answering((status, f"<Error><Code>{code}</Code></Error>".encode())) as address:
        variables.setenv("AWS_ENDPOINT", address)
        message, _ = await refused(S3Blobs("s3://values").read("t-9", Span(0, 10)))
    assert advice in message


async def test_a_gateway_without_free_handles_is_named_as_the_cause(variables: pytest.MonkeyPatch) -> None:
    async with answering((403, b"")) as address:
        variables.setenv("AWS_ENDPOINT", address)
        blobs = S3Blobs("s3://values")
        await refused(blobs.read("t-9", Span(0, 10)))  # starts the library's threads
        os.close(lowest := os.dup(0))
        with limited(resource.RLIMIT_NOFILE, lowest):
            message, _ = await refused(blobs.read("t-9", Span(0, 10)))
    assert message.endswith("the gateway has no free file handle. Close sessions, or raise its limit (`ulimit -n`).")


FIRST_REQUESTS = """
import asyncio, os, resource, sys
from mcp_mirror.errors import StoreError
from mcp_mirror.stores.s3 import S3Blobs
from mcp_mirror.types import Span

async def main(starts):
    blobs = S3Blobs("s3://values")
    free = resource.getrlimit(resource.RLIMIT_NOFILE)
    if starts == "before":
        await blobs.start()
    os.close(lowest := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, free[1]))
    try:
        await (blobs.read("t-9", Span(0, 10)) if starts == "before" else blobs.start())
    except StoreError as error:
        print(error)
    if starts == "before":
        resource.setrlimit(resource.RLIMIT_NOFILE, free)
        try:
            await blobs.read("t-9", Span(0, 10))
        except StoreError as error:
            print(error)

asyncio.run(main(*sys.argv[1:]))
sys.stdout.flush()
os._exit(0)  # a thread of the library can abort an interpreter that ends right after a request
"""


@pytest.mark.parametrize("starts", ["before", "without"])
def test_a_shortage_of_handles_at_the_first_request_passes(starts: str, variables: pytest.MonkeyPatch) -> None:
    variables.setenv("AWS_ENDPOINT", "http://127.0.0.1:1")
    command = [sys.executable, "-c", FIRST_REQUESTS, starts]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    lines = ran.stdout.splitlines()
    if starts == "without":
        assert lines[0].endswith("raise its limit (`ulimit -n`).")
    assert len(lines) == (2 if starts == "before" else 1)
    assert all(line.startswith("The object store of `store.blobs` cannot be reached") for line in lines)


async def test_an_answer_about_another_object_is_a_store_error(variables: pytest.MonkeyPatch) -> None:
    error = b"<Error><Key>another</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
    async with answering((200, b"<DeleteResult>%b</DeleteResult>" % error)) as address:
        variables.setenv("AWS_ENDPOINT", address)
        message, _ = await refused(S3Blobs("s3://values").remove(["t-9"]))
    assert message.startswith("The object store of `store.blobs` failed.")


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("AWS_ENDPOINT", "minio:9000", "Write https://HOST or https://HOST:PORT."),
        ("AWS_ENDPOINT_URL", "minio:9000", "Write https://HOST or https://HOST:PORT."),
        ("AWS_ACCESS_KEY_ID", None, "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "),
        ("AWS_SECRET_ACCESS_KEY", None, "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "),
        ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "maybe", "Correct the variables that begin with AWS_."),
    ],
)
def test_variables_that_cannot_be_used_are_refused(
    name: str, value: str | None, advice: str, variables: pytest.MonkeyPatch
) -> None:
    variables.setenv(name, value) if value else variables.delenv(name)
    with pytest.raises(StoreError, match=re.escape(advice)):
        S3Blobs("s3://values")


async def test_a_busy_object_store_is_asked_again_for_a_moment(variables: pytest.MonkeyPatch) -> None:
    busy = 503, b"<Error><Code>SlowDown</Code></Error>"
    removed = 200, b"<DeleteResult><Deleted><Key>t-9</Key></Deleted></DeleteResult>"
    async with answering(busy, busy, busy, removed) as address:
        variables.setenv("AWS_ENDPOINT", address)
        await S3Blobs("s3://values").remove(["t-9"])
    async with answering(busy) as address:
        variables.setenv("AWS_ENDPOINT", address)
        message, seconds = await refused(S3Blobs("s3://values").remove(["t-9"]))
    assert message.startswith("The object store of `store.blobs` is busy")
    assert seconds < 5 * slowness()


async def test_missing_credentials_of_the_object_store_are_named(variables: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        variables.delenv(name)
    async with answering((404, b"")) as address:
        variables.setenv("AWS_METADATA_ENDPOINT", address)
        message, _ = await refused(S3Blobs("s3://values").read("t-9", Span(0, 10)))
    assert "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in its environment." in message


async def test_an_object_store_may_have_a_certificate_of_its_own(
    certificate: Path, variables: pytest.MonkeyPatch
) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    async with answering((404, b"<Error><Code>NoSuchBucket</Code></Error>"), tls=tls) as address:
        variables.setenv("AWS_ENDPOINT", address)
        message, _ = await refused(S3Blobs("s3://values").remove(["t-9"]))
        assert "TLS certificate" in message
        variables.setenv("SSL_CERT_FILE", str(certificate))
        message, _ = await refused(S3Blobs("s3://values").remove(["t-9"]))
        assert message.startswith("The bucket of `store.blobs` does not exist.")


@pytest.mark.slow
async def test_an_object_store_that_refuses_some_requests_is_logged_once(
    redis_server: RedisProcess,
    bucket: S3Process,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mcp_mirror.system.limited_logs._INTERVAL", 3600.0)  # after that, lines are logged again
    async with opened(redis_server, bucket, tmp_path) as store:
        await put(store, "t-1")
        [name] = bucket.names()
        bucket.request("PUT", f"/{BUCKET}/{name}", LARGE[:1000])
        for _ in range(10):
            await put(store, "t-2")
            assert "shorter than the value" in (await refused(read(store, "t-1", Span(5000, 10))))[0]
    lines = [record.getMessage() for record in caplog.records if record.name == "mcp_mirror.stores.s3"]
    assert len(lines) == 3
    assert ["shorter" in line for line in lines] == [True, False, True]
    assert lines[1] == "The object store is used again."


@pytest.mark.slow
async def test_uploads_do_not_take_the_time_of_each_others_requests(
    redis_server: RedisProcess, bucket: S3Process, tmp_path: Path
) -> None:
    async with opened(redis_server, bucket, tmp_path) as store:
        putting, uploads = asyncio.gather(*(put(store, f"t-{number}") for number in range(12))), [0]
        while not putting.done():
            uploads.append(await asyncio.to_thread(bucket.uploads))
        await putting
        assert 1 <= max(uploads) <= 2
        assert await asyncio.gather(*(read(store, f"t-{number}") for number in range(12))) == [LARGE] * 12


@pytest.mark.slow
async def test_uploads_that_wait_for_a_silent_object_store_fail_with_the_first(
    redis_server: RedisProcess, own_bucket: S3Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "_REQUEST_SECONDS", 1)
    async with opened(redis_server, own_bucket, tmp_path) as store:
        own_bucket.pause()
        found = await asyncio.gather(*(refused(put(store, f"t-{number}")) for number in range(20)))
        assert max(seconds for _, seconds in found) < 5 * slowness()
        own_bucket.resume()
        await put(store, "t-20")


async def test_an_object_store_that_fails_during_a_put_leaves_no_value(
    redis_server: RedisProcess, own_bucket: S3Process, tmp_path: Path
) -> None:
    async with opened(redis_server, own_bucket, tmp_path) as store:
        putting = asyncio.create_task(put(store, "t-1", LARGE * 8))
        while not await asyncio.to_thread(own_bucket.uploads):
            assert not putting.done()
        own_bucket.__exit__()
        await refused(putting)
        assert await store.describe("me", "t-1") is None
        assert await store.list("me") == ()


@pytest.mark.slow
async def test_a_redis_outage_during_a_put_leaves_no_object(
    own_redis: RedisProcess, bucket: S3Process, tmp_path: Path, clock: Clock
) -> None:
    async with opened(own_redis, bucket, tmp_path, clock) as store:
        putting = asyncio.create_task(put(store, "t-1", LARGE * 8))
        while not await asyncio.to_thread(bucket.uploads):
            assert not putting.done()
        own_redis.kill()
        message, _ = await refused(putting)
        assert message.startswith("The store's Redis server ")
        own_redis.start()
        assert len(bucket.names()) == 1
        clock.ahead = 3600
        await wait_for_objects(bucket, 0)


async def test_a_cancelled_put_leaves_no_object(redis_server: RedisProcess, bucket: S3Process, tmp_path: Path) -> None:
    async with opened(redis_server, bucket, tmp_path) as store:
        putting = asyncio.create_task(put(store, "t-1", LARGE * 8))
        while not await asyncio.to_thread(bucket.uploads):
            assert not putting.done()
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        assert await store.describe("me", "t-1") is None
        assert redis_server.run("ZCOUNT", f"{tmp_path}:2:objects", "(0", "+inf") == 0
        await wait_for_objects(bucket, 0)


async def test_a_bucket_that_does_not_exist_is_named_as_the_cause(
    redis_server: RedisProcess, bucket: S3Process, tmp_path: Path
) -> None:
    policy = StorePolicy(kind="redis", url=redis_server.url, prefix=f"{tmp_path}:")
    async with RedisStore(policy, time.time, lambda: tmp_path, S3Blobs("s3://none/x")) as store:
        message, _ = await refused(put(store, "t-9"))
    assert message == "The bucket of `store.blobs` does not exist. Create it, or correct `store.blobs`."
    assert bucket.names() == []


async def test_an_endpoint_without_tls_has_to_be_allowed(
    redis_server: RedisProcess, bucket: S3Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    async with opened(redis_server, bucket, tmp_path) as store:
        message, _ = await refused(put(store, "t-9"))
    assert "set AWS_ALLOW_HTTP=true" in message


@pytest.mark.parametrize("url", ["", "s3://", "s3:///x", "https://example.com/bucket", "bucket/prefix"])
def test_an_address_that_is_not_a_bucket_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match=r"`store.blobs` is not the address of a bucket\. Write s3://BUCKET"):
        S3Blobs(url)

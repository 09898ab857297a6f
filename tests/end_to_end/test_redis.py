"""A memory in Redis: gateways share it, it outlives them, and they continue without it."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from gateway_processes import forked_upstream
from notices import path_in
from samples import sample
from tests.end_to_end.conftest import BOUND
from tests.load import slowness
from waiting import until

import mcp_mirror.stores.opening
from mcp_mirror import Mirror
from mcp_mirror.stores.memory import MemoryStore

if TYPE_CHECKING:
    from redis_process import RedisProcess
    from s3_process import S3Process
    from tests.end_to_end.conftest import Configured, Lines, OpenClient, OpenLines, Run

EVERYTHING = Path(__file__).parents[1] / "conformance" / "everything.py"
LIMIT = 2.0
"""Seconds within which a call ends on an idle machine while the store is away."""
SMALL = {"content": [{"type": "text", "text": "said"}], "structuredContent": {"a": [1.0, "ä"]}}
LARGE = {"content": [{"type": "text", "text": "a line of text\n" * 1000}]}
TOO_LARGE = {"content": [{"type": "text", "text": "0123456789 " * 1_000_000}]}


def store_of(server: RedisProcess, folder: Path) -> dict[str, Any]:
    return {"kind": "redis", "url": server.url, "prefix": f"{folder}:"}


async def say(client: Lines, result: dict[str, Any]) -> dict[str, Any]:
    answer = json.loads(await client.call("say_mirrored", json.dumps({"result": json.dumps(result)})))
    outcome: dict[str, Any] = answer["result"]
    return outcome


async def stored(client: Lines, result: dict[str, Any] = LARGE) -> str:
    notice = (await say(client, result))["content"][0]["text"]
    assert "\nThis path " in notice, notice
    return str(path_in(notice))


async def found_value(client: Lines, path: str) -> str:
    return await client.text("retrieve_final_answer_from_memory", {"memory_path": path})


async def test_a_path_of_one_gateway_works_in_another_and_after_both(
    configured: Configured, open_lines: OpenLines, raw: Any, redis_server: RedisProcess, tmp_path: Path
) -> None:
    config = configured({"raw": raw()}, store=store_of(redis_server, tmp_path))
    async with open_lines(config) as one, open_lines(config) as other:
        await one.greet()
        await other.greet()
        path = await stored(one)
        assert "a line of text" in await found_value(other, path)
    async with open_lines(config) as later:
        await later.greet()
        assert "a line of text" in await found_value(later, path)


@pytest.mark.parametrize("fault", sample(["kill", "pause"], "kill".__eq__))
async def test_without_its_store_a_gateway_passes_calls_and_reports_errors(
    fault: str, open_client: OpenClient, raw: Any, own_redis: RedisProcess, tmp_path: Path
) -> None:
    async with open_client({"raw": raw()}, store=store_of(own_redis, tmp_path)) as client:
        path = await stored(client)
        getattr(own_redis, fault)()
        assert "method" in await client.text("hear_mirrored")
        for result in (SMALL, {"content": [{"type": "text", "text": "some words " * 2000}]}):
            started = time.monotonic()
            assert await say(client, result) == result
            assert time.monotonic() - started < LIMIT * slowness()
        started = time.monotonic()
        refused = json.loads(await client.call("hear_mirrored", json.dumps({"x": path})))["result"]
        assert time.monotonic() - started < LIMIT * slowness()
        assert refused["isError"] is True
        assert "The store's Redis server " in refused["content"][0]["text"]
        started = time.monotonic()
        three = json.dumps({"x": [path, path[:-1] + "0", path[:-1] + "1"]})
        refused = json.loads(await client.call("hear_mirrored", three))["result"]
        assert time.monotonic() - started < LIMIT * slowness()
        assert "The store's Redis server " in refused["content"][0]["text"]
        lost = await say(client, TOO_LARGE)
        assert lost["isError"] is True
        assert "Tool 'say' was called, but its result could not be stored. The store" in lost["content"][0]["text"]
        assert len(json.loads(await client.request("tools/list"))["result"]["tools"]) > 8
        for _ in range(3):
            resources = json.loads(await client.request("resources/list"))["result"]["resources"]
            assert [one["name"] for one in resources] == ["upstreams"]
        own_redis.start() if fault == "kill" else own_redis.resume()
        await until(lambda: found_value(client, path), lambda found: "a line of text" in found)
        assert await stored(client)
    log = b"".join(client.stderr).decode()
    assert "passed on unchanged because it could not be stored" in log
    assert log.count("Resources are listed without the stored values. The store's Redis server ") == 1
    assert "A result of 'say' could not be stored, and its call failed. The store's Redis server " in log
    assert "The store's Redis server is used again." in log
    assert "127.0.0.1" not in log


def make_lines(number: int) -> list[str]:
    """Make lines."""
    return [f"line {number}"] * 5000


def join(parts: list[list[str]]) -> int:
    """Join lists."""
    return sum(map(len, parts))


@pytest.mark.parametrize("step", ["describe", "read"])
async def test_the_values_of_a_call_are_looked_up_and_read_at_the_same_time(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_of_them = asyncio.Barrier(3)

    class Distant(MemoryStore):
        async def describe(self, *given: Any, **options: Any) -> Any:
            await self.arrive("describe")
            return await super().describe(*given, **options)

        async def read(self, *given: Any, **options: Any) -> Any:
            await self.arrive("read")
            return await super().read(*given, **options)

        async def arrive(self, at: str) -> None:
            async with asyncio.timeout(BOUND):
                await all_of_them.wait() if at == step else None

    monkeypatch.setattr(mcp_mirror.stores.opening, "MemoryStore", Distant)
    mirror = Mirror()
    mirror.tool(make_lines)
    mirror.tool(join)
    async with mirror:
        paths = [str((await mirror.call("make_lines_mirrored", {"number": number})).path) for number in range(3)]
        assert (await mirror.call("join_mirrored", {"parts": paths})).text == "15000"
        if step == "read":
            pytest.importorskip("duckdb")
            counts = "(SELECT count(*) FROM t0) n0, (SELECT count(*) FROM t1) n1, (SELECT count(*) FROM t2) n2"
            reply = await mirror.sql("SELECT " + counts, {f"t{number}": path for number, path in enumerate(paths)})
            assert reply.value == [{f"n{number}": 5000 for number in range(3)}]


async def test_of_several_wrong_paths_the_error_is_about_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    is_last_read = asyncio.Event()

    class Distant(MemoryStore):
        async def read(self, namespace: str, base: str, *given: Any) -> Any:
            if base == bases[-1]:
                is_last_read.set()
            async with asyncio.timeout(BOUND):
                await is_last_read.wait()
            return await super().read(namespace, base, *given)

    monkeypatch.setattr(mcp_mirror.stores.opening, "MemoryStore", Distant)
    mirror = Mirror()
    mirror.tool(make_lines)
    mirror.tool(join)
    async with mirror:
        replies = [await mirror.call("make_lines_mirrored", {"number": number}) for number in range(3)]
        bases = [str(reply.path) for reply in replies]
        reply = await mirror.call("join_mirrored", {"parts": [f"{bases[0]}/first", bases[1], f"{bases[2]}/last"]})
        assert f'"{bases[0]}" has no key "first"' in reply.text


async def test_a_gateway_starts_without_its_store_and_uses_it_when_it_comes(
    open_client: OpenClient, raw: Any, absent_redis: RedisProcess, tmp_path: Path
) -> None:
    async with open_client({"raw": raw()}, store=store_of(absent_redis, tmp_path)) as client:
        assert await say(client, SMALL) == SMALL
        absent_redis.start()
        await until(lambda: say(client, SMALL), lambda found: found != SMALL)


async def test_a_resource_that_cannot_be_stored_is_passed_on(
    configured: Configured, open_lines: OpenLines, absent_redis: RedisProcess, tmp_path: Path
) -> None:
    everything = forked_upstream(str(EVERYTHING), "stdio", "--era", "2025-11-25")
    mirror = {"capture_resources": True, "inline_budget": 1}
    config = configured({"one": everything}, mirror=mirror, store=store_of(absent_redis, tmp_path))

    async def read(client: Lines) -> str:
        answer = json.loads(await client.request("resources/read", '{"uri":"test://static-text"}'))
        return str(answer["result"]["contents"][0]["text"])

    async with open_lines(config) as client:
        await client.greet()
        passed = await read(client)
        assert "This path " not in passed
        absent_redis.start()
        await until(lambda: read(client), lambda found: "This path " in found)


@pytest.mark.executable  # PYTHONPATH
async def test_without_the_extra_the_error_names_the_package_to_install(
    configured: Configured, run: Run, raw: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "absent" / "redis").mkdir(parents=True)
    missing = "raise ModuleNotFoundError(\"No module named 'redis'\", name='redis')"
    (tmp_path / "absent" / "redis" / "__init__.py").write_text(missing)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "absent"))
    ended = await run("check", "--config", str(configured({"raw": raw()}, store={"kind": "redis", "url": "redis://x"})))
    assert ended.code == 2
    assert "pip install 'mcp-mirror[redis]'" in ended.err


async def test_large_values_of_two_gateways_are_in_one_bucket(
    configured: Configured,
    open_lines: OpenLines,
    raw: Any,
    redis_server: RedisProcess,
    bucket: S3Process,
    tmp_path: Path,
) -> None:
    before, large = len(bucket.names()), {"content": [{"type": "text", "text": "a line of text\n" * 100_000}]}
    config = configured({"raw": raw()}, store=store_of(redis_server, tmp_path) | {"blobs": bucket.url})
    async with open_lines(config) as one, open_lines(config) as other:
        await one.greet()
        await other.greet()
        path = await stored(one, large)
        assert len(bucket.names()) == before + 1
        assert "a line of text" in await other.text("memory_read", {"memory_path": path})
        assert "a line of text" in await one.text("memory_read", {"memory_path": path})


@pytest.mark.executable  # PYTHONPATH
async def test_without_the_s3_extra_the_error_names_the_package_to_install(
    configured: Configured, run: Run, raw: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "absent" / "obstore").mkdir(parents=True)
    missing = "raise ModuleNotFoundError(\"No module named 'obstore'\", name='obstore')"
    (tmp_path / "absent" / "obstore" / "__init__.py").write_text(missing)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "absent"))
    store = {"kind": "redis", "url": "redis://x", "blobs": "s3://values"}
    ended = await run("check", "--config", str(configured({"raw": raw()}, store=store)))
    assert ended.code == 2
    assert "pip install 'mcp-mirror[redis,s3]'" in ended.err


async def test_check_reports_a_store_that_is_not_there(
    configured: Configured, run: Run, raw: Any, absent_redis: RedisProcess, tmp_path: Path
) -> None:
    ended = await run("check", "--config", str(configured({"raw": raw()}, store=store_of(absent_redis, tmp_path))))
    assert ended.code == 1
    assert "problem: store: The store's Redis server cannot be reached." in ended.err
    assert "(ConnectionError: Connection refused)" in ended.err


@pytest.mark.parametrize("store", [{"kind": "redis"}, {"kind": "redis", "url": "redis://:hunter2@x:port"}])
async def test_an_invalid_redis_url_is_reported_before_serving(
    store: dict[str, str], configured: Configured, run: Run, raw: Any
) -> None:
    ended = await run("check", "--config", str(configured({"raw": raw()}, store=store)))
    assert ended.code == 2
    assert "`store.url`" in ended.err
    assert "hunter2" not in ended.err

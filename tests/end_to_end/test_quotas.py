"""Quotas of calls through real gateways that require a token, over restarts, workers and replicas."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import sys
import uuid
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from samples import sample
from tests.end_to_end.conftest import BOUND
from waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from redis_process import RedisProcess
    from tests.end_to_end.conftest import Configured, Run, Serve, Served

TOKENS = {name: f"mcpm_{name}-0123456789abcdef0123456789abcdef" for name in ("alice", "bot", "carol")}
HASHES = {name: f"sha256:{hashlib.sha256(token.encode()).hexdigest()}" for name, token in TOKENS.items()}
AUTH = {"tokens": HASHES, "principals": {"bot": {"calls_per_day": 5, "calls_per_month": "none"}}}
NEAR_MIDNIGHT = 60
"""Seconds before the end of a day in which no test begins."""
USED_UP = (
    "The principal of this client has made the 3 calls that it may make today with all its clients (`calls_per_day`). "
    "It can call again from "
)


@asynccontextmanager
async def connect_as(principal: str, served: Served) -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {TOKENS[principal]}"}
    async with (
        httpx2.AsyncClient(timeout=BOUND, headers=headers) as http,
        Client(streamable_http_client(served.url, http_client=http)) as client,
    ):
        yield client


async def call(client: Client, number: int = 1) -> list[str]:
    """Return the error of each of some calls; an empty text for a successful one."""
    results = [await client.call_tool("hear_mirrored", {}) for _ in range(number)]
    return [getattr(one.content[0], "text", "") if one.is_error else "" for one in results]


@pytest.fixture(autouse=True)
async def one_day() -> None:
    """Let no midnight (UTC) come during a test: the quotas of the day begin again then."""
    now = datetime.now(UTC)
    left = 86_400 - (3600 * now.hour + 60 * now.minute + now.second)
    if left < NEAR_MIDNIGHT:
        await asyncio.sleep(left)


async def call_until_refused(client: Client, most: int) -> str:
    """Call until a quota is used up, and return its error; fail after too many calls."""
    for _ in range(most):
        if error := (await call(client))[0]:
            return error
        await asyncio.sleep(1)  # gateways over one store learn of the calls of others within seconds
    raise AssertionError(most)


@pytest.fixture(params=sample(["memory", "disk", "redis"], lambda kind: kind != "memory"))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "redis":
        server: RedisProcess = request.getfixturevalue("redis_server")
        return {"kind": "redis", "url": server.url, "prefix": f"{uuid.uuid4()}:", "path": None}
    return {"kind": request.param, "path": str(tmp_path / "store") if request.param == "disk" else None}


@pytest.mark.posix
async def test_each_principal_has_a_quota_which_a_restart_keeps(
    serve: Serve, configured: Configured, raw: Any, store: dict[str, Any]
) -> None:
    config = configured({"raw": raw()}, store=store, auth=AUTH, limits={"calls_per_day": 3})
    async with serve(config) as served, connect_as("alice", served) as alice, connect_as("bot", served) as bot:
        errors = await call(alice, 5)
        assert errors[:3] == ["", "", ""]
        assert [error.startswith(USED_UP) for error in errors[3:]] == [True, True]
        assert "00:00 UTC. Ask the operator if it needs more." in errors[3]
        assert (await alice.list_tools()).tools
        errors = await call(bot, 6)
        assert errors[:5] == 5 * [""]
        assert "the 5 calls that it may make today with all its clients (`calls_per_day`)" in errors[5]
    if store["kind"] == "memory":
        return
    async with serve(config) as served:
        for principal, refused in (("alice", True), ("bot", True), ("carol", False)):
            async with connect_as(principal, served) as client:
                assert ((await call(client))[0] != "") == refused, principal


async def test_a_quota_of_the_month_counts_scripts_and_names_its_end(
    serve: Serve, configured: Configured, raw: Any
) -> None:
    config = configured({"raw": raw()}, auth=AUTH, limits={"calls_per_month": 3}, code={"tools": "all"})
    code = "[await tools.hear(), await tools.hear(), await tools.hear()]"
    async with serve(config) as served, connect_as("alice", served) as alice, connect_as("bot", served) as bot:
        result = await alice.call_tool("memory_run", {"code": code})
        assert result.is_error
        assert "the 3 calls that it may make this month with all its clients (`calls_per_month`)" in str(result.content)
        now = datetime.now(UTC)
        year, month = divmod(12 * now.year + now.month, 12)
        assert f"It can call again from {year}-{month + 1:02}-01 00:00 UTC" in (await call(alice))[0]
        assert await call(bot, 5) == 5 * [""]


@pytest.mark.posix
async def test_a_reload_adds_and_raises_quotas_in_open_sessions(serve: Serve, configured: Configured, raw: Any) -> None:
    settings: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
        (AUTH | {"principals": {}}, {"calls_per_day": 3}),
        (AUTH | {"principals": {"bot": {"calls_per_day": 5}}}, {"calls_per_day": 4}),
        (AUTH | {"principals": {}}, {"calls_per_minute": 1}),
    )
    config = configured({"raw": raw()}, auth=AUTH | {"principals": {}})
    async with serve(config) as served, connect_as("alice", served) as alice, connect_as("bot", served) as bot:
        refused: list[tuple[int, int]] = []
        for number, (auth, limits) in enumerate(settings, 1):
            configured({"raw": raw()}, auth=auth, limits=limits)
            served.process.send_signal(signal.SIGHUP)
            await until(lambda: b"".join(served.stderr).count(b"was reloaded.") >= number)  # noqa: B023  # called at once
            errors = await call(alice, 4), await call(bot, 4)
            refused.append((sum(map(bool, errors[0])), sum(map(bool, errors[1]))))
        assert "`limits.calls_per_minute` (1)" in errors[0][-1]
    assert refused == [(1, 1), (3, 2), (3, 3)]
    assert b"takes effect at the next start" not in b"".join(served.stderr)


async def test_replicas_on_one_redis_share_the_quotas(
    serve: Serve, configured: Configured, raw: Any, redis_server: RedisProcess
) -> None:
    store = {"kind": "redis", "url": redis_server.url, "prefix": f"{uuid.uuid4()}:", "path": None}
    auth = AUTH | {"principals": {"bot": {"calls_per_day": 50}}}
    config = configured({"raw": raw()}, store=store, auth=auth, limits={"calls_per_day": 20})
    async with (
        serve(config) as first,
        serve(config) as second,
        connect_as("alice", first) as one,
        connect_as("alice", second) as other,
        connect_as("bot", second) as bot,
    ):
        assert await call(other) == [""]  # it has a count of its own, which the calls of the other gateway join
        assert await call(one, 18) == 18 * [""]
        assert "the 20 calls" in await call_until_refused(other, 15)  # without those of `one` it could make 19
        assert "the 20 calls" in await call_until_refused(one, 15)
        assert await call(bot, 10) == 10 * [""]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux")
async def test_workers_share_the_quotas_and_usage_shows_the_refusals(
    serve: Serve, configured: Configured, raw: Any, run: Run
) -> None:
    config = configured({"raw": raw()}, store={"kind": "disk"}, auth=AUTH, limits={"calls_per_day": 10})
    async with serve(config, "--workers", "2") as served:
        for _ in range(30):  # each connection reaches one of the workers
            async with connect_as("alice", served) as alice:
                if "the 10 calls" in (await call(alice))[0]:
                    break
            await asyncio.sleep(0.5)
        else:
            raise AssertionError
    ended = await run("usage", "--config", str(config), "--by", "principal", "--json")
    (row,) = json.loads(ended.out)
    assert (row["principal"], row["refused"]) == ("alice", 1), row
    assert 11 <= row["calls"] <= 30

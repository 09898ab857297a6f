"""The cost of many sessions in processes, memory and file handles, and when the gateway frees them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import resource
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from http_sessions import META
from resource_limits import limited
from tests.end_to_end.conftest import BOUND
from tests.hostile.sessions import NOT_FOUND, Session, children, resident_bytes, threads
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.end_to_end.conftest import Configured, Serve
    from tests.hostile.conftest import Budget

SESSIONS = 60
HANDLES = 1024
ATTEMPTS = 30.0
"""Seconds after which a client that retries is served."""


def limit_handles(pid: int, most: int) -> None:
    """Lower the handle limit of a running gateway so that it cannot raise it."""
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most))


def handle_limit(pid: int) -> tuple[int, int]:
    return resource.prlimit(pid, resource.RLIMIT_NOFILE)


@pytest.mark.slow
async def test_sixty_sessions_start_no_more_processes_than_the_limit(
    configured: Configured, serve: Serve, raw: Any, budget: Budget
) -> None:
    limits = {"connections_per_principal": 12}
    async with (
        serve(configured({"one": raw(), "two": raw()}, limits=limits), "-v") as served,
        httpx2.AsyncClient() as http,
    ):
        limit_handles(served.process.pid, HANDLES)
        most = 0

        async def use(session: Session) -> list[str]:
            nonlocal most
            answers = [await session.call(f"{name}_hear_mirrored") for name in ("one", "two")]
            most = max(most, len(children(served.process.pid)))
            return answers

        async with budget(served, "sessions that start processes", "60 sessions, 2 upstreams", wait=20) as row:
            sessions = await asyncio.gather(*[Session.open(http, served.url) for _ in range(SESSIONS)])
            assert len(children(served.process.pid)) == 2
            replies = [text for texts in await asyncio.gather(*map(use, sessions)) for text in texts]
            row.outcome = f"at most {most} processes, the other calls are refused"
        refused = [text for text in replies if "gets no further connection" in text]
        assert 0 < len(refused) < len(replies)
        assert all("`limits.connections_per_principal` (12)" in text and "scope: shared" in text for text in refused)
        assert [text for text in replies if text not in refused and "Result ends." not in text] == []
        assert most <= 14
        assert threads(served.process.pid) < 12
        assert sum(map(resident_bytes, children(served.process.pid))) < 14 * 50e6
    assert b"OSError" not in b"".join(served.stderr)


async def test_listing_starts_no_process_for_a_session(
    configured: Configured, serve: Serve, raw: Any, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with (
        serve(configured({"one": raw("ok", "--shelf", "--log", str(log))})) as served,
        httpx2.AsyncClient() as http,
    ):
        session = await Session.open(http, served.url)
        for method in ("tools/list", "resources/list", "resources/templates/list", "prompts/list"):
            await session.result(method)
        shared = children(served.process.pid)
        assert len(shared) == 1
        listed = (await session.result("resources/list"))["resources"]
        assert str(shared[0]) in str(listed)
        read = await session.result("resources/read", {"uri": "raw://process"})
        (own,) = set(children(served.process.pid)) - set(shared)
        assert str(own) in str(read)
        listed = (await session.result("resources/list"))["resources"]
        assert str(own) in str(listed)


async def test_an_idle_session_ends_with_its_processes_and_answers_404(
    configured: Configured, serve: Serve, raw: Any, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    config = configured({"one": raw("ok", "--log", str(log))}, server={"session_idle": 1})
    async with serve(config) as served, httpx2.AsyncClient() as http:
        session = await Session.open(http, served.url)
        await session.call("hear_mirrored")
        assert log.read_text().count(" initialize\n") == 2  # it has a process, though maybe not until we look
        await until(lambda: len(children(served.process.pid)) == 1)
        assert (await session.post("tools/list")).status_code == NOT_FOUND
        again = await Session.open(http, served.url)
        assert "Result ends." in await again.call("hear_mirrored")


async def test_an_open_stream_keeps_a_session_until_its_client_vanishes(
    configured: Configured, serve: Serve, raw: Any
) -> None:
    config = configured({"one": raw()}, server={"session_idle": 1})
    async with serve(config) as served, httpx2.AsyncClient() as http:
        session = await Session.open(http, served.url)
        await session.call("hear_mirrored")
        before = children(served.process.pid)
        async with httpx2.AsyncClient() as listening:
            headers = {**session.headers, "accept": "text/event-stream"}
            async with listening.stream("GET", served.url, headers=headers, timeout=60) as stream:
                assert stream.status_code == 200
                other = await Session.open(http, served.url)  # it goes idle in the same time, and ends
                await other.call("hear_mirrored")
                await until(lambda: len(children(served.process.pid)) == len(before))
                assert set(children(served.process.pid)) == set(before)
        began = time.monotonic()
        await until(lambda: len(children(served.process.pid)) == 1)
        assert time.monotonic() - began < BOUND / 2


async def test_a_stream_that_names_a_last_event_is_a_new_stream(configured: Configured, serve: Serve, raw: Any) -> None:
    async with serve(configured({"one": raw()})) as served, httpx2.AsyncClient() as http:
        session = await Session.open(http, served.url)
        headers = {**session.headers, "accept": "text/event-stream", "last-event-id": "7"}
        async with http.stream("GET", served.url, headers=headers, timeout=60) as stream:
            assert (stream.status_code, stream.headers["content-type"]) == (200, "text/event-stream")


async def test_a_further_stream_of_a_session_replaces_the_first(configured: Configured, serve: Serve, raw: Any) -> None:
    """As of a client with a new network: the gateway does not know that the connection of the first stream is dead."""
    config = configured({"one": raw()})
    async with serve(config) as served, httpx2.AsyncClient() as http, AsyncExitStack() as streams:
        session = await Session.open(http, served.url)

        async def listen(accept: str = "text/event-stream") -> httpx2.Response:
            headers = {**session.headers, "accept": accept}
            stream = http.stream("GET", served.url, headers=headers, timeout=BOUND)
            return await streams.enter_async_context(stream)

        first = await listen()
        assert (await listen("text/html")).status_code == 406
        others = [await listen() for _ in range(3)]
        assert [one.status_code for one in (first, *others)] == [200] * 4
        for replaced in (first, *others[:-1]):
            assert b"message" not in await asyncio.wait_for(replaced.aread(), BOUND)
        await session.call("grow_mirrored", name="new")
        async with asyncio.timeout(BOUND):
            async for line in others[-1].aiter_lines():
                if "list_changed" in line:
                    break
            else:
                pytest.fail("The stream ended without the notification.")


async def test_a_deleted_session_ends_its_processes_at_once(configured: Configured, serve: Serve, raw: Any) -> None:
    async with serve(configured({"one": raw(), "two": raw()})) as served, httpx2.AsyncClient() as http:
        session = await Session.open(http, served.url)
        await session.call("one_hear_mirrored")
        await session.call("two_hear_mirrored")
        assert len(children(served.process.pid)) == 4
        await session.delete()
        await until(lambda: len(children(served.process.pid)) == 2)


@pytest.mark.slow
async def test_an_idle_session_makes_room_and_its_client_learns_of_it(
    configured: Configured, serve: Serve, raw: Any
) -> None:
    config = configured({"one": raw()}, limits={"connections_per_principal": 1})
    async with serve(config) as served, httpx2.AsyncClient() as http:
        first, second = [await Session.open(http, served.url) for _ in range(2)]
        await first.call("hear_mirrored")
        assert "Result ends." in await second.call("hear_mirrored")
        assert len(children(served.process.pid)) == 2
        assert (await first.post("tools/list")).status_code == NOT_FOUND
        assert (await second.post("tools/list")).status_code == 200


async def test_a_session_in_use_is_not_ended_for_another(
    configured: Configured, serve: Serve, raw: Any, tmp_path: Path
) -> None:
    limits, audit = {"connections_per_principal": 1}, tmp_path / "audit.jsonl"
    config = configured({"one": raw()}, limits=limits, audit={"path": str(audit)})
    async with serve(config) as served, httpx2.AsyncClient() as http, AsyncExitStack() as stack:
        first, second = [await Session.open(http, served.url) for _ in range(2)]
        await first.call("hear_mirrored")
        headers = {**first.headers, "accept": "text/event-stream"}
        await stack.enter_async_context(http.stream("GET", served.url, headers=headers, timeout=60))
        assert "`limits.connections_per_principal` (1)" in await second.call("hear_mirrored")
        assert "Result ends." in await first.call("hear_mirrored")
    records = [json.loads(line) for line in audit.read_text().splitlines()]
    outcomes = [(one["event"], one["outcome"]) for one in records if one["tool"] == "hear_mirrored"]
    assert outcomes == [("call", "stored"), ("refusal", "busy"), ("call", "stored")]


async def test_one_principal_leaves_room_for_another(configured: Configured, serve: Serve, raw: Any) -> None:
    tokens = [f"a-token-of-more-than-32-characters-{number}" for number in range(2)]
    hashes = [f"sha256:{hashlib.sha256(token.encode()).hexdigest()}" for token in tokens]
    auth = {"tokens": {f"p{number}": hash_ for number, hash_ in enumerate(hashes)}}
    limits = {"connections_per_principal": 4, "connections_per_upstream": 6}
    async with (
        serve(configured({"one": raw()}, auth=auth, limits=limits)) as served,
        httpx2.AsyncClient() as http,
        AsyncExitStack() as stack,
    ):
        greedy = [await Session.open(http, served.url, token=tokens[0]) for _ in range(8)]
        for session in greedy:  # with a stream open, nothing of theirs is idle
            headers = {**session.headers, "accept": "text/event-stream"}
            await stack.enter_async_context(http.stream("GET", served.url, headers=headers, timeout=60))
        answers = [await session.call("hear_mirrored") for session in greedy]
        assert sum("`limits.connections_per_principal` (4)" in text for text in answers) == 4
        modest = await Session.open(http, served.url, token=tokens[1])
        assert "Result ends." in await modest.call("hear_mirrored")


@pytest.mark.slow
async def test_clients_with_different_names_share_one_limit(configured: Configured, serve: Serve, raw: Any) -> None:
    """A 2026-07-28 client gets a dedicated connection for each set of capabilities that it declares."""
    config = configured({"one": raw()}, limits={"connections_per_principal": 3})
    async with serve(config) as served, httpx2.AsyncClient() as http:
        for number in range(8):
            capabilities: dict[str, Any] = {"experimental": {str(number): {}}}
            meta = META | {"io.modelcontextprotocol/clientCapabilities": capabilities}
            headers = {
                "accept": "application/json, text/event-stream",
                "mcp-protocol-version": "2026-07-28",
                "mcp-method": "tools/call",
                "mcp-name": "hear_mirrored",
            }
            params = {"name": "hear_mirrored", "arguments": {}, "_meta": meta}
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            answer = await http.post(served.url, headers=headers, json=message, timeout=60)
            assert "Result ends." in answer.text
            assert len(children(served.process.pid)) <= 4


@pytest.mark.executable  # inherits the limit of this process
async def test_the_gateway_raises_its_own_handle_limit_only(configured: Configured, serve: Serve, raw: Any) -> None:
    soft = 256
    with limited(resource.RLIMIT_NOFILE, soft) as hard:
        async with serve(configured({"one": raw()})) as served:
            pid = served.process.pid
            assert handle_limit(pid) == (hard, hard)
            await until(lambda: [handle_limit(child) for child in children(pid)] == [(soft, hard)])


@pytest.mark.slow
async def test_without_handles_calls_fail_clearly_and_work_again_later(
    configured: Configured, serve: Serve, raw: Any
) -> None:
    async with serve(configured({"one": raw()})) as served, httpx2.AsyncClient() as http, AsyncExitStack() as stack:
        pid = served.process.pid
        first, second = [await Session.open(http, served.url) for _ in range(2)]
        await first.call("hear_mirrored")
        limit_before = handle_limit(pid)
        open_files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_files + 2, limit_before[1]))
        answer = await second.call("hear_mirrored")
        assert "no free file handle" in answer
        assert "ulimit -n" in answer
        assert "OSError" not in answer
        assert "Result ends." in await first.call("hear_mirrored")
        strangers = [asyncio.create_task(stranger(served.url)) for _ in range(20)]
        await until(lambda: refusals(served.stderr))
        spent = processor_time(pid)
        await asyncio.sleep(2)  # what the gateway spends while it cannot accept
        assert processor_time(pid) - spent < 1
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limit_before)
        async with asyncio.timeout(ATTEMPTS):
            await until(lambda: second.call("hear_mirrored"), lambda found: "Result ends." in found)
            assert await asyncio.gather(*strangers) == [200] * 20
        stack.push_async_callback(second.delete)
    reported = refusals(served.stderr)
    assert len(reported) < 10
    assert all(b"no free file handle" in line for line in reported)


def refusals(stderr: Iterable[bytes]) -> list[bytes]:
    """The log lines about connections that could not be accepted."""
    return [line for line in b"".join(stderr).splitlines() if b"default_exception_handler" in line]


async def stranger(url: str) -> int:
    """One more client with its own connection."""
    async with httpx2.AsyncClient() as http:
        session = await Session.open(http, url)
        return (await session.post("tools/list")).status_code


def processor_time(pid: int) -> float:
    """CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("free", [0, 8], ids=["no handle", "a few handles"])
async def test_scripts_run_after_a_shortage_of_handles(free: int, configured: Configured, serve: Serve) -> None:
    """The first script imports modules and starts a runtime, which would fail for ever after a failed start."""
    pytest.importorskip("pydantic_monty")
    async with serve(configured({})) as served, httpx2.AsyncClient() as http:
        session, pid = await Session.open(http, served.url), served.process.pid
        before, most = handle_limit(pid)
        open_handles = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_handles + free, most))
        script = {"name": "memory_run", "arguments": {"code": "return 20 + 22", "inputs": {}}}
        assert "the gateway has no free file handle" in str(await session.result("tools/call", script))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (before, most))
        assert "42" in str(await session.result("tools/call", script))

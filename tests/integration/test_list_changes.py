"""Clients that list tools wait while changes are being read."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from clocks import PassTime

from mcp_mirror import Mirror
from mcp_mirror.upstreams.list_changes import ListChanges

BOUND = 30
RAW = Path(__file__).parents[1] / "end_to_end" / "servers" / "raw.py"


@asynccontextmanager
async def settling(changes: ListChanges) -> AsyncIterator[anyio.Event]:
    """A client that waits; the event is set when it waits no longer."""
    settled = anyio.Event()

    async def settle() -> None:
        await changes.wait_for_tools()
        settled.set()

    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(settle)
            await anyio.wait_all_tasks_blocked()
            yield settled


@asynccontextmanager
async def reading(changes: ListChanges) -> AsyncIterator[set[str]]:
    """Lists that are being read, until the end of the context."""
    kinds, begun, may_end = set[str](), anyio.Event(), anyio.Event()

    async def read(changed: set[str]) -> None:
        kinds.update(changed)
        begun.set()
        await may_end.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(changes.follow, read)
        with anyio.fail_after(BOUND):
            await begun.wait()
        yield kinds
        may_end.set()
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


async def test_a_client_waits_until_a_change_is_read() -> None:
    changes = ListChanges()
    changes.note("tools")
    async with settling(changes) as settled, reading(changes) as kinds:
        assert kinds == {"tools"}
        await anyio.wait_all_tasks_blocked()
        assert not settled.is_set()
    assert settled.is_set()


async def test_a_client_does_not_wait_for_other_lists_or_without_a_change() -> None:
    changes = ListChanges()
    await changes.wait_for_tools()
    changes.note("resources")
    async with reading(changes):
        await changes.wait_for_tools()


async def test_a_client_does_not_wait_for_the_end_of_a_pause() -> None:
    changes, read = ListChanges(), list[set[str]]()

    async def note_read(changed: set[str]) -> None:
        read.append(changed)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(changes.follow, note_read)
        changes.note("prompts")
        await anyio.wait_all_tasks_blocked()
        assert read == [{"prompts"}]
        changes.note("tools")
        await changes.wait_for_tools()
        tasks.cancel_scope.cancel()


async def test_clients_do_not_wait_for_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, changes = asyncio.get_running_loop(), ListChanges()
    changes.note("tools")
    read_clock = loop.time
    async with reading(changes), settling(changes) as settled:
        assert not settled.is_set()
        monkeypatch.setattr(loop, "time", lambda: read_clock() + 3)
        with anyio.fail_after(1):
            await changes.wait_for_tools()


async def test_the_pause_after_a_long_reading_is_as_long(pass_time: PassTime) -> None:
    changes, read = ListChanges(), list[set[str]]()

    async def read_for_three_seconds(changed: set[str]) -> None:
        read.append(changed)
        changes.note("tools")
        await pass_time(3)

    async with anyio.create_task_group() as tasks:
        changes.note("tools")
        tasks.start_soon(changes.follow, read_for_three_seconds)
        await anyio.wait_all_tasks_blocked()
        await pass_time(2)
        await anyio.wait_all_tasks_blocked()
        assert len(read) == 1
        await pass_time(1.5)
        with anyio.fail_after(BOUND):
            while len(read) == 1:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


async def test_a_client_waits_for_a_listing_if_the_last_one_is_old(pass_time: PassTime) -> None:
    changes, read, may_end = ListChanges(), list[set[str]](), anyio.Event()

    async def read_slowly(changed: set[str]) -> None:
        read.append(changed)
        await may_end.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(changes.follow, read_slowly)
        await anyio.wait_all_tasks_blocked()
        await pass_time(9)
        await changes.wait_for_tools()
        await pass_time(2)
        async with settling(changes) as settled:
            assert read == [{"tools"}]
            assert not settled.is_set()
            may_end.set()
        assert settled.is_set()
        await changes.wait_for_tools()
        tasks.cancel_scope.cancel()


async def test_tools_that_a_server_adds_without_notice_are_found(pass_time: PassTime) -> None:
    upstream = {"command": sys.executable, "args": ["-S", "-E", str(RAW), "ok"]}
    with anyio.fail_after(BOUND):
        async with Mirror(upstreams={"one": upstream}) as mirror:
            assert not (await mirror.call("grow_mirrored", {"name": "sprout", "silent": True})).is_error
            await pass_time(11)
            assert not (await mirror.call("sprout_mirrored", {})).is_error

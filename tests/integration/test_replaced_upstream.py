"""Calls to an upstream that a reload of the configuration stops meanwhile."""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import mcp_types as types
import pytest

from mcp_mirror.callers import Caller, NullChannel
from mcp_mirror.core.schemas.tool_inspection import InspectedTool
from mcp_mirror.errors import UpstreamError
from mcp_mirror.payload.spool import Spool
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.settings.upstreams import StdioEndpoint, UpstreamPolicy
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.dedicated import ConnectionSlots
from mcp_mirror.upstreams.registry import UpstreamRegistry
from mcp_mirror.upstreams.upstream import ChangeListeners, UpstreamDependencies
from mcp_mirror.upstreams.upstream_request import UpstreamRequest
from mcp_mirror.workers.frames import FrameScanner

BOUND = 60
SILENT = StdioEndpoint(sys.executable, ("-S", "-E", "-c", "import sys; sys.stdin.read()"))
"""A server that reads the handshake and never answers it."""
RAW = Path(__file__).parents[1] / "end_to_end" / "servers" / "raw.py"
CLIENT = NullChannel(Caller("local", is_stateless=False, session="one"))
CALL = UpstreamRequest("tools/call", {"arguments": (b"{}",)}, {"name": "any"})


class NoSessions:
    """Sessions that are alive and have no open request."""

    def is_open(self, _key: str) -> bool:
        return False

    def find(self, _key: str) -> object:
        return self

    def end(self, key: str) -> None:
        raise NotImplementedError(key)


async def inspected(_policy: UpstreamPolicy, _items: Sequence[Buffer]) -> tuple[InspectedTool, ...]:
    return ()


@asynccontextmanager
async def running(slots: ConnectionSlots, endpoint: StdioEndpoint = SILENT) -> AsyncIterator[UpstreamRegistry]:
    with Spool(WirePolicy()) as spool, ChildWatchdog() as child_watchdog, anyio.fail_after(BOUND):
        info, scanner = types.Implementation(name="us", version="0"), FrameScanner(child_watchdog, spool)
        dependencies = UpstreamDependencies(
            spool,
            child_watchdog,
            info,
            inspected,
            scanner.open_list,
            listeners=ChangeListeners(lambda *_: None, lambda *_: None, lambda _: True),
            slots=slots,
            answer_timeout=60.0,
        )
        policy = UpstreamPolicy("up", endpoint, startup_timeout=BOUND)
        registry = UpstreamRegistry([policy], dependencies)
        async with registry.running():
            registry.start()
            yield registry


async def test_a_waiting_call_fails_when_its_upstream_is_removed() -> None:
    slots = ConnectionSlots(1, NoSessions(), 60.0)
    errors: list[str] = []

    async def call() -> None:
        with pytest.raises(UpstreamError) as caught:
            await upstream.request(CALL, CLIENT)
        errors.append(str(caught.value))

    async with running(slots) as registry:
        upstream = registry["up"]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await anyio.wait_all_tasks_blocked()
            registry.replace([], 0.0)
        await slots.wait_for_slot("up", CLIENT.caller.namespace, 1)
    assert errors == ["Upstream 'up' is down: The gateway has closed the connection. Try again in a moment."]


async def test_a_call_to_a_removed_upstream_is_an_error_and_takes_no_slot() -> None:
    slots = ConnectionSlots(1, NoSessions(), 60.0)
    async with running(slots) as registry:
        upstream = registry["up"]
        registry.replace([], 0.0)
        await upstream.settled.wait()
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(UpstreamError, match="'up' was stopped by a reload"):
            await upstream.request(CALL, CLIENT)
        await slots.wait_for_slot("up", CLIENT.caller.namespace, 1)


@pytest.mark.parametrize("settles_first", [True, False])
async def test_a_call_that_waits_for_its_connection_ends_within_the_drain(
    tmp_path: Path, *, settles_first: bool
) -> None:
    gate = tmp_path / "gate"
    answers: list[object] = []
    server = StdioEndpoint(sys.executable, ("-S", str(RAW), "ok", "--gate", str(gate)))

    async def call() -> None:
        if settles_first:  # as the gateway does before it looks up the tool in the caller's own listing
            await upstream.wait_for_connection(CLIENT)
        answers.append(await upstream.request(CALL, CLIENT))

    async with running(ConnectionSlots(1, NoSessions(), 60.0), server) as registry:
        upstream = registry["up"]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await anyio.wait_all_tasks_blocked()
            registry.replace([], float(BOUND))
            await anyio.wait_all_tasks_blocked()
            gate.touch()
    assert len(answers) == 1

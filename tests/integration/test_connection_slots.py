"""Which connection closes if a limit on dedicated connections is reached."""

from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic

import anyio
import pytest

from mcp_mirror.errors import RefusalReason, UpstreamError
from mcp_mirror.server.sessions import Sessions
from mcp_mirror.upstreams.dedicated import ConnectionSlots

LONG_AGO = -1000.0
PER_UPSTREAM = 4
"""Connections to one upstream."""


@dataclass(eq=False)
class Connection:
    """A connection that closes at once, or when the test frees its slot."""

    slots: ConnectionSlots
    namespace: str
    upstream: str
    last_used: float = LONG_AGO
    is_idle: bool = True
    closes: bool = True
    is_reclaimed: bool = field(default=False, init=False)

    @property
    def connection(self) -> "Connection":
        return self

    @property
    def is_closing(self) -> bool:
        return self.is_reclaimed

    def reclaim(self) -> None:
        self.is_reclaimed = True
        if self.closes:
            self.free()

    def free(self) -> None:
        self.slots.free(self)  # type: ignore[arg-type]  # the part of a connection that slots use


async def connect(slots: ConnectionSlots, principal: str, *, to: str = "up", **how: bool | float) -> Connection:
    await slots.wait_for_slot(to, principal, PER_UPSTREAM)
    connection = Connection(slots, principal, to, **how)  # type: ignore[arg-type]
    slots.take(connection)  # type: ignore[arg-type]  # as above
    return connection


@pytest.fixture
def slots() -> ConnectionSlots:
    return ConnectionSlots(3, Sessions(60.0, monotonic, lambda *_: None, 300.0, requires_auth=False), 60.0)


async def test_the_longest_idle_connection_of_a_principal_makes_room(slots: ConnectionSlots) -> None:
    busy = await connect(slots, "a", is_idle=False, last_used=LONG_AGO - 1)
    later = await connect(slots, "a", to="other", last_used=LONG_AGO + 1)
    first = await connect(slots, "a")
    await connect(slots, "a")
    assert (busy.is_reclaimed, later.is_reclaimed, first.is_reclaimed) == (False, False, True)


async def test_at_a_full_upstream_the_principal_with_the_most_makes_room(slots: ConnectionSlots) -> None:
    greedy = [await connect(slots, "a", last_used=LONG_AGO + number) for number in range(3)]
    modest = await connect(slots, "b", last_used=LONG_AGO - 1)
    await connect(slots, "c")
    assert [one.is_reclaimed for one in greedy] == [True, False, False]
    assert not modest.is_reclaimed


async def test_a_principal_does_not_replace_connections_of_one_with_as_many(slots: ConnectionSlots) -> None:
    for principal in ("a", "a", "b", "b"):
        await connect(slots, principal, is_idle=principal == "a")
    with pytest.raises(UpstreamError, match=r"`limits.connections_per_upstream` \(4\) connections to this upstream"):
        await slots.wait_for_slot("up", "b", PER_UPSTREAM)
    await slots.wait_for_slot("other", "b", PER_UPSTREAM)


async def test_all_connections_in_use_is_an_error_with_advice(slots: ConnectionSlots) -> None:
    for _ in range(3):
        await connect(slots, "a", is_idle=False)
    with pytest.raises(
        UpstreamError, match=r"`limits.connections_per_principal` \(3\).* set `scope: principal`"
    ) as caught:
        await slots.wait_for_slot("up", "a", PER_UPSTREAM)
    assert caught.value.reason is RefusalReason.BUSY
    await connect(slots, "b")


async def test_a_new_connection_waits_for_one_that_is_closing(slots: ConnectionSlots) -> None:
    closing = await connect(slots, "a", closes=False)
    for _ in range(2):
        await connect(slots, "a", is_idle=False)
    made: list[Connection] = []

    async def one_more() -> None:
        made.append(await connect(slots, "a"))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one_more)
            await anyio.wait_all_tasks_blocked()
            assert closing.is_reclaimed
            assert not made
            closing.free()
    assert len(made) == 1


async def test_new_connections_at_the_same_time_replace_one_each(slots: ConnectionSlots) -> None:
    idle = [await connect(slots, "a", closes=False) for _ in range(3)]
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(connect, slots, "a")
            await anyio.wait_all_tasks_blocked()
            replaced = [one for one in idle if one.is_reclaimed]
            assert len(replaced) == 2
            for one in replaced:
                one.free()


async def test_waiting_connections_count_as_those_of_their_principal(slots: ConnectionSlots) -> None:
    greedy = [await connect(slots, "a", closes=False) for _ in range(3)]
    await connect(slots, "b", is_idle=False)
    made: list[Connection] = []

    async def one_more() -> None:
        with suppress(UpstreamError):
            made.append(await connect(slots, "b", is_idle=False))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(one_more)
            await anyio.wait_all_tasks_blocked()
            replaced = [one for one in greedy if one.is_reclaimed]
            assert len(replaced) == 1
            replaced[0].free()
    assert len(made) == 1

"""The guarantees of replicas: each journey checks one with real clients and returns a row with its observations."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

from cluster import BOUND, REPLICAS, Cluster, Trail
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequestParams, ElicitResult
from notices import path_in
from waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from mcp import Client
    from mcp.client.context import ClientRequestContext

RETRIEVE = "retrieve_final_answer_from_memory"
SIZE = 6
TOTAL = float(sum(x + y + z + 0.5 for x in range(SIZE) for y in range(SIZE) for z in range(SIZE)))


async def make(client: Client, name: str = "grid") -> str:
    """The path of a new value."""
    result = await client.call_tool("make_grid_mirrored", {"size": SIZE, "name": name})
    text = result.content[0].text  # type: ignore[union-attr]
    assert not result.is_error, text
    assert "\nThis path " in text or "Result ends." in text, text
    return str(path_in(text))


async def add_up(client: Client, path: str) -> float:
    """What an upstream makes of the value behind a path."""
    result = await client.call_tool("total_mirrored", {"grid": f"{path}/grid"})
    assert not result.is_error, result.content
    return float(json.loads(result.content[0].text))  # type: ignore[union-attr]


async def retrieve(client: Client, path: str) -> str:
    result = await client.call_tool(RETRIEVE, {"memory_path": path})
    assert not result.is_error, result.content
    return str(result.content[0].text)  # type: ignore[union-attr]


async def alternate(cluster: Cluster, rounds: int) -> str:
    """The calls of a client of 2026 go to both replicas in turn, and paths of each work on the other."""
    async with cluster.client() as (client, trail):
        assert client.protocol_version == "2026-07-28"
        made = [(await make(client), trail.of()[-1]) for _ in range(rounds)]
        crossed = 0
        for path, maker in [*made, *made[1:]]:
            assert await add_up(client, path) == TOTAL
            crossed += trail.of()[-1] != maker
        calls = trail.of()
        turns = sum(one != other for one, other in pairwise(calls))
        assert set(calls) == set(REPLICAS)
        assert turns >= 0.8 * (len(calls) - 1), calls
        assert crossed >= rounds / 2
        return f"{len(calls)} calls, {turns} times to the other one ({trail.counted()}); {crossed} paths used there"


async def stick(cluster: Cluster, rounds: int) -> str:
    """All requests of a session of 2025 go to the replica that has opened it; its paths work elsewhere too."""
    homes: list[str] = []
    paths: list[str] = []
    for _ in range(4):
        async with cluster.client(mode="legacy") as (client, trail):
            assert client.protocol_version == "2025-11-25"
            for _ in range(rounds):
                paths.append(await make(client))
                assert await add_up(client, paths[0]) == TOTAL
            assert len({replica for _, replica in trail.steps}) == 1, trail.steps
            homes.append(trail.of()[0])
    assert set(homes) == set(REPLICAS)
    return f"4 sessions on {', '.join(homes)}: each on one; {len(paths)} paths of all"


@dataclass
class Writers:
    """Clients that store values, whatever fails, and remember what was acknowledged."""

    cluster: Cluster
    acknowledged: dict[str, str] = field(default_factory=dict)
    """Names by their paths."""
    failures: int = 0
    _is_over: bool = False

    async def write(self, writer: int) -> None:
        numbers = count()
        while not self._is_over:
            try:
                async with self.cluster.client() as (client, _):
                    while not self._is_over:
                        name = f"{writer}-{next(numbers)}"
                        self.acknowledged[await make(client, name)] = name
            except (Exception, BaseExceptionGroup):  # noqa: BLE001  # whatever a client makes of a broken connection
                self.failures += 1
                await asyncio.sleep(0.05)

    async def grown(self, by: int) -> int:
        """How many were acknowledged before these."""
        before = len(self.acknowledged)
        await until(lambda: len(self.acknowledged) >= before + by, within=3 * BOUND)
        return before

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            for writer in range(4):
                tasks.create_task(self.write(writer))
            yield
            self._is_over = True


async def survive(cluster: Cluster, rounds: int) -> str:
    """A replica, and later Redis, is killed in the midst of writing: what was acknowledged is there."""
    writers = Writers(cluster)
    async with writers.at_work():
        await writers.grown(rounds)
        cluster.kill("one")
        await writers.grown(rounds)
        cluster.redis.kill()
        cluster.redis.start()
        before = await writers.grown(rounds)
    await cluster.in_rotation("two")  # until the gateway has found Redis again, the proxy does not name it
    async with cluster.client() as (client, trail):
        for path, name in writers.acknowledged.items():
            assert await retrieve(client, f"{path}/name") == name
        assert set(trail.of()) == {"two"}
    started = time.monotonic()
    cluster.launch("one")
    await cluster.in_rotation(*REPLICAS)
    return (
        f"{len(writers.acknowledged)} values acknowledged, {before} of them before Redis was killed, and "
        f"{writers.failures} connections broken; no value lost; the replica served again "
        f"{time.monotonic() - started:.1f} s after its start"
    )


async def accept(_context: ClientRequestContext, _params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada", "user_name": "Ada"})


async def ask_again(cluster: Cluster, rounds: int) -> str:
    """A server of 2026 asks by its answer: the call is made again, on the other replica, and is served there."""
    seen: list[str] = []
    async with cluster.client(elicitation_callback=accept) as (client, trail):
        names = [tool.name for tool in (await client.list_tools()).tools]
        (asking,) = (name for name in names if name.startswith("test_input_required"))  # shortened, because it is long
        for _ in range(rounds):
            await _once(client, trail, asking, seen)
    moved = sum(len(set(one.split(" > "))) > 1 for one in seen)
    assert moved, seen
    return f"{len(seen)} calls, rounds on {seen[0]}; {moved} moved to the other one, all served"


async def _once(client: Client, trail: Trail, tool: str, seen: list[str]) -> None:
    before = len(trail.of())
    result = await client.call_tool(tool, {})
    assert not result.is_error, result.content
    seen.append(" > ".join(trail.of()[before:]))


async def ask_live(cluster: Cluster, rounds: int) -> str:
    """A server of 2025 asks while its call is held by one replica: there the answer is served, elsewhere refused."""
    tool = "test_streaming_elicitation_mirrored"
    async with cluster.client(cluster.url_of("one"), elicitation_callback=accept) as (client, _):
        result = await client.call_tool(tool, {})
        assert not result.is_error, result.content
        assert "Ada" in result.content[0].text  # type: ignore[union-attr]
    refused = served = 0
    async with cluster.client(elicitation_callback=accept) as (client, trail):
        for _ in range(rounds):
            before, message = len(trail.of()), None
            try:
                result = await client.call_tool(tool, {})
                assert not result.is_error, result.content
            except MCPError as error:
                message = str(error)
            replicas = set(trail.of()[before:])
            assert (message is None) == (len(replicas) == 1), (message, replicas)
            assert message is None or "another gateway process runs it. Make the call again." in message
            refused += message is not None
            served += message is None
        assert await add_up(client, await make(client)) == TOTAL
    assert refused, "no call was answered on the other replica"
    return f"served where it is held; of {rounds} calls through the proxy {served} served, {refused} refused by name"


JOURNEYS: dict[str, Callable[[Cluster, int], Awaitable[str]]] = {
    "a client of 2026": alternate,
    "a client of 2025": stick,
    "a server of 2026 asks": ask_again,
    "a server of 2025 asks": ask_live,
    "killed: a replica, then Redis": survive,
}


async def run_all(cluster: Cluster, rounds: int) -> list[tuple[str, str]]:
    return [(name, await journey(cluster, rounds)) for name, journey in JOURNEYS.items()]


def table(rows: list[tuple[str, Any]]) -> str:
    return "\n".join(["| replicas | seen |", "|---|---|", *(f"| {name} | {seen} |" for name, seen in rows)])

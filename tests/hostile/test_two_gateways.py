"""Two gateways on one disk store: killed at random, with little space, and values that expire soon.

A log outside of the gateways has every acknowledged path. Afterwards each path leads to its value, or the store's rules
explain its absence: the value expired at least `ttl` after its last use, was evicted as the oldest value of an owner
over a limit, or was deleted on request. `make soak` runs this for five minutes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import re
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import httpx2
import pytest
from gateway_processes import COMMAND
from http_sessions import META
from redis_process import free_port
from tests.end_to_end.conftest import Configured, configured, raw
from tests.integration.conftest import audit
from waiting import until

from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.base import Tombstone
from mcp_mirror.stores.disk.store import DiskStore
from mcp_mirror.stores.quotas import NAMESPACE_TOMBSTONES
from mcp_mirror.types import Descriptor

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.conftest import Audit

__all__ = ["audit", "configured", "raw"]

SECONDS: Final = float(os.environ.get("SOAK_GATEWAYS", "6"))
LONG: Final = 100.0
"""Seconds from which on everything that may happen to a value does, on a busy machine too."""
SEED: Final = int(os.environ.get("SOAK_SEED", "14"))
NAMES: Final = ("ann", "bob", "cem", "dan")
CLIENTS: Final = 2
"""Clients of each principal."""
TTL: Final = 5.0
POLICY: Final = {"ttl": TTL, "max_bytes": 2_400_000, "max_values": 100, "namespace_values": 40, "fsync": False}
SIZES: Final = (10, 2_000, 30_000, 70_000, 200_000)
PAUSE: Final = 0.3
"""Seconds that a client waits at most between two calls: so that the tombstones of five minutes are kept."""
WAVE: Final = 20.0
"""Seconds of load, and then of fewer calls: at full load, all values are evicted before they expire."""
LOADED: Final = 12.0
CALM: Final = 40.0
"""How much longer a client waits while there are fewer calls."""
SLACK: Final = 0.25
"""Seconds by which clocks of two processes and the time of a change may differ."""
BOUND: Final = 60.0


@dataclass
class Value:
    """What is known outside of a value that a client tried to store."""

    owner: str
    text: str
    began: float
    path: str = ""
    """Empty where no gateway acknowledged it: it may be stored or not."""
    used: float = 0.0
    """When its last use that was answered began, in seconds since the epoch."""
    used_until: float = 0.0
    """When its last use ended, answered or not."""
    forgetting: bool = False
    forgotten: bool = False
    size: int = 0


@dataclass
class Run:
    """The gateways, the clients and the log outside."""

    config: Path
    ports: tuple[int, int]
    log: Path
    random: random.Random
    values: list[Value] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    processes: dict[int, Process] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    ids: Iterator[int] = field(default_factory=lambda: iter(range(10**9)))

    async def start(self, port: int) -> None:
        """Start a gateway and wait until it listens."""
        with (self.log.parent / f"gateway-{port}.log").open("ab") as errors:
            command = (COMMAND, "serve", "--config", str(self.config), "--http", f"127.0.0.1:{port}")
            self.processes[port] = await asyncio.create_subprocess_exec(*command, stderr=errors)

        async def connect() -> asyncio.StreamWriter | None:
            assert self.processes[port].returncode is None, "a gateway did not start: see its log"
            with suppress(OSError):
                return (await asyncio.open_connection("127.0.0.1", port))[1]
            return None

        (await until(connect)).close()

    async def stop(self, port: int, number: signal.Signals) -> None:
        process = self.processes[port]
        with suppress(ProcessLookupError):
            process.send_signal(number)
        await asyncio.wait_for(process.wait(), BOUND)
        del self.processes[port]  # not before it has ended: this task may be cancelled, and `stop_all` kills the rest

    async def kill_and_restart(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.5, 4.0))
            port = self.random.choice(self.ports)
            how = signal.SIGTERM if self.counts["SIGKILL"] > 4 * self.counts["SIGTERM"] else signal.SIGKILL
            await self.stop(port, how)
            self.counts[how.name] += 1
            await self.start(port)

    async def call(self, http: httpx2.AsyncClient, owner: str, tool: str, **arguments: Any) -> str | None:
        """The text of an answer of one of the gateways; None where none came."""
        params = {"name": tool, "arguments": arguments, "_meta": META}
        message = {"jsonrpc": "2.0", "id": next(self.ids), "method": "tools/call", "params": params}
        headers = {
            "accept": "application/json, text/event-stream",
            "authorization": f"Bearer {token_of(owner)}",
            "content-type": "application/json",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": tool,
        }
        try:
            answer = await http.post(
                f"http://127.0.0.1:{self.random.choice(self.ports)}/mcp", json=message, headers=headers
            )
            text = answer.text.partition("data: ")[2] or answer.text
            return str(json.loads(text)["result"]["content"][0]["text"])
        except (httpx2.HTTPError, ValueError, KeyError):
            self.counts["no answer"] += 1
            await asyncio.sleep(0.05)
            return None

    async def act(self, owner: str) -> None:
        """A client that stores, uses and forgets values until cancelled."""
        async with httpx2.AsyncClient(timeout=BOUND) as http:
            own: list[Value] = []
            began = time.monotonic()
            while True:
                is_calm = (time.monotonic() - began) % WAVE > LOADED
                await asyncio.sleep(self.random.uniform(0, PAUSE) * (CALM if is_calm else 1))
                dice = self.random.random()
                if dice < 0.6 or not own:
                    await self.put(http, owner, own)
                elif dice < 0.97:
                    await self.use(http, self.random.choice(own[-8:]))
                else:
                    await self.forget(http, own.pop(self.random.randrange(len(own))))

    async def put(self, http: httpx2.AsyncClient, owner: str, own: list[Value]) -> None:
        word = hashlib.sha256(self.random.randbytes(16)).hexdigest()[:16]
        text = f"{word} {self.random.choice('ab') * self.random.choice(SIZES)}"
        if self.random.random() < 0.2:  # equal values share a file
            text = f"equal {'c' * 150_000}"
        value = Value(owner, text, time.time(), size=len(text) + 2)
        self.values.append(value)
        answer = await self.call(http, owner, "memory_put", value=text)
        value.used_until = time.time()
        if answer is None:
            return
        found = re.search(r"memory_put-[0-9a-f-]{36}", answer)
        if found is None:
            self.counts["refused"] += 1
            self.wrong.append(answer[:300])
            return
        value.path, value.used = found[0], value.began
        own.append(value)
        self.counts["acknowledged"] += 1
        with self.log.open("a") as log:
            log.write(f"{owner} {value.path} {hashlib.sha256(text.encode()).hexdigest()}\n")

    async def use(self, http: httpx2.AsyncClient, value: Value) -> None:
        began = time.time()
        answer = await self.call(http, value.owner, "memory_read", memory_path=value.path, limit=20)
        value.used_until = time.time()
        if answer is None:
            return
        if value.text[:16] in answer:
            value.used = began
            self.counts["read"] += 1
        elif " expired at " in answer or "was evicted" in answer:
            self.counts["read of what is gone"] += 1
        else:
            self.wrong.append(f"{value.path}: {answer[:300]}")

    async def forget(self, http: httpx2.AsyncClient, value: Value) -> None:
        value.forgetting = True
        answer = await self.call(http, value.owner, "memory_forget", memory_path=value.path)
        value.used_until = time.time()
        if answer is not None and "Forgotten" in answer:
            value.forgotten = True
            self.counts["forgotten"] += 1


def token_of(owner: str) -> str:
    return f"mcpm_{owner}-0123456789abcdef0123456789abcdef"


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 240)
async def test_every_acknowledged_path_of_two_killed_gateways_is_accounted_for(
    configured: Configured, raw: Any, tmp_path: Path, audit: Audit
) -> None:
    hashes = {name: f"sha256:{hashlib.sha256(token_of(name).encode()).hexdigest()}" for name in NAMES}
    config = configured(
        {"raw": raw()},
        store={"kind": "disk", **POLICY},
        auth={"tokens": hashes},
        limits={"calls_per_minute": "none"},
        server={"drain": 1},
    )
    run = Run(config, (free_port(), free_port()), tmp_path / "acknowledged", random.Random(SEED))  # noqa: S311  # no secret
    async with AsyncExitStack() as stack:
        await asyncio.gather(*map(run.start, run.ports))
        stack.push_async_callback(stop_all, run)
        async with asyncio.TaskGroup() as tasks:
            busy = [tasks.create_task(run.act(name)) for name in NAMES for _ in range(CLIENTS)]
            busy.append(tasks.create_task(run.kill_and_restart()))
            await asyncio.sleep(SECONDS)
            for one in busy:
                one.cancel()
    assert run.wrong == []
    await verify(run, tmp_path / "store")
    audit(tmp_path / "store")
    print(f"\n{SECONDS:g} s, seed {SEED}: {dict(sorted(run.counts.items()))}")  # noqa: T201  # shown by `make soak`
    assert run.counts["acknowledged"] > 0
    if SECONDS >= LONG:
        assert all(run.counts[what] for what in ("SIGKILL", "SIGTERM", "whole", "evicted", "expired", "forgotten"))


async def stop_all(run: Run) -> None:
    for port in tuple(run.processes):
        await run.stop(port, signal.SIGKILL)


@dataclass
class Found:
    """What became of the acknowledged values."""

    whole: list[Value] = field(default_factory=list)
    gone: list[tuple[Value, Tombstone]] = field(default_factory=list)
    lost: list[Value] = field(default_factory=list)
    """Values of which nothing is left."""


async def verify(run: Run, folder: Path) -> None:
    """Hold each acknowledged value against the store and the rules."""
    opened, found = time.time(), await look_up(run, folder)
    run.counts["whole"] = len(found.whole)
    run.counts["nothing is left"] = len(found.lost)
    for value in found.lost:
        check_lost(value, [tombstone.at for one, tombstone in found.gone if one.owner == value.owner])
    for value, tombstone in found.gone:
        run.counts[tombstone.reason] += 1
        if tombstone.reason == "expired":
            assert tombstone.at >= min(value.used + TTL, opened) - SLACK, (value.path, tombstone.at - value.used)
        else:
            check_evicted(run, value, tombstone.at, found)


async def look_up(run: Run, folder: Path) -> Found:
    """Read every acknowledged value; each that is there has its bytes."""
    found = Found()
    async with DiskStore(StorePolicy(kind="disk", **POLICY), time.time, folder) as store:  # type: ignore[arg-type]
        for value in (one for one in run.values if one.path):
            namespace = json.dumps(["token", value.owner])
            known = await store.describe(namespace, value.path)
            if isinstance(known, Descriptor):
                assert not value.forgotten, value.path
                blob = bytes(await store.read(namespace, value.path) or b"")
                assert blob == json.dumps(value.text).encode(), value.path
                found.whole.append(value)
            elif isinstance(known, Tombstone):
                found.gone.append((value, known))
            else:
                found.lost.append(value)
    return found


def check_lost(value: Value, tombstones: list[float]) -> None:
    """Only a value that was forgotten, or whose tombstone was the oldest of too many, leaves nothing."""
    if value.forgetting:
        return
    assert len(tombstones) >= NAMESPACE_TOMBSTONES - CLIENTS, f"{value.path} was lost"
    assert value.began < min(tombstones), f"{value.path} was lost"


def check_evicted(run: Run, value: Value, at: float, found: Found) -> None:
    """A bound was reached, its owner kept a fair share at least, and nothing older of the owner stayed."""
    ends = {id(one): tombstone.at for one, tombstone in found.gone} | {id(one): one.used_until for one in found.lost}
    present = [one for one in run.values if one.began <= at + SLACK and ends.get(id(one), at) >= at - SLACK]
    own = [one for one in present if one.owner == value.owner]
    older = [one for one in own if one.path and one.used_until + SLACK < value.began and not one.forgetting]
    stayed = [one.path for one in older if ends.get(id(one), at + BOUND) > at + SLACK]
    assert stayed == [], f"{value.path} went before {stayed}"
    size, total, largest = sum(one.size for one in own), sum(one.size for one in present), max(SIZES) + 100
    share = POLICY["max_bytes"] / len(NAMES)
    is_over_own = len(own) >= POLICY["namespace_values"] or size + largest > share
    is_over_all = len(present) >= POLICY["max_values"] or total + largest > POLICY["max_bytes"]
    assert is_over_own or is_over_all, (value.path, len(own), size, len(present), total)
    if not is_over_own:  # then it was the largest holder
        assert len(own) >= POLICY["max_values"] / len(NAMES), (value.path, len(own), size)

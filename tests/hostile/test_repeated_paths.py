"""A few hundred bytes of arguments that name one value very many times cost neither its size each time nor a stall."""

from __future__ import annotations

import gc
import json
import re
import resource
import sys
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import pytest
from tests.hostile.bystander import HttpClient, Waits, bystander
from tests.hostile.conftest import ROOT
from tests.load import measure_pause, slowness

from mcp_mirror import Mirror

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Serve
    from tests.hostile.conftest import Budget

GIANT = {"command": sys.executable, "args": ["-S", "-m", "tests.end_to_end.servers.hostile", "ok"], "cwd": str(ROOT)}
SIZE, TIMES = 6_000_000, 60
STALL = 0.25
"""Seconds of a pass of the event loop on an idle machine. Before, these calls stalled for several times as long."""
MEMORY = 500 << 20
"""Bytes: the process that reads the stored value maps its file, which has 360 MB. Before, another copy was made."""
CALLS: dict[str, tuple[str, Any, str]] = {
    "put": ("memory_put", lambda paths, _: {"value": paths}, r"array, 360 MB"),
    "patch": (
        "memory_edit",
        lambda paths, path: {"memory_path": path, "patch": [{"op": "add", "path": "/b", "value": paths}]},
        r"The values that this edit inserts have 360 MB together; an edit inserts up to 67\.1 MB",
    ),
    "merge": ("memory_edit", lambda paths, path: {"memory_path": path, "merge": {"b": paths}}, "inserts up to"),
    "script": ("memory_run", lambda paths, _: {"inputs": {"x": paths}, "code": "len(x)"}, r"`code\.values`"),
    "query": (
        "memory_query",
        lambda paths, _: {"inputs": {"x": paths}, "sql": "SELECT 1 FROM x"},
        r"The inputs are too large together",
    ),
}
"""The tool of each call, its arguments from the repeated path and that of an object, and its answer."""


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", CALLS)
async def test_a_value_that_one_call_names_many_times_takes_its_memory_once(
    configured: Configured, serve: Serve, raw: Any, budget: Budget, kind: str
) -> None:
    tool, build, expected = CALLS[kind]
    async with serve(configured({"giant": GIANT, "good": raw()}), "-v") as served:

        def store() -> tuple[str, str]:
            with HttpClient(served.url) as client:
                answers = client.text("giant_mirrored", {"size": SIZE}), client.text("memory_put", {"value": {"a": 1}})
            path, other = (re.findall(r"[\w-]+-[0-9a-f]{8}-[0-9a-f-]{27}", answer)[0] for answer in answers)
            return path, other

        def run(path: str, other: str) -> tuple[str, Waits]:
            with HttpClient(served.url) as client, bystander(served.url, "good_hear_mirrored") as waits:
                return client.text(tool, build([path] * TIMES, other)), waits

        paths = await anyio.to_thread.run_sync(store)
        memory = MEMORY if kind == "put" else 200 << 20
        async with budget(served, f"6 MB {TIMES} times: {kind}", "360 MB", stall=STALL, memory=memory) as row:
            answer, waits = await anyio.to_thread.run_sync(run, *paths)
            row.waited, row.outcome = waits.longest, "stored" if kind == "put" else "refused"
        assert re.search(expected, answer), answer[:300]
        assert not waits.failures


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits the handles of another process")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("store", ["memory", "disk"])
async def test_many_paths_of_one_value_take_few_file_handles(
    configured: Configured, serve: Serve, raw: Any, store: str
) -> None:
    config = configured({"giant": GIANT, "good": raw()}, store={"kind": store})
    async with serve(config) as served:
        resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, (150, 150))

        def run() -> list[str]:
            with HttpClient(served.url) as client:
                text = client.text("giant_mirrored", {"size": 400_000})
                path = re.findall(r"[\w-]+-[0-9a-f]{8}-[0-9a-f-]{27}", text)[0]
                array = client.text("memory_put", {"value": [["item"] * 10] * 300 + [path]})
                items = re.findall(r"[\w-]+-[0-9a-f]{8}-[0-9a-f-]{27}", array)[0]
                return [
                    client.text("memory_put", {"value": [path] * 200}),
                    client.text("memory_put", {"value": [f"{items}/{at}" for at in range(300)]}),
                    client.text("memory_run", {"inputs": {"x": [path] * 30}, "code": "len(x)"}),
                    client.text("good_hear_mirrored", {"text": path, "more": [path] * 200}),
                ]

        answers = await anyio.to_thread.run_sync(run)
    assert not any("handle" in answer or "Too many" in answer for answer in answers), answers
    assert all("array" in answer for answer in answers[:2]), answers
    assert answers[2].startswith("30")


@pytest.mark.timeout(60)
async def test_a_value_that_one_call_names_many_times_is_converted_once() -> None:
    mirror = Mirror()
    rows = [{"a": number, "b": "text"} for number in range(1_000)]

    @mirror.tool
    def literal() -> str:
        return f"One object:\n{{'rows': {rows}}}"

    @mirror.tool
    def count(objects: list[dict[str, Any]]) -> str:
        return f"{sum(one == {'rows': rows} for one in objects)} objects"

    async with mirror:
        path = (await mirror.call("literal_mirrored", {})).path
        answers: list[str] = []

        async def run() -> None:
            answers.append((await mirror.call("count_mirrored", {"objects": [path] * 100})).text)

        assert await measure_pause(run()) < STALL * slowness()
        assert answers == ["100 objects"]


@pytest.mark.skipif(sys.platform != "linux", reason="counts written bytes in /proc")
async def test_a_value_that_would_be_too_large_is_refused_before_it_is_written() -> None:
    config = {"upstreams": {}, "memory_tools": "all", "limits": {"max_message_bytes": "64MiB"}}
    async with Mirror(upstreams=config) as mirror:
        path = await mirror.put("x" * (1 << 20))
        before = _count_written_bytes()
        answer = await mirror.call("memory_put", {"value": [path] * 200})
        assert (
            answer.text
            == "The value would be larger than 67,108,864 bytes (`limits.max_message_bytes`). Make a smaller one."
        )
        assert _count_written_bytes() - before < 1 << 20


async def test_arguments_that_would_be_too_large_are_refused_before_the_call() -> None:
    mirror = Mirror(upstreams={"upstreams": {}, "limits": {"max_message_bytes": "64MiB"}})
    calls = []

    @mirror.tool
    def count(texts: list[str]) -> int:
        calls.append(len(texts))
        return len(texts)

    async with mirror:
        path = await mirror.put("x" * (1 << 20))
        refused = await mirror.call("count_mirrored", {"texts": [path] * 200})
        assert "the limit is 67,108,864 (`limits.max_message_bytes`). Pass fewer or smaller values." in refused.text
        assert (await mirror.call("count_mirrored", {"texts": [path] * 20})).text == "20"
    assert calls == [20]


FAILING: dict[str, dict[str, Any]] = {
    "double_mirrored": {"number": "PATH"},
    "fail_mirrored": {"text": "PATH"},
    "memory_grep": {"memory_path": "PATH", "pattern": "("},
    "memory_query": {"memory_path": "PATH", "expression": "["},
    "memory_edit": {"memory_path": "PATH", "replace": [{"old": "no", "new": "y"}]},
    "memory_read": {"memory_path": "PATH/none"},
    "memory_put": {"value": "PATH/none"},
    "memory_run": {"inputs": {"x": "PATH"}, "code": "x.no()"},
}


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files in /proc")
@pytest.mark.parametrize("tool", FAILING)
async def test_failed_calls_leave_no_value_open(tool: str, tmp_path: Path) -> None:
    config = {"upstreams": {}, "memory_tools": "all", "store": {"kind": "disk", "path": str(tmp_path / "store")}}
    mirror = Mirror(upstreams=config)

    @mirror.tool
    def double(number: int) -> int:
        return 2 * number

    @mirror.tool
    def fail(text: str) -> str:
        raise ValueError(text[:3])

    if tool == "memory_run":
        pytest.importorskip("pydantic_monty")
    async with mirror:
        path = await mirror.put("x" * (1 << 20))
        arguments = json.loads(json.dumps(FAILING[tool]).replace("PATH", path))

        async def call() -> None:
            assert (await mirror.call(tool, arguments)).is_error

        await call()
        gc.collect()
        gc.disable()
        try:
            before = _count_open_files()
            for _ in range(20):
                await call()
            assert _count_open_files() <= before + 2
        finally:
            gc.enable()


def _count_open_files() -> int:
    """Count open files without the databases of the store, which a timer opens once."""
    opened = []
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            opened.append(str(handle.readlink()))
    return sum(".sqlite" not in path for path in opened)


def _count_written_bytes() -> int:
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["wchar"])


@pytest.mark.parametrize("tool", ["memory_put", "memory_edit", "memory_run", "memory_query"])
async def test_memory_tools_accept_as_many_paths_as_other_tools(tool: str) -> None:
    async with Mirror(upstreams={"upstreams": {}, "memory_tools": "all"}) as mirror:
        path = (await mirror.call("memory_put", {"value": {"a": 1}})).path
        paths = [path] * 1_001
        arguments: dict[str, dict[str, Any]] = {
            "memory_put": {"value": paths},
            "memory_edit": {"memory_path": path, "merge": {"b": paths}},
            "memory_run": {"inputs": {"x": paths[:1_000], "y": path}, "code": "1"},
            "memory_query": {"inputs": {"x": paths}, "sql": "SELECT 1"},
        }
        answer = await mirror.call(tool, arguments[tool])
        assert answer.is_error
        assert "1,001 memory paths; one call may have 1,000 (`limits.max_pointers`)" in answer.text


async def test_long_paths_are_not_stored_with_each_value_that_they_made() -> None:
    mirror, keys = Mirror(), [f"{'k' * 50_000}{number}" for number in range(20)]

    @mirror.tool
    def keep(values: list[int]) -> str:
        return f"{sum(values)} " * 2_000

    async with mirror:
        path = await mirror.put(dict.fromkeys(keys, 1))
        arguments = {"values": [f"{path}/{key}" for key in keys]}
        tracemalloc.start()
        try:
            for _ in range(20):
                assert (await mirror.call("keep_mirrored", arguments)).path
            gc.collect()
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept < 10 << 20  # before, a megabyte for each value of a few kilobytes
        more = {"values": [*arguments["values"], arguments["values"][0]]}
        assert "name a key by its position" in (await mirror.call("keep_mirrored", more)).text
        by_position = {"values": [f"{path}/~#{number}" for number in range(20)]}
        assert (await mirror.call("keep_mirrored", by_position)).path

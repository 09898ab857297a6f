"""The inspection of listings and the validation of arguments, in slices and in worker processes."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from refused_processes import refuse_processes
from tests.hostile.schemas import blocks, doubling, page, tool
from tests.load import find_longest_stall

from mcp_mirror.core.catalog import CatalogRules, build_catalog
from mcp_mirror.core.schemas.validation import SchemaCheck
from mcp_mirror.settings.limits import UpstreamBounds
from mcp_mirror.settings.policies import MirrorPolicy
from mcp_mirror.settings.upstreams import StdioEndpoint, UpstreamPolicy
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.system.event_loop import MeasuredLoop, measure_stalls
from mcp_mirror.system.slices import finish
from mcp_mirror.workers import schemas
from mcp_mirror.workers.schemas import SchemaWorkers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcp_mirror.core.schemas.tool_inspection import InspectedTool


POLICY = UpstreamPolicy("up", StdioEndpoint("x"), deny=("denied",), bounds=UpstreamBounds(max_tools=100))
PLAIN = tool("plain", {"properties": {"n": {"type": "integer"}}})


@pytest.fixture
async def workers() -> AsyncIterator[SchemaWorkers]:
    with ChildWatchdog() as child_watchdog:
        async with aclosing(SchemaWorkers(child_watchdog)) as opened:
            yield opened


@pytest.fixture
def without_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker process has as much time as a busy machine takes."""
    for name in ("_DEADLINE", "_COMPILATION", "_INSPECTION"):
        monkeypatch.setattr(schemas, name, 60.0)


async def inspected(workers: SchemaWorkers, *tools: Any) -> list[InspectedTool]:
    items = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in tools]
    return list(await workers.inspect_tools(POLICY, items))


async def entry_of(workers: SchemaWorkers, given: Any) -> InspectedTool:
    found = await inspected(workers, given)
    (entry,) = finish(build_catalog([(POLICY, found)], CatalogRules(MirrorPolicy()))).entries.values()
    return entry.inspected


@pytest.mark.usefixtures("without_deadlines")
async def test_tools_are_inspected_in_the_order_of_the_listing(workers: SchemaWorkers) -> None:
    recursive, broken = tool("recursive", page()), tool("broken", {"properties": []})
    found = await inspected(workers, PLAIN, recursive, broken, b"[]", b'{"name":5}', tool("denied", {}))
    assert [one.name for one in found] == ["plain", "recursive", "broken", "", "", "denied"]
    assert [one.check is None for one in found[:3]] == [False, True, True]
    assert [one.schema_error is None for one in found[:2]] == [True, True]
    assert str(found[2].schema_error).startswith("its input schema is not valid")


async def test_a_definition_of_many_megabytes_takes_no_time(workers: SchemaWorkers) -> None:
    named = json.dumps(tool("named", {"x": "\n" * 10_000_000})).encode()
    unnamed = b'{"description":"' + b"\\n" * 10_000_000 + b'","name":"last"}'
    seconds: list[float] = []
    for _ in range(3):  # others may share the processor
        began = time.thread_time()
        found = await workers.inspect_tools(POLICY, [named, unnamed])
        seconds.append(time.thread_time() - began)
    assert min(seconds) < 0.02
    assert [one.name for one in found] == ["named", ""]
    assert all("`limits.max_tool_bytes`" in str(one.rejection) for one in found)


async def test_a_known_definition_is_not_inspected_again(workers: SchemaWorkers) -> None:
    first, second = await inspected(workers, PLAIN), await inspected(workers, PLAIN)
    assert first[0] is second[0]


async def test_a_tool_is_inspected_once_another_configuration_admits_it(workers: SchemaWorkers) -> None:
    denied = tool("denied", {"properties": {"n": {"type": "integer"}}})
    assert [one.name for one in await inspected(workers, denied)] == ["denied"]
    (found,) = await workers.inspect_tools(replace(POLICY, deny=()), [json.dumps(denied).encode()])
    assert found.twin_schema["properties"].keys() == {"n"}


@pytest.mark.slow
async def test_a_tool_is_served_once_its_listing_is_within_the_limit(workers: SchemaWorkers) -> None:
    many = [tool(f"t{n}", {"x": [[]] * 29_000}) for n in range(18)]
    assert "the listing has more than" in str((await inspected(workers, *many, PLAIN))[-1].rejection)
    assert (await inspected(workers, PLAIN))[0].rejection is None


@pytest.mark.usefixtures("without_deadlines")
async def test_a_large_tool_is_inspected_again_if_no_process_was_free(
    workers: SchemaWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = tool("large", {"description": "x" * 50_000})
    with monkeypatch.context() as patched:
        patched.setattr(schemas, "_Listing", partial(schemas._Listing, seconds_left=0.0))  # noqa: SLF001  # uses up its time
        assert "its inspection takes more than" in str((await inspected(workers, large))[0].rejection)
    assert (await inspected(workers, large))[0].rejection is None


@pytest.mark.usefixtures("without_deadlines")
async def test_a_large_schema_is_inspected_in_a_worker(workers: SchemaWorkers) -> None:
    properties = {f"p{n}": {"type": "integer", "description": "x" * 100} for n in range(200)}
    (found,) = await inspected(workers, tool("large", {"properties": properties}))
    assert found.check is not None
    assert found.check({"p1": "x"})
    assert found.twin_schema["properties"]["p1"]["anyOf"][0]["type"] == "integer"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (tool("large", {"description": "x" * (1 << 20)}), "max_tool_bytes"),
        (tool("many", {"x": [[]] * 40_000}), "has 40,003 objects and arrays; 30,000 is the limit"),
    ],
)
async def test_a_tool_over_a_budget_is_not_served(workers: SchemaWorkers, given: Any, why: str) -> None:
    found = await inspected(workers, given, PLAIN)
    assert [one.name for one in found] == [given["name"], "plain"]
    assert why in str(found[0].rejection)
    assert found[1].rejection is None


async def test_a_schema_that_takes_too_long_to_compile_is_not_validated(workers: SchemaWorkers) -> None:
    patterns = {f"p{n}": {"pattern": f"(?=a)(a{{1,200}}){{1,200}}{n}"} for n in range(3000)}
    found = await inspected(workers, tool("patterns", {"properties": patterns}), PLAIN)
    assert "to compile" in str(found[0].schema_error)
    assert len(found[0].twin_schema["properties"]) == 3000
    assert found[1].check is not None


async def test_no_more_tools_than_the_limit_are_inspected(workers: SchemaWorkers) -> None:
    assert len(await inspected(workers, *(tool(f"t{n}", {}) for n in range(150)))) == 101


@pytest.mark.usefixtures("without_deadlines")
async def test_a_recursive_schema_is_validated_in_a_worker(workers: SchemaWorkers) -> None:
    entry = await entry_of(workers, tool("edit", page()))
    for _ in range(2):
        assert await workers.validate(entry, json.dumps(blocks(6, "tabs")).encode(), "alice") == ()
        (fault,) = await workers.validate(entry, json.dumps(blocks(6, "cardd")).encode(), "alice")
        assert "'type' is \"cardd\"" in str(fault)


@pytest.mark.usefixtures("without_deadlines")
async def test_an_error_of_large_arguments_is_written_in_a_worker(
    workers: SchemaWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = await entry_of(workers, PLAIN)
    large, valid = (json.dumps({key: ["x" * 100] * 1000}).encode() for key in ("n", "other"))
    monkeypatch.setattr(SchemaCheck, "__call__", None)
    (fault,) = await workers.validate(entry, large, "alice")
    assert str(fault).startswith('n: ["xxx')
    assert await workers.validate(entry, valid, "alice") == ()


@pytest.mark.alone
@pytest.mark.skipif(sys.platform == "win32", reason="no loop is measured there")
def test_the_error_about_values_of_large_enums_stalls_no_other_call() -> None:
    alike = "a" * 99 + "b" * 99
    options = [f"{alike[at:]}{alike[:at]}{at}" for at in range(60)]
    names = "abcde"
    enums = tool("pick", {"properties": {name: {"enum": options} for name in names}})

    async def explain() -> float:
        with ChildWatchdog() as child_watchdog:
            async with aclosing(SchemaWorkers(child_watchdog)) as workers:
                entry = await entry_of(workers, enums)
                measure_stalls()
                wrong = json.dumps(dict.fromkeys(names, "ab" * 100)).encode()
                assert len(await workers.validate(entry, wrong, "alice")) == len(names)
                return await find_longest_stall()

    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        longest = runner.run(explain())
    assert longest < 0.1


async def test_slow_arguments_are_left_to_the_upstream(
    workers: SchemaWorkers, caplog: pytest.LogCaptureFixture
) -> None:
    entry = await entry_of(workers, tool("any", doubling("anyOf")))
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            assert await workers.validate(entry, b'{"a":"x"}', "alice") == ()
    assert [record.getMessage() for record in caplog.records] == [
        "Validating the arguments of 'any' takes more than 200 ms, so only the upstream validates them."
    ]


@pytest.mark.usefixtures("without_deadlines")
async def test_a_lack_of_file_handles_ends_no_validation_of_later_calls(
    workers: SchemaWorkers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recursive, wrong = tool("edit", page() | {"description": "x" * 50_000}), json.dumps(blocks(6, "cardd")).encode()
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        refuse_processes(patched)
        (found,) = await inspected(workers, recursive)
        assert "cannot start: the gateway has no free file handle" in str(found.rejection)
    entry = await entry_of(workers, recursive)
    await workers.aclose()
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        refuse_processes(patched)
        for _ in range(5):
            assert await workers.validate(entry, wrong, "alice") == ()
    (fault,) = await workers.validate(entry, wrong, "alice")
    assert "'type' is \"cardd\"" in str(fault)
    assert caplog.records == []


async def test_a_tool_without_validation_accepts_any_arguments(workers: SchemaWorkers) -> None:
    entry = await entry_of(workers, {"name": "a"})
    assert await workers.validate(entry, b"[]", "alice") == ()
    plain = await entry_of(workers, PLAIN)
    assert await workers.validate(plain, b'{"n":"x"}', "alice")
    assert await workers.validate(plain, b'{"n":' + b"1" * 5000 + b"}", "alice") == ()

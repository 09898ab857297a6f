"""The library in a program: local functions, a real MCP server, and one memory for both."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import pydoc
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import thread_time
from typing import Annotated, Any, NamedTuple, TypedDict

import mcp_types as types
import numpy as np
import pytest
import pytest_asyncio
from gateway_processes import forked_python
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from msgspec.structs import replace
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel
from tests.end_to_end.conftest import BOUND
from waiting import until

import mcp_mirror
from mcp_mirror import OWN_TOOLS, Mirror, Reply
from mcp_mirror.app import open_application
from mcp_mirror.errors import ConfigError, MirrorError, StoreError, ToolError
from mcp_mirror.functions.signatures import read_function
from mcp_mirror.security.pins import Pins
from mcp_mirror.settings.policies import Config, MirrorPolicy
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.settings.upstreams import ToolPolicy
from mcp_mirror.tokens import estimate_tokens
from mcp_mirror.upstreams.local import LocalFunctions

SERVERS = Path(__file__).parent / "servers"
TABLE = {"hour": [float(hour) for hour in range(5000)], "celsius": [hour / 7 for hour in range(5000)]}
PATIENT = {"startup_wait": BOUND}
"""Of `mirror`: on a busy machine a server starts in more than the ten seconds of the default."""


class Range(BaseModel):
    least: float
    most: float = 100


@dataclass
class Station:
    name: str
    table: dict[str, list[float]]


class ToolParam(TypedDict):
    """A part of the type of a tool in the Anthropic SDK."""

    name: str
    input_schema: dict[str, Any]


def path_in(reply: Reply) -> str:
    assert reply.path is not None, reply
    assert reply.path in reply.text
    return reply.path


class Panic(BaseException):
    """An error of a library in Rust, such as polars: it is not an `Exception`."""


def with_functions(**options: Any) -> Mirror:
    mirror = Mirror(**options)

    @mirror.tool
    async def load_table(city: str) -> dict[str, list[float]]:
        """A year of a city."""
        if city != "Bonn":
            raise ToolError("Only Bonn is measured.")
        return TABLE

    @mirror.tool(name="within", description="Those in a range.", timeout=5)
    def select(values: list[float], bounds: Range) -> list[float]:
        assert type(bounds) is Range
        return [value for value in values if bounds.least <= value <= bounds.most]

    @mirror.tool
    def average(values: list[float]) -> float:
        return sum(values) / len(values)

    @mirror.tool
    def fail(kind: str) -> None:
        raise {"key": KeyError, "stop": StopIteration, "exit": SystemExit, "panic": Panic}[kind]("of the inside")

    @mirror.tool
    async def leave(code: int = 4) -> None:
        if not code:
            raise Panic("of a library")
        sys.exit(code)

    return mirror


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mirror() -> AsyncIterator[Mirror]:
    async with with_functions() as mirror:
        yield mirror


async def test_a_value_goes_by_path_from_function_to_function_and_to_a_server(chemist: Any) -> None:
    async with with_functions(
        upstreams={"upstreams": {"maker": chemist}, "memory_tools": "all", "mirror": PATIENT}
    ) as mirror:
        stored = await mirror.call("load_table_mirrored", {"city": "Bonn"})
        path = path_in(stored)
        assert not stored.is_error
        assert '"celsius" array[5000]' in stored.text
        assert stored.content == ({"type": "text", "text": stored.text},)
        assert (await mirror.call("average_mirrored", {"values": f"{path}/hour"})).text == "2499.5"
        # what a model writes is JSON text; a key of a path deep in the arguments
        chosen = await mirror.call("within_mirrored", f'{{"values": "{path}/celsius", "bounds": {{"least": 2}}}}')
        assert await mirror.read(path_in(chosen)) == [value for value in TABLE["celsius"] if 2 <= value <= 100]
        # a function's value to a server's tool, and a server's to a function
        measured = await mirror.call("measure_mirrored", {"text": f"{path}/hour"})
        assert measured.text == str(len(json.dumps(TABLE["hour"], separators=(",", ":"))))
        grid = path_in(await mirror.call("make_grid_mirrored", {"size": 12}))
        assert (await mirror.call("average_mirrored", {"values": f"{grid}/grid/0/0"})).text == "6.0"
        # the tools for stored values work on both
        answer = await mirror.call("retrieve_final_answer_from_memory", {"memory_path": f"{path}/hour/3"})
        assert answer.text == "3.0"
        assert path in (await mirror.call("memory_list")).text


async def test_a_reply_names_path_and_preview_of_a_stored_value(chemist: Any) -> None:
    async with with_functions(
        upstreams={"upstreams": {"maker": chemist}, "memory_tools": "all", "mirror": PATIENT}
    ) as mirror:
        stored = await mirror.call("load_table_mirrored", {"city": "Bonn"})
        assert await mirror.read(str(stored.path)) == TABLE
        assert stored.preview is not None
        assert stored.preview in stored.text
        assert '"celsius" array[5000]' in stored.preview
        assert str(stored.path) not in stored.preview
        made = await mirror.call("memory_put", {"value": [1, 2]})
        assert await mirror.read(str(made.path)) == [1, 2]
        for name, arguments in (
            ("average_mirrored", {"values": [1, 2]}),
            ("load_table_mirrored", {"city": "Rome"}),
            ("retrieve_final_answer_from_memory", {"memory_path": f"{stored.path}/hour/3"}),
            ("memory_list", {}),
            ("averag", {}),
        ):
            reply = await mirror.call(name, arguments)
            assert (reply.path, reply.preview) == (None, None), name


async def test_a_number_written_as_text_is_a_number_beside_paths_too(mirror: Mirror) -> None:
    """A twin admits text everywhere, for paths; the tool itself would never have been called so."""
    path = path_in(await mirror.call("load_table_mirrored", {"city": "Bonn"}))
    bounds = {"least": "2495", "most": " 2497.0"}
    chosen = await mirror.call("within_mirrored", {"values": f"{path}/hour", "bounds": bounds})
    assert json.loads(chosen.text) == [2495, 2496, 2497]
    assert (await mirror.call("average_mirrored", {"values": "[1, 2]"})).text == "1.5"
    wrong = await mirror.call("within_mirrored", {"values": f"{path}/hour", "bounds": {"least": "warm"}})
    assert wrong.is_error
    assert '"warm" is not of type "number"' in wrong.text
    item = await mirror.call("average_mirrored", {"values": '[1, "x"]'})
    assert 'values.1: "x" is not of type "number"' in item.text


async def test_a_null_for_an_optional_argument_is_left_out() -> None:
    """Many clients write null for an argument without a value, which most schemas refuse."""
    mirror = Mirror()

    @mirror.tool
    def cut(text: str, size: int = 3, end: str | None = "...") -> str:
        return f"{text[:size]}{end}"

    async with mirror:
        path = await mirror.put("abcdef")
        assert (await mirror.call("cut_mirrored", {"text": path, "size": None, "end": None})).text == "abcNone"
        assert (await mirror.call("cut_mirrored", {"size": None, "text": path})).text == "abc..."
        missing = await mirror.call("cut_mirrored", {"text": None})
        assert missing.is_error
        assert "text" in missing.text


async def test_a_tool_function_is_unchanged_and_gets_values_of_its_types() -> None:
    mirror = Mirror()
    seen: list[Any] = []

    @mirror.tool
    def keep(station: Station, data: bytes = b"") -> Station:
        seen.append((station, data, threading.current_thread()))
        return station

    @mirror.tool
    async def pack(size: int) -> bytes:
        return b"\xff" * size

    station = Station("Bonn", TABLE)
    assert keep(station) is station
    assert await pack(2) == b"\xff\xff"
    async with mirror:
        path = await mirror.put({"name": "Bonn", "table": TABLE})
        packed = path_in(await mirror.call("pack_mirrored", {"size": 90_000}))
        reply = await mirror.call("keep_mirrored", {"station": path, "data": packed})
        assert seen[1][:2] == (station, b"\xff" * 90_000)
        assert seen[1][2] is not threading.current_thread()
        assert await mirror.read(path_in(reply)) == {"name": "Bonn", "table": TABLE}


class Peak(NamedTuple):
    name: str
    height: int = 0


@pytest.mark.parametrize("stations", [None, [["Bonn", 60]], [{"name": "Bonn", "height": 60}]])
async def test_named_tuples_of_one_function_fit_another(stations: Any) -> None:
    async with Mirror() as mirror:

        @mirror.tool(capture="always")
        def find() -> list[Peak]:
            return [Peak("Bonn", 60)]

        @mirror.tool
        def name_first(stations: list[Peak]) -> str:
            return f"{stations[0].name} {stations[0].height}"

        found = await mirror.call("find_mirrored")
        assert str(await mirror.call("name_first_mirrored", {"stations": stations or found.path})) == "Bonn 60"


@pytest.mark.parametrize("arguments", [None, "", "null", " null\n", b"null", "{}"])
async def test_a_call_without_arguments(arguments: Any) -> None:
    async with Mirror() as mirror:

        @mirror.tool
        def count() -> int:
            return 7

        assert str(await mirror.call("count_mirrored", arguments)) == "7"


@pytest.mark.parametrize(
    "arguments", [{"text": ["\ud83d a", "\\ud83d \U0001f600"]}, '{"text": ["\\ud83d a", "\\\\ud83d \\ud83d\\ude00"]}']
)
async def test_a_cut_emoji_in_arguments_is_replaced(arguments: Any) -> None:
    async with Mirror() as mirror:

        @mirror.tool
        def join(text: list[str]) -> str:
            return ", ".join(text)

        assert str(await mirror.call("join_mirrored", arguments)) == "\ufffd a, \\ud83d \U0001f600"


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("load_table_mirrored", {"city": "Rome"}, "Only Bonn is measured."),
        ("fail_mirrored", {"kind": "key"}, "fail failed: KeyError: 'of the inside'"),
        ("fail_mirrored", {"kind": "stop"}, "fail failed: StopIteration: of the inside"),
        ("fail_mirrored", {"kind": "exit"}, "fail failed: SystemExit: of the inside"),
        ("fail_mirrored", {"kind": "panic"}, "fail failed: Panic: of the inside"),
        ("leave_mirrored", {}, "leave failed: SystemExit: 4"),
        ("leave_mirrored", {"code": 0}, "leave failed: Panic: of a library"),
        ("average_mirrored", {"values": []}, "average failed: ZeroDivisionError: division by zero"),
        (
            "average_mirrored",
            {},
            "The arguments do not fit tool 'average_mirrored': \"values\" is a required property.",
        ),
        ("average_mirrored", {"values": None}, "tool 'average_mirrored': values: null is not of type \"array\"."),
        ("average_mirrored", {"values": float("nan")}, "'average_mirrored': values: null is not of type \"array\"."),
        ("within_mirrored", {"values": [1], "bounds": {"least": None}}, 'bounds.least: null is not of type "number".'),
        ("average_mirrored", '{"values": ', "The arguments are not a JSON object: "),
        ("average_mirrored", "[1]", "The arguments are not a JSON object: "),
        ("average_mirrored", [1], "The arguments are not a JSON object: Expected `object`, got `array`"),
        ("average_mirrored", 5, "The arguments are not a JSON object: Expected `object`, got `int`"),
        ("average_mirrored", {"values": object()}, "A value of type dict cannot be encoded as JSON: "),
        ("averag", {}, "Unknown tool 'averag'. Nearest are average_mirrored."),
        ("within_mirrored", {"values": ["x" * 300_000], "bounds": {"least": 1}}, "values.0: Input should be a valid n"),
    ],
)
async def test_errors_of_calls_are_replies(mirror: Mirror, name: str, arguments: Any, message: str) -> None:
    reply = await mirror.call(name, arguments)
    assert reply.is_error
    assert message in str(reply)
    assert "Traceback" not in reply.text
    assert __file__ not in reply.text
    assert not (await mirror.call("load_table_mirrored", {"city": "Bonn"})).is_error


async def wait() -> None:
    """Await a task that was cancelled."""
    waiting = asyncio.create_task(asyncio.sleep(BOUND))
    waiting.cancel()
    await waiting


async def test_a_task_that_a_function_awaits_may_be_cancelled() -> None:
    mirror = Mirror()
    mirror.tool(wait)

    @mirror.tool
    def drop() -> None:
        raise asyncio.CancelledError

    async with mirror:
        for name in ("wait", "drop"):
            reply = await mirror.call(f"{name}_mirrored")
            assert (reply.is_error, reply.text) == (True, f"{name} failed: CancelledError")


async def test_a_program_that_was_cancelled_may_call_tools_while_it_cleans_up() -> None:
    mirror = Mirror()
    mirror.tool(wait)

    async def run_program() -> str:
        try:
            await asyncio.sleep(BOUND)
        finally:
            return (await mirror.call("wait_mirrored")).text  # noqa: B012  # the cancellation ends here

    async with mirror:
        program = asyncio.create_task(run_program())
        await asyncio.sleep(0)
        program.cancel()
        assert await program == "wait failed: CancelledError"


async def test_a_call_names_the_conversation_that_its_reply_goes_into() -> None:
    config = {"context": {"window": 3000, "reserve": "20 %"}, "upstreams": {}}
    async with with_functions(upstreams=config) as mirror:
        arguments = {"values": list(range(100)), "bounds": {"least": 0, "most": 90}}
        replies = [await mirror.call("within_mirrored", arguments, conversation="one") for _ in range(30)]
        lengths = [len(reply.text) for reply in replies]
        assert lengths[-1] < lengths[0]
        assert sum(estimate_tokens(reply.text) for reply in replies) < 3000
        again = await mirror.call("within_mirrored", arguments, conversation={"id": "one", "reset": True})
        assert len(again.text) == lengths[0]
        wrong = await mirror.call("within_mirrored", arguments, conversation={"name": "one"})
        assert wrong.is_error
        assert wrong.text.startswith("`conversation` must be an id of up to")


async def test_functions_that_are_not_async_do_not_hold_up_the_others() -> None:
    mirror = Mirror()
    together = threading.Barrier(8, timeout=BOUND)

    @mirror.tool
    def meet() -> int:
        return together.wait()

    async with mirror, asyncio.timeout(BOUND):
        met = await asyncio.gather(*(mirror.call("meet_mirrored") for _ in range(8)))
    assert sorted(reply.text for reply in met) == [str(number) for number in range(8)]


async def test_a_call_ends_at_its_timeout_and_where_its_caller_gives_up() -> None:
    mirror = Mirror()
    ended, begun, go_on = asyncio.Event(), asyncio.Event(), threading.Event()

    @mirror.tool(timeout=0.05)
    def sleep() -> None:
        go_on.wait(BOUND)

    @mirror.tool
    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with mirror, asyncio.timeout(BOUND):
        reply = await mirror.call("sleep_mirrored")
        go_on.set()
        assert reply.is_error
        assert reply.text.startswith("Tool 'sleep' did not answer within 0.05 s (`timeout`); it may have had effects: ")
        calling = asyncio.create_task(mirror.call("wait_mirrored"))
        await begun.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert ended.is_set()


async def test_wrapped_coroutines_are_awaited_and_content_is_passed() -> None:
    mirror = Mirror()

    async def later() -> str:
        return "in time"

    @mirror.tool
    def hidden() -> Any:
        return later()

    @mirror.tool
    def block() -> types.TextContent:
        return types.TextContent(type="text", text="a block")

    @mirror.tool
    def result() -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(type="text", text="refused")], is_error=True)

    @mirror.tool(capture="never")
    def shown() -> list[str]:
        return ["x" * 1000] * 1100

    @mirror.tool(inline_budget=10_000, capture="large")
    def long() -> str:
        return "word " * 2000

    async with mirror:
        assert json.loads((await mirror.call("shown_mirrored")).text) == shown()
        assert (await mirror.call("long_mirrored")).text == long()
        assert (await mirror.call("hidden_mirrored")).text == "in time"
        assert (await mirror.call("block_mirrored")).text == "a block"
        refused = {"type": "text", "text": "refused"}
        assert await mirror.call("result_mirrored") == Reply("refused", is_error=True, content=(refused,))


async def test_items_that_come_one_by_one_are_a_list() -> None:
    mirror = Mirror()
    threads = []

    @mirror.tool
    async def count(to: int) -> AsyncIterator[int]:
        for number in range(to):
            threads.append(threading.current_thread())
            yield number

    @mirror.tool
    def squares(to: int) -> Iterator[int]:
        for number in range(to):
            threads.append(threading.current_thread())
            yield number * number

    @mirror.tool
    def hidden() -> Any:
        return count(3)

    async with mirror:
        assert (await mirror.call("count_mirrored", {"to": 3})).text == "[0,1,2]"
        assert (await mirror.call("squares_mirrored", {"to": 3})).text == "[0,1,4]"
        assert [thread is threading.current_thread() for thread in threads] == [True] * 3 + [False] * 3
        assert (await mirror.call("hidden_mirrored")).text == "[0,1,2]"


async def test_an_array_is_lists_and_its_shape_is_known() -> None:
    mirror = Mirror()

    @mirror.tool
    async def ramp(size: int) -> NDArray[np.float64]:
        return np.arange(size) / 2

    @mirror.tool
    async def total(values: list[float]) -> float:
        return sum(values)

    @mirror.tool
    def odd() -> Any:
        return {"odd": object()}

    async with mirror:
        small, large = [await mirror.call("ramp_mirrored", {"size": size}) for size in (3, 100_000)]
        assert small.text == "[0.0,0.5,1.0]"
        assert (small.path, small.schema) == (None, {"type": "numpy.ndarray", "shape": [3], "dtype": "float64"})
        assert large.schema == {"type": "numpy.ndarray", "shape": [100_000], "dtype": "float64"}
        assert (await mirror.call("total_mirrored", {"values": large.path})).text == str(sum(range(100_000)) / 2)
        failed = await mirror.call("odd_mirrored")
        assert failed.is_error
        assert "A value of type dict cannot be encoded as JSON: " in failed.text


async def test_stored_bytes_are_media_and_are_read_as_bytes() -> None:
    mirror = Mirror()
    picture, sheet = b"\x89PNG\r\n\x1a\n" + bytes(100), b"PK\3\4" + bytes(100)

    @mirror.tool
    def size_of(data: bytes) -> int:
        return len(data)

    async with mirror:
        paths = [await mirror.put(picture), await mirror.put(sheet)]
        assert [await mirror.read(path) for path in paths] == [picture, sheet]
        assert (await mirror.call("size_of_mirrored", {"data": paths[1]})).text == "104"
        shown = await mirror.call("retrieve_final_answer_from_memory", {"memory_path": paths[0]})
        assert shown.content[0]["mimeType"] == "image/png"
        table = await mirror.put(np.arange(6).reshape(2, 3))
        assert await mirror.read(f"{table}/1/2") == 5


def test_a_result_type_without_json_is_refused_where_it_is_declared() -> None:
    mirror = Mirror()
    with pytest.raises(MirrorError, match=r"Function 'find' cannot be a tool: it returns .*Lock, which cannot be enc"):

        @mirror.tool
        def find() -> dict[str, asyncio.Lock]:
            raise NotImplementedError


async def test_tools_are_listed_as_each_api_takes_them_and_late_ones_too(chemist: Any) -> None:
    async with with_functions(
        upstreams={"upstreams": {"maker": chemist}, "memory_tools": {"deny": ["memory_*"]}, "mirror": PATIENT}
    ) as one:
        names = [tool["function"]["name"] for tool in one.tools()]
        assert names[:4] == ["load_table_mirrored", "within_mirrored", "average_mirrored", "fail_mirrored"]
        assert names[-1] == "retrieve_final_answer_from_memory"
        assert "make_grid_mirrored" in names
        for form in ("openai-responses", "anthropic", "mcp"):
            assert [tool["name"] for tool in one.tools(form)] == names
        params: list[ToolParam] = one.tools("anthropic")  # type checkers accept it, as for the types of all providers
        assert params[0]["input_schema"]["type"] == "object"
        definition = next(tool for tool in one.tools("mcp") if tool["name"] == "load_table_mirrored")
        assert definition["description"] == "A year of a city. Reads memory paths."
        assert "outputSchema" not in definition
        assert "Ask for grids." in one.instructions

        @one.tool
        def total(numbers: list[float]) -> float:
            return sum(numbers)

        # the server has a tool of this name: both get the name of where they are from
        names = [tool["name"] for tool in one.tools("mcp")]
        assert {"local_functions_total_mirrored", "maker_total_mirrored"} < set(names)
        assert (await one.call("local_functions_total_mirrored", {"numbers": [1, 2]})).text == "3.0"


async def test_functions_stay_where_the_configuration_changes() -> None:
    functions = LocalFunctions()
    functions.add(read_function(path_in, "find", None, ToolPolicy()))
    config = Config(store=StorePolicy(kind="memory"))
    async with open_application(config, functions=functions) as application:
        await application.upstreams.wait_for_attempts(BOUND)
        assert list(application.gateway.state.catalog.entries) == ["find_mirrored"]
        application.reload(replace(config, mirror=MirrorPolicy(suffix="_twin")), Pins(mode="block"))
        assert list(application.gateway.state.catalog.entries) == ["find_twin"]


def test_functions_without_options_cost_nothing_for_the_tools_of_others() -> None:
    functions, named = LocalFunctions(), ToolPolicy(capture="always")
    for number in range(100):
        functions.add(read_function(path_in, f"find{number}", None, ToolPolicy()))
    functions.add(read_function(path_in, "named", None, named))
    assert functions.policy.overrides == (("named", named),)


async def test_a_function_may_return_the_reply_of_another_tool() -> None:
    mirror = Mirror()

    @mirror.tool
    def count(most: int) -> list[int]:
        return list(range(most))

    @mirror.tool
    async def count_far(most: int | None = None) -> Reply:
        return await mirror.call("count_mirrored", {} if most is None else {"most": most})

    async with mirror:
        far = await mirror.call("count_far_mirrored", {"most": 10_000})
        assert "array[10000]" in far.text
        assert len(await mirror.read(far.text.splitlines()[0].strip('"'))) == 10_000
        failed = await mirror.call("count_far_mirrored")
        assert failed.is_error
        assert '"most" is a required property' in failed.text


async def test_a_function_that_is_added_late_costs_little_beside_many_others() -> None:
    async with Mirror() as mirror:
        began = thread_time()
        for number in range(200):
            mirror.tool(path_in, name=f"find{number}")
        assert thread_time() - began < 4  # before: 11
        assert "find199_mirrored" in {tool["name"] for tool in mirror.tools("mcp")}


async def test_each_namespace_has_its_own_memory(mirror: Mirror) -> None:
    path = await mirror.put([1, "two"], namespace="one")
    assert await mirror.read(path, namespace="one") == [1, "two"]
    with pytest.raises(ToolError, match="No value is stored under"):
        await mirror.read(path, namespace="other")
    other = await mirror.call("average_mirrored", {"values": path}, namespace="other")
    assert "No value is stored under" in other.text


async def test_a_path_that_is_not_a_text_is_an_error(mirror: Mirror) -> None:
    reply = await mirror.call("average_mirrored", {"values": [1.0, 2.0]})
    for mistake, kind in ((reply, "Reply"), (reply.path, "NoneType")):
        with pytest.raises(MirrorError, match=rf"The path is a {kind}\. Use `reply\.path`; if it is None, `reply"):
            await mirror.read(mistake)  # type: ignore[arg-type]  # the mistake


async def test_an_empty_namespace_is_an_error(mirror: Mirror) -> None:
    for use in (mirror.call("average_mirrored", {"values": [1]}, namespace=""), mirror.put(1, namespace="")):
        with pytest.raises(MirrorError, match=r"^The namespace is empty\. Pass a text, such as"):
            await use


async def test_functions_have_no_preview_where_the_mirror_has_none() -> None:
    async with with_functions(upstreams={"mirror": {"preview": False}}) as mirror:
        reply = await mirror.call("load_table_mirrored", {"city": "Bonn"})
        assert '"~#0" array[5000]' in reply.text
        assert "celsius" not in reply.text
        failed = await mirror.call("load_table_mirrored", {"city": "Rome"})
        assert failed.is_error
        assert "Bonn" not in failed.text


async def test_an_evicted_value_of_the_program_is_not_called_a_result_of_a_tool() -> None:
    async with Mirror(store={"kind": "memory", "max_values": 1}) as mirror:
        path = await mirror.put("first")
        await mirror.put("second")
        with pytest.raises(ToolError) as raised:
            await mirror.read(path)
    assert str(raised.value).endswith("It was made by memory_put: make it again and use the new path.")


async def test_a_namespace_that_is_not_a_text_is_an_error(mirror: Mirror) -> None:
    no_user: Any = None
    with pytest.raises(TypeError, match=r"^The namespace is a NoneType\. Pass a text"):
        await mirror.call("average_mirrored", {"values": [1]}, namespace=no_user)


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_clear_deletes_the_values_of_one_namespace(kind: str, tmp_path: Path) -> None:
    store = {"kind": kind, "path": str(tmp_path)} if kind == "disk" else {"kind": kind}
    async with Mirror(store=store) as mirror:
        leaving = [await mirror.put([number] * 50_000, namespace="leaving") for number in range(3)]
        staying = await mirror.put([1], namespace="staying")
        assert await mirror.clear(namespace="leaving") == 3
        for path in leaving:
            with pytest.raises(ToolError, match="Nothing is stored yet: first call the tool that gets the data"):
                await mirror.read(path, namespace="leaving")
        assert await mirror.clear(namespace="leaving") == 0
        assert await mirror.read(staying, namespace="staying") == [1]
    with pytest.raises(MirrorError, match="is closed"):
        await mirror.clear(namespace="staying")


async def test_a_namespace_that_no_store_can_write_is_an_error(tmp_path: Path) -> None:
    async with with_functions(store={"kind": "disk", "path": str(tmp_path)}) as mirror:
        for use in (mirror.call("average_mirrored", namespace="\ud800"), mirror.put(1, namespace="\ud800")):
            with pytest.raises(MirrorError, match=r"The namespace '\\ud800' is not valid Unicode"):
                await use
        assert await mirror.read(await mirror.put([1])) == [1]


async def test_values_outlive_a_mirror_only_on_disk(tmp_path: Path) -> None:
    for store in ({"kind": "disk", "path": str(tmp_path)}, StorePolicy(kind="disk", path=str(tmp_path))):
        async with Mirror(store=store) as mirror:
            path = await mirror.put({"kept": True})
        async with Mirror(store=store) as mirror:
            assert await mirror.read(f"{path}/kept") is True
    mirror = Mirror()
    async with mirror:
        path = await mirror.put("gone")
    async with mirror:
        with pytest.raises(ToolError, match="Nothing is stored yet: first call the tool that gets the data"):
            await mirror.read(path)


async def test_a_key_may_end_with_what_is_removed_around_paths() -> None:
    got: list[int] = []
    mirror = Mirror(upstreams={"memory_tools": {"set": "all"}})

    @mirror.tool
    def take(value: int) -> str:
        got.append(value)
        return "ok"

    async with mirror:
        path = await mirror.put({"Name": 1, "Name ": 2, 'say "hi"': {"": 3, "\n": 4}, "last": 5})
        for part, value in (
            ("Name", 1),
            ("Name ", 2),
            ('say "hi"/', 3),
            ('say "hi"/\n', 4),
            ("last\n", 5),
            ('last"', 5),
        ):
            assert await mirror.read(f"{path}/{part}") == value
            assert not (await mirror.call("take_mirrored", {"value": f"{path}/{part}"})).is_error
            assert got.pop() == value
            reply = await mirror.call("retrieve_final_answer_from_memory", {"memory_path": f"{path}/{part}"})
            assert reply.text == str(value)
        assert await mirror.read(f"`{path}/Name `") == 1


async def test_a_picture_of_a_server_is_read_as_its_bytes() -> None:
    mirror = Mirror(upstreams=Config(mirror=MirrorPolicy(capture="always")))

    @mirror.tool
    def draw() -> types.ImageContent:
        return types.ImageContent(type="image", data="//77", mime_type="image/png")

    @mirror.tool
    def attach() -> types.EmbeddedResource:
        contents = types.TextResourceContents(uri="a:b", text="said")
        return types.EmbeddedResource(type="resource", resource=contents)

    async with mirror:
        reply = await mirror.call("draw_mirrored")
        assert await mirror.read(path_in(reply)) == b"\xff\xfe\xfb"
        assert [block["type"] for block in reply.content] == ["image", "text"]
        assert await mirror.read(path_in(await mirror.call("attach_mirrored"))) == "said"


async def test_the_pictures_of_a_value_are_shown_as_pictures() -> None:
    mirror = Mirror()
    data = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(90_000)).decode()

    @mirror.tool
    def shoot() -> list[types.ContentBlock]:
        contents = types.BlobResourceContents(uri="a:b", mime_type="image/png", blob=data)
        return [
            types.TextContent(type="text", text="Two pages"),
            types.ImageContent(type="image", data=data, mime_type="image/png"),
            types.EmbeddedResource(type="resource", resource=contents),
            types.TextContent(type="text", text='{"pages": 2}'),
        ]

    @mirror.tool
    def read(count: int) -> dict[str, Any]:
        return {"data": data.replace("iVBO", "AAAA"), "parts": [{"type": "image", "data": data}, "a " * count]}

    async def show(path: str, tool: str = "retrieve_final_answer_from_memory") -> Sequence[Mapping[str, Any]]:
        return (await mirror.call(tool, {"memory_path": path})).content

    async with mirror:
        path = path_in(await mirror.call("shoot_mirrored"))
        texts = [{"type": "text", "text": text} for text in ("Two pages", '{"pages": 2}')]
        picture = {"type": "image", "mimeType": "image/png", "data": data}
        shown = await show(path)
        assert [shown[0], shown[1], shown[3]] == [texts[0], picture, texts[1]]
        assert shown[2]["resource"]["blob"] == data
        for part in ("1", "1/data", "2/resource/blob"):
            assert await show(f"{path}/{part}") == (picture,)
        listed = (await show(path, "memory_read"))[0]["text"].splitlines()
        assert listed[1].startswith("1: (image/png, 0x0, 90 kB: take its path)")
        read_whole = [(await show(f"{path}/{part}", "memory_read"))[0]["text"] for part in ("1", "1/data", "2")]
        assert all("image/png, 0x0, 90 kB. Use the path as the argument of a tool." in text for text in read_whole)
        assert "retrieve_final_answer_from_memory" in read_whole[0]
        plain = path_in(await mirror.call("read_mirrored", {"count": 10}))
        assert "answers are limited to" in (await show(f"{plain}/data"))[0]["text"]
        assert [block["type"] for block in await show(f"{plain}/parts")] == ["image", "text"]
        many = path_in(await mirror.call("read_mirrored", {"count": 50_000}))
        assert "answers are limited to" in (await show(f"{many}/parts"))[0]["text"]


@pytest.mark.parametrize("kind", ["function", "thread", "server", "script", "other loop"])
async def test_calls_that_run_when_the_mirror_closes_end_with_the_cause(kind: str, tmp_path: Path) -> None:
    started, released = asyncio.Event(), threading.Event()
    server = {"command": sys.executable, "args": ["-S", str(SERVERS / "raw.py"), "ok"]}
    mirror = Mirror(upstreams={"upstreams": {"raw": server}, "mirror": PATIENT})

    @mirror.tool
    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    @mirror.tool
    def block() -> None:
        loop.call_soon_threadsafe(started.set)
        released.wait(BOUND)

    loop = asyncio.get_running_loop()
    marks = {"started": str(tmp_path / "started"), "until": str(tmp_path / "never")}
    calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        "function": lambda: mirror.call("wait_mirrored"),
        "thread": lambda: mirror.call("block_mirrored"),
        "server": lambda: mirror.call("hang_mirrored", marks),
        "script": lambda: mirror.run("await tools.wait_mirrored()"),
        "other loop": lambda: asyncio.to_thread(asyncio.run, mirror.call("wait_mirrored")),
    }
    try:
        async with asyncio.timeout(BOUND):
            async with mirror:
                call = asyncio.create_task(calls[kind]())
                await (until((tmp_path / "started").exists) if kind == "server" else started.wait())
            with pytest.raises(MirrorError, match="This Mirror was closed before the call ended"):
                await call
    finally:
        released.set()


@pytest.mark.parametrize("name", ["fail_mirrored", "leave_mirrored"])
async def test_the_log_of_the_program_gets_the_traceback_of_a_function(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with with_functions() as mirror:
        reply = await mirror.call(name, {"kind": "key"} if name == "fail_mirrored" else {})
        await mirror.call("load_table_mirrored", {"city": "Rome"})  # a message for the model
    (record,) = [one for one in caplog.records if one.name == "mcp_mirror.upstreams.local"]
    assert (record.levelname, record.getMessage().split()[1]) == ("WARNING", name.removesuffix("_mirrored"))
    assert "Traceback" in caplog.text
    assert Path(__file__).name in caplog.text
    assert "Traceback" not in reply.text


async def test_the_log_of_the_program_describes_each_call(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "mcp_mirror")
    async with with_functions() as mirror:
        await mirror.call("load_table_mirrored", {"city": "Bonn"})
        await mirror.call("no_such_tool")
    stored, unknown = (one for one in caplog.records if one.name == "mcp_mirror.gateway.stages.call_log")
    assert re.fullmatch(
        r"call tool=load_table_mirrored upstream=local functions ms=\d+ bytes=\d+ tokens=\d+ kept_out=\d{4,} "
        r"path=[0-9a-f]{16} outcome=stored correlation=[0-9a-f]{16}",
        stored.getMessage(),
    )
    assert "tool=(unknown) upstream=- " in unknown.getMessage()
    assert vars(stored)["members"]["outcome"] == "stored"


async def test_use_outside_the_context_names_the_next_step() -> None:
    mirror = with_functions()
    before = "This Mirror is not open yet: use it within `async with mirror:`."
    with pytest.raises(MirrorError, match=before):
        await mirror.call("average_mirrored")
    with pytest.raises(MirrorError, match=before):
        mirror.tools()
    async with mirror:
        with pytest.raises(MirrorError, match="This Mirror is open already: use that one, or make another"):
            await mirror.__aenter__()
        with pytest.raises(MirrorError, match="open already"):
            await mirror.serve_stdio()
        with pytest.raises(MirrorError, match=r"Unknown tool format 'gpt'\."):
            mirror.tools("gpt")  # type: ignore[arg-type]  # the mistake
    with pytest.raises(MirrorError, match=r"This Mirror is closed: use it within `async with mirror:`"):
        await mirror.put(1)
    with pytest.raises(MirrorError, match="A tool with the name 'average' exists already"):
        mirror.tool(path_in, name="average")


def test_a_lambda_of_a_prompt_or_notebook_may_be_defined_again() -> None:
    program = """
from mcp_mirror import Mirror
mirror = Mirror()
mirror.tool(lambda x: x, name="same")
mirror.tool(lambda x: x + 1, name="same")
def add():
    mirror.tool(lambda x: x, name="same")
add()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert ended.stderr.count(b"A tool with the name 'same' exists already") == 1
    assert b"in add" in ended.stderr


CONFIGURATION_AS_STORE = r"^Mirror\(store\): this is a configuration. Give it as `upstreams`: Mirror\(upstreams=...\).$"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"store": "dsk"}, r"^Mirror\(store='dsk'\): expected memory, disk or redis, or a mapping such as {'kind': "),
        ({"store": "redis://:word@example.com"}, r"^Mirror\(store\): expected memory, disk or redis, or a mapping"),
        ({"store": 5}, r"^Mirror\(store\): expected memory, disk or redis, .*, got int$"),
        ({"store": {"kind": "dsk"}}, r"^Mirror\(store\): store.kind: expected one of memory, disk, redis, got "),
        ({"store": {"kynd": "disk"}}, r"^Mirror\(store\): store.kynd: unknown key; did you mean 'kind'\?$"),
        ({"store": {"upstreams": {}}}, CONFIGURATION_AS_STORE),
        ({"store": {"mcpServers": {}}}, CONFIGURATION_AS_STORE),
        ({"store": {"files": {"command": "npx"}}}, CONFIGURATION_AS_STORE),
        ({"store": "mcp-mirror.yaml"}, CONFIGURATION_AS_STORE),
        ({"store": Path("mcp-mirror.yaml")}, CONFIGURATION_AS_STORE),
        (
            {"upstreams": {"one": {"comand": "x"}}},
            r"\nMirror\(upstreams\): upstreams.one.comand: .* did you mean 'command'",
        ),
        ({"upstreams": {"mirror": {"sufix": ""}}}, r"mirror.sufix: unknown key; did you mean 'suffix'"),
        ({"upstreams": {"one": object()}}, r"Mirror\(upstreams\): expected only texts, numbers, booleans, lists"),
        ({"upstreams": "nowhere.yaml"}, "nowhere.yaml: the configuration cannot be read"),
    ],
)
def test_an_unusable_configuration_is_an_error_immediately(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Mirror(**options)


async def test_program_errors_pass_through_and_a_failed_start_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with with_functions():
            raise ZeroDivisionError
    (tmp_path / "file").write_text("")
    mirror = Mirror(store={"kind": "disk", "path": str(tmp_path / "file")})
    with pytest.raises(StoreError, match=r"The store in .* failed"):
        async with mirror:
            pytest.fail("it was opened")


async def test_a_mirror_works_across_tasks_and_event_loops() -> None:
    mirror = with_functions()
    async with asyncio.timeout(BOUND):
        await asyncio.create_task(mirror.__aenter__())
        path = path_in(await mirror.call("load_table_mirrored", {"city": "Bonn"}))

        def elsewhere() -> Reply:
            return asyncio.run(mirror.call("average_mirrored", {"values": f"{path}/hour"}))

        assert (await asyncio.to_thread(elsewhere)).text == "2499.5"
        await asyncio.create_task(mirror.__aexit__(None, None, None))


def test_a_call_while_the_loop_of_the_mirror_rests_is_an_error() -> None:
    async def call(mirror: Mirror) -> None:
        async with asyncio.timeout(BOUND):
            await mirror.call("average_mirrored", {"values": [1.0]})

    mirror, loop = with_functions(), asyncio.new_event_loop()
    try:
        loop.run_until_complete(mirror.__aenter__())
        with pytest.raises(MirrorError, match=r"The event loop that opened this Mirror does not run now\. Open"):
            asyncio.run(call(mirror))
        loop.run_until_complete(call(mirror))
        loop.run_until_complete(mirror.__aexit__(None, None, None))
    finally:
        loop.close()


async def test_functions_call_through_the_mirror_themselves() -> None:
    mirror = with_functions()

    @mirror.tool
    async def twice(city: str) -> str:
        reply = await mirror.call("load_table_mirrored", {"city": city})
        return (await mirror.call("average_mirrored", {"values": f"{path_in(reply)}/hour"})).text

    async with mirror:
        assert (await mirror.call("twice_mirrored", {"city": "Bonn"})).text == "2499.5"


async def test_plain_functions_that_call_others_have_threads_for_these() -> None:
    mirror = with_functions()

    @mirror.tool
    def inner(number: int) -> int:
        return number

    @mirror.tool(timeout=BOUND)
    def outer(number: int) -> str:
        return asyncio.run(mirror.call("inner_mirrored", {"number": number})).text

    async with asyncio.timeout(BOUND / 2), mirror:
        replies = await asyncio.gather(*(mirror.call("outer_mirrored", {"number": at}) for at in range(100)))
    assert [reply.text for reply in replies] == [str(at) for at in range(100)]


async def test_a_function_that_hangs_in_many_threads_is_not_called_again() -> None:
    mirror, released, calls, ended = Mirror(), threading.Event(), list[int](), list[int]()

    @mirror.tool(timeout=0.5)
    def hang(number: int) -> int:
        calls.append(number)
        released.wait(BOUND)
        ended.append(number)
        return number

    @mirror.tool
    def answer() -> str:
        return "at once"

    async with mirror, asyncio.timeout(BOUND):
        try:
            texts = [""]
            while not texts[-1].startswith("Tool 'hang' was not called: "):
                several = (mirror.call("hang_mirrored", {"number": 0}) for _ in range(100))
                texts = [reply.text for reply in await asyncio.gather(*several)]
            assert 40 <= len(calls) < 80
            assert (await mirror.call("answer_mirrored")).text == "at once"
        finally:
            released.set()
        await until(lambda: len(ended) == len(calls))
        assert (await mirror.call("hang_mirrored", {"number": 1})).text == "1"


async def test_a_thousand_calls_at_once_do_not_cross() -> None:
    mirror = Mirror()

    @mirror.tool
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    async with mirror, asyncio.timeout(BOUND):
        replies = await asyncio.gather(*(mirror.call("double_mirrored", {"number": n}) for n in range(1000)))
    assert [reply.text for reply in replies] == [str(2 * number) for number in range(1000)]


async def test_a_port_that_does_not_exist_is_an_error_with_the_next_step(mirror: Mirror) -> None:
    with pytest.raises(MirrorError, match=r"99999 is not a port: ports end at 65535\. Choose another"):
        await mirror.serve_http(port=99_999)


async def test_clients_reach_the_same_memory_over_http() -> None:
    mirror = with_functions()
    served: asyncio.Queue[str] = asyncio.Queue()
    async with mirror, asyncio.timeout(BOUND):
        serving = asyncio.create_task(mirror.serve_http(announce=served.put_nowait))
        path = await mirror.put(TABLE)
        async with Client(await served.get()) as client:
            listed = [tool.name for tool in (await client.list_tools()).tools]
            assert listed == [tool["name"] for tool in mirror.tools("mcp")]
            assert OWN_TOOLS.issuperset(name for name in listed if not name.endswith("_mirrored"))
            assert OWN_TOOLS.isdisjoint(name for name in listed if name.endswith("_mirrored"))
            result = await client.call_tool("average_mirrored", {"values": f"{path}/hour"})
            assert result.content[0].text == "2499.5"  # type: ignore[union-attr]
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


FORKED = """
import asyncio, os
from mcp_mirror import Mirror
from mcp_mirror.errors import MirrorError

async def main():
    async with Mirror() as mirror:
        path = await mirror.put(1)
        if os.fork() == 0:
            try:
                await mirror.read(path)
            except MirrorError as error:
                print(error, flush=True)
            os._exit(0)
        os.wait()
        print(await mirror.read(path))

asyncio.run(main())
"""


async def test_a_mirror_outside_of_asyncio_says_that_it_needs_asyncio() -> None:
    def step(work: Coroutine[Any, Any, object]) -> None:
        with contextlib.closing(work), pytest.raises(MirrorError, match="needs asyncio"):
            work.send(None)

    mirror = with_functions()
    await asyncio.to_thread(step, mirror.__aenter__())
    async with mirror:
        await asyncio.to_thread(step, mirror.call("shout_mirrored", {"text": "x"}))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_forked_process_cannot_use_a_mirror_of_its_parent(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(FORKED)
    command = forked_python(str(tmp_path / "program.py"))
    ran = subprocess.run(command, capture_output=True, text=True, timeout=3 * BOUND, check=True)
    refusal, value = ran.stdout.splitlines()
    assert refusal.startswith("This Mirror was opened in another process.")
    assert value == "1"


async def test_a_server_ends_when_its_mirror_closes() -> None:
    served: asyncio.Queue[str] = asyncio.Queue()
    mirror = Mirror()
    async with asyncio.timeout(BOUND), asyncio.TaskGroup() as group, mirror:
        group.create_task(mirror.serve_http(announce=served.put_nowait))
        async with Client(await served.get()) as client:
            assert (await client.list_tools()).tools


async def test_a_cancelled_server_leaves_no_tasks_and_no_connections() -> None:
    served: asyncio.Queue[str] = asyncio.Queue()
    async with Mirror() as mirror, asyncio.timeout(BOUND):
        before = asyncio.all_tasks()
        serving = asyncio.create_task(mirror.serve_http(announce=served.put_nowait))
        port = int((await served.get()).split(":")[2].partition("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" in await reader.readline()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        await reader.read()  # until the server closes the connection
        writer.close()
        assert asyncio.all_tasks() == before


PROGRAM = """
import asyncio
import base64
from mcp_mirror import Mirror
mirror = Mirror(upstreams={upstreams!r})

@mirror.tool
def repeat(text: str, times: int) -> list[str]:
    print("not for the client")
    return [text] * times

asyncio.run(mirror.serve_stdio())
"""


async def test_a_program_is_a_server_on_standard_streams(chemist: Any, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(upstreams={"maker": chemist}))
    command, *args = forked_python(str(program))
    parameters = StdioServerParameters(command=command, args=args)
    async with asyncio.timeout(3 * BOUND), Client(stdio_client(parameters)) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        assert {"repeat_mirrored", "make_grid_mirrored"} < listed
        result = await client.call_tool("repeat_mirrored", {"text": "again and again", "times": 1000})
        notice = result.content[0].text  # type: ignore[union-attr]
        assert "array[1000]" in notice
        answer = await client.call_tool("measure_mirrored", {"text": notice.splitlines()[0].strip('"')})
        assert str(len(json.dumps(["again and again"] * 1000, separators=(",", ":")))) in str(answer.content)


def test_what_a_function_prints_never_reaches_the_client(tmp_path: Path) -> None:
    """Python keeps a printed text in a buffer, and writes it when the client has gone."""
    (tmp_path / "program.py").write_text("print('before the client')" + PROGRAM.format(upstreams={}))
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    messages: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": client},
        {"method": "notifications/initialized"},
        {
            "id": 2,
            "method": "tools/call",
            "params": {"name": "repeat_mirrored", "arguments": {"text": "a", "times": 2}},
        },
    ]
    with subprocess.Popen(
        [sys.executable, tmp_path / "program.py"],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for message in messages:
            process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")
            process.stdin.flush()
            if "id" in message:
                assert json.loads(process.stdout.readline())["id"] == message["id"]
        output, errors = process.communicate(timeout=3 * BOUND)
    assert output == b""
    assert b"before the client" in errors
    assert b"not for the client" in errors


def test_the_program_of_the_readme_runs(tmp_path: Path, chemist: Any) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    program = readme.partition("## Quick start: an agent developer")[2].partition("```python\n")[2].partition("```")[0]
    (tmp_path / "mcp-mirror.yaml").write_text(json.dumps({"upstreams": {"maker": chemist}}))
    (tmp_path / "program.py").write_text(program)
    command = forked_python("program.py")
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=3 * BOUND, check=True)
    *notice, average, counts = ran.stdout.splitlines()
    assert "array[8760]" in "".join(notice)
    assert average == "10.5"
    assert counts.startswith("8760 ")


def test_help_describes_the_public_names_of_the_package() -> None:
    described = pydoc.plain(pydoc.render_doc(mcp_mirror))
    assert {"Mirror", "Reply", "SyncMirror"} < set(dir(mcp_mirror))
    assert "class Mirror(" in described
    assert re.search(r"async call\(\W*self\W+name: str", described)  # from Python 3.13 on with line breaks
    assert "class SyncMirror(" in described


def test_type_checkers_reject_a_name_that_the_package_lacks() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = mcp_mirror.no_such_name  # type: ignore[attr-defined]  # mypy reports the comment if it accepts the name


def test_the_package_itself_loads_little() -> None:
    seen = "import sys, mcp_mirror.workers.pool; print('mcp_mirror.app' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, timeout=3 * BOUND, check=True)
    assert ran.stdout == "False\n"


@pytest.mark.parametrize("keys", [{"flows": {"model": {"accepts": {"confidentiality": "public"}}}}, {}])
@pytest.mark.parametrize("tool", ["refuse", "refuse_later", "check"])
async def test_no_error_of_a_function_quotes_a_hidden_value(keys: dict[str, Any], tool: str) -> None:
    mirror = Mirror(upstreams={"upstreams": {}, **keys})

    @mirror.tool
    def load() -> dict[str, str]:
        return {"key": "c4nary"}

    @mirror.tool
    def refuse(key: str) -> None:
        raise ToolError(f"Not {key}.")

    @mirror.tool
    async def refuse_later(key: str) -> None:
        raise ToolError(f"Not {key}.")

    @mirror.tool
    def check(key: Annotated[str, AfterValidator(_refuse)]) -> None:
        raise AssertionError(key)

    async with mirror:
        path = (await mirror.call("load_mirrored", {})).path
        refused = await mirror.call(f"{tool}_mirrored", {"key": f"{path}/key"})
        assert refused.is_error
        assert ("c4nary" in refused.text) is (not keys)
        if tool == "check":  # a mistake of the model itself
            assert "Not mine." in (await mirror.call("check_mirrored", {"key": "mine"})).text


def _refuse(text: str) -> str:
    raise ValueError(f"Not {text}.")


@pytest.mark.parametrize("given", [3, ["npx"]])
def test_upstreams_of_another_type_name_what_to_give(given: Any) -> None:
    with pytest.raises(ConfigError, match=f"`upstreams` is of type {type(given).__name__}. Give the path of"):
        Mirror(upstreams=given)


def test_the_address_of_an_upstream_needs_a_name() -> None:
    with pytest.raises(ConfigError, match=r'needs a name: Mirror\(upstreams={"NAME": {"url": "https://..."}}\)'):
        Mirror(upstreams="https://mcp.example.com/mcp")


async def test_a_large_error_names_the_path_of_a_repeated_value() -> None:
    mirror = Mirror()

    @mirror.tool
    def read_file(name: str) -> str:
        raise ToolError(f"File name too long: {name!r}. Give a shorter one.")

    async with mirror:
        path = await mirror.put("a line of a log\n" * 400)
        reply = await mirror.call("read_file_mirrored", {"name": path})
        assert reply.is_error
        assert f"File name too long: '<the value of {path}>'. Give a shorter one." in reply.text
        assert reply.path is not None
        assert "a line of a log\\na line" in str(await mirror.read(reply.path))
        rows = await mirror.put([{"id": number, "city": "Bonn"} for number in range(400)])
        reply = await mirror.call("read_file_mirrored", {"name": rows})
        assert f"'<the value of {rows}>'" in reply.text

"""Scripts over stored values: what they return, which tools they call, and their limits, through a whole gateway."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import pytest_asyncio
from flow_user import path_in, upstream
from mcp import Client
from mcp_types import ElicitResult, EmbeddedResource, TextResourceContents
from process_tree import offspring
from samples import sample
from tests.end_to_end.conftest import BOUND
from tests.load import measure_pause, slowness

from mcp_mirror import Mirror, SyncMirror
from mcp_mirror.app import open_application
from mcp_mirror.config import load_config
from mcp_mirror.errors import MirrorError, ToolError
from mcp_mirror.types import Provenance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.end_to_end.conftest import Configured, Connect

pytest.importorskip("pydantic_monty")

ORDERS = [{"id": number, "user": number % 7, "cents": number * 3} for number in range(1500)]
USERS = [{"id": number, "name": f"user {number}"} for number in range(7)]


def with_tools(**sections: Any) -> Mirror:
    mirror = Mirror(upstreams={"upstreams": {}, **sections} if sections else None)

    @mirror.tool
    def list_orders(limit: int = 1500) -> list[dict[str, int]]:
        return ORDERS[:limit]

    @mirror.tool
    def list_users() -> list[dict[str, Any]]:
        return USERS

    @mirror.tool
    async def fail(reason: str) -> str:
        raise ValueError(reason)

    return mirror


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mirror() -> AsyncIterator[Mirror]:
    async with with_tools() as mirror:
        yield mirror


async def test_of_a_long_script_only_the_last_line_is_the_result() -> None:
    """To find other results, the gateway would parse it, which takes seconds for a name with many dots."""
    loop = f"total = 0\n{'#' * 10_000}\nfor number in range(4):\n    total += number"
    async with Mirror() as mirror:
        assert (await mirror.run(loop)).value is None
        assert (await mirror.run(f"{loop}\ntotal")).value == 6


async def test_a_small_value_is_shown_and_a_large_one_is_stored(mirror: Mirror) -> None:
    assert (await mirror.run("1 + 1")).text == "2\nResult ends."
    assert (await mirror.run("'a' * 3")).text == "aaa\nResult ends."
    small = await mirror.run("{'a': [1]}")
    assert small.text.startswith('{"a":[1]}\n')
    assert await mirror.read(str(small.path)) == {"a": [1]}
    large = await mirror.run("[{'n': n} for n in range(5000)]")
    assert "array of 5,000 objects" in large.text
    assert len(large.text) < 1000
    assert large.value[4999] == {"n": 4999}
    assert await mirror.read(f"{large.path}/4999/n") == 4999


async def test_a_large_result_needs_little_memory_beside_its_items() -> None:
    async with with_tools(code={"memory": "48MiB"}) as mirror:
        reply = await mirror.run("[{'id': n, 'name': f'name {n}'} for n in range(70_000)]")
        assert reply.value[69_999] == {"id": 69_999, "name": "name 69999"}


LARGE_LIST = [[number, "\u00e9"] for number in range(20_000)]


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("rows = [[n, '\u00e9'] for n in range(20_000)]\n(\n    rows  # all\n)", LARGE_LIST),
        ("a = '\u00e9'; rows = [(n, a) for n in range(20_000)]; rows", LARGE_LIST),
        ("rows = []\nfor n in range(20_000):\n    rows.append([n, '\u00e9'])", LARGE_LIST),
        ("len = json = str = 0\n[[n, '\u00e9'] for n in range(20_000)]", LARGE_LIST),
        ("if 1:\n    return [[n, '\u00e9'] for n in range(20_000)]\n5", LARGE_LIST),
        ("'x' * 200_000", "x" * 200_000),
        ("[float('nan'), *range(20_000)]", [None, *range(20_000)]),
        ("[{n} for n in range(20_000)]", [[n] for n in range(20_000)]),
        ("{(n, 0): n for n in range(20_000)}", {f"[{n}, 0]": n for n in range(20_000)}),
    ],
)
async def test_large_results_of_all_kinds_are_returned_whole(mirror: Mirror, code: str, result: Any) -> None:
    assert (await mirror.run(code)).value == result


async def test_an_error_quotes_the_last_line_as_the_script_has_it(mirror: Mirror) -> None:
    failed = await mirror.run("rows = [1]\nrows[5] + 1")
    assert "line 2:\n    rows[5] + 1\n" in failed.text
    checked = await mirror.run("await tools.list_orders(limits=3)")
    assert "\n    await tools.list_orders(limits=3)" in checked.text


async def test_a_fence_around_a_script_is_not_a_part_of_it(mirror: Mirror) -> None:
    for fence in ("```python\n{}\n```", "```\n{}```\n", "\n```py \r\n{}\n```"):
        assert (await mirror.run(fence.format("x = 1\nx + 1"))).text == "2\nResult ends."


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"source": "1"}, "has no argument 'source'. Did you mean 'code'?"),
        ({"script": "1 +", "variables": {}}, "SyntaxError"),
        ({"code": "1", "rows": "memory path"}, "has no argument 'rows'. It takes inputs ({\"name\": path}), code."),
        ({"code": "1", "values": {}}, "has no argument 'values'. Did you mean 'inputs'?"),
    ],
)
async def test_an_unknown_argument_is_answered_with_one_of_its_type(
    mirror: Mirror, arguments: dict[str, Any], hint: str
) -> None:
    assert hint in (await mirror.call("memory_run", arguments)).text


async def test_the_results_of_two_tools_are_joined_by_their_paths(mirror: Mirror) -> None:
    orders, users = await mirror.call("list_orders_mirrored"), await mirror.put(USERS)
    code = "names = {u['id']: u['name'] for u in users}\n[[names[o['user']], o['cents']] for o in orders[:2]]"
    joined = await mirror.run(code, {"orders": orders.path, "users": users})
    assert joined.value == [["user 0", 0], ["user 1", 3]]
    nested = await mirror.run("both['o'][3]['id'] + extra", {"both": {"o": orders.path}, "extra": 4})
    assert nested.value == 7
    part = await mirror.run("first", {"first": f"{orders.path}/0/user"})
    assert part.value == 0


async def test_large_values_of_parallel_scripts_leave_garbage_collection_on(mirror: Mirror) -> None:
    codes = ("[[n] for n in range(50000)]", "[print]", "[[0]] * 10 ** 7", "{'a': 1}")
    replies = await asyncio.gather(*(mirror.run(code) for code in codes * 3))
    assert [one.is_error for one in replies[:4]] == [False, True, True, False]
    assert gc.isenabled()


async def test_a_returned_value_is_an_input_of_the_next_script() -> None:
    async with with_tools(memory_tools="all") as mirror:
        first = await mirror.run("[n * n for n in range(3000)]")
        assert (await mirror.run("sum(squares)", {"squares": first.path})).value == sum(n * n for n in range(3000))
        described = await mirror.call("memory_describe", {"memory_path": first.path})
        assert "memory_run" in described.text


async def test_texts_are_texts_and_files_are_read_by_line(mirror: Mirror) -> None:
    log = "\n".join(f"{number} {'ERROR' if number % 10 == 0 else 'INFO'} \u00e9" for number in range(20_000))
    path = await mirror.put(log)
    assert (await mirror.run("log[:7]", {"log": path})).value == "0 ERROR"
    lines = "sum(1 for line in open('/memory/log') if 'ERROR' in line)"
    assert (await mirror.run(lines, {"log": path})).value == 2000
    assert (await mirror.run("import os\nos.listdir('/memory')", {"log": path})).value == ["log"]
    rows = await mirror.put(ORDERS)
    assert (await mirror.run("import json\nlen(json.load(open('/memory/rows')))", {"rows": rows})).value == 1500


async def test_an_embedded_file_is_its_text_or_its_rows() -> None:
    files = {"notes": "one\r\ntwo\r\n" * 500, "rows": json.dumps(ORDERS), "broken": "[1, " * 2000}
    async with with_tools() as mirror:

        @mirror.tool
        def get_file(name: str) -> EmbeddedResource:
            contents = TextResourceContents(uri=f"repo://{name}", text=files[name])
            return EmbeddedResource(type="resource", resource=contents)

        paths = {name: (await mirror.call("get_file_mirrored", {"name": name})).path for name in files}
        assert (await mirror.run("len(x)", {"x": paths["notes"]})).value == 5000
        assert (await mirror.run("open('/memory/x', newline='').read()[:5]", {"x": paths["notes"]})).value == "one\r\n"
        assert (await mirror.run("x[7]['cents']", {"x": paths["rows"]})).value == 21
        assert (await mirror.run("open('/memory/x').read()", {"x": paths["rows"]})).value == files["rows"]
        assert (await mirror.run("x[:3]", {"x": paths["broken"]})).value == "[1,"
        assert (await mirror.run("x[1][7]['cents']", {"x": [paths["notes"], paths["rows"]]})).value == 21
        assert "its lines are x.splitlines()" in (await mirror.run("x['type']", {"x": paths["notes"]})).text
        called = "rows = await tools.get_file(name='rows')\nrows[7]['cents']"
        assert (await mirror.run(called)).value == 21
        called = "text = await tools.get_file(name='notes')\nlen(text.splitlines())"
        assert (await mirror.run(called)).value == 1000


PRINTED = str([{"id": number, "name": None} for number in range(900)])
"""Rows as Python prints them."""


async def test_files_of_texts_have_line_ends_as_python_reads_them() -> None:
    text = "a\r\nb\rc\n"
    async with Mirror() as mirror:
        path = await mirror.put(text)
        assert (await mirror.run("open('/memory/x', newline='').read()", {"x": path})).value == text
        assert (await mirror.run("open('/memory/x').read()", {"x": path})).value == "a\nb\nc\n"
        assert (await mirror.run("open('/memory/x').readlines()", {"x": path})).value == ["a\n", "b\n", "c\n"]


@pytest.mark.parametrize("rows", ['open("/memory/table", newline="")', "table.splitlines(True)"])
async def test_the_first_column_of_a_table_with_a_byte_order_mark_has_its_name(mirror: Mirror, rows: str) -> None:
    path = await mirror.put("\ufeffid;name\r\n7;Bo\r\n")
    reply = await mirror.run(f"import csv\nlist(csv.DictReader({rows}, delimiter=';'))", {"table": path})
    assert reply.value == [{"id": "7", "name": "Bo"}]


async def test_rows_that_python_printed_are_rows_in_scripts() -> None:
    async with with_tools() as mirror:

        @mirror.tool
        def read_query(limit: int = 900) -> str:
            return str([{"id": number, "name": None} for number in range(limit)])

        path = await mirror.put(PRINTED)
        assert (await mirror.run("[len(rows), rows[7]]", {"rows": path})).value == [900, {"id": 7, "name": None}]
        assert (await mirror.run("len(given['rows'])", {"given": {"rows": path}})).value == 900
        assert (await mirror.run("open('/memory/rows').read()", {"rows": path})).value == PRINTED
        assert (await mirror.run("text", {"text": PRINTED})).value == PRINTED
        large = "rows = await tools.read_query()\n[len(rows), rows[7]['name']]"
        assert (await mirror.run(large)).value == [900, None]
        assert (await mirror.run("(await tools.read_query(limit=2))[1]['id']")).value == 1
        evaluated = await mirror.run("import ast\nlen(ast.literal_eval(rows))", {"rows": path})
        assert "are parsed already" in evaluated.text


async def test_json_in_a_text_of_a_value_is_parsed_in_scripts(mirror: Mirror) -> None:
    output = json.dumps({"rows": [{"id": 7}] * 3}, indent=1)
    path = await mirror.put({"status": "success", "output": output})
    assert (await mirror.run("len(out['rows'])", {"out": f"{path}/output"})).value == 3
    assert (await mirror.run("len(both[0]['rows'])", {"both": [f"{path}/output"]})).value == 3
    assert (await mirror.run("open('/memory/out').read()", {"out": f"{path}/output"})).value == output
    assert (await mirror.run("value['output']", {"value": path})).value == output
    loaded = await mirror.run("import json\njson.loads(out)", {"out": f"{path}/output"})
    assert "use them without json.loads" in loaded.text


@pytest.mark.parametrize(
    ("before", "after"), [("Found \u00e9 [3]:\n\n```json\n", "\n```\nThat is all."), ("Status: 200 OK\n\n", "")]
)
async def test_json_within_a_text_is_read_as_an_error_advises(mirror: Mirror, before: str, after: str) -> None:
    rows = [{"id": number} for number in range(50)]
    path = await mirror.put(f"{before}{json.dumps(rows, indent=2)}{after}")
    reply = await mirror.run("t[0]['id']", {"t": path})
    advice = re.search(r"after `import json`, its JSON is (.+)\.\n", reply.text)
    assert advice, reply.text
    assert (await mirror.run(f"import json\n{advice[1]}", {"t": path})).value == rows


async def test_a_value_that_is_only_a_file_is_not_parsed() -> None:
    async with with_tools(code={"memory": "8MiB"}) as mirror:
        path = await mirror.put([{"key": f"value {number}"} for number in range(60_000)])
        reply = await mirror.run("len(rows)", {"rows": path})
        assert "`code.memory`" in reply.text
        found = await mirror.run("open('/memory/rows').read(20)", {"rows": path})
        assert found.value == '[{"key":"value 0"},{'[:20]


async def test_tools_are_awaited_alone_and_together(mirror: Mirror) -> None:
    code = (
        "import asyncio\n"
        "orders, users = await asyncio.gather(tools.list_orders_mirrored(limit=3), tools.list_users())\n"
        "print(len(orders), len(users))\n"
        "orders[2]['cents']"
    )
    reply = await mirror.run(code)
    assert reply.text == "printed:\n3 7\nreturned:\n6\nResult ends."
    assert (reply.value, reply.printed) == (6, "3 7")
    one_by_one = "out = []\nfor n in (1, 2):\n    out.append(len(await tools.list_orders(limit=n)))\nout"
    assert (await mirror.run(one_by_one)).value == [1, 2]
    dynamic = "await getattr(tools, 'list_' + 'users')()"
    assert (await mirror.run(dynamic)).value == USERS


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("a = 1\nfor n in (1, 2):\n    total += n", "3:\n    total += n"),
        ("def add():\n    a = 1\n    total **= a\nadd()", "3:\n    total **= a"),
        ("total = [1]\ntotal += missing", "2:\n    total += missing"),
        ("a = 1\nprint(total)\ntotal += 1", "2:\n    print(total)"),
    ],
)
async def test_a_variable_without_a_value_is_named_with_its_line(mirror: Mirror, code: str, line: str) -> None:
    reply = await mirror.run(code)
    assert f"The script failed in line {line}\n" in reply.text


async def test_each_result_of_a_tool_is_stored_and_named_if_the_script_fails(mirror: Mirror) -> None:
    reply = await mirror.run("x = await tools.list_orders()\nprint('have', len(x))\nx[0]['nothing']")
    assert reply.is_error
    assert reply.value is None
    assert "failed in line 3:\n    x[0]['nothing']\nKeyError: nothing" in reply.text
    assert "printed:\nhave 1500" in reply.text
    assert len(await mirror.read(path_in(reply.text))) == 1500


@pytest.mark.parametrize(
    "code",
    [
        "orders = tools.list_orders()\nreturn orders",
        "return [tools.list_orders(limit=n) for n in range(3)]",
        "return {'orders': tools.list_orders()}",
        "async def load():\n    return await tools.list_orders()\nreturn load()",
    ],
)
async def test_a_call_that_is_returned_and_not_awaited_is_an_error(mirror: Mirror, code: str) -> None:
    reply = await mirror.run(code)
    assert (reply.is_error, "was not awaited" in reply.text) == (True, True)
    text = await mirror.run("return {'log': '<coroutine object send_mail>'}")
    assert not text.is_error


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("await tools.list_orders(limt=3)", "line 1: Argument `limt` does not match any known parameter"),
        ("await tools.list_orders(limit='many')", "line 1: Argument to `tools.list_orders` is incorrect"),
        ("x = 1\nawait tools.list_order()", "line 2: `tools` has no attribute `list_order`"),
        ("x = tools.list_users()\nx[0]", "Await the call"),
        ("x = await tools.list_users()\njson_lines(x)", "line 2: Name `json_lines` used when not defined"),
        ("await list_users(limit=3)", "Write await tools.list_users(argument=...)."),
        ("x = list_orders_mirrored()\nlen(x)", "Write await tools.list_orders_mirrored(argument=...)."),
    ],
)
async def test_a_mistake_is_reported_with_its_line_before_anything_is_called(code: str, expected: str) -> None:
    called = []
    mirror = with_tools()

    @mirror.tool
    def note() -> None:
        called.append(1)

    async with mirror:
        reply = await mirror.run(f"{code}\nawait tools.note()")
        assert reply.is_error
        assert "The script was not run." in reply.text
        assert expected in reply.text
        assert not called


@pytest.mark.parametrize(
    "code",
    [
        "await tools.memory_query(memory_path=rows, expression='[0]')",
        "memory_read(rows)",
        "x = await tools.list_users()\nawait tools.retrieve_final_answer_from_memory(memory_path=rows)",
        "getattr(tools, 'memory_grep')",
    ],
)
async def test_the_error_of_a_script_that_calls_a_memory_tool_names_inputs(mirror: Mirror, code: str) -> None:
    reply = await mirror.run(code, {"rows": [1, 2]})
    assert reply.is_error
    assert "A script cannot call the gateway's memory tools." in reply.text
    assert "Pass paths in `inputs` instead: each variable is the whole value" in reply.text
    assert "Similar tools" not in reply.text


@pytest.mark.parametrize(
    "code",
    [
        "import re\nx = await tools.list_users()\nre.match('u', x[0]['name']).group(0)",
        "m = None\nfor u in await tools.list_users():\n    if m is None or u['id'] > m: m = u['id']\nm + 1",
        "x = await tools.list_users()\nreturn len(x)",
        "arguments = {'limit': 2, **{}}\nlen(await tools.list_orders(**arguments))",
        "t = {}\nfor u in await tools.list_users():\n    t.setdefault('a', {'n': 0, 's': ''})['n'] += 1\nt",
    ],
)
async def test_scripts_that_run_are_not_rejected_for_their_types(mirror: Mirror, code: str) -> None:
    reply = await mirror.run(code)
    assert not reply.is_error, reply.text


async def test_a_failed_tool_raises_in_the_script(mirror: Mirror) -> None:
    parsed = await mirror.run("import json\njson.loads(await tools.list_users())")
    assert "use them without json.loads" in parsed.text
    caught = await mirror.run("try:\n    await tools.fail(reason='no')\nexcept RuntimeError as e:\n    r = str(e)\nr")
    assert caught.value == "fail failed: ValueError: no"
    uncaught = await mirror.run("x = 1\nawait tools.fail(reason='no')")
    assert "failed in line 2" in uncaught.text
    assert "ValueError: no" in uncaught.text
    gathered = await mirror.run("import asyncio\nawait asyncio.gather(tools.fail(reason='no'))")
    assert gathered.text.startswith("The script failed")
    assert "ValueError: no" in gathered.text


@pytest.mark.alone
async def test_the_long_message_of_an_exception_does_not_stall_others(mirror: Mirror) -> None:
    await mirror.run("1")
    code = "raise ValueError('begin' + 'e' * 10_000_000 + 'end')"
    assert await measure_pause(mirror.run(code)) < 0.05 * slowness()
    text = (await mirror.run(code)).text
    assert len(text) < 10_000
    assert "ValueError: begin" in text


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
async def test_a_number_without_a_json_form_is_not_sent_to_a_tool(mirror: Mirror, number: str) -> None:
    reply = await mirror.run(f"await tools.list_orders(**{{'limit': float('{number}')}})")
    assert "line 1" in reply.text
    assert f"not JSON compliant: {number}" in reply.text


UNKNOWN_CALL = "\n    try:\n        no_such_function(x)\n    except NameError:\n        pass"


@pytest.mark.parametrize(
    ("limits", "code", "key"),
    [
        ({"seconds": 0.2}, "while True: pass", "code.seconds"),
        ({"seconds": 0.5}, f"x = list(range(10**6))\nfor n in range(60):{UNKNOWN_CALL}", "code.seconds"),
        ({"memory": "16MiB"}, "x = []\nwhile True: x.append('a' * 1000000)", "code.memory"),
        ({"memory": "16MiB"}, "x = [0] * 10**9", "code.memory"),
        ({"calls": 2}, "for n in range(3): await tools.list_users()", "code.calls"),
        ({}, "while True: open('/memory/a').read()", "code.calls"),
        ({"values": "10KB"}, "[0] * 5000", "code.values"),
        ({"values": "10KB"}, "await tools.list_orders()", "code.values"),
        ({"values": "10KB"}, "long", "code.values"),
        ({"values": "10KB"}, "while True: open('/memory/middle').read()", "code.values"),
    ],
)
async def test_each_limit_ends_the_script_and_names_its_key(limits: dict[str, Any], code: str, key: str) -> None:
    async with with_tools(code=limits) as mirror:
        reply = await mirror.run(code, {"a": "x", "middle": "x" * 3000, "long": "x" * 20_000})
        assert reply.is_error
        assert f"`{key}`" in reply.text
        assert (await mirror.run("1 + 1")).value == 2


@pytest.mark.parametrize("requests", [5, {"k": {"method": "roots/list"}}])
async def test_a_complete_result_with_input_requests_is_a_result(requests: Any) -> None:
    server = str(Path(__file__).parent / "servers" / "raw.py")
    result = json.dumps({"content": [{"type": "text", "text": "hello"}], "inputRequests": requests})
    sections = {
        "upstreams": {"raw": {"command": sys.executable, "args": ["-S", server, "ok"]}},
        "code": {"tools": "all"},
    }
    async with Mirror(upstreams=sections) as mirror:
        assert (await mirror.run("await tools.say_mirrored(result=result)", {"result": result})).value == "hello"


@pytest.mark.slow
async def test_a_script_may_make_a_thousand_calls_at_once() -> None:
    code = "import asyncio\nlen(await asyncio.gather(*[tools.list_users() for n in range(count)]))"
    async with with_tools() as mirror:
        assert (await mirror.run(code, {"count": 1_000})).value == 1_000
        reply = await mirror.run(code, {"count": 1_001})
        assert "A script may make 1,000 tool calls (`code.calls`)" in reply.text


async def test_a_principal_with_many_scripts_does_not_delay_another() -> None:
    async with with_tools(code={"seconds": 50}) as mirror:
        await mirror.run("1")
        busy = [asyncio.create_task(mirror.run("while True: pass", namespace="ann")) for _ in range(30)]
        await asyncio.wait(busy, timeout=0.2)
        async with asyncio.timeout(BOUND):
            assert (await mirror.run("2", namespace="bob")).value == 2
        assert not any(task.done() for task in busy)
        for task in busy:
            task.cancel()
        await asyncio.wait(busy, timeout=BOUND)


@pytest.mark.parametrize(
    ("value", "code", "expected"),
    [
        ("a\ud800b", "len(x) > 2", True),
        (["a\ud800b"], "len(open('/memory/x').read())", 12),
        (12345678901234567890123, "x + 1", 12345678901234567890124),
    ],
)
async def test_unusual_values_are_inputs(mirror: Mirror, value: Any, code: str, expected: Any) -> None:
    assert (await mirror.run(code, {"x": await store_unusual(mirror, value)})).value == expected


async def store_unusual(mirror: Mirror, value: Any) -> str:
    memory = mirror._require_running().application.gateway.memory  # noqa: SLF001  # a value that clients cannot write
    base, origin = f"memory_put-{uuid4()}", Provenance("mcp-mirror", "test", "")
    await memory.services.writer.store_values(
        "local", origin, {base: json.dumps({"part": value}).encode()}, memory.estimate, {}
    )
    return f"{base}/part"


async def test_a_key_that_is_not_text_cannot_be_parsed_and_is_not_named(mirror: Mirror) -> None:
    path = await store_unusual(mirror, [{"name": 1, "a\ud800b": 2}])
    assert "An input cannot be parsed" in (await mirror.run("x[0]", {"x": path})).text


async def test_an_input_that_cannot_be_parsed_is_named_with_a_way_to_read_it(mirror: Mirror) -> None:
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    path = await mirror.put(deep)
    reply = await mirror.run("len(x)", {"x": path})
    assert "An input cannot be parsed" in reply.text
    assert "open(" in reply.text
    assert (await mirror.run("open('/memory/x').read(3)", {"x": path})).value == "[[["


async def test_printed_text_is_cut_at_its_limit() -> None:
    async with with_tools(code={"output": 100}) as mirror:
        reply = await mirror.run("for n in range(100000): print('x' * 50)")
        assert reply.text.endswith("more characters (`code.output`)")
        assert len(reply.text) < 200
        assert not reply.is_error


async def test_a_cancelled_call_ends_its_script_at_once() -> None:
    async with with_tools(code={"seconds": 50}) as mirror:
        await mirror.run("1")
        running = asyncio.create_task(mirror.run("print('on')\nwhile True: pass"))
        done, _ = await asyncio.wait({running}, timeout=0.3)
        assert not done
        running.cancel()
        async with asyncio.timeout(5):
            with pytest.raises(asyncio.CancelledError):
                await running
            assert (await mirror.run("2")).value == 2


@pytest.mark.posix
@pytest.mark.skipif(sys.platform != "linux", reason="processes are read from /proc")
async def test_scripts_compute_at_a_lower_priority_than_the_gateway() -> None:
    mirror = with_tools()

    @mirror.tool
    def list_priorities() -> list[int]:
        workers = [pid for pid, command in offspring(os.getpid()).items() if "monty" in command]
        threads = [int(path.name) for pid in workers for path in Path(f"/proc/{pid}/task").iterdir()]
        return [os.getpriority(os.PRIO_PROCESS, thread) for thread in threads]

    async with mirror:
        priorities = (await mirror.run("await tools.list_priorities()")).value
    assert len(priorities) > 1
    assert set(priorities) == {min(os.getpriority(os.PRIO_PROCESS, 0) + 5, 19)}  # 19 is the lowest


async def test_a_dead_worker_fails_only_its_own_script() -> None:
    async with with_tools(code={"seconds": 3}) as mirror:
        crash = mirror.run("x = [0] * 14000000\nx")
        replies = await asyncio.gather(crash, *(mirror.run(f"{number} + 1") for number in range(10)))
        assert replies[0].is_error
        assert [one.value for one in replies[1:]] == list(range(1, 11))


@pytest.mark.parametrize(
    "code",
    [
        "open('/etc/passwd').read()",
        "open('/memory/../etc/passwd').read()",
        "open('/memory/a', 'w').write('x')",
        "open('/memory/a', 'a').write('x')",
        "open('/memory/b').read()",
        "from pathlib import Path\nPath('/').iterdir()",
        "from pathlib import Path\nPath('/memory/a').unlink()",
        "from pathlib import Path\nPath('/memory/a').rename('/memory/b')",
        "import os\nos.listdir('/')",
        "import os\nos.environ['PATH']",
        "import os\nos.getenv('PATH')",
        "import os\nos.urandom(8)",
        "import os\nos.system('id')",
        "import socket",
        "import subprocess",
        "import urllib.request",
        "import ctypes",
        "import mcp_mirror",
        "__import__('os').system('id')",
        "().__class__.__bases__[0].__subclasses__()",
        "eval(\"__import__('os')\")",
        "exec('import socket')",
        "(lambda: 0).__globals__",
        "tools.__class__.__init__.__globals__",
        "await _call_tool('list_users', 5)",
        "await _call_tool(['list_users'], '{}')",
        "await _call_tool('no_such_tool', '{}')",
        "await _call_tool('memory_list', '{}')",
        "await tools.memory_list()",
        "await tools.memory_run(code='1')",
        "def f(n): return f(n + 1)\nf(0)",
        "'['*100000 and eval('['*100000)",
        "import json\njson.loads('['*100000)",
        "json = tools = None\nawait tools.list_users()",
    ],
)
async def test_no_escape_from_the_sandbox(mirror: Mirror, code: str) -> None:
    reply = await mirror.run(code, {"a": "x"})
    assert reply.is_error, reply.text
    assert "root:" not in reply.text


async def test_a_file_of_the_machine_does_not_exist_in_the_sandbox(mirror: Mirror) -> None:
    assert (await mirror.run("from pathlib import Path\nPath('/etc/passwd').exists()")).value is False


async def test_values_of_another_namespace_are_unknown(mirror: Mirror) -> None:
    path = await mirror.put({"secret": "c4nary"}, namespace="alice")
    for code in ("x", "open('/memory/x').read()"):
        reply = await mirror.run(code, {"x": path}, namespace="bob")
        assert reply.is_error
        assert "c4nary" not in reply.text
    assert (await mirror.run("x['secret']", {"x": path}, namespace="alice")).value == "c4nary"


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("(1, 2)", [1, 2]),
        ("{1: 'a', (1, 2): 'b', None: 'c', False: 'd'}", {"1": "a", "[1, 2]": "b", "null": "c", "false": "d"}),
        ("sorted({2, 1})", [1, 2]),
        ("2 ** 200", 2**200),
        ("[float('nan'), float('inf'), 1.5]", [None, None, 1.5]),
        ("float('nan')", "nan"),
        ("b'ab'", "YWI="),
        ("[b'ab', 2 ** 200]", ["YWI=", 2**200]),
        ("import datetime\ndatetime.date(2026, 1, 2)", "2026-01-02"),
        ("import decimal\n[decimal.Decimal('1.50'), 2 ** 70]", ["1.50", 2**70]),
        ("class A:\n    def __init__(self): self.x = [1]\nA()", {"x": [1]}),
        ("class A:\n    def __init__(self): self.x = 2 ** 70\n[A()]", [{"x": 2**70}]),
        ("from pathlib import Path\nPath('/memory/a')", "/memory/a"),
        ("range(3)", "range(0, 3)"),
    ],
)
async def test_every_value_has_a_json_form(mirror: Mirror, code: str, value: Any) -> None:
    assert (await mirror.run(code)).value == value


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print", "MontyStdTypeProxy"),
        ("[2 ** 70, len]", "MontyStdTypeProxy"),
        ("x = [0]\nfor n in range(300): x = [x]\nx", "levels"),
        pytest.param("x = [0] * 1000\nx = [x] * 1000\nx = [x] * 1000\nx", "code.values", marks=pytest.mark.slow),
        ("x = [[0] * 10] * 10\nfor n in range(20): x = {'a': x, 'b': x}\nx", "code.values"),
    ],
)
async def test_a_value_without_a_json_form_is_an_error(mirror: Mirror, code: str, expected: str) -> None:
    reply = await mirror.run(code)
    assert reply.is_error
    assert expected in reply.text


@pytest.mark.parametrize("name", ["tools", "json", "class", "a b", "_x", "1a", "", "\u00e9", "x" * 100_000])
async def test_a_name_that_cannot_be_a_variable_is_refused(mirror: Mirror, name: str) -> None:
    reply = await mirror.run("1", {name: 1})
    assert "cannot name an input" in reply.text


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("import json\njson.load(rows)", "use them without json.loads"),
        ("counts = {row: 1 for row in rows}\nmax(counts, key=counts.get)", "use a lambda"),
        ("sorted(['b', 'A'], key=str.lower)", "use a lambda, such as lambda text: text.lower()."),
        ("counts = {'a': 1}\ndel counts['a']", "Write rows.pop(key) in place of del rows[key]."),
        ("next(n for n in [1, 2] if n > 1)", "Write next(iter(...), None), which is None if nothing is found."),
        ("next(iter([]))", "Write next(iter(...), None), which is None if nothing is found."),
        ("def each():\n    yield 1\nlist(each())", "Collect the items in a list and return it, in place of yield."),
        (
            "import re\nre.sub('a', lambda m: 'b', 'aa')",
            "Loop over re.finditer(pattern, text): append text[end:m.start()]",
        ),
        ("import statistics\nstatistics.mean([1])", "Write sum(x) / len(x) for a mean."),
        ("from operator import itemgetter\n1", 'Write a lambda, such as key=lambda row: row["name"].'),
        ("from datetime import datetime\ndatetime.fromtimestamp(5).hour", "timedelta(seconds=int(number))"),
        ("from datetime import datetime\ndatetime.utcfromtimestamp(5).hour", "timedelta(seconds=int(number))"),
        ("for row in rows: n = row; n", ""),
        ("import pandas", "A script can import asyncio, base64, collections, csv, "),
        ("import html", "random, re, time, tomllib and unicodedata."),
        ("import yaml", "memory_query with the `expression` @ reads YAML, XML and INI as JSON"),
        ("import configparser", "memory_query with the `expression` @ reads YAML, XML and INI as JSON"),
        ("import xml.etree.ElementTree as ET", "memory_query with the `expression` @ reads YAML, XML and INI as JSON"),
        ("import csv, io\ncsv.DictWriter(io.StringIO(), ['a'])", "csv.writer needs an object with a method write("),
        ("import csv, io\ncsv.reader(io.StringIO(rows))", 'csv.DictReader(open("/memory/NAME", newline=""))'),
        ("list(enumerate(open('/memory/rows')))", "Write open(path).readlines() in place of open(path)."),
        ("total = 0 for row in rows: total += row", "Write each statement on a line of its own."),
        ("total = 0; for row in rows: total += row", "Write each statement on a line of its own."),
    ],
)
async def test_an_error_says_how_to_correct_a_common_mistake(mirror: Mirror, code: str, advice: str) -> None:
    reply = await mirror.run(code, {"rows": [1, 2]})
    assert reply.is_error == bool(advice)
    assert advice in reply.text


async def test_a_missing_key_names_the_fields_of_inputs_and_results(mirror: Mirror) -> None:
    rows = [{"isbn": "978-1", "title": "Blue Harbour"}, {"isbn": "978-2", "year": 2020}]
    reply = await mirror.run("[row['id'] for row in rows]", {"rows": rows, "unused": {"a": 1}})
    assert reply.text.endswith(
        "KeyError: id\nrows has the fields isbn, title.\nCall memory_run again with a corrected script."
    )
    reply = await mirror.run("len(count)\nfound['id']", {"found": json.dumps({"a": 1}), "count": [1, 2]})
    assert "has the fields" not in reply.text  # a text, and numbers
    reply = await mirror.run("found['id']", {"found": {f"key {number:03}{'x' * 90}": 1 for number in range(50)}})
    assert f"key 019{'x' * 53}." in reply.text
    reply = await mirror.run("found['id']", {"found": {"k" * 500: [{"id": 1}]}})
    assert f"\nfound is one object with the keys {'k' * 60}.\nCall" in reply.text
    reply = await mirror.run("x = await tools.list_orders(limit=2)\nx[0]['name']")
    assert f"KeyError: name\nthe result of list_orders has the fields {', '.join(ORDERS[0])}.\nCall" in reply.text
    reply = await mirror.run("{}['id']")
    assert "KeyError: id\nCall memory_run again" in reply.text


@pytest.mark.parametrize(
    "code", ["[hit['id'] for hit in page]", "sum(hit['hours'] for hit in page)", "page['rows']", "page.hits"]
)
async def test_a_script_that_takes_an_object_for_its_rows_learns_where_they_are(mirror: Mirror, code: str) -> None:
    path = await mirror.put({"page": 1, "hits": [{"id": 1, "hours": 3}]})
    reply = await mirror.run(code, {"page": path})
    assert '\npage is one object with the keys page, hits: its rows are page["hits"].\n' in reply.text
    reply = await mirror.run("sum(hit['hours'] for hit in page[\"hits\"])", {"page": path})
    assert reply.value == 3


async def test_the_rows_of_a_wrapped_object_are_named_with_all_keys(mirror: Mirror) -> None:
    page = {"data": {"all orders": {"total": 200, "nodes": ORDERS[:200]}}, "errors": []}
    reply = await mirror.run("page['nodes']", {"page": page})
    rows = 'page["data"]["all orders"]["nodes"]'
    assert f": its rows are {rows}.\n" in reply.text
    assert (await mirror.run(f"len({rows})", {"page": page})).value == 200


@pytest.mark.parametrize(
    "text", [json.dumps({"rows": [{"a": 1}, {"a": 2}]}), '\n {"rows": [{"a": 1}, {"a": 2}], "name": "\\u00e9\\""}\n']
)
async def test_a_script_that_takes_json_text_for_its_rows_learns_to_parse_it(mirror: Mirror, text: str) -> None:
    path = await mirror.put({"note": "{no JSON", "output": text})
    reply = await mirror.run("len(t['output']['rows'])", {"t": path})
    advice = 't["output"] is text: after `import json`, its JSON is json.loads(t["output"]).'
    assert f"t is one object with the keys note, output; {advice}\nCall memory_run again" in reply.text
    reply = await mirror.run('import json\nlen(json.loads(t["output"])["rows"])', {"t": path})
    assert reply.value == 2


LONG = "a line of a log\n" * 90


@pytest.mark.parametrize("code", ["import re\nre.findall('line', page)", "page.splitlines()", "'#' + page"])
@pytest.mark.parametrize(
    ("page", "text"),
    [
        ({"response": {"status": 200, "body": LONG}, "request": {"0": "GET"}}, 'page["response"]["body"]'),
        ({"ok": True, "0": {"out": [LONG, "exit 0"]}}, 'page["0"]["out"][0]'),
    ],
)
async def test_a_script_that_takes_an_object_for_its_text_learns_where_it_is(
    mirror: Mirror, code: str, page: object, text: str
) -> None:
    reply = await mirror.run(code, {"page": page})
    assert f": its text is {text}.\nCall memory_run again" in reply.text
    assert (await mirror.run(f"len({text})", {"page": page})).value == len(LONG)


@pytest.mark.parametrize("code", ["rows['hits']", "rows.hits"])
async def test_a_script_that_takes_rows_for_an_object_learns_their_fields(mirror: Mirror, code: str) -> None:
    reply = await mirror.run(code, {"rows": await mirror.put([{"id": 1, "hours": 3}])})
    assert "\nrows has the fields id, hours.\nCall memory_run again" in reply.text


@pytest.mark.parametrize(
    ("text", "form", "count"),
    [
        ("id,name\n" + "1,Ada\n" * 20, "text (CSV, 2 columns)", 20),
        ("id;name\n" + "1;Ada\n" * 3000, "text (CSV, 2 columns)", 3000),
        ("id\tname\n" + "1\tAda\n" * 20, "text (TSV, 2 columns)", 20),
        ("[Reading 21 lines]\r\n\r\nid;name\r\n" + "1;Ada\r\n" * 20, "text (CSV, 2 columns after a heading)", 20),
        (
            "Rows:\n\n```csv\nid,name\n" + "1,Ada\n" * 3000 + "```\n\nEnd.",
            "text (CSV, 2 columns after a heading)",
            3000,
        ),
        ("# daily\nid,name\n" + "1,Ada\n" * 3000, "text (CSV, 2 columns after a heading)", 3000),
        ('{"id": "1", "name": "Ada"}\n' * 20, "text (JSON lines)", 20),
        ("20 rows:\n\n```\n" + '{"id": "1", "name": "Ada"}\n' * 20 + "```", "text (JSON lines after a heading)", 20),
    ],
)
@pytest.mark.parametrize("code", ["sum(row['id'] for row in t)", "[row.get('id') for row in t]", "{**t}"])
async def test_a_script_that_takes_a_text_for_rows_learns_what_reads_them(
    mirror: Mirror, text: str, form: str, count: int, code: str
) -> None:
    inputs = {"t": await mirror.put(text)}
    reply = await mirror.run(code, inputs)
    advice = re.search(rf"\nt is {re.escape(form)}, one string: .* are (.+)\.\nCall memory_run again", reply.text)
    assert advice, reply.text
    reply = await mirror.run(f"import csv\nrows = list({advice[1]})\n[len(rows), rows[-1]]", inputs)
    assert reply.value == [count, {"id": "1", "name": "Ada"}]


async def test_missing_numbers_that_python_writes_as_nan_are_none(mirror: Mirror) -> None:
    rows = [{"a": float("nan"), "b": "NaN"}, {"a": 1.5, "b": None}]
    for text in (json.dumps(rows), str(rows)):
        reply = await mirror.run("[row['a'] for row in t], t[0]['b']", {"t": await mirror.put(text)})
        assert reply.value == [[None, 1.5], "NaN"]


async def test_rows_that_are_read_as_advised_keep_the_line_breaks_of_cells() -> None:
    mirror = with_tools()

    @mirror.tool
    def read_table() -> str:
        return "id,note\n" + "0,none\n" * 60 + '1,"first\nsecond"\n'

    async with mirror:
        inputs = {"t": await mirror.put(read_table())}
        for get, given in (("text = t", inputs), ("text = await tools.read_table()", {})):
            reply = await mirror.run(f"{get}\n[row['id'] for row in text]", given)
            advice = re.search(r"one string: .* are (.+)\.\nCall memory_run again", reply.text)
            assert advice, reply.text
            reply = await mirror.run(f"import csv\n{get}\nlist({advice[1]})[-1]", given)
            assert reply.value == {"id": "1", "note": "first\nsecond"}


async def test_other_texts_are_described_by_their_lines(mirror: Mirror) -> None:
    texts = {"plain": "one\ntwo", "rows": "Result\n\nid,name\n" + "1,Ada\n" * 20}
    reply = await mirror.run("plain['id'] + rows['id']", texts)
    assert "\nplain is text, one string: its lines are plain.splitlines().\n" in reply.text
    assert "\nrows is text (CSV, 2 columns after a heading), one string: after `import csv`" in reply.text
    reply = await mirror.run("[1]['a']", texts)
    assert "text" not in reply.text


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("Result\n\nid,name\n" + "1,Ada\n" * 20, 'csv.DictReader(open("/memory/t", newline="").readlines()[2:])'),
        ("id;name\n" + "1;Ada\n" * 20, 'csv.DictReader(open("/memory/t", newline=""), delimiter=\';\')'),
    ],
)
async def test_rows_that_are_read_with_wrong_keys_are_described(mirror: Mirror, text: str, advice: str) -> None:
    code = 'import csv\nrows = csv.DictReader(open("/memory/t", newline=""))\n[row["name"] for row in rows], plain[:1]'
    reply = await mirror.run(code, {"t": text, "plain": "one\ntwo"})
    assert f"one string: after `import csv`, its rows are {advice}.\nCall memory_run again" in reply.text
    assert "plain is text" not in reply.text


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ('[Reading 1 line]\n\n{"name": "Ada"}', "after `import json`, its JSON is json.loads(t[18:33])."),
        (
            'Result:\n "{\\"name\\": \\"Ada\\"}"\n\n',
            "after `import json`, its JSON is json.loads(json.loads(t[9:30])).",
        ),
        ('{"name": "Ada"}\n{"name": "Bob"}\n', "its values are [json.loads(line) for line in t.splitlines()]."),
    ],
)
async def test_a_text_that_is_not_json_as_a_whole_is_described(mirror: Mirror, text: str, advice: str) -> None:
    reply = await mirror.run("import json\njson.loads(t)['name']", {"t": text})
    assert f"one string: {advice}\nCall memory_run again" in reply.text


async def test_a_script_that_reads_lines_of_a_json_string_learns_its_text(mirror: Mirror) -> None:
    lines = json.dumps("id,name\n1,a\n2,b\n")
    reply = await mirror.run("t.splitlines()[1].split()", {"t": lines})
    assert "\nt is text in a JSON string: after `import json`, its text is json.loads(t).\n" in reply.text
    assert (await mirror.run("import json\njson.loads(t).splitlines()[1]", {"t": lines})).value == "1,a"


async def test_a_script_that_reads_cells_of_a_text_learns_where_its_json_is(mirror: Mirror) -> None:
    reply = await mirror.run("max(t, key=lambda row: row[1])", {"t": 'Result:\n[["a", 1], ["b", 2]]\n'})
    assert "one string: after `import json`, its JSON is json.loads(t[8:28]).\nCall memory_run again" in reply.text


@pytest.mark.parametrize("text", ["orders_2025", "memory_read(trips)", "orders.json"])
async def test_a_name_in_place_of_a_path_is_answered_as_an_unknown_path(text: str) -> None:
    async with with_tools() as mirror:
        reply = await mirror.run("[t['km'] for t in trips]", {"trips": text})
        assert reply.text == (
            f'No value is stored under "{text}". Nothing is stored yet: first call the tool that gets the data.'
        )
        assert (await mirror.run("trips.upper()", {"trips": text})).value == text.upper()
        path = await mirror.put(text * 500)
        assert f'Newest are "{path}": call again' in (await mirror.run("trips['km']", {"trips": text})).text
        assert "trips is text" in (await mirror.run("trips['km']", {"trips": path})).text


async def test_a_script_without_a_needed_input_learns_how_to_give_it(mirror: Mirror) -> None:
    path = await mirror.put([{"id": 1}])
    reply = await mirror.run("[t['id'] for t in trips if t['id'] in drivers]", {"trips": path})
    assert reply.text.endswith(
        "NameError: name 'drivers' is not defined\n"
        "inputs has no drivers: first call the tool that gets it, then give its path in inputs."
    )


async def test_a_script_that_reads_inputs_as_an_object_learns_their_variables() -> None:
    async with with_tools() as mirror:
        reply = await mirror.run("len(inputs['trips'])", {"trips": [{"id": 1}], "drivers": []})
        assert reply.text.endswith(
            "NameError: name 'inputs' is not defined\n"
            "Each input is a variable: write trips, drivers.\n"
            "Call memory_run again with a corrected script."
        )
        assert "inputs has no inputs" in (await mirror.run("inputs['trips']", {})).text


async def test_a_key_that_is_read_as_an_attribute_is_written_in_brackets() -> None:
    async with with_tools() as mirror:
        reply = await mirror.run("sum(row.km for row in trips)", {"trips": [{"km": 1}]})
        assert 'An object has keys, not attributes: write ["km"] in place of .km.\n' in reply.text
        assert "attributes:" not in (await mirror.run("len(trips.items)", {"trips": {"items": [1]}})).text


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("total = 1\ntotl + 1", "Call memory_run"),
        ("[row for row in trip]", "Call memory_run"),
        ("prnt(trips)", "Call memory_run"),
        ("Counter(row['id'] for row in trips)", "Call memory_run"),
        ("trips[0]['id'] + km", "Call memory_run"),
        ("datetime.datetime.now()", "Begin with `import datetime`.\nCall memory_run"),
        ("datetime.timedelta(1) + datetime.datetime(1, 1, 1)", "Begin with `import datetime`.\nCall memory_run"),
        ("datetime.fromisoformat('2026-01-01')", "Begin with `from datetime import datetime`.\nCall memory_run"),
        ("datetime(2026, 1, 1).year", "Begin with `from datetime import datetime`.\nCall memory_run"),
        ("date.today().year", "Begin with `from datetime import date`.\nCall memory_run"),
        ("str(Decimal('1.1'))", "Begin with `from decimal import Decimal`.\nCall memory_run"),
        ("pd.DataFrame(trips)", "re, time, tomllib and unicodedata.\nCall memory_run"),
        ("re.findall('a', 'b')", "Begin with `import re`.\nCall memory_run"),
    ],
)
async def test_other_undefined_names_are_not_taken_for_inputs(mirror: Mirror, code: str, advice: str) -> None:
    reply = await mirror.run(code, {"trips": await mirror.put([{"id": 1}])})
    assert "is not defined" in reply.text
    assert reply.text.endswith(f"{advice} again with a corrected script.")
    assert "inputs has no" not in reply.text


async def test_a_long_undefined_name_in_a_long_script_is_answered_at_once(mirror: Mirror) -> None:
    name = "a" * 40_000
    began = time.monotonic()
    reply = await mirror.run(f"{name[:-1]}b = 1\n[row for row in {name}]")
    assert "is not defined" in reply.text
    many = "\n".join(f"value_{number} = 1" for number in range(5_000))
    assert "inputs has no orders" in (await mirror.run(f"{many}\n[row for row in orders]")).text
    assert time.monotonic() - began < 2 * slowness()


async def test_a_script_without_a_value_says_how_to_return_one(mirror: Mirror) -> None:
    assert "Let its last line be the value" in (await mirror.run("for x in [1, 2]:\n    y = x")).text
    assert (await mirror.run("print('a')")).text == "a\nResult ends."
    assert "SyntaxError" in (await mirror.run("x = (")).text
    assert "is longer" not in (await mirror.run("1 " * 10)).text
    assert "100,000 are accepted" in (await mirror.run("1\n" * 60_000)).text
    assert "100 inputs" in (await mirror.run("1", {f"a{n}": n for n in range(101)})).text


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = 1\ny = x + 1", 2),
        ("x = [\n    1,\n    2,\n]  # the answer\n", [1, 2]),
        ("n = 0\nfor x in [1, 2]: n += x\nn *= 2", 6),
        ("low, high = 1, 9", [1, 9]),
        ("n: int = 4", 4),
        ("users = await tools.list_users()", USERS),
        ("'''a\nb'''\nn = 5;", 5),
        (r"x = '\d'", r"\d"),  # Python warns of the escape
        ("rows = {}\nrows['a'] = 1", {"a": 1}),
        ("rows = [{}]\nrows[0]['a'] = 1", [{"a": 1}]),
    ],
)
async def test_a_script_that_ends_with_an_assignment_returns_its_value(
    mirror: Mirror, code: str, expected: object
) -> None:
    assert (await mirror.run(code)).value == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("n = 0\nfor x in [1, 2]:\n    n += x", 3),
        ("sums = {}\nfor x in 'aab':\n    sums[x] = sums.get(x, 0) + 1", {"a": 2, "b": 1}),
        ("names = []\nfor x in 'ab':\n    low = x.lower()\n    names.append(low)", ["a", "b"]),
        (
            "seen, total = set(), 0\nfor x in [1, 1, 2]:\n    if x not in seen:\n        seen.add(x); total += x",
            {"seen": [1, 2], "total": 3},
        ),
        ("best = None\nfor x in [3, 1]:\n    if best is None or x < best: best = x", 1),
        ("n = 9\nwhile n > 5:\n    n -= 3", 3),
        ("limit = 4\nif limit > 3:\n    limit = 7\nelse:\n    limit = 8", 7),
        ("n = 0\ntry:\n    n = int('x')\nexcept ValueError:\n    n = -1", -1),
        ("groups = {'a': []}\nfor x in [1, 2]: groups['a'].append(x)", {"a": [1, 2]}),
        ("groups = {}\nfor x in 'aba': groups.setdefault(x, []).append(1)", {"a": [1, 1], "b": [1]}),
        ("rows = [2, 1]\nrows.sort()", [1, 2]),
        ("rows = [2, 1]\nlen([rows.append(n) for n in range(3)])", 3),
    ],
)
async def test_a_script_that_ends_by_changing_variables_returns_them(
    mirror: Mirror, code: str, expected: object
) -> None:
    assert (await mirror.run(code)).value == expected


@pytest.mark.parametrize(
    "code",
    [
        "n: int",
        "def f():\n    return 3",
        "a, *b = 1, 2",
        "print('a')\nn = 5",
        "a = 1\npass",
        "n = 0\nfor x in [1, 2]:\n    n += x\n    print(n)",
        "for x in [1, 2]:\n    y = x",
        "n: int\nfor x in []:\n    n = x",
        "n = 0\nfor x in [1, 2]:\n    if x > n: return None\n    n = x",
        "class A:\n    def add(self, n): return None\na = A()\na.add(1)",
        "x.y, z = 1, 2",
    ],
)
async def test_a_script_with_another_end_returns_no_variable(mirror: Mirror, code: str) -> None:
    assert (await mirror.run(code)).value is None


async def test_a_path_that_a_script_contains_as_a_text_belongs_to_its_inputs(mirror: Mirror) -> None:
    path = await mirror.put([1, 2, 3])
    refused = await mirror.run(f"rows = '{path}'\nlen(rows)")
    assert refused.is_error
    assert refused.text.endswith(
        f'Give it in inputs: {{"value": "{path}"}}, and use value. Then call memory_run again.'
    )
    part = await mirror.run(f'len("""{path}/0""")', {"others": [1]})
    assert f'"{path}/0"' in part.text
    assert (await mirror.run(f"{{'{path}': len(rows)}}", {"rows": path})).value == {path: 3}
    assert (await mirror.run(f"await tools.list_users()\nlen('{path}')")).value == len(path)
    other = path[:-12] + "0" * 12
    assert (await mirror.run(f"len('nothing-{other[-36:]}')")).value == len(f"nothing-{other[-36:]}")


def test_the_library_without_await_runs_scripts() -> None:
    with SyncMirror() as mirror:
        assert mirror.run("[n for n in given if n > 1]", {"given": [1, 2, 3]}).value == [2, 3]


def test_a_program_that_ran_scripts_exits_normally() -> None:
    code = (
        "from mcp_mirror import SyncMirror\n"
        "with SyncMirror() as mirror:\n"
        "    for number in range(5): assert mirror.run(f'{number} + 1').value == number + 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=BOUND)


async def test_without_the_package_there_is_no_tool(monkeypatch: pytest.MonkeyPatch, configured: Configured) -> None:
    for module in ("mcp_mirror.assembly", "mcp_mirror.library.mirror", "mcp_mirror.config.checks"):
        monkeypatch.setattr(f"{module}.find_spec", lambda _name: None)
    async with with_tools() as mirror:
        assert "memory_run" not in [tool["name"] for tool in mirror.tools("mcp")]
        assert "Unknown tool" in (await mirror.call("memory_run", {"code": "1"})).text
        with pytest.raises(MirrorError, match=r"pip install 'mcp-mirror\[code\]'"):
            await mirror.run("1")
    with pytest.raises(MirrorError, match=r"pip install 'mcp-mirror\[code\]'"):
        load_config(configured({}, code={"seconds": 1}), {})


async def test_the_definition_of_the_tool_is_short(mirror: Mirror, count_tokens: Any) -> None:
    (advert,) = [tool for tool in mirror.tools("mcp") if tool["name"] == "memory_run"]
    assert count_tokens(json.dumps(advert)) <= 200
    async with with_tools(memory_tools={"deny": ["memory_run"]}) as without:
        assert "memory_run" not in [tool["name"] for tool in without.tools("mcp")]


@pytest.mark.parametrize(("tools", "is_named"), [("read_only", True), ("none", False)])
async def test_the_definition_names_tools_if_scripts_may_call_some(tools: str, *, is_named: bool) -> None:
    async with with_tools(code={"tools": tools}) as mirror:
        (advert,) = [tool for tool in mirror.tools("mcp") if tool["name"] == "memory_run"]
        assert ("await tools." in advert["description"]) == is_named


@pytest.mark.parametrize("without_sql", [{"deny": ["memory_query"]}, {"allow": ["memory_run", "memory_read"]}])
async def test_without_sql_the_tool_comes_first_and_has_an_example(without_sql: dict[str, list[str]]) -> None:
    async with with_tools(memory_tools=without_sql) as mirror:
        own = [tool for tool in mirror.tools("mcp") if not tool["name"].endswith("_mirrored")]
        assert own[0]["name"] == "memory_run"
        assert "\n    name = names[t[...]]\n" in own[0]["description"]


async def test_a_result_that_is_shown_whole_says_that_it_ends(mirror: Mirror) -> None:
    reply = await mirror.run("print('a')\n[1, 2]")
    assert [block["text"] for block in reply.content] == ["printed:\na", "returned:\n[1,2]", "Result ends."]
    stored = await mirror.run("[str(n) for n in range(9999)]")
    assert "Result ends." not in stored.text
    async with with_tools(code={"output": 10}) as brief:
        assert "Result ends." not in (await brief.run("print('a' * 100)")).text


WRITE = "await tools.hear(x='to be written')"


def asking(tmp_path: Path, configured: Configured, **code: Any) -> Path:
    audit = {"path": str(tmp_path / "audit.jsonl")}
    return configured({"mail": upstream("mail", tmp_path)}, code=code, audit=audit)


@pytest.mark.parametrize(
    ("mode", "is_allowed"),
    sample(product(("auto", "legacy"), (True, False)), [("auto", True), ("legacy", False)].__contains__),
)
async def test_the_user_decides_on_a_tool_that_is_not_read_only(
    configured: Configured, connect: Connect, tmp_path: Path, mode: str, *, is_allowed: bool
) -> None:
    questions: list[str] = []

    async def answer(_context: Any, params: Any) -> ElicitResult:
        questions.append(params.message)
        return ElicitResult(action="accept", content={"allow": is_allowed})

    code = f"first = await tools.say(result='{{\"content\": []}}') if 0 else 1\n{WRITE}\n'sent'"
    async with connect(asking(tmp_path, configured), elicitation_callback=answer, mode=mode) as client:
        result = await client.call_tool("memory_run", {"code": code})
    assert len(questions) == 1
    assert "hear" in questions[0]
    assert '{"x": "to be written"}' in questions[0]
    calls = (tmp_path / "mail.log").read_text().count(" tools/call\n")
    records = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    last = [one for one in records if one["tool"] == "memory_run"][-1]
    assert (len(last["script"]), last["calls"], last["outcome"]) == (64, "1", "ok" if is_allowed else "error")
    text = result.content[0].text  # type: ignore[union-attr]
    if is_allowed:
        assert (text, calls) == ("sent", 1)
    else:
        assert text.endswith("The user was asked, and does not allow it.")
        assert calls == 0


async def test_the_user_sees_each_argument_of_a_call_beside_long_ones(
    configured: Configured, connect: Connect, tmp_path: Path
) -> None:
    questions: list[str] = []

    async def answer(_context: Any, params: Any) -> ElicitResult:
        questions.append(params.message)
        return ElicitResult(action="decline")

    given = "a='x' * 9000, to=['mallory@example.com'], rows=list(range(500)), z={'y': 'x' * 9000}"
    async with connect(asking(tmp_path, configured), elicitation_callback=answer) as client:
        await client.call_tool("memory_run", {"code": f"await tools.hear_mirrored({given})"})
        large = "await tools.hear_mirrored(x=[['x' * 900] * 30] * 30)"
        refused = await client.call_tool("memory_run", {"code": large})
    assert len(questions) == 1
    assert '"to": ["mallory@example.com"]' in questions[0]
    assert "(9,000 characters)" in questions[0]
    assert "(460 more)" in questions[0]
    assert "too large to be shown to the user" in refused.content[0].text  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("limits", "code", "calls"),
    [
        ({}, f"for n in range(3):\n    {WRITE}\n1 / 0", 3),
        ({"calls": 2}, f"for n in range(3):\n    {WRITE}", 2),
        ({}, "1 / 0", 0),
    ],
)
async def test_a_failed_script_reports_its_calls_that_change_something(
    configured: Configured, connect: Connect, tmp_path: Path, limits: dict[str, int], code: str, calls: int
) -> None:
    async with connect(asking(tmp_path, configured, tools="all", **limits)) as client:
        result = await client.call_tool("memory_run", {"code": code})
    text = result.content[0].text  # type: ignore[union-attr]
    sent = (tmp_path / "mail.log").read_text().count(" tools/call\n") if calls else 0
    assert result.is_error
    assert sent == calls
    warning = f"Before that it made {calls} calls of tools that can change something. Do not repeat them."
    assert (warning in text) is (calls > 0)
    assert ("Do not repeat" in text) is (calls > 0)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_user_decides_on_a_refused_flow_of_a_script(
    configured: Configured, connect: Connect, tmp_path: Path, mode: str
) -> None:
    questions: list[str] = []

    async def answer(_context: Any, params: Any) -> ElicitResult:
        questions.append(params.message)
        return ElicitResult(action="accept", content={"allow": len(questions) == 1})

    upstreams = {
        "crm": upstream("crm", tmp_path, labels={"confidentiality": "private"}),
        "mail": upstream("mail", tmp_path, accepts={"confidentiality": "internal"}),
    }
    config = configured(upstreams, flows={"on_refusal": "ask"}, code={"tools": "all"})
    value = json.dumps({"content": [], "structuredContent": {"a": "private text"}})
    send = "for n in range(2): await tools.mail_hear_mirrored(x=x['a'])"
    code = f"x = await tools.crm_say_mirrored(result={value!r})\n{send}"
    async with connect(config, elicitation_callback=answer, mode=mode) as client:
        result = await client.call_tool("memory_run", {"code": code})
    assert len(questions) == 2
    assert "values of the script" in questions[0]
    assert "private text" not in "".join(questions)
    assert "The user was asked, and does not allow it" in result.content[0].text  # type: ignore[union-attr]
    assert (tmp_path / "mail.log").read_text().count(" tools/call\n") == 1


@pytest.mark.parametrize(
    ("code", "is_called", "expected"),
    [
        (
            {},
            False,
            [
                "hear_mirrored: its server does not mark it as read-only (`code.tools: read_only`).",
                "The client cannot ask the user",
                "configuration can permit it in scripts: `code.tools: listed`, with its own name in `code.allow`.",
            ],
        ),
        ({"tools": "none"}, False, ["`code.tools: none`"]),
        (
            {"tools": "listed"},
            False,
            [
                "hear_mirrored: `code.allow` does not contain it (`code.tools: listed`).",
                "The client cannot ask the user",
            ],
        ),
        ({"tools": "listed", "allow": ["he*"]}, True, ["sent"]),
        ({"tools": "all"}, True, ["sent"]),
    ],
)
async def test_the_configuration_decides_which_tools_scripts_call(
    configured: Configured,
    connect: Connect,
    tmp_path: Path,
    code: dict[str, Any],
    is_called: bool,  # noqa: FBT001  # a table
    expected: list[str],
) -> None:
    async with connect(asking(tmp_path, configured, **code)) as client:
        result = await client.call_tool("memory_run", {"code": f"{WRITE}\n'sent'"})
    text = result.content[0].text  # type: ignore[union-attr]
    assert [one for one in expected if one not in text] == []
    assert "corrected script" not in text  # the next script would be refused too
    assert ((tmp_path / "mail.log").read_text().count(" tools/call\n") == 1) is is_called


SAY = f"x = await tools.crm_say_mirrored(result={json.dumps({'content': [], 'structuredContent': {'a': 'text'}})!r})\n"


@pytest.mark.parametrize(
    ("code", "limits", "expected"),
    [
        (f"{SAY}await tools.mail_hear_mirrored(x=x['a'])", {}, "may not go to upstream 'mail'"),
        (f"{SAY}await tools.mail_hear_mirrored(x=1)", {"calls_per_day": 1}, "has made the 1 call that it may"),
    ],
)
async def test_a_script_that_the_gateway_refuses_is_not_to_be_corrected(
    configured: Configured, connect: Connect, tmp_path: Path, code: str, limits: dict[str, int], expected: str
) -> None:
    upstreams = {
        "crm": upstream("crm", tmp_path, labels={"confidentiality": "private"}),
        "mail": upstream("mail", tmp_path, accepts={"confidentiality": "internal"}),
    }
    config = configured(upstreams, flows={}, code={"tools": "all"}, limits=limits)
    async with connect(config) as client:
        result = await client.call_tool("memory_run", {"code": code})
    text = result.content[0].text  # type: ignore[union-attr]
    assert expected in text
    assert "corrected script" not in text


async def test_a_script_with_a_failed_call_is_to_be_corrected() -> None:
    async with Mirror() as mirror:

        @mirror.tool
        def find(number: int) -> int:
            raise ToolError(f"No order {number}.")

        reply = await mirror.run("await tools.find(number=5)")
        assert "No order 5." in reply.text
        assert reply.text.endswith("Call memory_run again with a corrected script.")


async def test_a_script_is_recorded_without_its_values(configured: Configured, tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    path = configured({"mail": upstream("mail", tmp_path)}, code={"tools": "all"}, audit={"path": str(log)})
    async with Mirror(upstreams=str(path)) as mirror:
        stored = await mirror.put({"secret": "c4nary"})
        await mirror.run("await tools.hear(x=given['secret'])\ngiven", {"given": stored})
    text = log.read_text()
    assert "c4nary" not in text
    assert stored not in text
    records = [json.loads(line) for line in text.splitlines()]
    (script,) = [one for one in records if one["tool"] == "memory_run"]
    assert len(script["script"]) == 64
    assert script["calls"] == "1"
    assert script["inputs"]
    assert script["outcome"] == "stored"
    (nested,) = [one for one in records if one["tool"].startswith("hear") and one["event"] == "call"]
    assert nested["script_call"] == script["correlation"]


async def test_calls_of_scripts_count_by_the_rate_of_their_principal(configured: Configured, tmp_path: Path) -> None:
    path = configured({"mail": upstream("mail", tmp_path)}, code={"tools": "all"}, limits={"calls_per_minute": 3})
    from mcp_mirror.callers import Caller, NullChannel  # noqa: PLC0415

    async with open_application(load_config(path, {})) as application:
        gateway = application.gateway
        await application.upstreams.wait_for_attempts(BOUND)
        arguments = json.dumps({"code": "for n in range(5): await tools.hear(x='1')"}).encode()
        call = gateway.new_call(NullChannel(Caller("me")), "memory_run", arguments, is_limited=True)
        reply = str(await asyncio.wait_for(gateway.state.answer(call), BOUND))
    assert "`limits.calls_per_minute`" in reply
    assert (tmp_path / "mail.log").read_text().count(" tools/call\n") == 2


async def test_many_scripts_of_one_principal_do_not_wait_for_each_other_forever(
    configured: Configured, tmp_path: Path
) -> None:
    path = configured({"mail": upstream("mail", tmp_path)}, code={"tools": "all"}, limits={"calls_per_principal": 2})
    from mcp_mirror.callers import Caller, NullChannel  # noqa: PLC0415

    async with open_application(load_config(path, {})) as application:
        gateway = application.gateway
        await application.upstreams.wait_for_attempts(BOUND)
        arguments = json.dumps({"code": "await tools.hear(x='1')\n'done'"}).encode()
        calls = [
            gateway.new_call(NullChannel(Caller("me")), "memory_run", arguments, is_limited=True) for _ in range(8)
        ]
        replies = await asyncio.wait_for(asyncio.gather(*map(gateway.state.answer, calls)), BOUND)
    assert all("done" in str(one) for one in replies)


async def test_a_real_client_runs_scripts(configured: Configured, connect: Connect, tmp_path: Path) -> None:
    async with connect(asking(tmp_path, configured)) as client:
        listed = await client.list_tools()
        assert "memory_run" in {tool.name for tool in listed.tools}
        assert await text_of(client, {"code": "sum(n)", "inputs": {"n": [1, 2]}}) == "3"
        assert await text_of(client, {"code": "1 + 1", "inputs": ""}) == "2"
        stored = await client.call_tool("memory_put", {"value": ORDERS})
        path = path_in(stored.content[0].text)  # type: ignore[union-attr]
        code = "from collections import Counter\nsorted(Counter(o['user'] for o in orders).items())[0]"
        assert await text_of(client, {"code": code, "inputs": {"orders": path}}) == "[0,215]"
        assert "cannot" not in await text_of(client, {"code": "1", "inputs": json.dumps({"a": 1})})


async def text_of(client: Client, arguments: dict[str, Any]) -> str:
    result = await client.call_tool("memory_run", arguments)
    return str(result.content[0].text)  # type: ignore[union-attr]

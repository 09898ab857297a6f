"""SQL over stored values: what `memory_query` returns, its mistakes and its limits, through a whole gateway."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from flow_user import path_in
from samples import sample
from tests.end_to_end.conftest import BOUND

from mcp_mirror import Mirror, SyncMirror
from mcp_mirror.errors import MirrorError
from mcp_mirror.types import Descriptor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.end_to_end.conftest import Configured, Connect

pytest.importorskip("duckdb")

ORDERS = [{"id": number, "user": number % 7, "cents": number * 3} for number in range(1500)]
USERS = [{"id": number, "name": f"user {number}"} for number in range(7)]
JOIN = (
    "SELECT u.name, sum(o.cents) AS cents FROM orders o JOIN users u ON u.id = o.user GROUP BY ALL ORDER BY cents DESC "
    "LIMIT 1"
)
JOINED = [{"name": "user 1", "cents": 483750}]
SLOW = "SELECT sum(a.range * b.range % 7) AS n FROM range(1000000) a, range(1000000) b"


def with_tools(**sections: Any) -> Mirror:
    mirror = Mirror(upstreams={"upstreams": {}, "memory_tools": "all", **sections})

    @mirror.tool
    def list_orders() -> list[dict[str, int]]:
        return ORDERS

    return mirror


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mirror() -> AsyncIterator[Mirror]:
    async with with_tools() as mirror:
        yield mirror


async def test_the_results_of_two_tools_are_joined_by_their_paths(mirror: Mirror) -> None:
    orders, users = await mirror.call("list_orders_mirrored"), await mirror.put(USERS)
    reply = await mirror.sql(JOIN, {"orders": orders.path, "users": users})
    assert reply.text == json.dumps(JOINED, separators=(",", ":")) + "\nResult ends."
    assert reply.value == JOINED
    assert reply.path is None
    csv = "id,name\n" + "".join(f"{one['id']},{one['name']}\n" for one in USERS)
    assert (await mirror.sql(JOIN, {"orders": orders.path, "users": csv})).value == JOINED
    assert (await mirror.sql(JOIN, {"orders": orders.path, "users": USERS})).value == JOINED
    part = await mirror.put({"data": {"rows": USERS}})
    assert (await mirror.sql(JOIN, {"orders": orders.path, "users": f"{part}/data/rows"})).value == JOINED


@pytest.mark.parametrize(
    ("tools", "named"),
    [
        ({}, "memory_run"),
        ({"deny": ["memory_run"]}, "memory_query"),
        ({"deny": ["memory_query"]}, "memory_run"),
        ({"deny": ["memory_query", "memory_run"]}, None),
    ],
)
async def test_instructions_name_one_tool_for_whole_values(tools: dict[str, Any], named: str | None) -> None:
    pytest.importorskip("pydantic_monty")
    async with with_tools(memory_tools=tools) as mirror:
        whole = [one for one in mirror.instructions.split(". ") if one.startswith("Questions that need all rows")]
        assert [one.rpartition(" ")[2] for one in whole] == ([named] if named else [])


@pytest.mark.parametrize(
    "tools", [{}, {"set": "minimal"}, {"set": "all"}, {"deny": ["memory_grep"]}, {"deny": ["memory_read"]}]
)
async def test_instructions_name_only_memory_tools_that_are_served(tools: dict[str, Any]) -> None:
    async with with_tools(memory_tools=tools) as mirror:
        served = {one["function"]["name"] for one in mirror.tools()}
        assert set(re.findall(r"memory_[a-z]+", mirror.instructions)) - {"memory_path"} <= served


@pytest.mark.parametrize("line", ["{0},{1},{2}\n", "| {0} | {1} | {2} |\n"])
async def test_missing_numbers_that_pandas_writes_as_nan_are_null(mirror: Mirror, line: str) -> None:
    rule = "| --- | --- | --- |\n" if line.startswith("|") else ""
    rows = "".join(line.format(n, "NaN" if n % 4 else n / 2, "nan" if n % 2 else "bread") for n in range(40))
    table = await mirror.put(line.format("id", "amount", "name") + rule + rows)
    reply = await mirror.sql("SELECT count(amount) n, sum(amount) s, count(name) t FROM t", {"t": table})
    assert reply.value == [{"n": 10, "s": 90.0, "t": 40}]


@pytest.mark.parametrize("form", ["array", "lines", "heading", "literal"])
async def test_missing_numbers_that_python_writes_as_nan_are_null(mirror: Mirror, form: str) -> None:
    rows = [{"a": float("nan") if n % 2 else n, "b": "NaN", "c": {"d": [float("nan"), n]}} for n in range(40)]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    texts = {"array": json.dumps(rows), "lines": lines, "heading": f"Rows:\n{json.dumps(rows)}", "literal": str(rows)}
    table = await mirror.put(texts[form])
    sql = "SELECT count(a) n, avg(a) m, any_value(b) b, count(c.d[1]) d, sum(c.d[2]) s FROM t"
    reply = await mirror.sql(sql, {"t": table})
    assert reply.value == [{"n": 20, "m": 19.0, "b": "NaN", "d": 0, "s": 780}]


@pytest.mark.parametrize(
    "marker", sample(["NA", "N/A", "#N/A", "NULL", "null", "None", r"\N", "<NA>"], {"NA", r"\N"}.__contains__)
)
@pytest.mark.parametrize("line", ["{0},{1},{2},{3}\n", "| {0} | {1} | {2} | {3} |\n"])
async def test_missing_numbers_leave_a_column_of_csv_numeric(mirror: Mirror, line: str, marker: str) -> None:
    rule = "| --- | --- | --- | --- |\n" if line.startswith("|") else ""
    rows = "".join(
        line.format(n, *(marker if n % 4 else value for value in (n, n / 8, "bread"))) for n in range(80, 120)
    )
    table = await mirror.put(line.format("id", "seats", "price", "name") + rule + rows)
    sql = "SELECT max(seats) m, sum(seats) s, count(seats) n, sum(price) p, count(name) t, typeof(any_value(seats)) k"
    reply = await mirror.sql(f"{sql} FROM t", {"t": table})
    assert reply.value == [{"m": 116, "s": 980, "n": 10, "p": 122.5, "t": 40, "k": "BIGINT"}]


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (("NA", "170141183460469231731687303715884105"), "HUGEINT"),
        (("NA", ".5"), "DOUBLE"),
        (("NaN", "NA", "-1e3"), "DOUBLE"),
        (("NA", "007"), "VARCHAR"),
        (("NA", "0x1F"), "VARCHAR"),
        (("NA", "1,5"), "VARCHAR"),
        (("NA", "2024-01-01"), "VARCHAR"),
        (("NA", "NULL"), "VARCHAR"),
    ],
)
async def test_only_numbers_make_the_texts_for_missing_values_null(
    mirror: Mirror, cells: tuple[str, ...], kind: str
) -> None:
    rows = "".join(f"{n};{cells[n % len(cells)]}\n" for n in range(40))
    table = await mirror.put(f"id;value\n{rows}")
    reply = await mirror.sql("SELECT DISTINCT typeof(value) k FROM t", {"t": table})
    assert reply.value == [{"k": kind}]


@pytest.mark.parametrize("form", ["array", "lines", "csv"])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) n FROM t WHERE city <> 'Rome'",
        "SELECT count(*) n FROM t WHERE city IN ('Rome', 'Oslo') OR city LIKE '%o%' OR city > 5 OR city = true",
        "SELECT coalesce(sum(city), 0) n FROM t",
        "SELECT count(city) n FROM t GROUP BY city",
    ],
)
async def test_a_column_that_is_null_in_all_rows_fits_every_comparison(mirror: Mirror, sql: str, form: str) -> None:
    rows = [{"id": n, "city": None, "at": "2024-01-01"} for n in range(30)]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    texts = {"csv": "id,city,at\n" + "".join(f"{n},,2024-01-01\n" for n in range(30)), "lines": lines}
    table = await mirror.put(texts.get(form, rows))
    assert (await mirror.sql(sql, {"t": table})).value == [{"n": 0}]


async def test_a_comparison_with_the_text_of_a_missing_number_names_null(mirror: Mirror) -> None:
    table = await mirror.put("id,seats\n" + "1,NA\n2,30\n" * 20)
    reply = await mirror.sql("SELECT count(*) FROM t WHERE seats <> 'NA'", {"t": table})
    assert reply.is_error
    assert "A missing number is NULL: use IS NULL or IS NOT NULL in place of 'NA'." in reply.text
    assert (await mirror.sql("SELECT count(*) n FROM t WHERE seats IS NOT NULL", {"t": table})).value == [{"n": 20}]


async def test_a_first_row_with_a_missing_number_is_not_taken_for_a_header(mirror: Mirror) -> None:
    rows = await mirror.put("1,NA\n2,3\nNA,4\n" * 9)
    reply = await mirror.sql("SELECT count(*) n, sum(column1) s FROM t", {"t": rows})
    assert reply.value == [{"n": 27, "s": 63}]


async def test_a_large_result_is_stored_with_its_inputs(mirror: Mirror) -> None:
    orders, users = await mirror.put(ORDERS), await mirror.put(USERS)
    inputs = {"orders": orders, "users": users}
    reply = await mirror.sql("FROM orders JOIN users ON users.id = orders.user", inputs)
    assert "array of 1,500 objects" in reply.text
    assert len(reply.text) < 1000
    assert str(reply.path).startswith("memory_query-")
    assert await mirror.read(f"{reply.path}/1499/name") == "user 1"
    assert len(reply.value) == 1500
    store = mirror._require_running().application.gateway.services.writer.store  # noqa: SLF001  # what clients do not see
    described = await store.describe("local", str(reply.path))
    assert isinstance(described, Descriptor)
    assert set(described.provenance.inputs) == {orders, users}
    again = await mirror.sql("SELECT count(*) AS n FROM joined", {"joined": reply.path})
    assert again.value == [{"n": 1500}]
    huge = await mirror.sql("SELECT o.* FROM orders o, range(100) r", inputs)
    assert "array of 150,000 objects" in huge.text
    assert await mirror.read(f"{huge.path}/149999/id") in range(1500)


async def test_numbers_of_stored_json_keep_their_digits(mirror: Mirror) -> None:
    path = await mirror.put([{"id": 9007199254740993, "big": 18446744073709551615, "zip": "007"}])
    reply = await mirror.sql("FROM t", {"t": path})
    assert reply.text == '[{"id":9007199254740993,"big":18446744073709551615,"zip":"007"}]\nResult ends.'


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) n FROM orders",
        "SELECT count(*) n FROM Orders o JOIN orders p ON o.id = p.id",
        "WITH few AS (SELECT id FROM orders) SELECT count(*) n FROM few",
        "WITH few(a) AS (SELECT id FROM orders) SELECT count(a) n FROM few",
        "SELECT count(EXTRACT(year FROM DATE '2026-11-30' - id::INT)) n FROM orders WHERE id IS DISTINCT FROM -1",
        "SELECT count(*) n FROM orders, UNNEST([1]) JOIN UNNEST([1]) ON true",
    ],
)
@pytest.mark.parametrize("inputs", [{}, {"inputs": {}}])
async def test_the_only_table_of_a_query_is_the_value_of_its_path(sql: str, inputs: dict[str, Any]) -> None:
    async with with_tools() as mirror:
        path = await mirror.put(ORDERS)
        reply = await mirror.call("memory_query", {"memory_path": path, "sql": sql} | inputs)
        assert reply.text == '[{"n":1500}]\nResult ends.'


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT from AS n FROM mails GROUP BY from ORDER BY from DESC LIMIT 1",
        "SELECT from AS n FROM mails WHERE to = 'ada' AND from IS NOT NULL ORDER BY from LIMIT 1",
        "SELECT max(from) AS n FROM order WHERE from = 'bob' OR from LIKE 'b%'",
        "SELECT max(table.from) AS n FROM table",
    ],
)
async def test_names_that_are_keywords_need_no_quotes(sql: str) -> None:
    async with with_tools() as mirror:
        path = await mirror.put([{"from": "bob", "to": "ada"}] * 3)
        reply = await mirror.call("memory_query", {"memory_path": path, "sql": sql})
        assert reply.text == '[{"n":"bob"}]\nResult ends.'


async def test_the_table_of_a_statement_without_from_is_the_value_of_its_path() -> None:
    async with with_tools() as mirror:
        path = await mirror.put(ORDERS)
        for sql in ("DESCRIBE t", "summarize t"):
            reply = await mirror.call("memory_query", {"memory_path": path, "sql": sql})
            assert '"column_name":"id"' in reply.text


async def test_a_path_is_not_taken_for_one_of_several_tables() -> None:
    async with with_tools() as mirror:
        path = await mirror.put(ORDERS)
        reply = await mirror.call("memory_query", {"memory_path": path, "sql": "FROM orders JOIN users USING (id)"})
        assert "Give the path there, with the name of its table" in reply.text
        reply = await mirror.call("memory_query", {"memory_path": "orders-1", "sql": "FROM orders"})
        assert 'No value is stored under "orders-1"' in reply.text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "`sql` with `inputs`"),
        ({"memory_path": "x"}, "`memory_path` with `expression`"),
        ({"memory_path": "x", "sql": "SELECT 1"}, "`sql` reads the tables of `inputs`. Give the path there"),
        ({"memory_path": "x", "sql": "SELECT 1", "inputs": {}}, "`sql` reads the tables of `inputs`. Give the path"),
        ({"memory_path": "x", "expression": "a", "sql": "SELECT 1"}, "Leave `expression` out"),
        ({"expression": "a", "sql": "SELECT 1", "inputs": {"t": [1]}}, "Leave `expression` out"),
        ({"expression": "a", "inputs": {"t": [1]}}, "give one SELECT as `sql` in place of `expression`"),
        ({"memory_path": "x", "expression": "a", "inputs": {"t": [1]}}, "`expression` (JMESPath) reads one value"),
        ({"sql": "SELECT 1", "inputs": [1]}, "'inputs' of memory_query must be an object"),
        ({"sql": "SELECT 1", "inputs": {"a b": [1]}}, "'a b' cannot name an input"),
        ({"sql": "SELECT 1", "inputs": {"a": [1], "A": [2]}}, "Two inputs have the same name"),
        ({"sql": "SELECT 1", "inputs": {f"t{n}": [1] for n in range(101)}}, "100 inputs"),
        ({"sql": "x" * 100_001}, "100,000 are accepted"),
        ({"sql": "FROM t", "inputs": {"t": "list_orders"}}, 'No value is stored under "list_orders"'),
        ({"sql": "FROM t", "inputs": {"t": 5}}, 'The input "t" cannot be read as a table: it is 5.'),
        ({"sql": "FROM t", "inputs": {"t": 10**24}}, "cannot be read as a table: it is 10000000000000000000...."),
        ({"sql": "FROM tt", "inputs": {"t": [1]}}, "The tables are t."),
        ({"sql": "FROM mails", "inputs": {"tables": ["mails"]}}, "call the tool that returns it first"),
        (
            {"sql": "SELECT x FROM t", "inputs": {"t": [{"y": 1}]}},
            "Tables: t(y BIGINT).\nCall memory_query again with a corrected query.",
        ),
        ({"sql": "SELECT y::DATE FROM t", "inputs": {"t": [{"y": "abc"}]}}, 'format: "abc"'),
        ({"sql": "COPY t TO 'x'", "inputs": {"t": [1]}}, "must be one SELECT"),
    ],
)
async def test_mistakes_are_errors_with_the_next_step(mirror: Mirror, arguments: dict[str, Any], expected: str) -> None:
    reply = await mirror.call("memory_query", arguments)
    assert reply.is_error
    assert expected in reply.text
    assert len(reply.text) < 600


async def test_an_unknown_path_is_the_same_error_as_everywhere(mirror: Mirror) -> None:
    path = await mirror.put(USERS)
    wrong = path[:-4] + "0000"
    for inputs in ({"t": wrong}, {"u": path, "t": wrong}):
        reply = await mirror.sql("FROM t", inputs)
        read = await mirror.call("memory_read", {"memory_path": wrong})
        assert (reply.is_error, reply.text) == (True, read.text)
    assert "has no key" in (await mirror.sql("FROM t", {"t": f"{path}/99"})).text


async def test_jmespath_stays_for_one_value(mirror: Mirror) -> None:
    path = await mirror.put(USERS)
    one = {"memory_path": path, "expression": "[?id == `3`].name"}
    for unused in ({}, {"sql": "", "inputs": {}}, {"sql": "", "inputs": ""}, {"sql": None, "inputs": None}):
        assert (await mirror.call("memory_query", {**one, **unused})).text == '["user 3"]\nResult ends.'


@pytest.mark.parametrize(
    "expression", ["select count(*) from t", " SELECT\n  name FROM users", "WITH a AS (FROM t) FROM a"]
)
async def test_sql_in_place_of_jmespath_is_an_error_with_the_sql_form(mirror: Mirror, expression: str) -> None:
    path = await mirror.put(USERS)
    reply = await mirror.call("memory_query", {"memory_path": path, "expression": expression})
    assert reply.is_error
    assert "`expression` is JMESPath, not SQL. Give the query as `sql`" in reply.text
    assert f'{{"t": "{path}"}}' in reply.text
    one = await mirror.put({"select": {"with": 7}})
    assert (await mirror.call("memory_query", {"memory_path": one, "expression": "select . with"})).text.startswith("7")


async def test_arguments_that_the_sql_form_does_not_need_do_no_harm(mirror: Mirror) -> None:
    path = await mirror.put(USERS)
    needed = {"inputs": {"users": path}, "sql": "SELECT name FROM users WHERE id = 3"}
    for unused in ({"memory_path": "", "expression": ""}, {"memory_path": path}, {"memory_path": "memory_query-1"}):
        assert (await mirror.call("memory_query", {**needed, **unused})).text == '[{"name":"user 3"}]\nResult ends.'


async def test_a_fence_around_a_query_is_not_a_part_of_it(mirror: Mirror) -> None:
    arguments = {
        "inputs": {"users": await mirror.put(USERS)},
        "sql": "```sql\nSELECT count(*) AS n FROM users\n```",
    }
    assert (await mirror.call("memory_query", arguments)).text == '[{"n":7}]\nResult ends.'


async def test_each_limit_names_its_key() -> None:
    async with with_tools(memory_tools={"timeout": 1, "query_bytes": "50KB"}) as mirror:
        slow = await mirror.sql(SLOW)
        assert "longer than 1 s (`memory_tools.timeout`)" in slow.text
        endless = await mirror.sql("SELECT * FROM range(1000000000000)")
        assert "`memory_tools.query_bytes`" in endless.text
        users = await mirror.put(USERS * 500)
        two = await mirror.sql("SELECT 1 FROM a, b", {"a": users, "b": users})
        assert "together" in two.text
        assert "`memory_tools.query_bytes`" in two.text
        assert (await mirror.sql("SELECT 1 AS a")).value == [{"a": 1}]


async def test_a_value_can_be_deleted_while_it_is_queried(mirror: Mirror) -> None:
    path = await mirror.put([{"text": "x" * 1000}] * 20_000)
    await mirror.sql("SELECT 1")
    query = "SELECT count(*) AS n FROM t a WHERE len(a.text) = 1000 AND sleep_ms(0) IS NULL"
    running = asyncio.create_task(mirror.sql(query, {"t": path}))
    deleted = await mirror.call("memory_forget", {"memory_path": path})
    assert not deleted.is_error
    reply = await asyncio.wait_for(running, BOUND)
    assert reply.value == [{"n": 20_000}] or "No value is stored" in reply.text or "was deleted" in reply.text


async def test_a_cancelled_call_ends_its_query(mirror: Mirror) -> None:
    await mirror.sql("SELECT 1")
    running = asyncio.create_task(mirror.sql(SLOW))
    done, _ = await asyncio.wait({running}, timeout=0.3)
    assert not done
    running.cancel()
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await mirror.sql("SELECT 2 AS a")).value == [{"a": 2}]


async def test_a_query_is_recorded_without_its_values(configured: Configured, tmp_path: Any) -> None:
    log = tmp_path / "audit.jsonl"
    async with Mirror(upstreams=str(configured({}, audit={"path": str(log)}))) as mirror:
        stored = await mirror.put([{"secret": "c4nary"}])
        await mirror.sql("SELECT secret FROM t WHERE secret = 'c4nary'", {"t": stored})
    text = log.read_text()
    assert "c4nary" not in text
    assert stored not in text
    (record,) = [one for one in map(json.loads, text.splitlines()) if one["tool"] == "memory_query"]
    assert len(record["sql"]) == 64
    assert record["inputs"]
    assert record["outcome"] == "ok"


async def test_without_the_package_there_is_no_sql(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("mcp_mirror.assembly", "mcp_mirror.library.mirror"):
        monkeypatch.setattr(f"{module}.find_spec", lambda _name: None)
    async with with_tools() as mirror:
        (advert,) = [tool for tool in mirror.tools("mcp") if tool["name"] == "memory_query"]
        assert "sql" not in json.dumps(advert).lower()
        assert "has no argument 'sql'" in (await mirror.call("memory_query", {"sql": "SELECT 1"})).text
        with pytest.raises(MirrorError, match=r"pip install 'mcp-mirror\[sql\]'"):
            await mirror.sql("SELECT 1")


async def test_sql_costs_few_tokens_of_the_definition(monkeypatch: pytest.MonkeyPatch, count_tokens: Any) -> None:
    costs = []
    for _ in range(2):
        async with with_tools() as mirror:
            (advert,) = [tool for tool in mirror.tools("mcp") if tool["name"] == "memory_query"]
            costs.append(count_tokens(json.dumps(advert)))
        monkeypatch.setattr("mcp_mirror.assembly.find_spec", lambda _name: None)
    assert 0 < costs[0] - costs[1] <= 70  # the example of a join costs half of it (docs/evaluation/wording.md)


def test_a_program_without_asyncio_runs_queries() -> None:
    with SyncMirror() as mirror:
        assert mirror.sql("SELECT max(id) AS n FROM t", {"t": mirror.put(ORDERS)}).value == [{"n": 1499}]


@pytest.mark.parametrize("kind", sample(["memory", "disk"], lambda kind: kind == "disk"))
async def test_a_real_client_joins_stored_values(
    configured: Configured, connect: Connect, kind: str, tmp_path: Any
) -> None:
    store = {"kind": kind, "path": str(tmp_path / "store") if kind == "disk" else None}
    async with connect(configured({}, store=store)) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(listed["memory_query"].input_schema["properties"]) == {"memory_path", "expression", "sql", "inputs"}
        paths = {}
        for name, value in {"orders": ORDERS, "users": USERS * 2000}.items():
            stored = await client.call_tool("memory_put", {"value": value})
            paths[name] = path_in(stored.content[0].text)  # type: ignore[union-attr]
        query = JOIN.replace("users u", "(SELECT DISTINCT * FROM users) u")
        result = await client.call_tool("memory_query", {"sql": query, "inputs": paths})
        assert json.loads(result.content[0].text) == JOINED  # type: ignore[union-attr]
        wrong = await client.call_tool("memory_query", {"sql": "SELECT nam FROM users", "inputs": paths})
        assert wrong.is_error
        assert "Tables: users(id BIGINT, name VARCHAR); orders(" in wrong.content[0].text or "orders(id" in str(wrong)  # type: ignore[union-attr]

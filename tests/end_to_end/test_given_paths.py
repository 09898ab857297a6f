"""Paths and notices as models give them: pasted whole, within other text, and where another value fits."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import pytest_asyncio
from gateway_processes import forked_upstream
from tests.end_to_end.conftest import BOUND

from mcp_mirror import Mirror

OFFICE = Path(__file__).parents[2] / "evals" / "servers" / "office.py"


def with_report(received: list[str]) -> Mirror:
    """A mirror with a tool whose result is stored, and one that keeps the text that it receives."""
    mirror = Mirror()

    @mirror.tool
    def report() -> str:
        return "A line of the report.\n" * 2_000

    @mirror.tool
    def save(content: str) -> str:
        received.append(content)
        return "saved"

    return mirror


def as_block(text: str, **members: Any) -> str:
    return json.dumps({"type": "text", "text": text, "annotations": None, "meta": None, **members})


async def test_a_path_or_notice_in_a_pasted_text_block_is_its_value() -> None:
    received: list[str] = []
    async with with_report(received) as mirror:
        stored = await mirror.call("report_mirrored", {})
        for text in (str(stored.path), stored.text):
            block = as_block(text)
            for pasted in (block, f"{block}}}", f'{block}", "', json.dumps({"text": text, "type": "text"})):
                assert (await mirror.call("save_mirrored", {"content": pasted})).text == "saved"
                assert received.pop().startswith("A line of the report.")
                read = await mirror.call("memory_read", {"memory_path": pasted})
                assert "A line of the report." in read.text
        path = str(stored.path)
        for other in (
            as_block(f"see {path}"),
            as_block(path, type="file"),
            as_block(path, annotations={"priority": 1}),
        ):
            await mirror.call("save_mirrored", {"content": other})
            assert received.pop() == other


@pytest.mark.parametrize("text", ["see {}", "Dear all,\n\n{}\n\nBest", "<memory>{}</memory>"])
async def test_a_reply_says_that_a_path_within_a_text_was_sent_as_text(text: str) -> None:
    received: list[str] = []
    async with with_report(received) as mirror:
        path = str((await mirror.call("report_mirrored", {})).path)
        reply = await mirror.call("save_mirrored", {"content": text.format(path)})
        assert received == [text.format(path)]
        assert reply.text == (
            f'saved\nNote: "content" has the path "{path}" within other text, so the tool got this text and not the '
            "value. To pass the value, give only the path."
        )
        unknown = f"{path[:-12]}{'0' * 12}"
        assert (await mirror.call("save_mirrored", {"content": text.format(unknown)})).text == "saved"


async def test_a_copied_notice_without_its_path_is_the_only_value_like_it() -> None:
    received: list[str] = []
    async with with_report(received) as mirror:
        stored = await mirror.call("report_mirrored", {})
        rest = stored.text.partition("\n")[2]
        miscounted = re.sub("[0-9,]+ lines [.]", "77 lines .", rest)
        assert miscounted != rest
        for pasted in (rest, f" {rest}\n", as_block(rest), miscounted):
            assert (await mirror.call("save_mirrored", {"content": pasted})).text == "saved"
            assert received.pop() == "A line of the report.\n" * 2_000
            read = await mirror.call("memory_read", {"memory_path": pasted})
            assert "A line of the report." in read.text
        described, *_, used = rest.splitlines()
        other_text = f"{described}\n| another\n| text\n{used}"
        assert (await mirror.call("save_mirrored", {"content": other_text})).is_error
        assert (await mirror.call("save_mirrored", {"content": rest}, namespace="other")).is_error
    assert received == []


@pytest.mark.parametrize("line", ["Line {} of the report.", "Line {} of the report " + 20 * "that is very long "])
async def test_a_copied_preview_is_refused_where_it_is_cut(line: str) -> None:
    received: list[str] = []
    async with Mirror() as mirror:

        @mirror.tool
        def report() -> str:
            return "\n".join(line.format(number) for number in range(2_000))

        @mirror.tool
        def save(content: str, note: str = "") -> str:
            received.append(content)
            return f"saved{note}"

        @mirror.tool
        def save_all(files: list[dict[str, list[str]]]) -> str:
            received.append(str(files))
            return "saved"

        stored = await mirror.call("report_mirrored", {})
        marked = [each for each in stored.text.splitlines() if each.startswith("| ")]
        shown = [each.removeprefix("| ") for each in marked]
        for copied in ("\n".join(shown), "\n".join(marked), f"Dear all,\n{shown[0]}\n{' '.join(shown[1:])}\n"):
            refused = await mirror.call("save_mirrored", {"content": copied, "note": "..."})
            assert refused.is_error
            assert refused.text.endswith(f'call again with "content": "{stored.path}".')
        refused = await mirror.call("save_all_mirrored", {"files": [{"parts": ["a", "\n".join(shown)]}]})
        assert refused.text.endswith(f'call again with "parts": "{stored.path}".')
        assert received == []
        whole = [each for each in shown if not each.endswith("...")] or [shown[0].rstrip(".")]
        for kept in ("\n".join(whole), "to be continued ...", "a ... 1,992 lines ... b"):
            assert (await mirror.call("save_mirrored", {"content": kept})).text == "saved"
            assert received.pop() == kept
        copied = "\n".join(shown)
        assert (await mirror.call("save_mirrored", {"content": copied}, namespace="other")).text == "saved"


async def test_a_line_that_ends_in_three_dots_itself_is_not_a_cut_one() -> None:
    received: list[str] = []
    line = "Loading the configuration of the production cluster..."
    async with Mirror() as mirror:

        @mirror.tool
        def report() -> str:
            return f"{line}\n" * 2_000

        @mirror.tool
        def save(content: str) -> str:
            received.append(content)
            return "saved"

        stored = await mirror.call("report_mirrored", {})
        assert f"| {line}\n" in stored.text
        assert (await mirror.call("save_mirrored", {"content": f"It says: {line}"})).text == "saved"
    assert received == [f"It says: {line}"]


async def test_a_shown_text_pasted_whole_is_the_value() -> None:
    received: list[str] = []
    async with with_report(received) as mirror:

        @mirror.tool
        def note() -> str:
            return "A line of the note.\n" * 80

        shown = (await mirror.call("note_mirrored", {})).text
        first, _, rest = shown.partition("\n")
        assert rest.startswith("\nA line of the note.\n")
        for pasted in (first, shown, as_block(shown)):
            assert (await mirror.call("save_mirrored", {"content": pasted})).text == "saved"
            assert received.pop() == "A line of the note.\n" * 80
        use, end = shown.splitlines()[-2:]
        for pasted in (use, f"{use}\n{end}"):
            refused = await mirror.call("save_mirrored", {"content": pasted})
            assert refused.is_error
            assert refused.text.startswith(f"{first}\n")
    assert received == []


async def test_a_notice_of_a_text_after_a_sentence_stands_for_the_text() -> None:
    received: list[str] = []
    async with with_report(received) as mirror:

        @mirror.tool
        def download() -> list[str]:
            return ["The download is complete.", "A line of the file.\n" * 2_000]

        stored = await mirror.call("download_mirrored", {})
        first, _, rest = stored.text.partition("\n")
        assert first == f'"{stored.path}/1"'
        for pasted in (first, stored.text, as_block(stored.text), rest, as_block(rest)):
            assert (await mirror.call("save_mirrored", {"content": pasted})).text == "saved"
            assert received.pop() == "A line of the file.\n" * 2_000
            read = await mirror.call("memory_read", {"memory_path": pasted})
            assert read.text.startswith("A line of the file.")
    assert "The download is complete." in rest


async def test_a_pasted_notice_of_several_values_is_refused_and_named() -> None:
    received: list[str] = []
    async with with_report(received) as mirror:
        await mirror.call("report_mirrored", {})
        stored = await mirror.call("report_mirrored", {})
        path, (_, _, rest) = str(stored.path), stored.text.partition("\n")
        for pasted in (rest, as_block(rest)):
            refused = await mirror.call("save_mirrored", {"content": pasted})
            assert refused.is_error
            assert refused.text.startswith(f'"{path}"\nThis path stands for the newest result.')
            assert received == []
        assert (await mirror.call("save_mirrored", {"content": refused.text})).text == "saved"
        assert received.pop().startswith("A line of the report.")
        # a text that only speaks of notices, and one that the model marks as literal, are sent
        for text in (f"{rest}\nThe end.", f"literal:{rest}"):
            assert (await mirror.call("save_mirrored", {"content": text})).text == "saved"
    assert received == [f"{rest}\nThe end.", rest]


@dataclass
class Order:
    id: int
    status: str


@dataclass
class Parcel:
    orders: list[Order]
    to: str


def with_orders(rows: list[dict[str, Any]], config: Mapping[str, Any] | None = None) -> Mirror:
    mirror = Mirror(upstreams=config)

    @mirror.tool
    def found() -> list[Any]:
        return [f"Found {len(rows)} orders.", rows]

    @mirror.tool
    def page() -> dict[str, Any]:
        return {"total": len(rows), "orders": rows, "next": "abc"}

    @mirror.tool
    def count(orders: list[dict[str, Any]]) -> int:
        return len(orders)

    @mirror.tool
    def describe(order: dict[str, Any]) -> str:
        return json.dumps(order)

    @mirror.tool
    def close(order: Order) -> int:
        return order.id

    @mirror.tool
    def find(number: int) -> str:
        return json.dumps(rows[number])

    @mirror.tool
    def place(order: Order, orders: list[Order]) -> str:
        return f"{order.id} of {len(orders)}"

    return mirror


ROWS = [{"id": number, "status": "open"} for number in range(900)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mirror() -> AsyncIterator[Mirror]:
    async with with_orders(ROWS) as mirror:
        yield mirror


async def test_a_path_that_fits_is_found_in_a_large_object() -> None:
    async with with_orders(ROWS * 60) as mirror:
        path = str((await mirror.call("page_mirrored", {})).path)
        refused = await mirror.call("count_mirrored", {"orders": f"{path}/total"})
        assert refused.text.endswith(f'Pass a path that fits, such as "{path}/orders".')


async def test_a_small_array_beside_a_large_one_has_its_own_items() -> None:
    mirror = with_orders(ROWS * 60)

    @mirror.tool
    def orders() -> dict[str, Any]:
        return {"orders": ROWS * 60, "closed": [{"id": -1}, {"id": -2}]}

    async with mirror:
        path = str((await mirror.call("orders_mirrored", {})).path)
        for part, row in (("closed/1", {"id": -2}), ("orders/1", ROWS[1])):
            found = await mirror.call("retrieve_final_answer_from_memory", {"memory_path": f"{path}/{part}"})
            assert json.loads(found.text) == row


async def test_an_argument_takes_the_key_of_its_name_from_an_object() -> None:
    received: list[Any] = []
    mirror = with_orders(ROWS * 60)

    @mirror.tool
    def deliver(orders: list[dict[str, Any]], total: int, note: str, page: dict[str, Any]) -> str:
        received[:] = [len(orders), total, json.loads(note), page]
        return "delivered"

    @mirror.tool
    def send(orders: list[dict[str, Any]], box: dict[str, list[int]]) -> str:
        return f"{len(orders)} and {box}"

    async with mirror:
        path = str((await mirror.call("page_mirrored", {})).path)
        assert (await mirror.call("count_mirrored", {"orders": path})).text == "54000"
        await mirror.call("deliver_mirrored", dict.fromkeys(("orders", "total", "note", "page"), path))
        page = await mirror.read(path)
        assert received == [54_000, 54_000, page, page]  # only arguments that accept no object take its key
        nested = await mirror.put({"a": {"orders": [{}]}, "orders": "none"})
        assert (await mirror.call("count_mirrored", {"orders": f"{nested}/a"})).text == "1"
        assert (await mirror.call("count_mirrored", {"orders": nested})).is_error
        boxed = await mirror.put({"orders": [{}, {}], "left": [1]})
        sent = await mirror.call("send_mirrored", {"orders": boxed, "box": {"left": boxed}})
        assert sent.text == "2 and {'left': [1]}"


async def test_for_the_path_of_a_picture_the_rows_beside_it_fit() -> None:
    office = forked_upstream(str(OFFICE), tools={"allow": ["plot_sales", "archive_rows"]})
    async with Mirror(upstreams={"upstreams": {"office": office}, "mirror": {"startup_wait": BOUND}}) as mirror:
        drawn = await mirror.call("plot_sales_mirrored", {"year": 2025})
        picture = re.search(r'"(plot_sales-[^"]+/1)" image/png', drawn.text)
        assert picture is not None, drawn.text
        for beside in (picture[1], picture[1].removesuffix("/1") + "/0"):
            refused = await mirror.call("archive_rows_mirrored", {"rows": beside})
            assert refused.text.endswith(f'Pass a path that fits, such as "{drawn.path}/rows".')
        assert (await mirror.call("archive_rows_mirrored", {"rows": f"{drawn.path}/rows"})).text.startswith(
            "Archived 52"
        )


async def test_for_the_path_of_a_text_and_a_picture_the_picture_fits_a_text() -> None:
    mirror = Mirror()

    @mirror.tool
    async def measure(picture: str) -> int:
        """The characters of base64."""
        return len(picture)

    async with mirror:
        image = {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}
        both = await mirror.put(["The screen:", image])
        refused = await mirror.call("measure_mirrored", {"picture": both})
        assert refused.is_error
        assert refused.text.endswith(f'Pass a path that fits, such as "{both}/1".')
        assert (await mirror.call("measure_mirrored", {"picture": f"{both}/1"})).text == "8"


async def test_a_path_that_fits_is_found_within_the_main_object() -> None:
    mirror = with_orders(ROWS)

    @mirror.tool
    def select(note: str) -> dict[str, Any]:
        return {"success": True, "note": note, "data": {"rows": ROWS, "count": len(ROWS)}}

    async with mirror:
        for note, advised in (("short", "/data/rows"), ("long " * 9000, "/data/rows")):
            path = str((await mirror.call("select_mirrored", {"note": note})).path)
            for part in ("", "/data", "/data/count"):
                refused = await mirror.call("count_mirrored", {"orders": f"{path}{part}"})
                assert refused.text.endswith(f'Pass a path that fits, such as "{path}{advised}".')


async def test_memory_tools_refuse_wrong_paths_of_another_gateway(tmp_path: Path) -> None:
    config = {"store": {"kind": "disk", "path": str(tmp_path / "store")}, "memory_tools": "all"}
    async with Mirror(upstreams=config) as other, with_orders(ROWS, config) as mirror:  # it does not know the tools yet
        path = str((await mirror.call("page_mirrored", {})).path)
        made = await other.call("memory_put", {"value": {"row": f"{path}/orders/7"}})
        assert await other.read(f"{made.path}/row") == ROWS[7]
        for wrong, cause in (
            (f"{path}/nothing", 'has no key "nothing". Its keys are'),
            (f"{path[:-4]}0000", "The path is not exact: call again with"),
        ):
            for tool, arguments in (
                ("memory_put", {"value": {"row": wrong}}),
                ("memory_edit", {"memory_path": made.path, "merge": {"row": wrong}}),
                ("memory_run", {"code": "t", "inputs": {"t": wrong}}),
                ("memory_query", {"sql": "FROM t", "inputs": {"t": [wrong]}}),
            ):
                refused = await other.call(tool, arguments)
                assert refused.is_error
                assert cause in refused.text


@pytest.mark.parametrize(
    ("body", "query"),
    [
        ("id,name\n" + "1,Ada\n" * 900, {"sql": "SELECT * FROM t"}),
        (json.dumps({"total": 20, "the rows": ROWS, "tags": [1]}), {"expression": '"the rows"'}),
        (json.dumps({"rows": ROWS}), {"expression": "rows"}),
    ],
)
async def test_a_text_with_rows_is_refused_with_the_query_that_makes_them(
    mirror: Mirror, body: str, query: dict[str, str]
) -> None:
    (argument, written), text = next(iter(query.items())), f"[Read lines]\n\n{body}"
    path = await mirror.put(text)
    refused = await mirror.call("count_mirrored", {"orders": path})
    assert refused.is_error
    assert f": pass the result of memory_query with the `{argument}` {written}" in refused.text
    given = {"inputs": {"t": path}} if argument == "sql" else {"memory_path": path}
    found = await mirror.call("memory_query", {**query, **given})
    assert (await mirror.call("count_mirrored", {"orders": str(found.path)})).text == "900"
    async with with_orders(ROWS, {"memory_tools": "minimal"}) as other:
        refused = await other.call("count_mirrored", {"orders": await other.put(text)})
        assert refused.text.endswith("is text. Pass another path that fits, or a literal value.")


async def test_one_value_for_an_argument_with_several_gets_an_array_of_its_path() -> None:
    async with Mirror() as mirror:

        @mirror.tool
        def send(to: list[str], ids: list[int] | None = None) -> str:
            return f"{to} {ids}"

        path = await mirror.put({"from": "ada@example.org", "id": 7, "more": {"of": "it"}})
        for argument, key, sent in (("to", "from", "['ada@example.org'] None"), ("ids", "id", "[] [7]")):
            refused = await mirror.call("send_mirrored", {"to": [], argument: f"{path}/{key}"})
            assert refused.is_error
            assert refused.text.endswith(f' Pass an array with the path: ["{path}/{key}"].')
            assert (await mirror.call("send_mirrored", {"to": [], argument: [f"{path}/{key}"]})).text == sent
        refused = await mirror.call("send_mirrored", {"to": f"{path}/more"})
        assert refused.text.endswith("is object. Pass a path below it that fits, or a literal value.")


async def test_a_text_without_rows_is_refused_without_a_query(mirror: Mirror) -> None:
    for text in ("two\nlines", 'Total:\n{"total": 20}'):
        refused = await mirror.call("count_mirrored", {"orders": await mirror.put(text)})
        assert refused.text.endswith("is text. Pass another path that fits, or a literal value.")
    refused = await mirror.call("close_mirrored", {"order": await mirror.put("id,status\n" + "1,open\n" * 9)})
    assert refused.text.endswith("is text. Pass another path that fits, or a literal value.")


@pytest.mark.parametrize(
    ("tool", "given", "advised"),
    [
        ("found", ("/0", "/1/0"), "/1"),
        ("page", ("/total", "/orders/0"), "/orders"),
    ],
)
async def test_a_value_of_another_type_is_refused_with_a_path_that_fits(
    mirror: Mirror, tool: str, given: tuple[str, ...], advised: str
) -> None:
    base = str((await mirror.call(f"{tool}_mirrored", {})).path)
    for part in given:
        refused = await mirror.call("count_mirrored", {"orders": f"{base}{part}"})
        assert refused.is_error
        assert refused.text.endswith(f'Pass a path that fits, such as "{base}{advised}".')
    assert (await mirror.call("count_mirrored", {"orders": f"{base}{advised}"})).text == "900"
    row = await mirror.call("close_mirrored", {"order": f"{base}{advised}"})
    assert row.text.endswith(f'Pass a path that fits, such as "{base}{advised}/0".')
    whole = "" if tool == "page" else f"{advised}/0"  # only the page is an object
    described = await mirror.call("describe_mirrored", {"order": f"{base}{advised}"})
    assert described.text.endswith(f'Pass a path that fits, such as "{base}{whole}".')
    assert (await mirror.call("count_mirrored", {"orders": [f"{base}{advised}"]})).text == "900"
    both = {"order": f"{base}{advised}/7", "orders": [f"{base}{advised}"]}
    assert (await mirror.call("place_mirrored", both)).text == "7 of 900"
    nested = await mirror.call("count_mirrored", {"orders": [f"{base}{advised}", {}]})
    assert nested.text.endswith("is array. Pass the path itself, not an array with the path.")
    rows = await mirror.call("count_mirrored", {"orders": [f"{base}{advised}/0"]})
    assert rows.text == "1"
    item = await mirror.call("count_mirrored", {"orders": [f"{base}{advised}/0/id", {}]})
    assert item.text.endswith(f'Pass a path that fits, such as "{base}{advised}/0".')
    nothing = await mirror.call("count_mirrored", {"orders": f"{base}{advised}/0/id"})
    assert nothing.text.endswith("Pass another path that fits, or a literal value.")


@pytest.mark.parametrize(
    ("wrap", "container"),
    [
        (lambda path: {"memory_path": path}, "object"),
        (lambda path: {"type": "text", "text": path}, "object"),
        (lambda path: {"content": [{"type": "text", "text": path}], "isError": False}, "object"),
        (lambda path: [path], "array"),
        (lambda path: {"note": f"literal:{path}", "path": path}, "object"),
    ],
)
async def test_a_path_within_an_object_where_a_text_fits_is_refused(
    wrap: Callable[[str], object], container: str
) -> None:
    mirror = Mirror()

    @mirror.tool
    def measure(text: str) -> int:
        return len(text)

    async with mirror:
        path = await mirror.put({"content": "a long text " * 500})
        refused = await mirror.call("measure_mirrored", {"text": wrap(f"{path}/content")})
        assert refused.is_error
        assert refused.text.endswith(f"Pass the path itself, not an {container} with the path.")
        assert (await mirror.call("measure_mirrored", {"text": f"{path}/content"})).text == "6000"


@pytest.mark.parametrize("text", ["/1", "path", "path/0", '"/1"', "the orders", "count_mirrored/0"])
async def test_a_text_where_only_data_fit_is_refused_with_the_newest_path(text: str) -> None:
    async with with_orders(ROWS) as mirror:
        refused = await mirror.call("count_mirrored", {"orders": text})
        assert refused.text.endswith(" Correct them and call again.")
        base = str((await mirror.call("found_mirrored", {})).path)
        refused = await mirror.call("count_mirrored", {"orders": text})
        assert refused.is_error
        assert refused.text.endswith(f'Pass a path that fits, such as "{base}/1".')
        other = await mirror.call("count_mirrored", {"orders": text}, namespace="other")
        assert base not in other.text
        page = str((await mirror.call("page_mirrored", {})).path)
        refused = await mirror.call("count_mirrored", {"orders": text})
        assert refused.text.endswith(f'Pass a path that fits, such as "{page}/orders".')


async def test_a_path_is_refused_without_a_value_around_it_that_is_invalid(mirror: Mirror) -> None:
    parts = await mirror.put(["two\nlines", 'Rows:\n\n{"rows": [{"id": 1}]}', 7])
    refused = await mirror.call("count_mirrored", {"orders": f"{parts}/0"})
    assert refused.text.endswith("is text. Pass another path that fits, or a literal value.")
    refused = await mirror.call("count_mirrored", {"orders": f"{parts}/1"})
    assert refused.text.endswith("pass the result of memory_query with the `expression` rows.")
    refused = await mirror.call("count_mirrored", {"orders": await mirror.put({"orders": [1], "total": 1})})
    assert "orders.0: 1 is not of type" in refused.text


@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("close", {"order": "/home/ada/order.json"}),
        ("place", {"order": {"id": 1, "status": "open"}, "orders": "/home/ada/orders.json"}),
        ("ship", {"parcels": [{"orders": "all", "to": "Ada"}]}),
    ],
)
async def test_a_text_is_refused_with_a_path_only_if_its_value_is_valid(tool: str, given: dict[str, Any]) -> None:
    for rows in (ROWS, [{"id": "none"}] * 900):
        mirror = with_orders(rows)

        @mirror.tool
        def ship(parcels: list[Parcel]) -> int:
            return len(parcels)

        async with mirror:
            if tool == "close":
                await mirror.put(rows[0])
            else:
                await mirror.call("page_mirrored", {})
            refused = await mirror.call(f"{tool}_mirrored", given)
            assert refused.is_error
            assert ("Pass a path that fits, such as " in refused.text) is (rows is ROWS)
            assert refused.text.endswith(" Correct them and call again.") is (rows is not ROWS)


async def test_a_text_for_a_number_is_refused_with_a_path_only_if_it_is_one(mirror: Mirror) -> None:
    path = str((await mirror.call("page_mirrored", {})).path)
    refused = await mirror.call("find_mirrored", {"number": "/total"})
    assert refused.text.endswith(f'Pass a path that fits, such as "{path}/total".')
    for other in ("the last", "/next", "/none"):
        refused = await mirror.call("find_mirrored", {"number": other})
        assert refused.text.endswith(" Correct them and call again.")


async def test_the_error_of_another_argument_advises_no_path_for_json_text() -> None:
    mirror = with_orders(ROWS)

    @mirror.tool
    def draw(orders: list[Order], kind: Literal["bar", "pie"]) -> str:
        return f"{kind} {len(orders)}"

    async with mirror:
        path = str((await mirror.call("page_mirrored", {})).path)
        orders = json.dumps(ROWS[:2])
        assert str(await mirror.call("draw_mirrored", {"orders": orders, "kind": "bar"})) == "bar 2"
        refused = await mirror.call("draw_mirrored", {"orders": orders, "kind": "line"})
        assert refused.text.endswith('kind: "line" is not one of "bar" or "pie". Correct them and call again.')
        refused = await mirror.call("draw_mirrored", {"orders": "the orders", "kind": "bar"})
        assert refused.text.endswith(f'Pass a path that fits, such as "{path}/orders".')


async def test_paths_in_the_json_text_of_an_argument_are_replaced() -> None:
    mirror, got = with_orders(ROWS), list[Any]()

    @mirror.tool
    def keep(body: dict[str, Any], rows: list[Any] | None = None) -> str:
        got.append((body, rows))
        return "kept"

    @mirror.tool
    def note(text: str) -> str:
        return text

    async with mirror:
        path = str((await mirror.call("page_mirrored", {})).path)
        orders = await mirror.read(f"{path}/orders")
        for body, rows in (
            (json.dumps({"orders": f"{path}/orders"}), json.dumps([f"{path}/orders/1", {"first": f"{path}/orders/0"}])),
            (f"```json\n{json.dumps({'orders': f'{path}/orders'}, indent=1)}\n```", [f"{path}/orders/1"]),
            ({"orders": f"{path}/orders"}, json.dumps([f"{path}/orders"])),
        ):
            assert (await mirror.call("keep_mirrored", {"body": body, "rows": rows})).text == "kept"
            assert got[-1][0] == {"orders": orders}
        assert [rows for _, rows in got] == [[orders[1], {"first": orders[0]}], [orders[1]], [orders]]
        unknown = f"{path[:-4]}0000"
        refused = await mirror.call("keep_mirrored", {"body": json.dumps({"orders": unknown})})
        assert refused.text.startswith(f'No value is stored under "{unknown}"')
        assert len(got) == 3
        for text in (json.dumps({"orders": path}), json.dumps([path, path])):
            assert (await mirror.call("note_mirrored", {"text": text})).text.startswith(text)
        literal = json.dumps({"orders": f"literal:{path}"})
        await mirror.call("keep_mirrored", {"body": literal})
        assert got.pop()[0] == {"orders": path}
        whole = await mirror.read(path)
        for pasted in (as_block(path), json.dumps({"content": [{"type": "text", "text": path}], "isError": False})):
            await mirror.call("keep_mirrored", {"body": pasted})
            assert got.pop()[0] == whole


@pytest.mark.parametrize(
    ("given", "received"),
    [(7, "7"), (1.5, "1.5"), (True, "true"), ({"a": [None]}, '{"a":[null]}'), ("7", "7")],
)
async def test_a_value_for_a_text_argument_goes_as_its_text(given: object, received: str) -> None:
    mirror = Mirror()

    @mirror.tool
    def save(content: str, size: int | str = 0) -> str:
        return f"saved {content} {size}"

    async with mirror:
        reply = await mirror.call("save_mirrored", {"content": given})
        assert reply.text == f"saved {received} 0"
        refused = await mirror.call("save_mirrored", {"content": given, "size": 1.5})
        assert refused.text.startswith("The arguments do not fit tool 'save_mirrored': size: 1.5 is not")


async def test_a_text_for_a_list_of_texts_is_refused_with_a_path_if_it_is_one() -> None:
    mirror = with_orders(ROWS)

    @mirror.tool
    def list_names() -> dict[str, list[str]]:
        return {"names": [f"name {number}" for number in range(3000)]}

    @mirror.tool
    def lint(files: list[str]) -> int:
        return len(files)

    async with mirror:
        path = str((await mirror.call("list_names_mirrored", {})).path)
        for other in ("/home/you/main.js", "main.js"):
            refused = await mirror.call("lint_mirrored", {"files": other})
            assert refused.text.endswith('is not of type "array". Correct them and call again.')
        refused = await mirror.call("lint_mirrored", {"files": "/names"})
        assert refused.text.endswith(f'Pass a path that fits, such as "{path}/names".')


async def test_a_part_in_the_words_of_a_notice_is_refused_with_its_whole_path(mirror: Mirror) -> None:
    base = str((await mirror.call("found_mirrored", {})).path)
    for text, advised in (("path/0", "/1/0"), ("/1/7", "/1/7"), ("/0", "/1/0")):
        refused = await mirror.call("describe_mirrored", {"order": text})
        assert refused.text.endswith(f'Pass a path that fits, such as "{base}{advised}".')


@pytest.mark.parametrize("given", ["the orders", "/next", "{path}/next", "{path}/total"])
async def test_no_advice_names_a_part_of_a_value_that_the_model_may_not_see(given: str) -> None:
    flows = {"flows": {"model": {"accepts": {"confidentiality": "public"}}}}
    async with with_orders(ROWS, flows) as mirror:
        path = str((await mirror.call("page_mirrored", {})).path)
        refused = await mirror.call("count_mirrored", {"orders": given.format(path=path)})
        assert refused.is_error
        assert "such as" not in refused.text

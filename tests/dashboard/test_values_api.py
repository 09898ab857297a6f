"""Stored values in the dashboard: lists, facts, parts, images, downloads and deletion."""

from __future__ import annotations

import json
import time

import pytest
from tests.dashboard.conftest import Page
from tests.dashboard.samples import HOSTILE, NOW, base_of, fill_busy, image_block, orders, png, put
from tests.load import measure_pause, slowness

from mcp_mirror.observability.audit import Audit
from mcp_mirror.security.flows import Flows
from mcp_mirror.settings.labels import FlowRule, FlowsPolicy
from mcp_mirror.types import Descriptor

CHANGE = {"x-mcp-mirror": "1"}


async def test_the_list_shows_the_newest_values_with_their_facts(page: Page) -> None:
    await fill_busy(page.store)
    listed = await page.get("values")
    assert [one["tool"] for one in listed["values"]][:3] == ["memory_query", "measure", "build_report"]
    report = next(one for one in listed["values"] if one["tool"] == "build_report")
    assert report["labels"]["confidentiality"] == "internal"
    assert report["inputs"] == [base_of("list_orders", 1)]
    assert (listed["total"], listed["next"]) == (6, None)


@pytest.mark.parametrize(
    ("query", "tools"),
    [
        ({"search": "ORDERS"}, ["list_orders"]),
        ({"search": "internal"}, ["build_report"]),
        ({"search": "image/png"}, ["screenshot"]),
        ({"search": base_of("measure", 5)}, ["measure"]),
        ({"kind": "array"}, ["memory_query", "list_orders"]),
        ({"tool": "list_orders"}, ["list_orders"]),
        ({"smallest": "100000"}, ["read_text_file", "list_orders"]),
        ({"largest": "30"}, ["measure"]),
        ({"search": "nothing like it"}, []),
    ],
)
async def test_filters_select_values(page: Page, query: dict[str, str], tools: list[str]) -> None:
    await fill_busy(page.store)
    assert [one["tool"] for one in (await page.get("values", **query))["values"]] == tools


@pytest.mark.slow
async def test_ten_thousand_values_come_page_by_page(page: Page) -> None:
    for at in range(10_000):
        await put(page.store, b"1", f"tool_{at % 7}", at, created=NOW - 10_000 + at)
    begun = time.perf_counter()
    listed = await page.get("values")
    assert time.perf_counter() - begun < 2
    assert (len(listed["values"]), listed["total"]) == (100, 10_000)
    seen, after = set(), None
    for _ in range(4):
        listed = await page.get("values", **({"after": after} if after else {}))
        seen |= {one["path"] for one in listed["values"]}
        after = listed["next"]
    assert len(seen) == 400
    assert seen == {base_of(f"tool_{at % 7}", at) for at in range(9_600, 10_000)}


async def test_a_search_reads_a_bounded_number_of_values_at_once(page: Page) -> None:
    await put(page.store, b"1", "rare", 9, created=NOW - 99)
    for at in range(2_100):
        await put(page.store, b"1", "often", at + 10, created=NOW)
    first = await page.get("values", search="rare")
    assert (first["values"], first["searched"]) == ([], 2_000)
    second = await page.get("values", search="rare", after=first["next"])
    assert [one["tool"] for one in second["values"]] == ["rare"]


async def test_a_deleted_page_boundary_is_explained(page: Page) -> None:
    assert await page.refuse("values", after=base_of("gone", 1)) == (
        404,
        "The last value of the previous page has been deleted. Begin at the first page.",
    )


async def test_an_array_of_objects_is_a_table(page: Page) -> None:
    path = await put(page.store, orders(1500), "list_orders", 1)
    part = await page.get("part", path=path, offset=1498, limit=10)
    assert (part["view"], part["total"], part["next"]) == ("table", 1500, None)
    assert part["columns"] == ["order_id", "customer", "amount_cents", "status", "items"]
    assert part["rows"][1][0] == ["number", "2499"]
    assert part["rows"][1][4][0] == "array"


async def test_rows_with_other_keys_have_empty_cells(page: Page) -> None:
    path = await put(page.store, [{"a": 1}, {"b": None, "a": "x" * 1000}], "t", 1)
    part = await page.get("part", path=path)
    assert part["columns"] == ["a", "b"]
    assert part["rows"][0] == [["number", "1"], None]
    assert part["rows"][1][0] == ["text", "x" * 300 + "…"]


async def test_a_wide_table_shows_its_first_columns(page: Page) -> None:
    path = await put(page.store, [{f"k{at}": at for at in range(100)}], "t", 1)
    part = await page.get("part", path=path)
    assert (len(part["columns"]), part["hidden_columns"]) == (40, True)


async def test_a_text_comes_in_numbered_lines(page: Page) -> None:
    path = await put(page.store, "".join(f"line {at}\r\n" for at in range(5_000)) + "end", "t", 1)
    part = await page.get("part", path=path, offset=4_999, limit=100)
    assert (part["view"], part["total"], part["lines"]) == ("text", 5_001, ["line 4999", "end"])
    first = await page.get("part", path=path, limit=2)
    assert (first["lines"], first["next"]) == (["line 0", "line 1"], 2)


async def test_a_very_long_line_is_cut(page: Page) -> None:
    path = await put(page.store, "a" * 3_000_000 + "\nb", "t", 1)
    part = await page.get("part", path=path)
    assert part["lines"] == ["a" * 2_000 + "…", "b"]


async def test_an_object_is_a_tree_whose_entries_continue_its_path(page: Page) -> None:
    path = await put(page.store, {"a/b": {"~": [1, 2]}, "c": "x"}, "t", 1)
    part = await page.get("part", path=path)
    assert [(one["key"], one["token"], one["kind"]) for one in part["entries"]] == [
        ("a/b", "a~1b", "object"),
        ("c", "c", "text"),
    ]
    below = await page.get("part", path=f"{path}/a~1b/~0")
    assert [one["text"] for one in below["entries"]] == ["1", "2"]


@pytest.mark.parametrize(
    ("value", "shown"), [(b"3.14159265358979323846", "3.14159265358979323846"), (b"true", "true"), (b"null", "null")]
)
async def test_scalars_show_their_digits_as_sent(page: Page, value: bytes, shown: str) -> None:
    path = await put(page.store, value, "t", 1)
    assert (await page.get("part", path=path))["lines"] == [shown]


@pytest.mark.parametrize("value", [b"[]", b"{}", b'""'])
async def test_empty_values_have_an_empty_part(page: Page, value: bytes) -> None:
    path = await put(page.store, value, "t", 1)
    part = await page.get("part", path=path)
    assert not any(part.get("entries", part.get("lines", [])))


async def test_half_of_a_surrogate_pair_is_left_out(page: Page) -> None:
    path = await put(page.store, b'["\\udc00v", "\\ud800"]', "t", 1)
    part = await page.get("part", path=path)
    assert [one["text"] for one in part["entries"]] == ["v", ""]
    text = await put(page.store, b'"a\\ud800b"', "t", 2)
    assert (await page.get("part", path=text))["total"] == 1


async def test_a_key_that_cannot_be_decoded_is_an_error(page: Page) -> None:
    path = await put(page.store, b'[{"\\ud800k": 1}]', "t", 1)
    assert await page.refuse("part", path=path) == (404, "This value cannot be shown in parts. Download it instead.")
    assert (await page.send("GET", "download", path=path)).status_code == 200


async def test_a_large_value_is_queried_by_its_range(page: Page) -> None:
    blob = b"[" + b",".join(b'{"n":%d,"text":"%b"}' % (at, b"x" * 80) for at in range(120_000)) + b"]"
    path = await put(page.store, blob, "big", 1)
    part = await page.get("part", path=path, offset=119_999, limit=1)
    assert part["rows"][0][0] == ["number", "119999"]
    assert len(json.dumps(part)) < 1_000


async def test_the_facts_have_the_shape_of_the_selected_part(page: Page) -> None:
    path = await put(page.store, {"rows": orders(3)}, "t", 1)
    facts = await page.get("value", path=f"{path}/rows")
    assert (facts["path"], facts["selected"], facts["selected_kind"]) == (path, f"{path}/rows", "array")
    assert facts["shape"].startswith("array, 3 items")


async def test_only_raster_images_are_shown(page: Page) -> None:
    await put(page.store, image_block(png(), "text/html"), "png", 1, kind="binary")
    svg = f"<svg xmlns='http://www.w3.org/2000/svg'>{HOSTILE}</svg>".encode()
    await put(page.store, image_block(svg, "image/svg+xml"), "svg", 2, kind="binary")
    await put(page.store, image_block(svg, "image/png"), "fake", 3, kind="binary")
    shown = await page.send("GET", "image", path=base_of("png", 1))
    assert (shown.headers["content-type"], shown.content) == ("image/png", png())
    for name, number in (("svg", 2), ("fake", 3)):
        assert (await page.refuse("image", path=base_of(name, number)))[0] == 404
        assert (await page.get("value", path=base_of(name, number)))["is_image"] is False


@pytest.mark.alone
async def test_a_large_image_does_not_stall_others(page: Page) -> None:
    image = png() + bytes(18 << 20)
    path = await put(page.store, image_block(image, "image/png"), "png", 1, kind="binary")
    received: list[bytes] = []

    async def receive() -> None:
        received.append((await page.send("GET", "image", path=path)).content)

    pause = await measure_pause(receive())
    assert received == [image]
    assert pause < 0.06 * slowness()


@pytest.mark.parametrize("slash", [b"\\/", b"\\u002f", b"/\\r\\n"])
async def test_an_image_is_shown_however_its_base64_is_written(page: Page, slash: bytes) -> None:
    block, data = image_block(png(), "image/png").split(b'"data":"', 1)
    assert b"/" in data.partition(b'"')[0]
    data, rest = data.split(b'"', 1)
    written = block + b'"data":"' + data.replace(b"/", slash) + b'"' + rest
    path = await put(page.store, written, "png", 1, kind="binary")
    assert (await page.get("value", path=path))["is_image"] is True
    assert (await page.send("GET", "image", path=path)).content == png()


@pytest.mark.parametrize(
    ("value", "more", "name", "content"),
    [
        ("Grüße\n", {}, "t-000000000001.txt", "Grüße\n".encode()),
        ([1, 2], {}, "t-000000000001.json", b"[1, 2]"),
        (image_block(png(), "image/png"), {"kind": "binary"}, "t-000000000001.png", png()),
        (image_block(b"<svg/>", "image/svg+xml"), {"kind": "binary"}, "t-000000000001.bin", b"<svg/>"),
        ("", {}, "t-000000000001.txt", b""),
    ],
)
async def test_downloads_are_attachments_without_a_type(
    page: Page, value: object, more: dict[str, str], name: str, content: bytes
) -> None:
    path = await put(page.store, value, "t", 1, **more)
    answer = await page.send("GET", "download", path=path)
    assert answer.content == content
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'


@pytest.mark.parametrize("call", ["download", "image"])
async def test_media_that_cannot_be_decoded_are_an_error_with_their_path(page: Page, call: str) -> None:
    block = image_block(png() + bytes(1 << 20), "image/png")
    broken = block.replace(b'","mimeType', b'#","mimeType')
    assert broken != block
    path = await put(page.store, broken, "t", 1, kind="binary")
    answer = await page.send("GET", call, path=path)
    assert answer.status_code == 404
    assert f'The value is not valid base64. Give the path of its text: "{path}/data".' == answer.json()["error"]
    assert len((await page.send("GET", "download", path=f"{path}/data")).content) > 1 << 16


async def test_a_download_of_a_part_names_its_key_safely(page: Page) -> None:
    key = 'a"; filename=evil.html\r\nx: y'
    path = await put(page.store, {key: "v"}, "t", 1)
    token = key.replace("~", "~0").replace("/", "~1")
    answer = await page.send("GET", "download", path=f"{path}/{token}")
    assert answer.headers["content-disposition"].endswith('a___filename_evil_html__x__y.txt"')


async def test_a_forgotten_value_is_gone(page: Page) -> None:
    path = await put(page.store, [1], "t", 1)
    changed: list[str] = []
    page = page.with_services(on_change=changed.append)
    answer = await page.send("POST", "forget", headers=CHANGE, path=path)
    assert (answer.status_code, answer.json()) == (200, {"forgotten": path})
    assert changed == ["local"]
    assert (await page.refuse("value", path=path))[0] == 404
    assert [(one.event, one.outcome) for one in page.sink.records][:1] == [("call", "forgotten")]


async def test_only_a_whole_value_is_forgotten(page: Page) -> None:
    path = await put(page.store, {"a": 1}, "t", 1)
    answer = await page.send("POST", "forget", headers=CHANGE, path=f"{path}/a")
    assert answer.json()["error"].startswith("Only a whole value")
    assert await page.get("value", path=path)


async def test_an_unknown_path_names_the_nearest_ones(page: Page) -> None:
    path = await put(page.store, [1], "list_orders", 1)
    status, message = await page.refuse("value", path=path[:-1] + "7")
    assert status == 404
    assert path in message


async def test_the_notice_of_a_value_is_written_again(page: Page) -> None:
    path = await put(page.store, orders(1500), "list_orders", 1)
    notice = (await page.get("notice", path=f"{path}/0"))["notice"]
    assert notice.startswith(f'"{path}"')
    assert "array of 1,500 objects" in notice
    assert page.sink.records[-1].event == "read"
    hidden = page.with_services(read_flows=hiding)
    assert (await hidden.refuse("notice", path=path))[0] == 403
    assert (await page.refuse("notice", path=base_of("none", 1)))[0] == 404


async def test_each_read_of_a_value_writes_an_audit_record(page: Page) -> None:
    path = await put(page.store, {"a": [1]}, "t", 1)
    await page.get("values")
    assert page.sink.records == []
    for endpoint in ("value", "part", "download"):
        await page.send("GET", endpoint, path=f"{path}/a")
    await page.send("GET", "part", path=base_of("t", 2))
    await page.send("GET", "part", path=f"{path}/b")
    assert [(one.event, one.tool, one.outcome, one.path) for one in page.sink.records] == [
        *[("read", "dashboard", "ok", f"{path}/a")] * 3,
        ("refusal", "dashboard", "unknown path", base_of("t", 2)),
        ("refusal", "dashboard", "unknown path", f"{path}/b"),
    ]


async def test_without_a_required_record_nothing_is_read_or_deleted(page: Page) -> None:
    path = await put(page.store, [1], "t", 1)
    page.sink.is_failing = True
    page = page.with_services(audit=Audit(page.sink, is_required=True))
    for method, endpoint in (("GET", "part"), ("POST", "forget")):
        answer = await page.send(method, endpoint, headers=CHANGE, path=path)
        assert (answer.status_code, "audit record" in answer.json()["error"]) == (403, True)
    assert isinstance(await page.store.describe("local", path), Descriptor)


def hiding() -> Flows:
    return Flows(FlowsPolicy(deny=(FlowRule("*", "the model"),)))


async def test_a_value_hidden_from_the_model_shows_only_its_facts(page: Page) -> None:
    path = await put(page.store, {"secret": "canary"}, "t", 1, media_type="image/canary")
    page = page.with_services(read_flows=hiding)
    assert (await page.get("values", search="canary"))["values"] == []
    facts = await page.get("value", path=path)
    assert (facts["model_sees"], "canary" in json.dumps(facts), "shape" in facts) == (False, False, False)
    for endpoint in ("part", "download", "image", "notice"):
        status, message = await page.refuse(endpoint, path=path)
        assert (status, "canary" in message) == (403, False)
    assert page.sink.records[-1].event == "refusal"
    local = page.seen_by(reads_hidden=True)
    assert (await local.get("part", path=path))["entries"][0]["text"] == "canary"
    assert (await local.get("values", search="canary"))["values"][0]["media_type"] == "image/canary"

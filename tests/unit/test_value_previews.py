"""The preview of a value that is too large to be shown whole."""

import base64
import json
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.core.amounts import format_bytes
from mcp_mirror.core.results.main_parts import find_table, read_levels
from mcp_mirror.core.results.outlines import outline_value
from mcp_mirror.core.results.preview import MAX_PREVIEW_TOKENS, Preview, describe_part, preview_value
from mcp_mirror.core.value_sizes import TokenBudget
from mcp_mirror.payload.json_spans import kind_at, members, trim
from mcp_mirror.types import Buffer, Kind

BASE = "list_rows-3f2b8c1e-9d4a-4e7b-8f21-0a1b2c3d4e5f"


def words(text: Buffer) -> int:
    return len(text) // 4


def preview(value: Any, estimate: Callable[[Buffer], int] = words) -> Preview:
    blob = value if isinstance(value, bytes) else json.dumps(value).encode()
    return preview_value(blob, kind_at(blob, trim(blob).start), TokenBudget(estimate, MAX_PREVIEW_TOKENS), path=BASE)


def rows_of(blob: bytes) -> str | None:
    table = find_table(blob, read_levels(blob, members(blob, trim(blob))))
    return describe_part(blob, table, TokenBudget(words, MAX_PREVIEW_TOKENS), BASE) if table else None


def test_a_text_shows_its_size_lines_format_head_and_tail() -> None:
    shown = preview("".join(f"{n},{n * n}\n" for n in range(4000)))
    assert shown.summary == "text, 50.3 kB, 4,000 lines, CSV, 2 columns"
    assert shown.lines[:2] == ("0,0", "1,1")
    assert shown.lines[5] == "... 3,992 lines ..."
    assert shown.lines[-1] == "3999,15992001"


def test_a_text_in_a_json_string_is_described_as_that_text() -> None:
    shown = preview(json.dumps("".join(f"{n},{n * n}\n" for n in range(4000))))
    assert shown.summary == "text, 54.3 kB, a JSON string: text, 50.3 kB, 4,000 lines, CSV, 2 columns"
    assert shown.lines[:2] == ("0,0", "1,1")


@pytest.mark.parametrize("is_ascii", [False, True])
@pytest.mark.parametrize("line", ["{}", "a,{}", "{}\u4f60\u597d", "\U0001f600{}", '"{}"', "\\{}"])
def test_short_and_escaped_lines_show_their_tail(line: str, *, is_ascii: bool) -> None:
    lines = [line.format(number % 9) for number in range(5_001)]
    shown = preview(json.dumps("\n".join((*lines, "")), ensure_ascii=is_ascii).encode())
    assert "5,001 lines" in shown.summary
    assert shown.lines[0] == line.format(0)
    assert shown.lines[-1] == line.format(5_000 % 9)


def test_a_diff_shows_its_heading_and_the_changed_files() -> None:
    files = [f"diff --git a/f{n} b/f{n}\n--- a/f{n}\n+++ b/f{n}\n@@ -1 +1 @@\n-a\n+b\n+\u202e\n" for n in range(60)]
    shown = preview("commit 1\nAuthor: A\nDate: today\n\n    words\n\n" + "".join(files[:12]))
    assert shown.summary == "text, 795 B, 90 lines, diff of 12 files"
    assert shown.lines == ("commit 1", *(f"f{n} +2 -1" for n in range(12)))
    long = preview("".join(files), len)
    assert long.summary.endswith(", diff of 60 files")
    assert long.lines == (*(f"f{n} +2 -1" for n in range(7)), "... 53 more files")
    assert preview(files[0] * 20_000).summary.endswith(", diff")
    for one in (files[0], f"{files[0]}{files[1]}+\ud800\n"):
        assert preview(one).lines[0] == "diff --git a/f0 b/f0"


def test_markdown_shows_its_headings_with_the_numbers_of_their_lines() -> None:
    parts = "".join(f"## Part {n}\n\n- **words**\n\n" for n in range(40))
    shown = preview(f"# Title\n\n{parts}")
    assert shown.summary.endswith("162 lines, Markdown with 41 headings")
    assert shown.lines[:3] == ("0: # Title", "2: ## Part 0", "6: ## Part 1")
    assert shown.lines[-1] == f"... {41 - len(shown.lines) + 1} more headings"
    prose = preview("Words.\n\n# A\n## B\n### C\u202e\n\n- **words**\n")
    assert prose.lines == ("Words.", "2: # A", "3: ## B", "4: ### C\\u202e")


def test_a_short_text_is_shown_without_a_gap() -> None:
    assert preview("a\nb\nc") == Preview("text, 5 B, 3 lines", ("a", "b", "c"))
    assert preview("a\nb\n") == Preview("text, 4 B, 2 lines", ("a", "b"))
    assert preview("\n".join(map(str, range(9)))).lines == ("0", "1", "2", "3", "4", "... 1 line ...", "6", "7", "8")


def test_one_long_line_shows_its_beginning_and_its_end() -> None:
    shown = preview("start " + "x" * 100_000 + " end")
    assert shown.summary == "text, 100 kB"
    assert shown.lines[0].startswith("start x")
    assert shown.lines[0].endswith("...")
    assert shown.lines[1].startswith("...x")
    assert shown.lines[1].endswith(" end")
    assert preview("short") == Preview("text, 5 B", ("short",))


@pytest.mark.parametrize("size", [170, 5_000, 200_000])
def test_one_long_line_of_base64_has_no_more_than_its_room(size: int) -> None:
    def estimate(text: Buffer) -> int:  # as many tokens as base64 has
        return len(text)

    shown = preview("iVBORw0K" * (size // 8), estimate)
    assert len(shown.lines) == 2
    assert sum(map(len, (shown.summary, *shown.lines))) <= MAX_PREVIEW_TOKENS
    assert not preview("iVBORw0K" * size, lambda text: 40 * len(text)).lines


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\3\x20\0\0\2\x58" + bytes(3_000)).decode()


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        (PNG, "text, 4.03 kB, base64 of image/png, 800x600, 3.02 kB"),
        (f"data:image/png;base64,{PNG}", "text, 4.05 kB, base64 of image/png, 800x600, 3.02 kB"),
        (f"data:text/csv;charset=utf-8;base64,{'YSxi' * 900}", "text, 3.63 kB, base64 of text/csv, 2.7 kB"),
        ("JVBERi0x" * 500, "text, 4 kB, base64 of application/pdf, 3 kB"),
    ],
)
def test_base64_is_described_as_the_file_that_it_is(text: str, summary: str) -> None:
    assert preview(text) == Preview(summary)


@pytest.mark.parametrize(
    "text", ["QUJD" * 900, PNG + "!", "data:image/png," + PNG, PNG[:60], "data:a/b;base64,-" + PNG]
)
def test_other_long_words_show_their_beginning_and_their_end(text: str) -> None:
    assert preview(text).summary == f"text, {format_bytes(len(text))}"


def test_long_lines_are_cut_and_the_rest_left_out() -> None:
    shown = preview("\n".join("y" * 1000 for _ in range(50)), lambda text: len(text) // 2)
    assert shown.lines == ("y" * 157 + "...", "... 48 lines ...", "y" * 37 + "...")
    assert preview("\n".join("y" * 1000 for _ in range(50)), len).lines == ("y" * 37 + "...", "... 49 lines ...")


@pytest.mark.parametrize("rows", [100, 500, 1500, 1900, 2000, 5000])
def test_no_line_is_shown_twice(rows: int) -> None:
    data = "; ".join(f"row {number}" for number in range(rows))
    shown = preview(f"The script returned:\n```text\n{data}\n```\nDone.")
    assert shown.summary.endswith("5 lines")
    assert [line[:9] for line in shown.lines] == ["The scrip", "```text", "row 0; ro", "```", "Done."]


def test_a_long_line_after_a_few_long_ones_shows_its_beginning() -> None:
    table = " / ".join(f"region {number}: {number}" for number in range(900))
    heading = ["[Sheet: Sales]", "[To change cells: " + "use edit with a range, " * 20 + "]", ""]
    for footer in ((), ("done",)):
        shown = preview("\n".join((*heading, table, *footer)), lambda text: len(text) // 2)
        assert shown.lines[0] == heading[0]
        assert shown.lines[3].startswith("region 0: 0 / region 1")
        assert shown.lines[4:] == footer


USERS = [{"id": number, "name": "Zo\u00eb"} for number in range(300)]
FIELDS = 'array of 300 objects, {}; fields with first values: id 0, name "Zo\u00eb"'


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    ("above", "below"), [("Found 300:\n", ""), ("```json\n", "\n```\n\nNext: page=2\n"), ("", "\nEnd.")]
)
def test_a_text_that_contains_json_shows_its_fields(above: str, below: str, indent: int | None) -> None:
    data = json.dumps(USERS, indent=indent, ensure_ascii=False)
    shown = preview(f"{above}{data}{below}")
    assert shown.summary.partition(", contains JSON: ")[2] == FIELDS.format(format_bytes(len(data.encode())))
    around = [line for line in (above.strip("`\njson"), "...", below.strip("\n`")) if line]
    assert [*shown.lines] == around


@pytest.mark.parametrize("data", [USERS, list(range(900))], ids=["objects", "numbers"])
def test_a_text_with_json_in_a_json_string_shows_what_it_contains(data: list[object]) -> None:
    quoted = json.dumps(json.dumps(data, ensure_ascii=False), ensure_ascii=False)
    shown = preview(f"Result:\n{quoted}\n\nConsole output:\n")
    assert shown.summary.partition(", contains JSON: ")[2].startswith("array")
    assert (shown.lines[0], shown.lines[-1]) == ("Result:", "Console output:")
    assert not any('"' in line for line in shown.lines)
    assert preview(quoted).summary.partition(", contains JSON: ")[2].startswith("array")


def test_a_text_that_contains_an_object_shows_its_keys_and_rows() -> None:
    page = {"users": USERS, "next": "b2Zmc2V0", "total": 900}
    shown = preview(f"The page:\n{json.dumps(page)}")
    assert shown.summary.endswith(
        'contains JSON: object with users array[300] of object, next "b2Zmc2V0", total 900; '
        'fields of "users", with first values: id 0, name "Zo\u00eb"'
    )
    assert shown.lines == ("The page:", "...")
    assert preview('Sums:\n{"a": 1.5,\n"b": 2}').summary.endswith("contains JSON: object with a 1.5, b 2")
    assert preview('Sums:\n{"a": 1.5,\n"b": 2}', lambda _: 999).summary.endswith("contains JSON: object")


def test_a_text_that_contains_an_array_shows_its_first_items() -> None:
    names = json.dumps(["Ada", "Bob"] * 200)
    shown = preview(f"Names:\n{names}\n2 of them\n")
    assert shown.summary.endswith("contains JSON: array[400], 2.8 kB")
    assert shown.lines == ("Names:", 'first: "Ada", "Bob", "Ada", "Bob", "Ada"', "2 of them")


@pytest.mark.parametrize("below", ["", "\n300 rows"])
def test_the_lines_around_data_that_python_printed_are_shown(below: str) -> None:
    shown = preview("Rows:\n" + str([{"id": number, "name": None} for number in range(300)]) + below)
    assert shown.summary.endswith("array of 300 objects, 7.99 kB; fields with first values: id 0, name null")
    assert shown.lines == ("Rows:", "...", *([below.strip()] if below else []))


def test_json_in_a_very_large_text_is_not_looked_for() -> None:
    assert "JSON" not in preview("Rows:\n" + json.dumps(USERS * 90, indent=4)).summary


def test_the_path_of_rows_below_the_path_of_a_file_is_whole() -> None:
    file = "/home/somebody/projects/shop/src/components/checkout/payment_methods.py"
    rows = rows_of(json.dumps({file: {"ranges": [{"line": n, "text": "x" * 40} for n in range(99)]}}).encode())
    assert rows is not None
    assert rows.startswith(f'fields of "{BASE}/{file.replace("/", "~1")}/ranges", array[99], with first values: line 0')


def test_the_columns_of_a_table_below_a_heading_are_shown() -> None:
    top = "top - 10:02:11 up 41 days,  2 users\nTasks: 150 total,   1 running\n%Cpu(s):  3.1 us\n\n"
    columns = "    PID USER       RES  %CPU COMMAND"
    rows = [f"{number:7} anna   {number * 37:7} {number % 90 / 10:5} python" for number in range(1000, 1060)]
    shown = preview(top + "\n".join((columns, *rows)), lambda text: len(text) // 2)
    assert shown.summary.endswith("after a heading")
    assert shown.lines[:2] == ("top - 10:02:11 up 41 days,  2 users", columns)
    assert shown.lines[-1] == rows[-1]
    shown = preview("Report\nPage 1 of 9\n\n" + "\n".join((columns, *rows)), lambda text: len(text) // 2)
    assert shown.lines[:3] == ("Report", "Page 1 of 9", columns)


@pytest.mark.parametrize("above", [("data",), ("data", "page")])
def test_the_fields_of_a_large_nested_table_are_shown(above: tuple[str, ...]) -> None:
    value: Any = {"rows": [{"id": n, "note": "x" * 2000} for n in range(900)], "count": 900}
    for key in reversed(above):
        value = {"ok": True, key: value}
    rows = rows_of(json.dumps(value, indent=2).encode())
    assert rows is not None
    assert rows.startswith(f'fields of "{BASE}/{"/".join(above)}/rows", array[900], with first values: id 0, note "x')


def test_the_fields_of_objects_in_arrays_of_an_array_are_shown() -> None:
    rows = [{"at": n, "state": "on"} for n in range(60)]
    assert preview([rows, rows]).summary.endswith(
        'array[2x60] of object, 3.22 kB; fields with first values: at 0, state "on"'
    )


@pytest.mark.parametrize("levels", [50, 5_000])
def test_a_row_of_any_depth_is_described(levels: int) -> None:
    deep = b"[" * levels + b"]" * levels
    shown = preview(b'[{"id": 1, "rows": ' + deep + b'}, {"id": "two", "id": 2, "more": null}]')
    assert shown.summary.endswith("; fields with first values: id 1, rows array, more null")


@pytest.mark.parametrize(
    ("field", "shown"),
    [
        ({"login": "a" * 40, "id": 1}, "object (login, id)"),
        (
            {f"key {number}": number for number in range(9)},
            'object ("key 0", "key 1", "key 2", "key 3", "key 4", "key 5", "key 6", "key 7", ...)',
        ),
        ([{"name": "bug", "color": "a" * 40}], "array of object (name, color)"),
        ([[1] * 40], "array"),
        ([1] * 40, "array"),
    ],
)
def test_the_keys_of_an_object_in_a_row_are_named(field: object, shown: str) -> None:
    rows = [{"n": 1, "field": field}, {"n": 2, "field": None}]
    assert preview(rows).summary.endswith(f"; fields with first values: n 1, field {shown} or null")
    large = [{"n": 1, "field": [{"a": "x" * (1 << 20)}]}]
    assert preview(large).summary.endswith("; fields with first values: n 1, field array")


def test_no_line_is_shown_where_none_fits() -> None:
    shown = preview("\n".join("y" * 1000 for _ in range(50)), lambda text: 10 * len(text))
    assert shown.lines == ("... 50 lines ...",)


def test_the_tail_may_have_no_room() -> None:
    shown = preview("\n".join("z" * 70 for _ in range(50)), len)
    assert shown.lines == ("z" * 70, "... 49 lines ...")


def test_a_text_past_the_bound_has_no_line_count() -> None:
    shown = preview(b'"' + b"ab\\n" * 9_000_000 + b'"')
    assert shown.summary == "text, 27 MB"
    assert shown.lines == (*["ab"] * 5, "...", *["ab"] * 3)
    one_long_line = preview(b'"' + b"a" * 40_000_000 + b'\\nb\\nc"')
    assert (one_long_line.lines[0][:3], one_long_line.lines[1:]) == ("aaa", ("...", "b", "c"))


def test_one_thing_is_named_in_the_singular() -> None:
    row = {"a": "x" * 300}
    assert preview([row]).summary.startswith("array of 1 object, 311 B; ")
    assert preview([row, row]).summary.startswith("array of 2 objects, ")


def test_sizes_are_of_the_text_and_not_of_its_escapes() -> None:
    assert preview('"' * 3000).summary == "text, 3 kB"
    assert preview("\u00e9" * 1500).summary == "text, 3 kB"
    assert preview("\\\n" * 1000).summary == "text, 2 kB, 1,000 lines"
    assert preview("\n" * 9000).summary == "text, 9 kB, 9,000 lines"


@pytest.mark.parametrize("is_ascii", [False, True])
def test_values_in_a_preview_are_characters_and_not_escapes(*, is_ascii: bool) -> None:
    name = "\u0418\u0432\u0430\u043d \U0001f600"
    rows = [{name: name, "at": [name[:4]], name[:4]: n} for n in range(40)]
    shown = preview(json.dumps(rows, ensure_ascii=is_ascii).encode())
    assert shown.summary.endswith(f'"{name}" "{name}", at ["{name[:4]}"], {name[:4]} 0')
    assert preview(json.dumps([[name], "x" * 900, 1], ensure_ascii=is_ascii).encode()).lines[0] == f'["{name}"]'


def test_an_array_of_objects_shows_its_fields_with_their_first_values() -> None:
    rows = [{"id": n, "mail": "a@example.org", "note": "x" * 90, "tags": ["a"] * 20, "at": {}} for n in range(1500)]
    rows[3] |= {"id": None, "late": 1}
    shown = preview(rows)
    values = f'id 0 or null, mail "a@example.org", note "{"x" * 37}...", tags array, at {{}}, late number'
    assert shown == Preview(f"array of 1,500 objects, 390 kB; fields with first values: {values}")


def test_rows_that_python_prints_show_their_fields_with_first_values() -> None:
    rows = [{"id": n, "name": f"it's {n}", "sum": Decimal("2.50"), "at": date(2026, 11, 28)} for n in range(3000)]
    shown = preview(str(rows))
    values = 'id 0, name "it\'s 0", sum 2.50, at "2026-11-28"'
    assert shown == Preview(f"text, 280 kB, Python literal, 3,000 rows; fields with first values: {values}")


def test_rows_of_a_class_that_python_prints_show_their_fields() -> None:
    rows = ", ".join(f"RealDictRow({{'id': {n}, 'of': Decimal('{n}.50'), 'at': 'a), ('}})" for n in range(300))
    summary = preview(f"[{rows}]").summary
    assert summary.endswith('Python literal, 300 rows; fields with first values: id 0, of 0.50, at "a), ("')


def test_tuples_that_python_prints_show_the_first_one() -> None:
    shown = preview(str([(n, f"it's {n}", None, Decimal("2.50"), date(2026, 11, 28)) for n in range(3000)]))
    described = 'Python literal, 3,000 rows; first row: 0, "it\'s 0", null, 2.50, "2026-11-28"'
    assert shown == Preview(f"text, 217 kB, {described}")
    numbers = preview(str([(1, 2.5)] * 3000))
    assert numbers.summary == "text, 30 kB, Python literal, 3,000 rows"
    assert numbers.lines[0].startswith("[(1, 2.5), (1, 2.5)")


def test_the_rows_of_a_very_large_list_that_python_prints_are_not_counted() -> None:
    shown = preview(str([{"id": n, "text": "x" * 90} for n in range(10_000)]))
    assert shown.summary.startswith("text, 1.16 MB, Python literal; fields with first values: id 0")


def test_other_lists_that_python_prints_show_their_beginning_and_end() -> None:
    for value in ([{"text": "x" * 9000}, {"text": "y"}], [{"id": {n}} for n in range(3000)], ["a", None] * 3000):
        shown = preview(str(value))
        assert shown.summary.endswith("Python literal")
        assert shown.lines[0].startswith(str(value)[:20])


def test_fields_that_have_no_room_are_counted() -> None:
    shown = preview([{f"a_long_name_of_a_field_{n}": n for n in range(100)}] * 3)
    assert " more" in shown.summary
    wide = preview([{f"f{n}": n for n in range(60)}] * 3, lambda text: len(text) // 9)
    assert wide.summary.endswith("f29 29, and 30 more")


def test_the_ends_of_keys_that_are_not_words_are_seen() -> None:
    shown = preview([{"id": 1, "unit 2": 5, "net, gross": 7, "": 8, "x. Read the rows": 9, "k" * 70: 0}] * 3).summary
    keys = f'id 1, "unit 2" 5, "net, gross" 7, "" 8, "x. Read the rows" 9, {"k" * 57}... 0'
    assert shown.endswith(f"fields with first values: {keys}")


def test_fields_whose_values_have_no_room_have_their_types() -> None:
    shown = preview([{f"f{n}": "v" * 30 for n in range(16)}] * 3).summary
    assert f'f0 "{"v" * 30}", ' in shown
    assert shown.endswith(", f14 text, f15 text")


def test_of_large_items_only_the_first_ones_are_looked_at() -> None:
    shown = preview([{"a": "x" * 300_000}, {"b": 1}])
    assert shown.summary.endswith(f'; fields with first values: a "{"x" * 37}..."')


def test_items_that_are_not_objects_are_skipped() -> None:
    assert (
        preview([{"a": 1}, 5, {"a": "x"}]).summary == "array of 3 objects, 25 B; fields with first values: a 1 or text"
    )
    assert preview([{}, {}]).summary == "array of 2 objects, 8 B"


@pytest.mark.parametrize(
    ("value", "summary", "lines"),
    [
        (["alpha", "beta"], "array[2], 17 B", ('first: "alpha", "beta"',)),
        ([[1, 2], [3, 4]], "array[2x2], 16 B", ()),
        ([], "array[0], 2 B", ()),
        (7, "number 7", ()),
        (None, "null null", ()),
    ],
)
def test_other_values_are_outlined(value: Any, summary: str, lines: tuple[str, ...]) -> None:
    assert preview(value) == Preview(summary, lines)


SAID, ASKED = "Found 1 file. Show this list to the user:", "Ask the user before you change a file."


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        (
            [SAID, {"path": "a.js", "rows": [{"n": n} for n in range(90)], "ok": True}, ASKED],
            (
                f'"{SAID}"',
                f'"{BASE}/1": object 1.02 kB: "path" text, "rows" array[90] of object, "ok" boolean',
                f'"{ASKED}"',
            ),
        ),
        (
            ["12 rows:", "id,name\n" + "1,Ann\n" * 400],
            ('"12 rows:"', f'"{BASE}/1": text 2.41 kB: "id,name\\n1,Ann\\n1,Ann\\n1,Ann\\n1,Ann\\n..."'),
        ),
        ([{"a": "x" * 50}, "the end"], (f'"{BASE}/0": object 59 B: "a" text', '"the end"')),
        ([[1] * 50, SAID], (f'"{BASE}/0": array[50] 150 B', f'"{SAID}"')),
        ([True, {"a": 2**99, "b": None}, 5], ("true", '{"a": 633825300114114700748351602688, "b": null}', "5")),
    ],
)
def test_each_of_a_few_different_items_has_a_line(value: Any, lines: tuple[str, ...]) -> None:
    shown = preview(value)
    assert shown.summary == f"array[{len(value)}], {format_bytes(len(json.dumps(value)))}"
    assert shown.lines == lines


def test_an_item_with_many_keys_shows_the_first_ones() -> None:
    first, _ = preview([{f"k{number}": "x" * 9 for number in range(20)}, "the end"]).lines
    keys = ", ".join(f'"k{number}" text' for number in range(8))
    assert first == f'"{BASE}/0": object 390 B: {keys}, ...'


def test_an_object_before_many_texts_does_not_make_them_objects() -> None:
    shown = preview([{"pages": 12}, *(f"[Page {n}]" for n in range(12))])
    assert shown.summary.startswith("array[13], ")
    assert shown.lines[0].startswith('first: {"pages": 12}, "[Page 0]", ')
    large = preview([{"pages": "12 " * 20}, *(f"[Page {n}]" for n in range(12))])
    assert large.lines[0].startswith('first: {...}, "[Page 0]", ')


def test_short_items_leave_room_for_the_path_of_each_large_one() -> None:
    shown = preview(["word " * 40] * 3 + ["line\n" * 900, "end"], lambda text: len(text) // 2)
    assert shown.lines[0] == f'"{"word " * 40}"'
    sizes = ("text 200 B", "text 200 B", "text 4.5 kB")
    assert shown.lines[1:] == (*(f'"{BASE}/{at}": {size}' for at, size in enumerate(sizes, 1)), '"end"')


def test_lines_of_items_end_where_the_room_does() -> None:
    shown = preview(["word " * 40] * 5, lambda text: 3 * len(text))
    assert shown.lines == tuple(f'"{BASE}/{at}": text 200 B' for at in range(3))


def test_the_largest_table_of_an_object_is_shown() -> None:
    blob = json.dumps({"n": 1, "few": [1], "rows": [{"a": n} for n in range(30)]}).encode()
    shown = rows_of(blob)
    assert shown == 'fields of "rows", with first values: a 0'
    others: list[dict[str, Any]] = [{"n": 1}, {"a": []}, {"a": [1]}]
    for value in others:
        blob = json.dumps(value).encode()
        assert rows_of(blob) is None


ROWS = [{"a": n, "name": f"row {n}"} for n in range(60)]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"ok": True, "data": {"users": ROWS, "cursor": "x"}}, "/data/users"),
        ({"data": {"repository": {"issues": {"nodes": ROWS}}}}, "/data/repository/issues/nodes"),
        ({"a/b": {"c~d": ROWS}}, "/a~1b/c~0d"),
        ({"few": [1], "data": {"users": ROWS}}, "/data/users"),
        ({"data": {"users": ROWS[:2]}}, None),  # the outline says enough about a small object
        ({"data": {"users": ROWS}, "text": "x" * 5000}, None),
        ({"data": {"users": ROWS}, "more": {"users": ROWS}, "rest": {"users": ROWS}}, None),
        ({"a": {"b": {"c": {"d": {"e": ROWS}}}}}, "/a/b/c/d/e"),
        ({"a": {"b": {"c": {"d": {"e": {"f": ROWS}}}}}}, None),
        ({"data": {"text": "x" * 5000}}, None),
        ({"data": {"users": [*ROWS, {"a": "x" * (1 << 24)}]}}, None),  # over 16 MiB: a search would take too long
        ({"data": {"users": [*ROWS, {"a": "x" * (1 << 20)}], **{f"k{n}": n for n in range(1001)}}}, None),  # as well
    ],
)
def test_a_table_that_makes_up_most_of_an_object_is_shown_at_any_depth(value: Any, named: str | None) -> None:
    blob = json.dumps(value).encode()
    shown = rows_of(blob)
    expected = f'fields of "{BASE}{named}", array[60], with first values: a 0, name "{ROWS[0]["name"]}"'
    assert shown == (expected if named else None)


def test_a_number_with_spaces_is_outlined_without_them() -> None:
    assert outline_value(b"[1,\n 2]", trim(b"[1,\n 2]")) == "[1,2]"


TEXTS = st.text(max_size=400).map(lambda part: part * 20) | st.lists(st.text(max_size=60), max_size=90).map("\n".join)


@given(
    TEXTS
    | st.lists(st.dictionaries(st.text(max_size=30), st.integers() | st.text(max_size=90), max_size=30), max_size=9)
    | st.lists(st.text(max_size=90) | st.integers(), max_size=30)
)
def test_no_preview_costs_more_than_its_bound(value: Any) -> None:
    blob = json.dumps(value).encode("utf-8", "replace")
    kind: Kind = kind_at(blob, 0)
    shown = preview_value(blob, kind, TokenBudget(words, MAX_PREVIEW_TOKENS))
    assert words("\n".join((shown.summary, *shown.lines)).encode()) <= MAX_PREVIEW_TOKENS + 30


JOB = "build\tRun tests\t2026-11-01T00:00:00.1Z"
STEPS = [f"[INFO] step {number}" for number in range(300)]


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (
            [*STEPS, "[ERROR] Main.java:[42,13] cannot find symbol", "[ERROR] 1 error", *STEPS[:20]],
            ("... 314 lines, 2 with ERROR ...", "300: [ERROR] Main.java:[42,13] cannot find symbol"),
        ),
        (
            [*["compile a file of the project now"] * 90, "src/a.c:3:5: error: x undeclared", *["link"] * 9],
            ("... 92 lines, 1 with error ...", "90: src/a.c:3:5: error: x undeclared"),
        ),
        (
            [
                *[f"{JOB} test {n} \x1b[32mPASSED\x1b[0m" for n in range(90)],
                f"{JOB} \x1b[31mFAILED\x1b[0m test_x",
                *["build\tRun tests\tend"] * 9,
            ],
            ("... 92 lines, 1 with FAILED ...", f"90: {JOB} [31mFAILED[0m test_x"),
        ),
        (
            [*STEPS, "##[error]Process completed with exit code 1.", *STEPS],
            ("... 593 lines, 1 with ##[error] ...", "300: ##[error]Process completed with exit code 1."),
        ),
        (
            [*["2026/11/21 10:00:01 [warn] 7#7: slow"] * 90, "[error] 7#7: open()", *["[warn] slow"] * 9],
            ("... 92 lines, 1 with [error] ...", "90: [error] 7#7: open()"),
        ),
        (
            [*["level=info msg=ok"] * 90, "level=error msg=refused", *["level=info msg=ok"] * 9],
            ("... 92 lines, 1 with level=error ...", "90: level=error msg=refused"),
        ),
        (
            [*['{"level":"info","n":1}'] * 900, '{"level":"error","n":2}', *['{"level":"info","n":1}'] * 9],
            ('... 902 lines, 1 with "level":"error" ...', '900: {"level":"error","n":2}'),
        ),
        ([*STEPS, "[INFO] 0 errors, no error", *STEPS], ("... 593 lines ...",)),
        (["[ERROR] first", *STEPS], ("... 293 lines ...",)),
        ([*STEPS, "[ERROR] last"], ("... 293 lines ...",)),
    ],
    ids=[
        "log",
        "compiler",
        "job",
        "runner",
        "nginx",
        "logfmt",
        "JSON lines",
        "no error",
        "at the beginning",
        "at the end",
    ],
)
def test_the_first_hidden_line_with_an_error_is_shown(lines: list[str], shown: tuple[str, ...]) -> None:
    found = preview("\n".join(lines)).lines
    at = next(at for at, line in enumerate(found) if line.startswith("... "))
    assert found[at : at + len(shown)] == shown
    assert found[at + len(shown)] in {lines[-3], lines[-2], lines[-1]}


def test_parts_of_other_words_are_no_errors() -> None:
    lines = ["set FAILOVER and NOERROR and terror: now", *STEPS, "[FATAL] out of memory", *STEPS[:9]]
    assert "301: [FATAL] out of memory" in preview("\n".join(lines)).lines
    many = ["a FAILOVER of the server", *STEPS] * 200
    assert not any("FATAL" in line for line in preview("\n".join([*many, "[FATAL] out of memory", *STEPS])).lines)


def test_a_long_line_with_an_error_is_shortened() -> None:
    found = preview("\n".join([*STEPS, f"[ERROR] {'words ' * 90}", *STEPS])).lines
    (line,) = (line for line in found if line.startswith("300: [ERROR] words words "))
    assert len(line) == len("300: ") + 160


def test_a_line_with_an_error_without_room_is_not_shown() -> None:
    text = "\n".join([*STEPS, "[ERROR] cannot find symbol", *STEPS])
    assert not any(
        "ERROR" in line for line in preview(text, lambda text: 999 if b"ERROR" in text else len(text) // 4).lines
    )


def test_the_words_of_prose_and_rows_are_not_counted_as_errors() -> None:
    rows = "\n".join(["id,level", *(f"{number},{'ERROR' if number == 90 else 'INFO'}" for number in range(300))])
    assert not any("ERROR" in line for line in preview(rows).lines)

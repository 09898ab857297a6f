"""Notices are short, safe to copy from, and without hidden text of upstreams."""

import json
import random
import re
import unicodedata
from collections.abc import Callable
from functools import cache
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_mirror.core.amounts import format_bytes, format_time
from mcp_mirror.core.results.captured import Captured, ErrorExcerpt, MediaPart
from mcp_mirror.core.results.notice import write_notice
from mcp_mirror.core.results.notice_keys import NoticeInput
from mcp_mirror.paths import FixedBases, MemoryPath, find_notice_bases, is_whole_notice, new_base, read_notice_path
from mcp_mirror.payload.json_spans import kind_at, members, trim
from mcp_mirror.security.sanitize import as_json_string
from mcp_mirror.settings.policies import NoticeStyle
from mcp_mirror.types import Draft, Kind, Member

ID = "3f2b8c1e-9d4a-4e7b-8f21-0a1b2c3d4e5f"
BASE, COMPANION = f"{'t' * 80}-{ID}", f"{'t' * 80}-11111111-2222-4333-8444-555555555555"
STYLES: tuple[NoticeStyle, ...] = ("compact", "paper", "json", "opaque")
HIDDEN = (
    "\x00\x07\t\r\x0b\x0c\x1b\x7f\x85\xad\u034f\u061c\u115f\u200b"
    "\u200e\u2028\u2029\u202e\u2066\u2800\u3164\ufe0f\ufeff\ue000\U000e0041\U000e0100"
)


@cache
def kind_and_members(blob: bytes) -> tuple[Kind, tuple[Member, ...]]:
    span = trim(blob)
    kind = kind_at(blob, span.start)
    return kind, members(blob, span) if kind == "object" else ()


def stored(value: Any, **changes: Any) -> NoticeInput:
    blob = value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()
    kind, given_members = kind_and_members(blob)
    if "head" in changes:
        changes["error"] = ErrorExcerpt(changes.pop("head"))
    value_fields: dict[str, Any] = {"kind": kind, "members": given_members, "preview": True}
    value_fields |= {key: changes.pop(key) for key in value_fields if key in changes}
    base, companion = changes.pop("path", BASE), changes.pop("companion", "")
    shown = {key: changes.pop(key) for key in Captured.__struct_fields__ if key in changes}
    if hidden := changes.pop("hidden_text", None):
        shown |= {"companion": hidden, "is_text_hidden": True}
    call_fields = {"tool": "make_grid", "arguments": b"{}", "estimate": lambda text: len(text) // 4, **changes}
    captured = Captured(is_named=bool(companion), **shown)
    return NoticeInput(Draft(blob, tokens=0, **value_fields), captured, FixedBases(base, companion), **call_fields)


def notice_of(value: Any, style: NoticeStyle = "compact", **changes: Any) -> str:
    return write_notice(stored(value, **changes), style)


MEDIA = (MediaPart("/0", "image/png, 5 B", is_hidden=False),)
PROPERTIES: dict[str, Any] = {
    "arguments": b'{"n": 1}',
    "companion": COMPANION,
    "count_items": lambda _blob, _span: 1_000,
    "error": ErrorExcerpt("It failed", "at the end"),
    "has_media_beside": True,
    "is_error": True,
    "is_paraphrased": True,
    "is_text_hidden": True,
    "main_text_keys": ("a",),
    "media": MEDIA,
    "other_blocks": (1, 2),
    "quoted_texts": ('"words"',),
    "room": 5,
    "tool": "other",
}
"""Another value of each property, beside those that all notices have."""
COMMON = {"value", "captured", "bases", "estimate", "location", "shown"}
UNWRITTEN = {"other_members", "passed", "in_order", "is_named"}
"""Properties of a result that are not written in its notice, or follow from another one."""
NEEDED: dict[str, dict[str, Any]] = {
    "has_media_beside": {"companion": COMPANION, "media": MEDIA},
    "is_text_hidden": {"companion": COMPANION, "hidden_text": Draft(b'"words"', "text", 1)},
    "quoted_texts": {"companion": COMPANION},
}


def test_a_notice_with_any_property_can_be_pasted() -> None:
    known = {*NoticeInput.__struct_fields__, *Captured.__struct_fields__} - UNWRITTEN
    assert {*PROPERTIES, *COMMON} == known, (
        "Add a value of the new property to PROPERTIES. If it adds a line below a shown value, `_SHOWN_LINES` in "
        "paths.py must match that line, or models cannot paste the notice."
    )
    for name, changed in PROPERTIES.items():
        changes = {name: changed, **NEEDED.get(name, {})}
        for value, shown in (
            ({"a": "long"}, None),
            ({"a": "long"}, '{"a": "long"}'),
            ("words", None),
            ("words", "words"),
        ):
            if (name == "main_text_keys" and value == "words") or (name == "other_blocks" and shown):
                continue  # only objects have a main text; beside a shown value are all links
            for style in ("compact", "paper", "json"):
                notice = notice_of(value, style, shown=shown, **changes)
                assert BASE in find_notice_bases(notice), notice


VALUES: list[tuple[Any, str]] = [
    (
        {"raw_grid": [[[0.5] * 4] * 3] * 2, "shape": [2, 3, 4]},
        'object: "raw_grid" array[2x3x4], "shape" [2,3,4]',
    ),
    (
        {"rows": [{"id": n} for n in range(12)], "ok": True},
        'object: "rows" array[12] of object 134 B, "ok" true.\nfields of "rows", with first values: id 0',
    ),
    (
        rb'{"name": "\u0418\u0432\u0430\u043d", "city": "\u041a\u0451\u043b\u044c\u043d \u0438 \u042f"}',
        'object: "name" "\u0418\u0432\u0430\u043d", "city" "\u041a\u0451\u043b\u044c\u043d \u0438 \u042f"',
    ),
    ({}, "(object {size})"),
    ({"a": "x" * 100}, 'object: "a" text 100 B'),
    (
        {"rows": [{"id": n} for n in range(1024)], "note": "Only the first 1,024 rows are here: \x1b[1m use OFFSET."},
        (
            'object: "rows" array[1024] of object 13.2 kB, '
            '"note" "Only the first 1,024 rows are here: \\u001b[1m use OFFSET.".\n'
            'fields of "rows", with first values: id 0'
        ),
    ),
    ({"a": "two words\n" + "on two lines " * 5, "b": "w " * 80}, 'object: "a" text 75 B, "b" text 160 B'),
    (
        {str(n): f"{n} " + "w " * 70 for n in range(4)},
        "object: " + "".join(f'"{n}" "{n} {"w " * 70}", ' for n in range(3)) + '"3" text 142 B',
    ),
    ({"a/b~c": None, "": 1}, 'object: "a~1b~0c" null, "" 1'),
    ({"a": {"b": "c, d", "e": [1, 2]}}, 'object: "a" {"b": "c, d", "e": [1, 2]}'),
    (b'{"a":[\n 1,\n 2\n]}', 'object: "a" [1,2]'),
    (b'{"a":{\n "b": "c \\n  d",\r\n\t"e": [\n1,\n2 ]\n}}', 'object: "a" {"b": "c \\n  d","e": [1,2 ]}'),
    (b'{"a":{' + b" " * 50 + b"\n" + b" " * 50 + b'"b": 1}}', 'object: "a" {"b": 1}'),
    ([[1, 2], [3, 4]], "array[2x2], {size}."),
    ([[1, 2], [3]], "array[2] of array, {size}."),
    ([[1, 2], 3], "array[2], {size}."),
    ([[[1], [2, 3]], [[4], [5]]], "array[2x2] of array, {size}."),
    ([[[[[1]]]]], "array[1x1x1x1] of array, {size}."),
    ([[[[{}]]]], "array[1x1x1x1] of object, {size}."),
    ([], "array[0], {size}."),
    ([[], [1]], "array[2] of array, {size}."),
    ([[], []], "array[2x0], {size}."),
    (["a"] * 1000, 'array[1000], {size}:\nfirst: "a", "a", "a", "a", "a"'),
    ("first\nsecond", "text, 12 B, 2 lines:\nfirst\nsecond"),
    ("one", "text, 3 B:\none"),
    (12345, "number 12345."),
    (b" null ", "null null."),
]


@pytest.mark.parametrize(("value", "outline"), VALUES, ids=lambda value: repr(value)[:30])
def test_a_compact_notice_outlines_the_value(value: Any, outline: str) -> None:
    outline = outline.replace("{size}", format_bytes(len(stored(value).value.blob))).replace("{base}", BASE)
    kind = stored(value).value.kind
    summary, *lines = outline.splitlines()
    if lines and kind != "object":
        marked = "\n".join(f"| {line}" for line in lines)
        expected = f"This path stands for the result. Preview, not the result: {summary.removesuffix(':')}\n{marked}"
        assert notice_of(value) == f'"{BASE}"\n{expected}\n{USE_OF_PREVIEW}'
        return
    sentence = f"This path {outline} stands for the result." if outline[0] == "(" else f"This path stands for {outline}"
    sentence += "." if outline.startswith("object") and "with first" not in outline else ""
    assert notice_of(value) == f'"{BASE}"\n{sentence}\n{USE}'


USE = "Use the path as the argument of the next tool."
USE_OF_PREVIEW = "Use the path as the argument of the next tool, not the preview."


@pytest.mark.parametrize("kind", ["object", "array", "text", "number", "boolean", "null", "binary"])
def test_every_notice_ends_with_the_same_instruction(kind: Kind) -> None:
    blobs = {"array": b"[1]", "text": b'"x"', "number": b"1", "boolean": b"true", "null": b"null"}
    blob = blobs.get(kind, b'{"type":"image"}')
    each: tuple[dict[str, Any], ...] = ({}, {"head": "no"}, {"companion": COMPANION})
    for changes in each:
        notice = notice_of(blob, kind=kind, **changes)
        assert notice.splitlines()[-1] == (USE_OF_PREVIEW if "\n| " in notice else USE)
        assert find_notice_bases(notice) == ({BASE, COMPANION} if "companion" in changes else {BASE})
        assert (
            json.loads(notice_of(blob, "json", kind=kind, **changes))["use"]
            == f"This path stands for the result. {USE}"
        )


def test_a_file_is_outlined_by_its_media_type() -> None:
    block = b'{"type":"image","data":"aGVsbG8=","mimeType":"image/png"}'
    assert "\nThis path stands for image/png, 5 B.\n" in notice_of(block, kind="binary")
    untyped = b'{"type":"resource","resource":{"uri":"u","blob":"aGVsbG8="}}'
    assert "\nThis path stands for file, 5 B.\n" in notice_of(untyped, kind="binary")
    linked = b'{"type":"resource_link","name":"n","uri":"u"}'
    assert f"\nThis path stands for content block, {len(linked)} B.\n" in notice_of(linked, kind="binary")


def test_an_embedded_text_has_the_preview_of_its_text() -> None:
    rows = "".join(f"{number},{number * 2}\n" for number in range(999))
    resource = {"uri": "mem://a", "mimeType": "text/csv", "text": f"a,b\n{rows}"}
    block = json.dumps({"type": "resource", "resource": resource}).encode()
    size = format_bytes(len(resource["text"]))
    lines = notice_of(block, kind="binary").splitlines()
    described = f"text, {size}, 1,000 lines, CSV, 2 columns"
    assert lines[1:4] == [f"This path stands for the result. Preview, not the result: {described}", "| a,b", "| 0,0"]
    assert "| 998,1996" in lines
    shape = json.loads(notice_of(block, "json", kind="binary"))
    assert (shape["is"], shape["preview"][0]) == (described, "a,b")
    assert "0,0" not in notice_of(block, kind="binary", preview=False)


def file_beside(*texts: str) -> bytes:
    resource = {"uri": "repo://a.py", "mimeType": "text/plain", "text": "def first(): ...\n" * 900}
    return json.dumps([*texts, {"type": "resource", "resource": resource}]).encode()


def test_the_notice_of_a_text_after_a_sentence_names_the_path_of_the_text() -> None:
    lines = notice_of(file_beside("downloaded a file")).splitlines()
    assert lines[0] == f'"{BASE}/1"'
    described = "text, 15.3 kB, 900 lines, source code with 900 definitions"
    assert lines[1] == f"This path stands for the result. Preview, not the result: {described}"
    assert lines[2] == "| 0: def first(): ..."
    assert lines[-2:] == ['The result also has "downloaded a file".', USE_OF_PREVIEW]
    assert read_notice_path("\n".join(lines)) == MemoryPath(BASE, ("1",))
    rows = "id,name\n" + "1,Ann\n" * 400
    assert notice_of(["12 rows:", rows, "the end"]).startswith(f'"{BASE}/1"\nThis path stands for the result. Preview')
    assert 'The result also has "12 rows:", "the end".' in notice_of(["12 rows:", rows, "the end"])


def test_the_notice_of_data_after_a_sentence_names_the_path_of_the_data() -> None:
    rows = [{"id": number, "status": "open"} for number in range(400)]
    lines = notice_of(["Found 400 orders.", rows, "Show them."]).splitlines()
    assert lines[0] == f'"{BASE}/1"'
    assert lines[1].startswith("This path stands for array of 400 objects, ")
    assert lines[-2:] == ['The result also has "Found 400 orders.", "Show them.".', USE]
    lines = notice_of([{"title": "Orders", "orders": rows}, "The end."]).splitlines()
    assert lines[0] == f'"{BASE}/0"'
    assert lines[1].startswith('This path stands for object: "title" "Orders", "orders" array[400] of object ')
    assert lines[2] == 'fields of "orders", with first values: id 0, status "open"'
    assert lines[-2:] == ['The result also has "The end.".', USE]
    assert read_notice_path("\n".join(lines)) == MemoryPath(BASE, ("0",))
    advice = "If the user asked to fix any issue, begin with those of the highest severity. " * 3
    before = "Here are the results of the check. Before anything else, show the whole list to the user:"
    assert notice_of([before, rows, advice]).startswith(f'"{BASE}/1"\nThis path stands for array of 400 objects, ')
    for other in (advice * 2, 1):
        assert notice_of([before, rows, other]).startswith(f'"{BASE}"\n')
    large = notice_of(["Found:", {"orders": rows * 100}]).splitlines()
    assert large[1] == "This path (object 1.23 MB) stands for the result."


CELLS = [["2026-01-01", f"Shop {number}", number] for number in range(200)]
NAMES = ["date", "shop", "n"]


@pytest.mark.parametrize(
    ("value", "described"),
    [
        (
            {"columns": NAMES, "rows": CELLS},
            'columns of "rows", with first values: date "2026-01-01", shop "Shop 0", n 0',
        ),
        (
            {"rows": [[1, 2, None], *CELLS], "fields": [{"name": one, "type": "x"} for one in NAMES], "count": 200},
            'columns of "rows", with first values: date 1 or text, shop 2 or text, n null or number',
        ),
        (
            {"ok": True, "data": {"columns": ["t", "v"], "values": [[number, 0.5] for number in range(900)]}},
            'columns of "{base}/data/values", with first values: t 0, v 0.5',
        ),
        ({"columns": NAMES, "rows": [["a", "b"]] * 300}, 'first row of "rows": "a", "b"'),
        ({"rows": CELLS, "count": 200}, 'first row of "rows": "2026-01-01", "Shop 0", 0'),
        (
            {"count": 200, "files": [f"src/{number}.py" for number in range(200)]},
            'first of "files": "src/0.py", "src/1.py',
        ),
        (
            {"columns": NAMES, "rows": [*CELLS, {"date": 1}]},
            'columns of "rows", with first values: date "2026-01-01", shop "Shop 0", n 0',
        ),
    ],
)
def test_an_object_shows_the_beginning_of_its_rows_of_cells_or_texts(value: Any, described: str) -> None:
    lines = notice_of(value).splitlines()
    assert lines[2].startswith(described.replace("{base}", BASE))
    assert lines[3] == USE
    assert described[:9] not in notice_of(value, preview=False)


@pytest.mark.parametrize("rows", [[[1, 2.5]] * 500, list(range(900)), [[]] * 900, [None] * 900, [[{"a": 1}]] * 300])
def test_rows_without_names_and_texts_have_no_line(rows: Any) -> None:
    assert len(notice_of({"rows": rows, "n": 1}).splitlines()) == 3


def test_texts_beside_another_array_have_no_line() -> None:
    assert len(notice_of({"time": ["2026-01-01T00:00"] * 200, "celsius": [1.5] * 200}).splitlines()) == 3


LONG = "A long sentence about the meeting. " * 60


@pytest.mark.parametrize(
    ("value", "outline"),
    [
        ({"id": 7, "content": LONG}, '"id" 7, "content" text 2.1 kB at "{base}/content"'),
        (
            {"data": {"notes/old": LONG, "n": 1, "page": {"next": "b2Zm", "total": 9}, "tags": ["a"]}, "ok": True},
            (
                '"data" object 2.18 kB, "ok" true, "data/notes~1old" text 2.1 kB at "{base}/data/notes~1old".\n'
                'also in "data": n 1, page/next "b2Zm", page/total 9'
            ),
        ),
        (
            {"body": LONG, "labels": [{"id": 3}]},
            ('"body" text 2.1 kB at "{base}/body", "labels" [{"id": 3}].\nfields of "labels", with first values: id 3'),
        ),
        ({"k" * 80: LONG}, f'"{"k" * 80}" text 2.1 kB at "{{base}}/{"k" * 80}"'),
        (
            {"stdout": LONG, "stderr": LONG[:400], "env": "x" * 300, "n": [1] * 999},
            (
                '"stdout" text 2.1 kB at "{base}/stdout", "stderr" text 400 B at "{base}/stderr", '
                '"env" text 300 B, "n" array[999] 3 kB'
            ),
        ),
        (
            {"kind": "cell", "outputs": [LONG, "[done]"], "count": 2},
            ('"kind" "cell", "outputs" array[2] 2.11 kB, "count" 2, "outputs/0" text 2.1 kB at "{base}/outputs/0"'),
        ),
        (
            {"result": [LONG], "outputs": [LONG], "count": 1},
            (
                '"result" array[1] 2.1 kB, "outputs" array[1] 2.1 kB, "count" 1, '
                '"result/0" text 2.1 kB at "{base}/result/0"'
            ),
        ),
        ({"a": [LONG]}, '"a" array[1] 2.1 kB, "a/0" text 2.1 kB at "{base}/a/0"'),
        (
            {"a": [LONG, LONG], "b": [LONG, 1], "c": [LONG, *"efghi"]},
            '"a" array[2] 4.21 kB, "b" array[2] 2.11 kB, "c" array[6] 2.13 kB',
        ),
        ({key: {"text": LONG} for key in "abc"}, '"a" object 2.11 kB, "b" object 2.11 kB, "c" object 2.11 kB'),
    ],
)
def test_the_notice_of_an_object_names_the_paths_of_its_long_texts(value: Any, outline: str) -> None:
    end = "" if "\n" in outline else "."
    described = f"This path stands for object: {outline.replace('{base}', BASE)}{end}"
    assert notice_of(value) == f'"{BASE}"\n{described}\n{USE}'
    assert find_notice_bases(notice_of(value)) == {BASE}
    assert "/" not in notice_of(value, preview=False).replace(BASE, "")


DIFF = "".join(f"diff --git a/f{n} b/f{n}\n--- a/f{n}\n+++ b/f{n}\n@@ -1 +1 @@\n-a\n+b\n" for n in range(40))
CODE = "import os\n\n\n" + "".join(f"def f{n}() -> str:\n    return os.name\n\n\n" for n in range(90))


def test_the_long_texts_of_an_object_have_their_lines_and_formats() -> None:
    notice = notice_of({"ok": True, "new": {"diff": DIFF, "file": CODE, "log": "x" * 400}, "file": "JVBERi0x" * 99})
    assert f'"file" text 792 B at "{BASE}/file" (base64 of application/pdf, 594 B)' in notice
    notice = notice_of({"ok": True, "diff": DIFF, "file": CODE, "log": "x" * 400, "lines": "a b c\n" * 100})
    assert notice.splitlines()[1] == (
        'This path stands for object: "ok" true, '
        f'"diff" text 2.4 kB at "{BASE}/diff" (240 lines, diff of 40 files), '
        f'"file" text 3.51 kB at "{BASE}/file" (363 lines, source code with 90 definitions), "log" text 400 B, '
        f'"lines" text 600 B at "{BASE}/lines" (100 lines).'
    )


def test_the_errors_in_a_long_text_of_an_object_are_counted() -> None:
    log = "".join(f"10:00:{n:02} {'ERROR' if n in (41, 52) else 'info'} request {n}\n" for n in range(60))
    value = {"content": log, "bytes_read": len(log), "encoding": "utf-8"}
    assert f'at "{BASE}/content" (60 lines, log, 2 with ERROR from line 41), ' in notice_of(value)
    assert "ERROR" not in notice_of(value, preview=False)
    assert "ERROR" not in notice_of({"content": CODE + "# ERROR\n"})


@pytest.mark.parametrize(
    ("data", "described"),
    [
        (
            [{"id": n, "name": f"user {n}"} for n in range(90)],
            'contains JSON: array of 90 objects, 2.77 kB; fields with first values: id 0, name "user 0"',
        ),
        (
            {"orders": [{"id": n, "cents": 3 * n} for n in range(90)], "next": "b2Zmc2V0", "total": 900},
            (
                'contains JSON: object with orders array[90] of object, next "b2Zmc2V0", total 900; '
                'fields of "orders", with first values: id 0, cents 0'
            ),
        ),
    ],
    ids=["array", "object"],
)
def test_json_in_the_longest_text_of_an_object_has_its_keys(data: Any, described: str) -> None:
    notice = notice_of({"status": 200, "body": json.dumps(data), "log": LONG[:500]})
    assert f'at "{BASE}/body" ({described}), "log" text 500' in notice
    many = notice_of({"body": json.dumps(data)} | {f"key {number}": number for number in range(90)})
    assert len(many.replace(BASE, "").partition("object: ")[2].partition("\n")[0]) // 4 <= 150
    assert len(notice_of({"body": json.dumps([{"k" * 60 + str(n): 1 for n in range(40)}] * 9)}).encode()) < 2048


def test_the_formats_of_long_texts_are_among_the_tokens_of_a_preview() -> None:
    texts = {f"file {number}": CODE * (number + 1) for number in range(3)}
    notice = notice_of(texts | {f"key {number}": number for number in range(90)})
    assert len(notice.replace(BASE, "").partition("object: ")[2].partition("\n")[0]) // 4 <= 150


def test_the_number_of_rows_is_named_after_many_other_keys() -> None:
    counts = {f"number of files of kind {kind}": kind for kind in range(40)}
    notice = notice_of({**counts, "files": [{"path": f"src/{n}.py", "lines": n} for n in range(300)]})
    assert notice.splitlines()[1].startswith('This path stands for object: "files" array[300] of object 11.2 kB, "numb')
    assert notice.splitlines()[2] == 'fields of "files", with first values: path "src/0.py", lines 0'
    assert len(notice.replace(BASE, "").partition("object: ")[2].partition("Use")[0]) // 4 <= 150


def test_a_small_table_gives_way_to_what_makes_up_most_of_an_object() -> None:
    small, counts = [{"path": "a.toml"}], {f"src/folder{n}": n for n in range(200)}
    notice = notice_of({"name": "x", "build_files": small, "counts": counts})
    assert notice.splitlines()[2].startswith('"counts" has src/folder0 0, src/folder1 1, ')
    assert 'fields of "rows"' in notice_of({"rows": small, "body": LONG})
    assert 'fields of "rows"' in notice_of({"rows": small, **{f"k{n}": "v" * 50 for n in range(90)}})


def test_a_notice_with_the_longest_paths_of_texts_is_short() -> None:
    assert len(notice_of({f"{n}{'k' * 159}": CODE * (1 + 40 * (n == 8)) for n in range(9)}).encode()) < 2048
    assert len(notice_of({f"{n}{'k' * 159}": LONG for n in range(9)}).encode()) < 2048
    assert '" at "' not in notice_of({"k" * 161: LONG})


def test_the_paths_of_the_three_longest_texts_are_named() -> None:
    for sizes, kept in ((range(400, 405), slice(2, 5)), (range(404, 399, -1), slice(3))):
        notice = notice_of({f"k{number}": LONG[:size] for number, size in enumerate(sizes)})
        assert [size for number, size in enumerate(sizes) if f'"{BASE}/k{number}"' in notice] == [*sizes][kept]


def test_short_keys_after_rows_and_long_values_are_listed() -> None:
    before = {f"setting {number}": {"name": "x" * 20, "value": number} for number in range(3)}
    page = {"total": 5000, "next": "eyJvZmZzZXQ", "more": True}
    lines = notice_of({**before, "rows": [{"id": 1, "name": "a"}] * 100, **page}).splitlines()
    assert lines[1].endswith('"total" 5000, "next" "eyJvZmZzZXQ", "more" true.')
    assert lines[2] == 'fields of "rows", with first values: id 1, name "a"'
    assert sum(len(line) // 4 for line in lines[1:3]) <= 150
    assert '"more" true, and 1 more key.' in notice_of({**before, "k" * 90: ["x" * 9] * 3, **page}, room=85)
    wide = notice_of({**before, "rows": [{f"field {number}": number for number in range(40)}], **page}).splitlines()
    assert sum(len(line) // 4 for line in wide[1:3]) <= 150


PEOPLE = {f"user-{number}": {"id": number, "name": f"user {number}"} for number in range(300)}
PACKAGES = {f"lib{number}": {"version": "1", "license": "MIT"} for number in range(40)}


LINTED = {"filePath": "/src/a.js", "source": LONG, "messages": [{"ruleId": "no-var", "line": 1}] * 90, "errors": 90}


def test_the_number_of_rows_is_named_beside_long_other_texts() -> None:
    before = "Here are the results of the linter. Before you do anything else, show the whole list to the user: "
    after = "If the user did not ask for corrections, ask the user for a confirmation before you correct anything. " * 2
    counts = {"suppressed": [], "errors": 90, "fatal": 0, "warnings": 0, "used": []}
    linted = {"filePath": "/home/ada/projects/shop/src/a.js", "messages": LINTED["messages"], **counts, "source": LONG}
    lines = notice_of([before, linted, after]).splitlines()
    assert '"messages" array[90] of object' in lines[1]
    assert sum(len(line.replace(BASE, "").partition(": ")[2]) // 4 for line in lines[1:4]) <= 150


def test_the_paths_of_texts_take_no_room_from_the_fields_of_rows() -> None:
    lines = notice_of(LINTED, room=50).splitlines()
    assert lines[2] == 'fields of "messages", with first values: ruleId "no-var", line 1'
    assert f'"source" text 2.1 kB at "{BASE}/source"' in lines[1]


@pytest.mark.parametrize(
    ("value", "room", "outline"),
    [
        (LINTED, 50, f'"filePath" "/src/a.js", "source" text 2.1 kB at "{BASE}/source", "errors" 90, and 1 more key.'),
        ({"n": 1, "all": PEOPLE}, 50, '"n" 1, "all" object 13.2 kB.'),
        ({"n": 1, "all": {f"key {number}": [number] * 90 for number in range(9)}}, 30, '"n" 1, and 1 more key.'),
    ],
)
def test_rows_without_room_for_a_field_have_no_line(value: Any, room: int, outline: str) -> None:
    notice = notice_of(value, room=room, estimate=lambda text: len(text) // 2)
    assert notice == f'"{BASE}"\nThis path stands for object: {outline}\n{USE}'


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (PEOPLE, 'Its 300 members are objects; fields with first values: id 0, name "user 0"'),
        (
            {"note": "by id", "all users": PEOPLE},
            '"all users" has 300 objects, the first at "user-0"; fields with first values: id 0, name "user 0"',
        ),
        (
            {"data": {"users": {key: {"id": 0, "name": None} for key in PEOPLE}}},
            f'"{BASE}/data/users" has 300 objects, the first at "user-0"; fields with first values: id 0, name null',
        ),
        (
            {"all": {"": {"version": "2", "bin": {}, "os": 1}, **PACKAGES}},
            '"all" has 41 objects, the first at ""; fields with first values: version "2", bin {}, os 1, license text',
        ),
        (
            {key: {"id": 0, "name": None, "x": 1, "y": 2} | ({"q": 1} if key == "user-3" else {}) for key in PEOPLE},
            "Its 300 members are objects; fields with first values: id 0, name null, x 1, y 2, q number",
        ),
    ],
)
def test_an_object_of_objects_with_the_same_keys_is_described_as_rows(value: Any, line: str) -> None:
    shown = notice_of(value)
    assert shown.splitlines()[2] == line
    assert is_whole_notice(shown)
    assert sum(len(one.replace(BASE, "")) // 4 for one in shown.splitlines()[1:-1]) <= 150


@pytest.mark.parametrize(
    "value",
    [
        {"server": {"port": 1, "host": "a" * 40}, "client": {"name": "b" * 40}, "log": {"level": "c" * 40}},
        {"a": {"id": 1, "name": "x" * 60}, "b": {"id": 2, "name": "y" * 60}, "c": {"id": 3}},  # only a few
        {f"k{number}": {f"a{number}": number, f"b{number}": "x" * 20} for number in range(9)},
        {"a": {}, "b": {}, "c": {}, "d": "x" * 60},
        {f"k{n}": {"id": n, **({f"p{m}": m for m in range(4)} if n in (2, 5) else {})} for n in range(9)},  # two differ
        {f"k{n}": {"id": n, "name": "x" * 20} if n else {"port": 1} for n in range(9)},  # nothing in common
        {"a": {"id": 1}, "b": {"id": 2}, "c": "text", "d": "x" * 60},
        {f"k{number}": {"rows": [[number] * 5_000] * 9} for number in range(9)},  # too large
    ],
)
def test_other_objects_are_not_described_as_rows(value: Any) -> None:
    assert len(notice_of(value).splitlines()) == 3


HOURLY = {"time": ["2026-01-01T00:00"] * 168, "rain mm": [0.5] * 168, "place": "Bonn", "grid": {"a": [1] * 40}}
HOURLY_KEYS = 'time array[168], "rain mm" array[168], place "Bonn", grid object'


@pytest.mark.parametrize(
    ("value", "name", "keys"),
    [
        ({"latitude": 50.5, "hourly": HOURLY}, "hourly", HOURLY_KEYS),
        ({"ok": True, "data": {"weather": HOURLY, "page": 1}}, f"{BASE}/data/weather", HOURLY_KEYS),
        ({"a": {"b": {"c": {"d": HOURLY}}}}, f"{BASE}/a/b/c/d", HOURLY_KEYS),
        ({"a": {"b": {"c": {"d": {"e": HOURLY}}}}}, f"{BASE}/a/b/c/d", "e object"),
    ],
)
def test_the_keys_of_the_object_that_makes_up_most_of_a_value_are_named(value: Any, name: str, keys: str) -> None:
    shown = notice_of(value)
    assert shown.splitlines()[-2] == f'"{name}" has {keys}'
    assert is_whole_notice(shown)
    assert len(notice_of(value, preview=False).splitlines()) == 3


ROWS = [{"number": n, "title": f"issue {n}"} for n in range(90)]
CURSOR = {"hasNextPage": True, "endCursor": "Y3Vyc29yOjkw"}


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        (
            {"data": {"items": ROWS, "has_more": True, "next_cursor": None}, "ok": True},
            ['also in "data": has_more true, next_cursor null'],
        ),
        (
            {"data": {"issues": {"totalCount": 2, "pageInfo": CURSOR, "nodes": ROWS}}},
            ['also in "data/issues": totalCount 2, pageInfo/hasNextPage true, pageInfo/endCursor "Y3Vyc29yOjkw"'],
        ),
        (
            {"a": {"page": 1, "b": {"of": 9, "rows": {f"k{n}": row for n, row in enumerate(ROWS)}}}},
            ['also in "a": page 1', 'also in "a/b": of 9'],
        ),
        ({"a": {"next": 2, "b": {f"k{n}": [n] * 90 for n in range(9)}}}, ['also in "a": next 2']),
        ({"a/b": {"c~d": ROWS, "e/f": {"g/h": 1}}}, ['also in "a~1b": "e~1f/g~1h" 1']),
        (
            {"data": ROWS, "meta": {"total": 3000, "page": 0, "links": {"next": "/orders?page=1", "self": "/orders"}}},
            ['also in "meta": total 3000, page 0, links/next "/orders?page=1", links/self "/orders"'],
        ),
        ({"data": ROWS, "meta": {"total": 3000}, "more": {"k" * 9: "v" * 520}}, []),
        ({"items": ROWS, "has_more": True}, []),
        ({"data": {"items": ROWS, "others": [[]], "text": "x" * 200}}, []),
    ],
)
def test_small_values_beside_nested_rows_are_named(value: Any, lines: list[str]) -> None:
    notice = notice_of(value)
    assert [line for line in notice.splitlines() if line.startswith("also in ")] == lines


def test_a_small_object_that_is_listed_has_no_further_line() -> None:
    value = {"from": {"name": "Ada", "mail": "ada@example.org"}, "items": ROWS}
    notice = notice_of(json.dumps(value, indent=2).encode())
    assert 'This path stands for object: "from" {"name": "Ada","mail": "ada@example.org"}, "items" array[90]' in notice
    assert "also in " not in notice


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (
            {"id": 7, "items": ROWS},
            f'fields of "{BASE}/data/0/items", array[90], with first values: number 0, title "issue 0"',
        ),
        ({"id": 7, "rows": [["day", 1]] * 900}, f'first row of "{BASE}/data/0/rows": "day", 1'),
        (
            {"id": 7, "by": {f"d{n}": row for n, row in enumerate(ROWS)}},
            f'"{BASE}/data/0/by" has 90 objects, the first at "d0"; fields with first values: number 0, ',
        ),
        ({"n": 7, "m": [[n] * 9 for n in range(90)]}, f'"{BASE}/data/0" has n 7, m array[90x9]'),
        ({f"k{n}": n for n in range(400)}, 'fields of "data", with first values: k0 0'),
        ({f"k{n}": n for n in range(400)} | {"a": ROWS[:1]}, 'fields of "data", with first values: k0 0'),
    ],
)
def test_the_rows_in_the_only_row_of_a_table_are_shown(row: object, line: str) -> None:
    assert any(shown.startswith(line) for shown in notice_of({"data": [row], "total": 1}).splitlines())


@pytest.mark.parametrize(
    "value", [[{"id": 7, "state": {}, "items": ROWS}], {"0": {"id": 7, "state": {}, "items": ROWS}}]
)
def test_the_keys_in_the_only_member_around_rows_are_named(value: object) -> None:
    notice = notice_of(value)
    assert " kB (id, state, items)." in notice
    assert f'fields of "{BASE}/0/items", array[90], with first values: number 0, title "issue 0"' in notice


def test_records_beside_a_short_text_are_shown() -> None:
    by_version = {f"1.0.{n}": {"version": f"1.0.{n}", "size": n} for n in range(90)}
    notice = notice_of({"name": "x", "tags": [{"a": 1}], "readme": "word " * 90, "versions": by_version})
    assert (
        '"versions" has 90 objects, the first at "1.0.0"; fields with first values: version "1.0.0", size 0' in notice
    )
    assert f'"readme" text 450 B at "{BASE}/readme"' in notice


def test_the_cursor_beside_rows_has_room_before_values_further_out() -> None:
    answer = {"statusCode": 200, "statusText": "OK", "timing": "8ms"}
    body = {"data": {"items": {"edges": ROWS, "pageInfo": CURSOR}}}
    request = {"method": "GET", "url": "https://shop.example/items?first=90", "authMethod": "none"}
    notice = notice_of({"request": request, "response": {**answer, "body": body}})
    cursor = 'pageInfo/hasNextPage true, pageInfo/endCursor "Y3Vyc29yOjkw"'
    assert f'also in "response/body/data/items": {cursor}' in notice.splitlines()


def test_values_beside_rows_leave_room_for_the_fields_of_the_rows() -> None:
    notice = notice_of({"data": {f"setting {n}": n for n in range(60)} | {"rows": ROWS}})
    assert 'fields of "' in notice
    assert 'number 0, title "issue 0"' in notice
    assert 'also in "data": "setting 0" 0, ' in notice
    assert '"setting 30"' not in notice


def test_an_object_after_many_others_has_no_line() -> None:
    page = {"page": {"next": "/orders?page=1", "total": 3000, "size": 90}}
    for count, has_line in ((50, True), (200, False)):
        notice = notice_of({"rows": ROWS, **{f"k{n}": n for n in range(count)}, **page})
        assert ('also in "page": next ' in notice) is has_line


def test_values_beside_rows_have_no_line_without_room_for_it() -> None:
    value = {"data": {"k" * 39: "\u4f60" * 13, "items": ROWS}}
    assert "also in " in notice_of(value)
    assert "also in " not in notice_of(value, estimate=len)


def test_many_keys_of_such_an_object_are_counted() -> None:
    numbers = {f"2026-{number:04}": number * 1.5 for number in range(400)}
    assert re.search(
        r'\n"rates" has 2026-0000 0.0, 2026-0001 1.5, .*, and 374 more keys\n',
        notice_of({"base": "EUR", "rates": numbers}),
    )


def test_an_array_of_rows_shows_the_first_row_if_it_has_texts() -> None:
    table = [["id", "full name", None], *([number, "user", 1.5] for number in range(300))]
    assert ' array[301x3], 5.92 kB; first row: "id", "full name", null.' in notice_of(table)
    wide = notice_of([[f"column {number}" for number in range(99)]] * 3)
    assert re.search(r'; first row: "column 0", .*, and \d+ more\.\n', wide)
    assert len(wide.splitlines()[1]) // 4 <= 150
    others: list[list[list[Any]]] = [[[1.5, 2]] * 300, [["a", [1]]] * 300, [["x" * 5000]] * 3, [[]] * 300]
    for other in others:
        assert "first row" not in notice_of(other)


def test_rows_within_an_only_row_have_their_path_and_fields() -> None:
    rows = [{"id": n, "note": f"note {n}"} for n in range(300)]
    first, described, line, *_ = notice_of([{"all_orders": rows}]).splitlines()
    assert first == f'"{BASE}"'
    size = format_bytes(len(json.dumps({"all_orders": rows})))
    assert described == f'This path stands for array of 1 object: "0" object {size}.'
    assert line == f'fields of "{BASE}/0/all_orders", array[300], with first values: id 0, note "note 0"'


def test_the_long_text_of_an_array_with_one_object_has_its_path() -> None:
    notice = notice_of([{"id": 7, "body": "".join(f"line {n}\n" for n in range(900))}])
    assert f'"0/body" text 7.99 kB at "{BASE}/0/body" (900 lines)' in notice
    assert 'also in "0": id 7' in notice


def test_an_array_of_one_object_without_rows_has_the_fields_of_a_table() -> None:
    described = notice_of([{f"key{n}": n for n in range(300)}])
    assert "array of 1 object, 4.28 kB; fields with first values: key0 0, key1 1" in described


def test_the_path_of_a_long_text_is_named_after_many_other_keys() -> None:
    value = {f"a long name of a property {number}": number for number in range(90)} | {"content": LONG}
    assert notice_of(value).splitlines()[1].endswith(f', "content" text 2.1 kB at "{BASE}/content", and 75 more keys.')
    assert f'"{BASE}/1"\nThis path stands for object: "content" text 2.1 kB at "{BASE}/1/content".' in notice_of(
        ["The note:", {"content": LONG}]
    )


def test_a_picture_after_a_sentence_has_no_preview_of_its_own() -> None:
    picture = {"type": "image", "mimeType": "image/png", "data": "aGVsbG8=" * 90}
    assert notice_of(["A chart.", picture]).startswith(f'"{BASE}"\n')


def test_a_picture_among_texts_has_one_line() -> None:
    picture = {"type": "image", "mimeType": "image/png", "data": "aGVsbG8=" * 90}
    file = {"type": "resource", "resource": {"uri": "u", "mimeType": "application/pdf", "blob": "aGVsbG8=" * 90}}
    shown = MediaPart("/2", "image/png, 539 B", is_hidden=False)
    media = (shown, MediaPart("/3/resource/blob", "application/pdf, 450 B", is_hidden=False))
    lines = notice_of(["one file", "word " * 300, picture, file], media=media).splitlines()
    assert [line for line in lines if f'"{BASE}/2"' in line] == [f'| "{BASE}/2": image/png, 539 B']
    assert f'"{BASE}/3/resource/blob" application/pdf, 450 B' in lines
    assert f'"{BASE}/2" image/png, 539 B' in notice_of([1, 2], media=media)
    hidden = shown._replace(is_hidden=True)
    assert f'"{BASE}/2" image/png, 539 B, not shown' in notice_of(["one file", picture], media=(hidden,))
    large = picture | {"data": "A" * (34 << 20)}
    assert f'| "{BASE}/2": object 35.7 MB\n' in notice_of(["one file", "word " * 300, large])


def test_the_number_of_pictures_that_are_not_shown_is_named() -> None:
    media = [MediaPart(f"/{at}", "image/png, 5 B", is_hidden=at >= 20) for at in range(25)]
    assert "\nand 17 more, 5 of them not shown\n" in notice_of([1, 2], media=tuple(media))
    assert "\nand 12 more\n" in notice_of([1, 2], media=tuple(media[:20]))


@pytest.mark.parametrize("beside", [("word " * 70,), ("a note\n",) * 5, ("\u4f60\u597d" * 20,) * 4])
def test_long_or_many_texts_beside_a_text_have_a_line_each(beside: tuple[str, ...]) -> None:
    assert notice_of(file_beside(*beside)).startswith(f'"{BASE}"\n')


def test_an_embedded_text_beside_other_values_is_shown_by_its_beginning() -> None:
    blob = file_beside("a sentence", "word " * 70)
    assert f'| "{BASE}/2": text 15.3 kB: "def first(): ...\\ndef first' in notice_of(blob)
    like_a_block = json.dumps(["a row", {"data": "x" * 900, "resource": {"text": "y" * 900}}]).encode()
    assert '"/resource/text"' not in notice_of(like_a_block)


def test_each_of_several_embedded_texts_is_shown_by_its_beginning() -> None:
    texts = ["first file\n" * 90, "second file\n" * 200_000]
    blob = json.dumps([{"type": "resource", "resource": {"uri": "repo://a", "text": text}} for text in texts]).encode()
    shown = notice_of(blob).splitlines()[2:4]
    assert shown[0].startswith(f'| "{BASE}/0": text 990 B: "first file')
    assert shown[1].startswith(f'| "{BASE}/1": text 2.4 MB: "second file')


@pytest.mark.parametrize("style", ["compact", "paper", "json"])
def test_a_notice_says_how_many_of_the_links_follow_it(style: NoticeStyle) -> None:
    line = "Below are 95 of 1,300 links and embedded texts."
    assert line in notice_of([1], style, other_blocks=(95, 1300))
    assert "Below" not in notice_of([1], style, other_blocks=(2, 2)) + notice_of([1], style, other_blocks=(0, 2))


def test_an_array_past_the_bound_is_not_counted() -> None:
    assert "Preview, not the result: array, 35 MB\n| first: 1, 1, 1, 1, 1\n" in notice_of(
        b"[" + b"1," * 17_500_000 + b"1]"
    )


def test_a_notice_contains_the_shown_value_unchanged() -> None:
    shown = '{"a": "\u200b",\n"b": 1}'
    assert f"\n{shown}\n" in notice_of({"a": 1, "b": 1}, "paper", shown=shown)
    assert notice_of({"a": 1, "b": 1}, shown=shown) == f'{shown}\n\nPath: "{BASE}"\nResult ends.'
    text_use = "As an argument, the path stands for the text."
    assert notice_of("a\n", shown="a\n") == f'"{BASE}"\n\na\n\n{text_use}\nResult ends.'
    assert notice_of([], shown="") == f'Path: "{BASE}"\nResult ends.'
    notice = notice_of({"a": 1}, "json", shown=shown)
    assert '"content": {"a":"\\u200b","b":1}, ' in notice
    assert "keys" not in json.loads(notice)


RUN = {"stdout": "a\nb\n", "exit_code": 0, "stderr": "warning"}


def test_a_text_that_is_most_of_an_object_is_shown_with_its_own_path() -> None:
    rest = 'The result also has "exit_code" 0, "stderr" "warning".\n'
    use = "As an argument, the path stands for the text.\nResult ends."
    shown: dict[str, Any] = {"shown": "a\nb\n", "main_text_keys": ("stdout",)}
    notice = notice_of(RUN, **shown)
    assert notice == f'"{BASE}/stdout"\n\na\nb\n\n{rest}{use}'
    assert read_notice_path(notice) == MemoryPath(BASE, ("stdout",))
    assert notice_of({"stdout": "a\nb\n"}, **shown) == f'"{BASE}/stdout"\n\na\nb\n\n{use}'
    page = {"data": {"text": "a", "title": "A", "n": 1}, "ok": True}
    assert notice_of(page, shown="a", main_text_keys=("data", "text")) == (
        f'"{BASE}/data/text"\n\na\n\nThe result also has "ok" true.\nalso in "data": title "A", n 1\n{use}'
    )
    assert json.loads(notice_of(RUN, "json", **shown))["keys"] == {key: json.dumps(value) for key, value in RUN.items()}


def test_a_text_whose_key_cannot_be_shown_has_the_path_of_its_object() -> None:
    notice = notice_of({"a\u200b": "words", "n": 1}, shown="words", main_text_keys=("a\u200b",))
    assert notice.startswith(f'words\n\nPath: "{BASE}"\nThis path stands for object: "a\\u200b" "words", "n" 1.\n')


def test_a_large_text_that_is_most_of_an_object_has_its_own_preview() -> None:
    notice = notice_of({**RUN, "stdout": "a\nb\n" * 300}, main_text_keys=("stdout",))
    first, *lines = notice.split("\n")
    assert first == f'"{BASE}/stdout"'
    assert lines[0] == "This path stands for the result. Preview, not the result: text, 1.2 kB, 600 lines"
    assert lines[-2] == 'The result also has "exit_code" 0, "stderr" "warning".'
    assert read_notice_path(notice) == MemoryPath(BASE, ("stdout",))


@pytest.mark.parametrize("changes", [{"preview": False}, {"head": "broken"}, {"main_text_keys": ("k" * 500,)}])
def test_a_hidden_or_unnameable_text_has_no_path_of_its_own(changes: dict[str, Any]) -> None:
    value = {"k" * 500: "a", "exit_code": 0}
    assert notice_of(value, **{"main_text_keys": ("k" * 500,), **changes}).startswith(f'"{BASE}"\n')


def test_texts_that_say_what_an_object_contains_are_shown_with_its_keys() -> None:
    notice = notice_of(RUN, shown="Exit code: 0\na\nb\nwarning", is_paraphrased=True, companion=COMPANION)
    assert notice == (
        f'Exit code: 0\na\nb\nwarning\n\nPath: "{BASE}"\n'
        'This path stands for object: "stdout" "a\\nb\\n", "exit_code" 0, "stderr" "warning".\n'
        f'text_path: "{COMPANION}"\nResult ends.'
    )
    assert read_notice_path(notice) == MemoryPath(BASE)


DIGITS = '{"a": [1.0, 1e400, -0, 1' + "0" * 40 + '],\r\n\t"b c": "x  y\\" : \\u0041"}'


@pytest.mark.parametrize("value", [{"a": 1}, [1, 2]])
def test_a_json_notice_quotes_a_text_that_is_shown_beside_the_value(value: object) -> None:
    shown = f"two words\n{json.dumps(value)}"

    assert json.loads(notice_of(value, "json", shown=shown))["content"] == shown


def test_a_json_notice_contains_shown_json_with_its_exact_digits() -> None:
    notice = notice_of(DIGITS.encode(), "json", shown=DIGITS, companion=COMPANION)
    assert '"content": {"a":[1.0,1e400,-0,1' + "0" * 40 + '],"b c":"x  y\\" : \\u0041"}, ' in notice
    assert "\n" not in notice
    assert is_whole_notice(notice)
    assert find_notice_bases(notice) == {BASE, COMPANION}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(), below, max_size=4),
        max_leaves=8,
    ),
    st.sampled_from([None, 1, "\t"]),
    st.booleans(),
)
def test_a_json_notice_with_a_shown_value_is_one_strict_json_object(
    value: Any,
    indent: int | str | None,
    ascii_only: bool,  # noqa: FBT001
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    shown = value if isinstance(value, str) else text
    notice = json.loads(notice_of(text.encode("utf-8"), "json", shown=shown))
    assert notice["result"] == BASE
    assert notice["content"] == value
    assert type(notice["content"]) is type(value)
    assert len(notice_of(text.encode("utf-8"), "json", shown=shown).splitlines()) == 1


def test_a_json_notice_contains_a_shown_integer_of_any_length() -> None:
    shown = '{"a":1' + "0" * 5_000 + "}"

    assert f'"content": {shown}, ' in notice_of(shown.encode(), "json", shown=shown)


def test_a_json_notice_contains_shown_text_as_a_string() -> None:
    assert json.loads(notice_of("[1]", "json", shown="[1]"))["content"] == "[1]"


@pytest.mark.parametrize(
    ("value", "below"),
    [
        ({"files": [{"name": "a.md", "content": "word " * 2000}], "count": 1}, "files/0/content"),
        ({"/x/a.md": {"ranges": [{"content": "word " * 2000, "start": 1}]}}, "~1x~1a.md/ranges/0/content"),
        ({"results": [{"data": {"body": "word " * 2000}}]}, "results/0/data/body"),
        ({"files": ["word " * 2000], "count": 1}, "files/0"),
    ],
)
def test_the_long_text_of_an_only_row_has_its_path(value: Any, below: str) -> None:
    assert f'"{below}" text 10 kB at "{BASE}/{below}"' in notice_of(value)


def test_the_texts_of_several_rows_and_of_other_arrays_have_no_path() -> None:
    row = {"name": "a.md", "content": "word " * 2000}
    for rows in ([row, row], [[row]], ["word " * 2000] * 2):
        assert f"{BASE}/files" not in notice_of({"files": rows, "count": 1})


def test_the_companion_is_named_in_every_style_but_opaque() -> None:
    for style in ("compact", "paper", "json"):
        assert COMPANION in notice_of({"a": 1}, style, companion=COMPANION)
    assert notice_of({"a": 1}, "opaque", companion=COMPANION) == f"{BASE}\n"


def test_the_paper_style_has_the_text_of_the_paper() -> None:
    assert notice_of({"grid": [1], "a/b": 2}, "paper", arguments=b'{"molecule":"water"}') == (
        f'The function make_grid was executed with the input {{"molecule":"water"}}.\n'
        f'The output was stored in memory under the path "{BASE}".\n'
        "The output is a dictionary whose keys are stored under these paths:\n"
        f'- "{BASE}/grid"\n- "{BASE}/a~1b"\n'
        "Do not look at the content. Give a path, exactly as it is written, as input to another function."
    )


def test_the_json_style_is_one_strict_object() -> None:
    assert json.loads(notice_of({"grid": [[1, 2]] * 20, "n": 1}, "json", companion=COMPANION)) == {
        "result": BASE,
        "kind": "object",
        "size": "178 B",
        "keys": {"grid": "array[20x2]", "n": "1"},
        "text_path": COMPANION,
        "use": "This path stands for the result. Use the path as the argument of the next tool.",
    }


def test_an_error_notice_contains_the_beginning_of_the_error() -> None:
    head = f"it failed:\r\n\tat {HIDDEN}line 1\nat line 2"
    expected = "it failed:\n\tat \tline 1\nat line 2"
    assert f"\nThis path stands for an error (object 8 B) that begins:\n{expected}\n" in notice_of({"a": 1}, head=head)
    assert f"\nThe output is an error that begins:\n{expected}\n" in notice_of({"a": 1}, "paper", head=head)
    stub = json.loads(notice_of({"a": 1}, "json", head=head))
    assert (stub["error_begins"], "keys" in stub) == (expected, False)


@pytest.mark.parametrize("style", ["compact", "paper"])
def test_the_end_of_a_long_error_is_shown_with_its_last_words(style: NoticeStyle) -> None:
    error = ErrorExcerpt("it began", "x" * 900 + "\nthe cause")
    notice = notice_of("x", style, error=error)
    assert "begins:\nit began\nIt ends:\n" in notice
    assert f"\n{'x' * 490}\nthe cause\n" in notice
    assert json.loads(notice_of("x", "json", error=error))["error_ends"].endswith("x" * 400 + "\nthe cause")
    assert json.loads(notice_of("x", "json", error=ErrorExcerpt("a", "b")))["error_ends"] == "b"
    assert "It ends:" not in notice_of("x", style, head="it began")
    texts = ["first", "x" * 9000]
    assert notice_of(texts).startswith(f'"{BASE}/1"\n')
    assert notice_of(texts, error=error).startswith(f'"{BASE}"\n')


NASTY = [
    {f"key {n}": n for n in range(10_000)},
    {"k" * 100_000: 1, "short": 2},
    {f"{'k' * 1000}{n}": 1 for n in range(1000)},
    {HIDDEN * 3: HIDDEN, "a": HIDDEN},
    {f"\U000e0041{n}" * 8: "\U000e0041" * 20 for n in range(100)},
    {"\u6570" * 118: "\u6570" * 14, "\U0001f600" * 29: 1, **{f"\u6570{n}": "\u636e" * 10 for n in range(200)}},
    {'"' * 100: '"\\' * 10, "\\" * 50: "\n" * 10, "/" * 60: 1, "~" * 50: 2},
    {"a\nb": "c\nd", "\u2028": "\u2029"},
    {"": {"": {"": ""}}},
    [HIDDEN] * 10,
    HIDDEN * 100,
    "\U000e0041" * 1000,
    "\u6570" * 1000,
    '"\\' * 1000,
]
ARGUMENTS = [
    b"{}",
    json.dumps({"a": HIDDEN * 20}, ensure_ascii=False).encode(),
    b'{"a":"' + b"\xf0\x9f\x98\x80" * 1000 + b'"}',
    b'{"a":\n1}',
]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("value", NASTY, ids=range(len(NASTY)))
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"companion": COMPANION, "tool": HIDDEN + "\u6570" * 500},
        {"head": ("\u6570\n\x00" * 5000)[:1000], "companion": COMPANION},
        {"head": '"\\\n\t' * 250, "tool": "t" * 500},
        {
            "kind": "binary",
            "media": tuple(MediaPart(f"/{at}", "image/png, 5 B", is_hidden=False) for at in range(40)),
            "other_blocks": (1, 40),
        },
    ],
    ids=["plain", "companion", "error", "quoted error", "binary"],
)
def test_a_notice_is_short_and_hides_nothing(style: NoticeStyle, value: Any, changes: dict[str, Any]) -> None:
    blob = json.dumps(value, ensure_ascii=False).encode()
    for arguments in ARGUMENTS:
        notice = notice_of(blob, style, arguments=arguments, **dict(changes))
        assert len(notice.encode()) < 2048
        seen = notice.replace("\n", "").replace("\t", "")
        assert not {c for c in seen if unicodedata.category(c) in ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")}
        assert not set(seen) & set(HIDDEN) - set("\t\r")
        assert is_whole_notice(notice.strip()) or style == "opaque"
        assert (
            find_notice_bases(notice.strip()) == ({BASE, COMPANION} if "companion" in changes else {BASE})
            or style == "opaque"
        )
        if style == "json":
            assert json.loads(notice)["result"] == BASE
        if style in ("compact", "opaque"):
            assert BASE in notice.splitlines()[0]


@given(
    st.text(max_size=200),
    st.dictionaries(st.text(max_size=30), st.integers() | st.text(max_size=60) | st.just({"a": HIDDEN}), max_size=20),
    st.sampled_from(STYLES),
)
@example("k" * 155, {HIDDEN * 3: HIDDEN, **{str(number): "\u6570" * 30 for number in range(20)}}, "compact")
@example('"', {}, "compact")
@example("", {"data": 0}, "compact")
def test_a_notice_of_a_main_text_is_short_and_has_its_path(
    key: str, beside: dict[str, Any], style: NoticeStyle
) -> None:
    flat = {**beside, key: LONG}
    for inner, keys in ((flat, (key,)), ({"data": flat}, ("data", key))):
        notice = notice_of(inner, style, main_text_keys=keys)
        assert len(notice.encode()) < 2048
        assert not {c for c in notice.replace("\n", "") if unicodedata.category(c) in ("Cc", "Cf", "Co", "Zl", "Zp")}
        shown = notice_of(inner, shown=LONG, main_text_keys=keys)
        for text in (notice.strip(), shown):
            assert find_notice_bases(text) == {BASE} or style == "opaque"
        if style == "compact":
            named = {MemoryPath(BASE, keys), MemoryPath(BASE, keys).without_wrapping, MemoryPath(BASE)}
            assert read_notice_path(notice) in named
            assert read_notice_path(shown) in named


@given(
    st.dictionaries(st.text(max_size=30), st.integers() | st.text(max_size=60), max_size=60), st.sampled_from(STYLES)
)
@example({"a": "\ud83d".encode("utf-8", "ignore").decode()}, "json")
def test_every_path_ends_with_a_newline_or_a_quote(value: dict[str, Any], style: NoticeStyle) -> None:
    clean = json.loads(json.dumps(value).encode("utf-8", "ignore"))
    printable = {key.encode("utf-8", "ignore").decode(): part for key, part in clean.items() if isinstance(part, int)}
    notice = notice_of(printable, style, companion=COMPANION)
    assert len(notice.encode()) < 2048
    for match in re.finditer(re.escape(BASE), notice):
        rest = notice[match.end() :]
        assert rest[:1] in ("\n", '"') or (rest[:1] == "/" and re.match(r'/(?:[^"\\]|\\.)*"\n', rest))
    assert all(notice[match.end()] in '\n"' for match in re.finditer(re.escape(COMPANION), notice))


@pytest.mark.parametrize("style", ["compact", "paper", "json"])
def test_omitted_keys_are_counted(style: NoticeStyle) -> None:
    notice = notice_of({**{f"key {n}": n for n in range(1000)}, "k" * 1000: 1}, style)
    shown = len(re.findall(r"key \d+", notice))
    assert 5 <= shown < 100
    left = (
        json.loads(notice)["more_keys"]
        if style == "json"
        else int(re.findall(r"and ([\d,]+) more", notice)[0].replace(",", ""))
    )
    assert shown + left == 1001
    assert f"{BASE}/..." not in notice


def test_a_long_key_does_not_hide_the_other_keys() -> None:
    assert '"b" 2, and 1 more key' in notice_of({"k" * 500: 1, "b": 2})


@given(st.text(), st.integers(3, 60))
def test_a_quoted_text_is_json_of_at_most_so_many_bytes(text: str, limit: int) -> None:
    quoted = as_json_string(text, limit)
    assert len(quoted.encode("utf-8", "surrogatepass")) <= limit + 2
    decoded = json.loads(quoted)
    assert decoded == text or decoded.endswith("...")
    assert all(unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for character in quoted)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        *((0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1234, "1.23 kB"), (99_949, "99.9 kB"), (99_950, "100 kB")),
        *((999_499, "999 kB"), (999_500, "1 MB"), (999_999, "1 MB"), (19_800_000, "19.8 MB"), (123_456_789, "123 MB")),
        *((999_600_000, "1 GB"), (1_500_000_000, "1.5 GB"), (1_234_000_000_000, "1234 GB")),
    ],
)
def test_sizes_have_three_significant_digits(size: int, expected: str) -> None:
    assert format_bytes(size) == expected


def test_times_are_named_in_utc() -> None:
    assert format_time(1_790_000_000.9) == "2026-09-21 14:13:20 UTC"


@pytest.mark.parametrize("kind", ["object", "array", "text", "number", "boolean", "null", "binary"])
@pytest.mark.parametrize("style", STYLES)
def test_every_kind_has_a_notice_in_every_style(kind: Kind, style: NoticeStyle) -> None:
    blobs = {"array": b"[1]", "text": b'"x"', "number": b"1", "boolean": b"true", "null": b"null"}
    assert BASE in notice_of(blobs.get(kind, b'{"type":"image"}'), style, kind=kind)


def test_the_notice_of_a_molecule_grid_costs_at_most_85_tokens(count_tokens: Callable[[str], int]) -> None:
    row = b"[" + b",".join([b"0"] * 128) + b"]"
    plane = b"[" + b",".join([row] * 128) + b"]"
    grid = b'{"raw_grid":[' + b",".join([plane] * 128) + b"]"
    value = stored(grid + b',"shape":[128,128,128]}')
    chance = random.Random(7)  # noqa: S311  # the same identities on every run
    identities = [UUID(int=chance.getrandbits(128), version=4) for _ in range(2000)]
    template = write_notice(value, "compact")
    assert '"raw_grid" array[128x128x128], "shape" [128,128,128]' in template
    notices = [template.replace(BASE, new_base("generate_molecule_grid", identity)) for identity in identities]
    assert max(map(count_tokens, notices)) <= 85

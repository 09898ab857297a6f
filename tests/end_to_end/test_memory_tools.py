"""The memory tools through a real gateway: reading, editing and passing on values."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from notices import path_in

from mcp_mirror.tokens import expected_estimator, upper_estimator

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Connect, Lines, OpenClient, OpenLines, Run

SQL = find_spec("duckdb")
"""The extra `sql` is installed."""
SCRIPTS = ["memory_run"] if find_spec("pydantic_monty") else []
"""The tool that the extra `code` adds."""

RETRIEVE = "retrieve_final_answer_from_memory"


async def store(client: Lines, value: Any) -> str:
    """Have an upstream answer with a value that is stored, so an object or 300 tokens or more; give its path."""
    result = {"content": [], "structuredContent": value}
    return path_in(await client.text("say_mirrored", {"result": json.dumps(result)}))


async def store_text(client: Lines, text: str) -> str:
    result = {"content": [{"type": "text", "text": text}]}
    return path_in(await client.text("say_mirrored", {"result": json.dumps(result)}))


async def store_file(client: Lines, text: str) -> str:
    """Have an upstream answer with an embedded resource; give its path."""
    block = {"type": "resource", "resource": {"uri": "repo://file", "text": text}}
    return path_in(await client.text("say_mirrored", {"result": json.dumps({"content": [block]})}))


async def receive_at_upstream(client: Lines, value: str) -> str:
    """What a tool receives that is given this argument, as the line that it was sent."""
    received = await client.text("hear_mirrored", {"x": value})
    return received if "This path " not in received else await client.text(RETRIEVE, {"memory_path": path_in(received)})


async def refused(client: Lines, tool: str, arguments: dict[str, Any]) -> str:
    result = json.loads(await client.call(tool, json.dumps(arguments)))["result"]
    assert result["isError"] is True, result
    return str(result["content"][0]["text"])


ROWS = [{"id": number, "name": f"row {number}", "price": number / 4} for number in range(3000)]


async def test_a_value_is_looked_into_changed_and_handed_on(client: Lines) -> None:
    path = await store(client, {"rows": ROWS, "title": "prices"})
    described = await client.text("memory_describe", {"memory_path": f"{path}/rows"})
    assert "array, 3,000 items; the first 100 of them: object (100)" in described
    assert '"/price": number' in described
    assert "from \"say\" of 'raw'; stored 20" in described
    hit = await client.text("memory_grep", {"memory_path": path, "pattern": "row 2718$"})
    assert hit == f"{path}/rows/2718/name: row 2718"
    window = await client.text("memory_read", {"memory_path": f"`{path}/rows`", "offset": 2718, "limit": 1})
    assert window == '2718: {"id": 2718, "name": "row 2718", "price": 679.5}\n... next: by=items, offset=2719'
    query = {"memory_path": path, "expression": "rows[?price > `10`].{name: name, price: price}"}
    found = path_in(await client.text("memory_query", query))
    assert found.startswith("memory_query-")
    patch = [{"op": "replace", "path": "/0/price", "value": 99}, {"op": "remove", "path": "/1"}]
    edited = path_in(await client.text("memory_edit", {"memory_path": found, "patch": patch}))
    received = await receive_at_upstream(client, f"{edited}/0")
    assert '"x": {"name":"row 41","price":99}' in received
    assert '"x": {"name":"row 43","price":10.75}' in await receive_at_upstream(client, f"{edited}/1")
    assert '"price":10.25' in await receive_at_upstream(client, f"{found}/0")
    assert f"given {path}" in await client.text("memory_describe", {"memory_path": found})


async def test_one_row_is_put_into_a_large_page_and_the_page_is_sent_back(client: Lines) -> None:
    lines = [f'<tr id="{number}"><td>\u00e9 "cell" {number}</td></tr>' for number in range(8000)]
    page = "<table>\n" + "\n".join(lines) + "\n</table>"
    assert len(page) > 300_000
    path = await store_text(client, page)
    hit = await client.text("memory_grep", {"memory_path": path, "pattern": 'id="4711"'})
    assert hit.startswith('4712: <tr id="4711">')
    row = "<tr><td>new \u00fc</td></tr>\n"
    change = {"memory_path": path, "old_text": '<tr id="4711">', "new_text": f'{row}<tr id="4711">'}
    edited = path_in(await client.text("memory_edit", change))
    received = json.loads(await receive_at_upstream(client, edited))["params"]["arguments"]["x"]
    assert received == page.replace('<tr id="4711">', f'{row}<tr id="4711">')
    again = await refused(client, "memory_edit", {"memory_path": path, "old_text": "<td>", "new_text": ""})
    assert "occurs more than once" in again


async def test_a_text_in_a_json_string_is_read_as_that_text(client: Lines) -> None:
    lines = ["id,name", *(f'{n},"n {n}"' for n in range(900))]
    sent = json.dumps("\n".join(lines))
    path = await store_text(client, sent)
    read = await client.text("memory_read", {"memory_path": path, "offset": 1, "limit": 2})
    found = await client.text("memory_grep", {"memory_path": path, "pattern": '^7,"n 7"$'})
    described = await client.text("memory_describe", {"memory_path": path})
    assert read.startswith("\n".join(lines[1:3]))
    assert found.startswith(f"8: {lines[8]}")
    assert "901 lines" in described
    change = {"memory_path": path, "old_text": "\n".join(lines[1:3]), "new_text": f"{lines[1]}\n\u00e9"}
    edited = await client.text("memory_edit", change)
    for given, one in ((path, lines[2]), (path_in(edited), "\u00e9")):
        received = json.loads(await receive_at_upstream(client, given))["params"]["arguments"]["x"]
        assert received.startswith('"')
        assert json.loads(received).split("\n") == [*lines[:2], one, *lines[3:]]


async def test_a_model_reads_only_a_short_edited_copy_again(client: Lines) -> None:
    for lines, is_shown in ((20, True), (200, False)):
        text = "".join(f"line {number}: it is new\n" for number in range(lines))
        shown = await client.text(
            "say_mirrored", {"result": json.dumps({"content": [], "structuredContent": {"x": text}})}
        )
        change = {"memory_path": f"{path_in(shown)}/x", "old_text": "line 1", "new_text": "row 1", "all": True}
        edited = await client.text("memory_edit", change)
        copy = text.replace("line 1", "row 1")
        assert (copy.strip() in edited) == is_shown
        for sent in (path_in(edited), edited):  # small models give the whole notice
            received = json.loads(await receive_at_upstream(client, sent))["params"]["arguments"]["x"]
            assert received == copy


async def test_unedited_numbers_keep_their_digits(client: Lines) -> None:
    digits = "7" * 5000
    value = f'{{"a": 1.0, "n": {digits}, "e": 1e400, "s": "\\u00e9\\/", "list": [1.50, 2]}}'
    result = f'{{"content":[],"structuredContent":{value}}}'
    path = path_in(await client.text("say_mirrored", {"result": result}))
    patch = [{"op": "add", "path": "/list/1", "value": 9}]
    for change in ({"patch": patch}, {"merge": {"new": True}}, {"old_text": "1.50", "new_text": "1.5"}):
        edited = path_in(await client.text("memory_edit", {"memory_path": path, **change}))
        line = await receive_at_upstream(client, edited)
        for member in ('"a": 1.0', f'"n": {digits}', '"e": 1e400', '"s": "\\u00e9\\/"'):
            assert member in line
    found = path_in(await client.text("memory_query", {"memory_path": path, "expression": "[a, n, e]"}))
    assert f"[1.0,{digits},1e400]" in await receive_at_upstream(client, found)


async def test_empty_arguments_beside_an_edit_count_as_missing(client: Lines) -> None:
    path = await store(client, {"a": "x"})
    empty = {"patch": [], "merge": {}, "old_text": "", "new_text": ""}
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"patch": [{"op": "replace", "path": "/a", "value": 1}]}, '{"a": 1}'),
        ({"merge": {"b": 2}}, '{"a": "x","b":2}'),
        ({"old_text": '"x"', "new_text": "3"}, '{"a": 3}'),
    )
    for change, wanted in changes:
        edited = path_in(await client.text("memory_edit", {"memory_path": path, **empty, **change}))
        received = json.loads(await receive_at_upstream(client, edited))["params"]["arguments"]["x"]
        assert received == json.loads(wanted)


async def test_a_model_reads_and_edits_characters_where_json_has_escapes(client: Lines) -> None:
    city = "\u0421\u0430\u043d\u043a\u0442-\u041f\u0435\u0442\u0435\u0440\u0431\u0443\u0440\u0433"
    escaped = json.dumps(city)[1:-1]
    rows = [{"\u0433\u043e\u0440\u043e\u0434": city, "n": n} for n in range(200)]
    sent, shown = json.dumps(rows), json.dumps(rows, ensure_ascii=False)
    path = await store_text(client, sent)
    window = await client.text("memory_read", {"memory_path": path, "limit": 1})
    assert window == f"0: {shown[1 : shown.index(', {')]}\n... next: by=items, offset=1; last: offset=-1"
    read = ""
    while not read.endswith("]"):
        window = await client.text("memory_read", {"memory_path": path, "by": "chars", "offset": len(read)})
        read += window.rpartition("\n... next: ")[0] or window
    assert read == shown
    for old in (city[6:], escaped[len(escaped) - 6 * len(city[6:]) :]):
        change = {"memory_path": path, "old_text": f'-{old}", "n": 7}}', "new_text": '", "n": 8}'}
        edited = path_in(await client.text("memory_edit", change))
        changed = sent.replace(f'{escaped}", "n": 7}}', f'{json.dumps(city[:5])[1:-1]}", "n": 8}}')
        assert f'"x": {changed}' in await receive_at_upstream(client, edited)
    assert await client.text(RETRIEVE, {"memory_path": f"{path}/0"}) == json.dumps(rows[0])
    assert f'"x": {sent}' in await receive_at_upstream(client, path)


async def test_a_model_can_save_a_value_and_use_its_path(open_client: OpenClient, raw: Any) -> None:
    async with open_client({"raw": raw(overrides={"hear": {"capture": "never"}})}) as client:
        for value, wanted in (
            ("two\nlines", '"x": "two\\nlines"'),
            ({"a": [1, "x"]}, '"x": {"a": [1, "x"]}'),
            ([1, 2], '"x": [1, 2]'),
            ('{"a": 1}', '"x": {"a": 1}'),
        ):
            path = path_in(await client.text("memory_put", {"value": value}))
            assert path.startswith("memory_put-")
            assert wanted in await receive_at_upstream(client, path)
        *listed, footer = (await client.text("memory_list")).splitlines()
        assert len(listed) == 4
        assert re.fullmatch(r"Sent [\d,]+ tokens; kept out 0 \(1 : 0\)\.", footer)
        assert "object, " in listed[0]


async def test_paths_in_an_edit_and_in_a_saved_value_are_replaced_by_the_values(client: Lines) -> None:
    rows, text = await store(client, {"rows": [1.50, {"n": 2}]}), await store_text(client, 'a "text"\n' * 300)
    page = await store(client, {"title": "x", "old": True})

    async def edit(**change: Any) -> str:
        edited = path_in(await client.text("memory_edit", {"memory_path": page, **change}))
        described = await client.text("memory_describe", {"memory_path": edited})
        assert any(f"{one}" in described for one in (rows, text))
        return json.dumps(json.loads(await receive_at_upstream(client, edited))["params"]["arguments"]["x"])

    patch = [
        {"op": "add", "path": "/rows", "value": f"{rows}/rows"},
        {"op": "replace", "path": "/old", "value": {"note": [text, f"literal:{text}", f"see {text}"]}},
    ]
    note = ['a "text"\n' * 300, text, f"see {text}"]
    wanted = {"title": "x", "old": {"note": note}, "rows": [1.5, {"n": 2}]}
    assert await edit(patch=patch) == json.dumps(wanted)
    assert await edit(merge={"rows": f"{rows}/rows/1"}) == json.dumps({"title": "x", "old": True, "rows": {"n": 2}})
    change = {"memory_path": page, "old_text": '"x"', "new_text": f"{rows}/rows/1"}
    copy = path_in(await client.text("memory_edit", change))
    assert '"title": {"n": 2}' in await receive_at_upstream(client, copy)
    saved = path_in(await client.text("memory_put", {"value": {"page": page, "rows": [f"{rows}/rows/0"]}}))
    assert '"rows": [1.5]' in (await receive_at_upstream(client, saved)).replace("1.50", "1.5")
    for value in ({"row": f"{rows}/rows/1"}, [f"{rows}/rows/1", f"{rows}/rows/1"]):
        saved = path_in(await client.text("memory_put", {"value": json.dumps(value)}))
        row = await receive_at_upstream(client, f"{saved}/{'row' if isinstance(value, dict) else 1}")
        assert '"x": {"n": 2}' in row
    for written in (f"See:\n{json.dumps([rows])}", f"[{rows}"):
        saved = await client.text("memory_put", {"value": written})
        assert "text," in saved or "is not exact" in saved
    saved = path_in(await client.text("memory_put", {"value": json.dumps({"type": "text", "text": f"{rows}/rows/1"})}))
    assert '"x": {"n": 2}' in await receive_at_upstream(client, saved)
    gone = f"{rows[:-4]}0000"
    for tool, arguments in (
        ("memory_edit", {"memory_path": page, "merge": {"a": gone}}),
        ("memory_put", {"value": [f"{rows}/nothing"]}),
    ):
        await refused(client, tool, arguments)
    wrong = await refused(client, "memory_edit", {"memory_path": page, "patch": [{"op": "remove", "path": page}]})
    assert 'must be empty or begin with "/"' in wrong


async def test_values_are_listed_page_by_page_and_forgotten(open_client: OpenClient, raw: Any) -> None:
    async with open_client({"raw": raw()}) as client:
        assert await client.text("memory_list") == "Nothing is stored yet."
        bases = [await store(client, {"n": number}) for number in range(25)]
        put = path_in(await client.text("memory_put", {"value": "x"}))
        assert f'... 6 more; next: after="{bases[6]}"' in (await client.text("memory_list")).splitlines()
        first = (await client.text("memory_list", {"tool": "say"})).splitlines()
        assert [line.split('"')[1] for line in first[:-2]] == bases[:4:-1]
        after = re.search(r'\.\.\. more; next: after="(.*)"', first[-2])
        assert after
        rest = (await client.text("memory_list", {"tool": "say", "after": after[1]})).splitlines()
        assert [line.split('"')[1] for line in rest[:-1]] == bases[4::-1]
        assert await client.text("memory_list", {"tool": "say", "after": bases[0]}) == "Nothing more."
        assert 'There are values of "memory_put", "say".' in await client.text("memory_list", {"tool": "tell"})
        assert await client.text("memory_forget", {"memory_path": put}) == f'Forgotten: "{put}".'
        assert "No value is stored" in await refused(client, "memory_read", {"memory_path": put})
        again = await refused(client, "memory_forget", {"memory_path": put})
        assert f'No value is stored under "{put}", so nothing was deleted.' in again
        assert not any(base in again for base in bases if base != put)
        below = await refused(client, "memory_forget", {"memory_path": f"{bases[0]}/n"})
        assert below == f'Only a whole value can be deleted. Give "{bases[0]}".'


async def test_the_five_tools_of_a_relay_in_the_client_have_their_like(client: Lines) -> None:
    """Reading, a slice, the length, lines, and grep."""
    text = "\n".join(f"line {number}" for number in range(2000))
    path = await store_text(client, text)
    all_parts = ""
    while True:
        part = await client.text("memory_read", {"memory_path": path, "by": "chars", "offset": len(all_parts)})
        all_parts += part.rpartition("\n... next: ")[0] if "\n... next: " in part else part
        if "\n... next: " not in part:
            break
    assert all_parts == text
    sliced = await client.text("memory_read", {"memory_path": path, "by": "chars", "offset": 5, "limit": 8})
    assert sliced.partition("\n... next")[0] == text[5:13]
    assert f"text, {len(text):,} characters, 2,000 lines" in await client.text("memory_describe", {"memory_path": path})
    lines = await client.text("memory_read", {"memory_path": path, "by": "lines", "offset": -2})
    assert lines == "line 1998\nline 1999"
    grepped = await client.text("memory_grep", {"memory_path": path, "pattern": "1999", "context": 1})
    assert grepped == "1998- line 1998\n1999: line 1999"


async def test_a_search_that_is_written_for_another_grep_ignores_case(client: Lines) -> None:
    path = await store_text(client, "An ERROR\nno\nAn error\n" * 200)
    for ignores in ({"-i": True}, {"ignore_case": "true"}, {"case_sensitive": False}):
        found = await client.text("memory_grep", {"path": path, "pattern": "error$", "head_limit": 2, **ignores})
        assert found.startswith("0: An ERROR\n2: An error\n")
    for respects in ({}, {"-i": False}, {"case_sensitive": True}):
        found = await client.text("memory_grep", {"memory_path": path, "pattern": "error$", **respects})
        assert found.startswith("2: An error\n5: An error\n")


@pytest.mark.parametrize("bound", [{"mirror": {"read_budget": 300}}, {"memory_tools": {"read_characters": 900}}])
async def test_no_window_is_over_the_budget(bound: dict[str, Any], open_client: OpenClient, raw: Any) -> None:
    async with open_client({"raw": raw()}, **bound) as client:
        path = await store(
            client, {"text": "0123456789" * 5000, "rows": ROWS, "wide": {f"k{n}": n for n in range(5000)}}
        )
        for tool, below, more in (
            ("memory_read", "/text", {}),
            ("memory_read", "/rows", {}),
            ("memory_read", "/wide", {}),
            ("memory_read", "", {"by": "chars"}),
            ("memory_grep", "", {"pattern": "row", "limit": 1000}),
            ("memory_describe", "/wide", {}),
        ):
            answer = await client.text(tool, {"memory_path": path + below, **more})
            assert len(answer) < 1000
            assert "next: " in answer or "more keys" in answer


async def test_empty_text_means_no_optional_argument_and_minus_one_no_limit(client: Lines) -> None:
    path = await store(client, {"a": 1, "rows": [1]})
    read = await client.text("memory_read", {"memory_path": path})
    unused = {"by": "", "offset": "", "limit": ""}
    assert await client.text("memory_read", {"memory_path": path, **unused}) == read
    for limit in (-1, 0):
        assert await client.text("memory_read", {"memory_path": path, "limit": limit}) == read
    text = await store_text(client, "line\n" * 400)
    for limit in (-1, 0):
        found = await client.text("memory_grep", {"memory_path": text, "pattern": "line", "limit": limit})
        assert found.splitlines()[:300] == [f"{number}: line" for number in range(300)]
    merged = {"merge": {"a": 2}, "patch": "", "old_text": "", "new_text": "", "all": ""}
    edited = await client.text("memory_edit", {"memory_path": path, **merged})
    path = edited[edited.index("memory_edit-") :].partition('"')[0]
    assert await client.text("memory_read", {"memory_path": path}) == read.replace("1", "2", 1)
    assert (await client.text("memory_list", {"tool": "", "after": ""})).startswith(f'"{path}"')


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("memory_read", {"memory_path": "say-nothing"}, "No value is stored under"),
    ("memory_read", {"memory_path": "P/nothing"}, 'has no key "nothing". Its keys are "rows", "a"'),
    ("memory_read", {"memory_path": "P", "offset": 9}, "Offset 9 is past the end: there are 2 keys."),
    ("memory_grep", {"memory_path": "P", "pattern": "("}, "is not a valid RE2 expression"),
    ("memory_query", {"memory_path": "P", "expression": "a["}, "`expression` does not work"),
    ("memory_edit", {"memory_path": "P"}, "Give one of `patch`"),
    ("memory_edit", {"memory_path": "P", "merge": {}, "patch": []}, "Give one of `patch`"),
    ("memory_edit", {"memory_path": "P", "old_text": "1"}, "`old_text` needs `new_text`"),
    ("memory_edit", {"memory_path": "P", "old_text": "", "new_text": "x"}, "`old_text` is empty"),
    ("memory_edit", {"memory_path": "P", "old_text": "", "new_text": ""}, "Give one of `patch`"),
    ("memory_edit", {"memory_path": "P", "patch": [{"op": "remove", "path": "/b"}]}, '"b" does not exist'),
    ("memory_edit", {"memory_path": "P/rows", "merge": {"a": 1}}, "is array: it would be replaced. Use `patch`"),
    ("memory_edit", {"memory_path": "P/a", "merge": {"a": 1}}, "is number: it would be replaced. Use `patch`"),
    (
        "memory_edit",
        {"memory_path": "P/rows/0", "merge": {"a": 1}},
        "is text: it would be replaced. Use `old_text` with",
    ),
    (
        "memory_edit",
        {"memory_path": "P", "patch": [{"op": "replace", "path": "", "value": None}]},
        "null cannot",
    ),
    ("memory_list", {"after": "nothing"}, "Omit it for the first page"),
    ("memory_import", {"file": "x"}, "Unknown tool 'memory_import'"),
]


async def test_a_mistake_is_answered_with_what_to_do(client: Lines) -> None:
    path = await store(client, {"a": 1, "rows": ["x"]})
    for tool, arguments, message in MISTAKES:
        filled = json.loads(json.dumps(arguments).replace('"P', f'"{path}'))
        assert message in await refused(client, tool, filled)
    assert await client.text(RETRIEVE, {"memory_path": path}) == '{"a": 1, "rows": ["x"]}'


async def test_a_value_is_returned_up_to_its_expected_tokens(client: Lines) -> None:
    text = "The quick brown fox jumps over the lazy dog near the river bank. " * 1350
    expected, bound = (f"{one('default')(text.encode()):,}" for one in (expected_estimator, upper_estimator))
    assert expected < "20,000" < bound
    path = await store_text(client, text)
    assert await client.text(RETRIEVE, {"memory_path": path}) == text
    assert f"about {expected} tokens" in await client.text("memory_describe", {"memory_path": path})


async def test_a_text_with_json_is_queried_as_its_json(client: Lines) -> None:
    for content, expression, found in (
        ('[{"v": 1}, {"v": 2.50}]', "[?v > `1`].v", "[2.50]"),
        (' {"a": {"b": "c"}}\n', "a.b", "c"),
        ("[1, 2]", "length(@)", "2"),
        ("[{'id': 7, 'name': None}, {'id': 9, 'name': 'x'}]", "length(@)", "2"),
        ("[{'id': 7, 'name': None}, {'id': 9, 'name': 'x'}]", "max_by(@, &id).id", "9"),
        ('Found 2 rows:\n\n[{"v": 1}, {"v": 2}]', "length(@)", "2"),
        ('[{"v": NaN}, {"v": 2.50}, {"v": Infinity}]', "max([].v)", "2.50"),
        ('{"v": 1}\n{"v": 2.50}\n', "length(@)", "2"),
        ('{"v": 1}\n{"v": 2.50}\n', "max([].v)", "2.50"),
        ('{"v": 1}\n{"v": 2}\n' * 20, "[39].v", "2"),
    ):
        path = await store(client, {"text": content})
        assert await client.text("memory_query", {"memory_path": f"{path}/text", "expression": expression}) == found


async def test_a_query_of_an_embedded_file_reads_its_text(client: Lines) -> None:
    rows = json.dumps([{"id": number, "name": f"user {number}"} for number in range(900)])
    table = "id,name\n" + "".join(f"{number},user {number}\n" for number in range(900))
    path = await store_file(client, rows)
    assert await client.text("memory_query", {"memory_path": path, "expression": "length(@)"}) == "900"
    assert await client.text("memory_query", {"memory_path": path, "expression": "[7].name"}) == "user 7"
    assert "user 899" in await receive_at_upstream(client, path)
    path = await store_file(client, table)
    assert "CSV" in await refused(client, "memory_query", {"memory_path": path, "expression": "length(@)"})
    described = await client.text("memory_describe", {"memory_path": path})
    assert 'text, 11,488 characters, 901 lines, begins "id,name"' in described
    assert "binary" not in described
    path = await store_file(client, "words " * 4000)
    assert await client.text("memory_query", {"memory_path": path, "expression": "length(@)"}) == "24000"


async def test_a_query_of_text_that_is_not_json_names_the_kind_of_text(client: Lines) -> None:
    path = await store(client, {"text": "# Notes\n\n- one\n- two\n- [a](b)\n" * 20})
    for expression in ("[?id > `1`].name", "sum([*].id)", "max_by(@, &id)"):
        answer = await refused(client, "memory_query", {"memory_path": f"{path}/text", "expression": expression})
        assert "The value is text (Markdown), not JSON" in answer
        assert answer.endswith("Use memory_grep or memory_read.")
    query = {"memory_path": f"{path}/text", "expression": "length(@)"}
    assert await client.text("memory_query", query) == "600"
    rows = json.dumps([{"id": number} for number in range(500)])
    for text in (rows[:-1], rows[:-20], rows.replace("}]", "},]"), '{"rows": ' + rows):
        path = await store(client, {"text": text})
        query = {"memory_path": f"{path}/text", "expression": "length(@)"}
        answer = await refused(client, "memory_query", query)
        assert "begins as JSON and is not valid JSON; it may be cut" in answer
        assert answer.endswith("Use memory_grep or memory_read.")


PRINTED_ROWS = [{"id": number, "full name": None, "name": f"row {number}"} for number in range(500)]
TEXTS_WITH_ROWS = {
    "text, as Python prints it": str(PRINTED_ROWS),
    "text that contains JSON": f"Script ran on page and returned:\n```json\n{json.dumps(PRINTED_ROWS)}\n```",
}


@pytest.mark.parametrize("kind", TEXTS_WITH_ROWS)
async def test_errors_advise_only_tools_that_the_client_is_served(kind: str, open_client: OpenClient, raw: Any) -> None:
    async with open_client({"raw": raw()}, memory_tools={"set": "minimal"}) as client:
        path = await store_text(client, TEXTS_WITH_ROWS[kind])
        below, rows = {"memory_path": f"{path}/7/name"}, {"memory_path": path, "by": "items"}
        expected = f'"{path}" has no key "7". It is {kind}. Use the path itself.'
        assert await refused(client, "memory_read", below) == expected
        assert await refused(client, "hear_mirrored", {"text": below["memory_path"]}) == expected
        answer = await refused(client, "memory_read", rows)
        assert answer == f"The value has no items: it is {kind}. Leave `by` out."


async def test_an_error_of_a_query_advises_only_tools_that_are_served(
    configured: Configured, open_lines: OpenLines, raw: Any
) -> None:
    for allow, advice in (
        (["memory_query"], "Use its path as the argument of another tool."),
        (["memory_query", "memory_grep"], "Use memory_grep."),
    ):
        async with open_lines(configured({"raw": raw()}, memory_tools={"allow": allow})) as client:
            await client.greet()
            path = await store(client, {"text": "# Notes\n\n- one\n- two\n- [a](b)\n" * 20})
            query = {"memory_path": f"{path}/text", "expression": "[?id > `1`].name"}
            assert (await refused(client, "memory_query", query)).endswith(advice)


async def test_a_slice_of_rows_in_a_text_is_refused_with_a_valid_expression(
    configured: Configured, open_lines: OpenLines, raw: Any
) -> None:
    async with open_lines(configured({"raw": raw()})) as client:
        await client.greet()
        path = await store_text(client, next(iter(TEXTS_WITH_ROWS.values())))
        for below, expression in (("0:2", "[0:2]"), ("*/name", "[*].name"), ("-1", "[-1]")):
            answer = await refused(client, "memory_read", {"memory_path": f"{path}/{below}"})
            assert answer.endswith(f"the JMESPath expression {expression} finds this part.")
            assert "row" in await client.text("memory_query", {"memory_path": path, "expression": expression})


async def test_a_slash_at_the_end_of_a_path_is_ignored(configured: Configured, open_lines: OpenLines, raw: Any) -> None:
    async with open_lines(configured({"raw": raw()})) as client:
        await client.greet()
        path = await store(client, {"rows": [{"id": 7, "": {"": "x"}}], "text": "long " * 500})
        assert await client.text(RETRIEVE, {"memory_path": f"{path}/rows/0/id/"}) == "7"
        assert await client.text(RETRIEVE, {"memory_path": f"{path}/rows[0]/id//"}) == "7"
        assert await client.text(RETRIEVE, {"memory_path": f"{path}/rows/0//"}) == "x"
        answer = await refused(client, RETRIEVE, {"memory_path": f"{path}/rows/0/no/"})
        assert 'has no key "no"' in answer


@pytest.mark.parametrize("kind", TEXTS_WITH_ROWS)
async def test_a_path_below_rows_in_a_text_is_refused_with_an_expression(client: Lines, kind: str) -> None:
    text = await store_text(client, TEXTS_WITH_ROWS[kind])
    beside = await store(client, {"rows": TEXTS_WITH_ROWS[kind]})
    for path, below, found in (
        (text, "7/name", "row 7"),
        (text, "7/full name", "null: the expression finds nothing."),
        (f"{beside}/rows", "7/id", "7"),
    ):
        answer = await refused(client, "memory_read", {"memory_path": f"{path}/{below}"})
        start, _, expression = answer.partition(". Query the path itself: the JMESPath expression ")
        assert start == f'"{path}" has no key "7". It is {kind}'
        query = {"memory_path": path, "expression": expression.removesuffix(" finds this part.")}
        assert await client.text("memory_query", query) == found
        answer = await refused(client, "memory_read", {"memory_path": path, "by": "items"})
        assert answer.startswith(f"The value has no items: it is {kind}. Leave `by` out, or query it ")
        query["expression"] = answer.partition(" expression ")[2].removesuffix(" for ten items.")
        assert json.loads(await client.text("memory_query", query)) == PRINTED_ROWS[:10]


TABLES = {
    "CSV, 3 columns": "id,name,city\n" + "1,Ada,Bonn\n" * 2000,
    "TSV, 2 columns": "id\tname\n" + "1\tAda\n" * 20,
    "CSV, 2 columns after a heading": "Result\n\nid,name\n" + "1,Ada\n" * 20,
    "table, 2 columns": "| id | name |\n|---|---|\n" + "| 1 | Ada |\n" * 20,
}


@pytest.mark.parametrize("form", TABLES)
async def test_an_expression_on_rows_in_a_text_is_refused_with_what_reads_them(client: Lines, form: str) -> None:
    path = f"{await store(client, {'text': TABLES[form]})}/text"
    for expression in ("length(@)", "@", "[?id > `1`].name", "sum([*].id)", "max_by(@, &id)"):
        answer = await refused(client, "memory_query", {"memory_path": path, "expression": expression})
        assert answer.startswith(f"The value is text ({form}), not JSON: ")
        assert f'with `inputs` {{"t": "{path}"}}' in answer if SQL or SCRIPTS else "memory_grep" in answer
    if SQL:
        rows = {"inputs": {"t": path}, "sql": "SELECT count(*) AS n FROM t"}
        assert await client.text("memory_query", rows) == f'[{{"n":{2000 if len(TABLES[form]) > 9999 else 20}}}]'


async def test_a_function_that_groups_is_refused_with_a_query_in_sql(client: Lines) -> None:
    path = await store(client, {"rows": [{"city": "Bonn"}, {"city": "Ulm"}] * 3})
    query = {"memory_path": f"{path}/rows", "expression": "group_by(@, &city)"}
    answer = await refused(client, "memory_query", query)
    assert "Unknown function: group_by()." in answer
    assert (f'with `inputs` {{"t": "{path}/rows"}}, in place of `expression`.' in answer) == bool(SQL)


async def test_an_expression_that_takes_too_long_or_finds_too_much_is_stopped(
    open_client: OpenClient, raw: Any
) -> None:
    async with open_client({"raw": raw()}, memory_tools={"timeout": 0.5, "query_bytes": 100_000}) as client:
        path = await store(client, {"a": list(range(2000))})
        endless = {"memory_path": path, "expression": "a" + " | [@,@]" * 40}
        assert "longer than 0.5 s (`memory_tools.timeout`)" in await refused(client, "memory_query", endless)
        wide = {"memory_path": path, "expression": "a" + " | [@,@]" * 5}
        assert "(`memory_tools.query_bytes`)" in await refused(client, "memory_query", wide)
        large = await store(client, {"a": "x" * 200_000})
        assert "(`memory_tools.query_bytes`)" in await refused(
            client, "memory_query", {"memory_path": large, "expression": "a"}
        )
        assert await client.text("memory_query", {"memory_path": path, "expression": "length(a)"}) == "2000"


@pytest.mark.posix
async def test_files_are_read_and_written_only_below_the_roots(
    open_client: OpenClient, raw: Any, tmp_path: Path
) -> None:
    root, outside = tmp_path / "exchange", tmp_path / "outside"
    (root / "below").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (root / "text.txt").write_text("\u00e9 text\n")
    (root / "below" / "value.json").write_text('{"n": 1.0}')
    picture = bytes(range(256)) * 5000
    (root / "picture").write_bytes(picture)
    (root / "link").symlink_to(outside / "secret")
    (root / "folder").symlink_to(outside)
    async with open_client({"raw": raw()}, memory_tools={"roots": ["exchange"]}) as client:

        async def bring(file: str, **more: Any) -> str:
            return path_in(await client.text("memory_import", {"file": file, **more}))

        async def content(path: str) -> str:
            return await client.text(RETRIEVE, {"memory_path": path})

        assert await content(await bring("text.txt")) == "\u00e9 text\n"
        assert await content(await bring(str(root / "below" / "value.json"))) == '{"n": 1.0}'
        assert await content(f"{await bring('below/value.json')}/n") == "1.0"
        assert base64.b64decode(await content(await bring("text.txt", base64=True))).decode() == "\u00e9 text\n"
        large = await bring("picture")
        for file in (
            "link",
            "folder/secret",
            "../outside/secret",
            str(outside / "secret"),
            "below",
            "none",
            "",
            "a\0b",
        ):
            answer = await refused(client, "memory_import", {"file": file})
            assert "secret" not in answer.replace(repr(file), "")
        for arguments, written in (
            ({"memory_path": large, "file": "again", "base64": True}, picture),
            ({"memory_path": large, "file": "below/as_text"}, base64.b64encode(picture)),
        ):
            await client.text("memory_export", arguments)
            assert (root / str(arguments["file"])).read_bytes() == written
            taken = await refused(client, "memory_export", arguments)
            assert "set `overwrite`" in taken
            assert f"{len(written):,} bytes" in await client.text("memory_export", {**arguments, "overwrite": True})
        for file in ("folder/x", "none/x", "../x", str(outside / "x"), "below"):
            await refused(client, "memory_export", {"memory_path": large, "file": file, "overwrite": True})
        over = {"memory_path": large, "file": "link", "overwrite": True}
        await client.text("memory_export", over)
        assert not (root / "link").is_symlink()
        long = {"memory_path": large, "file": "./" * 5_000 + "again", "overwrite": True}
        assert len(await client.text("memory_export", long)) < 2_000
        for tool, arguments in (("memory_import", {}), ("memory_export", long)):
            answer = await refused(client, tool, {**arguments, "file": "x" * 10_000})
            assert len(answer) < 2_000
            assert answer.endswith("Give another file.")
    assert (outside / "secret").read_text() == "secret"
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]
    assert [path.name for path in root.rglob("*.part")] == []


async def test_a_stored_picture_is_written_as_its_bytes(open_client: OpenClient, raw: Any, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    async with open_client({"raw": raw()}, memory_tools={"roots": ["out"]}) as client:
        data = base64.b64encode(b"\x89PNG" * 300_000).decode()
        result = {"content": [{"type": "image", "mimeType": "image/png", "data": data}]}
        notice = json.loads(await client.call("say_mirrored", json.dumps({"result": json.dumps(result)})))
        path = path_in(notice["result"]["content"][-1]["text"])
        await client.text("memory_export", {"memory_path": path, "file": "picture.png"})
        assert (tmp_path / "out" / "picture.png").read_bytes() == b"\x89PNG" * 300_000


async def test_an_answer_that_is_complete_says_so_in_a_block_of_its_own(
    configured: Configured, connect: Connect
) -> None:
    async with connect(configured({})) as client:

        async def blocks(tool: str, **arguments: Any) -> list[str]:
            result = await client.call_tool(tool, {"memory_path": path, **arguments})
            return [block.text for block in result.content]  # type: ignore[union-attr]

        stored = await client.call_tool("memory_put", {"value": "first line\nsecond line\nthird line"})
        path = path_in(stored.content[0].text)  # type: ignore[union-attr]
        assert await blocks("memory_read", by="lines", offset=-1) == ["third line", "Result ends."]
        assert await blocks("memory_query", expression="length(@)") == ["33", "Result ends."]
        assert (await blocks("memory_grep", pattern="third"))[1:] == ["Result ends."]
        assert (await blocks("memory_grep", pattern="fourth"))[1:] == ["Result ends."]
        (only,) = await blocks("memory_read", by="lines", limit=1)
        assert only.startswith("first line\n... next: by=lines, offset=1")
        (only,) = await blocks("memory_grep", pattern="line", limit=1)
        assert "next: offset=1" in only


async def test_clients_see_the_enabled_tools_and_check_prints_their_cost(
    configured: Configured, connect: Connect, raw: Any, run: Run
) -> None:
    config = configured({"raw": raw()}, memory_tools={"deny": ["memory_forget", "memory_e*"]})
    async with connect(config) as client:
        names = [tool.name for tool in (await client.list_tools()).tools if "memory" in tool.name]
        assert names == [
            *SCRIPTS,
            *(RETRIEVE, "memory_describe", "memory_read", "memory_grep", "memory_query"),
            *("memory_put", "memory_list"),
        ]
        result = await client.call_tool("memory_forget", {"memory_path": "x"})
        assert result.is_error
    ended = await run("check", "--config", str(config))
    assert re.search(r"memory_grep +\d+", ended.out)
    assert "memory_edit" not in ended.out


async def test_the_standard_set_is_listed_and_other_tools_are_refused(
    configured: Configured, connect: Connect, raw: Any
) -> None:
    config = configured({"raw": raw()}, memory_tools={"set": "standard"})
    async with connect(config) as client:
        names = [tool.name for tool in (await client.list_tools()).tools if "memory" in tool.name]
        assert names == [*SCRIPTS, RETRIEVE, "memory_read", "memory_grep", "memory_query", "memory_edit"]
        refused = await client.call_tool("memory_put", {"value": "x"})
        assert refused.is_error
        assert "`memory_tools: all` in the gateway's configuration serves it." in str(refused.content)


async def test_a_transparent_gateway_has_none_of_them(open_client: OpenClient, raw: Any) -> None:
    async with open_client({"raw": raw()}, mirror={"suffix": "", "capture": "never"}) as client:
        assert "Unknown tool 'memory_put'" in await refused(client, "memory_put", {"value": "x"})


LARGE = 200_000_000 if "FULL_SIZE" in os.environ else 80_000_000
"""Bytes; `make soak` takes all."""


def _family(process: int) -> list[int]:
    """A process and all that come from it."""
    children = [child for task in Path(f"/proc/{process}/task").iterdir() for child in _words(task / "children")]
    return [process, *(one for child in children for one in _family(int(child)))]


def _words(file: Path) -> list[str]:
    return file.read_text().split()


def _memory_of(process: int) -> int:
    """Bytes that a process and all that come from it hold, but for files that they map.

    A child that has not become another program yet has no memory but its parent's (vfork).
    """
    memory, command = 0, Path(f"/proc/{process}/cmdline").read_bytes()
    for one in _family(process):
        if one != process and Path(f"/proc/{one}/cmdline").read_bytes() == command:
            continue
        status = Path(f"/proc/{one}/status").read_text()
        memory += sum(int(size) << 10 for size in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", status, re.MULTILINE))
    return memory


async def _watch(process: int) -> int:
    """The most that they held at any time until this is cancelled."""
    peak = 0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            with contextlib.suppress(OSError):  # one of them has just ended
                peak = max(peak, _memory_of(process))
            await asyncio.sleep(0.02)
    return peak


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_a_large_value_is_searched_and_read_in_little_memory(
    open_client: OpenClient, raw: Any, tmp_path: Path
) -> None:
    root = tmp_path / "in"
    root.mkdir()
    line = b"a \xc3\xa9 line of text that says little\n"
    (root / "text").write_bytes(line * (LARGE // len(line)) + b"the needle\nlast line")
    row = b'{"id": 1, "name": "some row", "tags": [1, 2]},'
    (root / "rows").write_bytes(b'{"rows": [' + row * (LARGE // len(row)) + b'{"id": 2, "name": "the needle"}]}')
    async with open_client({"raw": raw()}, memory_tools={"roots": ["in"], "timeout": 60}) as client:
        await client.text("memory_put", {"value": "x"})
        before = _memory_of(client.process.pid)
        watching = asyncio.create_task(_watch(client.process.pid))

        async def ask(tool: str, below: str = "", **more: Any) -> str:
            return await client.text(tool, {"memory_path": path + below, **more})

        path = path_in(await client.text("memory_import", {"file": "text"}))
        lines = LARGE // len(line)
        assert f"{lines + 2:,} lines" in await ask("memory_describe")
        assert await ask("memory_grep", pattern="^the needle$", context=1) == (
            f"{lines - 1}- {line.decode().strip()}\n{lines}: the needle\n{lines + 1}- last line"
        )
        assert await ask("memory_read", by="lines", offset=lines) == "the needle\nlast line"
        assert await ask("memory_read", offset=-1) == "last line"
        path = path_in(await client.text("memory_import", {"file": "rows"}))
        rows = LARGE // len(row)
        assert f"{rows + 1:,} items" in await ask("memory_describe", "/rows")
        assert await ask("memory_grep", pattern="^the needle$") == f"{path}/rows/{rows}/name: the needle"
        assert (await ask("memory_read", "/rows", offset=rows)).endswith('{"id": 2, "name": "the needle"}')
        path = path_in(await ask("memory_edit", patch=[{"op": "remove", "path": f"/rows/{rows - 1}"}]))
        assert (await ask("memory_read", "/rows", offset=rows - 1)).endswith('"name": "the needle"}')
        watching.cancel()
        # The two processes that read and look take 65 MB each to be there: Python, and what token estimates stand on.
        assert await watching - before < 160_000_000  # a copy of the value would be over it

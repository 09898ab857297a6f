"""Tables of values, queries of them, and the attempts of a query to leave its tables: in the process of the worker."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import sys
import tempfile
import time
from itertools import permutations
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

import msgspec
import pytest
from samples import sample

from mcp_mirror.query.sql import lock_database, open_database, run_sql
from mcp_mirror.query.sql_errors import SqlFailure
from mcp_mirror.query.sql_files import TableSource
from mcp_mirror.query.sql_tables import load_table
from mcp_mirror.types import FileSpan, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

duckdb = pytest.importorskip("duckdb")

CANARY = "c4nary of the file system"


def encode(value: object) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def query(sql: str, max_bytes: int = 1 << 20, result_file: str = "", **values: Any) -> FileSpan | bytes | SqlFailure:
    tables = tuple(TableSource(name, encode(value)) for name, value in values.items())
    answer = run_sql(sql, tables, max_bytes, result_file)
    assert isinstance(answer, FileSpan | bytes | SqlFailure)
    return answer


def rows(sql: str, **values: Any) -> list[dict[str, Any]]:
    answer = query(sql, **values)
    assert isinstance(answer, bytes), answer
    found: list[dict[str, Any]] = json.loads(answer)
    return found


def failure(sql: str, **values: Any) -> SqlFailure:
    answer = query(sql, **values)
    assert isinstance(answer, SqlFailure), answer
    return answer


def types(value: object) -> dict[str, str]:
    return {row["column_name"]: row["column_type"] for row in rows("DESCRIBE t", t=value)}


OBJECTS = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]


def test_systems_without_files_in_memory_read_copies_and_remove_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, folder = tmp_path / "stored", tmp_path / "temporary"
    stored.write_bytes(encode(OBJECTS))
    (folder / "mcp-mirror-table-of-a-killed-process").mkdir(parents=True)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with open_database() as database:
        file = TableSource("file", FileSpan(str(stored), Span(0, stored.stat().st_size)))
        load_table(database, file, stored.read_bytes())
        for name, value in {"items": OBJECTS, "sheet": "id,name\n3,c\n4,d", "log": "one\ntwo"}.items():
            load_table(database, TableSource(name, encode(value)), encode(value))
        sums = database.execute(
            "SELECT (SELECT sum(id) FROM file), (SELECT sum(id) FROM items), (SELECT sum(id) FROM sheet)"
        )
        assert sums.fetchall() == [(3, 3, 7)]
        assert database.execute("SELECT line FROM log").fetchall() == [("one",), ("two",)]
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("last", "row"),
    [
        ('2,"y, ""z"""', {"a": "2", "b": 'y, "z"'}),
        ('2,"y\nz"', {"a": "2", "b": "y\nz"}),
        ('2,5" pipe', {"a": "2", "b": '5" pipe'}),
        ("x,y", {"a": "x", "b": "y"}),
    ],
)
def test_late_rows_of_a_long_csv_text_have_quotes_and_types(last: str, row: dict[str, str]) -> None:
    text = "a,b\n" + "1,x\n" * 25_000 + last + "\n"
    assert rows("SELECT a::VARCHAR AS a, b FROM t ORDER BY rowid DESC LIMIT 1", t=text) == [row]
    assert rows("SELECT count(*) AS n FROM t", t=text) == [{"n": 25_001}]


def test_every_line_of_a_text_is_a_row_with_its_text() -> None:
    lines = ["one, two\t|;", "", "\x01\x02 \x1b[0m", " 'four\" ", "", "a\\b"]
    for end in ("\n", "\r\n"):
        assert rows("SELECT line FROM t", t=end.join(lines)) == [{"line": line} for line in lines]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a b\r\nc\nd\r\n", ["a b", "c", "d"]),
        ("10 %\r100 %\ndone\r\n", ["10 %\r100 %", "done"]),
        ("a\r\r\nb\n", ["a\r", "b"]),
        ("a\rb\r\rc", ["a", "b", "", "c"]),
        ("a\0b\n\0\n", ["a\0b", "\0"]),
        ("\x01\x02\x03\x04\0\r\x01\r\nc\n", ["\x01\x02\x03\x04\0\r\x01", "c"]),
    ],
    ids=["CRLF and LF", "CR within lines", "CR before CRLF", "CR", "NUL", "controls"],
)
def test_lines_with_any_ends_and_characters_are_rows(text: str, lines: list[str]) -> None:
    assert rows("SELECT line FROM t", t=text) == [{"line": line} for line in lines]


def test_a_long_line_is_a_row() -> None:
    assert rows("SELECT length(line) AS n FROM t", t="word " * 600_000 + "\nend\n") == [{"n": 3_000_000}, {"n": 3}]


@pytest.mark.parametrize("line", ["word," * 40_000, "0123456789" * 20_000, "a\tb" * 20_000])
def test_a_text_of_one_long_line_is_a_row_and_not_names_of_columns(line: str) -> None:
    assert rows("SELECT line FROM t", t=f"{line}\n") == [{"line": line}]


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "\n", "\r"])
def test_a_very_long_line_is_a_row_without_a_search_for_columns(end: str) -> None:
    line = "some words " * 4_000_000
    began = time.process_time()
    assert rows("SELECT length(line) AS n FROM t", t=f"a,b{end}{line}{end}c,d") == [
        {"n": len(one)} for one in f"a,b{end}{line}{end}c,d".splitlines()
    ]
    assert time.process_time() - began < 8


def test_a_text_with_all_orders_of_the_marks_is_refused() -> None:
    text = "\0" + "".join("".join(order) for order in permutations("\1\2\3\4\5\6\7\10", 4))
    assert "too many control characters" in failure("SELECT * FROM t", t=text).message


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_csv_text_with_mixed_line_ends_has_its_columns(end: str) -> None:
    text = 'id,name\r\n1,"a\r\nb"\n2,"c\nd"\r\n3,e' + end
    found = rows("SELECT * FROM t ORDER BY id", t=text)
    assert found == [{"id": 1, "name": "a\r\nb"}, {"id": 2, "name": "c\nd"}, {"id": 3, "name": "e"}]


def test_the_number_of_rows_below_the_rows_of_psql_is_not_a_row() -> None:
    rows_of_psql = "id|at\n" + "".join(f"{number}|2026-01-02\n" for number in range(60))
    assert types(f"{rows_of_psql}(60 rows)\n") == {"id": "BIGINT", "at": "VARCHAR"}
    assert rows("SELECT count(*) AS n FROM t", t=f"{rows_of_psql}(60 rows)\n") == [{"n": 60}]


@pytest.mark.parametrize("footer", ["\n(60 rows)\n", "\r\n\r\nTotal: 60, of 90\r\nNext: b", " \n" + "more\n" * 5])
def test_a_few_lines_below_a_csv_text_are_not_rows(footer: str) -> None:
    text = "id,name\n" + "".join(f"{number},n {number}\n" for number in range(60)) + footer
    assert rows("SELECT count(*) AS n, max(id) AS last FROM t", t=text) == [{"n": 60, "last": 59}]
    assert rows("SELECT count(*) AS n FROM t", t=text + "x\n" * 6) == [{"n": len((text + "x\n" * 6).splitlines())}]


@pytest.mark.parametrize("last", ["60,n 60", "Total: 60 rows", "60,n 60\n\n(61 rows)\n"])
@pytest.mark.parametrize("count", [60, 900])
def test_a_row_with_fewer_cells_than_the_others_is_a_row(last: str, count: int) -> None:
    text = "id;name;note\n" + "".join(f"{number};n {number};a\n" for number in range(count))
    assert [*types(text + last)] == ["id", "name", "note"]
    assert rows("SELECT count(*) AS n FROM t WHERE note IS NULL", t=text + last) == [{"n": 1}]
    assert types(f"{text}60;n 60;a;b\n{last}") == {"line": "VARCHAR"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("```csv\n", "```\n"),
        ("The rows:\n\n```csv\n", "\n```\n\nSee the notes.\n"),
        ("# exported 2026\n# by a tool, daily\n", ""),
        ("Found the rows of page 1.\n", ""),
        ("\n\n", ""),
    ],
    ids=["code block", "code block in words", "comments", "sentence", "empty lines"],
)
@pytest.mark.parametrize("count", [3, 900])
def test_csv_in_a_code_block_or_below_a_heading_has_its_columns(before: str, after: str, count: int) -> None:
    text = f"{before}id,name\n" + "".join(f"{number},n {number}\n" for number in range(count)) + after
    assert types(text) == {"id": "BIGINT", "name": "VARCHAR"}
    assert rows("SELECT count(*) AS n FROM t", t=text) == [{"n": count}]


@pytest.mark.parametrize("before", ["Found 20 attachment(s).\n", "20 rows, page 1 of 9\n"])
def test_tsv_below_lines_without_tabs_has_its_columns(before: str) -> None:
    text = f"{before}id\tfrom\n" + "".join(f"<m{number}>\tAda, p{number}@example.org\n" for number in range(20))
    assert rows('SELECT "from" AS s FROM t WHERE id = $$<m7>$$', t=text) == [{"s": "Ada, p7@example.org"}]


def test_csv_in_a_json_string_has_its_columns() -> None:
    text = json.dumps("id,name\n" + "".join(f"{number},n {number}\n" for number in range(900)))
    assert rows("SELECT name FROM t WHERE id = 7", t=text) == [{"name": "n 7"}]
    assert types('"id","name"\n"1","a"\n"2","b"\n') == {"id": "BIGINT", "name": "VARCHAR"}


def test_json_after_a_heading_is_a_table() -> None:
    text = "Query executed.\nReturned 2 rows:\n\n" + json.dumps(OBJECTS, indent=2)
    assert rows("SELECT * FROM t ORDER BY id", t=text) == OBJECTS
    assert types("heading\n[1] is not JSON\n") == {"line": "VARCHAR"}
    assert types(f"[Reading 3 lines]\n\n{json.dumps({'rows': OBJECTS}, indent=2)}") == {
        "rows": 'STRUCT(id BIGINT, "name" VARCHAR)[]'
    }
    assert types('[INFO] sent\n{"id": 1}\n[INFO] got\n{"id": 2}\n') == {"line": "VARCHAR"}
    assert rows("SELECT count(*) AS n FROM t", t="[true]\n[false]\n") == [{"n": 2}]


def test_dictionaries_in_lines_as_python_prints_them_are_rows() -> None:
    printed = [{"id": 1, "name": None}, {"id": 2, "name": "it's"}]
    assert rows("FROM t ORDER BY id", t="\n".join(map(str, printed))) == printed


def test_bytes_and_ranges_that_python_prints_are_texts_of_their_rows() -> None:
    printed = "[{'id': 1, 'data': b'\\x01, \\x02', 'r': Range(1, 6, '[)')}, {'id': 2, 'data': None, 'r': None}]"
    assert rows("SELECT data, r FROM t ORDER BY id", t=printed) == [
        {"data": "b'\\x01, \\x02'", "r": "Range(1, 6, '[)')"},
        {"data": None, "r": None},
    ]


@pytest.mark.parametrize("text", ["[('a', 1, {2, 3}), ('b', 2, {3})]", "[('a', 1), ('b', 2", " {a, b, 1}\n", "(a, 1)"])
def test_a_list_in_one_line_that_is_not_json_has_no_columns(text: str) -> None:
    assert rows("FROM t", t=text) == [{"line": text.rstrip("\n")}]


def test_a_drawn_table_keeps_bars_commas_and_quotes_of_its_cells() -> None:
    text = '| id | text |\n|---|---|\n| 1 | a \\| b |\n| 2 | a, b |\n| 3 | "c" |\n| 4 | |\n| 5 |\n'
    assert [row["text"] for row in rows("FROM t ORDER BY id", t=text)] == ["a | b", "a, b", '"c"', None, None]
    assert types(text) == {"id": "BIGINT", "text": "VARCHAR"}


@pytest.mark.parametrize("row", ["| {} | a, b |\n", " {} | a, b\n"], ids=["markdown", "psql"])
def test_a_long_drawn_table_has_columns(row: str) -> None:
    head = "| id | text |\n|---|---|\n" if row.startswith("|") else " id | text\n----+-----\n"
    text = head + "".join(map(row.format, range(1000)))
    assert rows("SELECT max(id) AS last, count(*) AS n, min(text) AS text FROM t", t=text) == [
        {"last": 999, "n": 1000, "text": "a, b"}
    ]


def test_columns_that_are_aligned_with_spaces_have_their_cells() -> None:
    listed = "CONTAINER ID   STATUS        PORTS       NAMES\n"
    listed += "".join(
        f"{number:012}   Up {number} hours    {ports:<11} db-{number}\n" for number, ports in ((1, "80"), (2, ""))
    )
    found = rows('SELECT "CONTAINER ID" AS id, PORTS AS p, STATUS AS s FROM t ORDER BY id', t=listed)
    assert found == [
        {"id": "000000000001", "p": 80, "s": "Up 1 hours"},
        {"id": "000000000002", "p": None, "s": "Up 2 hours"},
    ]
    shifted = listed + "000000000003   Up more than a day   80     db-3\n" * 200
    assert types(shifted) == {"line": "VARCHAR"}
    assert rows("SELECT count(*) AS n FROM t", t=shifted) == [{"n": 203}]


def test_columns_of_numbers_have_their_cells() -> None:
    memory = "              total   used   free\nMem:       24684084   1650     20\nSwap:             0      0\n"
    assert rows("FROM t ORDER BY total", t=memory) == [
        {"column0": "Swap:", "total": 0, "used": 0, "free": None},
        {"column0": "Mem:", "total": 24684084, "used": 1650, "free": 20},
    ]
    head = "USER       PID %CPU    VSZ   RSS TTY      STAT COMMAND\n"
    wide = "root     10474 20.1 2690792 1335944 ?     Rl   node  a b\n"
    listed = head + wide + "".join(f"ann   {pid:8}  0.0  46444 14140 ?        Ss   sh -c ls\n" for pid in range(600))
    kinds = {"USER": "VARCHAR", "PID": "BIGINT", "%CPU": "DOUBLE", "VSZ": "BIGINT", "RSS": "BIGINT"}
    assert types(listed) == kinds | dict.fromkeys(("TTY", "STAT", "COMMAND"), "VARCHAR")
    assert rows("SELECT RSS, COMMAND AS c FROM t WHERE PID = 10474", t=listed) == [{"RSS": 1335944, "c": "node  a b"}]
    assert rows("SELECT count(*) AS n FROM t", t="top\nTasks\n\n" + listed) == [{"n": 601}]
    assert types(listed + "ann B        7  0.0  46444 14140 ?        Ss   sh\n") == {"line": "VARCHAR"}
    assert rows("SELECT count(*) AS n FROM t", t=listed * 3) == [{"n": 3 * 602}]


@pytest.mark.parametrize("end", ["", "            \n"], ids=["stripped", "padded"])
def test_a_data_frame_has_the_name_of_its_index(end: str) -> None:
    head = f"{'':10}  {'Open':>6}  {'Volume':>8}\nDate{end or chr(10)}"
    frame = head + "".join(f"2026-11-{day:02}  {day + 0.5:6.2f}  {day * 1000:8}\n" for day in range(1, 30))
    assert types(frame) == {"Date": "VARCHAR", "Open": "DOUBLE", "Volume": "BIGINT"}
    assert rows("SELECT Date AS d, Open AS o FROM t ORDER BY Volume DESC LIMIT 1", t=frame) == [
        {"d": "2026-11-29", "o": 29.5}
    ]
    assert rows("SELECT count(*) AS n FROM t", t=frame + "\n[29 rows x 2 columns]") == [{"n": 29}]
    assert types(frame.replace("Date", "a  b")) == {"line": "VARCHAR"}


def test_bars_and_backslashes_in_cells_of_a_box_stay() -> None:
    box = "┌────┬───────┐\n│ id │ first │\n│    │ name  │\n├────┼───────┤\n│ 1  │ a|b   │\n│ 2  │ c\\|d  │\n"
    assert rows('SELECT "first name" AS n FROM t ORDER BY id', t=box) == [{"n": "a|b"}, {"n": "c\\|d"}]
    assert rows("SELECT b FROM t", t="| a | b |\n|---|---|\n| 1 | x │ y |\n") == [{"b": "x │ y"}]


@pytest.mark.parametrize(
    "text",
    [
        "| a | b |\n|---|---|\n| 1 | 2 |\n" + "| 1 | 2 |\n" * 500 + "| 1 | 2 | 3 |\n",
        "| a | b |\n|-:|:-|\n" + "| 1 | 2|3 |\n" * 500,
        "a | b\n--- | ---\n" + "1 | 2|3\n" * 500,
        "+---+---+\n| a | b |\n+---+---+\n" + "| 1 | x\ny |\n" * 500 + "+---+---+\n",
        " a | b | c\n---+---+---\n" + " 1 | x+| 3\n   | y |\n" * 500 + "(500 rows)\n",
        "| a | b |\n|---|---|\n| 1 | 2 |\n" + "| 1 | 2 |\n" * 500 + "\n## Sheet 2\n| a | b |\n|---|---|\n| 1 | 2 |\n",
    ],
    ids=["a row with more cells", "bars in all rows", "without outer bars", "mysql", "psql", "two tables"],
)
def test_no_cell_of_a_drawn_table_is_lost(text: str) -> None:
    count = len([line for line in text.splitlines() if line])
    assert types(text) == {"line": "VARCHAR"}
    assert rows("SELECT count(*) AS n FROM t WHERE line != ''", t=text) == [{"n": count}]


def test_a_long_text_whose_later_rows_are_no_table_is_lines() -> None:
    text = "INFO, started\n" * 25_000 + "ERROR\n" * 5 + "a, b, c, d\n"
    assert rows("SELECT count(*) AS n FROM t", t=text) == [{"n": 25_006}]
    assert set(types(text)) == {"line"}


@pytest.mark.parametrize(
    "value",
    [
        OBJECTS,
        "id,name\n1,a\n2,b\n",
        "id;name\r\n1;a\r\n2;b",
        "id\tname\n1\ta\n2\tb\n",
        "\ufeffid,name\n1,a\n2,b\n",
        '\ufeff[{"id":1,"name":"a"},{"id":2,"name":"b"}]',
        '\ufeff{"id":1,"name":"a"}\n{"id":2,"name":"b"}',
        "\ufeff| id | name |\n|---:|:----|\n| 1 | a |\n| 2 | b |\n",
        "[{'id': 1, 'name': 'a'}, {'id': 2, 'name': 'b'}]",
        "Found 2 rows:\n[{'id': 1, 'name': 'a'}, {'id': 2, 'name': 'b'}]",
        '[Reading 3 lines]\n\n[\n  {"id": 1, "name": "a"},\n  {"id": 2, "name": "b"}\n]\n',
        "[2 rows]\n[{'id': 1, 'name': 'a'}, {'id': 2, 'name': 'b'}]",
        '```json\n[{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]\n```\n',
        '### Result\n[\n  {"id": 1, "name": "a"},\n  {"id": 2, "name": "b"}\n]\n### Code\n`run()`\n',
        '[{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]\n\n(2 rows)\n',
        "[Reading 3 lines]\n\nid,name\n1,a\n2,b\n",
        "Started with PID 7\nInitial output:\nid,name\n1,a\n2,b\n",
        "Command executed (0.1 s)\n\nOutput:\nid,name\n1,a\n2,b\n",
        "Executed in session 1:\n\n--- Output ---\nid,name\n1,a\n2,b\n",
        "id,name\n1,a\n2,b\n\n(2 rows)\n",
        "2 rows, of 2:\nfrom 1\n \nid\tname\n1\ta\n2\tb\n",
        "| id | name |\n|---:|:----|\n| 1 | a |\n| 2 | b |\n",
        "Here you are:\n\nid | name\n---|---\n1 | a\n2 | b\n",
        " id | name \n----+------\n  1 | a\n  2 | b\n(2 rows)\n",
        "+----+------+\r\n| id | name |\r\n+----+------+\r\n|  1 | a    |\r\n|  2 | b    |\r\n+----+------+\r\n",
        "┏━━━━┳━━━━━━┓\n┃ id ┃ name ┃\n┡━━━━╇━━━━━━┩\n│  1 │ a    │\n│  2 │ b    │\n└────┴──────┘\n",
        "╔════╦══════╗\n║ id ║ name ║\n╠════╬══════╣\n║  1 ║ a    ║\n║  2 ║ b    ║\n╚════╩══════╝\n",
        "┌────┬───┐\n│ id │ name │\n│ int32 │ text │\n├────┼───┤\n│ 1 │ a │\n│ 2 │ b │\n└────┴───┘\n",
        "┌────┬───┐\n│ id │ name │\n├────┼───┤\n│ 1 │ a │\n│ 2 │ b │\n├────┴───┤\n│ 2 rows │\n└────────┘\n",
        " id │ name \n────┼──────\n  1 │ a\n  2 │ b\n(2 rows)\n",
        "id  name\n--  ----\n 1  a\n 2  b\n",
        "-[ RECORD 1 ]--\nid   | 1\nname | a\n-[ RECORD 2 ]--\nid   | 2\nname | b\n",
        f"{'*' * 27} 1. row {'*' * 27}\n  id: 1\nname: a\n{'*' * 27} 2. row {'*' * 27}\n  id: 2\nname: b\n",
        "Row 1:\n──────\nid:   1\nname: a\n\nRow 2:\n──────\nid:   2\nname: b\n",
        "   ┌─id─┬─name─┐\n1. │  1 │ a    │\n2. │  2 │ b    │\n   └────┴──────┘\n",
        "Done\n\nOutput:\nid  name\n--  ----\n 1  a\n 2  b\n\n(2 rows affected)\n",
        "+----+------+\n| id | name |\n| INT | VARCHAR(9) |\n+----+------+\n| 1 | a |\n| 2 | b |\n+----+------+\n",
        '{"id":1,"name":"a"}\n{"id":2,"name":"b"}\n',
        '{"id":1,"name":"a"},\n{"id":2,"name":"b"},\n',
        '{"id":1,"name":"a"},\r\n{"id":2,"name":"b"}',
        "sep=;\r\nid;name\r\n1;a\r\n2;b\r\n",
        '\ufeff"sep=,"\nid,name\n1,a\n2,b\n',
        'Found 2 rows:\n{"id":1,"name":"a"}\n{"id":2,"name":"b"}\n\n(2 rows)\n',
        "Found 2 rows:\n\n{'id': 1, 'name': 'a'}\n{'id': 2, 'name': 'b'}\n",
        '{"id":1,"name":"a"}\n{"id":2,"name":"b"}',
        '  [{"id":1,"name":"a"},\n {"id":2,"name":"b"}]',
        b' [ {"id":1,"name":"a"}, {"id":2,"name":"b"} ] ',
    ],
)
def test_each_form_of_a_table_has_the_same_rows(value: object) -> None:
    assert rows("SELECT * FROM t ORDER BY id", t=value) == OBJECTS


@pytest.mark.parametrize(
    ("value", "kinds", "found"),
    [
        ("1,x\n2,y\n", {"column0": "BIGINT", "column1": "VARCHAR"}, [{"column0": 1, "column1": "x"}]),
        ("name,city\nAnn,Bonn\n", {"name": "VARCHAR", "city": "VARCHAR"}, [{"name": "Ann", "city": "Bonn"}]),
        ("id,zip\n1,007\n2,10\n", {"id": "BIGINT", "zip": "VARCHAR"}, [{"id": 1, "zip": "007"}]),
        ('a,b\n"x, ""y""",1\n', {"a": "VARCHAR", "b": "BIGINT"}, [{"a": 'x, "y"', "b": 1}]),
        ("at,n\n2026-01-02T10:00Z,\n", {"at": "VARCHAR", "n": '"NULL"'}, [{"at": "2026-01-02T10:00Z", "n": None}]),
        ("n\n5\n", {"n": "BIGINT"}, [{"n": 5}]),
        (",name\n0,a\n1,b\n", {"column0": "BIGINT", "name": "VARCHAR"}, [{"column0": 0, "name": "a"}]),
        (",a\n7,b\n8,c\n", {"column0": "BIGINT", "column1": "VARCHAR"}, [{"column0": None, "column1": "a"}]),
        ("[INFO] one\n[WARN] two, three\n", {"line": "VARCHAR"}, [{"line": "[INFO] one"}]),
        ("2026 INFO started\n2026 ERROR x, y\n", {"line": "VARCHAR"}, [{"line": "2026 INFO started"}]),
        ("job 1 began, all ok\njob 2 began, all ok\n" * 9, {"line": "VARCHAR"}, [{"line": "job 1 began, all ok"}]),
        ("Ann went, Bob stayed.\n" * 3, {"line": "VARCHAR"}, [{"line": "Ann went, Bob stayed."}]),
        ("10:00:01,123 INFO a\n" * 3, {"line": "VARCHAR"}, [{"line": "10:00:01,123 INFO a"}]),
        ("- milk, 1 l\n- salt, 1 kg\n- tea, 2 g\n", {"line": "VARCHAR"}, [{"line": "- milk, 1 l"}]),
        ("id,full name,n%\n", {"id": "VARCHAR", "full name": "VARCHAR", "n%": "VARCHAR"}, []),
        ('"a;b";Price (EUR)', {"a;b": "VARCHAR", "Price (EUR)": "VARCHAR"}, []),
        (",in 2026\n0,a\n", {"column0": "BIGINT", "column1": "VARCHAR"}, [{"column0": None, "column1": "in 2026"}]),
        ("n\n0x1F\n0x2A\n", {"line": "VARCHAR"}, [{"line": "n"}]),
        ("n\n1\nNA\n3\n", {"line": "VARCHAR"}, [{"line": "n"}]),
        ("a=1,b=2\n", {"line": "VARCHAR"}, [{"line": "a=1,b=2"}]),
        ("First; this", {"line": "VARCHAR"}, [{"line": "First; this"}]),
        ("First, this", {"line": "VARCHAR"}, [{"line": "First, this"}]),
        ("One line, which ends. Yes", {"line": "VARCHAR"}, [{"line": "One line, which ends. Yes"}]),
        ("<p>a,b</p><p>c</p>\n", {"line": "VARCHAR"}, [{"line": "<p>a,b</p><p>c</p>"}]),
        ("<a b='1', c='2'/>\n" * 3, {"line": "VARCHAR"}, [{"line": "<a b='1', c='2'/>"}]),
        ('[{"a":1},{"a":2},]', {"line": "VARCHAR"}, [{"line": '[{"a":1},{"a":2},]'}]),
        ('[{"a":1},{"a":2}', {"line": "VARCHAR"}, [{"line": '[{"a":1},{"a":2}'}]),
        ('{"a":1},\n{"a":2},\n{"a":3', {"line": "VARCHAR"}, [{"line": '{"a":1},'}]),
        ("|a|b|\n|--|--|\n|1|2|\n\n|a|b|\n|--|--|\n|3|4|\n", {"line": "VARCHAR"}, [{"line": "|a|b|"}]),
        ('{"a":1}\n{"a":2}\n... 3 more', {"line": "VARCHAR"}, [{"line": '{"a":1}'}]),
        ('{"a":1}\n{"a":2}\n{"a":3}\n{"a"', {"line": "VARCHAR"}, [{"line": '{"a":1}'}]),
        ('{"a":1,"b":2}\n' * 900 + "end", {"line": "VARCHAR"}, [{"line": '{"a":1,"b":2}'}]),
        ('{"broken\nlines"', {"line": "VARCHAR"}, None),
        ("", {"line": "VARCHAR"}, []),
    ],
)  # fmt: skip
def test_a_text_has_the_columns_of_its_header_or_its_lines(
    value: str, kinds: dict[str, str], found: list[dict[str, Any]] | None
) -> None:
    if found is None:
        assert "cannot be read as a table" in failure("FROM t", t=value).message
        return
    assert types(value) == kinds
    assert rows("FROM t LIMIT 1", t=value) == found


HEADERS = [
    ("ORD-{:06},open,Bonn\n", None),
    ("e{0}f,Ann,2026-11-28 00:05:{0:02} +0100,change {0}\n", None),
    ("28/Nov/2026:10:00:{:02};closed\n", None),
    ("10.0.0.{0}\thost {0}\n", None),
    ("100644 blob {1}\tdocs/{2}\n", None),
    ("{2},open,Bonn\n", None),
    ("{0}K\t/usr/share/{2}\n", None),
    ("{0}K\t./docs\n", None),
    ("https://example.org/{1},open\n", None),
    ("{0}.5M\tdocs\n", None),
    ("docs;{0} kB\n", None),
    ("docs,{0}.{0}%\n", None),
    ("{1:.7}\tAnn\tchange {0}\n", None),
    ("python3.{0}\t{0}:3.1{0}.2-1\n", None),
    ("100644 blob {1} {0:7}\tdocs/{2}\n", None),
    ("docs,{0}%,{0}%\n", "name,24h,7d"),
    ("docs,3.{0}.1,4.{0}.1\n", "name,3.11,4.0"),
    ("docs,{0}M\n", "name,in 2M"),
    ("{2},open,Bonn\n", "id2026,status,name"),
    ("{:x},open,Bonn\n", "code,status,in 2026"),
    ("b{0:04},c{0:02}\n", "a2026,name"),
    ("x{:04},true\n", "x2026,is_open"),
    ("Ann,\n", "name,in 2026"),
    ("Ann,open\n", "/data/name,/data/status"),
]


@pytest.mark.parametrize(("line", "header"), sample(HEADERS, HEADERS[::3].__contains__))
def test_texts_with_numbers_like_those_below_are_no_header(line: str, header: str | None) -> None:
    text = f"{header}\n" if header else ""
    for number in range(40):
        text += line.format(number, hashlib.sha1(b"%d" % number).hexdigest(), uuid5(NAMESPACE_URL, str(number)))  # noqa: S324
    assert rows("SELECT count(*) AS n FROM t", t=text) == [{"n": 40}]
    assert "column0" in types(text) if header is None else set(types(text)) == set(header.split(","))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([{"a": 9223372036854775807}, {"a": -9223372036854775808}], ("BIGINT", "HUGEINT")),
        ([{"a": 18446744073709551615}, {"a": -5}], ("HUGEINT",)),
        ([{"a": 9007199254740993}], ("BIGINT",)),
        ([{"a": True}, {"a": False}], ("BOOLEAN",)),
        ([{"a": "2026-01-02"}], ("VARCHAR",)),
        ([{"a": "2026-01-02T10:00:00+02:00"}, {"a": "2026-01-02 10:00:00"}], ("VARCHAR",)),
        ([{"a": "10:5"}, {"a": "10:05:00"}], ("VARCHAR",)),
        ([{"a": "550E8400-E29B-41D4-A716-446655440000"}], ("VARCHAR",)),
        ([{"a": "007"}], ("VARCHAR",)),
        ([{"a": 1}, {"a": "x"}, {"a": {"b": 1}}], ("JSON",)),
        ([{"a": [1, 2]}, {"a": []}], ("BIGINT[]",)),
        ([{"a": [1, "x"]}], ("JSON[]",)),
        ([{"a": None}], ('"NULL"',)),
        ([{"a": {"b": {"day": "10:00", "n": 1}}}], ('STRUCT(b STRUCT("day" VARCHAR, n BIGINT))',)),
        ([{"a": {"TIME": "10:00:00", "UUID": "x"}}], ('STRUCT("TIME" VARCHAR, UUID VARCHAR)',)),
        ([{"a": "\u0000x\u00e9\U0001f600"}], ("VARCHAR",)),
    ],
)  # fmt: skip
def test_values_come_back_as_they_were_sent(value: list[dict[str, Any]], kind: tuple[str, ...]) -> None:
    assert types(value)["a"] in kind
    assert rows("FROM t", t=value) == value


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["F", "F"], "VARCHAR"),
        (["t", "f"], "VARCHAR"),
        (["yes", "no"], "VARCHAR"),
        (["true", "yes"], "VARCHAR"),
        (["0x1F", "0x20"], "VARCHAR"),
        (["0xdeadbeefdeadbeefdead", "7"], "VARCHAR"),
        (["0b101", "0b11"], "VARCHAR"),
        (["true", "False"], "BOOLEAN"),
        (["1", "-2"], "BIGINT"),
    ],
)
@pytest.mark.parametrize(
    "form",
    sample(
        ["a,b,b\n{},1,0x1\n{},2,0x2\n", "| a | b | b |\n|--|--|--|\n| {} | 1 | 0x1 |\n| {} | 2 | 0x2 |\n"],
        lambda form: form.startswith("a,"),
    ),
)
def test_texts_of_csv_are_not_rewritten_as_booleans_or_numbers(cells: list[str], kind: str, form: str) -> None:
    text = form.format(*cells)
    assert types(text) == {"a": kind, "b": "BIGINT", "b_1": "VARCHAR"}
    found = rows("FROM t", t=text)
    assert [row["b_1"] for row in found] == ["0x1", "0x2"]
    if kind == "VARCHAR":
        assert [row["a"] for row in found] == cells


def test_types_are_found_in_all_rows_so_that_no_late_value_changes() -> None:
    late_rows = [{"a": number} for number in range(30_000)] + [{"a": 1.5}, {"a": "007"}, {"b": True}]
    assert rows("FROM t OFFSET 30000", t=late_rows) == [
        {"a": 1.5, "b": None},
        {"a": "007", "b": None},
        {"a": None, "b": True},
    ]
    text = "id,a\n" + "".join(f"{number},{number}\n" for number in range(30_000)) + "30001,007\n"
    assert rows("FROM t WHERE id = 30001", t=text) == [{"id": 30001, "a": "007"}]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ([{"a": 1}, {"b": "x"}], [{"a": 1, "b": None}, {"a": None, "b": "x"}]),
        ([{"id": 1, "ID": 2}], [{"id": 1, "ID_1": 2}]),
        ([{"a_1": 1, "a": 2}], [{"a_1": 1, "a": 2}]),
        (b'[{"x":{"id":1,"ID":2},"y":1}]', [{"x": {"id": 1, "ID": 2}, "y": 1}]),
        ([{"it's": 1, 'a"b': {"c'd": "10:00"}}], [{"it's": 1, 'a"b': {"c'd": "10:00"}}]),
        ([1, 2], [{"json": 1}, {"json": 2}]),
        (["10:00", "11:5"], [{"json": "10:00"}, {"json": "11:5"}]),
        ([[1, 2], [3]], [{"json": [1, 2]}, {"json": [3]}]),
        ([["id", "city"], [1, "Bonn"], [2]], [{"id": 1, "city": "Bonn"}, {"id": 2, "city": None}]),
        ({"range": "A1:B2", "values": [["id", "city"], ["01", "Bonn"]]}, [{"id": "01", "city": "Bonn"}]),
        ([1, {"a": 1}], [{"json": 1}, {"json": {"a": 1}}]),
        ([{"json": 1}], [{"json": 1}]),
        ([None, {"a": 1}], [{"a": None}, {"a": 1}]),
        ([], []),
        ({"a": [1]}, [{"a": [1]}]),
        (b'[{"a":"\\ud83d"},{"a":"\\\\ud83d \\ud83d\\ude00"}]', [{"a": "\ufffd"}, {"a": "\\ud83d \U0001f600"}]),
        ([{f"c{n}": 1.5 for n in range(300)}], [{f"c{n}": 1.5 for n in range(300)}]),
    ],
)
def test_unusual_arrays_are_tables_too(value: object, found: list[dict[str, Any]]) -> None:
    assert rows("FROM t", t=value) == found


CITIES: dict[str, dict[str, Any]] = {
    "Bonn": {"zip": "53111", "people": 330_000},
    "Oslo": {"zip": "0010", "people": 710_000},
    "K\u00f6ln/Nord": {"zip": "50667"},
    'a"b': {"zip": "1"},
    "Graz": {"zip": "8010", "people": 300_000},
}


@pytest.mark.parametrize(
    "value",
    [
        CITIES,
        json.dumps(CITIES),
        json.dumps(CITIES, indent=2),
        f"Here are the cities:\n{json.dumps(CITIES, ensure_ascii=False)}",
        repr(CITIES),
    ],
)
def test_the_members_of_an_object_of_objects_with_equal_keys_are_rows(value: object) -> None:
    assert rows("FROM t", t=value) == [{"key": key, "zip": None, "people": None} | row for key, row in CITIES.items()]


def test_records_of_which_one_has_other_keys_are_rows() -> None:
    project = {"name": "shop", "version": "2.1.0", "workspaces": ["a"], "engines": {"node": ">=22"}, "private": True}
    packages = {f"node_modules/{n}": {"version": f"{n}.0.0", "license": "MIT", "dev": True} for n in range(12)}
    packages["node_modules/x"] = {"version": "1.0.0", "license": "ISC", "peer": True}
    found = rows("SELECT license, count(*) AS n FROM t GROUP BY 1 ORDER BY 2", t={"": project, **packages})
    assert found == [{"license": None, "n": 1}, {"license": "ISC", "n": 1}, {"license": "MIT", "n": 12}]


def test_the_column_of_the_keys_has_a_name_that_no_record_has() -> None:
    records = {f"r{number}": {"Key": number, "_key": "x", "n": 1} for number in range(4)}
    assert rows("FROM t WHERE __key = 'r2'", t=records) == [{"__key": "r2", "Key": 2, "_key": "x", "n": 1}]


@pytest.mark.parametrize(
    "value",
    [
        {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 3}},
        {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 3}, "d": {"m": 1}, "e": {"o": 1}},
        {**{f"r{number}": {"n": number} for number in range(40)}, "count": 40},
    ],
)
def test_an_object_whose_members_are_not_alike_is_one_row(value: dict[str, Any]) -> None:
    assert rows("FROM t", t=value) == [value]


CELLS = [[1, "a", 2.5], [2, "b", None], [3, 'c"d', 1e300]]
FOUND = [dict(zip(("id", "name", "price"), row, strict=True)) for row in CELLS]


@pytest.mark.parametrize(
    "value",
    [
        {"columns": ["id", "name", "price"], "rows": CELLS},
        {"columns": ["id", "name", "price"], "index": [0, 1, 2], "data": CELLS},
        {"success": True, "columnTypes": ["BIGINT", "TEXT"], "columns": ["id", "name", "price"], "rows": CELLS, "n": 3},
        {"fields": [{"name": "id", "type": "INT"}, {"type": "TEXT", "name": "name"}, {"name": "price"}], "rows": CELLS},
        "Done.\n" + json.dumps({"columns": ["id", "name", "price"], "rows": CELLS}, indent=1),
        {"id": [1, 2, 3, 4], "name": ["a", "b", 'c"d', "e"], "price": [2.5, None, 1e300, 4.0]},
    ],
)
def test_an_object_with_the_columns_of_a_table_is_this_table(value: object) -> None:
    assert rows("FROM t WHERE id < 4", t=value) == FOUND


@pytest.mark.parametrize(
    "value",
    [
        {"columns": ["id", "name"], "rows": CELLS},
        {"columns": ["id", "id", "name"], "rows": CELLS},
        {"columns": ["id", "name", "price"], "rows": [*CELLS, [4]]},
        {"columns": ["id", "name", "price"], "rows": [*CELLS, None]},
        {"columns": ["a", "b", "c"], "other": ["d", "e", "f"], "rows": CELLS},
        {"columns": ["a", "b", "c"], "rows": CELLS, "more": CELLS},
        {"a": [1, 2, 3], "b": [4, 5, 6]},
        {"a": [1, 2, 3, 4], "b": [4, 5, 6]},
        {"a": [1, 2, 3, 4], "b": None},
        {"a": [1, 2, 3, 4]},
        {"a": [1, 2, 3, 4], "b": [[1], [2], [3], [4]]},
    ],
)
def test_an_object_whose_arrays_do_not_fit_each_other_is_one_row(value: dict[str, Any]) -> None:
    assert rows("SELECT count(*) AS n FROM t", t=value) == [{"n": 1}]


PAGE = {"page": 1, "tags": ["a"], "hits": [{"id": 1, "state": "open"}, {"id": 2, "state": "done"}]}
FORMS = ["{}", "Found 2 rows\n{}", "```json\n{}\n```"]


@pytest.mark.parametrize("form", [*FORMS, "Execution result:\n{}\n\nConsole output:\n"])
def test_a_count_of_an_object_is_that_of_its_only_rows(form: str) -> None:
    for value in (PAGE, {"total": 2, "rows": [{"a": [{"b": 1}]}, {"a": []}]}, {"ok": True, "data": PAGE}):
        for given in (value, form.format(json.dumps(value))):
            assert rows("SELECT count(*) AS n FROM t", t=given) == [{"n": 2}]
        assert rows("SELECT count(*) AS n FROM t", t=form.format(json.dumps([value]))) == [{"n": 1}]
    assert rows("SELECT count(*) AS n FROM t WHERE page = 1", t=form.format(json.dumps(PAGE))) == [{"n": 1}]


def test_a_count_of_an_object_is_refused_with_the_key_of_its_rows() -> None:
    page = {"few": [{"a": 1}, {"a": 2}], "rows": [{"id": number} for number in range(200)], "total": 200}
    for sql in ("SELECT count(*) FROM t", "FROM T SELECT count() AS n"):
        message = failure(sql, t=page).message
        assert message.startswith('count(*) is 1, because "t" is one object with 200 rows in its column "rows"')
    message = failure("SELECT count(*) FROM t", t={"data": page}).message
    assert 'one object with 200 rows in "data/rows": add this to its path' in message
    assert rows("SELECT count(*) AS n FROM (SELECT unnest(rows) FROM t)", t=page) == [{"n": 200}]
    assert rows("SELECT count(*) AS n FROM t WHERE total = 200", t=page) == [{"n": 1}]
    assert rows("SELECT count(*) AS n FROM o", t=page, o=page["rows"]) == [{"n": 200}]
    one: list[object] = [[page], {"rows": [{"id": 1}], "total": 1}, {"rows": None, "total": 1}, "x"]
    for value in one:
        assert rows("SELECT count(*) AS n FROM t", t=value) == [{"n": 1}]


def test_a_count_of_an_object_whose_first_line_ends_with_a_comma() -> None:
    text = json.dumps({"meta": {"source": "x"}} | PAGE).replace("}, ", "},\n", 1)
    assert rows("SELECT count(*) AS n FROM t", t=json.dumps(text)) == [{"n": 2}]


def test_indented_objects_by_key_are_rows_if_the_first_has_one_field() -> None:
    records = {f"r{at}": {"n": at} | ({"name": "x", "tags": ["a"]} if at else {}) for at in range(4)}
    blob = json.dumps(records, indent=2).encode()
    assert rows("SELECT key, n FROM t WHERE name = 'x' ORDER BY n DESC LIMIT 1", t=blob) == [{"key": "r3", "n": 3}]


def test_an_object_with_thousands_of_fields_has_json_below_its_columns() -> None:
    schemas = {
        f"s{at}": {"kind": "x", "keys": {f"k{at}_{key}": {"a": 1, "b": [1]} for key in range(9)}} for at in range(900)
    }
    part = rows("SELECT version AS v, schemas.s7.keys->'k7_8'->>'a' AS a FROM t", t={"version": 3, "schemas": schemas})
    assert part == [{"v": 3, "a": "1"}]
    wide = {
        "version": 3,
        "sets": {f"s{at}": {f"t{at}_{one}": 1 for one in range(9)} for at in range(400)},
        "end": {"a": 1},
    }
    assert rows("SELECT version AS v, sets->'s7'->>'t7_8' AS one FROM t", t=wide) == [{"v": 3, "one": "1"}]


LINKS_WITH_ROWS = {f"r{at}": {f"m{at}": at, "rows": [{"n": 1}]} for at in range(300)}
MIXED = [{"Title": "The End", "tags": ["a"]}, {"Title": 300, "tags": "b"}, {"Title": None, "tags": {"The": 1}}]


@pytest.mark.parametrize(
    "condition",
    ["t.title LIKE 'The %'", "Title NOT ILIKE '%End'", "lower(Title) = 'the end'", "regexp_matches(Title, '^The')"],
)
def test_texts_in_a_json_column_are_not_matched_with_quotes(condition: str) -> None:
    message = failure(f"SELECT count(*) FROM t WHERE {condition}", t=MIXED).message  # noqa: S608  # of this test
    assert '"Title" is JSON' in message
    assert 'Write ("Title"->>\'$\') in place of "Title"' in message
    fixed = condition.replace("t.title", "Title").replace("Title", "(Title->>'$')")
    assert rows(f"SELECT count(*) AS n FROM t WHERE {fixed}", t=MIXED) == [{"n": 1}]  # noqa: S608  # of this test


def test_a_comparison_of_a_json_column_with_a_text_names_the_operator() -> None:
    assert "write (column->>'$') for its texts" in failure("SELECT * FROM t WHERE Title = 'The End'", t=MIXED).message


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT count(*) AS n FROM t WHERE Title LIKE '%End%'", 1),
        ("SELECT count(*) AS n FROM t WHERE regexp_matches(Title, 'End|300')", 2),
        ("WITH x AS (SELECT Title->>'$' AS Title FROM t) SELECT count(*) AS n FROM x WHERE Title LIKE 'The%'", 1),
        ("SELECT max(len(json_keys(tags))) AS n FROM t", 1),
        ("SELECT count(*) AS n FROM o WHERE length(part) = 3", 1),
    ],
)
def test_other_queries_of_a_json_column_run(sql: str, expected: int) -> None:
    assert rows(sql, t=MIXED, o=[{"part": [1]}, {"part": {"a": 1, "b": 2}}]) == [{"n": expected}]


def test_rows_by_key_with_thousands_of_fields_have_their_columns() -> None:
    sets = {
        f"s{at}": {"kind": "xy"[at % 2], "fields": {f"f{at}{name}": {"a": 1} for name in "abcdefghi"}}
        for at in range(300)
    }
    assert rows("SELECT count(*) AS n FROM t WHERE kind = 'y'", t={"version": 3, "sets": sets}) == [{"n": 150}]
    assert '"color" not found' in failure("SELECT color FROM t", t={"version": 3, "sets": sets}).message


def test_a_missing_column_that_objects_have_is_named_with_their_column() -> None:
    quakes = [{"id": at, "properties": {"Mag": at}} for at in range(4)]
    message = failure("SELECT max(mag) FROM t", t=quakes).message
    assert '"properties" has objects with "Mag": write "properties"."Mag".' in message
    assert rows('SELECT max("properties"."Mag") AS top FROM t', t=quakes) == [{"top": 3}]
    assert "has objects" not in failure("SELECT x FROM t", t=[{"a": {"x": 1}, "b": {"x": 1}}]).message


@pytest.mark.parametrize("value", [LINKS_WITH_ROWS, [{"key": "a", "value": {"rows": [{"n": 1}]}}] * 2])
def test_no_path_is_named_for_the_rows_in_rows(value: Any) -> None:
    message = failure("SELECT n FROM t", t=value).message
    found = re.search(r"The rows of \"t\" are (FROM \(.* FROM \"t\"\))\.", message)
    assert found
    assert rows(f"SELECT max(n) AS n {found[1]}", t=value) == [{"n": 1}]  # of this test
    assert "to its path" not in message


def test_json_lines_of_such_objects_stay_rows() -> None:
    text = "\n".join(json.dumps({f"r{at}": {"n": at} for at in range(4)}) for _ in range(3))
    assert rows("SELECT r3.n AS n FROM t", t=text) == [{"n": 3}] * 3


@pytest.mark.slow
def test_many_members_of_an_object_are_rows_in_linear_time() -> None:
    records = {f"2025-{number}": {"open": number, "close": number + 0.5} for number in range(200_000)}
    blob, started = json.dumps(records).encode(), time.process_time()
    assert rows("SELECT count(*) AS n, max(close) AS top FROM t", t=blob) == [{"n": 200_000, "top": 199_999.5}]
    assert time.process_time() - started < 10


def test_equal_keys_in_one_object_stay_in_a_json_column() -> None:
    answer = query("FROM t", t=b'[{"a":1,"a":2}]')
    assert isinstance(answer, bytes)
    assert answer == b'[{"json":{"a":1,"a":2}}]'


def test_an_object_larger_than_the_buffer_of_the_database_is_read() -> None:
    assert rows("SELECT len(text) AS n FROM t", t={"text": "x" * (20 << 20)}) == [{"n": 20 << 20}]


@pytest.mark.parametrize("value", [5, True, None, "{not json", b'[{"a":1}', b'[{"a":1},]'])
def test_what_is_not_a_table_is_an_error_that_names_the_input(value: object) -> None:
    answer = query("FROM t", t=value)
    if value == "{not json":
        assert isinstance(answer, bytes)
        return
    assert isinstance(answer, SqlFailure)
    assert answer.message.startswith('The input "t" cannot be read as a table: ')
    assert "/proc/" not in answer.message


def parquet(tmp_path: Path) -> bytes:
    path = tmp_path / "t.parquet"
    duckdb.execute(f"COPY (SELECT 1 AS id, 'a' AS name, 1.10::DECIMAL(5,2) AS price) TO '{path}'")
    return path.read_bytes()


def test_parquet_is_a_table(tmp_path: Path) -> None:
    data = base64.b64encode(parquet(tmp_path)).decode()
    expected = [{"id": 1, "name": "a", "price": 1.1}]
    assert rows("FROM t", t=data) == expected
    block = {"type": "resource", "resource": {"uri": "file:///t", "mimeType": "application/octet-stream", "blob": data}}
    answer = run_sql("FROM t", (TableSource("t", encode(block), is_media=True),), 1000, "")
    assert isinstance(answer, bytes)
    assert json.loads(answer) == expected
    text = {"type": "resource", "resource": {"uri": "file:///t", "mimeType": "text/csv", "text": "a,b\n1,x"}}
    answer = run_sql("FROM t", (TableSource("t", encode(text), is_media=True),), 1000, "")
    assert isinstance(answer, bytes)
    assert json.loads(answer) == [{"a": 1, "b": "x"}]


def query_file(data: bytes) -> FileSpan | bytes | SqlFailure:
    block = {"type": "resource", "resource": {"uri": "file:///t", "blob": base64.b64encode(data).decode()}}
    answer = run_sql("FROM t", (TableSource("t", encode(block), is_media=True),), 1000, "")
    assert isinstance(answer, FileSpan | bytes | SqlFailure)
    return answer


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_an_embedded_file_of_text_is_a_table(encoding: str) -> None:
    answer = query_file("id;name\n1;Zo\u00eb\n2;\u732b\n3;\U0001f600\n".encode(encoding))
    assert isinstance(answer, bytes)
    names = ["Zo\u00eb", "\u732b", "\U0001f600"]
    assert json.loads(answer) == [{"id": number, "name": name} for number, name in enumerate(names, 1)]


@pytest.mark.parametrize(
    "data", [b"ARROW1\0\0\xff\xff\xff\xff", "id;name\n1;Zo\u00eb\n".encode("latin-1"), b"\xff\xfea"]
)
def test_a_file_of_an_unknown_format_is_refused_without_its_bytes(data: bytes) -> None:
    answer = query_file(data)
    assert isinstance(answer, SqlFailure)
    assert answer.message == (
        'The input "t" cannot be read as a table: the file is neither Parquet nor text in UTF-8 or UTF-16. Use an '
        "array of objects, CSV, TSV, JSON lines or Parquet."
    )


def test_a_value_is_read_from_its_file_or_a_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "value"
    blob = encode(OBJECTS)
    path.write_bytes(blob + b"  ")
    for span in (Span(0, len(blob)), Span(0, len(blob) + 2)):
        answer = run_sql("FROM t", (TableSource("t", FileSpan(str(path), span)),), 1000, "")
        assert isinstance(answer, bytes)
        assert json.loads(answer) == OBJECTS


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT 1 AS a; -- done", [{"a": 1}]),
        ("WITH x AS (SELECT 1 AS a) FROM x", [{"a": 1}]),
        ("WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 2) FROM r", [{"n": 1}, {"n": 2}]),
        ("VALUES (1), (2)", [{"col0": 1}, {"col0": 2}]),
        ("SELECT n.x[2] AS v, n.y ->> 'z' AS z FROM o", [{"v": 2, "z": "q"}]),
        ("SELECT o.id, p.id FROM o JOIN o AS p USING (id)", [{"id": 1, "id_1": 1}]),
        ("SELECT unnest(n.x) AS v FROM o", [{"v": 1}, {"v": 2}]),
        ("SELECT day::DATE + 1 AS next FROM o", [{"next": "2026-01-03"}]),
        ("SELECT 'nan'::DOUBLE AS a, ':NaN,Infinity' AS b", [{"a": None, "b": ":NaN,Infinity"}]),
        ("SELECT 'inf'::DOUBLE AS a, '-inf'::DOUBLE AS b", [{"a": None, "b": None}]),
        ("SELECT 12345678901234567890::HUGEINT * 10 AS a", [{"a": 123456789012345678900}]),
        ("PIVOT o ON id IN (1) USING count(*) GROUP BY day", [{"day": "2026-01-02", "1": 1}]),
        ("SELECT a.key, a.value FROM json_each('{\"x\": 1}') AS a", [{"key": "x", "value": 1}]),
        ("SELECT count(*) AS n FROM range(5)", [{"n": 5}]),
        ("SELECT * FROM O", [{"id": 1, "n": {"x": [1, 2], "y": {"z": "q"}}, "day": "2026-01-02"}]),
        ("SELECT * FROM o WHERE false", []),
    ],
)  # fmt: skip
def test_queries_return_rows_as_objects(sql: str, found: list[dict[str, Any]]) -> None:
    assert rows(sql, o=[{"id": 1, "n": {"x": [1, 2], "y": {"z": "q"}}, "day": "2026-01-02"}]) == found


MAILS = [
    {"from": "ada", "to": ["bob"], "at": f"2026-01-0{day}", "end": day, "order": {"desc": day}, "left": f"{day}.50"}
    for day in (1, 2, 3)
]


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT max(at) AS n FROM m", "2026-01-03"),
        ("SELECT from AS n, count(*) FROM m GROUP BY from ORDER BY 2 DESC LIMIT 1", "ada"),
        ("SELECT m.from AS n, max(end) FROM m WHERE from = 'ada' AND at > '2026-01-01' GROUP BY 1", "ada"),
        ("SELECT end AS n FROM m ORDER BY end DESC", 3),
        ("SELECT order.desc AS n FROM m ORDER BY order.desc DESC", 3),
        ("SELECT count(*) AS n /* from */ FROM m -- end\nWHERE to[1] = 'bob' AND 'from' <> \"from\"", 3),
        ("SELECT CASE WHEN end > 2 THEN left ELSE 'x' END AS n FROM m ORDER BY end DESC", "3.50"),
        ("SELECT extract(day FROM max(at)::DATE) AS n, max(end) FROM m", 3),
        ("SELECT left(from, 2) AS n FROM m", "ad"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [MAILS, {"count": 3, "mails": MAILS}], ids=["rows", "object"])
def test_columns_that_are_keywords_need_no_quotes(sql: str, found: object, value: object) -> None:
    assert rows(sql, m=value)[0]["n"] == found


@pytest.mark.parametrize(
    ("name", "sql"),
    [
        ("table", "SELECT count(*) AS n FROM table WHERE end > 0"),
        ("order", "SELECT count(order.end) AS n FROM order GROUP BY order.from ORDER BY order.from"),
        ("group", "WITH a AS (SELECT g.from FROM group AS g) SELECT count(*) AS n FROM a"),
    ],
)
def test_tables_that_are_keywords_need_no_quotes(name: str, sql: str) -> None:
    assert rows(sql, **{name: MAILS}) == [{"n": 3}]
    with pytest.raises(AssertionError, match="has a mistake: syntax error"):
        rows(sql, mails=[{"id": 1}])


def test_columns_of_csv_that_are_keywords_need_no_quotes() -> None:
    assert rows("SELECT max(at) AS n FROM m WHERE end <> 'z'", m="at,end\n7,x\n6,y\n") == [{"n": 7}]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM m WHERE",
        "SELECT id FROM m ORDER",
        "SELECT count(*) end FROM m",
        "SELECT max(end FROM m",
        "SELECT id FROM m WHERE end end",
        f"SELECT {', '.join(['from'] * 30)} FROM m",  # noqa: S608  # a constant
    ],
)
def test_other_mistakes_in_a_query_stay_mistakes(sql: str) -> None:
    found = failure(sql, m=[{"id": 1, "end": 2, "from": "ada", "where": 3, "order": 4}])
    assert found.is_mistake
    assert found.message.startswith("`sql` has a mistake: syntax error")


def test_an_error_quotes_columns_that_are_keywords() -> None:
    found = failure("SELECT max(left) FROM m", m=[{"left": text} for text in ("9.50", "10.50")])
    assert 'TRY_CAST("left" AS DOUBLE)' in found.message
    conversion = re.search(r"TRY_CAST\([^)]*\)", found.message)
    assert conversion
    corrected = f"SELECT max({conversion[0]}) AS n FROM m"  # noqa: S608  # of the error
    assert rows(corrected, m=[{"left": "9.50"}, {"left": "10.50"}]) == [{"n": 10.5}]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELEC 1", '`sql` has a mistake: syntax error at or near "SELEC".'),
        ("SELECT 1 /* x", "unterminated /* comment"),
        ("", "it has 0 statements"),
        ("SELECT 1; SELECT 2", "it has 2 statements"),
        ("SELECT * FROM orders", 'Unknown table "orders". The tables are o. Give each value a name in `inputs`'),
        ("FROM 'list_orders-550e8400-e29b-41d4-a716-446655440000'", "Unknown table"),
        ("PIVOT o ON id USING count(*)", "PIVOT needs the values"),
        ("SELECT " + "(" * 5000 + "1" + ")" * 5000, "`sql`"),
    ],
)
def test_a_mistake_in_the_query_is_found_before_it_runs(sql: str, expected: str) -> None:
    found = failure(sql, o=OBJECTS)
    assert found.is_mistake
    assert expected in found.message


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT nme FROM o", 'Referenced column "nme" not found in FROM clause!'),
        ("SELECT sum(name) FROM o", "No function matches"),
        ("SELECT nope(1) FROM o", "nope does not exist!"),
        ("SELECT id, count(*) FROM o", "GROUP BY"),
    ],
)
def test_errors_of_names_list_the_tables_and_columns(sql: str, expected: str) -> None:
    found = failure(sql, o=OBJECTS, users="id,city\n1,Bonn\n")
    assert expected in found.message
    assert found.message.endswith("Tables: o(id BIGINT, name VARCHAR); users(id BIGINT, city VARCHAR).")
    assert "\n" not in found.message


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT o.city FROM o JOIN users u ON u.id = o.id", 'Only "users" has "city".'),
        ("SELECT x.City FROM o x JOIN users y ON y.id = x.id", 'Only "users" has "City".'),
        ("SELECT id, city FROM o", 'Only "users" has "city".'),
    ],
)
def test_the_error_of_a_missing_column_names_the_table_that_has_it(sql: str, expected: str) -> None:
    assert f" {expected} Tables: " in failure(sql, o=OBJECTS, users="id,city\n1,Bonn\n").message


@pytest.mark.parametrize(
    "sql",
    [
        'SELECT * FROM o WHERE name = "Paid"',
        'SELECT * FROM o WHERE o.name IN ("Paid", "x")',
        'SELECT * FROM o WHERE name LIKE "Paid"',
    ],
)
def test_the_error_of_a_text_in_double_quotes_says_how_texts_are_written(sql: str) -> None:
    message = failure(sql, o=OBJECTS).message
    assert " a text has single quotes: 'Paid'. Tables: " in message


METRICS = {"type": "vector", "result": [{"metric": {"mode": "idle"}, "value": [1, "2"]}]}
NESTED = {"success": True, "data": {"count": 2, "a/b": {"rows": [{"id": 1, "email": "x"}, {"id": 2}]}}}
LISTS = {"open": [{"id": 1, "due": 5}], "done": [{"id": 2}, {"id": 3}]}
DAYS = {"symbol": "ACME", "daily": {f"day {day}": {"open": day / 2, "high": day} for day in range(1, 5)}}
AUDIT = {
    "packages": {
        f"/{name}~": {"name": name, "severity": level, "fix": fix, "via": [{"title": "x"}], "range": None}
        for name, level, fix in (("a", "high", True), ("b", "low", {"name": "c"}), ("c", "low", 1), ("d", "low", None))
    },
    "metadata": {"found": {"high": 1, "low": 3}},
}
LOCK = {
    "name": "x",
    "packages": {
        f"p{at}": {"version": f"{at}.0", "dependencies": {f"d{3 * at + more}": "^1" for more in range(3)}}
        for at in range(100)
    },
}
COUNTS: dict[str, Any] = {"day": "monday", "words": {f"w{number}": number for number in range(5)}}
LINKS = {f"n{at}": {f"m{2 * at}": 1, f"m{2 * at + 1}": 2} for at in range(300)}
MANY = {"total": 300, "users": {f"u{number}": {"age": number} for number in range(300)}}


@pytest.mark.parametrize(
    ("value", "sql", "found"),
    [
        (PAGE, "SELECT count(*) AS n FROM t WHERE state = 'open'", [{"n": 1}]),
        (PAGE, "SELECT x.ID FROM t x ORDER BY x.id DESC", [{"id": 2}, {"id": 1}]),
        (PAGE, "WITH c AS (SELECT id FROM t) SELECT sum(id) AS s FROM c", [{"s": 3}]),
        (PAGE, "SELECT a.id FROM t a JOIN t b ON a.id = b.id + 1", [{"id": 2}]),
        (PAGE, "SELECT page FROM t", [{"page": 1}]),
        (PAGE, "SELECT max(id) AS id FROM t", [{"id": 2}]),
        (METRICS, "SELECT metric.mode AS mode FROM t", [{"mode": "idle"}]),
        (NESTED, "SELECT count(email) AS n, count(*) AS c FROM t", [{"n": 1, "c": 2}]),
        (LISTS, "SELECT due FROM t", [{"due": 5}]),
        (DAYS, "SELECT key, open FROM t WHERE high > 3", [{"key": "day 4", "open": 2.0}]),
        (AUDIT, "SELECT KEY, via[1].title AS x FROM t WHERE severity = 'high'", [{"key": "/a~", "x": "x"}]),
        (AUDIT, "SELECT fix FROM t WHERE range IS NULL", [{"fix": fix} for fix in (True, {"name": "c"}, 1, None)]),
        (AUDIT, "SELECT count(*) AS n FROM t", [{"n": 4}]),
        (MANY, "SELECT max(age) AS m FROM t", [{"m": 299}]),
        (LOCK, "SELECT count(*) AS n FROM t, json_each(dependencies) WHERE t.key > ''", [{"n": 300}]),
        (LOCK, "SELECT dependencies AS d FROM t WHERE key = 'p1'", [{"d": {"d3": "^1", "d4": "^1", "d5": "^1"}}]),
        (COUNTS, "SELECT key, value FROM t ORDER BY value DESC LIMIT 1", [{"key": "w4", "value": 4}]),
        (COUNTS["words"] | {"w5": None}, "SELECT avg(Value) AS mean FROM t", [{"mean": 2.0}]),
        ({"links": LINKS}, "SELECT value FROM t WHERE key = 'n9'", [{"value": {"m18": 1, "m19": 2}}]),
        (LINKS, "SELECT count(*) AS n, sum(cardinality(value)) AS s FROM t", [{"n": 300, "s": 600}]),
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_an_object_is_the_table_of_the_only_rows_that_a_query_names(
    value: dict[str, Any], sql: str, found: list[Any], form: str
) -> None:
    assert rows(sql, t=value) == found
    assert rows(sql, t=form.format(json.dumps(value))) == found


def test_columns_of_objects_by_key_have_the_types_of_all_their_values() -> None:
    users = {f"u{at}": {"n": 2**63 + 1 if at else 3, "x": at if at % 2 else at / 4, "y": at} for at in range(20)}
    del users["u5"]["n"], users["u6"]["y"]
    found = rows("SELECT max(n) AS n, sum(x) AS x, min(y - 5) AS y FROM t", t={"total": 20, "users": users})
    assert found == [{"n": 2**63 + 1, "x": 122.5, "y": -5}]


def test_objects_by_key_whose_keys_differ_only_in_case_are_explained() -> None:
    users = {f"u{at}": {"Name": at, "name": at, "x": 1} for at in range(5)}
    assert "Referenced column" in failure("SELECT x FROM t", t={"total": 5, "users": users}).message


@pytest.mark.parametrize("wrap", [lambda rows: rows, lambda rows: {"page": 1, "rows": rows}, lambda rows: rows[1]])
def test_a_table_with_thousands_of_columns_has_their_types(wrap: Callable[[list[Any]], Any]) -> None:
    wide = [{f"c{column}": column + row for column in range(1500)} | {"o": {"x": row}} for row in range(2)]
    assert rows("SELECT max(c5) AS most, max(o.x) AS x FROM t", t=wrap(wide)) == [{"most": 6, "x": 1}]


def test_members_are_no_rows_if_several_objects_have_such_members() -> None:
    several = COUNTS | {"lines": COUNTS["words"]}
    for value in (several, {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": "x", "c": 3, "d": 4}, DAYS, MANY):
        assert 'Referenced column "value" not found' in failure("SELECT value, key FROM t", t=value).message


def test_two_objects_are_the_tables_of_their_rows() -> None:
    users = {"users": [{"uid": 1, "name": "Ann"}, {"uid": 2, "name": "Bob"}]}
    sql = "SELECT u.name, t.state FROM t JOIN u ON t.id = u.uid ORDER BY 1"
    assert rows(sql, t=PAGE, u=users) == [{"name": "Ann", "state": "open"}, {"name": "Bob", "state": "done"}]


def test_numbers_in_texts_of_the_rows_in_an_object_are_explained() -> None:
    prices = {"rows": [{"price": "9.50"}, {"price": "10.20"}]}
    assert "Write TRY_CAST(price AS DOUBLE)" in failure("SELECT max(price) FROM t", t=prices).message


def test_an_object_in_place_of_its_rows_is_explained() -> None:
    for sql in ("SELECT page, id FROM p", "SELECT id, nothing FROM p", "SELECT id FROM p UNION SELECT page FROM p"):
        message = failure(sql, p=PAGE).message
        assert ' "p" has rows in its column "hits": add the key to its path in `inputs`. Tables: p(page' in message
    assert ' "t" has rows in its column "open": ' in failure("SELECT id FROM t", t=LISTS).message
    assert "has rows" not in failure("SELECT nothing FROM p", p=PAGE["hits"]).message
    prices = {"symbol": "ACME", "daily": {f"2025-01-{day:02d}": {"open": 1.5} for day in range(1, 29)}}
    message = failure("SELECT open, nothing FROM p", p=prices).message
    assert ' "p" has rows in its column "daily": add the key to its path in `inputs`. Tables: p(symbol' in message
    assert ": 'it''s'." in failure('SELECT * FROM o WHERE name = "it\'s"', o=OBJECTS).message
    assert "single quotes" not in failure("SELECT Paid FROM o WHERE name = 'Paid'", o=OBJECTS).message


@pytest.mark.parametrize("cells", [[1, "a", 2.5], [1, 2, 3.5]])
def test_rows_that_are_arrays_are_explained(cells: list[Any]) -> None:
    answer = {"title": "Prices", "rows": [cells, cells]}
    advice = "json[1] is the first cell of a row, and json[1]::DOUBLE a number."
    expected = (
        f' "t" has rows as arrays in its column "rows": add the key to its path in `inputs`. Then {advice} Tables: '
    )
    assert expected in failure("SELECT sum(price) FROM t", t=answer).message
    expected = f' Each row of "t" is an array: {advice} Tables: '
    for sql in ("SELECT sum(price) FROM t", "FROM t ORDER BY 3", "SELECT sum(json) FROM t"):
        assert expected in failure(sql, t=answer["rows"]).message
    assert rows("SELECT sum(json[3]::DOUBLE) AS s FROM t", t=answer["rows"]) == [{"s": 2 * cells[2]}]


def test_rows_in_an_object_in_a_column_are_named() -> None:
    message = failure("SELECT email, success FROM t", t=NESTED).message
    assert ' "t" has rows in "data/a~1b/rows": add this to its path in `inputs`. Tables: t(success' in message


@pytest.mark.parametrize("inner", [{"rows": OBJECTS, "n": 2}, {"n": 2, "data": {"rows": OBJECTS}}])
@pytest.mark.parametrize("form", FORMS)
def test_rows_in_a_text_are_explained_by_a_query_that_reads_them(inner: dict[str, Any], form: str) -> None:
    text = form.format(json.dumps(inner))
    message = failure("SELECT id, n FROM t", t=text).message
    advice = re.search(r'The rows of "t" are (FROM .*\))\. Tables: ', message)
    assert advice
    assert rows(f"SELECT id, name {advice[1]}", t=text) == OBJECTS


@pytest.mark.parametrize("form", ["{}", "Execution result:\n{}\n\nConsole output:\n", "Returned:\n```json\n{}\n```"])
def test_rows_in_a_json_string_in_a_text_are_rows(form: str) -> None:
    text = form.format(json.dumps(json.dumps(OBJECTS)))
    assert rows("SELECT id, name FROM t", t=text) == OBJECTS
    lines = form.format('"[not JSON]"')
    assert rows("SELECT line FROM t", t=lines) == [{"line": line} for line in lines.splitlines()]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("id,name\n" + "1,a\n" * 50 + "2,Ray, Bob\n" + "3\n", "row 52 has 3 cells, the first row 2"),
        ("Rows:\n\nid,name\n" + "1,a\n" * 50 + "3\n" * 9, "row 52 has 1 cell, the first row 2"),
        ("id,name\n" + "1,a\n" * 50 + '2,"' + "b\n" * 100_000, ""),
        ("id,name\n1,a\n2,Ray, Bob\n" + "3,c\n" * 50, "row 3 has 3 cells, the first row 2"),
        ("id,name,at\n" + "1,a,b\n" * 9 + "2,b\n" + "1,a,b\n" * 900, "row 11 has 2 cells, the first row 3"),
        ("It was warm, and late.\n" * 9 + "So, they said, it ends.\n" * 2, ""),
        ("INFO one\n" * 50, ""),
    ],
    ids=["more cells", "fewer cells", "an open quote", "more cells early", "fewer cells early", "prose", "no CSV"],
)
def test_the_row_for_which_csv_is_lines_is_named(text: str, reason: str) -> None:
    message = failure("SELECT id FROM t", t=text).message
    assert "t(line VARCHAR)" in message
    assert reason in message
    assert ("split_part(line, ',', 1)" in message) == bool(reason)


def test_the_lines_of_a_text_with_several_tables_are_explained() -> None:
    table = "| id | price |\n|---:|:---|\n| 1 | 2.75 |\n| 2 | 1 |\n\n"
    text = f"# North\n\n{table}# South\n\n{table}"
    assert '"t" is a text with 2 tables and has a row for each line' in failure("SELECT price FROM t", t=text).message
    prices = "SELECT sum(TRY_CAST(split_part(line, '|', 3) AS DOUBLE)) AS sum FROM t"
    assert rows(prices, t=text) == [{"sum": 7.5}]


@pytest.mark.parametrize("between", ["", "\n    "])
def test_the_error_of_equal_tables_of_html_has_a_query_of_their_cells(between: str) -> None:
    head = ["<table>", "<thead>", "<tr>", "<th>id</th>", "<th>price</th>", "</tr>", "</thead>"]
    parts = [*head, "<tr class='a'>", "<td>1</td>", '<td align="right">2.75</td>', "</tr>", "<tr>"]
    parts += ("<td>2</td>", "<td><b>1</b></td>", "</tr>", "</table>")
    other = "<table><tr><th>id</th><th>price</th></tr></table>"
    text = f"<html>\n<p>North</p>\n{between.join(parts)}\n{other}\n"
    message = failure("SELECT price FROM t", t=text).message
    query = message.partition("The cells of its tables are ")[2].partition(". Tables: ")[0]
    cells = [row["cells"] for row in rows(query, t=text)]
    assert cells == [["id", "price"], ["1", "2.75"], ["2", "<b>1</b>"], ["id", "price"]]


def test_a_table_in_a_column_of_an_object_is_explained() -> None:
    weather = {"place": "Bonn", "hourly": {"time": ["a", "b", "c", "d"], "rain": [0, 1, 0, 2], "wind": [1.5] * 4}}
    message = failure("SELECT max(rain) FROM w", w=weather).message
    assert ' "w" has rows in its column "hourly": add the key to its path in `inputs`. Tables: w(place' in message
    assert rows("SELECT max(rain) AS r FROM w", w=weather["hourly"]) == [{"r": 2}]


def test_errors_are_bounded() -> None:
    wide = [{f"column_{number}": "x" for number in range(1000)}]
    assert len(failure("SELECT nope FROM o", o=wide).message) < 1800
    assert len(failure("SELECT error(repeat('x', 100000))", o=wide).message) < 450
    key = "k" * 5_000
    wrapped = {key: [{"id": 1}], "n": 1}
    assert f'rows in its column "{key[:80]}...": ' in failure("SELECT id, n FROM o", o=wrapped).message
    assert len(failure("SELECT id, n FROM o", o=json.dumps(wrapped)).message) < 2500
    assert len(failure("SELECT id FROM o", o=[{key: '{"id": 1}'}]).message) < 2500


def test_a_large_result_is_written_to_its_file(tmp_path: Path) -> None:
    path = tmp_path / "result"
    answer = query("SELECT range AS n, 'x' || range AS x FROM range(100000)", 1 << 30, str(path))
    assert answer == FileSpan(str(path), Span(0, path.stat().st_size))
    assert path.stat().st_mode & 0o777 == 0o600
    found = json.loads(path.read_bytes())
    assert len(found) == 100_000
    assert found[99_999] == {"n": 99_999, "x": "x99999"}


def test_a_result_that_the_disk_does_not_take_names_the_reason(tmp_path: Path) -> None:
    found = query("SELECT repeat('x', 1000) AS x FROM range(5000)", 1 << 30, str(tmp_path / "none" / "result"))
    assert isinstance(found, SqlFailure)
    assert "cannot be written to the gateway's disk: No such file or directory." in found.message
    assert found.is_limit


def test_a_result_over_the_limit_names_the_limit(tmp_path: Path) -> None:
    for numbers in ("range(1000)", "range(1000000000000)"):
        found = query(f"FROM {numbers}", 5000, str(tmp_path / "result"))
        assert isinstance(found, SqlFailure)
        assert found.is_limit
        assert "`memory_tools.query_bytes`" in found.message


@pytest.mark.slow
def test_memory_over_the_limit_is_named() -> None:
    found = failure("SELECT list(a.range) FROM range(100000) a, range(100000) b")
    assert found.is_limit
    assert "1,024 MiB" in found.message


STATEMENTS = [
    "COPY o TO '{out}'",
    "COPY (SELECT 1) TO '{out}' (FORMAT json)",
    "COPY o FROM '{secret}'",
    "EXPORT DATABASE '{out}'",
    "IMPORT DATABASE '{folder}'",
    "ATTACH '{out}'",
    "ATTACH '{out}' AS x (TYPE sqlite)",
    "INSTALL httpfs",
    "FORCE INSTALL httpfs FROM community",
    "LOAD httpfs",
    "LOAD '{out}'",
    "SET enable_external_access = true",
    "SET GLOBAL enable_external_access = true",
    "SET lock_configuration = false",
    "SET threads = 8",
    "SET memory_limit = '100GB'",
    "SET temp_directory = '{folder}'",
    "SET allowed_paths = ['{secret}']",
    "SET home_directory = '{folder}'",
    "RESET enable_external_access",
    "RESET lock_configuration",
    "PRAGMA enable_external_access = true",
    "PRAGMA threads = 8",
    "PRAGMA memory_limit = '100GB'",
    "PRAGMA log_query_path = '{out}'",
    "CALL enable_logging(storage = 'file', storage_path = '{out}')",
    "CREATE PERSISTENT SECRET s (TYPE http, BEARER_TOKEN 'x')",
]
"""Statements that a locked database refuses too."""
READS = [
    "SELECT * FROM read_csv('{secret}')",
    "SELECT * FROM read_csv_auto('{secret}')",
    "SELECT * FROM read_text('{secret}')",
    "SELECT * FROM read_blob('{secret}')",
    "SELECT * FROM read_json('{secret}')",
    "SELECT * FROM read_json_objects('{secret}')",
    "SELECT * FROM read_ndjson('{secret}')",
    "SELECT * FROM read_parquet('{secret}')",
    "SELECT * FROM parquet_metadata('{secret}')",
    "SELECT * FROM parquet_schema('{secret}')",
    "SELECT * FROM read_duckdb('{secret}', table_name = 'x')",
    "SELECT * FROM sniff_csv('{secret}')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM read_text('/proc/self/environ')",
    "SELECT * FROM read_text('/proc/self/fd/0')",
    "SELECT * FROM '{secret}'",
    'SELECT * FROM "{secret}"',
    "SELECT * FROM '{folder}/*.csv'",
    "SELECT * FROM 'http://127.0.0.1:9/x.csv'",
    "SELECT * FROM read_csv('https://127.0.0.1:9/x.csv')",
    "SELECT * FROM 's3://bucket/x.parquet'",
    "SELECT * FROM (SELECT * FROM o WHERE id IN (SELECT content FROM read_text('{secret}')))",
    "WITH x AS (SELECT * FROM read_text('{secret}')) SELECT * FROM x",
    "SELECT (SELECT content FROM read_text('{secret}'))",
    "SELECT * FROM o UNION ALL SELECT 1, content FROM read_text('{secret}')",
    "SELECT * FROM o, LATERAL (SELECT * FROM read_text('{secret}'))",
    "SELECT * FROM query('SELECT * FROM read_text(''{secret}'')')",
    "SELECT * FROM query_table('{secret}')",
    "SELECT * FROM enable_logging(storage = 'file', storage_path = '{out}')",
    "SELECT * FROM variable_of_python",
    "SELECT * FROM pandas_scan(1)",
    "SELECT * FROM arrow_scan(1, 1, 1)",
    "SELECT * FROM python_map_function((SELECT 1))",
    "SELECT getenv('PATH')",
    "SELECT * FROM duckdb_extensions()",
]
"""Queries that a locked database refuses too."""
HARMLESS = [
    "CREATE TABLE x AS SELECT 1",
    "CREATE TEMP VIEW x AS SELECT 1",
    "CREATE MACRO f() AS 1",
    "INSERT INTO o VALUES (1, 'x')",
    "UPDATE o SET id = 5",
    "DELETE FROM o",
    "TRUNCATE o",
    "DROP TABLE o",
    "ALTER TABLE o ADD COLUMN x INTEGER",
    "MERGE INTO o USING o AS p ON o.id = p.id WHEN MATCHED THEN DELETE",
    "WITH x AS (INSERT INTO o VALUES (1, 'x') RETURNING id) SELECT * FROM x",
    "WITH x AS (DELETE FROM o RETURNING id) SELECT * FROM x",
    "ATTACH ':memory:' AS x",
    "USE memory",
    "BEGIN",
    "PREPARE p AS SELECT 1",
    "EXPLAIN ANALYZE SELECT 1",
    "PRAGMA database_list",
    "PRAGMA show_tables",
    "CALL duckdb_settings()",
    "SET VARIABLE x = 1",
    "VACUUM",
    "CHECKPOINT",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM which_secret('s3://x', 's3')",
    "SELECT * FROM duckdb_databases()",
    "SELECT * FROM duckdb_temporary_files()",
    "SELECT * FROM duckdb_logs()",
    "SELECT * FROM duckdb_settings",
    "SELECT * FROM pragma_database_size()",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM pg_catalog.pg_settings",
    "SELECT * FROM main.o",
    "SELECT * FROM sqlite_master",
    "SELECT * FROM json_execute_serialized_sql('{{}}')",
    "SELECT * FROM test_all_types()",
]
"""Statements that touch only the database in memory. They are refused, because a query only reads its tables."""


def prepared(statement: str, tmp_path: Path) -> str:
    secret = tmp_path / "secret.csv"
    secret.write_text(f"a,b\n{CANARY},1\n")
    return statement.format(secret=secret, folder=tmp_path, out=tmp_path / "out")


@pytest.mark.parametrize("statement", [*STATEMENTS, *READS, *HARMLESS])
def test_a_query_reads_nothing_but_its_tables(statement: str, tmp_path: Path) -> None:
    variable_of_python = [1]
    found = failure(prepared(statement, tmp_path), o=OBJECTS)
    assert CANARY not in found.message
    assert [one.name for one in tmp_path.iterdir()] == ["secret.csv"]
    assert variable_of_python == [1]


@pytest.fixture(scope="module")
def locked_database() -> Iterator[Any]:
    """A locked database with one table."""
    with open_database() as database:
        load_table(database, TableSource("o", encode(OBJECTS)), encode(OBJECTS))
        lock_database(database)
        yield database


@pytest.mark.parametrize("statement", [*STATEMENTS, *READS])
def test_the_locked_database_refuses_it_without_the_check_of_the_query(
    statement: str, tmp_path: Path, locked_database: Any
) -> None:
    variable_of_python = [1]
    with pytest.raises(duckdb.Error) as error:
        locked_database.execute(prepared(statement, tmp_path)).fetchall()
    assert locked_database.execute("SELECT id, name FROM o").fetchall() == [(1, "a"), (2, "b")]
    assert CANARY not in str(error.value)
    assert [one.name for one in tmp_path.iterdir()] == ["secret.csv"]
    assert variable_of_python == [1]


def test_settings_that_a_query_can_read_do_not_describe_the_machine() -> None:
    names = ("secret_directory", "home_directory", "temp_directory", "extension_directories", "file_search_path")
    (found,) = rows("SELECT " + ", ".join(f"current_setting('{name}') AS {name}" for name in names))
    assert found == {
        "secret_directory": "none",
        "home_directory": "",
        "temp_directory": "",
        "extension_directories": [],
        "file_search_path": "",
    }


def test_the_time_zone_of_the_machine_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    sql = "SELECT t::TIMESTAMPTZ AS t, t::TIMESTAMPTZ::DATE AS day, hour(t::TIMESTAMPTZ) AS hour FROM rows"
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        found = rows(sql, rows=[{"t": "2026-03-01T20:00:00Z"}])
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found == [{"t": "2026-03-01 20:00:00+00", "day": "2026-03-01", "hour": 20}]


def test_nothing_of_a_query_remains_for_the_next_one() -> None:
    rows("SELECT * FROM first", first=OBJECTS)
    assert "Unknown table" in failure("SELECT * FROM first").message
    assert rows("SELECT getvariable('x') AS x") == [{"x": None}]


def test_results_are_json_of_any_columns() -> None:
    answer = query(
        "SELECT 1.10::DECIMAL(5,2) AS d, DATE '2026-01-02' AS day, INTERVAL 3 DAY AS i, 'ab'::BLOB AS b, "
        "MAP {'k': 1} AS m, [NULL, 2] AS l, TRUE AS t, NULL AS n, 'a\"\n' AS s, '{\"x\": 1.10}'::JSON AS j"
    )
    assert isinstance(answer, bytes)
    (row,) = msgspec.json.decode(answer)
    assert row == {
        "d": 1.1,
        "day": "2026-01-02",
        "i": "3 days",
        "b": "ab",
        "m": {"k": 1},
        "l": [None, 2],
        "t": True,
        "n": None,
        "s": 'a"\n',
        "j": {"x": 1.1},
    }


@pytest.mark.timeout(20)
def test_a_text_of_quotes_that_begins_like_json_is_read_in_linear_time() -> None:
    assert rows("SELECT count(*) AS n FROM t", t="[NaN, " + '\\"' * 300_000) == [{"n": 1}]


INVOICES = "Datum;Kunde;Betrag\n15.06.2026;Noor;6.327,08\n03.01.2027;Ada;21.530,81\n28.12.2026;Bela;946,36\n"
AMOUNT = "TRY_CAST(replace(regexp_replace(Betrag, '[^0-9,-]', '', 'g'), ',', '.') AS DOUBLE)"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT Kunde FROM t ORDER BY Betrag DESC LIMIT 1",
        "SELECT Kunde, Betrag FROM t ORDER BY 2",
        "SELECT max(t.Betrag) AS top FROM t",
        "SELECT arg_max(Kunde, Betrag) AS top FROM t",
        "SELECT count(*) FROM t WHERE Betrag > '1.000,00'",
        "SELECT count(*) FROM t WHERE betrag BETWEEN '1' AND '2'",
        "SELECT rank() OVER (ORDER BY Betrag) AS r FROM t",
        "WITH s AS (SELECT Betrag FROM t) SELECT Betrag FROM s ORDER BY Betrag",
        "SELECT sum(Betrag) AS Betrag FROM t",
        "SELECT Kunde, Betrag AS amount FROM t ORDER BY amount DESC",
        "SELECT Kunde AS Betrag, o.Betrag AS b FROM t o ORDER BY b",
        "SELECT sum(Betrag::DOUBLE) FROM t",
        "SELECT sum(TRY_CAST(Betrag AS DECIMAL)) FROM t",
    ],
)
def test_numbers_with_a_decimal_comma_are_not_compared_as_texts(sql: str) -> None:
    message = failure(sql, t=INVOICES).message
    assert 'is text with numbers such as "6.327,08"' in message
    assert "TRY_CAST(replace(regexp_replace(" in message


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT max(AMOUNT) AS v FROM t", 21530.81),
        ("SELECT Kunde AS v FROM t WHERE AMOUNT > 10000.0", "Ada"),
        ("SELECT Kunde AS v FROM t ORDER BY try_strptime(Datum, '%d.%m.%Y') DESC LIMIT 1", "Ada"),
        ("SELECT count(*) AS v FROM t WHERE Betrag LIKE '9%' AND Datum = '28.12.2026'", 1),
        ("SELECT max(Kunde) AS v FROM t", "Noor"),
        ("SELECT concat(Betrag) AS Betrag, 1 AS v FROM t ORDER BY Betrag LIMIT 1", 1),
        ("SELECT 1 AS v FROM (SELECT * REPLACE (length(Betrag) AS Betrag) FROM t) ORDER BY Betrag LIMIT 1", 1),
        ("SELECT count(DISTINCT Datum::VARCHAR) AS v FROM t", 3),
        ("SELECT Kunde AS v, count(*) AS Betrag FROM t GROUP BY 1 ORDER BY Betrag, v DESC LIMIT 1", "Noor"),
        ("WITH s(Betrag) AS (SELECT 5) SELECT max(Betrag) AS v FROM s", 5),
    ],
)
def test_converted_numbers_and_dates_are_compared(sql: str, found: object) -> None:
    assert rows(sql.replace("AMOUNT", AMOUNT), t=INVOICES)[0]["v"] == found


@pytest.mark.parametrize(
    ("texts", "conversion"),
    [
        (["9.50", "10.20"], "TRY_CAST(x AS DOUBLE)"),
        ([*["15"] * 2000, "7"], "TRY_CAST(x AS DOUBLE)"),
        (["$1,234.50", "-$9.00", ""], "TRY_CAST(regexp_replace(x, '[^0-9.-]', '', 'g') AS DOUBLE)"),
        (["19 %", "7 %"], "TRY_CAST(regexp_replace(x, '[^0-9.-]', '', 'g') AS DOUBLE)"),
        (["1200円", "99円"], "TRY_CAST(regexp_replace(x, '[^0-9.-]', '', 'g') AS DOUBLE)"),
        (["5,5", "12,25 €", "n/a"], "TRY_CAST(replace(regexp_replace(x, '[^0-9,-]', '', 'g'), ',', '.') AS DOUBLE)"),
        (["9\u202f009", "10\u202f010", "12"], "TRY_CAST(regexp_replace(x, '[^0-9.-]', '', 'g') AS DOUBLE)"),
        (["1 234,50 kr", "999,00 kr"], "TRY_CAST(replace(regexp_replace(x, '[^0-9,-]', '', 'g'), ',', '.') AS DOUBLE)"),
        (["CHF 1'234.50", "CHF 999.00"], "TRY_CAST(regexp_replace(x, '[^0-9.-]', '', 'g') AS DOUBLE)"),
        (["1,234", "12,345"], "'g') AS DOUBLE) or TRY_CAST("),
        (["9.5 kg", "10 kg", "100 kg"], "TRY_CAST(regexp_replace(x, '[^0-9.-]', '', 'g') AS DOUBLE) in"),
        (["9kg", "9.5kg"], "TRY_CAST(regexp_replace(x, '[^0-9.-]', '', 'g') AS DOUBLE) in"),
        (["-3 °C", "12 °C", ""], "TRY_CAST(regexp_replace(x, '[^0-9.-]', '', 'g') AS DOUBLE) in"),
        (["9,5 m²", "10 m²"], "TRY_CAST(replace(regexp_replace(x, '[^0-9,-]', '', 'g'), ',', '.') AS DOUBLE) in"),
        (["4.0K", "12M", "0"], "* pow(1000, strpos(' KMGTPE', upper(regexp_extract(x, '[kKMGTPE]'))) - 1) in"),
        (["1,024 MiB", "1.5 GiB", "n/a"], "* pow(1024, strpos("),
        (["9 m/s", "12 m/s"], "TRY_CAST(regexp_replace(x, '[^0-9.-]', '', 'g') AS DOUBLE) in"),
        (["9.14.1", "10.0.0-rc.1", "2.0"], r"regexp_extract(x, '\d+(\.\d+)*'), ''), '.') AS INT[]) in"),
        (["9.0.3", "2026.5.20", "1.0", "0.14.0.2"], "'.') AS INT[]) in"),
        (["1.0b2", "1.10.1+ds-1", "-"], r"regexp_extract(x, '\d+(\.\d+)*'), ''), '.') AS INT[]) in"),
        (["2026-1-9", "2026-10-10"], "Write try_strptime(x, '%Y-%m-%d') in"),
        (["2026/1/9 8:00", "2026/1/10 9:00"], "Write try_strptime(x, '%Y/%m/%d %H:%M') in"),
        (["v1.9.0", "1.10.0"], "AS INT[]) in place of x, and compare it with lists such as [1, 10, 0]"),
        (["13/02/2026", "03/04/2026"], "Write try_strptime(x, '%d/%m/%Y') in"),
        (["01/13/2026", "03/04/2026"], "Write try_strptime(x, '%m/%d/%Y') in"),
        (["01/02/2026", "03/04/2026"], "try_strptime(x, '%d/%m/%Y') or try_strptime(x, '%m/%d/%Y')"),
        (["28.12.2026 10:00", "03.01.2027 09:30"], "try_strptime(x, '%d.%m.%Y %H:%M')"),
        (["1/13/2026 1:05 PM", "12/3/2026 11:00 AM"], "try_strptime(x, '%m/%d/%Y %I:%M %p')"),
        (["9 Nov 2026", "16 Dec 2026"], "Write try_strptime(x, '%d %b %Y') in"),
        (["30/Nov/2026:10:00:00 +0100", "01/Dec/2026:09:30:00 +0100"], "try_strptime(x, '%d/%b/%Y:%H:%M:%S %z')"),
        (["Nov 30, 2026 1:00 PM", "Nov 30, 2026 11:00 AM"], "try_strptime(x, '%b %d, %Y %I:%M %p')"),
        (
            ["1 Nov 2026", "", "n/a", "1 June 2026"],
            "coalesce(try_strptime(x, '%d %b %Y'), try_strptime(x, '%d %B %Y'))",
        ),
        (["2026-02-10T00:20:00+09:00", "2026-02-09T23:20:00Z"], "TRY_CAST(x AS TIMESTAMPTZ)"),
        (["2026-02-10 00:20+05:30", "2026-02-09T23:20:00.5-02"], "TRY_CAST(x AS TIMESTAMPTZ)"),
        (["2026-11-30 10:00:00 +0100", "2026-11-30 09:30:00 +0000"], "try_strptime(x, '%Y-%m-%d %H:%M:%S %z')"),
    ],
)
def test_the_error_about_texts_as_numbers_has_a_conversion_that_works(texts: list[str], conversion: str) -> None:
    table = [{"x": text} for text in texts]
    message = failure("SELECT max(x) AS top FROM t", t=table).message
    assert conversion in message
    written = (
        message.partition("Write ")[2].partition(" in place of")[0].partition(" or TRY")[0].partition(" or try")[0]
    )
    converted = rows("SELECT count(x) AS n FROM t".replace("x", written), t=table)
    assert converted == [{"n": sum(text not in ("", "-", "n/a") for text in texts)}]


@pytest.mark.parametrize(
    "texts",
    [
        ["53111", "10115"],
        ["007", "12"],
        ["2026-01-02", "2025-12-31"],
        ["2026-02-10T00:20:00Z", "2026-02-09T23:20:00+00:00", "2026-02-09T23:19:00+00"],
        ["2026-02-10T00:20:00+09:00", "2026-02-09T23:20:00"],
        ["10.0.0.1", "9.0.0.1"],
        ["1.9.0", "1.8.5"],
        ["9 mm", "1.2 m"],
        ["1m30s", "2m05s"],
        ["09:05", "10:30"],
        ["12.345", "1.234.567"],
        ["1.10", "1.9-x"],
        ["Room 9", "Room 10"],
        ["9 of 10", "8 of 10"],
        ["12 kg", "90 kg"],
        ["A1", "A12"],
        ["30/Nov/2026:10:00:00 +0100", "30/Nov/2026:09:30:00 +0100"],
        ["9 Nov 2026", "10 Nov 2026", "soon"],
        ["May 9", "Plan 10"],
    ],
    ids=[
        *(
            "postal codes",
            "leading zeros",
            "ISO dates",
            "one zone",
            "no zone",
            "addresses",
            "versions",
            "units",
            "durations of one width",
            "times of one width",
            "grouped digits",
            "two numbers",
            "rooms",
            "parts of one width",
            "one width",
            "names",
        ),
        *("one day", "not all dates", "not the first"),
    ],
)
def test_other_texts_are_compared_as_texts(texts: list[str]) -> None:
    assert rows("SELECT max(x) AS top FROM t", t=[{"x": text} for text in texts]) == [{"top": max(texts)}]


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["900B", "1.5 kB", "1,200 kB", "0"], [900, 1500, 1_200_000, 0]),
        (["512Mi", "2Gi"], [1 << 29, 1 << 31]),
        (["4.0K", "1.2M", "12"], [4000, 1_200_000, 12]),
        (["9 ms", "1.2s", "1m30s"], [0.009, 1.2, 90]),
        (["350\u00b5s", "2 hours 5 mins", "1.5 days"], [0.00035, 7500, 129_600]),
        (["3:45", "12:10", "1:02:03.5"], [225, 730, 3723.5]),
        (["10 days ago", "3 weeks ago", "1 month ago"], [864_000, 1_814_400, 2_592_000]),
        (["€950k", "€1.2m", "€12"], [950_000, 1_200_000, 12]),
        (["$850M", "$1.2B", "-$2 trillion", "-"], [850e6, 1.2e9, -2e12, None]),
        (["12 (5m ago)", "103 (2d ago)", "0"], [12, 103, 0]),
        (["#9", "#10"], [9, 10]),
        (["9 of 10", "10 of 10"], [9, 10]),
        (["9+", "1st", "~100"], [9, 1, 100]),
    ],
)
def test_the_conversion_of_sizes_and_durations_counts_them(texts: list[str], numbers: list[float | None]) -> None:
    table = [{"x": text} for text in texts]
    message = failure("SELECT x FROM t ORDER BY x", t=table).message
    written = message.partition("Write ")[2].partition(" in place of")[0]
    found = rows("SELECT x AS n FROM t".replace("x", written, 1), t=table)
    assert [row["n"] for row in found] == numbers


def test_millions_beside_billions_or_bytes_have_two_conversions() -> None:
    message = failure("SELECT max(x) FROM t", t=[{"x": "850M"}, {"x": "1.2B"}]).message
    first, second = message.partition("Write ")[2].partition(" in place of")[0].split(" or ")
    for written, top in ((first, 1.2e9), (second, 850e6)):
        assert rows("SELECT max(y) AS top FROM t".replace("y", written), t=[{"x": "850M"}, {"x": "1.2B"}]) == [
            {"top": top}
        ]


MANIFESTS = "\n---\n".join(
    f"kind: Deployment\nmetadata: {{name: app-{number}}}\nspec:\n  replicas: {number}" for number in range(3)
)
GUIDE = """\
# Cities

| City | People |
|---|---|
| Bonn | 330000 |
| Köln | 1080000 |

| City of birth | Poet |
|---|---|
| Berlin | Ada |
"""
SUITE = (
    "<suite>" + "".join(f'<case name="t{at}"><failure/></case>\n<case name="p{at}"/>\n' for at in range(4)) + "</suite>"
)


@pytest.mark.parametrize(
    ("text", "sql", "found"),
    [
        (MANIFESTS, "SELECT metadata.name AS v FROM t WHERE spec.replicas > 1", ["app-2"]),
        (MANIFESTS, "SELECT count(*) AS v FROM t WHERE line LIKE 'kind%'", [3]),
        (SUITE, "SELECT count(*) AS v FROM t WHERE failure IS NOT NULL", [4]),
        ("[[package]]\nname = 'a'\n\n[[package]]\nname = 'b'\n", "SELECT name AS v FROM t ORDER BY 1", ["a", "b"]),
    ],
)
def test_a_text_in_yaml_toml_or_xml_has_the_columns_that_a_query_names(text: str, sql: str, found: list[Any]) -> None:
    assert [row["v"] for row in rows(sql, t=text)] == found


@pytest.mark.parametrize(
    ("text", "n"),
    [
        (MANIFESTS, 3),
        ("- a: 1\n  b: 2\n- a: 3\n  b: 4\n", 2),
        (SUITE, 8),
        ("City | People\n--- | ---\n" + "Bonn | 1\n" * 20 + "\nCode | Name\n--- | ---\n1 | one\n", 20),
        (GUIDE, 10),
        ("a: 1\nb:\n  c: 2\n", 3),
        ("--- a\n+++ b\n-x\n+y\n", 4),
    ],
    ids=["documents of YAML", "list", "XML", "main table", "small tables", "object", "diff"],
)
def test_a_query_that_only_counts_counts_the_rows_in_a_text(text: str, n: int) -> None:
    assert rows("SELECT count(*) AS n FROM t", t=text) == [{"n": n}]
    assert rows("SELECT count(line) AS n FROM t", t=text) == [{"n": len(text.splitlines())}]


SITE = (
    "<h1>Cities</h1><table><tr><th>City<th>People</tr>\n<tr><td>Bonn<td>330000</tr><tr><td>Köln<td>1080000</tr></table>"
)


@pytest.mark.parametrize("text", [GUIDE, SITE], ids=["Markdown", "HTML"])
def test_a_query_reads_the_table_of_a_page_that_has_its_columns(text: str) -> None:
    assert rows("SELECT City, People FROM t WHERE People > 400000", t=text) == [{"City": "Köln", "People": 1080000}]
    assert "t(City VARCHAR, People BIGINT)" in failure("SELECT City, Mayor FROM t", t=text).message
    message = failure("SELECT Mayor FROM t", t=text).message
    assert '"t" is a text with tables. Name columns of only one of them: (City, People)' in message
    assert rows("SELECT count(*) AS n FROM t WHERE line LIKE '%City%'", t=text)[0]["n"] >= 1


def test_tables_of_two_texts_are_joined_and_errors_name_their_columns() -> None:
    owners = "- name: app-1\n  owner: Ada\n- name: app-2\n  owner: Bo\n"
    sql = "SELECT owner FROM t JOIN o ON t.metadata.name = o.name WHERE spec.replicas = 2"
    assert rows(sql, t=MANIFESTS, o=owners) == [{"owner": "Bo"}]
    assert "o(name VARCHAR, owner VARCHAR)" in failure("SELECT team FROM o", o=owners).message
    assert "o(line VARCHAR)" in failure("SELECT team FROM o WHERE line LIKE '%Ada%'", o=owners).message
    message = failure("SELECT team FROM t", t=SUITE).message
    assert 'The rows of "t" are FROM (SELECT unnest("suite"."case", max_depth := 2) FROM "t").' in message
    assert "t(line VARCHAR)" in failure("SELECT team FROM t", t="Only prose.\nWith: a colon.\nAnd more.").message


def test_a_column_of_numbers_is_not_taken_for_texts_of_another_table() -> None:
    tables: dict[str, Any] = {
        "n": [{"id": 1, "x": 9.5, "o": {"x": 2}}],
        "t": [{"id": 1, "x": "9.5"}, {"id": 2, "x": "10"}],
    }
    assert rows("SELECT max(a.x) AS top FROM n a JOIN t USING (id)", **tables) == [{"top": 9.5}]
    assert rows("SELECT max(o.x) AS top FROM n JOIN t USING (id)", **tables) == [{"top": 2}]
    assert rows("SELECT max(N.x) AS top FROM n", **tables) == [{"top": 9.5}]
    assert "b.x is text with numbers" in failure("SELECT max(b.x) FROM n JOIN t b USING (id)", **tables).message


def test_the_conversion_of_a_column_named_by_a_keyword_is_quoted() -> None:
    table = [{"when": "9.50", "end": "2 May 2026"}, {"when": "10.20", "end": "10 Apr 2026"}]
    assert (
        'Write TRY_CAST("when" AS DOUBLE) in place of "when"' in failure('SELECT max("when") FROM t', t=table).message
    )
    assert """try_strptime(t."end", '%d %b %Y')""" in failure('SELECT max(t."end") FROM t', t=table).message


def test_times_of_several_zones_are_compared_as_times() -> None:
    table = [{"x": "2026-02-10T00:20:00+09:00"}, {"x": "2026-02-09T23:20:00Z"}]
    for sql in (
        "SELECT x FROM t ORDER BY x",
        "SELECT max(x::TIMESTAMP) FROM t",
        "SELECT x FROM t WHERE x > '2026-02-10'",
    ):
        assert 'x is text with times of several zones such as "2026-02-' in failure(sql, t=table).message
    assert rows("SELECT x FROM t ORDER BY x::TIMESTAMPTZ DESC LIMIT 1", t=table) == table[1:]
    assert rows("SELECT x FROM t WHERE TRY_CAST(x AS TIMESTAMPTZ) >= DATE '2026-02-10'", t=table) == []


CELLS_OF_NOTES = "id,note,x\n" + '1,,a\n2,"",b\n3,c,c\n' * 20


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) AS n FROM t WHERE note = ''",
        "SELECT count(*) AS n FROM t AS o WHERE '' = o.Note AND id > 0",
        "SELECT count(*) FILTER (note = '') AS n FROM t",
    ],
)
def test_empty_cells_are_not_compared_with_an_empty_text(sql: str) -> None:
    message = failure(sql, t=CELLS_OF_NOTES).message
    advice = re.fullmatch(r"Empty cells are NULL: write (.*) in place of (.*)\.", message)
    assert advice
    assert rows("SELECT count(*) AS n FROM t WHERE x".replace("x", advice[1]), t=CELLS_OF_NOTES) == [{"n": 40}]


@pytest.mark.parametrize(
    ("sql", "n"),
    [
        ("SELECT count(*) AS n FROM t WHERE note = '' OR note IS NULL", 40),
        ("SELECT count(*) AS n FROM t WHERE note <> ''", 20),
        ("SELECT count(*) AS n FROM t WHERE coalesce(note, '') = ''", 40),
        ("SELECT count(*) AS n FROM t WHERE x = ''", 0),
        ("SELECT count(*) AS n FROM o WHERE note = ''", 1),
        ("SELECT count(*) AS n FROM t JOIN o USING (id) WHERE o.note = ''", 20),
    ],
)
def test_other_comparisons_with_an_empty_text_have_a_result(sql: str, n: int) -> None:
    objects = [{"id": 1, "note": ""}, {"id": 2, "note": None}]
    assert rows(sql, t=CELLS_OF_NOTES, o=objects) == [{"n": n}]


def test_dates_of_mails_with_several_zones_are_compared_as_times() -> None:
    dates = ["Fri, 18 Dec 2026 10:00:00 GMT", "Mon, 30 Nov 2026 10:00:00 +0100", "Fri, 18 Dec 2026 09:00:00 -0500"]
    message = failure("SELECT x FROM t ORDER BY x", t=[{"x": date} for date in dates]).message
    written = message.partition("Write ")[2].partition(" in place of")[0]
    found = rows("SELECT x FROM t ORDER BY at".replace("at", written), t=[{"x": date} for date in dates])
    assert [row["x"] for row in found] == [dates[1], dates[0], dates[2]]
    assert "x is text with dates" in failure("SELECT month(x) FROM t", t=[{"x": date} for date in dates]).message


def test_texts_with_plain_numbers_are_sorted_as_texts_on_request() -> None:
    table = [{"x": "1.9"}, {"x": "10.2"}]
    assert "To compare the texts, write concat(x)." in failure("SELECT x FROM t ORDER BY x", t=table).message
    assert rows("SELECT x FROM t ORDER BY concat(x)", t=table) == table
    assert rows("SELECT sum(x::DOUBLE) AS s FROM t", t=table) == [{"s": 12.1}]


TOOK = "".join(
    f"10:0{at} saved item {at} in {ms} ms with {size} sent\n" for at, ms, size in ((1, 9, "2 kB"), (2, 120, "1 MB"))
)


@pytest.mark.parametrize(
    "sql",
    [
        r"SELECT max(regexp_extract(line, 'in (\d+) ms', 1)) FROM t",
        r"SELECT regexp_extract(line, 'in (\d{1,9}) ms', 1) AS ms FROM t ORDER BY ms DESC",
        r"SELECT line FROM t WHERE nullif(regexp_extract(t.line, '(\d+) ms', 1), '') > '50'",
        "WITH s AS (SELECT trim(split_part(line, ' ', 6)) AS ms FROM t) SELECT max(ms) FROM s",
        "SELECT string_split(line, ' ')[6] AS ms FROM t ORDER BY 1",
        "SELECT max(array_extract(string_split(line, ' '), 6)) FROM t",
        "SELECT max(left(substring(line, 23), -17)) FROM t",
    ],
)
def test_parts_of_lines_with_numbers_are_not_compared_as_texts(sql: str) -> None:
    message = failure(sql, t=f"started\n{TOOK}" if "regexp" in sql else TOOK).message
    assert 'is text with numbers such as "9"' in message
    column = message.partition(" is text with ")[0]
    assert f"Write TRY_CAST({column} AS DOUBLE) in place of {column}, " in message
    named = "split_part(line, ' ', 6)" if column == "ms" else column
    assert rows("SELECT max(TRY_CAST(ms AS DOUBLE)) AS top FROM t".replace("ms", named, 1), t=TOOK) == [{"top": 120}]


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        (r"SELECT max(regexp_extract(line, 'in (\d+) ms', 1)::INT) AS v FROM t", 120),
        (r"SELECT max(nullif(regexp_extract(line, '^(\d\d:\d\d)', 1), '')) AS v FROM t", "10:02"),
        (r"SELECT max(regexp_extract(line, 'item (\d)', 1)) AS v FROM t", "2"),
        ("SELECT max(concat(split_part(line, ' ', 6))) AS v FROM t", "9"),
        ("SELECT max(split_part(line, ' ', length('ab'))) AS v FROM t", "saved"),
        ("SELECT max(string_split(line, ' '))[2] AS v FROM t", "saved"),
        (r"SELECT max(regexp_extract(line, '(\d+)', ['a'])) AS v FROM t", {"a": "10"}),
    ],
)
def test_other_parts_of_lines_are_compared(sql: str, found: object) -> None:
    assert rows(sql, t=TOOK)[0]["v"] == found


def test_parts_of_lines_with_sizes_name_the_conversion() -> None:
    message = failure("SELECT line FROM t ORDER BY regexp_extract(line, 'with (.*) sent', 1)", t=TOOK).message
    assert "regexp_extract(line, 'with (.*) sent', 1) is text with sizes such as" in message
    assert "* pow(1000, strpos(' KMGTPE'" in message


PRICED = [{"id": n, "note": {"price": p, "by": {"n": n}}, "x": n} for n, p in ((1, "98.5"), (2, "250"), (3, ""))]


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("SELECT max(note->>'price') FROM t", "note->>'price'"),
        ("SELECT max(json_extract_string(note, 'price')) FROM t", "note->>'price'"),
        ("SELECT max(note.price) FROM t", "note.price"),
        ("SELECT id FROM t AS o ORDER BY o.note.price DESC", "o.note.price"),
        ("SELECT id, note->>'price' AS top FROM t ORDER BY top DESC", "top"),
        ("SELECT note->'by'->>'n' AS n FROM t WHERE note->>'price' > '9'", "note->>'price'"),
    ],
)
def test_texts_with_numbers_within_objects_are_not_compared_as_texts(sql: str, named: str) -> None:
    message = failure(sql, t=PRICED).message
    assert f'{named} is text with numbers such as "98.5"' in message
    assert f"Write TRY_CAST({named} AS DOUBLE) in place of {named}" in message


@pytest.mark.parametrize("sql", ["SELECT max(note->>'price') FROM t", "SELECT note->>'price' AS p FROM t ORDER BY p"])
def test_texts_with_numbers_within_json_are_not_compared_as_texts(sql: str) -> None:
    table = [{**row, "note": json.dumps(row["note"])} for row in PRICED]
    assert 'is text with numbers such as "98.5"' in failure(sql, t=table).message


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT max((note->>'price')::DOUBLE) AS v FROM t WHERE id < 3", 250.0),
        ("SELECT max(note.by.n) AS v FROM t", 3),
        ("SELECT max(note.by->>'n') AS v FROM t", "3"),
        ("SELECT max(x) AS v FROM (SELECT length(note->>'price') AS x FROM t)", 4),
        ("SELECT max(concat(note->>'price')) AS v FROM t", "98.5"),
        ("SELECT list_filter([1, 2], lambda y: y > 1)[1] AS v FROM t LIMIT 1", 2),
        ("SELECT list_filter([1, 2], y -> y > 1)[1] AS v FROM t LIMIT 1", 2),
    ],
)
def test_other_values_within_objects_are_compared(sql: str, found: object) -> None:
    assert rows(sql, t=PRICED)[0]["v"] == found


def test_numbers_in_texts_within_objects_of_two_tables_are_found() -> None:
    sql = "SELECT max(note.price) FROM (SELECT * FROM a UNION ALL SELECT * FROM b)"
    assert "note.price is text with numbers" in failure(sql, a=PRICED, b=PRICED[:1]).message
    numbers = [{"note": {"price": 9}}]
    assert "note.price is text" not in failure(sql, a=PRICED, b=numbers).message


def test_texts_that_are_not_json_do_not_prevent_a_query_of_the_others() -> None:
    table = [{"note": '{"price": "9.5"}'}, {"note": "none"}, {"note": '{"price": "a"}'}]
    assert rows("SELECT max(note->>'price') AS v FROM t WHERE note LIKE '{%'", t=table) == [{"v": "a"}]


NOTED = [{"id": number, "note": json.dumps({"gift": number, "tags": ["a"]})} for number in range(9)]


@pytest.mark.parametrize("sql", ["SELECT gift FROM t", "SELECT note.gift FROM t", "SELECT t.gift FROM t"])
def test_the_error_of_a_key_in_texts_with_json_names_their_column(sql: str) -> None:
    assert '"note" is text with JSON: write "note"->>\'gift\'. Tables: ' in failure(sql, t=NOTED).message
    assert rows("SELECT sum((\"note\"->>'gift')::INT) AS s FROM t", t=NOTED) == [{"s": 36}]


def test_the_error_of_a_key_in_the_json_of_one_text_names_its_column() -> None:
    wrapped = {"status": "ok", "content": json.dumps(NOTED)}
    expected = '"t" has JSON in its column "content": add the key to its path in `inputs`. Tables: '
    for sql in ("SELECT sum(id) FROM t", "SELECT content.id FROM t"):
        assert expected in failure(sql, t=wrapped).message
    assert "has JSON" not in failure("SELECT sum(id) FROM t", t=json.dumps(wrapped)).message
    assert "has JSON" not in failure("SELECT price FROM t", t=NOTED).message
    assert "has JSON" not in failure("SELECT gift FROM t", t=[{"note": None}]).message


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT sum(response.content.size) AS v FROM t", 30),
        ("SELECT sum(t.response.content.size) AS v FROM t", 30),
        ("SELECT l.name AS v FROM t, unnest(response.labels.nodes) AS u(l) LIMIT 1", "a"),
    ],
)
def test_deep_fields_of_the_rows_in_an_object_are_found(sql: str, found: object) -> None:
    entry = {"time": 9.5, "response": {"content": {"size": 10}, "labels": {"nodes": [{"name": "a"}]}}}
    assert rows(sql, t={"log": {"version": "1.2", "entries": [entry] * 3}}) == [{"v": found}]
    message = failure(sql.replace("response", "request"), t={"log": {"entries": [entry] * 3}}).message
    assert '"t" has rows in "log/entries"' in message


def test_the_error_of_a_wrong_type_is_that_of_the_rows_in_an_object() -> None:
    items = "".join(f"<item><title>{n}</title><tag>a</tag>{'<tag>b</tag>' * (n % 2)}</item>\n" for n in range(4))
    message = failure("SELECT title FROM t WHERE list_contains(tag, 'b')", t=f"<feed>{items}</feed>").message
    assert "list_contains(JSON" in message
    assert message.endswith("Tables: t(title VARCHAR, tag JSON).")
    message = failure(
        "SELECT title FROM t WHERE year(ts) = 2026", t={"page": 1, "rows": [{"title": "a", "ts": 1}] * 2}
    ).message
    assert message.endswith("Tables: t(title VARCHAR, ts BIGINT).")


def test_the_rows_of_a_long_text_in_an_object_are_named() -> None:
    answer = {"status": 200, "url": "https://example.org", "body": "id;name\n" + "1;Ada\n" * 20}
    place = 'a text of 21 lines in its column "body": add the key to its path in `inputs`.'
    message = failure("SELECT count(*) FROM t", t=answer).message
    assert message == f'count(*) is 1, because "t" is one object with {place}'
    for sql in ("SELECT name FROM t", 'SELECT "name" FROM t', "SELECT 1 FROM t WHERE line LIKE '%Ada%'"):
        assert f'"t" has {place} Tables: ' in failure(sql, t=answer).message
    for other in ([answer, answer], {**answer, "body": "one\nline"}, {"status": 200}):
        assert rows("SELECT count(*) AS n FROM t", t=other) == [{"n": len(other) if isinstance(other, list) else 1}]
        assert "a text of" not in failure("SELECT name FROM t", t=other).message
    assert "a text of" not in failure("SELECT name FROM t", t=json.dumps(answer)).message


def test_the_error_of_a_text_that_is_no_number_names_try_cast() -> None:
    message = failure("SELECT sum(x::INT) FROM t", t=[{"x": "9"}, {"x": "soon"}]).message
    assert "Could not convert string 'soon' to INT32" in message
    assert message.endswith(". TRY_CAST returns NULL for texts that it cannot convert.")


def test_the_error_of_an_array_with_one_item_of_rows_names_the_item() -> None:
    listed = ["Found 2:", [{"id": 1}, {"id": 2}], "More: page 2"]
    assert (
        '"t" is an array of different values, of which only /1 has rows'
        in failure("SELECT id FROM t", t=listed).message
    )
    for other in ([*listed, {"id": 3}], ["a", 1, None], json.dumps(listed)):
        assert "has rows" not in failure("SELECT id FROM t", t=other).message


PAGES = [f"Page {page}\n" + "".join(f"{row} Customer {row % 7}\n" for row in range(30)) for page in range(5)]


@pytest.mark.parametrize("value", [PAGES, [{"pages": 5, "rows": [{"id": 1}]}, *PAGES], ["Five pages:", 5, *PAGES]])
def test_an_error_names_the_lines_of_the_texts_in_an_array(value: object) -> None:
    message = failure("SELECT count(*) FROM t WHERE line LIKE '%Customer 3%'", t=value).message
    lines = re.search(r'"t" has texts of several lines\. Their lines are (FROM \(.*\))\. Tables: ', message)
    assert lines
    corrected = f"SELECT count(*) AS n {lines[1]} WHERE line LIKE '%Customer 3%'"
    assert rows(corrected, t=value) == [{"n": 20}]


def test_an_array_of_short_texts_has_no_lines_in_its_error() -> None:
    for value in (["a", "b"], [1, "a", {"b": "\n"}], [{"text": "a\nb"}]):
        assert "several lines" not in failure("SELECT count(*) FROM t WHERE line = 'a'", t=value).message
    assert "several lines" not in failure("SELECT count(*) FROM t WHERE page = 'a'", t=PAGES).message

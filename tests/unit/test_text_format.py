"""The format of a tool's text, guessed from its beginning."""

import json
import re

import pytest

from mcp_mirror.core.texts.formats import (
    Edges,
    find_delimiter,
    find_format,
    find_uneven_delimiter,
    has_columns,
    has_false_columns,
    measure_heading,
    read_edges,
)
from mcp_mirror.core.texts.number_tables import find_number_table
from mcp_mirror.core.texts.pipe_tables import find_aligned_table, find_pipe_table, find_record_table
from mcp_mirror.types import Span

LOG = "".join(f"{n:05} {'ERROR disk' if n % 3 else 'info ok'} request took {n} ms\n" for n in range(50))
STAMPED = "".join(f"2026-11-21 10:00:{n:02} worker-{n} took the job\n" for n in range(30))
CODE = "import os\n\n\ndef main(name):\n    value = os.environ[name]\n    return value\n"
SCRIPT = 'const a = 1;\nlet b = a + 1;\nfunction add(x, y) {\n  return x + y;\n}\nconsole.log("x");\n'
PROSE = "It was warm, and the sun shone.\nNobody spoke, for once.\nThe end, they said, comes later.\n"
MARKDOWN = "# Title\n\nSome **bold** words and a [link](https://example.org).\n\n- one\n- two\n\n```sh\nls\n```\n"
DIFF = "diff --git a/x b/x\nindex 1..2 100644\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-a\n+b\n"
PARAGRAPHS = "".join(f"Paragraph {n} is about cells, and it ends here.\n\n" for n in range(9))
PYTHON_LOG = "".join(f"2026-11-21 10:00:{n:02},{n:03} - root - INFO - took job {n}\n" for n in range(30))
SERVER_LOG = "".join(f"2026/11/21 10:00:{n:02} [error] 7#7: open() failed, client: 192.0.2.{n}\n" for n in range(30))
ACCESS_LOG = "".join(
    f'192.0.2.{n} - - [02/Jan/2026:10:00:00 +0000] "GET /a?at={n},2 HTTP/1.1" 200\n' for n in range(30)
)
STATEMENTS = "INSERT INTO orders VALUES (1, 'a');\n" * 9
SHOWN = "commit 3b277dd\nAuthor: A\n\n    words\n\ndiff --git a/x b/x\n--- a/x\n"


def whole(text: str) -> Edges:
    return Edges(text, text, is_whole=True)


def read(text: str) -> Edges:
    blob = json.dumps(text).encode()
    return read_edges(blob, Span(0, len(blob)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id,name,age\n1,Ann,3\n2,Bob,4\n", "CSV, 3 columns"),
        ('id;name\n1;"a;b"\n2;c\n', "CSV, 2 columns"),
        ("PID: 1, Command: a\nPID: 2, Command: b\nPID: 3, Command: c\n", ""),
        ('"a: 1","d: 2\nb\nc"\n', "CSV, 2 columns"),
        ("id, name: all\n1, a: b\n2, c\n", "CSV, 2 columns"),
        ("a\tb\n1\t2\n3\t4\n", "TSV, 2 columns"),
        ("     9\tdef f():\n    10\t    pass\n    11\t\n    12\t# end\n", ""),
        ("1\tdef f():\n     2\t    pass\n     3\t# end\n", ""),
        (" 9\ta\n11\tb\n12\tc\n", "TSV, 2 columns"),
        (" 9\ta\n10\tb\n x\tc\n", "TSV, 2 columns"),
        ("1\ta\n2\tb\n3\tc\n", "TSV, 2 columns"),
        ('a,"b\n1,2\n3,4\n', ""),
        ('a,b\n1,2\n3,4\n5,"cut\nhere', "CSV, 2 columns"),
        ('a,b\n1,2\n5,"cut\n3,4\n', ""),
        ("id,note,n\n1,a\x0bb\x0c,2\n3,c\u2028d\x85,4\n", "CSV, 3 columns"),
        ("id,note\r1,a\r2,b\r", "CSV, 2 columns"),
        ("a,b\n1,2\n", ""),
        ("[Reading 3 lines]\n\nid,name\n1,a\n2,b\n", "CSV, 2 columns after a heading"),
        ("Started (PID 7)\nInitial output:\nid,name\n1,a\n2,b\n", "CSV, 2 columns after a heading"),
        ("Output: \r\nid\tname\r\n1\ta\r\n2\tb\r\n", "TSV, 2 columns after a heading"),
        ("Done (1 s)\n\nOutput:\nid,name\n1,a\n2,b\n", "CSV, 2 columns after a heading"),
        ('Done (1 s)\n\nOutput:\n{"a": 1}\n{"a": 2}\n', "JSON lines after a heading"),
        ("Done:\n\n--- Output ---\nid,name\n1,a\n2,b\n", "CSV, 2 columns after a heading"),
        ("Rows\n====\nid,name\n1,a\n2,b\n", "CSV, 2 columns after a heading"),
        ("Of 1, 2\n\nRows\n====\nid,name\n1,a\n2,b\n", "CSV, 2 columns after a heading"),
        ("id,name\n-------\n1,a\n2,b\n3,c\n", ""),
        ("3 rows\nid | name\n---------\n1 | a\n2 | b\n3 | c\n", ""),
        ("Started (PID 7)\nid,name\n1,a\n2,b\n", ""),
        ("Found 2 rows.\nid,name\n1,a\n2,b\n", "CSV, 2 columns after a heading"),
        ("Found 2 rows.\r\nid;name\r\n1;a\r\n2;b\r\n", "CSV, 2 columns after a heading"),
        ("It was warm.\nAda, Anne\nByron, Anne\nKing, William\n", ""),
        ("2 rows, page 1\nAll of them\nid\tname\n1\ta\n2\tb\n", "TSV, 2 columns after a heading"),
        ("On branch main\n\tmodified: a\n\tmodified: b\n\tmodified: c\n", ""),
        ("Changed 3 files.\nM\ta.py\nA\tb.py\nD\tc.py\n", ""),
        ("Sent 3 times.\nAda,a@example.org\nBob,b@example.org\nEve,e@example.org\n", ""),
        ("The file a.txt\n1\tone\n2\ttwo\n3\tthree\n", ""),
        ("Authors:\nLovelace, Ada\nByron, Anne\nKing, William\n", ""),
        ("id,name\n1,a\n2,b\n\n(2 rows)\n", "CSV, 2 columns"),
        ("id\tname\r\n1\ta\r\n2\tb\r\n \r\nTotal: 2\r\nNext: b", "TSV, 2 columns"),
        ("id,name\n1,a\n2,b\n\n" + "more\n" * 6, ""),
        ("One, two.\nThree, four.\nFive, six.\n\nEnd", ""),
        ("1\n2\n3\n4\n5\n6\n\nid,name\n1,a\n2,b\n", ""),
        ("| id | name |\n|---|:-:|\n| 1 | a |\n", "table, 2 columns"),
        ("| id |\n|---|\n| 1 |\n", "table, 1 column"),
        ("Rows:\n\n id | name \n----+-----\n 1 | a\n(1 row)\n", "table, 2 columns"),
        ("+----+\n| id |\n+----+\n|  1 |\n+----+\n", "table, 1 column"),
        ("┌────┬──────┐\n│ id │ name │\n├────┼──────┤\n│  1 │ a    │\n└────┴──────┘\n", "table, 2 columns"),
        ("┌────┬───┐\n│ a │ b │\n│ int8 │ text │\n├────┼───┤\n│ 1 │ 2 │\n│ 3 │ 4 │\n└────┴───┘\n", "table, 2 columns"),
        (
            "┌───┬───┐\n│ a │ b │\n├───┼───┤\n│ 1 │ 2 │\n│ 3 │ 4 │\n├───┴───┤\n│ 2 rows│\n└───────┘\n",
            "table, 2 columns",
        ),
        ("╭────╮\n│ hi │\n│ Bo │\n╰────╯\n", ""),
        ("+----+\n| hi |\n| Bo |\n+----+\n", ""),
        ("/lib\n├── a\n│   ├── b\n│   └── c\n└── d\n", ""),
        ("NAME    LAST SEEN   READY\nweb-1   5m          1/1\ndb 2    60s\n", "table, 3 columns"),
        ("UNIT   ACTIVE SUB\na.b    active running\nc.d    failed failed\n", "table, 3 columns"),
        ("Output:\nNAME   READY\nweb    1/1\ndb     0/1\n\n2 rows\n", "table, 2 columns after a heading"),
        ("Package  Version\n-------- -------\nattrs    26.1\nanyio    4.16\n", "table, 2 columns"),
        ("  id  name\n----  ------\n   1  Ann\n  10  Bob B\n", "table, 2 columns"),
        ("NAME   READY\nweb    1/1\nlonger 0/1\ndatabase 1/1\n", ""),
        ("USER   PID %CPU\nroot    12  0.1\nroot     7  0.0\n", "table, 3 columns"),
        ("NAME   SIZE\na         5\nb        10\n", ""),
        ("NAME   READY\nweb    1/1\n", ""),
        ("NAME   READY\nweb    1/1\n\n\ndb\t0/1\n", ""),
        ("ACME   NYSE\nEMCA   NYSE\nCAME   LSE\n", ""),
        ("GET    /1\nput    /2\nget    /3\n", ""),
        ("Name   Ready\nweb    1/1\ndb     0/1\n", ""),
        ("NAME\nweb\ndb\n", ""),
        ("Name   n\n----   --\npwsh 1234\nbash   7\n", ""),
        ("a|b\n-|-\n1|2|3\n", ""),
        ("a|b\n-|-|-\n1|2\n", ""),
        ("a|b\n-|--x\n1|2\n", "CSV, 2 columns"),
        ("|a|b|\n|-|-|\n|1|2|\n|-|-|\n", "CSV, 4 columns"),
        ("a|b\n1|2\n3|4\n", "CSV, 2 columns"),
        ("one\ntwo\nthree\nfour\n\n|a|b|\n|-|-|\n", ""),
        ("[{'id': 1, 'name': None}, {'id': 2, 'name': 'b'}]", "Python literal"),
        ('[{"a": NaN, "b": 1}]', "JSON with NaN"),
        ("[('a', 1), ('b', 2)]", "Python literal"),
        ("['a', 'b']", "Python literal"),
        ("{'id': 1, 'name': None}\n{'id': 2, 'name': 'b'}\n", ""),
        ("(1, 'a')\n(2, 'b')\n(3, 'c')\n", ""),
        ("[{'id': 1,\n  'name': None},\n {'id': 2, 'name': 'b'}]\n", "Python literal"),
        ("[INFO] 'a', started", ""),
        ("['a', 'b']\nare the first paragraphs.\n", ""),
        ("# Rows\n\n- **one**\n\n['a', 'b']\n", "Markdown"),
        (PROSE, ""),
        (PARAGRAPHS, ""),
        ("One said no; another yes?\nOne went; another stayed.\nOne slept; another did not.\n", ""),
        ("The long way home led past the mill, which had stood empty for years\n" * 4, ""),
        ("Report\n\n# One\n\nIt was late.\n\n# Two\n\nIt was cold.\n", "Markdown"),
        ("<!-- Slide 1 -->\n# One\nIt was late.\n\n<!-- Slide 2 -->\n# Two\nIt was cold.\n", "Markdown"),
        ("# One\nIt was late.\n\n# Two\nIt was cold.\n", ""),
        ("# One\n\nhost = 1\n\n# Two\n\nport = 2\nname = 3\n", "source code"),
        ("1.\tThe owners agree to it.\n\n2.\tThey meet in May again.\n\n" * 3, ""),
        ("Minutes\n\n(a)\tWe paint the hall.\n(b)\tWe sell the old car.\n(c)\tWe rest for a week.\n", ""),
        ("\tIt was late in the year.\n\tThe house was cold, and empty.\n" * 3, ""),
        ("\u2022\tIt was late that year.\n\u2022\tThe house was cold.\n- \tAnd it was empty.\n", ""),
        ("1.\tAda\n2.\tBo\n3.\tCy\n", "TSV, 2 columns"),
        ("Ann:\tHow are you all today?\nBo:\tWe are fine, thank you.\nAnn:\tThen let us begin.\n", "TSV, 2 columns"),
        ("1, Buy milk.\n2, Sell it.\n3, Rest now.\n", "CSV, 2 columns"),
        ("id, task\n1, Buy milk.\n2, Sell it.\n", "CSV, 2 columns"),
        ("Here they are, sorted:\nBonn,3\nRome,4\n", "CSV, 2 columns"),
        ("Lovelace, Ada\nByron, Anne\nKing, William\n", "CSV, 2 columns"),
        ("- Buy milk, today\n- Sell it, later\n- Rest, now\n", ""),
        ("1. Buy milk, today\n2. Sell it, later\n3. Rest, now\n", ""),
        ("- one,1\n- two,2\n- three,3\n", "CSV, 2 columns"),
        ("It was late in the year | It was cold in the house\n" * 3, "CSV, 2 columns"),
        (PYTHON_LOG, "log"),
        (SERVER_LOG, "log"),
        (ACCESS_LOG, "log"),
        ("[Sun Dec 04 04:47:44 2026] [notice] child init 1 2\n" * 3, "log"),
        (
            "# C, mm\n# hourly\ntime,c,mm\n2026-03-01 00:10,5,0\n2026-03-01 00:20,6,0\n",
            "CSV, 3 columns after a heading",
        ),
        ("# started\n2026-03-01 00:10 one\n2026-03-01 00:20 two\n", "log"),
        ("; main\n[server]\nhost = a\nport = 1\n[cache]\nhost = b\n", ""),
        ("[[package]]\nname = 'a'\nversion = '1'\n", ""),
        ("@article{key0,\n  author = {Ada},\n  year = {1843},\n}\n", ""),
        ("[Serializable]\npublic class A {\n  private int a = 1;\n}\n", "source code"),
        ("[a]\nx = f(\ny = 2\nz = 3\n", "source code"),
        (" src/a.py     |  12 +++--\n src/b.py     |   2 +-\n docs/c.webp  | Bin 0 -> 512 bytes\n", ""),
        ("a.py | 12\nb.py | 3\nc.py | 4\n", "CSV, 2 columns"),
        ('name,size\n"1/2"" pipe","3"" x"\n"1/4"" pipe","5"" x"\n', "CSV, 2 columns"),
        ("10:00:01,500,ok\n10:00:02,501,ok\n10:00:03,502,ok\n", "CSV, 3 columns"),
        ("2026-11-21 10:00:01, 3\n2026-11-21 10:00:02, 4\n2026-11-21 10:00:03, 5\n", "CSV, 2 columns"),
        ("ERROR, 3\nINFO, 4\nINFO, 5\n", "CSV, 2 columns"),
        ("job 1 started, state ok\njob 2 started, state ok\njob 3 ended, state failed\n", ""),
        ("".join(f"[a-{n}] sent the batch {n},{n} items left\n" for n in range(9)), ""),
        ("line 1, value 3\nline 2, value 6\nline 3, value 9\n", ""),
        ("level 1, level 2\nred, dark\nblue, light\n", "CSV, 2 columns"),
        ("Ann Lee,1 Mill Road\nBob Ray,2 Old Lane\nCy Orr,3 Far Way\n", "CSV, 2 columns"),
        (STATEMENTS, ""),
        ("| a | b |\n|---|---|\n| 1 | 2 |\n\n| a | b |\n|---|---|\n| 3 | 4 |\n", ""),
        (
            "NAME    CPU(cores)   MEMORY(bytes)   \nweb-1   3m           14Mi            \ndb-0    21m          4Mi\n",
            "table, 3 columns",
        ),
        ("a|b|c\n||\n1|2|3\n", "CSV, 3 columns"),
        ("sep=;\r\nid;name\r\n1;a\r\n2;b\r\n", "CSV, 2 columns after a heading"),
        ("export * from './a';\nexport * from './b';\nexport * from './c';\n", ""),
        ("name;note\na;\nb;\n", "CSV, 2 columns"),
        ("def f(a, b):\n    g(a, b)\n    return h(b, a)\n", "source code"),
        ('name,"unit (m"\n1,"2)"\n3,4\n', "CSV, 2 columns"),
        (LOG, "log"),
        (STAMPED, "log"),
        ("one\ntwo\n", ""),
        ("* one\n* two in src/*.py\n* three\n", ""),
        ("# [a](https://example.org)\n## **b**\n# c\n", "Markdown"),
        ("# Title\n\n* **one**\n* [two](https://example.org)\n* three\n", "Markdown"),
        ("# Title\n\nWords, then:\n\n```js\nlet a = 1;\nlet b = 2;\nlet c = 3;\n```\n", "Markdown"),
        ("```js\nlet a = 1;\nlet b = 2;\nlet c = 3;\nlet d = 4;\n```\n", "source code"),
        ("/*\n * Words about\n * the license.\n */\nint a;\n", "source code"),
        (" * Words about\n * the license.\n */\nint a = 1;\nreturn a;\n", "source code"),
        (DIFF, "diff"),
        (SHOWN, "diff"),
        ("<!DOCTYPE html>\n<html><body>hi</body></html>", "HTML"),
        ("<div class='a'>hi</div>", "HTML"),
        ("<?xml version='1.0'?><a/>", "XML"),
        ("<feed xmlns='x'>\n</feed>", "XML"),
        ('{"a": 1}\n{"a": 2}\n', "JSON lines"),
        ('{"a": 1}\n{"a": \n', ""),
        ('{"a": "b\u2028c"}\n{"a": "d\x85e"}\n', "JSON lines"),
        ('Rows:\n{"a": 1, "b": 2}\n{"a": 3, "b": 4}\n', "JSON lines after a heading"),
        ('{"a": 1}\n{"a": 2}\n\n(2 rows)\n', "JSON lines"),
        ("{\n}\n", ""),
        (MARKDOWN, "Markdown"),
        ("# Only a heading\n", ""),
        ("# Rules\n# of the **filter**\n# and its words\n- one\n- two\n", ""),
        ("# Title\n\n- **one**\n- two\n\n```yaml\na: 1\nb: 2\nc:\n  d: 3\n  e: 4\n```\n", "Markdown"),
        ('<p align="center">\n  <img src="logo.png">\n</p>\n\n' + MARKDOWN, "Markdown"),
        ("<!DOCTYPE html>\n<pre>\n" + MARKDOWN + "</pre>\n", "HTML"),
        ("# Words of the license,\n# and more.\n\n- release: [A]\n  text:\n    brief: B.\n  flags:\n  - a\n", ""),
        ("# Issue\n\n- State: open\n- Author: **Ann**\n- Labels: [bug](https://example.org)\n", "Markdown"),
        (CODE, "source code"),
        (SCRIPT, "source code"),
        ("", ""),
        ("\n \n", ""),
        ("word", ""),
    ],
)
def test_a_text_is_recognised_by_its_beginning(text: str, expected: str) -> None:
    assert find_format(whole(text)) == expected


def test_a_line_that_is_cut_does_not_count() -> None:
    assert find_format(Edges("a,b\n1,2\n3,4\n5,6\n7", "", is_whole=False)) == "CSV, 2 columns"
    assert find_format(whole("a,b\n1,2\n3,4\n5,6\n7")) == ""
    assert find_format(Edges("only one line that is cut", "", is_whole=False)) == ""
    assert find_format(whole("a,b\n" * 100 + "x")) == "CSV, 2 columns"


def test_a_document_that_begins_with_a_table_is_not_a_table() -> None:
    table = "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 50
    assert (
        find_format(Edges(table, "3 |\n" + "| 1 | 2 |\n" * 9 + "\n(59 rows)\n", is_whole=False)) == "table, 2 columns"
    )
    assert find_format(Edges(table, "words.\n\n" + PARAGRAPHS, is_whole=False)) == ""
    assert find_format(Edges(MARKDOWN + table, PARAGRAPHS, is_whole=False)) == "Markdown"


def test_a_python_literal_ends_with_its_bracket() -> None:
    head = "[{'id': 1, 'name': 'a'}, {'id': 2, 'na"
    assert find_format(Edges(head, "", is_whole=False)) == "Python literal"
    assert find_format(Edges(head, "me': 'b'}]\n", is_whole=False)) == "Python literal"
    assert find_format(Edges(head, "me': 'b'}]\n\nThe last paragraph.", is_whole=False)) == ""


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        "a\n" + "\n" * 100_000,
        "a\nb\nc\n" + "\n" * 100_000,
        "[" * 100_000,
        "[a](" * 25_000,
        "[" + " " * 100_000,
        "|a|b|\n|-|-|\n" + "+-+-+\n" * 20_000,
        "#\n" * 50_000,
        "```\n" * 25_000,
        "1" * 40_000,
    ],
    ids=["empty", "empty at the end", "brackets", "links", "spaces", "rules", "comments", "code blocks", "digits"],
)
def test_hostile_texts_are_recognised_in_linear_time(text: str) -> None:
    assert find_format(whole(text)) == ""
    assert find_pipe_table(text) is None


def test_a_heading_ends_where_a_table_begins() -> None:
    assert measure_heading(whole("[Reading]\nof 2\n\nid,name\n1,a\n2,b\n")) == len("[Reading]\nof 2\n\n")
    assert measure_heading(whole("Started\nOutput:\nid,name\n1,a\n2,b\n")) == len("Started\nOutput:\n")
    assert measure_heading(whole("Rows:\n\n```csv\nid,name\n1,a\n2,b\n```\n")) == len("Rows:\n\n```csv\n")
    assert measure_heading(whole("# 1\n# 2\nid,name\n1,a\n2,b\n")) == len("# 1\n# 2\n")
    assert measure_heading(whole('Query\n\n{"a": 1}\n{"a": 2}\n')) == len("Query\n\n")
    assert measure_heading(whole("Of 2.\nRows.\nid,name\n1,a\n2,b\n")) == len("Of 2.\nRows.\n")
    assert measure_heading(whole("id,name\n1,a\n2,b\n\n3,c\n")) == 0


def test_lines_with_equally_many_commas_may_have_no_columns() -> None:
    for text in (
        PARAGRAPHS,
        PYTHON_LOG,
        SERVER_LOG,
        ACCESS_LOG,
        STATEMENTS,
        "[Reading]\n\n" + PARAGRAPHS,
        "PID: 1, Name: a\n" * 3,
    ):
        assert has_false_columns(whole(text))
    said = "#name,words\n" + "Ann, she went to the town.\n" * 5
    for text in (PROSE, "id,name\n1,a\n2,b\n", "id\n1\n2\n", "", "a,b\n1,2\n", said):
        assert not has_false_columns(whole(text))


@pytest.mark.parametrize(
    ("text", "delimiter", "form"),
    [
        ("a,b\n1,2\n3,4\n", ",", "CSV, 2 columns"),
        ("a;b\n" + "1;2\n" * 9000, ";", "CSV, 2 columns"),
        ("a\tb\n1\t2\n3\t4\n", "\t", "TSV, 2 columns"),
        ("Rows\n\na,b\n1,2\n3,4\n", "", "CSV, 2 columns after a heading"),
        ("Rows\n\n```csv\na,b\n1,2\n3,4\n```\n", "", "CSV, 2 columns after a heading"),
        ("```\na,b\n" + "1,2\n" * 9000 + "```\n", "", "CSV, 2 columns after a heading"),
        ("# 2026\n" * 9 + "a;b\n" + "1;2\n" * 9000, "", "CSV, 2 columns after a heading"),
        ("| a | b |\n|---|---|\n| 1 | 2 |\n", "", "table, 2 columns"),
        ('{"a": 1, "b": 2}\n' * 9, "", "JSON lines"),
        ("id,note\n" + '1,"first\nsecond, ""third"""\n' * 900, ",", "CSV, 2 columns"),
        ((",".join(f"column {n}" for n in range(400)) + "\n") * 40, ",", "CSV, 400 columns"),
        (PROSE, "", ""),
    ],
)
def test_a_text_with_rows_has_a_format_and_a_delimiter(text: str, delimiter: str, form: str) -> None:
    blob = json.dumps(text).encode()
    edges = read_edges(blob, Span(0, len(blob)))
    assert (find_delimiter(edges), find_format(edges)) == (delimiter, form)
    assert has_columns(form) == ("column" in form)


PROCESSES = """\
USER       PID %CPU    VSZ   RSS TTY      STAT COMMAND
root         1  0.7  46444 14140 ?        Ss   /sbin/init
root     10474 20.1 2690792 1335944 ?     Rl   node  a b
ann        900  0.0 11593712 123456 pts/0 S+   sh -c ls
"""
DISKS = "Disk     Size Used Mounted on\n/dev/a    20G    0 /\nnone    1000K   2K /home/of/ann\n"
MEMORY = "         total   used  free\nMem:   2468408  16506   120\nSwap:        0      0\n"
BLOCKS = "NAME  MAJ:MIN RM  SIZE TYPE MOUNTPOINTS\nsda     8:0    0  256G disk \n└sda1   8:1    0    9G part /\n"
ACTIVITY = " r  b   free  in cs\n 1  0 9339212 626 20\n 2  0 9339212 1780  4\n"
FRAME = "        city   n     w\n3       Bonn  12  0.25\n9        Rio   8 -1.50\n12  New York   7   1.5\n"
"""Data frames, as pandas prints them."""
DAYS = """\
                            Open  Close
Date
2026-11-01 00:00:00-04:00  100.5   99.0
2026-11-02 00:00:00-05:00    NaN   12.5
"""


@pytest.mark.parametrize(
    ("text", "header", "last"),
    [
        (PROCESSES, "USER PID %CPU VSZ RSS TTY STAT COMMAND", "ann 900 0.0 11593712 123456 pts/0 S+ sh -c ls"),
        (DISKS, "Disk Size Used Mounted on", "none 1000K 2K /home/of/ann"),
        (DISKS.replace("/home/of/ann", "/var"), "Disk Size Used Mounted on", "none 1000K 2K /var"),
        (MEMORY, " total used free", "Swap: 0 0 "),
        (BLOCKS, "NAME MAJ:MIN RM SIZE TYPE MOUNTPOINTS", "└sda1 8:1 0 9G part /"),
        (ACTIVITY, "r b free in cs", "2 0 9339212 1780 4"),
        (FRAME, " city n w", "12 New York 7 1.5"),
        (FRAME.replace("Rio", "a b"), " city n w", "12 New York 7 1.5"),
        (DAYS, "Date Open Close", "2026-11-02 00:00:00-05:00 NaN 12.5"),
    ],
)
def test_columns_beside_numbers_have_the_cells_below_their_names(text: str, header: str, last: str) -> None:
    table = find_number_table(text)
    assert table is not None
    assert (" ".join(table.header), " ".join(table.rows[-1])) == (header, last)


@pytest.mark.parametrize(
    "text",
    [
        MEMORY.strip(),
        MEMORY + "Done\n",
        "a  b  c\n0  1  2  3\n1  4  5  6\n",
        " 1  2  3\n 4  5  6\n 7  8  9\n",
        "ID  NAME\n 7  a\n 9  b\n",
        PROCESSES + "ann        901  0.0\n",
        PROCESSES + "ann B      901  0.0  46444 14140 ?        Ss   sh\n",
        PROCESSES + "ann        901  0.0  46444 14140          Ss   sh -c ls\n",
        PROCESSES + "ann        901  0.0  46444 14140 ?        Ss  \tsh\n",
        DISKS.replace("none ", "\u6771\u4eac"),
        DISKS.replace("/home/of/ann", "/home/of ann"),
        DISKS.replace("1000K   2K", "1000K1022K"),
        "PID Of id  Size\n  1 a       5\n  2   b     6\n",
        "PID Local Address Size\n  1 a             5\n  2 a     b       6\n",
        "PID  USED  NAME\n  7     1\n  9     2\n",
        "ID   SIZE  USED  NAME\n 7      1     2  a\n 1234567   3     b   c\n",
        "ID   NAME  USED\n 7  a b        1\n 9  c d        2\n",
        "SIZE  USED  NAME\n   1     2  a\n   3          b  c\n",
        "ID  NAME" + " " * 400 + "SIZE\n 7  a        4\n 9  b        2\n",
        "A  B  C\n" + "1  2  3\n" * 3000,
        "A  B  C\n" + "1  2  3 long\n" * 20_000,
        "A  B  C\n\n1  2  3\n4  5  6\n",
        "A  B  C\n1  2  3\n\n4  5  6\n",
        FRAME.replace("9 ", "3 "),
        FRAME.replace("12 ", "AB "),
        "                 n     m\nTicker\na            1.5    22\nBonn      A York   333\n",
        "The words of a text\nthat are lines with\n2 or 3 words at end\n",
        "",
    ],
)
def test_a_text_whose_columns_are_in_doubt_is_not_a_table(text: str) -> None:
    assert find_number_table(text) is None


@pytest.mark.parametrize(
    ("text", "last", "columns"),
    [
        (DISKS + "none    1000K   2K /home\n" * 900, "none    1000K1022K /home\n", 4),
        ("NAME   READY\n" + "web    1/1\n" * 900, "database 1/1\n", 2),
    ],
    ids=["numbers", "words"],
)
def test_all_lines_decide_whether_a_text_is_a_table(text: str, last: str, columns: int) -> None:
    assert find_format(read(text)) == f"table, {columns} columns"
    assert find_format(read(text + last)) == ""


def test_a_table_of_numbers_that_is_too_long_to_be_read_is_not_named() -> None:
    rows = "none    1000K   2K /home\n" * 900
    assert find_format(read(DISKS + rows)) == "table, 4 columns"
    assert find_format(read(DISKS + rows * 9)) == ""
    assert find_format(read("NAME   READY\n" + "web    1/1\n" * 40_000)) == "table, 2 columns"


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [
        ("id;name\n1;a\n2;b;c\n3;d\n4;e\n", ";"),
        ("id,name\n1,a\n2\n3,d\n4,e\n", ","),
        ("id,name\n1\n2,b\n3,d\n4,e\n", ","),
        ("id,name\n1,a\n2,b\n3,d\n4\n", ","),
        ("id,name\n1,a\n2\n3\n", ""),
        ("id,name\n1,a\n2,b\n3,d\n4,e\n", ""),
        ("id,name\n1,a\n2,b,c\n3,d,e\n4,e\n", ""),
        (PROSE + PROSE + "It was, as they said, late.\n", ""),
        ("", ""),
    ],
)
def test_the_delimiter_of_csv_with_uneven_rows_is_found(text: str, delimiter: str) -> None:
    assert find_uneven_delimiter(whole(text)) == delimiter


BOX = "+---+----+\n| a | b  |\n+---+----+\n"
DUCKDB = "┌───┬────┐\n│ a │ b  │\n├───┼────┤\n"


@pytest.mark.parametrize(
    "text",
    [
        " a | b | c \n---+---+---\n 1 | x+| 2\n   | y |  \n",
        " a | b \n---+---\n 1 | x+\n   | y\n(1 row)\n",
        f"{DUCKDB}│ 1 │ x ↵│\n│   │ y  │\n└───┴────┘\n",
        f"{BOX}| 1 | x\ny |\n+---+----+\n",
        BOX + "| 1 | x  |\n" * 9 + "| 1 | x\ny\nz |\n| 1 | x  |\n+---+----+\n",
        f"{BOX}| 1 | x  |\ny\n| 2 | z  |\n+---+----+\n",
        f"{BOX}| 1 | x\n| 2 | y  |\n+---+----+\n",
        f"{BOX}| 1 | x  |\ny\n| 2 | z  |\n",
        f"{BOX}| 1 | x  |\n|   | y  |\n+---+----+\n| 2 | z  |\n+---+----+\n",
    ],
    ids=[
        *("psql", "psql, last column", "psql, box", "mysql", "mysql, three lines", "mysql, last column"),
        *("a row without its end", "a cut box", "sqlite"),
    ],
)
def test_a_drawn_table_with_lines_in_cells_has_no_rows(text: str) -> None:
    assert find_pipe_table(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" a | b \n---+---\n 1 | x+\n 2 | y\n(2 rows)\n", [["1", "x+"], ["2", "y"]]),
        (f"{BOX}| 1 | x  |\n|   | y+ |\n+---+----+\n2 rows in set\n", [["1", "x"], ["", "y+"]]),
        (f"{BOX}| 1 | x  |\n+---+----+\n|   | y  |\n+---+----+\n", [["1", "x"], ["", "y"]]),
        (f"{BOX}| 1 | x  |\n| 2 | y  |\n+---+----+\n| 3 | z  |\n+---+----+\n", [["1", "x"], ["2", "y"], ["3", "z"]]),
        (f"{BOX}| 1 | x  |\n| 2 | y  |\n", [["1", "x"], ["2", "y"]]),
        (f"{DUCKDB}│   │ x  │\n│   │ y  │\n├───┴────┤\n│ 2 rows │\n└────────┘\n", [["", "x"], ["", "y"]]),
        ("| a | b |\n|---|---|\n| 1 | x+|\n|   | y |\n", [["1", "x+"], ["", "y"]]),
        (" a | b \n---+---\n   | x\n 1 | \n(2 rows)\n", [["", "x"], ["1", ""]]),
        (" a | b | c\n---+---+---\n 1 | x | y+\n   | z | 2\n", [["1", "x", "y+"], ["", "z", "2"]]),
        (f"{BOX}| 1 | x  |\n| 2 | y  |\n+---+----+\n2 rows\nid|n\n", [["1", "x"], ["2", "y"]]),
        ("| a | b |\n|---|---|\n| - | |\n| | |\n| 3 | 4 |\n", [["-", ""], ["", ""], ["3", "4"]]),
        ("| a | b\n|---|---\n| 1 | 22\n| 3 | x \\|\n", [["1", "22"], ["3", "x |"]]),
        ("Only a|b:\n| a | b |\n|---|---|\n| 1 | 2 |\n", [["1", "2"]]),
        ("| a | b |\n|---|---|\n", []),
    ],
    ids=[
        *(
            "plus",
            "empty cell",
            "rules",
            "groups",
            "cut",
            "duckdb",
            "markdown",
            "empty first cell",
            "plus, last column",
        ),
        *("bars below", "empty row", "without closing bars", "bar above", "without rows"),
    ],
)
def test_a_drawn_table_with_a_line_for_each_row_has_its_rows(text: str, expected: list[list[str]]) -> None:
    table = find_pipe_table(text)
    assert table is not None
    assert (table.header[:2], table.rows) == (["a", "b"], expected)


PRETTY_ROWS = "".join(f"{n:>3}. │ {n:>2} │ 1. Ann │ {n / 2:>4} │\n" for n in range(1, 41))
PRETTY = f"     ┌─id─┬─name───┬──a b─┐\n{PRETTY_ROWS}     └────┴────────┴──────┘\n"


@pytest.mark.parametrize(
    ("text", "times"),
    [
        (PRETTY, 1),
        (f"{PRETTY}\n40 rows in set. Elapsed: 0.001 sec.\n", 1),
        (PRETTY.replace("└────┴────────┴──────┘", "└─id─┴─name───┴──a b─┘"), 1),
        (re.sub(r"(?m)^[ \d]{3}\. ", "", PRETTY), 1),
        (PRETTY * 2, 2),
    ],
    ids=["plain", "with a footer", "names below", "without numbers", "two blocks"],
)
def test_a_table_with_the_names_of_its_columns_in_the_border_has_its_rows(text: str, times: int) -> None:
    assert find_format(whole(text)) == "table, 3 columns"
    table = find_pipe_table(text)
    assert table is not None
    assert table.header == ["id", "name", "a b"]
    assert table.rows == [[str(n), "1. Ann", str(n / 2)] for n in range(1, 41)] * times


@pytest.mark.parametrize(
    "text",
    [
        PRETTY + PRETTY.replace("name", "city"),
        PRETTY.replace("1. Ann │", "1. Ann↴│", 1),
        "┌─id─┬─name─┐\n",
        "┌─ Note ─┐\n│ Words  │\n└────────┘\n",
    ],
)
def test_other_texts_with_words_in_a_border_are_not_a_table(text: str) -> None:
    assert find_pipe_table(text) is None


def test_the_lines_of_a_header_are_names_unless_all_are_types() -> None:
    rule = "+------+-------+\n"
    for second, header in (("INT  | date ", ["made", "order"]), ("date | id   ", ["made date", "order id"])):
        table = find_pipe_table(f"{rule}| made | order |\n| {second}|\n{rule}| 1    | 2     |\n{rule}")
        assert table is not None
        assert (table.header, table.rows) == (header, [["1", "2"]])


@pytest.mark.parametrize(
    ("text", "header", "rows"),
    [
        (
            "ID  PORTS  NAMES\n1          db\n2          web\n",
            ["ID", "PORTS", "NAMES"],
            [["1", "", "db"], ["2", "", "web"]],
        ),
        ("NAME  STATUS\nabc   up\nDB1   DOWN\n", ["NAME", "STATUS"], [["abc", "up"], ["DB1", "DOWN"]]),
        ("CPU% MEM%\n1.2  3\n4.5\n", ["CPU%", "MEM%"], [["1.2", "3"], ["4.5", ""]]),
    ],
    ids=["empty column", "upper case", "empty cell"],
)
def test_an_aligned_table_has_its_columns(text: str, header: list[str], rows: list[list[str]]) -> None:
    table = find_aligned_table(text)
    assert table is not None
    assert (table.header, table.rows) == (header, rows)


@pytest.mark.parametrize(
    "text", ["NAME  STATUS\nabc   up\n", "NAME\nabc\ndef\n", "NAME  STATUS\nabc   up\n\ndef   up\n"]
)
def test_one_row_one_column_or_an_empty_line_is_not_an_aligned_table(text: str) -> None:
    assert find_aligned_table(text) is None


PSQL = "".join(f"-[ RECORD {n} ]--\nid   | {n}\nname | a|b: {n}\nnote | \n" for n in range(1, 90))
MYSQL = "".join(f"{'*' * 27} {n}. row {'*' * 27}\n  id: {n}\nname: a|b: {n}\nnote: \n" for n in range(1, 90))


CLICKHOUSE = "\n".join(f"Row {n}:\n\u2500\u2500\u2500\nid:   {n}\nname: a|b: {n}\nnote: \n" for n in range(1, 90))
NUMBERED = "\n".join(f"{n}. row\nid: {n}\nname: a|b: {n}\nnote: \n" for n in range(1, 90))


@pytest.mark.parametrize(
    "text",
    [
        *(PSQL, MYSQL, f"{MYSQL}89 rows in set (0.00 sec)\n", PSQL.replace("\n", "\r\n")),
        *(CLICKHOUSE, f"{CLICKHOUSE}\n89 rows in set. Elapsed: 0.001 sec.\n"),
        *(NUMBERED, f"{NUMBERED}\nResult: 89 rows (output truncated)"),
    ],
)
def test_rows_with_a_line_for_each_column_are_a_table(text: str) -> None:
    assert find_format(whole(text)) == "table, 3 columns"
    table = find_record_table(text)
    assert table is not None
    assert table.header == ["id", "name", "note"]
    assert table.rows == [[str(n), f"a|b: {n}", ""] for n in range(1, 90)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "id | 1\nname | a\n",
        "-[ RECORD 1 ]\n",
        "-[ RECORD 1 ]\nid | 1\n-[ RECORD 2 ]\n",
        "-[ RECORD 1 ]\nid | 1\n-[ RECORD 2 ]\nname | 1\n",
        "-[ RECORD 1 ]\nid | 1\n-[ RECORD 2 ]\nid | 1\nname | 1\n",
        "-[ RECORD 1 ]\nid | 1+\n | 2\n",
        "*** 1. row ***\nid: 1\nsecond line\n",
        "1. row\nThe first step\n",
        "Row 1:\nid: 1\nRow 2:\nnote: 1\n",
    ],
)
def test_other_rows_with_a_line_for_each_column_are_not_a_table(text: str) -> None:
    assert find_record_table(text) is None


def test_a_cut_row_with_a_line_for_each_column_does_not_hide_the_table() -> None:
    assert find_format(Edges((PSQL * 20)[:4050], "", is_whole=False)) == "table, 3 columns"

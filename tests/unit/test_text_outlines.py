"""Outlines of texts: the files that a diff changes, the headings of Markdown, the definitions of source code."""

import json

import pytest

from mcp_mirror.core.texts.outlines import TextOutline, outline_text
from mcp_mirror.types import Span

HUNK = "@@ -1,3 +1,3 @@ def f():\n a\n-b\n--- c\n+++ d\n+e\n+f\n"
CHANGED = f"diff --git a/src/a b.py b/src/a b.py\nindex 1..2 100644\n--- a/src/a b.py\n+++ b/src/a b.py\n{HUNK}"
NEW = "diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n"
DELETED = "diff --git a/o b/o\ndeleted file mode 100644\n--- a/o\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-x\n-y\n"
RENAMED = "diff --git a/p b/q r\nsimilarity index 100%\nrename from p\nrename to q r\n"
BINARY = "diff --git a/logo.png b/logo.png\nindex 1..2 100644\nBinary files a/logo.png and b/logo.png differ\n"
PLAIN = "--- old/a.txt\t2026-01-01\n+++ new/a.txt\t2026-01-02\n@@ -1 +1,2 @@\n-a\n+b\n+c\n@@ -9 +10 @@\n-d\n"


def outline(text: str, form: str) -> TextOutline | None:
    blob = json.dumps(text).encode()
    return outline_text(blob, Span(0, len(blob)), form)


def lines_of(text: str, form: str) -> list[str]:
    found = outline(text, form)
    return [line for _, line in sorted(found.lines)] if found else []


@pytest.mark.parametrize(
    ("diff", "line"),
    [
        *(
            (CHANGED, "src/a b.py +3 -2"),
            (DELETED, "o +0 -2"),
            (RENAMED, "q r"),
            (BINARY, "logo.png"),
        ),
        (f"{CHANGED}-- \nend\n", "src/a b.py +3 -3"),
    ],
)
def test_a_file_has_its_name_and_the_numbers_of_its_lines(diff: str, line: str) -> None:
    assert lines_of(NEW + diff, "diff") == ["n +1 -0", line]
    assert lines_of((NEW + diff).replace("\n", "\r\n"), "diff") == ["n +1 -0", line]


def test_the_signature_of_a_mailed_patch_is_not_a_line_of_it() -> None:
    assert lines_of(f"{NEW}{CHANGED}-- \n2.39.5\n\n", "diff") == ["n +1 -0", "src/a b.py +3 -2"]


def test_the_text_before_the_first_file_is_not_a_file() -> None:
    found = outline(f"commit 1\n\n    +words\n\n{CHANGED}{NEW}{BINARY}{DELETED}{RENAMED}", "diff")
    assert found is not None
    assert (found.first, found.counted) == ("commit 1", "diff of 5 files")
    assert [line for _, line in found.lines] == ["src/a b.py +3 -2", "n +1 -0", "logo.png", "o +0 -2", "q r"]
    plain = outline(f"Index: a\n{PLAIN}{PLAIN}", "diff")
    assert plain is not None
    assert (plain.first, plain.lines) == ("Index: a", [(0, "new/a.txt +2 -2"), (1, "new/a.txt +2 -2")])


@pytest.mark.parametrize("text", ["", "no diff", "a\n--- \nb", "--- title\n\nand text", "diff --git ", NEW])
def test_other_texts_have_no_files(text: str) -> None:
    assert outline(text, "diff") is None


def test_headings_have_the_numbers_of_their_lines() -> None:
    found = outline(
        "# Title\n\nwords\n\n## Part:\r\n- item\n   ### Detail\n    # code\n#tag\n##\t Last\n#\n", "Markdown"
    )
    assert found is not None
    assert found.lines == [(0, "0: # Title"), (4, "4: ## Part"), (9, "9: ##\t Last"), (6, "6: ### Detail")]
    assert (found.first, found.counted) == ("", "Markdown with 4 headings")


@pytest.mark.parametrize(
    "text",
    [
        "Report\n\n# 1. Water\n\nwords\n\n# 2. Air\n\nwords\n# 3. Soil\n\nwords\n",
        "<!-- Slide 1 -->\n# 1. Water\n- words\n\n<!-- Slide 2 -->\n# 2. Air\n\n<!-- Slide 3 -->\n# 3. Soil\n",
    ],
)
def test_headings_of_one_level_are_no_comments_if_they_stand_apart(text: str) -> None:
    lines = [line.partition("# ")[2] for line in lines_of(text, "Markdown")]
    assert lines == ["1. Water", "2. Air", "3. Soil"]
    assert outline(text.replace("\n\n", "\n").replace("-->", ""), "Markdown") is None


BOLD = (
    "**Exploration: previews**\n\nFound 5 symbols.\n\n**Source code**\n\n> Words.\n\n"
    "**`src/a.py`** \u2014 take(calls)\n\n```python\n\n**not** a heading\n```\n\n"
    "**Rest:** words **in bold**\n\n**End:**\n"
)


def test_bold_lines_are_headings_of_a_document_without_others() -> None:
    file = "8: **`src/a.py`** \u2014 take(calls)"
    shown = ["0: **Exploration: previews**", "4: **Source code**", file, "17: **End:**"]
    assert lines_of(BOLD, "Markdown") == shown
    assert lines_of(f"{BOLD}# A\n## B\n## C\n", "Markdown") == ["18: # A", "19: ## B", "20: ## C"]
    assert outline(BOLD.replace("\n**S", "**S").replace("**End:**", ""), "Markdown") is None


def test_a_comment_in_a_code_block_is_not_a_heading() -> None:
    blocks = "```sh\n# one\n~~~\n# two\n```\n## Part\n~~~\n# three\n```\n~~~\n### Detail\n  ```\n# four"
    assert lines_of(f"words\n# Title\n{blocks}", "Markdown") == ["1: # Title", "7: ## Part", "12: ### Detail"]


CODE_IN_BLOCK = "# a comment\ndef one():\n    # b\n\ndef two():\n    # c\n\ndef three():\n    pass"
DOCUMENT = "# One\n\n```sh\n# no heading\n```\n\n## Two\n\n## Three"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (f"File: a.py\n\n```py\n{CODE_IN_BLOCK}\n```\n", ["4: def one()", "7: def two()", "10: def three()"]),
        (f"```\n{CODE_IN_BLOCK}\n```", ["2: def one()", "5: def two()", "8: def three()"]),
        (f"~~~py\n{CODE_IN_BLOCK}\n~~~", ["2: def one()", "5: def two()", "8: def three()"]),
        (f"File: a.md\n\n```MD\n{DOCUMENT}\n```", ["3: # One", "9: ## Two", "11: ## Three"]),
        (f"File: a\n\n```\n{DOCUMENT}\n```", ["3: # One", "9: ## Two", "11: ## Three"]),
        (f"File: a.md\n\n```md\n# One\n## Two\n{CODE_IN_BLOCK}\n```", ["3: # One", "4: ## Two", "5: # a comment"]),
        (f"File: a.py\n\n```py\n{CODE_IN_BLOCK}\n```\nThe end.", []),
        ("one line\n" * 9 + f"```py\n{CODE_IN_BLOCK}\n```", []),
        ("```\n# a\n# b\n# c\n```", []),
    ],
)
def test_a_text_that_is_one_code_block_has_the_outline_of_what_is_in_it(text: str, lines: list[str]) -> None:
    assert lines_of(text, "Markdown")[: len(lines)] == lines
    assert bool(lines_of(text, "Markdown")) == bool(lines)


def test_the_name_of_a_file_above_its_code_is_the_first_line() -> None:
    for above in ("", "File: a.py\n\n"):
        found = outline(f"{above}```py\n{CODE_IN_BLOCK}\n```\n", "Markdown")
        assert found is not None
        assert found.first == above.strip()


def test_the_first_line_of_a_document_is_that_of_a_heading_or_its_own() -> None:
    found = outline("<p>Logo</p>\n\n# Title\n## A\n## B\n", "Markdown")
    assert found is not None
    assert (found.first, found.lines[0]) == ("<p>Logo</p>", (2, "2: # Title"))


def test_a_page_has_its_headings_and_the_columns_of_its_tables() -> None:
    head = "<!doctype html><title>Tariffs &amp; more</title><script>let h = 1</script>"
    rows = "<tr><td>Bonn</td><td>3</td></tr>" * 40
    table = f"<table id=t><thead><tr class=a><th>City<TH><b>Price</b>\n in &euro;</th></thead>{rows}</table>"
    page = f"{head}<h1 id='x'>Tariffs\n <i>2026</i></h1>{table}<h2>Islands</h2><p>none</p>{table}</table>"
    found = outline(page, "HTML")
    assert found is not None
    assert (found.counted, found.first) == ("HTML with 4 parts", "Tariffs & more")
    columns = "table, 40 rows: City | Price in \u20ac"
    lines = ["0: # Tariffs 2026", f"1: {columns}", "2: ## Islands", f"2: {columns}"]
    assert [line for _, line in sorted(found.lines)] == lines
    in_one_line = outline(page.replace("\n", " "), "HTML")
    assert in_one_line is not None
    assert in_one_line.lines[0][1] == "# Tariffs 2026"
    only_table = outline(table, "HTML")
    assert only_table is not None
    assert (only_table.counted, only_table.first, only_table.lines) == ("HTML with 1 part", "", [(0, f"0: {columns}")])
    unclosed = outline("<table><tr><td>a<td>b</table>", "HTML")
    assert unclosed is not None
    assert unclosed.lines == [(0, "table, 1 row: a | b")]


@pytest.mark.parametrize("page", ["<p>One</p>", "<h1></h1><h2>One</h2><h2>Two", "<table></table><table><tr></table>"])
def test_a_page_with_few_parts_has_no_outline(page: str) -> None:
    assert outline(page, "HTML") is None


def test_each_of_several_tables_has_its_title_and_its_columns() -> None:
    people = "| id | name |\n| --- | --- |\n" + "| 1 | Ada |\n| --- | --- |\n" * 30
    sums = "|month|sum|\r\n|:--|--:|\r\n" + "|1|2|\r\n" * 70
    found = outline(f"## People\n{people}\n## Sums\n\n{sums}\n{people}", "table, 2 columns")
    assert found is not None
    assert found.counted == "Markdown with 3 tables"
    lines = ["0: ## People: | id | name |", "64: ## Sums: |month|sum|", "139: | id | name |"]
    assert [line for _, line in found.lines] == lines
    for text in (f"## People\n{people}", "| a |\n", "a | b\n--- | ---\n1 | 2\n\na | b\n--- | ---\n3 | 4\n"):
        assert outline(text, "table, 2 columns") is None


@pytest.mark.parametrize(
    "text", ["", "words\n# Title\n## Part\n", "# A\n## B\n\ud800\n## C\n", "# A\n# B\n# C\n", "# A\n## B\n" * 150_000]
)
def test_few_headings_comments_and_long_or_damaged_texts_have_no_outline(text: str) -> None:
    assert outline(text, "Markdown") is None


@pytest.mark.parametrize(
    "line",
    [
        "def run(self, name: str) -> None:",
        "async def run(",
        "def empty?",
        "class Reader(Base):",
        "export default class Reader extends Base {",
        "public abstract class Reader<T> {",
        "export interface Row {",
        "pub(crate) struct Row {",
        "enum Color {",
        "function parse(text) {",
        "export async function* parse(text) {",
        "function parse_all {",
        "func (r *Reader) Read(p []byte) (int, error) {",
        "pub fn parse(text: &str) -> Row {",
        "impl Reader for Row {",
        "export type Row<T> = {",
        "type Row struct {",
        "sub parse {",
        "export const parse = async (text) => {",
        "const parse = function () {",
        "public static List<Row> parse(String text) {",
        "private async Task<Row> ParseAsync(",
        "CREATE OR REPLACE FUNCTION parse(text) RETURNS int",
        "create table rows (",
        "static inline int parse(const char *text)",
        "void Reader::read(int count,",
    ],
)
def test_a_line_that_defines_something_is_part_of_an_outline(line: str) -> None:
    indented = "" if line.startswith(("static inline", "void")) else "\t"
    text = f"{line}\n  x = 1\n\n" + f"{indented}{line}\n" + "class Last:\n"
    shown = line.rstrip(" {:")
    assert lines_of(text, "source code") == [f"0: {shown}", f"3: {shown}", "4: class Last"]


@pytest.mark.parametrize(
    "line",
    [
        "parse(text)",
        "return new_parser(text)",
        "class of 1995",
        "a function that reads",
        "await client.call(name)",
        "const limit = 5;",
        "int count = parse(text);",
        "The parser calls read(), and then closes it.",
        "typedef int parse(int)",
        "    int parse(int)",
    ],
)
def test_a_line_that_defines_nothing_is_not_part_of_an_outline(line: str) -> None:
    assert lines_of(f"{line}\n" * 4, "source code") == []


def test_methods_come_after_classes_in_importance() -> None:
    body = "class A:\n    def a(self):\n\tdef b():\nclass B:\n"
    found = outline(body, "source code")
    assert found is not None
    assert (found.first, found.counted) == ("", "source code with 4 definitions")
    assert [line for _, line in found.lines] == ["0: class A", "3: class B", "1: def a(self)", "2: def b()"]


def test_code_below_a_long_comment_is_recognised_by_its_definitions() -> None:
    code = "def a():\n    pass\n" * 4
    assert lines_of("words\n" * 30 + code, "")[0] == "30: def a()"
    assert outline("words\n" * 300 + code, "") is None
    assert lines_of("words\n" * 300 + code, "source code")[0] == "300: def a()"


def test_texts_of_other_formats_have_no_outline() -> None:
    assert outline("# A\n## B\n## C\n", "log") is None


def test_each_definition_of_a_long_text_is_found_once() -> None:
    found = outline("".join(f"def f{number}():\n    return {number}\n" for number in range(4_000)), "source code")
    assert found is not None
    assert [line for _, line in found.lines] == [f"{2 * number}: def f{number}()" for number in range(4_000)]

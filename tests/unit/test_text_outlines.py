"""Outlines of texts: the files that a diff changes, and the headings of Markdown."""

import json
from collections.abc import Sequence

import pytest

from mcp_mirror.core.text_outlines import TextOutline, outline_text
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


def lines_of(text: str, form: str) -> Sequence[str]:
    found = outline(text, form)
    return found.lines if found else []


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
    assert (found.first, found.counted) == ("commit 1", "of 5 files")
    assert found.lines == ["src/a b.py +3 -2", "n +1 -0", "logo.png", "o +0 -2", "q r"]
    plain = outline(f"Index: a\n{PLAIN}{PLAIN}", "diff")
    assert plain is not None
    assert (plain.first, plain.lines) == ("Index: a", ["new/a.txt +2 -2"] * 2)


@pytest.mark.parametrize("text", ["", "no diff", "a\n--- \nb", "--- title\n\nand text", "diff --git ", NEW])
def test_other_texts_have_no_files(text: str) -> None:
    assert outline(text, "diff") is None


def test_headings_have_the_numbers_of_their_lines() -> None:
    found = outline(
        "# Title #\n\nwords\n\n## Part\r\n- item\n   ### Detail\n    # code\n#tag\n##\t Last\n#\n", "Markdown"
    )
    assert found is not None
    assert found.lines == ["0: # Title", "4: ## Part", "6: ### Detail", "9: ## Last"]
    assert (found.first, found.counted) == ("", "with 4 headings")


def test_a_comment_in_a_code_block_is_not_a_heading() -> None:
    blocks = "```sh\n# one\n~~~\n# two\n```\n## Part\n~~~\n# three\n```\n~~~\n### Detail\n  ```\n# four"
    assert lines_of(f"words\n# Title\n{blocks}", "Markdown") == ["1: # Title", "7: ## Part", "12: ### Detail"]


def test_of_many_headings_the_lowest_levels_are_left_out() -> None:
    part = "## Part\n" + "### Detail\n" * 4
    found = outline("# Title\n" + part * 3, "Markdown")
    assert found is not None
    assert (found.total, list(found.lines)) == (16, ["0: # Title", "1: ## Part", "6: ## Part", "11: ## Part"])
    assert len(lines_of("# Title\n" + "## Part\n" * 40, "Markdown")) == 41
    assert len(lines_of("## Part\n" * 40 + "### Detail\n" * 40, "Markdown")) == 40


def test_the_first_line_of_a_document_is_that_of_a_heading_or_its_own() -> None:
    found = outline("<p>Logo</p>\n\n# Title\n## A\n## B\n", "Markdown")
    assert found is not None
    assert (found.first, found.lines[0]) == ("<p>Logo</p>", "2: # Title")


@pytest.mark.parametrize("text", ["", "words\n# Title\n## Part\n", "# A\n## B\n\ud800\n## C\n", "# A\n" * 300_000])
def test_few_headings_and_texts_that_cannot_be_read_have_no_outline(text: str) -> None:
    assert outline(text, "Markdown") is None


def test_texts_of_other_formats_have_no_outline() -> None:
    assert outline("# A\n## B\n## C\n", "log") is None

"""The list of the files that a diff changes."""

import json

import pytest

from mcp_mirror.core.changed_files import list_changed_files
from mcp_mirror.types import Span

HUNK = "@@ -1,3 +1,3 @@ def f():\n a\n-b\n--- c\n+++ d\n+e\n+f\n"
CHANGED = f"diff --git a/src/a b.py b/src/a b.py\nindex 1..2 100644\n--- a/src/a b.py\n+++ b/src/a b.py\n{HUNK}"
NEW = "diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n"
DELETED = "diff --git a/o b/o\ndeleted file mode 100644\n--- a/o\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-x\n-y\n"
RENAMED = "diff --git a/p b/q r\nsimilarity index 100%\nrename from p\nrename to q r\n"
BINARY = "diff --git a/logo.png b/logo.png\nindex 1..2 100644\nBinary files a/logo.png and b/logo.png differ\n"
PLAIN = "--- old/a.txt\t2026-01-01\n+++ new/a.txt\t2026-01-02\n@@ -1 +1,2 @@\n-a\n+b\n+c\n@@ -9 +10 @@\n-d\n"


def changed_files(diff: str) -> list[str]:
    blob = json.dumps(diff).encode()
    return list_changed_files(blob, Span(0, len(blob)))


@pytest.mark.parametrize(
    ("diff", "line"),
    [
        *(
            (CHANGED, "src/a b.py +3 -2"),
            (NEW, "n +1 -0"),
            (DELETED, "o +0 -2"),
            (RENAMED, "q r"),
            (BINARY, "logo.png"),
        ),
        (PLAIN, "new/a.txt +2 -2"),
        (f"{CHANGED}-- \n2.39.5\n\n", "src/a b.py +3 -2"),
        (f"{CHANGED}-- \nend", "src/a b.py +3 -3"),
    ],
)
def test_a_file_has_its_name_and_the_numbers_of_its_lines(diff: str, line: str) -> None:
    assert changed_files(diff) == [line]
    assert changed_files(diff.replace("\n", "\r\n")) == [line]


def test_the_text_before_the_first_file_is_not_a_file() -> None:
    files = changed_files(f"commit 1\n\n    +words\n\n{CHANGED}{NEW}{BINARY}{DELETED}{RENAMED}")
    assert files == ["src/a b.py +3 -2", "n +1 -0", "logo.png", "o +0 -2", "q r"]
    assert changed_files(f"Index: a\n{PLAIN}{PLAIN}") == ["new/a.txt +2 -2"] * 2


@pytest.mark.parametrize("text", ["", "no diff", "a\n--- \nb", "--- title\n\nand text", "diff --git "])
def test_other_texts_have_no_files(text: str) -> None:
    assert changed_files(text) == []

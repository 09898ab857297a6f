"""The table of security controls has every control of the chapter, and only existing tests."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operations" / "security.md"
TABLE = PAGE.read_text(encoding="utf-8").partition("\n## Controls\n")[2].partition("\n## ")[0]
ROWS = [line for line in TABLE.splitlines() if line.startswith("| ")][1:]
CHAPTER = {1: 2, 2: 7, 3: 5, 4: 7}
"""Sections of AISVS C10 and how many controls each has."""


def named_tests() -> list[tuple[str, str]]:
    """File and function of every test in the table; `::name` without a file is in the file before it."""
    found: list[tuple[str, str]] = []
    for file, name in re.findall(r"`([a-z_/]+\.py)?::(test_\w+)`", TABLE):
        found.append((file or found[-1][0], name))
    return found


@pytest.mark.parametrize(("file", "name"), named_tests())
def test_each_test_of_the_table_exists(file: str, name: str) -> None:
    source = (ROOT / "tests" / file).read_text(encoding="utf-8")
    assert re.search(rf"^(?:async )?def {name}\(", source, re.MULTILINE)


def test_the_table_has_every_control_of_the_chapter() -> None:
    wanted = {f"C10.{section}.{number + 1}" for section, count in CHAPTER.items() for number in range(count)}
    assert set(re.findall(r"C10\.\d\.\d", " ".join(ROWS))) == wanted
    assert len(named_tests()) >= len(ROWS)


@pytest.mark.parametrize("row", ROWS)
def test_a_row_without_a_test_is_marked_not_there(row: str) -> None:
    _, _, here, shown, _ = row.split("|")
    assert shown.strip() or "not there" in here

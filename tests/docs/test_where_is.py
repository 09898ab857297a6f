"""The walks of "Where is ...?": each file and name exists, and the page answers the questions that it should."""

import re

import pytest
from doc_pages import ROOT

SOURCE = ROOT / "src" / "mcp_mirror"
PAGES = [ROOT / "docs" / "internals" / name for name in ("where-is.md", "call.md", "extending.md", "architecture.md")]
ROWS = [line for line in PAGES[0].read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
WANTED = ("notice", "store", "client", "memory tool", "reconnect", "refused")


def named_files() -> list[str]:
    pattern = r"`([a-z_]+(?:/[a-z_]+)*\.py)`"
    return sorted({name for page in PAGES for name in re.findall(pattern, page.read_text(encoding="utf-8"))})


@pytest.mark.parametrize("name", named_files())
def test_each_file_of_the_internals_pages_exists(name: str) -> None:
    assert (SOURCE / name).is_file() or (ROOT / name).is_file()


def named_definitions() -> list[tuple[str, str]]:
    """File and name of each `name` that follows a file in a row, or that stands before a file in parentheses."""
    found = []
    for page in PAGES:
        pairs = re.findall(r"`(\w+)`\s+\(`([\w/]+\.py)`\)", page.read_text(encoding="utf-8"))
        found += [(file, name) for name, file in pairs]
    for row in ROWS:
        for file, names in re.findall(r"`([\w/]+\.py)`: ((?:`\w+`(?:, )?)+)", row):
            found += [(file, name) for name in re.findall(r"`(\w+)`", names)]
        found += [(file, name) for file, name in re.findall(r"`(\w+(?:/\w+)*\.py)`: `(\w+)`", row)]
    return sorted(set(found))


@pytest.mark.parametrize(("file", "name"), named_definitions())
def test_each_name_of_a_walk_is_defined_in_its_file(file: str, name: str) -> None:
    text = (SOURCE / file).read_text(encoding="utf-8")
    assert re.search(rf"^(?:async )?(?:def|class) {name}\b|^{name}\b.*=", text, re.MULTILINE)


@pytest.mark.parametrize("subject", WANTED)
def test_the_page_has_a_walk_for_each_common_question(subject: str) -> None:
    assert any(subject in row.split("|")[1] for row in ROWS)


TERMS = ("reconnect", "backoff", "elicitation", "redact", "eviction", "shutdown", "rate limit")


@pytest.mark.parametrize("word", TERMS)
def test_a_term_of_the_field_leads_into_the_sources(word: str) -> None:
    assert any(re.search(word, path.read_text(encoding="utf-8"), re.IGNORECASE) for path in SOURCE.rglob("*.py"))

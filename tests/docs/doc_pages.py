"""The pages of the documentation, and their code blocks."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
GENERATED: Final = ROOT / "docs" / "reference" / "cli.md"
PAGES: Final = tuple(
    sorted(
        path
        for pattern in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md")
        for path in ROOT.glob(pattern)
        if path != GENERATED
    )
)


class Block(NamedTuple):
    """A fenced block of code."""

    page: str
    number: int
    """Of the page's blocks, from 1."""
    language: str
    text: str


def blocks(*languages: str) -> Iterator[Block]:
    """Yield the blocks in these languages of all pages."""
    for page in PAGES:
        found = re.findall(r"^( *)```(\w+)\n(.*?)^\1```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        for number, (_, language, text) in enumerate(found, 1):
            if language in languages:
                yield Block(page.relative_to(ROOT).as_posix(), number, language, text)

"""Fail on words that the style guide of this project excludes (CONTRIBUTING.md, "English").

Standard library only: `make words` and `make check` run this file. It reads the documentation, the package and the
evaluations.
"""

import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]

TEXTS: Final = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/**/*.md",
    "src/mcp_mirror/**/*.py",
    "src/mcp_mirror/**/*.lua",
    "evals/**/*.py",
    "examples/*.py",
    "configs/demo.yaml",
    "docker/*.yaml",
)

EXCLUDED: Final = {
    "told": "reported, printed, named",
    "said": "reported",
    "anew": "again",
    "mend": "fix",
    "mends": "fixes",
    "mended": "fixed",
    "alone": "only",
    "meanwhile": "during this time, or nothing",
    "nobody": "no principal, no client",
    "of ours": "our",
    "goes on": "continues",
    "go on": "continue",
    "going on": "continuing",
    "stands": "is",
    "to the letter": "exactly",
    "let in": "admitted",
    "lets in": "admits",
    "comes to": "results in",
    "be had": "available",
    "for it is": "because it is",
    "is no": "is not a, has no",
    "are no": "are not, have no",
    "is none": "does not exist",
    "nothing but": "only",
    "holds": "contains, keeps",
    "era": "protocol version",
    "eras": "protocol versions",
    "whoever": "clients that",
    "strangers": "others",
}
"""Each word or phrase, and better ones."""

SENTENCES: Final = {
    r"(?:^|[.:;] )(?:Who|Whose|Whoever|What) (?!is\b|are\b)[a-z][^.?\n]*[.;](?!\?)": "begin with the subject",
}
"""Patterns of sentences, and the advice."""


class Exemption(NamedTuple):
    """A text in which excluded words are right."""

    files: str
    text: str
    """A pattern; what it matches is not searched."""
    reason: str


EXEMPTIONS: Final = (
    Exemption("*", r"This path stands for", "the wording of notices, which models were measured with"),
    Exemption("src/mcp_mirror/core/results/notice.py", r"This path .* stands for", "the wording of notices"),
    Exemption("src/mcp_mirror/memory/tools/table.py", r"a memory path, to the letter", "the description of a tool"),
    Exemption("src/mcp_mirror/paths.py", r"stands for ", "a pattern of notices"),
    Exemption("docs/evaluation/wording.md", r"`[^`]*`", "quotes notices and prompts as they were measured"),
    Exemption("docs/evaluation/index.md", r"`told: false`|`-` is none", "a key of a case"),
    Exemption("*", r"(?s)```.*?\n```", "code blocks: tests run them or compare them"),
    Exemption("*", r"`[^`\n]*::test_\w+`", "names of tests"),
    Exemption("*.py", r"\bis None\b", "Python"),
    Exemption("*", r"\b(?:is|are) no longer\b", "means `not any more`"),
    Exemption("src/mcp_mirror/demo/documents.py", r"safety_data_sheet\.pdf alone is", "the description of a tool"),
    Exemption("src/mcp_mirror/evals/cases.py", r"\btold: bool", "a key of a case"),
    Exemption("src/mcp_mirror/evals/single_run.py", r"\bturn\.told\b", "a key of a case"),
    Exemption("src/mcp_mirror/evals/dialects.py", r"That is no call\.|arguments are no JSON object", "models read it"),
    Exemption("src/mcp_mirror/evals/servers.py", r"There is no tool ", "models read it"),
    Exemption("evals/servers/office.py", r"a file alone|There is no file", "models read it"),
)


def find_excluded() -> Iterator[str]:
    """Yield a line for each excluded word: file, line, word and advice."""
    for path in _files():
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        for exemption in EXEMPTIONS:
            if fnmatch(name, exemption.files):
                text = re.sub(exemption.text, _blank, text)
        for number, line in enumerate(text.splitlines(), 1):
            for word, advice in words_in(line):
                yield f"{name}:{number}: {word!r}: {advice}"


def _files() -> Iterator[Path]:
    for pattern in TEXTS:
        yield from sorted(ROOT.glob(pattern))


def _blank(found: re.Match[str]) -> str:
    """Remove a match but keep its line breaks, so that line numbers stay right."""
    return "\n" * found.group().count("\n")


_ANY_EXCLUDED: Final = re.compile(rf"(?<![A-Za-z])(?:{'|'.join(EXCLUDED)})(?![A-Za-z])", re.IGNORECASE)


def words_in(line: str) -> Iterator[tuple[str, str]]:
    """Yield each excluded word or sentence of a line, and the advice."""
    for word, advice in EXCLUDED.items() if _ANY_EXCLUDED.search(line) else ():
        if re.search(rf"(?<![A-Za-z]){word}(?![A-Za-z])", line, re.IGNORECASE):
            yield word, advice
    for pattern, advice in SENTENCES.items():
        if found := re.search(pattern, line):
            yield found.group().lstrip(".:; "), advice


if __name__ == "__main__":
    problems = list(find_excluded())
    sys.stdout.write("".join(f"{problem}\n" for problem in problems))
    sys.exit(bool(problems))

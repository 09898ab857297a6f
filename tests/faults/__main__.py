"""Produces every fault and prints the table: `python -m tests.faults`, or `make faults`."""

import os
import sys
from pathlib import Path

import pytest

HEADER = ("upstream", "what happens", "what the client saw", "what it cost", "answered after", "works again after",
          "neighbour's p99, before / during")  # fmt: skip


FIGURES = ("what happens", "what was measured")
PIPE, ESCAPED = "|", "\\|"


class Tables:
    """Collects the rows that the tests leave."""

    def __init__(self) -> None:
        self._kept: dict[str, list[tuple[str, ...]]] = {"row": [], "figure": []}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, row in report.user_properties if report.when == "call" else ():
            assert isinstance(row, tuple)
            self._kept[name].append(row)

    def __str__(self) -> str:
        """In Markdown."""
        faults, figures = self._kept["row"], self._kept["figure"]
        return f"{_table(HEADER, faults)}\n\n{_table(FIGURES, figures)}\n"


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    rule = ["---:" if at > 3 else "---" for at in range(len(header))]
    return "\n".join(f"| {' | '.join(cell.replace(PIPE, ESCAPED) for cell in row)} |" for row in (header, rule, *rows))


def main() -> int:
    """Run the tests one after the other, so that no other competes for the processors."""
    tables = Tables()
    os.environ.setdefault("FAULTS_SAMPLES", "300")
    os.environ.setdefault("ALL_COMBINATIONS", "1")
    code = pytest.main(["-q", "--no-header", str(Path(__file__).parent), *sys.argv[1:]], plugins=[tables])
    sys.stdout.write(f"\n{tables}")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())

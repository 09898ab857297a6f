"""Lets every fault happen and prints the table: `python -m tests.faults`, or `make faults`."""

import sys
from pathlib import Path

import pytest

HEADER = ("upstream", "what happens", "what the client saw", "what it cost", "answered after", "works again after",
          "neighbour's p99, before / during")  # fmt: skip


class Table:
    """Collects the rows that the tests leave."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, ...]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.rows += [tuple(map(str, row)) for key, row in report.user_properties if key == "row"]

    def lines(self) -> list[str]:
        """In Markdown."""
        rows = [HEADER, ("---",) * 4 + ("---:",) * 3, *self.rows]
        return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


def main() -> int:
    """Run the tests one after the other, so that no other competes for the processors."""
    table = Table()
    code = pytest.main(["-q", "--no-header", str(Path(__file__).parent), *sys.argv[1:]], plugins=[table])
    sys.stdout.write("\n" + "\n".join(table.lines()) + "\n")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())

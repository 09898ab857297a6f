"""What the demo prints at its end."""

from io import StringIO

import pytest
from rich.console import Console

from mcp_mirror.demo.workflows import WORKFLOWS, Trace, table_of


@pytest.mark.parametrize("unit", ["o200k tokens", "estimated tokens"])
def test_the_table_stands_on_a_terminal_of_80_columns_with_each_row_on_one_line(unit: str) -> None:
    rows = [(workflow, Trace(["with"], 1.5), Trace(["x" * 33_958_692], 61.234)) for workflow in WORKFLOWS]
    printed = StringIO()
    Console(file=printed, width=80, soft_wrap=True).print(table_of(rows, len, unit))
    lines = printed.getvalue().rstrip().splitlines()
    assert max(map(len, lines)) <= 80
    told = [" ".join(line.split()) for line in lines]
    assert told[0].endswith(f"({unit})")
    assert told[-4:] == [
        "molecule grid 4 33,958,692 1 : 8,489,673 1.50 61.23",
        "in the paper 1,234.04 20,822,181.34 1 : 16,873",
        "safety data sheet 4 33,958,692 1 : 8,489,673 1.50 61.23",
        "in the paper 841.66 6,411.36 1 : 8",
    ]

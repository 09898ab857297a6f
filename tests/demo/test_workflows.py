"""The output of the demo."""

from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from paper_workflows import WORKFLOWS, Runs, Trace, path_in, table_of, wording_table_of


@pytest.mark.parametrize("unit", ["o200k tokens", "estimated tokens"])
def test_the_table_fits_80_columns_with_each_row_on_one_line(unit: str) -> None:
    ours, worded = Trace(["with"], 1.5, ["wi"]), Trace(["x" * 12_345], notices=["x" * 1234])
    rows = [Runs(workflow, ours, worded, Trace(["x" * 33_958_692], 61.234)) for workflow in WORKFLOWS]
    lines = printed(table_of(rows, len, unit))
    assert lines[0].endswith(f"({unit})")
    assert lines[-4:] == [
        "molecule grid 4 33,958,692 1 : 8,489,673 1.50 61.23",
        "in the paper 1,234.04 20,822,181.34 1 : 16,873",
        "safety data sheet 4 33,958,692 1 : 8,489,673 1.50 61.23",
        "in the paper 841.66 6,411.36 1 : 8",
    ]
    lines = printed(wording_table_of(rows, len, unit))
    assert lines[0].endswith(f"({unit})")
    assert lines[-2:] == [f"{workflow.name} 2 1,234 0% 12,345 0%" for workflow in WORKFLOWS]


def printed(table: Table) -> list[str]:
    """Its lines on such a terminal, without what only aligns them."""
    stream = StringIO()
    Console(file=stream, width=80, soft_wrap=True).print(table)
    lines = stream.getvalue().rstrip().splitlines()
    assert max(map(len, lines)) <= 80
    return [" ".join(line.split()) for line in lines]


def test_the_path_of_a_whole_value_is_found_in_a_notice_of_any_wording() -> None:
    path = "make_grid-0b8f8d2e-6a55-4b8e-9d0a-0f3b2f6f6a11"
    for notice in (f"Stored:\n{path}\nobject", f'the path "{path}".\n- "{path}/raw_grid"', path):
        assert path_in(notice, "") == path
        assert path_in(notice, "raw_grid") == f"{path}/raw_grid"
    with pytest.raises(SystemExit, match="not stored"):
        path_in("make_grid: 42", "")

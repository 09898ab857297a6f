"""The table with a column, among the tables of a text."""

import time

import pytest
from tests.load import slowness

from mcp_mirror.query.text_tables import find_main_table_text, find_table_text, list_headers

MARKDOWN = """\
# Cities

| City | People |
|:-----|-------:|
| Bonn | 330,000 |
| Köln | 1,080,000 |

Some words | with a bar.

| Product | Price \\| net |
|---|---|
| Chair | 9.50
| Desk
"""
HTML = """\
<h1>Cities</h1>
<table class="x"><tr><th>City</th><th>People</th></tr>
<tr><td>Bonn</td><td>330&nbsp;000</td></tr><tr></tr>
<tr><td><b>Köln</b><br>am Rhein</td><td>1|2</td><td>more</td></tr></table>
<TABLE><TR><TD>Product</TD></TR><TR><TD>Chair</TD></TR></TABLE>
<table><tr><td>Outer<table><tr><td>Inner</td></tr><tr><td>1</td></tr></table></td></tr></table>
<table></table>
"""


@pytest.mark.parametrize(
    ("text", "column", "lines"),
    [
        (MARKDOWN, "people", ["| City | People |", "| --- | --- |", "| Bonn | 330,000 |", "| Köln | 1,080,000 |"]),
        (
            MARKDOWN,
            "Price | net",
            ["| Product | Price \\| net |", "| --- | --- |", "| Chair | 9.50 |", "| Desk |  |"],
        ),
        (
            HTML,
            "City",
            [
                "| City | People |  |",
                "| --- | --- | --- |",
                "| Bonn | 330 000 |  |",
                "| Köln am Rhein | 1\\|2 | more |",
            ],
        ),
        (HTML, "product", ["| Product |", "| --- |", "| Chair |"]),
        (HTML, "Inner", ["| Inner |", "| --- |", "| 1 |"]),
        ("Names:\r\n\r\n| a |\r\n|---|\r\n| 1 |\r\n", "a", ["| a |", "| --- |", "| 1 |"]),
        ("Names:\n\na | b\n:-- | --:\nx | 1\ny\n\nz | 2\n", "b", ["| a | b |", "| --- | --- |", "| x | 1 |"]),
        ("a | b |\n--|--|\nx | 1 |\n", "A", ["| a | b |", "| --- | --- |", "| x | 1 |"]),
    ],
)
def test_the_table_with_a_column_is_found(text: str, column: str, lines: list[str]) -> None:
    assert (find_table_text(text, column) or "").split("\n") == lines


@pytest.mark.parametrize(
    ("text", "column"),
    [
        (MARKDOWN, "Bonn"),
        (MARKDOWN * 2, "City"),
        (HTML, "Outer"),
        ("| a |\n| b |\n|---|\n| 1 |\n", "b"),
        ("no bar\n|---|\n", "no bar"),
        ("either | or | both\n--- | ---\n1 | 2\n", "or"),
        ("x | y\na | b\n--- | ---\n1 | 2\n", "b"),
        ("</table>", ""),
        ("<table><tr><td>a" + "<tr>" + "<td>" * 5000 + "<tr><td>" * 5000 + "</table>", "a"),
        ("| a |\n|---|\n" * (1 << 21), "a"),
    ],
)
def test_no_table_is_found_without_the_column_or_in_several(text: str, column: str) -> None:
    assert find_table_text(text, column) is None


def test_the_table_with_most_lines_of_a_text_is_the_main_one() -> None:
    table = "| a |\n|---|\n| 1 |\n"
    assert find_main_table_text(f"Names:\n \n{table}\nAll.\n") == "| a |\n| --- |\n| 1 |"
    assert find_main_table_text(f"Names:\n\n{table}\nAll of them.\nThe end.\n") is None
    assert find_main_table_text(f"{table}\n{table}") is None
    assert find_main_table_text(table * (1 << 21)) is None


def test_the_columns_of_tables_are_listed_without_equal_ones() -> None:
    assert list_headers(f"{MARKDOWN}\n| City | People |\n|---|---|\n") == [("Product", "Price | net")]
    assert list_headers("| a |\n|---|\n" * (1 << 21)) == []


def test_a_text_with_very_many_tables_is_read_in_time() -> None:
    text = "|a|\n|-|\nx\n" * 200_000
    started = time.perf_counter()
    assert list_headers(text) == []
    assert time.perf_counter() - started < 10 * slowness()


@pytest.mark.parametrize("line", [f"{' ' * 200_000}x |", f"|{' ' * 200_000}x |", f"{' ' * 200_000}- x |"])
def test_a_long_line_of_spaces_is_read_in_time(line: str) -> None:
    started = time.perf_counter()
    assert find_main_table_text(f"Title\n{line}\n") is None
    assert time.perf_counter() - started < 5 * slowness()

"""The oracle's script for ExcelMarketResearch: growth rates of a category, from a workbook in the workspace.

A program in the workspace does everything, so the script is the same in every arm.
"""

import re

from loca_bigquery import folder_in, run
from loca_oracle import Script, ask

_BOOKS = ("Market_Data.xlsx", "Market_Data_Format.xlsx")
GROW = """\
from openpyxl import Workbook, load_workbook
book = load_workbook("Market_Data.xlsx", data_only=True)
methods = list(book["Methodology"].iter_rows(values_only=True))
weights = dict(zip(methods[0][1:], next(row for row in methods if row[0] == {target!r})[1:]))
header, *lines = book["RawData"].iter_rows(values_only=True)
names = [name.rsplit(" (", 1)[0] for name in header[1:]]
scales = [0.001 if "(mn " in name else 1 for name in header[1:]]
values = {{int(line[0]): [value * scale for value, scale in zip(line[1:], scales)] for line in lines if line[0]}}
totals = {{year: sum((weights[name] or 0) * value for name, value in zip(names, row)) for year, row in values.items()}}
result = Workbook()
sheet = result.active
sheet.title = "GrowthRate"
sheet.append(["Year"] + [name + " %" for name in names] + ["Growth Rate %"])
def growth(new, old):
    return round((new / old - 1) * 100, 4)
for year in range({first}, {last} + 1):
    rates = [growth(new, old) for new, old in zip(values[year], values[year - 1])]
    sheet.append([year] + rates + [growth(totals[year], totals[year - 1])])
result.save("growth_rate.xlsx")
print(sheet.max_row)
"""


def research() -> Script:
    """Look at the sheets, and calculate in a program."""
    details, folders = yield [
        ask("filesystem.read_text_file", path="task_specific.md"),
        ask("filesystem.list_allowed_directories"),
    ]
    folder = folder_in(folders)
    sheets = (("Methodology", _BOOKS[0]), ("RawData", _BOOKS[0]), ("GrowthRate", _BOOKS[1]))
    yield [
        ask("excel.read_data_from_excel", filepath=f"{folder}/{book}", sheet_name=sheet, end_cell="D3")
        for sheet, book in sheets
    ]
    found = re.search(r"Target Category:\*\* (.+)\n\n\*\*Time Range:\*\* (\d+) to (\d+)", details)
    if not found:
        raise LookupError(f"No category and years: {details[:500]}")
    yield [run(GROW.format(target=found[1].strip(), first=found[2], last=found[3]))]

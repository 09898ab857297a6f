"""The oracle's scripts for NhlB2bAnalysis: a schedule in a spreadsheet, counts per team in another and in a file."""

import csv
import io
from collections.abc import Generator
from datetime import date
from itertools import pairwise
from typing import Any

from loca_oracle import Ask, Script, Step, ask
from loca_reading import path_in, printed, read_json, returned

Finding = Generator[Step, list[str], tuple[str, str]]

HEADER = ["Team", "HA", "AH", "HH", "AA", "Total"]
RANGE = "A1:H6000"

COUNT = """\
from datetime import date
teams = {}
for row in rows[1:]:
    for team, place in ((row[3], "A"), (row[5], "H")):
        teams.setdefault(team, []).append((row[0], place))
table = []
for team in sorted(teams):
    counts = {"HA": 0, "AH": 0, "HH": 0, "AA": 0}
    games = sorted(teams[team], key=lambda game: game[0])
    for i in range(len(games) - 1):
        first, second = [date(*[int(part) for part in games[i + n][0].split("-")]) for n in (0, 1)]
        if (second - first).days == 1:
            counts[games[i][1] + games[i + 1][1]] += 1
    table.append([team] + list(counts.values()) + [sum(counts.values())])
"""
IN_FILE = f"""\
import csv, json
rows = json.load(open("games.json"))
{COUNT}
with open("nhl_b2b_analysis.csv", "w", newline="") as file:
    csv.writer(file).writerows([{HEADER}] + table)
print(json.dumps(table))
"""
IN_MEMORY = f"""\
data = await tools.get_sheet_data(spreadsheet_id=sheet_id, sheet=sheet, range="{RANGE}")
rows = data["valueRanges"][0]["values"]
{COUNT}
table = [{HEADER}] + table
text = "".join([",".join([str(cell) for cell in row]) + "\\n" for row in table])
await tools.write_file(path="nhl_b2b_analysis.csv", content=text)
made = await tools.create_spreadsheet(title="nhl_b2b_analysis")
await tools.update_cells(
    spreadsheet_id=made["spreadsheetId"], sheet="Sheet1", range="A1:F" + str(len(table)), data=table)
"""
IN_PTC = f"""\
import json
text = tools.google_sheet_get_sheet_data(spreadsheet_id="%s", sheet="%s", range="{RANGE}")
rows = json.loads(text)["valueRanges"][0]["values"]
{COUNT}
print(json.dumps(table))
"""


def _count(rows: list[list[str]]) -> list[list[Any]]:
    """The counts of each team, as a model that has read all games would write them."""
    teams: dict[str, list[tuple[date, str]]] = {}
    for row in rows[1:]:
        for team, place in ((row[3], "A"), (row[5], "H")):
            teams.setdefault(team, []).append((date.fromisoformat(row[0]), place))
    table = []
    for team in sorted(teams):
        counts = {"HA": 0, "AH": 0, "HH": 0, "AA": 0}
        games = sorted(teams[team], key=lambda game: game[0])
        for (first, place), (second, next_place) in pairwise(games):
            if (second - first).days == 1:
                counts[place + next_place] += 1
        table.append([team, *counts.values(), sum(counts.values())])
    return table


def _find() -> Finding:
    """Find the spreadsheet and its sheet."""
    (listed,) = yield [ask("google_sheet.list_spreadsheets")]
    sheet_id = next(one["id"] for one in read_json(listed) if one["title"] == "NHL Regular 2024-2025")
    (sheets,) = yield [ask("google_sheet.list_sheets", spreadsheet_id=sheet_id)]
    return sheet_id, read_json(sheets)[0]


def _save(table: list[list[Any]], *, with_file: bool) -> Script:
    """Write the counts to a new spreadsheet, and to a file if a program has not done that."""
    calls: list[Ask] = [ask("google_sheet.create_spreadsheet", title="nhl_b2b_analysis")]
    if with_file:
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows([HEADER, *table])
        calls.append(ask("filesystem.write_file", path="nhl_b2b_analysis.csv", content=file.getvalue()))
    made, *_ = yield calls
    yield [
        ask(
            "google_sheet.update_cells",
            spreadsheet_id=read_json(made)["spreadsheetId"],
            sheet="Sheet1",
            range=f"A1:F{len(table) + 1}",
            data=[HEADER, *table],
        )
    ]


def direct() -> Script:
    """Read all games."""
    sheet_id, sheet = yield from _find()
    (games,) = yield [ask("google_sheet.get_sheet_data", spreadsheet_id=sheet_id, sheet=sheet, range=RANGE)]
    yield from _save(_count(read_json(games)["valueRanges"][0]["values"]), with_file=True)


def mirror() -> Script:
    """Pass the path of the games to a file, and count there."""
    sheet_id, sheet = yield from _find()
    (games,) = yield [ask("google_sheet.get_sheet_data", spreadsheet_id=sheet_id, sheet=sheet, range=RANGE)]
    rows = f"{path_in(games)}/valueRanges/0/values"
    yield [ask("memory_read", memory_path=rows, limit=3)]
    yield [ask("filesystem.write_file", path="games.json", content=rows)]
    (counted,) = yield [ask("python_execute.python_execute", code=IN_FILE)]
    yield from _save(printed(counted), with_file=False)


def scripts() -> Script:
    """Do everything in one script."""
    sheet_id, sheet = yield from _find()
    yield [ask("google_sheet.get_sheet_data", spreadsheet_id=sheet_id, sheet=sheet, range="A1:H3")]
    yield [ask("memory_run", code=IN_MEMORY, inputs={"sheet_id": sheet_id, "sheet": sheet})]


def ptc() -> Script:
    """Count in a script of the suite."""
    sheet_id, sheet = yield from _find()
    yield [ask("google_sheet.get_sheet_data", spreadsheet_id=sheet_id, sheet=sheet, range="A1:H3")]
    code = IN_PTC % (sheet_id, sheet)
    (counted,) = yield [ask("programmatic_tool_calling.code_execution", code=code)]
    yield from _save(returned(counted), with_file=True)

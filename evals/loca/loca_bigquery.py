"""The oracle's scripts for AcademicWarning, MachineOperating and ABTesting: tables in BigQuery, and files.

A model with SQL reads aggregates in every arm. The arms differ in the way of a result to a file or a program.
"""

import csv
import io
import json
import re
from collections.abc import Generator, Sequence
from typing import Any

from loca_oracle import Ask, Script, Step, ask, read_whole
from loca_reading import is_stored, path_in, printed, read_rows, read_shown

ROWS = 100_000


def query(sql: str) -> Ask:
    """A query that returns all rows."""
    return ask("google_cloud.bigquery_run_query", query=sql, max_results=ROWS)


def write(path: str, content: str) -> Ask:
    """A new file."""
    return ask("filesystem.write_file", path=path, content=content)


def run(code: str) -> Ask:
    """A program in the workspace."""
    return ask("python_execute.python_execute", code=code)


def _csv(rows: Sequence[Sequence[Any]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()


def _tables(dataset: str) -> Step:
    return [query(f"SELECT table_name FROM `{dataset}.INFORMATION_SCHEMA.TABLES`")]


def _names(text: str) -> Generator[Step, list[str], list[str]]:
    """The names of the tables in a result. `memory_query` cannot select them, because the JSON follows a heading."""
    whole = yield from read_whole(text)
    return [str(row["table_name"]) for row in read_rows(whole)]


# AcademicWarning

_QUIZ = ask("filesystem.read_text_file", path="latest_quiz_scores.csv")
_QUIZ_HEAD = ask("filesystem.read_text_file", path="latest_quiz_scores.csv", head=3)
COMPARE = """\
import csv, json
text = open("history.txt").read()
history = {row["student_id"]: row["average"] for row in json.loads(text[text.index("["):])}
bad, critical = [], []
for row in csv.DictReader(open("latest_quiz_scores.csv")):
    average = history.get(row["student_id"])
    if not average:
        continue
    drop = (average - float(row["score"])) / average
    if drop > 0.25:
        bad.append([row["student_id"], row["name"], row["score"], round(average, 3), round(drop, 4)])
    if drop > 0.45:
        critical.append([row["student_id"], row["name"]])
with open("bad_student.csv", "w", newline="") as file:
    csv.writer(file).writerows([["student_id", "name", "score", "hist_avg", "drop_ratio"]] + bad)
print(json.dumps(critical))
"""
WARN = """\
import json
text = await tools.bigquery_run_query(query=sql, max_results=100000)
await tools.write_file(path="history.txt", content=text)
output = await tools.python_execute(code=program)
critical = json.loads(output.split("=== STDOUT ===\\n")[1].split("\\n")[0])
for student, name in critical:
    await tools.logging_write_log(log_name="exam_log", severity="CRITICAL",
        message="CRITICAL warning: " + name + " (" + student + "): score dropped by more than 45%")
len(critical)
"""


def _history(names: Sequence[str]) -> str:
    parts = " UNION ALL ".join(f"SELECT student_id, score FROM `academic_warning.{name}`" for name in names)
    return f"SELECT student_id, AVG(score) AS average FROM ({parts}) GROUP BY student_id"


def _warnings(critical: Sequence[Sequence[str]]) -> list[Ask]:
    return [
        ask(
            "google_cloud.logging_write_log",
            log_name="exam_log",
            severity="CRITICAL",
            message=f"CRITICAL warning: {name} ({student}): score dropped by more than 45%",
        )
        for student, name in critical
    ]


def warn_direct() -> Script:
    """Read the averages and all scores."""
    listed, quiz = yield [*_tables("academic_warning"), _QUIZ]
    names = yield from _names(listed)
    (averages,) = yield [query(_history(names))]
    history = {row["student_id"]: row["average"] for row in read_rows(averages)}
    bad: list[list[Any]] = [["student_id", "name", "score", "hist_avg", "drop_ratio"]]
    critical: list[list[str]] = []
    for row in csv.DictReader(io.StringIO(quiz)):
        average = history[row["student_id"]]
        drop = (average - float(row["score"])) / average
        if drop > 0.25:
            bad.append([row["student_id"], row["name"], row["score"], round(average, 3), round(drop, 4)])
        if drop > 0.45:
            critical.append([row["student_id"], row["name"]])
    yield [write("bad_student.csv", _csv(bad)), *_warnings(critical)]


def warn_mirror() -> Script:
    """Pass the path of the averages to a file, and compare there."""
    listed, _ = yield [*_tables("academic_warning"), _QUIZ_HEAD]
    names = yield from _names(listed)
    (averages,) = yield [query(_history(names))]
    yield [write("history.txt", path_in(averages))]
    (compared,) = yield [run(COMPARE)]
    yield _warnings(printed((yield from read_whole(compared))))


def warn_scripts() -> Script:
    """Compare in a program, and write the warnings, in one script."""
    listed, _ = yield [*_tables("academic_warning"), _QUIZ_HEAD]
    sql = _history((yield from _names(listed)))
    yield [query(f"{sql} LIMIT 2")]
    yield [ask("memory_run", code=WARN, inputs={"sql": sql, "program": COMPARE})]


# MachineOperating

_BETWEEN = "timestamp BETWEEN '2025-08-19 11:30:00' AND '2025-08-19 12:30:00'"
_SENSORS = f"SELECT * FROM `machine_operating.live_sensor` WHERE {_BETWEEN}"
_WORKBOOK = "machine_operating_parameters.xlsx"
_BUCKET = "iot_anomaly_reports"
_REPORT = "anomaly_report.csv"
FIND = f"""\
import csv, json
from openpyxl import load_workbook
sheet = load_workbook("{_WORKBOOK}").worksheets[0]
lines = list(sheet.iter_rows(values_only=True))
place = {{str(name).lower(): at for at, name in enumerate(lines[0])}}
ranges = {{}}
for line in lines[1:]:
    key = (line[place["machine_id"]], line[place["sensor_type"]])
    ranges[key] = (float(line[place["min_value"]]), float(line[place["max_value"]]))
text = open("readings.txt").read()
found = [["timestamp", "machine_id", "sensor_type", "reading", "normal_range"]]
for row in json.loads(text[text.index("["):]):
    low, high = ranges[row["machine_id"], row["sensor_type"]]
    if not low <= row["reading"] <= high:
        found.append([row["timestamp"], row["machine_id"], row["sensor_type"], row["reading"], f"{{low}} - {{high}}"])
with open("{_REPORT}", "w", newline="") as file:
    csv.writer(file).writerows(found)
print(len(found) - 1)
"""
FIND_IN_SCRIPT = f"""\
text = await tools.bigquery_run_query(query=sql, max_results=100000)
await tools.write_file(path="readings.txt", content=text)
print(await tools.python_execute(code=program))
await tools.storage_create_bucket(bucket_name="{_BUCKET}")
await tools.storage_upload_file(
    bucket_name="{_BUCKET}", source_file_path=folder + "/{_REPORT}", destination_blob_name="{_REPORT}")
"""
_LOOK: Step = [
    ask("filesystem.list_allowed_directories"),
    query("SELECT * FROM `machine_operating.live_sensor` LIMIT 2"),
]


def _upload(folder: str) -> list[Ask]:
    source = f"{folder}/{_REPORT}"
    return [
        ask("google_cloud.storage_create_bucket", bucket_name=_BUCKET),
        ask(
            "google_cloud.storage_upload_file",
            bucket_name=_BUCKET,
            source_file_path=source,
            destination_blob_name=_REPORT,
        ),
    ]


def folder_in(text: str) -> str:
    """The workspace, in the list of allowed directories. The server of workbooks needs absolute paths."""
    return read_shown(text).splitlines()[1]


def sheet_in(text: str) -> str:
    """The first sheet in the description of a workbook."""
    names = re.findall(r"\"sheets\": \[\s*\"([^\"]+)\"|'sheets': \['([^']+)'", text)
    return str(next(filter(None, names[0])))


def _ranges(text: str) -> dict[tuple[str, str], tuple[float, float]]:
    """The normal range of each sensor of each machine, in the cells of the sheet."""
    cells = json.loads(text)["cells"]
    lines: dict[int, dict[int, Any]] = {}
    for cell in cells:
        lines.setdefault(cell["row"], {})[cell["column"]] = cell["value"]
    header, *rest = (lines[row] for row in sorted(lines))
    place = {str(name).lower(): column for column, name in header.items()}
    return {
        (line[place["machine_id"]], line[place["sensor_type"]]): (
            float(line[place["min_value"]]),
            float(line[place["max_value"]]),
        )
        for line in rest
    }


def machines_direct() -> Script:
    """Read all readings and all ranges."""
    folders, _ = yield _LOOK
    book = f"{folder_in(folders)}/{_WORKBOOK}"
    (workbook,) = yield [ask("excel.get_workbook_metadata", filepath=book)]
    cells, readings = yield [
        ask("excel.read_data_from_excel", filepath=book, sheet_name=sheet_in(workbook)),
        query(_SENSORS),
    ]
    ranges = _ranges(cells)
    found: list[list[Any]] = [["timestamp", "machine_id", "sensor_type", "reading", "normal_range"]]
    for row in read_rows(readings):
        low, high = ranges[row["machine_id"], row["sensor_type"]]
        if not low <= row["reading"] <= high:
            reading = [row["timestamp"], row["machine_id"], row["sensor_type"], row["reading"]]
            found.append([*reading, f"{low} - {high}"])
    yield [write(_REPORT, _csv(found)), *_upload(folder_in(folders))]


def look_at_workbook(book: str, last: str) -> Script:
    """Read the first two lines of a workbook."""
    (workbook,) = yield [ask("excel.get_workbook_metadata", filepath=book)]
    yield [ask("excel.read_data_from_excel", filepath=book, sheet_name=sheet_in(workbook), end_cell=f"{last}2")]


def machines_mirror() -> Script:
    """Pass the path of the readings to a file, and compare there."""
    folders, _ = yield _LOOK
    yield from look_at_workbook(f"{folder_in(folders)}/{_WORKBOOK}", "H")
    (readings,) = yield [query(_SENSORS)]
    yield [write("readings.txt", path_in(readings))]
    yield [run(FIND)]
    yield _upload(folder_in(folders))


def machines_scripts() -> Script:
    """The same in one script."""
    folders, _ = yield _LOOK
    yield from look_at_workbook(f"{folder_in(folders)}/{_WORKBOOK}", "H")
    inputs = {"sql": _SENSORS, "program": FIND, "folder": folder_in(folders)}
    yield [ask("memory_run", code=FIND_IN_SCRIPT, inputs=inputs)]


# ABTesting

_PARTS = 400
"""Tables of one query: SQLite allows 500."""
_TABLE_NAME = re.compile(r'"table_name": "(\w+)"')
_OVERALL = "overall (total_store_views/total_clicks)"
_RECORD = ask("filesystem.read_text_file", path="record.csv")
_LOG = "{'status': 'AB_Test_Concluded', 'winner': 'A', 'action': 'No_Change'}"
RATES = f"""\
import csv, glob, json
rows = []
for name in sorted(glob.glob("sums_*.txt")):
    text = open(name).read()
    rows += json.loads(text[text.index("["):])
rates = [[row["scenario"], 100 * row["av"] / row["ac"], 100 * row["bv"] / row["bc"]] for row in rows]
totals = {{name: sum(row[name] for row in rows) for name in ("ac", "av", "bc", "bv")}}
rates.append(["{_OVERALL}", 100 * totals["av"] / totals["ac"], 100 * totals["bv"] / totals["bc"]])
with open("record.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["scenario", "A_conversion %", "B_conversion %"])
    writer.writerows([[name, f"{{a:.3f}}%", f"{{b:.3f}}%"] for name, a, b in rates])
print(json.dumps(rates[-1][1:]))
"""
_EACH_QUERY = f"""\
names = [row["table_name"] for row in json.loads(listed[listed.index("["):])]
for start in range(0, len(names), {_PARTS}):
    sql = " UNION ALL ".join(["SELECT '" + name[3:] + "' AS scenario, SUM(A_clicks) AS ac, SUM(A_store_views) AS av, "
        "SUM(B_clicks) AS bc, SUM(B_store_views) AS bv FROM `ab_testing." + name + "`"
        for name in names[start:start + {_PARTS}]])
"""
RATES_IN_SCRIPT = f"""\
import json
listed = await tools.bigquery_run_query(
    query="SELECT table_name FROM `ab_testing.INFORMATION_SCHEMA.TABLES`", max_results=100000)
{_EACH_QUERY}\
    text = await tools.bigquery_run_query(query=sql, max_results=100000)
    await tools.write_file(path="sums_" + str(start) + ".txt", content=text)
print(await tools.python_execute(code=program))
"""
QUERIES = f"""\
import json
listed = open("tables.txt").read()
{_EACH_QUERY}\
    open("query_" + str(start // {_PARTS}) + ".txt", "w").write(sql)
print(json.dumps(start // {_PARTS} + 1))
"""


def _sums(names: Sequence[str]) -> str:
    return " UNION ALL ".join(
        f"SELECT '{name[3:]}' AS scenario, SUM(A_clicks) AS ac, SUM(A_store_views) AS av, "
        f"SUM(B_clicks) AS bc, SUM(B_store_views) AS bv FROM `ab_testing.{name}`"
        for name in names
    )


def _conclude(rate_a: float, rate_b: float) -> Step:
    if rate_b > rate_a:
        return [ask("google_cloud.storage_create_bucket", bucket_name="promo-assets-for-b")]
    return [ask("google_cloud.logging_write_log", log_name="abtesting_logging", message=_LOG)]


def _queries(names: Sequence[str]) -> list[Ask]:
    return [query(_sums(names[start : start + _PARTS])) for start in range(0, len(names), _PARTS)]


def rates_direct() -> Script:
    """Read the sums of all scenarios, and write the rates."""
    listed, _ = yield [*_tables("ab_testing"), _RECORD]
    names = yield from _names(listed)
    yield [query(f"SELECT * FROM `ab_testing.{names[0]}` LIMIT 2")]
    sums = yield _queries(names)
    rows = [row for text in sums for row in read_rows(text)]
    rates = [[row["scenario"], 100 * row["av"] / row["ac"], 100 * row["bv"] / row["bc"]] for row in rows]
    totals = {name: sum(row[name] for row in rows) for name in ("ac", "av", "bc", "bv")}
    overall = (100 * totals["av"] / totals["ac"], 100 * totals["bv"] / totals["bc"])
    lines = [[name, f"{a:.3f}%", f"{b:.3f}%"] for name, a, b in [*rates, [_OVERALL, *overall]]]
    record = _csv([["scenario", "A_conversion %", "B_conversion %"], *lines])
    yield [write("record.csv", record), *_conclude(*overall)]


def _one_name(text: str) -> Generator[Step, list[str], str]:
    """The name of one table in a result, of which the first line with a name is read if the result is stored."""
    if is_stored(text):
        (text,) = yield [ask("memory_grep", memory_path=path_in(text), pattern="table_name", limit=1)]
    return str(_TABLE_NAME.findall(text)[0])


def _queries_in_files(listed: str) -> Generator[Step, list[str], list[Ask]]:
    """Write the queries of a stored list of tables in a program, since they repeat each name; return them as paths."""
    yield [write("tables.txt", path_in(listed))]
    (number,) = yield [run(QUERIES)]
    names = [f"query_{at}.txt" for at in range(printed(number))]
    texts = yield [ask("filesystem.read_text_file", path=name) for name in names]
    return [query(path_in(text)) for text in texts]


def rates_mirror() -> Script:
    """Pass the paths of the sums to files, and write the rates there."""
    listed, _ = yield [*_tables("ab_testing"), _RECORD]
    name = yield from _one_name(listed)
    yield [query(f"SELECT * FROM `ab_testing.{name}` LIMIT 2")]
    if is_stored(listed):
        queries = yield from _queries_in_files(listed)
    else:
        queries = _queries((yield from _names(listed)))
    sums = yield queries
    yield [write(f"sums_{at}.txt", path_in(text)) for at, text in enumerate(sums)]
    (overall,) = yield [run(RATES)]
    yield _conclude(*printed(overall))


def rates_scripts() -> Script:
    """Query, and write the rates, in one script."""
    first = f"{_tables('ab_testing')[0].arguments['query']} LIMIT 2"
    listed, _ = yield [query(first), _RECORD]
    name = yield from _one_name(listed)
    yield [query(f"SELECT * FROM `ab_testing.{name}` LIMIT 2")]
    (overall,) = yield [ask("memory_run", code=RATES_IN_SCRIPT, inputs={"program": RATES})]
    yield _conclude(*printed(overall))

"""The oracle's scripts for CanvasArrangeExam: final exams, announced in courses and in mails, go into a workbook."""

import re
from collections.abc import Generator
from typing import Any, Final

from loca_bigquery import folder_in
from loca_oracle import Ask, Script, Step, ask, read_each, read_whole, source_of
from loca_reading import is_stored, path_in, read_json

_BOOK: Final = "exam_schedule.xlsx"
_SHEET: Final = "Sheet1"
_PAGE: Final = 100
_KEYS: Final = ("id", "course_code", "name", "teacher_name", "teacher_email")


def _find(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    return found[1].strip() if found else "TBD"


def _exam(course: dict[str, Any], notes: list[dict[str, Any]], mails: dict[str, str]) -> list[Any]:
    code, name = [re.sub(r"-\d+$", "", course[key]) for key in ("course_code", "name")]
    about = "\n".join([note["message"] for note in notes if note["title"].startswith("Welcome")])
    final = "\n".join([note["message"] for note in notes if note["title"].startswith("Final Exam")])
    source = "Announcement" if final else "Email"
    final = final or mails.get(name, "")
    if "not have a final exam" in final:
        return []
    months = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ]
    day = _find(final, r"Date: (.+)")
    if "," in day:
        month, number, year = day.replace(",", "").split()
        day = f"{year}-{months.index(month) + 1:02d}-{number}"
    if day < "2025-01-15":
        return []
    written = "/".join([day[5:7], day[8:], day[:4]]) if day != "TBD" else day
    start, minutes = _find(final, r"Time: (\d+:\d+)"), _find(final, r"Duration: (\d+)")
    book = _find(f"{final}\n{about}", r"Exam Type: (.+)")
    place, credit = _find(final, r"Location(?::|\n)\s*(.+)"), _find(about, r"Credits: (\d+)")
    teacher = [course["teacher_name"], course["teacher_email"]]
    return [f"{day} {start}", [code, name, *teacher, book, written, start, minutes, place, source, credit]]


SCHEDULE = f"""\
{source_of(_find, _exam)}

mails = {{}}
page = 1
while True:
    found = await tools.search_emails(query="Final Exam", page=page, page_size={_PAGE})
    for mail in found["emails"]:
        mails[mail["subject"].replace("Final Exam - ", "")] = mail["body"]
    page += 1
    if page > found["total_pages"]:
        break
exams = []
for course in await tools.canvas_list_courses():
    exams.append(_exam(course, await tools.canvas_list_announcements(course_id=course["id"]), mails))
rows = [exam[1] for exam in sorted([exam for exam in exams if exam], key=lambda exam: exam[0])]
await tools.write_data_to_excel(filepath=book, sheet_name="{_SHEET}", data=rows, start_cell="A2")
print(len(exams), "courses,", len(rows), "exams")
rows[:2]
"""


def _mails(page: int, size: int = _PAGE) -> Ask:
    return ask("email.search_emails", query="Final Exam", page=page, page_size=size)


def _announcements(course: int) -> Ask:
    return ask("canvas.canvas_list_announcements", course_id=course)


def _start(size: int) -> Step:
    folders = ask("filesystem.list_allowed_directories")
    return [folders, ask("canvas.canvas_list_courses"), _mails(1, size)]


def _header(folder: str) -> Ask:
    return ask("excel.read_data_from_excel", filepath=f"{folder}/{_BOOK}", sheet_name=_SHEET)


def read_courses(text: str) -> Generator[Step, list[str], list[dict[str, Any]]]:
    """Read all courses, or of stored ones only what the task needs."""
    if not is_stored(text):
        courses: list[dict[str, Any]] = read_json(text)
        return courses
    (chosen,) = yield [ask("memory_query", memory_path=path_in(text), expression=f"[].[{', '.join(_KEYS)}]")]
    whole = yield from read_whole(chosen)
    return [dict(zip(_KEYS, values, strict=True)) for values in read_json(whole)]


def exams() -> Script:
    """Read the announcements of all courses and the mails, and write the workbook."""
    folders, listed, first = yield _start(_PAGE)
    folder = folder_in(folders)
    courses = yield from read_courses(listed)
    inbox = read_json((yield from read_whole(first)))
    more = [_mails(page) for page in range(2, inbox["total_pages"] + 1)]
    _, *answers = yield [_header(folder), *(_announcements(course["id"]) for course in courses), *more]
    texts = [read_json(text) for text in (yield from read_each(answers))]
    notes = texts[: len(courses)]
    found = [*inbox["emails"], *(mail for page in texts[len(courses) :] for mail in page["emails"])]
    mails = {mail["subject"].replace("Final Exam - ", ""): mail["body"] for mail in found}
    rows = [_exam(course, note, mails) for course, note in zip(courses, notes, strict=True)]
    data = [row for _, row in sorted((one for one in rows if one), key=lambda one: str(one[0]))]
    book = f"{folder}/{_BOOK}"
    yield [ask("excel.write_data_to_excel", filepath=book, sheet_name=_SHEET, data=data, start_cell="A2")]


def scripts() -> Script:
    """Look at one course and one mail, and do everything in one script."""
    folders, listed, _ = yield _start(1)
    folder = folder_in(folders)
    first = path_in(listed) if is_stored(listed) else ""
    look = [ask("memory_read", memory_path=first, limit=1)] if first else []
    yield [_header(folder), *look, _announcements(1)]
    yield [ask("memory_run", code=SCHEDULE, inputs={"book": f"{folder}/{_BOOK}"})]

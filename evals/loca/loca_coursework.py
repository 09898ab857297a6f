"""The oracle's scripts for CanvasListTest: quizzes and assignments that are still due go into two files."""

import re
from collections.abc import Sequence
from typing import Any, Final

from loca_bigquery import write
from loca_exams import read_courses
from loca_oracle import Ask, Script, Step, ask, read_each, read_whole, source_of
from loca_reading import is_stored, path_in, read_json

_FILES: Final = ("quiz_info.csv", "assignment_info.csv")
_START: Final[Step] = [
    ask("memory.read_graph"),
    ask("canvas.canvas_list_courses"),
    *(ask("filesystem.read_text_file", path=name) for name in _FILES),
]
_PARTS: Final = ("announcements", "quizzes", "assignments")


def _quiz(course: dict[str, Any], quiz: dict[str, Any]) -> list[Any]:
    values = [quiz["credits"], quiz["title"], quiz["question_count"], quiz["time_limit"], quiz["allowed_attempts"]]
    due = [quiz["scoring_policy"], quiz["points_possible"], quiz["due_at"]]
    return [course["course_code"], course["name"], *values, *due]


def _assignment(course: dict[str, Any], work: dict[str, Any]) -> list[Any]:
    values = [work["name"], work["description"], work["due_at"], work["points_possible"]]
    return [course["course_code"], course["name"], *values]


def _csv(header: str, rows: list[list[Any]], due: int) -> str:
    ordered = sorted(rows, key=lambda row: (row[due], row[0]))
    lines = [",".join(['"' + str(cell).replace('"', '""') + '"' for cell in row]) for row in ordered]
    return "\n".join([header, *lines]) + "\n"


COLLECT = f"""\
{source_of(_quiz, _assignment, _csv)}

quizzes, assignments, titles = [], [], {{}}
for course in await tools.canvas_list_courses():
    number, code = course["id"], course["course_code"]
    notes = await tools.canvas_list_announcements(course_id=number)
    for note in notes:
        title = note["title"].replace(code, "CODE")
        titles[title] = titles.get(title, 0) + 1
    if code in passed and any("Exemption Policy" in note["title"] for note in notes):
        continue
    for quiz in await tools.canvas_list_quizzes(course_id=number):
        quizzes.append(_quiz(course, quiz))
    for work in await tools.canvas_list_assignments(course_id=number):
        submission = await tools.canvas_get_submission(course_id=number, assignment_id=work["id"])
        if isinstance(submission, str):
            assignments.append(_assignment(course, work))
await tools.write_file(path="{_FILES[0]}", content=_csv(headers[0], quizzes, 9))
await tools.write_file(path="{_FILES[1]}", content=_csv(headers[1], assignments, 4))
print(titles)
[len(quizzes), len(assignments), quizzes[:1], assignments[:1]]
"""


def _passed(graph: str) -> list[str]:
    """The courses of which the student has passed the exam for an exemption."""
    return re.findall(r"has been met\. This may qualify for course exemption for (\S+?)\.", graph)


def _parts(course: int) -> list[Ask]:
    return [ask(f"canvas.canvas_list_{part}", course_id=course) for part in _PARTS]


def collect() -> Script:
    """Read announcements, quizzes, assignments and submissions of all courses, and write the files."""
    stored, listed, *files = yield _START
    passed = _passed((yield from read_whole(stored)))
    courses = yield from read_courses(listed)
    texts = yield [call for course in courses for call in _parts(course["id"])]
    parts = [read_json(text) for text in (yield from read_each(texts))]
    quizzes: list[list[Any]] = []
    works: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for at, course in enumerate(courses):
        notes, found, assigned = parts[3 * at : 3 * at + 3]
        if course["course_code"] in passed and any("Exemption Policy" in note["title"] for note in notes):
            continue
        quizzes += [_quiz(course, quiz) for quiz in found]
        works += [(course, work) for work in assigned]
    submissions = yield [_submission(course["id"], work["id"]) for course, work in works]
    due = [work for work, text in zip(works, submissions, strict=True) if text.startswith("No submission")]
    yield _write(files, quizzes, [_assignment(course, work) for course, work in due])


def _submission(course: int, assignment: int) -> Ask:
    return ask("canvas.canvas_get_submission", course_id=course, assignment_id=assignment)


def _headers(files: Sequence[str]) -> list[str]:
    return [text.splitlines()[0] for text in files]


def _write(files: Sequence[str], quizzes: list[list[Any]], assignments: list[list[Any]]) -> Step:
    headers = _headers(files)
    texts = (_csv(headers[0], quizzes, 9), _csv(headers[1], assignments, 4))
    return [write(name, text) for name, text in zip(_FILES, texts, strict=True)]


def scripts() -> Script:
    """Look at one course, and do everything in one script."""
    stored, listed, *files = yield _START
    passed = _passed((yield from read_whole(stored)))
    look = [ask("memory_read", memory_path=path_in(listed), limit=1)] if is_stored(listed) else []
    yield [*look, *_parts(1)]
    yield [ask("memory_run", code=COLLECT, inputs={"passed": passed, "headers": _headers(files)})]

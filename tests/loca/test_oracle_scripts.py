"""What the oracle's scripts read in mails, announcements and invoices, and its searches, without LOCA-bench."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from loca_applications import _requests
from loca_bigquery import QUERIES, rates_mirror, rates_scripts
from loca_coursework import _csv, _passed
from loca_deadlines import REMIND, _reminders
from loca_exams import _exam
from loca_invoices import _invoice, _mails, _paid, _statements
from loca_oracle import Script, Step, ask, read_each
from loca_pack import pack
from loca_search import with_search

FOUND = """\
send_email_mirrored(to: string, subject: string, body: string)
  Send an email.
Also: read_email_mirrored, woo_orders_list_mirrored"""
CLAIM = "claim_done_mirrored()\n  claim the task is done"
ORDERS = '{"name":"woo_orders_list_mirrored","description":"List orders.","inputSchema":{}}'
STORED = '"list-5f0a3c52-0c1e-4a52-8f2b-1d9f6f2f7b10"\nThis path stands for array of 2 objects'
TABLES = '"bigquery_run_query-5f0a3c52-0c1e-4a52-8f2b-1d9f6f2f7b10"\nThis path stands for the result.'
QUERY = '"read_text_file-5f0a3c52-0c1e-4a52-8f2b-1d9f6f2f7b10"\nThis path stands for the result.'
FOUND_TABLE = '8:     "table_name": "ab_Soups",'
COURSE = {"course_code": "AI205-12", "name": "Speech-12", "teacher_name": "Ada", "teacher_email": "ada@x.org"}
WELCOME = {"title": "Welcome to AI205-12!", "message": "Credits: 3\n📝 Exam Type: Open-Book\n"}


def final(day: str) -> dict[str, str]:
    text = f"📅 Date: {day}\n⏰ Time: 10:00 - 13:00\n⏱️ Duration: 180 minutes\n📍 Location: Hall, Room 1\n"
    return {"title": "Final Exam Announcement - AI205", "message": text}


def answers(script: Script, results: list[list[str]]) -> list[Step]:
    """All steps of a script that gets these results."""
    steps = [next(script)]
    for texts in results:
        try:
            steps.append(script.send(texts))
        except StopIteration:
            break
    return steps


def orders_and_mail() -> Script:
    yield [ask("shop.woo_orders_list", page=1)]
    yield [ask("memory_run", code="await tools.send_email(to='a')"), ask("mail.send_email", to="b")]


def test_each_tool_is_searched_before_its_first_call_by_its_name() -> None:
    results = [[FOUND], [ORDERS], ["1"], ["sent", "sent"], [CLAIM], ["done"]]
    steps = answers(with_search(orders_and_mail()), results)
    assert [[one.tool for one in step] for step in steps] == [
        ["find_tools"],
        ["find_tools"],
        ["call_tool"],
        ["memory_run", "call_tool"],
        ["find_tools"],
        ["call_tool"],
    ]
    assert [one.arguments for one in (steps[0][0], steps[1][0])] == [
        {"query": "woo orders list"},
        {"name": "woo_orders_list_mirrored"},
    ]
    assert steps[3][1].arguments == {"name": "send_email_mirrored", "arguments": {"to": "b"}}


def test_a_tool_that_no_search_finds_is_an_error_with_its_name() -> None:
    with pytest.raises(LookupError, match=r"No search finds the tool 'woo_orders_list'\."):
        answers(with_search(orders_and_mail()), [["No tool matches."]])


def test_only_stored_results_of_many_are_read_again() -> None:
    texts: list[list[str]] = []

    def reading() -> Script:
        texts.append((yield from read_each(["[1]", STORED, "[2]"])))

    (step,) = answers(reading(), [["all"]])
    assert [one.arguments["memory_path"][:5] for one in step] == ["list-"]
    assert texts == [["[1]", "all", "[2]"]]


def test_queries_of_a_stored_list_of_tables_are_written_by_a_program() -> None:
    results = [[TABLES, ""], [FOUND_TABLE], ["rows"], ["written"], ["=== STDOUT ===\n2\n=== "], [QUERY, QUERY]]
    steps = answers(rates_mirror(), results)
    assert [[one.tool for one in step] for step in steps[1:]] == [
        ["memory_grep"],
        ["bigquery_run_query"],
        ["write_file"],
        ["python_execute"],
        ["read_text_file", "read_text_file"],
        ["bigquery_run_query", "bigquery_run_query"],
    ]
    assert steps[2][0].arguments["query"] == "SELECT * FROM `ab_testing.ab_Soups` LIMIT 2"
    assert [one.arguments["query"][:15] for one in steps[6]] == ["read_text_file-"] * 2


def test_a_script_needs_the_name_of_one_table_only() -> None:
    steps = answers(rates_scripts(), [[TABLES, ""], [FOUND_TABLE], ["rows"]])
    assert [[one.tool for one in step] for step in steps[1:]] == [
        ["memory_grep"],
        ["bigquery_run_query"],
        ["memory_run"],
    ]


def test_a_query_has_at_most_400_tables(tmp_path: Path) -> None:
    rows = [{"table_name": f"ab_{number}"} for number in range(401)]
    (tmp_path / "tables.txt").write_text(f"Results:\n{json.dumps(rows)}")
    done = subprocess.run([sys.executable, "-c", QUERIES], cwd=tmp_path, capture_output=True, text=True, check=True)
    first, second = [(tmp_path / f"query_{at}.txt").read_text() for at in range(int(done.stdout))]
    assert first.count(" UNION ALL ") == 399
    assert second.startswith("SELECT '400' AS scenario, SUM(A_clicks) AS ac")


def test_an_exam_is_read_from_an_announcement_or_from_a_mail() -> None:
    row = ["AI205", "Speech", "Ada", "ada@x.org", "Open-Book", "02/09/2025", "10:00", "180", "Hall, Room 1"]
    announced = _exam(COURSE, [final("February 09, 2025"), WELCOME], {})
    assert announced == ["2025-02-09 10:00", [*row, "Announcement", "3"]]
    mail = (
        "Exam Type: Closed-book\nExam Date: 2025-02-09\nExam Time: 10:00\nDuration: 90 minutes\nExam Location\nHall\n"
    )
    _, mailed = _exam(COURSE, [WELCOME], {"Speech": mail})
    assert mailed[4:] == ["Closed-book", "02/09/2025", "10:00", "90", "Hall", "Email", "3"]


def test_a_past_exam_and_a_course_without_one_are_not_listed() -> None:
    none = {"title": "Final Exam Announcement", "message": "This course does not have a final exam."}
    assert _exam(COURSE, [final("January 10, 2025"), WELCOME], {}) == []
    assert _exam(COURSE, [none, WELCOME], {}) == []
    assert _exam(COURSE, [WELCOME], {})[1][5:9] == ["TBD"] * 4


def test_only_courses_with_a_passed_exam_are_exempt() -> None:
    met = "The exemption requirement is 95, which has been met. This may qualify for course exemption for TW101-22."
    failed = "The exemption requirement is 85, which has not been met. Need to take PM201-19."
    assert _passed(json.dumps([failed, met])) == ["TW101-22"]


def test_rows_are_ordered_by_deadline_and_course() -> None:
    assert _csv("code,due", [["b", "2"], ["c", "1"], ["a", "2"]], 1) == 'code,due\n"c","1"\n"a","2"\n"b","2"\n'


def test_a_reminder_is_three_hours_before_the_extended_deadline() -> None:
    mails = [
        {"subject": "[KG demo] Camera-Ready Submission Instructions", "body": "Deadline: 2025-10-08T23:59:00-12:00"},
        {
            "subject": "[KG demo] Camera-Ready Deadline EXTENDED",
            "body": "Original deadline: 2025-10-08T23:59:00-12:00\nNEW deadline: 2025-10-11T23:59:00-12:00\n",
        },
        {"subject": "[KG demo] Registration Reminder", "body": "Deadline: 2026-01-01T00:00:00-12:00"},
        {"subject": "[XX demo] Camera-Ready Deadline EXTENDED", "body": "NEW deadline: 2025-10-12T23:59:00-12:00"},
    ]
    reminders = [["KG (demo)", "2025-10-11T20:59:00-12:00", "2025-10-11T23:59:00-12:00"]]
    assert _reminders("  • KG (demo)\n  • ZZ (demo)\n", mails) == reminders
    assert "def _reminders(" in REMIND


def test_the_requested_folders_are_read_from_a_tree() -> None:
    papers = "├── 01_Papers/\n│   ├── CV.pdf\n│   ├── Awards/\n│   │   └── All.pdf\n"
    tree = f"Name_Number/\n{papers}├── 02_Letters/\n│   └── [X]-1.pdf\n"
    wanted = f"send them to our admissions team at a@x.org:\n\nFolder Structure:\n```text\n{tree}```\n"
    mails = [{"body": wanted}, {"body": "We have no open positions."}]
    assert _requests(mails) == [["a@x.org", ["01_Papers/Awards/All.pdf", "01_Papers/CV.pdf", "02_Letters/[X]-1.pdf"]]]


@pytest.mark.parametrize(
    ("status", "paid"),
    [
        ("PAYMENT STATUS: ✓ PAID ($100.00)", "100.00"),
        ("Fully settled - Thank you for your payment", "100.00"),
        ("Payment completed successfully", "100.00"),
        ("PAYMENT STATUS: ■ PARTIAL ($40.00 of $100.00)", "40.00"),
        ("Payment in progress: $40.00 paid", "40.00"),
        ("PAYMENT STATUS: ✗ UNPAID", "0"),
        ("Payment verification in process", "0"),
        ("Awaiting payment authorization", "0"),
    ],
)
def test_the_paid_amount_follows_from_the_state_of_an_invoice(status: str, paid: str) -> None:
    assert _paid({"status": status, "total": "100.00"}) == paid


@pytest.mark.parametrize("heading", ["Supplier:", "Vendor:", "Department: Accounts Payable"])
def test_an_invoice_is_registered_and_its_manager_gets_a_mail(heading: str) -> None:
    buyer = f"Date: 2024-02-25\n{heading}\nNeil's Ltd.\nContact: a@x.org\n"
    text = f"{buyer}Total Amount: $100.00\nBank Account: 622\nPending\n"
    invoices: list[dict[str, Any]] = [_invoice("INV-1.pdf", text)]
    assert _mails(invoices) == [["a@x.org", "Invoices to process: INV-1.pdf"]]
    first, second = _statements(invoices)
    assert first.endswith("VALUES ('INV-1', 'Neil''s Ltd.', 100.00, 'a@x.org', '2024-02-25')")
    assert second.endswith("VALUES ('INV-1', 0, 1)")


def test_raw_logs_are_packed_with_their_tables(tmp_path: Path) -> None:
    figures = {"prompt_tokens": 10, "cached_tokens": 0, "completion_tokens": 1, "steps": 1, "calls": 1, "seconds": 1.0}
    labels = {"model": "oracle", "task": "Nhl", "size": "8k", "arm": "mirror", "end": "answered"}
    run = {"key": "a", **labels, **figures, "context_tokens": 900, "definition_tokens": 300}
    logs = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for log, success in zip(logs, (False, True), strict=True):
        log.write_text(json.dumps({**run, "success": success}) + "\n")
    archive = tmp_path / "new" / "logs.zip"
    pack(archive, logs, "today, commit 1:")
    with ZipFile(archive) as packed:
        assert {name for name in packed.namelist() if name.startswith("logs/")} == {"logs/one.jsonl", "logs/two.jsonl"}
        assert packed.read("logs/one.jsonl") == logs[0].read_bytes()
        tables = packed.read("tables.md").decode()
    assert tables.startswith("today, commit 1:\n\n| model | size | arm |")
    assert "| oracle | 8k | mirror | 1/1 | 900 |" in tables

"""The oracle's scripts for SetConfCrDdl: deadlines of conferences, in mails, become reminders in a calendar."""

import re
from datetime import datetime, timedelta
from typing import Any, Final

from loca_bigquery import run, write
from loca_oracle import Ask, Script, ask, read_whole, source_of
from loca_reading import path_in, printed, read_json

_PAGE: Final = 100
_NOTE: Final = ask("filesystem.read_text_file", path="conference_info.txt")


def _reminders(note: str, mails: list[dict[str, Any]]) -> list[list[str]]:
    last: dict[str, str] = {}
    for mail in mails:
        found = re.search(r"^\[(\S+) ([^\]]+)\].*Camera-Ready", mail["subject"])
        if not found:
            continue
        for day in re.findall(r"[Dd]eadline: (\S+T\S+)", mail["body"]):
            paper = f"{found[1]} ({found[2]})"
            last[paper] = max(last.get(paper, day), day)
    papers = [paper for paper in re.findall(r"• (.+)", note) if paper in last]
    hours = timedelta(hours=3)
    return [[paper, (datetime.fromisoformat(last[paper]) - hours).isoformat(), last[paper]] for paper in papers]


_REMINDERS: Final = f"from datetime import datetime, timedelta\n{source_of(_reminders)}"
REMIND = f"""\
{_REMINDERS}

mails = []
page = 1
while True:
    found = await tools.search_emails(query="camera-ready", page=page, page_size={_PAGE})
    mails += found["emails"]
    page += 1
    if page > found["total_pages"]:
        break
reminders = _reminders(await tools.read_text_file(path="conference_info.txt"), mails)
for paper, start, end in reminders:
    times = {{"start": {{"dateTime": start}}, "end": {{"dateTime": end}}}}
    await tools.create_event(summary="Camera-ready deadline: " + paper, **times)
print(len(reminders), "reminders")
reminders[:2]
"""
FIND = f"""\
import glob, json
{_REMINDERS}

mails = []
for name in sorted(glob.glob("mails_*.json")):
    mails += json.load(open(name))
print(json.dumps(_reminders(open("conference_info.txt").read(), mails)))
"""


def _mails(page: int, size: int = _PAGE) -> Ask:
    return ask("email.search_emails", query="camera-ready", page=page, page_size=size)


def _events(reminders: list[list[str]]) -> list[Ask]:
    return [
        ask(
            "calendar.create_event",
            summary=f"Camera-ready deadline: {paper}",
            start={"dateTime": start},
            end={"dateTime": end},
        )
        for paper, start, end in reminders
    ]


def direct() -> Script:
    """Read all mails about deadlines."""
    note, first = yield [_NOTE, _mails(1)]
    inbox = read_json(first)
    mails = [*inbox["emails"]]
    if inbox["total_pages"] > 1:
        texts = yield [_mails(page) for page in range(2, inbox["total_pages"] + 1)]
        mails += [mail for text in texts for mail in read_json(text)["emails"]]
    yield _events(_reminders(note, mails))


def mirror() -> Script:
    """Pass the paths of the mails to files, and find the deadlines there."""
    _, first = yield [_NOTE, _mails(1, 1)]
    pages = range(1, -(-read_json(first)["total"] // _PAGE) + 1)
    texts = yield [_mails(page) for page in pages]
    yield [write(f"mails_{page}.json", f"{path_in(text)}/emails") for page, text in zip(pages, texts, strict=True)]
    (found,) = yield [run(FIND)]
    yield _events(printed((yield from read_whole(found))))


def scripts() -> Script:
    """Look at one mail, and do everything in one script."""
    yield [_NOTE, _mails(1, 1)]
    yield [ask("memory_run", code=REMIND)]

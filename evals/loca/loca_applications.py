"""The oracle's scripts for ApplyPhDEmail: each interested professor gets the application in the requested folders."""

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from loca_bigquery import folder_in, write
from loca_oracle import Ask, Script, Step, ask, read_each, read_whole, source_of
from loca_reading import path_in, read_json

_PAGE: Final = 100
_SUBJECT: Final = "submit_material"
_BODY: Final = "Dear Professor, please find my application materials attached. Best regards, Mary Castillo"
_FLAT: Final = "Application_Materials_flat"
_AWARDS: Final = "All_Awards_Certificates.pdf"
_LETTERS: Final = ("Recommendation_Letter_1.pdf", "Recommendation_Letter_2.pdf")


def _requests(mails: list[dict[str, Any]]) -> list[list[Any]]:
    found: list[list[Any]] = []
    for mail in mails:
        address = re.search(r"admissions team at (\S+?):?\s", mail["body"])
        if not address or "Folder Structure" not in mail["body"]:
            continue
        files: list[str] = []
        folders: list[str] = []
        for line in mail["body"].split("```")[1].split("\n"):
            at = max(line.find("├"), line.find("└"))
            if at < 0:
                continue
            name = line[at:].strip("├└─ ")
            folders = folders[: at // 4]
            if name.endswith("/"):
                folders.append(name)
            else:
                files.append("".join(folders) + name)
        found.append([address[1], sorted(files)])
    return found


BUILD = f"""\
import glob, json, zipfile
{source_of(_requests)}

sources = json.loads(%r)
mails = []
for name in sorted(glob.glob("mails_*.json")):
    mails += json.load(open(name))
archives, sent = {{}}, []
for address, files in _requests(mails):
    name = archives.setdefault(tuple(files), "materials_%%d.zip" %% (len(archives) + 1))
    sent.append([address, name])
for files, name in archives.items():
    with zipfile.ZipFile(name, "w") as archive:
        for file in files:
            last = file.split("/")[-1].replace("[ProfessorName]", "PROFESSOR")
            source = sources.get(last, "{_FLAT}/" + last)
            number = "1" if last.endswith("-1.pdf") else "2"
            target = file.replace("[ProfessorName]", sources["professor " + number])
            archive.write(source, sources["folder"] + "/" + target)
json.dump(sent, open("sent.json", "w"))
print(json.dumps(sent))
"""
SEND = f"""\
import json
page = 1
while True:
    found = await tools.get_emails(folder="INBOX", page=page, page_size={_PAGE})
    await tools.write_file(path="mails_" + str(page) + ".json", content=json.dumps(found["emails"]))
    page += 1
    if page > found["total_pages"]:
        break
await tools.write_file(path="build.py", content=program)
await tools.run_command(command="python build.py")
sent = await tools.read_text_file(path="sent.json")
if isinstance(sent, str):
    sent = json.loads(sent)
for address, name in sent:
    await tools.send_email(to=address, subject="{_SUBJECT}", body="{_BODY}", attachments=[folder + "/" + name])
print(len(sent), "applications")
sent[:3]
"""


def _inbox(page: int, size: int = _PAGE) -> Ask:
    return ask("email.get_emails", folder="INBOX", page=page, page_size=size)


def _look(size: int) -> Step:
    return [
        ask("memory.read_graph"),
        ask("filesystem.list_allowed_directories"),
        ask("filesystem.list_directory", path="memory"),
        ask("filesystem.list_directory", path=_FLAT),
        _inbox(1, size),
    ]


def _prepare(listed: str) -> Step:
    """Read who the student is and who wrote the letters, and merge the awards, sorted by their year."""
    awards = sorted(re.findall(r"\S+_(?:Award|First_Place)_\d{4}\.pdf", listed), key=lambda name: name[-8:])
    return [
        ask("filesystem.read_text_file", path="memory/memory.json"),
        *(ask("pdf_tools.read_pdf_pages", pdf_file_path=f"{_FLAT}/{name}") for name in _LETTERS),
        ask("pdf_tools.merge_pdfs", pdf_paths=[f"{_FLAT}/{name}" for name in awards], output_path=_AWARDS),
    ]


def _sources(texts: Sequence[str]) -> dict[str, str]:
    """The file, and the names in the folders, for what the professors ask."""
    person, *letters, _ = texts
    shown = read_json(person)
    number = re.search(r"Student ID: (\d+)", person)
    professors = [re.search(r"\nProfessor (\w+)", letter) for letter in letters]
    if not number or not all(professors):
        raise LookupError(f"No student ID, or no name of a professor: {texts}")
    names = [found[1] for found in professors if found]
    return {
        "folder": f"Application_Materials_{shown['name'].replace(' ', '')}_{number[1]}",
        "professor 1": names[0],
        "professor 2": names[1],
        "Resume.pdf": f"{_FLAT}/CV.pdf",
        _AWARDS: _AWARDS,
        "Recommendation_Letter_PROFESSOR-1.pdf": f"{_FLAT}/{_LETTERS[0]}",
        "Recommendation_Letter_PROFESSOR-2.pdf": f"{_FLAT}/{_LETTERS[1]}",
    }


def _program(texts: Sequence[str]) -> str:
    return BUILD % json.dumps(_sources(texts))


def _send(sent: Sequence[Sequence[str]], folder: str) -> Step:
    return [
        ask("email.send_email", to=address, subject=_SUBJECT, body=_BODY, attachments=[f"{folder}/{name}"])
        for address, name in sent
    ]


def _command(command: str) -> Ask:
    return ask("terminal.run_command", command=command)


def direct() -> Script:
    """Read all mails, and build an archive for each requested structure with commands."""
    _, folders, _, listed, first = yield _look(_PAGE)
    folder = folder_in(folders)
    inbox = read_json(first)
    mails = [*inbox["emails"]]
    more = [_inbox(page) for page in range(2, inbox["total_pages"] + 1)]
    texts = yield [*_prepare(listed), *more]
    mails += [mail for text in texts[4:] for mail in read_json(text)["emails"]]
    sources = _sources(texts[:4])
    requests = _requests(mails)
    archives: dict[tuple[str, ...], str] = {}
    for _, files in requests:
        archives.setdefault(tuple(files), f"materials_{len(archives) + 1}.zip")
    yield [_command(_archive(files, name, sources)) for files, name in archives.items()]
    yield _send([(address, archives[tuple(files)]) for address, files in requests], folder)


def _archive(files: Sequence[str], name: str, sources: dict[str, str]) -> str:
    """The command that builds an archive."""
    root = sources["folder"]
    folders = sorted({f"{root}/{file.rpartition('/')[0]}" for file in files})
    copies = []
    for file in files:
        last = file.rpartition("/")[2].replace("[ProfessorName]", "PROFESSOR")
        number = "1" if last.endswith("-1.pdf") else "2"
        target = file.replace("[ProfessorName]", sources[f"professor {number}"])
        copies.append(f"cp {sources.get(last, f'{_FLAT}/{last}')} {root}/{target}")
    steps = (f"mkdir -p {' '.join(folders)}", *copies, f"zip -qr {name} {root}", f"rm -r {root}")
    return " && ".join(steps)


def mirror() -> Script:
    """Pass the paths of the mails to files, and build the archives there."""
    _, folders, _, listed, first = yield _look(1)
    pages = range(1, -(-read_json(first)["total"] // _PAGE) + 1)
    *texts, _, _ = yield [*_prepare(listed), ask("terminal.show_security_rules"), _command("python -V")]
    inbox = yield [_inbox(page) for page in pages]
    program = _program((yield from read_each(texts)))
    yield [
        *(write(f"mails_{page}.json", f"{path_in(text)}/emails") for page, text in zip(pages, inbox, strict=True)),
        write("build.py", program),
    ]
    (built,) = yield [_command("python build.py")]
    yield _send(json.loads((yield from read_whole(built)).splitlines()[0]), folder_in(folders))


def scripts() -> Script:
    """Build the archives in a program, and send them, in one script."""
    _, folders, _, listed, _ = yield _look(1)
    *texts, _, _ = yield [*_prepare(listed), ask("terminal.show_security_rules"), _command("python -V")]
    inputs = {"program": _program(texts), "folder": folder_in(folders)}
    yield [ask("memory_run", code=SEND, inputs=inputs)]

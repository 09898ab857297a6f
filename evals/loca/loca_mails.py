"""The oracle's scripts for CourseAssistant and WoocommerceNewWelcome: find people in many records, and write mails."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from loca_bigquery import folder_in, look_at_workbook, query, run, sheet_in, write
from loca_oracle import Ask, Script, Step, ask, read_whole
from loca_pages import PAGE, collect_pages, load_pages, read_pages, store_pages
from loca_reading import path_in, printed, read_json, read_rows, read_shown, returned_by

# CourseAssistant

_WORKBOOK = "nlp_statistics.xlsx"
_SUBJECT = "nlp-course-emergency"
_START: Step = [
    ask("filesystem.read_text_file", path="email_account.txt"),
    ask("filesystem.list_allowed_directories"),
]
_FIRST_MAIL = ask("email.get_emails", folder="INBOX", page=1, page_size=1)
REMIND = f"""\
ids = set()
page = 1
while True:
    found = await tools.get_emails(folder="INBOX", page=page, page_size={PAGE})
    for mail in found["emails"]:
        parts = mail["subject"].split("-")
        if mail["subject"].startswith("nlp-presentation-"):
            ids.add(parts[2])
    page += 1
    if page > found["total_pages"]:
        break
sheet = await tools.read_data_from_excel(filepath=book, sheet_name=sheet_name)
if isinstance(sheet, str):
    import json
    sheet = json.loads(sheet)
lines = {{}}
for cell in sheet["cells"]:
    lines.setdefault(cell["row"], {{}})[cell["column"]] = cell["value"]
rows = [lines[number] for number in sorted(lines)][1:]
late = [[row[1], str(row[2]), row[3]] for row in rows if row[4] != "dropped" and str(row[2]) not in ids]
print(len(late), "students")
late
"""
SEND_REMINDERS = f"""\
for name, number, address in late:
    await tools.send_email(to=address, subject="{_SUBJECT}", body="Dear " + name + " (student ID " + number
        + "), your final presentation has not arrived. Please submit it.")
len(late)
"""
FIND_LATE = f"""\
import glob, json
from openpyxl import load_workbook
ids = set()
for name in glob.glob("mails_*.json"):
    ids |= {{mail["subject"].split("-")[2] for mail in json.load(open(name))
            if mail["subject"].startswith("nlp-presentation-")}}
rows = list(load_workbook("{_WORKBOOK}").worksheets[0].iter_rows(min_row=2, values_only=True))
late = [[row[0], str(row[1]), row[2]] for row in rows if row[0] and row[3] != "dropped" and str(row[1]) not in ids]
print(json.dumps(late))
"""


def _login(account: str) -> Ask:
    found = re.search(r"Email: (\S+)\s+Password: (\S+)", account)
    if not found:
        raise LookupError(f"No account: {account}")
    return ask("email.login", email=found[1], password=found[2])


def _mail_page(page: int) -> Ask:
    return ask("email.get_emails", folder="INBOX", page=page, page_size=PAGE)


def _reminders(late: Sequence[Sequence[str]]) -> Step:
    return [
        ask(
            "email.send_email",
            to=address,
            subject=_SUBJECT,
            body=f"Dear {name} (student ID {number}), your final presentation has not arrived. Please submit it.",
        )
        for name, number, address in late
    ]


def remind_direct() -> Script:
    """Read all mails and all students."""
    account, folders = yield _START
    book = f"{folder_in(folders)}/{_WORKBOOK}"
    _, workbook = yield [_login(account), ask("excel.get_workbook_metadata", filepath=book)]
    students, first = yield [
        ask("excel.read_data_from_excel", filepath=book, sheet_name=sheet_in(workbook)),
        _mail_page(1),
    ]
    inbox = read_json(first)
    mails = inbox["emails"]
    if inbox["total_pages"] > 1:
        others = yield [_mail_page(page) for page in range(2, inbox["total_pages"] + 1)]
        mails = [*mails, *(mail for text in others for mail in read_json(text)["emails"])]
    subjects = [mail["subject"] for mail in mails]
    ids = {subject.split("-")[2] for subject in subjects if subject.startswith("nlp-presentation-")}
    lines: dict[int, dict[int, Any]] = {}
    for cell in json.loads(students)["cells"]:
        lines.setdefault(cell["row"], {})[cell["column"]] = cell["value"]
    rows = [lines[number] for number in sorted(lines)][1:]
    late = [[row[1], str(row[2]), row[3]] for row in rows if row[4] != "dropped" and str(row[2]) not in ids]
    yield _reminders(late)


def remind_mirror() -> Script:
    """Pass the paths of the mails to files, and find the students there."""
    account, folders = yield _START
    _, first = yield [_login(account), _FIRST_MAIL]
    yield from look_at_workbook(f"{folder_in(folders)}/{_WORKBOOK}", "D")
    pages = range(1, -(-read_json(first)["total"] // PAGE) + 1)
    inbox = yield [_mail_page(page) for page in pages]
    yield [write(f"mails_{page}.json", f"{path_in(text)}/emails") for page, text in zip(pages, inbox, strict=True)]
    (late,) = yield [run(FIND_LATE)]
    yield _reminders(printed((yield from read_whole(late))))


def remind_scripts() -> Script:
    """Find the students in one script, and write to them in another."""
    account, folders = yield _START
    yield [_login(account), _FIRST_MAIL]
    book = f"{folder_in(folders)}/{_WORKBOOK}"
    (workbook,) = yield [ask("excel.get_workbook_metadata", filepath=book)]
    sheet = sheet_in(workbook)
    yield [ask("excel.read_data_from_excel", filepath=book, sheet_name=sheet, end_cell="D2")]
    (late,) = yield [ask("memory_run", code=REMIND, inputs={"book": book, "sheet_name": sheet})]
    yield [ask("memory_run", code=SEND_REMINDERS, inputs={"late": returned_by(late)})]


# WoocommerceNewWelcome

_TEMPLATE = "welcome_email_template.md"
_LOOK: Step = [
    ask("filesystem.read_text_file", path=_TEMPLATE),
    run("import datetime, json\nprint(json.dumps(datetime.datetime.now().isoformat()))"),
    query("SELECT * FROM `woocommerce_crm.customers` ORDER BY id DESC LIMIT 1"),
    ask("woocommerce.woo_orders_list", perPage=1),
]
_COLUMNS = (
    "id, woocommerce_id, email, first_name, last_name, date_created, first_order_date, welcome_email_sent, "
    "welcome_email_date, sync_date, metadata"
)
CHOOSE = """\
counts = {}
recent = [order for order in orders if order["status"] == "completed" and order["date_created"] >= since]
for order in recent:
    counts[order["customer_email"]] = counts.get(order["customer_email"], 0) + 1
new = []
for order in recent:
    if counts[order["customer_email"]] == 1:
        new.append([order["customer_email"], order["customer_name"], order["order_number"],
                    order["product_price"], order["date_created"], order["product_name"]])
"""
CHOOSE_IN_FILES = f"""\
import glob, json
{load_pages("orders")}
since = %r
{CHOOSE}
print(json.dumps(new))
"""
CHOOSE_IN_SCRIPT = f"""\
{collect_pages("orders", f"woo_orders_list(perPage={PAGE}, page=page)")}
{CHOOSE}
values = []
for n in range(len(new)):
    email, name, number, price, ordered, product = new[n]
    first, last = (name + " ").split(" ", 1)
    values.append("(" + ", ".join([str(last_id + 1 + n), number, "'" + email + "'", "'" + first + "'",
        "'" + last.strip() + "'", "'" + ordered + "'", "'" + ordered + "'", "1", "'" + now + "'", "'" + now + "'",
        "'{{}}'"]) + ")")
print(len(new), "customers")
print(await tools.bigquery_run_query(
    query="INSERT INTO `woocommerce_crm.customers` ({_COLUMNS}) VALUES " + ", ".join(values)))
new
"""
WELCOME = f"""\
file = await tools.read_text_file(path="{_TEMPLATE}")
subject = file.split("## Email Subject\\n")[1].split("\\n")[0].replace("[Store Name]", "our store")
template = file.split("## Email Body\\n\\n")[1]
for email, name, number, price, ordered, product in new:
    values = {{"customer_name": name, "order_id": number, "order_total": str(price), "order_date": ordered[:10]}}
    body = template
    for key, value in values.items():
        body = body.replace("{{{{" + key + "}}}}", value)
    for item in (1, 2, 3):
        body = body.replace("[Recommended Item " + str(item) + "]", product + " accessory " + str(item))
    await tools.send_email(to=email, subject=subject, body=body)
len(new)
"""


def _orders(page: int) -> Ask:
    return ask("woocommerce.woo_orders_list", perPage=PAGE, page=page)


def _since(now: str) -> str:
    """The day a week ago."""
    return (datetime.fromisoformat(now) - timedelta(days=7)).date().isoformat()


def _new(orders: Sequence[Mapping[str, Any]], since: str) -> list[list[Any]]:
    """The customers with one completed order of the last days, as a model that has read all orders finds them."""
    recent = [order for order in orders if order["status"] == "completed" and order["date_created"] >= since]
    counts = Counter(order["customer_email"] for order in recent)
    names = ("customer_email", "customer_name", "order_number", "product_price", "date_created", "product_name")
    return [[order[name] for name in names] for order in recent if counts[order["customer_email"]] == 1]


def _welcome(new: Sequence[Sequence[Any]], template: str, last_id: int, now: str) -> Step:
    """Insert the customers, and write to each."""
    values = []
    for at, (email, name, number, _, ordered, _) in enumerate(new, last_id + 1):
        first, _, last = name.partition(" ")
        values.append(
            f"({at}, {number}, '{email}', '{first}', '{last}', '{ordered}', '{ordered}', 1, '{now}', '{now}', '{{}}')"
        )
    insert = query(f"INSERT INTO `woocommerce_crm.customers` ({_COLUMNS}) VALUES {', '.join(values)}")
    return [insert, *(_greeting(one, template) for one in new)]


def _greeting(customer: Sequence[Any], template: str) -> Ask:
    email, name, number, price, ordered, product = customer
    subject = template.split("## Email Subject\n")[1].split("\n", maxsplit=1)[0].replace("[Store Name]", "our store")
    body = template.split("## Email Body\n\n")[1]
    values = {"customer_name": name, "order_id": number, "order_total": str(price), "order_date": ordered[:10]}
    for key, value in values.items():
        body = body.replace(f"{{{{{key}}}}}", value)
    for item in (1, 2, 3):
        body = body.replace(f"[Recommended Item {item}]", f"{product} accessory {item}")
    return ask("email.send_email", to=email, subject=subject, body=body)


def _last_id(text: str) -> int:
    return int(read_rows(text)[0]["id"])


def welcome_direct() -> Script:
    """Read all orders."""
    template, clock, last, _ = yield _LOOK
    orders = yield from read_pages(_orders)
    now = printed(clock)
    yield _welcome(_new(orders, _since(now)), template, _last_id(last), now)


def welcome_mirror() -> Script:
    """Pass the path of each page to a file, and find the customers there."""
    template, clock, last, _ = yield _LOOK
    yield from store_pages("orders", _orders)
    now = printed(clock)
    (new,) = yield [run(CHOOSE_IN_FILES % _since(now))]
    yield _welcome(printed((yield from read_whole(new))), read_shown(template), _last_id(last), now)


def welcome_scripts() -> Script:
    """Find and insert the customers in one script, and write to them in another."""
    _, clock, last, _ = yield _LOOK
    now = printed(clock)
    inputs = {"since": _since(now), "now": now, "last_id": _last_id(last)}
    (new,) = yield [ask("memory_run", code=CHOOSE_IN_SCRIPT, inputs=inputs)]
    yield [ask("memory_run", code=WELCOME, inputs={"new": returned_by(new)})]

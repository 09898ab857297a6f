"""The oracle's scripts for PayableInvoiceChecker: invoices in PDF files go into a database, open ones into mails."""

import re
from collections.abc import Sequence
from typing import Any, Final

from loca_oracle import Ask, Script, Step, ask, source_of
from loca_reading import read_shown, returned_by

_DATABASE: Final = "PURCHASE_INVOICE.PUBLIC"
_TABLES: Final = ("INVOICES", "INVOICE_PAYMENTS")
_SUBJECT: Final = "Process Outstanding Invoices"
_LOOK: Final[Step] = [
    ask("filesystem.list_directory", path="files"),
    ask("snowflake.list_tables", database="PURCHASE_INVOICE", schema="PUBLIC"),
]


def _invoice(name: str, text: str) -> dict[str, Any]:
    supplier = re.search(r"(?:Supplier:|Vendor:|Department: Accounts Payable)\n(.+)", text)
    day, total = re.search(r"Date: (\S+)", text), re.search(r"Total Amount: \$([\d.]+)", text)
    status, buyer = re.search(r"Account: \d+\n(.+)", text), re.search(r"\S+@\S+", text)
    values = [one[1] if one else "" for one in (supplier, day, total, status)]
    invoice = dict(zip(["supplier", "date", "total", "status"], values, strict=True))
    return {"id": name.replace(".pdf", ""), "buyer": buyer[0] if buyer else "", **invoice}


def _paid(invoice: dict[str, Any]) -> str:
    status = invoice["status"].lower()
    part = re.search(r"\$([\d.]+)", status)
    if "partial" in status or "progress" in status:
        return part[1] if part else "0"
    open_words = ("unpaid", "review", "process", "pending", "awaiting")
    return "0" if any(word in status for word in open_words) else invoice["total"]


def _statements(invoices: list[dict[str, Any]]) -> list[str]:
    rows, payments = [], []
    for one in invoices:
        values = [one["id"], one["supplier"].replace("'", "''"), one["total"], one["buyer"], one["date"]]
        rows.append(f"('{values[0]}', '{values[1]}', {values[2]}, '{values[3]}', '{values[4]}')")
        flag = 0 if float(_paid(one)) >= float(one["total"]) else 1
        payments.append(f"('{one['id']}', {_paid(one)}, {flag})")
    columns = "(INVOICE_ID, SUPPLIER_NAME, INVOICE_AMOUNT, PURCHASER_EMAIL, INVOICE_DATE)"
    first = "INSERT INTO PURCHASE_INVOICE.PUBLIC.INVOICES " + columns + " VALUES " + ", ".join(rows)
    columns = "(INVOICE_ID, PAYMENT_AMOUNT, OUTSTANDING_FLAG)"
    return [first, "INSERT INTO PURCHASE_INVOICE.PUBLIC.INVOICE_PAYMENTS " + columns + " VALUES " + ", ".join(payments)]


def _mails(invoices: list[dict[str, Any]]) -> list[list[str]]:
    files: dict[str, list[str]] = {}
    for one in invoices:
        if float(_paid(one)) < float(one["total"]):
            files.setdefault(one["buyer"], []).append(one["id"] + ".pdf")
    return [[buyer, "Invoices to process: " + ", ".join(names)] for buyer, names in sorted(files.items())]


READ = f"""\
{source_of(_invoice)}

invoices = []
for name in names:
    invoices.append(_invoice(name, await tools.read_pdf_pages(pdf_file_path="files/" + name)))
    print(invoices[-1]["status"])
invoices
"""
REGISTER = f"""\
{source_of(_paid, _statements, _mails)}

for statement in _statements(invoices):
    print(await tools.write_query(query=statement))
mails = _mails(invoices)
for buyer, body in mails:
    await tools.send_email(to=buyer, subject="{_SUBJECT}", body=body)
mails
"""


def _describe() -> list[Ask]:
    """The columns of both tables with their comments, and two rows of each."""
    names = [f"{_DATABASE}.{table}" for table in _TABLES]
    columns = [ask("snowflake.describe_table", table_name=name) for name in names]
    return [*columns, *(ask("snowflake.read_query", query=f"SELECT * FROM {name} LIMIT 2") for name in names)]


def _pdf(name: str) -> Ask:
    return ask("pdf_tools.read_pdf_pages", pdf_file_path=f"files/{name}")


def _names(listed: str) -> list[str]:
    return re.findall(r"\[FILE\] (\S+\.pdf)", listed)


def read_all() -> Script:
    """Read all invoices. A result is small, so this is the same with and without the gateway."""
    listed, _ = yield _LOOK
    names = _names(listed)
    texts = (yield [*_describe(), *(_pdf(name) for name in names)])[4:]
    invoices = [_invoice(name, read_shown(text)) for name, text in zip(names, texts, strict=True)]
    yield [*(ask("snowflake.write_query", query=statement) for statement in _statements(invoices)), *_send(invoices)]


def _send(invoices: Sequence[dict[str, Any]]) -> list[Ask]:
    return [ask("email.send_email", to=buyer, subject=_SUBJECT, body=body) for buyer, body in _mails([*invoices])]


def scripts() -> Script:
    """Read all invoices in one script, look at their states, and register them in another."""
    listed, _ = yield _LOOK
    names = _names(listed)
    yield [*_describe(), _pdf(names[0])]
    (found,) = yield [ask("memory_run", code=READ, inputs={"names": names})]
    yield [ask("memory_run", code=REGISTER, inputs={"invoices": returned_by(found)})]

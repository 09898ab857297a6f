"""The oracle's scripts for WoocommerceStockAlert: low stock goes into a spreadsheet, and a mail about each product."""

from collections.abc import Sequence
from typing import Any, Final

from loca_oracle import Ask, Script, Step, ask, read_whole
from loca_pages import PAGE, collect_pages, load_pages, read_pages, store_pages
from loca_reading import printed, read_json, read_shown, returned_by

SHEET = "Stock Alert"

_FILES: Final = [
    ask("filesystem.read_text_file", path="purchasing_manager_email.txt"),
    ask("filesystem.read_text_file", path="stock_alert_email_template.md"),
    ask("google_sheet.list_spreadsheets"),
]
LOW = """\
low = []
for product in products:
    meta = {item["key"]: item["value"] for item in product["meta_data"]}
    if product["stock_quantity"] < int(meta["stock_threshold"]):
        low.append([product["id"], product["name"], product["sku"], product["stock_quantity"],
                    int(meta["stock_threshold"]), meta["supplier"]])
"""
ALL_PAGES = f"""\
{collect_pages("products", f"woo_products_list(perPage={PAGE}, page=page)")}
{LOW}
rows = [row + ["", ""] for row in low]
await tools.update_cells(spreadsheet_id=sheet_id, sheet="{SHEET}", range="A2:H" + str(len(rows) + 1), data=rows)
print(len(low), "products")
low
"""
SEND = """\
file = await tools.read_text_file(path="stock_alert_email_template.md")
subject = file.split("## Email Subject\\n")[1].split("\\n")[0]
body = file.split("## Email Body\\n\\n")[1]
for row in low:
    values = {"product_name": row[1], "sku": row[2], "current_stock": row[3], "threshold": row[4],
              "supplier_name": row[5], "supplier_contact": "see the sheet", "google_sheets_link": link}
    text, title = body, subject
    for key, value in values.items():
        text = text.replace("{" + key + "}", str(value))
        title = title.replace("{" + key + "}", str(value))
    await tools.send_email(to=manager, subject=title, body=text)
len(low)
"""
IN_FILES = f"""\
import glob, json
{load_pages("products")}
{LOW}
print(json.dumps(low))
"""


def _products(page: int) -> Ask:
    return ask("woocommerce.woo_products_list", perPage=PAGE, page=page)


def _low(products: list[dict[str, Any]]) -> list[list[Any]]:
    """The rows of products with low stock, as a model that has read all products would write them."""
    low = []
    for product in products:
        meta = {item["key"]: item["value"] for item in product["meta_data"]}
        if product["stock_quantity"] < int(meta["stock_threshold"]):
            row = [product["id"], product["name"], product["sku"], product["stock_quantity"]]
            low.append([*row, int(meta["stock_threshold"]), meta["supplier"]])
    return low


def _link(sheet_id: str) -> str:
    return f"https://docs.google.com/spreadsheets/d/{sheet_id}"


def _report(low: Sequence[Sequence[Any]], manager: str, template: str, sheet_id: str) -> Step:
    """Write all rows, and one mail for each, call by call."""
    rows = [[*row, "", ""] for row in low]
    subject = template.split("## Email Subject\n")[1].split("\n", maxsplit=1)[0]
    body = template.split("## Email Body\n\n")[1]
    update = ask(
        "google_sheet.update_cells", spreadsheet_id=sheet_id, sheet=SHEET, range=f"A2:H{len(rows) + 1}", data=rows
    )
    return [update, *(_mail(row, manager, (subject, body), _link(sheet_id)) for row in low)]


def _mail(row: Sequence[Any], manager: str, template: tuple[str, str], link: str) -> Ask:
    names = ("product_name", "sku", "current_stock", "threshold", "supplier_name")
    values = {**dict(zip(names, row[1:], strict=True)), "supplier_contact": "see the sheet", "google_sheets_link": link}
    subject, body = template
    for key, value in values.items():
        subject, body = (text.replace(f"{{{key}}}", str(value)) for text in (subject, body))
    return ask("email.send_email", to=manager, subject=subject, body=body)


def _sheet_id(listed: str) -> str:
    return str(next(one["id"] for one in read_json(listed) if one["title"] == "WooCommerce Stock Alert"))


def direct() -> Script:
    """Read all products."""
    manager, template, listed = yield _FILES
    products = yield from read_pages(_products)
    yield _report(_low(products), manager, template, _sheet_id(listed))


def mirror() -> Script:
    """Pass the path of each page to a file, find the products there, and write the mails."""
    manager, template, listed = yield _FILES
    yield from store_pages("products", _products)
    (low,) = yield [ask("python_execute.python_execute", code=IN_FILES)]
    yield _report(printed((yield from read_whole(low))), read_shown(manager), read_shown(template), _sheet_id(listed))


def scripts() -> Script:
    """Find the products in one script, and send the mails in another."""
    manager, _, listed = yield _FILES
    sheet_id = _sheet_id(listed)
    yield [ask("woocommerce.woo_products_list", perPage=1)]
    (low,) = yield [ask("memory_run", code=ALL_PAGES, inputs={"sheet_id": sheet_id})]
    inputs = {
        "low": returned_by(low),
        "manager": read_shown(manager),
        "link": _link(sheet_id),
    }
    yield [ask("memory_run", code=SEND, inputs=inputs)]

"""The oracle's scripts for FilterLowSellingProducts: move products, write their list, and mail it to subscribers."""

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from loca_bigquery import folder_in, run, write
from loca_oracle import Ask, Script, Step, ask, read_whole
from loca_pages import PAGE, collect_pages, load_pages, read_pages, store_pages
from loca_reading import path_or_value, printed, read_json, read_shown, returned_by

_OUTLET = "Outlet/Clearance"
_FILE = "discount_products.csv"
_HEADER = ["Product Name", "Original Price", "Promotional Price", "Discount Ratio"]
_SUBJECT = "Outlet/Clearance promotion"
_LOOK: Step = [
    ask("filesystem.read_text_file", path="email_template.txt"),
    ask("filesystem.read_text_file", path=_FILE),
    ask("filesystem.list_allowed_directories"),
    ask("woocommerce.woo_products_categories_list", search=_OUTLET),
    ask("woocommerce.woo_products_list", perPage=1),
    run("import datetime, json\nprint(json.dumps(datetime.datetime.now().isoformat()))"),
]
SELECT = """\
from datetime import datetime
now = datetime.fromisoformat(today)
slow = []
for product in products:
    sold = int({item["key"]: item["value"] for item in product["meta_data"]}["sales_last_30_days"])
    days = (now - datetime.fromisoformat(product["date_created"])).days
    if days > 90 and sold < 10:
        price, sale = float(product["regular_price"]), float(product["sale_price"])
        slow.append([-days, 100 * (price - sale) / price, product["id"], product["name"], price, sale])
slow = sorted(slow, key=lambda row: (row[0], row[1]))
"""
SELECT_IN_FILES = f"""\
import csv, glob, json
{load_pages("products")}
today = %r
{SELECT}
with open("{_FILE}", "w", newline="") as file:
    csv.writer(file).writerows([{_HEADER}] + [[row[3], row[4], row[5], round(row[1], 3)] for row in slow])
json.dump([{{"id": row[2], "categories": [{{"id": %d}}]}} for row in slow], open("update.json", "w"))
print(json.dumps(len(slow)))
"""
SELECT_IN_SCRIPT = f"""\
import json
{collect_pages("products", f"woo_products_list(perPage={PAGE}, page=page)")}
{SELECT}
lines = [",".join({_HEADER})]
for row in slow:
    lines.append(",".join([row[3], str(row[4]), str(row[5]), str(round(row[1], 3))]))
await tools.write_file(path="{_FILE}", content="\\n".join(lines) + "\\n")
await tools.woo_products_batch_update(update=[{{"id": row[2], "categories": [{{"id": outlet}}]}} for row in slow])
people = await tools.read_text_file(path="subscriber.json")
if isinstance(people, str):
    people = json.loads(people)
people = people["subscriber_list"]
print(len(people), "subscribers,", len(slow), "products")
people
"""
SEND = f"""\
template = await tools.read_text_file(path="email_template.txt")
for person in people:
    await tools.send_email(to=person["email"], subject="{_SUBJECT}", attachments=[file],
        body=template.replace("{{customer_fullname}}", person["name"]))
len(people)
"""


def _mails(people: Sequence[Mapping[str, str]], template: str, folder: str) -> Step:
    return [
        ask(
            "email.send_email",
            to=person["email"],
            subject=_SUBJECT,
            body=template.replace("{customer_fullname}", person["name"]),
            attachments=[f"{folder}/{_FILE}"],
        )
        for person in people
    ]


def _products(page: int) -> Ask:
    return ask("woocommerce.woo_products_list", perPage=PAGE, page=page)


def _slow(products: Sequence[Mapping[str, Any]], now: datetime) -> list[tuple[int, float, Mapping[str, Any]]]:
    """The products that sell slowly, sorted, as a model that has read all products finds them."""
    slow = []
    for product in products:
        sold = int({item["key"]: item["value"] for item in product["meta_data"]}["sales_last_30_days"])
        days = (now - datetime.fromisoformat(product["date_created"])).days
        if days > 90 and sold < 10:
            price, sale = float(product["regular_price"]), float(product["sale_price"])
            slow.append((-days, 100 * (price - sale) / price, product))
    return sorted(slow, key=lambda row: row[:2])


def direct() -> Script:
    """Read all products."""
    template, _, folders, categories, _, clock = yield _LOOK
    products = yield from read_pages(_products)
    slow = _slow(products, datetime.fromisoformat(printed(clock)))
    outlet = read_json(categories)[0]["id"]
    file = io.StringIO()
    rows = [
        [one["name"], float(one["regular_price"]), float(one["sale_price"]), round(ratio, 3)] for _, ratio, one in slow
    ]
    csv.writer(file, lineterminator="\n").writerows([_HEADER, *rows])
    update = [{"id": one["id"], "categories": [{"id": outlet}]} for _, _, one in slow]
    _, _, people = yield [
        write(_FILE, file.getvalue()),
        ask("woocommerce.woo_products_batch_update", update=update),
        ask("filesystem.read_text_file", path="subscriber.json"),
    ]
    yield _mails(read_json(people)["subscriber_list"], template, folder_in(folders))


def mirror() -> Script:
    """Pass the path of each page to a file, select there, and pass the changes back."""
    template, _, folders, categories, _, clock = yield _LOOK
    yield from store_pages("products", _products)
    outlet = read_json(categories)[0]["id"]
    yield [run(SELECT_IN_FILES % (printed(clock), outlet))]
    changes, people = yield [
        ask("filesystem.read_text_file", path="update.json"),
        ask("filesystem.read_text_file", path="subscriber.json"),
    ]
    yield [ask("woocommerce.woo_products_batch_update", update=path_or_value(changes))]
    everyone = yield from read_whole(people)
    yield _mails(read_json(everyone)["subscriber_list"], read_shown(template), folder_in(folders))


def scripts() -> Script:
    """Select, move and list the products in one script, and send the mails in another."""
    _, _, folders, categories, _, clock = yield _LOOK
    inputs = {"today": printed(clock), "outlet": read_json(categories)[0]["id"]}
    (people,) = yield [ask("memory_run", code=SELECT_IN_SCRIPT, inputs=inputs)]
    yield [
        ask("memory_run", code=SEND, inputs={"people": returned_by(people), "file": f"{folder_in(folders)}/{_FILE}"})
    ]

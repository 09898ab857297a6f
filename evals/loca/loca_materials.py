"""The oracle's scripts for UpdateMaterialInventory: orders consume materials, which limit what can be produced."""

import json
import math
from collections.abc import Mapping, Sequence

from loca_bigquery import run, write
from loca_oracle import Ask, Script, Step, ask, read_whole
from loca_pages import PAGE, collect_pages, load_pages, read_pages
from loca_reading import count_objects, path_in, printed, read_json

_INVENTORY = "Material_Inventory"
_ALL = f'woo_orders_list(perPage={PAGE}, page=page, status=["processing"])'
SOLD = """\
sold = {}
for order in orders:
    for item in order["line_items"]:
        sku = item["product_id"]["sku"]
        sold[sku] = sold.get(sku, 0) + item["quantity"]
"""
SOLD_IN_FILES = f"""\
import glob, json
{load_pages("orders")}
{SOLD}
print(json.dumps(sold))
"""
SOLD_IN_SCRIPT = f"""\
{collect_pages("orders", _ALL)}
{SOLD}
sold
"""


def _look() -> Step:
    return [ask("google_sheet.list_spreadsheets"), ask("woocommerce.woo_products_list", perPage=PAGE)]


def _tables(listed: str) -> tuple[str, Step]:
    """The spreadsheet, and the calls that read its two tables."""
    sheet_id = read_json(listed)[0]["id"]
    return sheet_id, [
        ask("google_sheet.get_sheet_data", spreadsheet_id=sheet_id, sheet=sheet, range="A1:F200")
        for sheet in ("BOM", _INVENTORY)
    ]


def _rows(text: str) -> list[list[str]]:
    rows: list[list[str]] = read_json(text)["valueRanges"][0]["values"]
    return [row for row in rows if row and row[0]]


def _orders(page: int) -> Ask:
    return ask("woocommerce.woo_orders_list", perPage=PAGE, page=page, status=["processing"])


def _update(sheet_id: str, tables: Sequence[str], products: str, sold: Mapping[str, int]) -> Step:
    """Write the materials that are left, and what can be produced of them, as a model that knows the sales would."""
    bill, inventory = (_rows(text) for text in tables)
    needs = [(row[0], row[2], float(row[4])) for row in bill[1:]]
    stock = {row[0]: float(row[2]) for row in inventory[1:]}
    for sku, material, amount in needs:
        stock[material] -= amount * sold.get(sku, 0)
    left = [[round(stock[row[0]], 2)] for row in inventory[1:]]
    makes: dict[str, int] = {}
    for sku, material, amount in needs:
        makes[sku] = min(makes.get(sku, 10**9), math.floor(stock[material] / amount))
    ids = {product["sku"]: product["id"] for product in read_json(products)}
    return [
        ask(
            "google_sheet.update_cells",
            spreadsheet_id=sheet_id,
            sheet=_INVENTORY,
            range=f"C2:C{len(left) + 1}",
            data=left,
        ),
        ask(
            "woocommerce.woo_products_batch_update",
            update=[{"id": ids[sku], "stock_quantity": count} for sku, count in makes.items()],
        ),
    ]


def direct() -> Script:
    """Read all orders."""
    listed, products = yield _look()
    sheet_id, calls = _tables(listed)
    tables = yield calls
    orders = yield from read_pages(_orders)
    sold: dict[str, int] = {}
    for item in (item for order in orders for item in order["line_items"]):
        sku = item["product_id"]["sku"]
        sold[sku] = sold.get(sku, 0) + item["quantity"]
    yield _update(sheet_id, tables, products, sold)


def mirror() -> Script:
    """Pass the path of each page to a file, and count there."""
    listed, products = yield _look()
    sheet_id, calls = _tables(listed)
    tables = yield calls
    number, length = 1, PAGE
    while length == PAGE:
        (text,) = yield [_orders(number)]
        length = count_objects(text)
        yield [ask("memory_read", memory_path=path_in(text), limit=1), write(f"orders_{number}.json", path_in(text))]
        number += 1
    (sold,) = yield [run(SOLD_IN_FILES)]
    yield from _finish(sheet_id, tables, products, printed(sold))


def scripts() -> Script:
    """Count in one script."""
    listed, products = yield _look()
    sheet_id, calls = _tables(listed)
    tables = yield calls
    yield [ask("woocommerce.woo_orders_list", perPage=1, status=["processing"])]
    (sold,) = yield [ask("memory_run", code=SOLD_IN_SCRIPT)]
    yield from _finish(sheet_id, tables, products, json.loads(sold.split("\n", maxsplit=1)[0]))


def _finish(sheet_id: str, tables: Sequence[str], products: str, sold: Mapping[str, int]) -> Script:
    """Read what is stored of the tables and the products, and update them."""
    bill = yield from read_whole(tables[0])
    inventory = yield from read_whole(tables[1])
    everything = yield from read_whole(products)
    yield _update(sheet_id, (bill, inventory), everything, sold)

"""Servers with tables of a shop, generated from fixed seeds: `records.py shop` and `records.py people`."""

import json
import random
import sys
from pathlib import Path
from typing import Any, Final

import mcp_types as types

from witness import Tool, serve

TEXT: Final = {"type": "string"}
WHOLE: Final = {"type": "integer"}
ROWS: Final = {"type": "array", "items": {"type": "object"}}
READS: Final = types.ToolAnnotations(read_only_hint=True)
DESTROYS: Final = types.ToolAnnotations(read_only_hint=False, destructive_hint=True)
NAMES: Final = (
    "Ada", "Bela", "Carla", "Dora", "Egon", "Femke", "Gita", "Hugo", "Ines", "Jonas",
    "Kira", "Lars", "Mara", "Nils", "Olga", "Paul", "Rosa", "Sven", "Tilda", "Uwe",
)  # fmt: skip
SURNAMES: Final = ("Okafor", "Ferro", "Lindt", "Moreau", "Novak", "Olsen", "Rossi", "Silva", "Tanaka", "Weber")
CITIES: Final = ("Bonn", "Cork", "Graz", "Turin")
CUSTOMERS: Final = len(NAMES) * len(SURNAMES)
PAGES: Final = 10
DELETED: Final = Path("deleted.txt")


def list_orders(year: int) -> str:
    """1,500 orders, about 130 kB."""
    dice = random.Random(year)
    orders = [
        {
            "order": 10_000 + index,
            "customer": dice.randrange(CUSTOMERS) + 1,
            "cents": dice.randint(100, 90_000),
            "status": dice.choice(("paid", "paid", "open", "refunded")),
            "day": f"{year}-{1 + index // 125:02d}-{dice.randint(1, 28):02d}",
        }
        for index in range(1500)
    ]
    return json.dumps(orders)


def list_customers() -> str:
    """200 customers, about 20 kB."""
    named = [(name, surname) for surname in SURNAMES for name in NAMES]
    customers = [
        {
            "id": index,
            "name": f"{name} {surname}",
            "city": random.Random(index).choice(CITIES),
            "mail": f"{name}.{surname}@example.com".lower(),
        }
        for index, (name, surname) in enumerate(named, start=1)
    ]
    return json.dumps(customers)


def pay_back(rows: list[dict[str, Any]]) -> str:
    total = sum(row["cents"] for row in rows)
    Path("paid_back.txt").write_text("".join(f"{row['order']}\n" for row in rows))
    return f"Paid {total} cents back for {len(rows)} orders."


def read_log(service: str) -> str:
    """4,000 lines, about 240 kB."""
    dice = random.Random(service)
    parts = ("cache", "mail", "queue", "search", "upload")
    lines = (
        f"2026-03-{1 + index // 200:02d}T{index % 24:02d}:{dice.randint(0, 59):02d}:00Z "
        f"{dice.choices(('INFO', 'WARN', 'ERROR'), (90, 7, 3))[0]} [{dice.choice(parts)}] request {index} took "
        f"{dice.randint(2, 900)} ms"
        for index in range(4000)
    )
    return "\n".join(lines)


def search_tickets(word: str, page: int) -> dict[str, Any]:
    """One of ten pages, about 4 kB."""
    if not 1 <= page <= PAGES:
        raise ValueError(f"There are {PAGES} pages; the first is 1.")
    dice = random.Random(f"{word} {page}")
    hits = [
        {
            "ticket": 100 * page + index,
            "title": f"{word.capitalize()} {dice.choice(NAMES)}",
            "hours": dice.randint(1, 40),
            "state": dice.choice(("open", "closed", "waiting")),
        }
        for index in range(50)
    ]
    return {"page": page, "pages": PAGES, "hits": hits}


def list_parcels(depot: str) -> str:
    """800 parcels, about 40 kB; a few have no weight."""
    dice = random.Random(depot)
    parcels: list[dict[str, Any]] = [
        {"parcel": f"P{index:04d}", "grams": dice.randint(100, 9000), "city": dice.choice(CITIES)}
        for index in range(800)
    ]
    for index in dice.sample(range(800), 9):
        parcels[index]["grams"] = None
    return json.dumps(parcels)


def delete_order(order: int) -> str:
    """Note the order in a file, which has each deleted order once."""
    before = DELETED.read_text().splitlines() if DELETED.exists() else []
    DELETED.write_text("".join(f"{one}\n" for one in sorted({*before, str(order)})))
    return f"Deleted order {order}."


SERVERS: Final = {
    "shop": (
        Tool("list_orders", "List the orders of a year.", {"year": WHOLE}, list_orders, READS),
        Tool("pay_back", "Pay orders back: rows of orders, each with order and cents.", {"rows": ROWS}, pay_back),
        Tool("delete_order", "Delete an order for good.", {"order": WHOLE}, delete_order, DESTROYS),
        Tool("list_parcels", "List the parcels of a depot.", {"depot": TEXT}, list_parcels, READS),
    ),
    "people": (
        Tool("list_customers", "List the customers with their names.", {}, list_customers, READS),
        Tool("read_log", "Get the log of a service, oldest line first.", {"service": TEXT}, read_log, READS),
        Tool(
            "search_tickets",
            "Search the tickets; gives one page of hits, and the number of pages.",
            {"word": TEXT, "page": WHOLE},
            search_tickets,
            READS,
        ),
    ),
}


def main() -> None:
    """`records.py NAME`: serve the tools of this name."""
    serve(sys.argv[1], SERVERS[sys.argv[1]])


if __name__ == "__main__":
    main()

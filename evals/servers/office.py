"""An office server: texts, tables, letters and files, generated from their names, so that every run gets the same."""

import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

import mcp_types as types

from witness import Tool, serve

TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
OBJECT = {"type": "object"}
OBJECTS = {"type": "array", "items": {"type": "object"}}
FILES = ("keys", "rooms")
REGIONS = ("north", "south", "east", "west")
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""One pixel."""
WORDS = [
    "account", "agenda", "budget", "client", "contract", "delivery", "department", "engineer",
    "estimate", "evening", "factory", "invoice", "journey", "keyboard", "manager", "market",
    "meeting", "monday", "morning", "network", "notice", "number", "office", "order",
    "package", "paper", "partner", "payment", "plan", "printer", "product", "project",
    "quarter", "question", "report", "request", "review", "sample", "schedule", "service",
    "signal", "supplier", "table", "team", "ticket", "train", "travel", "union",
    "value", "visit", "warehouse", "week", "window",
]  # fmt: skip


def prose(seed: str, sentences: int) -> str:
    """Generate a text without meaning, the same for the same seed."""
    dice = random.Random(seed)
    made = (" ".join(dice.choices(WORDS, k=dice.randint(6, 14))).capitalize() + "." for _ in range(sentences))
    return "\n".join(
        " ".join(sentence for _, sentence in zip(range(5), made, strict=False)) for _ in range(sentences // 5)
    )


def read_minutes(meeting: str) -> str:
    """About 9 kB of text."""
    return f"Minutes of the {meeting} meeting\n\n{prose(meeting, 120)}"


def count_words(text: str) -> str:
    return f"{len(text.split())} words"


def save_file(name: str, content: str) -> str:
    if Path(name).name != name:
        raise ValueError("Give the name of a file alone, without a folder.")
    Path(name).write_bytes(content.encode())
    return f"Saved {len(content.encode())} bytes as {name}."


def read_log(service: str) -> str:
    """About 35 kB of lines; the last line has the error."""
    dice = random.Random(service)
    lines = [
        f"2026-03-{1 + index // 40:02d}T{index % 24:02d}:{dice.randint(0, 59):02d}:00Z INFO {service} "
        f"request {index} took {dice.randint(2, 90)} ms"
        for index in range(600)
    ]
    last = f"2026-03-16T04:12:07Z ERROR {service} stopped: disk quota exceeded on volume {service}-7"
    return "\n".join((*lines, last))


def read_file(name: str) -> types.CallToolResult:
    """About 4 kB of text, wrapped and repeated as by ordinary servers; one line has a number."""
    if name not in FILES:
        raise ValueError(f"There is no file {name!r}. The files are {', '.join(FILES)}.")
    desk = random.Random(name).randint(1000, 9999)
    text = f"Notes: {name}\n\n{prose(name, 30)}\n\nThe spare key is in box {desk}.\n\n{prose(name + ' end', 30)}\n"
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)], structured_content={"content": text}
    )


def get_attachment(name: str) -> types.CallToolResult:
    """A sentence, and about 9 kB of text as an embedded resource, as by servers of code hosts."""
    resource = types.TextResourceContents(
        uri=f"office://attachments/{name}", mime_type="text/plain", text=prose(name, 120)
    )
    return types.CallToolResult(
        content=[
            types.TextContent(type="text", text="Attachment found."),
            types.EmbeddedResource(type="resource", resource=resource),
        ]
    )


def get_issue(number: int) -> dict[str, Any]:
    """An issue with about 9 kB of text, as of an issue tracker."""
    title, body = prose(f"title {number}", 5), prose(f"issue {number}", 120)
    return {"number": number, "title": title.split(".")[0], "body": body, "labels": ["report"], "is_open": True}


def find_invoices(year: int) -> types.CallToolResult:
    """Rows as JSON text between two sentences."""
    dice = random.Random(year)
    rows = [{"invoice": index, "client": dice.choice(WORDS), "units": dice.randint(1, 90)} for index in range(400)]
    texts = ("Here are the invoices of the year:", json.dumps(rows), "Ask the user before you change one.")
    return types.CallToolResult(content=[types.TextContent(type="text", text=text) for text in texts])


def digest_text(text: str) -> str:
    """A digest of all bytes of the text."""
    return f"digest {hashlib.sha256(text.encode()).hexdigest()[:8]}"


def list_orders(year: int) -> dict[str, Any]:
    """About 100 kB: many rows with the same fields."""
    dice = random.Random(year)
    orders = [
        {
            "order_id": index,
            "customer": dice.choice(WORDS),
            "amount_cents": dice.randint(100, 90_000),
            "refunded": False,
        }
        for index in range(1200)
    ]
    return {"year": year, "orders": orders}


def get_weather(city: str) -> str:
    """A small value."""
    return f"{city}: 17 degrees, light rain"


def fetch_page(address: str) -> str:
    """About 60 kB of text with one meaningful line in the middle."""
    line = "The night desk is reached at extension 4471, from ten in the evening to six in the morning."
    return f"{prose(address, 400)}\n\n{line}\n\n{prose(address + ' end', 400)}"


def plot_sales(year: int) -> types.CallToolResult:
    """Rows as structured content, a text with other information, and a small image."""
    dice = random.Random(year)
    rows: list[dict[str, Any]] = [
        {"week": week, "units": dice.randint(200, 900), "region": dice.choice(REGIONS)} for week in range(1, 53)
    ]
    best = max(rows, key=lambda row: row["units"])
    return types.CallToolResult(
        content=[
            types.TextContent(type="text", text=f"Chart of {year} drawn. The best week was week {best['week']}."),
            types.ImageContent(type="image", data=PICTURE, mime_type="image/png"),
        ],
        structured_content={"year": year, "rows": rows},
    )


def archive_rows(rows: list[dict[str, Any]]) -> str:
    return f"Archived {len(rows)} rows, {sum(row['units'] for row in rows)} units in all."


def compare_texts(left: str, right: str) -> str:
    both, either = set(left.split()) & set(right.split()), set(left.split()) | set(right.split())
    return f"{len(both)} of {len(either)} different words stand in both."


def get_order(number: int) -> dict[str, Any]:
    """About 7 kB; the task needs a top-level key."""
    dice = random.Random(number)
    items = [
        {"article": f"A-{dice.randint(1000, 9999)}", "name": dice.choice(WORDS), "grams": dice.randint(100, 9000)}
        for _ in range(120)
    ]
    return {"number": number, "customer": {"name": "Ines Ferro", "city": "Turin"}, "items": items}


def weigh_items(items: list[dict[str, Any]]) -> str:
    return f"{len(items)} items weigh {sum(item['grams'] for item in items)} grams."


def get_catalog(season: str) -> dict[str, Any]:
    """About 10 kB, four levels deep."""
    dice = random.Random(season)

    def product(section: str, index: int) -> dict[str, Any]:
        return {"name": f"{section} {index}", "cents": dice.randint(500, 90000), "about": prose(f"{section}{index}", 5)}

    sections = [
        {"title": title, "products": [product(title, index) for index in range(5)]}
        for title in ("Tents", "Stoves", "Lamps")
    ]
    return {"season": season, "sections": sections}


def quote_price(product: dict[str, Any]) -> str:
    return f"{product['name']} costs {product['cents'] / 100:.2f} EUR."


def get_letter(name: str) -> str:
    """About 9 kB that begin with a placeholder for a name and end with a number."""
    reference = random.Random(name).randint(10_000, 99_999)
    return f"Dear CUSTOMER,\n\n{prose(name, 120)}\n\nYours, the office\nOur reference: {reference}"


def send_letter(text: str) -> str:
    """Write the sent text to a file, so that it can be checked."""
    Path("sent.txt").write_bytes(text.encode())
    return f"Sent {len(text)} characters."


def load_readings(station: str) -> dict[str, Any]:
    """Hourly values of two weeks in Fahrenheit, with a few impossible ones."""
    dice = random.Random(station)
    readings = [
        {
            "day": f"2026-05-{1 + hour // 24:02d}",
            "hour": hour % 24,
            "value": 50 + dice.randint(0, 30) + (hour // 24) % 9,
        }
        for hour in range(14 * 24)
    ]
    for at in dice.sample(range(len(readings)), 5):
        readings[at]["value"] = 999
    return {"station": station, "unit": "F", "readings": readings}


def remove_outliers(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "readings": [one for one in data["readings"] if one["value"] < 200]}


def to_celsius(data: dict[str, Any]) -> dict[str, Any]:
    if data["unit"] != "F":
        raise ValueError(f"These readings are in {data['unit']}, not in F.")
    readings = [{**one, "value": round((one["value"] - 32) / 1.8, 2)} for one in data["readings"]]
    return {**data, "unit": "C", "readings": readings}


def average_days(data: dict[str, Any]) -> dict[str, Any]:
    if data["unit"] != "C" or any(one["value"] > 90 for one in data["readings"]):
        raise ValueError("Give readings in C without outliers.")
    days: dict[str, list[float]] = {}
    for one in data["readings"]:
        days.setdefault(one["day"], []).append(one["value"])
    return {"station": data["station"], "days": {day: round(sum(all_) / len(all_), 2) for day, all_ in days.items()}}


def find_warmest_day(averages: dict[str, Any]) -> str:
    day = max(averages["days"], key=lambda one: averages["days"][one])
    return f"The warmest day at {averages['station']} was {day}, with {averages['days'][day]} degrees."


def file_form(reference: str) -> str:
    """The function of each of the many other tools."""
    return f"Filed {reference}."


TOOLS = (
    Tool("read_minutes", "Get the minutes of a meeting, as text.", {"meeting": TEXT}, read_minutes),
    Tool("count_words", "Count the words of a text.", {"text": TEXT}, count_words),
    Tool("save_file", "Save text as a file.", {"name": TEXT, "content": TEXT}, save_file),
    Tool("read_log", "Get the log of a service, oldest line first.", {"service": TEXT}, read_log),
    Tool("read_file", "Get a file, as text.", {"name": TEXT}, read_file),
    Tool("get_attachment", "Get an attachment, as text.", {"name": TEXT}, get_attachment),
    Tool("get_issue", "Get an issue with its body.", {"number": WHOLE}, get_issue),
    Tool("find_invoices", "Find the invoices of a year.", {"year": WHOLE}, find_invoices),
    Tool("digest_text", "Compute the digest of a text.", {"text": TEXT}, digest_text),
    Tool("list_orders", "List the orders of a year.", {"year": WHOLE}, list_orders),
    Tool("get_weather", "Get the weather of a city now.", {"city": TEXT}, get_weather),
    Tool("fetch_page", "Get a page of the office's handbook, as text.", {"address": TEXT}, fetch_page),
    Tool("plot_sales", "Draw the sales of a year by week; gives the rows too.", {"year": WHOLE}, plot_sales),
    Tool("archive_rows", "Put rows of sales into the archive.", {"rows": OBJECTS}, archive_rows),
    Tool("compare_texts", "Tell how much two texts have in common.", {"left": TEXT, "right": TEXT}, compare_texts),
    Tool("get_order", "Get an order with its customer and items.", {"number": WHOLE}, get_order),
    Tool("weigh_items", "Add up what the items of an order weigh.", {"items": OBJECTS}, weigh_items),
    Tool("get_catalog", "Get the catalog of a season: sections with products.", {"season": TEXT}, get_catalog),
    Tool("quote_price", "Get the price of one product of a catalog.", {"product": OBJECT}, quote_price),
    Tool("get_letter", "Get a letter to be sent, as text.", {"name": TEXT}, get_letter),
    Tool("send_letter", "Send a letter.", {"text": TEXT}, send_letter),
    Tool("load_readings", "Get the temperatures that a station read.", {"station": TEXT}, load_readings),
    Tool("remove_outliers", "Take readings out that cannot be.", {"data": OBJECT}, remove_outliers),
    Tool("to_celsius", "Turn readings in Fahrenheit into Celsius.", {"data": OBJECT}, to_celsius),
    Tool("average_days", "Average readings in Celsius by day.", {"data": OBJECT}, average_days),
    Tool("find_warmest_day", "Find the warmest of averaged days.", {"averages": OBJECT}, find_warmest_day),
)


def more_tools(count: int) -> tuple[Tool, ...]:
    """Tools that no task needs."""
    names = (f"{verb}_{noun}_form" for noun in WORDS for verb in ("file", "check", "renew", "close"))
    return tuple(
        Tool(name, f"{name.split('_')[0].capitalize()} the form of that kind.", {"reference": TEXT}, file_form)
        for name, _ in zip(names, range(count), strict=False)
    )


def main() -> None:
    """`office.py [MORE]`: also serve this number of tools that no task needs, before and after the others."""
    more = more_tools(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    serve("office", (*more[: len(more) // 2], *TOOLS, *more[len(more) // 2 :]))


if __name__ == "__main__":
    main()

"""The notices that the documentation shows are those that the gateway writes."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from doc_pages import ROOT
from mcp_types import TextContent

from mcp_mirror import SyncMirror

CONCEPT = (ROOT / "docs" / "concepts" / "notices.md").read_text(encoding="utf-8")
NO_PREVIEW = (ROOT / "docs" / "guides" / "no-preview.md").read_text(encoding="utf-8")


def masked(text: str) -> str:
    """Replace the random part of each path."""
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "UUID", text)


SERVER = """
from typing import Any
from mcp.server.mcpserver import MCPServer

server = MCPServer("search", log_level="ERROR")


@server.tool()
def search() -> dict[str, Any]:
    return {"summary": "a" * 4100, "hits": [{"text": "b" * 2600} for _ in range(12)]}


server.run("stdio")
"""


def add_tools_with_texts(mirror: SyncMirror) -> None:
    @mirror.tool
    def get_issue(number: int) -> dict[str, Any]:
        body = "# Steps\n\n" + "".join(f"## Step {step}\n\n" + "- Open the page.\n" * 130 for step in range(4))
        return {"number": number, "title": "Login fails", "body": body, "open": True}

    @mirror.tool
    def search_people() -> str:
        rows = [{"id": str(number), "who": "Grace", "n": number} for number in range(300)]
        return f"Found 300 people:\n{json.dumps(rows, indent=2)}\n\nMore: page=2\n"


def add_tools_with_rows(mirror: SyncMirror) -> None:
    @mirror.tool
    def get_users() -> dict[str, Any]:
        users = [{"id": number, "name": f"user {number}", "score": number / 2} for number in range(1500)]
        return {"data": {"users": users, "has_more": True, "next_cursor": "b2Zmc2V0PTE1MDA"}, "ok": True}

    @mirror.tool
    def run_query() -> dict[str, Any]:
        rows = [["2026-01-01", f"Shop {number}", 1.5] for number in range(800)]
        return {"columns": ["date", "payee", "amount"], "rows": rows, "note": "The first 800 of 1,912 rows."}


def add_tools_with_items(mirror: SyncMirror) -> None:
    @mirror.tool
    def lint_files() -> list[Any]:
        messages = [
            {"ruleId": "semi", "severity": 2, "message": "Missing semicolon.", "line": line} for line in range(12, 416)
        ]
        found = {"filePath": "/home/ada/shop/src/checkout/forms/PaymentAddressForm.test.jsx", "messages": messages}
        asked = "Here are the results. Show the list to the user:", "Ask the user before you fix an issue."
        texts = (asked[0], json.dumps({**found, "errorCount": len(messages)}), asked[1])
        return [TextContent(type="text", text=text) for text in texts]

    @mirror.tool
    def read_files() -> list[Any]:
        texts = "# The parser\n\nThe parser reads one token.\n", "# The printer\n\nThe printer writes lines.\n"
        return [TextContent(type="text", text=text * 220) for text in texts]

    @mirror.tool
    def run_build() -> str:
        modules = [f"[INFO] compile module-{number}" for number in range(300)]
        errors = ["[ERROR] src/Main.java:[42,13] cannot find symbol", "[ERROR] 1 error"]
        states = [f"[INFO] module-{number} ........ SUCCESS" for number in range(20)]
        return "\n".join([*modules, *errors, *states, "[INFO] BUILD FAILURE"])


def open_mirror() -> SyncMirror:
    mirror = SyncMirror()

    @mirror.tool
    def list_orders() -> list[dict[str, Any]]:
        order = {"customer": "a@example.org", "amount_cents": 0, "status": "refunded"}
        return [{"order_id": number, **order, "amount_cents": 3 * number} for number in range(1500)]

    @mirror.tool
    def read_log() -> str:
        return "\n".join(f"{number:05} info request took {number % 7} ms" for number in range(4000))

    @mirror.tool
    def get_diff() -> str:
        changed = "@@ -7 +7 @@\n-    return text\n+    return text.strip()\n" * 120
        names = ("src/parser.py", "src/printer.py", "tests/test_parser.py")
        return "commit 3b277dd\n\n" + "".join(
            f"diff --git a/{name} b/{name}\n--- a/{name}\n+++ b/{name}\n{changed}" for name in names
        )

    @mirror.tool
    def read_page() -> str:
        steps = ("Install", "Configure", "Run", "Update")
        return "# Handbook\n\nFor **operators**.\n\n" + "".join(
            f"## {step}\n\n" + "- One step after the other, as it is described here.\n" * 60 for step in steps
        )

    @mirror.tool
    def get_prices(symbol: str) -> dict[str, Any]:
        days = [f"2025-{month:02}-{day:02}" for month in range(1, 13) for day in range(1, 29)]
        return {"symbol": symbol, "daily": {day: {"open": 17.2, "close": 17.4} for day in days}}

    @mirror.tool
    def get_city(name: str) -> dict[str, Any]:
        return {"name": name, "population": 330000}

    add_tools_with_texts(mirror)
    add_tools_with_rows(mirror)
    add_tools_with_items(mirror)
    return mirror


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("list_orders", {}),
        ("read_log", {}),
        ("get_diff", {}),
        ("read_page", {}),
        ("get_issue", {"number": 17}),
        ("search_people", {}),
        ("get_prices", {"symbol": "ACME"}),
        ("get_city", {"name": "Bonn"}),
        ("get_users", {}),
        ("run_query", {}),
        ("lint_files", {}),
        ("read_files", {}),
        ("run_build", {}),
    ],
)
def test_the_page_shows_the_notice_of_a_tool(tool: str, arguments: dict[str, Any]) -> None:
    with open_mirror() as mirror:
        notice = mirror.call(f"{tool}_mirrored", arguments).text
    assert masked(notice).strip() in masked(CONCEPT)


def test_the_page_shows_a_notice_without_preview(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    upstream = {"command": sys.executable, "args": [str(tmp_path / "server.py")], "preview": False}
    with SyncMirror(upstreams={"search": upstream}) as mirror:
        notice = mirror.call("search_mirrored", {}).text
    assert masked(notice).strip() in masked(NO_PREVIEW)

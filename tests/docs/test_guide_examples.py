"""The examples of the guides to scripts and SQL run, and their answers are those of the guides."""

import re
from typing import Any

import pytest
from doc_pages import ROOT

from mcp_mirror import Mirror


def read_examples(guide: str, language: str) -> list[tuple[str, str]]:
    text = (ROOT / "docs" / "guides" / guide).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)


SCRIPTS, QUERIES = read_examples("scripts.md", "py"), read_examples("sql.md", "sql")
NAMES = ("Anna", "Bela", "Cem", "Dora", "Emil", "Femke")
ORDERS = [
    {
        "id": n,
        "user": n % 6,
        "cents": 3 * n if n % 250 else 0,
        "status": ("paid", "refunded")[n % 2 == 1],
        "at": f"2026-{n % 12 + 1:02}-01T10:00:00Z",
        "ship": {"city": ("Bonn", "Oslo")[n % 3 == 0], "items": [n, n + 1]},
    }
    for n in range(1500)
]
LOG = "\n".join(
    f"2026-01-01T{n % 24:02}:00:00 {'ERROR' if n % 12 == 0 and n < 1728 else 'info'} request {n}" for n in range(4000)
)


def test_each_guide_has_five_examples() -> None:
    assert (len(SCRIPTS), len(QUERIES)) == (5, 5)


@pytest.mark.parametrize(("code", "shown"), SCRIPTS)
async def test_a_script_returns_what_the_guide_shows(code: str, shown: str) -> None:
    pytest.importorskip("pydantic_monty")
    mirror = Mirror()
    orders = [{key: order[key] for key in ("id", "user", "cents", "status")} for order in ORDERS]

    @mirror.tool
    def list_orders() -> list[dict[str, Any]]:
        return orders

    @mirror.tool
    def search_pages(query: str, page: int) -> dict[str, Any]:
        scores = [page * 10 + n for n in range(10)]
        return {"hits": [{"title": f"{query.title()} {one}", "score": one * 7 % 99} for one in scores]}

    values = {
        "orders": ORDERS,
        "users": [{"id": number, "name": name} for number, name in enumerate(NAMES)],
        "log": LOG,
    }
    async with mirror:
        reply = await mirror.run(code, {} if "tools" in code else await store(mirror, values, code))
    assert shown.strip().removesuffix("...") in reply.text


@pytest.mark.parametrize(("sql", "shown"), QUERIES)
async def test_a_query_returns_what_the_guide_shows(sql: str, shown: str) -> None:
    pytest.importorskip("duckdb")
    users = "id,name,zip\n" + "".join(f"{number},{name},0{number}\n" for number, name in enumerate(NAMES))
    async with Mirror() as mirror:
        reply = await mirror.sql(sql, await store(mirror, {"orders": ORDERS, "users": users, "log": LOG}, sql))
    assert shown.strip() in reply.text


async def store(mirror: Mirror, values: dict[str, Any], used_in: str) -> dict[str, str]:
    """Store the values that an example names, and return their paths."""
    return {name: await mirror.put(value) for name, value in values.items() if re.search(rf"\b{name}\b", used_in)}

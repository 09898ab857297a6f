"""The examples of the guide to SQL run, and their answers are those of the guide."""

import re

import pytest
from doc_pages import ROOT

from mcp_mirror import Mirror

pytest.importorskip("duckdb")

GUIDE = (ROOT / "docs" / "guides" / "sql.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```sql\n(.*?)```\n\n```text\n(.*?)```", GUIDE, re.DOTALL)
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
USERS = "id,name,zip\n" + "".join(f"{number},{name},0{number}\n" for number, name in enumerate(NAMES))
LOG = "\n".join(
    f"2026-01-01T{n % 24:02}:00:00 {'ERROR' if n % 12 == 0 and n < 1728 else 'info'} request {n}" for n in range(4000)
)


def test_the_guide_has_five_examples() -> None:
    assert len(EXAMPLES) == 5


@pytest.mark.parametrize(("sql", "shown"), EXAMPLES)
async def test_an_example_returns_what_the_guide_shows(sql: str, shown: str) -> None:
    async with Mirror() as mirror:
        values = {"orders": ORDERS, "users": USERS, "log": LOG}
        used = {name: await mirror.put(value) for name, value in values.items() if re.search(rf"\b{name}\b", sql)}
        reply = await mirror.sql(sql, used)
    assert shown.strip() in reply.text

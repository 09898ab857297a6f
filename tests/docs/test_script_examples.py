"""The examples of the guide to scripts run, and their answers are those of the guide."""

import re
from typing import Any

import pytest
from doc_pages import ROOT

from mcp_mirror import Mirror

pytest.importorskip("pydantic_monty")

GUIDE = (ROOT / "docs" / "guides" / "scripts.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```py\n(.*?)```\n\n```text\n(.*?)```", GUIDE, re.DOTALL)
NAMES = ("Anna", "Bela", "Cem", "Dora", "Emil", "Femke")
ORDERS = [
    {"id": n, "user": n % 6, "cents": 3 * n if n % 250 else 0, "status": ("paid", "refunded")[n % 2 == 1]}
    for n in range(1500)
]
LOG = "\n".join(
    f"2026-01-01T{n % 24:02}:00:00 {'ERROR' if n % 12 == 0 and n < 1728 else 'info'} request {n}" for n in range(4000)
)


def test_the_guide_has_five_examples() -> None:
    assert len(EXAMPLES) == 5


@pytest.mark.parametrize(("code", "shown"), EXAMPLES)
async def test_an_example_returns_what_the_guide_shows(code: str, shown: str) -> None:
    mirror = Mirror()

    @mirror.tool
    def list_orders() -> list[dict[str, Any]]:
        return ORDERS

    @mirror.tool
    def search_pages(query: str, page: int) -> dict[str, Any]:
        scores = [page * 10 + n for n in range(10)]
        return {"hits": [{"title": f"{query.title()} {one}", "score": one * 7 % 99} for one in scores]}

    async with mirror:
        users = await mirror.put([{"id": number, "name": name} for number, name in enumerate(NAMES)])
        inputs = {"orders": await mirror.put(ORDERS), "users": users, "log": await mirror.put(LOG)}
        used = {name: path for name, path in inputs.items() if re.search(rf"\b{name}\b", code)}
        reply = await mirror.run(code, {} if "tools" in code else used)
    assert shown.strip().removesuffix("...") in reply.text

"""Two gateways on one store: the labels that one stores bind the other."""

from __future__ import annotations

import uuid
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from flow_user import SELF, STRICT, Desk, path_in
from tests.end_to_end.conftest import configured, desk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from redis_process import RedisProcess

__all__ = ["configured", "desk"]

DERIVED: list[tuple[str, dict[str, Any]]] = [
    ("memory_query", {"expression": "rows"}),
    ("memory_edit", {"merge": {"more": 1}}),
    ("web_hear_mirrored", {}),
]
ALWAYS = {"capture": "always", "inline_budget": 0}


@pytest.fixture(params=["disk", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "disk":
        return {"kind": "disk", "path": str(tmp_path / "store")}
    server: RedisProcess = request.getfixturevalue("redis_server")
    return {"kind": "redis", "path": None, "url": server.url, "prefix": f"{uuid.uuid4()}:"}


async def derive(user: Desk, tool: str, given: dict[str, Any], path: str) -> str:
    key = "x" if tool.startswith("web") else "memory_path"
    return path_in((await user.text(tool, **{key: path}, **given)).replace(path, ""))


async def test_labels_of_one_gateway_bind_the_other_for_derived_values_too(
    desk: Callable[..., Any], store: dict[str, Any]
) -> None:
    async with AsyncExitStack() as stack:
        one, two = [
            await stack.enter_async_context(desk(STRICT, flows=SELF, mirror=ALWAYS, store=store)) for _ in range(2)
        ]
        path = await one.say("crm")
        assert "may not go to" in await two.refused("mail_hear_mirrored", x=path)
        for tool, arguments in DERIVED:
            made = await derive(two, tool, arguments, path)
            assert (await one.labels(made))["confidentiality"] == "private"
            again = await derive(one, tool, arguments, made) if tool != "memory_query" else made
            for user in (one, two):
                assert "may not go to" in await user.refused("mail_hear_mirrored", x=again)
        assert one.calls("mail") == 0


async def test_labels_stay_when_one_gateway_gets_another_configuration(
    desk: Callable[..., Any], store: dict[str, Any]
) -> None:
    public = {"labels": {"integrity": "trusted", "confidentiality": "public"}}
    generous = {"accepts": {"integrity": "untrusted", "confidentiality": "private"}}
    async with desk(STRICT, flows=SELF, mirror=ALWAYS, store=store) as one:
        path = await one.say("crm")
        async with desk({**STRICT, "crm": public}, flows=SELF, mirror=ALWAYS, store=store) as changed:
            assert "may not go to" in await changed.refused("mail_hear_mirrored", x=path)
            made = await derive(changed, *DERIVED[0], path)
            assert "may not go to" in await one.refused("mail_hear_mirrored", x=made)
            later = await changed.say("crm")
        await one.text("mail_hear_mirrored", x=later)  # it was public when it was stored
        async with desk({**STRICT, "mail": generous}, flows=SELF, mirror=ALWAYS, store=store) as changed:
            await changed.text("mail_hear_mirrored", x=path)
        assert "may not go to" in await one.refused("mail_hear_mirrored", x=path)

"""The costs of the definitions of twins and memory tools, with real servers."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from tests.everyday.servers import Place, Server
from tests.real.conftest import Connection

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("everyday")]

PER_TOOL: Final = 10
PER_PLACE: Final = 9.1
"""Tokens for an argument that is not a text, at any depth: 9, and a tenth more where references are repeated."""
OWN: Final = 900

Extra = Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[int, int]]


def test_twins_cost_ten_tokens_a_tool_and_nine_an_argument_at_most(
    server: Server,
    gateway: Connection,
    direct: Callable[[Server], tuple[Connection, Place]],
    extra_tokens: Extra,
    count_tokens: Callable[[str], int],
    record_property: Callable[[str, object], None],
) -> None:
    twins = {tool.name: tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in gateway.tools()}
    over: dict[str, str] = {}
    total, extra = 0, 0
    for tool in direct(server)[0].tools():
        plain = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
        more, places = extra_tokens(plain, twins[f"{tool.name}_mirrored"])
        total, extra = total + _cost(plain, count_tokens), extra + more
        if more > PER_TOOL + PER_PLACE * places:
            over[tool.name] = f"{more} tokens more, with {places} places"
    record_property("everyday definitions", (server.name, total, extra))
    assert not over


def test_our_own_tools_cost_900_tokens_at_most(
    gateway: Connection, count_tokens: Callable[[str], int], record_property: Callable[[str, object], None]
) -> None:
    own = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in gateway.tools()]
    cost = sum(_cost(tool, count_tokens) for tool in own if not tool["name"].endswith("_mirrored"))
    record_property("everyday line", f"Definitions of the gateway's own tools: {cost} tokens.")
    assert 0 < cost <= OWN


def _cost(advert: Mapping[str, Any], count_tokens: Callable[[str], int]) -> int:
    seen = {key: value for key, value in advert.items() if key in ("name", "description", "inputSchema")}
    return count_tokens(json.dumps(seen, separators=(",", ":"), ensure_ascii=False))

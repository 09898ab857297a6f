"""The tools of four real servers, listed by one gateway."""

import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import jsonschema_rs
import pytest
from mcp_types import Tool

from mcp_mirror.memory.tools.table import own_tools
from mcp_mirror.settings.policies import MemoryToolsPolicy

if TYPE_CHECKING:
    from tests.real.conftest import Connect, Connection

pytestmark = pytest.mark.xdist_group("real")

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
PATH: Final = f"git_diff-{UUID(int=0, version=4)}/content"
SCRIPTS: Final = ("memory_run",) if find_spec("pydantic_monty") else ()
OWN: Final = (*SCRIPTS, *own_tools(MemoryToolsPolicy(), 1.0))
SERVERS: Final = {"git": 12, "time": 2, "everything": 13, "files": 14}
"""Each server with the number of its tools: a listing that lost some upstream too would prove nothing."""

LITERALS: Final[tuple[Any, ...]] = (True, 7, 0.5, [], [1], [[]], {}, {"x": 1}, None)
"""Values without texts: only texts may be paths."""

ANYTHING: Final[Mapping[str, Any]] = {"type": "string", "properties": {}, "required": []}
"""Laid over a schema, leaves of it only what a text argument may refer to, such as `$defs`."""

Direct = Callable[[str], "Connection"]


@pytest.fixture(scope="module")
def listing(gateway: "Connection") -> list[Tool]:
    return gateway.tools()


@pytest.fixture(scope="module")
def twins(listing: list[Tool]) -> Mapping[str, Tool]:
    return {tool.name: tool for tool in listing if tool.name not in OWN}


def test_every_tool_has_one_twin_in_the_order_of_the_servers(listing: list[Tool], direct: Direct) -> None:
    originals = {name: [tool.name for tool in direct(name).tools()] for name in SERVERS}
    assert {name: len(tools) for name, tools in originals.items()} == SERVERS
    expected = [f"{tool}_mirrored" for tools in originals.values() for tool in tools]
    assert [tool.name for tool in listing] == [*expected, *OWN]


def test_every_name_is_one_that_all_clients_take(listing: list[Tool]) -> None:
    assert [tool.name for tool in listing if not NAME.fullmatch(tool.name)] == []


def test_every_input_schema_is_an_object_without_alternatives_at_its_root(
    listing: list[Tool],
) -> None:
    for tool in listing:
        jsonschema_rs.meta.validate(tool.input_schema)
        assert tool.input_schema["type"] == "object", tool.name
        assert not {"anyOf", "oneOf", "allOf"} & tool.input_schema.keys(), tool.name


def test_no_twin_promises_the_shape_of_an_output_that_it_replaces(listing: list[Tool]) -> None:
    assert [tool.name for tool in listing if tool.output_schema is not None] == []


@pytest.mark.parametrize("server", SERVERS)
def test_a_twin_keeps_the_annotations_of_its_tool(server: str, twins: Mapping[str, Tool], direct: Direct) -> None:
    for original in direct(server).tools():
        twin = twins[f"{original.name}_mirrored"]
        assert (twin.description or "").startswith((original.description or "").strip())
        assert (twin.title, twin.annotations) == (original.title, original.annotations)
        assert twin.input_schema.get("required") == original.input_schema.get("required")
        assert properties(twin).keys() == properties(original).keys()


def test_every_argument_of_every_twin_takes_a_memory_path(twins: Mapping[str, Tool]) -> None:
    for twin in twins.values():
        for name, schema in properties(twin).items():
            assert jsonschema_rs.is_valid({**twin.input_schema, **ANYTHING, "allOf": [schema]}, PATH), (twin.name, name)


@pytest.mark.parametrize("server", SERVERS)
def test_a_twin_accepts_and_refuses_the_arguments_of_its_tool(
    server: str, twins: Mapping[str, Tool], direct: Direct
) -> None:
    for original in direct(server).tools():
        widened = properties(twins[f"{original.name}_mirrored"])
        for name, schema in properties(original).items():
            for value in LITERALS:
                assert jsonschema_rs.is_valid(widened[name], value) == jsonschema_rs.is_valid(schema, value), (
                    original.name,
                    name,
                    value,
                )


@pytest.mark.parametrize("server", SERVERS)
def test_a_twin_costs_ten_tokens_and_nine_for_each_argument_not_text(
    server: str,
    twins: Mapping[str, Tool],
    direct: Direct,
    extra_tokens: Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[int, int]],
) -> None:
    for original in direct(server).tools():
        extra, places = extra_tokens(*dump([original, twins[f"{original.name}_mirrored"]]))
        assert extra <= 10 + 9 * places, original.name


def test_a_second_connection_lists_the_same_tools_in_the_same_order(connect: "Connect", http_gateway: str) -> None:
    assert dump(connect(http_gateway).tools()) == dump(connect(http_gateway).tools())


def test_a_second_gateway_lists_the_same_tools_in_the_same_order(
    connect: "Connect", http_gateway: str, listing: list[Tool]
) -> None:
    assert dump(connect(http_gateway).tools()) == dump(listing)


def properties(tool: Tool) -> Mapping[str, Any]:
    found: Mapping[str, Any] = tool.input_schema.get("properties", {})
    return found


def dump(tools: list[Tool]) -> list[dict[str, Any]]:
    return [tool.model_dump(mode="json", by_alias=True) for tool in tools]

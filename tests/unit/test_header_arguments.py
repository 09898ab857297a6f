"""The arguments that a schema mirrors into HTTP headers."""

import sys
from collections.abc import Iterator
from time import thread_time
from typing import Any

import msgspec
import pytest

from mcp_mirror.core.catalog import CatalogEntry
from mcp_mirror.core.results.capture import CaptureRules
from mcp_mirror.core.schemas.tool_inspection import InspectedTool
from mcp_mirror.gateway.arguments import select_header_arguments

RULES = CaptureRules("auto", 2_500, 2_500, is_wrapped=False)


def entry_of(*headers: tuple[str, ...]) -> CatalogEntry:
    return CatalogEntry("t_mirrored", "u", "t", {}, InspectedTool({}, headers=headers), RULES, timeout=None)


@pytest.fixture(autouse=True)
def default_digits() -> Iterator[None]:
    """Python's bound of the digits of an integer, which other tests of this process lift."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(sys.int_info.default_max_str_digits)
    yield
    sys.set_int_max_str_digits(before)


@pytest.mark.parametrize(
    ("arguments", "selected"),
    [
        (' {"a": 1, "b": {"c": "x", "d": 2}}', {"a": 1, "b": {"c": "x"}}),
        ('{"b": {"c": [1, {"a": 2}]}}', {"b": {"c": [1, {"a": 2}]}}),
        ('{"b": [1], "a": null}', {"a": None}),
        ('{"b": 3}', {}),
        (f'{{"a": {"1" * 5_000}, "b": {{"c": 4}}}}', {"b": {"c": 4}}),
    ],
)
async def test_mirrored_arguments_are_selected_with_their_places(arguments: str, selected: dict[str, Any]) -> None:
    entry = entry_of(("a",), ("b", "c"), ("missing", "x"))
    assert await select_header_arguments(entry, (arguments.encode(),), "alice") == selected


async def test_very_many_mirrored_arguments_are_selected_in_one_reading() -> None:
    arguments = {f"name {number}": number for number in range(1_500)}
    entry = entry_of(*(("name 7",), *((f"other {number}",) for number in range(2_000))))
    began = thread_time()
    assert await select_header_arguments(entry, (msgspec.json.encode(arguments),), "alice") == {"name 7": 7}
    assert thread_time() - began < 1  # before: 10

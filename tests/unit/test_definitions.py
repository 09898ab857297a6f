"""Tool definitions in the format of each provider's API."""

from typing import Any

import pytest

from mcp_mirror.errors import MirrorError
from mcp_mirror.library.tool_formats import format_definition

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
ADVERT = {"name": "load_mirrored", "description": "A table.", "inputSchema": SCHEMA, "annotations": {"title": "Load"}}
NAMED = {"name": "load_mirrored", "description": "A table."}


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("openai", {"type": "function", "function": {**NAMED, "parameters": SCHEMA}}),
        ("openai-responses", {"type": "function", **NAMED, "parameters": SCHEMA, "strict": False}),
        ("anthropic", {**NAMED, "input_schema": SCHEMA}),
        ("mcp", ADVERT),
    ],
)
def test_each_api_has_its_own_form(form: str, expected: dict[str, Any]) -> None:
    assert format_definition(ADVERT, form) == expected


@pytest.mark.parametrize("form", ["openai", "openai-responses", "anthropic", "mcp"])
def test_a_tool_without_description_has_none_in_any_form(form: str) -> None:
    found = format_definition({"name": "now_mirrored", "inputSchema": {"type": "object"}}, form)
    named = found.get("function", found)
    assert (named["name"], "description" in named) == ("now_mirrored", False)


@pytest.mark.parametrize("form", ["openai", "openai-responses", "anthropic", "mcp"])
def test_a_definition_is_the_callers_own(form: str) -> None:
    found = format_definition(ADVERT, form)
    definition = found.get("function", found)
    next(definition[key] for key in ("parameters", "input_schema", "inputSchema") if key in definition)[
        "properties"
    ].clear()
    assert SCHEMA["properties"]


def test_another_form_is_refused_with_those_there_are() -> None:
    with pytest.raises(MirrorError, match=r"Unknown tool format 'gemini'\. Use one of openai, openai-responses, anthr"):
        format_definition(ADVERT, "gemini")

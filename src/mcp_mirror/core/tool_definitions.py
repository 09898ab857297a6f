"""Tool definitions in the formats of model providers, and limits on the definitions of upstreams."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Final, Literal

import msgspec

from mcp_mirror.errors import MirrorError
from mcp_mirror.payload.json_rpc import is_deeper
from mcp_mirror.settings.limits import UpstreamBounds

Format = Literal["openai", "openai-responses", "anthropic", "mcp"]

Definition = dict[str, Any]


def format_definition(advert: Mapping[str, Any], form: str) -> Definition:
    """The definition of a tool in a provider's format; a copy, which callers may change.

    Args:
        advert: The tool as MCP lists it.
        form: `openai` (Chat Completions, which most other APIs have adopted), `openai-responses` (Responses),
            `anthropic` (Messages) or `mcp`.

    Raises:
        MirrorError: The format is unknown.
    """
    if form not in _FORMS:
        raise MirrorError(f"Unknown tool format {form!r}. Use one of {', '.join(_FORMS)}.")
    return _FORMS[form](deepcopy(dict(advert)))


def find_excess(tool: Mapping[str, Any], bounds: UpstreamBounds) -> str | None:
    """The limit that a tool's definition exceeds, as a clause; None if it exceeds none."""
    try:
        text = msgspec.json.encode(tool)
    except (ValueError, TypeError):  # `tool_inspection` reports members that cannot be encoded
        return None
    except RecursionError:
        return _describe_nesting_excess(bounds)
    if len(text) > bounds.max_tool_bytes:
        return f"its definition has {len(text):,} bytes; `limits.max_tool_bytes` is {bounds.max_tool_bytes:,}"
    if len(str(tool.get("name")).encode()) > bounds.max_name_bytes:
        return f"its name is longer than `limits.max_name_bytes` ({bounds.max_name_bytes:,})"
    return _describe_nesting_excess(bounds) if is_deeper(text, bounds.max_schema_depth) else None


def _describe_nesting_excess(bounds: UpstreamBounds) -> str:
    return f"its definition is nested deeper than `limits.max_schema_depth` ({bounds.max_schema_depth})"


def _format_function(advert: Definition) -> Definition:
    return {"name": advert["name"], "description": advert["description"], "parameters": advert["inputSchema"]}


_FORMS: Final[Mapping[str, Callable[[Definition], Definition]]] = {
    "openai": lambda advert: {"type": "function", "function": _format_function(advert)},
    # `strict` is true by default there, which rejects optional arguments.
    "openai-responses": lambda advert: {"type": "function", **_format_function(advert), "strict": False},
    "anthropic": lambda advert: {
        "name": advert["name"],
        "description": advert["description"],
        "input_schema": advert["inputSchema"],
    },
    "mcp": lambda advert: advert,
}

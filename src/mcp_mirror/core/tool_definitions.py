"""Tools as the APIs of model providers take them; and which are too much to be passed on."""

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
    """A tool's definition; a copy, which may be changed.

    Args:
        advert: The tool as MCP lists it.
        form: `openai` (Chat Completions, which most other APIs have taken over), `openai-responses` (Responses),
            `anthropic` (Messages) or `mcp`.

    Raises:
        MirrorError: There is no such form.
    """
    if form not in _FORMS:
        raise MirrorError(f"There is no format {form!r} of tools. Take one of {', '.join(_FORMS)}.")
    return _FORMS[form](deepcopy(dict(advert)))


def find_excess(tool: Mapping[str, Any], bounds: UpstreamBounds) -> str | None:
    """Why a tool as its upstream lists it is too much; None where it is not."""
    try:
        text = msgspec.json.encode(tool)
    except (ValueError, TypeError):  # what is odd in it is told elsewhere
        return None
    except RecursionError:
        return _nested(bounds)
    if len(text) > bounds.max_tool_bytes:
        return f"its definition has {len(text):,} bytes; `limits.max_tool_bytes` is {bounds.max_tool_bytes:,}"
    if len(str(tool.get("name")).encode()) > bounds.max_name_bytes:
        return f"its name is longer than `limits.max_name_bytes` ({bounds.max_name_bytes:,})"
    return _nested(bounds) if is_deeper(text, bounds.max_schema_depth) else None


def _nested(bounds: UpstreamBounds) -> str:
    return f"its definition is nested deeper than `limits.max_schema_depth` ({bounds.max_schema_depth})"


def _function(advert: Definition) -> Definition:
    return {"name": advert["name"], "description": advert["description"], "parameters": advert["inputSchema"]}


_FORMS: Final[Mapping[str, Callable[[Definition], Definition]]] = {
    "openai": lambda advert: {"type": "function", "function": _function(advert)},
    # What is not said is true there, and refuses optional arguments.
    "openai-responses": lambda advert: {"type": "function", **_function(advert), "strict": False},
    "anthropic": lambda advert: {
        "name": advert["name"],
        "description": advert["description"],
        "input_schema": advert["inputSchema"],
    },
    "mcp": lambda advert: advert,
}

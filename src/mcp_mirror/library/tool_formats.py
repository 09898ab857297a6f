"""Definitions of tools in the formats of the providers' APIs."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Final, Literal

from mcp_mirror.errors import MirrorError

Format = Literal["openai", "openai-responses", "anthropic", "mcp"]

Definition = dict[str, Any]


def format_definition(advert: Mapping[str, Any], form: str) -> Definition:
    """The definition of a tool in a provider's format; a copy, which callers may change.

    The formats are `openai` (Chat Completions, which most other APIs have adopted), `openai-responses` (Responses),
    `anthropic` (Messages) and `mcp`.

    Raises:
        MirrorError: The format is unknown.
    """
    if form not in _FORMS:
        raise MirrorError(f"Unknown tool format {form!r}. Use one of {', '.join(_FORMS)}.")
    return _FORMS[form](deepcopy(dict(advert)))


def _format_function(advert: Definition, schema_key: str) -> Definition:
    """Return the members of a tool that all APIs have; a description is optional in MCP and in each of them."""
    named = ((key, advert[key]) for key in ("name", "description") if key in advert)
    return dict(named) | {schema_key: advert["inputSchema"]}


_FORMS: Final[Mapping[str, Callable[[Definition], Definition]]] = {
    "openai": lambda advert: {"type": "function", "function": _format_function(advert, "parameters")},
    # `strict` is true by default there, which rejects optional arguments.
    "openai-responses": lambda advert: {"type": "function", **_format_function(advert, "parameters"), "strict": False},
    "anthropic": lambda advert: _format_function(advert, "input_schema"),
    "mcp": lambda advert: advert,
}

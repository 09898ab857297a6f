"""Prepares the arguments of a call for its tool: replaces pointers, validates, and selects arguments for headers."""

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import anyio.to_thread

from mcp_mirror.core.catalog import CatalogEntry
from mcp_mirror.core.resolve import EscapedPath, Pointer, Resolved, TypedText, find_typed_texts, substitute_pointers
from mcp_mirror.core.schema import types_at
from mcp_mirror.errors import ToolError
from mcp_mirror.payload.json_rpc import join
from mcp_mirror.payload.json_spans import Miss, locate
from mcp_mirror.types import Buffer, JsonToken, Segments

_VALIDATED_BYTES: Final = 1 << 18
"""Arguments up to this size are validated against the tool's schema."""
_INLINE_BYTES: Final = 1 << 17
"""Values up to this size are substituted on the event loop, larger ones in a thread."""

Found = Pointer | EscapedPath | TypedText
"""A string of the arguments that is replaced."""
Validate = Callable[[CatalogEntry, bytes], Awaitable[str | None]]
"""Returns the first fault of a tool's arguments (JSON text); None if they are valid or the upstream validates them."""


async def fit_arguments(
    entry: CatalogEntry,
    arguments: Buffer,
    found: tuple[Pointer | EscapedPath, ...],
    values: Mapping[Pointer, Resolved],
    validate: Validate,
    *,
    may_quote: bool,
) -> Segments:
    """Replace pointers by their values and validate the result against the tool's own schema.

    If the arguments are not valid, a text in place of another type is replaced by the JSON that it contains.

    Args:
        entry: The tool.
        arguments: A JSON object, as the client sent it.
        found: The strings that are replaced.
        values: The values of pointers.
        validate: Validates arguments.
        may_quote: An error may quote the values.

    Raises:
        ToolError: The arguments do not fit.
    """
    sent = await _substitute(entry, arguments, found, values) if found else (arguments,)
    if (fault := await _find_fault(entry, sent, validate)) is None:
        return sent
    typed_texts = find_typed_texts(arguments, found, types_at(entry.schema))
    if typed_texts:
        replaced = tuple(sorted((*found, *typed_texts), key=lambda item: item.span.start))
        changed = await _substitute(entry, arguments, replaced, values)
        if await _find_fault(entry, changed, validate) is None:
            return changed
    if not may_quote:
        fault = "the value of a memory path does not match the tool's schema"
    raise ToolError(f"The arguments do not fit tool {entry.name!r}: {fault}. Correct them and call again.")


async def _substitute(
    entry: CatalogEntry, arguments: Buffer, found: tuple[Found, ...], values: Mapping[Pointer, Resolved]
) -> Segments:
    """Replace pointers by their values; in a thread if a value is large, because it may need to be parsed or quoted."""

    def replace_all() -> Segments:
        return substitute_pointers(arguments, found, values, types_at(entry.schema))

    is_large = any(len(value.blob) > _INLINE_BYTES for value in values.values())
    return await anyio.to_thread.run_sync(replace_all) if is_large else replace_all()


async def _find_fault(entry: CatalogEntry, arguments: Segments, validate: Validate) -> str | None:
    """Return the first fault of the arguments; None if they are valid, or so large that the upstream validates them."""
    if sum(map(len, arguments)) > _VALIDATED_BYTES:
        return None
    return await validate(entry, bytes(join(arguments)))


def select_header_arguments(entry: CatalogEntry, arguments: Segments) -> dict[str, Any]:
    """Return the arguments that the schema mirrors into HTTP headers, parsed, as a tree of their locations."""
    selected: dict[str, Any] = {}
    text = join(arguments) if entry.headers else b""
    for location in entry.headers:
        if not isinstance(span := locate(text, location), Miss):
            with suppress(ValueError, RecursionError):  # such as an integer of 5,000 digits, too long for a header
                _set_at(selected, location, json.loads(text[span.start : span.stop]))
    return selected


def _set_at(tree: dict[str, Any], location: tuple[JsonToken, ...], value: object) -> None:
    *above, last = location
    for token in above:
        tree = tree.setdefault(str(token), {})
    tree[str(last)] = value

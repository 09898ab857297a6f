"""The arguments of a call on their way to its tool: values put in, checked, and what of them goes into headers."""

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

_CHECKED_BYTES: Final = 1 << 18
"""Arguments up to this size are validated against the tool's schema."""
_AT_ONCE_BYTES: Final = 1 << 17
"""Values up to this size are put in without leaving the event loop."""


Found = Pointer | EscapedPath | TypedText


Validate = Callable[[CatalogEntry, bytes], Awaitable[str | None]]
"""Returns what is wrong with a tool's arguments, JSON text; None if nothing is, or the upstream is to validate."""


async def fitted(  # one call's
    entry: CatalogEntry,
    arguments: Buffer,
    found: tuple[Pointer | EscapedPath, ...],
    values: Mapping[Pointer, Resolved],
    validate: Validate,
    *,
    tells: bool,
) -> Segments:
    """The values in the pointers' places, held against the tool's own schema, so that the model hears what is wrong.

    Arguments that fit with each text read as what it spells, where no text is wanted, go so.

    Args:
        entry: The tool.
        arguments: A JSON object, as the client sent it.
        found: What stands in it for something else.
        values: What pointers stand for.
        validate: Validates arguments.
        tells: An error may say what is in the values.

    Raises:
        ToolError: They do not fit.
    """
    sent = await _substituted(entry, arguments, found, values)
    if (wrong := await _wrong_in(entry, sent, validate)) is None:
        return sent
    spelled = find_typed_texts(arguments, found, types_at(entry.schema))
    if spelled:
        read = tuple(sorted((*found, *spelled), key=lambda item: item.span.start))
        changed = await _substituted(entry, arguments, read, values)
        if await _wrong_in(entry, changed, validate) is None:
            return changed
    if not tells:
        wrong = "a value behind a memory path is not as the tool's schema wants it"
    raise ToolError(f"The arguments do not fit tool {entry.name!r}: {wrong}. Correct them and call again.")


async def _substituted(
    entry: CatalogEntry, arguments: Buffer, found: tuple[Found, ...], values: Mapping[Pointer, Resolved]
) -> Segments:
    """The values in the pointers' places; large ones may have to be written in another form, which takes a while."""

    def put_in() -> Segments:
        return substitute_pointers(arguments, found, values, types_at(entry.schema))

    large = any(len(value.blob) > _AT_ONCE_BYTES for value in values.values())
    return await anyio.to_thread.run_sync(put_in) if large else put_in()


async def _wrong_in(entry: CatalogEntry, arguments: Segments, validate: Validate) -> str | None:
    """What does not fit; None where nothing is wrong, or the upstream is to judge."""
    if sum(len(segment) for segment in arguments) > _CHECKED_BYTES:
        return None
    return await validate(entry, bytes(join(arguments)))


def header_arguments(entry: CatalogEntry, arguments: Segments) -> dict[str, Any]:
    """The arguments that are mirrored into HTTP headers, parsed, each in its place."""
    picked: dict[str, Any] = {}
    text = join(arguments) if entry.headers else b""
    for location in entry.headers:
        if not isinstance(span := locate(text, location), Miss):
            with suppress(ValueError, RecursionError):  # such as an integer of 5,000 digits: no header holds it
                _place(picked, location, json.loads(text[span.start : span.stop]))
    return picked


def _place(tree: dict[str, Any], location: tuple[JsonToken, ...], value: object) -> None:
    *above, last = location
    for token in above:
        tree = tree.setdefault(str(token), {})
    tree[str(last)] = value

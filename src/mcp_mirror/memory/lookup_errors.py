"""The errors of memory paths that have no value: they name the nearest paths or keys, or how to write the path."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from mcp_mirror.callers import OWN_NAME
from mcp_mirror.core.amounts import format_time
from mcp_mirror.core.results.main_parts import read_levels
from mcp_mirror.core.similar_names import (
    MAX_COMPARED_CHARACTERS,
    MAX_NEAREST,
    find_nearest,
    measure_similarity,
    sort_by_similarity,
)
from mcp_mirror.core.texts.embedded_json import describe_embedded_data
from mcp_mirror.errors import RefusalReason, ToolError
from mcp_mirror.paths import (
    MAX_NOTICE,
    MemoryPath,
    escape_token,
    find_bases,
    find_notice_bases,
    is_pathless_notice,
    list_bases,
    parse_path,
    position_token,
    read_steps,
    slug_of,
    slug_of_near_miss,
    unescape_token,
)
from mcp_mirror.payload.json_rpc import decode_as
from mcp_mirror.payload.json_spans import INDEX, Miss, members, trim
from mcp_mirror.query.texts import is_text, locate_text
from mcp_mirror.security.sanitize import as_expression_key, as_json_string
from mcp_mirror.stores.base import Store, Tombstone
from mcp_mirror.system.fair_threads import run_fairly
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer, Descriptor, Location

_NEWEST_BASES: Final = 64
"""The caller's newest values that are compared with an unknown path."""
_NEIGHBOURS: Final = 6
"""Alphabetical neighbours of an unknown path, on each side, that are compared with it."""
_MAX_LISTED_KEYS: Final = 12
_KEY_BYTES: Final = 80
"""Bytes of a key or a tool's name that an error quotes."""
_PATH_BYTES: Final = 300
"""Bytes of a path that an error quotes."""
_MAX_STEPS: Final = 8
"""Steps of an expression that an error suggests."""
_SUGGESTION_BYTES: Final = 4 * _PATH_BYTES
"""Bytes of a path that an error proposes: whole, with escapes."""
_OPENING: Final = ("[", "{", "(", "<")
"""Characters before a path, after which others follow that are not a part of it."""
_CLOSING: Final = lazy_pattern(r"[\"'`>\])}]")
_OTHER_SYNTAX: Final = lazy_pattern(r"[.\[\\]\S|#\Z")
"""The beginning of a part of a value as JMESPath, JSONPath and programs write it; not that of lines (`#L3`)."""
_KEY: Final = lazy_pattern(r"[^\W\d][^.\[\]\\#*|]*|[@$:]\w[^.\[\]\\#*|]*")
"""A key of an object, and not a position in an array or an expression."""
_SLICE: Final = lazy_pattern(r"-?\d*:-?\d*|-\d+")
"""A range of items, or an item from the end, as Python writes them."""
_SELECTION: Final = lazy_pattern(r"\.?(?P<items>\[(?:\*|-?\d*:-?\d*|-\d+)\])(?P<rest>(?:\.\w+|\[\d+\])*)")
"""The same in brackets, and keys or indices of the items, which are a valid JMESPath expression."""
_MAX_SEARCHED_BYTES: Final = 1 << 20
"""The largest object in whose members a key is searched."""
_DELETED: Final = "It was deleted or has expired, or the path is not exact. "
"""Stores keep no record of a deleted value."""
_MISCOPIED: Final = 0.8
"""Similarity from which the identity of a path is a copy of another with errors; random identities have about 0.4."""
_REASONS: Final = {"expired": "expired", "evicted": "was evicted to make room"}


@dataclass(frozen=True, slots=True)
class ErrorContent:
    """The parts that the error about a missing key may contain."""

    include_keys: bool = True
    """It may list the keys of the value."""
    advise_query: bool = False
    """It may advise an expression, because the client is served `memory_query`."""


class UnknownPathError(ToolError):
    """No value is stored under a path."""

    def __init__(self, message: str) -> None:
        super().__init__(message, RefusalReason.UNKNOWN_PATH)


class _TextBlock(msgspec.Struct):
    text: str = ""


class UnstoredResult(NamedTuple):
    """A result that the model saw whole, and that is not stored."""

    tool: str
    content: bytes
    """Its content blocks as the server sent them, JSON text; empty if they are not to be quoted."""

    def explain(self) -> str:
        """Return what to do in place of looking for it in memory: models copy the end of an error as their answer."""
        blocks = decode_as(self.content, list[_TextBlock]) or ()
        if texts := "\n".join(block.text for block in blocks if block.text):
            return f"The result of {self.tool} is complete, and not stored. The answer is in it: {texts}"
        return (
            f"The result of {self.tool} is complete, and not stored: the answer is in it. For other data, first call "
            "the tool that gets it."
        )


def quote_path(path: MemoryPath) -> str:
    """Return a path for an error message."""
    return as_json_string(str(path), _PATH_BYTES)


async def unknown_path_error(
    store: Store, namespace: str, text: str, unstored: UnstoredResult | None = None
) -> ToolError:
    """Return the error for a path without a value, with the caller's nearest or newest paths.

    `unstored` is the result that the model saw last, if that was whole and not stored. Small models look for such a
    result under an invented path, and must not call the tool again (docs/evaluation/wording.md).
    """
    in_notice = find_notice_bases(text)
    named = in_notice or find_bases(text[:MAX_NOTICE])
    if len(named) > 1:
        first = islice((base for base in list_bases(text) if base in named), MAX_NEAREST)
        paths = " or ".join(f'"{base}"' for base in first)
        cause = "This is a whole notice, which names" if in_notice else "This text names"
        return _build_refusal(f"{cause} several paths. Give only one: {paths}.")
    newest = [value.base for value in await store.list(namespace, limit=_NEWEST_BASES)]
    if is_pathless_notice(text.strip()) and newest:
        # In the form of a notice, so that a model that pastes this error as well gives the path.
        return _build_refusal(
            f'"{newest[0]}"\nThis path stands for the newest result. You gave the text of a notice without its path, '
            "so nothing was called. Use the path as the argument of the next tool."
        )
    base = text[:MAX_COMPARED_CHARACTERS].partition("/")[0]
    near = await _find_neighbours(store, namespace, base) if newest else ()
    advice = await run_fairly(namespace, _advise, text, newest, (*newest, *near), unstored)
    return UnknownPathError(f"No value is stored under {as_json_string(text, 160)}. {advice}")


def _build_refusal(message: str) -> ToolError:
    """The error of a path that does not resolve."""
    return ToolError(message, RefusalReason.UNKNOWN_PATH)


def expired_error(path: MemoryPath, tombstone: Tombstone) -> ToolError:
    """Return the error of a value that has expired or was evicted."""
    provenance = tombstone.descriptor.provenance
    if provenance.upstream == OWN_NAME:
        origin = f"It was made by {provenance.tool}: make it again"
    else:
        tool = as_json_string(provenance.tool, _KEY_BYTES)
        origin = f"It came from tool {tool} of upstream {provenance.upstream!r}: call it again"
    cause = f"The value of {quote_path(path)} {_REASONS[tombstone.reason]} at {format_time(tombstone.at)}."
    return _build_refusal(f"{cause} {origin} and use the new path.")


def deleted_error(path: MemoryPath) -> ToolError:
    """Return the error of a value that another call has deleted during this one."""
    return _build_refusal(
        f"The value of {quote_path(path)} was deleted during this call. Call the tool that returned it again."
    )


def missing_key_error(
    path: MemoryPath, described: Descriptor, depth: int, miss: Miss, value: Buffer, content: ErrorContent
) -> ToolError:
    """Return the error of a key that does not exist. Logs do not get the keys that the value has.

    `described` is the whole value; if the model may not see parts of it, positions stand for keys. `depth` is the
    number of tokens before the key, and `miss` the object or array without it. `value` is what has no such key; empty:
    unknown.
    """
    if not content.include_keys:
        return _build_refusal(f'"{path}" does not exist. The flow policy hides the keys of the value from the model.')
    here = str(MemoryPath(path.base, path.tokens[:depth]))
    token = str(MemoryPath("", path.tokens[depth : depth + 1]))[1:]
    below = path.tokens[depth:]
    text = _read_literal(value) if value else b""
    if described.preview and text and (data := describe_embedded_data(text, trim(text))):
        use = "Use the path itself."
        if content.advise_query:
            part = ("" if _KEY.fullmatch(token) else _write_projection(below)) or _write_expression(below)
            use = f"Query the path itself: the JMESPath expression {part} finds this part."
        advice = f"It is {data.description}. {use}"
    elif miss.kind == "object":
        above = _find_wrapped(value, unescape_token(token))
        nearest = str(MemoryPath(path.base, (*path.tokens[:depth], *above, *below))) if above else None
        listed = described.preview
        advice = _list_keys(miss, unescape_token(token), here, nearest) if listed else _list_positions(miss, "hidden")
    elif miss.kind == "array":
        advice = f"It is an array whose items are 0 to {miss.length - 1}." if miss.length else "It is an empty array."
        if miss.length and content.advise_query and (expression := _write_projection(below)):
            advice += f" Query this path: the JMESPath expression {expression} selects from its items."
    else:
        advice = f"It is {miss.kind}, which has no keys: use the path itself."
    cause = f"{as_json_string(here, _PATH_BYTES)} has no key {as_json_string(token, _KEY_BYTES)}."
    return _build_refusal(f"{cause} {advice}").with_log_message(cause)


async def _find_neighbours(store: Store, namespace: str, text: str) -> tuple[str, ...]:
    """Bases that begin like a text, or with a similar tool's slug and the same digits."""
    texts = {text, text.lower()}
    if slug := slug_of_near_miss(text):
        slugs = await store.slugs(namespace)
        digits = text.partition(f"{slug}-")[2].lower()
        near = await run_fairly(namespace, find_nearest, slug, slugs)
        texts |= {f"{near_slug}-{digits}" for near_slug in near}
    found = [await store.bases_near(namespace, text, _NEIGHBOURS) for text in sorted(texts)]
    return tuple(base for bases in found for base in bases)


def _advise(text: str, newest: Sequence[str], bases: Sequence[str], unstored: UnstoredResult | None) -> str:
    """Return the cause, and what to do: the words decide what small models call next (docs/evaluation/wording.md)."""
    bases = tuple(dict.fromkeys(bases))
    base = text[:MAX_COMPARED_CHARACTERS].partition("/")[0].casefold()
    if advice := _correct_syntax(text, base, bases):
        return advice
    near = find_nearest(base, bases) or [
        near_base for near_base in bases if base.startswith(f"{slug_of(near_base)}-".casefold())
    ]
    if advice := _correct_copy(text, base, near):
        return advice
    is_path = parse_path(text) is not None
    if unstored and not near and not is_path:
        return unstored.explain()
    cause = _DELETED if is_path else ""
    if not bases:
        return f"{cause}Nothing is stored yet: first call the tool that gets the data."
    listed = ", ".join(f'"{near_base}"' for near_base in (near or newest)[:MAX_NEAREST])
    again = "call again with one of these paths" + (", or first get the value again" if is_path else "")
    return f"{cause}{'Nearest' if near else 'Newest'} are {listed}: {again}."


def _correct_syntax(text: str, base: str, bases: Sequence[str]) -> str | None:
    """Return how to write a path whose part is in the syntax of a program; None for other texts."""
    for known_base in bases:
        if base.startswith(known_base.casefold()) and _OTHER_SYNTAX.match(base, len(known_base)):
            if steps := read_steps(text[len(known_base) :]):
                return f"Write it as {as_json_string(str(MemoryPath(known_base, steps)), _SUGGESTION_BYTES)}."
            return f'A part of a value follows a slash, such as "{known_base}/0" or "{known_base}/name".'
    return None


def _correct_copy(text: str, base: str, near: Sequence[str]) -> str | None:
    """Return the path of which a text is a copy with errors; None if that is uncertain."""
    copied = [similar for similar in near if measure_similarity(base[-36:], similar[-36:]) >= _MISCOPIED]
    if len(copied) != 1:
        return None
    path, part = copied[0], text.partition("/")[2]
    if text.lstrip()[:1] in _OPENING:
        part = _CLOSING.split(part, maxsplit=1)[0]
    if part and len(text) <= MAX_COMPARED_CHARACTERS:
        path = f"{path}/{part}"
    return f"The path is not exact: call again with {as_json_string(path, _SUGGESTION_BYTES)}."


def _write_expression(tokens: Location) -> str:
    """Write the first tokens of a path as a JMESPath expression."""
    written = ""
    for token in map(str, tokens[:_MAX_STEPS]):
        if INDEX.fullmatch(token):
            written += f"[{token}]"
        else:
            written += f".{as_expression_key(token, _KEY_BYTES)}"
    return written.removeprefix(".")


def _write_projection(tokens: Location) -> str:
    """Write the expression that selects from the items of an array what a path below it meant.

    The path begins with a key of all items, a slice or a place from the end; for any other the result is empty.
    """
    first = str(tokens[0])
    if selection := _SELECTION.fullmatch(first):
        return selection["items"] + selection["rest"]
    if first == "*" or _SLICE.fullmatch(first):
        items, rest = f"[{first}]", _write_expression(tokens[1:])
    elif _KEY.fullmatch(first):
        items, rest = "[*]", _write_expression(tokens)
    else:
        return ""
    return f"{items}{'.' if rest and not rest.startswith('[') else ''}{rest}"


def _read_literal(value: Buffer) -> Buffer:
    """The JSON string of a text, or of the text in an embedded resource; empty for any other value."""
    span = locate_text(value)
    return memoryview(value)[span.start : span.stop] if is_text(value, span) else b""


def _find_wrapped(value: Buffer, key: str) -> tuple[str, ...]:
    """The location of the object with a key within the objects that wrap it; empty without one."""
    if not value or len(value) > _MAX_SEARCHED_BYTES:
        return ()
    levels = read_levels(value, members(value, trim(value)))
    return next((level.keys for level in levels if any(member.key == key for member in level.members)), ())


def _list_keys(miss: Miss, wanted: str, here: str, nearest: str | None) -> str:
    """List the keys, the most similar one first, and a path: models paste the keys as they are.

    The path is `nearest`, or else that of the first key.
    """
    if not miss.keys:
        return _list_positions(miss, "too long to be listed")
    keys = [escape_token(key) for key in sort_by_similarity(wanted, miss.keys)[:_MAX_LISTED_KEYS]]
    listed = ", ".join(as_json_string(key, _KEY_BYTES) for key in keys)
    more = f" and {miss.length - _MAX_LISTED_KEYS:,} more" if miss.length > _MAX_LISTED_KEYS else ""
    shown = as_json_string(nearest or f"{here}/{keys[0]}", _SUGGESTION_BYTES)
    return f"Its keys are {listed}{more}. Pass a whole path, such as {shown}."


def _list_positions(miss: Miss, reason: str) -> str:
    if not miss.length:
        return "It is an empty object."
    last = f' to "/{position_token(miss.length - 1)}"' if miss.length > 1 else ""
    return f'Its keys are {reason}; name them by position: "/{position_token(0)}"{last}.'

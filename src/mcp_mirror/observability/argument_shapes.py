"""Describes the arguments of a call in bounded JSON text, with or without their texts and numbers.

Pure.
"""

from functools import reduce
from operator import getitem
from typing import Any, Final, NamedTuple

import msgspec

from mcp_mirror.core.resolve import IS_PATH, explain_strings
from mcp_mirror.paths import find_bases, has_candidates, parse_wrapped_path

MAX_CHARACTERS: Final = 2_000
"""Characters of described arguments."""
_KEY_CHARACTERS: Final = 80
_NAMED_CHARACTERS: Final = 200
"""Characters of a text, and of its place, beside the reason why the text is not a memory path."""
_PATH_CHARACTERS: Final = range(38, 400)
"""Characters of a memory path that is kept."""


class _Limits(NamedTuple):
    """How much of the arguments is described."""

    items: int
    """Members of one object or items of one array."""
    depth: int
    characters: int
    """Characters of one text."""


_LIMITS: Final = (_Limits(50, 8, 500), _Limits(20, 5, 120), _Limits(8, 3, 40), _Limits(3, 1, 20))
"""Tried in this order until the description is short enough."""


def describe_arguments(arguments: bytes, *, with_values: bool) -> str:
    """Return arguments as JSON text of at most 2,000 characters.

    Keys, memory paths, true, false and null are kept. What is left out is described, such as `<3 more items>`.
    `with_values`: keep texts and numbers; else their kind and length replace them.
    """
    try:
        value = msgspec.json.decode(arguments)
        for limits in _LIMITS:
            described = msgspec.json.encode(_describe(value, limits, with_values=with_values)).decode()
            if len(described) <= MAX_CHARACTERS:
                return described
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    return describe_size(len(arguments))


def describe_size(size: int) -> str:
    """Return the JSON text in place of arguments that are only described by their number of bytes."""
    return f'"<arguments, {size:,} bytes>"'


def explain_unused_paths(
    arguments: bytes, labels: frozenset[str], used: tuple[str, ...], *, with_values: bool
) -> tuple[tuple[str, str, str], ...]:
    """Return the strings that resemble memory paths and were not used as such: location, text and reason of each.

    A path that was not used because the call was refused is not among them: the error of the refusal names it. `labels`
    are the slugs of this gateway's paths, and `used` the memory paths whose values were used. `with_values`: return
    each string; else only the part of it that is a path.
    """
    if not has_candidates(arguments):
        return ()
    try:
        explained = explain_strings(arguments, labels)
        root = msgspec.json.decode(arguments)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ()
    unused = [(at, reason) for at, path, reason in explained if reason != IS_PATH and path not in used]
    return tuple(
        (
            _cut(".".join(_cut(str(step), _KEY_CHARACTERS) for step in at), _NAMED_CHARACTERS),
            _name_text(reduce(getitem, at, root), with_values=with_values),
            reason,
        )
        for at, reason in unused
    )


def _name_text(text: str, *, with_values: bool) -> str:
    """The text, or only what of it is a path."""
    shown = text if with_values else next(iter(sorted(find_bases(text))), f"<text, {len(text):,} characters>")
    return _cut(shown, _NAMED_CHARACTERS)


def _describe(value: Any, limits: _Limits, *, with_values: bool, level: int = 0) -> Any:
    if isinstance(value, dict | list):
        if level >= limits.depth and value:
            kind, parts = ("object", "members") if isinstance(value, dict) else ("array", "items")
            return f"<{kind}, {len(value):,} {parts}>"
        return _describe_container(value, limits, with_values=with_values, level=level + 1)
    if isinstance(value, str):
        if len(value) in _PATH_CHARACTERS and (path := parse_wrapped_path(value)):
            return str(path)
        return _cut(value, limits.characters) if with_values else f"<text, {len(value):,} characters>"
    if isinstance(value, bool) or value is None or with_values:
        return value
    return "<number>"


def _describe_container(value: Any, limits: _Limits, *, with_values: bool, level: int) -> Any:
    rest = len(value) - limits.items
    if isinstance(value, dict):
        shown = {
            _cut(key, _KEY_CHARACTERS): _describe(member, limits, with_values=with_values, level=level)
            for key, member in [*value.items()][: limits.items]
        }
        return shown | ({"...": f"<{rest:,} more members>"} if rest > 0 else {})
    items = [_describe(item, limits, with_values=with_values, level=level) for item in value[: limits.items]]
    return [*items, f"<{rest:,} more items>"] if rest > 0 else items


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"

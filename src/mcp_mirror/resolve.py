"""Pointers in arguments: finding them, and putting the values in their place.

Arguments stay JSON text: a pointer is a span of it that is exchanged for the value's own bytes. One pass: what a
value holds is never looked at. Fetching values is not done here.
"""

import re
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from mcp_mirror.errors import ToolError
from mcp_mirror.models import Buffer, Kind, Location, Segments, Span
from mcp_mirror.paths import (
    LITERAL,
    MemoryPath,
    almost_path,
    bases_in,
    is_whole_notice,
    label_of,
    may_hold_path,
    parse_path,
    unwrap,
)
from mcp_mirror.spans import items, kind_at, members, trim

_MAX_PASTED: Final = 1 << 14
"""Characters up to which a text may be one of our notices."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """A string of the arguments that stands for a stored value."""

    span: Span
    location: Location
    text: str
    """As the model wrote it."""
    path: MemoryPath | None
    """None: it looks like a path of ours, but is not written as one."""
    ours: bool
    """It names a tool that we serve: where nothing is stored there, it is a mistake and no literal."""


@dataclass(frozen=True, slots=True)
class Escaped:
    """A string that begins with `literal:` and goes on as the path that follows."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """The value that a pointer leads to."""

    path: str
    blob: Buffer
    kind: Kind


def find_pointers(arguments: Buffer, known: Container[str]) -> tuple[Pointer | Escaped, ...]:
    """Every pointer in the arguments, at any depth, in the order of the text.

    Args:
        arguments: A JSON object as text.
        known: The tool labels whose paths are ours.
    """
    found = (_classify(arguments, span, at, known) for span, at in _strings(arguments))
    return tuple(sorted((item for item in found if item is not None), key=lambda item: item.span.start))


def substitute(
    arguments: Buffer,
    found: tuple[Pointer | Escaped, ...],
    values: Mapping[Pointer, Resolved],
    types_at: Callable[[Location], frozenset[str]],
) -> Segments:
    """The arguments with each pointer that has a value exchanged for it, in pieces.

    Raises:
        ToolError: A value does not fit the type that its argument declares.
    """
    view = memoryview(arguments)
    pieces: list[Buffer] = []
    position = 0
    for item in found:
        if isinstance(item, Escaped):
            replacement: Segments = (msgspec.json.encode(item.text),)
        elif item in values:
            replacement = fit(values[item], types_at(item.location), item.location)
        else:
            continue
        pieces += (view[position : item.span.start], *replacement)
        position = item.span.stop
    return (*pieces, view[position:]) if pieces else (arguments,)


def fit(value: Resolved, wanted: frozenset[str], location: Location) -> Segments:
    """The value in a form that the argument takes: as it is where it can be, else by the table below.

    Raises:
        ToolError: No form of it fits; the message names both types.
    """
    own = _own_types(value)
    if not wanted or own & wanted:
        return (value.blob,)
    for target in _ORDER:
        if target in wanted and (changed := _FORMS.get((value.kind, target), _nothing)(value)) is not None:
            return changed
    where = ".".join(str(token) for token in location)
    raise ToolError(
        f"Argument {where!r} wants {' or '.join(sorted(wanted))}, and {value.path!r} holds {value.kind}. "
        "Give a path below it that fits, or a value."
    )


def _strings(arguments: Buffer) -> Iterator[tuple[Span, Location]]:
    """Strings that may be pointers; a container that cannot hold one is not entered."""
    pending: list[tuple[Span, Location]] = [(trim(arguments), ())]
    view = memoryview(arguments)
    while pending:
        span, at = pending.pop()
        if not may_hold_path(view[span.start : span.stop]):
            continue
        kind = kind_at(arguments, span.start)
        if kind == "object":
            pending += [(member.span, (*at, member.key)) for member in members(arguments, span)]
        elif kind == "array":
            pending += [(item, (*at, index)) for index, item in enumerate(items(arguments, span))]
        elif kind == "text":
            yield span, at


def _classify(arguments: Buffer, span: Span, at: Location, known: Container[str]) -> Pointer | Escaped | None:
    try:
        text: str = msgspec.json.decode(memoryview(arguments)[span.start : span.stop], type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):  # a lone surrogate: no path of ours
        return None
    bare = unwrap(text)
    if bare.startswith(LITERAL) and parse_path(bare.removeprefix(LITERAL).removeprefix(LITERAL)):
        return Escaped(span, bare.removeprefix(LITERAL))
    if path := parse_path(bare):
        return Pointer(span, at, bare, path, label_of(path.base) in known)
    if (label := almost_path(bare)) and label in known:
        return Pointer(span, at, bare, None, ours=True)
    if base := _pasted(text, known):
        return Pointer(span, at, base, MemoryPath(base), ours=True)
    return None


def _pasted(text: str, known: Container[str]) -> str | None:
    """The base in a text that is one whole notice of ours and nothing else."""
    if len(text) > _MAX_PASTED or not is_whole_notice(text.strip()):
        return None
    bases = bases_in(text)
    base = next(iter(bases)) if len(bases) == 1 else None
    return base if base and label_of(base) in known else None


Form = Callable[[Resolved], Segments | None]

_INTEGER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.0+)?")
_NUMBER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_TYPES: Final[Mapping[Kind, frozenset[str]]] = {
    "object": frozenset({"object"}),
    "array": frozenset({"array"}),
    "text": frozenset({"string"}),
    "number": frozenset({"number"}),
    "boolean": frozenset({"boolean"}),
    "null": frozenset({"null"}),
    "binary": frozenset({"object"}),
}


def _own_types(value: Resolved) -> frozenset[str]:
    """What the value is, in the words of JSON Schema."""
    if value.kind == "number" and _INTEGER.fullmatch(value.blob):
        return frozenset({"number", "integer"})
    return _TYPES[value.kind]


def _nothing(_: Resolved) -> Segments | None:
    return None


def _as_text(value: Resolved) -> Segments:
    """The JSON text itself, as a string."""
    return (msgspec.json.encode(str(value.blob, "utf-8")),)


def _binary_as_text(value: Resolved) -> Segments | None:
    """The base64 of an image or a recording."""
    spans = {member.key: member.span for member in members(value.blob, trim(value.blob))}
    data = spans.get("data") or spans.get("blob")
    return (memoryview(value.blob)[data.start : data.stop],) if data else None


def _parsed(pattern: Callable[[bytes], bool]) -> Form:
    """The JSON value that the text spells, if it is of the kind that `pattern` tells by its bytes."""

    def form(value: Resolved) -> Segments | None:
        try:
            text = msgspec.json.decode(value.blob, type=str).strip().encode()
            msgspec.json.decode(text, type=msgspec.Raw)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None
        return (text,) if pattern(text) else None

    return form


_ORDER: Final = ("object", "array", "integer", "number", "boolean", "null", "string")
"""The richest form first, the text of it last."""

_FORMS: Final[Mapping[tuple[Kind, str], Form]] = {
    ("object", "string"): _as_text,
    ("array", "string"): _as_text,
    ("number", "string"): _as_text,
    ("boolean", "string"): _as_text,
    ("binary", "string"): _binary_as_text,
    ("text", "object"): _parsed(lambda text: text[:1] == b"{"),
    ("text", "array"): _parsed(lambda text: text[:1] == b"["),
    ("text", "integer"): _parsed(lambda text: _INTEGER.fullmatch(text) is not None),
    ("text", "number"): _parsed(lambda text: _NUMBER.fullmatch(text) is not None),
    ("text", "boolean"): _parsed(lambda text: text in (b"true", b"false")),
    ("text", "null"): _parsed(lambda text: text == b"null"),
}

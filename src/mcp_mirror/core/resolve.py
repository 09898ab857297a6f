"""Pointers in arguments: finding them, and putting the values in their place.

Arguments stay JSON text: a pointer is a span of it that is exchanged for the value's own bytes. One pass: what a
value holds is never looked at. Fetching values is not done here.
"""

import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

import msgspec

from mcp_mirror.errors import ToolError
from mcp_mirror.paths import (
    LITERAL_PREFIX,
    MemoryPath,
    bases_in_notice,
    find_candidate_offsets,
    label_of,
    label_of_near_miss,
    parse_path,
    strip_wrapping,
)
from mcp_mirror.payload.json_spans import Miss, locate, strings_at
from mcp_mirror.types import Buffer, Kind, Location, Segments, Span

_MAX_PASTED: Final = 1 << 14
"""Characters up to which a text may be one of our notices."""
_MAX_CANDIDATES: Final = 20_000
"""Places of the arguments that are looked at for memory paths."""
_MAX_EXPLAINED: Final = 50
"""Strings that a log explains."""
_MAX_QUOTES: Final = 4096
"""Quotes of the arguments that are looked at for what a text spells: two for a key, two for a text."""
_QUOTE: Final = re.compile(rb'"')
_MAX_NAMED: Final = 200
"""Characters of a path or an argument's place that an error names."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """A string of the arguments that stands for a stored value."""

    span: Span
    location: Location
    text: str
    """As the model wrote it."""
    path: MemoryPath | None
    """None: it looks like a path of ours, but is not written as one."""
    is_known: bool
    """It names a tool that we serve: where nothing is stored there, it is a mistake and no literal."""


@dataclass(frozen=True, slots=True)
class EscapedPath:
    """A string that begins with `literal:` and goes on as the path that follows."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class TypedText:
    """A text that stands where none is wanted, and what it spells: `"31"` for a number."""

    span: Span
    value: Segments


@dataclass(frozen=True, slots=True)
class Resolved:
    """The value that a pointer leads to."""

    path: str
    blob: Buffer
    kind: Kind
    preview: bool = True
    """A model may be told what is in it though it has not asked."""


def find_pointers(arguments: Buffer, known: Container[str]) -> tuple[Pointer | EscapedPath, ...]:
    """Every pointer in the arguments, at any depth, in the order of the text.

    Args:
        arguments: A JSON object as text.
        known: The tool labels whose paths are ours.

    Raises:
        ToolError: Too many texts look like pointers.
    """
    offsets = find_candidate_offsets(arguments)
    if len(offsets) > _MAX_CANDIDATES:
        raise ToolError(
            f"The arguments have {len(offsets):,} texts that look like memory paths; {_MAX_CANDIDATES:,} are accepted. "
            "Store them with memory_put, or make several calls."
        )
    strings = strings_at(arguments, offsets)
    found = (_classify(arguments, span, at, known) for span, at in strings)
    return tuple(sorted((item for item in found if item is not None), key=lambda item: item.span.start))


def explain_strings(arguments: Buffer, known: Container[str]) -> tuple[tuple[Location, str | None, str], ...]:
    """Why strings that resemble memory paths are, or are not, pointers: location, path and reason of each.

    Args:
        arguments: A JSON object as text.
        known: The tool labels whose paths are ours.
    """
    strings = islice(strings_at(arguments, find_candidate_offsets(arguments)[:_MAX_EXPLAINED]), _MAX_EXPLAINED)
    return tuple((at, *_explain(_classify(arguments, span, at, known))) for span, at in strings)


def _explain(found: Pointer | EscapedPath | None) -> tuple[str | None, str]:
    if found is None:
        return None, "it is text: it holds something like a path, but is not one, or names no tool of this gateway"
    if isinstance(found, EscapedPath):
        return None, "it is text: `literal:` stands before it"
    if found.path is None:
        return None, "it is refused: it looks like a path, but is not written as one"
    if found.is_known:
        return str(found.path), "it is a memory path"
    return str(
        found.path
    ), "it is a path of a tool that this gateway does not serve: text, unless a value is stored there"


def check_pointer_count(found: tuple[Pointer | EscapedPath, ...], most: int) -> None:
    """See that a call does not ask for more values than one may.

    Raises:
        ToolError: It does.
    """
    count = sum(isinstance(one, Pointer) for one in found)
    if count > most:
        raise ToolError(
            f"The arguments hold {count:,} memory paths; one call may have {most:,} (`limits.max_pointers`). Pass the "
            "path of a value that holds them all, or make several calls."
        )


def find_typed_texts(
    arguments: Buffer, found: tuple[Pointer | EscapedPath, ...], types_at: Callable[[Location], frozenset[str]]
) -> tuple[TypedText, ...]:
    """Texts that spell the number, or another JSON value, that is wanted in their place.

    A twin admits text everywhere, for paths: models then write `"31"` where for the tool itself they had written 31.

    Args:
        arguments: A JSON object as text, as the model wrote it.
        found: What `find_pointers` found, which is left out.
        types_at: The JSON types that the tool admits at a location; none where it does not say.
    """
    taken = {item.span.start for item in found}
    quotes = [match.start() for match in islice(_QUOTE.finditer(arguments), _MAX_QUOTES)]
    spelled = []
    for span, at in strings_at(arguments, quotes):
        wanted = types_at(at) if span.start not in taken else frozenset()
        if wanted and "string" not in wanted:
            value = _form_of(Resolved("", memoryview(arguments)[span.start : span.stop], "text"), wanted)
            spelled += [TypedText(span, value)] if value else []
    return tuple(spelled)


def substitute_pointers(
    arguments: Buffer,
    found: tuple[Pointer | EscapedPath | TypedText, ...],
    values: Mapping[Pointer, Resolved],
    types_at: Callable[[Location], frozenset[str]],
) -> Segments:
    """The arguments with each pointer that has a value exchanged for it, in pieces; all found is in the text's order.

    Raises:
        ToolError: A value does not fit the type that its argument declares.
    """
    view = memoryview(arguments)
    pieces: list[Buffer] = []
    position = 0
    for item in found:
        if isinstance(item, EscapedPath):
            replacement: Segments = (msgspec.json.encode(item.text),)
        elif isinstance(item, TypedText):
            replacement = item.value
        elif item in values:
            replacement = coerce(values[item], types_at(item.location), item.location)
        else:
            continue
        pieces += (view[position : item.span.start], *replacement)
        position = item.span.stop
    return (*pieces, view[position:]) if pieces else (arguments,)


def coerce(value: Resolved, wanted: frozenset[str], location: Location) -> Segments:
    """The value in a form that the argument takes: as it is where it can be, else by the table below.

    Raises:
        ToolError: No form of it fits; the message names both types.
    """
    own = _own_types(value)
    if not wanted or own & wanted:
        return (value.blob,)
    if (changed := _form_of(value, wanted)) is not None:
        return changed
    where = ".".join(str(token) for token in location)
    other = "a path below it" if value.kind in ("object", "array") else "another path"
    raise ToolError(
        f"Argument {_bounded(where)} wants {' or '.join(sorted(wanted))}, "
        f"and {_bounded(value.path)} holds {value.kind}. Give {other} that fits, or a value."
    )


def _form_of(value: Resolved, wanted: frozenset[str]) -> Segments | None:
    """The richest form of a value that is wanted."""
    forms = (_FORMS.get((value.kind, target), _nothing)(value) for target in _ORDER if target in wanted)
    return next((form for form in forms if form is not None), None)


def _bounded(name: str) -> str:
    return repr(name if len(name) <= _MAX_NAMED else f"{name[:_MAX_NAMED]}...")


def _classify(arguments: Buffer, span: Span, at: Location, known: Container[str]) -> Pointer | EscapedPath | None:
    text: str = msgspec.json.decode(memoryview(arguments)[span.start : span.stop], type=str)
    if (bare := strip_wrapping(text)).startswith(LITERAL_PREFIX):
        sent = bare.removeprefix(LITERAL_PREFIX)
        meant = sent
        while meant.startswith(LITERAL_PREFIX):
            meant = meant.removeprefix(LITERAL_PREFIX)
        return EscapedPath(span, sent) if _pointer(meant, span, at, known) else None
    return _pointer(text, span, at, known)


def _pointer(text: str, span: Span, at: Location, known: Container[str]) -> Pointer | None:
    bare = strip_wrapping(text)
    if path := parse_path(bare):
        return Pointer(span, at, bare, path, label_of(path.base) in known)
    if (label := label_of_near_miss(bare)) and label in known:
        return Pointer(span, at, bare, None, is_known=True)
    bases = _pasted(text.strip())
    if bases and all(label_of(base) in known for base in bases):
        path = MemoryPath(next(iter(bases))) if len(bases) == 1 else None
        return Pointer(span, at, str(path or bare), path, is_known=True)
    return None


def _pasted(text: str) -> frozenset[str]:
    """The bases in a text that is one whole notice of ours and nothing else."""
    return bases_in_notice(text) if len(text) <= _MAX_PASTED else frozenset()


Form = Callable[[Resolved], Segments | None]

_NUMBER: Final = re.compile(rb"-?(?P<whole>0|[1-9][0-9]*)(?:\.(?P<fraction>[0-9]+))?(?:[eE](?P<exponent>[+-]?[0-9]+))?")
_MAX_EXPONENT: Final = 18
"""Digits of an exponent past which no text is long enough to outweigh it."""
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
    if value.kind == "number" and _is_integer(value.blob):
        return frozenset({"number", "integer"})
    return _TYPES[value.kind]


def _is_integer(text: Buffer) -> bool:
    """Whether a JSON number has no fraction by value, as JSON Schema means `integer`: `1`, `1.0` and `1.5e1` do."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return False
    digits = match["whole"] + (match["fraction"] or b"")
    zeros = len(digits) - len(digits.rstrip(b"0"))
    exponent = match["exponent"] or b"0"
    if not digits.strip(b"0"):
        return True
    if len(exponent) > _MAX_EXPONENT:
        return not exponent.startswith(b"-")
    return zeros + int(exponent) >= len(match["fraction"] or b"")


def _nothing(_: Resolved) -> Segments | None:
    return None


def _as_text(value: Resolved) -> Segments:
    """The JSON text itself, as a string; written a piece at a time, so that no lock is held for long."""
    pieces: list[bytes] = [b'"']
    position = 0
    while position < len(value.blob):
        end = min(position + _PIECE, len(value.blob))
        while end < len(value.blob) and value.blob[end] & 0xC0 == 0x80:  # noqa: PLR2004  # inside a character's UTF-8
            end -= 1
        pieces.append(msgspec.json.encode(str(value.blob[position:end], "utf-8"))[1:-1])
        position = end
    return (*pieces, b'"')


def _binary_as_text(value: Resolved) -> Segments | None:
    """The base64 of an image, a recording or a resource; the text of a resource that is text."""
    found = (locate(value.blob, tokens) for tokens in _CONTENTS)
    span = next((span for span in found if not isinstance(span, Miss)), None)
    return (memoryview(value.blob)[span.start : span.stop],) if span else None


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


_CONTENTS: Final = (("data",), ("blob",), ("resource", "blob"), ("resource", "text"))
"""Where a content block keeps what it is about."""

_ORDER: Final = ("object", "array", "integer", "number", "boolean", "null", "string")
"""The richest form first, the text of it last."""

_PIECE: Final = 1 << 20
_FORMS: Final[Mapping[tuple[Kind, str], Form]] = {
    ("object", "string"): _as_text,
    ("array", "string"): _as_text,
    ("number", "string"): _as_text,
    ("boolean", "string"): _as_text,
    ("binary", "string"): _binary_as_text,
    ("text", "object"): _parsed(lambda text: text[:1] == b"{"),
    ("text", "array"): _parsed(lambda text: text[:1] == b"["),
    ("text", "integer"): _parsed(_is_integer),
    ("text", "number"): _parsed(lambda text: _NUMBER.fullmatch(text) is not None),
    ("text", "boolean"): _parsed(lambda text: text in (b"true", b"false")),
    ("text", "null"): _parsed(lambda text: text == b"null"),
}

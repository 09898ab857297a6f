"""Finds pointers in arguments and replaces them by values.

Arguments remain JSON text: a pointer is a span of it that is replaced by the value's own bytes. There is one pass, so
pointers inside a value are never resolved. Other modules load the values and convert them (`core/conversion.py`).
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from operator import itemgetter
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from mcp_mirror.core.conversion import MisfitError, Resolved, coerce, convert
from mcp_mirror.errors import ToolError
from mcp_mirror.paths import (
    LITERAL_PREFIX,
    MAX_NOTICE,
    PRUNED_SLUG,
    MemoryPath,
    find_bases,
    find_candidate_offsets,
    find_cut_offsets,
    find_notice_bases,
    fold_slug,
    is_pathless_notice,
    parse_wrapped_path,
    read_notice_path,
    slug_of,
    slug_of_near_miss,
    strip_wrapping,
    unwrap_result,
)
from mcp_mirror.payload.json_spans import (
    count_items,
    items,
    kind_at,
    locate,
    members,
    members_with_offsets,
    skip_space,
    strings_at,
    trim,
)
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer, JsonToken, Kind, Location, Segments, Span

_REPLACED_COST: Final = 16
"""Bytes that are written as fast as one pointer or escaped path is replaced."""
_MAX_CANDIDATES: Final = 20_000
"""Candidate offsets in the arguments that are examined for memory paths."""
_MAX_PATHLESS: Final = 8
"""Notices without their paths in one call: each is compared with all recent notices."""
_MAX_PATH_CHARACTERS: Final = 1 << 20
"""Characters of all memory paths of a call, which are compared, logged and passed between processes."""
_MAX_EXPLAINED: Final = 50
"""Strings that `explain_strings` explains, and in which `find_embedded_bases` and `find_cut_texts` search."""
_MAX_EMBEDDING: Final = 1 << 16
"""Bytes of a text in which `find_embedded_bases` and `find_cut_texts` search."""
_MAX_CUTS: Final = 1_000
"""Places where a text may be cut that are examined."""
_MAX_CORRECTED: Final = 4096
"""Keys and texts in the arguments, and values of any kind, that are examined for corrections."""
_MAX_CORRECTED_DEPTH: Final = 8
"""Levels of nesting below which only texts are corrected."""
_STUB_KEYS: Final = frozenset(("memory_path", "pruned"))
"""The members of the stub of pruned JSON."""
_TEXT_ONLY: Final = frozenset(("string", "null"))
_CONTAINERS: Final = frozenset(("array", "object"))
IS_PATH: Final = "it is a memory path"
"""The reason of `explain_strings` for a string that is a pointer."""
_TEXT: Final = lazy_pattern(rb'"(?:[^"\\]++|\\.)*+"')
_TWIN: Final = "mirrored"
"""The end of a twin's name (the default of `mirror.suffix`), folded. Models write this name in place of the tool's."""
_LITERAL_PREFIXES: Final = lazy_pattern(f"(?:{LITERAL_PREFIX})+")

TypesAt = Callable[[Location], frozenset[str]]
"""Returns the JSON types that a tool accepts at a location of its arguments; an empty set if they are unknown."""


class Pointer(msgspec.Struct, frozen=True):
    """A string in the arguments that names a stored value."""

    span: Span
    location: Location
    text: str
    """The text as the model wrote it."""
    path: MemoryPath | None
    """None: the text resembles a path of this gateway but is malformed."""
    is_known: bool
    """The path's tool is served here: if no value exists, the path is a mistake rather than a literal."""


class EscapedPath(msgspec.Struct, frozen=True):
    """A string that begins with `literal:`; its text is the path after the prefix."""

    span: Span
    text: str


Forms = Mapping[tuple[MemoryPath, frozenset[str]], Segments]
"""Values as arguments get them, by their paths and the JSON types that the arguments accept."""

_NO_FORMS: Final[Forms] = MappingProxyType({})

Pointers = tuple[Pointer | EscapedPath, ...]
"""All pointers in the arguments, in the order of the text."""


class Correction(msgspec.Struct, frozen=True):
    """A part of the arguments that the tool's schema never accepts, and what the tool receives instead."""

    span: Span
    value: Segments


ReplacedSpan = Pointer | EscapedPath | Correction
"""A part of the arguments that something else replaces."""


class RefusedText(NamedTuple):
    """A text where the tool accepts none."""

    text: str
    location: Location
    wanted: frozenset[str]
    """The JSON types that the tool accepts there."""
    is_item: bool
    """The tool accepts an array of texts, so the text may be an item without its array."""


def find_pointers(arguments: Buffer, known: frozenset[str]) -> Pointers:
    """Find all pointers in the arguments, a JSON object, at any depth, in the order of the text.

    `known` has the slugs of this gateway's paths.

    Raises:
        ToolError: Too many texts resemble pointers.
    """
    offsets = find_candidate_offsets(arguments)
    if not offsets:
        return ()
    if len(offsets) > _MAX_CANDIDATES:
        raise ToolError(
            f"The arguments have {len(offsets):,} texts that look like memory paths; {_MAX_CANDIDATES:,} are accepted. "
            "Pass the path of one stored value that contains them, or make several calls."
        )
    strings = strings_at(arguments, offsets)
    classified = (_widen_to_stub(arguments, _classify_string(arguments, span, at, known)) for span, at in strings)
    found = [pointer for pointer in classified if pointer is not None]
    pointers: list[Pointer | EscapedPath] = []
    for pointer in sorted(found, key=lambda pointer: pointer.span.start):
        if not pointers or pointer.span.start >= pointers[-1].span.stop:  # not within the stub before it
            pointers.append(pointer)
    return tuple(pointers)


def _widen_to_stub(arguments: Buffer, pointer: Pointer | EscapedPath | None) -> Pointer | EscapedPath | None:
    """Let the path in a stub of pruned JSON stand for the whole stub: models copy it as the object that they read."""
    if not isinstance(pointer, Pointer) or pointer.path is None or slug_of(pointer.path.base) != PRUNED_SLUG:
        return pointer
    above = pointer.location[:-1]
    span = locate(arguments, above)
    if not isinstance(span, Span) or kind_at(arguments, span.start) != "object":
        return pointer
    is_stub = {key for key, _ in members(arguments, span)} == _STUB_KEYS and pointer.location[-1] == "memory_path"
    return msgspec.structs.replace(pointer, span=span, location=above) if is_stub else pointer


def find_embedded_bases(arguments: Buffer, known: frozenset[str]) -> tuple[tuple[Location, str], ...]:
    """Find the exact paths of this gateway's values within longer texts, which remain text: location and base of each.

    A text with several different paths is not meant as one of them.
    """
    embedded: list[tuple[Location, str]] = []
    for span, location in _list_first_candidates(arguments):
        if span.length <= _MAX_EMBEDDING and _classify_string(arguments, span, location, known) is None:
            bases = find_bases(msgspec.json.decode(memoryview(arguments)[span.start : span.stop], type=str))
            embedded += [(location, base) for base in bases if len(bases) == 1 and slug_of(base) in known]
    return tuple(embedded)


def find_cut_texts(arguments: Buffer) -> Iterator[tuple[Location, str]]:
    """Find the texts that may repeat what `cut` returned, with their locations; none that are marked as literal."""
    offsets = find_cut_offsets(arguments, _MAX_CUTS)
    for span, location in islice(strings_at(arguments, offsets), _MAX_EXPLAINED):
        if span.length > _MAX_EMBEDDING:
            continue
        text = msgspec.json.decode(memoryview(arguments)[span.start : span.stop], type=str)
        if not text.startswith(LITERAL_PREFIX):
            yield location, text


def explain_strings(arguments: Buffer, known: frozenset[str]) -> tuple[tuple[Location, str | None, str], ...]:
    """Explain why strings that resemble memory paths are or are not pointers: location, path and reason of each."""
    strings = _list_first_candidates(arguments)
    return tuple((at, *_explain(_classify_string(arguments, span, at, known))) for span, at in strings)


def _list_first_candidates(arguments: Buffer) -> Iterator[tuple[Span, Location]]:
    """The first strings that may have a memory path, with their locations."""
    return islice(strings_at(arguments, find_candidate_offsets(arguments)[:_MAX_EXPLAINED]), _MAX_EXPLAINED)


def _explain(pointer: Pointer | EscapedPath | None) -> tuple[str | None, str]:
    if pointer is None:
        return None, "it is text: it contains a path or something like one, or names a tool of another gateway"
    if isinstance(pointer, EscapedPath):
        return None, "it is text: it has the prefix `literal:`"
    if pointer.path is None:
        return None, "it is rejected: it resembles a path, but is malformed"
    if pointer.is_known:
        return str(pointer.path), IS_PATH
    return str(
        pointer.path
    ), "it is a path of a tool that this gateway does not serve: text, unless a value is stored under it"


def check_pointer_count(pointers: Pointers, most: int) -> None:
    """Check the number and the length of the pointers of a call; ToolError over a limit."""
    count = sum(isinstance(pointer, Pointer) for pointer in pointers)
    if count > most:
        raise ToolError(
            f"The arguments contain {count:,} memory paths; one call may have {most:,} (`limits.max_pointers`). Pass "
            "the path of one value that contains them all, or make several calls."
        )
    pathless = sum(
        isinstance(pointer, Pointer) and pointer.path is None and is_pathless_notice(pointer.text)
        for pointer in pointers
    )
    if pathless > _MAX_PATHLESS:
        raise ToolError(
            f"The arguments contain {pathless:,} notices without their paths; one call may have {_MAX_PATHLESS}. Give "
            "the path of each value, which is the first line of its notice."
        )
    characters = sum(len(pointer.text) for pointer in pointers)
    if characters > _MAX_PATH_CHARACTERS:
        raise ToolError(
            f"The memory paths in the arguments have {characters:,} characters together; one call may have "
            f"{_MAX_PATH_CHARACTERS:,}. Pass the path of the value that contains the long keys, or name a key by its "
            "position, such as `/~#0`."
        )


def open_texts(arguments: Buffer, known: frozenset[str], types_at: TypesAt) -> Buffer:
    """Replace texts that contain an object or array with a path, where the tool accepts no text, by that JSON.

    Some models and frameworks write the JSON text of an argument in its place. Without this, the tool would get the
    paths in it.
    """
    opened: list[Correction] = []
    for span, location in strings_at(arguments, find_candidate_offsets(arguments)[:_MAX_CANDIDATES]):
        wanted = types_at(location) & _CONTAINERS
        if not wanted or "string" in types_at(location):
            continue
        pointer = _classify_string(arguments, span, location, known)
        is_taken = isinstance(pointer, EscapedPath) or (pointer is not None and pointer.path is not None)
        value = None if is_taken else _convert(arguments, span, "text", wanted)
        if value:
            opened.append(Correction(span, value))
    if not opened:
        return arguments
    in_order = tuple(sorted(opened, key=lambda correction: correction.span.start))
    return b"".join(substitute_pointers(arguments, in_order, {}, types_at))


def find_corrections(arguments: Buffer, pointers: Pointers, types_at: TypesAt) -> tuple[Correction, ...]:
    """Find values that are not of a type that the tool accepts, but for which there is one.

    A text that contains a number or another JSON value becomes that value: a twin accepts text everywhere, for paths,
    so models write `"31"` where the tool itself expects 31. Where the tool accepts only text, a number, a boolean, an
    object or an array becomes its JSON text. A member that is null is left out: many clients write null for an optional
    argument without a value. These `pointers` are skipped.
    """
    corrections = list(_find_refused_values(arguments, pointers, types_at))
    for span, _, wanted in _find_refused_strings(arguments, pointers, types_at):
        if value := _convert(arguments, span, "text", wanted):
            corrections.append(Correction(span, value))
    outer: list[Correction] = []
    for correction in sorted(corrections, key=lambda correction: correction.span.start):
        if not outer or correction.span.start >= outer[-1].span.stop:
            outer.append(correction)
    return tuple(outer)


def find_refused_text(arguments: Buffer, pointers: Pointers, types_at: TypesAt) -> RefusedText | None:
    """Return the first text where the tool accepts none and that no correction replaces; None without one.

    The arguments are those of `find_corrections`.
    """
    for span, location, wanted in sorted(_find_refused_strings(arguments, pointers, types_at), key=itemgetter(0)):
        if not _convert(arguments, span, "text", wanted):
            text = msgspec.json.decode(memoryview(arguments)[span.start : span.stop], type=str)
            return RefusedText(text, location, wanted, "array" in wanted and "string" in types_at((*location, 0)))
    return None


def _find_refused_strings(
    arguments: Buffer, pointers: Pointers, types_at: TypesAt
) -> Iterator[tuple[Span, Location, frozenset[str]]]:
    """The strings where the tool accepts no text, without pointers, each with the types that it accepts there."""
    taken = {pointer.span.start for pointer in pointers}
    for span, location in strings_at(arguments, _find_text_offsets(arguments)):
        wanted = types_at(location) if span.start not in taken else frozenset()
        if wanted and "string" not in wanted:
            yield span, location, wanted


def _convert(arguments: Buffer, span: Span, kind: Kind, wanted: frozenset[str]) -> Segments | None:
    return convert(Resolved(MemoryPath(""), memoryview(arguments)[span.start : span.stop], kind), wanted)


def _find_refused_values(arguments: Buffer, pointers: Pointers, types_at: TypesAt) -> Iterator[Correction]:
    """The members that are null where the tool accepts no null, and the other values where it accepts only text.

    A value that contains a pointer stays. Short values come first, because a long one may take all steps.
    """
    taken = [pointer.span.start for pointer in pointers]
    pending: list[tuple[Span, Location]] = [(trim(arguments), ())]
    for _ in range(_MAX_CORRECTED):
        if not pending:
            return
        span, location = pending.pop()
        kind, wanted = kind_at(arguments, span.start), types_at(location) if location else frozenset()
        if wanted and wanted <= _TEXT_ONLY:
            form = None if kind == "text" else _convert(arguments, span, kind, wanted)
            if form and bisect_left(taken, span.start) == bisect_left(taken, span.stop):
                yield Correction(span, form)
        elif len(location) <= _MAX_CORRECTED_DEPTH:
            below = [(child, (*location, token)) for token, child in _list_children(arguments, span)]
            pending += sorted(below, key=lambda part: -part[0].length)
            if kind == "object" and any(kind_at(arguments, child.start) == "null" for child, _ in below):
                yield from _find_refused_nulls(arguments, span, location, types_at)


def _list_children(arguments: Buffer, span: Span) -> Iterable[tuple[JsonToken, Span]]:
    """The members of an object or the first items of an array; nothing for any other value."""
    if kind_at(arguments, span.start) == "object":
        return ((member.key, member.span) for member in members(arguments, span))
    is_array = kind_at(arguments, span.start) == "array"
    return enumerate(islice(items(arguments, span), _MAX_CORRECTED)) if is_array else ()


def _find_refused_nulls(arguments: Buffer, span: Span, location: Location, types_at: TypesAt) -> Iterator[Correction]:
    """The members of an object that are null where the tool accepts no null, each with a comma beside it.

    In `{"a":null,"b":1,"c":null}` these are `"a":null,` and `,"c":null`.
    """
    start, is_first = span.start + 1, True
    for _, (key, value) in members_with_offsets(arguments, span):
        wanted = types_at((*location, key)) if kind_at(arguments, value.start) == "null" else frozenset()
        if not wanted or "null" in wanted:
            start, is_first = value.stop, False
            continue
        comma = skip_space(arguments, value.stop)
        stop = comma + 1 if is_first and arguments[comma] == ord(",") else value.stop
        yield Correction(Span(start, stop - start), ())
        start = stop


def _find_text_offsets(arguments: Buffer) -> list[int]:
    """The ascending offsets of keys and texts; if there are many, of those in short arguments."""
    offsets: list[int] = []
    for _, span in sorted(members(arguments, trim(arguments)), key=lambda member: member.span.length):
        if kind_at(arguments, span.start) == "text":  # a large text is not read
            offsets.append(span.start)
        else:
            starts = (match.start() for match in _TEXT.finditer(arguments, span.start, span.stop))
            offsets += islice(starts, _MAX_CORRECTED - len(offsets))
        if len(offsets) >= _MAX_CORRECTED:
            break
    return sorted(offsets)


def measure_substitution(spans: Sequence[ReplacedSpan], values: Mapping[Pointer, Resolved]) -> int:
    """The work of `substitute_pointers`, in bytes that are written in the same time; each value is converted once."""
    steps = sum(len(replaced.location) for replaced in spans if isinstance(replaced, Pointer))
    sizes = {value.path: len(value.blob) for value in values.values()}
    return _REPLACED_COST * len(spans) + steps + sum(sizes.values())


def substitute_pointers(
    arguments: Buffer,
    spans: tuple[ReplacedSpan, ...],
    values: Mapping[Pointer, Resolved],
    types_at: TypesAt,
    converted: Forms = _NO_FORMS,
) -> Segments:
    """Replace each pointer that has a value, in pieces; `spans` are in the order of the text.

    `converted` has the forms of values that were converted before.

    Raises:
        ToolError: A value does not fit the declared type of its argument.
    """
    view = memoryview(arguments)
    pieces: list[Buffer] = []
    position = 0
    forms = dict(converted)  # a call may name one large value very many times
    for replaced in spans:
        if isinstance(replaced, EscapedPath):
            replacement: Segments = (msgspec.json.encode(replaced.text),)
        elif isinstance(replaced, Correction):
            replacement = replaced.value
        elif replaced in values:
            value, wanted = values[replaced], types_at(replaced.location)
            if (value.path, wanted) not in forms:
                forms[value.path, wanted] = coerce(value, wanted, replaced.location)
            replacement = forms[value.path, wanted]
        else:
            continue
        pieces += (view[position : replaced.span.start], *replacement)
        position = replaced.span.stop
    return (*pieces, view[position:]) if pieces else (arguments,)


def unwrap_pointer(
    arguments: Buffer,
    pointers: Pointers,
    misfit: MisfitError,
    types_at: TypesAt,
) -> tuple[Pointer, Pointer] | None:
    """Let the only item of an array be the array if its value fits there and not as an item: models write `["<path>"]`.

    Returns:
        The pointer, and the same pointer in place of the array; None if this is not such an array.
    """
    *above, last = misfit.location
    span = locate(arguments, tuple(above)) if last == 0 else None
    if not isinstance(span, Span) or not misfit.own & types_at(tuple(above)) or count_items(arguments, span) != 1:
        return None
    pointer = next(
        pointer for pointer in pointers if isinstance(pointer, Pointer) and pointer.location == misfit.location
    )
    return pointer, msgspec.structs.replace(pointer, span=span, location=tuple(above))


def _classify_string(
    arguments: Buffer, span: Span, location: Location, known: frozenset[str]
) -> Pointer | EscapedPath | None:
    text: str = msgspec.json.decode(memoryview(arguments)[span.start : span.stop], type=str)
    if (bare := strip_wrapping(text)).startswith(LITERAL_PREFIX):
        sent = bare.removeprefix(LITERAL_PREFIX)
        prefixes = _LITERAL_PREFIXES.match(sent)
        unprefixed = sent[prefixes.end() :] if prefixes else sent
        return EscapedPath(span, sent) if _parse_pointer(unprefixed, span, location, known) else None
    return _parse_pointer(text, span, location, known)


def _parse_pointer(text: str, span: Span, location: Location, known: frozenset[str]) -> Pointer | None:
    text = unwrap_result(text)
    bare = strip_wrapping(text)
    if path := parse_wrapped_path(text):
        return Pointer(span, location, bare, path, _is_known(slug_of(path.base), known))
    pasted = text.strip()
    is_short = len(pasted) <= MAX_NOTICE
    bases = find_notice_bases(pasted) if is_short else frozenset()
    if bases and all(slug_of(base) in known for base in bases):
        path = read_notice_path(pasted)
        return Pointer(span, location, str(path or bare), path, is_known=True)
    if (slug := slug_of_near_miss(bare)) and _is_known(slug, known):
        return Pointer(span, location, bare, None, is_known=True)
    if is_short and is_pathless_notice(pasted):
        return Pointer(span, location, pasted, None, is_known=True)
    return None


def _is_known(slug: str, known: frozenset[str]) -> bool:
    if slug in known:
        return True
    folded = fold_slug(slug)
    return not {folded, folded.removesuffix(_TWIN)}.isdisjoint(_fold_slugs(known))


@lru_cache(maxsize=8)
def _fold_slugs(known: frozenset[str]) -> frozenset[str]:
    return frozenset(map(fold_slug, known))

"""Looks up the value of a memory path; errors name the nearest paths or keys."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import Final

import anyio.to_thread

from mcp_mirror.core.amounts import format_time
from mcp_mirror.core.embedded_json import describe_embedded_data
from mcp_mirror.core.media import has_content
from mcp_mirror.core.parsed_result import find_unwrapped_key
from mcp_mirror.errors import RefusalReason, ToolError
from mcp_mirror.paths import (
    MemoryPath,
    escape_token,
    find_notice_bases,
    is_pathless_notice,
    label_of,
    label_of_near_miss,
    parse_path,
    position_token,
    unescape_token,
)
from mcp_mirror.payload.floods import INLINE_BYTES
from mcp_mirror.payload.json_bounds import MAX_VALUES, has_more_values
from mcp_mirror.payload.json_spans import INDEX, Miss, item, kind_at, locate, skip_space, trim
from mcp_mirror.security.sanitize import as_json_string
from mcp_mirror.stores.base import Store, Tombstone
from mcp_mirror.system.fair_threads import run_fairly
from mcp_mirror.types import Buffer, Descriptor, FileSpan, Kind, Location, Member, Span
from mcp_mirror.workers.frames import FrameScanner

_WORKER_BYTES: Final = 1 << 23
"""Values above this size in a file are searched in a worker process."""
_MAX_NEAREST: Final = 3
"""Nearest names that an error lists."""
_NEWEST_BASES: Final = 64
"""The caller's newest values that are compared with an unknown path."""
_NEIGHBOURS: Final = 6
"""Alphabetical neighbours of an unknown path, on each side, that are compared with it."""
_MIN_SIMILARITY: Final = 0.5
"""The ratio of equal characters from which a name counts as near."""
_MIN_PART: Final = 3
"""Characters of a name that makes another name near by being a part of it."""
_MAX_COMPARED_CHARACTERS: Final = 200
"""Characters of a name that are compared."""
_MAX_COMPARED_NAMES: Final = 40
"""Names that are compared in full: those with the most characters in common."""
_MAX_LISTED_KEYS: Final = 12
_KEY_BYTES: Final = 80
"""Bytes of a key or a tool's name that an error quotes."""
_PATH_BYTES: Final = 300
"""Bytes of a path that an error quotes."""
_MAX_STEPS: Final = 8
"""Steps of an expression that an error suggests."""
_SUGGESTION_BYTES: Final = 4 * _PATH_BYTES
"""Bytes of a path that an error proposes: whole, with escapes."""
_OTHER_SYNTAX: Final = re.compile(r"[.\[\\]\S|#")
"""The beginning of a part of a value as JMESPath, JSONPath and programs write it."""
_STEP: Final = re.compile(
    r"\.?\[(?:(?P<index>\d+)|'(?P<single>[^'\\]*)'|\"(?P<double>[^\"\\]*)\")\]"
    r"|\.(?P<name>\w[\w-]*|\"(?P<quoted>[^\"\\]*)\")|#?/(?P<key>[^/\[]*)|\\(?P<other>[^/\\.\[]+)"
)
"""One key or index in these syntaxes."""
_SLICE: Final = re.compile(r"-?\d*:-?\d*|-\d+")
"""A range of items, or an item from the end, as Python writes them."""
_DELETED: Final = "It was deleted or has expired, or the path is not exact. "
"""Stores keep no record of a deleted value."""
_REASONS: Final = {"expired": "expired", "evicted": "was evicted to make room"}


@dataclass(frozen=True, slots=True)
class FoundValue:
    """The value of a path."""

    path: MemoryPath
    blob: Buffer
    kind: Kind
    descriptor: Descriptor = field(compare=False, repr=False)
    """The descriptor of the whole value."""
    file: FileSpan | None = None
    """The position in a file if the value is large and its store has files."""

    @property
    def quoted_path(self) -> str:
        """The path for an error message."""
        return as_json_string(str(self.path), _PATH_BYTES)

    @property
    def preview(self) -> bool:
        """Whether the model may see parts of the value that it did not request."""
        return self.descriptor.preview

    @property
    def producer(self) -> str:
        """The trace context of the call that produced the value; empty without traces."""
        return self.descriptor.provenance.traceparent


@dataclass(frozen=True, slots=True)
class ErrorContent:
    """The parts that the error about a missing key may contain."""

    include_keys: bool = True
    """It may list the keys of the value."""
    advise_query: bool = False
    """It may advise an expression, because the client is served `memory_query`."""


_ANY_CONTENT: Final = ErrorContent()


async def look_up(
    store: Store,
    scanner: FrameScanner,
    namespace: str,
    path: MemoryPath,
    known: Descriptor | Tombstone | None = None,
    content: ErrorContent = _ANY_CONTENT,
) -> FoundValue | None:
    """Return the value of a path; None if its base was never stored.

    Args:
        store: The store.
        scanner: Searches large values in worker processes.
        namespace: The owner of the value.
        path: The path.
        known: The descriptor or tombstone, if the caller has read it already.
        content: The parts that an error may contain.

    Raises:
        ToolError: The value has expired or was evicted, or it has no such key.
    """
    described = known or await store.describe(namespace, path.base)
    if described is None:
        return None
    if isinstance(described, Tombstone):
        raise _build_refusal(_explain_tombstone(path, described))
    path = _strip_wrapper_key(described, path)
    member = _find_member(described, path)
    if (found := await _look_up_indexed(store, namespace, path, described, member)) is not None:
        return found
    blob = await store.read(namespace, path.base, member.span if member else None)
    if blob is None:
        raise _build_refusal(
            f"The value of {as_json_string(str(path), _PATH_BYTES)} was deleted during this call. "
            "Call the tool that returned it again."
        )
    tokens = path.tokens[1:] if member else path.tokens
    file = await _find_file(store, namespace, path.base, member, len(blob)) if await _is_costly(blob) else None
    span = await _locate(scanner, file, blob, tokens)
    if isinstance(span, Miss):
        if (bare := path.without_wrapping) != path:
            return await look_up(store, scanner, namespace, bare, described, content)
        depth = len(path.tokens) - len(tokens) + span.depth
        include_keys = described.preview if content.include_keys else None
        text = blob if span.kind == "text" and not span.depth else b""
        raise await run_fairly(
            namespace, _build_miss_error, path, depth, span, include_keys, text, content.advise_query
        )
    found = _build_found_value(path, described, blob, span)
    if file is None:
        return found
    start = file.span.start + (0 if found.blob is blob else span.start)
    return replace(found, file=FileSpan(file.path, Span(start, len(found.blob))))


async def _look_up_indexed(
    store: Store, namespace: str, path: MemoryPath, described: Descriptor, member: Member | None
) -> FoundValue | None:
    """Return the value of a path in the indexed array of a value, of which only a part is read.

    Returns None if the path is not in that array, if it does not exist, or if the part is large.
    """
    known, depth = described.array, 1 if member else 0
    is_array = known is not None and (member.span == known.span if member else described.kind == "array")
    if known is None or not is_array or len(path.tokens) <= depth:
        return None
    token = str(path.tokens[depth])
    if not INDEX.fullmatch(token) or int(token) >= known.length:
        return None
    at = bisect_right(known.indices, int(token)) - 1
    start = known.offsets[at]
    stop = known.offsets[at + 1] if at + 1 < len(known.offsets) else known.span.length
    if stop - start > _WORKER_BYTES:
        return None
    part = await store.read(namespace, path.base, Span(known.span.start + start, stop - start))
    if part is None:
        return None
    found = await anyio.to_thread.run_sync(
        _locate_below, part, int(token) - known.indices[at], path.tokens[depth + 1 :]
    )
    if isinstance(found, Miss):
        return None
    return _build_found_value(path, described, part, found)


def _locate_below(part: Buffer, index: int, tokens: Location) -> Span | Miss:
    """Follow tokens from the item at `index` of a part of an array, which begins with an item."""
    found = item(part, Span(-1, len(part) + 1), index)
    return locate(part, tokens, found) if isinstance(found, Span) else Miss(0, "array")


async def _is_costly(blob: Buffer) -> bool:
    """Whether a worker process should search a value: it is large, or has very many members or items."""
    if not INLINE_BYTES < len(blob) <= _WORKER_BYTES:
        return len(blob) > _WORKER_BYTES
    is_text = kind_at(blob, skip_space(blob, 0)) == "text"
    return not is_text and await anyio.to_thread.run_sync(has_more_values, blob, MAX_VALUES)


def _strip_wrapper_key(described: Descriptor, path: MemoryPath) -> MemoryPath:
    """The path without the key of a wrapper that was removed from the value: models know it from the output schema."""
    first = path.tokens[0] if path.tokens else None
    is_key = any(member.key == first for member in described.members)
    if not isinstance(first, str) or is_key or first != find_unwrapped_key(described.envelope):
        return path
    return MemoryPath(path.base, path.tokens[1:])


def _find_member(described: Descriptor, path: MemoryPath) -> Member | None:
    """The indexed member that the first token of a path names by key or position; None if it does not exist."""
    if not path.tokens or described.kind != "object":
        return None
    first = path.tokens[0]
    if isinstance(first, int):
        return described.members[first] if first < len(described.members) else None
    return next((member for member in described.members if member.key == first), None)


async def _find_file(store: Store, namespace: str, base: str, member: Member | None, size: int) -> FileSpan | None:
    """The position of a value, or of its member, in a file; None if it is not in a file."""
    whole = await store.file_of(namespace, base)
    start = member.span.start if member else 0
    return FileSpan(whole.path, Span(whole.span.start + start, size)) if whole else None


async def _locate(scanner: FrameScanner, file: FileSpan | None, blob: Buffer, tokens: Location) -> Span | Miss:
    """Search a small value here and a large one in a worker, which gets the value if its file was deleted."""
    if not tokens or len(blob) <= INLINE_BYTES:
        return locate(blob, tokens)
    if file and (span := await scanner.locate(file, tokens)):
        return span
    return await scanner.locate_sent(blob, tokens)


async def unknown_path_error(store: Store, namespace: str, text: str, unstored: str = "") -> ToolError:
    """Return the error for a path without a value, with the caller's nearest or newest paths.

    Args:
        store: The store that was searched.
        namespace: The memory that was searched.
        text: The path, as the model wrote it.
        unstored: The tool whose result the model saw last, if that was whole and not stored. Small models look for such
            a result under an invented path, and must not call the tool again (docs/evaluation/wording.md).
    """
    if len(named := find_notice_bases(text)) > 1:
        paths = " or ".join(f'"{base}"' for base in sorted(named, key=text.index))
        return _build_refusal(f"This is a whole notice, which names several paths. Give only one: {paths}.")
    newest = await store.newest(namespace, _NEWEST_BASES)
    if is_pathless_notice(text.strip()) and newest:
        # In the form of a notice, so that a model that pastes this error as well gives the path.
        return _build_refusal(
            f'"{newest[0]}"\nThis path stands for the newest result. You gave the text of a notice without its path, '
            "so nothing was called. Use the path as the argument of the next tool."
        )
    base = text[:_MAX_COMPARED_CHARACTERS].partition("/")[0]
    near = await _find_neighbours(store, namespace, base) if newest else ()
    is_path = parse_path(text) is not None
    advice = await run_fairly(namespace, _advise, text, newest, (*newest, *near), "" if is_path else unstored)
    cause = _DELETED if is_path else ""
    return _build_refusal(f"No value is stored under {as_json_string(text, 160)}. {cause}{advice}")


def _build_refusal(message: str) -> ToolError:
    """The error of a path that does not resolve."""
    return ToolError(message, RefusalReason.UNKNOWN_PATH)


async def _find_neighbours(store: Store, namespace: str, text: str) -> tuple[str, ...]:
    """Bases that begin like a text, or with a similar tool's label and the same digits."""
    texts = {text, text.lower()}
    if label := label_of_near_miss(text):
        labels = await store.labels(namespace)
        digits = text.partition(f"{label}-")[2].lower()
        texts |= {f"{one}-{digits}" for one in find_nearest(label, labels)}
    found = [await store.bases_near(namespace, one, _NEIGHBOURS) for one in sorted(texts)]
    return tuple(base for bases in found for base in bases)


def _advise(text: str, newest: Sequence[str], bases: Sequence[str], unstored: str) -> str:
    """Name the bases similar to a text, else those of the same tool, else the unstored result or the newest bases."""
    fallback = (
        f"The result of {unstored} is complete, and not stored: the answer is in it. For other data, first call the "
        "tool that gets it."
    )
    if not bases:
        return fallback if unstored else "Nothing is stored yet: first call the tool that gets the data."
    bases = tuple(dict.fromkeys(bases))
    given, text = text, text[:_MAX_COMPARED_CHARACTERS].partition("/")[0].casefold()
    extended = (base for base in bases if text.startswith(base.casefold()) and _OTHER_SYNTAX.match(text, len(base)))
    if whole := next(extended, None):
        example = f'A part of a value follows a slash, such as "{whole}/0" or "{whole}/name".'
        steps = _read_steps(given[len(whole) :])
        return _suggest_path(MemoryPath(whole, steps)) if steps else example
    same_tool = [base for base in bases if text.startswith(f"{label_of(base)}-".casefold())]
    near = find_nearest(text, bases) or same_tool
    if unstored and not near:
        return fallback
    listed = ", ".join(f'"{base}"' for base in (near or newest)[:_MAX_NEAREST])
    return f"{'Nearest' if near else 'Newest'} are {listed}. Copy a path exactly."


def _read_steps(part: str) -> tuple[str, ...]:
    """The keys and indices of a part as JMESPath, JSONPath or a program writes it; empty if it is an expression."""
    steps: list[str] = []
    position = 0
    while position < len(part) <= _PATH_BYTES:
        step = _STEP.match(part, position)
        if step is None:
            return ()
        key = step["quoted"] or step[step.lastgroup or 0]
        steps.append(unescape_token(key) if step.lastgroup == "key" else key)
        position = step.end()
    return tuple(steps)


def _suggest_path(path: MemoryPath) -> str:
    return f"Write it as {as_json_string(str(path), _SUGGESTION_BYTES)}."


def find_nearest(text: str, names: Iterable[str]) -> list[str]:
    """Return up to three names that are similar to a text, the most similar first."""
    similarity = _make_similarity(text, SequenceMatcher.ratio)
    compared = {name: similarity(name) for name in sort_by_similarity(text, names)[:_MAX_COMPARED_NAMES]}
    near = (name for name in compared if compared[name] >= _MIN_SIMILARITY)
    return sorted(near, key=lambda name: -compared[name])[:_MAX_NEAREST]


def sort_by_similarity(text: str, names: Iterable[str]) -> list[str]:
    """Return all names, sorted by the characters that they have in common with a text; case is ignored."""
    similarity = _make_similarity(text, SequenceMatcher.quick_ratio)
    return sorted(names, key=lambda name: -similarity(name))


def _make_similarity(text: str, ratio: Callable[[SequenceMatcher[str]], float]) -> Callable[[str], float]:
    """A function that returns the similarity of a name: 0 to 1, or above 1 if one text contains the other."""
    wanted = text[:_MAX_COMPARED_CHARACTERS].casefold()
    matcher = SequenceMatcher(None, "", wanted, autojunk=False)  # caches its analysis of the second text

    def similarity(name: str) -> float:
        other = name[:_MAX_COMPARED_CHARACTERS].casefold()
        matcher.set_seq1(other)
        shorter, longer = sorted((wanted, other), key=len)
        return ratio(matcher) + (len(shorter) >= _MIN_PART and shorter in longer)

    return similarity


def _build_found_value(path: MemoryPath, descriptor: Descriptor, blob: Buffer, span: Span) -> FoundValue:
    """The part of a value at a span, or the whole value."""
    kind: Kind = descriptor.kind
    part: Buffer = memoryview(blob)[span.start : span.stop]
    if path.tokens:
        kind = kind_at(blob, span.start)
        kind = "binary" if kind == "object" and has_content(part) else kind
    elif kind in ("object", "array"):
        part = blob  # with the white space around it: a string argument gets exactly the text of the result
    return FoundValue(path, part, kind, descriptor)


def _build_miss_error(
    path: MemoryPath,
    depth: int,
    miss: Miss,
    include_keys: bool | None,  # noqa: FBT001
    text: Buffer,
    advise_query: bool,  # noqa: FBT001
) -> ToolError:
    """The error of a key that does not exist. Logs do not get the keys that the value has.

    Args:
        path: The path with the key.
        depth: The number of tokens before the key.
        miss: The object or array without the key.
        include_keys: Name keys rather than positions; None: neither.
        text: The JSON text of a text without the key; empty: unknown.
        advise_query: Advise an expression for the text or the items of the array.
    """
    if include_keys is None:
        return _build_refusal(f'"{path}" does not exist. The flow policy hides the keys of the value from the model.')
    here = str(MemoryPath(path.base, path.tokens[:depth]))
    token = str(MemoryPath("", path.tokens[depth : depth + 1]))[1:]
    steps = _read_steps(f".{token}")
    if include_keys and len(steps) > 1 - token.startswith("[") and _has_member(miss, steps[0]):
        content = _suggest_path(MemoryPath(path.base, (*path.tokens[:depth], *steps, *path.tokens[depth + 1 :])))
    elif miss.kind == "object":
        content = _list_keys(miss, unescape_token(token), here) if include_keys else _list_positions(miss)
    elif miss.kind == "array":
        content = f"It is an array whose items are 0 to {miss.length - 1}." if miss.length else "It is an empty array."
        if advise_query and miss.length and (expression := _write_projection(path.tokens[depth:])):
            content += f" Query this path: the JMESPath expression {expression} selects from its items."
    elif include_keys and text and (data := describe_embedded_data(text, trim(text))):
        advice = "Use the path itself."
        if advise_query:
            expression = _write_expression(path.tokens[depth:])
            advice = f"Query the path itself: the JMESPath expression {expression} finds this part."
        content = f"It is {data.description}. {advice}"
    else:
        content = f"It is {miss.kind}, which has no keys: use the path itself."
    cause = f"{as_json_string(here, _PATH_BYTES)} has no key {as_json_string(token, _KEY_BYTES)}."
    return _build_refusal(f"{cause} {content}").with_log_message(cause)


def _write_expression(tokens: Location) -> str:
    """Write the first tokens of a path as a JMESPath expression."""
    written = ""
    for token in map(str, tokens[:_MAX_STEPS]):
        if INDEX.fullmatch(token):
            written += f"[{token}]"
        else:
            is_plain = token.isascii() and token.isidentifier() and len(token) <= _KEY_BYTES
            written += f".{token if is_plain else as_json_string(token, _KEY_BYTES)}"
    return written.removeprefix(".")


def _write_projection(tokens: Location) -> str:
    """Write a key of all items, a slice or a place from the end, and the tokens below, as a JMESPath expression.

    Returns:
        Empty for tokens that begin with anything else.
    """
    first = str(tokens[0])
    if first == "*" or _SLICE.fullmatch(first):
        items, rest = f"[{first}]", _write_expression(tokens[1:])
    elif first.isascii() and first.isidentifier():
        items, rest = "[*]", _write_expression(tokens)
    else:
        return ""
    return f"{items}{'.' if rest and not rest.startswith('[') else ''}{rest}"


def _has_member(miss: Miss, key: str) -> bool:
    """Whether an object has a key, or an array an index."""
    is_item = miss.kind == "array" and INDEX.fullmatch(key) is not None and int(key) < miss.length
    return is_item or key in miss.keys


def _list_keys(miss: Miss, wanted: str, here: str) -> str:
    """List the keys, the most similar one first, and the path of this one: models paste the keys as they are."""
    if not miss.keys:
        return "It is an empty object."
    keys = [escape_token(key) for key in sort_by_similarity(wanted, miss.keys)[:_MAX_LISTED_KEYS]]
    listed = ", ".join(as_json_string(key, _KEY_BYTES) for key in keys)
    more = f" and {miss.length - _MAX_LISTED_KEYS:,} more" if miss.length > _MAX_LISTED_KEYS else ""
    nearest = as_json_string(f"{here}/{keys[0]}", _SUGGESTION_BYTES)
    return f"Its keys are {listed}{more}. Pass a whole path, such as {nearest}."


def _list_positions(miss: Miss) -> str:
    if not miss.keys:
        return "It is an empty object."
    last = f' to "/{position_token(miss.length - 1)}"' if miss.length > 1 else ""
    return f'Its keys are hidden; name them by position: "/{position_token(0)}"{last}.'


def _explain_tombstone(path: MemoryPath, tombstone: Tombstone) -> str:
    provenance = tombstone.descriptor.provenance
    return (
        f"The value of {as_json_string(str(path), _PATH_BYTES)} {_REASONS[tombstone.reason]} "
        f"at {format_time(tombstone.at)}. "
        f"It came from tool {as_json_string(provenance.tool, _KEY_BYTES)} of upstream {provenance.upstream!r}: "
        "call it again and use the new path."
    )

"""Memory paths: `<base>` or `<base>/<RFC 6901 JSON Pointer>`, where `<base>` is `<tool>-<uuid4>`.

A step of the pointer may also be `~#3`, which is not valid in a JSON Pointer: the fourth member of an object. This
module parses paths, recognises incorrect copies of them, and finds the path in what models paste: a whole notice, or a
result as a framework prints it. It does not know whether a value exists.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import NamedTuple
from urllib.parse import unquote
from uuid import UUID

import msgspec

from mcp_mirror.types import JsonToken

_UUID4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
_PATH = re.compile(rf"(?P<base>(?P<tool>[A-Za-z0-9_-]+)-{_UUID4})(?P<pointer>/.*)?", re.DOTALL)
_NEAR_MISS = re.compile(
    r"(?:(?i:memory[_ ]?)?(?i:path)\s*[:=])?[^A-Za-z0-9_]*+(?P<tool>[A-Za-z0-9_-]{1,200}?)-"
    r"(?P<id>[0-9A-Fa-f]{6,10}(?:(?:-[0-9A-Za-z]{2,14}){3,5}(?:-[0-9A-Za-z]?)?|(?:-[0-9A-Fa-f]{2,14}){1,2}|(?=\.\.|\u2026)))"
    r"(?:/.*|\[[^\]\n]*\]\S*|[^A-Za-z0-9_\s-]\S*+(?:\s[^A-Za-z0-9_]*+)?)?",
    re.DOTALL,
)
"""A path with characters added, lost or replaced. Slugs are shorter; a longer search takes 0.4 ms a kilobyte."""
_DIGITS_AND_LETTERS = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])")
"""An id of digits only would also match dates, one of letters only would match words."""
BASE_PATTERN = rf"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]+-{_UUID4}"
"""The pattern of a base anywhere in a text. It begins where a word begins, so that a search of long words is linear."""
_BASE = re.compile(BASE_PATTERN)
_CANDIDATES = (
    re.compile(rb"-[0-9A-Fa-f]{6,10}(?:-[0-9A-Za-z]{2}|\.\.|\xe2\x80\xa6|\\u2026)"),
    re.compile(rb"\\u00(?:2[dDfF]|3[0-9]|[46][1-6])"),
    re.compile(rb"(?: path|\)) stands for "),
)
"""Every path and every near miss contains a match of one of these, with or without JSON escapes, and so does a notice
without its path, and the line below a shown text. Each search runs at 1 to 2 GB/s."""
_SEARCHED = 1 << 20
_LONGEST_CANDIDATE = 1 << 10
"""Bytes of the longest match of `_CANDIDATES`, and more."""
_OTHER_SYNTAX = re.compile(rf"(?P<base>[A-Za-z0-9_-]+-{_UUID4})(?P<part>[.\[\\#].+)")
"""A base, and a part in another syntax than that of a JSON Pointer."""
_STEP = re.compile(
    r"\.?\[(?:(?P<index>\d+)|'(?P<single>[^'\\]*)'|\"(?P<double>[^\"\\]*)\")\]"
    r"|\.(?P<name>\w[\w-]*|\"(?P<quoted>[^\"\\]*)\")|#?/(?P<key>[^/\[]*)|\\(?P<other>[^/\\.\[]+)"
)
"""One key or index as JMESPath, JSONPath and programs write it."""
_EXPRESSION = re.compile(r"\.?\[[^\]\n]*\]\S*")
"""What follows such steps if it selects several items, as in `[*].name` or `[0:5]`."""
_MAX_OTHER_SYNTAX = 300
"""Characters of such a part."""
_POSITION = re.compile(r"~#(0|[1-9][0-9]{0,8})")
_MAX_STEPS = 1000
"""More steps than any value has levels of nesting. The rest of a longer path is part of its last key."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_WRAPPING = " \t\r\n'\"`"
_SCHEMES = re.compile(r"(?:memory|resource|mcp(?:-mirror)?)://|memory:")
"""`SCHEME`, and what models write in its place."""

SCHEME = "memory://"
URI_TEMPLATE = f"{SCHEME}{{+path}}"
"""The URIs of stored values and of their parts."""
CUT = "..."
"""The end of a text that is cut in a notice."""
_CUT = re.compile(rb"\.\.\.(?!\.)")
_COPIED = (*_CANDIDATES, _CUT)
LITERAL_PREFIX = "literal:"
"""A memory path after this prefix is sent as text instead of being replaced by its value."""

PRUNED_SLUG = "pruned"
"""The first part of the paths of texts that were pruned from a conversation."""
_MAX_SLUG = 80
"""Characters of a tool's name in a path."""
_MAX_NAME = 1 << 14
"""Characters of a tool's name that its slug depends on."""

MAX_NOTICE = 1 << 14
"""Characters up to which a text may be a pasted notice."""
_DECODE_FIRST = json.JSONDecoder(strict=False).raw_decode
_SURROGATE = re.compile("[\ud800-\udfff]")
_RESULT_STATES = frozenset(("isError", "is_error", "resultType", "result_type"))
_ESCAPE = r"\\(?:[\\'\"nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U000[0-9a-f]{5}|U0010[0-9a-f]{4})"
_PRINTED_RESULT = re.compile(
    r"(?:CallToolResult\()?(?:_?meta=None,? )?(?:content=)?\[?"
    rf"TextContent\(type=['\"]text['\"], text=(?P<text>'(?:[^'\\\n\0]|{_ESCAPE})*+'|\"(?:[^\"\\\n\0]|{_ESCAPE})*+\")"
    r"(?:, (?:annotations|_?meta)=None)*+\)\]?"
    r"(?:,? (?:structured_?[cC]ontent=None|is_?[eE]rror=(?:False|True)|result_?[tT]ype='complete'))*+[\])}'\", ]*+"
)
"""A result of one text, its list of blocks, or its block, as Python prints those of the SDK."""

_INPUT_LINE = "The function "

_MAX_LOCATION = 200
"""Characters of the part of a path below its value in a notice."""
PATH_LINE_PREFIX = "Path: "
"""The beginning of the line with the path, below a value that is shown."""
SHOWN_END = "Result ends."
"""The last line below a value that is shown: without it, small models ask for the value that they have read
(docs/evaluation/wording.md)."""
TEXT_PATH_LINE_PREFIX = "text_path: "
"""The same for the path of a text that contains more than the value."""
HIDDEN_TEXT = "The text is not shown. Preview:"
"""The beginning of the line below that path if the value does not contain the text, which a preview follows."""
_SHOWN_LINES = re.compile(
    rf'(?:\A|\n){PATH_LINE_PREFIX}"(?P<base>[A-Za-z0-9_-]+-{_UUID4})"(?:\nThis path stands for object: [^\n]*+)?'
    rf'(?:\n{TEXT_PATH_LINE_PREFIX}"[A-Za-z0-9_-]+-{_UUID4}"(?:\n{HIDDEN_TEXT}[^\n]*+(?:\n\| [^\n]*+){{0,20}})?)?'
    rf'(?:\n"[A-Za-z0-9_/-]+" [^\n]{{1,200}}|\nand [0-9,]+ more){{0,9}}\n{re.escape(SHOWN_END)}\Z'
)
"""The last lines below a value that is shown whole: its path, the path of a text, the paths of media."""

TEXT_USE = "As an argument, the path stands for the text."
"""The line below a text that is shown, which has its path above it: without it, small models write the text again as
an argument (docs/evaluation/wording.md)."""
_SHOWN_TEXT = re.compile(rf'\A"(?P<base>[A-Za-z0-9_-]+-{_UUID4})(?:/[^\n]{{0,{_MAX_LOCATION}}})?"\n')
_TEXT_END = f"\n{TEXT_USE}\n{SHOWN_END}"

_NOTICE_WORDS = r"This path (?:\([^\n]*\) )?stands for "
_NOTICE_ENDS = ("next tool.", "not the preview.")
_PATHLESS_NOTICE = re.compile(_NOTICE_WORDS)
_NOTICE_FRAMES = (
    (re.compile(rf'"[A-Za-z0-9_-]+-{_UUID4}(?:/[^\n]{{0,{_MAX_LOCATION}}})?"\n{_NOTICE_WORDS}'), _NOTICE_ENDS),
    (re.compile(_INPUT_LINE), ("as input to another function.",)),
    (re.compile(rf'\{{"(?:result|memory_path)": "[A-Za-z0-9_-]+-{_UUID4}"'), ("}",)),
)
"""Beginning and possible ends of each style of notice except `opaque`, and of the stub of a pruned text."""

_MAX_END = 4_000
"""Characters of the lines below a shown value: at most ten lines, each with a path and few words."""


class MemoryPath(msgspec.Struct, frozen=True):
    """A well-formed memory path, decoded."""

    base: str
    tokens: tuple[JsonToken, ...] = ()
    """Keys; a number for an object's member that is named by its position."""

    def __str__(self) -> str:
        steps = (escape_token(token) if isinstance(token, str) else position_token(token) for token in self.tokens)
        return self.base + "".join(f"/{step}" for step in steps)

    @property
    def without_wrapping(self) -> "MemoryPath":
        """The path without spaces and quotes at its end; see `parse_wrapped_path`."""
        if not self.tokens or not isinstance(last := self.tokens[-1], str):
            return self
        return MemoryPath(self.base, (*self.tokens[:-1], last.rstrip(_WRAPPING)))

    def child(self, key: str) -> "MemoryPath":
        """The path of a key of the value."""
        return MemoryPath(self.base, (*self.tokens, key))


def tool_slug(tool: str) -> str:
    """The slug of a tool: its name as paths begin with it, 1 to 80 characters of `[A-Za-z0-9_-]`."""
    return _UNSAFE.sub("_", tool[:_MAX_NAME])[:_MAX_SLUG].rstrip("-") or "value"


def new_base(tool: str, identity: UUID) -> str:
    """The base of a new value that `tool` produced."""
    return f"{tool_slug(tool)}-{identity}"


class NewBases:
    """The bases of a new value and of its companion, made when they are first needed: most results are not stored."""

    def __init__(self, tool: str, new_id: Callable[[], UUID]) -> None:
        self._tool = tool
        self._new_id = new_id

    @cached_property
    def value(self) -> str:
        """The base of the value."""
        return new_base(self._tool, self._new_id())

    @cached_property
    def companion(self) -> str:
        """The base of the companion."""
        return new_base(self._tool, self._new_id())

    def __reduce__(self) -> tuple[type["FixedBases"], tuple[str, str]]:
        """Worker processes get the bases themselves."""
        return FixedBases, (self.value, self.companion)


class FixedBases(NamedTuple):
    """The bases of a value and of its companion."""

    value: str
    companion: str


def slug_of(base: str) -> str:
    """The slug of a base."""
    return base[:-37]


def parse_path(text: str) -> MemoryPath | None:
    """Parse a memory path; None unless the whole text is one."""
    if not (match := _PATH.fullmatch(text)):
        return None
    pointer = match["pointer"] or ""
    return MemoryPath(match["base"], tuple(_parse_token(token) for token in pointer.split("/", _MAX_STEPS)[1:]))


def _parse_token(token: str) -> JsonToken:
    if "~" not in token:  # nearly all tokens, in a fifth of the time
        return token
    match = _POSITION.fullmatch(token)
    return int(match[1]) if match else unescape_token(token)


def parse_uri(uri: str) -> MemoryPath | None:
    """The memory path in a `memory://` URI; None for any other URI and for a malformed path."""
    return parse_path(unquote(uri.removeprefix(SCHEME))) if uri.startswith(SCHEME) else None


def slug_of_near_miss(text: str) -> str | None:
    """The slug of a text that resembles one memory path but was copied incorrectly, else None."""
    match = _NEAR_MISS.fullmatch(text)
    is_miscopied = match is not None and _DIGITS_AND_LETTERS.match(match["id"]) and len(_BASE.findall(text)) <= 1
    return match["tool"] if match and is_miscopied else None


def fold_slug(slug: str) -> str:
    """The same text for all slugs that differ only in case, hyphens and underscores, as models miscopy them."""
    return slug.replace("-", "").replace("_", "").casefold()


def strip_wrapping(text: str) -> str:
    """Remove what models put around a path: space, quotes, backticks, the `memory://` scheme or a similar one."""
    bare = text.strip(_WRAPPING)
    scheme = _SCHEMES.match(bare)
    return bare[scheme.end() :].strip(_WRAPPING) if scheme else bare


def list_bases(text: str) -> list[str]:
    """Return the bases in a text, each once, in the order of the text."""
    return list(dict.fromkeys(_BASE.findall(text)))


def find_bases(text: str) -> frozenset[str]:
    """All well-formed bases in a text."""
    return frozenset(_BASE.findall(text))


def find_candidate_offsets(text: bytes | memoryview) -> list[int]:
    """Offsets in a JSON text of possible memory paths; each string that is a path or a near miss contains one."""
    return sorted(match.start() for pattern in _CANDIDATES for match in pattern.finditer(text))


def cut_for_candidates(text: bytes | memoryview) -> Iterator[memoryview]:
    """Overlapping parts of a JSON text, of which one contains each possible path. A search of one takes 3 ms."""
    view = memoryview(text)
    return (view[start : start + _SEARCHED + _LONGEST_CANDIDATE] for start in range(0, len(view), _SEARCHED))


def has_candidates(text: bytes | memoryview) -> bool:
    """Whether a JSON text contains a possible memory path; see `cut_for_candidates`."""
    for pattern in _CANDIDATES:  # noqa: SIM110  # without a generator, because each call comes here
        if pattern.search(text):
            return True
    return False


def may_copy_notice(text: bytes | memoryview) -> bool:
    """Whether a JSON text contains a possible memory path, or a string that may have been cut in a notice."""
    for pattern in _COPIED:  # noqa: SIM110  # as above
        if pattern.search(text):
            return True
    return False


def find_cut_offsets(text: bytes | memoryview, most: int) -> list[int]:
    """Offsets in a JSON text of the first places where its strings may have been cut."""
    return [match.start() for match in islice(_CUT.finditer(text), most)]


def position_token(position: int) -> str:
    """The token for a member of an object by its position, counted from 0, if its key must not be shown.

    No escaped key has this form: in a JSON Pointer, `~` is always followed by 0 or 1.
    """
    return f"~#{position}"


def escape_token(token: str) -> str:
    """A key as a JSON Pointer token (RFC 6901, section 3)."""
    return token.replace("~", "~0").replace("/", "~1")


def unescape_token(token: str) -> str:
    """The key of a JSON Pointer token (RFC 6901, section 4)."""
    return token.replace("~1", "/").replace("~0", "~")


def read_steps(part: str) -> tuple[str, ...]:
    """The keys and indices of a part as JMESPath, JSONPath or a program writes it; empty if it is an expression."""
    steps, rest = _split_steps(part)
    return () if rest else steps


def _split_steps(part: str) -> tuple[tuple[str, ...], str]:
    """The keys and indices with which such a part begins, and the rest of it."""
    steps: list[str] = []
    position = 0
    while position < len(part) <= _MAX_OTHER_SYNTAX and (step := _STEP.match(part, position)):
        key = step["quoted"] or step[step.lastgroup or 0]
        steps.append(unescape_token(key) if step.lastgroup == "key" else key)
        position = step.end()
    return tuple(steps), part[position:]


def _parse_other_syntax(text: str) -> MemoryPath | None:
    """Parse a base with a part such as `.rows[0]`; None for any other text.

    An expression at the end of the part, such as `[*].name`, becomes a key, which no value has.
    """
    if (match := _OTHER_SYNTAX.fullmatch(text)) is None or len(match["part"]) > _MAX_OTHER_SYNTAX:
        return None
    steps, rest = _split_steps(match["part"])
    if rest and not _EXPRESSION.fullmatch(rest):
        return None
    return MemoryPath(match["base"], (*steps, rest) if rest else steps)


def parse_wrapped_path(text: str) -> MemoryPath | None:
    """Parse a memory path as models write it; None for other texts.

    It may be in spaces, quotes and the like, or after a slash, and its part may be in another syntax, as in `.rows[0]`.
    Quotes and the like only at the end of the text remain part of the last key, which may end with them. If the value
    has no such key, use `without_wrapping`. A whole notice is not a path, although keys may contain line breaks.
    """
    unwrapped = strip_wrapping(text).removeprefix("/")
    bare = parse_path(unwrapped) or _parse_other_syntax(unwrapped)
    if bare is None or ("\n" in text and is_whole_notice(text.strip())):
        return None
    if isinstance(bare.tokens[-1] if bare.tokens else None, int):
        return bare
    return parse_path(text) or bare


def unwrap_result(text: str) -> str:
    """The text of an MCP result or text block that a model pasted as some frameworks show it; other texts unchanged.

    Frameworks show results as JSON or as Python prints them. A result must consist of one text: other members are null,
    except those of a result's state. A JSON string is its text. Models add braces and quotes to the end.

    A result with half of a surrogate pair, which no store accepts, stays unchanged.
    """
    bare = text.strip()
    found = _read_result(bare) if len(bare) <= MAX_NOTICE else None
    return text if found is None or _SURROGATE.search(found) else found


def _read_result(bare: str) -> str | None:
    """The text of such a result; None for other texts."""
    if printed := _PRINTED_RESULT.fullmatch(bare):
        return str(ast.literal_eval(printed["text"]))
    if not bare.startswith(("{", "[", '"')):
        return None
    try:
        shown, end = _DECODE_FIRST(bare)
    except (ValueError, RecursionError):
        return None
    return None if bare[end:].strip('}]", ') else _find_only_text(shown)


def _find_only_text(shown: object) -> str | None:
    """The text in a result, in a list of blocks or in a block that contains nothing else."""
    block = shown
    match shown:
        case str(text):
            return text
        case [only]:
            block = only
        case {"content": [only], **others} if all(others[name] is None for name in others.keys() - _RESULT_STATES):
            block = only
    match block:
        case {"type": "text", "text": str(text), **others} if not any(other is not None for other in others.values()):
            return text
    return None


def is_whole_notice(text: str) -> bool:
    """Whether a text is like a notice, or a shown value with its path: models paste both as arguments."""
    return replaces_value(text) or _find_shown_base(text) is not None


def replaces_value(text: str) -> bool:
    """Whether a text begins and ends like the notice of a value that is not shown."""
    return any(opening.match(text) and text.endswith(endings) for opening, endings in _NOTICE_FRAMES)


def _find_shown_base(text: str) -> str | None:
    """The base of a value that is shown whole, with its path; None for any other text."""
    is_text = text.endswith(_TEXT_END)
    shown = _SHOWN_TEXT.match(text) if is_text else _SHOWN_LINES.search(text, max(len(text) - _MAX_END, 0))
    return shown["base"] if shown else None


def is_pathless_notice(text: str) -> bool:
    """Whether a text is a notice without its first line, the path, or the line below a shown text.

    Some models paste these as an argument.
    """
    if text in (TEXT_USE, f"{TEXT_USE}\n{SHOWN_END}"):
        return True
    first = text.partition("\n")[0]
    return bool(_PATHLESS_NOTICE.match(first)) and text.endswith(_NOTICE_ENDS) and not find_bases(first)


def find_copied_notice(text: str, notices: Mapping[str, str]) -> str | None:
    """The key of the notice of which a text is a copy, possibly with a few wrong lines; None if that is uncertain.

    Neither the text nor the notices have the line of the path. The first lines, which describe the values, must be
    equal, and more than half of the other lines. Several equally similar notices are uncertain.
    """
    first, *rest = text.strip().split("\n")
    lines = set(rest)
    equal = {
        key: len(lines.intersection(known.split("\n")))
        for key, known in notices.items()
        if known.startswith(f"{first}\n")
    }
    most = max(equal.values(), default=0)
    closest = [key for key in equal if equal[key] == most]
    return closest[0] if len(closest) == 1 and 2 * most > len(lines) else None


def find_notice_bases(text: str) -> frozenset[str]:
    """The bases in a whole notice, without those in the input that one style repeats; empty for any other text.

    A notice with several bases does not stand for a single value. For a value that is shown, only the line with its
    path counts, not the bases in the value itself.
    """
    if shown := _find_shown_base(text):
        return frozenset({shown})
    if not is_whole_notice(text):
        return frozenset()
    first, _, rest = text.partition("\n")
    return find_bases(rest if rest and first.startswith(_INPUT_LINE) else text)


def read_notice_path(text: str) -> MemoryPath | None:
    """The path at the beginning of a whole notice; None for any other text, and for a notice with several bases."""
    bases = find_notice_bases(text)
    if len(bases) != 1:
        return None
    first = parse_wrapped_path(text.partition("\n")[0])
    return first if first and first.base in bases else MemoryPath(next(iter(bases)))

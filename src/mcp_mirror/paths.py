"""Memory paths: `<base>` or `<base>/<RFC 6901 JSON Pointer>`, where `<base>` is `<tool>-<uuid4>`.

A step of the pointer may also be `~#3`, which no JSON Pointer has: the fourth member of an object.

The grammar alone: whether a path leads anywhere is the store's to say.
"""

import re
from dataclasses import dataclass
from urllib.parse import unquote
from uuid import UUID

from mcp_mirror.types import JsonToken

_UUID4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
_PATH = re.compile(rf"(?P<base>(?P<tool>[A-Za-z0-9_-]+)-{_UUID4})(?P<pointer>/.*)?", re.DOTALL)
_ALMOST = re.compile(
    r"[^A-Za-z0-9_]*(?P<tool>[A-Za-z0-9_-]+?)-"
    r"(?P<id>[0-9A-Fa-f]{6,10}(?:(?:-[0-9A-Za-z]{2,14}){3,5}|(?:-[0-9A-Fa-f]{2,14}){1,2}|(?=\.\.|\u2026)))"
    r"(?:/.*|[^A-Za-z0-9_\s-]\S*)?",
    re.DOTALL,
)
"""A path with something before, lost, exchanged or glued to it."""
_MIXED = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])")
"""Digits alone are a date, letters alone a word."""
BASE_PATTERN = rf"[A-Za-z0-9_-]+-{_UUID4}"
"""The pattern of a base, wherever it stands."""
_ANYWHERE = re.compile(BASE_PATTERN)
_CANDIDATES = (
    re.compile(rb"-[0-9A-Fa-f]{6,10}(?:-[0-9A-Za-z]{2}|\.\.|\xe2\x80\xa6|\\u2026)"),
    re.compile(rb"\\u00(?:2[dDfF]|3[0-9]|[46][1-6])"),
)
"""What every path and every text like one holds, written plainly or with escapes; searched at 2 GB/s."""
_POSITION = re.compile(r"~#(0|[1-9][0-9]{0,8})")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_WRAPPING = " \t\r\n'\"`"

SCHEME = "memory://"
URI_TEMPLATE = f"{SCHEME}{{+path}}"
"""The URIs of stored values, and of parts of them."""
LITERAL_PREFIX = "literal:"
"""Put before a memory path, sends the path itself as text instead of the value behind it."""

_REPEATS_INPUT = "The function "

PATH_LINE_PREFIX = "memory_path: "
"""What a path begins its line with below a value that is shown."""
TEXT_PATH_LINE_PREFIX = "text_path: "
"""The same for the path of a text that says more than the value."""
_SHOWN_END = re.compile(
    rf'(?:\A|\n){PATH_LINE_PREFIX}"(?P<base>[A-Za-z0-9_-]+-{_UUID4})"'
    rf'(?:\n{TEXT_PATH_LINE_PREFIX}"[A-Za-z0-9_-]+-{_UUID4}")?'
    r'(?:\n"[A-Za-z0-9_/-]+" [^\n]{1,200}|\nand [0-9,]+ more){0,9}\Z'
)
"""How what the model reads of a stored value that is shown whole ends: its path, that of a text, those of media."""

_NOTICE_FRAMES = (
    (re.compile(rf'"[A-Za-z0-9_-]+-{_UUID4}"\nThis path (?:\([^\n]*\) )?stands for '), "next tool."),
    (re.compile(_REPEATS_INPUT), "as input to another function."),
    (re.compile(rf'\{{"(?:result|memory_path)": "[A-Za-z0-9_-]+-{_UUID4}"'), "}"),
)
"""How each style of notice that is more than the path alone, and what stands for a pruned text, begins and ends."""

PRUNED_LABEL = "pruned"
"""The first part of the paths of texts that were pruned from a conversation."""
MAX_LABEL = 80
"""Characters of a tool's name that a path keeps."""
_LONGEST_END = 4_000
"""Characters of the lines below a shown value: ten at most, each with a path and few words."""


@dataclass(frozen=True, slots=True)
class MemoryPath:
    """A well-formed memory path, decoded."""

    base: str
    tokens: tuple[JsonToken, ...] = ()
    """Keys, and numbers where an object's member is named by its position."""

    def __str__(self) -> str:
        return self.base + "".join(f"/{_written(token)}" for token in self.tokens)

    def child(self, token: str | int) -> "MemoryPath":
        """The path one step below this one."""
        return MemoryPath(self.base, (*self.tokens, str(token)))


def tool_label(tool: str) -> str:
    """A tool's name as it stands in paths: `[A-Za-z0-9_-]` alone, 80 characters at most, never empty."""
    return _UNSAFE.sub("_", tool)[:MAX_LABEL].rstrip("-") or "value"


def new_base(tool: str, identity: UUID) -> str:
    """The base of a new value that `tool` produced."""
    return f"{tool_label(tool)}-{identity}"


def label_of(base: str) -> str:
    """The tool label that a base begins with."""
    return base[:-37]


def parse_path(text: str) -> MemoryPath | None:
    """`text` as a memory path; None if it is not one, to the letter."""
    if not (match := _PATH.fullmatch(text)):
        return None
    pointer = match["pointer"] or ""
    return MemoryPath(match["base"], tuple(_read(token) for token in pointer.split("/")[1:]))


def parse_uri(uri: str) -> MemoryPath | None:
    """The memory path that a URI names; None for every other URI, also one of the same scheme."""
    return parse_path(unquote(uri.removeprefix(SCHEME))) if uri.startswith(SCHEME) else None


def label_of_near_miss(text: str) -> str | None:
    """The tool label of a text that looks like a memory path which was not copied to the letter, else None."""
    match = _ALMOST.fullmatch(text)
    return match["tool"] if match and _MIXED.match(match["id"]) else None


def strip_wrapping(text: str) -> str:
    """`text` without what models put around a path: space, quotes, backticks, the `memory://` scheme."""
    return text.strip(_WRAPPING).removeprefix(SCHEME).strip(_WRAPPING)


def find_bases(text: str) -> frozenset[str]:
    """Every well-formed base that stands anywhere in `text`."""
    return frozenset(_ANYWHERE.findall(text))


def find_candidate_offsets(text: bytes | memoryview) -> list[int]:
    """Where in a JSON text a memory path, even a mistyped one, may stand: a string that is one holds such an offset."""
    return sorted(match.start() for pattern in _CANDIDATES for match in pattern.finditer(text))


def is_whole_notice(text: str) -> bool:
    """Whether a text begins and ends as our notices do: models paste them where a path is wanted."""
    if _SHOWN_END.search(text, max(len(text) - _LONGEST_END, 0)):
        return True
    return any(opening.match(text) and text.endswith(ending) for opening, ending in _NOTICE_FRAMES)


def bases_in_notice(text: str) -> frozenset[str]:
    """The bases that a whole notice of ours speaks of, but for the input that one style repeats; none for another text.

    A notice that holds more than one is no single value's. Below a value that is shown, the last line has the path of
    that value; what the value itself holds does not count.
    """
    if shown := _SHOWN_END.search(text, max(len(text) - _LONGEST_END, 0)):
        return frozenset({shown["base"]})
    if not is_whole_notice(text):
        return frozenset()
    first, _, rest = text.partition("\n")
    return find_bases(rest if rest and first.startswith(_REPEATS_INPUT) else text)


def position_token(position: int) -> str:
    """What names a member of an object by its position, from 0, where its key may not be told.

    No key is written so: in a JSON Pointer `~` stands before 0 or 1 alone.
    """
    return f"~#{position}"


def _written(token: JsonToken) -> str:
    return escape_token(token) if isinstance(token, str) else position_token(token)


def _read(token: str) -> JsonToken:
    match = _POSITION.fullmatch(token)
    return int(match[1]) if match else unescape_token(token)


def escape_token(token: str) -> str:
    """One key as a JSON Pointer token (RFC 6901, section 3)."""
    return token.replace("~", "~0").replace("/", "~1")


def unescape_token(token: str) -> str:
    """The key that a JSON Pointer token stands for (RFC 6901, section 4)."""
    return token.replace("~1", "/").replace("~0", "~")

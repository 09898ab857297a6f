"""Memory paths: `<base>` or `<base>/<RFC 6901 JSON Pointer>`, where `<base>` is `<tool>-<uuid4>`.

A step of the pointer may also be `~#3`, which is not valid in a JSON Pointer: the fourth member of an object.
"""

import re
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple
from urllib.parse import unquote
from uuid import UUID

import msgspec

from mcp_mirror.types import JsonToken

UUID4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
_PATH = re.compile(rf"(?P<base>(?P<tool>[A-Za-z0-9_-]+)-{UUID4})(?P<pointer>/.*)?", re.DOTALL)
_NEAR_MISS = re.compile(
    r"(?:(?i:memory[_ ]?)?(?i:path)\s*[:=])?[^A-Za-z0-9_]*+(?P<tool>[A-Za-z0-9_-]{1,200}?)-"
    r"(?P<id>[0-9A-Fa-f]{6,10}(?:(?:-[0-9A-Za-z]{2,14}){3,5}(?:-[0-9A-Za-z]?)?|(?:-[0-9A-Fa-f]{2,14}){1,2}|(?=\.\.|\u2026)))"
    r"(?:/.*|\[[^\]\n]*\]\S*|[^A-Za-z0-9_\s-]\S*)?",
    re.DOTALL,
)
"""A path with characters added, lost or replaced. Labels are shorter; a longer search takes 0.4 ms a kilobyte."""
_DIGITS_AND_LETTERS = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])")
"""An id of digits only would also match dates, one of letters only would match words."""
BASE_PATTERN = rf"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]+-{UUID4}"
"""The pattern of a base anywhere in a text. It begins where a word begins, so that a search of long words is linear."""
_BASE = re.compile(BASE_PATTERN)
_CANDIDATES = (
    re.compile(rb"-[0-9A-Fa-f]{6,10}(?:-[0-9A-Za-z]{2}|\.\.|\xe2\x80\xa6|\\u2026)"),
    re.compile(rb"\\u00(?:2[dDfF]|3[0-9]|[46][1-6])"),
    re.compile(rb" path (?:\([^\"]{1,200}\) )?stands for "),
)
"""Every path and every near miss contains a match of one of these, with or without JSON escapes, and so does a notice
without its path, and the line below a shown text. Each search runs at 1 to 2 GB/s."""
_POSITION = re.compile(r"~#(0|[1-9][0-9]{0,8})")
_MAX_STEPS = 1000
"""More steps than any value has levels of nesting. The rest of a longer path is part of its last key."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_WRAPPING = " \t\r\n'\"`"

SCHEME = "memory://"
URI_TEMPLATE = f"{SCHEME}{{+path}}"
"""The URIs of stored values and of their parts."""
LITERAL_PREFIX = "literal:"
"""A memory path after this prefix is sent as text instead of being replaced by its value."""

PRUNED_LABEL = "pruned"
"""The first part of the paths of texts that were pruned from a conversation."""
MAX_LABEL = 80
"""Characters of a tool's name in a path."""
_MAX_NAME = 1 << 14
"""Characters of a tool's name that its label depends on."""


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

    def child(self, token: str | int) -> "MemoryPath":
        """The path one step below this one."""
        return MemoryPath(self.base, (*self.tokens, str(token)))


def tool_label(tool: str) -> str:
    """A tool's name as it appears in paths: only `[A-Za-z0-9_-]`, 1 to 80 characters."""
    return _UNSAFE.sub("_", tool[:_MAX_NAME])[:MAX_LABEL].rstrip("-") or "value"


def new_base(tool: str, identity: UUID) -> str:
    """The base of a new value that `tool` produced."""
    return f"{tool_label(tool)}-{identity}"


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


def label_of(base: str) -> str:
    """The tool label of a base."""
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


def label_of_near_miss(text: str) -> str | None:
    """The tool label of a text that resembles a memory path but was copied incorrectly, else None."""
    match = _NEAR_MISS.fullmatch(text)
    return match["tool"] if match and _DIGITS_AND_LETTERS.match(match["id"]) else None


def fold_label(label: str) -> str:
    """The same text for all labels that differ only in case, hyphens and underscores, as models miscopy them."""
    return label.replace("-", "").replace("_", "").casefold()


def strip_wrapping(text: str) -> str:
    """Remove what models put around a path: space, quotes, backticks, the `memory://` scheme."""
    return text.strip(_WRAPPING).removeprefix(SCHEME).strip(_WRAPPING)


def find_bases(text: str) -> frozenset[str]:
    """All well-formed bases in a text."""
    return frozenset(_BASE.findall(text))


def find_candidate_offsets(text: bytes | memoryview) -> list[int]:
    """Offsets in a JSON text of possible memory paths; each string that is a path or a near miss contains one."""
    return sorted(match.start() for pattern in _CANDIDATES for match in pattern.finditer(text))


def has_candidates(text: bytes | memoryview) -> bool:
    """Whether a JSON text contains a possible memory path."""
    for pattern in _CANDIDATES:  # noqa: SIM110  # without a generator, because each call comes here
        if pattern.search(text):
            return True
    return False


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

"""What a notice is written from, and the keys of an object in it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from mcp_mirror.core.amounts import format_count
from mcp_mirror.core.results.captured import Captured
from mcp_mirror.core.results.main_parts import Part, find_path
from mcp_mirror.core.results.outlines import CountItems, outline_hidden, outline_value, show_sentence
from mcp_mirror.core.results.preview import MAX_PREVIEW_TOKENS, name_keys, preview_value
from mcp_mirror.core.value_sizes import Estimate, TokenBudget
from mcp_mirror.paths import FixedBases, NewBases, escape_token, position_token
from mcp_mirror.payload.json_spans import count_items, kind_at
from mcp_mirror.security.sanitize import as_json_string
from mcp_mirror.types import Buffer, Draft, Member, Span

MAX_KEYS_BYTES: Final = 600
"""Bytes of the list of keys."""
MAX_KEY_BYTES: Final = 120
"""Bytes of a key; longer keys are omitted."""
_OMITTED_TOKENS: Final = 20
"""Tokens of a preview reserved for the number of omitted keys."""


class NoticeInput(msgspec.Struct, frozen=True):
    """A stored result, and what else its notice needs."""

    value: Draft
    """The stored value, or the part of it that the notice describes."""
    captured: Captured
    bases: NewBases | FixedBases
    """The bases of the stored value and of its companion."""
    tool: str
    arguments: Buffer
    """The call's arguments as the model wrote them, a JSON object."""
    estimate: Estimate
    """Returns the expected tokens of a text (UTF-8)."""
    count_items: CountItems = count_items
    """Returns the number of items of an array of the value."""
    location: str = ""
    """The place of `value` in the stored value: `/data/stdout`."""
    room: int = MAX_PREVIEW_TOKENS
    """Maximum tokens of the description."""

    @property
    def path(self) -> str:
        """The path of the value, or of the part of it that the notice describes."""
        return f"{self.bases.value}{self.location}"

    @property
    def companion_path(self) -> str | None:
        """The path of the companion, if the notice names it."""
        return self.bases.companion if self.captured.is_named else None

    @property
    def hidden_text(self) -> Draft | None:
        """The companion, if it has texts that are not shown."""
        return self.captured.companion if self.captured.is_text_hidden else None

    def with_members(self, members: Iterable[Member]) -> "NoticeInput":
        """The same with other members of the value."""
        return msgspec.structs.replace(self, value=msgspec.structs.replace(self.value, members=tuple(members)))


def list_keys_and(
    key: str, stored: NoticeInput, room: int, texts: Mapping[Part, str], *, has_sentences: bool = True
) -> str:
    """The keys with their outlines; if this key, whose rows are described, has no room, it is the first one.

    The keys in the only member follow it: the rows may be a small part of it.
    """
    listed = list_keys(stored, room, texts, has_sentences=has_sentences)
    if f", {as_json_string(escape_token(key), MAX_KEY_BYTES)} " in f", {listed}":
        return listed + _name_inner_keys(stored)
    first = stored.with_members(sorted(stored.value.members, key=lambda member: member.key != key))
    shown, _ = format_keys(first, _quote_key, MAX_KEYS_BYTES)
    # It has the number of rows, so it is also listed where a line about other texts leaves no room.
    reserved = _OMITTED_TOKENS + sum(stored.estimate(found.encode()) for found in texts.values())
    needed = reserved + stored.estimate(shown[0].encode()) + 1 if shown else 0
    return list_keys(first, max(room, needed), texts, has_sentences=has_sentences)


def _name_inner_keys(stored: NoticeInput) -> str:
    """The first keys of the only member of an object, in brackets if they are several; empty for any other value."""
    blob, known = stored.value.blob, stored.value.members
    if len(known) != 1 or kind_at(blob, known[0].span.start) != "object":
        return ""
    names = name_keys(memoryview(blob)[known[0].span.start : known[0].span.stop])
    return names if ", " in names else ""


def list_keys(stored: NoticeInput, room: int, texts: Mapping[Part, str], *, has_sentences: bool = True) -> str:
    """The keys with their outlines while there is room, and the paths of texts, which take no room.

    `has_sentences`: sentences are shown as far as room is left.
    """
    fitting, left = format_keys(stored, _quote_key, MAX_KEYS_BYTES)
    room -= _OMITTED_TOKENS + sum(stored.estimate(found.encode()) for found in texts.values())
    listed: list[str] = []
    for formatted in fitting:
        tokens = stored.estimate(formatted.encode()) + 1
        if tokens <= room:  # a short key may follow a long one
            listed.append(formatted)
            room -= tokens
    left += len(fitting) - len(listed)
    if has_sentences:
        listed = _show_sentences(stored, fitting, listed, room)
    for text, found in texts.items():
        if path := find_path(stored.path, text.keys):
            name = as_json_string("/".join(map(escape_token, text.keys)), MAX_KEYS_BYTES)
            described = f'{name} {outline_hidden(stored.value.blob, text.span)} at "{path}"{found}'
            at = next((at for at, formatted in enumerate(listed) if formatted.startswith(f"{name} ")), None)
            if at is None:
                listed.append(described)
                left -= len(text.keys) == 1
            else:
                listed[at] = described
    if left:
        listed.append(f"and {format_count(left, 'more key')}")
    return ", ".join(listed)


def _quote_key(key: str, outline: str) -> str:
    return f"{as_json_string(key, MAX_KEY_BYTES)} {outline}"


def _show_sentences(stored: NoticeInput, outlined: Sequence[str], listed: Sequence[str], room: int) -> list[str]:
    """The listed keys with sentences in place of their shorter outlines while there is room.

    Sentences often say what is missing, or why. `outlined` has all keys, also those that are not listed.
    """
    sentences: dict[str, str] = {}
    whole, _ = format_keys(stored, _quote_key, MAX_KEYS_BYTES, show_sentence)
    for short, long in zip(outlined, whole, strict=False):
        if len(long) <= len(short) or short not in listed:
            continue
        tokens = stored.estimate(long.encode()) - stored.estimate(short.encode())
        if tokens <= room:
            sentences[short] = long
            room -= tokens
    return [sentences.get(formatted, formatted) for formatted in listed]


def describe_text(stored: NoticeInput, text: Part, room: int = 0) -> str:
    """The lines, the format and the errors of a text: ` (498 lines, log, 2 with ERROR from line 37)`.

    Models passed its words in place of its path. With tokens in `room`, the keys or the fields of JSON in the text
    follow.
    """
    part = memoryview(stored.value.blob)[text.span.start : text.span.stop]
    preview = preview_value(part, "text", TokenBudget(stored.estimate, left=room))
    found = preview.summary.split(", ", 2)[2:]  # without kind and size
    if errors := preview.errors:
        found.append(f"{errors.size:,} with {errors.word} from line {errors.number}")
    return f" ({', '.join(found)})" if found else ""


def format_keys(
    stored: NoticeInput,
    format_key: Callable[[str, str], str],
    room: int,
    outline: Callable[[Buffer, Span, CountItems], str] = outline_value,
) -> tuple[list[str], int]:
    """The formatted keys of an object that fit into `room` bytes, and the number of keys left out.

    `format_key` gets key and outline of a member; `outline` returns the outline if the model may see parts of it. Keys
    are escaped as in paths; positions replace them without preview.
    """
    shown: list[str] = []
    for position, member in enumerate(stored.value.members if stored.value.kind == "object" else ()):
        if stored.value.preview and (
            len(member.key) > MAX_KEY_BYTES
            or len(as_json_string(escape_token(member.key), 2 * MAX_KEY_BYTES).encode()) > MAX_KEY_BYTES
        ):
            continue
        token = escape_token(member.key) if stored.value.preview else position_token(position)
        describe = outline if stored.value.preview else outline_hidden
        formatted = format_key(token, describe(stored.value.blob, member.span, stored.count_items))
        room -= len(formatted.encode()) + 2
        if room < 0:
            break
        shown.append(formatted)
    return shown, len(stored.value.members) - len(shown) if stored.value.kind == "object" else 0

"""What the model reads in place of a stored result, or below one that it is shown: one text in one of four styles.

A path ends with a newline or a quote: models glue what follows to a path that ends otherwise. Keys and previews are
text of strangers: they are bounded, and invisible characters are escaped or removed. A notice without a shown value is
under 2 KB, since some clients cut longer texts.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcp_mirror.core.preview import (
    MAX_PREVIEW_TOKENS,
    Estimate,
    Preview,
    count_bytes,
    human_bytes,
    outline_hidden,
    outline_value,
    preview_rows,
    preview_value,
)
from mcp_mirror.paths import PATH_LINE_PREFIX, TEXT_PATH_LINE_PREFIX, escape_token, position_token, unescape_token
from mcp_mirror.payload.json_spans import trim
from mcp_mirror.security.sanitize import as_json_string, cut, sanitize, sanitize_to_lines, strip_invisible
from mcp_mirror.settings.policies import NoticeStyle
from mcp_mirror.types import Buffer, Kind, Member

_KEYS: Final = 600
"""Bytes that the list of keys may take."""
_MORE_TOKENS: Final = 20
"""Tokens of a preview that stay free for how many keys are left out."""
_PAPER_KEYS: Final = 1000
_KEY: Final = 120
"""Bytes of a key that is shown; a longer one is left out."""
_NAME: Final = 120
_ARGUMENTS: Final = 300
_HEAD: Final = 1000
"""Bytes of an error's beginning that are shown, and half as many of its end."""
_BLOCKS: Final = 8
"""Content blocks that are named on their own."""

_USE: Final = "Use it as the argument of the next tool."
_USE_BELOW: Final = "Use it or path/key as argument of next tool."
_USE_ITEM: Final = "Use it or path/0 as argument of next tool."
_STANDS: Final = "This path stands for"
_STRING_OR_SPACE: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\s+')
"""In JSON text: a string, or white space between tokens."""


@dataclass(frozen=True, slots=True)
class ErrorExcerpt:
    """The beginning and the end of an error that is too large to be shown."""

    head: str
    tail: str = ""
    """Empty where the head is all of it."""


@dataclass(frozen=True, slots=True)
class NoticeInput:
    """A stored value as its notice needs it."""

    path: str
    tool: str
    arguments: Buffer
    """The call's arguments as the model gave them, a JSON object."""
    blob: Buffer
    kind: Kind
    estimate: Estimate
    """Expected tokens of a text (UTF-8)."""
    members: tuple[Member, ...] = ()
    shown: str | None = None
    """The value itself, where it fits the inline budget."""
    companion: str | None = None
    """The path of what else the result said."""
    media: tuple[tuple[str, str], ...] = ()
    """Images, recordings and files: the path of each, and what it is."""
    error: ErrorExcerpt | None = None
    preview: bool = True
    """Something of the value may be shown. False: keys by their positions, values by type and size."""
    is_error: bool = False


def write_notice(stored: NoticeInput, style: NoticeStyle) -> str:
    """The notice of a stored result."""
    return _STYLES[style](stored)


def _compact(stored: NoticeInput) -> str:
    """The path first, since models paste the beginning of a notice into an argument; below a shown value, last."""
    named = _named_media(stored)
    if stored.shown is not None:
        gap = "" if not stored.shown or stored.shown.endswith("\n") else "\n"
        text_path = (f'{TEXT_PATH_LINE_PREFIX}"{stored.companion}"',) if stored.companion else ()
        return stored.shown + gap + "\n".join((f'{PATH_LINE_PREFIX}"{stored.path}"', *text_path, *named))
    also = ("The same result's text:", stored.companion) if stored.companion else ()
    return "\n".join((f'"{stored.path}"', *_told(stored), *named, *also, _use(stored)))


def _told(stored: NoticeInput) -> tuple[str, ...]:
    """What the value is, with a preview where one is allowed."""
    if stored.is_error and not stored.preview:
        return (f"{_STANDS} an error ({_outline(stored)}).",)
    if stored.error is not None:
        return (f"{_STANDS} an error ({_outline(stored)}) that begins:", *_excerpt_lines(stored.error))
    if stored.kind == "object" and stored.members:
        return _told_object(stored)
    if not stored.preview or stored.kind == "object":
        return (f"This path ({_outline(stored)}) stands for the result.",)
    shown = _preview(stored)
    return (f"{_STANDS} {shown.summary}{':' if shown.lines else '.'}", *shown.lines)


def _told_object(stored: NoticeInput) -> tuple[str, ...]:
    """The keys of an object and, where it contains a table, the fields of that in the tokens that are left."""
    has_table = stored.preview and preview_rows(stored.blob, stored.members, stored.estimate) is not None
    listed = _listed(stored, MAX_PREVIEW_TOKENS // 2 if has_table else MAX_PREVIEW_TOKENS)
    room = MAX_PREVIEW_TOKENS - stored.estimate(listed.encode())
    rows = preview_rows(stored.blob, stored.members, stored.estimate, room) if has_table else None
    return (f"{_STANDS} object: {listed}.", *((rows.summary, *rows.lines) if rows else ()))


def _preview(stored: NoticeInput) -> Preview:
    return preview_value(stored.blob, stored.kind, stored.estimate)


def _excerpt_lines(error: ErrorExcerpt) -> tuple[str, ...]:
    head = cut(sanitize_to_lines(error.head), _HEAD)
    if not error.tail:
        return (head,)
    # The end is where the cause is: of it the last bytes stay.
    tail = sanitize_to_lines(error.tail).encode()[-_HEAD // 2 :].decode(errors="ignore")
    return (head, "It ends:", tail)


def _named_media(stored: NoticeInput) -> tuple[str, ...]:
    """A line for each image, recording or file."""
    if not stored.preview:
        return ()
    lines = [f'"{path}" {what}' for path, what in stored.media[:_BLOCKS]]
    more = len(stored.media) - _BLOCKS
    return (*lines, *([f"and {more:,} more"] if more > 0 else ()))


def _use(stored: NoticeInput) -> str:
    """How to use the path; `path/key` only where the value has something below it."""
    if stored.kind == "array":
        return _USE_ITEM
    return _USE_BELOW if stored.kind == "object" else _USE


def _listed(stored: NoticeInput, room: int) -> str:
    shown, left = _shown_keys(stored, lambda key, value: f"{as_json_string(f'/{key}', _KEY)} {value}", _KEYS)
    room, fitting = room - _MORE_TOKENS, 0
    for said in shown:
        room -= stored.estimate(said.encode()) + 1
        if room < 0:
            break
        fitting += 1
    left += len(shown) - fitting
    return ", ".join((*shown[:fitting], *([f"and {left:,} more keys"] if left else ())))


def _paper(stored: NoticeInput) -> str:
    given = strip_invisible(str(bytes(stored.arguments[: 2 * _ARGUMENTS]), "utf-8", "ignore"), _ARGUMENTS)
    content = f"\nThe content of the output is:\n{stored.shown}" if stored.shown is not None else ""
    also = f'\nThe text of the same output is stored under the path "{stored.companion}".' if stored.companion else ""
    first = f"The function {strip_invisible(stored.tool, _NAME)} was executed with the input {given}.\n"
    told = _paper_error(stored) or _paper_keys(stored)
    media = "".join(f"\n{line}" for line in _named_media(stored))
    return (
        f'{first}The output was stored in memory under the path "{stored.path}".{told}{content}{media}{also}\n'
        f"{'' if stored.shown is not None else 'Do not look at the content. '}"
        "Give a path, exactly as it is written, as input to another function."
    )


def _paper_error(stored: NoticeInput) -> str:
    if stored.is_error and not stored.preview:
        return "\nThe output is an error."
    if stored.error is None:
        return ""
    return "\n".join(("\nThe output is an error that begins:", *_excerpt_lines(stored.error)))


def _paper_keys(stored: NoticeInput) -> str:
    longest = 2 * _KEY + _NAME
    shown, left = _shown_keys(
        stored, lambda key, _: f"- {as_json_string(f'{stored.path}/{key}', longest)}", _PAPER_KEYS
    )
    listed = "\n".join((*shown, *([f"and {left:,} more"] if left else ())))
    return f"\nThe output is a dictionary whose keys are stored under these paths:\n{listed}" if listed else ""


def _json(stored: NoticeInput) -> str:
    stub: dict[str, Any] = {"result": stored.path, "kind": stored.kind, "size": human_bytes(_size(stored))}
    if stored.shown is None and stored.error is None:
        stub |= _json_preview(stored)
    if stored.error is not None:
        stub["error_begins"] = _json_cut(stored.error.head, _HEAD)
        stub |= {"error_ends": _json_end(stored.error.tail, _HEAD // 2)} if stored.error.tail else {}
    stub |= {"is_error": True} if stored.is_error and not stored.preview else {}
    stub |= {"media": list(_named_media(stored))} if stored.preview and stored.media else {}
    parts = {key: _dumped(value) for key, value in stub.items()}
    parts |= {} if stored.shown is None else {"content": _json_content(stored.shown, stored.kind)}
    parts |= {} if stored.companion is None else {"text_path": _dumped(stored.companion)}
    parts["use"] = _dumped(f"{_STANDS} the result. {_use(stored)}")
    return "{" + ", ".join(f'"{key}": {text}' for key, text in parts.items()) + "}"


def _json_preview(stored: NoticeInput) -> dict[str, Any]:
    if stored.kind == "object":
        shown, left = _shown_keys(stored, lambda key, value: _dumped({unescape_token(key): value}), _KEYS)
        keys = {key: value for pair in shown for key, value in json.loads(pair).items()}
        return ({"keys": keys} if keys else {}) | ({"more_keys": left} if left else {})
    if not stored.preview:
        return {}
    shape = _preview(stored)
    return {"is": shape.summary} | ({"preview": list(shape.lines)} if shape.lines else {})


def _json_content(shown: str, kind: Kind) -> str:
    """A value that is shown: text as a string, JSON as the JSON it is, to the digit, on one line."""
    if kind in ("text", "array") and not _is_json(shown):
        return _dumped(shown)
    if kind == "text":
        return _dumped(shown)
    return _STRING_OR_SPACE.sub(lambda part: sanitize(part[0]) if part[0][0] == '"' else "", shown)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _dumped(value: Any) -> str:
    return sanitize(json.dumps(value, ensure_ascii=False))


def _json_cut(text: str, limit: int) -> str:
    """As much of an error as fits when it is quoted."""
    shown: str = json.loads(f'"{cut(_dumped(sanitize_to_lines(text))[1:-1], limit)}"')
    return shown


def _json_end(text: str, limit: int) -> str:
    """As much of the end of an error as fits when it is quoted."""
    end = sanitize_to_lines(text)[-limit:]
    while len(_dumped(end).encode()) > limit + 2:
        end = end[len(end) // 8 + 1 :]
    return end


def _opaque(stored: NoticeInput) -> str:
    return f"{stored.path}\n"


_STYLES: Final[Mapping[NoticeStyle, Callable[[NoticeInput], str]]] = {
    "compact": _compact,
    "paper": _paper,
    "json": _json,
    "opaque": _opaque,
}


def _size(stored: NoticeInput) -> int:
    return len(stored.blob) if stored.kind == "binary" else count_bytes(stored.blob, trim(stored.blob))


def _outline(stored: NoticeInput) -> str:
    """Kind and size, without a byte of the value."""
    if stored.kind == "binary":
        return f"{stored.kind} {human_bytes(len(stored.blob))}"
    return (
        outline_hidden(stored.blob, trim(stored.blob))
        if stored.kind != "text"
        else f"{human_bytes(_size(stored))} of text"
    )


def _shown_keys(stored: NoticeInput, say: Callable[[str, str], str], room: int) -> tuple[list[str], int]:
    """Each key of an object with what it holds, in the words of `say`, as long as there is room; and how many more.

    Keys are as they stand in paths, or their positions where nothing of the value may be shown.
    """
    shown: list[str] = []
    for position, member in enumerate(stored.members if stored.kind == "object" else ()):
        if stored.preview and (
            len(member.key) > _KEY or len(as_json_string(escape_token(member.key), 2 * _KEY).encode()) > _KEY
        ):
            continue
        token = escape_token(member.key) if stored.preview else position_token(position)
        describe = outline_value if stored.preview else outline_hidden
        said = say(token, describe(stored.blob, member.span))
        room -= len(said.encode()) + 2
        if room < 0:
            break
        shown.append(said)
    return shown, len(stored.members) - len(shown) if stored.kind == "object" else 0

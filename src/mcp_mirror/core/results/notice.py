"""Writes notices: the text that the model reads instead of a stored result or below a shown one, in one of four styles.

A path ends with a newline or a quote, because models append the next characters to a path that ends otherwise. Keys
and previews come from upstreams, so they are bounded and sanitized. A notice without a shown value is under 2 KB,
since some clients cut longer texts.
"""

import json
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

import msgspec

from mcp_mirror.core.amounts import format_bytes
from mcp_mirror.core.results.captured import EXCERPT_BYTES, ErrorExcerpt
from mcp_mirror.core.results.main_parts import (
    Level,
    Part,
    Records,
    find_long_texts,
    find_main_item,
    find_main_part,
    find_only_row,
    find_part,
    find_path,
    read_levels,
)
from mcp_mirror.core.results.notice_keys import (
    MAX_KEY_BYTES,
    MAX_KEYS_BYTES,
    NoticeInput,
    describe_text,
    format_keys,
    list_keys,
    list_keys_and,
)
from mcp_mirror.core.results.outlines import outline_hidden, outline_value
from mcp_mirror.core.results.preview import (
    Preview,
    describe_beside,
    describe_part,
    preview_value,
)
from mcp_mirror.core.value_sizes import TokenBudget, count_bytes
from mcp_mirror.paths import (
    HIDDEN_TEXT,
    PATH_LINE_PREFIX,
    SHOWN_END,
    TEXT_PATH_LINE_PREFIX,
    TEXT_USE,
    unescape_token,
)
from mcp_mirror.payload.json_spans import trim
from mcp_mirror.security.sanitize import as_json_string, cut, sanitize, sanitize_to_lines, strip_invisible
from mcp_mirror.settings.policies import NoticeStyle
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Draft, Kind

_MAX_PAPER_KEYS_BYTES: Final = 1000
_MAX_NAME_BYTES: Final = 120
_MAX_ARGUMENTS_BYTES: Final = 300
_MAX_MEDIA_LINES: Final = 8
"""Media that are listed with a path each."""

_USE: Final = "Use the path as the argument of the next tool."
"""Names no part of the path: models copied `path/key` and `path/0` from earlier words."""
_SUBJECT: Final = "This path stands for"
_PREVIEW: Final = f"{_SUBJECT} the result. Preview, not the result:"
_NOT_THE_PREVIEW: Final = "Use the path as the argument of the next tool, not the preview."
PREVIEW_MARK: Final = "| "
"""Begins each line of a preview. A line without a mark looks like the result, which models then copy."""
_STRING_OR_SPACE: Final = lazy_pattern(r'"(?:[^"\\]|\\.)*"|\s+')
"""A string, or white space between tokens, of JSON text."""


def write_notice(stored: NoticeInput, style: NoticeStyle) -> str:
    """Write the notice of a stored result."""
    return _STYLES[style](stored)


def _write_compact(stored: NoticeInput) -> str:
    """The `compact` notice. The path is first, since models paste the beginning; it is last below shown JSON."""
    if stored.captured.shown is not None:
        return _write_shown(stored, stored.captured.shown)
    beside, room = _describe_companion(stored)
    main, others = _find_main(msgspec.structs.replace(stored, room=room))
    description, instruction = _describe(main)
    listed = {line.partition('": ')[0] for line in description}  # the paths of the items of an array
    media = _describe_media(stored, listed)
    return "\n".join((f'"{main.path}"', *description, *others, *media, *beside, instruction))


def _write_shown(stored: NoticeInput, shown: str) -> str:
    """The value itself, with its path above a text, and below anything else."""
    breaks = len(shown) - len(shown.rstrip("\n"))
    gap = "\n" * (2 - min(breaks, 2)) if shown else ""
    named = _describe_media(stored)
    main, others = _find_main_text(stored) or (stored, ())
    if main.value.kind == "text" and shown and not named and not stored.companion_path:
        return "\n".join((f'"{main.path}"\n\n{shown}{gap[:-1]}', *others, TEXT_USE, SHOWN_END))
    is_outlined = stored.captured.is_paraphrased or stored.captured.main_text_keys
    beside = [f"{_SUBJECT} object: {list_keys(stored, stored.room, {})}."] if is_outlined else []
    beside += [f'{TEXT_PATH_LINE_PREFIX}"{stored.companion_path}"'] if stored.companion_path else []
    if stored.hidden_text:  # otherwise the value looks like the whole result
        text = _preview_hidden_text(stored, stored.hidden_text)
        beside += (f"{HIDDEN_TEXT} {text.summary}", *(f"{PREVIEW_MARK}{line}" for line in text.lines))
    return shown + gap + "\n".join((f'{PATH_LINE_PREFIX}"{stored.path}"', *beside, *named, SHOWN_END))


def _describe_companion(stored: NoticeInput) -> tuple[tuple[str, ...], int]:
    """Return the lines about the text beside structured content, and the tokens that remain for the description."""
    if stored.captured.quoted_texts and stored.value.preview and stored.captured.error is None:
        line = f"The result also has {', '.join(stored.captured.quoted_texts)}."
        return (line,), stored.room - stored.estimate(line.encode())
    if stored.companion_path is None:
        return (), stored.room
    size = ""
    if stored.hidden_text:
        size = f" ({_preview_hidden_text(stored, stored.hidden_text).summary.removeprefix('text, ').partition(';')[0]})"
    return (f"The same result's text{size}:", stored.companion_path), stored.room


def _preview_hidden_text(stored: NoticeInput, text: Draft) -> Preview:
    """The size and format of texts that are not shown, and first and last lines of a single one."""
    if text.kind == "object":
        return Preview(outline_value(text.blob, trim(text.blob), stored.count_items))
    return preview_value(text.blob, text.kind, TokenBudget(stored.estimate, stored.room), stored.count_items, text.text)


def _find_main_text(stored: NoticeInput) -> tuple[NoticeInput, tuple[str, ...]] | None:
    """The text that is the content of a result and most of its object, and lines about the rest; None without one."""
    value, keys = stored.value, stored.captured.main_text_keys
    path = find_path(stored.path, keys)
    if not keys or path is None or not value.preview or stored.captured.error is not None:
        return None
    levels, text = find_part(value.blob, value.members, keys)
    other_keys = list_keys(
        stored.with_members(member for member in value.members if member.key != keys[0]), stored.room // 2, {}
    )
    line = f"The result also has {other_keys}." if other_keys else ""
    room = TokenBudget(stored.estimate, stored.room - stored.estimate(line.encode()))
    beside = describe_beside(value.blob, levels, keys, room)
    main_text = msgspec.structs.replace(value, blob=text, kind="text", members=())
    location = path.removeprefix(stored.path)
    main = msgspec.structs.replace(stored, value=main_text, location=location, room=room.left)
    return main, (*filter(None, (line,)), *beside)


def _find_main(stored: NoticeInput) -> tuple[NoticeInput, tuple[str, ...]]:
    """The one large item of an array of short texts, and a line about these texts; for any other value, the value."""
    if main_text := _find_main_text(stored):
        return main_text
    value = stored.value
    is_shown = value.kind == "array" and value.preview and stored.captured.error is None
    item = find_main_item(value.blob, stored.estimate) if is_shown else None
    if item is None:
        return stored, ()
    line = f"The result also has {', '.join(item.others)}."
    main = msgspec.structs.replace(
        stored,
        value=msgspec.structs.replace(value, blob=item.blob, kind=item.kind, members=item.members),
        location=f"/{item.position}",
        room=stored.room - stored.estimate(line.encode()),
    )
    return main, (line,)


def _describe(stored: NoticeInput) -> tuple[tuple[str, ...], str]:
    """Return the lines that describe the value, with a preview if allowed, and the instruction that fits them."""
    if not stored.value.preview or stored.captured.error is not None or stored.value.kind == "object":
        return _describe_value(stored), _USE
    if lines := _describe_only_row(stored):
        return lines, _USE
    preview = _preview(stored)
    if not preview.lines:
        return (f"{_SUBJECT} {preview.summary}.",), _USE
    marked = (f"{PREVIEW_MARK}{line}" for line in preview.lines)
    return (f"{_PREVIEW} {preview.summary}", *marked), _NOT_THE_PREVIEW


def _describe_value(stored: NoticeInput) -> tuple[str, ...]:
    """The lines that describe an object, an error, or a value of which the model may see no part."""
    if stored.captured.is_error and not stored.value.preview:
        return (f"{_SUBJECT} an error ({_outline(stored)}).",)
    if stored.captured.error is not None:
        return (f"{_SUBJECT} an error ({_outline(stored)}) that begins:", *_excerpt_lines(stored.captured.error))
    if stored.value.kind == "object" and stored.value.members:
        return _describe_object(stored)
    return (f"This path ({_outline(stored)}) stands for the result.",)


def _describe_only_row(stored: NoticeInput) -> tuple[str, ...]:
    """The rows or the paths of the long texts in the one object of an array; nothing for any other array.

    Databases send one row whose cell is a document, or an array of all rows.
    """
    blob = stored.value.blob
    row = find_only_row(blob, trim(blob))
    levels = read_levels(blob, (row,)) if row else ()
    texts = find_long_texts(blob, levels)
    main = find_main_part(blob, levels, has_texts=bool(texts))
    if row is None or (not texts and isinstance(main, Level | None)):
        return ()
    described = msgspec.structs.replace(stored.value, kind="object", members=(row,))
    return _describe_object(msgspec.structs.replace(stored, value=described), "array of 1 object")


def _describe_object(stored: NoticeInput, what: str = "object") -> tuple[str, ...]:
    """The keys of an object, the paths of its long texts and, if it has a table, the fields in the remaining tokens.

    With the path of the object only, models passed the object where a text was needed, and no error says so: an
    object is a valid value of a text argument.
    """
    levels = read_levels(stored.value.blob, stored.value.members) if stored.value.preview else ()
    long = find_long_texts(stored.value.blob, levels)
    main = find_main_part(stored.value.blob, levels, has_texts=bool(long))
    room_for_data = 0 if main else stored.room // 2  # the longest text may contain the rows as JSON
    texts = {text: describe_text(stored, text, 0 if at else room_for_data) for at, text in enumerate(long)}
    if isinstance(main, Part):
        listed = list_keys_and(main.keys[0], stored, stored.room // 2, texts, has_sentences=False)
    else:
        listed = list_keys(stored, stored.room // 2 if main else stored.room, texts, has_sentences=main is None)
    keys_only = listed.replace(stored.path, "")  # the paths of long texts take no room from the fields
    room = TokenBudget(stored.estimate, stored.room - stored.estimate(keys_only.encode()))
    if main is None:
        beside = describe_beside(stored.value.blob, levels, next(iter(texts)).keys, room) if texts else ()
        return (f"{_SUBJECT} {what}: {listed}.", *beside)
    beside = describe_beside(stored.value.blob, levels, main.keys, room)
    line = describe_part(stored.value.blob, main, room, stored.path)
    if not line:
        return (f"{_SUBJECT} {what}: {list_keys(stored, stored.room, texts)}.",)
    # Keys that follow say whether there are more of them; those of records are all alike.
    if not isinstance(main, Records):
        listed = list_keys_and(main.keys[0], stored, stored.room // 2 + room.left, texts)
    return (f"{_SUBJECT} {what}: {listed}.", *beside, line)


def _preview(stored: NoticeInput) -> Preview:
    room = TokenBudget(stored.estimate, stored.room)
    return preview_value(stored.value.blob, stored.value.kind, room, stored.count_items, stored.value.text, stored.path)


def _excerpt_lines(error: ErrorExcerpt) -> tuple[str, ...]:
    head = cut(sanitize_to_lines(error.head), EXCERPT_BYTES)
    if not error.tail:
        return (head,)
    # The cause is at the end, so the last bytes are kept.
    tail = sanitize_to_lines(error.tail).encode()[-EXCERPT_BYTES // 2 :].decode(errors="ignore")
    return (head, "It ends:", tail)


def _describe_media(stored: NoticeInput, listed: AbstractSet[str] = frozenset()) -> tuple[str, ...]:
    """One line for each image, recording or file, and one about links and embedded texts if only some follow.

    Those that follow the notice need no line if a preview has `listed` their paths.
    """
    captured = stored.captured
    base = stored.bases.companion if captured.has_media_beside else stored.bases.value
    media = [
        medium
        for medium in captured.media
        if medium.is_hidden or f'{PREVIEW_MARK}"{base}{medium.pointer}' not in listed
    ]
    lines = [
        f'"{base}{medium.pointer}" {medium.description}{", not shown" if medium.is_hidden else ""}'
        for medium in media[:_MAX_MEDIA_LINES]
    ]
    if more := media[_MAX_MEDIA_LINES:]:
        hidden = sum(medium.is_hidden for medium in more)
        lines.append(f"and {len(more):,} more{f', {hidden:,} of them not shown' if hidden else ''}")
    following, total = captured.other_blocks
    if 0 < following < total:
        lines.append(f"Below are {following:,} of {total:,} links and embedded texts.")
    return tuple(lines)


def _write_paper(stored: NoticeInput) -> str:
    arguments = strip_invisible(
        str(bytes(stored.arguments[: 2 * _MAX_ARGUMENTS_BYTES]), "utf-8", "ignore"), _MAX_ARGUMENTS_BYTES
    )
    content = f"\nThe content of the output is:\n{stored.captured.shown}" if stored.captured.shown is not None else ""
    stored_text = f'\nThe text of the same output is stored under the path "{stored.companion_path}".'
    companion = stored_text if stored.companion_path else ""
    first = f"The function {strip_invisible(stored.tool, _MAX_NAME_BYTES)} was executed with the input {arguments}.\n"
    description = _write_paper_error(stored) or _write_paper_keys(stored)
    media = "".join(f"\n{line}" for line in _describe_media(stored))
    return (
        f'{first}The output was stored in memory under the path "{stored.path}".'
        f"{description}{content}{media}{companion}\n"
        f"{'' if stored.captured.shown is not None else 'Do not look at the content. '}"
        "Give a path, exactly as it is written, as input to another function."
    )


def _write_paper_error(stored: NoticeInput) -> str:
    if stored.captured.is_error and not stored.value.preview:
        return "\nThe output is an error."
    if stored.captured.error is None:
        return ""
    return "\n".join(("\nThe output is an error that begins:", *_excerpt_lines(stored.captured.error)))


def _write_paper_keys(stored: NoticeInput) -> str:
    longest = 2 * MAX_KEY_BYTES + _MAX_NAME_BYTES
    shown, left = format_keys(
        stored, lambda key, _: f"- {as_json_string(f'{stored.path}/{key}', longest)}", _MAX_PAPER_KEYS_BYTES
    )
    listed = "\n".join((*shown, *([f"and {left:,} more"] if left else ())))
    return f"\nThe output is a dictionary whose keys are stored under these paths:\n{listed}" if listed else ""


def _write_json(stored: NoticeInput) -> str:
    captured, error = stored.captured, stored.captured.error
    members: dict[str, Any] = {
        "result": stored.path,
        "kind": stored.value.kind,
        "size": format_bytes(_count_bytes(stored)),
    }
    if error is None and (captured.shown is None or captured.is_paraphrased or captured.main_text_keys):
        members |= _build_json_preview(stored)
    members |= {
        "error_begins": _cut_head(error.head) if error else None,
        "error_ends": _cut_tail(error.tail) if error and error.tail else None,
        "is_error": True if captured.is_error and not stored.value.preview else None,
        "media": list(_describe_media(stored)) or None,
    }
    parts = {key: _dump_json(value) for key, value in members.items() if value is not None}
    if captured.shown is not None:
        parts["content"] = _encode_content(captured.shown, stored.value.kind)
    if stored.companion_path is not None:
        parts["text_path"] = _dump_json(stored.companion_path)
    if stored.hidden_text:
        parts["text"] = _dump_json(_preview_hidden_text(stored, stored.hidden_text).summary)
    parts["use"] = _dump_json(f"{_SUBJECT} the result. {_USE}")
    return "{" + ", ".join(f'"{key}": {text}' for key, text in parts.items()) + "}"


def _build_json_preview(stored: NoticeInput) -> dict[str, Any]:
    if stored.value.kind == "object":
        shown, left = format_keys(stored, lambda key, value: _dump_json({unescape_token(key): value}), MAX_KEYS_BYTES)
        keys = {key: value for pair in shown for key, value in json.loads(pair).items()}
        return ({"keys": keys} if keys else {}) | ({"more_keys": left} if left else {})
    if not stored.value.preview:
        return {}
    shape = _preview(stored)
    return {"is": shape.summary} | ({"preview": list(shape.lines)} if shape.lines else {})


def _encode_content(shown: str, kind: Kind) -> str:
    """A shown value: text, also beside JSON, as a JSON string; JSON unchanged except for white space, on one line."""
    if kind == "text" or not _is_json(shown):
        return _dump_json(shown)
    return _STRING_OR_SPACE.sub(lambda part: sanitize(part[0]) if part[0][0] == '"' else "", shown)


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_int=str)  # Python converts no integer of more than 4,300 digits
    except (ValueError, RecursionError):
        return False
    return True


def _dump_json(value: Any) -> str:
    return sanitize(json.dumps(value, ensure_ascii=False))


def _cut_head(text: str) -> str:
    """The beginning of an error, cut so that it fits when quoted."""
    shown: str = json.loads(f'"{cut(_dump_json(sanitize_to_lines(text))[1:-1], EXCERPT_BYTES)}"')
    return shown


def _cut_tail(text: str) -> str:
    """The end of an error, cut so that it fits when quoted."""
    end = sanitize_to_lines(text)[-EXCERPT_BYTES // 2 :]
    while len(_dump_json(end).encode()) > EXCERPT_BYTES // 2 + 2:
        end = end[len(end) // 8 + 1 :]
    return end


_STYLES: Final[Mapping[NoticeStyle, Callable[[NoticeInput], str]]] = {
    "compact": _write_compact,
    "paper": _write_paper,
    "json": _write_json,
    "opaque": lambda stored: f"{stored.path}\n",
}


def _count_bytes(stored: NoticeInput) -> int:
    return stored.value.text.size if stored.value.text else count_bytes(stored.value.blob)


def _outline(stored: NoticeInput) -> str:
    """Kind and size, without any byte of the value."""
    if stored.value.kind == "binary":
        return f"{stored.value.kind} {format_bytes(len(stored.value.blob))}"
    if stored.value.kind == "text":
        return f"{format_bytes(_count_bytes(stored))} of text"
    return outline_hidden(stored.value.blob, trim(stored.value.blob), stored.count_items)

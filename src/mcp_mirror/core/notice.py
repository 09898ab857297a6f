"""Writes notices: the text that the model reads instead of a stored result or below a shown one, in one of four styles.

A path ends with a newline or a quote, because models append the next characters to a path that ends otherwise. Keys
and previews come from upstreams, so they are bounded and sanitized. A notice without a shown value is under 2 KB,
since some clients cut longer texts.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from mcp_mirror.core.amounts import format_bytes, format_count
from mcp_mirror.core.main_parts import (
    Part,
    Records,
    find_long_texts,
    find_main_item,
    find_main_part,
    find_part,
    find_path,
    read_levels,
)
from mcp_mirror.core.media import NOT_SHOWN
from mcp_mirror.core.outlines import CountItems, outline_hidden, outline_value, show_sentence
from mcp_mirror.core.preview import (
    MAX_PREVIEW_TOKENS,
    Preview,
    TokenBudget,
    describe_beside,
    describe_part,
    preview_value,
)
from mcp_mirror.core.value_sizes import Estimate, count_bytes
from mcp_mirror.paths import (
    HIDDEN_TEXT,
    PATH_LINE_PREFIX,
    SHOWN_END,
    TEXT_PATH_LINE_PREFIX,
    TEXT_USE,
    escape_token,
    position_token,
    unescape_token,
)
from mcp_mirror.payload.json_spans import count_items, trim
from mcp_mirror.security.sanitize import as_json_string, cut, sanitize, sanitize_to_lines, strip_invisible
from mcp_mirror.settings.policies import NoticeStyle
from mcp_mirror.types import Buffer, Draft, Kind, Member, Span, TextSize

_MAX_KEYS_BYTES: Final = 600
"""Bytes of the list of keys."""
_OMITTED_TOKENS: Final = 20
"""Tokens of a preview reserved for the number of omitted keys."""
_MAX_PAPER_KEYS_BYTES: Final = 1000
_MAX_KEY_BYTES: Final = 120
"""Bytes of a key; longer keys are omitted."""
_MAX_NAME_BYTES: Final = 120
_MAX_ARGUMENTS_BYTES: Final = 300
EXCERPT_BYTES: Final = 1000
"""Bytes of an error's beginning; its end gets half as many."""
_MAX_MEDIA_LINES: Final = 8
"""Media that are listed with a path each."""

_USE: Final = "Use the path as the argument of the next tool."
"""Names no part of the path: models copied `path/key` and `path/0` from earlier words."""
_SUBJECT: Final = "This path stands for"
_PREVIEW: Final = f"{_SUBJECT} the result. Preview, not the result:"
_NOT_THE_PREVIEW: Final = "Use the path as the argument of the next tool, not the preview."
_PREVIEW_MARK: Final = "| "
"""Begins each line of a preview. A line without a mark looks like the result, which models then copy."""
_STRING_OR_SPACE: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\s+')
"""A string, or white space between tokens, of JSON text."""


class ErrorExcerpt(msgspec.Struct, frozen=True):
    """The beginning and the end of an error that is too large to be shown."""

    head: str
    tail: str = ""
    """Empty if the head is the whole error."""


class NoticeInput(msgspec.Struct, frozen=True):
    """The properties of a stored value that its notice needs."""

    path: str
    tool: str
    arguments: Buffer
    """The call's arguments as the model wrote them, a JSON object."""
    blob: Buffer
    kind: Kind
    estimate: Estimate
    """Returns the expected tokens of a text (UTF-8)."""
    members: tuple[Member, ...] = ()
    count_items: CountItems = count_items
    """Returns the number of items of an array of the value."""
    text: TextSize | None = None
    """The size of a text; None: the notice measures it."""
    shown: str | None = None
    """The value itself if it fits the inline budget."""
    companion: str | None = None
    hidden_text: Draft | None = None
    """The companion, if it has texts that are not shown."""
    is_retold: bool = False
    """The shown texts say what an object contains, without its keys."""
    main_text: tuple[str, ...] = ()
    """The keys of the text that is most of an object and the content of the result."""
    texts: tuple[str, ...] = ()
    """The texts of the companion, quoted, if they are short; the `compact` notice shows them in place of its path."""
    media: tuple[tuple[str, str], ...] = ()
    """Images, recordings and files: path and description of each."""
    others: tuple[int, int] = (0, 0)
    """The number of links and embedded texts that follow the notice, and of all of them."""
    error: ErrorExcerpt | None = None
    preview: bool = True
    """The notice may show parts of the value. False: only positions, types and sizes."""
    is_error: bool = False
    room: int = MAX_PREVIEW_TOKENS
    """Maximum tokens of the description."""


def write_notice(stored: NoticeInput, style: NoticeStyle) -> str:
    """Write the notice of a stored result."""
    return _STYLES[style](stored)


def _write_compact(stored: NoticeInput) -> str:
    """The `compact` notice. The path is first, since models paste the beginning; it is last below shown JSON."""
    if stored.shown is not None:
        return _write_shown(stored, stored.shown)
    beside, room = _describe_companion(stored)
    main, others = _find_main(msgspec.structs.replace(stored, room=room))
    description, instruction = _describe(main)
    listed = {line.partition('": ')[0] for line in description}
    media = tuple(
        (path, what)
        for path, what in stored.media
        if what.endswith(NOT_SHOWN) or f'{_PREVIEW_MARK}"{path}' not in listed
    )
    named = _describe_media(msgspec.structs.replace(stored, media=media))
    return "\n".join((f'"{main.path}"', *description, *others, *named, *beside, instruction))


def _write_shown(stored: NoticeInput, shown: str) -> str:
    """The value itself, with its path above a text, and below anything else."""
    breaks = len(shown) - len(shown.rstrip("\n"))
    gap = "\n" * (2 - min(breaks, 2)) if shown else ""
    named = _describe_media(stored)
    main, others = _find_main_text(stored) or (stored, ())
    if main.kind == "text" and shown and not named and not stored.companion:
        return "\n".join((f'"{main.path}"\n\n{shown}{gap[:-1]}', *others, TEXT_USE, SHOWN_END))
    is_outlined = stored.is_retold or stored.main_text
    beside = [f"{_SUBJECT} object: {_list_keys(stored, stored.room, {})}."] if is_outlined else []
    beside += [f'{TEXT_PATH_LINE_PREFIX}"{stored.companion}"'] if stored.companion else []
    if stored.hidden_text:  # otherwise the value looks like the whole result
        text = _preview_hidden_text(stored, stored.hidden_text)
        beside += (f"{HIDDEN_TEXT} {text.summary}", *(f"{_PREVIEW_MARK}{line}" for line in text.lines))
    return shown + gap + "\n".join((f'{PATH_LINE_PREFIX}"{stored.path}"', *beside, *named, SHOWN_END))


def _describe_companion(stored: NoticeInput) -> tuple[tuple[str, ...], int]:
    """Return the lines about the text beside structured content, and the tokens that remain for the description."""
    if stored.texts and stored.preview and stored.error is None:
        line = f"The result also has {', '.join(stored.texts)}."
        return (line,), stored.room - stored.estimate(line.encode())
    if stored.companion is None:
        return (), stored.room
    size = ""
    if stored.hidden_text:
        size = f" ({_preview_hidden_text(stored, stored.hidden_text).summary.removeprefix('text, ').partition(';')[0]})"
    return (f"The same result's text{size}:", stored.companion), stored.room


def _preview_hidden_text(stored: NoticeInput, text: Draft) -> Preview:
    """The size and format of texts that are not shown, and first and last lines of a single one."""
    if text.kind == "object":
        return Preview(outline_value(text.blob, trim(text.blob), stored.count_items))
    return preview_value(text.blob, text.kind, TokenBudget(stored.estimate, stored.room), stored.count_items, text.text)


def _find_main_text(stored: NoticeInput) -> tuple[NoticeInput, tuple[str, ...]] | None:
    """The text that is the content of a result and most of its object, and lines about the rest; None without one."""
    path, keys = find_path(stored.path, stored.main_text), stored.main_text
    if not keys or path is None or not stored.preview or stored.error is not None:
        return None
    levels, text = find_part(stored.blob, stored.members, keys)
    others = tuple(member for member in stored.members if member.key != keys[0])
    listed = _list_keys(msgspec.structs.replace(stored, members=others), stored.room // 2, {})
    line = f"The result also has {listed}." if listed else ""
    room = TokenBudget(stored.estimate, stored.room - stored.estimate(line.encode()))
    beside = describe_beside(stored.blob, levels, keys, room)
    main = msgspec.structs.replace(stored, path=path, blob=text, kind="text", members=(), room=room.left)
    return main, (*filter(None, (line,)), *beside)


def _find_main(stored: NoticeInput) -> tuple[NoticeInput, tuple[str, ...]]:
    """The one large item of an array of short texts, and a line about these texts; for any other value, the value."""
    if main_text := _find_main_text(stored):
        return main_text
    is_shown = stored.kind == "array" and stored.preview and stored.error is None
    main = find_main_item(stored.blob, stored.estimate) if is_shown else None
    if main is None:
        return stored, ()
    others = f"The result also has {', '.join(main.others)}."
    item = msgspec.structs.replace(
        stored,
        path=f"{stored.path}/{main.position}",
        blob=main.blob,
        kind=main.kind,
        members=main.members,
        room=stored.room - stored.estimate(others.encode()),
    )
    return item, (others,)


def _describe(stored: NoticeInput) -> tuple[tuple[str, ...], str]:
    """Return the lines that describe the value, with a preview if allowed, and the instruction that fits them."""
    if not stored.preview or stored.error is not None or stored.kind == "object":
        return _describe_value(stored), _USE
    shown = _preview(stored)
    if shown.lines:
        return (f"{_PREVIEW} {shown.summary}", *(f"{_PREVIEW_MARK}{line}" for line in shown.lines)), _NOT_THE_PREVIEW
    return (f"{_SUBJECT} {shown.summary}.",), _USE


def _describe_value(stored: NoticeInput) -> tuple[str, ...]:
    """The lines that describe an object, an error, or a value of which the model may see no part."""
    if stored.is_error and not stored.preview:
        return (f"{_SUBJECT} an error ({_outline(stored)}).",)
    if stored.error is not None:
        return (f"{_SUBJECT} an error ({_outline(stored)}) that begins:", *_excerpt_lines(stored.error))
    if stored.kind == "object" and stored.members:
        return _describe_object(stored)
    return (f"This path ({_outline(stored)}) stands for the result.",)


def _describe_object(stored: NoticeInput) -> tuple[str, ...]:
    """The keys of an object, the paths of its long texts and, if it has a table, the fields in the remaining tokens.

    With the path of the object only, models passed the object where a text was needed, and no error says so: an
    object is a valid value of a text argument.
    """
    levels = read_levels(stored.blob, stored.members) if stored.preview else ()
    texts = {text: _describe_text(stored, text) for text in find_long_texts(stored.blob, levels)}
    main = find_main_part(stored.blob, levels, has_texts=bool(texts))
    listed = _list_keys(stored, stored.room // 2 if main else stored.room, texts, has_sentences=main is None)
    keys_only = listed.replace(stored.path, "")  # the paths of long texts take no room from the fields
    room = TokenBudget(stored.estimate, stored.room - stored.estimate(keys_only.encode()))
    if main is None:
        beside = describe_beside(stored.blob, levels, next(iter(texts)).keys, room) if texts else ()
        return (f"{_SUBJECT} object: {listed}.", *beside)
    beside = describe_beside(stored.blob, levels, main.keys, room)
    line = describe_part(stored.blob, main, room, stored.path)
    if not line:
        return (f"{_SUBJECT} object: {_list_keys(stored, stored.room, texts)}.",)
    # Keys that follow say whether there are more of them; those of records are all alike.
    if not isinstance(main, Records):
        listed = _list_keys_and(main.keys[0], stored, stored.room // 2 + room.left, texts)
    return (f"{_SUBJECT} object: {listed}.", *beside, line)


def _preview(stored: NoticeInput) -> Preview:
    room = TokenBudget(stored.estimate, stored.room)
    return preview_value(stored.blob, stored.kind, room, stored.count_items, stored.text, stored.path)


def _excerpt_lines(error: ErrorExcerpt) -> tuple[str, ...]:
    head = cut(sanitize_to_lines(error.head), EXCERPT_BYTES)
    if not error.tail:
        return (head,)
    # The cause is at the end, so the last bytes are kept.
    tail = sanitize_to_lines(error.tail).encode()[-EXCERPT_BYTES // 2 :].decode(errors="ignore")
    return (head, "It ends:", tail)


def _describe_media(stored: NoticeInput) -> tuple[str, ...]:
    """One line for each image, recording or file, and one about links and embedded texts if only some follow."""
    lines = [f'"{path}" {what}' for path, what in stored.media[:_MAX_MEDIA_LINES]]
    if more := stored.media[_MAX_MEDIA_LINES:]:
        hidden = sum(what.endswith(NOT_SHOWN) for _, what in more)
        lines.append(f"and {len(more):,} more{f', {hidden:,} of them{NOT_SHOWN[1:]}' if hidden else ''}")
    following, total = stored.others
    if 0 < following < total:
        lines.append(f"Below are {following:,} of {total:,} links and embedded texts.")
    return tuple(lines)


def _list_keys_and(key: str, stored: NoticeInput, room: int, texts: Mapping[Part, str]) -> str:
    """The keys with their outlines; if this key, whose rows are described, has no room, it is the first one."""
    listed = _list_keys(stored, room, texts)
    if f", {as_json_string(escape_token(key), _MAX_KEY_BYTES)} " in f", {listed}":
        return listed
    members = sorted(stored.members, key=lambda member: member.key != key)
    return _list_keys(msgspec.structs.replace(stored, members=tuple(members)), room, texts)


def _list_keys(stored: NoticeInput, room: int, texts: Mapping[Part, str], *, has_sentences: bool = True) -> str:
    """The keys with their outlines while there is room, and the paths of texts, which take no room.

    `has_sentences`: sentences are shown as far as room is left.
    """
    shown, left = _format_keys(stored, _quote_key, _MAX_KEYS_BYTES)
    room -= _OMITTED_TOKENS + sum(stored.estimate(found.encode()) for found in texts.values())
    listed: list[str] = []
    for formatted in shown:
        tokens = stored.estimate(formatted.encode()) + 1
        if tokens <= room:  # a short key may follow a long one
            listed.append(formatted)
            room -= tokens
    left += len(shown) - len(listed)
    if has_sentences:
        _show_sentences(stored, listed, room)
    for text, found in texts.items():
        if path := find_path(stored.path, text.keys):
            name = as_json_string("/".join(map(escape_token, text.keys)), _MAX_KEYS_BYTES)
            described = f'{name} {outline_hidden(stored.blob, text.span)} at "{path}"{found}'
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
    return f"{as_json_string(key, _MAX_KEY_BYTES)} {outline}"


def _show_sentences(stored: NoticeInput, listed: list[str], room: int) -> None:
    """Show sentences in place of their outlines while there is room: they often say what is missing, or why."""
    outlined, _ = _format_keys(stored, _quote_key, _MAX_KEYS_BYTES)
    whole, _ = _format_keys(stored, _quote_key, _MAX_KEYS_BYTES, show_sentence)
    for short, long in zip(outlined, whole, strict=False):
        tokens = stored.estimate(long.encode()) - stored.estimate(short.encode())
        if short != long and short in listed and tokens <= room:
            listed[listed.index(short)] = long
            room -= tokens


def _describe_text(stored: NoticeInput, text: Part) -> str:
    """The lines and the format of a text: ` (498 lines, source code)`. Models passed its words in place of its path."""
    part = memoryview(stored.blob)[text.span.start : text.span.stop]
    summary = preview_value(part, "text", TokenBudget(stored.estimate, left=0)).summary
    found = summary.split(", ", 2)[2:]  # without kind and size
    return f" ({found[0]})" if found else ""


def _write_paper(stored: NoticeInput) -> str:
    arguments = strip_invisible(
        str(bytes(stored.arguments[: 2 * _MAX_ARGUMENTS_BYTES]), "utf-8", "ignore"), _MAX_ARGUMENTS_BYTES
    )
    content = f"\nThe content of the output is:\n{stored.shown}" if stored.shown is not None else ""
    stored_text = f'\nThe text of the same output is stored under the path "{stored.companion}".'
    companion = stored_text if stored.companion else ""
    first = f"The function {strip_invisible(stored.tool, _MAX_NAME_BYTES)} was executed with the input {arguments}.\n"
    description = _write_paper_error(stored) or _write_paper_keys(stored)
    media = "".join(f"\n{line}" for line in _describe_media(stored))
    return (
        f'{first}The output was stored in memory under the path "{stored.path}".'
        f"{description}{content}{media}{companion}\n"
        f"{'' if stored.shown is not None else 'Do not look at the content. '}"
        "Give a path, exactly as it is written, as input to another function."
    )


def _write_paper_error(stored: NoticeInput) -> str:
    if stored.is_error and not stored.preview:
        return "\nThe output is an error."
    if stored.error is None:
        return ""
    return "\n".join(("\nThe output is an error that begins:", *_excerpt_lines(stored.error)))


def _write_paper_keys(stored: NoticeInput) -> str:
    longest = 2 * _MAX_KEY_BYTES + _MAX_NAME_BYTES
    shown, left = _format_keys(
        stored, lambda key, _: f"- {as_json_string(f'{stored.path}/{key}', longest)}", _MAX_PAPER_KEYS_BYTES
    )
    listed = "\n".join((*shown, *([f"and {left:,} more"] if left else ())))
    return f"\nThe output is a dictionary whose keys are stored under these paths:\n{listed}" if listed else ""


def _write_json(stored: NoticeInput) -> str:
    members: dict[str, Any] = {"result": stored.path, "kind": stored.kind, "size": format_bytes(_count_bytes(stored))}
    if stored.error is None and (stored.shown is None or stored.is_retold or stored.main_text):
        members |= _build_json_preview(stored)
    if stored.error is not None:
        members["error_begins"] = _cut_head(stored.error.head)
        members |= {"error_ends": _cut_tail(stored.error.tail)} if stored.error.tail else {}
    members |= {"is_error": True} if stored.is_error and not stored.preview else {}
    members |= {"media": media} if (media := list(_describe_media(stored))) else {}
    parts = {key: _dump_json(value) for key, value in members.items()}
    parts |= {} if stored.shown is None else {"content": _encode_content(stored.shown, stored.kind)}
    parts |= {} if stored.companion is None else {"text_path": _dump_json(stored.companion)}
    if stored.hidden_text:
        parts["text"] = _dump_json(_preview_hidden_text(stored, stored.hidden_text).summary)
    parts["use"] = _dump_json(f"{_SUBJECT} the result. {_USE}")
    return "{" + ", ".join(f'"{key}": {text}' for key, text in parts.items()) + "}"


def _build_json_preview(stored: NoticeInput) -> dict[str, Any]:
    if stored.kind == "object":
        shown, left = _format_keys(stored, lambda key, value: _dump_json({unescape_token(key): value}), _MAX_KEYS_BYTES)
        keys = {key: value for pair in shown for key, value in json.loads(pair).items()}
        return ({"keys": keys} if keys else {}) | ({"more_keys": left} if left else {})
    if not stored.preview:
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
    return stored.text.size if stored.text else count_bytes(stored.blob)


def _outline(stored: NoticeInput) -> str:
    """Kind and size, without any byte of the value."""
    if stored.kind == "binary":
        return f"{stored.kind} {format_bytes(len(stored.blob))}"
    if stored.kind == "text":
        return f"{format_bytes(_count_bytes(stored))} of text"
    return outline_hidden(stored.blob, trim(stored.blob), stored.count_items)


def _format_keys(
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
    for position, member in enumerate(stored.members if stored.kind == "object" else ()):
        if stored.preview and (
            len(member.key) > _MAX_KEY_BYTES
            or len(as_json_string(escape_token(member.key), 2 * _MAX_KEY_BYTES).encode()) > _MAX_KEY_BYTES
        ):
            continue
        token = escape_token(member.key) if stored.preview else position_token(position)
        describe = outline if stored.preview else outline_hidden
        formatted = format_key(token, describe(stored.blob, member.span, stored.count_items))
        room -= len(formatted.encode()) + 2
        if room < 0:
            break
        shown.append(formatted)
    return shown, len(stored.members) - len(shown) if stored.kind == "object" else 0

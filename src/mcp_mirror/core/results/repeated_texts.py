"""Finds the texts beside structured content that only repeat it in another form, so that the model reads it once.

Servers send a sentence and the JSON text of the content, in one text or two, JSON in a code block, or a text for each
row. Some write members that are null, or that their output schema does not list, only in the text. Others write the
content in words: a list in Markdown, or the output of a program below its exit code.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from mcp_mirror.core.results.content_comparison import COMPARED_BYTES, parse_exact
from mcp_mirror.core.texts.embedded_json import find_embedded_json
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer

_MAX_TEXTS: Final = 1_000
"""Texts of a result that are compared; results with more texts keep all."""
_MAX_STARTS: Final = 32
"""Texts that may be the first of those for the items of an array: a few sentences precede them."""
_MAX_MEMBERS: Final = 32
"""Members of an object that they are compared with."""
_MIN_STRING: Final = 100
"""Characters of the shortest value or member that counts as repeated: a text such as `yes` may have its own meaning."""
_MIN_SAVED: Final = 100
"""Bytes of JSON that texts with the same words must save, since the keys are shown below them."""
_MAX_SHORT_MEMBER: Final = 40
"""Characters of a text that a notice has in its list of keys; numbers and the like are shorter."""
_MAX_SHORT_MEMBERS: Final = 8
_WORD: Final = lazy_pattern(r"\w+")
_CODE_BLOCK: Final = lazy_pattern(r"\A\s*```\w*[ \t]*\n(.*?)\n?```\s*\Z", re.DOTALL)
"""A text that is one code block of Markdown."""
_OPENING_FENCE: Final = lazy_pattern(r"```\w*\Z")


class OtherTexts(NamedTuple):
    """The texts that contain more than structured content, or something else."""

    texts: tuple[Buffer, ...]
    """JSON strings: whole texts, or the words around JSON that repeats a member."""
    include_value: bool = False
    """One of them contains the whole content, and perhaps further members."""
    are_paraphrase: bool = False
    """All texts of the result together have the words of the content, but not its keys."""


def find_other_texts(value: Buffer, texts: Sequence[Buffer], max_paraphrase: int = COMPARED_BYTES) -> OtherTexts:
    """Find the texts that do not only repeat a value or one of its members; several texts may repeat an array.

    Of texts with at most `max_paraphrase` bytes, the words are compared too.
    """
    if len(texts) > _MAX_TEXTS or len(value) + sum(map(len, texts)) > COMPARED_BYTES:
        return OtherTexts(tuple(texts))
    content = _parse(bytes(value))
    members = islice(content.values(), _MAX_MEMBERS) if isinstance(content, dict) else ()
    parts = [content, *members]
    decoded = [msgspec.json.decode(literal, type=str) for literal in texts]
    repeated = _find_repeated(content, parts, decoded)
    others = [literal for at, literal in enumerate(texts) if at not in repeated]
    kept: list[Buffer] = []
    for literal in others:
        json_text = find_embedded_json(literal)
        if json_text is None:
            kept.append(literal)
            continue
        embedded = _parse(json_text)
        if _includes(embedded, content):
            return OtherTexts(tuple(others), include_value=True)
        kept.append(_remove_json(literal, json_text) if embedded in parts else literal)
    size = sum(map(len, texts))
    is_shorter = size <= max_paraphrase and size + _MIN_SAVED < len(value) + sum(map(len, kept))
    return OtherTexts(tuple(kept), are_paraphrase=is_shorter and _are_paraphrase(decoded, content))


def _find_repeated(content: Any, parts: Sequence[Any], texts: Sequence[str]) -> set[int]:
    """The positions of the texts that repeat the content, one of its parts, or all items of one of them."""
    parsed = [_read_text(text) for text in texts]
    repeated = set(_find_alike(parsed, content))
    for candidates in (parsed, texts):  # JSON text may repeat an object or array, or a string with this text
        repeated.update(at for at, text in enumerate(candidates) if text in parts and _is_distinct(text))
        repeated.update(*(_find_run(candidates, part) for part in parts if isinstance(part, list)))
    return repeated


def _are_paraphrase(texts: Sequence[str], content: Any) -> bool:
    """Whether texts have each word of a member of an object as often as it has, apart from a few short members.

    JSON has the words of an object at other places.
    """
    if any(
        isinstance(_read_text(text), dict | list) or find_embedded_json(msgspec.json.encode(text)) for text in texts
    ):
        return False
    members = list(content.values()) if isinstance(content, dict) else []
    short = [
        value for value in members if not isinstance(value, dict | list) and len(_write(value)) <= _MAX_SHORT_MEMBER
    ]
    are_listed = len(short) <= min(_MAX_SHORT_MEMBERS, len(members) - 1)
    available = Counter(_list_words([*texts]))
    needed = [Counter(_list_words(value)) for value in members if not (are_listed and value in short)]
    return any(needed) and all(words <= available for words in needed)


def _list_words(value: Any) -> Iterator[str]:
    """The words of the texts and numbers in a value, in any order."""
    pending = [value]
    while pending:
        inner = pending.pop()
        if isinstance(inner, dict | list):
            pending.extend(inner.values() if isinstance(inner, dict) else inner)
        else:
            yield from _WORD.findall(_write(inner).casefold())


def _write(scalar: Any) -> str:
    """A text, a number or the like as a text has it; nothing for null."""
    if scalar is None:
        return ""
    if isinstance(scalar, bool):
        return str(scalar).lower()
    return scalar if isinstance(scalar, str) else str(scalar[1])


def _remove_json(literal: Buffer, json_text: bytes) -> Buffer:
    """A text, a JSON string, without the JSON in it: `"Found 2 rows: [1, 2]"` becomes `"Found 2 rows:"`.

    The text remains as it is without words around the JSON, and if the JSON is only in its literal, with escapes.
    """
    above, found, below = msgspec.json.decode(literal, type=str).partition(json_text.decode())
    above, below = above.rstrip(), below.lstrip()
    if fence := _OPENING_FENCE.search(above):
        above, below = above[: fence.start()], below.removeprefix("```")
    words = "\n".join(filter(None, (above.strip(), below.strip())))
    return msgspec.json.encode(words) if found and words else literal


def _read_text(text: str) -> Any:
    """The object or array in a text, which may be a code block, or the text itself."""
    block = _CODE_BLOCK.match(text)
    parsed = _parse(block[1] if block else text)
    return parsed if isinstance(parsed, dict | list) else text


def _is_distinct(value: Any) -> bool:
    return not isinstance(value, str) or len(value) >= _MIN_STRING


def _find_alike(parsed: Sequence[Any], value: Any) -> Sequence[int]:
    """The positions of texts that equal an object or array apart from members that are null."""
    if not isinstance(value, dict | list):
        return ()
    keys = _list_keys(value)
    candidates = [at for at, text in enumerate(parsed) if type(text) is type(value) and _list_keys(text) == keys]
    try:
        expected = _omit_nulls(value) if candidates else None
        return [at for at in candidates if _omit_nulls(parsed[at]) == expected]
    except RecursionError:
        return ()


def _list_keys(value: dict[str, Any] | list[Any]) -> set[str] | int:
    """The keys of an object without those of null members, or the number of items of an array."""
    return len(value) if isinstance(value, list) else {key for key, member in value.items() if member is not None}


def _omit_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _omit_nulls(member) for key, member in value.items() if member is not None}
    return [*map(_omit_nulls, value)] if isinstance(value, list) else value


def _includes(whole: Any, part: Any) -> bool:
    """Whether an object or array has all of another one, at the same places."""
    try:
        return _has_all(whole, part)
    except RecursionError:
        return False


def _has_all(whole: Any, part: Any) -> bool:
    """Whether a value equals another one, apart from further members of its objects."""
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(key in whole and _has_all(whole[key], member) for key, member in part.items())
    if isinstance(whole, list) and isinstance(part, list):
        return len(whole) == len(part) and all(map(_has_all, whole, part))
    return bool(whole == part)


def _find_run(texts: Sequence[Any], items: Sequence[Any]) -> range:
    """The positions of the first run of texts that repeat all items of an array, in order; empty without one."""
    size = len(items)
    if not size or (size == 1 and not _is_distinct(items[0])):
        return range(0)
    for start in range(min(len(texts) - size + 1, _MAX_STARTS)):
        if texts[start : start + size] == items:
            return range(start, start + size)
    return range(0)


def _parse(text: str | bytes) -> Any:
    """The exact value of JSON text; a new object, which equals nothing, for any other text."""
    try:
        return parse_exact(text)
    except (ValueError, ArithmeticError, RecursionError):
        return object()

"""TOML, edited with `tomlkit`, which keeps comments and layout."""

import copy
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, ClassVar, Final, NamedTuple

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable

from mcp_mirror.cli.install.formats import document
from mcp_mirror.cli.install.formats.document import UNSAFE, Document, Edit, Location, look_up
from mcp_mirror.errors import ConfigError
from mcp_mirror.system.patterns import lazy_pattern

_HEADER: Final = lazy_pattern(r"^[ \t]*\[[^\r\n]*", re.MULTILINE)
_EMPTY_LINE: Final = lazy_pattern(r"(?<=\n)\r?\n\Z")
_COMMENTS: Final = lazy_pattern(r"^(?:[ \t]*(?:#[^\r\n]*)?(?:\r?\n|\Z))+\Z", re.MULTILINE)
"""The comments and empty lines at the end of a table."""


_Comments = dict[Location | None, str]
"""The comments and empty lines before tables, by their keys; None: after the last of the tables."""


class TomlDocument(Document):
    """A TOML file."""

    name: ClassVar[str] = "TOML"

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._text = data[len(self._mark) :].decode()
        self.value: Any = tomllib.loads(self._text)

    def find_problem(self, at: Location) -> str | None:
        """Return whether `tomlkit` cannot reproduce the tables of the value, or the file if it has no table."""
        start, stop = _locate(self._text, at)
        text = self._text[start:stop]
        try:
            return None if tomlkit.dumps(tomlkit.parse(text)) == text else UNSAFE
        except (TOMLKitError, ValueError):
            return UNSAFE

    def _write(self, edits: Iterable[Edit]) -> bytes:
        text, new_tables = self._text, ""
        try:
            for edit in edits:
                if isinstance(edit, document.Add) and edit.after is None:
                    table = {edit.key: edit.value}
                    for step in reversed(edit.at):
                        table = {str(step): table}
                    new_tables += "\n" + tomlkit.dumps(table)
                else:
                    text = _apply(text, edit)
        except (TOMLKitError, LookupError, TypeError, AttributeError):
            raise ConfigError(UNSAFE) from None
        if new_tables:
            text = text.rstrip("\r\n") + "\n" + new_tables
        if "\r\n" in self._text and "\n" not in self._text.replace("\r\n", ""):
            text = text.replace("\r\n", "\n").replace("\n", "\r\n")
        return text.encode()

    def read_tables(self, at: Location) -> str:
        """Return the text of a table with the tables below it; empty if it has no header of its own."""
        tables = [*_find_tables(self._text, at).values()]
        return self._text[tables[0].start : tables[-1].end] if tables else ""

    def read_table(self, at: Location) -> Any:
        """Return a table with its comments and layout."""
        return _walk(tomlkit.parse(self._text), at)


def _locate(text: str, at: Location) -> tuple[int, int]:
    """Return the span of the innermost table with a header around a location, with the tables below it; else all."""
    for size in range(len(at), 0, -1):
        if tables := [*_find_tables(text, at[:size]).values()]:
            return tables[0].start, tables[-1].end
    return 0, len(text)


def _apply(text: str, edit: Edit) -> str:
    """Return the text with an edit, of which `tomlkit` does not get the comments and tables that it would move."""
    if isinstance(edit, document.Remove) and (place := _find_tables(text, edit.at).get(edit.at)):
        empty = _EMPTY_LINE.search(text, 0, place.start)
        return text[: empty.start() if empty else place.start] + text[place.end :]
    if isinstance(edit, document.Restore) and (restored := _restore_tables(text, edit)):
        return restored
    if isinstance(edit, document.Put) and isinstance(edit.value, dict):
        text, comments = _cut_comments(text, edit.at)
        return _paste_comments(_edit_tables(text, edit), edit.at, comments)
    return _edit_tables(text, edit)


def _edit_tables(text: str, edit: Edit) -> str:
    """Return the text with an edit by `tomlkit`, which would move other tables, so it reads only some."""
    start, stop = _locate(text, edit.at)
    root = tomlkit.parse(text[start:stop])
    match edit:
        case document.Put(at, value):
            _put(root, at, value)
        case document.Restore(at, source, source_at):
            assert isinstance(source, TomlDocument)  # noqa: S101  # the same file, earlier
            _restore(root, at, source.read_table(source_at))
        case document.Add(at, key, value, str(after)):
            _add(_walk(root, at), key, value, after)
        case document.Remove(at):
            del _walk(root, at[:-1])[at[-1]]
        case document.Prepend(at, new):
            _walk(root, at[:-1])[at[-1]] = tomlkit.value(_prepend(_walk(root, at).as_string(), new))
        case document.DropFirst(at, count):
            array = _walk(root, at)
            for _ in range(count):
                del array[0]
    return text[:start] + tomlkit.dumps(root) + text[stop:]


class _TableSpan(NamedTuple):
    """The span of a table with a header of its own, as offsets."""

    start: int
    end: int
    """After its last key; the next line may be a comment."""
    next: int
    """The next header, or the end of the text."""


def _find_tables(text: str, at: Location) -> dict[Location, _TableSpan]:
    """Return a table and the tables below it that follow."""
    found: dict[Location, _TableSpan] = {}
    for header in _HEADER.finditer(text):
        keys = _read_header(header[0])
        if keys == at or (found and keys[: len(at)] == at):
            following = _HEADER.search(text, header.end())
            stop = following.start() if following else len(text)
            rest = _COMMENTS.search(text, header.end(), stop)
            found[keys] = _TableSpan(header.start(), rest.start() if rest else stop, stop)
        elif found:
            break
    return found


def _cut_comments(text: str, at: Location) -> tuple[str, _Comments]:
    """Return the text without the comments after a table and the tables below it, and these."""
    comments: _Comments = {}
    following: Location | None = None
    for keys, place in reversed(_find_tables(text, at).items()):
        comments[following] = text[place.end : place.next]
        text, following = text[: place.end] + text[place.next :], keys
    return text, comments


def _paste_comments(text: str, at: Location, comments: _Comments) -> str:
    """Return the text with comments before the tables that are still there, and after the last one."""
    for following, comment in comments.items():
        tables = _find_tables(text, at)
        if following in tables:
            text = f"{text[: tables[following].start]}{comment}{text[tables[following].start :]}"
        elif following is None and tables:
            *_, last = tables.values()
            text = f"{text[: last.end]}{comment}{text[last.end :]}"
    return text


def _restore_tables(text: str, edit: document.Restore) -> str:
    """Return the text with a table and the tables below it as in the source; empty if they do not follow each other."""
    assert isinstance(edit.source, TomlDocument)  # noqa: S101  # the same file, earlier
    tables, old = [*_find_tables(text, edit.at).values()], edit.source.read_tables(edit.source_at)
    known = look_up(edit.source.value, edit.source_at)
    if not tables or not old or look_up(tomllib.loads(old), edit.source_at) != known:
        return ""
    rest = text[tables[-1].end :]
    return text[: tables[0].start] + old + ("\n" if rest and not old.endswith("\n") else "") + rest


@cache
def _read_header(line: str) -> Location:
    """Return the keys of a table's header; empty for any other line."""
    found: list[str] = []
    try:
        value: Any = tomllib.loads(line)
    except ValueError:
        return ()
    while value and isinstance(value, dict):  # of an array of tables, the innermost value is a list
        [(key, value)] = value.items()
        found.append(key)
    return tuple(found)


def _walk(value: Any, at: Location) -> Any:
    for step in at:
        value = value[step]
    return value


def _put(root: Any, at: Location, value: Any) -> None:
    if not isinstance(value, dict):
        _walk(root, at[:-1])[at[-1]] = value
        return
    members = {key: _inline(member) if isinstance(member, dict) else member for key, member in value.items()}
    _replace_members(_walk(root, at), {key: tomlkit.item(member) for key, member in members.items()})


def _add(table: Any, key: str, value: Any, after: str) -> None:
    """Add a line after the line of another key; `tomlkit` itself adds it after the comments that end a table."""
    if isinstance(table, InlineTable):
        table.add(key, value)
        return
    trivia = table[after].trivia
    trivia.trail = f"\n{trivia.indent}{key} = {tomlkit.item(value).as_string()}{trivia.trail}"


def _inline(value: Mapping[str, Any]) -> InlineTable:
    table = tomlkit.inline_table()
    table.update(value)
    return table


def _restore(root: Any, at: Location, source: Any) -> None:
    table = _walk(root, at)
    if isinstance(table, InlineTable):
        _walk(root, at[:-1])[at[-1]] = copy.deepcopy(source)
        return
    _replace_members(table, source)


def _replace_members(table: Any, members: Mapping[str, Any]) -> None:
    """Give a table other members; equal ones keep their comments and layout."""
    for key in [key for key in table if key not in members]:
        del table[key]
    for key, member in members.items():
        if key not in table or table[key].unwrap() != member.unwrap():
            table[key] = copy.deepcopy(member)


def _prepend(text: str, new: tuple[str, ...]) -> str:
    """Return the text of an array with more items, in the layout of its first item."""
    inside = text[1:]
    lead = inside[: len(inside) - len(inside.lstrip(" \t\r\n"))]
    quoted = [tomlkit.string(item).as_string() for item in new]
    if inside[len(lead) :].startswith("]"):
        return "[" + ", ".join(quoted) + inside
    return "[" + "".join(f"{lead}{item},{'' if lead else ' '}" for item in quoted) + inside

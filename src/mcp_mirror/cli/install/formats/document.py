"""A parsed file and the edits of it."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from codecs import BOM_UTF8
from collections.abc import Iterable
from typing import Any, AnyStr, ClassVar, Final, Self

import msgspec

from mcp_mirror.errors import ConfigError

Location = tuple[str | int, ...]
"""The keys and indices from the root to a value."""

UNSAFE: Final = "the text has a form that cannot be edited safely"


class Put(msgspec.Struct, frozen=True):
    """Replace a value."""

    at: Location
    value: Any


class Add(msgspec.Struct, frozen=True):
    """Add a member to a mapping, or an item to a list, that has some."""

    at: Location
    """The mapping or the list."""
    key: str
    """The key of the member; without effect in a list."""
    value: Any
    after: str | None = None
    """The key of the member before it; None: it becomes the first, and in TOML the last."""


class Remove(msgspec.Struct, frozen=True):
    """Remove a member of a mapping or an item of a list."""

    at: Location


class Prepend(msgspec.Struct, frozen=True):
    """Insert texts at the start of a list."""

    at: Location
    items: tuple[str, ...]


class DropFirst(msgspec.Struct, frozen=True):
    """Remove the first items of a list."""

    at: Location
    count: int


class Restore(msgspec.Struct, frozen=True):
    """Replace a value by the text of a value in another document of the same format."""

    at: Location
    source: Document
    source_at: Location


Edit = Put | Add | Remove | Prepend | DropFirst | Restore


class Document(ABC):
    """A file of one format. The constructors of the formats raise ValueError for a text that is not of that format."""

    name: ClassVar[str]
    """The format's name in messages."""

    data: bytes
    value: Any
    """The content. Of a repeated key, the last value."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._mark = BOM_UTF8 if data.startswith(BOM_UTF8) else b""

    @abstractmethod
    def find_problem(self, at: Location) -> str | None:
        """Return why the value at a location cannot be edited, such as a repeated key; None if it can."""

    def edit(self, edits: Iterable[Edit]) -> Self:
        """Return the document with edits, which do not overlap; ConfigError if its form is too unusual for them."""
        edits = tuple(edits)
        if not edits:
            return self
        try:
            after = type(self)(self._mark + self._write(edits))
            is_as_meant = after.value == apply_edits(self.value, edits)
        except (ValueError, RecursionError):
            raise ConfigError(UNSAFE) from None
        if not is_as_meant:
            raise ConfigError(UNSAFE)
        return after

    @abstractmethod
    def _write(self, edits: Iterable[Edit]) -> bytes:
        """Return the text with edits, without a byte order mark; ConfigError or ValueError for an unsafe form."""


def look_up(value: Any, at: Location) -> Any:
    """Return the value at a location; None if it does not exist."""
    for step in at:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def splice(text: AnyStr, splices: Iterable[tuple[int, int, AnyStr]]) -> AnyStr:
    """Return a text with the given ranges replaced: start, stop and the new text of each, in any order."""
    ordered = sorted(splices, key=lambda one: one[:2])
    for start, stop, new in reversed(ordered):  # equal positions keep their order
        text = text[:start] + new + text[stop:]
    return text


def apply_edits(value: Any, edits: Iterable[Edit]) -> Any:
    """Return a copy of a value with the edits."""
    root = copy.deepcopy(value)
    for edit in edits:
        match edit:
            case Put(at, new):
                look_up(root, at[:-1])[at[-1]] = new
            case Restore(at, source, source_at):
                look_up(root, at[:-1])[at[-1]] = look_up(source.value, source_at)
            case Add(at, key, new):
                _add(look_up(root, at), key, new)
            case Remove(at):
                del look_up(root, at[:-1])[at[-1]]
            case Prepend(at, items):
                look_up(root, at)[:0] = items
            case DropFirst(at, count):
                del look_up(root, at)[:count]
    return root


def _add(block: Any, key: str, value: Any) -> None:
    if isinstance(block, list):
        block.insert(0, value)
    else:
        block[key] = value

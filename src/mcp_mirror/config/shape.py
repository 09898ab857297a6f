"""The keys of each section, compiled from the settings' classes."""

import ast
import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from textwrap import dedent
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

import msgspec

from mcp_mirror.settings.declarations import (
    INLINE,
    INTERNAL,
    NAME,
    REQUIRED,
    Group,
    Key,
    Mark,
    Section,
    Shorthand,
    Without,
)
from mcp_mirror.settings.policies import Config

_T = TypeVar("_T")


class Value(msgspec.Struct, frozen=True):
    """A type without `Annotated` and `None`."""

    kind: Any
    marks: tuple[Any, ...]
    """The contents of its `Annotated`."""
    is_optional: bool = False

    def mark(self, kind: type[_T]) -> _T | None:
        """Return the mark of a type, or None."""
        return next((mark for mark in self.marks if isinstance(mark, kind)), None)

    def has(self, mark: Mark) -> bool:
        """Return whether the type has a mark."""
        return mark in self.marks

    @property
    def is_section(self) -> bool:
        """Whether the type is the class of a section."""
        return isinstance(self.kind, type) and issubclass(self.kind, Section)

    @property
    def is_list(self) -> bool:
        """Whether the type is a tuple, which the file has as a list or as a mapping of names (see `entries`)."""
        return get_origin(self.kind) is tuple

    @property
    def shorthand(self) -> "Field | None":
        """The key whose value the file may contain instead of the section."""
        mark = self.mark(Shorthand)
        return next(field for field in list_keys(self.kind) if field.key == mark.key) if mark else None

    @property
    def items(self) -> "Value":
        """The type of the items of a tuple, or of the values of a mapping."""
        return unwrap(get_args(self.kind)[0 if self.is_list else 1])

    @property
    def entries(self) -> "Value | None":
        """The type of the values of a mapping; None if the file does not have a mapping of names here."""
        if not self.is_list:
            return self.items if get_origin(self.kind) is Mapping else None
        items = self.items
        if items.is_list:
            return unwrap(get_args(items.kind)[1])
        is_named = items.is_section and any(field.value.has(NAME) for field in list_fields(cast("type", items.kind)))
        return items if is_named else None


class Field(msgspec.Struct, frozen=True):
    """One field of a section."""

    section: type
    name: str
    key: str
    value: Value
    default: Any
    """NODEFAULT if the field has no default."""
    group: Group | None
    """The mapping of the file that contains the key."""

    @property
    def path(self) -> tuple[str, ...]:
        """The keys that lead to the value from the section."""
        return (self.group.name, self.key) if self.group else (self.key,)

    @property
    def documentation(self) -> str:
        """The docstring below the field."""
        return _read_documentation(self.section).get(self.name, "")

    @property
    def is_required(self) -> bool:
        """Whether the file must contain the key."""
        return self.default is msgspec.NODEFAULT or self.value.has(REQUIRED)


def unwrap(hint: Any) -> Value:
    """Take a type hint apart."""
    marks: tuple[Any, ...] = ()
    is_optional = False
    while True:
        if get_origin(hint) is Annotated:
            hint, *more = get_args(hint)
            marks = (*marks, *more)
        elif get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint):
            rest = [kind for kind in get_args(hint) if kind is not NoneType]
            hint, is_optional = Union[tuple(rest)], True  # noqa: UP007  # of a computed number of types
        else:
            return Value(hint, marks, is_optional)


@cache
def list_fields(section: type) -> tuple[Field, ...]:
    """Return the fields of a section's class that a file can set, in their order."""
    found = []
    for field in msgspec.structs.fields(section):
        value = unwrap(field.type)
        key = value.mark(Key)
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        if not value.has(INTERNAL):
            found.append(Field(section, field.name, key.name if key else field.name, value, default, value.mark(Group)))
    return tuple(found)


def sections_in(value: Value) -> tuple[type, ...]:
    """Return the classes of an inline field: itself, or each of a union."""
    return (value.kind,) if value.is_section else get_args(value.kind)


@cache
def list_keys(section: type, without: Without | None = None) -> tuple[Field, ...]:
    """Return the fields of a section and of its inline sections, each key once."""
    found: dict[tuple[str, ...], Field] = {}
    for field in _flatten_fields(section):
        if not (without and field.path[0] in without.names):
            found.setdefault(field.path, field)
    return tuple(found.values())


def find_places(key: str) -> list[str]:
    """Return where the file may have a key of this name, such as `upstreams.*.timeout`; the highest places first."""
    found = (place for place in _list_places(Config) if place.rpartition(".")[2] == key)
    return sorted(found, key=lambda place: place.count("."))


@cache
def _list_places(section: type, without: Without | None = None) -> tuple[str, ...]:
    """Return the places of all keys below a section; `*` in place of a name or of an item of a list."""
    found: list[str] = []
    for field in list_keys(section, without):
        place, inner = ".".join(field.path), field.value
        found.append(place)
        while inner.entries or inner.is_list:
            place, inner = f"{place}.*", inner.entries or inner.items
        if inner.is_section:
            found += [f"{place}.{below}" for below in _list_places(inner.kind, inner.mark(Without))]
    return tuple(found)


def _flatten_fields(section: type) -> Iterator[Field]:
    for field in list_fields(section):
        if field.value.has(INLINE):
            for inner in sections_in(field.value):
                yield from _flatten_fields(inner)
        elif not field.value.has(NAME):
            yield field


def list_alternatives(section: type) -> frozenset[str]:
    """Return the required keys of which a section needs exactly one: those of the classes of an inline union."""
    unions = (sections_in(field.value) for field in list_fields(section) if field.value.has(INLINE))
    members = (member for union in unions if len(union) > 1 for member in union)
    return frozenset(field.key for member in members for field in list_fields(member) if field.is_required)


@cache
def _read_documentation(section: type) -> Mapping[str, str]:
    """Return the docstrings below the fields of a class, by field; empty if its source is not available."""
    found: dict[str, str] = {}
    for base in reversed(section.__mro__[:-1]):
        try:
            source = inspect.getsource(base)
        except OSError:
            continue
        [definition] = ast.parse(dedent(source)).body
        assert isinstance(definition, ast.ClassDef)  # noqa: S101  # the source of a class
        for statement, after in zip(definition.body, definition.body[1:], strict=False):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(after, ast.Expr)
            ):
                text = ast.literal_eval(after.value)
                found[statement.target.id] = " ".join(text.split())
    return found

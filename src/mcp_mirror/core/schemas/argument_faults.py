"""Words the faults of arguments that do not fit a tool's schema, from the errors of the library."""

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

import jsonschema_rs
import msgspec
from msgspec.structs import replace

from mcp_mirror.core.amounts import shorten
from mcp_mirror.core.schemas.references import as_sequence
from mcp_mirror.core.similar_names import find_nearest

MAX_NAMED: Final = 8
"""Names and values that a message lists."""
_MAX_TEXT: Final = 300
"""Characters of a message."""
_MAX_QUOTED: Final = 40
"""Characters of a value that a message quotes."""
_MAX_COMPARED: Final = 300
"""Values of an `enum` that are compared with a wrong one, in about 5 ms."""
_MAX_FAULTS: Final = 5
"""Faults that are worded."""
_MAX_ALTERNATIVES: Final = 3
"""Alternatives of a schema whose errors a message names."""
_KINDS: Final = jsonschema_rs.ValidationErrorKind
_Errors = Sequence[jsonschema_rs.ValidationError]


class ArgumentFault(msgspec.Struct, frozen=True):
    """A fault of arguments. `str` returns the message for the model."""

    message: str
    place: tuple[str, ...] = ()
    """The location of the wrong value."""
    missing: str | None = None
    """The required member that the value does not have."""
    is_null: bool = False
    """The value is null."""
    more: int = 0
    """Further values with the same fault, such as items of the same array."""
    last: tuple[str, ...] = ()
    """The location of the last of them."""

    def __str__(self) -> str:
        located = shorten_middle(": ".join(filter(None, (".".join(self.place), self.message))))
        if not self.more:
            return located
        count = f"{self.more:,} more, the last " if self.more > 1 else ""
        return f"{located} (the same in {count}{shorten_middle('.'.join(self.last))})"


def read_faults(errors: Iterable[jsonschema_rs.ValidationError], at: tuple[str, ...]) -> list[ArgumentFault]:
    """The faults of the value at a location, at most five: one for all values that violate the schema in the same way.

    Errors about a pattern that was too slow to match are not faults.
    """
    groups: dict[Hashable, list[jsonschema_rs.ValidationError]] = {}
    for error in _without_patterns(errors):
        if not isinstance(error.kind, _KINDS.BacktrackLimitExceeded):
            groups.setdefault(_identify(error), []).append(error)
    return list(dict.fromkeys(_word_group(group, at) for group in islice(groups.values(), _MAX_FAULTS)))


def _identify(error: jsonschema_rs.ValidationError) -> Hashable:
    """The key of an error: equal for items of an array that violate their schema in the same way."""
    kind = error.kind
    names = getattr(kind, "property", None), *getattr(kind, "unexpected", ())
    wrong_name = error.message if isinstance(kind, _KINDS.PropertyNames) else ""
    alternatives = tuple(tuple(map(_identify, found)) for found in getattr(kind, "context", ()))
    return tuple(error.evaluation_path), names, wrong_name, alternatives


def _word_group(group: Sequence[jsonschema_rs.ValidationError], at: tuple[str, ...]) -> ArgumentFault:
    first, last = _word(group[0]), _word(group[-1])
    more = len(group) - 1
    return replace(first, place=(*at, *first.place), more=more, last=(*at, *last.place) if more else ())


def _word(error: jsonschema_rs.ValidationError) -> ArgumentFault:
    """The fault of an error; if all alternatives of `anyOf` or `oneOf` failed, what they expect.

    Alternatives for values of another type, or of another kind, are not meant, unless all of them are.
    """
    alternatives = [_without_patterns(errors) for errors in getattr(error.kind, "context", ()) if errors]
    if not alternatives:
        missing = error.kind.property if isinstance(error.kind, _KINDS.Required) else None
        return _build_fault(error, _read_message(error), missing)
    types = [_read_expected_types(errors, error.instance_path) for errors in alternatives]
    same_type = [errors for errors, expected in zip(alternatives, types, strict=True) if not expected]
    if not same_type:
        return _build_fault(error, name_types(error.instance, chain.from_iterable(types)))
    kinds = [_read_expected_kinds(errors, error.instance_path) for errors in same_type]
    of_all = [name for name in kinds[0] if all(name in other for other in kinds)]
    if len(kinds) > 1 and of_all:
        allowed = [value for constants in kinds for value in constants[of_all[0]]]
        return _build_fault(error, name_kinds(of_all[0], error.instance, allowed))
    same_kind = [errors for errors, names in zip(same_type, kinds, strict=True) if not names]
    meant = [errors[0] for errors in same_kind or same_type]
    if len(meant) == 1:
        return _word(meant[0])
    messages = list(dict.fromkeys(map(_read_message, meant)))
    return _build_fault(error, "; or ".join(messages[:_MAX_ALTERNATIVES]))


def _build_fault(error: jsonschema_rs.ValidationError, message: str, missing: str | None = None) -> ArgumentFault:
    return ArgumentFault(message, tuple(map(str, error.instance_path)), missing, error.instance is None)


def _without_patterns(errors: Iterable[jsonschema_rs.ValidationError]) -> _Errors:
    """The errors without those about the pattern of a text whose format is wrong too: generators write both."""
    found = [*errors]
    formatted = {tuple(error.instance_path) for error in found if isinstance(error.kind, _KINDS.Format)}
    return [
        error
        for error in found
        if not isinstance(error.kind, _KINDS.Pattern) or tuple(error.instance_path) not in formatted
    ]


def _read_message(error: jsonschema_rs.ValidationError) -> str:
    """The message of an error. That of an `enum` names up to eight values, and of more the nearest first.

    The library names two of them.
    """
    options: list[Any] = getattr(error.kind, "options", [])
    if not isinstance(error.kind, _KINDS.Enum) or not options:
        return error.message
    near: list[str] = []
    if len(options) > MAX_NAMED and isinstance(error.instance, str):
        near = find_nearest(error.instance, (option for option in options[:_MAX_COMPARED] if isinstance(option, str)))
    *named, last = list(dict.fromkeys(map(quote_value, (*near, *options[: 2 * MAX_NAMED]))))[:MAX_NAMED]
    if len(options) > MAX_NAMED:
        named, last = [*named, last], f"{len(options) - MAX_NAMED:,} others"
    return f"{quote_value(error.instance)} is not one of {', '.join(named)}{' or ' if named else ''}{last}"


def name_types(value: Any, types: Iterable[str]) -> str:
    """The message about a value of a type that a schema does not accept."""
    names = " or ".join(json.dumps(name) for name in dict.fromkeys(types))
    return f"{quote_value(value)} is not of type {names}"


def name_kinds(name: str, value: Any, allowed: Sequence[Any]) -> str:
    """The message about the member that names an object's kind, if no alternative has such a kind."""
    named = ", ".join(list(dict.fromkeys(map(quote_value, allowed)))[:MAX_NAMED])
    found = quote_value(value[name]) if name in value else "missing"
    return f"{name!r} is {found}; the schema has alternatives for {named}"


def quote_value(value: Any) -> str:
    """The JSON text of a value, shortened."""
    return shorten(json.dumps(value, ensure_ascii=False), _MAX_QUOTED)


def _read_expected_types(errors: _Errors, place: Sequence[str | int]) -> list[str]:
    """The types that an alternative expects at a location; empty if the value there has one of them."""
    kinds = [error.kind for error in errors if list(error.instance_path) == list(place)]
    return [name for kind in kinds if isinstance(kind, _KINDS.Type) for name in kind.types]


def _read_expected_kinds(errors: _Errors, place: Sequence[str | int]) -> Mapping[str, list[Any]]:
    """The values that an alternative expects of members whose value it rejects, such as `kind`, by member."""
    found: dict[str, list[Any]] = {}
    for error in errors:
        *above, last = (*error.instance_path,) or (0,)
        if above == list(place) and isinstance(last, str):
            if isinstance(error.kind, _KINDS.Constant):
                found[last] = [error.kind.expected_value]
            elif isinstance(error.kind, _KINDS.Enum):
                found[last] = as_sequence(error.kind.options)
    return found


def shorten_middle(message: str) -> str:
    """A message; of a long one the beginning and the end."""
    half = _MAX_TEXT // 2 - 3
    return message if len(message) <= _MAX_TEXT else f"{message[:half]} ... {message[-half:]}"

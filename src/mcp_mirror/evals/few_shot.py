"""Writes an example conversation of a case as a model reads it: with notices in the measured style.

Pure. Paths in examples are well-formed but do not name stored values.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar
from uuid import UUID

from mcp_mirror.errors import ConfigError
from mcp_mirror.evals.cases import Turn
from mcp_mirror.evals.conversation import Call, Entry, Reply, Result, User
from mcp_mirror.evals.pointers import value_at
from mcp_mirror.paths import new_base

_PATH_VARIABLE: Final = re.compile(r"\$\{PATH_(?P<number>[1-9][0-9]*)\}(?P<pointer>(?:/[^\s\"'`]*)?)")
"""A variable in a text: the path of the n-th stored result, and a pointer after it."""
_MANGLED: Final = re.compile(r"\$\{MANGLED_(?P<number>[1-9][0-9]*)\}")
T = TypeVar("T")

_UUID: Final = "5f3a9c{:02x}-71d4-4e0b-8a26-{:012x}"


def write_example(
    turns: Iterable[Turn], notices: Sequence[str] | None, listed_as: Callable[[str], str]
) -> tuple[Entry, ...]:
    """Write an example conversation.

    `notices` are those of the stored results; None: no gateway, so results are the values themselves. `listed_as`
    returns the name under which a tool is listed.
    """
    paths: list[str] = []
    values: list[Any] = []
    entries: list[Entry] = []
    for index, turn in enumerate(turns):
        if not turn.tool:
            entries.append(User(turn.user) if turn.user else Reply(answer=turn.answer))
            continue
        arguments = with_values(turn.arguments, values) if notices is None else with_paths(turn.arguments, paths)
        text = turn.result
        if turn.stored is not None:
            value = turn.stored if isinstance(turn.stored, str) else json.dumps(turn.stored, ensure_ascii=False)
            text = value if notices is None else notices[len(paths)]
            paths.append(path_of(turn, len(paths)))
            values.append(turn.stored)
        call = Call(f"example_{index}", listed_as(turn.tool), arguments)
        entries += [Reply(calls=(call,)), Result(call, text)]
    return tuple(entries)


def path_of(turn: Turn, number: int) -> str:
    """The path of the stored result with this number, from 0: the same in every run."""
    return new_base(turn.tool, UUID(_UUID.format(number + 1, (number + 1) * 7919)))


def with_paths(value: Any, paths: list[str]) -> Any:
    """Replace `${PATH_1}` in the texts of a JSON value with the path, and `${MANGLED_1}` with the path mistyped."""

    def replace(text: str) -> str:
        text = _PATH_VARIABLE.sub(lambda match: _choose(paths, match) + match["pointer"], text)
        return _MANGLED.sub(lambda match: _mangle(_choose(paths, match)), text)

    return _map_texts(value, replace)


def with_values(value: Any, values: list[Any]) -> Any:
    """Replace each text of a JSON value that is `${PATH_1}`, with or without a pointer, with the value itself."""

    def replace(text: str) -> Any:
        match = _PATH_VARIABLE.fullmatch(text)
        return value_at(_choose(values, match), match["pointer"]) if match else text

    return _map_texts(value, replace)


def _map_texts(value: Any, replace: Callable[[str], Any]) -> Any:
    """Return a JSON value with each text replaced by what the function returns for the text."""
    if isinstance(value, Mapping):
        return {key: _map_texts(part, replace) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_map_texts(part, replace) for part in value]
    return replace(value) if isinstance(value, str) else value


def _choose(stored: list[T], match: re.Match[str]) -> T:
    """Return the path or the value of the stored result that a variable names."""
    number = int(match["number"])
    if number > len(stored):
        raise ConfigError(f"{match[0]}: only {len(stored)} results are stored before it. Numbers start at 1.")
    return stored[number - 1]


def _mangle(path: str) -> str:
    """Mistype a path: swap its last two digits, or change the last digit if they are equal."""
    one, two = path[-2], path[-1]
    return path[:-2] + (two + one if one != two else one + ("1" if two == "0" else "0"))

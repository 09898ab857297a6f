"""An example conversation from a case, as the model would have read it: with the notices of the style that is measured.

Pure. The paths in it are examples: well-formed, and no value's.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from mcp_mirror.core.notice import NoticeInput, write_notice
from mcp_mirror.errors import ConfigError
from mcp_mirror.evals.cases import Spoken
from mcp_mirror.evals.conversation import Call, Entry, Reply, Result, User
from mcp_mirror.evals.pointers import value_at
from mcp_mirror.paths import new_base, parse_path
from mcp_mirror.payload.json_spans import kind_at, members, trim
from mcp_mirror.settings.policies import NoticeStyle
from mcp_mirror.tokens import expected_estimator

_PLACE: Final = re.compile(r"\$\{PATH_(?P<number>[1-9][0-9]*)\}(?P<pointer>(?:/[^\s\"'`]*)?)")
"""In a text: the path that the n-th stored result has, and what follows it."""
_MANGLED: Final = re.compile(r"\$\{MANGLED_(?P<number>[1-9][0-9]*)\}")
_UUID: Final = "5f3a9c{:02x}-71d4-4e0b-8a26-{:012x}"


@dataclass(slots=True)
class _Telling:
    """An example as far as it is told."""

    style: NoticeStyle | None
    listed_as: Callable[[str], str]
    paths: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    def tell(self, spoken: Spoken, index: int) -> None:
        if not spoken.tool:
            self.entries.append(User(spoken.user) if spoken.user else Reply(answer=spoken.answer))
            return
        call = Call(f"example_{index}", self.listed_as(spoken.tool), self._argued(spoken.arguments))
        text = spoken.result if spoken.stored is None else self._stored(spoken, call)
        self.entries += [Reply(calls=(call,)), Result(call, text)]

    def _argued(self, arguments: Any) -> Any:
        if self.style:
            return with_paths(arguments, self.paths)
        return _with_values(arguments, self.values)

    def _stored(self, spoken: Spoken, call: Call) -> str:
        number = len(self.paths) + 1
        path = new_base(spoken.tool, UUID(_UUID.format(number, number * 7919)))
        self.paths.append(path)
        self.values.append(spoken.stored)
        if self.style is None:
            return spoken.stored if isinstance(spoken.stored, str) else json.dumps(spoken.stored, ensure_ascii=False)
        return write_notice(_as_stored(path, spoken, call), self.style)


def tell_example(
    spoken: Iterable[Spoken], style: NoticeStyle | None, listed_as: Callable[[str], str]
) -> tuple[Entry, ...]:
    """An example conversation.

    Args:
        spoken: It, as a case has it.
        style: The notices that it shows; None: the values themselves, as there are without the gateway.
        listed_as: The name that a tool is listed under.
    """
    telling = _Telling(style, listed_as)
    for index, part in enumerate(spoken):
        telling.tell(part, index)
    return tuple(telling.entries)


def _as_stored(path: str, spoken: Spoken, call: Call) -> NoticeInput:
    blob = json.dumps(spoken.stored, ensure_ascii=False).encode()
    kind = kind_at(blob, 0)
    return NoticeInput(
        path=path,
        tool=spoken.tool,
        arguments=json.dumps(dict(call.arguments), ensure_ascii=False).encode(),
        blob=blob,
        kind=kind,
        estimate=expected_estimator("default"),
        members=members(blob, trim(blob)) if kind == "object" else (),
    )


def with_paths(value: Any, paths: list[str]) -> Any:
    """A JSON value whose texts have paths in the place of `${PATH_1}`, and of `${MANGLED_1}` one that is mistyped.

    Raises:
        ConfigError: There is no such path.
    """
    if isinstance(value, Mapping):
        return {key: with_paths(part, paths) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [with_paths(part, paths) for part in value]
    if not isinstance(value, str):
        return value
    told = _PLACE.sub(lambda match: _path(paths, match) + match["pointer"], value)
    return _MANGLED.sub(lambda match: _mangled(_path(paths, match)), told)


def _path(paths: list[str], match: re.Match[str]) -> str:
    number = int(match["number"])
    if number > len(paths):
        raise ConfigError(f"{match[0]}: only {len(paths)} results are stored before it; count them from 1.")
    return paths[number - 1]


def _mangled(path: str) -> str:
    """The path with the last two of its digits exchanged, or another last digit: near it, and no value's."""
    head, one, two = path[:-2], path[-2], path[-1]
    return head + (two + one if one != two else one + ("0" if two != "0" else "1"))


def _with_values(value: Any, values: list[Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_values(part, values) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_with_values(part, values) for part in value]
    if isinstance(value, str) and (match := _PLACE.fullmatch(value)):
        path = parse_path(_path([new_base("value", UUID(int=0, version=4))] * len(values), match) + match["pointer"])
        return value_at(values[int(match["number"]) - 1], map(str, path.tokens) if path else ())
    return value

"""How a model wrote a path that it was given: to the letter, in a form that the gateway forgives, or wrongly.

Pure: what was given is what stood in results, before the call.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from mcp_mirror.evals.conversation import Made
from mcp_mirror.paths import MemoryPath, bases_in_notice, find_bases, label_of, parse_path, strip_wrapping, tool_label

Form = Literal["exact", "forgiven", "wrong", "missing"]

_SHOWN: Final = 90


@dataclass(frozen=True, slots=True)
class Written:
    """One argument that should be a path, judged."""

    form: Form
    reason: str = ""
    """Why it is not exact."""
    path: MemoryPath | None = None
    """The path that was meant, where one was."""


def given_by(made: Iterable[Made]) -> frozenset[str]:
    """The bases that results gave; that an answer repeats what its call said gives nobody anything."""
    given: set[str] = set()
    for one in made:
        given |= find_bases(one.result.text) - find_bases(str(one.call.arguments))
    return frozenset(given)


def judge_pointer(value: Any, given: Container[str], source: str) -> Written:
    """How an argument was written.

    Args:
        value: What the model wrote.
        given: What it could know.
        source: Whose value it should be: a tool, `tool/pointer` for what lies below it, or empty for anyone's.
    """
    if not isinstance(value, str):
        return Written("wrong", f"a value of its own instead of a path: {_shown(value)}")
    path = _meant(value)
    if path is None:
        return Written("wrong", f"no path: {_shown(value)}")
    if path.base not in given:
        return Written("wrong", f"a path that was never given: {_shown(value)}")
    if wrong := _wrong_source(path, source):
        return Written("wrong", wrong)
    if value == str(path) and parse_path(value) == path:
        return Written("exact", path=path)
    return Written("forgiven", f"the path is not alone: {_shown(value)}", path)


def _meant(value: str) -> MemoryPath | None:
    """The path in a text, however the gateway would forgive it."""
    if path := parse_path(strip_wrapping(value)):
        return path
    bases = bases_in_notice(value.strip())
    return MemoryPath(next(iter(bases))) if len(bases) == 1 else None


def _wrong_source(path: MemoryPath, source: str) -> str:
    wanted, slash, pointer = source.partition("/")
    if wanted and label_of(path.base) != tool_label(wanted):
        return f"a path of {label_of(path.base)}, wanted one of {wanted}"
    below = str(path).removeprefix(path.base)
    if source and below != slash + pointer:
        return f"the path of {below or 'the whole value'}, wanted {slash + pointer or 'the whole value'}"
    return ""


def value_at(value: Any, tokens: Iterable[str]) -> Any:
    """What lies below a value by a JSON Pointer's tokens.

    Raises:
        LookupError: Nothing does.
    """
    for token in tokens:
        match value:
            case list() if token.isdecimal():
                value = value[int(token)]
            case Mapping():
                value = value[token]
            case _:
                raise LookupError(token)
    return value


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."

"""Judges a memory path that a model wrote: exact, in a form that the gateway accepts, or wrong.

Pure. A model can know the paths in the results before the call.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from mcp_mirror.evals.conversation import MadeCall
from mcp_mirror.paths import (
    MemoryPath,
    find_bases,
    find_notice_bases,
    label_of,
    parse_path,
    strip_wrapping,
    tool_label,
    unwrap_text_block,
)

Form = Literal["exact", "forgiven", "wrong", "missing"]

_SHOWN: Final = 90


@dataclass(frozen=True, slots=True)
class JudgedPointer:
    """The judgement of an argument that should be a path."""

    form: Form
    reason: str = ""
    """Why the path is not exact."""
    path: MemoryPath | None = None
    """The intended path, if the argument contains one."""


def bases_in_results(made_calls: Iterable[MadeCall]) -> frozenset[str]:
    """The bases in results, without those that a result only repeats from its call."""
    bases: set[str] = set()
    for made in made_calls:
        bases |= find_bases(made.result.text) - find_bases(str(made.call.arguments))
    return frozenset(bases)


def judge_pointer(value: Any, known: Container[str], source: str) -> JudgedPointer:
    """Judge an argument that should be a path.

    Args:
        value: The argument.
        known: The bases that the model could know.
        source: The expected source of the value: a tool, `tool/pointer` for a part of its result, or empty for any.
    """
    if not isinstance(value, str):
        return JudgedPointer("wrong", f"a value instead of a path: {_shorten(value)}")
    path = _intended_path(value)
    if path is None:
        return JudgedPointer("wrong", f"not a path: {_shorten(value)}")
    if path.base not in known:
        return JudgedPointer("wrong", f"a path that no result contained: {_shorten(value)}")
    if wrong := _wrong_source(path, source):
        return JudgedPointer("wrong", wrong)
    if value == str(path) and parse_path(value) == path:
        return JudgedPointer("exact", path=path)
    return JudgedPointer("forgiven", f"more text than the path: {_shorten(value)}", path)


def _intended_path(value: str) -> MemoryPath | None:
    """The path in a text, in any form that the gateway accepts."""
    value = unwrap_text_block(value)
    if path := parse_path(strip_wrapping(value)):
        return path
    bases = find_notice_bases(value.strip())
    return MemoryPath(next(iter(bases))) if len(bases) == 1 else None


def _wrong_source(path: MemoryPath, source: str) -> str:
    tool, slash, pointer = source.partition("/")
    if tool and label_of(path.base) != tool_label(tool):
        return f"a path of {label_of(path.base)}, expected a path of {tool}"
    below = str(path).removeprefix(path.base)
    if source and below != slash + pointer:
        return f"the path of {below or 'the whole value'}, expected {slash + pointer or 'the whole value'}"
    return ""


def value_at(value: Any, tokens: Iterable[str]) -> Any:
    """Follow the tokens of a JSON Pointer from a value.

    Raises:
        LookupError: A token does not exist.
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


def _shorten(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."

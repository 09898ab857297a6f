"""Judges a memory path that a model wrote: exact, in a form that the gateway accepts, or wrong.

Pure. A model can know the paths in the results before the call.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from mcp_mirror.evals.cases import shorten
from mcp_mirror.evals.conversation import MadeCall
from mcp_mirror.paths import (
    MemoryPath,
    find_bases,
    find_copied_notice,
    is_pathless_notice,
    parse_path,
    parse_wrapped_path,
    read_notice_path,
    slug_of,
    tool_slug,
    unescape_token,
    unwrap_result,
)

Form = Literal["exact", "forgiven", "wrong", "missing"]


class JudgedPointer(msgspec.Struct, frozen=True):
    """The judgement of an argument that should be a path."""

    form: Form
    reason: str = ""
    """Why the path is not exact."""
    path: MemoryPath | None = None
    """The intended path, if the argument contains one."""


def bases_in_results(made_calls: Iterable[MadeCall]) -> dict[str, str]:
    """The bases in results, each with the result's text, without those that a result only repeats from its call."""
    return {
        base: made.result.text
        for made in made_calls
        for base in find_bases(made.result.text) - find_bases(str(made.call.arguments))
    }


def judge_pointer(value: Any, known: Mapping[str, str], source: str, name: str = "") -> JudgedPointer:
    """Judge an argument that should be a path.

    `known` has the bases that the model could know, with the texts of the results that contain them. `source` is the
    expected source of the value: a tool, `tool/pointer` for a part of its result, or empty for any. `name` is that of
    the argument; of an object that does not fit, the argument gets the key with this name.
    """
    if not isinstance(value, str):
        return JudgedPointer("wrong", f"a value instead of a path: {shorten(value)}")
    path = _intended_path(value, known)
    if path is None:
        return JudgedPointer("wrong", f"not a path: {shorten(value)}")
    if path.base not in known:
        return JudgedPointer("wrong", f"a path that no result contained: {shorten(value)}")
    if wrong := _wrong_source(path, source):
        is_object = source and not _wrong_source(path.child(name), source)
        return JudgedPointer("forgiven", wrong, path) if is_object else JudgedPointer("wrong", wrong)
    if value == str(path) and parse_path(value) == path:
        return JudgedPointer("exact", path=path)
    return JudgedPointer("forgiven", f"more text than the path: {shorten(value)}", path)


def _intended_path(value: str, known: Mapping[str, str]) -> MemoryPath | None:
    """The path in a text, in any form that the gateway accepts, also of a notice without its first line, the path."""
    value = unwrap_result(value)
    if path := parse_wrapped_path(value):
        return path.without_wrapping
    if not is_pathless_notice(value.strip()):
        return read_notice_path(value.strip())
    copied = find_copied_notice(value, {base: text.partition("\n")[2] for base, text in known.items()})
    return read_notice_path(known[copied]) if copied else None


def _wrong_source(path: MemoryPath, source: str) -> str:
    tool, slash, pointer = source.partition("/")
    if tool and slug_of(path.base) != tool_slug(tool):
        return f"a path of {slug_of(path.base)}, expected a path of {tool}"
    below = str(path).removeprefix(path.base)
    if source and below != slash + pointer:
        return f"the path of {below or 'the whole value'}, expected {slash + pointer or 'the whole value'}"
    return ""


def value_at(value: Any, pointer: str) -> Any:
    """Return the part of a value at a JSON Pointer; LookupError if it does not exist."""
    for token in map(unescape_token, pointer.split("/")[1:]):
        match value:
            case list() if token.isdecimal():
                value = value[int(token)]
            case Mapping():
                value = value[token]
            case _:
                raise LookupError(token)
    return value

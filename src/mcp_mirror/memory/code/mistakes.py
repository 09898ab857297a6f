"""Selects the mistakes in a script that the type check finds reliably. Pure.

The type checker also reports code that runs well, such as an unchecked `None`. A mistake is invalid syntax, an
undefined name, a wrong call of a tool, or a call of a tool that is not awaited.
"""

import builtins
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from mcp_mirror.system.patterns import lazy_pattern

TOOLS_CLASS: Final = "Tools"
MAX_MISTAKES: Final = 5

_CALL_CODES: Final = frozenset(
    {
        "missing-argument",
        "unknown-argument",
        "too-many-positional-arguments",
        "invalid-argument-type",
        "unresolved-attribute",
    }
)
_BUILTINS: Final = frozenset(dir(builtins))
_UNAWAITED: Final = "CoroutineType"
_UNAWAITED_TEXT: Final = lazy_pattern(rb'"<coroutine object (\w+)>"')
"""The text of a call that is not awaited."""
_CALLED: Final = lazy_pattern(r"\b(\w++)\s*+\(")
"""A name that is called, also after a dot."""
_SEARCHED: Final = 1 << 22
"""Bytes that are searched at once: the search does not release the interpreter lock."""
_NO_VALUE: Final = lazy_pattern(r"(?:NameError|UnboundLocalError): [^']*'(\w+)'")
"""The error of a variable without a value."""


def find_mistakes(diagnostics: str, code: str) -> list[str]:
    """Return the mistakes, each with its line."""
    lines = code.splitlines()
    found = (_read_mistake(diagnostic, lines) for diagnostic in json.loads(diagnostics))
    return list(dict.fromkeys(mistake for mistake in found if mistake))[:MAX_MISTAKES]


def _read_mistake(diagnostic: Mapping[str, Any], lines: list[str]) -> str | None:
    message, code = str(diagnostic.get("message", "")), diagnostic.get("code")
    row, column = diagnostic["location"]["row"], diagnostic["location"]["column"]
    source = lines[row - 1] if row <= len(lines) else ""
    is_unawaited = _UNAWAITED in message
    if code == "unresolved-reference":
        undefined = re.search(r"Name `(\w+)`", message)
        is_mistake = undefined is not None and undefined[1] not in _BUILTINS
    elif code == "invalid-syntax":
        is_mistake = "outside" not in message  # a script may return and await anywhere
    else:
        is_unpacked = source[column - 1 :].startswith("**")  # the types of its members are not known
        is_mistake = code in _CALL_CODES and f"`{TOOLS_CLASS}" in message and not is_unpacked
    if not is_mistake and not is_unawaited:
        return None
    text = re.sub(rf"bound method `{TOOLS_CLASS}\.(\w+)`", r"`tools.\1`", message)
    text = text.replace(f"Object of type `{TOOLS_CLASS}`", "`tools`")
    advice = ". Await the call: await tools.name(...)." if is_unawaited else ""
    return f"line {row}: {text}{advice}\n    {source.strip()[:200]}"


def find_unawaited(value: bytes, code: str) -> str | None:
    """Return the function whose call a script returns, as a text, in place of its result; None for other values."""
    longest = len(code) + len('"<coroutine object >"')
    ends = ((at, at + _SEARCHED + longest) for at in range(0, len(value), _SEARCHED))
    names = (found[1].decode() for start, end in ends for found in _UNAWAITED_TEXT.finditer(value, start, end))
    called = frozenset(_CALLED.findall(code))
    return next((name for name in names if name in called), None)


def locate_variable(code: str, message: str, line: int) -> int:
    """Return the line of an error. For `x += 1` with an undefined `x`, the interpreter names an earlier line."""
    lines = code.splitlines()
    undefined = _NO_VALUE.match(message)
    if undefined is None or re.search(rf"\b{undefined[1]}\b", "".join(lines[line - 1 : line])):
        return line
    assignment = re.compile(rf"(?:^|[:;])\s*{undefined[1]}\s*(?:\*\*|//|>>|<<|[-+*/%&^|@])=")
    return next((at for at, text in enumerate(lines[line:], line + 1) if assignment.search(text)), line)

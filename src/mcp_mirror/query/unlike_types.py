"""Explains why an expression finds nothing: it compares a text with a number, a boolean or null that is written alike.

Many databases return large or decimal numbers as texts, so `[?id == `7`]` finds nothing where `[?id == '7']` does.
"""

import json
import re
from typing import Any, Final, NamedTuple

from jmespath.exceptions import JMESPathError
from jmespath.visitor import TreeInterpreter

from mcp_mirror.query.missing_keys import NULL, Node, walk
from mcp_mirror.system.patterns import lazy_pattern

_MAX_TEXT: Final = 40
"""Characters of a text that may be a number."""
_NUMBER: Final = lazy_pattern(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)


class _Pair(NamedTuple):
    """A text and another value that are written alike."""

    text: str
    other: float | bool | None
    written: str | None
    """What the expression contains as a literal: `text` or `other`; None if it contains neither."""

    @property
    def advice(self) -> str:
        """What differs, and the next step."""
        kind = "a boolean" if isinstance(self.other, bool) else "a number"
        if self.other is None:
            kind = "null"
        if self.written == "other":
            return f"The value is text there, not {kind}: write '{self.text}'."
        if self.written == "text":
            return f"The value is {kind} there, not text: write `{self.text.lower()}`."
        return f"It compares a text with {kind}: convert one of them, as with to_string(KEY)."


class _LenientInterpreter(TreeInterpreter):
    """Evaluates an expression as if a text were equal to a value that is written alike."""

    first: _Pair | None = None
    """The first comparison that is true for this reason only."""

    def visit_comparator(self, node: Any, value: Any) -> Any:
        if node["value"] != "eq":
            return super().visit_comparator(node, value)
        sides = [self.visit(child, value) for child in node["children"]]
        pair = _find_pair(sides, [_is_written(child) for child in node["children"]])
        if pair is None:
            return self.COMPARATOR_FUNC["eq"](*sides)  # the method of the library would evaluate both sides again
        self.first = self.first or pair
        return True


def explain_unlike_types(parsed: Any, value: Any) -> str | None:
    """Explain that an expression would find something if it compared with the type that the value has; else None."""
    if not any(node["type"] == "comparator" and node["value"] == "eq" for node in walk(parsed)):
        return None
    lenient = _LenientInterpreter()
    try:
        found = lenient.visit(parsed, value)
    except (JMESPathError, TypeError):  # a function cannot process what was found
        found = True
    return None if lenient.first is None or found in (None, [], {}, 0) else lenient.first.advice


def _is_written(node: Node) -> bool:
    """Whether a part is a literal, or the name of a key that is meant as null."""
    return node["type"] == "literal" or (node["type"] == "field" and node["value"] in NULL)


def _find_pair(sides: list[Any], literal: list[bool]) -> _Pair | None:
    """The two sides of a comparison if they differ in their types only."""
    for at, (text, other) in enumerate((sides, sides[::-1])):
        if isinstance(text, str) and _is_written_alike(text, other):
            if literal[at]:
                return _Pair(text, other, "text")
            return _Pair(text, other, "other" if literal[1 - at] else None)
    return None


def _is_written_alike(text: str, other: Any) -> bool:
    if other is None or isinstance(other, bool):
        return text.lower() == json.dumps(other)
    is_number = len(text) <= _MAX_TEXT and _NUMBER.fullmatch(text)
    return bool(is_number and json.loads(text) == other)

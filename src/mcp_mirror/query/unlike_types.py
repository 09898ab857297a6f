"""Finds comparisons of types that an expression does not mean: texts with numbers or the like, or numbers in texts.

Many servers return large or decimal numbers as texts. So `[?id == `7`]` finds nothing where `[?id == '7']` does, and
`max(prices)` is "9.50" where one of the prices is "10.20".
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeGuard

from jmespath import Options
from jmespath.exceptions import JMESPathError
from jmespath.functions import Functions
from jmespath.visitor import TreeInterpreter

from mcp_mirror.errors import ToolError
from mcp_mirror.query.missing_keys import NULL, Node, walk
from mcp_mirror.query.text_order import read_order
from mcp_mirror.system.patterns import lazy_pattern

_MAX_TEXT: Final = 40
"""Characters of a text that may be a number."""
_NUMBER: Final = lazy_pattern(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)

_ORDERED: Final[Mapping[str, slice]] = {"sort": slice(None), "max": slice(-1, None), "min": slice(1)}
"""Functions that order values, also with `_by`, and the part of the ordered values that they return."""
_PICKED: Final[Mapping[str, Callable[..., Any]]] = {"sort": sorted, "max": max, "min": min}
"""The same functions of Python."""


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


class _CheckedFunctions(Functions):
    """The functions of JMESPath; those that order numbers in texts letter by letter fail if that order is wrong.

    Dates, versions, and amounts of one unit have their own order.
    """

    def call_function(self, function_name: str, resolved_args: Iterable[Any]) -> Any:
        found = super().call_function(function_name, resolved_args)
        if returned := _ORDERED.get(name := function_name.removesuffix("_by")):
            items, *by = resolved_args
            keys = [by[0].visit(by[0].expression, item) for item in items] if by else items
            if order := read_order(keys):
                picked = _PICKED[name](range(len(items)), key=order.__getitem__)
                return items[picked] if isinstance(picked, int) else [items[at] for at in picked]
            _check_order(keys, returned)
        return found


class _CheckedInterpreter(TreeInterpreter):
    def __init__(self) -> None:
        super().__init__(Options(custom_functions=_CheckedFunctions()))

    def visit_comparator(self, node: Any, value: Any) -> Any:
        if node["value"] in ("eq", "ne"):
            return super().visit_comparator(node, value)
        sides = [self.visit(child, value) for child in node["children"]]
        sides = list(read_order(sides) or sides)
        _check_order(sides, slice(None))
        literals: list[Any] = [{"type": "literal", "value": side, "children": []} for side in sides]
        return super().visit_comparator({"type": node["type"], "value": node["value"], "children": literals}, value)


def evaluate(parsed: Any, value: Any) -> Any:
    """The result of a parsed expression on a value.

    Raises:
        JMESPathError, TypeError: The expression does not fit the value.
        ToolError: A comparison or a function orders texts such as "9.50" and "10.20", whose order as numbers is
            another one.
    """
    return _CheckedInterpreter().visit(parsed, value)


def _check_order(keys: Iterable[Any], returned: slice) -> None:
    """Check that a part of ordered texts is the same in the order of numbers, if all of them are numbers."""
    texts: list[str] = []
    for key in keys:
        if not is_number(key):
            return
        texts.append(key)
    for text, number in zip(sorted(texts)[returned], sorted(texts, key=float)[returned], strict=True):
        if float(text) != float(number):
            raise ToolError(
                f"`expression` compares texts such as '{text}' and '{number}' letter by letter, not as numbers. "
                "Convert them: [].to_number(KEY), &to_number(KEY), or to_number(KEY) > `5`."
            )


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
    return is_number(text) and bool(json.loads(text) == other)


def is_number(value: object) -> TypeGuard[str]:
    """Whether a value is a text with a number."""
    return isinstance(value, str) and len(value) <= _MAX_TEXT and _NUMBER.fullmatch(value) is not None

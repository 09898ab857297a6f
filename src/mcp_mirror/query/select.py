"""Evaluates JMESPath expressions on a JSON value. Numbers that are selected but not computed keep their digits."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import jmespath
import msgspec
from jmespath.exceptions import ArityError, JMESPathError, JMESPathTypeError, ParseError, UnknownFunctionError
from jmespath.functions import TYPES_MAP, Functions

from mcp_mirror.core.amounts import format_bytes
from mcp_mirror.core.texts.embedded_json import find_embedded_json
from mcp_mirror.core.texts.formats import JSON_LINES, find_format, has_columns, read_edges
from mcp_mirror.errors import ToolError
from mcp_mirror.payload.json_spans import kind_at, trim
from mcp_mirror.query.data_texts import MAX_STRING, read_data_text
from mcp_mirror.query.missing_keys import (
    NULL,
    Node,
    explain_length,
    explain_nothing,
    find_made_keys,
    has_key,
    quote_key,
    walk,
)
from mcp_mirror.query.texts import IsOver, decode_string, open_text
from mcp_mirror.query.unlike_types import evaluate, explain_unlike_types, is_number
from mcp_mirror.security.sanitize import as_json_string
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer


class _Integer(int):
    """An integer with its digits as written."""

    text: str


class _Float(float):
    """A number with a fraction or an exponent, with its digits as written."""

    __slots__ = ("text",)
    text: str


_Integer.__name__, _Float.__name__ = "int", "float"
"""The library distinguishes types by their names."""


def _parse_integer(text: str) -> _Integer:
    number = _Integer(text)
    number.text = text
    return number


def _parse_float(text: str) -> float:
    plain = float(text)
    if repr(plain) == text and "e" not in text:  # written as it was, without a second copy of its digits
        return plain
    number = _Float(plain)
    number.text = text
    return number


def _encode_number(number: Any) -> msgspec.Raw:
    if not isinstance(number, _Integer | _Float):
        raise TypeError
    return msgspec.Raw(number.text.encode())


_NEGATIVE_ZERO: Final = lazy_pattern(rb"-0(?![.0-9eE])")
"""An integer that Python writes differently, or a text that looks like it."""

_ROOT: Final = lazy_pattern(r"\s*(?:\$\.?|\.)(?=[\w\"*]|\[[^'\"]|\s*\Z)")
"""The sign for the whole value at the beginning of an expression of JSONPath or jq, which JMESPath does not have.
A name in brackets after it would be another expression there."""
_OTHER_WRITING: Final = lazy_pattern(
    r"""(?<=[\w\])"])\[\s*+(?:'(?P<raw>[^'\\]*+)'|"(?P<quoted>[^"\\]*+)")\s*+\]"""
    r"""|(?P<operator>[=!<>]++)(?:\s*+(?P<number>-?\d++(?:\.\d++)?(?:[eE][-+]?\d++)?)(?![\w.-]))?+"""
    r"""|(?<=\s)(?P<word>(?i:and|or))(?=\s)"""
    r"""|'(?:\\.|[^'\\])*+'?+|"(?:\\.|[^"\\])*+"?+|`(?:\\.|[^`\\])*+`?+""",
    re.DOTALL,
)
"""What other languages write in another way: a key, `labels['a.b']`; an operator, and a number after it; a conjunction.
Or another quoted part, which stays as it is."""
_OPERATORS: Final[Mapping[str, str]] = {"=": "==", "===": "==", "!==": "!=", "<>": "!=", "and": "&&", "or": "||"}
"""Operators of other languages, and those of JMESPath."""
_BOOLEANS: Final[Mapping[str, bool]] = {"true": True, "false": False}
_OBJECT: Final = lazy_pattern(r"\s*(?:\[\s*)?\{\s*\"")
"""The beginning of an object, or of an array of objects."""
_TAKES_TEXT: Final = frozenset({"contains", "starts_with", "ends_with"})
"""Functions whose second argument is a text, or a value that is searched for."""
_ARITHMETIC: Final = ("+", "-", "/", "%")
_NO_ARITHMETIC: Final = (
    "JMESPath has no arithmetic, only functions of arrays such as sum(@), avg(@), max(@) and length(@)."
)
_FOREIGN: Final[Mapping[str, str]] = {
    "=>": "JMESPath has no `=>`: write [?KEY == 'text'] to filter and [].KEY to select.",  # of JavaScript
    "select(": "JMESPath has no select(): write [?KEY == 'text'] to filter.",  # of jq
}
"""Parts of expressions in other languages, with advice."""
_GROUPING: Final = lazy_pattern(r"(?i:\b(?:(?:group_?|unique_|count_|sum_)by|unique|distinct|count)\s*+\()")
"""Functions of other languages that group rows or count them by their values. JMESPath has none."""
_MAX_QUOTED: Final = 80
"""Characters of a value that an error quotes."""
_CORRECT: Final = "Correct it, see jmespath.org."
_EMPTY: Final = lazy_pattern(rb"null|\{\}|0|\[[\[\],]*+")
"""Results of an expression that finds nothing: 0 is the length or the sum of nothing, and arrays may be in others."""


class Select(msgspec.Struct, frozen=True):
    """A query for the result of a JMESPath expression. JMESPath checks no deadline, so it needs a worker process."""

    expression: str
    max_bytes: int
    """Maximum size of the result."""
    text_advice: str
    """A sentence that names what reads a text."""
    table_advice: str
    """A sentence that names what reads the rows of a text."""
    group_advice: str = ""
    """A sentence that names what groups and counts rows by their values; empty without it."""

    def __call__(self, blob: Buffer, _is_over: IsOver) -> bytes:
        """Return the result as JSON text.

        A text with JSON, JSON lines, YAML or another format of `data_texts` is queried as JSON. Of an
        embedded resource with a text, the text is queried. If any other text has no result, the error says so.
        """
        opened, text = open_text(blob)
        blob = opened[text.start : text.stop]
        inner = find_embedded_json(blob, include_lines=True)
        reason, is_mistake = explain_text(blob, self.text_advice, self.table_advice) if inner is None else ("", False)
        if is_mistake:
            raise ToolError(reason)
        if reason and len(blob) <= MAX_STRING and (inner := read_data_text(decode_string(blob))):
            reason = ""
        try:
            found = select(blob if inner is None else inner, self.expression)
        except ToolError as error:
            advice = reason or (self.group_advice if _GROUPING.search(self.expression) else "")
            raise ToolError(f"{error} {advice}" if advice else str(error)) from None
        if found == b"null" and reason:
            raise ToolError(f"null: the expression finds nothing. {reason}")
        if len(found) > self.max_bytes:
            raise ToolError(
                f"The result has {format_bytes(len(found))}, more than the limit of {format_bytes(self.max_bytes)} "
                "(`memory_tools.query_bytes`). Select less."
            )
        return found


def explain_text(blob: Buffer, text_advice: str, table_advice: str) -> tuple[str, bool]:
    """Explain that expressions select nothing from a text that is not JSON.

    The advices are sentences that name what reads a text, and the rows of a text.

    Returns:
        The explanation, which is empty for other values; and whether the text has rows, such as CSV, or begins as JSON.
            An expression on such a text is a mistake: `length(@)` would count its characters.
    """
    span = trim(blob)
    if kind_at(blob, span.start) != "text":
        return "", False
    edges = read_edges(blob, span)
    form = find_format(edges)
    are_json_lines = form.startswith(JSON_LINES)
    has_rows = are_json_lines or has_columns(form)
    if not has_rows and _OBJECT.match(edges.head):
        return f"The value is text that begins as JSON and is not valid JSON; it may be cut. {text_advice}", True
    described = f"{form}, with a line that is not JSON" if are_json_lines else form
    reason = f"The value is text{described and f' ({described})'}, not JSON: JMESPath has no keys or items to select."
    return f"{reason} {table_advice if has_rows else text_advice}", has_rows


def select(blob: Buffer, expression: str) -> bytes:
    """The result of an expression on a value, as JSON.

    Raises:
        ToolError: The expression is invalid, does not fit the value, has a result that is not JSON, or finds nothing,
            for a reason that the message explains, such as a missing key.
    """
    try:
        parsed = _compile(expression)
        _check_compared_keys(parsed, blob)
        parse_integer = int if _NEGATIVE_ZERO.search(blob) is None else _parse_integer
        value = json.loads(str(blob, "utf-8"), parse_int=parse_integer, parse_float=_parse_float)
        found = msgspec.json.encode(_search(parsed, value, blob), enc_hook=_encode_number)
    except JMESPathError as error:
        raise ToolError(f"`expression` does not work: {_describe(error)}. {_advise(error)}") from None
    except TypeError:
        raise ToolError("The result of `expression`, such as `&field`, is not a JSON value. Select values.") from None
    except (ValueError, OverflowError):
        raise ToolError("`expression` cannot process a number or a text of the value. Select other parts.") from None
    if counted := explain_length(parsed, value):
        raise ToolError(counted)
    if value and _EMPTY.fullmatch(found):
        reason = explain_nothing(parsed, blob, value) or explain_unlike_types(parsed, value)
        if reason:
            raise ToolError(f"{found.decode()}: the expression finds nothing. {reason}")
    return found


def _compile(expression: str) -> Node:
    """Parse an expression, which may begin with the sign for the whole value.

    If it is not valid, `labels['a.b'] = 5 and x` is read as ``labels."a.b" == `5` && x``.
    """
    root = _ROOT.match(expression)
    expression = (expression[root.end() :].strip() or "@") if root else expression
    try:
        return _continue_projections(jmespath.compile(expression).parsed)
    except ParseError:
        with suppress(ParseError):
            return _continue_projections(jmespath.compile(_OTHER_WRITING.sub(_translate, expression)).parsed)
        raise


def _continue_projections(node: Node) -> Node:
    """Select keys after `.*` from each value: the library reads `a.*.b.c` as `(a.*.b).c`, which is always null."""
    children = [_continue_projections(child) if isinstance(child, Mapping) else child for child in node["children"]]
    if node["type"] == "subexpression" and children[0]["type"] == "value_projection":
        before, each = children[0]["children"]
        if children[1]["type"] != "function_expression":
            return {"type": "value_projection", "children": [before, {**node, "children": [each, *children[1:]]}]}
    return {**node, "children": children}


def _translate(part: re.Match[str]) -> str:
    """A part of an expression as JMESPath writes it."""
    key = part["quoted"] if part["raw"] is None else part["raw"]
    if key is not None:
        return f".{json.dumps(key)}"
    operator = part["operator"] or part["word"]
    if operator is None:
        return part[0]
    number = f" `{part['number']}`" if part["number"] else ""
    return _OPERATORS.get(operator.lower(), operator) + number


def _search(parsed: Node, value: object, blob: Buffer) -> object:
    """The result of a parsed expression; JMESPathError if the expression does not fit the value.

    A ToolError explains a comparison of different types or of numbers in texts, and a function that gets nothing
    because the value does not have a key where the expression looks for it.
    """
    try:
        return evaluate(parsed, value)
    except JMESPathTypeError as error:
        if error.actual_type != "null" or (reason := explain_nothing(parsed, blob, value)) is None:
            raise
        raise ToolError(f"`expression` does not work: {error.function_name}() gets null. {reason}") from None
    except TypeError:  # max_by and min_by check only the type of the first value
        raise ToolError(
            "`expression` compares values of different types, such as a number with a text or null. Convert them, as "
            "with &to_number(KEY), and select the items that have a value first: [?KEY != null]."
        ) from None


def _describe(error: JMESPathError) -> str:
    """The cause of an error. Of an object or an array that a function does not take, only the type is named."""
    if not isinstance(error, JMESPathTypeError):
        return " ".join(str(error).split())[:300].rstrip(".")
    value = error.current_value
    kind, shown = TYPES_MAP.get(type(value).__name__, error.actual_type), ""
    if isinstance(value, str):
        shown = f": {as_json_string(value, _MAX_QUOTED)}"
    elif isinstance(value, int | float):
        shown = f": {json.dumps(value)[:_MAX_QUOTED]}"
    return f"{error.function_name}() takes {' or '.join(error.expected_types)}, not {kind}{shown}"


def _advise(error: JMESPathError) -> str:
    """The next step after an error."""
    if isinstance(error, ParseError) and not isinstance(error, ArityError):  # an ArityError has no token
        token = str(error.token_value)
        if error.token_type == "NUMBER":  # noqa: S105
            return f"Write a number in backticks (`{token}`) and an index in brackets ([0])."
        foreign = (advice for sign, advice in _FOREIGN.items() if sign in (error.expression or ""))
        if advice := next(foreign, _NO_ARITHMETIC if token in _ARITHMETIC else ""):
            return advice
        if operator := _OPERATORS.get(token.lower()):
            return f"Write `{operator}` in place of `{token}`."
    if isinstance(error, UnknownFunctionError):
        *names, last = sorted(Functions.FUNCTION_TABLE)
        return f"Use {', '.join(names)} or {last}."
    return _advise_conversion(error) if isinstance(error, JMESPathTypeError) else _CORRECT


def _advise_conversion(error: JMESPathTypeError) -> str:
    """The next step after a function of other values than those that it accepts."""
    if error.actual_type == "null":
        return "Select the items that have a value first: [?KEY != null]."
    if is_number(error.current_value):
        return "Convert numbers in texts: [].to_number(KEY)."
    if isinstance(error.current_value, list) and error.expected_types == ["object"]:
        return f"Take one item first: [0] | {error.function_name}(@)."
    if isinstance(error.current_value, int | float) and "array-string" in error.expected_types:
        return "Convert numbers: [].to_string(KEY)."
    return _CORRECT


def _check_compared_keys(parsed: Node, blob: Buffer) -> None:
    """Check that the value has the keys with which an expression compares: else a name was meant as a text.

    In JMESPath, `status == "open"` compares two keys. Without a key `open` it selects nothing, and `length()` is 0.
    The names `true` and `false` become booleans in `parsed`.
    """
    made = find_made_keys(parsed)
    for node in walk(parsed):
        is_function = node["type"] == "function_expression" and node["value"] in _TAKES_TEXT
        compared = node["children"][1:2] if is_function or node["type"] == "comparator" else []
        key: dict[str, Any] = compared[0] if compared else {}
        name: str | None = key["value"] if key.get("type") == "field" else None
        if name is None or name in NULL or name in made or has_key(blob, name):
            continue
        if (boolean := _BOOLEANS.get(name.lower())) is not None:
            key.update(type="literal", value=boolean)
            continue
        quoted = quote_key(name)
        literal = "'" + quoted[1:-1].replace("'", "\\'") + "'"
        raise ToolError(
            f"`expression` compares with a key {quoted}, which the value does not have. "
            f"Double quotes enclose names of keys; write {literal}."
        )

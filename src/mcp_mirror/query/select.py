"""Evaluates JMESPath expressions on a JSON value. Numbers that are selected but not computed keep their digits."""

import json
import re
from typing import Any, Final

import jmespath
import msgspec
from jmespath.exceptions import JMESPathError

from mcp_mirror.core.text_format import guess_format
from mcp_mirror.errors import ToolError
from mcp_mirror.payload.json_rpc import decode_as
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


_OPTIONS: Final = jmespath.Options()

_NEGATIVE_ZERO: Final = re.compile(rb"-0(?![.0-9eE])")
"""An integer that Python writes differently, or a text that looks like it."""

_HEAD: Final = 4000
"""Characters from which the format of a text is guessed."""


def explain_text(blob: Buffer) -> str | None:
    """Explain that expressions select nothing from text, and name the alternatives; None for any other value."""
    text: str | None = decode_as(blob, str)
    if text is None:
        return None
    head = text[:_HEAD]
    form = guess_format(head, is_whole=len(head) == len(text), end=text[-_HEAD:])
    kind = f"text ({form})" if form else "text"
    return f"The value is {kind}, not JSON: JMESPath has no keys or items to select. Use memory_grep or memory_read."


def select(blob: Buffer, expression: str) -> bytes:
    """The result of an expression on a value, as JSON.

    Raises:
        ToolError: The expression is invalid, does not fit the value, or has a result that is not JSON.
    """
    try:
        compiled = jmespath.compile(expression)
        parse_integer = int if _NEGATIVE_ZERO.search(blob) is None else _parse_integer
        value = json.loads(str(blob, "utf-8"), parse_int=parse_integer, parse_float=_parse_float)
        return msgspec.json.encode(compiled.search(value, _OPTIONS), enc_hook=_encode_number)
    except JMESPathError as error:
        raise ToolError(
            f"`expression` does not work: {' '.join(str(error).split())[:300]} Correct it, see jmespath.org."
        ) from None
    except TypeError:
        raise ToolError("The result of `expression`, such as `&field`, is not a JSON value. Select values.") from None
    except (ValueError, OverflowError):
        raise ToolError("`expression` cannot process a number or a text of the value. Select other parts.") from None

"""JMESPath over a JSON value. Numbers keep their digits wherever they are only moved, not computed."""

import json
from typing import Any, Final

import jmespath
import msgspec
from jmespath.exceptions import JMESPathError

from mcp_mirror.core.text_format import guess_format
from mcp_mirror.errors import ToolError
from mcp_mirror.types import Buffer


class _Whole(int):
    """An integer that knows how it was written."""

    text: str


class _Fraction(float):
    """A number with a fraction or an exponent that knows how it was written."""

    text: str


_Whole.__name__, _Fraction.__name__ = "int", "float"
"""The library tells types by their names."""


def _whole(text: str) -> _Whole:
    number = _Whole(text)
    number.text = text
    return number


def _fraction(text: str) -> _Fraction:
    number = _Fraction(text)
    number.text = text
    return number


def _as_written(number: Any) -> msgspec.Raw:
    if not isinstance(number, _Whole | _Fraction):
        raise TypeError
    return msgspec.Raw(number.text.encode())


_OPTIONS: Final = jmespath.Options()


_HEAD: Final = 4000
"""Characters from which the kind of a text is guessed."""


def json_held_by(blob: Buffer) -> bytes | None:
    """The object or array that a JSON text holds as its text; None for any other value."""
    try:
        held = msgspec.json.decode(blob, type=str).strip().encode()
        msgspec.json.decode(held, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return held if held[:1] in (b"{", b"[") else None


def explain_text(blob: Buffer) -> str | None:
    """Why an expression finds nothing in a value that is text, and what to use instead; None for any other value.

    Args:
        blob: The value, JSON text.
    """
    try:
        text = msgspec.json.decode(blob, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    head = text[:_HEAD]
    form = guess_format(head, is_whole=len(head) == len(text))
    kind = f"text ({form})" if form else "text"
    return f"The value is {kind}, not JSON: JMESPath has no keys or items to select. Use memory_grep or memory_read."


def select(blob: Buffer, expression: str) -> bytes:
    """What an expression finds in a value, as JSON.

    Raises:
        ToolError: The expression cannot be read, does not fit the value, or finds what is no JSON.
    """
    try:
        compiled = jmespath.compile(expression)
        value = json.loads(str(blob, "utf-8"), parse_int=_whole, parse_float=_fraction)
        return msgspec.json.encode(compiled.search(value, _OPTIONS), enc_hook=_as_written)
    except JMESPathError as error:
        raise ToolError(
            f"`expression` does not work: {' '.join(str(error).split())[:300]} Mend it, see jmespath.org."
        ) from None
    except TypeError:
        raise ToolError("`expression` finds what is no JSON value, such as `&field` alone. Select values.") from None
    except (ValueError, OverflowError):
        raise ToolError("A number or a text of the value cannot be computed with. Select around it.") from None

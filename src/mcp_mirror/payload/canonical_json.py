"""JSON in one form, whatever the order of its keys and the writing of its numbers: what digests are taken of.

The form is RFC 8785's, but for whole numbers, which keep all their digits: beyond 2**53 RFC 8785 would take two
different bounds for one.
"""

import hashlib
import json
import math
from decimal import Decimal
from typing import Any, Final

_LARGEST: Final = 21
_SMALLEST: Final = -5
"""With the point behind so many digits, ECMAScript (Number::toString) still writes a number without an exponent."""


def canonical(value: Any) -> str:
    """The one text of a JSON value. What is no number in JSON (NaN, infinity) is null, as it is passed on.

    Raises:
        RecursionError: It is nested too deep.
    """
    match value:
        case dict():
            members = sorted(value.items(), key=lambda member: member[0].encode("utf-16-be", "surrogatepass"))
            return "{" + ",".join(f"{_text(key)}:{canonical(each)}" for key, each in members) + "}"
        case list() | tuple():
            return "[" + ",".join(map(canonical, value)) + "]"
        case str():
            return _text(value)
        case float():
            return _number(value)
    return json.dumps(value)


def digest_of(value: Any) -> str:
    """The SHA-256 of a JSON value's one text in UTF-8, hexadecimal.

    Raises:
        RecursionError: It is nested too deep.
    """
    return hashlib.sha256(canonical(value).encode("utf-8", "surrogatepass")).hexdigest()


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _number(number: float) -> str:
    if not math.isfinite(number):
        return "null"
    if number.is_integer() and abs(number) < 10**_LARGEST:
        return str(int(number))
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int)  # noqa: S101  # it is finite
    text, minus, place = "".join(map(str, digits)), "-" if sign else "", exponent + len(digits)
    if not _SMALLEST <= place <= _LARGEST:
        point = f".{text[1:]}" if len(text) > 1 else ""
        return f"{minus}{text[0]}{point}e{place - 1:+d}"
    return f"{minus}{text[:place]}.{text[place:]}" if place > 0 else f"{minus}0.{'0' * -place}{text}"

"""Canonical JSON, from which digests are computed: one text per value, for any key order and number notation.

The form is that of RFC 8785, except that integers keep all their digits: beyond 2**53, RFC 8785 would write two
different bounds alike.
"""

import hashlib
import json
import math
from decimal import Decimal
from typing import Any, Final

_LARGEST: Final = 21
_SMALLEST: Final = -5
"""Positions of the decimal point up to which ECMAScript (Number::toString) writes a number without an exponent."""


def write_canonical(value: Any) -> str:
    """The canonical text of a JSON value. NaN and infinity become null, as in sent messages.

    Raises:
        RecursionError: The value is nested too deep.
    """
    match value:
        case dict():
            members = sorted(value.items(), key=lambda member: member[0].encode("utf-16-be", "surrogatepass"))
            return "{" + ",".join(f"{_encode_text(key)}:{write_canonical(each)}" for key, each in members) + "}"
        case list() | tuple():
            return "[" + ",".join(map(write_canonical, value)) + "]"
        case str():
            return _encode_text(value)
        case float():
            return _encode_number(value)
    return json.dumps(value)


def hash_json(value: Any) -> str:
    """The SHA-256 of a JSON value's canonical text in UTF-8, hexadecimal.

    Raises:
        RecursionError: The value is nested too deep.
    """
    return hashlib.sha256(write_canonical(value).encode("utf-8", "surrogatepass")).hexdigest()


def _encode_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _encode_number(number: float) -> str:
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

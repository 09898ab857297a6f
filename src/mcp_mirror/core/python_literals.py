"""Translates lists, tuples and dictionaries as Python prints them into JSON.

Many servers return the rows of a database as `str(rows)`, so `[{'id': 1, 'name': None}]`.
"""

import ast
import json
import re
from datetime import UTC, date, datetime
from typing import Final

import msgspec

_SINGLE: Final = r"'(?:[^'\\\n]|\\.)*'"
_STRING: Final = rf'{_SINGLE}|"(?:[^"\\\n]|\\.)*"'
_START: Final = re.compile(
    rf"\s*+(?:[\[({{]\s*+(?:[\[{{]\s*+)?{_SINGLE}\s*+[:,\])]"
    rf"|\[\s*+\(\s*+(?:{_SINGLE}|-?\d[\d.]*|None|True|False)\s*+,)"
)
"""The beginning of dictionaries or lists with a text in single quotes, or of a list of tuples."""
_TIME: Final = r"datetime\((?P<time>\d+(?:, \d+){4,6})(?P<utc>, tzinfo=datetime\.timezone\.utc)?\)"
_TOKEN: Final = re.compile(
    rf"(?P<text>{_STRING})|\b(?P<word>None|True|False)\b|(?P<open>\()|(?P<close>,\s*+\)|\))"
    rf"|\bDecimal\('(?P<number>-?\d+(?:\.\d+)?)'\)|\bUUID\((?P<uuid>{_SINGLE})\)"
    rf"|\bdatetime\.(?:date\((?P<date>\d+, \d+, \d+)\)|{_TIME})|(?P<quote>['\"])"
)
_CLOSING: Final = ("]", ")", "}")
_WORDS: Final = {"None": "null", "True": "true", "False": "false"}


def is_python_literal(head: str) -> bool:
    """Whether a text begins as Python prints a list, a tuple or a dictionary, and not as JSON."""
    return _START.match(head) is not None


def translate_python_literal(text: str) -> bytes | None:
    """Translate a text that is one list, tuple or dictionary of Python into JSON.

    Tuples become arrays. Decimals keep their digits; dates, times and UUIDs become texts.

    Returns:
        None if the text is anything else, or has values without a counterpart in JSON, such as bytes or NaN.
    """
    if not is_python_literal(text) or not text.rstrip().endswith(_CLOSING):
        return None
    try:
        translated = _TOKEN.sub(_translate, text).strip().encode()
        msgspec.json.decode(translated, type=msgspec.Raw)
    except (ValueError, OverflowError, SyntaxError, RecursionError):
        return None
    return translated


def _translate(token: re.Match[str]) -> str:
    match token.lastgroup:
        case "text" | "uuid" as kind:
            return _translate_text(token[kind])
        case "word":
            return _WORDS[token["word"]]
        case "number":
            return token["number"]
        case "open":
            return "["
        case "close":
            return "]"
        case "quote":
            raise ValueError("a string without an end")
    numbers = [int(number) for number in (token["date"] or token["time"]).split(", ")]
    zone = UTC if token["utc"] else None
    at = date(*numbers) if token["date"] else datetime(*numbers, tzinfo=zone)  # type: ignore[misc, arg-type]  # 5 to 7
    return f'"{at.isoformat()}"'


def _translate_text(quoted: str) -> str:
    plain = quoted[1:-1]
    if not ('"' in plain or "\\" in plain):  # most texts, in a quarter of the time
        return f'"{plain}"'
    return json.dumps(ast.literal_eval(quoted), ensure_ascii=False)

"""Translates lists, tuples and dictionaries as Python prints them, and JSON as Python writes it, into JSON.

Many servers return the rows of a database as `str(rows)`, so `[{'id': 1, 'name': None}]`. Of rows with missing numbers,
Python's `json.dumps` makes `[{"id": NaN}]`, which is not JSON.
"""

import ast
import json
import re
from datetime import UTC, date, datetime, time, timedelta, timezone
from functools import partial, reduce
from typing import Final

import msgspec

from mcp_mirror.payload.json_strings import replace_half_pairs
from mcp_mirror.system.patterns import lazy_pattern

_SINGLE: Final = r"'(?:[^'\\\n]++|\\.)*+'"
_STRING: Final = rf'{_SINGLE}|"(?:[^"\\\n]++|\\.)*+"'
_MAX_PARTS: Final = 4096
"""Parts of a text that one match takes: other threads wait until it ends."""
_START: Final = lazy_pattern(
    rf"\s*+(?:[\[({{]\s*+(?:[\[{{]\s*+)?{_SINGLE}\s*+[:,\])]"
    rf"|\[\s*+\(\s*+(?:{_SINGLE}|-?\d[\d.]*|None|True|False)\s*+,|\[\s*+[A-Za-z_]\w*+\({{\s*+{_SINGLE}\s*+:)"
)
"""The beginning of dictionaries, also of a class of their own, or lists with a text in single quotes, or of a list of
tuples."""
_DELTA: Final = r"datetime\.timedelta\((?:0|(?:days=-?\d+)?(?:, )?(?:seconds=\d+)?(?:, )?(?:microseconds=\d+)?)\)"
_ZONE: Final = r"(?:zoneinfo\.)?ZoneInfo\(key='(?:(?:Etc/)?UTC|(?P<zone>[\w/+-]+))'\)"
_TIME: Final = (
    r"(?:datetime\((?P<time>\d+(?:, \d+){4,6})|time\((?P<clock>\d+(?:, \d+){1,3}))"
    rf"(?:, tzinfo=(?P<utc>datetime\.timezone\.utc|datetime\.timezone\((?P<offset>{_DELTA})\)|{_ZONE}))?\)"
)
_UNIT: Final = lazy_pattern(r"(\w+)=(-?\d+)")
_NESTED: Final = reduce(lambda inner, _: rf"\((?:{_STRING}|[^()'\"\n]|{inner})*+\)", range(5), r"\(\)")
"""Arguments in parentheses, in which five levels may be nested."""
_PRINTED: Final = rf"(?:\bb(?:{_STRING}))|\b[A-Za-z_][\w.]*+{_NESTED}|<[A-Za-z_][^<>\n]*+>"
"""Bytes, or an object: `b'x'`, `Range(1, 6, '[)')`, `<memory at 0x7f>`."""
_TOKEN: Final = lazy_pattern(
    rf"(?P<plain>(?:[\s\d.:+\[\]{{}}]++|,(?!\s*+\))|-(?=\d)){{1,{_MAX_PARTS}}}+)"
    rf"|(?P<text>(?:{_STRING})(?:\s++(?:{_STRING})){{0,{_MAX_PARTS}}}+)|(?P<word>-?\b(?:None|True|False|nan|inf|NaT)\b|<NA>)"
    r"|\bnp\.(?:float|u?int)\d+\((?:(?P<scalar>-?\d[\d.e+-]*)|(?P<no_scalar>nan|-?inf))\)"
    rf"|\bTimestamp\((?P<stamp>{_SINGLE})(?:, tz={_SINGLE})?\)|(?P<open>\()|(?P<close>,\s*+\)|\))"
    r"|\bDecimal(?:128)?\('(?:(?P<number>-?\d+(?:\.\d+)?(?:E[+-]?\d+)?)|(?P<no_number>-?s?NaN|-?Infinity))'\)"
    rf"|(?P<class>\b[A-Za-z_][\w.]*+\()(?={{\s*+(?:(?:{_STRING})\s*+:|}}\s*+\)))"
    rf"|\b(?!Decimal)[A-Za-z_][\w.]*+\((?P<only>{_SINGLE})\)"
    rf"|(?P<delta>\b{_DELTA})|\bdatetime\.(?:date\((?P<date>\d+, \d+, \d+)\)|{_TIME})"
    rf"|(?P<json>-|[eE](?=[-+\d])|\b(?:true|false|null)\b)|(?P<printed>{_PRINTED})|(?P<other>(?s:.))"
)
"""A part of a literal, `plain` and `json` as in JSON; `class`: that of a dictionary, such as `RealDictRow({'id': 1})`;
`other`: the text is not a literal."""
_CLOSING: Final = ("]", ")", "}")
_NO_NUMBERS: Final = ("NaN", "Infinity")
_NO_NUMBER: Final = r"-?\b(?:NaN|Infinity)\b"
_JSON_TOKEN: Final = lazy_pattern(
    rf'(?P<json>(?:[^"NI-]++|"(?:[^"\\]++|\\.)*+"?|(?!{_NO_NUMBER})[NI-]){{1,{_MAX_PARTS}}}+)|{_NO_NUMBER}'
)
"""A part of JSON, or a number that JSON does not have. A text without an end is one part, in which no other begins."""
_JSON_NAN: Final = lazy_pattern(r"\s*+[\[{](?s:.*?)[\[:,]\s*+-?(?:NaN|Infinity)\s*+[,\]}]")
_ROWS: Final = lazy_pattern(r"\s*\[\s*(?P<class>[A-Za-z_]\w*\()?(?P<open>[{(])")
_SIGN: Final = lazy_pattern(
    rf"(?P<value>(?:{_STRING}|[^\[\](){{}},'\"]++){{1,{_MAX_PARTS}}}+)"
    r"|(?P<comma>,)|(?P<open>[\[({])|(?P<close>[\])}])|(?P<other>.)"
)
"""A part of a literal for the count of its rows; `other`: a quote that begins no string."""
_CLOSED_BY: Final = {"{": "}", "(": ")"}
_MAX_CUTS: Final = 3
"""Ends of rows that are tried as the last one in the beginning of a text: one may be within a string."""
_WORDS: Final = {"True": "true", "False": "false"}
"""Words of Python with a counterpart in JSON other than null."""


def is_python_literal(head: str) -> bool:
    """Whether a text begins as Python prints a list, a tuple or a dictionary, and not as JSON."""
    return _START.match(head) is not None


def has_nan(head: str) -> bool:
    """Whether a text begins as a JSON array or object with a number that JSON does not have: NaN or Infinity."""
    return _JSON_NAN.match(head) is not None


def replace_nan(text: str) -> str:
    """Replace NaN and Infinity in JSON, as Python writes them, by null."""
    if not any(one in text for one in _NO_NUMBERS):
        return text
    return _JSON_TOKEN.sub(lambda token: token["json"] or "null", text)


def translate_python_literal(text: str) -> bytes | None:
    """Translate a text that is one list, tuple or dictionary of Python, or JSON with what JSON lacks, into JSON.

    Tuples become arrays. Decimals keep their digits. Dates, times, intervals, and objects that are made of one text
    (UUIDs, ids of MongoDB, paths) become texts. Bytes and other objects become the text that Python prints. NaN and
    infinity become null. In JSON, U+FFFD replaces half of a surrogate pair, which servers in JavaScript write where
    they cut a text within an emoji.

    Returns:
        None if the text is anything else, or has values that this does not cover, such as sets.
    """
    if not text.rstrip().endswith(_CLOSING):
        return None
    try:
        if is_python_literal(text):
            translated = _TOKEN.sub(partial(_translate, []), text)
        elif text.lstrip().startswith(("[", "{")):
            translated = replace_nan(text)
            if "\\u" in translated:
                translated = replace_half_pairs(translated.encode()).decode()
            if translated == text:
                return None
        else:
            return None
        found = translated.strip().encode()
        msgspec.json.decode(found, type=msgspec.Raw)
    except (ValueError, OverflowError, SyntaxError, RecursionError):
        return None
    return found


def translate_first_rows(head: str) -> bytes | None:
    """Translate the whole dictionaries or tuples that begin a list of Python into a JSON array; None without any."""
    if (opening := _ROWS.match(head)) is None:
        return None
    end, name = len(head), opening["class"] or ""
    closing = _CLOSED_BY[opening["open"]] + ")" * bool(name)
    for _ in range(_MAX_CUTS):
        if (end := head.rfind(f"{closing}, {name}{opening['open']}", 0, end)) < 0:
            break
        if found := translate_python_literal(f"{head[:end]}{closing}]"):
            return found
    return translate_python_literal(head)


def count_rows(text: str) -> int:
    """Count the items of a list of dictionaries or tuples of Python; 0 for any other text."""
    if not _ROWS.match(text):
        return 0
    depth, commas = 0, 0
    for sign in _SIGN.finditer(text):
        match sign.lastgroup:
            case "comma":
                commas += depth == 1
            case "open":
                depth += 1
            case "close":
                depth -= 1
            case "other":
                return 0
    return commas + 1 if depth == 0 else 0


def _translate(opened: list[str], token: re.Match[str]) -> str:
    """A part of a literal as JSON. `opened` has what the open parentheses are in JSON."""
    match token.lastgroup:
        case "text" | "only" | "stamp" as kind:
            return _translate_text(token[kind])
        case "word" | "no_scalar" | "no_number" as kind:
            return _WORDS.get(token[kind], "null")
        case "plain" | "json" | "number" | "scalar" as kind:
            return token[kind]
        case "printed":
            return json.dumps(token[0], ensure_ascii=False)
        case "open" | "class" | "close" as kind:
            return _translate_parenthesis(opened, kind)
        case "other":
            raise ValueError("a string without an end, or an object that is not a value")
    return f'"{_format_time(token)}"'


def _translate_parenthesis(opened: list[str], kind: str) -> str:
    """The bracket of a tuple; nothing for a parenthesis around a dictionary, after the name of its class."""
    if kind == "close":
        return "]" if not opened or opened.pop() else ""
    opened.append("[" if kind == "open" else "")
    return opened[-1]


def _format_time(token: re.Match[str]) -> str:
    """A date, a time or an interval; the name of a zone other than UTC follows the time."""
    if token["delta"]:
        return str(_read_delta(token["delta"])).replace(", ", " ")  # as databases write intervals
    numbers = [int(number) for number in (token["date"] or token["time"] or token["clock"]).split(", ")]
    if token["date"]:
        return date(*numbers).isoformat()
    zone = timezone(_read_delta(token["offset"])) if token["offset"] else UTC
    kind = time if token["clock"] else datetime
    at = kind(*numbers, tzinfo=zone if token["utc"] and not token["zone"] else None)  # type: ignore[misc, arg-type]  # 2 to 7
    return f"{at.isoformat()} {token['zone']}" if token["zone"] else at.isoformat()


def _read_delta(printed: str) -> timedelta:
    return timedelta(**{unit: int(number) for unit, number in _UNIT.findall(printed)})


def _translate_text(quoted: str) -> str:
    plain = quoted[1:-1]
    if not ('"' in plain or "'" in plain or "\\" in plain):  # most texts, in a quarter of the time
        return f'"{plain}"'
    text = ast.literal_eval(f"({quoted})")  # `pprint` writes long texts in several lines
    return json.dumps(text, ensure_ascii=False)

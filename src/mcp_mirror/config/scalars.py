"""How each kind of value reads a scalar of the file.

A reader sees the text that the user wrote and decides what it means: `8080` is text for `env` and a number for a
budget. A reader returns None for what it rejects.
"""

import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin
from urllib.parse import urlsplit

from mcp_mirror.config.shape import Value
from mcp_mirror.config.source import DECIMAL, Items, Node, Scalar, Table
from mcp_mirror.security.flows import read_rule
from mcp_mirror.settings.declarations import Measure, Number, Percent, Resolution, Text, Url, Written
from mcp_mirror.settings.labels import FlowRule

Kind = Text | Url | Written | Number | Measure | Percent

_BOOLEANS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_LONGEST_NUMBER: Final = 40
_EXACT: Final = 1 << 53
"""Above this, a float does not represent every whole number."""
_REMOTE: Final = ("https://", "http://")

_KIND_NAMES: Final[Mapping[str, str]] = {"nothing": "nothing", "boolean": "true or false"}
_NUMBER_NAMES: Final = (
    (r"[+-]?\.(inf|nan)", "infinity or not a number"),
    (r"-.*", "a negative number"),
    (r"[+0_.]+", "zero"),
    (r"\d{16,}", "a number that is too large"),
    (r"\d+", "a whole number"),
    (r".*", "a number"),
)


def kind_name(node: Node) -> str:
    """Describe a node for a message that must not show its value."""
    match node:
        case Table():
            return "a mapping"
        case Items():
            return "a list"
    if node.kind == "number":
        return next(name for pattern, name in _NUMBER_NAMES if re.fullmatch(pattern, node.text, re.IGNORECASE))
    return _KIND_NAMES.get(node.kind, "text" if node.text else "empty text")


def kind_of(value: Value) -> Kind | None:
    """Return the kind of a scalar value; None for booleans and choices."""
    return next((mark for mark in value.marks if isinstance(mark, Kind)), None)


def describe_wanted(value: Value) -> str:
    """Describe the values that a field accepts."""
    if kind := kind_of(value):
        return kind.wanted
    if get_origin(value.kind) is not Literal:
        return "true or false"
    options: tuple[str, ...] = get_args(value.kind)
    return "one of " + ", ".join(options) if len(options) > 1 else options[0]


def read_scalar(value: Value, scalar: Scalar, folder: Path) -> Any:
    """Return the value of a scalar, with paths made absolute from `folder`; None if it does not fit."""
    kind = kind_of(value)
    if kind is None:
        return read_boolean(scalar) if value.kind is bool else _read_choice(scalar, get_args(value.kind))
    found = _READERS[type(kind)](scalar, kind)
    if found is None:
        return None
    if isinstance(kind, Text | Written):
        return read_rule(found) if value.kind is FlowRule else _resolve(found, kind.resolves, folder)
    if value.kind is int:
        return _as_whole(found, is_rounded=isinstance(kind, Measure))
    return found


def _as_whole(number: float, *, is_rounded: bool) -> int | None:
    return math.ceil(number) if is_rounded or number.is_integer() else None


def _read_choice(scalar: Scalar, options: tuple[str, ...]) -> str | None:
    return scalar.text if scalar.text in options else None


def read_boolean(scalar: Scalar) -> bool | None:
    """Return a boolean as YAML writes it; None if it is not one."""
    value = _BOOLEANS.get(scalar.text.lower()) if scalar.kind in ("boolean", "expanded") else None
    return value if value is None else value is not scalar.flipped


def expand_home(path: str) -> str:
    """Replace a leading `~`; an unknown user's stays."""
    return os.path.expanduser(path)  # noqa: PTH111  # Path.expanduser raises for an unknown user


def _resolve(text: str, resolution: Resolution, folder: Path) -> str:
    if not resolution or (resolution == "file or URL" and text.startswith(_REMOTE)):
        return text
    return expand_home(text) if resolution == "home" else os.path.normpath(folder / expand_home(text))


def _read_text(scalar: Scalar, kind: Text) -> str | None:
    is_text = scalar.kind in ("text", "expanded") and re.fullmatch(kind.pattern, scalar.text)
    return scalar.text.removeprefix(kind.prefix) if is_text else None


def _read_written(scalar: Scalar, kind: Written) -> str | None:
    text = scalar.text.strip(kind.stripped) if kind.stripped else scalar.text
    return text if scalar.kind != "nothing" and re.fullmatch(kind.pattern, text) else None


def _read_url(scalar: Scalar, _kind: Url) -> str | None:
    if scalar.kind not in ("text", "expanded") or re.search(r"[\s\x00-\x1f\x7f]", scalar.text):
        return None
    try:
        parts = urlsplit(scalar.text)
        is_usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return scalar.text if is_usable else None


def _read_bounded(scalar: Scalar, kind: Number) -> float | None:
    if kind.none_word and scalar.text.lower() == kind.none_word:
        return 0.0
    number = _read_number(scalar)
    if number is None:
        return None
    is_low = (kind.minimum is not None and number < kind.minimum) or (kind.above is not None and number <= kind.above)
    is_high = kind.maximum is not None and number > kind.maximum
    return None if is_low or is_high else number


def _read_number(scalar: Scalar) -> float | None:
    if (
        scalar.kind not in ("number", "expanded")
        or len(scalar.text) > _LONGEST_NUMBER
        or not DECIMAL.fullmatch(scalar.text)
    ):
        return None
    number = float(scalar.text.replace("_", ""))
    return number if abs(number) <= _EXACT else None


def _read_measure(scalar: Scalar, kind: Measure) -> float | None:
    units = dict(kind.units)
    found = re.fullmatch(r"(\d{1,16}(?:\.\d{1,6})?)\s*([A-Za-z]*)", scalar.text, re.ASCII)
    if scalar.kind not in ("number", "text", "expanded") or not found or found[2].lower() not in units:
        return None
    amount = float(found[1]) * units[found[2].lower()]
    return amount if 0 < amount <= _EXACT else None


def _read_percent(scalar: Scalar, _kind: Percent) -> float | None:
    part = re.fullmatch(r"(\d{1,2}(?:\.\d{1,3})?)\s*%", scalar.text, re.ASCII)
    return float(part[1]) / 100 if part and scalar.kind in ("text", "expanded") else None


_READERS: Final[Mapping[type, Callable[[Scalar, Any], Any]]] = {
    Text: _read_text,
    Written: _read_written,
    Url: _read_url,
    Number: _read_bounded,
    Measure: _read_measure,
    Percent: _read_percent,
}

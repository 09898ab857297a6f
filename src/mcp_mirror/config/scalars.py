"""How each kind of value is read from a scalar of the file, and written.

The kind decides what the text of a scalar means: `8080` is text for `env` and a number for a budget.
"""

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin
from urllib.parse import urlsplit

from mcp_mirror.config.shape import Field, Value
from mcp_mirror.config.source import DECIMAL, Items, Node, Scalar, YamlMapping
from mcp_mirror.security.flows import read_rule
from mcp_mirror.settings.declarations import Measure, Number, Resolution, Section, Text
from mcp_mirror.settings.labels import FlowRule
from mcp_mirror.system.patterns import lazy_pattern

Kind = Text | Number | Measure

_BOOLEANS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_LONGEST_NUMBER: Final = 40
_LONGEST_URL: Final = 1 << 16
"""Characters up to which the HTTP library reads a URL."""
_EXACT: Final = 1 << 53
"""Above this, a float does not represent every whole number."""
GROUPED: Final = lazy_pattern(r"\.\d{3}$", re.ASCII)
"""The end of a number such as 1.000, which may mean a thousand, but not to YAML."""
_PLAIN: Final = lazy_pattern(r"[A-Za-z_/][\w./-]*|[0-9]+[A-Za-z]+")
"""Texts that YAML reads as text without quotes."""

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
        case YamlMapping():
            return "a mapping"
        case Items():
            return "a list" if node.nodes else "an empty list"
    if node.kind == "number":
        return next(name for pattern, name in _NUMBER_NAMES if re.fullmatch(pattern, node.text, re.IGNORECASE))
    return {"nothing": "nothing", "boolean": "true or false"}.get(node.kind, "text" if node.text else "empty text")


def find_scalar_kind(value: Value) -> Kind | None:
    """Return the kind of a scalar value; None for booleans and choices."""
    return next((mark for mark in value.marks if isinstance(mark, Kind)), None)


def describe_expected(value: Value) -> str:
    """Describe the values that a field accepts."""
    if kind := find_scalar_kind(value):
        return kind.expected
    if get_origin(value.kind) is not Literal:
        return "true or false"
    options = list_options(value)
    return "one of " + ", ".join(options) if len(options) > 1 else options[0]


def list_options(value: Value) -> tuple[str, ...]:
    """Return the words that a field accepts; empty for other kinds of values."""
    return get_args(value.kind) if get_origin(value.kind) is Literal else ()


def read_scalar(value: Value, scalar: Scalar, folder: Path) -> Any:
    """Return the value of a scalar, with paths made absolute from `folder`; None if it does not fit."""
    match find_scalar_kind(value):
        case Text() as kind:
            text = _read_text(scalar, kind)
            if text is None:
                return None
            return read_rule(text) if value.kind is FlowRule else _resolve(text, kind.resolves, folder)
        case Number() as kind:
            number = _read_number(scalar, kind)
            is_whole = number is not None and number.is_integer() and not GROUPED.search(scalar.text)
            return None if number is None or (value.kind is int and not is_whole) else value.kind(number)
        case Measure() as kind:
            amount = _read_measure(scalar, kind)
            return math.ceil(amount) if value.kind is int and amount is not None else amount
    if value.kind is bool:
        return read_boolean(scalar)
    return scalar.text if scalar.text in get_args(value.kind) else None


def read_boolean(scalar: Scalar) -> bool | None:
    """Return a boolean as YAML writes it; None if it is not one."""
    value = _BOOLEANS.get(scalar.text.lower()) if scalar.kind in ("boolean", "expanded") else None
    return value if value is None else value is not scalar.is_inverted


def expand_home(path: str) -> str:
    """Replace a leading `~`, except `~name` of an unknown user."""
    return os.path.expanduser(path)  # noqa: PTH111  # Path.expanduser raises for an unknown user


def _resolve(text: str, resolution: Resolution, folder: Path) -> str:
    if not resolution or (resolution == "file or URL" and text.startswith(("https://", "http://"))):
        return text
    return expand_home(text) if resolution == "home" else os.path.normpath(folder / expand_home(text))


def _read_text(scalar: Scalar, kind: Text) -> str | None:
    text = scalar.text.strip(kind.stripped) if kind.stripped else scalar.text
    is_text = scalar.kind in ("text", "expanded") or (kind.is_literal and scalar.kind != "nothing")
    if not is_text or not re.fullmatch(kind.pattern, text) or (kind.is_url and not _is_url(text)):
        return None
    return text.removeprefix(kind.prefix)


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        is_complete = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return is_complete and len(text) <= _LONGEST_URL and (text.isascii() or _has_valid_host(text))


def _has_valid_host(url: str) -> bool:
    """Whether a host name with other letters than ASCII is one: an address that was copied may have invisible ones."""
    import httpx2  # noqa: PLC0415  # it takes long to import, and few addresses need it

    try:
        httpx2.URL(url)
    except httpx2.InvalidURL:
        return False
    return True


def _read_number(scalar: Scalar, kind: Number) -> float | None:
    text = scalar.text
    if kind.none_word and text.lower() == kind.none_word:
        return 0.0
    if scalar.kind not in ("number", "expanded") or len(text) > _LONGEST_NUMBER or not DECIMAL.fullmatch(text):
        return None
    number = float(text.replace("_", ""))
    is_low = (kind.minimum is not None and number < kind.minimum) or (kind.above is not None and number <= kind.above)
    is_high = number > min(_EXACT, _EXACT if kind.maximum is None else kind.maximum)
    return None if is_low or is_high else number


def _read_measure(scalar: Scalar, kind: Measure) -> float | None:
    text = scalar.text
    if DECIMAL.fullmatch(text) and len(text) <= _LONGEST_NUMBER:  # such as 1_000, .5 and 1e3
        text = f"{float(text.replace('_', '')):f}"
    found = re.fullmatch(kind.pattern, text, re.ASCII)
    if scalar.kind not in ("number", "text", "expanded") or not found:
        return None
    sizes = {unit.strip().lower(): size for unit, size in kind.units}
    amount = float(found[1]) * sizes[found[2].lower()]
    return amount if amount <= _EXACT else None


def write_default(one: Field) -> str:
    """Write the default of a key as YAML; nothing if it is missing, empty, or described in the documentation."""
    default = one.default
    is_empty = default is None or default == "" or (isinstance(default, tuple | Mapping) and not default)
    return "" if one.is_required or is_empty or isinstance(default, Section) else write_value(one.value, default)


def write_value(value: Value, content: Any) -> str:
    """Write a value in YAML's flow style."""
    if isinstance(content, Mapping):
        return "{" + ", ".join(f"{key}: {write_value(value, inner)}" for key, inner in content.items()) + "}"
    if isinstance(content, tuple):
        return "[" + ", ".join(write_value(value.items, item) for item in content) + "]"
    if isinstance(content, str):
        return content if _PLAIN.fullmatch(content) else f'"{content}"'
    if isinstance(content, bool):
        return "true" if content else "false"
    kind = find_scalar_kind(value)
    for unit, size in reversed(kind.units) if isinstance(kind, Measure) and content else ():
        if (content / size).is_integer():
            return f"{content / size:.0f}{unit}"
    return str(content).removesuffix(".0")

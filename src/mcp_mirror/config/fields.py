"""How each kind of field reads what a configuration says: text, numbers, sizes, globs, and so on.

A field reads the nodes of `yaml_source`, so it decides itself what a scalar means: `8080` is text for `env` and
a number for a budget. Each type here also says what it wants and how an editor's schema shows it. This module
must not know which keys there are.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, get_args
from urllib.parse import urlsplit

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from mcp_mirror.config.source import DECIMAL, Items, Node, Scalar, Table
from mcp_mirror.security.flows import RULE
from mcp_mirror.settings.access import Algorithm, Grant
from mcp_mirror.settings.labels import Across, Integrity, Lowering, OnRefusal
from mcp_mirror.settings.limits import MAX_DEPTH
from mcp_mirror.settings.policies import (
    CaptureMode,
    ClearMode,
    LockMode,
    LogFormat,
    NoticeStyle,
    ProtocolVersion,
    Scope,
    StoreKind,
    TokenProvider,
)

Transport = Literal["stdio", "streamable-http", "sse"]

NO_RATE: Final = "none"
"""What stands for no bound where one is else the default."""

WANTED: Final = "wanted"
"""The type of every error of ours; its context's `wanted` says what would do."""

_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, section 5.6.2
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")
_SIZES: Final = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_DURATIONS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_BOOLEANS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_LONGEST_NUMBER: Final = 40
_LAST_PORT: Final = 65_535
_EXACT: Final = 1 << 53
"""Past this a float no longer holds every whole number."""

_KIND_NAMES: Final[Mapping[str, str]] = {"nothing": "nothing", "boolean": "true or false"}
_NUMBER_NAMES: Final = (
    (r"[+-]?\.(inf|nan)", "infinity or not a number"),
    (r"-.*", "a negative number"),
    (r"[+0_.]+", "zero"),
    (r"\d{16,}", "a number that is too large"),
    (r"\d+", "a whole number"),
    (r".*", "a number"),
)

_VARIABLE_SCHEMA: Final = {"type": "string", "pattern": r"\$\{", "description": "${VAR} or ${VAR:-default}"}


def kind_name(node: Node) -> str:
    """What something is, for a message that may not show it."""
    match node:
        case Table():
            return "a mapping"
        case Items():
            return "a list"
    if node.kind == "number":
        return next(name for pattern, name in _NUMBER_NAMES if re.fullmatch(pattern, node.text, re.IGNORECASE))
    return _KIND_NAMES.get(node.kind, "text" if node.text else "empty text")


def read_boolean(scalar: Scalar) -> bool | None:
    """True or false as YAML writes them; None if it is neither."""
    value = _BOOLEANS.get(scalar.text.lower()) if scalar.kind in ("boolean", "expanded") else None
    return value if value is None else value is not scalar.flipped


def _read_number(scalar: Scalar) -> float | None:
    if (
        scalar.kind not in ("number", "expanded")
        or len(scalar.text) > _LONGEST_NUMBER
        or not DECIMAL.fullmatch(scalar.text)
    ):
        return None
    number = float(scalar.text.replace("_", ""))
    return number if abs(number) <= _EXACT else None


def _read_whole(scalar: Scalar) -> int | None:
    number = _read_number(scalar)
    return int(number) if number is not None and number.is_integer() and number >= 0 else None


def _read_seconds(scalar: Scalar) -> float | None:
    number = _read_number(scalar)
    return number if number is not None and number > 0 else None


def _read_pause(scalar: Scalar) -> float | None:
    number = _read_number(scalar)
    return number if number is not None and number >= 0 else None


def _read_measure(scalar: Scalar, units: Mapping[str, int]) -> float | None:
    found = re.fullmatch(r"(\d{1,16}(?:\.\d{1,6})?)\s*([A-Za-z]*)", scalar.text, re.ASCII)
    if scalar.kind not in ("number", "text", "expanded") or not found or found[2].lower() not in units:
        return None
    amount = float(found[1]) * units[found[2].lower()]
    return amount if 0 < amount <= _EXACT else None


def _read_bytes(scalar: Scalar) -> int | None:
    amount = _read_measure(scalar, _SIZES)
    return None if amount is None else math.ceil(amount)


def _read_duration(scalar: Scalar) -> float | None:
    return _read_measure(scalar, _DURATIONS)


def _read_percent(scalar: Scalar) -> float | None:
    found = re.fullmatch(r"(\d{1,2}(?:\.\d{1,3})?)\s*%", scalar.text, re.ASCII)
    return float(found[1]) / 100 if found and scalar.kind in ("text", "expanded") else None


def _read_window(scalar: Scalar) -> int | None:
    return _read_whole(scalar) or None


def _read_rate(scalar: Scalar) -> int | str | None:
    return NO_RATE if scalar.text.lower() == NO_RATE else _read_window(scalar)


def _read_depth(scalar: Scalar) -> int | None:
    number = _read_window(scalar)
    return number if number is not None and number <= MAX_DEPTH else None


def _read_text(scalar: Scalar) -> str | None:
    return scalar.text if scalar.kind in ("text", "expanded") and scalar.text.strip() else None


def _read_written(scalar: Scalar) -> str | None:
    """Any scalar's text, exactly as the file has it: `yes`, `007` and `1e3` are not what YAML makes of them."""
    return None if scalar.kind == "nothing" else scalar.text


def _read_header(scalar: Scalar) -> str | None:
    text = None if scalar.kind == "nothing" else scalar.text.strip(" \t")
    return text if text is not None and _HEADER_VALUE.fullmatch(text) else None


def _read_url(scalar: Scalar) -> str | None:
    text = _read_text(scalar)
    if text is None or re.search(r"[\s\x00-\x1f\x7f]", text):
        return None
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return text if usable else None


def _read_port(scalar: Scalar) -> int | None:
    number = _read_whole(scalar)
    return number if number is not None and number <= _LAST_PORT else None


def _matching(pattern: str) -> Callable[[Scalar], str | None]:
    def read(scalar: Scalar) -> str | None:
        text = _read_text(scalar)
        return text if text is not None and re.fullmatch(pattern, text) else None

    return read


_HASHED: Final = "sha256:[0-9a-f]{64}"
_SCOPE: Final = r"[!#-\[\]-~]+"  # RFC 6749, section 3.3
_HOST: Final = r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?:\d{1,5}|\*))?"
_SUFFIX: Final = r"[A-Za-z0-9_-]{0,32}"


def _read_suffix(scalar: Scalar) -> str | None:
    return scalar.text if scalar.kind in ("text", "expanded") and re.fullmatch(_SUFFIX, scalar.text) else None


def _scalar(wanted: str, read: Callable[[Scalar], object]) -> BeforeValidator:
    """A field that reads a scalar by `read`, which gives None for what it does not want."""

    def validate(value: object) -> object:
        found = read(value) if isinstance(value, Scalar) else None
        if found is None:
            raise PydanticCustomError(WANTED, "{wanted}", {"wanted": wanted})
        return found

    return BeforeValidator(validate)


def _choice(kind: Any) -> BeforeValidator:
    options: tuple[str, ...] = get_args(kind)
    wanted = "one of " + ", ".join(options) if len(options) > 1 else options[0]
    return _scalar(wanted, lambda scalar: scalar.text if scalar.text in options else None)


def _named(wanted: str, names: re.Pattern[str]) -> BeforeValidator:
    """A mapping whose every key is such a name. The message names no key: it may be a misplaced secret."""

    def validate(value: object) -> object:
        if isinstance(value, dict) and not all(names.fullmatch(key) for key in value):
            raise PydanticCustomError(WANTED, "{wanted}", {"wanted": wanted})
        return value

    return BeforeValidator(validate)


def _empty_if_nothing(value: object) -> object:
    return {} if isinstance(value, Scalar) and value.kind == "nothing" else value


def _some_keys(value: object) -> object:
    if not value or (isinstance(value, Scalar) and value.kind == "nothing"):
        raise PydanticCustomError(WANTED, "{wanted}", {"wanted": "a list 'keys' of one secret or more"})
    return value


def _or_variable(**schema: object) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [schema, _VARIABLE_SCHEMA]})


def _measure(unit: str, example: str) -> WithJsonSchema:
    text = {"type": "string", "pattern": rf"^\d+(\.\d+)?\s*({unit})?$", "examples": [example]}
    return WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, text, _VARIABLE_SCHEMA]})


Text = Annotated[str, _scalar("text that is not empty", _read_text)]
Command = Annotated[str, _scalar("the name or path of a program", _read_text)]
Suffix = Annotated[
    str,
    _scalar('up to 32 of A-Z, a-z, 0-9, _ and - ("" for none)', _read_suffix),
    _or_variable(type="string", pattern=f"^{_SUFFIX}$"),
]
UrlPath = Annotated[str, _scalar("a path such as /mcp", _matching(r"/[A-Za-z0-9._~/-]*"))]
Url = Annotated[str, _scalar("an address such as https://example.com/mcp", _read_url)]
Written = Annotated[
    str,
    _scalar('text, a number or true/false (write "" for empty text)', _read_written),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
]
HeaderValue = Annotated[
    str,
    _scalar("one line of ASCII text", _read_header),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
]
Flag = Annotated[bool, _scalar("true or false", read_boolean), _or_variable(type="boolean")]
Whole = Annotated[int, _scalar("a whole number, 0 or more", _read_whole), _or_variable(type="integer", minimum=0)]
Window = Annotated[
    int, _scalar("a number of tokens above 0", _read_window), _or_variable(type="integer", exclusiveMinimum=0)
]
Count = Annotated[
    int, _scalar("a whole number above 0", _read_window), _or_variable(type="integer", exclusiveMinimum=0)
]
Rate = Annotated[
    int | Literal["none"],
    _scalar("a whole number above 0, or none", _read_rate),
    WithJsonSchema({"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, {"const": NO_RATE}, _VARIABLE_SCHEMA]}),
]
Depth = Annotated[
    int,
    _scalar(f"a number of levels from 1 to {MAX_DEPTH}", _read_depth),
    _or_variable(type="integer", minimum=1, maximum=MAX_DEPTH),
]
Percent = Annotated[
    float,
    _scalar("a part below 100 %, such as 20 %", _read_percent),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "pattern": r"^\d{1,2}(\.\d{1,3})?\s*%$", "examples": ["20 %"]}, _VARIABLE_SCHEMA]}
    ),
]
Seconds = Annotated[
    float,
    _scalar("a number of seconds above 0", _read_seconds),
    _or_variable(type="number", exclusiveMinimum=0),
]
Pause = Annotated[float, _scalar("a number of seconds, 0 or more", _read_pause), _or_variable(type="number", minimum=0)]
Bytes = Annotated[
    int,
    _scalar("a size above 0 in bytes, or with KB, MB, GB, KiB, MiB or GiB", _read_bytes),
    _measure("B|[KMG]i?B", "8GiB"),
]
Duration = Annotated[
    float,
    _scalar("a duration above 0 in seconds, or with s, m, h or d", _read_duration),
    _measure("[smhd]", "24h"),
]
TransportName = Annotated[Transport, _choice(Transport), _or_variable(enum=list(get_args(Transport)))]
Capture = Annotated[CaptureMode, _choice(CaptureMode), _or_variable(enum=list(get_args(CaptureMode)))]
Provider = Annotated[TokenProvider, _choice(TokenProvider), _or_variable(enum=list(get_args(TokenProvider)))]
Notice = Annotated[NoticeStyle, _choice(NoticeStyle), _or_variable(enum=list(get_args(NoticeStyle)))]
Protocols = Annotated[ProtocolVersion, _choice(ProtocolVersion), _or_variable(enum=list(get_args(ProtocolVersion)))]
Scopes = Annotated[Scope, _choice(Scope), _or_variable(enum=list(get_args(Scope)))]
Secret = Annotated[str, _scalar("a secret of 32 characters or more", _matching(r"(?s).{32,}"))]
Locking = Annotated[LockMode, _choice(LockMode), _or_variable(enum=[*get_args(LockMode), False])]  # `off` in YAML 1.1
Logging = Annotated[LogFormat, _choice(LogFormat), _or_variable(enum=list(get_args(LogFormat)))]
Clear = Annotated[ClearMode, _choice(ClearMode), _or_variable(enum=list(get_args(ClearMode)))]
TokenHash = Annotated[
    str,
    _scalar("sha256: and 64 hexadecimal digits, as `mcp-mirror token NAME` prints them", _matching(_HASHED)),
    WithJsonSchema({"type": "string", "pattern": f"^{_HASHED}$"}),
]
ScopeName = Annotated[str, _scalar("a scope: ASCII text without spaces, quotes or backslashes", _matching(_SCOPE))]
Host = Annotated[str, _scalar("a host such as tools.example.com, with a port or :* if need be", _matching(_HOST))]
Origin = Annotated[str, _scalar("an origin such as https://app.example.com", _matching(rf"https?://{_HOST}"))]
Port = Annotated[int, _scalar("a port, 0 to 65535", _read_port), _or_variable(type="integer", minimum=0, maximum=65535)]
Algorithms = Annotated[Algorithm, _choice(Algorithm), _or_variable(enum=list(get_args(Algorithm)))]
Grants = Annotated[Grant, _choice(Grant), _or_variable(enum=list(get_args(Grant)))]
Integrities = Annotated[Integrity, _choice(Integrity), _or_variable(enum=list(get_args(Integrity)))]
Lowerings = Annotated[Lowering, _choice(Lowering), _or_variable(enum=list(get_args(Lowering)))]
Zonal = Annotated[Across, _choice(Across), _or_variable(enum=list(get_args(Across)))]
Answers = Annotated[OnRefusal, _choice(OnRefusal), _or_variable(enum=list(get_args(OnRefusal)))]
Level = Annotated[str, _scalar("a level: a word of a-z, 0-9, _ and -", _matching(r"[a-z][a-z0-9_-]{0,31}"))]
Zone = Annotated[str, _scalar("a zone: 1 to 64 of A-Z, a-z, 0-9, _, - and dots", _matching(r"[A-Za-z0-9_.-]{1,64}"))]
Flow = Annotated[str, _scalar("a flow such as 'crm -> mail'", _matching(RULE))]
Storage = Annotated[StoreKind, _choice(StoreKind), _or_variable(enum=list(get_args(StoreKind)))]

OrNothing: Final = BeforeValidator(_empty_if_nothing)
"""Makes a mapping of which every line is commented out an empty one."""
Globs = tuple[Written, ...]
Secrets = Annotated[tuple[Secret, ...], BeforeValidator(lambda value: _empty_if_nothing(value) or ())]
Keys = Annotated[tuple[Secret, ...], BeforeValidator(_some_keys)]
Listed: Final = BeforeValidator(lambda value: [value] if isinstance(value, Scalar) else value)
"""Takes one thing for a list of it."""
Words = Annotated[tuple[Written, ...], BeforeValidator(lambda value: _empty_if_nothing(value) or ())]
Environment = Annotated[dict[str, Written], _named("names without '=' in them", re.compile(r"[^=\0]+")), OrNothing]
Headers = Annotated[dict[str, HeaderValue], _named("names of HTTP headers", _HEADER_NAME), OrNothing]

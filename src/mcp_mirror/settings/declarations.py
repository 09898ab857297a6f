"""The language of declarations: kinds of values with their bounds, and marks for the shape of the file.

The `Annotated` type of a field contains a kind. `config` reads values by it, and generates the JSON Schema and the
reference page from it. The docstring below a field is its documentation.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

ANYTHING: Final = r"[\s\S]*"
"""The pattern of every text."""
Resolution = Literal["", "home", "file", "file or URL"]
"""How a text becomes a path: not at all, by expanding `~`, relative to the file's folder, or so if it is not a URL."""


class Text(msgspec.Struct, frozen=True):
    """A text that matches a pattern. Python and JSON Schema read the pattern alike."""

    expected: str = "text that is not empty"
    pattern: str = r"[\s\S]*\S[\s\S]*"
    resolves: Resolution = ""
    is_url: bool = False
    """Whether host and port must be usable, too."""
    is_literal: bool = False
    """Whether any scalar is a text, exactly as the file writes it: `yes`, `007` and `1e3`."""
    stripped: str = ""
    """Characters that the value does not keep at its ends."""
    prefix: str = ""
    """A part of the pattern that the value does not keep."""


class Number(msgspec.Struct, frozen=True):
    """A number with bounds."""

    expected: str
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    none_word: str = ""
    """A word that means 0."""


class Measure(msgspec.Struct, frozen=True):
    """A number with a unit."""

    expected: str
    units: tuple[tuple[str, float], ...]
    """Each unit, as documents write it, and its size. The unit "" permits a number without a unit."""
    pattern: str
    """Its groups are the number and the unit."""
    example: str
    may_be_zero: bool = False


class Names(msgspec.Struct, frozen=True):
    """The names that the keys of a mapping may have."""

    expected: str
    pattern: str


class AtLeast(msgspec.Struct, frozen=True):
    """The minimum number of items in a list."""

    count: int
    expected: str


class Mark(msgspec.Struct, frozen=True):
    """A property of a field that is not a bound."""

    name: str


INLINE: Final = Mark("inline")
"""The file has the keys of the field's class directly in this section."""
INTERNAL: Final = Mark("internal")
"""The file has no such key."""
NAME: Final = Mark("name")
"""The value is the name of the section in the file."""
REQUIRED: Final = Mark("required")
"""The file must contain the key, although the field has a default."""
FILE_ONLY: Final = Mark("file only")
"""The key affects other fields while the file is read; the object keeps the default."""
SINGLE: Final = Mark("single")
"""The file may contain one item instead of a list."""
OPTIONAL_LIST: Final = Mark("optional list")
"""The key may be without a value, which is an empty list."""
SECRET: Final = Mark("secret")
"""The value may contain a secret, so `repr` omits it."""


class Section(msgspec.Struct, frozen=True):
    """A section of the configuration."""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return the names and values of the fields without secrets, as `rich` and `repr` print them."""
        fields = msgspec.structs.fields(self)
        shown = (one.name for one in fields if SECRET not in getattr(one.type, "__metadata__", ()))
        return [(name, getattr(self, name)) for name in shown]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


class Key(msgspec.Struct, frozen=True):
    """The key of a field that has another name in the file."""

    name: str


class Group(msgspec.Struct, frozen=True):
    """A mapping of the file that has no section of its own: the field is a key in it."""

    name: str
    documentation: str
    is_required: bool = False
    """Whether the mapping must contain the key."""


class Without(msgspec.Struct, frozen=True):
    """Keys that a section does not have in this place."""

    names: tuple[str, ...]


class Shorthand(msgspec.Struct, frozen=True):
    """The file may contain the value of this key instead of the section."""

    key: str


class Example(msgspec.Struct, frozen=True):
    """A value for the example file, for a key without a default or with a default that explains little."""

    value: Any


_SIZES: Final = (
    *(("", 1), ("B", 1), ("KB", 10**3), ("MB", 10**6), ("GB", 10**9)),
    *(("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)),
)
_DURATIONS: Final = (("", 1), ("s", 1), ("m", 60), ("h", 3600), ("d", 86_400))
_AMOUNT: Final = r"(\d{1,16}(?:\.\d{1,6})?)\s*"
_POSITIVE: Final = rf"(?=.*[1-9]){_AMOUNT}"
_NAME_OR_ADDRESS: Final = r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
_PORT: Final = r"(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_HOST: Final = rf"{_NAME_OR_ADDRESS}(?::(?:{_PORT}|\*))?"
_LITERAL: Final = 'text, a number or true/false (write "" for empty text)'
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
"""The ports of URLs that name none."""
UPSTREAM_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

Line = Annotated[str, Text()]
Command = Annotated[str, Text("the name or path of a program", resolves="home")]
FilePath = Annotated[str, Text(resolves="file")]
KeySetLocation = Annotated[str, Text(resolves="file or URL")]
Suffix = Annotated[str, Text('up to 32 of A-Z, a-z, 0-9, _ and - ("" for none)', r"[A-Za-z0-9_-]{0,32}")]
UrlPath = Annotated[str, Text("a path such as /mcp", r"/[A-Za-z0-9._~/-]*")]
Address = Annotated[
    str,
    Text(
        "an address such as https://example.com/mcp",
        r"[Hh][Tt][Tt][Pp][Ss]?://[^\s/?#\x00-\x1f\x7f][^\s\x00-\x1f\x7f]*",
        is_url=True,
    ),
]
RedisAddress = Annotated[
    str,
    Text(
        "an address such as redis://127.0.0.1:6379/0, rediss:// for TLS, or unix:///PATH, with user and password "
        "percent-encoded (%40 for @)",
        r"[Rr][Ee][Dd][Ii][Ss][Ss]?://[^/?#]*(?:/[0-9]*)?(?:\?[^#]*)?|[Uu][Nn][Ii][Xx]://[^#]+",
    ),
]
BucketAddress = Annotated[str, Text("the address of a bucket, s3://BUCKET or s3://BUCKET/PREFIX", r"s3://[^/][\s\S]*")]
Host = Annotated[str, Text("a host such as tools.example.com, optionally with a port or :*", _HOST)]
Origin = Annotated[str, Text("an origin such as https://app.example.com", rf"https?://{_HOST}")]
Listener = Annotated[str, Text("an address such as 127.0.0.1:9464", rf"{_NAME_OR_ADDRESS}:{_PORT}")]
Secret = Annotated[str, Text("a secret of 32 characters or more", r"[\s\S]{32,}")]
TokenHash = Annotated[
    str,
    Text(
        "sha256: and 64 hexadecimal digits, as `mcp-mirror token NAME` prints them",
        "sha256:[0-9a-f]{64}",
        prefix="sha256:",
    ),
]
ScopeName = Annotated[str, Text("a scope: ASCII text without spaces, quotes or backslashes", r"[!#-\[\]-~]+")]
"""RFC 6749, section 3.3."""
Level = Annotated[str, Text("a level: a word of a-z, 0-9, _ and -", r"[a-z][a-z0-9_-]{0,31}")]
Zone = Annotated[str, Text("a zone: 1 to 64 of A-Z, a-z, 0-9, _, - and dots", r"[A-Za-z0-9_.-]{1,64}")]
Word = Annotated[str, Text(_LITERAL, ANYTHING, is_literal=True)]
HeaderValue = Annotated[str, Text("one line of ASCII text", r"[\t\x20-\x7e]*", is_literal=True, stripped=" \t")]

Whole = Annotated[int, Number("a whole number, 0 or more", minimum=0)]
Count = Annotated[int, Number("a whole number above 0", above=0)]
Tokens = Annotated[int, Number("a number of tokens above 0", above=0)]
Rate = Annotated[int, Number("a whole number above 0, or none", above=0, none_word="none")]
Port = Annotated[int, Number("a port, 0 to 65535", minimum=0, maximum=65_535)]
Part = Annotated[
    float, Measure("a part below 100 %, such as 20 %", ((" %", 0.01),), r"(\d{1,2}(?:\.\d{1,3})?)\s*(%)", "20 %")
]
Bytes = Annotated[
    int,
    Measure(
        "a size above 0 in bytes, or with KB, MB, GB, KiB, MiB or GiB",
        _SIZES,
        rf"{_POSITIVE}((?:[KkMmGg][Ii]?)?[Bb]|)",
        "8GiB",
    ),
]
Duration = Annotated[
    float,
    Measure("a duration above 0 in seconds, or with s, m, h or d", _DURATIONS, rf"{_POSITIVE}([SsMmHhDd]|)", "24h"),
]
"""A time in seconds."""
Pause = Annotated[
    float,
    Measure(
        "a duration of 0 or more in seconds, or with s, m, h or d",
        _DURATIONS,
        rf"{_AMOUNT}([SsMmHhDd]|)",
        "10s",
        may_be_zero=True,
    ),
]

Globs = tuple[Word, ...]
Words = Annotated[tuple[Word, ...], OPTIONAL_LIST]
Roots = Annotated[tuple[Annotated[str, Text(_LITERAL, ANYTHING, "file", is_literal=True)], ...], OPTIONAL_LIST]
Secrets = Annotated[tuple[Secret, ...], OPTIONAL_LIST]
Scopes = Annotated[tuple[ScopeName, ...], SINGLE]
ClaimValues = Annotated[tuple[Word, ...], SINGLE, AtLeast(1, "a text, or a list of one text or more")]
Claims = Annotated[Mapping[str, ClaimValues], Names("names of claims", r"[\s\S]*\S[\s\S]*")]
_VARIABLE_NAMES: Final = Names("names without '=' in them", r"[^=\x00]+")
_HEADER_NAMES: Final = Names("names of HTTP headers", r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""RFC 9110, section 5.6.2."""
HeaderName = Annotated[str, Text("the name of an HTTP header", _HEADER_NAMES.pattern)]
Environment = Annotated[Mapping[str, Word], _VARIABLE_NAMES]
ClientEnvironment = Annotated[Mapping[str, HeaderName], _VARIABLE_NAMES]
Headers = Annotated[Mapping[str, HeaderValue], _HEADER_NAMES]
ClientHeaderNames = Annotated[Mapping[str, HeaderName], _HEADER_NAMES]

"""Data types that all packages share: spans, values and their descriptors.

This module imports no other module of the package and contains no logic.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import msgspec

Buffer = bytes | memoryview
"""Immutable bytes. A view keeps the frame alive that it is a part of."""

Segments = tuple[Buffer, ...]
"""Consecutive pieces of one JSON text."""

Kind = Literal["object", "array", "text", "number", "boolean", "null", "binary"]

JsonToken = str | int
"""One step down a JSON value: an object's key or an array's index."""

Location = tuple[JsonToken, ...]
"""A place in a JSON value: the steps from its root."""


_MEDIA_TYPES: Mapping[Kind, str] = {"text": "text/plain", "binary": "application/octet-stream"}


def media_type_of(kind: Kind, declared: str | None = None) -> str:
    """The media type of a value as a resource: the declared one, or the default of its kind."""
    return declared or _MEDIA_TYPES.get(kind, "application/json")


class Span(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """A byte range of a blob. An index has very many: the garbage collector does not visit them."""

    start: int
    length: int

    def __iter__(self) -> Iterator[int]:
        yield self.start
        yield self.length

    @property
    def stop(self) -> int:
        """The first byte after the range."""
        return self.start + self.length


class TextSize(NamedTuple):
    """The size of a text without quotes and escapes."""

    size: int
    """Bytes (UTF-8)."""
    breaks: int
    """Line breaks; 0 for a text that is too large to count them."""


class FileSpan(NamedTuple):
    """A byte range of a file."""

    path: str
    span: Span


class Member(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A key of a JSON object and the span of its value."""

    key: str
    span: Span

    def __iter__(self) -> Iterator[Any]:
        yield self.key
        yield self.span


class ArrayIndex(msgspec.Struct, frozen=True):
    """The large array of a value, with the places of some of its items, so that a late item is found at once."""

    span: Span
    """The array in the value."""
    length: int
    """The number of its items."""
    indices: tuple[int, ...]
    """The indices of some items, beginning with 0."""
    offsets: tuple[int, ...]
    """The offsets of these items from the beginning of the array."""


class Provenance(msgspec.Struct, frozen=True):
    """The call that produced a value."""

    upstream: str
    tool: str
    arguments_digest: str
    """SHA-256 of the arguments as the gateway sent them, hexadecimal."""
    inputs: tuple[str, ...] = ()
    """The memory paths among the arguments."""
    traceparent: str = ""
    """The W3C trace context of the call; empty without traces."""


class Draft(msgspec.Struct, frozen=True):
    """A value before it is stored: JSON text exactly as the upstream sent it."""

    blob: Buffer
    kind: Kind
    tokens: int
    """Estimated tokens of the value in the form that a model reads."""
    members: tuple[Member, ...] = ()
    """The top-level keys of an object, each once, with the span of its last value."""
    media_type: str | None = None
    """The media type of a binary value."""
    file: FileSpan | None = None
    """A file that contains the blob too; a store may link the file instead of writing a second one."""
    preview: bool = True
    """Notices and listings may show parts of the value to a model."""
    array: ArrayIndex | None = None
    """The index of its large array; None if it has none or was not scanned."""
    text: TextSize | None = None
    """The size of a text; None for other kinds."""

    @property
    def shown_size(self) -> int:
        """Bytes of the value in the form that a model reads."""
        return self.text.size if self.text else len(self.blob)


class Descriptor(msgspec.Struct, frozen=True):
    """The metadata of a stored value. Times are seconds since the epoch."""

    base: str
    kind: Kind
    size: int
    """Bytes of the JSON text."""
    tokens: int
    members: tuple[Member, ...]
    created: float
    expires: float
    provenance: Provenance
    media_type: str | None = None
    labels: Mapping[str, str] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    companion: str | None = None
    """The base of the value that contains the rest of the same result's content."""
    other_members: bytes = b"{}"
    """The members of the result beside these values, a JSON object. Value, companion and other members rebuild it."""
    preview: bool = True
    """Notices and listings may show parts of the value to a model."""
    array: ArrayIndex | None = None
    """The index of its large array; None if it has none or was not scanned."""
    text_size: int | None = None
    """Bytes of a text without quotes and escapes; None for other kinds."""

    @property
    def shown_size(self) -> int:
        """Bytes of the value in the form that a model reads."""
        return self.size if self.text_size is None else self.text_size


class Traffic(msgspec.Struct, frozen=True):
    """Estimated tokens of tool results, sent to models and kept out of their context."""

    sent: int = 0
    kept_out: int = 0
    """Tokens that the results would have cost in addition if they had not been stored."""

    def plus(self, other: "Traffic") -> "Traffic":
        """The sums over both."""
        return Traffic(self.sent + other.sent, self.kept_out + other.kept_out)

    @property
    def ratio(self) -> int:
        """Tokens kept out for each token sent."""
        return round(self.kept_out / max(self.sent, 1))


class StoreTotals(msgspec.Struct, frozen=True):
    """The contents of all namespaces, with expired values that were not removed yet."""

    values: int
    size: int
    """Bytes."""
    evicted: int
    """Values that this process has evicted since it opened the store."""


class StoreStats(msgspec.Struct, frozen=True):
    """The contents of one namespace and the traffic of its calls."""

    values: int
    size: int
    """Bytes."""
    traffic: Traffic = msgspec.field(default_factory=Traffic)

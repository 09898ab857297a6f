"""The nouns that the parts share: spans, values and what is known about them.

Data alone: no module of ours is known here, nothing decides anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

Buffer = bytes | memoryview
"""Bytes that nobody changes; a view keeps the frame that it was cut from alive."""

Segments = tuple[Buffer, ...]
"""Bytes in pieces, in order; written one after another they are one JSON text."""

Kind = Literal["object", "array", "text", "number", "boolean", "null", "binary"]

JsonToken = str | int
"""One step down a JSON value: an object's key or an array's index."""

Location = tuple[JsonToken, ...]
"""Where in a JSON value: the steps from its root."""


_MEDIA_TYPES: Mapping[Kind, str] = {"text": "text/plain", "binary": "application/octet-stream"}


def media_type_of(kind: Kind, said: str | None = None) -> str:
    """What a value is as a resource: what it says itself, else what its kind is."""
    return said or _MEDIA_TYPES.get(kind, "application/json")


class Span(NamedTuple):
    """A byte range inside a blob."""

    start: int
    length: int

    @property
    def stop(self) -> int:
        """The first byte behind the range."""
        return self.start + self.length


class FileSpan(NamedTuple):
    """A byte range inside a file."""

    path: str
    span: Span


class Member(NamedTuple):
    """One key of a JSON object and where its value stands."""

    key: str
    span: Span


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a value came from."""

    upstream: str
    tool: str
    arguments_digest: str
    """SHA-256 of the arguments as they were sent, hexadecimal."""
    inputs: tuple[str, ...] = ()
    """The memory paths that the call was given."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A value on its way into a store: JSON text exactly as the upstream sent it."""

    blob: Buffer
    kind: Kind
    tokens: int
    """Estimated tokens of the value as a model would read it."""
    members: tuple[Member, ...] = ()
    """The top-level keys of an object, each once, with the span of the last value given for it."""
    media_type: str | None = None
    """Of a binary value."""
    file: FileSpan | None = None
    """Where the blob also is; a store may link the file instead of writing another."""
    preview: bool = True
    """A model may be told what is in it though it has not asked."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What is known about a stored value without reading it. Times are seconds since the epoch."""

    base: str
    kind: Kind
    size: int
    """Bytes."""
    tokens: int
    members: tuple[Member, ...]
    created: float
    expires: float
    provenance: Provenance
    media_type: str | None = None
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    companion: str | None = None
    """Base of the value that holds what else the same result said."""
    envelope: bytes = b"{}"
    """The result's remaining members, a JSON object; with the value and its companion it rebuilds the result."""
    preview: bool = True
    """A model may be told what is in it though it has not asked."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What tools' answers have cost models, in estimated tokens."""

    sent: int = 0
    """What was sent."""
    kept_out: int = 0
    """What results would have cost beyond that, had they not been stored instead."""

    def plus(self, sent: int, kept_out: int) -> "Traffic":
        """With so much more."""
        return Traffic(self.sent + sent, self.kept_out + kept_out)

    @property
    def ratio(self) -> int:
        """Tokens kept out for each that was sent."""
        return round(self.kept_out / max(self.sent, 1))


@dataclass(frozen=True, slots=True)
class StoreStats:
    """How much one namespace keeps, and what its answers have cost."""

    values: int
    size: int
    """Bytes."""
    traffic: Traffic = field(default_factory=Traffic)

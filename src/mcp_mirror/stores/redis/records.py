"""The keys of the Redis store, and the place of values in them. This module must not know connections or commands.

    <prefix>2:value:<value>         hash: place, `label` (slug), records of a value; later, what its tombstone needs
    <prefix>2:blob:<value>:<mark>:<n>   the bytes of a value in chunks; each put has its own mark
    <prefix>2:order                 sorted set: all values by the time of their last use
    <prefix>2:order:<namespace>     the same for one namespace
    <prefix>2:made:<namespace>      sorted set: the values of a namespace by creation time, for pages of lists
    <prefix>2:made:<namespace>:<slug>   the same for one tool
    <prefix>2:names:<namespace>     sorted set: the values of a namespace in alphabetical order
    <prefix>2:values                sorted set: namespaces by their number of values
    <prefix>2:bytes                 sorted set: namespaces by the bytes of their values
    <prefix>2:total                 the bytes of all values
    <prefix>2:graves                sorted set: tombstones by age
    <prefix>2:graves:<namespace>    the same for one namespace
    <prefix>2:labels                set: the slugs of all values
    <prefix>2:traffic               hash: the tokens sent and kept out, by namespace

`<value>` is `<namespace>:<base>`, each percent-encoded, so a name cannot end a part of a key. Keys contain nothing from
arguments or results. Every key has an expiry. With `store.encryption`, records and blobs are encrypted (see
`encryption`); names, sizes, times and labels stay in clear.
"""

from typing import Final, Literal, NamedTuple
from urllib.parse import quote, unquote

from mcp_mirror.types import Descriptor

CHUNK: Final = 4 << 20
"""Bytes of a value per blob key, so that each command takes a fraction of a second."""
FORMAT: Final = "2"
"""A part of all keys, so that versions with another format do not see them."""
OTHER_FORMATS: Final = tuple(str(number) for number in range(1, int(FORMAT) + 2) if str(number) != FORMAT)
"""The previous formats, and the next one."""

KeyKind = Literal[
    "value", "blob", "order", "made", "names", "values", "bytes", "total", "graves", "labels", "traffic",
    "objects", "bucket", "searched", "calls", "sums", "days", "callers",
]  # fmt: skip


class StoredValue(NamedTuple):
    """A value in Redis, by the place and size of its bytes."""

    owner: str
    """The encoded namespace."""
    base: str
    """The encoded base."""
    mark: str
    """Chosen at random by each put; the name of the object if the value is one."""
    size: int
    chunk: int = CHUNK
    """Bytes per blob key; 0 if the value is an object in a bucket."""

    @property
    def is_object(self) -> bool:
        """Whether the value is an object in a bucket."""
        return self.chunk == 0


class ReadableValue(Descriptor, frozen=True, kw_only=True):
    """The descriptor of a value that is read next, and how to read it."""

    place: StoredValue
    head: bytes
    """The beginning of the record, with the parameters for decryption."""
    content: bytes | None
    """The bytes of a small value as they are stored; None for other values."""


class KeyNames(NamedTuple):
    """The names of the keys."""

    beginning: str
    """The beginning of all keys: `store.prefix` and the number of the format."""

    def of(self, kind: KeyKind, *names: str) -> str:
        """A key. The names that complete it must be encoded."""
        return ":".join((self.beginning, kind, *names))

    def blob(self, value: StoredValue, number: int) -> str:
        """The key of one chunk of a value."""
        return self.of("blob", value.owner, value.base, value.mark, str(number))


def encode_name(name: str) -> str:
    """A name as a part of a key, without `:`."""
    return quote(name, safe="")


def decode_name(name: bytes) -> str:
    """The name that is encoded in a part of a key."""
    return unquote(name.decode())

"""The keys and records of the Redis store. This module must not know connections or commands.

    <prefix>1:card:<value>          the record of a value, later of its tombstone
    <prefix>1:blob:<value>:<mark>:<n>   the bytes of a value in chunks; each put has its own mark
    <prefix>1:ledger                hash: the place and size of each value, and the sums in total and by namespace
    <prefix>1:order                 sorted set: all values by the time of their last use
    <prefix>1:order:<namespace>     the same for one namespace
    <prefix>1:made:<namespace>      sorted set: the values of a namespace by creation time, for pages of lists
    <prefix>1:made:<namespace>:<label>   the same for one tool
    <prefix>1:names:<namespace>     sorted set: the values of a namespace in alphabetical order
    <prefix>1:graves                sorted set: tombstones by age
    <prefix>1:graves:<namespace>    the same for one namespace
    <prefix>1:labels                set: the tool labels of all values
    <prefix>1:traffic               hash: the tokens sent and kept out, by namespace
    <prefix>1:namespaces            set: the namespaces with values or counted tokens
    <prefix>1:turn                  the number of changes of the ledger; transactions watch this key

`<value>` is `<namespace>:<base>`, each percent-encoded, so a name cannot end a part of a key. Keys contain nothing from
arguments or results. Every key has an expiry. With `store.encryption`, records and blobs are encrypted (see
`encryption`); names, sizes, times and labels stay in clear.
"""

from typing import Final, Literal, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from mcp_mirror.paths import label_of
from mcp_mirror.stores.base import Reason, Tombstone
from mcp_mirror.stores.encryption import CHUNK as SEALED
from mcp_mirror.stores.encryption import chunks_of, sealed_span
from mcp_mirror.types import Descriptor, Span

CHUNK: Final = 4 << 20
"""Bytes of a value per blob key, so that each command takes a fraction of a second."""
_FORMAT: Final = "1"

KeyKind = Literal[
    "card", "blob", "ledger", "order", "made", "names", "graves", "labels", "traffic", "namespaces", "turn",
    "bucket", "objects", "uploads", "garbage", "searched", "calls", "sums", "days", "callers",
]  # fmt: skip


class StoredValue(NamedTuple):
    """A value in Redis, by the place and size of its bytes. All names are percent-encoded."""

    name: str
    """`<namespace>:<base>`."""
    mark: str
    """Chosen at random by each put; the name of the object if the value is one."""
    size: int
    chunk: int = CHUNK
    """Bytes per blob key; 0 if the value is an object."""

    @property
    def namespace(self) -> str:
        """The encoded namespace."""
        return self.name.partition(":")[0]

    @property
    def base(self) -> str:
        """The encoded base."""
        return self.name.partition(":")[2]

    @property
    def chunks(self) -> int:
        """The number of blob keys."""
        return 0 if self.is_object else -(-self.size // self.chunk)

    @property
    def is_object(self) -> bool:
        """Whether the value is an object in a bucket."""
        return self.chunk == 0

    @property
    def record(self) -> str:
        """The text that the ledger has of the value."""
        return f"{self.mark} {self.size} {self.chunk}"


def read_stored_value(name: str, record: bytes | None) -> StoredValue | None:
    """Parse what the ledger has of a value."""
    if record is None:
        return None
    mark, size, chunk = record.decode().split()
    return StoredValue(name, mark, int(size), int(chunk))


class ChunkRange(NamedTuple):
    """A byte range of one chunk."""

    number: int
    start: int
    length: int


def find_chunk_ranges(value: StoredValue, span: Span, *, is_sealed: bool) -> list[ChunkRange]:
    """The ranges of chunks that contain a range of a value.

    Args:
        value: The value.
        span: The range, within the value.
        is_sealed: The value is encrypted; ranges then consist of complete encrypted chunks.
    """
    if is_sealed:
        first, last = chunks_of(span)
        span = Span(first * SEALED, min(last * SEALED, value.size) - first * SEALED)
    ranges: list[ChunkRange] = []
    for number in range(span.start // value.chunk, -(-span.stop // value.chunk)) if span.length else ():
        at = number * value.chunk
        start = max(span.start - at, 0)
        part = Span(start, min(span.stop - at, value.chunk) - start)
        if is_sealed:
            part = sealed_span(min(value.chunk, value.size - at), part)
        ranges.append(ChunkRange(number, part.start, part.length))
    return ranges


class ValueRecord(msgspec.Struct, array_like=True):
    """The record of a value or, with a reason, of its tombstone."""

    descriptor: Descriptor
    reason: Reason | None = None
    at: float = 0.0

    @property
    def tombstone(self) -> Tombstone | None:
        """The tombstone; None for a value."""
        return Tombstone(self.descriptor, self.reason, self.at) if self.reason else None


_decoder: Final = msgspec.msgpack.Decoder(ValueRecord)


def pack_record(record: ValueRecord) -> bytes:
    """Encode a record."""
    return msgspec.msgpack.encode(record, enc_hook=dict)


def unpack_record(_base: str, encoded: bytes) -> ValueRecord:
    """Decode a record."""
    return _decoder.decode(encoded)


class KeyNames(NamedTuple):
    """The names of the keys."""

    prefix: str

    def of(self, kind: KeyKind, *names: str) -> str:
        """A key. The names that complete it must be encoded."""
        return ":".join((f"{self.prefix}{_FORMAT}", kind, *names))

    def blob(self, value: StoredValue, number: int) -> str:
        """The key of one chunk of a value."""
        return self.of("blob", value.name, value.mark, str(number))

    def blobs(self, value: StoredValue) -> list[str]:
        """The keys of all chunks of a value."""
        return [self.blob(value, number) for number in range(value.chunks)]

    def listings(self, namespace: str, base: str) -> list[str]:
        """The keys that list a value: in alphabetical order, then by creation time for all tools and for its tool."""
        label = encode_name(label_of(unquote(base)))
        by_tool = [self.of("made", namespace, label)] if label else []
        return [self.of("names", namespace), self.of("made", namespace), *by_tool]


def encode_name(name: str) -> str:
    """A name as a part of a key, without `:`."""
    return quote(name, safe="")


def build_name(namespace: str, base: str) -> str:
    """The encoded name of a value."""
    return f"{encode_name(namespace)}:{encode_name(base)}"


def split_name(name: str) -> tuple[str, str]:
    """Namespace and base of an encoded name."""
    namespace, _, base = name.partition(":")
    return unquote(namespace), unquote(base)

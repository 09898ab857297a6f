"""What the Redis store keeps under which key, and in what form. Knows no connection and no command.

    <prefix>1:card:<value>          what is known about a value; once it is gone, its tombstone
    <prefix>1:blob:<value>:<mark>:<n>   its bytes, in chunks; the mark is one put's own
    <prefix>1:ledger                a hash: each value's entry, and how much is kept in all and by namespace
    <prefix>1:order                 a sorted set: all values by the time of their last use
    <prefix>1:order:<namespace>     the same of one namespace
    <prefix>1:made:<namespace>      a sorted set: its values by the time of their making, for pages of lists
    <prefix>1:made:<namespace>:<label>   the same of one tool
    <prefix>1:names:<namespace>     a sorted set: its values in alphabetical order
    <prefix>1:graves                a sorted set: the tombstones by age
    <prefix>1:graves:<namespace>    the same of one namespace
    <prefix>1:labels                a set: what the bases of values begin with
    <prefix>1:traffic               a hash: the tokens that were sent and kept out, by namespace
    <prefix>1:namespaces            a set: whose tokens were counted
    <prefix>1:turn                  counts the changes to the ledger; whoever changes it watches this key

`<value>` is `<namespace>:<base>`, each percent-encoded, so that no name of anybody's ends a part of a key. Nothing of
a tool's arguments or results is in a key. Every key has an expiry. With `store.encryption` cards and bytes are sealed
(see `sealing`); names, sizes, times and labels stay in clear.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from mcp_mirror.errors import StoreError
from mcp_mirror.paths import label_of
from mcp_mirror.stores.base import Reason, Tombstone
from mcp_mirror.stores.encryption import CHANGED, Encryptor, Envelope, chunks_of, sealed_span
from mcp_mirror.stores.encryption import CHUNK as SEALED
from mcp_mirror.types import Descriptor, Span

CHUNK: Final = 4 << 20
"""Bytes of one key's value: one command moves no more, so that each takes a fraction of a second."""
_FORMAT: Final = "1"


class Entry(NamedTuple):
    """Where a value's bytes are."""

    name: str
    """`<namespace>:<base>`, encoded."""
    mark: str
    size: int
    chunk: int = CHUNK

    @property
    def namespace(self) -> str:
        """Encoded."""
        return self.name.partition(":")[0]

    @property
    def base(self) -> str:
        """Encoded."""
        return self.name.partition(":")[2]

    @property
    def label(self) -> str:
        """The tool label that the base begins with."""
        return label_of(unquote(self.base))

    @property
    def chunks(self) -> int:
        """How many keys hold it."""
        return -(-self.size // self.chunk)

    def held(self, number: int) -> int:
        """Bytes of the value that one of them holds."""
        return min(self.chunk, self.size - number * self.chunk)

    @property
    def record(self) -> str:
        """Its text in the ledger."""
        return f"{self.mark} {self.size} {self.chunk}"


def read_entry(name: str, record: bytes | None) -> Entry | None:
    """An entry from its text in the ledger."""
    if record is None:
        return None
    mark, size, chunk = record.decode().split()
    return Entry(name, mark, int(size), int(chunk))


class Piece(NamedTuple):
    """A byte range of one chunk, the last byte included, as Redis counts."""

    number: int
    first: int
    last: int

    @property
    def length(self) -> int:
        """Bytes."""
        return self.last - self.first + 1


def pieces_of(entry: Entry, span: Span) -> list[Piece]:
    """The parts of its chunks that make up a range of a value."""
    stop = min(span.stop, entry.size)
    numbers = range(span.start // entry.chunk, -(-stop // entry.chunk)) if span.start < stop else ()
    starts = ((number, number * entry.chunk) for number in numbers)
    return [
        Piece(number, max(span.start - at, 0), min(stop - at, entry.chunk) - 1)
        for number, at in starts
    ]  # fmt: skip


def sealed_pieces_of(entry: Entry, span: Span) -> list[Piece]:
    """The same where it is sealed: the whole chunks of its envelope that the range is in."""
    first, last = chunks_of(span)
    whole = Span(first * SEALED, min(last * SEALED, entry.size) - first * SEALED)
    places = (
        (piece.number, sealed_span(entry.held(piece.number), Span(piece.first, piece.length)))
        for piece in pieces_of(entry, whole)
    )
    return [Piece(number, at.start, at.stop - 1) for number, at in places]


class _Record(msgspec.Struct, array_like=True):
    descriptor: Descriptor
    reason: Reason | None = None
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class RedisRecords:
    """What is known about values, as bytes: in clear or sealed."""

    encryptor: Encryptor

    def write(self, name: str, known: Descriptor | Tombstone, envelope: Envelope | None = None) -> bytes:
        """A card's bytes: sealed with its value's envelope, or with one of its own where the value is gone."""
        card = _Record(known.descriptor, known.reason, known.at) if isinstance(known, Tombstone) else _Record(known)
        record = msgspec.msgpack.encode(card, enc_hook=dict)
        sealing = envelope or self.encryptor.new_envelope(*split_name(name))
        return sealing.seal_record(record) if sealing else record

    def read(self, name: str, raw: bytes) -> Descriptor | Tombstone:
        """What a card says.

        Raises:
            StoreError: It cannot be opened.
        """
        card = msgspec.msgpack.decode(self.encryptor.open_record(*split_name(name), raw), type=_Record)
        return Tombstone(card.descriptor, card.reason, card.at) if card.reason else card.descriptor

    def check_empty(self, name: str, raw: bytes | None) -> None:
        """Of an empty value nothing is sealed but its card, which must say that it is empty.

        Raises:
            StoreError: It does not.
        """
        known = self.read(name, raw) if raw else None
        if not isinstance(known, Descriptor) or known.size:
            raise StoreError(CHANGED)

    def readable(self, name: str, raw: bytes | None) -> Descriptor | None:
        """What a card says of a value that is there; one of many that cannot be opened is passed over."""
        try:
            known = self.read(name, raw) if raw else None
        except StoreError as error:
            self.encryptor.report(error)
            return None
        return known if isinstance(known, Descriptor) else None


def split_name(name: str) -> tuple[str, str]:
    """Namespace and base of an encoded name."""
    namespace, _, base = name.partition(":")
    return unquote(namespace), unquote(base)


@dataclass(frozen=True)
class Keys:
    """The names of our keys."""

    prefix: str

    @cached_property
    def _begin(self) -> str:
        return f"{self.prefix}{_FORMAT}:"

    @cached_property
    def ledger(self) -> str:
        """What is kept: each value's entry, and the sums."""
        return f"{self._begin}ledger"

    @cached_property
    def turn(self) -> str:
        """What a transaction watches."""
        return f"{self._begin}turn"

    @cached_property
    def graves(self) -> str:
        """The tombstones."""
        return f"{self._begin}graves"

    def graves_of(self, namespace: str) -> str:
        """The tombstones of one namespace, given its encoded name."""
        return f"{self.graves}:{namespace}"

    def made_of(self, namespace: str, label: str = "") -> str:
        """One namespace's values by the time of their making, given its encoded name; of one tool, or of all."""
        own = f"{self._begin}made:{namespace}"
        return f"{own}:{encoded(label)}" if label else own

    def names_of(self, namespace: str) -> str:
        """One namespace's values in alphabetical order, given its encoded name."""
        return f"{self._begin}names:{namespace}"

    @cached_property
    def labels(self) -> str:
        """What bases begin with."""
        return f"{self._begin}labels"

    @cached_property
    def traffic(self) -> str:
        """The tokens that were sent and kept out."""
        return f"{self._begin}traffic"

    def traffic_of(self, namespace: str) -> tuple[str, str]:
        """The fields of one namespace there, given its encoded name."""
        return f"sent:{namespace}", f"kept:{namespace}"

    @cached_property
    def namespaces(self) -> str:
        """Whose they are."""
        return f"{self._begin}namespaces"

    @cached_property
    def order(self) -> str:
        """The uses of all values."""
        return f"{self._begin}order"

    def order_of(self, namespace: str | None) -> str:
        """Where the uses of one namespace's values are, given its encoded name; None: of all values."""
        return self.order if namespace is None else f"{self.order}:{namespace}"

    def card(self, name: str) -> str:
        """What is known about a value, or was."""
        return f"{self._begin}card:{name}"

    def blob(self, entry: Entry, number: int) -> str:
        """One of its chunks."""
        return f"{self._begin}blob:{entry.name}:{entry.mark}:{number}"

    def blobs(self, entry: Entry) -> list[str]:
        """All of its chunks."""
        return [self.blob(entry, number) for number in range(entry.chunks)]


def encoded(name: str) -> str:
    """A name as a part of a key: no `:` is in it."""
    return quote(name, safe="")

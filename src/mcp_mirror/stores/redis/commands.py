"""The Redis commands that add, use and remove a value, in the order in which the server runs them.

Pure: other modules decide when to send them and which of them form a transaction.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple
from urllib.parse import unquote

from mcp_mirror.paths import label_of
from mcp_mirror.stores.quotas import TOMBSTONE_LIFETIME
from mcp_mirror.stores.redis.records import ChunkRange, KeyKind, KeyNames, StoredValue
from mcp_mirror.types import Buffer, Traffic

_TOMBSTONE_SECONDS: Final = round(TOMBSTONE_LIFETIME)

Command = tuple[str | bytes | int | float | memoryview, ...]


class Removal(NamedTuple):
    """The removal of a value."""

    value: StoredValue
    tombstone: bytes | None = None
    """The record of the tombstone; None for none."""
    at: float = 0.0
    """When the value was evicted or expired, in seconds since the epoch."""


@dataclass(frozen=True)
class RedisCommands:
    """Builds the commands."""

    keys: KeyNames
    lifetime: float
    """Seconds from the last use of a value to its expiry."""

    @cached_property
    def _blob_milliseconds(self) -> int:
        return max(round(self.lifetime * 1000), 1)

    @cached_property
    def _index_milliseconds(self) -> int:
        """The expiry of all other keys: they describe a value after its bytes have expired."""
        return self._blob_milliseconds + _TOMBSTONE_SECONDS * 1000

    def enter(
        self, value: StoredValue, record: bytes, blob: Buffer | None, created: float, now: float
    ) -> Iterator[Command]:
        """Make a value visible.

        Args:
            value: The value.
            record: The encoded record of the value.
            blob: The bytes as stored; None if the chunks were already written.
            created: When the value was created, in seconds since the epoch.
            now: The time, in seconds since the epoch.
        """
        if blob is not None and value.size:
            yield "SET", self.keys.blob(value, 0), blob
        if value.is_object:
            yield "ZREM", self.keys.of("uploads"), value.mark
            yield "SADD", self.keys.of("objects"), value.mark
            yield from self.restart_expiry("objects", "bucket")
        yield "SET", self.keys.of("card", value.name), record
        for key, member in self._tombstone_entries(value.namespace, value.base):
            yield "ZREM", key, member
        yield "ZADD", self.keys.of("order"), now, value.name
        yield "ZADD", self.keys.of("order", value.namespace), now, value.base
        for key, score in zip(self.keys.listings(value.namespace, value.base), (0, created, created), strict=False):
            yield "ZADD", key, score, value.base
            yield "PEXPIRE", key, self._index_milliseconds
        yield "HSET", self.keys.of("ledger"), f"v:{value.name}", value.record
        yield "SADD", self.keys.of("labels"), label_of(unquote(value.base))
        yield "SADD", self.keys.of("namespaces"), value.namespace
        for field, number in _sums_of(value).items():
            yield "HINCRBY", self.keys.of("ledger"), field, number
        yield from self.extend_expiry(value)

    def use(self, value: StoredValue, now: float) -> Iterator[Command]:
        """Extend a value's expiry, and make it the most recently used. The first replies are 0 for missing chunks."""
        yield from self.extend_expiry(value)
        for key in self.keys.listings(value.namespace, value.base):
            yield "PEXPIRE", key, self._index_milliseconds
        yield "ZADD", self.keys.of("order"), "XX", "GT", now, value.name
        yield "ZADD", self.keys.of("order", value.namespace), "XX", "GT", now, value.base

    def extend_expiry(self, value: StoredValue) -> Iterator[Command]:
        """Restart the expiry of a value's keys and of the shared keys, chunks first."""
        for blob in self.keys.blobs(value):
            yield "PEXPIRE", blob, self._blob_milliseconds
        for key in (self.keys.of("card", value.name), self.keys.of("order", value.namespace)):
            yield "PEXPIRE", key, self._index_milliseconds
        yield from self.restart_expiry("order", "ledger", "labels", "namespaces")

    def begin_turn(self) -> Iterator[Command]:
        """Begin a transaction, and interrupt those of other gateways. Uses of values do not interrupt any."""
        yield "INCR", self.keys.of("turn")
        yield from self.restart_expiry("turn")

    def restart_expiry(self, *kinds: KeyKind) -> Iterator[Command]:
        """Restart the expiry of shared keys."""
        for kind in kinds:
            yield "PEXPIRE", self.keys.of(kind), self._index_milliseconds

    def discard_uploads(self, marks: Sequence[str]) -> Iterator[Command]:
        """Mark objects without a value for removal."""
        yield "ZREM", self.keys.of("uploads"), *marks
        yield "SADD", self.keys.of("garbage"), *marks
        yield from self.restart_expiry("garbage")

    def fetch(self, value: StoredValue, part: ChunkRange) -> Command:
        """Read a part of a value."""
        return "GETRANGE", self.keys.blob(value, part.number), part.start, part.start + part.length - 1

    def remove(self, removals: Sequence[Removal]) -> Iterator[Command]:
        """Remove values, and add their tombstones. Each key that lists several of the values is changed once."""
        unlinked: list[str] = []
        listed: defaultdict[str, list[str]] = defaultdict(list)
        sums: Counter[str] = Counter()
        for value, tombstone, _ in removals:
            card = self.keys.of("card", value.name)
            unlinked += self.keys.blobs(value)
            listed[self.keys.of("order")].append(value.name)
            for key in (self.keys.of("order", value.namespace), *self.keys.listings(value.namespace, value.base)):
                listed[key].append(value.base)
            sums.update(_sums_of(value))
            if tombstone is None:
                unlinked.append(card)
        if objects := [value.mark for value, _, _ in removals if value.is_object]:
            yield "SREM", self.keys.of("objects"), *objects
            yield "SADD", self.keys.of("garbage"), *objects
            yield from self.restart_expiry("garbage")
        if removals:
            yield "HDEL", self.keys.of("ledger"), *(f"v:{value.name}" for value, _, _ in removals)
        yield from self._unlink(unlinked)
        for key, members in listed.items():
            yield "ZREM", key, *members
        for field, number in sums.items():
            yield "HINCRBY", self.keys.of("ledger"), field, -number
        yield from self._add_tombstones(removals)

    def _add_tombstones(self, removals: Sequence[Removal]) -> Iterator[Command]:
        buried: defaultdict[str, list[float | str]] = defaultdict(list)
        for value, tombstone, at in removals:
            if tombstone is None:
                continue
            yield "SET", self.keys.of("card", value.name), tombstone, "EX", _TOMBSTONE_SECONDS
            for key, member in self._tombstone_entries(value.namespace, value.base):
                buried[key] += (at, member)
        for key, scored in buried.items():
            yield "ZADD", key, *scored
            yield "EXPIRE", key, _TOMBSTONE_SECONDS

    def remove_tombstones(self, names: Iterable[str]) -> Iterator[Command]:
        """Remove tombstones, given their encoded names."""
        entries: defaultdict[str, list[str]] = defaultdict(list)
        cards: list[str] = []
        for name in names:
            namespace, _, base = name.partition(":")
            cards.append(self.keys.of("card", name))
            for key, member in self._tombstone_entries(namespace, base):
                entries[key].append(member)
        yield from self._unlink(cards)
        for key, members in entries.items():
            yield "ZREM", key, *members

    def _unlink(self, keys: Sequence[str]) -> Iterator[Command]:
        if keys:
            yield "UNLINK", *keys

    def _tombstone_entries(self, namespace: str, base: str) -> tuple[tuple[str, str], tuple[str, str]]:
        """The sorted sets of tombstones, and the member in each."""
        return (self.keys.of("graves"), f"{namespace}:{base}"), (self.keys.of("graves", namespace), base)

    def count(self, namespace: str, traffic: Traffic) -> Iterator[Command]:
        """Add to the counted tokens of a namespace, given its encoded name."""
        for field, tokens in zip(traffic_fields(namespace), (traffic.sent, traffic.kept_out), strict=True):
            yield "HINCRBY", self.keys.of("traffic"), field, tokens
        yield "SADD", self.keys.of("namespaces"), namespace
        yield from self.restart_expiry("traffic", "namespaces")


def _sums_of(value: StoredValue) -> dict[str, int]:
    """The share of a value in the sums, by field of the ledger."""
    owner = f":{value.namespace}"
    return {"bytes": value.size, "values": 1, f"bytes{owner}": value.size, f"values{owner}": 1}


def sum_fields(*namespaces: str | None) -> Iterator[str]:
    """The fields of the ledger with the values and bytes of namespaces, given their encoded names; of all for None."""
    for namespace in namespaces:
        owner = "" if namespace is None else f":{namespace}"
        yield from (f"values{owner}", f"bytes{owner}")


def traffic_fields(namespace: str) -> tuple[str, str]:
    """The fields of the counted tokens of a namespace, given its encoded name."""
    return f"sent:{namespace}", f"kept:{namespace}"

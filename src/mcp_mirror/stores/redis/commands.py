"""The commands that bring a value into Redis, put its end off and take it out again, in the order they are carried out.

Pure: who sends them, and together with which others, is decided elsewhere.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote

from mcp_mirror.paths import label_of
from mcp_mirror.settings.policies import StorePolicy
from mcp_mirror.stores.base import Tombstone
from mcp_mirror.stores.encryption import HEAD
from mcp_mirror.stores.quotas import TOMBSTONE_LIFETIME
from mcp_mirror.stores.redis.records import Entry, Keys, Piece, RedisRecords
from mcp_mirror.types import Buffer, Traffic

_REMEMBERED = round(TOMBSTONE_LIFETIME)

Command = tuple[str | bytes | int | float | memoryview, ...]


@dataclass(frozen=True)
class RedisCommands:
    """Writes the commands."""

    keys: Keys
    policy: StorePolicy
    redis_records: RedisRecords

    @cached_property
    def _lifetime(self) -> int:
        """Milliseconds."""
        return max(round(self.policy.lifetime * 1000), 1)

    def stage(self, entry: Entry, number: int, chunk: Buffer, seconds: int) -> Command:
        """Bring in a chunk that nobody sees yet, and that goes by itself."""
        return "SET", self.keys.blob(entry, number), chunk, "PX", seconds * 1000

    def look(self, name: str) -> Command:
        """Read the head of what is known about a value."""
        return "GETRANGE", self.keys.card(name), 0, HEAD - 1

    def fetch(self, entry: Entry, piece: Piece) -> Command:
        """Read a part of a chunk."""
        return "GETRANGE", self.keys.blob(entry, piece.number), piece.first, piece.last

    def enter(self, entry: Entry, card: bytes, blob: Buffer | None, times: tuple[float, float]) -> Iterator[Command]:
        """Make a value visible.

        Args:
            entry: Where it is.
            card: What is known about it.
            blob: Its bytes as they are kept; None where its chunks are in already.
            times: When it was made, and now.
        """
        if blob is not None and entry.size:
            yield "SET", self.keys.blob(entry, 0), blob
        made, now = times
        yield "SET", self.keys.card(entry.name), card
        yield "ZREM", self.keys.graves, entry.name
        yield "ZREM", self.keys.graves_of(entry.namespace), entry.base
        yield "ZADD", self.keys.order, now, entry.name
        yield "ZADD", self.keys.order_of(entry.namespace), now, entry.base
        yield from self.place(entry.namespace, entry.base, made)
        yield "HSET", self.keys.ledger, f"v:{entry.name}", entry.record
        yield "SADD", self.keys.labels, entry.label
        yield "SADD", self.keys.namespaces, entry.namespace
        yield from self._count(entry, 1)
        yield from self.keep(entry)

    def place(self, namespace: str, base: str, made: float) -> Iterator[Command]:
        """Put a value into the orders that lists are read by, given its encoded names."""
        keys = self.keys
        label = label_of(unquote(base))
        for made_key in {keys.made_of(namespace), keys.made_of(namespace, label)}:
            yield "ZADD", made_key, made, base
        yield "ZADD", keys.names_of(namespace), 0, base
        yield from self._keep_orders(namespace, label)

    def displace(self, namespace: str, base: str) -> Iterator[Command]:
        """Take a value out of the orders that lists are read by."""
        keys = self.keys
        for key in {
            keys.made_of(namespace),
            keys.made_of(namespace, label_of(unquote(base))),
            keys.names_of(namespace),
        }:
            yield "ZREM", key, base

    def _keep_orders(self, namespace: str, label: str) -> Iterator[Command]:
        keys = self.keys
        for key in {keys.made_of(namespace), keys.made_of(namespace, label), keys.names_of(namespace)}:
            yield "PEXPIRE", key, self._lifetime + _REMEMBERED * 1000

    def use(self, entry: Entry, now: float) -> Iterator[Command]:
        """Put a value last in line for eviction."""
        namespace, _, base = entry.name.partition(":")
        yield "ZADD", self.keys.order, "XX", "GT", now, entry.name
        yield "ZADD", self.keys.order_of(namespace), "XX", "GT", now, base

    def find(self, entry: Entry) -> Iterator[Command]:
        """Look for each of its chunks."""
        for blob in self.keys.blobs(entry):
            yield "EXISTS", blob

    def keep(self, entry: Entry) -> Iterator[Command]:
        """Begin the time of all its keys anew, its chunks first: one that is missing answers with 0.

        What tells of it when it is gone stays longer.
        """
        keys = self.keys
        for blob in keys.blobs(entry):
            yield "PEXPIRE", blob, self._lifetime
        shared = (keys.order, keys.order_of(entry.namespace), keys.ledger, keys.labels, keys.namespaces, keys.turn)
        for key in (keys.card(entry.name), *shared):
            yield "PEXPIRE", key, self._lifetime + _REMEMBERED * 1000
        yield from self._keep_orders(entry.namespace, entry.label)

    def remove(self, entry: Entry, grave: Tombstone | None) -> Iterator[Command]:
        """Take a value out, with or without a tombstone."""
        if entry.size:
            yield "UNLINK", *self.keys.blobs(entry)
        yield "ZREM", self.keys.order, entry.name
        yield "ZREM", self.keys.order_of(entry.namespace), entry.base
        yield from self.displace(entry.namespace, entry.base)
        yield "HDEL", self.keys.ledger, f"v:{entry.name}"
        yield from self._count(entry, -1)
        if grave is None:
            yield "UNLINK", self.keys.card(entry.name)
            return
        yield "SET", self.keys.card(entry.name), self.redis_records.write(entry.name, grave), "EX", _REMEMBERED
        own = self.keys.graves_of(entry.namespace)
        for graves, name in ((self.keys.graves, entry.name), (own, entry.base)):
            yield "ZADD", graves, grave.at, name
            yield "EXPIRE", graves, _REMEMBERED

    def clear(self, graves: Sequence[str]) -> Iterator[Command]:
        """Forget tombstones."""
        for name in graves:
            namespace, _, base = name.partition(":")
            yield "UNLINK", self.keys.card(name)
            yield "ZREM", self.keys.graves, name
            yield "ZREM", self.keys.graves_of(namespace), base

    def count(self, namespace: str, traffic: Traffic) -> Iterator[Command]:
        """Count a namespace's tokens, given its encoded name; what is not counted for long is forgotten."""
        keys = self.keys
        for field, tokens in zip(keys.traffic_of(namespace), (traffic.sent, traffic.kept_out), strict=True):
            yield "HINCRBY", keys.traffic, field, tokens
        yield "SADD", keys.namespaces, namespace
        for key in (keys.traffic, keys.namespaces):
            yield "PEXPIRE", key, self._lifetime + _REMEMBERED * 1000

    def read_traffic(self, namespace: str) -> Command:
        """Read a namespace's tokens, sent and kept out, given its encoded name."""
        return "HMGET", self.keys.traffic, *self.keys.traffic_of(namespace)

    def next_turn(self) -> Command:
        """Tell whoever else is about to change the ledger that it is another one now."""
        return "INCR", self.keys.turn

    def account_fields(self, *namespaces: str) -> tuple[str, ...]:
        """The ledger's fields that tell how much is kept in all, and by each of these namespaces."""
        return "values", "bytes", *(f"{what}:{name}" for name in namespaces for what in ("values", "bytes"))

    def _count(self, entry: Entry, sign: int) -> Iterator[Command]:
        for of in ("", f":{entry.namespace}"):
            yield "HINCRBY", self.keys.ledger, f"bytes{of}", sign * entry.size
            yield "HINCRBY", self.keys.ledger, f"values{of}", sign

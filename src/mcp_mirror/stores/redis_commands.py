"""The commands that bring a value into Redis, put its end off and take it out again, in the order they are carried out.

Pure: who sends them, and together with which others, is decided elsewhere.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote

from mcp_mirror.models import Buffer, Traffic
from mcp_mirror.paths import label_of
from mcp_mirror.policies import StorePolicy
from mcp_mirror.stores.base import Tombstone
from mcp_mirror.stores.quotas import REMEMBERED
from mcp_mirror.stores.redis_records import Cards, Entry, Keys, Piece, Usage
from mcp_mirror.stores.sealing import HEAD

_REMEMBERED = round(REMEMBERED)

Command = tuple[str | bytes | int | float | memoryview, ...]


@dataclass(frozen=True)
class Clerk:
    """Writes the commands."""

    keys: Keys
    policy: StorePolicy
    cards: Cards

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

    def enter(self, entry: Entry, card: bytes, blob: Buffer | None, now: float) -> Iterator[Command]:
        """Make a value visible; `blob` are its bytes as they are kept, None where its chunks are in already."""
        if blob is not None and entry.size:
            yield "SET", self.keys.blob(entry, 0), blob
        namespace, _, base = entry.name.partition(":")
        yield "SET", self.keys.card(entry.name), card
        yield "ZREM", self.keys.graves, entry.name
        yield "ZADD", self.keys.order, now, entry.name
        yield "ZADD", self.keys.order_of(namespace), now, base
        yield "HSET", self.keys.ledger, f"v:{entry.name}", entry.record
        yield "SADD", self.keys.labels, label_of(unquote(base))
        yield from self._count(entry, 1)
        yield from self.keep(entry)

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
        shared = (keys.order, keys.order_of(entry.namespace), keys.ledger, keys.labels, keys.turn)
        for key in (keys.card(entry.name), *shared):
            yield "PEXPIRE", key, self._lifetime + _REMEMBERED * 1000

    def remove(self, entry: Entry, grave: Tombstone | None) -> Iterator[Command]:
        """Take a value out, with or without a tombstone."""
        namespace, _, base = entry.name.partition(":")
        if entry.size:
            yield "UNLINK", *self.keys.blobs(entry)
        yield "ZREM", self.keys.order, entry.name
        yield "ZREM", self.keys.order_of(namespace), base
        yield "HDEL", self.keys.ledger, f"v:{entry.name}"
        yield from self._count(entry, -1)
        if grave is None:
            yield "UNLINK", self.keys.card(entry.name)
            return
        yield "SET", self.keys.card(entry.name), self.cards.write(entry.name, grave), "EX", _REMEMBERED
        yield "ZADD", self.keys.graves, grave.at, entry.name
        yield "EXPIRE", self.keys.graves, _REMEMBERED

    def clear(self, graves: Sequence[str]) -> Iterator[Command]:
        """Forget tombstones."""
        if graves:
            yield "UNLINK", *map(self.keys.card, graves)
            yield "ZREM", self.keys.graves, *graves

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

    def account_fields(self, namespace: str) -> tuple[str, ...]:
        """The ledger's fields that tell how much is kept."""
        return f"bytes:{namespace}", f"values:{namespace}", "bytes", "values"

    def read_usages(self, namespace: str, told: Sequence[bytes | None]) -> tuple[Usage, Usage]:
        """How much a namespace keeps, and how much is kept in all, from those fields."""
        own, own_values, size, values = (int(number or 0) for number in told)
        policy = self.policy
        return (
            Usage(namespace, own, own_values, policy.namespace_bytes, policy.namespace_values),
            Usage(None, size, values, policy.max_bytes, policy.max_values),
        )

    def _count(self, entry: Entry, sign: int) -> Iterator[Command]:
        for of in ("", f":{entry.namespace}"):
            yield "HINCRBY", self.keys.ledger, f"bytes{of}", sign * entry.size
            yield "HINCRBY", self.keys.ledger, f"values{of}", sign

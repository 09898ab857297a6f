"""Removes values from the index of the disk store: expired ones, and the least recently used ones for a new value.

All methods work within a change of the index, see `index`.
"""

import sqlite3
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from mcp_mirror.paths import slug_of
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.base import Reason
from mcp_mirror.stores.quotas import (
    EXPIRED_PER_PUT,
    MAX_TOMBSTONES,
    NAMESPACE_TOMBSTONES,
    TOMBSTONE_LIFETIME,
    Eviction,
    SpaceUsage,
)
from mcp_mirror.stores.records import RecordCodec

TOTALS: Final = 'SELECT coalesce(sum("values"), 0), coalesce(sum(bytes), 0) FROM usage'
"""The number and bytes of all values."""
_EXPIRED: Final = """SELECT entries.rowid, entries.namespace, entries.base, entries.descriptor, entries.size, expires
    FROM usage CROSS JOIN entries ON entries.namespace = usage.namespace
    WHERE {owner} expires <= :now LIMIT :limit"""
_OF_OWNER: Final = "usage.namespace = :owner AND"
_OLDEST: Final = (
    "SELECT rowid, namespace, base, descriptor, size, expires FROM entries WHERE namespace = ? ORDER BY used LIMIT 1"
)


class Removal(NamedTuple):
    """The row of a value that is removed."""

    rowid: int
    namespace: str
    base: str
    record: bytes
    size: int
    expires: float


class DiskEviction:
    """Makes room in the index."""

    def __init__(self, policy: StorePolicy, clock: Callable[[], float], records: RecordCodec) -> None:
        self._policy, self._clock, self._records = policy, clock, records

    def find_expired(self, change: sqlite3.Connection, owner: str | None, limit: int) -> list[Removal]:
        """Expired values of a namespace, or of all for None."""
        parameters = {"owner": owner, "now": self._clock(), "limit": limit}
        query = _EXPIRED.format(owner="" if owner is None else _OF_OWNER)
        return [Removal(*row) for row in change.execute(query, parameters)]

    def make_room(self, change: sqlite3.Connection, namespace: str, size: int) -> tuple[bool, int]:
        """Replace some values by tombstones for a new value; see `Eviction.make_room`.

        Returns:
            Whether the value fits now, otherwise another change must make more room; and the number of evicted values.
        """

        def expire(owner: str | None) -> tuple[str, int] | None:
            expired = self.find_expired(change, owner, 1)
            self.replace_by_tombstones(change, "expired", expired)
            return (expired[0].namespace, expired[0].size) if expired else None

        def evict(crowded: str) -> int:
            oldest = Removal(*change.execute(_OLDEST, (crowded,)).fetchone())
            self.replace_by_tombstones(change, "evicted", [oldest])
            return oldest.size

        self.replace_by_tombstones(change, "expired", self.find_expired(change, namespace, EXPIRED_PER_PUT))
        total = SpaceUsage(*change.execute(TOTALS).fetchone())
        is_full = total.has_reached(self._policy.max_values, self._policy.max_bytes - size)
        where, parameters = ("true", ()) if is_full else ("namespace = ?", (namespace,))
        rows = change.execute(f'SELECT namespace, "values", bytes FROM usage WHERE {where}', parameters)  # noqa: S608  # ours
        usage = {name: SpaceUsage(*used) for name, *used in rows}
        plan = Eviction(self._policy.for_namespace(namespace), namespace, size, usage, total)
        return plan.make_room(expire, evict), plan.evicted

    def replace_by_tombstones(self, change: sqlite3.Connection, reason: Reason, removals: list[Removal]) -> None:
        """Remove values, and add their tombstones, in place of the oldest ones over the limits."""
        now = self._clock()
        for rowid, namespace, base, record, _, expires in removals:
            change.execute("DELETE FROM entries WHERE rowid = ?", (rowid,))
            if known := self._records.decode_brief(namespace, base, record):
                envelope = self._records.encryptor.new_envelope(namespace, base)
                left = self._records.encode(msgspec.structs.replace(known, expires=expires), envelope)
                change.execute("DELETE FROM tombstones WHERE namespace = ? AND base = ?", (namespace, base))
                tombstone = (namespace, base, slug_of(base), reason, now, left)
                change.execute("INSERT INTO tombstones VALUES (?, ?, ?, ?, ?, ?)", tombstone)
        for namespace in {removal.namespace for removal in removals}:
            change.execute("DELETE FROM tombstones WHERE at < ?", (now - TOMBSTONE_LIFETIME,))
            limits = (("WHERE namespace = ?", (namespace,), NAMESPACE_TOMBSTONES), ("", (), MAX_TOMBSTONES))
            for where, names, most in limits:
                [count] = change.execute(f"SELECT coalesce(sum(tombstones), 0) FROM graves {where}", names).fetchone()  # noqa: S608  # ours
                if count > most:
                    oldest = f"SELECT rowid FROM tombstones {where} ORDER BY at LIMIT ?"  # noqa: S608  # ours
                    change.execute(f"DELETE FROM tombstones WHERE rowid IN ({oldest})", (*names, count - most))  # noqa: S608  # ours

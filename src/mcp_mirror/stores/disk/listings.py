"""Searches the index of the disk store for unexpired values: pages of lists, bases, slugs and sums."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

import msgspec

from mcp_mirror.stores.disk.index import Index
from mcp_mirror.stores.records import RecordCodec
from mcp_mirror.types import Descriptor, StoreStats, Traffic

_LIST: Final = """SELECT base, descriptor, expires FROM entries {index}
    WHERE namespace = :namespace AND expires > :now {slug} {after} ORDER BY created DESC, rowid DESC"""
_OF_SLUG: Final = "AND label = :slug"
_AFTER: Final = "AND (created, rowid) < (:created, :row)"
_BELOW: Final = """SELECT base FROM entries {index} WHERE namespace = :namespace AND base < :text AND expires > :now
    ORDER BY base DESC LIMIT :limit"""
_ABOVE: Final = """SELECT base FROM entries {index} WHERE namespace = :namespace AND base >= :text AND expires > :now
    ORDER BY base LIMIT :limit"""
_BY_EXPIRY: Final = "INDEXED BY entries_own_expires"
_BY_CREATION: Final = "INDEXED BY entries_made"
_BY_TOOL: Final = "INDEXED BY entries_tool_made"
_BY_BASE: Final = "INDEXED BY sqlite_autoindex_entries_1"
_FEW: Final = 1000
"""Unexpired values that SQLite sorts for a list, if others have expired."""
_EXPIRED: Final = "SELECT 1 FROM entries WHERE namespace = ? AND expires <= ? LIMIT 1"
_UNEXPIRED: Final = """SELECT count(*), coalesce(sum(size), 0) FROM (
    SELECT size FROM entries WHERE namespace = ? AND expires > ? LIMIT ?)"""
_STATS: Final = """SELECT "values" - gone, bytes - size FROM usage, (
        SELECT count(*) AS gone, coalesce(sum(size), 0) AS size FROM entries
        WHERE expires <= :now AND namespace = :namespace) WHERE namespace = :namespace"""
"""The sums without expired values that are not removed yet."""
_SLUGS: Final = """WITH RECURSIVE slugs (namespace, label) AS (
        SELECT namespace, (SELECT min(label) FROM entries WHERE namespace = usage.namespace)
        FROM usage WHERE coalesce(namespace = :namespace, true)
        UNION SELECT namespace, (
            SELECT min(label) FROM entries WHERE namespace = slugs.namespace AND label > slugs.label)
        FROM slugs WHERE label IS NOT NULL)
    SELECT label FROM slugs WHERE label IS NOT NULL"""
"""The slugs of one namespace, or of all for NULL: one index lookup per slug, independent of the number of values."""
_NAMESPACES: Final = """SELECT namespace FROM usage
    WHERE EXISTS (SELECT 1 FROM entries WHERE namespace = usage.namespace AND expires > ?)
    UNION SELECT namespace FROM traffic"""
_TRAFFIC: Final = "SELECT sent, kept_out FROM traffic WHERE namespace = ?"


class DiskListings:
    """Lists the values of namespaces. Safe for use from any thread."""

    def __init__(self, index: Index, records: RecordCodec, clock: Callable[[], float], lifetime: float) -> None:
        self._index, self._records, self._clock, self._lifetime = index, records, clock, lifetime

    def list(self, namespace: str, after: str | None, slug: str, limit: int | None) -> tuple[Descriptor, ...]:
        """A page of the stored values, newest first; see `Store.list`."""
        now = self._clock()
        parameters: dict[str, Any] = {"namespace": namespace, "now": now, "slug": slug}
        page: list[Descriptor] = []
        with self._index.reading() as connection:
            if after is not None:
                place = "SELECT created, rowid FROM entries WHERE namespace = ? AND base = ? AND expires > ?"
                row = connection.execute(place, (namespace, after, now)).fetchone()
                if row is None:
                    raise LookupError(after)
                parameters |= {"created": row[0], "row": row[1]}
            query = _LIST.format(
                index=_choose_index(connection, namespace, now, _BY_TOOL if slug else _BY_CREATION),
                slug=_OF_SLUG if slug else "",
                after=_AFTER if after is not None else "",
            )
            with closing(connection.execute(query, parameters)) as rows:
                for base, record, expires in rows:
                    if len(page) == limit:
                        break
                    if known := self._records.decode_brief(namespace, base, record):
                        shown = min(expires, now + self._lifetime)
                        page.append(known if known.expires == shown else msgspec.structs.replace(known, expires=shown))
        return tuple(page)

    def bases_near(self, namespace: str, text: str, limit: int) -> tuple[str, ...]:
        """The bases next to a text in alphabetical order."""
        now = self._clock()
        parameters: dict[str, Any] = {"namespace": namespace, "text": text, "limit": limit, "now": now}
        with self._index.reading() as connection:
            index = _choose_index(connection, namespace, now, _BY_BASE)
            below, above = (
                connection.execute(query.format(index=index), parameters).fetchall() for query in (_BELOW, _ABOVE)
            )
        return tuple(base for (base,) in (*reversed(below), *above))

    def stats(self, namespace: str) -> StoreStats:
        """The number and bytes of the unexpired values, and the counted tokens."""
        now = self._clock()
        with self._index.reading() as connection:
            counted = connection.execute(_TRAFFIC, (namespace,)).fetchone()
            own = connection.execute('SELECT "values", bytes FROM usage WHERE namespace = ?', (namespace,)).fetchone()
            values, size = own or (0, 0)
            if own and connection.execute(_EXPIRED, (namespace, now)).fetchone():
                half = values // 2  # the smaller part is counted: the unexpired values, or the others
                values, size = connection.execute(_UNEXPIRED, (namespace, now, half + 1)).fetchone()
                if values > half:
                    values, size = connection.execute(_STATS, {"namespace": namespace, "now": now}).fetchone()
        return StoreStats(values, size, Traffic(*counted) if counted else Traffic())

    def namespaces(self) -> frozenset[str]:
        """The namespaces with stored values or counted tokens."""
        with self._index.reading() as connection:
            return frozenset(namespace for (namespace,) in connection.execute(_NAMESPACES, (self._clock(),)))

    def slugs(self, namespace: str | None) -> frozenset[str]:
        """The slugs of a namespace's values; of all values and tombstones for None."""
        with self._index.reading() as connection:
            rows = connection.execute(_SLUGS, {"namespace": namespace}).fetchall()
            if namespace is None:
                rows += connection.execute("SELECT DISTINCT label FROM tombstones").fetchall()
        return frozenset(slug for (slug,) in rows if slug)


def _choose_index(connection: sqlite3.Connection, namespace: str, now: float, in_order: str) -> str:
    """The index for a search of unexpired values in some order.

    The index on expiry, if values have expired and few have not: the one in that order would pass by all the expired
    ones. Otherwise the one in that order: SQLite would sort all values.
    """
    if not connection.execute(_EXPIRED, (namespace, now)).fetchone():
        return in_order
    [few, _] = connection.execute(_UNEXPIRED, (namespace, now, _FEW + 1)).fetchone()
    return _BY_EXPIRY if few <= _FEW else in_order

"""The tables of the disk store's index, and migrations from older formats."""

import sqlite3
from typing import Final

from mcp_mirror.errors import StoreError

_FIRST: Final = (
    """CREATE TABLE entries (
        namespace TEXT NOT NULL,
        base TEXT NOT NULL,
        size INTEGER NOT NULL,
        created REAL NOT NULL,
        used REAL NOT NULL,
        expires REAL NOT NULL,
        descriptor BLOB NOT NULL,
        content BLOB, -- of a small value
        digest TEXT, -- of a large one
        PRIMARY KEY (namespace, base))""",
    "CREATE INDEX entries_used ON entries (used)",
    "CREATE INDEX entries_own_used ON entries (namespace, used)",
    "CREATE INDEX entries_expires ON entries (expires)",
    "CREATE INDEX entries_digest ON entries (digest)",
    "CREATE TABLE blobs (digest TEXT PRIMARY KEY, start INTEGER NOT NULL, held INTEGER NOT NULL)",
)
_TOMBSTONES_USAGE_LABELS: Final = (
    "ALTER TABLE entries ADD COLUMN label TEXT NOT NULL DEFAULT ''",
    "UPDATE entries SET label = substr(base, 1, max(length(base) - 37, 0))",
    "CREATE INDEX entries_label ON entries (label)",
    """CREATE TABLE tombstones (
        namespace TEXT NOT NULL,
        base TEXT NOT NULL,
        label TEXT NOT NULL,
        reason TEXT NOT NULL,
        at REAL NOT NULL,
        descriptor BLOB NOT NULL,
        PRIMARY KEY (namespace, base))""",
    "CREATE INDEX tombstones_at ON tombstones (at)",
    "CREATE INDEX tombstones_label ON tombstones (label)",
    'CREATE TABLE usage (namespace TEXT PRIMARY KEY, "values" INTEGER NOT NULL, bytes INTEGER NOT NULL)',
    "INSERT INTO usage SELECT namespace, count(*), sum(size) FROM entries GROUP BY namespace",
    # Blobs that no value has any more: their files are removed once that is certain.
    "CREATE TABLE doomed (digest TEXT NOT NULL, start INTEGER NOT NULL, PRIMARY KEY (digest, start))",
    """CREATE TRIGGER entry_added AFTER INSERT ON entries BEGIN
        INSERT INTO usage VALUES (new.namespace, 1, new.size)
            ON CONFLICT (namespace) DO UPDATE SET "values" = "values" + 1, bytes = bytes + new.size;
    END""",
    """CREATE TRIGGER entry_removed AFTER DELETE ON entries BEGIN
        UPDATE usage SET "values" = "values" - 1, bytes = bytes - old.size WHERE namespace = old.namespace;
        DELETE FROM usage WHERE namespace = old.namespace AND "values" = 0;
    END""",
    """CREATE TRIGGER blob_released AFTER DELETE ON entries
        WHEN old.digest IS NOT NULL AND NOT EXISTS (SELECT 1 FROM entries WHERE digest = old.digest)
    BEGIN
        INSERT OR IGNORE INTO doomed SELECT digest, start FROM blobs WHERE digest = old.digest;
        DELETE FROM blobs WHERE digest = old.digest;
    END""",
)
_TRAFFIC: Final = (
    "CREATE TABLE traffic (namespace TEXT PRIMARY KEY, sent INTEGER NOT NULL, kept_out INTEGER NOT NULL)",
)
_SEALS: Final = (
    # The keys with which values that are sealed are, or were; see `sealing`.
    "CREATE TABLE seals (key BLOB PRIMARY KEY)",
    """CREATE TRIGGER entry_sealed AFTER INSERT ON entries WHEN substr(new.descriptor, 1, 1) = x'c1' BEGIN
        INSERT OR IGNORE INTO seals VALUES (substr(new.descriptor, 2, 8));
    END""",
)
_PAGES_TOMBSTONES: Final = (
    # Pages of lists in the order of making, of all tools or of one; what is not needed any more for eviction goes.
    "CREATE INDEX entries_made ON entries (namespace, created)",
    "CREATE INDEX entries_tool_made ON entries (namespace, label, created)",
    "DROP INDEX entries_used",
    "DROP INDEX entries_expires",
    "CREATE INDEX entries_expires ON entries (expires, namespace, size)",
    "DROP INDEX entries_digest",
    "CREATE INDEX entries_digest ON entries (digest) WHERE digest IS NOT NULL",
    "CREATE TABLE graves (namespace TEXT PRIMARY KEY, tombstones INTEGER NOT NULL)",
    "INSERT INTO graves SELECT namespace, count(*) FROM tombstones GROUP BY namespace",
    "CREATE INDEX tombstones_own_at ON tombstones (namespace, at)",
    """CREATE TRIGGER tombstone_added AFTER INSERT ON tombstones BEGIN
        INSERT INTO graves VALUES (new.namespace, 1)
            ON CONFLICT (namespace) DO UPDATE SET tombstones = tombstones + 1;
    END""",
    """CREATE TRIGGER tombstone_removed AFTER DELETE ON tombstones BEGIN
        UPDATE graves SET tombstones = tombstones - 1 WHERE namespace = old.namespace;
        DELETE FROM graves WHERE namespace = old.namespace AND tombstones = 0;
    END""",
)
_OWN_EXPIRY: Final = (
    # The unexpired values of a namespace are found without a look at its expired ones.
    "DROP INDEX entries_expires",
    "CREATE INDEX entries_own_expires ON entries (namespace, expires, size)",
    "DROP INDEX entries_label",
)
_COMPACT_RECORDS: Final[tuple[str, ...]] = ()
"""Records are arrays from here on, which earlier versions cannot read. Older records stay as they are."""
STEPS: Final = (_FIRST, _TOMBSTONES_USAGE_LABELS, _TRAFFIC, _SEALS, _PAGES_TOMBSTONES, _OWN_EXPIRY, _COMPACT_RECORDS)
"""The migrations: from nothing to format 1, from 1 to 2, and so on."""


def migrate(connection: sqlite3.Connection) -> None:
    """Migrate an index from any older format to the newest, completely or not at all.

    Raises:
        StoreError: The index has a newer format.
        sqlite3.Error: The index cannot be read or written.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(STEPS):
        raise StoreError(
            f"The store has format {version} and this mcp-mirror knows formats up to {len(STEPS)}. "
            "Use the mcp-mirror that created it, or choose another folder (`store.path`)."
        )
    if version == len(STEPS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in (statement for step in STEPS[version:] for statement in step):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(STEPS)}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")

"""The tables of the disk store's index."""

import sqlite3
from pathlib import Path
from typing import Final

from mcp_mirror.errors import StoreError

_FORMAT: Final = 8
"""Identifies the tables and the records in them: a store of another format is refused."""
_TABLES: Final = (
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
        label TEXT NOT NULL, -- the slug of the tool
        PRIMARY KEY (namespace, base))""",
    "CREATE INDEX entries_own_used ON entries (namespace, used)",
    # The unexpired values of a namespace are found without a look at its expired ones.
    "CREATE INDEX entries_own_expires ON entries (namespace, expires, size)",
    # Pages of lists in the order of making, of all tools or of one.
    "CREATE INDEX entries_made ON entries (namespace, created)",
    "CREATE INDEX entries_tool_made ON entries (namespace, label, created)",
    "CREATE INDEX entries_digest ON entries (digest) WHERE digest IS NOT NULL",
    "CREATE TABLE blobs (digest TEXT PRIMARY KEY, start INTEGER NOT NULL, held INTEGER NOT NULL)",
    # Blobs that no value has any more: their files are removed once that is certain.
    "CREATE TABLE doomed (digest TEXT NOT NULL, start INTEGER NOT NULL, PRIMARY KEY (digest, start))",
    """CREATE TRIGGER blob_released AFTER DELETE ON entries
        WHEN old.digest IS NOT NULL AND NOT EXISTS (SELECT 1 FROM entries WHERE digest = old.digest)
    BEGIN
        INSERT OR IGNORE INTO doomed SELECT digest, start FROM blobs WHERE digest = old.digest;
        DELETE FROM blobs WHERE digest = old.digest;
    END""",
    'CREATE TABLE usage (namespace TEXT PRIMARY KEY, "values" INTEGER NOT NULL, bytes INTEGER NOT NULL)',
    """CREATE TRIGGER entry_added AFTER INSERT ON entries BEGIN
        INSERT INTO usage VALUES (new.namespace, 1, new.size)
            ON CONFLICT (namespace) DO UPDATE SET "values" = "values" + 1, bytes = bytes + new.size;
    END""",
    """CREATE TRIGGER entry_removed AFTER DELETE ON entries BEGIN
        UPDATE usage SET "values" = "values" - 1, bytes = bytes - old.size WHERE namespace = old.namespace;
        DELETE FROM usage WHERE namespace = old.namespace AND "values" = 0;
    END""",
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
    "CREATE INDEX tombstones_own_at ON tombstones (namespace, at)",
    "CREATE TABLE graves (namespace TEXT PRIMARY KEY, tombstones INTEGER NOT NULL)",
    """CREATE TRIGGER tombstone_added AFTER INSERT ON tombstones BEGIN
        INSERT INTO graves VALUES (new.namespace, 1)
            ON CONFLICT (namespace) DO UPDATE SET tombstones = tombstones + 1;
    END""",
    """CREATE TRIGGER tombstone_removed AFTER DELETE ON tombstones BEGIN
        UPDATE graves SET tombstones = tombstones - 1 WHERE namespace = old.namespace;
        DELETE FROM graves WHERE namespace = old.namespace AND tombstones = 0;
    END""",
    "CREATE TABLE traffic (namespace TEXT PRIMARY KEY, sent INTEGER NOT NULL, kept_out INTEGER NOT NULL)",
    # The keys with which values are, or were, encrypted; see `encryption`.
    "CREATE TABLE seals (key BLOB PRIMARY KEY)",
    """CREATE TRIGGER entry_sealed AFTER INSERT ON entries WHEN substr(new.descriptor, 1, 1) = x'c1' BEGIN
        INSERT OR IGNORE INTO seals VALUES (substr(new.descriptor, 2, 8));
    END""",
    f"PRAGMA user_version = {_FORMAT}",
)


def create_tables(connection: sqlite3.Connection, folder: Path) -> bool:
    """Create the tables of a new index in a folder, completely or not at all. Return whether it is new.

    StoreError if the index has another format.
    """
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found == _FORMAT:
        return False
    if found:
        raise StoreError(
            f"The store in {folder} has format {found} and this mcp-mirror knows format {_FORMAT}. "
            "Move the folder away, choose another one (`store.path`), or use the mcp-mirror that created it."
        )
    with connection:  # commits, or rolls back
        connection.execute("BEGIN IMMEDIATE")
        for statement in _TABLES:
            connection.execute(statement)
    return True

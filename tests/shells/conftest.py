"""What is true of a disk store's folder whatever has happened to it."""

import hashlib
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

Audit = Callable[[Path], set[tuple[str, str]]]


def _audit(folder: Path) -> set[tuple[str, str]]:
    """Of a store that nobody has open: every value is whole, the books are exact, nothing else lies about.

    Returns:
        Namespace and base of each value.
    """
    blobs = folder / "blobs"
    with closing(sqlite3.connect(folder / "index.sqlite")) as index:
        assert index.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        kept = index.execute(
            "SELECT namespace, base, size, content, entries.digest, start, held FROM entries "
            "LEFT JOIN blobs ON blobs.digest = entries.digest"
        ).fetchall()
        usage = {row[0]: row[1:] for row in index.execute("SELECT * FROM usage")}
        assert index.execute("SELECT * FROM doomed").fetchall() == []
        known = {(digest, start) for digest, start in index.execute("SELECT digest, start FROM blobs")}
    for _, _, size, content, digest, start, held in kept:
        if digest is None:
            assert len(content) == size
            continue
        whole = (blobs / _name_of(digest, start)).read_bytes()
        assert (len(whole), content) == (held, None)
        assert hashlib.sha256(whole[start : start + size]).hexdigest() == digest
    names = {namespace for namespace, *_ in kept}
    sizes = {name: [size for namespace, _, size, *_ in kept if namespace == name] for name in names}
    assert usage == {name: (len(of), sum(of)) for name, of in sizes.items()}
    assert known == {(digest, start) for *_, digest, start, _ in kept if digest}
    assert {path.name for path in blobs.iterdir()} == {_name_of(*place) for place in known}
    assert {path.name for path in folder.iterdir()} <= {"blobs", "index.sqlite", "lock"}
    return {(namespace, base) for namespace, base, *_ in kept}


def _name_of(digest: str, start: int) -> str:
    return f"{digest}.{start}" if start else digest


@pytest.fixture
def audit() -> Audit:
    """Checks a folder that no store has open."""
    return _audit

"""Fixtures for memory tools over any store, a certificate, and the invariants of a disk store's folder."""

import asyncio
import datetime as dt
import ipaddress
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest
import pytest_asyncio
from clocks import Clock, PassTime
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from recording_watchdog import RecordingWatchdog

from mcp_mirror.memory.memory import Memory, MemoryServices
from mcp_mirror.memory.usage import UsageCounter
from mcp_mirror.memory.value_writer import ValueWriter
from mcp_mirror.observability.audit import Audit as AuditLog
from mcp_mirror.payload.spool import Spool
from mcp_mirror.security.flows import Flows
from mcp_mirror.settings.policies import MemoryToolsPolicy, MirrorPolicy, WirePolicy
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.base import Store
from mcp_mirror.stores.disk.blobs import compute_fingerprint
from mcp_mirror.stores.encryption import MAGIC, sealed_size
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.tokens import estimate_tokens
from mcp_mirror.workers.frames import FrameScanner
from mcp_mirror.workers.queries import QueryRunner

MemoryOver = Callable[..., Memory]


@pytest.fixture
def child_watchdog() -> Iterator[RecordingWatchdog]:
    """A watchdog for worker processes that knows which it has watched."""
    with RecordingWatchdog() as child_watchdog:
        yield child_watchdog


@pytest.fixture
def clock() -> Clock:
    """The clock of a store."""
    return Clock()


@pytest_asyncio.fixture
async def pass_time(monkeypatch: pytest.MonkeyPatch) -> PassTime:
    """Advances the clock of the event loop, and lets it run what is due."""
    loop, passed = asyncio.get_running_loop(), list[float]()
    read_clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: read_clock() + sum(passed))

    async def advance(seconds: float) -> None:
        passed.append(seconds)
        await anyio.wait_all_tasks_blocked()

    return advance


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a store; neither it nor the folder above exists."""
    return tmp_path / "above" / "store"


@pytest.fixture
def without_background_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only calls remove expired values. On a slow machine, the background task would begin during a test."""
    monkeypatch.setattr("mcp_mirror.stores.quotas._IDLE", 3600.0)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for 127.0.0.1 and tools.example.com, signed by itself, with its key."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name.from_rfc4514_string("CN=test")
    now, day = dt.datetime.now(dt.UTC), dt.timedelta(days=1)
    address = x509.SubjectAlternativeName(
        [
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            x509.DNSName("tools.example.com"),
        ]
    )
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    text = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path = tmp_path / "certificate.pem"
    path.write_bytes(key.private_bytes(*text) + signed.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
async def memory_over(tmp_path: Path) -> AsyncIterator[MemoryOver]:
    """Puts a memory together: over a store, with the policies that are given."""
    limits = WirePolicy()
    with ChildWatchdog() as child_watchdog, Spool(limits, tmp_path) as spool:
        async with (
            aclosing(FrameScanner(child_watchdog, spool)) as scanner,
            aclosing(QueryRunner(child_watchdog, spool)) as queries,
        ):

            def memory(store: Store, mirror: MirrorPolicy | None = None, **tools: Any) -> Memory:
                writer = ValueWriter(store, StorePolicy(), lambda: 1e9)
                return Memory(
                    MemoryServices(writer, scanner, queries, spool, UsageCounter(store), limits, uuid4),
                    mirror=mirror or MirrorPolicy(),
                    tools=MemoryToolsPolicy(**tools),
                    estimate=estimate_tokens,
                    audit=AuditLog(),
                    flows=Flows(),
                )

            yield memory


Audit = Callable[[Path], set[tuple[str, str]]]


def _audit(folder: Path) -> set[tuple[str, str]]:
    """Check a closed store: all values are complete, the accounts are exact, and no other file exists.

    Returns:
        Namespace and base of each value.
    """
    blobs = folder / "blobs"
    with closing(sqlite3.connect(folder / "index.sqlite")) as index:
        assert index.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = index.execute(
            "SELECT namespace, base, substr(descriptor, 1, 1), size, content, entries.digest, start, held FROM entries "
            "LEFT JOIN blobs ON blobs.digest = entries.digest"
        ).fetchall()
        usage = {row[0]: row[1:] for row in index.execute("SELECT * FROM usage")}
        assert index.execute("SELECT * FROM doomed").fetchall() == []
        known = {(digest, start) for digest, start in index.execute("SELECT digest, start FROM blobs")}
    for namespace, _, mark, size, content, digest, start, stored_size in rows:
        is_sealed = mark == MAGIC
        if digest is None:
            assert len(content) == (sealed_size(size) if is_sealed else size)
            continue
        data = (blobs / _name_of(digest, start)).read_bytes()
        assert (len(data), content) == (stored_size, None)
        if is_sealed:
            assert (stored_size, start) == (sealed_size(size), 0)
            continue
        assert digest.startswith(compute_fingerprint(namespace, (data[start : start + size],)))
    names = {namespace for namespace, *_ in rows}
    sizes = {name: [size for namespace, _, _, size, *_ in rows if namespace == name] for name in names}
    assert usage == {name: (len(of), sum(of)) for name, of in sizes.items()}
    assert known == {(digest, start) for *_, digest, start, _ in rows if digest}
    assert {path.name for path in blobs.iterdir()} == {_name_of(*place) for place in known}
    log = {"events.sqlite", "events.sqlite-shm", "events.sqlite-wal"}  # the last two after a kill
    assert {path.name for path in folder.iterdir()} <= {"blobs", "index.sqlite", "listings", "lock", "reserve", *log}
    return {(namespace, base) for namespace, base, *_ in rows}


def _name_of(digest: str, start: int) -> str:
    return f"{digest}.{start}" if start else digest


@pytest.fixture
def audit() -> Audit:
    """Checks a folder that no store has open."""
    return _audit

"""A failing disk: at the n-th system call for every n, full at every size, read-only, without file handles.

Every failure gives a `StoreError`, no acknowledged value is lost or damaged, and the next value is stored.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partialmethod
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from clocks import Clock
from resource_limits import limited
from samples import sample
from waiting import until

from mcp_mirror.errors import StoreError
from mcp_mirror.settings.store import EncryptionPolicy, StorePolicy
from mcp_mirror.stores.disk import blobs
from mcp_mirror.stores.disk.store import DiskStore
from mcp_mirror.types import Descriptor, FileSpan, Provenance, Span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Audit

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="mounts and limits are those of POSIX")

FORGIVEN = ("link", "unlink")
"""Calls that can fail without harm: a link that cannot be is a copy, and a name that stays is removed later."""
ERRORS = {errno.ENOSPC: "disk is full", errno.EIO: "reports an error", errno.EMFILE: "file handle"}
SIZE = 100_000
KEPT = 4
"""Values that the store has room for."""


def blob_of(base: str) -> bytes:
    return (base.encode() * SIZE)[:SIZE]


def small_of(base: str) -> bytes:
    return (base.encode() * 9000)[:9000]


async def put(store: DiskStore, base: str, blob: bytes, file: FileSpan | None = None, expires: float = 9e12) -> None:
    provenance = Provenance("up", "tool", "0" * 64)
    await store.put("me", Descriptor(base, "text", len(blob), 7, (), time.time(), expires, provenance), (blob,), file)


def opened(folder: Path, encryption: EncryptionPolicy | None = None) -> DiskStore:
    return DiskStore(StorePolicy(max_values=KEPT, ttl=9e9, encryption=encryption), time.time, folder)


@dataclass
class Fault:
    """Lets one call fail, the n-th of its name."""

    name: str
    code: int
    at: int
    patch: pytest.MonkeyPatch
    calls: int = 0

    def __post_init__(self) -> None:
        self._call = getattr(Path if self.name in OF_PATHS else os, self.name)
        if self.name in OF_PATHS:
            self.patch.setattr(Path, self.name, partialmethod(self))
        else:
            self.patch.setattr(blobs, "os", SimpleNamespace(**vars(os) | {self.name: self}))

    @property
    def fired(self) -> bool:
        return self.calls >= self.at

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            if self.name == "close":  # the system lets go of a file even where it reports an error
                os.close(*arguments)
            raise OSError(self.code, os.strerror(self.code))
        return self._call(*arguments, **options)


@dataclass
class Attempts:
    """What was tried, and what of it was acknowledged."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    async def put(self, store: DiskStore, base: str, blob: bytes, file: FileSpan | None = None) -> None:
        try:
            await put(store, base, blob, file)
        except StoreError as error:
            self.failed.append(str(error))
            assert await store.describe("me", base) is None
        else:
            self.blobs[base] = blob


async def run_through(folder: Path, frame: Path, encryption: EncryptionPolicy | None = None) -> Attempts:
    """A store's life: values written, linked and shared, evicted and forgotten."""
    tried = Attempts()
    frame.write_bytes(b"head" + blob_of("linked"))
    async with opened(folder, encryption) as store:
        await tried.put(store, "first", blob_of("first"))
        await tried.put(store, "linked", blob_of("linked"), FileSpan(str(frame), Span(4, SIZE)))
        await tried.put(store, "same", blob_of("first"))
        await tried.put(store, "small", small_of("small"))
        for base in ("next", "last"):
            await tried.put(store, base, blob_of(base))
        await store.delete("me", "small")
        tried.blobs.pop("small", None)
        left = [one.base for one in await store.list("me")]
        assert len(left) >= min(KEPT - 1, len(tried.blobs))
        tried.blobs = {base: blob for base, blob in tried.blobs.items() if base in left}
        assert set(left) == set(tried.blobs)
    return tried


SEALED = EncryptionPolicy(("an example of a secret of 32 characters",))
CALLS = ("open", "write", "fsync", "close", "link", "replace", "unlink", "mkdir")
OF_PATHS = ("replace", "unlink", "mkdir")
"""Those that are methods of `Path`."""
SAMPLE = set(zip(CALLS, cycle(ERRORS)))  # one error for each call
"""Failures of `make test`: each call once, with one of the errors."""


@pytest.mark.parametrize(
    ("name", "code", "encryption"),
    sample(
        [
            *((name, code, None) for name in CALLS for code in ERRORS),
            *((name, errno.ENOSPC, SEALED) for name in ("write", "fsync", "replace")),
        ],
        lambda case: case[:2] in SAMPLE if case[2] is None else case[0] == "write",
    ),
)
async def test_no_failing_system_call_loses_an_acknowledged_value(
    name: str, code: int, encryption: EncryptionPolicy | None, tmp_path: Path, audit: Audit
) -> None:
    failures = 0
    for at in range(1, 200):
        folder = tmp_path / f"{at}"
        with pytest.MonkeyPatch.context() as patch:
            fault = Fault(name, code, at, patch)
            try:
                tried = await run_through(folder, tmp_path / "frame", encryption)
            except StoreError as error:  # at the start
                tried = await run_through(folder, tmp_path / "frame", encryption)
                tried.failed.append(str(error))
        failures += len(tried.failed)
        assert all(ERRORS[code] in message for message in tried.failed)
        assert len(tried.failed) <= 1
        async with opened(folder, encryption) as store:
            for base, blob in tried.blobs.items():
                assert bytes((await store.read("me", base)) or b"") == blob, (at, base)
            await put(store, "after", blob_of("after"))
            assert bytes((await store.read("me", "after")) or b"") == blob_of("after")
        audit(folder)
        if not fault.fired:
            assert failures == (0 if name in FORGIVEN else at - 1)
            return
    pytest.fail("the calls do not end")


@contextmanager
def few_handles(spare: int) -> Iterator[None]:
    """This process with so many file handles left."""
    taken: list[int] = []
    with limited(resource.RLIMIT_NOFILE, 256):
        try:
            with suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            for file in taken[:spare]:
                os.close(file)
            yield
        finally:
            for file in taken[spare:]:
                os.close(file)


async def test_a_check_reports_a_disk_without_room_and_leaves_nothing(small_disk: Path) -> None:
    async with opened(small_disk / "store") as store:
        await put(store, "before", small_of("before"))
        before = sorted(small_disk.rglob("*"))
        await store.check()
        assert sorted(small_disk.rglob("*")) == before
        fill(small_disk, left=8_192)
        with pytest.raises(StoreError, match="disk is full"):
            await store.check()
        (small_disk / "filler").unlink()
        await store.check()
        assert sorted(small_disk.rglob("*")) == before


async def test_without_file_handles_nothing_is_lost_and_the_next_value_is_kept(tmp_path: Path, audit: Audit) -> None:
    values: dict[str, bytes] = {}
    refused: list[str] = []
    unread: list[str] = []
    for spare in range(12):
        async with opened(tmp_path) as store:
            base, blob = f"t-{spare}", blob_of(f"t-{spare}")
            with few_handles(spare):
                try:
                    await put(store, base, blob)
                    values[base] = blob
                except StoreError as error:
                    refused.append(str(error))
                try:
                    await store.read("me", base)
                except StoreError as error:
                    unread.append(str(error))
            await put(store, "after", small_of("after"))
            values = {one.base: values.get(one.base, small_of("after")) for one in await store.list("me")}
            for one, value in values.items():
                assert bytes((await store.read("me", one)) or b"") == value
    assert 0 < len(refused) < 12
    assert all("ulimit -n" in message for message in (*refused, *unread))
    audit(tmp_path)


async def test_no_failing_write_loses_an_acknowledged_value(tmp_path: Path, audit: Audit) -> None:
    refused: list[str] = []
    for pages in range(1, 80):
        async with opened(tmp_path / "store") as store:
            tried = Attempts()
            await tried.put(store, "before", small_of("before"))
            with limited(resource.RLIMIT_FSIZE, pages * 2048):
                await tried.put(store, f"s-{pages}", small_of(f"s-{pages}"))
                await tried.put(store, f"l-{pages}", blob_of(f"l-{pages}"))
            await tried.put(store, "after", blob_of("after"))
            assert {one.base for one in await store.list("me")} >= tried.blobs.keys()
        async with opened(tmp_path / "store") as store:
            for base, blob in tried.blobs.items():
                assert bytes((await store.read("me", base)) or b"") == blob
        audit(tmp_path / "store")
        refused += tried.failed
    assert 60 < len(refused) < 160


async def test_values_can_be_deleted_while_the_system_refuses_longer_files(tmp_path: Path, audit: Audit) -> None:
    folder, policy = tmp_path / "store", StorePolicy(ttl=9e9)
    async with DiskStore(policy, time.time, folder) as store:
        for base in ("kept", "deleted"):
            await put(store, base, b"text")
    async with DiskStore(policy, time.time, folder) as store:
        with limited(resource.RLIMIT_FSIZE, (folder / "index.sqlite").stat().st_size):
            puts = [put(store, f"v-{number}", b"text") for number in range(100)]
            errors = [str(error) for error in await asyncio.gather(*puts, return_exceptions=True) if error]
            assert 0 < len(errors) < 100
            assert all("a quota of this user" in error and "`mcp-mirror values clear`" in error for error in errors)
            assert await store.delete("me", "deleted")
            assert bytes(await store.read("me", "kept") or b"") == b"text"
            with pytest.raises(StoreError, match="a quota of this user"):
                await put(store, "large", bytes(1 << 20))
        await put(store, "after", b"text")
    assert {("me", "kept"), ("me", "after")} <= audit(folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB of its own."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    output = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", str(mounted)], check=False, capture_output=True
    )
    if output.returncode:
        pytest.skip(f"no disk can be mounted here: {output.stderr.decode().strip()}")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", "--lazy", str(mounted)], check=True)


@pytest.fixture
def copying_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 128 MB with a file system that overwrites no data in place."""
    image, mounted = tmp_path / "image", tmp_path / "disk"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(128 << 20)
    for command in (("mkfs.btrfs", str(image)), ("mount", "-o", "loop", str(image), str(mounted))):
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no btrfs can be mounted here: {error}")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", "--lazy", str(mounted)], check=True)


def fill(disk: Path, left: int) -> None:
    """Take all room but so many bytes."""
    filler = disk / "filler"
    filler.unlink(missing_ok=True)
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    filler.write_bytes(bytes(max(free - left, 0)))


async def test_on_a_full_disk_nothing_is_lost_and_what_is_stored_is_read(small_disk: Path, audit: Audit) -> None:
    folder, refused = small_disk / "store", list[str]()
    async with opened(folder) as store:
        await put(store, "kept", small_of("kept"))
    for pages in range(60):
        async with opened(folder) as store:
            await store.read("me", "kept")
            fill(small_disk, pages * 8192)
            for base, blob in ((f"l-{pages}", blob_of(f"l-{pages}")), (f"s-{pages}", small_of(f"s-{pages}"))):
                try:
                    await put(store, base, blob)
                except StoreError as error:
                    refused.append(str(error))
                    assert await store.describe("me", base) is None
                else:
                    assert bytes((await store.read("me", base)) or b"") == blob
            assert bytes((await store.read("me", "kept")) or b"") == small_of("kept")
            (small_disk / "filler").unlink()
            await put(store, "after", blob_of("after"))
    assert 20 < len(refused) < 110
    assert all("disk is full" in message for message in refused)
    assert ("me", "kept") in audit(folder)


FILLED = """
import asyncio, contextlib, os, sys
from pathlib import Path
from clocks import Clock
from disk_values import LARGE, opened, put, read
from mcp_mirror.errors import StoreError

async def main(disk):
    async with opened(disk / "store", Clock()) as store:
        await put(store, Clock(), "t-kept", LARGE)
        os.sync()
        for size in (1 << 16, 512):
            with contextlib.suppress(OSError), (disk / f"filler-{size}").open("wb", buffering=0) as filler:
                while True:
                    filler.write(os.urandom(size))
        for number in range(20):
            os.sync()
            try:
                await put(store, Clock(), f"t-{number}", os.urandom(2000))
            except StoreError as error:
                print(error)
        assert await read(store, "t-kept") == LARGE
        assert await store.delete("me", "t-kept")

asyncio.run(main(Path(sys.argv[1])))
"""


def test_a_full_disk_that_writes_copies_does_not_end_the_gateway(copying_disk: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "helpers")}
    command = [sys.executable, "-c", FILLED, str(copying_disk)]
    ended = subprocess.run(command, env=environment, check=True, capture_output=True, timeout=100)
    assert b"disk is full" in ended.stdout


async def test_a_store_that_starts_on_a_full_disk_fails_and_recovers_later(small_disk: Path, audit: Audit) -> None:
    folder, refused = small_disk / "store", list[str]()
    for pages in range(60):
        fill(small_disk, pages * 8192)
        try:
            async with opened(folder):
                pass
        except StoreError as error:
            refused.append(str(error))
    assert 0 < len(refused) < 60
    assert all("disk is full" in message for message in refused)
    (small_disk / "filler").unlink()
    async with opened(folder) as store:
        await put(store, "after", blob_of("after"))
    assert audit(folder) == {("me", "after")}


async def test_a_store_opens_on_a_full_disk_to_read_and_to_delete(small_disk: Path, audit: Audit) -> None:
    folder, deleted = small_disk / "store", [f"{size}-{n}" for n in range(4) for size in ("small", "large")]
    policy = StorePolicy(ttl=9e9)
    for pages in range(10):
        async with DiskStore(policy, time.time, folder) as store:
            await put(store, "kept", blob_of("kept"))
            for base in deleted:
                await put(store, base, blob_of("equal") if base.startswith("large") else small_of(base))
        fill(small_disk, pages * 4096)
        async with DiskStore(policy, time.time, folder) as store:  # a restarted gateway
            assert bytes((await store.read("me", "kept")) or b"") == blob_of("kept")
            with pytest.raises(StoreError, match="disk is full"):
                await put(store, "new", blob_of("new"))
            async with DiskStore(policy, time.time, folder) as other:  # `mcp-mirror values clear`
                for base in deleted:
                    assert await other.delete("me", base)
            assert [one.base for one in await store.list("me")] == ["kept"]
        (small_disk / "filler").unlink()
    assert audit(folder) == {("me", "kept")}


async def put_until_full(store: DiskStore, sizes: tuple[int, ...]) -> list[str]:
    """Store values of these sizes, in turn, until the disk is full; return their bases."""
    bases: list[str] = []
    for size in cycle(sizes):
        try:
            await put(store, base := f"v-{len(bases)}", os.urandom(size))
        except StoreError:
            break
        bases.append(base)
    with pytest.raises(StoreError, match="disk is full"):
        await put(store, base, bytes(2 * max(sizes)))
    return bases


@pytest.mark.parametrize("sizes", [(20_000,), (60_000,), (20_000, 100_000), (500,)])
async def test_a_disk_that_the_store_has_filled_itself_can_be_cleared(
    sizes: tuple[int, ...], small_disk: Path, audit: Audit
) -> None:
    folder, policy = small_disk / "store", StorePolicy(ttl=9e9)
    async with DiskStore(policy, time.time, folder) as store:
        kept = await put_until_full(store, sizes)
        async with DiskStore(policy, time.time, folder) as other:  # `mcp-mirror values clear`
            for base in kept:
                assert await other.delete("me", base)
        await put(store, "after", blob_of("after"))
    assert audit(folder) == {("me", "after")}


@pytest.mark.parametrize("left", [pytest.param(None, marks=pytest.mark.slow), 0])
async def test_expired_values_give_their_room_back_on_a_full_disk(
    left: int | None, small_disk: Path, audit: Audit
) -> None:
    folder, clock = small_disk / "store", Clock()
    async with DiskStore(StorePolicy(ttl=9e9), clock, folder) as store:
        bases = await put_until_full(store, (40_000,))
        if left is not None:
            fill(small_disk, left)
        clock.now = 9e12
        await until(store.totals, lambda totals: not totals.values)
        if left is not None:
            (small_disk / "filler").unlink()
        for base in bases[:10]:
            await put(store, f"{base}-again", blob_of("again")[:40_000], expires=9e13)
    assert audit(folder) == {("me", f"{base}-again") for base in bases[:10]}


BESIDE_FULL = """
import asyncio, sys
from pathlib import Path
from clocks import Clock
from disk_values import LARGE, opened, put

async def main(folder):
    async with opened(folder, Clock()) as store:
        await put(store, Clock(), "t-large", LARGE)
        await put(store, Clock(), "t-small", b"small")

asyncio.run(main(Path(sys.argv[1])))
"""


def test_a_full_folder_of_temporary_files_does_not_concern_the_store(small_disk: Path, tmp_path: Path) -> None:
    fill(small_disk, 0)
    helpers = {"PYTHONPATH": str(Path(__file__).parents[1] / "helpers")}
    environment = os.environ | helpers | {"TMPDIR": str(small_disk)}  # SQLite reads it once in a process
    command = [sys.executable, "-c", BESIDE_FULL, str(tmp_path / "store")]
    subprocess.run(command, env=environment, check=True, timeout=100)


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


async def test_a_read_only_folder_is_reported_and_used_once_writable(small_disk: Path, audit: Audit) -> None:
    folder = small_disk / "store"
    async with opened(folder) as store:
        await put(store, "kept", blob_of("kept"))
    remount(small_disk, "ro")
    for place in (folder, small_disk / "new"):
        with pytest.raises(StoreError, match=r"is not writable: make it writable, or choose another"):
            await opened(place).__aenter__()
    remount(small_disk, "rw")
    async with opened(folder) as store:
        assert bytes((await store.read("me", "kept")) or b"") == blob_of("kept")
    assert audit(folder) == {("me", "kept")}

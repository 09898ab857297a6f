"""A thread removes large files and frees their space."""

import errno
import gc
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from mmap import mmap
from pathlib import Path

import pytest
from removed_files import wait_until_empty, wait_until_gone
from waiting import wait_until

from mcp_mirror.payload.spool import Spool
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.memory import MemoryStore
from mcp_mirror.system.mapped_files import map_file, unlink_large
from mcp_mirror.types import Descriptor, FileSpan, Kind, Provenance, Span

BOUND = 20
LARGE = 1 << 23
REMOVER = "mcp-mirror-remover"
BASE = "t-9c1d4f0e-6a55-4b8e-9d0a-0f3b2f6f6a11"


@asynccontextmanager
async def open_memory_store(folder: Path) -> AsyncIterator[MemoryStore]:
    """Open a store with its files in a new folder."""
    folder.mkdir()
    async with MemoryStore(StorePolicy(), lambda: 1e9, lambda: folder) as store:
        yield store


async def put_part(store: MemoryStore, message: Path, span: Span) -> None:
    """Store a part of a message that is in a file, under `BASE`."""
    blob = memoryview(map_file(message))[span.start : span.stop]
    kind: Kind = "text" if blob[0] == ord('"') else "number"
    known = Descriptor(BASE, kind, span.length, 1, (), 1e9, 1e12, Provenance("up", "t", "0" * 64))
    await store.put("me", known, (blob,), FileSpan(str(message), span))


def descriptors_of(path: Path) -> list[str]:
    """Return the targets of this process's descriptors that belong to a file, removed or not."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(descriptor.readlink()))
        except FileNotFoundError:
            continue
    return [target for target in found if target.startswith(str(path))]


def removed_files_of(path: Path) -> list[str]:
    """Return those of these targets that were removed: a fixture of other tests may keep a file open."""
    return [target for target in descriptors_of(path) if target.endswith(" (deleted)")]


def wait_until_closed(path: Path) -> None:
    """Wait until no descriptor of this process belongs to a removed file; what is garbage keeps none open."""
    gc.collect()
    wait_until(lambda: not removed_files_of(path))


@pytest.mark.skipif(sys.platform != "linux", reason="lists descriptors in /proc")
@pytest.mark.parametrize("size", [100_000, LARGE])
def test_a_removed_file_stays_open_until_its_last_map_is_gone(size: int, tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * size)
    views = [map_file(path), map_file(path)]
    unlink_large(path)
    wait_until_gone(path)
    while views:
        assert len(descriptors_of(path)) == len(views) + 1  # so that the space is not freed with the last map
        assert bytes(views.pop()[-3:]) == b"xxx"
    wait_until_closed(path)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for maps in /proc")
def test_a_removed_file_is_closed_after_its_last_map_is_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    was_mapped, close = list[bool](), os.close

    def record(descriptor: int) -> None:
        target = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if target.startswith(str(tmp_path)):
            was_mapped.append(target in Path("/proc/self/maps").read_text())
        close(descriptor)

    monkeypatch.setattr(os, "close", record)
    for number in range(10):
        path = tmp_path / str(number)
        path.write_bytes(b"x" * 8 * LARGE)
        view = map_file(path)
        unlink_large(path)
        wait_until_gone(path)
        assert bytes(view).count(b"x") == len(view)
        del view
        wait_until_closed(path)
    assert was_mapped == [False] * 10  # a map that is the last reference would free the space


@pytest.fixture
def closing(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """By removed file the name of the thread that closes its descriptors."""
    closing, close = dict[str, str](), os.close

    def record(descriptor: int) -> None:
        with suppress(OSError):
            closing[str(Path(f"/proc/self/fd/{descriptor}").readlink())] = threading.current_thread().name
        close(descriptor)

    monkeypatch.setattr(os, "close", record)
    return closing


def threads_of(folder: Path, closing: dict[str, str]) -> list[str]:
    """Wait until the files of a folder are removed and closed, and return the threads that closed them."""
    wait_until_empty(folder)
    wait_until_closed(folder)
    removed = f"{folder}/", " (deleted)"
    return [thread for file, thread in closing.items() if file.startswith(removed[0]) and file.endswith(removed[1])]


def test_no_caller_waits_for_a_busy_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, absent, is_free, unlink = tmp_path / "large", tmp_path / "absent", threading.Event(), Path.unlink
    path.write_bytes(b"x" * LARGE)

    def wait(path: Path) -> None:
        assert is_free.wait(BOUND)
        unlink(path)

    monkeypatch.setattr(Path, "unlink", wait)
    unlink_large(path)
    unlink_large(absent)
    assert path.exists()
    is_free.set()
    wait_until_gone(path)


def test_a_large_file_is_removed_where_no_descriptor_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * LARGE)

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", refuse)
    unlink_large(path)
    wait_until_gone(path)


@pytest.mark.skipif(sys.platform != "linux", reason="lists descriptors in /proc")
def test_many_large_files_at_once_need_few_descriptors(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(300)]
    for path in paths:
        path.touch()
        os.truncate(path, LARGE)
    for path in paths:
        unlink_large(path)
    for path in paths:
        wait_until_gone(path)
    assert len(descriptors_of(tmp_path)) < 100
    assert [thread.name for thread in threading.enumerate()].count(REMOVER) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="lists descriptors in /proc")
def test_a_large_file_is_removed_where_no_thread_can_start(tmp_path: Path) -> None:
    script = (
        "import os, sys, threading\n"
        "from pathlib import Path\n"
        "from mcp_mirror.system.mapped_files import map_file, unlink_large\n"
        "def refuse(thread):\n"
        '    raise RuntimeError("can\'t start new thread")\n'
        "threading.Thread.start = refuse\n"
        "path = Path(sys.argv[1])\n"
        "view = map_file(path)\n"
        "unlink_large(path)\n"
        "assert not path.exists()\n"
        "assert bytes(view[-3:]) == b'xxx'\n"
        "del view\n"
        "assert not [one for one in Path('/proc/self/fd').iterdir() if str(path) in os.path.realpath(one)]\n"
    )
    path = tmp_path / "large"
    path.write_bytes(b"x" * LARGE)
    subprocess.run([sys.executable, "-c", script, path], check=True, timeout=BOUND)


@pytest.mark.skipif(sys.platform != "linux", reason="lists descriptors in /proc")
def test_small_files_and_linked_files_need_no_descriptor(tmp_path: Path) -> None:
    small, large, link = tmp_path / "small", tmp_path / "large", tmp_path / "link"
    small.write_bytes(b"x")
    large.write_bytes(b"x" * LARGE)
    link.hardlink_to(large)
    unlink_large(small)
    unlink_large(large)
    unlink_large(tmp_path / "absent")
    assert not small.exists()
    wait_until_gone(large)
    wait_until_closed(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["link"]
    assert descriptors_of(tmp_path) == []
    assert link.stat().st_size == LARGE


@pytest.mark.skipif(sys.platform != "linux", reason="lists descriptors in /proc")
async def test_a_large_value_that_the_memory_store_removes_is_freed_in_a_thread(
    tmp_path: Path, closing: dict[str, str]
) -> None:
    wait_until_closed(tmp_path.parent)  # those of other tests: if many wait, further ones are closed at once
    message = tmp_path / "message"
    message.write_bytes(b"1" * LARGE)
    async with open_memory_store(tmp_path / "store") as store:
        await put_part(store, message, Span(0, LARGE))
        unlink_large(message)
        assert await store.delete("me", BASE)
        assert threads_of(tmp_path / "store", closing) == [REMOVER]


@pytest.mark.skipif(sys.platform != "linux", reason="lists descriptors in /proc")
async def test_a_large_value_in_memory_takes_no_handle_until_it_is_read(tmp_path: Path) -> None:
    wait_until_closed(tmp_path.parent)
    message = tmp_path / "message"
    message.write_bytes(b'{"a":"' + b"1" * LARGE + b'"}')
    span = Span(5, LARGE + 2)
    async with open_memory_store(tmp_path / "store") as store:
        await put_part(store, message, span)
        message.unlink()
        assert descriptors_of(tmp_path) == []
        blob = await store.read("me", BASE)
        assert blob is not None
        assert (len(blob), bytes(blob[:2])) == (span.length, b'"1')
        assert await store.read("me", BASE, Span(span.length - 2, 2)) == b'1"'
        assert await store.delete("me", BASE)
        assert bytes(blob[-2:]) == b'1"'  # a call may be sending it


@pytest.mark.parametrize("size", [40_000, 400_000, 7 << 20, (1 << 23) - 9])
async def test_the_memory_store_keeps_only_the_value_of_a_large_message(tmp_path: Path, size: int) -> None:
    message = tmp_path / "message"
    message.write_bytes(b" " * 9 + b"1" * size + b" " * (LARGE - size))
    span, room = Span(9, size), LARGE if size > 6 << 20 else size
    async with open_memory_store(tmp_path / "store") as store:
        await put_part(store, message, span)
        message.unlink()
        assert sum(path.stat().st_size for path in (tmp_path / "store").iterdir()) <= room + 9
        assert bytes(await store.read("me", BASE) or b"") == b"1" * size
        assert bytes(await store.read("me", BASE, Span(3, 2)) or b"") == b"11"
        if (file := await store.file_of("me", BASE)) is not None:
            assert Path(file.path).read_bytes()[file.span.start : file.span.stop] == b"1" * size
        files = list((tmp_path / "store").iterdir())
        assert await store.delete("me", BASE)
    for path in files:
        wait_until_gone(path)


@pytest.mark.skipif(sys.platform != "linux", reason="lists descriptors in /proc")
@pytest.mark.skipif(sys.platform != "linux", reason="lists descriptors in /proc")
@pytest.mark.parametrize("limit", [LARGE, LARGE + 9])
def test_an_unfinished_or_overlong_message_is_freed_in_a_thread(
    tmp_path: Path, limit: int, closing: dict[str, str]
) -> None:
    wait_until_closed(tmp_path.parent)
    with Spool(WirePolicy(max_message_bytes=limit), tmp_path) as spool:
        collector = spool.collector()
        for piece in (b"x" * LARGE, b"x"):
            collector.add(piece)
        if not collector.is_dropping:
            collector.close()
        assert threads_of(spool.directory, closing) == [REMOVER]


def test_a_file_is_not_mapped_where_a_mapped_file_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * LARGE)
    monkeypatch.setattr(sys, "platform", "win32")
    view = map_file(path)
    assert not isinstance(view.obj, mmap)
    unlink_large(path)
    wait_until_gone(path)
    assert bytes(view[-3:]) == b"xxx"


async def test_a_value_whose_file_a_cleaner_removed_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    message = tmp_path / "message"
    message.write_bytes(b'"' + b"x" * 100_000 + b'"')
    async with open_memory_store(tmp_path / "files") as store:
        for _ in range(2):
            await put_part(store, message, Span(0, 100_002))
            (file,) = (tmp_path / "files").iterdir()
            file.unlink()
            assert await store.read("me", BASE) is None
            assert await store.describe("me", BASE) is None
            assert (await store.totals()).values == 0
    assert caplog.text.count("Exclude the folder from the cleaner, or set `store.kind: disk`.") == 1

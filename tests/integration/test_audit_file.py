"""The file of an audit log: appends, rotation, full disks and a bounded queue."""

import asyncio
import json
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from mcp_mirror.errors import MirrorError
from mcp_mirror.observability.audit import AuditRecord
from mcp_mirror.observability.audit_file import AuditFile
from mcp_mirror.security.sanitize import PathHasher

if sys.platform == "win32":
    pytest.skip("these are files of POSIX systems", allow_module_level=True)

RECORD = AuditRecord("call", "local", "say", "ok")


@contextmanager
def writing(path: Path) -> Iterator[AuditFile]:
    file = AuditFile(str(path), PathHasher(b"k"), lambda: 1e9)
    try:
        yield file
    finally:
        file.close()


def records(path: Path) -> list[str]:
    return [json.loads(line)["tool"] for line in path.read_text().splitlines() if line]


def test_records_are_appended_to_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for start in (0, 100):
        with writing(path) as file:
            for at in range(start, start + 100):
                file.enqueue(AuditRecord("call", "local", str(at), "ok"))
    assert records(path) == [str(at) for at in range(200)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text().splitlines()[0])["time"] == "2001-09-09T01:46:40.000Z"


def test_an_existing_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.touch()
    path.chmod(0o640)
    with writing(path) as file:
        file.enqueue(RECORD)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("how", ["renamed", "emptied"])
async def test_a_file_may_be_rotated(how: str, tmp_path: Path) -> None:
    path, old = tmp_path / "audit.jsonl", tmp_path / "audit.1"
    with writing(path) as file:
        assert await file.write(RECORD)
        if how == "renamed":
            path.rename(old)
            file.reopen()
        else:
            os.truncate(path, 0)
        assert await file.write(AuditRecord("call", "local", "then", "ok"))
    assert records(path) == ["then"]
    assert not old.exists() or records(old) == ["say"]


async def test_a_failed_reopen_continues_in_the_old_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, moved = tmp_path / "logs", tmp_path / "moved"
    folder.mkdir()
    with writing(folder / "audit.jsonl") as file:
        folder.rename(moved)
        file.reopen()
        assert await file.write(RECORD)
    assert records(moved / "audit.jsonl") == ["say"]
    assert "continues in the old file" in caplog.text


async def test_a_removed_file_is_created_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    path = folder / "audit.jsonl"
    with writing(path) as file:
        assert await file.write(RECORD)
        path.unlink()
        assert await file.write(AuditRecord("call", "local", "then", "ok"))
        assert records(path) == ["then"]
        assert f"{path} was removed, and continues in a new file" in caplog.text
        path.unlink()
        folder.rmdir()
        assert [await file.write(RECORD) for _ in range(3)] == [False] * 3
        assert caplog.text.count(f"{path} loses records: No such file or directory") == 1
        folder.mkdir()
        assert await file.write(AuditRecord("call", "local", "again", "ok"))
        assert records(path) == ["again"]


async def test_no_record_is_written_to_a_link_in_place_of_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, other = tmp_path / "audit.jsonl", tmp_path / "other"
    other.touch()
    with writing(path) as file:
        path.unlink()
        path.symlink_to(other)
        assert not await file.write(RECORD)
    assert other.read_bytes() == b""
    assert "is a symbolic link. Name the file that it leads to. Correct that;" in caplog.text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
async def test_losses_on_a_full_disk_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with writing(Path("/dev/full")) as file:
        file.enqueue(RECORD)
        assert not await file.write(RECORD)
        assert (file.lost, file.written) == (2, 0)
    assert caplog.text.count("loses records: No space left on device") == 1


async def test_a_full_disk_leaves_no_part_of_a_line_to_other_gateways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "audit.jsonl"
    write = os.write
    with writing(path) as file, writing(path) as other:
        assert await other.write(RECORD)
        monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:20]))
        assert not await file.write(RECORD)
        monkeypatch.setattr(os, "write", write)
        assert await other.write(AuditRecord("call", "local", "other", "ok"))
        assert await file.write(AuditRecord("call", "local", "then", "ok"))
    assert records(path) == ["say", "other", "then"]
    assert (file.lost, file.written) == (1, 1)
    assert "is written again. It has lost 1 record since the start." in caplog.text


async def test_losses_that_alternate_with_records_are_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write, sizes = os.write, cycle([20, 1000])
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: next(sizes)]))
    with writing(tmp_path / "audit.jsonl") as file:
        assert [await file.write(RECORD) for _ in range(20)] == [False, True] * 10
    assert caplog.text.count("loses records: the disk is full") == 2
    assert caplog.text.count("is written again") == 1


async def test_a_truncated_line_that_cannot_be_removed_ends_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    write = os.write

    def refuse(*_: int) -> None:
        raise PermissionError

    with writing(path) as file:
        monkeypatch.setattr(os, "ftruncate", refuse)
        monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:20]))
        assert not await file.write(RECORD)
        monkeypatch.setattr(os, "write", write)
        assert await file.write(AuditRecord("call", "local", "then", "ok"))
    torn, complete = path.read_text().splitlines()
    assert (len(torn), json.loads(complete)["tool"]) == (20, "then")


@pytest.mark.parametrize("how", ["at the start", "after a rotation signal"])
@pytest.mark.parametrize("before", [b'{"tool":"say"}\n{"tool":', b'{"tool":', b'{"tool":"say"}\n', b""])
async def test_a_line_that_an_ended_process_truncated_spoils_no_record(how: str, before: bytes, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    if how == "at the start":
        path.write_bytes(before)
    with writing(path) as file:
        if how == "after a rotation signal":
            path.write_bytes(before)
            file.reopen()
        assert await file.write(AuditRecord("call", "local", "then", "ok"))
        assert await file.write(AuditRecord("call", "local", "later", "ok"))
    assert path.read_bytes().startswith(before)
    rest = path.read_bytes()[len(before) :]
    assert [json.loads(line)["tool"] for line in rest.splitlines() if line] == ["then", "later"]
    assert rest.startswith(b"\n") is (before[-1:] not in (b"", b"\n"))


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The file is written once this is set."""
    gate, write = threading.Event(), os.write

    def wait_and_write(descriptor: int, data: bytes) -> int:
        gate.wait(20)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", wait_and_write)
    return gate


async def test_calls_that_wait_for_a_slow_disk_leave_threads_for_others(tmp_path: Path, gate: threading.Event) -> None:
    with writing(tmp_path / "audit.jsonl") as file:
        writes = [asyncio.create_task(file.write(RECORD)) for _ in range(60)]
        await asyncio.sleep(0)
        try:
            with anyio.fail_after(4):
                assert await anyio.to_thread.run_sync(lambda: "done") == "done"
            writes[-1].cancel()
        finally:
            gate.set()
        assert await asyncio.gather(*writes[:-1]) == [True] * 59
        assert await file.write(RECORD)  # a cancelled wait does not end the thread that writes
    assert file.written == 61


def test_records_over_the_queue_limit_are_lost_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    monkeypatch.setattr("mcp_mirror.observability.audit_file._QUEUE_SIZE", 50)
    with writing(tmp_path / "audit.jsonl") as file:
        for _ in range(100):
            file.enqueue(RECORD)
        gate.set()
    assert file.lost in (49, 50)  # one may be on its way to the disk
    assert file.lost + file.written == 100


@pytest.mark.parametrize(
    "place",
    [lambda tmp: tmp, lambda tmp: tmp / "none" / "audit.jsonl", lambda _: Path("a\0b"), lambda tmp: tmp / "pipe"],
    ids=["folder", "no folder", "no path", "pipe"],
)
def test_a_file_that_cannot_be_opened_is_an_error(place: Callable[[Path], Path], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (
        pytest.raises(MirrorError, match=r"cannot be opened: .+\. C(orrect|reate) .*'audit.path'"),
        writing(place(tmp_path)),
    ):
        pass

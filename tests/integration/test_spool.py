"""Messages that are buffered in files."""

import re
import resource
import shutil
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from resource_limits import limited

from mcp_mirror.payload.framing import HEAD, DiscardedFrame, LineReader
from mcp_mirror.payload.spool import Frame, Spool, SpooledFrame, frame_id
from mcp_mirror.settings.policies import WirePolicy

BOUND = 60.0
POLICY = WirePolicy(max_message_bytes=1000, spool_bytes=100)


def read(spool: Spool, *chunks: bytes) -> list[Frame]:
    reader: LineReader[Frame] = LineReader(spool.collector())
    return [line for chunk in chunks for line in reader.feed(chunk)]


def spooled(frame: Frame) -> SpooledFrame:
    assert isinstance(frame, SpooledFrame)
    return frame


SPOOLING = """
import sys
from pathlib import Path
from mcp_mirror.payload.spool import Spool
from mcp_mirror.settings.policies import WirePolicy

with Spool(WirePolicy(), Path(sys.argv[1])) as spool:
    (spool.directory / "message").write_text("words")
    print(spool.directory, flush=True)
    sys.stdin.read()
"""


@contextmanager
def spooling(folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process with a message in its spool, and the spool's directory."""
    command = [sys.executable, "-c", SPOOLING, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_the_next_start_removes_the_files_of_a_killed_process_only(tmp_path: Path) -> None:
    others = tmp_path / "mcp-mirror-spool-notes.txt", tmp_path / "mcp-mirror-notes"
    others[0].write_text("words")
    others[1].mkdir()
    with spooling(tmp_path) as (_, living), spooling(tmp_path) as (killed, abandoned):
        killed.kill()
        killed.wait(BOUND)
        assert (abandoned / "message").exists()
        with Spool(POLICY, tmp_path) as spool:
            own = spool.directory
            for thread in threading.enumerate():
                if thread.name == "mcp-mirror-spools":
                    thread.join(BOUND)
            assert not abandoned.exists()
            with Spool(POLICY, tmp_path) as second:
                assert second.directory.exists()
            assert (living / "message").read_text() == "words"
            assert own.exists()
    assert all(path.exists() for path in others)


def test_a_small_message_stays_in_memory(tmp_path: Path) -> None:
    with Spool(POLICY, tmp_path) as spool:
        assert read(spool, b"x" * 100 + b"\n") == [b"x" * 100]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("chunk", [1, 7, 60, 101, 500])
def test_a_large_message_is_written_to_a_file(tmp_path: Path, chunk: int) -> None:
    message = bytes(range(32, 127)) * 5
    stream = message + b"\nshort\n"
    with Spool(POLICY, tmp_path) as spool:
        first, second = read(spool, *(stream[at : at + chunk] for at in range(0, len(stream), chunk)))
        frame = spooled(first)
        assert (bytes(frame.view), len(frame), second) == (message, len(message), b"short")
        assert frame.head == message[: len(frame.head)]


@pytest.mark.parametrize("more", [1, 4, 100_000])
def test_a_last_id_is_found_wherever_the_file_began(tmp_path: Path, more: int) -> None:
    message = b'{"jsonrpc":"2.0","result":{"a":"%b"},"id":57}' % (b"x" * 200_000)
    before = len(message) - more
    with Spool(WirePolicy(spool_bytes=before), tmp_path) as spool:
        assert frame_id(read(spool, message[:before], message[before:] + b"\n")[0]) == 57


@pytest.mark.parametrize("size", [99, 101])
def test_a_growing_message_is_written_in_small_parts(tmp_path: Path, size: int) -> None:
    """On the disk, the message may grow only by a few times the bytes that arrived."""
    with Spool(WirePolicy(spool_bytes=100), tmp_path) as spool:
        collector = spool.collector()
        before = 0
        for at in range(size):
            collector.add(b"%d" % (at % 10))
            now = sum(file.stat().st_size for file in spool.directory.iterdir())
            assert now - before <= 4
            before = now
        message = collector.take()
        assert isinstance(message, SpooledFrame) is (size > 100)
        assert not isinstance(message, DiscardedFrame)
        data = bytes(message.view if isinstance(message, SpooledFrame) else message)
        assert data == b"".join(b"%d" % (at % 10) for at in range(size))
        assert len(list(spool.directory.iterdir())) == (size > 100)


@pytest.mark.slow
def test_a_message_of_tiny_pieces_takes_little_more_than_its_bytes(tmp_path: Path) -> None:
    count, piece = 300_000, memoryview(b"xy")
    with Spool(WirePolicy(), tmp_path) as spool:
        collector = spool.collector()
        tracemalloc.start()
        try:
            for _ in range(count):
                collector.add(piece)
            assert collector.take() == bytes(piece) * count
            assert tracemalloc.get_traced_memory()[1] < 8 * count * len(piece)
        finally:
            tracemalloc.stop()


def test_only_the_owner_can_read_a_spool_file(tmp_path: Path) -> None:
    with Spool(POLICY, tmp_path) as spool:
        frame = spooled(read(spool, b"x" * 200 + b"\n")[0])
        assert frame.path.stat().st_mode & 0o077 == 0
        assert frame.path.parent.stat().st_mode & 0o077 == 0


def test_a_map_stays_readable_after_its_file_is_removed(tmp_path: Path) -> None:
    with Spool(POLICY, tmp_path) as spool:
        frame = spooled(read(spool, b"x" * 200 + b"\n")[0])
        view = frame.view
        frame.discard()
        frame.discard()
        assert not frame.path.exists()
    assert bytes(view) == b"x" * 200


def test_a_message_is_discarded_without_a_free_file_handle(tmp_path: Path) -> None:
    with Spool(POLICY, tmp_path) as spool:
        frame = spooled(read(spool, b"x" * 200 + b"\n")[0])
        with limited(resource.RLIMIT_NOFILE, 0):
            frame.discard()
        assert not frame.path.exists()


@pytest.mark.parametrize("chunk", [10, 150, 5000])
def test_an_overlong_message_keeps_only_its_head(tmp_path: Path, chunk: int) -> None:
    stream = b"y" * 4000 + b"\nnext\n"
    with Spool(POLICY, tmp_path) as spool:
        over, following = read(spool, *(stream[at : at + chunk] for at in range(0, len(stream), chunk)))
        assert isinstance(over, DiscardedFrame)
        assert over.size == 4000
        assert set(over.head) == {ord("y")}
        assert following == b"next"
        assert list(spool.directory.iterdir()) == []


def cannot_write(folder: Path) -> Spool:
    """A spool whose folder cannot be created."""
    (folder / "file").touch()
    return Spool(POLICY, folder / "file" / "spool")


@pytest.mark.parametrize("chunk", [1, 60, 101, 5000])
def test_a_message_that_cannot_be_written_keeps_only_its_head(tmp_path: Path, chunk: int) -> None:
    message = b'{"id":7,"x":"%b"}' % (b"y" * 400)
    stream = message + b"\n" + message + b"\nnext\n"
    first, second, following = read(
        cannot_write(tmp_path), *(stream[at : at + chunk] for at in range(0, len(stream), chunk))
    )
    for frame in (first, second):
        assert isinstance(frame, DiscardedFrame)
        assert frame.size == len(message)
        assert frame_id(frame) == 7
        assert "temporary files cannot be written: Not a directory" in frame.explain()
    assert following == b"next"


def test_the_log_names_the_setting_of_the_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    for spool, setting in ((cannot_write(tmp_path), "store.path"), (Spool(POLICY), "TMPDIR")):
        caplog.clear()
        read(spool, b"x" * 400 + b"\n")
        assert re.findall("`(.*?)`", caplog.text) == ["limits.spool_bytes", setting]


@pytest.mark.parametrize("chunk", [1, 7, 60, 101, 700, 5000])
@pytest.mark.parametrize("size", [90, 400, 860, 5000])
@pytest.mark.parametrize("is_writable", [True, False])
def test_a_discarded_message_keeps_an_id_at_its_end(
    tmp_path: Path,
    chunk: int,
    size: int,
    is_writable: bool,  # noqa: FBT001
) -> None:
    """As servers and clients of the TypeScript SDK write it."""
    message = b'{"result":{"x":"%b"},"jsonrpc":"2.0","id":57}' % (b"y" * size)
    stream = message + b"\n" + message + b"\nnext\n"
    spool = Spool(POLICY, tmp_path) if is_writable else cannot_write(tmp_path)
    with spool if is_writable else nullcontext():
        first, second, following = read(spool, *(stream[at : at + chunk] for at in range(0, len(stream), chunk)))
        assert isinstance(first, SpooledFrame if is_writable and len(message) <= 1000 else DiscardedFrame)
        assert (frame_id(first), frame_id(second), following) == (57, 57, b"next")


@pytest.mark.parametrize("limit", [1 << 17, 1 << 20])
def test_the_end_of_a_messages_head_is_not_its_id(tmp_path: Path, limit: int) -> None:
    begin = b'{"result":{"structuredContent":{"rows":['
    rows = begin + b" " * (HEAD - len(begin) - len(b'{"id":3}')) + b'{"id":3}'
    message = rows + b',{"id":4}' * 20_000 + b']}},"jsonrpc":"2.0","id":57}'
    with Spool(WirePolicy(spool_bytes=1 << 16, max_message_bytes=limit), tmp_path) as spool:
        (frame,) = read(spool, message[:HEAD], message[HEAD:] + b"\n")
        assert isinstance(frame, DiscardedFrame if limit < len(message) else SpooledFrame)
        assert (frame.head, frame_id(frame)) == (rows, 57)


@pytest.mark.parametrize("chunk", [1, 60, 100])
def test_a_small_message_needs_no_file(tmp_path: Path, chunk: int) -> None:
    stream = b"x" * 100 + b"\n"
    assert read(cannot_write(tmp_path), *(stream[at : at + chunk] for at in range(0, 101, chunk))) == [b"x" * 100]


def test_a_file_that_ends_within_a_message_discards_it(tmp_path: Path) -> None:
    """The limit of a file's size stands for a disk that becomes full while the message arrives."""
    with Spool(WirePolicy(spool_bytes=100), tmp_path) as spool, limited(resource.RLIMIT_FSIZE, 1000):
        frame, following = read(spool, b"x" * 900, b"y" * 900, b"z" * 900 + b"\nnext\n")
        assert isinstance(frame, DiscardedFrame)
        assert (frame.head[:901], frame.size, following) == (b"x" * 900 + b"y", 2700, b"next")
        assert "File too large" in frame.explain()
        assert list(spool.directory.iterdir()) == []


def test_a_message_with_many_values_that_cannot_be_written_is_discarded(tmp_path: Path) -> None:
    first = b'{"id":7,"x":[%b0]}' % (b"0," * 100_000)
    last = b'{"x":[%b0],"id":7}' % (b"0," * 100_000)
    (tmp_path / "file").touch()
    frames = read(Spool(WirePolicy(), tmp_path / "file" / "spool"), first + b"\n", last + b"\n")
    for frame in frames:
        assert isinstance(frame, DiscardedFrame)
        assert (frame_id(frame), frame.size) == (7, len(first))


def test_a_removed_directory_is_created_again(tmp_path: Path) -> None:
    with Spool(POLICY, tmp_path) as spool:
        read(spool, b"x" * 200 + b"\n")
        shutil.rmtree(spool.directory)
        assert bytes(spooled(read(spool, b"x" * 200 + b"\n")[0]).view) == b"x" * 200


def test_threads_that_begin_together_share_one_directory(tmp_path: Path) -> None:
    begin = threading.Barrier(8)

    def create(spool: Spool) -> Path:
        begin.wait(BOUND)
        return spool.directory

    with ThreadPoolExecutor(8) as threads:
        for _ in range(20):
            with Spool(POLICY, tmp_path) as spool:
                assert len(set(threads.map(create, [spool] * 8))) == 1
    assert list(tmp_path.glob("mcp-mirror-spool-*")) == []


def test_only_some_of_many_large_messages_stay_in_memory(tmp_path: Path) -> None:
    piece = b"x" * (1 << 17)
    with Spool(WirePolicy(), tmp_path) as spool:
        collectors = [spool.collector() for _ in range(200)]
        for _ in range(7):
            for collector in collectors:
                collector.add(piece)
        frames = [collector.take() for collector in collectors]
        assert 60 << 20 < sum(len(frame) for frame in frames if isinstance(frame, bytes)) < 68 << 20
        assert {bytes(frame.view if isinstance(frame, SpooledFrame) else frame) for frame in frames} == {  # type: ignore[arg-type]
            piece * 7
        }
        collectors[0].add(piece)
        assert collectors[0].take() == piece  # these messages are in memory no more


def test_a_message_beside_many_others_is_in_a_file_or_in_memory(tmp_path: Path) -> None:
    many, piece = b"x" * (65 << 20), b"y" * (100 << 10)
    with Spool(WirePolicy(), tmp_path) as spool:
        collector = spool.collector()
        with spool.holding(many):
            collector.add(piece)
            with spooled(collector.take()) as frame:
                assert frame.view == piece
            with limited(resource.RLIMIT_FSIZE, 0):
                collector.add(piece)
            assert collector.take() == piece
            collector.add(piece[: 60 << 10])
            assert collector.take() == piece[: 60 << 10]  # small ones stay in memory
        collector.add(piece)
        assert collector.take() == piece


def test_a_message_beside_many_others_keeps_its_last_id(tmp_path: Path) -> None:
    with Spool(WirePolicy(max_message_bytes=200_000), tmp_path) as spool, spool.holding(b"x" * (65 << 20)):
        collector = spool.collector()
        for piece in (b'{"result":"' + b"y" * 100_000, b"y" * 100_000 + b'","i', b'd":7}'):
            collector.add(piece)
        frame = collector.take()
        assert isinstance(frame, DiscardedFrame)
        assert frame_id(frame) == 7


def test_an_unfinished_message_leaves_no_file(tmp_path: Path) -> None:
    with Spool(POLICY, tmp_path) as spool:
        collector = spool.collector()
        collector.add(b"x" * 500)
        collector.close()
        collector.close()
        assert list(spool.directory.iterdir()) == []


def test_closing_a_spool_removes_its_directory(tmp_path: Path) -> None:
    with Spool(POLICY, tmp_path) as spool:
        read(spool, b"x" * 200 + b"\n")
        assert list(tmp_path.iterdir()) == [spool.directory]
    assert list(tmp_path.iterdir()) == []

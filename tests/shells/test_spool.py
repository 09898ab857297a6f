"""Messages that grow in files."""

from pathlib import Path

import pytest

from mcp_mirror.payload.framing import LineReader, Overlong
from mcp_mirror.payload.spool import Frame, Spool, SpooledFrame
from mcp_mirror.settings.policies import WirePolicy

POLICY = WirePolicy(max_message_bytes=1000, spool_bytes=100)


def read(spool: Spool, *chunks: bytes) -> list[Frame]:
    reader: LineReader[Frame] = LineReader(spool.collector())
    return [line for chunk in chunks for line in reader.feed(chunk)]


def spooled(frame: Frame) -> SpooledFrame:
    assert isinstance(frame, SpooledFrame)
    return frame


def test_a_message_within_the_bound_stays_in_memory(tmp_path: Path) -> None:
    with Spool(POLICY, tmp_path) as spool:
        assert read(spool, b"x" * 100 + b"\n") == [b"x" * 100]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("chunk", [1, 7, 60, 101, 500])
def test_a_larger_message_goes_to_a_file_whole(tmp_path: Path, chunk: int) -> None:
    message = bytes(range(32, 127)) * 5
    stream = message + b"\nshort\n"
    with Spool(POLICY, tmp_path) as spool:
        first, second = read(spool, *(stream[at : at + chunk] for at in range(0, len(stream), chunk)))
        frame = spooled(first)
        assert (bytes(frame.view), len(frame), second) == (message, len(message), b"short")
        assert frame.head == message[: len(frame.head)]
        assert frame.tail == message[-len(frame.tail) :]


def test_a_file_is_for_its_owners_eyes_alone(tmp_path: Path) -> None:
    with Spool(POLICY, tmp_path) as spool:
        frame = spooled(read(spool, b"x" * 200 + b"\n")[0])
        assert frame.path.stat().st_mode & 0o077 == 0
        assert frame.path.parent.stat().st_mode & 0o077 == 0


def test_a_map_outlives_the_name_of_the_file(tmp_path: Path) -> None:
    with Spool(POLICY, tmp_path) as spool:
        frame = spooled(read(spool, b"x" * 200 + b"\n")[0])
        view = frame.view
        frame.discard()
        frame.discard()
        assert not frame.path.exists()
    assert bytes(view) == b"x" * 200


@pytest.mark.parametrize("chunk", [10, 150, 5000])
def test_past_the_bound_nothing_is_kept_but_the_head_and_the_next_message_is_whole(tmp_path: Path, chunk: int) -> None:
    stream = b"y" * 4000 + b"\nnext\n"
    with Spool(POLICY, tmp_path) as spool:
        over, following = read(spool, *(stream[at : at + chunk] for at in range(0, len(stream), chunk)))
        assert isinstance(over, Overlong)
        assert over.size == 4000
        assert set(over.head) == {ord("y")}
        assert following == b"next"
        assert list(spool.directory.iterdir()) == []


def test_an_unfinished_message_leaves_no_file(tmp_path: Path) -> None:
    with Spool(POLICY, tmp_path) as spool:
        collector = spool.collector()
        collector.add(b"x" * 500)
        collector.close()
        collector.close()
        assert list(spool.directory.iterdir()) == []


def test_the_directory_goes_with_the_spool(tmp_path: Path) -> None:
    with Spool(POLICY, tmp_path) as spool:
        read(spool, b"x" * 200 + b"\n")
        assert list(tmp_path.iterdir()) == [spool.directory]
    assert list(tmp_path.iterdir()) == []

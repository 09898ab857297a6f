"""Lines are read and written the same for every way in which a stream is cut."""

import json
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_collector import MemoryCollector

from mcp_mirror.payload.framing import DiscardedFrame, LineReader
from mcp_mirror.payload.json_rpc import line_of

STREAMS = st.lists(st.sampled_from([b"\n", b"a", b"{}", b'"x"', b"\r", b" ", b"abcdefghij" * 3]), max_size=30).map(
    b"".join
)


def read(chunks: Iterator[bytes], max_bytes: int) -> list[bytes | DiscardedFrame]:
    reader: LineReader[bytes | DiscardedFrame] = LineReader(MemoryCollector(max_bytes))
    return [line for chunk in chunks for line in reader.feed(chunk)]


@given(STREAMS, st.lists(st.integers(0, 100), max_size=10), st.sampled_from([0, 1, 5, 29, 30, 1000]))
def test_lines_are_the_same_for_any_chunks_of_a_stream(stream: bytes, cuts: list[int], bound: int) -> None:
    lines = read(iter([stream]), bound)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    assert read((stream[a:b] for a, b in pairwise(edges)), bound) == lines
    assert read((stream[at : at + 1] for at in range(len(stream))), bound) == lines


@given(STREAMS)
def test_empty_lines_are_skipped(stream: bytes) -> None:
    assert read(iter([stream + b"\n"]), 1000) == [line for line in stream.split(b"\n") if line]


@pytest.mark.parametrize(("size", "is_whole"), [(9, True), (10, True), (11, False), (1000, False)])
def test_an_overlong_line_keeps_its_head_and_size(
    size: int,
    is_whole: bool,  # noqa: FBT001
) -> None:
    line = b"0123456789" * 100
    expected = line[:size] if is_whole else DiscardedFrame(line[:10], size)
    assert read(iter([line[:size] + b"\nnext\n"]), 10) == [expected, b"next"]


def test_the_rest_of_an_overlong_line_is_not_kept() -> None:
    reader: LineReader[bytes | DiscardedFrame] = LineReader(MemoryCollector(1 << 20))
    for _ in range(64):
        assert reader.feed(b"x" * (1 << 16)) == []
    (line,) = reader.feed(b"\n")
    assert isinstance(line, DiscardedFrame)
    assert (len(line.head), line.size) == (1 << 16, 1 << 22)


@given(
    st.lists(st.recursive(st.text(max_size=8) | st.integers(), lambda inner: st.lists(inner, max_size=4)), max_size=5),
    st.sampled_from([None, 0, 2]),
    st.integers(1, 20),
    st.lists(st.integers(0, 60), max_size=6),
)
def test_a_written_message_is_one_line_with_the_same_value(
    value: list[object], indent: int | None, piece: int, cuts: list[int]
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False).encode()
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    segments = tuple(memoryview(text)[a:b] for a, b in pairwise(edges))
    line = b"".join(line_of(segments, piece))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == value


def test_a_carriage_return_between_tokens_does_not_end_a_line() -> None:
    assert b"".join(line_of((b'{"a":\r\n', b"1,\r", b'"b":"\\r\\n"}'))) == b'{"a":  1, "b":"\\r\\n"}\n'


def test_small_segments_are_joined_and_large_ones_are_split() -> None:
    assert [len(write) for write in line_of((b"x",) * 100, 10)] == [10] * 9 + [11]
    assert [len(write) for write in line_of((b"x" * 25,), 10)] == [10, 10, 6]
    assert list(line_of(())) == [b"\n"]

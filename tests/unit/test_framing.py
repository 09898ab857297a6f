"""Byte streams are split into messages."""

import tracemalloc
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_collector import MemoryCollector

from mcp_mirror.payload.framing import HEAD, DiscardedFrame, EventReader, LineReader, ServerSentEvent
from mcp_mirror.types import Buffer

Message = bytes | DiscardedFrame


def read_lines(chunks: Iterable[bytes], max_bytes: int = 1000) -> list[Message]:
    reader: LineReader[Message] = LineReader(MemoryCollector(max_bytes))
    return [line for chunk in chunks for line in reader.feed(chunk)]


def read_events(chunks: Iterable[bytes], max_bytes: int = 1000) -> list[ServerSentEvent[Message]]:
    reader: EventReader[Message] = EventReader(MemoryCollector(max_bytes))
    return [event for chunk in chunks for event in reader.feed(chunk)]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:stop] for start, stop in pairwise(edges)]


STREAMS = st.lists(st.sampled_from([b"\n", b"a", b"{}", b'"x"', b"\r", b" ", b"abcdefghij" * 3]), max_size=30).map(
    b"".join
)
BYTES = st.binary(max_size=200).map(lambda data: data.replace(b"\x00", b"\n"))


@given(STREAMS | BYTES, st.lists(st.integers(0, 300)), st.sampled_from([0, 1, 5, 7, 29, 30, 1000]))
def test_lines_are_the_same_for_any_chunks(data: bytes, places: list[int], max_bytes: int) -> None:
    lines = read_lines([data], max_bytes)
    assert read_lines(cut(data, places), max_bytes) == lines
    assert read_lines([data[at : at + 1] for at in range(len(data))], max_bytes) == lines


@given(STREAMS)
def test_empty_lines_are_skipped(stream: bytes) -> None:
    assert read_lines([stream + b"\n"]) == [line for line in stream.split(b"\n") if line]


@pytest.mark.parametrize(("size", "is_whole"), [(9, True), (10, True), (11, False), (14, False), (1000, False)])
def test_an_overlong_line_keeps_its_head_and_the_next_is_whole(*, size: int, is_whole: bool) -> None:
    line = b"0123456789" * 100
    expected = line[:size] if is_whole else DiscardedFrame(line[:10], size)
    assert read_lines([line[:size] + b"\nnext\n"], max_bytes=10) == [expected, b"next"]


def test_the_head_of_an_overlong_line_is_bounded() -> None:
    reader: LineReader[Message] = LineReader(MemoryCollector(1 << 20))
    for _ in range(64):
        assert reader.feed(b"x" * (1 << 16)) == []
    assert reader.feed(b"\n") == [DiscardedFrame(b"x" * HEAD, 1 << 22)]


EVENTS = [
    (b"data: {}\n\n", [((), b"{}")]),
    (b"event: message\nid: 7\ndata: {}\n\n", [((b"event: message", b"id: 7"), b"{}")]),
    (b"event: message\r\ndata: {}\r\n\r\n", [((b"event: message",), b"{}")]),
    (b"event: message\rdata: {}\r\r", [((b"event: message",), b"{}")]),
    (b"data:{}\n\n", [((), b"{}")]),
    (b"retry: 10\n\nretry:999999\n\n", [((b"retry: 10",), None), ((b"retry:999999",), None)]),
    (b"retry: -1\nretry: 1e3\nretry: 9999999\nretry\n\n", []),
    (b"data:  {}\n\n", [((), b" {}")]),
    (b"data: {\ndata: }\n\n", [((), b"{\n}")]),
    (b"data\n\n", [((), b"")]),
    (b"data:\ndata: x\n\n", [((), b"\nx")]),
    (b": ping\n\n", []),
    (b": ping\nevent: a\nunknown: 1\nevent: b\ndata: {}\n\n", [((b"event: b",), b"{}")]),
    (b"retry: 10\n\n", [((b"retry: 10",), None)]),
    (b"\n\n\n", []),
    (b"\xef\xbb\xbfdata: 1\n\n", [((), b"1")]),
    (b"\n\xef\xbb\xbfdata: 1\n\ndata: 2\n\n", [((), b"2")]),
    (b"database: no\n\n", []),
    (b"data: a\n\ndata: b\n\n", [((), b"a"), ((), b"b")]),
    (b"data: unfinished\n", []),
    (b"id: 1\ndata: x\nretry: 5\n\n", [((b"id: 1", b"retry: 5"), b"x")]),
]


@pytest.mark.parametrize(("stream", "events"), EVENTS)
def test_events_are_split_by_the_standard(stream: bytes, events: list[tuple[tuple[bytes, ...], bytes | None]]) -> None:
    expected = [ServerSentEvent(fields, data) for fields, data in events]
    assert read_events([stream]) == expected
    assert read_events([stream[at : at + 1] for at in range(len(stream))]) == expected


PARTS = st.sampled_from([b"data: ", b"data", b":", b"\n", b"\r", b"\r\n", b"{}", b"id: 1", b" ", b"x", b"event: m"])


@given(st.lists(PARTS, max_size=30).map(b"".join), st.lists(st.integers(0, 300)))
def test_events_are_the_same_for_any_chunks(data: bytes, places: list[int]) -> None:
    events = read_events([data], max_bytes=9)
    assert read_events(cut(data, places), max_bytes=9) == events
    assert read_events([data[at : at + 1] for at in range(len(data))], max_bytes=9) == events


def test_overlong_data_is_marked_and_the_next_event_is_whole() -> None:
    first, second = read_events([b"id: 1\ndata: 123456789012\n\ndata: ok\n\n"], max_bytes=10)
    assert first == ServerSentEvent((b"id: 1",), DiscardedFrame(b"1234567890", 12))
    assert second.data == b"ok"


def test_comments_without_end_are_not_kept() -> None:
    reader: EventReader[Message] = EventReader(MemoryCollector(10))
    flood = b"".join(b": comment\nevent: e\nx: y\n" for _ in range(1000))
    tracemalloc.start()
    try:
        for _ in range(20):
            assert reader.feed(flood) == []
        assert tracemalloc.get_traced_memory()[0] < 1 << 18
    finally:
        tracemalloc.stop()
    assert reader.feed(b"data: 1\n\n") == [ServerSentEvent((b"event: e",), b"1")]


class Counting(MemoryCollector):
    added = 0

    def add(self, piece: Buffer) -> None:
        self.added += 1
        super().add(piece)


def test_empty_lines_are_not_kept() -> None:
    collector = Counting(100)
    reader: LineReader[Message] = LineReader(collector)
    assert reader.feed(b"\n" * 1000) == []
    assert collector.added == 0
    assert reader.feed(b"\na\n\nb") == [b"a"]


def test_a_discarded_message_names_the_limit_or_the_failure() -> None:
    over = "A message of 3,000 bytes is over `limits.max_message_bytes`: send less, or raise it."
    assert DiscardedFrame(b"{", 3000).explain() == over
    assert (
        "cannot be written: No space left on device." in DiscardedFrame(b"{", 3000, "No space left on device").explain()
    )

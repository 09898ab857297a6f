"""Bodies as they come from an HTTP upstream: server-sent events cut and rewritten, encodings undone."""

import gzip
import zlib
from itertools import pairwise

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.errors import WireError
from mcp_mirror.upstreams.http import EventReader, _Inflating, rewrite_event

BREAKS = ("\n", "\r\n", "\r")


def read(chunks: list[bytes], bound: int = 10_000) -> list[bytes]:
    reader = EventReader(bound)
    events = [event for chunk in chunks for event in reader.feed(chunk)]
    return [*events, *((rest,) if (rest := reader.rest()) else ())]


@given(
    st.sampled_from(BREAKS),
    st.lists(
        st.lists(st.sampled_from(["data: {}", "data:x", "id: 1", ": c", "data", "event: e"]), min_size=1), max_size=4
    ),
    st.lists(st.integers(0, 200)),
)
def test_events_are_the_same_however_they_are_cut(line_break: str, events: list[list[str]], cuts: list[int]) -> None:
    text = "".join(line_break.join((*event, "", "")) for event in events).encode()
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    chunks = [text[start:stop] for start, stop in pairwise(edges)]
    assert b"".join(read(chunks)) == text
    datas = [[line for line in event if line.startswith("data")] for event in events]
    seen: list[bytes] = []

    def see(data: object) -> object:
        seen.append(bytes(data))  # type: ignore[call-overload]
        return data

    for event in read(chunks):
        assert rewrite_event(event, see) == event  # type: ignore[arg-type]
    wanted = ["\n".join(line.partition(":")[2].removeprefix(" ") for line in data) for data in datas]
    assert [data for data in seen if data.strip()] == [data.encode() for data in wanted if data.strip()]


@pytest.mark.parametrize("line_break", BREAKS)
def test_a_rewritten_event_keeps_its_id_and_other_fields(line_break: str) -> None:
    event = line_break.join(
        ("event: message", "id: 7", "database: no data", 'data: {"a":', "data: 1}", "", "")
    ).encode()
    changed = rewrite_event(event, lambda data: b'{"was":%d}' % len(data))
    assert changed == b'event: message\nid: 7\ndatabase: no data\ndata: {"was":8}\n\n'


def test_an_event_over_the_bound_is_refused() -> None:
    with pytest.raises(WireError, match="over `max_message_bytes`"):
        read([b"data: " + b"x" * 200] * 100, bound=5000)


def inflate(data: bytes, size: int) -> bytes:
    decoder = _Inflating()
    return b"".join(piece for at in range(0, len(data), size) for piece in decoder.feed(data[at : at + size]))


BODY = bytes(range(256)) * 5000


def raw_deflate(body: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(body) + compressor.flush()


@pytest.mark.parametrize("size", [1, 2, 1000, 1 << 20])
@pytest.mark.parametrize(
    "encoded",
    [
        gzip.compress(BODY),
        gzip.compress(BODY[:70_000]) + gzip.compress(BODY[70_000:]),
        zlib.compress(BODY),
        raw_deflate(BODY),
    ],
    ids=["gzip", "two members", "deflate", "raw deflate"],
)
def test_every_encoding_is_undone_however_it_is_cut(encoded: bytes, size: int) -> None:
    assert inflate(encoded, size) == BODY


def test_pieces_of_a_small_body_that_swells_are_bounded() -> None:
    assert max(map(len, _Inflating().feed(gzip.compress(bytes(50_000_000))))) <= 1 << 18


@pytest.mark.parametrize("data", [b"\x1f\x8b not gzip at all", gzip.compress(BODY)[:100] + b"rot" * 50])
def test_a_body_that_is_not_what_it_says_is_a_failed_read(data: bytes) -> None:
    with pytest.raises(httpx2.ReadError, match="content-encoding"):
        inflate(data, 10)

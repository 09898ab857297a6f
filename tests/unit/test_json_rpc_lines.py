"""Messages are written as lines."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.payload.json_rpc import line_of


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

"""Messages of very many small parts: counted without parsing, written in few pieces, refused where needed."""

import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.core.resolve import find_pointers
from mcp_mirror.core.results.processing import read_ifc
from mcp_mirror.errors import ToolError, WireError
from mcp_mirror.payload.json_bounds import (
    MAX_VALUES,
    check_envelope,
    check_request,
    estimate_memory,
    has_more_values,
)
from mcp_mirror.payload.json_rpc import (
    OTHER_MEMBERS,
    bound_error,
    chunks_of,
    object_of,
    open_items,
    open_message,
    read_error,
)

JSON = st.recursive(
    st.text(alphabet='a,"\\é', max_size=6) | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(alphabet='a,"\\', max_size=3), inner, max_size=5)
    ),
    max_leaves=30,
)
MANY = b",".join([b"1"] * (MAX_VALUES + 1))
MEMBERS = b",".join(b'"%d":1' % index for index in range(MAX_VALUES + 1))
FEW = b",".join(b'"%d":1' % index for index in range(700))
FEW_ITEMS = b"1" + b",1" * 400


def count_values(value: Any) -> int:
    if isinstance(value, list | dict):
        inner = value.values() if isinstance(value, dict) else value
        return max(len(value), 1) + sum(count_values(one) for one in inner)
    return 0


@given(JSON, st.integers(1, 20), st.integers(1, 9))
def test_values_are_counted_for_any_step_size(value: Any, most: int, cut: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("mcp_mirror.payload.json_bounds._COUNT_STEP", cut)
        assert has_more_values(json.dumps(value).encode(), most) is (count_values(value) > most)


@given(st.lists(st.binary(max_size=9), max_size=30), st.integers(1, 12))
def test_chunks_contain_the_same_bytes(segments: list[bytes], size: int) -> None:
    chunks = list(chunks_of(segments, size))
    assert b"".join(chunks) == b"".join(segments)
    assert all(len(chunk) < 2 * size for chunk in chunks)
    assert all(len(chunk) >= size for chunk in chunks[:-1])


def test_other_members_are_written_unchanged() -> None:
    assert b"".join(object_of({"a": b"1", OTHER_MEMBERS: b'"b":2,"c":3'})) == b'{"a":1,"b":2,"c":3}'
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(b'"\\udc00rest"', type=str)


@pytest.mark.parametrize(
    ("message", "wrong"),
    [
        (b'{"id":1,"method":"tools/call","params":{"name":"y","arguments":{%b}}}' % MEMBERS, None),
        (b'{"id":1,"method":"tools/call","params":{"inputResponses":{%b}}}' % MEMBERS, None),
        (b'{"id":1,"method":"tools/call","params":{"requestState":"%b"}}' % (b"x" * (1 << 20)), None),
        (
            b'{"id":1,"method":"tools/call","params":{"requestState":"%b"}}' % (b"x" * (1 << 21)),
            "`requestState` has 2,097,154",
        ),
        (b'{"id":1,"method":"tools/call","params":{"inputResponses":"%b"}}' % (b"x" * (1 << 22)), None),
        (
            b'{"id":1,"method":"resources/read","params":{"inputResponses":"%b"}}' % (b"x" * (1 << 23)),
            "`inputResponses` has 8,388,610 bytes; the limit is 8,388,608. Send less.",
        ),
        (b'{"id":1,"result":{"content":"%b"}}' % (b"x" * (1 << 23)), "`result` has 8,388,622 bytes; the limit is"),
        (
            b'{"id":1,"method":"tools/call","params":{%b,"a":"%b"}}' % (MEMBERS, b"x" * (1 << 18)),
            "outside of `arguments`",
        ),
        (b'{"id":1,"method":"tools/call","params":{"_meta":{"a":[%b]}}}' % (MANY * 8), "outside of `arguments`"),
        (b'{"id":1,"result":{"content":"%b"}}' % (b"," * (1 << 19)), None),
        (b'{"id":1,"result":{"content":[%b]}}' % (MANY * 8), "`result` has more than 20,000 members"),
        (b'{"id":1,"params":[%b]}' % (MANY * 8), None),
        (b'{"id":1,"params":[%b' % (MANY * 8), None),
        (b'{"id":1,"params":{"_meta":{%b}}}' % FEW, None),
        (
            b'{"id":1,"method":"tools/call","params":{"_meta":{%b},"a":[%b],"arguments":{%b}}}'
            % (FEW, FEW_ITEMS, MEMBERS),
            None,
        ),
        (b'{"id":1,"params":{"_meta":{%b},"a":[%b]}}' % (FEW, FEW_ITEMS * 2), "`params` has more than 1,200 members"),
        (b'{"id":1,"method":"tools/call","params":{"name":"%b","arguments":{%b}}}' % (b",[" * 9000, MEMBERS), None),
        (b'{"id":1,"params":{"\\ud800":[%b]}}' % MANY, None),
        (b'{"id":1,"params":{"a":1}}', None),
        (b'{"id":1,"method":"tools\\/call","params":{"arguments":{"a":"%b"}}}' % (b"x" * (1 << 22)), None),
        (b'{"id":1,"method":"prompts/get","params":{"arguments":{"a":"%b"}}}' % (b"x" * (1 << 20)), None),
        (b'{"id":1,"method":"prompts/get","params":{"arguments":{"a":"%b"}}}' % (b"x" * (1 << 21)), "`arguments` has"),
        (
            b'{"id":1,"method":"ping","params":{"arguments":"%b"}}' % (b"x" * (1 << 18)),
            "the limit is 262,144. Send less",
        ),
        (b'{"method":"x","params":{"requestState":[%b]}}' % MANY, "more than 1,200 members and items. Send"),
        (b'{"id":1,"method":1,"params":{"a":"%b"}}' % (b"x" * (1 << 18)), None),
        (b'{"id":"%b","method":"x","params":{}}' % (b"x" * (1 << 18)), "Send a shorter `id`"),
        (b'{"id":1,"method":"%b","params":[]}' % (b"x" * (1 << 18)), "outside of `params` and `result`"),
        (b'{"id":1,"a":"%b"}' % (b"x" * (1 << 18)), "no members that JSON-RPC does not have"),
        (b'{"id":1,"error":{"code":1,"message":"%b"}}' % (b"x" * (1 << 18)), "outside of `params` and `result`"),
        (b'{"id":1,"result":{"content":{"type":"image","data":"%b"}}}' % (b"x" * (1 << 19)), None),
    ],
)
def test_large_parts_beside_arguments_and_results_are_rejected(message: bytes, wrong: str | None) -> None:
    if wrong is None:
        check_request(message)
    else:
        with pytest.raises(WireError, match=wrong):
            check_request(message)


def test_an_envelope_with_many_values_is_rejected() -> None:
    check_envelope(b'{"text":"%b"}' % (b"," * MAX_VALUES), 1 << 20)
    with pytest.raises(WireError, match="more than 20,000 members and items"):
        check_envelope(b"[%b]" % MANY, 1 << 20)


@pytest.mark.parametrize(
    "value",
    [
        ["a text of some words"] * 2000,
        [{"type": "string", "title": f"Field {number}"} for number in range(2000)],
        [[number, number + 0.5] for number in range(2000)],
    ],
)
def test_the_memory_of_parsed_values_is_estimated(value: Any) -> None:
    text = json.dumps(value)
    tracemalloc.start()
    try:
        parsed = json.loads(text)
        taken = len(text) + tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert parsed == value
    assert taken / 2 < estimate_memory(text.encode()) < 3 * taken


def test_values_that_no_comma_separates_are_counted() -> None:
    assert has_more_values(b"[" * 600 + b"]" * 600, 599)
    assert not has_more_values(b'{"a":[{"b":[]}]}', 4)


def test_a_message_that_is_too_deep_far_behind_its_beginning_is_named() -> None:
    deep = b"[" * 2_000 + b"]" * 2_000
    with pytest.raises(WireError, match="at byte 713 it has more than 700 levels"):
        open_message(b'{"params":{"a":' + deep + b"}}")
    with pytest.raises(WireError, match=r"after byte [0-9,]+ it has more than 700 levels"):
        open_message(b'{"params":{"a":[' + b"[]," * 50_000 + deep + b"]}}")


def test_labels_that_are_too_large_are_the_worst() -> None:
    assert read_ifc(b'{"ifc":"%b"}' % (b"x" * (1 << 16))) == "unreadable"
    assert read_ifc(b"[1]") is None
    assert read_ifc(b'{%b,"ifc":{"integrity":"trusted"}}' % MEMBERS) == {"integrity": "trusted"}


def test_arguments_with_very_many_path_like_texts_are_rejected() -> None:
    path = b'"say-9c1d4f0e-6a55-4b8e-9d0a-0f3b2f6f6a11"'
    with pytest.raises(ToolError, match="look like memory paths; 20,000 are accepted"):
        find_pointers(b"[" + b",".join([path] * 20_001) + b"]", frozenset({"say"}))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (b'{"code":-32000,"message":"no","data":[1]}', (-32000, "no")),
        (b'{"code":1,"message":"no","data":%b1%b}' % (b"[" * 600, b"]" * 600), (1, "no")),
        (b'{"code":"ENOENT","message":"no such file"}', (-32603, "no such file")),
        (b'{"code":true,"message":"no"}', (-32603, "no")),
        (b'{"message":"no"}', (-32603, "no")),
        (b'"no"', (-32603, "no")),
        (b'{"code":-5}', (-5, "It gave no message.")),
        (b'{"code":-5,"message":""}', (-5, "It gave no message.")),
        (b'{"code":-5,"message":{"a":1}}', (-5, "It gave no message.")),
    ],
)
def test_an_error_is_read_as_far_as_it_conforms(error: bytes, expected: tuple[int, str]) -> None:
    assert read_error(open_message(b'{"jsonrpc":"2.0","id":7,"error":%b}' % error).error) == expected  # type: ignore[arg-type]  # it is set


@pytest.mark.parametrize(
    "error", [b'{"code":"x"}', b'{"message":[1]}', b'{"code":"x","message":""}', b"{}", b"[]", b"5", b"null", b'""']
)
def test_an_error_without_a_code_and_a_message_is_invalid(error: bytes) -> None:
    with pytest.raises(WireError, match="is not a JSON-RPC error"):
        read_error(error)


def test_a_huge_error_message_keeps_its_beginning_and_end() -> None:
    assert bound_error("x" * (1 << 20)) == "x" * (1 << 20)
    bounded = bound_error(f"begins{'x' * (1 << 20)}ends")
    assert bounded.startswith("begins")
    assert bounded.endswith("ends")
    assert len(bounded) == (1 << 20) + 5


@pytest.mark.parametrize(("text", "count"), [(b"[1,2]", 2), (b"[]", 0), (b"null", 0), (b"{}", 0)])
def test_the_items_of_a_list(text: bytes, count: int) -> None:
    assert len(open_items(text)) == count


@pytest.mark.parametrize("text", [b'{"a":1}', b'"x"', b"5", b"nulls", b"["])
def test_a_list_that_is_not_an_array_is_rejected(text: bytes) -> None:
    with pytest.raises(WireError, match="not an array"):
        open_items(text)

"""Every frame is a message that can be carried, or one `WireError`."""

import json
import re
from typing import Any

import pytest
from computing import least_seconds
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_mirror.errors import WireError
from mcp_mirror.payload.json_rpc import (
    Message,
    begins_response,
    find_begun_response,
    find_response,
    open_array,
    open_message,
    open_object,
    open_server_message,
    recover_id,
    recover_method,
)

PIECES = [
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b",",
        b" ",
        b"\n",
        b'"',
        b"\\",
        b"\\ud800",
        b"\\u0061",
        b"\xff",
        b"\xc3\xa9",
        b"\x00",
    ),
    *(b'"id"', b'"method"', b'"params"', b'"result"', b'"error"', b'"jsonrpc"', b'"2.0"', b'"tools/call"', b'"_meta"'),
    *(b"1", b"-1", b"1.5", b"1e400", b"NaN", b"true", b"null", b"9" * 40, b"9" * 5000, b"[" * 1200, b"\xef\xbb\xbf"),
]
BROKEN = st.lists(st.sampled_from(PIECES), max_size=25).map(b"".join) | st.binary(max_size=60)


def read_either_way(frame: bytes) -> Message | None:
    try:
        return open_message(frame)
    except WireError as error:
        assert_one_line(str(error))
        return None


def assert_one_line(message: str) -> None:
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < 300


@given(BROKEN)
@example(b'{"id":' + b"9" * 5000 + b"}")
@example(b'{"params":{"a":' + b"[" * 100_000)
@example(b'{"params":{"a":"\\ud800"}}')
def test_any_bytes_are_a_message_or_a_wire_error(frame: bytes) -> None:
    read_either_way(frame)
    open_object(frame)
    open_array(frame)
    assert recover_id(frame) is None or isinstance(recover_id(frame), int | str)


@given(st.dictionaries(st.sampled_from(["id", "params", "result", "error", "x"]), BROKEN, max_size=4))
def test_any_bytes_inside_a_message_are_a_message_or_a_wire_error(members: dict[str, bytes]) -> None:
    frame = b"{" + b",".join(json.dumps(key).encode() + b":" + value for key, value in members.items()) + b"}"
    if read_either_way(frame):
        json.loads(frame.replace(b"9" * 5000, b"9"), parse_constant=pytest.fail)


MALFORMED = {
    b"": "not valid JSON",
    b"[]": "not a JSON-RPC object",
    b'[{"jsonrpc":"2.0","id":1}]': "not a JSON-RPC object",
    b"null": "not a JSON-RPC object",
    b'{"id":1.5}': "$.id",
    b'{"id":true}': "$.id",
    b'{"id":[1]}': "$.id",
    b'{"params":[1]}': "$.params",
    b'{"result":1}': "$.result",
    b'{"method":1}': "$.method",
    b'{"params":{"a":NaN}}': "NaN and Infinity are not JSON numbers (byte 15)",
    b'{"params":{"a":[1,-Infinity]}}': "NaN and Infinity are not JSON numbers (byte 18)",
    b'{"params":{"a":"\\ud800"}}': "half of a surrogate pair (byte 16)",
    b'{"params":{"a":"\\ud800x"}}': "surrogate",
    b'{"params":{"a":"\\udc00"}}': "surrogate",
    b'{"params":{"\\ud800":{"b":1}}}': "surrogate",
    b"\xef\xbb\xbf{}": "byte order mark",
    b'{"params":{"a":"\xff"}}': "not UTF-8 at byte 16.",
    b'{"params":{"\xff":1}}': "UTF-8",
    b'{"result":{"content":[{"text":"\xe2\x82"}]}}': "not UTF-8 at byte 31.",
    b'{"params":{"a":"' + b"x" * (1 << 20) + b'\xc3"}}': "not UTF-8 at byte 1,048,592.",
    b'{"params":{"a":"\xed\xa0\x80"}}': "UTF-8",
    b'{"x":"\xff"}': "UTF-8",
    b'{"error":'
    + b"[" * 100_000
    + b"]" * 100_000
    + b"}": "too deep: at byte 708 it has more than 700 levels (`limits.max_depth`)",
    b'{"params":{"a":"x\ny"}}': "invalid character",
    b'{"params":{"a":01}}': "invalid number",
    b'{"id":1} {"id":2}': "trailing",
}


@pytest.mark.parametrize("frame", MALFORMED, ids=lambda frame: repr(frame[:40]))
@pytest.mark.parametrize("form", [bytes, memoryview])
def test_the_error_of_a_malformed_frame_names_its_cause(frame: bytes, form: type[bytes]) -> None:
    with pytest.raises(WireError, match=re.escape(MALFORMED[frame])):
        open_message(form(frame))


def test_the_cause_is_searched_beside_the_position_of_the_parser() -> None:
    frame = b'{"params":{"a":"%b","b":%b}}'
    for size in (1, 17 << 20):
        with pytest.raises(WireError, match="NaN and Infinity"):
            open_message(frame % (b"x" * size, b"NaN"))
    with pytest.raises(WireError, match=r"invalid character \(byte \d+\)\.$"):
        open_message(frame % (b"[1,NaN]" + b"x" * 100, b"+" + b"x" * 100 + b",NaN"))


@pytest.mark.parametrize(
    "frame",
    [
        b"\0" * (16 << 20),
        b'{"params":{"a":N' + b"\\u" * (4 << 20),
        b'{"id":"' + b"x" * (16 << 20) + b'",',
        b'{"id":"' + b"\\u0041" * (2 << 20) + b'",',
        b"{" + b'"jsonrpc" : "2.0" ,' * (1 << 20),
    ],
    ids=["nulls", "escapes", "long id", "escaped id", "versions"],
)
def test_a_large_malformed_frame_is_refused_at_once(frame: bytes) -> None:
    def refuse() -> None:
        with pytest.raises(WireError, match="not valid JSON"):
            open_message(frame)
        assert recover_id(frame) is None
        assert recover_method(frame) is None

    assert least_seconds(refuse) < 0.1


@pytest.mark.parametrize("before", [b'\\"' * 100_000, b'"\\' * 100_000, b'"'], ids=["escapes", "texts", "a quote"])
def test_a_malformed_frame_that_is_too_deep_is_refused_at_once(before: bytes) -> None:
    frame = b'{"a":' + before + b"[" * 701 + b"]" * 701 + b"}"

    def refuse() -> None:
        with pytest.raises(WireError):
            open_message(frame, max_depth=100)

    assert least_seconds(refuse) < 0.5


@pytest.mark.parametrize(
    ("frame", "identity"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"x"}', 7),
        (b'{"id":"\xc3\xa9\\u0061"}', "\u00e9a"),
        (b'{"id":null}', None),
        (b'{"id":1,"id":2}', 2),
        (b'{"id":' + b"9" * 30 + b"}", 10**30 - 1),
        (b' {"id" : -3 , "params" : null } ', -3),
        (b'{"id":1,"result":{"a":"' + "\u00e9".encode() * (1 << 20) + b'"}}', 1),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_message_is_split(frame: bytes, identity: int | str | None) -> None:
    assert open_message(frame).id == identity
    assert open_message(memoryview(frame)).id == identity


def test_a_parsed_frame_can_be_parsed_from_a_deeper_stack() -> None:
    def deepest(low: int, high: int) -> int:
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if read_either_way(nested(middle)) else (low, middle - 1)
        return low

    def nested(depth: int) -> bytes:
        return b'{"result":{"structuredContent":' + b"[" * depth + b"]" * depth + b"}}"

    def opened_below(frame: Any, depth: int) -> Any:
        return opened_below(frame, depth - 1) if depth else open_array(frame)

    depth = deepest(100, 100_000)
    assert opened_below(b"[" * depth + b"]" * depth, 100) is not None


@pytest.mark.parametrize(
    ("frame", "identity"),
    [
        (b'{"jsonrpc":"2.0","id":5,"method":', 5),
        (b'{"method":"tools/call","jsonrpc":"2.0","id":"a\\"b","params":{"x":NaN}}', 'a"b'),
        (b'{"jsonrpc": "2.0", "params": {"x": NaN}, "id": 12 }\n', 12),
        (b'{"params":{"x":' + b" " * 70_000 + b'NaN},"id":"q"}', "q"),
        (b'{"id":1.5,"x":NaN}', None),
        (b'{"id":1e5,"x":NaN}', None),
        (b'{"id":1234567890123456789012,"x":NaN}', None),
        (b'{"id":-123456789012345678,"x":NaN}', -123456789012345678),
        (b'{"id":007,"x":NaN}', None),
        (b'{"id":null,"x":NaN}', None),
        (b'{"id":"\\ud800","x":NaN}', None),
        (b'{"id":"\xff","x":NaN}', None),
        (b'{"id":"unended', None),
        (b'{"params":{"id":3},"x":NaN}', None),
        (b"", None),
        (b"[[[", None),
    ],
)
def test_the_id_of_a_broken_message_is_recovered(frame: bytes, identity: int | str | None) -> None:
    assert recover_id(frame) == identity


@pytest.mark.parametrize(
    ("frame", "method"),
    [
        (b'{"jsonrpc":"2.0","id":5,"method":"a/b","params":{"x":NaN', "a/b"),
        (b' {"method" : "x", "jsonrpc":"2.0"', "x"),
        (b'{"id":"q\\"","jsonrpc": "2.0","method":"notifications/x"}', "notifications/x"),
        (b'{"id":5,"method":"a', None),
        (b'{"id":5,"method":7', None),
        (b'{"id":5,"method":"a\\n"', None),
        (b'{"id":5,"method":"\xff"', None),
        (b'{"params":{"method":"x"},"y":NaN', None),
        (b'{"id":{"method":"x"}', None),
        (b'{"id":5,"result":{"method":"x"},"y":NaN', None),
        (b"", None),
    ],
)
def test_the_method_of_a_broken_message_is_recovered(frame: bytes, method: str | None) -> None:
    assert recover_method(frame) == method
    assert recover_method(memoryview(frame)) == method


def test_a_broken_response_is_known_by_its_first_members() -> None:
    for frame in (
        b'{"jsonrpc":"2.0","id":5,"result":{"x":NaN',
        b' { "result" : [',
        b'{"id":"q\\"","jsonrpc": "2.0","error":{}',
    ):
        assert begins_response(frame)
        assert begins_response(memoryview(frame))
    for frame in (b'{"id":5,"method":"x","result":{}', b'{"params":{"result":{}}', b'[{"result":{}}', b""):
        assert not begins_response(frame)


@given(st.integers(-(10**18) + 1, 10**18 - 1) | st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_a_recovered_id_is_the_id_of_the_whole_message(identity: int | str) -> None:
    for ascii_only in (True, False):
        frame = json.dumps({"jsonrpc": "2.0", "id": identity, "method": "x"}, ensure_ascii=ascii_only).encode()
        assert recover_id(frame[:-1] + b',"params":{NaN') == open_message(frame).id == identity


@pytest.mark.parametrize(
    ("text", "members"),
    [
        (b'{"a": 1.0 ,"b":[ 1 ]}', {"a": b"1.0", "b": b"[ 1 ]"}),
        (b'{"a":1,"a":2}', {"a": b"2"}),
        (b"{}", {}),
        (b"[]", None),
        (b"5", None),
        (b"{", None),
        (b'{"\xff":1}', None),
    ],
)
def test_an_object_is_split_into_the_bytes_of_its_members(text: bytes, members: dict[str, bytes] | None) -> None:
    opened = open_object(text)
    assert (opened and {key: bytes(raw) for key, raw in opened.items()}) == members


@pytest.mark.parametrize(
    ("text", "items"), [(b"[ 1e400, {} ]", [b"1e400", b"{}"]), (b"[]", []), (b"{}", None), (b"[", None)]
)
def test_an_array_is_split_into_the_bytes_of_its_items(text: bytes, items: list[bytes] | None) -> None:
    opened = open_array(text)
    assert (opened and [bytes(raw) for raw in opened]) == items


@pytest.mark.parametrize(
    ("text", "repaired"),
    [
        (b"\\ud83d\\ude00", b"\\ud83d\\ude00"),
        (b"\\ud83d", b"\\ufffd"),
        (b"\\uDE00\\ud83d\\ud83d\\ude00", b"\\ufffd\\ufffd\\ud83d\\ude00"),
        (b"\\\\ud83d \\ud83d", b"\\\\ud83d \\ufffd"),
        (b"\\ud83d\\\\ude00", b"\\ufffd\\\\ude00"),
    ],
)
@pytest.mark.parametrize("form", [bytes, memoryview])
def test_half_of_a_pair_in_a_servers_message_is_replaced(text: bytes, repaired: bytes, form: type[bytes]) -> None:
    message, frame = open_server_message(form(b'{"id":1,"result":{"a":"' + text + b'"}}'))
    assert bytes(frame) == b'{"id":1,"result":{"a":"' + repaired + b'"}}'
    assert isinstance(message.result, dict)
    assert bytes(message.result["a"]) == b'"' + repaired + b'"'


def test_large_messages_are_repaired_only_where_they_delay_no_other_call() -> None:
    for text in (b"\\n" * (3 << 20) + b"\\ud83d", b"\\uD83D" * 20_000):
        frame = b'{"result":{"a":"' + text + b'"}}'
        with pytest.raises(WireError, match="surrogate"):
            open_server_message(frame)
        _, repaired = open_server_message(frame, is_on_loop=False)
        assert bytes(repaired).endswith(b'\\ufffd"}}')
        assert len(repaired) == len(frame)


def test_another_fault_of_a_servers_message_is_an_error() -> None:
    for broken in (b'{"result":{"a":"\\ud83d', b'{"result":{"a":01}}', b'{"result":{"a":"\\ud83"}}'):
        with pytest.raises(WireError):
            open_server_message(broken)


RESPONSE = b'{"result":{"a":{}},"jsonrpc":"2.0","id":7}'


@pytest.mark.parametrize(
    ("before", "response"),
    [
        (b"Starting...", RESPONSE),
        (b"Loaded {config} {}", RESPONSE),
        (b'{"level":"info"}', b'{"jsonrpc":"2.0","id":"x","error":{"code":1,"message":""}}'),
        (b"\xef\xbb\xbf", RESPONSE),
        (b"\xff", RESPONSE + b"\r"),
    ],
)
def test_a_response_is_found_after_other_text_in_its_line(before: bytes, response: bytes) -> None:
    assert find_response(before + response) == len(before)


@pytest.mark.parametrize(
    "line",
    [
        b"Starting...",
        b'failed: {"id":1,"error":{}}',  # not a message of JSON-RPC
        b"sent " + RESPONSE + b" to the client",
        b"sent " + RESPONSE[:-1],
        b'got {"jsonrpc":"2.0","id":7,"method":"ping"}',
        b'got {"jsonrpc":"2.0","id":7,"method":"ping","result":{}}',
        b'got {"jsonrpc":"2.0","result":{}}',
        b'got {"jsonrpc":"2.0","id":null,"error":{}}',
        b"{" * 100 + RESPONSE,
    ],
)
def test_lines_that_only_quote_messages_are_not_responses(line: bytes) -> None:
    assert find_response(line) is None


@pytest.mark.parametrize(
    ("before", "begun"),
    [
        (b"Starting...", b'{"jsonrpc":"2.0","id":7,"result":{"content"'),
        (b"Loaded {config} {} ", b'{ "id": "a-1", "jsonrpc": "2.0", "result": {"a"'),
        (b"\xef\xbb\xbf", b'{"jsonrpc":"2.0","result":{"a":1'),
        (b"\xff", b'{"result":{"a":{"jsonrpc":"2.0","id":7,"result":{"b":1'),
        (b"x", b'{"jsonrpc":"2.0","id":7,"error":{"code":1,"data":'),
    ],
)
def test_the_beginning_of_a_response_is_found_after_other_text(before: bytes, begun: bytes) -> None:
    assert find_begun_response(before + begun) == len(before)


@pytest.mark.parametrize(
    "head",
    [
        b'  {"jsonrpc":"2.0","id":7,"result":{"a":1',  # nothing before it
        b'{"method":"a","params":{"a":{"jsonrpc":"2.0","id":7,"result":{',
        b'got {"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"a":',
        b'got {"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"a":{"result":{"b":1',
        b'the field {"result":{"a":1',
        b"Starting...",
    ],
)
def test_the_beginning_of_another_message_is_not_that_of_a_response(head: bytes) -> None:
    assert find_begun_response(head) is None

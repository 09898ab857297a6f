"""What is lifted out of a message and spliced into another is there byte for byte."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.wire import (
    MARK,
    array_of,
    find_mark,
    join,
    lift_arguments,
    lift_result,
    object_of,
    open_message,
    open_object,
    splice,
)

TOKEN = "0123456789abcdef"
VALUES = st.recursive(
    st.sampled_from(
        [b"1.0", b"1e400", b"-0", b"9" * 5000, b"1.10", b'"\\u0061\\/"', b'"\xc3\xa9"', b"null", b"true", b'""', b" 1"]
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: b"[ " + b",".join(items) + b"]"),
        st.lists(st.tuples(st.sampled_from([b"z", b"a", b"", b"\\u0061", b"a/b"]), inner), max_size=3).map(
            lambda pairs: b"{" + b" ,\t".join(b'"' + key + b'": ' + value for key, value in pairs) + b"}"
        ),
    ),
    max_leaves=8,
)
NAMES = st.sampled_from(["content", "structuredContent", "isError", "resultType", "x-unknown", "\u00e9"])
IDS = st.sampled_from([1, 0, "a", "\u00e9", 2**70])


def call_frame(identity: Any, params: bytes) -> bytes:
    return (
        b'{"jsonrpc":"2.0","id":' + json.dumps(identity).encode() + b',"method":"tools/call","params":' + params + b"}"
    )


@given(VALUES, IDS, st.dictionaries(st.sampled_from(["progressToken", "x/y"]), VALUES))
def test_arguments_lifted_and_spliced_are_the_same_bytes(value: bytes, identity: Any, meta: dict[str, bytes]) -> None:
    arguments = b'{"q": ' + value + b"}"
    own = join(object_of(meta))
    params = b'{"name":"t", "unknown":1e400,"arguments":' + arguments + b',"_meta":' + own + b"}"
    lifted = lift_arguments(open_message(call_frame(identity, params)), TOKEN)
    assert lifted is not None
    assert bytes(lifted.members["arguments"]) == arguments
    assert open_message(lifted.stub).id == identity
    assert json.loads(lifted.stub.replace(b"9" * 5000, b"9"))["params"]["arguments"] == {}
    marked = find_mark(lifted.stub)
    assert marked is not None
    assert (marked.token, marked.id, marked.is_request) == (TOKEN, identity, True)
    whole = open_message(join(splice(marked, {"arguments": (lifted.members["arguments"],)})))
    assert isinstance(whole.params, dict)
    spliced = {key: bytes(raw) for key, raw in whole.params.items()}
    assert spliced["arguments"] == arguments
    assert (spliced["name"], spliced["unknown"], whole.id, whole.method) == (b'"t"', b"1e400", identity, "tools/call")
    given_meta, kept = open_object(own), open_object(spliced.get("_meta", b"{}"))
    assert given_meta == kept


@given(st.dictionaries(NAMES, VALUES), IDS)
def test_a_result_lifted_and_spliced_is_the_same_bytes(members: dict[str, bytes], identity: Any) -> None:
    frame = join(object_of({"jsonrpc": b'"2.0"', "id": json.dumps(identity).encode(), "result": object_of(members)}))
    lifted = lift_result(open_message(frame), "tools/call")
    assert lifted is not None
    assert {key: bytes(raw) for key, raw in lifted.members.items()} == {k: v.strip() for k, v in members.items()}
    stub = open_message(lifted.stub)
    assert isinstance(stub.result, dict)
    assert stub.id == identity
    small = {key: bytes(raw) for key, raw in stub.result.items()}
    assert small.pop("content") == b"[]"
    kept = {key: value.strip() for key, value in members.items() if key not in ("content", "structuredContent")}
    assert small == kept
    marked_stub = join(object_of({"id": b"3", "result": object_of({**small, "_meta": b'{"%s":"t"}' % MARK.encode()})}))
    marked = find_mark(marked_stub)
    assert marked is not None
    whole = open_message(join(splice(marked, {key: (raw,) for key, raw in lifted.members.items()})))
    assert isinstance(whole.result, dict)
    assert {key: bytes(raw) for key, raw in whole.result.items()} == {k: v.strip() for k, v in members.items()}


def test_a_large_member_of_a_result_leaves_its_stub_whatever_its_name() -> None:
    large = b'"' + b"x" * (1 << 16) + b'"'
    lifted = lift_result(open_message(b'{"id":1,"result":{"big":' + large + b',"small":1}}'), "tools/call")
    assert lifted is not None
    assert b"xxx" not in lifted.stub
    assert b'"small":1' in lifted.stub
    assert bytes(lifted.members["big"]) == large


@pytest.mark.parametrize(
    ("frame", "method"),
    [
        (b'{"id":1,"result":{"content":[]}}', "prompts/get"),
        (b'{"id":1,"error":{"code":1}}', "tools/call"),
        (b'{"id":1,"method":"x"}', "tools/call"),
        (b'{"result":{"content":[]}}', "tools/call"),
        (b'{"id":null,"result":{"content":[]}}', "tools/call"),
        (b'{"id":1,"result":{"resultType":"input_required","requests":[]}}', "tools/call"),
    ],
)
def test_nothing_is_lifted_out_of_what_is_no_result_of_a_call(frame: bytes, method: str) -> None:
    assert lift_result(open_message(frame), method) is None


def test_a_listing_keeps_for_the_sdk_the_tools_that_it_can_read() -> None:
    tools = b'[{"name":"a","inputSchema":{"x-mcp-header":1},"title":5},{"name":7,"inputSchema":{}},{"name":"b"},5]'
    frame = b'{"id":1,"result":{"nextCursor":"n","tools":' + tools + b"}}"
    lifted = lift_result(open_message(frame), "tools/list")
    assert lifted is not None
    assert bytes(lifted.members["tools"]) == tools
    assert json.loads(lifted.stub)["result"] == {
        "nextCursor": "n",
        "tools": [{"name": "a", "inputSchema": {"x-mcp-header": 1}}],
    }


@pytest.mark.parametrize("tools", [b"null", b"5", b"{}"])
def test_a_listing_that_is_none_is_empty_for_the_sdk(tools: bytes) -> None:
    lifted = lift_result(open_message(b'{"id":1,"result":{"tools":' + tools + b"}}"), "tools/list")
    assert lifted is not None
    assert json.loads(lifted.stub)["result"] == {"tools": []}


@pytest.mark.parametrize(
    "frame",
    [
        b'{"id":1,"method":"tools/list","params":{}}',
        b'{"id":1,"method":"tools/call"}',
        b'{"id":1,"method":"tools/call","params":null}',
        b'{"method":"tools/call","params":{"name":"a"}}',
        b'{"id":null,"method":"tools/call","params":{"name":"a"}}',
        b'{"id":1,"method":"tools/call","params":{"name":"a","arguments":null}}',
        b'{"id":1,"method":"tools/call","params":{"name":"a","arguments":[]}}',
        b'{"id":1,"method":"tools/call","params":{"name":"a","_meta":5}}',
    ],
)
def test_what_is_no_call_with_arguments_is_left_to_the_sdk(frame: bytes) -> None:
    assert lift_arguments(open_message(frame), TOKEN) is None


@pytest.mark.parametrize(
    "meta", [b"", b',"_meta":null', b',"_meta":{}', b',"_meta":{"' + MARK.encode() + b'":"forged"}']
)
def test_a_call_is_marked_with_the_given_token_alone(meta: bytes) -> None:
    lifted = lift_arguments(open_message(call_frame(1, b'{"name":"a"' + meta + b"}")), TOKEN)
    assert lifted is not None
    assert json.loads(lifted.stub)["params"] == {"name": "a", "arguments": {}, "_meta": {MARK: TOKEN}}
    assert bytes(lifted.members["arguments"]) == b"{}"


@pytest.mark.parametrize("token", [b"5", b"null", b"[]", b"true", b'{"a":1}', b"1.5"])
def test_a_mark_that_is_no_text_is_no_mark(token: bytes) -> None:
    frame = b'{"id":1,"params":{"_meta":{"' + MARK.encode() + b'":' + token + b"}}}"
    assert find_mark(frame) is None


@pytest.mark.parametrize(
    "frame",
    [
        b'{"id":1,"result":{"content":[{"text":"mcp-mirror/payload"}]}}',
        b'{"id":1,"result":{"_meta":{"x":{"mcp-mirror/payload":"t"}}}}',
        b'{"id":1,"result":{"_meta":null,"x":"mcp-mirror/payload"}}',
        b'{"id":1,"mcp-mirror/payload":"t"}',
        b'["mcp-mirror/payload"]',
        b'{"mcp-mirror/payload":',
        b'{"id":1}',
    ],
)
def test_a_mark_elsewhere_than_in_meta_is_no_mark(frame: bytes) -> None:
    assert find_mark(frame) is None
    assert find_mark(memoryview(frame)) is None


@pytest.mark.parametrize("identity", [b"", b'"id":1.5,', b'"id":null,'])
def test_a_marked_message_without_a_usable_id_has_none(identity: bytes) -> None:
    marked = find_mark(b"{" + identity + b'"result":{"_meta":{"mcp-mirror/payload":"t"}}}')
    assert marked is not None
    assert (marked.id, marked.is_request, dict(marked.body)) == (None, False, {})


def test_segments_are_joined_to_json() -> None:
    assert join(object_of({})) == b"{}"
    assert join(array_of([])) == b"[]"
    assert join(object_of({"a": b"1", 'q"': array_of([b"2", (b"3", b"4")])})) == b'{"a":1,"q\\"":[2,34]}'

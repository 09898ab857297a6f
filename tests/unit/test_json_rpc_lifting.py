"""Payloads are lifted out of a message and spliced into another byte for byte."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.payload.json_rpc import (
    PAYLOAD_MARK,
    array_of,
    find_mark,
    lift_params,
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


PASSED_ON = ["tools/call", "prompts/get", "resources/read", "completion/complete"]


def request_frame(identity: Any, params: bytes, method: str = "tools/call") -> bytes:
    head = {"jsonrpc": b'"2.0"', "id": json.dumps(identity).encode(), "method": json.dumps(method).encode()}
    return b"".join(object_of({**head, "params": params}))


@given(VALUES, IDS, st.sampled_from(PASSED_ON), st.dictionaries(st.sampled_from(["progressToken", "x/y"]), VALUES))
def test_lifted_params_are_the_same_bytes(value: bytes, identity: Any, method: str, meta: dict[str, bytes]) -> None:
    own = b"".join(object_of(meta))
    given_params = {"name": b'"t"', "unknown": b"1e400", "arguments": b'{"q": ' + value + b"}", "_meta": own}
    lifted = lift_params(open_message(request_frame(identity, b"".join(object_of(given_params)), method)), TOKEN)
    assert lifted is not None
    assert {key: bytes(raw) for key, raw in lifted.members.items()} == given_params
    stub = open_message(lifted.stub)
    assert isinstance(stub.params, dict)
    shown = given_params | ({"arguments": b"{}"} if method == "tools/call" else {})
    assert {key: bytes(raw) for key, raw in stub.params.items() if key != "_meta"} == {
        key: raw for key, raw in shown.items() if key != "_meta"
    }
    assert open_object(stub.params["_meta"]) == {**(open_object(own) or {}), PAYLOAD_MARK: json.dumps(TOKEN).encode()}
    assert (stub.id, stub.method) == (identity, method)


@pytest.mark.parametrize(
    "frame",
    [
        b'{"id":1,"method":"tools/list","params":{}}',
        b'{"id":1,"method":"initialize","params":{}}',
        b'{"id":1,"method":"tools/call"}',
        b'{"id":1,"method":"tools/call","params":null}',
        b'{"method":"tools/call","params":{"name":"a"}}',
        b'{"id":null,"method":"resources/read","params":{"uri":"a"}}',
        b'{"id":1,"method":"tools/call","params":{"name":"a","arguments":null}}',
        b'{"id":1,"method":"prompts/get","params":{"name":"a","arguments":[]}}',
        b'{"id":1,"method":"tools/call","params":{"name":"a","_meta":5}}',
        b'{"id":1,"result":{"name":"a"}}',
    ],
)
def test_other_messages_are_left_to_the_sdk(frame: bytes) -> None:
    assert lift_params(open_message(frame), TOKEN) is None


@pytest.mark.parametrize(
    "meta", [b"", b',"_meta":null', b',"_meta":{}', b',"_meta":{"' + PAYLOAD_MARK.encode() + b'":"forged"}']
)
def test_a_request_is_marked_only_with_the_given_token(meta: bytes) -> None:
    lifted = lift_params(open_message(request_frame(1, b'{"name":"a"' + meta + b"}")), TOKEN)
    assert lifted is not None
    assert json.loads(lifted.stub)["params"] == {"name": "a", "arguments": {}, "_meta": {PAYLOAD_MARK: TOKEN}}
    assert "arguments" not in lifted.members


@pytest.mark.parametrize("method", PASSED_ON[1:])
def test_the_stub_of_other_requests_keeps_their_params(method: str) -> None:
    params = b'{"name":"a","arguments":{"q":1},"ref":{}}'
    lifted = lift_params(open_message(request_frame("x", params, method)), TOKEN)
    assert lifted is not None
    assert json.loads(lifted.stub)["params"] == json.loads(params) | {"_meta": {PAYLOAD_MARK: TOKEN}}


@pytest.mark.parametrize("token", [b"5", b"null", b"[]", b"true", b'{"a":1}', b"1.5"])
def test_a_mark_must_be_a_string(token: bytes) -> None:
    frame = b'{"id":1,"result":{"_meta":{"' + PAYLOAD_MARK.encode() + b'":' + token + b"}}}"
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
def test_a_mark_outside_meta_is_ignored(frame: bytes) -> None:
    assert find_mark(frame) is None
    assert find_mark(memoryview(frame)) is None


@pytest.mark.parametrize("identity", [b"", b'"id":1.5,', b'"id":null,'])
@pytest.mark.parametrize(("meta", "rest"), [(b"", {}), (b',"x":[1]', {"_meta": b'{"x":[1]}'})])
def test_a_result_without_its_mark_keeps_its_other_members(
    identity: bytes, meta: bytes, rest: dict[str, bytes]
) -> None:
    marked = find_mark(b"{" + identity + b'"result":{"_meta":{"mcp-mirror/payload":"t"%b}}}' % meta)
    assert marked is not None
    assert (marked.token, dict(marked.result)) == ("t", rest)


@given(st.dictionaries(NAMES, VALUES))
def test_a_spliced_result_has_the_members_of_its_payload(members: dict[str, bytes]) -> None:
    marked = find_mark(b"".join(object_of({"id": b"3", "result": b'{"_meta":{"%s":"t"}}' % PAYLOAD_MARK.encode()})))
    assert marked is not None
    spliced = open_message(b"".join(splice(marked, {key: (raw,) for key, raw in members.items()})))
    assert isinstance(spliced.result, dict)
    assert {key: bytes(raw) for key, raw in spliced.result.items()} == {k: v.strip() for k, v in members.items()}


def test_segments_are_joined_to_json() -> None:
    assert b"".join(object_of({})) == b"{}"
    assert b"".join(array_of([])) == b"[]"
    assert b"".join(object_of({"a": b"1", 'q"': array_of([b"2", (b"3", b"4")])})) == b'{"a":1,"q\\"":[2,34]}'

"""Which messages the direct path opens."""

import json
from typing import Any

import pytest

from mcp_mirror.server.direct_path import open_direct_request
from mcp_mirror.server.envelopes import NO_ENVELOPE

VERSION = "io.modelcontextprotocol/protocolVersion"
CALL = {"name": "echo", "arguments": {"a": 1.0}}


def message(params: Any = None, **members: Any) -> bytes:
    """Return a tool call with other members."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": CALL if params is None else params, **members}
    return json.dumps(call).encode()


def test_a_tool_call_is_opened_with_its_arguments_as_they_came() -> None:
    frame = b'{"id":"x","method":"tools/call","params":{"name":"echo","arguments":{ "a": 1.0 }}}'
    call = open_direct_request(frame, 1000)
    assert call is not None
    assert (call.id, call.name, bytes(call.params["arguments"])) == ("x", "echo", b'{ "a": 1.0 }')
    assert (call.meta, call.envelope) == ({}, NO_ENVELOPE)


@pytest.mark.parametrize("meta", [{}, {"progressToken": 2**70}, {"progressToken": "é"}, {"other": [None, {"a": 1}]}])
def test_a_call_with_other_meta_is_opened(meta: Any) -> None:
    frame = json.dumps(json.loads(message({**CALL, "_meta": meta})), ensure_ascii=False).encode()
    call = open_direct_request(frame, 1000)
    assert call is not None
    assert (call.meta, call.envelope) == (meta, NO_ENVELOPE)


def test_the_envelope_of_a_call_has_its_reserved_members_as_they_came() -> None:
    frame = message({**CALL, "_meta": {"other": 1, VERSION: "v"}}).replace(b'"v"', b'[ "v" ]')
    call = open_direct_request(frame, 1000)
    assert call is not None
    assert call.envelope == frozenset({(VERSION, b'[ "v" ]')})


@pytest.mark.parametrize("members", [{}, {"params": {}}, {"params": {"_meta": {"progressToken": 1}}}])
def test_a_request_for_the_list_of_tools_is_opened(members: Any) -> None:
    opened = open_direct_request(
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", **members}).encode(), 1000
    )
    assert opened is not None
    assert (opened.id, opened.method, opened.name) == (1, "tools/list", "")
    assert opened.meta == members.get("params", {}).get("_meta", {})


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":null}', id="list with null parameters"),
        pytest.param(
            b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"a"}}', id="list with a cursor"
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"arguments":{}}}', id="list with arguments"
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":null}}', id="list with null meta"
        ),
        pytest.param(b'{"id":1,"method":"tools/list"}', id="list without a version"),
        pytest.param(b'{"jsonrpc":"1.0","id":1,"method":"tools/list"}', id="list of another version"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"tools/list","error":{"code":1}}', id="list with an error"),
        pytest.param(b'{"id":1,"method":"tools/call"}', id="call without parameters"),
        pytest.param(b'{"id":1,"method":"ping","params":{"a":"tools/list"}}', id="list elsewhere"),
        pytest.param(message(method="tools/list"), id="other method"),
        pytest.param(message(note="tools/call", method="tools/list"), id="method elsewhere"),
        pytest.param(message(id=None), id="null id"),
        pytest.param(message(id=1.5), id="float id"),
        pytest.param(message(params=[1]), id="list of parameters"),
        pytest.param(message({"arguments": {}}), id="no name"),
        pytest.param(message({**CALL, "name": 5}), id="name that is a number"),
        pytest.param(message({**CALL, "arguments": None}), id="null arguments"),
        pytest.param(message({**CALL, "arguments": [1]}), id="list of arguments"),
        pytest.param(message({**CALL, "requestState": "s"}), id="request state"),
        pytest.param(message({**CALL, "inputResponses": {}}), id="input responses"),
        pytest.param(message({**CALL, "task": {"ttl": 1}}), id="task"),
        pytest.param(message({**CALL, "_meta": None}), id="null meta"),
        pytest.param(message({**CALL, "_meta": {"progressToken": None}}), id="null progress token"),
        pytest.param(message({**CALL, "_meta": {"progressToken": True}}), id="boolean progress token"),
        pytest.param(message({**CALL, "_meta": {"progressToken": 1.5}}), id="float progress token"),
        pytest.param(message({**CALL, "_meta": {"progress_token": []}}), id="another progress token"),
        pytest.param(message({**CALL, "_meta": {"a": "\ud83d"}}), id="half a surrogate pair"),
        pytest.param(message({**CALL, "arguments": {"a": "b" * (1 << 15)}}), id="large message"),
        pytest.param(message({**CALL, "arguments": {"a": [[]] * 400}}), id="many brackets"),
        pytest.param(message()[:-1], id="incomplete JSON"),
        pytest.param(b"[" + message() + b"]", id="batch"),
        pytest.param(memoryview(message()), id="mapped message"),
    ],
)
def test_other_messages_are_left_to_the_sdk(frame: bytes) -> None:
    assert open_direct_request(frame, 1000) is None


def test_a_call_that_is_nested_too_deep_is_left_to_the_sdk() -> None:
    assert open_direct_request(message({**CALL, "arguments": {"a": [[[[[]]]]]}}), 5) is None

"""Payloads pass the SDK by, to upstreams and from clients, and none is left behind."""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from mcp_mirror.errors import ToolError, WireError
from mcp_mirror.observability.logging import configure_logging
from mcp_mirror.payload.framing import Overlong
from mcp_mirror.payload.json_rpc import MARK, join
from mcp_mirror.payload.spool import SpooledFrame
from mcp_mirror.server.pending_payloads import PendingPayloads
from mcp_mirror.upstreams.transports.payloads import OutboundMessage, PayloadBypass, ServerMessage

CALL = b'{"jsonrpc":"2.0","id":%b,"method":"tools/call","params":{"name":"x","arguments":{"a": 1e400}}}'
CAPABILITIES = {"sampling": {"tools": {}}, "vendor": {"x": 1}}


def request(token: str, identity: object, method: str = "tools/call", **meta: Any) -> bytes:
    params = {"name": "x", "arguments": {}, "_meta": {MARK: token, **meta}}
    return json.dumps({"jsonrpc": "2.0", "id": identity, "method": method, "params": params}).encode()


def sent(outbound: OutboundMessage) -> dict[str, Any]:
    """Return a sent message, parsed."""
    message: dict[str, Any] = json.loads(join(outbound.segments))
    return message


def result_of(bypass: PayloadBypass, token: str) -> dict[str, bytes]:
    response = bypass.take(token)
    assert isinstance(response, dict)
    return {key: bytes(raw) for key, raw in response.items()}


@pytest.mark.parametrize("echoed", [b"7", b'"7"'])
def test_a_result_is_lifted_if_the_upstream_echoes_the_id_as_text(echoed: bytes) -> None:
    bypass = PayloadBypass()
    token = bypass.open("tools/call", {"arguments": (b'{"a":', b"1e400}")})
    outbound = bypass.outbound(request(token, 7))
    assert b'"arguments":{"a":1e400}' in join(outbound.segments)
    assert outbound.pending is bypass.pending(token)
    stub = bypass.inbound(b'{"jsonrpc":"2.0","id":%b,"result":{"content":[1e400],"vendor":1}}' % echoed)
    assert b"1e400" not in bytes(stub or b"")
    assert result_of(bypass, token) == {"content": b"[1e400]", "vendor": b"1"}
    assert bypass.take(token) is None
    bypass.close(token)
    assert len(bypass) == 0
    assert not bypass.awaits(7)


@pytest.mark.parametrize("method", ["resources/read", "prompts/get", "completion/complete", "prompts/list"])
def test_results_of_all_relayed_methods_pass_the_sdk_by(method: str) -> None:
    bypass = PayloadBypass()
    token = bypass.open(method, {"uri": (b'"a:b"',)})
    assert sent(bypass.outbound(request(token, 1, method)))["params"]["uri"] == "a:b"
    stub = bypass.inbound(b'{"jsonrpc":"2.0","id":1,"result":{"vendor":{"x": 1.0}}}')
    assert b"vendor" not in bytes(stub or b"")
    assert result_of(bypass, token) == {"vendor": b'{"x": 1.0}'}


def test_the_sdk_reads_errors() -> None:
    bypass = PayloadBypass()
    token = bypass.open("tools/call")
    bypass.outbound(request(token, 1))
    refused = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}'
    assert bypass.inbound(refused) == refused
    assert bypass.take(token) is None


def test_a_second_response_to_a_request_is_dropped(tmp_path: Path) -> None:
    bypass = PayloadBypass()
    token = bypass.open("tools/call")
    bypass.outbound(request(token, 1))
    bypass.inbound(b'{"jsonrpc":"2.0","id":1,"result":{"content":["first"]}}')
    again = b'{"jsonrpc":"2.0","id":1,"result":{"content":["second"]}}'
    path = tmp_path / "frame"
    path.write_bytes(again)
    assert bypass.inbound(again) is None
    assert bypass.inbound(SpooledFrame(path, len(again), again, again)) is None
    assert not path.exists()
    assert result_of(bypass, token) == {"content": b'["first"]'}


def test_the_transport_drops_each_request_that_has_ended() -> None:
    bypass = PayloadBypass()
    over: list[int | str] = []
    bypass.attach(drop_request=over.append)
    first, second = bypass.open("tools/call"), bypass.open("tools/call")
    for token, identity in ((first, 1), (second, 2), (first, 3)):
        bypass.outbound(request(token, identity))
    bypass.close(first)
    assert over == [1, 3]


def test_a_request_that_is_sent_twice_is_awaited_until_it_is_closed() -> None:
    bypass = PayloadBypass()
    token = bypass.open("tools/call")
    bypass.outbound(request(token, 1))
    bypass.outbound(request(token, 2))
    assert bypass.pending(token).ids == [1, 2]
    assert bypass.awaits(1)
    assert bypass.awaits("2")
    bypass.close(token)
    assert not bypass.awaits(1)
    assert not bypass.awaits(2)


def test_messages_of_the_sdk_are_sent_unchanged() -> None:
    bypass = PayloadBypass()
    for frame in (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', request("unknown", 2), b'{"id":3,"result":{}}'):
        assert bypass.outbound(frame) == OutboundMessage((frame,), None)


def test_a_late_response_is_dropped(tmp_path: Path) -> None:
    bypass = PayloadBypass()
    token = bypass.open("tools/call")
    bypass.outbound(request(token, 3))
    bypass.close(token)
    late = b'{"jsonrpc":"2.0","id":3,"result":{"content":["%b"]}}' % (b"x" * 1000)
    assert json.loads(bytes(bypass.inbound(late) or b"")) == {"jsonrpc": "2.0", "id": 3, "result": {}}
    path = tmp_path / "frame"
    path.write_bytes(late)
    assert bypass.inbound(SpooledFrame(path, len(late), late, late)) is None
    assert not path.exists()


@pytest.mark.parametrize(
    ("method", "member"), [("tools/call", "content"), ("resources/read", "contents"), ("prompts/get", "messages")]
)
def test_a_large_result_passes_unread_and_its_file_stays_until_the_end(
    tmp_path: Path, method: str, member: str
) -> None:
    bypass = PayloadBypass()
    token = bypass.open(method)
    bypass.outbound(request(token, 3, method))
    path = tmp_path / "frame"
    path.write_bytes(b"never read")
    frame = SpooledFrame(path, 10, b'{"jsonrpc":"2.0","id":3,"result":{', b"}}")
    assert json.loads(bytes(bypass.inbound(frame) or b""))["result"][member] == []
    assert path.exists()
    bypass.close(token)
    assert not path.exists()


def spooled(folder: Path, frame: bytes) -> SpooledFrame:
    path = folder / "frame"
    path.write_bytes(frame)
    return SpooledFrame(path, len(frame), frame[:100], frame[-100:])


def test_a_large_result_of_other_methods_is_read_from_its_file(tmp_path: Path) -> None:
    bypass = PayloadBypass()
    token = bypass.open("completion/complete")
    bypass.outbound(request(token, 3, "completion/complete"))
    frame = spooled(tmp_path, b'{"jsonrpc":"2.0","id":3,"result":{"completion":["%b"]}}' % (b"x" * 100_000))
    assert len(bypass.inbound(frame) or b"") < 500
    assert len(result_of(bypass, token)["completion"]) == 100_004
    assert not frame.path.exists()


@pytest.mark.parametrize("method", ["tools/list", "resources/list", "resources/templates/list", "prompts/list"])
def test_a_large_list_passes_unread(method: str, tmp_path: Path) -> None:
    bypass = PayloadBypass()
    token = bypass.open(method)
    bypass.outbound(request(token, 3, method))
    frame = spooled(tmp_path, b'{"jsonrpc":"2.0","id":3,"result":{"tools":["%b"]}}' % (b"x" * 100_000))
    assert len(bypass.inbound(frame) or b"") < 500
    assert bypass.take(token) is frame


def test_the_sdk_reads_a_list_of_tools_with_arguments_in_headers(tmp_path: Path) -> None:
    tool = {
        "name": "a",
        "inputSchema": {"type": "object", "properties": {"b": {"type": "string", "x-mcp-header": "B"}}},
    }
    bypass = PayloadBypass()
    token = bypass.open("tools/list")
    bypass.outbound(request(token, 3, "tools/list"))
    whole = {"jsonrpc": "2.0", "id": 3, "result": {"tools": [tool, {"name": "x" * 100_000}]}}
    stub = json.loads(bytes(bypass.inbound(spooled(tmp_path, json.dumps(whole).encode())) or b""))
    assert stub["result"]["tools"] == [tool]
    assert b"x" * 100 in result_of(bypass, token)["tools"]


def test_the_sdk_reads_large_messages_that_answer_no_call(tmp_path: Path) -> None:
    frame = b'{"jsonrpc":"2.0","id":3,"result":{"instructions":"%b"}}' % (b"x" * 100_000)
    assert PayloadBypass().inbound(frame) == frame
    path = tmp_path / "frame"
    path.write_bytes(frame)
    assert PayloadBypass().inbound(SpooledFrame(path, len(frame), frame[:100], frame[-100:])) == frame
    assert not path.exists()


def test_the_error_of_an_overlong_message_names_its_limit() -> None:
    with pytest.raises(WireError, match=r"3,000 bytes is over `limits\.max_message_bytes`"):
        PayloadBypass().inbound(Overlong(b"{", 3000))


SERVER_MESSAGES: list[tuple[bytes, ServerMessage]] = [
    (b'"method":"notifications/x"', ServerMessage("notifications/x", {}, None, None)),
    (b'"method":"notifications/x","params":null', ServerMessage("notifications/x", {}, None, None)),
    (
        b'"method":"notifications/message","params":{"level":"info","data":{"a":[1.0,null]},"vendor":true}',
        ServerMessage(
            "notifications/message", {"level": "info", "data": {"a": [1.0, None]}, "vendor": True}, None, None
        ),
    ),
    (b'"id":1,"method":"ping"', ServerMessage("ping", {}, 1, None)),
    (
        b'"id":"q","method":"elicitation/create","params":{"message":"?"}',
        ServerMessage("elicitation/create", {"message": "?"}, "q", None),
    ),
    (b'"id":1,"method":"vendor/odd","params":{}', ServerMessage("vendor/odd", {}, 1, None)),
]


@pytest.mark.parametrize(("members", "message"), SERVER_MESSAGES)
def test_server_messages_are_dispatched_and_the_sdk_does_not_see_them(members: bytes, message: ServerMessage) -> None:
    dispatched: list[ServerMessage] = []
    bypass = PayloadBypass(dispatch=dispatched.append)
    bypass.outbound(request(bypass.open("tools/call"), 1))  # its ids are the server's own, whatever ours are
    assert bypass.inbound(b'{"jsonrpc":"2.0",' + members + b"}") is None
    assert dispatched == [message]


@pytest.mark.parametrize("identity", [None, 1])
@pytest.mark.parametrize("broken", ["NaN", '"\\ud83d"', "1e400", '"\udcff"', "[" * 100_000])
def test_unreadable_server_messages_are_dispatched_with_a_fault(identity: int | None, broken: str) -> None:
    dispatched: list[ServerMessage] = []
    bypass = PayloadBypass(dispatch=dispatched.append)
    bypass.outbound(request(bypass.open("tools/call"), 1))
    named = "" if identity is None else f'"id":{identity},'
    text = f'{{"jsonrpc":"2.0",{named}"method":"sampling/createMessage","params":{{"x":{broken}}}}}'
    assert bypass.inbound(text.encode(errors="surrogateescape")) is None
    (message,) = dispatched
    assert (message.method, message.params, message.id) == ("sampling/createMessage", {}, identity)
    assert message.fault


def test_other_unreadable_frames_are_errors() -> None:
    bypass = PayloadBypass()
    for broken in (b'{"jsonrpc":"2.0","id":1,"result":{"x":NaN}}', b'{"x":NaN,"method":"a"}', b"nonsense", b""):
        with pytest.raises(WireError):
            bypass.inbound(broken)


def test_messages_on_a_requests_stream_are_about_that_request() -> None:
    dispatched: list[ServerMessage] = []
    bypass = PayloadBypass(dispatch=dispatched.append)
    first, second = bypass.open("tools/call"), bypass.open("tools/call")
    bypass.outbound(request(first, 1))
    bypass.outbound(request(second, 2))
    message = b'{"jsonrpc":"2.0","method":"notifications/x"}'
    for about in (2, "1", None, 99):
        assert bypass.inbound(message, about) is None
    bypass.close(first)
    bypass.inbound(message, 1)
    assert [one.about for one in dispatched] == [second, first, None, None, None]


def test_large_server_messages_are_dispatched(tmp_path: Path) -> None:
    dispatched: list[ServerMessage] = []
    bypass = PayloadBypass(dispatch=dispatched.append)
    frame = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"%b"}}' % (b"x" * 100_000)
    path = tmp_path / "frame"
    path.write_bytes(frame)
    assert bypass.inbound(SpooledFrame(path, len(frame), frame[:100], frame[-100:])) is None
    assert len(dispatched[0].params["data"]) == 100_000
    assert not path.exists()


def test_a_handshake_declares_the_callers_capabilities() -> None:
    handshake = {"jsonrpc": "2.0", "id": 0, "method": "initialize"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {"roots": {}}, "clientInfo": {"name": "us"}}
    frame = json.dumps(handshake | {"params": params}).encode()
    assert sent(PayloadBypass(CAPABILITIES).outbound(frame)) == handshake | {
        "params": params | {"capabilities": CAPABILITIES}
    }
    assert sent(PayloadBypass({}).outbound(frame))["params"]["capabilities"] == {}
    assert PayloadBypass().outbound(frame) == OutboundMessage((frame,), None)
    named = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"re-initialize"}}'
    assert PayloadBypass(CAPABILITIES).outbound(named) == OutboundMessage((named,), None)


def test_a_2026_request_declares_the_callers_capabilities() -> None:
    bypass = PayloadBypass({"not": "these"})
    ours: dict[str, Any] = {types.CLIENT_CAPABILITIES_META_KEY: {"roots": {}}, "x/y": 1}
    token = bypass.open("tools/call", {"arguments": (b'{"a":1}',)}, CAPABILITIES)
    params = sent(bypass.outbound(request(token, 1, **ours)))["params"]
    assert params["_meta"] == {types.CLIENT_CAPABILITIES_META_KEY: CAPABILITIES, "x/y": 1}
    assert (params["name"], params["arguments"]) == ("x", {"a": 1})
    bare = bypass.open("tools/call", None, {})
    assert sent(bypass.outbound(request(bare, 2)))["params"]["_meta"] == {types.CLIENT_CAPABILITIES_META_KEY: {}}
    undeclared = bypass.open("tools/call")
    assert sent(bypass.outbound(request(undeclared, 3, **ours)))["params"]["_meta"] == ours


def test_a_request_in_an_unknown_session_is_marked() -> None:
    bypass = PayloadBypass()
    token = bypass.open("tools/call")
    bypass.outbound(request(token, 1))
    bypass.report_unknown_session(1)
    assert bypass.pending(token).has_unknown_session
    assert bypass.ended.is_set()


def letter(pending_payloads: PendingPayloads, identity: bytes = b"1") -> tuple[dict[str, str], str]:
    frame, token = pending_payloads.inbound(CALL % identity)
    assert token is not None
    assert b"1e400" not in bytes(frame)
    return json.loads(bytes(frame))["params"]["_meta"], token


def test_params_and_result_use_one_pending_payload() -> None:
    pending_payloads = PendingPayloads()
    meta, token = letter(pending_payloads)
    params = pending_payloads.params(meta, {})
    assert {key: bytes(raw) for key, raw in params.items()} == {"name": b'"x"', "arguments": b'{"a": 1e400}'}
    stub = pending_payloads.stub({"content": []}, {"content": b"[1e400]"}, meta)
    answer = json.dumps({"jsonrpc": "2.0", "id": 1, "result": stub}).encode()
    assert len(pending_payloads) == 1
    assert b'"content":[1e400]' in join(pending_payloads.outbound(answer))
    assert len(pending_payloads) == 0
    pending_payloads.discard(token)


def test_a_result_without_pending_params_gets_its_own_payload() -> None:
    pending_payloads = PendingPayloads()
    owned = {"ttlMs": b"1", "cacheScope": b'"x"', "resultType": b'"x"', "requestState": b'"x"', "_meta": b'{"z":1}'}
    stub = pending_payloads.stub(
        {"tools": [], "ttlMs": 5, "_meta": {"a": 1}}, {"tools": (b"[", b"1]"), "vendor": b"2", **owned}
    )
    answer = json.dumps({"jsonrpc": "2.0", "id": 1, "result": stub}).encode()
    result = json.loads(join(pending_payloads.outbound(answer)))["result"]
    assert result == {"resultType": "complete", "tools": [1], "ttlMs": 5, "_meta": {"a": 1}, "vendor": 2}
    assert pending_payloads.outbound(answer) == (answer,)


def test_discarded_params_are_missing_and_not_empty() -> None:
    pending_payloads = PendingPayloads()
    meta, token = letter(pending_payloads)
    pending_payloads.discard(token)
    assert len(pending_payloads) == 0
    with pytest.raises(ToolError, match="client disconnected"):
        pending_payloads.params(meta, {})
    pending_payloads.stub({"content": []}, {"content": b"[1]"}, meta)
    assert len(pending_payloads) == 0


def test_params_without_a_pending_payload_are_used_as_parsed() -> None:
    assert PendingPayloads().params({}, {"a": 1, "arguments": {"b": []}}) == {"a": b"1", "arguments": b'{"b":[]}'}
    assert PendingPayloads().params({"other": 1}, None) == {}
    frame = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
    assert PendingPayloads().inbound(frame) == (frame, None)


def test_unfetched_payloads_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("mcp_mirror.server.pending_payloads.time.monotonic", lambda: now)
    pending_payloads = PendingPayloads()
    waiting, _ = letter(pending_payloads)
    working, _ = letter(pending_payloads)
    pending_payloads.params(working, {})
    now += 601
    letter(pending_payloads)
    assert len(pending_payloads) == 2
    with pytest.raises(ToolError):
        pending_payloads.params(waiting, {})
    stub = pending_payloads.stub({}, {"content": b"[5]"}, working)
    assert b"[5]" in join(pending_payloads.outbound(json.dumps({"id": 1, "result": stub}).encode()))


def test_a_librarys_message_is_logged_without_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    root, level = logging.getLogger(), logging.getLogger("mcp_mirror").level
    handlers, root_level = root.handlers[:], root.level
    try:
        configure_logging(2)
        for message in ("secret", "", "two\nlines secret", 7):
            logging.getLogger("some.library").error(message)
        try:
            int("secret")
        except ValueError:
            logging.getLogger("some.library").exception("secret %s", "secret")
        logging.getLogger("some.library").warning("secret")
        logging.getLogger("mcp_mirror.x").debug("ours")
        message = capsys.readouterr().err
        assert "secret" not in message
        assert "Traceback" not in message
        assert len(message.splitlines()) == 6
        assert "on ValueError" in message
        assert message.splitlines()[-1].endswith("debug mcp_mirror.x: ours")
    finally:
        root.handlers[:] = handlers
        root.setLevel(root_level)
        logging.getLogger("mcp_mirror").setLevel(level)
    assert sys.stderr is not None

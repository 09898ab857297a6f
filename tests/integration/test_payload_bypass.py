"""Requests to upstreams and payloads of clients bypass the SDK, and each response reaches its request."""

import asyncio
import json
import logging
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import mcp_types as types
import pytest
from mcp import MCPError
from removed_files import wait_until_gone

from mcp_mirror.callers import LOCAL, Caller
from mcp_mirror.errors import ToolError, WireError
from mcp_mirror.observability.logging import configure_logging
from mcp_mirror.payload.framing import DiscardedFrame
from mcp_mirror.payload.spool import SpooledFrame, frame_id
from mcp_mirror.server.client_channel import Session
from mcp_mirror.server.pending_payloads import LiftedMessage, PendingPayloads
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.upstreams.request_failures import is_closed
from mcp_mirror.upstreams.transports import payloads
from mcp_mirror.upstreams.transports.abandoned import AbandonedRequests
from mcp_mirror.upstreams.transports.payloads import LISTS, PayloadBypass
from mcp_mirror.upstreams.transports.requests import (
    MisdirectedResponseError,
    PausableTimeout,
    PendingRequest,
    RequestSink,
    UnknownSessionError,
)
from mcp_mirror.upstreams.transports.server_messages import ServerMessage

CALL = b'{"jsonrpc":"2.0","id":%b,"method":"tools/call","params":{"name":"x","arguments":{"a": 1e400}}}'
CAPABILITIES = {"sampling": {"tools": {}}, "vendor": {"x": 1}}


def begun(bypass: PayloadBypass, method: str = "tools/call", *params: bytes) -> PendingRequest:
    """Return a request in flight."""
    request = PendingRequest(method, params or (b"{}",))
    bypass.begin(request)
    return request


def response(request: PendingRequest, members: bytes = b'"result":{"content":["first"]}') -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,%b}' % (request.id, members)


def members(request: PendingRequest) -> dict[str, bytes]:
    """Return the members of a result."""
    assert isinstance(request.outcome, dict)
    return {key: bytes(raw) for key, raw in request.outcome.items()}


def spooled(folder: Path, frame: bytes) -> SpooledFrame:
    path = folder / "frame"
    path.write_bytes(frame)
    return SpooledFrame(path, len(frame), frame[:100])


def test_a_request_is_framed_with_its_parameters_unchanged() -> None:
    request = begun(PayloadBypass(), "tools/call", b'{"arguments":{"a":', b"1e400", b"}}")
    assert b"".join(request.frame) == (
        b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"arguments":{"a":1e400}}}' % request.id
    )


@pytest.mark.parametrize("is_text", [False, True])
@pytest.mark.parametrize("method", ["tools/call", "resources/read", "prompts/get", "completion/complete", "tools/list"])
def test_the_caller_gets_a_result_as_it_was_sent(method: str, *, is_text: bool) -> None:
    bypass = PayloadBypass()
    request = begun(bypass, method)
    identity = b'"%d"' % request.id if is_text else b"%d" % request.id
    assert (
        bypass.inbound(b'{"jsonrpc":"2.0","id":%b,"result":{"content":[1e400],"vendor":{"x": 1.0}}}' % identity) is None
    )
    assert members(request) == {"content": b"[1e400]", "vendor": b'{"x": 1.0}'}
    bypass.close(request)
    assert len(bypass) == 0


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (b'{"code":-32602,"message":"no","data":{"a":[1]}}', (-32602, "no", {"a": [1]})),
        (b'{"code":"5","message":"no"}', (5, "no", None)),
        (b'{"code":1,"message":"no","data":"%b"}' % (b"x" * 70_000), (1, "no", None)),
    ],
)
def test_the_caller_gets_an_error(error: bytes, seen: tuple[int, str, Any]) -> None:
    bypass = PayloadBypass()
    request = begun(bypass)
    assert bypass.inbound(response(request, b'"error":' + error)) is None
    assert isinstance(request.outcome, types.ErrorData)
    assert (request.outcome.code, request.outcome.message, request.outcome.data) == seen


@pytest.mark.parametrize(
    "broken", [b'"error":{"code":{}}', b'"error":5', b'"x":1', b'"result":5', b'"result":{"a":NaN}', b'"error":null']
)
def test_a_broken_response_is_an_error_for_the_transport(broken: bytes) -> None:
    bypass = PayloadBypass()
    request = begun(bypass)
    with pytest.raises(WireError):
        bypass.inbound(response(request, broken))
    error = types.ErrorData(code=types.PARSE_ERROR, message="broken")
    assert bypass.fail(str(request.id), error)
    assert request.outcome == error
    assert not bypass.fail(request.id, error)
    assert not bypass.fail(None, error)


@pytest.mark.parametrize("answer", [b'"result":{"content":[]}', b'"error":{"code":1,"message":"no"}', b'"x":1'])
@pytest.mark.parametrize("is_later", [False, True])
async def test_an_abandoned_request_ends_with_an_answer_to_it_or_a_later_one(answer: bytes, *, is_later: bool) -> None:
    bypass, ended = PayloadBypass(), list[str]()
    earlier, abandoned = begun(bypass), begun(bypass)
    await bypass.abandon(abandoned, PendingRequest("ping", (b"{}",)), partial(ended.append, "abandoned"))
    bypass.close(abandoned)
    later = begun(bypass)
    bypass.inbound(response(earlier))
    assert ended == []
    frame = response(later if is_later else abandoned, answer)
    try:
        bypass.inbound(frame)
    except WireError:
        bypass.fail(frame_id(frame), types.ErrorData(code=types.PARSE_ERROR, message="broken"))
    assert ended == ["abandoned"]
    bypass.end()
    assert ended == ["abandoned"]


async def test_the_request_after_an_abandoned_one_waits_for_a_busy_server() -> None:
    class BusySink(RequestSink):
        async def send_request(self, request: PendingRequest) -> None:
            await anyio.lowlevel.checkpoint()
            sent.append(request.method)

    bypass, sent, ended = PayloadBypass(), list[str](), list[str]()
    bypass.connect(BusySink())
    with anyio.CancelScope() as scope:
        scope.cancel()
        await bypass.abandon(begun(bypass), PendingRequest("ping", (b"{}",)), partial(ended.append, "abandoned"))
    assert sent == ["ping"]
    bypass.end()
    assert ended == ["abandoned"]


async def test_an_abandoned_request_ends_with_its_connection_or_in_time() -> None:
    bypass, requests, ended = PayloadBypass(), AbandonedRequests(0.01), anyio.Event()
    with_connection = list[str]()
    await bypass.abandon(begun(bypass), PendingRequest("ping", (b"{}",)), partial(with_connection.append, "ended"))
    requests.add(1, ended.set)
    with anyio.fail_after(60):
        await ended.wait()
    assert not requests.ends
    assert with_connection == []
    bypass.end()
    assert with_connection == ["ended"]


NOTHING = b""
LOG = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"busy"}}'


@pytest.mark.parametrize(("received", "is_older_waiting"), [(NOTHING, False), (NOTHING, True), (LOG, False)])
async def test_a_server_hangs_if_it_sends_nothing_and_has_no_earlier_work(
    received: bytes, *, is_older_waiting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads, "AbandonedRequests", partial(AbandonedRequests, 0.0))
    bypass = PayloadBypass()
    older, abandoned = begun(bypass), begun(bypass)
    if not is_older_waiting:
        bypass.close(older)
    bypass.close(abandoned)
    await bypass.abandon(abandoned, PendingRequest("ping", (b"{}",)), lambda: None)
    assert not bypass.has_hung(abandoned.id)
    if received:
        bypass.inbound(received)
    later = begun(bypass)
    assert bypass.has_hung(later.id) is (received is NOTHING and not is_older_waiting)
    assert bypass.take_result(response(later))
    assert not bypass.has_hung(begun(bypass).id)


def test_a_second_or_late_response_to_a_request_is_dropped(tmp_path: Path) -> None:
    bypass = PayloadBypass()
    request = begun(bypass)
    again = response(request, b'"result":{"content":["%b"]}' % (b"x" * 1000))
    bypass.inbound(response(request))
    for is_late in (False, True):
        if is_late:
            bypass.close(request)
        assert bypass.inbound(again) is None
        assert bypass.inbound(response(request, b'"error":{"code":1,"message":"late"}')) is None
        frame = spooled(tmp_path, again)
        assert bypass.inbound(frame) is None
        wait_until_gone(frame.path)
        assert members(request) == {"content": b'["first"]'}
    assert bypass.has_ended(request.id)


def test_a_request_that_is_sent_again_gets_a_new_id() -> None:
    bypass = PayloadBypass()
    request = begun(bypass)
    first = response(request)
    bypass.begin(request)
    assert bypass.inbound(first) is None
    assert request.outcome is None
    bypass.inbound(response(request, b'"result":{}'))
    assert members(request) == {}


def test_messages_of_the_sdk_are_sent_unchanged() -> None:
    for frame in (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', b'{"id":3,"result":{}}'):
        assert PayloadBypass().outbound(frame) == (frame,)


@pytest.mark.parametrize("method", ["tools/call", "resources/read", "prompts/get", *sorted(LISTS)])
def test_a_large_result_passes_unread_and_its_file_stays_until_the_end(tmp_path: Path, method: str) -> None:
    bypass = PayloadBypass()
    request = begun(bypass, method)
    path = tmp_path / "frame"
    path.write_bytes(b"never read")
    frame = SpooledFrame(path, 10, b'{"jsonrpc":"2.0","id":%d,"result":{' % request.id)
    assert bypass.inbound(frame) is None
    assert request.outcome is frame
    assert path.exists()
    bypass.close(request)
    wait_until_gone(path)


def test_the_file_of_a_result_that_was_taken_stays(tmp_path: Path) -> None:
    bypass = PayloadBypass()
    request = begun(bypass)
    frame = spooled(tmp_path, response(request))
    bypass.inbound(frame)
    assert request.take() is frame
    bypass.close(request)
    assert frame.path.exists()


def test_a_large_result_of_other_methods_is_read_from_its_file(tmp_path: Path) -> None:
    bypass = PayloadBypass()
    request = begun(bypass, "completion/complete")
    frame = spooled(tmp_path, response(request, b'"result":{"completion":["%b"]}' % (b"x" * 100_000)))
    assert bypass.inbound(frame) is None
    assert len(members(request)["completion"]) == 100_004
    wait_until_gone(frame.path)


@pytest.mark.parametrize("values", [b'"x"' + b",1" * 20_000, b'"%b"' % (b"x" * (17 << 20))], ids=["values", "bytes"])
def test_a_huge_result_of_other_methods_is_refused_unread(tmp_path: Path, values: bytes) -> None:
    bypass = PayloadBypass()
    request = begun(bypass, "completion/complete")
    frame = spooled(tmp_path, response(request, b'"result":{"completion":[%b]}' % values))
    with pytest.raises(WireError, match="too large or has too many values"):
        bypass.inbound(frame)
    wait_until_gone(frame.path)


def test_the_sdk_reads_large_messages_that_answer_no_call(tmp_path: Path) -> None:
    frame = b'{"jsonrpc":"2.0","id":3,"result":{"instructions":"%b"}}' % (b"x" * 100_000)
    assert PayloadBypass().inbound(frame) == frame
    path = tmp_path / "frame"
    path.write_bytes(frame)
    assert PayloadBypass().inbound(SpooledFrame(path, len(frame), frame[:100])) == frame
    wait_until_gone(path)


def test_the_error_of_an_overlong_message_names_its_limit() -> None:
    with pytest.raises(WireError, match=r"3,000 bytes is over `limits\.max_message_bytes`"):
        PayloadBypass().inbound(DiscardedFrame(b"{", 3000))


def test_the_error_of_a_message_without_a_file_names_the_reason() -> None:
    with pytest.raises(WireError, match=r"3,000 bytes was discarded, because .*: No space left on device\."):
        PayloadBypass().inbound(DiscardedFrame(b"{", 3000, "No space left on device"))


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
    (b'"method":"vendor/odd","params":{"x":"\\ud83d"}', ServerMessage("vendor/odd", {"x": "\ufffd"}, None, None)),
]


@pytest.mark.parametrize(("members", "message"), SERVER_MESSAGES)
def test_server_messages_are_dispatched_and_the_sdk_does_not_see_them(members: bytes, message: ServerMessage) -> None:
    dispatched: list[ServerMessage] = []
    bypass = PayloadBypass(dispatch=dispatched.append)
    begun(bypass)
    assert bypass.inbound(b'{"jsonrpc":"2.0",' + members + b"}") is None
    assert dispatched == [message]


@pytest.mark.parametrize("identity", [None, 1])
@pytest.mark.parametrize("broken", ["NaN", "1e400", '"\udcff"', "[" * 100_000])
def test_unreadable_server_messages_are_dispatched_with_a_fault(identity: int | None, broken: str) -> None:
    dispatched: list[ServerMessage] = []
    bypass = PayloadBypass(dispatch=dispatched.append)
    begun(bypass)
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


@pytest.mark.parametrize(("identity", "is_passed"), [("1", True), ('"1"', True), ("null", True), ('"x"', False)])
def test_the_sdk_sees_only_responses_with_ids_of_its_own_form(identity: str, is_passed: bool) -> None:  # noqa: FBT001
    frame = b'{"jsonrpc":"2.0","id":%b,"result":{}}' % identity.encode()
    assert PayloadBypass().inbound(frame) == (frame if is_passed else None)


def test_messages_on_a_requests_stream_are_about_that_request() -> None:
    dispatched: list[ServerMessage] = []
    bypass = PayloadBypass(dispatch=dispatched.append)
    first, second = begun(bypass), begun(bypass)
    message = b'{"jsonrpc":"2.0","method":"notifications/x"}'
    for about in (second.id, str(first.id), None, 99):
        assert bypass.inbound(message, about) is None
    bypass.close(first)
    bypass.inbound(message, first.id)
    assert [one.about for one in dispatched] == [second.token, first.token, None, None, None]


@pytest.mark.parametrize("identity", [b'"id":null,', b'"id":7,', b""])
def test_an_error_without_the_id_ends_the_request_of_its_stream(identity: bytes) -> None:
    bypass = PayloadBypass()
    first, second = begun(bypass), begun(bypass)
    frame = b'{"jsonrpc":"2.0",%b"error":{"code":1,"message":"no"}}' % identity
    assert bypass.inbound(frame) == frame  # without a stream of its own
    if identity:
        assert bypass.inbound(frame, second.id) is None
        assert second.outcome == types.ErrorData(code=1, message="no")
    else:
        with pytest.raises(WireError):
            bypass.inbound(frame, second.id)
    assert first.outcome is None


def test_a_result_under_another_id_ends_the_request_of_its_stream() -> None:
    bypass = PayloadBypass()
    first, second, third = begun(bypass), begun(bypass), begun(bypass)
    assert bypass.inbound(response(first), second.id) is None
    assert members(first) == {"content": b'["first"]'}
    assert isinstance(second.outcome, MisdirectedResponseError)
    assert bypass.inbound(b'{"jsonrpc":"2.0","id":3,"result":{}}', third.id) is None
    assert isinstance(third.outcome, MisdirectedResponseError)


def dispatch_spooled(frame: bytes, path: Path) -> ServerMessage:
    """Return the message that a frame in a file is dispatched as; the file is deleted."""
    dispatched: list[ServerMessage] = []
    path.write_bytes(frame)
    assert PayloadBypass(dispatch=dispatched.append).inbound(SpooledFrame(path, len(frame), frame[:100])) is None
    wait_until_gone(path)
    (message,) = dispatched
    return message


def test_large_server_messages_are_dispatched(tmp_path: Path) -> None:
    frame = b'{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{"messages":"%b"}}' % (b"x" * 100_000)
    assert len(dispatch_spooled(frame, tmp_path / "frame").params["messages"]) == 100_000


def test_long_members_of_a_notification_are_not_read(tmp_path: Path) -> None:
    params = b'{"progressToken":"a","message":"%b"}' % (b"x" * 100_000)
    frame = b'{"jsonrpc":"2.0","method":"notifications/progress","params":%b}' % params
    message = dispatch_spooled(frame, tmp_path / "frame")
    assert (message.params, message.size, message.fault) == ({"progressToken": "a"}, len(frame), None)


def test_a_handshake_declares_the_callers_capabilities() -> None:
    handshake = {"jsonrpc": "2.0", "id": 0, "method": "initialize"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {"roots": {}}, "clientInfo": {"name": "us"}}
    frame = json.dumps(handshake | {"params": params}).encode()
    assert json.loads(b"".join(PayloadBypass(CAPABILITIES).outbound(frame))) == handshake | {
        "params": params | {"capabilities": CAPABILITIES}
    }
    assert json.loads(b"".join(PayloadBypass({}).outbound(frame)))["params"]["capabilities"] == {}
    assert PayloadBypass().outbound(frame) == (frame,)
    named = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"re-initialize"}}'
    assert PayloadBypass(CAPABILITIES).outbound(named) == (named,)


def test_a_request_in_an_unknown_session_fails() -> None:
    bypass = PayloadBypass()
    request = begun(bypass)
    bypass.report_unknown_session(request.id)
    assert isinstance(request.outcome, UnknownSessionError)
    assert bypass.ended.is_set()
    bypass.report_unknown_session(request.id)


async def test_the_end_of_the_connection_fails_all_requests() -> None:
    bypass = PayloadBypass()
    waiting, answered = begun(bypass), begun(bypass)
    bypass.inbound(response(answered))
    bypass.end()
    assert bypass.ended.is_set()
    assert isinstance(waiting.outcome, MCPError)
    assert is_closed(waiting.outcome)
    assert members(answered) == {"content": b'["first"]'}
    with pytest.raises(MCPError, match="Connection closed"):
        await bypass.exchange(PendingRequest("tools/call", (b"{}",)), PausableTimeout(60))


def no_pending_payloads() -> PendingPayloads:
    return PendingPayloads(WirePolicy(), cast("Any", None))  # the messages are small


async def letter(pending_payloads: PendingPayloads, identity: bytes = b"1") -> tuple[dict[str, str], str]:
    lifted = await pending_payloads.lift_params(CALL % identity, LOCAL)
    assert isinstance(lifted.message, types.JSONRPCRequest)
    assert lifted.token is not None
    assert b"1e400" not in lifted.stub
    return json.loads(lifted.stub)["params"]["_meta"], lifted.token


async def test_params_and_result_use_one_pending_payload() -> None:
    pending_payloads = no_pending_payloads()
    meta, token = await letter(pending_payloads)
    params = pending_payloads.take_params(meta, {})
    assert {key: bytes(raw) for key, raw in params.items()} == {"name": b'"x"', "arguments": b'{"a": 1e400}'}
    stub = pending_payloads.keep_result({"content": []}, {"content": b"[1e400]"}, meta)
    answer = json.dumps({"jsonrpc": "2.0", "id": 1, "result": stub}).encode()
    assert len(pending_payloads) == 1
    assert b'"content":[1e400]' in b"".join(pending_payloads.splice_result(answer))
    assert len(pending_payloads) == 0
    pending_payloads.discard(token)


def test_a_result_without_pending_params_gets_its_own_payload() -> None:
    pending_payloads = no_pending_payloads()
    owned = {"ttlMs": b"1", "cacheScope": b'"x"', "resultType": b'"x"', "requestState": b'"x"', "_meta": b'{"z":1}'}
    stub = pending_payloads.keep_result(
        {"tools": [], "ttlMs": 5, "_meta": {"a": 1}}, {"tools": (b"[", b"1]"), "vendor": b"2", **owned}
    )
    answer = json.dumps({"jsonrpc": "2.0", "id": 1, "result": stub}).encode()
    result = json.loads(b"".join(pending_payloads.splice_result(answer)))["result"]
    assert result == {"resultType": "complete", "tools": [1], "ttlMs": 5, "_meta": {"a": 1}, "vendor": 2}
    assert pending_payloads.splice_result(answer) == (answer,)


async def test_discarded_params_are_missing_and_not_empty() -> None:
    pending_payloads = no_pending_payloads()
    meta, token = await letter(pending_payloads)
    pending_payloads.discard(token)
    assert len(pending_payloads) == 0
    with pytest.raises(ToolError, match="client disconnected"):
        pending_payloads.take_params(meta, {})
    pending_payloads.keep_result({"content": []}, {"content": b"[1]"}, meta)
    assert len(pending_payloads) == 0


async def test_params_without_a_pending_payload_are_used_as_parsed() -> None:
    assert no_pending_payloads().take_params({}, {"a": 1, "arguments": {"b": []}}) == {
        "a": b"1",
        "arguments": b'{"b":[]}',
    }
    assert no_pending_payloads().take_params({"other": 1}, None) == {}
    frame = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
    listing = types.JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/list")
    assert await no_pending_payloads().lift_params(frame, LOCAL) == LiftedMessage(frame, listing)


class WaitingStream:
    """A stream to a client that does not answer."""

    is_closed = False

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Drop the notification."""

    async def request(self, method: str, params: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """Wait until cancelled."""
        del method, params, seconds
        await anyio.sleep_forever()
        return {}


async def test_a_long_response_that_no_request_awaits_is_not_parsed() -> None:
    session = Session(Caller("local", session="s"), cast("Any", None), anyio.Event(), 60, 0)
    frame = json.dumps({"jsonrpc": "2.0", "id": 5, "result": {"text": "x" * 100_000}}).encode()
    empty = b'{"jsonrpc":"2.0","id":5,"result":{}}'
    pending_payloads = no_pending_payloads()
    for known in (None, session):
        lifted = await pending_payloads.lift_params(frame, LOCAL, known)
        assert lifted == LiftedMessage(empty, types.JSONRPCResponse(jsonrpc="2.0", id=5, result={}))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.request_on, WaitingStream(), "sampling/createMessage", {})
        await anyio.wait_all_tasks_blocked()
        assert (await pending_payloads.lift_params(frame, LOCAL, session)).stub == frame
        session.client_responses["direct-1"] = asyncio.get_running_loop().create_future()  # for a direct call
        assert (await pending_payloads.lift_params(frame, LOCAL, session)).stub == empty
        assert (await pending_payloads.lift_params(frame.replace(b"5", b'"direct-1"', 1), LOCAL, session)).stub != empty
        tasks.cancel_scope.cancel()
    session.client_responses.clear()
    assert (await pending_payloads.lift_params(frame, LOCAL, session)).stub == empty


async def test_unfetched_payloads_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pending_payloads = no_pending_payloads()
    waiting, _ = await letter(pending_payloads)
    working, _ = await letter(pending_payloads)
    pending_payloads.take_params(working, {})
    now += 601
    await letter(pending_payloads)
    assert len(pending_payloads) == 2
    with pytest.raises(ToolError):
        pending_payloads.take_params(waiting, {})
    stub = pending_payloads.keep_result({}, {"content": b"[5]"}, working)
    assert b"[5]" in b"".join(pending_payloads.splice_result(json.dumps({"id": 1, "result": stub}).encode()))


async def test_the_result_of_a_long_call_waits_for_a_slow_client(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pending_payloads = no_pending_payloads()
    meta, _ = await letter(pending_payloads)
    await letter(pending_payloads)
    pending_payloads.take_params(meta, {})
    now += 601
    stub = pending_payloads.keep_result({}, {"content": b"[5]"}, meta)
    now += 599
    await letter(pending_payloads)
    assert len(pending_payloads) == 2
    assert b"[5]" in b"".join(pending_payloads.splice_result(json.dumps({"id": 1, "result": stub}).encode()))


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

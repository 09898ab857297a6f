"""The response to a direct call over HTTP."""

import json
from typing import Any

import anyio
import mcp_types as types
import pytest
from starlette.types import Message, Send

from mcp_mirror.callers import Caller
from mcp_mirror.server.client_channel import Session
from mcp_mirror.server.direct_path import Sender
from mcp_mirror.server.http.direct import ResponseStream
from mcp_mirror.system.shared_timer import SharedTimer

RESULT = (b'{"content":\n', b"[]}")


class Recorder:
    """Records the ASGI messages of a response."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._received = anyio.Event()

    async def send(self, message: Message) -> None:
        self.messages.append(message)
        self._received.set()
        self._received = anyio.Event()

    async def wait_for_comments(self, count: int) -> None:
        with anyio.fail_after(30):
            while self.body.count(b": ping\r\n\r\n") < count:
                await self._received.wait()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def media_type(self) -> bytes:
        return bytes(dict(self.messages[0]["headers"])[b"content-type"])

    @property
    def is_complete(self) -> bool:
        return not self.messages[-1].get("more_body", True)


def open_response(recorder: Recorder, send: Send | None = None, pause: float = 15) -> ResponseStream:
    caller: Any = Caller("local")
    sender = Sender(caller, "2026-07-28", None, None)  # type: ignore[arg-type]  # no SDK
    return ResponseStream(send or recorder.send, sender, None, SharedTimer(pause))


async def test_a_result_alone_is_json_with_its_length() -> None:
    recorder = Recorder()
    await open_response(recorder).send_outcome(1, RESULT)
    assert recorder.media_type == b"application/json"
    assert recorder.body == b'{"jsonrpc":"2.0","id":1,"result":{"content":\n[]}}'
    assert dict(recorder.messages[0]["headers"])[b"content-length"] == str(len(recorder.body)).encode()
    assert recorder.is_complete


@pytest.mark.parametrize(("code", "status"), [(types.INVALID_PARAMS, 400), (types.INTERNAL_ERROR, 200)])
async def test_an_error_has_the_http_status_of_its_code(code: int, status: int) -> None:
    recorder = Recorder()
    await open_response(recorder).send_outcome(1, types.ErrorData(code=code, message="no", data=None))
    assert recorder.messages[0]["status"] == status
    assert recorder.body == b'{"jsonrpc":"2.0","id":1,"error":{"code":%d,"message":"no"}}' % code


async def test_a_result_after_a_notification_is_an_event_on_one_line() -> None:
    recorder = Recorder()
    response = open_response(recorder)
    await response.notify("notifications/x", {"a": 1, "b": None})
    await response.send_outcome(1, RESULT)
    await response.notify("notifications/late", {})
    assert recorder.media_type == b"text/event-stream"
    first, second, end = recorder.body.split(b"\r\n\r\n")
    assert first == b'event: message\r\ndata: {"jsonrpc":"2.0","method":"notifications/x","params":{"a":1,"b":null}}'
    assert second == b'event: message\r\ndata: {"jsonrpc":"2.0","id":1,"result":{"content": []}}'
    assert end == b""
    assert recorder.is_complete


async def test_a_silent_call_sends_comments_until_its_result() -> None:
    recorder, later = Recorder(), Recorder()
    response = open_response(recorder, pause=0.01)
    await recorder.wait_for_comments(2)
    await response.send_outcome(1, RESULT)
    count = len(recorder.messages)
    following = open_response(later, pause=0.01)
    await later.wait_for_comments(2)  # by now the first response would have sent one more
    await following.end()
    assert len(recorder.messages) == count
    assert recorder.media_type == b"text/event-stream"
    assert recorder.is_complete


async def test_a_client_that_does_not_read_gets_one_comment() -> None:
    recorder, later, reads = Recorder(), Recorder(), anyio.Event()

    async def send_slowly(message: Message) -> None:
        await reads.wait()
        await recorder.send(message)

    slow = open_response(recorder, send_slowly, 0.01)
    following = open_response(later, pause=0.01)
    await later.wait_for_comments(5)
    reads.set()
    await slow.send_outcome(1, RESULT)
    await following.end()
    assert recorder.body.count(b": ping") == 1


async def test_a_call_without_an_outcome_ends_with_an_empty_event_stream() -> None:
    recorder = Recorder()
    await open_response(recorder).end()
    assert (recorder.media_type, recorder.body, recorder.is_complete) == (b"text/event-stream", b"", True)


async def test_after_its_call_a_request_is_cancelled_on_the_sessions_stream() -> None:
    sent = list[tuple[str, Any, object]]()

    class ServerSession:
        async def send_notification(self, notification: Any, related_request_id: object) -> None:
            sent.append((notification.method, notification.params["requestId"], related_request_id))

    recorder, caller, server_session = Recorder(), Caller("local", session="s"), ServerSession()
    session = Session(caller, server_session, anyio.Event(), 60, 0)  # type: ignore[arg-type]  # no SDK
    sender = Sender(caller, "2025-11-25", session, server_session)  # type: ignore[arg-type]  # no SDK
    response = ResponseStream(recorder.send, sender, "s", SharedTimer(15))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(response.request, "roots/list", {}, 60)
        await anyio.wait_all_tasks_blocked()
        await response.send_outcome(1, RESULT)
        tasks.cancel_scope.cancel()
    request = json.loads(recorder.body.split(b"\r\n")[1].removeprefix(b"data: "))
    assert sent == [("notifications/cancelled", request["id"], None)]


async def test_a_request_that_was_not_sent_is_not_cancelled_at_the_client() -> None:
    recorder, reads, caller = Recorder(), anyio.Event(), Caller("local", session="s")

    async def send_slowly(message: Message) -> None:
        await reads.wait()
        await recorder.send(message)

    session = Session(caller, None, anyio.Event(), 60, 0)  # type: ignore[arg-type]  # no SDK
    sender = Sender(caller, "2025-11-25", session, None)  # type: ignore[arg-type]  # no SDK
    response = ResponseStream(send_slowly, sender, "s", SharedTimer(15))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(response.notify, "notifications/x", {})
        await anyio.wait_all_tasks_blocked()
        async with anyio.create_task_group() as requests:
            requests.start_soon(response.request, "roots/list", {}, 60)
            await anyio.wait_all_tasks_blocked()
            requests.cancel_scope.cancel()
            reads.set()
    await response.send_outcome(1, RESULT)
    assert b"notifications/cancelled" not in recorder.body

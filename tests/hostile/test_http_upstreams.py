"""HTTP upstreams that send what no library sends: calls fail with the cause, and the gateway is not affected."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing, suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import anyio
import httpx2
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData
from removed_files import wait_until_left
from samples import sample
from waiting import until

from mcp_mirror.payload.spool import Spool
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.upstreams.transports.http_bodies import BodyReader, StreamPosition
from mcp_mirror.upstreams.transports.payloads import PayloadBypass
from mcp_mirror.upstreams.transports.requests import PendingRequest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.conftest import Configured, OpenLines, Run

MIB: Final = 1 << 20
TOOLS: Final = [
    {"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}} for name in ("hear", "odd")
]
"""Their calls are repeated if the connection is lost, with `repeat_read_only`."""
INITIALIZED: Final = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "odd", "version": "1"},
}
SESSION: Final = "mcp-session-id: s\r\n"
EVENTS: Final = "text/event-stream"
RESUMED: Final = b"id: 7\nretry: 0\ndata:\n\n"
"""An event after which the client opens the stream again at once."""
NOTE: Final = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}'


def head(kind: str = "application/json", status: int = 200, extra: str = "") -> bytes:
    return f"HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-type: {kind}\r\n{extra}\r\n".encode()


def whole(body: bytes, kind: str = "application/json", status: int = 200, extra: str = "") -> bytes:
    """A response with a length."""
    return head(kind, status, f"content-length: {len(body)}\r\n{extra}") + body


def result(identity: Any, value: Mapping[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": identity, "result": value}).encode()


def error(identity: Any, message: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": identity, "error": {"code": -32001, "message": message}}).encode()


def text(identity: Any, words: str) -> bytes:
    return result(identity, {"content": [{"type": "text", "text": words}]})


Answer = Callable[[asyncio.StreamWriter, Any], Awaitable[None]]
"""Writes the response to a request with this id."""


class Upstream:
    """A server whose answers to `odd`, and to requests of other methods, a test chooses. It closes each connection."""

    def __init__(self, odd: bytes | Answer = b"", **answers: bytes | Answer) -> None:
        self.answers = {"odd": odd, **answers}
        """By method of HTTP or MCP, or `odd` for calls of that tool: bytes before the connection is closed."""
        self.seen: Counter[str] = Counter()
        self.resumed: Counter[str] = Counter()
        """The ids of events after which clients resumed a stream; empty for other requests."""
        self.sent = 0
        """Bytes that the longest `pour` has sent."""
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError, asyncio.IncompleteReadError):
            line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
            headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)}
            verb, body = line.split()[0], await reader.readexactly(int(headers.get("content-length", 0)))
            message = json.loads(body) if body else {}
            params = message.get("params") or {}
            key = verb if verb != "POST" else str(params.get("name") or message.get("method"))
            self.seen[key] += 1
            self.resumed[headers.get("last-event-id", "")] += 1
            answer = self.answers.get(key, b"") or self.answer(key, message.get("id"))
            if isinstance(answer, bytes):
                writer.write(answer)
            else:
                await answer(writer, message.get("id"))
            await writer.drain()

    def answer(self, key: str, identity: Any) -> bytes:
        if key == "initialize":
            return whole(result(identity, INITIALIZED), extra=SESSION)
        if key == "server/discover":
            return whole(error(identity, "no such method"))
        if key == "tools/list":
            return whole(result(identity, {"tools": TOOLS}))
        if key in ("hear", "odd"):
            return whole(text(identity, "hello"))
        return whole(b"", status=405 if key == "GET" else 202)

    async def pour(self, writer: asyncio.StreamWriter, _identity: Any) -> None:
        """Send a long body."""
        for number in range(200):
            writer.write(b" " * MIB)
            await writer.drain()
            self.sent = max(self.sent, number * MIB)


@asynccontextmanager
async def listening(upstream: Upstream) -> AsyncIterator[Upstream]:
    async with await asyncio.start_server(upstream.serve, "127.0.0.1", 0) as server:
        upstream.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        yield upstream


def pouring(response: bytes) -> Callable[[Upstream], Answer]:
    def choose(upstream: Upstream) -> Answer:
        async def answer(writer: asyncio.StreamWriter, identity: Any) -> None:
            writer.write(response)
            await upstream.pour(writer, identity)

        return answer

    return choose


@pytest.mark.parametrize(
    ("key", "response"),
    [
        ("odd", head("application/json-seq")),
        ("odd", head("text/html", 307, "location: /mcp\r\n")),
        ("odd", head("text/html", 500)),
        ("notifications/initialized", head("text/html", 308, "location: /mcp\r\n")),
        ("notifications/initialized", head("application/json")),
    ],
    ids=["media type", "redirect", "error", "redirected notification", "notification"],
)
async def test_a_body_without_a_message_is_not_read(
    configured: Configured, open_lines: OpenLines, key: str, response: bytes
) -> None:
    upstream = Upstream()
    upstream.answers[key] = pouring(response)(upstream)
    async with listening(upstream), open_lines(configured({"bad": {"url": upstream.url}})) as client:
        await client.greet()
        await client.text("odd_mirrored")
        assert await client.text("hear_mirrored") == "hello"
    assert upstream.seen[key]
    assert upstream.sent < 20 * MIB


@pytest.mark.parametrize("kind", ["application/json", EVENTS, "text/html"])
async def test_a_redirect_within_the_origin_is_followed(
    configured: Configured, open_lines: OpenLines, kind: str
) -> None:
    async def move(writer: asyncio.StreamWriter, identity: Any) -> None:
        is_first = upstream.seen["odd"] == 1
        writer.write(whole(b"", kind, 307, "location: /mcp/\r\n") if is_first else whole(text(identity, "moved")))

    upstream = Upstream(move)
    async with listening(upstream), open_lines(configured({"bad": {"url": upstream.url}})) as client:
        await client.greet()
        assert await client.text("odd_mirrored") == "moved"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["body", "head", "drip"])
async def test_the_end_of_a_session_delays_the_next_one_by_some_seconds(
    configured: Configured, open_lines: OpenLines, kind: str
) -> None:
    async def answer(writer: asyncio.StreamWriter, _identity: Any) -> None:
        writer.write(b"" if kind == "head" else head("text/plain"))
        while True:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" if kind == "head" else b" " * (MIB if kind == "body" else 1))
            await writer.drain()
            await asyncio.sleep(0.0 if kind == "body" else 0.2)

    async def forget(writer: asyncio.StreamWriter, _identity: Any) -> None:
        writer.write(whole(b"Session not found", "text/plain", 404))
        upstream.answers["odd"] = whole(text(None, ""))

    upstream = Upstream(forget, DELETE=answer)
    async with listening(upstream), open_lines(configured({"bad": {"url": upstream.url}})) as client:
        await client.greet()
        await client.text("odd_mirrored")
        assert upstream.seen["DELETE"]
        assert await client.text("hear_mirrored") == "hello"


NO_MESSAGE: Final = {
    "a status": (whole(b"<html>", "text/html", 503), "HTTP status 503 instead of MCP. It, or a proxy in"),
    "a status with JSON": (whole(b'{"a": 1}', status=500), "HTTP status 500 instead of MCP. See the server's log."),
    "a status with events": (whole(b"data: 1\n\n", EVENTS, 502), "HTTP status 502 instead of MCP."),
    "no token": (whole(b"{}", status=401), "HTTP status 401 instead of MCP. It requires a token"),
    "a rate limit": (whole(b"", "", 429), "HTTP status 429 instead of MCP. It limits the rate of requests: try again"),
    "a rate limit with a time": (
        whole(b"", "", 429, "retry-after: 9\r\n"),
        "HTTP status 429 instead of MCP. It limits the rate of requests. It asks to try again in 9 s.",
    ),
    "maintenance": (whole(b"<html>", "text/html", 503, "retry-after: 60\r\n"), "It asks to try again in 60 s."),
    "a time that is not one": (whole(b"", "", 503, "retry-after: 9 or ignore\r\n"), "not ready: try again later."),
    "a foreign host": (whole(b"Invalid Host header", "text/plain", 421), "It does not accept the host in `url`"),
    "accepted": (whole(b"", status=202), "HTTP status 202 instead of MCP."),
    "no content": (head("", 204), "HTTP status 204 instead of MCP."),
    "a page": (whole(b"<html>", "text/html"), "text/html instead of MCP."),
    "nearly JSON": (whole(b"{}", "application/json-rpc"), "application/json-rpc instead of MCP."),
    "nearly events": (whole(b"", "text/event-streams"), "text/event-streams instead of MCP."),
    "another server": (
        whole(b"", "", 307, "location: http://127.0.0.1:1/\r\n"),
        "status 307 instead of MCP. The gateway does",
    ),
    "no message after it": (whole(b"", "", 302, "location: /mcp/\r\n"), "HTTP status 302 instead of MCP."),
    "a wrong address": (whole(b"", "text/plain", 308, "location: http://[\r\n"), "HTTP status 308 instead of MCP."),
    "an empty response": (whole(b""), "sent an invalid answer to 'odd'. Its response is empty"),
}


@pytest.mark.parametrize("kind", sample(NO_MESSAGE, list(NO_MESSAGE)[::3].__contains__))
async def test_a_response_without_a_message_is_named(configured: Configured, open_lines: OpenLines, kind: str) -> None:
    response, reason = NO_MESSAGE[kind]
    async with (
        listening(Upstream(response)) as upstream,
        open_lines(configured({"bad": {"url": upstream.url, "repeat_read_only": True}})) as client,
    ):
        await client.greet()
        for _ in range(2):  # the first request of a session is sent by another client than the next ones
            answer = await client.text("odd_mirrored")
            assert reason in answer
            assert "did not answer" not in answer
        assert await client.text("hear_mirrored") == "hello"
        assert upstream.seen["initialize"] == 1
        assert upstream.seen["odd"] == 2  # a call with an answer is not repeated


@pytest.mark.parametrize("status", [202, 307, 401, 500])
async def test_a_connection_is_not_reused_after_a_response_without_a_message(
    configured: Configured, open_lines: OpenLines, status: int
) -> None:
    ended = asyncio.Event()

    async def answer(writer: asyncio.StreamWriter, _identity: Any) -> None:
        writer.write(f"HTTP/1.1 {status} X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n".encode())
        await writer.drain()
        await ended.wait()  # the connection stays open, and nothing reads it

    async with (
        listening(Upstream(answer)) as upstream,
        open_lines(configured({"bad": {"url": upstream.url, "timeout": 5}})) as client,
    ):
        await client.greet()
        for _ in range(2):
            await client.text("odd_mirrored")
            assert await client.text("hear_mirrored") == "hello"
        ended.set()


@pytest.mark.parametrize("kind", ["application/json", EVENTS])
async def test_a_body_that_cannot_be_decoded_is_named(configured: Configured, open_lines: OpenLines, kind: str) -> None:
    bomb = whole(gzip.compress(b":" * (30 * MIB)), kind, extra="content-encoding: gzip\r\n")
    reasons = {
        "inflates to more than 200 times its size": bomb,
        "does not match its content-encoding": whole(b"data: 1\n\n", kind, extra="content-encoding: gzip\r\n"),
        "has a content encoding that the gateway did not ask for": whole(b"", kind, extra="content-encoding: br\r\n"),
    }
    upstream = Upstream()
    async with listening(upstream), open_lines(configured({"bad": {"url": upstream.url}})) as client:
        await client.greet()
        for reason, upstream.answers["odd"] in reasons.items():
            assert reason in await client.text("odd_mirrored")
        assert await client.text("hear_mirrored") == "hello"
        assert upstream.seen["odd"] == len(reasons)


async def test_an_error_with_the_status_404_does_not_end_the_session(
    configured: Configured, open_lines: OpenLines
) -> None:
    async def answer(writer: asyncio.StreamWriter, identity: Any) -> None:
        writer.write(whole(error(identity, "No such file"), status=404))

    async with (
        listening(Upstream(answer)) as upstream,
        open_lines(configured({"bad": {"url": upstream.url}})) as client,
    ):
        await client.greet()
        assert "refused 'odd': No such file (error -32001)" in await client.text("odd_mirrored")
        assert upstream.seen["odd"] == 1
        assert upstream.seen["initialize"] == 1


UNKNOWN_SESSION: Final = {
    "a status": (404, b""),
    "an invalid session": (400, b"Invalid session ID"),
    "a new server for one session": (400, error(None, "Bad Request: Server not initialized")),
    "an old Rust server": (401, b"Unauthorized: Session not found"),
}
"""How servers answer after a restart."""


@pytest.mark.parametrize("kind", UNKNOWN_SESSION)
async def test_a_session_that_the_server_does_not_know_is_replaced(
    configured: Configured, open_lines: OpenLines, kind: str
) -> None:
    status, words = UNKNOWN_SESSION[kind]

    async def answer(writer: asyncio.StreamWriter, identity: Any) -> None:
        is_known = upstream.seen["initialize"] > 1
        writer.write(whole(text(identity, "known")) if is_known else whole(words, "text/plain", status))

    upstream = Upstream(answer)
    async with listening(upstream), open_lines(configured({"bad": {"url": upstream.url}})) as client:
        await client.greet()
        assert await client.text("odd_mirrored") == "known"
        assert upstream.seen["odd"] == upstream.seen["initialize"] == 2


async def test_a_session_of_the_older_transport_is_replaced(configured: Configured, open_lines: OpenLines) -> None:
    async def forget(writer: asyncio.StreamWriter, _identity: Any) -> None:
        writer.write(whole(b"Could not find session", "text/plain", 404))
        upstream.answers["odd"] = b""

    upstream = OldUpstream(forget)
    async with listening(upstream):
        async with open_lines(configured({"bad": {"url": upstream.url, "transport": "sse"}})) as client:
            await client.greet()
            assert await client.text("odd_mirrored") == "hello"
            assert upstream.seen["odd"] == upstream.seen["initialize"] == 2
        upstream.ended.set()


async def test_a_media_type_is_not_shown_where_results_are_hidden(
    configured: Configured, open_lines: OpenLines
) -> None:
    response = whole(b"{}", "application/of-a-customer")
    async with (
        listening(Upstream(response)) as upstream,
        open_lines(configured({"bad": {"url": upstream.url, "preview": False}})) as client,
    ):
        await client.greet()
        assert "answered with another media type instead of MCP" in await client.text("odd_mirrored")
    assert "customer" not in b"".join(client.stderr).decode()


@pytest.mark.parametrize("kind", UNKNOWN_SESSION)
async def test_a_session_is_replaced_when_its_event_stream_ends_so(
    configured: Configured, open_lines: OpenLines, kind: str
) -> None:
    status, words = UNKNOWN_SESSION[kind]

    async def answer(writer: asyncio.StreamWriter, _identity: Any) -> None:
        is_first = upstream.seen["GET"] == 1
        writer.write(head(EVENTS) + RESUMED if is_first else whole(words, "text/plain", status))

    upstream = Upstream(GET=answer)
    async with listening(upstream), open_lines(configured({"bad": {"url": upstream.url}})) as client:
        await client.greet()
        await until(lambda: upstream.seen["initialize"] == 2)


async def test_a_listing_that_fails_at_the_start_is_explained(configured: Configured, run: Run) -> None:
    for response, reason in (
        (whole(b"{}", status=500), "HTTP status 500 instead of MCP."),
        (whole(text(7, "")), "answered tools/list under another request's id"),
    ):
        async with listening(Upstream(**{"tools/list": response})) as upstream:
            checked = await run("check", "--config", str(configured({"bad": {"url": upstream.url}})))
            assert reason in checked.err


@pytest.mark.parametrize("address", [b"https://127.0.0.1:1/post", b"//inner:8000/post", b"http://[", b"\xff"])
async def test_an_address_for_messages_at_another_server_is_named_at_once(
    configured: Configured, run: Run, address: bytes
) -> None:
    upstream = Upstream()
    upstream.answers["GET"] = pouring(head(EVENTS) + b"event: endpoint\ndata: " + address + b"\n\n")(upstream)
    async with listening(upstream):
        checked = await run("check", "--config", str(configured({"bad": {"url": upstream.url, "transport": "sse"}})))
    assert upstream.sent < 20 * MIB
    assert "wants messages at another address than `url`. Correct the public address" in checked.err


class OldUpstream(Upstream):
    """A server with the older transport: its answers are events of one stream, but for those to `odd`."""

    address = "/mcp"
    """Where it wants messages."""

    def __init__(self, odd: bytes | Answer = b"") -> None:
        super().__init__(odd, GET=self.open)
        self.stream: asyncio.StreamWriter
        self.ended = asyncio.Event()

    async def open(self, writer: asyncio.StreamWriter, _identity: Any) -> None:
        """Open the stream, until the test ends."""
        self.stream = writer
        writer.write(head(EVENTS) + f"event: endpoint\ndata: {self.address}\n\n".encode())
        await writer.drain()
        await self.ended.wait()

    def answer(self, key: str, identity: Any) -> bytes:
        response = super().answer(key, identity).partition(b"\r\n\r\n")[2]
        if response:
            self.stream.write(b"data: " + response + b"\n\n")
        return whole(b"", status=202)


async def test_the_address_for_messages_may_be_written_in_another_way(configured: Configured, run: Run) -> None:
    upstream = OldUpstream()
    async with listening(upstream):
        upstream.address = upstream.url.replace("http:", "HTTP:")
        url = upstream.url.replace("//", "//user:word@")
        checked = await run("check", "--config", str(configured({"old": {"url": url, "transport": "sse"}})))
        upstream.ended.set()
    assert checked.code == 0


@pytest.mark.parametrize(
    ("is_refused", "reason"),
    [
        (True, "answered with HTTP status 500 instead of MCP. See the server's log."),
        (False, "It ended the connection before it answered. See the server's log."),
    ],
)
async def test_a_failed_handshake_of_the_older_transport_is_named_at_once(
    configured: Configured, run: Run, reason: str, *, is_refused: bool
) -> None:
    upstream = OldUpstream()

    async def fail(writer: asyncio.StreamWriter, _identity: Any) -> None:
        writer.write(whole(b"", status=500 if is_refused else 202))
        if not is_refused:
            upstream.ended.set()

    upstream.answers["initialize"] = fail
    async with listening(upstream), asyncio.timeout(20):
        checked = await run("check", "--config", str(configured({"old": {"url": upstream.url, "transport": "sse"}})))
        upstream.ended.set()
    assert reason in checked.err


async def test_the_older_transport_ends_the_handshake_before_a_request(configured: Configured, run: Run) -> None:
    upstream, is_early = OldUpstream(), asyncio.Event()

    async def end_handshake(writer: asyncio.StreamWriter, _identity: Any) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(is_early.wait(), 0.3)
        writer.write(whole(b"", status=202))
        del upstream.answers["tools/list"]

    async def list_early(writer: asyncio.StreamWriter, _identity: Any) -> None:
        is_early.set()
        writer.write(whole(b"", status=500))

    upstream.answers |= {"notifications/initialized": end_handshake, "tools/list": list_early}
    async with listening(upstream):
        checked = await run("check", "--config", str(configured({"old": {"url": upstream.url, "transport": "sse"}})))
        upstream.ended.set()
    assert not is_early.is_set()
    assert checked.code == 0


@pytest.mark.parametrize(
    ("status", "address"), [(302, "/login"), (302, "https://127.0.0.1:1/"), (307, "//other/"), (308, "http://[")]
)
async def test_a_redirect_of_the_older_transport_is_named_at_once(
    configured: Configured, open_lines: OpenLines, status: int, address: str
) -> None:
    upstream = OldUpstream(whole(b"", "", status, f"location: {address}\r\n"))
    async with listening(upstream):
        config = configured({"bad": {"url": upstream.url, "transport": "sse", "timeout": 60}})
        async with open_lines(config) as client:
            await client.greet()
            for _ in range(2):
                assert f"HTTP status {status} instead of MCP" in await client.text("odd_mirrored")
                assert await client.text("hear_mirrored") == "hello"
        upstream.ended.set()


async def test_a_server_that_does_not_answer_delays_no_cancellation(
    configured: Configured, open_lines: OpenLines
) -> None:
    async def hang(_writer: asyncio.StreamWriter, _identity: Any) -> None:
        await ended.wait()

    ended, upstream = asyncio.Event(), Upstream(hang, **{"notifications/cancelled": hang})
    async with listening(upstream):
        policy = {"url": upstream.url, "overrides": {"odd": {"timeout": 0.5}}}
        async with open_lines(configured({"bad": policy})) as client:
            await client.greet()
            for identity in (101, 102):
                call = {"jsonrpc": "2.0", "id": identity, "method": "tools/call", "params": {"name": "odd_mirrored"}}
                await client.send(json.dumps(call))
            await until(lambda: upstream.seen["notifications/cancelled"] == 2)
        ended.set()


@pytest.mark.slow
async def test_a_stream_is_not_resumed_after_its_call(configured: Configured, open_lines: OpenLines) -> None:
    async with (
        listening(Upstream(head(EVENTS) + RESUMED, GET=head(EVENTS) + b"retry: 0\ndata:\n\n")) as upstream,
        open_lines(configured({"bad": {"url": upstream.url, "timeout": 1}})) as client,
    ):
        await client.greet()
        assert "did not answer 'odd' within 1 s" in await client.text("odd_mirrored")
        of_call, of_session = upstream.resumed["7"], upstream.resumed[""]
        assert of_call > 0
        await until(lambda: upstream.resumed[""] > of_session + 2)  # the gateway opens that stream once a second
        assert upstream.resumed["7"] <= of_call + 1


async def test_a_stream_is_resumed_after_the_last_message(configured: Configured, open_lines: OpenLines) -> None:
    async with (
        listening(Upstream(GET=head(EVENTS) + b"id: %b\nretry: 0\ndata: %b\n\n" % ("né 1".encode(), NOTE))) as upstream,
        open_lines(configured({"bad": {"url": upstream.url}})) as client,
    ):
        await client.greet()
        await until(lambda: "né 1" in upstream.resumed)


async def test_a_delay_applies_to_all_further_events_of_a_stream(configured: Configured, open_lines: OpenLines) -> None:
    stream = head(EVENTS) + b"id: 1\nretry: 60000\ndata:\n\nid: 2\ndata: %b\n\n" % NOTE
    async with (
        listening(Upstream(stream)) as upstream,
        open_lines(configured({"bad": {"url": upstream.url, "timeout": 2}})) as client,
    ):
        await client.greet()
        assert "did not answer 'odd' within 2 s" in await client.text("odd_mirrored")
        assert "2" not in upstream.resumed


async def test_an_event_without_an_id_keeps_the_id_before_it(configured: Configured, open_lines: OpenLines) -> None:
    stream = head(EVENTS) + b"id: 1\ndata:\n\nretry: 0\ndata: %b\n\n" % NOTE
    async with (
        listening(Upstream(stream)) as upstream,
        open_lines(configured({"bad": {"url": upstream.url, "timeout": 2}})) as client,
    ):
        await client.greet()
        await client.text("odd_mirrored")
        assert "1" in upstream.resumed


async def test_events_that_are_not_messages_leave_nothing(tmp_path: Path) -> None:
    data = b"x" * (5 * MIB)
    body = b"".join(b"event: %b\nid: 1\ndata: %b\n\n" % (kind, data) for kind in (b"other", b"endpoint"))
    response = httpx2.Response(200, content=body)
    sender, receiver = anyio.create_memory_object_stream[SessionMessage | Exception]()
    with Spool(WirePolicy(spool_bytes=MIB), tmp_path) as spool, sender, receiver:
        position = StreamPosition()
        async for _ in BodyReader(PayloadBypass(), spool, sender).read_events(response, None, position):
            assert position.last_id == b"1"
        assert receiver.statistics().current_buffer_used == 0
        wait_until_left(spool.directory, 0, 0)


async def test_a_pass_of_the_event_loop_handles_few_parts_of_bodies(tmp_path: Path) -> None:
    passes, handled = count(), Counter[int]()
    now = 0

    class Body(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for _ in range(20):
                handled[now] += 1
                yield b" " * 1000

    async def count_passes() -> None:
        nonlocal now
        while True:
            now = next(passes)
            await anyio.lowlevel.checkpoint()

    async def read() -> None:
        bypass, request = PayloadBypass(), PendingRequest("tools/call", (b"{}",))
        bypass.begin(request)
        await BodyReader(bypass, spool, sender).read_json(httpx2.Response(200, stream=Body()), request.id)
        assert isinstance(request.outcome, ErrorData)

    sender, receiver = anyio.create_memory_object_stream[SessionMessage | Exception]()
    with Spool(WirePolicy(), tmp_path) as spool, sender, receiver:
        async with anyio.create_task_group() as counting:
            counting.start_soon(count_passes)
            async with anyio.create_task_group() as reading:
                for _ in range(10):
                    reading.start_soon(read)
            counting.cancel_scope.cancel()
    assert sum(handled.values()) == 200
    beginnings, *others = handled.values()
    assert beginnings <= 30  # the first part needs no turn
    assert max(others) <= 5


@pytest.mark.parametrize("delay", [b"-1", b"9" * 400, b"soon"])
async def test_a_delay_that_is_not_a_number_of_seconds_is_ignored(
    configured: Configured, open_lines: OpenLines, delay: bytes
) -> None:
    stream = head(EVENTS) + b"id: 1\nretry: " + delay + b"\ndata:\n\n"
    async with (
        listening(Upstream(stream, GET=stream)) as upstream,
        open_lines(configured({"bad": {"url": upstream.url}})) as client,
    ):
        await client.greet()
        await until(lambda: upstream.seen["GET"] >= 2)
        assert await client.text("hear_mirrored") == "hello"
        assert upstream.seen["initialize"] == 1

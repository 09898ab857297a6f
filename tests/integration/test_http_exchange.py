"""The responses of the HTTP server: what the client receives for the messages of an ASGI application."""

import asyncio
import gc
import socket
import weakref
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count, pairwise
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import uvicorn
from clocks import PassTime
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.server import ServerState
from waiting import until

from mcp_mirror.server.http.connection_limits import Connections
from mcp_mirror.server.http.connections import LimitedProtocol, find_connection
from mcp_mirror.server.http.event_streams import EventStreams
from mcp_mirror.server.http.exchange import cut_event, send_body, send_chunks
from mcp_mirror.server.http.parser import RequestParser
from mcp_mirror.settings.limits import TrafficPolicy

BOUND = 30.0
HEAD = b" / HTTP/1.1\r\nhost: a\r\n"
CLOSE = b"connection: close\r\n\r\n"
LENGTH = (b"Content-Length", b"2")


Connection = tuple[StreamReader, StreamWriter]


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[Connection]:
    """Serve an application, and connect to it."""
    async with serving_many(app, 1) as connections:
        yield connections[0]


@asynccontextmanager
async def serving_many(app: ASGIApp, number: int) -> AsyncIterator[list[Connection]]:
    """Serve an application, and open connections to it."""
    config = uvicorn.Config(app, log_config=None, access_log=False, ws="none", proxy_headers=False)
    config.load()
    create, state = partial(LimitedProtocol, Connections(TrafficPolicy())), ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: create(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    address = server.sockets[0].getsockname()
    connections = [await asyncio.open_connection(*address) for _ in range(number)]
    try:
        yield connections
    finally:
        for _, writer in connections:
            writer.close()
        server.close()


def answer(*messages: Message) -> ASGIApp:
    """Return an application that sends these messages."""

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    return app


async def exchange(app: ASGIApp, request: bytes) -> bytes:
    """Send a request, and return all bytes until the server closes the connection."""
    async with serving(app) as (reader, writer):
        writer.write(request)
        return await asyncio.wait_for(reader.read(), BOUND)


def start(*headers: tuple[bytes, bytes], status: int = 200) -> Message:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def part(body: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def test_an_idle_connection_stays_open_longer_than_proxies_use_it(pass_time: PassTime) -> None:
    async with serving(answer(start(LENGTH), part(b"hi"))) as (reader, writer):
        for _ in range(2):
            writer.write(b"GET" + HEAD + b"\r\n")
            await asyncio.wait_for(reader.readuntil(b"hi"), BOUND)
            await pass_time(610)
            assert not reader.at_eof()
        await pass_time(20)
        assert await asyncio.wait_for(reader.read(), BOUND) == b""


@pytest.mark.parametrize(
    ("request_bytes", "messages", "response"),
    [
        (b"GET" + HEAD + CLOSE, [start(LENGTH), part(b"hi")], b"content-length: 2\r\nconnection: close\r\n\r\nhi"),
        (
            b"GET" + HEAD + CLOSE,
            [start(), part(b"hi", more=True), part(b"", more=True), part(b"!" * 10)],
            b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n2\r\nhi\r\na\r\n!!!!!!!!!!\r\n0\r\n\r\n",
        ),
        (b"GET / HTTP/1.0\r\n\r\n", [start(), part(b"hi", more=True), part(b"")], b"connection: close\r\n\r\nhi"),
        (b"HEAD" + HEAD + CLOSE, [start(LENGTH), part(b"hi")], b"content-length: 2\r\nconnection: close\r\n\r\n"),
        (b"GET" + HEAD + CLOSE, [start(status=204), part(b"")], b"connection: close\r\n\r\n"),
        (b"GET" + HEAD + b"\r\n", [start((b"connection", b"Close"), LENGTH), part(b"hi")], b"length: 2\r\n\r\nhi"),
    ],
    ids=["length", "chunks", "HTTP/1.0", "HEAD", "no content", "closed by the application"],
)  # fmt: skip
async def test_a_response_has_the_framing_that_its_client_expects(
    request_bytes: bytes, messages: list[Message], response: bytes
) -> None:
    received = await exchange(answer(*messages), request_bytes)
    assert received.startswith(b"HTTP/1.1 %d " % messages[0]["status"])
    assert received.endswith(response)


@pytest.mark.parametrize(
    "messages",
    [
        [start((b"x", b"1\r\ny: 2")), part(b"")],
        [start((b"x y", b"1")), part(b"")],
        [part(b"hi")],
        [],
    ],
    ids=["a line break in a value", "a space in a name", "a body first", "no response"],
)
async def test_an_application_that_sends_no_valid_head_is_an_error(messages: list[Message]) -> None:
    assert (await exchange(answer(*messages), b"GET" + HEAD + b"\r\n")).startswith(b"HTTP/1.1 500 ")


@pytest.mark.parametrize("body", [b"h", b"hi!"])
async def test_a_body_of_another_length_closes_the_connection(body: bytes) -> None:
    assert await exchange(answer(start(LENGTH), part(body)), b"GET" + HEAD + b"\r\n") == b""


async def test_other_tasks_run_between_the_parts_of_a_large_response() -> None:
    """Also if the client takes each part at once."""
    text = b'{"a":\n"x"} ' * 400_000
    sent, turns = list[tuple[int, bytes]](), count()

    async def take_turns() -> None:
        while True:
            next(turns)
            await anyio.lowlevel.checkpoint()

    async def send(message: Message) -> None:
        sent.append((next(turns), message["body"]))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take_turns)
        await send_body(send, (memoryview(text),))
        await send_chunks(send, cut_event(b"data: ", (memoryview(text),), b"\r\n\r\n"))
        tasks.cancel_scope.cancel()
    body = b"".join(part for _, part in sent)
    assert body == text + b"data: " + text.replace(b"\n", b" ") + b"\r\n\r\n"
    assert max(len(part) for _, part in sent) < 1 << 19
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(sent)]
    assert gaps.count(1) <= 1  # between the two responses


async def test_a_short_event_is_sent_in_one_part() -> None:
    sent = list[bytes]()

    async def send(message: Message) -> None:
        sent.append(message["body"])

    await send_chunks(send, cut_event(b"data: ", (b'{"a":', b"1}"), b"\r\n\r\n"))
    assert sent == [b'data: {"a":1}\r\n\r\n']


async def test_a_head_is_sent_before_a_body_that_comes_later() -> None:
    goes_on = asyncio.Event()

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send(start(LENGTH))
        await goes_on.wait()
        await send(part(b"hi"))

    async with serving(app) as (reader, writer):
        writer.write(b"GET" + HEAD + b"\r\n")
        assert b"content-length: 2" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), BOUND)
        goes_on.set()
        assert await asyncio.wait_for(reader.readexactly(2), BOUND) == b"hi"


async def test_a_body_is_taken_only_if_it_is_complete() -> None:
    found: list[bytes | None] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        connection = find_connection(scope)
        assert connection
        found.append(connection.take_body())
        while found[-1] is None and (await receive())["more_body"]:
            pass
        found.append(connection.take_body())
        await answer(start((b"content-length", b"0")), part(b""))(scope, receive, send)

    request = b"POST" + HEAD + b"content-length: 2\r\n\r\n"
    async with serving(app) as (reader, writer):
        writer.write(request + b"hi")
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), BOUND)
        assert found == [b"hi", None]
        found.clear()
        writer.write(request)
        await until(lambda: found)
        writer.write(b"hi")
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), BOUND)
        assert found == [None, None]


async def test_a_client_that_has_just_disconnected_needs_no_response(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        connection = find_connection(scope)
        assert connection
        connection.transport.abort()  # as asyncio does when the client resets the connection
        connection.watch_disconnect(lambda: calls.append("disconnected"))

    async with serving(app) as (reader, writer):
        writer.write(b"GET" + HEAD + b"\r\n")
        with suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), BOUND)
    assert calls[0] == "disconnected"
    assert not caplog.records


async def test_the_first_connection_that_a_limit_closes_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    most = TrafficPolicy().pending_connections_per_address
    async with serving_many(answer(), most + 2) as connections:
        for reader, _ in connections[:2]:
            with suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), BOUND) == b""
    (record,) = caplog.records
    assert "`limits.pending_connections_per_address`" in record.getMessage()
    assert "127.0.0.1" in record.getMessage()


async def test_many_small_chunks_are_read_in_small_parts() -> None:
    sizes: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive())["more_body"]:
            sizes.append(len(message["body"]))
        await answer(start((b"content-length", b"0")), part(b""))(scope, receive, send)

    async with serving(app) as (reader, writer):
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        chunks = 50_000
        request = b"POST" + HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * chunks
        writer.write(request)  # the server reads when this test waits
        writer.write(b"0\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), BOUND)
    assert sum(sizes) <= chunks
    assert max(sizes) <= 1 << 14


class Begun:
    """An application that answers requests, and notes of each its path and the pass of the event loop it began in."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.passes: list[int] = []
        self.current_pass = 0
        self._count_passes()

    def _count_passes(self) -> None:
        self.current_pass += 1
        asyncio.get_running_loop().call_soon(self._count_passes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])
        self.passes.append(self.current_pass)
        await answer(start(LENGTH), part(b"hi"))(scope, receive, send)


def with_chunks(number: int) -> bytes:
    """A request whose body is divided into chunks of one byte."""
    return b"POST" + HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * number + b"0\r\n\r\n"


async def test_small_chunks_of_all_connections_are_parsed_a_few_in_each_pass() -> None:
    begun = Begun()
    sizes: Counter[int] = Counter()
    bodies: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        size, has_more = 0, True
        while has_more:
            message = await receive()
            size, has_more = size + len(message["body"]), message["more_body"]
            sizes[begun.current_pass] += len(message["body"])
        bodies.append(size)
        await answer(start(LENGTH), part(b"hi"))(scope, receive, send)

    async with serving_many(app, 20) as connections:
        for _, writer in connections:
            writer.write(with_chunks(2000))
        for reader, _ in connections:
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\nhi"), BOUND)
    assert bodies == [2000] * 20
    assert max(sizes.values()) <= 512


async def test_a_connection_reads_no_more_while_its_small_chunks_wait() -> None:
    unsent: list[int] = []

    async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
        for _ in range(600):
            await receive()
        unsent.extend(writer.transport.get_write_buffer_size() for _, writer in connections)
        await asyncio.Event().wait()

    request = with_chunks(4_000_000)
    async with serving_many(app, 4) as connections:
        for _, writer in connections:
            writer.write(request)
        await until(lambda: unsent)
        for _, writer in connections:
            writer.transport.abort()
    assert min(unsent) > len(request) / 2


async def test_requests_that_arrive_together_begin_a_few_in_each_pass() -> None:
    begun = Begun()
    async with serving_many(begun, 40) as connections:
        for number, (_, writer) in enumerate(connections):
            writer.write(b"GET /%d HTTP/1.1\r\nhost: a\r\n\r\n" % number)
        for reader, _ in connections:
            assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\nhi"), BOUND)).startswith(b"HTTP/1.1 200 ")
    assert sorted(begun.paths, key=lambda path: int(path[1:])) == [f"/{number}" for number in range(40)]
    assert max(map(begun.passes.count, begun.passes)) == 4


@pytest.mark.parametrize(
    ("header", "most"), [(b"accept: */*", 1), (b"Mcp-Session-Id: x", 4), (b"mcp-protocol-version: 2026-07-28", 4)]
)
async def test_handshakes_that_arrive_together_begin_one_in_each_pass(header: bytes, most: int) -> None:
    begun = Begun()
    async with serving_many(begun, 20) as connections:
        for _, writer in connections:
            writer.write(b"POST / HTTP/1.1\r\nhost: a\r\n%b\r\ncontent-length: 2\r\n\r\n{}" % header)
        for reader, _ in connections:
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\nhi"), BOUND)
    assert max(map(begun.passes.count, begun.passes)) == most


@pytest.mark.parametrize(
    ("header", "header_of_others"), [(b"Mcp-Session-Id: x", b"accept: */*"), (b"accept: */*", b"Mcp-Session-Id: x")]
)
async def test_calls_and_handshakes_do_not_wait_for_a_burst_of_the_others(
    header: bytes, header_of_others: bytes
) -> None:
    begun = Begun()
    async with serving_many(begun, 81) as connections:
        for number, (_, writer) in enumerate(connections):
            is_last = number == len(connections) - 1
            path, named = (b"/last", header) if is_last else (b"/", header_of_others)
            writer.write(b"POST %b HTTP/1.1\r\nhost: a\r\n%b\r\ncontent-length: 2\r\n\r\n{}" % (path, named))
        for reader, _ in connections:
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\nhi"), BOUND)
    assert begun.paths.index("/last") < 10


async def test_clients_that_disconnect_together_are_noticed_a_few_in_each_pass() -> None:
    begun = Begun()
    ended: list[int] = []

    async def wait(scope: Scope, _receive: Receive, _send: Send) -> None:
        is_over = asyncio.Event()
        connection = find_connection(scope)
        assert connection is not None
        connection.watch_disconnect(is_over.set)
        begun.paths.append(scope["path"])
        await is_over.wait()
        ended.append(begun.current_pass)

    async with serving_many(wait, 60) as connections:
        for _, writer in connections:
            writer.write(b"GET" + HEAD + b"\r\n")
        await until(lambda: len(begun.paths) == 60)
        for _, writer in connections:
            writer.transport.abort()
        await until(lambda: len(ended) == 60)
    assert max(map(ended.count, ended)) <= 16


async def test_a_request_that_waits_for_others_to_begin_may_come_in_parts() -> None:
    begun = Begun()
    async with serving_many(begun, 40) as connections:
        others, (reader, writer) = connections[:-1], connections[-1]
        for _, other in others:
            other.write(b"GET" + HEAD + b"\r\n")
        writer.write(b"POST /slow HTTP/1.1\r\nhost: a\r\ncontent-le")
        await until(lambda: len(begun.paths) >= 4)
        writer.write(b"ngth: 2\r\n\r\nhiGET /next HTTP/1.1\r\nhost: a\r\n\r\n")
        for _ in range(2):
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\nhi"), BOUND)
    assert begun.paths.index("/slow") < begun.paths.index("/next")


def abort(writer: StreamWriter) -> None:
    writer.transport.abort()


@pytest.mark.parametrize("ends", [StreamWriter.write_eof, abort])
async def test_connections_that_end_while_they_wait_delay_no_other(ends: Callable[[StreamWriter], object]) -> None:
    begun = Begun()
    async with serving_many(begun, 40) as connections:
        for number, (_, writer) in enumerate(connections):
            writer.write(b"GET" + HEAD + b"\r\n")
            if 4 <= number < 20:
                ends(writer)
        for reader, _ in connections[20:]:
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\nhi"), BOUND)


async def test_a_request_that_waits_begins_after_the_end_of_its_clients_stream() -> None:
    begun = Begun()
    async with serving_many(begun, 40) as connections:
        for _, writer in connections:
            writer.write(b"GET" + HEAD + b"\r\n")
            writer.write_eof()
        for reader, _ in connections:
            await asyncio.wait_for(reader.read(), BOUND)  # the server closes the connection
        await until(lambda: len(begun.paths) == 40)


class OneStream:
    """An application that refuses a second event stream, as the SDK does; the stream is silent or writes always."""

    def __init__(self, *, is_silent: bool) -> None:
        self.is_silent = is_silent
        self.open_paths: list[str] = []
        self.is_blocked = False
        """Whether the client has not read what the stream wrote last."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        if self.open_paths:
            await answer(start(LENGTH, status=409), part(b"no"))(scope, receive, send)
            return
        self.open_paths.append(scope["path"])
        await send(start())
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.write, send)
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()
        finally:
            self.open_paths.clear()

    async def write(self, send: Send) -> None:
        while not self.is_silent:
            self.is_blocked = True
            await send(part(bytes(1 << 20), more=True))
            self.is_blocked = False


@pytest.mark.parametrize("is_silent", [True, False])
async def test_an_event_stream_replaces_one_whose_client_does_not_read(*, is_silent: bool) -> None:
    sdk = OneStream(is_silent=is_silent)
    streams = EventStreams(sdk)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await streams.serve(scope, "session", receive, send)

    async with serving_many(app, 2) as ((reader, writer), (other, other_writer)):
        writer.write(b"GET /first HTTP/1.1\r\nhost: a\r\n\r\n")
        await until(lambda: sdk.open_paths and sdk.is_blocked is not is_silent)
        other_writer.write(b"GET /second HTTP/1.1\r\nhost: a\r\n\r\n")
        assert (await asyncio.wait_for(other.readuntil(b"\r\n\r\n"), BOUND)).startswith(b"HTTP/1.1 200 ")
        assert sdk.open_paths == ["/second"]
        if is_silent:
            assert (await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), BOUND)).startswith(b"HTTP/1.1 200 ")
        else:
            with suppress(ConnectionError):
                while await asyncio.wait_for(reader.read(1 << 20), BOUND):
                    pass  # until the server closes the connection


@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_closed_connection_leaves_no_garbage(*, is_answered: bool) -> None:
    begun, gone = asyncio.Event(), asyncio.Event()
    kept: list[weakref.ref[Any]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        kept.append(weakref.ref(find_connection(scope), lambda _: gone.set()))
        if is_answered:
            await answer(start(LENGTH), part(b"hi"))(scope, receive, send)
        begun.set()
        while not is_answered and (await receive())["type"] != "http.disconnect":
            pass

    gc.collect()
    gc.disable()
    try:
        async with serving(app) as (reader, writer):
            writer.write(b"GET" + HEAD + b"\r\n")
            await asyncio.wait_for(reader.readuntil(b"hi") if is_answered else begun.wait(), BOUND)
        await asyncio.wait_for(gone.wait(), BOUND)
        assert not [one for one in gc.get_objects() if isinstance(one, RequestParser)]
    finally:
        gc.enable()

"""Requests to upstreams, over each transport and protocol version, on real processes: one contract."""

import gc
import json
import logging
import sys
import time
import tracemalloc
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, Final

import anyio
import anyio.lowlevel
import mcp_types as types
import pytest
from tests.load import measure_pause, slowness
from waiting import until

from mcp_mirror.callers import Caller, ClientChannel
from mcp_mirror.core.schemas.tool_inspection import InspectedTool, inspect_tool
from mcp_mirror.errors import RefusedError, UpstreamError
from mcp_mirror.payload.spool import Spool
from mcp_mirror.security.rate_limits import UpstreamLimiter
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.settings.limits import UpstreamBounds
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.settings.upstreams import HttpEndpoint, StdioEndpoint, UpstreamPolicy
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.system.slices import finish
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.client_backlog import ClientBacklog
from mcp_mirror.upstreams.connection import ReconnectingConnection
from mcp_mirror.upstreams.connection_settings import ConnectionServices, ConnectionSettings, InspectTools
from mcp_mirror.upstreams.listing import PagedList
from mcp_mirror.upstreams.notifications import ConnectionOwner
from mcp_mirror.upstreams.transports import payloads
from mcp_mirror.upstreams.transports.abandoned import AbandonedRequests
from mcp_mirror.upstreams.upstream_request import UpstreamRequest
from mcp_mirror.workers.frames import FrameScanner

BOUND: Final = 60
SCRIPT: Final = Path(__file__).parents[1] / "helpers" / "scripted_upstream.py"
OLD, NEW = "2025-11-25", "2026-07-28"
ALL: Final = [(transport, version) for transport in ("stdio", "json", "sse") for version in (OLD, NEW)]
CAPABILITIES: Final = {"roots": {"listChanged": True}, "vendor": {"x": 1}}


@dataclass
class Channel:
    """A client that records its notifications."""

    caller: Caller = field(default_factory=lambda: Caller("local", capabilities=CAPABILITIES))
    log_level: str | None = None
    wants_progress: bool = True
    is_waiting: bool = True
    session_channel: ClientChannel | None = None
    received: list[Any] = field(default_factory=list)

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        await anyio.sleep(0.01)
        self.received.append((method, params))

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        raise NotImplementedError(method, params)


@dataclass
class Setup:
    """A connection to a scripted upstream, and what the upstream received."""

    connection: ReconnectingConnection
    transport: str
    version: str
    log: Path

    async def call(self, tool: str, channel: Channel | None = None, **more: Any) -> Mapping[str, Any]:
        """Call a tool; return the members of its result, parsed."""
        arguments = more.pop("arguments", {})
        params = {"arguments": (json.dumps(arguments).encode(),)}
        request = UpstreamRequest("tools/call", params, {"name": tool, "arguments": arguments}, **more)
        response = await self.connection.request(request, channel)
        assert isinstance(response, Mapping)
        return {key: json.loads(bytes(raw)) for key, raw in response.items()}

    @property
    def received(self) -> list[Any]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [json.loads(line) for line in lines]

    def calls(self, tool: str) -> list[Any]:
        messages = [message for message, _ in self.received if isinstance(message, dict)]
        return [one for one in messages if one.get("method") == "tools/call" and one["params"]["name"] == tool]

    async def until_called(self, tool: str) -> None:
        """Wait until the upstream has received a call of a tool."""
        await until(lambda: self.calls(tool))

    async def cancellation_of(self, tool: str) -> Any:
        """Wait for the cancellation of the only call of a tool; return the notification, or "closed"."""
        (identity,) = [one["id"] for one in self.calls(tool)]
        closes = self.transport != "stdio" and self.version == NEW

        def find() -> Any:
            for message, about in self.received:
                if closes and message == "closed" and about == identity:
                    return message
                if isinstance(message, dict) and message.get("method") == "notifications/cancelled":
                    assert not closes
                    assert message["params"]["requestId"] == identity
                    return message
            return None

        return await until(find)


async def inspected(policy: UpstreamPolicy, items: Sequence[Buffer]) -> tuple[InspectedTool, ...]:
    return tuple(inspect_tool(json.loads(bytes(item)), policy.bounds) for item in items)


@asynccontextmanager
async def endpoint_of(
    transport: str, version: str, log: Path, *more: str
) -> AsyncIterator[StdioEndpoint | HttpEndpoint]:
    arguments = ("-S", "-E", str(SCRIPT), transport, version, str(log), *more)
    if transport == "stdio":
        yield StdioEndpoint(sys.executable, arguments)
        return
    # An asyncio process that is killed at the end of a loop may stay open, which a later test would report.
    with Popen([sys.executable, *arguments], stdout=PIPE) as process:  # noqa: ASYNC220
        assert process.stdout is not None
        port = int(await anyio.to_thread.run_sync(process.stdout.readline))
        try:
            yield HttpEndpoint(f"http://127.0.0.1:{port}/mcp")
        finally:
            process.kill()


@asynccontextmanager
async def connected(
    transport: str, version: str, folder: Path, *more: str, inspect_tools: InspectTools = inspected, **policy: Any
) -> AsyncIterator[Setup]:
    log = folder / "received"
    info = types.Implementation(name="us", version="0")
    with Spool(WirePolicy(), folder) as spool, ChildWatchdog() as child_watchdog, anyio.fail_after(BOUND):
        async with (
            aclosing(FrameScanner(child_watchdog, spool)) as scanner,
            endpoint_of(transport, version, log, *more) as endpoint,
            anyio.create_task_group() as tasks,
        ):
            settings, redactor = UpstreamPolicy("up", endpoint, **policy), Redactor(endpoint)
            limiter = UpstreamLimiter("up", settings.bounds)
            owner = ConnectionOwner(lambda _: None, lambda *_: None, capabilities=CAPABILITIES)
            services = ConnectionServices(spool, child_watchdog, info, inspect_tools, scanner.open_list)
            shared = ConnectionSettings(settings, services, redactor, limiter, ClientBacklog(1 << 20))
            connection = ReconnectingConnection(shared, owner)
            tasks.start_soon(connection.run)
            await connection.settled.wait()
            await connection.get_session()
            yield Setup(connection, transport, version, log)
            tasks.cancel_scope.cancel()


Connect = Callable[[], AbstractAsyncContextManager[Setup]]


SAMPLE: Final = [("stdio", OLD), ("json", NEW), ("sse", OLD), ("sse", NEW)]
"""Each transport, and each version over a stream."""


@pytest.fixture(
    params=[pytest.param(one, marks=() if one in SAMPLE else pytest.mark.slow) for one in ALL], ids="-".join
)
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Connect:
    """Open a connection over each transport, in each protocol version."""
    transport, version = request.param
    return partial(connected, transport, version, tmp_path)


def text_of(result: Mapping[str, Any]) -> str:
    text: str = result["content"][0]["text"]
    return text


async def test_requests_are_those_of_the_sdks_client(connect: Connect) -> None:
    async with connect() as setup:
        arguments = {"place": "Käfig 3", "n": [1.0, None]}
        meta = {"vendor/x": {"a": [1, None]}}
        ours, our_headers = json.loads(text_of(await setup.call("echo", arguments=arguments, meta=meta)))
        client = (await setup.connection.get_session()).client
        await client.session.list_tools()
        params = {"name": "echo", "arguments": arguments, "_meta": meta}
        request = types.Request[dict[str, Any], str](method="tools/call", params=params)
        theirs, their_headers = json.loads(
            (await client.session.send_request(request, types.CallToolResult)).content[0].text  # type: ignore[union-attr]
        )
        assert ours.pop("id") != theirs.pop("id")
        assert ours == theirs
        for headers in (our_headers, their_headers):
            headers.pop("content-length", None)
        assert our_headers == their_headers


async def test_a_call_declares_the_callers_capabilities_only_in_2026(connect: Connect) -> None:
    async with connect() as setup:
        message, _ = json.loads(text_of(await setup.call("echo", Channel(), meta={"a/b": 1})))
        meta = message["params"]["_meta"]
        assert meta["a/b"] == 1
        assert meta.get(types.CLIENT_CAPABILITIES_META_KEY) == (CAPABILITIES if setup.version == NEW else None)


async def test_concurrent_calls_get_their_own_results(connect: Connect) -> None:
    async with connect() as setup:
        found: dict[int, int] = {}

        async def call(number: int) -> None:
            arguments = {"delay": (20 - number) * 0.02, "number": number}
            message, _ = json.loads(text_of(await setup.call("echo", arguments=arguments)))
            found[number] = message["params"]["arguments"]["number"]

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(call, number)
        assert found == {number: number for number in range(20)}
        assert setup.connection.inflight_count == 0


async def test_a_list_counts_as_a_use_of_the_connection(connect: Connect) -> None:
    async with connect() as setup:
        before = setup.connection.last_used
        await setup.connection.list_all("tools/list", "tools", Channel())
        assert setup.connection.last_used > before


async def test_calls_share_few_connections(connect: Connect) -> None:
    async with connect() as setup:
        before = sum(message == "opened" for message, _ in setup.received)
        for _ in range(20):
            await setup.call("echo")
        opened = sum(message == "opened" for message, _ in setup.received) - before
        assert opened <= 3  # an event stream may end after the next call has begun


async def test_a_large_request_arrives_whole(connect: Connect) -> None:
    async with connect() as setup:
        text = "ä" * 20_000
        message, _ = json.loads(text_of(await setup.call("echo", arguments={"text": text})))
        assert message["params"]["arguments"] == {"text": text}


async def test_an_id_as_text_is_known_and_a_second_response_dropped(connect: Connect) -> None:
    async with connect() as setup:
        assert text_of(await setup.call("text_id")) == "text_id"
        assert text_of(await setup.call("twice")) == "first"
        assert text_of(await setup.call("twice")) == "first"


async def test_an_error_keeps_its_code_and_an_invalid_result_fails_its_call(connect: Connect) -> None:
    async with connect() as setup:
        with pytest.raises(RefusedError, match=r"refused 'error': It is broken \(error 7\)") as raised:
            await setup.call("error")
        assert (raised.value.code, raised.value.data) == (7, {"a": 1})
        with pytest.raises(RefusedError, match="not a JSON-RPC object"):
            await setup.call("invalid")
        await setup.call("echo")


async def test_a_refused_call_leaves_no_garbage(connect: Connect) -> None:
    async with connect() as setup:
        gc.disable()
        try:
            try:
                await setup.call("error")
            except RefusedError as error:
                kept = weakref.ref(error)
            assert kept() is None
        finally:
            gc.enable()


async def test_a_call_whose_server_exits_leaves_no_garbage(connect: Connect) -> None:
    async with connect() as setup:
        channel = Channel()
        kept = weakref.ref(channel)
        gc.disable()
        try:
            with suppress(UpstreamError):
                await setup.call("exit", channel)
            del channel
            assert kept() is None
        finally:
            gc.enable()


async def test_an_error_without_an_id_fails_the_call_of_its_stream(connect: Connect) -> None:
    async with connect() as setup:
        if setup.transport == "stdio":
            with pytest.raises(UpstreamError, match=r"did not answer 'error_without_id' within 0\.3 s"):
                await setup.call("error_without_id", timeout=0.3)
        else:
            with pytest.raises(RefusedError, match=r"It cannot be read \(error 8\)"):
                await setup.call("error_without_id")


async def test_a_result_under_another_id_fails_the_call_of_its_stream(connect: Connect) -> None:
    async with connect() as setup:
        reason = r"within 0\.3 s" if setup.transport == "stdio" else "under another request's id"
        with pytest.raises(UpstreamError, match=reason):
            await setup.call("wrong_id", timeout=0.3 if setup.transport == "stdio" else None)
        await setup.call("echo")


async def test_a_call_that_times_out_is_cancelled_and_its_late_response_dropped(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect() as setup:
        caplog.set_level(logging.WARNING, "mcp_mirror")
        with pytest.raises(UpstreamError, match=r"did not answer 'wait' within 0\.3 s"):
            await setup.call("wait", timeout=0.3)
        message = await setup.cancellation_of("wait")
        assert message == "closed" or message["params"]["reason"] == "caller cancelled"
        assert setup.connection.inflight_count == 0
        await setup.call("release")
        await setup.call("echo")  # answered after the late response
        assert text_of(await setup.call("text_id")) == "text_id"
        assert not caplog.records


async def test_calls_that_time_out_without_an_answer_free_their_places(
    connect: Callable[..., AbstractAsyncContextManager[Setup]],
) -> None:
    async with connect(bounds=UpstreamBounds(calls_per_upstream=1)) as setup:
        for _ in range(3):
            with pytest.raises(UpstreamError, match="did not answer 'hang'"):
                await setup.call("hang", Channel(), timeout=0.1)
        await setup.call("echo", Channel())


async def test_a_program_that_hangs_restarts_when_a_second_call_times_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(payloads, "AbandonedRequests", partial(AbandonedRequests, 0.1))
    caplog.set_level(logging.WARNING, "mcp_mirror")
    async with connected("stdio", OLD, tmp_path) as setup:
        with pytest.raises(UpstreamError, match="did not answer 'freeze'"):
            await setup.call("freeze", Channel(), timeout=0.1)
        with pytest.raises(UpstreamError, match=r"gateway restarts it\. 'echo' has no answer; it may"):
            await setup.call("echo", Channel(), timeout=0.2)
        await setup.call("echo", Channel())
    assert "upstream up is down: It has answered nothing for a long time, not even a ping" in caplog.text


async def test_a_call_fails_at_once_if_the_connection_ends(connect: Connect) -> None:
    async with connect() as setup:
        async with anyio.create_task_group() as tasks:
            if setup.transport == "stdio":  # the others have connections of their own

                async def hang() -> None:
                    with pytest.raises(UpstreamError, match="closed the connection during 'hang'"):
                        await setup.call("hang")

                tasks.start_soon(hang)
                await setup.until_called("hang")
            reason = (
                "closed the connection" if setup.transport == "stdio" else "did not answer 'exit'|closed the connection"
            )
            with pytest.raises(UpstreamError, match=reason):
                await setup.call("exit")
        if setup.transport == "stdio":
            await setup.call("echo")


async def test_an_input_request_passes_only_in_2026(connect: Connect) -> None:
    async with connect() as setup:
        if setup.version == NEW:
            assert (await setup.call("input"))["inputRequests"] == {"a": {"method": "roots/list"}}
        else:
            with pytest.raises(UpstreamError, match="in a form that its protocol version does not have"):
                await setup.call("input")


@pytest.mark.alone
async def test_a_shutdown_does_not_wait_for_output_that_nothing_reads(tmp_path: Path) -> None:
    seconds = []
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with connected("stdio", OLD, folder):
            began = time.monotonic()
        seconds.append(time.monotonic() - began)
    assert min(seconds) < 0.2


def test_a_list_of_many_pages_has_few_enough_items() -> None:
    page = PagedList()
    for _ in range(5):
        finish(page.add([b"0"] * 32_000, limit=1 << 26))
    assert len(page.items) == 100_000
    assert page.cut == "the limit of 100,000 items"


async def test_a_list_keeps_no_texts_of_its_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = count()

    async def answer(*_: object) -> Mapping[str, bytes]:
        number = next(numbers)
        end = {} if number == 50 else {"nextCursor": json.dumps(f"{number}" * 1_000_000).encode()}
        return {"tools": b"[]", "cacheScope": json.dumps("x" * 1_000_000).encode(), **end}

    async with connected("stdio", OLD, tmp_path) as setup:
        session = await setup.connection.get_session()
        monkeypatch.setattr(session, "request", answer)
        tracemalloc.start()
        page = await session.list_all("tools/list", "tools")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (page.cut, len(page.hints)) == (None, 51)
    assert peak < 20_000_000


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["json", "sse"])
async def test_a_schema_with_many_headers_does_not_stall_the_event_loop(transport: str, tmp_path: Path) -> None:
    texts: list[str] = []

    async def inspect_tools(policy: UpstreamPolicy, items: Sequence[Buffer]) -> tuple[InspectedTool, ...]:
        return await inspected(policy, [item for item in items if len(item) < 1000])

    async def call() -> None:
        async with connected(transport, NEW, tmp_path, "60000", inspect_tools=inspect_tools) as setup:
            texts.append(text_of(await setup.call("echo", arguments={"place": "Bonn"})))

    assert await measure_pause(call()) < 0.1 * slowness()
    assert json.loads(texts[0])[1]["mcp-param-place"] == "Bonn"


async def test_a_header_mismatch_is_tried_once_more_after_a_new_listing(connect: Connect) -> None:
    async with connect() as setup:
        with pytest.raises(RefusedError, match="Header mismatch"):
            await setup.call("mismatch")
        attempts = setup.calls("mismatch")
        assert len(attempts) == (1 if setup.transport == "stdio" else 2)
        assert len({one["id"] for one in attempts}) == len(attempts)

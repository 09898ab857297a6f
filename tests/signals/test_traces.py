"""Traces of a real gateway, received as OTLP over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, cast

import pytest
from gateway_processes import COMMAND
from mcp import Client
from notices import path_in
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.walk.conftest import BOUND, stop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.walk.conftest import Configured

SECRET = "canary-4711"
LARGE = json.dumps({"content": [{"type": "text", "text": f"{SECRET} line\n" * 2000}]})
CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SERVER, CLIENT, ERROR = 2, 3, 2


class Receiver(ThreadingHTTPServer):
    """Decodes traces."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []

    @property
    def spans(self) -> list[Any]:
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return [
            span
            for request in requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        assert isinstance(self.server, Receiver)
        self.server.bodies.append(body)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@asynccontextmanager
async def tracing_gateway(config: Any, receiver: Receiver) -> AsyncIterator[str]:
    """Run a gateway that exports traces, and yield its URL; at the end all spans have arrived."""
    endpoint = f"http://127.0.0.1:{receiver.server_address[1]}"
    process = await asyncio.create_subprocess_exec(
        COMMAND,
        *("serve", "--config", str(config), "--http", "127.0.0.1:0"),
        stderr=PIPE,
        env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint},
    )
    assert process.stderr is not None
    while b" serves " not in (line := await asyncio.wait_for(process.stderr.readline(), BOUND)):
        assert line
    try:
        yield line.split()[-1].decode()
    finally:
        assert await stop(process) == 0


async def test_one_trace_has_the_client_the_gateway_and_the_upstream_with_links_of_values(
    configured: Configured, raw: Any, receiver: Receiver
) -> None:
    async with (
        tracing_gateway(configured({"raw": raw()}), receiver) as url,
        Client(url) as client,
    ):
        notice = (
            await client.call_tool("say_mirrored", {"result": LARGE}, meta=cast("Any", {"traceparent": CALLER}))
        ).content[0]
        path = path_in(getattr(notice, "text", ""))
        received = (await client.call_tool("hear_mirrored", {})).model_dump_json()
        await client.call_tool("hear_mirrored", {"x": path})
        await client.call_tool("refuse_mirrored", {"message": SECRET})
    spans = {(span.name, span.kind): span for span in receiver.spans}
    said, sent = spans["tools/call say_mirrored", SERVER], spans["tools/call say", CLIENT]
    assert f"00-{said.trace_id.hex()}-{said.parent_span_id.hex()}-01" == CALLER
    assert (sent.trace_id, sent.parent_span_id) == (said.trace_id, said.span_id)
    heard, forwarded = spans["tools/call hear_mirrored", SERVER], spans["tools/call hear", CLIENT]
    assert [(link.trace_id, link.span_id) for link in heard.links] == [(said.trace_id, said.span_id)]
    contexts = [f"00-{one.trace_id.hex()}-{one.span_id.hex()}-" for one in receiver.spans if one.kind == CLIENT]
    assert forwarded.trace_id == heard.trace_id
    assert any(one in received for one in contexts)
    assert spans["tools/call refuse", CLIENT].status.code == ERROR
    attributes = {one.key: one.value.string_value for one in said.attributes}
    assert attributes["mcp.method.name"] == "tools/call"
    assert attributes["gen_ai.tool.name"] == "say_mirrored"
    everything = b"".join(receiver.bodies)
    assert SECRET.encode() not in everything
    assert str(path).encode() not in everything
    assert b"mcp-mirror" in everything

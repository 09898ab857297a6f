"""An OTLP receiver over HTTP, and gateways that export to it."""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from gateway_processes import COMMAND, forked_python
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.end_to_end.conftest import BOUND, stop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Receiver(ThreadingHTTPServer):
    """Decodes traces, metrics and logs."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in self.requests]

    @property
    def spans(self) -> list[Any]:
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.read("/v1/traces")]
        return [
            span
            for request in requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the last export."""
        request = ExportMetricsServiceRequest.FromString(self.read("/v1/metrics")[-1])
        scopes = [scope for resource in request.resource_metrics for scope in resource.scope_metrics]
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    @property
    def records(self) -> list[Any]:
        requests = [ExportLogsServiceRequest.FromString(body) for body in self.read("/v1/logs")]
        return [
            record
            for request in requests
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]

    def read(self, path: str) -> list[bytes]:
        return [body for one, body in self.requests if one == path]


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        assert isinstance(self.server, Receiver)
        self.server.requests.append((self.path, body))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@asynccontextmanager
async def exporting_gateway(config: Any, endpoint: str, *options: str, **environ: str) -> AsyncIterator[str]:
    """Run a gateway that exports its signals, and yield its URL; at the end all of them have arrived."""
    process = await asyncio.create_subprocess_exec(
        *forked_python(COMMAND, "serve", "--config", str(config), "--http", "127.0.0.1:0", *options),
        stderr=PIPE,
        env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, **environ},
    )
    assert process.stderr is not None
    while b" serves " not in (line := await asyncio.wait_for(process.stderr.readline(), BOUND)):
        assert line
    reading = asyncio.create_task(process.stderr.read())
    try:
        yield line.split()[-1].decode()
    finally:
        assert await stop(process) == 0
        await asyncio.wait_for(reading, BOUND)


def read_attributes(item: Any) -> dict[str, str]:
    return {one.key: one.value.string_value for one in item.attributes}

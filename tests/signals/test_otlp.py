"""Metrics and logs of a real gateway, received as OTLP over HTTP."""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client
from tests.end_to_end.conftest import BOUND
from tests.signals.receiver import exporting_gateway, read_attributes
from waiting import until

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Serve
    from tests.signals.receiver import Receiver

SECRET = "canary-4711"
LARGE = json.dumps({"content": [{"type": "text", "text": f"{SECRET} line\n" * 2000}]})
SERVER, INFO = 2, 9
ADVICE = {
    "OTEL_EXPORTER_OTLP_PROTOCOL=grpc": b"`http/protobuf`",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json": b"`http/protobuf`",
    "OTEL_LOGS_EXPORTER=console": b"`otlp` or `none`",
}
PATIENCE = 30.0


async def make_calls(url: str) -> None:
    async with Client(url) as client:
        for _ in range(3):
            await client.call_tool("say_mirrored", {"result": LARGE})
        with suppress(Exception):
            await client.call_tool("refuse_mirrored", {"message": SECRET})


async def test_a_shutdown_exports_the_metrics_by_the_conventions(
    configured: Configured, raw: Any, receiver: Receiver
) -> None:
    async with exporting_gateway(configured({"raw": raw()}), receiver.url) as url:
        await make_calls(url)
    metrics = receiver.metrics
    calls = metrics["mcp.server.operation.duration"]
    assert calls.unit == "s"
    points = {point_key(point): point for point in calls.histogram.data_points}
    call_point = points["say_mirrored", ""]
    assert "error.type" not in read_attributes(call_point)
    assert read_attributes(call_point)["mcp.method.name"] == "tools/call"
    assert (call_point.count, sum(call_point.bucket_counts)) == (3, 3)
    assert len(call_point.bucket_counts) == len(call_point.explicit_bounds) + 1
    assert 0 < call_point.sum < BOUND
    assert {name for name, error in points if error} == {"refuse_mirrored"}
    tokens = metrics["mcp_mirror_result_tokens"].sum
    [kept_out] = [
        one.as_double
        for one in tokens.data_points
        if read_attributes(one).get("part") == "kept_out" and read_attributes(one)["gen_ai.tool.name"] == "say_mirrored"
    ]
    assert tokens.is_monotonic
    assert kept_out > 10_000
    states = metrics["mcp_mirror_upstream_state"].gauge.data_points
    assert len(states) == 3
    assert metrics["mcp_mirror_store_values"].gauge.data_points[0].as_double == 3
    assert "mcp_mirror_build_info" in metrics
    assert [name for name, metric in metrics.items() if metric.WhichOneof("data") is None] == []
    assert SECRET.encode() not in b"".join(receiver.bodies)


def point_key(point: Any) -> tuple[str, str]:
    attributes = read_attributes(point)
    return attributes["gen_ai.tool.name"], attributes.get("error.type", "")


async def test_metrics_are_exported_at_the_interval_of_the_environment(
    configured: Configured, raw: Any, receiver: Receiver
) -> None:
    environ = {"OTEL_METRIC_EXPORT_INTERVAL": "200", "OTEL_TRACES_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    async with exporting_gateway(configured({"raw": raw()}), receiver.url, "-v", **environ) as url:
        await make_calls(url)
        before = len(receiver.requests)
        await until(lambda: len(receiver.requests) > before + 1)
        assert "mcp_mirror_result_bytes" in receiver.metrics
    assert {path for path, _ in receiver.requests} == {"/v1/metrics"}


async def test_a_log_line_of_a_call_has_its_severity_and_the_trace_of_the_call(
    configured: Configured, raw: Any, receiver: Receiver
) -> None:
    environ = {"OTEL_METRICS_EXPORTER": "none"}
    async with exporting_gateway(configured({"raw": raw()}), receiver.url, "-v", **environ) as url:
        await make_calls(url)
    lines = {record.body.string_value: record for record in receiver.records}
    [line] = [one for one in lines if one.startswith("call tool=refuse_mirrored ")]
    [span] = [one for one in receiver.spans if one.kind == SERVER and one.name == "tools/call refuse_mirrored"]
    record = lines[line]
    assert (record.severity_number, record.severity_text) == (INFO, "INFO")
    assert (record.trace_id, record.span_id) == (span.trace_id, span.span_id)
    assert {path for path, _ in receiver.requests} == {"/v1/traces", "/v1/logs"}
    assert SECRET.encode() not in b"".join(receiver.bodies)


@pytest.mark.parametrize("setting", ADVICE)
async def test_a_setting_of_exports_without_effect_is_a_warning(
    configured: Configured, raw: Any, serve: Serve, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    variable, _, value = setting.partition("=")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv(variable, value)
    async with serve(configured({"raw": raw()})) as served:
        await make_calls(served.url)
    [line] = [one for one in served.stderr if variable.encode() in one]
    assert ADVICE[setting] in line


async def test_a_missing_collector_is_named_in_the_log_without_its_secrets(
    configured: Configured, raw: Any, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as once:
        address = f"127.0.0.1:{once.getsockname()[1]}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://user:{SECRET}@{address}")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    async with serve(configured({"raw": raw()})) as served:
        await make_calls(served.url)
        await until(lambda: any(b"collector does not accept metrics" in line for line in served.stderr))
    output = b"".join(served.stderr)
    assert b"`OTEL_EXPORTER_OTLP_*`" in output
    assert b"(library)" not in output
    assert SECRET.encode() not in output


@pytest.mark.slow
async def test_a_dead_endpoint_delays_no_call_and_the_shutdown_for_seconds(configured: Configured, raw: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and does not answer
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        environ = {"OTEL_METRIC_EXPORT_INTERVAL": "100", "OTEL_EXPORTER_OTLP_TIMEOUT": str(2 * BOUND)}
        async with exporting_gateway(configured({"raw": raw()}), endpoint, "-v", **environ) as url:
            began = time.monotonic()
            await make_calls(url)
            assert time.monotonic() - began < PATIENCE
            began = time.monotonic()
        assert time.monotonic() - began < PATIENCE

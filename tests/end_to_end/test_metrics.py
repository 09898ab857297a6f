"""`server.metrics` of a real gateway."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from http_sessions import META
from mcp import Client
from notices import path_in
from prometheus_client.parser import text_string_to_metric_families
from redis_process import free_port
from tests.end_to_end.conftest import BOUND
from waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.end_to_end.conftest import Configured, Listening, OpenClient, Serve

SECRET = "canary-4711"
LARGE = json.dumps({"content": [{"type": "text", "text": f"{SECRET} line\n" * 2000}]})
CALLS = "mcp_server_operation_duration_seconds_count"


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(timeout=BOUND) as client:
        yield client


class Samples:
    """The samples of one export."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self._all = [sample for family in self.families.values() for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float | None:
        """The sum of the samples with these labels; None if there are none."""
        found = [one.value for one in self._all if one.name == name and labels.items() <= one.labels.items()]
        return sum(found) if found else None

    def labels(self, name: str) -> set[str]:
        return {value for one in self._all for key, value in one.labels.items() if key == name}


async def test_memory_tools_count_refused_paths(
    serve: Serve, configured: Configured, raw: Any, http: httpx2.AsyncClient
) -> None:
    port = free_port()
    config = configured({"raw": raw()}, server={"metrics": f"127.0.0.1:{port}"})
    unknown = "say-12345678-89ab-4cde-8f01-23456789abcd"
    async with serve(config) as served, Client(served.url) as client:
        await client.call_tool("memory_run", {"inputs": {"rows": unknown}, "code": "rows"})
        await client.call_tool("memory_query", {"inputs": {"rows": unknown}, "sql": "FROM rows"})
        await client.call_tool("memory_query", {"inputs": {"rows": f"other-{unknown}"}, "sql": "FROM rows"})
        await client.call_tool("memory_read", {"memory_path": unknown})
        await client.call_tool("memory_forget", {"memory_path": "words"})
        samples = await export(http, port)
    assert samples("mcp_mirror_refusals_total", reason="unknown_path") == 5
    assert samples(CALLS, gen_ai_tool_name="memory_read", error_type="unknown_path") == 1


async def export(http: httpx2.AsyncClient, port: int) -> Samples:
    response = await http.get(f"http://127.0.0.1:{port}/metrics")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/plain")
    return Samples(response.text)


async def test_calls_tokens_requests_and_refusals_are_counted(
    serve: Serve, configured: Configured, raw: Any, http: httpx2.AsyncClient
) -> None:
    port = free_port()
    config = configured({"raw": raw()}, server={"metrics": f"127.0.0.1:{port}"})
    async with serve(config) as served, Client(served.url) as client:
        notice = (await client.call_tool("say_mirrored", {"result": LARGE})).content[0]
        await client.call_tool("hear_mirrored", {"x": path_in(getattr(notice, "text", ""))})
        await client.call_tool("hear_mirrored", {"x": "say-12345678-89ab-4cde-8f01-23456789abcd"})
        await client.call_tool(f"unknown-{SECRET}", {})
        samples = await export(http, port)
    tool = {"mcp_method_name": "tools/call"}
    assert samples(CALLS, gen_ai_tool_name="say_mirrored", error_type="", **tool) == 1
    assert samples(CALLS, gen_ai_tool_name="hear_mirrored", error_type="", **tool) == 1
    assert samples(CALLS, gen_ai_tool_name="hear_mirrored", error_type="unknown_path", **tool) == 1
    assert samples(CALLS, gen_ai_tool_name="(unknown)", error_type="unknown_tool", **tool) == 1
    assert samples("mcp_mirror_refusals_total", reason="unknown_path") == 1
    requests = "mcp_client_operation_duration_seconds_count"
    assert samples(requests, gen_ai_tool_name="say", upstream="raw", error_type="") == 1
    assert samples(requests, gen_ai_tool_name="hear", upstream="raw") == 1
    kept_out = samples("mcp_mirror_result_tokens_total", gen_ai_tool_name="say_mirrored", part="kept_out")
    assert kept_out is not None
    assert kept_out > 5_000
    assert (samples("mcp_mirror_result_bytes_total", gen_ai_tool_name="say_mirrored") or 0) > 100
    assert samples("mcp_mirror_store_values") == 2
    assert (samples("mcp_mirror_store_bytes") or 0) > 20_000
    assert samples("mcp_mirror_store_up") == 1
    assert samples("mcp_mirror_store_operation_duration_seconds_count", operation="put", error_type="") == 2
    assert samples("mcp_mirror_upstream_state", upstream="raw", state="ready") == 1
    assert samples("mcp_mirror_inflight_calls") == 0
    assert SECRET not in samples.text
    assert not re.search(r"[0-9a-f]{8}-[0-9a-f]{4}", samples.text)
    assert samples.labels("gen_ai_tool_name") == {"say_mirrored", "hear_mirrored", "(unknown)", "say", "hear"}


@pytest.mark.posix
async def test_reconnects_circuit_breakers_and_open_calls_are_exported(
    serve: Serve, configured: Configured, raw: Any, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    port, started, end, program = free_port(), tmp_path / "started", tmp_path / "end", tmp_path / "python"
    program.symlink_to(sys.executable)
    upstreams = {"raw": raw(scope="shared"), "broken": {**raw(scope="shared"), "command": str(program)}}
    config = configured(upstreams, server={"metrics": f"127.0.0.1:{port}"})
    async with serve(config) as served, Client(served.url) as client:
        await client.call_tool("raw_die_mirrored", {})
        assert not (await client.call_tool("broken_hear_mirrored", {})).is_error
        program.unlink()
        await client.call_tool("broken_die_mirrored", {})
        for _ in range(4):  # each call tries to connect again
            assert (await client.call_tool("broken_hear_mirrored", {})).is_error
        arguments = {"started": str(started), "until": str(end)}
        call = asyncio.create_task(client.call_tool("raw_hang_mirrored", arguments))
        await until(started.exists)
        samples = await export(http, port)
        end.touch()
        await call
    assert samples("mcp_mirror_inflight_calls") == 1
    assert samples("mcp_mirror_upstream_open_circuit_breakers", upstream="broken") == 1
    assert samples("mcp_mirror_upstream_inflight_requests", upstream="raw") == 1
    assert samples("mcp_mirror_upstream_connects_total", upstream="raw", result="opened") == 2
    assert samples("mcp_mirror_upstream_disconnects_total", upstream="raw") == 1
    assert (samples("mcp_mirror_upstream_connects_total", upstream="broken", result="failed") or 0) >= 1
    assert samples("mcp_mirror_upstream_state", upstream="broken", state="down") == 1
    assert samples("mcp_mirror_sessions") is not None
    error = "mcp_client_operation_duration_seconds_count"
    assert samples(error, gen_ai_tool_name="die", upstream="raw", error_type="connection_lost") == 1


async def test_requests_that_fail_are_counted_by_their_cause(
    serve: Serve, configured: Configured, raw: Any, http: httpx2.AsyncClient, listening: Listening, tmp_path: Path
) -> None:
    port = free_port()
    async with listening("raw_http.py", "--max-body", "20000") as web_port:
        web = {"url": f"http://127.0.0.1:{web_port}/mcp", "max_request_bytes": "1GiB"}
        upstreams = {"raw": raw(overrides={"hang": {"timeout": 0.2}}), "web": web}
        config = configured(upstreams, server={"metrics": f"127.0.0.1:{port}"})
        async with serve(config) as served, Client(served.url) as client:
            arguments = {"started": str(tmp_path / "started"), "until": str(tmp_path / "never")}
            await client.call_tool("raw_hang_mirrored", arguments)
            await client.call_tool("web_hear_mirrored", {"pad": "x" * 50_000})
            samples = await export(http, port)
    requests = "mcp_client_operation_duration_seconds_count"
    assert samples(requests, gen_ai_tool_name="hang", upstream="raw", error_type="timeout") == 1
    assert samples(requests, gen_ai_tool_name="hear", upstream="web", error_type="rejected") == 1


async def test_metrics_admit_addresses_and_allowed_names_only(
    serve: Serve, configured: Configured, raw: Any, http: httpx2.AsyncClient
) -> None:
    port = free_port()
    server = {"metrics": f"127.0.0.1:{port}", "allowed_hosts": ["gateway"]}
    async with serve(configured({"raw": raw()}, server=server)) as served:
        for host, status in (("10.1.2.3:9464", 200), ("[fd00::1]:9464", 200), ("gateway", 200), ("evil.example", 421)):
            response = await http.get(f"http://127.0.0.1:{port}/metrics", headers={"host": host})
            assert response.status_code == status, host
        assert (await http.post(f"http://127.0.0.1:{port}/metrics")).status_code == 405
        assert (await http.get(f"http://127.0.0.1:{port}/mcp")).status_code == 404
        assert (await http.get(f"http://127.0.0.1:{port}/healthz")).text == "ok"
        assert (await http.get(served.url.replace("/mcp", "/metrics"))).status_code == 404


@pytest.mark.parametrize("version", ["x", "1..0", "1.0.0-rc.1", ""])
async def test_metrics_answer_an_unknown_version_of_their_format(
    serve: Serve, configured: Configured, raw: Any, http: httpx2.AsyncClient, version: str
) -> None:
    port = free_port()
    async with serve(configured({"raw": raw()}, server={"metrics": f"127.0.0.1:{port}"})):
        headers = {"accept": f"application/openmetrics-text;version={version},text/plain;version=0.0.4;q=0.5"}
        response = await http.get(f"http://127.0.0.1:{port}/metrics", headers=headers)
        assert response.status_code == 200
        assert "mcp_mirror_build_info" in response.text


async def test_rejected_http_requests_are_counted_by_reason(
    serve: Serve, configured: Configured, raw: Any, http: httpx2.AsyncClient
) -> None:
    port = free_port()
    async with serve(configured({"raw": raw()}, server={"metrics": f"127.0.0.1:{port}"})) as served:
        for _ in range(2):
            assert (await http.post(served.url, headers={"host": "evil.example"})).status_code == 421
        assert (await http.post(served.url, headers={"origin": "https://evil.example"})).status_code == 403
        samples = await export(http, port)
    rejected = "mcp_mirror_rejected_requests_total"
    assert samples(rejected, reason="foreign_host") == 2
    assert samples(rejected, reason="foreign_origin") == 1
    assert samples("mcp_mirror_refusals_total") is None


@pytest.mark.posix
async def test_metrics_and_probes_answer_during_a_graceful_shutdown(
    serve: Serve, configured: Configured, raw: Any, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    port, started, end = free_port(), tmp_path / "started", tmp_path / "end"
    config = configured({"raw": raw()}, server={"metrics": f"127.0.0.1:{port}", "drain": 60})
    arguments = {"started": str(started), "until": str(end)}
    params = {"name": "hang_mirrored", "arguments": arguments, "_meta": META}
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "hang_mirrored",
    }
    async with serve(config) as served:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        call = asyncio.create_task(http.post(served.url, json=body, headers=headers))
        await until(started.exists)
        served.process.send_signal(signal.SIGTERM)
        await until(lambda: http.get(f"http://127.0.0.1:{port}/readyz"), lambda response: response.text == "not ready")
        assert (await http.get(f"http://127.0.0.1:{port}/healthz")).text == "ok"
        assert (await export(http, port))("mcp_mirror_inflight_calls") == 1
        end.touch()
        assert "late" in (await call).text


async def test_metrics_are_served_beside_a_client_on_stdio(
    open_client: OpenClient, raw: Any, http: httpx2.AsyncClient
) -> None:
    port = free_port()
    async with open_client({"raw": raw()}, server={"metrics": f"127.0.0.1:{port}"}) as client:
        await client.text("hear_mirrored")
        assert (await export(http, port))(CALLS, gen_ai_tool_name="hear_mirrored") == 1


@pytest.mark.posix
@pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux")
async def test_each_worker_has_its_own_metrics(
    serve: Serve, configured: Configured, raw: Any, http: httpx2.AsyncClient
) -> None:
    port = free_port()
    config = configured({"raw": raw()}, store={"kind": "disk"}, server={"metrics": f"127.0.0.1:{port}"})
    async with serve(config, "--workers", "2") as served:
        for _ in range(10):
            async with Client(served.url) as client:
                await client.call_tool("hear_mirrored", {})
        counts = [(await export(http, port + number))(CALLS) or 0 for number in range(2)]
        assert sum(counts) == 10


@pytest.mark.posix
async def test_a_failed_reload_is_a_metric_until_one_succeeds(
    serve: Serve, configured: Configured, raw: Any, http: httpx2.AsyncClient
) -> None:
    port = free_port()

    def write(**upstreams: Any) -> Path:
        return configured({"raw": raw(), **upstreams}, server={"metrics": f"127.0.0.1:{port}"})

    async with serve(config := write()) as served:
        outcomes: list[float | None] = []
        times: list[float] = []

        async def note(expected: bytes = b"") -> None:
            await until(lambda: any(expected in line for line in served.stderr))
            samples = await export(http, port)
            outcomes.append(samples("mcp_mirror_config_last_reload_successful"))
            times.append(samples("mcp_mirror_config_last_reload_success_timestamp_seconds") or 0)

        await note()
        config.write_text("{")
        served.process.send_signal(signal.SIGHUP)
        await note(b"was not reloaded")
        write(two=raw())
        served.process.send_signal(signal.SIGHUP)
        await note(b"was reloaded")
    assert outcomes == [1, 0, 1]
    assert time.time() - 60 < times[0] == times[1] < times[2] <= time.time()


async def test_a_metrics_address_in_use_is_an_error(configured: Configured, raw: Any, run: Any) -> None:
    listening = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        config = configured({"raw": raw()}, server={"metrics": f"127.0.0.1:{port}"})
        ended = await run("serve", "--config", str(config), "--http", "127.0.0.1:0")
    assert ended.code == 2
    assert f"Cannot serve `server.metrics` on 127.0.0.1:{port}: Address already in use. Choose" in ended.err

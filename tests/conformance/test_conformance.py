"""The official conformance suite: the gateway as a server and as a client, in both revisions, with no exceptions."""

import asyncio
import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from client import connect
from mcp import StdioServerParameters
from mcp_types import TextContent
from samples import sample
from suite import REVISIONS, is_signed_in, require, run_client, run_server, tell_missing
from under_test import HANDSHAKE_ONLY, fixture_on_http, fixture_on_stdio, gateway_before

pytestmark = [
    pytest.mark.timeout(420),
    pytest.mark.skipif(
        bool(tell_missing()) and os.environ.get("CI", "").lower() != "true",
        reason=tell_missing() or "With CI=true nothing may be missing.",
    ),
]

SCORES = {"2025-11-25": "30/30", "2026-07-28": "37/37"}
CLIENT = Path(__file__).with_name("client.py")
SCENARIOS = {
    "2025-11-25": ("initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry"),
    "2026-07-28": (
        "tools_call",
        "request-metadata",
        "sep-2322-client-request-state",
        "http-standard-headers",
        "http-custom-headers",
        "http-invalid-tool-headers",
        "json-schema-ref-no-deref",
    ),
}
SIGNED_IN = "auth/scope-step-up"
"""One of those that need authorization, with all that is in the others; `make conformance` runs all."""
SCORES_SIGNED_IN = {"2025-11-25": 14, "2026-07-28": 25}
EACH = [(name, revision) for revision in REVISIONS for name in SCENARIOS[revision]]
SAMPLE = {("sse-retry", "2025-11-25"), ("tools_call", "2025-11-25"), ("request-metadata", "2026-07-28")}
"""Scenarios of `make test`; `make test-slow` has the others."""


def name_flags(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else "of-2025" if value else "of-both"


@pytest.fixture(autouse=True)
def forked_programs(forking_gateway: Path, forked_servers: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    """The fixture, the gateway and the driver run as forks, also the gateway that the driver starts."""
    monkeypatch.setenv("FORKED_EXECUTABLE", str(forking_gateway.with_name("python")))


async def assert_whole(url: str, revision: str, title: str) -> None:
    report = await run_server(url, revision, title)
    assert (report.exit_code, report.score) == (0, SCORES[revision]), report.explain()


SLOW = pytest.mark.skipif("ALL_COMBINATIONS" not in os.environ, reason="run by `make soak`: half a minute")
CONTROL = pytest.mark.skipif(
    "ALL_COMBINATIONS" not in os.environ, reason="run by `make soak`: it tests the fixtures, not the gateway"
)


async def assert_client_passes(scenario: str, revision: str, *flags: str) -> None:
    command = shlex.join([sys.executable, str(CLIENT), *flags])
    report = await run_client(command, scenario, revision)
    assert (report.exit_code, report.score) == (0, "1/1"), report.explain()


@CONTROL
@pytest.mark.parametrize(
    ("revision", "flags"),
    [("2025-11-25", ()), ("2025-11-25", HANDSHAKE_ONLY), ("2026-07-28", ())],
    ids=name_flags,
)
async def test_the_fixture_without_the_gateway_passes_the_suite(revision: str, flags: tuple[str, ...]) -> None:
    async with fixture_on_http(*flags) as url:
        await assert_whole(url, revision, f"The fixture, {revision}")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("flags", [(), HANDSHAKE_ONLY], ids=name_flags)
async def test_the_fixture_supports_its_protocol_versions_on_stdio(mode: str, flags: tuple[str, ...]) -> None:
    modern = mode == "auto" and not flags
    async with asyncio.timeout(30), connect(StdioServerParameters(**fixture_on_stdio(*flags)), mode) as client:
        result = await client.call_tool("test_elicitation_sep1034_defaults")
        assert client.protocol_version == ("2026-07-28" if modern else "2025-11-25")
        assert isinstance(result.content[0], TextContent)
        assert '"name": "John Doe"' in result.content[0].text


@pytest.mark.parametrize(
    ("revision", "transport", "flags"),
    [
        ("2025-11-25", "http", ()),
        pytest.param("2025-11-25", "stdio", (), marks=SLOW),
        pytest.param("2025-11-25", "http", HANDSHAKE_ONLY, marks=pytest.mark.slow),
        pytest.param("2025-11-25", "stdio", HANDSHAKE_ONLY, marks=SLOW),
        pytest.param("2026-07-28", "http", (), marks=SLOW),
        ("2026-07-28", "stdio", ()),
    ],
    ids=name_flags,
)
async def test_a_gateway_passes_the_suite_as_a_server(revision: str, transport: str, flags: tuple[str, ...]) -> None:
    async with AsyncExitStack() as stack:
        upstream: Mapping[str, Any] = fixture_on_stdio(*flags)
        if transport == "http":
            upstream = {"url": await stack.enter_async_context(fixture_on_http(*flags))}
        url = await stack.enter_async_context(gateway_before(upstream))
        await assert_whole(url, revision, f"The gateway before an upstream over {transport}, {revision}")


@CONTROL
@pytest.mark.parametrize(("scenario", "revision"), EACH)
async def test_the_driver_without_the_gateway_passes_the_client_suite(scenario: str, revision: str) -> None:
    await assert_client_passes(scenario, revision, "--direct")


@pytest.mark.parametrize(("scenario", "revision"), sample(EACH, SAMPLE.__contains__))
async def test_a_gateway_passes_the_suite_as_a_client(scenario: str, revision: str) -> None:
    await assert_client_passes(scenario, revision)


@pytest.mark.slow
async def test_a_gateway_that_signs_in_passes_the_suite_as_a_client() -> None:
    await assert_client_passes(SIGNED_IN, REVISIONS[-1])


@pytest.mark.parametrize("revision", REVISIONS)
def test_no_scenario_that_a_client_must_pass_is_left_out(revision: str) -> None:
    required = require("client", revision)
    assert [name for name in required if not is_signed_in(name)] == list(SCENARIOS[revision])
    assert sum(map(is_signed_in, required)) == SCORES_SIGNED_IN[revision]

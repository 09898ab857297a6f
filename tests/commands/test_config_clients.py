"""Clients' blocks of servers: each known key has a meaning here, or gives a warning."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mcp_mirror.settings.policies import Config
from mcp_mirror.settings.upstreams import HttpEndpoint, StdioEndpoint, ToolPolicy, UpstreamPolicy

NO_VARIABLES: Mapping[str, str] = {}

Load = Callable[..., Config]


def only(config: Config) -> UpstreamPolicy:
    (upstream,) = config.upstreams
    return upstream


CLIENTS: list[tuple[str, dict[str, Any], UpstreamPolicy]] = [
    (
        "Claude",
        {"type": "stdio", "command": "x", "env": {"A": "b"}},
        UpstreamPolicy("a", StdioEndpoint("x", env={"A": "b"})),
    ),
    (
        "Claude",
        {"type": "http", "url": "http://x", "headers": {"A": "b"}},
        UpstreamPolicy("a", HttpEndpoint("http://x", {"A": "b"})),
    ),
    ("Cursor", {"url": "http://x", "env": {}}, UpstreamPolicy("a", HttpEndpoint("http://x"))),
    (
        "Cline",
        {"type": "streamableHttp", "url": "http://x", "disabled": False},
        UpstreamPolicy("a", HttpEndpoint("http://x")),
    ),
    (
        "Cline",
        {"transport": {"type": "stdio", "command": "x", "env": {"A": "b"}}, "timeout": 9, "disabled": False},
        UpstreamPolicy("a", StdioEndpoint("x", env={"A": "b"}), timeout=9),
    ),
    (
        "Cline",
        {"transport": {"type": "streamableHttp", "url": "http://x", "headers": {"A": "b"}}},
        UpstreamPolicy("a", HttpEndpoint("http://x", {"A": "b"})),
    ),
    (
        "Roo",
        {"type": "streamable-http", "url": "http://x", "timeout": 120},
        UpstreamPolicy("a", HttpEndpoint("http://x"), timeout=120),
    ),
    (
        "Roo",
        {"type": "sse", "url": "http://x", "disabledTools": ["t"]},
        UpstreamPolicy("a", HttpEndpoint("http://x", legacy_sse=True), deny=("t",)),
    ),
    ("any", {"url": "http://x/a/sse/?k=1"}, UpstreamPolicy("a", HttpEndpoint("http://x/a/sse/?k=1", legacy_sse=True))),
    ("any", {"type": "http", "url": "http://x/sse"}, UpstreamPolicy("a", HttpEndpoint("http://x/sse"))),
    ("any", {"url": "http://x/passe"}, UpstreamPolicy("a", HttpEndpoint("http://x/passe"))),
    ("Windsurf", {"serverUrl": "http://x"}, UpstreamPolicy("a", HttpEndpoint("http://x"))),
    (
        "Gemini",
        {"httpUrl": "http://x", "includeTools": ["t"], "excludeTools": ["u"]},
        UpstreamPolicy("a", HttpEndpoint("http://x"), allow=("t",), deny=("u",)),
    ),
    (
        "Codex",
        {"command": "x", "startup_timeout_sec": 5, "tool_timeout_sec": 7200},
        UpstreamPolicy("a", StdioEndpoint("x"), 7200, 5),
    ),
    (
        "Codex",
        {"url": "http://x", "http_headers": {"A": "b"}, "enabled_tools": ["t"], "disabled_tools": ["u"]},
        UpstreamPolicy("a", HttpEndpoint("http://x", {"A": "b"}), allow=("t",), deny=("u",)),
    ),
    ("any", {"command": "x", "headers": None, "env": None}, UpstreamPolicy("a", StdioEndpoint("x"))),
    ("Copilot", {"type": "local", "command": "x", "tools": ["*"]}, UpstreamPolicy("a", StdioEndpoint("x"))),
    (
        "ours",
        {"command": "x", "tools": {"deny": ["t"]}, "overrides": {"*": {"capture": "never"}}},
        UpstreamPolicy("a", StdioEndpoint("x"), deny=("t",), overrides=(("*", ToolPolicy(capture="never")),)),
    ),
]


@pytest.mark.parametrize(("client", "server", "policy"), CLIENTS, ids=[f"{row[0]} {[*row[1]]}" for row in CLIENTS])
@pytest.mark.parametrize("block", ["mcpServers", "servers", "context_servers", "mcp_servers"])
def test_a_clients_server_is_an_upstream(
    load: Load, client: str, server: dict[str, Any], policy: UpstreamPolicy, block: str
) -> None:
    config = load(json.dumps({block: {"a": server}}))
    assert (client, only(config)) == (client, policy)
    assert config.warnings == ()


@pytest.mark.parametrize(
    "key",
    [
        "autoApprove",
        "alwaysAllow",
        "trust",
        "description",
        "icon",
        "envFile",
        "oauth",
        "auth",
        "dev",
        "gallery",
        "metadata",
        "serverInstructions",
        "requiresOAuth",
        "initTimeout",
        "remote",
        "start_on_launch",
    ],
)
def test_a_clients_key_without_effect_gives_a_warning(load: Load, tmp_path: Path, key: str) -> None:
    config = load(f"mcpServers:\n  a:\n    command: x\n    {key}: [1]\n")
    (warning,) = config.warnings
    assert warning.startswith(f"{tmp_path / 'mirror.yaml'}:4: mcpServers.a.{key}: ")
    assert only(config) == UpstreamPolicy("a", StdioEndpoint("x"))


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("inputs: []\nmcpServers:\n", 1, "inputs: the gateway cannot ask a person"),
        ("mcpServers:\n  a b: {command: x}", 2, "mcpServers.a b: the name of the upstream becomes 'a_b'"),
        ("mcpServers:\n  a: {command: x,\n    headers: {A: b}}", 3, "mcpServers.a.headers: it has no effect here"),
        ("mcpServers:\n  a: {command: x,\n    timeout: 60000}", 3, "mcpServers.a.timeout: over 3600, so it is read as"),
    ],
)
def test_a_value_with_another_meaning_gives_a_warning(load: Load, text: str, line: int, message: str) -> None:
    (warning,) = load(text).warnings
    assert f"mirror.yaml:{line}: {message}" in warning


def test_a_large_timeout_is_in_milliseconds_only_in_client_blocks(load: Load) -> None:
    config = load("upstreams: {a: {command: x, timeout: 5000}}\nmcpServers: {b: {command: x, timeout: 5000}}")
    assert [upstream.timeout for upstream in config.upstreams] == [5000, 5]

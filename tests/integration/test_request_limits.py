"""The largest arguments that an upstream takes: as configured, or as known of its kind and of what runs it."""

from pathlib import Path
from typing import Final

import pytest

from mcp_mirror.settings.upstreams import HttpEndpoint, LocalEndpoint, StdioEndpoint, UpstreamPolicy
from mcp_mirror.upstreams.upstream import find_request_limit

HTTP: Final = HttpEndpoint("http://127.0.0.1")
NODE_LIMIT: Final = 10 << 20
PNPM: Final = 'if [ -x "$basedir/node" ]; then\n  exec "$basedir/node"  "$basedir/../cli.js" "$@"\nfi\n'
WINDOWS: Final = '@ECHO off\r\nIF EXIST "%dp0%\\node.exe" (\r\n  SET "_prog=%dp0%\\node.exe"\r\n)\r\n'


@pytest.mark.parametrize(
    ("endpoint", "configured", "limit"),
    [
        (StdioEndpoint("python"), None, None),
        (StdioEndpoint("/usr/bin/npx"), None, NODE_LIMIT),
        (StdioEndpoint("node.exe"), None, NODE_LIMIT),
        (StdioEndpoint("npx"), 5, 5),
        (StdioEndpoint("python"), 7, 7),
        (StdioEndpoint("/no/such/program"), None, None),
        (HTTP, None, 4 << 20),
        (HTTP, 1 << 30, 1 << 30),
        (LocalEndpoint(), None, None),
    ],
)
def test_an_upstream_takes_what_is_configured_or_known_of_its_kind(
    endpoint: StdioEndpoint | HttpEndpoint | LocalEndpoint, configured: int | None, limit: int | None
) -> None:
    assert find_request_limit(UpstreamPolicy("up", endpoint, max_request_bytes=configured)) == limit


@pytest.mark.parametrize(
    ("script", "is_node"),
    [
        ("#!/usr/bin/env node\nimport x\n", True),
        ("#!/usr/bin/env -S node --no-warnings\n", True),
        ("#!/opt/node/bin/node\r\n", True),
        ("#!/usr/bin/env bun", True),
        (f"#!/bin/sh\n{PNPM}", True),
        (WINDOWS, True),
        ("#!/home/node/venv/bin/python\nimport x\n", False),
        ("#!/usr/bin/env nodeenv\n", False),
        ("#!/bin/sh\nexec /home/node/server\n", False),
        (f"#!/usr/bin/python\n{' ' * 5000}\nexec node\n", False),
        ("\x7fELF\nexec node \n", False),
    ],
)
def test_the_script_of_a_command_tells_which_program_runs_it(tmp_path: Path, script: str, is_node: object) -> None:
    program = tmp_path / "own-server"
    program.write_bytes(script.encode())
    program.chmod(0o755)
    limits = {
        find_request_limit(UpstreamPolicy("up", endpoint))
        for endpoint in (StdioEndpoint(str(program)), StdioEndpoint(program.name, env={"PATH": str(tmp_path)}))
    }
    assert limits == {NODE_LIMIT if is_node else None}

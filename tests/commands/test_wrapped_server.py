"""The name of a wrapped server that its command gives: errors, the log of calls and `usage` contain it."""

import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mcp_mirror.cli.main import app
from mcp_mirror.cli.wrapped_server import WrappedServer, build_wrap_config, derive_name
from mcp_mirror.settings.upstreams import StdioEndpoint


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("npx -y @modelcontextprotocol/server-filesystem@1.0 /home/ann", "server-filesystem"),
        ("uvx mcp-server-git --repository .", "mcp-server-git"),
        ("uvx --python 3.12 mcp-server-git", "mcp-server-git"),
        ("uv run --with pandas weather.py", "weather"),
        ("python -c import_this", "python"),
        ("node --import tsx src/weather.ts", "weather"),
        ("python -m mcp_server_time", "mcp_server_time"),
        ("uv --directory /opt/weather run server.py", "weather"),
        ("/usr/bin/my-server --port 1", "my-server"),
        ("node /opt/notes/chemist.mjs", "chemist"),
        ("node /opt/node_modules/@scope/server-postgres/dist/index.js postgresql://ann@db/shop", "server-postgres"),
        ("node build/src/index.js", "index"),
        ("python3 weather/src/weather_server/__main__.py", "weather_server"),
        ("python /opt/weather/server.py", "weather"),
        (
            "docker run -i --rm -e TOKEN -v /data:/data --name one ghcr.io/github/github-mcp-server stdio",
            "github-mcp-server",
        ),
        ("docker run --rm -i --mount type=bind,src=/a,dst=/b mcp/postgres:latest postgresql://db/x", "postgres"),
        ("podman run -i registry:5000/team/notes@sha256:0a1b", "notes"),
        ("docker exec -i box /app/server", "box"),
        ("docker run -i", "docker"),
        ("/usr/bin/env -i TOKEN=x A=/b npx -y @scope/server-notes", "server-notes"),
        ("env TOKEN=x", "env"),
        ("cmd /d /c npx -y @scope/server-notes", "server-notes"),
        ("cmd.exe /c my-server.exe --port 1", "my-server"),
    ],
)
def test_a_command_names_its_server(command: str, name: str) -> None:
    assert derive_name(WrappedServer(tuple(command.split()), "", (), None)) == name


def test_an_address_names_its_server_by_its_host() -> None:
    assert derive_name(WrappedServer((), "https://api.example.com/mcp", (), None)) == "api.example.com"


def test_an_address_that_is_no_url_is_an_error() -> None:
    ran = CliRunner().invoke(app, ["wrap", "--url", "http://[HOST]/mcp"])
    assert ran.exit_code == 2
    assert ran.stderr.startswith("mcp-mirror: --url: expected an address such as https://example.com/mcp")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["wrap", "--url", "http://x/mcp", "--header", "X-Key: ${NOT_SET}"], "--header X-Key: the environment"),
        (["wrap", "--url", "http://x/mcp", "--header", "X-Key: a\nb"], "--header"),
        (["wrap", "--url", "http://x/mcp", "--sse", "--capture", "some"], "--capture: expected one of"),
        (["wrap", "--inline-budget", "-1", "--", "x"], "--inline-budget: expected"),
        (["wrap", "--name", "a b", "--", "x"], "--name: expected a name"),
        (["wrap", "--suffix", "a b", "--", "x"], "--suffix: expected"),
        (["wrap", "--", "\0"], "the command: "),
        (["wrap", "--set", "max_request_bytes", "--", "x"], "--set must be KEY=VALUE"),
        (["wrap", "--set", "max_request_bytes=much", "--", "x"], "--set max_request_bytes: expected"),
        (["wrap", "--set", "max_request_byte=1", "--", "x"], "--set max_request_byte: unknown key"),
        (["wrap", "--set", "mirror.answer_budgets=1", "--", "x"], "--set mirror.answer_budgets: unknown key"),
        (["wrap", "--set", "store=disk", "--set", "store.ttl=1d", "--", "x"], "--set store.ttl: "),
        (["wrap", "--set", "mirror.preview=no", "--name", "a b", "--", "x"], "--name: expected a name"),
        (["memory", "--set", "nothing.here=1"], "--set nothing.here: unknown key"),
        (["wrap"], "Give the server's command"),
        (["wrap", "--set", "enabled=false", "--", "x"], "--set enabled: "),
    ],
)
def test_an_error_names_the_option_and_answers_the_client(words: list[str], option: str) -> None:
    request = '{"jsonrpc":"2.0","id":7,"method":"initialize"}'
    messages = ["no JSON", '{"jsonrpc":"2.0","method":"notifications/initialized"}', request]
    ran = CliRunner().invoke(app, words, input="\n".join(messages))
    assert ran.exit_code == 2
    assert ran.stderr.startswith(f"mcp-mirror: {option}")
    [line] = ran.stdout.splitlines()
    assert json.loads(line)["id"] == 7
    assert json.loads(line)["error"]["message"].startswith(option)


def test_the_first_listing_waits_while_a_server_is_installed() -> None:
    config = build_wrap_config("any", {"command": "npx"}, {"capture": "auto"}, None, {})
    assert (config.mirror.startup_wait, config.mirror.capture) == (25, "auto")


def test_settings_are_keys_of_the_server_or_of_a_section() -> None:
    of_server = ["max_request_bytes=32MiB", "overrides.*.timeout=5"]
    of_sections = ["mirror.answer_budget=${BUDGET}", "mirror.preview=false", 'memory_tools.deny=["memory_*"]']
    given = [*of_server, *of_sections]
    config = build_wrap_config("any", {"command": "npx"}, {}, None, {"BUDGET": "9000"}, given)
    [upstream] = config.upstreams
    assert (upstream.max_request_bytes, upstream.tool_policy("build").timeout) == (32 << 20, 5)
    assert (config.mirror.answer_budget, config.mirror.preview) == (9000, False)
    assert (config.memory_tools.set, config.memory_tools.deny) == ("minimal", ("memory_*",))


@pytest.mark.parametrize("server", [{"command": "npx"}, {"url": "http://x/mcp"}])
def test_a_call_may_take_as_long_as_the_client_waits(server: dict[str, str]) -> None:
    config = build_wrap_config("any", server, {}, None, {})
    [upstream] = config.upstreams
    assert upstream.tool_policy("build").timeout == 86_400
    assert upstream.timeout == 60  # other requests
    assert config.server.answer_timeout == 86_400  # requests to the user during a call


def test_a_setting_replaces_what_the_command_chooses() -> None:
    given = ["timeout=90", "server.answer_timeout=7", 'env={"LEVEL": "debug"}']
    config = build_wrap_config("any", {"command": "npx"}, {}, None, {"HOME": "/h", "LEVEL": "info"}, given)
    [upstream] = config.upstreams
    assert (upstream.timeout, upstream.tool_policy("build").timeout, config.server.answer_timeout) == (90, None, 7)
    assert isinstance(upstream.endpoint, StdioEndpoint)
    assert upstream.endpoint.env == {"HOME": "/h", "LEVEL": "debug"}


def test_settings_of_one_tool_leave_the_time_of_all_calls() -> None:
    given = ['overrides={"read": {"capture": "never"}, "search": {"timeout": 5}}']
    [upstream] = build_wrap_config("any", {"command": "npx"}, {}, None, {}, given).upstreams
    assert upstream.tool_policy("read").capture == "never"
    assert [upstream.tool_policy(name).timeout for name in ("read", "search", "build")] == [86_400, 5, 86_400]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps the current folder of a process")
def test_a_server_is_wrapped_although_the_current_folder_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "removed"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    config = build_wrap_config("files", {"command": "npx"}, {}, tmp_path, os.environ)
    assert config.store.path == str(tmp_path)

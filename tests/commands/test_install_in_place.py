"""`mcp-mirror install` in place: servers are wrapped where they are, and nothing else in a client's file changes."""

import json
import os
import re
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from mcp_mirror.cli.install import files
from mcp_mirror.cli.install.clients import CLIENTS, Machine
from mcp_mirror.cli.install.entries import read_own_command
from mcp_mirror.cli.install.files import BACKUP_SUFFIX
from mcp_mirror.cli.install.formats.json_text import JsonDocument
from mcp_mirror.cli.install.in_place import plan_unwrapping, plan_wrapping
from mcp_mirror.cli.install.plans import apply_installation, apply_removal
from mcp_mirror.cli.install.targets import find_named
from mcp_mirror.cli.main import app

PROGRAM = "/opt/mcp-mirror"
PREFIX = ["wrap", "--name", "files", "--"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    for name, folder in (("HOME", ""), ("XDG_CONFIG_HOME", ".config")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    for name in ("CODEX_HOME", "CLAUDE_CONFIG_DIR", "SECRET"):
        monkeypatch.delenv(name, raising=False)
    for module in ("commands", "merge"):
        monkeypatch.setattr(f"mcp_mirror.cli.install.{module}.find_program", lambda: [PROGRAM])


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Writes a file below the home folder."""

    def write(path: str, text: str) -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())
        return file

    return write


Write = Callable[[str, str], Path]


def run(*args: str, answers: str | None = None) -> Result:
    return CliRunner().invoke(app, args, input=answers)


def parse(file: Path) -> Any:
    text = file.read_text("utf-8-sig")
    match file.suffix:
        case ".toml":
            return tomllib.loads(text)
        case ".yaml":
            return yaml.safe_load(text)
        case _:
            return json.loads(text)


FILES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "claude-desktop": (".config/Claude/claude_desktop_config.json", "mcpServers", ("command", "args")),
    "claude-code": (".claude.json", "mcpServers", ("command", "args")),
    "cursor": (".cursor/mcp.json", "mcpServers", ("command", "args")),
    "vscode": (".config/Code/User/mcp.json", "servers", ("command", "args")),
    "windsurf": (".codeium/windsurf/mcp_config.json", "mcpServers", ("command", "args")),
    "codex": (".codex/config.toml", "mcp_servers", ("command", "args")),
    "gemini": (".gemini/settings.json", "mcpServers", ("command", "args")),
    "zed": (".config/zed/settings.json", "context_servers", ("command", "args")),
    "cline": (".cline/data/settings/cline_mcp_settings.json", "mcpServers", ("command", "args")),
    "roo": (
        ".config/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
        "mcpServers",
        ("command", "args"),
    ),
    "goose": (".config/goose/config.yaml", "extensions", ("cmd", "args")),
    "opencode": (".config/opencode/opencode.json", "mcp", ("command", "")),
    "lm-studio": (".lmstudio/mcp.json", "mcpServers", ("command", "args")),
    "junie": (".junie/mcp/mcp.json", "mcpServers", ("command", "args")),
    "continue": (".continue/config.yaml", "mcpServers", ("command", "args")),
}
OTHER = {"env": {"KEY": "k"}, "cwd": "/work", "timeout": 9, "trust": True, "alwaysAllow": ["read"]}


def render(name: str, block: str, entry: dict[str, Any]) -> str:
    """The file of a client with one server."""
    if name == "codex":
        table = "\n".join(f"{key} = {json.dumps(value)}" for key, value in entry.items() if key != "env")
        return f'# mine\nmodel = "m"\n\n[{block}.files]\n{table}\n\n[{block}.files.env]\nKEY = "k"\n'
    if name == "continue":
        return yaml.safe_dump({"name": "me", block: [{"name": "files", **entry}]}, sort_keys=False)
    if name == "goose":
        return yaml.safe_dump({"GOOSE_MODEL": "m", block: {"files": entry}}, sort_keys=False)
    return json.dumps({"other": 1, block: {"files": entry}}, indent=2)


@pytest.mark.parametrize("name", [client.name for client in CLIENTS])
def test_a_server_of_each_client_is_wrapped_and_restored(name: str, write: Write) -> None:
    path, block, (command, args) = FILES[name]
    entry = {"type": "local", "command": ["npx", "-y", "p"], **OTHER} if not args else {
        command: "npx", args: ["-y", "p"], **OTHER
    }  # fmt: skip
    file = write(path, render(name, block, entry))
    before = file.read_bytes()
    ran = run("install", name)
    assert ran.exit_code == 0, ran.output
    [wrapped] = parse(file)[block] if name == "continue" else parse(file)[block].values()
    expected = {args: [*PREFIX, "npx", "-y", "p"], command: PROGRAM} if args else {
        command: [PROGRAM, *PREFIX, "npx", "-y", "p"]
    }  # fmt: skip
    assert {key: wrapped[key] for key in expected} == expected
    assert {key: wrapped[key] for key in OTHER} == OTHER
    assert run("install", name).exit_code == 0
    assert "wrapped: files" in run("status").stdout
    assert run("uninstall", name).exit_code == 0
    assert file.read_bytes() == before
    assert not file.with_name(file.name + BACKUP_SUFFIX).exists()


REMOTE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "claude-code": (
        {"type": "http", "url": "https://e.com/mcp", "headers": {"Authorization": "Bearer s"}, "alwaysLoad": True},
        {"type": "stdio", "alwaysLoad": True},
    ),
    "cursor": ({"url": "https://e.com/mcp", "headers": {"Authorization": "Bearer ${env:S}"}}, {}),
    "windsurf": ({"serverUrl": "https://e.com/mcp", "headers": {"Authorization": "Bearer s"}}, {}),
    "gemini": (
        {"httpUrl": "https://e.com/mcp", "headers": {"Authorization": "Bearer $S"}, "trust": True},
        {"trust": True},
    ),
    "opencode": (
        {"type": "remote", "url": "https://e.com/mcp", "headers": {"Authorization": "Bearer {env:S}"}, "enabled": True},
        {"type": "local", "enabled": True},
    ),
    "goose": (
        {"type": "streamable_http", "uri": "https://e.com/mcp", "headers": {"Authorization": "Bearer s"}, "timeout": 9},
        {"type": "stdio", "timeout": 9},
    ),
    "continue": (
        {"type": "streamable-http", "url": "https://e.com/mcp", "requestOptions": {"headers": {"Authorization": "s"}}},
        {"type": "stdio"},
    ),
    "roo": (
        {"type": "streamable-http", "url": "https://e.com/mcp", "headers": {"Authorization": "s"}, "disabled": False},
        {"type": "stdio", "disabled": False},
    ),
}


@pytest.mark.parametrize("name", REMOTE)
def test_a_remote_server_is_wrapped_without_secrets_in_arguments(name: str, write: Write) -> None:
    entry, arguments = REMOTE[name]
    path, block, _ = FILES[name]
    file = write(path, render(name, block, entry))
    before = parse(file)
    assert run("install", name).exit_code == 0
    [wrapped] = parse(file)[block] if name == "continue" else parse(file)[block].values()
    env = next(wrapped.pop(key) for key in ("env", "envs", "environment") if key in wrapped)
    command = next(wrapped.pop(key) for key in ("command", "cmd") if key in wrapped)
    words = command if isinstance(command, list) else [command, *wrapped.pop("args")]
    headers = entry.get("headers") or entry["requestOptions"]["headers"]
    assert words == [
        PROGRAM, "wrap", "--name", "files", "--url", "https://e.com/mcp",
        "--header-env", "Authorization=MCP_MIRROR_HEADER_1",
    ]  # fmt: skip
    assert env == {"MCP_MIRROR_HEADER_1": headers["Authorization"]}
    wrapped.pop("name", None)
    assert wrapped == arguments
    file.write_text(file.read_text() + "\n")  # the file changed, so that the entry is restored on its own
    Path(f"{file}{BACKUP_SUFFIX}").unlink()
    assert run("uninstall", name).exit_code == 0
    assert parse(file) == before


def test_a_goose_server_with_variables_in_headers_is_left(write: Write) -> None:
    text = "extensions:\n  a:\n    type: streamable_http\n    uri: https://e.com/mcp\n    headers: {A: Bearer $TOKEN}\n"
    file = write(".config/goose/config.yaml", text)
    assert "not wrapped: a, because the client replaces the variables in its headers" in run("install", "goose").stderr
    assert file.read_text() == text


def test_codex_forwards_the_variables_of_headers(write: Write) -> None:
    text = (
        '[mcp_servers.web]\nurl = "https://e.com/mcp"\nbearer_token_env_var = "TOKEN"\nenv_http_headers = {X = "Y"}\n'
    )
    file = write(".codex/config.toml", text)
    assert run("install", "codex").exit_code == 0
    web = parse(file)["mcp_servers"]["web"]
    assert web["args"][5:] == ["--header", "X: ${Y}", "--header", "Authorization: Bearer ${TOKEN}"]
    assert web["env_vars"] == ["Y", "TOKEN"]
    Path(f"{file}{BACKUP_SUFFIX}").unlink()
    assert run("uninstall", "codex").exit_code == 0
    assert parse(file) == tomllib.loads(text)


def test_an_address_with_a_secret_moves_to_the_environment(write: Write) -> None:
    file = write(".cursor/mcp.json", '{"mcpServers": {"web": {"url": "https://e.com/sse?key=s"}}}')
    before = file.read_bytes()
    assert run("install", "cursor").exit_code == 0
    web = parse(file)["mcpServers"]["web"]
    assert web["args"][3:] == ["--url", "${MCP_MIRROR_URL}", "--sse"]
    assert web["env"] == {"MCP_MIRROR_URL": "https://e.com/sse?key=s"}
    Path(f"{file}{BACKUP_SUFFIX}").unlink()
    assert run("uninstall", "cursor").exit_code == 0
    assert parse(file) == json.loads(before)


@pytest.mark.parametrize(("more", "options"), [({}, ["--sse"]), ({"type": "streamableHttp"}, [])])
def test_cline_reads_an_address_without_a_type_as_sse(more: Any, options: list[str], write: Write) -> None:
    entry = {"url": "http://localhost:1/events", **more}
    file = write(".cline/data/settings/cline_mcp_settings.json", json.dumps({"mcpServers": {"web": entry}}))
    assert run("install", "cline").exit_code == 0
    assert parse(file)["mcpServers"]["web"]["args"][3:] == ["--url", entry["url"], *options]
    file.with_name(file.name + BACKUP_SUFFIX).unlink()
    assert run("uninstall", "cline").exit_code == 0
    assert parse(file)["mcpServers"]["web"] == entry


CLINE_REMOTE = {"type": "streamableHttp", "url": "https://e.com/mcp", "headers": {"A": "b"}}


@pytest.mark.parametrize("has_backup", [True, False])
@pytest.mark.parametrize(
    ("transport", "wrapped"),
    [
        (
            {"type": "stdio", "command": "npx", "args": ["p"], "env": {"K": "v"}, "cwd": "/work"},
            {"type": "stdio", "command": PROGRAM, "args": [*PREFIX, "npx", "p"], "env": {"K": "v"}, "cwd": "/work"},
        ),
        (
            CLINE_REMOTE,
            {
                "type": "stdio",
                "command": PROGRAM,
                "args": [*PREFIX[:3], "--url", "https://e.com/mcp", "--header-env", "A=MCP_MIRROR_HEADER_1"],
                "env": {"MCP_MIRROR_HEADER_1": "b"},
            },
        ),
    ],
)
def test_a_cline_server_with_a_transport_is_wrapped(
    transport: Any, wrapped: Any, *, has_backup: bool, write: Write
) -> None:
    servers = {"files": {"transport": transport, "timeout": 9}, "other": {"command": "x"}}
    file = write(FILES["cline"][0], json.dumps({"mcpServers": servers}, indent=2))
    ran = run("install", "cline", "--memory")
    assert "wrapped: files, other" in ran.stderr, ran.stderr
    found = parse(file)["mcpServers"]
    assert found["files"] == {"transport": wrapped, "timeout": 9}
    assert found["mcp-mirror"] == {"command": PROGRAM, "args": ["memory"]}
    assert "wrapped: files, other" in run("status").stdout
    if not has_backup:
        Path(f"{file}{BACKUP_SUFFIX}").unlink()
    assert run("uninstall", "cline").exit_code == 0
    assert parse(file)["mcpServers"]["files"] == servers["files"]


def test_cline_servers_with_a_transport_are_left_for_the_same_reasons(write: Write) -> None:
    servers = {
        "off": {"transport": {"type": "stdio", "command": "x"}, "disabled": True},
        "web": {"transport": CLINE_REMOTE, "oauth": {"tokens": {"access_token": "s"}}},
        "mine": {"transport": {"type": "stdio", "command": "mcp-mirror", "args": ["memory"]}},
        "odd": {"transport": {}},
    }
    file = write(FILES["cline"][0], json.dumps({"mcpServers": servers}))
    left = run("install", "cline").stderr
    for reason in ("off, because it is disabled", "web, because the client signs in", "odd, because it has neither"):
        assert f"not wrapped: {reason}" in left
    assert "  memory tools: mine\n" in left
    assert parse(file)["mcpServers"] == servers
    assert run("uninstall", "cline").exit_code == 0
    assert sorted(parse(file)["mcpServers"]) == ["odd", "off", "web"]


@pytest.mark.parametrize(("kind", "options"), [("http", []), ("sse", ["--sse"])])
def test_the_older_key_for_the_transport_of_a_cline_server_counts(kind: str, options: list[str], write: Write) -> None:
    entry = {"url": "http://localhost:1/events", "transportType": kind}
    file = write(FILES["cline"][0], json.dumps({"mcpServers": {"web": entry}}))
    assert run("install", "cline").exit_code == 0
    wrapped = parse(file)["mcpServers"]["web"]
    assert wrapped["args"][3:] == ["--url", entry["url"], *options]
    assert wrapped["transportType"] == "stdio"  # Cline reads no server of a file with another one


def test_streamable_http_at_a_path_that_ends_with_sse_is_kept(write: Write) -> None:
    entry = {"type": "http", "url": "https://e.com/sse", "headers": {"A": "b"}}
    file = write(".cursor/mcp.json", json.dumps({"mcpServers": {"web": entry}}))
    assert run("install", "cursor").exit_code == 0
    assert parse(file)["mcpServers"]["web"]["args"][3:6] == ["--url", "https://e.com/sse", "--no-sse"]
    Path(f"{file}{BACKUP_SUFFIX}").unlink()
    assert run("uninstall", "cursor").exit_code == 0
    assert parse(file)["mcpServers"]["web"] == entry


LEFT: dict[str, tuple[dict[str, Any], str]] = {
    "web socket": ({"type": "ws", "url": "wss://e.com"}, "WebSocket"),
    "an input": ({"command": "x", "env": {"K": "${input:key}"}}, "asks a person for ${input:...}; write ${env:NAME}"),
    "disabled": ({"command": "x", "disabled": True}, "it is disabled; enable it in the client"),
    "not enabled": ({"command": "x", "enabled": False}, "it is disabled"),
    "an extension": ({"source": "extension", "settings": {}}, "part of the client"),
    "nothing": ({}, "neither a command nor an address"),
    "a sign-in": ({"url": "https://e.com/mcp", "oauth": {"clientId": "c"}}, "the client signs in"),
    "no credentials": ({"url": "https://e.com/mcp"}, "may sign in"),
    "a command line": ({"command": "npx -y p"}, "write them in 'args'"),
    "a list": ({"command": ["x"], "args": "y"}, ""),
    "a placeholder as host": ({"url": "http://[HOST]/mcp", "headers": {"A": "b"}}, "its address has an unknown form"),
    "a list as environment": ({"url": "http://localhost/", "env": ["A=b"]}, "its environment has an unknown form"),
    "no header value": ({"url": "http://localhost/", "headers": {"A": None}}, "its headers have an unknown form"),
    "a wrong header name": ({"url": "http://localhost/", "headers": {"A=B": "c"}}, "its headers have an unknown form"),
    "the gateway": ({"command": "uvx", "args": ["mcp-mirror@latest", "serve"]}, "mcp-mirror itself (serve)"),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_cannot_be_wrapped_is_left_with_its_reason(case: str, write: Write) -> None:
    entry, reason = LEFT[case]
    servers = {"it": entry, "files": {"command": "npx", "env": {"K": "${NOT_SET}"}}}
    file = write(".cursor/mcp.json", json.dumps({"mcpServers": servers}))
    ran = run("install", "cursor")
    assert ran.exit_code == 0, ran.output
    found = parse(file)["mcpServers"]
    assert found["files"]["args"] == [*PREFIX, "npx"]
    if reason:
        assert found["it"] == entry
        line = re.compile(rf"^  not wrapped: it, because .*{re.escape(reason)}", re.MULTILINE)
        assert line.search(ran.stderr)
        assert case == "the gateway" or line.search(run("status").stdout)


@pytest.mark.parametrize(
    "entry", [{"command": "npx", "args": ["x"]}, {"url": "http://localhost/", "headers": {"A": "b"}}]
)
def test_settings_of_a_wrapped_entry_stay_until_it_is_unwrapped(entry: dict[str, Any], write: Write) -> None:
    file = write(".cursor/mcp.json", json.dumps({"mcpServers": {"it": entry}}))
    assert run("install", "cursor").exit_code == 0
    settings = '"wrap", "--set", "memory_tools.allow=[]", "--set", "mirror.answer_budget=9"'
    file.write_text(file.read_text().replace('"wrap"', settings))
    edited = file.read_text()
    assert run("install", "cursor").exit_code == 0
    assert file.read_text() == edited
    assert run("uninstall", "cursor").exit_code == 0
    assert parse(file)["mcpServers"]["it"] == entry


def test_an_installation_reports_wrapped_servers_without_program(write: Write) -> None:
    moved = {"command": "/old/bin/mcp-mirror", "args": ["wrap", "--", "npx"]}
    write(".cursor/mcp.json", json.dumps({"mcpServers": {"moved": moved, "new": {"command": "npx"}}}))
    problem = "  problem: /old/bin/mcp-mirror does not exist; run `mcp-mirror uninstall` and `install` again\n"
    ran = run("install", "cursor")
    assert problem in ran.stderr
    assert f"problem: {PROGRAM}" not in ran.stderr
    assert problem in run("install", "cursor", "--dry-run").stderr


def test_a_server_that_is_wrapped_already_is_named_as_such(write: Write) -> None:
    write(".cursor/mcp.json", json.dumps({"mcpServers": {"it": {"command": "npx"}}}))
    assert run("install", "cursor").exit_code == 0
    ran = run("install", "cursor")
    assert "  wrapped already: it\n" in ran.stderr
    assert "not wrapped" not in ran.stderr


def test_a_named_server_is_wrapped_even_if_it_may_need_a_sign_in(write: Write) -> None:
    servers = {"web": {"url": "https://e.com/mcp"}, "files": {"command": "npx"}}
    file = write(".cursor/mcp.json", json.dumps({"mcpServers": servers}))
    ran = run("install", "cursor", "--server", "web")
    assert ran.exit_code == 0
    assert "not wrapped: files, because it was not chosen" in ran.stderr
    found = parse(file)["mcpServers"]
    assert found["web"]["args"] == ["wrap", "--name", "web", "--url", "https://e.com/mcp"]
    assert found["files"] == {"command": "npx"}
    assert "has no server 'other'" in run("install", "cursor", "--server", "other").stderr


def test_a_gateway_of_a_project_reads_the_configuration_there(write: Write, tmp_path: Path) -> None:
    config = write("other/mcp-mirror.yaml", "upstreams: {files: {command: npx}}")
    gateway = {"command": "mcp-mirror", "args": ["serve"]}
    write(".claude.json", json.dumps({"projects": {str(tmp_path / "other"): {"mcpServers": {"mirror": gateway}}}}))
    assert f"with 1 server from {config}\n" in run("status", "claude-code").stdout


def test_of_several_servers_each_must_be_in_a_file_of_the_client(write: Write) -> None:
    write(".codeium/windsurf/mcp_config.json", json.dumps({"mcpServers": {"files": {"command": "npx"}}}))
    file = write(".codeium/mcp_config.json", json.dumps({"mcpServers": {"git": {"command": "uvx"}}}))
    ran = run("install", "windsurf", "--server", "git", "--server", "gti")
    assert "No file of windsurf has a server 'gti'" in ran.stderr
    assert parse(file)["mcpServers"]["git"] == {"command": "uvx"}
    assert run("install", "windsurf", "--server", "git", "--server", "files").exit_code == 0
    assert parse(file)["mcpServers"]["git"]["args"][0] == "wrap"


def test_a_server_that_is_written_twice_is_left(write: Write) -> None:
    text = (
        '{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}, "b": {"command": "z", "args": [], "args": []}}}'
    )
    file = write(".cursor/mcp.json", text)
    ran = run("install", "cursor")
    assert "not wrapped: a, because the key 'a' appears twice" in ran.stderr
    assert "not wrapped: b, because the key 'args' appears twice" in ran.stderr
    assert file.read_text() == text


def test_yaml_with_anchors_is_left(write: Write) -> None:
    anchors = "extensions:\n  a: &x\n    cmd: x\n    type: stdio\n  b: *x\n  c:\n    <<: *x\n"
    text = anchors + "  d: {cmd: y, args: [z], type: stdio}\n"
    file = write(".config/goose/config.yaml", text)
    ran = run("install", "goose")
    assert ran.exit_code == 0, ran.output
    assert ran.stderr.count("YAML a") == 3
    assert file.read_text() == text.replace(
        "cmd: y, args: [z]", f'cmd: {PROGRAM}, args: [wrap, "--name", d, "--", y, z]'
    )


@pytest.mark.parametrize("name", ["123", "yes", "null", "1.5", "2024-01-01", "0x10"])
def test_yaml_keys_are_names_whatever_yaml_reads_them_as(name: str, write: Write) -> None:
    text = f"extensions:\n  {name}:\n    cmd: npx\n    args: [a]\n"
    file = write(".config/goose/config.yaml", text)
    assert f"wrapped: {name}" in run("install", "goose").stderr
    assert f"wrapped: {name}" in run("status", "goose").stdout
    assert run("uninstall", "goose").exit_code == 0
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (".config/goose/config.yaml", "x: &x\n  y: *x\nextensions:\n  a: {cmd: y, args: []}\n"),
        (".cursor/mcp.json", '{"x": %s, "mcpServers": {"a": {"command": "y"}}}' % ("[" * 500 + "]" * 500)),
    ],
    ids=["an alias to itself", "many levels"],
)
def test_files_too_deep_to_compare_are_left(path: str, text: str, write: Write) -> None:
    file = write(path, text)
    ran = run("install", str(file))
    assert ran.exit_code == 0, ran.output
    assert "not wrapped: a, because the text has a form that cannot be edited safely" in ran.stderr
    assert file.read_text() == text


REMOTE_TOML = """\
[mcp_servers.web]
url = "https://e.com/mcp"
http_headers = { "X-A" = "b" }

# Comment of the next server
[mcp_servers.files]
command = "npx"
[mcp_servers.files.env]
A = "b"

# Comment of the projects
[projects."/x"]
trust_level = "trusted"
"""


def test_codex_file_that_changed_since_is_restored_with_comments(write: Write) -> None:
    file = write(".codex/config.toml", REMOTE_TOML)
    assert run("install", "codex", "--memory").exit_code == 0
    assert re.search(r"env = .*\n\n# Comment of the next server\n\[mcp_servers.files\]", file.read_text())
    added = '\n# Added by hand\n[projects."/y"]\ntrust_level = "trusted"\n'
    file.write_text(file.read_text() + added)
    ran = run("uninstall", "codex")
    assert ran.exit_code == 0, ran.output
    assert file.read_text() == REMOTE_TOML + added


def test_a_codex_server_whose_tables_are_apart_is_left(write: Write) -> None:
    text = '[mcp_servers.web]\nurl = "https://e.com/mcp"\n[tui]\nx = 1\n[mcp_servers.web.http_headers]\nA = "b"\n'
    file = write(".codex/config.toml", text)
    ran = run("install", "codex")
    assert (ran.exit_code, file.read_text()) == (0, text), ran.output
    assert "not wrapped: web, because the text has a form that cannot be edited safely" in ran.stderr


APART = "\n[z.a]\nx = 1\n\n[[array]]\nx = 0\n\n[z.b]\nx = 1\n"
"""`tomlkit` would move the array behind the second table."""


def test_a_file_whose_servers_are_all_left_does_not_change(write: Write) -> None:
    text = f'mcp_servers.a.command = "x"\n{APART}'
    file = write(".codex/config.toml", text)
    ran = run("install", "codex", "--memory")
    assert ran.exit_code == 0, ran.output
    assert "not wrapped: a, because the text has a form that cannot be edited safely" in ran.stderr
    assert file.read_text() == text
    assert not file.with_name(file.name + BACKUP_SUFFIX).exists()


def test_other_tables_of_codex_file_stay_in_their_order(write: Write) -> None:
    first = '[mcp_servers.a]\ncommand = "x"\n\n[mcp_servers.a.env]\nA = "b"\n'
    last = '\n[mcp_servers.b]\nurl = "http://localhost:1/mcp"\n'
    file = write(".codex/config.toml", first + APART + last)
    assert run("install", "codex", "--memory").exit_code == 0
    assert f'\n[mcp_servers.a.env]\nA = "b"\n{APART}\n[mcp_servers.b]\ncommand = ' in file.read_text()
    file.write_text(file.read_text() + "\n[later]\n")
    assert run("uninstall", "codex").exit_code == 0
    assert file.read_text() == first + APART + last + "\n[later]\n"


@pytest.mark.parametrize("between", ["", '\n# Of a tool\n[mcp_servers.web.tools.a]\napproval_mode = "approve"\n'])
def test_comments_after_the_headers_of_a_codex_server_stay(between: str, write: Write) -> None:
    headers = '\n# Of the headers\n[mcp_servers.web.http_headers]\n# mine\nA = "b"\n'
    server = f'[mcp_servers.web]\nurl = "https://e.com/mcp"\n{between}{headers}'
    rest = "\n# Of the next table\n[tui]\nnotifications = true\n"
    file = write(".codex/config.toml", server + rest)
    assert run("install", "codex").exit_code == 0
    assert file.read_text().endswith(between + rest)
    assert "Of the headers" not in file.read_text()
    file.write_text(file.read_text() + "later = 1\n")
    assert run("uninstall", "codex").exit_code == 0
    assert file.read_text() == server + rest + "later = 1\n"


def test_arrays_of_tables_in_codex_file_stay(write: Write) -> None:
    array = '[[skills.config]]\npath = "x"\n'
    text = f'{array}\n[mcp_servers.web]\nurl = "http://localhost:1/mcp"\n\n{array}'
    file = write(".codex/config.toml", text)
    assert run("install", "codex", "--memory").exit_code == 0
    assert parse(file)["mcp_servers"]["web"]["args"] == ["wrap", "--name", "web", "--url", "http://localhost:1/mcp"]
    file.write_text(added := file.read_text().replace("x", "y", 1))
    assert added.startswith(array.replace("x", "y"))
    assert run("uninstall", "codex").exit_code == 0
    assert file.read_text() == text.replace("x", "y", 1)


@pytest.mark.parametrize(
    ("path", "server", "memory"),
    [
        (
            ".codex/config.toml",
            '[mcp_servers.b]\ncommand = "y"\n',
            '\n[mcp_servers.mcp-mirror]\ncommand = "mcp-mirror"\nargs = ["memory"]\n',
        ),
        (
            ".continue/config.yaml",
            "mcpServers:\n  - name: b\n    command: y\n",
            "  - name: mcp-mirror\n    command: mcp-mirror\n    args: [memory]\n",
        ),
        (
            ".config/goose/config.yaml",
            "extensions:\n  b: {type: builtin}\n",
            "  mcp-mirror: {cmd: mcp-mirror, args: [memory]}\n",
        ),
    ],
    ids=["toml", "list", "mapping"],
)
def test_memory_tools_are_removed_without_a_wrapped_server_too(
    path: str, server: str, memory: str, write: Write
) -> None:
    write(path + BACKUP_SUFFIX, server)
    file = write(path, server + memory)
    assert run("uninstall", str(file)).exit_code == 0
    assert parse(file) == (yaml.safe_load(server) if file.suffix == ".yaml" else tomllib.loads(server))


def test_comments_beside_the_memory_tools_stay(write: Write) -> None:
    text = '{"mcpServers": {\n  // before\n  "a": {"command": "x"},\n}}\n'
    file = write(".cursor/mcp.json", text)
    assert run("install", "cursor", "--memory").exit_code == 0
    file.write_text(file.read_text() + "// added\n")
    assert run("uninstall", "cursor").exit_code == 0
    assert file.read_text() == text + "// added\n"


def test_servers_of_the_same_name_are_all_restored(write: Write) -> None:
    text = "mcpServers:\n  - name: a\n    command: x\n  - name: a\n    command: y\n    args: [z]\n"
    file = write(".continue/config.yaml", text)
    assert run("install", "continue").exit_code == 0
    for more in ("", "# added\n"):
        file.write_text(file.read_text() + more)
        assert run("uninstall", "continue").exit_code == 0
        assert file.read_text() == text + more
        assert run("install", "continue").exit_code == 0


@pytest.mark.parametrize("options", [[], ["--"], ["-v", "--capture", "always", "--name=q"], ["--store", "/s", "--"]])
def test_a_server_that_was_wrapped_by_hand_is_unwrapped(options: list[str], write: Write) -> None:
    entry = {"command": "mcp-mirror", "args": ["wrap", *options, "npx", "-y", "p"]}
    file = write(".cursor/mcp.json", json.dumps({"mcpServers": {"a": entry}}))
    assert run("uninstall", "cursor").exit_code == 0
    assert parse(file)["mcpServers"]["a"] == {"command": "npx", "args": ["-y", "p"]}


@pytest.mark.parametrize("args", [["wrap"], ["wrap", "--"], ["wrap", "--name", "a"]])
def test_a_wrapped_entry_without_a_server_stays(args: list[str], write: Write) -> None:
    servers = {"a": {"command": "mcp-mirror", "args": args}, "b": {"command": "x"}}
    file = write(".cursor/mcp.json", json.dumps({"mcpServers": servers}))
    for command in ("install", "uninstall"):
        ran = run(command, "cursor")
        assert ran.exit_code == 0, ran.output
        assert parse(file)["mcpServers"]["a"] == servers["a"]
    assert parse(file)["mcpServers"] == servers


def test_servers_are_wrapped_where_the_memory_tools_cannot_be_added(write: Write) -> None:
    file = write(".codex/config.toml", 'mcp_servers = { a = { command = "x", args = [] } }\n')
    ran = run("install", "codex", "--memory")
    assert ran.exit_code == 0, ran.output
    assert "not added: the memory tools, because the text has a form" in ran.stderr
    assert parse(file)["mcp_servers"]["a"]["command"] == PROGRAM


def test_claude_code_servers_of_projects_are_wrapped(write: Write) -> None:
    project = {"mcpServers": {"files": {"command": "a"}}, "allowedTools": []}
    content = {"mcpServers": {"files": {"command": "b"}}, "projects": {"/x": project, "/y": {}}, "numStartups": 1}
    file = write(".claude.json", json.dumps(content))
    ran = run("install", "claude-code", "--memory")
    assert "wrapped: files, files (in /x)" in ran.stderr
    now = parse(file)
    assert now["projects"]["/x"]["mcpServers"]["files"]["args"][-1] == "a"
    assert now["mcpServers"]["mcp-mirror"] == {"command": PROGRAM, "args": ["memory"]}
    now["numStartups"] = 2  # Claude Code writes its file at every start
    file.write_text(json.dumps(now, indent=2))
    assert "changed since" not in run("status").stdout
    assert run("uninstall", "claude-code").exit_code == 0
    assert parse(file) == {**content, "numStartups": 2}


def test_a_file_is_parsed_a_few_times_however_many_servers_it_has(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    parse_json = JsonDocument.__init__

    def count(self: JsonDocument, data: bytes) -> None:
        parsed.append(data)
        parse_json(self, data)

    monkeypatch.setattr(JsonDocument, "__init__", count)
    projects = {f"/{number}": {"mcpServers": {"a": {"command": "x"}}} for number in range(50)}
    file = write(".claude.json", json.dumps({"projects": projects}))
    before = file.read_bytes()
    for words in (["install", "claude-code", "--memory"], ["status"], ["uninstall", "claude-code"]):
        del parsed[:]
        assert run(*words).exit_code == 0
        assert len(parsed) <= 10
        file.write_text(file.read_text() + "\n")
    assert (file.read_bytes().rstrip(), len(parse(file)["projects"])) == (before, 50)


def test_opencode_knows_both_versions_of_its_file(write: Write) -> None:
    second = {"mcp": {"timeout": 5, "servers": {"files": {"type": "local", "command": ["x"]}}}}
    file = write(".config/opencode/opencode.json", json.dumps(second))
    assert run("install", "opencode").exit_code == 0
    assert parse(file)["mcp"]["servers"]["files"]["command"] == [PROGRAM, *PREFIX, "x"]
    assert run("uninstall", "opencode").exit_code == 0
    assert parse(file) == second


def test_zed_older_form_of_a_command_is_wrapped(write: Write) -> None:
    old = {"files": {"command": {"path": "x", "args": ["y"], "env": None}, "settings": {}}}
    file = write(".config/zed/settings.json", json.dumps({"context_servers": old}))
    assert run("install", "zed").exit_code == 0
    assert parse(file)["context_servers"]["files"]["command"] == {
        "path": PROGRAM, "args": [*PREFIX, "x", "y"], "env": None
    }  # fmt: skip
    Path(f"{file}{BACKUP_SUFFIX}").unlink()
    assert run("uninstall", "zed").exit_code == 0
    assert parse(file)["context_servers"] == old


def test_vscode_settings_file_is_known(write: Write) -> None:
    file = write(".config/Code/User/settings.json", '{"mcp": {"servers": {"files": {"command": "x"}}}, // c\n}')
    assert run("install", "vscode").exit_code == 0
    assert '"args": ["wrap", "--name", "files", "--", "x"]' in file.read_text()


def test_servers_added_later_are_wrapped_by_a_second_install(write: Write) -> None:
    file = write(".cursor/mcp.json", '{"mcpServers": {"files": {"command": "x"}}}')
    assert run("install", "cursor").exit_code == 0
    now = parse(file)
    now["mcpServers"]["late"] = {"command": "y"}
    file.write_text(json.dumps(now))
    assert "not wrapped: late (`mcp-mirror install cursor` wraps them)" in run("status").stdout
    ran = run("install", "cursor")
    assert "wrapped: late" in ran.stderr
    assert "wrapped: files, late" in run("status").stdout
    assert run("uninstall", "cursor").exit_code == 0
    assert parse(file) == {"mcpServers": {"files": {"command": "x"}, "late": {"command": "y"}}}


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_copies_that_a_killed_install_left_are_removed(command: str, write: Write) -> None:
    write(".cursor/mcp.json", '{"mcpServers": {"files": {"command": "x"}}}')
    if command == "uninstall":
        assert run("install", "cursor").exit_code == 0
    copies = [write(f".cursor/.{name}.part", "SECRET") for name in ("0123456789abcdef", "fedcba9876543210", "mine")]
    for copy in (copies[0], copies[2]):
        os.utime(copy, (0.0, 0.0))
    assert run(command, "cursor").exit_code == 0
    assert [copy.exists() for copy in copies] == [False, True, True]  # the second one is written now, the third foreign


def test_status_of_a_file_that_no_client_is_known_to_have(write: Write) -> None:
    file = write("elsewhere/servers.json", '{"mcpServers": {"files": {"command": "x"}}}')
    ran = run("install", str(file))
    assert "Restart the client of this file." in ran.stderr
    assert "servers.json" not in run("status").stdout
    assert run("status", str(file)).stdout.startswith(f"the client of this file: {file}\n  wrapped: files\n")
    missing = run("status", "nothing.json")
    assert missing.exit_code == 2
    assert "neither a client" in missing.stderr


def test_an_entry_that_was_wrapped_by_hand_did_not_change_since(write: Write) -> None:
    write(".cursor/mcp.json", json.dumps({"mcpServers": {"a": {"command": PROGRAM, "args": ["wrap", "--", "x"]}}}))
    output = run("status").stdout
    assert "  wrapped: a\n" in output
    assert "changed since" not in output


def test_status_reports_a_changed_entry_and_a_missing_program(write: Write) -> None:
    file = write(".cursor/mcp.json", '{"mcpServers": {"files": {"command": "x"}, "other": {"command": "x"}}}')
    assert run("install", "cursor").exit_code == 0
    now = parse(file)
    now["mcpServers"]["files"]["env"] = {"A": "b"}
    file.write_text(json.dumps(now))
    output = run("status").stdout
    assert "changed since the installation: files\n" in output
    assert f"problem: {PROGRAM} does not exist" in output
    assert run("uninstall", "cursor").exit_code == 0
    assert parse(file)["mcpServers"]["files"] == {"command": "x", "args": [], "env": {"A": "b"}}


@pytest.mark.parametrize("has_more", [False, True])
def test_the_backup_of_a_merged_installation_is_kept(has_more: bool, write: Write) -> None:  # noqa: FBT001
    file = write(".cursor/mcp.json", '{"mcpServers": {"files": {"command": "x"}}}')
    before = file.read_bytes()
    assert run("install", "cursor", "--merge", "--no-connect").exit_code == 0
    if has_more:
        now = parse(file)
        now["mcpServers"]["late"] = {"command": "y"}
        file.write_text(json.dumps(now))
    merged = file.read_bytes()
    ran = run("install", "cursor")
    assert ran.exit_code == 2
    assert "was installed with --merge" in ran.stderr
    assert "it was installed with --merge" in run("install", "--all", "--yes").stderr
    assert file.read_bytes() == merged
    assert Path(f"{file}{BACKUP_SUFFIX}").read_bytes() == before
    assert run("uninstall", "cursor").exit_code == 0
    assert parse(file)["mcpServers"]["files"] == {"command": "x"}


def test_an_older_backup_that_the_file_does_not_explain_is_kept(write: Write) -> None:
    file = write(".cursor/mcp.json", '{"mcpServers": {"files": {"command": "x"}}}')
    backup = write(f".cursor/mcp.json{BACKUP_SUFFIX}", '{"mcpServers": {"older": {"command": "z"}}}')
    before = backup.read_bytes()
    ran = run("install", "cursor")
    assert ran.exit_code == 0
    assert f"{backup.name}.old" in ran.stderr
    assert Path(f"{backup}.old").read_bytes() == before
    assert run("uninstall", "cursor").exit_code == 0
    assert parse(file) == {"mcpServers": {"files": {"command": "x"}}}


def test_no_older_backup_is_overwritten(write: Write) -> None:
    file = write(".cursor/mcp.json", "")
    for number in range(3):
        file.write_text(f'{{"mcpServers": {{"files": {{"command": "{number}"}}}}}}')
        assert run("install", "cursor").exit_code == 0
    backups = [file.with_name(f"{file.name}{BACKUP_SUFFIX}{end}") for end in (".old", ".old1", "")]
    assert [parse(backup)["mcpServers"]["files"]["command"] for backup in backups] == ["0", "1", "2"]


def test_names_of_servers_cannot_control_the_terminal(write: Write) -> None:
    name = "a\x1b[31m\nb"
    write(".cursor/mcp.json", json.dumps({"mcpServers": {name: {"command": "x"}, "off" + name: {"disabled": True}}}))
    for command in ("status", "install", "status", "uninstall"):
        ran = run(command, "cursor")
        assert ran.exit_code == 0, ran.output
        assert "a\\u001b[31m\\u000ab" in ran.output
        assert "\x1b" not in ran.output


def test_an_installation_without_changes_writes_nothing(write: Write) -> None:
    file = write(".cursor/mcp.json", '{"mcpServers": {"off": {"command": "x", "disabled": true}}}')
    assert run("install", "cursor").exit_code == 0
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    file.write_text('{"mcpServers": {"files": {"command": "x"}}}')
    assert run("install", "cursor").exit_code == 0
    names = sorted(path.name for path in file.parent.iterdir())
    ran = run("install", "cursor")
    assert "Nothing to change" in ran.stderr
    assert sorted(path.name for path in file.parent.iterdir()) == names


def test_a_file_that_changes_during_the_installation_is_kept(write: Write, tmp_path: Path) -> None:
    file = write(".cursor/mcp.json", '{"mcpServers": {"files": {"command": "x"}}}')
    [target] = find_named("cursor", Machine("linux", tmp_path, tmp_path / "project", {}))
    plan = plan_wrapping(target, [PROGRAM])
    file.write_text("{}")
    with pytest.raises(Exception, match="changed at the same time"):
        apply_installation(plan)
    assert file.read_text() == "{}"


def test_a_link_and_the_mode_of_its_file_stay(write: Write, tmp_path: Path) -> None:
    real = write("dotfiles/mcp.json", '{"mcpServers": {"files": {"command": "x"}}}')
    real.chmod(0o644)
    link = tmp_path / ".cursor" / "mcp.json"
    link.parent.mkdir()
    link.symlink_to(real)
    assert run("install", "cursor").exit_code == 0
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o644
    assert Path(f"{link}{BACKUP_SUFFIX}").stat().st_mode & 0o777 == 0o600
    assert parse(real)["mcpServers"]["files"]["command"] == PROGRAM


def test_without_a_client_a_script_must_say_all_and_yes(write: Write) -> None:
    assert "No client with servers was found" in run("install").stderr
    file = write(".cursor/mcp.json", '{"mcpServers": {"files": {"command": "x"}}}')
    broken = write(".gemini/settings.json", '{"mcpServers": ')
    before = file.read_bytes()
    ran = run("install")
    assert ran.exit_code == 2
    assert "Name a client, or write --all --yes for every client. Found: cursor." in ran.stderr
    assert file.read_bytes() == before
    ran = run("install", "--all", "--yes")
    assert ran.exit_code == 1  # the other file cannot be read
    assert f"{broken} cannot be read as JSON" in ran.stderr
    assert parse(file)["mcpServers"]["files"]["command"] == PROGRAM
    assert "Name a client, or write --all. Installed: cursor." in run("uninstall").stderr
    assert run("uninstall", "--all", "--yes").exit_code == 0
    assert file.read_bytes() == before


def test_a_file_that_cannot_be_written_leaves_the_other_clients(write: Write) -> None:
    text = '{"mcpServers": {"files": {"command": "x"}}}'
    cursor, gemini = write(".cursor/mcp.json", text), write(".gemini/settings.json", text)
    cursor.with_name(cursor.name + BACKUP_SUFFIX).mkdir()
    ran = run("install", "--all", "--yes")
    assert ran.exit_code == 1
    assert cursor.read_text() == text
    assert f"mcp-mirror: {cursor}{BACKUP_SUFFIX} cannot be read: Is a directory." in ran.stderr
    assert f"Gemini CLI ({gemini}):\n  wrapped: files\nRestart Gemini CLI. " in ran.stderr
    assert ran.stderr.splitlines()[-1] == "To undo: mcp-mirror uninstall gemini"


@pytest.mark.parametrize("path", [".cursor/mcp.json", f".cursor/mcp.json{BACKUP_SUFFIX}"])
def test_all_uninstalls_the_clients_whose_files_can_be_read(path: str, write: Write) -> None:
    servers = '{"mcpServers": {"files": {"command": "x"}}}'
    write(".cursor/mcp.json", servers)
    gemini = write(".gemini/settings.json", servers)
    assert run("install", "cursor", "--merge", "--no-connect").exit_code == 0
    assert run("install", "gemini").exit_code == 0
    write(path, "{")
    ran = run("uninstall", "--all")
    assert ran.exit_code == 1
    assert "cannot be read as JSON" in ran.stderr
    assert gemini.read_text() == servers
    assert run("uninstall", "cursor").exit_code == 2


def test_the_list_of_clients_asks_which_to_change(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_mirror.cli.install.commands.reads_terminal", lambda: True)
    texts = '{"mcpServers": {"files": {"command": "x"}, "off": {"command": "y", "disabled": true}}}'
    cursor, gemini = write(".cursor/mcp.json", texts), write(".gemini/settings.json", texts)
    project = write("project/.mcp.json", texts)
    ran = run("install", answers="none\n")
    assert ran.exit_code == 0
    assert ran.stderr.endswith("No client was chosen. Nothing was changed.\n")
    assert run("install", answers="9\n").exit_code == 2
    ran = run("install", answers="2\ny\n")
    assert ran.exit_code == 0, ran.output
    assert f"1. Claude Code ({project}), of this folder: files" in ran.stderr
    assert f"2. Cursor ({cursor}): files" in ran.stderr
    assert "not wrapped: off, because it is disabled" in ran.stderr
    assert list(parse(cursor)["mcpServers"]) == ["mcp-mirror", "files", "off"]
    assert gemini.read_text() == project.read_text() == texts


@pytest.mark.parametrize("entry", ["text", {"command": "x", "disabled": True}, {"command": PROGRAM, "args": ["wrap"]}])
def test_an_unchanged_file_does_not_contain_a_path_of_this_machine(entry: Any, write: Write) -> None:
    write("project/.mcp.json", json.dumps({"mcpServers": {"files": entry}}))
    ran = run("install", ".mcp.json")
    assert ran.exit_code == 0
    assert re.search(r"  (not wrapped: files, because|wrapped already: files)", ran.stderr)
    assert "path of this machine" not in ran.stderr


def test_all_leaves_files_of_projects(write: Write) -> None:
    project = write("project/.mcp.json", '{"mcpServers": {"files": {"command": "x"}}}')
    user = write(".cursor/mcp.json", '{"mcpServers": {"files": {"command": "x"}}}')
    before = project.read_bytes()
    assert run("install", "--all", "--yes").exit_code == 0
    assert project.read_bytes() == before
    ran = run("install", ".mcp.json")
    assert "now contains a path of this machine" in ran.stderr
    wrapped = project.read_bytes()
    assert parse(project)["mcpServers"]["files"]["command"] == PROGRAM
    assert str(project) not in run("uninstall", "--all", "--dry-run").stdout
    ran = run("uninstall", "--all")
    assert ran.exit_code == 0
    assert f"({project}) stays as it is: it is a file of a project. To restore it: " in ran.stderr
    assert (user.read_bytes(), project.read_bytes()) == (before, wrapped)
    assert run("uninstall", ".mcp.json").exit_code == 0
    assert project.read_bytes() == before


def test_all_adds_the_memory_tools_to_wrapped_servers_later(write: Write) -> None:
    text = '{"mcpServers": {"files": {"command": "x"}}}'
    files = [write(path, text) for path in (".cursor/mcp.json", ".gemini/settings.json")]
    assert run("install", "cursor").exit_code == 0
    ran = run("install", "--all", "--yes", "--memory")
    assert ran.exit_code == 0
    assert ran.stderr.count("  added: the memory tools") == 2
    assert all("mcp-mirror" in parse(file)["mcpServers"] for file in files)
    assert "Nothing to change" in run("install", "--all", "--yes", "--memory").stderr
    assert run("uninstall", "--all").exit_code == 0
    assert [file.read_text() for file in files] == [text, text]


def test_the_list_of_clients_names_added_memory_tools(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_mirror.cli.install.commands.reads_terminal", lambda: True)
    file = write(".cursor/mcp.json", '{"mcpServers": {"files": {"command": "x"}}}')
    assert run("install", "cursor").exit_code == 0
    ran = run("install", "--memory", answers="all\n")
    assert "1. Cursor" in ran.stderr
    assert "): the memory tools\n" in ran.stderr
    assert "mcp-mirror" in parse(file)["mcpServers"]


def test_all_uninstalls_wrapped_and_merged_servers(write: Write) -> None:
    text = '{"mcpServers": {"files": {"command": "x"}}}'
    merged, wrapped = write(".cursor/mcp.json", text), write(".gemini/settings.json", text)
    assert run("install", "cursor", "--merge", "--no-connect").exit_code == 0
    assert "Name a client, or write --all. Installed: cursor." in run("uninstall").stderr
    assert run("install", "gemini").exit_code == 0
    ran = run("uninstall", "--all")
    assert ran.exit_code == 0
    assert merged.read_text() == wrapped.read_text() == text
    assert "There is nothing to uninstall" in run("uninstall", "--all").stderr


def test_a_dry_run_prints_a_diff_and_writes_nothing(write: Write) -> None:
    file = write(".cursor/mcp.json", '{"mcpServers": {\n"files": {"command": "x"}\n}}')
    before = file.read_bytes()
    ran = run("install", "cursor", "--dry-run")
    assert '-"files": {"command": "x"}\n' in ran.stdout
    assert f'+"files": {{"command": "{PROGRAM}", "args": ["wrap", "--name", "files", "--", "x"]}}\n' in ran.stdout
    assert ran.stderr.splitlines()[-1] == "Nothing was changed, because of --dry-run."
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert file.read_bytes() == before
    assert "Nothing was changed" not in run("install", "cursor").stderr
    assert "Nothing was changed, because of --dry-run." in run("uninstall", "cursor", "--dry-run").stderr


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        (".cursor/mcp.json", "{'a': 1}", "cannot be read as JSON"),
        (".cursor/mcp.json", '{"mcpServers": 5}', "contains no servers but 5"),
        (".cursor/mcp.json", "[" * 100_000, "nested too deeply"),
        (".codex/config.toml", "a = ", "cannot be read as TOML"),
        (".config/goose/config.yaml", "a: [", "cannot be read as YAML"),
    ],
)
def test_a_file_that_cannot_be_read_is_reported(path: str, text: str, said: str, write: Write) -> None:
    file = write(path, text)
    ran = run("install", str(file))
    assert ran.exit_code == 2
    assert said in ran.stderr
    assert file.read_text() == text


def test_any_file_is_known_by_its_path(write: Write) -> None:
    file = write("elsewhere/agents.json", '{"mcpServers": {"files": {"command": "x"}}}')
    assert run("install", str(file)).exit_code == 0
    assert parse(file)["mcpServers"]["files"]["args"] == [*PREFIX, "x"]
    assert run("uninstall", str(file)).exit_code == 0
    other = write("other/.vscode/mcp.json", '{"servers": {"files": {"command": "x"}}}')
    assert run("install", str(other)).exit_code == 0
    assert parse(other)["servers"]["files"]["command"] == PROGRAM


@pytest.mark.parametrize(
    "args",
    [["status"], ["install"], ["install", "cursor"], ["uninstall", "cursor"], ["uninstall", "--all"], ["doctor"]],
)
def test_a_removed_current_folder_is_an_error(args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "removed"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    ran = run(*args)
    assert ran.exit_code == 2
    assert ran.stderr.endswith("The current folder was removed. Change to another folder, then try again.\n")


@pytest.mark.parametrize("command", ["status", "install", "doctor"])
def test_a_folder_that_cannot_be_entered_hides_only_its_own_client(
    command: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(".cursor/mcp.json", '{"mcpServers": {"a": {"command": "x", "disabled": true}}}')
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", "/" + "x" * 300)  # like a folder of another user: the system refuses it
    ran = run(command, *(["cursor"] if command == "install" else []))
    assert ran.exit_code == 0, ran.output
    assert "Cursor" in ran.output or command == "doctor"


def test_options_that_do_not_fit_together_are_errors(write: Write) -> None:
    write(".cursor/mcp.json", '{"mcpServers": {"files": {"command": "x"}}}')
    for args in (("--merge",), ("cursor", "--merge", "--server", "x"), ("cursor", "--config", "c"), ("--server", "x")):
        assert run("install", *args).exit_code == 2
    assert "There is nothing to uninstall" in run("uninstall").stderr
    assert run("install", "gemini").exit_code == 2


def test_under_uvx_an_entry_starts_uvx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    uvx = tmp_path / "bin" / "uvx"
    uvx.parent.mkdir()
    uvx.touch(0o755)
    monkeypatch.setenv("PATH", str(uvx.parent))
    source = "file:///w/mcp_mirror.whl"
    for found, words in ((None, []), (source, ["--from", source])):
        monkeypatch.setattr(f"{files.__name__}._read_source", lambda found=found: found)
        monkeypatch.setattr("sys.prefix", str(tmp_path / "uv" / "archive-v0" / "x"))
        command = files.find_program()
        assert command == [str(uvx), *words, "mcp-mirror"]
        assert files.describe_command("doctor") == " ".join(("uvx", *words, "mcp-mirror", "doctor"))
        own = read_own_command({"command": command[0], "args": [*command[1:], "wrap", "--", "x"]})
        assert (own.program, own.subcommand, own.wrapped) == (command, "wrap", ["x"])
        monkeypatch.setattr("sys.prefix", "/usr")
        assert files.describe_command("doctor") == "mcp-mirror doctor"


def test_without_a_script_an_entry_imports_nothing_from_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    command = files.find_program()
    assert command == ["/nowhere/python", "-P", "-m", "mcp_mirror"]
    own = read_own_command({"command": command[0], "args": [*command[1:], "wrap", "--", "x"]})
    assert (own.program, own.subcommand, own.wrapped) == (command, "wrap", ["x"])


WINDOWS, MAC, LINUX = "AppData/Roaming", "Library/Application Support", ".config"
ROO = "Code/User/globalStorage/rooveterinaryinc.roo-cline/settings"
PATHS = {
    "claude-desktop": {"linux": f"{LINUX}/Claude", "darwin": f"{MAC}/Claude", "win32": f"{WINDOWS}/Claude"},
    "claude-code": dict.fromkeys(("linux", "darwin", "win32"), ""),
    "cursor": dict.fromkeys(("linux", "darwin", "win32"), ".cursor"),
    "vscode": {"linux": f"{LINUX}/Code/User", "darwin": f"{MAC}/Code/User", "win32": f"{WINDOWS}/Code/User"},
    "windsurf": dict.fromkeys(("linux", "darwin", "win32"), ".codeium/windsurf"),
    "codex": dict.fromkeys(("linux", "darwin", "win32"), ".codex"),
    "gemini": dict.fromkeys(("linux", "darwin", "win32"), ".gemini"),
    "zed": {"linux": f"{LINUX}/zed", "darwin": f"{LINUX}/zed", "win32": f"{WINDOWS}/Zed"},
    "cline": dict.fromkeys(("linux", "darwin", "win32"), ".cline/data/settings"),
    "roo": {"linux": f"{LINUX}/{ROO}", "darwin": f"{MAC}/{ROO}", "win32": f"{WINDOWS}/{ROO}"},
    "goose": {"linux": f"{LINUX}/goose", "darwin": f"{LINUX}/goose", "win32": f"{WINDOWS}/Block/goose/config"},
    "opencode": dict.fromkeys(("linux", "darwin", "win32"), f"{LINUX}/opencode"),
    "lm-studio": dict.fromkeys(("linux", "darwin", "win32"), ".lmstudio"),
    "junie": dict.fromkeys(("linux", "darwin", "win32"), ".junie/mcp"),
    "continue": dict.fromkeys(("linux", "darwin", "win32"), ".continue"),
}


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
@pytest.mark.parametrize("name", [client.name for client in CLIENTS])
def test_the_files_of_clients_are_where_each_system_has_them(name: str, platform: str, tmp_path: Path) -> None:
    client = next(client for client in CLIENTS if client.name == name)
    machine = Machine(platform, tmp_path, tmp_path / "project", {})
    assert client.places[0].files(machine)[0].parent == tmp_path / PATHS[name][platform]


def test_variables_move_the_folders_of_clients(tmp_path: Path) -> None:
    environ = {"CODEX_HOME": "/c", "CLAUDE_CONFIG_DIR": "/d", "XDG_CONFIG_HOME": "/x", "APPDATA": "/a"}
    folders = {
        name: str(client.places[0].files(Machine(platform, tmp_path, tmp_path, environ))[0].parent)
        for client in CLIENTS
        for name, platform in (("codex", "linux"), ("claude-code", "linux"), ("zed", "linux"), ("vscode", "win32"))
        if client.name == name
    }
    assert folders == {"codex": "/c", "claude-code": "/d", "zed": "/x/zed", "vscode": "/a/Code/User"}


# Random files: pieces of text around the entries, which must not change.

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
COMMANDS = WORDS.map("/".__add__)
NAMES = st.lists(st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True), min_size=1, max_size=3, unique=True)
SPACE = st.sampled_from(["", " ", "\n", "\n\t", "\r\n  ", ' /* a { " */ ', ' // b ] , "\n'])
LINES = st.lists(st.sampled_from(["", "# a: [ {", "  # b"]), max_size=2)


@st.composite
def json_files(draw: Any) -> tuple[list[str], list[str], list[str]]:
    """Names, the text of their entries, and the texts around the entries."""
    names = draw(NAMES)
    space, comma = partial(draw, SPACE), partial(draw, st.sampled_from(["", ","]))
    entries = []
    for _ in names:
        args = draw(st.none() | st.lists(WORDS, max_size=3))
        members = [f'{space()}"command"{space()}:{space()}{json.dumps(draw(COMMANDS))}{space()}']
        if args is not None:
            items = f"{space()},".join(f"{space()}{json.dumps(arg, ensure_ascii=draw(st.booleans()))}" for arg in args)
            members.append(f'{space()}"args":{space()}[{items}{space()}{comma() if args else ""}{space()}]{space()}')
        members.append(f'{space()}"env":{{"A": {json.dumps(draw(WORDS))}}}{space()}')
        entries.append("{" + ",".join(draw(st.permutations(members))) + comma() + space() + "}")
    head = f'{space()}{{{space()}"o": {json.dumps(draw(WORDS))},{space()}"mcpServers":{space()}{{'
    around = [
        f'{"" if place else head}{"," if place else ""}{space()}"{name}":{space()}' for place, name in enumerate(names)
    ]
    return names, entries, [*around, f"{space()}{comma()}{space()}}}{space()}{comma()}{space()}}}{space()}"]


def quote(text: str) -> str:
    """A text of TOML and YAML: as JSON, but without surrogate pairs, and with unprintable characters escaped."""
    plain = json.dumps(text, ensure_ascii=False)
    return re.sub("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]", lambda match: f"\\u{ord(match[0]):04x}", plain)


@st.composite
def toml_files(draw: Any) -> tuple[list[str], list[str], list[str]]:
    names = draw(NAMES)
    comment = partial(draw, st.sampled_from(["", '  # c = [ "', "\t#"]))
    entries, around = [], []
    for place, name in enumerate(names):
        args = draw(st.none() | st.lists(WORDS, max_size=3))
        lines = [f"command = {quote(draw(COMMANDS))}{comment()}"]
        if args is not None:
            lead = draw(st.sampled_from(["", "\n  ", " "]))
            items = ",".join(f"{lead}{quote(arg)}" for arg in args)
            lines.append(f"args = [{items}{lead if args else ''}]{comment()}")
        head = draw(LINES) if place else ["top = 1  # x", *draw(LINES)]
        around.append("\n".join((*head, f"[mcp_servers.{name}]{comment()}", "")))
        entries.append("\n".join(draw(st.permutations(lines))))
    return (
        names,
        entries,
        [around[0], *("\n" + text for text in around[1:]), "\n" + "\n".join((*draw(LINES), "[end]", "z = 1"))],
    )


@st.composite
def yaml_files(draw: Any) -> tuple[list[str], list[str], list[str]]:
    names = draw(NAMES)
    comment = partial(draw, st.sampled_from(["", "  # c: [ '", " #"]))
    entries, around = [], []
    for place, name in enumerate(names):
        args = draw(st.none() | st.lists(WORDS, max_size=3))
        lines = [f"    cmd: {quote(draw(COMMANDS))}{comment()}", "    type: stdio"]
        if args is not None and (draw(st.booleans()) or not args):
            lines.append(f"    args: [{', '.join(map(quote, args))}]{comment()}")
        elif args is not None:
            indent = draw(st.sampled_from(["    ", "      "]))
            lines.append("\n".join(("    args:", *(f"{indent}- {quote(arg)}{comment()}" for arg in args))))
        head = draw(LINES) if place else ["top: 1  # x", "extensions:", *draw(LINES)]
        around.append("\n".join((*head, f"  {name}:{comment()}", "")))
        entries.append("\n".join(draw(st.permutations(lines))))
    return (
        names,
        entries,
        [around[0], *("\n" + text for text in around[1:]), "\n" + "\n".join((*draw(LINES), "end: 1"))],
    )


def expect(entry: dict[str, Any], name: str) -> dict[str, Any]:
    key = "cmd" if "cmd" in entry else "command"
    return {**entry, key: PROGRAM, "args": ["wrap", "--name", name, "--", entry[key], *(entry.get("args") or [])]}


@pytest.mark.parametrize(
    ("path", "block", "files"),
    [
        ("elsewhere/mcp.json", "mcpServers", json_files()),
        (".codex/config.toml", "mcp_servers", toml_files()),
        (".config/goose/config.yaml", "extensions", yaml_files()),
    ],
    ids=["json", "toml", "yaml"],
)
@settings(
    max_examples=settings().max_examples // 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_only_entries_of_random_files_change(
    path: str, block: str, files: Any, write: Write, tmp_path: Path, data: st.DataObject
) -> None:
    names, entries, around = data.draw(files)
    text = "".join(piece for pair in zip(around, [*entries, ""], strict=True) for piece in pair)
    is_windows = data.draw(st.booleans())
    text = ("\ufeff" if data.draw(st.booleans()) else "") + (
        text.replace("\r\n", "\n").replace("\n", "\r\n") if is_windows else text
    )
    around = [piece.replace("\r\n", "\n").replace("\n", "\r\n") if is_windows else piece for piece in around]
    file = write(path, text)
    [target] = find_named(str(file), Machine("linux", tmp_path, tmp_path / "project", {}))
    before = target.read().value
    plan = plan_wrapping(target, [PROGRAM])
    assert (len(plan.changed), plan.left) == (len(names), ())
    apply_installation(plan)
    after = file.read_bytes().decode()
    assert re.fullmatch("\ufeff?" + "(?s:.*)".join(map(re.escape, around)), after)
    expected = {name: expect(entry, name) for name, entry in before[block].items()}
    assert target.read().value == {**before, block: expected}
    changed = after + data.draw(st.sampled_from(["", "\n"]))
    file.write_bytes(changed.encode())
    apply_removal(plan_unwrapping(target))
    assert file.read_bytes().decode() == text + changed[len(after) :]

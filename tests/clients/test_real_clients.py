"""Real clients with wrapped servers: the servers start, the first request has their tools, and a path passes.

`make clients` installs the clients from npm and sets CLIENTS_FOLDER; without it, these tests are skipped.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from tests.clients.provider import DONE, PATH, Script, serve

FOLDER: Final = Path(os.environ.get("CLIENTS_FOLDER", "/nonexistent"))
BIN: Final = FOLDER / "node_modules" / ".bin"
OPENCODE: Final = FOLDER / "node_modules" / "opencode-linux-x64" / "bin"
"""The package of one platform, because a lock file cannot have those that the registry lacks."""
GATEWAY: Final = [str(Path(sys.executable).with_name("mcp-mirror"))]
TEXT: Final = "".join(f"{line:05d} {'ERROR disk full' if line % 50 == 0 else 'info ok'}\n" for line in range(4_000))
TIMEOUT: Final = 240


@dataclass(frozen=True, slots=True)
class Setup:
    """How a client is configured and run."""

    program: str
    file: str
    """The client's file, below the home folder."""
    write: Callable[[dict[str, list[str]], Script], str]
    """Returns the content of the file."""
    list_servers: list[str]
    is_ready: Callable[[str], bool]
    """Whether the output of `list_servers` shows two servers that are connected."""
    prompt: list[str]
    environ: Callable[[Script], dict[str, str]]


def claude_file(servers: dict[str, list[str]], _: Script) -> str:
    entries = {
        name: {"type": "stdio", "command": words[0], "args": words[1:], "env": {}} for name, words in servers.items()
    }
    approved = {"customApiKeyResponses": {"approved": ["y" * 20], "rejected": []}}
    return json.dumps({"numStartups": 1, "hasCompletedOnboarding": True, **approved, "mcpServers": entries})


def codex_file(servers: dict[str, list[str]], script: Script) -> str:
    env = f'{{ MEMORY_FILE_PATH = "{Path(script.file).with_name("memory.jsonl")}" }}'
    entries = "\n".join(
        f"""
[mcp_servers.{name}]  # mine
command = {json.dumps(words[0])}
args = {json.dumps(words[1:])}
required = true  # the first request waits for the server
default_tools_approval_mode = "approve"
env = {env}"""
        for name, words in servers.items()
    )
    return f"""model = "m" # the model
model_provider = "scripted"
approval_policy = "never"

[model_providers.scripted]
name = "scripted"
base_url = "{script.address}/v1"
wire_api = "responses"
env_key = "SCRIPTED_KEY"
{entries}
"""


def gemini_file(servers: dict[str, list[str]], _: Script) -> str:
    entries = {name: {"command": words[0], "args": words[1:], "trust": True} for name, words in servers.items()}
    auth = {"security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}}}
    return json.dumps(
        {
            **auth,
            "privacy": {"usageStatisticsEnabled": False},
            "general": {"enableAutoUpdate": False},
            "mcpServers": entries,
        }
    )


def opencode_file(servers: dict[str, list[str]], script: Script) -> str:
    options = {"baseURL": f"{script.address}/v1", "apiKey": "x"}
    model = {"name": "m", "tool_call": True, "limit": {"context": 100_000, "output": 4_000}}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "scripted", "options": options, "models": {"m": model}}
    entries = ",\n".join(
        f'    // mine\n    "{name}": {{"type": "local", "command": {json.dumps(words)}, "enabled": true}}'
        for name, words in servers.items()
    )
    settings = {
        "model": "scripted/m",
        "small_model": "scripted/m",
        "autoupdate": False,
        "share": "disabled",
        "permission": "allow",
    }
    head = json.dumps({**settings, "provider": {"scripted": provider}}, indent=2)[:-2]
    return f'{head},\n  "mcp": {{\n{entries},\n  }},\n}}\n'


def find_program(name: str) -> Path:
    """Return the program of a client."""
    return (OPENCODE if name == "opencode" else BIN) / name


SETUPS: Final = {
    "claude-code": Setup(
        "claude",
        ".claude.json",
        claude_file,
        ["mcp", "list"],
        lambda text: text.count("Connected") == 2,
        ["-p", "Read the log.", "--allowedTools", "mcp__files__read_text_file,mcp__memory__create_entities"],
        lambda script: {
            "ANTHROPIC_BASE_URL": script.address,
            "ANTHROPIC_API_KEY": "sk-ant-" + "y" * 20,
            "ANTHROPIC_MODEL": "claude-sonnet-4-5",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "ENABLE_TOOL_SEARCH": "false",  # later versions leave the servers' tools out of the first request
            "MCP_CONNECT_TIMEOUT_MS": "60000",  # otherwise a loaded machine's first request has only some of the tools
            "MCP_CONNECTION_NONBLOCKING": "0",
        },
    ),
    "opencode": Setup(
        "opencode",
        ".config/opencode/opencode.jsonc",
        opencode_file,
        ["mcp", "list"],
        lambda text: text.count("connected") == 2,
        ["run", "Read the log."],
        lambda _: {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"},
    ),
    "codex": Setup(
        "codex",
        ".codex/config.toml",
        codex_file,
        ["mcp", "list"],
        lambda text: text.count("enabled") == 2,
        ["exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "Read the log."],
        lambda _: {"SCRIPTED_KEY": "x"},
    ),
    "gemini": Setup(
        "gemini",
        ".gemini/settings.json",
        gemini_file,
        ["mcp", "list"],
        lambda text: text.count("Connected") == 2,
        ["--model", "gemini-2.5-pro", "--yolo", "-p", "Read the log."],
        lambda script: {
            "GOOGLE_GEMINI_BASE_URL": script.address,
            "GEMINI_API_KEY": "x",
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        },
    ),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SETUPS)
def test_a_real_client_uses_wrapped_servers(name: str, tmp_path: Path) -> None:
    setup = SETUPS[name]
    if not (program := find_program(setup.program)).exists():
        pytest.skip("the client is not installed: run `make clients`")
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    (work / "disk.log").write_text(TEXT)
    stored = work / "memory.jsonl"
    script = Script(str(work / "disk.log"))
    node = shutil.which("node") or "node"
    packages = FOLDER / "node_modules" / "@modelcontextprotocol"
    servers = {
        "files": [node, str(packages / "server-filesystem" / "dist" / "index.js"), str(work)],
        "memory": [node, str(packages / "server-memory" / "dist" / "index.js")],
    }
    with serve(script):
        file = home / setup.file
        file.parent.mkdir(parents=True)
        file.write_text(setup.write(servers, script))
        before = file.read_bytes()
        environ = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "MEMORY_FILE_PATH": str(stored),
            "NO_PROXY": "127.0.0.1",
            **setup.environ(script),
        }

        def run(*words: str) -> str:
            ended = subprocess.run(
                words, cwd=work, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=TIMEOUT, check=False, text=True,
            )  # fmt: skip
            assert ended.returncode == 0, ended.stdout
            return ended.stdout

        run(*GATEWAY, "install", name)
        listed = run(str(program), *setup.list_servers)
        assert setup.is_ready(listed), listed
        assert "problem" not in run(*GATEWAY, "doctor", name)
        answer = run(str(program), *setup.prompt)
        assert DONE in answer
        run(*GATEWAY, "uninstall", name)
        after = file.read_bytes()
    first = script.tools[0]
    assert sum(tool.endswith(("read_text_file", "create_entities")) for tool in first) == 2
    assert not any("_mirrored" in tool for tool in first)
    assert PATH.search(script.requests[1]), script.requests[1]
    assert len(script.requests[1]) < len(TEXT)  # the text itself stayed out of the context
    [entity] = [json.loads(line) for line in stored.read_text().splitlines()]
    assert entity["observations"] == [TEXT]
    assert after == before or b'"wrap"' not in after


def test_the_list_of_a_client_has_no_warning_about_a_remote_server(tmp_path: Path) -> None:
    if not (BIN / "claude").exists():
        pytest.skip("the client is not installed: run `make clients`")
    entry: dict[str, Any] = {"type": "http", "url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": "Bearer s"}}
    (tmp_path / ".claude.json").write_text(json.dumps({"mcpServers": {"web": entry}}))
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    subprocess.run([*GATEWAY, "install", "claude-code"], env=environ, check=True, timeout=TIMEOUT)
    listed = subprocess.run(
        [BIN / "claude", "mcp", "list"],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert "Missing environment variables" not in listed.stdout + listed.stderr

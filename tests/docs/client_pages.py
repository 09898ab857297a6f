"""The page of each client in the documentation: real output of `install` for a sample file, and the client's files."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any, Final

from typer.testing import CliRunner

from mcp_mirror.cli.install.clients import CLIENTS, Client, Machine, Place
from mcp_mirror.cli.install.files import find_program
from mcp_mirror.cli.main import app

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "docs" / "getting-started"
_HOME: Final = "/home/you"
_PROGRAM: Final = "/home/you/.local/bin/mcp-mirror"
_REAL: Final = {"claude-code", "codex", "gemini", "opencode"}
"""Clients that `make clients` runs."""
_BY_HAND: Final = {"cline": "Cline CLI 3.0", "continue": "Continue CLI 1.5"}
"""Programs that were run by hand with servers that `install` had wrapped."""
_SYSTEMS: Final = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}
_FILES: Final[dict[str, Any]] = {
    "command": "npx",
    "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/you/Documents"],
}
_URL: Final = "https://mcp.example.com/mcp"
_HEADERS: Final = {"Authorization": "Bearer s3cret"}

_SAMPLES: Final[dict[str, str]] = {
    "codex": f"""model = "gpt-5"

[mcp_servers.files]  # my documents
command = "npx"
args = ["-y", "@modelcontextprotocol/server-filesystem", "/home/you/Documents"]
startup_timeout_sec = 20

[mcp_servers.search]
url = "{_URL}"
bearer_token_env_var = "SEARCH_TOKEN"
""",
    "goose": f"""extensions:
  developer:
    type: builtin
    name: developer
    enabled: true
  files:  # my documents
    type: stdio
    name: files
    enabled: true
    cmd: npx
    args:
      - -y
      - "@modelcontextprotocol/server-filesystem"
      - /home/you/Documents
  search:
    type: streamable_http
    name: search
    enabled: true
    uri: {_URL}
    headers:
      Authorization: Bearer s3cret
""",
    "continue": f"""name: My agent
mcpServers:
  - name: files  # my documents
    command: npx
    args: ["-y", "@modelcontextprotocol/server-filesystem", "/home/you/Documents"]
  - name: search
    type: streamable-http
    url: {_URL}
    requestOptions:
      headers:
        Authorization: Bearer s3cret
""",
    "zed": f"""{{
  "theme": "One Dark",
  "context_servers": {{
    // my documents
    "files": {{
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/you/Documents"],
    }},
    "search": {{"url": "{_URL}", "headers": {{"Authorization": "Bearer s3cret"}}}},
  }},
}}
""",
    "opencode": f"""{{
  "mcp": {{
    // my documents
    "files": {{
      "type": "local",
      "command": ["npx", "-y", "@modelcontextprotocol/server-filesystem", "/home/you/Documents"],
    }},
    "search": {{"type": "remote", "url": "{_URL}", "headers": {{"Authorization": "Bearer {{env:SEARCH_TOKEN}}"}}}},
  }},
}}
""",
}
_REMOTE: Final[dict[str, dict[str, Any]]] = {
    "claude-code": {"type": "http", "url": _URL, "headers": _HEADERS},
    "vscode": {"type": "http", "url": _URL, "headers": {"Authorization": "Bearer ${env:SEARCH_TOKEN}"}},
    "cursor": {"url": _URL, "headers": {"Authorization": "Bearer ${env:SEARCH_TOKEN}"}},
    "windsurf": {"serverUrl": _URL, "headers": {"Authorization": "Bearer ${env:SEARCH_TOKEN}"}},
    "gemini": {"httpUrl": _URL, "headers": {"Authorization": "Bearer $SEARCH_TOKEN"}, "trust": True},
    "cline": {"type": "streamableHttp", "url": _URL, "headers": _HEADERS},
    "roo": {"type": "streamable-http", "url": _URL, "headers": _HEADERS, "alwaysAllow": ["search"]},
    "lm-studio": {"url": _URL, "headers": _HEADERS},
}
_NOTES: Final[dict[str, str]] = {
    "claude-desktop": """\
In this file `${VAR}` is text, not a variable. Servers of desktop extensions and connectors are not in the file and stay
as they are.

## As an extension

`make mcpb` in a checkout builds `dist/mcp-mirror-VERSION.mcpb` and validates it with the official tool. Open the file
with Claude Desktop, and choose the configuration file that names your servers. The bundle has the server type `uv`:
Claude Desktop installs Python and the dependencies. A test starts the bundle from its
manifest; Claude Desktop itself was not run.""",
    "claude-code": """\
`install` wraps servers of the user scope and of the local scope (`projects` in the same file). For the project scope,
name the file: `mcp-mirror install .mcp.json`. Permissions such as `mcp__files__*`, hooks and skills stay valid.

Claude Code writes `~/.claude.json` while it runs, so close it first. If the file changes during the installation,
`install` writes nothing and reports it.

With `-p`, Claude Code waits a few seconds for its servers. On a slow machine, set `MCP_CONNECT_TIMEOUT_MS=60000` and
`MCP_CONNECTION_NONBLOCKING=0`, so that the first request has the tools of every server.

To wrap one server when you add it ([Wrap one server](../guides/wrap.md)):

```console
claude mcp add files -- mcp-mirror wrap -- npx -y @modelcontextprotocol/server-filesystem ~/Documents
```""",
    "vscode": """\
`install` wraps the servers in the user's `mcp.json`, in the `mcp.json` of profiles and under `mcp.servers` in
`settings.json`. For a workspace, name the file: `mcp-mirror install .vscode/mcp.json`. Servers
with `${input:...}` are not wrapped. Write `${env:NAME}` in place of the input, set that variable, and install again:
VS Code replaces it in the `env` of the wrapped entry.""",
    "codex": """\
Codex passes only a few variables of its environment to servers. `install` adds the variables of headers to `env_vars`.
With `required = true` in a server's table, the first request waits for the server.""",
    "zed": """\
Servers of extensions stay as they are. `install` also wraps the older form `command: {path, args, env}`.""",
    "cline": """\
Cline uses the HTTP+SSE transport for an address without a `type`, and so does the wrapped entry. Entries of `cline mcp
install` have the command or the address in `transport`, where `install` wraps it.

Cline's command line waits 3 s for the start of a server whose entry has no `timeout`, and then continues without the
server's tools; only `~/.cline/data/logs/cline.log` reports it. A machine that starts several wrapped servers may need
longer. Add `"timeout": 60`, which is also Cline's default for calls, to each entry.""",
    "continue": """\
Continue's extension for editors puts the server's name before the names of tools; its command line `cn` does not. With
several wrapped servers, the requests of `cn` then contain `memory_read` and `retrieve_final_answer_from_memory` several
times, which providers such as Anthropic and Google refuse. Start `cn` with `--exclude memory_read --exclude
retrieve_final_answer_from_memory`, which has no effect with `--auto`: tools still accept paths. Or replace the servers
by one [`mcp-mirror serve`](index.md#by-hand), whose tools have unique names.""",
    "goose": """\
Built-in and platform extensions stay as they are, and so do remote extensions whose headers contain variables, because
Goose replaces variables only in headers.""",
    "opencode": """\
`install` reads both forms of the file: `mcp.NAME` (version 1) and `mcp.servers.NAME` (version 2).""",
}


def client_page(client: Client) -> str:
    """Return the page of a client."""
    diff, output = _run(client)
    notes = [_NOTES[client.name]] if client.name in _NOTES else []
    parts = [
        f"# {client.title}",
        f"```console\nmcp-mirror install {client.name}\n```",
        "The command writes `mcp-mirror wrap` before each server's command, and prints:",
        f"```text\n{output}```",
        "`--dry-run` prints the change and writes nothing:",
        f"```diff\n{diff}```",
        (
            f"`mcp-mirror uninstall {client.name}` restores the file. [Install](index.md#one-command) lists\n"
            "the settings that stay and the servers that `install` leaves."
        ),
        *notes,
        "## Files",
        _table(client),
        (
            f"Source: [the documentation]({client.source}). {_describe_tests(client)}\n"
            "Nothing was run on macOS or Windows."
        ),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _describe_tests(client: Client) -> str:
    if client.name in _REAL:
        return "`make clients` runs the real program on Linux with a scripted model."
    if program := _BY_HAND.get(client.name):
        return f"{program} was run by hand on Linux with a scripted model."
    return "Tests check paths and formats; the client itself was not run."


def _run(client: Client) -> tuple[str, str]:
    """Return the diff and the output of an installation into a sample file."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder).resolve()
        machine = Machine("linux", home, home / "project", {})
        [file] = client.places[0].files(machine)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_SAMPLES.get(client.name) or _sample(client), encoding="utf-8")
        env = {"HOME": str(home), "XDG_CONFIG_HOME": None, "CODEX_HOME": None, "CLAUDE_CONFIG_DIR": None}
        runner = CliRunner(env=env)
        before = Path.cwd()
        os.chdir(home)
        try:
            diff = runner.invoke(app, ["install", client.name, "--dry-run"]).stdout
            output = runner.invoke(app, ["install", client.name]).stderr
        finally:
            os.chdir(before)
    [*words, program] = find_program()[::-1]
    assert not words, "the package is installed without its script"
    return (_hide(diff, home, program), _hide(output, home, program))


def _hide(text: str, home: Path, program: str) -> str:
    return text.replace(program, _PROGRAM).replace(str(home), _HOME)


def _sample(client: Client) -> str:
    servers = {"files": _FILES}
    if remote := _REMOTE.get(client.name):
        servers["search"] = remote
    [block] = client.places[0].blocks[0]
    return json.dumps({block: servers}, indent=2) + "\n"


def _table(client: Client) -> str:
    rows = [f"| {' | '.join(('scope', *_SYSTEMS.values()))} |", "|---|---|---|---|"]
    for place in client.places:
        paths = [_describe_path(place, system) for system in _SYSTEMS]
        rows.append(f"| {place.scope} | {' | '.join(paths)} |")
    return "\n".join(rows)


def _describe_path(place: Place, system: str) -> str:
    home = Path("~")
    machine = Machine(system, home, Path(), {"APPDATA": "%APPDATA%"} if system == "win32" else {})
    path = place.windows_path if place.windows_path and system == "win32" else place.path
    text = (machine.folder(place.base) / path).as_posix()
    return f"`{text}`"


CLIENT_PAGES: Final = {FOLDER / f"{client.name}.md": client for client in CLIENTS}
"""The pages and their clients."""

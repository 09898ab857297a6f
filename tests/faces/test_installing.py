"""`mcp-mirror install` and `uninstall`: servers move and come back, and nothing else in either file changes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from mcp_mirror.cli import app
from mcp_mirror.config import load_config
from mcp_mirror.installing import KEPT_AS, carry_out, find_client, known_clients, plan_install, plan_uninstall
from mcp_mirror.policies import HttpEndpoint, StdioEndpoint

FILES = {"command": "npx", "args": ["-y", "server-files", "/home/you"], "env": {"KEY": "a: b # c"}}
SEARCH = {"url": "https://mcp.example.com/mcp", "headers": {"X-Key": "k"}}
SERVERS: dict[str, Any] = {"files": FILES, "search": SEARCH}
OTHER = {"globalShortcut": "Ctrl+Space", "preferences": {"theme": "dark", "scale": 1.5, "language": "\u00e9\u4e2d"}}

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, folder in (("HOME", ""), ("XDG_CONFIG_HOME", ".config")):
        monkeypatch.setenv(name, str(tmp_path / folder))


@pytest.fixture
def write() -> Write:
    """Writes the file of a client."""

    def write(name: str = "claude-desktop", content: Any = None, **servers: Any) -> Path:
        client = known_clients()[name]
        client.file.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else json.dumps({**OTHER, client.block: servers or SERVERS})
        client.file.write_text(text, "utf-8")
        return client.file

    return write


def invoke(*args: str) -> Result:
    return CliRunner().invoke(app, args)


def read(file: Path) -> Any:
    return json.loads(file.read_text("utf-8"))


@pytest.mark.parametrize("name", known_clients())
def test_servers_move_and_come_back(name: str, write: Write, tmp_path: Path) -> None:
    file = write(name)
    before, block = read(file), known_clients()[name].block
    ran = invoke("install", name)
    assert ran.exit_code == 0, ran.output
    config = tmp_path / ".config" / "mcp-mirror" / f"{name}.yaml"
    kept, (entry,) = {key: read(file)[key] for key in OTHER}, read(file)[block].values()
    assert kept == OTHER
    assert entry["args"] == ["serve", "--config", str(config)]
    assert shutil.which(entry["command"]) == entry["command"]
    assert entry.get("type") == ("stdio" if block == "servers" else None)
    files, search = (one.endpoint for one in load_config(config, {}).upstreams)
    assert isinstance(files, StdioEndpoint)
    assert isinstance(search, HttpEndpoint)
    assert (files.command, files.args, files.env["KEY"]) == ("npx", tuple(FILES["args"]), "a: b # c")
    assert search.url == SEARCH["url"]
    assert read(file.with_name(file.name + KEPT_AS)) == before
    assert config.stat().st_mode & 0o777 == 0o600
    assert invoke("uninstall", name).exit_code == 0
    assert read(file) == before
    assert config.exists()


def test_what_is_installed_takes_in_a_server_that_came_later(write: Write) -> None:
    file = write()
    assert invoke("install", "claude-desktop").exit_code == 0
    installed = read(file)
    assert invoke("install", "claude-desktop").exit_code == 0
    assert read(file) == installed
    late = {"command": "late"}
    file.write_text(json.dumps({**OTHER, "mcpServers": {**installed["mcpServers"], "late": late}}))
    assert invoke("install", "claude-desktop").exit_code == 0
    assert read(file) == installed
    assert invoke("uninstall", "claude-desktop").exit_code == 0
    assert read(file) == {**OTHER, "mcpServers": {**SERVERS, "late": late}}
    assert read(file.with_name(file.name + KEPT_AS)) == {**OTHER, "mcpServers": SERVERS}


@pytest.mark.parametrize(
    "before",
    [
        "# mine\nstore:\n  kind: memory   # not kept\n",
        "# mine\nmcpServers:\n    first: {command: one}   # inline\n\n# of the store\nstore: {kind: memory}\n",
        "mcpServers:\n  first:\n    command: one\n    args:\n    - |\n      a\n      # b\nstore: {kind: memory}\n",
        "store: {kind: memory}\nmcpServers:\n  first:\n    command: one\n    env: {A: b}",
    ],
)
def test_a_configuration_that_is_there_keeps_all_that_it_says(before: str, write: Write, tmp_path: Path) -> None:
    write()
    config = tmp_path / "mine.yaml"
    config.write_text(before)
    earlier = load_config(config, {})
    assert invoke("install", "claude-desktop", "--config", str(config)).exit_code == 0
    after, lines = load_config(config, {}), iter(config.read_text().splitlines())
    assert after.store == earlier.store
    assert [one.name for one in after.upstreams] == [*(one.name for one in earlier.upstreams), *SERVERS]
    assert after.upstreams[: len(earlier.upstreams)] == earlier.upstreams
    assert all(line in lines for line in before.splitlines())


@pytest.mark.parametrize("before", ["# nothing yet\n", "", "mcpServers:  # soon\n"])
def test_servers_go_into_a_configuration_of_nothing(before: str, write: Write, tmp_path: Path) -> None:
    write()
    config = tmp_path / "mine.yaml"
    config.write_text(before)
    assert invoke("install", "claude-desktop", "--config", str(config)).exit_code == 0
    assert [one.name for one in load_config(config, {}).upstreams] == [*SERVERS]
    assert before in config.read_text()


def test_a_client_may_use_a_configuration_that_one_wrote_oneself(write: Write, tmp_path: Path) -> None:
    file = write(content="{}")
    config = tmp_path / "mine.yaml"
    config.write_text("upstreams: {one: {command: x}}")
    ran = invoke("install", "claude-desktop", "--config", str(config))
    assert f"uses {config}" in ran.stderr
    assert read(file)["mcpServers"]["mirror"]["args"][-1] == str(config)
    assert config.read_text() == "upstreams: {one: {command: x}}"


def test_a_client_is_also_known_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "project" / ".mcp.json"
    file.parent.mkdir()
    for block in ("mcpServers", "servers"):
        file.write_text(json.dumps({block: SERVERS}))
        assert invoke("install", str(file)).exit_code == 0
        assert read(file)[block]["mirror"]["args"][-1] == str(file.with_name("mirror.yaml"))
        assert invoke("uninstall", str(file)).exit_code == 0
        assert read(file) == {block: SERVERS}
        file.with_name("mirror.yaml").unlink()


def test_what_is_text_to_a_client_is_no_variable_here(write: Write, tmp_path: Path) -> None:
    told = {"command": "x", "args": ["${HOME}", "$${x}", "$y", "{z}"]}
    file = write(told=told)
    assert invoke("install", "claude-desktop").exit_code == 0
    (upstream,) = load_config(tmp_path / ".config/mcp-mirror/claude-desktop.yaml", {}).upstreams
    assert isinstance(upstream.endpoint, StdioEndpoint)
    assert upstream.endpoint.args == tuple(told["args"])
    assert invoke("uninstall", "claude-desktop").exit_code == 0
    assert read(file)["mcpServers"] == {"told": told}


def test_a_dry_run_prints_and_writes_nothing(write: Write, tmp_path: Path) -> None:
    file = write()
    before = file.read_bytes()
    ran = invoke("install", "claude-desktop", "--dry-run")
    assert "server-files" in ran.stdout
    assert '"mirror": {' in ran.stdout
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [file.name]
    assert invoke("install", "claude-desktop").exit_code == 0
    installed = file.read_bytes()
    assert "server-files" in invoke("uninstall", "claude-desktop", "--dry-run").stdout
    assert file.read_bytes() == installed


REFUSED = {
    "comments": ('{"mcpServers": {} // mine\n}', "is not plain JSON"),
    "no object": ("[]", "holds no JSON object"),
    "no servers": ('{"mcpServers": [1]}', "is no object of servers"),
    "nothing to move": ("{}", "has no servers to move"),
    "a variable that is not set": ('{"mcpServers": {"a": {"command": "x", "env": {"K": "${NOT_SET}"}}}}', "NOT_SET"),
    "what the client asks a person": (
        '{"mcpServers": {"a": {"command": "${input:key}"}}}',
        "${input:...} asks a person",
    ),
    "a server of no form": ('{"mcpServers": {"a": {}}}', "mcpServers.a"),
    "half a character": ('{"mcpServers": {"a": {"command": "\\ud800"}}}', "cannot be"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_moved_is_told_and_stays(case: str, write: Write, tmp_path: Path) -> None:
    content, said = REFUSED[case]
    file = write("cursor", content)
    ran = invoke("install", "cursor")
    assert ran.exit_code == 2
    assert said in ran.stderr
    assert file.read_text() == content
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [file.name]


@pytest.mark.parametrize(
    "config", ["{store: {kind: memory}}", "mcpServers: {a: {command: x}}", "mcpServers: 5", "[", "- a", "upstreams: 5"]
)
def test_a_configuration_that_cannot_be_added_to_is_told_and_stays(config: str, write: Write, tmp_path: Path) -> None:
    file = write()
    before = file.read_bytes()
    (tmp_path / "mine.yaml").write_text(config)
    ran = invoke("install", "claude-desktop", "--config", str(tmp_path / "mine.yaml"))
    assert ran.exit_code == 2
    assert "mine.yaml" in ran.stderr
    assert (file.read_bytes(), (tmp_path / "mine.yaml").read_text()) == (before, config)


def test_a_server_of_the_same_name_is_told(write: Write, tmp_path: Path) -> None:
    write()
    (tmp_path / "mine.yaml").write_text("upstreams:\n  files: {command: x}\n")
    ran = invoke("install", "claude-desktop", "--config", str(tmp_path / "mine.yaml"))
    assert ran.exit_code == 2
    assert "an upstream of this name is on line" in ran.stderr


def test_what_is_not_there_is_told(write: Write, tmp_path: Path) -> None:
    assert "neither a client (claude-desktop, cursor" in invoke("install", "nobody").stderr
    assert "cannot be read" in invoke("install", "cursor").stderr
    write()
    assert "names no mcp-mirror" in invoke("uninstall", "claude-desktop").stderr
    assert invoke("install", "claude-desktop").exit_code == 0
    config = tmp_path / ".config/mcp-mirror/claude-desktop.yaml"
    for broken in ("[", "5", "mcpServers: 5"):
        config.write_text(broken)
        assert f"claude_desktop_config.json{KEPT_AS}" in invoke("uninstall", "claude-desktop").stderr
    config.unlink()
    assert "cannot be read: No such file" in invoke("uninstall", "claude-desktop").stderr


def test_a_file_that_cannot_be_written_is_told(write: Write, tmp_path: Path) -> None:
    file = write()
    (tmp_path / ".config/mcp-mirror").write_text("no folder")
    ran = invoke("install", "claude-desktop")
    assert ran.exit_code == 2
    assert "cannot be written" in ran.stderr
    assert read(file)["mcpServers"] == SERVERS


def test_a_link_stays_one_and_rights_stay(write: Write, tmp_path: Path) -> None:
    file = write()
    real = tmp_path / "dotfiles.json"
    file.rename(real)
    real.chmod(0o640)
    file.symlink_to(real)
    assert invoke("install", "claude-desktop").exit_code == 0
    assert file.is_symlink()
    assert "mirror" in read(real)["mcpServers"]
    assert real.stat().st_mode & 0o777 == 0o640


def test_a_client_without_a_file_yet_gets_one(tmp_path: Path) -> None:
    (tmp_path / ".cursor").mkdir()
    (tmp_path / "mine.yaml").write_text("upstreams: {one: {command: x}}")
    assert invoke("install", "cursor", "--config", str(tmp_path / "mine.yaml")).exit_code == 0
    assert list(read(tmp_path / ".cursor/mcp.json")["mcpServers"]) == ["mirror"]


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
SERVER = st.fixed_dictionaries({"command": TEXTS.filter(str.strip)}, optional={"args": st.lists(TEXTS, max_size=3)})
NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,12}", fullmatch=True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(NAMES, SERVER, min_size=1, max_size=4))
def test_any_servers_come_back_as_they_were(write: Write, tmp_path: Path, servers: dict[str, Any]) -> None:
    file = write(content=json.dumps({"mcpServers": servers}))
    (tmp_path / ".config/mcp-mirror/claude-desktop.yaml").unlink(missing_ok=True)
    change = plan_install(find_client("claude-desktop"), None, {})
    carry_out(change)
    for one in load_config(change.config, {}).upstreams:
        assert isinstance(one.endpoint, StdioEndpoint)
        assert one.endpoint.args == tuple(servers[one.name].get("args", ()))
    carry_out(plan_uninstall(find_client("claude-desktop")))
    assert read(file)["mcpServers"] == servers

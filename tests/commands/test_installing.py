"""`mcp-mirror install --merge` and `uninstall`: servers move and come back, and nothing else in either file changes."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from mcp_mirror.cli.install.files import BACKUP_SUFFIX
from mcp_mirror.cli.install.merge import MERGED, find_mergeable, plan_merging, plan_unmerging
from mcp_mirror.cli.install.plans import apply_installation, apply_removal
from mcp_mirror.cli.main import app
from mcp_mirror.config import load_config
from mcp_mirror.errors import ConfigError
from mcp_mirror.settings.upstreams import HttpEndpoint, StdioEndpoint

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
        file = find_mergeable(name).file
        file.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else json.dumps({**OTHER, block_of(name): servers or SERVERS})
        file.write_text(text, "utf-8")
        return file

    return write


def block_of(name: str) -> str:
    """The key of the servers in the file of a client."""
    return "servers" if name == "vscode" else "mcpServers"


def invoke(command: str, *args: str) -> Result:
    """Run a command; `install` does not connect to the servers, which do not exist."""
    more = ["--merge", "--no-connect"] if command == "install" else []
    return CliRunner().invoke(app, [command, *more, *args])


def read(file: Path) -> Any:
    return json.loads(file.read_text("utf-8"))


@pytest.mark.parametrize("name", MERGED)
def test_servers_move_and_come_back(name: str, write: Write, tmp_path: Path) -> None:
    file, block = write(name), block_of(name)
    before = file.read_bytes()
    ran = invoke("install", name)
    assert ran.exit_code == 0, ran.output
    config = tmp_path / ".config" / "mcp-mirror" / f"{name}.yaml"
    [entry] = read(file)[block].values()
    assert {key: read(file)[key] for key in OTHER} == OTHER
    assert entry["args"] == ["serve", "--config", str(config)]
    assert shutil.which(entry["command"]) == entry["command"]
    assert entry.get("type") == ("stdio" if block == "servers" else None)
    files, search = (one.endpoint for one in load_config(config, {}).upstreams)
    assert isinstance(files, StdioEndpoint)
    assert isinstance(search, HttpEndpoint)
    assert (files.command, files.args, files.env["KEY"]) == ("npx", tuple(FILES["args"]), "a: b # c")
    assert search.url == SEARCH["url"]
    assert file.with_name(file.name + BACKUP_SUFFIX).read_bytes() == before
    assert {path.stat().st_mode & 0o777 for path in (config, file.with_name(file.name + BACKUP_SUFFIX))} == {0o600}
    assert f"mcp-mirror check --config {config}" in ran.stderr
    assert invoke("uninstall", name).exit_code == 0
    assert file.read_bytes() == before
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]
    assert invoke("install", name).exit_code == 0
    assert read(file)[block] == {"mirror": entry}


@pytest.mark.parametrize("is_there", [True, False])
def test_uninstall_keeps_later_changes_of_the_file(is_there: bool, write: Write) -> None:  # noqa: FBT001
    file = write()
    assert invoke("install", "claude-desktop").exit_code == 0
    installed = read(file)["mcpServers"] if is_there else {}
    work = {"command": "mcp-mirror", "args": ["serve", "--config", "/work.yaml"], "env": {"KEY": "k"}}
    since = {"files": {"command": "new"}, "late": {}, "work": work}
    file.write_text(json.dumps({"scale": 2, "mcpServers": {**installed, **since}}))
    ran = invoke("install", "claude-desktop")
    assert ran.exit_code == 2
    assert f"{file.name}{BACKUP_SUFFIX} is the backup of an earlier installation" in ran.stderr
    assert invoke("uninstall", "claude-desktop").exit_code == 0
    assert read(file) == {"scale": 2, "mcpServers": {**SERVERS, **since}}


@pytest.mark.parametrize("written", [1, 2])
def test_an_interrupted_install_can_be_repeated(written: int, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write()
    before = file.read_bytes()

    def write_some(path: Path, data: bytes) -> None:
        nonlocal written
        written -= 1
        if written < 0:
            raise ConfigError("The disk is full.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    with monkeypatch.context() as patch:
        patch.setattr("mcp_mirror.cli.install.plans.write_file", write_some)
        assert invoke("install", "claude-desktop").exit_code == 2
    assert file.read_bytes() == before
    assert invoke("install", "claude-desktop").exit_code == 0
    assert invoke("uninstall", "claude-desktop").exit_code == 0
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "wrapped",
    [
        {"command": "mcp-mirror", "args": ["wrap", "--", "npx", "-y", "x"]},
        {"command": "uvx", "args": ["mcp-mirror@latest", "wrap", "--url", "https://example.com/mcp"]},
        {"transport": {"type": "stdio", "command": "mcp-mirror", "args": ["wrap", "--", "npx", "-y", "x"]}},
        {"command": "python", "args": ["-m", "mcp_mirror", "memory"]},
    ],
)
def test_install_does_not_put_wrapped_servers_behind_a_second_gateway(wrapped: Any, write: Write) -> None:
    file = write(files=FILES, mine=wrapped)
    before = file.read_bytes()
    result = invoke("install", "claude-desktop")
    assert result.exit_code == 2
    assert "'mine'" in result.stderr
    assert "mcp-mirror wrap" in result.stderr
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "gateway",
    [
        {"command": "/usr/bin/mcp-mirror", "args": ["serve", "--config=mine.yaml"], "env": {"KEY": "k"}},
        {"command": "uvx", "args": ["mcp-mirror@latest", "serve", "-c", "${workspaceFolder}/mine.yaml"]},
        {"command": "python", "args": ["-m", "mcp_mirror", "serve"]},
        {"command": ["mcp-mirror", "serve"]},
        {"command": {"path": "mcp-mirror", "args": ["serve"]}, "args": None},
    ],
)
def test_install_keeps_a_gateway_that_the_user_added(gateway: Any, write: Write) -> None:
    file = write(files=FILES, mine=gateway)
    before = file.read_bytes()
    for command, message in (("install", "starts mcp-mirror already"), ("uninstall", "does not exist")):
        ran = invoke(command, "claude-desktop")
        assert (ran.exit_code, file.read_bytes()) == (2, before)
        assert message in ran.stderr


def test_servers_over_the_size_of_a_configuration_are_not_moved(write: Write) -> None:
    file = write(files={"command": "npx", "args": ["x" * (1 << 20)]})
    before = file.read_bytes()
    ran = invoke("install", "claude-desktop")
    assert (ran.exit_code, file.read_bytes()) == (2, before)
    assert "larger than 1048576 bytes" in ran.stderr


def test_a_configuration_that_was_changed_stays(write: Write, tmp_path: Path) -> None:
    file, config = write(), tmp_path / "mine.yaml"
    assert invoke("install", "claude-desktop", "--config", str(config)).exit_code == 0
    config.write_text(config.read_text() + "store: {kind: memory}\n")
    assert f"{config} was edited and stays" in invoke("uninstall", "claude-desktop").stderr
    before = [path.read_bytes() for path in (file, config)]
    ran = invoke("install", "claude-desktop", "--config", str(config))
    assert ran.exit_code == 2
    assert f"{config} exists already. Move it away, or name another file" in ran.stderr
    assert [path.read_bytes() for path in (file, config)] == before


def test_no_file_is_written_over_another(write: Write) -> None:
    file = write()
    before = file.read_bytes()
    for config in (file, file.with_name(file.name + BACKUP_SUFFIX), file.parent, Path("/")):
        ran = invoke("install", "claude-desktop", "--config", str(config))
        assert (ran.exit_code, file.read_bytes()) == (2, before)
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("block", ["mcpServers", "servers"])
def test_a_client_is_also_known_by_its_file(block: str, tmp_path: Path) -> None:
    file = tmp_path / "a project" / ".mcp.json"
    file.parent.mkdir()
    file.write_text(json.dumps({block: SERVERS}))
    ran = invoke("install", str(file))
    assert read(file)[block]["mirror"]["args"][-1] == str(file.with_name("mcp-mirror.yaml"))
    assert f"mcp-mirror uninstall '{file}'" in ran.stderr
    assert f"Claude Code ({file}):\n  moved to {file.with_name('mcp-mirror.yaml')}: files, search\n" in ran.stderr
    assert "out of version control" in ran.stderr
    assert invoke("uninstall", str(file)).exit_code == 0
    assert read(file) == {block: SERVERS}


@pytest.mark.parametrize("block", ["mcpServers", "servers"])
def test_servers_are_restored_if_the_client_file_lost_all(block: str, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({block: SERVERS}))
    assert invoke("install", str(file)).exit_code == 0
    file.write_text("{}")
    assert invoke("uninstall", str(file)).exit_code == 0
    assert read(file) == {block: SERVERS}


@pytest.mark.parametrize("late", ['"late": {"command": "y"}, ', ""])
@pytest.mark.parametrize(
    ("head", "tail"),
    [
        ('{"scale": 1e400, "half": "\\ud800", ', "}"),
        ('\ufeff{ // mine\r\n\t"x": [1,],\r\n\t', "\r\n\t// end\r\n}\r\n"),
        ("/* mine */ {", ', "mcp": {"a": {}, "a": 1,}}\n\n'),
    ],
)
def test_the_text_around_the_servers_stays(late: str, head: str, tail: str, write: Write) -> None:
    servers = '"mcpServers": {\n  // first\n  "a": {"command": "x"}, // second\n}'
    file = write(content=f"{head}{servers}{tail}")
    before = file.read_bytes()
    assert invoke("install", "claude-desktop").exit_code == 0
    merged = file.read_bytes().decode()
    assert (merged.startswith(head), merged.endswith(tail)) == (True, True)
    assert '"mirror": {"command": ' in merged
    file.write_bytes(merged.replace('"mirror"', f'{late}"mirror"').encode())
    assert invoke("uninstall", "claude-desktop").exit_code == 0
    restored = file.read_bytes().decode()
    assert re.sub(r'\s*"late": \{\s*"command": "y"\s*\},', "", restored).encode() == before
    assert ('"late"' in restored) is bool(late)


def test_a_file_that_the_user_restored_stays_as_it_is(write: Write) -> None:
    file = write(content='{"mcpServers": {"a": {\n  // mine\n  "command": "x"}}} // end\n')
    before = file.read_bytes()
    assert invoke("install", "claude-desktop").exit_code == 0
    file.write_bytes(before)
    assert invoke("uninstall", "claude-desktop").exit_code == 0
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_a_file_without_a_suffix_is_restored_too(tmp_path: Path) -> None:
    file = tmp_path / "servers"
    file.write_text(json.dumps({"mcpServers": SERVERS}))
    before = file.read_bytes()
    assert invoke("install", str(file)).exit_code == 0
    assert invoke("uninstall", str(file)).exit_code == 0
    assert [path.read_bytes() for path in tmp_path.iterdir() if path.is_file()] == [before]


def test_a_file_that_changes_during_the_installation_is_kept(write: Write) -> None:
    file = write()
    plan = plan_merging(find_mergeable("claude-desktop"), None, os.environ)
    file.write_text("{}")
    with pytest.raises(ConfigError, match="changed at the same time"):
        apply_installation(plan)
    assert [path.read_text() for path in file.parent.iterdir()] == ["{}"]


@pytest.mark.parametrize("left", ["", "{}", '{"scale": 2}', '{"scale": 2, "mcpServers": null}'])
def test_servers_are_restored_by_the_name_of_the_client(left: str, write: Write) -> None:
    file = write()
    before = read(file)
    assert invoke("install", "claude-desktop").exit_code == 0
    file.write_text(left)
    assert invoke("uninstall", "claude-desktop").exit_code == 0
    assert read(file) == ({"scale": 2, "mcpServers": SERVERS} if "scale" in left else before)


def test_a_client_that_is_named_by_its_file_is_the_same(write: Write, tmp_path: Path) -> None:
    file = write(told={"command": "x", "args": ["${HOME}"]})
    assert invoke("install", "claude-desktop").exit_code == 0
    assert invoke("uninstall", str(file)).exit_code == 0
    assert read(file)["mcpServers"]["told"]["args"] == ["${HOME}"]
    link = tmp_path / "link.json"
    link.symlink_to(file)
    assert find_mergeable(str(link)).client.title == "Claude Desktop"


def test_variables_that_a_client_does_not_expand_stay_text(write: Write, tmp_path: Path) -> None:
    entry = {"command": "x", "args": ["${HOME}", "$${x}", "$y", "{z}"]}
    write(told=entry)
    assert invoke("install", "claude-desktop").exit_code == 0
    (upstream,) = load_config(tmp_path / ".config/mcp-mirror/claude-desktop.yaml", {}).upstreams
    assert isinstance(upstream.endpoint, StdioEndpoint)
    assert upstream.endpoint.args == tuple(entry["args"])


def test_variables_are_handed_on_as_the_client_spells_them(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KEY", "OTHER"):
        monkeypatch.setenv(name, "k")
    file = write("cursor", a={"command": "x", "args": ["${OTHER}", "${NONE:-no}"], "env": {"A": "${env:KEY}"}})
    assert invoke("install", "cursor").exit_code == 0
    assert read(file)["mcpServers"]["mirror"]["env"] == {"OTHER": "${OTHER}", "KEY": "${env:KEY}"}


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_install_warns_about_settings_that_it_ignores(more: list[str], write: Write) -> None:
    write("cursor", a={"command": "x", "envFile": ".env"})
    assert "mcpServers.a.envFile: the file is not read" in invoke("install", "cursor", *more).stderr


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


REFUSED: dict[str, tuple[str, str]] = {
    "a server twice": ('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}', "the key 'a' appears twice"),
    "too deep": ("[" * 100_000, "cannot be read as JSON: it is nested too deeply"),
    "a server too deep": ('{"mcpServers": {"a": {"x": ' + "[" * 900 + "]" * 900 + "}}}", "is nested too deep"),
    "nothing but a line": ("\n", "contains no servers"),
    "no object": ("[]", "contains no object"),
    "no servers": ('{"mcpServers": [1]}', "is not an object of servers"),
    "nothing to move": ("{}", "contains no servers"),
    "half a character in a server": ('{"mcpServers": {"a": {"command": "\\ud800"}}}', "Nothing was changed"),
    "a variable that is not set": ('{"mcpServers": {"a": {"command": "x", "env": {"K": "${NOT_SET}"}}}}', "NOT_SET"),
    "a variable of the client's": ('{"mcpServers": {"a": {"command": "${userHome}/x"}}}', "by their values"),
    "what the client asks a person": (
        '{"mcpServers": {"a": {"command": "${input:key}"}}}',
        "cannot ask a person for ${input:...}",
    ),
    "a folder of another name": (
        '{"mcpServers": {"a": {"command": "x", "working_directory": "b"}}}',
        "Write the absolute path",
    ),
    "a folder in a transport": (
        '{"mcpServers": {"a": {"transport": {"command": "x", "cwd": "here"}}}}',
        "Write the absolute path",
    ),
    "a folder beside": ('{"mcpServers": {"a": {"command": "x", "cwd": "here"}}}', "Write the absolute path"),
    "a server of no form": ('{"mcpServers": {"a": {}}}', "mcpServers.a"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_servers_that_cannot_be_moved_stay_with_a_warning(case: str, write: Write, tmp_path: Path) -> None:
    content, message = REFUSED[case]
    file = write("cursor", content)
    ran = invoke("install", "cursor")
    assert ran.exit_code == 2
    assert message in ran.stderr
    assert file.read_text() == content
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [file.name]


def test_unknown_clients_and_missing_files_are_reported(write: Write) -> None:
    assert "neither a client (claude-desktop, claude-code" in invoke("install", "nobody").stderr
    assert "neither a client (claude-desktop, claude-code" in invoke("install", "~nobody/x.json").stderr
    assert "neither a client (claude-desktop, claude-code" in invoke("uninstall", "nobody.json").stderr
    assert "--merge knows claude-desktop, cursor, vscode, windsurf by name" in invoke("install", "gemini").stderr
    assert "does not exist" in invoke("install", "cursor").stderr
    file = write()
    assert f"There is nothing to uninstall: {file} does not start" in invoke("uninstall", "claude-desktop").stderr
    invoke("install", "claude-desktop")
    backup = Path(f"{file}{BACKUP_SUFFIX}")
    backup.unlink()
    ran = invoke("uninstall", "claude-desktop")
    assert f"The backup {backup} of" in ran.stderr
    assert "by hand" in ran.stderr


def test_servers_under_two_keys_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "two.json"
    file.write_text(json.dumps({"servers": {}, "mcpServers": SERVERS}))
    assert invoke("install", str(file), "--dry-run").exit_code == 0
    file.write_text(json.dumps({"servers": SERVERS, "mcpServers": SERVERS}))
    assert "has servers under 'mcpServers' and 'servers'" in invoke("install", str(file)).stderr


@pytest.mark.parametrize("config", ["x" * 300, "loop", "loop/x.yaml", "file/x.yaml"])
def test_a_configuration_that_cannot_be_written_is_reported(config: str, write: Write, tmp_path: Path) -> None:
    file = write()
    before = file.read_bytes()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").write_text("")
    ran = invoke("install", "claude-desktop", "--config", str(tmp_path / config))
    assert ran.exit_code == 2
    assert "cannot be written" in ran.stderr
    assert file.read_bytes() == before
    assert "neither a client" in invoke("install", str(tmp_path / config)).stderr


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
    assert sorted(path.name for path in tmp_path.iterdir()) == [".config", "dotfiles.json"]


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
SERVER = st.fixed_dictionaries({"command": TEXTS.filter(str.strip)}, optional={"args": st.lists(TEXTS, max_size=3)})
NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,12}", fullmatch=True)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    servers=st.dictionaries(NAMES, SERVER, min_size=1, max_size=4),
    spaces=st.sampled_from([None, 2]),
    is_marked=st.booleans(),
)
def test_any_servers_come_back_as_they_were(
    write: Write, *, servers: dict[str, Any], spaces: int | None, is_marked: bool
) -> None:
    text = json.dumps({"mcpServers": servers}, indent=spaces, ensure_ascii=False)
    file = write(content="\ufeff" + text.replace("\n", "\r\n") if is_marked else text)
    before = file.read_bytes()
    target = find_mergeable("claude-desktop")
    plan = plan_merging(target, None, os.environ)
    apply_installation(plan)
    assert plan.config is not None
    for one in load_config(plan.config.path, {}).upstreams:
        assert isinstance(one.endpoint, StdioEndpoint)
        assert one.endpoint.args == tuple(servers[one.name].get("args", ()))
    assert not apply_removal(plan_unmerging(target))
    assert file.read_bytes() == before

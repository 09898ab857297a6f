"""The table of commands: complete help without imports, and a gateway that imports only its own parts."""

import hashlib
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from mcp_mirror.cli.main import COMMANDS, app, load_command

BOUND = 60
HEAVY = {"mcp_mirror.app", "mcp_mirror.config", "mcp", "pydantic", "anyio", "yaml"}
"""Packages that help does not need."""
GATEWAY_MODULES = {"mcp", "mcp_mirror.app"}
"""Modules whose import takes a second."""
BESIDE = ("mcp_mirror.evals", "mcp_mirror.demo", "mcp_mirror.prune", "mcp_mirror.dashboard", "mcp_mirror.library")
"""Packages that a gateway does not need."""


def modules_after(program: str, *arguments: str) -> set[str]:
    """The modules that are loaded when a program has ended."""
    script = f"import json, sys\n{program}\nprint(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=True,
    )
    return set(json.loads(ran.stdout.splitlines()[-1]))


def test_help_lists_every_command_on_a_line_of_80_columns() -> None:
    ran = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"})
    listed = [line.strip("│ ").split(None, 1) for line in ran.stdout.splitlines()]
    for name, (_, line) in COMMANDS.items():
        assert [name, line] in listed


@pytest.mark.parametrize("name", ["values", "config"])
def test_help_lists_the_commands_of_a_group_on_lines_of_80_columns(name: str) -> None:
    ran = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "80"})
    _, _, listed = ran.stdout.partition("Commands")
    assert listed.count("\n│") == len(load_command(name).commands)


@pytest.mark.parametrize("words", [[], ["check"], ["values", "list"]])
def test_h_is_short_for_help(words: list[str]) -> None:
    shorter, longer = (CliRunner().invoke(app, [*words, option]) for option in ("-h", "--help"))
    assert (shorter.exit_code, shorter.stdout) == (0, longer.stdout)


def test_help_imports_no_command() -> None:
    program = "from mcp_mirror.cli.main import app\ntry:\n  app(['--help'])\nexcept SystemExit:\n  pass"
    assert not HEAVY & modules_after(program)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_a_command_begins_its_own_help(name: str) -> None:
    own, *_ = (load_command(name).help or "").split("\n\n")
    assert own == COMMANDS[name][1]


@pytest.mark.parametrize("words", [["wrap"], ["install"], ["values", "list"]])
def test_a_paragraph_of_help_is_as_wide_as_the_terminal(words: list[str]) -> None:
    ran = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "1000"})
    text = ran.stdout.partition("Usage:")[2].partition("╭")[0]
    lines = [line.strip() for line in text.splitlines()[1:]]
    assert all(not before or not after for before, after in pairwise(lines))


def test_serve_imports_only_the_gateway(tmp_path: Path) -> None:
    config = tmp_path / "mirror.yaml"
    config.write_text(f"store: {{kind: disk, path: {tmp_path / 'values'}}}\n")
    program = "from mcp_mirror.cli.main import app\napp(sys.argv[1:], standalone_mode=False)"
    loaded = modules_after(program, "serve", "--config", str(config))
    assert "mcp_mirror.server.stdio" in loaded
    assert not [name for name in loaded if name.startswith(BESIDE)]


REFUSING = """
import io
from mcp_mirror.cli.main import app
sys.stderr = io.StringIO()
for words in json.loads(sys.argv[1]):
    try:
        app(words)
    except SystemExit as end:
        assert end.code == 2, words
    reason = sys.stderr.getvalue()
    assert reason.startswith(sys.argv[2]), (words, reason)
    sys.stderr.seek(0)
    sys.stderr.truncate()
"""
"""Runs commands, which must all end with code 2 and a reason."""
GATEWAYS = ("serve", "check", "call", "lock")


def modules_after_refusals(commands: list[list[str]], reason: str) -> set[str]:
    return modules_after(REFUSING, json.dumps(commands), reason)


def test_a_missing_configuration_is_reported_before_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("MCP_MIRROR_CONFIG", raising=False)
    commands = [["check"], ["call", "x", "--arg", "a=b"], ["lock", "-v"], ["serve", "--workers", "2"]]
    assert not GATEWAY_MODULES & modules_after_refusals(commands, "mcp-mirror: No configuration file: looked for ")
    (tmp_path / "some.yaml").write_text("upstreams: [")
    ran = CliRunner().invoke(app, ["check", "-vcsome.yaml"])
    assert ran.stderr.startswith("mcp-mirror: some.yaml:1: ")


@pytest.mark.parametrize("is_option", [False, True])
def test_a_missing_file_is_reported_before_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_option: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MCP_MIRROR_CONFIG", __file__ if is_option else "gone.yaml")
    spelled = [["--config", "gone.yaml"], ["--config=gone.yaml"], ["-c", "gone.yaml"], ["-vcgone.yaml"]]
    commands = [
        [command, *option, *(["tool"] if command == "call" else [])]
        for command in GATEWAYS
        for option in (spelled if is_option else [[]])
    ]
    reason = "mcp-mirror: gone.yaml: the configuration cannot be read: No such file"
    assert not GATEWAY_MODULES & modules_after_refusals(commands, reason)


def test_a_mistyped_command_is_corrected() -> None:
    ran = CliRunner().invoke(app, ["serv"])
    assert ran.exit_code == 2
    assert "Did you mean 'serve'?" in ran.output


@pytest.mark.parametrize("name", ["alice", "ann@example.com", "a: b", "#1", "[x]", 'say "x"', "-", "ä"])
def test_the_lines_of_a_new_token_are_configuration(name: str) -> None:
    ran = CliRunner().invoke(app, ["token", "--", name])
    _, _, lines = ran.stderr.partition("hash:\n")
    digest = hashlib.sha256(ran.stdout.strip().encode()).hexdigest()
    assert yaml.safe_load(lines) == {"auth": {"tokens": {name: f"sha256:{digest}"}}}


def test_characters_that_the_output_cannot_encode_are_escaped(tmp_path: Path) -> None:
    """Python writes to pipes in the code page of Windows, which has few characters."""
    file = tmp_path / "caf\u00e9 \U0001f389.json"
    file.write_text('{"mcpServers": {"a": {"command": "x"}}}')
    ran = subprocess.run(
        [sys.executable, "-m", "mcp_mirror", "install", str(file), "--dry-run"],
        env={**os.environ, "PYTHONIOENCODING": "cp1252"},
        capture_output=True,
        timeout=BOUND,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode("cp1252")
    assert "caf\u00e9 \\U0001f389.json" in ran.stdout.decode("cp1252")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
@pytest.mark.parametrize("arguments", [["config", "schema"], ["version"], ["token", "alice"], ["stats"]])
def test_output_onto_a_full_disk_is_one_line_of_error(arguments: list[str], tmp_path: Path) -> None:
    environment = os.environ | {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "mcp_mirror", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env=environment,
            timeout=BOUND,
            check=False,
            text=True,
        )
    *_, last = ran.stderr.splitlines()
    assert last == ("mcp-mirror: the output cannot be written: No space left on device. Make room, or redirect it.")
    assert "Traceback" not in ran.stderr
    assert ran.returncode == 1

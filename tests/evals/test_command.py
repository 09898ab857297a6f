"""`mcp-mirror eval` as a command: its table, its log, its exit codes, and its continuation."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gateway_processes import forked_python
from scripted import scripted_server
from typer.testing import CliRunner, Result

from mcp_mirror.cli.main import app

COMMAND = str(Path(sys.executable).parent / "mcp-mirror")
PLAIN = """---
title: An answer
servers: {upstreams: {}}
answer: {contains: [blue]}
---
Which colour has the sky?
"""
BOUND = 60


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """A case without servers, which starts no process."""
    path = tmp_path / "plain.md"
    path.write_text(PLAIN)
    return path


def arguments(case: Path, url: str, *more: str) -> list[str]:
    return [COMMAND, "eval", str(case), "--base-url", url, "--gateway", "no", *more]


def run(*command: str) -> Result:
    return CliRunner().invoke(app, command[1:])


def _restore_sigint() -> None:
    """Handle Ctrl-C: processes in the background of a shell ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupted_evaluation_continues_with_the_missing_runs(case: Path, tmp_path: Path) -> None:
    log = tmp_path / "runs.jsonl"
    more = ("--model", "sky", "--repeats", "3", "--log", str(log), "--format", "json", "--by", "case")
    with scripted_server() as server:
        server.scripts["sky"] = ["It is blue."]
        server.hold = 2
        broken = subprocess.Popen(forked_python(*arguments(case, server.url, *more)), stdout=subprocess.PIPE, text=True)
        assert server.blocked.wait(BOUND)
        broken.send_signal(signal.SIGINT)
        output, _ = broken.communicate(timeout=BOUND)
        assert broken.returncode == 130
        assert json.loads(output)[0]["runs"] == 1
        with log.open("a") as file:
            file.write('{"key": "broken o')
        server.hold = None
        server.release.set()
        server.seen.clear()
        ended = run(*arguments(case, server.url, *more, "--require", "1"))
        assert ended.exit_code == 0, ended.stderr
        assert sorted({body["seed"] for body in server.seen}) == [2, 3]
        row = json.loads(ended.stdout)[0]
        assert (row["runs"], row["success"], row["void"]) == (3, 3, 0)
        assert [json.loads(line)["seed"] for line in log.read_text().splitlines()] == [1, 2, 3]


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo terminals need a POSIX system")
def test_a_terminal_shows_how_many_runs_are_done(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    terminal, device = os.openpty()
    with scripted_server() as server:
        server.scripts["sky"] = ["It is blue."]
        server.hold = 2
        command = arguments(case, server.url, "--model", "sky", "--repeats", "2", "--format", "json", "--by", "case")
        evaluation = subprocess.Popen(forked_python(*command), stdout=subprocess.PIPE, stderr=device, text=True)
        try:
            shown = _read_until(terminal, b"1/2")
            assert b"runs, 1 succeeded" in shown
            server.release.set()
            output, _ = evaluation.communicate(timeout=BOUND)
            _read_until(terminal, b"2/2")
        finally:
            evaluation.kill()
            evaluation.wait(BOUND)
            os.close(terminal)
            os.close(device)
    assert json.loads(output)[0]["runs"] == 2


def _read_until(terminal: int, text: bytes) -> bytes:
    shown = b""
    while text not in shown:
        assert select.select([terminal], [], [], BOUND)[0], shown
        shown += os.read(terminal, 1 << 16)
    return shown


def test_a_void_run_is_reported_and_repeated(case: Path, tmp_path: Path) -> None:
    log = tmp_path / "runs.jsonl"
    with scripted_server() as server:
        server.scripts["sky"] = [{"status": 401, "body": "no such key"}, "It is red."]
        command = arguments(case, server.url, "--model", "sky", "--log", str(log), "--format", "markdown")
        void = run(*command)
        assert (void.exit_code, "no such key" in void.stderr) == (1, True)
        again = run(*command, "--require", "0.5")
        assert again.exit_code == 1
        assert "| plain | 0/1 |" in again.stdout
        assert [json.loads(line)["end"] for line in log.read_text().splitlines()] == ["error", "answered"]


def test_the_evaluation_stops_after_five_void_runs_in_a_row(case: Path, tmp_path: Path) -> None:
    log = tmp_path / "runs.jsonl"
    with scripted_server() as server:
        server.scripts["sky"] = [{"status": 401, "body": "no such key"}] * 9
        ended = run(*arguments(case, server.url, "--model", "sky", "--log", str(log), "--repeats", "9"))
    assert ended.exit_code == 1
    assert ended.stderr.count("a run failed: ") == 1
    assert "stopped, because 5 runs in a row failed" in ended.stderr
    assert len(log.read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--model", "sky", "--notice", "loud"], "unknown style 'loud'. The styles are compact, paper, json"),
        ([], "--model and --base-url"),
        (["--profile", "nowhere.yaml:small"], "nowhere.yaml: cannot be read"),
        (["--model", "sky", "--variant", "terse"], "unknown variant 'terse'"),
        (["--model", "sky", "nothing.md"], "nothing.md: no case file was found"),
        (["--model", "sky", "--few-shot", "yes"], "The matrix has no run"),
    ],
)
def test_an_error_names_what_cannot_be_run(case: Path, more: list[str], message: str) -> None:
    ended = run(*arguments(case, "http://127.0.0.1:9/v1", *more))
    assert (ended.exit_code, message in ended.stderr) == (2, True), ended.stderr


def test_the_command_line_overrides_the_profile(case: Path, tmp_path: Path) -> None:
    profiles: dict[str, Any] = {
        "models": {"a": {"base_url": "", "model": "sky", "tools": "json_text", "temperature": 0.5}},
        "matrices": {"two": {"models": ["a"], "cases": [case.name], "gateway": [False], "repeats": 2}},
    }
    file = tmp_path / "profiles.yaml"
    file.write_text(json.dumps(profiles))
    with scripted_server() as server:
        server.scripts["sky"] = ["It is blue."]
        ended = run(
            COMMAND, "eval", "--profile", f"{file}:two", "--base-url", server.url, "--format", "json", "--seed", "7"
        )
        assert ended.exit_code == 0, ended.stderr
        assert {(body["seed"], body["temperature"], "tools" in body) for body in server.seen} == {
            (7, 0.5, False),
            (8, 0.5, False),
        }
        assert json.loads(ended.stdout)[-1]["success"] == 2

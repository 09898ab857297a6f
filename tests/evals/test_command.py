"""`mcp-mirror eval` as a command: its table, its log, its exit codes, and how it goes on."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
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


def _heed_interrupts() -> None:
    """Where the tests themselves run in the background of a shell, they and their children ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_what_was_broken_off_goes_on_where_it_was(case: Path, tmp_path: Path) -> None:
    log = tmp_path / "runs.jsonl"
    more = ("--model", "sky", "--repeats", "3", "--log", str(log), "--format", "json", "--by", "case")
    with scripted_server() as server:
        server.scripts["sky"] = ["It is blue."]
        server.hold = 2
        broken = subprocess.Popen(arguments(case, server.url, *more), stdout=subprocess.PIPE, text=True)
        assert server.held.wait(BOUND)
        broken.send_signal(signal.SIGINT)
        said, _ = broken.communicate(timeout=BOUND)
        assert broken.returncode == 130
        assert json.loads(said)[0]["runs"] == 1
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


def test_a_void_run_is_told_and_made_again(case: Path, tmp_path: Path) -> None:
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


def test_where_nothing_works_it_ends_soon(case: Path, tmp_path: Path) -> None:
    log = tmp_path / "runs.jsonl"
    with scripted_server() as server:
        server.scripts["sky"] = [{"status": 401, "body": "no such key"}] * 9
        ended = run(*arguments(case, server.url, "--model", "sky", "--log", str(log), "--repeats", "9"))
    assert ended.exit_code == 1
    assert ended.stderr.count("a run failed: ") == 1
    assert "5 runs in a row failed, so that no more are made" in ended.stderr
    assert len(log.read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--model", "sky", "--notice", "loud"], "no style 'loud'. There are compact, paper, json"),
        ([], "--model and --base-url"),
        (["--profile", "nowhere.yaml:small"], "nowhere.yaml: cannot be read"),
        (["--model", "sky", "--variant", "terse"], "no variant 'terse'"),
        (["--model", "sky", "nothing.md"], "nothing.md: there is no case"),
        (["--model", "sky", "--few-shot", "yes"], "Nothing is to be run"),
    ],
)
def test_what_cannot_be_run_is_told(case: Path, more: list[str], said: str) -> None:
    ended = run(*arguments(case, "http://127.0.0.1:9/v1", *more))
    assert (ended.exit_code, said in ended.stderr) == (2, True), ended.stderr


def test_a_profile_is_a_matrix_that_the_command_line_changes(case: Path, tmp_path: Path) -> None:
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

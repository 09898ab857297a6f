"""`mcp-mirror tokens`: estimates, exact counts, and errors."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.end_to_end.conftest import BOUND
from typer.testing import CliRunner

from mcp_mirror.cli.main import app
from mcp_mirror.errors import ConfigError
from mcp_mirror.settings.policies import TokenProvider
from mcp_mirror.tokens import estimate_tokens
from mcp_mirror.tokens.exact import count_tokens

TEXT = "The gateway keeps large results out of the model's context.\n" * 40


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name, text in (("a.txt", TEXT), ("b.txt", ""), ("c.txt", TEXT * 3)):
        (tmp_path / name).write_text(text)
    return [str(tmp_path / name) for name in ("a.txt", "b.txt", "c.txt")]


def test_files_are_estimated_one_by_one_and_together(files: list[str]) -> None:
    ran = CliRunner().invoke(app, ["tokens", "--provider", "openai", *files])
    costs = [estimate_tokens(text, "openai") for text in (TEXT, "", TEXT * 3)]
    lines = [line.split() for line in ran.stdout.splitlines()]
    assert lines == [[f"{cost:,}", name] for cost, name in zip([*costs, sum(costs)], [*files, "total"], strict=True)]


def test_standard_input_is_read_where_no_file_is_named() -> None:
    assert CliRunner().invoke(app, ["tokens"], input=TEXT).stdout == f"{estimate_tokens(TEXT):,}\n"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
def test_a_pipe_is_read_although_it_has_no_size(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as threads:
        written = threads.submit(pipe.write_text, TEXT)
        ran = CliRunner().invoke(app, ["tokens", str(pipe)])
        assert written.result(BOUND) == len(TEXT)
    assert ran.stdout.split()[0] == f"{estimate_tokens(TEXT):,}"


def test_an_exact_count_is_the_tokenizers(files: list[str]) -> None:
    ran = CliRunner().invoke(app, ["tokens", "--exact", "--provider", "openai", files[0]])
    assert ran.stdout.split()[0] == f"{count_tokens(TEXT, 'openai'):,}"
    assert count_tokens(TEXT, "openai") <= estimate_tokens(TEXT, "openai") <= 1.2 * count_tokens(TEXT, "openai")


@pytest.mark.parametrize(
    ("provider", "expected"),
    [("default", "--provider"), ("google", "--tokenizer"), ("llama", "--tokenizer"), ("anthropic", "ctok")],
)
def test_missing_tokenizers_are_reported(provider: TokenProvider, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        count_tokens("a", provider)


@pytest.mark.parametrize("arguments", [["--provider", "nobody"], ["no such file"], ["--tokenizer", "none.json"]])
def test_errors_of_tokens_go_to_standard_error(arguments: list[str]) -> None:
    ran = CliRunner().invoke(app, ["tokens", *arguments], input="a")
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert ran.stderr

"""The snippets of the documentation: configurations load, commands and their options exist, JSON parses."""

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from doc_pages import PAGES, ROOT, Block, blocks
from typer.main import get_command

from mcp_mirror.cli.main import COMMANDS, app, load_command
from mcp_mirror.config import config_json_schema, parse_config

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
SECTIONS = set(config_json_schema()["properties"])
COMMAND = re.compile(r"^(?:.* -- )?(mcp-mirror [^#|\n]*)", re.MULTILINE)


def named(block: Block) -> str:
    return f"{block.page}:{block.number}"


def is_configuration(block: Block) -> bool:
    keys = set(re.findall(r"^([a-z_]+):", block.text, re.MULTILINE))
    return bool(keys) and keys <= SECTIONS


@pytest.mark.parametrize("block", [one for one in blocks("yaml") if is_configuration(one)], ids=named)
def test_a_configuration_in_the_documentation_loads(block: Block, tmp_path: Path) -> None:
    hashes = (f"sha256:{number:064x}" for number in itertools.count())
    text = re.sub(r"sha256:[0-9a-f]+\.\.\.", lambda _: next(hashes), block.text)
    has_names = "upstreams:" in text or "flows:" not in text
    undeclared = set() if has_names else {"documents", "filesystem", "crm", "mail", "web"}
    if undeclared:
        text += "\nupstreams: {" + ", ".join(f"{name}: {{command: x}}" for name in sorted(undeclared)) + "}"
    environ: dict[str, str] = defaultdict(lambda: KEY, HOME=str(tmp_path), ALICE_HASH=next(hashes))
    parse_config(text, tmp_path / "mcp-mirror.yaml", {name: environ[name] for name in re.findall(r"\$\{(\w+)", text)})


def test_the_lines_for_a_platform_team_can_be_pasted(tmp_path: Path) -> None:
    parts = [one for one in blocks("yaml") if one.page == "README.md"]
    minimal, added = (next(one.text for one in parts if key in one.text) for key in ("upstreams:\n", "auth:"))
    (tmp_path / "mcp-mirror.yaml").write_text(f"{minimal}\n{added}", encoding="utf-8")
    [pasted] = [one.text for one in blocks("console") if one.page == "README.md" and "mcp-mirror token" in one.text]
    preparation = pasted.partition("mcp-mirror lock")[0]
    command = tmp_path / "mcp-mirror"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m mcp_mirror "$@"\n', encoding="utf-8")
    command.chmod(0o700)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ended = subprocess.run(
        ["sh", "-ec", f"{preparation}\nmcp-mirror flows"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "mirror.yaml" not in ended.stderr  # a warning would name the file


def test_most_yaml_blocks_are_checked_as_configurations() -> None:
    others = [named(one) for one in blocks("yaml") if not is_configuration(one)]
    checked_elsewhere = ("docs/evaluation/", "docs/operations/kubernetes.md:")  # the values of the chart: tests/deploy
    assert all(one.startswith(checked_elsewhere) for one in others), others


@pytest.mark.parametrize("block", list(blocks("json")), ids=named)
def test_a_json_block_in_the_documentation_parses(block: Block) -> None:
    assert json.loads(block.text)


@pytest.mark.parametrize("block", list(blocks("python")), ids=named)
def test_a_python_block_in_the_documentation_compiles(block: Block) -> None:
    compile(block.text, named(block), "exec")


def commands() -> list[tuple[str, str]]:
    """Every call of mcp-mirror in console blocks and in inline code, with its page."""
    found = {(block.page, command) for block in blocks("console") for command in COMMAND.findall(block.text)}
    for page in PAGES:
        inline = re.findall(r"(?<!`)`(mcp-mirror [^`\n]+)`", page.read_text(encoding="utf-8"))
        found |= {(page.relative_to(ROOT).as_posix(), command) for command in inline}
    return sorted((page, command.strip()) for page, command in found)


@pytest.mark.parametrize(("page", "command"), commands())
def test_a_command_in_the_documentation_exists(page: str, command: str) -> None:
    words = shlex.split(re.sub(r"\[|\]", " ", command), comments=True)[1:]
    words = words[: words.index("--")] if "--" in words else words  # a wrapped server's own command follows
    current: Any = load_command(words.pop(0)) if words and words[0] in COMMANDS else get_command(app)
    while words and words[0] in getattr(current, "commands", {}):
        current = current.commands[words.pop(0)]
    options = {name for parameter in current.params for name in (*parameter.opts, *parameter.secondary_opts)} | {
        "--help"
    }
    unknown = [word for word in words if word.startswith("-") and word.rstrip("v") != "-" and word not in options]
    assert not unknown, (page, unknown)
    assert not getattr(current, "commands", {}) or words[:1] in ([], ["COMMAND"]) or words[0].startswith("-"), (
        page,
        words,
    )


def targets() -> list[str]:
    return sorted(
        {name for page in PAGES for name in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text("utf-8"), re.MULTILINE)}
    )


@pytest.mark.parametrize("target", targets())
def test_a_make_target_in_the_documentation_exists(target: str) -> None:
    assert re.search(rf"^{target}:.*##", MAKEFILE, re.MULTILINE)


def named_files() -> list[str]:
    """Files of the repository that the documentation names in code."""
    roots = "tests|docs|configs|docker|examples|evals"
    pattern = rf"`((?:{roots})/[\w./-]+\.\w+)`"
    return sorted({name for page in PAGES for name in re.findall(pattern, page.read_text("utf-8"))})


@pytest.mark.parametrize("name", named_files())
def test_a_file_that_the_documentation_names_exists(name: str) -> None:
    assert (ROOT / name).exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_of_a_page_lead_to_files(page: Path) -> None:
    text = re.sub(r"```.*?\n```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_the_readme_is_at_most_220_lines_with_its_commands_first() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 220
    assert [line.split("#")[0].strip() for line in lines[3:5]] == ["make run", "make test"]

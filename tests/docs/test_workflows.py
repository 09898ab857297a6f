"""The workflow files and the hooks parse, call existing make targets, and the package claims only tested systems."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from doc_pages import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
HOOKS = ROOT / ".pre-commit-config.yaml"
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
VERSION = re.compile(r"3\.1\d")


@pytest.mark.parametrize("file", [*WORKFLOWS, HOOKS], ids=lambda file: file.name)
def test_each_make_target_of_a_workflow_exists(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert yaml.safe_load(text)
    for target in re.findall(r"(?:run|entry): make ([a-z-]+)$", text, re.MULTILINE):
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_each_workflow_states_that_it_has_not_been_run(file: Path) -> None:
    assert "not been run" in file.read_text(encoding="utf-8").splitlines()[0]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_tests_that_measure_time_run_beside_no_others(file: Path) -> None:
    for options in re.findall(r"pytest (.*-n .*)", file.read_text(encoding="utf-8")):
        assert "not alone" in options


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_actions_are_pinned_to_commits_with_their_version_beside(file: Path) -> None:
    used = re.findall(r"uses: (.*)", file.read_text(encoding="utf-8"))
    assert used == [one for one in used if re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)]


def test_the_hooks_download_nothing() -> None:
    repos = yaml.safe_load(HOOKS.read_text(encoding="utf-8"))["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    assert {hook["language"] for hook in repos[0]["hooks"]} == {"system"}


def test_the_classifiers_claim_the_versions_that_the_readme_calls_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    claimed = {version for line in project["classifiers"] for version in VERSION.findall(line)}
    tested = [line for line in README.splitlines() if line.startswith("| tested")]
    assert claimed == {version for line in tested for version in VERSION.findall(line)}
    systems = [line for line in project["classifiers"] if line.startswith("Operating System")]
    assert systems == ["Operating System :: POSIX :: Linux"]


def test_make_names_the_python_that_it_needs(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    old = tmp_path / "python3"
    old.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.version_info = 3, 10; exec(sys.argv[1])" "$2"\n'
    )
    old.chmod(0o700)
    command = ["make", ".venv/.installed", f"PYTHON={old}"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr.splitlines()[0]) == (
        2,
        "This needs Python 3.11 or later: make PYTHON=python3.11 ...",
    )
    assert not (tmp_path / ".venv").exists()

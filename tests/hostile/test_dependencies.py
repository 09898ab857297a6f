"""What is installed is what the lock files name: exact versions with hashes, and no address to download from."""

import json
import re
from pathlib import Path

import pytest
from tests.audit.__main__ import NODE_LOCKS, NOT_AUDITED, PYTHON_LOCKS

ROOT = Path(__file__).parents[2]
SKIPPED = {"node_modules", "site-packages"}
BUILT = {"build", "dist", "site"}
"""Folders of the Makefile's results."""
REQUIREMENT = re.compile(r"[a-z0-9._-]+(\[[a-z0-9,._-]+\])?==[^ ;]+( ; [^\\]+)?( --hash=sha256:[0-9a-f]{64})+")


def found(pattern: str) -> list[str]:
    """Files of the project, not of what is installed in it."""
    paths = (path.relative_to(ROOT) for folder in ROOT.iterdir() for path in _matches(folder, pattern))
    return sorted(path.as_posix() for path in paths if not SKIPPED & set(path.parts))


def _matches(folder: Path, pattern: str) -> list[Path]:
    if folder.name.startswith(".") or folder.name in BUILT:
        return []
    return list(folder.rglob(pattern)) if folder.is_dir() else [folder] if folder.match(pattern) else []


def test_every_lock_file_is_audited() -> None:
    assert sorted((*PYTHON_LOCKS, *NOT_AUDITED)) == found("*.lock")
    assert sorted(NODE_LOCKS) == found("package-lock.json")


@pytest.mark.parametrize("lock", [*PYTHON_LOCKS, *NOT_AUDITED])
def test_python_lock_files_hold_only_versions_and_hashes(lock: str) -> None:
    text = (ROOT / lock).read_text().replace("\\\n", "")
    lines = [re.sub(" +", " ", line).strip() for line in text.splitlines()]
    assert len(lines) > 0
    assert [line for line in lines if not REQUIREMENT.fullmatch(line)] == []


@pytest.mark.parametrize("lock", NODE_LOCKS)
def test_node_lock_files_hold_only_versions_and_hashes(lock: str) -> None:
    packages = json.loads((ROOT / lock).read_text())["packages"]
    assert "://" not in json.dumps([package.get("resolved", "") for package in packages.values()])
    assert [name for name, package in packages.items() if name and "integrity" not in package] == []


@pytest.mark.parametrize("file", ["Makefile", "docker/Dockerfile"])
def test_everything_is_installed_with_hashes(file: str) -> None:
    text = (ROOT / file).read_text().replace("\\\n", " ")
    commands = re.findall(r"(?:pip install|npm (?:install|ci|i)\b)[^\n&;]*", text)
    assert commands
    checked = ("--require-hashes", "--no-deps --no-build-isolation", "npm ci")  # our own sources have no hash
    assert [command for command in commands if not any(word in command for word in checked)] == []
    # pip 23 ignores the lock for a dependency with an extra, so a new release of it would end the installation.
    assert [command for command in commands if "pip" in command and "--no-deps" not in command] == []

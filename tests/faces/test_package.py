"""The built wheel: its contents, an installation into an empty environment, and the demo from there."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BOUND = 300
UNREACHABLE = ("error sending request", "Failed to fetch", "dns error", "No solution found")
"""What uv prints without a package index."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=BOUND)
    [built] = folder.glob("*.whl")
    return built


def uv(*arguments: str | Path, **environment: str) -> str:
    """Run uv and return what it printed; skip the test where no package index can be reached."""
    command = [sys.executable, "-m", "uv", *map(str, arguments)]
    ran = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=BOUND, env=os.environ | environment
    )
    if ran.returncode and any(words in ran.stderr for words in UNREACHABLE):
        pytest.skip("no package index can be reached")
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        [metadata] = [archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
    folders = {name.split("/")[0] for name in names}
    assert {folder.partition("-")[0] for folder in folders} == {"mcp_mirror"}
    page = ("dashboard/static/index.html", "dashboard/static/main.js", "dashboard/static/dashboard.css")
    for needed in ("py.typed", "tokens/costs.bin", "cli/main.py", *page):
        assert f"mcp_mirror/{needed}" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any("__pycache__" in name for name in names)
    assert f"Version: {importlib.metadata.version('mcp-mirror')}\n" in metadata
    assert "Description-Content-Type: text/markdown" in metadata


def test_the_wheel_runs_its_demo_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    uv("venv", "--python", sys.executable, environment)
    folder = environment / ("Scripts" if sys.platform == "win32" else "bin")
    uv("pip", "install", "--python", folder / "python", wheel)
    own = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "COLUMNS": "120"}
    command = [str(folder / "mcp-mirror"), "demo"]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=BOUND, env=own, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "monday, tuesday, wednesday" in ran.stdout
    assert "Preview, not the result: text, 189 kB, 4,000 lines, log" in ran.stdout
    assert "sdb 26, sdc 13, sda 6" in ran.stdout
    assert "Without the gateway it reads 73,211 and writes 73,188" in ran.stdout


def test_uvx_runs_a_command_of_the_wheel(wheel: Path, tmp_path: Path) -> None:
    printed = uv("tool", "run", "--from", wheel, "mcp-mirror", "version", UV_TOOL_DIR=str(tmp_path))
    assert printed == f"{importlib.metadata.version('mcp-mirror')}\n"

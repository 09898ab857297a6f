"""The built wheel: its contents, an installation into an empty environment, and the demo from there."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import jsonschema_rs
import pytest
from entry import SCHEMA, link_readme, make_entry, mark_readme

ROOT = Path(__file__).parents[2]
BOUND = 300
MORE_PACKAGES, MORE_MEGABYTES = 3, 1.15
"""How much an installation may grow by versions of dependencies, before its size in the documentation is wrong."""
UNREACHABLE = ("error sending request", "Failed to fetch", "dns error", "No solution found")
"""What uv prints without a package index."""


def build(target: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=BOUND)
    [built] = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


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


@pytest.mark.slow
def test_the_source_distribution_has_every_file_of_the_repository(tmp_path: Path) -> None:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, check=False, capture_output=True, text=True, timeout=BOUND)
    if listing.returncode:
        pytest.skip("not a git checkout")
    with tarfile.open(build("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert set(listing.stdout.splitlines()) - names == set()


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it needs; the folder of its programs."""
    environment = tmp_path_factory.mktemp("installed") / "environment"
    uv("venv", "--python", sys.executable, environment)
    folder = environment / ("Scripts" if sys.platform == "win32" else "bin")
    uv("pip", "install", "--python", folder / "python", wheel)
    return folder


def test_an_installation_is_as_small_as_the_documentation_says(environment: Path) -> None:
    script = """
import importlib.metadata, json
sizes = {one.name: sum(file.size or 0 for file in one.files or ()) for one in importlib.metadata.distributions()}
print(json.dumps(sizes))
"""
    command = [str(environment / "python"), "-I", "-c", script]
    ran = subprocess.run(command, check=True, capture_output=True, timeout=BOUND)
    sizes: dict[str, int] = json.loads(ran.stdout)
    page = (ROOT / "docs" / "getting-started" / "index.md").read_text()
    documented = re.search(r"installs (\d+) packages of (\d+) MB", page)
    assert documented
    assert len(sizes) <= int(documented[1]) + MORE_PACKAGES, sorted(sizes)
    assert sum(sizes.values()) / 1e6 <= int(documented[2]) * MORE_MEGABYTES, sizes


@pytest.mark.slow
def test_the_wheel_runs_its_demo_in_an_empty_environment(environment: Path, tmp_path: Path) -> None:
    own = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "COLUMNS": "60"}
    command = [str(environment / "mcp-mirror"), "demo"]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=BOUND, env=own, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    shown = " ".join(line.strip("\u2502 ") for line in ran.stdout.splitlines())  # lines are wrapped, and not cut
    assert "monday, tuesday, wednesday" in shown
    assert "Preview, not the result: text, 189 kB, 4,000 lines, log" in shown
    assert "sdb 26, sdc 13, sda 6" in shown
    assert "Without the gateway it reads 73,211 and writes 73,188" in shown


def test_uvx_runs_a_command_of_the_wheel(wheel: Path, tmp_path: Path) -> None:
    printed = uv("tool", "run", "--from", wheel, "mcp-mirror", "version", UV_TOOL_DIR=str(tmp_path))
    assert printed == f"{importlib.metadata.version('mcp-mirror')}\n"


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_registry_entry_is_valid_for_its_published_schema(tmp_path: Path) -> None:
    lock = ROOT / "packaging" / "registry" / "requirements.lock"
    uv("pip", "install", "--target", tmp_path, "--no-deps", "--require-hashes", "--requirement", lock)
    schemas = [json.loads(file.read_text()) for file in tmp_path.rglob("mcp_registry/*/server.schema.json")]
    [schema] = [schema for schema in schemas if schema["$id"] == SCHEMA]
    validator = jsonschema_rs.validator_for(schema)
    entry = make_entry("someone/their-copy", PROJECT)
    assert [str(error) for error in validator.iter_errors(entry)] == []
    for wrong in ({"description": "x" * 101}, {"name": "mcp-mirror"}, {"packages": [{"identifier": "mcp-mirror"}]}):
        assert not validator.is_valid(entry | wrong)


def test_the_registry_entry_belongs_to_the_owner_of_the_repository() -> None:
    entry = make_entry("someone/their-copy", PROJECT)
    assert entry["name"] == "io.github.someone/mcp-mirror"
    assert entry["repository"]["url"] == "https://github.com/someone/their-copy"
    assert entry["version"] == entry["packages"][0]["version"] == importlib.metadata.version("mcp-mirror")
    marked = mark_readme("# mcp-mirror\n", entry["name"])
    assert marked == "# mcp-mirror\n\n<!-- mcp-name: io.github.someone/mcp-mirror -->\n"
    assert mark_readme(marked, entry["name"]) == marked


def test_the_released_readme_has_only_links_that_work_anywhere() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    linked = link_readme(readme, "someone/their-copy", "1.2.3")
    targets = re.findall(r"\]\(([^)]+)\)", re.sub(r"```.*?\n```", "", linked, flags=re.DOTALL))
    assert [target for target in targets if not target.startswith("https://")] == []
    assert "](https://github.com/someone/their-copy/blob/v1.2.3/docs/guides/wrap.md)" in linked
    assert "](https://github.com/someone/their-copy/blob/v1.2.3/README.md#configuration)" in linked
    assert "](https://raw.githubusercontent.com/someone/their-copy/v1.2.3/docs/assets/call.svg)" in linked
    assert link_readme(linked, "someone/their-copy", "1.2.3") == linked

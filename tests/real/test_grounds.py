"""The preconditions of the tests in this folder, and the shell commands with the same servers."""

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.real.conftest import Connection, Missing

pytestmark = pytest.mark.xdist_group("real")

NODE: Path = Path(__file__).parents[1] / "node"


def test_the_lock_file_names_no_place_to_download_from() -> None:
    packages = json.loads((NODE / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert [name for name, package in packages.items() if "resolved" in package] == []
    assert [name for name, package in packages.items() if name and "integrity" not in package] == []


def test_the_lock_file_locks_what_the_package_file_asks_for() -> None:
    wanted_versions = json.loads((NODE / "package.json").read_text(encoding="utf-8"))["devDependencies"]
    packages = json.loads((NODE / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert {name: packages[f"node_modules/{name}"]["version"] for name in wanted_versions} == wanted_versions


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_missing_programs_skip_tests_and_fail_them_on_ci(
    ci: str, outcome: type[BaseException], missing: "Missing", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match=r"There is no Node\."):
        missing("There is no Node.")


@pytest.mark.slow
def test_check_finds_all_four_servers_well_and_names_each_twin_in_full(
    command: str, config: Path, gateway: "Connection"
) -> None:
    argv = [command, "check", "--config", str(config)]
    done = subprocess.run(argv, capture_output=True, timeout=60, check=False, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert [name for name in ("git", "time", "everything", "files") if f"{name}: ready" not in done.stdout] == []
    assert [tool.name for tool in gateway.tools() if tool.name not in done.stdout] == []


@pytest.mark.slow
def test_call_prints_what_a_model_would_read(command: str, config: Path) -> None:
    argv = [command, "call", "--config", str(config), "get-sum_mirrored", "--arg", "a=2", "--arg", "b=40"]
    done = subprocess.run(argv, capture_output=True, timeout=60, check=False, encoding="utf-8")
    assert (done.returncode, done.stdout) == (0, "The sum of 2 and 40 is 42.\n")

"""Runs the official conformance suite and reads what it reports. It knows nothing of what is tested."""

import asyncio
import json
import os
import re
import tempfile
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

_MODULES: Final = Path(__file__).parents[1] / "node" / "node_modules"
_NODE: Final = _MODULES / "node" / "bin" / ("node.exe" if os.name == "nt" else "node")
_SUITE: Final = _MODULES / "@modelcontextprotocol" / "conformance"

REVISIONS: Final = ("2025-11-25", "2026-07-28")
EXTENSIONS: Final = ("auth/client-credentials-basic", "auth/client-credentials-jwt")
"""Scenarios of extensions to the protocol: of those that the suite has, the ones that the gateway is made for."""
_BOUND: Final = 600.0
"""Seconds that one run of the suite may take."""
_ONE: Final = 60.0
"""Seconds that one scenario may take."""
_SUMMARY: Final = re.compile(r"^([✓✗]) (\S+): \d+ passed, \d+ failed", re.MULTILINE)
_STAMP: Final = re.compile(r"-\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}-\d{3}Z$")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_TELLING: Final = ("FAILURE", "WARNING")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario of a run, and what was wrong with it."""

    name: str
    passed: bool
    scored: bool
    complaints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """One run of the suite."""

    title: str
    exit_code: int
    scenarios: tuple[Scenario, ...]
    output: str

    @property
    def scored(self) -> list[Scenario]:
        """What the revision requires."""
        return [scenario for scenario in self.scenarios if scenario.scored]

    @property
    def score(self) -> str:
        """How many of the required scenarios passed, as `30/30`."""
        return f"{sum(scenario.passed for scenario in self.scored)}/{len(self.scored)}"

    def explain(self) -> str:
        """The required scenarios that did not pass, with their reasons; the end of the output where none tells."""
        lines = [f"{self.title}: {self.score}, exit code {self.exit_code}"]
        for scenario in self.scored:
            if not scenario.passed:
                lines += [f"  {scenario.name}", *(f"    {complaint}" for complaint in scenario.complaints)]
        return "\n".join(lines if len(lines) > 1 else [*lines, self.output[-4000:]])


def tell_missing() -> str | None:
    """What is not installed that the suite needs, if anything."""
    absent = [path.name for path in (_NODE, _SUITE) if not path.exists()]
    return f"Not installed: {', '.join(absent)}; `make node` installs them where npm is." if absent else None


def require(side: str, revision: str) -> list[str]:
    """The scenarios that a revision requires of servers or clients."""
    wanted = yaml.safe_load((_SUITE / "requirements" / f"{revision}.yaml").read_text(encoding="utf-8"))
    return list(wanted[side])


def is_signed_in(scenario: str) -> bool:
    """Whether a scenario is about authorization."""
    return scenario.startswith("auth/")


async def run_server(url: str, revision: str, title: str) -> Report:
    """Run all that a revision requires of a server."""
    with tempfile.TemporaryDirectory() as results:
        arguments = ("--url", url, "--requirements", revision, "--timeout", f"{_ONE * 1000:.0f}", "-o", results)
        code, output = await _run("server", *arguments)
        complaints = {name.removeprefix("server-"): lines for name, lines in _read_complaints(Path(results))}
    required = set(require("server", revision))
    scenarios = tuple(
        Scenario(name, mark == "✓", name in required, complaints.get(name, ()))
        for mark, name in _SUMMARY.findall(output)
    )
    return Report(title, code, scenarios, output)


async def run_client(command: str, scenario: str, revision: str | None) -> Report:
    """Run one scenario, of a revision or of an extension, with a client that a command starts; a warning fails it."""
    with tempfile.TemporaryDirectory() as results:
        of_revision = () if revision is None else ("--spec-version", revision)
        arguments = ("--command", command, "--scenario", scenario, *of_revision)
        code, output = await _run("client", *arguments, "--timeout", f"{_ONE * 1000:.0f}", "-o", results)
        complaints = tuple(line for _, lines in _read_complaints(Path(results)) for line in lines)
        errors = tuple(path.read_text(encoding="utf-8") for path in Path(results).rglob("stderr.txt"))
    passed = code == 0 and "OVERALL: PASSED" in output
    return Report(scenario, code, (Scenario(scenario, passed, scored=True, complaints=(*complaints, *errors)),), output)


async def _run(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        str(_NODE), str(_SUITE / "dist" / "index.js"), *arguments, stdout=PIPE, stderr=STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), _BOUND)
    except BaseException:
        process.kill()
        await process.wait()
        raise
    assert process.returncode is not None
    return process.returncode, _COLOUR.sub("", output.decode(errors="replace"))


def _read_complaints(results: Path) -> Iterable[tuple[str, tuple[str, ...]]]:
    for path in sorted(results.rglob("checks.json")):
        name = _STAMP.sub("", path.parent.relative_to(results).as_posix())
        checks: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        yield name, tuple(_complain(check) for check in checks if check["status"] in _TELLING)


def _complain(check: dict[str, Any]) -> str:
    reason = check.get("errorMessage") or f"{check['description']} {json.dumps(check.get('details', {}))[:2000]}"
    return f"{check['status'].lower()}: {check['id']}: {reason}"

"""Tasks of LOCA-bench, each with its environment in a process of the suite's own Python.

Nothing of the suite is imported here: it needs other versions of the same packages.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from mcp_mirror.errors import ConfigError, UpstreamError

SIZES: Final = ("8k", "16k", "32k", "64k", "96k", "128k", "256k")
"""The tokens of an environment, as the suite counts them."""
_MAX_LINE: Final = 64 * 1024 * 1024
_SHOWN: Final = 600
"""Characters of the suite's standard error in an error message."""


@dataclass(frozen=True, slots=True)
class Suite:
    """An installed LOCA-bench."""

    source: Path
    """The checkout."""
    python: Path
    """The Python that has the suite's requirements."""
    node_modules: Path
    """The folder with the servers that run on Node."""

    @property
    def is_installed(self) -> bool:
        """Whether the checkout and its Python exist."""
        return (self.source / "task-configs").is_dir() and self.python.exists()


@dataclass(frozen=True, slots=True)
class Task:
    """One task of the suite with one seed."""

    name: str
    """Without the ending `S2LEnv`."""
    size: str
    seed: int
    configuration: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of the suite's checker."""

    success: bool
    feedback: str


def read_tasks(suite: Suite, sizes: Sequence[str], names: Sequence[str], seeds: Sequence[int]) -> list[Task]:
    """The tasks of the suite with these sizes, names and seeds; without names or seeds: all.

    Raises:
        ConfigError: The suite has no such task.
    """
    tasks = [task for size in sizes for task in _read_size(suite, size)]
    unknown = set(names) - {task.name for task in tasks}
    if unknown:
        known = ", ".join(dict.fromkeys(task.name for task in tasks))
        raise ConfigError(f"LOCA-bench has no task {', '.join(sorted(unknown))}. It has: {known}.")
    return [task for task in tasks if (not names or task.name in names) and (not seeds or task.seed in seeds)]


def _read_size(suite: Suite, size: str) -> list[Task]:
    path = suite.source / "task-configs" / f"final_{size}_set_config.json"
    configurations = json.loads(path.read_text(encoding="utf-8"))["configurations"]
    return [Task(one["name"].removesuffix("S2LEnv"), size, one["env_params"]["seed"], one) for one in configurations]


@dataclass(slots=True)
class Environment:
    """A built environment."""

    prompt: str
    servers: Mapping[str, Mapping[str, Any]]
    """The command of each server."""
    folder: Path
    _process: Process
    _lines: BufferedByteReceiveStream

    async def restore(self) -> None:
        """Restore the initial state."""
        await _ask(self._process, self._lines, "restore")

    async def judge(self) -> Verdict:
        """Run the suite's checker on the present state."""
        answer = await _ask(self._process, self._lines, "evaluate")
        return Verdict(answer["success"], answer["feedback"])


@asynccontextmanager
async def build_environment(suite: Suite, task: Task, folder: Path) -> AsyncIterator[Environment]:
    """Build a task's environment; its process ends with the context.

    Raises:
        UpstreamError: The suite cannot build it.
    """
    log = folder.with_name(f"{folder.name}.log")
    script = Path(__file__).with_name("environment.py")
    command = [str(suite.python), str(script), str(suite.source), str(suite.node_modules)]
    with log.open("wb") as errors:
        async with await anyio.open_process(command, stderr=errors) as process:
            assert process.stdout  # noqa: S101  # it is a pipe
            lines = BufferedByteReceiveStream(process.stdout)
            try:
                described = await _ask(
                    process, lines, {"configuration": dict(task.configuration), "folder": str(folder)}
                )
                yield Environment(described["prompt"], described["servers"], folder, process, lines)
            except (anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError):
                end = log.read_text(errors="replace").strip()[-_SHOWN:]
                raise UpstreamError(f"LOCA-bench ended while it built or judged {task.name}: {end}") from None
            finally:
                if process.returncode is None:
                    process.terminate()


async def _ask(process: Process, lines: BufferedByteReceiveStream, value: Any) -> Any:
    assert process.stdin  # noqa: S101  # it is a pipe
    await process.stdin.send(json.dumps(value).encode() + b"\n")
    return json.loads(await lines.receive_until(b"\n", _MAX_LINE))

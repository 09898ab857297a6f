"""Builds one environment of LOCA-bench, and judges it at the end. Runs in the suite's own virtual environment.

Reads JSON lines: first a task, `{"configuration": {...}, "folder": "..."}`, then any number of `"restore"` (the
initial state, before each run) and `"evaluate"`. Writes one JSON line for each: the prompt and the servers of the task;
null; the verdict of the suite's checker. Everything that the suite prints goes to standard error.
"""

import importlib
import importlib.util
import json
import os
import shutil
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any, TextIO

PYTHON = Path(sys.executable)


def main(source: Path, node_modules: Path) -> None:
    """Serve one environment until standard input ends.

    Args:
        source: The checkout of LOCA-bench.
        node_modules: The folder with the two servers that run on Node.
    """
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.path[:0] = [str(source)]
    os.environ["PYTHONPATH"] = str(source)  # for the suite's own processes
    task = json.loads(sys.stdin.readline())
    folder = Path(task["folder"])
    configuration = task["configuration"]
    module, name = configuration["env_class"].rsplit(".", 1)
    parameters = {key: with_folder(value, folder) for key, value in configuration["env_params"].items()}
    environment = getattr(importlib.import_module(module), name)(task_dir=str(folder), **parameters)
    check_log(folder / "logs" / "env.log")
    (folder / "agent_workspace" / "memory").mkdir(parents=True, exist_ok=True)
    initial = folder.with_name(f"{folder.name}.initial")
    shutil.copytree(folder, initial)
    servers = Servers(source, node_modules, folder).commands(configuration["mcp_servers"])
    write(output, {"prompt": environment._get_instructions(), "servers": servers})  # noqa: SLF001  # reset() builds twice
    for line in sys.stdin:
        if json.loads(line) == "restore":
            restore(folder, initial)
            write(output, None)
        else:
            write(output, judge(environment, folder / "logs" / "env.log"))


def restore(folder: Path, initial: Path) -> None:
    """Restore the initial state. The suite's log stays, because it is open."""
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name != "logs":
            shutil.rmtree(entry)
        elif not entry.is_dir():
            entry.unlink()
    shutil.copytree(
        initial, folder, ignore=lambda place, _: ["logs"] if place == str(initial) else [], dirs_exist_ok=True
    )


def judge(environment: Any, log: Path) -> dict[str, Any]:
    """The verdict of the suite's checker, with the end of its log."""
    observation, reward, _, _, details = environment.step("claim_done")
    feedback = str(details.get("error") or observation)[-1000:]
    return {"success": reward >= 1, "feedback": f"{feedback}\n{log.read_text(encoding='utf-8')[-3000:]}"}


def check_log(log: Path) -> None:
    """Check that the environment is complete: the suite logs a failure and continues.

    Raises:
        RuntimeError: The log has an error.
    """
    lines = log.read_text(encoding="utf-8").splitlines()
    errors = [line for line in lines if " - ERROR - " in line]
    if errors:
        raise RuntimeError(f"The environment could not be built: {errors[0]}")


def write(output: TextIO, value: Any) -> None:
    """Write one line of JSON."""
    output.write(json.dumps(value) + "\n")
    output.flush()


def with_folder(value: Any, folder: Path) -> Any:
    """A parameter with the suite's placeholders replaced by the task's folders."""
    if not isinstance(value, str):
        return value
    return value.replace("{task_workspace}", str(folder)).replace("{agent_workspace}", str(folder / "agent_workspace"))


class Servers:
    """The commands of a task's servers."""

    def __init__(self, source: Path, node_modules: Path, folder: Path) -> None:
        """Load the suite's own table of servers."""
        path = source / "gem" / "tools" / "mcp_server" / "config_loader.py"
        # The package around this module imports transformers and others.
        loader = SourceFileLoader("config_loader", str(path))
        module = importlib.util.module_from_spec(ModuleSpec("config_loader", loader, origin=str(path)))
        module.__file__ = str(path)
        loader.exec_module(module)
        self.loader = module.ServerConfigLoader(path.parent)
        self.node_modules = node_modules
        self.folder = folder

    def commands(self, servers: dict[str, Any]) -> dict[str, Any]:
        """The command of each enabled server, which starts without a package manager."""
        enabled = {name: server for name, server in servers.items() if server.get("enabled", True)}
        return {name: self.command(name, server) for name, server in enabled.items()}

    def command(self, name: str, server: dict[str, Any]) -> dict[str, Any]:
        """The command of one server with its arguments, environment and working directory."""
        given = {key: with_folder(value, self.folder) for key, value in server.get("params", {}).items()}
        folders = {"task_workspace": str(self.folder), "agent_workspace": str(self.folder / "agent_workspace")}
        command: dict[str, Any] = self.loader.build_stdio_config(server["type"], {**given, **folders}, name)[name]
        program, arguments = self.installed(command["command"], command["args"])
        environ = {
            "LOCA_QUIET": "1",
            "PATH": f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}",
            "VIRTUAL_ENV": str(PYTHON.parent.parent),  # for `uv run`, with which the suite runs a model's Python
        }
        return {**command, "command": program, "args": arguments, "env": {**command.get("env", {}), **environ}}

    def installed(self, program: str, arguments: list[str]) -> tuple[str, list[str]]:
        """The command of an installed program for one that `uv`, `uvx` or `npx` would download first."""
        if program == "uv":  # uv --directory FOLDER run python SCRIPT ...
            return str(PYTHON), arguments[4:]
        if program == "python":
            return str(PYTHON), arguments
        if program == "npx":
            package, *rest = [argument for argument in arguments if argument != "-y"]
            return "node", [str(self.node_modules / package / "dist" / "index.js"), *rest]
        if program == "uvx":
            program, *arguments = arguments
        return str(PYTHON.parent / program), arguments


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute())

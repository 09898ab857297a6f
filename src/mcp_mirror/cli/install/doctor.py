"""The command `mcp-mirror doctor`: starts each wrapped server and reports what is wrong."""

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import anyio
import typer
from mcp import Client as McpClient
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client

from mcp_mirror.cli.console import IS_GATEWAY, print_problems
from mcp_mirror.cli.install.clients import current_machine
from mcp_mirror.cli.install.entries import read_words
from mcp_mirror.cli.install.targets import Entry, Target, find_chosen, list_entries
from mcp_mirror.cli.options import AWAIT_VARIABLE, ClientArgument
from mcp_mirror.cli.run import exit_with_error, print_note, run_until_signal
from mcp_mirror.errors import MirrorError, unwrap_error_group
from mcp_mirror.memory.tools.table import RETRIEVE

_AT_ONCE: Final = 4
_ENV_KEYS: Final = ("env", "envs", "environment")
_VARIABLE: Final = re.compile(
    r"\$\{(?:env:)?(?P<braced>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\}|\{env:(?P<colon>[A-Za-z_]\w*)\}|\$(?P<bare>[A-Za-z_]\w*)",
    re.ASCII,
)
_MAX_LINES: Final = 5


@dataclass(frozen=True, slots=True)
class _Check:
    """A wrapped server to start."""

    target: Target
    entry: Entry

    @property
    def title(self) -> str:
        return f"{self.target.client.name}: {self.entry.label}"


def doctor(
    client: ClientArgument = None,
    timeout: Annotated[float, typer.Option(help="Seconds that a server has to list its tools.")] = 60,
) -> None:
    """Start each wrapped server as its client does, through mcp-mirror, and report what is wrong.

    The exit code is 0 without problems and 1 with problems.

    Example: mcp-mirror doctor
    """
    problems: list[str] = []
    checks: list[_Check] = []
    try:
        for target in find_chosen(client, current_machine()):
            try:
                entries = list_entries(target.read(), target.place)
            except MirrorError as error:
                problems.append(str(error))
                continue
            checks += [_Check(target, entry) for entry in entries if entry.is_wrapped]
    except MirrorError as error:
        exit_with_error(error)
    if not checks and not problems:
        print_note("No server is wrapped. `mcp-mirror install` wraps them.")

    async def run() -> None:
        limiter = anyio.CapacityLimiter(_AT_ONCE)
        async with anyio.create_task_group() as tasks:
            for check in checks:
                tasks.start_soon(_check, check, timeout, limiter, problems)

    run_until_signal(run())
    print_problems(problems)
    raise typer.Exit(1 if problems else 0)


async def _check(check: _Check, timeout: float, limiter: anyio.CapacityLimiter, problems: list[str]) -> None:  # noqa: ASYNC109
    """Start a server, print how long it took, and add what is wrong to the problems."""
    words, folder = expand_variables(read_words(check.entry.value), check.target), _find_folder(check)
    if shutil.which(words[0]) is None:
        problems.append(f"{check.title}: {words[0]} does not exist. Run `mcp-mirror uninstall`, then `install` again.")
        return
    if not os.path.isdir(folder):  # noqa: ASYNC240, PTH112  # of any text; nothing waits
        problems.append(f"{check.title}: its folder {folder} does not exist.")
        return
    async with limiter:
        began = anyio.current_time()
        print_note(f"{check.title}: starting")
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
            problem = await _start(words, check, folder, timeout, errors)
            errors.seek(0)
            lines = [line.strip() for line in errors if line.strip()][-_MAX_LINES:]
        seconds = anyio.current_time() - began
        if isinstance(problem, int):
            print(f"{check.title}: ready, {problem:,} tools, after {seconds:.1f} s", flush=True)
        else:
            problems.append("\n    ".join((f"{check.title}: {problem}", *lines)))


async def _start(words: list[str], check: _Check, folder: Path, timeout: float, errors: Any) -> int | str:  # noqa: ASYNC109
    """Return the number of a server's tools, or what is wrong."""
    env = {**os.environ, **expand_environment(check.entry.value, check.target), AWAIT_VARIABLE: "1"}
    parameters = StdioServerParameters(command=words[0], args=words[1:], env=env, cwd=folder)
    try:
        with anyio.fail_after(timeout):
            # With `initialize`, because the SDK waits only 10 s for an answer to `server/discover`.
            async with McpClient(stdio_client(parameters, errlog=errors), mode="legacy") as client:
                listing = await client.list_tools()
    except TimeoutError:
        return f"it did not list its tools within {timeout:.0f} s"
    except Exception as error:  # noqa: BLE001  # any failure of a server is a finding
        return str(unwrap_error_group(error)) or type(error).__name__
    if sum(tool.name.endswith(RETRIEVE) for tool in listing.tools) > 1:
        return IS_GATEWAY
    return len(listing.tools) or "it lists no tools"


def _find_folder(check: _Check) -> Path:
    """Return the folder in which the client starts the server: its own, or the project, where the entry is of one."""
    cwd = check.entry.value.get("cwd")
    if isinstance(cwd, str):
        return Path(os.path.expanduser(cwd))  # noqa: PTH111  # of any text
    at = check.entry.at
    if at[0] == "projects" and Path(str(at[1])).is_dir():
        return Path(str(at[1]))
    return Path.cwd()


def expand_environment(entry: Mapping[str, Any], target: Target) -> dict[str, str]:
    """Return the variables of an entry, with references to other variables replaced as the client does."""
    env: Mapping[str, Any] = next((entry[key] for key in _ENV_KEYS if isinstance(entry.get(key), dict)), {})
    values = expand_variables([str(value) for value in env.values()], target)
    return dict(zip(map(str, env), values, strict=True))


def expand_variables(words: list[str], target: Target) -> list[str]:
    """Return texts with `${VAR}` and the other forms of clients replaced, where the client does so.

    A variable that is not set stays as it is: the client may know it.
    """
    if not target.client.expands_variables:
        return words

    def replace(match: re.Match[str]) -> str:
        if match["bare"] and not target.client.expands_bare_variables:
            return match[0]
        name = match["braced"] or match["colon"] or match["bare"]
        return os.environ.get(name, match[0] if match["default"] is None else match["default"])

    return [_VARIABLE.sub(replace, word) for word in words]

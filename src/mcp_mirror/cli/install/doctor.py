"""The command `mcp-mirror doctor`: starts each wrapped server and reports what is wrong."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from subprocess import DEVNULL
from typing import IO, Annotated, Final

import anyio
import msgspec
import typer

from mcp_mirror.cli.console import IS_GATEWAY, print_problems
from mcp_mirror.cli.install.clients import current_machine
from mcp_mirror.cli.install.entries import read_program, read_words
from mcp_mirror.cli.install.files import describe_command
from mcp_mirror.cli.install.started_program import end_programs, list_tools
from mcp_mirror.cli.install.starting import (
    build_environment,
    build_redactor,
    expand_variables,
    find_folder,
    find_unset_variables,
    load_gateway,
)
from mcp_mirror.cli.install.targets import Entry, Target, find_chosen, list_entries
from mcp_mirror.cli.options import AWAIT_VARIABLE, ClientArgument
from mcp_mirror.cli.run import print_note, run_until_signal
from mcp_mirror.core.amounts import format_count
from mcp_mirror.errors import MirrorError
from mcp_mirror.memory.tools.table import RETRIEVE
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.security.sanitize import sanitize_to_lines

_AT_ONCE: Final = 4
_MAX_LINES: Final = 5
_MAX_OUTPUT: Final = 1 << 14
"""Bytes of a server's last standard error that are searched for lines."""
_OWN_LINE: Final = re.compile(r"mcp-mirror: |\d{4}-\S+Z [a-z]+ mcp_mirror\S*: (?:upstream \S+ is down: )?")
"""The beginning of a line that the gateway prints about its server."""
_FINDING: Final = re.compile(r"^(?:problem|mcp-mirror): ", re.MULTILINE)
"""The beginning of a problem that `check` prints."""


class _Check(msgspec.Struct, frozen=True):
    """A server to start."""

    target: Target
    entry: Entry

    @property
    def title(self) -> str:
        return f"{self.target.word}: {self.entry.label}"


def doctor(
    client: ClientArgument = None,
    timeout: Annotated[float, typer.Option(help="Seconds that a server has to list its tools.", min=1)] = 60,
) -> None:
    """Start each wrapped server and report problems.

    The command starts a server as its client does, through mcp-mirror. It also starts the memory tools, and checks the
    configuration of a gateway that the client starts, as `mcp-mirror check` does. The exit code is 0 without problems
    and 1 with problems.

    Example: mcp-mirror doctor
    """
    problems: list[str] = []
    checks = list(_find_checks(client, problems))
    if not checks and not problems:
        print_note(
            "No server is wrapped. `mcp-mirror install` wraps them; `mcp-mirror check` examines a configuration."
        )
    ready: list[_Check] = []
    running: set[int] = set()
    if checks:
        # A server that starts has seconds to end, since an npx that is killed while it installs breaks its cache.
        leave = partial(end_programs, running)
        run_until_signal(_start_all(checks, timeout, problems, ready, running), leave=leave)
    print_problems(problems)
    if checks:
        print_note(f"{len(ready)} of {len(checks)} {'server is' if len(checks) == 1 else 'servers are'} ready.")
    raise typer.Exit(1 if problems else 0)


async def _start_all(
    checks: Sequence[_Check],
    timeout: float,  # noqa: ASYNC109
    problems: list[str],
    ready: list[_Check],
    running: set[int],
) -> None:
    """Start servers, a few at once, and add them to those that are ready, or their problems to the problems."""
    limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def follow(check: _Check) -> None:
        found = _find_obstacle(check)
        if found is None:
            async with limiter:
                found = await _start(check, timeout, running)
        if not found:
            ready.append(check)
            return
        *others, last = found
        problems.extend(f"{check.title}: {problem}" for problem in (*others, last + _describe_unset_variables(check)))

    async with anyio.create_task_group() as tasks:
        for check in checks:
            tasks.start_soon(follow, check)


def _find_checks(client: str | None, problems: list[str]) -> Iterator[_Check]:
    """Yield the servers to start; files that cannot be read are problems."""
    for target in find_chosen(client, current_machine()):
        try:
            entries = list_entries(target.read(), target.place)
        except MirrorError as error:
            problems.append(str(error))
            continue
        yield from (_Check(target, one) for one in entries if one.is_wrapped or one.is_memory or one.is_gateway)


def _find_obstacle(check: _Check) -> list[str] | None:
    """Return why the server cannot be started; None if it can."""
    program, *_ = expand_variables(read_words(check.entry.value), check.target)
    if shutil.which(program) is None:
        return [f"{program} does not exist. Run `mcp-mirror uninstall`, then `install` again."]
    folder = find_folder(check.entry, check.target)
    return None if os.path.isdir(folder) else [f"its folder {folder} does not exist."]  # noqa: PTH112  # of any text


def _describe_unset_variables(check: _Check) -> str:
    """Return a line about the variables that may be the cause of a problem only here; "" if all are set."""
    unset = find_unset_variables(check.entry, check.target)
    if not unset:
        return ""
    verb, pronoun = ("is", "it") if len(unset) == 1 else ("are", "them")
    return (
        f"\n    The entry contains {', '.join(unset)}, which {verb} not set here. If {check.target.client.title} "
        f"replaces {pronoun}, the server may start there. To check the server here, set {pronoun} for `doctor`."
    )


async def _start(check: _Check, timeout: float, running: set[int]) -> list[str]:  # noqa: ASYNC109
    """Start a server, print how long it took, and return its problems."""
    began = anyio.current_time()
    print_note(f"{check.title}: starting")
    with tempfile.TemporaryFile() as errors:
        try:
            with anyio.fail_after(timeout):
                is_gateway = check.entry.is_gateway
                found = await (_check_gateway(check) if is_gateway else _list_tools(check, errors, running))
        except TimeoutError:
            found = [f"it did not list its tools within {timeout:.0f} s"]
        lines = _read_last_lines(errors, build_redactor(check.entry, check.target))
    if isinstance(found, str):
        print(f"{check.title}: ready, {found}, after {anyio.current_time() - began:.1f} s", flush=True)
        return []
    last = found.pop()
    return [*found, "\n    ".join((last, *_find_output(lines, last)))]


def _read_last_lines(file: IO[bytes], redactor: Redactor) -> list[str]:
    """Return the last lines of a server's standard error, which may have written gigabytes and control characters."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_OUTPUT))
    text = redactor.clean(file.read().decode(errors="replace"))
    lines = (sanitize_to_lines(line).strip() for line in text.splitlines())
    return [line for line in lines if line]


async def _check_gateway(check: _Check) -> str | list[str]:
    """Run `check` with a gateway's configuration; return how many servers it has, or the problems."""
    try:
        path, config = load_gateway(check.entry, check.target)
    except MirrorError as error:
        return [str(error)]
    program = expand_variables(read_program(check.entry.value), check.target)
    command, environ = (
        [*program, "check", "--config", str(path)],
        {**build_environment(check.entry, check.target), "NO_COLOR": "1"},
    )
    folder = find_folder(check.entry, check.target)
    ended = await anyio.run_process(command, check=False, stdin=DEVNULL, cwd=folder, env=environ)
    count = format_count(len(config.upstreams), "server")
    if ended.returncode == 0:
        return count
    found = [one.rstrip() for one in _FINDING.split(ended.stderr.decode(errors="replace")) if one.strip()]
    problems = [one for one in found if one not in config.warnings]
    for warning in config.warnings:  # the gateway works with such settings
        print_note(f"{check.title}: {warning}")
    if found and not problems:
        return count
    return problems or [f"`mcp-mirror check --config {path}` ended with exit code {ended.returncode}."]


async def _list_tools(check: _Check, errors: IO[bytes], running: set[int]) -> str | list[str]:
    """Connect to a server, whose error output goes to a file; return how many tools it has, or the problem."""
    words = expand_variables(read_words(check.entry.value), check.target)
    environ = {**build_environment(check.entry, check.target), AWAIT_VARIABLE: "1"}
    try:
        names = await list_tools(words, environ, find_folder(check.entry, check.target), errors, running)
    except (MirrorError, OSError, ValueError) as error:
        return [str(error)]
    if not check.entry.is_memory and sum(name.endswith(RETRIEVE) for name in names) > 1:
        return [f"{IS_GATEWAY} {_describe_unwrapping(check.target.word)}"]
    return format_count(len(names), "tool") if names else ["it lists no tools"]


def _describe_unwrapping(word: str) -> str:
    """Return how to wrap the other servers of a client only."""
    undo, redo = describe_command("uninstall", word), describe_command("install", word, "--server", "NAME")
    return f"Run `{undo}`, and wrap the others: `{redo}`."


def _find_output(lines: Sequence[str], problem: str) -> list[str]:
    """Return the last lines that a server printed, each once, without those that repeat the problem."""
    kept: list[str] = []
    for line in dict.fromkeys(lines):
        own = _OWN_LINE.match(line)
        if own is None or line[own.end() :] not in problem:
            kept.append(line)
    return [] if all(line in problem for line in kept) else kept[-_MAX_LINES:]

"""The command `mcp-mirror doctor`: starts each wrapped server and reports what is wrong."""

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from subprocess import DEVNULL
from typing import IO, Annotated, Final

import anyio
import msgspec
import typer
from msgspec.structs import replace

from mcp_mirror.cli.console import IS_GATEWAY, VALUES_IN_MEMORY, print_problems
from mcp_mirror.cli.install.clients import current_machine
from mcp_mirror.cli.install.files import describe_command
from mcp_mirror.cli.install.server_start import ServerStart
from mcp_mirror.cli.install.targets import find_chosen
from mcp_mirror.cli.install.tool_probe import end_programs, list_tools
from mcp_mirror.cli.options import AWAIT_VARIABLE, ClientArgument
from mcp_mirror.cli.run import print_note, run_until_signal
from mcp_mirror.core.amounts import format_count
from mcp_mirror.errors import MirrorError
from mcp_mirror.memory.tools.table import RETRIEVE
from mcp_mirror.security.redaction import HIDDEN, Redactor
from mcp_mirror.security.sanitize import sanitize_to_lines
from mcp_mirror.system.patterns import lazy_pattern

_MAX_OUTPUT: Final = 1 << 14
"""Bytes of a server's last standard error that are searched for lines."""
_OWN_LINE: Final = lazy_pattern(r"mcp-mirror: |\d{4}-\S+Z [a-z]+ mcp_mirror\S*: (?:upstream \S+ is down: )?")
"""The beginning of a line that the gateway prints about its server."""
_STORE_WARNING: Final = lazy_pattern(r"\d{4}-\S+Z warning mcp_mirror\.stores\.opening: (.+)")
"""The line that the gateway prints if it keeps values in memory, because it cannot use the store."""
_READY: Final = lazy_pattern(r"^[\w.-]+: ready, ", re.MULTILINE)
"""The beginning of the line that `check` prints about an upstream that is ready."""
_FINDING: Final = lazy_pattern(r"^(?:problem|warning|mcp-mirror): ", re.MULTILINE)
"""The beginning of a problem or a warning that `check` prints."""
_SHOWN_WORD: Final = lazy_pattern(r"(?!.*://)(?:[-\w@.:,+/]+|(?:/|[A-Za-z]:\\)[^=]*)")
"""A word of a command that `doctor` prints: an option, a name or a path."""


class _Outcome(msgspec.Struct, frozen=True):
    """The end of the check of one entry."""

    problems: list[str] = msgspec.field(default_factory=list)
    described: str = ""
    """What is ready, such as `10 tools`."""
    ready: int = 0
    servers: int = 1
    """The number of its servers, which is another one for a gateway."""


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
    servers = list(_find_servers(client, problems))
    if not servers and not problems:
        print_note(
            "No server is wrapped. `mcp-mirror install` wraps them; `mcp-mirror check` examines a configuration."
        )
    running: set[int] = set()
    # A server that starts has seconds to end, since an npx that is killed while it installs breaks its cache.
    leave = partial(end_programs, running)
    outcomes = run_until_signal(_start_all(servers, timeout, running), leave=leave) if servers else []
    problems += (problem for one in outcomes for problem in one.problems)
    print_problems(problems)
    if servers:
        ready, count = sum(one.ready for one in outcomes), sum(one.servers for one in outcomes)
        print_note(f"{_describe_ready(ready, count)}.")
    raise typer.Exit(1 if problems else 0)


async def _start_all(servers: Sequence[ServerStart], timeout: float, running: set[int]) -> list[_Outcome]:  # noqa: ASYNC109
    """Start servers, a few at once, and return an outcome for each."""
    limiter = anyio.CapacityLimiter(4)
    outcomes: list[_Outcome] = []

    async def follow(server: ServerStart) -> None:
        outcome = _find_obstacle(server)
        if outcome is None:
            async with limiter:
                outcome = await _start(server, timeout, running)
        if outcome.problems:
            *others, last = outcome.problems
            named = [f"{server.title}: {problem}" for problem in (*others, last + _describe_unset_variables(server))]
            outcome = replace(outcome, problems=named)
        outcomes.append(outcome)

    async with anyio.create_task_group() as tasks:
        for server in servers:
            tasks.start_soon(follow, server)
    return outcomes


def _find_servers(client: str | None, problems: list[str]) -> Iterator[ServerStart]:
    """Yield the servers to start; files that cannot be read are problems."""
    for target in find_chosen(client, current_machine()):
        try:
            entries = target.list_entries()
        except MirrorError as error:
            problems.append(str(error))
            continue
        yield from (ServerStart(one, target) for one in entries if one.is_wrapped or one.is_memory or one.is_gateway)


def _find_obstacle(server: ServerStart) -> _Outcome | None:
    """Return why the server cannot be started; None if it can."""
    program = server.words[0]
    if shutil.which(program) is None:
        return _Outcome([f"{program} does not exist. Run `mcp-mirror uninstall`, then `install` again."])
    if not os.path.isdir(server.folder):  # noqa: PTH112  # of any text
        return _Outcome([f"its folder {server.folder} does not exist."])
    return None


def _describe_ready(ready: int, servers: int) -> str:
    return f"{ready} of {format_count(servers, 'server')} {'is' if 1 in {ready, servers} else 'are'} ready"


def _describe_unset_variables(server: ServerStart) -> str:
    """Return a line about the variables that may be the cause of a problem only here; "" if all are set."""
    unset = server.find_unset_variables()
    if not unset:
        return ""
    verb, pronoun = ("is", "it") if len(unset) == 1 else ("are", "them")
    return (
        f"\n    The entry contains {', '.join(unset)}, which {verb} not set here. If {server.target.client.title} "
        f"replaces {pronoun}, the server may start there. To check the server here, set {pronoun} for `doctor`."
    )


async def _start(server: ServerStart, timeout: float, running: set[int]) -> _Outcome:  # noqa: ASYNC109
    """Start a server, print how long it took, and return its problems."""
    began = anyio.current_time()
    print_note(f"{server.title}: starting")
    with tempfile.TemporaryFile() as errors:
        try:
            with anyio.fail_after(timeout):
                is_gateway = server.entry.is_gateway
                found = await (_check_gateway(server) if is_gateway else _list_tools(server, errors, running))
        except TimeoutError:
            advice = (
                "A first start may install it, as with npx: raise `--timeout`, or run the server's own command by hand."
            )
            found = _Outcome([f"it did not list its tools within {timeout:.0f} s. {advice}"])
        lines = _read_last_lines(errors, server.redactor)
    if found.problems:
        *others, last = found.problems
        output = _find_output(lines, server.redactor.clean(last))
        return replace(found, problems=[*others, "\n    ".join((last, *output, *_describe_start(server, last)))])
    if warning := _STORE_WARNING.search("\n".join(lines)):
        return _Outcome([f"it does not share values with other servers. {warning[1]}"])
    print(f"{server.title}: ready, {found.described}, after {anyio.current_time() - began:.1f} s", flush=True)
    return found


def _describe_start(server: ServerStart, problem: str) -> Iterator[str]:
    """Yield a line with the redacted command of a server that failed."""
    words = server.expand(server.entry.own.wrapped)
    if not words or shutil.which(words[0]) is None or problem.startswith(IS_GATEWAY):
        return
    command = " ".join((shlex.quote(words[0]), *(_show_word(word, server.redactor) for word in words[1:])))
    variables = ", with the variables of its entry" if server.variables else ""
    yield f"To run it without mcp-mirror{variables}: {sanitize_to_lines(command)}"


def _show_word(word: str, redactor: Redactor) -> str:
    """Return a word of a command as a shell reads it, without a value that may be secret."""
    cleaned = redactor.clean(word)
    if HIDDEN in cleaned:
        return cleaned if word.startswith("-") else HIDDEN
    return shlex.quote(word) if _SHOWN_WORD.fullmatch(word) else HIDDEN


def _read_last_lines(file: IO[bytes], redactor: Redactor) -> list[str]:
    """Return the last lines of a server's standard error, which may have written gigabytes and control characters."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_OUTPUT))
    text = redactor.clean(file.read().decode(errors="replace"))
    lines = (sanitize_to_lines(line).rstrip() for line in text.splitlines())
    return [line for line in lines if line]


async def _check_gateway(server: ServerStart) -> _Outcome:
    """Run `check` with a gateway's configuration."""
    try:
        path, config = server.load_gateway()
    except MirrorError as error:
        return _Outcome([str(error)])
    command = [*server.expand(list(server.entry.own.program)), "check", "--config", str(path)]
    environ = {**server.environment, "NO_COLOR": "1"}
    ended = await anyio.run_process(command, check=False, stdin=DEVNULL, cwd=server.folder, env=environ)
    count = len(config.upstreams)
    notes = [one for one in config.warnings if one not in config.exposures]
    for warning in notes:  # the gateway works with such settings
        print_note(f"{server.title}: {warning}")
    found = [one.rstrip() for one in _FINDING.split(ended.stderr.decode(errors="replace")) if one.strip()]
    if ended.returncode == 0:
        if lost := [one for one in found if one.startswith(VALUES_IN_MEMORY)]:
            return _Outcome(lost, servers=count)
        return _Outcome(described=format_count(count, "server"), ready=count, servers=count)
    if ready := len(_READY.findall(ended.stdout.decode(errors="replace"))):
        print(f"{server.title}: {_describe_ready(ready, count)}", flush=True)
    problems = [one for one in found if one not in notes]
    problems = problems or [f"`mcp-mirror check --config {path}` ended with exit code {ended.returncode}."]
    return _Outcome(problems, ready=ready, servers=count)


async def _list_tools(server: ServerStart, errors: IO[bytes], running: set[int]) -> _Outcome:
    """Connect to a server, whose error output goes to a file."""
    environ = {**server.environment, AWAIT_VARIABLE: "1"}
    try:
        names = await list_tools(server.words, environ, server.folder, errors, running)
    except (MirrorError, OSError, ValueError) as error:
        return _Outcome([str(error)])
    if not server.entry.is_memory and sum(name.endswith(RETRIEVE) for name in names) > 1:
        word = server.target.word
        undo, redo = describe_command("uninstall", word), describe_command("install", word, "--server", "NAME")
        return _Outcome([f"{IS_GATEWAY} Run `{undo}`, and wrap the others: `{redo}`."])
    return _Outcome(described=format_count(len(names), "tool"), ready=1) if names else _Outcome(["it lists no tools"])


def _find_output(lines: Sequence[str], problem: str) -> list[str]:
    """Return the last lines that a server printed, without those that repeat the redacted problem.

    A server that failed at the handshakes of two protocol versions printed the same lines twice.
    """
    kept: list[str] = []
    for line in lines:
        own = _OWN_LINE.match(line)
        repeats_problem = own is not None and line[own.end() :] in problem
        if not repeats_problem and kept[-1:] != [line]:
            kept.append(line)
    if all(line.strip() in problem for line in kept):
        return []
    for count in range(len(kept) // 2, 0, -1):
        if kept[-count:] == kept[-2 * count : -count]:
            kept = kept[:-count]
            break
    return kept[-20:]

"""The command that starts a server: its program, its environment, and why it cannot be started."""

import os
import re
import shutil
import stat
from pathlib import Path, PurePath
from typing import Final

from mcp.client.stdio import get_default_environment

from mcp_mirror.errors import UpstreamError
from mcp_mirror.settings.upstreams import StdioEndpoint
from mcp_mirror.system.patterns import lazy_pattern

_NODE_PROGRAMS: Final = frozenset({"node", "npx", "npm", "pnpm", "yarn", "bun", "bunx", "deno", "tsx", "ts-node"})
_SCRIPT_START: Final = 4096
"""Bytes of a script that are searched for the program that runs it."""
_NODE_SCRIPT: Final = lazy_pattern(
    rb"\A#!(?:[^\n]*[/ ])?(?:node|bun|deno|tsx|ts-node)(?:\s|\Z)"  # as the package has it, and npm links it
    rb"|^\s*exec [^\n]*[/ ]node[\s\"]"  # as pnpm writes it
    rb"|[\\\"]node\.exe\b",  # as they write it on Windows
    re.MULTILINE,
)


def find_command(endpoint: StdioEndpoint) -> str:
    """Return the path of a server's program.

    Raises:
        UpstreamError: The program does not exist.
    """
    command = _search_command(endpoint)
    if command is None:
        raise UpstreamError(f"It cannot start: {_explain_missing(endpoint.command)}")
    return command


def explain_failed_start(endpoint: StdioEndpoint, error: OSError | ValueError) -> str:
    """Explain why the system did not start a server's program, which exists."""
    reason = getattr(error, "strerror", None) or "it has an invalid argument"
    if endpoint.cwd and getattr(error, "filename", None) == str(endpoint.cwd):
        return f"It cannot start in the folder {str(endpoint.cwd)!r}: {reason}. Create the folder, or correct `cwd`."
    if isinstance(error, FileNotFoundError) and _read_start(endpoint).startswith(b"#!"):
        return (
            f"It cannot start: the program in the first line of the script {endpoint.command!r} does not exist. "
            "Install it, or correct that line, which must not end with a carriage return."
        )
    return f"Its command {endpoint.command!r} cannot start: {reason}. Check `command`, `args` and `cwd`."


def is_run_by_node(endpoint: StdioEndpoint) -> bool:
    """Whether Node or a similar program runs a server: by its command, or by the script that the command names."""
    if PurePath(endpoint.command).stem.lower() in _NODE_PROGRAMS:
        return True
    start = _read_start(endpoint)
    return start.startswith((b"#!", b"@")) and _NODE_SCRIPT.search(start) is not None


def _read_start(endpoint: StdioEndpoint) -> bytes:
    """Return the beginning of the program's file; nothing if it cannot be read."""
    try:
        with Path(_search_command(endpoint) or "").open("rb") as program:
            return program.read(_SCRIPT_START)
    except OSError:
        return b""


def _search_command(endpoint: StdioEndpoint) -> str | None:
    return shutil.which(endpoint.command, path=build_environment(endpoint).get("PATH"))


def build_environment(endpoint: StdioEndpoint) -> dict[str, str]:
    """Return the environment of the program."""
    return ({} if endpoint.is_wrapped else get_default_environment()) | dict(endpoint.env)


def _explain_missing(command: str) -> str:
    """Explain why a command cannot be found. Its arguments are not named: they may be secrets."""
    if os.path.dirname(command) and (reason := _explain_path(command)):  # noqa: PTH120
        return reason
    program, *arguments = command.split() or [command]
    if program.startswith(("http://", "https://")):
        return "`command` is a URL. Write it into `url`, or after --url if the server is wrapped."
    if not arguments:
        return f"the command {command!r} does not exist. Install it, or give its full path as `command`."
    if "=" in program:
        return "`command` begins with a variable. Write variables into `env`, and arguments into `args`."
    return (
        f"no command has a name of {1 + len(arguments)} words. Arguments go into `args`: write "
        f"`command: {program}` and the other words as the items of `args`."
    )


def _explain_path(path: str) -> str | None:
    """Explain why the program at a path cannot be started; None if nothing is there."""
    try:
        mode = Path(path).stat().st_mode
    except PermissionError:
        return (
            f"the user that runs mcp-mirror may not enter a folder of the command {path!r}. Install the program where "
            "that user may run it, or change the rights of its folders."
        )
    except (OSError, ValueError):
        return None
    if stat.S_ISDIR(mode):
        return f"the command {path!r} is a folder. Give the path of the program in it."
    return (
        f"the file {path!r} is not executable. Make it executable, or write its interpreter into `command` and "
        "the file into `args`."
    )

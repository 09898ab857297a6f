"""The commands `mcp-mirror install` and `uninstall`."""

import os
import shlex
from pathlib import Path
from textwrap import indent
from typing import Annotated

import typer

from mcp_mirror.cli.install.changes import (
    InstallPlan,
    capital,
    carry_out_install,
    carry_out_uninstall,
    plan_install,
    plan_uninstall,
)
from mcp_mirror.cli.install.clients import find_client, kept_file, known_clients
from mcp_mirror.cli.run import fail, say
from mcp_mirror.errors import MirrorError

_ClientArgument = Annotated[
    str,
    typer.Argument(metavar="CLIENT", help="A client's name, such as claude-desktop, or the path of its JSON file."),
]
_DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be written, keys of servers too, and write nothing.")
]


def install(
    client: _ClientArgument,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="The new configuration that the servers move to. By default CLIENT.yaml in the user's configuration "
            "folder, or mcp-mirror.yaml beside a file that is named by its path.",
            show_default=False,
        ),
    ] = None,
    dry_run: _DryRunOption = False,  # noqa: FBT002  # a flag of the command line
) -> None:
    """Put the gateway between a client and its servers: they move from its file to a configuration of the gateway's.

    Example: mcp-mirror install claude-desktop
    """
    try:
        change = plan_install(find_client(client), config, os.environ)
        for warning in change.warnings:
            say(f"mcp-mirror: {warning}")
        if dry_run:
            _show(change.config, change.text.encode())
            _show(change.client.file, change.after)
            return
        carry_out_install(change)
        _tell_installed(change, client)
    except MirrorError as error:
        fail(error)


def _tell_installed(change: InstallPlan, named: str) -> None:
    title, names = change.client.title, ", ".join(change.servers)
    say(f"{capital(title)} starts mcp-mirror now, and mcp-mirror its servers, from {change.config}: {names}.")
    say(f"{change.client.file} as it was is kept beside it, in {kept_file(change.client).name}.")
    if named not in known_clients():
        say("Both hold what that file held, keys too: keep them out of version control.")
    say("A server gets PATH, HOME and a few more of the environment, and what its `env` names.")
    check, back = (
        shlex.join(["mcp-mirror", *words])
        for words in (["check", "--config", str(change.config)], ["uninstall", named])
    )
    say(f"See whether everything connects, and start {title} anew: {check}")
    say(f"To put the servers back: {back}")


def uninstall(client: _ClientArgument, dry_run: _DryRunOption = False) -> None:  # noqa: FBT002  # a flag of the command line
    """Put a client's servers back in the place of the gateway, as they were when it was installed.

    What is in memory stays, and so does a configuration that was changed since.

    Example: mcp-mirror uninstall claude-desktop
    """
    try:
        change = plan_uninstall(find_client(client))
        if dry_run:
            _show(change.client.file, change.after)
            return
        stays = carry_out_uninstall(change)
        title, names = change.client.title, ", ".join(change.servers)
        say(f"{capital(title)} starts its own servers again: {names}. Start it anew.")
        if stays:
            say(f"{change.config} was changed since and stays; what was added there, {title} does not know of.")
    except MirrorError as error:
        fail(error)


def _show(path: Path, data: bytes) -> None:
    print(f"{path}:\n{indent(data.decode('utf-8-sig'), '  ')}")  # noqa: T201  # the output

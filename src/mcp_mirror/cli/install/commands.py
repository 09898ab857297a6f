"""The commands `mcp-mirror install` and `uninstall`."""

import os
import shlex
from pathlib import Path
from textwrap import indent
from typing import Annotated

import typer

from mcp_mirror.cli.install.changes import (
    InstallPlan,
    apply_install,
    apply_uninstall,
    capitalize_first,
    plan_install,
    plan_uninstall,
)
from mcp_mirror.cli.install.clients import backup_path, find_client, known_clients
from mcp_mirror.cli.run import exit_with_error, print_note
from mcp_mirror.errors import MirrorError

_ClientArgument = Annotated[
    str,
    typer.Argument(metavar="CLIENT", help="A client's name, such as claude-desktop, or the path of its JSON file."),
]
_DryRunOption = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Print the files that would be written, including secrets in them, and write nothing."
    ),
]


def install(
    client: _ClientArgument,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="The new configuration for the servers. Default: CLIENT.yaml in the user's configuration folder; "
            "with a path as CLIENT, mcp-mirror.yaml beside that file.",
            show_default=False,
        ),
    ] = None,
    dry_run: _DryRunOption = False,
    no_connect: Annotated[
        bool, typer.Option("--no-connect", help="Do not connect to the servers after the files are written.")
    ] = False,
) -> None:
    """Put the gateway between a client and its MCP servers.

    The servers move from the client's file to a configuration of the gateway. `uninstall` moves them back. After
    the move, `install` connects to every server once, as `check` does, so that the client's first list of tools is
    complete. It reports servers that do not connect, and keeps them.

    Example: mcp-mirror install claude-desktop
    """
    try:
        plan = plan_install(find_client(client), config, os.environ)
        for warning in plan.warnings:
            print_note(f"mcp-mirror: {warning}")
        if dry_run:
            _show(plan.config, plan.text.encode())
            _show(plan.client.file, plan.after)
            return
        apply_install(plan)
    except MirrorError as error:
        exit_with_error(error)
    _print_result(plan, client)
    if not no_connect and _connect_once(plan.config):
        print_note(f"Restart {plan.client.title}.")
        return
    check = shlex.join(["mcp-mirror", "check", "--config", str(plan.config)])
    print_note(f"Check that all servers connect, then restart {plan.client.title}: {check}")


def _connect_once(config: Path) -> bool:
    """Connect to every server, which fills the cache of listings; print failures, and return whether there are none."""
    from mcp_mirror.cli.check import connect_once  # noqa: PLC0415  # it imports the gateway
    from mcp_mirror.cli.console import print_problems  # noqa: PLC0415  # it imports rich

    print_note("The servers start now, so that the first list of their tools is complete (Ctrl-C skips this).")
    try:
        down = connect_once(config)
    except typer.Exit:  # the reason is printed
        return False
    print_problems(down)
    return not down


def _print_result(plan: InstallPlan, named: str) -> None:
    title, names = plan.client.title, ", ".join(plan.servers)
    print_note(
        f"{capitalize_first(title)} now starts mcp-mirror, which starts these servers from {plan.config}: {names}."
    )
    print_note(f"A backup of {plan.client.file} is beside it: {backup_path(plan.client).name}.")
    if named not in known_clients():
        backup = backup_path(plan.client).name
        print_note(f"{plan.config.name} and {backup} contain the servers' secrets: keep them out of version control.")
    print_note("A server gets PATH, HOME, a few other variables of the environment, and its own `env`.")
    print_note(f"To put the servers back: {shlex.join(['mcp-mirror', 'uninstall', named])}")


def uninstall(client: _ClientArgument, dry_run: _DryRunOption = False) -> None:
    """Restore the servers that `install` moved.

    Stored values stay. The gateway's configuration also stays if it was edited after the installation.

    Example: mcp-mirror uninstall claude-desktop
    """
    try:
        plan = plan_uninstall(find_client(client))
        if dry_run:
            _show(plan.client.file, plan.after)
            return
        stays = apply_uninstall(plan)
        title, names = plan.client.title, ", ".join(plan.servers)
        print_note(f"{capitalize_first(title)} starts its own servers again: {names}. Restart it.")
        if stays:
            print_note(
                f"{plan.config} was edited and stays; move it away before you install again. "
                f"{capitalize_first(title)} does not know the additions in it."
            )
    except MirrorError as error:
        exit_with_error(error)


def _show(path: Path, data: bytes) -> None:
    print(f"{path}:\n{indent(data.decode('utf-8-sig'), '  ')}")

"""`install --merge` and its undoing, as commands run them."""

import os
import shlex
from pathlib import Path
from textwrap import indent

import typer

from mcp_mirror.cli.install.files import resolve_path
from mcp_mirror.cli.install.merge import (
    InstallPlan,
    apply_install,
    apply_uninstall,
    capitalize_first,
    find_client,
    known_clients,
    plan_install,
    plan_uninstall,
)
from mcp_mirror.cli.run import print_note


def can_merge(client: str) -> bool:
    """Return whether a client's name or a file is one that `--merge` knows: JSON only."""
    return client in known_clients() or resolve_path(client).suffix not in (".toml", ".yaml", ".yml", "")


def install(client: str, config: Path | None, *, dry_run: bool, no_connect: bool) -> None:
    """Move a client's servers to a configuration of the gateway, and connect to each of them once.

    Then the client's first list of tools is complete. Servers that do not connect are reported and stay.

    Raises:
        ConfigError: The servers cannot be moved.
    """
    plan = plan_install(find_client(client), config, os.environ)
    for warning in plan.warnings:
        print_note(f"mcp-mirror: {warning}")
    if dry_run:
        _show(plan.config, plan.text.encode())
        _show(plan.client.file, plan.after)
        return
    apply_install(plan)
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
    backup = plan.client.backup.name
    print_note(f"A backup of {plan.client.file} is beside it: {backup}.")
    if named not in known_clients():
        print_note(f"{plan.config.name} and {backup} contain the servers' secrets: keep them out of version control.")
    print_note("A server gets PATH, HOME, a few other variables of the environment, and its own `env`.")
    print_note(f"To put the servers back: {shlex.join(['mcp-mirror', 'uninstall', named])}")


def uninstall(client: str, *, dry_run: bool) -> None:
    """Restore the servers that `install` moved.

    Raises:
        ConfigError: There is nothing to restore.
    """
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


def _show(path: Path, data: bytes) -> None:
    print(f"{path}:\n{indent(data.decode('utf-8-sig'), '  ')}")

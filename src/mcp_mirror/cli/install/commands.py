"""The commands `mcp-mirror install` and `uninstall`."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from mcp_mirror.cli.install.clients import current_machine
from mcp_mirror.cli.install.files import describe_command, find_program, has_file
from mcp_mirror.cli.install.in_place import is_merged, plan_unwrapping, plan_wrapping
from mcp_mirror.cli.install.merge import find_mergeable, plan_merging, plan_unmerging
from mcp_mirror.cli.install.plans import Plan, apply_installation, apply_removal
from mcp_mirror.cli.install.targets import Target, find_named, find_targets
from mcp_mirror.cli.run import print_note, reads_terminal
from mcp_mirror.errors import ConfigError, MirrorError
from mcp_mirror.security.sanitize import sanitize

_CLIENT: Final = "A client's name, such as claude-code, or the path of a client's file."
Change = TypeVar("Change", Plan, Target)
_UNCHANGED: Final = "Nothing was changed, because of --dry-run."
_DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print the changes, including secrets near them, and write nothing.")
]
_YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")]
_AllOption = Annotated[bool, typer.Option("--all", help="Every client that is found, except files of a project.")]


def install(  # noqa: PLR0913, PLR0917  # typer reads the options from the parameters
    client: Annotated[str | None, typer.Argument(metavar="[CLIENT|FILE]", help=f"{_CLIENT} Default: ask.")] = None,
    merge: Annotated[
        bool,
        typer.Option("--merge/--in-place", help="Move the servers into one gateway, or wrap each server in its place."),
    ] = False,
    server: Annotated[list[str] | None, typer.Option(help="Wrap only this server. Repeatable.", metavar="NAME")] = None,
    every: _AllOption = False,
    yes: _YesOption = False,
    memory: Annotated[
        bool | None,
        typer.Option(
            "--memory/--no-memory",
            help="Add the memory tools as one more server. Default: ask with the list of clients, otherwise not.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="With --merge, the new configuration for the servers. Default: CLIENT.yaml in the user's "
            "configuration folder; with a path as CLIENT, mcp-mirror.yaml beside that file.",
        ),
    ] = None,
    dry_run: _DryRunOption = False,
    no_connect: Annotated[
        bool,
        typer.Option("--no-connect", help="With --merge, do not connect to the servers after the files are written."),
    ] = False,
) -> None:
    """Put mcp-mirror between a client and its MCP servers.

    Each server is wrapped in its place: its name, its tools' names, and all other settings stay. Comments and layout
    of the file stay too. A server that cannot be wrapped stays as it is, with a reason. Run the command again after you
    add servers. `uninstall` restores the file.

    Without a client, the command lists the clients on this machine and asks. Scripts use `--all --yes`.

    With `--merge`, the servers move to a configuration of one gateway, which becomes the client's only server.

    Example: mcp-mirror install

    Example: mcp-mirror install claude-code --server files
    """
    has_failed = False
    _check_options(client, config, server, merge=merge)
    if merge:
        plans = [plan_merging(find_mergeable(str(client)), config, os.environ)]
    elif client is not None:
        plans = _plan_client(client, server or (), with_memory=bool(memory))
    else:
        plans, has_failed = _plan_all(is_everything=every, with_memory=bool(memory))
        if plans and not dry_run and not (every and yes):
            plans = _ask(plans, memory)
            if not plans:
                print_note("No client was chosen. Nothing was changed.")
                raise typer.Exit(int(has_failed))
    if dry_run:
        _print_changes(plans)
    elif _carry_out(plans, connects=not no_connect):
        has_failed = True
    if has_failed:
        raise typer.Exit(1)


def _check_options(client: str | None, config: Path | None, server: Sequence[str] | None, *, merge: bool) -> None:
    if merge and (client is None or server):
        raise ConfigError("--merge needs a client, and moves all its servers: write its name, or its JSON file.")
    if config is not None and not merge:
        raise ConfigError("--config belongs to --merge. Servers that are wrapped need no configuration.")
    if server and client is None:
        raise ConfigError("--server needs a client: write its name, or the path of its file.")


def _plan_client(client: str, servers: Sequence[str], *, with_memory: bool) -> list[Plan]:
    """Return the plans for the files of a client."""
    targets = find_named(client, current_machine())
    chosen = [(target, servers) for target in targets]
    if servers and len(targets) > 1:
        chosen = _find_files(client, targets, servers)
    plans = [plan_wrapping(target, find_program(), names, with_memory=with_memory) for target, names in chosen]
    for plan in plans:
        if not plan.changed and not plan.left:
            raise ConfigError(f"{plan.target.file} contains no servers. Add a server in the client first.")
    return plans


def _find_files(client: str, targets: Sequence[Target], servers: Sequence[str]) -> list[tuple[Target, Sequence[str]]]:
    """Return the files of a client with some of the servers, and which of them each has."""
    entries = [(target, {entry.name for entry in target.list_entries()}) for target in targets]
    for name in servers:
        if not any(name in names for _, names in entries):
            raise ConfigError(f"No file of {client} has a server {name!r}. `mcp-mirror status` lists the servers.")
    return [(target, [*names.intersection(servers)]) for target, names in entries if names.intersection(servers)]


def _plan_all(*, is_everything: bool, with_memory: bool) -> tuple[list[Plan], bool]:
    """Return the plans for the files on this machine, and whether another file failed; its error is printed."""
    found = find_targets(current_machine())
    if is_everything:
        found = [target for target in found if target.place.scope == "user"]
    if not found:
        raise ConfigError(
            "No client with servers was found. Add a server in your client first, or name the client's file."
        )
    plans: list[Plan] = []
    has_failed = False
    for target in found:
        try:
            if is_merged(target, target.list_entries()):
                print_note(f"{target.title} stays as it is: it was installed with --merge.")
                continue
            plans.append(plan_wrapping(target, find_program(), with_memory=with_memory))
        except MirrorError as error:
            print_note(f"mcp-mirror: {error}")
            has_failed = True
    return [plan for plan in plans if plan.is_change], has_failed


def _ask(plans: list[Plan], memory: bool | None) -> list[Plan]:  # noqa: FBT001  # an option
    """Return the plans that the user chooses, with the memory tools if the user wants them."""
    if not reads_terminal():
        names = ", ".join(dict.fromkeys(plan.target.word for plan in plans))
        raise ConfigError(f"Name a client, or write --all --yes for every client. Found: {names}.")
    chosen = _choose_plans(plans)
    if chosen and memory is None:
        confirm: Callable[..., bool] = typer.confirm
        if confirm("Add the memory tools, which read and search stored values?", default=True, err=True):
            return [plan_wrapping(plan.target, find_program(), with_memory=True) for plan in chosen]
    return chosen


def _choose_plans(plans: Sequence[Plan]) -> list[Plan]:
    """List the files with their servers and ask which to change."""
    print_note("Found on this machine:")
    for number, plan in enumerate(plans, 1):
        scope = ", of this folder" if plan.target.place.scope == "project" else ""
        print_note(f"  {number}. {plan.target.title}{scope}: {', '.join(plan.changed) or 'the memory tools'}")
        for line in plan.left:
            print_note(f"       {line}")
    answer = typer.prompt("Which to install for? Numbers, `all` or `none`", default="all", err=True).strip().lower()
    if answer in ("all", "none"):
        return list(plans) if answer == "all" else []
    try:
        numbers = {int(word) for word in answer.replace(",", " ").split()}
    except ValueError:
        numbers = {0}
    if not numbers <= set(range(1, len(plans) + 1)):
        raise ConfigError(f"{answer!r} is not a choice. Write numbers from 1 to {len(plans)}, `all` or `none`.")
    return [plan for number, plan in enumerate(plans, 1) if number in numbers]


def _print_changes(plans: Sequence[Plan]) -> None:
    """Print the plans of an installation that changes nothing."""
    for plan in plans:
        _print_diff(plan)
        _print_plan(plan)
    print_note(_UNCHANGED)


def _carry_out(plans: Sequence[Plan], *, connects: bool) -> bool:
    """Carry out the plans of an installation; return whether one failed."""
    done: list[Plan] = []

    def carry_out(plan: Plan) -> None:
        if not plan.is_change:
            _print_plan(plan)
            return
        old = apply_installation(plan)
        done.append(plan)
        _print_plan(plan)
        if plan.config is None and plan.target.place.scope == "project":
            print_note("  The file now contains a path of this machine. Keep that in mind if the project is shared.")
        if old:
            print_note(f"  An older backup is now {old}.")

    has_failed = _try_each(plans, carry_out)
    if done:
        _print_next_steps(done, connects=connects)
    elif not has_failed:
        print_note("Nothing to change: every server that can be wrapped is wrapped.")
    return has_failed


def _try_each(changes: Sequence[Change], carry_out: Callable[[Change], None]) -> bool:
    """Carry out each change of a file; print errors, unless there is one change, and return whether any failed."""
    has_failed = False
    for change in changes:
        try:
            carry_out(change)
        except ConfigError as error:
            if len(changes) == 1:
                raise
            print_note(f"mcp-mirror: {error}")
            has_failed = True
    return has_failed


def _print_next_steps(done: Sequence[Plan], *, connects: bool) -> None:
    words = list(dict.fromkeys(plan.target.word for plan in done))
    titles = ", ".join(dict.fromkeys(plan.target.client.title for plan in done))
    undo = f"To undo: {'; '.join(describe_command('uninstall', word) for word in words)}"
    config = done[0].config
    if config is None:
        print_note(f"Restart {titles}. `{describe_command('doctor')}` starts each server and reports problems.\n{undo}")
        return
    print_note(undo)
    if connects and _connect_once(config.path):
        print_note(f"Restart {titles}.")
    else:
        check = describe_command("check", "--config", str(config.path))
        print_note(f"Check that all servers connect, then restart {titles}: {check}")


def _connect_once(config: Path) -> bool:
    """Connect to every server, which fills the cache of listings; print failures, and return whether there are none."""
    from mcp_mirror.cli.check import connect_once  # noqa: PLC0415  # it imports the gateway
    from mcp_mirror.cli.console import print_problems  # noqa: PLC0415  # it imports rich

    print_note("The servers start now, so that the first list of their tools is complete (Ctrl-C skips this).")
    try:
        down = connect_once(config)
    except MirrorError as error:
        print_note(f"mcp-mirror: {error}")
        return False
    except typer.Exit:  # the reason is printed
        return False
    print_problems(down)
    return not down


def _print_plan(plan: Plan) -> None:
    print_note(f"{plan.target.title}:")
    if plan.config:
        print_note(f"  moved to {plan.config.path}: {', '.join(plan.changed)}")
        for warning in plan.config.warnings:
            print_note(f"  {warning}")
        print_note("  A server gets PATH, HOME, a few other variables of the environment, and its own `env`.")
        print_note(f"  The backup of the file is beside it: {plan.target.backup.name}")
        if plan.target.place.scope == "project":
            print_note("  Keep the backup and the configuration, with the servers' secrets, out of version control.")
        return
    print_note(f"  wrapped: {', '.join(plan.changed) or 'no further server'}")
    if plan.adds_memory:
        print_note("  added: the memory tools")
    for line in plan.left:
        print_note(f"  {line}")


def _print_diff(plan: Plan) -> None:
    # A terminal gets no characters that control it or hide a part of the change: a project's file may be another's.
    for line in plan.diff():
        print("\t".join(map(sanitize, line.split("\t"))) if sys.stdout.isatty() else line)


def uninstall(
    client: Annotated[str | None, typer.Argument(metavar="[CLIENT|FILE]", help=_CLIENT)] = None,
    every: _AllOption = False,
    yes: _YesOption = False,
    dry_run: _DryRunOption = False,
) -> None:
    """Restore the servers that `install` wrapped or moved.

    A file that did not change since gets its original bytes. Otherwise only the wrapped servers change back. Stored
    values stay, and so does a configuration of `--merge` that was edited after the installation.

    Example: mcp-mirror uninstall claude-code
    """
    del yes  # accepted, as by `install`: nothing is asked
    targets = _find_all_installed(is_everything=every) if client is None else _find_installed(client)

    def carry_out(target: Target) -> None:
        # A file that `--merge` made has a backup, but no wrapped server.
        is_wrapped = any(entry.is_wrapped for entry in target.list_entries())
        plan = plan_unmerging(target) if has_file(target.backup) and not is_wrapped else plan_unwrapping(target)
        if dry_run:
            _print_diff(plan)
            return
        stays = apply_removal(plan)
        print_note(f"{plan.target.title} starts its own servers again: {', '.join(plan.changed)}. Restart it.")
        if stays and plan.config:
            print_note(
                f"{plan.config.path} was edited and stays; move it away before you install again. The client does "
                "not know the additions in it."
            )

    has_failed = _try_each(targets, carry_out)
    if dry_run:
        print_note(_UNCHANGED)
    if has_failed:
        raise typer.Exit(1)


def _find_installed(client: str) -> list[Target]:
    """Return the files of a client to restore; the first one if there are none, whose plan is an error."""
    targets = find_named(client, current_machine())
    installed = [target for target in targets if _is_installed(target)]
    return installed or [target for target in targets if has_file(target.backup)] or targets[:1]


def _find_all_installed(*, is_everything: bool) -> list[Target]:
    """Return all files of the user to restore; those of a project stay."""
    installed = [target for target in find_targets(current_machine()) if _is_installed(target)]
    if not installed:
        raise ConfigError("There is nothing to uninstall: no client on this machine starts servers through mcp-mirror.")
    if not is_everything:
        names = ", ".join(target.word for target in installed)
        raise ConfigError(f"Name a client, or write --all. Installed: {names}.")
    for target in installed:
        if target.place.scope == "project":
            command = describe_command("uninstall", target.word)
            print_note(f"{target.title} stays as it is: it is a file of a project. To restore it: {command}")
    return [target for target in installed if target.place.scope == "user"]


def _is_installed(target: Target) -> bool:
    """Return whether a file has wrapped servers, or `--merge` made it; one that cannot be read, if it has a backup."""
    try:
        entries = target.list_entries()
    except MirrorError:
        return has_file(target.backup)
    return any(entry.is_wrapped for entry in entries) or is_merged(target, entries)

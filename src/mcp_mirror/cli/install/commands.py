"""The commands `mcp-mirror install` and `uninstall`."""

from collections.abc import Callable, Iterable, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Annotated, Final

import typer

from mcp_mirror.cli.install import merge_commands
from mcp_mirror.cli.install.clients import current_machine
from mcp_mirror.cli.install.files import describe_command, find_program
from mcp_mirror.cli.install.in_place import (
    InPlacePlan,
    apply_installation,
    apply_removal,
    is_merged,
    plan_unwrapping,
    plan_wrapping,
)
from mcp_mirror.cli.install.targets import Target, find_named, find_targets, list_entries
from mcp_mirror.cli.run import exit_with_error, print_note, reads_terminal
from mcp_mirror.errors import ConfigError, MirrorError

_CLIENT: Final = "A client's name, such as claude-code, or the path of a client's file."
_DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print the changes, including secrets near them, and write nothing.")
]
_AllOption = Annotated[bool, typer.Option("--all", help="Every client that is found, except files of a project.")]


def install(  # noqa: PLR0913, PLR0917  # typer reads the options from the parameters
    client: Annotated[
        str | None, typer.Argument(metavar="[CLIENT|FILE]", help=f"{_CLIENT} Default: ask.", show_default=False)
    ] = None,
    merge: Annotated[
        bool,
        typer.Option("--merge/--in-place", help="Move the servers into one gateway, or wrap each server in its place."),
    ] = False,
    server: Annotated[
        list[str] | None,
        typer.Option(help="Wrap only this server. Repeatable.", metavar="NAME", show_default=False),
    ] = None,
    every: _AllOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
    memory: Annotated[
        bool | None,
        typer.Option(
            "--memory/--no-memory",
            help="Add the memory tools as one more server. Default: ask with the list of clients, otherwise not.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="With --merge, the new configuration for the servers. Default: CLIENT.yaml in the user's "
            "configuration folder; with a path as CLIENT, mcp-mirror.yaml beside that file.",
            show_default=False,
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
    try:
        _check_options(client, config, server, merge=merge)
        if merge:
            merge_commands.install(str(client), config, dry_run=dry_run, no_connect=no_connect)
            return
        if client is not None:
            plans = _plan_client(client, server or (), with_memory=bool(memory))
        else:
            plans, has_failed = _plan_all(is_everything=every)
            if plans and not dry_run and not (every and yes):
                plans, memory = _ask(plans, memory)
            if memory:
                plans = [plan_wrapping(plan.target, find_program(), with_memory=True) for plan in plans]
        _carry_out(plans, dry_run=dry_run)
    except MirrorError as error:
        exit_with_error(error)
    if has_failed:
        raise typer.Exit(1)


def _check_options(client: str | None, config: Path | None, server: Sequence[str] | None, *, merge: bool) -> None:
    if merge and (client is None or server):
        raise ConfigError("--merge needs a client, and moves all its servers: write its name, or its JSON file.")
    if config is not None and not merge:
        raise ConfigError("--config belongs to --merge. Servers that are wrapped need no configuration.")
    if server and client is None:
        raise ConfigError("--server needs a client: write its name, or the path of its file.")


def _plan_client(client: str, servers: Sequence[str], *, with_memory: bool) -> list[InPlacePlan]:
    """Return the plans for the files of a client."""
    targets, program = find_named(client, current_machine()), find_program()
    plans: list[InPlacePlan] = []
    for target in targets:
        chosen = _choose_servers(target, servers, len(targets))
        if chosen or not servers:
            plans.append(plan_wrapping(target, program, chosen, with_memory=with_memory))
    if not plans:
        raise ConfigError(f"No file of {client} has a server {servers[0]!r}. `mcp-mirror status` lists the servers.")
    for plan in plans:
        if not plan.changed and not plan.left:
            raise ConfigError(f"{plan.target.file} contains no servers. Add a server in the client first.")
    return plans


def _plan_all(*, is_everything: bool) -> tuple[list[InPlacePlan], bool]:
    """Return the plans for the files on this machine, and whether another file failed; its error is printed."""
    found = find_targets(current_machine())
    if is_everything:
        found = [target for target in found if target.place.scope == "user"]
    if not found:
        raise ConfigError(
            "No client with servers was found. Add a server in your client first, or name the client's file."
        )
    plans: list[InPlacePlan] = []
    has_failed = False
    for target in found:
        try:
            if is_merged(target, list_entries(target.read(), target.place)):
                print_note(f"{target.title} stays as it is: it was installed with --merge.")
                continue
            plans.append(plan_wrapping(target, find_program()))
        except MirrorError as error:
            print_note(f"mcp-mirror: {error}")
            has_failed = True
    return [plan for plan in plans if plan.changed], has_failed


def _choose_servers(target: Target, servers: Sequence[str], count: int) -> Sequence[str]:
    """Return the servers of a file that the user named; of several files, each has only some of them."""
    if count == 1:
        return servers
    names = {entry.name for entry in list_entries(target.read(), target.place)}
    return [name for name in servers if name in names]


def _ask(plans: list[InPlacePlan], memory: bool | None) -> tuple[list[InPlacePlan], bool | None]:  # noqa: FBT001  # an option
    """Return the plans that the user chooses, and whether to add the memory tools."""
    if not reads_terminal():
        names = ", ".join(dict.fromkeys(plan.target.word for plan in plans))
        raise ConfigError(f"Name a client, or write --all --yes for every client. Found: {names}.")
    chosen = _choose_plans(plans)
    if chosen and memory is None:
        confirm: Callable[..., bool] = typer.confirm
        memory = confirm("Add the memory tools, which read and search stored values?", default=True, err=True)
    return chosen, memory


def _choose_plans(plans: Sequence[InPlacePlan]) -> list[InPlacePlan]:
    """List the files with their servers and ask which to change.

    Raises:
        ConfigError: The answer is not a number of the list.
    """
    print_note("Found on this machine:")
    for number, plan in enumerate(plans, 1):
        scope = ", of this folder" if plan.target.place.scope == "project" else ""
        print_note(f"  {number}. {plan.target.title}{scope}: {', '.join(plan.changed)}")
        for name, reason in plan.left:
            print_note(f"       {name} stays as it is: {reason}")
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


def _carry_out(plans: Iterable[InPlacePlan], *, dry_run: bool) -> None:
    done: list[InPlacePlan] = []
    for plan in plans:
        if dry_run:
            _print_diff(plan)
        _print_plan(plan)
        if plan.after == plan.before or dry_run:
            continue
        if old := apply_installation(plan):
            print_note(f"  An older backup is now {old}.")
        done.append(plan)
    if not done:
        if not dry_run:
            print_note("Nothing to change: every server that can be wrapped is wrapped.")
        return
    words = list(dict.fromkeys(plan.target.word for plan in done))
    titles = dict.fromkeys(plan.target.client.title for plan in done)
    print_note(f"Restart {', '.join(titles)}. `{describe_command('doctor')}` starts each server and reports problems.")
    print_note(f"To undo: {'; '.join(describe_command('uninstall', word) for word in words)}")


def _print_plan(plan: InPlacePlan) -> None:
    print_note(f"{plan.target.title}:")
    print_note(f"  wrapped: {', '.join(plan.changed) or 'no further server'}")
    for name, reason in plan.left:
        print_note(f"  left: {name}: {reason}")
    if plan.target.place.scope == "project":
        print_note("  The file now contains a path of this machine. Keep that in mind if the project is shared.")


def _print_diff(plan: InPlacePlan) -> None:
    before, after = (data.decode("utf-8-sig").splitlines(keepends=True) for data in (plan.before, plan.after))
    name = str(plan.target.file)
    for line in unified_diff(before, after, name, name):
        print(line, end="" if line.endswith("\n") else "\n")


def uninstall(
    client: Annotated[str | None, typer.Argument(metavar="[CLIENT|FILE]", help=_CLIENT, show_default=False)] = None,
    every: _AllOption = False,
    dry_run: _DryRunOption = False,
) -> None:
    """Restore the servers that `install` wrapped or moved.

    A file that did not change since gets its original bytes. Otherwise only the wrapped servers change back. Stored
    values stay, and so does a configuration of `--merge` that was edited after the installation.

    Example: mcp-mirror uninstall claude-code
    """
    try:
        plans, merged = _plan_uninstall(client, is_everything=every)
        for plan in plans:
            if dry_run:
                _print_diff(plan)
            else:
                apply_removal(plan)
                names = ", ".join(plan.changed)
                print_note(f"{plan.target.title} starts its own servers again: {names}. Restart it.")
        for named in merged:
            merge_commands.uninstall(named, dry_run=dry_run)
    except MirrorError as error:
        exit_with_error(error)


def _plan_uninstall(client: str | None, *, is_everything: bool) -> tuple[list[InPlacePlan], list[str]]:
    """Return the plans for files with wrapped servers, and clients or files that may be installed with `--merge`."""
    machine = current_machine()
    if client is None:
        return _plan_uninstall_all(find_targets(machine), is_everything=is_everything)
    may_be_merged = merge_commands.can_merge(client)
    try:
        targets = find_named(client, machine)
    except MirrorError:
        if may_be_merged:
            return [], [client]
        raise
    installed = [target for target in targets if is_installed(target)]
    plans = [plan_unwrapping(target) for target in (installed if may_be_merged else installed or targets)]
    return plans, [] if plans else [client]


def _plan_uninstall_all(targets: Iterable[Target], *, is_everything: bool) -> tuple[list[InPlacePlan], list[str]]:
    """Do the same for all of these files, except those of a project."""
    installed = [target for target in targets if is_installed(target, allows_merged=True)]
    if not installed:
        raise ConfigError("There is nothing to uninstall: no client on this machine starts servers through mcp-mirror.")
    if not is_everything:
        names = ", ".join(target.word for target in installed)
        raise ConfigError(f"Name a client, or write --all. Installed: {names}.")
    plans: list[InPlacePlan] = []
    merged: list[str] = []
    for target in installed:
        if target.place.scope != "user":
            command = describe_command("uninstall", target.word)
            print_note(f"{target.title} stays as it is: it is a file of a project. To restore it: {command}")
        elif is_installed(target):
            plans.append(plan_unwrapping(target))
        else:
            merged.append(str(target.file))
    return plans, merged


def is_installed(target: Target, *, allows_merged: bool = False) -> bool:
    """Return whether a file has wrapped servers, or if that is allowed, `--merge` made it.

    A file that cannot be read has none.
    """
    try:
        entries = list_entries(target.read(), target.place)
    except MirrorError:
        return False
    return any(entry.is_wrapped for entry in entries) or (allows_merged and is_merged(target, entries))

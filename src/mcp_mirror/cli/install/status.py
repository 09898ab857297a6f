"""The command `mcp-mirror status`: the clients on this machine and which of their servers are wrapped."""

from mcp_mirror.cli.install.clients import current_machine
from mcp_mirror.cli.install.entries import Entry, describe_missing_programs
from mcp_mirror.cli.install.in_place import find_changed, is_merged
from mcp_mirror.cli.install.server_start import ServerStart
from mcp_mirror.cli.install.targets import Target, find_chosen
from mcp_mirror.cli.options import ClientArgument
from mcp_mirror.cli.run import print_note
from mcp_mirror.core.amounts import format_count
from mcp_mirror.errors import MirrorError


def status(client: ClientArgument = None) -> None:
    """List the clients on this machine and their wrapped servers.

    The list has the files of the user and of the current folder; name any other file. It also names the servers
    that are not wrapped, and changes since the installation. `mcp-mirror install` wraps new servers.

    Example: mcp-mirror status
    """
    targets = find_chosen(client, current_machine())
    if not targets:
        print_note("No client with servers was found.")
    for target in targets:
        try:
            lines = _describe_target(target)
        except MirrorError as error:
            lines = [f"problem: {error}"]
        word = "" if target.word == str(target.file) else f" ({target.word})"
        print("\n  ".join((f"{target.client.title}{word}: {target.file}", *lines)))


def _describe_target(target: Target) -> list[str]:
    """Return the lines about a file; ConfigError if it cannot be read."""
    entries = target.list_entries()
    wrapped = [entry for entry in entries if entry.is_wrapped]
    gateways = [entry for entry in entries if entry.is_gateway]
    memory = [entry for entry in entries if entry.is_memory]
    lines = [f"wrapped: {_join(wrapped)}"] if wrapped else []
    lines += [_describe_gateway(entry, target) for entry in gateways]
    lines = lines or ["not installed"]
    lines += _describe_rest(entries, target)
    lines += [f"memory tools: {_join(memory)}"] if memory else []
    if wrapped and (changed := find_changed(target)):
        lines.append(f"changed since the installation: {', '.join(changed)}")
    return [*lines, *describe_missing_programs(entries)]


def _describe_rest(entries: list[Entry], target: Target) -> list[str]:
    """Return the lines about servers that are neither wrapped nor mcp-mirror."""
    lines: list[str] = []
    new: list[Entry] = []
    for entry in entries:
        reason = entry.find_reason()
        if reason is None:
            new.append(entry)
        elif not (entry.is_wrapped or entry.is_gateway or entry.is_memory):
            lines.append(entry.describe_state(reason))
    if new and is_merged(target, entries):
        lines.append(f"not wrapped: {_join(new)} (add them to the configuration of the gateway)")
    elif new:
        lines.append(f"not wrapped: {_join(new)} (`mcp-mirror install {target.word}` wraps them)")
    return lines


def _describe_gateway(entry: Entry, target: Target) -> str:
    try:
        path, config = ServerStart(entry, target).load_gateway()
    except MirrorError as error:
        return f"one gateway ({entry.label}), problem: {error}"
    return f"one gateway ({entry.label}) with {format_count(len(config.upstreams), 'server')} from {path}"


def _join(entries: list[Entry]) -> str:
    return ", ".join(entry.label for entry in entries)

"""The clients whose servers `install --merge` moves, and the servers in their files."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from platformdirs import user_config_path

from mcp_mirror.cli.install.clients import CLIENTS, current_machine
from mcp_mirror.cli.install.entries import find_subcommand
from mcp_mirror.cli.install.files import BACKUP_SUFFIX, has_file, parse_json, read_bytes, resolve_path
from mcp_mirror.config import CONFIG_NAME
from mcp_mirror.errors import ConfigError

_MERGED: Final = frozenset({"claude-desktop", "cursor", "vscode", "windsurf"})


@dataclass(frozen=True, slots=True)
class Client:
    """A client and the file that names its servers."""

    title: str
    file: Path
    config: Path
    """The default gateway configuration for these servers."""
    block: str = "mcpServers"
    """The key of the servers in the file."""
    expands_variables: bool = True
    """Whether the client expands `${VAR}`; otherwise it is plain text."""


def known_clients() -> dict[str, Client]:
    """Return the clients whose servers can be merged by name, with their documented files on this system."""
    machine, ours = current_machine(), user_config_path("mcp-mirror")
    known: dict[str, Client] = {}
    for client in CLIENTS:
        if client.name in _MERGED:
            place = client.places[0]
            [file] = place.files(machine)
            config, is_expanding = ours / f"{client.name}.yaml", client.name != "claude-desktop"
            known[client.name] = Client(client.title, file, config, place.blocks[0][0], is_expanding)
    return known


def find_client(named: str) -> Client:
    """Return a client by its name or by the path of its file.

    Raises:
        ConfigError: There is neither such a client nor such a file, or the file has servers under two keys.
    """
    known = known_clients()
    if named in known:
        return known[named]
    path = resolve_path(named)
    if not os.path.isfile(path):  # noqa: PTH113  # of any text
        names = ", ".join(known)
        raise ConfigError(
            f"{named!r} is neither a client ({names}) nor a file. Name one of these clients or a JSON file."
        )
    for client in known.values():
        if resolve_path(client.file) == path:
            return client
    backup = path.with_name(path.name + BACKUP_SUFFIX)
    written = parse_json(read_bytes(backup if has_file(backup) else path), path)
    blocks = [block for block in ("mcpServers", "servers") if written.get(block)] or ["mcpServers"]
    if len(blocks) > 1:
        raise ConfigError(
            f"{path} has servers under {blocks[0]!r} and {blocks[1]!r}. Move all under one of these keys."
        )
    config = path.with_name(CONFIG_NAME)
    return Client(f"the client of {path.name}", path, config, blocks[0])


def read_servers(written: Mapping[str, Any], client: Client) -> Mapping[str, Any]:
    """Return the servers in a client's file.

    Raises:
        ConfigError: The key of the servers is not an object.
    """
    servers = written.get(client.block) or {}
    if not isinstance(servers, dict):
        raise ConfigError(f"{client.block!r} in {client.file} is not an object of servers. Fix it first.")
    return servers


def is_gateway(entry: Any) -> bool:
    """Return whether a server is the gateway, in any form (`uvx mcp-mirror@latest`, `python -m mcp_mirror`)."""
    return find_subcommand(entry) == "serve"


def is_wrapped(entry: Any) -> bool:
    """Return whether a server runs through `mcp-mirror wrap`, or is `mcp-mirror memory`."""
    return find_subcommand(entry) in ("wrap", "memory")


def backup_path(client: Client) -> Path:
    """Return the path of the backup of the client's file."""
    return client.file.with_name(client.file.name + BACKUP_SUFFIX)

"""The known clients and the servers in their files."""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from platformdirs import user_config_path

from mcp_mirror.cli.install.files import has_file, parse_json, read_bytes, resolve_path
from mcp_mirror.config import CONFIG_NAME
from mcp_mirror.errors import ConfigError

BACKUP_SUFFIX: Final = ".before-mcp-mirror"
"""Suffix of the backup of a client's file."""


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
    """Return the clients known by name, with their documented files on this system."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  # also works without a home folder
    if sys.platform == "darwin":
        folder = home / "Library" / "Application Support"
    elif sys.platform == "win32":
        folder = Path(os.environ.get("APPDATA") or home / "AppData" / "Roaming")
    else:
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    ours = user_config_path("mcp-mirror")
    return {
        "claude-desktop": Client(
            "Claude Desktop",
            folder / "Claude" / "claude_desktop_config.json",
            ours / "claude-desktop.yaml",
            expands_variables=False,
        ),
        "cursor": Client("Cursor", home / ".cursor" / "mcp.json", ours / "cursor.yaml"),
        "vscode": Client("VS Code", folder / "Code" / "User" / "mcp.json", ours / "vscode.yaml", "servers"),
        "windsurf": Client("Windsurf", home / ".codeium" / "windsurf" / "mcp_config.json", ours / "windsurf.yaml"),
    }


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
    return _runs(entry, "serve")


def is_wrapped(entry: Any) -> bool:
    """Return whether a server runs through `mcp-mirror wrap`, or is `mcp-mirror memory`."""
    return _runs(entry, "wrap") or _runs(entry, "memory")


def _runs(entry: Any, command: str) -> bool:
    """Return whether a server is a command of this program."""
    if not isinstance(entry, dict) or not isinstance(args := entry.get("args"), list) or command not in args:
        return False
    words = (re.split(r"[@=\[]", Path(str(word)).name)[0] for word in (entry.get("command"), *args))
    return any(word.removesuffix(".exe") in {"mcp-mirror", "mcp_mirror"} for word in words)


def backup_path(client: Client) -> Path:
    """Return the path of the backup of the client's file."""
    return client.file.with_name(client.file.name + BACKUP_SUFFIX)

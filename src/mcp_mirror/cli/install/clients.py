"""Clients, the files that name their servers, and what stands in these."""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from platformdirs import user_config_path

from mcp_mirror.cli.install.files import full, is_there, parse_json, read_bytes
from mcp_mirror.config import CONFIG_NAME
from mcp_mirror.errors import ConfigError

KEPT_AS: Final = ".before-mcp-mirror"
"""What the name of a client's file ends with where it is kept as it was."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client and the file that names its servers."""

    title: str
    file: Path
    config: Path
    """Where they go, if nobody says where."""
    block: str = "mcpServers"
    """The key that holds them."""
    expands: bool = True
    """Whether `${VAR}` is a variable there; else it is text."""


def known_clients() -> dict[str, Client]:
    """The clients that are known by name, with where each is documented to keep its servers on this system."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  # also where there is none
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
            expands=False,
        ),
        "cursor": Client("Cursor", home / ".cursor" / "mcp.json", ours / "cursor.yaml"),
        "vscode": Client("VS Code", folder / "Code" / "User" / "mcp.json", ours / "vscode.yaml", "servers"),
        "windsurf": Client("Windsurf", home / ".codeium" / "windsurf" / "mcp_config.json", ours / "windsurf.yaml"),
    }


def find_client(named: str) -> Client:
    """A client by its name, or by the path of its file.

    Raises:
        ConfigError: There is no such client and no such file, or it has servers under two keys.
    """
    known = known_clients()
    if named in known:
        return known[named]
    path = full(named)
    if not os.path.isfile(path):  # noqa: PTH113  # of any text
        names = ", ".join(known)
        raise ConfigError(
            f"{named!r} is neither a client ({names}) nor a file. Name one of them, or another's JSON file."
        )
    for client in known.values():
        if full(client.file) == path:
            return client
    kept = path.with_name(path.name + KEPT_AS)
    written = parse_json(read_bytes(kept if is_there(kept) else path), path)
    blocks = [block for block in ("mcpServers", "servers") if written.get(block)] or ["mcpServers"]
    if len(blocks) > 1:
        raise ConfigError(f"{path} has servers under {blocks[0]!r} and {blocks[1]!r}. Move them under one of these.")
    config = path.with_name(CONFIG_NAME)
    return Client(f"the client of {path.name}", path, config, blocks[0])


def servers_in(written: Mapping[str, Any], client: Client) -> Mapping[str, Any]:
    """The servers that a client's file names.

    Raises:
        ConfigError: Something else stands in their place.
    """
    servers = written.get(client.block) or {}
    if not isinstance(servers, dict):
        raise ConfigError(f"{client.block!r} in {client.file} is no object of servers. Mend it first.")
    return servers


def is_gateway(entry: Any) -> bool:
    """Whether this server is the gateway, however it is started (`uvx mcp-mirror@latest`, `python -m mcp_mirror`)."""
    if not isinstance(entry, dict) or not isinstance(args := entry.get("args"), list) or "serve" not in args:
        return False
    words = (re.split(r"[@=\[]", Path(str(word)).name)[0] for word in (entry.get("command"), *args))
    return any(word.removesuffix(".exe") in {"mcp-mirror", "mcp_mirror"} for word in words)


def kept_file(client: Client) -> Path:
    """Where the client's file is kept as it was."""
    return client.file.with_name(client.file.name + KEPT_AS)

"""The commands `mcp-mirror install` and `uninstall`: between a client and its servers, and out again.

The servers in a client's configuration move to one of ours as they stand there (`config.clients` reads them so), and
the gateway takes their place. Each file is written whole or not at all, the client's last, and only if what it would
start can be read.
"""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any, Final

import typer
import yaml
from platformdirs import user_config_path

from mcp_mirror.config import add_servers, parse_config
from mcp_mirror.errors import ConfigError, MirrorError
from mcp_mirror.process import fail, say

ENTRY: Final = "mirror"
"""What the gateway is called among a client's servers."""
KEPT_AS: Final = ".before-mcp-mirror"
"""What the name of a client's file ends with where it is kept as it was."""
_PRIVATE: Final = 0o600
"""Clients keep keys of servers in their files, and so does ours then."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client and the file that names its servers."""

    name: str
    title: str
    file: Path
    block: str = "mcpServers"
    """The key that holds them."""
    expands: bool = True
    """Whether `${VAR}` is a variable there; else it is text."""


def known_clients() -> dict[str, Client]:
    """The clients that are known by name, with where they keep their servers on this system (each one's own manual)."""
    home = Path.home()
    claude, code = (user_config_path(name, appauthor=False, roaming=True) for name in ("Claude", "Code"))
    each = (
        Client("claude-desktop", "Claude Desktop", claude / "claude_desktop_config.json", expands=False),
        Client("cursor", "Cursor", home / ".cursor" / "mcp.json"),
        Client("gemini-cli", "Gemini CLI", home / ".gemini" / "settings.json"),
        Client("vscode", "VS Code", code / "User" / "mcp.json", "servers"),
        Client("windsurf", "Windsurf", home / ".codeium" / "windsurf" / "mcp_config.json"),
    )
    return {one.name: one for one in each}


def find_client(named: str) -> Client:
    """A client by its name, or by the path of its file.

    Raises:
        ConfigError: There is no such client and no such file.
    """
    known = known_clients()
    if named in known:
        return known[named]
    file = Path(named).expanduser().absolute()
    if not file.is_file():
        raise ConfigError(
            f"{named!r} is neither a client ({', '.join(known)}) nor a file. Name one of them, or another's JSON file."
        )
    block = "servers" if "servers" in _read(file) else "mcpServers"
    return Client("mirror", str(file), file, block)


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be written."""

    client: Client
    config: Path
    """Our configuration."""
    servers: tuple[str, ...]
    """Those that move."""
    config_text: str
    """What is in our configuration then."""
    client_text: str
    """What is in the client's file then."""


def plan_install(client: Client, config: Path | None, environ: Mapping[str, str]) -> Change:
    """Put the gateway in the place of a client's servers.

    Args:
        client: Whose.
        config: Where they go; it may exist. By default a file of the client's name in the user's own configuration.
        environ: Variables that the servers may name.

    Raises:
        ConfigError: The client's file or ours cannot be read or added to, or a server in it cannot be used.
    """
    written = _read(client.file)
    servers = _servers(written, client)
    moved = {name: entry for name, entry in servers.items() if not _is_ours(entry)}
    path = (config or _config_in(servers) or _config_of(client)).expanduser().absolute()
    before = _text(path) if path.exists() else ""
    if not moved and not before:
        raise ConfigError(
            f"{client.title} has no servers to move in {client.file}. Write some into {path} under 'upstreams:' and "
            "install again."
        )
    literal = moved if client.expands else _escaped(moved, "${", "$${")
    text = add_servers(before, client.block, literal, str(path)) if moved else before
    try:
        parse_config(text, path, environ)
    except ConfigError as error:
        raise ConfigError(
            f"Nothing was changed, for with these servers the configuration has problems.\n{error}"
        ) from None
    block = {ENTRY: _own_entry(client, path)}
    return Change(client, path, tuple(moved), text, _json({**written, client.block: block}))


def plan_uninstall(client: Client) -> Change:
    """Put a client's servers back in the place of the gateway; our configuration stays.

    Raises:
        ConfigError: The gateway is not there, or its configuration cannot be read.
    """
    written = _read(client.file)
    servers = _servers(written, client)
    path = _config_in(servers)
    if path is None:
        raise ConfigError(f"{client.file} names no mcp-mirror with a --config; there is nothing to take out.")
    text = _text(path)
    try:
        found = yaml.safe_load(text)
        back = dict(found[client.block]) if found.get(client.block) else {}
    except (yaml.YAMLError, AttributeError, TypeError, ValueError):
        raise ConfigError(
            f"{path} cannot be read as YAML with servers. What was in {client.file} is kept beside it, as "
            f"{client.file.name}{KEPT_AS}."
        ) from None
    others = {name: entry for name, entry in servers.items() if not _is_ours(entry)}
    restored = back if client.expands else _escaped(back, "$${", "${")
    return Change(client, path, tuple(back), text, _json({**written, client.block: others | restored}))


def carry_out(change: Change) -> Path | None:
    """Write both files; where the client's is kept as it was, if it was not kept before.

    Raises:
        ConfigError: One cannot be written.
    """
    file = change.client.file
    kept = file.with_name(file.name + KEPT_AS)
    if not change.config.exists() or _text(change.config) != change.config_text:
        _write(change.config, change.config_text)
    is_kept = kept.exists() or not file.exists()
    if not is_kept:
        _write(kept, _text(file))
    _write(file, change.client_text)
    return None if is_kept else kept


def _config_in(servers: Mapping[str, Any]) -> Path | None:
    """The configuration that a gateway among these is started with."""
    for entry in servers.values():
        if _is_ours(entry) and "--config" in entry["args"][:-1]:
            return Path(entry["args"][entry["args"].index("--config") + 1])
    return None


def _config_of(client: Client) -> Path:
    folder = user_config_path("mcp-mirror") if client.name in known_clients() else client.file.parent
    return folder / f"{client.name}.yaml"


def _read(file: Path) -> dict[str, Any]:
    """A client's file; none is one without servers where the client is there."""
    if not file.exists() and file.parent.is_dir():
        return {}
    text = _text(file)
    try:
        written = json.loads(text or "{}")
    except ValueError as error:
        raise ConfigError(
            f"{file} is not plain JSON ({error}); it may hold comments, which would be lost. Move its servers by hand, "
            "as the README shows."
        ) from None
    if not isinstance(written, dict):
        raise ConfigError(f"{file} holds no JSON object, so it is no client's configuration. Name another file.")
    return written


def _servers(written: Mapping[str, Any], client: Client) -> Mapping[str, Any]:
    servers = written.get(client.block) or {}
    if not isinstance(servers, dict):
        raise ConfigError(f"{client.block!r} in {client.file} is no object of servers. Mend it and install again.")
    return servers


def _is_ours(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("args"), list):
        return False
    program = Path(str(entry.get("command", ""))).stem
    return "serve" in entry["args"] and (program == "mcp-mirror" or "mcp_mirror" in entry["args"])


def _own_entry(client: Client, config: Path) -> dict[str, Any]:
    """How the client starts the gateway: by a full path, since a client with a window has a `PATH` of its own."""
    script = shutil.which("mcp-mirror", path=str(Path(sys.executable).parent))
    program = [script] if script else [sys.executable, "-m", "mcp_mirror"]
    kind = {"type": "stdio"} if client.block == "servers" else {}
    return {**kind, "command": program[0], "args": [*program[1:], "serve", "--config", str(config)]}


def _escaped(value: Any, said: str, written: str) -> Any:
    if isinstance(value, str):
        return value.replace(said, written)
    if isinstance(value, list):
        return [_escaped(item, said, written) for item in value]
    return {key: _escaped(item, said, written) for key, item in value.items()} if isinstance(value, dict) else value


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(f"{path} cannot be read: {reason}.") from None


def _write(path: Path, text: str) -> None:
    """Whole or not at all, with the rights it had; what a link leads to, not the link."""
    path = path.resolve()
    draft = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = path.stat().st_mode & 0o777 if path.exists() else _PRIVATE
        draft.touch(mode)
        draft.chmod(mode)
        draft.write_text(text, "utf-8")
        draft.replace(path)
    except (OSError, ValueError) as error:
        with suppress(OSError):
            draft.unlink()
        reason = getattr(error, "strerror", None) or "it holds what UTF-8 has no form for"
        raise ConfigError(f"{path} cannot be written: {reason}.") from None


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
            help="Where the client's servers go; it may exist. By default CLIENT.yaml in the user's own configuration, "
            "or mirror.yaml beside a file that is named by its path.",
            show_default=False,
        ),
    ] = None,
    dry_run: _DryRunOption = False,  # noqa: FBT002  # a flag of the command line
) -> None:
    """Put the gateway between a client and its servers: they move from its configuration to one of ours.

    Example: mcp-mirror install claude-desktop
    """
    try:
        change = plan_install(find_client(client), config, os.environ)
        if _is_shown(change, dry_run=dry_run):
            return
        kept = carry_out(change)
    except MirrorError as error:
        fail(error)
    named = change.client
    moved = f"{', '.join(change.servers)} now in {change.config}." if change.servers else f"It uses {change.config}."
    say(f"{named.title} starts mcp-mirror now ({named.file}). {moved}")
    if kept:
        say(f"What its configuration was is kept in {kept}.")
    say(f"Start {named.title} anew. `mcp-mirror check --config {change.config}` tells whether everything connects,")
    say(f"`mcp-mirror uninstall {client}` puts the servers back.")


def uninstall(client: _ClientArgument, dry_run: _DryRunOption = False) -> None:  # noqa: FBT002  # a flag of the command line
    """Put a client's servers back in the place of the gateway. What is in memory stays, and so does the configuration.

    Example: mcp-mirror uninstall claude-desktop
    """
    try:
        change = plan_uninstall(find_client(client))
        if _is_shown(change, dry_run=dry_run):
            return
        carry_out(change)
    except MirrorError as error:
        fail(error)
    back = ", ".join(change.servers) or "none"
    say(f"{change.client.title} starts its own servers again ({change.client.file}): {back}.")


def _is_shown(change: Change, *, dry_run: bool) -> bool:
    if dry_run:
        for path, text in ((change.config, change.config_text), (change.client.file, change.client_text)):
            print(f"{path}:\n{indent(text, '  ')}")  # noqa: T201  # the output
    return dry_run

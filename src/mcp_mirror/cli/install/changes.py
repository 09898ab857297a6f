"""What install and uninstall write: planned whole, then carried out."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from mcp_mirror.cli.install.clients import Client, is_gateway, kept_file, servers_in
from mcp_mirror.cli.install.files import as_json, full, is_there, parse_json, read_bytes, write_file
from mcp_mirror.config import parse_config
from mcp_mirror.errors import ConfigError

ENTRY: Final = "mirror"
"""What the gateway is called among a client's servers."""
_HEAD: Final = "# Servers as they stood in {file}. Settings of the gateway can be added.\n\n"
_PLAIN: Final = re.compile("[-./_@A-Za-z]*[A-Za-z][-./_@A-Za-z0-9]*")
_VARIABLE: Final = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}")
_FOLDERS: Final = ("cwd", "working_directory")


@dataclass(frozen=True, slots=True)
class InstallPlan:
    """What is to be written."""

    client: Client
    servers: Mapping[str, Any]
    """Those that move, as the client writes them."""
    before: bytes
    """The client's file as it is, or was."""
    after: bytes
    config: Path
    """Our configuration."""
    text: str
    """What install writes into it."""
    warnings: tuple[str, ...] = ()
    """What of the servers has no effect here."""


def plan_install(client: Client, config: Path | None, environ: Mapping[str, str]) -> InstallPlan:
    """Put the gateway in the place of a client's servers.

    Args:
        client: Whose.
        config: Where they go, a file that is not there yet.
        environ: Variables that the servers may name.

    Raises:
        ConfigError: The client's file cannot be read, has the gateway already or no servers, one of these cannot be
            used as it stands, or a file is there already that would be written.
    """
    before, kept = read_bytes(client.file), kept_file(client)
    written = parse_json(before, client.file)
    if is_there(kept) and read_bytes(kept) != before:
        raise ConfigError(
            f"{kept} holds {client.file.name} as it was when the gateway was installed. Bring those servers back first "
            "(`mcp-mirror uninstall`); then all can be installed."
        )
    servers = servers_in(written, client)
    _check(servers, client)
    path = full(config or client.config)
    try:
        text = _config_text(client, servers)
        warnings = parse_config(text, path, environ).warnings
    except ConfigError as error:
        raise ConfigError(
            f"Nothing was changed: the servers in {client.file} cannot be used as they stand there. Variables of the "
            f"client's own, such as ${{workspaceFolder}}, have to be written out. As they would be in {path}:\n{error}"
        ) from None
    except RecursionError:
        raise ConfigError(f"A server in {client.file} is nested too deep to be one. Mend it first.") from None
    is_other = is_there(path) and read_bytes(path) != text.encode()
    if is_other or path in map(full, (client.file, kept)):
        raise ConfigError(f"{path} is there already. Name another file with --config, or move it away.")
    after = {**written, client.block: {ENTRY: _own_entry(client, path, text)}}
    return InstallPlan(client, servers, before, as_json(after, client.file), path, text, warnings)


def _check(servers: Mapping[str, Any], client: Client) -> None:
    if found := next(filter(is_gateway, servers.values()), None):
        raise ConfigError(
            f"{capital(client.title)} starts mcp-mirror already ({shlex.join(map(str, found['args']))}). Add servers "
            "to the configuration that it names, or take it out first."
        )
    if not servers:
        raise ConfigError(
            f"There are no servers in {client.file}. Write a configuration of your own, as the README shows."
        )
    for name, entry in servers.items():
        folders = [str(entry[key]) for key in _FOLDERS if entry.get(key)] if isinstance(entry, dict) else []
        for folder in folders:
            if folder[0] not in "~$" and not os.path.isabs(folder):  # noqa: PTH117  # any text
                raise ConfigError(f"The folder {folder!r} of server {name!r} depends on where it is. Write it in full.")


def plan_uninstall(client: Client) -> InstallPlan:
    """Put a client's servers back in the place of the gateway, as they were.

    If nothing else has changed since, the file is as it was to the byte. A server that came later stays, and stands
    before one of the same name.

    Raises:
        ConfigError: The file as it was is not there, or a file cannot be read.
    """
    kept = kept_file(client)
    if not is_there(kept):
        raise ConfigError(f"There is no {kept}, which `mcp-mirror install` leaves. Mend {client.file} by hand.")
    was, now = read_bytes(kept), read_bytes(client.file)
    before, written = parse_json(was, kept), parse_json(now, client.file)
    back, servers = servers_in(before, client), dict(servers_in(written, client))
    gateway = servers.pop(ENTRY) if is_gateway(servers.get(ENTRY)) else {}
    args = gateway.get("args", [])
    config = Path(args[args.index("--config") + 1]) if "--config" in args[:-1] else client.config
    is_all = not servers and as_json({**before, client.block: {ENTRY: gateway}}, kept) == now
    after = was if is_all else as_json({**written, client.block: {**back, **servers}}, client.file)
    return InstallPlan(client, back, was, after, config, _config_text(client, back))


def carry_out_install(change: InstallPlan) -> None:
    """Write our configuration, the client's file as it was, and the client's file last.

    Raises:
        ConfigError: One cannot be written.
    """
    write_file(change.config, change.text.encode())
    write_file(kept_file(change.client), change.before)
    write_file(change.client.file, change.after)


def carry_out_uninstall(change: InstallPlan) -> bool:
    """Write the client's file, and remove what install has written besides; whether our configuration stays.

    It does where somebody has changed it.

    Raises:
        ConfigError: The file cannot be written.
    """
    write_file(change.client.file, change.after)
    is_changed = is_there(change.config) and read_bytes(change.config) != change.text.encode()
    with suppress(OSError):
        kept_file(change.client).unlink()
        if not is_changed:
            change.config.unlink()
    return is_changed


def _config_text(client: Client, servers: Mapping[str, Any]) -> str:
    literal = servers if client.expands else _escaped(servers)
    text: str = yaml.dump(
        {client.block: literal}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 20
    )  # fmt: skip
    return _HEAD.format(file=client.file.name) + text


def _escaped(value: Any) -> Any:
    """The same where `${` is no text."""
    if isinstance(value, str):
        return value.replace("${", "$${")
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return {key: _escaped(item) for key, item in value.items()} if isinstance(value, dict) else value


class _Dumper(yaml.SafeDumper):
    """Puts texts in quotes but words, paths and options: in our configuration more are numbers than in YAML 1.1."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True

    def represent_text(self, text: str) -> yaml.Node:
        return self.represent_scalar("tag:yaml.org,2002:str", text, None if _PLAIN.fullmatch(text) else '"')


_Dumper.add_representer(str, _Dumper.represent_text)


def _own_entry(client: Client, config: Path, text: str) -> dict[str, Any]:
    """How the client starts the gateway.

    By a full path, since a client with a window has a `PATH` of its own; with the variables that its servers name,
    since the client may know more of them than it hands on.
    """
    script = shutil.which("mcp-mirror", path=str(Path(sys.executable).parent))
    program = [script] if script else [sys.executable, "-m", "mcp_mirror"]
    kind = {"type": "stdio"} if client.block == "servers" else {}
    named = {found[1]: found[0] for found in _VARIABLE.finditer(text)} if client.expands else {}
    env = {"env": named} if named else {}
    return {**kind, "command": program[0], "args": [*program[1:], "serve", "--config", str(config)], **env}


def capital(words: str) -> str:
    """The words as a sentence begins with them."""
    return words[0].upper() + words[1:]

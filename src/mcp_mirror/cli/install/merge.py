"""`install --merge`: the servers move to a configuration of one gateway, which becomes the client's only server.

The plans of installation and removal are complete before the first write.
"""

import os
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from platformdirs import user_config_path

from mcp_mirror.cli.install.clients import CLIENTS, current_machine
from mcp_mirror.cli.install.entries import find_subcommand, read_words
from mcp_mirror.cli.install.files import (
    as_json,
    backup_of,
    find_program,
    has_file,
    parse_json,
    read_bytes,
    resolve_path,
    write_file,
)
from mcp_mirror.config import CONFIG_NAME, parse_config
from mcp_mirror.errors import ConfigError

_MERGED: Final = frozenset({"claude-desktop", "cursor", "vscode", "windsurf"})
"""The clients whose servers can be merged by name."""
ENTRY: Final = "mirror"
"""The gateway's name among a client's servers."""
_HEAD: Final = "# Servers moved from {file}. You can add settings of the gateway.\n\n"
_PLAIN: Final = re.compile("[-./_@A-Za-z]*[A-Za-z][-./_@A-Za-z0-9]*")
_VARIABLE: Final = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}")
_FOLDERS: Final = ("cwd", "working_directory")


@dataclass(frozen=True, slots=True)
class ClientFile:
    """A client whose servers can be merged, and the file that names them."""

    title: str
    file: Path
    config: Path
    """The default gateway configuration for these servers."""
    block: str = "mcpServers"
    """The key of the servers in the file."""
    expands_variables: bool = True
    """Whether the client expands `${VAR}`; otherwise it is plain text."""

    @property
    def backup(self) -> Path:
        """The backup of the file."""
        return backup_of(self.file)


def known_clients() -> dict[str, ClientFile]:
    """Return the clients whose servers can be merged by name, with their documented files on this system."""
    machine, ours = current_machine(), user_config_path("mcp-mirror")
    known: dict[str, ClientFile] = {}
    for client in CLIENTS:
        if client.name in _MERGED:
            place = client.places[0]
            [file] = place.files(machine)
            config, block = ours / f"{client.name}.yaml", place.blocks[0][0]
            known[client.name] = ClientFile(client.title, file, config, block, client.expands_variables)
    return known


def find_client(named: str) -> ClientFile:
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
    backup = backup_of(path)
    written = parse_json(read_bytes(backup if has_file(backup) else path), path)
    blocks = [block for block in ("mcpServers", "servers") if written.get(block)] or ["mcpServers"]
    if len(blocks) > 1:
        raise ConfigError(
            f"{path} has servers under {blocks[0]!r} and {blocks[1]!r}. Move all under one of these keys."
        )
    config = path.with_name(CONFIG_NAME)
    return ClientFile(f"the client of {path.name}", path, config, blocks[0])


def read_servers(written: Mapping[str, Any], client: ClientFile) -> Mapping[str, Any]:
    """Return the servers in a client's file.

    Raises:
        ConfigError: The key of the servers is not an object.
    """
    servers = written.get(client.block) or {}
    if not isinstance(servers, dict):
        raise ConfigError(f"{client.block!r} in {client.file} is not an object of servers. Fix it first.")
    return servers


def _is_gateway(entry: Any) -> bool:
    return find_subcommand(entry) == "serve"


@dataclass(frozen=True, slots=True)
class InstallPlan:
    """The files to write."""

    client: ClientFile
    servers: Mapping[str, Any]
    """The servers to move, as the client writes them."""
    before: bytes
    """The client's file without the gateway."""
    after: bytes
    config: Path
    """The path of the gateway's configuration."""
    text: str
    """The configuration that install writes."""
    warnings: tuple[str, ...] = ()
    """A sentence for each setting of the servers that has no effect in the gateway."""


def plan_install(client: ClientFile, config: Path | None, environ: Mapping[str, str]) -> InstallPlan:
    """Plan to replace a client's servers by the gateway.

    Args:
        client: The client.
        config: The configuration to write, which must not exist yet; None: the client's default.
        environ: Variables that the servers may refer to.

    Raises:
        ConfigError: The client's file cannot be read, has the gateway already, or has no usable servers; or another
            file would be overwritten.
    """
    before, backup = read_bytes(client.file), client.backup
    written = parse_json(before, client.file)
    if has_file(backup) and read_bytes(backup) != before:
        raise ConfigError(
            f"{backup} is the backup of an earlier installation. Restore those servers first "
            f"(`{shlex.join(['mcp-mirror', 'uninstall', str(client.file)])}`), then install again."
        )
    servers = read_servers(written, client)
    _check(servers, client)
    path = resolve_path(config or client.config)
    try:
        text = _write_config_text(client, servers)
        warnings = parse_config(text, path, environ).warnings
    except ConfigError as error:
        raise ConfigError(
            f"Nothing was changed, because the gateway cannot use the servers in {client.file}. Replace variables that "
            f"only the client knows, such as ${{workspaceFolder}}, by their values. Errors in {path}:\n{error}"
        ) from None
    except RecursionError:
        raise ConfigError(f"A server in {client.file} is nested too deeply. Fix it first.") from None
    is_other = has_file(path) and read_bytes(path) != text.encode()
    if is_other or path in map(resolve_path, (client.file, backup)):
        raise ConfigError(f"{path} exists already. Move it away, or name another file with --config.")
    after = {**written, client.block: {ENTRY: _build_entry(client, path, text)}}
    return InstallPlan(client, servers, before, as_json(after, client.file), path, text, warnings)


def _check(servers: Mapping[str, Any], client: ClientFile) -> None:
    if found := next(filter(_is_gateway, servers.values()), None):
        raise ConfigError(
            f"{capitalize_first(client.title)} starts mcp-mirror already ({shlex.join(read_words(found)[1:])}). Add "
            "servers to that configuration, or uninstall the gateway first."
        )
    if wrapped := next((name for name, entry in servers.items() if find_subcommand(entry)), None):
        raise ConfigError(
            f"Server {wrapped!r} in {client.file} runs through `mcp-mirror wrap` or is `mcp-mirror memory`. One "
            "gateway for all servers does not need this: write the server's own command there, or remove the server."
        )
    if not servers:
        raise ConfigError(f"{client.file} contains no servers. Write a configuration of your own, as the README shows.")
    for name, entry in servers.items():
        folders = [str(entry[key]) for key in _FOLDERS if entry.get(key)] if isinstance(entry, dict) else []
        for folder in folders:
            if folder[0] not in "~$" and not os.path.isabs(folder):  # noqa: PTH117  # any text
                raise ConfigError(f"The folder {folder!r} of server {name!r} is relative. Write the absolute path.")


def plan_uninstall(client: ClientFile) -> InstallPlan:
    """Plan to restore a client's servers.

    If nothing else in the file has changed, the restored file is the backup byte for byte. A server that was added
    later stays, and wins over one of the same name.

    Raises:
        ConfigError: The backup does not exist, or a file cannot be read.
    """
    backup = client.backup
    if not has_file(backup):
        if not any(map(_is_gateway, read_servers(parse_json(read_bytes(client.file), client.file), client).values())):
            raise ConfigError(f"There is nothing to uninstall: {client.file} does not start mcp-mirror.")
        raise ConfigError(f"The backup {backup} of `mcp-mirror install` does not exist. Restore {client.file} by hand.")
    was, now = read_bytes(backup), read_bytes(client.file)
    before, written = parse_json(was, backup), parse_json(now, client.file)
    back, servers = read_servers(before, client), dict(read_servers(written, client))
    gateway = servers.pop(ENTRY) if _is_gateway(servers.get(ENTRY)) else {}
    args = read_words(gateway)
    config = Path(args[args.index("--config") + 1]) if "--config" in args[:-1] else client.config
    is_all = not servers and as_json({**before, client.block: {ENTRY: gateway}}, backup) == now
    after = was if is_all else as_json({**written, client.block: {**back, **servers}}, client.file)
    return InstallPlan(client, back, was, after, config, _write_config_text(client, back))


def apply_install(plan: InstallPlan) -> None:
    """Write the configuration, the backup, and the client's file last.

    Raises:
        ConfigError: A file cannot be written.
    """
    write_file(plan.config, plan.text.encode())
    write_file(plan.client.backup, plan.before)
    write_file(plan.client.file, plan.after)


def apply_uninstall(plan: InstallPlan) -> bool:
    """Write the client's file and remove the backup and the configuration; return whether the configuration stays.

    It stays if it was edited after the installation.

    Raises:
        ConfigError: The file cannot be written.
    """
    write_file(plan.client.file, plan.after)
    is_changed = has_file(plan.config) and read_bytes(plan.config) != plan.text.encode()
    with suppress(OSError):
        plan.client.backup.unlink()
        if not is_changed:
            plan.config.unlink()
    return is_changed


def _write_config_text(client: ClientFile, servers: Mapping[str, Any]) -> str:
    literal = servers if client.expands_variables else _escape_variables(servers)
    content = {client.block: literal}
    text: str = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 20)
    return _HEAD.format(file=client.file.name) + text


def _escape_variables(value: Any) -> Any:
    """Escape `${` in every text."""
    if isinstance(value, str):
        return value.replace("${", "$${")
    if isinstance(value, list):
        return [_escape_variables(item) for item in value]
    return {key: _escape_variables(item) for key, item in value.items()} if isinstance(value, dict) else value


class _Dumper(yaml.SafeDumper):
    """Quotes all texts except words, paths and options: the configuration reads more texts as numbers than YAML 1.1."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True

    def represent_text(self, text: str) -> yaml.Node:
        return self.represent_scalar("tag:yaml.org,2002:str", text, None if _PLAIN.fullmatch(text) else '"')


_Dumper.add_representer(str, _Dumper.represent_text)


def _build_entry(client: ClientFile, config: Path, text: str) -> dict[str, Any]:
    """Return the entry that starts the gateway.

    It has an absolute path, because desktop clients have a `PATH` of their own, and it passes the variables that the
    servers refer to, because the client may know variables that it does not pass on otherwise.
    """
    program = find_program()
    kind = {"type": "stdio"} if client.block == "servers" else {}
    named = {found[1]: found[0] for found in _VARIABLE.finditer(text)} if client.expands_variables else {}
    env = {"env": named} if named else {}
    return {**kind, "command": program[0], "args": [*program[1:], "serve", "--config", str(config)], **env}


def capitalize_first(words: str) -> str:
    """Return the words with the first letter in upper case."""
    return words[0].upper() + words[1:]

"""The plans of `install --merge`: servers move to a configuration of one gateway, the client's only server."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from platformdirs import user_config_path

from mcp_mirror.cli.install.clients import CLIENTS, current_machine
from mcp_mirror.cli.install.entries import flatten, read_own_command, read_words
from mcp_mirror.cli.install.files import describe_command, find_program, has_file, read_bytes, resolve_path
from mcp_mirror.cli.install.formats import parse_document
from mcp_mirror.cli.install.formats.document import Add, Document, Put, Restore, look_up
from mcp_mirror.cli.install.in_place import plan_unwrapping
from mcp_mirror.cli.install.plans import GatewayFile, Plan
from mcp_mirror.cli.install.targets import Target, find_named
from mcp_mirror.cli.main import find_config_option
from mcp_mirror.config import CONFIG_NAME, parse_config
from mcp_mirror.errors import ConfigError
from mcp_mirror.security.sanitize import sanitize
from mcp_mirror.system.patterns import lazy_pattern

MERGED: Final = ("claude-desktop", "cursor", "vscode", "windsurf")
"""The clients whose servers can be merged by name."""
_ENTRY: Final = "mirror"
"""The gateway's name among a client's servers."""
_BLOCKS: Final = ("mcpServers", "servers")
"""Keys of servers that a configuration of the gateway can have too."""
_HEAD: Final = "# Servers moved from {file}. You can add settings of the gateway.\n\n"
_PLAIN: Final = lazy_pattern("[-./_@A-Za-z]*[A-Za-z][-./_@A-Za-z0-9]*")
_VARIABLE: Final = lazy_pattern(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}")


def find_mergeable(word: str) -> Target:
    """Return the file whose servers `--merge` moves, by its path or the name of a client in `MERGED`."""
    machine = current_machine()
    client = next((client for client in CLIENTS if client.name == word), None)
    if client is None:
        return find_named(word, machine)[0]
    if word not in MERGED:
        raise ConfigError(f"--merge knows {', '.join(MERGED)} by name. Name the JSON file of {client.title} instead.")
    [file] = client.places[0].files(machine)
    return Target(client, client.places[0], file)


def plan_merging(target: Target, config: Path | None, environ: Mapping[str, str]) -> Plan:
    """Plan to replace the servers of a file by the gateway.

    `config` is the configuration to write, which must not exist yet; None: the default of the file. The servers may
    refer to variables of `environ`.

    Raises:
        ConfigError: The file cannot be read, has the gateway already, or has no usable servers; or another file would
            be overwritten.
    """
    document, backup = target.read(), target.backup
    if has_file(backup) and read_bytes(backup) != document.data:
        raise ConfigError(
            f"{backup} is the backup of an earlier installation. Restore those servers first "
            f"(`{describe_command('uninstall', str(target.file))}`), then install again."
        )
    block = _find_block(document, target)
    servers = _read_servers(document, block, target)
    _check(document, block, servers, target)
    path = resolve_path(config or _default_config(target))
    try:
        text = _write_config_text(target, block, servers)
        warnings = parse_config(text, path, environ).warnings
    except ConfigError as error:
        raise ConfigError(
            f"Nothing was changed, because the gateway cannot use the servers in {target.file}. Replace variables that "
            f"only the client knows, such as ${{workspaceFolder}}, by their values. Errors in {path}:\n{error}"
        ) from None
    except RecursionError:
        raise ConfigError(f"A server in {target.file} is nested too deeply. Fix it first.") from None
    is_other = has_file(path) and read_bytes(path) != text.encode()
    if is_other or path in map(resolve_path, (target.file, backup)):
        raise ConfigError(f"{path} exists already. Move it away, or name another file with --config.")
    after = document.edit([Put((block,), {_ENTRY: _build_entry(target, block, path, text)})])
    names = tuple(map(sanitize, servers))
    return Plan(target, document.data, after.data, document.data, names, (), GatewayFile(path, text, warnings))


def plan_unmerging(target: Target) -> Plan:
    """Plan to restore the servers of a file from its backup, or what a backup of wrapped servers allows.

    If nothing else in the file has changed, the restored file is the backup byte for byte. A server that was added
    later stays, and wins over one of the same name.
    """
    document, backup = target.read(), parse_document(read_bytes(target.backup), target.file)
    _find_block(document, target)
    block = _find_block(backup, target)
    back = look_up(backup.value, (block,))
    if not isinstance(back, dict):  # `--merge` did not make this backup
        return plan_unwrapping(target)
    servers = dict(_read_servers(document, block, target))
    gateway = servers.pop(_ENTRY) if read_own_command(servers.get(_ENTRY)).subcommand == "serve" else {}
    is_all = not document.value or document.data == backup.edit([Put((block,), {_ENTRY: gateway})]).data
    restored = backup if is_all else _add_servers(document, backup, block, servers)
    named = find_config_option(read_words(gateway))
    path = Path(named) if named else _default_config(target)
    config = GatewayFile(path, _write_config_text(target, block, back))
    return Plan(target, document.data, restored.data, restored.data, tuple(map(sanitize, back)), (), config)


def _add_servers(document: Document, backup: Document, block: str, late: Mapping[str, Any]) -> Document:
    """Return the document with the servers of the backup, and those that were added later."""
    if block not in document.value:
        return document.edit([Add((), block, look_up(backup.value, (block,)))])
    document = document.edit([Restore((block,), backup, (block,))])
    for name, server in late.items():
        if name not in document.value[block]:
            document = document.edit([Add((block,), name, server)])
        elif server != document.value[block][name]:
            document = document.edit([Put((block, name), server)])
    return document


def _find_block(document: Document, target: Target) -> str:
    """Return the key of the servers."""
    if not isinstance(document.value, dict):
        raise ConfigError(f"{target.file} is not a client's configuration: it contains no object. Name another file.")
    blocks = [block for block in _BLOCKS if look_up(document.value, (block,))]
    if len(blocks) > 1:
        raise ConfigError(
            f"{target.file} has servers under {blocks[0]!r} and {blocks[1]!r}. Move all under one of these keys."
        )
    return blocks[0] if blocks else _BLOCKS[0]


def _read_servers(document: Document, block: str, target: Target) -> Mapping[str, Any]:
    servers = look_up(document.value, (block,)) or {}
    if not isinstance(servers, dict):
        raise ConfigError(f"{block!r} in {target.file} is not an object of servers. Fix it first.")
    return servers


def _check(document: Document, block: str, servers: Mapping[str, Any], target: Target) -> None:
    if not servers:
        raise ConfigError(f"{target.file} contains no servers that can be merged. Add a server in the client first.")
    if gateway := next((one for one in servers.values() if read_own_command(one).subcommand == "serve"), None):
        raise ConfigError(
            f"{target.title} starts mcp-mirror already ({shlex.join(read_words(gateway)[1:])}). Add servers to that "
            "configuration, or uninstall the gateway first."
        )
    for name, entry in servers.items():
        if read_own_command(entry).subcommand:
            raise ConfigError(
                f"Server {name!r} in {target.file} runs through `mcp-mirror wrap` or is `mcp-mirror memory`. One "
                "gateway for all servers does not need this: write the server's own command there, or remove the "
                "server."
            )
        if problem := document.find_problem((block, name)):
            raise ConfigError(f"Server {name!r} in {target.file} cannot be moved: {problem}. Fix it first.")
        settings = flatten(entry)
        for key in ("cwd", "working_directory") if isinstance(settings, dict) else ():
            folder = str(settings.get(key) or "~")
            if folder[0] not in "~$" and not os.path.isabs(folder):  # noqa: PTH117  # any text
                raise ConfigError(f"The folder {folder!r} of server {name!r} is relative. Write the absolute path.")


def _default_config(target: Target) -> Path:
    if target.client.name in MERGED and target.place is target.client.places[0]:
        return user_config_path("mcp-mirror") / f"{target.client.name}.yaml"
    return target.file.with_name(CONFIG_NAME)


def _write_config_text(target: Target, block: str, servers: Mapping[str, Any]) -> str:
    literal = servers if target.client.expands_variables else _escape_variables(servers)
    text: str = yaml.dump({block: literal}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 20)
    return _HEAD.format(file=target.file.name) + text


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


def _build_entry(target: Target, block: str, config: Path, text: str) -> dict[str, Any]:
    """Return the entry that starts the gateway.

    It has an absolute path, because desktop clients have a `PATH` of their own. It passes on the variables that the
    servers refer to, because a client may pass on only those that an entry names.
    """
    program = find_program()
    entry: dict[str, Any] = {"type": "stdio"} if block == "servers" else {}
    entry |= {"command": program[0], "args": [*program[1:], "serve", "--config", str(config)]}
    variables = {found[1]: found[0] for found in _VARIABLE.finditer(text)}
    if variables and target.client.expands_variables:
        entry["env"] = variables
    return entry

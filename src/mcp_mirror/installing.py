"""The commands `mcp-mirror install` and `uninstall`: between a client and its servers, and out again.

The servers in a client's file move, as they stand there (`config.clients` reads them so), to a new configuration of
ours, and the gateway takes their place. The file as it was is kept beside it as long as the gateway is installed, and
comes back from there. Nothing that is there already is added to: what would need a person's judgement is refused,
before anything is written.
"""

import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any, Final

import typer
import yaml
from platformdirs import user_config_path

from mcp_mirror.config import parse_config
from mcp_mirror.errors import ConfigError, MirrorError
from mcp_mirror.process import fail, say

ENTRY: Final = "mirror"
"""What the gateway is called among a client's servers."""
KEPT_AS: Final = ".before-mcp-mirror"
"""What the name of a client's file ends with where it is kept as it was."""
_PRIVATE: Final = 0o600
"""Clients keep keys of servers in their files, and so does ours then."""
_HEAD: Final = "# Servers as they stood in {file}. Settings of the gateway can be added.\n\n"
_PLAIN: Final = re.compile("[-./_@A-Za-z]*[A-Za-z][-./_@A-Za-z0-9]*")
_VARIABLE: Final = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}")
_FOLDERS: Final = ("cwd", "working_directory")


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
    """The clients that are known by name, with where they keep their servers on this system (each one's own manual)."""
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
    path = _full(named)
    if not os.path.isfile(path):  # noqa: PTH113  # of any text
        names = ", ".join(known)
        raise ConfigError(
            f"{named!r} is neither a client ({names}) nor a file. Name one of them, or another's JSON file."
        )
    for client in known.values():
        if _full(client.file) == path:
            return client
    written = _parsed(_bytes(path), path)
    blocks = [block for block in ("mcpServers", "servers") if written.get(block)] or ["mcpServers"]
    if len(blocks) > 1:
        raise ConfigError(f"{path} has servers under {blocks[0]!r} and {blocks[1]!r}. Move them under one of these.")
    config = path.with_name(f"{path.stem.lstrip('.')}.mirror.yaml")
    return Client(f"the client of {path.name}", path, config, blocks[0])


@dataclass(frozen=True, slots=True)
class Change:
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


def plan_install(client: Client, config: Path | None, environ: Mapping[str, str]) -> Change:
    """Put the gateway in the place of a client's servers.

    Args:
        client: Whose.
        config: Where they go, a file that is not there yet.
        environ: Variables that the servers may name.

    Raises:
        ConfigError: The client's file cannot be read, has the gateway already or no servers, one of these cannot be
            used as it stands, or a file is there already that would be written.
    """
    before, kept = _bytes(client.file), _kept(client)
    written = _parsed(before, client.file)
    if _is_there(kept) and _bytes(kept) != before:
        raise ConfigError(
            f"{kept} holds {client.file.name} as it was when the gateway was installed. Bring those servers back first "
            "(`mcp-mirror uninstall`); then all can be installed."
        )
    servers = _servers(written, client)
    _check(servers, client)
    path = _full(config or client.config)
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
    is_other = _is_there(path) and _bytes(path) != text.encode()
    if is_other or path in map(_full, (client.file, kept)):
        raise ConfigError(f"{path} is there already. Name another file with --config, or move it away.")
    after = {**written, client.block: {ENTRY: _own_entry(client, path, text)}}
    return Change(client, servers, before, _json(after, client.file), path, text, warnings)


def _check(servers: Mapping[str, Any], client: Client) -> None:
    if found := next(filter(_is_ours, servers.values()), None):
        raise ConfigError(
            f"{_capital(client.title)} starts mcp-mirror already ({shlex.join(map(str, found['args']))}). Add servers "
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


def plan_uninstall(client: Client) -> Change:
    """Put a client's servers back in the place of the gateway, as they were.

    If nothing else has changed since, the file is as it was to the byte. A server that came later stays, and stands
    before one of the same name.

    Raises:
        ConfigError: The file as it was is not there, or a file cannot be read.
    """
    kept = _kept(client)
    if not _is_there(kept):
        raise ConfigError(f"There is no {kept}, which `mcp-mirror install` leaves. Mend {client.file} by hand.")
    was, now = _bytes(kept), _bytes(client.file)
    before, written = _parsed(was, kept), _parsed(now, client.file)
    back, servers = _servers(before, client), dict(_servers(written, client))
    gateway = servers.pop(ENTRY) if _is_ours(servers.get(ENTRY)) else {}
    args = gateway.get("args", [])
    config = Path(args[args.index("--config") + 1]) if "--config" in args[:-1] else client.config
    is_all = not servers and _json({**before, client.block: {ENTRY: gateway}}, kept) == now
    after = was if is_all else _json({**written, client.block: {**back, **servers}}, client.file)
    return Change(client, back, was, after, config, _config_text(client, back))


def carry_out_install(change: Change) -> None:
    """Write our configuration, the client's file as it was, and the client's file last.

    Raises:
        ConfigError: One cannot be written.
    """
    _write(change.config, change.text.encode())
    _write(_kept(change.client), change.before)
    _write(change.client.file, change.after)


def carry_out_uninstall(change: Change) -> bool:
    """Write the client's file, and remove what install has written besides; whether our configuration stays.

    It does where somebody has changed it.

    Raises:
        ConfigError: The file cannot be written.
    """
    _write(change.client.file, change.after)
    is_there = _is_there(change.config)
    is_changed = is_there and _bytes(change.config) != change.text.encode()
    with suppress(OSError):
        _kept(change.client).unlink()
        if is_there and not is_changed:
            change.config.unlink()
    return is_changed


def _full(path: str | Path) -> Path:
    return Path(os.path.realpath(os.path.expanduser(path)))  # noqa: PTH111  # unlike a `Path`, of any text


def _is_there(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110  # the same


def _kept(client: Client) -> Path:
    return client.file.with_name(client.file.name + KEPT_AS)


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


def _parsed(data: bytes, file: Path) -> dict[str, Any]:
    try:
        written = json.loads(data.decode("utf-8-sig").strip() or "{}", object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file} cannot be read as plain JSON ({error}). Comments and doubled keys would be lost: move its servers "
            "by hand, as the README shows."
        ) from None
    if not isinstance(written, dict):
        raise ConfigError(f"{file} holds no JSON object, so it is no client's configuration. Name another file.")
    return written


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key comes twice")
    return members


def _servers(written: Mapping[str, Any], client: Client) -> Mapping[str, Any]:
    servers = written.get(client.block) or {}
    if not isinstance(servers, dict):
        raise ConfigError(f"{client.block!r} in {client.file} is no object of servers. Mend it first.")
    return servers


def _is_ours(entry: Any) -> bool:
    """Whether this server is the gateway, however it is started (`uvx mcp-mirror@latest`, `python -m mcp_mirror`)."""
    if not isinstance(entry, dict) or not isinstance(args := entry.get("args"), list) or "serve" not in args:
        return False
    words = (re.split(r"[@=\[]", Path(str(word)).name)[0] for word in (entry.get("command"), *args))
    return any(word.removesuffix(".exe") in {"mcp-mirror", "mcp_mirror"} for word in words)


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


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


def _json(value: Any, file: Path) -> bytes:
    try:
        return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
    except ValueError:
        raise ConfigError(f"{file} holds a number or a text that JSON has no form for. Mend it first.") from None


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"There is no {path}. Add a server in the client first, or name the client's file.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}. Check the path and its permissions.") from None


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all, with the rights it had; what a link leads to, not the link."""
    draft = ""
    try:
        path = path.resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = path.stat().st_mode & 0o777 if path.exists() else _PRIVATE
        file, draft = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
        with os.fdopen(file, "wb") as opened:
            opened.write(data)
        Path(draft).chmod(mode)
        Path(draft).replace(path)
    except (OSError, RuntimeError) as error:
        with suppress(OSError):
            Path(draft).unlink()
        reason = getattr(error, "strerror", None) or "its links lead in a circle"
        raise ConfigError(f"{path} cannot be written: {reason}. Check the path and its permissions.") from None


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
            help="The new configuration that the servers go to. By default CLIENT.yaml in the user's own, or a file "
            "beside one that is named by its path.",
            show_default=False,
        ),
    ] = None,
    dry_run: _DryRunOption = False,  # noqa: FBT002  # a flag of the command line
) -> None:
    """Put the gateway between a client and its servers: they move from its file to a configuration of the gateway's.

    Example: mcp-mirror install claude-desktop
    """
    try:
        change = plan_install(find_client(client), config, os.environ)
        for warning in change.warnings:
            say(f"mcp-mirror: {warning}")
        if dry_run:
            _show(change.config, change.text.encode())
            _show(change.client.file, change.after)
            return
        carry_out_install(change)
        _tell_installed(change, client)
    except MirrorError as error:
        fail(error)


def _tell_installed(change: Change, named: str) -> None:
    title, names = change.client.title, ", ".join(change.servers)
    say(f"{_capital(title)} starts mcp-mirror now, and mcp-mirror its servers, from {change.config}: {names}.")
    say(f"{change.client.file} as it was is kept beside it, in {_kept(change.client).name}.")
    if named not in known_clients():
        say("Both hold what that file held, keys too: keep them out of version control.")
    say("A server gets PATH, HOME and a few more of the environment, and what its `env` names.")
    check, back = (
        shlex.join(["mcp-mirror", *words])
        for words in (["check", "--config", str(change.config)], ["uninstall", named])
    )
    say(f"See whether everything connects, and start {title} anew: {check}")
    say(f"To put the servers back: {back}")


def uninstall(client: _ClientArgument, dry_run: _DryRunOption = False) -> None:  # noqa: FBT002  # a flag of the command line
    """Put a client's servers back in the place of the gateway, as they were when it was installed.

    What is in memory stays, and so does a configuration that was changed since.

    Example: mcp-mirror uninstall claude-desktop
    """
    try:
        change = plan_uninstall(find_client(client))
        if dry_run:
            _show(change.client.file, change.after)
            return
        stays = carry_out_uninstall(change)
        title, names = change.client.title, ", ".join(change.servers)
        say(f"{_capital(title)} starts its own servers again: {names}. Start it anew.")
        if stays:
            say(f"{change.config} was changed since and stays; what was added there, {title} does not know of.")
    except MirrorError as error:
        fail(error)


def _show(path: Path, data: bytes) -> None:
    print(f"{path}:\n{indent(data.decode('utf-8-sig'), '  ')}")  # noqa: T201  # the output

"""The commands `mcp-mirror install` and `uninstall`: between a client and its servers, and out again.

The servers in a client's file move, as they stand there (`config.clients` reads them so), to a new configuration of
ours, and the gateway takes their place. The file as it was is kept beside it, and comes back from there. Nothing that
is there already is added to: what would need a person's judgement is refused, before anything is written.
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
_VARIABLE: Final = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)[^}]*\}")


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
        ConfigError: There is no such client, or it has no such file.
    """
    known = known_clients()
    file = known[named].file if named in known else Path(os.path.expanduser(named)).absolute()  # noqa: PTH111  # any text
    if named not in known and not file.is_file():
        names = ", ".join(known)
        raise ConfigError(
            f"{named!r} is neither a client ({names}) nor a file. Name one of them, or another's JSON file."
        )
    for client in known.values():
        if client.file.resolve() == file.resolve():
            return client
    block = "servers" if "servers" in _parsed(_bytes(file), file) else "mcpServers"
    return Client(str(file), file, file.with_name(f"{file.stem.lstrip('.')}.mirror.yaml"), block)


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be written."""

    client: Client
    servers: Mapping[str, Any]
    """Those that move, as the client writes them."""
    before: bytes
    """The client's file as it is."""
    after: bytes
    config: Path
    """Our configuration."""
    text: str = ""
    """What is to be in it; nothing is written where this is empty."""
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
            used as it stands, or there is a configuration already.
    """
    before = _bytes(client.file)
    written = _parsed(before, client.file)
    servers = _servers(written, client)
    path = Path(os.path.expanduser(config or client.config)).absolute()  # noqa: PTH111  # any text
    if found := next(filter(_is_ours, servers.values()), None):
        raise ConfigError(
            f"{client.title} starts mcp-mirror already ({shlex.join(map(str, found.get('args', ())))}). Add servers to "
            "the configuration that it names, or take it out first (`mcp-mirror uninstall`)."
        )
    if not servers:
        raise ConfigError(
            f"There are no servers in {client.file}. Write a configuration of your own, as the README shows."
        )
    for name, entry in servers.items():
        if isinstance(entry, dict) and (cwd := entry.get("cwd")) and not os.path.isabs(str(cwd)):  # noqa: PTH117  # any
            raise ConfigError(
                f"The folder {cwd!r} of server {name!r} depends on where it is started. Write it in full."
            )
    text = _config_text(client, servers)
    if path.exists() and _bytes(path) != _config_before(client):
        raise ConfigError(f"{path} is there already. Name another file with --config, or move it away.")
    try:
        warnings = parse_config(text, path, environ).warnings
    except ConfigError as error:
        raise ConfigError(
            f"Nothing was changed: the gateway could not use these servers as they stand in {client.file}, where "
            f"variables of the client's own have to be written out. What they would be in {path}:\n{error}"
        ) from None
    after = {**written, client.block: {ENTRY: _own_entry(client, path)}}
    return Change(client, servers, before, _json(after, client.file), path, text, warnings)


def plan_uninstall(client: Client) -> Change:
    """Put a client's servers back in the place of the gateway, as they were; our configuration stays.

    If nothing else has changed since, the file is as it was to the byte. A server that came later stays, and stands
    before one of the same name.

    Raises:
        ConfigError: The gateway is not there, or the file as it was is not.
    """
    now = _bytes(client.file)
    written = _parsed(now, client.file)
    servers = _servers(written, client)
    gateway = next(filter(_is_ours, servers.values()), None)
    kept = _kept(client)
    if gateway is None or not kept.exists():
        raise ConfigError(
            f"{client.file} is not as `mcp-mirror install` leaves it: it names no mcp-mirror, or {kept.name} is not "
            "beside it. Mend it by hand."
        )
    was = _bytes(kept)
    before = _parsed(was, kept)
    back = _servers(before, client)
    others = {name: entry for name, entry in servers.items() if not _is_ours(entry)}
    if not others and _json({**before, client.block: {ENTRY: gateway}}, kept) == now:
        return Change(client, back, now, was, client.config)
    after = {**written, client.block: {**back, **others}}
    return Change(client, back, now, _json(after, client.file), client.config)


def carry_out(change: Change) -> None:
    """Write what is to be written: the client's file as it was, our configuration, and the client's file last.

    Raises:
        ConfigError: One cannot be written.
    """
    if change.text:
        _write(_kept(change.client), change.before)
        _write(change.config, change.text.encode())
    _write(change.client.file, change.after)


def _kept(client: Client) -> Path:
    return client.file.with_name(client.file.name + KEPT_AS)


def _config_before(client: Client) -> bytes | None:
    """What an install before this one has written into the configuration, if there was one."""
    kept = _kept(client)
    return _config_text(client, _servers(_parsed(_bytes(kept), kept), client)).encode() if kept.exists() else None


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
        written = json.loads(data.decode("utf-8-sig") or "{}", object_pairs_hook=_unique)
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
    """Whether this server is the gateway, however it is started (`uvx mcp-mirror`, `python -m mcp_mirror`)."""
    if not isinstance(entry, dict) or not isinstance(args := entry.get("args", []), list):
        return False
    return "serve" in args and any(
        Path(str(word)).stem in {"mcp-mirror", "mcp_mirror"} for word in (entry.get("command"), *args)
    )


def _own_entry(client: Client, config: Path) -> dict[str, Any]:
    """How the client starts the gateway: by a full path, since a client with a window has a `PATH` of its own."""
    script = shutil.which("mcp-mirror", path=str(Path(sys.executable).parent))
    program = [script] if script else [sys.executable, "-m", "mcp_mirror"]
    kind = {"type": "stdio"} if client.block == "servers" else {}
    return {**kind, "command": program[0], "args": [*program[1:], "serve", "--config", str(config)]}


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
    path = path.resolve()
    draft = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = path.stat().st_mode & 0o777 if path.exists() else _PRIVATE
        file, draft = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
        with os.fdopen(file, "wb") as opened:
            opened.write(data)
        Path(draft).chmod(mode)
        Path(draft).replace(path)
    except OSError as error:
        with suppress(OSError):
            Path(draft).unlink()
        raise ConfigError(f"{path} cannot be written: {error.strerror}. Check the path and its permissions.") from None


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
        if not _is_shown(change, dry_run=dry_run):
            carry_out(change)
            _tell_installed(change, client)
    except MirrorError as error:
        fail(error)


def _tell_installed(change: Change, named: str) -> None:
    title, path = change.client.title, shlex.quote(str(change.config))
    say(
        f"{title} starts mcp-mirror now, and mcp-mirror its servers, from {change.config}: {', '.join(change.servers)}."
    )
    say(f"{change.client.file} as it was is kept in {_kept(change.client).name} beside it.")
    for warning in change.warnings:
        say(f"mcp-mirror: {warning}")
    names = dict.fromkeys(_VARIABLE.findall(change.text)) if change.client.expands else {}
    if names:
        say(f"{title} must have these variables in its environment: {', '.join(names)}.")
    say("A server gets PATH, HOME and a few more of the environment, and what its `env` names.")
    say(f"See whether everything connects, and start {title} anew: mcp-mirror check --config {path}")
    say(f"To put the servers back: mcp-mirror uninstall {shlex.quote(named)}")


def uninstall(client: _ClientArgument, dry_run: _DryRunOption = False) -> None:  # noqa: FBT002  # a flag of the command line
    """Put a client's servers back in the place of the gateway, as they were when it was installed.

    What is in memory stays, and so does the gateway's configuration.

    Example: mcp-mirror uninstall claude-desktop
    """
    try:
        change = plan_uninstall(find_client(client))
        if not _is_shown(change, dry_run=dry_run):
            carry_out(change)
            say(f"{change.client.title} starts its own servers again: {', '.join(change.servers)}. Start it anew.")
    except MirrorError as error:
        fail(error)


def _is_shown(change: Change, *, dry_run: bool) -> bool:
    if dry_run:
        texts = ((change.config, change.text), (change.client.file, change.after.decode("utf-8-sig")))
        for path, text in texts:
            if text:
                print(f"{path}:\n{indent(text, '  ')}")  # noqa: T201  # the output
    return dry_run

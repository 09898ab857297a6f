"""Entries of clients: what server an entry describes, and the edits that wrap it and unwrap it.

A wrapped entry starts `mcp-mirror wrap` with the server's own command, under the same name and with all other keys
unchanged. A remote server becomes a local one; the values of its headers move to the entry's environment, because
other users of the machine can read command lines.
"""

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from mcp_mirror.cli.install.formats.document import Add, DropFirst, Edit, Location, Prepend, Put
from mcp_mirror.cli.main import load_command
from mcp_mirror.security.sanitize import sanitize
from mcp_mirror.settings.declarations import UPSTREAM_NAME
from mcp_mirror.settings.upstreams import is_sse_address
from mcp_mirror.system.patterns import lazy_pattern

_HEADER_VARIABLE: Final = "MCP_MIRROR_HEADER_"
_URL_VARIABLE: Final = "MCP_MIRROR_URL"
_COMMANDS: Final = ("command", "cmd")
ENVIRONMENTS: Final = ("env", "envs", "environment")
_URLS: Final = ("url", "httpUrl", "serverUrl", "uri", "baseUrl")
_HEADERS: Final = ("headers", "http_headers", "env_http_headers", "bearer_token_env_var", "requestOptions")
TRANSPORT: Final = "transport"
_TYPES: Final = ("type", "transportType", TRANSPORT)
_SIGN_IN: Final = ("oauth", "oauthClient", "auth", "authProviderType", "headersHelper", "scopes")
_SSE: Final = "sse"
_PROGRAMS: Final = frozenset({"mcp-mirror", "mcp_mirror"})
_SUBCOMMANDS: Final = frozenset({"serve", "wrap", "memory"})
_INPUT: Final = (
    "the client asks a person for ${input:...}; write ${env:NAME} in its place, set that variable, then install again"
)
_HEADER_NAME: Final = lazy_pattern(r"[^=:\s]+")
"""As `wrap --header-env` reads it."""
_VARIABLE: Final = lazy_pattern(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class EntryShape(msgspec.Struct, frozen=True):
    """How a client writes its entries."""

    command: str = "command"
    has_command_list: bool = False
    """Whether the command is a list that includes the arguments."""
    env: str = "env"
    forwarded: str | None = None
    """The key of a list of variables that the client passes on from its own environment; None: it needs none."""
    local_type: str = "stdio"
    is_type_required: bool = False
    url: str = "url"
    sse_url: str = "url"
    """The key of the address of a server with the HTTP+SSE transport."""
    remote_type: str | None = None
    is_sse_by_default: bool = False
    """Whether an address without a type has the HTTP+SSE transport."""
    headers: str = "headers"
    has_header_variables: bool = False
    """Whether the client replaces variables in headers, but not in the environment of a server."""
    builtin_types: tuple[str, ...] = ()
    """Values of `type` for servers that are part of the client."""
    has_enabled_entries: bool = False
    """Whether the client starts only entries with a name and `enabled: true`."""

    def write_command(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the members of an entry for a command with its arguments."""
        program, *args = words
        return {self.command: [program, *args]} if self.has_command_list else {self.command: program, "args": args}


class RemoteServer(msgspec.Struct, frozen=True):
    """A server at an address."""

    url: str
    headers: Mapping[str, str]
    """Header names and values, as the client expands them."""
    variables: Mapping[str, str]
    """Header names, and values that contain `${VAR}` for a variable of the client's environment."""
    is_sse: bool


class _UnwrappableError(Exception):
    """Why an entry cannot be wrapped."""


def flatten(entry: Any) -> Any:
    """Return an entry with the members of Cline's `transport` beside the other ones."""
    inner = entry.get(TRANSPORT) if isinstance(entry, dict) else None
    return {**entry, **inner} if isinstance(inner, dict) else entry


class _Command(NamedTuple):
    """The command of a local server as its entry contains it."""

    at: Location
    """Where the mapping with the program and its arguments is in the entry."""
    mapping: Mapping[str, Any]
    key: str
    """The key of the program, or of a list with the program and its arguments."""
    program: Any


def _find_command(entry: Mapping[str, Any]) -> _Command | None:
    """Return the command of an entry; None for a server at an address."""
    key = next((key for key in _COMMANDS if entry.get(key)), None)
    if key is None:
        return None
    if isinstance(entry[key], dict):  # Zed's older form
        return _Command((key,), entry[key], "path", entry[key].get("path"))
    return _Command((), entry, key, entry[key])


def read_words(entry: Any) -> list[str]:
    """Return the command of an entry with its arguments; empty for other servers."""
    entry = flatten(entry)
    command = _find_command(entry) if isinstance(entry, dict) else None
    if command is None:
        return []
    args = command.mapping.get("args")
    words = command.program if isinstance(command.program, list) else [command.program]
    return [str(word) for word in (*words, *(args if isinstance(args, list) else ())) if word is not None]


class OwnCommand(NamedTuple):
    """The command of mcp-mirror in an entry that starts it; empty for other programs."""

    program: Sequence[str] = ()
    subcommand: str = ""
    options: Sequence[str] = ()

    @property
    def wrapped(self) -> list[str]:
        """The server's own command, which `wrap` starts; empty for other commands and for a server at an address."""
        return list(_read_options(self.options)["command"] or ()) if self.subcommand == "wrap" else []


def read_own_command(entry: Any) -> OwnCommand:
    """Return the command of mcp-mirror in an entry, in any form such as `uvx mcp-mirror@latest serve`."""
    words = read_words(entry)
    for place, (program, word) in enumerate(pairwise(words), 1):
        name = re.split(r"[@=\[]", PurePath(program.replace("\\", "/")).name)[0].removesuffix(".exe")
        if name in _PROGRAMS and word in _SUBCOMMANDS:
            return OwnCommand(words[:place], word, words[place + 1 :])
    return OwnCommand()


class Entry(msgspec.Struct, frozen=True):
    """A server in a file."""

    name: str
    at: Location
    """The value with the command or the address."""
    value: Any
    shape: EntryShape
    problem: str | None
    """Why the text of the entry cannot be edited."""
    settings: Mapping[str, Any] | None
    """The server around its `transport`, if that is the value with the command or the address, as Cline writes it."""

    @property
    def server_at(self) -> Location:
        """Where the server with all its settings is."""
        return self.at if self.settings is None else self.at[:-1]

    @property
    def label(self) -> str:
        """The name for messages, with the project of a server of Claude Code's local scope."""
        return sanitize(f"{self.name} (in {self.at[1]})" if self.at[0] == "projects" else self.name)

    @property
    def own(self) -> OwnCommand:
        """The command of mcp-mirror that the entry starts."""
        return read_own_command(self.value)

    @property
    def is_wrapped(self) -> bool:
        """Whether `install` wrapped the entry."""
        return self.own.subcommand == "wrap"

    @property
    def is_gateway(self) -> bool:
        """Whether the entry is a gateway with a configuration."""
        return self.own.subcommand == "serve"

    @property
    def is_memory(self) -> bool:
        """Whether the entry serves the memory tools."""
        return self.own.subcommand == "memory"

    def find_reason(self, *, is_chosen: bool = False) -> str | None:
        """Return why the entry is left as it is; None if it can be wrapped. `is_chosen`: the user named the server."""
        entry = flatten(self.settings or self.value)
        if not isinstance(entry, dict):
            return "it is not an object"
        if subcommand := read_own_command(entry).subcommand:
            return "it is wrapped already" if subcommand == "wrap" else f"it is mcp-mirror itself ({subcommand})"
        if reason := _find_unusable_kind(entry, self.shape):
            return reason
        try:
            server = _read_server(entry, self.shape)
        except _UnwrappableError as error:
            return str(error)
        if isinstance(server, RemoteServer):
            reason = _find_remote_reason(entry, server, self.shape, is_chosen=is_chosen)
        return reason or self.problem

    def describe_state(self, reason: str) -> str:
        """Return a line about an entry that `install` leaves as it is for this reason."""
        if self.is_memory:
            return f"memory tools: {self.label}"
        return f"wrapped already: {self.label}" if self.is_wrapped else f"not wrapped: {self.label}, because {reason}"

    def wrap(self, program: Sequence[str]) -> list[Edit]:
        """Return the edits that wrap an entry for which `find_reason` has no reason."""
        entry, server = self.value, _read_server(self.value, self.shape)
        options = ["wrap", *(["--name", self.name] if UPSTREAM_NAME.fullmatch(self.name) else [])]
        if isinstance(server, RemoteServer):
            return [Put(self.at, _wrap_remote(entry, server, self.shape, [*program, *options]))]
        own, command = [*program[1:], *options, "--"], server
        at = (*self.at, *command.at)
        if isinstance(command.program, list):
            return [Prepend((*at, command.key), (program[0], *own))]
        replaced, args = Put((*at, command.key), program[0]), [*own, command.program]
        if isinstance(command.mapping.get("args"), list):
            return [replaced, Prepend((*at, "args"), tuple(args))]
        if "args" in command.mapping:
            return [replaced, Put((*at, "args"), args)]
        return [replaced, Add(at, "args", args, command.key)]

    def unwrap(self) -> list[Edit]:
        """Return the edits that unwrap a wrapped entry, as well as the entry itself shows its original.

        An entry without an original, such as a bare `mcp-mirror wrap`, stays as it is.
        """
        own = self.own
        server = own.wrapped
        if not server:
            restored = _unwrap_remote(self.value, _read_options(own.options), self.shape)
            return [Put(self.at, restored)] if restored else []
        command, count = _find_command(self.value), len(read_words(self.value)) - len(server)
        assert command is not None  # noqa: S101  # it has words
        at = (*self.at, *command.at)
        if isinstance(command.program, list):
            return [DropFirst((*at, command.key), count)]
        return [Put((*at, command.key), server[0]), DropFirst((*at, "args"), count)]


def describe_missing_programs(entries: Iterable[Entry]) -> list[str]:
    """Return a line for each program of mcp-mirror that entries start and that does not exist, as after a move."""
    programs = dict.fromkeys(read_words(entry.value)[0] for entry in entries if entry.own.subcommand)
    missing = (program for program in programs if shutil.which(program) is None)
    return [
        f"problem: {sanitize(program)} does not exist; run `mcp-mirror uninstall` and `install` again"
        for program in missing
    ]


def _find_unusable_kind(entry: Mapping[str, Any], shape: EntryShape) -> str | None:
    kind = _read_type(entry)
    if kind in ("ws", "wss", "websocket") or str(_first(entry, _URLS) or "").startswith(("ws://", "wss://")):
        return "it uses WebSocket, which mcp-mirror does not support"
    if kind in shape.builtin_types or entry.get("source") == "extension":
        return "it is part of the client"
    if entry.get("disabled") is True or entry.get("enabled") is False or entry.get("isActive") is False:
        return "it is disabled; enable it in the client, then install again"
    return _INPUT if _contains(entry, "${input:") else None


def _read_type(entry: Mapping[str, Any]) -> str:
    return str(next((entry[key] for key in _TYPES if key in entry), "")).lower()


def _read_server(entry: Mapping[str, Any], shape: EntryShape) -> _Command | RemoteServer:
    """Return the command of a local server, or a remote server; an error if it has an unknown form."""
    if command := _find_command(entry):
        _check_command(command)
        return command
    url = _first(entry, _URLS)
    if not isinstance(url, str):
        raise _UnwrappableError("it has neither a command nor an address")
    try:
        urlsplit(url)
    except ValueError:  # such as http://[HOST]/
        raise _UnwrappableError("its address has an unknown form") from None
    if not isinstance(_first(entry, ENVIRONMENTS) or {}, dict):
        raise _UnwrappableError("its environment has an unknown form")
    kind = _read_type(entry)
    is_sse = kind == _SSE or (not kind and (shape.is_sse_by_default or is_sse_address(url)))
    return RemoteServer(url, _read_headers(entry), _read_variables(entry), is_sse)


def _check_command(command: _Command) -> None:
    program: Any = command.program
    args: Any = command.mapping.get("args")
    if isinstance(program, list):
        program, args = next(iter(program), None), program[1:]
    if not isinstance(program, str) or not isinstance(args, list | None):
        raise _UnwrappableError("its command has an unknown form")
    if not args and " " in program.strip() and "/" not in program and "\\" not in program:
        raise _UnwrappableError("its command contains arguments; write them in 'args'")


def _read_headers(entry: Mapping[str, Any]) -> dict[str, str]:
    options = entry.get("requestOptions")
    if isinstance(options, dict) and set(options) - {"headers"}:
        raise _UnwrappableError("it has request options, which mcp-mirror does not support")
    headers = options.get("headers") if isinstance(options, dict) else None
    headers = headers or entry.get("headers") or entry.get("http_headers") or {}
    if not isinstance(headers, dict) or not all(
        _HEADER_NAME.fullmatch(name) and isinstance(value, str | int | float) and not isinstance(value, bool)
        for name, value in headers.items()
    ):
        raise _UnwrappableError("its headers have an unknown form")
    return {name: str(value) for name, value in headers.items()}


def _read_variables(entry: Mapping[str, Any]) -> dict[str, str]:
    named = entry.get("env_http_headers") or {}
    found = {str(name): f"${{{variable}}}" for name, variable in named.items()} if isinstance(named, dict) else {}
    if token := entry.get("bearer_token_env_var"):
        found["Authorization"] = f"Bearer ${{{token}}}"
    return found


def _find_remote_reason(
    entry: Mapping[str, Any], server: RemoteServer, shape: EntryShape, *, is_chosen: bool
) -> str | None:
    if shape.has_header_variables and _contains([server.url, *server.headers.values()], "$"):
        return "the client replaces the variables in its headers"
    if is_chosen:
        return None
    if any(entry.get(key) for key in _SIGN_IN):
        return "the client signs in to it; wrap it with --server, then `mcp-mirror login`"
    parts = urlsplit(server.url)
    has_credentials = server.headers or server.variables or parts.query or parts.username
    if has_credentials or parts.hostname in {"127.0.0.1", "localhost", "::1"}:
        return None
    return "it has no credentials here, so the client may sign in to it; wrap it with --server"


def _wrap_remote(entry: Mapping[str, Any], server: RemoteServer, shape: EntryShape, words: list[str]) -> dict[str, Any]:
    parts = urlsplit(server.url)
    is_secret = bool(parts.query or parts.username)
    secrets = {_URL_VARIABLE: server.url} if is_secret else {}
    words = [*words, "--url", f"${{{_URL_VARIABLE}}}" if is_secret else server.url]
    if server.is_sse or is_sse_address(server.url):
        words.append("--sse" if server.is_sse else "--no-sse")
    for number, (name, value) in enumerate(server.headers.items(), 1):
        variable = f"{_HEADER_VARIABLE}{number}"
        secrets[variable] = value
        words += ["--header-env", f"{name}={variable}"]
    for name, value in server.variables.items():
        words += ["--header", f"{name}: {value}"]
    env = {**(entry.get(shape.env) or {}), **secrets}
    return _replace_keys(entry, server, shape, shape.write_command(words), env)


def _replace_keys(
    entry: Mapping[str, Any],
    server: RemoteServer,
    shape: EntryShape,
    command: Mapping[str, Any],
    env: Mapping[str, str],
) -> dict[str, Any]:
    """Return the entry with the command in place of the address and the headers."""
    wrapped: dict[str, Any] = {}
    for key, value in entry.items():
        if key in _URLS:
            wrapped |= command
        elif key in _TYPES:
            wrapped[key] = shape.local_type
        elif key not in (*_HEADERS, *_SIGN_IN, shape.env):
            wrapped[key] = value
    if env or shape.env in entry:
        wrapped[shape.env] = env
    if shape.forwarded:
        needed = [name for value in server.variables.values() for name in _VARIABLE.findall(value)]
        known = [name for name in entry.get(shape.forwarded) or [] if name not in needed]
        wrapped |= {shape.forwarded: [*known, *needed]} if needed else {}
    return wrapped


def _read_options(words: Sequence[str]) -> Mapping[str, Any]:
    """Return the options of `wrap` with the server's own command, as `wrap` reads them."""
    params: Mapping[str, Any] = load_command("wrap").make_context("wrap", list(words), resilient_parsing=True).params
    return params


def _unwrap_remote(entry: Mapping[str, Any], options: Mapping[str, Any], shape: EntryShape) -> dict[str, Any]:
    """Return the entry of a remote server; empty if the options name no address."""
    env, url, is_sse = dict(entry.get(shape.env) or {}), options["url"], options["sse"]
    if not url:
        return {}
    if url == f"${{{_URL_VARIABLE}}}":
        url = env.pop(_URL_VARIABLE, url)
    named = (header.partition("=") for header in options["header_env"] or ())
    headers = {name: env.pop(variable, "") for name, _, variable in named}
    written = (header.partition(":") for header in options["header"] or ())
    variables = {name: text.strip() for name, _, text in written}
    removed = {shape.command, "args", shape.env, *_TYPES}
    if variables and shape.forwarded:
        removed.add(shape.forwarded)
    restored = {key: value for key, value in entry.items() if key not in removed}
    if shape.is_type_required or not entry.keys().isdisjoint(_TYPES):
        restored["type"] = _SSE if is_sse and shape.remote_type != "remote" else shape.remote_type or "http"
    restored[shape.sse_url if is_sse else shape.url] = url
    if headers:
        restored[shape.headers] = {"headers": headers} if shape.headers == "requestOptions" else headers
    restored |= _restore_variables(variables)
    if env:
        restored[shape.env] = env
    return restored


def _restore_variables(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return Codex's keys for headers with values from its environment."""
    restored: dict[str, Any] = {}
    named: dict[str, str] = {}
    for name, text in variables.items():
        variable = "".join(_VARIABLE.findall(text)[:1])
        if name == "Authorization" and text == f"Bearer ${{{variable}}}":
            restored["bearer_token_env_var"] = variable
        else:
            named[name] = variable
    return {**restored, **({"env_http_headers": named} if named else {})}


def _first(entry: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((entry[key] for key in keys if entry.get(key)), None)


def _contains(value: Any, text: str) -> bool:
    if isinstance(value, str):
        return text in value
    if isinstance(value, dict):
        return any(_contains(item, text) for item in value.values())
    return isinstance(value, list) and any(_contains(item, text) for item in value)

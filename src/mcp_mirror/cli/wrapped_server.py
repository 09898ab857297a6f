"""The configurations of `wrap` and `memory`, which are made of options, and their serving."""

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import dropwhile
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from mcp_mirror.cli.options import AWAIT_VARIABLE
from mcp_mirror.cli.run import answering_client, print_waiting
from mcp_mirror.cli.serving import Serving, prepare
from mcp_mirror.config import read_config
from mcp_mirror.config.loading import find_token_file
from mcp_mirror.config.shape import list_keys
from mcp_mirror.errors import ConfigError
from mcp_mirror.settings.policies import Config
from mcp_mirror.settings.upstreams import HttpEndpoint, StdioEndpoint, ToolPolicy
from mcp_mirror.system.patterns import lazy_pattern

_RUNNERS: Final = frozenset({
    "npx", "bunx", "uvx", "pipx", "node", "bun", "deno", "python", "python3", "uv", "npm", "pnpm",
})  # fmt: skip
"""Programs that run the server which their arguments name."""
_RUNNER_VALUES: Final = frozenset({
    "-c", "-e", "--eval", "--python", "--with", "--with-editable", "--index-url", "--env-file", "--import", "--require",
})  # fmt: skip
"""Their options with a value in the next word that does not name the server."""
_SUBCOMMANDS: Final = frozenset({"run", "exec", "dlx", "x", "tool"})
"""Words between a runner and the server."""
_LAUNCHERS: Final = {"env": lazy_pattern(r"-|\w+="), "cmd": lazy_pattern("/")}
"""Programs that start the program after their own words, and the beginning of these words."""
_CONTAINER_RUNNERS: Final = frozenset({"docker", "podman", "nerdctl"})
"""Programs that run the image which their arguments name."""
_CONTAINER_VALUES: Final = frozenset({
    "-e", "--env", "--env-file", "-v", "--volume", "--mount", "-p", "--name", "--network", "-u", "--user", "-w",
})  # fmt: skip
"""Their options with a value in the next word."""
_COMMON_SCRIPTS: Final = frozenset({"index", "main", "__main__", "server", "cli", "app", "start", "run", "stdio"})
"""Names of scripts that do not tell servers apart; the nearest folder with another name does."""
_COMMON_FOLDERS: Final = frozenset({"dist", "build", "out", "src", "lib", "bin", "cjs", "esm"})
_TARGET_OPTIONS: Final = {"url": "--url", "headers": "--header", "transport": "--sse", "auth": "--url"}
"""By a key of a server's section, the option that it comes from; the other keys come from the command."""
_STARTUP_WAIT: Final = 25
"""Seconds that a client waits for the first start of a server, which may be installed then. Some clients list the tools
only once; they would see none of the server's, although they wait for the server without the gateway."""
_CALL_TIMEOUT: Final = 86_400
"""Seconds that a call may take. Clients have timeouts of their own, and cancel calls that take longer."""
_HEADER_VARIABLE: Final = lazy_pattern(r"([^=:\s]+)=([A-Za-z_][A-Za-z0-9_]*)")


class WrappedServer(msgspec.Struct, frozen=True):
    """The server to wrap: a program or an address."""

    command: tuple[str, ...]
    url: str
    headers: tuple[str, ...]
    """`NAME: VALUE` each."""
    sse: bool | None
    """The server at the address uses the HTTP+SSE transport; None: by the path of the address."""


def name_variables(headers: Sequence[str]) -> list[str]:
    """Return `NAME: ${VARIABLE}` for each `NAME=VARIABLE`; ConfigError for another form."""
    if unusable := next((header for header in headers if not _HEADER_VARIABLE.fullmatch(header)), None):
        raise ConfigError(f"--header-env must be NAME=VARIABLE, not {unusable!r}.")
    return [_HEADER_VARIABLE.sub(r"\1: ${\2}", header) for header in headers]


def serve_wrapped(
    server: WrappedServer,
    name: str | None,
    mirror: Mapping[str, Any],
    store: Path | None,
    settings: Sequence[str],
    verbosity: int,
) -> None:
    """Serve one server to a client on standard input and output, until the client leaves; then raise typer.Exit.

    Without a name, it is derived from the command or the address. `mirror` is that section of the configuration.
    `store` is the folder of the store; None: the user's. `settings` are other keys, `KEY=VALUE` each.
    """
    with answering_client():
        if bool(server.command) == bool(server.url):
            raise ConfigError("Give the server's command after `--`, or its address with --url.")
        chosen = name or derive_name(server)
        config = build_wrap_config(chosen, _describe_server(server, chosen), mirror, store, os.environ, settings)
    _serve(config, verbosity)


def serve_memory(store: Path | None, settings: Sequence[str], verbosity: int) -> None:
    """Serve the memory tools to a client on standard input and output; see `serve_wrapped`."""
    with answering_client():
        content = {"upstreams": {}, "memory_tools": {"set": "all"}, "store": _describe_store(store)}
        config = _read_config(content, "mcp-mirror memory", os.environ, _read_settings(settings, ()))
    _serve(replace(config, mirror=replace(config.mirror, suffix="")), verbosity)


def _serve(config: Config, verbosity: int) -> None:
    prepare(config, verbosity)
    serving = Serving(config, verbosity)
    print_waiting(serving.print_line)
    serving.run(serving.print_line)


def build_wrap_config(  # the options of the command
    name: str,
    server: Mapping[str, Any],
    mirror: Mapping[str, Any],
    store: Path | None,
    environ: Mapping[str, str],
    settings: Sequence[str] = (),
) -> Config:
    """Return the configuration of a gateway that replaces one server in the client; ConfigError for a bad option.

    `server` and `mirror` are sections of a configuration. `store` is the folder of the store; None: the user's. A
    program gets the whole `environ`. `settings` are other keys, `KEY=VALUE` each.
    """
    content = {
        "upstreams": {name: {**server}},
        "mirror": {"startup_wait": _STARTUP_WAIT, **mirror},
        "memory_tools": {"set": "minimal"},
        "server": {"answer_timeout": _CALL_TIMEOUT},
        "store": _describe_store(store),
    }
    given = _read_settings(settings, ("upstreams", name))
    config = _read_config(content, "mcp-mirror wrap", environ, given)
    if not config.upstreams:
        raise ConfigError("--set enabled: a wrapped server is always served. Disable its entry in the client instead.")
    [upstream] = config.upstreams
    endpoint, overrides = upstream.endpoint, upstream.overrides
    if isinstance(endpoint, StdioEndpoint):
        endpoint = replace(endpoint, env={**environ, **endpoint.env}, is_wrapped=True)
    elif isinstance(endpoint, HttpEndpoint):
        endpoint = replace(endpoint, is_wrapped=True)
    if ("upstreams", name, "timeout") not in (setting.place for setting in given):
        overrides = (("*", ToolPolicy(timeout=_CALL_TIMEOUT)), *overrides)  # later ones replace it
    upstream = replace(upstream, endpoint=endpoint, overrides=overrides)
    server_policy = replace(config.server, wraps=name, awaits_start=AWAIT_VARIABLE in environ)
    return replace(config, upstreams=(upstream,), server=server_policy)


class _Setting(NamedTuple):
    """A key of the configuration that `--set` gives."""

    key: str
    """As the user wrote it."""
    place: tuple[str, ...]
    value: Any


def _read_settings(texts: Sequence[str], server: tuple[str, ...]) -> list[_Setting]:
    """Read settings, `KEY=VALUE` each; the value is JSON or a text.

    A key that does not begin with a section's name belongs to the server, whose section is at `server`.
    """
    sections = {one.path[0] for one in list_keys(Config)} - {"upstreams"}
    settings: list[_Setting] = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set must be KEY=VALUE, such as mirror.answer_budget=40000, not {text!r}.")
        place = tuple(key.split("."))
        place = place if place[0] in sections else (*server, *place)
        try:
            settings.append(_Setting(key, place, json.loads(value)))
        except (ValueError, RecursionError):
            settings.append(_Setting(key, place, value))
    return settings


def _read_config(
    content: dict[str, Any], called: str, environ: Mapping[str, str], settings: Sequence[_Setting]
) -> Config:
    """Read a configuration with settings; errors name the option of each value."""
    for setting in settings:
        *outer, last = setting.place
        section = content
        for name in outer:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise ConfigError(f"--set {setting.key}: {name!r} has a value already. Give one of them.")
        section[last] = setting.value
    return read_config(content, called, environ, partial(_name_option, settings))


def _name_option(settings: Sequence[_Setting], keys: Sequence[str]) -> str:
    """Return the option of the command line that has the value at these keys of the configuration."""
    at = tuple(keys)
    is_server = at[:1] == ("upstreams",) and len(at) <= 2  # noqa: PLR2004  # `upstreams.NAME`, which has other options
    for setting in settings:
        is_above = bool(at) and not is_server and setting.place[: len(at)] == at
        if is_above or at[: len(setting.place)] == setting.place:
            return f"--set {setting.key}"
    match keys:
        case ["upstreams", _, "headers", header]:
            return f"--header {header}"
        case ["upstreams", _, key, *_]:
            return _TARGET_OPTIONS.get(key, "the command")
        case ["upstreams", *_]:
            return "--name"
        case ["mirror", key]:
            return f"--{key.replace('_', '-')}"
        case _:
            return f"--{keys[0]}" if keys else "the options"


def _describe_server(server: WrappedServer, name: str) -> dict[str, Any]:
    """Return the section of a server; a remote one uses the tokens of `mcp-mirror login`, also of a later one.

    Headers without tokens may be credentials of another kind, such as a key: then no error suggests to sign in.
    """
    if server.command:
        program, *arguments = (word.replace("${", "$${") for word in server.command)
        return {"command": program, "args": arguments}
    has_tokens = os.path.isfile(find_token_file(name))  # noqa: PTH113  # `is_file` raises in a folder of another user
    return describe_remote(server.url, server.headers, sse=server.sse, uses_login=has_tokens or not server.headers)


def describe_remote(
    url: str, headers: Sequence[str] = (), *, sse: bool | None = None, uses_login: bool = True
) -> dict[str, Any]:
    """Return the section of a remote server; ConfigError if a header is not `NAME: VALUE`.

    `sse`: the server uses the HTTP+SSE transport; None: by the path of the address. `uses_login`: the tokens of
    `mcp-mirror login` authorize the gateway, unless a header does.
    """
    given: dict[str, str] = {}
    for header in headers:
        key, colon, value = header.partition(":")
        if not colon:
            raise ConfigError("--header must be 'NAME: VALUE', such as 'Authorization: Bearer ${TOKEN}'.")
        given[key.strip()] = value.strip()
    is_authorized = any(key.lower() == "authorization" for key in given)
    section: dict[str, Any] = {"url": url, "headers": given}
    if sse is not None:
        section["transport"] = "sse" if sse else "streamable-http"
    return {**section, "auth": {"oauth": {}}} if uses_login and not is_authorized else section


def _describe_store(folder: Path | None) -> dict[str, Any]:
    return {} if folder is None else {"kind": "disk", "path": str(folder).replace("${", "$${")}


def derive_name(server: WrappedServer) -> str:
    """Return a name for a server: the host, the package, image or script that a runner runs, or the program."""
    command = _skip_launcher(server.command)
    if not command:
        try:
            return _usable(urlsplit(server.url).hostname or "server")
        except ValueError:  # the configuration reports the address
            return "server"
    program = Path(command[0]).stem
    words = list(_find_operands(command[1:], _CONTAINER_VALUES if program in _CONTAINER_RUNNERS else _RUNNER_VALUES))
    if program.lower() not in _RUNNERS | _CONTAINER_RUNNERS or not words:
        return _usable(program)
    place = re.sub(r"(?<=[^/])[@=][^/]*$|\.(?:py|js|mjs|cjs|ts)$", "", words[0].rstrip("/"))
    if program in _CONTAINER_RUNNERS:
        place = re.sub(r":[^/]*$", "", place)
    *folders, last = place.split("/")
    if last in _COMMON_SCRIPTS:
        last = next(
            (folder for folder in reversed(folders) if folder.strip(".") and folder not in _COMMON_FOLDERS), last
        )
    return _usable(last)


def _skip_launcher(command: Sequence[str]) -> Sequence[str]:
    """Return the command without a program before it that only starts it, such as `env TOKEN=x`."""
    own = _LAUNCHERS.get(Path(command[0]).stem.lower()) if command else None
    if own is None:
        return command
    return tuple(dropwhile(own.match, command[1:])) or command


def _find_operands(words: Sequence[str], options: Collection[str]) -> Iterator[str]:
    """Yield the words that are not options, not the values of `options`, and not subcommands of a runner."""
    for before, word in zip(("", *words), words, strict=False):
        if not word.startswith("-") and word not in _SUBCOMMANDS and before not in options:
            yield word


def _usable(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name)[:64] or "server"

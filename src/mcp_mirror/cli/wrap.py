"""The commands `mcp-mirror wrap` and `mcp-mirror memory`: gateways for one server, and for none, without a file."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer
from platformdirs import user_data_path

from mcp_mirror.cli.options import VerboseOption
from mcp_mirror.cli.run import exit_with_error, print_warnings
from mcp_mirror.cli.serving import Serving
from mcp_mirror.config import read_config
from mcp_mirror.errors import ConfigError, MirrorError
from mcp_mirror.memory.tools.table import RETRIEVE
from mcp_mirror.observability.logging import configure_logging, print_status
from mcp_mirror.settings.policies import Config, HttpEndpoint, StdioEndpoint
from mcp_mirror.system.file_handles import raise_handle_limit
from mcp_mirror.system.heap import keep_freed_memory

_RUNNERS: Final = frozenset(
    {"npx", "bunx", "uvx", "pipx", "node", "bun", "deno", "python", "python3", "uv", "npm", "pnpm"}
)
"""Programs that run the server which their arguments name."""
_SUBCOMMANDS: Final = frozenset({"run", "exec", "dlx", "x", "tool"})
"""Words between a runner and the server."""
_UNUSABLE: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_MAX_NAME: Final = 64

_NameOption = Annotated[
    str | None,
    typer.Option(
        help="The server's name in messages and in the origin of values. Default: the name of its program or host.",
        show_default=False,
    ),
]
StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        help="The folder of stored values, which all gateways with the same folder share. Default: the user's data "
        "folder.",
        metavar="FOLDER",
        show_default=False,
    ),
]


def wrap(  # noqa: PLR0913, PLR0917  # typer reads the options from the parameters
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND [ARGS]...", help="The server's own command, unchanged.", show_default=False),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="The address of a remote server, instead of a command.", show_default=False)
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            help="A header for the remote server, such as 'Authorization: Bearer ${TOKEN}'. Repeatable.",
            metavar="'NAME: VALUE'",
            show_default=False,
        ),
    ] = None,
    sse: Annotated[bool, typer.Option("--sse", help="The remote server uses the HTTP+SSE transport.")] = False,
    name: _NameOption = None,
    suffix: Annotated[str, typer.Option(help="Added to the name of each tool, such as _mirrored.")] = "",
    capture: Annotated[
        str, typer.Option(help="Which results to store: large, auto, always or never.", metavar="MODE")
    ] = "large",
    inline_budget: Annotated[
        int, typer.Option(help="Tokens up to which the model sees a result whole.", metavar="TOKENS")
    ] = 2_500,
    store: StoreOption = None,
    verbose: VerboseOption = 0,
) -> None:
    """Serve one MCP server in its place: same names, but large results stay out of the model's context.

    Write it before the server's command in the client's configuration. The server gets the environment and the working
    directory that the client gives. All wrapped servers of a user share one memory: a path from one can be an argument
    of another. `${VAR}` in --url and --header is a variable of the environment.

    Example: mcp-mirror wrap -- npx -y @modelcontextprotocol/server-filesystem ~/Documents

    Example: mcp-mirror wrap --url https://example.com/mcp --header 'Authorization: Bearer ${TOKEN}'
    """
    mirror = {"suffix": suffix, "capture": capture, "inline_budget": inline_budget}
    try:
        if bool(command) == bool(url):
            raise ConfigError("Give the server's command after `--`, or its address with --url.")
        chosen = name or _derive_name(command or [], url or "")
        has_tokens = (user_data_path("mcp-mirror") / "tokens" / f"{chosen}.json").is_file()
        remote = partial(describe_remote, url or "", header or (), sse=sse, uses_login=has_tokens)
        server = _describe_program(command) if command else remote()
        config = build_wrap_config(chosen, server, mirror, store, os.environ)
    except MirrorError as error:
        exit_with_error(error)
    _serve(config, verbose)


def memory(store: StoreOption = None, verbose: VerboseOption = 0) -> None:
    """Serve only the memory tools: they read, search and change the values that wrapped servers store.

    Add it to the client beside the wrapped servers.

    Example: mcp-mirror memory
    """
    try:
        config = read_config({"upstreams": {}, "store": _describe_store(store)}, "mcp-mirror memory", os.environ)
    except MirrorError as error:
        exit_with_error(error)
    _serve(replace(config, mirror=replace(config.mirror, suffix="")), verbose)


def _serve(config: Config, verbosity: int) -> None:
    configure_logging(verbosity, config)
    print_line = partial(print_status, config)
    print_warnings(config, print_line)
    raise_handle_limit()
    keep_freed_memory()
    Serving(config, verbosity=verbosity, print_line=print_line).run(print_line)


def build_wrap_config(
    name: str, server: Mapping[str, Any], mirror: Mapping[str, Any], store: Path | None, environ: Mapping[str, str]
) -> Config:
    """Return the configuration of a gateway that replaces one server in the client.

    Args:
        name: The name of the server.
        server: Its section of a configuration.
        mirror: The section `mirror`.
        store: The folder of the store; None for the user's.
        environ: The environment, which a program gets whole.

    Raises:
        ConfigError: An option cannot be used.
    """
    content = {
        "upstreams": {name: server},
        "mirror": mirror,
        "memory_tools": {"allow": [RETRIEVE]},
        "store": _describe_store(store),
    }
    config = read_config(content, "mcp-mirror wrap", environ)
    [upstream] = config.upstreams
    endpoint = upstream.endpoint
    if isinstance(endpoint, StdioEndpoint):
        endpoint = replace(endpoint, env=dict(environ), is_wrapped=True)
    elif isinstance(endpoint, HttpEndpoint):
        endpoint = replace(endpoint, is_wrapped=True)
    return replace(config, upstreams=(replace(upstream, endpoint=endpoint),), server=replace(config.server, wraps=name))


def _describe_program(command: Sequence[str]) -> dict[str, Any]:
    """Return the section of a program. Its arguments are literal, as they are without the gateway."""
    program, *arguments = (word.replace("${", "$${") for word in command)
    return {"command": program, "args": arguments}


def describe_remote(
    url: str, headers: Sequence[str] = (), *, sse: bool = False, uses_login: bool = True
) -> dict[str, Any]:
    """Return the section of a remote server.

    Args:
        url: The address of the server.
        headers: `NAME: VALUE` each.
        sse: The server uses the HTTP+SSE transport.
        uses_login: The tokens of `mcp-mirror login` authorize the gateway, unless a header does.

    Raises:
        ConfigError: A header is not `NAME: VALUE`.
    """
    given: dict[str, str] = {}
    for header in headers:
        key, colon, value = header.partition(":")
        if not colon:
            raise ConfigError("--header must be 'NAME: VALUE', such as 'Authorization: Bearer ${TOKEN}'.")
        given[key.strip()] = value.strip()
    is_authorized = any(key.lower() == "authorization" for key in given)
    section: dict[str, Any] = {"url": url, "headers": given, "transport": "sse" if sse else "streamable-http"}
    return {**section, "auth": {"oauth": {}}} if uses_login and not is_authorized else section


def _describe_store(folder: Path | None) -> dict[str, Any]:
    return {} if folder is None else {"kind": "disk", "path": str(folder.expanduser()).replace("${", "$${")}


def _derive_name(command: Sequence[str], url: str) -> str:
    """Return a name for a server: the host, the package or script that a runner runs, or the program."""
    if not command:
        return _usable(urlsplit(url).hostname or "server")
    program = Path(command[0]).stem
    words = [word for word in command[1:] if not word.startswith("-") and word not in _SUBCOMMANDS]
    if program.lower() not in _RUNNERS or not words:
        return _usable(program)
    package = words[0].rstrip("/").rpartition("/")[2]
    return _usable(re.sub(r"(?<=.)[@=].*|\.(?:py|js|mjs|cjs|ts)$", "", package))


def _usable(name: str) -> str:
    return _UNUSABLE.sub("_", name)[:_MAX_NAME] or "server"

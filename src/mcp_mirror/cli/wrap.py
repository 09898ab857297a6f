"""The commands `mcp-mirror wrap` and `mcp-mirror memory`: gateways for one server, and for none, without a file.

The module imports little: the wrapped program starts before the gateway is imported, so that both start at once.
"""

from typing import Annotated

import typer

from mcp_mirror.cli.main import import_lazily
from mcp_mirror.cli.options import StoreOption, VerboseOption
from mcp_mirror.system.early_program import end_early, start_early

_SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Another key of the configuration, such as mirror.answer_budget=40000, or a key of the server, such as "
        "max_request_bytes=32MiB. Repeatable.",
        metavar="KEY=VALUE",
    ),
]


def wrap(  # noqa: PLR0913, PLR0917  # typer reads the options from the parameters
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND [ARGS]...", help="The server's own command, unchanged.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="The address of a remote server, instead of a command.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            help="A header for the remote server, such as 'Authorization: Bearer ${TOKEN}'. Repeatable.",
            metavar="'NAME: VALUE'",
        ),
    ] = None,
    header_env: Annotated[
        list[str] | None,
        typer.Option(
            help="A header whose value is an environment variable, such as Authorization=TOKEN. Repeatable. Use it in "
            "files of clients that replace ${VAR} in arguments themselves.",
            metavar="NAME=VARIABLE",
        ),
    ] = None,
    sse: Annotated[
        bool | None,
        typer.Option(
            help="Whether the remote server uses the HTTP+SSE transport. Default: if the path of --url ends with /sse."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="The server's name in messages and in the origin of values. Default: the name of its program or host."
        ),
    ] = None,
    suffix: Annotated[str, typer.Option(help="Added to the name of each tool, such as _mirrored.")] = "",
    capture: Annotated[
        str, typer.Option(help="Which results to store: large, auto, always or never.", metavar="MODE")
    ] = "large",
    inline_budget: Annotated[
        int, typer.Option(help="Tokens up to which the model sees a result whole.", metavar="TOKENS")
    ] = 2_500,
    store: StoreOption = None,
    setting: _SetOption = None,
    verbose: VerboseOption = 0,
) -> None:
    """Serve one MCP server in its place, and store its large results.

    The server and its tools keep their names, and large results stay out of the model's context. Write the command
    before the server's own command in the client's configuration. The server gets the environment and the working
    directory that the client gives. All wrapped servers of a user share one memory: a path from one can be an argument
    of another. `${VAR}` in --url and --header is a variable of the environment.

    Example: mcp-mirror wrap -- npx -y @modelcontextprotocol/server-filesystem ~/Documents

    Example: mcp-mirror wrap --url https://example.com/mcp --header 'Authorization: Bearer ${TOKEN}'
    """
    if command and not url:
        start_early(command)
    try:
        wrapped_server = import_lazily("mcp_mirror.cli.wrapped_server")
        with wrapped_server.answering_client():
            headers = (*(header or ()), *wrapped_server.name_variables(header_env or ()))
        server = wrapped_server.WrappedServer(tuple(command or ()), url or "", headers, sse)
        mirror = {"suffix": suffix, "capture": capture, "inline_budget": inline_budget}
        wrapped_server.serve_wrapped(server, name, mirror, store, setting or (), verbose)
    finally:
        end_early()


def memory(store: StoreOption = None, setting: _SetOption = None, verbose: VerboseOption = 0) -> None:
    """Serve only the memory tools, beside wrapped servers.

    They read, search and change the values that wrapped servers store. Add them to the client as one more server.

    Example: mcp-mirror memory
    """
    import_lazily("mcp_mirror.cli.wrapped_server").serve_memory(store, setting or (), verbose)

"""The command line: `mcp-mirror --help` lists the commands."""

import json
import logging
import os
import sys
import webbrowser
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import anyio
import anyio.to_thread
import typer

from mcp_mirror import __version__
from mcp_mirror.app import Application, open_application, open_kept_store
from mcp_mirror.callers import LOCAL, Caller, NullChannel
from mcp_mirror.cli.arguments import read_arguments
from mcp_mirror.cli.check import follow_start, open_console, report
from mcp_mirror.cli.flows import print_flows
from mcp_mirror.cli.install import install, uninstall
from mcp_mirror.cli.lock import DIFFERENCES, Comparison, compare
from mcp_mirror.cli.login import sign_in
from mcp_mirror.cli.reload import Reloading
from mcp_mirror.cli.run import fail, find, load, load_from, run_to_end, say, tell_warnings
from mcp_mirror.cli.stats import NOTHING, as_json, as_table, read_stats
from mcp_mirror.cli.tokens import count_files
from mcp_mirror.cli.values import values_app
from mcp_mirror.config import config_json_schema
from mcp_mirror.config.lock_file import read_file, write_file
from mcp_mirror.core.replies import Reply
from mcp_mirror.core.schema import Schema
from mcp_mirror.errors import MirrorError
from mcp_mirror.evals.command import evaluate
from mcp_mirror.gateway.calls import ToolCall
from mcp_mirror.observability.logging import set_up_logging, tell_operator
from mcp_mirror.payload.json_rpc import join
from mcp_mirror.server.auth.tokens import mint_token
from mcp_mirror.settings.policies import LockPolicy
from mcp_mirror.system.file_handles import raise_handle_limit
from mcp_mirror.types import Buffer, Segments
from mcp_mirror.upstreams.upstream import Upstream

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="An MCP server between your client and your MCP servers: large results stay out of the model's context, "
    "and tools take memory paths wherever they take values.",
)
config_app = typer.Typer(no_args_is_help=True, help="About the configuration file.")
app.add_typer(config_app, name="config")
app.add_typer(values_app, name="values")
app.command("eval")(evaluate)
app.command(name="tokens")(count_files)
app.command(name="flows")(print_flows)
app.command()(install)
app.command()(uninstall)

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="The configuration, YAML or JSON. Default: $MCP_MIRROR_CONFIG, ./mcp-mirror.yaml, or the file in the "
        "user's configuration folder that `install` wrote.",
        show_default=False,
    ),
]
_LOST: Final = (
    "mcp-mirror: the path above ended with this command, for each `call` is a gateway of its own. With "
    "`store: {kind: disk}` the next one finds it; with `mirror: {capture: never}` all of the result is shown."
)

VerboseOption = Annotated[int, typer.Option("--verbose", "-v", count=True, help="Say more on standard error.")]


def _print_version(wanted: bool) -> None:  # noqa: FBT001  # typer calls it so
    if wanted:
        print(__version__)  # noqa: T201  # the output
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[  # noqa: FBT002  # a flag of the command line
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """What stands before every command."""


@app.command()
def serve(
    config: ConfigOption = None,
    http: Annotated[
        str | None, typer.Option(help="Serve Streamable HTTP here instead of stdio.", metavar="HOST:PORT")
    ] = None,
    watch: Annotated[  # noqa: FBT002  # a flag of the command line
        bool, typer.Option("--watch", help="Take the configuration anew whenever its file changes.")
    ] = False,
    verbose: VerboseOption = 0,
) -> None:
    """Serve a client on standard input and output, or many over HTTP. SIGHUP takes the configuration anew.

    Example: mcp-mirror serve

    Example: mcp-mirror serve --http 127.0.0.1:8000
    """
    set_up_logging(verbose)
    loaded = load_from(path := find(config))
    set_up_logging(verbose, loaded)
    tell = partial(tell_operator, loaded)
    tell_warnings(loaded, tell)
    address = _address(http) if http else None
    raise_handle_limit()
    leaving = anyio.Event()

    async def run() -> None:
        async with (
            open_application(loaded, awaits_client=not address) as application,
            anyio.create_task_group() as tasks,
        ):
            reloading = Reloading(application, path, os.environ, tell, partial(set_up_logging, verbose))
            tasks.start_soon(reloading.follow_signal)
            if watch:
                tasks.start_soon(reloading.follow_file)
            if address:
                await application.serve_http(*address, lambda url: tell(f"mcp-mirror serves {url}"), leaving)
            else:
                await application.server.serve_stdio(leaving)
            tasks.cancel_scope.cancel()

    run_to_end(run(), leaving, loaded.server.drain)


@app.command()
def check(config: ConfigOption = None, verbose: VerboseOption = 0) -> None:
    """Connect to every upstream, list its tools and twins with their cost, and print what is wrong.

    The exit code is 0 where all is well, 1 where anything is wrong, 2 where the configuration cannot be read.

    Example: mcp-mirror check
    """
    set_up_logging(verbose)
    loaded = load(config)
    set_up_logging(verbose, loaded)
    if not verbose:  # what is wrong is told once, among the problems
        for name in ("upstreams", "news"):
            logging.getLogger(f"mcp_mirror.{name}").setLevel(logging.ERROR)
    problems: list[str] = list(loaded.warnings)

    async def run() -> None:
        async with open_application(loaded) as application:
            await follow_start(application)
            problems.extend(report(application))

    run_to_end(run())
    _tell_problems(problems)
    raise typer.Exit(1 if problems else 0)


@app.command()
def lock(
    config: ConfigOption = None,
    only_check: Annotated[  # noqa: FBT002  # a flag of the command line
        bool, typer.Option("--check", help="Write nothing; the exit code is 1 where anything differs.")
    ] = False,
    verbose: VerboseOption = 0,
) -> None:
    """Connect to every upstream, show what of its tools is not as locked, and lock it as it is now (`lock.file`).

    The exit code is 1 where an upstream cannot be listed: what was locked of it stays.

    Example: mcp-mirror lock
    """
    set_up_logging(verbose)
    loaded = load(config)
    set_up_logging(verbose, loaded)
    tell_warnings(loaded)
    file = Path(loaded.lock.file or "")
    found: list[Comparison] = []

    async def run() -> None:
        was = read_file(file)
        async with open_application(replace(loaded, lock=LockPolicy("off"))) as application:
            found.append(await compare(application, was))
        if not only_check and (found[0].changes or was is None):
            write_file(file, found[0].now)

    run_to_end(run())
    for line in found[0].told(is_written=not only_check):
        open_console().print(line, style=DIFFERENCES.get(line[:3]), highlight=False, markup=False)
    say(f"mcp-mirror: {found[0].outcome(is_written=not only_check)} in {file}.")
    _tell_problems(found[0].problems)
    raise typer.Exit(1 if found[0].problems or (only_check and found[0].changes) else 0)


def _tell_problems(problems: Iterable[str]) -> None:
    for problem in problems:
        open_console(stderr=True).print(f"problem: {problem}", style="yellow", highlight=False, markup=False)


@app.command()
def call(
    tool: Annotated[str, typer.Argument(help="A twin's name, as `check` lists it.")],
    arg: Annotated[
        list[str] | None,
        typer.Option(
            help="An argument, KEY=VALUE, read as the tool declares it: text as it stands, anything else as JSON. "
            "Repeatable.",
            metavar="K=V",
        ),
    ] = None,
    config: ConfigOption = None,
    verbose: VerboseOption = 0,
) -> None:
    """Call one tool and print what the model would read. The exit code is 1 where the result is an error.

    Example: mcp-mirror call tika_mirrored --arg pdf_path=sheet.pdf
    """
    set_up_logging(verbose)
    loaded = load(config)
    set_up_logging(verbose, loaded)
    tell_warnings(loaded)
    given = dict(_argument(text) for text in arg or ())
    made: list[tuple[ToolCall, Reply]] = []

    async def run() -> None:
        async with open_application(loaded) as application:
            with anyio.move_on_after(max((one.startup_timeout for one in loaded.upstreams), default=0)):
                await _until_served(application, tool)
            arguments = read_arguments(given, _schema_of(application, tool))
            asked = ToolCall(NullChannel(Caller(LOCAL)), tool, arguments)
            made.append((asked, await application.gateway.call_tool(asked)))

    run_to_end(run())
    [(asked, reply)] = made
    result = {key: _parsed(reply[key]) for key in ("content", "isError") if key in reply}
    for block in result["content"]:
        print(block["text"] if block.get("type") == "text" else json.dumps(block))  # noqa: T201  # the output
    if asked.call_trace.path and loaded.store.kind in (None, "memory"):
        say(_LOST)
    raise typer.Exit(1 if result.get("isError") else 0)


@app.command()
def stats(
    config: ConfigOption = None,
    as_: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,  # noqa: FBT002  # a flag
    verbose: VerboseOption = 0,
) -> None:
    """Print what the store holds, and the tokens that models were sent and spared, for each namespace.

    A gateway that runs adds to these numbers every few seconds.

    Example: mcp-mirror stats
    """
    set_up_logging(verbose)
    loaded = load(config)
    set_up_logging(verbose, loaded)

    async def run() -> None:
        async with open_kept_store(loaded) as store:
            found = await read_stats(store)
        table = as_table(found) if found else NOTHING
        open_console().print(as_json(found) if as_ else table, markup=False, highlight=False)

    run_to_end(run())


@app.command()
def login(
    upstream: Annotated[str, typer.Argument(help="The upstream's name in the configuration.")],
    scope: Annotated[
        str, typer.Option(help="Scopes to ask for beside what the server wants, with spaces between them.")
    ] = "",
    browser: Annotated[  # noqa: FBT002  # a flag of the command line
        bool, typer.Option(help="Open the page in a browser, where there is a terminal.")
    ] = True,
    config: ConfigOption = None,
    verbose: VerboseOption = 0,
) -> None:
    """Sign in to an upstream that wants OAuth, with a browser; the gateway keeps and renews the tokens.

    Example: mcp-mirror login search
    """
    set_up_logging(verbose)
    loaded = load(config)
    set_up_logging(verbose, loaded)
    policy = next((one for one in loaded.upstreams if one.name == upstream), None)
    if policy is None:
        names = ", ".join(one.name for one in loaded.upstreams)
        fail(MirrorError(f"There is no upstream {upstream!r} in the configuration, but {names or 'none'}."))

    async def show(url: str) -> None:
        say(f"To sign in, open this in a browser:\n{url}")
        if browser and sys.stderr.isatty():
            await anyio.to_thread.run_sync(webbrowser.open, url, abandon_on_cancel=True)

    async def run() -> None:
        kept = await sign_in(policy, tuple(scope.split()), show)
        say(f"Signed in to {upstream}. The tokens are in {kept}.")

    run_to_end(run())


@app.command()
def token(
    name: Annotated[str, typer.Argument(help="The principal whom it lets in, such as alice.")],
) -> None:
    """Make a bearer token: it is printed once, and its hash for the configuration.

    Example: mcp-mirror token alice
    """
    if not name.strip():
        raise typer.BadParameter("A principal needs a name, such as alice.")
    minted, digest = mint_token()
    print(minted)  # noqa: T201  # the output
    say(f"The token is above, and nowhere else. In the configuration:\nauth:\n  tokens:\n    {name}: {digest}")


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)  # noqa: T201  # the output


@config_app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration, for editors.

    Example: mcp-mirror config schema > mcp-mirror.schema.json
    """
    print(json.dumps(config_json_schema(), indent=2))  # noqa: T201  # the output


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004  # the largest port
        fail(MirrorError(f"--http wants HOST:PORT, such as 127.0.0.1:8000; got {text!r}."))
    return host.strip("[]"), int(port)


def _parsed(member: Buffer | Segments) -> Any:
    return json.loads(join(member if isinstance(member, tuple) else (member,)))


def _argument(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        fail(MirrorError(f"--arg wants KEY=VALUE; got {text!r}."))
    try:
        text.encode()
    except UnicodeEncodeError:
        fail(MirrorError(f"--arg wants UTF-8; got {text!r}."))
    return key, value


def _schema_of(application: Application, tool: str) -> Schema:
    if own := application.gateway.own_tools.get(tool):
        schema: Schema = own.advert["inputSchema"]
        return schema
    entry = application.gateway.catalog.entries.get(tool)
    return entry.schema if entry else {}


async def _until_served(application: Application, tool: str) -> None:
    """Wait for the one upstream that has the tool; where none has, until each has been tried."""

    async def wait(upstream: Upstream) -> None:
        await upstream.settled.wait()
        if tool in application.gateway.catalog.entries:
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for upstream in application.upstreams if tool not in application.gateway.own_tools else ():
            tasks.start_soon(wait, upstream)

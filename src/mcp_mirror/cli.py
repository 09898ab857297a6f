"""The command line: `mcp-mirror serve | check | call | config schema`."""

import json
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import anyio
import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from mcp_mirror import __version__
from mcp_mirror.app import Application, open_application
from mcp_mirror.callers import Caller, Silent
from mcp_mirror.config import config_json_schema, find_config, load_config
from mcp_mirror.errors import MirrorError
from mcp_mirror.faces.handlers import LOCAL
from mcp_mirror.gateway import Reply, ToolCall
from mcp_mirror.models import Buffer, Segments
from mcp_mirror.policies import Config
from mcp_mirror.reloading import Reloading
from mcp_mirror.schema import Schema, types_at
from mcp_mirror.spans import kind_at, trim
from mcp_mirror.telemetry import set_up_logging
from mcp_mirror.tokens import estimate_tokens
from mcp_mirror.tools import OWN_TOOLS
from mcp_mirror.upstreams.upstream import Upstream
from mcp_mirror.wire import join

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="An MCP server between your client and your MCP servers: large results stay out of the model's context, "
    "and tools take memory paths wherever they take values.",
)
config_app = typer.Typer(no_args_is_help=True, help="About the configuration file.")
app.add_typer(config_app, name="config")

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="The configuration, YAML or JSON. Else $MCP_MIRROR_CONFIG, ./mcp-mirror.yaml, or the user's own.",
        show_default=False,
    ),
]
VerboseOption = Annotated[int, typer.Option("--verbose", "-v", count=True, help="Say more on standard error.")]

_MISCONFIGURED: Final = 2
"""Exit code for what the operator must mend before anything can run."""
_UNCUT: Final = 250
"""Columns of a table that is no terminal's."""
_INTERRUPTED: Final = 130


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

    Example: mcp-mirror serve --config mirror.yaml

    Example: mcp-mirror serve --config mirror.yaml --http 127.0.0.1:8000
    """
    set_up_logging(verbose)
    path = _find(config)
    loaded = _load_from(path)
    _tell_warnings(loaded)
    address = _address(http) if http else None
    leaving = anyio.Event()

    async def run() -> None:
        async with (
            open_application(loaded, awaits_client=not address) as application,
            anyio.create_task_group() as tasks,
        ):
            reloading = Reloading(application, path, os.environ, _say)
            tasks.start_soon(reloading.follow_signal)
            if watch:
                tasks.start_soon(reloading.follow_file)
            if address:
                await application.serve_http(*address, lambda url: _say(f"mcp-mirror serves {url}"), leaving)
            else:
                await application.server.serve_stdio(leaving)
            tasks.cancel_scope.cancel()

    _run(run(), leaving, loaded.server.drain)


@app.command()
def check(config: ConfigOption = None, verbose: VerboseOption = 0) -> None:
    """Connect to every upstream, list its tools and twins with their cost, and say what is wrong.

    The exit code is 0 where all is well, 1 where anything is wrong, 2 where the configuration cannot be read.

    Example: mcp-mirror check --config mirror.yaml
    """
    set_up_logging(verbose)
    if not verbose:  # what is down is told once, among the problems
        logging.getLogger("mcp_mirror.upstreams").setLevel(logging.ERROR)
    loaded = _load(config)
    problems: list[str] = list(loaded.warnings)

    async def run() -> None:
        async with open_application(loaded) as application:
            for upstream in application.upstreams:
                await upstream.settled.wait()
            problems.extend(_report(application))

    _run(run())
    for problem in problems:
        _console(stderr=True).print(f"problem: {problem}", style="yellow", highlight=False, markup=False)
    raise typer.Exit(1 if problems else 0)


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

    Example: mcp-mirror call --config mirror.yaml tika_mirrored --arg pdf_path=sheet.pdf
    """
    set_up_logging(verbose)
    loaded = _load(config)
    _tell_warnings(loaded)
    given = dict(_argument(text) for text in arg or ())
    replies: list[Reply] = []

    async def run() -> None:
        async with open_application(loaded) as application:
            with anyio.move_on_after(max((one.startup_timeout for one in loaded.upstreams), default=0)):
                await _until_served(application, tool)
            arguments = _read_arguments(given, _schema_of(application, tool))
            replies.append(await application.gateway.call_tool(ToolCall(Silent(Caller(LOCAL)), tool, arguments)))

    _run(run())
    result = {key: _parsed(replies[0][key]) for key in ("content", "isError") if key in replies[0]}
    for block in result["content"]:
        print(block["text"] if block.get("type") == "text" else json.dumps(block))  # noqa: T201  # the output
    raise typer.Exit(1 if result.get("isError") else 0)


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


def main() -> None:
    """The command `mcp-mirror`."""
    app()


def _load(path: Path | None) -> Config:
    return _load_from(_find(path))


def _find(path: Path | None) -> Path:
    try:
        return find_config(path, os.environ)
    except MirrorError as error:
        _fail(error)


def _load_from(path: Path) -> Config:
    try:
        return load_config(path, os.environ)
    except MirrorError as error:
        _fail(error)


def _tell_warnings(config: Config) -> None:
    for warning in config.warnings:
        _say(f"mcp-mirror: {warning}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201  # to the operator


def _run(main: Coroutine[Any, Any, None], leaving: anyio.Event | None = None, drain: float = 0) -> None:
    """Run to the end or to a signal; either way everything that was opened is closed.

    Args:
        main: What runs.
        leaving: Set at the first signal: what runs takes nothing new and ends when what is under way has ended.
        drain: Seconds that it gets for that.
    """
    stopped: list[signal.Signals] = []

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            if sys.platform != "win32":
                tasks.start_soon(_stop_on_signal, tasks.cancel_scope, stopped, leaving if drain else None, drain)
            await main
            tasks.cancel_scope.cancel()

    try:
        anyio.run(run)
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None
    except (MirrorError, BaseExceptionGroup) as error:
        _fail(error)
    if stopped:
        raise typer.Exit(_INTERRUPTED if stopped[0] == signal.SIGINT else 0)


async def _stop_on_signal(
    scope: anyio.CancelScope, stopped: list[signal.Signals], leaving: anyio.Event | None, drain: float
) -> None:
    """The first signal lets what is under way end; where nothing may, and at a second one, all is closed at once."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            stopped.append(number)
            if leaving is None or leaving.is_set():
                scope.cancel()
                return
            leaving.set()
            scope.deadline = anyio.current_time() + drain


def _fail(error: BaseException) -> NoReturn:
    """Say what an operator must mend; what is nobody's mistake but ours goes on as it is."""
    cause = error
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    if not isinstance(cause, MirrorError):
        raise error
    _say(f"mcp-mirror: {cause}")
    raise typer.Exit(_MISCONFIGURED) from None


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004  # the largest port
        _fail(MirrorError(f"--http wants HOST:PORT, such as 127.0.0.1:8000; got {text!r}."))
    return host.strip("[]"), int(port)


def _parsed(member: Buffer | Segments) -> Any:
    return json.loads(join(member if isinstance(member, tuple) else (member,)))


def _argument(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        _fail(MirrorError(f"--arg wants KEY=VALUE; got {text!r}."))
    try:
        text.encode()
    except UnicodeEncodeError:
        _fail(MirrorError(f"--arg wants UTF-8; got {text!r}."))
    return key, value


def _read_arguments(given: Mapping[str, str], schema: Schema) -> bytes:
    """The arguments of the command line as a JSON object."""
    members = (json.dumps(key).encode() + b":" + _read(value, types_at(schema, (key,))) for key, value in given.items())
    return b"{" + b",".join(members) + b"}"


def _read(text: str, wanted: frozenset[str]) -> bytes:
    """JSON if it is some and the argument takes it; where that takes text, JSON of another type that it names alone."""
    try:
        msgspec.json.decode(raw := text.encode(), type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return msgspec.json.encode(text)
    kind = kind_at(raw, trim(raw).start)
    admits = _ADMITS.get(kind, frozenset({kind}))
    return raw if "string" not in wanted or admits & wanted else msgspec.json.encode(text)


_ADMITS: Final = {"text": frozenset({"number", "integer"}), "number": frozenset({"number", "integer"})}
"""The types of which an argument that takes text must name one for JSON of a kind to count: so "7" can be text."""


def _schema_of(application: Application, tool: str) -> Schema:
    if own := OWN_TOOLS.get(tool):
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
        for upstream in application.upstreams if tool not in OWN_TOOLS else ():
            tasks.start_soon(wait, upstream)


def _console(*, stderr: bool = False) -> Console:
    """A console that cuts nothing where its output goes into a file or a pipe."""
    console = Console(stderr=stderr, soft_wrap=True)
    return console if console.is_terminal else Console(stderr=stderr, soft_wrap=True, width=_UNCUT)


def _cost(advert: dict[str, Any]) -> int:
    return estimate_tokens(json.dumps(advert, ensure_ascii=False).encode())


def _report(application: Application) -> list[str]:
    """Print the table of upstreams and twins; give what is wrong."""
    catalog = application.gateway.catalog
    table = Table(box=box.SIMPLE)
    for name in ("upstream", "tool"):
        table.add_column(name, overflow="fold")  # a name is of use whole alone
    table.add_column("twin", no_wrap=True)
    table.add_column("tokens", justify="right")
    for entry in catalog.entries.values():
        table.add_row(entry.upstream, entry.tool, entry.name, f"{_cost(entry.advert):,}")
    for own in OWN_TOOLS.values():
        table.add_row("(mcp-mirror)", "", own.name, f"{_cost(own.advert):,}")
    console = _console()
    console.print(table)
    adverts = [entry.advert for entry in catalog.entries.values()] + [own.advert for own in OWN_TOOLS.values()]
    console.print(
        f"All definitions together: {sum(map(_cost, adverts)):,} tokens at most (estimated).", highlight=False
    )
    for upstream in application.upstreams:
        state = upstream.status.state
        said = f", {upstream.listing.server}, protocol {upstream.listing.protocol_version}" if upstream.listing else ""
        console.print(f"{upstream.policy.name}: {state}{said}", highlight=False, markup=False)
    down = [f"{one.policy.name}: {one.status.detail}" for one in application.upstreams if one.status.state != "ready"]
    listed = [problem for one in application.upstreams if one.listing for problem in one.listing.problems]
    return [*down, *listed, *catalog.problems]

"""The table of commands. Each command is in a module of its own, which is imported when the command runs."""

import gc
import os
import re
import signal
from collections.abc import Mapping, Sequence
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from mcp_mirror import __version__
from mcp_mirror.errors import MirrorError
from mcp_mirror.system.patterns import lazy_pattern


def import_lazily(module: str) -> Any:
    """Import a module.

    The garbage collector is off during the import and ignores the imported objects afterwards. Searching them takes an
    eighth of the start, and later some 50 ms of every full collection, which would delay calls.
    """
    gc.disable()
    imported = import_module(module)
    gc.freeze()
    gc.enable()
    return imported


COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "serve": ("mcp_mirror.cli.serve:serve", "Serve one client on standard input and output, or many over HTTP."),
    "wrap": ("mcp_mirror.cli.wrap:wrap", "Serve one MCP server in its place, and store its large results."),
    "memory": ("mcp_mirror.cli.wrap:memory", "Serve only the memory tools, beside wrapped servers."),
    "demo": ("mcp_mirror.demo.show:show", "Show what a model reads of three calls; needs no server of yours."),
    "check": ("mcp_mirror.cli.check:check", "Connect to every upstream; print tools, costs and problems."),
    "call": ("mcp_mirror.cli.call:call", "Call one tool and print the result that a model would read."),
    "install": ("mcp_mirror.cli.install.commands:install", "Put mcp-mirror between a client and its MCP servers."),
    "uninstall": ("mcp_mirror.cli.install.commands:uninstall", "Restore the servers that `install` wrapped or moved."),
    "status": ("mcp_mirror.cli.install.status:status", "List the clients on this machine and their wrapped servers."),
    "doctor": ("mcp_mirror.cli.install.doctor:doctor", "Start each wrapped server and report problems."),
    "login": ("mcp_mirror.cli.login:login", "Sign in to an upstream that requires OAuth, with a browser."),
    "token": ("mcp_mirror.cli.token:token", "Create a bearer token for a principal and print it with its hash."),
    "lock": ("mcp_mirror.cli.lock:lock", "Compare all tools with the lock file, and update the file."),
    "flows": ("mcp_mirror.cli.flows:print_flows", "Print which data flows the configuration allows; start no server."),
    "stats": ("mcp_mirror.cli.stats:stats", "Print stored values and tokens sent and kept out, by namespace."),
    "dashboard": ("mcp_mirror.cli.dashboard:dashboard", "Open a page with calls, stored values, lineage and savings."),
    "usage": ("mcp_mirror.cli.usage:usage", "Print calls and tokens by principal, tool, upstream or day."),
    "values": ("mcp_mirror.cli.values:values_app", "List, show, export and clear stored values; print their lineage."),
    "tokens": ("mcp_mirror.cli.tokens:count_files", "Print how many tokens texts cost a model."),
    "eval": ("mcp_mirror.evals.command:evaluate", "Run a model on cases, check its calls, and print a table."),
    "config": ("mcp_mirror.cli.config:config_app", "Print a schema, a reference or an example of the configuration."),
    "version": ("mcp_mirror.cli.main:print_version", "Print the version."),
}
"""Each command's `module:name` and the line that `mcp-mirror --help` prints for it, the first of the command's help."""


_GATEWAYS: Final = frozenset({"serve", "check", "call", "lock"})
"""The commands that import the gateway, and need a configuration."""
_CONFIG_OPTION: Final = lazy_pattern(r"--config(?:=(?P<long>.+))?|-v*c(?P<short>.*)", re.DOTALL)
"""The option that names a configuration file, and its value unless that is the next argument."""


class LazyCommand(TyperCommand):
    """A command that imports its module when it runs, not when help lists it."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Import the command and return its context."""
        if self.name == "serve" and hasattr(signal, "pthread_sigmask"):
            # Until `serve` receives SIGHUP, the signal waits: by default it ends the process.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        if self.name in _GATEWAYS:
            _check_configuration(args, has_client=self.name == "serve" and not any("--http" in arg for arg in args))
        return load_command(self.name or "").make_context(info_name, args, parent, **extra)


class CommandTable(TyperGroup):
    """The group of all commands."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        self.commands: dict[str, Any] = {name: LazyCommand(name, help=line) for name, (_, line) in COMMANDS.items()}

    def invoke(self, ctx: Any) -> Any:
        """Run a command; print the error that ends it, and exit."""
        try:
            return super().invoke(ctx)
        except (MirrorError, OSError) as error:
            import_lazily("mcp_mirror.cli.run").exit_with_error(error)


def _check_configuration(args: Sequence[str], *, has_client: bool) -> None:
    """Exit if the configuration is missing: the import of the gateway takes a second."""
    if {"--help", "-h"} & set(args):
        return
    config = import_lazily("mcp_mirror.config")
    named = find_config_option(args)
    found = [config.find_config(Path(named), {}).path] if named else config.list_configs(os.environ)
    if found and os.path.exists(found[0]):  # noqa: PTH110  # `exists` raises in a folder of another user
        return
    run = import_lazily("mcp_mirror.cli.run")
    with run.answering_client(has_client=has_client):
        config.load_config(found[0] if found else run.find_file(None), os.environ)


def find_config_option(args: Sequence[str]) -> str | None:
    """Return the value of the last `--config` among the words of a command; None without one."""
    value = None
    for at, arg in enumerate(args):
        if match := _CONFIG_OPTION.fullmatch(arg):
            value = match["long"] or match["short"] or next(iter(args[at + 1 :]), None)
    return value


def load_command(name: str) -> Any:
    """Import a command."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    found = getattr(import_lazily(module), attribute)
    if isinstance(found, typer.Typer):
        group = get_group(found)
        for command in group.commands.values():
            _join_lines(command)
        return group
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    # The options of the wrapped server's own command are not options of `wrap`, even without `--`.
    single.command(name, context_settings={"allow_interspersed_args": name != "wrap"})(found)
    return _join_lines(get_command(single))


def _join_lines(command: Any) -> Any:
    """Join the lines of each paragraph of a command's help: typer would keep the line breaks of the docstring."""
    command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", cleandoc(command.help or ""))
    return command


app: Final = typer.Typer(
    cls=CommandTable,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="An MCP gateway between your client and your MCP servers. It keeps large results out of the model's context, "
    "and its tools accept memory paths in place of values.",
)


def print_version() -> None:
    """Print the version."""
    print(__version__)


def _print_version(is_asked: bool) -> None:  # noqa: FBT001  # the signature of option callbacks
    if is_asked:
        print_version()
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Define the options that precede a command."""

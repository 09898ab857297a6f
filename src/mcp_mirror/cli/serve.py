"""The command `mcp-mirror serve`."""

import os
from functools import partial
from typing import Annotated

import anyio
import typer

from mcp_mirror.app import open_application
from mcp_mirror.cli.options import ConfigOption, VerboseOption
from mcp_mirror.cli.reload import Reloading
from mcp_mirror.cli.run import exit_with_error, find_file, load_file, print_warnings, run_until_signal
from mcp_mirror.errors import MirrorError
from mcp_mirror.observability.logging import configure_logging, print_status
from mcp_mirror.system.event_loop import measure_stalls
from mcp_mirror.system.file_handles import raise_handle_limit
from mcp_mirror.system.heap import keep_freed_memory

_MAX_PORT = 65535


def serve(
    config: ConfigOption = None,
    http: Annotated[
        str | None, typer.Option(help="Serve Streamable HTTP on this address instead of stdio.", metavar="HOST:PORT")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Reload the configuration when its file changes.")] = False,
    verbose: VerboseOption = 0,
) -> None:
    """Serve one client on standard input and output, or many over HTTP.

    SIGHUP reloads the configuration.

    Example: mcp-mirror serve

    Example: mcp-mirror serve --http 127.0.0.1:8000
    """
    configure_logging(verbose)
    loaded = load_file(path := find_file(config))
    configure_logging(verbose, loaded)
    print_line = partial(print_status, loaded)
    print_warnings(loaded, print_line)
    address = _read_address(http) if http else None
    raise_handle_limit()
    keep_freed_memory()
    shutdown = anyio.Event()

    async def run() -> None:
        async with (
            open_application(loaded, awaits_client=not address) as application,
            anyio.create_task_group() as tasks,
        ):
            measure_stalls()
            reloading = Reloading(application, path, os.environ, print_line, partial(configure_logging, verbose))
            tasks.start_soon(reloading.follow_signal)
            if watch:
                tasks.start_soon(reloading.follow_file)
            if address:
                await application.serve_http(*address, lambda url: print_line(f"mcp-mirror serves {url}"), shutdown)
            else:
                await application.server.serve_stdio(shutdown)
            tasks.cancel_scope.cancel()

    run_until_signal(run(), shutdown, loaded.server.drain)


def _read_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > _MAX_PORT:
        exit_with_error(MirrorError(f"--http must be HOST:PORT, such as 127.0.0.1:8000; got {text!r}."))
    return host.strip("[]"), int(port)

"""The command `mcp-mirror serve`."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import typer

from mcp_mirror.app import open_application
from mcp_mirror.cli.options import ConfigOption, VerboseOption
from mcp_mirror.cli.reload import Reloading
from mcp_mirror.cli.run import exit_with_error, find_file, load_file, print_warnings, run_until_signal
from mcp_mirror.cli.workers import Supervisor, WorkerStart, check_workers, share_state_keys
from mcp_mirror.errors import MirrorError
from mcp_mirror.observability.logging import configure_logging, print_status
from mcp_mirror.settings.policies import Config
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
    workers: Annotated[
        int, typer.Option(help="Serve HTTP in several processes, which share the store (Linux).", metavar="N")
    ] = 1,
    verbose: VerboseOption = 0,
) -> None:
    """Serve one client on standard input and output, or many over HTTP.

    SIGHUP reloads the configuration.

    Example: mcp-mirror serve

    Example: mcp-mirror serve --http 127.0.0.1:8000

    Example: mcp-mirror serve --http 127.0.0.1:8000 --workers 4
    """
    configure_logging(verbose)
    loaded = load_file(path := find_file(config))
    configure_logging(verbose, loaded)
    print_line = partial(print_status, loaded)
    print_warnings(loaded, print_line)
    address = _read_address(http) if http else None
    raise_handle_limit()
    keep_freed_memory()
    serving = _Serving(loaded, path, address, watch, verbose, print_line)
    if workers == 1:
        serving.run(lambda url: print_line(f"mcp-mirror serves {url}"))
    else:
        _serve_workers(serving, workers)


@dataclass(frozen=True, slots=True)
class _Serving:
    """What the options and the configuration ask for."""

    config: Config
    path: Path
    address: tuple[str, int] | None
    watches: bool
    verbosity: int
    print_line: Callable[[str], None]

    def run(self, announce: Callable[[str], None], start: WorkerStart | None = None) -> None:
        """Serve in this process until a signal.

        Args:
            announce: Called with the URL once clients can connect.
            start: The parent's preparations, if this process is one of several workers.

        Raises:
            typer.Exit: A signal or an error ended the gateway.
        """
        shutdown = anyio.Event()
        config = share_state_keys(self.config) if start else self.config

        async def serve_all() -> None:
            async with (
                open_application(config, awaits_client=not self.address) as application,
                anyio.create_task_group() as tasks,
            ):
                measure_stalls()
                reloading = Reloading(
                    application,
                    self.path,
                    os.environ,
                    self.print_line,
                    partial(configure_logging, self.verbosity),
                    share_state_keys if start else _keep,
                )
                tasks.start_soon(reloading.follow_signal)
                if self.watches:
                    tasks.start_soon(reloading.follow_file)
                if start:
                    tasks.start_soon(_follow_parent, start.parent)
                    if start.is_replacement:
                        reloading.reload()
                if self.address:
                    await application.serve_http(*self.address, announce, shutdown, start.worker if start else None)
                else:
                    await application.server.serve_stdio(shutdown)
                tasks.cancel_scope.cancel()

        run_until_signal(serve_all(), shutdown, config.server.drain)


def _serve_workers(serving: _Serving, count: int) -> None:
    """Serve in several processes."""
    from mcp_mirror.server.http_server import listen  # noqa: PLC0415  # not on stdio

    def run_worker(start: WorkerStart) -> int:
        try:
            serving.run(start.announce, start)
        except typer.Exit as ended:
            return ended.exit_code
        return 0

    try:
        check_workers(serving.config, count, serving.address)
        host, port = serving.address or ("", 0)
        listen(host, port).close()  # sockets that share an address do not notice those of another gateway
        first = listen(host, port, is_shared=True)
        others = [listen(host, first.getsockname()[1], is_shared=True) for _ in range(1, count)]
        code = Supervisor([first, *others], run_worker, serving.print_line).run()
    except MirrorError as error:
        exit_with_error(error)
    raise typer.Exit(code)


async def _follow_parent(parent: int) -> None:
    """Stop as at SIGTERM when the parent process has ended."""
    await anyio.wait_readable(parent)
    os.kill(os.getpid(), signal.SIGTERM)


def _keep(config: Config) -> Config:
    return config


def _read_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > _MAX_PORT:
        exit_with_error(MirrorError(f"--http must be HOST:PORT, such as 127.0.0.1:8000; got {text!r}."))
    return host.strip("[]"), int(port)

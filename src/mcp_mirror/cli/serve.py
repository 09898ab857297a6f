"""The command `mcp-mirror serve`."""

import os
from functools import partial
from typing import Annotated

import typer
from msgspec.structs import replace

from mcp_mirror.cli.options import ConfigOption, VerboseOption
from mcp_mirror.cli.run import answering_client, exit_with_error, find_file, print_waiting
from mcp_mirror.cli.serving import Serving, prepare
from mcp_mirror.cli.workers import MAX_PORT, Supervisor, WorkerStart, check_workers
from mcp_mirror.config import load_config
from mcp_mirror.errors import MirrorError
from mcp_mirror.observability.logging import configure_logging, print_status
from mcp_mirror.system.files import read_file_version

_HTTP_ADVICE = " To serve HTTP, add --http 127.0.0.1:8000."


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
    with answering_client(has_client=http is None):
        path = find_file(config)
        version = read_file_version(path)
        loaded = load_config(path, os.environ)
    prepare(loaded, verbose)
    try:
        address = _read_address(http) if http else None
    except MirrorError as error:
        exit_with_error(error, partial(print_status, loaded, level="error"))
    serving = Serving(loaded, verbose, path, version, address, watch)
    if address is None:
        print_waiting(serving.print_line, _HTTP_ADVICE)
    if workers == 1:
        serving.run(lambda url: serving.print_line(f"mcp-mirror serves {url}"))
    else:
        _serve_workers(serving, workers)


def _serve_workers(serving: Serving, count: int) -> None:
    """Serve in several processes."""
    from mcp_mirror.server.http.server import listen  # noqa: PLC0415  # not on stdio

    def run_worker(start: WorkerStart) -> int:
        try:
            replace(serving, config=start.reloaded or serving.config).run(start.announce, start)
        except typer.Exit as ended:
            return ended.exit_code
        return 0

    try:
        check_workers(serving.config, count, serving.address)
        host, port = serving.address or ("", 0)
        listen(host, port).close()  # sockets that share an address do not notice those of another gateway
        first = listen(host, port, is_shared=True)
        others = [listen(host, first.getsockname()[1], is_shared=True) for _ in range(1, count)]
        warn = partial(serving.print_line, level="warning")
        code = Supervisor([first, *others], run_worker, serving.print_line, warn).run()
    except MirrorError as error:
        exit_with_error(error, partial(serving.print_line, level="error"))
    raise typer.Exit(code)


def _read_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > MAX_PORT:
        raise MirrorError(f"--http must be HOST:PORT, such as 127.0.0.1:8000; got {text!r}.")
    return host.strip("[]"), int(port)

"""Serves a configuration in this process until a signal: one client on stdio, or many over HTTP.

At SIGHUP, or when the file changes, it reloads the configuration. If the new one cannot be used, it reports the error
and continues with the old one.
"""

import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, closing, contextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final

import anyio
import msgspec
import typer
from anyio.abc import TaskGroup, TaskStatus

from mcp_mirror.app import Application, open_application
from mcp_mirror.cli.run import answer_client, print_warnings, run_until_signal
from mcp_mirror.config import load_config
from mcp_mirror.config.lock_file import read_pins
from mcp_mirror.errors import ConfigError, MirrorError, UpstreamError, unwrap_error_group
from mcp_mirror.observability.logging import configure_logging, name_worker, print_status
from mcp_mirror.observability.signals import Signals, open_signals
from mcp_mirror.observability.standard_error import writing_in_background
from mcp_mirror.server.http.handover import Worker
from mcp_mirror.server.server import explain_failed_start
from mcp_mirror.settings.policies import Config
from mcp_mirror.settings.upstreams import StdioEndpoint
from mcp_mirror.system.event_loop import measure_stalls
from mcp_mirror.system.files import FileVersion, read_file_version
from mcp_mirror.system.heap import keep_freed_memory
from mcp_mirror.system.resources import enlarge_handle_table, raise_handle_limit
from mcp_mirror.upstreams.transports.commands import find_command

_logger = logging.getLogger(__name__)

_POLL_INTERVAL: Final = 1.0
"""Seconds between two checks of the file."""
_MAX_NAMED: Final = 20
"""Changes that the line of a reload names."""


def _check_readable_again(path: Path) -> None:
    """Refuse a pipe, in which some tools pass secrets: opening it again would wait forever."""
    with suppress(OSError):  # such as that of a folder of another user, which reading reports
        if path.is_fifo():
            raise ConfigError(f"{path} is a pipe, which can be read once. To reload, serve a file.")


def _list_some(places: Sequence[str]) -> str:
    more = f" and {len(places) - _MAX_NAMED} more" if len(places) > _MAX_NAMED else ""
    return f"{', '.join(places[:_MAX_NAMED])}{more}"


class ProcessStart(msgspec.Struct, frozen=True):
    """The start of the only process of a gateway; that of one of several workers is `WorkerStart`."""

    worker: Worker | None = None
    is_replacement: bool = False
    """Another worker had this number before."""

    def prepare_config(self, config: Config) -> Config:
        """Return the configuration for this process."""
        return config

    def report_reload(self, config: Config) -> None:
        """Report the configuration in use after a reload."""

    async def run(self) -> None:
        """Stay in contact with the parent process until cancelled."""


class _Reloading(msgspec.Struct):
    """Reloads the configuration file of a gateway."""

    serving: "Serving"
    path: Path
    application: Application
    start: ProcessStart
    version: FileVersion | None
    """The version of the file before it was read last."""

    def reload(self, *, is_quiet: bool = False) -> None:
        """Read the file again and continue with its configuration; report an unusable one and keep the old one.

        The audit log is reopened in both cases, because it may have been rotated. `is_quiet`: report only an unusable
        one.
        """
        if self.application.audit:
            self.application.audit.reopen()
        self.version = read_file_version(self.path)
        try:
            _check_readable_again(self.path)
            config = self.start.prepare_config(load_config(self.path, os.environ))
            reload = self.application.reload(config, read_pins(config.lock))
        except ConfigError as error:
            self.application.reloads.note(is_successful=False)
            _logger.error("the configuration was not reloaded, the old one continues. %s", error)  # noqa: TRY400  # it has the cause
            return
        self.application.reloads.note(is_successful=True)
        in_use = self.application.gateway.state.config
        configure_logging(self.serving.verbosity, in_use)
        self.start.report_reload(in_use)
        if is_quiet:
            return
        for warning in config.warnings:
            _logger.warning("%s", warning)
        changed = f"Changed: {_list_some(reload.changed)}." if reload.changed else "Nothing changed."
        rest = f" A change of {_list_some(reload.deferred)} takes effect at the next start." if reload.deferred else ""
        self.serving.print_line(f"mcp-mirror: the configuration was reloaded. {changed}{rest}")

    def follow_changes(self, hangups: AsyncIterator[signal.Signals] | None, tasks: TaskGroup) -> None:
        """Reload the configuration at each signal, and whenever its file changes if that is watched."""
        if hangups is not None:
            tasks.start_soon(self._follow_signal, hangups)
        if self.serving.watches:
            # The file may have changed since the last reload, and the other workers have reported that.
            if self.start.is_replacement:
                self.reload(is_quiet=True)
            tasks.start_soon(self._follow_file)

    async def _follow_signal(self, hangups: AsyncIterator[signal.Signals]) -> None:
        async for _ in hangups:
            self.reload()

    async def _follow_file(self) -> None:
        """Reload whenever the file has changed. This checks the path, because editors replace the file."""
        while True:
            await anyio.sleep(_POLL_INTERVAL)
            if read_file_version(self.path) not in (self.version, None):
                self.reload()


@contextmanager
def _receive_hangups() -> Iterator[AsyncIterator[signal.Signals] | None]:
    """Receive SIGHUP, also while the gateway starts: by default it ends a process. None on systems without it."""
    if sys.platform == "win32":
        yield None
        return
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # blocked since the start
        yield signals


_ONLY_PROCESS: Final = ProcessStart()


class Serving(msgspec.Struct, frozen=True):
    """The settings of `serve` from the options and the configuration."""

    config: Config
    verbosity: int
    path: Path | None = None
    """The file of the configuration, which a signal reloads; None for a configuration of options."""
    version: FileVersion | None = None
    """The version of the file before it was read."""
    address: tuple[str, int] | None = None
    """Where to serve HTTP; None for stdio."""
    watches: bool = False
    """Reload the file when it changes."""

    def print_line(self, line: str, *, level: str = "info") -> None:
        """Print a line for the operator, in the log format and for every verbosity."""
        print_status(self.config, line, level=level)

    def run(self, announce: Callable[[str], None], start: ProcessStart = _ONLY_PROCESS) -> None:
        """Serve until a signal, and raise typer.Exit; `announce` gets the URL once clients can connect."""
        shutdown = anyio.Event()
        failures: list[MirrorError] = []
        config = start.prepare_config(self.config)
        if start.worker:
            name_worker(start.worker.number)
        configure_logging(self.verbosity, config)
        signals = open_signals(config, version("mcp-mirror"), os.environ)

        async def serve_all() -> None:
            async with AsyncExitStack() as stack:
                hangups = stack.enter_context(_receive_hangups()) if self.path else None
                application = await self._open(stack, config, signals, failures)
                tasks = await stack.enter_async_context(anyio.create_task_group())
                measure_stalls()
                if self.path is not None:
                    _Reloading(self, self.path, application, start, self.version).follow_changes(hangups, tasks)
                tasks.start_soon(start.run)
                tasks.start_soon(signals.run)
                if config.server.metrics is not None:
                    number = start.worker.number if start.worker else 0
                    await tasks.start(self._serve_metrics, application, shutdown, number)
                if self.address:
                    await application.serve_http(*self.address, announce, shutdown, start.worker)
                else:
                    await application.server.serve_stdio(shutdown)
                    _check_start(application)
                tasks.cancel_scope.cancel()

        try:
            with writing_in_background(), closing(signals):
                run_until_signal(
                    serve_all(), shutdown, config.server.drain, print_error=partial(self.print_line, level="error")
                )
        except typer.Exit:
            if failures and not self.address:
                answer_client(str(failures[0]))
            raise

    async def _open(
        self, stack: AsyncExitStack, config: Config, signals: Signals, failures: list[MirrorError]
    ) -> Application:
        """Start the gateway, which the stack closes; add to `failures` why it does not start."""
        opening = open_application(config, awaits_client=not self.address, signals=signals)
        try:
            return await stack.enter_async_context(opening)
        except Exception as error:
            if isinstance(cause := unwrap_error_group(error), MirrorError):
                failures.append(cause)
            raise

    async def _serve_metrics(
        self, application: Application, shutdown: anyio.Event, number: int, *, task_status: TaskStatus[None]
    ) -> None:
        def announce(url: str) -> None:
            self.print_line(f"mcp-mirror has metrics at {url}")
            task_status.started()

        await application.serve_metrics(announce, shutdown, number)


def prepare(config: Config, verbosity: int) -> None:
    """Set up logging and the process for a gateway, and print the warnings of its configuration."""
    configure_logging(verbosity, config)
    print_warnings(config, partial(print_status, config, level="warning"))
    raise_handle_limit()
    enlarge_handle_table()
    keep_freed_memory()


def _check_start(application: Application) -> None:
    """Check, when the client has left, that the server which the gateway replaces could start."""
    if not application.config.server.wraps:
        return
    for upstream in application.upstreams:
        if upstream.listing is not None:
            continue
        if upstream.status.state == "down":
            raise MirrorError(explain_failed_start(upstream, upstream.status.detail))
        if isinstance(upstream.policy.endpoint, StdioEndpoint):  # the client left before the first attempt
            try:
                find_command(upstream.policy.endpoint)
            except UpstreamError as error:
                raise MirrorError(explain_failed_start(upstream, str(error))) from None

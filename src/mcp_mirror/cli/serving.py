"""Serves a configuration in this process until a signal: one client on stdio, or many over HTTP."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskStatus

from mcp_mirror.app import Application, open_application
from mcp_mirror.cli.run import print_note, run_until_signal
from mcp_mirror.errors import MirrorError
from mcp_mirror.observability.logging import configure_logging
from mcp_mirror.observability.signals import open_signals
from mcp_mirror.server.server import explain_failed_start
from mcp_mirror.settings.policies import Config
from mcp_mirror.system.event_loop import measure_stalls

if TYPE_CHECKING:
    from mcp_mirror.cli.reload import Reloading
    from mcp_mirror.cli.workers import WorkerStart


@dataclass(frozen=True, slots=True)
class Serving:
    """What the options and the configuration ask for."""

    config: Config
    path: Path | None = None
    """The file of the configuration, which a signal reloads; None for a configuration of options."""
    address: tuple[str, int] | None = None
    """Where to serve HTTP; None for stdio."""
    watches: bool = field(default=False, kw_only=True)
    """Reload the file when it changes."""
    verbosity: int = field(default=0, kw_only=True)
    print_line: Callable[[str], None] = field(default=print_note, kw_only=True)

    def run(self, announce: Callable[[str], None], start: "WorkerStart | None" = None) -> None:
        """Serve in this process until a signal.

        Args:
            announce: Called with the URL once clients can connect.
            start: The parent's preparations, if this process is one of several workers.

        Raises:
            typer.Exit: A signal or an error ended the gateway.
        """
        shutdown = anyio.Event()
        config = _share_state_keys(self.config) if start else self.config

        async def serve_all() -> None:
            async with (
                open_application(config, awaits_client=not self.address, signals=signals) as application,
                anyio.create_task_group() as tasks,
            ):
                measure_stalls()
                if self.path is not None:
                    reloading = self._build_reloading(application, self.path, is_worker=start is not None)
                    tasks.start_soon(reloading.follow_signal)
                    if self.watches:
                        tasks.start_soon(reloading.follow_file)
                    if start and start.is_replacement:
                        reloading.reload()
                if start:
                    tasks.start_soon(_follow_parent, start.parent)
                tasks.start_soon(signals.run)
                if config.server.metrics is not None:
                    await tasks.start(self._serve_metrics, application, shutdown, start.worker.number if start else 0)
                if self.address:
                    await application.serve_http(*self.address, announce, shutdown, start.worker if start else None)
                else:
                    await application.server.serve_stdio(shutdown)
                    _check_start(application)
                tasks.cancel_scope.cancel()

        signals = open_signals(config, version("mcp-mirror"), os.environ)
        try:
            run_until_signal(serve_all(), shutdown, config.server.drain)
        finally:
            signals.close()

    async def _serve_metrics(
        self, application: Application, shutdown: anyio.Event, number: int, *, task_status: TaskStatus[None]
    ) -> None:
        def announce(url: str) -> None:
            self.print_line(f"mcp-mirror has metrics at {url}")
            task_status.started()

        await application.serve_metrics(announce, shutdown, number)

    def _build_reloading(self, application: Application, path: Path, *, is_worker: bool) -> "Reloading":
        from mcp_mirror.cli.reload import Reloading  # noqa: PLC0415  # not for a configuration of options

        return Reloading(
            application,
            path,
            os.environ,
            self.print_line,
            partial(configure_logging, self.verbosity),
            _share_state_keys if is_worker else _keep,
        )


def _check_start(application: Application) -> None:
    """Check, when the client has left, that the server which the gateway replaces could start.

    Raises:
        MirrorError: The server has never started.
    """
    if not application.config.server.wraps:
        return
    for upstream in application.upstreams:
        if upstream.listing is None and upstream.status.state == "down":
            raise MirrorError(explain_failed_start(upstream))


def _share_state_keys(config: Config) -> Config:
    from mcp_mirror.cli.workers import share_state_keys  # noqa: PLC0415  # only for several workers

    return share_state_keys(config)


def _keep(config: Config) -> Config:
    return config


async def _follow_parent(parent: int) -> None:
    """Stop as at SIGTERM when the parent process has ended."""
    await anyio.wait_readable(parent)
    os.kill(os.getpid(), signal.SIGTERM)

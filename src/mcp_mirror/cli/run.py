"""How a command runs: with its configuration, to its end, to a signal, or to a mistake that the operator must mend."""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

import anyio
import typer

from mcp_mirror.config import find_config, load_config
from mcp_mirror.errors import MirrorError, frames_of, innermost
from mcp_mirror.settings.policies import Config
from mcp_mirror.system.event_loop import new_event_loop

_MISCONFIGURED: Final = 2
"""Exit code for what the operator must mend before anything can run."""
_INTERRUPTED: Final = 130
_THRESHOLDS: Final = (20_000, 2, 2_000)
"""Of the garbage collector: new objects, collections of the youngest, and of the middle generation.

Collections of the two young generations look at 60,000 objects at most, which takes 10 ms.
"""


def load(path: Path | None) -> Config:
    """The configuration of a command; see `find`."""
    return load_from(find(path))


def find(path: Path | None) -> Path:
    """The configuration file that an option names, or that `find_config` finds; print which one of several."""
    try:
        found = find_config(path, os.environ)
    except MirrorError as error:
        fail(error)
    if found.notice:
        say(f"mcp-mirror: {found.notice}")
    return found.path


def load_from(path: Path) -> Config:
    """A configuration that is there."""
    try:
        return load_config(path, os.environ)
    except MirrorError as error:
        fail(error)


def say(line: str) -> None:
    """Tell the operator a line."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201  # to the operator


def tell_warnings(config: Config, tell: Callable[[str], None] = say) -> None:
    """Tell the operator what of a configuration has no effect."""
    for warning in config.warnings:
        tell(f"mcp-mirror: {warning}")


def _tune_garbage_collection() -> None:
    """Collect rarely: a full collection walks all catalogs, which stops the event loop, and finds little."""
    gc.set_threshold(*_THRESHOLDS)


def run_to_end(main: Coroutine[Any, Any, None], leaving: anyio.Event | None = None, drain: float = 0) -> None:
    """Run to the end or to a signal; either way everything that was opened is closed.

    Args:
        main: What runs.
        leaving: Set at the first signal: what runs takes nothing new and ends when what is under way has ended.
        drain: Seconds that it gets for that.
    """
    stopped: list[signal.Signals] = []

    async def run_whole() -> None:
        _watch_children_without_threads()
        async with anyio.create_task_group() as tasks:
            if sys.platform != "win32":
                tasks.start_soon(_stop_on_signal, tasks.cancel_scope, stopped, leaving if drain else None, drain)
            await main
            tasks.cancel_scope.cancel()

    _tune_garbage_collection()
    try:
        anyio.run(run_whole, backend_options={"loop_factory": new_event_loop})
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None
    except Exception as error:  # noqa: BLE001  # a traceback would show values
        fail(error)
    except BaseExceptionGroup as error:
        fail(error)
    if stopped:
        raise typer.Exit(_INTERRUPTED if stopped[0] == signal.SIGINT else 0)


def _watch_children_without_threads() -> None:
    """Python 3.11 starts a thread for each child process unless it is told otherwise; later versions do not."""
    if sys.platform == "linux" and sys.version_info < (3, 12):
        with suppress(OSError):  # the kernel has no pidfd_open (before 5.3)
            os.close(os.pidfd_open(os.getpid()))
            watcher = asyncio.PidfdChildWatcher()
            watcher.attach_loop(asyncio.get_running_loop())
            asyncio.get_event_loop_policy().set_child_watcher(watcher)


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


def fail(error: BaseException) -> NoReturn:
    """Say what an operator must mend; of what is nobody's mistake but ours where it happened, and no value."""
    cause = innermost(error)
    if isinstance(cause, SystemExit):  # whoever read what we print has gone (`| head`)
        raise typer.Exit(1) from None
    if not isinstance(cause, MirrorError):
        say(f"mcp-mirror: the gateway failed, which is a mistake of ours: {frames_of(cause)}.")
        raise typer.Exit(1) from None
    say(f"mcp-mirror: {cause}")
    raise typer.Exit(_MISCONFIGURED) from None

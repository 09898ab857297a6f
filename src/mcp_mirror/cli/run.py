"""How a command reads its configuration, runs, stops at a signal, and reports errors."""

import asyncio
import errno
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import anyio
import typer

from mcp_mirror.config import find_config, load_config
from mcp_mirror.errors import MirrorError, summarize_traceback, unwrap_error_group
from mcp_mirror.observability.logging import configure_logging
from mcp_mirror.settings.policies import Config
from mcp_mirror.system.child_watchdog import hold_starts, kill_children
from mcp_mirror.system.event_loop import new_event_loop

T = TypeVar("T")

MISCONFIGURED: Final = 2
"""Exit code of an error that the operator must fix before anything can run."""
INTERRUPTED: Final = 130
"""Exit code after Ctrl-C."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a write for which a disk, a quota or a file has no room."""
_WAITING: Final = (
    "mcp-mirror waits for an MCP client on standard input; Ctrl-C stops it. Clients start it themselves: see "
    "`mcp-mirror install`."
)
COLLECTOR_THRESHOLDS: Final = (1_000, 1, 80_000)
"""Of the garbage collector: new objects, collections of the youngest, and of the middle generation.

Collections of the two young generations look at 2,000 objects at most, which takes 1 to 3 ms. With ten times as many,
the handshakes of 500 clients stopped the event loop for up to 30 ms.
"""
SWITCH_INTERVAL: Final = 0.0005
"""Seconds after which a thread that computes lets the event loop run.

With the interpreter's 5 ms, a pass of the loop that makes several system calls could wait four times as long.
"""


def load(path: Path | None, verbosity: int = 0, *, is_quiet: bool = False) -> Config:
    """Find and read the configuration, set up logging with it, and print its warnings unless `is_quiet`."""
    configure_logging(verbosity)
    loaded = load_config(find_file(path), os.environ)
    configure_logging(verbosity, loaded)
    if not is_quiet:
        print_warnings(loaded)
    return loaded


def mute_upstream_warnings() -> None:
    """Log only errors of upstreams: the command prints why they are down."""
    for name in ("upstreams", "server.change_notifier"):
        logging.getLogger(f"mcp_mirror.{name}").setLevel(logging.ERROR)


def find_file(path: Path | None) -> Path:
    """Return the configuration file of an option, or the one that `find_config` finds, with its errors.

    If several files could be meant, a line on standard error names the one that is read.
    """
    found = find_config(path, os.environ)
    if found.notice:
        print_note(f"mcp-mirror: {found.notice}")
    return found.path


def reads_terminal() -> bool:
    """Whether standard input is a terminal, so that a person can answer; it may also be closed."""
    return sys.stdin is not None and sys.stdin.isatty()


def print_waiting(print_line: Callable[[str], None], advice: str = "") -> None:
    """On a terminal, print that a client is missing: a person who starts the gateway there sees nothing else."""
    if reads_terminal():
        print_line(_WAITING + advice)


def print_note(line: str) -> None:
    """Print a line to standard error."""
    print(line, file=sys.stderr, flush=True)


def print_warnings(config: Config, print_line: Callable[[str], None] = print_note) -> None:
    """Print a configuration's warnings."""
    for warning in config.warnings:
        print_line(f"mcp-mirror: {warning}")


def run_until_signal(
    main: Coroutine[Any, Any, T],
    shutdown: anyio.Event | None = None,
    drain: float = 0,
    *,
    leave: Callable[[], None] | None = None,
    print_error: Callable[[str], None] = print_note,
) -> T:
    """Run `main` to the end or to a signal, close everything that was opened, and return the result.

    The first signal sets `shutdown`: then `main` accepts no new calls, and those in flight have `drain` seconds to end.
    With `leave`, a signal calls that function and ends the process without closing anything. `print_error` prints the
    error that ends the work.
    """
    stopped: list[signal.Signals] = []
    results: list[T] = []

    async def run_whole() -> None:
        _watch_children_without_threads()
        async with anyio.create_task_group() as tasks:
            listening = anyio.CancelScope(shield=True)  # until everything is closed
            if sys.platform != "win32":
                stop = partial(_stop_on_signals, shutdown=shutdown if drain else None, drain=drain, leave=leave)
                tasks.start_soon(stop, tasks.cancel_scope, listening, stopped)
            try:
                results.append(await main)
            finally:
                listening.cancel()
            tasks.cancel_scope.cancel()

    # A full collection walks all catalogs, which stops the event loop. `system/heap.py` has one when the loop is idle.
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        anyio.run(run_whole, backend_options={"loop_factory": new_event_loop})
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001  # a traceback would show values
        exit_with_error(error, print_error)
    if stopped:
        raise typer.Exit(INTERRUPTED if stopped[0] == signal.SIGINT else 0)
    return results[0]


def _watch_children_without_threads() -> None:
    """Use pidfds on Python 3.11, which otherwise starts a thread for each child process; later versions do not."""
    if sys.platform == "linux" and sys.version_info < (3, 12):
        with suppress(OSError):  # the kernel has no pidfd_open (before 5.3)
            os.close(os.pidfd_open(os.getpid()))
            watcher = asyncio.PidfdChildWatcher()
            watcher.attach_loop(asyncio.get_running_loop())
            asyncio.get_event_loop_policy().set_child_watcher(watcher)


async def _stop_on_signals(
    scope: anyio.CancelScope,
    listening: anyio.CancelScope,
    stopped: list[signal.Signals],
    shutdown: anyio.Event | None,
    drain: float,
    leave: Callable[[], None] | None,
) -> None:
    """Start a graceful shutdown at the first signal, or cancel without one; at the second signal, end at once."""
    with listening, anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            stopped.append(number)
            if leave is not None:
                with anyio.move_on_after(1.0):  # so that the watchdog knows a child that is starting
                    await hold_starts()
                leave()
                os._exit(INTERRUPTED if number == signal.SIGINT else 0)
            if len(stopped) > 1:
                kill_children()
            if shutdown is None or shutdown.is_set():
                scope.cancel()
                continue
            shutdown.set()
            scope.deadline = anyio.current_time() + drain


def exit_with_error(error: BaseException, print_error: Callable[[str], None] = print_note) -> NoReturn:
    """Print an error and exit: of an unexpected one only where it was raised, since its message may show values."""
    cause = unwrap_error_group(error)
    if isinstance(cause, OSError) and cause.errno in _FULL and cause.filename is None:
        print_error(f"mcp-mirror: the output cannot be written: {cause.strerror}. Make room, or redirect it.")
        cause = BrokenPipeError()
    if isinstance(cause, SystemExit | BrokenPipeError):  # the reader of the output closed its end (`| head`)
        # The interpreter would report what is still buffered when it exits.
        null = os.open(os.devnull, os.O_WRONLY)
        with suppress(OSError, ValueError):  # no file descriptor: nothing to discard
            os.dup2(null, sys.stdout.fileno())
        os.close(null)
        raise typer.Exit(1) from None
    if not isinstance(cause, MirrorError):
        print_error(f"mcp-mirror: the gateway failed with an unexpected error: {summarize_traceback(cause)}.")
        raise typer.Exit(1) from None
    print_error(f"mcp-mirror: {cause}")
    raise typer.Exit(MISCONFIGURED) from None


@contextmanager
def answering_client(*, has_client: bool = True) -> Iterator[None]:
    """Print an error that ends the context, answer the client on stdio with it until the client leaves, and exit.

    Without such a client (`has_client`), the error is raised.
    """
    try:
        yield
    except MirrorError as error:
        if not has_client:
            raise
        print_note(f"mcp-mirror: {error}")
        answer_client(str(error))
        raise typer.Exit(MISCONFIGURED) from None


def answer_client(reason: str) -> None:
    """Answer requests on stdio with an error until the client leaves: it would report only a closed connection."""
    if sys.stdin is None or reads_terminal():
        return
    error = {"code": -32603, "message": reason}  # an internal error of JSON-RPC
    with suppress(KeyboardInterrupt, OSError, ValueError):  # the client left, or a stream is closed
        for line in sys.stdin.buffer:
            message = None
            with suppress(ValueError, RecursionError):
                message = json.loads(line)
            if isinstance(message, dict) and "method" in message and message.get("id") is not None:
                print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)

"""`serve --workers N`: a parent process that starts workers, forwards signals to them and replaces those that end.

The parent owns the listening sockets, so a client that connects while a worker is replaced waits for the new one. It
runs no event loop and no threads, because it forks.
"""

import math
import mmap
import os
import pickle
import random
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn

import anyio
import msgspec
from msgspec.structs import replace

from mcp_mirror.cli.run import INTERRUPTED, MISCONFIGURED
from mcp_mirror.cli.serving import ProcessStart
from mcp_mirror.errors import MirrorError
from mcp_mirror.server.http.handover import Worker
from mcp_mirror.settings.policies import Config

_MAX_WORKERS: Final = 256
MAX_PORT: Final = 65_535
_SIGNAL_NAMES: Final = ("SIGTERM", "SIGINT", "SIGHUP", "SIGCHLD", "SIGALRM")
"""Windows, where the module is imported too, does not have all of them."""
_SIGNALS: Final = frozenset(getattr(signal, name) for name in _SIGNAL_NAMES if hasattr(signal, name))
_POLL: Final = 0.05
"""Seconds between two looks at workers that start."""
_CHECK: Final = 10.0
"""Seconds between two looks at workers that run; a signal ends the wait."""
_MAX_MISSED: Final = 6
"""Looks in a row after which a worker without a heartbeat is killed. The time in which the machine, or the whole
gateway, was stopped does not count."""
_HEARTBEAT_INTERVAL: Final = 5.0
"""Seconds between two heartbeats of a worker."""
_MAX_HEARTBEAT: Final = 255
"""The largest heartbeat, a counter. After it comes 1, because 0 means that there was none."""
_SHORTEST_PAUSE: Final = 0.001
"""Seconds: a timer of 0 s would never end."""
_SHORT: Final = 10.0
"""Seconds: a worker that ends sooner delays the start of its successor."""
_DELAY: Final = 0.5
_MAX_DELAY: Final = 30.0
"""Seconds before a worker is started again: the first after one short life, doubled with each, up to the second."""
_REPORT_TIMEOUT: Final = 1.0
"""Seconds that a worker waits if the parent has not read the reports of the others."""
_RELOADED: Final = b"r"
"""The datagram with a reloaded configuration."""
_RELOAD: Final = 10.0
"""Seconds after SIGHUP within which the workers have reloaded."""
_SHARED_STORES: Final = ("disk", "redis")


class WorkerStart(ProcessStart, frozen=True, kw_only=True):
    """The data that a worker gets from its parent."""

    parent: int
    """A pipe of which the parent has the other end: it closes when the parent ends."""
    announce: Callable[[str], None]
    """Reports that the worker serves."""
    reloaded: Config | None
    """The configuration of the last reload of any worker; None if there was none."""
    reports: socket.socket
    """Takes the reports of reloads to the parent."""
    state_key: str
    """A key of all workers."""
    send_heartbeat: Callable[[], None]
    """Sends a heartbeat; from the first one on, the parent expects one every few seconds."""

    def prepare_config(self, config: Config) -> Config:
        """Return the configuration with the key of all workers, if it has no keys."""
        if config.server.state_keys:
            return config
        return replace(config, server=replace(config.server, state_keys=(self.state_key,)))

    def report_reload(self, config: Config) -> None:
        """Send a configuration to the parent, for successors, in a file in memory: a datagram may be too small."""
        if sys.platform != "linux":  # see `check_workers`
            raise NotImplementedError
        with open(os.memfd_create("config"), "w+b") as file, suppress(OSError):  # noqa: PTH123  # a descriptor
            pickle.dump(config, file)
            file.flush()
            socket.send_fds(self.reports, [_RELOADED], [file.fileno()])
            os.kill(os.getppid(), signal.SIGCHLD)  # wakes the parent

    async def run(self) -> None:
        """Show the parent that the event loop runs; when the parent has ended, stop as at SIGTERM."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_heartbeats)
            await anyio.wait_readable(self.parent)
            if self.worker:
                self.worker.end[0] = 1
            os.kill(os.getpid(), signal.SIGTERM)

    async def _send_heartbeats(self) -> None:
        while True:
            self.send_heartbeat()
            await anyio.sleep(_HEARTBEAT_INTERVAL)


class _WorkerSlot(msgspec.Struct):
    """One worker, and its successors."""

    process: int | None = None
    started: float = 0.0
    short_lives: int = 0
    restart_at: float = 0.0
    starts: int = 0
    config: Config | None = None
    """The reloaded configuration with which the process started."""
    is_reloading: bool = False
    """The process has received SIGHUP, and reads the configuration again."""
    heartbeat: int = 0
    """The last heartbeat."""
    missed: int = 0
    """The number of looks since it changed."""


class Supervisor:
    """Runs workers until a signal."""

    def __init__(
        self,
        listening: Sequence[socket.socket],
        run_worker: Callable[[WorkerStart], int],
        print_line: Callable[[str], None],
        print_warning: Callable[[str], None],
    ) -> None:
        """Prepare a worker for each socket, all of one address; `run_worker` serves, and returns the exit code."""
        self._listening, self._run_worker = listening, run_worker
        self._print_line, self._print_warning = print_line, print_warning
        self._inboxes = tuple(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in listening)
        for end in (end for pair in self._inboxes for end in pair):
            end.settimeout(0)
        self._life, self._hold = os.pipe()
        """Open for reading in the workers, and for writing only in this process."""
        self._ready, self._report = os.pipe()
        os.set_blocking(self._ready, False)
        self._urls = b""
        """A line from each start of a worker that serves, with its number and the URL, until all serve."""
        self._slots = [_WorkerSlot() for _ in listening]
        self._stopped_by: signal.Signals | None = None
        self._reports, self._reports_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._reports.settimeout(0)
        self._reports_end.settimeout(_REPORT_TIMEOUT)
        self._hangup_at = -math.inf
        """The time of the last SIGHUP."""
        self._reloaded: Config | None = None
        """The configuration of the last reload."""
        self._state_key = secrets.token_hex(32)
        self._heartbeats = mmap.mmap(-1, len(listening))
        """The last heartbeat of each worker, in memory that the workers share."""
        self._next_check = 0.0
        self._end = mmap.mmap(-1, 1)

    def run(self) -> int:
        """Start the workers, and keep them running until a signal. Returns the exit code."""
        if sys.platform != "linux":  # see `check_workers`
            raise NotImplementedError
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        while self._stopped_by is None or any(slot.process is not None for slot in self._slots):
            for number, slot in enumerate(self._slots):
                if self._stopped_by is None and slot.process is None and time.monotonic() >= slot.restart_at:
                    self._start(number, slot)
            # Not `sigtimedwait`: CPython's returns any number after a stop of the process for longer than its timeout.
            signal.setitimer(signal.ITIMER_REAL, max(self._find_pause(), _SHORTEST_PAUSE))
            received = signal.sigwaitinfo(_SIGNALS)
            if received.si_signo not in (signal.SIGCHLD, signal.SIGALRM):
                self._forward(signal.Signals(received.si_signo))
            self._receive_reports()
            self._kill_hanging()
            code = self._reap()
            if code is not None and self._is_starting:
                self._forward(signal.SIGTERM)
                self._wait_for_all()
                return code
            self._announce()
        return INTERRUPTED if self._stopped_by == signal.SIGINT else 0

    @property
    def _is_starting(self) -> bool:
        return len({line.split()[0] for line in self._urls.split(b"\n")[:-1]}) < len(self._slots)

    def _start(self, number: int, slot: _WorkerSlot) -> None:
        slot.started, slot.starts = time.monotonic(), slot.starts + 1
        self._heartbeats[number] = 0
        try:
            process = os.fork()
        except OSError as error:  # such as the limit of processes
            self._delay_restart(number, slot, f"could not be started: {error.strerror}")
            return
        if not process:
            self._become_worker(number, is_replacement=slot.starts > 1)
        slot.process, slot.config, slot.is_reloading, slot.missed = process, self._reloaded, False, 0

    def _announce(self) -> None:
        """Print the address once all workers serve."""
        was_starting = self._is_starting
        with suppress(BlockingIOError):  # later too: a replacement would wait for ever to report to a full pipe
            reported = os.read(self._ready, 4096)
            self._urls += reported if was_starting else b""
        if was_starting and not self._is_starting:
            self._print_line(f"mcp-mirror serves {self._urls.split()[1].decode()}")

    def _become_worker(self, number: int, *, is_replacement: bool) -> NoReturn:
        """Serve in a forked process, and end it without a return into the code of the parent."""
        code = 1
        try:
            os.close(self._hold)
            self._close_listening(but=number)
            os.setsid()  # Ctrl-C in a terminal reaches only the parent, which forwards it
            # `serve` receives SIGHUP later: until then the signal waits, and does not end the process.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS - {signal.SIGHUP})
            random.seed()
            start = WorkerStart(
                worker=Worker(number, self._listening[number], self._inboxes, self._end),
                parent=self._life,
                announce=partial(_report, self._report, number),
                is_replacement=is_replacement,
                reloaded=self._reloaded,
                reports=self._reports_end,
                state_key=self._state_key,
                send_heartbeat=partial(_send_heartbeat, self._heartbeats, number),
            )
            code = self._run_worker(start)
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError):  # nothing reads it any more
                    stream.flush()
            os._exit(code)

    def _find_pause(self) -> float:
        """Seconds until a worker may be due, or may have reported that it serves."""
        if self._is_starting:
            return _POLL
        waiting = [slot.restart_at - time.monotonic() for slot in self._slots if slot.process is None]
        return max(min(_CHECK, *waiting), 0.0) if waiting and self._stopped_by is None else _CHECK

    def _forward(self, number: signal.Signals) -> None:
        if number == signal.SIGHUP:
            self._hangup_at = time.monotonic()
        else:
            self._stopped_by = self._stopped_by or number
            self._end[0] = 1
            self._close_listening()
        for slot in self._slots:
            if slot.process is not None:
                os.kill(slot.process, number)
                slot.is_reloading = True

    def _close_listening(self, but: int | None = None) -> None:
        """Close the listening sockets but one: connections to a socket that any process has open wait in its queue."""
        for number, listening in enumerate(self._listening):
            if number != but:
                listening.close()

    def _receive_reports(self) -> None:
        """Keep the configuration that the workers have reloaded last, and reload those that started shortly before."""
        with suppress(BlockingIOError):
            while True:
                _, [descriptor], _, _ = socket.recv_fds(self._reports, len(_RELOADED), 1)
                with open(descriptor, "rb") as file:  # noqa: PTH123
                    file.seek(0)
                    self._reloaded = pickle.load(file)  # noqa: S301  # written by a process of this gateway
                self._reload_late()

    def _reload_late(self) -> None:
        """Reload the workers that have started after the last SIGHUP, and before another had applied it."""
        for slot in self._slots:
            is_late = not slot.is_reloading and slot.started < self._hangup_at + _RELOAD
            if slot.process is not None and is_late and slot.config != self._reloaded:
                os.kill(slot.process, signal.SIGHUP)
                slot.is_reloading = True

    def _kill_hanging(self) -> None:
        """Kill the workers whose event loops hang: they would keep their connections, and get further ones."""
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + _CHECK
        for number, slot in enumerate(self._slots):
            heartbeat = self._heartbeats[number]
            is_missing = heartbeat > 0 and heartbeat == slot.heartbeat
            slot.heartbeat, slot.missed = heartbeat, (slot.missed + 1 if is_missing else 0)
            if slot.process is not None and slot.missed == _MAX_MISSED:
                self._print_warning(
                    f"mcp-mirror: worker {number} has not responded for {_CHECK * _MAX_MISSED:g} s, and is killed."
                )
                os.kill(slot.process, signal.SIGKILL)

    def _reap(self) -> int | None:
        """Record workers that have ended. Returns the exit code of one that cannot use the configuration."""
        unusable: int | None = None
        for number, slot in enumerate(self._slots):
            if slot.process is None:
                continue
            ended, status = os.waitpid(slot.process, os.WNOHANG)
            if not ended:
                continue
            slot.process, code = None, os.waitstatus_to_exitcode(status)
            if self._stopped_by is not None:
                self._inboxes[number][0].shutdown(socket.SHUT_RD)  # no successor reads it
            else:
                unusable = code if code == MISCONFIGURED else unusable
                how = f"by signal {-code}" if code < 0 else f"with code {code}"
                self._delay_restart(number, slot, "" if code == MISCONFIGURED else f"ended {how}")
        return unusable

    def _delay_restart(self, number: int, slot: _WorkerSlot, event: str) -> None:
        """Set the time of the next start, and report it with what has happened unless the worker has reported that."""
        now = time.monotonic()
        slot.short_lives = slot.short_lives + 1 if now - slot.started < _SHORT else 0
        delay = min(_DELAY * 2 ** (slot.short_lives - 1), _MAX_DELAY) if slot.short_lives else 0.0
        slot.restart_at = now + delay
        when = f" in {delay:g} s" if delay else ""
        if event:
            self._print_warning(f"mcp-mirror: worker {number} {event}; the gateway starts it again{when}.")

    def _wait_for_all(self) -> None:
        for slot in self._slots:
            if slot.process is not None:
                os.waitpid(slot.process, 0)
                slot.process = None


def check_workers(config: Config, count: int, address: tuple[str, int] | None) -> None:
    """Check that the system, the transport and the store allow several workers; MirrorError if not."""
    if not 1 <= count <= _MAX_WORKERS:
        raise MirrorError(f"--workers must be between 1 and {_MAX_WORKERS}; got {count}.")
    if sys.platform != "linux":
        raise MirrorError("--workers needs Linux, which distributes connections between processes. Leave it out.")
    metrics_port = int((config.server.metrics or ":0").rpartition(":")[2])
    if metrics_port and metrics_port + count - 1 > MAX_PORT:
        raise MirrorError(
            f"--workers {count} needs as many ports from that of `server.metrics` on, and {metrics_port} is too high. "
            f"Set a port up to {MAX_PORT - count + 1}."
        )
    if address is None:
        raise MirrorError("--workers needs --http: on standard input and output there is one client.")
    if config.store.kind not in _SHARED_STORES:
        raise MirrorError(
            f"--workers {count} needs a store that the workers share, and the store is in memory. Set `store.kind` to "
            "disk or redis."
        )


def _send_heartbeat(heartbeats: mmap.mmap, number: int) -> None:
    heartbeats[number] = heartbeats[number] % _MAX_HEARTBEAT + 1


def _report(pipe: int, number: int, url: str) -> None:
    os.write(pipe, f"{number} {url}\n".encode())

"""A process that has imported the gateway and the SDK, and forks a Python program for each request.

    python process_template.py FD LISTENER

Requests come over the descriptor `FD`, one end of a socket pair, and over connections to the socket `LISTENER`, which
`forked_program.py` makes. A request is its length in 4 bytes and texts that NUL characters end: the folder, the number
of arguments, the arguments as Python gets them (`SCRIPT ...` or `-m MODULE ...`), and the environment. Four file
descriptors come with it: standard input, output and error of the program, and a pipe. The template writes the process
id of the program to the pipe, a line, and at its end the exit code, negative for a signal. `FORKED_EXECUTABLE` in the
environment is the `sys.executable` of the program.

The template writes one byte to `FD` when it has made its imports. It ends when the other end of `FD` is closed;
programs that were requested there continue. A program that was requested over `LISTENER` has its own session, and
its process group is killed when the reading end of its pipe closes.
"""

import atexit
import contextlib
import gc
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

PRELOADED: Final = (
    "anyio._backends._asyncio",
    "anyio._core._signals",
    "anyio._core._subprocesses",
    "anyio.streams.tls",
    "encodings.ascii",
    "encodings.utf_8_sig",
    "importlib.resources.readers",
    "mcp_mirror.__main__",
    "mcp_mirror.app",
    "mcp_mirror.cli.main",
    "mcp_mirror.cli.call",
    "mcp_mirror.cli.check",
    "mcp_mirror.cli.lock",
    "mcp_mirror.cli.serving",
    "mcp_mirror.cli.serve",
    "mcp_mirror.cli.stats",
    "mcp_mirror.cli.wrap",
    "mcp_mirror.cli.wrapped_server",
    "mcp_mirror.cli.values",
    "mcp_mirror.cli.workers",
    "mcp_mirror.server.auth.gate",
    "mcp_mirror.server.http.dashboard",
    "mcp_mirror.server.http.mcp_endpoint",
    "mcp_mirror.server.http.server",
    "mcp_mirror.server.stdio",
    "mcp_mirror.upstreams.transports.http",
    "mcp_mirror.upstreams.transports.stdio",
    "mcp.server.mcpserver",
    "rich.logging",
    "uvicorn",
    "uvicorn.lifespan.on",
)
"""Modules that the programs import anyhow, directly or through others."""
_IN_SOME_VERSIONS: Final = ("rich._emoji_codes", "typer._adapters", "typer._click.decorators")
"""Such modules that only some versions of their packages have."""
_FILES: Final = 4
_CHUNK: Final = 1 << 16


@dataclass
class Request:
    """A program to start."""

    folder: str
    arguments: list[str]
    environment: dict[bytes, bytes]
    files: list[int]
    is_tied: bool
    """Whether the program is killed when the reading end of its pipe closes."""


def receive(connection: socket.socket, *, is_tied: bool) -> Request | None:
    """Read one request and its file descriptors; None at the end."""
    data, files, _, _ = socket.recv_fds(connection, _CHUNK, _FILES)
    if not data:
        return None
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4]):
        data += connection.recv(_CHUNK)
    folder, count, *texts = data[4:-1].split(b"\0")
    arguments, variables = texts[: int(count)], texts[int(count) :]
    environment = dict(variable.split(b"=", 1) for variable in variables)
    return Request(os.fsdecode(folder), [os.fsdecode(text) for text in arguments], environment, files, is_tied)


class Template:
    """Forks programs and reports their ends."""

    def __init__(self, requests: socket.socket, listener: socket.socket) -> None:
        self._requests = requests
        self._listener = listener
        self._programs: dict[int, Request] = {}
        """By process id."""
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tests are interrupted, and close their end
        self._poll = select.poll()
        for file in (requests.fileno(), listener.fileno(), self._woken):
            self._poll.register(file, select.POLLIN)

    def serve(self) -> Request:
        """Fork a program for each request, and return its request in the program.

        Raises:
            EOFError: In the template: the tests have ended.
        """
        while True:
            ready = {file for file, _ in self._poll.poll()}
            if self._woken in ready:
                os.read(self._woken, _CHUNK)
            for pid, program in list(self._programs.items()):
                if program.files[3] in ready:
                    self._kill(pid)
                self._reap(pid, program)
            request = self._receive(ready)
            if request and self._fork(request):
                return request

    def _receive(self, ready: set[int]) -> Request | None:
        if self._requests.fileno() in ready:
            request = receive(self._requests, is_tied=False)
            if request is None:
                raise EOFError
            return request
        if self._listener.fileno() not in ready:
            return None
        connection, _ = self._listener.accept()
        with connection:
            return receive(connection, is_tied=True)

    def _fork(self, request: Request) -> bool:
        """Fork a program; return whether this process is the program."""
        with contextlib.suppress(OSError, SyntaxError, ValueError):  # the program itself reports them
            script = Path(request.folder, request.arguments[0])
            compile_script(str(script), script.stat().st_mtime_ns)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            self._requests.close()
            self._listener.close()
            for file in (self._woken, self._wake, *(program.files[3] for program in self._programs.values())):
                os.close(file)
            return True
        for file in request.files[:3]:
            os.close(file)
        self._programs[pid] = request
        self._report(request, pid)
        if request.is_tied:
            self._poll.register(request.files[3], 0)
        return False

    @staticmethod
    def _kill(pid: int) -> None:
        """Kill a program with its process group; it was not waited for, so the number is still its own."""
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # it has not made its session yet
            os.killpg(pid, signal.SIGKILL)

    def _reap(self, pid: int, program: Request) -> None:
        """Report the exit code of a program that has ended."""
        ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            return
        del self._programs[pid]
        if program.is_tied:
            self._poll.unregister(program.files[3])
        self._report(program, os.waitstatus_to_exitcode(status))
        os.close(program.files[3])

    @staticmethod
    def _report(program: Request, number: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent process has ended
            os.write(program.files[3], f"{number}\n".encode())


def become(request: Request) -> None:
    """Turn a forked copy of the template into the program of a request, and run it."""
    for number, file in enumerate(request.files[:3]):
        os.dup2(file, number)
    for file in request.files:
        os.close(file)
    # The streams of the template were opened for its own files: Python may take them for files in which it can seek.
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  # for the life of the process
    if request.is_tied:
        os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environb.update(request.environment)
    tempfile.tempdir = None  # the environment names another folder
    sys.executable = os.environ.pop("FORKED_EXECUTABLE", sys.executable)
    os.chdir(request.folder)
    first, *others = request.arguments
    if first == "-m":
        sys.argv, sys.path[0] = others, request.folder
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = request.arguments, str(Path(first).parent)
        run_script(first)


def run_script(path: str) -> None:
    """Run a script as Python does, with the code that the template has compiled."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = path
    exec(compile_script(path, Path(path).stat().st_mtime_ns), vars(main))  # noqa: S102  # the program that was requested


@lru_cache
def compile_script(path: str, _changed: int) -> CodeType:
    """Compile a script; once for all its programs, until the file changes."""
    return compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)


def exit_quickly(code: int) -> None:
    """Exit without freeing memory object by object, which takes longer than many programs run."""
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  # waits for threads, as the interpreter does
    atexit._run_exitfuncs()  # noqa: SLF001
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(request: Request) -> None:
    """Run the program of a request in this forked copy of the template, and exit as it does."""
    try:
        become(request)
        code = None
    except SystemExit as end:
        code = end.code
    if code is None or isinstance(code, int):
        exit_quickly(code or 0)
    sys.exit(code)


def preload() -> None:
    """Import what the programs import, and let OpenSSL load what the first key needs."""
    for module in PRELOADED:
        import_module(module)
    for module in _IN_SOME_VERSIONS:
        with contextlib.suppress(ModuleNotFoundError):
            import_module(module)
    import_module("mcp.server.request_state").RequestStateSecurity(keys=[bytes(32)])


if __name__ == "__main__":
    preload()
    gc.collect()
    gc.freeze()
    request = None
    with contextlib.suppress(EOFError):
        requests, listener = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
        requests.send(b"\0")
        request = Template(requests, listener).serve()
    if request:
        run(request)

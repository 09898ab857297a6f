"""A process that has imported the gateway and forks a `mcp-mirror` command for each request.

    python gateway_template.py FD

`FD` is one end of a socket pair. A request is a JSON object after its length in 4 bytes, `{"argv", "cwd", "env"}`, with
four file descriptors: standard input, output and error of the command, and a pipe. The template writes the process id
of the command to the pipe, a line, and at its end the exit code, negative for a signal. The template ends when the
other end of the socket pair is closed; commands that still run continue.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import struct
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

PRELOADED: Final = (
    "mcp_mirror.app",
    "mcp_mirror.cli.main",
    "mcp_mirror.cli.call",
    "mcp_mirror.cli.check",
    "mcp_mirror.cli.lock",
    "mcp_mirror.cli.serve",
    "mcp_mirror.cli.stats",
    "mcp_mirror.cli.wrap",
    "mcp_mirror.cli.wrapping",
    "mcp_mirror.cli.values",
    "mcp_mirror.server.http",
    "mcp_mirror.server.stdio",
    "mcp_mirror.upstreams.transports.http",
    "mcp_mirror.upstreams.transports.stdio",
)
"""Modules that the commands import anyhow, directly or through others."""
_FILES: Final = 4
_CHUNK: Final = 1 << 16


def receive(requests: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Read one request and its file descriptors; None at the end."""
    data, files, _, _ = socket.recv_fds(requests, _CHUNK, _FILES)
    if not data:
        return None
    while len(data) < 4 or len(data) < 4 + struct.unpack("!I", data[:4])[0]:
        data += requests.recv(_CHUNK)
    request: dict[str, Any] = json.loads(data[4:])
    return request, files


def reap(pipes: dict[int, int]) -> None:
    """Report the exit code of each command that has ended."""
    for pid in list(pipes):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            pipe = pipes.pop(pid)
            with contextlib.suppress(BrokenPipeError):  # the parent process has ended
                os.write(pipe, f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os.close(pipe)


def become(request: dict[str, Any], files: list[int]) -> None:
    """Turn a forked copy of the template into the command of a request."""
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = request["argv"]
    sys.path[0] = str(Path(sys.argv[0]).parent)


def serve(requests: socket.socket) -> bool:
    """Fork a command for each request.

    Returns:
        True in a forked command; False in the template, at its end.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tests are interrupted, and close their end
    pipes: dict[int, int] = {}
    watched: list[Any] = [requests, woken]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if woken in ready:
            os.read(woken, _CHUNK)
            reap(pipes)
        if requests not in ready:
            continue
        received = receive(requests)
        if received is None:
            return False
        request, files = received
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            requests.close()
            for file in (woken, wake, *pipes.values()):
                os.close(file)
            become(request, files)
            return True
        for file in files[:3]:
            os.close(file)
        pipes[pid] = files[3]
        os.write(files[3], f"{pid}\n".encode())


if __name__ == "__main__":
    for module in PRELOADED:
        import_module(module)
    gc.collect()
    gc.freeze()
    if serve(socket.socket(fileno=int(sys.argv[1]))):
        import_module("mcp_mirror.__main__").main()

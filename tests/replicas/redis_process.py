"""A real Redis server in its own folder, on a free port, that can be paused, killed and restarted."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
from typing import TYPE_CHECKING, Any, Self

import redis
from waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

BOUND = 60.0
COMMAND = shutil.which("redis-server") or shutil.which("valkey-server")
MISSING = "redis-server is not installed (Debian and Ubuntu: apt-get install redis-server)"


_ports = itertools.cycle(range(20_000, 32_000))
for _ in range(os.getpid() * 7_417 % 12_000):
    next(_ports)


def free_port() -> int:
    """A port that is free, and stays so until it is used: the system gives none of these to connections."""
    for port in _ports:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError


class RedisProcess:
    """`options` are those of the server's command line."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def launch(self) -> None:
        assert COMMAND is not None, MISSING
        options = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--save", "")
        self._process = subprocess.Popen([COMMAND, *options, *self._options], stdout=subprocess.DEVNULL)

    def start(self) -> None:
        self.launch()
        try:
            wait_until(self._is_answering)
        except TimeoutError:
            self.kill()
            raise

    def _is_answering(self) -> bool:
        try:
            self.run("PING")
        except redis.exceptions.AuthenticationError:
            return True
        except redis.exceptions.ConnectionError:
            return False
        return True

    def run(self, *command: str | bytes | int) -> Any:
        with contextlib.closing(redis.Redis(port=self.port, protocol=2)) as client:
            return client.execute_command(*command)  # type: ignore[no-untyped-call]

    def keys(self, prefix: str = "") -> dict[str, int]:
        """Each key that begins with a prefix, with the milliseconds until it expires; -1: never."""
        pattern = re.sub(r"([*?\[\]\\])", r"\\\1", prefix) + "*"
        with contextlib.closing(redis.Redis(port=self.port, protocol=2)) as client:
            found = [key for key in client.keys(pattern) if isinstance(key, bytes)]
            with client.pipeline(transaction=False) as pipeline:
                for key in found:
                    pipeline.pttl(key)
                return dict(zip(map(bytes.decode, found), pipeline.execute(), strict=True))

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(BOUND)
            self._process = None

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

"""Starts `mcp-mirror` commands and other programs as processes of their own, without the time that their imports take.

A template process imports the gateway and the SDK once and forks each program: `start_command` for `mcp-mirror`, and
`forked_python` for programs that a gateway, an SDK client or a test starts by a command line. The programs are real
processes: their standard streams are pipes, they get signals, and they exit as a Python of their own does. With
`GATEWAY_EXECUTABLE` in the environment, and on systems without `fork`, each program is started in the ordinary way;
`make soak` runs tests in that way.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

COMMAND: Final = str(Path(sys.executable).parent / "mcp-mirror")
_TEMPLATE: Final = str(Path(__file__).with_name("process_template.py"))
_FORKED: Final = str(Path(__file__).with_name("forked_program.py"))
_CAN_FORK: Final = hasattr(os, "fork") and "GATEWAY_EXECUTABLE" not in os.environ
_LIMIT: Final = 1 << 26
"""Bytes that a line may have."""


class GatewayProcess(Protocol):
    """A running command, with the members of `asyncio.subprocess.Process` that tests use."""

    stdin: asyncio.StreamWriter | None
    stdout: asyncio.StreamReader | None
    stderr: asyncio.StreamReader | None

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    def send_signal(self, signal: int) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    async def wait(self) -> int: ...

    async def communicate(self, input: bytes | None = None) -> tuple[bytes, bytes]: ...  # noqa: A002  # asyncio's name


class _Template:
    """The template process; it starts with the first program."""

    def __init__(self) -> None:
        self._requests: socket.socket | None = None
        self._folder = ""

    @property
    def path(self) -> str:
        """The socket to which `forked_program.py` connects."""
        self._start()
        return str(Path(self._folder, "socket"))

    def _start(self) -> socket.socket:
        if self._requests is None:
            self._folder = tempfile.mkdtemp(prefix="template-")
            self._requests, other = socket.socketpair()
            with other, socket.socket(socket.AF_UNIX) as listener:
                listener.bind(self.path)
                listener.listen()
                files = [other.fileno(), listener.fileno()]
                argv = [sys.executable, _TEMPLATE, *map(str, files)]
                process = subprocess.Popen(argv, pass_fds=files, stdin=DEVNULL, stdout=DEVNULL)
            atexit.register(self._stop, process)
            assert self._requests.recv(1), "The template process has ended."  # no test waits for the imports
        return self._requests

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        if self._requests:
            self._requests.close()
        process.wait()
        shutil.rmtree(self._folder)

    def send(self, arguments: list[str], environment: Mapping[str, str], files: list[int]) -> None:
        variables = [f"{name}={value}" for name, value in environment.items()]
        texts = [str(Path.cwd()), str(len(arguments)), *arguments, *variables]
        data = b"".join(os.fsencode(text) + b"\0" for text in texts)
        data = len(data).to_bytes(4, "big") + data
        requests = self._start()
        sent = socket.send_fds(requests, [data], files)
        requests.sendall(data[sent:])


_template = _Template()


class _ForkedProcess:
    """A command that the template has forked."""

    def __init__(self, pid: int, status: asyncio.StreamReader, streams: Mapping[str, Any]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: asyncio.StreamWriter | None = streams.get("stdin")
        self.stdout: asyncio.StreamReader | None = streams.get("stdout")
        self.stderr: asyncio.StreamReader | None = streams.get("stderr")
        self._ending = asyncio.create_task(self._await_end(status))

    async def _await_end(self, status: asyncio.StreamReader) -> int:
        self.returncode = int(await status.read())
        if self.stdin:
            self.stdin.close()
        await asyncio.sleep(0)  # the pipes close their transports
        return self.returncode

    def send_signal(self, signal: int) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, signal)

    def terminate(self) -> None:
        self.send_signal(15)

    def kill(self) -> None:
        self.send_signal(9)

    async def wait(self) -> int:
        return await asyncio.shield(self._ending)

    async def communicate(self, input: bytes | None = None) -> tuple[bytes, bytes]:  # noqa: A002  # asyncio's name
        if self.stdin:
            with contextlib.suppress(OSError):
                self.stdin.write(input or b"")
                await self.stdin.drain()
            self.stdin.close()

        async def read(stream: asyncio.StreamReader | None) -> bytes:
            return await stream.read() if stream else b""

        out, err, _ = await asyncio.gather(read(self.stdout), read(self.stderr), self.wait())
        return out, err


async def _reader(file: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(_LIMIT)
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(file, "rb", 0))
    return reader


async def _writer(file: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    transport, _ = await loop.connect_write_pipe(lambda: protocol, os.fdopen(file, "wb", 0))
    return asyncio.StreamWriter(transport, protocol, None, loop)


class Start(Protocol):
    """Starts `mcp-mirror` with arguments. Its standard streams are inherited, `PIPE` or `DEVNULL`."""

    async def __call__(
        self,
        *args: str,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> GatewayProcess: ...


async def start_executable(*args: str, command: str = COMMAND, **keys: Any) -> asyncio.subprocess.Process:
    """Start the installed executable."""
    return await asyncio.create_subprocess_exec(command, *args, limit=_LIMIT, **keys)


async def start_command(
    *args: str,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    env: Mapping[str, str] | None = None,
) -> GatewayProcess:
    """Let the template fork a command; start the installed executable where that is not possible."""
    if not _CAN_FORK:
        return await start_executable(*args, stdin=stdin, stdout=stdout, stderr=stderr, env=env)
    given, files, streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}, list[int](), dict[str, Any]()
    with contextlib.ExitStack() as stack:
        for number, (name, kind) in enumerate(given.items()):
            if kind == PIPE:
                source, sink = os.pipe()
                ours, theirs = (sink, source) if name == "stdin" else (source, sink)
                streams[name] = await (_writer(ours) if name == "stdin" else _reader(ours))
                stack.callback(os.close, theirs)
            elif kind == DEVNULL:
                stack.callback(os.close, theirs := os.open(os.devnull, os.O_RDWR))
            else:
                theirs = number if kind is None else kind
            files.append(theirs)
        source, sink = os.pipe()
        stack.callback(os.close, sink)
        environment = os.environ if env is None else env
        _template.send([COMMAND, *map(os.fsdecode, args)], environment, [*files, sink])
    status = await _reader(source)
    return _ForkedProcess(int(await status.readline()), status, streams)


def forked_python(*args: str) -> list[str]:
    """A command line that runs a Python program as a fork of the template.

    Args:
        args: The arguments of `python`: `SCRIPT ...` or `-m MODULE ...`.
    """
    return [sys.executable, "-I", "-S", _FORKED, _template.path, *args] if _CAN_FORK else [sys.executable, *args]


def forked_upstream(*args: str, **keys: Any) -> dict[str, Any]:
    """The configuration of an upstream that is such a program."""
    command, *arguments = forked_python(*args)
    return {"command": command, "args": arguments, **keys}


@asynccontextmanager
async def client_transport(process: GatewayProcess, bound: float) -> AsyncIterator[tuple[Any, Any]]:
    """The streams of an SDK client that speaks with a process over its standard streams; at the end it must exit.

    Args:
        process: A command that was started with pipes for standard input and output.
        bound: Seconds that it may take to exit after its standard input is closed.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout
    send_received, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    send, to_send = anyio.create_memory_object_stream[SessionMessage](0)

    async def read_lines() -> None:
        async with send_received:
            while line := await stdout.readline():
                with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                    await send_received.send(SessionMessage(message))

    async def write_lines() -> None:
        async with to_send:
            async for message in to_send:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                stdin.write(text.encode() + b"\n")
                with contextlib.suppress(OSError):
                    await stdin.drain()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read_lines())
        tasks.create_task(write_lines())
        try:
            yield received, send
        finally:
            received.close()
            send.close()
            stdin.close()
            with anyio.CancelScope(shield=True):
                await asyncio.wait_for(process.wait(), bound)

"""Sends arbitrary bytes to both transports of a running gateway.

Every byte string gets an answer or a closed connection in bounded time, and leaves all values unchanged. The gateway,
its upstreams, and the connections are real.
"""

import asyncio
import base64
import contextlib
import itertools
import json
import logging
import random
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio
from gateway_processes import forked_python
from tests.load import slowness

from mcp_mirror.app import Application, open_application
from mcp_mirror.callers import LOCAL, Caller, NullChannel
from mcp_mirror.config import load_config
from mcp_mirror.core.replies import ToolResult
from mcp_mirror.errors import RefusedError

HERE = Path(__file__).parent
PARROT = str(HERE / "parrot.py")
BOUND = 20.0
"""Seconds after which something hangs."""
PATIENCE = 0.5
"""Seconds that an upstream gets for an answer that its bytes may have spoilt, on an idle machine."""
END = b"\r\n\r\n"
PAUSE = 0.05
"""Seconds after which an incomplete request counts as finished."""
LARGEST = 4096
"""Bytes of an input."""

Attempt = Callable[[bytes], Awaitable[str]]
"""Tries an input, and gives the beginning of what was answered."""


def corpus_of(side: str) -> list[bytes]:
    """The stored inputs of a side, the same order each time."""
    return [path.read_bytes() for path in sorted((HERE / f"corpus-{side}").iterdir())]


WORDS = (
    b"@ID@", b'"id":', b'"jsonrpc":"2.0"', b'"method":"tools/call"', b'"result":', b'"error":', b"null", b"-1", b"{}",
    b"[" * 800, b"1e999", b'""', b"\\u0000", b"\\ud800", b"\xff", b"\x00", b"\r\n", b"\n", b"\n\n", b"data: ",
    b'"_meta":{"mcp-mirror/payload":"x"}', b"content-length: ", b"transfer-encoding: chunked\r\n", b"9" * 30,
    b"\xe2\x80\xae", b"event: ",
)  # fmt: skip
"""What inputs are made of."""


def mutations_of(corpus: list[bytes], seed: int) -> Iterator[bytes]:
    """Inputs without an end, the same for a seed: parts of the corpus cut, repeated, exchanged, and joined."""
    dice = random.Random(seed)  # noqa: S311  # no secret
    while True:
        data = dice.choice(corpus)
        for _ in range(dice.randint(1, 4)):
            at, end = sorted(dice.randint(0, len(data)) for _ in range(2))
            part = dice.choice(
                (b"", dice.choice(WORDS), data[at:end] * 2, dice.randbytes(3), dice.choice(corpus)[at:end])
            )
            data = data[:at] + part + data[min(end, at + dice.choice((0, 1, 8, 1000))) :]
        yield data[:LARGEST]


@asynccontextmanager
async def open_stage(folder: Path) -> AsyncIterator["Stage"]:
    """A gateway in this process, over HTTP, with upstreams that send given bytes."""
    logging.disable(logging.CRITICAL)
    async with AsyncExitStack() as stack:
        stack.callback(logging.disable, logging.NOTSET)
        web = await _started(stack, "http", PIPE)
        assert web.stdout is not None
        port = int(await asyncio.wait_for(web.stdout.readline(), BOUND))
        child = {"command": sys.executable, "args": [PARROT, "stdio"]}
        timeouts = {"timeout": PATIENCE * slowness(), "overrides": {"steady": {"timeout": BOUND}}}
        config = folder / "mirror.yaml"
        upstreams = {
            "calm": {**child, "overrides": timeouts["overrides"]},
            "stdio": {**child, **timeouts},
            "http": {"url": f"http://127.0.0.1:{port}/mcp", **timeouts},
        }
        limits = {"max_message_bytes": "1MiB", "body_timeout": 1}
        config.write_text(json.dumps({"upstreams": upstreams, "store": {"kind": "memory"}, "limits": limits}))
        application = await stack.enter_async_context(open_application(load_config(config, {})))
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        leaving = anyio.Event()
        tasks = await stack.enter_async_context(anyio.create_task_group())
        tasks.start_soon(application.serve_http, "127.0.0.1", 0, answer.set_result, leaving)
        await application.upstreams.wait_for_attempts(BOUND)
        yield Stage(application, await answer, config)
        leaving.set()


async def _started(stack: AsyncExitStack, kind: str, stdout: int) -> Process:
    process = await asyncio.create_subprocess_exec(sys.executable, PARROT, kind, stdout=stdout)

    async def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()

    stack.push_async_callback(end)
    return process


class Stage:
    """A gateway, to be tried from all sides."""

    def __init__(self, application: Application, url: str, config: Path) -> None:
        self._gateway = application.gateway
        self._address = urlsplit(url)
        self._config = config
        self._numbers = itertools.count()

    async def steady(self, upstream: str) -> None:
        """Another call is answered truly; one whose connection was broken may have to be made again."""
        nonce = f"nonce-{next(self._numbers)}"
        async with asyncio.timeout(BOUND):
            while (answer := await self._call(f"{upstream}_steady_mirrored", {"nonce": nonce})) != nonce:
                assert re.search("closed the connection|is down|is starting|try again|could not be reached", answer), (
                    answer
                )

    async def try_upstream(self, upstream: str, data: bytes) -> str:
        """These bytes are what an upstream answers with."""
        arguments = {"bytes": base64.b64encode(data).decode(), "nonce": "true"}
        async with asyncio.timeout(BOUND):
            answer = await self._call(f"{upstream}_parrot_mirrored", arguments)
        await self.steady(upstream)
        await self.steady("calm")
        return answer

    async def try_http(self, data: bytes) -> str:
        """These bytes are what a client says over HTTP, and then no more."""
        received = b""
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        try:
            with contextlib.suppress(ConnectionError):
                writer.write(data.replace(b"@HOST@", self._address.netloc.encode()))
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    received = await asyncio.wait_for(reader.read(1 << 16), BOUND if _is_whole(data) else PAUSE)
                if not received and not reader.at_eof():  # it waits for more bytes, which do not come
                    writer.write_eof()
                    received = await asyncio.wait_for(reader.read(1 << 16), BOUND)
                assert received == b"" or received.startswith(b"HTTP/1.1 "), received[:100]
                async with asyncio.timeout(BOUND):  # an answer with a length ends
                    while (length := _length_of(received)) and len(received.partition(END)[2]) < length:
                        more = await reader.read(1 << 16)
                        assert more, received
                        received += more
        finally:
            writer.close()
        await self.steady("calm")
        return received.decode("latin-1")

    async def _call(self, tool: str, arguments: object) -> str:
        """What a model reads; of what was stored, that it was."""
        call = self._gateway.new_call(NullChannel(Caller(LOCAL)), tool, json.dumps(arguments).encode())
        try:
            return _text_of(await self._gateway.state.answer(call))
        except RefusedError as error:  # an upstream's own
            return str(error)

    @asynccontextmanager
    async def lines(self) -> AsyncIterator[Attempt]:
        """A gateway on standard streams, in a process of its own, which takes lines without an end."""
        command = forked_python("-m", "mcp_mirror", "serve", "--config", str(self._config))
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=1 << 24)
        assert process.stdin is not None
        assert process.stdout is not None
        reader, writer = process.stdout, process.stdin

        async def attempt(data: bytes) -> str:
            identity = f"true-{next(self._numbers)}"
            params = {"name": "calm_steady_mirrored", "arguments": {"nonce": identity}}
            meta = {"_meta": {f"io.modelcontextprotocol/{key}": value for key, value in MODERN.items()}}
            call = {"jsonrpc": "2.0", "id": identity, "method": "tools/call", "params": {**params, **meta}}
            writer.write(data + b"\n" + json.dumps(call).encode() + b"\n")
            await writer.drain()
            output = ""
            async with asyncio.timeout(BOUND):
                while json.loads(line := await reader.readline()).get("id") != identity:
                    output += line.decode()
            assert json.loads(line)["result"]["content"][0]["text"] == identity, line
            return output

        try:
            yield attempt
            writer.close()
            await asyncio.wait_for(process.wait(), BOUND)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


MODERN = {"protocolVersion": "2026-07-28", "clientCapabilities": {}, "clientInfo": {"name": "fuzz", "version": "0"}}


def _is_whole(data: bytes) -> bool:
    """Whether a plain request is there to its end: it must be answered, or its connection closed."""
    head, _, body = data.partition(END)
    plain = re.match(rb"POST /mcp HTTP/1\.1\r\n", head) and b"transfer-encoding" not in head.lower()
    return bool(plain and 0 < _length_of(data) <= len(body))


def _length_of(data: bytes) -> int:
    """What a head says of its body; 0 where it says nothing, or several things."""
    lengths = re.findall(rb"(?i)\ncontent-length: *(\d{1,9})\r\n", data.partition(END)[0] + b"\r\n")
    return int(lengths[0]) if len(lengths) == 1 else 0


def _text_of(reply: ToolResult) -> str:
    content = reply.get("content", b"[]")
    blocks = json.loads(b"".join(content) if isinstance(content, tuple) else bytes(content))
    return "\n".join(str(block.get("text", "")) for block in blocks if isinstance(block, dict))


@asynccontextmanager
async def attempts_on(stage: Stage, side: str) -> AsyncIterator[Attempt]:
    """What tries one side."""
    if side == "client-stdio":
        async with stage.lines() as attempt:
            yield attempt
    elif side == "client-http":
        yield stage.try_http
    else:
        yield lambda data: stage.try_upstream(side.removeprefix("upstream-"), data)


SIDES = ("client-stdio", "client-http", "upstream-stdio", "upstream-http")

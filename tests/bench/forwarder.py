"""The least that a gateway with an event loop can do for a small call: parse it, give it a new id, forward it.

    python forwarder.py COMMAND...

Standard library only. It forwards JSON-RPC lines between its standard streams and a child process, and removes the
suffix `_mirrored` from the names of tools. It does not validate, limit, store or count anything.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

_SUFFIX: Final = "_mirrored"

Message = dict[str, Any]


class Forwarder:
    """Forwards between standard input and output and the streams of a child process."""

    def __init__(self, requests: int, responses: int) -> None:
        self._requests, self._responses = requests, responses
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_id = 0
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Forward until standard input ends."""
        loop = asyncio.get_running_loop()
        loop.add_reader(0, self._read_lines, 0, self._take_request)
        loop.add_reader(self._responses, self._read_lines, self._responses, self._take_response)
        await self._ended.wait()

    def _read_lines(self, descriptor: int, take: Callable[[Message], None]) -> None:
        data = os.read(descriptor, 1 << 16)  # a small message comes in one piece
        if not data:
            asyncio.get_running_loop().remove_reader(descriptor)
            self._ended.set()
        for line in data.splitlines():
            take(json.loads(line))

    def _take_request(self, request: Message) -> None:
        if "id" not in request:
            _write(self._requests, request)
            return
        self._tasks.add(task := asyncio.get_running_loop().create_task(self._answer(request)))
        task.add_done_callback(self._tasks.discard)

    def _take_response(self, response: Message) -> None:
        self._waiting.pop(response["id"]).set_result(response)

    async def _answer(self, request: Message) -> None:
        self._last_id += 1
        future = self._waiting[self._last_id] = asyncio.get_running_loop().create_future()
        if request["method"] == "tools/call":
            request["params"]["name"] = request["params"]["name"].removesuffix(_SUFFIX)
        _write(self._requests, {**request, "id": self._last_id})
        response = await future
        for tool in response.get("result", {}).get("tools", ()):
            tool["name"] += _SUFFIX
        _write(1, {**response, "id": request["id"]})


def _write(descriptor: int, message: Message) -> None:
    os.write(descriptor, json.dumps(message).encode() + b"\n")


async def main(command: list[str]) -> None:
    """Start the child process and forward."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:  # noqa: ASYNC220
        assert child.stdin is not None
        assert child.stdout is not None
        await Forwarder(child.stdin.fileno(), child.stdout.fileno()).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))

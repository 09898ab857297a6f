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


async def forward(child: "subprocess.Popen[bytes]") -> None:
    """Forward until standard input ends."""
    assert child.stdin is not None
    assert child.stdout is not None
    requests, responses = child.stdin.fileno(), child.stdout.fileno()
    loop = asyncio.get_running_loop()
    waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
    tasks: set[asyncio.Task[None]] = set()
    ended = asyncio.Event()

    def write(descriptor: int, message: dict[str, Any]) -> None:
        os.write(descriptor, json.dumps(message).encode() + b"\n")

    async def answer(request: dict[str, Any], new_id: int) -> None:
        own_id = request["id"]
        if request["method"] == "tools/call":
            request["params"]["name"] = request["params"]["name"].removesuffix(_SUFFIX)
        future = waiting[new_id] = loop.create_future()
        write(requests, {**request, "id": new_id})
        response = await future
        for tool in response.get("result", {}).get("tools", ()):
            tool["name"] += _SUFFIX
        write(1, {**response, "id": own_id})

    def take_request(request: dict[str, Any]) -> None:
        nonlocal last_id
        if "id" not in request:
            write(requests, request)
            return
        last_id += 1
        tasks.add(task := loop.create_task(answer(request, last_id)))
        task.add_done_callback(tasks.discard)

    def read_lines(descriptor: int, take: Callable[[dict[str, Any]], None]) -> None:
        data = os.read(descriptor, 1 << 16)  # a small message comes in one piece
        if not data:
            loop.remove_reader(descriptor)
            ended.set()
        for line in data.splitlines():
            take(json.loads(line))

    last_id = 0
    loop.add_reader(0, read_lines, 0, take_request)
    loop.add_reader(responses, read_lines, responses, lambda response: waiting.pop(response["id"]).set_result(response))
    await ended.wait()


if __name__ == "__main__":
    with subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        asyncio.run(forward(process))

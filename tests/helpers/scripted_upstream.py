"""An upstream whose tools behave as their names say: `scripted_upstream.py TRANSPORT VERSION LOG [PROPERTIES]`.

With PROPERTIES, it lists also a tool with this number of arguments that clients repeat in HTTP headers.
TRANSPORT is `stdio`, `json` (HTTP with JSON bodies) or `sse` (HTTP with event streams); over HTTP it prints its port.
Each line of LOG is a JSON array: a message that came, and its HTTP headers; `["opened", PORT]` for each connection over
HTTP; `["closed", ID]` if the client closed the connection of a request over HTTP before its response.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRANSPORT, VERSION, LOG = sys.argv[1], sys.argv[2], Path(sys.argv[3])
IS_MODERN = VERSION == "2026-07-28"
STAMP = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if IS_MODERN else {}
HEADED = {"type": "object", "properties": {"place": {"type": "string", "x-mcp-header": "Place"}}}
TOOLS = [{"name": "echo", "inputSchema": HEADED}, {"name": "other", "inputSchema": {"type": "object"}}]
INFO = {"name": "scripted", "version": "1"}
for count in map(int, sys.argv[4:]):
    WIDE = {f"p{n}": {"type": "string", "x-mcp-header": f"H{n}"} for n in range(count)}
    TOOLS.append({"name": "wide", "inputSchema": {"type": "object", "properties": WIDE}})

RELEASED = asyncio.Event()
"""Set by the tool `release`, for which `wait` waits."""
Send = Callable[[dict[str, Any]], None]
"""Sends a message to the client."""


def note(*line: Any) -> None:
    with LOG.open("a") as file:
        file.write(json.dumps(line) + "\n")


def text_result(text: str) -> dict[str, Any]:
    return {**STAMP, "content": [{"type": "text", "text": text}]}


async def answer(message: dict[str, Any], headers: dict[str, str], send: Send) -> None:
    """Send all messages about a request. Without a response, it hangs."""
    identity, method = message["id"], message["method"]

    def respond(result: Any, identity: Any = identity) -> None:
        send({"jsonrpc": "2.0", "id": identity, "result": result})

    def refuse(code: int, text: str, identity: Any = identity, **more: Any) -> None:
        send({"jsonrpc": "2.0", "id": identity, "error": {"code": code, "message": text, **more}})

    if method == "server/discover" and IS_MODERN:
        respond({**STAMP, "supportedVersions": [VERSION], "capabilities": {"tools": {}}, "serverInfo": INFO})
    elif method == "initialize" and not IS_MODERN:
        respond({"protocolVersion": VERSION, "capabilities": {"tools": {}}, "serverInfo": INFO})
    elif method == "tools/list":
        respond({**STAMP, "tools": TOOLS})
    elif method == "tools/call":
        await call(message, headers, respond, refuse, send)
    else:
        refuse(-32601, "Method not found")


async def call(  # noqa: C901, PLR0912  # a table of tools
    message: dict[str, Any],
    headers: dict[str, str],
    respond: Callable[..., None],
    refuse: Callable[..., None],
    send: Send,
) -> None:
    params = message["params"]
    arguments = params.get("arguments", {})
    match params["name"]:
        case "echo":
            await asyncio.sleep(arguments.get("delay", 0))
            respond(text_result(json.dumps([message, headers])))
        case "wait":
            await RELEASED.wait()
            respond(text_result("late"))
        case "release":
            RELEASED.set()
            respond(text_result("released"))
        case "text_id":
            respond(text_result("text_id"), identity=str(message["id"]))
        case "wrong_id":
            respond(text_result("wrong_id"), identity=12345)
        case "twice":
            respond(text_result("first"))
            respond(text_result("second"))
        case "error":
            refuse(7, "It is broken.", data={"a": 1})
        case "error_without_id":
            refuse(8, "It cannot be read.", identity=None)
        case "mismatch":
            refuse(-32020, "Header mismatch")
        case "invalid":
            respond(5)
        case "input":
            respond({"resultType": "input_required", "inputRequests": {"a": {"method": "roots/list"}}})
        case "progress":
            token = params["_meta"]["progressToken"]
            for number in range(3):
                news = {"progressToken": token, "progress": number}
                send({"jsonrpc": "2.0", "method": "notifications/progress", "params": news})
            respond(text_result("progress"))
        case "exit":
            os._exit(0)
        case "hang":
            await asyncio.Event().wait()
        case "freeze":
            time.sleep(600)  # noqa: ASYNC251  # the whole process hangs


async def serve_stdio() -> None:
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=1 << 26)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    def send(message: dict[str, Any]) -> None:
        print(json.dumps(message), flush=True)  # noqa: T201  # the transport

    tasks = set()
    while line := await reader.readline():
        message = json.loads(line)
        note(message, {})
        if "id" in message and "method" in message:
            tasks.add(asyncio.create_task(answer(message, {}, send)))


async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    note("opened", writer.get_extra_info("peername")[1])
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            first, *lines = head.decode().splitlines()
            headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines if line)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            if not first.startswith("POST"):
                writer.write(b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n")
            elif not await serve_post(json.loads(body), headers, reader, writer):
                break
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def serve_post(
    message: dict[str, Any], headers: dict[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Answer one POST; return whether the connection stays open."""
    note(message, headers)
    if "id" not in message or "method" not in message:
        writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
        return True
    sent: list[dict[str, Any]] = []
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n"
    if TRANSPORT == "sse":
        writer.write(head % b"text/event-stream" + b"transfer-encoding: chunked\r\n\r\n")

    def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if TRANSPORT == "sse":
            event = f"event: message\ndata: {json.dumps(message)}\n\n".encode()
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))

    answering = asyncio.create_task(answer(message, headers, send))
    closing = asyncio.create_task(reader.read(1))
    await asyncio.wait((answering, closing), return_when=asyncio.FIRST_COMPLETED)
    if not answering.done():
        answering.cancel()
        note("closed", message["id"])
        return False
    closing.cancel()
    await asyncio.wait((closing,))
    if TRANSPORT == "sse":
        writer.write(b"0\r\n\r\n")
    else:
        body = json.dumps(sent[0]).encode()
        writer.write(head % b"application/json" + b"content-length: %d\r\n\r\n%b" % (len(body), body))
    return True


async def serve_http() -> None:
    server = await asyncio.start_server(serve_connection, "127.0.0.1", 0, limit=1 << 26)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201
    await server.serve_forever()


asyncio.run(serve_stdio() if TRANSPORT == "stdio" else serve_http())

"""An upstream of the 2025 version over stdio that answers with very many small parts, or floods its output."""

import json
import os
import sys
import time

TOOLS = ("hear", "emit", "flood", "write")
COUNT = 1_000_000 if "HOSTILE_FULL" in os.environ else 300_000
LEVELS = 600
DEEP = b"[" * 500_000 + b"]" * 500_000
PAYLOADS = {
    "members": lambda: b'{"content":[],' + members() + b"}",
    "structured": lambda: b'{"content":[],"structuredContent":{' + members() + b"}}",
    "items": lambda: b'{"content":[],"structuredContent":{"items":[' + b",".join([b"1"] * COUNT) + b"]}}",
    "blocks": lambda: b'{"content":[' + b",".join([b'{"type":"text","text":"x"}'] * COUNT)[: 15 << 20] + b"]}",
    "meta": lambda: b'{"content":[{"type":"text","text":"hello"}],"_meta":{' + members() + b"}}",
    "error": lambda: b'{"isError":true,"content":[],"structuredContent":{' + members() + b"}}",
}
LINES = {
    "request": lambda: b'{"jsonrpc":"2.0","id":"r","method":"vendor/x","params":{"a":[' + arrays(8 * COUNT) + b"]}}",
    "too deep": lambda: b'{"jsonrpc":"2.0","method":"x","params":{"a":[' + arrays(8 * COUNT) + b"," + DEEP + b"]}}",
}
"""Messages of a server that have many arrays and few commas."""
NOTHING = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
FLOODS = {
    "garbage": b"this is not JSON",
    "notifications": b'{"jsonrpc":"2.0","method":"vendor/unknown","params":{"a":1}}',
    "logs": b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"x"}}',
    "progress": b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"z","progress":1}}',
    "unknown ids": b'{"jsonrpc":"2.0","id":987654321,"result":{}}',
    "requests": b'{"jsonrpc":"2.0","id":"r","method":"ping"}',
    "changes": NOTHING,
    "empty lines": b"",
    "batches": b'[{"jsonrpc":"2.0","method":"vendor/unknown"},{"jsonrpc":"2.0","id":1,"method":"ping"}]',
}


def members() -> bytes:
    return b",".join(b'"k%06d":%d' % (index, index % 10) for index in range(COUNT))


def arrays(count: int) -> bytes:
    """So many arrays, nested in each other as deep as the gateway accepts, without the brackets around them."""
    return b",".join([b"[" * LEVELS + b"]" * LEVELS] * (count // LEVELS))


def write(data: bytes) -> None:
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.buffer.flush()


def flood(kind: str, seconds: float) -> None:
    """Write one line again and again, as fast as it is read."""
    until = time.monotonic() + seconds
    stream = sys.stderr.buffer if kind == "stderr" else sys.stdout.buffer
    block = (FLOODS.get(kind, b"an error " * 10) + b"\n") * 500
    while time.monotonic() < until:
        stream.write(block)
        stream.flush()


def call(name: str, arguments: dict[str, object]) -> bytes:
    if name == "emit":
        return cut_block(PAYLOADS[str(arguments["kind"])]())
    if name == "write":
        write(LINES[str(arguments["kind"])]())
    if name == "flood":
        flood(str(arguments["kind"]), float(str(arguments["seconds"])))
    block = {"type": "text", "text": f"{len(json.dumps(arguments))} characters"}
    return json.dumps({"content": [block]}).encode()


def cut_block(payload: bytes) -> bytes:
    """Blocks that were cut to fit end with a whole one."""
    end = b'{"type":"text","text":"x"}'
    return payload[: payload.rindex(end) + len(end)] + b"]}" if end in payload else payload


def main() -> None:
    for line in sys.stdin.buffer:
        message = json.loads(line)
        identity, params = json.dumps(message.get("id")).encode(), message.get("params") or {}
        if message.get("method") == "initialize":
            info = {"name": "many", "version": "1"}
            initialized = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}, "logging": {}},
                "serverInfo": info,
            }
            result = json.dumps(initialized).encode()
        elif message.get("method") == "tools/list":
            result = json.dumps({"tools": [{"name": one, "inputSchema": {"type": "object"}} for one in TOOLS]}).encode()
        elif message.get("method") == "tools/call":
            result = call(params["name"], params.get("arguments") or {})
        elif "id" in message and "method" in message:
            write(b'{"jsonrpc":"2.0","id":' + identity + b',"error":{"code":-32601,"message":"no"}}')
            continue
        else:
            continue
        write(b'{"jsonrpc":"2.0","id":' + identity + b',"result":' + result + b"}")


if __name__ == "__main__":
    main()

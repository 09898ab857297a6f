"""An upstream that costs next to nothing: answers are bytes made beforehand, arguments are not parsed.

Speaks MCP 2025-11-25 over stdio. Tools: `grid(form)`, `take(raw_grid)`, `sized(size)`, `small(text)`.
"""

import json
import random
import re
import sys
import zlib
from collections.abc import Callable
from functools import cache

SIDE = 128
TOOLS = {"grid": ("form",), "take": ("raw_grid",), "sized": ("size",), "small": ("text",)}
INPUTS = {
    "form": {"type": "string"},
    "raw_grid": {"type": "array", "items": {}},
    "size": {"type": "integer"},
    "text": {"type": "string"},
}
_NAME = re.compile(rb'"name":\s*"(\w+)"')
_ID = re.compile(rb'"id":\s*(\d+)')
_SIZE = re.compile(rb'"size":\s*(\d+)')
_FORM = re.compile(rb'"form":\s*"([\w-]+)"')


@cache
def grid(form: str) -> bytes:
    """The members of a result with a 128 x 128 x 128 grid: `short` or `long` floats, once or `doubled` as text."""
    numbers = random.Random(0)  # noqa: S311  # floats, not secrets
    digits = 6 if form.startswith("short") else 17
    rows = [[[round(numbers.random(), digits) for _ in range(SIDE)] for _ in range(SIDE)] for _ in range(SIDE)]
    value = json.dumps({"raw_grid": rows, "shape": [SIDE] * 3})
    text = json.dumps(json.dumps(json.loads(value), indent=2)) if form.endswith("doubled") else ""
    content = f'[{{"type":"text","text":{text}}}]' if text else "[]"
    if form.endswith("text"):
        return f'"content":[{{"type":"text","text":{json.dumps(value)}}}]'.encode()
    return f'"content":{content},"structuredContent":{value}'.encode()


@cache
def sized(size: int) -> bytes:
    """The members of a result that is one text of this many bytes."""
    line = "0123456789 abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ.\\n"
    text = (line * (size // len(line) + 1))[:size].rstrip("\\")
    return f'"content":[{{"type":"text","text":"{text}"}}]'.encode()


def take(line: bytes) -> bytes:
    """Return the length and the checksum of the received value."""
    start = line.index(b'"raw_grid"')
    body = line[line.index(b"[", start) : line.rindex(b"]") + 1]
    return f'"content":[{{"type":"text","text":"{len(body)} {zlib.crc32(body)}"}}]'.encode()


CALLS: dict[bytes, Callable[[bytes], bytes]] = {
    b"grid": lambda line: grid(_FORM.search(line)[1].decode()),  # type: ignore[index]
    b"take": take,
    b"sized": lambda line: sized(int(_SIZE.search(line)[1])),  # type: ignore[index]
    b"small": lambda _line: b'"content":[{"type":"text","text":"ok"}]',
}


def answer(line: bytes) -> tuple[bytes, ...]:
    """The pieces of the response to one request."""
    identity = _ID.search(line[:200]) or _ID.search(line[-200:])
    if identity is None:
        return ()
    head = b'{"jsonrpc":"2.0","id":' + identity[1]
    if b'"initialize"' in line[:400]:
        result = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "bench", "version": "1"},
        }
        return (head, b',"result":', json.dumps(result).encode(), b"}\n")
    if b'"tools/list"' in line[:400]:
        tools = [
            {
                "name": name,
                "inputSchema": {"type": "object", "properties": {key: INPUTS[key] for key in keys}, "required": keys},
            }
            for name, keys in TOOLS.items()
        ]
        return (head, b',"result":', json.dumps({"tools": tools}).encode(), b"}\n")
    if b'"tools/call"' not in line[:400]:
        return (head, b',"error":{"code":-32601,"message":"Method not found"}}\n')
    name = _NAME.search(line[:400]) or _NAME.search(line[-400:])
    return (head, b',"result":{', CALLS[name[1] if name else b"small"](line), b"}}\n")


def main() -> None:
    """Serve until the input ends."""
    for form in sys.argv[1:]:
        grid(form)
    for line in sys.stdin.buffer:
        for piece in answer(line):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

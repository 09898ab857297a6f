"""A scripted 2025-11-25 server that reports its surroundings: `surroundings.py [ARGS]...`."""

import json
import os
import sys
from typing import Any

INFO = {
    "name": "surroundings",
    "title": "All around",
    "version": "3.1",
    "description": "Looks around.",
    "websiteUrl": "https://example.com/around",
    "icons": [{"src": "https://example.com/around.png", "mimeType": "image/png", "sizes": ["48x48"]}],
}


def answer(message: dict[str, Any]) -> dict[str, Any]:
    match message["method"]:
        case "initialize":
            return {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": INFO,
            }
        case "tools/list":
            return {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]}
    found = {"env": dict(os.environ), "cwd": os.getcwd(), "args": sys.argv[1:]}  # noqa: PTH109  # as the system says it
    return {"content": [{"type": "text", "text": "look: " + json.dumps(found)}]}


os.write(2, b"listening, \xff\xfe\n")
for line in sys.stdin:
    given = json.loads(line)
    if "id" in given:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": given["id"], "result": answer(given)}) + "\n")
        sys.stdout.flush()

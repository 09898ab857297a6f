"""A 2025-11-25 upstream over stdio: each call of its tool `work` also sends messages about the call before it."""

import json
import sys
from typing import Any

TOOLS = [{"name": "work", "inputSchema": {"type": "object"}}]
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}, "logging": {}},
    "serverInfo": {"name": "late", "version": "1"},
}


def write(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)  # noqa: T201  # the transport


before = "nothing"
for message in map(json.loads, sys.stdin):
    identity, method = message.get("id"), message.get("method")
    if identity is None or method is None:
        continue
    if method == "tools/call":
        write(method="notifications/message", params={"level": "error", "data": f"a line about {before}"})
        asked = {"message": f"a request about {before}", "requestedSchema": {"type": "object", "properties": {}}}
        write(id=f"of {identity}", method="elicitation/create", params=asked)
        before = message["params"]["arguments"]["subject"]
    results = {"initialize": HELLO, "tools/list": {"tools": TOOLS}, "tools/call": {"content": []}}
    write(id=identity, result=results.get(method, {}))

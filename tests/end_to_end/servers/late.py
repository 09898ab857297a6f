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


def write_about(subject: str, identity: int) -> None:
    """A log message, an elicitation request and a sampling request."""
    write(method="notifications/message", params={"level": "error", "data": f"a line about {subject}"})
    asked = {"message": f"a request about {subject}", "requestedSchema": {"type": "object", "properties": {}}}
    write(id=f"form of {identity}", method="elicitation/create", params=asked)
    words = {"role": "user", "content": {"type": "text", "text": f"a prompt about {subject}"}}
    write(id=f"prompt of {identity}", method="sampling/createMessage", params={"messages": [words], "maxTokens": 9})


before = ""
for message in map(json.loads, sys.stdin):
    identity, method = message.get("id"), message.get("method")
    if identity is None or method is None:
        continue
    if method == "tools/call":
        if before:
            write_about(before, identity)
        before = message["params"]["arguments"]["subject"]
        if message["params"]["arguments"].get("hangs"):
            continue
    results = {"initialize": HELLO, "tools/list": {"tools": TOOLS}, "tools/call": {"content": []}}
    write(id=identity, result=results.get(method, {}))

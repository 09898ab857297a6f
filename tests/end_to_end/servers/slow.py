"""A scripted 2025-11-25 upstream with slow calls: `slow.py LOG`. Each call is logged.

`work`: answers after `steps` reports of progress, each `pause` seconds after the last, with `message` if given, and not
before the file `gate` exists, if given. `fall`, `read`: die the first time that they are called after their file
LOG.dead is absent, and answer later; `read` is marked read-only.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

LOG = Path(sys.argv[1])
DEAD = Path(f"{LOG}.dead")
TOOLS = [
    {"name": "work", "inputSchema": {"type": "object"}},
    {"name": "fall", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": False}},
    {"name": "read", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
]
INITIALIZED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "slow", "version": "1"},
}


def write(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def call(identity: Any, params: dict[str, Any]) -> None:
    name, arguments = params["name"], params.get("arguments") or {}
    with LOG.open("a") as log:
        log.write(f"{name}\n")
    if name != "work" and not DEAD.exists():
        DEAD.touch()
        os._exit(3)
    for step in range(arguments.get("steps", 0)):
        time.sleep(arguments["pause"])
        token = (params.get("_meta") or {}).get("progressToken")
        more = {"message": arguments["message"], "total": arguments["steps"]} if "message" in arguments else {}
        write({"method": "notifications/progress", "params": {"progressToken": token, "progress": step + 1, **more}})
    while "gate" in arguments and not Path(arguments["gate"]).exists():
        time.sleep(0.01)
    write({"id": identity, "result": {"content": [{"type": "text", "text": "done"}]}})


for line in sys.stdin:
    asked = json.loads(line)
    match asked.get("method"):
        case "initialize":
            write({"id": asked["id"], "result": INITIALIZED})
        case "tools/list":
            write({"id": asked["id"], "result": {"tools": TOOLS}})
        case "tools/call":
            call(asked["id"], asked["params"])
        case _ if "id" in asked:
            write({"id": asked["id"], "error": {"code": -32601, "message": "no such method"}})

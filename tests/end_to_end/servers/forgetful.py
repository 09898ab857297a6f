"""A server that accepts subscriptions, and refuses them after its tool `forget` ended its process.

`python forgetful.py FILE`; the file gets a line for each subscription, and one for each that is ended.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

RESULTS = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"resources": {"subscribe": True}, "tools": {}},
        "serverInfo": {"name": "forgetful", "version": "1"},
    },
    "resources/list": {"resources": [{"uri": "note:one", "name": "one"}]},
    "tools/list": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("forget", "count")]},
}


def answer(log: Path, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the result or the error of a request."""
    subscriptions = log.read_text().count("subscribe")
    if method == "tools/call" and params["name"] == "forget":
        log.write_text("forgotten\n")
        os._exit(1)
    if method == "tools/call":
        return {"result": {"content": [{"type": "text", "text": str(subscriptions)}]}}
    if method == "resources/subscribe":
        log.write_text(f"{log.read_text()}subscribe\n")
        if "forgotten" in log.read_text():
            return {"error": {"code": -32002, "message": "Resource not found"}}
    if method == "resources/unsubscribe":
        log.write_text(f"{log.read_text()}ended\n")
    return {"result": RESULTS.get(method, {})}


def main() -> None:
    log = Path(sys.argv[1])
    log.touch()
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            answered = answer(log, message["method"], message.get("params") or {})
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answered}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

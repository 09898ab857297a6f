"""A scripted 2025-11-25 upstream with a tool that runs only as a task: `tasks.py LOG`. Each method is logged.

`research`: its task ends at the second `tasks/get`, with `size` characters. With `asks`, it requires input first, and
requests it after `tasks/result`. With `hangs`, it does not end. With `fails`, its result is a JSON-RPC error.
With `in_meta`, the task is where FastMCP 2 writes it. With `announces`, the interval of polls is a minute, and the
server announces the end. `plain` is an ordinary tool.
"""

import json
import sys
from pathlib import Path
from typing import Any

LOG = Path(sys.argv[1])
TOOLS = [
    {"name": "research", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}},
    {"name": "plain", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "optional"}},
]
RESULTS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}, "tasks": {"requests": {"tools": {"call": {}}}, "cancel": {}}},
        "serverInfo": {"name": "tasks", "version": "1"},
    },
    "tools/list": {"tools": TOOLS},
}
ABOUT = {"io.modelcontextprotocol/related-task": {"taskId": "t"}}
FORM = {"message": "Which?", "requestedSchema": {"type": "object", "properties": {}}, "_meta": ABOUT}


class Server:
    """One task at a time."""

    def __init__(self) -> None:
        self.arguments: dict[str, Any] = {}
        self.polls = 0
        self.waiting: Any = None
        """The id of a `tasks/result` that waits for input."""

    def write(self, **message: Any) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    def describe(self) -> dict[str, Any]:
        status = "working" if self.polls < 2 or "hangs" in self.arguments else "completed"
        status = "input_required" if "asks" in self.arguments else status
        times = dict.fromkeys(("createdAt", "lastUpdatedAt"), "2025-11-25T10:30:00Z")
        interval = 60_000 if "announces" in self.arguments else 1
        return {"taskId": "t", "status": status, "ttl": None, "pollInterval": interval, **times}

    def finish(self, identity: Any, text: str) -> None:
        if "fails" in self.arguments:
            self.write(id=identity, error={"code": -32050, "message": "No such topic"})
            return
        self.write(id=identity, result={"content": [{"type": "text", "text": text}], "_meta": ABOUT})

    def call(self, identity: Any, params: dict[str, Any]) -> None:
        self.arguments, self.polls = params.get("arguments") or {}, 0
        if "task" in params and "in_meta" in self.arguments:
            meta = {"modelcontextprotocol.io/task": {"taskId": "t", "status": "working"}}
            self.write(id=identity, result={"content": [], "_meta": meta})
        elif "task" in params:
            self.write(id=identity, result={"task": self.describe()})
        elif params["name"] == "plain":
            self.finish(identity, "plain")
        else:
            self.write(id=identity, error={"code": -32601, "message": "This tool requires task augmentation"})

    def answer(self, method: str, identity: Any) -> None:
        """Answer a request about the task."""
        if method == "tasks/get":
            self.polls += 1
            self.write(id=identity, result=self.describe())
            if "announces" in self.arguments:
                self.write(method="notifications/tasks/status", params={**self.describe(), "status": "completed"})
        elif method == "tasks/cancel":
            self.write(id=identity, result={**self.describe(), "status": "cancelled"})
        elif "asks" in self.arguments:
            self.waiting = identity
            self.write(id="q", method="elicitation/create", params=FORM)
        else:
            self.finish(identity, "x" * self.arguments.get("size", 1))

    def take(self, message: dict[str, Any]) -> None:
        identity, method = message.get("id"), message.get("method", "response")
        with LOG.open("a") as log:
            log.write(f"{method}\n")
        if method in RESULTS:
            self.write(id=identity, result=RESULTS[method])
        elif method == "tools/call":
            self.call(identity, message["params"])
        elif method.startswith("tasks/"):
            self.answer(method, identity)
        elif method == "response":
            self.finish(self.waiting, json.dumps(message.get("result")))


server = Server()
for line in sys.stdin:
    server.take(json.loads(line))

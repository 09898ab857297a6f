"""An upstream of protocol version 2025-11-25 with prepared responses.

`prepared.py FILE`: the file contains a JSON object with the response to each tool's call. A response has the member
`result` or `error`; the member `before` is a list of messages that the upstream sends first, in which the string
`TOKEN` stands for the progress token of the call. The upstream waits for the response to each request among them,
and gives the request an id of its own. It does not wait for the responses to the requests in the member `unawaited`. A
call with the member `awaits`, the id of such a request, returns the client's response as a text.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

responses: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
late: dict[str, Any] = {}
"""The responses to requests that no call waited for, by their ids."""
suspended: dict[str, Iterator[str]] = {}
"""Calls that wait for the response to a request of this upstream, by its id."""


def write(message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def respond(message: Any) -> None:
    method = message["method"]
    if method == "initialize":
        info = {"name": "prepared", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        write({"id": message["id"], "result": result})
    elif method == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in responses]
        write({"id": message["id"], "result": {"tools": tools}})
    elif method == "tools/call":
        proceed(call(message))
    else:
        write({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})


def proceed(answering: Iterator[str]) -> None:
    """Continue a call up to its next request to the client, or its end."""
    if request_id := next(answering, None):
        suspended[request_id] = answering


def call(message: Any) -> Iterator[str]:
    """Answer a call; yield the id of each request to the client."""
    params = message["params"]
    response = responses[params["name"]]
    token = json.dumps(params.get("_meta", {}).get("progressToken"))
    for before in response.get("before", []):
        sent = json.loads(json.dumps(before).replace('"TOKEN"', token))
        if "id" not in sent:
            write(sent)
            continue
        sent["id"] = f"{message['id']}-{sent['id']}"
        write(sent)
        yield sent["id"]
    for request in response.get("unawaited", []):
        write(request)
    if (awaited := response.get("awaits")) is not None:
        if awaited not in late:
            yield awaited
        text = json.dumps(late[awaited])
        response = {"result": {"content": [{"type": "text", "text": text}]}}
    write({"id": message["id"], **{key: value for key, value in response.items() if key in ("result", "error")}})


for line in sys.stdin:
    received = json.loads(line)
    if "id" in received and "method" in received:
        respond(received)
        continue
    late[received.get("id")] = received
    if received.get("id") in suspended:
        proceed(suspended.pop(received["id"]))

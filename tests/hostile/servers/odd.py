"""An upstream over stdio that writes chosen lines. `odd.py VERSION FILE`.

FILE is a JSON object. Its keys are methods, names of tools for calls, the argument `case` of calls, `again` for calls
that bring a state back, and `response` for responses; its values are the lines that the upstream writes for such a
message. In a line `$id` is the id of the message, `$call` the id of the last call, `$received` the text of the message,
and `$count` a number that differs in each message. A method without lines gets an ordinary answer.
"""

import json
import sys
from pathlib import Path
from typing import Any

VERSION = sys.argv[1]
MODERN = VERSION == "2026-07-28"
LINES: dict[str, list[str]] = json.loads(Path(sys.argv[2]).read_text())
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("hear", "odd")]
STAMP = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if MODERN else {}
CAPABILITIES = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "prompts": {},
    "completions": {},
}
SERVER = {"capabilities": CAPABILITIES, "serverInfo": {"name": "odd", "version": "1"}}
RESULTS: dict[str, dict[str, Any]] = {
    "server/discover" if MODERN else "initialize": {
        **SERVER,
        "supportedVersions": [VERSION],
        "protocolVersion": VERSION,
    },
    "tools/list": {"tools": TOOLS},
    "tools/call": {"content": [{"type": "text", "text": "hello"}]},
    "resources/list": {"resources": [{"uri": "odd://a", "name": "a"}]},
    "resources/templates/list": {"resourceTemplates": []},
    "resources/read": {"contents": [{"uri": "odd://a", "text": "hello"}]},
    "resources/subscribe": {},
    "prompts/list": {"prompts": [{"name": "p"}]},
    "prompts/get": {"messages": []},
    "completion/complete": {"completion": {"values": []}},
}


def write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    call = "null"
    for count, line in enumerate(sys.stdin):
        message = json.loads(line)
        method, params = message.get("method", "response"), message.get("params") or {}
        identity = json.dumps(message.get("id"))
        call = identity if method == "tools/call" else call
        case = (params.get("arguments") or {}).get("case")
        keys = ("again" if "requestState" in params else "", case, params.get("name"), method)
        chosen = next((LINES[key] for key in keys if key in LINES), None)
        if chosen is not None:
            values = {"$id": identity, "$call": call, "$received": json.dumps(line), "$count": str(count)}
            for one in chosen:
                for name, value in values.items():
                    one = one.replace(name, value)  # noqa: PLW2901  # each of them
                write(one)
        elif method in RESULTS:
            result = json.dumps({**STAMP, **RESULTS[method]})
            write(f'{{"jsonrpc":"2.0","id":{identity},"result":{result}}}')
        elif method != "response" and "id" in message:
            write(f'{{"jsonrpc":"2.0","id":{identity},"error":{{"code":-32601,"message":"Method not found"}}}}')


if __name__ == "__main__":
    main()

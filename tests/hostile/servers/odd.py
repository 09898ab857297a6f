"""An upstream over stdio that writes chosen lines. `odd.py VERSION FILE`.

FILE is a JSON object. Its keys are methods, and names of tools for calls; its values are the lines that the upstream
writes for such a request. `$id` in a line is the id of the request, `$count` differs in each request. A method without
lines gets an ordinary answer.
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
    for count, line in enumerate(sys.stdin):
        message = json.loads(line)
        method, identity = message.get("method"), json.dumps(message.get("id"))
        chosen = LINES.get((message.get("params") or {}).get("name") or method, LINES.get(method))
        if chosen is not None:
            for one in chosen:
                write(one.replace("$id", identity).replace("$count", str(count)))
        elif method in RESULTS:
            result = json.dumps({**STAMP, **RESULTS[method]})
            write(f'{{"jsonrpc":"2.0","id":{identity},"result":{result}}}')
        elif method is not None and "id" in message:
            write(f'{{"jsonrpc":"2.0","id":{identity},"error":{{"code":-32601,"message":"Method not found"}}}}')


if __name__ == "__main__":
    main()

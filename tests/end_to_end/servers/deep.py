"""A 2025-11-25 upstream on stdio whose messages have members that are nested deeper than a client's SDK writes them."""

import json
import sys
from typing import Any

LEVELS = 300
DEEP = "[" * LEVELS + "]" * LEVELS
CAPABILITIES = {"tools": {}, "resources": {"subscribe": True}}
INFO = {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": {"name": "deep", "version": "1"}}
RESULTS: dict[str, Any] = {
    "initialize": INFO,
    "tools/list": {"tools": [{"name": "nest", "inputSchema": {"type": "object"}}]},
    "resources/list": {"resources": [{"uri": "deep://a", "name": "a"}]},
    "resources/templates/list": {"resourceTemplates": []},
    "resources/subscribe": {},
}


def write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


for message in map(json.loads, sys.stdin):
    if message.get("method") == "tools/call":
        params = f'{{"uri":"deep://a","_meta":{{"x":{DEEP}}}}}'
        write(f'{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{params}}}')
        result = f'{{"content":[{{"type":"text","text":"done"}}],"_meta":{{"x":{DEEP}}}}}'
        write(f'{{"jsonrpc":"2.0","id":{message["id"]},"result":{result}}}')
    elif "id" in message:
        write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": RESULTS[message["method"]]}))

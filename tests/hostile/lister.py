"""A stdio upstream that lists the tools of a file, whatever they are, and answers `done` to every call.

`python lister.py FILE`; the file is a JSON array of tools. Each call of a tool whose name begins with `relist`
announces that the list has changed.
"""

import json
import sys
from pathlib import Path
from typing import Any


def write(message: str) -> None:
    sys.stdout.write(f'{{"jsonrpc":"2.0",{message}}}\n')
    sys.stdout.flush()


def main() -> None:
    listing = Path(sys.argv[1])
    for line in sys.stdin:
        message: dict[str, Any] = json.loads(line)
        identity, method = json.dumps(message.get("id")), message.get("method")
        if method == "initialize":
            about = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "lister", "version": "1"},
            }
            write(f'"id":{identity},"result":{json.dumps(about)}')
        elif method == "tools/list":
            write(f'"id":{identity},"result":{{"tools":{listing.read_text()}}}')
        elif method == "tools/call":
            if message["params"]["name"].startswith("relist"):
                write('"method":"notifications/tools/list_changed"')
            write(f'"id":{identity},"result":{{"content":[{{"type":"text","text":"done"}}]}}')
        elif "id" in message:
            write(f'"id":{identity},"error":{{"code":-32601,"message":"unknown"}}')


if __name__ == "__main__":
    main()

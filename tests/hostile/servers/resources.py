"""An upstream of the 2025 version over stdio that lists many resources and templates, and reads every URI.

With the argument `variables`, each of its templates has a hundred variables. Any other argument is its only template.
"""

import json
import sys
from typing import Any

COUNT = 20_000
VARIABLES = "file:///v/" + "".join(f"{{v{index}}}a" for index in range(100))
"""A template that takes long to compare with a long URI."""

LISTS = {
    "resources/list": {"resources": [{"uri": f"file:///r/{index}", "name": "r"} for index in range(COUNT)]},
    "resources/templates/list": {
        "resourceTemplates": [{"uriTemplate": f"file:///t/{index}/{{x}}", "name": "t"} for index in range(COUNT)]
    },
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"resources": {}},
        "serverInfo": {"name": "resources", "version": "1"},
    },
}


if sys.argv[1:] == ["variables"]:
    LISTS["resources/templates/list"] = {
        "resourceTemplates": [{"uriTemplate": f"{VARIABLES}{index}", "name": "t"} for index in range(COUNT // 2)]
    }
elif sys.argv[1:]:
    LISTS["resources/list"] = {"resources": []}
    LISTS["resources/templates/list"] = {"resourceTemplates": [{"uriTemplate": sys.argv[1], "name": "t"}]}


def answer(method: str, params: dict[str, Any]) -> object:
    if method == "resources/read":
        text = " ".join(["read", params["uri"], *(f"by {one}" for one in sys.argv[1:] if one != "variables")])
        return {"contents": [{"uri": params["uri"], "text": text}]}
    return LISTS.get(method, {})


def main() -> None:
    for line in sys.stdin:
        message: dict[str, Any] = json.loads(line)
        if "id" in message:
            result = answer(message["method"], message.get("params") or {})
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

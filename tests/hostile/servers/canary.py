"""An upstream over stdio with a canary in every field. `canary.py VERSION`; see `upstreams/rebuilt_messages.py`."""

import json
import re
import sys
from typing import Any

VERSION = sys.argv[1] if len(sys.argv) > 1 else "2025-11-25"
MODERN = VERSION == "2026-07-28"
URI = "x://plain/thing"
TOOLS = ("work", "ask", "refuse")


def mark(message: str, name: str) -> str:
    """The canary of a field: a text that occurs only there."""
    return "c4nary-" + re.sub(r"[^a-z0-9]+", "-", f"{message} {name}".lower()) + "-end"


def marked(message: str, *names: str) -> dict[str, Any]:
    return {name: mark(message, name) for name in names}


def meta(message: str) -> dict[str, Any]:
    return {"_meta": {"example.com/x": mark(message, "_meta")}}


def write(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def notify(method: str, params: dict[str, Any]) -> None:
    write({"method": method, "params": params})


def greeting() -> dict[str, Any]:
    where = "initialize, server/discover"
    info = {"name": mark(where, "serverInfo"), "version": "1"}
    capabilities = {
        "tools": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "prompts": {"listChanged": True},
        "completions": {},
        "logging": {},
    }
    result = {"capabilities": capabilities, "instructions": mark(where, "instructions"), **meta(where)}
    if MODERN:
        versions = {"supportedVersions": [VERSION], "resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
        result["_meta"]["io.modelcontextprotocol/serverInfo"] = info
        return {**result, **versions, "serverInfo": info}
    return {**result, "protocolVersion": VERSION, "serverInfo": info}


def work(params: dict[str, Any]) -> dict[str, Any]:
    """Say everything unasked; then a result."""
    token = (params.get("_meta") or {}).get("progressToken")
    where = "notifications/progress"
    for more in ({"progress": 1, "total": 2, "message": mark(where, "message"), **meta(where)},
                 {"progress": mark(where, "progress")}, {"progress": {"a": mark(where, "progress")}},
                 {"progress": 2, "total": mark(where, "total")}):  # fmt: skip
        notify(where, {"progressToken": token, **more})
    notify(where, {"progressToken": mark(where, "progressToken"), "progress": 1})
    where = "notifications/message"
    notify(where, {"level": "error", **marked(where, "logger", "data"), **meta(where)})
    notify(where, {"level": mark(where, "level"), "data": 1})
    where = "notifications/elicitation/complete"
    notify(where, {**marked(where, "elicitationId"), **meta(where)})
    where = "notifications/cancelled"
    notify(where, {"requestId": mark(where, "requestId"), **marked(where, "reason"), **meta(where)})
    for kind in ("tools", "resources", "prompts"):
        notify(f"notifications/{kind}/list_changed", meta(f"notifications/{kind}/list_changed"))
    where = "unknown notifications"
    notify(mark(where, "method"), marked(where, "params"))
    where = "notifications/resources/updated"
    notify(where, {"uri": f"{URI}/{mark(where, 'uri')}", **meta(where)})
    where = "tools/call"
    content = [{"type": "text", "text": mark(where, "content")}]
    complete = {"resultType": "complete"} if MODERN else {}
    return {
        "content": content,
        "structuredContent": {mark(where, "structuredContent"): mark(where, "structuredContent")},
        **marked(where, "others"),
        **meta(where),
        **complete,
    }


def questions() -> dict[str, dict[str, Any]]:
    where = "elicitation/create"
    form = {"type": "object", "properties": {"a": {"type": "string", "title": mark(where, "requestedSchema")}}}
    url = {"mode": "url", "url": f"https://example.com/{mark(where, 'url')}", "message": mark(where, "message")}
    return {
        "form": {
            "method": where,
            "params": {"message": mark(where, "message"), "requestedSchema": form, **meta(where)},
        },
        "url": {"method": where, "params": {**url, "elicitationId": mark(where, "elicitationId"), **meta(where)}},
        "roots": {"method": "roots/list", "params": {**meta("roots/list"), **marked("roots/list", "params")}},
    }


SAMPLING = {
    "messages": [{"role": "user", "content": {"type": "text", "text": mark("sampling/createMessage", "params")}}],
    "maxTokens": 1,
}


def refusal(code: int) -> dict[str, Any]:
    where = f"error {code}" if code in (-32021, -32042) else "error"
    request = {
        "mode": "url",
        "url": "https://example.com/",
        "elicitationId": "e",
        "message": mark(where, "data.elicitations"),
    }
    data = {
        "elicitations": [{**request, "elicitationId": "e"}],
        "requiredCapabilities": {mark(where, "data.requiredCapabilities"): {}},
    }
    if where == "error":
        data = marked(where, "data")
    return {"code": code, "message": mark("error", "message"), "data": data}


def _results() -> dict[str, dict[str, Any]]:
    tools = [{"name": one, "inputSchema": {"type": "object"}, "title": mark("tools/list", "tools")} for one in TOOLS]
    resource = {"uri": URI, "name": "thing", "title": mark("resources/list", "resources")}
    where = "resources/templates/list"
    template = {"uriTemplate": "y://{a}", "name": "t", "title": mark(where, "resourceTemplates")}
    prompt = {"name": "p", "title": mark("prompts/list", "prompts"), "arguments": [{"name": "a"}]}
    message = {"role": "user", "content": {"type": "text", "text": mark("prompts/get", "messages")}}
    return {
        "tools/list": {"tools": tools},
        "resources/list": {"resources": [resource]},
        where: {"resourceTemplates": [template]},
        "prompts/list": {"prompts": [prompt]},
        "resources/read": {"contents": [{"uri": URI, "text": mark("resources/read", "contents")}]},
        "prompts/get": {"messages": [message], **marked("prompts/get", "description")},
        "completion/complete": {"completion": {"values": [mark("completion/complete", "completion")]}},
    }


RESULTS = _results()
EMPTY = ("resources/subscribe", "resources/unsubscribe", "logging/setLevel", "ping")


def result_of(method: str) -> dict[str, Any] | None:
    if method in EMPTY:
        return meta("empty results")
    complete = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"} if MODERN else {}
    return {**RESULTS[method], **meta(method), **complete} if method in RESULTS else None


class Server:
    def __init__(self) -> None:
        self.waiting: Any = None
        self.left = 0

    def call(self, identity: Any, params: dict[str, Any]) -> None:
        name, arguments = params["name"], params.get("arguments") or {}
        if name == "refuse":
            write({"id": identity, "error": refusal(arguments["code"])})
        elif name == "ask" and MODERN:
            self.ask_again(identity, params)
        elif name == "ask":
            self.waiting, self.left = identity, 4
            for key, request in questions().items():
                write({"id": key, **request})
            write({"id": "sampling", "method": "sampling/createMessage", "params": SAMPLING})
        else:
            write({"id": identity, "result": work(params)})

    def ask_again(self, identity: Any, params: dict[str, Any]) -> None:
        if params.get("inputResponses"):
            done = [{"type": "text", "text": ",".join(sorted(params["inputResponses"]))}]
            write({"id": identity, "result": {"content": done, "resultType": "complete"}})
            return
        where = "input required"
        requests = {mark(where, "keys") + key: request for key, request in questions().items()}
        result = {"inputRequests": requests, "requestState": mark(where, "requestState"), **meta(where)}
        write({"id": identity, "result": {"resultType": "input_required", **result}})

    def answer(self, message: dict[str, Any]) -> None:
        method, identity, params = message.get("method"), message.get("id"), message.get("params") or {}
        if method is None:
            self.left -= 1
            if self.left == 0:
                write({"id": self.waiting, "result": {"content": [{"type": "text", "text": "asked"}]}})
        elif identity is None:
            return
        elif method == ("server/discover" if MODERN else "initialize"):
            write({"id": identity, "result": greeting()})
        elif method == "tools/call":
            self.call(identity, params)
        elif method == "subscriptions/listen":
            self.listen(identity, params)
        elif (result := result_of(method)) is not None:
            write({"id": identity, "result": result})
        else:
            write({"id": identity, "error": {"code": -32601, "message": "no such method"}})

    def listen(self, identity: Any, params: dict[str, Any]) -> None:
        stamp = {"_meta": {"io.modelcontextprotocol/subscriptionId": identity}}
        notify("notifications/subscriptions/acknowledged", {"notifications": params.get("notifications", {}), **stamp})


if __name__ == "__main__":
    sys.stderr.write(mark("standard error", "lines") + "\n")
    sys.stderr.flush()
    server = Server()
    for line in sys.stdin:
        server.answer(json.loads(line))

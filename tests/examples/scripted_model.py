"""A scripted model behind OpenAI's Chat Completions API; the frameworks use it with their own provider code.

It loads a table, passes a key of the returned path to two tools, one after the other, and answers the user with their
results.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATH = re.compile(r"load_table-[0-9a-f-]{36}")
NUMBER = re.compile(r"[0-9.]+")


@dataclass
class ScriptedModel:
    """What it was sent, request by request."""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)

    def message(self, request: dict[str, Any]) -> dict[str, Any]:
        """Its next message."""
        self.requests.append(request)
        texts = [_text(message["content"]) for message in request["messages"] if message["role"] == "tool"]
        if not texts:
            return _calling("load_table_mirrored", {"city": "Bonn"}, request)
        values = f"{found[0]}/celsius" if (found := PATH.search(texts[0])) else "no path was told"
        steps: list[tuple[str, dict[str, Any]]] = [
            ("average_mirrored", {"values": values}),
            ("count_above_mirrored", {"values": values, "limit": 12}),
        ]
        if len(texts) <= len(steps):
            return _calling(*steps[len(texts) - 1], request)
        average, above = (NUMBER.findall(text)[0] for text in texts[1:])
        answer = f"{average} degrees on average, {above} hours above 12."
        if "response_format" in request:
            return _calling("final_answer", {"response": answer}, request)
        return {"role": "assistant", "content": answer}


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _calling(name: str, arguments: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """A tool call: native, or in the form that the request wants of a model that has none."""
    if "response_format" in request:
        item = {"item": {"name": name, "parameters": arguments}}
        return {"role": "assistant", "content": json.dumps(item)}
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": f"call_{len(request['messages'])}", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


@contextmanager
def serving() -> Iterator[ScriptedModel]:
    """Serve it on a free port."""
    model = ScriptedModel()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            message = model.message(request)
            reason = "tool_calls" if "tool_calls" in message else "stop"
            body = json.dumps(
                {
                    "id": f"chatcmpl-{len(model.requests)}",
                    "object": "chat.completion",
                    "created": 0,
                    "model": request["model"],
                    "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
                    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
                }
            ).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name that is overridden
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        model.url = f"http://127.0.0.1:{server.server_port}/v1"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield model
        finally:
            server.shutdown()
            thread.join()

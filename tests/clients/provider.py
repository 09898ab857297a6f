"""A model provider that plays a script, in the dialects of Anthropic, OpenAI (both) and Google.

The model reads a large file with one server, passes the path of the stored result to another server, and ends. Requests
without tools, such as those for a title, get a word.
"""

import gzip
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

PATH: Final = re.compile(r"read_text_file-[0-9a-f]{8}-[0-9a-f-]{27}")
DONE: Final = "The script has ended."
Event = tuple[str | None, Any]


@dataclass(slots=True)
class Script:
    """The calls of the model, and what it was sent."""

    file: str
    """The file to read."""
    address: str = ""
    tools: list[list[str]] = field(default_factory=list)
    """The names of the tools in each request that has tools."""
    requests: list[str] = field(default_factory=list)

    def step(self, names: list[str], text: str) -> tuple[str, dict[str, Any]] | None:
        """The next call after what the model has seen; None: it ends."""
        found = PATH.findall(text)
        if not found:
            return _find(names, "read_text_file"), {"path": self.file}
        if "create_entities" in text:  # the messages, not the definitions of tools
            return None
        entity = {"name": "log", "entityType": "file", "observations": [found[-1]]}
        return _find(names, "create_entities"), {"entities": [entity]}


def _find(names: list[str], tool: str) -> str:
    return next(name for name in names if name.endswith(tool))


def answer_anthropic(script: Script, body: dict[str, Any]) -> list[Event]:
    names = [tool["name"] for tool in body.get("tools", ())]
    call = _next(script, names, body["messages"])
    start: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    start |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
    if call:
        block: dict[str, Any] = {
            "type": "tool_use",
            "id": f"toolu_{len(script.requests)}",
            "name": call[0],
            "input": {},
        }
        delta = {"type": "input_json_delta", "partial_json": json.dumps(call[1])}
    else:
        block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": DONE}
    reason = {"stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None}
    events = (
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": reason, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    )
    return [(str(event["type"]), event) for event in events]


def answer_responses(script: Script, body: dict[str, Any]) -> list[Event]:
    tools = [one for tool in body.get("tools", ()) for one in (tool.get("tools") or [tool])]
    names = [str(tool.get("name")) for tool in tools]
    spaces = {one["name"]: tool["name"] for tool in body.get("tools", ()) for one in tool.get("tools") or ()}
    call = _next(script, names, body["input"])
    if call:
        item: dict[str, Any] = {"type": "function_call", "id": "fc_1", "call_id": f"call_{len(script.requests)}",
                                "name": call[0], "arguments": json.dumps(call[1])}  # fmt: skip
        if call[0] in spaces:
            item["namespace"] = spaces[call[0]]
    else:
        text = {"type": "output_text", "text": DONE, "annotations": []}
        item = {"type": "message", "id": "m_1", "role": "assistant", "content": [text]}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    response = {"id": "r_1", "object": "response", "output": [item], "usage": usage, "status": "completed"}
    events = (
        {"type": "response.created", "response": {"id": "r_1"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response},
    )
    return [(str(event["type"]), event) for event in events]


def answer_chat(script: Script, body: dict[str, Any]) -> list[Event]:
    names = [tool["function"]["name"] for tool in body.get("tools", ())]
    call = _next(script, names, body["messages"])
    delta: dict[str, Any] = {"role": "assistant", "content": DONE}
    if call:
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        tool = {"index": 0, "id": f"call_{len(script.requests)}", "type": "function", "function": function}
        delta = {"role": "assistant", "content": None, "tool_calls": [tool]}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    reason = "tool_calls" if call else "stop"
    return [
        (None, {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}),
        (None, {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage}),
        (None, "[DONE]"),
    ]


def answer_gemini(script: Script, body: dict[str, Any]) -> list[Event]:
    names = [one["name"] for tool in body.get("tools", ()) for one in tool.get("functionDeclarations", ())]
    call = _next(script, names, body["contents"])
    part = {"functionCall": {"name": call[0], "args": call[1]}} if call else {"text": DONE}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    return [(None, {"candidates": [candidate], "usageMetadata": {"promptTokenCount": 1, "totalTokenCount": 2}})]


def _next(script: Script, names: list[str], messages: Any) -> tuple[str, dict[str, Any]] | None:
    if not any(name.endswith("read_text_file") for name in names):
        return None
    script.tools.append(names)
    script.requests.append(json.dumps(messages))
    return script.step(names, script.requests[-1])


ANSWERS: Final[dict[str, Callable[[Script, dict[str, Any]], list[Event]]]] = {
    "/v1/messages": answer_anthropic,
    "/v1/responses": answer_responses,
    "/v1/chat/completions": answer_chat,
    ":streamGenerateContent": answer_gemini,
}


@contextmanager
def serve(script: Script) -> Iterator[None]:
    """Serve the script on a port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._send("application/json", b'{"data": [], "models": []}')

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            path = self.path.partition("?")[0]
            answer = next((answer for end, answer in ANSWERS.items() if path.endswith(end)), None)
            if answer is None:
                self._send("application/json", b'{"input_tokens": 1, "totalTokens": 1}')
                return
            events = answer(script, json.loads(body))
            lines = (f"event: {name}\n" * bool(name) + f"data: {_text(data)}\n\n" for name, data in events)
            self._send("text/event-stream", "".join(lines).encode())

        def _send(self, kind: str, body: bytes) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        script.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def _text(data: Any) -> str:
    return data if isinstance(data, str) else json.dumps(data)

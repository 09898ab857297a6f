"""A scripted model: a real OpenAI-compatible server with replies from a script.

The script is named by the request's `model`, as CASE/KIND of `scripts.yaml`: calls (`tool: arguments`, or a list of
them) and an answer. In it `${PATH_1}` is the first path in the conversation, `${LAST}` the last result. `status` and
`body` are the response itself. A step may be a function of all messages.
"""

import json
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

SCRIPTS: dict[str, dict[str, Any]] = yaml.load((Path(__file__).parent / "scripts.yaml").read_text(), yaml.CSafeLoader)
BASE = re.compile(r"[A-Za-z0-9_-]+-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


class ScriptedServer(ThreadingHTTPServer):
    """A server that keeps the position in the script for each conversation."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[dict[str, Any]] = []
        self.positions: dict[tuple[str, int], int] = defaultdict(int)
        self.scripts: dict[str, list[Any]] = {}
        self.lock = threading.Lock()
        self.blocked = threading.Event()
        """Set when a request is delayed; requests with seeds from `hold` on are delayed until `release`."""
        self.hold: int | None = None
        self.release = threading.Event()
        self.count_tokens: Callable[[str], int] | None = None
        """Counts the tokens of a text; None: each request has the same usage."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def reply(self, body: dict[str, Any]) -> tuple[int, bytes]:
        script = self.scripts.get(body["model"]) or self._from_file(body["model"])
        if self.hold is not None and body.get("seed", 0) >= self.hold:
            self.blocked.set()
            self.release.wait(20)
        with self.lock:
            self.seen.append(body)
            key = (body["model"], body.get("seed", 0))
            step = script[min(self.positions[key], len(script) - 1)]
            self.positions[key] += 1
        if isinstance(step, dict) and "status" in step:
            return step["status"], str(step.get("body", "")).encode()
        message = _message(step, body)
        return 200, json.dumps({"choices": [{"message": message}], "usage": self._usage(message, body)}).encode()

    def _usage(self, message: dict[str, Any], body: dict[str, Any]) -> dict[str, int]:
        if self.count_tokens is None:
            return {"prompt_tokens": 100, "completion_tokens": 10}
        read = [*map(_text_of, body["messages"]), json.dumps(body.get("tools", []))]
        return {
            "prompt_tokens": self.count_tokens("\n".join(read)),
            "completion_tokens": self.count_tokens(_text_of(message)),
        }

    def _from_file(self, name: str) -> list[Any]:
        case, _, kind = name.partition("/")
        script: list[Any] = SCRIPTS[case][kind]
        return script


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedServer

    def do_POST(self) -> None:
        status, data = self.server.reply(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def scripted_server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.release.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _text_of(message: dict[str, Any]) -> str:
    """The text of a message and of its calls."""
    calls = (call["function"] for call in message.get("tool_calls") or ())
    content = message.get("content")
    texts = [content] if isinstance(content, str) else [part.get("text", "") for part in content or ()]
    return "\n".join((*texts, *(f"{call['name']} {call['arguments']}" for call in calls)))


def _message(step: Any, body: dict[str, Any]) -> dict[str, Any]:
    texts = [str(message.get("content") or "") for message in body["messages"][1:]]
    if callable(step):
        step = step(body["messages"])
    paths = list(dict.fromkeys(BASE.findall("\n".join(texts))))
    filled = _filled(step, paths, texts[-1] if texts else "")
    listed = filled if isinstance(filled, list) else [filled]
    calls = [call for one in listed if isinstance(one, dict) for call in one.items()]
    calls = [(_listed(name, body), arguments) for name, arguments in calls]
    if "tools" in body:
        return {"role": "assistant", "content": None if calls else filled, "tool_calls": _native(calls)}
    if not calls and "response_format" in body and not filled.startswith("RAW "):
        calls = [("reply_to_user", {"answer": filled})]
    text = "\n".join(json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls)
    return {"role": "assistant", "content": text or filled.removeprefix("RAW ")}


def _native(calls: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"id": f"id{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for at, (name, arguments) in enumerate(calls)
    ]


def _listed(name: str, body: dict[str, Any]) -> str:
    listed = json.dumps(body.get("tools") or body["messages"][0])
    return f"{name}_mirrored" if f'{name}_mirrored"' in listed.replace('\\"', '"') else name


def _filled(step: Any, paths: list[str], last: str) -> Any:
    if isinstance(step, dict):
        return {key: _filled(part, paths, last) for key, part in step.items()}
    if isinstance(step, list):
        return [_filled(part, paths, last) for part in step]
    if not isinstance(step, str):
        return step
    put = re.sub(r"\$\{PATH_(\d+)\}", lambda match: paths[int(match[1]) - 1], step)
    return put.replace("${LAST}", last)

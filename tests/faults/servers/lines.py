"""An upstream over stdio with a tool for each fault: `python -m tests.faults.servers.lines ok`.

It extends raw_behaviours.py. In the environment: `WITNESS`, the port for reports; `DOWN`, a file with which the process
exits at its start; `ERA`, 2026 for the newer protocol version.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.end_to_end.servers import raw_behaviours as raw
from tests.faults.servers.reports import report

MODERN = os.environ.get("ERA") == "2026"
STAMP = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
"""What the newer protocol wants of a result that may be kept."""
DISCOVERED = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, **STAMP}
KINDS = ("tools", "resources", "prompts")


def text_of(identity: Any, text: str) -> bytes:
    """The message that answers with a text."""
    kind = {"resultType": "complete"} if MODERN else {}
    result = kind | {"content": [{"type": "text", "text": text}]}
    return json.dumps({"jsonrpc": "2.0", "id": identity, "result": result}, separators=(",", ":")).encode()


def echo(identity: Any, arguments: dict[str, Any], _line: str) -> None:
    raw.write(text_of(identity, f"echo {arguments.get('key')}"))


def after_gate(identity: Any, arguments: dict[str, Any], _line: str) -> None:
    """Answer, at length if so asked, once the file is there."""

    def answer() -> None:
        while not Path(arguments["gate"]).exists():
            time.sleep(0.05)
        raw.write(text_of(identity, f"echo {arguments['key']}" + " word" * arguments.get("words", 0)))
        report("over")

    threading.Thread(target=answer, daemon=True).start()


def crash(_identity: Any, _arguments: dict[str, Any], _line: str) -> None:
    raw.complain("fell over")
    report("struck")
    os._exit(3)


def kill(_identity: Any, _arguments: dict[str, Any], _line: str) -> None:
    report("struck")
    os.kill(os.getpid(), signal.SIGKILL)


def half(identity: Any, arguments: dict[str, Any], _line: str) -> None:
    message = text_of(identity, f"echo {arguments['key']}")
    sys.stdout.buffer.write(message[: len(message) // 2])
    sys.stdout.buffer.flush()
    report("struck")
    os._exit(3)


def shut(_identity: Any, _arguments: dict[str, Any], _line: str) -> None:
    """Close what we write to, and live on."""
    report("struck")
    os.close(1)


def hang(_identity: Any, _arguments: dict[str, Any], _line: str) -> None:
    report("struck")


def freeze(_identity: Any, _arguments: dict[str, Any], _line: str) -> None:
    report("struck")
    os.kill(os.getpid(), signal.SIGSTOP)


def deaf(identity: Any, arguments: dict[str, Any], line: str) -> None:
    """Answer, and read no more."""
    echo(identity, arguments, line)
    raw.forever()


def late(identity: Any, arguments: dict[str, Any], line: str) -> None:
    report("struck")
    time.sleep(0.3)
    echo(identity, arguments, line)


def drip(identity: Any, arguments: dict[str, Any], _line: str) -> None:
    report("struck")
    with raw.lock:
        for byte in text_of(identity, f"echo {arguments['key']}") + b"\n":
            time.sleep(0.002)
            sys.stdout.buffer.write(bytes([byte]))
            sys.stdout.buffer.flush()


def wrong_id(identity: Any, arguments: dict[str, Any], _line: str) -> None:
    report("struck")
    for wrong in (987_654, "no such id", None, [identity], str(identity) + "0"):
        raw.write(text_of(wrong, f"echo {arguments['key']}"))


def twice(identity: Any, arguments: dict[str, Any], line: str) -> None:
    report("struck")
    echo(identity, arguments, line)
    echo(identity, {"key": "twice"}, line)


def garbage(identity: Any, arguments: dict[str, Any], line: str) -> None:
    report("struck")
    raw.scream(987_654, {}, line)
    echo(identity, arguments, line)


def no_json(identity: Any, _arguments: dict[str, Any], line: str) -> None:
    report("struck")
    raw.scream(identity, {"bad": True}, line)


def stderr_flood(identity: Any, arguments: dict[str, Any], line: str) -> None:
    """100 MB on standard error, then the answer."""
    report("struck")
    for _ in range(100):
        os.write(2, b"e" * 499_999 + b"\n" + b"e" * 500_000)
    echo(identity, arguments, line)


def endless(identity: Any, arguments: dict[str, Any], _line: str) -> None:
    """A line that is far over the bound; it ends in the end."""
    report("struck")
    with raw.lock:
        sys.stdout.buffer.write(text_of(identity, "")[:-5])
        for _ in range(arguments.get("megabytes", 16)):
            sys.stdout.buffer.write(b"x" * 1_000_000)
        sys.stdout.buffer.write(b'"}]}}\n')
        sys.stdout.buffer.flush()


def never_ending(identity: Any, _arguments: dict[str, Any], _line: str) -> None:
    """A line without an end."""
    report("struck")
    with raw.lock:
        sys.stdout.buffer.write(text_of(identity, "")[:-5] + b"x" * 3_000_000)  # more than a message may have
        sys.stdout.buffer.flush()
        while True:
            os.write(1, b"x" * 65_536)
            time.sleep(0.005)


def storm(identity: Any, arguments: dict[str, Any], line: str) -> None:
    """Announce changes of all three kinds, the last of a tool that is new; the answer comes at once."""

    def announce() -> None:
        report("storming")
        for index in range(arguments["times"]):
            raw.write(changed(index))
        if name := arguments.get("adds"):
            raw.tools.append({"name": name, "inputSchema": {"type": "object"}})
        raw.write(changed(0))
        report("stormed")

    echo(identity, arguments, line)
    threading.Thread(target=announce, daemon=True).start()


def changed(index: int) -> str:
    return f'{{"jsonrpc":"2.0","method":"notifications/{KINDS[index % 3]}/list_changed"}}'


FAULTS: dict[str, Callable[[Any, dict[str, Any], str], None]] = {
    "echo": echo, "ping": echo, "brief": echo, "wait": after_gate, "crash": crash, "kill": kill, "half": half,
    "shut": shut, "hang": hang, "freeze": freeze, "deaf": deaf, "late": late, "drip": drip, "wrong_id": wrong_id,
    "twice": twice, "garbage": garbage, "no_json": no_json, "stderr_flood": stderr_flood, "endless": endless,
    "never_ending": never_ending, "storm": storm,
}  # fmt: skip


def requests() -> Iterator[tuple[dict[str, Any], str]]:
    for line in sys.stdin.buffer:
        yield json.loads(line), line.decode()


def answer(message: dict[str, Any], line: str) -> None:
    method, params = message.get("method", ""), message.get("params") or {}
    if method == "tools/call":
        report("called", key=params["arguments"].get("key"), id=message["id"], tool=params["name"])
    elif method in ("tools/list", "notifications/cancelled"):
        report(method, id=params.get("requestId"))
    if method == "server/discover" and MODERN:
        raw.result(message["id"], json.dumps(DISCOVERED))
    elif method == "initialize" and MODERN:
        refusal = {"code": -32601, "message": "Method not found"}
        raw.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": refusal}))
    elif method == "tools/list" and MODERN:
        raw.result(message["id"], json.dumps({"tools": raw.tools, **STAMP}))
    else:
        raw.answer(message, line)


if __name__ == "__main__":
    if Path(os.environ.get("DOWN", "")).is_file():
        report("ended")
        raw.complain("no licence found")
        sys.exit(3)
    raw.CALLS.clear()
    raw.CALLS.update(FAULTS)
    if not raw.options.tools:
        raw.tools[:] = [{"name": name, "inputSchema": {"type": "object"}} for name in FAULTS if name != "ping"]
    report("started")
    for asked in requests():
        answer(*asked)

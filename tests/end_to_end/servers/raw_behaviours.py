"""A scripted 2025-11-25 upstream, so that the test controls every byte.

`raw.py BEHAVIOUR [--log FILE] [--tools FILE] [--gate FILE] ...`: it logs the method of each request, one per line.
"""

# ruff: noqa: PTH110, PTH123  # see `TYPE_CHECKING`

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

TYPE_CHECKING = False  # `typing`, `argparse` and `pathlib` take longer to import than all else: tests start this often
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

sys.set_int_max_str_digits(0)


class Options:
    """The words of the command line: a behaviour, and options; others are ignored."""

    behaviour = ""
    log = ""
    tools = ""
    """A file with the tools, a JSON array; each tool answers as `hear` does."""
    gate = ""
    """A file that must be there before an answer is given."""
    opens = ""
    """A file that is made at the start."""
    shelf = False
    """It has a resource, whose name is its process id."""
    lacks = ""
    """A method of the shelf that it does not have."""
    rooted = False
    """It has one more tool for a client with roots."""
    before = ""
    """Text before each result, in the same line."""
    name = "raw"
    pad = 0
    """Characters before what is quoted."""

    def __init__(self, words: Iterable[str]) -> None:
        self.uri: list[str] = []
        """Of its resources: `--uri`, any number of times."""
        words = iter(words)
        self.behaviour = next(words)
        for word in words:
            name, is_joined, value = word.removeprefix("--").partition("=")
            if not word.startswith("--") or not hasattr(self, name):
                continue
            default = getattr(self, name)
            if default is False:
                setattr(self, name, True)
            elif name == "uri":
                self.uri.append(next(words))
            else:
                setattr(self, name, type(default)(value if is_joined else next(words)))


options = Options(sys.argv[1:])
TOOLS = ("say", "hear", "die", "hang", "storm", "grow", "scream", "refuse")
"""`say` gives back its argument `result`, the JSON text of a whole result; `hear` the request as it arrived; the others
are below."""
lock = threading.Lock()


def read_file(name: str) -> str:
    with open(name) as file:
        return file.read()


def touch(name: str) -> None:
    with open(name, "a"):
        pass


tools: list[Any] = (
    json.loads(read_file(options.tools))
    if options.tools
    else [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]
)


def log(method: str) -> None:
    if options.log:
        with lock, open(options.log, "a") as file:
            file.write(f"{time.monotonic():.3f} {method}\n")


def write(line: str | bytes) -> None:
    data = line if isinstance(line, bytes) else line.encode()
    with lock:
        sys.stdout.buffer.write(data + b"\n")
        sys.stdout.buffer.flush()


def complain(*words: object) -> None:
    sys.stderr.write(" ".join(map(str, words)) + "\n")
    sys.stderr.flush()


def await_file(name: str) -> None:
    deadline = time.monotonic() + 60
    while not os.path.exists(name) and time.monotonic() < deadline:
        time.sleep(0.01)


def result(identity: Any, text: str) -> None:
    write(f'{options.before}{{"jsonrpc":"2.0","id":{json.dumps(identity)},"result":{text}}}')


def content(text: str) -> str:
    return json.dumps({"content": [{"type": "text", "text": text}]})


CHANGED = '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'


def say(identity: Any, arguments: dict[str, Any], _line: str) -> None:
    result(identity, arguments["result"])


def hear(identity: Any, _arguments: dict[str, Any], line: str) -> None:
    result(identity, content(line))


def die(_identity: Any, _arguments: dict[str, Any], _line: str) -> None:
    complain("fell over")
    os._exit(3)


def hang(identity: Any, arguments: dict[str, Any], _line: str) -> None:
    touch(arguments["started"])

    def answer() -> None:
        await_file(arguments["until"])
        result(identity, content("late"))

    threading.Thread(target=answer, daemon=True).start()


def storm(identity: Any, arguments: dict[str, Any], _line: str) -> None:
    write("\n".join([CHANGED] * arguments["times"]))  # at once: on a busy machine, it may not be fast enough otherwise
    result(identity, content("stormed"))


def grow(identity: Any, arguments: dict[str, Any], _line: str) -> None:
    tools.append({"name": arguments["name"], "inputSchema": {"type": "object"}})
    if not arguments.get("silent"):
        write(CHANGED)
    result(identity, content("grown"))


def redefine(identity: Any, arguments: dict[str, Any], _line: str) -> None:
    tools[:] = arguments["tools"]
    write(CHANGED)
    result(identity, content("redefined"))


def scream(identity: Any, arguments: dict[str, Any], _line: str) -> None:
    """Lines that are not messages, then the answer."""
    for line in ("not json", "{", "[]", "null", '{"jsonrpc":"2.0"}', "\x00", '{"id":99999,"result":{}}'):
        write(line)
    write(b"\xff\xfe broken utf-8")
    if arguments.get("bad"):
        write(f'{{"jsonrpc":"2.0","id":{json.dumps(identity)},"result":{{"content":[}}}}')
    else:
        result(identity, content("screamed"))


def refuse(identity: Any, arguments: dict[str, Any], _line: str) -> None:
    """Quote in an error what we were given."""
    quoted = f"{'.' * options.pad}no such key: {os.environ.get('SECRET')} {sys.argv}"
    message = arguments.get("message", "%s").replace("%s", quoted)
    data = arguments.get("data", "." * arguments.get("more", 0))
    error = json.dumps({"code": -32000, "message": message, "data": data})
    write(f'{{"jsonrpc":"2.0","id":{json.dumps(identity)},"error":{error}}}')


CALLS: dict[str, Callable[[Any, dict[str, Any], str], None]] = {
    "say": say, "hear": hear, "die": die, "hang": hang, "storm": storm, "grow": grow, "scream": scream,
    "refuse": refuse, "redefine": redefine,
}  # fmt: skip


def page(cursor: str | None) -> str:
    match options.behaviour:
        case "pages":
            start = int(cursor or 0)
            names = [f"tool_{index:05d}" for index in range(start, start + 250)]
            listed = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
            return json.dumps(listed | ({"nextCursor": str(start + 250)} if start + 250 < 10_000 else {}))
        case "loop":
            return json.dumps({"tools": tools if cursor is None else [], "nextCursor": "again"})
    return json.dumps({"tools": tools})


SHELF: dict[str, Any] = {
    "resources/list": {
        "resources": [{"uri": uri, "name": uri} for uri in options.uri]
        if options.uri
        else [{"uri": "raw://process", "name": str(os.getpid())}]
    },
    "resources/templates/list": {"resourceTemplates": []},
    "resources/read": {"contents": [{"uri": "raw://process", "text": str(os.getpid())}]},
}
SHELF.pop(options.lacks, None)
INITIALIZED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {"listChanged": True}, **({"resources": {}} if options.shelf else {})},
    "serverInfo": {"name": options.name, "version": "7"},
    "instructions": f"I am {options.name}. " + "x" * 900,
}


ASKED = "asked"
"""The id of the request for the client's roots, which the behaviour `asks` sends before it lists its tools."""
listings: list[Any] = []
"""The ids of the requests that wait for the roots."""


def list_tools(identity: Any, cursor: str | None) -> None:
    if options.behaviour == "asks":
        listings.append(identity)
        write(f'{{"jsonrpc":"2.0","id":"{ASKED}","method":"roots/list"}}')
    elif options.behaviour == "asks_first":  # the answer does not change the list
        write(f'{{"jsonrpc":"2.0","id":"{ASKED}","method":"roots/list"}}')
        threading.Timer(0.2, result, (identity, page(cursor))).start()
    else:
        result(identity, page(cursor))


def hear_roots(message: dict[str, Any]) -> None:
    if listings:
        tools.append({"name": message["result"]["roots"][0]["name"], "inputSchema": {"type": "object"}})
        result(listings.pop(), page(None))


def initialize(params: dict[str, Any]) -> dict[str, Any]:
    if options.rooted and "roots" in params["capabilities"]:
        tools.append({"name": "root", "inputSchema": {"type": "object"}})
    return INITIALIZED


def answer(message: dict[str, Any], line: str) -> None:
    method, identity, params = message.get("method", ""), message.get("id"), message.get("params") or {}
    log(f"{method} {params.get('requestId', '')}".strip())
    if identity is None or not method:
        return
    if options.gate:
        await_file(options.gate)
    match method:
        case "initialize":
            result(identity, json.dumps(initialize(params)))
        case "tools/list":
            list_tools(identity, params.get("cursor"))
        case "tools/call":
            CALLS.get(params["name"], hear)(identity, params.get("arguments") or {}, line)
        case "resources/read" if options.uri:
            contents = [{"uri": params["uri"], "text": f"of {options.name}"}] if params["uri"] in options.uri else []
            result(identity, json.dumps({"contents": contents}))
        case _ if options.shelf and method in SHELF:
            result(identity, json.dumps(SHELF[method]))
        case _:
            write(f'{{"jsonrpc":"2.0","id":{json.dumps(identity)},"error":{{"code":-32601,"message":"no {method}"}}}}')


def serve(lines: Iterable[bytes]) -> None:
    for line in lines:
        message = json.loads(line)
        if message.get("id") == ASKED:
            hear_roots(message)
        else:
            answer(message, line.decode().rstrip("\n"))


def forever() -> None:
    while True:
        time.sleep(60)


def exits() -> None:
    complain("Traceback (most recent call last):\nRuntimeError: no licence found")
    sys.exit(3)


def leaks() -> None:
    """The meanest: everything that it was given, on standard error."""
    complain(dict(os.environ), sys.argv, json.dumps(dict(os.environ)))
    complain(*os.environ.values(), *sys.argv, "last words")
    sys.exit(1)


def leaks_long() -> None:
    complain("x" * 1990 + os.environ["SECRET"], "y" * 1000)
    complain("z" * 1700, os.environ["SECRET"], "z" * 200)
    sys.exit(1)


def refuses() -> None:
    """Quotes what it was given in its answers and in lines that are none."""
    for line in sys.stdin.buffer:
        write(f"garbage {dict(os.environ)} {sys.argv}")
        message = json.dumps(f"{'.' * options.pad}bad key {os.environ.get('SECRET')} in {sys.argv}")
        identity = json.dumps(json.loads(line).get("id"))
        write(f'{{"jsonrpc":"2.0","id":{identity},"error":{{"code":-32000,"message":{message}}}}}')


def garbage() -> None:
    for _ in range(50):
        write("this is no MCP server\x07 \xff")
    forever()


def half() -> None:
    sys.stdout.write('{"jsonrpc":"2.0","id":1,"resu')
    sys.stdout.flush()
    forever()


def stubborn() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    serve(sys.stdin.buffer)
    forever()


def brood() -> None:
    """As `stubborn`, with a grandchild that ignores all signals and keeps its inherited pipes open."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # which a process inherits
    sleep_beside(in_new_session=False)
    stubborn()


def daemon() -> None:
    """A grandchild in a session of its own keeps its inherited pipes open."""
    sleep_beside(in_new_session=True)
    serve(sys.stdin.buffer)


def sleep_beside(*, in_new_session: bool) -> None:
    import subprocess  # noqa: PLC0415  # no other behaviour needs it, and its import takes long

    command = [sys.executable, "-c", "import time; time.sleep(600)", options.name]
    subprocess.Popen(command, start_new_session=in_new_session)


def strict() -> None:
    """As some servers are: what is not the handshake they know is their end."""
    first = sys.stdin.buffer.readline()
    if json.loads(first)["method"] != "initialize":
        complain("expected initialize")
        sys.exit(1)
    serve([first])
    serve(sys.stdin.buffer)


def deaf() -> None:
    """Shakes hands, lists, and reads no more."""
    for line in sys.stdin.buffer:
        answer(json.loads(line), line.decode())
        if b"tools/list" in line:
            break
    forever()


BEHAVIOURS: dict[str, Callable[[], None]] = {
    "exits": exits, "leaks": leaks, "leaks_long": leaks_long, "refuses": refuses, "garbage": garbage, "half": half,
    "silent": forever, "stubborn": stubborn, "brood": brood, "daemon": daemon, "deaf": deaf, "strict": strict,
}  # fmt: skip


def run() -> None:
    if options.opens:
        touch(options.opens)
    BEHAVIOURS.get(options.behaviour, lambda: serve(sys.stdin.buffer))()

"""Secrets in all possible places do not appear in the gateway's logs, metrics, files and answers."""

from __future__ import annotations

import hashlib
import json
import re
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from http_sessions import HEADERS, open_session
from samples import sample
from tests.end_to_end.conftest import BOUND
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.conftest import Configured, Lines, Listening, OpenLines, Run, Serve, Served

PLACES = (
    "value", "key", "argument", "tool", "env", "arg", "header", "user", "query", "client", "shared", "state", "store",
    "audit", "inbound", "stranger", "meta", "uri",
)  # fmt: skip
CANARIES = {place: f"c4n-{place}-0123456789abcdef0123456789abcdef" for place in PLACES}
PASSED_ON = {"value", "key", "argument", "tool", "meta", "uri"}
"""Secrets that a client sends or receives itself; answers contain none of the others."""
CONFIGURED = {name.upper(): CANARIES[name] for name in ("env", "header", "query", "shared", "state", "store", "audit")}

Ask = "Callable[[str, dict[str, Any]], Awaitable[str]]"


def found(data: str | bytes, places: Any = PLACES) -> set[str]:
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    return {place for place in places if CANARIES[place] in text}


def files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.fixture
async def config(configured: Configured, raw: Any, listening: Listening, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Secrets everywhere; upstreams that work, fail and leak."""
    for name, value in CONFIGURED.items():
        monkeypatch.setenv(name, value)
    secret = {"env": {"SECRET": "${ENV}"}, "startup_timeout": 5}
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(listening("raw_http.py"))
        denies = await stack.enter_async_context(listening("raw_http.py", "--status", "401"))
        oauth = {
            "grant": "client_credentials", "client_id": "mirror", "client_secret": "${SHARED}",
            "issuer": f"http://127.0.0.1:{denies}",
        }  # fmt: skip
        upstreams = {
            "one": raw("ok", "--key", CANARIES["arg"]) | secret,
            "leaks": raw("leaks", CANARIES["arg"]) | secret,
            "refuses": raw("refuses", CANARIES["arg"]) | secret,
            "web": {
                "url": f"http://me:{CANARIES['user']}@127.0.0.1:{port}/mcp?key=${{QUERY}}",
                "headers": {"x-secret": "${HEADER}"},
            },
            "denied": {"url": f"http://127.0.0.1:{denies}/mcp?key=${{QUERY}}", "auth": {"oauth": oauth}},
        }

        def write(**more: Any) -> Path:
            return configured(
                upstreams,
                auth={"tokens": {"ann": f"sha256:{hashlib.sha256(CANARIES['inbound'].encode()).hexdigest()}"}},
                server={"state_keys": ["${STATE}"], "log_format": more.pop("log_format", "text")},
                audit={"path": "audit.jsonl", "key": "${AUDIT}"},
                mirror={"startup_wait": 10},
                **{"store": {"kind": "disk"}, **more},
            )

        yield write


UNKNOWN = "say-11111111-1111-4111-8111-111111111111"


async def use(ask: Any) -> dict[str, str]:
    """Everything that a client can do, and much that it cannot; what it was answered."""
    answers: dict[str, str] = {}

    async def call(tool: str, **arguments: Any) -> str:
        meta = {"authorization": f"Bearer {CANARIES['meta']}", "x-api-key": CANARIES["meta"]}
        params = {"name": tool, "arguments": arguments, "_meta": meta}
        answers[f"{tool} {len(answers)}"] = answer = await ask("tools/call", params)
        return str(answer)

    for method in ("tools/list", "resources/list", "prompts/list", "no/such/method"):
        answers[method] = await ask(method, {})
    content = {"content": [], "structuredContent": {CANARIES["key"]: CANARIES["value"] * 99}}
    path = (re.findall(r"say-[0-9a-f-]{36}", await call("one_say_mirrored", result=json.dumps(content))))[0]
    await call("one_say_mirrored", result=json.dumps({"content": [{"type": "text", "text": CANARIES["value"]}]}))
    for tool in ("one_hear_mirrored", "web_hear_mirrored", "web_nothing_mirrored", "refuse_mirrored"):
        await call(tool, text=f"{path}/{CANARIES['key']}", more=CANARIES["argument"])
    for bad_path in (f"{path}/{CANARIES['argument']}", UNKNOWN, f"{path}/{CANARIES['key']}"):
        for tool in ("memory_read", "memory_describe", "retrieve_final_answer_from_memory", "one_hear_mirrored"):
            await call(tool, memory_path=bad_path)
    await call("memory_grep", memory_path=path, pattern=CANARIES["argument"] + "(")
    await call("memory_query", memory_path=path, expression=f"[{CANARIES['argument']}")
    await call("memory_put", value=CANARIES["value"])
    await call(CANARIES["tool"], text=CANARIES["argument"])
    await call("memory_list", **{CANARIES["argument"]: 1})
    for uri in (f"memory://{path}", f"memory://{path}/{CANARIES['uri']}", f"x://{CANARIES['uri']}"):
        answers[uri] = await ask("resources/read", {"uri": uri})
    await call("die_mirrored", text=CANARIES["argument"])
    await call("one_hear_mirrored", text=CANARIES["argument"])
    answers["status"] = await ask("resources/read", {"uri": "mcp-mirror://upstreams"})
    return answers


async def over_stdio(stack: AsyncExitStack, open_lines: OpenLines, path: Path) -> tuple[Any, Lines]:
    client = await stack.enter_async_context(open_lines(path, "-vv"))
    await client.greet()

    async def ask(method: str, params: dict[str, Any]) -> str:
        return (await client.request(method, json.dumps(params))).decode()

    return ask, client


async def over_http(stack: AsyncExitStack, serve: Serve, path: Path) -> tuple[Any, Served]:
    served = await stack.enter_async_context(serve(path, "-vv"))
    served.url = served.url.rstrip('"}')  # the log may be JSON
    client = await stack.enter_async_context(httpx2.AsyncClient(timeout=BOUND))
    stranger = {"authorization": f"Bearer {CANARIES['stranger']}"}
    for headers, query in ((stranger, ""), ({}, f"?access_token={CANARIES['stranger']}"), ({"host": "e.example"}, "")):
        refused = await client.post(f"{served.url}{query}", content="{}", headers=HEADERS | headers)
        assert refused.status_code in (400, 401)
        assert not found(refused.text + str(refused.headers))
    shown = HEADERS | {"authorization": f"Bearer {CANARIES['inbound']}", "x-more": CANARIES["inbound"]}
    client.headers.update(shown)
    session = await open_session(client, served.url)

    async def ask(method: str, params: dict[str, Any]) -> str:
        body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
        return (await client.post(served.url, content=body, headers=shown | session)).text

    return ask, served


@pytest.mark.posix
@pytest.mark.parametrize(
    ("client_transport", "sealed"),
    sample([("stdio", False), ("http", True)], ("http", True).__eq__),
    ids=["stdio", "http, sealed"],
)
async def test_no_secret_is_logged_kept_counted_or_answered(
    client_transport: str, config: Any, open_lines: OpenLines, serve: Serve, run: Run, tmp_path: Path, *, sealed: bool
) -> None:
    encryption = {"encryption": {"keys": ["${STORE}"]}} if sealed else {}
    form = {"log_format": "json" if sealed else "text"}
    path = config(store={"kind": "disk", **encryption}, **form)
    async with AsyncExitStack() as stack:
        opened: Any = (
            over_stdio(stack, open_lines, path) if client_transport == "stdio" else over_http(stack, serve, path)
        )
        ask, gateway = await opened
        answers = await use(ask)
        config(store={"kind": "disk", **encryption}, **form, memory_tools={"deny": ["memory_forget"]})
        gateway.process.send_signal(signal.SIGHUP)
        await until(lambda: b"configuration was reloaded" in b"".join(gateway.stderr))
        answers |= await use(ask)
    log = b"".join(gateway.stderr)
    assert {
        name: found(text, set(PLACES) - PASSED_ON)
        for name, text in answers.items()
        if found(text, set(PLACES) - PASSED_ON)
    } == {}
    assert not found(answers["status"])
    assert not found(log), log.decode()
    assert b"leaks is down" in log
    audit = (tmp_path / "audit.jsonl").read_bytes()
    assert not found(audit)
    events = [(one["event"], one["outcome"]) for one in map(json.loads, audit.splitlines())]
    assert {("call", "stored"), ("call", "error"), ("read", "ok"), ("refusal", "unknown tool")} <= set(events)
    assert ("refusal", "unknown path") in events
    assert (("refusal", "no good token") in events) is (client_transport == "http")
    stored = found(files(tmp_path / "store"))
    assert stored == (set() if sealed else {"value", "key", "argument"})
    ended = [await run(command, "-vv", "--config", str(path)) for command in ("check", "stats", "lock")]
    assert [one.code for one in ended] == [1, 0, 1]
    assert not found("".join(one.out + one.err for one in ended))
    assert not found((tmp_path / "mirror.lock.json").read_bytes())
    left = [one for one in tmp_path.iterdir() if one.is_file() and one.name != "mirror.yaml"]
    assert len(left) >= 2
    assert not found(b"".join(one.read_bytes() for one in left))

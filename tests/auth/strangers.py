"""Two principals of one gateway: one has values, the other tries to read them with everything that a client can do."""

from __future__ import annotations

import contextlib
import json
import random
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import anyio
import httpx2
from http_sessions import HEADERS, META, open_session
from tests.auth.conftest import TOKENS

MODERN: Final = "2026-07-28"
_BOUND: Final = 60.0
_AGAIN: Final = 3
"""Times that a request is sent: on a machine that is very busy the gateway may just then end what was idle."""


@dataclass
class Visitor:
    """A client by hand, with a token and a session of its own."""

    name: str
    url: str
    http: httpx2.AsyncClient
    session: dict[str, str] = field(default_factory=dict)
    _ids: Iterator[int] = field(default_factory=lambda: iter(range(10**9)))

    async def ask(self, method: str, params: Mapping[str, Any], *, modern: bool = False, **headers: Any) -> str:
        """What is answered to a request, as it came."""
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        stamped: dict[str, Any] = HEADERS | self.session
        if modern:
            meta = {**META, **params.get("_meta", {})}
            message["params"] = {**params, "_meta": meta}
            stamped = HEADERS | {"mcp-protocol-version": MODERN, "mcp-method": method}
            named = params.get("name") or params.get("uri")
            stamped |= {"mcp-name": str(named)} if named else {}
        return await self._post(json.dumps(message), stamped | headers)

    async def _post(self, message: str, headers: Mapping[str, Any]) -> str:
        for _ in range(_AGAIN):
            with contextlib.suppress(httpx2.ReadError, httpx2.RemoteProtocolError):
                return (await self.http.post(self.url, content=message, headers=headers)).text
        raise ConnectionError("The gateway closes every connection.")

    async def call(self, tool: str, **arguments: Any) -> str:
        return await self.ask("tools/call", {"name": tool, "arguments": arguments})


@asynccontextmanager
async def visiting(url: str, name: str) -> AsyncIterator[Visitor]:
    headers = {"authorization": f"Bearer {TOKENS[name]}"}
    async with httpx2.AsyncClient(headers=headers, timeout=_BOUND) as http:
        yield Visitor(name, url, http, await open_session(http, url))


@dataclass
class Owned:
    """The values of a principal, and the paths of them that the other principal knows."""

    canaries: list[str]
    """Words that stand in the values, and nowhere else."""
    revealed: list[str]
    """Paths that the other knows."""
    hidden: list[str]
    """Paths that the other principal does not know."""
    notices: list[str]
    session: str

    def seen_in(self, text: str) -> list[str]:
        """What of it is in a text."""
        secret = (*self.canaries, *(path.partition("-")[2] for path in self.hidden))
        return [word for word in secret if word in text]


async def furnish(owner: Visitor, rng: random.Random, values: int) -> Owned:
    """Store values of every kind."""
    canaries = [f"c4nary{rng.getrandbits(64):016x}" for _ in range(values)]
    notices, paths = [], []
    for number, canary in enumerate(canaries):
        value = {"private": [canary] * 3, f"key{canary}": {"deep": canary, "number": number}, "rows": ["x"] * 20}
        result = (
            {"content": [], "structuredContent": value}
            if number % 2
            else {"content": [{"type": "text", "text": f"{canary} " * 300}]}
        )
        answer = await owner.call("say_mirrored", result=json.dumps(result))
        notice = json.loads(answer.partition("data: ")[2] or answer)["result"]["content"][0]["text"]
        notices.append(notice)
        paths.append(re.findall(r"say-[0-9a-f-]{36}", notice)[0])
    for path in paths[:: max(1, values // 4)]:
        assert "c4nary" in await owner.call("retrieve_final_answer_from_memory", memory_path=path)
    middle = len(paths) // 2
    return Owned(canaries, paths[:middle], paths[middle:], notices[:middle], owner.session["mcp-session-id"])


Attempt = tuple[str, dict[str, Any]]
"""A method and its parameters."""


def _forms(rng: random.Random, owned: Owned) -> str:
    """A path of the other's, or what might pass for one."""
    path = rng.choice(owned.revealed)
    label, _, identity = path.partition("-")
    namespace = json.dumps(["token", "alice"])
    forms: tuple[Callable[[], str], ...] = (
        lambda: path,
        lambda: f"{path}/private",
        lambda: f"{path}/private/0",
        lambda: f"{path}/{rng.choice(('rows', 'x', '~1', '..', '%2e', '*'))}",
        lambda: f"memory://{path}",
        lambda: f"`{path}`",
        lambda: f' "{path}" ',
        path.upper,
        lambda: rng.choice(owned.notices),
        lambda: f"{label}-{uuid.UUID(int=rng.getrandbits(128), version=4)}",
        lambda: f"{rng.choice(('hear', 'put', 'memory', ''))}-{identity}",
        lambda: f"{label}-{identity[:-1]}{rng.choice('0123456789abcdef')}",
        lambda: path[: rng.randrange(len(path))],
        lambda: f"{namespace}:{path}",
        lambda: f"{quote(namespace)}:{path}",
        lambda: f"../{namespace}/{path}",
        lambda: f"{path}\u0000",
        lambda: f"{path}?principal=alice",
        lambda: f"literal:{path}",
        lambda: f"{path}\n{path}",
    )
    return rng.choice(forms)()


def _tool_calls(rng: random.Random, path: str) -> tuple[str, dict[str, Any]]:
    calls: tuple[tuple[str, dict[str, Any]], ...] = (
        ("retrieve_final_answer_from_memory", {"memory_path": path}),
        ("memory_describe", {"memory_path": path}),
        ("memory_read", {"memory_path": path, "by": rng.choice(("chars", "lines", "items", "keys"))}),
        ("memory_read", {"memory_path": path, "offset": -rng.randrange(9), "limit": 9}),
        ("memory_grep", {"memory_path": path, "pattern": rng.choice(("c4nary", ".*", "c4nary[0-9a-f]+"))}),
        ("memory_query", {"memory_path": path, "expression": rng.choice(("@", "private", "keys(@)"))}),
        ("memory_edit", {"memory_path": path, "merge": {"a": 1}}),
        ("memory_edit", {"memory_path": path, "patch": [{"op": "copy", "from": "/private", "path": "/x"}]}),
        ("memory_edit", {"memory_path": path, "old_text": "c4nary", "new_text": "x"}),
        ("memory_put", {"value": path}),
        ("memory_put", {"value": {"a": [path]}}),
        ("memory_list", {"after": path}),
        ("memory_list", {"tool": rng.choice(("say", path, "c4nary"))}),
        ("memory_forget", {"memory_path": path}),
        ("memory_import", {"file": path}),
        ("memory_import", {"file": f"../store/{path}"}),
        ("memory_export", {"memory_path": path, "file": "stolen.json", "overwrite": True}),
        ("hear_mirrored", {"x": path}),
        ("hear_mirrored", {"x": [{"y": path}, path]}),
        ("hear_mirrored", {path: path}),
        ("say_mirrored", {"result": json.dumps({"content": [{"type": "text", "text": path}]}), "x": path}),
        ("refuse_mirrored", {"more": 3, "x": path}),
        (path, {}),
    )
    return rng.choice(calls)


def attempts(seed: int, owned: Owned) -> Iterator[Attempt]:
    """What a stranger tries, for ever."""
    rng = random.Random(seed)  # noqa: S311  # seeded, so that what failed can be tried again
    while True:
        path = _forms(rng, owned)
        tool, arguments = _tool_calls(rng, path)
        ways: tuple[Attempt, ...] = (
            ("tools/call", {"name": tool, "arguments": arguments}),
            ("tools/call", {"name": tool, "arguments": arguments, "_meta": {"principal": "alice", "a/owner": "alice"}}),
            ("tools/call", {"name": tool, "arguments": arguments, "requestState": path, "inputResponses": {}}),
            ("resources/read", {"uri": f"memory://{path}"}),
            ("resources/read", {"uri": f"memory://{quote(path)}"}),
            ("resources/read", {"uri": rng.choice(("mcp-mirror://upstreams", "memory://", "memory://*", path))}),
            ("resources/list", {"cursor": path} if rng.random() < 0.5 else {}),  # half
            ("resources/subscribe", {"uri": f"memory://{path}"}),
            ("completion/complete", {"ref": {"type": "ref/resource", "uri": f"memory://{path}"},
                                     "argument": {"name": "path", "value": path}}),
            ("prompts/get", {"name": path}),
            ("prompts/list", {}),
            ("tools/list", {}),
        )  # fmt: skip
        yield ways[0] if rng.random() < 0.6 else rng.choice(ways)  # most are calls


async def try_all(stranger: Visitor, owned: Owned, seed: int, count: int) -> list[str]:
    """Make attempts; those in whose answers anything of the other's was seen."""
    seen: list[str] = []
    rng = random.Random(seed)  # noqa: S311  # as above
    tries = attempts(seed, owned)

    async def work(share: int) -> None:
        for _ in range(share):
            method, params = next(tries)
            stolen = {"mcp-session-id": owned.session} if rng.random() < 0.05 else {}
            named = str(params.get("name") or params.get("uri") or "")
            fits_a_header = named.isprintable() and named == named.strip()
            modern = fits_a_header and not stolen and rng.random() < 0.3
            answer = await stranger.ask(method, params, modern=modern, **stolen)
            sent = json.dumps(params)
            if found := [word for word in owned.seen_in(answer) if word not in sent]:
                seen.append(f"{method} {sent[:300]} -> {found}: {answer[:500]}")

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(work, count // 8)
    return seen

"""Principals cannot read values of others, and foreign paths look like unknown ones."""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import sys
import time
import uuid
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from gateway_processes import forked_upstream
from http_sessions import open_session
from samples import sample
from statistical_tests import mann_whitney
from tests.auth.conftest import HASHES, serving_gateway
from tests.auth.strangers import Visitor, furnish, try_all, visiting
from tests.end_to_end.conftest import SERVERS

from mcp_mirror.callers import LOCAL
from mcp_mirror.memory.tools.lookup import PATH
from mcp_mirror.memory.tools.table import TOOLS as MEMORY_TOOLS

if TYPE_CHECKING:
    from redis_process import RedisProcess
    from tests.end_to_end.conftest import Configured

ATTEMPTS = int(os.environ.get("STRANGER_ATTEMPTS", "160"))
"""For each store. 34,000 make 100,000 over three."""
PAIRS = int(os.environ.get("STRANGER_PAIRS", "0"))
"""Of requests whose times are compared; 0: none are."""
SEED = int(os.environ.get("STRANGER_SEED", "20261120"))
RELAY = Path(__file__).parents[1] / "relay" / "upstream.py"

STORES = ["memory", "disk", "redis"]
own_store = pytest.mark.parametrize("store", sample(STORES, lambda store: store == "disk"))


@pytest.fixture
def guarded(store: str, configured: Configured, raw: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A gateway with two principals and all memory tools, on each store."""
    chosen: dict[str, Any] = {"kind": store, "path": str(tmp_path / "store") if store == "disk" else None}
    if store == "redis":
        server: RedisProcess = request.getfixturevalue("redis_server")
        chosen |= {"url": server.url, "prefix": f"{uuid.uuid4()}:"}
    (tmp_path / "exchange").mkdir()
    tools = {"roots": [str(tmp_path / "exchange")]}
    return configured(
        {"raw": raw()}, store=chosen, auth={"tokens": HASHES}, memory_tools=tools, limits={"calls_per_minute": "none"}
    )


@own_store
async def test_a_principal_cannot_use_values_of_another(guarded: Path, store: str) -> None:
    rng = random.Random(f"{SEED} {store}")  # noqa: S311  # so that it can be tried again
    async with AsyncExitStack() as stack:
        url = (await stack.enter_async_context(serving_gateway(guarded))).url
        alice = await stack.enter_async_context(visiting(url, "alice"))
        bob = await stack.enter_async_context(visiting(url, "bob"))
        owned = await furnish(alice, rng, 24)
        assert await try_all(bob, owned, rng.getrandbits(64), ATTEMPTS) == []
        listed = await alice.call("memory_list")
        for path in (*owned.revealed, *owned.hidden)[:8]:  # nor was anything harmed
            assert "c4nary" in await alice.call("memory_read", memory_path=path)
        assert owned.seen_in(listed)
        assert not owned.seen_in(await bob.call("memory_list"))


@own_store
async def test_by_default_principals_do_not_evict_values_of_others(guarded: Path) -> None:
    sections = json.loads(guarded.read_text())
    sections["store"]["max_values"] = 40
    guarded.write_text(json.dumps(sections))
    async with AsyncExitStack() as stack:
        url = (await stack.enter_async_context(serving_gateway(guarded))).url
        alice = await stack.enter_async_context(visiting(url, "alice"))
        bob = await stack.enter_async_context(visiting(url, "bob"))
        paths = [path_in(await alice.call("memory_put", value=f"mine {number}")) for number in range(10)]
        stored = [path_in(await bob.call("memory_put", value=f"value {number}")) for number in range(60)]
        for number, path in enumerate(paths):
            assert f"mine {number}" in await alice.call("memory_read", memory_path=path)
        assert "was evicted to make room" in await bob.call("memory_read", memory_path=stored[49])
        assert "value 50" in await bob.call("memory_read", memory_path=stored[50])  # a quarter of the store is its own


def path_in(answer: str) -> str:
    (path,) = set(re.findall(r"memory_put-[0-9a-f-]{36}", answer))
    return str(path)


TOOLS: list[tuple[str, dict[str, Any]]] = [
    ("retrieve_final_answer_from_memory", {"memory_path": "{}"}),
    ("retrieve_final_answer_from_memory", {"memory_path": "{}/private"}),
    ("memory_describe", {"memory_path": "{}"}),
    ("memory_read", {"memory_path": "{}/rows"}),
    ("memory_grep", {"memory_path": "{}", "pattern": "x"}),
    ("memory_query", {"memory_path": "{}", "expression": "@"}),
    ("memory_edit", {"memory_path": "{}", "merge": {"a": 1}}),
    ("memory_forget", {"memory_path": "{}"}),
    ("memory_export", {"memory_path": "{}", "file": "x.json"}),
    ("memory_list", {"after": "{}"}),
    ("hear_mirrored", {"x": "{}"}),
    ("hear_mirrored", {"x": ["{}/private/0", "{}"]}),
]


def test_each_memory_tool_with_a_path_is_among_those_that_are_tried() -> None:
    with_path = {name for name, tool in MEMORY_TOOLS.items() if PATH in tool.properties}
    assert with_path <= {name for name, _ in TOOLS}, "Add a call of the new tool to TOOLS of this file."


async def answers_of(visitor: Visitor, path: str) -> list[str]:
    """The answers of all memory tools, resources and a twin for a path, without the path itself."""
    answers = [await visitor.call(tool, **json.loads(json.dumps(given).replace("{}", path))) for tool, given in TOOLS]
    answers += [await visitor.ask("resources/read", {"uri": f"memory://{path}{more}"}) for more in ("", "/private")]
    answers += [await visitor.ask("resources/list", {"cursor": path})]
    answers += [await visitor.ask("resources/read", {"uri": f"memory://{path}"}, modern=True)]
    return [answer.replace(path, "PATH").partition('"id":')[2].partition(",")[2].rstrip() for answer in answers]


@own_store
async def test_foreign_expired_and_unknown_paths_return_the_same_error(
    guarded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, passed = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: clock() + sum(passed))
    sections = json.loads(guarded.read_text())
    sections["store"]["ttl"] = 60
    guarded.write_text(json.dumps(sections))
    async with AsyncExitStack() as stack:
        url = (await stack.enter_async_context(serving_gateway(guarded))).url
        alice = await stack.enter_async_context(visiting(url, "alice"))
        bob = await stack.enter_async_context(visiting(url, "bob"))
        owned = await furnish(alice, random.Random(SEED), 2)  # noqa: S311  # as above
        (foreign,) = owned.revealed
        unknown = f"say-{uuid.uuid4()}"
        assert await answers_of(bob, foreign) == await answers_of(bob, unknown)
        passed.append(600)
        for path in (owned.hidden[0], foreign):
            assert "expired at" in await alice.call("memory_describe", memory_path=path)
        assert await answers_of(bob, foreign) == await answers_of(bob, unknown)


async def test_an_elicitation_of_another_principal_cannot_be_answered(configured: Configured) -> None:
    upstream = forked_upstream(str(RELAY), "stdio", "2025-11-25")
    keys = ["k" * 32]  # as replicas have them, so that a restart would not help either
    config = configured({"up": upstream}, auth={"tokens": HASHES}, server={"state_keys": keys})
    able: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
    asking = {"name": "interview_mirrored", "arguments": {"rounds": "form"}, "_meta": able}
    async with AsyncExitStack() as stack:
        url = (await stack.enter_async_context(serving_gateway(config))).url
        alice = await stack.enter_async_context(visiting(url, "alice"))
        bob = await stack.enter_async_context(visiting(url, "bob"))
        required = json.loads(await alice.ask("tools/call", asking, modern=True))["result"]
        assert required["resultType"] == "input_required"
        (key,) = required["inputRequests"]
        answer = {key: {"action": "accept", "content": {"name": "Ada"}}}
        answered = {**asking, "inputResponses": answer, "requestState": required["requestState"]}
        stolen = json.loads(await bob.ask("tools/call", answered, modern=True))
        forged = json.loads(await bob.ask("tools/call", {**answered, "requestState": "v1.AAAA"}, modern=True))
        assert stolen["error"] == forged["error"]
        assert stolen["error"]["data"] == {"reason": "invalid_request_state"}
        own = json.loads(await alice.ask("tools/call", answered, modern=True))["result"]
        assert "Ada" in json.dumps(own)


async def test_a_late_message_about_a_call_reaches_no_other_principal(configured: Configured) -> None:
    upstream = {"command": sys.executable, "args": ["-S", str(SERVERS / "late.py")], "scope": "shared"}
    async with AsyncExitStack() as stack:
        config = configured({"late": upstream}, auth={"tokens": HASHES})
        url = (await stack.enter_async_context(serving_gateway(config))).url
        alice = await stack.enter_async_context(visiting(url, "alice"))
        bob = await stack.enter_async_context(visiting(url, "bob"))
        alice.session = await open_session(alice.http, url, {"elicitation": {}, "sampling": {}})
        await alice.call("work_mirrored", subject="her first call")
        assert "a line about her first call" in await alice.call("work_mirrored", subject="her second call")
        await bob.call("work_mirrored", subject="his call")
        assert "his call" not in await alice.call("work_mirrored", subject="her third call")


async def test_a_copied_preview_is_refused_whatever_others_store(configured: Configured, raw: Any) -> None:
    async with AsyncExitStack() as stack:
        config = configured({"raw": raw()}, auth={"tokens": HASHES}, limits={"calls_per_minute": "none"})
        url = (await stack.enter_async_context(serving_gateway(config))).url
        alice = await stack.enter_async_context(visiting(url, "alice"))
        bob = await stack.enter_async_context(visiting(url, "bob"))

        async def store(visitor: Visitor, text: str) -> str:
            result = json.dumps({"content": [{"type": "text", "text": text * 900}]})
            answer = await visitor.call("say_mirrored", result=result)
            notice: str = json.loads(answer.partition("data: ")[2] or answer)["result"]["content"][0]["text"]
            return next(line.removeprefix("| ") for line in notice.splitlines() if line.endswith("..."))

        for visitor in (alice, bob):
            visitor.session = await open_session(visitor.http, url)
        copied = await store(bob, "of his call ")
        for _ in range(300):
            await store(alice, "of hers ")
        assert "has lines of a preview" in await bob.call("hear_mirrored", text=copied)
        assert "has lines of a preview" not in await alice.call("hear_mirrored", text=copied)


async def test_credentials_of_clients_are_not_forwarded_to_upstreams(configured: Configured, raw: Any) -> None:
    canary = "c00kie-c4nary-0123456789"
    config = configured({"raw": raw()}, auth={"tokens": HASHES}, mirror={"capture": "never"})
    shown = {"cookie": f"session={canary}", "x-api-key": canary, "x-custom": canary, "proxy-authorization": canary}
    async with AsyncExitStack() as stack:
        url = (await stack.enter_async_context(serving_gateway(config))).url
        alice = await stack.enter_async_context(visiting(url, "alice"))
        token = alice.http.headers["authorization"].removeprefix("Bearer ")
        meta = {
            "authorization": "Bearer other", "example.com/Authorization": "x", "cookie": "a=b",
            "nested": {"deep": [f"Bearer {token}"]}, "copied": canary, "example.com/kept": "kept",
        }  # fmt: skip
        for modern in (False, True):
            call = {"name": "hear_mirrored", "arguments": {"said": "this"}, "_meta": meta}
            received = await alice.ask("tools/call", call, modern=modern, **shown)
            assert "kept" in received
            assert not [word for word in (token, canary, "uthorization", "cookie", "nested") if word in received]


@own_store
@pytest.mark.skipif(not PAIRS, reason="measured by `make soak`")
@pytest.mark.timeout(1800)
async def test_response_times_do_not_reveal_paths_of_another_principal(guarded: Path) -> None:
    async with AsyncExitStack() as stack:
        url = (await stack.enter_async_context(serving_gateway(guarded))).url
        alice = await stack.enter_async_context(visiting(url, "alice"))
        bob = await stack.enter_async_context(visiting(url, "bob"))
        owned = await furnish(alice, random.Random(SEED), 24)  # noqa: S311  # as above
        times: tuple[list[float], list[float]] = ([], [])
        rng = random.Random(SEED)  # noqa: S311  # as above
        for _ in range(PAIRS):
            paths = [rng.choice(owned.revealed), f"say-{uuid.UUID(int=rng.getrandbits(128), version=4)}"]
            for which in rng.sample((0, 1), 2):
                began = time.perf_counter()
                await bob.call("memory_describe", memory_path=paths[which])
                times[which].append(time.perf_counter() - began)
        assert abs(mann_whitney(*times)) < 3.29, [statistics.median(one) for one in times]  # p = 0.001


@own_store
@pytest.mark.skipif(not PAIRS, reason="measured by `make soak`")
@pytest.mark.timeout(1800)
async def test_store_times_do_not_reveal_the_memory_of_others(guarded: Path) -> None:
    rng = random.Random(SEED)  # noqa: S311  # as above
    size = 100_000  # the disk store keeps it in a file
    async with AsyncExitStack() as stack:
        url = (await stack.enter_async_context(serving_gateway(guarded))).url
        alice = await stack.enter_async_context(visiting(url, "alice"))
        bob = await stack.enter_async_context(visiting(url, "bob"))
        text = rng.randbytes(size // 2).hex()
        await alice.call("memory_put", value=text)
        times: dict[str, tuple[list[float], list[float]]] = {"put": ([], []), "forget": ([], [])}
        for _ in range(PAIRS):
            for which in rng.sample((0, 1), 2):
                value = rng.randbytes(size // 2).hex() if which else text
                began = time.perf_counter()
                answer = await bob.call("memory_put", value=value)
                times["put"][which].append(time.perf_counter() - began)
                path = path_in(answer)
                began = time.perf_counter()
                assert "Forgotten" in await bob.call("memory_forget", memory_path=path)
                times["forget"][which].append(time.perf_counter() - began)
        for what, measured in times.items():
            assert abs(mann_whitney(*measured)) < 3.29, (what, [statistics.median(one) for one in measured])


def test_the_local_namespace_differs_from_those_of_principals() -> None:
    assert LOCAL not in {json.dumps(["token", name]) for name in (*HASHES, LOCAL)}

"""Each person's own credentials at an upstream: `client_headers` and `client_env`."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from gateway_processes import forked_python, forked_upstream
from http_sessions import HEADERS
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.subscriptions import ResourceUpdated
from mcp_types import ElicitResult
from redis_process import free_port
from samples import sample
from tests.auth.conftest import HASHES, serving_gateway
from tests.auth.strangers import Visitor, visiting
from tests.end_to_end.conftest import BOUND
from waiting import until

from mcp_mirror import Mirror
from mcp_mirror.config import load_config
from mcp_mirror.config.lock_file import read_pins

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.end_to_end.conftest import Configured, OpenLines, Run, Serve

PROGRAM = str(Path(__file__).with_name("personal_upstream.py"))
HEADER = "x-crm-authorization"
SHARED = "Bearer shared-c4nary"
OLD, NEW = "2025-11-25", "2026-07-28"
COMBINATIONS = list(itertools.product(("http", "stdio"), (OLD, NEW), (OLD, NEW)))
"""The transport and the protocol version of the upstream, and the protocol version of the clients."""
combinations = pytest.mark.parametrize(
    ("wire", "version", "client"),
    sample(COMBINATIONS, lambda one: one in (("http", NEW, OLD), ("stdio", OLD, NEW))),
    ids=lambda one: str(one)[:5],
)


@asynccontextmanager
async def personal(wire: str, version: str, **keys: Any) -> AsyncIterator[dict[str, Any]]:
    """An upstream with shared credentials, to which each person sends others."""
    if wire == "stdio":
        started = forked_upstream(PROGRAM, "stdio", version)
        env = {**started.get("env", {}), "CRM_TOKEN": SHARED}
        yield {**started, "env": env, "client_env": {"CRM_TOKEN": HEADER}, **keys}
        return
    process = await asyncio.create_subprocess_exec(
        *forked_python(PROGRAM, "http", version), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        port = (await asyncio.wait_for(process.stdout.readline(), BOUND)).decode().strip()
        headers = {"authorization": SHARED, "X-Shared": "also"}
        yield {
            "url": f"http://127.0.0.1:{port}/mcp",
            "headers": headers,
            "client_headers": {"Authorization": HEADER},
            **keys,
        }
    finally:
        process.kill()
        await asyncio.wait_for(process.communicate(), BOUND)


class Person:
    """A client of one protocol version that sends a credential with each request."""

    def __init__(self, visitor: Visitor, client: str) -> None:
        self.visitor = visitor
        self.is_modern = client == NEW

    async def ask(self, method: str, credential: str | None = None, **params: Any) -> dict[str, Any]:
        given: dict[str, Any] = {} if credential is None else {HEADER: credential.encode("latin-1")}
        answer = await self.visitor.ask(method, params, modern=self.is_modern, **given)
        lines = [line.partition(": ")[2] for line in answer.splitlines() if line.startswith("data: {")] or [answer]
        message: dict[str, Any] = json.loads(lines[-1])
        return message

    async def call(self, credential: str | None = None, tool: str = "reveal_mirrored", **arguments: Any) -> str:
        answer = await self.ask("tools/call", credential, name=tool, arguments=arguments)
        assert "result" in answer, answer
        return str(answer["result"]["content"][0]["text"])

    async def reveal(self, credential: str, tool: str = "reveal_mirrored") -> dict[str, Any]:
        return dict(json.loads((await self.call(credential, tool)).partition("\n")[0]))


@asynccontextmanager
async def people(
    configured: Configured, upstreams: dict[str, Any], client: str, **sections: Any
) -> AsyncIterator[tuple[Person, Person, Any]]:
    """Alice and Bob at a gateway in this process, and the gateway."""
    sections = {"auth": {"tokens": HASHES}, "mirror": {"capture": "never"}, **sections}
    sections = {name: section for name, section in sections.items() if section is not None}
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(serving_gateway(configured(upstreams, **sections)))
        alice, bob = [await stack.enter_async_context(visiting(served.url, name)) for name in ("alice", "bob")]
        yield Person(alice, client), Person(bob, client), served.application


MISSING = f"Upstream 'crm' needs the request header `{HEADER}`"


@combinations
async def test_each_person_reaches_an_upstream_with_credentials_of_their_own(
    wire: str, version: str, client: str, configured: Configured
) -> None:
    async with (
        personal(wire, version) as crm,
        people(configured, {"crm": crm}, client) as (alice, bob, application),
    ):
        first = await alice.reveal("Bearer of-alice")
        assert first["credential"] == "Bearer of-alice"
        assert first["shared"] == ("also" if wire == "http" else "")
        assert (await bob.reveal("Bearer of-bob"))["credential"] == "Bearer of-bob"
        same = await bob.reveal("Bearer of-alice")
        assert same["credential"] == "Bearer of-alice"
        if wire == "stdio":
            assert same["process"] != first["process"]  # equal credentials of two principals share nothing
        assert await alice.reveal("Bearer of-alice") == first
        assert (await alice.reveal("Bearer new"))["credential"] == "Bearer new"
        (upstream,) = application.upstreams
        assert len(upstream.connections) == 5  # its own, and two of each


@combinations
async def test_no_request_without_the_header_reaches_the_upstream(
    wire: str, version: str, client: str, configured: Configured, tmp_path: Path
) -> None:
    audit = tmp_path / "audit.jsonl"
    async with (
        personal(wire, version) as crm,
        people(configured, {"crm": crm}, client, audit={"path": str(audit)}) as (alice, bob, application),
    ):
        assert "Bearer of-bob" in await bob.call("Bearer of-bob")
        (upstream,) = application.upstreams
        assert MISSING in await alice.call()
        for bad in ("", "Bearer \xff"):
            assert MISSING in await alice.call(bad)
        requests: list[tuple[str, dict[str, Any]]] = [
            ("resources/read", {"uri": "notes://mine"}),
            ("prompts/get", {"name": "greet", "arguments": {"who": "Ann"}}),
            ("completion/complete", {"ref": {"type": "ref/prompt", "name": "greet"},
                                     "argument": {"name": "who", "value": ""}}),
        ]  # fmt: skip
        if client == OLD:
            requests.append(("resources/subscribe", {"uri": "notes://mine"}))
        for method, params in requests:
            assert MISSING in (await alice.ask(method, **params))["error"]["message"], method
            assert "error" not in (answer := await alice.ask(method, "Bearer of-alice", **params)), method
            assert SHARED not in json.dumps(answer)
            assert "Bearer of-alice" in json.dumps(answer) or method == "resources/subscribe"
        assert len(upstream.connections) == 3
    refused = [one for one in map(json.loads, audit.read_text().splitlines()) if one["event"] == "refusal"]
    assert {one["outcome"] for one in refused} == {"missing header"}
    assert len(refused) == 3 + len(requests) - (client == OLD)


@combinations
async def test_lists_are_those_of_the_caller_or_of_the_configuration(
    wire: str, version: str, client: str, configured: Configured
) -> None:
    async with personal(wire, version) as crm, people(configured, {"crm": crm}, client) as (alice, bob, _):
        tools = (await alice.ask("tools/list"))["result"]["tools"]
        assert "reveal_mirrored" in [tool["name"] for tool in tools]
        for person, credential, owner in (
            (alice, "Bearer of-alice", "Bearer of-alice"),
            (bob, "Bearer of-bob", "Bearer of-bob"),
            (alice, None, SHARED),
        ):
            listed = (await person.ask("resources/list", credential))["result"]["resources"]
            assert f"notes of {owner}" in [one.get("name") for one in listed]


@combinations
async def test_an_upstream_may_have_no_credentials_of_the_gateway(
    wire: str, version: str, client: str, configured: Configured
) -> None:
    async with personal(wire, version) as crm:
        crm["env" if wire == "stdio" else "headers"] |= {"CRM_TOKEN" if wire == "stdio" else "authorization": "revoked"}
        async with people(configured, {"crm": crm}, client) as (alice, bob, _):
            assert (await bob.reveal("Bearer of-bob"))[
                "credential"
            ] == "Bearer of-bob"  # before it has listed any tools
            for credential, is_served in ((None, False), ("Bearer of-alice", True)):
                result = (await alice.ask("tools/list", credential))["result"]
                assert ("reveal_mirrored" in [tool["name"] for tool in result["tools"]]) is is_served
                if client == NEW:
                    assert result["cacheScope"] == "private"
                    found = str(await alice.ask("server/discover", credential))
                    assert (f"Server crm needs the header {HEADER} in requests." in found) is not is_served
            listed = (await alice.ask("resources/list", "Bearer of-alice"))["result"]["resources"]
            assert "notes of Bearer of-alice" in [one.get("name") for one in listed]
            assert "by Bearer of-alice" in str(await alice.ask("resources/read", "Bearer of-alice", uri="notes://mine"))
            assert (await alice.reveal("Bearer of-alice"))["credential"] == "Bearer of-alice"


async def test_a_header_that_is_sent_twice_is_refused(configured: Configured) -> None:
    async with personal("http", NEW) as crm, people(configured, {"crm": crm}, OLD) as (alice, *_):
        visitor = alice.visitor
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "reveal_mirrored"}}
        twice = [*(HEADERS | visitor.session).items(), (HEADER, "Bearer one"), (HEADER, "Bearer two")]
        answer = await visitor.http.post(visitor.url, json=call, headers=twice)
        assert MISSING in answer.text


@pytest.mark.parametrize("shared", [SHARED, "revoked"])
@pytest.mark.parametrize("client", [OLD, NEW])
async def test_clients_without_a_token_have_credentials_of_their_own(
    client: str, shared: str, configured: Configured
) -> None:
    async with personal("http", NEW) as crm:
        crm["headers"]["authorization"] = shared
        async with people(configured, {"crm": crm}, client, auth=None) as (alice, bob, _):
            assert (await alice.reveal("Bearer one"))["credential"] == "Bearer one"
            assert (await bob.reveal("Bearer two"))["credential"] == "Bearer two"
            assert (await alice.reveal("Bearer one"))["credential"] == "Bearer one"
            assert MISSING in await alice.call()


async def test_a_connection_with_a_former_credential_ends_when_it_is_idle(
    configured: Configured,
) -> None:
    sections = {"server": {"session_idle": 1}}
    async with (
        personal("http", NEW) as crm,
        people(configured, {"crm": crm}, OLD, **sections) as (alice, _, application),
    ):
        (upstream,) = application.upstreams
        await alice.reveal("Bearer old")
        await alice.reveal("Bearer new")
        assert len(upstream.connections) == 3

        async def is_one_fewer() -> bool:
            await alice.ask("ping")  # the session, and with it the present connection, stays
            return len(upstream.connections) < 3

        await until(is_one_fewer)
        (_, kept) = upstream.connections
        assert kept.settings.policy.endpoint.headers["Authorization"] == "Bearer new"
        assert (await alice.reveal("Bearer new"))["credential"] == "Bearer new"


@pytest.mark.slow
@pytest.mark.parametrize("client", [OLD, NEW])
async def test_the_limit_of_connections_applies_to_credentials(client: str, configured: Configured) -> None:
    limits = {"limits": {"connections_per_principal": 2}}
    async with (
        personal("http", NEW, timeout=20) as crm,
        people(configured, {"crm": crm}, client, **limits) as (alice, _, application),
    ):
        (upstream,) = application.upstreams
        for number in range(4):
            answer = await alice.reveal(f"Bearer {number}")
            assert answer["credential"] == f"Bearer {number}"
            assert len(upstream.connections) <= 3


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_an_input_request_is_answered_only_with_the_same_credential(version: str, configured: Configured) -> None:
    server = {"state_keys": ["k" * 32]}
    able: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
    asking = {"name": "interview_mirrored", "arguments": {"rounds": "form"}, "_meta": able}
    async with (
        personal("http", version) as crm,
        people(configured, {"crm": crm}, NEW, server=server) as (alice, bob, _),
    ):
        required = (await alice.ask("tools/call", "Bearer of-alice", **asking))["result"]
        (key,) = required["inputRequests"]
        answer = {key: {"action": "accept", "content": {"name": "Ada"}}}
        answered = {**asking, "inputResponses": answer, "requestState": required["requestState"]}
        for person, credential in ((bob, "Bearer of-alice"), (alice, "Bearer other")):
            refused = await person.ask("tools/call", credential, **answered)
            assert refused["error"]["data"] == {"reason": "invalid_request_state"}, refused
        assert MISSING in json.dumps(await alice.ask("tools/call", **answered))
        assert "Ada" in json.dumps(await alice.ask("tools/call", "Bearer of-alice", **answered))


@combinations
async def test_requests_of_the_upstream_reach_the_person(
    wire: str, version: str, client: str, configured: Configured
) -> None:
    asked: list[str] = []

    async def answer(context: object, params: Any) -> ElicitResult:
        del context
        asked.append(params.message)
        return ElicitResult(action="accept", content={"name": "Ada"})

    async with personal(wire, version) as crm, people(configured, {"crm": crm}, client) as (alice, *_):
        headers = {**alice.visitor.http.headers, HEADER: "Bearer of-alice"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=BOUND) as http,
            Client(
                streamable_http_client(alice.visitor.url, http_client=http),
                mode="legacy" if client == OLD else "auto",
                elicitation_callback=answer,
            ) as person,
        ):
            result = await person.call_tool("interview_mirrored", {"rounds": "form"})
            assert "Ada" in str(result.content)
            revealed = await person.call_tool("reveal_mirrored", {})
            assert "Bearer of-alice" in str(revealed.content)
    assert len(asked) == 1


@pytest.mark.parametrize("wire", ["http", "stdio"])
async def test_updates_of_a_resource_reach_its_person(wire: str, configured: Configured) -> None:
    async with personal(wire, OLD) as crm, people(configured, {"crm": crm}, NEW) as (alice, _, application):
        headers = {**alice.visitor.http.headers, HEADER: "Bearer of-alice"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=BOUND) as http,
            Client(streamable_http_client(alice.visitor.url, http_client=http)) as client,
            client.listen(resource_subscriptions=["notes://one"]) as subscription,
        ):
            (upstream,) = application.upstreams
            await until(
                lambda: client.call_tool("watched_mirrored", {}), lambda result: "notes://one" in str(result.content)
            )
            assert len(upstream.connections) == 2
            async with asyncio.timeout(BOUND):
                await client.call_tool("touch_mirrored", {"uri": "notes://one"})
                assert await anext(aiter(subscription)) == ResourceUpdated(uri="notes://one")


async def test_a_reload_adds_and_removes_the_need_of_a_header(configured: Configured) -> None:
    sections: dict[str, Any] = {"auth": {"tokens": HASHES}, "mirror": {"capture": "never"}}
    async with personal("http", NEW) as crm:
        without = {key: value for key, value in crm.items() if key != "client_headers"}
        async with people(configured, {"crm": without}, NEW) as (alice, _, application):
            assert (await alice.reveal("Bearer of-alice"))["credential"] == SHARED
            await reload(application, configured({"crm": crm}, **sections))
            assert MISSING in await alice.call()
            assert (await alice.reveal("Bearer of-alice"))["credential"] == "Bearer of-alice"
            await reload(application, configured({"crm": without}, **sections))
            assert (await alice.reveal("Bearer of-alice"))["credential"] == SHARED


async def reload(application: Any, path: Path) -> None:
    config = load_config(path, {})
    application.reload(config, read_pins(config.lock))


@pytest.mark.parametrize("wire", ["http", "stdio"])
async def test_a_rejected_credential_affects_only_its_person(wire: str, configured: Configured) -> None:
    async with personal(wire, OLD) as crm, people(configured, {"crm": crm}, OLD) as (alice, bob, _):
        answer = await alice.call("Bearer revoked-c4nary-0123")
        assert "Upstream 'crm' is down" in answer
        assert "c4nary-0123" not in answer
        assert (await bob.reveal("Bearer of-bob"))["credential"] == "Bearer of-bob"
        assert (await alice.reveal("Bearer good"))["credential"] == "Bearer good"


@pytest.mark.parametrize("times", [1, 1 << 17], ids=["small", "in a spool file"])
async def test_an_error_that_quotes_a_credential_is_redacted(times: int, configured: Configured) -> None:
    async with personal("http", NEW) as crm, people(configured, {"crm": crm}, NEW) as (alice, *_):
        answer = await alice.call("Bearer c4nary-0123", "reject_mirrored", times=times)
        assert "not for ***" in answer
        assert "c4nary" not in answer


@pytest.mark.posix
@pytest.mark.parametrize("wire", ["http", "stdio"])
async def test_the_gateway_writes_no_credential_of_a_person(
    wire: str, configured: Configured, serve: Serve, tmp_path: Path
) -> None:
    canary, revoked = "c4nary-of-alice-0123456789", "revoked-c4nary-of-alice-0123456789"
    async with personal(wire, OLD) as crm, AsyncExitStack() as stack:
        port = free_port()
        config = configured(
            {"crm": crm},
            auth={"tokens": HASHES},
            store={"kind": "disk"},
            audit={"path": "audit.jsonl"},
            server={"metrics": f"127.0.0.1:{port}"},
        )
        served = await stack.enter_async_context(serve(config, "-vv"))
        alice = Person(await stack.enter_async_context(visiting(served.url, "alice")), OLD)
        modern = Person(alice.visitor, NEW)
        answers = ""
        for person in (alice, modern):
            for credential in (f"Bearer {canary}", f"Bearer {revoked}"):
                answers += json.dumps(
                    await person.ask("tools/call", credential, name="grow_mirrored", arguments={"rows": 500})
                )
                answers += json.dumps(await person.ask("resources/read", credential, uri="no://such"))
                answers += json.dumps(await person.ask("tools/call", credential, name="no_such_tool"))
            answers += json.dumps(await person.ask("resources/read", uri="mcp-mirror://upstreams"))
        served.process.send_signal(signal.SIGHUP)
        await until(lambda: b"configuration was reloaded" in b"".join(served.stderr))
        async with httpx2.AsyncClient(timeout=BOUND, headers=alice.visitor.http.headers) as client:
            answers += (await client.get(f"http://127.0.0.1:{port}/metrics")).text
            for path in ("session", "calls", "values", "savings"):
                shown = await client.get(f"{served.url.removesuffix('/mcp')}/api/{path}")
                assert shown.status_code == 200, path
                answers += shown.text
    log = b"".join(served.stderr).decode()
    assert "upstream crm (of one client) is down" in log
    assert "c4nary" not in log
    assert "c4nary" not in answers
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "mirror.yaml"]
    assert len(written) >= 3
    assert [path for path in written if b"of-alice" in path.read_bytes()] == []


async def test_on_stdio_the_configured_values_are_used(configured: Configured, open_lines: OpenLines, run: Run) -> None:
    async with personal("stdio", OLD) as crm:
        config = configured({"crm": crm}, mirror={"capture": "never"})
        async with open_lines(config) as client:
            await client.greet()
            assert SHARED in await client.text("reveal_mirrored")
        checked = await run("check", "--config", str(config))
        assert checked.code == 0
        assert f"crm: over HTTP each request needs the header {HEADER}; on stdio configured values apply" in checked.out
        called = await run("call", "reveal_mirrored", "--config", str(config))
        assert SHARED in called.out


async def test_calls_of_a_program_use_the_configured_values() -> None:
    async with personal("http", NEW) as crm, Mirror(upstreams={"crm": crm}) as mirror:
        assert SHARED in str(await mirror.call("reveal_mirrored"))


@pytest.mark.parametrize("client", [OLD, NEW])
async def test_a_credential_does_not_reach_other_upstreams(client: str, configured: Configured, raw: Any) -> None:
    meta = {"copied": "Bearer of-alice-0123", "example.com/kept": "kept"}
    async with personal("http", NEW) as crm, people(configured, {"crm": crm, "raw": raw()}, client) as (alice, *_):
        hear = {"name": "hear_mirrored", "arguments": {"said": "this"}, "_meta": meta}
        received = json.dumps(await alice.ask("tools/call", "Bearer of-alice-0123", **hear))
        assert "kept" in received
        assert "of-alice" not in received


async def test_pages_of_configured_origins_may_send_the_header(configured: Configured) -> None:
    origin = {"server": {"allowed_origins": ["https://app.example.com"]}}
    async with personal("http", NEW) as crm, people(configured, {"crm": crm}, NEW, **origin) as (alice, *_):
        for page, is_allowed in (("https://app.example.com", True), ("https://evil.example.com", False)):
            asked = {"origin": page, "access-control-request-method": "POST", "access-control-request-headers": HEADER}
            async with httpx2.AsyncClient(timeout=BOUND) as browser:
                answer = await browser.options(alice.visitor.url, headers=asked)
            assert answer.headers.get("access-control-allow-origin") == (page if is_allowed else None)
            assert not is_allowed or HEADER in answer.headers["access-control-allow-headers"]


@pytest.mark.parametrize("at", ["", "/crm"])
async def test_the_endpoint_of_an_upstream_takes_the_header(at: str, configured: Configured) -> None:
    async with personal("http", NEW) as crm, people(configured, {"crm": crm}, NEW) as (alice, *_):
        alice.visitor.url += at
        tool = "reveal" if at else "reveal_mirrored"
        assert MISSING in await alice.call(tool=tool)
        assert (await alice.reveal("Bearer of-alice", tool))["credential"] == "Bearer of-alice"

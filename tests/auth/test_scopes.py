"""Scopes: upstreams and tools do not exist for tokens without their scope."""

from __future__ import annotations

import asyncio
import json
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from gateway_processes import forked_python, forked_upstream
from http_sessions import HEADERS, META, session_of
from tests.auth.conftest import HASHES, serving_gateway
from tests.auth.issuing import AUDIENCE, SigningKey, jwks
from tests.auth.strangers import MODERN, Visitor, visiting
from tests.end_to_end.conftest import BOUND
from waiting import until

from mcp_mirror.callers import Caller, ClientChannel, NullChannel
from mcp_mirror.config import load_config
from mcp_mirror.errors import RefusedError, UpstreamError
from mcp_mirror.gateway.input_required import build_input_required_reply, check_round, read_round
from mcp_mirror.payload.json_rpc import object_of
from mcp_mirror.security.pins import NO_PINS
from mcp_mirror.server.announcements import ListChange
from mcp_mirror.upstreams.content_filter import ContentFilteredChannel
from mcp_mirror.upstreams.elicitation import InputRequired

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Connect, Run

RELAY = Path(__file__).parents[1] / "relay" / "upstream.py"
ISSUER = "https://login.example.com"
KEY = SigningKey("one")
STATUS = "mcp-mirror://upstreams"

ASK_WATCHED = {"name": "crm_watched_mirrored", "arguments": {}}


@dataclass
class Recorder:
    """A session whose client can be asked, and whose token can change."""

    caller: Caller
    log_level: str | None = None
    wants_progress: bool = False
    is_waiting: bool = True
    session_channel: ClientChannel | None = None
    notifications: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        self.notifications.append((method, params))

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"asked": method, **params}


ERAS = (False, True)
"""Of a request: whether it is one of 2026."""


Upstream = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def speaking() -> Iterator[Upstream]:
    """An upstream of a protocol version; one process for all tests, with sessions of their own."""
    with ExitStack() as stack:
        urls: dict[str, str] = {}

        def upstream(version: str, **keys: Any) -> dict[str, Any]:
            if version not in urls:
                command = forked_python(str(RELAY), "http", version)
                process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
                stack.callback(process.kill)
                assert process.stdout is not None
                urls[version] = f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
            return {"url": urls[version], **keys}

        yield upstream


@pytest.fixture
def scoped(configured: Configured, speaking: Upstream, tmp_path: Path) -> Path:
    """Two upstreams that have all the same: `crm` takes a scope and some tools of it one more, `wiki` takes none."""
    (tmp_path / "jwks.json").write_text(jwks(KEY))
    auth = {
        "tokens": {"alice": {"hash": HASHES["alice"], "scopes": ["crm"]}, "bob": HASHES["bob"]},
        "issuers": [{"issuer": ISSUER, "jwks": "jwks.json", "audience": AUDIENCE}],
    }
    crm = speaking("2025-11-25", required_scopes="crm", overrides={"g*": {"required_scopes": ["crm.write"]}})
    return configured({"crm": crm, "wiki": speaking("2026-07-28")}, auth=auth, audit={"path": "audit.jsonl"})


@asynccontextmanager
async def both(config: Path) -> AsyncIterator[tuple[Visitor, Visitor]]:
    """Who may see `crm`, and who may not."""
    async with AsyncExitStack() as stack:
        url = (await stack.enter_async_context(serving_gateway(config))).url
        alice = await stack.enter_async_context(visiting(url, "alice"))
        yield alice, await stack.enter_async_context(visiting(url, "bob"))


def result_of(answer: str) -> Any:
    """An answer's result or error."""
    message = json.loads(answer.partition("data: ")[2] or answer)
    return message.get("result", message.get("error"))


async def names(visitor: Visitor, what: str, member: str, key: str, *, modern: bool) -> set[str]:
    listed = result_of(await visitor.ask(what, {}, modern=modern))
    return {one[key] for one in listed[member]}


TOOLS = "tools/list", "tools", "name"
RESOURCES = "resources/list", "resources", "uri"
TEMPLATES = "resources/templates/list", "resourceTemplates", "uriTemplate"
PROMPTS = "prompts/list", "prompts", "name"


async def test_tools_are_listed_only_with_their_scope(scoped: Path) -> None:
    async with both(scoped) as visitors:
        for modern in ERAS:
            alice, bob = (partial(names, visitor, modern=modern) for visitor in visitors)
            seen = await alice(*TOOLS)
            assert {"crm_echo_mirrored", "wiki_echo_mirrored", "wiki_grow_mirrored"} <= seen
            assert "crm_grow_mirrored" not in seen  # it takes another scope
            seen = await bob(*TOOLS)
            assert {"wiki_echo_mirrored", "wiki_grow_mirrored", "memory_read"} <= seen
            assert not {"crm_echo_mirrored", "crm_grow_mirrored"} & seen
            assert {"notes://one", "wiki+notes://one"} <= await alice(*RESOURCES)
            assert {uri for uri in await bob(*RESOURCES) if "notes" in uri} == {
                "notes://one",
                "notes://pixel",
            }  # under its own name, which is unique
            assert {"greet", "wiki_greet"} <= await alice(*PROMPTS)
            assert await bob(*PROMPTS) == {"greet", "interview"}
            assert len(await alice(*TEMPLATES)) == 1 + 2 * 2
            assert len(await bob(*TEMPLATES)) == 1 + 2


async def test_no_listing_mentions_an_upstream_without_its_scope(scoped: Path) -> None:
    async with both(scoped) as (alice, bob):
        for method, params in (
            ("server/discover", {}),
            ("resources/read", {"uri": STATUS}),
            ("tools/list", {}),
            ("resources/list", {}),
            ("resources/templates/list", {}),
            ("prompts/list", {}),
        ):
            answer = await bob.ask(method, params, modern=True)
            assert "crm" not in answer
        status = json.loads(
            result_of(await alice.ask("resources/read", {"uri": STATUS}, modern=True))["contents"][0]["text"]
        )
        crm, wiki = status["upstreams"]
        assert (crm["name"], crm["tools"]) == ("crm", wiki["tools"] - 1)  # one takes a scope that she has not


ARGUMENT = {"name": "a", "value": ""}
UNKNOWN: list[tuple[str, dict[str, Any]]] = [
    ("tools/call", {"name": "NAME_echo_mirrored", "arguments": {}}),
    ("tools/call", {"name": "NAME_grow_mirrored", "arguments": {}}),
    ("resources/read", {"uri": "NAME+notes://one"}),
    ("resources/subscribe", {"uri": "NAME+notes://one"}),
    ("prompts/get", {"name": "NAME_greet", "arguments": {"who": "Ada"}}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "NAME_greet"}, "argument": ARGUMENT}),
    ("completion/complete", {"ref": {"type": "ref/resource", "uri": "NAME+notes://by/{a}/{b}"}, "argument": ARGUMENT}),
]


async def test_a_hidden_upstream_is_answered_like_an_unknown_one(configured: Configured, speaking: Upstream) -> None:
    auth = {"tokens": {"alice": {"hash": HASHES["alice"], "scopes": ["crm"]}, "bob": HASHES["bob"]}}
    upstreams = {name: speaking("2025-11-25") for name in ("wiki", "crm")}
    upstreams["crm"]["required_scopes"] = ["crm"]

    async def answer(visitor: Visitor, asked: tuple[str, dict[str, Any]], name: str, *, modern: bool) -> str:
        method, params = asked
        filled = json.loads(json.dumps(params).replace("NAME", name))
        return json.dumps(result_of(await visitor.ask(method, filled, modern=modern)))

    async with both(configured(upstreams, auth=auth)) as (alice, bob):
        for modern, asked in product(ERAS, UNKNOWN):
            is_watched = asked[0] == "resources/subscribe"
            if is_watched and modern:
                continue  # that is asked for in another way
            hidden = await answer(bob, asked, "crm", modern=modern)
            assert hidden.replace("crm", "krm") == await answer(bob, asked, "krm", modern=modern)
            if not is_watched:  # the other upstream takes any
                assert await answer(alice, asked, "crm", modern=modern) != hidden


async def test_a_token_with_the_scope_uses_the_upstream(scoped: Path) -> None:
    async with both(scoped) as (alice, bob):
        assert '\\"deep\\": 1' in await alice.call("crm_echo_mirrored", value={"deep": 1})
        assert "Unknown tool" in await alice.call("crm_grow_mirrored")
        assert "What is at" in await alice.ask("resources/read", {"uri": "notes://one"})
        assert "What is at" in await bob.ask("resources/read", {"uri": "notes://one"})
        assert "Greet Ada" in await alice.ask("prompts/get", {"name": "greet", "arguments": {"who": "Ada"}})
        both_hidden = scoped.with_name("audit.jsonl").read_text()
        assert [json.loads(line)["outcome"] for line in both_hidden.splitlines() if "crm_grow_mirrored" in line] == [
            "insufficient scope"
        ]


async def test_the_scopes_are_those_of_the_token_of_each_request(scoped: Path) -> None:
    """Also within one session, whose first token had others."""
    async with both(scoped) as (alice, _):
        tokens = {scope: KEY.sign(ISSUER, sub="carla", scope=scope) for scope in ("crm crm.write", "crm", "")}
        carla = Visitor("carla", alice.url, alice.http)
        rights = {scope: {"authorization": f"Bearer {token}"} for scope, token in tokens.items()}
        carla.session = await session_of(alice.url, rights["crm crm.write"])
        call = {"name": "crm_echo_mirrored", "arguments": {"a": 1}}
        for _ in range(2):
            seen = [await carla.ask("tools/list", {}, modern=False, **rights[scope]) for scope in rights]
            assert ['"crm_grow_mirrored"' in one for one in seen] == [True, False, False]
            assert ['"crm_echo_mirrored"' in one for one in seen] == [True, True, False]
            called = [await carla.ask("tools/call", call, modern=False, **rights[scope]) for scope in rights]
            assert ["Unknown tool" in one for one in called] == [False, False, True]


@pytest.mark.parametrize(("required", "cached"), [(["crm"], {"private"}), ([], {"public"})], ids=["scoped", "free"])
async def test_listings_behind_a_scope_are_marked_private_for_caches(
    required: list[str], cached: set[str], configured: Configured, speaking: Upstream
) -> None:
    auth = {"tokens": {"alice": {"hash": HASHES["alice"], "scopes": ["crm"]}, "bob": HASHES["bob"]}}
    config = configured({"crm": speaking("2026-07-28", required_scopes=required)}, auth=auth)
    methods = "tools/list", "prompts/list", "resources/templates/list"
    async with both(config) as (alice, _):
        answers = [result_of(await alice.ask(method, {}, modern=True)) for method in methods]
        answers.append(result_of(await alice.ask("resources/read", {"uri": "notes://one"}, modern=True)))
    assert {answer["cacheScope"] for answer in answers} == cached


async def test_path_errors_do_not_reveal_hidden_tools(scoped: Path) -> None:
    """A mistyped path of a known tool is an error; of an unknown tool it is a text."""
    async with both(scoped) as (alice, bob):
        for visitor, tool in (alice, "crm_echo_mirrored"), (bob, "wiki_echo_mirrored"):
            for label in "interview", "nobodys":
                answer = await visitor.call(tool, value=f"{label}-{uuid.uuid4()}")
                assert ("No value is stored" in answer) == (label == "interview"), answer
        answer = json.loads(scoped.read_text())
        answer["upstreams"]["wiki"]["tools"] = {"allow": ["echo"]}
    scoped.write_text(json.dumps(answer))
    async with both(scoped) as (_, bob):
        assert "No value is stored" not in await bob.call("echo_mirrored", value=f"interview-{uuid.uuid4()}")


async def listen(visitor: Visitor, wanted: Mapping[str, Any], seen: asyncio.Queue[str]) -> None:
    """Put the messages of a stream into a queue."""
    params = {"notifications": wanted, "_meta": META}
    body = json.dumps({"jsonrpc": "2.0", "id": "w", "method": "subscriptions/listen", "params": params})
    headers = HEADERS | {"mcp-protocol-version": MODERN, "mcp-method": "subscriptions/listen"}
    async with visitor.http.stream("POST", visitor.url, content=body, headers=headers) as stream:
        async for line in stream.aiter_lines():
            if line.startswith("data: {"):
                seen.put_nowait(line.removeprefix("data: "))


async def test_an_update_has_the_name_that_each_principal_knows(scoped: Path) -> None:
    async with both(scoped) as (alice, bob), asyncio.timeout(BOUND):
        watching = []
        for visitor, uri in (alice, "wiki+notes://one"), (bob, "notes://one"):
            assert uri in await names(visitor, *RESOURCES, modern=True)
            updates: asyncio.Queue[str] = asyncio.Queue()
            watching.append(
                (uri, updates, asyncio.create_task(listen(visitor, {"resourceSubscriptions": [uri]}, updates)))
            )
            assert "acknowledged" in await updates.get()
        await bob.call("wiki_touch_mirrored", uri="notes://one")
        for uri, updates, task in watching:
            assert json.loads(await updates.get())["params"]["uri"] == uri
            task.cancel()


async def test_a_change_is_announced_only_to_principals_with_its_scope(
    scoped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates: asyncio.Queue[ListChange] = asyncio.Queue()
    call = {"name": "crm_change_mirrored", "arguments": {"kind": "prompts"}}
    async with serving_gateway(scoped) as served, visiting(served.url, "alice") as alice, asyncio.timeout(BOUND):
        monkeypatch.setattr(served.application.notifier.announcements, "list_changed", updates.put)
        assert "changed" in await alice.ask("tools/call", call)
        while (change := await updates.get()).kind != "prompts" or change.owner is None:  # it came over her connection
            pass
    assert change.required == ("crm",)
    scopes_of = (None, frozenset({"crm"}), frozenset[str]())
    callers = [Caller("x", is_stateless=False, session=change.owner, scopes=scopes) for scopes in scopes_of]
    assert [change.is_visible_to(one) for one in callers] == [True, True, False]


async def test_a_reload_ends_updates_to_principals_without_the_new_scope(
    configured: Configured, speaking: Upstream
) -> None:
    auth = {"tokens": {"alice": {"hash": HASHES["alice"], "scopes": ["crm"]}, "bob": HASHES["bob"]}}
    config = configured({"crm": speaking("2026-07-28", scope="shared")}, auth=auth)
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(serving_gateway(config))
        bob = await stack.enter_async_context(visiting(served.url, "bob"))
        alice = await stack.enter_async_context(visiting(served.url, "alice"))
        received: dict[str, asyncio.Queue[str]] = {}
        tasks = []
        await stack.enter_async_context(asyncio.timeout(BOUND))
        for visitor in bob, alice:  # his is the first watch: the connection was made for him
            updates = received[visitor.name] = asyncio.Queue()
            tasks.append(asyncio.create_task(listen(visitor, {"resourceSubscriptions": ["notes://one"]}, updates)))
            assert "acknowledged" in await updates.get()
        changed = json.loads(config.read_text())
        changed["upstreams"]["crm"]["required_scopes"] = ["crm"]
        config.write_text(json.dumps(changed))
        served.application.reload(load_config(config, {}), NO_PINS)
        while "updated" not in await received["alice"].get():  # it is watched again by her right
            pass
        while not received["bob"].empty():
            assert "updated" not in received["bob"].get_nowait()
        for task in tasks:
            task.cancel()


async def test_a_session_without_its_scope_gets_no_messages_of_the_upstream() -> None:
    session = Recorder(Caller("x", is_stateless=False, session="s", scopes=frozenset({"crm"})))
    home = ContentFilteredChannel(session, lambda: False, ("crm",))
    await home.notify("notifications/message", {"data": 1})
    assert await home.request("roots/list", {}) == {"asked": "roots/list"}
    session.caller = msgspec.structs.replace(session.caller, scopes=frozenset())
    await home.notify("notifications/message", {"data": 2})
    with pytest.raises(RefusedError, match="The client cannot receive roots/list now"):
        await home.request("roots/list", {})
    assert session.notifications == [("notifications/message", {"data": 1})]
    state = home.log_level, home.wants_progress, home.is_waiting, home.session_channel, home.caller
    assert state == (None, False, True, None, session.caller)


async def test_a_session_without_its_scope_can_unsubscribe(scoped: Path) -> None:
    sections = json.loads(scoped.read_text())
    crm = sections["upstreams"]["crm"]
    del crm["url"]  # the shared process knows subscriptions of other tests
    crm |= forked_upstream(str(RELAY), "stdio", "2025-11-25")
    scoped.write_text(json.dumps(sections))
    async with both(scoped) as (alice, _):
        tokens = {scope: KEY.sign(ISSUER, sub="carla", scope=scope) for scope in ("crm", "")}
        carla = Visitor("carla", alice.url, alice.http)
        broad, narrow = ({"authorization": f"Bearer {token}"} for token in tokens.values())
        carla.session = await session_of(alice.url, broad)
        watched = {"uri": "notes://one"}
        assert result_of(await carla.ask("resources/subscribe", watched, modern=False, **broad)) == {}
        assert "notes://one" in await carla.ask("tools/call", ASK_WATCHED, modern=False, **broad)
        assert result_of(await carla.ask("resources/unsubscribe", watched, modern=False, **narrow)) == {}
        assert "notes://one" not in await carla.ask("tools/call", ASK_WATCHED, modern=False, **broad)


def test_answers_to_an_input_request_go_to_no_other_upstream() -> None:
    required = InputRequired({"q": {"method": "roots/list", "params": {}}}, {"state": "x"})
    reply = json.loads(b"".join(object_of(build_input_required_reply(required, b"{}", "crm"))))
    again = read_round(b"{}", reply["requestState"])
    assert check_round(again, b"{}", "crm") is again
    with pytest.raises(RefusedError):
        check_round(again, b"{}", "wiki")


async def test_the_local_user_sees_all_tools(scoped: Path, connect: Connect) -> None:
    async with connect(scoped) as client:
        assert {"crm_echo_mirrored", "crm_grow_mirrored"} <= {tool.name for tool in (await client.list_tools()).tools}


async def test_check_prints_the_required_scopes(scoped: Path, run: Run) -> None:
    ended = await run("check", "--config", str(scoped))
    (row,) = [line.split() for line in ended.out.splitlines() if " grow " in line and line.split()[0] == "crm"]
    assert row[-2:] == ["crm", "crm.write"]


async def test_an_upstream_refuses_connections_without_its_scope(scoped: Path) -> None:
    async with serving_gateway(scoped) as served:
        crm = served.application.upstreams["crm"]
        await crm.settled.wait()
        stranger = NullChannel(Caller("x", scopes=frozenset({"crm.write"})))
        with pytest.raises(UpstreamError, match="lacks a scope that this upstream requires"):
            await crm.connection_for(stranger)
        await crm.connection_for(NullChannel(Caller("x", scopes=frozenset({"crm"}))))


async def test_a_reload_applies_changed_scopes(scoped: Path) -> None:
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(serving_gateway(scoped))
        bob = await stack.enter_async_context(visiting(served.url, "bob"))
        assert "crm_echo_mirrored" not in await names(bob, *TOOLS, modern=False)
        sections = json.loads(scoped.read_text())
        del sections["upstreams"]["crm"]["required_scopes"]
        sections["upstreams"]["wiki"]["required_scopes"] = ["wiki"]
        scoped.write_text(json.dumps(sections))
        served.application.reload(load_config(scoped, {}), NO_PINS)
        await until(lambda: names(bob, *TOOLS, modern=False), lambda found: "crm_echo_mirrored" in found)
        assert "wiki_echo_mirrored" not in await names(bob, *TOOLS, modern=False)


def test_a_scope_without_a_token_is_a_warning(configured: Configured, speaking: Upstream) -> None:
    auth = {
        "tokens": {"alice": {"hash": HASHES["alice"], "scopes": ["crm", "all"]}, "bob": HASHES["bob"]},
        "scopes": ["all"],
    }
    config = configured(
        {"crm": speaking("2025-11-25", required_scopes=["crm", "all"], overrides={"x": {"required_scopes": "crn"}})},
        auth=auth,
    )
    (warning,) = load_config(config, {}).warnings
    assert "upstreams.crm.overrides.x.required_scopes" in warning
    assert "'crn'" in warning


def test_a_token_without_a_required_scope_is_a_warning(configured: Configured) -> None:
    auth = {
        "scopes": ["tools"],
        "tokens": {"alice": {"hash": HASHES["alice"], "scopes": ["crm"]}, "bob": HASHES["bob"]},
    }
    (warning,) = load_config(configured({}, auth=auth), {}).warnings
    assert "auth.tokens.alice: the token lacks the scope 'tools' of 'auth.scopes'" in warning


async def test_check_reports_names_of_tools_that_do_not_exist(
    configured: Configured, speaking: Upstream, run: Run
) -> None:
    auth = {"tokens": {"alice": {"hash": HASHES["alice"], "scopes": ["crm"]}}}
    tools = {"allow": ["*", "eccho"], "deny": ["gorw", "x*"]}
    overrides = {"echo": {"required_scopes": ["crm"]}, "groww": {"timeout": 3}, "y*": {"required_scopes": ["crm"]}}
    config = configured({"crm": speaking("2025-11-25", tools=tools, overrides=overrides)}, auth=auth)
    ended = await run("check", "--config", str(config))
    assert ended.code == 1
    unknown = {line.partition("'")[2].partition("'")[0] for line in ended.err.splitlines() if " no tool " in line}
    assert unknown == {"eccho", "gorw", "groww", "y*"}

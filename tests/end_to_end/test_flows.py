"""Labels restrict the destinations of values, for all tools, stores, protocol versions and transformations."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from flow_user import PATH, RAW, ROWS, SECRET, SELF, STRICT, Desk, path_in, upstream
from gateway_processes import forked_upstream
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitRequestFormParams, ElicitRequestURLParams, ElicitResult, ErrorData
from samples import sample
from tests.auth.conftest import HASHES, serving_gateway
from tests.auth.strangers import Visitor, visiting
from tests.end_to_end.conftest import BOUND
from typer.testing import CliRunner
from waiting import until

from mcp_mirror import Mirror
from mcp_mirror.app import open_application
from mcp_mirror.callers import LOCAL, Caller, NullChannel
from mcp_mirror.cli.main import app
from mcp_mirror.config import load_config
from mcp_mirror.errors import StoreError
from mcp_mirror.stores.memory import MemoryStore
from mcp_mirror.tokens import estimate_tokens
from mcp_mirror.types import Provenance

if TYPE_CHECKING:
    from redis_process import RedisProcess
    from tests.end_to_end.conftest import Configured, OpenLines, Run

RELAY = str(Path(__file__).parents[1] / "relay" / "upstream.py")


async def test_everything_flows_where_nothing_is_configured(desk: Any) -> None:
    async with desk() as user:
        path = await user.say("crm")
        assert SECRET in await user.text("mail_hear_mirrored", x=path)
        assert await user.labels(path) == {"sources": "crm", "integrity": "untrusted", "confidentiality": "private"}


async def test_a_refused_value_is_not_read_or_sent_and_the_rule_is_named(desk: Any) -> None:
    async with desk(STRICT) as user:
        private, public = await user.say("crm"), await user.say("web", {"page": 1})
        text = await user.refused("mail_hear_mirrored", x=private)
        assert f"\"{private}\" may not go to upstream 'mail'" in text
        assert "`upstreams.mail.accepts.confidentiality` is internal" in text
        assert "`upstreams.mail.accepts.integrity` is trusted" in await user.refused("mail_hear_mirrored", x=public)
        assert user.calls("mail") == 0
        unknown = await user.refused("mail_hear_mirrored", x=f"{private}/nothing")
        assert "may not go to" in unknown  # not even the existence of the key is revealed
        assert "heard" in await user.text("mail_hear_mirrored", x="heard")


async def test_of_two_pointers_in_one_call_either_may_be_refused(desk: Any) -> None:
    async with desk(STRICT | {"web": {"labels": {"integrity": "trusted", "confidentiality": "public"}}}) as user:
        good, bad = await user.say("web", {"page": 1}), await user.say("crm")
        assert "page" in await user.text("mail_hear_mirrored", x=good, y=good)
        for arguments in ({"x": good, "y": bad}, {"x": bad, "y": good}, {"x": [{"deep": [good, f"{bad}/rows/0"]}]}):
            assert f'"{bad}"' in await user.refused("mail_hear_mirrored", **arguments)
        both = await user.refused("mail_hear_mirrored", x=bad, y=f"{await user.say('crm')}/rows")
        assert "(1 more may not either.)" in both
        assert user.calls("mail") == 1


async def test_a_refused_value_is_not_even_looked_for(desk: Any, tmp_path: Path) -> None:
    async with desk(STRICT, store={"kind": "disk", "path": str(tmp_path / "store")}) as user:
        path = await user.say("crm", {"rows": [SECRET] * 50_000})
        files = [one for one in (tmp_path / "store" / "blobs").rglob("*") if one.is_file()]
        assert files
        for one in files:
            one.unlink()
        assert "may not go to upstream 'mail'" in await user.refused("mail_hear_mirrored", x=f"{path}/rows/7")
        assert "may not go" not in await user.refused("web_hear_mirrored", x=f"{path}/rows/7")


async def test_every_label_before_everything_that_an_upstream_may_accept(
    configured: Configured, tmp_path: Path
) -> None:
    """The truth table again, through the whole gateway: 6 labels before 6 ways to accept."""
    integrities, levels = ("trusted", "untrusted"), ("public", "internal", "private")
    pairs = [*itertools.product(integrities, levels)]
    servers = {
        f"{integrity}-{level}": upstream("to", tmp_path, accepts={"integrity": integrity, "confidentiality": level})
        for integrity, level in pairs
    }
    servers["from"] = upstream("from", tmp_path, may_lower="own")
    async with open_application(load_config(configured(servers, store={"kind": "memory", "path": None}), {})) as opened:
        await opened.upstreams.wait_for_attempts(BOUND)
        user = Desk(opened, tmp_path)
        passed = set()
        for integrity, level in pairs:
            meta = {"ifc": {"integrity": integrity, "confidentiality": level}}
            path = await user.say("from", {"a": 1}, _meta=meta)
            for one, other in pairs:
                reply = await user.reply(f"{one}-{other}_hear_mirrored", x=path)
                if not reply.is_error:
                    passed.add((integrity, level, one, other))
        assert passed == {
            (integrity, level, one, other)
            for (integrity, level), (one, other) in itertools.product(pairs, pairs)
            if (one == "untrusted" or integrity == "trusted") and levels.index(level) <= levels.index(other)
        }
        assert user.calls("to") == len(passed)


async def test_a_value_made_of_two_has_the_labels_of_both(desk: Any) -> None:
    async with desk(STRICT, mirror={"capture": "always"}) as user:
        one, other = await user.say("crm"), await user.say("web", {"page": 1})
        made = path_in(await user.text("web_hear_mirrored", x=one, y=other))
        assert await user.labels(made) == {
            "sources": "crm,web", "integrity": "untrusted", "confidentiality": "private"
        }  # fmt: skip
        alone = path_in(await user.text("crm_hear_mirrored", x="a literal"))
        assert (await user.labels(alone))["integrity"] == "trusted"


WASHES: list[tuple[str, dict[str, Any]]] = [
    ("memory_query", {"expression": "rows"}),
    ("memory_edit", {"merge": {"more": 1}}),
    ("memory_edit", {"patch": [{"op": "remove", "path": "/rows"}]}),
    ("web_hear_mirrored", {}),
]


async def test_no_tool_washes_a_value_clean(desk: Any) -> None:
    """A -> B -> C is refused at C where A -> C would be, whatever B is."""
    async with desk(STRICT, flows=SELF, mirror={"capture": "always", "inline_budget": 0}) as user:
        path = await user.say("crm")
        page = path_in(await user.text("memory_put", value={"title": "x"}))
        calls = [
            *((tool, {"x" if tool.startswith("web") else "memory_path": path, **rest}) for tool, rest in WASHES),
            ("memory_put", {"value": [path]}),
            ("memory_edit", {"memory_path": page, "merge": {"rows": f"{path}/rows"}}),
            ("memory_edit", {"memory_path": page, "old_text": '"x"', "new_text": path}),
        ]
        for tool, arguments in calls:
            washed = path_in((await user.text(tool, **arguments)).replace(path, ""))
            assert washed != path
            labels = await user.labels(washed)
            assert labels["confidentiality"] == "private"
            assert "crm" in labels["sources"].split(",")
            assert "may not go to" in await user.refused("mail_hear_mirrored", x=washed)
            back = path_in((await user.text("crm_hear_mirrored", x=washed)).replace(washed, ""))
            assert "may not go to" in await user.refused("mail_hear_mirrored", x=back)
        assert user.calls("mail") == 0


async def test_additional_text_has_the_labels_of_its_value(desk: Any) -> None:
    async with desk(STRICT) as user:
        result = {"content": [{"type": "text", "text": f"{SECRET} in words " * 300}], "structuredContent": ROWS}
        paths = set(PATH.findall(await user.text("crm_say_mirrored", result=json.dumps(result))))
        assert len(paths) == 2
        for path in paths:
            assert "private" in await user.refused("mail_hear_mirrored", x=path)


async def test_a_file_carries_no_value_past_the_rules(desk: Any) -> None:
    async with desk(STRICT, flows={"files": {"accepts": {"confidentiality": "internal"}}}) as user:
        path = await user.say("crm")
        text = await user.refused("memory_export", memory_path=path, file="out.json")
        assert "may not be written to local files" in text
        assert list((user.folder / "exchange").iterdir()) == []
        (user.folder / "exchange" / "in.txt").write_text("kept on this machine")
        imported = path_in(await user.text("memory_import", file="in.txt"))
        assert await user.labels(imported) == {
            "sources": "local files", "integrity": "untrusted", "confidentiality": "private"
        }  # fmt: skip
        assert "untrusted" in await user.refused("mail_hear_mirrored", x=imported)


async def test_values_saved_by_the_model_get_the_labels_of_the_model(desk: Any) -> None:
    async with desk(STRICT) as user:
        assert "untrusted" in await user.refused(
            "mail_hear_mirrored", x=path_in(await user.text("memory_put", value="x"))
        )
    async with desk(STRICT, flows=SELF) as user:
        assert "hi" in await user.text("mail_hear_mirrored", x=path_in(await user.text("memory_put", value="hi")))


HIDING = {"model": {"accepts": {"confidentiality": "internal"}, "labels": {"confidentiality": "public"}}}


async def test_of_an_imported_file_that_it_may_not_see_the_model_gets_the_path(desk: Any) -> None:
    async with desk(STRICT, flows=HIDING) as user:
        (user.folder / "exchange" / "in.txt").write_text("c4nary\n" * 900)
        answer = await user.text("memory_import", file="in.txt")
        assert answer == f"{path_in(answer)}\n"


READING: list[tuple[str, dict[str, Any]]] = [
    ("retrieve_final_answer_from_memory", {}),
    ("memory_describe", {}),
    ("memory_read", {}),
    ("memory_grep", {"pattern": "c4nary"}),
    ("memory_query", {"expression": "keys(@)"}),
    ("memory_edit", {"patch": [{"op": "test", "path": "/rows/0", "value": "guess"}]}),
    ("memory_edit", {"old_text": "c4nary", "new_text": ""}),
]


async def test_the_model_is_a_place_that_values_may_be_kept_from(desk: Any) -> None:
    """The model has the path and can pass the value on; no memory tool shows any of it."""
    async with desk(STRICT | {"mail": {}}, flows=HIDING) as user:
        reply = await user.reply("crm_say_mirrored", result=json.dumps({"content": [], "structuredContent": ROWS}))
        path = path_in(reply.text)
        assert reply.text == f"{path}\n"
        for tool, arguments in READING:
            for below in ("", "/rows", "/nothing"):
                text = await user.refused(tool, memory_path=path + below, **arguments)
                assert "may not be shown to the model" in text
                assert "`flows.model.accepts.confidentiality` is internal" in text
        page = path_in(await user.text("memory_put", value={"title": "x"}))
        for tool, arguments in (
            ("memory_put", {"value": [path]}),
            ("memory_edit", {"memory_path": page, "merge": {"rows": f"{path}/rows"}}),
            ("memory_edit", {"memory_path": page, "old_text": '"x"', "new_text": path}),
        ):
            assert "may not be shown to the model" in await user.refused(tool, **arguments)
        assert "may not be shown" not in await user.text("memory_list")
        assert SECRET not in await user.refused("mail_hear_mirrored", x=f"{path}/nothing")
        got = await user.reply("mail_hear_mirrored", x=f"{path}/rows")
        assert SECRET not in got.text  # what is made of it is hidden too
        assert (await user.labels(path_in(got.text)))["sources"] == "crm,mail"
        assert user.calls("mail") == 1


HIDDEN: list[dict[str, Any]] = [
    {"content": [{"type": "text", "text": SECRET}]},
    {"content": [{"type": "text", "text": SECRET}], "isError": True},
    {"content": [{"type": "image", "data": "YzRuYXJ5", "mimeType": f"image/{SECRET}"}]},
    {"content": [{"type": "text", "text": SECRET * 10_000}]},
    {"content": [], "_meta": {"said": SECRET}},
    {"content": [], "structuredContent": {SECRET: SECRET}, "isError": True, "other": SECRET},
]


@pytest.mark.parametrize("tool", ["crm_say_mirrored", "crm_say"])
async def test_no_result_that_the_model_may_not_see_is_shown_in_any_part(desk: Any, tool: str) -> None:
    mirror = {"expose_originals": True, "resource_links": True, "notice": "paper"}
    async with desk(STRICT, flows=HIDING, mirror=mirror) as user:
        for result in HIDDEN:
            gateway, arguments = user.application.gateway, {"result": json.dumps(result)}
            call = gateway.new_call(NullChannel(Caller(LOCAL)), tool, json.dumps(arguments).encode())
            reply = await gateway.state.answer(call)
            shown = b"".join(b"".join(part) if isinstance(part, tuple) else bytes(part) for part in reply.values())
            assert b"c4nary" not in shown
            assert b"YzRuYXJ5" not in shown
            assert (reply.get("isError", b"false") == b"true") is result.get("isError", False)


async def test_no_error_shows_what_the_model_may_not_see(desk: Any) -> None:
    async with desk(STRICT, flows=HIDING) as user:
        assert "no such key" in await user.refused("web_refuse_mirrored")
        assert "no such key" not in (text := await user.refused("crm_refuse_mirrored"))
        assert "hides the error message" in text
        assert "hides the error message" in (text := await user.refused("crm_die_mirrored"))
        assert "fell over" not in text


async def test_a_busy_upstream_is_named_where_its_results_are_hidden(desk: Any) -> None:
    async with desk(STRICT, flows=HIDING, limits={"upstream_calls_per_minute": 1}) as user:
        await user.say("crm")
        assert "Upstream 'crm' has had `limits.upstream_calls_per_minute`" in await user.refused("crm_die_mirrored")


async def test_an_error_does_not_repeat_a_hidden_value_that_does_not_fit(desk: Any, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^[0-9]+$"}}}
    (tmp_path / "tools").write_text(json.dumps([{"name": "hear", "inputSchema": schema}]))
    mail = {"args": [RAW, "ok", "--tools", str(tmp_path / "tools")]}
    async with desk(STRICT | {"mail": mail}, flows=HIDING) as user:
        text = await user.refused("mail_hear_mirrored", x=f"{await user.say('crm')}/rows/0")
        assert "the value of a memory path does not match the tool's schema" in text


async def test_an_error_does_not_say_how_large_a_hidden_result_is(desk: Any) -> None:
    async with desk(STRICT, flows=HIDING, store={"kind": "memory", "path": None, "max_bytes": "1MiB"}) as user:
        result = json.dumps({"content": [{"type": "text", "text": "x" * 1_234_567}]})
        assert "1,234,5" in await user.refused("web_say_mirrored", result=result)
        text = await user.refused("crm_say_mirrored", result=result)
        assert "could not be stored" in text
        assert "1,234,5" not in text


async def test_a_small_hidden_result_that_cannot_be_stored_is_not_shown(
    desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_args: Any, **_options: Any) -> None:
        raise StoreError("The store has failed.")

    result = json.dumps({"content": [{"type": "text", "text": SECRET + " and some words" * 300}]})
    async with desk(STRICT, flows=HIDING) as user:
        monkeypatch.setattr(MemoryStore, "put", fail)
        assert SECRET in await user.text("web_say_mirrored", result=result)
        text = await user.refused("crm_say_mirrored", result=result)
        assert "could not be stored. Ask the user to read the gateway's log." in text


async def test_without_a_store_calls_with_hidden_results_are_refused(configured: Configured, tmp_path: Path) -> None:
    servers = {"crm": upstream("crm", tmp_path, **STRICT["crm"]), "web": upstream("web", tmp_path, **STRICT["web"])}
    path = configured(servers, mirror={"suffix": "", "capture": "never"}, flows=HIDING)
    async with open_application(load_config(path, {})) as application:
        await application.upstreams.wait_for_attempts(BOUND)
        user = Desk(application, tmp_path)
        result = json.dumps({"content": [{"type": "text", "text": SECRET}]})
        assert "the gateway stores nothing" in await user.refused("crm_say", result=result)
        assert user.calls("crm") == 0
        raised = json.dumps(
            {"content": [{"type": "text", "text": SECRET}], "_meta": {"ifc": {"confidentiality": "private"}}}
        )
        assert "the gateway stores nothing" in await user.refused("web_say", result=raised)
        assert SECRET in await user.text("web_say", result=result)


async def test_an_upstreams_own_word_raises_labels_and_lowers_them_where_it_may(desk: Any) -> None:
    trusting = STRICT | {"web": {**STRICT["web"], "may_lower": "own"}}
    low = {"ifc": {"integrity": "trusted", "confidentiality": ["public"]}}
    async with desk(trusting, mirror={"capture": "always"}) as user:
        raised = await user.say("web", {"page": 1}, _meta={"ifc": {"confidentiality": "private"}})
        assert (await user.labels(raised))["confidentiality"] == "private"
        lowered = await user.say("web", {"page": 1}, _meta=low)
        assert "page" in await user.text("mail_hear_mirrored", x=lowered)
        vain = await user.say("crm", _meta=low)
        assert "private" in await user.refused("mail_hear_mirrored", x=vain)
        secret = await user.say("crm")
        result = json.dumps({"content": [], "structuredContent": {"a": 1}, "_meta": low})
        washed = path_in(await user.text("web_say_mirrored", result=result, x=secret))
        assert "private" in await user.refused("mail_hear_mirrored", x=washed)  # its own, and not the customer's


async def test_a_large_result_is_labelled_by_its_own_word_too(desk: Any) -> None:
    async with desk(STRICT, limits={"spool_bytes": "64KiB"}) as user:
        path = await user.say("web", {"page": "x" * 200_000}, _meta={"ifc": {"confidentiality": "private"}})
        assert (await user.labels(path))["confidentiality"] == "private"


@pytest.mark.parametrize("store", sample(["memory", "disk", "redis", "sealed"], ("disk", "redis").__contains__))
async def test_every_store_keeps_the_labels(
    desk: Any, store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kind = "disk" if store == "sealed" else store
    chosen: dict[str, Any] = {"kind": kind, "path": str(tmp_path / "store") if kind == "disk" else None}
    if store == "redis":
        server: RedisProcess = request.getfixturevalue("redis_server")
        chosen |= {"url": server.url, "prefix": f"{uuid.uuid4()}:"}
    if store == "sealed":
        chosen["encryption"] = {"keys": ["0123456789abcdef0123456789abcdef"]}
    async with desk(STRICT, store=chosen) as user:
        path = await user.say("crm")
        assert "private" in await user.refused("mail_hear_mirrored", x=path)
    if store == "memory":
        return
    async with desk(STRICT, store=chosen) as user:  # another gateway
        assert await user.labels(path) == {"sources": "crm", "integrity": "trusted", "confidentiality": "private"}
        assert "private" in await user.refused("mail_hear_mirrored", x=path)


async def test_a_value_from_before_there_were_labels_is_taken_for_the_worst(desk: Any) -> None:
    async with desk(STRICT) as user:
        base, writer = f"say-{uuid.uuid4()}", user.application.gateway.services.writer
        await writer.store_values(LOCAL, Provenance("crm", "say", ""), {base: b'{"a": 1}'}, estimate_tokens, {})
        assert await user.labels(base) == {}
        assert "it is untrusted" in await user.refused("mail_hear_mirrored", x=base)
        text = await user.text("memory_describe", memory_path=base)
        assert "untrusted, private" in text


# Over HTTP, with several principals.


async def answer(visitor: Visitor, tool: str, **arguments: Any) -> str:
    """The text of an answer."""
    raw = await visitor.call(tool, **arguments)
    return str(json.loads(raw.partition("data: ")[2] or raw)["result"]["content"][0]["text"])


async def test_nothing_flows_between_principals_upstreams_without_a_rule(
    configured: Configured, tmp_path: Path
) -> None:
    servers = {name: upstream(name, tmp_path) for name in ("crm", "web", "mail")}
    config = configured(
        servers, auth={"tokens": HASHES}, store={"kind": "memory", "path": None}, mirror={"capture": "always"},
        flows=["crm -> web", "web -> mail"],
    )  # fmt: skip
    async with serving_gateway(config) as served, visiting(served.url, "alice") as alice:
        await served.application.upstreams.wait_for_attempts(BOUND)
        result = json.dumps({"content": [], "structuredContent": ROWS})
        path = path_in(await answer(alice, "crm_say_mirrored", result=result))
        text = await answer(alice, "mail_hear_mirrored", x=path)
        assert "in zone 'crm' and not in 'mail'" in text
        assert "`flows.allow`" in text
        via = path_in((await answer(alice, "web_hear_mirrored", x=path)).replace(path, ""))
        assert "upstream 'crm'" in await answer(alice, "mail_hear_mirrored", x=via)
        assert "may not" not in await answer(alice, "crm_hear_mirrored", x=path)
        page = path_in(await answer(alice, "web_say_mirrored", result=result))
        assert "may not" not in await answer(alice, "mail_hear_mirrored", x=page)
        assert SECRET in await answer(alice, "retrieve_final_answer_from_memory", memory_path=path)


async def test_a_resource_obeys_the_labels(configured: Configured, tmp_path: Path) -> None:
    servers = {"crm": upstream("crm", tmp_path, **STRICT["crm"])}
    config = configured(servers, auth={"tokens": HASHES}, store={"kind": "memory", "path": None}, flows=HIDING)
    async with serving_gateway(config) as served, visiting(served.url, "alice") as alice:
        await served.application.upstreams.wait_for_attempts(BOUND)
        picture = {"type": "image", "data": "AAAA", "mimeType": f"image/{SECRET}"}
        paths = [
            path_in(await answer(alice, "say_mirrored", result=json.dumps(result)))
            for result in ({"content": [], "structuredContent": ROWS}, {"content": [picture]})
        ]
        for path in (paths[0], f"{paths[0]}/rows", paths[1]):
            text = await alice.ask("resources/read", {"uri": f"memory://{path}"})
            assert "may not be shown to the model" in text
            assert SECRET not in text
        listed = await alice.ask("resources/list", {})
        assert all(path in listed for path in paths)
        assert SECRET not in listed


# The user is asked.


@dataclass
class Person:
    """Who is asked."""

    allows: bool
    questions: list[str] = field(default_factory=list)

    async def elicit(
        self, context: object, params: ElicitRequestFormParams | ElicitRequestURLParams
    ) -> ElicitResult | ErrorData:
        del context
        self.questions.append(params.message)
        return ElicitResult(action="accept", content={"allow": self.allows, "name": "Ada"})


@pytest.mark.parametrize("version", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("allows", [True, False])
async def test_a_user_who_can_be_asked_lets_a_value_pass_once_or_not(
    configured: Configured,
    tmp_path: Path,
    version: str,
    allows: bool,  # noqa: FBT001  # a table
) -> None:
    servers = {name: upstream(name, tmp_path, **keys) for name, keys in STRICT.items()}
    policy = {"on_refusal": "ask", "model": {"accepts": {"confidentiality": "internal"}}}
    config = configured(servers, store={"kind": "memory", "path": None}, flows=policy)
    person = Person(allows)
    async with serving_gateway(config) as served:
        await served.application.upstreams.wait_for_attempts(BOUND)
        transport = streamable_http_client(served.url)
        async with Client(transport, mode=version, elicitation_callback=person.elicit) as client:

            async def call(tool: str, **arguments: Any) -> str:
                result = await asyncio.wait_for(client.call_tool(tool, arguments), BOUND)
                return str(result.content[0].text)  # type: ignore[union-attr]  # a text

            stored = json.dumps({"content": [], "structuredContent": ROWS})
            path = path_in(await call("crm_say_mirrored", result=stored))
            sent = [await call("mail_hear_mirrored", x=path), await call("mail_hear_mirrored", x=path)]
            read = await call("memory_read", memory_path=path)
            desk = Desk(served.application, tmp_path)
            assert desk.calls("mail") == (2 if allows else 0)
            assert (SECRET in read) is allows
            assert all(("does not allow it" in one) is not allows for one in (*sent, read))
        assert len(person.questions) == 3  # again each time
        assert all(path in question for question in person.questions)
        assert not any(SECRET in question for question in person.questions)
        assert "`upstreams.mail.accepts.confidentiality` is internal" in person.questions[0]


@pytest.mark.parametrize(
    ("version", "upstream_version"),
    sample(
        [("legacy", "2026-07-28"), ("2026-07-28", "2025-11-25"), ("2026-07-28", "2026-07-28")],
        ("2026-07-28", "2025-11-25").__eq__,
    ),
)
async def test_an_allowed_flow_stays_allowed_during_input_rounds(
    configured: Configured, tmp_path: Path, version: str, upstream_version: str
) -> None:
    desk = forked_upstream(RELAY, "stdio", upstream_version, overrides={"*": {"capture": "never"}})
    servers = {"crm": upstream("crm", tmp_path), "desk": desk}
    policy = {"on_refusal": "ask", "deny": ["crm -> desk"]}
    config = configured(servers, store={"kind": "memory", "path": None}, flows=policy)
    person = Person(allows=True)
    async with serving_gateway(config) as served:
        await served.application.upstreams.wait_for_attempts(BOUND)
        transport = streamable_http_client(served.url)
        async with Client(transport, mode=version, elicitation_callback=person.elicit) as client:
            stored = json.dumps({"content": [], "structuredContent": ROWS})
            path = path_in((await client.call_tool("say_mirrored", {"result": stored})).content[0].text)  # type: ignore[union-attr]  # a text
            arguments = {"rounds": "form;form", "value": path}
            result = await asyncio.wait_for(client.call_tool("interview_mirrored", arguments), BOUND)
            parsed = json.loads(result.content[0].text)  # type: ignore[union-attr]  # a text
    assert [answer["action"] for answer in parsed["answers"].values()] == ["accept", "accept"]
    assert sum(path in question for question in person.questions) == 1
    assert len(person.questions) == 3


@pytest.mark.parametrize("version", ["legacy", "2026-07-28"])
async def test_clients_without_elicitation_get_the_refusal(
    configured: Configured, tmp_path: Path, version: str
) -> None:
    servers = {name: upstream(name, tmp_path, **keys) for name, keys in STRICT.items()}
    config = configured(servers, store={"kind": "memory", "path": None}, flows={"on_refusal": "ask"})
    async with serving_gateway(config) as served:
        await served.application.upstreams.wait_for_attempts(BOUND)
        async with Client(streamable_http_client(served.url), mode=version) as client:
            stored = json.dumps({"content": [], "structuredContent": ROWS})
            result = await client.call_tool("crm_say_mirrored", {"result": stored})
            path = path_in(result.content[0].text)  # type: ignore[union-attr]  # a text
            refused = await client.call_tool("mail_hear_mirrored", {"x": path})
            assert "may not go to upstream 'mail'" in refused.content[0].text  # type: ignore[union-attr]  # a text


# The whole process, on standard streams.


@pytest.mark.posix
async def test_a_changed_policy_binds_values_that_are_there_already(
    configured: Configured, open_lines: OpenLines, tmp_path: Path
) -> None:
    servers = {name: upstream(name, tmp_path) for name in ("crm", "mail")}
    async with open_lines(configured(servers)) as client:
        await client.greet()
        result = json.dumps({"content": [], "structuredContent": ROWS})
        path = path_in(await client.text("crm_say_mirrored", {"result": result}))
        assert SECRET in await client.text("mail_hear_mirrored", {"x": path})
        configured(servers, flows={"deny": ["crm -> mail", "crm -> model"]})
        client.process.send_signal(signal.SIGHUP)
        await until(lambda: any(b"configuration was reloaded" in line for line in client.stderr))
        assert "`flows.deny` has 'crm -> mail'" in await client.text("mail_hear_mirrored", {"x": path})
        assert "`flows.deny` has 'crm -> model'" in await client.text("memory_read", {"memory_path": path})


async def test_flows_and_refusals_are_in_the_audit_log(desk: Any, tmp_path: Path) -> None:
    rules = {"deny": ["crm -> mail"]}
    async with desk(flows=rules, audit={"path": str(tmp_path / "audit.jsonl")}) as user:
        path = await user.say("crm")
        await user.text("web_hear_mirrored", x=path)
        await user.refused("mail_hear_mirrored", x=path)
        await user.text("crm_hear_mirrored", x=path)
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    flows = [line for line in lines if "to" in line]
    assert [(one["event"], one["to"], one["outcome"]) for one in flows] == [
        ("flow", "web", "allowed"),
        ("refusal", "mail", "refused"),
    ]
    assert flows[1]["rule"] == "flows.deny: crm -> mail"
    assert flows[0]["labels"] == {"sources": "crm", "integrity": "untrusted", "confidentiality": "private"}
    assert [line["outcome"] for line in lines if line["event"] == "refusal"] == ["refused", "flow"]
    assert path not in (tmp_path / "audit.jsonl").read_text()


async def test_the_matrix_is_printed(configured: Configured, run: Run, tmp_path: Path) -> None:
    servers = {name: upstream(name, tmp_path, **keys) for name, keys in STRICT.items()}
    config = str(configured(servers, auth={"tokens": HASHES}, flows=["crm -> web"]))
    ended = await run("flows", "--config", config, "--json")
    assert ended.code == 0, ended.err
    parsed = json.loads(ended.out)
    assert parsed["places"]["crm"] == {"zone": "crm", "integrity": "trusted", "confidentiality": "private"}
    allowed = {(one["from"], one["to"]): one for one in parsed["flows"]}
    assert len(allowed) == 16
    assert allowed["crm", "web"] == {"from": "crm", "to": "web", "allowed": True}
    assert allowed["crm", "mail"]["rule"] == "upstreams.mail.accepts.confidentiality: internal"
    assert allowed["web", "crm"]["rule"] == "flows.default: deny"
    table = CliRunner().invoke(app, ["flows", "--config", config, "--stdio"], env={"COLUMNS": "200"})
    assert table.exit_code == 0
    assert "to the model" in table.stdout
    assert "1: upstreams.mail.accepts.confidentiality: internal" in table.stdout
    assert "flows.default" not in table.stdout


async def test_values_of_a_program_are_labelled(tmp_path: Path) -> None:
    sections = {"deny": ["model -> functions"], "model": {"labels": {"confidentiality": "internal"}}}
    upstreams = {"crm": upstream("crm", tmp_path)}
    mirror = Mirror(upstreams={"upstreams": upstreams, "flows": sections, "memory_tools": "all"})

    @mirror.tool
    def count(rows: list[int]) -> dict[str, int]:
        return {"rows": len(rows)}

    async with mirror:
        put = await mirror.put([1, 2])
        call = {"id": "c", "type": "function", "function": {"name": "x", "arguments": "{}"}}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": json.dumps({"rows": [*range(900)]})},
            {"role": "assistant", "content": "."},
        ]
        pruned = path_in((await mirror.prune(messages, 0, "openai")).messages[2]["content"])
        for path in (put, f"{pruned}/rows"):
            reply = await mirror.call("count_mirrored", {"rows": path})
            assert "`flows.deny` has 'model -> functions'" in reply.text
        made = path_in((await mirror.call("count_mirrored", {"rows": [1]})).text)
        assert "untrusted, private" in (await mirror.call("memory_describe", {"memory_path": made})).text
        assert "untrusted, internal" in (await mirror.call("memory_describe", {"memory_path": put})).text
        assert await mirror.read(put) == [1, 2]

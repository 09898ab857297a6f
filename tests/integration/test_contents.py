"""Large resources and prompts are stored if configured, and small ones pass unchanged."""

import base64
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import msgspec
import pytest
from tests.load import measure_pause, slowness

from mcp_mirror.core.merged_lists import ResourceOrigin
from mcp_mirror.errors import ToolError
from mcp_mirror.gateway.contents import PROMPT, RESOURCE, ContentCapture
from mcp_mirror.memory.value_writer import ValueWriter
from mcp_mirror.payload.json_rpc import array_of, open_array
from mcp_mirror.security.flows import Flows
from mcp_mirror.settings.labels import Accepts, FlowsPolicy, PlacePolicy
from mcp_mirror.settings.policies import MirrorPolicy, WirePolicy
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.memory import MemoryStore
from mcp_mirror.system.slices import run_by_values
from mcp_mirror.types import Buffer, Descriptor, Provenance, Segments

PLACE = ResourceOrigin("docs", "file:///a.txt")
LARGE = "many words " * 2000
BLOB = base64.b64encode(b"x" * 600_000).decode()


class Shelf:
    """A capture and the store that it fills."""

    def __init__(self, *, capture_resources: bool = True) -> None:
        self.store = MemoryStore(StorePolicy(), lambda: 1e9, lambda: Path("/nonexistent"))
        self.kept = 0
        writer = ValueWriter(self.store, StorePolicy(), lambda: 1e9, self._count)
        mirror = MirrorPolicy(capture_resources=capture_resources)
        self.capture = ContentCapture(writer, mirror, WirePolicy(), uuid4, lambda _upstream: True, Flows())

    def _count(self, namespace: str) -> None:
        assert namespace == "me"
        self.kept += 1

    async def stored(self) -> list[tuple[Descriptor, str]]:
        """Every stored value as its text, the first first."""
        values = [(one, bytes(await self.store.read("me", one.base) or b"")) for one in await self.store.list("me")]
        return [(one, blob.decode()) for one, blob in values]

    async def resource(self, *contents: bytes) -> list[bytes]:
        result: Mapping[str, Any] = {"contents": array_of(contents), "ttlMs": b"1"}
        captured = await self.capture.capture(RESOURCE, result, "me", PLACE)
        assert captured["ttlMs"] == b"1"
        return items_of(captured["contents"])

    async def prompt(self, *messages: bytes) -> list[bytes]:
        result: Mapping[str, Any] = {"messages": array_of(messages), "description": b'"d"'}
        captured = await self.capture.capture(PROMPT, result, "me", ResourceOrigin("docs", "greet"))
        assert captured["description"] == b'"d"'
        return items_of(captured["messages"])


def items_of(member: Buffer | Segments) -> list[bytes]:
    return [bytes(item) for item in open_array(b"".join(member) if isinstance(member, tuple) else member) or ()]


def content(text: str, **more: Any) -> bytes:
    return json.dumps({"uri": "file:///a.txt", "mimeType": "text/markdown", "text": text, **more}).encode()


def message(**block: Any) -> bytes:
    return json.dumps({"role": "user", "content": block, "vendor": 1}).encode()


SMALL = [
    b'{"uri" : "a:b","text":"sm\\u0061ll","vendor":1e400}',
    b'{"uri":"a:b","blob":"AAAA","mimeType":"image/png"}',
    b'{"uri":"a:b","mimeType":"application/json","text":"{\\"a\\": 1.0}"}',
    b'{"uri":"a:b","text":"[1, 2]"}',
    b'{"uri":"a:b","text":""}',
    b'{"uri":"a:b"}',
    b"5",
    b"[]",
]


@pytest.mark.parametrize("raw", SMALL)
async def test_a_small_content_passes_to_the_byte(raw: bytes) -> None:
    shelf = Shelf()
    assert await shelf.resource(raw, raw) == [raw, raw]
    assert shelf.kept == 0


@pytest.mark.parametrize(
    "block",
    [
        b'{"type":"text" , "text":"sm\\u0061ll"}',
        b'{"type":"text","text":"{\\"a\\": 1.0}"}',
        b'{"type":"image","data":"AAAA","mimeType":"image/png"}',
        b'{"type":"resource","resource":{"uri":"a:b","text":"x"}}',
        b'{"type":"resource_link","uri":"a:b","name":"n"}',
        b"null",
    ],
)
async def test_a_small_message_passes_to_the_byte(block: bytes) -> None:
    shelf = Shelf()
    raw = b'{"role":"user", "content":' + block + b',"vendor":1e400}'
    assert await shelf.prompt(raw, b"5") == [raw, b"5"]
    assert shelf.kept == 0


async def test_a_large_content_is_stored_and_its_notice_names_the_path() -> None:
    shelf = Shelf()
    small, large = content("small"), content(LARGE, _meta={"a": 1}, annotations={"priority": 1})
    captured = await shelf.resource(small, large)
    ((described, stored),) = await shelf.stored()
    assert captured[0] == small
    notice = json.loads(captured[1])
    text = notice.pop("text")
    assert text.splitlines()[0] == f'"{described.base}"'
    assert described.base.startswith("resource-")
    assert len(text) < 2000
    assert notice == {
        "uri": "file:///a.txt",
        "mimeType": "text/plain",
        "_meta": {"a": 1},
        "annotations": {"priority": 1},
    }
    assert json.loads(stored) == LARGE
    assert described.provenance == Provenance("docs", "file:///a.txt", "")


@pytest.mark.parametrize("size", [10_000, 3_000_000])
async def test_a_large_json_text_is_stored_as_that_json(size: int) -> None:
    shelf = Shelf()
    text = json.dumps({"rows": "r" * size, "n": 1.5})
    (captured,) = await shelf.resource(content(text))
    ((described, stored),) = await shelf.stored()
    assert (described.kind, stored) == ("object", text)
    assert '"rows" text' in json.loads(captured)["text"]


async def test_a_large_file_is_stored_as_the_content_that_it_was() -> None:
    shelf = Shelf()
    raw = json.dumps({"uri": "a:b", "mimeType": "application/pdf", "blob": BLOB}).encode()
    (captured,) = await shelf.resource(raw)
    ((described, stored),) = await shelf.stored()
    assert (described.kind, described.media_type) == ("binary", "application/pdf")
    assert json.loads(stored) == {"type": "resource", "resource": json.loads(raw)}
    assert json.loads(captured).keys() == {"uri", "mimeType", "text"}
    assert described.base in json.loads(captured)["text"]


async def test_each_large_content_has_a_path_of_its_own() -> None:
    shelf = Shelf()
    captured = await shelf.resource(content(LARGE), content(LARGE + "."))
    stored = {described.base: text for described, text in await shelf.stored()}
    named = [next(base for base in stored if base in json.loads(one)["text"]) for one in captured]
    assert [json.loads(stored[base]) for base in named] == [LARGE, LARGE + "."]
    assert shelf.kept == 2


async def test_a_large_message_is_stored_and_its_notice_takes_its_place() -> None:
    shelf = Shelf()
    small = message(type="text", text="small")
    captured = await shelf.prompt(
        small, message(type="text", text=LARGE), message(type="image", data="a" * 6_000_000, mimeType="i/p")
    )
    (image, _), (text, stored) = sorted(await shelf.stored(), key=lambda one: one[0].kind)
    assert captured[0] == small
    for raw, described in ((captured[1], text), (captured[2], image)):
        notice = json.loads(raw)
        assert described.base.startswith("prompt-")
        assert notice["content"].pop("text").splitlines()[0] == f'"{described.base}"'
        assert notice == {"role": "user", "content": {"type": "text"}, "vendor": 1}
        assert described.provenance == Provenance("docs", "greet", "")
    assert json.loads(stored) == LARGE


@pytest.mark.parametrize(
    "result",
    [
        {"resultType": b'"input_required"'},
        {"contents": b"null", "messages": b"{}"},
        {"contents": b'"x"', "messages": b"5"},
        {},
    ],
)
async def test_results_without_contents_pass_unchanged(result: Mapping[str, Buffer]) -> None:
    shelf = Shelf()
    assert await shelf.capture.capture(RESOURCE, result, "me", PLACE) == result
    assert await shelf.capture.capture(PROMPT, result, "me", PLACE) == result


async def test_by_default_everything_passes() -> None:
    shelf = Shelf(capture_resources=False)
    large = content(LARGE)
    assert await shelf.resource(large) == [large]
    assert await shelf.prompt(message(type="text", text=LARGE)) == [message(type="text", text=LARGE)]
    assert MirrorPolicy().capture_resources is False
    assert await shelf.stored() == []


async def test_resources_and_prompts_show_no_byte_without_previews() -> None:
    shelf = Shelf(capture_resources=False)
    hidden = msgspec.structs.replace(shelf.capture, may_show=lambda name: name != PLACE.upstream)
    captured: list[Mapping[str, Buffer | Segments]] = []
    contents = [b'{"uri":"x://c4nary","mimeType":"c4nary","text":"c4nary","_meta":{"c4nary":1}}', b'{"blob":"c4nary"}']
    captured.append(
        await hidden.capture(RESOURCE, {"contents": array_of(contents), "_meta": b'{"c4nary":1}'}, "me", PLACE)
    )
    captured.append(await hidden.capture(RESOURCE, {"contents": b'"c4nary"'}, "me", PLACE))
    messages = [b'{"role":"c4nary","content":{"type":"text","text":"c4nary"}}', b'{"role":"assistant"}']
    result: Mapping[str, Buffer | Segments] = {"messages": array_of(messages), "description": b'"c4nary"'}
    captured.append(await hidden.capture(PROMPT, result, "me", ResourceOrigin("docs", "greet")))
    shown = [json.loads(b"".join(part)) for one in captured for part in one.values() if isinstance(part, tuple)]
    assert "c4nary" not in str(
        [bytes(b"".join(p)) if isinstance(p, tuple) else p for one in captured for p in one.values()]
    )
    assert [set(one) for one in captured] == [{"contents"}, {"contents"}, {"messages"}]
    assert [one["uri"] for one in shown[0]] == ["file:///a.txt", "file:///a.txt"]
    assert [len(part) for part in shown] == [2, 0, 2]
    assert [one["role"] for one in shown[2]] == ["user", "assistant"]
    assert not any(descriptor.preview for descriptor, _ in await shelf.stored())
    passed = await shelf.capture.capture(
        RESOURCE, {"contents": array_of(contents)}, "me", ResourceOrigin("other", "x://c4nary")
    )
    assert items_of(passed["contents"]) == contents


@pytest.mark.parametrize("kind", ["resource", "prompt"])
async def test_stored_values_are_labelled_and_hidden_values_are_refused(kind: str) -> None:
    shelf = Shelf()
    place = PlacePolicy(integrity="trusted", confidentiality="internal")
    bound = FlowsPolicy(model=PlacePolicy(accepts=Accepts(confidentiality="internal")))
    shelf.capture = msgspec.structs.replace(shelf.capture, flows=Flows(bound, {"docs": place}))
    captured, member, item = RESOURCE, "contents", content(LARGE)
    if kind == "prompt":
        captured, member, item = PROMPT, "messages", message(type="text", text=LARGE)
    result: dict[str, Buffer | Segments] = {member: array_of((item,))}
    await shelf.capture.capture(captured, result, "me", PLACE)
    ((stored, _),) = await shelf.stored()
    assert stored.labels == {"sources": "docs", "integrity": "trusted", "confidentiality": "internal"}
    result["_meta"] = b'{"ifc":{"confidentiality":"private"}}'
    with pytest.raises(ToolError, match=r"may not be shown to the model: it is private, and `flows\.model\.accepts"):
        await shelf.capture.capture(captured, result, "me", PLACE)
    shelf.capture = msgspec.structs.replace(shelf.capture, mirror=MirrorPolicy(capture_resources=False))
    with pytest.raises(ToolError):
        await shelf.capture.capture(captured, result, "me", PLACE)
    assert shelf.kept == 1


async def test_large_contents_take_turns_with_other_work_of_their_principal() -> None:
    shelf, gate = Shelf(), threading.Event()
    large = content("many words " * 10_000)

    async def occupy() -> None:
        await run_by_values((large,), gate.wait, 30, principal="me")

    async with anyio.create_task_group() as tasks:
        try:
            for _ in range(2):
                tasks.start_soon(occupy)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(shelf.resource, large)
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(10):
                assert await run_by_values((large,), len, large, principal="alice") == len(large)
            assert shelf.kept == 0
        finally:
            gate.set()
    assert shelf.kept == 1


@pytest.mark.slow
@pytest.mark.parametrize(("text", "count"), [("text", 20_000), ("words " * 4000, 200)], ids=["small", "stored"])
async def test_very_many_contents_do_not_stall_others(text: str, count: int) -> None:
    shelf = Shelf()
    await shelf.resource(content(text))
    contents = array_of([content(text)] * count)
    messages = array_of([message(type="text", text=text)] * count)
    passed: list[Mapping[str, Buffer | Segments]] = []

    async def capture() -> None:
        passed.append(await shelf.capture.capture(RESOURCE, {"contents": contents}, "me", PLACE))
        passed.append(await shelf.capture.capture(PROMPT, {"messages": messages}, "me", PLACE))

    assert await measure_pause(capture()) < 0.1 * slowness()
    assert [len(items_of(one)) for result in passed for one in result.values()] == [count, count]

"""Stored values as resources: each is listed once and read in its own format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from mcp_mirror.errors import ToolError
from mcp_mirror.memory.memory import Memory
from mcp_mirror.memory.resources import PAGE, TEMPLATE, list_values, read_value
from mcp_mirror.memory.tools.table import RETRIEVE, TOOLS
from mcp_mirror.paths import new_base
from mcp_mirror.payload.json_rpc import object_of
from mcp_mirror.settings.policies import MirrorPolicy
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.memory import MemoryStore
from mcp_mirror.types import Descriptor, Kind, Provenance

if TYPE_CHECKING:
    from tests.integration.conftest import MemoryOver

NOW = 1_700_000_000.0


@pytest.fixture
def memory(memory_over: MemoryOver) -> Memory:
    store = MemoryStore(StorePolicy(), lambda: NOW, lambda: Path("/nonexistent"))
    return memory_over(store, MirrorPolicy(answer_budget=100))


async def put(memory: Memory, number: int, blob: bytes, kind: Kind, **more: Any) -> str:
    """Store a value; give its base."""
    base = new_base("tool", UUID(int=number, version=4))
    source = Provenance("up", "my tool", "0" * 64)
    namespace = more.pop("namespace", "me")
    described = Descriptor(base, kind, len(blob), 1, (), NOW + number, NOW + 1e6, source, **more)
    await memory.store.put(namespace, described, (blob,))
    return base


async def read(memory: Memory, uri: str, namespace: str = "me") -> dict[str, Any]:
    result = json.loads(b"".join(object_of(await read_value(memory, namespace, uri))))
    (content,) = result["contents"]
    assert content.pop("uri") == uri
    return dict(content)


async def list_all(memory: Memory, namespace: str = "me") -> list[list[dict[str, Any]]]:
    """Every page."""
    pages: list[list[dict[str, Any]]] = []
    cursor: str | None = None
    while not pages or cursor is not None:
        items, cursor = await list_values(memory, namespace, cursor)
        pages.append([json.loads(item) for item in items])
        assert len(pages) < 10
    return pages


@pytest.mark.parametrize(
    ("number", "sizes"), [(0, [0]), (1, [1]), (PAGE, [PAGE]), (PAGE + 1, [PAGE, 1]), (250, [PAGE, PAGE, 50])]
)
async def test_every_value_is_listed_once_the_newest_first(memory: Memory, number: int, sizes: list[int]) -> None:
    bases = [await put(memory, at, b"1", "number") for at in range(number)]
    await put(memory, 999, b"1", "number", namespace="somebody else")
    pages = await list_all(memory)
    assert [len(page) for page in pages] == sizes
    assert [item["name"] for page in pages for item in page] == bases[::-1]
    for item in pages[0][:1]:
        assert (await read(memory, item["uri"]))["text"] == "1"


async def test_new_values_do_not_appear_in_later_pages(memory: Memory) -> None:
    bases = [await put(memory, at, b"1", "number") for at in range(PAGE + 5)]
    _, cursor = await list_values(memory, "me", None)
    await put(memory, 500, b"1", "number")
    items, more = await list_values(memory, "me", cursor)
    assert [json.loads(item)["name"] for item in items] == bases[4::-1]
    assert more is None


async def test_a_list_with_an_expired_cursor_does_not_restart(memory: Memory) -> None:
    for at in range(PAGE + 5):
        await put(memory, at, b"1", "number")
    _, cursor = await list_values(memory, "me", None)
    assert cursor is not None
    await memory.store.delete("me", cursor)
    for gone in (cursor, "made up", ""):
        with pytest.raises(ToolError, match="List again without a cursor"):
            await list_values(memory, "me", gone)


async def test_a_listed_value_is_described(memory: Memory) -> None:
    await put(memory, 0, b'"x"', "text")
    base = await put(memory, 1, b'{"data":"AAAA"}', "binary", media_type="image/png")
    (picture, text), *_ = await list_all(memory)
    assert picture == {
        "uri": f"memory://{base}",
        "name": base,
        "title": "my tool (15 B)",
        "description": "binary from my tool of up",
        "mimeType": "image/png",
        "annotations": {"lastModified": "2023-11-14T22:13:21Z"},
    }
    assert text["mimeType"] == "text/plain"
    assert "size" in text
    assert TEMPLATE["uriTemplate"].replace("{+path}", base) == picture["uri"]


@pytest.mark.parametrize(
    ("blob", "kind", "content"),
    [
        (b'"a\\u00e9\\n"', "text", {"mimeType": "text/plain", "text": "a\u00e9\n"}),
        (b'{"a": 1.10}', "object", {"mimeType": "application/json", "text": '{"a": 1.10}'}),
        (b"[1e400]", "array", {"mimeType": "application/json", "text": "[1e400]"}),
        (b'{"type":"image","data":"AAAA","mimeType":"image/png"}', "binary", {"mimeType": "image/png", "blob": "AAAA"}),
        (b'{"type":"audio","data":"AAAA"}', "binary", {"blob": "AAAA"}),
        (
            b'{"type":"resource","resource":{"uri":"a:b","mimeType":"x/y","blob":"AAAA"}}',
            "binary",
            {"mimeType": "x/y", "blob": "AAAA"},
        ),
        (b'{"uri":"a:b","blob":"AAAA"}', "binary", {"blob": "AAAA"}),
        (
            b'{"type":"resource","resource":{"uri":"a:b","mimeType":"text/x","text":"said"}}',
            "binary",
            {"mimeType": "text/x", "text": "said"},
        ),
    ],
)
async def test_a_value_is_read_as_what_it_is(memory: Memory, blob: bytes, kind: Kind, content: dict[str, str]) -> None:
    assert await read(memory, f"memory://{await put(memory, 1, blob, kind)}") == content


async def test_a_value_without_showable_content_is_an_error_with_advice(memory: Memory) -> None:
    base = await put(memory, 1, b'{"type":"resource","resource":{"uri":"a:b"}}', "binary")
    with pytest.raises(ToolError, match="Pass its path to a tool"):
        await read(memory, f"memory://{base}")


@pytest.mark.parametrize(
    ("key", "below"),
    [
        ("plain", "plain"),
        ("two words", "two%20words"),
        ("two words", "two words"),
        ("\u00e9", "%C3%A9"),
        ("100%", "100%25"),
        ("a/b", "a~1b"),
        ("a/b", "a%7E1b"),
        ('"q" or', "%22q%22%20or"),
    ],
)
async def test_a_part_of_a_value_is_read_by_its_key_however_that_is_written(
    memory: Memory, key: str, below: str
) -> None:
    base = await put(memory, 1, json.dumps({key: ["x", 1.5], "other": 1}).encode(), "object")
    assert await read(memory, f"memory://{base}/{below}") == {"mimeType": "application/json", "text": '["x", 1.5]'}
    assert await read(memory, f"memory://{base}/{below}/0") == {"mimeType": "text/plain", "text": "x"}


async def test_a_value_over_ten_megabytes_is_refused_but_its_parts_are_read(memory: Memory) -> None:
    base = await put(memory, 1, json.dumps({"long": "word " * 2_400_000, "short": 1}).encode(), "object")
    with pytest.raises(ToolError, match=r"object of 12 MB; a resource is limited to 10 MB.*Read a part"):
        await read(memory, f"memory://{base}")
    assert (await read(memory, f"memory://{base}/short"))["text"] == "1"


async def test_the_answer_budget_does_not_limit_resources(memory: Memory) -> None:
    text = {"type": "resource", "resource": {"uri": "a:b", "text": "word " * 1000}}
    picture = {"type": "resource", "resource": {"uri": "a:b", "blob": "A" * 5000}}
    text_block, shown = [
        await put(memory, at, json.dumps(one).encode(), "binary") for at, one in enumerate((text, picture))
    ]
    assert (await read(memory, f"memory://{text_block}"))["text"] == "word " * 1000
    with pytest.raises(ToolError, match="answer_budget"):
        await TOOLS[RETRIEVE].call(memory, "me", json.dumps({"memory_path": text_block}).encode())
    assert (await read(memory, f"memory://{shown}"))["blob"] == "A" * 5000
    (block,) = await TOOLS[RETRIEVE].call(memory, "me", json.dumps({"memory_path": shown}).encode())
    assert json.loads(b"".join(block)) == picture


async def test_foreign_and_unknown_paths_return_the_same_error(memory: Memory) -> None:
    base = await put(memory, 1, b'{"a":1}', "object", namespace="somebody else")
    mine = await put(memory, 2, b'{"a":1}', "object")
    made_up = new_base("tool", UUID(int=3, version=4))
    for unknown in (base, made_up):
        with pytest.raises(ToolError, match=f'No value is stored under "{unknown}"'):
            await read(memory, f"memory://{unknown}")
    for odd in ("", "nonsense", "%FF", "../x"):
        with pytest.raises(ToolError, match="No value is stored under"):
            await read(memory, f"memory://{odd}")
    with pytest.raises(ToolError, match=r'no key "b"\. Its keys are "a"\. Pass a whole path, such as ".*/a"'):
        await read(memory, f"memory://{mine}/b")

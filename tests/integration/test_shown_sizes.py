"""The sizes and tokens of stored texts, as models and clients read them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mcp_mirror.core.amounts import format_bytes
from mcp_mirror.core.results.capture import CaptureRules, capture
from mcp_mirror.errors import ToolError
from mcp_mirror.memory import resources
from mcp_mirror.memory.memory import Memory
from mcp_mirror.memory.tools.table import RETRIEVE, TOOLS
from mcp_mirror.paths import FixedBases
from mcp_mirror.settings.policies import MirrorPolicy
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.memory import MemoryStore
from mcp_mirror.stores.records import pack_descriptor, unpack_descriptor
from mcp_mirror.tokens import estimate_tokens
from mcp_mirror.types import Descriptor, Provenance

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.conftest import MemoryOver

TEXT = 'the "caf\u00e9" of C:\\new\n' * 400
SIZE, TOKENS = len(TEXT.encode()), estimate_tokens(TEXT)
PROVENANCE = Provenance("up", "read", "0" * 64)
BASE = "read-9c1d4f0e-6a55-4b8e-9d0a-0f3b2f6f6a11"


@pytest.fixture
def memory(memory_over: MemoryOver, tmp_path: Path) -> Memory:
    store = MemoryStore(StorePolicy(), lambda: 1e9, lambda: tmp_path)
    return memory_over(store, MirrorPolicy(answer_budget=TOKENS, read_budget=1000))


async def keep(memory: Memory, value: Any) -> str:
    """Store a value as an upstream sends it; return its path."""
    await memory.services.writer.store_values("me", PROVENANCE, {BASE: json.dumps(value).encode()}, memory.estimate, {})
    return BASE


async def ask(memory: Memory, tool: str, **arguments: Any) -> str:
    block, *_ = await TOOLS[tool].call(memory, "me", json.dumps(arguments).encode())
    return str(json.loads(b"".join(block))["text"])


@pytest.mark.parametrize("part", ["", "/body"])
async def test_a_description_has_the_size_and_tokens_of_the_text(memory: Memory, part: str) -> None:
    path = await keep(memory, {"body": TEXT} if part else TEXT) + part
    first = (await ask(memory, "memory_describe", memory_path=path)).splitlines()[0]
    assert first == f"{format_bytes(SIZE)}, about {TOKENS:,} tokens"


async def test_a_list_and_resources_have_the_size_of_the_text(memory: Memory) -> None:
    await keep(memory, TEXT)
    assert f'"{BASE}" text, {format_bytes(SIZE)}, ' in await ask(memory, "memory_list")
    (listed,), _ = await resources.list_values(memory, "me", None)
    resource = json.loads(listed)
    assert (resource["size"], resource["title"]) == (SIZE, f"read ({format_bytes(SIZE)})")


@pytest.mark.parametrize("part", ["", "/body"])
async def test_a_text_within_the_answer_budget_is_retrieved(memory: Memory, part: str) -> None:
    path = await keep(memory, {"body": TEXT} if part else TEXT) + part
    assert await ask(memory, RETRIEVE, memory_path=path) == TEXT


@pytest.mark.parametrize("part", ["", "/body"])
async def test_a_refusal_has_the_size_and_tokens_of_the_text(memory: Memory, part: str) -> None:
    text = TEXT + TEXT[: len(TEXT) // 2]
    path = await keep(memory, {"body": text} if part else text) + part
    stated = f"is text of {format_bytes(len(text.encode()))}, about {estimate_tokens(text):,} tokens"
    with pytest.raises(ToolError, match=re.escape(stated)):
        await ask(memory, RETRIEVE, memory_path=path)


async def test_a_small_text_of_a_query_is_shown_whatever_its_escapes(memory: Memory) -> None:
    text = '"a"\n' * 500
    path = await keep(memory, [{"text": text}])
    assert await ask(memory, "memory_query", memory_path=path, expression="[0].text") == text


def test_a_stored_record_without_the_size_of_its_text_is_read() -> None:
    known = Descriptor(BASE, "text", 90, 7, (), 1.0, 2.0, PROVENANCE, text_size=80)
    packed = msgspec.msgpack.decode(pack_descriptor(known))
    assert unpack_descriptor(BASE, msgspec.msgpack.encode(packed)) == known
    earlier = unpack_descriptor(BASE, msgspec.msgpack.encode(packed[:-1]))
    assert (earlier.text_size, earlier.shown_size, known.shown_size) == (None, 90, 80)


async def test_members_beside_a_value_are_stored_up_to_a_limit(memory: Memory) -> None:
    """Quotas do not count them."""
    rules = CaptureRules("always", inline_budget=0, error_budget=0, is_wrapped=False)
    meta = json.dumps({"view": "x" * 1_000_000}).encode()
    captured = capture({"structuredContent": b'{"a":1}', "_meta": meta}, rules, memory.estimate)
    await memory.services.writer.store_result("me", PROVENANCE, FixedBases(BASE, f"x{BASE}"), captured, {})
    stored = await memory.store.describe("me", BASE)
    assert isinstance(stored, Descriptor)
    assert len(stored.other_members) < 1000

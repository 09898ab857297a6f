"""Values pruned from a conversation are stored like others: each key has a path, and they can be rebuilt."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mcp_mirror.errors import StoreError
from mcp_mirror.memory.value_writer import ValueWriter
from mcp_mirror.prune import Pruned, prune_messages, pruned_paths, restore_messages
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.disk.store import DiskStore
from mcp_mirror.stores.memory import MemoryStore
from mcp_mirror.tokens import estimate_tokens
from mcp_mirror.types import Buffer, Provenance

PROVENANCE = Provenance("mcp-mirror", "prune", "")
ROWS = json.dumps({"rows": list(range(2000)), "total": 2000}, indent=1)
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo" * 900}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "Which rows?"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "rows", "input": {"q": "x" * 900}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": ROWS}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "b", "name": "draw", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "b", "content": [IMAGE]}]},
    {"role": "assistant", "content": "All of them."},
]


class Counted:
    """Two value writers over one store, and the number of announced values."""

    def __init__(self, store: MemoryStore | DiskStore) -> None:
        self.kept = 0
        self.store = store
        self.writer = ValueWriter(store, StorePolicy(), lambda: 1e9, self._count)

    def _count(self, _namespace: str) -> None:
        self.kept += 1

    async def prune(self) -> Pruned:
        """As a harness does it: what is pruned is kept before the messages are used."""
        memory: dict[str, bytes] = {}
        pruned = prune_messages(MESSAGES, 0, "anthropic", memory)
        await self.writer.store_values("me", PROVENANCE, memory, estimate_tokens, {})
        return pruned

    async def restore(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        blobs: Mapping[str, Buffer | None] = {
            path: await self.store.read("me", path) for path in pruned_paths(messages, "anthropic")
        }
        return restore_messages(messages, lambda path: blobs[path], "anthropic")


@pytest.fixture(params=["memory", "disk"])
async def counted(request: pytest.FixtureRequest, tmp_path: Path) -> Counted:
    policy = replace(StorePolicy(), path=str(tmp_path))
    if request.param == "memory":
        return Counted(MemoryStore(policy, lambda: 1e9, lambda: tmp_path))
    return Counted(DiskStore(policy, lambda: 1e9, tmp_path))


async def test_pruned_parts_are_rebuilt_from_a_store(counted: Counted) -> None:
    async with counted.store:
        pruned = await counted.prune()
        assert [cut.message for cut in pruned.cuts] == [2, 1, 4]
        assert json.dumps(await counted.restore(pruned.messages)) == json.dumps(MESSAGES)
        rows = await counted.store.describe("me", str(pruned.cuts[0].path))
        assert rows is not None
        assert [member.key for member in getattr(rows, "members", ())] == ["rows", "total"]


async def test_parts_that_are_pruned_again_are_not_stored_again(counted: Counted) -> None:
    async with counted.store:
        first, second = await counted.prune(), await counted.prune()
        assert first.messages == second.messages
        assert counted.kept == 3


async def test_null_is_refused(counted: Counted) -> None:
    async with counted.store:
        with pytest.raises(StoreError, match="null"):
            await counted.writer.store_values("me", PROVENANCE, {"pruned-x": b"null"}, estimate_tokens, {})

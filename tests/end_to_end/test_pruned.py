"""Twins accept values that a harness pruned into the store of a running gateway."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from mcp_mirror import Mirror
from mcp_mirror.errors import MirrorError
from mcp_mirror.memory.value_writer import ValueWriter
from mcp_mirror.prune import prune_messages
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.disk.store import DiskStore
from mcp_mirror.tokens import estimate_tokens
from mcp_mirror.types import Provenance

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.conftest import OpenClient

ROWS = {"rows": list(range(500)), "name": "today's"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "list_rows", "arguments": "{}"}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "Which rows?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": json.dumps(ROWS, indent=1)},
    {"role": "assistant", "content": "All."},
]


async def test_a_twin_takes_pruned_values_by_path_key_path_and_whole_stub(
    open_client: OpenClient, raw: Any, tmp_path: Path
) -> None:
    async with open_client({"raw": raw(overrides={"hear": {"capture": "never"}})}) as client:
        policy = StorePolicy()
        async with DiskStore(policy, time.time, tmp_path / "store") as store:
            memory: dict[str, bytes] = {}
            stub = prune_messages(MESSAGES, 0, "openai", memory).messages[2]["content"]
            writer = ValueWriter(store, policy, time.time)
            await writer.store_values("local", Provenance("mcp-mirror", "prune", ""), memory, estimate_tokens, {})
        [path] = memory
        received = await client.text("hear_mirrored", {"all": path, "name": f"{path}/name", "pasted": stub})
        assert json.loads(received)["params"]["arguments"] == {"all": ROWS, "name": "today's", "pasted": ROWS}


async def test_the_stub_of_pruned_arguments_is_their_value_as_an_object_too() -> None:
    mirror, got = Mirror(), list[Any]()

    @mirror.tool
    def keep(body: dict[str, Any], note: str = "") -> str:
        got.append((body, note))
        return "kept"

    arguments = {"body": {"rows": list(range(900))}, "note": "n"}
    function = {"name": "keep_mirrored", "arguments": json.dumps(arguments)}
    call = {"id": "call_1", "type": "function", "function": function}
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": "Keep the rows."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "kept"},
        {"role": "assistant", "content": "Kept."},
        {"role": "user", "content": "Again."},
        {"role": "assistant", "content": "Yes."},
    ]
    async with mirror:
        messages = (await mirror.prune(turns, 0, "openai")).messages
        stub = json.loads(messages[1]["tool_calls"][0]["function"]["arguments"])
        for body in (stub, json.dumps(stub)):
            await mirror.call("keep_mirrored", {"body": body, "note": f"{stub['memory_path']}/note"})
            assert got.pop() == (arguments, "n")
        saved = await mirror.put({"memory_path": "x", "pruned": 1})
        for other in ({**stub, "more": 1}, {"memory_path": saved, "pruned": "all"}, {"pruned": stub["memory_path"]}):
            await mirror.call("keep_mirrored", {"body": other})
            assert got.pop()[0].keys() == other.keys()
        repeated = await mirror.call("keep_mirrored", stub)
        assert repeated.text.startswith("These arguments are the stub of a call whose arguments were pruned.")
        assert not got


async def test_pruning_counts_tokens_with_the_configured_provider() -> None:
    async with Mirror(upstreams={"mirror": {"provider": "mistral"}, "upstreams": {}}) as mirror:
        pruned = await mirror.prune(MESSAGES, 10_000, "openai")
        assert pruned.tokens_before == estimate_tokens(MESSAGES, "mistral") > estimate_tokens(MESSAGES, "openai")
        with pytest.raises(ValueError, match="Unknown provider 'foo'"):
            await mirror.prune(MESSAGES, 10_000, "openai", estimate="foo")  # type: ignore[arg-type]


async def test_a_mirror_prunes_a_conversation_into_its_memory_and_restores_it() -> None:
    mirror = Mirror()

    @mirror.tool
    def count(rows: list[int]) -> int:
        return len(rows)

    async with mirror:
        pruned = await mirror.prune(MESSAGES, 0, "openai")
        (path,) = [cut.path for cut in pruned.cuts]
        assert path is not None
        assert path in pruned.messages[2]["content"]
        assert await mirror.read(path) == ROWS
        assert str(await mirror.call("count_mirrored", {"rows": f"{path}/rows"})) == "500"
        assert await mirror.restore(pruned.messages, "openai") == MESSAGES
        assert await mirror.restore(pruned.messages, "openai", namespace="another") == pruned.messages
        same = await mirror.prune(MESSAGES, 10_000, "openai")
        assert same.messages is MESSAGES
        costly = await mirror.prune(MESSAGES, 10_000, "openai", estimate=lambda _: 10_000)
        assert costly.tokens_before == 40_000
        of_llama = await mirror.prune(MESSAGES, 10_000, "openai", estimate="llama")
        assert of_llama.tokens_before == estimate_tokens(MESSAGES, "llama")
    with pytest.raises(MirrorError, match="is closed"):
        await mirror.prune(MESSAGES, 0, "openai")

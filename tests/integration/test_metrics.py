"""The instruments: bounded labels, errors of the store."""

from __future__ import annotations

import gc
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from mcp_mirror.errors import StoreError
from mcp_mirror.observability.metrics import OTHER, Metrics
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.memory import MemoryStore
from mcp_mirror.stores.opening import measure_store

if TYPE_CHECKING:
    from pathlib import Path

CALLS = "mcp_server_operation_duration_seconds_count"
ERRORS = ("_OTHER", "-3000", "unknown_path")


def test_the_number_of_tools_in_labels_is_bounded() -> None:
    metrics = Metrics("1")
    for number in range(3_000):
        metrics.record_call(f"tool {number}", "", 0.1, (1, 2, 3), "")
        metrics.record_request(f"tool {number}", "upstream", "", 0.1)
    metrics.record_call("tool 0", "", 0.1, (1, 2, 3), "")
    labels = {"mcp_method_name": "tools/call", "error_type": ""}
    assert metrics.registry.get_sample_value(CALLS, {**labels, "gen_ai_tool_name": OTHER}) == 1_000
    assert metrics.registry.get_sample_value(CALLS, {**labels, "gen_ai_tool_name": "tool 0"}) == 2
    series = [sample for family in metrics.registry.collect() for sample in family.samples if sample.name == CALLS]
    assert len(series) == 2_001


def test_the_number_of_error_codes_in_labels_is_bounded() -> None:
    metrics = Metrics("1")
    for code in range(-3_000, 0):
        metrics.record_call("tool", str(code), 0.1, (1, 2, 3), "")
        metrics.record_request("tool", "upstream", str(code), 0.1)
    metrics.record_call("tool", "-3000", 0.1, (1, 2, 3), "")
    metrics.record_call("tool", "unknown_path", 0.1, (1, 2, 3), "")
    labels = {"mcp_method_name": "tools/call", "gen_ai_tool_name": "tool"}
    counts = [metrics.registry.get_sample_value(CALLS, {**labels, "error_type": one}) for one in ERRORS]
    assert counts == [2_000, 2, 1]
    names = [CALLS, CALLS.replace("server", "client")]
    series = [sample.name for family in metrics.registry.collect() for sample in family.samples]
    assert [series.count(name) for name in names] == [1_002, 1_001]


def test_new_names_of_tools_need_no_memory_beyond_the_limit() -> None:
    metrics = Metrics("1")

    def record(numbers: range) -> int:
        for number in numbers:
            metrics.record_request(f"tool {number}", "upstream", "", 0.1)
        gc.collect()  # also frees the up to 2,000 tuples that the interpreter keeps for reuse
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = record(range(3_000))
        assert record(range(3_000, 13_000)) - before < 100_000
    finally:
        tracemalloc.stop()


class BrokenStore(MemoryStore):
    """A store that cannot list namespaces."""

    async def namespaces(self) -> frozenset[str]:
        raise StoreError("It is away.")


async def test_operations_of_a_store_are_measured_with_their_errors(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    def note(operation: str, seconds: float, error: str) -> None:
        assert seconds >= 0
        seen.append((operation, error))

    async with BrokenStore(StorePolicy(), lambda: 0.0, lambda: tmp_path) as broken:
        store = measure_store(broken, note)
        assert await store.read("me", "x") is None
        assert await store.describe("me", "x") is None
        assert await store.file_of("me", "x") is None
        assert not await store.delete("me", "x")
        assert await store.list("me") == ()
        assert await store.bases_near("me", "x", 1) == ()
        assert (await store.stats("me")).values == (await store.totals()).values == 0
        with pytest.raises(StoreError):
            await store.namespaces()
    operations = ["read", "describe", "file_of", "delete", "list", "bases_near", "stats", "totals"]
    assert seen == [*((one, "") for one in operations), ("namespaces", "store_error")]

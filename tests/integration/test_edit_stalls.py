"""Edits with very many replacements run beside other calls."""

import asyncio
import json
import sys
from contextlib import aclosing
from pathlib import Path
from uuid import uuid4

import pytest
from notices import path_in
from tests.load import find_longest_stall

from mcp_mirror.memory.memory import Memory, MemoryServices
from mcp_mirror.memory.tools.table import TOOLS
from mcp_mirror.memory.usage import UsageCounter
from mcp_mirror.memory.value_writer import ValueWriter
from mcp_mirror.observability.audit import Audit
from mcp_mirror.payload.spool import Spool
from mcp_mirror.security.flows import Flows
from mcp_mirror.settings.policies import MemoryToolsPolicy, MirrorPolicy, WirePolicy
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.memory import MemoryStore
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.system.event_loop import MeasuredLoop, measure_stalls
from mcp_mirror.tokens import estimate_tokens
from mcp_mirror.types import Provenance
from mcp_mirror.workers.frames import FrameScanner
from mcp_mirror.workers.queries import QueryRunner

BASE = "read-9c1d4f0e-6a55-4b8e-9d0a-0f3b2f6f6a11"


@pytest.mark.alone
@pytest.mark.skipif(sys.platform == "win32", reason="no loop is measured there")
@pytest.mark.parametrize(
    "text", ["a" * 65_000, "ab" * 99_000, f"{'x' * 100}a" * 99_000], ids=["64 kB", "200 kB", "10 MB"]
)
def test_an_edit_of_very_many_places_does_not_stall_other_calls(text: str, tmp_path: Path) -> None:
    limits = WirePolicy()

    async def edit() -> tuple[bytes, float]:
        """Return the edited value, and the longest stall until then: neither the store nor the spool was closed."""
        store = MemoryStore(StorePolicy(), lambda: 1e9, lambda: tmp_path)
        with ChildWatchdog() as child_watchdog, Spool(limits, tmp_path / "spool") as spool:
            async with (
                aclosing(FrameScanner(child_watchdog, spool)) as scanner,
                aclosing(QueryRunner(child_watchdog, spool)) as queries,
            ):
                writer = ValueWriter(store, StorePolicy(), lambda: 1e9)
                memory = Memory(
                    MemoryServices(writer, scanner, queries, spool, UsageCounter(store), limits, uuid4),
                    mirror=MirrorPolicy(),
                    tools=MemoryToolsPolicy(),
                    estimate=estimate_tokens,
                    audit=Audit(),
                    flows=Flows(),
                )
                provenance = Provenance("up", "read", "0" * 64)
                await writer.store_values("me", provenance, {BASE: json.dumps(text).encode()}, estimate_tokens, {})
                measure_stalls()
                arguments = {"memory_path": BASE, "old_text": "a", "new_text": "bc", "all": True}
                (block,) = await TOOLS["memory_edit"].call(memory, "me", json.dumps(arguments).encode())
                notice = json.loads(b"".join(block))["text"]
                edited = bytes(await store.read("me", path_in(notice)) or b"")
                return edited, await find_longest_stall()

    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        edited, longest = runner.run(edit())
    is_edited = json.loads(edited) == text.replace("a", "bc")
    assert is_edited
    assert longest < 0.1

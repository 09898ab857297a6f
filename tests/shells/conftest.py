"""What our own tools work on, over any store."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from mcp_mirror.inquiries import Inquirer
from mcp_mirror.keeper import Keeper
from mcp_mirror.leash import Leash
from mcp_mirror.memory_tools.own_tool import Memory
from mcp_mirror.policies import MemoryToolsPolicy, MirrorPolicy, StorePolicy, WirePolicy
from mcp_mirror.scanner import Scanner
from mcp_mirror.spool import Spool
from mcp_mirror.stores.base import Store
from mcp_mirror.tokens import estimate_tokens

MemoryOver = Callable[..., Memory]


@pytest.fixture
async def memory_over(tmp_path: Path) -> AsyncIterator[MemoryOver]:
    """Puts a memory together: over a store, with the policies that are given."""
    limits = WirePolicy()
    with Leash() as leash, Spool(limits, tmp_path) as spool:
        async with aclosing(Scanner(leash)) as scanner, aclosing(Inquirer(leash)) as inquirer:

            def memory(store: Store, mirror: MirrorPolicy | None = None, **tools: Any) -> Memory:
                return Memory(
                    keeper=Keeper(store, StorePolicy(), lambda: 1e9),
                    scanner=scanner,
                    inquirer=inquirer,
                    spool=spool,
                    mirror=mirror or MirrorPolicy(),
                    tools=MemoryToolsPolicy(**tools),
                    limits=limits,
                    estimate=estimate_tokens,
                    new_id=uuid4,
                )

            yield memory

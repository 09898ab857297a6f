"""A file system that runs full while several clients store values: a real one, of 30 MB."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.hostile.conftest import connect_http

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mcp import Client
    from tests.end_to_end.conftest import Serve
    from tests.hostile.conftest import Budget, Configured

CLIENTS = 6
VALUE = 300_000
SMALL = 20_000
FULL = (
    "The store failed. Its disk is full: free some space there, or delete values with `mcp-mirror values clear`. "
    "A lower `store.max_bytes` prevents this."
)

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="a small file system is mounted, which root may do on Linux"
)


@contextmanager
def small_file_system(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=30m", "tmpfs", str(folder)], check=False)
    if mounted.returncode:
        pytest.skip("this container may not mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_up(file: Path) -> None:
    """Take all of the space that is left."""
    with file.open("ab", buffering=0) as rest, contextlib.suppress(OSError):
        while rest.write(bytes(4096)):
            pass


async def call(client: Client, tool: str, **arguments: Any) -> tuple[bool, str]:
    result = await client.call_tool(tool, arguments)
    return bool(result.is_error), str(getattr(result.content[0], "text", ""))


def text_of(word: str, size: int) -> str:
    return f"{word} " * (size // (len(word) + 1))


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_full_disk_costs_only_the_values_that_find_no_room(
    configured: Configured, raw: Any, serve: Serve, tmp_path: Path, budget: Budget
) -> None:
    values: dict[str, str] = {}
    errors: set[str] = set()

    async def store(client: Client, word: str, size: int) -> bool:
        is_error, answer = await call(client, "memory_put", value=text_of(word, size))
        if is_error:
            errors.add(answer)
        else:
            values[answer.split('"')[1]] = word
        return not is_error

    async def fill(client: Client, who: int) -> None:
        refused = number = 0
        while refused < 5:
            refused += not await store(client, f"w{who}n{number}", VALUE if number % 3 else SMALL)
            number += 1

    async def check(client: Client) -> None:
        for path, word in values.items():
            is_error, answer = await call(client, "memory_read", memory_path=path, limit=60)
            assert not is_error, answer
            assert word in answer

    with small_file_system(tmp_path / "small") as folder:
        other = folder / "of another program"
        other.write_bytes(bytes(4 << 20))
        config = configured({"raw": raw()}, store={"kind": "disk", "path": str(folder / "store")})
        async with serve(config) as served, connect_http(served.url) as reader:
            async with budget(served, "full disk", f"{CLIENTS} clients until ENOSPC, 30 MB") as row:
                await asyncio.gather(*(one_client(served.url, fill, who) for who in range(CLIENTS)))
                row.outcome = f"{len(values)} values kept, the others refused"
            assert len(values) > 30
            assert errors == {FULL}
            await check(reader)
            fill_up(folder / "rest")
            for path in (list(values)[-1], next(iter(values))):
                is_error, answer = await call(reader, "memory_forget", memory_path=path)
                assert not is_error, answer
                values.pop(path)
            other.unlink()
            assert await store(reader, "afterwards", SMALL)
            assert await store(reader, "afterwards", VALUE // 2)
            await check(reader)
        async with serve(config) as served, connect_http(served.url) as reader:
            await check(reader)


async def one_client(url: str, work: Any, who: int) -> None:
    async with connect_http(url) as client:
        await work(client, who)

"""A disk store whose files someone removes, truncates or replaces while gateways use it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from clocks import Clock
from disk_values import BASE, LARGE, SMALL, opened, put, read
from waiting import until

from mcp_mirror.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.conftest import Audit


def remove(folder: Path) -> None:
    shutil.rmtree(folder)


def rename(folder: Path) -> None:
    folder.rename(folder.with_name("backup"))


def remove_above(folder: Path) -> None:
    shutil.rmtree(folder.parent)


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir(0o700)


def remove_index(folder: Path) -> None:
    for file in folder.glob("index.sqlite*"):
        file.unlink()


CHANGES = [remove, rename, remove_above, empty, remove_index]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("blob", [SMALL, LARGE])
async def test_a_value_put_after_the_folder_was_removed_is_kept(
    blob: bytes, change: Callable[[Path], None], folder: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(folder, clock) as store:
        await put(store, clock, "t-1", SMALL)
        change(folder)
        await put(store, clock, BASE, blob)
        assert await read(store, BASE) == blob
        async with opened(folder, clock) as other:  # as another gateway
            assert await read(other, BASE) == blob
            await put(other, clock, "t-2", LARGE)
        assert await read(store, "t-2") == LARGE
    async with opened(folder, clock) as store:
        assert await read(store, BASE) == blob
    assert caplog.text.count("were removed or replaced while this gateway used them") == 1


@pytest.mark.parametrize("part", ["blobs", "live-*"])
async def test_a_removed_part_of_the_folder_costs_only_its_values(
    part: str, folder: Path, clock: Clock, audit: Audit
) -> None:
    async with opened(folder, clock) as store:
        await put(store, clock, "t-1", SMALL)
        await put(store, clock, "t-2", LARGE)
        shutil.rmtree(next(folder.glob(part)))
        await put(store, clock, BASE, LARGE[1:])
        assert await read(store, BASE) == LARGE[1:]
        assert await read(store, "t-1") == SMALL
        assert await read(store, "t-2") == (b"" if part == "blobs" else LARGE)
    assert audit(folder) >= {("me", BASE), ("me", "t-1")}


async def test_the_files_of_a_gateway_are_its_own_in_a_folder_of_its_spool(folder: Path, clock: Clock) -> None:
    async with opened(folder, clock) as store:
        remove(folder)
        store.scratch.mkdir(parents=True)
        await put(store, clock, BASE, LARGE)
        async with opened(folder, clock):
            assert store.scratch.exists()
    assert not store.scratch.exists()


async def test_a_gateway_that_only_reads_finds_the_new_store_soon(folder: Path, clock: Clock) -> None:
    async with opened(folder, clock) as reader:
        remove(folder)
        async with opened(folder, clock) as other:
            await put(other, clock, BASE, SMALL)

            await until(lambda: read(reader, BASE), lambda found: found == SMALL)
            await put(other, clock, "t-2", SMALL)
            assert await read(reader, "t-2") == SMALL


async def test_a_folder_that_cannot_be_created_again_is_an_error_until_it_can(folder: Path, clock: Clock) -> None:
    async with opened(folder, clock) as store:
        remove_above(folder)
        folder.parent.write_text("in the way")
        for blob in (SMALL, LARGE):
            with pytest.raises(StoreError):
                await put(store, clock, BASE, blob)
        folder.parent.unlink()
        await put(store, clock, BASE, LARGE)
        assert await read(store, BASE) == LARGE


@pytest.mark.parametrize("size", [0, 1, len(LARGE) - 1])
async def test_a_truncated_file_is_an_error_and_not_a_shorter_value(size: int, folder: Path, clock: Clock) -> None:
    async with opened(folder, clock) as store:
        await put(store, clock, BASE, LARGE)
        os.truncate(next((folder / "blobs").iterdir()), size)
        with pytest.raises(StoreError, match=r"truncated outside the gateway\. Call the tool"):
            await store.read("me", BASE)


async def test_an_index_whose_log_was_emptied_is_set_aside_at_the_next_start(folder: Path, clock: Clock) -> None:
    async with opened(folder, clock) as store:
        await put(store, clock, BASE, SMALL)
    with closing(sqlite3.connect(folder / "index.sqlite")) as index:
        (page,) = index.execute("PRAGMA page_size").fetchone()
        (root,) = index.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'seals'").fetchone()
    with (folder / "index.sqlite").open("r+b") as file:
        file.seek((root - 1) * page)
        file.write(b"\xff" * page)
    async with opened(folder, clock) as store:
        assert await store.list("me") == ()
        await put(store, clock, BASE, LARGE)
    async with opened(folder, clock) as store:
        assert await read(store, BASE) == LARGE


@pytest.mark.parametrize("is_empty", [False, True])
async def test_large_values_without_an_index_are_set_aside(
    *, is_empty: bool, folder: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(folder, clock) as store:
        await put(store, clock, "t-1", LARGE)
    index = (folder / "index.sqlite").rename(folder.with_name("restored later"))
    if is_empty:  # such as a copy for which the disk had no room
        (folder / "index.sqlite").touch(0o600)
    async with opened(folder, clock) as store:
        assert await store.list("me") == ()
        await put(store, clock, "t-2", LARGE)
    [aside] = folder.glob("blobs.without-index-*")
    assert caplog.text.count(f"had large values and no index. They were renamed to {aside.name}, ") == 1
    shutil.rmtree(folder / "blobs")
    aside.rename(folder / "blobs")
    index.rename(folder / "index.sqlite")
    async with opened(folder, clock) as store:
        assert await read(store, "t-1") == LARGE


async def test_two_stores_of_one_process_share_a_folder_with_other_processes(folder: Path, clock: Clock) -> None:
    look = (
        "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM entries').fetchone())"
    )

    def count_elsewhere() -> int:
        command = [sys.executable, "-c", look, str(folder / "index.sqlite")]
        return int(subprocess.run(command, check=True, capture_output=True).stdout)

    async with opened(folder, clock) as one, opened(folder, clock) as two:
        await put(one, clock, "t-1", SMALL)
        await put(two, clock, "t-2", SMALL)
        assert count_elsewhere() == 2
        await put(one, clock, "t-3", SMALL)
        await put(two, clock, "t-4", SMALL)
        assert count_elsewhere() == 4

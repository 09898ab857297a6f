"""A disk store whose index is damaged, whose disk fails at reading, or whose folder is not a folder."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from disk_values import BASE, LARGE, SMALL, opened, put, read

from mcp_mirror.errors import StoreError

if TYPE_CHECKING:
    from clocks import Clock
    from tests.integration.conftest import Audit


@pytest.mark.parametrize("damage", ["no database", "cut"])
async def test_a_damaged_index_is_set_aside_and_a_new_one_begins(
    damage: str, folder: Path, clock: Clock, audit: Audit, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(folder, clock) as store:
        for number in range(50):
            await put(store, clock, f"t-{number}", SMALL * 1000)
        await put(store, clock, BASE, LARGE)
    index = folder / "index.sqlite"
    data = index.read_bytes()
    hurt = {"no database": b"x" * 9000, "cut": data[:9000]}
    index.write_bytes(hurt[damage])
    async with opened(folder, clock) as store:
        assert "is damaged. The index was renamed to index.sqlite.damaged-" in caplog.text
        await put(store, clock, BASE, LARGE)
        assert await read(store, BASE) == LARGE
    (aside,) = folder.glob("index.sqlite.damaged-*")
    assert aside.read_bytes()[:9000] == hurt[damage][:9000]
    aside.unlink()
    (blobs,) = folder.glob("blobs.damaged-*")
    assert [path.read_bytes() for path in blobs.iterdir()] == [LARGE]
    shutil.rmtree(blobs)
    assert audit(folder) == {("me", BASE)}


async def test_a_damaged_index_in_use_by_another_gateway_is_not_changed(
    folder: Path, clock: Clock, audit: Audit
) -> None:
    async with opened(folder, clock) as other:
        await put(other, clock, "t-0", LARGE[1:])
        await put(other, clock, "t-1", LARGE)
        with closing(sqlite3.connect(folder / "index.sqlite")) as raw, raw:
            raw.execute("UPDATE blobs SET digest = CAST(x'61ff' AS TEXT) WHERE held = ?", (len(LARGE) - 1,))
        with pytest.raises(StoreError, match=r"another gateway uses it\. Stop all gateways"):
            await opened(folder, clock).__aenter__()
        await put(other, clock, "t-2", LARGE)
        assert await read(other, "t-1") == LARGE
    async with opened(folder, clock) as store:
        assert await store.list("me") == ()
    assert len(list(folder.glob("blobs.damaged-*/*"))) == 2
    shutil.rmtree(next(folder.glob("blobs.damaged-*")))
    for aside in folder.glob("index.sqlite.damaged-*"):
        aside.unlink()
    assert audit(folder) == set()


async def test_an_index_found_damaged_in_use_is_set_aside_at_restart(folder: Path, clock: Clock) -> None:
    async with opened(folder, clock) as store:
        for number in range(50):
            await put(store, clock, f"t-{number}", SMALL * 5000)
    index = folder / "index.sqlite"
    with closing(sqlite3.connect(index)) as raw:
        (page,) = raw.execute("PRAGMA page_size").fetchone()
        (root,) = raw.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'entries'").fetchone()
    data = bytearray(index.read_bytes())
    data[(root - 1) * page : root * page] = b"\xff" * page
    index.write_bytes(data)
    async with opened(folder, clock) as store:
        with pytest.raises(StoreError, match="restart the gateway"):
            await store.list("me")
    async with opened(folder, clock) as store:
        assert await store.list("me") == ()
        await put(store, clock, BASE, LARGE)
    assert len(list(folder.glob("index.sqlite.damaged-*"))) == 1


async def test_a_disk_that_failed_once_at_reading_costs_no_value(folder: Path, clock: Clock) -> None:
    async with opened(folder, clock) as store:
        await put(store, clock, BASE, LARGE)
    (folder / "damaged").touch()  # SQLite reports such a disk as a damaged index
    async with opened(folder, clock) as store:
        assert await read(store, BASE) == LARGE
    assert not list(folder.glob("*damaged*"))


async def test_an_index_that_the_disk_cannot_read_is_not_set_aside(
    folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(folder, clock) as store:
        await put(store, clock, BASE, LARGE)
    (folder / "damaged").touch()

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", fail)
        with pytest.raises(StoreError, match="Its disk reports an error"):
            await opened(folder, clock).__aenter__()
    async with opened(folder, clock) as store:
        assert await read(store, BASE) == LARGE


@pytest.mark.parametrize("name", ["", "blobs", "lock"])
async def test_a_file_in_the_place_of_a_folder_is_named_as_the_cause(name: str, folder: Path, clock: Clock) -> None:
    place = folder / name
    place.parent.mkdir(mode=0o700, parents=True)
    if name == "lock":
        place.mkdir()
    else:
        place.touch()
    with pytest.raises(StoreError, match=r"A file is in the place of a folder, .* choose another folder"):
        await opened(folder, clock).__aenter__()


async def test_any_other_error_of_the_system_names_the_next_step(clock: Clock, tmp_path: Path) -> None:
    expected = "The system reports: File name too long: correct that, or choose another folder (`store.path`)."
    with pytest.raises(StoreError, match=re.escape(expected)):
        await opened(tmp_path / ("x" * 300), clock).__aenter__()


async def test_a_link_to_a_disk_that_is_not_mounted_is_named_as_the_cause(clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "unmounted")
    with pytest.raises(StoreError, match=r"a link leads nowhere, as to a disk that is not mounted: correct that"):
        await opened(tmp_path / "link" / "store", clock).__aenter__()
    (tmp_path / "unmounted").mkdir(mode=0o700)
    async with opened(tmp_path / "link" / "store", clock) as store:
        await put(store, clock, BASE, LARGE)

"""Errors for paths without a stored value."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any
from uuid import UUID

import pytest

from mcp_mirror.memory.tools.lookup import read_path
from mcp_mirror.memory.tools.table import RETRIEVE
from mcp_mirror.memory.value_lookup import find_nearest, look_up, sort_by_similarity, unknown_path_error
from mcp_mirror.paths import MemoryPath, new_base
from mcp_mirror.settings.policies import StorePolicy
from mcp_mirror.stores.memory import MemoryStore
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.types import Descriptor, FileSpan, Provenance, Span
from mcp_mirror.workers.frames import FrameScanner

GRID = "make_grid-3f2b8c1e-9d4a-4e7b-8f21-0a1b2c3d4e5f"
SHEET = "tika-9c1d4f0e-6a55-4b8e-9d0a-0f3b2f6f6a11"
MADE_UP = "make_grid-00000000-0000-4000-8000-000000000000"
TOOLS = ("read_text_file_mirrored", "read_file_mirrored", "docs_get_file_info_mirrored", RETRIEVE)


def descriptor(base: str, created: float = 0.0) -> Descriptor:
    return Descriptor(base, "object", 1, 1, (), created, 2e9, Provenance("up", "tool", "0" * 64))


async def memory_of(bases: Sequence[str]) -> MemoryStore:
    """A memory that got these values in this order."""
    store = MemoryStore(StorePolicy(), lambda: 1e9, lambda: Path("/nonexistent"))
    for at, base in enumerate(bases):
        await store.put("me", descriptor(base, at), (b"1",))
    return store


async def answer(text: str, bases: Sequence[str]) -> str:
    return str(await unknown_path_error(await memory_of(bases), "me", text))


@pytest.mark.parametrize(
    "text",
    [
        *(GRID[:-3], f"{GRID[:-3]}/grid/0", GRID.upper(), GRID[:-2] + "00", f"<{GRID}>", f"see {GRID}"),
        *(GRID.replace("make_grid", "makegrid"), GRID.partition("-")[2], MADE_UP, f"Make_Grid-{MADE_UP[10:]}/a"),
    ],
)
async def test_a_path_that_is_like_one_of_the_callers_own_is_answered_with_that(text: str) -> None:
    assert f'. Nearest are "{GRID}". Copy a path exactly.' in await answer(text, [GRID, SHEET])


@pytest.mark.parametrize("text", ["zzz", "", "the grid from above", "-", "x-11111111-1111-4111-8111-111111111111"])
async def test_a_path_that_is_like_none_is_answered_with_the_newest(text: str) -> None:
    bases = [new_base("tool", UUID(int=number, version=4)) for number in range(5)]
    listed = ", ".join(f'"{base}"' for base in (SHEET, bases[4], bases[3]))
    assert f". Newest are {listed}. Copy a path exactly." in await answer(text, [*bases, SHEET])


async def test_an_empty_memory_is_reported() -> None:
    assert await answer(GRID, []) == f'No value is stored under "{GRID}". Nothing is stored yet: call a tool first.'


NOTICE = (
    f'"{GRID}"\nThis path stands for object 5 B.\nThe same result\'s text:\n{SHEET}\n'
    "Use it or path/key as argument of next tool."
)


async def test_a_notice_of_two_paths_is_answered_with_both() -> None:
    said = f'This is a whole notice, which names several paths. Give only one: "{GRID}" or "{SHEET}".'
    assert await answer(NOTICE, [GRID, SHEET]) == said


@pytest.mark.parametrize(
    ("name", "likely"),
    [
        ("read_text_file", ["read_text_file_mirrored", "read_file_mirrored"]),
        ("READ_FILE_MIRRORED", ["read_file_mirrored", "read_text_file_mirrored"]),
        ("get_file_info", ["docs_get_file_info_mirrored"]),
        ("read_flie", ["read_file_mirrored"]),
        ("retrieve_final_answer", [RETRIEVE]),
        *((name, []) for name in ("xyz", "", "r", "nothing", "send_mail")),
    ],
)
def test_only_names_that_share_something_with_the_query_are_near(name: str, likely: list[str]) -> None:
    assert find_nearest(name, TOOLS)[: len(likely) or None] == likely


def test_all_names_have_an_order_whatever_they_have_in_common() -> None:
    assert sort_by_similarity("rows", ["x", "shape", "ROW", "rows"]) == ["rows", "ROW", "shape", "x"]


async def test_errors_are_quick_with_ten_thousand_values_and_a_long_text() -> None:
    store = await memory_of([new_base("tool", UUID(int=number << 64, version=4)) for number in range(10_000)])
    started = process_time()
    await unknown_path_error(store, "me", f"{GRID}{'0' * 1_000_000}")
    assert process_time() - started < 4


async def test_a_pasted_notice_resolves_to_its_value_not_to_its_input() -> None:
    notice = (
        f'The function f was executed with the input {{"a":"{SHEET}"}}.\n'
        f'The output was stored in memory under the path "{GRID}".\n'
        "Give a path, exactly as it is written, as input to another function."
    )
    store = MemoryStore(StorePolicy(), lambda: 1e9, lambda: Path("/nonexistent"))
    await store.put("me", replace(descriptor(GRID), kind="array", size=3), (b"[7]",))
    path = read_path(notice)
    assert path is not None
    nowhere: Any = None  # nothing here is scanned by another process
    found_value = await look_up(store, nowhere, "me", path)
    assert found_value is not None
    assert found_value.blob == b"[7]"


class Fleeting(MemoryStore):
    """A store that deletes a value right after it has described it."""

    async def file_of(self, namespace: str, base: str) -> FileSpan | None:
        place = await super().file_of(namespace, base)
        await self.delete(namespace, base)
        return place


@pytest.mark.parametrize("kind", [MemoryStore, Fleeting])
@pytest.mark.parametrize("place", ["in a file", "in memory"])
async def test_a_value_deleted_during_its_search_is_searched_to_the_end(
    kind: type[MemoryStore], place: str, tmp_path: Path
) -> None:
    blob = b'{"rows":[' + b"0," * 5_000_000 + b'{"last":7}]}'
    frame = tmp_path / "frame"
    frame.write_bytes(blob)
    file = FileSpan(str(frame), Span(0, len(blob))) if place == "in a file" else None
    store = kind(StorePolicy(), lambda: 1e9, lambda: tmp_path)
    await store.put("me", replace(descriptor(GRID), size=len(blob)), (blob,), file)
    with ChildWatchdog() as child_watchdog:
        async with aclosing(FrameScanner(child_watchdog)) as scanner:
            found = await look_up(store, scanner, "me", MemoryPath(GRID, ("rows", "5000000", "last")))
    assert found is not None
    assert bytes(found.blob) == b"7"

"""The budget fixture fails a test where the gateway stalls, and only there."""

import asyncio
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from gateway_processes import forked_python
from tests.end_to_end.conftest import BOUND
from tests.hostile.conftest import BEGIN, END, PAGE, Budget, Lines, Row, budget_with, longest_stall, table_of

PROGRAM = Path(__file__).parent / "stalling.py"


@pytest.fixture
def budget() -> Budget:
    """One whose rows are not in the table."""
    return budget_with(lambda _row: None)


@pytest_asyncio.fixture
async def program() -> AsyncIterator[Lines]:
    """A program on the library, as an MCP server on standard streams."""
    process = await asyncio.create_subprocess_exec(*forked_python(str(PROGRAM)), stdin=PIPE, stdout=PIPE)
    client = Lines(process)
    await client.greet()
    yield client
    assert process.stdin is not None
    process.stdin.close()
    await asyncio.wait_for(process.wait(), BOUND)


async def test_a_stall_fails_the_test(program: Lines, budget: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.hostile.conftest.slowness", lambda: 1.0)  # bounds are wider on a busy machine
    with pytest.raises(AssertionError, match=r"stalled for \d{3,} ms, over 100 ms"):
        async with budget(program, "a blocked loop", "1 s"):
            assert await program.text("block_mirrored", {"seconds": 1}) == "done"


async def test_a_stall_within_the_bound_passes(program: Lines, budget: Budget) -> None:
    async with budget(program, "a blocked loop", "0.06 s", stall=2.0) as row:
        assert await program.text("block_mirrored", {"seconds": 0.06}) == "done"
    assert 0.05 < row.stall < 2


async def test_a_stall_before_the_block_does_not_count(program: Lines, budget: Budget) -> None:
    assert await program.text("block_mirrored", {"seconds": 0.3}) == "done"
    async with budget(program, "nothing", "after a stall of 0.3 s", stall=0.25) as row:
        assert await program.text("block_mirrored", {"seconds": 0}) == "done"
    assert row.stall < 0.25


def test_a_later_shorter_stall_is_found() -> None:
    long, short = {"at_s": 4, "ms": 300}, {"at_s": 6, "ms": 120}
    before = {"longest_stall_ms": 300, "uptime_s": 5, "recent_stalls": [long]}
    after = {"longest_stall_ms": 300, "uptime_s": 9, "recent_stalls": [long, short]}
    assert longest_stall(before, after) == 0.12


def test_the_security_page_has_a_place_for_the_table() -> None:
    assert PAGE.read_text().count(BEGIN) == PAGE.read_text().count(END) == 1
    lines = list(table_of([Row("a flood", "3,000 lines", stall=0.01, waited=0.002, memory=1 << 20, outcome="passes")]))
    assert lines[0].startswith("| Input ")
    assert "| 2 ms " in lines[2]

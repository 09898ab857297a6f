"""Each fault costs what it must and no more; `make faults` prints what was measured."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.harness import FAULTS, Fault, Seen, observe, pattern

AT_ONCE = 0.1
"""Seconds within which a call in flight is answered."""
SLACK = 0.4
"""Seconds more that a machine with other work gets."""
BACK = 1.0
"""Seconds within which a call works after the upstream's return."""

LOST = {"nothing": 0, "the call": 1, "all in flight": 2}


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms"


def row_of(fault: Fault, seen: Seen) -> tuple[str, ...]:
    told = seen.said.splitlines()[0] if seen.failed else "its answer"
    return (
        fault.transport, fault.what, told, fault.loses, milliseconds(seen.answered), milliseconds(seen.back),
        f"{seen.idle * 1e3:.1f} / {seen.beside * 1e3:.1f} ms",
    )  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.transport}-{fault.what.replace(' ', '_')}")
async def test_a_fault_costs_what_it_must_and_no_more(
    fault: Fault, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seen = await observe(fault, tmp_path)
    record_property("row", row_of(fault, seen))
    assert seen.failed is (fault.loses != "nothing"), seen.said
    assert seen.lost == LOST[fault.loses]
    if fault.loses == "nothing":
        assert seen.said.startswith("echo key")
    else:
        assert pattern(fault).search(seen.said), seen.said
        assert "'bad'" in seen.said
    assert seen.repeated == ()
    assert seen.answered < fault.waits + AT_ONCE + SLACK
    assert seen.refused_slowest < BACK
    assert seen.back < BACK
    assert seen.tries == 1

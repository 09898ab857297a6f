"""Timeouts of calls, and repeated requests."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from samples import sample

if TYPE_CHECKING:
    from tests.end_to_end.conftest import OpenClient

SLOW = str(Path(__file__).parent / "servers" / "slow.py")


def slow(log: Path, **keys: Any) -> dict[str, Any]:
    return {"slow": {"command": sys.executable, "args": ["-S", SLOW, str(log)], **keys}}


@pytest.mark.parametrize("resets", sample([True, False], lambda resets: resets))
async def test_progress_extends_the_timeout_only_if_configured(
    *, resets: bool, open_client: OpenClient, tmp_path: Path
) -> None:
    async with open_client(slow(tmp_path / "log", timeout=2.0, progress_resets_timeout=resets)) as client:
        answer = await client.text("work_mirrored", {"steps": 8, "pause": 0.4})
        assert answer == "done" if resets else "did not answer 'work' within 2 s" in answer


@pytest.mark.parametrize(
    ("tool", "allowed", "calls"), [("read", True, 2), ("read", False, 1), ("fall", True, 1), ("fall", False, 1)]
)
async def test_only_an_allowed_read_only_call_is_retried(
    *, tool: str, allowed: bool, calls: int, open_client: OpenClient, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with open_client(slow(log, repeat_read_only=allowed)) as client:
        result = json.loads(await client.call(f"{tool}_mirrored"))["result"]
        assert log.read_text().split() == [tool] * calls
        assert result.get("isError", False) is (calls == 1)
        assert (await client.text(f"{tool}_mirrored")) == "done"

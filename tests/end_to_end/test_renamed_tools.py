"""Results of SDK tools that have other names than their functions, passed on by path."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from gateway_processes import forked_upstream
from notices import path_in

SERVER = Path(__file__).parent / "servers" / "renamed.py"


async def test_a_path_delivers_exactly_the_text_that_the_tool_returned(shared_lines: Any) -> None:
    client = await shared_lines({"symbols": forked_upstream(str(SERVER))})
    expected = "".join(f'{line:05} a line that says \\ and "quotes" and ü\n' for line in range(800))
    for suffix in ("", "é"):
        path = path_in(await client.text("find_symbol_mirrored", {"name_path": suffix}))
        digest = await client.text("check_text_mirrored", {"content": path})
        assert digest == hashlib.sha256((expected + suffix).encode()).hexdigest()


async def test_a_wrapped_list_is_a_list_under_its_path(shared_lines: Any) -> None:
    client = await shared_lines({"symbols": forked_upstream(str(SERVER))})
    path = path_in(await client.text("list_rows_mirrored", {}))
    row = await client.text("retrieve_final_answer_from_memory", {"memory_path": f"{path}/899"})
    assert json.loads(row) == {"id": 899, "square": 899**2}

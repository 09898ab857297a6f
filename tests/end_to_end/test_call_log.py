"""The log lines of calls at `-v`, and of memory paths at `-vv`."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.conftest import Configured, OpenLines

KEY = "0123456789abcdef0123456789abcdef"
LARGE = "c4nary " * 20_000
LINE = re.compile(
    r"call tool=(\S+) upstream=(\S+) ms=(\d+) bytes=(\d+) tokens=(\d+) kept_out=(\d+) path=(\S+) outcome=(\S+)"
)


def hashed(base: str) -> str:
    return hmac.new(KEY.encode(), base.encode(), hashlib.sha256).hexdigest()[:16]


async def calls(
    configured: Configured, open_lines: OpenLines, raw: Any, tmp_path: Path, *verbose: str
) -> tuple[str, str]:
    """Store a value, pass its path on, and fail; the log, and the path."""
    audit = {"path": "audit.jsonl", "key": KEY}
    tools = [
        {"name": "say", "inputSchema": {"type": "object"}},
        {"name": "hear", "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}},
    ]
    (tmp_path / "tools").write_text(json.dumps(tools))
    upstream = raw("ok", "--tools", str(tmp_path / "tools"))
    async with open_lines(configured({"raw": upstream}, audit=audit), *verbose) as client:
        await client.greet()
        large = json.dumps({"content": [{"type": "text", "text": LARGE}]})
        path = (await client.text("say_mirrored", {"result": large})).splitlines()[0].strip('"')
        await client.call("hear_mirrored", json.dumps({"text": path, "c4nary": f"see {path}"}))
        small = json.dumps({"content": [{"type": "text", "text": "small"}]})
        await client.call("say_mirrored", json.dumps({"result": small}))
        await client.call("c4nary_tool")
    return b"".join(client.stderr).decode(), path


async def test_each_call_is_one_line_with_sizes_and_a_path_hash(
    configured: Configured, open_lines: OpenLines, raw: Any, tmp_path: Path
) -> None:
    log, path = await calls(configured, open_lines, raw, tmp_path, "-v")
    lines = [found.groups() for found in LINE.finditer(log)]
    assert [(line[0], line[1], line[7]) for line in lines] == [
        ("say_mirrored", "raw", "stored"),
        ("hear_mirrored", "raw", "stored"),
        ("say_mirrored", "raw", "ok"),
        ("(unknown)", "-", "unknown_tool"),
    ]
    stored = lines[0]
    assert stored[6] == hashed(path)
    assert int(stored[5]) > 10_000 > int(stored[4]) > 10
    assert lines[2][5:7] == ("0", "-")
    assert "c4nary" not in log
    assert path not in log
    assert "argument of tool" not in log


async def test_with_vv_the_log_explains_why_a_string_is_a_path(
    configured: Configured, open_lines: OpenLines, raw: Any, tmp_path: Path
) -> None:
    log, path = await calls(configured, open_lines, raw, tmp_path, "-vv")
    assert f"argument of tool=hear_mirrored in text: path={hashed(path)}, it is a memory path" in log
    assert (
        "argument of tool=hear_mirrored in (unnamed): path=-, it is text: it contains a path or something like one"
        in log
    )
    assert "arguments of tool=say_mirrored: no string resembles a memory path" in log
    assert "c4nary" not in log
    assert path not in log


async def test_calls_are_not_logged_by_default(
    configured: Configured, open_lines: OpenLines, raw: Any, tmp_path: Path
) -> None:
    log, _ = await calls(configured, open_lines, raw, tmp_path)
    assert "call tool" not in log

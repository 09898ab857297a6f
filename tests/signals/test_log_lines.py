"""The log lines on the pages about logs and monitoring are those of a real gateway."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client
from waiting import until

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Serve

DOCS = Path(__file__).parents[2] / "docs"
LARGE = json.dumps({"content": [{"type": "text", "text": "a line of text\n" * 2000}]})
CHANGING = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]+Z|(?<=\bms=)\d+|(?<=tokens=)\d+|(?<=kept_out=)\d+|(?<=path=)[0-9a-f]{16}"
    r"|(?<=correlation=)[0-9a-f]{16}"
    r'|(?<="ms": )\d+|(?<="tokens": )\d+|(?<="kept_out": )\d+|(?<="path": ")[0-9a-f]{16}'
    r'|(?<="correlation": ")[0-9a-f]{16}'
)


def hide_changing_parts(line: str) -> str:
    """The line with placeholders for the time, the duration, the tokens and hash of a random path, and the id."""
    return CHANGING.sub(lambda found: re.sub(r"[0-9a-f]+", "#", found[0]), line)


@pytest.mark.parametrize(
    ("log_format", "page"), [("text", "guides/logs-and-audit.md"), ("json", "operations/monitoring.md")]
)
async def test_a_call_logs_the_line_that_the_page_shows(
    serve: Serve, configured: Configured, raw: Any, log_format: str, page: str
) -> None:
    [shown] = re.findall(rf"```{log_format}\n(.*call_log.*)\n```", (DOCS / page).read_text())
    config = configured({"raw": raw()}, server={"log_format": log_format})
    async with serve(config, "-v") as served:
        async with Client(served.url.rstrip('"}')) as client:  # the line that announces it may be JSON
            await client.call_tool("say_mirrored", {"result": LARGE})
        await until(lambda: any(b"call_log" in line for line in served.stderr))
        [line] = [line.decode().strip() for line in served.stderr if b"call_log" in line]
    assert hide_changing_parts(line) == hide_changing_parts(shown)
    assert CHANGING.search(line)

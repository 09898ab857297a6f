"""Tools that run only as tasks (2025-11-25) are called as all others."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.end_to_end.conftest import SERVERS
from waiting import until

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, OpenClient, OpenLines


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The methods of the messages that the upstream received."""
    return tmp_path / "log"


@pytest.fixture
def upstream(log: Path) -> dict[str, Any]:
    """An upstream with such a tool."""
    return {"command": sys.executable, "args": ["-S", str(SERVERS / "tasks.py"), str(log)]}


async def test_a_tool_that_runs_only_as_a_task_returns_its_result(
    configured: Configured, open_lines: OpenLines, upstream: dict[str, Any], log: Path
) -> None:
    async with open_lines(configured({"t": upstream | {"timeout": 5}}), "-v") as client:
        await client.greet()
        result = json.loads(await client.call("research_mirrored"))["result"]
        assert result == {"content": [{"type": "text", "text": "x"}]}
        assert log.read_text().split()[-4:] == ["tools/call", "tasks/get", "tasks/get", "tasks/result"]
        assert await client.text("plain_mirrored") == "plain"
        assert log.read_text().split()[-1] == "tools/call"
        for how in ("in_meta", "announces"):  # a task may be named or end in other ways
            assert await client.text("research_mirrored", {how: True}) == "x"
        assert "text, 3.15 MB" in await client.text("research_mirrored", {"size": 3 << 20})
        failed = await client.text("research_mirrored", {"fails": True})
        assert failed == "Upstream 't' refused 'research': No such topic (error -32050)."


async def test_an_input_request_of_a_task_reaches_the_client(
    configured: Configured, open_lines: OpenLines, upstream: dict[str, Any]
) -> None:
    async with open_lines(configured({"t": upstream})) as client:
        await client.greet(elicitation={})
        call = {"name": "research_mirrored", "arguments": {"asks": True}}
        await client.send(json.dumps({"jsonrpc": "2.0", "id": "call", "method": "tools/call", "params": call}))
        while (asked := json.loads(await client.receive())).get("method") != "elicitation/create":
            pass
        assert asked["params"]["message"] == "Which?"
        await client.send(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}}))
        while (answered := json.loads(await client.receive())).get("id") != "call":
            pass
        assert "decline" in answered["result"]["content"][0]["text"]


async def test_a_cancelled_call_cancels_its_task(open_client: OpenClient, upstream: dict[str, Any], log: Path) -> None:
    async with open_client({"t": upstream}) as client:
        call = {"name": "research_mirrored", "arguments": {"hangs": True}}
        await client.send(json.dumps({"jsonrpc": "2.0", "id": "call", "method": "tools/call", "params": call}))
        await until(lambda: log.exists() and "tasks/get" in log.read_text())
        cancelled = {"requestId": "call"}
        await client.send(json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled}))
        await until(lambda: "tasks/cancel" in log.read_text())
        assert await client.text("plain_mirrored") == "plain"


async def test_a_task_that_does_not_end_in_time_is_cancelled(
    open_client: OpenClient, upstream: dict[str, Any], log: Path
) -> None:
    async with open_client({"t": upstream | {"timeout": 0.5}}) as client:
        text = await client.text("research_mirrored", {"hangs": True})
        assert text.startswith(
            "Upstream 't' did not answer 'research' within 0.5 s (`timeout`); it may have had effects: "
        )
        await until(lambda: "tasks/cancel" in log.read_text())

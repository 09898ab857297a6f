"""What upstreams say of their own accord, before every combination of client and upstream: progress, log lines, updates
and changes; and that a call is not wanted any more."""

import asyncio
import json
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from desk import BOUND, OLD, Desk
from mcp.client.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated, ToolsListChanged
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp_types import LOG_LEVEL_META_KEY, LoggingLevel

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

NOTE = "notes://one"
UPDATED = "notifications/resources/updated"
KINDS = ("tools", "resources", "prompts")
CHANGED = (ToolsListChanged(), ResourcesListChanged(), PromptsListChanged())
LEVELS: tuple[LoggingLevel, ...] = (
    "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency",
)  # fmt: skip


async def test_progress_comes_in_order_and_before_the_result(desk: Desk) -> None:
    before, told = len(desk.heard), list[float]()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        assert (total, message) == (20, f"step {progress:g}")
        told.append(progress)

    await asyncio.wait_for(desk.client.call_tool("count_mirrored", {"times": 20}, progress_callback=hear), BOUND)
    heard = desk.heard[before:]
    counted = [at for at, message in enumerate(heard) if message.get("method") == "notifications/progress"]
    assert [heard[at]["params"]["progress"] for at in counted] == list(range(20))
    [answered] = [at for at, message in enumerate(heard) if "result" in message]
    assert answered > counted[-1]  # news of changed lists may come at any time
    await desk.until(lambda: len(told) == 20)


async def test_a_client_that_asked_for_no_progress_gets_none(desk: Desk) -> None:
    before = len(desk.heard)
    await desk.text("count", times=3)
    assert desk.told("notifications/progress", before) == []


async def lines(desk: Desk, level: LoggingLevel | None) -> tuple[list[Any], str]:
    """What is logged for a client that wants lines from a level on, and what the upstream has been told."""
    meta: Any = None
    if level and desk.combination.client == OLD:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MCPDeprecationWarning)
            await desk.client.set_logging_level(level)
    elif level:
        meta = {LOG_LEVEL_META_KEY: level}
    before = len(desk.heard)
    result = await asyncio.wait_for(desk.client.call_tool("log_mirrored", {}, meta=meta), BOUND)
    assert "result" in desk.heard[-1]
    return desk.told("notifications/message", before), getattr(result.content[0], "text", "")


@pytest.mark.parametrize("level", ["warning", "debug"])
async def test_log_lines_come_from_the_level_on_that_was_asked_for(desk: Desk, level: LoggingLevel) -> None:
    heard, asked = await lines(desk, level)
    wanted = LEVELS[LEVELS.index(level) :]
    assert heard == [{"level": one, "logger": "upstream", "data": {"line": one}} for one in wanted]
    assert asked == (level if desk.combination.upstream == OLD else "")


async def test_a_client_of_2026_that_did_not_ask_for_log_lines_gets_none(desk: Desk) -> None:
    heard, _ = await lines(desk, None if desk.combination.client != OLD else "emergency")
    assert [line["level"] for line in heard] == (["emergency"] if desk.combination.client == OLD else [])


@asynccontextmanager
async def subscribed(desk: Desk) -> AsyncIterator[list[str]]:
    """The URIs of a note's updates as they come."""
    uris: list[str] = []
    if desk.combination.client != OLD:

        async def follow() -> None:
            async for event in subscription:
                assert isinstance(event, ResourceUpdated)
                uris.append(event.uri)

        async with desk.client.listen(resource_subscriptions=[NOTE]) as subscription:
            following = asyncio.create_task(follow())
            yield uris
            following.cancel()
        return
    before = len(desk.heard)

    class Heard(list[str]):
        def __len__(self) -> int:
            return len(desk.told(UPDATED, before))

        def __iter__(self) -> Any:
            return iter([params["uri"] for params in desk.told(UPDATED, before)])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        await asyncio.wait_for(desk.client.subscribe_resource(NOTE), BOUND)
        yield Heard()
        await asyncio.wait_for(desk.client.unsubscribe_resource(NOTE), BOUND)


async def watched(desk: Desk) -> Any:
    return json.loads(await desk.text("watched"))


async def test_a_subscriber_is_told_of_updates_until_it_unsubscribes(desk: Desk) -> None:
    async def is_watched() -> bool:
        return bool(await watched(desk) == [NOTE])

    async def is_not_watched() -> bool:
        return bool(await watched(desk) == [])

    async with subscribed(desk) as updates:
        await desk.until(is_watched)
        await desk.text("touch", uri="notes://other")
        await desk.text("touch", uri=NOTE)
        await desk.until(lambda: len(updates) >= 1)
        assert set(updates) == {NOTE}
    await desk.until(is_not_watched)
    before = len(desk.heard)
    await desk.text("touch", uri=NOTE)
    assert desk.told(UPDATED, before) == []


async def test_a_client_is_told_which_lists_have_changed_and_finds_them_so(desk: Desk) -> None:
    async def change() -> None:
        for kind in KINDS:
            await desk.text("change", kind=kind)

    if desk.combination.client == OLD:
        before = len(desk.heard)
        await change()
        for kind in KINDS:
            await desk.until(partial(desk.told, f"notifications/{kind}/list_changed", before))
    else:
        flags = {f"{kind}_list_changed": True for kind in KINDS}
        async with desk.client.listen(**flags) as subscription:  # type: ignore[arg-type]  # flags alone
            await change()
            missing = set(CHANGED)
            async with asyncio.timeout(BOUND):
                while missing:
                    missing.discard(await anext(subscription))
    assert "more_0_mirrored" in {tool.name for tool in (await desk.client.list_tools()).tools}
    assert "more://0" in {str(resource.uri) for resource in (await desk.client.list_resources()).resources}
    assert "more_0" in {prompt.name for prompt in (await desk.client.list_prompts()).prompts}


async def test_a_cancelled_call_is_cancelled_at_the_upstream(desk: Desk, tmp_path: Path) -> None:
    began, cancelled = tmp_path / "began", tmp_path / "cancelled"
    call = asyncio.create_task(desk.call("hang", began=str(began), cancelled=str(cancelled)))
    await desk.until(began.exists)
    assert not cancelled.exists()
    call.cancel()
    await desk.until(cancelled.exists)
    assert await desk.text("echo") == "{}"

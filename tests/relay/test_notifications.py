"""Progress, log lines, updates, list changes and cancellation, in every combination of client and upstream."""

import asyncio
import json
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mcp.client.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated, ToolsListChanged
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp_types import LOG_LEVEL_META_KEY, LoggingLevel
from relay_setup import BOUND, OLD, RelaySetup
from waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

NOTE = "notes://one"
UPDATED = "notifications/resources/updated"
LOG_LINE = "notifications/message"
KINDS = ("tools", "resources", "prompts")
CHANGED = (ToolsListChanged(), ResourcesListChanged(), PromptsListChanged())
LEVELS: tuple[LoggingLevel, ...] = (
    "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency",
)  # fmt: skip


async def test_progress_arrives_in_order_and_before_the_result(setup: RelaySetup) -> None:
    before, received_progress = len(setup.received), list[float]()

    async def record(progress: float, total: float | None, message: str | None) -> None:
        assert (total, message) == (20, f"step {progress:g}")
        received_progress.append(progress)

    await asyncio.wait_for(setup.client.call_tool("count_mirrored", {"times": 20}, progress_callback=record), BOUND)
    messages = setup.received[before:]
    counted = [at for at, message in enumerate(messages) if message.get("method") == "notifications/progress"]
    assert [messages[at]["params"]["progress"] for at in counted] == list(range(20))
    [answered] = [at for at, message in enumerate(messages) if "result" in message]
    assert answered > counted[-1]  # announcements of changed lists may come at any time
    await until(lambda: len(received_progress) == 20)


async def test_a_client_without_a_progress_token_gets_no_progress(setup: RelaySetup) -> None:
    before = len(setup.received)
    await setup.text("count", times=3)
    assert setup.notifications("notifications/progress", before) == []


async def lines(setup: RelaySetup, level: LoggingLevel | None) -> tuple[list[Any], str]:
    """Return the log lines that a client gets at a level, and the level that the upstream received."""
    meta: Any = None
    if level and setup.combination.client == OLD:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MCPDeprecationWarning)
            await setup.client.set_logging_level(level)
    elif level:
        meta = {LOG_LEVEL_META_KEY: level}
    before = len(setup.received)
    result = await asyncio.wait_for(setup.client.call_tool("log_mirrored", {}, meta=meta), BOUND)
    messages = setup.received[before:]
    [answered] = [at for at, message in enumerate(messages) if "result" in message]
    lines_after = [message for message in messages[answered:] if message.get("method") == LOG_LINE]
    assert lines_after == []  # announcements of changed lists may come at any time
    return setup.notifications(LOG_LINE, before), getattr(result.content[0], "text", "")


@pytest.mark.parametrize("level", ["warning", "debug"])
async def test_log_lines_arrive_from_the_requested_level_on(setup: RelaySetup, level: LoggingLevel) -> None:
    messages, request_level = await lines(setup, level)
    wanted = LEVELS[LEVELS.index(level) :]
    assert messages == [{"level": one, "logger": "upstream", "data": {"line": one}} for one in wanted]
    assert request_level == (level if setup.combination.upstream == OLD else "")


async def test_a_2026_client_without_a_log_level_gets_no_log_lines(setup: RelaySetup) -> None:
    messages, _ = await lines(setup, None if setup.combination.client != OLD else "emergency")
    assert [line["level"] for line in messages] == (["emergency"] if setup.combination.client == OLD else [])


@asynccontextmanager
async def subscribed(setup: RelaySetup) -> AsyncIterator[list[str]]:
    """The URIs of a note's updates as they come."""
    uris: list[str] = []
    if setup.combination.client != OLD:

        async def follow() -> None:
            async for event in subscription:
                assert isinstance(event, ResourceUpdated)
                uris.append(event.uri)

        async with setup.client.listen(resource_subscriptions=[NOTE]) as subscription:
            following = asyncio.create_task(follow())
            yield uris
            following.cancel()
        return
    before = len(setup.received)

    class Updates(list[str]):
        def __len__(self) -> int:
            return len(setup.notifications(UPDATED, before))

        def __iter__(self) -> Any:
            return iter([params["uri"] for params in setup.notifications(UPDATED, before)])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        await asyncio.wait_for(setup.client.subscribe_resource(NOTE), BOUND)
        yield Updates()
        await asyncio.wait_for(setup.client.unsubscribe_resource(NOTE), BOUND)


async def watched(setup: RelaySetup) -> Any:
    return json.loads(await setup.text("watched"))


async def test_a_subscriber_gets_updates_until_it_unsubscribes(setup: RelaySetup) -> None:
    async def is_watched() -> bool:
        return bool(await watched(setup) == [NOTE])

    async def is_not_watched() -> bool:
        return bool(await watched(setup) == [])

    async with subscribed(setup) as updates:
        await until(is_watched)
        await setup.text("touch", uri="notes://other")
        await setup.text("touch", uri=NOTE)
        await until(lambda: len(updates) >= 1)
        assert set(updates) == {NOTE}
    await until(is_not_watched)
    before = len(setup.received)
    await setup.text("touch", uri=NOTE)
    assert setup.notifications(UPDATED, before) == []


async def test_a_client_is_notified_of_changed_lists_and_reads_the_changes(setup: RelaySetup) -> None:
    async def change() -> None:
        for kind in KINDS:
            await setup.text("change", kind=kind)

    if setup.combination.client == OLD:
        before = len(setup.received)
        await change()
        for kind in KINDS:
            await until(partial(setup.notifications, f"notifications/{kind}/list_changed", before))
    else:
        flags = {f"{kind}_list_changed": True for kind in KINDS}
        async with setup.client.listen(**flags) as subscription:  # type: ignore[arg-type]  # only flags
            await change()
            missing = set(CHANGED)
            async with asyncio.timeout(BOUND):
                while missing:
                    missing.discard(await anext(subscription))
    assert "more_0_mirrored" in {tool.name for tool in (await setup.client.list_tools()).tools}
    assert "more://0" in {str(resource.uri) for resource in (await setup.client.list_resources()).resources}
    assert "more_0" in {prompt.name for prompt in (await setup.client.list_prompts()).prompts}


async def test_a_cancelled_call_is_cancelled_at_the_upstream(setup: RelaySetup, tmp_path: Path) -> None:
    began, cancelled = tmp_path / "began", tmp_path / "cancelled"
    call = asyncio.create_task(setup.call("hang", began=str(began), cancelled=str(cancelled)))
    await until(began.exists)
    assert not cancelled.exists()
    call.cancel()
    await until(cancelled.exists)
    assert await setup.text("echo") == "{}"

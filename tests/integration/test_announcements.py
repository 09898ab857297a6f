"""Change notifications to slow clients."""

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, cast

import anyio
import anyio.lowlevel
import mcp_types as types
import pytest

from mcp_mirror.callers import LOCAL, OWN_UPSTREAM, Caller
from mcp_mirror.server.announcements import Announcements, ListChange, SubscriptionStream
from mcp_mirror.server.client_channel import Session
from mcp_mirror.server.sessions import Sessions

NO_SESSIONS = cast("Sessions", ())


class Slow:
    """A session whose client takes one word after another, when it is let."""

    def __init__(self) -> None:
        self.received: list[str] = []
        self.turn = anyio.Event()

    async def notify(self, _method: str, params: Mapping[str, Any]) -> None:
        await self.turn.wait()
        self.received.append(f"{params['uri']} {params['n']}")


@pytest.fixture
def slow() -> Slow:
    return Slow()


async def test_updates_during_a_notification_are_sent_too_the_last_per_resource(slow: Slow) -> None:
    session = cast("Session", slow)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            announcements = Announcements(NO_SESSIONS, tasks, 200)
            announcements.resource_updated(session, "x://a", {"n": 0})
            await anyio.wait_all_tasks_blocked()  # the first announcement is being sent
            for number in range(1, 100):
                announcements.resource_updated(session, f"x://{'ab'[number % 2]}", {"n": number})
            slow.turn.set()
            await anyio.wait_all_tasks_blocked()
            announcements.resource_updated(session, "x://a", {"n": 100})
    assert slow.received == ["x://a 0", "x://b 99", "x://a 98", "x://a 100"]


async def test_only_so_many_updates_wait_for_a_slow_session(slow: Slow) -> None:
    session = cast("Session", slow)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            announcements = Announcements(NO_SESSIONS, tasks, 200)
            for number in range(5_000):
                announcements.resource_updated(session, f"x://a/{number}", {"n": number})
            announcements.resource_updated(session, "x://a/7", {"n": "again"})
            slow.turn.set()
    assert len(slow.received) == 1_000
    assert slow.received[7] == "x://a/7 again"


class Context:
    """The context of a `subscriptions/listen` request, which records the notifications of its stream."""

    request_id = 1

    def __init__(self) -> None:
        self.session = self
        self.received: list[Any] = []

    async def send_notification(self, notification: Any, related_request_id: int) -> None:
        assert related_request_id == self.request_id
        await anyio.lowlevel.checkpoint()
        notification.model_dump(mode="json")  # as the SDK does
        self.received.append((notification.method, getattr(notification.params, "get", lambda _: None)("uri")))


async def test_a_limited_number_of_updates_waits_for_a_slow_stream_in_order() -> None:
    wanted = types.SubscriptionFilter(tools_list_changed=True, resource_subscriptions=["x://a"])
    stream, context = SubscriptionStream(wanted, Caller(LOCAL)), Context()
    for number in range(5_000):
        stream.resource_updated(f"x://a/{number}", {})
    stream.list_changed("tools")
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.run, cast("Any", context))
            while len(context.received) < 1_002:
                await anyio.lowlevel.checkpoint()
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    updates = [("notifications/resources/updated", f"x://a/{number}") for number in range(1_000)]
    assert context.received[1:] == [*updates, ("notifications/tools/list_changed", None)]


async def list_sent(*updates: tuple[str, Any]) -> list[Any]:
    """Return what a stream for `x://a` sends of these updates."""
    wanted = types.SubscriptionFilter(resource_subscriptions=["x://a"])
    stream, context = SubscriptionStream(wanted, Caller(LOCAL)), Context()
    for uri, params in updates:
        stream.resource_updated(uri, params)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.run, cast("Any", context))
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    return context.received[1:]


async def test_an_update_that_the_sdk_cannot_write_does_not_end_a_stream() -> None:
    deep = {"_meta": {"x": json.loads("[" * 300 + "]" * 300)}}
    assert await list_sent(("x://a/deep", deep), ("x://a", {})) == [("notifications/resources/updated", "x://a")]


@pytest.mark.parametrize("meta", [None, 7, ["x"]])
async def test_an_update_with_an_invalid_meta_does_not_end_a_stream(meta: object) -> None:
    assert await list_sent(("x://a", {"_meta": meta})) == [("notifications/resources/updated", "x://a")]


class Connected:
    """A session that records its notifications."""

    def __init__(self) -> None:
        self.caller = Caller(LOCAL)
        self.ready = anyio.Event()
        self.ready.set()
        self.received: list[str] = []

    async def notify(self, method: str, _params: Mapping[str, Any]) -> None:
        self.received.append(method)


async def watch(received: list[list[Any]], counts: list[int]) -> None:
    """Count the notifications that all clients have received, whenever other tasks run."""
    while True:
        counts.append(sum(map(len, received)))
        await anyio.lowlevel.checkpoint()


async def test_other_tasks_run_while_many_clients_are_notified() -> None:
    sessions, contexts = [Connected() for _ in range(150)], [Context() for _ in range(150)]
    received: list[list[Any]] = [*(one.received for one in sessions), *(one.received for one in contexts)]
    wanted = types.SubscriptionFilter(tools_list_changed=True)
    counts: list[int] = []
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            announcements = Announcements(cast("Sessions", sessions), tasks, 200)
            for context in contexts:
                tasks.start_soon(announcements.open(wanted, Caller(LOCAL)).run, cast("Any", context))
            await anyio.wait_all_tasks_blocked()
            acknowledged = sum(map(len, received))
            tasks.start_soon(watch, received, counts)
            await announcements.list_changed(ListChange("tools"))
            while counts[-1] < acknowledged + 300:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    assert max(later - earlier for earlier, later in pairwise(counts)) <= 32


async def test_other_tasks_run_while_many_sessions_get_an_update() -> None:
    sessions, counts = [Connected() for _ in range(150)], [0]
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            announcements = Announcements(NO_SESSIONS, tasks, 200)
            tasks.start_soon(watch, [one.received for one in sessions], counts)
            for session in sessions:
                announcements.resource_updated(cast("Session", session), "x://a", {})
            while counts[-1] < len(sessions):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    assert max(later - earlier for earlier, later in pairwise(counts)) <= 32


def test_a_change_concerns_the_endpoints_that_serve_its_upstream() -> None:
    change = ListChange("tools", upstream="a")
    assert [change.is_visible_to(Caller(LOCAL, upstream=one)) for one in (None, "a", "b", OWN_UPSTREAM)] == [
        True,
        True,
        False,
        False,
    ]
    everything = ListChange("tools")
    assert all(everything.is_visible_to(Caller(LOCAL, upstream=one)) for one in (None, "a", OWN_UPSTREAM))
    own = ListChange("resources", upstream=OWN_UPSTREAM)
    assert [own.is_visible_to(Caller(LOCAL, upstream=one)) for one in (None, "a", OWN_UPSTREAM)] == [True, False, True]

"""Change notifications to slow clients."""

from collections.abc import Mapping
from typing import Any, cast

import anyio
import pytest

from mcp_mirror.callers import LOCAL, OWN, Caller
from mcp_mirror.server.announcements import Announcements, ListChange
from mcp_mirror.server.client_channel import Session
from mcp_mirror.server.sessions import Sessions


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
            announcements = Announcements(Sessions(1.0, lambda: 0.0, lambda _: None), tasks)
            announcements.resource_updated(session, "x://a", {"n": 0})
            await anyio.wait_all_tasks_blocked()  # the first announcement is being sent
            for number in range(1, 100):
                announcements.resource_updated(session, f"x://{'ab'[number % 2]}", {"n": number})
            slow.turn.set()
            await anyio.wait_all_tasks_blocked()
            announcements.resource_updated(session, "x://a", {"n": 100})
    assert slow.received == ["x://a 0", "x://b 99", "x://a 98", "x://a 100"]


def test_a_change_concerns_the_endpoints_that_serve_its_upstream() -> None:
    change = ListChange("tools", upstream="a")
    assert [change.is_visible_to(Caller(LOCAL, upstream=one)) for one in (None, "a", "b", OWN)] == [
        True,
        True,
        False,
        False,
    ]
    everything = ListChange("tools")
    assert all(everything.is_visible_to(Caller(LOCAL, upstream=one)) for one in (None, "a", OWN))
    own = ListChange("resources", upstream=OWN)
    assert [own.is_visible_to(Caller(LOCAL, upstream=one)) for one in (None, "a", OWN)] == [True, False, True]

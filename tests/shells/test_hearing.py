"""What a server says of its own accord reaches whom it is about, in order, or nobody."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.shared.message import SessionMessage

from mcp_mirror.callers import CAPABILITY_OF, Caller, ClientChannel
from mcp_mirror.errors import RefusedError
from mcp_mirror.payload.pipes import MessageSink
from mcp_mirror.settings.limits import UpstreamBounds
from mcp_mirror.upstreams.notifications import (
    CHANGES,
    ConnectionOwner,
    NotificationDispatcher,
    NotificationQueue,
    PausableTimeout,
)
from mcp_mirror.upstreams.transports.payloads import ServerMessage

BOUND = 60
LOG = "notifications/message"
PROGRESS = "notifications/progress"
ALL = {capability: dict[str, Any]() for capability in CAPABILITY_OF.values()}


@dataclass(eq=False)
class Client:
    """A client that writes down what it hears, and answers as it is told to."""

    caller: Caller = field(default_factory=lambda: Caller("me", capabilities=ALL))
    log_level: str | None = None
    wants_progress: bool = True
    is_waiting: bool = True
    session_channel: ClientChannel | None = None
    heard: list[Any] = field(default_factory=list)
    answer: Mapping[str, Any] | Exception = field(default_factory=lambda: {"action": "accept"})
    listens: anyio.Event = field(default_factory=anyio.Event)
    """Nothing reaches it before."""
    was_asked: anyio.Event = field(default_factory=anyio.Event)
    answers: anyio.Event = field(default_factory=anyio.Event)

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        await self.listens.wait()
        if isinstance(self.answer, OSError):
            raise self.answer
        self.heard.append((method, params))

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        self.heard.append((method, params))
        self.was_asked.set()
        await self.answers.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def ready(session: str | None = None, **more: Any) -> Client:
    """A client that listens and answers at once."""
    client = Client(Caller("me", session=session, capabilities=ALL), **more)
    client.listens.set()
    client.answers.set()
    return client


class Sink(MessageSink):
    """Where our answers go."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.is_gone = False

    async def send(self, item: SessionMessage, /) -> None:
        if self.is_gone:
            raise anyio.BrokenResourceError
        self.answers.put_nowait(item.message)

    async def answer(self) -> Any:
        with anyio.fail_after(BOUND):
            return await self.answers.get()


@dataclass
class Stage:
    """One server that is heard, and what came of it."""

    dispatcher: NotificationDispatcher
    sink: Sink
    changes: list[str]
    updates: list[tuple[str, Mapping[str, Any]]]

    def say(self, method: str, params: Mapping[str, Any] | None = None, **more: Any) -> None:
        said: dict[str, Any] = {"id": None, "about": None} | more
        self.dispatcher.dispatch(ServerMessage(method, params or {}, **said))


@asynccontextmanager
async def listening(home: ClientChannel | None = None) -> AsyncIterator[Stage]:
    changes: list[str] = []
    updates: list[tuple[str, Mapping[str, Any]]] = []
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as tasks:
            owner = ConnectionOwner(changes.append, lambda uri, params: updates.append((uri, params)), home)
            dispatcher, sink = NotificationDispatcher(tasks, owner), Sink()
            dispatcher.connect(sink)
            yield Stage(dispatcher, sink, changes, updates)
            tasks.cancel_scope.cancel()


def left(clock: PausableTimeout) -> float:
    return clock.scope.deadline - anyio.current_time()


async def test_a_clock_stands_still_while_a_person_is_asked() -> None:
    clock = PausableTimeout(0.5)
    with clock.scope:
        with clock.paused():
            assert left(clock) == float("inf")
            with clock.paused():  # a second question meanwhile
                await anyio.sleep(0.6)
            await anyio.sleep(0.05)
        assert 0 < left(clock) <= 0.5
        with anyio.fail_after(BOUND):
            await anyio.sleep_forever()
    assert clock.scope.cancelled_caught


async def test_a_clock_that_is_restarted_has_all_its_time_again_but_for_a_pause() -> None:
    clock = PausableTimeout(100)
    clock.scope.deadline -= 90
    clock.restart()
    assert 99 < left(clock) <= 100
    clock.scope.deadline -= 90
    with clock.paused():
        clock.restart()
        assert left(clock) == float("inf")
    assert 9 < left(clock) <= 10


async def test_a_courier_passes_on_in_order_however_slow_its_client_is() -> None:
    client = Client()
    async with anyio.create_task_group() as tasks:
        outbox = NotificationQueue(client, tasks)
        await outbox.drain()  # nothing to wait for
        for number in range(50):
            outbox.post(PROGRESS, {"progress": number})
        await anyio.wait_all_tasks_blocked()
        assert client.heard == []
        client.listens.set()
        with anyio.fail_after(BOUND):
            await outbox.drain()
        assert client.heard == [(PROGRESS, {"progress": number}) for number in range(50)]
        outbox.post(LOG, {})
        with anyio.fail_after(BOUND):
            await outbox.drain()
        assert client.heard[-1] == (LOG, {})


async def test_a_client_that_does_not_take_a_notification_gets_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_mirror.upstreams.notifications._DELIVERY_TIMEOUT", 0.05)
    client = Client()
    async with anyio.create_task_group() as tasks:
        outbox = NotificationQueue(client, tasks)
        outbox.post(LOG, {"data": "lost"})
        with anyio.fail_after(BOUND):
            await outbox.drain()
        client.listens.set()
        outbox.post(LOG, {"data": "next"})
        with anyio.fail_after(BOUND):
            await outbox.drain()
    assert client.heard == [(LOG, {"data": "next"})]


async def test_what_comes_on_a_requests_stream_goes_to_its_caller() -> None:
    first, second, home = ready("a"), ready("b"), ready("c")
    async with listening(home) as stage:
        attend = stage.dispatcher.track
        with (
            attend("one", first, PausableTimeout(9), resets=False) as one,
            attend("two", second, PausableTimeout(9), resets=False) as two,
        ):
            stage.say(LOG, {"data": 1}, about="one")
            stage.say(LOG, {"data": 2}, about="two")
            stage.say("vendor/own", {"x": 3}, about="two")
            stage.say(LOG, {"data": 4}, about="gone")
            await one.queue.drain()
            await two.queue.drain()
            await anyio.wait_all_tasks_blocked()
    assert first.heard == [(LOG, {"data": 1})]
    assert second.heard == [(LOG, {"data": 2}), ("vendor/own", {"x": 3})]
    assert home.heard == [(LOG, {"data": 4})]


@pytest.mark.parametrize(
    ("sessions", "home", "heard_by"),
    [
        (["a"], "at home", "0"),
        (["a", "a"], None, "0"),
        (["a", "b"], "at home", "home"),
        (["a", "b"], None, None),
        ([], "at home", "home"),
        ([], None, None),
    ],
)
async def test_what_names_no_request_goes_to_the_one_caller_there_is(
    sessions: list[str], home: str | None, heard_by: str | None
) -> None:
    clients = {str(at): ready(session) for at, session in enumerate(sessions)} | {"home": ready("home")}
    async with listening(clients["home"] if home else None) as stage:
        attended = [
            stage.dispatcher.track(name, client, PausableTimeout(9), resets=False)
            for name, client in clients.items()
            if name != "home"
        ]
        for one in attended:
            one.__enter__()
        stage.say(LOG, {"data": 1})
        await anyio.wait_all_tasks_blocked()
        for one in attended:
            one.__exit__(None, None, None)
    assert [name for name, client in clients.items() if client.heard] == ([heard_by] if heard_by else [])


async def test_a_request_that_is_over_is_told_nothing_any_more() -> None:
    client = ready()
    async with listening() as stage:
        with stage.dispatcher.track("one", client, PausableTimeout(9), resets=False):
            pass
        stage.say(LOG, {}, about="one")
        stage.say(PROGRESS, {"progressToken": "one", "progress": 1})
        stage.say(LOG, {})
        await anyio.wait_all_tasks_blocked()
    assert client.heard == []


async def test_progress_goes_to_the_request_whose_token_it_bears_if_that_wants_it() -> None:
    wants, not_wants = ready("a"), ready("a", wants_progress=False)
    clock, steady, late = PausableTimeout(100), PausableTimeout(100), PausableTimeout(100)
    for one in (clock, steady, late):
        one.scope.deadline -= 50
    async with listening() as stage:
        attend = stage.dispatcher.track
        with (
            attend("one", wants, clock, resets=True) as inflight,
            attend("two", not_wants, late, resets=True),
            attend("three", wants, steady, resets=False),
        ):
            stage.say(PROGRESS, {"progressToken": "one", "progress": 1, "vendor": None})
            stage.say(PROGRESS, {"progressToken": "two", "progress": 2})
            stage.say(PROGRESS, {"progressToken": "three", "progress": 3})
            for token in ("four", None, 7):
                stage.say(PROGRESS, {"progressToken": token, "progress": 4})
            assert [round(left(one), -1) for one in (clock, late, steady)] == [100, 100, 50]
            await inflight.queue.drain()
            await anyio.wait_all_tasks_blocked()
    assert wants.heard == [
        (PROGRESS, {"progressToken": "one", "progress": 1, "vendor": None}),
        (PROGRESS, {"progressToken": "three", "progress": 3}),
    ]
    assert not_wants.heard == []


async def test_changes_and_updates_are_announced_and_no_caller_is_told_of_them() -> None:
    client = ready()
    async with listening(client) as stage:
        for method in CHANGES:
            stage.say(method)
        stage.say("notifications/resources/updated", {"uri": "a:b", "vendor": 1})
        stage.say("notifications/resources/updated")
        stage.say("notifications/tasks/status", {"taskId": "x"})
        await anyio.wait_all_tasks_blocked()
        assert stage.changes == ["tools", "resources", "prompts"]
        assert stage.updates == [("a:b", {"uri": "a:b", "vendor": 1}), ("", {})]
    assert client.heard == []


async def test_after_a_subscription_was_lost_everything_may_have_changed() -> None:
    async with listening() as stage:
        stage.say("notifications/subscriptions/acknowledged")
        assert stage.changes == ["tools"]
        stage.say("notifications/subscriptions/acknowledged")
        assert stage.changes[1:] == list(CHANGES.values())


@pytest.mark.parametrize("method", CAPABILITY_OF)
async def test_a_question_is_answered_with_what_the_caller_answers(method: str) -> None:
    client = ready(answer={"action": "accept", "vendor": [1]})
    async with listening() as stage:
        with stage.dispatcher.track("one", client, PausableTimeout(9), resets=False):
            stage.say(method, {"message": "?", "vendor": 1}, id="q-1")
            assert await stage.sink.answer() == types.JSONRPCResponse(
                jsonrpc="2.0", id="q-1", result={"action": "accept", "vendor": [1]}
            )
    assert client.heard == [(method, {"message": "?", "vendor": 1})]


async def test_a_question_stops_its_requests_clock_and_comes_after_what_was_said_before() -> None:
    client, clock = Client(), PausableTimeout(100)
    async with listening() as stage:
        with stage.dispatcher.track("one", client, clock, resets=False):
            for number in range(5):
                stage.say(LOG, {"data": number}, about="one")
            stage.say("roots/list", id=1, about="one")
            await anyio.wait_all_tasks_blocked()
            assert client.heard == []
            assert left(clock) <= 100
            client.listens.set()
            await client.was_asked.wait()
            assert [params.get("data") for _, params in client.heard] == [0, 1, 2, 3, 4, None]
            assert left(clock) == float("inf")
            client.answers.set()
            await stage.sink.answer()
            assert left(clock) <= 100


async def test_a_question_that_is_about_no_request_goes_home() -> None:
    home = ready()
    async with listening(home) as stage:
        stage.say("roots/list", id=0)
        assert (await stage.sink.answer()).id == 0
    assert home.heard == [("roots/list", {})]


async def test_requests_outside_of_calls_are_bounded_in_a_minute() -> None:
    home, most = ready(), UpstreamBounds().max_questions_per_call
    answers = []
    async with listening(home) as stage:
        for number in range(most + 20):
            stage.say("sampling/createMessage", id=number)
            answers.append(await stage.sink.answer())
    refused = [one for one in answers if isinstance(one, types.JSONRPCError)]
    assert most <= len(home.heard) < most + 20
    assert len(refused) == len(answers) - len(home.heard)
    assert "`limits.max_questions_per_call` (100)" in refused[0].error.message


async def test_requests_past_the_bound_get_an_error() -> None:
    client, most = ready(), UpstreamBounds().max_questions
    client.answers = anyio.Event()
    async with listening(client) as stage:
        for number in range(most + 3):
            stage.say("roots/list", id=number)
        refused = [await stage.sink.answer() for _ in range(3)]
        assert [one.id for one in refused] == [most, most + 1, most + 2]
        assert "`limits.max_questions` (100) requests wait" in refused[0].error.message
        client.answers.set()
        answers = [await stage.sink.answer() for _ in range(most)]
        assert {one.id for one in answers} == set(range(most))


async def test_requests_about_no_known_call_count_against_all_that_are_under_way() -> None:
    client, most = ready("a"), UpstreamBounds().max_questions_per_call
    clocks = [PausableTimeout(100), PausableTimeout(100)]
    async with listening() as stage:
        with (
            stage.dispatcher.track("1", client, clocks[0], resets=False),
            stage.dispatcher.track("2", client, clocks[1], resets=False),
        ):
            for number in range(2 * most):
                stage.say("roots/list", id=number)
                await stage.sink.answer()
            assert [clock.reason for clock in clocks] == [None, None]
            stage.say("roots/list", id=-1)
            await anyio.wait_all_tasks_blocked()
            assert sum(clock.scope.cancel_called for clock in clocks) == 1
            assert stage.sink.answers.empty()
        assert isinstance(await stage.sink.answer(), types.JSONRPCError)


REFUSED = [
    ("vendor/odd", ALL, types.METHOD_NOT_FOUND, "does not support vendor/odd"),
    ("sampling/createMessage", {"roots": {}}, types.METHOD_NOT_FOUND, "not declared `sampling`"),
    ("roots/list", None, types.INVALID_REQUEST, "several clients share"),
]


@pytest.mark.parametrize(("method", "capabilities", "code", "said"), REFUSED)
async def test_a_question_that_nobody_can_be_asked_is_refused(
    method: str, capabilities: dict[str, Any] | None, code: int, said: str
) -> None:
    home = None if capabilities is None else Client(Caller("me", capabilities=capabilities))
    async with listening(home) as stage:
        stage.say(method, id=3)
        answer = await stage.sink.answer()
    assert isinstance(answer, types.JSONRPCError)
    assert (answer.id, answer.error.code) == (3, code)
    assert said in answer.error.message
    assert home is None or home.heard == []


async def test_what_cannot_be_read_is_refused_or_dropped() -> None:
    home = ready()
    async with listening(home) as stage:
        stage.say(LOG, fault="It is broken.")
        stage.say("notifications/tools/list_changed", fault="It is broken.")
        stage.say("elicitation/create", id=9, fault="It is broken.")
        assert await stage.sink.answer() == types.JSONRPCError(
            jsonrpc="2.0", id=9, error=types.ErrorData(code=types.INVALID_PARAMS, message="It is broken.")
        )
        assert stage.changes == []
    assert home.heard == []


async def test_what_a_caller_refuses_is_refused_in_its_own_words() -> None:
    home = ready(answer=RefusedError("told", -1, "Not now", {"why": ["x"]}))
    async with listening(home) as stage:
        stage.say("elicitation/create", id=4)
        assert await stage.sink.answer() == types.JSONRPCError(
            jsonrpc="2.0", id=4, error=types.ErrorData(code=-1, message="Not now", data={"why": ["x"]})
        )


async def test_a_client_whose_side_fails_costs_the_server_no_connection() -> None:
    home = ready(answer=OSError("broken"))
    async with listening(home) as stage:
        stage.say(LOG, {"data": 1})
        stage.say("roots/list", id=1)
        answer = await stage.sink.answer()
        assert isinstance(answer, types.JSONRPCError)
        assert (answer.id, answer.error.code, answer.error.message) == (
            1, types.INTERNAL_ERROR, "The request could not be relayed to the client."
        )  # fmt: skip
        stage.say("ping", id=2)
        assert (await stage.sink.answer()).id == 2


async def test_a_ping_is_answered_whoever_is_there() -> None:
    async with listening() as stage:
        stage.say("ping", id="p")
        assert await stage.sink.answer() == types.JSONRPCResponse(jsonrpc="2.0", id="p", result={})


async def test_a_question_that_the_server_takes_back_is_not_answered() -> None:
    home = Client()
    home.listens.set()
    async with listening(home) as stage:
        stage.say("elicitation/create", {"message": "?"}, id=5)
        await home.was_asked.wait()
        for odd in (6, None, True, [5]):
            stage.say("notifications/cancelled", {"requestId": odd})
        stage.say("notifications/cancelled", {"requestId": 5})
        await anyio.wait_all_tasks_blocked()
        home.answers.set()
        stage.say("ping", id=7)
        assert (await stage.sink.answer()).id == 7
        assert stage.sink.answers.empty()


async def test_a_server_that_is_gone_when_the_answer_comes_does_not_matter() -> None:
    home = ready()
    async with listening(home) as stage:
        stage.sink.is_gone = True
        stage.say("roots/list", id=1)
        await anyio.wait_all_tasks_blocked()
    assert home.heard


async def test_two_questions_under_one_id_are_both_answered() -> None:
    home = Client()
    async with listening(home) as stage:
        stage.say("roots/list", id=1)
        stage.say("elicitation/create", id=1)
        await anyio.wait_all_tasks_blocked()
        home.answers.set()
        assert [(await stage.sink.answer()).id for _ in range(2)] == [1, 1]

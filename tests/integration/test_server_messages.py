"""Messages that a server sends on its own reach the right caller, in order."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import mcp_types as types
import pytest
from clocks import PassTime
from mcp.shared.message import SessionMessage

from mcp_mirror.callers import CAPABILITY_OF, Caller, ClientChannel
from mcp_mirror.errors import RefusedError
from mcp_mirror.payload.pipes import MessageSink
from mcp_mirror.settings.limits import UpstreamBounds
from mcp_mirror.upstreams.client_backlog import ClientBacklog
from mcp_mirror.upstreams.notifications import (
    CHANGES,
    ConnectionOwner,
    NotificationDispatcher,
    NotificationQueue,
)
from mcp_mirror.upstreams.transports.payloads import PayloadBypass
from mcp_mirror.upstreams.transports.requests import PausableTimeout, RequestTimeoutError
from mcp_mirror.upstreams.transports.server_messages import ServerMessage

BOUND = 60
LOG = "notifications/message"
PROGRESS = "notifications/progress"
ALL = {capability: dict[str, Any]() for capability in CAPABILITY_OF.values()}


@dataclass(eq=False)
class Client:
    """A client that records messages and answers requests."""

    caller: Caller = field(default_factory=lambda: Caller("me", capabilities=ALL))
    log_level: str | None = None
    wants_progress: bool = True
    is_waiting: bool = True
    session_channel: ClientChannel | None = None
    received: list[Any] = field(default_factory=list)
    answer: Mapping[str, Any] | Exception = field(default_factory=lambda: {"action": "accept"})
    accepts: anyio.Event = field(default_factory=anyio.Event)
    """Set when it accepts notifications."""
    was_requested: anyio.Event = field(default_factory=anyio.Event)
    answers: anyio.Event = field(default_factory=anyio.Event)

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        await self.accepts.wait()
        if isinstance(self.answer, OSError):
            raise self.answer
        self.received.append((method, params))

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        self.received.append((method, params))
        self.was_requested.set()
        await self.answers.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def ready(session: str | None = None, **more: Any) -> Client:
    """Return a client that accepts notifications and answers at once."""
    client = Client(Caller("me", session=session, capabilities=ALL), **more)
    client.accepts.set()
    client.answers.set()
    return client


class Sink(MessageSink):
    """Records the responses to the server."""

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
class Setup:
    """The dispatcher of one server, with its effects."""

    dispatcher: NotificationDispatcher
    sink: Sink
    changes: list[str]
    updates: list[tuple[str, Mapping[str, Any]]]

    def receive(self, method: str, params: Mapping[str, Any] | None = None, **more: Any) -> None:
        fields: dict[str, Any] = {"id": None, "about": None} | more
        self.dispatcher.dispatch(ServerMessage(method, params or {}, **fields))


@asynccontextmanager
async def dispatching(owner_channel: ClientChannel | None = None, limit: int = 1 << 20) -> AsyncIterator[Setup]:
    changes: list[str] = []
    updates: list[tuple[str, Mapping[str, Any]]] = []
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as tasks:
            owner = ConnectionOwner(changes.append, lambda uri, params: updates.append((uri, params)), owner_channel)
            dispatcher, sink = NotificationDispatcher(tasks, owner, UpstreamBounds(), ClientBacklog(limit)), Sink()
            dispatcher.connect(sink)
            yield Setup(dispatcher, sink, changes, updates)
            tasks.cancel_scope.cancel()


async def test_a_timeout_pauses_while_the_client_answers(pass_time: PassTime) -> None:
    timeout = PausableTimeout(100)
    with timeout.paused():
        assert timeout.remaining == float("inf")
        with timeout.paused():  # a second pause within the first
            await pass_time(150)
        await pass_time(150)
    assert 0 < timeout.remaining <= 100
    await pass_time(90)
    assert not timeout.is_over
    await pass_time(20)
    with anyio.fail_after(BOUND), pytest.raises(RequestTimeoutError), timeout.cancelling():
        await anyio.sleep_forever()
    assert timeout.is_over


async def test_a_timeout_restarts_unless_it_is_paused(pass_time: PassTime) -> None:
    restarted, paused = PausableTimeout(100), PausableTimeout(100)
    await pass_time(60)
    restarted.restart()
    with paused.paused():
        paused.restart()
        assert paused.remaining == float("inf")
    assert 40 < restarted.remaining <= 100
    assert paused.remaining <= 40


async def test_a_process_that_was_stopped_has_time_to_read_responses(pass_time: PassTime) -> None:
    timeout = PausableTimeout(100)
    await pass_time(500)
    assert not timeout.is_over
    with anyio.fail_after(BOUND), pytest.raises(RequestTimeoutError), timeout.cancelling():
        await anyio.sleep_forever()


async def test_a_stopped_request_ends_at_once_even_if_it_waits_later() -> None:
    timeout = PausableTimeout(100)
    timeout.stop("was stopped.")
    assert (timeout.is_over, timeout.reason) == (True, "was stopped.")
    with anyio.fail_after(BOUND), pytest.raises(RequestTimeoutError), timeout.cancelling():
        await anyio.sleep_forever()
    timeout.restart()
    with timeout.paused():
        pass
    assert timeout.remaining <= 100, "it does not start again"


async def test_a_queue_delivers_in_order_to_a_slow_client() -> None:
    client = Client()
    async with anyio.create_task_group() as tasks:
        outbox = NotificationQueue(client, tasks, ClientBacklog(1 << 20))
        await outbox.drain()  # nothing to wait for
        for number in range(50):
            outbox.post(PROGRESS, {"progress": number})
        await anyio.wait_all_tasks_blocked()
        assert client.received == []
        client.accepts.set()
        with anyio.fail_after(BOUND):
            await outbox.drain()
        assert client.received == [(PROGRESS, {"progress": number}) for number in range(50)]
        outbox.post(LOG, {})
        with anyio.fail_after(BOUND):
            await outbox.drain()
        assert client.received[-1] == (LOG, {})


async def test_a_notification_that_times_out_does_not_block_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_mirror.upstreams.notifications._DELIVERY_TIMEOUT", 0.05)
    client = Client()
    async with anyio.create_task_group() as tasks:
        outbox = NotificationQueue(client, tasks, ClientBacklog(1 << 20))
        outbox.post(LOG, {"data": "lost"})
        with anyio.fail_after(BOUND):
            await outbox.drain()
        client.accepts.set()
        outbox.post(LOG, {"data": "next"})
        with anyio.fail_after(BOUND):
            await outbox.drain()
    assert client.received == [(LOG, {"data": "next"})]


@pytest.mark.slow
async def test_waiting_notifications_count_with_the_memory_of_their_values() -> None:
    client, line = (
        Client(),
        b'{"jsonrpc":"2.0","method":"%b","params":{"data":[%b0]}}' % (LOG.encode(), b"[]," * 9_000),
    )
    async with anyio.create_task_group() as tasks:
        owner = ConnectionOwner(lambda _kind: None, lambda _uri, _params: None, client)
        backlog = ClientBacklog(4 << 20)  # 27 kB on the wire are 0.8 MB in memory
        bypass = PayloadBypass(dispatch=NotificationDispatcher(tasks, owner, UpstreamBounds(), backlog).dispatch)
        for _ in range(30):
            bypass.inbound(line)
        client.accepts.set()
        await anyio.wait_all_tasks_blocked()
        assert 1 <= len(client.received) <= 5
        tasks.cancel_scope.cancel()


async def test_messages_on_a_requests_stream_go_to_its_caller() -> None:
    first, second, owner_client = ready("a"), ready("b"), ready("c")
    async with dispatching(owner_client) as setup:
        track = setup.dispatcher.inflight.track
        with (
            track("one", first, PausableTimeout(9), resets_timeout=False) as one,
            track("two", second, PausableTimeout(9), resets_timeout=False) as two,
        ):
            setup.receive(LOG, {"data": 1}, about="one")
            setup.receive(LOG, {"data": 2}, about="two")
            setup.receive("vendor/own", {"x": 3}, about="two")
            setup.receive(LOG, {"data": 4}, about="gone")
            await one.queue.drain()
            await two.queue.drain()
            await anyio.wait_all_tasks_blocked()
    assert first.received == [(LOG, {"data": 1})]
    assert second.received == [(LOG, {"data": 2}), ("vendor/own", {"x": 3})]
    assert owner_client.received == [(LOG, {"data": 4})]


@pytest.mark.parametrize(
    ("sessions", "owner_client", "receiver"),
    [
        (["a"], "owner", "0"),
        (["a", "a"], None, "0"),
        (["a", "b"], "owner", "owner_client"),
        (["a", "b"], None, None),
        ([], "owner", "owner_client"),
        ([], None, None),
    ],
)
async def test_messages_that_name_no_request_go_to_the_only_caller(
    sessions: list[str], owner_client: str | None, receiver: str | None
) -> None:
    clients = {str(at): ready(session) for at, session in enumerate(sessions)} | {"owner_client": ready("owner_client")}
    async with dispatching(clients["owner_client"] if owner_client else None) as setup:
        tracked = [
            setup.dispatcher.inflight.track(name, client, PausableTimeout(9), resets_timeout=False)
            for name, client in clients.items()
            if name != "owner_client"
        ]
        for one in tracked:
            one.__enter__()
        setup.receive(LOG, {"data": 1})
        await anyio.wait_all_tasks_blocked()
        for one in tracked:
            one.__exit__(None, None, None)
    assert [name for name, client in clients.items() if client.received] == ([receiver] if receiver else [])


async def test_a_completed_request_gets_no_more_messages() -> None:
    client = ready()
    async with dispatching() as setup:
        with setup.dispatcher.inflight.track("one", client, PausableTimeout(9), resets_timeout=False):
            pass
        setup.receive(LOG, {}, about="one")
        setup.receive(PROGRESS, {"progressToken": "one", "progress": 1})
        setup.receive(LOG, {})
        await anyio.wait_all_tasks_blocked()
    assert client.received == []


async def test_progress_goes_to_the_request_with_its_token(pass_time: PassTime) -> None:
    wants, not_wants = ready("a"), ready("a", wants_progress=False)
    timeout, steady, other = PausableTimeout(100), PausableTimeout(100), PausableTimeout(100)
    await pass_time(60)
    async with dispatching() as setup:
        track = setup.dispatcher.inflight.track
        with (
            track("one", wants, timeout, resets_timeout=True) as inflight,
            track("two", not_wants, other, resets_timeout=True),
            track("three", wants, steady, resets_timeout=False),
        ):
            setup.receive(PROGRESS, {"progressToken": "one", "progress": 1, "vendor": None})
            setup.receive(PROGRESS, {"progressToken": "two", "progress": 2})
            setup.receive(PROGRESS, {"progressToken": "three", "progress": 3})
            for token in ("four", None, 7):
                setup.receive(PROGRESS, {"progressToken": token, "progress": 4})
            assert min(timeout.remaining, other.remaining) > 40 >= steady.remaining
            await inflight.queue.drain()
            await anyio.wait_all_tasks_blocked()
    assert wants.received == [
        (PROGRESS, {"progressToken": "one", "progress": 1, "vendor": None}),
        (PROGRESS, {"progressToken": "three", "progress": 3}),
    ]
    assert not_wants.received == []


async def test_changes_and_updates_go_to_listeners_and_not_to_callers() -> None:
    client = ready()
    async with dispatching(client) as setup:
        for method in CHANGES:
            setup.receive(method)
        setup.receive("notifications/resources/updated", {"uri": "a:b", "vendor": 1})
        setup.receive("notifications/resources/updated")
        setup.receive("notifications/tasks/status", {"taskId": "x"})
        await anyio.wait_all_tasks_blocked()
        assert setup.changes == ["tools", "resources", "prompts"]
        assert setup.updates == [("a:b", {"uri": "a:b", "vendor": 1}), ("", {})]
    assert client.received == []


async def test_a_new_subscription_after_a_lost_one_announces_all_lists() -> None:
    async with dispatching() as setup:
        setup.receive("notifications/subscriptions/acknowledged")
        assert setup.changes == ["tools"]
        setup.receive("notifications/subscriptions/acknowledged")
        assert setup.changes[1:] == list(CHANGES.values())


async def test_a_confirmed_subscription_to_a_resource_announces_no_lists() -> None:
    async with dispatching() as setup:
        confirmed, other = anyio.Event(), anyio.Event()
        setup.dispatcher.unconfirmed |= {"a:b": confirmed, "a:c": other}
        setup.receive(
            "notifications/subscriptions/acknowledged", {"notifications": {"resourceSubscriptions": [[], "a:b"]}}
        )
        assert (confirmed.is_set(), other.is_set(), setup.changes) == (True, False, [])


@pytest.mark.parametrize("method", CAPABILITY_OF)
async def test_a_server_request_is_answered_with_the_callers_answer(method: str) -> None:
    client = ready(answer={"action": "accept", "vendor": [1]})
    async with dispatching() as setup:
        with setup.dispatcher.inflight.track("one", client, PausableTimeout(9), resets_timeout=False):
            setup.receive(method, {"message": "?", "vendor": 1}, id="q-1")
            assert await setup.sink.answer() == types.JSONRPCResponse(
                jsonrpc="2.0", id="q-1", result={"action": "accept", "vendor": [1]}
            )
    assert client.received == [(method, {"message": "?", "vendor": 1})]


async def test_a_server_request_pauses_the_timeout_and_keeps_its_order() -> None:
    client, timeout = Client(), PausableTimeout(100)
    async with dispatching() as setup:
        with setup.dispatcher.inflight.track("one", client, timeout, resets_timeout=False):
            for number in range(5):
                setup.receive(LOG, {"data": number}, about="one")
            setup.receive("roots/list", id=1, about="one")
            await anyio.wait_all_tasks_blocked()
            assert client.received == []
            assert timeout.remaining <= 100
            client.accepts.set()
            await client.was_requested.wait()
            assert [params.get("data") for _, params in client.received] == [0, 1, 2, 3, 4, None]
            assert timeout.remaining == float("inf")
            client.answers.set()
            await setup.sink.answer()
            assert timeout.remaining <= 100


async def test_a_server_request_of_a_call_that_ends_meanwhile_is_relayed() -> None:
    client = Client()
    client.answers.set()
    async with dispatching() as setup:
        with setup.dispatcher.inflight.track("one", client, PausableTimeout(9), resets_timeout=False):
            setup.receive(LOG, {"data": 1}, about="one")
            setup.receive("roots/list", id=1)
            await anyio.wait_all_tasks_blocked()
        client.accepts.set()
        assert isinstance(await setup.sink.answer(), types.JSONRPCResponse)


async def test_a_server_request_leaves_a_call_that_ends_before_it_is_sent() -> None:
    ending, other, owner_client = Client(Caller("me", session="a", capabilities=ALL)), ready("a"), ready("a")
    async with dispatching(owner_client) as setup:
        track = setup.dispatcher.inflight.track
        with track("one", ending, PausableTimeout(9), resets_timeout=False):
            setup.receive(LOG, {"data": 1}, about="one")
            setup.receive("roots/list", id=1)
            await anyio.wait_all_tasks_blocked()
            second = track("two", other, PausableTimeout(9), resets_timeout=False)
            second.__enter__()
        ending.accepts.set()
        assert isinstance(await setup.sink.answer(), types.JSONRPCResponse)
        second.__exit__(None, None, None)
    assert (ending.was_requested.is_set(), other.received) == (False, [("roots/list", {})])


@pytest.mark.parametrize("is_stateless", [False, True])
async def test_server_requests_are_about_interactive_requests(*, is_stateless: bool) -> None:
    caller = Caller("me", is_stateless=is_stateless, capabilities=ALL)
    clients = [Client(caller), Client(caller)]
    for client in clients:
        client.answers.set()
    async with dispatching() as setup:
        track = setup.dispatcher.inflight.track
        with track("list", clients[0], PausableTimeout(9), resets_timeout=False, is_interactive=False):
            with track("call", clients[1], PausableTimeout(9), resets_timeout=False):
                for number in range(3):
                    setup.receive("roots/list", id=number)
                    assert isinstance(await setup.sink.answer(), types.JSONRPCResponse)
            assert [len(client.received) for client in clients] == [0, 3]
            setup.receive("roots/list", id=4)
            assert isinstance(await setup.sink.answer(), types.JSONRPCError) == is_stateless


async def test_a_server_request_outside_of_calls_goes_to_the_connections_owner() -> None:
    owner_client = ready()
    async with dispatching(owner_client) as setup:
        setup.receive("roots/list", id=0)
        assert (await setup.sink.answer()).id == 0
    assert owner_client.received == [("roots/list", {})]


async def test_server_requests_outside_of_calls_are_limited_per_minute() -> None:
    owner_client, most = ready(), UpstreamBounds().max_input_requests_per_call
    answers = []
    async with dispatching(owner_client) as setup:
        for number in range(most + 20):
            setup.receive("sampling/createMessage", id=number)
            answers.append(await setup.sink.answer())
    refused = [one for one in answers if isinstance(one, types.JSONRPCError)]
    assert most <= len(owner_client.received) < most + 20
    assert len(refused) == len(answers) - len(owner_client.received)
    assert "`limits.max_input_requests_per_call` (100)" in refused[0].error.message


async def test_server_requests_over_the_limit_get_an_error() -> None:
    client, most = ready(), UpstreamBounds().max_input_requests
    client.answers = anyio.Event()
    async with dispatching(client) as setup:
        for number in range(most + 3):
            setup.receive("roots/list", id=number)
        refused = [await setup.sink.answer() for _ in range(3)]
        assert [one.id for one in refused] == [most, most + 1, most + 2]
        assert "`limits.max_input_requests` (100) requests wait" in refused[0].error.message
        client.answers.set()
        answers = [await setup.sink.answer() for _ in range(most)]
        assert {one.id for one in answers} == set(range(most))


async def test_very_many_refused_server_requests_leave_turns_to_others() -> None:
    client, refused, turns = Client(), 500, 0
    async with dispatching(client) as setup:
        for number in range(UpstreamBounds().max_input_requests + refused):
            setup.receive("roots/list", id=number)
        while setup.sink.answers.qsize() < refused:
            await anyio.lowlevel.checkpoint()
            turns += 1
    assert turns > refused / 20


async def test_server_requests_that_take_too_much_memory_get_an_error() -> None:
    client = ready()
    client.answers = anyio.Event()
    async with dispatching(client, limit=1 << 20) as setup:
        setup.receive("roots/list", id="long", memory=1 << 20)
        for number in range(3):
            setup.receive("roots/list", id=number, memory=1 << 10)
        refused = [await setup.sink.answer() for _ in range(3)]
        assert [one.id for one in refused] == [0, 1, 2]
        assert "`limits.max_queued_notification_bytes` (1,048,576) of requests wait" in refused[0].error.message
        client.answers.set()
        assert (await setup.sink.answer()).id == "long"
        setup.receive("roots/list", id="next", memory=1 << 10)
        assert isinstance(await setup.sink.answer(), types.JSONRPCResponse)


async def test_a_long_request_takes_the_room_of_those_of_ended_calls() -> None:
    client = Client()
    async with dispatching(limit=1 << 20) as setup:
        with setup.dispatcher.inflight.track("one", client, PausableTimeout(9), resets_timeout=False):
            setup.receive("elicitation/create", {"message": "old"}, id="old", about="one", memory=1 << 20)
            await anyio.wait_all_tasks_blocked()
        with setup.dispatcher.inflight.track("two", client, PausableTimeout(9), resets_timeout=False):
            setup.receive("elicitation/create", {"message": "new"}, id="new", about="two", memory=1 << 18)
            assert (await setup.sink.answer()).id == "old"
            client.answers.set()
            assert isinstance(await setup.sink.answer(), types.JSONRPCResponse)


async def test_clients_that_do_not_read_share_the_room_for_notifications() -> None:
    count, size = 64, 1 << 12
    slow, fast = [Client() for _ in range(count)], ready()
    async with anyio.create_task_group() as tasks:
        backlog = ClientBacklog(limit=1 << 20)
        queues = [NotificationQueue(client, tasks, backlog) for client in slow]
        for number in range(256):
            for queue in queues:
                queue.post(LOG, {"data": number}, size)
        later = NotificationQueue(fast, tasks, backlog)
        later.post(LOG, {"data": "other"}, size)
        for client in slow:
            client.accepts.set()
        await anyio.wait_all_tasks_blocked()
    assert fast.received == [(LOG, {"data": "other"})]
    assert min(len(client.received) for client in slow) >= 1
    assert sum(len(client.received) for client in slow) * size < 2 * backlog.limit


async def test_requests_of_ended_calls_make_room_for_those_of_others() -> None:
    client, most = Client(), UpstreamBounds().max_input_requests
    client.accepts.set()
    async with dispatching() as setup:
        with setup.dispatcher.inflight.track("one", client, PausableTimeout(9), resets_timeout=False):
            for number in range(most):
                setup.receive("elicitation/create", {"message": str(number)}, id=number, about="one")
            await anyio.wait_all_tasks_blocked()
        with setup.dispatcher.inflight.track("two", client, PausableTimeout(9), resets_timeout=False):
            for identity in ("new", "newer"):
                setup.receive("elicitation/create", {"message": identity}, id=identity, about="two")
            dropped = [await setup.sink.answer() for _ in range(2)]
            await anyio.wait_all_tasks_blocked()
            assert {one.id for one in dropped} == {0, 1}
            assert "The call that this request was about has ended" in dropped[0].error.message
            assert [params["message"] for _, params in client.received[most:]] == ["new", "newer"]
            client.answers.set()
            answers = [await setup.sink.answer() for _ in range(most)]
    assert {one.id for one in answers} == {*range(2, most), "new", "newer"}


async def test_server_requests_that_name_no_call_are_shared_among_the_calls() -> None:
    clients = [ready(), ready(), ready()]
    async with dispatching() as setup, AsyncExitStack() as stack:
        for number, client in enumerate(clients):
            stack.enter_context(
                setup.dispatcher.inflight.track(f"call-{number}", client, PausableTimeout(9), resets_timeout=False)
            )
        for identity in range(6):
            setup.receive("elicitation/create", {"message": str(identity)}, id=identity)
            await setup.sink.answer()
    assert [len(client.received) for client in clients] == [2, 2, 2]


async def test_server_requests_of_unknown_calls_count_against_calls_in_flight() -> None:
    client, most = ready("a"), UpstreamBounds().max_input_requests_per_call
    timeouts = [PausableTimeout(100), PausableTimeout(100)]
    async with dispatching() as setup:
        with (
            setup.dispatcher.inflight.track("1", client, timeouts[0], resets_timeout=False),
            setup.dispatcher.inflight.track("2", client, timeouts[1], resets_timeout=False),
        ):
            for number in range(2 * most):
                setup.receive("roots/list", id=number)
                await setup.sink.answer()
            assert [timeout.reason for timeout in timeouts] == [None, None]
            setup.receive("roots/list", id=-1)
            await anyio.wait_all_tasks_blocked()
            assert sum(timeout.is_over for timeout in timeouts) == 1
            assert setup.sink.answers.empty()
        assert isinstance(await setup.sink.answer(), types.JSONRPCError)


REFUSED = [
    ("vendor/odd", ALL, types.METHOD_NOT_FOUND, "does not support vendor/odd"),
    ("sampling/createMessage", {"roots": {}}, types.METHOD_NOT_FOUND, "not declared `sampling`"),
    (
        "roots/list",
        None,
        types.INVALID_REQUEST,
        "Send the request during a call: the connection does not belong to one client.",
    ),
]


@pytest.mark.parametrize(("method", "capabilities", "code", "text"), REFUSED)
async def test_a_server_request_that_no_client_can_answer_is_refused(
    method: str, capabilities: dict[str, Any] | None, code: int, text: str
) -> None:
    owner_client = None if capabilities is None else Client(Caller("me", capabilities=capabilities))
    async with dispatching(owner_client) as setup:
        setup.receive(method, id=3)
        answer = await setup.sink.answer()
    assert isinstance(answer, types.JSONRPCError)
    assert (answer.id, answer.error.code) == (3, code)
    assert text in answer.error.message
    assert owner_client is None or owner_client.received == []


async def test_unreadable_messages_are_refused_or_dropped() -> None:
    owner_client = ready()
    async with dispatching(owner_client) as setup:
        setup.receive(LOG, fault="It is broken.")
        setup.receive("notifications/tools/list_changed", fault="It is broken.")
        setup.receive("elicitation/create", id=9, fault="It is broken.")
        assert await setup.sink.answer() == types.JSONRPCError(
            jsonrpc="2.0", id=9, error=types.ErrorData(code=types.INVALID_PARAMS, message="It is broken.")
        )
        assert setup.changes == []
    assert owner_client.received == []


async def test_a_callers_error_reaches_the_server_unchanged() -> None:
    owner_client = ready(answer=RefusedError("logged", -1, "Not now", {"why": ["x"]}))
    async with dispatching(owner_client) as setup:
        setup.receive("elicitation/create", id=4)
        assert await setup.sink.answer() == types.JSONRPCError(
            jsonrpc="2.0", id=4, error=types.ErrorData(code=-1, message="Not now", data={"why": ["x"]})
        )


async def test_a_failing_client_does_not_end_the_servers_connection() -> None:
    owner_client = ready(answer=OSError("broken"))
    async with dispatching(owner_client) as setup:
        setup.receive(LOG, {"data": 1})
        setup.receive("roots/list", id=1)
        answer = await setup.sink.answer()
        assert isinstance(answer, types.JSONRPCError)
        assert (answer.id, answer.error.code, answer.error.message) == (
            1, types.INTERNAL_ERROR, "The request could not be relayed to the client."
        )  # fmt: skip
        setup.receive("ping", id=2)
        assert (await setup.sink.answer()).id == 2


async def test_a_ping_is_answered_without_a_client() -> None:
    async with dispatching() as setup:
        setup.receive("ping", id="p")
        assert await setup.sink.answer() == types.JSONRPCResponse(jsonrpc="2.0", id="p", result={})


async def test_a_server_request_cancelled_at_once_does_not_reach_the_client() -> None:
    client = ready()
    async with dispatching(client) as setup:
        setup.receive("roots/list", id=5)
        setup.receive("notifications/cancelled", {"requestId": 5})
        setup.receive("ping", id=6)
        assert (await setup.sink.answer()).id == 6
        await anyio.wait_all_tasks_blocked()
        assert setup.sink.answers.empty()
    assert client.received == []


async def test_other_tasks_run_between_the_requests_of_a_server() -> None:
    client = Client()
    client.accepts.set()
    async with dispatching(client) as setup:
        for number in range(50):
            setup.receive("roots/list", id=number)
        most = 0
        while len(client.received) < 50:
            before = len(client.received)
            await anyio.lowlevel.checkpoint()
            most = max(most, len(client.received) - before)
    assert most == 1


async def test_a_server_request_that_the_server_cancels_is_not_answered() -> None:
    owner_client = Client()
    owner_client.accepts.set()
    async with dispatching(owner_client) as setup:
        setup.receive("elicitation/create", {"message": "?"}, id=5)
        await owner_client.was_requested.wait()
        for odd in (6, None, True, [5]):
            setup.receive("notifications/cancelled", {"requestId": odd})
        setup.receive("notifications/cancelled", {"requestId": 5})
        await anyio.wait_all_tasks_blocked()
        owner_client.answers.set()
        setup.receive("ping", id=7)
        assert (await setup.sink.answer()).id == 7
        assert setup.sink.answers.empty()


async def test_a_result_waits_until_the_client_knows_of_a_cancellation() -> None:
    class Withdrawing(Client):
        """A client that learns of a cancelled request once it accepts notifications."""

        async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
            try:
                return await super().request(method, params)
            finally:
                with anyio.CancelScope(shield=True):
                    await self.notify("notifications/cancelled", {})

    client = Withdrawing()
    async with dispatching() as setup:
        with setup.dispatcher.inflight.track("one", client, PausableTimeout(9), resets_timeout=False) as inflight:
            setup.receive("elicitation/create", {"message": "?"}, id=5)
            await client.was_requested.wait()
            setup.receive("notifications/cancelled", {"requestId": 5})
            await anyio.wait_all_tasks_blocked()
            assert inflight.is_delivering
            client.accepts.set()
            await inflight.queue.drain()
            assert client.received[-1] == ("notifications/cancelled", {})
            assert not inflight.is_delivering


async def test_an_answer_to_a_closed_connection_is_dropped() -> None:
    owner_client = ready()
    async with dispatching(owner_client) as setup:
        setup.sink.is_gone = True
        setup.receive("roots/list", id=1)
        await anyio.wait_all_tasks_blocked()
    assert owner_client.received


async def test_two_server_requests_with_one_id_are_both_answered() -> None:
    owner_client = Client()
    async with dispatching(owner_client) as setup:
        setup.receive("roots/list", id=1)
        setup.receive("elicitation/create", id=1)
        await anyio.wait_all_tasks_blocked()
        owner_client.answers.set()
        assert [(await setup.sink.answer()).id for _ in range(2)] == [1, 1]

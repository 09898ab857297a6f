"""Input requests between protocol versions: sent live, or suspended until the client brings the answers."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from clocks import PassTime
from removed_files import wait_until_gone

from mcp_mirror.callers import CAPABILITY_OF, Caller, ClientChannel
from mcp_mirror.errors import RefusedError, UpstreamError
from mcp_mirror.payload.spool import SpooledFrame
from mcp_mirror.server.client_channel import read_client_result
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.client_backlog import ClientBacklog
from mcp_mirror.upstreams.content_filter import filter_content
from mcp_mirror.upstreams.elicitation import (
    InputRequired,
    InputRound,
    InputRounds,
    SuspendedCall,
    SuspendedCalls,
)
from mcp_mirror.upstreams.transports.requests import RawResponse
from mcp_mirror.upstreams.upstream_request import UpstreamRequest

LIMIT = 10
ROUNDS = InputRounds("up", LIMIT, ClientBacklog(1 << 20))
"""Input rounds that a call may have."""
BOUND = 60
DONE: Mapping[str, Buffer] = {"content": b"[1e400]"}
REQUEST = UpstreamRequest("tools/call", {"arguments": (b'{"a":', b"1.0}")}, {"name": "x"})
ALL = {capability: dict[str, Any]() for capability in CAPABILITY_OF.values()}
Answer = Mapping[str, Any] | RefusedError


@dataclass(eq=False)
class Client:
    """A client that records messages, and answers each request by its message."""

    caller: Caller = field(default_factory=lambda: Caller("me", is_stateless=False, session="s", capabilities=ALL))
    log_level: str | None = "notice"
    wants_progress: bool = True
    is_waiting: bool = True
    session_channel: ClientChannel | None = None
    answers: Mapping[str, Answer] = field(default_factory=dict)
    notifications: list[Any] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)
    together: int = 1
    """The number of requests that must arrive before it answers."""
    have_arrived: anyio.Event = field(default_factory=anyio.Event)

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        self.notifications.append((method, params))

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        self.requests.append((method, params))
        if len(self.requests) == self.together:
            self.have_arrived.set()
        await self.have_arrived.wait()
        answer = self.answers.get(params.get("message", ""), {"action": "decline"})
        if isinstance(answer, RefusedError):
            raise answer
        return answer


@dataclass
class Server:
    """A server that answers with each of these in turn, and records what it receives."""

    replies: list[RawResponse]
    sent: list[dict[str, Any]] = field(default_factory=list)

    async def answer(self, request: UpstreamRequest) -> RawResponse:
        assert request.params["arguments"] == REQUEST.params["arguments"]
        self.sent.append({key: json.loads(b"".join(raw)) for key, raw in request.params.items() if key != "arguments"})
        return self.replies.pop(0)


def ask(message: str) -> dict[str, Any]:
    """Return the parameters of a form."""
    return {"message": message, "requestedSchema": {"type": "object", "properties": {}}}


def elicitation(message: str, method: str = "elicitation/create") -> dict[str, Any]:
    return {"method": method, "params": ask(message)}


def input_required(requests: Any = None, state: Any = None) -> Mapping[str, Buffer]:
    """Return a result that requires input."""
    result = {"inputRequests": requests, "requestState": state}
    members = {key: json.dumps(value).encode() for key, value in result.items() if value is not None}
    return {"resultType": b'"input_required"', **members}


def required_by(arrival: RawResponse) -> InputRequired:
    required = ROUNDS.read(arrival)
    assert required is not None
    return required


@pytest.mark.parametrize(
    "arrival",
    [
        DONE,
        {"resultType": b'"complete"', "inputRequests": b"{}"},
        {"resultType": b"7"},
        SpooledFrame(Path("never read"), 1, b""),
    ],
)
def test_a_complete_result_requires_no_input(arrival: RawResponse) -> None:
    assert ROUNDS.read(arrival) is None


def test_input_requests_are_read_and_kept_as_the_server_wrote_them() -> None:
    raw = b'{"k": {"method":"roots/list"}, "l":{"params":{"a":1},"method":"vendor/odd","extra":1.0}}'
    required = required_by({"resultType": b'"input_required"', "inputRequests": raw, "requestState": b'"\\u0061"'})
    assert {key: request["method"] for key, request in required.requests.items()} == {
        "k": "roots/list",
        "l": "vendor/odd",
    }
    assert required.requests["l"]["params"] == {"a": 1}
    assert required.state == {"state": "a"}
    assert required.raw == raw


@pytest.mark.parametrize("requests", [None, {}])
def test_a_result_that_requires_nothing_is_an_error(requests: Any) -> None:
    with pytest.raises(UpstreamError, match=r"Upstream 'up' requests input .* neither `inputRequests` nor"):
        ROUNDS.read(input_required(requests))


@pytest.mark.parametrize(
    ("member", "raw"),
    [
        *(
            ("inputRequests", raw)
            for raw in (b"[]", b"5", b'{"a":5}', b'{"a":{"method":"x","params":1e400}}', b'{"a":{"method":7}}')
        ),
        *(("inputRequests", raw) for raw in (b'{"a":{}}', b'{"a":{"method":"roots/list","params":[1]}}')),
        *(("requestState", raw) for raw in (b"5", b"{}", b'"\xff"')),
    ],
)
def test_malformed_input_requests_are_an_upstream_error(member: str, raw: bytes) -> None:
    with pytest.raises(UpstreamError, match="does not conform to MCP"):
        ROUNDS.read({"resultType": b'"input_required"', member: raw})


def form_of(count: int) -> dict[str, Any]:
    """Return the parameters of a form with so many fields."""
    properties = {f"k{number}": {"type": "string"} for number in range(count)}
    return {"message": "?", "requestedSchema": {"type": "object", "properties": properties}}


async def test_input_requests_and_answers_may_have_so_many_values() -> None:
    outcomes: Mapping[int, AbstractContextManager[object]] = {
        1_000: nullcontext(),
        3_000: pytest.raises(UpstreamError, match="more than 4,096 members and items"),
    }
    for count, expected in outcomes.items():
        request = {"method": "elicitation/create", "params": form_of(count)}
        with expected:
            ROUNDS.return_to_client(required_by(input_required({"a": request})), None, Client())
    with pytest.raises(RefusedError, match="The request has more than 4,096 members and items"):
        await SuspendedCall(Client(), BOUND).request("elicitation/create", form_of(3_000))
    answer = {"action": "accept", "content": {f"k{number}": 1 for number in range(5_000)}}
    with pytest.raises(RefusedError, match="answer has more than 4,096 members and items"):
        read_client_result("elicitation/create", "2025-11-25", answer)
    assert read_client_result("elicitation/create", "2025-11-25", {"action": "decline"}) == {"action": "decline"}


async def test_a_2025_client_gets_input_requests_until_the_call_completes() -> None:
    first = input_required({"a": elicitation("name?"), "b": elicitation("age?")}, "one")
    server = Server([input_required({"c": elicitation("sure?")}), DONE])
    client = Client(answers={"name?": {"action": "accept", "content": {"n": 1.5}}, "age?": {"x": None}}, together=2)
    with anyio.fail_after(BOUND):
        assert await ROUNDS.complete(required_by(first), REQUEST, client, server.answer) == DONE
    assert sorted(params["message"] for _, params in client.requests) == ["age?", "name?", "sure?"]
    assert server.sent == [
        {
            "inputResponses": {"a": {"action": "accept", "content": {"n": 1.5}}, "b": {"x": None}},
            "requestState": "one",
        },
        {"inputResponses": {"c": {"action": "decline"}}},
    ]


async def test_a_result_without_input_requests_only_repeats_the_call() -> None:
    server = Server([input_required(state="two"), DONE])
    client = Client()
    with anyio.fail_after(BOUND):
        assert await ROUNDS.complete(required_by(input_required({}, "one")), REQUEST, client, server.answer) == DONE
    assert server.sent == [{"requestState": "one"}, {"requestState": "two"}]
    assert client.requests == []


async def test_too_many_input_rounds_end_the_call() -> None:
    server = Server([input_required({"a": elicitation("again?")})] * (LIMIT + 1))
    with (
        anyio.fail_after(BOUND),
        pytest.raises(UpstreamError, match=rf"more than `limits.max_input_requests_per_call` \({LIMIT}\) times"),
    ):
        await ROUNDS.complete(
            required_by(input_required({"a": elicitation("?")})),
            REQUEST,
            Client(),
            server.answer,
        )
    assert len(server.sent) == LIMIT


async def test_a_clients_error_ends_the_call_and_its_other_requests() -> None:
    refused = RefusedError("logged", -1, "No", {"why": 1})
    required = required_by(input_required({"a": elicitation("no?"), "b": elicitation("other?")}))
    client = Client(answers={"no?": refused}, together=2)
    server = Server([])
    with anyio.fail_after(BOUND), pytest.raises(RefusedError) as raised:
        await ROUNDS.complete(required, REQUEST, client, server.answer)
    assert raised.value is refused
    assert server.sent == []


@pytest.mark.parametrize(("method", "needed"), [*CAPABILITY_OF.items(), ("vendor/odd", "vendor/odd")])
async def test_the_error_names_the_capability_that_the_client_lacks(method: str, needed: str) -> None:
    client = Client(Caller("me", capabilities={key: {} for key in ALL if key != needed}))
    with anyio.fail_after(BOUND), pytest.raises(RefusedError, match=f"`{needed}`") as raised:
        await ROUNDS.complete(
            required_by(input_required({"a": elicitation("?", method)})),
            REQUEST,
            client,
            Server([]).answer,
        )
    assert raised.value.code == types.MISSING_REQUIRED_CLIENT_CAPABILITY == -32021
    assert raised.value.data == {"requiredCapabilities": {needed: {}}}
    assert client.requests == []


async def test_no_unknown_method_is_named_where_content_is_hidden() -> None:
    channel = filter_content(Client(Caller("me", capabilities=ALL)))
    required = required_by(input_required({"a": elicitation("?", "a value of a customer")}))
    with anyio.fail_after(BOUND), pytest.raises(RefusedError, match="content is hidden") as raised:
        await ROUNDS.complete(required, REQUEST, channel, Server([]).answer)
    assert "customer" not in f"{raised.value} {raised.value.data}"


Send = Callable[[ClientChannel], Awaitable[RawResponse]]


@asynccontextmanager
async def suspending(seconds: float = BOUND) -> AsyncIterator[SuspendedCalls[RawResponse]]:
    """Yield suspended calls; all have ended when the context ends."""
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as tasks:
            yield SuspendedCalls(tasks, seconds)


def requesting(*messages: str) -> tuple[Send, list[Mapping[str, Any]]]:
    """Return a server that sends these requests one after another before it answers, and the answers that it gets."""
    answers: list[Mapping[str, Any]] = []

    async def send(channel: ClientChannel) -> RawResponse:
        for message in messages:
            answer = await channel.request("elicitation/create", ask(message))
            answers.append(answer)
        return DONE

    return send, answers


def modern(namespace: str = "me") -> Client:
    return Client(Caller(namespace, capabilities=ALL))


def again(required: RawResponse | InputRequired, answers: Any) -> InputRound:
    """Return the input round with which a client repeats a call."""
    assert isinstance(required, InputRequired)
    return InputRound(json.dumps(answers).encode(), required.state or {})


def reply_to(required: RawResponse | InputRequired, **answer: Any) -> InputRound:
    assert isinstance(required, InputRequired)
    return again(required, dict.fromkeys(required.requests, answer))


async def test_a_call_without_server_requests_completes() -> None:
    send, _ = requesting()
    async with suspending() as suspended:
        assert await suspended.begin(modern(), send) == DONE


async def test_a_call_is_suspended_while_the_client_gets_answers() -> None:
    send, answers = requesting("name?", "sure?")
    client = modern()
    async with suspending() as suspended:
        first = await suspended.begin(client, send)
        assert isinstance(first, InputRequired)
        (name,) = first.requests
        assert first.requests[name] == {"method": "elicitation/create", "params": ask("name?")}
        second = await suspended.resume(reply_to(first, action="accept"), modern())
        assert isinstance(second, InputRequired)
        assert second.state == first.state
        assert name not in second.requests
        assert await suspended.resume(reply_to(second, n=1), modern()) == DONE
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(RefusedError, match="is over") as over:
            await suspended.resume(reply_to(second), modern())
        assert (over.value.code, over.value.data) == (types.INVALID_PARAMS, {"reason": "invalid_request_state"})
    assert answers == [{"action": "accept"}, {"n": 1}]
    assert client.requests == []


async def test_unanswered_requests_are_sent_again() -> None:
    async def send(channel: ClientChannel) -> RawResponse:
        async with anyio.create_task_group() as tasks:
            for message in ("one?", "two?"):
                tasks.start_soon(channel.request, "elicitation/create", ask(message))
        return DONE

    async with suspending() as suspended:
        first = await suspended.begin(modern(), send)
        assert isinstance(first, InputRequired)
        one, two = first.requests
        second = await suspended.resume(again(first, {one: {}, "unknown": {}}), modern())
        assert isinstance(second, InputRequired)
        assert list(second.requests) == [two]
        assert await suspended.resume(reply_to(second), modern()) == DONE


async def test_a_suspended_call_is_the_channel_to_the_waiting_request() -> None:
    seen: list[Any] = []
    may_end = anyio.Event()

    async def send(channel: ClientChannel) -> RawResponse:
        seen.append((channel.caller, channel.log_level, channel.wants_progress, channel.session_channel))
        await channel.notify("m", {"at": 1})
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(channel.request, "roots/list", {})
                await may_end.wait()
                await channel.notify("m", {"at": 2})  # no request waits until the client comes back
                scope.cancel()
        await channel.request("roots/list", {})
        await channel.notify("m", {"at": 3})
        return DONE

    first, second = modern(), modern()
    async with suspending() as suspended:
        required = await suspended.begin(first, send)
        may_end.set()
        await anyio.wait_all_tasks_blocked()
        required = await suspended.resume(reply_to(required), second)
        assert await suspended.resume(reply_to(required), second) == DONE
    assert seen == [(first.caller, "notice", True, None)]
    assert (first.notifications, second.notifications) == ([("m", {"at": 1})], [("m", {"at": 2}), ("m", {"at": 3})])


@pytest.mark.parametrize("comes_back", ["at once", "later"])
async def test_a_failing_server_fails_its_suspended_call(comes_back: str) -> None:
    async def send(channel: ClientChannel) -> RawResponse:
        if comes_back == "later":
            await channel.request("roots/list", {})
        raise UpstreamError("It crashed.")

    async with suspending() as suspended:
        with pytest.raises(UpstreamError, match="It crashed"):
            await suspended.resume(reply_to(await suspended.begin(modern(), send)), modern())


async def test_an_unanswered_request_times_out_and_ends_its_call() -> None:
    refused: list[RefusedError] = []

    async def send(channel: ClientChannel) -> RawResponse:
        try:
            await channel.request("roots/list", {})
        except RefusedError as error:
            refused.append(error)
            raise
        return DONE

    async with suspending(0.05) as suspended:
        required = await suspended.begin(modern(), send)
    assert [error.code for error in refused] == [types.REQUEST_TIMEOUT]
    with pytest.raises(RefusedError, match="is over"):
        await suspended.resume(reply_to(required), modern())


async def test_answers_that_come_too_late_get_the_reason(pass_time: PassTime) -> None:
    given_up = anyio.Event()

    async def send(channel: ClientChannel) -> RawResponse:
        try:
            await channel.request("roots/list", {})
        except RefusedError:
            given_up.set()
        await anyio.sleep_forever()
        return DONE

    async with suspending(30) as suspended:
        required = await suspended.begin(modern(), send)
        await pass_time(31)
        await given_up.wait()
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(UpstreamError, match="not answered in time"):
            await suspended.resume(reply_to(required), modern())


async def test_only_its_own_namespace_resumes_a_suspended_call() -> None:
    send, answers = requesting("secret?")
    async with suspending() as suspended:
        required = await suspended.begin(modern(), send)
        with pytest.raises(RefusedError, match="is over, or another gateway process runs it"):
            await suspended.resume(reply_to(required, stolen=True), modern("somebody else"))
        assert await suspended.resume(reply_to(required, mine=True), modern()) == DONE
    assert answers == [{"mine": True}]


@pytest.mark.parametrize("state", [{}, {"held": "made up"}, {"state": "x"}])
async def test_a_state_without_a_suspended_call_is_refused(state: dict[str, str]) -> None:
    async with suspending() as suspended:
        with pytest.raises(RefusedError, match="Make the call again"):
            await suspended.resume(InputRound(b"{}", state), modern())


@pytest.mark.parametrize("answers", [[], 5, {"a": 5}, "x"])
async def test_unreadable_answers_are_refused_and_the_call_continues(answers: Any) -> None:
    send, _ = requesting("?")
    async with suspending() as suspended:
        required = await suspended.begin(modern(), send)
        with pytest.raises(RefusedError, match="inputResponses") as refused:
            await suspended.resume(again(required, answers), modern())
        assert refused.value.code == types.INVALID_PARAMS
        assert await suspended.resume(reply_to(required), modern()) == DONE


async def test_the_number_of_suspended_calls_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_mirror.upstreams.elicitation._MAX_SUSPENDED", 2)
    async with suspending() as suspended:
        required = [await suspended.begin(modern(), requesting("?")[0]) for _ in range(2)]
        with pytest.raises(UpstreamError, match="2 calls already wait for answers of users"):
            await suspended.begin(modern(), requesting()[0])
        assert await suspended.resume(reply_to(required[0]), modern()) == DONE
        await anyio.wait_all_tasks_blocked()
        assert await suspended.begin(modern(), requesting()[0]) == DONE
        assert await suspended.resume(reply_to(required[1]), modern()) == DONE


async def test_suspended_calls_of_one_principal_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_mirror.upstreams.elicitation._MAX_OF_PRINCIPAL", 2)
    async with suspending() as suspended:
        required = [await suspended.begin(modern(), requesting("?")[0]) for _ in range(2)]
        with pytest.raises(UpstreamError, match="2 calls of this principal already wait for answers of users"):
            await suspended.begin(modern(), requesting()[0])
        assert await suspended.begin(modern("somebody else"), requesting()[0]) == DONE
        for one in required:
            assert await suspended.resume(reply_to(one), modern()) == DONE


async def test_a_caller_that_disconnects_ends_its_suspended_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_mirror.upstreams.elicitation._MAX_SUSPENDED", 1)
    began, left = anyio.Event(), anyio.Event()

    async def send(_: ClientChannel) -> RawResponse:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            left.set()
        return DONE

    async with suspending(60) as suspended:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(suspended.begin, modern(), send)
            await began.wait()
            tasks.cancel_scope.cancel()
        await left.wait()
        await anyio.wait_all_tasks_blocked()
        assert await suspended.begin(modern(), requesting()[0]) == DONE


async def test_of_two_requests_with_the_same_answers_the_later_gets_the_result() -> None:
    may_end = anyio.Event()
    refused: list[str] = []

    async def send(channel: ClientChannel) -> RawResponse:
        await channel.request("roots/list", {})
        await may_end.wait()
        return DONE

    async with suspending() as suspended, anyio.create_task_group() as tasks:
        required = await suspended.begin(modern(), send)

        async def come_back_early() -> None:
            try:
                await suspended.resume(reply_to(required), modern())
            except RefusedError as error:
                refused.append(str(error))

        tasks.start_soon(come_back_early)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(set_when_idle, may_end)
        assert await suspended.resume(reply_to(required), modern()) == DONE
    assert refused == ["The client sent this request again. The later request gets the answer."]


async def set_when_idle(event: anyio.Event) -> None:
    await anyio.wait_all_tasks_blocked()
    event.set()


async def test_the_caller_discards_a_large_result(tmp_path: Path) -> None:
    path = tmp_path / "frame"
    path.write_bytes(b"{}")

    async def send(_: ClientChannel) -> RawResponse:
        return SpooledFrame(path, 2, b"{}")

    async with suspending() as suspended:
        assert isinstance(await suspended.begin(modern(), send), SpooledFrame)
    assert path.exists()


async def test_an_unfetched_large_result_is_discarded(tmp_path: Path, pass_time: PassTime) -> None:
    path = tmp_path / "frame"
    path.write_bytes(b"{}")

    may_answer = anyio.Event()

    async def send(channel: ClientChannel) -> RawResponse:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.request, "roots/list", {})
            await may_answer.wait()
            tasks.cancel_scope.cancel()  # the server cancels its request
        return SpooledFrame(path, 2, b"{}")

    async with suspending(30) as suspended:
        assert isinstance(await suspended.begin(modern(), send), InputRequired)
        may_answer.set()
        await anyio.wait_all_tasks_blocked()  # the result is there
        await pass_time(31)
    wait_until_gone(path)


async def test_removing_the_server_ends_its_suspended_calls_with_an_error() -> None:
    ended: list[str] = []
    with anyio.fail_after(60):
        async with anyio.create_task_group() as client, anyio.create_task_group() as servers:
            calls: SuspendedCalls[RawResponse] = SuspendedCalls(servers, 60)

            async def wait() -> None:
                with pytest.raises(UpstreamError) as raised:
                    await calls.begin(Client(), never)
                ended.append(str(raised.value))

            async def never(_channel: ClientChannel) -> RawResponse:
                await anyio.sleep_forever()
                return {}

            client.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            servers.cancel_scope.cancel()
    assert ended == ["The call was ended: its input request was not answered in time, or its server is gone."]


async def test_an_unexpected_error_fails_only_its_suspended_call() -> None:
    async with anyio.create_task_group() as tasks:
        calls: SuspendedCalls[RawResponse] = SuspendedCalls(tasks, 0.05)

        async def breaks(_channel: ClientChannel) -> RawResponse:
            raise LookupError

        with anyio.fail_after(60), pytest.raises(UpstreamError, match="failed within the gateway"):
            await calls.begin(Client(), breaks)

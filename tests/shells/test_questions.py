"""Questions to the user, between the eras: asked live, or held until the client comes back."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest

from mcp_mirror.callers import CAPABILITY_OF, Caller, ClientChannel
from mcp_mirror.errors import RefusedError, UpstreamError
from mcp_mirror.payload.spool import SpooledFrame
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.elicitation import (
    InputRequired,
    InputRound,
    SuspendedCalls,
    complete_live,
    read_input_required,
)
from mcp_mirror.upstreams.session import UpstreamRequest
from mcp_mirror.upstreams.transports.payloads import RawResponse

MOST = 10
"""Times that a server may ask."""
BOUND = 60
DONE: Mapping[str, Buffer] = {"content": b"[1e400]"}
ORDER = UpstreamRequest("tools/call", {"arguments": (b'{"a":', b"1.0}")}, {"name": "x"})
ALL = {capability: dict[str, Any]() for capability in CAPABILITY_OF.values()}
Answer = Mapping[str, Any] | RefusedError


@dataclass(eq=False)
class Client:
    """A client that writes down what it hears, and answers each question by its message."""

    caller: Caller = field(default_factory=lambda: Caller("me", is_stateless=False, session="s", capabilities=ALL))
    log_level: str | None = "notice"
    wants_progress: bool = True
    is_waiting: bool = True
    session_channel: ClientChannel | None = None
    answers: Mapping[str, Answer] = field(default_factory=dict)
    told: list[Any] = field(default_factory=list)
    asked: list[Any] = field(default_factory=list)
    together: int = 1
    """As many questions must be there before the first is answered."""
    are_there: anyio.Event = field(default_factory=anyio.Event)

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        self.told.append((method, params))

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked.append((method, params))
        if len(self.asked) == self.together:
            self.are_there.set()
        await self.are_there.wait()
        answer = self.answers.get(params.get("message", ""), {"action": "decline"})
        if isinstance(answer, RefusedError):
            raise answer
        return answer


@dataclass
class Server:
    """A server that answers with each of these in turn, and writes down what it is sent."""

    replies: list[RawResponse]
    sent: list[dict[str, Any]] = field(default_factory=list)

    async def answer(self, order: UpstreamRequest) -> RawResponse:
        assert order.params["arguments"] == ORDER.params["arguments"]
        self.sent.append({key: json.loads(b"".join(raw)) for key, raw in order.params.items() if key != "arguments"})
        return self.replies.pop(0)


def question(message: str, method: str = "elicitation/create") -> dict[str, Any]:
    return {"method": method, "params": {"message": message}}


def asking(requests: Any = None, state: Any = None) -> Mapping[str, Buffer]:
    """A result that asks."""
    said = {"inputRequests": requests, "requestState": state}
    members = {key: json.dumps(value).encode() for key, value in said.items() if value is not None}
    return {"resultType": b'"input_required"', **members}


def asked_of(arrival: RawResponse) -> InputRequired:
    asked = read_input_required(arrival)
    assert asked is not None
    return asked


@pytest.mark.parametrize(
    "arrival",
    [
        DONE,
        {"resultType": b'"complete"', "inputRequests": b"{}"},
        {"resultType": b"7"},
        SpooledFrame(Path("never read"), 1, b"", b""),
    ],
)
def test_a_result_asks_nothing(arrival: RawResponse) -> None:
    assert read_input_required(arrival) is None


def test_what_a_server_asks_is_read_and_kept_as_it_wrote_it() -> None:
    raw = b'{"k": {"method":"roots/list"}, "l":{"params":{"a":1},"method":"vendor/odd","extra":1.0}}'
    asked = asked_of({"resultType": b'"input_required"', "inputRequests": raw, "requestState": b'"\\u0061"'})
    assert {key: request["method"] for key, request in asked.requests.items()} == {"k": "roots/list", "l": "vendor/odd"}
    assert asked.requests["l"]["params"] == {"a": 1}
    assert asked.state == {"state": "a"}
    assert asked.raw == raw
    assert asked_of(asking()) == InputRequired({}, None, None)


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
def test_what_is_asked_in_no_form_of_the_protocols_is_the_servers_fault(member: str, raw: bytes) -> None:
    with pytest.raises(UpstreamError, match="does not conform to MCP"):
        read_input_required({"resultType": b'"input_required"', member: raw})


async def test_a_client_is_asked_live_until_the_server_has_all_it_needs() -> None:
    first = asking({"a": question("name?"), "b": question("age?")}, "one")
    server = Server([asking({"c": question("sure?")}), DONE])
    client = Client(answers={"name?": {"action": "accept", "content": {"n": 1.5}}, "age?": {"x": None}}, together=2)
    with anyio.fail_after(BOUND):
        assert await complete_live(asked_of(first), ORDER, client, server.answer, MOST) == DONE
    assert sorted(params["message"] for _, params in client.asked) == ["age?", "name?", "sure?"]
    assert server.sent == [
        {
            "inputResponses": {"a": {"action": "accept", "content": {"n": 1.5}}, "b": {"x": None}},
            "requestState": "one",
        },
        {"inputResponses": {"c": {"action": "decline"}}},
    ]


async def test_a_server_that_asks_nothing_is_only_called_again() -> None:
    server = Server([asking(state="two"), DONE])
    client = Client()
    with anyio.fail_after(BOUND):
        assert await complete_live(asked_of(asking({}, "one")), ORDER, client, server.answer, MOST) == DONE
    assert server.sent == [{"requestState": "one"}, {"requestState": "two"}]
    assert client.asked == []


async def test_a_server_that_never_stops_asking_is_left() -> None:
    server = Server([asking({"a": question("again?")})] * (MOST + 1))
    with (
        anyio.fail_after(BOUND),
        pytest.raises(UpstreamError, match=rf"more than `limits.max_questions_per_call` \({MOST}\) times"),
    ):
        await complete_live(asked_of(asking({"a": question("?")})), ORDER, Client(), server.answer, MOST)
    assert len(server.sent) == MOST


async def test_what_the_client_refuses_ends_the_call_and_its_other_questions() -> None:
    refused = RefusedError("told", -1, "No", {"why": 1})
    asked = asked_of(asking({"a": question("no?"), "b": question("other?")}))
    client = Client(answers={"no?": refused}, together=2)
    server = Server([])
    with anyio.fail_after(BOUND), pytest.raises(RefusedError) as raised:
        await complete_live(asked, ORDER, client, server.answer, MOST)
    assert raised.value is refused
    assert server.sent == []


@pytest.mark.parametrize(("method", "needed"), [*CAPABILITY_OF.items(), ("vendor/odd", "vendor/odd")])
async def test_a_client_that_lacks_a_capability_hears_which(method: str, needed: str) -> None:
    client = Client(Caller("me", capabilities={key: {} for key in ALL if key != needed}))
    with anyio.fail_after(BOUND), pytest.raises(RefusedError, match=f"`{needed}`") as raised:
        await complete_live(asked_of(asking({"a": question("?", method)})), ORDER, client, Server([]).answer, MOST)
    assert raised.value.code == types.MISSING_REQUIRED_CLIENT_CAPABILITY == -32021
    assert raised.value.data == {"requiredCapabilities": {needed: {}}}
    assert client.asked == []


Send = Callable[[ClientChannel], Awaitable[RawResponse]]


@asynccontextmanager
async def holding(seconds: float = BOUND) -> AsyncIterator[SuspendedCalls]:
    """Held calls; all have come to their end when this does."""
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as tasks:
            yield SuspendedCalls(tasks, seconds)


def asker(*messages: str) -> tuple[Send, list[Mapping[str, Any]]]:
    """A server that asks these one after another before it answers, and what it is answered."""
    answers: list[Mapping[str, Any]] = []

    async def send(channel: ClientChannel) -> RawResponse:
        for message in messages:
            answer = await channel.request("elicitation/create", {"message": message})
            answers.append(answer)
        return DONE

    return send, answers


def modern(namespace: str = "me") -> Client:
    return Client(Caller(namespace, capabilities=ALL))


def again(asked: RawResponse | InputRequired, answers: Any) -> InputRound:
    """What a client brings that comes back."""
    assert isinstance(asked, InputRequired)
    return InputRound(json.dumps(answers).encode(), asked.state or {})


def reply_to(asked: RawResponse | InputRequired, **answer: Any) -> InputRound:
    assert isinstance(asked, InputRequired)
    return again(asked, dict.fromkeys(asked.requests, answer))


async def test_a_call_of_a_server_that_asks_nothing_is_a_call() -> None:
    send, _ = asker()
    async with holding() as held:
        assert await held.begin(modern(), send) == DONE


async def test_a_call_is_held_while_the_client_fetches_answers() -> None:
    send, answers = asker("name?", "sure?")
    client = modern()
    async with holding() as held:
        first = await held.begin(client, send)
        assert isinstance(first, InputRequired)
        (name,) = first.requests
        assert first.requests[name] == {"method": "elicitation/create", "params": {"message": "name?"}}
        second = await held.resume(reply_to(first, action="accept"), modern())
        assert isinstance(second, InputRequired)
        assert second.state == first.state
        assert name not in second.requests
        assert await held.resume(reply_to(second, n=1), modern()) == DONE
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(RefusedError, match="is over") as over:
            await held.resume(reply_to(second), modern())
        assert (over.value.code, over.value.data) == (types.INVALID_PARAMS, {"reason": "invalid_request_state"})
    assert answers == [{"action": "accept"}, {"n": 1}]
    assert client.asked == []


async def test_questions_that_were_not_answered_are_asked_again() -> None:
    async def send(channel: ClientChannel) -> RawResponse:
        async with anyio.create_task_group() as tasks:
            for message in ("one?", "two?"):
                tasks.start_soon(channel.request, "elicitation/create", {"message": message})
        return DONE

    async with holding() as held:
        first = await held.begin(modern(), send)
        assert isinstance(first, InputRequired)
        one, two = first.requests
        second = await held.resume(again(first, {one: {}, "unknown": {}}), modern())
        assert isinstance(second, InputRequired)
        assert list(second.requests) == [two]
        assert await held.resume(reply_to(second), modern()) == DONE


async def test_to_the_server_a_held_call_is_its_client_whichever_request_waits() -> None:
    seen: list[Any] = []
    may_end = anyio.Event()

    async def send(channel: ClientChannel) -> RawResponse:
        seen.append((channel.caller, channel.log_level, channel.wants_progress, channel.session_channel))
        await channel.notify("m", {"at": 1})
        with anyio.CancelScope() as meanwhile:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(channel.request, "roots/list", {})
                await may_end.wait()
                await channel.notify("m", {"at": 2})  # nobody waits: the question has gone out
                meanwhile.cancel()
        await channel.request("roots/list", {})
        await channel.notify("m", {"at": 3})
        return DONE

    first, second = modern(), modern()
    async with holding() as held:
        asked = await held.begin(first, send)
        may_end.set()
        await anyio.wait_all_tasks_blocked()
        asked = await held.resume(again(asked, {}), second)
        assert await held.resume(reply_to(asked), second) == DONE
    assert seen == [(first.caller, "notice", True, None)]
    assert (first.told, second.told) == ([("m", {"at": 1})], [("m", {"at": 3})])


@pytest.mark.parametrize("comes_back", ["at once", "later"])
async def test_a_server_that_fails_fails_the_call_that_waits_for_it(comes_back: str) -> None:
    async def send(channel: ClientChannel) -> RawResponse:
        if comes_back == "later":
            await channel.request("roots/list", {})
        raise UpstreamError("It fell over.")

    async with holding() as held:
        with pytest.raises(UpstreamError, match="It fell over"):
            await held.resume(reply_to(await held.begin(modern(), send)), modern())


async def test_a_question_that_nobody_answers_is_refused_in_time_and_its_call_is_over() -> None:
    refused: list[RefusedError] = []

    async def send(channel: ClientChannel) -> RawResponse:
        try:
            await channel.request("roots/list", {})
        except RefusedError as error:
            refused.append(error)
            raise
        return DONE

    async with holding(0.05) as held:
        asked = await held.begin(modern(), send)
    assert [error.code for error in refused] == [types.REQUEST_TIMEOUT]
    with pytest.raises(RefusedError, match="is over"):
        await held.resume(reply_to(asked), modern())


async def test_who_comes_back_a_little_too_late_hears_why() -> None:
    given_up = anyio.Event()

    async def send(channel: ClientChannel) -> RawResponse:
        try:
            await channel.request("roots/list", {})
        except RefusedError:
            given_up.set()
        await anyio.sleep_forever()
        return DONE

    async with holding(0.5) as held:
        asked = await held.begin(modern(), send)
        await given_up.wait()
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(UpstreamError, match="not answered in time"):
            await held.resume(reply_to(asked), modern())


async def test_a_held_call_is_its_own_namespaces() -> None:
    send, answers = asker("secret?")
    async with holding() as held:
        asked = await held.begin(modern(), send)
        with pytest.raises(RefusedError, match="is over, or another gateway process runs it"):
            await held.resume(reply_to(asked, stolen=True), modern("somebody else"))
        assert await held.resume(reply_to(asked, mine=True), modern()) == DONE
    assert answers == [{"mine": True}]


@pytest.mark.parametrize("state", [{}, {"held": "made up"}, {"state": "x"}])
async def test_a_state_of_no_held_call_is_refused(state: dict[str, str]) -> None:
    async with holding() as held:
        with pytest.raises(RefusedError, match="Make the call again"):
            await held.resume(InputRound(b"{}", state), modern())


@pytest.mark.parametrize("answers", [[], 5, {"a": 5}, "x"])
async def test_answers_that_cannot_be_read_are_refused_and_the_call_goes_on(answers: Any) -> None:
    send, _ = asker("?")
    async with holding() as held:
        asked = await held.begin(modern(), send)
        with pytest.raises(RefusedError, match="inputResponses") as refused:
            await held.resume(again(asked, answers), modern())
        assert refused.value.code == types.INVALID_PARAMS
        assert await held.resume(reply_to(asked), modern()) == DONE


async def test_no_more_calls_are_held_than_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_mirror.upstreams.elicitation._MAX_SUSPENDED", 2)
    async with holding() as held:
        asked = [await held.begin(modern(), asker("?")[0]) for _ in range(2)]
        with pytest.raises(UpstreamError, match="2 calls already wait for answers of users"):
            await held.begin(modern(), asker()[0])
        assert await held.resume(reply_to(asked[0]), modern()) == DONE
        await anyio.wait_all_tasks_blocked()
        assert await held.begin(modern(), asker()[0]) == DONE
        assert await held.resume(reply_to(asked[1]), modern()) == DONE


async def test_a_caller_that_leaves_takes_its_call_with_it_and_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_mirror.upstreams.elicitation._MAX_SUSPENDED", 1)
    began, left = anyio.Event(), anyio.Event()

    async def send(_: ClientChannel) -> RawResponse:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            left.set()
        return DONE

    async with holding(60) as held:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(held.begin, modern(), send)
            await began.wait()
            tasks.cancel_scope.cancel()
        await left.wait()
        await anyio.wait_all_tasks_blocked()
        assert await held.begin(modern(), asker()[0]) == DONE


async def test_of_two_that_come_back_with_the_same_answers_the_later_gets_the_result() -> None:
    may_end = anyio.Event()
    refused: list[str] = []

    async def send(channel: ClientChannel) -> RawResponse:
        await channel.request("roots/list", {})
        await may_end.wait()
        return DONE

    async with holding() as held, anyio.create_task_group() as tasks:
        asked = await held.begin(modern(), send)

        async def come_back_early() -> None:
            try:
                await held.resume(reply_to(asked), modern())
            except RefusedError as error:
                refused.append(str(error))

        tasks.start_soon(come_back_early)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(set_when_idle, may_end)
        assert await held.resume(reply_to(asked), modern()) == DONE
    assert refused == ["The client sent this request again. The later request gets the answer."]


async def set_when_idle(event: anyio.Event) -> None:
    await anyio.wait_all_tasks_blocked()
    event.set()


async def test_a_large_result_is_its_callers_to_discard(tmp_path: Path) -> None:
    path = tmp_path / "frame"
    path.write_bytes(b"{}")

    async def send(_: ClientChannel) -> RawResponse:
        return SpooledFrame(path, 2, b"{}", b"{}")

    async with holding() as held:
        assert isinstance(await held.begin(modern(), send), SpooledFrame)
    assert path.exists()


async def test_a_large_result_that_nobody_fetches_is_discarded(tmp_path: Path) -> None:
    path = tmp_path / "frame"
    path.write_bytes(b"{}")

    may_answer = anyio.Event()

    async def send(channel: ClientChannel) -> RawResponse:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.request, "roots/list", {})
            await may_answer.wait()
            tasks.cancel_scope.cancel()  # the server takes its question back
        return SpooledFrame(path, 2, b"{}", b"{}")

    async with holding(0.05) as held:
        assert isinstance(await held.begin(modern(), send), InputRequired)
        may_answer.set()
    assert not path.exists()


async def test_a_call_whose_server_is_taken_away_ends_with_a_word() -> None:
    ended: list[str] = []
    with anyio.fail_after(60):
        async with anyio.create_task_group() as client, anyio.create_task_group() as servers:
            calls = SuspendedCalls(servers, 60)

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


async def test_a_call_that_fails_in_an_unforeseen_way_costs_itself_alone() -> None:
    async with anyio.create_task_group() as tasks:
        calls = SuspendedCalls(tasks, 0.05)

        async def breaks(_channel: ClientChannel) -> RawResponse:
            raise LookupError

        with anyio.fail_after(60), pytest.raises(UpstreamError, match="failed within the gateway"):
            await calls.begin(Client(), breaks)

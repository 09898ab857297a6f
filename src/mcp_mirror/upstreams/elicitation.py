"""A server's questions to the user, between the eras.

A 2025-era server asks while a call is under way; a 2026-era one answers the call with what it needs and is called
again with the answers. A client of either era can be before a server of either: what one asks live is held until the
other comes back with the answer, and what one wants answered with a new call is asked of the other live.
"""

import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NotRequired, TypedDict

import anyio
import mcp_types as types
import msgspec
from anyio.abc import TaskGroup

from mcp_mirror.callers import CAPABILITY_OF, Caller, ClientChannel
from mcp_mirror.errors import RefusedError, UpstreamError, summarize_traceback
from mcp_mirror.payload.json_rpc import is_input_required, join, object_of, open_object
from mcp_mirror.payload.spool import SpooledFrame
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.fields import rebuild_request
from mcp_mirror.upstreams.notifications import asks_too_often
from mcp_mirror.upstreams.session import UpstreamRequest
from mcp_mirror.upstreams.transports.payloads import RawResponse

log = logging.getLogger(__name__)

_ROUND: Final = "round"
"""The state's member that counts the rounds of a call."""
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 0.25
_GIVEN_UP: Final = "The call was given up: its question was not answered in time, or its server is gone."
_MAX_HELD: Final = 1000
"""Calls that wait for an answer at one time."""


@dataclass(frozen=True, slots=True)
class InputRequired:
    """What a server needs of the user before it can answer."""

    requests: Mapping[str, Any]
    """By keys of the server's: each a `method` and its `params`."""
    state: Mapping[str, str] | None
    """What it, or we, must have back with the answers."""
    raw: Buffer | None = None
    """The requests as the server wrote them."""


class _Request(TypedDict):
    """One of them, as far as it is read; what else it holds is in the raw text."""

    method: str
    params: NotRequired[dict[str, Any] | None]


@dataclass(frozen=True, slots=True)
class InputRound:
    """What a client brings when it comes back with answers."""

    answers: Buffer
    """By the keys of the requests, a JSON object."""
    state: Mapping[str, str]


def read_asked(arrival: RawResponse) -> InputRequired | None:
    """The questions in a result; None where it is one.

    Raises:
        UpstreamError: They cannot be read.
    """
    if not isinstance(arrival, Mapping) or not is_input_required(arrival):
        return None
    try:
        requests = msgspec.json.decode(arrival.get("inputRequests", b"{}"), type=dict[str, _Request])
        state = msgspec.json.decode(arrival.get("requestState", b"null"), type=str | None)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise UpstreamError("The server asks for input in a form that is not the protocol's.") from None
    return InputRequired(requests, None if state is None else {"state": state}, arrival.get("inputRequests"))


def veiled(asked: InputRequired) -> InputRequired:
    """Requests in our own keys, rebuilt, where values are hidden. The sealed state keeps the keys of the upstream.

    Raises:
        RefusedError: The client's model would answer one.
    """
    requests = {
        f"question-{number}": {
            "method": one["method"],
            "params": rebuild_request(one["method"], one.get("params") or {}),
        }
        for number, one in enumerate(asked.requests.values(), 1)
    }
    return InputRequired(requests, {**(asked.state or {}), _KEYS: json.dumps(list(asked.requests))})


def unveiled(again: InputRound) -> InputRound:
    """The answers under the upstream's own keys."""
    if _KEYS not in again.state:
        return again
    keys = {f"question-{number}": key for number, key in enumerate(json.loads(again.state[_KEYS]), 1)}
    answers = open_object(again.answers) or {}
    named = {keys[key]: raw for key, raw in answers.items() if key in keys}
    state = {key: value for key, value in again.state.items() if key != _KEYS}
    return InputRound(join(object_of(named)), state)


_KEYS: Final = "keys"
"""The state's member that has the upstream's own keys of what it asks."""


async def ask_live(
    asked: InputRequired,
    order: UpstreamRequest,
    channel: ClientChannel,
    send: Callable[[UpstreamRequest], Awaitable[RawResponse]],
    most: int,
) -> RawResponse:
    """Ask a client of the 2025 era all that a server wants to know, and call the server again, until it answers.

    Raises:
        RefusedError: The client cannot answer, or has answered with an error.
        UpstreamError: The server asks more than `most` times.
    """
    pause = _FIRST_PAUSE
    questions: InputRequired | None = asked
    for _ in range(most):
        assert questions is not None  # noqa: S101  # the loop's condition
        check_capabilities(channel.caller, questions)
        if questions.requests:
            answers: dict[str, Any] | None = await _answers_of(questions.requests, channel)
        else:
            answers = None
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        state = (questions.state or {}).get("state")
        arrival = await send(order.with_params(inputResponses=answers, requestState=state))
        if (questions := read_asked(arrival)) is None:
            return arrival
    raise UpstreamError(f"The server {asks_too_often(most)}")


def next_round(asked: InputRequired, again: InputRound | None, most: int) -> InputRequired:
    """Questions for a client of the 2026 era, with the number of the round in their state.

    Raises:
        UpstreamError: The server asks more than `most` times.
    """
    number = 1 + int((again.state.get(_ROUND) if again else None) or 0)
    if number > most:
        raise UpstreamError(f"The server {asks_too_often(most)}")
    return replace(asked, state={**(asked.state or {}), _ROUND: str(number)})


async def _answers_of(requests: Mapping[str, Any], channel: ClientChannel) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    failed: list[RefusedError] = []

    async def ask(key: str, request: Mapping[str, Any]) -> None:
        try:
            answers[key] = dict(await channel.request(request["method"], _as_of_2025(request.get("params") or {})))
        except RefusedError as error:
            failed.append(error)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for key, request in requests.items():
            tasks.start_soon(ask, key, request)
    if failed:
        raise failed[0]
    return answers


def _as_of_2025(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """A question as its older era has it: that to open a URL has an id there, which the newer one has dropped."""
    if params.get("mode") != "url" or "elicitationId" in params:
        return params
    return {**params, "elicitationId": secrets.token_urlsafe(16)}


def check_capabilities(caller: Caller, asked: InputRequired) -> None:
    """Raises `RefusedError`, as the protocol has it, where a client has not declared that it takes what is asked."""
    for request in asked.requests.values():
        if not caller.can_answer(method := request["method"]):
            needed = CAPABILITY_OF.get(method, method)
            said = f"The tool needs a client that has the capability `{needed}`."
            data: Mapping[str, Any] = {"requiredCapabilities": {needed: {}}}
            raise RefusedError(said, types.MISSING_REQUIRED_CLIENT_CAPABILITY, said, data)


@dataclass(slots=True)
class _Question:
    method: str
    params: Mapping[str, Any]
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: Mapping[str, Any] | None = None


class SuspendedCall:
    """A call under way that outlives the request which began it: to the server it is the client."""

    def __init__(self, channel: ClientChannel, seconds: float) -> None:
        self.id = secrets.token_urlsafe(16)
        self.scope = anyio.CancelScope()
        self.is_let_go = anyio.Event()
        """Set once nobody will come back for it: the client has the outcome, or has left."""
        self.caller = channel.caller
        self.log_level = channel.log_level
        self.wants_progress = channel.wants_progress
        self.session_channel = channel.session_channel
        self._seconds = seconds
        self._present: ClientChannel | None = channel
        self._open: dict[str, _Question] = {}
        self._asked = 0
        self._outcome: RawResponse | UpstreamError | None = None
        self._is_taken = False
        self._notifier = anyio.Event()

    @property
    def is_waiting(self) -> bool:
        """Whether a request of the client's waits for what comes next."""
        return self._present is not None

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Pass a notification on to the request that waits now; while none does, it is dropped."""
        if self._present is not None:
            await self._present.notify(method, params)

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Wait until the client has come back with the answer.

        Raises:
            RefusedError: It has not, in time.
        """
        self._asked += 1
        key, question = f"question-{self._asked}", _Question(method, params)
        self._open[key] = question
        self._wake()
        try:
            with anyio.move_on_after(self._seconds):
                await question.answered.wait()
        finally:
            self._open.pop(key, None)
        if question.answer is None:
            self.scope.cancel()
            said = f"The client has not answered within {self._seconds:g} s."
            raise RefusedError(said, types.REQUEST_TIMEOUT, said)
        return question.answer

    def answer(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        """Give the server the answers that a client has brought."""
        for key, answer in answers.items():
            if question := self._open.pop(key, None):
                question.answer = answer
                question.answered.set()

    def finish(self, outcome: RawResponse | UpstreamError) -> None:
        """The server has answered the call, or failed."""
        self._outcome = outcome
        self._wake()

    def discard(self) -> None:
        """A result for which nobody has come is no use any more."""
        if isinstance(self._outcome, SpooledFrame) and not self._is_taken:
            self._outcome.discard()

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come."""
        return self._outcome is not None

    def _wake(self) -> None:
        self._notifier.set()
        self._notifier = anyio.Event()

    async def wait(self, channel: ClientChannel) -> RawResponse | InputRequired:
        """What comes next: the result, or questions. A caller that leaves before takes the call with it.

        Raises:
            UpstreamError: The call failed, or its caller has come again, and that request gets the answer.
        """
        self._present = channel
        self._wake()
        try:
            while self._present is channel and self._outcome is None and not self._open:
                await self._notifier.wait()
        except anyio.get_cancelled_exc_class():
            if self._present is channel:
                self.scope.cancel()
                self.is_let_go.set()
            raise
        if self._present is not channel:
            said = "This was sent again meanwhile: the later request gets the answer."
            raise RefusedError(said, types.INVALID_REQUEST, said)
        self._present = None
        if self._open:  # first, where the result is there too: a question may be about another call than it seems
            requests = {key: {"method": open_.method, "params": open_.params} for key, open_ in self._open.items()}
            return InputRequired(requests, {"held": self.id})
        self._is_taken = True
        self.is_let_go.set()
        assert self._outcome is not None  # noqa: S101  # the loop's condition
        if isinstance(self._outcome, UpstreamError):
            raise self._outcome
        return self._outcome


class SuspendedCalls:
    """The calls to one upstream that wait for a client's answers."""

    def __init__(self, tasks: TaskGroup, seconds: float) -> None:
        """Hold none yet.

        Args:
            tasks: Held calls run in tasks of its own.
            seconds: How long a question waits for its answer.
        """
        self._tasks = tasks
        self._seconds = seconds
        self._calls: dict[str, SuspendedCall] = {}

    async def begin(
        self, channel: ClientChannel, send: Callable[[ClientChannel], Awaitable[RawResponse]]
    ) -> RawResponse | InputRequired:
        """Call a server that may ask while the call is under way.

        Raises:
            UpstreamError: The call failed, or too many are held.
        """
        if len(self._calls) >= _MAX_HELD:
            raise UpstreamError(f"{_MAX_HELD} calls wait for answers of users already. Try again later.")
        call = SuspendedCall(channel, self._seconds)
        self._calls[call.id] = call
        self._tasks.start_soon(self._run, call, send)
        return await call.wait(channel)

    async def resume(self, again: InputRound, channel: ClientChannel) -> RawResponse | InputRequired:
        """Go on with a call whose client has come back.

        Raises:
            RefusedError: There is no such call (any more), or the answers cannot be read.
        """
        call = self._calls.get(again.state.get("held", ""))
        if call is None or call.caller.namespace != channel.caller.namespace:
            said = "The call that this answers is over, or is held by another server. Make the call anew."
            raise RefusedError(said, types.INVALID_PARAMS, said, {"reason": "invalid_request_state"})
        try:
            call.answer(msgspec.json.decode(again.answers, type=dict[str, dict[str, Any]]))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            said = "`inputResponses` must be an object with an object for each request that was made."
            raise RefusedError(said, types.INVALID_PARAMS, said) from None
        return await call.wait(channel)

    async def _run(self, call: SuspendedCall, send: Callable[[ClientChannel], Awaitable[RawResponse]]) -> None:
        try:
            with call.scope:
                call.finish(await send(call))
        except UpstreamError as error:
            call.finish(error)
        except Exception as error:  # noqa: BLE001  # it must cost this call alone
            log.error("a held call failed: %s", summarize_traceback(error))  # noqa: TRY400  # no values
            call.finish(UpstreamError("The call failed within the gateway."))
        finally:
            if not call.is_over:
                call.finish(
                    UpstreamError(
                        "The call was given up: its question was not answered in time, or its server is gone."
                    )
                )
        with anyio.move_on_after(self._seconds):
            await call.is_let_go.wait()
        del self._calls[call.id]
        call.discard()

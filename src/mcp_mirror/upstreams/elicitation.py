"""Elicitation, sampling and roots requests of servers, translated between protocol versions.

A 2025-11-25 server sends such requests while a call is in flight. A 2026-07-28 server answers the call with the input
that it requires, and the client repeats the call with the answers. The gateway connects clients and servers of either
version: it suspends a call until a 2026-07-28 client brings the answers, and sends the input requests of a 2026-07-28
server to a 2025-11-25 client.
"""

import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Generic, NotRequired, TypedDict, TypeVar

import anyio
import mcp_types as types
import msgspec
from anyio.abc import TaskGroup
from mcp_types.methods import validate_server_result
from pydantic import ValidationError

from mcp_mirror.callers import CAPABILITY_OF, Caller, ClientChannel
from mcp_mirror.errors import RefusedError, UpstreamError, summarize_traceback
from mcp_mirror.payload.json_bounds import MAX_INPUT_VALUES, estimate_memory, has_more_values
from mcp_mirror.payload.json_rpc import decode_as, is_input_required, object_of, open_object
from mcp_mirror.payload.spool import SpooledFrame
from mcp_mirror.security.rate_limits import explain_too_many_requests
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.client_backlog import REQUEST_COPIES, BacklogPart, ClientBacklog
from mcp_mirror.upstreams.content_filter import is_filtered, refuse_sampling
from mcp_mirror.upstreams.rebuilt_messages import rebuild_request
from mcp_mirror.upstreams.transports.requests import RawResponse
from mcp_mirror.upstreams.upstream_request import UpstreamRequest

_logger = logging.getLogger(__name__)

_ROUND: Final = "round"
"""The member of the state that counts the input requests of a call."""
_KEYS: Final = "keys"
"""The member of the state that has the upstream's own keys of its input requests."""
_FIRST_DELAY: Final = 0.05
_LONGEST_DELAY: Final = 0.25
_MAX_SUSPENDED: Final = 1000
"""Suspended calls of one upstream, or of all scripts."""
_MAX_OF_PRINCIPAL: Final = 250
"""Those of one principal for which no request waits now, so that it leaves room for others: a call that has ended stays
until its client fetches the outcome."""
_NOT_CONFORMING: Final = "requests input in a form that does not conform to MCP"
"""The part of an error that follows the name of an upstream."""
_MODERN: Final = "2026-07-28"
_TOO_MANY: Final = f"more than {MAX_INPUT_VALUES:,} members and items"
_ABANDONED: Final = "The call was ended: its input request was not answered in time, or its server is gone."


_Outcome = TypeVar("_Outcome")


class InputRequired(msgspec.Struct, frozen=True):
    """The input that a server requires before it can answer a call."""

    requests: Mapping[str, Any]
    """Requests by the server's keys, each with `method` and `params`."""
    state: Mapping[str, str] | None
    """The state that must come back with the answers, of the server or of the gateway."""
    raw: Buffer | None = None
    """The requests as the server wrote them."""


class _InputRequest(TypedDict):
    """The members of an input request that the gateway reads; others stay in the raw text."""

    method: str
    params: NotRequired[dict[str, Any] | None]


class InputRound(msgspec.Struct, frozen=True):
    """The answers with which a client repeats a call."""

    answers: Buffer
    """A JSON object: answers by the keys of the requests."""
    state: Mapping[str, str]


def _hide_input_required(required: InputRequired) -> InputRequired:
    """Rebuild the requests of an upstream whose content is hidden, under the gateway's own keys.

    The sealed state keeps the keys of the upstream; see `restore_keys`.

    Raises:
        RefusedError: The client's model would read a request.
    """
    requests = {
        f"question-{number}": {
            "method": request["method"],
            "params": rebuild_request(request["method"], request.get("params") or {}),
        }
        for number, request in enumerate(required.requests.values(), 1)
    }
    return InputRequired(requests, {**(required.state or {}), _KEYS: json.dumps(list(required.requests))})


def restore_keys(answered: InputRound) -> InputRound:
    """Return the answers under the upstream's own keys; see `_hide_input_required`."""
    if _KEYS not in answered.state:
        return answered
    keys = {f"question-{number}": key for number, key in enumerate(json.loads(answered.state[_KEYS]), 1)}
    answers = open_object(answered.answers) or {}
    named = {keys[key]: raw for key, raw in answers.items() if key in keys}
    state = {key: value for key, value in answered.state.items() if key != _KEYS}
    return InputRound(b"".join(object_of(named)), state)


class InputRounds:
    """The input that an upstream with protocol version 2026-07-28 requires, on its way to clients."""

    def __init__(self, upstream: str, limit: int, backlog: ClientBacklog) -> None:
        """Take the name of the upstream, the most input requests in a call, and the memory for those that wait."""
        self._upstream = upstream
        self._limit = limit
        self._backlog = backlog

    def read(self, response: RawResponse) -> InputRequired | None:
        """Return the input that a result requires; None for a complete result.

        Raises:
            UpstreamError: The input requests cannot be read, or there is neither a request nor a state.
        """
        if not isinstance(response, dict) or not is_input_required(response):
            return None
        raw = response.get("inputRequests")
        try:
            requests = msgspec.json.decode(raw or b"{}", type=dict[str, _InputRequest])
            state = msgspec.json.decode(response.get("requestState", b"null"), type=str | None)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise UpstreamError(f"Upstream {self._upstream!r} {_NOT_CONFORMING}.") from None
        if not requests and state is None:  # a repeated call would be the same one
            raise UpstreamError(
                f"Upstream {self._upstream!r} {_NOT_CONFORMING}: neither `inputRequests` nor `requestState`."
            )
        return InputRequired(requests, None if state is None else {"state": state}, raw)

    def return_to_client(
        self, required: InputRequired, answered: InputRound | None, channel: ClientChannel
    ) -> InputRequired:
        """Return the requests for a 2026-07-28 client, which may have `answered` others in this call.

        The state contains the number of requests in this call.

        Raises:
            RefusedError: The client lacks a capability, or its model would read a request with hidden content.
            UpstreamError: The upstream makes too many requests, or one does not conform to MCP.
        """
        _check_client(channel, required)
        if has_more_values(required.raw or b"", MAX_INPUT_VALUES):
            raise UpstreamError(f"Upstream {self._upstream!r} requests input with {_TOO_MANY}.")
        before = answered.state.get(_ROUND) if answered else None
        number = self._count(required, int(before or 0))
        counted = msgspec.structs.replace(required, state={**(required.state or {}), _ROUND: str(number)})
        shown = _hide_input_required(counted) if is_filtered(channel) else counted
        for request in shown.requests.values():
            if not _conforms(request):
                raise UpstreamError(f"Upstream {self._upstream!r} {_NOT_CONFORMING}: `{request['method']}`.")
        return shown

    async def complete(
        self,
        required: InputRequired,
        request: UpstreamRequest,
        channel: ClientChannel,
        send: Callable[[UpstreamRequest], Awaitable[RawResponse]],
    ) -> RawResponse:
        """Send input requests to a 2025-11-25 client and repeat the call with the answers, until the call completes.

        Raises:
            RefusedError: The client lacks a capability, or answered with an error.
            UpstreamError: The upstream makes too many input requests, or they take too much memory.
        """
        waiting = BacklogPart(self._backlog)
        delay, number = _FIRST_DELAY, 0
        try:
            while True:
                _check_client(channel, required)
                self._take_memory(waiting, required)
                number = self._count(required, number)
                answers: bytes | None = None
                if required.requests:
                    answers = msgspec.json.encode(await _collect_answers(required.requests, channel))
                else:
                    await anyio.sleep(delay)
                    delay = min(2 * delay, _LONGEST_DELAY)
                waiting.clear()
                state = (required.state or {}).get("state")
                response = await send(request.with_answers(answers, state))
                if (following := self.read(response)) is None:
                    return response
                required = following
        finally:
            waiting.clear()

    def _count(self, required: InputRequired, before: int) -> int:
        """Return the number of input requests in a call, with those made before. A round without any counts as one."""
        number = before + max(1, len(required.requests))
        if number > self._limit:
            raise UpstreamError(f"Upstream {self._upstream!r} {explain_too_many_requests(self._limit)}")
        return number

    def _take_memory(self, waiting: BacklogPart, required: InputRequired) -> None:
        if not waiting.take(REQUEST_COPIES * estimate_memory(required.raw or b"")):
            raise UpstreamError(
                f"Requests of upstream {self._upstream!r} that wait for answers take all of "
                f"`limits.max_queued_notification_bytes` ({self._backlog.limit:,}). Answer them, or try again later."
            )


def _conforms(request: Mapping[str, Any]) -> bool:
    try:
        validate_server_result("tools/call", _MODERN, {"resultType": "input_required", "inputRequests": {"": request}})
    except ValidationError:
        return False
    return True


def _is_same_sender(one: Caller, other: Caller) -> bool:
    """Whether two requests have the same principal and the same headers for upstreams."""
    return (one.namespace, one.client_headers) == (other.namespace, other.client_headers)


async def _collect_answers(requests: Mapping[str, Any], channel: ClientChannel) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    failures: list[RefusedError] = []

    async def request_answer(key: str, request: Mapping[str, Any]) -> None:
        try:
            params: Mapping[str, Any] = request.get("params") or {}
            if params.get("mode") == "url" and "elicitationId" not in params:  # only 2025-11-25 has this id
                params = {**params, "elicitationId": secrets.token_urlsafe(16)}
            answers[key] = dict(await channel.request(request["method"], params))
        except RefusedError as error:
            failures.append(error)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for key, request in requests.items():
            tasks.start_soon(request_answer, key, request)
    if failures:
        raise failures[0]
    return answers


def _check_client(channel: ClientChannel, required: InputRequired) -> None:
    """Check that a client may get the input requests, and has declared the capabilities that they need.

    Raises:
        RefusedError: It lacks a capability, or its model would read a request with hidden content.
    """
    if is_filtered(channel):
        refuse_sampling(required.requests.values())
    for request in required.requests.values():
        if not channel.caller.can_answer(method := request["method"]):
            needed = CAPABILITY_OF.get(method, method)
            message = f"The tool needs a client that has the capability `{needed}`."
            data: Mapping[str, Any] = {"requiredCapabilities": {needed: {}}}
            raise RefusedError(message, types.MISSING_REQUIRED_CLIENT_CAPABILITY, data=data)


class _OpenRequest(msgspec.Struct):
    """A request of a server that waits for the client's answer."""

    method: str
    params: Mapping[str, Any]
    answered: anyio.Event = msgspec.field(default_factory=anyio.Event)
    answer: Mapping[str, Any] | None = None


class SuspendedCall(Generic[_Outcome]):
    """A call in flight that outlives the request that began it. To the server's session it is a client channel."""

    def __init__(self, channel: ClientChannel, timeout: float) -> None:
        """Take the channel of the first request, and the seconds that an answer may take."""
        self.id: str = secrets.token_urlsafe(16)
        self.scope: anyio.CancelScope = anyio.CancelScope()
        self.released: anyio.Event = anyio.Event()
        """Set when no further request can come for the call: the client has its outcome, or has disconnected."""
        self.caller: Caller = channel.caller
        self.log_level: str | None = channel.log_level
        self.wants_progress: bool = channel.wants_progress
        self.session_channel: ClientChannel | None = channel.session_channel
        self._timeout = timeout
        self._current: ClientChannel | None = channel
        self._open: dict[str, _OpenRequest] = {}
        self._request_count = 0
        self._outcome: _Outcome | UpstreamError | None = None
        self._is_taken = False
        self._changed = anyio.Event()

    @property
    def is_waiting(self) -> bool:
        """Whether a request of the client waits for the outcome or for input requests."""
        return self._current is not None

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Forward a notification to the request that waits, now or after the client's answer to an input request."""
        while self._current is None and self._outcome is None:
            await self._changed.wait()
        if self._current is not None:
            await self._current.notify(method, params)

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Wait until the client has come back with the answer, and return it.

        Raises:
            RefusedError: The client cannot read the request, it has too many values, or the answer did not come in
                time; then the call ends.
        """
        if has_more_values(msgspec.json.encode(params), MAX_INPUT_VALUES):
            raise RefusedError(f"The request has {_TOO_MANY}.", types.INVALID_PARAMS)
        if not _conforms({"method": method, "params": params}):
            message = f"The request does not conform to protocol version {_MODERN}: `{method}`."
            raise RefusedError(message, types.INVALID_PARAMS)
        self._request_count += 1
        key, waiting = f"question-{self._request_count}", _OpenRequest(method, params)
        self._open[key] = waiting
        self._notify_waiters()
        try:
            with anyio.move_on_after(self._timeout):
                await waiting.answered.wait()
        finally:
            self._open.pop(key, None)
        if waiting.answer is None:
            self.scope.cancel()
            raise RefusedError(f"The client has not answered within {self._timeout:g} s.", types.REQUEST_TIMEOUT)
        return waiting.answer

    def answer(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        """Give the server the client's answers."""
        for key, answer in answers.items():
            if waiting := self._open.pop(key, None):
                waiting.answer = answer
                waiting.answered.set()

    def finish(self, outcome: _Outcome | UpstreamError) -> None:
        """Set the outcome of the call."""
        self._outcome = outcome
        self._notify_waiters()

    def discard(self) -> None:
        """Delete the spool file of a result that the client did not fetch."""
        if isinstance(self._outcome, SpooledFrame) and not self._is_taken:
            self._outcome.discard()

    def _notify_waiters(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def wait(self, channel: ClientChannel) -> _Outcome | InputRequired:
        """Wait for the outcome or for input requests. A caller that disconnects during the wait ends the call.

        Raises:
            UpstreamError: The call failed, or a later request of the client waits for the outcome.
        """
        self._current = channel
        self._notify_waiters()
        try:
            while self._current is channel and self._outcome is None and not self._open:
                await self._changed.wait()
        except anyio.get_cancelled_exc_class():
            if self._current is channel:
                self.scope.cancel()
                self.released.set()
            raise
        if self._current is not channel:
            message = "The client sent this request again. The later request gets the answer."
            raise RefusedError(message, types.INVALID_REQUEST)
        self._current = None
        if self._open:  # before the result, if both are there: a request may be about another call than it seems
            requests = {key: {"method": one.method, "params": one.params} for key, one in self._open.items()}
            return InputRequired(requests, {"held": self.id})
        self._is_taken = True
        self.released.set()
        assert self._outcome is not None  # noqa: S101  # the condition of the loop
        if isinstance(self._outcome, UpstreamError):
            raise self._outcome
        return self._outcome


class SuspendedCalls(Generic[_Outcome]):
    """The calls to one upstream, or of scripts, that may be suspended until a client brings answers."""

    def __init__(self, tasks: TaskGroup, timeout: float) -> None:
        """Create an empty collection; the tasks run the calls, and an answer may take `timeout` seconds."""
        self._tasks = tasks
        self._timeout = timeout
        self._calls: dict[str, SuspendedCall[_Outcome]] = {}

    async def begin(
        self, channel: ClientChannel, send: Callable[[ClientChannel], Awaitable[_Outcome]]
    ) -> _Outcome | InputRequired:
        """Begin a call to a server that may send requests during the call.

        Raises:
            UpstreamError: The call failed, too many calls are suspended, or the upstream was stopped.
        """
        if len(self._calls) >= _MAX_SUSPENDED:
            raise UpstreamError(f"{_MAX_SUSPENDED} calls already wait for answers of users. Try again later.")
        own = (one for one in self._calls.values() if one.caller.namespace == channel.caller.namespace)
        if sum(not one.is_waiting for one in own) >= _MAX_OF_PRINCIPAL:
            reason = f"{_MAX_OF_PRINCIPAL} calls of this principal already wait for answers of users."
            raise UpstreamError(f"{reason} Answer or cancel them, or try again later.")
        call: SuspendedCall[_Outcome] = SuspendedCall(channel, self._timeout)
        try:
            self._tasks.start_soon(self._run, call, send)
        except RuntimeError:  # the task group has ended: a reload stopped the upstream
            raise UpstreamError(_ABANDONED) from None
        self._calls[call.id] = call
        return await call.wait(channel)

    async def resume(self, answered: InputRound, channel: ClientChannel) -> _Outcome | InputRequired:
        """Continue a suspended call with the client's answers.

        Raises:
            RefusedError: The call does not exist any more, or the answers cannot be read.
        """
        call = self._calls.get(answered.state.get("held", ""))
        if call is None or not _is_same_sender(call.caller, channel.caller):
            message = "The call that this answers is over, or another gateway process runs it. Make the call again."
            raise RefusedError(message, types.INVALID_PARAMS, data={"reason": "invalid_request_state"})
        if has_more_values(answered.answers, MAX_INPUT_VALUES):
            raise RefusedError(f"`inputResponses` has {_TOO_MANY}.", types.INVALID_PARAMS)
        if (answers := decode_as(answered.answers, dict[str, dict[str, Any]])) is None:
            message = "`inputResponses` must be an object with an object for each request that was made."
            raise RefusedError(message, types.INVALID_PARAMS)
        call.answer(answers)
        return await call.wait(channel)

    async def _run(self, call: SuspendedCall[_Outcome], send: Callable[[ClientChannel], Awaitable[_Outcome]]) -> None:
        outcome: _Outcome | UpstreamError = UpstreamError(_ABANDONED)
        try:
            with call.scope:
                outcome = await send(call)
        except UpstreamError as error:
            outcome = error
        except Exception as error:  # noqa: BLE001  # it must fail only this call
            _logger.error("a suspended call failed: %s", summarize_traceback(error))  # noqa: TRY400  # no values
            outcome = UpstreamError("The call failed within the gateway.")
        finally:
            call.finish(outcome)
        try:
            with anyio.move_on_after(self._timeout):
                await call.released.wait()
        finally:
            del self._calls[call.id]
            call.discard()

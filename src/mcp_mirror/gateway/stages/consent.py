"""Asks the user to allow a flow that the policy refuses, once, and reads the answer.

A client of protocol version 2025-11-25 answers while its call waits. A client of 2026-07-28 gets an elicitation request
and repeats the call with the answer; the call's sealed state names the flow, and in later rounds the allowed flow.
"""

from collections.abc import Mapping
from dataclasses import replace
from secrets import token_urlsafe
from typing import Any, Final

import msgspec

from mcp_mirror.callers import Caller, ClientChannel
from mcp_mirror.core.replies import ToolResult
from mcp_mirror.errors import DENIED_BY_USER, FlowError, RefusedError
from mcp_mirror.gateway.call import Call, Next
from mcp_mirror.gateway.input_required import build_input_required_reply, check_round
from mcp_mirror.payload.json_rpc import decode_as, open_object
from mcp_mirror.upstreams.elicitation import InputRequired, InputRound

_METHOD: Final = "elicitation/create"
_KEY: Final = "mcp-mirror/flow"
"""The key of the elicitation among the input requests of a call."""
_PENDING: Final = "flow_asked"
_GRANTED: Final = "flow_allowed"
_ONCE: Final = "flow_once"
"""Names one elicitation, or one later round: each answer counts once."""
_MAX_ANSWER: Final = 1 << 12
"""Bytes of an answer that can be a yes."""
_MAX_REMEMBERED: Final = 10_000
_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"allow": {"type": "boolean", "title": "Allow this once", "default": False}},
    "required": ["allow"],
}


class Consent(msgspec.Struct, frozen=True):
    """The user's consent that a call carries."""

    flow: str | None = None
    """The flow that the user allowed."""
    declined: str | None = None
    """The flow that the user declined."""
    input_round: InputRound | None = None
    """The input round without the members of this module."""

    @property
    def round_state(self) -> Mapping[str, str]:
        """State that carries the consent to the next round, if the upstream requires input."""
        return {} if self.flow is None else {_GRANTED: self.flow, _ONCE: token_urlsafe(12)}


class UsedConsents:
    """Remembers the answers that were used: each allows one call."""

    def __init__(self) -> None:
        self._used: dict[str, None] = {}

    def take(self, once: str) -> bool:
        """Use an answer; False if it was used before."""
        is_first = once not in self._used
        self._used[once] = None
        if len(self._used) > _MAX_REMEMBERED:
            del self._used[next(iter(self._used))]
        return is_first


class ConsentStage(msgspec.Struct, frozen=True):
    """Repeats a refused call with the user's consent."""

    used: UsedConsents
    may_ask: bool
    """Users may allow a flow (`flows.on_refusal: ask`)."""

    async def __call__(self, call: Call, call_next: Next) -> ToolResult:
        """Answer a call; if a flow is refused, ask the user and try again.

        Raises:
            FlowError: The flow is refused, and the user did not allow it.
            RefusedError: The call has the state of another call.
        """
        consent = read_consent(check_round(call.input_round, call.arguments, call.name), self.used)
        try:
            return await call_next(_add_consent(call, consent))
        except FlowError as refused:
            if consent.declined == refused.flow:
                raise decline(refused) from None
            if not self.may_ask:
                raise
            answer = await ask_consent(refused, call.channel)
        if isinstance(answer, InputRequired):
            return build_input_required_reply(answer, call.arguments, call.name)
        return await call_next(_add_consent(call, answer))


def _add_consent(call: Call, consent: Consent) -> Call:
    if consent.flow is None and consent.input_round is call.input_round:
        return call
    return replace(call, granted_flow=consent.flow, input_round=consent.input_round, round_state=consent.round_state)


def read_consent(input_round: InputRound | None, used: UsedConsents) -> Consent:
    """Return the user's consent in a call that may repeat an earlier one."""
    if input_round is None:
        return Consent()
    state = dict(input_round.state)
    pending, granted, once = (state.pop(key, None) for key in (_PENDING, _GRANTED, _ONCE))
    if pending is None and granted is None:
        return Consent(input_round=input_round)
    if once is None or not used.take(once):
        return Consent()
    if pending is not None:
        answer = (open_object(input_round.answers) or {}).get(_KEY, b"null")
        is_yes = len(answer) <= _MAX_ANSWER and _is_yes(decode_as(answer, Any))
        return Consent(flow=pending) if is_yes else Consent(declined=pending)
    return Consent(flow=granted, input_round=InputRound(input_round.answers, state))


async def ask_consent(refused: FlowError, channel: ClientChannel) -> InputRequired | Consent:
    """Ask the user.

    Returns:
        The consent, or the elicitation request if the client must repeat the call to answer it.

    Raises:
        FlowError: The user does not allow the flow, or the client cannot ask the user.
    """
    caller = channel.caller
    if not shows_forms(caller):
        raise refused
    params = {"message": refused.elicitation, "requestedSchema": _SCHEMA}
    if caller.is_stateless:
        state = {_PENDING: refused.flow, _ONCE: token_urlsafe(12)}
        return InputRequired({_KEY: {"method": _METHOD, "params": {"mode": "form", **params}}}, state)
    try:
        is_allowed = await request_consent(channel, refused.elicitation)
    except RefusedError:
        raise refused from None
    if not is_allowed:
        raise decline(refused)
    return Consent(flow=refused.flow)


async def request_consent(channel: ClientChannel, message: str) -> bool:
    """Send an elicitation request to the client, and return whether the user allows what the message describes.

    Raises:
        RefusedError: The client did not answer, or accepts no such request.
    """
    return _is_yes(await channel.request(_METHOD, {"message": message, "requestedSchema": _SCHEMA}))


def decline(refused: FlowError) -> FlowError:
    """Return the refusal, with the user's decision."""
    return FlowError(f"{refused} {DENIED_BY_USER}", refused.flow, refused.elicitation)


def shows_forms(caller: Caller) -> bool:
    """Whether the client shows forms; a client that names no modes does."""
    modes = caller.capabilities.get("elicitation")
    return isinstance(modes, Mapping) and ("form" in modes or not modes)


def _is_yes(answer: object) -> bool:
    if not isinstance(answer, Mapping) or answer.get("action") != "accept":
        return False
    content = answer.get("content")
    return isinstance(content, Mapping) and content.get("allow") is True

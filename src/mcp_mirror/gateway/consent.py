"""A refused flow as a question to the user, who may let it pass this once; and the answer read.

A client of the 2025 era is asked while it waits; one of the 2026 era gets the question and makes its call again. Then
the call's state says what was asked, and in later rounds what was allowed; nobody changes it on the way.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from secrets import token_urlsafe
from typing import Any, Final

import msgspec

from mcp_mirror.callers import Caller, ClientChannel
from mcp_mirror.core.replies import Reply
from mcp_mirror.errors import FlowError, RefusedError
from mcp_mirror.gateway.calls import ToolCall
from mcp_mirror.gateway.input_required import asked_reply, checked
from mcp_mirror.upstreams.elicitation import InputRequired, InputRound

_METHOD: Final = "elicitation/create"
_KEY: Final = "mcp-mirror/flow"
"""Of the question, among those of a call."""
_PENDING: Final = "flow_asked"
_GRANTED: Final = "flow_allowed"
_ONCE: Final = "flow_once"
"""A name for one question, or one round after it: it is answered once."""
_REMEMBERED: Final = 10_000
_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"allow": {"type": "boolean", "title": "Allow this once", "default": False}},
    "required": ["allow"],
}


@dataclass(frozen=True, slots=True)
class Consent:
    """What a call brings of the user's consent."""

    flow: str | None = None
    """What they let pass in this call."""
    declined: str | None = None
    """What they did not."""
    again: InputRound | None = None
    """The round without what is ours in it."""

    def carried(self, asked: InputRequired) -> InputRequired:
        """Questions of an upstream's, whose answers come with the same consent."""
        if self.flow is None:
            return asked
        return replace(asked, state={**(asked.state or {}), _GRANTED: self.flow, _ONCE: token_urlsafe(12)})


class UsedConsents:
    """Which answers were taken: each lets one call pass, and no other that a client makes with it."""

    def __init__(self) -> None:
        self._taken: dict[str, None] = {}

    def take(self, once: str) -> bool:
        """Whether it is taken for the first time."""
        is_first = once not in self._taken
        self._taken[once] = None
        if len(self._taken) > _REMEMBERED:
            del self._taken[next(iter(self._taken))]
        return is_first


def read_consent(again: InputRound | None, spent: UsedConsents) -> Consent:
    """What the user has said, of a call that may have been made before."""
    if again is None:
        return Consent()
    state = dict(again.state)
    pending, granted, once = (state.pop(key, None) for key in (_PENDING, _GRANTED, _ONCE))
    if pending is None and granted is None:
        return Consent(again=again)
    if once is None or not spent.take(once):
        return Consent()
    if pending is not None:
        return Consent(flow=pending) if _is_allowed(again) else Consent(declined=pending)
    return Consent(flow=granted, again=InputRound(again.answers, state))


async def with_consent(
    call: ToolCall, spent: UsedConsents, serve: Callable[[Consent], Awaitable[Reply]], *, may_ask: bool
) -> Reply:
    """What a call comes to, and where a flow is refused that users may let pass, once they have been asked.

    Args:
        call: The call.
        spent: The answers that were taken already.
        serve: Answers it, with the consent that there is.
        may_ask: Users may let a flow pass.

    Raises:
        FlowError: It is refused.
        RefusedError: The call brings the state of another.
    """
    consent = read_consent(checked(call.again, call.arguments), spent)
    try:
        return await serve(consent)
    except FlowError as refused:
        call.call_trace.rule = "flow"
        if consent.declined == refused.flow:
            raise declined(refused) from None
        if not may_ask:
            raise
        answer = await ask_consent(refused, call.channel)
    call.call_trace.rule = ""
    return asked_reply(answer, call.arguments) if isinstance(answer, InputRequired) else await serve(answer)


async def ask_consent(refused: FlowError, channel: ClientChannel) -> InputRequired | Consent:
    """Ask the user.

    Returns:
        The question, where the call must be made again to answer it.

    Raises:
        FlowError: They do not let it pass, or cannot be asked.
    """
    caller = channel.caller
    if not _can_answer(caller):
        raise refused
    params = {"message": refused.question, "requestedSchema": _SCHEMA}
    if caller.is_stateless:
        state = {_PENDING: refused.flow, _ONCE: token_urlsafe(12)}
        return InputRequired({_KEY: {"method": _METHOD, "params": {"mode": "form", **params}}}, state)
    try:
        answer = await channel.request(_METHOD, params)
    except RefusedError:
        raise refused from None
    if not _says_yes(answer):
        raise declined(refused)
    return Consent(flow=refused.flow)


def declined(refused: FlowError) -> FlowError:
    """The refusal, where the user has heard of it."""
    return FlowError(f"{refused} The user was asked, and does not allow it.", refused.flow, refused.question)


def _can_answer(caller: Caller) -> bool:
    """Whether the client shows forms; one that says nothing of modes does."""
    said = caller.capabilities.get("elicitation")
    return isinstance(said, Mapping) and ("form" in said or not said)


def _is_allowed(again: InputRound) -> bool:
    try:
        answers = msgspec.json.decode(again.answers, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return _says_yes(answers.get(_KEY))


def _says_yes(answer: object) -> bool:
    if not isinstance(answer, Mapping) or answer.get("action") != "accept":
        return False
    content = answer.get("content")
    return isinstance(content, Mapping) and content.get("allow") is True

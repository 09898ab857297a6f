"""The user's answer to a refused flow: only a clear yes allows it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from mcp_mirror.callers import Caller, NullChannel
from mcp_mirror.errors import FlowError, RefusedError
from mcp_mirror.gateway.call import Call
from mcp_mirror.gateway.input_required import read_round
from mcp_mirror.gateway.stages.consent import Consent, ConsentStage, UsedConsents, ask_consent, read_consent
from mcp_mirror.payload.json_rpc import object_of
from mcp_mirror.upstreams.elicitation import InputRequired, InputRound

if TYPE_CHECKING:
    from mcp_mirror.core.replies import ToolResult

REFUSED = FlowError("No.", "f10w", "May it?")
FORMS: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}
YES = {"action": "accept", "content": {"allow": True}}
ARGUMENTS = b'{"x": 1}'


def modern(capabilities: dict[str, Any]) -> NullChannel:
    return NullChannel(Caller("me", capabilities=capabilities))


async def refuse_once(call: Call) -> ToolResult:
    if call.granted_flow != "f10w":
        raise REFUSED
    return {"content": b"[]"}


async def asked_in_2026() -> dict[str, Any]:
    """The question, parsed."""
    call = Call(modern(FORMS), "t", ARGUMENTS)
    reply = await ConsentStage(UsedConsents(), may_ask=True)(call, refuse_once)
    parsed: dict[str, Any] = json.loads(b"".join(object_of(reply)))
    return parsed


async def test_the_question_is_a_form_of_one_yes_or_no() -> None:
    reply = await asked_in_2026()
    (question,) = reply["inputRequests"].values()
    assert question["method"] == "elicitation/create"
    assert question["params"]["message"] == "May it?"
    assert question["params"]["requestedSchema"]["required"] == ["allow"]


@pytest.mark.parametrize(
    ("answer", "allowed"),
    [
        (YES, True),
        ({"action": "accept", "content": {"allow": False}}, False),
        ({"action": "accept", "content": {"allow": "true"}}, False),
        ({"action": "accept", "content": {"allow": 1}}, False),
        ({"action": "accept", "content": None}, False),
        ({"action": "accept"}, False),
        ({"action": "decline", "content": {"allow": True}}, False),
        ({"action": "cancel"}, False),
        ("yes", False),
        (None, False),
    ],
)
async def test_only_a_clear_yes_allows_a_flow(answer: Any, allowed: bool) -> None:  # noqa: FBT001  # a table
    reply = await asked_in_2026()
    answers = {} if answer is None else dict.fromkeys(reply["inputRequests"], answer)
    again = read_round(json.dumps(answers).encode(), reply["requestState"])
    call = Call(modern(FORMS), "t", ARGUMENTS, input_round=again)
    if allowed:
        assert await ConsentStage(UsedConsents(), may_ask=True)(call, refuse_once) == {"content": b"[]"}
        return
    with pytest.raises(FlowError, match=r"No\. The user was asked, and does not allow it\."):
        await ConsentStage(UsedConsents(), may_ask=True)(call, refuse_once)


LONG_YES = b'{"mcp-mirror/flow":{"action":"accept","content":{"allow":true,"x":[%b1]}}}' % (b"1," * 5_000)


@pytest.mark.parametrize("answers", [b"[]", b"{", b'{"mcp-mirror/flow":"\xff"}', b"null", LONG_YES])
def test_unreadable_answers_do_not_allow_a_flow(answers: bytes) -> None:
    assert read_consent(InputRound(answers, {"flow_asked": "f10w", "flow_once": "1"}), UsedConsents()) == Consent(
        declined="f10w"
    )


async def test_a_yes_is_for_the_call_that_was_asked_about() -> None:
    reply = await asked_in_2026()
    again = read_round(json.dumps(dict.fromkeys(reply["inputRequests"], YES)).encode(), reply["requestState"])
    other = Call(modern(FORMS), "t", b'{"x": 2}', input_round=again)
    with pytest.raises(RefusedError):
        await ConsentStage(UsedConsents(), may_ask=True)(other, refuse_once)

    async def refuse_another(call: Call) -> ToolResult:
        assert call.granted_flow == "f10w"
        raise FlowError("Not this.", "0ther", "And this?")

    call = Call(modern(FORMS), "t", ARGUMENTS, input_round=again)
    reply = json.loads(b"".join(object_of(await ConsentStage(UsedConsents(), may_ask=True)(call, refuse_another))))
    assert "And this?" in json.dumps(reply["inputRequests"])
    with pytest.raises(FlowError):
        await ConsentStage(UsedConsents(), may_ask=False)(call, refuse_another)


def test_consent_lasts_through_input_requests_and_is_not_forwarded() -> None:
    assert Consent().round_state == {}
    carried = {"state": "s", **Consent(flow="f10w").round_state}
    assert {**carried, "flow_once": ""} == {"state": "s", "flow_allowed": "f10w", "flow_once": ""}
    assert read_consent(InputRound(b"{}", carried), UsedConsents()) == Consent(
        flow="f10w", input_round=InputRound(b"{}", {"state": "s"})
    )
    plain = InputRound(b"{}", {"state": "s"})
    assert read_consent(plain, UsedConsents()) == Consent(input_round=plain)
    assert read_consent(None, UsedConsents()) == Consent()


async def test_one_answer_lets_one_call_pass() -> None:
    reply, spent = await asked_in_2026(), UsedConsents()
    again = read_round(json.dumps(dict.fromkeys(reply["inputRequests"], YES)).encode(), reply["requestState"])
    call = Call(modern(FORMS), "t", ARGUMENTS, input_round=again)
    assert await ConsentStage(spent, may_ask=True)(call, refuse_once) == {"content": b"[]"}
    asked_again = await ConsentStage(spent, may_ask=True)(call, refuse_once)
    assert "inputRequests" in asked_again
    round_ = InputRound(b"{}", {"state": "s", **Consent(flow="f10w").round_state})
    assert read_consent(round_, spent).flow == "f10w"
    assert read_consent(round_, spent) == Consent()
    assert read_consent(InputRound(b"{}", {"flow_allowed": "f10w"}), spent) == Consent()


def test_of_the_answers_that_were_taken_the_last_are_remembered() -> None:
    spent = UsedConsents()
    assert all(spent.take(str(number)) for number in range(10_001))
    assert not spent.take("1")
    assert spent.take("0")


@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {"url": {}}}, {"elicitation": None}, {"sampling": {}}])
async def test_clients_without_forms_get_no_consent_request(capabilities: dict[str, Any]) -> None:
    with pytest.raises(FlowError, match=r"No\.$"):
        await ask_consent(REFUSED, modern(capabilities))


async def test_clients_without_elicitation_modes_show_forms() -> None:
    assert isinstance(await ask_consent(REFUSED, modern({"elicitation": {}})), InputRequired)


async def test_a_client_error_is_not_consent() -> None:
    with pytest.raises(FlowError, match=r"No\.$"):
        await ask_consent(REFUSED, NullChannel(Caller("me", is_stateless=False, capabilities=FORMS)))

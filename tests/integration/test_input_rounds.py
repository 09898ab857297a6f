"""The state between two input rounds: it comes back unchanged, and only for the same request."""

import json
from typing import Any

import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.errors import RefusedError
from mcp_mirror.gateway.input_required import build_input_required_reply, check_round, read_round
from mcp_mirror.payload.json_rpc import object_of
from mcp_mirror.upstreams.elicitation import InputRequired, InputRound

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
REQUESTS = {"a": {"method": "roots/list"}}
ARGUMENTS = b'{"q": 1.0}'
TARGET = "ask"
"""The tool that the request calls."""


def sent(asked: InputRequired, arguments: bytes = ARGUMENTS) -> dict[str, Any]:
    """What the client gets, parsed."""
    reply: dict[str, Any] = json.loads(b"".join(object_of(build_input_required_reply(asked, arguments, TARGET))))
    return reply


@given(st.sampled_from(["state", "held"]), TEXTS, st.binary(max_size=20), st.binary(max_size=20))
def test_request_state_is_accepted_only_for_the_same_arguments(
    key: str, state: str, arguments: bytes, others: bytes
) -> None:
    reply = sent(InputRequired(REQUESTS, {key: state}), arguments)
    assert (reply["resultType"], reply["inputRequests"]) == ("input_required", REQUESTS)
    again = read_round(b'{"a":{}}', reply["requestState"])
    assert again is not None
    assert (again.answers, again.state[key]) == (b'{"a":{}}', state)
    assert check_round(again, memoryview(arguments), TARGET) is again
    if others != arguments:
        with pytest.raises(RefusedError):
            check_round(again, others, TARGET)


def test_input_requests_are_forwarded_unchanged() -> None:
    raw = b'{"a": {"method":"roots/list","vendor":1e400}}'
    reply = build_input_required_reply(InputRequired(REQUESTS, None, raw), ARGUMENTS, TARGET)
    assert reply["inputRequests"] == raw
    assert "requestState" not in reply


def test_a_request_that_is_made_for_the_first_time_brings_nothing() -> None:
    assert read_round(None, None) is None
    assert check_round(None, ARGUMENTS, TARGET) is None


def test_answers_without_state_and_state_without_answers_are_rounds() -> None:
    stateless = read_round(b'{"a":{}}', None)
    assert stateless == InputRound(b'{"a":{}}', {})
    assert check_round(stateless, ARGUMENTS, TARGET) is stateless
    again = read_round(None, sent(InputRequired({}, {"state": "s"}))["requestState"])
    assert again is not None
    assert (again.answers, again.state["state"]) == (b"{}", "s")
    assert check_round(again, ARGUMENTS, TARGET) is again


@pytest.mark.parametrize(
    "state", ["", "x", "null", "[]", "5", '{"state":5}', '{"state":{}}', '{"a":' * 5000, '"\\ud800"', "\ud800", "\x00"]
)
def test_foreign_request_state_is_refused(state: str) -> None:
    with pytest.raises(RefusedError) as refused:
        read_round(b"{}", state)
    assert (refused.value.code, refused.value.data) == (types.INVALID_PARAMS, {"reason": "invalid_request_state"})


@pytest.mark.parametrize("state", ['{"state":"s"}', '{"held":"h"}', '{"held":"h","of":""}', '{"of":"x"}'])
def test_a_state_that_names_no_request_is_refused(state: str) -> None:
    with pytest.raises(RefusedError, match="Invalid or expired requestState"):
        check_round(read_round(b"{}", state), ARGUMENTS, TARGET)

"""Input-required results and the rounds that follow them (protocol version 2026-07-28).

A client of this version gets the input requests and a state, and repeats its request with answers and state. The state
names the request that it belongs to. The server seals the state, so that clients cannot change it.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Final

import mcp_types as types
import msgspec

from mcp_mirror.errors import RefusedError
from mcp_mirror.types import Buffer, Segments
from mcp_mirror.upstreams.elicitation import InputRequired, InputRound

_REQUEST: Final = "of"
"""The member of the state with the digest of the request's arguments and target."""


def build_input_required_reply(
    required: InputRequired, arguments: Buffer, target: str
) -> Mapping[str, Buffer | Segments]:
    """Return the reply that requests input: the input requests, and the state that the client returns.

    `target` is the tool that the request calls, or the upstream of a prompt or resource.
    """
    requests = required.raw if required.raw is not None else msgspec.json.encode(required.requests)
    reply: dict[str, Buffer | Segments] = {"resultType": b'"input_required"', "inputRequests": requests}
    if required.state is not None:
        state = json.dumps({**required.state, _REQUEST: _hash_call(arguments, target)})
        reply["requestState"] = msgspec.json.encode(state)
    return reply


def read_round(answers: Buffer | None, state: str | None) -> InputRound | None:
    """Return the answers (`inputResponses`, JSON text) and the `requestState` of a request; None if it has neither.

    Raises:
        RefusedError: The gateway did not make the state.
    """
    if answers is None and state is None:
        return None
    try:
        members = {} if state is None else msgspec.json.decode(state, type=dict[str, str])
    except (msgspec.DecodeError, UnicodeError):
        raise _invalid_state_error() from None
    return InputRound(b"{}" if answers is None else answers, members)


def check_round(input_round: InputRound | None, arguments: Buffer, target: str) -> InputRound | None:
    """Return the round if it belongs to a request with these arguments for this target.

    Raises:
        RefusedError: It belongs to another request.
    """
    state = input_round.state if input_round else {}
    if state and state.get(_REQUEST) != _hash_call(arguments, target):
        raise _invalid_state_error()
    return input_round


def _hash_call(arguments: Buffer, target: str) -> str:
    return hashlib.sha256(target.encode() + b"\0" + bytes(arguments)).hexdigest()


def _invalid_state_error() -> RefusedError:
    data = {"reason": "invalid_request_state"}
    return RefusedError("Invalid or expired requestState", types.INVALID_PARAMS, data=data)

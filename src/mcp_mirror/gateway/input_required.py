"""Requests that are made again to bring a client's answers: what is told between the rounds.

A client of the 2026 era gets the questions and a state, and makes the same request again with both. The state says
which request it belongs to; that nobody changes it on the way is the face's to see to.
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

_OF: Final = "of"
"""The state's member that tells which arguments the request had."""


def asked_reply(asked: InputRequired, arguments: Buffer, upstream: str = "") -> Mapping[str, Buffer | Segments]:
    """What a client gets instead of a result: the questions, and the state to bring back with the answers.

    Args:
        asked: The questions.
        arguments: Those of the request.
        upstream: Whose questions they are, where the request's name may come to mean another's.
    """
    requests = asked.raw if asked.raw is not None else msgspec.json.encode(asked.requests)
    reply: dict[str, Buffer | Segments] = {"resultType": b'"input_required"', "inputRequests": requests}
    if asked.state is not None:
        state = json.dumps({**asked.state, _OF: _digest(arguments, upstream)})
        reply["requestState"] = msgspec.json.encode(state)
    return reply


def read_round(answers: Buffer | None, state: str | None) -> InputRound | None:
    """What a request brings; None for one that is made for the first time.

    Raises:
        RefusedError: The state is none of ours.
    """
    if answers is None and state is None:
        return None
    try:
        read = {} if state is None else msgspec.json.decode(state, type=dict[str, str])
    except (msgspec.DecodeError, UnicodeError):
        raise _foreign() from None
    return InputRound(b"{}" if answers is None else answers, read)


def checked(again: InputRound | None, arguments: Buffer, upstream: str = "") -> InputRound | None:
    """The round, where it belongs to a request with these arguments, to this upstream.

    Raises:
        RefusedError: It belongs to another.
    """
    if again is not None and again.state and again.state.get(_OF) != _digest(arguments, upstream):
        raise _foreign()
    return again


def _digest(arguments: Buffer, upstream: str) -> str:
    return hashlib.sha256(upstream.encode() + b"\0" + bytes(arguments)).hexdigest()


def _foreign() -> RefusedError:
    said = "Invalid or expired requestState"
    return RefusedError(said, types.INVALID_PARAMS, said, {"reason": "invalid_request_state"})

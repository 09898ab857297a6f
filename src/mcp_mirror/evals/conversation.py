"""A conversation with a model, independent of the provider.

Only data. This module must not know how messages are sent or which calls are correct.
"""

from collections.abc import Mapping
from operator import add
from typing import Any, Final, Literal

import msgspec

CALL_TOOL: Final = "call_tool"
"""The gateway's tool that calls a tool which is not listed."""


class Tool(msgspec.Struct, frozen=True):
    """A tool as the model sees it."""

    name: str
    description: str
    schema: Mapping[str, Any]


class Call(msgspec.Struct, frozen=True):
    """A tool call that a model wrote."""

    identity: str
    name: str
    arguments: Mapping[str, Any]
    problem: str = ""
    """Why the call cannot be made, a text for the model; empty: it can."""


class User(msgspec.Struct, frozen=True):
    """A message of the user."""

    text: str


class Reply(msgspec.Struct, frozen=True):
    """A message of the model: calls or an answer; if it is neither, the message has a `problem`."""

    text: str = ""
    """The text as the model wrote it."""
    calls: tuple[Call, ...] = ()
    answer: str | None = None
    problem: str = ""
    """Why the message is neither, a text for the model."""


class Image(msgspec.Struct, frozen=True):
    """An image for the model."""

    media_type: str
    data: str
    """Base64."""


class Result(msgspec.Struct, frozen=True):
    """The result of a call as the model reads it."""

    call: Call
    text: str
    is_error: bool = False
    images: tuple[Image, ...] = ()
    """Only models that see get images; the text names them."""


Entry = User | Reply | Result


class Usage(msgspec.Struct, frozen=True):
    """Tokens as counted by an endpoint."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    """Prompt tokens that an earlier request of the same run had too. Providers bill them at a lower price."""
    steps: int = 0
    """Requests."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*map(add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))

    @property
    def total(self) -> int:
        """Tokens read and written."""
        return self.prompt + self.completion


class ReceivedCall(msgspec.Struct, frozen=True):
    """A call as the upstream received and recorded it."""

    tool: str
    arguments: Mapping[str, Any]
    result: Any


class MadeCall(msgspec.Struct, frozen=True):
    """A call of the model with its result."""

    result: Result
    received_calls: tuple[ReceivedCall, ...] = ()
    """The calls that upstreams received because of it."""
    seconds: float = 0.0

    @property
    def call(self) -> Call:
        """The call as the model wrote it."""
        return self.result.call

    @property
    def named_call(self) -> Call:
        """The call that is judged: for `call_tool`, the call of the tool that it names."""
        call, given = self.call, self.call.arguments
        name, arguments = given.get("name"), given.get("arguments", {})
        if call.name != CALL_TOOL or not isinstance(name, str) or not isinstance(arguments, Mapping):
            return call
        return Call(call.identity, name, arguments)


End = Literal["answered", "calls", "repeated", "tokens", "seconds", "malformed", "overflow", "error"]
"""Why a conversation ended: an answer (answered); a limit of the case (calls, tokens, seconds); a call that failed too
often (repeated); replies that were neither call nor answer (malformed); a full context (overflow); a failure of an
endpoint or a server, so that the run says nothing about the model (error)."""


class Transcript(msgspec.Struct, frozen=True):
    """A whole conversation."""

    entries: tuple[Entry, ...]
    made_calls: tuple[MadeCall, ...]
    end: End
    answer: str = ""
    detail: str = ""
    """The error message; empty without an error."""
    usage: Usage = msgspec.field(default_factory=Usage)
    seconds: float = 0.0

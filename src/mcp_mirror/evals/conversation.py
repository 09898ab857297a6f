"""A conversation with a model, in no provider's words.

Data alone: nothing here knows how it is sent, or what is right in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as the model sees it."""

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call that a model wrote."""

    identity: str
    name: str
    arguments: Mapping[str, Any]
    problem: str = ""
    """Why it cannot be made, for the model; empty where it can."""


@dataclass(frozen=True, slots=True)
class User:
    """What the user says."""

    text: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model says: calls, or an answer, or what is neither."""

    text: str = ""
    """As it was written, where it was written as text."""
    calls: tuple[Call, ...] = ()
    answer: str | None = None
    problem: str = ""
    """Why it is neither, for the model."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a call came to, as the model reads it."""

    call: Call
    text: str
    is_error: bool = False


Entry = User | Reply | Result


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as an endpoint counts them."""

    prompt: int = 0
    completion: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.prompt + other.prompt, self.completion + other.completion)

    @property
    def total(self) -> int:
        """Read and written."""
        return self.prompt + self.completion


@dataclass(frozen=True, slots=True)
class Witnessed:
    """A call that reached an upstream, as the upstream itself tells it."""

    tool: str
    arguments: Mapping[str, Any]
    result: Any


@dataclass(frozen=True, slots=True)
class Made:
    """A call that was made, with what came of it."""

    result: Result
    witnessed: tuple[Witnessed, ...] = ()
    seconds: float = 0.0

    @property
    def call(self) -> Call:
        """The call as the model wrote it."""
        return self.result.call


End = Literal["answered", "calls", "repeated", "tokens", "seconds", "malformed", "overflow", "error"]
"""Why a conversation ended: an answer (answered); a limit of the case (calls, tokens, seconds); one failing call again
and again (repeated); replies that were neither call nor answer (malformed); a full context (overflow); an endpoint or a
server that failed, which says nothing of the model (error)."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """A whole conversation."""

    entries: tuple[Entry, ...]
    made: tuple[Made, ...]
    """The model's calls."""
    end: End
    answer: str = ""
    detail: str = ""
    """What failed, where something did."""
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0

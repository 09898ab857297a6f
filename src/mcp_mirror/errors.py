"""Every error that we raise. A class exists only where a caller acts differently.

    MirrorError                  its message may be shown to a model or an operator as it is
    ├── ConfigError              the operator mends the file and starts again (exit code 2)
    ├── ToolError                the model can mend the call: it is answered as a tool error, `isError`
    │   └── FlowError            a value may not go where the call would take it: its user may be asked to let it
    ├── UpstreamError            an upstream did not do its part: answered as a tool error that names it
    │   └── RefusedError         a peer answered with a JSON-RPC error, which another peer may have to see as it is
    ├── StoreError               the store refused or failed: nothing was stored, no path was given out
    ├── WireError                a peer's bytes are not a message we can carry: one failed request
    ├── BusyError                too much is asked at once or a minute: the caller is told when to try again
    └── EndpointError            a model's endpoint gave no answer: asked again, or one run of an evaluation is void

A message is one or two plain sentences: what was wrong, and what to do next.
"""

import traceback
from collections.abc import Iterator
from enum import StrEnum
from math import ceil
from pathlib import PurePath
from typing import Self


class RefusalReason(StrEnum):
    """Why the gateway refused a request: the `outcome` of refusals in the audit log and in the log."""

    UNKNOWN_TOOL = "unknown tool"
    UNKNOWN_PATH = "unknown path"
    QUARANTINED = "quarantined"
    INSUFFICIENT_SCOPE = "insufficient scope"
    FLOW = "flow"
    CONTEXT_FULL = "context is full"
    BUSY = "busy"


class MirrorError(Exception):
    """The root; its message is written for its reader and holds no secret and no value."""

    reason: RefusalReason | None = None
    """Why the gateway refused the request; None if something else failed."""
    _log_message: str | None = None

    @property
    def log_message(self) -> str:
        """What a log may say of it: the message, but nothing that an upstream wrote."""
        return str(self) if self._log_message is None else self._log_message

    def with_log_message(self, words: str) -> Self:
        """The same error with other words for a log."""
        self._log_message = words
        return self


class ConfigError(MirrorError):
    """The configuration cannot be used; the message names file, line, key and what was wanted."""


class ToolError(MirrorError):
    """A call that the model can correct; the message says how."""

    def __init__(self, message: str, reason: RefusalReason | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class FlowError(ToolError):
    """A value may not go to a place; nothing of it was read."""

    def __init__(self, message: str, flow: str, question: str) -> None:
        super().__init__(message, RefusalReason.FLOW)
        self.flow = flow
        """A name for what was to go where, in whose call."""
        self.question = question
        """What to ask the user, who may let it go this once."""


class UpstreamError(MirrorError):
    """An upstream is down, timed out or broke the protocol; the message names it."""


class RefusedError(UpstreamError):
    """A peer answered a request with an error of JSON-RPC: its code, its own words, and its data."""

    def __init__(self, message: str, code: int, peer_message: str, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.peer_message = peer_message
        """What the peer said, without our words about it; no secret is in it."""
        self.data = data
        self._log_message = f"A request was refused (error {code})."


class StoreError(MirrorError):
    """The store could not keep or give a value."""


class WireError(MirrorError):
    """Bytes that are no message, or a message past a bound; the message names the byte or the bound."""


class BusyError(MirrorError):
    """Too much is asked at once, or a minute; the message names the bound."""

    def __init__(self, message: str, retry_after: float) -> None:
        """Say what is too much.

        Args:
            message: A sentence.
            retry_after: Seconds after which trying again may help.
        """
        self.retry_after = max(1, ceil(retry_after))
        """Whole seconds, 1 or more."""
        super().__init__(f"{message} Try again in {self.retry_after} s.")


class EndpointError(MirrorError):
    """A model's endpoint gave no completion; the message says what it gave."""

    def __init__(self, message: str, *, retry_after: float | None = None, is_context_exceeded: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds after which asking again may help; None where it cannot."""
        self.is_context_exceeded = is_context_exceeded
        """The conversation is longer than what the model takes."""


def unwrap_error_group(error: BaseException) -> BaseException:
    """What went wrong, without the groups that tasks put around it: of several the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def walk_causes(error: BaseException) -> Iterator[BaseException]:
    """An error, and what led to it, each once."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def summarize_traceback(error: BaseException) -> str:
    """What went wrong and where, for a log: kinds and lines of code, no message, for that may repeat a value."""
    codes = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)][-_FRAMES:]
    places = ", ".join(f"{PurePath(code.co_filename).name}:{line} {code.co_name}" for code, line in reversed(codes))
    return f"{type(error).__name__} at {places or 'no known place'}"


_FRAMES = 8
"""Lines of code that are told."""

"""The error classes of the package. A class exists only where callers handle it differently.

    MirrorError                  its message may be shown to a model or an operator
    ├── ConfigError              the operator must fix the configuration and start again (exit code 2)
    ├── ToolError                the model can fix the call: returned as a tool error, `isError`
    │   ├── ArgumentsError       arguments do not fit a function; without its message if a value is hidden
    │   └── FlowError            the flow policy forbids a flow: the user may be asked to allow it once
    ├── UpstreamError            an upstream failed: returned as a tool error that names it
    │   └── RefusedError         a peer returned a JSON-RPC error, which may have to be passed on unchanged
    ├── StoreError               the store failed or refused: nothing was stored, no path was returned
    ├── WireError                bytes of a peer are not a valid message: one failed request
    ├── BusyError                a rate or concurrency limit is reached: the message says when to retry
    └── EndpointError            a model's endpoint returned no completion: retried, or one evaluation run is void

A message is one or two plain sentences: the cause and the next step.
"""

import traceback
from collections.abc import Callable, Iterator
from enum import StrEnum
from errno import errorcode
from itertools import islice
from math import ceil
from pathlib import PurePath
from typing import Any, Final, Self

__all__ = [
    "ArgumentsError",
    "BusyError",
    "ConfigError",
    "EndpointError",
    "FlowError",
    "MirrorError",
    "RefusalReason",
    "RefusedError",
    "StoreError",
    "ToolError",
    "UpstreamError",
    "WireError",
]

DENIED_BY_USER: Final = "The user was asked, and does not allow it."
"""The end of the message of a call that a user does not allow."""


_MAX_CAUSES: Final = 3
"""Errors of a chain that a log line has."""


class RefusalReason(StrEnum):
    """Why the gateway refused a request: the `outcome` of refusals in the audit log and in the log."""

    UNKNOWN_TOOL = "unknown tool"
    UNKNOWN_PATH = "unknown path"
    QUARANTINED = "quarantined"
    INSUFFICIENT_SCOPE = "insufficient scope"
    MISSING_HEADER = "missing header"
    FLOW = "flow"
    CONTEXT_FULL = "context is full"
    BUSY = "busy"
    QUOTA = "quota"
    NO_AUDIT_RECORD = "no audit record"


class MirrorError(Exception):
    """The base class. Its message is written for the reader and contains no secret and no stored value."""

    _log_message: str | None = None

    def __init__(self, message: str, reason: RefusalReason | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        """Why the gateway refused the request; None if something else failed."""

    def __reduce__(self) -> tuple[Callable[..., "MirrorError"], tuple[Any, ...], dict[str, Any]]:
        """Restore the message and the attributes in place of calling the class with the message only.

        A worker process of a program (`multiprocessing`) sends its errors in this way.
        """
        return type(self).__new__, (type(self), *self.args), vars(self)

    @property
    def log_message(self) -> str:
        """The message for logs, without text that an upstream wrote."""
        return str(self) if self._log_message is None else self._log_message

    def with_log_message(self, words: str) -> Self:
        """Set the message for logs and return the error."""
        self._log_message = words
        return self


class ConfigError(MirrorError):
    """The configuration cannot be used; the message names file, line, key and expected value."""


class ToolError(MirrorError):
    """A call that the model can correct; the message says how."""


class ArgumentsError(ToolError):
    """The arguments of a call do not fit the signature of a function; the message may quote them."""


class FlowError(ToolError):
    """The flow policy forbids a value at a destination; nothing of the value was read."""

    def __init__(self, message: str, flow: str, elicitation: str) -> None:
        super().__init__(message, RefusalReason.FLOW)
        self.flow = flow
        """A key for the values, the destination and the tool of the call."""
        self.elicitation = elicitation
        """The message of the elicitation request to the user, who may allow the flow once."""


class UpstreamError(MirrorError):
    """An upstream is down, timed out, is at a limit or violated the protocol; the message names it."""

    def __init__(self, message: str, reason: RefusalReason | None = None, retry_after: int | None = None) -> None:
        super().__init__(message, reason)
        self.retry_after = retry_after
        """Seconds after which a retry may succeed; None: unknown."""


class RefusedError(UpstreamError):
    """A peer returned a JSON-RPC error, or the gateway does in its place: code, message and data."""

    def __init__(self, message: str, code: int, peer_message: str | None = None, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.peer_message: str = message if peer_message is None else peer_message
        """The peer's own message, without text of the gateway; secrets are redacted. An error of the gateway has one
        message."""
        self.data = data
        self._log_message = f"A request was refused (error {code})."


class StoreError(MirrorError):
    """The store could not write or read a value."""


class WireError(MirrorError):
    """Bytes that are not a valid message, or a message over a limit; the message names the byte or the limit."""


class BusyError(MirrorError):
    """A rate or concurrency limit is reached; the message names the limit."""

    def __init__(self, message: str, retry_after: float) -> None:
        """Create the error: `message` is a sentence that names the limit; a retry may succeed after these seconds."""
        self.retry_after: int = max(1, ceil(retry_after))
        """Whole seconds, 1 or more."""
        super().__init__(f"{message} Try again in {self.retry_after} s.", RefusalReason.BUSY)


class EndpointError(MirrorError):
    """A model's endpoint returned no completion; the message quotes its answer."""

    def __init__(self, message: str, *, retry_after: float | None = None, is_context_exceeded: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds after which a retry may succeed; None if it cannot."""
        self.is_context_exceeded = is_context_exceeded
        """The conversation exceeds the model's context window."""


def unwrap_error_group(error: BaseException) -> BaseException:
    """The error itself; of nested exception groups a `MirrorError` in or before them, else the first error."""
    if isinstance(error, BaseExceptionGroup):  # other errors may be its consequences
        before = (one for one in walk_causes(error) if isinstance(one, MirrorError))
        error = error.subgroup(MirrorError) or next(before, error)
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def walk_causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes, each once."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


class LogNote(str):
    """A note of an exception (`add_note`) for the log: it has no values, which notes of libraries may have."""

    __slots__ = ()


def summarize_traceback(error: BaseException) -> str:
    """A summary of an error and its causes for logs: no messages, since these may repeat values."""
    return ", caused by ".join(map(_locate_error, islice(walk_causes(error), _MAX_CAUSES)))


def _locate_error(error: BaseException) -> str:
    """The class of an error, its number if the operating system raised it, its notes, and the innermost locations."""
    number = errorcode.get(error.errno or 0) if isinstance(error, OSError) else None
    notes = "".join(f" in {note}" for note in getattr(error, "__notes__", ()) if isinstance(note, LogNote))
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)][-8:]
    files = [("/".join(PurePath(code.co_filename).parts[-2:]), line, code.co_qualname) for code, line in frames]
    places = ", ".join(f"{file}:{line} {function}" for file, line, function in reversed(files))
    return f"{type(error).__name__}{f' ({number})' if number else ''}{notes} at {places or 'no known location'}"


def drop_tracebacks(error: BaseException) -> None:
    """Release the variables of the functions that an answered error passed through, such as maps of large values.

    An error that came from another thread or task is among these variables, and only the garbage collector would find
    such a cycle.
    """
    for one in walk_causes(error):
        one.__traceback__ = None

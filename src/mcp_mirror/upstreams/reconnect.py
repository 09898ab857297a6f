"""The state of a connection, when to reconnect (backoff with jitter, a circuit breaker for requests), and why it ended.

Each error has one sentence for the model and one for the log.
"""

import logging
import random
import signal
from typing import Final, Literal

import httpx2
import msgspec
from mcp import MCPError
from mcp_types.version import is_version_at_least
from pydantic import ValidationError

from mcp_mirror.errors import MirrorError, RefusedError, UpstreamError, unwrap_error_group
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.security.sanitize import sanitize
from mcp_mirror.settings.upstreams import StdioEndpoint, UpstreamPolicy
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.system.resources import explain_shortage
from mcp_mirror.upstreams.request_failures import is_closed
from mcp_mirror.upstreams.session import Mode
from mcp_mirror.upstreams.transports.network_errors import (
    FailureKind,
    explain_failed_connection,
    omit_scopes,
    read_failure,
)
from mcp_mirror.upstreams.transports.server_output import ServerOutput
from mcp_mirror.upstreams.upstream_request import CHECK_EFFECTS, TRY_AGAIN

STABLE_AFTER: Final = 10.0
"""Seconds after which a connection counts as stable: backoff starts again from the first delay."""
_JITTER: Final = 0.2
"""Share by which a delay varies."""
_FAILURE_THRESHOLD: Final = 5
"""Failures in a row that open the circuit breaker."""
_HALF_OPEN_INTERVAL: Final = 1.0
"""Seconds between two attempts that requests start while the circuit breaker is open."""
_SLOW_START: Final = (
    "A first start may install it, as with npx: raise `startup_timeout`, or run its command by hand. If npx then "
    "misses a module, delete ~/.npm/_npx."
)
_SLOW_ANSWER: Final = "Check whether its `url` answers, or raise `startup_timeout`."
_NOT_MCP: Final = (
    "Check that `command` and `args` start an MCP server on standard input and output, and that it prints its logs on "
    "standard error."
)
_SEE_LOG: Final = "See the server's log."
_ENDED_EARLY: Final = "It ended the connection before it answered."
_ENDED: Final = lazy_pattern("It (?:ended|closed) the connection")
"""The beginning of the reasons that an exit code replaces."""
_UNSUPPORTED: Final = "Unsupported protocol version from the server: "
"""How the SDK's error begins if the server chooses an unknown protocol version."""
_UPDATE: Final = "The gateway does not support it. Update the server or the gateway."
_QUOTED_VERSION: Final = 40
"""Characters of a server's protocol version that are quoted."""
_QUOTED: Final = 2_000
"""Characters of a server's error that are quoted."""

_REFUSALS: Final = (None, FailureKind.REFUSED, FailureKind.CUT)
"""The kinds of JSON-RPC errors with which a server refuses the handshake."""
_TRY_AGAIN: Final = "Try again in a moment."
_TRY_AFTER_SIGN_IN: Final = "Try again after that."

_logger = logging.getLogger(__name__)

State = Literal["starting", "ready", "down"]


class Status(msgspec.Struct, frozen=True):
    """The state of an upstream."""

    state: State
    detail: str = ""
    """Why it is down, a sentence for an operator."""
    advice: str = _TRY_AGAIN
    """When to try again, a sentence for a model."""
    output: tuple[str, ...] = ()
    """The last lines of standard error if the server failed at its start; for operators only."""


JUST_ENDED: Final = Status("down", "It ended the connection.")
STOPPED: Final = Status("down", "The gateway has closed the connection.")


def add_jitter(seconds: float) -> float:
    """Return a delay up to 20 % shorter or longer, so that servers do not all reconnect at once."""
    return seconds * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311  # not a secret


class Backoff:
    """Exponential backoff that starts again after a connection that was stable."""

    def __init__(self, first: float, longest: float) -> None:
        """Take the delay after a stable connection and the longest one, in seconds. Others double the one before."""
        self._first = self._delay = first
        self._longest = longest

    def next_delay(self, lasted: float) -> float:
        """Return the seconds until the next attempt, given the seconds that the last one lasted."""
        self._delay = self._first if lasted > STABLE_AFTER else min(2 * self._delay, self._longest)
        return self._delay


class CircuitBreaker:
    """Opens after 5 failures in a row. While it is open, requests fail at once, and one a second tries to reconnect."""

    def __init__(self) -> None:
        self._failures = 0
        self._last_attempt = -_HALF_OPEN_INTERVAL

    @property
    def is_open(self) -> bool:
        """Whether requests fail at once."""
        return self._failures >= _FAILURE_THRESHOLD

    def allow_attempt(self, now: float) -> bool:
        """Whether a request may reconnect now; an allowed attempt is counted."""
        if self.is_open and now < self._last_attempt + _HALF_OPEN_INTERVAL:
            return False
        self._last_attempt = now
        return True

    def record_end(self, *, was_stable: bool) -> None:
        """Count a failed attempt, or the end of a connection; the end of a stable one closes the circuit breaker."""
        self._failures = 0 if was_stable else self._failures + 1


class FloodError(UpstreamError):
    """The server sent too many messages that the gateway did not request; its connection does not count as stable."""


class ExpiredSessionError(UpstreamError):
    """The server does not know the session any more, which is not a failure: it may end sessions at any time."""


class SignInNeededError(UpstreamError):
    """A person has to sign in to the server."""


class EndedEarlyError(UpstreamError):
    """The server ended the connection before it answered."""


class ConnectionEnd(msgspec.Struct, frozen=True):
    """Why an attempt to connect failed, or a connection ended."""

    error: UpstreamError
    output: tuple[str, ...] = ()
    """The last lines of standard error if the server failed at its start."""


class HandshakeModes:
    """The ways to connect to a server, each tried after the one before has failed."""

    def __init__(self, modes: tuple[Mode, ...]) -> None:
        """Try the first of the modes first, and again after the last."""
        self._modes = modes
        self.current: Mode = modes[0]
        self._has_switched_at_once = False

    def switch(self, error: UpstreamError, *, was_ready: bool) -> bool:
        """Switch to the next mode after a failed attempt; return whether to try it at once.

        Servers of one protocol version may exit or answer with an error at the handshake of another. A program that was
        ready before and now exits has another cause: it is not started twice for one attempt.
        """
        mode, following = self.current, self._modes.index(self.current) + 1
        is_last = following == len(self._modes)
        self.current = self._modes[0 if is_last else following]
        # A server of the newer version refuses this mode where an attempt during an outage has led to it.
        is_refused = isinstance(error, RefusedError) and mode == "legacy" and self.current != "legacy"
        has_exited_at_first = isinstance(error, EndedEarlyError) and not was_ready and not is_last
        self._has_switched_at_once = (is_refused or has_exited_at_first) and not self._has_switched_at_once
        return self._has_switched_at_once


class OutageLog:
    """Logs the outages of one connection and their ends."""

    def __init__(self, policy: UpstreamPolicy, *, is_shared: bool) -> None:
        """Log for the connection of all clients, or of one client."""
        self._policy = policy
        self._name = policy.name if is_shared else f"{policy.name} (of one client)"
        self._is_down = False
        self._output: tuple[str, ...] = ()
        """What a server has printed at its start; the same lines are logged once."""

    def log_down(self, end: ConnectionEnd) -> None:
        """Log that an attempt to connect failed, or the connection ended."""
        policy = self._policy
        _logger.warning("upstream %s is down: %s", self._name, end.error.log_message)
        self._is_down = True
        if end.output != self._output and policy.preview and not policy.is_wrapped:
            # It cannot contain stored values: a server that fails at its start received none.
            self._output = end.output
            for line in end.output:
                _logger.warning("upstream %s printed: %s", policy.name, line)

    def log_ready(self) -> None:
        """Log that the connection is open after an outage."""
        if self._is_down:  # a warning, as the outage was: others are not printed by default
            _logger.warning("upstream %s is ready", self._name)
            self._is_down = False


def explain_end(
    error: BaseException, output: ServerOutput, policy: UpstreamPolicy, redactor: Redactor, *, is_starting: bool
) -> UpstreamError:
    """Return the error for a connection that an exception ended; without `preview`, only with the gateway's own words.

    `is_starting`: the connection was never ready, so the printed output may say why. Later output is left out: it may
    quote values of any principal's calls.
    """
    cause = unwrap_error_group(error)
    reason, logged = (_shorten(text, policy.name) for text in _explain_cause(cause, redactor))
    is_program = isinstance(policy.endpoint, StdioEndpoint)
    is_early_end = is_starting and reason == _ENDED_EARLY
    if output.exit_code is not None:
        ended = _describe_exit(output.exit_code)
        reason, logged = (_ENDED.sub(ended, text, count=1) for text in (reason, logged))
    summary = output.summary if is_starting else ""
    printed = [f"Its error output: {summary}"] if summary else []
    if is_starting and (stray := output.stray) is not None:
        printed = [f'It printed something that is not MCP: "{stray}". {_NOT_MCP}', *printed]
        logged = f"{logged} It printed something that is not MCP. {_NOT_MCP}"
    elif is_early_end and not printed:
        printed = [_NOT_MCP if is_program else _SEE_LOG]
        logged = f"{logged} {printed[0]}"
    message = " ".join((reason, *printed)) if policy.preview else logged
    if isinstance(cause, MCPError) and not is_closed(cause) and read_failure(cause)[0] in _REFUSALS:
        return RefusedError(message, cause.error.code).with_log_message(logged)
    is_output_elsewhere = bool(summary) and not policy.is_wrapped
    return _find_kind(cause)(message).with_log_message(
        f"{logged} `mcp-mirror check` shows its error output." if is_output_elsewhere else logged
    )


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"It ended with exit code {code}"
    try:
        return f"It was ended by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:  # a real-time signal
        return f"It was ended by signal {-code}"


def _shorten(reason: str, name: str) -> str:
    """Return the reason without the name and the advice of a request's error: both stand around the state."""
    begin = f"Upstream {name!r} "
    if not reason.startswith(begin):
        return reason
    shortened = f"It {reason.removeprefix(begin)}".removesuffix(f" {_TRY_AGAIN}")
    for advice in (TRY_AGAIN, CHECK_EFFECTS):
        shortened = shortened.replace(f"; {advice}.", ".")
    return shortened


def _find_kind(cause: BaseException) -> type[UpstreamError]:
    if isinstance(cause, FloodError):
        return FloodError
    if is_closed(cause):
        return EndedEarlyError
    return SignInNeededError if read_failure(cause)[0] is FailureKind.NO_SIGN_IN else UpstreamError


def describe_failure(error: UpstreamError, output: tuple[str, ...]) -> Status:
    """Return the state of a connection that failed or ended, with the last lines of the server's standard error."""
    advice = _TRY_AFTER_SIGN_IN if isinstance(error, SignInNeededError) else _TRY_AGAIN
    return Status("down", str(error), advice, output)


def explain_timeout(policy: UpstreamPolicy) -> UpstreamError:
    """Return the error for an upstream that did not connect within `startup_timeout`."""
    hint = _SLOW_START if isinstance(policy.endpoint, StdioEndpoint) else _SLOW_ANSWER
    return UpstreamError(f"It did not connect and list its tools within {policy.startup_timeout:g} s. {hint}")


def check_protocol(oldest: str | None, version: str) -> None:
    """Check a protocol version against `oldest_protocol`.

    Raises:
        UpstreamError: The version is older.
    """
    if oldest and not is_version_at_least(version, oldest):
        raise UpstreamError(
            f"It uses protocol version {version}, below `oldest_protocol` ({oldest}). Update the server, or lower "
            "the setting."
        )


def _explain_cause(error: BaseException, redactor: Redactor) -> tuple[str, str]:
    """Return a sentence without headers and URLs, and one for the log without the server's own words."""
    if isinstance(error, MirrorError):
        words = sanitize(" ".join(redactor.quote(str(error), _QUOTED).split()))
        return words, redactor.clean(error.log_message)
    if own := _explain_without_words(error):
        return own, omit_scopes(own)
    if isinstance(error, MCPError) and not is_closed(error):
        code = error.error.code
        quoted = sanitize(" ".join(redactor.quote(error.error.message, _QUOTED).split())).rstrip(".")
        return f"It refused to connect: {quoted} (error {code}).", f"It refused to connect (error {code})."
    if is_closed(error):
        reason = _ENDED_EARLY
    elif isinstance(error, httpx2.TransportError):
        reason = explain_failed_connection(error, error.request.url)
    else:
        return _explain_handshake(error, redactor)
    return reason, reason


def _explain_without_words(error: BaseException) -> str | None:
    """Return the explanation of an error that has none of the server's words except scopes; None for other errors."""
    if shortage := explain_shortage(error):
        return f"It cannot be reached now: {shortage}."
    kind, message = read_failure(error)
    if kind is None:
        return None
    return f"It sent an invalid answer. {message}" if kind is FailureKind.INVALID else message


def _explain_handshake(error: BaseException, redactor: Redactor) -> tuple[str, str]:
    """As `_explain_cause`, for the errors of the SDK about a server's answer."""
    if str(error).startswith(_UNSUPPORTED):
        version = redactor.quote(str(error).removeprefix(_UNSUPPORTED), _QUOTED_VERSION)
        return f"It uses protocol version {version!r}. {_UPDATE}", f"It uses another protocol version. {_UPDATE}"
    if isinstance(error, ValidationError):
        fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
        shown = f"`{fault['loc'][0]}`: {fault['msg']}" if fault["loc"] else fault["msg"]
        reason = f"Its answer does not conform to MCP: {shown}. Update the server."
    else:
        reason = f"It failed with {type(error).__name__}."
    return reason, reason

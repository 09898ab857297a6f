"""Logging on standard error: one line per event, without values, headers or secrets.

Libraries log the data that they send and receive, so only their errors are logged, and of an error only its origin,
because tracebacks and validation messages quote data. The gateway's own messages contain no text of upstreams. In
addition, a filter redacts known secrets, memory paths and credentials in every message.
"""

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from secrets import token_bytes
from typing import Final, NamedTuple, TextIO
from urllib.parse import urlsplit

from mcp_mirror.errors import summarize_traceback
from mcp_mirror.observability.standard_error import write_line
from mcp_mirror.security.redaction import HIDDEN, encode_secret, find_secrets, list_secret_forms, redact
from mcp_mirror.security.sanitize import PathHasher, cut, sanitize
from mcp_mirror.settings.policies import Config, LogFormat
from mcp_mirror.settings.upstreams import HttpEndpoint
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.system.resources import explain_shortage

OWN_LOGGER: Final = "mcp_mirror"
_MEMBERS: Final = "members"
"""The attribute of a record with the members of its line, for the formatters of a program that uses the library."""
_LEVELS: Final = {0: logging.WARNING, 1: logging.INFO}
_LONGEST: Final = 4000
"""Bytes of one message."""
_MEMBERS_OF_PROCESS: Final[dict[str, str | int]] = {}
"""Members of every line of this process."""
_PROCESS_KEY: Final = token_bytes(32)
_SHORTEST: Final = 8
"""Characters of the shortest secret that is redacted: shorter ones may be common words."""
_CREDENTIALS: Final = (
    (lazy_pattern(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    (lazy_pattern(r"\bmcpm_[A-Za-z0-9_-]+"), HIDDEN),
    (lazy_pattern(r"(\b[a-z][a-z0-9+.-]{1,20}://)[^\s/@'\"]+@"), rf"\1{HIDDEN}@"),
    # URLs without a query match too: otherwise each address in a long word would be searched to the end of the word.
    (lazy_pattern(r"(\bhttps?://[^\s?'\"]+)(?:(\?)[^\s'\"]+)?"), lambda url: url[1] + (f"?{HIDDEN}" if url[2] else "")),
)
"""Patterns of credentials; in URLs, user information and queries."""


class Line(NamedTuple):
    """The message of a record with members, which are words of the text, and members of the object in JSON."""

    message: str
    members: Mapping[str, str | int] = {}

    def __str__(self) -> str:
        return " ".join((self.message, *(f"{name}={'-' if one == '' else one}" for name, one in self.members.items())))


def log_members(logger: logging.Logger, message: str, members: Mapping[str, str | int]) -> None:
    """Log a line with members at `INFO`."""
    logger.info(Line(message, members), extra={_MEMBERS: members})


def name_worker(number: int) -> None:
    """Name the worker, one of several with one log, in every further line of this process."""
    _MEMBERS_OF_PROCESS["worker"] = number


class SafeFormatter(logging.Formatter):
    """Formats the gateway's own messages, and of library messages only the origin and the kind of error.

    Secrets, credentials and memory paths are redacted in every message.
    """

    def __init__(self, config: Config | None, form: LogFormat | None = None) -> None:
        """Prepare the formatting; without `form`, a line is the message without time, level and logger."""
        super().__init__()
        self._path_hasher = create_path_hasher(config)
        self._secrets = list_secret_forms(_find_secrets(config) if config else (), _SHORTEST)
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        """Return the redacted line."""
        ours = record.name.split(".")[0] == OWN_LOGGER
        error = record.exc_info[1] if record.exc_info else None
        cause = f" ({summarize_traceback(error)})" if error else ""
        if ours and isinstance(record.msg, Line):
            given = record.msg.members.items()
            cleaned = {name: self.clean(one) if isinstance(one, str) else one for name, one in given}
            line = Line(record.msg.message, cleaned)
        else:
            line = Line(self.clean(f"{record.getMessage()}{cause}" if ours else _describe_origin(record, error)))
        if self._form is None:
            return str(line)
        return _format_line(self._form, record.created, record.levelname.lower(), record.name, line)

    def clean(self, text: str) -> str:
        """Return the redacted text on one line, with bounded length."""
        text = redact(text[: 4 * _LONGEST], self._secrets)
        for pattern, instead in _CREDENTIALS:
            text = pattern.sub(instead, text)
        return cut(sanitize(self._path_hasher.replace_paths(text)), _LONGEST)


def _format_line(form: LogFormat, created: float, level: str, source: str, line: Line) -> str:
    time = datetime.fromtimestamp(created, UTC)
    line = Line(line.message, {**line.members, **_MEMBERS_OF_PROCESS})
    if form == "text":
        return f"{time:%Y-%m-%dT%H:%M:%S}Z {level} {source}: {line}"
    stamp = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    given = {name: member for name, member in line.members.items() if member != ""}
    return json.dumps({"time": stamp, "level": level, "logger": source, "message": line.message, **given})


def _describe_origin(record: logging.LogRecord, error: BaseException | None) -> str:
    """The origin of a library's message, and the shortage that caused it. The message itself may quote data."""
    origin = f"(library) a message from {record.funcName}, line {record.lineno}"
    if error is None:
        return origin
    shortage = explain_shortage(error)
    return f"{origin}, on {type(error).__name__}{f': {shortage}' if shortage else ''}"


class _StandardErrorHandler(logging.StreamHandler[TextIO]):
    """Writes to the present `sys.stderr`, which `writing_in_background` replaces for a time."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def configure_logging(verbosity: int, config: Config | None = None) -> None:
    """Send logs to standard error.

    The verbosity is 0 for warnings, 1 for events, 2 for debugging. The configuration has the log format and the secrets
    to redact; None before it is read. They apply to other handlers of the gateway's own logger too.
    """
    handler = _StandardErrorHandler()
    handler.setFormatter(SafeFormatter(config, config.server.log_format if config else "text"))
    for other in logging.getLogger(OWN_LOGGER).handlers:
        other.setFormatter(SafeFormatter(config))
    logging.basicConfig(handlers=[handler], level=logging.ERROR, force=True)
    logging.getLogger(OWN_LOGGER).setLevel(_LEVELS.get(verbosity, logging.DEBUG))


def print_status(config: Config, line: str, *, level: str = "info") -> None:
    """Print a line for the operator on standard error, in the log format but for every verbosity.

    The line is lost if nothing reads standard error any more, or if its disk is full.
    """
    shown = Line(line.removeprefix("mcp-mirror: "))
    write_line(_format_line(config.server.log_format, datetime.now(UTC).timestamp(), level, OWN_LOGGER, shown))


def create_path_hasher(config: Config | None) -> PathHasher:
    """The path hasher of the log and the audit log, with `audit.key` or else a random key of this process."""
    return PathHasher(encode_secret(config.audit.key) if config and config.audit.key else _PROCESS_KEY)


def _find_secrets(config: Config) -> Iterator[str]:
    # Lines name upstreams and tools. `server.py crm` has the name of the upstream `crm` as an argument.
    names = {upstream.name for upstream in config.upstreams}
    for upstream in config.upstreams:
        yield from (secret for secret in find_secrets(upstream.endpoint) if secret not in names)
        if isinstance(upstream.endpoint, HttpEndpoint):
            yield upstream.endpoint.url if urlsplit(upstream.endpoint.url).query else ""
    yield from config.server.state_keys
    yield from config.store.encryption.keys if config.store.encryption else ()
    yield config.audit.key or ""
    yield config.store.url or ""
    yield urlsplit(config.store.url or "").password or ""

"""Logs: one line an event, on standard error, never a value, a header or a secret.

The libraries below us log what they send and receive; of theirs only errors pass, and of those only where they
came from, for a traceback and a validation message show the data that caused them. What we say ourselves is said so
that nothing an upstream wrote is in it; a last net takes out known secrets, memory paths and credentials all the same.
"""

import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from secrets import token_bytes
from typing import Final
from urllib.parse import urlsplit

from mcp_mirror.errors import summarize_traceback
from mcp_mirror.security.path_hash import PathHasher
from mcp_mirror.security.redaction import HIDDEN, forms_of, secrets_of
from mcp_mirror.security.sanitize import cut, sanitize
from mcp_mirror.settings.policies import Config, HttpEndpoint, LogFormat

_OURS: Final = "mcp_mirror"
_LEVELS: Final = {0: logging.WARNING, 1: logging.INFO}
_LONGEST: Final = 4000
"""Bytes of one message."""
_PROCESS_KEY: Final = token_bytes(32)
_SHORTEST: Final = 8
"""Characters of a secret that is looked for everywhere: shorter ones are words as well."""
_CREDENTIALS: Final = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"\bmcpm_[A-Za-z0-9_-]+"), HIDDEN),
    (re.compile(r"(\b[a-z][a-z0-9+.-]{1,20}://)[^\s/@'\"]+@"), rf"\1{HIDDEN}@"),
    (re.compile(r"(\bhttps?://[^\s?'\"]+)\?[^\s'\"]+"), rf"\1?{HIDDEN}"),
)
"""What looks like a credential, whoever's it is; of a URL who logs in, and what is asked."""


class SecretFilter:
    """Takes out of a text what no log may hold."""

    def __init__(self, path_hasher: PathHasher, secrets: Iterable[str] = ()) -> None:
        """Make one.

        Args:
            path_hasher: Says memory paths.
            secrets: What is looked for to the letter, and as programs quote it.
        """
        self._path_hasher = path_hasher
        found = {form for secret in secrets for form in forms_of(secret) if len(form) >= _SHORTEST}
        words = sorted(found, key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, words))) if words else None

    def clean(self, text: str) -> str:
        """The text without them, on one line, and bounded."""
        text = text[: 4 * _LONGEST]
        if self._secrets:
            text = self._secrets.sub(HIDDEN, text)
        for pattern, instead in _CREDENTIALS:
            text = pattern.sub(instead, text)
        return cut(sanitize(self._path_hasher.hide(text)), _LONGEST)


class _SafeFormatter(logging.Formatter):
    """Writes our own messages, and of others' no more than where they came from and the error's kind."""

    def __init__(self, net: SecretFilter, form: LogFormat) -> None:
        super().__init__()
        self._net = net
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        ours = record.name.split(".")[0] == _OURS
        message = self._net.clean(_own(record) if ours else _origin(record))
        return _line(self._form, record.created, record.levelname.lower(), record.name, message)


def _line(form: LogFormat, created: float, level: str, source: str, message: str) -> str:
    time = datetime.fromtimestamp(created, UTC)
    if form == "json":
        stamp = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return json.dumps({"time": stamp, "level": level, "logger": source, "message": message})
    return f"{time:%Y-%m-%dT%H:%M:%S}Z {level} {source}: {message}"


def _own(record: logging.LogRecord) -> str:
    """What we say; of an error that came with it kind and place."""
    error = record.exc_info[1] if record.exc_info else None
    return f"{record.getMessage()} ({summarize_traceback(error)})" if error else record.getMessage()


def _origin(record: logging.LogRecord) -> str:
    """A library's message may be built of what it sends and receives, so it is not repeated."""
    kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
    return f"(library) a message from {record.funcName}, line {record.lineno}{f', on {kind}' if kind else ''}"


def set_up_logging(verbosity: int, config: Config | None = None) -> None:
    """Send logs to standard error.

    Args:
        verbosity: 0 for warnings, 1 for what happens, 2 for details of our own.
        config: Says how lines look, and which secrets no log may hold. None: it is not read yet.
    """
    handler = logging.StreamHandler(sys.stderr)
    net = SecretFilter(shorthand_of(config), _secrets(config) if config else ())
    handler.setFormatter(_SafeFormatter(net, config.server.log_format if config else "text"))
    logging.basicConfig(handlers=[handler], level=logging.ERROR, force=True)
    logging.getLogger(_OURS).setLevel(_LEVELS.get(verbosity, logging.DEBUG))


def tell_operator(config: Config, line: str) -> None:
    """A line that an operator is always told, in the form of the log's."""
    if config.server.log_format == "json":
        line = _line("json", datetime.now(UTC).timestamp(), "info", _OURS, line.removeprefix("mcp-mirror: "))
    print(line, file=sys.stderr, flush=True)  # noqa: T201  # to the operator


def shorthand_of(config: Config | None) -> PathHasher:
    """The path hashes of log and audit log, which are the same: by `audit.key`, else by a key of this process."""
    return PathHasher(config.audit.key.encode() if config and config.audit.key else _PROCESS_KEY)


def _secrets(config: Config) -> Iterator[str]:
    for upstream in config.upstreams:
        yield from secrets_of(upstream.endpoint)
        if isinstance(upstream.endpoint, HttpEndpoint):
            yield upstream.endpoint.url if urlsplit(upstream.endpoint.url).query else ""
    yield from config.server.state_keys
    yield from config.store.encryption.keys if config.store.encryption else ()
    yield config.audit.key or ""
    yield config.store.url or ""
    yield urlsplit(config.store.url or "").password or ""

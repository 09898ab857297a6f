"""Logs: one line an event, on standard error, never a value, a header or a secret.

The libraries below us log what they send and receive; of theirs only errors pass, and of those only where they
came from, for a traceback and a validation message show the data that caused them.
"""

import logging
import sys
from typing import Final

_OURS: Final = "mcp_mirror"
_LEVELS: Final = {0: logging.WARNING, 1: logging.INFO}


class _Reticent(logging.Formatter):
    """Writes our own messages as they are, and of others' no more than where they came from and the error's kind."""

    def format(self, record: logging.LogRecord) -> str:
        ours = record.name.split(".")[0] == _OURS
        message = record.getMessage() if ours else _origin(record)
        time = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        return f"{time} {record.levelname.lower()} {record.name}: {message}"


def _origin(record: logging.LogRecord) -> str:
    """A library's message may be built of what it sends and receives, so it is not repeated."""
    kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
    return f"(library) a message from {record.funcName}, line {record.lineno}{f', on {kind}' if kind else ''}"


def set_up_logging(verbosity: int) -> None:
    """Send logs to standard error.

    Args:
        verbosity: 0 for warnings, 1 for what happens, 2 for details of our own.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Reticent())
    logging.basicConfig(handlers=[handler], level=logging.ERROR, force=True)
    logging.getLogger(_OURS).setLevel(_LEVELS.get(verbosity, logging.DEBUG))

"""Logs one line per call at level INFO."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from mcp_mirror.core.replies import Reply, count_reply_bytes
from mcp_mirror.gateway.call import Call, Next
from mcp_mirror.gateway.call_record import CallEnd, answer_and_report, record_of
from mcp_mirror.security.path_hash import PathHasher

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CallLogStage:
    """Logs calls: names, sizes and a path hash."""

    path_hasher: PathHasher
    clock: Callable[[], float]
    """Seconds."""

    async def __call__(self, call: Call, call_next: Next) -> Reply:
        """Answer a call and log it."""
        if not _logger.isEnabledFor(logging.INFO):
            return await call_next(call)
        return await answer_and_report(call, call_next, self.clock, self._log)

    def _log(self, call: Call, end: CallEnd) -> None:
        """Log a call as one line, without arguments and values."""
        record = record_of(call, end.outcome, call.trace.reason)
        members = {
            "tool": record.tool,
            "upstream": record.upstream or "-",
            "ms": f"{end.milliseconds:.0f}",
            "bytes": count_reply_bytes(end.reply),
            "tokens": call.trace.sent or 0,
            "kept_out": call.trace.kept_out,
            "path": self.path_hasher.hash_path(record.path) if record.path else "-",
            "outcome": record.outcome.replace(" ", "_"),
        }
        _logger.info("call %s", " ".join(f"{name}={member}" for name, member in members.items()))

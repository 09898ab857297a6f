"""Logs one line per call at level INFO."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from mcp_mirror.core.replies import Reply, count_reply_bytes
from mcp_mirror.gateway.call import Call, Next
from mcp_mirror.gateway.call_record import describe_outcome, record_of
from mcp_mirror.observability.audit import AuditRecord, CallTrace
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
        began, outcome = self.clock(), "cancelled"
        reply: Reply = {}
        try:
            reply = await call_next(call)
            outcome = describe_outcome(reply, call.trace)
        except Exception:
            outcome = "error"
            raise
        finally:
            milliseconds = max(1000 * (self.clock() - began), 0)
            record = record_of(call, outcome, call.trace.reason)
            _logger.info(
                "%s", _format_line(record, call.trace, self.path_hasher, count_reply_bytes(reply), milliseconds)
            )
        return reply


def _format_line(record: AuditRecord, trace: CallTrace, path_hasher: PathHasher, size: int, milliseconds: float) -> str:
    """Return a call as one line of the log: names, sizes and a path hash, without arguments and values."""
    members = {
        "tool": record.tool,
        "upstream": record.upstream or "-",
        "ms": f"{milliseconds:.0f}",
        "bytes": size,
        "tokens": trace.sent or 0,
        "kept_out": trace.kept_out,
        "path": path_hasher.hash_path(record.path) if record.path else "-",
        "outcome": record.outcome.replace(" ", "_"),
    }
    return "call " + " ".join(f"{name}={member}" for name, member in members.items())

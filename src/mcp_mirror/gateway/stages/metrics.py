"""Counts the tokens of every reply and logs one line per call."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from mcp_mirror.core.replies import Reply, count_reply_bytes
from mcp_mirror.errors import RefusedError
from mcp_mirror.gateway.call import Call, Next
from mcp_mirror.gateway.call_record import describe_outcome, record_of
from mcp_mirror.gateway.reply_cost import count_reply_tokens
from mcp_mirror.memory.usage import UsageCounter
from mcp_mirror.observability.audit import AuditRecord, CallTrace
from mcp_mirror.security.path_hash import PathHasher
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.content_filter import is_for_client

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MetricsStage:
    """Counts sent and saved tokens by namespace, and logs calls at level INFO."""

    usage_counter: UsageCounter | None
    """None: tokens are not counted."""
    estimate: Callable[[Buffer], int] = field(repr=False)
    """Returns the tokens of a text."""
    path_hasher: PathHasher
    clock: Callable[[], float]
    """Seconds."""

    async def __call__(self, call: Call, call_next: Next) -> Reply:
        """Answer a call and measure it."""
        if not _logger.isEnabledFor(logging.INFO):
            return await self._count(call, call_next)
        began, outcome = self.clock(), "cancelled"
        reply: Reply = {}
        try:
            reply = await self._count(call, call_next)
            outcome = describe_outcome(reply, call.trace)
        except Exception:
            outcome = "error"
            raise
        finally:
            milliseconds = max(1000 * (self.clock() - began), 0)
            record = record_of(call, outcome, call.trace.reason)
            _logger.info(
                "%s", format_line(record, call.trace, self.path_hasher, count_reply_bytes(reply), milliseconds)
            )
        return reply

    async def _count(self, call: Call, call_next: Next) -> Reply:
        if call.script is not None:  # the model does not read the reply
            return await call_next(call)
        try:
            reply = await call_next(call)
        except RefusedError as error:
            if self.usage_counter is not None and not is_for_client(error):  # clients show it to the model
                self._add(self.usage_counter, call, self.estimate(str(error).encode()))
            raise
        if self.usage_counter is not None:
            sent = call.trace.sent  # the context budget may have counted it
            self._add(
                self.usage_counter, call, await count_reply_tokens(reply, self.estimate) if sent is None else sent
            )
        return reply

    def _add(self, usage_counter: UsageCounter, call: Call, sent: int) -> None:
        trace = call.trace
        trace.sent, trace.kept_out = sent, max(trace.hidden_tokens - sent, 0)
        usage_counter.add(call.namespace, sent, trace.kept_out)


def format_line(record: AuditRecord, trace: CallTrace, path_hasher: PathHasher, size: int, milliseconds: float) -> str:
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

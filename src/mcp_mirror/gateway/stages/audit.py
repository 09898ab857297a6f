"""Writes one audit record per tool call; with `audit.required`, also one before the call."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from mcp_mirror.core.replies import Reply, build_error_reply, count_reply_bytes
from mcp_mirror.gateway.call import Call, Next
from mcp_mirror.gateway.call_record import CallEnd, answer_and_report, find_refusal, record_of
from mcp_mirror.observability.audit import Audit

UNWRITTEN: Final = (
    "The gateway cannot write its audit log, and `audit.required` forbids calls without a record. "
    "Nothing was called. Try again later, and report this to the operator."
)


@dataclass(frozen=True, slots=True)
class AuditStage:
    """Records the principal, the tool and the outcome of each call."""

    audit: Audit
    clock: Callable[[], float]
    """Seconds."""

    async def __call__(self, call: Call, call_next: Next) -> Reply:
        """Answer a call, between the records of its start and its end."""
        if not await self.audit.admit(record_of(call, "begun", find_refusal(call))):
            return build_error_reply(UNWRITTEN)
        return await answer_and_report(call, call_next, self.clock, self._write)

    def _write(self, call: Call, end: CallEnd) -> None:
        record = record_of(call, end.outcome, call.trace.reason)
        self.audit.write(replace(record, bytes=count_reply_bytes(end.reply), milliseconds=end.milliseconds))

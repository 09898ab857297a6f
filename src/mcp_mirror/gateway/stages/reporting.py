"""Reports each call to the audit log, the log, the event log and the counts of tokens."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec

from mcp_mirror.core.replies import ToolResult, count_reply_bytes, count_result_tokens
from mcp_mirror.errors import LogNote, MirrorError, RefusalReason, RefusedError, ToolError
from mcp_mirror.gateway.call import Call, CallEnd, Next, answer_and_report, find_refusal, name_tool, reply_to_error
from mcp_mirror.memory.usage import UsageCounter
from mcp_mirror.observability.audit import UNKNOWN, Audit, AuditRecord, CallTrace
from mcp_mirror.observability.events import MAX_ARGUMENTS, CallEvent, EventRecorder, FinishedCall
from mcp_mirror.observability.logging import log_members
from mcp_mirror.security.flows import format_labels
from mcp_mirror.security.sanitize import PathHasher
from mcp_mirror.system.slices import run_by_values
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.content_filter import is_for_client

UNWRITTEN: Final = (
    "The gateway cannot write its audit log, and `audit.required` forbids calls without a record. "
    "Nothing was called. Try again later, and report this to the operator."
)
_logger = logging.getLogger("mcp_mirror.gateway.stages.call_log")  # operators select the lines of calls by it
_UNKNOWN_TOOL: Final = "No tool has the name that the client called."
"""In place of an error that repeats the name, which may be any text."""


class ReportStage(msgspec.Struct, frozen=True):
    """Reports each call to the audit log, the event log and the log."""

    audit: Audit
    recorder: EventRecorder | None
    """Writes the event log; None without one."""
    path_hasher: PathHasher
    """Hashes paths for the log."""
    clock: Callable[[], float]
    """Seconds, monotonic."""

    def __call__(self, call: Call, call_next: Next) -> Awaitable[ToolResult]:
        """Answer a call and report its end."""
        answer = partial(self._answer_recorded, call_next=call_next) if self.audit.is_required else call_next
        return answer_and_report(call, answer, self.clock, self._report)

    async def _answer_recorded(self, call: Call, call_next: Next) -> ToolResult:
        """Answer a call if the record of its start can be written."""
        is_admitted = await self.audit.admit(_record_of(call, "begun", find_refusal(call, call.catalog)))
        if is_admitted:
            return await call_next(call)
        return reply_to_error(call, ToolError(UNWRITTEN, RefusalReason.NO_AUDIT_RECORD))

    def _report(self, call: Call, end: CallEnd) -> None:
        if end.error is not None and not isinstance(end.error, MirrorError):  # a fault of the program
            end.error.add_note(LogNote(f"call of {name_tool(call)}, correlation {call.id}"))
        if self.recorder is not None:
            self.recorder.add(_build_event(call, end))
        is_audited = self.audit.sink is not None and call.trace.reason is not RefusalReason.NO_AUDIT_RECORD
        is_logged = _logger.isEnabledFor(logging.INFO)
        if not is_audited and not is_logged:
            return
        record = msgspec.structs.replace(
            _record_of(call, end.outcome, call.trace.reason),
            bytes=count_reply_bytes(end.reply),
            milliseconds=end.milliseconds,
        )
        if is_audited:
            self.audit.write(record)
        if is_logged:
            self._log(call, record)

    def _log(self, call: Call, record: AuditRecord) -> None:
        """Log a call as one line, without arguments and values."""
        members: dict[str, str | int] = {
            "tool": record.tool,
            "upstream": record.upstream,
            "ms": round(record.milliseconds or 0),
            "bytes": record.bytes,
            "tokens": call.trace.sent or 0,
            "kept_out": call.trace.kept_out,
            "path": self.path_hasher.hash_path(record.path) if record.path else "",
            "outcome": record.outcome.replace(" ", "_"),
            "correlation": record.correlation,
        }
        log_members(_logger, "call", members)


def _record_of(call: Call, outcome: str, reason: RefusalReason | None) -> AuditRecord:
    """Return the audit record of a call with this outcome, or refused for a reason."""
    return AuditRecord(
        event="refusal" if reason else "call",
        principal=call.namespace,
        tool=name_tool(call),
        outcome=reason or outcome,
        path=call.trace.path,
        labels=format_labels(call.trace.labels) if call.trace.labels else {},
        upstream=_find_upstream(call),
        correlation=call.id,
        detail=call.trace.detail,
    )


def _build_event(call: Call, end: CallEnd) -> FinishedCall:
    """Return a call for the event log."""
    trace, size, tool, refusal = call.trace, len(call.arguments), name_tool(call), call.trace.refusal
    why = refusal.log_message if refusal else ""
    if refusal and tool == UNKNOWN:
        why = _UNKNOWN_TOOL
    event = CallEvent(
        id=call.id,
        at=0.0,  # the recorder knows the time
        milliseconds=end.milliseconds,
        tool=tool,
        upstream=_find_upstream(call),
        outcome="refused" if refusal else end.outcome,
        reason=refusal.reason or "" if refusal else "",
        bytes=count_reply_bytes(end.reply),
        sent=trace.sent or 0,
        kept_out=trace.kept_out,
        path=trace.path or "",
        inputs=tuple(trace.inputs),
        parent=trace.detail.get("script_call", ""),
    )
    arguments = bytes(call.arguments) if size <= MAX_ARGUMENTS else None
    return FinishedCall(call.namespace, event, arguments, size, trace.path_slugs, why)


def _find_upstream(call: Call) -> str:
    """Return the upstream of the called tool; an empty text for the gateway's own tools and unknown names."""
    if call.trace.upstream:
        return call.trace.upstream
    if entry := call.catalog.entries.get(call.name):
        return entry.upstream
    finding = call.catalog.quarantined.get(call.name)
    return finding.change.upstream if finding else ""


class UsageStage(msgspec.Struct, frozen=True):
    """Counts sent and saved tokens by namespace, and notes them in the call's trace."""

    usage_counter: UsageCounter
    estimate: Callable[[Buffer], int]
    """Returns the tokens of a text."""

    async def __call__(self, call: Call, call_next: Next) -> ToolResult:
        """Answer a call and count its reply."""
        if call.script is not None:  # the model does not read the reply
            return await call_next(call)
        namespace, trace = call.namespace, call.trace
        try:
            reply = await call_next(call)
        except RefusedError as error:
            if not is_for_client(error):  # clients show it to the model
                self._add(namespace, trace, self.estimate(str(error).encode()))
            raise
        sent = trace.sent  # the context budget may have counted it
        if sent is None:
            sent = await run_by_values(
                reply.values(), count_result_tokens, reply, self.estimate, trace.shown, principal=namespace
            )
        self._add(namespace, trace, sent)
        return reply

    def _add(self, namespace: str, trace: CallTrace, sent: int) -> None:
        trace.sent, trace.kept_out = sent, max(trace.hidden_tokens - sent, 0)
        self.usage_counter.add(namespace, sent, trace.kept_out)

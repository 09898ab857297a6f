"""Reports each call to the audit log, the log, the event log and the counts of tokens."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from mcp_mirror.core.replies import ToolResult, build_error_reply, count_reply_bytes, read_texts
from mcp_mirror.errors import MirrorError, RefusedError
from mcp_mirror.gateway.call import (
    Call,
    CallEnd,
    Next,
    answer_and_report,
    find_refusal,
    find_upstream,
    name_tool,
    record_of,
)
from mcp_mirror.gateway.context_budgets import count_reply_tokens
from mcp_mirror.memory.usage import UsageCounter
from mcp_mirror.observability.audit import UNKNOWN, Audit
from mcp_mirror.observability.events import MAX_ARGUMENTS, CallEvent, EventRecorder, FinishedCall
from mcp_mirror.security.sanitize import PathHasher
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.content_filter import is_for_client

UNWRITTEN: Final = (
    "The gateway cannot write its audit log, and `audit.required` forbids calls without a record. "
    "Nothing was called. Try again later, and report this to the operator."
)
_logger = logging.getLogger("mcp_mirror.gateway.stages.call_log")  # operators select the lines of calls by it
_UNKNOWN_TOOL: Final = "No tool has the name that the client called."
"""In place of an error that repeats the name, which may be any text."""


class AuditStage(msgspec.Struct, frozen=True):
    """Records the principal, the tool and the outcome of each call."""

    audit: Audit
    clock: Callable[[], float]
    """Seconds."""

    async def __call__(self, call: Call, call_next: Next) -> ToolResult:
        """Answer a call, between the records of its start and its end."""
        if not await self.audit.admit(record_of(call, "begun", find_refusal(call))):
            return build_error_reply(UNWRITTEN)
        return await answer_and_report(call, call_next, self.clock, self._write)

    def _write(self, call: Call, end: CallEnd) -> None:
        record = record_of(call, end.outcome, call.trace.reason)
        self.audit.write(
            msgspec.structs.replace(record, bytes=count_reply_bytes(end.reply), milliseconds=end.milliseconds)
        )


class CallLogStage(msgspec.Struct, frozen=True):
    """Logs calls: names, sizes and a path hash."""

    path_hasher: PathHasher
    clock: Callable[[], float]
    """Seconds."""

    def __call__(self, call: Call, call_next: Next) -> Awaitable[ToolResult]:
        """Answer a call and log it."""
        if not _logger.isEnabledFor(logging.INFO):
            return call_next(call)
        return answer_and_report(call, call_next, self.clock, self._log)

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


class EventStage(msgspec.Struct, frozen=True):
    """Passes finished calls to the recorder."""

    recorder: EventRecorder
    clock: Callable[[], float]
    """Seconds."""

    def __call__(self, call: Call, call_next: Next) -> Awaitable[ToolResult]:
        """Answer a call and record it."""
        return answer_and_report(call, call_next, self.clock, self._record)

    def _record(self, call: Call, end: CallEnd) -> None:
        trace, size, tool = call.trace, len(call.arguments), name_tool(call)
        message = str(end.error) if isinstance(end.error, MirrorError) else ""
        refusal = (trace.refusal or message or read_texts(end.reply)) if trace.reason else ""
        if refusal and tool == UNKNOWN:
            refusal = _UNKNOWN_TOOL
        event = CallEvent(
            id=call.id,
            at=0.0,  # the recorder knows the time
            milliseconds=end.milliseconds,
            tool=tool,
            upstream=find_upstream(call),
            outcome="refused" if trace.reason else end.outcome,
            reason=trace.reason or "",
            bytes=count_reply_bytes(end.reply),
            sent=trace.sent or 0,
            kept_out=trace.kept_out,
            path=trace.path or "",
            inputs=trace.inputs,
            parent=trace.detail.get("script_call", ""),
        )
        arguments = bytes(call.arguments) if size <= MAX_ARGUMENTS else None
        self.recorder.add(FinishedCall(call.namespace, event, arguments, size, trace.path_labels, refusal))


class UsageStage(msgspec.Struct, frozen=True):
    """Counts sent and saved tokens by namespace, and notes them in the call's trace."""

    usage_counter: UsageCounter
    estimate: Callable[[Buffer], int]
    """Returns the tokens of a text."""

    async def __call__(self, call: Call, call_next: Next) -> ToolResult:
        """Answer a call and count its reply."""
        if call.script is not None:  # the model does not read the reply
            return await call_next(call)
        try:
            reply = await call_next(call)
        except RefusedError as error:
            if not is_for_client(error):  # clients show it to the model
                self._add(call, self.estimate(str(error).encode()))
            raise
        sent = call.trace.sent  # the context budget may have counted it
        self._add(call, await count_reply_tokens(reply, self.estimate, call.trace.shown) if sent is None else sent)
        return reply

    def _add(self, call: Call, sent: int) -> None:
        trace = call.trace
        trace.sent, trace.kept_out = sent, max(trace.hidden_tokens - sent, 0)
        self.usage_counter.add(call.namespace, sent, trace.kept_out)

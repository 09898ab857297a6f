"""How a tool call ended, and its audit record."""

from collections.abc import Callable
from typing import NamedTuple

from mcp_mirror.core.replies import Reply
from mcp_mirror.errors import RefusalReason
from mcp_mirror.gateway.call import Call, Next
from mcp_mirror.observability.audit import UNKNOWN, AuditRecord, CallTrace


class CallEnd(NamedTuple):
    """How a call ended."""

    reply: Reply
    """Empty if the call failed or was cancelled."""
    outcome: str
    milliseconds: float
    error: Exception | None
    """Why the call failed; None if it was answered or cancelled."""


async def answer_and_report(
    call: Call, call_next: Next, clock: Callable[[], float], report: Callable[[Call, CallEnd], None]
) -> Reply:
    """Answer a call, and report how it ended, also if it failed or was cancelled.

    Args:
        call: The call.
        call_next: Answers it.
        clock: Seconds.
        report: Called with the call and its end.
    """
    began, outcome = clock(), "cancelled"
    reply: Reply = {}
    failure: Exception | None = None
    try:
        reply = await call_next(call)
        outcome = describe_outcome(reply, call.trace)
    except Exception as error:
        outcome, failure = "error", error
        raise
    finally:
        report(call, CallEnd(reply, outcome, max(1000 * (clock() - began), 0.0), failure))
    return reply


def record_of(call: Call, outcome: str, reason: RefusalReason | None) -> AuditRecord:
    """Return the audit record of a call.

    Args:
        call: The call.
        outcome: Its outcome, unless it was refused.
        reason: The reason of the refusal; None if it was not refused.
    """
    return AuditRecord(
        event="refusal" if reason else "call",
        principal=call.namespace,
        tool=name_tool(call),
        outcome=reason or outcome,
        path=call.trace.path,
        labels=call.trace.labels,
        upstream=find_upstream(call),
        correlation=call.id,
        detail=call.trace.detail,
    )


def describe_outcome(reply: Reply, trace: CallTrace) -> str:
    """Return the outcome of an answered call in one word."""
    if "inputRequests" in reply:
        return "asked"
    if reply.get("isError", b"false") != b"false":
        return "error"
    return "stored" if trace.path else "ok"


def name_tool(call: Call) -> str:
    """Return the name of the called tool, or a placeholder for a name that no tool has."""
    is_known = call.trace.upstream or find_refusal(call) is not RefusalReason.UNKNOWN_TOOL
    return call.name if is_known else UNKNOWN


def find_upstream(call: Call) -> str:
    """Return the upstream of the called tool; an empty text for the gateway's own tools and unknown names."""
    if call.trace.upstream:
        return call.trace.upstream
    if entry := call.catalog.entries.get(call.name):
        return entry.upstream
    finding = call.catalog.quarantined.get(call.name)
    return finding.change.upstream if finding else ""


def find_refusal(call: Call) -> RefusalReason | None:
    """Return why the caller's catalog has no tool of this name; None if it has one."""
    catalog = call.catalog
    if call.name in catalog.entries or call.name in call.own_tools:
        return None
    if call.name in catalog.quarantined:
        return RefusalReason.QUARANTINED
    return RefusalReason.INSUFFICIENT_SCOPE if call.name in catalog.hidden_names else RefusalReason.UNKNOWN_TOOL

"""The audit record and the outcome of one tool call."""

from mcp_mirror.core.replies import Reply
from mcp_mirror.errors import RefusalReason
from mcp_mirror.gateway.call import Call
from mcp_mirror.observability.audit import UNKNOWN, AuditRecord, CallTrace


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

"""One call as a client made it, what it has come to, and what the audit log says of it."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import Any, Final

from mcp_mirror.callers import ClientChannel
from mcp_mirror.core.catalog import Catalog
from mcp_mirror.core.replies import Reply
from mcp_mirror.gateway.context_budgets import Conversation
from mcp_mirror.observability.audit import UNKNOWN, AuditRecord, CallTrace
from mcp_mirror.security.path_hash import PathHasher
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.elicitation import InputRound

UNWRITTEN: Final = (
    "The gateway's audit log cannot be written, and nothing is called that is not written down (`audit.required`). "
    "Nothing was called. Try again later, and tell the operator."
)

_NOBODYS: Final = "unknown tool"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as a client made it."""

    channel: ClientChannel
    """The way back to the client."""
    name: str
    arguments: Buffer
    """A JSON object."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """What it says in `_meta` to the upstream."""
    again: InputRound | None = None
    """The answers that it brings, where it is made again for their sake."""
    conversation: Conversation | None = None
    """Whose context its answer goes into, where that is known."""
    id: str = field(default_factory=partial(token_hex, 8))
    """What the audit log calls it."""
    call_trace: CallTrace = field(default_factory=CallTrace, compare=False)

    @property
    def namespace(self) -> str:
        """Whose memory it uses."""
        return self.channel.caller.namespace


def record_of(call: ToolCall, outcome: str, catalog: Catalog, own_tools: Container[str]) -> AuditRecord:
    """What the audit log says of a call.

    Args:
        call: The call.
        outcome: What became of it.
        catalog: What its client is shown.
        own_tools: The names of our own tools.
    """
    entry, finding = catalog.entries.get(call.name), catalog.quarantined.get(call.name)
    refused = _refusal_of(call.name, catalog, own_tools)
    rule = call.call_trace.rule or refused
    return AuditRecord(
        event="refusal" if rule else "call",
        principal=call.namespace,
        tool=UNKNOWN if refused == _NOBODYS else call.name,
        outcome=rule or outcome,
        path=call.call_trace.path,
        labels=call.call_trace.labels,
        upstream=entry.upstream if entry else finding.change.upstream if finding else "",
        correlation=call.id,
    )


def _refusal_of(name: str, catalog: Catalog, own_tools: Container[str]) -> str:
    """Why a tool of this name is not there for a client; nothing where it is."""
    if name in catalog.quarantined:
        return "quarantined"
    if name in catalog.hidden:
        return "insufficient scope"
    return "" if name in catalog.entries or name in own_tools else _NOBODYS


def log_line_of(record: AuditRecord, call_trace: CallTrace, path_hasher: PathHasher) -> str:
    """A call as one line of the log: names, sizes and a path hash; no argument and no value."""
    members = {
        "tool": record.tool,
        "upstream": record.upstream or "-",
        "ms": f"{record.milliseconds or 0:.0f}",
        "bytes": record.bytes,
        "tokens": call_trace.sent,
        "kept_out": call_trace.kept_out,
        "path": path_hasher.of(record.path) if record.path else "-",
        "outcome": record.outcome.replace(" ", "_"),
    }
    return "call " + " ".join(f"{name}={member}" for name, member in members.items())


def outcome_of(reply: Reply, call_trace: CallTrace) -> str:
    """What became of a call that was answered, in a word."""
    if "inputRequests" in reply:
        return "asked"
    return "error" if reply.get("isError", b"false") != b"false" else "stored" if call_trace.path else "ok"

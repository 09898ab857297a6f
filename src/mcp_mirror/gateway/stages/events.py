"""Adds each call to the event log, which the dashboard and `mcp-mirror usage` read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from mcp_mirror.core.replies import Reply, count_reply_bytes
from mcp_mirror.errors import MirrorError
from mcp_mirror.gateway.call import Call, Next
from mcp_mirror.gateway.call_record import CallEnd, answer_and_report, find_upstream, name_tool
from mcp_mirror.observability.audit import UNKNOWN
from mcp_mirror.observability.events import MAX_ARGUMENTS, EventRecorder, FinishedCall
from mcp_mirror.payload.json_rpc import contiguous

_UNKNOWN_TOOL: Final = "No tool has the name that the client called."
"""In place of an error that repeats the name, which may be any text."""


@dataclass(frozen=True, slots=True)
class EventStage:
    """Passes finished calls to the recorder."""

    recorder: EventRecorder
    clock: Callable[[], float]
    """Seconds."""

    async def __call__(self, call: Call, call_next: Next) -> Reply:
        """Answer a call and record it."""
        return await answer_and_report(call, call_next, self.clock, self._record)

    def _record(self, call: Call, end: CallEnd) -> None:
        trace, size, tool = call.trace, len(call.arguments), name_tool(call)
        message = str(end.error) if isinstance(end.error, MirrorError) else ""
        refusal = (message or _read_text(end.reply)) if trace.reason else ""
        self.recorder.add(
            FinishedCall(
                call.namespace,
                call.id,
                end.milliseconds,
                tool,
                find_upstream(call),
                "refused" if trace.reason else end.outcome,
                trace.reason or "",
                count_reply_bytes(end.reply),
                trace.sent or 0,
                trace.kept_out,
                trace.path or "",
                trace.inputs,
                bytes(call.arguments) if size <= MAX_ARGUMENTS else None,
                size,
                trace.path_labels,
                _UNKNOWN_TOOL if refusal and tool == UNKNOWN else refusal,
                trace.detail.get("script_call", ""),
            )
        )


def _read_text(reply: Reply) -> str:
    """The text of a refusal: its only content block, which the gateway wrote."""
    content = reply.get("content", b"[]")
    blocks = msgspec.json.decode(contiguous(content), type=list[dict[str, object]])
    return "\n".join(str(block.get("text", "")) for block in blocks)

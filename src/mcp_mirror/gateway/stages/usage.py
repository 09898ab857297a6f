"""Counts the tokens of every reply, and those that were kept out of the model's context."""

from collections.abc import Callable
from dataclasses import dataclass, field

from mcp_mirror.core.replies import Reply
from mcp_mirror.errors import RefusedError
from mcp_mirror.gateway.call import Call, Next
from mcp_mirror.gateway.reply_cost import count_reply_tokens
from mcp_mirror.memory.usage import UsageCounter
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.content_filter import is_for_client


@dataclass(frozen=True, slots=True)
class UsageStage:
    """Counts sent and saved tokens by namespace, and notes them in the call's trace."""

    usage_counter: UsageCounter
    estimate: Callable[[Buffer], int] = field(repr=False)
    """Returns the tokens of a text."""

    async def __call__(self, call: Call, call_next: Next) -> Reply:
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
        self._add(call, await count_reply_tokens(reply, self.estimate) if sent is None else sent)
        return reply

    def _add(self, call: Call, sent: int) -> None:
        trace = call.trace
        trace.sent, trace.kept_out = sent, max(trace.hidden_tokens - sent, 0)
        self.usage_counter.add(call.namespace, sent, trace.kept_out)

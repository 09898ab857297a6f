"""Refuses calls of principals that have used up their quota of calls."""

from dataclasses import dataclass

from mcp_mirror.core.replies import Reply, build_error_reply
from mcp_mirror.errors import ToolError
from mcp_mirror.gateway.call import Call, Next
from mcp_mirror.gateway.call_quotas import CallQuotas


@dataclass(frozen=True, slots=True)
class QuotaStage:
    """Applies `limits.calls_per_day` and `limits.calls_per_month`."""

    quotas: CallQuotas

    async def __call__(self, call: Call, call_next: Next) -> Reply:
        """Answer a call that is within the quota; a refusal is a tool error, which models read."""
        if not call.is_limited:
            return await call_next(call)
        try:
            await self.quotas.begin(call.namespace)
        except ToolError as error:
            call.trace.reason = error.reason
            return build_error_reply(str(error))
        try:
            return await call_next(call)
        finally:
            self.quotas.end(call.namespace)

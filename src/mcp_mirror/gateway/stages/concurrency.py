"""Bounds the rate and the number of a principal's concurrent calls."""

from dataclasses import dataclass

from mcp_mirror.core.replies import Reply, build_error_reply
from mcp_mirror.errors import BusyError, RefusalReason
from mcp_mirror.gateway.call import Call, Next
from mcp_mirror.security.rate_limits import PrincipalLimiter


@dataclass(frozen=True, slots=True)
class ConcurrencyStage:
    """Queues calls over `limits.calls_per_principal` and refuses calls over the queue or the rate."""

    limiter: PrincipalLimiter

    async def __call__(self, call: Call, call_next: Next) -> Reply:
        """Answer a call when its principal has room for one more; a refusal is a tool error, which models read."""
        if not call.is_limited:
            return await call_next(call)
        is_admitted = False
        try:
            if call.script is not None:  # the call of the script has a place: waiting for a second one could deadlock
                self.limiter.count(call.namespace)
                is_admitted = True
                return await call_next(call)
            async with self.limiter.acquire(call.namespace):
                is_admitted = True
                return await call_next(call)
        except BusyError as error:
            if is_admitted:
                raise
            call.trace.reason = RefusalReason.BUSY
            return build_error_reply(str(error))

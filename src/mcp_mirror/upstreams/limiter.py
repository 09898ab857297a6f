"""The way in to one upstream, for requests over all its connections: so many at once, so many a minute."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio

from mcp_mirror.callers import ClientChannel
from mcp_mirror.errors import BusyError, UpstreamError
from mcp_mirror.security.rate_limits import Limit, PerKeyLimiter, Queue
from mcp_mirror.settings.limits import UpstreamBounds


class UpstreamLimiter:
    """Lets callers' requests in, each principal in turn; the gateway's own are not counted."""

    def __init__(self, name: str, bounds: UpstreamBounds) -> None:
        """Let nobody in yet; `name` is the upstream's."""
        most = bounds.upstream_calls_per_minute
        rate = Limit("upstream_calls_per_minute", most) if most else None
        queue = Queue(Limit("queued_calls", bounds.queued_calls), bounds.queue_timeout)
        self._name = name
        self._admission = PerKeyLimiter(
            Limit("calls_per_upstream", bounds.calls_per_upstream), rate, queue, anyio.current_time
        )

    @asynccontextmanager
    async def acquire(self, channel: ClientChannel | None) -> AsyncIterator[None]:
        """While a request is under way.

        Raises:
            UpstreamError: Too many are.
        """
        async with AsyncExitStack() as stack:
            try:
                if channel is not None:
                    caller, what = channel.caller, f"Upstream {self._name!r}"
                    has_others = caller.scopes is not None  # without tokens there is one principal
                    await stack.enter_async_context(
                        self._admission.acquire(self._name, caller.namespace, what, is_shared=has_others)
                    )
            except BusyError as error:
                raise UpstreamError(str(error)) from None
            yield

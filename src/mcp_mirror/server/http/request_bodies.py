"""Receives the bodies of HTTP requests: within a time, at a minimum speed, and fairly between principals."""

from typing import Final

import anyio
import mcp_types as types
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from mcp_mirror.payload.spool import Frame, Spool, SpoolCollector
from mcp_mirror.server.http.connections import find_connection
from mcp_mirror.server.http.rejected_requests import reject
from mcp_mirror.server.request_context import HttpRequest
from mcp_mirror.system.fair_turns import wait_for_turn

_MIN_BYTES_PER_SECOND: Final = 1024
"""The average speed of a body that takes longer than `limits.body_timeout`."""


class RequestBodies:
    """Receives the bodies of all requests of a server. Large ones go to spool files."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    async def receive(self, request: HttpRequest, receive: Receive) -> Frame:
        """Return the body of a request.

        Raises:
            RejectedError: The body is encoded or too slow.
            ClientDisconnect: The client disconnected.
        """
        if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise reject(415, types.INVALID_REQUEST, "Send the body without a content-encoding.")
        collector = self._spool.collector()
        try:
            connection = find_connection(request.scope)
            if (body := connection.take_body() if connection else None) is None:
                await self._collect(collector, request.namespace, receive)
            else:
                collector.add(body)
            return collector.take()
        finally:
            collector.close()

    async def _collect(self, collector: SpoolCollector, namespace: str, receive: Receive) -> None:
        """Receive a body. Each part must come in time, and a body that takes longer must have an average speed."""
        timeout = self._spool.policy.traffic.body_timeout
        deadline = anyio.current_time() + timeout
        size, has_more = 0, True
        while has_more:
            with anyio.CancelScope(deadline=min(anyio.current_time() + timeout, deadline)) as waiting:
                message = await receive()
            if waiting.cancelled_caught:
                reason = f"The body was too slow. See `limits.body_timeout` ({timeout:g} s)."
                slow = reject(408, types.INVALID_REQUEST, reason)
                slow.response.headers["connection"] = "close"  # the rest of the body would keep it open
                raise slow
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            part = message.get("body", b"")
            size += len(part)
            received = anyio.current_time()
            await wait_for_turn(namespace)
            deadline += len(part) / _MIN_BYTES_PER_SECOND + anyio.current_time() - received
            collector.add(part)
            # A body over the limit is received with the id at its end, but not without an end.
            has_more = message.get("more_body", False) and size <= 2 * self._spool.policy.max_message_bytes

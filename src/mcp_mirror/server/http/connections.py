"""One HTTP connection, and the steps from received bytes to a request of the ASGI application.

The limits that it shares with the other connections are in `connection_limits`.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote

from starlette.types import Scope
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from mcp_mirror.server.http.connection_limits import Connections, find_network
from mcp_mirror.server.http.exchange import Exchange, HeldFlow
from mcp_mirror.server.http.parser import HeadTooLargeError, InvalidRequestError, RequestHead, RequestParser
from mcp_mirror.system.shared_timer import SharedTimer

_CONNECTION: Final = "mcp_mirror.connection"
"""The key of the connection in the state of an ASGI scope."""
_HANDOVER_RETRY: Final = 0.005
"""Seconds between two attempts to give a connection to another worker."""
_MIN_READ: Final = 32 << 10
"""Bytes that a connection reads at once, if they are not the rest of a body or of a chunk."""
_LAST_REQUEST: Final = 0.5
"""Seconds after the start of a shutdown in which idle connections still accept a request."""
_AFTER_HANDSHAKE: Final = frozenset({b"mcp-session-id", b"mcp-protocol-version"})
"""Headers of requests after the handshake of 2025-11-25, and of all requests of 2026-07-28. Others may be handshakes,
which take as long as several calls."""
_MAX_SEARCHED: Final = 4096
"""Bytes of a request that waits for its turn in which these headers are searched."""


def find_connection(scope: Scope) -> "LimitedProtocol | None":
    """Return the connection of a request; None if another server has received it."""
    connection: LimitedProtocol | None = scope.get("state", {}).get(_CONNECTION)
    return connection


class LimitedProtocol(HttpToolsProtocol):
    """A connection: uvicorn's HTTP protocol with limits, and with a parser that reads one request after the other.

    asyncio calls the first four methods. Received bytes pass through the next ones in their order, up to the start of
    the ASGI application, which takes the body and watches for a disconnect. The server calls `shutdown`.
    """

    app: Any
    cycle: Exchange | None  # type: ignore[assignment]  # None before the first request and after the end
    flow: HeldFlow

    def __init__(self, connections: Connections, *, received: bytes = b"", **keys: Any) -> None:
        """Create a connection; another worker process may have read bytes from it. `keys` are uvicorn's arguments."""
        super().__init__(**keys)
        self._requests = RequestParser(connections.policy.max_header_bytes)
        self._received = received
        self._scope_state = {**self.app_state, _CONNECTION: self}
        self.on_disconnect: Callable[[], object] | None = None
        """Called if the client disconnects; None without a request that waits for it."""
        self.address = ""
        self.is_admitted = False
        """Whether the gateway has admitted a request, so that the connection is not pending any more."""
        self._ends_after_request = False
        """The client sends no more, and its last request is queued."""
        self._connections = connections
        self._deadline: SharedTimer | None = None
        """The timer that closes the connection; None while the server handles a request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Count the connection, and close or refuse it if there are too many."""
        super().connection_made(transport)
        self.flow = HeldFlow(transport)
        self._limit_read()
        self.address = find_network(self.client[0] if self.client else "")
        if not self._connections.add(self):
            self.app = self._connections.refuse
        if self._connections.is_overrun:
            self.drop()
        else:
            self.data_received(self._received)
            self._received = b""
        if self._connections.is_shutting_down:
            self.shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the count, and leave no circle of objects, which would stay in memory for long."""
        self._release()
        self._requests.close()
        super().connection_lost(exc)
        self.cycle = None
        self._scope_state.clear()
        if self.on_disconnect is not None:
            self._connections.report_disconnect(self)

    def data_received(self, data: bytes) -> None:
        """Parse bytes of the client."""
        self._requests.received += data
        if self._is_queued:
            self.flow.pause_reading()
            return
        self._handle_received()
        self._limit_read()

    def eof_received(self) -> bool:  # type: ignore[override]  # as asyncio has it
        """Close the connection, but not before a queued request has begun: the client has not cancelled it."""
        self._ends_after_request = self._is_queued
        return self._ends_after_request

    def _handle_received(self) -> None:
        """Parse the received bytes up to the end of a request, and answer an invalid one."""
        try:
            self._read_request()
        except InvalidRequestError as error:
            self._close_with(400, str(error))
        except HeadTooLargeError as error:
            self._close_with(431, str(error))
        self._update_limits()

    def _read_request(self) -> None:
        """Add a body to the present request, and begin the next one after the end of its response."""
        requests = self._requests
        while not self.transport.is_closing():
            if requests.is_in_body:
                if (body := self._connections.chunk_turns.read_body(self, requests)) is None:
                    return
                self._add_body(body)
            elif self._is_serving:
                if requests.received:
                    self.flow.pause_reading()
                return
            else:
                may_begin = requests.received and not self._hand_over() and self._connections.turns.take(self)
                if not may_begin or (head := requests.read_head()) is None:
                    return
                self._begin(head)

    def _hand_over(self) -> bool:
        """Give the connection to another worker if its next request belongs there. Return whether it does."""
        handover, received = self._connections.handover, self._requests.received
        if handover is None or (owner := handover.find_owner(received)) is None:
            return False
        connection = self.transport.get_extra_info("socket").fileno()
        try:
            is_given = not self.transport.get_write_buffer_size() and handover.give(owner, connection, bytes(received))
        except OSError:
            return False  # this worker answers that the session does not exist
        if is_given:
            self.drop()
        else:
            self.flow.pause_reading()
            self.loop.call_later(_HANDOVER_RETRY, self.resume)
        return True

    def _begin(self, head: RequestHead) -> None:
        if head.method == "POST" and _AFTER_HANDSHAKE.isdisjoint(name for name, _ in head.headers):
            self._connections.turns.take_all()
        head.use_origin_form()
        raw_path, _, query = head.target.partition(b"?")
        scope: Any = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": head.version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": head.method,
            "root_path": self.root_path,
            "path": unquote(raw_path.decode()),
            "raw_path": raw_path,
            "query_string": query,
            "headers": head.headers,
            "state": self._scope_state.copy(),
        }
        self.cycle = Exchange(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=head.expects_continue,
            keep_alive=head.keeps_alive and not self._connections.is_shutting_down,
            on_response=self.on_response_complete,
        )
        self._add_body(b"")
        self._start_asgi_task(self.cycle, self.app)

    def _add_body(self, body: bytes) -> None:
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return
        cycle.body += body
        cycle.more_body = self._requests.is_in_body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        if body or not cycle.more_body:
            cycle.message_event.set()

    def resume(self) -> None:
        """Handle the received bytes: called when a queued request or a chunk has its turn, or to hand over again."""
        if not self.transport.is_closing():
            self.flow.release()
            self._handle_received()
            if self._ends_after_request and not self.flow.read_paused:  # paused: the bytes still wait
                self.transport.close()

    def on_response_complete(self) -> None:
        """Handle the next request, or wait for it: called by the exchange."""
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        if self._requests.received:
            self._handle_received()
        else:
            self._update_limits()

    @property
    def may_be_handshake(self) -> bool:
        """Whether the request that has arrived may be a handshake."""
        received = bytes(self._requests.received[:_MAX_SEARCHED]).lower()
        return not any(header in received for header in _AFTER_HANDSHAKE)

    def take_body(self) -> bytes | None:
        """Return the body of the request if it has been received completely and not been read; else None.

        This costs less than to receive it as an ASGI message within a timeout.
        """
        return self.cycle.take_body() if self.cycle is not None else None

    def watch_disconnect(self, callback: Callable[[], object]) -> None:
        """Set the function that is called if the client disconnects, and call it if it has."""
        self.on_disconnect = callback
        if self.transport.is_closing():
            if self.cycle is not None:  # asyncio reports the end in a later pass
                self.cycle.disconnected = True
            callback()

    def unwatch_disconnect(self, callback: Callable[[], object]) -> None:
        """Forget the function of a request, and not that of the next one, which may have begun already."""
        if self.on_disconnect == callback:
            self.on_disconnect = None

    def shutdown(self) -> None:
        """Close the connection after its request, or after one that its client has already sent.

        The close of a connection with unread bytes resets it, and the client would not learn why.
        """
        if self.cycle is not None and self._is_serving:
            self.cycle.keep_alive = False
        else:
            self.loop.call_later(_LAST_REQUEST, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if not self._is_serving and not self._is_queued:
            self.transport.close()

    def drop(self) -> None:
        """Close the connection immediately, without a response."""
        self._release()
        self.transport.abort()

    @property
    def _is_serving(self) -> bool:
        """From the head of a request to the end of its response; the body may still arrive."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _is_queued(self) -> bool:
        """A request has arrived, and waits for the requests of other connections to begin."""
        return self._connections.turns.has(self)

    def _update_limits(self) -> None:
        """Set the deadline, and whether the connection waits for a head, after a change."""
        if self.transport.is_closing():
            self._release()
        elif self._is_serving or self._is_queued:
            self._set_deadline(None)
            self._connections.remove_waiting(self)
        else:
            is_idle = self.cycle is not None and self._requests.is_at_start  # after a response
            self._set_deadline(self._connections.idle_deadline if is_idle else self._connections.head_deadline)
            self._connections.add_waiting(self)

    def _limit_read(self) -> None:
        """Set how many bytes asyncio reads at once: few if they may be many small chunks, which are slow to parse."""
        self.transport.max_size = max(_MIN_READ, min(self._requests.missing, self._connections.max_read))  # type: ignore[attr-defined]

    def _set_deadline(self, deadline: SharedTimer | None) -> None:
        """Start another timer; leave a running one as it is."""
        if deadline is not self._deadline:
            if self._deadline is not None:
                self._deadline.cancel(self)
            if deadline is not None:
                deadline.start(self, self._close_at_deadline)
            self._deadline = deadline

    def _close_at_deadline(self) -> None:
        if self._requests.is_at_start:
            self.transport.close()  # it counts until the client has read the last response
        else:
            seconds = f"{self._connections.policy.header_timeout:g} s"
            self._close_with(408, f"The request's head took over {seconds} (`limits.header_timeout`).")

    def _close_with(self, status: int, message: str) -> None:
        """Send a response if the client can receive one now, and close the connection."""
        self._connections.report_rejection(status, message)
        has_begun = self.cycle is not None and self.cycle.response_started
        if (self._requests.is_in_body and has_begun) or self.transport.get_write_buffer_size():
            self.drop()
            return
        body = message.encode()
        head = b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()
        self._release()

    def _release(self) -> None:
        self._set_deadline(None)
        self._connections.remove(self)

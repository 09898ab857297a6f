"""The messages to a client on the stream of one of its requests over Streamable HTTP, before the outcome."""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Final

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError, NoBackChannelError
from starlette.types import Scope

from mcp_mirror.server.cancel_scopes import CANCELLED
from mcp_mirror.server.client_channel import (
    ClientResponse,
    RequestStream,
    SdkStream,
    Session,
    read_client_result,
    refused_error,
    timeout_error,
)

_LAST_WRITE: Final = 5.0
"""Seconds that the cancellation of a request to the client may take."""
_ID_PREFIX: Final = "direct-"
"""The beginning of the ids of requests to clients; the SDK's ids are numbers."""
_OPEN_STREAM: Final = "mcp_mirror.open_stream"
EVENT: Final = b"event: message\r\ndata: "
EVENT_END: Final = b"\r\n\r\n"

_ids: Final = count(1)

StreamOpener = Callable[[Session, SdkStream], RequestStream]
"""Returns the stream of a request in a session; `SdkStream` is what the SDK offers for it."""


def offer_stream(scope: Scope, open_stream: StreamOpener) -> Scope:
    """Return the ASGI scope of a request that the SDK answers, with its stream for `find_stream`."""
    return {**scope, _OPEN_STREAM: open_stream}


def find_stream(scope: Scope, session: Session, sdk_stream: SdkStream) -> RequestStream:
    """Return the stream of a request in a session that the SDK answers; the SDK's own if none was offered."""
    open_stream: StreamOpener | None = scope.get(_OPEN_STREAM)
    return sdk_stream if open_stream is None else open_stream(session, sdk_stream)


class SessionStream(ABC):
    """The messages to a client before the outcome of one of its requests.

    After the outcome, requests to the client and their cancellations go to the stream of the session.
    """

    def __init__(self, session: Session | None) -> None:
        """Create the stream; without a `session`, the client gets only notifications."""
        self._session = session
        self._is_closed = False
        self._lock: anyio.Lock | None = None
        """Keeps the order of events; None before the first one."""

    @property
    def is_closed(self) -> bool:
        """Nothing more is sent: the outcome was, the call has ended without one, or the client has disconnected."""
        return self._is_closed

    def close(self) -> None:
        """Send no more messages."""
        self._is_closed = True

    @property
    def lock(self) -> anyio.Lock:
        """Held while an event is written."""
        self._lock = self._lock or anyio.Lock()
        return self._lock

    @abstractmethod
    async def _write(self, event: bytes) -> None:
        """Write an event at once, so that a cancelled call leaves no part of one."""

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification; see `RequestStream.notify`."""
        await self._send_event(_encode_message({"method": method, "params": dict(params)}))

    async def request(self, method: str, params: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """Send a request; see `RequestStream.request`."""
        if (session := self._session) is None:
            raise refused_error(NoBackChannelError(method))
        response = await self._exchange(session, method, params, seconds)
        if response is None:
            return await SdkStream(session.server_session, None).request(method, params, seconds)
        if isinstance(response, types.JSONRPCError):
            raise refused_error(MCPError.from_error_data(response.error))
        return read_client_result(method, session.server_session.protocol_version, response.result)

    async def _exchange(
        self, session: Session, method: str, params: Mapping[str, Any], seconds: float
    ) -> ClientResponse | None:
        """Send a request and return its response; None, with nothing sent, after the outcome."""
        request_id, is_sent = f"{_ID_PREFIX}{next(_ids)}", False
        message = {"id": request_id, "method": method, **({"params": dict(params)} if params else {})}
        future: asyncio.Future[ClientResponse] = asyncio.get_running_loop().create_future()
        session.client_responses[request_id] = future
        try:
            async with self.lock:
                if self.is_closed:
                    return None
                is_sent = True
                await self._write(_encode_message(message))
            with anyio.fail_after(seconds):
                return await future
        except TimeoutError:
            await self._cancel_request(session, request_id, f"timed out after {seconds}s")
            raise timeout_error(seconds) from None
        except anyio.get_cancelled_exc_class():
            if is_sent:
                await self._cancel_request(session, request_id, "caller cancelled")
            raise
        finally:
            del session.client_responses[request_id]

    async def _cancel_request(self, session: Session, request_id: str, reason: str) -> None:
        """Cancel a request to the client, after the outcome of the call on the stream of the session."""
        stream = SdkStream(session.server_session, None) if self.is_closed else self
        with anyio.move_on_after(_LAST_WRITE, shield=True):
            await stream.notify(CANCELLED, {"requestId": request_id, "reason": reason})

    async def _send_event(self, event: bytes) -> None:
        """Send an event; send nothing after the outcome."""
        async with self.lock:
            if not self.is_closed:
                await self._write(event)


def _encode_message(message: Mapping[str, Any]) -> bytes:
    """Return a JSON-RPC message as an event."""
    return EVENT + json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + EVENT_END

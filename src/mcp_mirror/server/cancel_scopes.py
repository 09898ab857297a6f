"""Cancelled requests: the error that answers them, and the cancel scopes of direct requests; see `direct_path`."""

from types import TracebackType
from typing import Final, Self

import anyio
import mcp_types as types
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params

from mcp_mirror.payload.json_rpc import RequestId

CANCELLED: Final = "notifications/cancelled"
STOPPING: Final = "The gateway is stopping: it accepts no new requests. Repeat this one when the gateway serves again."
STOPPED: Final = types.ErrorData(
    code=types.INTERNAL_ERROR,
    message="The gateway is stopping and has cancelled this request, which may have had effects. Repeat it when the "
    "gateway serves again.",
)
"""The error for an open request that the end of the gateway cancels."""


def find_cancelled_id(message: types.JSONRPCMessage) -> RequestId | None:
    """Return the id of the request that a message cancels, as the SDK compares ids; None for other messages."""
    if not isinstance(message, types.JSONRPCNotification) or message.method != CANCELLED:
        return None
    cancelled = cancelled_request_id_from_params(message.params)
    return None if cancelled is None else coerce_request_id(cancelled)


class RequestScope:
    """The cancel scope of one request, which can be cancelled before it is entered.

    A request is opened in a callback of the event loop. There, anyio creates no scope if the package `sniffio` is
    installed, which knows only the library of a task.
    """

    def __init__(self) -> None:
        self.cancel_called = False
        self.is_interrupted = False
        """The end of the connection cancelled it."""
        self._scope: anyio.CancelScope | None = None

    def cancel(self) -> None:
        """Cancel the request, also if it has not begun."""
        self.cancel_called = True
        if self._scope is not None:
            self._scope.cancel()

    def __enter__(self) -> Self:
        self._scope = anyio.CancelScope()
        self._scope.__enter__()
        if self.cancel_called:
            self._scope.cancel()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        assert self._scope is not None  # noqa: S101  # a scope is entered first
        return self._scope.__exit__(kind, error, trace)


class CancelScopes:
    """The cancel scopes of the running direct requests of one client, by their ids as the SDK compares ids."""

    def __init__(self) -> None:
        self._scopes: dict[RequestId, RequestScope] = {}

    def __len__(self) -> int:
        return len(self._scopes)

    def open(self, request_id: RequestId) -> RequestScope:
        """Return the scope in which a new request must run."""
        scope = self._scopes[coerce_request_id(request_id)] = RequestScope()
        return scope

    def close(self, request_id: RequestId, scope: RequestScope) -> None:
        """Forget a request that has ended, but not a later one with its id."""
        if self._scopes.get(coerce_request_id(request_id)) is scope:
            del self._scopes[coerce_request_id(request_id)]

    def apply(self, message: types.JSONRPCMessage) -> None:
        """Cancel the request that a message of the client cancels; forget one whose id the message uses again."""
        if isinstance(message, types.JSONRPCRequest):
            self._scopes.pop(coerce_request_id(message.id), None)  # a later cancellation is for the new request
        elif (cancelled := find_cancelled_id(message)) is not None and cancelled in self._scopes:
            self._scopes[cancelled].cancel()

    def cancel_all(self) -> None:
        """Cancel all requests."""
        for scope in tuple(self._scopes.values()):
            scope.cancel()

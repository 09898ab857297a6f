"""The cancel scopes of direct requests; see `direct_path`."""

from typing import Final

import anyio
import mcp_types as types
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params

from mcp_mirror.payload.json_rpc import RequestId

CANCELLED: Final = "notifications/cancelled"


class CancelScopes:
    """The cancel scopes of the running direct requests of one client, by their ids as the SDK compares ids."""

    def __init__(self) -> None:
        self._scopes: dict[RequestId, anyio.CancelScope] = {}

    def __len__(self) -> int:
        return len(self._scopes)

    def open(self, request_id: RequestId) -> anyio.CancelScope:
        """Return the scope in which a new request must run."""
        scope = self._scopes[coerce_request_id(request_id)] = anyio.CancelScope()
        return scope

    def close(self, request_id: RequestId, scope: anyio.CancelScope) -> None:
        """Forget a request that has ended, but not a later one with its id."""
        if self._scopes.get(coerce_request_id(request_id)) is scope:
            del self._scopes[coerce_request_id(request_id)]

    def apply(self, message: types.JSONRPCMessage) -> None:
        """Cancel the request that a message of the client cancels; forget one whose id the message uses again."""
        if isinstance(message, types.JSONRPCRequest):
            self._scopes.pop(coerce_request_id(message.id), None)  # a later cancellation is for the new request
        elif isinstance(message, types.JSONRPCNotification) and message.method == CANCELLED:
            request_id = cancelled_request_id_from_params(message.params)
            scope = None if request_id is None else self._scopes.get(coerce_request_id(request_id))
            if scope is not None:
                scope.cancel()

    def cancel_all(self) -> None:
        """Cancel all requests."""
        for scope in tuple(self._scopes.values()):
            scope.cancel()

"""What the SDK gets in place of messages that it could not read, or that would cost it much."""

from typing import Final

import mcp_types as types
import msgspec
from mcp.shared.exceptions import MCPError

from mcp_mirror.payload.json_rpc import open_message
from mcp_mirror.payload.spool import Frame, answered_id
from mcp_mirror.server.client_channel import Session

_NOTIFICATION: Final = "notifications/"
"""The beginning of the methods of notifications."""
_LONG_RESPONSE: Final = 1 << 16
"""Bytes from which a response that no request awaits is not parsed."""


def read_sdk_message(stub: bytes) -> types.JSONRPCMessage:
    """Return the message that the SDK makes of a text. The SDK's own errors list every type that does not fit.

    The SDK would take a request whose id is null for a notification, and its client would wait without an end. Clients
    in some languages send notifications with such an id.

    Raises:
        MCPError: The SDK cannot read the message, or it is a request without an id. The text names the cause.
    """
    try:
        message = types.jsonrpc_message_adapter.validate_json(stub, by_name=False)
    except ValueError as failure:
        reason = "The message is not a JSON-RPC request, notification or response."
        if "recursion limit" in str(failure):  # of the SDK's parser; the gateway has read the message as JSON
            reason = "The message is nested too deep: more than 200 levels outside of `arguments`. Use fewer."
        raise MCPError(types.INVALID_REQUEST, reason) from None
    may_be_request = isinstance(message, types.JSONRPCNotification) and not message.method.startswith(_NOTIFICATION)
    if may_be_request and open_message(stub).id is None:
        raise MCPError(types.INVALID_REQUEST, "The request's `id` is null. Send a number or a text.")
    return message


def drop_unawaited_result(frame: bytes, session: Session | None, max_depth: int) -> bytes:
    """Return a long response without its result if no request to the client awaits it; other messages unchanged."""
    if len(frame) <= _LONG_RESPONSE:
        return frame
    message = open_message(frame, max_depth)
    request_id = message.id
    if not isinstance(message.result, dict) or not isinstance(request_id, int | str):
        return frame
    if session is not None and session.awaits_response(request_id):
        return frame
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "result": {}})


def refuse_response(frame: Frame, error: types.ErrorData) -> types.JSONRPCError | None:
    """Return the error in place of a client's response that cannot be read; None for a message of another kind."""
    if (request_id := answered_id(frame)) is None:
        return None
    message = f"The client's response was refused. {error.message}"
    return types.JSONRPCError(jsonrpc="2.0", id=request_id, error=types.ErrorData(code=error.code, message=message))

"""Reads messages in the form of the SDK, whose own errors for other messages list every type that does not fit.

The module must not know transports.
"""

import mcp_types as types


def read_sdk_message(stub: bytes) -> types.JSONRPCMessage:
    """Return the message that the SDK makes of a client's message without its parameters.

    Raises:
        ValueError: The SDK cannot read the message. The text names the cause.
    """
    try:
        return types.jsonrpc_message_adapter.validate_json(stub, by_name=False)
    except ValueError as failure:
        reason = "The message is not a JSON-RPC request, notification or response."
        if "recursion limit" in str(failure):  # of the SDK's parser; the gateway has read the message as JSON
            reason = "The message is nested too deep: more than 200 levels outside of `arguments`. Use fewer."
        raise ValueError(reason) from None

"""Turns errors into tool errors that the model reads and can act on."""

from mcp_mirror.core.replies import Reply, build_error_reply
from mcp_mirror.errors import MirrorError, RefusedError
from mcp_mirror.gateway.call import Call, Next


async def answer_errors(call: Call, call_next: Next) -> Reply:
    """Answer a call; errors become replies with `isError`.

    Raises:
        RefusedError: The client, not the model, must see the upstream's JSON-RPC error.
    """
    try:
        return await call_next(call)
    except RefusedError:
        raise
    except MirrorError as error:
        call.trace.reason = error.reason or call.trace.reason
        return build_error_reply(str(error))

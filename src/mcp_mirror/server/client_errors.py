"""The JSON-RPC errors that clients get for exceptions, on the SDK's path and on the direct one."""

import logging
from typing import Final

import mcp_types as types
from mcp.shared.jsonrpc_dispatcher import handler_exception_to_error_data

from mcp_mirror.core.replies import MAX_ERROR_BYTES
from mcp_mirror.errors import BusyError, MirrorError, RefusalReason, RefusedError, ToolError, UpstreamError
from mcp_mirror.observability.audit import Audit, AuditRecord
from mcp_mirror.security.sanitize import sanitize_ends
from mcp_mirror.system.installation import is_replaced
from mcp_mirror.system.resources import explain_shortage

_logger = logging.getLogger(__name__)

_FAULT: Final = "The gateway failed because of an error in its program. Ask the operator to read the gateway's log."

_REPLACED: Final = (
    "mcp-mirror was upgraded or removed while this gateway runs. Restart the gateway, or the client that started it."
)


def build_error_data(error: Exception, audit: Audit, namespace: str, method: str) -> types.ErrorData:
    """Return an exception as the client gets it; errors of upstreams keep their code, message and data.

    Of an unexpected exception, the log gets the place. Its message may quote a value that the flow policy hides, or
    a file of this machine.
    """
    if data := handler_exception_to_error_data(error):
        return data
    if isinstance(error, BusyError):  # that of an upstream has a record already
        audit.write(AuditRecord("refusal", namespace, method, RefusalReason.BUSY))
    if isinstance(error, BusyError | UpstreamError) and error.retry_after:
        after = {"retryAfter": error.retry_after}
        return types.ErrorData(code=types.INTERNAL_ERROR, message=str(error), data=after)
    if isinstance(error, RefusedError):
        message = sanitize_ends(error.peer_message, MAX_ERROR_BYTES)
        return types.ErrorData(code=error.code, message=message, data=error.data)
    if isinstance(error, MirrorError):
        code = types.INVALID_PARAMS if isinstance(error, ToolError) else types.INTERNAL_ERROR
        return types.ErrorData(code=code, message=sanitize_ends(str(error), MAX_ERROR_BYTES))
    if is_replaced():
        _logger.error("%s A handler for %r raised", _REPLACED, method, exc_info=error)
        return types.ErrorData(code=types.INTERNAL_ERROR, message=_REPLACED)
    _logger.error("handler for %r raised", method, exc_info=error)
    shortage = explain_shortage(error)
    message = f"The request failed: {shortage}." if shortage else _FAULT
    return types.ErrorData(code=types.INTERNAL_ERROR, message=message)

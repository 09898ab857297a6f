"""HTTP requests that the gateway rejects before they reach MCP: their responses, and the reports about them."""

import logging
from collections import Counter
from typing import Final

import mcp_types as types
from starlette.responses import JSONResponse

from mcp_mirror.observability.audit import Audit, AuditRecord
from mcp_mirror.payload.json_rpc import RequestId

_logger = logging.getLogger(__name__)

_RETRY_AFTER: Final = 5
"""Seconds."""


def build_error_response(status: int, code: int, message: str, request_id: RequestId | None = None) -> JSONResponse:
    """Return an HTTP response with a JSON-RPC error."""
    body = {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}
    return JSONResponse(body, status)


def build_busy_response(status: int, name: str, limit: int, fact: str) -> JSONResponse:
    """Return the response to a request over a limit: its name and value, and what has reached it."""
    message = f"`limits.{name}` ({limit:,}) {fact}. Try again in {_RETRY_AFTER} s."
    response = build_error_response(status, types.INTERNAL_ERROR, message)
    response.headers["retry-after"] = str(_RETRY_AFTER)
    return response


class RejectedRequests:
    """Records rejected requests in the audit log and in the log, and counts them."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self.counts: Final[Counter[str]] = Counter()
        """The number of rejected requests by reason."""

    def report(self, reason: str, explanation: str, namespace: str = "") -> None:
        """Report one request.

        Args:
            reason: The outcome in the audit log, one of a few fixed texts.
            explanation: A sentence for the log, without text of the client.
            namespace: The principal's; empty if it is not known.
        """
        self._audit.write(AuditRecord("refusal", namespace, "", reason))
        _logger.info("Rejected a request: %s. %s", reason, explanation)
        self.counts[reason] += 1

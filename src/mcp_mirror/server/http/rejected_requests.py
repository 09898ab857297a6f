"""HTTP requests that the gateway rejects before they reach MCP: their responses, and the reports about them.

Anybody may send requests without a valid token, as many as the network carries. Of these, only the first in each
minute are recorded one by one, so that no client can fill the disk with records; one more record has the number of the
others.
"""

import asyncio
import logging
from collections import Counter
from typing import Final

import mcp_types as types
from starlette.responses import JSONResponse, Response

from mcp_mirror.observability.audit import Audit, AuditRecord
from mcp_mirror.payload.json_rpc import RequestId

_logger = logging.getLogger(__name__)

_RETRY_AFTER: Final = 5
"""Seconds."""
_MAX_RECORDED: Final = 100
"""Requests of unknown senders that are recorded one by one in an interval, for each reason."""
UNKNOWN_SESSION: Final = "unknown session"


class RejectedError(Exception):
    """The endpoint rejects a request with a response."""

    def __init__(self, response: Response, outcome: str = "") -> None:
        """`outcome`: that in the audit log; empty for the usual one of the response's status."""
        super().__init__(response.status_code)
        self.response = response
        self.outcome = outcome


def reject(status: int, code: int, message: str, request_id: RequestId | None = None) -> RejectedError:
    """Return the exception for a request that a JSON-RPC error rejects."""
    return RejectedError(build_error_response(status, code, message, request_id))


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

    def __init__(self, audit: Audit, interval: float = 60.0) -> None:
        """Report to an audit log. `interval`: seconds after which the requests of unknown senders are counted again."""
        self._audit = audit
        self._interval = interval
        self._unknown: Counter[str] = Counter()
        """The requests of unknown senders in the current interval of each reason."""
        self.counts: Final[Counter[str]] = Counter()
        """The number of rejected requests by reason."""

    def report(self, reason: str, explanation: str, namespace: str = "") -> None:
        """Report one request: its outcome in the audit log, a fixed text; a sentence for the log, without client text.

        `namespace` is empty if the principal is not known.
        """
        self.counts[reason] += 1
        if not namespace and not self._admit(reason):
            return
        self._audit.write(AuditRecord("refusal", namespace, "", reason))
        _logger.info("Rejected a request: %s. %s", reason, explanation)

    def report_response(self, status: int, outcome: str, namespace: str) -> None:
        """Report a request by the status of its response; `outcome` is the reason in the audit log."""
        self.report(outcome, f"The response has HTTP status {status}.", namespace)

    def _admit(self, reason: str) -> bool:
        """Whether to record one more request of an unknown sender."""
        self._unknown[reason] += 1
        if self._unknown[reason] == 1:
            asyncio.get_running_loop().call_later(self._interval, self._end_interval, reason)
        return self._unknown[reason] <= _MAX_RECORDED

    def _end_interval(self, reason: str) -> None:
        unrecorded = self._unknown.pop(reason, 0) - _MAX_RECORDED
        if unrecorded > 0:
            self._audit.write(AuditRecord("refusal", "", "", reason, requests=unrecorded))
            _logger.info("Rejected %d more requests: %s.", unrecorded, reason)

    def close(self) -> None:
        """Record the requests that were only counted, before the audit log is closed."""
        for reason in tuple(self._unknown):
            self._end_interval(reason)

"""HTTP requests that the gateway rejects before they reach MCP: recorded in the audit log, logged and counted."""

import logging
from collections import Counter
from typing import Final

from mcp_mirror.observability.audit import Audit, AuditRecord

_logger = logging.getLogger(__name__)


class RejectedRequests:
    """Reports rejected requests."""

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

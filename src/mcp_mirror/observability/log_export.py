"""Export of the log by OpenTelemetry, with the extra `otel`.

The SDK's own handler exports messages and tracebacks of exceptions, which may quote values. This handler exports the
text that standard error gets.
"""

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context, get_current
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import INVALID_SPAN, get_current_span, set_span_in_context

from mcp_mirror.observability.logging import OWN_LOGGER

_SEVERITIES: Final[Mapping[int, tuple[str, SeverityNumber]]] = MappingProxyType(
    {
        logging.DEBUG: ("DEBUG", SeverityNumber.DEBUG),
        logging.INFO: ("INFO", SeverityNumber.INFO),
        logging.WARNING: ("WARN", SeverityNumber.WARN),
        logging.ERROR: ("ERROR", SeverityNumber.ERROR),
        logging.CRITICAL: ("FATAL", SeverityNumber.FATAL),
    }
)
_NO_SPAN: Final = set_span_in_context(INVALID_SPAN, Context())


class LogExport(logging.Handler):
    """Exports the gateway's own log records until `close`. A thread of the SDK sends them in batches."""

    def __init__(self, formatter: logging.Formatter, resource: Resource) -> None:
        """Start the export.

        Args:
            formatter: Returns the message of a record, redacted.
            resource: The source of the records.
        """
        super().__init__()
        self.setFormatter(formatter)
        self._provider = LoggerProvider(resource, shutdown_on_exit=False)
        self._provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
        logging.getLogger(OWN_LOGGER).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, with the context of the current span."""
        text, number = _SEVERITIES.get(record.levelno, (record.levelname, SeverityNumber.UNSPECIFIED))
        self._provider.get_logger(record.name).emit(
            LogRecord(
                timestamp=int(record.created * 1e9),
                # A connection that a call opens has the span of the call as its current one, also after the call.
                context=get_current() if get_current_span().is_recording() else _NO_SPAN,
                severity_text=text,
                severity_number=number,
                body=self.format(record),
            )
        )

    def close(self) -> None:
        """Export the last records."""
        logging.getLogger(OWN_LOGGER).removeHandler(self)
        self._provider.shutdown()
        super().close()

"""The signals of a gateway for monitoring systems: each is None unless it is configured."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mcp_mirror.observability.metrics import Metrics
    from mcp_mirror.observability.tracing import Tracing


@dataclass(frozen=True, slots=True)
class Signals:
    """Metrics and traces."""

    metrics: "Metrics | None" = None
    tracing: "Tracing | None" = None

    def close(self) -> None:
        """Export the last traces."""
        if self.tracing is not None:
            self.tracing.close()


NO_SIGNALS: Final = Signals()

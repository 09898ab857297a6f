"""The signals of a gateway for monitoring systems: each is None unless it is configured."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mcp_mirror.observability.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Signals:
    """Metrics."""

    metrics: "Metrics | None" = None


NO_SIGNALS: Final = Signals()

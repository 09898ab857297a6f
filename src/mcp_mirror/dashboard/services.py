"""The objects that the dashboard works on."""

from collections.abc import Callable
from dataclasses import dataclass

from mcp_mirror.observability.audit import NO_AUDIT, Audit
from mcp_mirror.security.flows import Flows
from mcp_mirror.settings.dashboard import DashboardPolicy
from mcp_mirror.settings.policies import MirrorPolicy
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.base import Store
from mcp_mirror.workers.frames import FrameScanner
from mcp_mirror.workers.queries import QueryRunner


@dataclass(frozen=True, slots=True)
class DashboardServices:
    """A store and the objects that read it."""

    store: Store
    scanner: FrameScanner
    queries: QueryRunner
    policy: DashboardPolicy
    limits: StorePolicy
    """The quotas of the store."""
    mirror: MirrorPolicy
    """The style and the budget of notices."""
    read_flows: Callable[[], Flows]
    """Returns the current flow policy."""
    version: str
    timeout: float
    """Seconds that one query of a value may take."""
    audit: Audit = NO_AUDIT
    on_change: Callable[[str], None] = lambda _namespace: None
    """Called with a namespace after one of its values was deleted."""

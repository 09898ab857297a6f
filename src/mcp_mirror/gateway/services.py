"""The objects that all calls share. They outlive every reload."""

from collections.abc import Callable
from uuid import UUID

import msgspec

from mcp_mirror.memory.code.sandbox import Sandbox
from mcp_mirror.memory.usage import UsageCounter
from mcp_mirror.memory.value_writer import ValueWriter
from mcp_mirror.observability.audit import Audit
from mcp_mirror.payload.spool import Spool
from mcp_mirror.security.sanitize import PathHasher
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.upstreams.elicitation import SuspendedCalls
from mcp_mirror.upstreams.registry import UpstreamRegistry
from mcp_mirror.workers.frames import FrameScanner
from mcp_mirror.workers.queries import QueryRunner
from mcp_mirror.workers.schemas import SchemaWorkers
from mcp_mirror.workers.sql import SqlWorkers


class Services(msgspec.Struct, frozen=True):
    """Upstreams, store, worker processes and logs."""

    upstreams: UpstreamRegistry
    writer: ValueWriter
    scanner: FrameScanner
    queries: QueryRunner
    schema_workers: SchemaWorkers
    spool: Spool
    limits: WirePolicy
    """The limits at the start of the gateway; a reload does not change them."""
    new_id: Callable[[], UUID]
    """Returns a UUID of version 4."""
    usage_counter: UsageCounter
    path_hasher: PathHasher
    """Hashes paths for the log."""
    audit: Audit
    sandbox: Sandbox | None
    """Runs scripts; None without the extra `code`."""
    sql: SqlWorkers | None
    """Runs SQL queries; None without the extra `sql`."""
    suspended_scripts: SuspendedCalls
    """Scripts that wait for the answer of a user whose client repeats the call with it."""

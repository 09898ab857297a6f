"""The objects that all calls share. They outlive every reload."""

from collections.abc import Callable
from uuid import UUID

import msgspec

from mcp_mirror.memory.code.sandbox import Sandbox
from mcp_mirror.memory.tools.tool import Memory
from mcp_mirror.memory.usage import UsageCounter
from mcp_mirror.memory.value_writer import ValueWriter
from mcp_mirror.observability.audit import Audit
from mcp_mirror.payload.spool import Spool
from mcp_mirror.security.flows import Flows
from mcp_mirror.security.sanitize import PathHasher
from mcp_mirror.settings.policies import Config, WirePolicy
from mcp_mirror.tokens import expected_estimator
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


def open_memory(services: Services, config: Config, flows: Flows, correlation: str) -> Memory:
    """Return what the gateway's own tools and resources work on."""
    return Memory(
        writer=services.writer,
        scanner=services.scanner,
        queries=services.queries,
        spool=services.spool,
        usage_counter=services.usage_counter,
        mirror=config.mirror,
        tools=config.memory_tools,
        limits=services.limits,
        estimate=expected_estimator(config.mirror.provider),
        new_id=services.new_id,
        audit=services.audit.with_correlation(correlation),
        flows=flows,
        sql=services.sql,
    )

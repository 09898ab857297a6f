"""The memory that the gateway's own tools and resources work on."""

from collections.abc import Callable
from uuid import UUID

import msgspec

from mcp_mirror.core.resolve import Pointer, Pointers
from mcp_mirror.errors import ToolError
from mcp_mirror.memory.code.scripts import Scripts
from mcp_mirror.memory.flow_guard import FlowGuard
from mcp_mirror.memory.lookup_errors import UnstoredResult, unknown_path_error
from mcp_mirror.memory.usage import UsageCounter
from mcp_mirror.memory.value_writer import ValueWriter
from mcp_mirror.observability.audit import Audit, CallTrace
from mcp_mirror.payload.spool import Spool
from mcp_mirror.query.windows import Budget
from mcp_mirror.security.flows import Flows
from mcp_mirror.settings.policies import MemoryToolsPolicy, MirrorPolicy, WirePolicy
from mcp_mirror.stores.base import Store
from mcp_mirror.types import Buffer
from mcp_mirror.workers.frames import FrameScanner
from mcp_mirror.workers.queries import QueryRunner
from mcp_mirror.workers.sql import SqlWorkers


class MemoryServices(msgspec.Struct, frozen=True):
    """What writes, reads and queries stored values: made once at the start, and used by all calls."""

    writer: ValueWriter
    scanner: FrameScanner
    queries: QueryRunner
    spool: Spool
    usage_counter: UsageCounter
    limits: WirePolicy
    """The limits at the start of the gateway; a reload does not change them."""
    new_id: Callable[[], UUID]
    """Returns a UUID of version 4."""
    sql: SqlWorkers | None = None
    """Runs SQL queries; None without the extra `sql`."""


class Memory(msgspec.Struct, frozen=True):
    """The memory that the gateway's own tools and resources work on."""

    services: MemoryServices
    mirror: MirrorPolicy
    tools: MemoryToolsPolicy
    estimate: Callable[[Buffer], int]
    """Returns the expected tokens of a text (UTF-8); an upper bound of them in a conversation with a token budget."""
    audit: Audit
    flows: Flows
    consent: str | None = None
    """The one flow that the user allowed for this call."""
    trace: CallTrace = msgspec.field(default_factory=CallTrace)
    """Receives the path of a value that a tool stores, and those of the values that it reads."""
    scripts: Scripts | None = None
    """Runs scripts; None outside of calls, and without the extra `code`."""
    path_slugs: frozenset[str] = frozenset()
    """The slugs of this gateway's memory paths; empty outside of calls."""
    own_tools: frozenset[str] = frozenset()
    """The names of the gateway's own tools that the client sees; empty outside of calls. Errors advise only these."""
    unstored: UnstoredResult | None = None
    """The result that the conversation got last, if that was shown whole and not stored."""

    @property
    def store(self) -> Store:
        """The store of the values."""
        return self.services.writer.store

    @property
    def can_query(self) -> bool:
        """Whether the client sees `memory_query`."""
        return "memory_query" in self.own_tools

    async def find_pointers(self, namespace: str, text: bytes) -> Pointers:
        """Find the paths in JSON text, also those to values that other processes with the same store made.

        ToolError if there are too many.
        """
        find, most = self.services.scanner.find, self.services.limits.traffic.max_pointers
        found = await find(text, self.path_slugs, most, namespace)
        if all(not isinstance(pointer, Pointer) or pointer.is_known for pointer in found):
            return found
        return await find(text, self.path_slugs | await self.store.slugs(namespace), most, namespace)

    async def unknown_path_error(self, namespace: str, text: str) -> ToolError:
        """Return the error for a path without a value, as the model wrote it."""
        return await unknown_path_error(self.store, namespace, text, self.unstored)

    def guard(self, namespace: str, tool: str) -> FlowGuard:
        """Return the flow guard for the values that a tool reads."""
        return FlowGuard(self.flows, namespace, tool, self.audit, self.trace, self.consent)

    @property
    def budget(self) -> Budget:
        """The maximum size of one answer of a reading tool."""
        return Budget(self.mirror.read_budget, self.tools.read_characters, self.estimate)

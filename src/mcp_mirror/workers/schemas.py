"""Inspects tools and validates arguments, inline, in threads or in worker processes.

If validation takes longer than its deadline, the upstream validates the arguments itself.
"""

import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Final

import msgspec
from msgspec.structs import replace

from mcp_mirror.core.schemas.argument_faults import ArgumentFault
from mcp_mirror.core.schemas.tool_inspection import InspectedTool, inspect_definition, reject_schema, verify_if_cheap
from mcp_mirror.core.schemas.validation import MAX_WORK
from mcp_mirror.settings.upstreams import UpstreamPolicy
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.system.fair_threads import run_fairly
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.system.slices import Pacer
from mcp_mirror.types import Buffer
from mcp_mirror.workers.pool import (
    DeadlineError,
    PoolError,
    PoolSize,
    PreemptedError,
    StartError,
    TransientPoolError,
    WorkerPool,
)
from mcp_mirror.workers.schema_jobs import (
    compile_schema,
    inspect_text,
    prepare,
    prepare_inspection,
    read_tool,
    try_compilation,
    validate,
)

_logger = logging.getLogger(__name__)

_SIZE: Final = PoolSize(processes=2, per_principal=1, memory=1 << 29)
_DEADLINE: Final = 0.2
"""Seconds that the validation of one call may take, and that it may wait for a worker process."""
_COMPILATION: Final = 2.0
"""Seconds that the compilation of one schema may take."""
_OVERRUNS: Final = 3
"""Deadlines that a schema may miss; after that its arguments are not validated."""
_REMEMBERED: Final = 1000
_INSPECTION: Final = 2.0
"""Seconds that the inspection of one tool may take in a worker process."""
_LISTING: Final = 10.0
"""Seconds that worker processes may take for the tools of one listing."""
_SMALL: Final = 1 << 15
"""Bytes of a definition that the event loop may inspect."""
_TOOL_CONTAINERS: Final = 30_000
"""Objects and arrays in one definition."""
_LISTING_CONTAINERS: Final = 500_000
"""Objects and arrays in all definitions of one listing."""
_PARSED_BYTES: Final = 1 << 20
"""Bytes of a definition over `limits.max_tool_bytes` whose name the event loop may look for."""
_EXPLAINED: Final = 1 << 16
"""Bytes of invalid arguments whose error message is written in a thread instead of a worker process."""
_HEAD_BYTES: Final = 1 << 12
_NAME_FIRST: Final = lazy_pattern(rb'\s*\{\s*"name"\s*:\s*"(?:[^"\\]|\\.)*+"')
_KNOWN_BYTES: Final = 16 << 20
"""Bytes of definitions in the cache of inspected tools, which take about six times as much memory."""


class SchemaWorkers:
    """Inspects tools and validates arguments, in worker processes where needed."""

    def __init__(self, child_watchdog: ChildWatchdog) -> None:
        self._pool = WorkerPool(child_watchdog, _SIZE, prepare)
        self._overruns: OrderedDict[bytes, int] = OrderedDict()
        """Missed deadlines by the digest of a schema."""
        self._known: OrderedDict[bytes, InspectedTool] = OrderedDict()
        """Inspected tools by the digest of their definition, in the order of their last use."""
        self._sizes: dict[bytes, int] = {}
        self._size = 0

    def are_valid(self, tool: InspectedTool, arguments: Buffer) -> bool:
        """Whether `validate` finds no error in arguments, as in most; False also if it may need a worker process."""
        if tool.schema_error is not None:
            return True
        text = bytes(arguments)
        if tool.check is None or tool.cost is None or tool.cost.work(text) > MAX_WORK:
            return False
        try:
            return tool.check.is_valid(json.loads(str(text, "utf-8")))
        except (ValueError, RecursionError):  # such as an integer of 5,000 digits
            return True

    async def validate(self, tool: InspectedTool, arguments: bytes, principal: str) -> tuple[ArgumentFault, ...]:
        """The faults in the arguments of a call; none if they are valid or cannot be validated in time.

        Principals take turns.
        """
        if self.are_valid(tool, arguments):
            return ()
        is_cheap = tool.cost is not None and tool.cost.work(arguments) <= MAX_WORK
        if tool.check is not None and is_cheap and len(arguments) <= _EXPLAINED:
            try:
                parsed = json.loads(str(arguments, "utf-8"))
            except (ValueError, RecursionError):
                return ()
            return await run_fairly(principal, tool.check, parsed)
        return await self._validate_in_worker(tool, arguments, principal)

    async def inspect_tools(self, policy: UpstreamPolicy, items: Sequence[Buffer]) -> tuple[InspectedTool, ...]:
        """Inspect the tools of a listing without blocking the event loop.

        Known definitions are not inspected again. A tool whose inspection takes too long is not served. Arguments of a
        tool whose schema takes too long to compile are not validated. Only tools that the policy of the upstream admits
        are inspected.
        """
        listing, pacer = _Listing(policy), Pacer()
        found: list[InspectedTool] = []
        for item in items:
            await pacer.end()
            pacer.begin()
            if listing.served > policy.bounds.max_tools:
                break
            one = await self._inspect(listing, item)
            listing.served += not one.rejection
            found.append(one)
        return tuple(found)

    async def _inspect(self, listing: "_Listing", item: Buffer) -> InspectedTool:
        """Return a tool of a listing: rejected, known, or inspected now."""
        if rejected := listing.reject_large(item):
            return rejected
        key = listing.build_key(item)
        if known := self._known.get(key):
            self._known.move_to_end(key)
            return known
        if rejected := listing.reject_uninspected(item):
            return rejected
        inspected, is_lasting = None, True
        if len(item) <= _SMALL:
            inspected = verify_if_cheap(inspect_definition(read_tool(bytes(item)), listing.policy.bounds))
        if inspected is None:
            inspected, is_lasting = await self._inspect_in_worker(listing, item)
        if is_lasting:
            self._remember(key, inspected, len(item))
        return inspected

    def _remember(self, key: bytes, tool: InspectedTool, size: int) -> None:
        self._size += size - self._sizes.get(key, 0)
        self._known[key], self._sizes[key] = tool, size
        while self._size > _KNOWN_BYTES:
            oldest, _ = self._known.popitem(last=False)
            self._size -= self._sizes.pop(oldest)

    async def _inspect_in_worker(self, listing: "_Listing", item: Buffer) -> tuple[InspectedTool, bool]:
        """Inspect a tool in a worker process. Returns the result, and whether another attempt would return the same."""
        found, is_begun = listing.without_inspection(item), False
        if listing.seconds_left <= 0:
            return found, False
        began = monotonic()
        try:
            async with self._pool.reserve(f"upstream {listing.policy.name}", listing.seconds_left) as run:
                await run(prepare_inspection, listing.seconds_left)
                is_begun = True
                found = await run(partial(inspect_text, bytes(item), listing.policy.bounds), _INSPECTION)
                if (checked := verify_if_cheap(found)) is not None:
                    return checked, True
                wrong = await run(partial(try_compilation, bytes(item)), _COMPILATION)
                return (reject_schema(found, wrong) if wrong else found), True
        except StartError as error:
            return replace(found, rejection=f"the worker process that inspects it cannot start: {error}"), False
        except PoolError as error:
            is_lasting = is_begun and not isinstance(error, PreemptedError)
            if found.rejection:
                return found, is_lasting
            why = f"its schema takes more than {_COMPILATION:g} s or too much memory to compile"
            return found.without_validation(why), is_lasting
        finally:
            listing.seconds_left -= monotonic() - began

    async def aclose(self) -> None:
        """Stop the worker processes."""
        await self._pool.aclose()

    async def _validate_in_worker(
        self, tool: InspectedTool, arguments: bytes, principal: str
    ) -> tuple[ArgumentFault, ...]:
        schema = msgspec.json.encode(tool.schema)
        digest = hashlib.sha256(schema).digest()
        if self._overruns.get(digest, 0) >= _OVERRUNS:
            return ()
        try:
            async with self._pool.reserve(principal, _DEADLINE) as run:
                faults = await run(partial(validate, digest, arguments), _DEADLINE)
                if faults is None:
                    await run(partial(compile_schema, digest, schema), _COMPILATION)
                    faults = await run(partial(validate, digest, arguments), _DEADLINE)
        except TransientPoolError:
            return ()
        except PoolError as failure:
            self._count_overrun(digest, tool.name, failure)
            return ()
        return faults or ()

    def _count_overrun(self, digest: bytes, tool: str, error: PoolError) -> None:
        self._overruns[digest] = self._overruns.pop(digest, 0) + 1
        if len(self._overruns) > _REMEMBERED:
            self._overruns.popitem(last=False)
        if self._overruns[digest] == 1:
            over = f"{1000 * _DEADLINE:g} ms" if isinstance(error, DeadlineError) else f"{_SIZE.memory or 0:,} bytes"
            _logger.warning(
                "Validating the arguments of %r takes more than %s, so only the upstream validates them.", tool, over
            )


class _Listing(msgspec.Struct):
    """The inspection of one listing, with its budgets."""

    policy: UpstreamPolicy
    served: int = 0
    containers: int = 0
    """Objects and arrays of all definitions."""
    seconds_left: float = _LISTING
    """Seconds that worker processes may still take."""

    def build_key(self, item: Buffer) -> bytes:
        """The cache key of a definition."""
        bounds = self.policy.bounds
        limits = f"{bounds.max_tool_bytes} {bounds.max_name_bytes} {bounds.max_schema_depth}"
        return hashlib.sha256(item).digest() + limits.encode()

    def reject_large(self, item: Buffer) -> InspectedTool | None:
        """A tool over `limits.max_tool_bytes`, over 1 MiB only with a name that is first; None for any other tool."""
        bounds = self.policy.bounds
        if len(item) <= bounds.max_tool_bytes:
            return None
        size = f"its definition has {len(item):,} bytes; `limits.max_tool_bytes` is {bounds.max_tool_bytes:,}"
        if len(item) > _PARSED_BYTES:
            named = _NAME_FIRST.match(item[:_HEAD_BYTES])
            item = named[0] + b"}" if named else b""
        return replace(self.without_inspection(item), rejection=size)

    def reject_uninspected(self, item: Buffer) -> InspectedTool | None:
        """A tool that is over a limit or that the policy does not admit, with only its name; None for any other tool.

        The result depends on the other tools of the listing and on the policy, so it is not remembered.
        """
        text, named = bytes(item), self.without_inspection(item)
        containers = text.count(b"{") + text.count(b"[")
        self.containers += containers
        if containers > _TOOL_CONTAINERS:
            reason = f"its definition has {containers:,} objects and arrays; {_TOOL_CONTAINERS:,} is the limit"
            return replace(named, rejection=reason)
        if self.containers > _LISTING_CONTAINERS:
            reason = f"the listing has more than {_LISTING_CONTAINERS:,} objects and arrays before it"
            return replace(named, rejection=reason)
        return None if named.name and self.policy.admits(named.name) else replace(named, rejection=None)

    def without_inspection(self, item: Buffer) -> InspectedTool:
        """A tool that takes too long to inspect, with only its name."""
        try:
            raw = {"name": msgspec.json.decode(item, type=_Named).name}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raw = {}
        return InspectedTool(raw, f"its inspection takes more than {_INSPECTION:g} s")


class _Named(msgspec.Struct):
    name: str

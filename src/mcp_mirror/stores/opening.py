"""Opens the store of a configuration, measured if metrics are served, and the spool whose files the store can link."""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

from platformdirs import user_data_path

from mcp_mirror.errors import MirrorError, StoreError
from mcp_mirror.payload.spool import Spool
from mcp_mirror.settings.policies import Config, WirePolicy
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.base import Store, Tombstone
from mcp_mirror.stores.disk.store import DiskStore
from mcp_mirror.stores.event_log import EventLog
from mcp_mirror.stores.memory import MemoryStore
from mcp_mirror.types import Buffer, Descriptor, FileSpan, Segments, Span, StoreStats, StoreTotals, Traffic

if TYPE_CHECKING:
    from mcp_mirror.stores.s3 import S3Blobs

_logger = logging.getLogger(__name__)
T = TypeVar("T")
Observe = Callable[[str, float, str], None]
"""Called after each operation with its name, its seconds, and the class of its error (empty: none)."""

_FAILED: Final = "store_error"
_CANCELLED: Final = "_OTHER"


@asynccontextmanager
async def open_store(
    config: Config, *, awaits_client: bool, observe: Observe | None
) -> AsyncIterator[tuple[Store, StorePolicy, Spool]]:
    """Open the store of a gateway for the duration of the context; yield it with its settings and a spool.

    If the configuration names no store and the disk cannot be used, the store is in memory.

    Args:
        config: The configuration.
        awaits_client: The gateway has one local client.
        observe: Measures the operations of the store; None: nothing does.

    Raises:
        StoreError: The configured store cannot be used.
    """
    chosen = config.store.kind or ("disk" if awaits_client and not config.is_transparent else "memory")
    policy = replace(config.store, kind=chosen, principals=config.auth.principals)
    if config.auth.is_required and not awaits_client:
        policy = policy.shared()
    async with AsyncExitStack() as stack:
        try:
            store, spool = await _enter_store(policy, config.limits, stack)
        except StoreError as error:
            if config.store.kind or config.store.path or config.store.encryption:
                raise
            _logger.warning("%s Until then the gateway keeps values in memory, and loses them when it ends.", error)
            policy = replace(policy, kind="memory")
            store, spool = await _enter_store(policy, config.limits, stack)
        yield store if observe is None else MeasuredStore(store, observe), policy, spool


@asynccontextmanager
async def open_persistent_store(config: Config) -> AsyncIterator[Store]:
    """Open the configured store for the duration of the context, whether or not a gateway runs.

    Raises:
        MirrorError: The store cannot be used, or is in the memory of a gateway process.
    """
    policy = replace(config.store, kind=config.store.kind or "disk")
    if policy.kind == "memory":
        raise MirrorError(
            "`store.kind: memory` keeps nothing outside the running gateway. Call its tool `memory_list` "
            "(`memory_tools: all` serves it), or set `store.kind` to disk or redis."
        )
    async with AsyncExitStack() as stack:
        store, _ = await _enter_store(policy, config.limits, stack)
        yield store


async def _enter_store(policy: StorePolicy, limits: WirePolicy, stack: AsyncExitStack) -> tuple[Store, Spool]:
    store = _STORES[policy.kind or "memory"](policy, lambda: spool.directory)
    configured = Path(policy.path) if policy.path else None
    if isinstance(store, DiskStore):  # an encrypted store cannot link messages, and its folder contains no plain text
        configured = None if policy.encryption else store.scratch
    spool = stack.enter_context(Spool(limits, configured))
    return await stack.enter_async_context(store), spool


def _open_disk(policy: StorePolicy, _: Callable[[], Path]) -> Store:
    return DiskStore(policy, time.time, Path(policy.path) if policy.path else user_data_path("mcp-mirror") / "store")


def _open_redis(policy: StorePolicy, folder: Callable[[], Path]) -> Store:
    try:
        from mcp_mirror.stores.redis.store import RedisStore  # noqa: PLC0415  # an extra
    except ModuleNotFoundError as error:
        if error.name != "redis":
            raise
        raise MirrorError("`store.kind: redis` needs an extra: pip install '.[redis]' in the checkout.") from None
    return RedisStore(policy, time.time, folder, _connect_bucket(policy.blobs) if policy.blobs else None)


def _connect_bucket(url: str) -> "S3Blobs":
    try:
        from mcp_mirror.stores.s3 import S3Blobs  # noqa: PLC0415  # an extra
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        raise MirrorError("`store.blobs` needs an extra: pip install '.[redis,s3]' in the checkout.") from None
    return S3Blobs(url)


_STORES: Final[Mapping[str, Callable[[StorePolicy, Callable[[], Path]], Store]]] = {
    "memory": lambda policy, folder: MemoryStore(policy, time.time, folder),
    "disk": _open_disk,
    "redis": _open_redis,
}
"""The constructor of each kind of store, from its settings and a function that returns a folder for its files."""


class MeasuredStore:
    """A `Store` that reports the duration and the outcome of each operation of another store."""

    def __init__(self, store: Store, observe: Observe) -> None:
        self._store = store
        self._observe = observe
        self.events: Final[EventLog] = store.events

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._store.__aexit__(*error)

    async def put(self, namespace: str, descriptor: Descriptor, blob: Segments, file: FileSpan | None = None) -> None:
        """Store a value."""
        await self._measure("put", self._store.put(namespace, descriptor, blob, file))

    async def describe(self, namespace: str, base: str) -> Descriptor | Tombstone | None:
        """The descriptor or tombstone of a value."""
        return await self._measure("describe", self._store.describe(namespace, base))

    async def read(self, namespace: str, base: str, span: Span | None = None) -> Buffer | None:
        """The bytes of a value or of a range of it."""
        return await self._measure("read", self._store.read(namespace, base, span))

    async def file_of(self, namespace: str, base: str) -> FileSpan | None:
        """The file span of a value."""
        return await self._measure("file_of", self._store.file_of(namespace, base))

    async def delete(self, namespace: str, base: str) -> bool:
        """Remove a value without a tombstone."""
        return await self._measure("delete", self._store.delete(namespace, base))

    async def list(
        self, namespace: str, *, after: str | None = None, label: str = "", limit: int | None = None
    ) -> tuple[Descriptor, ...]:
        """A page of the stored values."""
        return await self._measure("list", self._store.list(namespace, after=after, label=label, limit=limit))

    async def bases_near(self, namespace: str, text: str, limit: int) -> tuple[str, ...]:
        """The bases next to a text in alphabetical order."""
        return await self._measure("bases_near", self._store.bases_near(namespace, text, limit))

    async def newest(self, namespace: str, limit: int) -> tuple[str, ...]:
        """The bases of the newest values."""
        return await self._measure("newest", self._store.newest(namespace, limit))

    async def stats(self, namespace: str) -> StoreStats:
        """The number and bytes of the stored values, and the counted tokens."""
        return await self._measure("stats", self._store.stats(namespace))

    async def totals(self) -> StoreTotals:
        """The number and bytes of all values."""
        return await self._measure("totals", self._store.totals())

    async def count(self, namespace: str, traffic: Traffic) -> None:
        """Add to the counted tokens."""
        await self._measure("count", self._store.count(namespace, traffic))

    async def namespaces(self) -> frozenset[str]:
        """The namespaces with stored values or counted tokens."""
        return await self._measure("namespaces", self._store.namespaces())

    async def labels(self, namespace: str | None = None) -> frozenset[str]:
        """The tool labels with which bases begin."""
        return await self._measure("labels", self._store.labels(namespace))

    async def _measure(self, operation: str, work: Awaitable[T]) -> T:
        began, error = time.perf_counter(), _CANCELLED
        try:
            result = await work
            error = ""
        except StoreError:
            error = _FAILED
            raise
        finally:
            self._observe(operation, time.perf_counter() - began, error)
        return result

"""Opens the store of a configuration, measured if metrics are served, and the spool whose files the store can link."""

import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from types import SimpleNamespace
from typing import Final, TypeVar, cast

from msgspec.structs import replace
from platformdirs import user_data_path

from mcp_mirror.errors import MirrorError, StoreError
from mcp_mirror.payload.spool import Spool
from mcp_mirror.settings.policies import Config, WirePolicy
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.base import Store
from mcp_mirror.stores.disk.store import DiskStore
from mcp_mirror.stores.memory import MemoryStore

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

    If the configuration names no store and the disk cannot be used, the store is in memory. `awaits_client`: the
    gateway has one local client. `observe` measures the operations of the store.

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
        yield store if observe is None else measure_store(store, observe), policy, spool


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


async def explain_unusable_default(config: Config) -> str | None:
    """Return why a gateway on stdio cannot use the store that it opens if the configuration names none.

    None if it can, if the store does not exist yet, or if the configuration names a store.
    """
    store = config.store
    names_one = store.kind or store.path or store.encryption
    if names_one or config.is_transparent or not _has_default_folder():
        return None
    try:
        async with open_persistent_store(config):
            return None
    except StoreError as error:
        return str(error)


def _find_default_folder() -> Path:
    return user_data_path("mcp-mirror") / "store"


def _has_default_folder() -> bool:
    return os.path.lexists(_find_default_folder())


async def _enter_store(policy: StorePolicy, limits: WirePolicy, stack: AsyncExitStack) -> tuple[Store, Spool]:
    store = _create_store(policy, lambda: spool.directory)
    configured = Path(policy.path) if policy.path else None
    if isinstance(store, DiskStore):  # an encrypted store cannot link messages, and its folder contains no plain text
        configured = None if policy.encryption else store.scratch
    spool = stack.enter_context(Spool(limits, configured))
    return await stack.enter_async_context(store), spool


def _create_store(policy: StorePolicy, folder: Callable[[], Path]) -> Store:
    """Return the store, which is not open; `folder` returns a folder for its files."""
    if policy.kind == "disk":
        path = Path(policy.path) if policy.path else _find_default_folder()
        return DiskStore(policy, time.time, path)
    if policy.kind != "redis":
        return MemoryStore(policy, time.time, folder)
    with _requiring("redis", "`store.kind: redis` needs an extra: pip install 'mcp-mirror[redis]'."):
        from mcp_mirror.stores.redis.store import RedisStore  # noqa: PLC0415  # an extra
    if not policy.blobs:
        return RedisStore(policy, time.time, folder)
    with _requiring("obstore", "`store.blobs` needs an extra: pip install 'mcp-mirror[redis,s3]'."):
        from mcp_mirror.stores.s3 import S3Blobs  # noqa: PLC0415  # an extra
    return RedisStore(policy, time.time, folder, S3Blobs(policy.blobs))


@contextmanager
def _requiring(package: str, message: str) -> Iterator[None]:
    """Raise a `MirrorError` with this message if the package is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise MirrorError(message) from None


def measure_store(store: Store, observe: Observe) -> Store:
    """Return an opened store whose operations report their duration and their outcome."""
    operations = {name: partial(_measure, observe, name, getattr(store, name)) for name in _OPERATIONS}
    return cast("Store", SimpleNamespace(events=store.events, **operations))


_OPERATIONS: Final = [name for name in vars(Store) if iscoroutinefunction(vars(Store)[name]) and name[0] != "_"]


async def _measure(
    observe: Observe, operation: str, perform: Callable[..., Awaitable[T]], *arguments: object, **options: object
) -> T:
    began, error = time.perf_counter(), _CANCELLED
    try:
        result = await perform(*arguments, **options)
        error = ""
    except StoreError:
        error = _FAILED
        raise
    finally:
        observe(operation, time.perf_counter() - began, error)
    return result

"""Assembly of a gateway from a configuration: only this module opens and closes the store, upstreams and server."""

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from platformdirs import user_cache_path, user_data_path

from mcp_mirror.callers import ClientChannel
from mcp_mirror.config.lock_file import read_pins
from mcp_mirror.core.catalog import Catalog
from mcp_mirror.errors import MirrorError, StoreError
from mcp_mirror.gateway.call import Runtime, RuntimeState, Stage
from mcp_mirror.gateway.call_quotas import CallQuotas
from mcp_mirror.gateway.contents import LABELS, ContentCapture
from mcp_mirror.gateway.context_budgets import ContextBudgets
from mcp_mirror.gateway.dispatch import Dispatcher
from mcp_mirror.gateway.gateway import Gateway
from mcp_mirror.gateway.pipeline import StageDependencies, build_stages, compose, load_stages
from mcp_mirror.gateway.relay import Relay
from mcp_mirror.gateway.services import Services
from mcp_mirror.gateway.stages.call_metrics import RequestMetrics, RequestObserver
from mcp_mirror.gateway.stages.consent import UsedConsents
from mcp_mirror.gateway.subscriptions import Subscriptions
from mcp_mirror.gateway.tool_search import search_tools
from mcp_mirror.memory.code.run import RUN, RUN_TOOL
from mcp_mirror.memory.code.sandbox import PACKAGE, Sandbox
from mcp_mirror.memory.tools.table import LABELS as OWN_LABELS
from mcp_mirror.memory.tools.table import own_tools
from mcp_mirror.memory.tools.tool import MemoryTool
from mcp_mirror.memory.usage import UsageCounter
from mcp_mirror.memory.value_writer import ValueWriter
from mcp_mirror.observability.audit import Audit
from mcp_mirror.observability.audit_file import AuditFile
from mcp_mirror.observability.events import EventRecorder
from mcp_mirror.observability.logging import create_path_hasher
from mcp_mirror.observability.signals import NO_SIGNALS, Signals
from mcp_mirror.payload.spool import Spool
from mcp_mirror.query.sql import PACKAGE as SQL_PACKAGE
from mcp_mirror.security.flows import build_flows
from mcp_mirror.security.path_hash import PathHasher
from mcp_mirror.security.pins import Pins
from mcp_mirror.security.rate_limits import Limit, PrincipalLimiter, Queue
from mcp_mirror.server.announcements import Announcements
from mcp_mirror.server.change_notifier import ChangeNotifier
from mcp_mirror.server.client_channel import Session
from mcp_mirror.server.handlers import Handlers
from mcp_mirror.server.pending_payloads import PendingPayloads
from mcp_mirror.server.server import MirrorServer
from mcp_mirror.server.sessions import Sessions
from mcp_mirror.server.worker import Worker
from mcp_mirror.settings.limits import CallQuota, TrafficPolicy, find_limits
from mcp_mirror.settings.policies import Config, StorePolicy, WirePolicy
from mcp_mirror.stores.base import Store
from mcp_mirror.stores.disk.store import LISTINGS, DiskStore
from mcp_mirror.stores.measured import MeasuredStore
from mcp_mirror.stores.memory import MemoryStore
from mcp_mirror.stores.objects import ObjectBlobs
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.upstreams.connection_settings import Examine, OpenList
from mcp_mirror.upstreams.dedicated import ConnectionSlots, DedicatedConnectionPolicy
from mcp_mirror.upstreams.elicitation import SuspendedCalls
from mcp_mirror.upstreams.listing_cache import ListingCache
from mcp_mirror.upstreams.local import LocalFunctions
from mcp_mirror.upstreams.registry import UpstreamRegistry
from mcp_mirror.upstreams.upstream import ChangeListeners, UpstreamDependencies
from mcp_mirror.workers.frames import FrameScanner
from mcp_mirror.workers.queries import QueryRunner
from mcp_mirror.workers.schemas import SchemaWorkers
from mcp_mirror.workers.sql import SqlWorkers

if TYPE_CHECKING:
    from mcp_mirror.server.probes import Readiness, ShutdownNotice

_logger = logging.getLogger(__name__)

_STARTUP_SECTIONS: Final = ("store", "server", "limits", "auth", "audit", "events", "dashboard")
"""Sections of the configuration that a reload does not apply."""


@dataclass(frozen=True, slots=True)
class _StateBuilder:
    """Builds the state of a gateway from a configuration: at the start, and again at every reload."""

    services: Services
    shared: StageDependencies
    dispatch: Dispatcher
    stages: tuple[Stage, ...] = ()
    """Stages of the program that runs the gateway."""

    def build(self, config: Config, pins: Pins, catalog: Catalog, *, is_isolated: bool) -> RuntimeState:
        """Return the state for a configuration.

        Args:
            config: The configuration.
            pins: The pinned tool definitions.
            catalog: The catalog until the upstreams are listed.
            is_isolated: Several principals use the gateway.

        Raises:
            ConfigError: A stage that the configuration names cannot be loaded.
        """
        services = self.services
        flows = build_flows(config, is_isolated=is_isolated)
        custom = (*self.stages, *load_stages(config.mirror.stages))
        stages = build_stages(config, flows, self.shared, custom)
        lifetime = services.writer.lifetime.lifetime
        return RuntimeState(
            config=config,
            pins=pins,
            flows=flows,
            own_tools={
                **search_tools(config.mirror),
                **({} if config.is_transparent else self._memory_tools(config, lifetime)),
            },
            contents=ContentCapture(
                services.writer, config.mirror, services.limits, services.new_id, services.upstreams.may_show, flows
            ),
            answer=compose(stages, self.dispatch),
            catalog=catalog,
        )

    def _memory_tools(self, config: Config, lifetime: float) -> Mapping[str, MemoryTool]:
        tools = own_tools(config.memory_tools, lifetime, has_sql=self.services.sql is not None)
        if self.services.sandbox is None or not config.memory_tools.admits(RUN):
            return tools
        return {**tools, RUN: RUN_TOOL}


def _listing_of(config: Config) -> tuple[str, int]:
    return config.mirror.listing, config.mirror.listing_budget


@dataclass(frozen=True, slots=True)
class Application:
    """A running gateway."""

    config: Config
    """The configuration at the start."""
    gateway: Gateway
    server: MirrorServer
    upstreams: UpstreamRegistry
    notifier: ChangeNotifier
    builder: _StateBuilder
    audit: AuditFile | None = None
    is_local: bool = False
    """The only client is on standard streams."""
    signals: Signals = NO_SIGNALS
    shutdown_notices: "list[ShutdownNotice]" = field(default_factory=list)
    """Of each address at which orchestrators can probe the gateway."""

    def reload(self, config: Config, pins: Pins) -> tuple[str, ...]:
        """Continue with another configuration: its upstreams, twins, own tools, policies and stages.

        Calls that are in progress end under the configuration with which they began.

        Args:
            config: The configuration.
            pins: The pinned tool definitions.

        Returns:
            The changed sections that take effect only at the next start.

        Raises:
            ConfigError: A stage that the configuration names cannot be loaded. Nothing was changed.
        """
        runtime = self.gateway.runtime
        before = runtime.state
        # A reload never gives one principal the values of another.
        is_isolated = before.flows.is_isolated or (config.auth.is_required and not self.is_local)
        after = self.builder.build(config, pins, before.catalog, is_isolated=is_isolated)
        runtime.state = replace(after, catalogs=before.catalogs)
        if self.audit:
            self.audit.reopen()
        names = {one.name for one in config.upstreams}
        self.notifier.release_names(frozenset(one.name for one in before.config.upstreams) - names)
        self.upstreams.replace(config.upstreams, config.server.drain)
        for kind in ("tools", "resources", "prompts"):
            self.notifier.list_changed(kind, None)
        self.notifier.pins_changed()
        if after.own_tools.keys() != before.own_tools.keys() or _listing_of(config) != _listing_of(before.config):
            self.notifier.own_tools_changed()
        is_auth_applied = (
            self.server.apply_auth(config.auth) and before.config.auth.principals == config.auth.principals
        )
        changed = (name for name in _STARTUP_SECTIONS if getattr(before.config, name) != getattr(config, name))
        return tuple(name for name in changed if name != "auth" or not is_auth_applied)

    async def serve_http(
        self,
        host: str,
        port: int,
        announce: Callable[[str], None],
        shutdown: anyio.Event,
        worker: Worker | None = None,
    ) -> None:
        """Serve Streamable HTTP until a graceful shutdown, or until cancelled.

        Args:
            host: A loopback address; any address if the configuration requires tokens.
            port: The port; 0 for any free port.
            announce: Called with the URL once clients can connect.
            shutdown: Set to start a graceful shutdown, which answers the open requests.
            worker: This process, if it is one of several on the address.

        Raises:
            MirrorError: The address is in use, or other machines can reach it without a token.
        """
        from mcp_mirror.server.http_server import serve_http  # noqa: PLC0415  # not on stdio

        readiness = self._build_readiness(shutdown)
        await serve_http(self.server, self.config, (host, port), announce, readiness, worker)

    async def serve_metrics(self, announce: Callable[[str], None], shutdown: anyio.Event, number: int = 0) -> None:
        """Serve `server.metrics` until cancelled; return at once if it is not configured.

        Args:
            announce: Called with the URL once clients can connect.
            shutdown: Set at the start of a graceful shutdown, from which on the gateway is not ready.
            number: The number of this process among several workers, which is added to the port.

        Raises:
            MirrorError: The address is in use.
        """
        if self.config.server.metrics is None or self.signals.metrics is None:
            return
        from mcp_mirror.server.metrics_endpoint import MetricsApp, serve_metrics  # noqa: PLC0415  # only if configured

        host, _, port = self.config.server.metrics.rpartition(":")
        address = (host.strip("[]"), int(port) + number if int(port) else 0)
        app = MetricsApp(self.signals.metrics, self.config.server)
        readiness = self._build_readiness(shutdown)
        await serve_metrics(app, address, readiness, self.config.limits.traffic, announce)

    def _build_readiness(self, shutdown: anyio.Event) -> "Readiness":
        """Return the probes of one address. A shutdown waits for what probes any of them."""
        from mcp_mirror.server.probes import Readiness  # noqa: PLC0415  # not on stdio

        services = self.gateway.services
        return Readiness(services.writer.store, services.upstreams, shutdown, self.shutdown_notices)


@asynccontextmanager
async def open_application(
    config: Config,
    *,
    awaits_client: bool = False,
    functions: LocalFunctions | None = None,
    stages: Sequence[Stage] = (),
    signals: Signals = NO_SIGNALS,
) -> AsyncIterator[Application]:
    """Run the gateway of a configuration for the duration of the context.

    Args:
        config: The configuration.
        awaits_client: The first request of the only client starts the upstreams, with its capabilities.
        functions: Functions of the program that runs the gateway, as additional tools.
        stages: Stages of that program, the outermost first.
        signals: The signals for monitoring systems; see `mcp_mirror.observability.signals`.

    Yields:
        The gateway.

    Raises:
        ConfigError: The lock file cannot be read, or a stage cannot be loaded.
        MirrorError: The audit log cannot be written.
    """
    pins = read_pins(config.lock)
    with ChildWatchdog() as child_watchdog, _open_audit(config) as audit:
        async with (
            _open_store(config, signals, awaits_client=awaits_client) as (store, policy, spool),
            aclosing(FrameScanner(child_watchdog)) as scanner,
            aclosing(QueryRunner(child_watchdog)) as queries,
            aclosing(SqlWorkers(child_watchdog)) as sql_workers,
            aclosing(SchemaWorkers(child_watchdog)) as schema_workers,
            aclosing(Sandbox(config.limits.traffic)) as sandbox,
            _open_usage_counter(store) as usage_counter,
            _open_recorder(config, store) as recorder,
            anyio.create_task_group() as tasks,
        ):
            # Upstreams, sessions and the store call the notifier and the gateway, which are created from them below.
            listeners = ChangeListeners(
                lambda *change: notifier.list_changed(*change),  # noqa: PLW0108  # made later
                lambda *update: notifier.resource_updated(*update),  # noqa: PLW0108  # made later
                lambda upstream: gateway.may_show(upstream),  # noqa: PLW0108  # made later
            )
            sessions = Sessions(
                config.server.answer_timeout,
                time.monotonic,
                lambda session: notifier.session_ended(session),  # noqa: PLW0108  # made later
                config.server.session_idle,
                requires_auth=config.auth.is_required,
                on_duration=_record_session(signals) if signals.metrics else None,
            )
            reading = (schema_workers.examine, scanner.open_list)
            dependencies = _build_dependencies(config, listeners, sessions, spool, child_watchdog, reading)
            services = Services(
                upstreams=UpstreamRegistry(config.upstreams, dependencies, functions),
                writer=ValueWriter(store, policy, time.time, lambda owner: notifier.value_stored(owner)),  # noqa: PLW0108
                scanner=scanner,
                queries=queries,
                schema_workers=schema_workers,
                spool=spool,
                limits=config.limits,
                new_id=uuid4,
                usage_counter=usage_counter,
                path_hasher=create_path_hasher(config),
                audit=Audit(audit, config.audit.required),
                sandbox=sandbox if find_spec(PACKAGE) else None,
                sql=sql_workers if find_spec(SQL_PACKAGE) else None,
                suspended_scripts=SuspendedCalls(tasks, config.server.answer_timeout),
            )
            shared = StageDependencies(
                audit=services.audit,
                clock=time.monotonic,
                path_hasher=services.path_hasher,
                usage_counter=usage_counter,
                limiter=_build_limiter(config.limits.traffic, has_auth=config.auth.is_required),
                budgets=ContextBudgets(config.context, time.monotonic),
                used_consents=UsedConsents(),
                recorder=recorder,
                quotas=_build_quotas(config, store, recorder),
                metrics=signals.metrics,
                tracing=_build_tracing_stage(signals, services.path_hasher, is_stdio=awaits_client),
            )
            observer = _build_observer(signals)
            dispatch = Dispatcher(services, lambda: runtime.state, observer)
            builder = _StateBuilder(services, shared, dispatch, tuple(stages))
            catalog = Catalog({}, LABELS | OWN_LABELS | {RUN} | await store.labels())
            is_isolated = config.auth.is_required and not awaits_client
            runtime = Runtime(builder.build(config, pins, catalog, is_isolated=is_isolated))
            gateway = Gateway(runtime, services)
            handlers = _build_handlers(gateway, shared.limiter, sessions, tasks)
            _register_states(signals, services, shared.limiter, sessions)
            notifier = ChangeNotifier(runtime, services.upstreams, handlers.subscriptions, handlers.announcements)
            tasks.start_soon(notifier.run_notifications)
            tasks.start_soon(sessions.run)
            tasks.start_soon(notifier.run_rebuilds)
            tasks.start_soon(usage_counter.run)
            if recorder:
                tasks.start_soon(recorder.run)
            if shared.quotas:
                tasks.start_soon(shared.quotas.run)
            async with services.upstreams.running():
                if not awaits_client:
                    services.upstreams.start()
                server = MirrorServer(handlers, config.server, config.auth, spool, version("mcp-mirror"))
                yield Application(
                    config,
                    gateway,
                    server,
                    services.upstreams,
                    notifier,
                    builder,
                    audit,
                    is_local=awaits_client,
                    signals=signals,
                )
            tasks.cancel_scope.cancel()


def _build_tracing_stage(signals: Signals, path_hasher: PathHasher, *, is_stdio: bool) -> Stage | None:
    if signals.tracing is None:
        return None
    from mcp_mirror.gateway.stages.tracing import TracingStage  # noqa: PLC0415  # only if configured
    from mcp_mirror.observability.tracing import end_span  # noqa: PLC0415  # as above

    def describe_client(channel: ClientChannel) -> dict[str, str]:
        attributes = {"network.transport": "pipe" if is_stdio else "tcp"}
        session = channel.session_channel
        protocol_version = session.protocol_version if isinstance(session, Session) else None
        if channel.caller.is_stateless:
            protocol_version = MODERN_PROTOCOL_VERSIONS[-1]
        return attributes | ({"mcp.protocol.version": protocol_version} if protocol_version else {})

    return TracingStage(signals.tracing, end_span, path_hasher, describe_client)


def _build_observer(signals: Signals) -> RequestObserver | None:
    measured = RequestMetrics(signals.metrics) if signals.metrics else None
    if signals.tracing is None:
        return measured
    from mcp_mirror.gateway.stages.tracing import RequestTracing  # noqa: PLC0415  # only if configured
    from mcp_mirror.observability.tracing import end_span  # noqa: PLC0415  # as above

    return RequestTracing(signals.tracing, end_span, measured)


def _record_session(signals: Signals) -> Callable[[Session, float], None]:
    metrics = signals.metrics
    assert metrics is not None  # noqa: S101  # the caller checks it

    def record(session: Session, seconds: float) -> None:
        metrics.record_session(session.protocol_version or "", "tcp", seconds)

    return record


def _register_states(signals: Signals, services: Services, limiter: PrincipalLimiter, sessions: Sessions) -> None:
    if signals.metrics is not None:
        from mcp_mirror.server.state_metrics import register_states  # noqa: PLC0415  # only if configured

        register_states(signals.metrics, services, limiter, sessions)


@contextmanager
def _open_audit(config: Config) -> Iterator[AuditFile | None]:
    """Open the audit log for the duration of the context; yield None if the configuration has none."""
    if config.audit.path is None:
        yield None
        return
    file = AuditFile(config.audit.path, create_path_hasher(config), time.time)
    try:
        yield file
    finally:
        file.close()


@asynccontextmanager
async def _open_usage_counter(store: Store) -> AsyncIterator[UsageCounter]:
    """Yield a usage counter, and write its last counts before the store closes."""
    usage_counter = UsageCounter(store)
    try:
        yield usage_counter
    finally:
        with anyio.CancelScope(shield=True):
            await usage_counter.flush()


@asynccontextmanager
async def _open_recorder(config: Config, store: Store) -> AsyncIterator[EventRecorder | None]:
    """Yield the recorder of calls, and write its last calls before the store closes; None if calls are not logged."""
    if config.is_transparent or not config.events.enabled:
        yield None
        return
    recorder = EventRecorder(store.events, config.events, time.time)
    try:
        yield recorder
    finally:
        with anyio.CancelScope(shield=True):
            await recorder.flush()


def _build_quotas(config: Config, store: Store, recorder: EventRecorder | None) -> CallQuotas | None:
    """Return the quotas of calls; None if the configuration has none."""
    if recorder is None or not config.has_call_quotas:
        return None
    traffic, principals = config.limits.traffic, config.auth.principals

    def quota_of(namespace: str) -> CallQuota:
        return traffic.quota_for(find_limits(principals, namespace))

    return CallQuotas(store.events, recorder, quota_of, time.time)


def _build_dependencies(
    config: Config,
    listeners: ChangeListeners,
    sessions: Sessions,
    spool: Spool,
    child_watchdog: ChildWatchdog,
    reading: tuple[Examine, OpenList],
) -> UpstreamDependencies:
    """Return the objects that all upstreams share."""
    client_info = types.Implementation(name=config.server.name, version=version("mcp-mirror"))
    slots = ConnectionSlots(config.limits.traffic.connections_per_principal)
    dedicated = DedicatedConnectionPolicy(slots, sessions, config.server.session_idle)
    hold, listings = config.server.answer_timeout, _create_listing_cache(config)
    return UpstreamDependencies(spool, child_watchdog, client_info, *reading, listeners, dedicated, hold, listings)


def _create_listing_cache(config: Config) -> ListingCache | None:
    """Return the cache of listings on disk; None if the configuration allows no files or only encrypted ones."""
    if config.is_transparent or config.store.kind == "memory" or config.store.encryption:
        return None
    folder = Path(config.store.path) if config.store.path else user_cache_path("mcp-mirror")
    return ListingCache(folder / LISTINGS)


def _build_handlers(gateway: Gateway, limiter: PrincipalLimiter, sessions: Sessions, tasks: TaskGroup) -> Handlers:
    """Return the handlers of clients' requests; they notify clients in tasks of this group."""
    services, traffic = gateway.services, gateway.services.limits.traffic
    max_depth = services.limits.max_depth
    relay = Relay(services.upstreams, services.scanner, gateway.may_show, max_depth, gateway.owns_uri)
    return Handlers(
        gateway=gateway,
        relay=relay,
        subscriptions=Subscriptions(services.upstreams, relay, tasks, traffic.subscriptions_per_principal),
        announcements=Announcements(sessions, tasks, traffic.streams_per_principal),
        sessions=sessions,
        pending_payloads=PendingPayloads(services.limits),
        admission=limiter,
    )


def _build_limiter(traffic: TrafficPolicy, *, has_auth: bool) -> PrincipalLimiter:
    """Return the rate and concurrency limits of principals."""
    most = traffic.rate(has_auth=has_auth)
    rate = Limit("calls_per_minute", most) if most else None
    queue = Queue(Limit("queued_calls", traffic.queued_calls), traffic.queue_timeout)
    return PrincipalLimiter(Limit("calls_per_principal", traffic.calls_per_principal), rate, queue, time.monotonic)


@asynccontextmanager
async def _open_store(
    config: Config, signals: Signals, *, awaits_client: bool
) -> AsyncIterator[tuple[Store, StorePolicy, Spool]]:
    """Open the store; yield it with its settings and a spool of large messages, whose files it can link.

    If the configuration names no store and the disk cannot be used, the store is in memory.
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
        if signals.metrics is not None:
            store = MeasuredStore(store, signals.metrics.record_store_operation)
        yield store, policy, spool


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
        raise MirrorError("`store.kind: redis` needs an extra: pip install 'mcp-mirror[redis]'.") from None
    return RedisStore(policy, time.time, folder, _connect_bucket(policy.blobs) if policy.blobs else None)


def _connect_bucket(url: str) -> ObjectBlobs:
    try:
        from mcp_mirror.stores.s3 import S3Blobs  # noqa: PLC0415  # an extra
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        raise MirrorError("`store.blobs` needs an extra: pip install 'mcp-mirror[redis,s3]'.") from None
    return S3Blobs(url)


_STORES: Final[Mapping[str, Callable[[StorePolicy, Callable[[], Path]], Store]]] = {
    "memory": lambda policy, folder: MemoryStore(policy, time.time, folder),
    "disk": _open_disk,
    "redis": _open_redis,
}
"""The constructor of each kind of store, from its settings and a function that returns a folder for its files."""

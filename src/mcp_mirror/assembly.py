"""The parts of a gateway: opens and closes what a configuration needs, and builds the objects that use it."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import anyio
import mcp_types as types
import msgspec
from anyio.abc import TaskGroup
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from platformdirs import user_cache_path

from mcp_mirror.callers import ClientChannel
from mcp_mirror.gateway.context_budgets import ContextBudgets
from mcp_mirror.gateway.gateway import Gateway
from mcp_mirror.gateway.pipeline import StageDependencies
from mcp_mirror.gateway.relay import Relay
from mcp_mirror.gateway.stages.consent import UsedConsents
from mcp_mirror.gateway.stages.limits import CallQuotas
from mcp_mirror.gateway.stages.telemetry import TelemetryStage
from mcp_mirror.gateway.subscriptions import Subscriptions
from mcp_mirror.memory.code.sandbox import MONTY, Sandbox
from mcp_mirror.memory.memory import MemoryServices
from mcp_mirror.memory.usage import UsageCounter
from mcp_mirror.memory.value_writer import ValueWriter
from mcp_mirror.observability.audit import Audit
from mcp_mirror.observability.audit_file import AuditFile, open_audit_file
from mcp_mirror.observability.events import EventRecorder
from mcp_mirror.observability.logging import create_path_hasher
from mcp_mirror.observability.signals import Signals
from mcp_mirror.payload.spool import Spool
from mcp_mirror.query.sql import DUCKDB
from mcp_mirror.security.rate_limits import Limit, PrincipalLimiter, Queue
from mcp_mirror.security.sanitize import PathHasher
from mcp_mirror.server.announcements import Announcements
from mcp_mirror.server.client_channel import Session
from mcp_mirror.server.handlers import Handlers
from mcp_mirror.server.pending_payloads import PendingPayloads
from mcp_mirror.server.sessions import Sessions
from mcp_mirror.settings.policies import Config
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.base import Store
from mcp_mirror.stores.disk.store import LISTINGS
from mcp_mirror.stores.opening import open_store
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.upstreams.dedicated import ConnectionSlots
from mcp_mirror.upstreams.elicitation import SuspendedCalls
from mcp_mirror.upstreams.listing import ListingCache
from mcp_mirror.upstreams.local import LocalFunctions
from mcp_mirror.upstreams.registry import UpstreamRegistry
from mcp_mirror.upstreams.upstream import ChangeListeners, UpstreamDependencies
from mcp_mirror.workers.frames import FrameScanner
from mcp_mirror.workers.queries import QueryRunner
from mcp_mirror.workers.schemas import SchemaWorkers
from mcp_mirror.workers.sql import SqlWorkers


class Resources(msgspec.Struct, frozen=True):
    """Everything that is open while a gateway runs."""

    child_watchdog: ChildWatchdog
    audit: AuditFile | None
    """None if the configuration has no audit log."""
    store: Store
    store_policy: StorePolicy
    spool: Spool
    scanner: FrameScanner
    queries: QueryRunner
    sql_workers: SqlWorkers
    schema_workers: SchemaWorkers
    sandbox: Sandbox
    usage_counter: UsageCounter
    recorder: EventRecorder | None
    """None if calls are not logged."""
    tasks: TaskGroup


@asynccontextmanager
async def open_resources(config: Config, signals: Signals, *, awaits_client: bool) -> AsyncIterator[Resources]:
    """Open the resources of a gateway for the context; MirrorError if the store or the audit log cannot be used."""
    observe = signals.metrics.record_store_operation if signals.metrics else None
    with ChildWatchdog() as child_watchdog, open_audit_file(config) as audit:
        async with (
            open_store(config, awaits_client=awaits_client, observe=observe) as (store, store_policy, spool),
            aclosing(FrameScanner(child_watchdog, spool)) as scanner,
            aclosing(QueryRunner(child_watchdog, spool)) as queries,
            aclosing(SqlWorkers(child_watchdog)) as sql_workers,
            aclosing(SchemaWorkers(child_watchdog)) as schema_workers,
            aclosing(Sandbox(config.limits.traffic)) as sandbox,
            _open_writers(config, store) as (usage_counter, recorder),
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(usage_counter.run)
            if recorder is not None:
                tasks.start_soon(recorder.run)
            yield Resources(
                child_watchdog,
                audit,
                store,
                store_policy,
                spool,
                scanner,
                queries,
                sql_workers,
                schema_workers,
                sandbox,
                usage_counter,
                recorder,
                tasks,
            )
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def _open_writers(config: Config, store: Store) -> AsyncIterator[tuple[UsageCounter, EventRecorder | None]]:
    """Yield what counts tokens and what logs calls; both write the rest to the store before it closes.

    They write at the same time, because a store that does not answer costs each of them seconds.
    """
    is_logging = config.events.enabled and not config.is_transparent
    recorder = EventRecorder(store.events, config.events, time.time) if is_logging else None
    usage_counter = UsageCounter(store)
    try:
        yield usage_counter, recorder
    finally:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(usage_counter.close)
                if recorder is not None:
                    tasks.start_soon(recorder.close)


def build_sessions(config: Config, resources: Resources, signals: Signals, on_end: Callable[[str], None]) -> Sessions:
    """Return an empty set of sessions; `on_end` is called with the key of each session that has ended."""
    policy, metrics = config.server, signals.metrics

    def end(key: str, session: Session) -> None:
        if metrics is not None:
            metrics.record_session(session.protocol_version or "", time.monotonic() - session.began)
        on_end(key)

    is_required = config.auth.is_required
    sessions = Sessions(policy.answer_timeout, time.monotonic, end, policy.session_idle, requires_auth=is_required)
    resources.tasks.start_soon(sessions.run)
    return sessions


def build_upstreams(
    config: Config,
    resources: Resources,
    listeners: ChangeListeners,
    sessions: Sessions,
    functions: LocalFunctions | None,
) -> UpstreamRegistry:
    """Return the upstreams, which do not run yet, and the functions of the program that runs the gateway."""
    listing_cache = None
    # The cache is on disk: a configuration may allow no files, or only encrypted ones.
    if not (config.is_transparent or config.store.kind == "memory" or config.store.encryption):
        folder = Path(config.store.path) if config.store.path else user_cache_path("mcp-mirror")
        listing_cache = ListingCache(folder / LISTINGS)
    dependencies = UpstreamDependencies(
        spool=resources.spool,
        child_watchdog=resources.child_watchdog,
        client_info=types.Implementation(name=config.server.name, version=version("mcp-mirror")),
        inspect_tools=resources.schema_workers.inspect_tools,
        open_list=resources.scanner.open_list,
        listing_cache=listing_cache,
        listeners=listeners,
        slots=ConnectionSlots(config.limits.traffic.connections_per_principal, sessions, config.server.session_idle),
        answer_timeout=config.server.answer_timeout,
    )
    return UpstreamRegistry(config.upstreams, dependencies, functions)


def build_gateway(
    config: Config, resources: Resources, upstreams: UpstreamRegistry, on_stored: Callable[[str], None]
) -> Gateway:
    """Return the gateway, which has no state yet; `on_stored` is called with the owner of each stored value."""
    return Gateway(
        upstreams=upstreams,
        services=MemoryServices(
            writer=ValueWriter(resources.store, resources.store_policy, time.time, on_stored),
            scanner=resources.scanner,
            queries=resources.queries,
            spool=resources.spool,
            usage_counter=resources.usage_counter,
            limits=config.limits,
            new_id=uuid4,
            sql=resources.sql_workers if find_spec(DUCKDB) else None,
        ),
        schema_workers=resources.schema_workers,
        path_hasher=create_path_hasher(config),
        audit=Audit(resources.audit, config.audit.required),
        sandbox=resources.sandbox if find_spec(MONTY) else None,
        suspended_scripts=SuspendedCalls(resources.tasks, config.server.answer_timeout),
    )


def build_stage_dependencies(
    config: Config, resources: Resources, gateway: Gateway, signals: Signals, *, is_stdio: bool
) -> StageDependencies:
    """Return the objects that stages share."""
    traffic = config.limits.traffic
    queue = Queue(Limit("queued_calls", traffic.queued_calls), traffic.queue_timeout)
    bound = Limit("calls_per_principal", traffic.calls_per_principal)
    quotas = None
    if resources.recorder is not None:  # a reload may add quotas, so the calls are always counted
        quotas = CallQuotas(resources.store.events, resources.recorder, time.time)
        resources.tasks.start_soon(quotas.run)
    return StageDependencies(
        gateway=gateway,
        clock=time.monotonic,
        limiter=PrincipalLimiter(bound, find_rate(config), queue, time.monotonic),
        budgets=ContextBudgets(time.monotonic),
        used_consents=UsedConsents(),
        recorder=resources.recorder,
        quotas=quotas,
        telemetry=_build_telemetry_stage(signals, gateway.path_hasher, is_stdio=is_stdio),
    )


def find_rate(config: Config) -> Limit | None:
    """Return the rate limit of each principal; None without one."""
    most = config.limits.traffic.rate(has_auth=config.auth.is_required)
    return Limit("calls_per_minute", most) if most else None


def _build_telemetry_stage(signals: Signals, path_hasher: PathHasher, *, is_stdio: bool) -> TelemetryStage | None:
    if signals.metrics is None and signals.tracing is None:
        return None

    def describe_client(channel: ClientChannel) -> dict[str, str]:
        attributes = {"network.transport": "pipe" if is_stdio else "tcp"}
        session = channel.session_channel
        protocol_version = session.protocol_version if isinstance(session, Session) else None
        if channel.caller.is_stateless:
            protocol_version = MODERN_PROTOCOL_VERSIONS[-1]
        return attributes | ({"mcp.protocol.version": protocol_version} if protocol_version else {})

    return TelemetryStage(signals.metrics, signals.tracing, path_hasher, describe_client)


def build_handlers(gateway: Gateway, limiter: PrincipalLimiter, sessions: Sessions, tasks: TaskGroup) -> Handlers:
    """Return the handlers of clients' requests; they notify clients in tasks of this group."""
    traffic = gateway.services.limits.traffic
    relay = Relay(gateway)
    return Handlers(
        gateway=gateway,
        relay=relay,
        subscriptions=Subscriptions(gateway.upstreams, relay, tasks, traffic.subscriptions_per_principal),
        announcements=Announcements(sessions, tasks, traffic.streams_per_principal),
        sessions=sessions,
        pending_payloads=PendingPayloads(gateway.services.limits, gateway.services.scanner),
        admission=limiter,
    )

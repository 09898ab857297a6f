"""A running gateway: its life from start to end, and the reload of its configuration."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio
import msgspec
from msgspec.structs import replace

from mcp_mirror.assembly import (
    build_gateway,
    build_handlers,
    build_sessions,
    build_stage_dependencies,
    build_upstreams,
    find_rate,
    open_resources,
)
from mcp_mirror.config.changes import list_changes
from mcp_mirror.config.lock_file import read_pins
from mcp_mirror.core.catalog import Catalog
from mcp_mirror.errors import StoreError
from mcp_mirror.gateway.call import Stage
from mcp_mirror.gateway.contents import CONTENT_SLUGS
from mcp_mirror.gateway.dispatch import Dispatcher
from mcp_mirror.gateway.gateway import Gateway
from mcp_mirror.gateway.pipeline import StateBuilder
from mcp_mirror.memory.tools.table import SLUGS as OWN_SLUGS
from mcp_mirror.observability.audit_file import AuditFile
from mcp_mirror.observability.signals import NO_SIGNALS, ReloadStatus, Signals
from mcp_mirror.security.pins import Pins
from mcp_mirror.server.change_notifier import ChangeNotifier
from mcp_mirror.server.http.handover import Worker
from mcp_mirror.server.server import MirrorServer
from mcp_mirror.settings.access import AuthPolicy
from mcp_mirror.settings.limits import PrincipalLimits
from mcp_mirror.settings.policies import Config
from mcp_mirror.upstreams.local import LocalFunctions
from mcp_mirror.upstreams.registry import UpstreamRegistry
from mcp_mirror.upstreams.upstream import ChangeListeners

if TYPE_CHECKING:
    from mcp_mirror.server.http.probes import Readiness

_STARTUP_SECTIONS: Final = ("store", "server", "audit", "events", "dashboard")
"""Sections of the configuration that a reload does not apply."""
_CALL_LIMITS: Final = ("calls_per_minute", "calls_per_day", "calls_per_month")
"""Keys of `limits` that a reload applies, beside those of upstreams."""


def _keep_stored_limits(
    wanted: Iterable[PrincipalLimits], started: Iterable[PrincipalLimits]
) -> Iterator[PrincipalLimits]:
    """Yield the limits of principals; those of the store are what the store has read at the start."""
    before = {one.name: one for one in started}
    for one in wanted:
        known = before.pop(one.name, PrincipalLimits(one.name))
        yield replace(one, namespace_bytes=known.namespace_bytes, namespace_values=known.namespace_values)
    for one in before.values():
        if one.namespace_bytes is not None or one.namespace_values is not None:
            yield replace(one, calls_per_day=None, calls_per_month=None)


class Reload(NamedTuple):
    """The effect of a reload, as places of keys such as `mirror.suffix`."""

    changed: tuple[str, ...]
    """What differs from the configuration before."""
    deferred: tuple[str, ...]
    """What differs from the configuration in use, because a change of it takes effect only at the next start."""


class Application(msgspec.Struct, frozen=True):
    """A running gateway."""

    config: Config
    """The configuration at the start."""
    gateway: Gateway
    server: MirrorServer
    notifier: ChangeNotifier
    builder: StateBuilder
    audit: AuditFile | None
    """None if the configuration has no audit log."""
    is_local: bool
    """The only client is on standard streams."""
    signals: Signals
    reloads: ReloadStatus
    probed_addresses: "list[Readiness]" = msgspec.field(default_factory=list)
    """The addresses at which orchestrators can probe the gateway."""

    @property
    def upstreams(self) -> UpstreamRegistry:
        """All upstreams."""
        return self.gateway.upstreams

    def reload(self, config: Config, pins: Pins) -> Reload:
        """Continue with another configuration: its upstreams, twins, own tools, policies and stages.

        Calls that are in progress end under the configuration with which they began.

        Raises:
            ConfigError: A stage that the configuration names cannot be loaded. Nothing was changed.
        """
        before = self.gateway.state
        # A reload never gives one principal the values of another.
        is_isolated = before.flows.is_isolated or (config.auth.is_required and not self.is_local)
        # Only a restart switches authentication on or off.
        is_auth_applied = self.is_local or self.server.auth.is_required == config.auth.is_required
        current = self._keep_startup_settings(config, config.auth if is_auth_applied else before.config.auth)
        after = self.builder.build(current, pins, before.catalog, is_isolated=is_isolated)
        self.builder.shared.limiter.change_rate(find_rate(current))
        self.gateway.state = replace(after, catalogs=before.catalogs)
        names = {one.name for one in config.upstreams}
        self.notifier.release_names(frozenset(one.name for one in before.config.upstreams) - names)
        self.upstreams.replace(config.upstreams, current.server.drain)
        for kind in ("tools", "resources", "prompts"):
            self.notifier.list_changed(kind, None)
        self.notifier.pins_changed()
        listings = {(one.mirror.listing, one.mirror.listing_budget) for one in (config, before.config)}
        if after.own_tools.keys() != before.own_tools.keys() or len(listings) > 1:
            self.notifier.own_tools_changed()
        if not self.is_local:  # clients on standard streams send no tokens
            self.server.auth = after.config.auth
        lock = () if pins == before.pins else ("the lock file",)
        return Reload((*list_changes(before.config, current), *lock), tuple(list_changes(current, config)))

    def _keep_startup_settings(self, config: Config, auth: AuthPolicy) -> Config:
        """Return a configuration with the settings of the start that a reload does not change."""
        started = self.config
        kept = {name: getattr(started, name) for name in _STARTUP_SECTIONS}
        applied = {name: getattr(config.limits.traffic, name) for name in _CALL_LIMITS}
        traffic = replace(started.limits.traffic, **applied)
        limits = replace(started.limits, traffic=traffic, bounds=config.limits.bounds)
        principals = tuple(_keep_stored_limits(auth.principals, started.auth.principals))
        return replace(config, auth=replace(auth, principals=principals), limits=limits, **kept)

    async def find_unavailable(self) -> list[str]:
        """Check the store, and the keys of `auth.issuers`; return a sentence for each that is not available."""
        problems: list[str] = []
        try:
            await self.gateway.services.writer.store.check()
        except StoreError as error:
            problems.append(f"store: {error}")
        if self.config.auth.issuers:
            from mcp_mirror.server.auth.keys import Issuers  # noqa: PLC0415  # only if configured

            problems.extend(await Issuers(self.config.auth.issuers, anyio.current_time).find_problems())
        return problems

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
        from mcp_mirror.server.http.server import serve_http  # noqa: PLC0415  # not on stdio

        readiness = self._build_readiness(shutdown)
        await serve_http(self.server, self.config, (host, port), announce, readiness, worker)

    async def serve_metrics(self, announce: Callable[[str], None], shutdown: anyio.Event, number: int) -> None:
        """Serve `server.metrics` until cancelled; return at once if it is not configured.

        It calls `announce` with the URL once clients can connect. From `shutdown` on, the gateway is not ready. The
        number of this process among several workers is added to the port.

        Raises:
            MirrorError: The address is in use.
        """
        if self.config.server.metrics is None or self.signals.metrics is None:
            return
        from mcp_mirror.server.http.metrics_endpoint import MetricsApp, serve_metrics  # noqa: PLC0415  # only if configured

        host, _, port = self.config.server.metrics.rpartition(":")
        address = (host.strip("[]"), int(port) + number if int(port) else 0)
        app = MetricsApp(self.signals.metrics, self.config.server)
        readiness = self._build_readiness(shutdown)
        await serve_metrics(app, address, readiness, self.config.limits.traffic, announce)

    def _build_readiness(self, shutdown: anyio.Event) -> "Readiness":
        """Return the probes of one address. A shutdown waits for what probes any of them."""
        from mcp_mirror.server.http.probes import Readiness  # noqa: PLC0415  # not on stdio

        readiness = Readiness(self.gateway.services.writer.store, self.upstreams, shutdown, self.probed_addresses)
        self.probed_addresses.append(readiness)
        return readiness


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

    `awaits_client`: the first request of the only client starts the upstreams, with its capabilities. The functions are
    additional tools, and the stages those of the program that runs the gateway, the outermost first.

    Raises:
        ConfigError: The lock file cannot be read, or a stage cannot be loaded.
        MirrorError: The audit log cannot be written.
    """
    pins = read_pins(config.lock)
    async with open_resources(config, signals, awaits_client=awaits_client) as resources:
        # Upstreams, sessions and the store call the notifier and the gateway, which are created from them below.
        listeners = ChangeListeners(
            lambda *change: notifier.list_changed(*change),  # noqa: PLW0108  # made later
            lambda *update: handlers.subscriptions.updated(*update),  # noqa: PLW0108  # made later
            lambda upstream: gateway.may_show(upstream),  # noqa: PLW0108  # made later
        )
        sessions = build_sessions(config, resources, signals, lambda session: notifier.session_ended(session))  # noqa: PLW0108
        upstreams = build_upstreams(config, resources, listeners, sessions, functions)
        gateway = build_gateway(config, resources, upstreams, lambda owner: notifier.value_stored(owner))  # noqa: PLW0108
        shared = build_stage_dependencies(config, resources, gateway, signals, is_stdio=awaits_client)
        builder = StateBuilder(shared, Dispatcher(gateway, signals), tuple(stages))
        catalog = Catalog({}, CONTENT_SLUGS | OWN_SLUGS | await resources.store.slugs())
        is_isolated = config.auth.is_required and not awaits_client
        gateway.state = builder.build(config, pins, catalog, is_isolated=is_isolated)
        handlers = build_handlers(gateway, shared.limiter, sessions, resources.tasks)
        notifier = ChangeNotifier(gateway, handlers.subscriptions, handlers.announcements, sessions)
        resources.tasks.start_soon(notifier.run)
        server = MirrorServer(handlers, config.server, config.auth, resources.spool, version("mcp-mirror"))
        reloads = ReloadStatus()
        if signals.metrics is not None:
            from mcp_mirror.server.state_metrics import register_states  # noqa: PLC0415  # only if configured

            register_states(signals.metrics, gateway, shared.limiter, sessions, server.rejected_requests, reloads)
        async with upstreams.running():
            if not awaits_client:
                upstreams.start()
            yield Application(
                config, gateway, server, notifier, builder, resources.audit, awaits_client, signals, reloads
            )

"""The one place that opens and closes things: upstreams, store, gateway and server, put together from a config."""

import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import anyio
import mcp_types as types
import uvicorn
from anyio.abc import TaskGroup
from platformdirs import user_data_path

from mcp_mirror import __version__
from mcp_mirror.catalog import Catalog, build_catalog
from mcp_mirror.contents import LABELS, ContentCapture
from mcp_mirror.errors import MirrorError, StoreError
from mcp_mirror.faces.announcements import Announcements
from mcp_mirror.faces.farewell import Farewell
from mcp_mirror.faces.handlers import Handlers
from mcp_mirror.faces.postbox import Postbox
from mcp_mirror.faces.server import MirrorServer
from mcp_mirror.faces.sessions import Sessions
from mcp_mirror.gateway import Gateway
from mcp_mirror.inquiries import Inquirer
from mcp_mirror.keeper import Keeper
from mcp_mirror.leash import Leash
from mcp_mirror.policies import Config, StorePolicy, WirePolicy
from mcp_mirror.relay import Relay
from mcp_mirror.scanner import Scanner
from mcp_mirror.spool import Spool
from mcp_mirror.stores.base import Store
from mcp_mirror.stores.disk import DiskStore
from mcp_mirror.stores.memory import MemoryStore
from mcp_mirror.subscriptions import Subscriptions
from mcp_mirror.tools import LABELS as OWN_LABELS
from mcp_mirror.tools import TOOLS, OwnTool, own_tools
from mcp_mirror.upstreams.supervisor import Equipment, Upstreams
from mcp_mirror.upstreams.upstream import Audience

_logger = logging.getLogger(__name__)

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_AT_START: Final = ("store", "server", "limits")
"""Sections of the configuration that are read at the start alone."""
_SPREAD_PAUSE: Final = 1.0
"""Seconds between two announcements to clients, however often something changes."""


@dataclass(frozen=True, slots=True)
class Application:
    """A running gateway."""

    config: Config
    gateway: Gateway
    server: MirrorServer
    upstreams: Upstreams
    news: "_News"

    def reload(self, config: Config) -> tuple[str, ...]:
        """Go on with another configuration: its upstreams, its twins, our own tools. Other calls go on.

        Returns:
            The sections that have changed and take effect at the next start alone.
        """
        before, own = self.news.config, self.gateway.own_tools
        handlers = self.server.handlers
        self.gateway.mirror, self.gateway.is_transparent = config.mirror, config.is_transparent
        self.gateway.memory_tools = config.memory_tools
        self.gateway.own_tools = _own_tools(config, self.gateway.keeper.lifetime)
        handlers.contents = replace(handlers.contents, mirror=config.mirror)
        self.news.reach(handlers, config)
        self.upstreams.replace(config.upstreams, config.server.drain)
        for kind in ("tools", "resources", "prompts"):
            self.news.changed(kind, None)
        if self.gateway.own_tools.keys() != own.keys():
            self.news.own_changed()
        return tuple(name for name in _AT_START if getattr(before, name) != getattr(config, name))

    async def serve_http(self, host: str, port: int, announce: Callable[[str], None], leaving: anyio.Event) -> None:
        """Serve Streamable HTTP until we leave and what is open is answered, or until cancelled.

        Args:
            host: A loopback address.
            port: 0 for any that is free.
            announce: Told the URL as soon as clients can connect to it.
            leaving: Set by who wants us to end in good order.

        Raises:
            MirrorError: The address is not a loopback one (everybody who reaches it would share one memory) or taken.
        """
        if host not in _LOOPBACK:
            raise MirrorError(f"{host!r} is not a loopback address. Serve on 127.0.0.1, behind a proxy that you trust.")
        settings = uvicorn.Config(
            Farewell(self.server.http_app(host), leaving), log_config=None, access_log=False, lifespan="on"
        )
        with _listening(host, port) as listening:
            shown = f"[{host}]" if ":" in host else host
            announce(f"http://{shown}:{listening.getsockname()[1]}{self.config.server.path}")
            await _HttpServer(settings).serve_until(leaving, listening)


class _HttpServer(uvicorn.Server):
    """Leaves signals to who runs us, and says goodbye to its clients when we leave or it is cancelled."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def serve_until(self, leaving: anyio.Event, listening: socket.socket) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._leave, leaving)
            with anyio.CancelScope(shield=True):
                await self.serve(sockets=[listening])
            tasks.cancel_scope.cancel()

    async def _leave(self, leaving: anyio.Event) -> None:
        """Stop in good order when we leave; cut off what is open still when cancelled."""
        try:
            await leaving.wait()
            self.should_exit = True
            await anyio.sleep_forever()
        finally:
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it reports each stream that we cut off
            leaving.set()
            self.should_exit = True
            for request in tuple(self.server_state.tasks):
                request.cancel()


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise MirrorError(
            f"Cannot serve on {host}:{port}: {error.strerror or error}. Choose another port, or 0 for any that is free."
        ) from None


@asynccontextmanager
async def open_application(config: Config, *, awaits_client: bool = False) -> AsyncIterator[Application]:
    """Start everything that a config names; stop it at the end.

    Args:
        config: What to serve.
        awaits_client: Upstreams start when the one client has introduced itself, on its behalf.
    """
    news = _News()
    with Leash() as leash:
        async with (
            _open_store(config, awaits_client=awaits_client) as (store, policy, spool),
            aclosing(Scanner(leash)) as scanner,
            aclosing(Inquirer(leash)) as inquirer,
            anyio.create_task_group() as tasks,
        ):
            upstreams = _upstreams_of(config, news, spool, leash)
            gateway = Gateway(
                upstreams=upstreams,
                keeper=Keeper(store, policy, time.time, news.kept),
                scanner=scanner,
                inquirer=inquirer,
                spool=spool,
                mirror=config.mirror,
                memory_tools=config.memory_tools,
                limits=config.limits,
                new_id=uuid4,
                is_transparent=config.is_transparent,
                own_tools=_own_tools(config, policy),
                catalog=Catalog({}, LABELS | OWN_LABELS | await store.labels()),
            )
            news.reach(_handlers_of(gateway, config, news, tasks), config)
            tasks.start_soon(news.spread)
            async with upstreams.running():
                if not awaits_client:
                    upstreams.start()
                server = MirrorServer(news.handlers, config.server, spool, __version__)
                yield Application(config, gateway, server, upstreams, news)
            tasks.cancel_scope.cancel()


def _upstreams_of(config: Config, news: "_News", spool: Spool, leash: Leash) -> Upstreams:
    client_info = types.Implementation(name=config.server.name, version=__version__)
    audience = Audience(news.changed, news.updated)
    return Upstreams(config.upstreams, Equipment(spool, leash, client_info, audience, config.server.answer_timeout))


def _handlers_of(gateway: Gateway, config: Config, news: "_News", tasks: TaskGroup) -> Handlers:
    """What answers clients' requests, and tells them of changes in tasks of its own."""
    relay = Relay(gateway.upstreams)
    sessions = Sessions(config.server.answer_timeout, time.monotonic, news.ended)
    return Handlers(
        gateway=gateway,
        relay=relay,
        contents=ContentCapture(gateway.keeper, config.mirror, config.limits, uuid4),
        subscriptions=Subscriptions(gateway.upstreams, relay, tasks),
        announcements=Announcements(sessions, tasks),
        sessions=sessions,
        postbox=Postbox(),
    )


def _own_tools(config: Config, store: StorePolicy) -> Mapping[str, OwnTool]:
    return {} if config.is_transparent else own_tools(config.memory_tools, store.lifetime)


@asynccontextmanager
async def _open_store(config: Config, *, awaits_client: bool) -> AsyncIterator[tuple[Store, StorePolicy, Spool]]:
    """The store, what it obeys, and a spool whose files it can link.

    Where the user has not chosen a store and the disk cannot be used, values are kept in memory.
    """
    chosen = config.store.kind or ("disk" if awaits_client and not config.is_transparent else "memory")
    policy = replace(config.store, kind=chosen)
    async with AsyncExitStack() as stack:
        try:
            store, spool = await _enter_store(policy, config.limits, stack)
        except StoreError as error:
            if config.store.kind or config.store.path:
                raise
            _logger.warning("%s Until then values are kept in memory, and are gone with the gateway.", error)
            policy = replace(policy, kind="memory")
            store, spool = await _enter_store(policy, config.limits, stack)
        yield store, policy, spool


async def _enter_store(policy: StorePolicy, limits: WirePolicy, stack: AsyncExitStack) -> tuple[Store, Spool]:
    store = _STORES[policy.kind or "memory"](policy, lambda: spool.directory)
    configured = Path(policy.path) if policy.path else None
    spool = stack.enter_context(Spool(limits, store.scratch if isinstance(store, DiskStore) else configured))
    return await stack.enter_async_context(store), spool


def _open_disk(policy: StorePolicy, _: Callable[[], Path]) -> Store:
    return DiskStore(policy, time.time, Path(policy.path) if policy.path else user_data_path("mcp-mirror") / "store")


def _open_redis(policy: StorePolicy, folder: Callable[[], Path]) -> Store:
    try:
        from mcp_mirror.stores.redis import RedisStore  # noqa: PLC0415  # an extra
    except ModuleNotFoundError as error:
        if error.name != "redis":
            raise
        raise MirrorError("`store.kind: redis` needs an extra: pip install 'mcp-mirror[redis]'.") from None
    return RedisStore(policy, time.time, folder)


_STORES: Final[Mapping[str, Callable[[StorePolicy, Callable[[], Path]], Store]]] = {
    "memory": lambda policy, folder: MemoryStore(policy, time.time, folder),
    "disk": _open_disk,
    "redis": _open_redis,
}
"""By kind, from what a store obeys and where it may put files."""


class _News:
    """Follows what upstreams announce: a new catalog at once, and word of it to clients."""

    def __init__(self) -> None:
        self._handlers: Handlers | None = None
        self.config = Config()
        self._pending: dict[tuple[str, str | None], None] = {}
        self._wake = anyio.Event()

    @property
    def handlers(self) -> Handlers:
        """Who is told; known before anything is started."""
        assert self._handlers is not None  # noqa: S101  # `reach` comes first
        return self._handlers

    def reach(self, handlers: Handlers, config: Config) -> None:
        """Who is told, and by which rules catalogs are made."""
        self._handlers, self.config = handlers, config

    def changed(self, kind: str, party: str | None) -> None:
        """On a party's connection, or on everybody's, a list has changed."""
        if kind == "tools" and not self._remake(party):
            return
        if kind == "tools" and party is None:
            for other in tuple(self.handlers.gateway.catalogs):
                self._remake(other)
        self._pending[kind, party] = None
        self._wake.set()

    def own_changed(self) -> None:
        """We have other tools of our own."""
        self._pending["tools", None] = None
        self._wake.set()

    def updated(self, upstream: str, party: str | None, uri: str, params: Mapping[str, Any]) -> None:
        """A resource was updated."""
        self.handlers.subscriptions.updated(upstream, party, uri, params)

    def kept(self) -> None:
        """A value was stored: it is a resource of ours."""
        self._pending["resources", None] = None
        self._wake.set()

    def _remake(self, party: str | None) -> bool:
        """Put a catalog together anew; whether clients see a difference."""
        gateway, config = self.handlers.gateway, self.config
        said = ((one.policy, one.listing_for(party)) for one in gateway.upstreams)
        listed = ((policy, listing.tools) for policy, listing in said if listing)
        reserved = () if config.is_transparent else TOOLS
        catalog = build_catalog(listed, config.mirror, reserved, transparent=config.is_transparent)
        before = gateway.catalogs.get(party or "", gateway.catalog)
        # What a tool that has gone once stored is still ours to find, or to miss.
        catalog = replace(catalog, labels=catalog.labels | before.labels | LABELS | OWN_LABELS)
        if party is None:
            gateway.catalog = catalog
        elif _adverts(catalog) != _adverts(gateway.catalog):
            gateway.catalogs[party] = catalog
        else:
            gateway.catalogs.pop(party, None)
        return _adverts(catalog) != _adverts(before)

    def ended(self, session: str) -> None:
        """A client has gone: so does what was its alone."""
        self.handlers.gateway.upstreams.end_session(session)
        self.handlers.gateway.catalogs.pop(session, None)
        self.handlers.subscriptions.forget_session(session)

    async def spread(self) -> None:
        """Tell clients, however many changes there were meanwhile, once."""
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            pending, self._pending = self._pending, {}
            for kind, party in pending:
                await self.handlers.announcements.announce(kind, party)
            await anyio.sleep(_SPREAD_PAUSE)


def _adverts(catalog: Catalog) -> dict[str, Any]:
    return {name: entry.advert for name, entry in catalog.entries.items()}

"""The one place that opens and closes things: upstreams, store, gateway and server, put together from a config."""

import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from uuid import uuid4

import anyio
import mcp_types as types
import uvicorn

from mcp_mirror import __version__
from mcp_mirror.catalog import build_catalog
from mcp_mirror.errors import MirrorError
from mcp_mirror.faces.farewell import Farewell
from mcp_mirror.faces.server import MirrorServer
from mcp_mirror.gateway import Gateway
from mcp_mirror.leash import Leash
from mcp_mirror.policies import Config
from mcp_mirror.scanner import Scanner
from mcp_mirror.spool import Spool
from mcp_mirror.stores.disk import DiskStore
from mcp_mirror.stores.memory import MemoryStore
from mcp_mirror.tools import OWN_TOOLS
from mcp_mirror.upstreams.supervisor import Upstreams

_STORES: Final = {"memory": MemoryStore, "disk": DiskStore}
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True)
class Application:
    """A running gateway."""

    config: Config
    gateway: Gateway
    server: MirrorServer
    upstreams: Upstreams

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
async def open_application(config: Config) -> AsyncIterator[Application]:
    """Start everything that a config names; stop it at the end."""
    folder = Path(config.store.path) if config.store.path else None
    with Spool(config.limits, folder) as spool, Leash() as leash:
        async with aclosing(Scanner(leash)) as scanner:
            client_info = types.Implementation(name=config.server.name, version=__version__)
            upstreams = Upstreams(config.upstreams, spool, client_info)
            gateway = Gateway(
                upstreams=upstreams,
                store=_STORES[config.store.kind](config.store, time.time, lambda: spool.directory),
                scanner=scanner,
                mirror=config.mirror,
                lifetime=config.store,
                limits=config.limits,
                clock=time.time,
                new_id=uuid4,
            )
            server = MirrorServer(gateway, config.server, spool, __version__, time.monotonic)
            news = _News(gateway, server, config)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(news.spread)
                async with upstreams.running(news.changed):
                    yield Application(config, gateway, server, upstreams)
                tasks.cancel_scope.cancel()


class _News:
    """Follows the upstreams' listings: a new catalog at once, and word of it to clients."""

    def __init__(self, gateway: Gateway, server: MirrorServer, config: Config) -> None:
        self._gateway = gateway
        self._server = server
        self._config = config
        self._pending = anyio.Event()

    def changed(self) -> None:
        """Put the catalog together anew."""
        listed = ((one.policy, one.listing.tools) for one in self._gateway.upstreams if one.listing)
        catalog = build_catalog(listed, self._config.mirror, OWN_TOOLS)
        # What a tool that has gone once stored is still ours to find, or to miss.
        catalog = replace(catalog, labels=catalog.labels | self._gateway.catalog.labels)
        if catalog.entries.keys() != self._gateway.catalog.entries.keys() or any(
            entry.advert != self._gateway.catalog.entries[name].advert for name, entry in catalog.entries.items()
        ):
            self._pending.set()
        self._gateway.catalog = catalog

    async def spread(self) -> None:
        """Tell clients, however many changes there were meanwhile, once."""
        while True:
            await self._pending.wait()
            self._pending = anyio.Event()
            await self._server.announce_tools()

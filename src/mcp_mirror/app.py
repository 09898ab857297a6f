"""The one place that opens and closes things: upstreams, store, gateway and server, put together from a config."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import anyio
import mcp_types as types
import uvicorn

from mcp_mirror import __version__
from mcp_mirror.catalog import build_catalog
from mcp_mirror.errors import MirrorError
from mcp_mirror.faces.server import MirrorServer
from mcp_mirror.gateway import Gateway
from mcp_mirror.policies import Config
from mcp_mirror.stores.memory import MemoryStore
from mcp_mirror.tokens import estimate_tokens
from mcp_mirror.tools import OWN_TOOLS
from mcp_mirror.upstreams.supervisor import Upstreams

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True)
class Application:
    """A running gateway."""

    config: Config
    gateway: Gateway
    server: MirrorServer
    upstreams: Upstreams

    async def serve_http(self, host: str, port: int) -> None:
        """Serve Streamable HTTP until cancelled or told to stop by a signal.

        Raises:
            MirrorError: The address is not a loopback one: everybody who reaches it would share one memory.
        """
        if host not in _LOOPBACK:
            raise MirrorError(f"{host!r} is not a loopback address. Serve on 127.0.0.1, behind a proxy that you trust.")
        app = self.server.http_app(host)
        settings = uvicorn.Config(app, host=host, port=port, log_config=None, access_log=False, lifespan="on")
        await uvicorn.Server(settings).serve()


@asynccontextmanager
async def open_application(config: Config) -> AsyncIterator[Application]:
    """Start everything that a config names; stop it at the end."""
    client_info = types.Implementation(name=config.server.name, version=__version__)
    upstreams = Upstreams(config.upstreams, config.server.max_message_bytes, client_info)
    gateway = Gateway(
        upstreams=upstreams,
        store=MemoryStore(config.store, time.time),
        mirror=config.mirror,
        lifetime=config.store,
        clock=time.time,
        new_id=uuid4,
        estimate=estimate_tokens,
    )
    server = MirrorServer(gateway, config.server, __version__, time.monotonic)
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

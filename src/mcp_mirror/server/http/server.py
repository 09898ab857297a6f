"""Serves Streamable HTTP: the ASGI application and the web server. Only gateways on HTTP import this module."""

import asyncio
import ctypes
import logging
import re
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, cast

import anyio
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from mcp_mirror.core.amounts import format_count
from mcp_mirror.errors import MirrorError
from mcp_mirror.server.auth.gate import Gate, check_address
from mcp_mirror.server.http.connection_limits import Connections, Report
from mcp_mirror.server.http.connections import LimitedProtocol
from mcp_mirror.server.http.dashboard import build_api, is_served, route_api, route_static
from mcp_mirror.server.http.endpoints import EndpointRouter
from mcp_mirror.server.http.graceful_shutdown import ShutdownMiddleware
from mcp_mirror.server.http.handover import ConnectionHandover, Worker, WorkerSessions
from mcp_mirror.server.http.hosts import AddressCheck
from mcp_mirror.server.http.mcp_endpoint import McpEndpoint
from mcp_mirror.server.http.probes import ProbeMiddleware, Readiness
from mcp_mirror.server.http.sdk import make_session_closer
from mcp_mirror.server.server import MirrorServer
from mcp_mirror.settings.limits import TrafficPolicy
from mcp_mirror.settings.policies import Config
from mcp_mirror.system.resources import PatientListener

_logger = logging.getLogger(__name__)

_BACKLOG: Final = 128
"""Connections that the system keeps until the server accepts them. A longer queue lets a flood of them in faster."""
_HANDSHAKE: Final = 0.005
"""Seconds at a shutdown in which clients of the same network complete the connections that they have begun."""
_SO_ATTACH_FILTER: Final = 26
"""The option of Linux that attaches a filter of packets to a socket."""
_SO_DETACH_FILTER: Final = 27
_WITHOUT_SYN: Final = ((0x30, 0, 0, 13), (0x45, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFF_FFFF))
"""A filter in the language of BPF, as (code, jump if true, jump if false, operand) for each instruction: it drops the
packets with which TCP connections begin, which have the bit 2 (SYN) in the byte 13 of their head."""
_MAX_PORT: Final = 65_535
"""The highest port of TCP."""
_REPEATED_ADDRESS: Final = " (while attempting to bind on address"
"""The beginning of what Python adds to the system's reason."""
_LONGEST_PAUSE: Final = 5.0
"""Seconds after SIGTERM in which the gateway still accepts requests, if an orchestrator probes it."""
_OF_ONE_USER: Final = TrafficPolicy(max_connections=100)
"""The limits of a server for the user of this machine."""


async def serve_http(
    server: MirrorServer,
    config: Config,
    address: tuple[str, int],
    announce: Callable[[str], None],
    readiness: Readiness,
    worker: Worker | None = None,
) -> None:
    """Serve until a graceful shutdown, in which open requests are answered, or until cancelled.

    `address` is a loopback address, or any if the configuration requires tokens; and a port, 0 for any free one.
    `announce` is called with the URL once clients can connect. `worker` is this process, if it is one of several on the
    address.

    Raises:
        MirrorError: The address is in use, or other machines can reach it without a token.
    """
    host, port = address
    check_address(host, config.auth, config.server)
    handover = ConnectionHandover(worker) if worker else None
    closing = anyio.Event()
    sdk_app = _build_sdk_app(server, host)
    server.handlers.sessions.close = make_session_closer(sdk_app, server.policy.path)
    app: ASGIApp = ShutdownMiddleware(_build_app(server, config, sdk_app), closing)
    app = ProbeMiddleware(app, config.server.path, readiness)
    outer = WorkerSessions(app, worker) if worker else app
    http_server = HttpServer(outer, config.limits.traffic, handover, server.rejected_requests.report)
    with worker.listening if worker else listen(host, port) as listening:
        async with readiness.running(), anyio.create_task_group() as tasks:
            announce(format_url(host, listening, config.server.path))
            tasks.start_soon(_close_when_noticed, server, readiness, config.server.drain, closing)
            try:
                await http_server.serve_until(closing, listening)
            finally:
                server.rejected_requests.close()
            tasks.cancel_scope.cancel()


async def _close_when_noticed(server: MirrorServer, readiness: Readiness, drain: float, closing: anyio.Event) -> None:
    """Set `closing` at a shutdown, after a pause in which orchestrators that probe the gateway learn of it."""
    await readiness.shutdown.wait()
    open_requests = format_count(server.handlers.open_request_count, "open request")
    _logger.info("Shutting down within %g s (`server.drain`), with %s.", drain, open_requests)
    await readiness.wait_until_noticed(min(_LONGEST_PAUSE, drain / 2))
    closing.set()


def _build_sdk_app(server: MirrorServer, host: str) -> ASGIApp:
    """Return the SDK's ASGI application of an address, without the limits and checks that the gateway makes itself."""
    return server.sdk_server.streamable_http_app(
        streamable_http_path=server.policy.path,
        host=host,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # see `AddressCheck`
        max_request_body_size=server.spool.policy.max_envelope_bytes + 1,
        session_idle_timeout=None,  # see `Sessions`: the SDK does not see direct calls
    )


def _build_app(server: MirrorServer, config: Config, sdk_app: ASGIApp) -> ASGIApp:
    """Return the ASGI application of an address.

    Its layers from the outside: CORS, the files of the dashboard, authentication, the dashboard's API, the endpoints of
    upstreams, the MCP endpoint, and the SDK.
    """
    policy, addresses = server.policy, AddressCheck(server.policy)
    inner: ASGIApp = EndpointRouter(McpEndpoint(sdk_app, server, addresses), policy.path)
    if has_dashboard := is_served(config):
        inner = route_api(inner, build_api(server.handlers.gateway, config), config.dashboard, addresses, policy.path)
    outer = inner
    if server.auth.is_required:
        outer = Gate(inner, lambda: server.auth, time.monotonic, server.rejected_requests)
    if has_dashboard:
        outer = route_static(outer, addresses, policy.path, needs_token=server.auth.is_required)
    return _allow_origins(outer, policy.allowed_origins)


def _allow_origins(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Allow pages of these origins to read responses in browsers (CORS)."""
    if not origins:
        return app
    patterns = (re.escape(one.removesuffix(":*")) + (r":\d+" if one.endswith(":*") else "") for one in origins)
    return CORSMiddleware(
        app,
        allow_origin_regex="|".join(patterns),
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        allow_private_network=True,
        expose_headers=("mcp-session-id", "www-authenticate"),
    )


class HttpServer(uvicorn.Server):
    """A uvicorn server with limited connections and a graceful shutdown, which leaves signals to the command."""

    def __init__(
        self,
        app: ASGIApp,
        traffic: TrafficPolicy = _OF_ONE_USER,
        handover: ConnectionHandover | None = None,
        report: Report | None = None,
    ) -> None:
        """Create a server of an application; see `Connections` for the other arguments."""
        self._connections = Connections(traffic, handover, report)
        http = cast("type[asyncio.Protocol]", partial(LimitedProtocol, self._connections))  # called as a class is
        super().__init__(
            uvicorn.Config(
                app, http=http, ws="none", log_config=None, access_log=False, lifespan="on", backlog=_BACKLOG
            )
        )
        self._handover = handover
        self._accepting: set[asyncio.Task[object]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, also those of other workers."""
        for listening in sockets or ():
            _accept_connects(listening)
        await super().startup(sockets)
        if self._handover is not None:
            self._handover.start(self._create_protocol)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no further connections, without a reset of those that have begun, and wait for the open requests."""
        self._connections.is_shutting_down = True
        for listening in sockets or ():
            _ignore_connects(listening)
        await asyncio.sleep(_HANDSHAKE)
        for listening in sockets or ():
            self._accept_waiting(listening)
        await super().shutdown(sockets)
        if self._handover is not None:
            await self._handover.stop()
            await self._wait_tasks_to_complete()

    def _accept_waiting(self, listening: socket.socket) -> None:
        """Accept the connections in the queue of a socket, because its close would reset them."""
        loop = asyncio.get_running_loop()
        with suppress(OSError):  # such as the one for an empty queue
            for _ in range(_BACKLOG):
                connection, _ = socket.socket.accept(listening)  # without the pauses of a `PatientListener`
                connection.settimeout(0)
                accepting = loop.connect_accepted_socket(partial(self._create_protocol, b""), connection)
                self._accepting.add(loop.create_task(accepting))

    def _create_protocol(self, received: bytes) -> asyncio.Protocol:
        create: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return create(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state, received=received
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the command."""
        yield

    async def serve_until(self, closing: anyio.Event, listening: socket.socket) -> None:
        """Serve a listening socket until `closing` is set and open requests are answered, or until cancelled."""
        async with anyio.create_task_group() as tasks:

            async def serve() -> None:
                with anyio.CancelScope(shield=True):
                    await self.serve(sockets=[listening])
                tasks.cancel_scope.cancel()

            tasks.start_soon(self._shut_down, closing)
            tasks.start_soon(serve)  # a task of its own: a shield does not stop `cancel` of an asyncio task

    async def _shut_down(self, closing: anyio.Event) -> None:
        """Stop accepting requests at the shutdown; cancel the open requests when this task is cancelled."""
        try:
            await closing.wait()
            self.should_exit = True
            await anyio.sleep_forever()
        finally:
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # uvicorn reports each cancelled stream
            closing.set()
            self.should_exit = True
            if open_requests := tuple(self.server_state.tasks):
                _logger.warning("The shutdown cancels %s.", format_count(len(open_requests), "open request"))
            for request in open_requests:
                request.cancel()


def _ignore_connects(listening: socket.socket) -> None:
    """Ignore further attempts to connect to a listening socket (Linux), so that its queue can be emptied.

    Its close would reset a connection that arrived after the last look into the queue. The system of an ignored client
    tries again after a second; by then it learns that nothing listens here, or reaches another worker.
    """
    if sys.platform != "linux":
        return
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in _WITHOUT_SYN)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HP", len(_WITHOUT_SYN), ctypes.addressof(buffer))
    with suppress(OSError):  # a sandbox may not have the option
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def _accept_connects(listening: socket.socket) -> None:
    """Accept attempts to connect again: a worker that has ended may have had the same socket."""
    if sys.platform == "linux":
        with suppress(OSError):  # such as the one for a socket without a filter
            listening.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def format_url(host: str, listening: socket.socket, path: str) -> str:
    """Return the URL of a path on a socket that listens on a host."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listening.getsockname()[1]}{path}"


def listen(host: str, port: int, *, is_shared: bool = False, key: str = "") -> socket.socket:
    """Return a listening socket with TCP_NODELAY, which accepted connections inherit.

    Without the option, each small response waits for the client's delayed acknowledgement. asyncio sets it only on
    sockets with an explicit protocol, which sockets of `create_server` do not have.

    With port 0 the system chooses a free one. `is_shared`: other sockets may listen on the address too; the system
    distributes the connections. `key` is that of the configuration with the address, for the error.

    Raises:
        MirrorError: The address is in use, is not an address of this machine, or has a port that does not exist.
    """
    if not 0 <= port <= _MAX_PORT:
        raise MirrorError(f"{port} is not a port: ports end at {_MAX_PORT}. Choose another, or 0 for any that is free.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = PatientListener(
            fileno=socket.create_server((host, port), family=family, reuse_port=is_shared).detach()
        )
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        what = f"Cannot serve {key} on {host}:{port}" if key else f"Cannot serve on {host}:{port}"
        reason = str(error.strerror or error).partition(_REPEATED_ADDRESS)[0]
        raise MirrorError(f"{what}: {reason}. Choose another port, or 0 for any that is free.") from None
    return listening

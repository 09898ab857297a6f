"""The HTTP server of `server.metrics`: `/metrics` for Prometheus, and the probes, on an address of its own."""

from collections.abc import Callable
from typing import Final

import anyio
import anyio.to_thread
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_mirror.observability.metrics import Metrics
from mcp_mirror.server.http.hosts import AddressCheck
from mcp_mirror.server.http.probes import ProbeMiddleware, Readiness
from mcp_mirror.server.http.server import HttpServer, format_url, listen
from mcp_mirror.settings.limits import TrafficPolicy
from mcp_mirror.settings.policies import ServerPolicy

_METRICS_PATH: Final = "/metrics"


class MetricsApp:
    """An ASGI application that answers `GET /metrics`."""

    def __init__(self, metrics: Metrics, policy: ServerPolicy) -> None:
        """Serve these metrics to the hosts of `policy`, in addition to addresses and loopback names."""
        self._metrics = metrics
        self._addresses = AddressCheck(policy, allows_addresses=True)
        self._is_exporting = anyio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            await (await self._answer(Request(scope)))(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if refusal := self._addresses.refuse(request.scope):
            return refusal
        if request.url.path != _METRICS_PATH:
            return PlainTextResponse("Not Found", 404)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("Method Not Allowed", 405, {"allow": "GET, HEAD"})
        encode, content_type = _choose_encoder(request.headers.get("accept", ""))
        async with self._is_exporting:
            await self._metrics.refresh()
            text = await anyio.to_thread.run_sync(encode, self._metrics.registry)
        return Response(text, headers={"content-type": content_type})


def _choose_encoder(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    """Return the encoder for an `Accept` header, and its media type; for an invalid version the text format."""
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # the library compares the parts of a version with numbers
        return choose_encoder("")


async def serve_metrics(
    app: ASGIApp,
    address: tuple[str, int],
    readiness: Readiness,
    traffic: TrafficPolicy,
    announce: Callable[[str], None],
) -> None:
    """Serve until cancelled: also during a graceful shutdown, in which `/readyz` answers 503.

    `announce` gets the URL once clients can connect.

    Raises:
        MirrorError: The address is in use.
    """
    host, port = address
    server = HttpServer(ProbeMiddleware(app, _METRICS_PATH, readiness), traffic)
    with listen(host, port, key="`server.metrics`") as listening:
        async with readiness.running():
            announce(format_url(host, listening, _METRICS_PATH))
            await server.serve_until(anyio.Event(), listening)

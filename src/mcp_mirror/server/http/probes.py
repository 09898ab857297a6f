"""Liveness and readiness probes of the HTTP server: `/healthz` and `/readyz`.

Both are served without a token, for every `Host`, and outside all limits, because an orchestrator sends them to the
address of a process. Their bodies are fixed texts, so they reveal nothing else than the state.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_mirror.errors import MirrorError
from mcp_mirror.stores.base import Store
from mcp_mirror.upstreams.registry import UpstreamRegistry

_LIVENESS_PATH: Final = "/healthz"
_READINESS_PATH: Final = "/readyz"
_METHODS: Final = ("GET", "HEAD")
STORE_TIMEOUT: Final = 2.0
"""Seconds that a probe or an export of metrics waits for the store."""
_RESULT_LIFETIME: Final = 1.0
"""Seconds for which an answer of the store is used, so that a flood of probes does not reach the store."""
_PROBING: Final = 30.0
"""Seconds after a probe of `/readyz` in which another is expected."""
_NOTICED: Final = 3
"""Negative answers after which an orchestrator has stopped sending requests."""
_NAMESPACE: Final = "readyz"
_BASE: Final = "readyz-00000000-0000-4000-8000-000000000000"
"""A value that never exists: the store has to look it up."""


class Readiness:
    """Decides, for the probes at one address, whether the gateway can answer calls.

    It can if the store answers, the first attempt to connect each upstream of the start has ended, each upstream with
    `required: true` is connected, and no shutdown has begun.
    """

    def __init__(
        self,
        store: Store,
        upstreams: UpstreamRegistry,
        shutdown: anyio.Event,
        addresses: "Sequence[Readiness]",
    ) -> None:
        """Check nothing yet. `addresses` has those of the gateway, this one among them."""
        self.shutdown = shutdown
        self._store = store
        self._upstreams = upstreams
        self._addresses = addresses
        self._probed_at = -_PROBING
        self._negative_answers = 0
        self._noticed = anyio.Event()
        self._has_tried_upstreams = False
        """A reload does not reset it: replicas that reload at once would serve nothing until a slow upstream starts."""
        self._tasks = anyio.create_task_group()
        self._check: anyio.Event | None = None
        """Set when the running check of the store has ended; None if no check runs."""
        self._is_store_reachable = False
        self._checked_at = -_RESULT_LIFETIME

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the checks of the store, which may take longer than a probe waits, for the duration of the context."""
        async with self._tasks as tasks:
            yield
            tasks.cancel_scope.cancel()

    async def is_ready(self) -> bool:
        """Return whether the gateway can answer calls, within a few seconds."""
        self._probed_at = anyio.current_time()
        if self.shutdown.is_set():
            self._negative_answers += 1
            if self._negative_answers == _NOTICED:
                self._noticed.set()
            return False
        self._has_tried_upstreams |= all(one.settled.is_set() for one in self._upstreams)
        has_required = all(one.status.state == "ready" for one in self._upstreams if one.policy.required)
        return self._has_tried_upstreams and has_required and await self._can_reach_store()

    async def wait_until_noticed(self, most: float) -> None:
        """Wait until all orchestrators have learned of the shutdown, so that they send no request to a closed socket.

        It waits `most` seconds at most, and not at all if nothing probes the gateway.
        """
        with anyio.move_on_after(most):
            for address in self._addresses:
                if anyio.current_time() < address._probed_at + _PROBING:  # noqa: SLF001  # same class
                    await address._noticed.wait()  # noqa: SLF001  # as above

    async def _can_reach_store(self) -> bool:
        """Ask the store, once at a time: a store that hangs does not collect checks."""
        if anyio.current_time() < self._checked_at + _RESULT_LIFETIME:
            return self._is_store_reachable
        if self._check is None:
            self._check = anyio.Event()
            self._tasks.start_soon(self._ask_store, self._check)
        with anyio.move_on_after(STORE_TIMEOUT):
            await self._check.wait()
            return self._is_store_reachable
        return False

    async def _ask_store(self, done: anyio.Event) -> None:
        self._is_store_reachable = False
        with suppress(MirrorError):
            await self._store.describe(_NAMESPACE, _BASE)
            self._is_store_reachable = True
        self._checked_at, self._check = anyio.current_time(), None
        done.set()


class ProbeMiddleware:
    """An ASGI middleware that answers the probes before all other checks."""

    def __init__(self, app: ASGIApp, path: str, readiness: Readiness) -> None:
        """Wrap an application; `path`, of the MCP endpoint, keeps its meaning."""
        self._app = app
        self._paths = {_LIVENESS_PATH, _READINESS_PATH} - {path}
        self._readiness = readiness

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a probe, or pass the request on."""
        if scope["type"] != "http" or scope["path"] not in self._paths or scope["method"] not in _METHODS:
            await self._app(scope, receive, send)
            return
        is_good = scope["path"] == _LIVENESS_PATH or await self._readiness.is_ready()
        text, status = ("ok", 200) if is_good else ("not ready", 503)
        await PlainTextResponse(text, status, {"cache-control": "no-store"})(scope, receive, send)

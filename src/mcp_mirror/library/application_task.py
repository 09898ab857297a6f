"""The task in which a `Mirror` runs its application."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import anyio
import msgspec

from mcp_mirror.app import Application, open_application
from mcp_mirror.errors import MirrorError, unwrap_error_group
from mcp_mirror.gateway.call import Stage
from mcp_mirror.settings.policies import Config
from mcp_mirror.upstreams.local import LocalFunctions

T = TypeVar("T")

_STOP_TIMEOUT: Final = 5.0
"""Seconds that the work of a mirror gets to end when the mirror closes."""


class MirrorClosedError(MirrorError):
    """The mirror was closed before its work ended."""


class RunningApplication(msgspec.Struct, frozen=True):
    """An open application."""

    application: Application
    loop: asyncio.AbstractEventLoop
    process: int
    """The process that opened it."""
    work: dict[anyio.CancelScope, anyio.Event] = msgspec.field(default_factory=dict)
    """The scopes of work that has not ended, each with the event of its end."""

    async def run(self, work: Callable[[Application], Coroutine[Any, Any, T]]) -> T:
        """Run work in the event loop of the application; the caller may run in another loop.

        Raises:
            MirrorError: The event loop of the application does not run, so the work would never end.
            MirrorClosedError: The mirror was closed before the work ended.
        """
        if _require_event_loop() is self.loop:
            return await self._run_here(work)
        if not self.loop.is_running():
            raise MirrorError(
                "The event loop that opened this Mirror does not run now. Open the Mirror in the loop that calls it, "
                "or use a SyncMirror, which has a loop of its own."
            )
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._run_here(work), self.loop))

    async def _run_here(self, work: Callable[[Application], Coroutine[Any, Any, T]]) -> T:
        with anyio.CancelScope() as scope:
            ended = self.work[scope] = anyio.Event()
            try:
                return await work(self.application)
            finally:
                del self.work[scope]
                ended.set()
        raise MirrorClosedError("This Mirror was closed before the call ended. Close it after its last call.")

    async def stop_work(self) -> None:
        """Cancel all work and wait for its end, but no longer than some seconds: a function may ignore the request."""
        for scope in self.work:
            scope.cancel()
        with anyio.move_on_after(_STOP_TIMEOUT):
            for ended in tuple(self.work.values()):
                await ended.wait()


def _require_event_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise MirrorError("A Mirror needs asyncio. Under trio, use a SyncMirror in a thread.") from None


class ApplicationTask:
    """An application in a task of its own, because different tasks may enter and exit the mirror."""

    def __init__(self, config: Config, functions: LocalFunctions, stages: Sequence[Stage]) -> None:
        self._config, self._functions, self._stages = config, functions, stages
        self.running: RunningApplication | None = None
        """None while the application is not open."""
        self.was_open = False
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def open(self, *, awaits_client: bool) -> AsyncIterator[Application]:
        """Open the application for the duration of the context; `awaits_client`: it has one local client.

        Raises:
            MirrorError: The mirror is already open, or cannot be opened, such as under trio.
        """
        if self._task is not None:
            raise MirrorError("This Mirror is open already: use that one, or make another.")
        ready: asyncio.Future[Application] = _require_event_loop().create_future()
        closing = asyncio.Event()
        task = self._task = asyncio.create_task(self._run_application(ready, closing, awaits_client=awaits_client))
        try:
            await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                yield ready.result()
        finally:
            closing.set()
            if not ready.done():
                task.cancel()
            try:
                await task
            except BaseExceptionGroup as group:
                raise unwrap_error_group(group) from None
            finally:
                self._task = None

    async def _run_application(
        self, ready: asyncio.Future[Application], closing: asyncio.Event, *, awaits_client: bool
    ) -> None:
        opening = open_application(
            self._config, awaits_client=awaits_client, functions=self._functions, stages=self._stages
        )
        async with opening as application:
            running = self.running = RunningApplication(application, asyncio.get_running_loop(), os.getpid())
            try:
                if not awaits_client:
                    await application.upstreams.wait_for_attempts(self._config.mirror.startup_wait)
                ready.set_result(application)
                await closing.wait()
            finally:
                self.was_open, self.running = True, None
                await running.stop_work()

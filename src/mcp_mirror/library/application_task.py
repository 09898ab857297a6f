"""The task in which a `Mirror` runs its application, and work for the application from any event loop."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from mcp_mirror.app import Application, open_application
from mcp_mirror.callers import LOCAL
from mcp_mirror.errors import MirrorError, unwrap_error_group
from mcp_mirror.gateway.call import Stage
from mcp_mirror.settings.policies import Config
from mcp_mirror.upstreams.local import LocalFunctions

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Running:
    application: Application
    loop: asyncio.AbstractEventLoop
    """The event loop of the application."""
    process: int
    """The process that opened it."""


class ApplicationTask:
    """An application in a task of its own, because different tasks may enter and exit the mirror."""

    def __init__(self, config: Config, functions: LocalFunctions, stages: Sequence[Stage]) -> None:
        self._config, self._functions, self._stages = config, functions, stages
        self._running: _Running | None = None
        self._was_open = False
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def open(self, *, awaits_client: bool) -> AsyncIterator[Application]:
        """Open the application for the duration of the context.

        Raises:
            MirrorError: The mirror is already open, or cannot be opened.
        """
        if self._task is not None:
            raise MirrorError("This Mirror is open already: use that one, or make another.")
        ready, closing = _require_event_loop().create_future(), asyncio.Event()
        task = self._task = asyncio.create_task(self._run_application(ready, closing, awaits_client=awaits_client))
        try:
            await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                yield self.application
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
        self, ready: asyncio.Future[None], closing: asyncio.Event, *, awaits_client: bool
    ) -> None:
        opening = open_application(
            self._config, awaits_client=awaits_client, functions=self._functions, stages=self._stages
        )
        async with opening as application:
            try:
                self._running = _Running(application, asyncio.get_running_loop(), os.getpid())
                if not awaits_client:
                    await application.upstreams.settle(self._config.mirror.startup_wait)
                ready.set_result(None)
                await closing.wait()
            finally:
                self._was_open, self._running = True, None

    @property
    def application(self) -> Application:
        """The open application.

        Raises:
            MirrorError: The mirror is not open in this process.
        """
        return self._require_running().application

    def _require_running(self) -> _Running:
        if self._running is None:
            state = "is closed" if self._was_open else "is not open yet"
            raise MirrorError(f"This Mirror {state}: use it within `async with mirror:`.")
        if self._running.process != os.getpid():
            raise MirrorError("This Mirror was opened in another process. Open one in this process.")
        return self._running

    async def run(self, work: Callable[[Application], Coroutine[Any, Any, T]], namespace: str = LOCAL) -> T:
        """Run work for a namespace in the event loop of the application; the caller may run in another loop.

        Raises:
            MirrorError: The mirror is not open, or a store cannot write the namespace.
        """
        running = self._require_running()
        try:
            namespace.encode()
        except UnicodeEncodeError:
            raise MirrorError(
                f"The namespace {namespace!r} is not valid Unicode: it contains half of a surrogate pair. Use another."
            ) from None
        if _require_event_loop() is running.loop:
            return await work(running.application)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(running.application), running.loop))


def _require_event_loop() -> asyncio.AbstractEventLoop:
    """The running event loop of asyncio; raises MirrorError under trio and without a loop."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise MirrorError("A Mirror needs asyncio. Under trio, use a SyncMirror in a thread.") from None

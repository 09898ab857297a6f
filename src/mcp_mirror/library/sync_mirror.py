"""`Mirror` for scripts and notebooks: the same methods without `await`.

One event loop runs in a thread of its own, so that it works where another loop runs already.
"""

import asyncio
import atexit
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future, wait
from functools import partial, wraps
from threading import Thread, get_ident
from time import monotonic
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, Unpack, overload

import anyio

from mcp_mirror.config.loading import GivenStore, GivenUpstreams
from mcp_mirror.errors import MirrorError
from mcp_mirror.functions.signatures import ToolOptions
from mcp_mirror.gateway.call import Stage
from mcp_mirror.library.mirror import Mirror
from mcp_mirror.library.tool_formats import Format

Tool = TypeVar("Tool", bound=Callable[..., Any])
T = TypeVar("T")
P = ParamSpec("P")

_CLOSE_TIMEOUT: Final = 20.0
"""Seconds that the end of a mirror may take: more than its calls and its upstreams get to end."""

_INTERRUPT_CHECK: Final = 0.5
"""Seconds after which a waiting thread looks for an interrupt that did not wake it."""

_logger = logging.getLogger(__name__)


def _block(
    method: Callable[Concatenate[Mirror, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["SyncMirror", P], T]:
    """Return a method of `Mirror` as one of `SyncMirror`, with the same signature and documentation."""

    @wraps(method)
    def call_and_wait(self: "SyncMirror", /, *arguments: P.args, **options: P.kwargs) -> T:
        return self._run(method, self._mirror, *arguments, **options)

    return call_and_wait


class SyncMirror:
    """A `Mirror` for code without `async`: its methods block until they are done. Use it within `with mirror:`.

    Methods have the arguments and results of those of `Mirror`. Several threads may call a mirror at once, and so may
    a tool that is not `async`. An `async` tool may not, because it runs in the event loop of the mirror.
    """

    def __init__(
        self, store: GivenStore = None, upstreams: GivenUpstreams = None, stages: Sequence[Stage] = ()
    ) -> None:
        """Read the configuration without starting the upstreams. The arguments are those of `Mirror`.

        Raises:
            ConfigError: The configuration cannot be used.
        """
        self._mirror = Mirror(store, upstreams, stages)
        self._thread: _LoopThread | None = None
        self._process = 0
        """The process that opened the mirror."""

    @overload
    def tool(self, function: Tool, /, **options: Unpack[ToolOptions]) -> Tool: ...

    @overload
    def tool(self, /, **options: Unpack[ToolOptions]) -> Callable[[Tool], Tool]: ...

    def tool(self, function: Any = None, /, **options: Unpack[ToolOptions]) -> Any:
        """Make a function a tool: see `Mirror.tool`."""
        make_tool: Callable[..., Any] = self._mirror.tool
        return make_tool(function, **options)

    def __enter__(self) -> Self:
        """Start the event loop and open the mirror.

        Raises:
            MirrorError: The mirror is open already, or cannot be opened.
        """
        thread = _LoopThread()
        try:
            thread.run(self._mirror.__aenter__)
        except BaseException:
            thread.end()
            raise
        self._thread, self._process = thread, os.getpid()
        atexit.register(self._close)
        return self

    def __exit__(self, *_: object) -> None:
        """Close the mirror and end the event loop."""
        self._close()

    def _close(self) -> None:
        """Close the mirror, also at the end of a program that did not, while its threads still run."""
        atexit.unregister(self._close)
        thread, self._thread = self._thread, None
        if thread is not None and self._process == os.getpid():  # a forked process does not have the thread
            thread.end(lambda: self._mirror.__aexit__(None, None, None))

    call = _block(Mirror.call)
    """Call a tool: see `Mirror.call`."""
    run = _block(Mirror.run)
    """Run a script over values in a sandbox: see `Mirror.run`."""
    sql = _block(Mirror.sql)
    """Run one SELECT over values: see `Mirror.sql`."""
    read = _block(Mirror.read)
    """Return the value under a memory path: see `Mirror.read`."""
    put = _block(Mirror.put)
    """Store a value and return its memory path: see `Mirror.put`."""
    clear = _block(Mirror.clear)
    """Delete all stored values of a namespace and return their number: see `Mirror.clear`."""
    prune = _block(Mirror.prune)
    """Prune a conversation to a budget of tokens: see `Mirror.prune`."""
    restore = _block(Mirror.restore)
    """Restore a conversation to its state before `prune`: see `Mirror.restore`."""

    def tools(self, format: Format = "openai") -> list[Any]:  # noqa: A002  # as in `Mirror.tools`
        """Return the definitions of all tools: see `Mirror.tools`."""

        async def tools() -> list[Any]:
            return self._mirror.tools(format)

        return self._run(tools)

    @property
    def instructions(self) -> str:
        """The part of a system prompt that explains memory paths and the upstreams: see `Mirror.instructions`."""

        async def instructions() -> str:
            return self._mirror.instructions

        return self._run(instructions)

    def _run(self, work: Callable[P, Awaitable[T]], *arguments: P.args, **options: P.kwargs) -> T:
        if self._thread is None:
            raise MirrorError("This SyncMirror is not open: use it within `with mirror:`.")
        if self._process != os.getpid():
            raise MirrorError("This SyncMirror was opened in another process. Make another in this process.")
        if self._thread.is_current:
            raise MirrorError(
                "A SyncMirror cannot be called in its own event loop, where `async` tools run. Make the tool a plain "
                "function, or use `Mirror`."
            )
        return self._thread.run(partial(work, *arguments, **options))


class _LoopThread:
    """An event loop in a thread.

    The portal of AnyIO would wait for the end of the thread: forever in a forked process, which has no such thread, and
    where an `async` tool blocks the loop. This thread is left after some seconds, and ends with the process.
    """

    def __init__(self) -> None:
        """Start the thread, and wait until its event loop runs."""
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._ending = asyncio.Event()
        self._thread = Thread(target=self._serve, args=(started,), name="mcp-mirror-portal", daemon=True)
        self._thread.start()
        self._loop = started.result()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return self._thread.ident == get_ident()

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run work and return its result; an interrupt of the caller's thread, such as Ctrl-C, cancels the work."""
        task = _CancellableTask(work)
        try:
            return _wait_for(asyncio.run_coroutine_threadsafe(task.run(), self._loop))
        except BaseException:
            if not task.has_ended:
                self._loop.call_soon_threadsafe(task.cancel)  # does not wait for a loop that a tool blocks
            raise

    def end(self, work: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Run the last work and end the loop, but wait no longer than some seconds."""
        deadline = monotonic() + _CLOSE_TIMEOUT
        try:
            if work is not None:
                last = asyncio.run_coroutine_threadsafe(work(), self._loop)
                if wait([last], _CLOSE_TIMEOUT).done:
                    last.result()
        finally:
            self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join(max(0.0, deadline - monotonic()))
        if self._thread.is_alive():
            _logger.warning(
                "The event loop of a SyncMirror did not end within %g s. An `async` tool blocks it, or ignores its "
                "cancellation: make a tool that blocks a plain function, which runs in a thread.",
                _CLOSE_TIMEOUT,
            )

    def _serve(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        async def run_until_ending() -> None:
            started.set_result(asyncio.get_running_loop())
            await self._ending.wait()

        try:
            anyio.run(run_until_ending)
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)


def _wait_for(future: Future[T]) -> T:
    """Return the result of a future; an interrupt, such as Ctrl-C, ends the wait.

    No wait is long: a signal does not wake the thread if it comes just before the thread blocks, if another thread
    receives it, or on Windows.
    """
    while True:
        try:
            return future.result(_INTERRUPT_CHECK)
        except TimeoutError:
            if future.done():  # the work itself ended, with its result or its own `TimeoutError`
                return future.result()


class _CancellableTask(Generic[T]):
    """Work in the event loop of another thread, which can be cancelled even before the other thread has its future."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self.has_ended = False
        self._work = work
        self._is_cancelled = False
        self._task: asyncio.Task[Any] | None = None

    async def run(self) -> T:
        self._task = asyncio.current_task()
        try:
            if self._is_cancelled:
                raise asyncio.CancelledError
            return await self._work()
        finally:
            self.has_ended = True

    def cancel(self) -> None:
        """Cancel the work; called in the event loop."""
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

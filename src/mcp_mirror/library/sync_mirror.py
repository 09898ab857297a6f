"""`Mirror` for scripts and notebooks: the same methods without `await`.

One event loop runs in a thread of its own, so that it works where another loop runs already.
"""

import asyncio
import atexit
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from functools import partial
from threading import Thread, get_ident
from time import monotonic
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, Unpack, overload

import anyio
from anyio.from_thread import BlockingPortal

from mcp_mirror.callers import LOCAL
from mcp_mirror.config.loading import GivenStore, GivenUpstreams
from mcp_mirror.core.tool_inspection import Definition, Format
from mcp_mirror.errors import MirrorError
from mcp_mirror.functions.reply import Reply, ScriptReply
from mcp_mirror.functions.signatures import ToolOptions
from mcp_mirror.gateway.call import Stage
from mcp_mirror.library.mirror import GivenConversation, Mirror
from mcp_mirror.prune import ChatFormat, Estimate, Pruned
from mcp_mirror.settings.policies import TokenProvider

Tool = TypeVar("Tool", bound=Callable[..., Any])
T = TypeVar("T")

_CLOSE_TIMEOUT: Final = 20.0
"""Seconds that the end of a mirror may take: more than its calls and its upstreams get to end."""

_logger = logging.getLogger(__name__)


class SyncMirror:
    """A `Mirror` for code without `async`: its methods block until they are done. Use it within `with mirror:`.

    Several threads may call a mirror at once, and so may a tool that is not `async`. An `async` tool may not, because
    it runs in the event loop of the mirror.
    """

    def __init__(
        self, store: GivenStore = None, upstreams: GivenUpstreams = None, stages: Sequence[Stage] = ()
    ) -> None:
        """Read the configuration without starting the upstreams. The arguments are those of `Mirror`.

        Raises:
            ConfigError: The configuration cannot be used.
        """
        self._mirror = Mirror(store, upstreams, stages)
        self._portal: BlockingPortal | None = None
        self._loop_thread = 0
        """The identifier of the thread with the event loop."""
        self._process = 0
        """The process that opened the mirror."""
        self._closing = ExitStack()

    @overload
    def tool(self, function: Tool, /) -> Tool: ...

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
        with ExitStack() as opening:
            thread = _LoopThread()
            portal = opening.enter_context(thread)
            portal.call(self._mirror.__aenter__)
            opening.callback(thread.run_last, lambda: self._mirror.__aexit__(None, None, None))
            self._loop_thread, self._process = portal.call(get_ident), os.getpid()
            self._loop = thread.loop
            self._portal, self._closing = portal, opening.pop_all()
        atexit.register(self._close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the mirror and end the event loop."""
        self._close()

    def _close(self) -> None:
        """Close the mirror, also at the end of a program that did not, while its threads still run."""
        atexit.unregister(self._close)
        self._portal = None
        if self._process == os.getpid():  # a forked process does not have the thread of the event loop
            self._closing.close()

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | str | bytes | None = None,
        *,
        namespace: str = LOCAL,
        conversation: GivenConversation = None,
    ) -> Reply:
        """Call a tool: see `Mirror.call`."""
        return self._run(partial(self._mirror.call, name, arguments, namespace=namespace, conversation=conversation))

    def run(
        self,
        code: str,
        inputs: Mapping[str, Any] | None = None,
        *,
        namespace: str = LOCAL,
        conversation: GivenConversation = None,
    ) -> ScriptReply:
        """Run a script over values in a sandbox: see `Mirror.run`."""
        return self._run(partial(self._mirror.run, code, inputs, namespace=namespace, conversation=conversation))

    def sql(
        self,
        query: str,
        inputs: Mapping[str, Any] | None = None,
        *,
        namespace: str = LOCAL,
        conversation: GivenConversation = None,
    ) -> ScriptReply:
        """Run one SELECT over values: see `Mirror.sql`."""
        return self._run(partial(self._mirror.sql, query, inputs, namespace=namespace, conversation=conversation))

    def read(self, path: str, *, namespace: str = LOCAL) -> Any:
        """Return the value under a memory path: see `Mirror.read`."""
        return self._run(partial(self._mirror.read, path, namespace=namespace))

    def put(self, value: object, *, namespace: str = LOCAL) -> str:
        """Store a value and return its memory path: see `Mirror.put`."""
        return self._run(partial(self._mirror.put, value, namespace=namespace))

    def clear(self, *, namespace: str = LOCAL) -> int:
        """Delete all stored values of a namespace and return their number: see `Mirror.clear`."""
        return self._run(partial(self._mirror.clear, namespace=namespace))

    def prune(
        self,
        messages: list[Any],
        budget: int,
        provider: ChatFormat,
        *,
        namespace: str = LOCAL,
        estimate: Estimate | TokenProvider | None = None,
    ) -> Pruned:
        """Prune a conversation to a budget of tokens: see `Mirror.prune`."""
        return self._run(
            partial(self._mirror.prune, messages, budget, provider, namespace=namespace, estimate=estimate)
        )

    def restore(self, messages: list[Any], provider: ChatFormat, *, namespace: str = LOCAL) -> list[Any]:
        """Restore a conversation to its state before `prune`: see `Mirror.restore`."""
        return self._run(partial(self._mirror.restore, messages, provider, namespace=namespace))

    def tools(self, format: Format = "openai") -> list[Definition]:  # noqa: A002  # as in `Mirror.tools`
        """Return the definitions of all tools: see `Mirror.tools`."""

        async def tools() -> list[Definition]:
            return self._mirror.tools(format)

        return self._run(tools)

    @property
    def instructions(self) -> str:
        """The part of a system prompt that explains memory paths and the upstreams: see `Mirror.instructions`."""

        async def instructions() -> str:
            return self._mirror.instructions

        return self._run(instructions)

    def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run work in the event loop; an interrupt of this thread, such as Ctrl-C, cancels the work.

        Raises:
            MirrorError: The mirror is not open in this process, or this is the thread of the event loop.
        """
        if self._portal is None:
            raise MirrorError("This SyncMirror is not open: use it within `with mirror:`.")
        if self._process != os.getpid():
            raise MirrorError("This SyncMirror was opened in another process. Open one in this process.")
        if get_ident() == self._loop_thread:
            raise MirrorError(
                "A SyncMirror cannot be called in its own event loop, where `async` tools run. Make the tool a plain "
                "function, or use `Mirror`."
            )
        task = _CancellableTask(work)
        try:
            return self._portal.start_task_soon(task.run).result()
        except BaseException:
            if not task.has_ended:
                self._loop.call_soon_threadsafe(task.cancel)  # does not wait for a loop that a tool blocks
            raise


class _LoopThread:
    """An event loop in a thread, for a `with` statement.

    That of AnyIO is a generator, whose end waits for the thread: forever in a forked process, which has no such thread.
    The end waits some seconds: an `async` tool may block the loop. The thread then ends with the process.
    """

    def __enter__(self) -> BlockingPortal:
        started: Future[tuple[BlockingPortal, asyncio.AbstractEventLoop]] = Future()
        self._thread = Thread(target=self._run, args=(started,), name="mcp-mirror-portal", daemon=True)
        self._thread.start()
        self._portal, self.loop = started.result()
        self._deadline: float | None = None
        return self._portal

    def run_last(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run work before the end, but wait no longer than some seconds."""
        self._deadline = monotonic() + _CLOSE_TIMEOUT
        ending = asyncio.run_coroutine_threadsafe(work(), self.loop)
        ended, _ = wait([ending], _CLOSE_TIMEOUT)
        if ended:
            ending.result()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._portal.stop(kind is not None), self.loop)
        self._thread.join(_CLOSE_TIMEOUT if self._deadline is None else max(0.0, self._deadline - monotonic()))
        if self._thread.is_alive():
            _logger.warning(
                "The event loop of a SyncMirror did not end within %g s. An `async` tool blocks it, or ignores its "
                "cancellation: make a tool that blocks a plain function, which runs in a thread.",
                _CLOSE_TIMEOUT,
            )

    @staticmethod
    def _run(started: Future[tuple[BlockingPortal, asyncio.AbstractEventLoop]]) -> None:
        async def serve() -> None:
            async with BlockingPortal() as portal:
                started.set_result((portal, asyncio.get_running_loop()))
                await portal.sleep_until_stopped()

        try:
            anyio.run(serve)
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)


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

"""Functions of the embedding program as an upstream: without a process, a connection or a session.

The arguments of a call are decoded once, for the function; its result is encoded once, for the memory.
"""

import asyncio
import inspect
import logging
import sys
from collections.abc import AsyncIterable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from threading import get_ident
from typing import Any, Final, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import msgspec
from msgspec.structs import replace

from mcp_mirror.callers import Caller, ClientChannel
from mcp_mirror.core.schemas.tool_inspection import InspectedTool, inspect_tool
from mcp_mirror.errors import ArgumentsError, MirrorError, RefusedError, UpstreamError
from mcp_mirror.functions.results import OUTPUT_SCHEMA, Result, convert_failure, convert_result, is_small
from mcp_mirror.functions.signatures import Function
from mcp_mirror.settings.labels import FUNCTIONS
from mcp_mirror.settings.upstreams import LocalEndpoint, ToolPolicy, UpstreamPolicy
from mcp_mirror.upstreams.connection import ReconnectingConnection
from mcp_mirror.upstreams.elicitation import InputRound
from mcp_mirror.upstreams.listing import Listing
from mcp_mirror.upstreams.reconnect import Status
from mcp_mirror.upstreams.upstream import ChangeListeners
from mcp_mirror.upstreams.upstream_request import UpstreamRequest

T = TypeVar("T")

_logger = logging.getLogger(__name__)

_MAX_THREADS: Final = 40
"""Threads for functions that are not `async`, without those that continue after a timeout or a cancellation."""
_MAX_ABANDONED: Final = 40
"""Threads of one function that continue after a timeout or a cancellation; then the function is not called."""
_MAX_LEVELS: Final = 10
"""Levels of functions, each called by one of the level above, that have threads of their own: a function that waits
for another one keeps its thread."""
_PASSED_ON: Final = (ArgumentsError, KeyboardInterrupt, GeneratorExit)
"""Exceptions that are not failures of a function. All others are: an error within a library in Rust, such as polars, is
not an `Exception`, and a call that it ends would get no reply."""
_LEVEL: Final = ContextVar("level", default=0)
"""The level of the functions that this task or thread calls."""


class LocalFunctions:
    """The functions of one program, by name. They may be added at any time."""

    def __init__(self, *, preview: bool = True) -> None:
        """Start without functions; `preview` is `mirror.preview`."""
        self._all: dict[str, Function] = {}
        self._inspected: dict[str, InspectedTool] = {}
        self.policy: UpstreamPolicy = UpstreamPolicy(FUNCTIONS, LocalEndpoint(), lock="off", preview=preview)
        """The settings of the functions, as an upstream."""
        self._on_change: Callable[[], object] = lambda: None

    def __getitem__(self, name: str) -> Function:
        return self._all[name]

    def add(self, function: Function) -> None:
        """Make a function a tool. A function that is defined again, as by a notebook's cell, replaces the earlier one.

        Raises:
            MirrorError: Another function has this name.
        """
        earlier = self._all.get(function.name)
        if earlier is not None and not _is_redefinition(function.call, earlier.call):
            raise MirrorError(
                f"A tool with the name {function.name!r} exists already. Give one of the two another name: name=...."
            )
        self._all[function.name] = function
        tool = {
            "name": function.name,
            "description": function.description,
            "inputSchema": function.schema,
            "outputSchema": dict(OUTPUT_SCHEMA),
        }
        self._inspected[function.name] = inspect_tool(tool, self.policy.bounds)
        overrides = tuple(one for one in self.policy.overrides if one[0] != function.name)
        if function.policy != ToolPolicy():  # each override is compared with the name of each tool
            overrides = (*overrides, (function.name, function.policy))
        self.policy = replace(self.policy, overrides=overrides)
        self._on_change()

    @contextmanager
    def notifying(self, on_change: Callable[[], object]) -> Iterator[None]:
        """Call `on_change` for each added function for the duration of the context."""
        self._on_change = on_change
        try:
            yield
        finally:
            self._on_change = lambda: None

    @property
    def listing(self) -> Listing:
        """The functions as the tools of an upstream."""
        inspected = tuple(self._inspected.values())
        return Listing(tuple(one.raw for one in inspected), None, "", "this program", inspected=inspected)


def _is_redefinition(function: Callable[..., Any], earlier: Callable[..., Any]) -> bool:
    """Whether both functions have the same place in a module.

    Functions within functions, and lambdas, have none; in a notebook or a prompt, a lambda replaces the earlier one.
    """
    if not (inspect.isfunction(function) and inspect.isfunction(earlier)):
        return False
    is_interactive = function.__module__ == "__main__" and not hasattr(sys.modules["__main__"], "__file__")
    has_place = "<" not in function.__qualname__.removeprefix("<lambda>" if is_interactive else "")
    return has_place and (function.__module__, function.__qualname__) == (earlier.__module__, earlier.__qualname__)


class LocalUpstream:
    """Calls local functions; it has the same members as `ServerUpstream`."""

    def __init__(self, functions: LocalFunctions, listeners: ChangeListeners) -> None:
        """Create an upstream that is not started; it announces added functions to `listeners`."""
        self.settled: anyio.Event = anyio.Event()
        self.listed: anyio.Event = self.settled
        self.inflight_count: int = 0
        self.status: Status = Status("ready")
        self.connections: tuple[ReconnectingConnection, ...] = ()
        self._functions = functions
        self._listeners = listeners
        self._abandoned: dict[str, tuple[_ThreadCall, ...]] = {}
        """Calls that continue in threads after a timeout or a cancellation, by function."""
        self._threads = tuple(anyio.CapacityLimiter(_MAX_THREADS) for _ in range(_MAX_LEVELS))

    @property
    def is_in_use(self) -> bool:
        """See `ServerUpstream.is_in_use`."""
        return self.inflight_count > 0

    @property
    def policy(self) -> UpstreamPolicy:
        """The name and the settings of the upstream."""
        return self._functions.policy

    @property
    def listing(self) -> Listing:
        """The current functions."""
        return self._functions.listing

    def listing_for(self, owner: str | None, principal: str | None = None) -> Listing:
        """Return the same listing for all owners."""
        del owner, principal
        return self.listing

    def offers(self, capability: str, detail: str = "") -> bool:
        """Return False: local functions are only tools."""
        del capability, detail
        return False

    def refusal(self, what: str, code: int, message: str, caller: Caller, *, is_content_hidden: bool) -> RefusedError:
        """See `ServerUpstream.refusal`; functions do not return JSON-RPC errors."""
        del caller, is_content_hidden
        return RefusedError(f"{what}: {message} (error {code}).", code, message)

    async def wait_for_connection(self, channel: ClientChannel) -> None:
        """Do nothing: all functions are known."""

    def needs_headers(self, caller: Caller) -> bool:  # noqa: ARG002  # as `ServerUpstream`
        """Return False: functions get no headers."""
        return False

    def find_missing_header(self, caller: Caller) -> None:
        """Return None: functions need no headers."""

    def listing_connection(self, channel: ClientChannel) -> ReconnectingConnection:
        """Raise an error: local functions have no connections."""
        del channel
        raise UpstreamError(f"The {FUNCTIONS} have only tools. Use another upstream for resources and prompts.")

    async def connection_for(self, channel: ClientChannel) -> ReconnectingConnection:
        """Raise an error, as `listing_connection`."""
        return self.listing_connection(channel)

    connection_for_lists = connection_for

    async def run(self) -> None:
        """Announce added functions, in the event loop whichever thread adds them; until cancelled."""
        loop, thread = anyio.lowlevel.current_token(), get_ident()

        def announce() -> None:
            if get_ident() == thread:
                self._announce_change()
            else:
                anyio.from_thread.run_sync(self._announce_change, token=loop)

        with self._functions.notifying(announce):
            self._announce_change()
            self.settled.set()
            await anyio.sleep_forever()

    def _announce_change(self) -> None:
        self._listeners.on_change("tools", None, self.policy.name)

    async def request(
        self, request: UpstreamRequest, channel: ClientChannel, answered: InputRound | None = None
    ) -> Result:
        """Call a function.

        Raises:
            ArgumentsError: The arguments do not fit.
            UpstreamError: The call timed out. A function that is not `async` continues; its result is dropped. Or too
                many earlier calls of the function continue.
        """
        del channel, answered
        function = self._functions[str(request.shown["name"])]
        seconds = request.timeout or self.policy.timeout
        self.inflight_count += 1
        try:
            with anyio.move_on_after(seconds):
                return await self._call(function, b"".join(request.params["arguments"]))
        finally:
            self.inflight_count -= 1
        raise UpstreamError(
            f"Tool {function.name!r} did not answer within {seconds:g} s (`timeout`); {request.after_loss}."
        )

    async def _call(self, function: Function, arguments: bytes) -> Result:
        if inspect.iscoroutinefunction(function.call) or inspect.isasyncgenfunction(function.call):
            return await self._answer(function, lambda: function.call(**function.read_arguments(arguments)))
        is_done, returned = await self._call_in_thread(function, arguments)
        return returned if is_done else await self._answer(function, lambda: returned)

    async def _call_in_thread(self, function: Function, arguments: bytes) -> tuple[bool, Any]:
        """Call a function in a thread, which continues if this task is cancelled; return as `_call_now`."""
        call = _ThreadCall()
        try:
            return await self._run_in_thread(partial(self._begin, function, arguments, call))
        except asyncio.CancelledError:
            earlier = self._abandoned.get(function.name, ())
            self._abandoned[function.name] = (*(one for one in earlier if one.is_running), call)
            raise

    def _begin(self, function: Function, arguments: bytes, call: "_ThreadCall") -> tuple[bool, Any]:
        """Call the function in this thread, unless too many of its earlier calls continue; return as `_call_now`."""
        continuing = sum(one.is_running for one in self._abandoned.get(function.name, ()))
        if continuing >= _MAX_ABANDONED:
            raise UpstreamError(
                f"Tool {function.name!r} was not called: {continuing} of its earlier calls still run after their "
                "timeout or cancellation. Use another tool."
            )
        call.is_running = True
        try:
            return _call_now(function, arguments)
        finally:
            call.is_running = False

    async def _answer(self, function: Function, begin: Callable[[], Any]) -> Result:
        """Await or iterate in the event loop, and return the result; a large result is encoded in a thread."""
        task = asyncio.current_task()
        earlier = task.cancelling() if task else 0  # of a program that calls the tool while it cleans up
        try:
            value = begin()
            while inspect.isawaitable(value):
                value = await value
            if isinstance(value, AsyncIterable):
                value = [item async for item in value]
            return (
                convert_result(value) if is_small(value) else await self._run_in_thread(partial(convert_result, value))
            )
        except _PASSED_ON:
            raise
        except asyncio.CancelledError as error:
            if task is None or task.cancelling() > earlier:
                raise
            return _fail(function, error)  # of a task that the function awaits
        except BaseException as error:  # noqa: BLE001  # the model gets every error of a function
            return _fail(function, error)

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        limiter = self._threads[min(_LEVEL.get(), _MAX_LEVELS - 1)]
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)


class _ThreadCall(msgspec.Struct):
    """A call of a function in a thread."""

    is_running: bool = False


def _call_now(function: Function, arguments: bytes) -> tuple[bool, Any]:
    """Call the function in this thread; return True and its result, or False and what must be awaited or iterated."""
    _LEVEL.set(_LEVEL.get() + 1)  # in the context of this thread
    try:
        returned = function.call(**function.read_arguments(arguments))
        is_pending = inspect.isawaitable(returned) or isinstance(returned, AsyncIterable)
        return not is_pending, returned if is_pending else convert_result(returned)
    except _PASSED_ON:
        raise
    except BaseException as error:  # noqa: BLE001  # as above
        return True, _fail(function, error)


def _fail(function: Function, error: BaseException) -> Result:
    """Return the result of a function that raised an exception. Only the log of the program gets the traceback."""
    if not isinstance(error, MirrorError):  # its message is all that there is to say
        _logger.warning("Tool %s raised an exception.", function.name, exc_info=error)
    return convert_failure(function.name, error)

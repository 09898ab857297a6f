"""Functions of the program that we run in, as an upstream: no process, no connection, no session.

A call's arguments are decoded once, for the function; what it returns is written once, for the memory.
"""

import inspect
from collections.abc import AsyncIterable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread

from mcp_mirror.callers import ClientChannel
from mcp_mirror.errors import MirrorError, RefusedError, ToolError, UpstreamError
from mcp_mirror.functions.results import OUTPUT_SCHEMA, Result, failure_of, is_small, result_of
from mcp_mirror.functions.signatures import Function
from mcp_mirror.payload.json_rpc import join
from mcp_mirror.settings.labels import FUNCTIONS
from mcp_mirror.settings.policies import LocalEndpoint, UpstreamPolicy
from mcp_mirror.upstreams.connection import ReconnectingConnection, Status
from mcp_mirror.upstreams.elicitation import InputRound
from mcp_mirror.upstreams.session import Listing, UpstreamRequest
from mcp_mirror.upstreams.upstream import ChangeListeners, ClientIdentity

T = TypeVar("T")

NAME: Final = FUNCTIONS
"""No upstream of a configuration can be called so."""
_THREADS: Final = 40
"""Functions that are not `async` and run at once; a thread that was given up counts until it ends."""


class LocalFunctions:
    """The functions of one program, by name. They may be added at any time."""

    def __init__(self) -> None:
        self._all: dict[str, Function] = {}
        self.policy = UpstreamPolicy(NAME, LocalEndpoint(), lock="off")
        """How they are treated."""
        self.on_change: Callable[[], object] = lambda: None
        """Told of each that is added."""

    def __getitem__(self, name: str) -> Function:
        return self._all[name]

    def add(self, function: Function) -> None:
        """Make a function a tool.

        Raises:
            MirrorError: There is one of this name.
        """
        if function.name in self._all:
            raise MirrorError(f"There is a tool {function.name!r} already. Give one of the two another name: name=....")
        self._all[function.name] = function
        self.policy = replace(self.policy, overrides=(*self.policy.overrides, (function.name, function.policy)))
        self.on_change()

    @property
    def listing(self) -> Listing:
        """They as an upstream's tools."""
        return Listing(tuple(map(_tool, self._all.values())), None, "", "this program")


class LocalUpstream:
    """Calls the functions; see `Upstream`."""

    def __init__(self, functions: LocalFunctions, audience: ChangeListeners) -> None:
        """Make one that is not started; `audience` is told of functions that are added."""
        self.settled = anyio.Event()
        self.inflight_count = 0
        self.status = Status("ready")
        self.connections: tuple[ReconnectingConnection, ...] = ()
        self._functions = functions
        self._audience = audience
        self._threads = anyio.CapacityLimiter(_THREADS)

    @property
    def listed(self) -> anyio.Event:
        """See `Upstream.listed`."""
        return self.settled

    @property
    def policy(self) -> UpstreamPolicy:
        """How the functions are treated."""
        return self._functions.policy

    @property
    def listing(self) -> Listing:
        """The functions of now."""
        return self._functions.listing

    def listing_for(self, owner: str | None) -> Listing:
        """The same for everybody."""
        del owner
        return self.listing

    def offers(self, capability: str, detail: str = "") -> bool:
        """Tools alone."""
        del capability, detail
        return False

    def refusal(self, what: str, code: int, message: str, *, hidden: bool) -> RefusedError:
        """An error of JSON-RPC's, which no function answers with."""
        del hidden
        return RefusedError(f"{what}: {message} (error {code}).", code, message)

    def present(self, client: ClientIdentity) -> None:
        """It is all the same who asks."""

    def release(self, key: str) -> None:
        """Nobody has anything of its own here."""

    async def attempt(self) -> None:
        """It is always there."""

    async def settle_for(self, channel: ClientChannel) -> None:
        """All is known."""

    async def connection_for(self, channel: ClientChannel) -> ReconnectingConnection:
        """There is no connection.

        Raises:
            UpstreamError: Always.
        """
        del channel
        raise UpstreamError(f"The {NAME} are tools alone.")

    def listing_connection(self, channel: ClientChannel) -> ReconnectingConnection:
        """There is no connection; see `connection_for`."""
        del channel
        raise UpstreamError(f"The {NAME} are tools alone.")

    async def run(self) -> None:
        """Tell of functions that are added; until cancelled."""
        self._functions.on_change = lambda: self._audience.on_change("tools", None, self.policy.name)
        try:
            self._functions.on_change()
            self.settled.set()
            await anyio.sleep_forever()
        finally:
            self._functions.on_change = lambda: None

    async def request(self, order: UpstreamRequest, channel: ClientChannel, again: InputRound | None = None) -> Result:
        """Call a function.

        Raises:
            ToolError: The arguments do not fit it.
            UpstreamError: It took too long. A function that is not `async` runs on; what it returns goes nowhere.
        """
        del channel, again
        function = self._functions[str(order.shown["name"])]
        seconds = order.timeout or self.policy.timeout
        with self._counted(), anyio.move_on_after(seconds):
            return await self._call(function, join(order.params["arguments"]))
        raise UpstreamError(
            f"Tool {function.name!r} did not answer within {seconds:g} s; try again or raise its `timeout`."
        )

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.inflight_count += 1
        try:
            yield
        finally:
            self.inflight_count -= 1

    async def _call(self, function: Function, arguments: bytes) -> Result:
        if inspect.iscoroutinefunction(function.call) or inspect.isasyncgenfunction(function.call):
            return await self._answer(function, lambda: function.call(**function.read_arguments(arguments)))
        returned = await self._in_thread(partial(_call_now, function, arguments))
        return returned.result if isinstance(returned, _Done) else await self._answer(function, lambda: returned)

    async def _answer(self, function: Function, begin: Callable[[], Any]) -> Result:
        """The result of what is awaited or iterated in the event loop; a large one is written in a thread."""
        try:
            value = begin()
            while inspect.isawaitable(value):
                value = await value
            if isinstance(value, AsyncIterable):
                value = [item async for item in value]
            return result_of(value) if is_small(value) else await self._in_thread(partial(result_of, value))
        except ToolError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever a function raises is told to the model
            return failure_of(function.name, error)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)


@dataclass(frozen=True, slots=True)
class _Done:
    """The result of a call that is over."""

    result: Result


def _call_now(function: Function, arguments: bytes) -> Any:
    """Call it in this thread: its result, or what the event loop must await or iterate."""
    try:
        returned = function.call(**function.read_arguments(arguments))
        is_pending = inspect.isawaitable(returned) or isinstance(returned, AsyncIterable)
        return returned if is_pending else _Done(result_of(returned))
    except ToolError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  # as above
        return _Done(failure_of(function.name, error))


def _tool(function: Function) -> dict[str, Any]:
    return {
        "name": function.name,
        "description": function.description,
        "inputSchema": function.schema,
        "outputSchema": dict(OUTPUT_SCHEMA),
    }

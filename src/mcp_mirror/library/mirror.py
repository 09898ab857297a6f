"""The library's face: functions of a program as tools, beside the upstreams of a configuration, with one memory.

What is called goes through the same gateway as a client's call. Nothing is opened here but through `app`.
"""

import asyncio
import json
import logging
import os
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack, overload

import anyio
import anyio.to_thread
import msgspec

from mcp_mirror.app import Application, open_application
from mcp_mirror.callers import LOCAL, Caller, NullChannel
from mcp_mirror.config.given import GivenStore, GivenUpstreams, read_given
from mcp_mirror.core.replies import Reply as ToolResult
from mcp_mirror.core.tool_definitions import Definition, Format, format_definition
from mcp_mirror.errors import MirrorError, unwrap_error_group
from mcp_mirror.functions.reply import Reply, read_reply
from mcp_mirror.functions.results import media_of, write_json
from mcp_mirror.functions.signatures import ToolOptions, read_function, read_policy
from mcp_mirror.gateway.call import Call, Next, Stage
from mcp_mirror.gateway.context_budgets import CONVERSATION, read_conversation
from mcp_mirror.memory.tools.lookup import CONTENTS, find_value
from mcp_mirror.memory.tools.save import NewValue, save_value
from mcp_mirror.memory.tools.tool import Arguments, ToolInput
from mcp_mirror.memory.value_lookup import FoundValue
from mcp_mirror.payload.json_spans import Miss, locate
from mcp_mirror.prune import ChatFormat, Estimate, Pruned, prune_messages, pruned_paths, restore_messages
from mcp_mirror.security.flows import labels_as_text
from mcp_mirror.settings.labels import MODEL
from mcp_mirror.settings.policies import TokenProvider
from mcp_mirror.types import Buffer, Provenance
from mcp_mirror.upstreams.local import LocalFunctions

__all__ = ["Call", "Mirror", "Next", "Reply", "Stage", "ToolResult"]

Tool = TypeVar("Tool", bound=Callable[..., Any])
T = TypeVar("T")

_PUT: Final = "memory_put"
"""Whose paths those of values are that the program itself stores."""

_READ: Final = "(program)"
"""Whom the audit log names where the program itself reads a value."""

_PRUNED: Final = Provenance("mcp-mirror", "prune", "")
"""Where what was pruned from a conversation comes from."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Open:
    application: Application
    loop: asyncio.AbstractEventLoop
    """The one that everything runs in."""


class Mirror:
    """Tools for a model whose large results stay in memory: a program's own functions, and MCP servers' tools.

    It works within `async with mirror:`; functions may be added before and meanwhile.
    """

    def __init__(
        self, store: GivenStore = None, upstreams: GivenUpstreams = None, stages: Sequence[Stage] = ()
    ) -> None:
        """Read the configuration; nothing is started.

        Args:
            store: Where values are kept: `memory`, `disk`, `redis`, or what a configuration has under `store`. None
                for what the configuration says, else `memory`.
            upstreams: A configuration: its file, or a mapping of the same shape or of its upstreams alone. None for no
                upstreams.
            stages: Stages that every tool call passes through, the outermost first; see `Stage`.

        Raises:
            ConfigError: The configuration cannot be used.
        """
        self._stages = tuple(stages)
        self._config = config = read_given(upstreams, store, os.environ)
        for warning in config.warnings:
            _logger.warning("%s", warning)
        self._functions = LocalFunctions()
        self._open: _Open | None = None
        self._was_open = False
        self._running: asyncio.Task[None] | None = None
        self._opening: AbstractAsyncContextManager[Application] | None = None

    @overload
    def tool(self, function: Tool, /) -> Tool: ...

    @overload
    def tool(self, /, **options: Unpack[ToolOptions]) -> Callable[[Tool], Tool]: ...

    def tool(self, function: Any = None, /, **options: Unpack[ToolOptions]) -> Any:
        """Make a function a tool: `@mirror.tool`, or with options `@mirror.tool(name="table")`.

        The function itself stays as it is. One that is not `async` is called in a thread.

        Args:
            function: Of parameters with names and of type hints that pydantic can read from JSON.
            options: See `ToolOptions`.

        Raises:
            MirrorError: The function cannot be a tool, or there is one of this name.
        """
        policy = read_policy(options)

        def add(function: Tool) -> Tool:
            self._functions.add(read_function(function, options.get("name"), options.get("description"), policy))
            return function

        return add if function is None else add(function)

    async def __aenter__(self) -> Self:
        opening = self._opened(awaits_client=False)
        await opening.__aenter__()
        self._opening = opening
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opening is not None:
            await self._opening.__aexit__(None, None, None)

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | str | bytes | None = None,
        *,
        namespace: str = LOCAL,
        conversation: str | Mapping[str, Any] | None = None,
    ) -> Reply:
        """Call a tool by the name under which `tools` lists it; what goes wrong in the call is a reply that says so.

        Args:
            name: A twin's name, or that of a tool for stored values.
            arguments: A mapping, or the JSON text of an object as models write it. Any string in it may be a memory
                path.
            namespace: Whose memory it uses: what one stores, another does not see.
            conversation: Whose context the reply goes into, where the configuration has a `context`: its id, or a
                mapping of `id`, `tokens` and `reset` (docs/guides/context-budgets.md). None: no account is kept.

        Raises:
            MirrorError: The mirror is not open.
        """
        told = {CONVERSATION: conversation}
        return await self._within(lambda application: _call(application, name, arguments, namespace, told))

    async def read(self, path: str, *, namespace: str = LOCAL) -> Any:
        """The value under a memory path, whole, for the program itself: what its JSON is in Python.

        A picture, a recording or a file that an upstream sent is its bytes.

        Raises:
            ToolError: Nothing is stored there.
            MirrorError: The mirror is not open.
        """
        found = self._within(lambda opened: find_value(opened.gateway.memory, namespace, path, _READ, to=None))
        return _python(await found)

    async def put(self, value: object, *, namespace: str = LOCAL) -> str:
        """Store a value of the program's: its memory path.

        Args:
            value: What a tool could return; bytes and pictures are stored as media.
            namespace: Whose memory it is.

        Raises:
            StoreError: It cannot be kept.
            ToolError: It is None, or past a bound.
            MirrorError: It has no JSON, or the mirror is not open.
        """

        async def put_in(application: Application) -> str:
            made = await anyio.to_thread.run_sync(_made_of, value)
            return (
                await save_value(ToolInput(application.gateway.memory, namespace, _PUT, Arguments({}, b"{}")), made)
            ).path

        return await self._within(put_in)

    async def prune(
        self,
        messages: list[Any],
        budget: int,
        provider: ChatFormat,
        *,
        namespace: str = LOCAL,
        estimate: Estimate | TokenProvider | None = None,
    ) -> Pruned:
        """Bring a conversation under a budget of tokens; what is pruned is stored before this returns.

        Args:
            messages: Plain dicts in the provider's format; they are not changed.
            budget: Tokens that all of them together may have.
            provider: Whose format it is; see `prune_messages`.
            namespace: Whose memory it uses.
            estimate: Whose tokens these are, or what tells them; see `prune_messages`. None for those of the
                configuration's `mirror.provider`, where it names one.

        Raises:
            StoreError: A part cannot be kept. The messages are whole still.
            MirrorError: The mirror is not open.
            TypeError: A message is no dict.
            ValueError: The format, or whose tokens it is, is not known.
        """
        self._application  # noqa: B018  # before work is done in vain
        configured = self._config.mirror.provider
        estimate = estimate or (configured if configured != "default" else None)
        kept: dict[str, bytes] = {}
        cut = partial(prune_messages, messages, budget, provider, kept, estimate=estimate)
        pruned = await anyio.to_thread.run_sync(cut)

        async def keep(application: Application) -> None:
            memory = application.gateway.memory
            labels = labels_as_text(memory.flows.labels_from(MODEL))
            await memory.writer.store_values(namespace, _PRUNED, kept, memory.estimate, labels)

        await self._within(keep)
        return pruned

    async def restore(self, messages: list[Any], provider: ChatFormat, *, namespace: str = LOCAL) -> list[Any]:
        """A conversation as it was before it was pruned, to the byte; a stub whose value is no longer there stays.

        Args:
            messages: As `prune` gave them, in their places; more may have been added to their end.
            provider: Whose format it is.
            namespace: Whose memory it uses.

        Raises:
            StoreError: The memory cannot be read.
            MirrorError: The mirror is not open.
            TypeError: A message is no dict.
            ValueError: The format is not known.
        """
        kept: dict[str, Buffer | None] = {}

        async def read(application: Application) -> None:
            for path in pruned_paths(messages, provider):
                kept[path] = await application.gateway.writer.store.read(namespace, path)

        await self._within(read)
        return await anyio.to_thread.run_sync(restore_messages, messages, kept.get, provider)

    def tools(self, format: Format = "openai") -> list[Definition]:  # noqa: A002  # as providers' own words have it
        """Every tool of now, as a provider's API takes them: the twins, and the tools for stored values.

        Raises:
            MirrorError: The mirror is not open, or there is no such format.
        """
        state = self._application.gateway.state
        own = [tool.advert for tool in state.own_tools.values()]
        return [
            format_definition(advert, format)
            for advert in (*(one.advert for one in state.catalog.entries.values()), *own)
        ]

    @property
    def instructions(self) -> str:
        """What a model should be told of memory paths and of the upstreams: a part of a system prompt."""
        return self._application.server.instructions(Caller(LOCAL))

    async def serve_http(
        self, host: str = "127.0.0.1", port: int = 0, announce: Callable[[str], None] = _logger.info
    ) -> None:
        """Serve MCP clients beside the program, over Streamable HTTP and with the same memory; until cancelled.

        Args:
            host: A loopback address.
            port: 0 for any that is free.
            announce: Told the URL.

        Raises:
            MirrorError: The mirror is not open, or the address cannot be served on.
        """
        await self._within(lambda application: application.serve_http(host, port, announce, anyio.Event()))

    async def serve_stdio(self) -> None:
        """Be an MCP server on standard input and output, until the client leaves: opens the mirror, and closes it.

        Raises:
            MirrorError: The mirror is open already.
        """
        async with self._opened(awaits_client=True) as application:
            await application.server.serve_stdio(anyio.Event())

    @asynccontextmanager
    async def _opened(self, *, awaits_client: bool) -> AsyncIterator[Application]:
        """Everything runs in a task of its own: whoever opens and closes may be different tasks, and errors are theirs.

        Raises:
            MirrorError: It is open already, or cannot be opened.
        """
        if self._running is not None:
            raise MirrorError("This Mirror is open already: use that one, or make another.")
        ready, closing = asyncio.get_running_loop().create_future(), asyncio.Event()
        running = self._running = asyncio.create_task(self._run(ready, closing, awaits_client=awaits_client))
        try:
            await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                yield self._application
        finally:
            closing.set()
            if not ready.done():
                running.cancel()
            try:
                await running
            except BaseExceptionGroup as group:
                raise unwrap_error_group(group) from None
            finally:
                self._running = None

    async def _run(self, ready: asyncio.Future[None], closing: asyncio.Event, *, awaits_client: bool) -> None:
        opening = open_application(
            self._config, awaits_client=awaits_client, functions=self._functions, stages=self._stages
        )
        async with opening as application:
            try:
                self._open = _Open(application, asyncio.get_running_loop())
                if not awaits_client:
                    await application.upstreams.settle(self._config.mirror.startup_wait)
                ready.set_result(None)
                await closing.wait()
            finally:
                self._was_open, self._open = True, None

    @property
    def _application(self) -> Application:
        return self._opened_now.application

    @property
    def _opened_now(self) -> _Open:
        if self._open is None:
            state = "is closed" if self._was_open else "is not open yet"
            raise MirrorError(f"This Mirror {state}: use it within `async with mirror:`.")
        return self._open

    async def _within(self, work: Callable[[Application], Coroutine[Any, Any, T]]) -> T:
        """Do something in the event loop that everything runs in, from whichever loop it is asked for."""
        now = self._opened_now
        if asyncio.get_running_loop() is now.loop:
            return await work(now.application)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(now.application), now.loop))


def _made_of(value: object) -> NewValue:
    media = media_of(value)
    raw = write_json(value) if media is None else media
    return NewValue((raw,), is_content=media is not None, size=len(raw))


async def _call(
    application: Application,
    name: str,
    arguments: Mapping[str, Any] | str | bytes | None,
    namespace: str,
    told: Mapping[str, Any],
) -> Reply:
    try:
        given, conversation = _read_arguments(arguments), read_conversation(told, None)
        gateway = application.gateway
        call = gateway.new_call(NullChannel(Caller(namespace)), name, given, conversation=conversation)
        return read_reply(await gateway.call_tool(call), call.trace.path, call.trace.envelope)
    except MirrorError as error:
        return Reply(str(error), is_error=True, content=({"type": "text", "text": str(error)},))


def _read_arguments(given: Mapping[str, Any] | str | bytes | None) -> bytes:
    if isinstance(given, Mapping):
        return write_json(given)
    raw = given.encode("utf-8", "replace") if isinstance(given, str) else given or b""
    try:
        msgspec.json.decode(raw.strip() or b"{}", type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MirrorError(f"The arguments are no JSON object: {error}. Correct them and call again.") from None
    return raw.strip() or b"{}"


def _python(found_value: FoundValue) -> Any:
    if found_value.kind != "binary":
        return json.loads(bytes(found_value.blob))
    for member, tokens in CONTENTS:
        if not isinstance(span := locate(found_value.blob, tokens), Miss):
            held = json.loads(bytes(found_value.blob[span.start : span.stop]))
            return b64decode(held) if member == "blob" else held
    return json.loads(bytes(found_value.blob))

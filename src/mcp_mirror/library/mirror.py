"""The library: functions of a program as tools, together with the upstreams of a configuration, with one memory.

Calls pass through the same gateway as those of clients. Only `app` opens and closes resources.
"""

import json
import logging
import os
from base64 import b64decode
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, Self, TypeVar, Unpack, overload

import anyio
import anyio.to_thread

from mcp_mirror.app import Application
from mcp_mirror.callers import LOCAL, OWN_NAME, Caller, NullChannel
from mcp_mirror.config.loading import GivenStore, GivenUpstreams, read_given
from mcp_mirror.core.replies import ToolResult
from mcp_mirror.core.results.media import locate_content
from mcp_mirror.errors import MirrorError
from mcp_mirror.functions.reply import Reply, ScriptReply, read_reply
from mcp_mirror.functions.results import encode_arguments, encode_media, write_json
from mcp_mirror.functions.signatures import ToolOptions, read_function, read_policy
from mcp_mirror.gateway.call import Call, Next, Stage
from mcp_mirror.gateway.context_budgets import CONVERSATION, read_conversation
from mcp_mirror.gateway.stages.custom import find_stage_fault
from mcp_mirror.gateway.tool_search import CALL_TOOL, FIND_TOOLS
from mcp_mirror.library.application_task import ApplicationTask, MirrorClosedError, RunningApplication
from mcp_mirror.library.tool_formats import Format, format_definition
from mcp_mirror.memory.code.sandbox import MONTY
from mcp_mirror.memory.tools.lookup import find_value
from mcp_mirror.memory.tools.save import NewValue, save_value
from mcp_mirror.memory.tools.table import QUERY, RUN, TOOLS
from mcp_mirror.memory.tools.tool import Arguments, ToolInput
from mcp_mirror.memory.value_lookup import FoundValue
from mcp_mirror.observability.audit import CallTrace
from mcp_mirror.prune import ChatFormat, Estimate, Pruned, prune_messages, pruned_paths, restore_messages
from mcp_mirror.query.sql import DUCKDB
from mcp_mirror.security.flows import format_labels
from mcp_mirror.settings.labels import MODEL
from mcp_mirror.settings.policies import TokenProvider
from mcp_mirror.system.slices import finish
from mcp_mirror.types import Buffer, Provenance
from mcp_mirror.upstreams.local import LocalFunctions

__all__ = ["OWN_TOOLS", "Call", "Mirror", "Next", "Reply", "ScriptReply", "Stage", "ToolResult"]

OWN_TOOLS: Final[frozenset[str]] = frozenset({*TOOLS, RUN, FIND_TOOLS, CALL_TOOL})
"""The names of the mirror's own tools, which it can list beside the twins."""

Tool = TypeVar("Tool", bound=Callable[..., Any])
T = TypeVar("T")
GivenConversation = str | Mapping[str, Any] | None
"""A conversation: its id, or a mapping of `id`, `tokens` and `reset`; None: none."""

_PUT: Final = "memory_put"
"""The tool in the paths of values that the program stores."""

_READ: Final = "(program)"
"""The tool in the audit log when the program reads a value."""

_PRUNED: Final = Provenance(OWN_NAME, "prune", "")
"""The origin of texts that were pruned from a conversation."""

_logger = logging.getLogger(__name__)


class Mirror:
    """Tools for a model: functions of the program and tools of MCP servers, which keep large results in one memory.

    Use a mirror within `async with mirror:`. `tool` adds functions before and within the context.

    ```python
    mirror = Mirror()  # Mirror(upstreams="mcp-mirror.yaml") adds the tools of MCP servers


    @mirror.tool
    def load_prices(city: str) -> list[float]: ...


    async with mirror:
        definitions = mirror.tools("anthropic")  # for the request to the model
        reply = await mirror.call("load_prices_mirrored", {"city": "Bonn"})  # a call that the model makes
        print(reply.text)  # for the model: a small result itself, else a notice with `reply.path`
        prices = await mirror.read(reply.path) if reply.path else []  # for the program: the stored value
    ```
    """

    def __init__(
        self, store: GivenStore = None, upstreams: GivenUpstreams = None, stages: Sequence[Stage] = ()
    ) -> None:
        """Read the configuration without starting the upstreams.

        Args:
            store: The store of values: `memory`, `disk`, `redis`, or a mapping like the `store` section of a
                configuration. None: the store of the configuration, or `memory`.
            upstreams: A configuration: its file, a mapping of the same shape, or a mapping of upstreams only. None: no
                upstreams.
            stages: Stages of every tool call, the outermost first; see `Stage`.

        Raises:
            ConfigError: The configuration cannot be used.
            TypeError: A stage cannot be called, or `stages` is a stage itself.
        """
        if callable(stages):
            raise TypeError("`stages` is one stage. Give a list: stages=[...].")
        stages = tuple(stages)  # a generator can be read once
        for number, stage in enumerate(stages, 1):
            if fault := find_stage_fault(stage):
                raise TypeError(f"Stage {number} of `stages` {fault}")
        self._config = config = read_given(upstreams, store, os.environ)
        for warning in config.warnings:
            _logger.warning("%s", warning)
        self._functions = LocalFunctions(preview=config.mirror.preview)
        self._task = ApplicationTask(config, self._functions, stages)
        self._context: AbstractAsyncContextManager[Application] | None = None

    @overload
    def tool(self, function: Tool, /, **options: Unpack[ToolOptions]) -> Tool: ...

    @overload
    def tool(self, /, **options: Unpack[ToolOptions]) -> Callable[[Tool], Tool]: ...

    def tool(self, function: Any = None, /, **options: Unpack[ToolOptions]) -> Any:
        """Make a function a tool: `@mirror.tool`, or with options `@mirror.tool(name="table")`.

        This returns the function unchanged. Functions that are not `async` run in a thread.

        Args:
            function: A function with named parameters and type hints that pydantic can read from JSON.
            options: `name` and `description`, by default those of the function; `timeout` of a call in seconds, by
                default 60; `capture`, which results are stored (`auto`, `large`, `always`, `never`); `inline_budget`,
                the tokens up to which a result is shown; `listed`, whether models see the tool although they search for
                the others. Missing options are those of the configuration.

        Raises:
            MirrorError: The function cannot be a tool, or another tool has its name.
        """
        policy = read_policy(options)

        def add(function: Tool) -> Tool:
            self._functions.add(read_function(function, options.get("name"), options.get("description"), policy))
            return function

        return add if function is None else add(function)

    async def __aenter__(self) -> Self:
        """Open the store and start the upstreams; wait for them up to `mirror.startup_wait` seconds.

        Raises:
            MirrorError: The mirror is open already, or cannot be opened.
        """
        context = self._task.open(awaits_client=False)
        await context.__aenter__()
        self._context = context
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all calls, stop the upstreams and close the store."""
        if self._context is not None:
            await self._context.__aexit__(None, None, None)

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | str | bytes | None = None,
        *,
        namespace: str = LOCAL,
        conversation: GivenConversation = None,
    ) -> Reply:
        """Call a tool.

        Args:
            name: The name of a twin or of a memory tool, as `tools` lists it.
            arguments: A mapping, or the JSON text of an object as models write it. Each string in it may be a memory
                path.
            namespace: The namespace of the memory; values of other namespaces cannot be used.
            conversation: The conversation that gets the reply, for the `context` section of a configuration: its id, or
                a mapping of `id`, `tokens` and `reset` (docs/guides/context-budgets.md). None: replies do not count.

        Returns:
            The reply for the model; if the call fails, a reply with the error.

        Raises:
            MirrorError: The mirror is not open.
        """
        return await self._run(
            lambda application: _call(application, name, arguments, namespace, conversation), namespace
        )

    async def run(
        self,
        code: str,
        inputs: Mapping[str, Any] | None = None,
        *,
        namespace: str = LOCAL,
        conversation: GivenConversation = None,
    ) -> ScriptReply:
        """Run a script over values in a sandbox; needs the extra `code`.

        Args:
            code: Python. Its last line is the result. `await tools.name(argument=...)` calls a tool.
            inputs: Values by the names of the script's variables. Each string in them may be a memory path.
            namespace: The namespace of the memory.
            conversation: See `call`.

        Returns:
            The reply for the model, with the returned value and the printed text for the program. If the script
            fails, a reply with the error.

        Raises:
            MirrorError: The mirror is not open, or the extra is not installed.
        """
        if find_spec(MONTY) is None:
            raise MirrorError("Scripts need an extra: pip install 'mcp-mirror[code]'.")
        return await self._run_script(RUN, {"code": code, "inputs": inputs or {}}, namespace, conversation)

    async def sql(
        self,
        query: str,
        inputs: Mapping[str, Any] | None = None,
        *,
        namespace: str = LOCAL,
        conversation: GivenConversation = None,
    ) -> ScriptReply:
        """Run one SELECT over values; needs the extra `sql`.

        Args:
            query: SQL of DuckDB.
            inputs: Values by the names of the tables: memory paths, arrays of objects, or CSV text.
            namespace: The namespace of the memory.
            conversation: See `call`.

        Returns:
            The reply for the model, with the rows for the program. If the query fails, a reply with the error.

        Raises:
            MirrorError: The mirror is not open, or the extra is not installed.
        """
        if find_spec(DUCKDB) is None:
            raise MirrorError("SQL needs an extra: pip install 'mcp-mirror[sql]'.")
        return await self._run_script(QUERY, {"sql": query, "inputs": inputs or {}}, namespace, conversation)

    async def read(self, path: str, *, namespace: str = LOCAL) -> Any:
        """Return the complete value under a memory path, for the program itself.

        Returns:
            The parsed JSON; for media and files of upstreams, their bytes.

        Raises:
            ToolError: No value is stored under the path.
            MirrorError: The mirror is not open, or the path is not a text: it is None if the result is not stored.
        """
        if not isinstance(path, str):
            raise MirrorError(f"The path is a {type(path).__name__}. Use `reply.path`; if it is None, `reply.text`.")

        def find(application: Application) -> Coroutine[Any, Any, FoundValue]:
            return find_value(application.gateway.memory, namespace, path, _READ, to=None)

        value = await self._run(find, namespace)
        found = locate_content(value.blob) if value.kind == "binary" else None
        if found is None:
            return json.loads(bytes(value.blob))
        location, span = found
        content = json.loads(bytes(value.blob[span.start : span.stop]))
        return content if location[-1] == "text" else b64decode(content)

    async def put(self, value: object, *, namespace: str = LOCAL) -> str:
        """Store a value of the program and return its memory path.

        Args:
            value: A value that a tool could return. Bytes and images are stored as media.
            namespace: The namespace of the memory.

        Raises:
            StoreError: The store failed.
            ToolError: The value is None, or over a limit.
            MirrorError: The value cannot be written as JSON, or the mirror is not open.
        """

        async def put_value(application: Application) -> str:
            new_value = await anyio.to_thread.run_sync(_build_value, value)
            tool_input = ToolInput(application.gateway.memory, namespace, _PUT, Arguments({}, b"{}"))
            return (await save_value(tool_input, new_value)).path

        return await self._run(put_value, namespace)

    async def clear(self, *, namespace: str = LOCAL) -> int:
        """Delete all stored values of a namespace, such as those of a user who leaves.

        The paths of the values are then unknown. The event log keeps the calls, without values.

        Args:
            namespace: The namespace of the memory.

        Returns:
            The number of deleted values.

        Raises:
            StoreError: The store failed; some values may be deleted.
            MirrorError: The mirror is not open.
        """

        async def delete_all(application: Application) -> int:
            writer = application.gateway.services.writer
            found = await writer.store.list(namespace)
            deleted = [await writer.store.delete(namespace, one.base) for one in found]
            writer.on_change(namespace)
            return sum(deleted)

        return await self._run(delete_all, namespace)

    async def prune(
        self,
        messages: list[Any],
        budget: int,
        provider: ChatFormat,
        *,
        namespace: str = LOCAL,
        estimate: Estimate | TokenProvider | None = None,
    ) -> Pruned:
        """Prune a conversation to a budget of tokens, and store the pruned texts.

        Args:
            messages: Plain dicts in the provider's format; this does not change them.
            budget: The tokens that all messages together may have.
            provider: The format of the messages; see `prune_messages`.
            namespace: The namespace of the memory.
            estimate: A provider of tokens or a function that estimates them; see `prune_messages`. None: the
                `mirror.provider` of the configuration.

        Returns:
            The pruned messages; see `Pruned`.

        Raises:
            StoreError: The store failed. The messages are unchanged.
            MirrorError: The mirror is not open.
            TypeError: A message is not a dict.
            ValueError: The format or the provider of tokens is unknown.
        """
        self._require_running()  # before the work
        configured = self._config.mirror.provider
        estimate = estimate or (configured if configured != "default" else None)
        texts: dict[str, bytes] = {}
        prune = partial(prune_messages, messages, budget, provider, texts, estimate=estimate)
        pruned = await anyio.to_thread.run_sync(prune)

        async def store_texts(application: Application) -> None:
            memory = application.gateway.memory
            labels = format_labels(memory.flows.labels_of_place(MODEL))
            await memory.services.writer.store_values(namespace, _PRUNED, texts, memory.estimate, labels)

        await self._run(store_texts, namespace)
        return pruned

    async def restore(self, messages: list[Any], provider: ChatFormat, *, namespace: str = LOCAL) -> list[Any]:
        """Restore a conversation to its state before `prune`, byte for byte.

        If a pruned text has expired, its stub stays.

        Args:
            messages: The messages that `prune` returned, in the same order; further messages may follow them.
            provider: The format of the messages.
            namespace: The namespace of the memory.

        Raises:
            StoreError: The store failed.
            MirrorError: The mirror is not open.
            TypeError: A message is not a dict.
            ValueError: The format is unknown.
        """
        texts: dict[str, Buffer | None] = {}

        async def read_texts(application: Application) -> None:
            for path in pruned_paths(messages, provider):
                texts[path] = await application.gateway.services.writer.store.read(namespace, path)

        await self._run(read_texts, namespace)
        return await anyio.to_thread.run_sync(restore_messages, messages, texts.get, provider)

    def tools(self, format: Format = "openai") -> list[Any]:  # noqa: A002  # the usual word for it
        """Return the definitions of the tools that a model gets: twins, or tools to search them, and memory tools.

        They are dicts. Their type is `Any` because the providers' SDKs have types of their own for tools.

        Args:
            format: `openai` (Chat Completions and compatible APIs), `openai-responses`, `anthropic` or `mcp`.

        Raises:
            MirrorError: The mirror is not open, or the format is unknown.
        """
        listing = finish(self._require_running().application.gateway.listing_for(Caller(LOCAL)))
        return [format_definition(advert, format) for advert in listing.adverts]

    @property
    def instructions(self) -> str:
        """The part of a system prompt that explains memory paths and the upstreams."""
        return self._require_running().application.server.instructions(Caller(LOCAL))

    async def serve_http(
        self, host: str = "127.0.0.1", port: int = 0, announce: Callable[[str], None] = _logger.info
    ) -> None:
        """Serve MCP clients over Streamable HTTP with the same memory, until cancelled or until the mirror closes.

        Args:
            host: A loopback address.
            port: The port; 0 for any free port.
            announce: Called with the URL once clients can connect.

        Raises:
            MirrorError: The mirror is not open, or the address is in use.
        """
        with suppress(MirrorClosedError):
            await self._run(lambda application: application.serve_http(host, port, announce, anyio.Event()))

    async def serve_stdio(self) -> None:
        """Open the mirror, serve one MCP client on standard input and output until it disconnects, and close.

        Raises:
            MirrorError: The mirror is already open.
        """
        async with self._task.open(awaits_client=True) as application:
            await application.server.serve_stdio(anyio.Event())

    async def _run_script(
        self, tool: str, arguments: Mapping[str, Any], namespace: str, conversation: GivenConversation
    ) -> ScriptReply:
        trace = CallTrace()
        reply = await self._run(
            lambda application: _call(application, tool, arguments, namespace, conversation, trace), namespace
        )
        value = None if trace.returned is None else json.loads(bytes(trace.returned))
        shown = (reply.text, reply.is_error, reply.content, reply.path, reply.preview, reply.schema)
        return ScriptReply(*shown, value=value, printed=trace.printed)

    def _require_running(self) -> RunningApplication:
        """Return the open application; MirrorError if the mirror is not open in this process."""
        if (running := self._task.running) is None:
            state = "is closed" if self._task.was_open else "is not open yet"
            raise MirrorError(f"This Mirror {state}: use it within `async with mirror:`.")
        if running.process != os.getpid():
            raise MirrorError("This Mirror was opened in another process. Make another in this process.")
        return running

    async def _run(self, work: Callable[[Application], Coroutine[Any, Any, T]], namespace: str = LOCAL) -> T:
        """Run work for a namespace in the event loop of the application; the caller may run in another loop.

        Raises:
            MirrorError: The mirror is not open, its event loop has stopped, or the namespace is empty or not valid.
            TypeError: The namespace is not a text.
        """
        running = self._require_running()
        if not isinstance(namespace, str):
            raise TypeError(f"The namespace is a {type(namespace).__name__}. Pass a text, such as the name of a user.")
        if not namespace:
            raise MirrorError("The namespace is empty. Pass a text, such as the name of a user.")
        try:
            namespace.encode()
        except UnicodeEncodeError:
            raise MirrorError(
                f"The namespace {namespace!r} is not valid Unicode: it contains half of a surrogate pair. Use another."
            ) from None
        return await running.run(work)


def _build_value(value: object) -> NewValue:
    media = encode_media(value)
    raw = write_json(value) if media is None else media
    return NewValue((raw,), is_content=media is not None, size=len(raw))


async def _call(
    application: Application,
    name: str,
    arguments: Mapping[str, Any] | str | bytes | None,
    namespace: str,
    conversation: GivenConversation,
    trace: CallTrace | None = None,
) -> Reply:
    trace = trace or CallTrace()
    try:
        encoded = encode_arguments(arguments)
        known = None
        if conversation is not None:
            known = read_conversation({CONVERSATION: conversation}, None, "`conversation`")
        gateway = application.gateway
        channel = NullChannel(Caller(namespace, client_headers=None))
        call = gateway.new_call(channel, name, encoded, conversation=known, trace=trace)
        return read_reply(await gateway.state.answer(call), call.trace.path, call.trace.other_members)
    except MirrorError as error:
        return Reply(str(error), is_error=True, content=({"type": "text", "text": str(error)},))

"""The innermost step of the pipeline: runs one of the gateway's own tools, or calls the upstream's tool of a twin."""

import hashlib
import logging
from functools import partial
from typing import Final

import msgspec

from mcp_mirror.callers import ClientChannel
from mcp_mirror.core.budgets import lower_budgets
from mcp_mirror.core.catalog import Catalog, CatalogEntry
from mcp_mirror.core.replies import ToolResult, build_content_reply
from mcp_mirror.core.resolve import Pointers
from mcp_mirror.core.results.processing import Visibility
from mcp_mirror.errors import ArgumentsError, RefusedError, StoreError, ToolError, UpstreamError
from mcp_mirror.gateway.arguments import (
    SEARCHED_BYTES,
    VALIDATED_BYTES,
    ArgumentFitter,
    CallInputs,
    PointerFinder,
    select_header_arguments,
)
from mcp_mirror.gateway.call import Call, answer_errors
from mcp_mirror.gateway.context_budgets import ConversationKey
from mcp_mirror.gateway.gateway import Gateway
from mcp_mirror.gateway.input_required import build_input_required_reply, check_round
from mcp_mirror.gateway.linked_resources import LINK, MAX_SEARCHED_BYTES
from mcp_mirror.gateway.results import CallResult, ResultProcessor, convert_refusal, hide_error
from mcp_mirror.gateway.routing import find_entry, find_tools, route
from mcp_mirror.gateway.script_calls import ScriptCalls
from mcp_mirror.gateway.stages.telemetry import send_request
from mcp_mirror.gateway.tool_search import FIND_TOOLS
from mcp_mirror.memory.code.scripts import Scripts
from mcp_mirror.memory.flow_guard import ArgumentLoader, FlowGuard
from mcp_mirror.memory.lookup_errors import UnknownPathError, UnstoredResult
from mcp_mirror.memory.tools.table import QUERY, RETRIEVE, RUN
from mcp_mirror.memory.tools.tool import MemoryTool
from mcp_mirror.observability.audit import CallTrace
from mcp_mirror.observability.signals import NO_SIGNALS, Signals
from mcp_mirror.paths import may_copy_notice
from mcp_mirror.payload.spool import discard_after
from mcp_mirror.system.limited_logs import RepeatedLog
from mcp_mirror.tokens import upper_estimator
from mcp_mirror.types import Segments
from mcp_mirror.upstreams.content_filter import filter_content, is_for_client
from mcp_mirror.upstreams.elicitation import InputRequired
from mcp_mirror.upstreams.transports.requests import RawResponse
from mcp_mirror.upstreams.upstream_request import UpstreamRequest

_logger = logging.getLogger(__name__)

_MAX_CONVERSATIONS: Final = 10_000
"""Conversations of which it is known whether their last result was stored."""
_MAX_QUOTED: Final = 500
"""Bytes of the content of such a result that an error quotes."""


class Dispatcher:
    """Runs a tool call: own tool | route, find pointers, check flows, load, fit, call, process, store, reply."""

    def __init__(self, gateway: Gateway, signals: Signals) -> None:
        self._gateway, self._signals = gateway, signals
        self._log = RepeatedLog(logging.getLogger(f"{__package__}.results"))
        self._pointers = PointerFinder(gateway)
        self._unstored: dict[tuple[str, ConversationKey | str | None], UnstoredResult] = {}
        """The result that a conversation or session of a namespace got last, if that was shown whole and not stored."""

    async def __call__(self, call: Call) -> ToolResult:
        """Answer a call; raise a `MirrorError` if that is not possible."""
        if call.input_round is not None:
            check_round(call.input_round, call.arguments, call.name)
        if call.name == FIND_TOOLS and FIND_TOOLS in call.own_tools:
            return await find_tools(self._gateway, call)
        try:
            if own := call.own_tools.get(call.name):
                return await self._run_suspendable(call, own) if _may_ask(call) else await self._run_own_tool(call, own)
            entry, catalog = await route(self._gateway, call)
            try:
                return await self._call_tool(call, entry, catalog)
            except RefusedError as error:
                if is_for_client(error) or not entry.is_twin:
                    raise
                raise ToolError(str(error)) from None
        except UnknownPathError as error:
            raise _name_other_gateway(error, call.catalog) from None

    async def _run_suspendable(self, call: Call, tool: MemoryTool) -> ToolResult:
        """Run a script for a client that brings answers of the user by repeating the call; the script waits for it."""
        suspended = self._gateway.suspended_scripts

        async def run(channel: ClientChannel) -> tuple[ToolResult, CallTrace]:
            answer = partial(self._run_own_tool, tool=tool, channel=channel)
            return await answer_errors(call, answer), call.trace

        if call.input_round is None:
            outcome = await suspended.begin(call.channel, run)
        else:
            outcome = await suspended.resume(call.input_round, call.channel)
        if isinstance(outcome, InputRequired):
            return _require_input(call, outcome)
        reply, trace = outcome
        call.trace.take_result(trace)
        return reply

    async def _run_own_tool(self, call: Call, tool: MemoryTool, channel: ClientChannel | None = None) -> ToolResult:
        sandbox, scripts = self._gateway.sandbox, None
        if sandbox is not None and tool.name == RUN:
            calls = ScriptCalls(call, channel or call.channel, self._gateway)
            scripts = Scripts(sandbox, call.config.code, calls.list_tools, calls.call_tool)
        memory = self._gateway.open_memory(call.config, call.id)
        if (tokens := call.reservation.tokens) is not None:
            lowered, estimate = lower_budgets(call.config.mirror, tokens), upper_estimator(call.config.mirror.provider)
            memory = msgspec.structs.replace(memory, mirror=lowered, estimate=estimate)
        memory = msgspec.structs.replace(
            memory,
            consent=call.granted_flow,
            trace=call.trace,
            scripts=scripts,
            path_slugs=call.catalog.slugs,
            own_tools=frozenset(call.own_tools),
            unstored=self._unstored.get(_name_conversation(call)),
        )
        return build_content_reply(await tool.call(memory, call.namespace, call.arguments))

    async def _call_tool(self, call: Call, entry: CatalogEntry, catalog: Catalog) -> ToolResult:
        """Call an upstream's tool. An original advertised beside its twin gets literal arguments and stores nothing."""
        original = call
        call, pointers = await self._find_pointers(call, entry, catalog)
        inputs = await self._load_inputs(call, entry, pointers)
        results = ResultProcessor(self._gateway, call, entry, inputs, self._log)
        visibility = results.decide_visibility()
        arguments = await self._fit(call, entry, inputs)
        options = results.choose_options(visibility)
        try:
            try:
                response = await self._request(call, entry, arguments, visibility, catalog)
            except RefusedError as error:
                response = convert_refusal(error, entry, options)
            except ArgumentsError as error:
                fitter = ArgumentFitter(self._gateway, call, entry, inputs)
                raise fitter.hide_values(error) from None
            if isinstance(response, InputRequired):
                return _require_input(original, response)
            with discard_after(response):
                processed = await results.process(response, options)
                try:
                    await results.store(options, processed)
                except StoreError as error:
                    return await results.reply_unstored(processed, error)
        except UpstreamError as error:
            if (hidden := hide_error(error, entry.tool, visibility)) is not None:
                raise hidden from None
            raise
        reply = await results.reply(options, processed)
        if call.script is not None:
            return reply
        self._note_result(call, processed)  # the model sees the reply
        return reply if call.trace.path_slugs is None else await self._pointers.name_embedded_path(call, reply)

    def _note_result(self, call: Call, processed: CallResult) -> None:
        """Note the links of a result, and one that was shown whole and not stored.

        Errors of invented paths quote a short one.
        """
        content = processed.result.members.get("content", b"")
        if len(content) <= MAX_SEARCHED_BYTES and LINK in bytes(content):
            self._gateway.linked_resources.note(call.namespace, call.trace.upstream, content)
        if call.trace.path or processed.is_hidden or processed.result.captured.is_error:
            self._unstored.pop(_name_conversation(call), None)
            return
        if len(self._unstored) >= _MAX_CONVERSATIONS:
            self._unstored.clear()
        conversation = _name_conversation(call)
        # Several clients of a principal over HTTP without sessions and conversations have one key.
        is_known = conversation[1] is not None or call.channel.caller.client_headers is None
        quoted = bytes(content) if is_known and len(content) <= _MAX_QUOTED else b""
        self._unstored[conversation] = UnstoredResult(call.name, quoted)

    async def _find_pointers(self, call: Call, entry: CatalogEntry, catalog: Catalog) -> tuple[Call, Pointers]:
        """Return the call and its pointers; most calls have nothing that resembles one."""
        if not entry.is_twin:
            return call, ()
        if len(call.arguments) > SEARCHED_BYTES or may_copy_notice(call.arguments):
            return await self._pointers.find(call, entry, catalog)
        if _logger.isEnabledFor(logging.DEBUG):
            self._pointers.log_strings(call, entry, catalog.slugs)
        return call, ()

    async def _load_inputs(self, call: Call, entry: CatalogEntry, pointers: Pointers) -> CallInputs:
        """Check the flow of the pointers' values to the upstream, and load the values."""
        flows = self._gateway.state.flows
        made, preview = flows.lowest, True
        if (script := call.script) is not None:
            made, preview = script.labels, script.preview
            if made.sources:
                digest = hashlib.sha256(call.arguments).hexdigest()
                self._build_guard(call).admit_script(made, entry.upstream, digest)
        if not pointers:
            return CallInputs((), {}, made, preview)
        guard, services = self._build_guard(call), self._gateway.services
        loader = ArgumentLoader(services.writer, services.scanner, guard, QUERY in call.own_tools)
        known = await loader.describe(pointers)
        call.trace.input_labels = labels = guard.admit(known, entry.upstream)
        values = await loader.load(pointers, known)
        preview = preview and all(value.preview for value in values.values())
        return CallInputs(pointers, values, flows.join(made, labels), preview)

    def _build_guard(self, call: Call) -> FlowGuard:
        audit = self._gateway.audit.with_correlation(call.id)
        return FlowGuard(self._gateway.state.flows, call.namespace, call.name, audit, call.trace, call.granted_flow)

    async def _fit(self, call: Call, entry: CatalogEntry, inputs: CallInputs) -> Segments:
        workers = self._gateway.schema_workers
        is_checked_here = not inputs.pointers and len(call.arguments) <= VALIDATED_BYTES
        if not entry.is_twin or (is_checked_here and workers.are_valid(entry.inspected, call.arguments)):
            return (call.arguments,)
        return await ArgumentFitter(self._gateway, call, entry, inputs).fit()

    async def _request(
        self, call: Call, entry: CatalogEntry, arguments: Segments, visibility: Visibility, catalog: Catalog
    ) -> RawResponse | InputRequired:
        """Send the call to its upstream."""
        upstream = self._gateway.upstreams[entry.upstream]
        mirrored = await select_header_arguments(entry, arguments, call.namespace) if entry.inspected.headers else {}
        # From here on the upstream counts the call, so that a reload does not stop the upstream before the response.
        await upstream.wait_for_connection(call.channel)  # the caller's own connection may list another definition
        if (current := self._gateway.state.catalog_for(call.caller)) is not catalog:
            find_entry(current, call)  # raises if that one is quarantined
        request = UpstreamRequest(
            method="tools/call",
            params={"arguments": arguments},
            shown={"name": entry.tool, "arguments": mirrored},
            meta=call.meta,
            timeout=entry.timeout,
            is_repeatable=entry.is_repeatable,
        )
        channel = call.channel if visibility is Visibility.FULL else filter_content(call.channel)
        if self._signals is not NO_SIGNALS:
            return await send_request(self._signals, call, entry, request, upstream, channel)
        return await upstream.request(request, channel, call.input_round)


def _name_conversation(call: Call) -> tuple[str, ConversationKey | str | None]:
    caller = call.channel.caller
    return caller.namespace, caller.session if call.conversation is None else call.conversation.key


def _may_ask(call: Call) -> bool:
    """Whether a call is a script that may have to wait until its client repeats the call with an answer."""
    caller = call.caller
    is_script = call.name == RUN and b"tools" in bytes(call.arguments)
    return is_script and caller.is_stateless and caller.can_answer_any


def _require_input(call: Call, required: InputRequired) -> ToolResult:
    """Return the upstream's input requests, with the state that the client returns."""
    if call.round_state:
        required = msgspec.structs.replace(required, state={**(required.state or {}), **call.round_state})
    return build_input_required_reply(required, call.arguments, call.name)


def _name_other_gateway(error: UnknownPathError, catalog: Catalog) -> UnknownPathError:
    """Return the error with what to do if an upstream that is a gateway has returned the path."""
    names = {entry.upstream for entry in catalog.entries.values() if entry.tool == RETRIEVE}
    if not names:
        return error
    upstreams = " or ".join(map(repr, sorted(names)))
    return UnknownPathError(
        f"{error} If a tool of {upstreams} returned it, another mcp-mirror gateway stored the value, and its paths do "
        "not work here: ask the user to connect the client to that gateway directly."
    )

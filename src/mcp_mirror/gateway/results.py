"""An upstream's result on its way to the client: read, labelled, stored, and replaced by a notice where needed."""

import hashlib
import logging
from collections.abc import Mapping
from itertools import islice
from typing import Final

import msgspec

from mcp_mirror.core.budgets import lower_budgets
from mcp_mirror.core.catalog import CatalogEntry
from mcp_mirror.core.replies import (
    ToolResult,
    build_error_reply,
    build_path_reply,
    build_refusal_result,
    build_reply,
    count_hidden_tokens,
    count_result_tokens,
)
from mcp_mirror.core.results.processing import (
    QUOTED_BYTES,
    ProcessedResult,
    ProcessingOptions,
    RejectedFrame,
    Visibility,
    process_result,
)
from mcp_mirror.errors import RefusedError, StoreError, ToolError, UpstreamError, WireError
from mcp_mirror.gateway.arguments import CallInputs
from mcp_mirror.gateway.call import Call
from mcp_mirror.gateway.gateway import Gateway
from mcp_mirror.paths import NewBases
from mcp_mirror.payload.json_strings import text_start
from mcp_mirror.payload.spool import SpooledFrame
from mcp_mirror.security.flows import format_labels
from mcp_mirror.settings.labels import Labels
from mcp_mirror.settings.policies import MirrorPolicy
from mcp_mirror.system.limited_logs import RepeatedLog
from mcp_mirror.system.slices import run_by_size, run_by_values
from mcp_mirror.tokens import expected_estimator, upper_estimator
from mcp_mirror.types import Buffer, Provenance, Span
from mcp_mirror.upstreams.content_filter import is_for_client
from mcp_mirror.upstreams.transports.requests import RawResponse

_logger = logging.getLogger(__name__)

_TOKEN_BYTES: Final = 64
"""Bytes per token above which a result is over every budget."""
_MIN_NAMED_BYTES: Final = 200
"""Bytes of a stored value whose path an error that repeats the value names instead."""
_MAX_NAMED_BYTES: Final = 1 << 17
"""Bytes up to which such a value is searched: that takes a few milliseconds."""
_MAX_NAMED: Final = 8
"""Such values that are searched."""

_WITHHELD: Final = (
    "The flow policy hides this tool's result from the model (`flows.model`), and the gateway stores nothing, so the "
    "result has no path. Ask the user to change that rule, or to allow results to be stored (`mirror.capture`)."
)


class CallResult(msgspec.Struct, frozen=True):
    """A processed result."""

    result: ProcessedResult
    labels: Labels
    is_hidden: bool
    """The flow policy hides it from the model."""


class ResultProcessor(msgspec.Struct, frozen=True):
    """Processes and stores the result of one call; a hidden result that cannot be stored is a `ToolError`."""

    gateway: Gateway
    """A result is judged by the flow policy at the time of its arrival."""
    call: Call
    entry: CatalogEntry
    inputs: CallInputs
    log: RepeatedLog
    """Logs results that could not be stored."""

    def decide_visibility(self) -> Visibility:
        """Decide before the call what the model may see of the result and of the upstream's messages.

        Labels in the result itself (`_meta.ifc`) may change this for the result.
        """
        flows = self.gateway.state.flows
        if flows.can_hide and not flows.may_show(flows.labels_of_result(self.entry.upstream, self.inputs.labels)):
            if self.call.config.is_transparent:
                raise ToolError(_WITHHELD)
            return Visibility.PATH_ONLY
        return Visibility.FULL if self.inputs.preview else Visibility.METADATA

    def choose_options(self, visibility: Visibility) -> ProcessingOptions:
        """Return how the result is processed."""
        call, entry = self.call, self.entry
        is_whole = not entry.is_twin or (entry.has_view and call.caller.shows_views)
        rules = msgspec.structs.replace(entry.rules, mode="never") if is_whole else entry.rules
        mirror, tokens = call.config.mirror, call.reservation.tokens
        if tokens is not None:
            mirror = lower_budgets(mirror, tokens)
            inline_budget, error_budget = min(rules.inline_budget, tokens), min(rules.error_budget, tokens)
            rules = msgspec.structs.replace(rules, inline_budget=inline_budget, error_budget=error_budget)
        if not self.inputs.preview:
            rules = msgspec.structs.replace(rules, preview=False)
        limits = self.gateway.services.limits
        return ProcessingOptions(
            rules=rules,
            style=mirror.notice,
            tool=entry.tool,
            arguments=bytes(call.arguments[:QUOTED_BYTES]),
            bases=NewBases(entry.tool, self.gateway.services.new_id),
            max_key_bytes=limits.max_key_bytes,
            provider=mirror.provider,
            max_depth=limits.max_depth,
            visibility=visibility,
            is_upper_bound=tokens is not None,
        )

    async def process(self, response: RawResponse, options: ProcessingOptions) -> CallResult:
        """Read a result. It is stored if the model may not see it, or if its conversation has no room for it.

        Raises:
            UpstreamError: The response is not a tool result.
        """
        result = await self._read(response, options)
        if result.captured.error is not None and (inputs := self._read_inputs()):
            rules = msgspec.structs.replace(options.rules, inputs=inputs)
            result = await self._read(response, msgspec.structs.replace(options, rules=rules))
        flows = self.gateway.state.flows
        labels = flows.labels_of_result(self.entry.upstream, self.inputs.labels, result.ifc)
        if not flows.may_show(labels):
            if self.call.config.is_transparent:
                raise ToolError(_WITHHELD)
            return CallResult(await self._read(response, options.path_only()), labels, is_hidden=True)
        may_store = result.captured.value is None and options.rules.mode != "never"
        if may_store and not await self._reserve_share(result.members):
            result = await self._read(response, options.path_only())
        return CallResult(result, labels, is_hidden=False)

    def _read_inputs(self) -> tuple[tuple[str, str], ...]:
        """Return the paths and the texts of the stored values in the arguments that are neither short nor large."""
        inputs: list[tuple[str, str]] = []
        named = (one for one in self.inputs.values.values() if _MIN_NAMED_BYTES <= len(one.blob) <= _MAX_NAMED_BYTES)
        for value in islice(named, _MAX_NAMED):
            whole, is_text = Span(0, len(value.blob)), value.kind == "text"
            text = text_start(value.blob, whole, whole.length) if is_text else str(bytes(value.blob), "utf-8")
            inputs.append((str(value.path), text))
        return tuple(inputs)

    async def store(self, options: ProcessingOptions, processed: CallResult) -> None:
        """Store what the processing captured, and note it in the call's trace."""
        call, captured, trace = self.call, processed.result.captured, self.call.trace
        trace.labels = processed.labels
        if captured.value is not None:
            size, principal = len(call.arguments), call.namespace
            digest = (await run_by_size(size, hashlib.sha256, call.arguments, principal=principal)).hexdigest()
            paths = tuple(sorted({str(value.path) for value in self.inputs.values.values()}))
            provenance = Provenance(self.entry.upstream, self.entry.tool, digest, paths, trace.traceparent)
            writer = self.gateway.services.writer
            await writer.store_result(
                call.namespace, provenance, options.bases, captured, format_labels(processed.labels)
            )
            writer.notices.add(call.namespace, processed.result.notice)
            trace.path = options.bases.value
        trace.other_members = captured.other_members

    async def reply(self, options: ProcessingOptions, processed: CallResult) -> ToolResult:
        """Return the notice of a stored result, its path if the notice does not fit, or the unchanged result."""
        call, result = self.call, processed.result
        if result.captured.value is None and not processed.is_hidden:
            if call.reservation.tokens is None or await self._reserve(result.members):
                return result.members
            tokens = await self._count_tokens(result.members)
            return build_error_reply(
                f"Tool {options.tool!r} was called. Its result, about {tokens:,} tokens, does not fit the "
                f"{call.reservation.left:,} that are left in this conversation's context, and is not stored "
                "(`capture: never`). Compact the conversation, or ask for less."
            )
        call.trace.hidden_tokens = count_hidden_tokens(result.captured)
        call.trace.shown = result.captured.shown or ""
        if processed.is_hidden:
            if result.captured.value is not None:
                return build_path_reply(result, options.bases.value)
            return {"content": b"[]", "isError": b"true" if result.captured.is_error else b"false"}
        is_linked = call.config.mirror.resource_links and self.gateway.has_resources(call.caller)
        reply = build_reply(result, options.bases.value if is_linked else None)
        return reply if await self._reserve_share(reply) else build_path_reply(result, options.bases.value)

    async def reply_unstored(self, processed: CallResult, error: StoreError) -> ToolResult:
        """Return a result that could not be stored unchanged, if the model may see it and it is not too large.

        Raises:
            StoreError: The result is hidden or too large.
        """
        members, tool = processed.result.members, self.entry.tool
        is_shown = members and not processed.is_hidden and _is_within_answer(members, self.call.config.mirror)
        if not is_shown or not await self._reserve(members):
            self.log.warning("A result of %r could not be stored, and its call failed. %s", tool, error)
            cause = "Ask the user to read the gateway's log." if processed.is_hidden else error  # it may name the size
            raise StoreError(f"Tool {tool!r} was called, but its result could not be stored. {cause}")
        self.log.warning("A result of %r is passed on unchanged because it could not be stored. %s", tool, error)
        return members

    async def _read(self, response: RawResponse, options: ProcessingOptions) -> ProcessedResult:
        """Read a result; a spooled one in a worker process."""
        entry, principal = self.entry, self.call.channel.caller.namespace
        try:
            if isinstance(response, SpooledFrame):
                result = await self.gateway.services.scanner.scan(response, options, principal)
            else:
                result = await run_by_values(response.values(), process_result, response, options, principal=principal)
        except WireError as error:
            cause = f"Upstream {entry.upstream!r} sent an invalid answer to {entry.tool!r}. {error}"
            raise UpstreamError(cause) from None
        if isinstance(result, RejectedFrame):
            is_content_hidden = options.visibility is not Visibility.FULL
            upstream = self.gateway.upstreams[entry.upstream]
            refusal = upstream.refusal(
                repr(entry.tool), result.code, result.message, self.call.caller, is_content_hidden=is_content_hidden
            )
            return await self._read(convert_refusal(refusal, entry, options), options)
        return result

    async def _reserve_share(self, reply: ToolResult) -> bool:
        """Reserve the tokens of a reply; False if they are more than the call's share of the conversation's room."""
        held = self.call.reservation
        return held.tokens is None or held.widen_to_share(await self._count_tokens(reply))

    async def _reserve(self, reply: ToolResult) -> bool:
        """Reserve the tokens of a reply; False if the conversation has no room for them."""
        held = self.call.reservation
        return held.tokens is None or held.widen(await self._count_tokens(reply))

    async def _count_tokens(self, reply: ToolResult) -> int:
        estimate, shown = upper_estimator(self.call.config.mirror.provider), self.call.trace.shown
        principal = self.call.namespace
        return await run_by_values(reply.values(), count_result_tokens, reply, estimate, shown, principal=principal)


def convert_refusal(error: RefusedError, entry: CatalogEntry, options: ProcessingOptions) -> Mapping[str, Buffer]:
    """Return an upstream's JSON-RPC error to a twin's call as a tool error, which the error budget bounds.

    The data follow the message: many servers write "Internal error" there and the cause into the data.

    Raises:
        RefusedError: The error is for the client, or the model may not read it.
    """
    is_hidden = options.visibility is not Visibility.FULL or not options.rules.preview
    if is_for_client(error) or not entry.is_twin or is_hidden:
        raise error
    data = f" Data: {msgspec.json.encode(error.data).decode()}" if error.data else ""
    return build_refusal_result(f"{error}{data}")


def hide_error(error: UpstreamError, tool: str, visibility: Visibility) -> ToolError | None:
    """Return an error in place of an upstream's error that may repeat a hidden value; None to keep the upstream's."""
    refusal = error if isinstance(error, RefusedError) else None
    if visibility is Visibility.FULL or error.reason or (refusal and is_for_client(refusal)):
        return None
    if visibility is Visibility.PATH_ONLY:
        return ToolError(
            f"Tool {tool!r} failed. The flow policy hides the error message from the model (`flows.model`), because "
            "the message may repeat hidden values. Ask the user to read the gateway's log."
        )
    if refusal is None:
        return None
    return ToolError(
        f"{refusal.log_message} Its message is hidden because it may repeat a hidden value (`preview: false`)."
    )


def _is_within_answer(members: Mapping[str, Buffer], mirror: MirrorPolicy) -> bool:
    """Whether the model may see a whole result: it reads the content or the structured content."""
    budget, estimate = mirror.answer_budget, expected_estimator(mirror.provider)
    parts = [members.get(member, b"") for member in ("content", "structuredContent")]
    is_small = all(len(raw) <= budget * _TOKEN_BYTES for raw in parts)
    return is_small and count_result_tokens(members, estimate) <= budget

"""The walk of one call: route, resolve, call, capture, notice.

Pure functions decide at each step and shells act; who the caller is comes in as an explicit namespace, and ids and
clock are passed in. A mistake of anybody's becomes an answer that the model can act on.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from secrets import token_hex
from typing import Final
from uuid import UUID

import anyio.to_thread
import msgspec

from mcp_mirror.callers import Caller
from mcp_mirror.core.budgets import lower_budgets, tokens_wanted
from mcp_mirror.core.catalog import Catalog, CatalogEntry
from mcp_mirror.core.replies import (
    Reply,
    build_path_reply,
    build_reply,
    content_reply,
    count_hidden_tokens,
    count_reply_bytes,
    error_reply,
    refusal_result,
)
from mcp_mirror.core.resolve import Pointer, Resolved, explain_strings
from mcp_mirror.core.result_processing import ProcessedResult, ProcessingOptions, RejectedFrame, process_result
from mcp_mirror.errors import MirrorError, RefusedError, StoreError, ToolError, UpstreamError, WireError
from mcp_mirror.gateway.arguments import fitted, header_arguments
from mcp_mirror.gateway.calls import UNWRITTEN, ToolCall, log_line_of, outcome_of, record_of
from mcp_mirror.gateway.consent import Consent, UsedConsents, with_consent
from mcp_mirror.gateway.context_budgets import Reservation
from mcp_mirror.gateway.hidden_results import WITHHELD, Reading, hidden_reply, veiling
from mcp_mirror.gateway.input_required import asked_reply
from mcp_mirror.gateway.reply_budget import ReplyBudget, full
from mcp_mirror.memory.flow_guard import ArgumentLoader, FlowGuard
from mcp_mirror.memory.tools.table import RETRIEVE
from mcp_mirror.memory.tools.tool import Memory, MemoryTool
from mcp_mirror.memory.value_lookup import nearest
from mcp_mirror.memory.value_writer import ValueWriter
from mcp_mirror.observability.audit import SILENT, Audit, AuditRecord
from mcp_mirror.paths import URI_TEMPLATE, new_base, parse_uri
from mcp_mirror.payload.spool import Spool, SpooledFrame, discard_after
from mcp_mirror.security.flows import Flows, written
from mcp_mirror.security.path_hash import PathHasher
from mcp_mirror.security.pins import NO_PINS, Pins
from mcp_mirror.settings.labels import Labels
from mcp_mirror.settings.policies import MemoryToolsPolicy, MirrorPolicy, WirePolicy
from mcp_mirror.tokens import upper_estimator
from mcp_mirror.types import Buffer, Provenance, Segments
from mcp_mirror.upstreams.content_filter import filter_content, hide_error_text, is_for_client
from mcp_mirror.upstreams.elicitation import InputRequired
from mcp_mirror.upstreams.registry import UpstreamRegistry
from mcp_mirror.upstreams.session import UpstreamRequest
from mcp_mirror.upstreams.transports.payloads import RawResponse
from mcp_mirror.workers.frames import FrameScanner
from mcp_mirror.workers.queries import QueryRunner
from mcp_mirror.workers.schemas import SchemaWorkers

_logger = logging.getLogger(__name__)

STATUS_URI: Final = "mcp-mirror://upstreams"
"""The resource that says how each upstream is."""
_AT_ONCE_BYTES = 1 << 17
"""Results up to this size are read without leaving the event loop: what that costs goes by their keys too."""
_TOKEN_BYTES = 64
"""Bytes of a token past which a result is over a budget whatever an estimate says."""
_EXPLAINED_BYTES = 1 << 20
"""Arguments up to this size are explained in the log."""
_TOLD_BYTES = 1 << 10
"""How much of the arguments a notice may tell."""


@dataclass(slots=True)
class Gateway:
    """Serves tool calls. The catalog is exchanged whole when an upstream's listing changes."""

    upstreams: UpstreamRegistry
    writer: ValueWriter
    scanner: FrameScanner
    queries: QueryRunner
    schema_workers: SchemaWorkers
    spool: Spool
    mirror: MirrorPolicy
    memory_tools: MemoryToolsPolicy
    limits: WirePolicy
    new_id: Callable[[], UUID]
    """UUID version 4."""
    sender: ReplyBudget
    path_hasher: PathHasher
    """Path hashes for the log."""
    is_transparent: bool = False
    """Nothing is stored."""
    pins: Pins = NO_PINS
    """What upstreams are held to."""
    flows: Flows = field(default_factory=Flows)
    """What may flow where."""
    spent: UsedConsents = field(default_factory=UsedConsents)
    """The users' answers that were taken."""
    audit: Audit = SILENT
    """Where it is said who called and read what."""
    own_tools: Mapping[str, MemoryTool] = field(default_factory=dict)
    """Our own tools that are served; none where nothing is stored."""
    catalog: Catalog = field(default_factory=lambda: Catalog({}, frozenset()))
    """What every client is shown."""
    catalogs: dict[str, Catalog] = field(default_factory=dict)
    """What single parties are shown, whose upstreams list other tools on their connections; see `Caller.party`."""

    async def call_tool(self, call: ToolCall) -> Reply:
        """Answer a call; errors become results with `isError` that say what to do.

        Raises:
            RefusedError: The upstream's own error is for the client and not for the model.
        """
        began, outcome = self.writer.clock(), "cancelled"
        if not await self.audit.admit(self._record(call, "begun")):
            return error_reply(UNWRITTEN)
        reply: Reply = {}
        try:
            reply = await self._reply(call)
            outcome = outcome_of(reply, call.call_trace)
        except Exception:
            outcome = "error"
            raise
        finally:
            spent = 1000 * (self.writer.clock() - began)
            record = replace(self._record(call, outcome), bytes=count_reply_bytes(reply), milliseconds=max(spent, 0))
            self.audit.write(record)
            if _logger.isEnabledFor(logging.INFO):
                _logger.info("%s", log_line_of(record, call.call_trace, self.path_hasher))
        return reply

    async def _reply(self, call: ToolCall) -> Reply:
        if self.is_transparent:
            return await self._answer(call, Reservation())
        caller = call.channel.caller
        with self.sender.hold(
            call.namespace, call.conversation, self._wanted(call), lambda: self._listed(caller)
        ) as hold:
            if hold.is_spent:
                call.call_trace.rule = "context is full"
            reply = full(hold) if hold.is_spent else await self._answer(call, hold)
            reply = await self.sender.send(call.namespace, call.name, hold, reply)
            call.call_trace.sent, call.call_trace.kept_out = hold.sent, max(hold.stands_for - hold.sent, 0)
            return reply

    async def _answer(self, call: ToolCall, hold: Reservation) -> Reply:
        may_ask = self.flows.policy.on_refusal == "ask"
        try:
            return await with_consent(call, self.spent, lambda it: self._serve(call, hold, it), may_ask=may_ask)
        except RefusedError as error:
            if is_for_client(error) or (not self._is_twin(call) and self._charges(call, hold, error)):
                raise
            return error_reply(str(error))
        except MirrorError as error:
            return error_reply(str(error))

    async def _serve(self, call: ToolCall, hold: Reservation, consent: Consent) -> Reply:
        if own := self.own_tools.get(call.name):
            memory = replace(self.memory_within(hold, call.id, consent), call_trace=call.call_trace)
            return content_reply(await own.call(memory, call.namespace, call.arguments))
        return await self._walk(await self._route(call.name, call.channel.caller), call, hold, consent)

    def _record(self, call: ToolCall, outcome: str) -> AuditRecord:
        return record_of(call, outcome, self.catalog_for(call.channel.caller), self.own_tools)

    def _charges(self, call: ToolCall, hold: Reservation, error: RefusedError) -> bool:
        """Whether there is room for an error that passes as it is: clients show it to the model."""
        return self.is_transparent or self.sender.charge(call.namespace, hold, self.sender.cost_of_text(str(error)))

    def _wanted(self, call: ToolCall) -> int:
        entry = self.catalog_for(call.channel.caller).entries.get(call.name)
        inline_budget = entry.rules.inline_budget if entry else 0
        return tokens_wanted(self.mirror, inline_budget, is_retrieval=call.name == RETRIEVE)

    def _listed(self, caller: Caller) -> bytes:
        """The definitions of all tools."""
        entries, own = self.catalog_for(caller).entries.values(), self.own_tools.values()
        return msgspec.json.encode([*(entry.advert for entry in entries), *(tool.advert for tool in own)])

    async def _walk(self, entry: CatalogEntry, call: ToolCall, hold: Reservation, consent: Consent) -> Reply:
        """A twin's call; of an original, listed beside it, nothing is resolved and nothing captured."""
        catalog, loader = self.catalog_for(call.channel.caller), self._loader(call, consent)
        most = self.limits.traffic.max_pointers
        found = await self.scanner.find(call.arguments, catalog.labels, most) if entry.mirrored else ()
        if entry.mirrored and _logger.isEnabledFor(logging.DEBUG):
            self._log_strings(entry, call, catalog)
        named = await loader.look(found)
        given = loader.guard.admit(named, entry.upstream)
        values = await loader.fetch(found, named)
        shows = all(value.preview for value in values.values())
        tells = shows and self.flows.may_show(given)
        arguments: Segments = (call.arguments,)
        if entry.mirrored:
            validate = partial(self.schema_workers.validate, principal=call.namespace)
            arguments = await fitted(entry, call.arguments, found, values, validate, tells=tells)
        order = self._order(entry, call, hold)
        order = order if shows else order.unshown()
        hides = self._hides(entry, given)
        order = replace(order, is_veiled=hides or not shows)
        with veiling(entry.tool, hides=hides), hide_error_text(preview=shows):
            try:
                arrival = await self._send(entry, arguments, call, consent, hides=order.is_veiled)
            except RefusedError as error:
                arrival = _as_result(error, entry, order)
            if isinstance(arrival, InputRequired):
                return asked_reply(consent.carried(arrival), call.arguments)
            with discard_after(arrival):
                read = await self._read_within(hold, entry, arrival, order, given)
                try:
                    await self._keep(call, entry, order, read, values)
                except StoreError as error:
                    return await self._unkept(entry, read, error, hold)
        return await self._told(read, order, hold)

    def _log_strings(self, entry: CatalogEntry, call: ToolCall, catalog: Catalog) -> None:
        """Log why strings of the arguments are, or are not, memory paths; it names only arguments of the schema."""
        if len(call.arguments) > _EXPLAINED_BYTES:
            _logger.debug("arguments of tool=%s are too large to explain", entry.name)
            return
        explained = explain_strings(call.arguments, catalog.labels)
        for at, path, why in explained:
            name = at[0] if at and at[0] in entry.schema.get("properties", {}) else "(unnamed)"
            told = self.path_hasher.of(path) if path else "-"
            _logger.debug("argument of tool=%s in %s: path=%s, %s", entry.name, name, told, why)
        if not explained:
            _logger.debug("arguments of tool=%s: no string resembles a memory path", entry.name)

    def _loader(self, call: ToolCall, consent: Consent) -> ArgumentLoader:
        audit = self.audit.within(call.id)
        guard = FlowGuard(self.flows, call.namespace, call.name, audit, call.call_trace, consent.flow)
        return ArgumentLoader(self.writer.store, self.scanner, guard)

    def _hides(self, entry: CatalogEntry, given: Labels) -> bool:
        """Whether the model may not see what a tool answers.

        Raises:
            ToolError: And it is kept from it nowhere else: nothing is stored.
        """
        hides = not self.flows.may_show(self.flows.labels_of_result(entry.upstream, given))
        if hides and self.is_transparent:
            raise ToolError(WITHHELD)
        return hides

    async def _told(self, read: Reading, order: ProcessingOptions, hold: Reservation) -> Reply:
        """The notice of what is stored, or its path alone where that is too much; what is not stored as it came."""
        digest = read.digest
        if digest.captured.value is None and not read.is_hidden:
            return await self.sender.pass_on(order.tool, hold, digest.members)
        hold.stands_for = count_hidden_tokens(digest.captured)
        if read.is_hidden:
            return hidden_reply(digest, order.base)
        reply = build_reply(digest, order.base if self.mirror.resource_links else None)
        return reply if await self.sender.fits(hold, reply) else build_path_reply(digest, order.base)

    async def _unkept(self, entry: CatalogEntry, read: Reading, error: StoreError, hold: Reservation) -> Reply:
        """What could not be stored, as it came, if that is not too much; else the model hears why it has nothing.

        Raises:
            StoreError: It is too much.
        """
        members = read.digest.members
        shown = members and not read.is_hidden and _fits(members, self.mirror)
        if not shown or not hold.widen(await self.sender.cost_of(members)):
            raise StoreError(f"Tool {entry.tool!r} was called, but its result could not be stored. {error}")
        _logger.warning("A result of %r is passed on, for it could not be stored. %s", entry.tool, error)
        return members

    def catalog_for(self, caller: Caller) -> Catalog:
        """What this client is shown."""
        return self.catalogs.get(caller.connection_key or "", self.catalog).visible_to(caller)

    def may_show(self, upstream: str) -> bool:
        """Whether the model may see what an upstream says that was given no value."""
        labels = self.flows.labels_of_result(upstream, self.flows.lowest)
        return self.upstreams.may_show(upstream) and self.flows.may_show(labels)

    def owns_uri(self, uri: str) -> bool:
        """Whether a resource, or a template of resources, is the gateway's own."""
        if self.is_transparent:
            return False
        return uri in (STATUS_URI, URI_TEMPLATE) or parse_uri(uri) is not None

    def _is_twin(self, call: ToolCall) -> bool:
        entry = self.catalog_for(call.channel.caller).entries.get(call.name)
        return entry is not None and entry.mirrored

    @property
    def memory(self) -> Memory:
        """What our own resources work on, and our own tools where no account is kept."""
        return self.memory_within(Reservation(), token_hex(8), Consent())

    def memory_within(self, hold: Reservation, correlation: str, consent: Consent) -> Memory:
        """What our own tools work on, showing no more than a call may send."""
        return Memory(
            writer=self.writer,
            scanner=self.scanner,
            queries=self.queries,
            spool=self.spool,
            usage_counter=self.sender.usage_counter,
            mirror=self._mirror_within(hold),
            tools=self.memory_tools,
            limits=self.limits,
            estimate=upper_estimator(self.mirror.provider),
            new_id=self.new_id,
            audit=self.audit.within(correlation),
            flows=self.flows,
            consent=consent.flow,
        )

    def _mirror_within(self, hold: Reservation) -> MirrorPolicy:
        return self.mirror if hold.tokens is None else lower_budgets(self.mirror, hold.tokens)

    async def _route(self, name: str, caller: Caller) -> CatalogEntry:
        if (listed := self._find(name, caller)) is not None:  # its upstream may be starting still
            await self.upstreams.settle_one(listed.upstream, self.mirror.startup_wait)
            if self._find(name, caller) is None and (why := self._down(listed.upstream)):
                raise ToolError(why)
        if self._find(name, caller) is None:  # its upstream may be starting still, or be back
            await self.upstreams.settle(self.mirror.startup_wait, caller)
        if self._find(name, caller) is None:
            await self.upstreams.try_unlisted(caller)
        if entry := self._find(name, caller):
            return entry
        near = nearest(name, (*self.catalog_for(caller).entries, *self.own_tools))
        advice = f"Nearest are {', '.join(near)}." if near else "Take a name from tools/list."
        down = [one.policy.name for one in self.upstreams.visible_to(caller) if one.status.state != "ready"]
        missing = f" Upstreams that are not connected now: {', '.join(down)}." if down else ""
        raise ToolError(f"There is no tool {name!r}. {advice}{missing}")

    def _down(self, upstream: str) -> str | None:
        """Why an upstream is not connected; None where it is."""
        status = self.upstreams[upstream].status
        if status.state == "ready":
            return None
        why = f": {status.detail}" if status.detail and self.may_show(upstream) else "."
        return f"Upstream {upstream!r} is {status.state}{why} Try again in a moment."

    def _find(self, name: str, caller: Caller) -> CatalogEntry | None:
        """What has this name for a client now.

        Raises:
            ToolError: A tool that is not what it was when it was pinned.
        """
        catalog = self.catalog_for(caller)
        if finding := catalog.quarantined.get(name):
            raise ToolError(finding.refusal)
        return catalog.entries.get(name)

    async def _send(
        self, entry: CatalogEntry, arguments: Segments, call: ToolCall, consent: Consent, *, hides: bool
    ) -> RawResponse | InputRequired:
        upstream = self.upstreams[entry.upstream]
        await upstream.settle_for(call.channel)  # a connection of the caller's own may list the tool otherwise
        self._find(entry.name, call.channel.caller)
        order = UpstreamRequest(
            method="tools/call",
            params={"arguments": arguments},
            shown={"name": entry.tool, "arguments": header_arguments(entry, arguments)},
            meta=call.meta,
            timeout=entry.timeout,
            is_repeatable=entry.is_repeatable,
        )
        channel = filter_content(call.channel, may_show=not hides) or call.channel
        return await upstream.request(order, channel, consent.again)

    def _order(self, entry: CatalogEntry, call: ToolCall, hold: Reservation) -> ProcessingOptions:
        rules = entry.rules if entry.mirrored else replace(entry.rules, mode="never")
        if hold.tokens is not None:
            inline_budget = min(rules.inline_budget, hold.tokens)
            rules = replace(rules, inline_budget=inline_budget, error_budget=min(rules.error_budget, hold.tokens))
        return ProcessingOptions(
            rules=rules,
            style=self._mirror_within(hold).notice,
            tool=entry.tool,
            arguments=bytes(call.arguments[:_TOLD_BYTES]),
            base=new_base(entry.tool, self.new_id()),
            companion_base=new_base(entry.tool, self.new_id()),
            max_key_bytes=self.limits.max_key_bytes,
            provider=self.mirror.provider,
            max_depth=self.limits.max_depth,
            is_upper_bound=hold.tokens is not None,
        )

    async def _read(self, entry: CatalogEntry, arrival: RawResponse, order: ProcessingOptions) -> ProcessedResult:
        """What a result comes to: at once if it is small, else where it holds up no other call."""
        try:
            if isinstance(arrival, SpooledFrame):
                digest = await self.scanner.scan(arrival, order)
            elif sum(len(raw) for raw in arrival.values()) > _AT_ONCE_BYTES:
                digest = await anyio.to_thread.run_sync(process_result, arrival, order, order.estimate)
            else:
                digest = process_result(arrival, order, order.estimate)
        except WireError as error:
            raise UpstreamError(f"Upstream {entry.upstream!r} answered {entry.tool!r} unreadably. {error}") from None
        if isinstance(digest, RejectedFrame):
            refusal = self.upstreams[entry.upstream].refusal(
                repr(entry.tool), digest.code, digest.message, hidden=order.is_veiled
            )
            return await self._read(entry, _as_result(refusal, entry, order), order)
        return digest

    async def _read_within(
        self, hold: Reservation, entry: CatalogEntry, arrival: RawResponse, order: ProcessingOptions, given: Labels
    ) -> Reading:
        """The same; what does not fit as it came is stored, if it may be, and what the model may not see always is.

        Raises:
            ToolError: It may not be seen, and nothing is stored.
        """
        digest = await self._read(entry, arrival, order)
        labels = self.flows.labels_of_result(entry.upstream, given, digest.ifc)
        if not self.flows.may_show(labels):
            if self.is_transparent:
                raise ToolError(WITHHELD)
            return Reading(await self._read(entry, arrival, order.hidden()), labels, is_hidden=True)
        may_be_stored = digest.captured.value is None and order.rules.mode != "never"
        if not may_be_stored or await self.sender.fits(hold, digest.members):
            return Reading(digest, labels, is_hidden=False)
        return Reading(await self._read(entry, arrival, order.tightened()), labels, is_hidden=False)

    async def _keep(
        self,
        call: ToolCall,
        entry: CatalogEntry,
        order: ProcessingOptions,
        read: Reading,
        inputs: Mapping[Pointer, Resolved],
    ) -> None:
        digest = hashlib.sha256(call.arguments).hexdigest()
        paths = tuple(sorted({value.path for value in inputs.values()}))
        made, captured, labels = (
            Provenance(entry.upstream, entry.tool, digest, paths),
            read.digest.captured,
            written(read.labels),
        )
        await self.writer.keep(call.namespace, made, order, captured, labels)
        call.call_trace.path, call.call_trace.labels = order.base if captured.value else None, labels
        call.call_trace.envelope = captured.envelope


def _as_result(error: RefusedError, entry: CatalogEntry, order: ProcessingOptions) -> Mapping[str, Buffer]:
    """An upstream's JSON-RPC error to a twin's call as a tool error, which the error budget bounds.

    Raises:
        RefusedError: It is for the client, or the model may not read it.
    """
    if is_for_client(error) or not entry.mirrored or order.is_veiled or not order.rules.preview:
        raise error
    return refusal_result(str(error))


def _fits(members: Mapping[str, Buffer], mirror: MirrorPolicy) -> bool:
    """Whether a model may see all of a result: it reads the content or the structured content."""
    budget, estimate = mirror.answer_budget, upper_estimator(mirror.provider)
    read = [members.get(member, b"") for member in ("content", "structuredContent")]
    return all(len(raw) <= budget * _TOKEN_BYTES and estimate(raw) <= budget for raw in read)

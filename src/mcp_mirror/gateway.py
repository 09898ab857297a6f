"""The walk of one call: route, resolve, call, capture, notice.

Pure functions decide at each step and shells act; who the caller is comes in as an explicit namespace, and ids and
clock are passed in. A mistake of anybody's becomes an answer that the model can act on.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import anyio.to_thread
import mcp_types as types
import msgspec

from mcp_mirror.callers import Caller, Exchange
from mcp_mirror.capture import Captured
from mcp_mirror.catalog import Catalog, Entry
from mcp_mirror.digest import Digest, Order, Refused, digest_result
from mcp_mirror.errors import MirrorError, RefusedError, StoreError, ToolError, UpstreamError, WireError
from mcp_mirror.inquiries import Inquirer
from mcp_mirror.keeper import Keeper
from mcp_mirror.memory_tools.own_tool import Content, Memory, OwnTool
from mcp_mirror.models import Buffer, Draft, JsonToken, Provenance, Segments, media_type_of
from mcp_mirror.paths import SCHEME, new_base
from mcp_mirror.policies import MemoryToolsPolicy, MirrorPolicy, WirePolicy
from mcp_mirror.recall import nearest, recall, unknown_path
from mcp_mirror.resolve import Escaped, Pointer, Resolved, find_pointers, substitute
from mcp_mirror.rounds import asked_reply, checked
from mcp_mirror.scanner import Scanner
from mcp_mirror.schema import types_at
from mcp_mirror.spans import Miss, locate
from mcp_mirror.spool import Spool, SpooledFrame, discarding
from mcp_mirror.tokens import estimate_tokens
from mcp_mirror.upstreams.base import Outgoing
from mcp_mirror.upstreams.bypass import Arrival
from mcp_mirror.upstreams.questions import Asked, Round
from mcp_mirror.upstreams.supervisor import Upstreams
from mcp_mirror.wire import array_of, join

_logger = logging.getLogger(__name__)

_CHECKED_BYTES = 1 << 18
"""Arguments up to this size are validated against the tool's schema."""
_AT_ONCE_BYTES = 1 << 17
"""Results up to this size are read without leaving the event loop: what that costs goes by their keys too."""
_TOKEN_BYTES = 64
"""Bytes of a token past which a result is over a budget whatever an estimate says."""
_TOLD_BYTES = 1 << 10
"""How much of the arguments a notice may tell."""

Reply = Mapping[str, Buffer | Segments]
"""The members of a `tools/call` result, JSON text."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as a client made it."""

    exchange: Exchange
    """The way back to the client."""
    name: str
    arguments: Buffer
    """A JSON object."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """What it says in `_meta` to the upstream."""
    again: Round | None = None
    """The answers that it brings, where it is made again for their sake."""

    @property
    def namespace(self) -> str:
        """Whose memory it uses."""
        return self.exchange.caller.namespace


@dataclass(slots=True)
class Gateway:
    """Serves tool calls. The catalog is exchanged whole when an upstream's listing changes."""

    upstreams: Upstreams
    keeper: Keeper
    scanner: Scanner
    inquirer: Inquirer
    spool: Spool
    mirror: MirrorPolicy
    memory_tools: MemoryToolsPolicy
    limits: WirePolicy
    new_id: Callable[[], UUID]
    """UUID version 4."""
    is_transparent: bool = False
    """Nothing is stored."""
    own_tools: Mapping[str, OwnTool] = field(default_factory=dict)
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
        try:
            if own := self.own_tools.get(call.name):
                return _content(await own.call(self.memory, call.namespace, call.arguments))
            entry = await self._route(call.name, call.exchange.caller)
            return await (self._walk(entry, call) if entry.mirrored else self._pass(entry, call))
        except RefusedError as error:
            if _is_for_client(error) or not self._is_twin(call):
                raise
            return error_reply(str(error))
        except MirrorError as error:
            return error_reply(str(error))

    async def _walk(self, entry: Entry, call: ToolCall) -> Reply:
        found = find_pointers(call.arguments, self.catalog_for(call.exchange.caller).labels)
        values = await self._fetch(call.namespace, found)
        arguments = await _substitute(entry, call.arguments, found, values)
        _check(entry, arguments)
        order = self._order(entry, call)
        arrival = await self._send(entry, arguments, call)
        if isinstance(arrival, Asked):
            return asked_reply(arrival, call.arguments)
        with discarding(arrival):
            digest = await self._read(entry, arrival, order)
            try:
                await self._keep(call, entry, order, digest.captured, values)
            except StoreError as error:
                return self._unkept(entry, digest, error)
        return _reply(digest, order.base if self.mirror.resource_links else None)

    def _unkept(self, entry: Entry, digest: Digest, error: StoreError) -> Reply:
        """What could not be stored, as it came, if that is not too much; else the model hears why it has nothing.

        Raises:
            StoreError: It is too much.
        """
        if not _fits(digest.members, self.mirror.answer_budget):
            raise StoreError(f"Tool {entry.tool!r} was called, but its result could not be stored. {error}")
        _logger.warning("A result of %r is passed on, for it could not be stored. %s", entry.tool, error)
        return digest.members

    async def _pass(self, entry: Entry, call: ToolCall) -> Reply:
        """An original, listed beside its twin: nothing is resolved and nothing captured."""
        arrival = await self._send(entry, (call.arguments,), call)
        if isinstance(arrival, Asked):
            return asked_reply(arrival, call.arguments)
        with discarding(arrival):
            return (await self._read(entry, arrival, self._order(entry, call))).members

    def catalog_for(self, caller: Caller) -> Catalog:
        """What this client is shown."""
        return self.catalogs.get(caller.party or "", self.catalog)

    def _is_twin(self, call: ToolCall) -> bool:
        entry = self.catalog_for(call.exchange.caller).entries.get(call.name)
        return entry is not None and entry.mirrored

    @property
    def memory(self) -> Memory:
        """What our own tools and resources work on."""
        return Memory(
            keeper=self.keeper,
            scanner=self.scanner,
            inquirer=self.inquirer,
            spool=self.spool,
            mirror=self.mirror,
            tools=self.memory_tools,
            limits=self.limits,
            estimate=estimate_tokens,
            new_id=self.new_id,
        )

    async def _route(self, name: str, caller: Caller) -> Entry:
        if name not in self.catalog_for(caller).entries:  # its upstream may be starting still, or be back
            await self.upstreams.settle(self.mirror.startup_wait)
        if name not in self.catalog_for(caller).entries:
            await self.upstreams.try_unlisted()
        if entry := self.catalog_for(caller).entries.get(name):
            return entry
        near = nearest(name, (*self.catalog_for(caller).entries, *self.own_tools))
        advice = f"Nearest are {', '.join(near)}." if near else "Take a name from tools/list."
        down = [one.policy.name for one in self.upstreams if one.status.state != "ready"]
        missing = f" Upstreams that are not connected now: {', '.join(down)}." if down else ""
        raise ToolError(f"There is no tool {name!r}. {advice}{missing}")

    async def _send(self, entry: Entry, arguments: Segments, call: ToolCall) -> Arrival | Asked:
        order = Outgoing(
            method="tools/call",
            params={"arguments": arguments},
            shown={"name": entry.tool, "arguments": _header_arguments(entry, arguments)},
            meta=call.meta,
            timeout=entry.timeout,
            may_repeat=entry.may_repeat,
        )
        return await self.upstreams[entry.upstream].request(order, call.exchange, checked(call.again, call.arguments))

    def _order(self, entry: Entry, call: ToolCall) -> Order:
        return Order(
            rules=entry.rules if entry.mirrored else replace(entry.rules, mode="never"),
            style=self.mirror.notice,
            tool=entry.tool,
            arguments=bytes(call.arguments[:_TOLD_BYTES]),
            base=new_base(entry.tool, self.new_id()),
            companion_base=new_base(entry.tool, self.new_id()),
            max_key_bytes=self.limits.max_key_bytes,
        )

    async def _read(self, entry: Entry, arrival: Arrival, order: Order) -> Digest:
        """What a result comes to: at once if it is small, else where it holds up no other call."""
        try:
            if isinstance(arrival, SpooledFrame):
                digest = await self.scanner.scan(arrival, order)
            elif sum(len(raw) for raw in arrival.values()) > _AT_ONCE_BYTES:
                digest = await anyio.to_thread.run_sync(digest_result, arrival, order, estimate_tokens)
            else:
                digest = digest_result(arrival, order, estimate_tokens)
        except WireError as error:
            raise UpstreamError(f"Upstream {entry.upstream!r} answered {entry.tool!r} unreadably. {error}") from None
        if isinstance(digest, Refused):
            raise self.upstreams[entry.upstream].refusal(repr(entry.tool), digest.code, digest.message)
        return digest

    async def _fetch(self, namespace: str, found: tuple[Pointer | Escaped, ...]) -> dict[Pointer, Resolved]:
        """The value of each pointer; a text that only looks like one, of a tool we never served, stays a text."""
        values: dict[Pointer, Resolved] = {}
        for pointer in found:
            if isinstance(pointer, Escaped):
                continue
            recalled = await recall(self.keeper.store, self.scanner, namespace, pointer.path) if pointer.path else None
            if recalled:
                values[pointer] = Resolved(str(recalled.path), recalled.blob, recalled.kind)
            elif pointer.ours:
                raise await unknown_path(self.keeper.store, namespace, pointer.text)
        return values

    async def _keep(
        self, call: ToolCall, entry: Entry, order: Order, captured: Captured, inputs: Mapping[Pointer, Resolved]
    ) -> None:
        digest = hashlib.sha256(call.arguments).hexdigest()
        paths = tuple(sorted({value.path for value in inputs.values()}))
        await self.keeper.keep(call.namespace, Provenance(entry.upstream, entry.tool, digest, paths), order, captured)


def _reply(digest: Digest, linked: str | None) -> Reply:
    """What the client gets: the notice and the blocks that pass beside it, or the result as it came."""
    if digest.captured.value is None:
        return digest.members
    passed = [(block,) for block in digest.captured.passed]
    links = [(_link_block(linked, digest.captured.value),)] if linked else []
    reply = _content(((text_block(digest.notice),), *passed, *links))
    return {**reply, "isError": b"true"} if digest.captured.is_error else reply


def _fits(members: Mapping[str, Buffer], budget: int) -> bool:
    """Whether a model may see all of a result: it reads the content or the structured content."""
    read = [members.get(member, b"") for member in ("content", "structuredContent")]
    return all(len(raw) <= budget * _TOKEN_BYTES and estimate_tokens(raw) <= budget for raw in read)


def _is_for_client(error: RefusedError) -> bool:
    """Whether a client acts on it: a capability or a URL elicitation is wanted, or its answers do not fit."""
    wanted = (types.MISSING_REQUIRED_CLIENT_CAPABILITY, types.URL_ELICITATION_REQUIRED)
    return error.code in wanted or error.data == {"reason": "invalid_request_state"}


def text_block(text: str) -> bytes:
    """A text content block."""
    return msgspec.json.encode({"type": "text", "text": text})


def _link_block(base: str, value: Draft) -> bytes:
    """A stored value as a resource that a client can show to a person."""
    link = {"type": "resource_link", "uri": f"{SCHEME}{base}", "name": base, "size": len(value.blob)}
    return msgspec.json.encode({**link, "mimeType": media_type_of(value.kind, value.media_type)})


def error_reply(message: str) -> Reply:
    """A tool error that the model reads."""
    return {"content": array_of([text_block(message)]), "isError": b"true"}


def _content(blocks: Content) -> Reply:
    return {"content": array_of(blocks)}


async def _substitute(
    entry: Entry, arguments: Buffer, found: tuple[Pointer | Escaped, ...], values: Mapping[Pointer, Resolved]
) -> Segments:
    """The values in the pointers' places; large ones may have to be written in another form, which takes a while."""

    def put_in() -> Segments:
        return substitute(arguments, found, values, lambda at: types_at(entry.schema, at))

    large = any(len(value.blob) > _AT_ONCE_BYTES for value in values.values())
    return await anyio.to_thread.run_sync(put_in) if large else put_in()


def _check(entry: Entry, arguments: Segments) -> None:
    """Small arguments are held against the tool's own schema, so that the model hears what is wrong at once.

    Raises:
        ToolError: They do not fit.
    """
    if sum(len(segment) for segment in arguments) > _CHECKED_BYTES:
        return
    try:
        given = json.loads(join(arguments))
    except (ValueError, RecursionError):  # such as an integer of 5,000 digits: the upstream is to judge
        return
    if wrong := entry.check(given):
        raise ToolError(f"The arguments do not fit tool {entry.name!r}: {wrong}. Correct them and call again.")


def _header_arguments(entry: Entry, arguments: Segments) -> dict[str, Any]:
    """The arguments that are mirrored into HTTP headers, parsed, each in its place."""
    picked: dict[str, Any] = {}
    text = join(arguments) if entry.headers else b""
    for location in entry.headers:
        if not isinstance(span := locate(text, location), Miss):
            with suppress(ValueError, RecursionError):  # such as an integer of 5,000 digits: no header holds it
                _place(picked, location, json.loads(text[span.start : span.stop]))
    return picked


def _place(tree: dict[str, Any], location: tuple[JsonToken, ...], value: object) -> None:
    *above, last = location
    for token in above:
        tree = tree.setdefault(str(token), {})
    tree[str(last)] = value

"""What clients may ask of us, method by method: each request to the part that answers it, and its answer to the SDK.

The SDK gets a stub of every answer; what the answer holds goes past it.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import mcp_types as types
import msgspec
from mcp.server import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import InboundLadderRejection, validate_mcp_param_headers
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_mirror.callers import Caller
from mcp_mirror.core.catalog import join_cache_hints
from mcp_mirror.core.merged_lists import KINDS, Kind
from mcp_mirror.core.replies import MAX_ERROR_BYTES, Reply, error_reply
from mcp_mirror.core.schema import Schema
from mcp_mirror.errors import BusyError, MirrorError, RefusalReason, RefusedError, StoreError, ToolError
from mcp_mirror.gateway.context_budgets import read_conversation
from mcp_mirror.gateway.gateway import STATUS_URI, Gateway
from mcp_mirror.gateway.input_required import read_round
from mcp_mirror.gateway.relay import Relay, RelayRequest, not_found
from mcp_mirror.gateway.subscriptions import Subscriptions
from mcp_mirror.memory.resources import TEMPLATE, list_values, read_value
from mcp_mirror.observability.audit import AuditRecord
from mcp_mirror.payload.floods import Steps, take_sliced
from mcp_mirror.payload.json_rpc import MAX_MEMBERS, array_of, has_more_values, join
from mcp_mirror.security.rate_limits import PerKeyLimiter
from mcp_mirror.security.sanitize import sanitize_ends
from mcp_mirror.server.announcements import Announcements
from mcp_mirror.server.client_channel import Context, RequestChannel, meta_of, passed_on
from mcp_mirror.server.pending_payloads import PendingPayloads
from mcp_mirror.server.sessions import STDIO, Sessions
from mcp_mirror.system.event_loop import read_stalls
from mcp_mirror.types import Buffer, Segments
from mcp_mirror.upstreams.upstream import Upstream

_logger = logging.getLogger(__name__)

_SDK_WRITES: Final = ("_meta", "ttlMs", "cacheScope")
"""Members of a result that go through the SDK."""
_PIECE: Final = 1 << 18
"""Bytes of a list that are sent in one piece."""
_LARGEST_META: Final = 1 << 16
"""Bytes of a result's `_meta` that clients get."""

_UNLIMITED: Final = frozenset({"tools/call", "subscriptions/listen", "resources/unsubscribe", "logging/setLevel"})
"""Requests whose handlers are not limited here: the call pipeline limits tool calls, streams have a limit of their
own, and the others reduce work."""
_STATUS: Final = {
    "uri": STATUS_URI,
    "name": "upstreams",
    "title": "Upstream servers",
    "description": "How each upstream server is: state, protocol version, tools, problems.",
    "mimeType": "application/json",
}


@dataclass(slots=True)
class Handlers:
    """Answers requests."""

    gateway: Gateway
    relay: Relay
    subscriptions: Subscriptions
    announcements: Announcements
    sessions: Sessions
    pending_payloads: PendingPayloads
    admission: PerKeyLimiter
    """Of each principal's requests."""

    def register(self, server: Server[Any]) -> None:
        """Answer what this server is asked."""
        page = types.PaginatedRequestParams
        for method, params, handler in (
            ("tools/list", page, self._list_tools),
            ("tools/call", types.CallToolRequestParams, self._call_tool),
            ("resources/list", page, self._list_resources),
            ("resources/templates/list", page, self._list_templates),
            ("resources/read", types.ReadResourceRequestParams, self._read_resource),
            ("resources/subscribe", types.SubscribeRequestParams, self._subscribe),
            ("resources/unsubscribe", types.UnsubscribeRequestParams, self._unsubscribe),
            ("subscriptions/listen", types.SubscriptionsListenRequestParams, self._listen),
            ("prompts/list", page, self._list_prompts),
            ("prompts/get", types.GetPromptRequestParams, self._get_prompt),
            ("completion/complete", types.CompleteRequestParams, self._complete),
            ("logging/setLevel", types.SetLevelRequestParams, self._set_level),
        ):
            server.add_request_handler(method, params, self._answering(method, handler))
        server.add_notification_handler(
            "notifications/roots/list_changed", types.NotificationParams, self._roots_changed
        )

    def exchange_of(self, context: Context) -> RequestChannel:
        """The way back to whoever makes a request."""
        home, caller = self.sessions.of(context), self.sessions.caller_of(context)
        return RequestChannel(context, caller, home, self.sessions.answer_timeout)

    async def _list_tools(self, context: Context, _params: object) -> dict[str, Any]:
        caller, upstreams = self.sessions.caller_of(context), self.gateway.upstreams
        await upstreams.settle_listings(self.gateway.state.config.mirror.startup_wait, caller)
        catalog = self.gateway.catalog_for(caller)
        hints = [hint for one in upstreams.visible_to(caller) if one.listing for hint in one.listing.hints]
        ttl, scope = join_cache_hints(hints)
        tools = await take_sliced(_encoded([*(entry.advert for entry in catalog.entries.values()), *self._own_tools()]))
        stub = {"tools": [], "ttlMs": ttl, "cacheScope": scope}
        return self.pending_payloads.stub(stub, {"tools": tools})

    def _own_tools(self) -> list[dict[str, Any]]:
        return [tool.advert for tool in self.gateway.state.own_tools.values()]

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> dict[str, Any]:
        meta, channel = meta_of(context), self.exchange_of(context)
        try:
            given = self.pending_payloads.params(meta, context.params)
            conversation = read_conversation(meta, _connection_of(context, channel))
        except ToolError as error:
            return self.pending_payloads.stub({"content": []}, error_reply(str(error)), meta)
        again = read_round(given.get("inputResponses"), params.request_state)
        if again and conversation:
            conversation = conversation.going_on
        call = self.gateway.new_call(
            channel,
            params.name,
            given.get("arguments", b"{}"),
            meta=passed_on(context),
            again=again,
            conversation=conversation,
            is_limited=True,
        )
        if schema := call.catalog.header_schema(call.name):
            _check_headers(schema, call.arguments, context)
        return self._stub({"content": []}, await self.gateway.call_tool(call), meta)

    async def _list_resources(self, context: Context, params: types.PaginatedRequestParams) -> dict[str, Any]:
        await self._settled(context)
        channel = self.exchange_of(context)
        cursor = params.cursor or None
        members: dict[str, Buffer | Segments] = {}
        listed = None if cursor else await self.relay.list_all("resources", channel)
        items: list[Segments] = list(listed.items) if listed else []
        if not self.gateway.state.config.is_transparent:
            items += [] if cursor else [(msgspec.json.encode(_STATUS),)]
            stored, more = await self._list_stored(channel.caller.namespace, cursor)
            items += [(one,) for one in stored]
            members |= {"nextCursor": msgspec.json.encode(more)} if more else {}
        hints = {"ttlMs": listed.ttl_ms, "cacheScope": listed.cache_scope} if listed else {}
        if not self.gateway.state.config.is_transparent:  # the caller's own values are among them
            hints = {"ttlMs": 0, "cacheScope": "private"}
        return self.pending_payloads.stub({"resources": [], **hints}, {**members, "resources": array_of(items)})

    async def _list_stored(self, namespace: str, cursor: str | None) -> tuple[list[bytes], str | None]:
        """A page of the stored values; where the store fails, upstreams' own resources are listed without any."""
        try:
            return await list_values(self.gateway.memory, namespace, cursor)
        except StoreError as error:
            if cursor:
                raise
            _logger.warning("Resources are listed without the stored values. %s", error)
            return [], None

    async def _list_templates(self, context: Context, _params: object) -> dict[str, Any]:
        await self._settled(context)
        own = [] if self.gateway.state.config.is_transparent else [(msgspec.json.encode(TEMPLATE),)]
        return await self._list("templates", context, own)

    async def _list_prompts(self, context: Context, _params: object) -> dict[str, Any]:
        await self._settled(context)
        if not self.relay.may_offer("prompts", self.sessions.caller_of(context)):
            raise MCPError(types.METHOD_NOT_FOUND, "No upstream has prompts.")
        return await self._list("prompts", context, [])

    async def _settled(self, context: Context) -> None:
        await self.gateway.upstreams.settle(
            self.gateway.state.config.mirror.startup_wait, self.sessions.caller_of(context)
        )

    async def _list(self, kind: Kind, context: Context, own: Iterable[Segments]) -> dict[str, Any]:
        listed = await self.relay.list_all(kind, self.exchange_of(context))
        member = KINDS[kind].member
        stub = {member: [], "ttlMs": listed.ttl_ms, "cacheScope": listed.cache_scope}
        return self.pending_payloads.stub(stub, {member: array_of([*listed.items, *own])})

    async def _read_resource(self, context: Context, params: types.ReadResourceRequestParams) -> dict[str, Any]:
        uri, asking = str(params.uri), self._asking(context, params.request_state)
        await self._settled(context)
        is_own = self.gateway.owns_uri(uri)
        if is_own and uri == STATUS_URI:
            audit = {"audit": counts} if (counts := self.gateway.audit.counts) else {}
            lag = {"event_loop": stalls} if (stalls := read_stalls()) else {}
            told = {
                "upstreams": self.status(asking.channel.caller),
                "requests": len(self.pending_payloads) - 1,
                **audit,
                **lag,
            }
            text = json.dumps(told, indent=1)
            content = {"uri": uri, "mimeType": "application/json", "text": text}
            reply: Reply = {"contents": msgspec.json.encode([content])}
        elif is_own:
            reply = await read_value(self.gateway.memory, asking.channel.caller.namespace, uri)
        elif not self.relay.offers("resources", asking.channel.caller):
            raise not_found(uri, asking.channel)
        else:
            relayed = await self.relay.read_resource(uri, asking)
            self._audited(asking, "resources/read", relayed.place.upstream)
            reply = await self.gateway.state.contents.resource(
                relayed.members, asking.channel.caller.namespace, relayed.place
            )
        return self._stub({"contents": []}, reply, meta_of(context))

    async def _get_prompt(self, context: Context, params: types.GetPromptRequestParams) -> dict[str, Any]:
        asking = self._asking(context, params.request_state)
        await self._settled(context)
        relayed = await self.relay.get_prompt(params.name, asking)
        self._audited(asking, "prompts/get", relayed.place.upstream)
        reply = await self.gateway.state.contents.prompt(
            relayed.members, asking.channel.caller.namespace, relayed.place
        )
        return self._stub({"messages": []}, reply, meta_of(context))

    def _audited(self, asking: RelayRequest, method: str, upstream: str) -> None:
        namespace = asking.channel.caller.namespace
        self.gateway.audit.write(AuditRecord("call", namespace, method, "ok", upstream=upstream))

    async def _complete(self, context: Context, _params: types.CompleteRequestParams) -> dict[str, Any]:
        asking = self._asking(context, None)
        reference = msgspec.json.decode(asking.params["ref"])
        reply = await self.relay.complete(reference, asking)
        return self._stub({"completion": {"values": []}}, reply, meta_of(context))

    async def _subscribe(self, context: Context, params: types.SubscribeRequestParams) -> dict[str, Any]:
        if session := self.sessions.of(context):
            uri = str(params.uri)
            await self._settled(context)
            await self.subscriptions.subscribe(
                self.exchange_of(context),
                uri,
                (session.caller.session, uri),
                lambda name, told: self.announcements.updated(session, name, told),
            )
        return {}

    async def _unsubscribe(self, context: Context, params: types.UnsubscribeRequestParams) -> dict[str, Any]:
        if session := self.sessions.of(context):
            uri = str(params.uri)
            await self.subscriptions.unsubscribe(self.exchange_of(context), uri, (session.caller.session, uri))
        return {}

    async def _listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        stream = self.announcements.open(params.notifications, self.exchange_of(context).caller)
        uris = tuple(stream.wanted.resource_subscriptions or ())
        try:
            if uris:
                await self._settled(context)
            for uri in uris:
                await self._watch(context, uri, stream)
            return await stream.serve(context)
        finally:
            self.announcements.close(stream)
            for uri in uris:
                self.subscriptions.forget((stream, uri))

    async def _watch(self, context: Context, uri: str, stream: Any) -> None:
        """A resource that nobody has, or that cannot be watched, is one that is never updated."""
        try:
            await self.subscriptions.subscribe(self.exchange_of(context), uri, (stream, uri), stream.updated)
        except MirrorError:
            return

    async def _set_level(self, context: Context, params: types.SetLevelRequestParams) -> dict[str, Any]:
        if session := self.sessions.of(context):
            session.log_level = params.level
            await self.gateway.upstreams.set_level(session, params.level)
        return {}

    async def _roots_changed(self, context: Context, _params: object) -> None:
        if session := self.sessions.of(context):
            await self.gateway.upstreams.notify(session.caller.session, "notifications/roots/list_changed")

    def _answering(self, method: str, handler: Any) -> Any:
        """A handler that is asked when its caller may ask, and whose errors are JSON-RPC's."""

        async def answer(context: Context, params: Any) -> Any:
            try:
                who = self.sessions.namespace_of(context)
                if method in _UNLIMITED:
                    return await handler(context, params)
                async with self.admission.acquire(who, who, "This client"):
                    return await handler(context, params)
            except BusyError as error:
                self.gateway.audit.write(AuditRecord("refusal", who, method, RefusalReason.BUSY))
                raise MCPError(types.INTERNAL_ERROR, str(error), {"retryAfter": error.retry_after}) from None
            except MirrorError as error:
                _raise(error)

        return answer

    def _asking(self, context: Context, state: str | None) -> RelayRequest:
        meta = meta_of(context)
        given = self.pending_payloads.params(meta, context.params)
        again = read_round(given.get("inputResponses"), state)
        return RelayRequest(self.exchange_of(context), given, passed_on(context), again)

    def _stub(self, empty: Mapping[str, Any], reply: Reply, meta: Mapping[str, Any]) -> dict[str, Any]:
        """The SDK's part of an answer; of one that asks for input all, for the SDK seals its state."""
        own = {key: _parsed(reply[key]) for key in _SDK_WRITES if key in reply and _is_small(reply[key])}
        if isinstance(own.get("_meta"), dict):  # who the upstream is; the server is us
            own["_meta"] = {key: value for key, value in own["_meta"].items() if key != types.SERVER_INFO_META_KEY}
        if "resultType" in reply and _parsed(reply["resultType"]) == "input_required":
            members = ("resultType", "inputRequests", "requestState")
            empty = {key: _parsed(reply[key]) for key in members if key in reply}
        return self.pending_payloads.stub({**empty, **{k: v for k, v in own.items() if v is not None}}, reply, meta)

    def status(self, caller: Caller) -> list[dict[str, Any]]:
        """How each upstream is that a caller may see."""
        shows = self.gateway.may_show
        return [
            _status(upstream, caller, shows=shows(upstream.policy.name))
            for upstream in self.gateway.upstreams.visible_to(caller)
        ]


def _raise(error: MirrorError) -> NoReturn:
    """An error of ours as a JSON-RPC one; that of an upstream's is passed on as it was."""
    if isinstance(error, RefusedError):
        raise MCPError(error.code, sanitize_ends(error.peer_message, MAX_ERROR_BYTES), error.data) from None
    code = types.INVALID_PARAMS if isinstance(error, ToolError) else types.INTERNAL_ERROR
    raise MCPError(code, sanitize_ends(str(error), MAX_ERROR_BYTES)) from None


def _check_headers(schema: Schema, arguments: Buffer, context: Context) -> None:
    """The arguments that a 2026-era client mirrors into HTTP headers must be what the headers say."""
    if context.request is None or context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return
    rejection = validate_mcp_param_headers(schema, json.loads(bytes(arguments)), context.request.headers)
    if isinstance(rejection, InboundLadderRejection):
        raise MCPError(rejection.code, rejection.message, rejection.data)


def _connection_of(context: Context, channel: RequestChannel) -> str | None:
    """A name for the connection of a call, where that is one client's own: over HTTP in 2026 there is none."""
    return STDIO if context.request is None else channel.caller.session


def _is_small(member: Buffer | Segments) -> bool:
    """Whether the SDK is to write a member of a result; a larger one is left out."""
    text = join(member) if isinstance(member, tuple) else member
    return len(text) <= _LARGEST_META and not has_more_values(text, MAX_MEMBERS)


def _parsed(member: Buffer | Segments) -> Any:
    try:
        return json.loads(join(member) if isinstance(member, tuple) else bytes(member))
    except (ValueError, RecursionError):
        return None


def _status(upstream: Upstream, caller: Caller, *, shows: bool) -> dict[str, Any]:
    listing, scopes_of = upstream.listing, upstream.policy.scopes_of
    said = {} if listing is None else {
        "server": listing.server,
        "protocol_version": listing.protocol_version,
        "tools": sum(caller.has_scopes(scopes_of(str(tool.get("name")))) for tool in listing.tools),
    }  # fmt: skip
    if not shows:
        said.pop("server", None)
    tells = shows or not upstream.policy.preview  # which has no words of the upstream there
    detail = {"detail": upstream.status.detail} if upstream.status.detail and tells else {}
    stale = {"stale": True} if listing and listing.is_stale else {}
    problems = {"problems": listing.problems} if listing and listing.problems else {}
    connections = {"connections": len(upstream.connections)} if len(upstream.connections) > 1 else {}
    state = {"name": upstream.policy.name, "state": upstream.status.state, "under_way": upstream.inflight_count}
    return state | said | stale | detail | problems | connections


def _encoded(tools: Sequence[Mapping[str, Any]]) -> Steps[Segments]:
    """A JSON array of tools, in steps of one tool; its pieces are not small."""
    pieces: list[Buffer] = []
    held = bytearray(b"[")
    for tool in tools:
        yield
        held += b"," if pieces or len(held) > 1 else b""
        held += msgspec.json.encode(tool)
        if len(held) > _PIECE:
            pieces.append(bytes(held))
            held.clear()
    return (*pieces, bytes(held) + b"]")

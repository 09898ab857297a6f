"""Handlers of the methods that clients can call: each calls the gateway, and returns a stub of the result to the SDK.

The members of a result bypass the SDK; see `pending_payloads`. Most tool calls and lists of tools do not enter the
SDK; see `direct_path`.
"""

import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NoReturn

import anyio
import mcp_types as types
import msgspec
from mcp.server import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import InboundLadderRejection, validate_mcp_param_headers

from mcp_mirror.callers import Caller, ClientChannel
from mcp_mirror.core.merged_lists import KINDS, ItemKind, join_cache_hints
from mcp_mirror.core.replies import ToolResult, build_error_reply
from mcp_mirror.errors import MirrorError, StoreError, ToolError, drop_tracebacks
from mcp_mirror.gateway.arguments import select_header_arguments
from mcp_mirror.gateway.contents import PROMPT, RESOURCE, CapturedKind
from mcp_mirror.gateway.context_budgets import Conversation, read_conversation
from mcp_mirror.gateway.gateway import STATUS_URI, VIEW_URI, Gateway
from mcp_mirror.gateway.input_required import read_round
from mcp_mirror.gateway.relay import ClientList, Relay, RelayedResult, RelayRequest, resource_not_found
from mcp_mirror.gateway.stages.reporting import UNWRITTEN
from mcp_mirror.gateway.subscriptions import Subscriptions
from mcp_mirror.memory.resources import TEMPLATE, list_values, read_value
from mcp_mirror.observability.audit import AuditRecord, Event
from mcp_mirror.payload.json_rpc import array_of
from mcp_mirror.security.rate_limits import PrincipalLimiter
from mcp_mirror.server.announcements import Announcements
from mcp_mirror.server.client_channel import RequestChannel, RequestStream, SdkStream
from mcp_mirror.server.client_errors import build_error_data
from mcp_mirror.server.envelopes import AcceptedEnvelopes
from mcp_mirror.server.http.session_streams import find_stream
from mcp_mirror.server.memory_view import LIST_TOOL, VIEW_RESOURCE, add_overview, add_view, build_content
from mcp_mirror.server.pending_payloads import PendingPayloads, sdk_part
from mcp_mirror.server.request_context import Context, read_meta, select_relayed_meta
from mcp_mirror.server.sessions import STDIO, Sessions
from mcp_mirror.server.status_resource import STATUS, build_status
from mcp_mirror.system.limited_logs import RepeatedLog
from mcp_mirror.system.slices import take_sliced
from mcp_mirror.types import Buffer, Segments
from mcp_mirror.upstreams.elicitation import InputRound

_logger = logging.getLogger(__name__)

_INCOMPLETE: Final = ((0, "public"),)
"""The cache hint of a list without the items of an upstream that is starting or down."""
_UNLIMITED: Final = frozenset({"tools/call", "subscriptions/listen", "resources/unsubscribe", "logging/setLevel"})
"""Methods without a limit here: the call pipeline limits tool calls, streams have their own limit, and the others
reduce the gateway's work."""
_CONFIRMATION_WAIT: Final = 5.0
"""Seconds to wait for an upstream that does not acknowledge subscriptions."""


class Handlers(msgspec.Struct):
    """The handlers of all methods.

    The SDK calls the handlers in `register`, about in the order in which they follow. The direct path calls `call_tool`
    and `list_tools`.
    """

    gateway: Gateway
    relay: Relay
    subscriptions: Subscriptions
    announcements: Announcements
    sessions: Sessions
    pending_payloads: PendingPayloads
    admission: PrincipalLimiter
    """The rate and concurrency limits of each principal."""
    accepted_envelopes: AcceptedEnvelopes = msgspec.field(default_factory=AcceptedEnvelopes)
    """The envelopes of 2026-07-28 tool calls that the SDK has accepted."""
    open_direct_requests: int = 0
    """The number of requests that the direct path answers now."""
    _log: RepeatedLog = msgspec.field(default_factory=lambda: RepeatedLog(_logger))

    def register(self, server: Server[Any]) -> None:
        """Register the handlers in a server of the SDK."""
        page = types.PaginatedRequestParams
        for method, params, handler in (
            ("tools/list", page, self._list_tools),
            ("tools/call", types.CallToolRequestParams, self._call_tool),
            ("resources/list", page, self._list_resources),
            ("resources/templates/list", page, partial(self._list, "templates")),
            ("resources/read", types.ReadResourceRequestParams, self._read_resource),
            ("resources/subscribe", types.SubscribeRequestParams, self._subscribe),
            ("resources/unsubscribe", types.UnsubscribeRequestParams, self._unsubscribe),
            ("subscriptions/listen", types.SubscriptionsListenRequestParams, self._listen),
            ("prompts/list", page, partial(self._list, "prompts")),
            ("prompts/get", types.GetPromptRequestParams, self._get_prompt),
            ("completion/complete", types.CompleteRequestParams, self._complete),
            ("logging/setLevel", types.SetLevelRequestParams, self._set_level),
        ):
            server.add_request_handler(method, params, self._add_limits(method, handler))
        server.add_notification_handler(
            "notifications/roots/list_changed", types.NotificationParams, self._forward_roots_change
        )

    def _add_limits(self, method: str, handler: Any) -> Any:
        """Return a handler with the limits of its principal, which raises JSON-RPC errors."""

        async def handle(context: Context, params: Any) -> Any:
            namespace = ""
            try:
                namespace = self.sessions.namespace_of(context)
                if method in _UNLIMITED:
                    return await handler(context, params)
                async with self.admission.acquire(namespace):
                    return await handler(context, params)
            except Exception as error:  # noqa: BLE001  # the SDK would send its message to the client
                data = build_error_data(error, self.gateway.audit, namespace, method)
                drop_tracebacks(error)
                raise MCPError.from_error_data(data) from None

        return handle

    @property
    def open_request_count(self) -> int:
        """The number of requests of clients that the server has not answered yet."""
        return len(self.pending_payloads) + self.open_direct_requests

    async def _list_tools(self, context: Context, params: types.PaginatedRequestParams) -> dict[str, Any]:
        _refuse_cursor(params)
        return self._keep_list("tools", await self.list_tools(self._build_channel(context)))

    async def list_tools(self, channel: ClientChannel) -> ClientList:
        """Return the tools that a client sees."""
        upstreams, caller = self.gateway.upstreams, channel.caller
        await upstreams.wait_for_listings(self.gateway.state.config.mirror.startup_wait, caller)
        await upstreams.wait_for_changes(channel)
        listings = [one.listing for one in upstreams.visible_to(caller)]
        hints = [hint for one in listings for hint in (one.hints if one else _INCOMPLETE)]
        ttl, scope = join_cache_hints(hints)
        listing = await take_sliced(self.gateway.listing_for(caller))
        twins = await take_sliced(listing.catalog.encode_adverts())
        adverts = [tool.advert for tool in listing.own_tools.values()]
        own_tools = [msgspec.json.encode(add_view(one) if caller.shows_views else one) for one in adverts]
        # If lists depend on scopes, a shared cache could give a principal the list of another.
        scope = "private" if upstreams.are_scoped else scope
        return ClientList(tuple((piece,) for piece in (*twins, *own_tools)), ttl, scope)

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> dict[str, Any]:
        meta, channel = read_meta(context), self._build_channel(context)
        try:
            members = self.pending_payloads.take_params(meta, context.params)
        except ToolError as error:
            return self.pending_payloads.keep_result({"content": []}, build_error_reply(str(error)), meta)
        if channel.caller.is_stateless:  # the SDK has accepted the call: the direct path answers the client's next ones
            self.accepted_envelopes.add(members, context, channel.caller.capabilities)
        input_round = read_round(members.get("inputResponses"), params.request_state)
        arguments, headers = members.get("arguments", b"{}"), _headers_of(context)
        reply = await self.call_tool(channel, params.name, arguments, headers, input_round)
        return self._stub({"content": []}, reply, context)

    async def call_tool(
        self,
        channel: RequestChannel,
        name: str,
        arguments: Buffer,
        headers: Mapping[str, str] | None,
        input_round: InputRound | None = None,
    ) -> ToolResult:
        """Answer a tool call; see `RuntimeState.answer`.

        `headers` are the HTTP headers; None on stdio. `input_round` has the client's answers, if the request repeats
        one that required input.

        Raises:
            MCPError: The HTTP headers contradict the arguments.
            MirrorError: The client, not the model, must see the error.
        """
        caller, meta = channel.caller, channel.meta
        # Over HTTP, only a session identifies the connection of one client.
        connection = STDIO if headers is None else caller.session
        try:
            conversation = read_conversation(meta, connection)
        except ToolError as error:
            return build_error_reply(str(error))
        if input_round and conversation:
            conversation = Conversation(conversation.key)  # a report counts once
        await self.gateway.wait_for_tool(caller, name, arguments)
        call = self.gateway.new_call(
            channel,
            name,
            arguments,
            meta=select_relayed_meta(meta, headers, caller),
            input_round=input_round,
            conversation=conversation,
            is_limited=True,
        )
        if headers is not None and caller.is_stateless and (schema := call.catalog.header_schema(name)):
            mirrored = await select_header_arguments(call.catalog.entries[name], (call.arguments,), call.namespace)
            rejection = validate_mcp_param_headers(schema, mirrored, headers)
            if isinstance(rejection, InboundLadderRejection):
                raise MCPError(rejection.code, rejection.message, rejection.data)
        reply = await self.gateway.state.answer(call)
        if call.name == LIST_TOOL and caller.shows_views and LIST_TOOL in call.own_tools:
            return await add_overview(self.gateway, caller.namespace, reply)
        return reply

    async def _list_resources(self, context: Context, params: types.PaginatedRequestParams) -> dict[str, Any]:
        """List the resources of upstreams on the first page, and the stored values of the caller on all pages."""
        await self._wait_for_upstreams(context)
        channel, cursor = self._build_channel(context), params.cursor or None
        caller = channel.caller
        stub: dict[str, Any] = {"resources": []}
        members: dict[str, Buffer | Segments] = {}
        items: list[Segments] = []
        if cursor is None:
            listed = await self.relay.list_all("resources", channel)
            items += listed.items
            stub |= {"ttlMs": listed.ttl_ms, "cacheScope": listed.cache_scope}
        if self.gateway.has_resources(caller):
            if cursor is None:
                items.append((msgspec.json.encode(STATUS),))
                if caller.shows_views and LIST_TOOL in self.gateway.state.own_tools_for(caller):
                    items.append((msgspec.json.encode(VIEW_RESOURCE),))
            values, next_cursor = await self._list_values(caller.namespace, cursor)
            items += [(value,) for value in values]
            if next_cursor:
                members["nextCursor"] = msgspec.json.encode(next_cursor)
            stub |= {"ttlMs": 0, "cacheScope": "private"}  # the values belong to one principal
        return self.pending_payloads.keep_result(stub, {**members, "resources": array_of(items)})

    async def _list_values(self, namespace: str, cursor: str | None) -> tuple[list[bytes], str | None]:
        """Return a page of the stored values and the next cursor; an empty first page if the store fails."""
        try:
            return await list_values(self.gateway.memory, namespace, cursor)
        except StoreError as error:
            if cursor:
                raise
            self._log.warning("Resources are listed without the stored values. %s", error)
            return [], None

    async def _list(self, kind: ItemKind, context: Context, params: types.PaginatedRequestParams) -> dict[str, Any]:
        """List the prompts or the resource templates of upstreams, and the gateway's own template."""
        _refuse_cursor(params)
        channel = self._build_channel(context)
        own = kind == "templates" and self.gateway.has_resources(channel.caller)
        await self._wait_for_upstreams(context)
        listed = await self.relay.list_all(kind, channel)
        return self._keep_list(KINDS[kind].member, listed, [(msgspec.json.encode(TEMPLATE),)] if own else [])

    def _keep_list(self, member: str, listed: ClientList, own: Iterable[Segments] = ()) -> dict[str, Any]:
        """Return the part of a list that the SDK writes; `own` are further items."""
        stub = {member: [], "ttlMs": listed.ttl_ms, "cacheScope": listed.cache_scope}
        return self.pending_payloads.keep_result(stub, {member: array_of([*listed.items, *own])})

    async def _read_resource(self, context: Context, params: types.ReadResourceRequestParams) -> dict[str, Any]:
        uri, request = str(params.uri), self._relay_request(context, params.request_state)
        caller = request.channel.caller
        await self._wait_for_upstreams(context)
        if self.relay.owns(uri, caller):
            reply = await self._read_own(uri, context, caller)
        elif not self.relay.offers("resources", caller):
            raise resource_not_found(uri, request.channel)
        else:
            relay = partial(self.relay.read_resource, uri, request)
            reply = await self._answer_relayed(context, caller, relay, RESOURCE)
        return self._stub({"contents": []}, reply, context)

    async def _read_own(self, uri: str, context: Context, caller: Caller) -> ToolResult:
        """Return a resource of the gateway: its status, the view of the memory, or a stored value."""
        if uri == STATUS_URI:
            status = build_status(self.gateway, caller, self.open_request_count - 1)  # without this one
            content = {"uri": uri, "mimeType": "application/json", "text": json.dumps(status, indent=1)}
            return {"contents": msgspec.json.encode([content])}
        if uri == VIEW_URI:
            return {"contents": build_content()}
        await self._begin_audit(context, caller)
        return await read_value(self.gateway.memory, caller.namespace, uri)

    async def _get_prompt(self, context: Context, params: types.GetPromptRequestParams) -> dict[str, Any]:
        request = self._relay_request(context, params.request_state)
        await self._wait_for_upstreams(context)
        relay = partial(self.relay.get_prompt, params.name, request)
        reply = await self._answer_relayed(context, request.channel.caller, relay, PROMPT)
        return self._stub({"messages": []}, reply, context)

    async def _complete(self, context: Context, _params: types.CompleteRequestParams) -> dict[str, Any]:
        request = self._relay_request(context, None)
        reference = msgspec.json.decode(request.params["ref"])
        relay = partial(self.relay.complete, reference, request)
        reply = await self._answer_relayed(context, request.channel.caller, relay)
        return self._stub({"completion": {"values": []}}, reply, context)

    async def _answer_relayed(
        self,
        context: Context,
        caller: Caller,
        relay: Callable[[], Awaitable[RelayedResult]],
        kind: CapturedKind | None = None,
    ) -> ToolResult:
        """Answer a relayed request with notices in place of large items, and write audit records before and after."""
        await self._begin_audit(context, caller)
        upstream = ""
        event: Event = "call"
        outcome = "error"  # also of a cancelled request
        try:
            reply, origin = await relay()
            upstream = origin.upstream
            if kind is not None:
                reply = await self.gateway.state.contents.capture(kind, reply, caller.namespace, origin)
            outcome = "ok"
        except MirrorError as error:
            if error.reason:
                event, outcome = "refusal", error.reason
            raise
        finally:
            record = AuditRecord(event, caller.namespace, context.method, outcome, upstream=upstream)
            self.gateway.audit.write(record)
        return reply

    async def _begin_audit(self, context: Context, caller: Caller) -> None:
        """Write the audit record of a request before the request is made, if `audit.required`."""
        record = AuditRecord("call", caller.namespace, context.method, "begun")
        if not await self.gateway.audit.admit(record):
            raise MirrorError(UNWRITTEN)

    async def _subscribe(self, context: Context, params: types.SubscribeRequestParams) -> dict[str, Any]:
        if session := self.sessions.session_of(context):
            uri = str(params.uri)
            await self._wait_for_upstreams(context)
            confirmed = await self.subscriptions.subscribe(
                self._build_channel(context),
                uri,
                (session.caller.session, uri),
                lambda updated_uri, params: self.announcements.resource_updated(session, updated_uri, params),
            )
            await _wait_for_all([confirmed])
        return {}

    async def _unsubscribe(self, context: Context, params: types.UnsubscribeRequestParams) -> dict[str, Any]:
        if session := self.sessions.session_of(context):
            uri = str(params.uri)
            await self.subscriptions.unsubscribe(self._build_channel(context), uri, (session.caller.session, uri))
        return {}

    async def _listen(self, context: Context, params: types.SubscriptionsListenRequestParams) -> NoReturn:
        channel = self._build_channel(context)
        stream = self.announcements.open(params.notifications, channel.caller)
        uris = tuple(stream.wanted.resource_subscriptions or ())
        confirmed: list[anyio.Event | None] = []
        try:
            if uris:
                await self._wait_for_upstreams(context)
            for uri in uris:
                # Unknown resources, and those without subscriptions, are never updated: they are not errors.
                with contextlib.suppress(MirrorError):
                    confirmed.append(
                        await self.subscriptions.subscribe(channel, uri, (stream, uri), stream.resource_updated)
                    )
            await _wait_for_all(confirmed)
            await stream.run(context)
        finally:
            self.announcements.close(stream)
            for uri in uris:
                self.subscriptions.drop((stream, uri))

    async def _set_level(self, context: Context, params: types.SetLevelRequestParams) -> dict[str, Any]:
        if session := self.sessions.session_of(context):
            session.log_level = params.level
            await self.gateway.upstreams.set_level(session, params.level)
        return {}

    async def _forward_roots_change(self, context: Context, _params: object) -> None:
        if session := self.sessions.session_of(context):
            await self.gateway.upstreams.notify(session.caller.session, "notifications/roots/list_changed")

    def _build_channel(self, context: Context) -> RequestChannel:
        """Return the channel to the client on the stream of its request."""
        session, caller = self.sessions.session_of(context), self.sessions.caller_of(context)
        stream: RequestStream = (sdk_stream := SdkStream(context.session, context.request_id))
        if session and context.request is not None:
            stream = find_stream(context.request.scope, session, sdk_stream)
        return RequestChannel(stream, read_meta(context), caller, session, self.sessions.answer_timeout)

    async def _wait_for_upstreams(self, context: Context) -> None:
        startup_wait = self.gateway.state.config.mirror.startup_wait
        await self.gateway.upstreams.wait_for_attempts(startup_wait, self.sessions.caller_of(context))

    def _relay_request(self, context: Context, state: str | None) -> RelayRequest:
        params = self.pending_payloads.take_params(read_meta(context), context.params)
        input_round = read_round(params.get("inputResponses"), state)
        channel = self._build_channel(context)
        meta = select_relayed_meta(read_meta(context), _headers_of(context), channel.caller)
        return RelayRequest(channel, params, meta, input_round)

    def _stub(self, empty: Mapping[str, Any], reply: ToolResult, context: Context) -> dict[str, Any]:
        """Return the part of a result that the SDK writes."""
        return self.pending_payloads.keep_result(sdk_part(empty, reply), reply, read_meta(context))


def _refuse_cursor(params: types.PaginatedRequestParams) -> None:
    """Refuse a request for a further page of a list that has one page."""
    if params.cursor:
        raise ToolError("This list has one page. List again without a cursor.")


async def _wait_for_all(events: Iterable[anyio.Event | None]) -> None:
    """Wait until upstreams have confirmed subscriptions: a client expects updates from the response on."""
    with anyio.move_on_after(_CONFIRMATION_WAIT):
        for event in filter(None, events):
            await event.wait()


def _headers_of(context: Context) -> Mapping[str, str] | None:
    return None if context.request is None else context.request.headers

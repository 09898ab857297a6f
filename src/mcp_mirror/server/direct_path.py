"""The direct path of tool calls and lists of tools, which does not enter the SDK.

The SDK handles handshakes, and of 2026-07-28 the first tool call with each envelope. The direct path then answers the
further requests: it opens the message once, calls the same handler as the SDK, and writes the response. Everything else
takes the SDK's path: requests with parameters that the SDK validates, such as `requestState`; requests with an envelope
that the SDK has not accepted yet; large, deeply nested and invalid messages. This is decided before any work.
"""

import json
import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import mcp_types as types
import msgspec
from mcp.server import Server
from mcp.server.context import HandlerResult, ServerRequestContext
from mcp.server.request_state import RequestStateBoundary
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp_types.methods import serialize_server_result
from pydantic import ValidationError
from starlette.requests import Request

from mcp_mirror.callers import LOCAL, Caller, NullChannel
from mcp_mirror.core.replies import ToolResult
from mcp_mirror.errors import WireError
from mcp_mirror.payload.json_rpc import Message, RequestId, array_of, object_of, open_message, open_object
from mcp_mirror.server.client_channel import RequestChannel, RequestStream, Session
from mcp_mirror.server.client_errors import build_error_data
from mcp_mirror.server.envelopes import NO_ENVELOPE, RESERVED, Envelope, read_envelope
from mcp_mirror.server.handlers import Handlers
from mcp_mirror.server.pending_payloads import payload_of, sdk_part
from mcp_mirror.server.request_context import HttpRequest, read_rights, with_rights
from mcp_mirror.server.sessions import STDIO
from mcp_mirror.types import Buffer, Segments

_logger = logging.getLogger(__name__)

TOOL_CALL: Final = "tools/call"
_TOOL_LIST: Final = "tools/list"
_MAX_BYTES: Final = 1 << 15
"""Bytes of a message on the direct path. No limit on the number of a message's values can be reached below it."""
_MAX_BRACKETS: Final = 400
"""Opening brackets of a message on the direct path: its nesting cannot reach a limit of the interpreter."""
_PARAMETERS: Final = {TOOL_CALL: frozenset({"name", "arguments", "_meta"}), _TOOL_LIST: frozenset({"_meta"})}
"""The parameters that a request on the direct path may have, by its method."""
_REQUEST: Final = frozenset({"jsonrpc", "id", "method", "params"})
_EMPTY_RESULT: Final[Mapping[str, Any]] = {"content": []}
_SHORT_META: Final = 1 << 10
"""Bytes of a `_meta` that is remembered: most clients send the same one with each request."""
_MAX_META: Final = 1 << 13
"""Bytes of a `_meta` that is parsed. The SDK's path bounds the number of values in a longer one."""
_ENCODE: Final = msgspec.json.Encoder().encode
_NAME: Final = msgspec.json.Decoder(str)


class DirectRequest(msgspec.Struct, frozen=True):
    """A tool call, or a request for the list of tools, that was opened without the SDK."""

    id: RequestId
    method: str
    name: str
    """The name of the tool; empty for a list."""
    params: Mapping[str, Buffer]
    """The JSON text of each parameter."""
    meta: Mapping[str, Any]
    """The parsed `_meta`."""
    envelope: Envelope
    """The reserved members of `_meta`; empty for 2025-11-25 requests."""


class Sender(msgspec.Struct, frozen=True):
    """The sender of a direct request, as the SDK accepted it in an earlier request."""

    caller: Caller
    protocol_version: str
    session: Session | None
    """The session of a 2025-11-25 client."""
    server_session: ServerSession
    """The SDK's session of the earlier request."""
    request: HttpRequest | None = None
    """The HTTP request; None on stdio."""


def open_direct_request(frame: Buffer, max_depth: int) -> DirectRequest | None:
    """Open a message if it is a request that the direct path can answer; return None for other messages."""
    if not _is_small_request(frame):
        return None
    try:
        message = open_message(frame, max_depth)
        params = _select_params(message)
        if params is None or not isinstance(message.id, int | str) or not isinstance(message.method, str):
            return None
        name = _NAME.decode(params["name"]) if message.method == TOOL_CALL else ""
        text = bytes(params.get("_meta", b"{}"))
        meta, envelope = _read_short_meta(text) if len(text) <= _SHORT_META else _read_meta(text)
    except (WireError, KeyError, ValueError):
        return None
    if meta is None or (message.method == _TOOL_LIST and not _is_request(frame)):
        return None
    return DirectRequest(message.id, message.method, name, params, meta, envelope)


def _is_small_request(frame: Buffer) -> bool:
    """Whether a message may be a direct request, and is so small and flat that it reaches no limit."""
    if len(frame) > _MAX_BYTES or not isinstance(frame, bytes):
        return False
    return (b'"tools/call"' in frame or b'"tools/list"' in frame) and (
        frame.count(b"{") + frame.count(b"[") <= _MAX_BRACKETS
    )


def _select_params(message: Message) -> dict[str, Buffer] | None:
    """Return the parameters of a request if the direct path knows its method and all of them; else None."""
    members = message.params
    if message.method == _TOOL_LIST and members is msgspec.UNSET:
        return {}
    if message.method not in _PARAMETERS or not isinstance(members, dict):
        return None
    if not _PARAMETERS[message.method].issuperset(members):
        return None
    params: dict[str, Buffer] = {key: memoryview(raw) for key, raw in members.items()}
    return params if bytes(params.get("arguments", b"{}")[:1]) == b"{" else None


def _read_meta(text: bytes) -> tuple[Mapping[str, Any] | None, Envelope]:
    """Return a parsed `_meta` and its envelope; None for one that the SDK could reject, apart from its envelope.

    Raises:
        ValueError: The text is not JSON.
    """
    if len(text) > _MAX_META or b"\\u" in text:  # it could be half of a surrogate pair
        return None, NO_ENVELOPE
    meta = json.loads(text)
    if not isinstance(meta, dict) or "progress_token" in meta:
        return None, NO_ENVELOPE
    if type(meta.get("progressToken", "")) not in (int, str):
        return None, NO_ENVELOPE
    return meta, read_envelope(text) if any(key.startswith(RESERVED) for key in meta) else NO_ENVELOPE


_read_short_meta: Final = lru_cache(256)(_read_meta)


def _is_request(frame: Buffer) -> bool:
    """Whether a message has the members of a request only, as the SDK checks; it gets no others of a tool call."""
    members = open_object(frame) or {}
    return _REQUEST.issuperset(members) and bytes(members.get("jsonrpc", b"")) == b'"2.0"'


class DirectPath:
    """Answers direct requests: the transports call `open_request`, `find_sender` and, if both succeed, `answer`."""

    def __init__(self, handlers: Handlers, server: Server[Any], boundary: RequestStateBoundary) -> None:
        """Answer with the same handlers as the SDK's server; `boundary` is its middleware for each `requestState`."""
        self._handlers = handlers
        self._limits = handlers.pending_payloads.limits
        self._server = server
        self._boundary = boundary
        self._server_info = _ENCODE({types.SERVER_INFO_META_KEY: server.server_info_stamp})
        """The `_meta` of a result that has no other members in it."""

    def open_request(self, frame: Buffer) -> DirectRequest | None:
        """Return the request in a message; None for a message that the SDK's path must handle."""
        limits = self._limits
        return open_direct_request(frame, limits.max_depth) if len(frame) <= limits.max_envelope_bytes else None

    def find_sender(self, opened: DirectRequest, request: HttpRequest | None = None) -> Sender | None:
        """Return the sender of a request if the SDK accepted its handshake or envelope; `request` is None on stdio."""
        scope = None if request is None else request.scope
        if opened.envelope:
            if (accepted := self._handlers.accepted_envelopes.find(opened.envelope)) is None:
                return None
            namespace, upstream = (LOCAL, None) if request is None else (request.namespace, request.upstream)
            scopes, headers = read_rights(scope)
            caller = Caller(
                namespace, capabilities=accepted.capabilities, scopes=scopes, upstream=upstream, client_headers=headers
            )
            return Sender(caller, accepted.protocol_version, None, accepted.server_session, request)
        session = self.find_session(request)
        if session is None or session.protocol_version is None:
            return None
        session.caller = with_rights(session.caller, scope)
        return Sender(session.caller, session.protocol_version, session, session.server_session, request)

    def find_session(self, request: HttpRequest | None = None) -> Session | None:
        """Return the session of a request; `request` is None on stdio."""
        return self._handlers.sessions.find(STDIO if request is None else request.session_key)

    async def answer(self, opened: DirectRequest, sender: Sender, stream: RequestStream) -> Segments | types.ErrorData:
        """Return the result of a request, a JSON object, or its error."""
        handlers = self._handlers
        handlers.open_direct_requests += 1
        try:
            if opened.method == _TOOL_LIST:
                return object_of(await self._list_tools(sender))
            channel = RequestChannel(
                stream, opened.meta, sender.caller, sender.session, handlers.sessions.answer_timeout
            )
            headers = None if sender.request is None else sender.request.headers
            reply = await handlers.call_tool(channel, opened.name, opened.params.get("arguments", b"{}"), headers)
            return object_of(await self._write_result(reply, opened, sender))
        except Exception as error:  # noqa: BLE001  # as in the SDK, every error is a response
            return build_error_data(error, handlers.gateway.audit, sender.caller.namespace, opened.method)
        finally:
            handlers.open_direct_requests -= 1

    def _stamp(self, caller: Caller) -> bytes:
        """Return the `_meta` of a result that names only the server."""
        identity = self._handlers.gateway.find_identity(caller)
        return _ENCODE({types.SERVER_INFO_META_KEY: identity}) if identity else self._server_info

    async def _list_tools(self, sender: Sender) -> Mapping[str, Buffer | Segments]:
        """Return the members of a list of tools, in the order in which the SDK writes them."""
        handlers, caller = self._handlers, sender.caller
        async with handlers.admission.acquire(caller.namespace):
            listed = await handlers.list_tools(NullChannel(caller, session_channel=sender.session))
        tools = array_of(listed.items)
        if not sender.caller.is_stateless:
            return {"tools": tools}
        return {
            "_meta": self._stamp(caller),
            "cacheScope": _ENCODE(listed.cache_scope),
            "resultType": b'"complete"',
            "tools": tools,
            "ttlMs": _ENCODE(listed.ttl_ms),
        }

    async def _write_result(
        self, reply: ToolResult, call: DirectRequest, sender: Sender
    ) -> Mapping[str, Buffer | Segments]:
        """Return the members of a result, with those that the SDK writes for the client's protocol version."""
        payload = payload_of(reply)
        sdk_members = sdk_part(_EMPTY_RESULT, reply) if "_meta" in reply or "resultType" in reply else _EMPTY_RESULT
        if sdk_members.get("_meta") or "resultType" in sdk_members:
            written = await self._write_with_sdk(sdk_members, call, sender)
            return {**{key: _ENCODE(value) for key, value in written.items()}, **payload}
        # In the order in which the SDK writes them, so that no client can see the difference.
        if sender.caller.is_stateless:
            return {"_meta": self._stamp(sender.caller), "content": b"[]", "resultType": b'"complete"', **payload}
        return {"content": b"[]", **payload}

    async def _write_with_sdk(
        self, members: Mapping[str, Any], call: DirectRequest, sender: Sender
    ) -> Mapping[str, Any]:
        """Return the SDK's part of a result as the SDK writes it, with an encrypted `requestState`."""
        complete = {"resultType": "complete", **members, "_meta": members.get("_meta", {})}
        try:
            result = serialize_server_result(TOOL_CALL, sender.protocol_version, complete)
        except ValidationError:
            _logger.exception("The result of a tool call is not valid in protocol version %s", sender.protocol_version)
            raise MCPError(types.INTERNAL_ERROR, "Handler returned an invalid result") from None
        if sender.caller.is_stateless:
            identity = self._handlers.gateway.find_identity(sender.caller)
            result["_meta"][types.SERVER_INFO_META_KEY] = identity or self._server.server_info_stamp

        async def call_next(_context: object) -> HandlerResult:
            return result

        context = ServerRequestContext[Any, Any](
            session=sender.server_session,
            lifespan_context=None,
            protocol_version=sender.protocol_version,
            method=TOOL_CALL,
            params={"name": call.name, "arguments": {}},  # as on the SDK's path, the state names no arguments
            request=sender.request and Request(sender.request.scope),
        )
        sealed = await self._boundary(context, call_next)
        assert isinstance(sealed, dict)  # noqa: S101  # the boundary returns the type that it gets
        return sealed


def write_response(
    request_id: RequestId | None, outcome: Segments | types.ErrorData, *, has_nulls: bool = True
) -> Segments:
    """Return the JSON-RPC response with the result of a request, a JSON object, or its error.

    `has_nulls`: an error contains members that are null, such as an id that is not known.
    """
    if isinstance(outcome, types.ErrorData):
        error = types.JSONRPCError(jsonrpc="2.0", id=request_id, error=outcome)
        return (error.model_dump_json(exclude_unset=True, exclude_none=not has_nulls).encode(),)
    return (b'{"jsonrpc":"2.0","id":', _ENCODE(request_id), b',"result":', *outcome, b"}")

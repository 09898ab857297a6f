"""Channels to a client: on the stream of one request, or on the stream of its session.

A channel relays messages of upstreams with all their members. The module also reads the sender of a request, and keeps
the envelopes of requests that the SDK has accepted.
"""

import contextlib
import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.methods import validate_client_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ConfigDict, ValidationError

from mcp_mirror.callers import LOG_LEVELS, Caller, ClientChannel
from mcp_mirror.errors import RefusedError
from mcp_mirror.gateway.context_budgets import CONVERSATION
from mcp_mirror.payload.json_rpc import MARK, open_object
from mcp_mirror.server.cancel_scopes import CancelScopes
from mcp_mirror.server.endpoints import read_upstream
from mcp_mirror.types import Buffer

Context = ServerRequestContext[Any, Any]

_CLOSED: Final = (MCPError, anyio.BrokenResourceError, anyio.ClosedResourceError)
_GATEWAY_META_KEYS: Final = frozenset(
    {
        MARK,
        CONVERSATION,
        "progressToken",
        types.PROTOCOL_VERSION_META_KEY,
        types.CLIENT_INFO_META_KEY,
        types.CLIENT_CAPABILITIES_META_KEY,
        types.LOG_LEVEL_META_KEY,
    }
)
"""Members of `_meta` that are for the gateway; upstreams get the others."""
_CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key", "dpop"})
"""Headers that authenticate a client to the gateway, and members of `_meta` with the same names."""
_SEPARATORS: Final = re.compile(r"[\s;,=]+")
_MIN_SECRET_LENGTH: Final = 8
"""Characters; shorter words occur in many texts."""
_UNSUPPORTED_CAPABILITIES: Final = frozenset({"tasks"})
UNSUPPORTED_EXTENSIONS: Final = frozenset({"io.modelcontextprotocol/tasks"})
"""Extensions that the gateway cannot relay."""
_LOG: Final = "notifications/message"
_PROGRESS: Final = "notifications/progress"
RESERVED: Final = "io.modelcontextprotocol/"
"""The prefix of the members of `_meta` that MCP reserves."""
_MAX_ENVELOPES: Final = 256
"""Accepted envelopes. Above this number the least recently used ones are dropped."""
_MAX_BYTES: Final = 4096
"""Bytes of an envelope; larger ones are not recorded."""

Envelope = frozenset[tuple[str, bytes]]
"""The reserved members with their JSON text."""
NO_ENVELOPE: Final[Envelope] = frozenset()
"""The envelope of a 2025-11-25 request."""


class _AnyResult(BaseModel):
    model_config = ConfigDict(extra="allow")


@dataclass(slots=True, eq=False)
class Session:
    """A session of a 2025-11-25 client, and the channel to the client between its requests."""

    caller: Caller
    """The client, with the scopes of the token of its last request."""
    server_session: ServerSession
    ready: anyio.Event
    """Set when the client has completed the handshake; earlier requests to it wait."""
    answer_timeout: float
    """Seconds to wait for the client's response, which may need the user."""
    began: float
    used: float = 0.0
    """When the session was used last."""
    log_level: str | None = None
    protocol_version: str | None = None
    """The protocol version of the session; None until the SDK has accepted a tool call or a list of it."""
    direct_requests: CancelScopes = field(default_factory=CancelScopes)
    """The cancel scopes of the direct requests over HTTP, by their ids as the SDK compares ids."""
    wants_progress: bool = False
    is_waiting: bool = True

    @property
    def session_channel(self) -> ClientChannel | None:
        """This session."""
        return self

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification on the session's stream; see `ClientChannel.notify`."""
        if not is_wanted(method, params, self.log_level or LOG_LEVELS[0]):
            return
        with contextlib.suppress(*_CLOSED):
            await self.server_session.send_notification(_build_notification(method, params))

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request on the session's stream; see `ClientChannel.request`."""
        with anyio.move_on_after(self.answer_timeout):
            await self.ready.wait()
        return await _send_request(self.server_session, method, params, None, self.answer_timeout)


class RequestStream(Protocol):
    """The stream of one client request, which carries messages to the client before the result."""

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification, or drop it if the client cannot receive it."""

    async def request(self, method: str, params: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """Send a request and return its result; `seconds` is the timeout.

        Raises:
            RefusedError: The client returned an error or an invalid result, or did not respond in time.
        """


@dataclass(slots=True)
class SdkStream:
    """A stream of the SDK."""

    session: ServerSession
    related_id: types.RequestId | None
    """The id of the client's request with the stream; None: the connection's stream."""
    is_closed: bool = False
    """Whether the client has the result, so that it receives no more messages."""

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification; see `RequestStream.notify`."""
        if not self.is_closed:
            with contextlib.suppress(*_CLOSED):
                await self.session.send_notification(_build_notification(method, params), self.related_id)

    async def request(self, method: str, params: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """Send a request; see `RequestStream.request`."""
        return await _send_request(self.session, method, params, self.related_id, seconds)


@dataclass(slots=True)
class RequestChannel:
    """The channel to a client on the stream of one of its requests."""

    stream: RequestStream
    meta: Mapping[str, Any]
    """The `_meta` of the request."""
    caller: Caller
    session_channel: Session | None
    answer_timeout: float
    """Seconds to wait for the client's response, which may need the user."""
    is_waiting: bool = True

    @property
    def log_level(self) -> str | None:
        """The log level that a 2026-07-28 request names, or that the client has set for its session."""
        if self.caller.is_stateless:
            level = self.meta.get(types.LOG_LEVEL_META_KEY)
            return level if level in LOG_LEVELS else None
        return self.session_channel.log_level if self.session_channel else None

    @property
    def wants_progress(self) -> bool:
        """Whether the request has a progress token."""
        return self.meta.get("progressToken") is not None

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification on the request's stream; see `ClientChannel.notify`."""
        if method == _PROGRESS:
            params = {**params, "progressToken": self.meta.get("progressToken")}
        if is_wanted(method, params, self.log_level or (None if self.caller.is_stateless else LOG_LEVELS[0])):
            await self.stream.notify(method, params)

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request on the request's stream; see `ClientChannel.request`."""
        return await self.stream.request(method, params, self.answer_timeout)


def read_meta(context: Context) -> Mapping[str, Any]:
    """Return the `_meta` of a request; empty if it has none."""
    meta = (context.params or {}).get("_meta")
    return meta if isinstance(meta, Mapping) else {}


def select_relayed_meta(meta: Mapping[str, Any], headers: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the members of a request's `_meta` for the upstream, without credentials of the client.

    Args:
        meta: The `_meta` of the request.
        headers: The HTTP headers of the request, which may contain credentials; None on stdio.
    """
    relayed = {
        key: value
        for key, value in meta.items()
        if key not in _GATEWAY_META_KEYS and key.lower().rpartition("/")[2] not in _CREDENTIALS
    }
    if not relayed or headers is None:
        return relayed
    texts = [headers.get(name, "") for name in _CREDENTIALS]
    secrets = {word for text in texts for word in _SEPARATORS.split(text) if len(word) >= _MIN_SECRET_LENGTH}
    return {
        key: value
        for key, value in relayed.items()
        if not any(secret in json.dumps([key, value], ensure_ascii=False) for secret in secrets)
    }


def is_wanted(method: str, params: Mapping[str, Any], level: str | None) -> bool:
    """Return whether a client wants a notification.

    Args:
        method: The method of the notification.
        params: Its parameters.
        level: The lowest severity of log messages that the client wants; None: no log messages.
    """
    if method != _LOG:
        return True
    severity = params.get("level")
    return level is not None and severity in LOG_LEVELS and LOG_LEVELS.index(severity) >= LOG_LEVELS.index(level)


def read_caller(context: Context, namespace: str, session: str | None) -> Caller:
    """Return the sender of a request, with the capabilities of the request or of its session's handshake.

    Args:
        context: The request.
        namespace: The namespace of the sender.
        session: The key of the session; ignored for 2026-07-28 requests.
    """
    is_stateless = context.protocol_version in MODERN_PROTOCOL_VERSIONS
    if is_stateless:
        declared: Any = read_meta(context).get(types.CLIENT_CAPABILITIES_META_KEY)
    elif context.method == "initialize":
        declared = (context.params or {}).get("capabilities")
    else:
        model = context.session.client_capabilities
        declared = model.model_dump(by_alias=True, mode="json", exclude_none=True) if model else None
    capabilities = dict(declared) if isinstance(declared, Mapping) else {}
    upstream = None if context.request is None else read_upstream(context.request.scope)
    selected = _select_supported(capabilities)
    return Caller(namespace, is_stateless, None if is_stateless else session, selected, upstream=upstream)


def _select_supported(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Return the capabilities that the gateway can relay."""
    supported = {key: value for key, value in capabilities.items() if key not in _UNSUPPORTED_CAPABILITIES}
    extensions = supported.get("extensions")
    if isinstance(extensions, Mapping):
        supported["extensions"] = {key: value for key, value in extensions.items() if key not in UNSUPPORTED_EXTENSIONS}
    return supported


def write_notification(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a notification as the SDK sends them."""
    return _build_notification(method, params).model_dump(by_alias=True, mode="json", exclude_none=True)  # type: ignore[no-any-return]


def write_request(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a request, without its id, as the SDK sends them."""
    return _build_request(method, params).model_dump(by_alias=True, mode="json", exclude_none=True)  # type: ignore[no-any-return]


def read_client_result(method: str, protocol_version: str, result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check the result of a request to a client as the SDK does, and return it.

    Raises:
        RefusedError: The result is not valid in the protocol version.
    """
    try:
        with contextlib.suppress(KeyError):  # the protocol does not define the method
            validate_client_result(method, protocol_version, result)
        return _AnyResult.model_validate(result, by_name=False).model_dump(mode="json")
    except ValidationError:
        raise _invalid_result() from None


def refused_error(error: MCPError) -> RefusedError:
    """Return the error that a client answered a request with."""
    return RefusedError(str(error), error.error.code, error.error.message, error.error.data)


def timeout_error(seconds: float) -> RefusedError:
    """Return the error for a client that has not answered a request in time."""
    message = f"The client has not answered within {seconds:g} s."
    return RefusedError(message, types.REQUEST_TIMEOUT, message)


def _invalid_result() -> RefusedError:
    message = "The client's result is not valid in the protocol."
    return RefusedError(message, types.INTERNAL_ERROR, message)


def _build_notification(method: str, params: Mapping[str, Any]) -> Any:
    return types.Notification[Any, str](method=method, params=dict(params))


def _build_request(method: str, params: Mapping[str, Any]) -> Any:
    return types.Request[Any, str](method=method, params=dict(params) or None)


async def _send_request(
    session: ServerSession, method: str, params: Mapping[str, Any], related_id: types.RequestId | None, seconds: float
) -> Mapping[str, Any]:
    """Send a request to a client through the SDK and return its result.

    Args:
        session: The SDK's session.
        method: The method of the request.
        params: Its parameters.
        related_id: The id of the client's request with the stream to use; None: the session's stream.
        seconds: The timeout.

    Raises:
        RefusedError: The client returned an error or an invalid result, or did not respond in time.
    """
    metadata = None if related_id is None else ServerMessageMetadata(related_request_id=related_id)
    try:
        result = await session.send_request(_build_request(method, params), _AnyResult, seconds, metadata)
    except MCPError as error:
        raise (timeout_error(seconds) if error.error.code == types.REQUEST_TIMEOUT else refused_error(error)) from None
    except ValidationError:
        raise _invalid_result() from None
    return result.model_dump(mode="json")


@dataclass(frozen=True, slots=True)
class AcceptedEnvelope:
    """The contents of an envelope."""

    protocol_version: str
    capabilities: Mapping[str, Any]
    """The client's capabilities."""
    server_session: ServerSession
    """The SDK's session of the request with the envelope, which has the client's connection on stdio."""


class AcceptedEnvelopes:
    """The envelopes of 2026-07-28 tool calls that the SDK has accepted, of all clients.

    An envelope contains the members of a request's `_meta` that MCP reserves: protocol version, client, capabilities
    and log level. Whether the SDK accepts an envelope depends only on its text.
    """

    def __init__(self) -> None:
        self._contents: OrderedDict[Envelope, AcceptedEnvelope] = OrderedDict()

    def add(self, params: Mapping[str, Buffer], context: Context, capabilities: Mapping[str, Any]) -> None:
        """Record the envelope of a tool call."""
        envelope = read_envelope(params.get("_meta", b"{}"))
        if not envelope or sum(len(text) for _, text in envelope) > _MAX_BYTES:
            return
        self._contents[envelope] = AcceptedEnvelope(context.protocol_version, capabilities, context.session)
        if len(self._contents) > _MAX_ENVELOPES:
            self._contents.popitem(last=False)

    def find(self, envelope: Envelope) -> AcceptedEnvelope | None:
        """Return the contents of an envelope; None if the SDK has not accepted it."""
        contents = self._contents.get(envelope)
        if contents is not None:
            self._contents.move_to_end(envelope)
        return contents


def read_envelope(meta: Buffer) -> Envelope:
    """Return the envelope in a request's `_meta`, JSON text."""
    members = open_object(meta) or {}
    return frozenset((key, bytes(text)) for key, text in members.items() if key.startswith(RESERVED))

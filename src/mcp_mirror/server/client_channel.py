"""Channels to a client: on the stream of one request, or on the stream of its session.

A channel relays messages of upstreams with all their members. The SDK routes them to the right stream.
"""

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ConfigDict, ValidationError

from mcp_mirror.callers import LOG_LEVELS, Caller, ClientChannel
from mcp_mirror.errors import RefusedError
from mcp_mirror.gateway.context_budgets import CONVERSATION
from mcp_mirror.payload.json_rpc import MARK

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
_UNSUPPORTED_EXTENSIONS: Final = frozenset({"io.modelcontextprotocol/tasks"})
_LOG: Final = "notifications/message"
_PROGRESS: Final = "notifications/progress"


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
    log_level: str | None = None
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


@dataclass(slots=True)
class RequestChannel:
    """The channel to a client on the stream of one of its requests."""

    context: Context
    caller: Caller
    session_channel: ClientChannel | None
    answer_timeout: float
    """Seconds to wait for the client's response, which may need the user."""
    is_waiting: bool = True

    @property
    def log_level(self) -> str | None:
        """The log level that a 2026-07-28 request names, or that the client has set for its session."""
        if self.caller.is_stateless:
            level = read_meta(self.context).get(types.LOG_LEVEL_META_KEY)
            return level if level in LOG_LEVELS else None
        return self.session_channel.log_level if self.session_channel else None

    @property
    def wants_progress(self) -> bool:
        """Whether the request has a progress token."""
        return self._progress_token is not None

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification on the request's stream; see `ClientChannel.notify`."""
        if method == _PROGRESS:
            params = {**params, "progressToken": self._progress_token}
        if not is_wanted(method, params, self.log_level or (None if self.caller.is_stateless else LOG_LEVELS[0])):
            return
        with contextlib.suppress(*_CLOSED):
            await self.context.session.send_notification(_build_notification(method, params), self.context.request_id)

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request on the request's stream; see `ClientChannel.request`."""
        return await _send_request(self.context.session, method, params, self.context.request_id, self.answer_timeout)

    @property
    def _progress_token(self) -> Any:
        return read_meta(self.context).get("progressToken")


def read_meta(context: Context) -> Mapping[str, Any]:
    """Return the `_meta` of a request; empty if it has none."""
    meta = (context.params or {}).get("_meta")
    return meta if isinstance(meta, Mapping) else {}


def select_relayed_meta(context: Context) -> dict[str, Any]:
    """Return the members of a request's `_meta` for the upstream, without credentials of the client."""
    headers = [] if context.request is None else [context.request.headers.get(name, "") for name in _CREDENTIALS]
    secrets = {word for text in headers for word in _SEPARATORS.split(text) if len(word) >= _MIN_SECRET_LENGTH}
    meta = {
        key: value
        for key, value in read_meta(context).items()
        if key not in _GATEWAY_META_KEYS and key.lower().rpartition("/")[2] not in _CREDENTIALS
    }
    if not secrets:
        return meta
    return {
        key: value
        for key, value in meta.items()
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
        declared = read_meta(context).get(types.CLIENT_CAPABILITIES_META_KEY)
    elif context.method == "initialize":
        declared = (context.params or {}).get("capabilities")
    else:
        model = context.session.client_capabilities
        declared = model.model_dump(by_alias=True, mode="json", exclude_none=True) if model else None
    capabilities = dict(declared) if isinstance(declared, Mapping) else {}
    return Caller(namespace, is_stateless, None if is_stateless else session, _select_supported(capabilities))


def _select_supported(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Return the capabilities that the gateway can relay."""
    supported = {key: value for key, value in capabilities.items() if key not in _UNSUPPORTED_CAPABILITIES}
    extensions = supported.get("extensions")
    if isinstance(extensions, Mapping):
        supported["extensions"] = {
            key: value for key, value in extensions.items() if key not in _UNSUPPORTED_EXTENSIONS
        }
    return supported


def _build_notification(method: str, params: Mapping[str, Any]) -> Any:
    return types.Notification[Any, str](method=method, params=dict(params))


async def _send_request(
    session: ServerSession, method: str, params: Mapping[str, Any], related_id: types.RequestId | None, seconds: float
) -> Mapping[str, Any]:
    """Send a request to a client and return its result.

    Args:
        session: The SDK's session.
        method: The method of the request.
        params: Its parameters.
        related_id: The id of the client's request with the stream to use; None: the session's stream.
        seconds: The timeout.

    Raises:
        RefusedError: The client returned an error or an invalid result, or did not respond in time.
    """
    request: Any = types.Request[Any, str](method=method, params=dict(params) or None)
    metadata = None if related_id is None else ServerMessageMetadata(related_request_id=related_id)
    try:
        result = await session.send_request(request, _AnyResult, seconds, metadata)
    except MCPError as error:
        if error.error.code == types.REQUEST_TIMEOUT:
            message = f"The client has not answered within {seconds:g} s."
            raise RefusedError(message, types.REQUEST_TIMEOUT, message) from None
        raise RefusedError(str(error), error.error.code, error.error.message, error.error.data) from None
    except ValidationError:
        message = "The client's result is not valid in the protocol."
        raise RefusedError(message, types.INTERNAL_ERROR, message) from None
    return result.model_dump(mode="json")

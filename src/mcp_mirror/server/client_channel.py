"""Channels to a client: on the stream of one request, or on the stream of its session.

A channel relays messages of upstreams with all their members.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import anyio
import mcp_types as types
import msgspec
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.methods import validate_client_result
from pydantic import BaseModel, ConfigDict, ValidationError

from mcp_mirror.callers import LOG_LEVELS, Caller, ClientChannel
from mcp_mirror.errors import RefusedError
from mcp_mirror.payload.json_bounds import MAX_INPUT_VALUES, has_more_values
from mcp_mirror.payload.json_rpc import RequestId
from mcp_mirror.server.cancel_scopes import CancelScopes

_CLOSED: Final = (MCPError, anyio.BrokenResourceError, anyio.ClosedResourceError)
_LOG: Final = "notifications/message"
_PROGRESS: Final = "notifications/progress"
_INVALID_RESULT: Final = "The client's result is not valid in the protocol."


ClientResponse = types.JSONRPCResponse | types.JSONRPCError


class _AnyResult(BaseModel):
    model_config = ConfigDict(extra="allow")


class Session(msgspec.Struct, eq=False):
    """A session of a 2025-11-25 client, and the channel to the client between its requests."""

    caller: Caller
    """The client, with the scopes of the token of its last request."""
    server_session: ServerSession
    ready: anyio.Event
    """Set when the client has completed the handshake; earlier requests to it wait."""
    answer_timeout: float
    """Seconds to wait for the client's response, which may need the user."""
    began: float
    asked: anyio.Event = msgspec.field(default_factory=anyio.Event)
    """Set when the first request to the client waits for it, or was sent."""
    log_level: str | None = None
    protocol_version: str | None = None
    """The protocol version of the session; None until its first message after the handshake that the SDK accepted."""
    direct_requests: CancelScopes = msgspec.field(default_factory=CancelScopes)
    """The cancel scopes of the direct requests over HTTP, by their ids as the SDK compares ids."""
    client_responses: "dict[RequestId | None, asyncio.Future[ClientResponse]]" = msgspec.field(default_factory=dict)
    """The responses to requests of direct calls over HTTP that wait for the client, by their ids."""
    open_requests: int = 0
    """The number of requests to the client that wait for it."""
    wants_progress: bool = False
    is_waiting: bool = True

    @property
    def session_channel(self) -> ClientChannel | None:
        """This session."""
        return self

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification on the session's stream; see `ClientChannel.notify`."""
        if is_wanted(method, params, self.log_level or LOG_LEVELS[0]):
            await SdkStream(self.server_session, None).notify(method, params)

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request on the session's stream; see `ClientChannel.request`."""
        self.asked.set()
        with anyio.move_on_after(self.answer_timeout):
            await self.ready.wait()
        return await self.request_on(SdkStream(self.server_session, None), method, params)

    async def request_on(self, stream: "RequestStream", method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request on a stream of the session, and count it while it waits for the client."""
        self.open_requests += 1
        try:
            return await stream.request(method, params, self.answer_timeout)
        finally:
            self.open_requests -= 1

    def awaits_response(self, request_id: RequestId) -> bool:
        """Whether a request with this id may wait for the client. The SDK does not show the ids of its requests."""
        return request_id in self.client_responses or self.open_requests > len(self.client_responses)


class LateSession(msgspec.Struct, frozen=True):
    """The channel between requests to a stdio client that began with `server/discover`.

    Such a client has a session only if it sends `initialize` after that; see `stdio`.
    """

    discovered: Caller
    """The client as it described itself in `server/discover`."""
    find_session: Callable[[], Session | None]
    wants_progress: bool = False
    is_waiting: bool = True

    @property
    def caller(self) -> Caller:
        """The client of the session, else of `server/discover`."""
        return session.caller if (session := self.find_session()) else self.discovered

    @property
    def log_level(self) -> str | None:
        """The log level of the session."""
        return session.log_level if (session := self.find_session()) else None

    @property
    def session_channel(self) -> ClientChannel | None:
        """This channel."""
        return self

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification on the session's stream; drop it without a session."""
        if session := self.find_session():
            await session.notify(method, params)

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request on the session's stream; see `ClientChannel.request`."""
        if (session := self.find_session()) is None:
            raise RefusedError("Send the request during a call: the client has no session.", types.INVALID_REQUEST)
        return await session.request(method, params)


class RequestStream(Protocol):
    """The stream of one client request, which carries messages to the client before the result."""

    @property
    def is_closed(self) -> bool:
        """Whether the client reads no more messages on the stream."""

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification, or drop it if the client cannot receive it."""

    async def request(self, method: str, params: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """Send a request and return its result; `seconds` is the timeout.

        Raises:
            RefusedError: The client returned an error or an invalid result, or did not respond in time.
        """


class SdkStream(msgspec.Struct):
    """A stream of the SDK."""

    session: ServerSession
    related_id: types.RequestId | None
    """The id of the client's request with the stream; None: the connection's stream."""
    is_closed: bool = False
    """Whether the client has the result, so that it receives no more messages."""

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification; see `RequestStream.notify`."""
        if not self.is_closed:
            notification: Any = types.Notification[Any, str](method=method, params=dict(params))
            with contextlib.suppress(*_CLOSED):
                await self.session.send_notification(notification, self.related_id)

    async def request(self, method: str, params: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """Send a request; see `RequestStream.request`."""
        metadata = None if self.related_id is None else ServerMessageMetadata(related_request_id=self.related_id)
        request: Any = types.Request[Any, str](method=method, params=dict(params) or None)
        try:
            result = await self.session.send_request(request, _AnyResult, seconds, metadata)
        except MCPError as error:
            has_timed_out = error.error.code == types.REQUEST_TIMEOUT
            raise (timeout_error(seconds) if has_timed_out else refused_error(error)) from None
        except ValidationError:
            raise RefusedError(_INVALID_RESULT, types.INTERNAL_ERROR) from None
        return result.model_dump(mode="json")


class RequestChannel(msgspec.Struct):
    """The channel to a client on the stream of one of its requests."""

    stream: RequestStream
    meta: Mapping[str, Any]
    """The `_meta` of the request."""
    caller: Caller
    session_channel: Session | None
    answer_timeout: float
    """Seconds to wait for the client's response, which may need the user."""

    @property
    def is_waiting(self) -> bool:
        """Whether the client has neither the result nor disconnected."""
        return not self.stream.is_closed

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
        if self.session_channel is None:
            return await self.stream.request(method, params, self.answer_timeout)
        return await self.session_channel.request_on(self.stream, method, params)


def is_wanted(method: str, params: Mapping[str, Any], level: str | None) -> bool:
    """Return whether a client wants a notification; `level` is the lowest severity of its log messages, None: none."""
    if method != _LOG:
        return True
    severity = params.get("level")
    return level is not None and severity in LOG_LEVELS and LOG_LEVELS.index(severity) >= LOG_LEVELS.index(level)


def read_client_result(method: str, protocol_version: str, result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check the result of a request to a client as the SDK does, and return it.

    Raises:
        RefusedError: The result is not valid in the protocol version, or it has too many values.
    """
    if has_more_values(msgspec.json.encode(result), MAX_INPUT_VALUES):
        message = f"The client's answer has more than {MAX_INPUT_VALUES:,} members and items."
        raise RefusedError(message, types.INTERNAL_ERROR)
    try:
        with contextlib.suppress(KeyError):  # the protocol does not define the method
            validate_client_result(method, protocol_version, result)
        return _AnyResult.model_validate(result, by_name=False).model_dump(mode="json")
    except ValidationError:
        raise RefusedError(_INVALID_RESULT, types.INTERNAL_ERROR) from None


def refused_error(error: MCPError) -> RefusedError:
    """Return the error that a client answered a request with."""
    return RefusedError(str(error), error.error.code, error.error.message, error.error.data)


def timeout_error(seconds: float) -> RefusedError:
    """Return the error for a client that has not answered a request in time."""
    return RefusedError(f"The client has not answered within {seconds:g} s.", types.REQUEST_TIMEOUT)

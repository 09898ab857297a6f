"""The ways back to a client: on the stream of a request, or on its session's own.

What is passed on is passed on with all that the other side wrote; the SDK sees that it reaches the right stream.
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

from mcp_mirror.callers import LEVELS, Caller, ClientChannel
from mcp_mirror.errors import RefusedError
from mcp_mirror.gateway.context_budgets import CONVERSATION
from mcp_mirror.payload.json_rpc import MARK

Context = ServerRequestContext[Any, Any]

_CLOSED: Final = (MCPError, anyio.BrokenResourceError, anyio.ClosedResourceError)
_OURS: Final = frozenset(
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
"""Members of `_meta` that are between a client and us; what else it says there is for the upstream."""
_CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key", "dpop"})
"""Headers, and members of `_meta` that stand for them, by which a client shows us who it is."""
_WORDS: Final = re.compile(r"[\s;,=]+")
_SHORTEST_SECRET: Final = 8
"""Characters: shorter words stand in many texts."""
_NOT_RELAYED: Final = frozenset({"tasks"})
_EXTENSIONS_NOT_RELAYED: Final = frozenset({"io.modelcontextprotocol/tasks"})
_LOG: Final = "notifications/message"
_PROGRESS: Final = "notifications/progress"


class _Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


@dataclass(slots=True, eq=False)
class Session:
    """A connection of the 2025 era, which outlives its requests; the way to its client between them."""

    caller: Caller
    """With the rights of the token that came last."""
    server_session: ServerSession
    ready: anyio.Event
    """Set when the client has said that it is: nothing is asked of it before."""
    answer_timeout: float
    """Seconds that the user's answer may take."""
    log_level: str | None = None
    wants_progress: bool = False
    is_waiting: bool = True

    @property
    def session_channel(self) -> ClientChannel | None:
        """Itself."""
        return self

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Pass a notification on, on the session's own stream."""
        if not is_wanted(method, params, self.log_level or LEVELS[0]):
            return
        with contextlib.suppress(*_CLOSED):
            await self.server_session.send_notification(_notification(method, params))

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask on the session's own stream; see `ClientChannel.request`."""
        with anyio.move_on_after(self.answer_timeout):
            await self.ready.wait()
        return await _ask(self.server_session, method, params, None, self.answer_timeout)


@dataclass(slots=True)
class RequestChannel:
    """The way back on one request's own stream."""

    context: Context
    caller: Caller
    session_channel: ClientChannel | None
    answer_timeout: float
    """Seconds that the user's answer may take."""
    is_waiting: bool = True

    @property
    def log_level(self) -> str | None:
        """What the request asks for, or what its session was told."""
        if self.caller.is_stateless:
            level = meta_of(self.context).get(types.LOG_LEVEL_META_KEY)
            return level if level in LEVELS else None
        return self.session_channel.log_level if self.session_channel else None

    @property
    def wants_progress(self) -> bool:
        """Whether the request has a progress token."""
        return self._token is not None

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Pass a notification on, on the request's stream."""
        if method == _PROGRESS:
            params = {**params, "progressToken": self._token}
        if not is_wanted(method, params, self.log_level or (None if self.caller.is_stateless else LEVELS[0])):
            return
        with contextlib.suppress(*_CLOSED):
            await self.context.session.send_notification(_notification(method, params), self.context.request_id)

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask on the request's stream; see `ClientChannel.request`."""
        return await _ask(self.context.session, method, params, self.context.request_id, self.answer_timeout)

    @property
    def _token(self) -> Any:
        return meta_of(self.context).get("progressToken")


def meta_of(context: Context) -> Mapping[str, Any]:
    """A request's `_meta`, as it came."""
    meta = (context.params or {}).get("_meta")
    return meta if isinstance(meta, Mapping) else {}


def passed_on(context: Context) -> dict[str, Any]:
    """What of a request's `_meta` is for the upstream: nothing by which the client shows us who it is."""
    shown = [] if context.request is None else [context.request.headers.get(name, "") for name in _CREDENTIALS]
    secrets = {word for text in shown for word in _WORDS.split(text) if len(word) >= _SHORTEST_SECRET}
    meta = {key: value for key, value in meta_of(context).items() if key not in _OURS}
    named = {key: value for key, value in meta.items() if key.lower().rpartition("/")[2] not in _CREDENTIALS}
    if not secrets:
        return named
    return {
        key: value
        for key, value in named.items()
        if not any(word in json.dumps([key, value], ensure_ascii=False) for word in secrets)
    }


def is_wanted(method: str, params: Mapping[str, Any], level: str | None) -> bool:
    """Whether a client wants a notification: of log lines those from a level on, of the others all."""
    if method != _LOG:
        return True
    severity = params.get("level")
    return level is not None and severity in LEVELS and LEVELS.index(severity) >= LEVELS.index(level)


def read_caller(context: Context, namespace: str, session: str | None) -> Caller:
    """Who makes a request, from what it says, or what its connection began with."""
    modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
    if modern:
        said = meta_of(context).get(types.CLIENT_CAPABILITIES_META_KEY)
    elif context.method == "initialize":
        said = (context.params or {}).get("capabilities")
    else:
        declared = context.session.client_capabilities
        said = declared.model_dump(by_alias=True, mode="json", exclude_none=True) if declared else None
    capabilities = dict(said) if isinstance(said, Mapping) else {}
    return Caller(namespace, modern, None if modern else session, _relayed(capabilities))


def _relayed(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """What of a client's capabilities works through us."""
    kept = {key: value for key, value in capabilities.items() if key not in _NOT_RELAYED}
    extensions = kept.get("extensions")
    if isinstance(extensions, Mapping):
        kept["extensions"] = {key: value for key, value in extensions.items() if key not in _EXTENSIONS_NOT_RELAYED}
    return kept


def _notification(method: str, params: Mapping[str, Any]) -> Any:
    return types.Notification[Any, str](method=method, params=dict(params))


async def _ask(
    session: ServerSession, method: str, params: Mapping[str, Any], request_id: types.RequestId | None, seconds: float
) -> Mapping[str, Any]:
    request: Any = types.Request[Any, str](method=method, params=dict(params) or None)
    metadata = None if request_id is None else ServerMessageMetadata(related_request_id=request_id)
    try:
        answer = await session.send_request(request, _Anything, seconds, metadata)
    except MCPError as error:
        if error.error.code == types.REQUEST_TIMEOUT:
            said = f"The client has not answered within {seconds:g} s."
            raise RefusedError(said, types.REQUEST_TIMEOUT, said) from None
        raise RefusedError(str(error), error.error.code, error.error.message, error.error.data) from None
    except ValidationError:
        said = "The client answered with something that is not of the protocol's form."
        raise RefusedError(said, types.INTERNAL_ERROR, said) from None
    return answer.model_dump(mode="json")

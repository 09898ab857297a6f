"""Client channels that wrap another channel: the base class, and one that checks the token's scopes each time."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcp_mirror.callers import Caller, ClientChannel
from mcp_mirror.errors import RefusedError

_INVALID_REQUEST: Final = -32600


@dataclass(frozen=True, slots=True)
class ChannelProxy:
    """A client channel that forwards everything to another channel."""

    channel: ClientChannel

    @property
    def caller(self) -> Caller:
        """See `ClientChannel.caller`."""
        return self.channel.caller

    @property
    def log_level(self) -> str | None:
        """See `ClientChannel.log_level`."""
        return self.channel.log_level

    @property
    def wants_progress(self) -> bool:
        """See `ClientChannel.wants_progress`."""
        return self.channel.wants_progress

    @property
    def is_waiting(self) -> bool:
        """See `ClientChannel.is_waiting`."""
        return self.channel.is_waiting

    @property
    def session_channel(self) -> ClientChannel | None:
        """See `ClientChannel.session_channel`."""
        return self.channel.session_channel

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Forward a notification."""
        await self.channel.notify(method, params)

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Forward a request; see `ClientChannel.request`."""
        return await self.channel.request(method, params)


@dataclass(frozen=True, slots=True)
class ScopedChannel(ChannelProxy):
    """The channel of a session for an upstream with required scopes: later tokens of the session may have fewer."""

    required: Collection[str]
    """The scopes that the upstream requires."""

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Forward a notification if the session's current token has the scopes."""
        if self.caller.has_scopes(self.required):
            await self.channel.notify(method, params)

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Forward a request if the session's current token has the scopes; see `ClientChannel.request`.

        Raises:
            RefusedError: The token lacks a scope, or the client answered with an error.
        """
        if not self.caller.has_scopes(self.required):
            message = f"The client cannot receive {method} now."
            raise RefusedError(message, _INVALID_REQUEST, message)
        return await self.channel.request(method, params)


def require_scopes(channel: ClientChannel | None, required: Collection[str]) -> ClientChannel | None:
    """Return a channel that works only while its session's token has the required scopes."""
    return ScopedChannel(channel, required) if channel is not None and required else channel

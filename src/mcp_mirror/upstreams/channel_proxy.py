"""Ways back to a client that let less through: what all of them pass on, and who may have lost the right to hear."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcp_mirror.callers import Caller, ClientChannel
from mcp_mirror.errors import RefusedError

_INVALID_REQUEST: Final = -32600


@dataclass(frozen=True, slots=True)
class ChannelProxy:
    """The way back to a client, as another one has it."""

    channel: ClientChannel

    @property
    def caller(self) -> Caller:
        """Whose it is."""
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
        """Pass a notification on."""
        await self.channel.notify(method, params)

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask the client; see `ClientChannel.request`."""
        return await self.channel.request(method, params)


@dataclass(frozen=True, slots=True)
class ScopedChannel(ChannelProxy):
    """The way to a session that outlives its requests, and goes on with a token that may be good for less."""

    required: Collection[str]
    """The scopes that the upstream takes."""

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Pass a notification on to who may know of the upstream now."""
        if self.caller.has_scopes(self.required):
            await self.channel.notify(method, params)

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask who may know of the upstream now; see `ClientChannel.request`.

        Raises:
            RefusedError: It may not, or as `ClientChannel.request` has it.
        """
        if not self.caller.has_scopes(self.required):
            said = f"The client cannot be asked {method} now."
            raise RefusedError(said, _INVALID_REQUEST, said)
        return await self.channel.request(method, params)


def scoped(home: ClientChannel | None, required: Collection[str]) -> ClientChannel | None:
    """The way to a session, as long as it may know of an upstream that takes these scopes."""
    return ScopedChannel(home, required) if home is not None and required else home

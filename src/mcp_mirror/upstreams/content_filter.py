"""The way back to a client for an upstream whose values are hidden, and its errors in our own words."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import mcp_types as types

from mcp_mirror.callers import ClientChannel
from mcp_mirror.errors import RefusedError, ToolError
from mcp_mirror.upstreams.channel_proxy import ChannelProxy
from mcp_mirror.upstreams.fields import rebuild_code, rebuild_data, rebuild_notification, rebuild_request

_SAMPLING: Final = "sampling/createMessage"


@dataclass(frozen=True, slots=True)
class ContentFilteredChannel(ChannelProxy):
    """The way back to a client for such an upstream."""

    hidden: Callable[[], bool] = lambda: True
    """Whether values are hidden now: a flow policy may change."""

    @property
    def log_level(self) -> str | None:
        """None: log lines are not passed on."""
        return None if self.hidden() else self.channel.log_level

    @property
    def session_channel(self) -> ClientChannel | None:
        """See `ClientChannel.session_channel`."""
        return (
            ContentFilteredChannel(self.channel.session_channel, self.hidden) if self.channel.session_channel else None
        )

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Pass a notification on, rebuilt."""
        rebuilt = rebuild_notification(method, params, hidden=True) if self.hidden() else params
        if rebuilt is not None:
            await self.channel.notify(method, rebuilt)

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask the client; see `ClientChannel.request`. Its model is not asked.

        Raises:
            RefusedError: The model would be asked.
        """
        return await self.channel.request(method, rebuild_request(method, params) if self.hidden() else params)


def filter_content(channel: ClientChannel | None, *, may_show: bool) -> ClientChannel | None:
    """The way back to a client, as far as an upstream's words may go there."""
    return channel if may_show or channel is None or is_filtered(channel) else ContentFilteredChannel(channel)


def is_filtered(channel: ClientChannel | None) -> bool:
    """Whether an upstream's words are hidden from this client now."""
    return isinstance(channel, ContentFilteredChannel) and channel.hidden()


def check_questions(requests: Iterable[Mapping[str, Any]]) -> None:
    """Refuse what would go to a model.

    Raises:
        RefusedError: Something would.
    """
    if any(request["method"] == _SAMPLING for request in requests):
        rebuild_request(_SAMPLING, {})


def unsaid(upstream: str, what: str, code: int, data: object = None) -> RefusedError:
    """A JSON-RPC error in our own words. A client that lacks a capability gets its name; a URL to open is left out."""
    code = rebuild_code(code)
    said = f"Upstream {upstream!r} refused {what} (error {code}). Its words are not shown (`preview: false`)."
    if code == types.URL_ELICITATION_REQUIRED:
        said = f"{said} It wants the user to open a page. Ask the user to use this server directly for that."
        code = types.INTERNAL_ERROR  # clients expect the address in the data of the other code
    refusal = RefusedError(said, code, said, rebuild_data(code, data, hidden=True))
    return refusal.with_log_message(refused(upstream, code))


def refused(upstream: str, code: int) -> str:
    """What a log may say of such an error, whoever may see its words."""
    return f"Upstream {upstream!r} refused a request (error {code})."


@contextmanager
def hide_error_text(*, preview: bool) -> Iterator[None]:
    """What an upstream says in an error may repeat what it was given: where that may not be shown, it is not said.

    Raises:
        ToolError: In its place.
    """
    try:
        yield
    except RefusedError as error:
        if preview or is_for_client(error):
            raise
        said = "Its words are not shown: they may repeat a value that may not be (`preview: false`)."
        raise ToolError(f"{error.log_message} {said}") from None


def is_for_client(error: RefusedError) -> bool:
    """Whether a client acts on it: a capability or a URL elicitation is wanted, or its answers do not fit."""
    wanted = (types.MISSING_REQUIRED_CLIENT_CAPABILITY, types.URL_ELICITATION_REQUIRED)
    return error.code in wanted or error.data == {"reason": "invalid_request_state"}

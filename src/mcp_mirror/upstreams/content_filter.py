"""Hides the text of upstreams from models (`preview: false`, a flow policy): in messages to clients and in errors."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import mcp_types as types
import msgspec

from mcp_mirror.callers import Caller, ClientChannel
from mcp_mirror.errors import RefusedError
from mcp_mirror.upstreams.rebuilt_messages import rebuild_code, rebuild_data, rebuild_notification, rebuild_request

_SHOWN_METHODS: Final = ("elicitation/create", "roots/list")
"""The requests to clients that no model reads."""


class ContentFilteredChannel(msgspec.Struct, frozen=True):
    """A client channel that removes an upstream's text from notifications, and refuses requests to the model."""

    channel: ClientChannel
    is_content_hidden: Callable[[], bool] = lambda: True
    """Whether content is hidden now: a flow policy may change."""
    required: Collection[str] = ()
    """The scopes that the upstream requires. Later tokens of a session may have fewer than the first one."""

    @property
    def caller(self) -> Caller:
        """See `ClientChannel.caller`."""
        return self.channel.caller

    @property
    def log_level(self) -> str | None:
        """None while content is hidden: log lines are not forwarded."""
        return None if self.is_content_hidden() else self.channel.log_level

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
        channel = self.channel.session_channel
        return ContentFilteredChannel(channel, self.is_content_hidden, self.required) if channel else None

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Forward a notification, rebuilt without content, if the client's current token has the scopes."""
        rebuilt = rebuild_notification(method, params, is_content_hidden=True) if self.is_content_hidden() else params
        if rebuilt is not None and self.caller.has_scopes(self.required):
            await self.channel.notify(method, rebuilt)

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Forward a request, rebuilt with the fields that a person needs; see `ClientChannel.request`.

        Raises:
            RefusedError: The client's model would read the request, or the client's current token lacks a scope.
        """
        if not self.caller.has_scopes(self.required):
            raise RefusedError(f"The client cannot receive {method} now.", types.INVALID_REQUEST)
        return await self.channel.request(
            method, rebuild_request(method, params) if self.is_content_hidden() else params
        )


def filter_content(channel: ClientChannel) -> ClientChannel:
    """Return the channel, wrapped in a content filter unless it has one."""
    return channel if is_filtered(channel) else ContentFilteredChannel(channel)


def is_filtered(channel: ClientChannel | None) -> bool:
    """Whether the channel hides an upstream's text now."""
    return isinstance(channel, ContentFilteredChannel) and channel.is_content_hidden()


def refuse_sampling(requests: Iterable[Mapping[str, Any]]) -> None:
    """Check that none of a server's requests goes to the client's model.

    Raises:
        RefusedError: One is a sampling request, or has a method that MCP does not have: its name may be a value.
    """
    for request in requests:
        if request["method"] not in _SHOWN_METHODS:
            rebuild_request(request["method"], {})


def build_hidden_refusal(upstream: str, what: str, code: int, data: object) -> RefusedError:
    """Return an upstream's JSON-RPC error without its text.

    The error names a missing client capability. It leaves out the URL of a URL elicitation.
    """
    code = rebuild_code(code)
    message = f"Upstream {upstream!r} refused {what} (error {code}). Its message is hidden (`preview: false`)."
    if code == types.URL_ELICITATION_REQUIRED:
        message = f"{message} It wants the user to open a page. Ask the user to use this server directly for that."
        code = types.INTERNAL_ERROR  # clients expect the address in the data of the other code
    refusal = RefusedError(message, code, data=rebuild_data(code, data, is_content_hidden=True))
    return refusal.with_log_message(refusal_log_line(upstream, code))


def refusal_log_line(upstream: str, code: int) -> str:
    """Return the log line of an upstream's JSON-RPC error, without the upstream's text."""
    return f"Upstream {upstream!r} refused a request (error {code})."


def is_for_client(error: RefusedError) -> bool:
    """Whether clients handle the error: a missing capability, a required URL elicitation, or an invalid state."""
    required = (types.MISSING_REQUIRED_CLIENT_CAPABILITY, types.URL_ELICITATION_REQUIRED)
    return error.code in required or error.data == {"reason": "invalid_request_state"}

"""Requests of a session with the id of one that the SDK has not answered yet, such as a call that its client repeats.

Of two requests with one id the SDK answers only one. So it gets the later one under another id, which the client does
not see.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex
from typing import Final

import mcp_types as types
import msgspec
from mcp.shared.dispatcher import coerce_request_id

from mcp_mirror.payload.json_rpc import RequestId
from mcp_mirror.server.cancel_scopes import find_cancelled_id

_PREFIX: Final = "repeated-"


class RepeatedIds:
    """The ids of the requests that the SDK answers."""

    def __init__(self) -> None:
        self._open: defaultdict[tuple[str, RequestId], list[RequestId]] = defaultdict(list)
        """The SDK's ids of the open requests by their session and their id, the latest one last."""

    @contextmanager
    def replaced(
        self, message: types.JSONRPCMessage, session: str
    ) -> Iterator[tuple[types.JSONRPCMessage, tuple[bytes, bytes] | None]]:
        """Give the SDK a message in the context; without a session, messages do not share ids.

        Yields:
            The message for the SDK; and the id in its response with the one of the client that must replace it, both
            as JSON text, or None if they are the same.
        """
        if not session or not isinstance(message, types.JSONRPCRequest):
            yield self._replace_cancelled(message, session), None
            return
        key = session, coerce_request_id(message.id)
        is_first = not self._open.get(key)
        used = message.id if is_first else _PREFIX + token_hex(16)
        self._open[key].append(used)
        try:
            if is_first:
                yield message, None
            else:
                ids = msgspec.json.encode(used), msgspec.json.encode(message.id)
                yield message.model_copy(update={"id": used}), ids
        finally:
            self._open[key].remove(used)
            if not self._open[key]:
                del self._open[key]

    def _replace_cancelled(self, message: types.JSONRPCMessage, session: str) -> types.JSONRPCMessage:
        """Return a message that cancels the latest request with its id; any other message unchanged."""
        cancelled = find_cancelled_id(message)
        ids = None if cancelled is None else self._open.get((session, cancelled))
        if not ids or not isinstance(message, types.JSONRPCNotification):
            return message
        return message.model_copy(update={"params": {**(message.params or {}), "requestId": ids[-1]}})

"""The payloads of our own faces on their way past the SDK.

A call's arguments are lifted out of the message before the SDK sees it, and a result's members are spliced into
the message that the SDK writes: what passes through goes out as the bytes that came in.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from mcp_mirror.models import Buffer, Segments
from mcp_mirror.wire import MARK, Marked, find_mark, lift_arguments, open_message, splice

_KEPT: Final = 600.0
"""Seconds after which a result that was never written (its caller had gone) is dropped."""
_SDK_OWNS: Final = frozenset({"_meta", "resultType", "ttlMs", "cacheScope"})
"""Members of a result that depend on the client's protocol era."""


class Postbox:
    """Holds arguments between a message's arrival and its handler, and results between handler and sending."""

    def __init__(self) -> None:
        self._arguments: dict[str, Buffer] = {}
        self._results: OrderedDict[str, tuple[float, Mapping[str, Segments]]] = OrderedDict()

    def inbound(self, frame: Buffer) -> Buffer:
        """The message for the SDK: a call without its arguments, anything else as it came.

        Raises:
            WireError: The frame is no JSON-RPC message.
        """
        token = secrets.token_hex(16)
        lifted = lift_arguments(open_message(frame), token)
        if lifted is None:
            return frame
        self._arguments[token] = lifted.members["arguments"]
        return lifted.stub

    def arguments(self, meta: Mapping[str, Any] | None, parsed: Mapping[str, Any] | None) -> Buffer:
        """The arguments of a call, as they came; as the SDK parsed them where they did not come through here."""
        kept = self._arguments.pop(str((meta or {}).get(MARK)), None)
        return msgspec.json.encode(parsed or {}) if kept is None else kept

    def stub(self, stub: Mapping[str, Any], members: Mapping[str, Buffer | Segments]) -> dict[str, Any]:
        """A result for the SDK to write, into which the members are put on its way out."""
        now = time.monotonic()
        while self._results and next(iter(self._results.values()))[0] < now - _KEPT:
            self._results.popitem(last=False)
        token = secrets.token_hex(16)
        pieces = {key: value if isinstance(value, tuple) else (value,) for key, value in members.items()}
        self._results[token] = (now, {key: value for key, value in pieces.items() if key not in _SDK_OWNS})
        return {**stub, "_meta": {**stub.get("_meta", {}), MARK: token}}

    def outbound(self, frame: bytes) -> Segments:
        """The bytes to send for a message of the SDK's."""
        marked = find_mark(frame)
        return (frame,) if marked is None else self._spliced(marked, frame)

    def _spliced(self, marked: Marked, frame: bytes) -> Segments:
        kept = self._results.pop(marked.token, None)
        return (frame,) if kept is None else splice(marked, kept[1])

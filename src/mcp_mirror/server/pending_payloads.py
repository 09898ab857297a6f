"""The payloads of our own faces on their way past the SDK.

A request's parameters are lifted out of the message before the SDK sees it, and a result's members are spliced into
the message that the SDK writes: what passes through goes out as the bytes that came in.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from mcp_mirror.errors import ToolError
from mcp_mirror.payload.json_rpc import (
    MARK,
    Marked,
    check_envelope,
    check_request,
    find_mark,
    lift_params,
    open_message,
    splice,
)
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.types import Buffer, Segments

_KEPT: Final = 600.0
"""Seconds after which a call that was never answered in writing (its caller had gone) is dropped."""
_SDK_OWNS: Final = frozenset({"_meta", "resultType", "ttlMs", "cacheScope", "requestState"})
"""Members of a result that depend on the client's protocol era, or that the SDK writes."""


@dataclass(slots=True)
class _PendingPayload:
    """One request: its parameters until its handler takes them, then its result until that is written."""

    since: float
    params: Mapping[str, Buffer] | None = None
    result: Mapping[str, Segments] | None = None


class PendingPayloads:
    """Holds parameters between a message's arrival and its handler, and results between handler and sending."""

    def __init__(self, limits: WirePolicy | None = None) -> None:
        self._limits = limits or WirePolicy()
        self._letters: OrderedDict[str, _PendingPayload] = OrderedDict()

    def __len__(self) -> int:
        """How many requests' payloads are held."""
        return len(self._letters)

    def inbound(self, frame: Buffer) -> tuple[Buffer, str | None]:
        """The message for the SDK, and the token of the letter that holds a request's parameters meanwhile.

        Raises:
            WireError: The frame is no JSON-RPC message, or past a bound.
        """
        token = secrets.token_hex(16)
        check_request(frame)
        lifted = lift_params(open_message(frame, self._limits.max_depth), token)
        check_envelope(frame if lifted is None else lifted.stub, self._limits.max_envelope_bytes)
        if lifted is None:
            return frame, None
        self._keep(token, _PendingPayload(time.monotonic(), params=lifted.members))
        return lifted.stub, token

    def params(self, meta: Mapping[str, Any], parsed: Mapping[str, Any] | None) -> Mapping[str, Buffer]:
        """The parameters of a request, as they came; as the SDK parsed them where they did not come through here.

        Raises:
            ToolError: They were dropped, for their caller had gone.
        """
        token = meta.get(MARK)
        if token is None:
            return {key: msgspec.json.encode(value) for key, value in (parsed or {}).items()}
        letter = self._letters.get(str(token))
        if letter is None or letter.params is None:
            raise ToolError("What this request said is gone, for its caller is. Make it again.")
        params, letter.params = letter.params, None
        return params

    def stub(
        self,
        stub: Mapping[str, Any],
        members: Mapping[str, Buffer | Segments],
        meta: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """A result for the SDK to write, into which the members are put on its way out.

        Args:
            stub: What the SDK is to see of it.
            members: The members that it is not to see.
            meta: The call's own, where it was one: with it, the result goes where the arguments came from.
        """
        pieces = {key: value if isinstance(value, tuple) else (value,) for key, value in members.items()}
        kept = {key: value for key, value in pieces.items() if key not in _SDK_OWNS}
        token = str((meta or {}).get(MARK) or "")
        if not token:
            token = secrets.token_hex(16)
            self._keep(token, _PendingPayload(time.monotonic(), result=kept))
        elif letter := self._letters.get(token):  # else its caller has gone, and so will the stub
            letter.result = kept
        return {"resultType": "complete", **stub, "_meta": {**stub.get("_meta", {}), MARK: token}}

    def outbound(self, frame: bytes) -> Segments:
        """The bytes to send for a message of the SDK's."""
        marked = find_mark(frame)
        return (frame,) if marked is None else self._spliced(marked, frame)

    def discard(self, token: str | None) -> None:
        """Forget a request whose caller gets no answer any more."""
        self._letters.pop(token or "", None)

    def _spliced(self, marked: Marked, frame: bytes) -> Segments:
        letter = self._letters.pop(marked.token, None)
        return (frame,) if letter is None or letter.result is None else splice(marked, letter.result)

    def _keep(self, token: str, letter: _PendingPayload) -> None:
        while self._letters and next(iter(self._letters.values())).since < letter.since - _KEPT:
            oldest, held = next(iter(self._letters.items()))
            if held.params is None and held.result is None:  # its handler is at work still
                self._letters.move_to_end(oldest)
                held.since = letter.since
                continue
            del self._letters[oldest]
        self._letters[token] = letter

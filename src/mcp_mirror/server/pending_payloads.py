"""Payloads of client requests that bypass the SDK.

The transports lift a request's parameters out of the message before the SDK parses it, and splice a result's members
into the message that the SDK writes. Payloads therefore leave the gateway as the same bytes that it received.
"""

import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import mcp_types as types
import msgspec
from mcp.shared.exceptions import MCPError

from mcp_mirror.core.replies import ToolResult
from mcp_mirror.errors import ToolError, UpstreamError, WireError
from mcp_mirror.payload.framing import DiscardedFrame
from mcp_mirror.payload.json_bounds import has_more_values, is_deeper
from mcp_mirror.payload.json_rpc import MAX_MEMBERS, PAYLOAD_MARK, contiguous, find_mark, is_input_required, splice
from mcp_mirror.payload.spool import Frame, SpooledFrame
from mcp_mirror.server.client_channel import Session
from mcp_mirror.server.sdk_messages import drop_unawaited_result, read_sdk_message
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.types import Buffer, Segments
from mcp_mirror.workers.frame_jobs import lift
from mcp_mirror.workers.frames import FrameScanner

_MAX_AGE: Final = 600.0
"""Seconds after which the payload of a request without a written response is dropped (its client disconnected)."""
_SDK_MEMBERS: Final = frozenset({"_meta", "resultType", "ttlMs", "cacheScope", "requestState"})
"""Members of a result that depend on the client's protocol version, or that the SDK writes."""
_HINTS: Final = ("_meta", "ttlMs", "cacheScope")
"""Members of an upstream's result that the SDK writes."""
_NOT_RELAYED: Final = frozenset({types.SERVER_INFO_META_KEY, "io.modelcontextprotocol/related-task"})
"""Members of an upstream's `_meta` that do not apply to the gateway: its server, and the task of the call."""
_MAX_META_BYTES: Final = 1 << 16
"""Bytes of a result's `_meta` that the gateway relays to clients."""
_MAX_DEPTH: Final = 240
"""Levels of nesting of such a member. pydantic writes 255, with those of the message around it."""


class _PendingPayload(msgspec.Struct):
    """The payload of one request: its parameters, nothing while the handler works, and then its result."""

    since: float
    """Monotonic seconds."""
    params: Mapping[str, Buffer] | None = None
    """Until the handler takes them."""
    result: Mapping[str, Segments] | None = None
    """Until the transport writes it."""

    @property
    def is_in_handler(self) -> bool:
        """Whether the handler works on the request."""
        return self.params is None and self.result is None


class LiftedMessage(msgspec.Struct, frozen=True):
    """A message of a client, without its payload."""

    stub: bytes
    """The text of the message for the SDK."""
    message: types.JSONRPCMessage
    """The message that the SDK makes of it."""
    token: str | None = None
    """The token of the pending parameters; None if the message has no parameters."""


def payload_of(members: Mapping[str, Buffer | Segments]) -> dict[str, Segments]:
    """Return the members of a result that bypass the SDK."""
    return {
        key: value if isinstance(value, tuple) else (value,)
        for key, value in members.items()
        if key not in _SDK_MEMBERS
    }


def sdk_part(empty: Mapping[str, Any], reply: ToolResult) -> dict[str, Any]:
    """Return the part of a result that the SDK writes.

    The SDK writes all of an input-required result, because it encrypts the `requestState`.
    """
    parsed = {key: _parse(reply[key]) for key in _HINTS if key in reply and _is_small(reply[key])}
    meta = parsed.pop("_meta", None)
    if isinstance(meta, dict):
        parsed["_meta"] = {key: value for key, value in meta.items() if key not in _NOT_RELAYED}
    if is_input_required(reply):
        members = ("resultType", "inputRequests", "requestState")
        empty = {key: _parse(reply[key]) for key in members if key in reply}
    return {**empty, **{key: value for key, value in parsed.items() if value is not None}}


def _is_small(member: Buffer | Segments) -> bool:
    """Return whether the SDK can write a member of a result; larger and deeper ones are dropped."""
    text = contiguous(member)
    is_short = len(text) <= _MAX_META_BYTES and not has_more_values(text, MAX_MEMBERS)
    return is_short and not is_deeper(text, _MAX_DEPTH)


def _parse(member: Buffer | Segments) -> Any:
    """Return the value of a JSON text; None for an invalid one."""
    try:
        return json.loads(bytes(contiguous(member)))
    except (ValueError, RecursionError):
        return None


class PendingPayloads:
    """Keeps parameters between arrival and handler, and results between handler and transport, by a random token."""

    def __init__(self, limits: WirePolicy, scanner: FrameScanner) -> None:
        self.limits = limits
        self._scanner = scanner
        self._payloads: OrderedDict[str, _PendingPayload] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of requests with pending payloads."""
        return len(self._payloads)

    async def lift_params(self, frame: Frame, principal: str, session: Session | None = None) -> LiftedMessage:
        """Lift the parameters out of a request, and the result out of a long response that the session does not await.

        A worker process reads a message in a file, which is not needed afterwards. Principals share these fairly.

        Raises:
            MCPError: The frame is not a JSON-RPC message, is over a limit, for which it may have been discarded, or
                could not be read, because the worker process died or was needed for another principal.
        """
        if isinstance(frame, DiscardedFrame):
            code = types.PARSE_ERROR if frame.failure is None else types.INTERNAL_ERROR
            raise MCPError(code, frame.explain())
        token, limits = secrets.token_hex(16), self.limits
        try:
            if isinstance(frame, SpooledFrame):
                lifted = await self._scanner.lift(frame, token, limits, principal)
            else:
                lifted = lift(frame, token, limits.max_depth, limits.max_envelope_bytes)
        except (WireError, UpstreamError) as error:
            code = types.PARSE_ERROR if isinstance(error, WireError) else types.INTERNAL_ERROR
            raise MCPError(code, str(error)) from None
        if lifted is None:
            whole = bytes(frame.view) if isinstance(frame, SpooledFrame) else frame
            stub = drop_unawaited_result(whole, session, limits.max_depth)
            return LiftedMessage(stub, read_sdk_message(stub))
        message = read_sdk_message(lifted.stub)
        self._keep(token, _PendingPayload(time.monotonic(), params=lifted.members))
        return LiftedMessage(lifted.stub, message, token)

    def take_params(self, meta: Mapping[str, Any], parsed: Mapping[str, Any] | None) -> Mapping[str, Buffer]:
        """Take the parameters of a request by the token in `meta`; without a token, as the SDK parsed them.

        Returns:
            The JSON text of each parameter, as the client sent it; no `arguments` if these are null.

        Raises:
            ToolError: The parameters were dropped, because the client disconnected.
        """
        token = meta.get(PAYLOAD_MARK)
        if token is None:
            given = (parsed or {}).items()
            return {key: msgspec.json.encode(value) for key, value in given if (key, value) != ("arguments", None)}
        payload = self._payloads.get(str(token))
        if payload is None or payload.params is None:
            raise ToolError("The client disconnected, so the request was dropped. Retry it.")
        params, payload.params = payload.params, None
        return params

    def keep_result(
        self, stub: Mapping[str, Any], members: Mapping[str, Buffer | Segments], meta: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Keep the members of a result until the SDK has written its stub.

        The stub is the result without these members. `meta` is the `_meta` of the request, if the result belongs to one
        with pending parameters.

        Returns:
            The stub with a token in `_meta`; `splice_result` replaces the token by the members.
        """
        result = payload_of(members)
        token = str((meta or {}).get(PAYLOAD_MARK) or "")
        if not token:
            token = secrets.token_hex(16)
            self._keep(token, _PendingPayload(time.monotonic(), result=result))
        elif payload := self._payloads.get(token):  # else the client disconnected, and the SDK drops the stub too
            payload.result, payload.since = result, time.monotonic()  # the call may have taken longer than `_MAX_AGE`
            self._payloads.move_to_end(token)
        return {"resultType": "complete", **stub, "_meta": {**stub.get("_meta", {}), PAYLOAD_MARK: token}}

    def splice_result(self, frame: bytes) -> Segments:
        """Return a message of the SDK with the pending result in place of its stub."""
        if (marked := find_mark(frame)) is None:
            return (frame,)
        payload = self._payloads.pop(marked.token, None)
        return (frame,) if payload is None or payload.result is None else splice(marked, payload.result)

    def discard(self, token: str | None) -> None:
        """Drop the payload of a request that gets no response."""
        self._payloads.pop(token or "", None)

    def _keep(self, token: str, payload: _PendingPayload) -> None:
        """Add a payload, and drop those that are too old."""
        while self._payloads:
            oldest_token, oldest = next(iter(self._payloads.items()))
            if oldest.since >= payload.since - _MAX_AGE:
                break
            if oldest.is_in_handler:
                self._payloads.move_to_end(oldest_token)
                oldest.since = payload.since
            else:
                del self._payloads[oldest_token]
        self._payloads[token] = payload

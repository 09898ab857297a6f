"""A result read once: what of it is stored, what the model sees, and the notice, in one pure step.

The step is the same for a result in memory and for a whole frame in a file, which a process of its own reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

import msgspec

from mcp_mirror.core.capture import Captured, CaptureRules, Decode, Estimate, capture, decode_text
from mcp_mirror.core.notice import NoticeInput, write_notice
from mcp_mirror.errors import WireError
from mcp_mirror.payload.json_rpc import bound_error, is_input_required, open_message
from mcp_mirror.settings.limits import MAX_DEPTH
from mcp_mirror.settings.policies import NoticeStyle, TokenProvider
from mcp_mirror.tokens import expected_estimator, upper_estimator
from mcp_mirror.types import Buffer, Draft

MAX_INDEXED_KEYS: Final = 10_000
"""Top-level keys whose places are kept with a value; those after them are looked for when they are asked for."""


class Visibility(Enum):
    """What the model may see of a result, and of its upstream's other words."""

    FULL = "full"
    METADATA = "metadata"
    """Type, size and keys by position: a value that went into the call may not be previewed."""
    PATH_ONLY = "path only"
    """The memory path: the flow policy hides the result, or its conversation has no room for more."""


@dataclass(frozen=True, slots=True)
class ProcessingOptions:
    """How one call's result is processed."""

    rules: CaptureRules
    style: NoticeStyle
    tool: str
    arguments: bytes
    """As the model gave them, a JSON object."""
    base: str
    """Of the value, should there be one to store."""
    companion_base: str
    """Of what else the result says."""
    max_key_bytes: int
    provider: TokenProvider = "default"
    """Whose tokens the budgets are."""
    max_depth: int = MAX_DEPTH
    """Levels of nesting that the message may have."""
    visibility: Visibility = Visibility.FULL
    """What the model may see of the result."""
    is_upper_bound: bool = False
    """The budgets are bounds of what a conversation has room for, and not what a model is expected to read."""

    @property
    def estimate(self) -> Estimate:
        """Tokens of a text, as the budgets mean them."""
        return (upper_estimator if self.is_upper_bound else expected_estimator)(self.provider)

    def without_preview(self) -> "ProcessingOptions":
        """Return options for a result whose stored value may not be previewed."""
        return replace(self, rules=replace(self.rules, preview=False))

    def path_only(self) -> "ProcessingOptions":
        """Return options for a result that is stored whatever the mode, and of which the model sees the path."""
        rules = replace(self.rules, mode="always", inline_budget=0, error_budget=0, passes=False)
        return replace(self, rules=rules, style="opaque", visibility=Visibility.PATH_ONLY)


@dataclass(frozen=True, slots=True)
class ProcessedResult:
    """What a result came to."""

    members: Mapping[str, Buffer]
    """The result as it came."""
    captured: Captured
    notice: str = ""

    @property
    def ifc(self) -> object:
        """What `_meta.ifc` of the result says of its labels, as JSON read; None where it says nothing."""
        meta = self.members.get("_meta")
        if not meta and self.captured.envelope == b"{}":
            return None
        return read_ifc(meta or _ENVELOPE.decode(self.captured.envelope).meta)


class _Envelope(msgspec.Struct):
    meta: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"), name="_meta")


class _Meta(msgspec.Struct):
    ifc: msgspec.Raw = msgspec.Raw(b"null")


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)
_META: Final = msgspec.json.Decoder(_Meta)
_LARGEST_IFC: Final = 1 << 16
"""Bytes of labels that are read."""


def read_ifc(meta: Buffer | msgspec.Raw) -> object:
    """`ifc` of a result's `_meta`, as JSON read; None where it says nothing, and a text where it cannot be read."""
    try:
        ifc = _META.decode(meta).ifc
        return msgspec.json.decode(ifc) if len(memoryview(ifc)) <= _LARGEST_IFC else "unreadable"
    except msgspec.ValidationError:  # no object
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "unreadable"


@dataclass(frozen=True, slots=True)
class RejectedFrame:
    """The upstream answered with a JSON-RPC error."""

    code: int
    message: str


def process_result(
    members: Mapping[str, Buffer], order: ProcessingOptions, estimate: Estimate, decode: Decode = decode_text
) -> ProcessedResult:
    """Read a result.

    Raises:
        WireError: It is none, or a key of the value is past its bound.
    """
    if not _is_result(members):
        raise WireError("It is no tool result: `content` must be an array and `isError` true or false.")
    captured = capture(members, order.rules, estimate, decode)
    if not order.rules.preview:
        members = _unshown(captured)
    if (value := captured.value) is None:
        return ProcessedResult(members, captured)
    if captured.in_order and order.style == "compact":  # a text may speak of the picture above it
        captured = replace(captured, shown="", passed=captured.in_order)
    _check_keys(value, order.max_key_bytes)
    notice = _write_notice(value, captured, order, estimate)
    indexed = replace(value, members=value.members[:MAX_INDEXED_KEYS])
    return ProcessedResult(members, replace(captured, value=indexed), notice)


def process_frame(
    frame: Buffer, order: ProcessingOptions, estimate: Estimate, decode: Decode = decode_text
) -> ProcessedResult | RejectedFrame:
    """Read a whole response that was not looked at yet.

    Raises:
        WireError: It is no JSON-RPC response, or past a bound.
    """
    members = read_result_members(frame, order.max_depth)
    return members if isinstance(members, RejectedFrame) else process_result(members, order, estimate, decode)


def read_result_members(frame: Buffer, max_depth: int = MAX_DEPTH) -> Mapping[str, Buffer] | RejectedFrame:
    """The members of the result in a whole response that was not looked at yet.

    Raises:
        WireError: It is no JSON-RPC response.
    """
    message = open_message(frame, max_depth)
    if not isinstance(message.error, msgspec.UnsetType):
        try:
            error = msgspec.json.decode(message.error, type=_Error)
        except msgspec.ValidationError:
            raise WireError("Its error is not of JSON-RPC's form: a code and a message.") from None
        return RejectedFrame(error.code, bound_error(error.message))
    if isinstance(message.result, msgspec.UnsetType):
        raise WireError("The message is no response: it has neither a result nor an error.")
    if is_input_required(message.result):
        raise WireError("It asks for input in a message that is too large for a question.")
    return {key: memoryview(raw) for key, raw in message.result.items()}


class _Error(msgspec.Struct):
    code: int
    message: str


def _unshown(captured: Captured) -> Mapping[str, Buffer]:
    """What stands for a result of which nothing may be shown, where its notice does not: it is empty, or not stored."""
    if captured.value is None:
        return {"content": b"[]", "isError": b"true" if captured.is_error else b"false"}
    block = {"type": "text", "text": _LOST}
    return {"content": msgspec.json.encode([block]), "isError": b"true"}


_LOST: Final = (
    "The tool was called. Its result could not be stored, and may not be shown (`preview: false`). Try again later."
)


def _is_result(members: Mapping[str, Buffer]) -> bool:
    """Whether clients can read it: the SDK has seen no more than a stub of it."""
    is_error = bytes(members.get("isError", b"false")[:6])
    return bytes(members.get("content", b"[]")[:1]) == b"[" and is_error in (b"true", b"false")


def _check_keys(value: Draft, max_key_bytes: int) -> None:
    longest = max((len(member.key) for member in value.members), default=0)
    if longest > max_key_bytes:
        raise WireError(f"A key of {longest:,} characters is over `limits.max_key_bytes` ({max_key_bytes:,}).")


def _write_notice(value: Draft, captured: Captured, order: ProcessingOptions, estimate: Estimate) -> str:
    content_base = order.companion_base if captured.companion else order.base
    stored = NoticeInput(
        path=order.base,
        tool=order.tool,
        arguments=order.arguments,
        blob=value.blob,
        kind=value.kind,
        estimate=estimate,
        members=value.members,
        shown=captured.shown,
        companion=order.companion_base if captured.named else None,
        media=tuple((f"{content_base}{place}", what) for place, what in captured.media),
        error=captured.error,
        preview=value.preview,
        is_error=captured.is_error,
    )
    return write_notice(stored, order.style)

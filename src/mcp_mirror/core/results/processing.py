"""Processes a result in one pure step: decides what is stored, what the model sees, and writes the notice.

The same step processes a result in memory and a whole frame in a file, which a worker process reads.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

import msgspec

from mcp_mirror.core.results.capture import CaptureRules, capture
from mcp_mirror.core.results.captured import Captured
from mcp_mirror.core.results.notice import write_notice
from mcp_mirror.core.results.notice_keys import NoticeInput
from mcp_mirror.core.results.parsed_result import PARTS
from mcp_mirror.core.value_sizes import Estimate
from mcp_mirror.errors import WireError
from mcp_mirror.paths import FixedBases, NewBases
from mcp_mirror.payload.json_rpc import (
    is_input_required,
    object_of,
    open_message,
    open_object,
    open_server_message,
    read_error,
)
from mcp_mirror.payload.json_spans import first_members, trim
from mcp_mirror.payload.scans import Keep, Scans
from mcp_mirror.settings.limits import MAX_DEPTH
from mcp_mirror.settings.policies import NoticeStyle, TokenProvider
from mcp_mirror.tokens import expected_estimator, upper_estimator
from mcp_mirror.types import Buffer, Draft

QUOTED_BYTES: Final = 1 << 10
"""Bytes of the arguments that a notice may quote."""
MAX_INDEXED_KEYS: Final = 10_000
"""Top-level keys whose spans are indexed with a value; spans of further keys are found on demand."""


class Visibility(Enum):
    """The parts of a result, and of its upstream's other texts, that the model may see."""

    FULL = "full"
    METADATA = "metadata"
    """Type, size and keys by position, because a value in the call's arguments may not be previewed."""
    PATH_ONLY = "path only"
    """Only the memory path, because the flow policy hides the result or the context window has no room for more."""


class ProcessingOptions(msgspec.Struct, frozen=True):
    """How to process the result of one call."""

    rules: CaptureRules
    style: NoticeStyle
    tool: str
    arguments: bytes
    """The arguments as the model wrote them, a JSON object."""
    bases: NewBases | FixedBases
    """The bases of the value and its companion if they are stored."""
    max_key_bytes: int
    provider: TokenProvider = "default"
    """The provider whose tokenizer the budgets refer to."""
    max_depth: int = MAX_DEPTH
    """Maximum nesting depth of the message."""
    visibility: Visibility = Visibility.FULL
    """The parts of the result that the model may see."""
    is_upper_bound: bool = False
    """The budgets are upper bounds for a context window rather than expected tokens."""

    @property
    def estimate(self) -> Estimate:
        """The estimate of tokens that the budgets refer to."""
        return (upper_estimator if self.is_upper_bound else expected_estimator)(self.provider)

    def path_only(self) -> "ProcessingOptions":
        """The options for a result that is stored in every mode, and of which the model sees only the path."""
        return msgspec.structs.replace(
            self, rules=self.rules.store_all(), style="opaque", visibility=Visibility.PATH_ONLY
        )


class ProcessedResult(msgspec.Struct, frozen=True):
    """A processed result."""

    members: Mapping[str, Buffer]
    captured: Captured
    notice: str = ""

    @property
    def ifc(self) -> object:
        """The labels in `_meta.ifc` of the result as parsed JSON; None if it has none."""
        meta = self.members.get("_meta")
        if not meta and self.captured.other_members == b"{}":
            return None
        return read_ifc(meta or _OTHER_MEMBERS.decode(self.captured.other_members).meta)


class _OtherMembers(msgspec.Struct):
    meta: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"), name="_meta")


class _Meta(msgspec.Struct):
    ifc: msgspec.Raw = msgspec.Raw(b"null")


_OTHER_MEMBERS: Final = msgspec.json.Decoder(_OtherMembers)
_META: Final = msgspec.json.Decoder(_Meta)
_MAX_IFC_BYTES: Final = 1 << 16
"""Maximum bytes of `_meta.ifc`."""
_MAX_OTHER_MEMBERS_BYTES: Final = 1 << 16
"""Bytes of the members that are stored with a value, beside those that locate it. Quotas do not count them."""


def read_ifc(meta: Buffer | msgspec.Raw) -> object:
    """`ifc` of a result's `_meta` as parsed JSON; None if absent, the text `unreadable` if malformed or too large."""
    try:
        ifc = _META.decode(meta).ifc
        return msgspec.json.decode(ifc) if len(memoryview(ifc)) <= _MAX_IFC_BYTES else "unreadable"
    except msgspec.ValidationError:  # not an object
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "unreadable"


def bound_other_members(other_members: bytes) -> bytes:
    """The other members of a result, without those that are too large to be stored with its value.

    Of a `_meta` that is too large, the flow labels remain.
    """
    if len(other_members) <= _MAX_OTHER_MEMBERS_BYTES:
        return other_members
    members, room = open_object(other_members) or {}, _MAX_OTHER_MEMBERS_BYTES
    kept: dict[str, Buffer] = {}
    for key, raw in sorted(members.items(), key=lambda member: len(member[1])):
        room -= len(key) + len(raw)
        if room >= 0 or key == PARTS:
            kept[key] = raw
        elif key == "_meta":
            kept[key] = msgspec.json.encode({"ifc": read_ifc(raw)})
    return b"".join(object_of(kept))


class RejectedFrame(msgspec.Struct, frozen=True):
    """The upstream returned a JSON-RPC error."""

    code: int
    message: str


def process_result(
    members: Mapping[str, Buffer], options: ProcessingOptions, scans: Scans | None = None
) -> ProcessedResult:
    """Process the members of a result. `scans` decides where decoded texts are kept.

    Raises:
        WireError: The members are not a valid result, or a key of the value is longer than the limit.
    """
    if not _is_result(members):
        members = {key: raw for key, raw in members.items() if bytes(raw[:5]) != b"null"}  # as if left out
        if not _is_result(members) or members.keys().isdisjoint(("content", "structuredContent")):
            raise WireError("The message is not a tool result: `content` must be an array and `isError` true or false.")
    scans, estimate = scans or Scans(), options.estimate
    captured = capture(members, options.rules, estimate, scans)
    if not options.rules.preview:
        members = _replace_members(captured)
    if (value := captured.value) is None:
        return ProcessedResult(members, captured)
    if captured.in_order and options.style == "compact":  # a text may refer to the image above it
        captured = msgspec.structs.replace(captured, shown="", passed=captured.in_order)
    _check_keys(value, options.max_key_bytes)
    stored = NoticeInput(
        value, captured, options.bases, options.tool, options.arguments, estimate, count_items=scans.count_items
    )
    notice = write_notice(stored, options.style)
    kept = msgspec.structs.replace(captured, value=bound_index(value), in_order=(), media=())  # the notice has the rest
    return ProcessedResult(members, kept, notice)


def bound_index(value: Draft) -> Draft:
    """The value with the first of its members: those whose spans are indexed with it."""
    return msgspec.structs.replace(value, members=first_members(value.members, MAX_INDEXED_KEYS))


def process_frame(frame: Buffer, options: ProcessingOptions, keep: Keep = b"".join) -> ProcessedResult | RejectedFrame:
    """Parse a whole response frame and process its result; `keep` keeps a decoded text that may contain JSON.

    Raises:
        WireError: The frame is not a JSON-RPC response or exceeds a limit.
    """
    scans = Scans(keep)
    members = read_result_members(frame, options.max_depth, scans)
    return members if isinstance(members, RejectedFrame) else process_result(members, options, scans)


def read_result_members(
    frame: Buffer, max_depth: int = MAX_DEPTH, scans: Scans | None = None
) -> Mapping[str, Buffer] | RejectedFrame:
    """Parse a whole response frame and return the members of its result.

    `scans` receives the scan of the frame's large array or string; None: the frame is parsed as a whole.

    Raises:
        WireError: The frame is not a JSON-RPC response, or nested deeper than `max_depth`.
    """
    if scans and max_depth == MAX_DEPTH:
        scanned = _read_scanned_members(frame, scans)
        if scanned is not None:
            return scanned
    message, _ = open_server_message(frame, max_depth, is_on_loop=False)
    if not isinstance(message.result, dict):
        if isinstance(message.error, msgspec.UnsetType):
            raise WireError("The message is not a response: it has neither a result nor an error.")
        return RejectedFrame(*read_error(message.error))
    members = {key: memoryview(raw) for key, raw in message.result.items()}
    if is_input_required(members):
        raise WireError("The response asks for input, but is too large for an input-required result.")
    return members


def _read_scanned_members(frame: Buffer, scans: Scans) -> Mapping[str, Buffer] | None:
    """The members of a valid result with one large array or string, scanned once; None for any other frame."""
    scanned = scans.scan(frame)
    if scanned is None:
        return None
    try:
        message = open_message(scanned.skeleton)
    except WireError:
        return None
    whole = next((one.span for one in scanned.members(trim(frame)) if one.key == "result"), None)
    is_result = isinstance(message.error, msgspec.UnsetType) and isinstance(message.result, dict)
    if not is_result or whole is None or not scanned.contains_hidden(whole):
        return None
    members = scans.slice_members(scanned, scanned.members(whole))
    return None if is_input_required(members) else members


def _replace_members(captured: Captured) -> Mapping[str, Buffer]:
    """The members that replace a result without preview if it has no notice: it is empty or cannot be stored."""
    if captured.value is None:
        return {"content": b"[]", "isError": b"true" if captured.is_error else b"false"}
    block = {"type": "text", "text": _NOT_STORED}
    return {"content": msgspec.json.encode([block]), "isError": b"true"}


_NOT_STORED: Final = (
    "The tool was called. Its result could not be stored, and may not be shown (`preview: false`). Try again later."
)


def _is_result(members: Mapping[str, Buffer]) -> bool:
    """Whether clients can read the result; the SDK has parsed only a stub of it."""
    is_error = bytes(members.get("isError", b"false")[:6])
    return bytes(members.get("content", b"[]")[:1]) == b"[" and is_error in (b"true", b"false")


def _check_keys(value: Draft, max_key_bytes: int) -> None:
    longest = max((len(member.key) for member in value.members), default=0)
    if longest > max_key_bytes:
        raise WireError(
            f"A key has {longest:,} characters, more than `limits.max_key_bytes` ({max_key_bytes:,}) allows."
        )

"""JSON-RPC frames: lift a payload out of a frame, splice a payload into one.

This module never parses a payload: one typed pass splits a frame into its members and keeps each as the received
bytes. The SDK gets a stub of the same message; a *mark* in the stub's `_meta` names the payload that belongs to it.
This module must not know transports or where payloads are kept.
"""

import codecs
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from mcp_mirror.errors import WireError
from mcp_mirror.payload.json_bounds import is_deeper, locate_excess_depth
from mcp_mirror.payload.json_strings import replace_half_pairs
from mcp_mirror.settings.limits import MAX_DEPTH
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer, Segments

PAYLOAD_MARK: Final = "mcp-mirror/payload"
"""The `_meta` member by which a stub names the payload that was lifted out of it."""

RequestId = int | str
T = TypeVar("T")

_MARK_BYTES: Final = PAYLOAD_MARK.encode()
_SMALL: Final = 1 << 16
_INTERNAL_ERROR: Final = -32603
_LONGEST_ERROR: Final = 1 << 20
"""Characters of an error message that are passed on."""

_ID_FIRST: Final = lazy_pattern(
    rb'\s*\{\s*(?:"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*,\s*)*"id"\s*:\s*(-?[0-9]{1,18}|"(?:[^"\\]++|\\.)*+")\s*[,}]'
)
_METHOD_FIRST: Final = lazy_pattern(
    rb'\s*\{\s*(?:"(?:jsonrpc|id)"\s*:\s*(?:"(?:[^"\\]++|\\.)*+"|-?[0-9]{1,18})\s*,\s*)*"method"\s*:\s*"([!#-\[\]-~]*)"'
)
_ID_LAST: Final = lazy_pattern(rb'"id"\s*:\s*(-?[0-9]{1,18}|"(?:[^"\\]++|\\.)*+")\s*\}\s*\Z')


_OBJECT_START: Final = lazy_pattern(rb'\s*\{\s*"')
_MESSAGE_START: Final = lazy_pattern(rb'\{\s*"(?:jsonrpc|id|method|result|error)"\s*:')
"""The beginning of a message, by its first member."""
_RESPONSE_HEAD: Final = (
    rb'\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*|"id"\s*:\s*(?:-?[0-9]{1,18}|"(?:[^"\\]++|\\.)*+")\s*,\s*)*'
    rb'"(?:result|error)"\s*:'
)
_RESPONSE: Final = lazy_pattern(rb"\s*" + _RESPONSE_HEAD)
_RESPONSE_START: Final = lazy_pattern(_RESPONSE_HEAD + rb"\s*\{")
"""The beginning of a response, by its first members."""
_MAX_STARTS: Final = 16
"""Braces at which a response may begin in a line with other text before it."""

_CHECK_STEP: Final = 1 << 18
"""Bytes per step of the UTF-8 check: the text of a step stays in the processor's cache."""
RESERVE: Final = 150
"""Levels of nesting in reserve, so that a frame parsed here can also be parsed from a deeper stack."""

_SHALLOW: Final = 400
"""Opening brackets with which a message can be parsed from any stack depth."""
_EXACT_BYTES: Final = 1 << 18 if sys.version_info >= (3, 12) else 0
"""Bytes up to which the depth is counted for the largest limit too.

In larger messages, counting costs too much, and the parser refuses deep ones: in Python 3.11 at the recursion limit,
for which `MAX_DEPTH` is chosen, in 3.12 and 3.13 at about ten thousand levels, and from 3.14 on at the end of the
thread's stack.
"""

_HINTS: Final = (
    (lazy_pattern(rb"\A\xef\xbb\xbf"), "It begins with a byte order mark"),
    (lazy_pattern(rb"(?<=[:,\[])\s*-?(?:NaN|Infinity)"), "NaN and Infinity are not JSON numbers"),
    (
        lazy_pattern(rb"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]"),
        "A string contains half of a surrogate pair",
    ),
)
"""Causes that the parser's messages do not name."""
_MAX_REPAIRED: Final = 1 << 22
"""Bytes of a message that is repaired in the event loop, which takes at most 60 ms."""
_MAX_SURROGATES: Final = 10_000
"""Escapes of surrogates in such a message."""
_HINTED: Final = 32
"""Bytes before and after the parser's position in which these causes are searched."""
_POSITION: Final = lazy_pattern(r"\(byte ([0-9]+)\)")


MAX_MEMBERS: Final = 1000
"""Members of a result that are kept separately. Beyond it, all members that MCP does not define are one piece."""
RESULT_MEMBERS: Final = frozenset(
    {"_meta", "cacheScope", "completion", "content", "contents", "description", "inputRequests", "isError", "messages"}
    | {"nextCursor", "requestState", "resultType", "structuredContent", "ttlMs"}
)
"""The members of results that MCP defines."""


class Message(msgspec.Struct, frozen=True):
    """One JSON-RPC message, split into members that are the received bytes."""

    id: RequestId | msgspec.UnsetType | None = msgspec.UNSET
    method: str | msgspec.UnsetType = msgspec.UNSET
    params: dict[str, msgspec.Raw] | msgspec.UnsetType | None = msgspec.UNSET
    result: dict[str, msgspec.Raw] | msgspec.UnsetType | None = msgspec.UNSET
    """Null in errors of JSON-RPC 1.0."""
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_DECODER: Final = msgspec.json.Decoder(Message)
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_ANY: Final = msgspec.json.Decoder(msgspec.Raw)
_ENCODE: Final = msgspec.json.Encoder().encode


def open_message(frame: Buffer, max_depth: int = MAX_DEPTH) -> Message:
    """Split a frame into its members; more levels of nesting than `max_depth` are an error.

    Raises:
        WireError: The frame is not JSON, is nested too deep, or is not a JSON-RPC message object.
    """
    try:
        _check_encoding(frame)
        text = bytes(frame) if len(frame) <= _SMALL else b""
        if text and text.count(b"[") + text.count(b"{") <= min(_SHALLOW, max_depth):  # as most messages
            return _DECODER.decode(frame)
        if (max_depth < MAX_DEPTH or len(frame) <= _EXACT_BYTES) and is_deeper(frame, max_depth):
            raise RecursionError  # noqa: TRY301  # handled as that of the parser
        return run_deep(partial(_DECODER.decode, frame), RESERVE)
    except RecursionError:
        where = locate_excess_depth(frame, max_depth)
        raise WireError(
            f"The message is nested too deep: {where} it has more than {max_depth} levels (`limits.max_depth`)."
        ) from None
    except msgspec.ValidationError as error:
        raise WireError(f"The message is not a JSON-RPC object: {error}.") from None
    except msgspec.DecodeError as error:
        raise WireError(f"The message is not valid JSON: {error}.{_find_hint(frame, str(error))}") from None


def open_server_message(
    frame: Buffer, max_depth: int = MAX_DEPTH, *, is_on_loop: bool = True
) -> tuple[Message, Buffer]:
    """Split a frame of an upstream into its members; return the frame too, which may have been repaired.

    Servers in JavaScript cut texts within an emoji and send half of a surrogate pair as an escape. The escape of U+FFFD
    replaces it, as JavaScript does when it encodes a text as UTF-8. While the event loop waits (`is_on_loop`), very
    large frames are not repaired.

    Raises:
        WireError: As by `open_message`.
    """
    try:
        return open_message(frame, max_depth), frame
    except WireError as error:
        if "surrogate" not in str(error) or (is_on_loop and not _is_quickly_repaired(frame)):
            raise
        repaired = replace_half_pairs(bytes(frame))
        return open_message(repaired, max_depth), repaired


def _is_quickly_repaired(frame: Buffer) -> bool:
    if len(frame) > _MAX_REPAIRED:
        return False
    text = bytes(frame)
    return text.count(b"\\ud") + text.count(b"\\uD") <= _MAX_SURROGATES


def _find_hint(frame: Buffer, error: str) -> str:
    """The cause of a parser's error, if it is one of `_HINTS`, as a sentence after a space."""
    position = _POSITION.search(error)
    at = int(position[1]) if position else len(frame)  # the text ends in the middle of a value
    for pattern, cause in _HINTS:
        if match := pattern.search(frame, max(0, at - _HINTED), at + _HINTED):
            return f" {cause} (byte {match.start():,})."
    return ""


def _check_encoding(frame: Buffer) -> None:
    """Check that all of a frame is UTF-8; WireError if not. The parser checks only the few parts that it decodes."""
    if isinstance(frame, bytes) and frame.isascii():
        return
    view, at = memoryview(frame), 0
    while at < len(view):
        try:
            at += codecs.utf_8_decode(view[at : at + _CHECK_STEP], "strict", at + _CHECK_STEP >= len(view))[1]
        except UnicodeDecodeError as error:
            where = at + error.start
            raise WireError(f"The message is not valid JSON: it is not UTF-8 at byte {where:,}.") from None


def run_deep(work: Callable[[], T], reserve: int) -> T:
    """Run work that decodes from a deeper stack, since the parser counts nesting on the interpreter's stack."""
    return run_deep(work, reserve - 1) if reserve else work()


def open_object(text: Buffer) -> dict[str, Buffer] | None:
    """The members of a JSON object as received bytes (the last of a repeated key); None for any other text."""
    try:
        return {key: memoryview(raw) for key, raw in _OBJECT.decode(text).items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def open_array(text: Buffer) -> list[Buffer] | None:
    """The items of a JSON array as received bytes; None for any other text."""
    try:
        return [memoryview(raw) for raw in _ARRAY.decode(text)]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def open_items(text: Buffer) -> list[Buffer]:
    """The items of a listing as received bytes; none of `null` and `{}`, as which some languages write an empty list.

    Raises:
        WireError: The text is another one.
    """
    if (items := open_array(text)) is not None:
        return items
    if bytes(text[:5]).strip() in (b"null", b"{}"):
        return []
    raise WireError("The list is not an array.")


def is_json(text: Buffer) -> bool:
    """Whether UTF-8 text is JSON, without an object for each of its values."""
    try:
        _ANY.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


def is_input_required(result: Mapping[str, Buffer | Segments]) -> bool:
    """Whether a result asks the client for input (`resultType: input_required` of 2026-07-28)."""
    kind = result.get("resultType")
    return kind is not None and bytes(memoryview(contiguous(kind))[:20]) == b'"input_required"'


def find_response(line: bytes) -> int | None:
    """Where a whole response begins in a line that begins with other text; None if the line does not end with one.

    Requests and notifications are not found: such a line is more likely a log that quotes what the server received.
    """
    at = 0
    for _ in range(_MAX_STARTS if b'"jsonrpc"' in line else 0):
        if (at := line.find(b"{", at + 1, _SMALL)) < 0:
            break
        try:
            message = open_message(line[at:])
        except WireError:
            continue
        is_response = isinstance(message.result, dict) or isinstance(message.error, msgspec.Raw)
        if is_response and isinstance(message.id, int | str) and not isinstance(message.method, str):
            return at
    return None


def find_begun_response(head: bytes) -> int | None:
    """Where a response begins in a line that begins with other text, by the first bytes of a long line.

    Only responses with `jsonrpc` in these bytes are found. Whether the rest of the line is one is not examined.
    """
    if _OBJECT_START.match(head) or b'"jsonrpc"' not in head:
        return None
    begun = _MESSAGE_START.search(head)
    return begun.start() if begun and _RESPONSE_START.match(head, begun.start()) else None


def recover_id(frame: Buffer) -> RequestId | None:
    """The id of a message that could not be parsed, if it is the first or the last member."""
    first = recover_first_id(frame)
    return recover_last_id(frame[-_SMALL:]) if first is None else first


def recover_first_id(head: Buffer) -> RequestId | None:
    """The id of a message that begins with these bytes, if it is the first member and has at most 64 kB."""
    match = _ID_FIRST.match(head, 0, _SMALL)
    return _decode_scalar(match[1]) if match else None


def recover_last_id(end: Buffer) -> RequestId | None:
    """The id of a message that ends with these bytes, if it is the last member."""
    match = _ID_LAST.search(end)
    return _decode_scalar(match[1]) if match else None


def begins_response(head: Buffer) -> bool:
    """Whether a message that could not be parsed begins as a response does."""
    return _RESPONSE.match(head, 0, _SMALL) is not None


def recover_method(frame: Buffer) -> str | None:
    """The method of a request or notification that could not be parsed, if it comes before `params`."""
    match = _METHOD_FIRST.match(frame, 0, _SMALL)
    return str(match[1], "ascii") if match else None


class Lifted(msgspec.Struct, frozen=True):
    """A message without its payload: the SDK gets `stub`, the gateway gets `members`."""

    stub: bytes
    members: Mapping[str, Buffer]


class _Error(msgspec.Struct):
    """An error object, whose members a server may write with any types."""

    code: Any = None
    message: Any = None


def bound_error(message: str) -> str:
    """An error's message, shortened to its beginning and end if it has over a million characters."""
    half = _LONGEST_ERROR // 2
    return message if len(message) <= _LONGEST_ERROR else f"{message[:half]}\n...\n{message[-half:]}"


def read_error(error: Buffer | msgspec.Raw) -> tuple[int, str]:
    """The code and the shortened message of a response's error, as far as it has them; WireError if it has neither."""
    read = decode_as(memoryview(error), _Error | str)
    found = read if isinstance(read, _Error) else _Error(message=read)
    code = found.code if type(found.code) is int else None
    message = found.message if isinstance(found.message, str) else ""
    if code is None and not message:
        raise WireError("The error of the response is not a JSON-RPC error with a code and a message.")
    return _INTERNAL_ERROR if code is None else code, bound_error(message) or "It gave no message."


_PASSED_ON: Final = frozenset({"tools/call", "prompts/get", "resources/read", "completion/complete"})
"""The client requests that are passed on with all their members."""


def lift_params(message: Message, token: str) -> Lifted | None:
    """Lift the parameters out of a request that is passed on, and mark the stub with `token`; None for other messages.

    The stub of a tool call has no arguments; other stubs keep the parameters, which the SDK checks.
    """
    if message.method not in _PASSED_ON or not isinstance(message.params, dict):
        return None
    if not isinstance(message.id, int | str):
        return None
    members: dict[str, Buffer] = {key: memoryview(raw) for key, raw in message.params.items()}
    if bytes(members.get("arguments", b"{}")[:1]) != b"{":
        return None
    meta = open_object(members.get("_meta", b"{}"))
    if meta is None and bytes(members["_meta"]) != b"null":
        return None
    params = {**members, "_meta": b"".join(object_of({**(meta or {}), PAYLOAD_MARK: _ENCODE(token)}))}
    if message.method == "tools/call":
        params["arguments"] = b"{}"
    request = {"jsonrpc": b'"2.0"', "id": _ENCODE(message.id), "method": _ENCODE(message.method)}
    return Lifted(b"".join(object_of({**request, "params": object_of(params)})), members)


class Marked(msgspec.Struct, frozen=True):
    """An outgoing response, and the mark of the payload that belongs into its result."""

    token: str
    envelope: Mapping[str, Buffer]
    """The members of the message without the result."""
    result: Mapping[str, Buffer]
    """The result without the mark."""


def find_mark(frame: Buffer) -> Marked | None:
    """Find the mark of an outgoing frame; None for a frame without one."""
    if _MARK_BYTES not in bytes(frame):
        return None
    envelope = open_object(frame) or {}
    result = open_object(envelope.pop("result", b"null")) or {}
    meta = open_object(result.get("_meta", b"null")) or {}
    token = _decode_scalar(meta.pop(PAYLOAD_MARK, b"null"))
    if not isinstance(token, str):
        return None
    if meta:
        result["_meta"] = b"".join(object_of(meta))
    else:
        del result["_meta"]
    return Marked(token, envelope, result)


def _decode_scalar(scalar: Buffer) -> RequestId | None:
    """An id or a token; None for anything else."""
    found: RequestId | None = decode_as(scalar, int | str)
    return found


def decode_as(text: Buffer | None, kind: Any) -> Any:
    """The value of JSON text if it has this type; None for any other text and for None."""
    try:
        return None if text is None else msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def as_plain_text(text: Buffer) -> str:
    """The text of a JSON string; any other JSON text as it is."""
    return msgspec.json.decode(text, type=str) if bytes(text[:1]) == b'"' else str(text, "utf-8")


def splice(marked: Marked, payload: Mapping[str, Segments]) -> Segments:
    """The complete message: the stub with the payload's members, which override members of the stub."""
    return object_of({**marked.envelope, "result": object_of({**marked.result, **payload})})


def object_of(members: Mapping[str, Buffer | Segments]) -> Segments:
    """A JSON object in pieces, without copying its values.

    The value of `OTHER_MEMBERS` is the text of several members, and is written unchanged.
    """
    pieces: list[Buffer] = []
    for key, value in members.items():
        name = () if key == OTHER_MEMBERS else (_ENCODE(key), b":")
        pieces += (b"," if pieces else b"{", *name)
        if isinstance(value, tuple):
            pieces += value
        else:
            pieces.append(value)
    return (*pieces, b"}") if pieces else (b"{}",)


OTHER_MEMBERS: Final = "\udc00rest"
"""The key of all members that are one piece. It is half of a surrogate pair, so no JSON text contains it."""


def array_of(values: Iterable[Buffer | Segments]) -> Segments:
    """A JSON array in pieces, without copying its values."""
    pieces: list[Buffer] = []
    for value in values:
        pieces.append(b"," if pieces else b"[")
        pieces += value if isinstance(value, tuple) else (value,)
    return (*pieces, b"]") if pieces else (b"[]",)


def contiguous(text: Buffer | Segments) -> Buffer:
    """JSON text in one piece. Other threads run while large segments are joined."""
    return b"".join(chunks_of(text)) if isinstance(text, tuple) else text


def chunks_of(segments: Iterable[Buffer], size: int = 1 << 18) -> Iterator[bytes]:
    """The bytes of all segments in chunks of about `size` bytes: small segments are joined, large ones are cut."""
    segments = tuple(segments)
    if sum(map(len, segments)) <= size:
        if joined := b"".join(segments):
            yield joined
        return
    pending: list[Buffer] = []
    pending_size = 0
    for segment in segments:
        for at in range(0, len(segment), size):
            piece = segment[at : at + size]
            pending.append(piece)
            pending_size += len(piece)
            if pending_size >= size:
                yield b"".join(pending)
                pending, pending_size = [], 0
    if pending:
        yield b"".join(pending)


def line_of(segments: Segments, size: int = 1 << 18) -> Iterator[bytes]:
    """A message as one line with its newline, in chunks of about `size` bytes, without the line breaks in it."""
    last = b""
    for chunk in chunks_of(segments, size):
        if last:
            yield last
        last = replace_line_breaks(chunk)
    yield last + b"\n"


def replace_line_breaks(text: Buffer) -> bytes:
    """JSON text with spaces in place of the line breaks between its tokens, which would end a line or an event.

    Also in place of carriage returns: servers that read lines as Python does, such as those of the Python SDK, end a
    line at each of them.
    """
    return bytes(text).replace(b"\n", b" ").replace(b"\r", b" ")

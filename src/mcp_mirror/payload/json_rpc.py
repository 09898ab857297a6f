"""Frames of JSON-RPC: lifting a payload out of one, splicing one in.

A payload is never parsed here: one typed pass splits a frame into its members and leaves each as the bytes that
came. What is left for the SDK is a stub of the same message; a *mark* in its `_meta` tells which payload belongs
to it. Who keeps the payloads, and where bytes come from and go to, is not known here.
"""

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from mcp_mirror.errors import WireError
from mcp_mirror.settings.limits import MAX_DEPTH
from mcp_mirror.types import Buffer, Segments

MARK: Final = "mcp-mirror/payload"
"""The `_meta` member by which a stub names the payload that was lifted out of it."""

RequestId = int | str

_MARK_BYTES: Final = MARK.encode()
_SMALL: Final = 1 << 16
_LONGEST_ERROR: Final = 1 << 20
"""Bytes up to which a member of a result stays in its stub."""

_ID_FIRST: Final = re.compile(
    rb'\s*\{\s*(?:"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*,\s*)*"id"\s*:\s*(-?[0-9]{1,18}|"(?:[^"\\]|\\.)*")\s*[,}]'
)
_METHOD_FIRST: Final = re.compile(
    rb'\s*\{\s*(?:"(?:jsonrpc|id)"\s*:\s*(?:"(?:[^"\\]|\\.)*"|-?[0-9]{1,18})\s*,\s*)*"method"\s*:\s*"([!#-\[\]-~]*)"'
)
_ID_LAST: Final = re.compile(rb'"id"\s*:\s*(-?[0-9]{1,18}|"(?:[^"\\]|\\.)*")\s*\}\s*\Z')


_BRACKET: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{}]', re.DOTALL)

_STEP: Final[Mapping[bytes, int]] = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}

_AS_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKET: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")

_CHECKED: Final = 1 << 20
"""Bytes whose encoding is checked at once."""
_COUNTED: Final = 1 << 16
"""Bytes in which values are counted at once."""
_RESERVE: Final = 150
"""Levels of nesting kept back: what is opened here can be opened again from a deeper stack."""

_SHALLOW: Final = 400
"""Opening brackets with which a message can be opened from the deepest stack."""

_HINTS: Final = (
    (re.compile(rb"\A\xef\xbb\xbf"), "It begins with a byte order mark"),
    (re.compile(rb"(?<=[:,\[])\s*-?(?:NaN|Infinity)"), "NaN and Infinity are no JSON numbers"),
    (
        re.compile(rb"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]"),
        "Half of a surrogate pair stands alone",
    ),
)
"""What the parser's own words do not tell."""


MOST_MEMBERS: Final = 1000
"""Members of a result that are sent one by one; of one that has more, those that MCP does not name are one piece."""
MOST_VALUES: Final = 20_000
"""Members and items of a message that the event loop reads; a result that has more is read in a process of its own."""
RESULT_MEMBERS: Final = frozenset(
    {"_meta", "cacheScope", "completion", "content", "contents", "description", "inputRequests", "isError", "messages"}
    | {"nextCursor", "requestState", "resultType", "structuredContent", "ttlMs"}
)
"""The members of results that MCP names."""
_MOST_BESIDE: Final = 1 << 18
"""Bytes of a client's `params` beside its arguments."""


class _Parameters(msgspec.Struct):
    """The parameters that may be large. The others are skipped, not opened."""

    arguments: msgspec.Raw = msgspec.Raw(b"")
    responses: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="inputResponses")


class _Outline(msgspec.Struct):
    """A message of which nothing is opened."""

    params: msgspec.Raw = msgspec.Raw(b"{}")
    result: msgspec.Raw = msgspec.Raw(b"{}")


class Message(msgspec.Struct, frozen=True):
    """One JSON-RPC message, split but not parsed: every value is the bytes that came."""

    id: RequestId | msgspec.UnsetType | None = msgspec.UNSET
    method: str | msgspec.UnsetType = msgspec.UNSET
    params: dict[str, msgspec.Raw] | msgspec.UnsetType | None = msgspec.UNSET
    result: dict[str, msgspec.Raw] | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_DECODER: Final = msgspec.json.Decoder(Message)
_OUTLINE: Final = msgspec.json.Decoder(_Outline)
_PARAMETERS: Final = msgspec.json.Decoder(_Parameters)
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_ENCODE: Final = msgspec.json.Encoder().encode


def open_message(frame: Buffer, max_depth: int = MAX_DEPTH) -> Message:
    """Split a frame.

    Args:
        frame: One message.
        max_depth: Levels of nesting that it may have.

    Raises:
        WireError: The frame is not JSON, is nested too deep, or is no JSON-RPC message object.
    """
    try:
        _check_encoding(frame)
        if max_depth < MAX_DEPTH:
            _check_depth(frame, max_depth)
        return _DECODER.decode(frame) if _is_shallow(frame) else _decode(frame, _RESERVE)
    except RecursionError:
        at = _too_deep_at(frame, max_depth)
        raise WireError(
            f"The message is nested too deep: {max_depth} levels are taken (`limits.max_depth`), and at byte {at:,} it "
            "has more."
        ) from None
    except msgspec.ValidationError as error:
        raise WireError(f"The message is not a JSON-RPC object: {error}.") from None
    except msgspec.DecodeError as error:
        found = ((pattern.search(frame), said) for pattern, said in _HINTS)
        hint = next((f" {said} (byte {match.start():,})." for match, said in found if match), "")
        raise WireError(f"The message is not valid JSON: {error}.{hint}") from None


def check_request(frame: Buffer) -> None:
    """See that a client's message can be opened: what it has beside arguments is small. Nothing of it is opened here.

    Raises:
        WireError: It has too many bytes or values there.
    """
    if len(frame) <= _MOST_BESIDE:
        return
    try:
        outline = _OUTLINE.decode(frame)
        large = _PARAMETERS.decode(outline.params)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return  # `open_message` says what is wrong with it
    size = len(memoryview(outline.params)) - sum(len(memoryview(raw)) for raw in (large.arguments, large.responses))
    if size > _MOST_BESIDE:
        raise WireError(
            f"`params` has {size:,} bytes beside `arguments`; {_MOST_BESIDE:,} are accepted. Put them into `arguments`."
        )
    if has_more_values(outline.result, MOST_VALUES):
        raise WireError(f"`result` has more than {MOST_VALUES:,} members and items. Send fewer.")


def check_envelope(message: Buffer, most: int) -> None:
    """What is left of a message that is to be read whole.

    Raises:
        WireError: It is too large for that.
    """
    if has_more_values(message, MOST_VALUES):
        raise WireError(
            f"The message has more than {MOST_VALUES:,} members and items beside arguments and results. Send fewer."
        )
    if len(message) > most:
        raise WireError(
            f"The message has {len(message):,} bytes beside arguments and results; {most:,} are taken "
            "(`limits.max_envelope_bytes`)."
        )


def _check_encoding(frame: Buffer) -> None:
    """The parser looks at the encoding of what it decodes alone, and most of a frame is not decoded."""
    if isinstance(frame, bytes) and frame.isascii():
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    for at in range(0, len(frame) + 1, _CHECKED):
        pending, chunk = len(decoder.getstate()[0]), frame[at : at + _CHECKED]
        try:
            decoder.decode(chunk, final=at + _CHECKED > len(frame))
        except UnicodeDecodeError as error:
            where = at - pending + error.start
            raise WireError(f"The message is not valid JSON: it is not UTF-8 at byte {where:,}.") from None


def _check_depth(frame: Buffer, most: int) -> None:
    if is_deeper(frame, most):
        raise RecursionError


def is_deeper(text: Buffer, most: int) -> bool:
    """Whether JSON text is nested deeper than so many levels; nothing of it is parsed."""
    left = b"".join(_outside_strings(text))
    for _ in range(most):
        size = len(left)
        left = left.replace(b"[]", b"")
        if len(left) == size:
            break
    return b"[]" in left


def _outside_strings(text: Buffer) -> Iterator[bytes]:
    """The brackets of JSON text, all of one kind, without those in strings."""
    carried, inside = b"", False
    for at in range(0, len(text), _CHECKED):
        piece = carried + bytes(text[at : at + _CHECKED])
        loose = (len(piece) - len(piece.rstrip(b"\\"))) % 2
        kept, carried = piece[: len(piece) - loose], piece[len(piece) - loose :]
        parts = kept.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        for part in parts[inside::2]:
            yield part.translate(_AS_ONE_KIND, _NO_BRACKET)
        inside = inside == (len(parts) % 2 == 1)


def _too_deep_at(frame: Buffer, most: int) -> int:
    """Where the nesting of a message passes what can be read."""
    depth = 0
    found = (match for match in _BRACKET.finditer(frame) if (depth := depth + _STEP.get(match[0], 0)) > most)
    return next((match.start() for match in found), len(frame))


def _is_shallow(frame: Buffer) -> bool:
    """Whether a glance tells that a message is not nested deep: most are small, and this costs them less."""
    text = bytes(frame) if len(frame) <= _SMALL else b""
    return bool(text) and text.count(b"[") + text.count(b"{") < _SHALLOW


def _decode(frame: Buffer, reserve: int) -> Message:
    """The parser counts nesting on the interpreter's stack: some of it is used up before."""
    return _decode(frame, reserve - 1) if reserve else _DECODER.decode(frame)


def open_object(text: Buffer) -> dict[str, Buffer] | None:
    """The members of a JSON object as the bytes that came (the last of a repeated key); None if it is no object."""
    try:
        return {key: memoryview(raw) for key, raw in _OBJECT.decode(text).items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def open_array(text: Buffer) -> list[Buffer] | None:
    """The items of a JSON array as the bytes that came; None if it is no array."""
    try:
        return [memoryview(raw) for raw in _ARRAY.decode(text)]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def asks(result: Mapping[str, Buffer]) -> bool:
    """Whether a result is none, but questions to the client, as the 2026 era has them."""
    return bytes(memoryview(result.get("resultType", b""))[:20]) == b'"input_required"'


def recover_id(frame: Buffer) -> RequestId | None:
    """The id of a message that could not be opened, if it stands first or last in it."""
    match = _ID_FIRST.match(frame) or _ID_LAST.search(frame[-_SMALL:])
    return _decoded(match[1]) if match else None


def recover_method(frame: Buffer) -> str | None:
    """The method of a request or notification that could not be opened, if it stands before what it holds."""
    match = _METHOD_FIRST.match(frame)
    return str(match[1], "ascii") if match else None


@dataclass(frozen=True, slots=True)
class Lifted:
    """A message whose payload was taken out: the SDK gets `stub`, the gateway gets `members`."""

    stub: bytes
    members: Mapping[str, Buffer]


class _Error(msgspec.Struct):
    code: int = -32603
    message: str = "The error is not of JSON-RPC's form."


def bound_error(message: str) -> str:
    """An error's message; of one over a million characters the beginning and the end."""
    half = _LONGEST_ERROR // 2
    return message if len(message) <= _LONGEST_ERROR else f"{message[:half]}\n...\n{message[-half:]}"


def short_error(message: Message) -> bytes:
    """An error response without the data, its message bounded."""
    try:
        error = msgspec.json.decode(memoryview(message.error), type=_Error)  # type: ignore[arg-type]  # it has one
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        error = _Error()
    said = {"code": error.code, "message": bound_error(error.message)}
    return _ENCODE({"jsonrpc": "2.0", "id": message.id, "error": said})


def lift_result(message: Message, method: str) -> Lifted | None:
    """Take the payload out of the response to a request of this method; None if there is none to take.

    The stub is the least that the SDK takes for a result, whatever the result says: it would refuse or lose what
    it does not know.
    """
    empty = _EMPTY.get(method)
    if empty is None or isinstance(message.result, msgspec.UnsetType) or not isinstance(message.id, int | str):
        return None
    members = {key: memoryview(raw) for key, raw in message.result.items()}
    listed: dict[str, Buffer] = {"tools": _tools_with_headers(members)} if method == "tools/list" else {}
    result = object_of({**_COMPLETE, **empty, **listed})
    return Lifted(join(object_of({"jsonrpc": b'"2.0"', "id": _ENCODE(message.id), "result": result})), members)


def empty_result(method: str, identity: RequestId) -> bytes:
    """The stub of a result that goes on unread."""
    result = object_of({**_COMPLETE, **_EMPTY[method]})
    return join(object_of({"jsonrpc": b'"2.0"', "id": _ENCODE(identity), "result": result}))


def _tools_with_headers(members: Mapping[str, Buffer]) -> bytes:
    """The SDK computes headers from input schemas: of the other tools it need not know."""
    tools = []
    for raw in open_array(members.get("tools", b"[]")) or []:
        tool = open_object(raw) if HEADER_MARK in bytes(raw) else None
        if tool and bytes(tool.get("name", b""))[:1] == b'"' and bytes(tool.get("inputSchema", b""))[:1] == b"{":
            tools.append(join(object_of({key: tool[key] for key in ("name", "inputSchema")})))
    return b"[" + b",".join(tools) + b"]"


HEADER_MARK: Final = b'"x-mcp-header"'
"""Is in the schemas of tools whose arguments are mirrored into HTTP headers."""
_COMPLETE: Final[Mapping[str, Buffer]] = {"resultType": b'"complete"', "ttlMs": b"0", "cacheScope": b'"private"'}
_EMPTY: Final[Mapping[str, Mapping[str, Buffer]]] = {
    "tools/call": {"content": b"[]"},
    "tools/list": {"tools": b"[]"},
    "prompts/get": {"messages": b"[]"},
    "prompts/list": {"prompts": b"[]"},
    "resources/list": {"resources": b"[]"},
    "resources/read": {"contents": b"[]"},
    "resources/templates/list": {"resourceTemplates": b"[]"},
    "completion/complete": {"completion": b'{"values":[]}'},
    "resources/subscribe": {},
    "resources/unsubscribe": {},
    "logging/setLevel": {},
}
"""The methods whose results go past the SDK, and the least that each result must hold."""

_PAST_THE_SDK: Final = frozenset({"tools/call", "prompts/get", "resources/read", "completion/complete"})
"""The requests of clients that are passed on with all that they hold."""


def lift_params(message: Message, token: str) -> Lifted | None:
    """Take the parameters out of a request that is passed on, and mark the stub with `token`; None for another message.

    The stub of a tool call has no arguments; the others keep what the SDK checks.
    """
    if message.method not in _PAST_THE_SDK or not isinstance(message.params, dict):
        return None
    if not isinstance(message.id, int | str):
        return None
    members: dict[str, Buffer] = {key: memoryview(raw) for key, raw in message.params.items()}
    if bytes(members.get("arguments", b"{}")[:1]) != b"{":
        return None
    meta = open_object(members.get("_meta", b"{}"))
    if meta is None and bytes(members["_meta"]) != b"null":
        return None
    params = {**members, "_meta": join(object_of({**(meta or {}), MARK: _ENCODE(token)}))}
    if message.method == "tools/call":
        params["arguments"] = b"{}"
    request = {"jsonrpc": b'"2.0"', "id": _ENCODE(message.id), "method": _ENCODE(message.method)}
    return Lifted(join(object_of({**request, "params": object_of(params)})), members)


@dataclass(frozen=True, slots=True)
class Marked:
    """A stub on its way out, and the mark of the payload that belongs into it."""

    token: str
    id: RequestId | None
    envelope: Mapping[str, Buffer]
    """The message's members but `body`."""
    body: Mapping[str, Buffer]
    """Its params or result, without the mark."""
    is_request: bool


def find_mark(frame: Buffer) -> Marked | None:
    """What an outgoing frame asks to be spliced into it; None for a frame that is complete as it is."""
    if _MARK_BYTES not in bytes(frame):
        return None
    envelope = open_object(frame) or {}
    name = "params" if "params" in envelope else "result"
    body = open_object(envelope.get(name, b"null")) or {}
    meta = open_object(body.get("_meta", b"null")) or {}
    token, identity = _decoded(meta.pop(MARK, b"null")), _decoded(envelope.get("id", b"null"))
    if not isinstance(token, str):
        return None
    body = {**body, "_meta": join(object_of(meta))} if meta else {k: v for k, v in body.items() if k != "_meta"}
    rest = {key: raw for key, raw in envelope.items() if key != name}
    return Marked(token, identity, rest, body, is_request=name == "params")


def _decoded(scalar: Buffer) -> RequestId | None:
    """An id or a token; None for anything else."""
    try:
        return msgspec.json.decode(scalar, type=int | str | None)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def splice(marked: Marked, payload: Mapping[str, Segments]) -> Segments:
    """The whole message: the stub with the payload's members in it, which win over the stub's."""
    body = object_of({**marked.body, **payload})
    return object_of({**marked.envelope, "params" if marked.is_request else "result": body})


def object_of(members: Mapping[str, Buffer | Segments]) -> Segments:
    """A JSON object in pieces, its values not copied. What stands under `REST` is several members, written as it is."""
    pieces: list[Buffer] = []
    for key, value in members.items():
        name = () if key == REST else (_ENCODE(key), b":")
        pieces += (b"," if pieces else b"{", *name, *_pieces(value))
    return (*pieces, b"}") if pieces else (b"{}",)


REST: Final = "\udc00rest"
"""The key of members that are not opened one by one. No JSON text spells it: it is half of a surrogate pair."""


def has_more_values(text: Buffer | msgspec.Raw, most: int) -> bool:
    """Whether JSON text has more than `most` members and items. Stops as soon as there are more."""
    text = memoryview(text)
    count, inside, carried = 0, False, b""
    for at in range(0, len(text), _COUNTED):
        piece = carried + bytes(text[at : at + _COUNTED])
        loose = (len(piece) - len(piece.rstrip(b"\\"))) % 2
        kept, carried = piece[: len(piece) - loose], piece[len(piece) - loose :]
        parts = kept.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        count += sum(part.count(b",") for part in parts[inside::2])
        inside = inside == (len(parts) % 2 == 1)
        if count >= most:
            return True
    return False


def array_of(values: Iterable[Buffer | Segments]) -> Segments:
    """A JSON array in pieces, its values not copied."""
    pieces: list[Buffer] = []
    for value in values:
        pieces += (b"," if pieces else b"[", *_pieces(value))
    return (*pieces, b"]") if pieces else (b"[]",)


def join(segments: Segments) -> bytes:
    """Pieces as one text."""
    return b"".join(segments)


def chunks_of(segments: Iterable[Buffer], size: int = 1 << 18) -> Iterator[bytes]:
    """The bytes of all segments in chunks of about `size` bytes: small segments are joined, large ones are cut."""
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
    """A message as one line, newline and all, in chunks of about `size` bytes.

    A line break may stand between the tokens of a payload; a space there means the same and does not end the line.
    """
    last = b""
    for chunk in chunks_of(segments, size):
        if last:
            yield last
        last = chunk.replace(b"\n", b" ")
    yield last + b"\n"


def _pieces(value: Buffer | Segments) -> Segments:
    return value if isinstance(value, tuple) else (value,)

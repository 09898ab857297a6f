"""Bounds of JSON texts: their depth, the number of their values, and what a message has beside its payload.

All functions scan the text without parsing it, which would create an object for each value.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import accumulate, islice
from typing import Final

import msgspec

from mcp_mirror.errors import WireError
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer

MAX_VALUES: Final = 20_000
"""Members and items of a message that the event loop reads. A worker process reads a result that has more."""
MAX_INPUT_VALUES: Final = 1 << 12
"""Members and items of input requests, and of an answer to one, which the SDK's types validate at once: in up to 0.1 s
if they are not valid."""
_MAX_LOCATED: Final = 1 << 16
"""Strings and brackets that are searched for the place of an excess depth, in about 20 ms."""
_MAX_BESIDE: Final = 1 << 18
"""Bytes of a client's `params` without its arguments, and of its message without `params` and `result`."""
_MAX_VALUES_BESIDE: Final = 1_200
"""Members and items of a client's `params` without its arguments, enough for a thousand subscribed resources. The SDK
keeps them parsed in all open requests and sessions, up to 600 bytes for each."""
_MAX_STATE: Final = 1 << 21
"""Bytes of the state that a client brings back with its answers, and of the arguments of a prompt."""
_MAX_ANSWER: Final = 1 << 23
"""Bytes of a client's answers to requests of servers, enough for an image that a model has made. The SDK parses them in
the event loop, in about 40 ms."""


_BRACKET: Final = lazy_pattern(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
"""A string or a bracket. A string without an end is one match too: the text may be malformed."""

_STEP: Final[Mapping[bytes, int]] = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}

_AS_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")
_NO_VALUE: Final = bytes(byte for byte in range(256) if byte not in b",[{")
_NO_MARK: Final = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_QUOTED: Final = lazy_pattern(rb'"[^"]*"')
_STEP_OF_BYTE: Final = {ord("["): 1, ord("]"): -1}
_PASSES: Final = 6
"""Innermost levels that are removed before the rest is counted bracket by bracket."""
_STEP_BYTES: Final = 1 << 20
"""Bytes per step of counting levels."""
_VALUE_BYTES: Final = 80
"""Bytes of an empty list in memory, with its place in another list."""
_OBJECT_BYTES: Final = 240
"""Bytes of a dict with one member."""
_COUNT_STEP: Final = 1 << 16
"""Bytes per step of counting values."""


class _Parameters(msgspec.Struct):
    """The parameters that may be large. The parser skips the others."""

    arguments: msgspec.Raw = msgspec.Raw(b"")
    responses: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="inputResponses")
    state: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="requestState")


_LARGE: Final = {
    "tools/call": ("arguments", "inputResponses", "requestState"),
    "prompts/get": ("arguments", "inputResponses", "requestState"),
    "resources/read": ("inputResponses", "requestState"),
}
"""The parameters that may be large, by method."""
_BOUNDS: Final = (
    ("requestState", _MAX_STATE, "Make the call again"),
    ("inputResponses", _MAX_ANSWER, "Send less"),
    ("arguments", _MAX_STATE, "Send less"),
)
"""The bytes of such parameters, and the advice. Arguments of tools have other bounds."""


class _Outline(msgspec.Struct):
    """A message whose members stay bytes."""

    method: str = ""
    params: msgspec.Raw = msgspec.Raw(b"{}")
    result: msgspec.Raw = msgspec.Raw(b"{}")


_OUTLINE: Final = msgspec.json.Decoder(_Outline)
_PARAMETERS: Final = msgspec.json.Decoder(_Parameters)
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def check_request(frame: Buffer) -> None:
    """Check that everything in a client's message except its arguments is small, without parsing it.

    Raises:
        WireError: `params` has too many bytes or values outside of its arguments, `result` too many bytes or values, or
            the message too many bytes outside of both.
    """
    if len(frame) <= 2 * _MAX_VALUES_BESIDE:  # too short for so many values
        return
    try:
        outline = _OUTLINE.decode(frame)
        around = len(frame) - len(memoryview(outline.params)) - len(memoryview(outline.result))
        if around > _MAX_BESIDE:
            raise WireError(
                f"The message has {around:,} bytes outside of `params` and `result`; the limit is {_MAX_BESIDE:,}. "
                "Send a shorter `id`, and no members that JSON-RPC does not have."
            )
        _check_params(outline.method, outline.params)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return  # `open_message` reports the error
    if (size := len(memoryview(outline.result))) > _MAX_ANSWER:
        raise WireError(f"`result` has {size:,} bytes; the limit is {_MAX_ANSWER:,}. Send less.")
    if has_more_values(outline.result, MAX_VALUES):
        raise WireError(f"`result` has more than {MAX_VALUES:,} members and items. Send fewer.")


def _check_params(method: str, params: msgspec.Raw) -> None:
    """Check that the parameters of a client's message are within the limits."""
    given = _PARAMETERS.decode(params)
    large = {"arguments": given.arguments, "inputResponses": given.responses, "requestState": given.state}
    sizes = {name: len(memoryview(large[name])) for name in _LARGE.get(method, ())}
    for name, most, advice in _BOUNDS:
        if sizes.get(name, 0) > most and (method, name) != ("tools/call", "arguments"):
            raise WireError(f"`{name}` has {sizes[name]:,} bytes; the limit is {most:,}. {advice}.")
    size = len(memoryview(params)) - sum(sizes.values())
    place, advice = (" outside of `arguments`", "Use `arguments`") if "arguments" in sizes else ("", "Send less")
    if size > _MAX_BESIDE:
        raise WireError(f"`params` has {size:,} bytes{place}; the limit is {_MAX_BESIDE:,}. {advice}.")
    if size > 2 * _MAX_VALUES_BESIDE:
        beside = [memoryview(raw) for key, raw in _MEMBERS.decode(params).items() if key not in sizes]
        if has_more_values(b"[%b]" % b",".join(beside), _MAX_VALUES_BESIDE):
            raise WireError(f"`params` has more than {_MAX_VALUES_BESIDE:,} members and items{place}. Send fewer.")


def check_envelope(message: Buffer, most: int) -> None:
    """Check that a message without arguments and results has at most `most` bytes, and few values; WireError if not."""
    if has_more_values(message, MAX_VALUES):
        raise WireError(
            f"The message has more than {MAX_VALUES:,} members and items outside of arguments and results. Send fewer."
        )
    if len(message) > most:
        raise WireError(
            f"The message has {len(message):,} bytes outside of arguments and results; the limit is {most:,} "
            "(`limits.max_envelope_bytes`)."
        )


def is_deeper(text: Buffer, most: int) -> bool:
    """Whether JSON text is nested deeper than `most` levels, without parsing it."""
    left, removed = b"".join(_strip_strings(text)), 0
    while removed < _PASSES and b"[]" in left:  # fast, because most containers contain only scalars
        left, removed = left.replace(b"[]", b""), removed + 1
    depth = deepest = 0
    for at in range(0, len(left), _COUNT_STEP):  # between two steps, other threads run
        brackets = left[at : at + _COUNT_STEP]
        deepest = max(deepest, depth + max(accumulate(map(_STEP_OF_BYTE.__getitem__, brackets))))
        depth += 2 * brackets.count(b"[") - len(brackets)
    return removed + deepest > most


def _strip_strings(text: Buffer) -> Iterator[bytes]:
    """The brackets of JSON text outside its strings, all as square brackets."""
    is_inside = False
    for unescaped in _remove_escapes(text, _STEP_BYTES):
        marks = (b'"' if is_inside else b"") + unescaped.translate(_AS_ONE_KIND, _NO_MARK)
        # Most strings have no brackets, and this removes them ten times faster than the expression.
        outside, quote, _ = _QUOTED.sub(b"", marks.replace(b'""', b"")).partition(b'"')
        is_inside = bool(quote)
        yield outside


def _remove_escapes(text: Buffer, step: int) -> Iterator[bytes]:
    """JSON text in pieces, without escaped backslashes and quotes: every other quote begins a string."""
    carried = b""
    for at in range(0, len(text), step):
        piece = carried + bytes(text[at : at + step])
        loose = (len(piece) - len(piece.rstrip(b"\\"))) % 2
        kept, carried = piece[: len(piece) - loose], piece[len(piece) - loose :]
        yield kept.replace(b"\\\\", b"").replace(b'\\"', b"")


def locate_excess_depth(frame: Buffer, most: int) -> str:
    """Where a message exceeds `most` levels of nesting: "at byte N", or "after byte N" if that is far behind N."""
    depth = at = 0
    for match in islice(_BRACKET.finditer(frame), _MAX_LOCATED):
        at, depth = match.start(), depth + _STEP.get(match[0], 0)
        if depth > most:
            return f"at byte {at:,}"
    return f"after byte {at:,}"


def estimate_memory(text: Buffer | msgspec.Raw) -> int:
    """The bytes that a JSON text and its parsed values take together, about."""
    text = bytes(text)
    return len(text) + _VALUE_BYTES * (text.count(b",") + text.count(b"[")) + _OBJECT_BYTES * text.count(b"{")


def has_more_values(text: Buffer | msgspec.Raw, most: int) -> bool:
    """Whether JSON text has more than `most` members and items. An empty object or array counts as one of its own."""
    text = memoryview(text)
    if sum(_count_values(bytes(text[at : at + _COUNT_STEP])) for at in range(0, len(text), _COUNT_STEP)) <= most:
        return False  # counted with the marks in strings, which takes a tenth of the time
    count, is_inside = 0, False
    for unescaped in _remove_escapes(text, _COUNT_STEP):
        parts = unescaped.split(b'"')  # in turn outside and inside of strings
        count += _count_values(b"".join(parts[1::2] if is_inside else parts[::2]))
        if len(parts) % 2 == 0:
            is_inside = not is_inside
        if count > most:
            return True
    return False


def _count_values(text: bytes) -> int:
    """The number of commas and opening brackets: each is before a member or an item, or in an empty container."""
    return len(text.translate(None, _NO_VALUE))

"""Parts of a JSON string, decoded without decoding the whole string: its ends, samples, and pieces of bounded size.

Most functions take text that is valid JSON, and the span of a string in it.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import msgspec

from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer, Span, TextSize

_HIGH_SURROGATE: Final = lazy_pattern(rb"\\u[dD][89abAB]")
_LOW_SURROGATE: Final = lazy_pattern(rb"\\u[dD][c-fC-F]")
"""Two escapes that encode one character: a high surrogate, then a low one."""
_HALF_PAIR: Final = lazy_pattern(
    rb"((?:[^\\]++|\\(?:[^u]|u(?:[^dD\\]|[dD](?:[0-7]|[89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))))*+)"
    rb"(?:(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\|\Z)"
)
"""JSON text with whole pairs of surrogates and all other escapes, and half of a pair after it. The pattern matches
anywhere, so a search never begins within an escape."""

_ESCAPE: Final = 6
"""Bytes of the longest escape, `\\uXXXX`."""

_CONTINUATIONS: Final = 3
"""Bytes of a character after its first one. Text that is checked only after it is cut may have more in a row."""

_SAMPLED: Final = 1 << 10
"""Bytes of one part of a sample."""

_PIECE: Final = 1 << 18
"""Bytes that are decoded at once: a piece and its copies stay in the processor's cache."""

_RUN: Final = 1 << 12
"""Bytes in which backslashes are counted at once."""

_UNITS: Final = lazy_pattern(r'"(?:[^"\\]++|\\u[0-9A-Fa-f]{4}|\\[^u])*+')
"""The longest part of a JSON string that does not end in an escape."""

_ENCODED: Final = lazy_pattern(rb"\\u[0-9A-Fa-f]{4}(?:\\u[0-9A-Fa-f]{4})*+")
"""Consecutive escapes of characters, unless the first backslash is itself escaped."""
_NEEDED: Final = lazy_pattern('["\\\\\x00-\x1f\ud800-\udfff]')
"""Characters that JSON contains only as escapes."""

MAX_MEASURED_BYTES: Final = 1 << 25
"""Bytes up to which a text is measured whole, larger ones by a sample."""
_PEEK_BYTES: Final = (64, 1 << 12)
"""Bytes of a text that show whether it may be JSON, and the most of them: white space before a document is short."""
MAY_BEGIN_JSON: Final = frozenset({b"{", b"[", b" ", b"\\"})
"""The first bytes of strings that may contain an object or array; a backslash escapes white space."""

_RAW: Final = msgspec.json.Decoder(msgspec.Raw)
_TEXT: Final = msgspec.json.Decoder(str)

_SAFE_CUT: Final = lazy_pattern(rb"[^\\]{6}[\x80-\xbf]*|[^\\](?=\\)")
"""Bytes after which a string can be cut: six without a backslash, then the rest of a character, since no escape extends
beyond them; or one before a backslash, which begins an escape."""


def text_start(blob: Buffer, span: Span, limit: int) -> str:
    """The beginning of the JSON string at `span`, decoded from at most `limit` of its bytes."""
    if limit >= span.length:
        with suppress(msgspec.DecodeError, UnicodeDecodeError):  # half of a surrogate pair
            return _TEXT.decode(blob[span.start : span.stop])
    known = str(bytes(blob[span.start : min(span.stop, span.start + limit)]), "utf-8", "ignore")
    whole = _UNITS.match(known)
    text: str = json.loads(f'{whole[0]}"') if whole else ""
    return str(text.encode("utf-8", "ignore"), "utf-8")  # the last character may be half of a surrogate pair


def text_end(blob: Buffer, span: Span, limit: int) -> str:
    """The end of the JSON string at `span`, decoded from about `limit` of its bytes; empty where no cut is safe."""
    start = max(span.stop - limit, span.start + 1)
    tail = bytes(blob[start : span.stop - 1])
    cut = _SAFE_CUT.search(tail) if start > span.start + 1 else None
    if cut is None and start > span.start + 1:
        return ""
    text: str = json.loads(b'"%b"' % (tail[cut.end() :] if cut else tail), strict=False)
    return str(text.encode("utf-8", "ignore"), "utf-8")


def decode_escapes(json_text: bytes, escape: Callable[[str], str] | None = None) -> bytes:
    r"""The same JSON with characters in place of their escapes `\uXXXX`, unless JSON needs the escape.

    Args:
        json_text: JSON text, or a part of it that neither begins nor ends within an escape or a surrogate pair.
        escape: Returns a text with escapes in place of the characters that JSON needs as escapes, and of others; None:
            of no others.
    """
    if b"\\" not in json_text or b"\\u" not in json_text:  # the first search takes a tenth of the time of the second
        return json_text
    escape = escape or _escape_needed

    def decode(run: re.Match[bytes]) -> bytes:
        start = run.start()
        is_literal = json_text[start - 1 : start] == b"\\" and not _is_escape(json_text, 0, start)
        literal = _ESCAPE if is_literal else 0
        return run[0][:literal] + escape(_decode_text(run[0][literal:])).encode()

    return _ENCODED.sub(decode, json_text)


def _escape_needed(text: str) -> str:
    return _NEEDED.sub(lambda character: f"\\u{ord(character[0]):04x}", text)


def measure_text(blob: Buffer, span: Span) -> TextSize:
    """The size of the JSON string at `span`."""
    size = breaks = 0
    for start, stop in text_parts(blob, span):
        raw = bytes(blob[start:stop])
        if b"\\" in raw:  # also each line break is an escape
            raw = _decode_leniently(raw)
            breaks += raw.count(b"\n")
        size += len(raw)
    return TextSize(size, breaks)


def text_sample(blob: Buffer, span: Span, size: int) -> tuple[bytes, float]:
    """A sample of the larger JSON string at `span`, evenly spaced parts of it with `size` bytes together, decoded.

    Returns:
        The sample, and the share of the string's bytes that it has.
    """
    pieces: list[bytes] = []
    taken = 0
    for start, stop in text_parts(blob, span, -(-span.length * _SAMPLED // size)):
        end = start + _SAMPLED
        end = _find_cut(blob, start, end) if end < stop else stop
        pieces.append(_decode_leniently(bytes(blob[start:end])))
        taken += end - start
    return b"".join(pieces), taken / (span.length - 2)


def text_pieces(blob: Buffer, span: Span, size: int = _PIECE) -> Iterator[bytes]:
    """The decoded JSON string at `span` in pieces of about `size` bytes (at least 12), to save memory.

    Raises:
        msgspec.DecodeError: An escape encodes half of a surrogate pair.
    """
    for start, stop in text_parts(blob, span, size):
        piece = bytes(blob[start:stop])
        if b"\\" in piece:
            text: str = msgspec.json.decode(b'"%b"' % piece, type=str)
            piece = text.encode()
        yield piece


def check_string(blob: Buffer, span: Span) -> None:
    """Check the string at `span`, which need not be valid, in half of the time of decoding it.

    Raises:
        msgspec.DecodeError: The string is not valid JSON.
        UnicodeError: It is not UTF-8.
    """
    for start, stop in text_parts(blob, span):
        literal = b"".join((b'"', blob[start:stop], b'"'))
        _RAW.decode(literal)
        if not literal.isascii():
            str(literal, "utf-8")


def replace_half_pairs(json_text: bytes) -> bytes:
    """Replace each escape of half of a surrogate pair by that of U+FFFD, as JavaScript does when it writes UTF-8."""
    return _HALF_PAIR.sub(lambda match: match[0] if match[2] is None else match[1] + b"\\ufffd", json_text)


def may_be_json(blob: Buffer, span: Span) -> bool:
    """Whether the string at `span`, which need not be valid JSON, begins as the text of an object or array does."""
    if bytes(blob[span.start + 1 : span.start + 2]) not in MAY_BEGIN_JSON:
        return False
    with suppress(ValueError):
        starts = (text_start(blob, span, limit).lstrip(" \t\r\n") for limit in _PEEK_BYTES)
        return next(filter(None, starts), "").startswith(("{", "["))
    return False


def text_parts(blob: Buffer, span: Span, size: int = _PIECE) -> Iterator[tuple[int, int]]:
    """The start and stop offsets of parts of the JSON string at `span`, without its quotes; see `json_parts`.

    The string need not be valid: all of its parts are valid strings only if the whole is.
    """
    return json_parts(blob, span.start + 1, span.stop - 1, size)


def json_parts(blob: Buffer, start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """The start and stop offsets of parts of JSON text, or of a string: of `size` bytes (at least 12) or up to 11 less.

    No part begins or ends within an escape, within a character, or between the two escapes of one character; `start`
    and `stop` do not either.
    """
    position = start
    while position < stop:
        end = min(position + size, stop)
        if end < stop:
            end = _find_cut(blob, position, end)
        yield position, end
        position = end


def _find_cut(blob: Buffer, start: int, end: int) -> int:
    """The last offset up to `end` at which a string can be cut; `start` is one, at least 12 bytes before."""
    cut = end
    at = end - _ESCAPE + 1 + bytes(blob[end - _ESCAPE + 1 : end]).rfind(b"\\")
    if at > end - _ESCAPE and _is_escape(blob, start, at):
        length = _ESCAPE if blob[at + 1] == ord("u") else 2
        cut = at if at + length > end else end
    first = cut - _ESCAPE
    is_pair = _HIGH_SURROGATE.match(blob, first, cut) and _LOW_SURROGATE.match(blob, cut)
    if is_pair and _is_escape(blob, start, first):
        return first
    for _ in range(_CONTINUATIONS):
        if blob[cut] & 0xC0 != 0x80:  # noqa: PLR2004  # a continuation byte of UTF-8
            break
        cut -= 1
    return cut


def _is_escape(blob: Buffer, start: int, at: int) -> bool:
    """Whether the backslash at `at` begins an escape, which it does not if an odd number of backslashes precedes it."""
    end = at
    while end > start:
        before = bytes(blob[max(start, end - _RUN) : end])
        end -= len(before) - len(before.rstrip(b"\\"))
        if before.strip(b"\\"):
            break
    return (at - end) % 2 == 0


def _decode_text(inside: bytes) -> str:
    """The text of a part of a JSON string, with its lone surrogates."""
    try:
        return msgspec.json.decode(b'"%b"' % inside, type=str)
    except (msgspec.DecodeError, UnicodeError):
        text: str = json.loads(b'"%b"' % inside, strict=False)
        return text


def _decode_leniently(inside: bytes) -> bytes:
    """The text of a part of a JSON string. A lone surrogate, which UTF-8 cannot contain, becomes a question mark."""
    return _decode_text(inside).encode("utf-8", "replace")

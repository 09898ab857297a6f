"""A text in pieces of the size that tokenizers split at, and the class of characters of a piece."""

import re
import string
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

_CASED: Final = "A-Za-z\u00aa\u00b5\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u03ff\u0400-\u052f\u1e00-\u1fff"
"""Letters of scripts with capitals: a run of them is one piece, since some tokenizers split it at capitals and some
do not."""
_HAN: Final = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
_OTHER: Final = (
    "\u0530-\u1dff\u2c00-\u2dff\u3105-\u31ff\ua000-\uabff"
    "\ufb00-\ufdff\ufe70-\ufefe\uff21-\uff3a\uff41-\uff5a\uff66-\uffdc"
)


_EMOJI: Final = "\U0001f000-\U0001faff"
_REGIONAL: Final = "\U0001f1e6-\U0001f1ff"
"""Two of these letters are a flag."""
_SIGNS: Final = "\u2600-\u27bf"


def _pattern(cased: str, scripts: Iterable[str], signs: str = "") -> re.Pattern[str]:
    letters = cased + "".join(scripts)
    before = rf"[^\r\n0-9{letters}]?"
    words = rf"{before}[{cased}]+(?:'(?:s|t|re|ve|m|ll|d)\b)?"
    others = "".join(rf"|{before}[{script}]+" for script in scripts)
    marks = (
        rf"| ?[{_REGIONAL}]{{2}}| ?[{signs}]\ufe0f?| ?[^\s0-9{letters}{signs}]+[\r\n/]*"
        if signs
        else rf"| ?[^\s0-9{letters}]+[\r\n/]*"
    )
    return re.compile(rf"{words}|[0-9]{{1,3}}{marks}|\s*[\r\n]+|\s+(?!\S){others}|\s+")


_ASCII_PIECE: Final = _pattern("A-Za-z", ())
_PIECE: Final = _pattern(_CASED, (_HAN, _OTHER), _EMOJI + _SIGNS)


def split(text: str) -> list[str]:
    """The pieces of a text, in order: all of it, and nothing twice."""
    return (_ASCII_PIECE if text.isascii() else _PIECE).findall(text)


_HUMP: Final = re.compile("[^A-Za-z]?(?:[a-z]+|[A-Z]+[a-z]*)|[^A-Za-z]+")


def humps(piece: str) -> list[str]:
    """The words that capitals part a piece of ASCII letters into: several tokenizers split there."""
    return _HUMP.findall(piece)


_SHAPE: Final = bytes.maketrans(
    (string.ascii_letters + string.digits + string.punctuation + "\t\r").encode(),
    b"a" * 52 + b"0" * 10 + b"," * 32 + b"\n" * 2,
)
"""What each byte of UTF-8 counts as where pieces meet."""
JOINTS: Final = (
    b"0 a", b"0 ,", b", a", b", ,", b", 0", b"a 0", b"a ,", b"\n a", b"\n ,", b",a", b"0a", b"a0", b",0", b"0,",
    b"  0", b"  ,",
)  # fmt: skip
"""Where pieces meet: letters `a`, digits `0`, signs `,`, breaks of lines; some tokenizers mark the edges of words, or
join over them."""
_TAG: Final = re.compile(
    "</?(?:[abisu]|h[1-6]|t[dhr]|ul|li|em|su[bp]|div|span|code|body|html|strong|table|tbody|thead|tfoot|caption|footer|"
    "iframe|img|blockquote)>(?=(<?))"
)
"""Markup that is one token of Gemma's, whatever stands beside it; and whether markup follows."""


_WIDE_EDGE: Final = re.compile(
    "[\u2190-\u2bff\u3001-\u303f\u3400-\u9fff\uac00-\ud7a3\ufe0f\uff00-\uffef\U0001f000-\U0001faff] (?=[!-~])"
)
"""A space between a sign, an emoji or an ideograph and ASCII: Claude's tokenizers join it to neither."""


def count_joints(text: str) -> list[int]:
    """How often each of `JOINTS` comes; then markup that is a token, such before other markup, and `_WIDE_EDGE`."""
    shape = text.encode(errors="surrogatepass").translate(_SHAPE)
    tags = _TAG.findall(text) if "<" in text else []
    wide = 0 if text.isascii() else len(_WIDE_EDGE.findall(text))
    return [*map(shape.count, JOINTS), len(tags), tags.count("<"), wide]


def class_of(piece: str) -> str:
    """Which rule holds for a piece that has no cost of its own."""
    body = piece.strip(" \t\r\n\v\f")
    if not body:
        return "space"
    last = body[-1]
    if last.isascii():
        return _ascii_class(body, inside=piece[0] == body[0])
    code = ord(last)
    return next(name for end, name in _BLOCKS if code < end)


_BLOCKS: Final = (
    (0x370, "latin"),
    (0x400, "greek"),
    (0x530, "cyrillic"),
    (0x600, "script"),
    (0x780, "arabic"),
    (0x900, "script"),
    (0x980, "devanagari"),
    (0x1E00, "script"),
    (0x1F00, "latin"),
    (0x2000, "greek"),
    (0x3040, "symbol"),
    (0x3100, "kana"),
    (0xA000, "han"),
    (0xAC00, "script"),
    (0xD7B0, "hangul"),
    (0xE000, "symbol"),
    (0xF900, "private"),
    (0xFB00, "han"),
    (0x10000, "symbol"),
    (0x1F000, "astral"),
    (0x20000, "emoji"),
    (0xE0000, "extended"),
    (0x110000, "private"),
)
"""Where each class of characters beyond ASCII ends."""


def _ascii_class(body: str, *, inside: bool) -> str:
    """`inside`: nothing that ends a word is before it, as in the middle of `camelCase`."""
    if body[-1].isdigit():
        return "digit"
    if not body[-1].isalpha():
        return "punctuation"
    word = body if body[0].isalpha() else body[1:]
    if word.islower():
        return "lower" if word is body else "joined"
    inside = inside and word is body
    if word.isupper():
        return "initials" if inside else "upper"
    if word[1:].islower():
        return "camel" if inside else "title"
    switches = sum(one.isupper() != other.isupper() for one, other in pairwise(word))
    return "tangled" if switches * 3 > len(word) + 3 else "cased"

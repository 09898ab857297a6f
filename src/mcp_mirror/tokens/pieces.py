"""Splits a text into pieces of the size at which tokenizers split, and classifies their characters."""

import re
import string
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import Final

_CASED: Final = "A-Za-z\u00aa\u00b5\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u03ff\u0400-\u052f\u1e00-\u1fff"
"""Letters of scripts with capitals. A run of them is one piece, since only some tokenizers split it at capitals."""
_HAN: Final = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
_OTHER: Final = (
    "\u0530-\u1dff\u2c00-\u2dff\u3105-\u31ff\ua000-\uabff"
    "\ufb00-\ufdff\ufe70-\ufefe\uff21-\uff3a\uff41-\uff5a\uff66-\uffdc"
)


_EMOJI: Final = "\U0001f000-\U0001faff"
_REGIONAL: Final = "\U0001f1e6-\U0001f1ff"
"""Two of these letters form a flag."""
_SIGNS: Final = "\u2600-\u27bf"


def _compile_pattern(cased: str, scripts: Iterable[str], signs: str = "") -> re.Pattern[str]:
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


_ASCII_PIECE: Final = _compile_pattern("A-Za-z", ())


@cache
def _piece() -> re.Pattern[str]:
    """The pattern of a piece of any text. It is compiled at its first use, which takes a hundredth of a start."""
    return _compile_pattern(_CASED, (_HAN, _OTHER), _EMOJI + _SIGNS)


def split(text: str) -> list[str]:
    """The pieces of a text, in order and complete."""
    return (_ASCII_PIECE if text.isascii() else _piece()).findall(text)


_CAMEL_CASE_WORD: Final = re.compile("[^A-Za-z]?(?:[a-z]+|[A-Z]+[a-z]*)|[^A-Za-z]+")


def split_camel_case(piece: str) -> list[str]:
    """The words of a piece of ASCII letters, separated at capitals: several tokenizers split there."""
    return _CAMEL_CASE_WORD.findall(piece)


_SHAPE: Final = bytes.maketrans(
    (string.ascii_letters + string.digits + string.punctuation + "\t\r").encode(),
    b"a" * 52 + b"0" * 10 + b"," * 32 + b"\n" * 2,
)
"""The class of each byte of UTF-8 at joints between pieces."""
JOINTS: Final = (
    b"0 a", b"0 ,", b", a", b", ,", b", 0", b"a 0", b"a ,", b"\n a", b"\n ,", b",a", b"0a", b"a0", b",0", b"0,",
    b"  0", b"  ,",
)  # fmt: skip
"""Joints between pieces: letters `a`, digits `0`, signs `,`, line breaks. Some tokenizers mark the edges of words or
merge across them."""
_TOKEN_MARKUP: Final = re.compile(
    "</?(?:[abisu]|h[1-6]|t[dhr]|ul|li|em|su[bp]|div|span|code|body|html|strong|table|tbody|thead|tfoot|caption|footer|"
    "iframe|img|blockquote)>(?=(<?))"
)
"""Markup that is a single token for Gemma in any context; the group shows whether markup follows."""


_WIDE_EDGE: Final = (
    "[\u2190-\u2bff\u3001-\u303f\u3400-\u9fff\uac00-\ud7a3\ufe0f\uff00-\uffef\U0001f000-\U0001faff] (?=[!-~])"
)
"""A space between a sign, an emoji or an ideograph and ASCII, which Claude's tokenizers merge with neither."""


def count_joints(text: str) -> list[int]:
    """Count each of `JOINTS`, then single-token markup, such markup before other markup, and `_WIDE_EDGE`."""
    shape = text.encode(errors="surrogatepass").translate(_SHAPE)
    tags = _TOKEN_MARKUP.findall(text) if "<" in text else []
    wide = 0 if text.isascii() else len(re.findall(_WIDE_EDGE, text))
    return [*map(shape.count, JOINTS), len(tags), tags.count("<"), wide]


def classify_piece(piece: str) -> str:
    """The class whose rule applies to a piece without a measured cost."""
    body = piece.strip(" \t\r\n\v\f")
    if not body:
        return "space"
    last = body[-1]
    if last.isascii():
        return _classify_ascii(body, is_inside=piece[0] == body[0])
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
"""The end of each class of characters beyond ASCII."""


def _classify_ascii(body: str, *, is_inside: bool) -> str:
    """The class of ASCII text; `is_inside` means that it continues a word, as in the middle of `camelCase`."""
    if body[-1].isdigit():
        return "digit"
    if not body[-1].isalpha():
        return "punctuation"
    word = body if body[0].isalpha() else body[1:]
    if word.islower():
        return "lower" if word is body else "joined"
    is_inside = is_inside and word is body
    if word.isupper():
        return "initials" if is_inside else "upper"
    if word[1:].islower():
        return "camel" if is_inside else "title"
    switches = sum(one.isupper() != other.isupper() for one, other in pairwise(word))
    return "tangled" if switches * 3 > len(word) + 3 else "cased"

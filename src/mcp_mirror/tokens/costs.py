"""Splits a text into pieces as tokenizers do, and returns the costs of the pieces with each provider's tokenizer.

Frequent pieces have a measured cost each; the cost of any other piece follows from its parts by a rule for its class
of characters, whose variance is known. `make calibrate` measured or fitted all numbers. The costs of all providers are
stored as lanes of one integer, so that one addition adds all of them.
"""

import json
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.resources import as_file, files
from itertools import pairwise
from mmap import ACCESS_READ, mmap
from typing import Final, NamedTuple

import msgspec

from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.tokens.lexicon import Data, Lexicon

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
    before = rf"[^\r\n0-9{letters}]?+"
    words = rf"{before}[{cased}]++(?:'(?:s|t|re|ve|m|ll|d)\b)?+"
    others = "".join(rf"|{before}[{script}]++" for script in scripts)
    marks = (
        rf"| ?[{_REGIONAL}]{{2}}| ?[{signs}]\ufe0f?+| ?[^\s0-9{letters}{signs}]++[\r\n/]*+"
        if signs
        else rf"| ?[^\s0-9{letters}]++[\r\n/]*+"
    )
    return re.compile(rf"{words}|[0-9]{{1,3}}+{marks}|\s*[\r\n]+|\s+(?!\S){others}|\s++")


_ASCII_PIECE: Final = _compile_pattern("A-Za-z", ())


@cache
def _piece() -> re.Pattern[str]:
    """The pattern of a piece of any text. It is compiled at its first use, which takes a hundredth of a start."""
    return _compile_pattern(_CASED, (_HAN, _OTHER), _EMOJI + _SIGNS)


def split(text: str) -> list[str]:
    """The pieces of a text, in order and complete."""
    return (_ASCII_PIECE if text.isascii() else _piece()).findall(text)


_CAMEL_CASE_WORD: Final = lazy_pattern("[^A-Za-z]?(?:[a-z]+|[A-Z]+[a-z]*)|[^A-Za-z]+")
"""A word of a piece of ASCII letters, which capitals separate: several tokenizers split there."""
_SHAPE: Final = bytes.maketrans(
    (string.ascii_letters + string.digits + string.punctuation + "\t\r").encode(),
    b"a" * 52 + b"0" * 10 + b"," * 32 + b"\n" * 2,
)
"""The class of each byte of UTF-8 at joints between pieces."""
_JOINTS: Final = (
    b"0 a", b"0 ,", b", a", b", ,", b", 0", b"a 0", b"a ,", b"\n a", b"\n ,", b",a", b"0a", b"a0", b",0", b"0,",
    b"  0", b"  ,",
)  # fmt: skip
"""Joints between pieces: letters `a`, digits `0`, signs `,`, line breaks. Some tokenizers mark the edges of words or
merge across them."""
_TOKEN_MARKUP: Final = lazy_pattern(
    "</?(?:[abisu]|h[1-6]|t[dhr]|ul|li|em|su[bp]|div|span|code|body|html|strong|table|tbody|thead|tfoot|caption|footer|"
    "iframe|img|blockquote)>(?=(<?))"
)
"""Markup that is a single token for Gemma in any context; the group shows whether markup follows."""


_WIDE_EDGE: Final = (
    "[\u2190-\u2bff\u3001-\u303f\u3400-\u9fff\uac00-\ud7a3\ufe0f\uff00-\uffef\U0001f000-\U0001faff] (?=[!-~])"
)
"""A space between a sign, an emoji or an ideograph and ASCII, which Claude's tokenizers merge with neither."""


def count_joints(text: str) -> list[int]:
    """Count each of `_JOINTS`, then single-token markup, such markup before other markup, and `_WIDE_EDGE`."""
    shape = text.encode(errors="surrogatepass").translate(_SHAPE)
    tags = _TOKEN_MARKUP.findall(text) if "<" in text else []
    wide = 0 if text.isascii() else len(re.findall(_WIDE_EDGE, text))
    return [*map(shape.count, _JOINTS), len(tags), tags.count("<"), wide]


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


UNIT: Final = 32
"""Costs are counted in this fraction of a token."""
LANE: Final = 48
"""Bits of one provider's costs: no sum over a text that fits in memory overflows."""
_LONGEST: Final = 9
"""Characters of the longest part in a word without a cost of its own; for punctuation, `_AT_ONCE`."""
_LIST: Final = 16
"""Number of one-character parts above which a piece counts as a list of signs rather than a word."""
_AT_ONCE: Final = 24
"""Characters that a rule covers; a longer piece is split."""
_NEVER: Final = 1 << 16 * LANE
"""A cost above all others."""
_KEPT: Final = 1 << 14
"""Pieces without a measured cost about which something is cached."""


class Rule(msgspec.Struct, frozen=True):
    """The cost of a piece without a measured cost for one provider, in units.

    `weights` apply to the sum of its parts' costs, their number, its characters, and a constant. The variance is
    `spread` square tokens for each token. `doubt` is the relative deviation of all such pieces of a text together: in a
    text in an unforeseen language, for example, all pieces deviate in the same direction.
    """

    weights: tuple[float, float, float, float]
    spread: float
    doubt: float

    def cost(self, parts: int, count: int, characters: int) -> int:
        """The expected units, at least those of one token; for a long list of signs, the sum of its parts."""
        if count == characters >= _LIST:
            return max(parts, UNIT)
        by_parts, by_count, by_characters, constant = self.weights
        return max(round(by_parts * parts + by_count * count + by_characters * characters + constant), UNIT)


class Margin(msgspec.Struct, frozen=True):
    """The margin that is added to a provider's expected tokens: a share of them and a number of standard deviations.

    `noise` is the variance of each token with a measured cost, caused by merges with its neighbours.
    """

    share: float
    deviations: float
    noise: float


@dataclass(frozen=True, slots=True)
class CostTable:
    """The results of `make calibrate` for its tokenizers in their order."""

    tokenizers: tuple[str, ...]
    margins: tuple[Margin, ...]
    rules: Mapping[str, tuple[Rule, ...]] = field(repr=False)
    """By class of pieces: one rule per tokenizer."""
    unknown: Mapping[str, int] = field(repr=False)
    """By class: the packed cost of a character that is not a known part."""
    costs: Lexicon = field(repr=False)
    """By piece: the units of each tokenizer in lanes, and above them their sum."""
    parts: Lexicon = field(repr=False)
    """By part of a piece: the same."""
    joints: tuple[tuple[float, ...], ...] = ()
    """By tokenizer: tokens for each joint (`pieces.count_joints`); empty if all are 0."""

    def guess(self, part: "RarePart") -> "Guess":
        """The cost of a part.

        In a run of letters, a part costs the sum of its own parts.
        """
        cost = spread = 0
        packed, count = self.sum_parts(part.text)
        size, name = len(part.text), classify_piece(part.text)
        for at, rule in enumerate(self.rules[name]):
            units = lane(packed, at)
            if not part.is_run:
                units = rule.cost(units, count, size)
            cost += units << LANE * at
            spread += round(units * rule.spread) << LANE * at
        return Guess(cost, spread, part.named or name)

    def sum_parts(self, piece: str) -> tuple[int, int]:
        """The packed costs of a piece's parts, and their number; capitals separate its words."""
        words = _CAMEL_CASE_WORD.findall(piece) if piece.isascii() and not piece.islower() else [piece]
        if len(words) == 1:
            return self._find_least(piece)
        own = [self.costs.known[word] for word in words]
        each = [(cost, 1) if cost else self._find_least(word) for word, cost in zip(words, own, strict=True)]
        return sum(cost for cost, _ in each), sum(count for _, count in each)

    def _find_least(self, piece: str) -> tuple[int, int]:
        """The packed costs and the number of the known parts that make up a piece at the lowest total cost."""
        size, longest = len(piece), _LONGEST if piece[-1].isalnum() else _AT_ONCE
        best, counts = [0, *[_NEVER] * size], [0] * (size + 1)
        known, continuations = self.parts.known, self.parts.continuations
        for start, character in enumerate(piece):
            cost, count = best[start], counts[start] + 1
            single = cost + (known[character] or self._cost_of_unknown(character))
            if single <= best[start + 1]:
                best[start + 1], counts[start + 1] = single, count
            ends = range(start + 2, min(start + longest, size) + 1)
            if not ends:  # the last character: all parts that begin with it need not be read
                continue
            find = continuations(piece[start : start + 2]).get
            for end in ends:
                part = find(piece[start:end])
                if part is None:
                    break
                if part and (total := cost + part) < best[end]:
                    best[end], counts[end] = total, count
        return best[-1], counts[-1]

    def _cost_of_unknown(self, character: str) -> int:
        """The packed cost of an unknown character: that of its class, else one token per byte."""
        size = len(character.encode(errors="surrogatepass")) * UNIT
        return self.unknown.get(classify_piece(character)) or with_sum([size] * len(self.tokenizers))


def pack(numbers: Iterable[int]) -> int:
    """Pack one number for each tokenizer into lanes."""
    return sum(number << LANE * at for at, number in enumerate(numbers))


def with_sum(numbers: Sequence[int]) -> int:
    """Pack the numbers, and above all lanes their sum, so that a comparison finds the lowest total."""
    return pack([*numbers, sum(numbers)])


def lane(packed: int, at: int) -> int:
    """The number of one tokenizer."""
    return packed >> LANE * at & (1 << LANE) - 1


def decode_table(data: Data) -> CostTable:
    """Decode a table without reading the costs yet."""
    start = data.find(b"\n") + 1
    header = json.loads(data[:start])
    parts = start + header["bytes"][0]
    rows = parts + header["bytes"][1]
    row_size = compute_row_size(len(header["tokenizers"]))

    def read_cost(row: int) -> int:
        at = rows + row * row_size
        return int.from_bytes(data[at : at + row_size], "little")

    rules = {name: tuple(Rule(tuple(row[:4]), *row[4:]) for row in rules) for name, rules in header["rules"].items()}
    return CostTable(
        tokenizers=tuple(header["tokenizers"]),
        margins=tuple(Margin(*margin) for margin in header["margins"]),
        rules=rules,
        unknown={name: with_sum(units) for name, units in header["unknown"].items()},
        costs=Lexicon(data, start, read_cost),
        parts=Lexicon(data, parts, read_cost),
        joints=tuple(tuple(each) if any(each) else () for each in header["joints"]),
    )


def compute_row_size(width: int) -> int:
    """Bytes of a row: the costs of `width` tokenizers and their sum."""
    return (width + 1) * LANE // 8


class RarePart(NamedTuple):
    """A part, of at most 24 characters, of a piece without a measured cost."""

    text: str
    named: str = ""
    """The class of the piece; empty: that of the part, which is the whole piece."""
    is_run: bool = False
    """The piece is a long run of letters that is not a word, such as a gene sequence."""


def split_rare(piece: str) -> list[RarePart]:
    """The parts of a piece without a measured cost; their costs add up to its cost."""
    if len(piece) <= _AT_ONCE:
        return [RarePart(piece)]
    named, is_run = classify_piece(piece), piece.isascii()
    return [RarePart(piece[start : start + _AT_ONCE], named, is_run) for start in range(0, len(piece), _AT_ONCE)]


class Guess(NamedTuple):
    """The cost of a part of a piece without a measured cost, in lanes."""

    units: int
    variance: int
    """Of the units, in 1 / `UNIT` square tokens."""
    named: str
    """The class of the piece."""


@cache
def table() -> CostTable:
    """The table of the package, memory-mapped at first use."""
    with as_file(files(__package__) / "costs.bin") as path, path.open("rb") as file:
        return decode_table(mmap(file.fileno(), 0, access=ACCESS_READ))


@lru_cache(maxsize=_KEPT)
def guess(part: RarePart) -> Guess:
    """The estimated cost of a part by the package's table; recent parts are cached, since rare words recur."""
    return table().guess(part)

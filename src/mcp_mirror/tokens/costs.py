"""The costs of pieces of text with each provider's tokenizer.

Frequent pieces have a measured cost each; the cost of any other piece follows from its parts by a rule for its class
of characters, whose variance is known. `make calibrate` measured or fitted all numbers. The costs of all providers are
stored as lanes of one integer, so that one addition adds all of them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.resources import as_file, files
from mmap import ACCESS_READ, mmap
from typing import Final, NamedTuple

from mcp_mirror.tokens.lexicon import Data, Known, Lexicon, pack_lexicon
from mcp_mirror.tokens.pieces import classify_piece, split_camel_case

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


@dataclass(frozen=True, slots=True)
class Rule:
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


@dataclass(frozen=True, slots=True)
class Margin:
    """The margin that is added to a provider's expected tokens: a share of them and a number of standard deviations.

    `noise` is the variance of each token with a measured cost, caused by merges with its neighbours.
    """

    share: float
    deviations: float
    noise: float


@dataclass(frozen=True, slots=True)
class Table:
    """The results of `make calibrate` for its tokenizers in their order."""

    tokenizers: tuple[str, ...]
    margins: tuple[Margin, ...]
    rules: Mapping[str, tuple[Rule, ...]] = field(repr=False)
    """By class of pieces: one rule per tokenizer."""
    unknown: Mapping[str, int] = field(repr=False)
    """By class: the packed cost of a character that is not a known part."""
    costs: Mapping[str, int] = field(repr=False)
    """By piece: the units of each tokenizer in lanes, and above them their sum."""
    parts: Lexicon = field(repr=False)
    """By part of a piece: the same."""
    joints: tuple[tuple[float, ...], ...] = ()
    """By tokenizer: tokens for each joint (`pieces.count_joints`); empty if all are 0."""

    def guess(self, piece: str) -> tuple[int, int]:
        """Units of a piece without a measured cost, and their variance in 1 / `UNIT` square tokens; in lanes.

        A long run of letters that is not a word, such as a gene sequence, costs the sum of its parts.
        """
        cost = spread = 0
        is_run = len(piece) > _AT_ONCE and piece.isascii()
        for start in range(0, len(piece), _AT_ONCE):
            part = piece[start : start + _AT_ONCE]
            packed, count = self.sum_parts(part)
            for at, rule in enumerate(self.rules[classify_piece(part)]):
                units = lane(packed, at) if is_run else rule.cost(lane(packed, at), count, len(part))
                cost += units << LANE * at
                spread += round(units * rule.spread) << LANE * at
        return cost, spread

    def sum_parts(self, piece: str) -> tuple[int, int]:
        """The packed costs of a piece's parts, and their number; capitals separate its words."""
        words = split_camel_case(piece) if piece.isascii() and not piece.islower() else [piece]
        if len(words) == 1:
            return self._sum_least(piece)
        own = [self.costs.get(word) for word in words]
        each = [(cost, 1) if cost else self._sum_least(word) for word, cost in zip(words, own, strict=True)]
        return sum(cost for cost, _ in each), sum(count for _, count in each)

    def _sum_least(self, piece: str) -> tuple[int, int]:
        """The packed costs and the number of the known parts that make up a piece at the lowest total cost."""
        longest = _LONGEST if piece[-1].isalnum() else _AT_ONCE
        groups = [self.parts.starting_with(piece[start : start + 2]) for start in range(len(piece) - 1)]
        best, counts = [0], [0]
        for end in range(1, len(piece) + 1):
            start = end - 1
            least = best[start] + (self.parts.known[piece[start]] or self._cost_of_unknown(piece[start]))
            count = counts[start]
            for start in range(max(end - longest, 0), end - 1):
                part = groups[start].get(piece[start:end])
                if part and best[start] + part < least:
                    least, count = best[start] + part, counts[start]
            best.append(least)
            counts.append(count + 1)
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


def lanes(packed: int, count: int) -> list[int]:
    """The numbers of the first `count` tokenizers."""
    return [lane(packed, at) for at in range(count)]


def encode_table(table: Table) -> bytes:
    """Encode the table for the package: uncompressed, so that it can be memory-mapped and read in place.

    The format is a line of JSON, the pieces and the parts (`pack_lexicon`), then the rows of costs in lanes.
    """
    width = len(table.tokenizers)
    rows = {packed: at for at, packed in enumerate(dict.fromkeys([*table.costs.values(), *table.parts.values()]))}
    lexicons = [
        pack_lexicon({name: rows[packed] for name, packed in each.items()}) for each in (table.costs, table.parts)
    ]
    header = {
        "tokenizers": table.tokenizers,
        "margins": [[margin.share, margin.deviations, margin.noise] for margin in table.margins],
        "joints": table.joints,
        "rules": {
            name: [[*rule.weights, rule.spread, rule.doubt] for rule in rules] for name, rules in table.rules.items()
        },
        "unknown": {name: lanes(packed, width) for name, packed in table.unknown.items()},
        "bytes": [len(each) for each in lexicons],
    }
    numbers = b"".join(packed.to_bytes(_compute_row_size(width), "little") for packed in rows)
    return json.dumps(header).encode() + b"\n" + b"".join(lexicons) + numbers


def decode_table(data: Data) -> Table:
    """Decode a table without reading the costs yet."""
    start = data.find(b"\n") + 1
    header = json.loads(data[:start])
    parts = start + header["bytes"][0]
    rows = _Rows(data, parts + header["bytes"][1], _compute_row_size(len(header["tokenizers"])))
    rules = {name: tuple(Rule(tuple(row[:4]), *row[4:]) for row in rules) for name, rules in header["rules"].items()}
    return Table(
        tokenizers=tuple(header["tokenizers"]),
        margins=tuple(Margin(*margin) for margin in header["margins"]),
        rules=rules,
        unknown={name: with_sum(units) for name, units in header["unknown"].items()},
        costs=Lexicon(data, start, rows),
        parts=Lexicon(data, parts, rows),
        joints=tuple(tuple(each) if any(each) else () for each in header["joints"]),
    )


def _compute_row_size(width: int) -> int:
    """Bytes of a row: the costs of `width` tokenizers and their sum."""
    return (width + 1) * LANE // 8


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of costs, read on demand."""

    data: Data
    start: int
    size: int

    def __getitem__(self, row: int) -> int:
        at = self.start + row * self.size
        return int.from_bytes(self.data[at : at + self.size], "little")


class Guess(NamedTuple):
    """The cost of a piece without a measured cost, in lanes: units and their variance (`Table.guess`)."""

    units: int
    variance: int
    named: str
    """The class of the piece."""


@cache
def costs() -> Known:
    """Units of the package's pieces in lanes; 0 for a piece without a measured cost."""
    return Known(table().costs)


@cache
def table() -> Table:
    """The table of the package, memory-mapped at first use."""
    with as_file(files(__package__) / "costs.bin") as path, path.open("rb") as file:
        return decode_table(mmap(file.fileno(), 0, access=ACCESS_READ))


@lru_cache(maxsize=1 << 14)
def guess(piece: str) -> Guess:
    """The estimated cost of a piece by the package's table; recent pieces are cached, since rare words recur."""
    return Guess(*table().guess(piece), classify_piece(piece))

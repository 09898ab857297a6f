"""What pieces of text cost with each provider's tokenizer.

Pieces that are frequent have a measured cost each; the cost of any other follows from those of its parts, by a rule
for its class of characters whose spread is known. All of the numbers were measured or fitted by `make calibrate`.
The costs of all providers lie side by side, as lanes of one integer, so that one addition adds them all.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.resources import as_file, files
from mmap import ACCESS_READ, mmap
from typing import Final, NamedTuple

from mcp_mirror.tokens.lexicon import Data, Known, Lexicon, pack_lexicon
from mcp_mirror.tokens.pieces import class_of, humps

UNIT: Final = 32
"""Parts of a token that costs are counted in."""
LANE: Final = 48
"""Bits of one provider's costs: no sum over a text that fits in memory overflows."""
_LONGEST: Final = 9
"""Characters of the longest part that is looked for in a word without a cost of its own; in signs, `_AT_ONCE`."""
_LIST: Final = 16
"""Parts of one character each from which on a piece is no word, but a list of signs."""
_AT_ONCE: Final = 24
"""Characters that a rule is for; what is longer is taken as several pieces."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a piece without a cost of its own costs a provider, in units.

    Weights of the sum over its parts, of their number, of its characters, and a constant. The variance is `spread`
    square tokens for each token. `doubt` is the deviation of all such pieces of a text together, as a share of their
    tokens: a text in an unforeseen language, say, errs with each of them the same way.
    """

    weights: tuple[float, float, float, float]
    spread: float
    doubt: float

    def cost(self, parts: int, count: int, characters: int) -> int:
        """The expected units: those of a token at least. Of a long list of no words, all parts."""
        if count == characters >= _LIST:
            return max(parts, UNIT)
        by_parts, by_count, by_characters, constant = self.weights
        return max(round(by_parts * parts + by_count * count + by_characters * characters + constant), UNIT)


@dataclass(frozen=True, slots=True)
class Margin:
    """What is added to a provider's expected tokens: a share of them, and so many standard deviations.

    `noise` is the variance of each token that has a cost of its own, by how it joins with its neighbours.
    """

    share: float
    deviations: float
    noise: float


@dataclass(frozen=True, slots=True)
class Table:
    """What `make calibrate` found, for its tokenizers in their order."""

    tokenizers: tuple[str, ...]
    margins: tuple[Margin, ...]
    rules: Mapping[str, tuple[Rule, ...]] = field(repr=False)
    """By class of pieces: one rule a tokenizer."""
    unknown: Mapping[str, int] = field(repr=False)
    """By class: the same of a character that is no part."""
    costs: Mapping[str, int] = field(repr=False)
    """By piece: units for each tokenizer, in lanes, and in the lane above these their sum."""
    parts: Lexicon = field(repr=False)
    """By part of a piece: the same."""
    joints: tuple[tuple[float, ...], ...] = ()
    """By tokenizer: tokens for each joint (`pieces.count_joints`)."""

    def guess(self, piece: str) -> tuple[int, int]:
        """Units, and their variance in 1 / `UNIT` square tokens, of a piece without a cost of its own; in lanes.

        A run of letters that is no word of any language costs all of its parts: genes, proteins, what has no end.
        """
        cost = spread = 0
        is_run = len(piece) > _AT_ONCE and piece.isascii()
        for start in range(0, len(piece), _AT_ONCE):
            part = piece[start : start + _AT_ONCE]
            packed, count = self.sum_parts(part)
            for at, rule in enumerate(self.rules[class_of(part)]):
                units = lane(packed, at) if is_run else rule.cost(lane(packed, at), count, len(part))
                cost += units << LANE * at
                spread += round(units * rule.spread) << LANE * at
        return cost, spread

    def sum_parts(self, piece: str) -> tuple[int, int]:
        """The costs of what a piece is made of, and the number of parts: its words, where capitals part them."""
        words = humps(piece) if piece.isascii() and not piece.islower() else [piece]
        if len(words) == 1:
            return self._sum_least(piece)
        own = [self.costs.get(word) for word in words]
        each = [(cost, 1) if cost else self._sum_least(word) for word, cost in zip(words, own, strict=True)]
        return sum(cost for cost, _ in each), sum(count for _, count in each)

    def _sum_least(self, piece: str) -> tuple[int, int]:
        """The costs of the known parts that a piece is made of at the least cost in all, and their number."""
        longest = _LONGEST if piece[-1].isalnum() else _AT_ONCE
        groups = [self.parts.starting_with(piece[start : start + 2]) for start in range(len(piece) - 1)]
        best, counts = [0], [0]
        for end in range(1, len(piece) + 1):
            start = end - 1
            least = best[start] + (self.parts.known[piece[start]] or self._unknown(piece[start]))
            count = counts[start]
            for start in range(max(end - longest, 0), end - 1):
                part = groups[start].get(piece[start:end])
                if part and best[start] + part < least:
                    least, count = best[start] + part, counts[start]
            best.append(least)
            counts.append(count + 1)
        return best[-1], counts[-1]

    def _unknown(self, character: str) -> int:
        """The cost of a character of which nothing is known: that of others of its class, else a token a byte."""
        size = len(character.encode(errors="surrogatepass")) * UNIT
        return self.unknown.get(class_of(character)) or with_sum([size] * len(self.tokenizers))


def pack(numbers: Iterable[int]) -> int:
    """One number for each tokenizer, in lanes."""
    return sum(number << LANE * at for at, number in enumerate(numbers))


def with_sum(numbers: Sequence[int]) -> int:
    """As `pack`, and above all lanes their sum: by comparison, the least in all."""
    return pack([*numbers, sum(numbers)])


def lane(packed: int, at: int) -> int:
    """The number of one tokenizer."""
    return packed >> LANE * at & (1 << LANE) - 1


def lanes(packed: int, count: int) -> list[int]:
    """The numbers of so many tokenizers."""
    return [lane(packed, at) for at in range(count)]


def encode_table(table: Table) -> bytes:
    """The table as it is in the package: uncompressed, so that it can be mapped into memory and read in place.

    A line of JSON, the pieces and the parts (`pack_lexicon`), then the rows of costs, in lanes.
    """
    width = len(table.tokenizers)
    rows = {packed: at for at, packed in enumerate(dict.fromkeys([*table.costs.values(), *table.parts.values()]))}
    lexicons = [
        pack_lexicon({name: rows[packed] for name, packed in each.items()}) for each in (table.costs, table.parts)
    ]
    said = {
        "tokenizers": table.tokenizers,
        "margins": [[margin.share, margin.deviations, margin.noise] for margin in table.margins],
        "joints": table.joints,
        "rules": {
            name: [[*rule.weights, rule.spread, rule.doubt] for rule in rules] for name, rules in table.rules.items()
        },
        "unknown": {name: lanes(packed, width) for name, packed in table.unknown.items()},
        "bytes": [len(each) for each in lexicons],
    }
    numbers = b"".join(packed.to_bytes(_row_size(width), "little") for packed in rows)
    return json.dumps(said).encode() + b"\n" + b"".join(lexicons) + numbers


def decode_table(data: Data) -> Table:
    """The reverse of `encode_table`. The costs are not read yet."""
    start = data.find(b"\n") + 1
    said = json.loads(data[:start])
    parts = start + said["bytes"][0]
    rows = _Rows(data, parts + said["bytes"][1], _row_size(len(said["tokenizers"])))
    rules = {name: tuple(Rule(tuple(row[:4]), *row[4:]) for row in rules) for name, rules in said["rules"].items()}
    return Table(
        tokenizers=tuple(said["tokenizers"]),
        margins=tuple(Margin(*margin) for margin in said["margins"]),
        rules=rules,
        unknown={name: with_sum(units) for name, units in said["unknown"].items()},
        costs=Lexicon(data, start, rows),
        parts=Lexicon(data, parts, rows),
        joints=tuple(map(tuple, said["joints"])),
    )


def _row_size(width: int) -> int:
    """Bytes of the costs of so many tokenizers and of their sum."""
    return (width + 1) * LANE // 8


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of costs, read when asked for."""

    data: Data
    start: int
    size: int

    def __getitem__(self, row: int) -> int:
        at = self.start + row * self.size
        return int.from_bytes(self.data[at : at + self.size], "little")


class Guess(NamedTuple):
    """What a piece without a cost of its own costs, in lanes: units, and their variance (`Table.guess`)."""

    units: int
    variance: int
    named: str
    """Its class."""


@cache
def costs() -> Known:
    """Units of the package's pieces, in lanes; 0 for a piece without a cost of its own."""
    return Known(table().costs)


@cache
def table() -> Table:
    """The table of the package, mapped into memory when it is first asked for."""
    with as_file(files(__package__) / "costs.bin") as path, path.open("rb") as file:
        return decode_table(mmap(file.fileno(), 0, access=ACCESS_READ))


@lru_cache(maxsize=1 << 14)
def guess(piece: str) -> Guess:
    """What the package's table makes of a piece; the last are kept, since rare words come in bursts."""
    return Guess(*table().guess(piece), class_of(piece))

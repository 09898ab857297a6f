"""How many tokens a text costs at most, whole or by samples.

A text of up to 32 KiB is looked at whole. Of a larger one, windows are: one at a place of its own in each of equal
strata, so that nothing periodic can hide between them; and four times as many where the deviation between neighbours
says that they do not suffice. A window holds the words that begin in it, so that none is cut. This bounds texts that
change as texts do, in runs; of a text that somebody arranged so that the windows miss what is dense, it falls short.
"""

import codecs
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, pairwise
from operator import mul, not_
from typing import Final

from mcp_mirror.tokens.costs import UNIT, costs, guess, lane, table
from mcp_mirror.tokens.pieces import count_joints, split
from mcp_mirror.types import Buffer

_WHOLE: Final = 1 << 15
"""Bytes, or characters of a `str`, of the largest text that is looked at whole."""
_WINDOW: Final = 48
_REACH: Final = 24
"""How far behind either edge of a window the spaces are looked for before which it is cut."""
_READ: Final = 1 + _WINDOW + _REACH
"""What is read of a window: also the character before it, by which a space is known to be the first."""
_FEW_WINDOWS: Final = 64
_MANY_WINDOWS: Final = 256
_ENOUGH: Final = 0.05
"""Share of the estimate that the standard error of few windows may be."""
_SAMPLED_DEVIATIONS: Final = 3.5
_GOLDEN: Final = (math.sqrt(5) - 1) / 2
_INSIDE: Final = 0x80
"""The upper two bits of a byte inside a character of UTF-8."""
_DECODER: Final = codecs.getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True)
class Expected:
    """Tokens expected of a text by one tokenizer, the variance of those of rare pieces, and the error of the windows.

    The latter is a standard error in tokens, 0 of a text that was looked at whole.
    """

    tokens: float
    variance: float
    sampling: float


def estimate_text(text: str | Buffer, tokenizers: Sequence[int]) -> tuple[int, ...]:
    """Tokens that this text costs at most, by each of these tokenizers (their places in the table).

    Bytes are UTF-8; what is not valid there costs as the replacement character does.
    """
    return tuple(map(_bound, _measured(text, tokenizers), tokenizers))


def expect_text(text: str | Buffer, tokenizers: Sequence[int]) -> tuple[float, ...]:
    """Tokens that this text is expected to cost by each of these tokenizers: a central estimate, without a margin."""
    return tuple(expected.tokens for expected in _measured(text, tokenizers))


def _measured(text: str | Buffer, tokenizers: Sequence[int]) -> list[Expected]:
    """A small text looked at whole, a larger one by windows."""
    if not len(text):
        return [Expected(0, 0, 0)] * len(tokenizers)
    return _expected([_decoded(text)], [len(text)], tokenizers) if len(text) <= _WHOLE else _sampled(text, tokenizers)


def _decoded(text: str | Buffer) -> str:
    return text if isinstance(text, str) else bytes(text).decode(errors="replace")


@dataclass(slots=True)
class _Rare:
    """Rare pieces, as they come."""

    pieces: list[str] = field(default_factory=list)

    def add(self, pieces: Iterable[str]) -> int:
        """Take these in; what they cost, in lanes."""
        start = len(self.pieces)
        self.pieces += pieces
        return sum(guess(piece).units for piece in self.pieces[start:])

    def variances(self, tokenizers: Sequence[int]) -> list[float]:
        """Of each tokenizer's tokens: of each piece, and of all of a class together.

        A rare piece that comes n times is n times as wrong: n squared its variance.
        """
        costs: dict[str, int] = {}
        spread = 0
        for piece, times in Counter(self.pieces).items():
            guessed = guess(piece)
            costs[guessed.named] = costs.get(guessed.named, 0) + times * guessed.units
            spread += times * times * guessed.variance
        by_class = [(table().rules[named], cost) for named, cost in costs.items()]
        return [
            lane(spread, at) / UNIT + sum((rules[at].doubt * lane(cost, at) / UNIT) ** 2 for rules, cost in by_class)
            for at in tokenizers
        ]


def _count(text: str, rare: _Rare) -> int:
    """The sum over the pieces, in lanes; rare ones are also added up."""
    pieces = split(text)
    known = list(map(costs().__getitem__, pieces))
    total = sum(known)
    return total + rare.add(compress(pieces, map(not_, known))) if 0 in known else total


def _expected(
    windows: Sequence[str], sizes: Sequence[int], tokenizers: Sequence[int], scale: float = 1
) -> list[Expected]:
    """Of a text that is so many times its windows, by tokenizer: what the pieces cost, and the joints between them."""
    rare = _Rare()
    each = [_count(window, rare) for window in windows]
    weights = [table().joints[at] for at in tokenizers]
    joints = count_joints("".join(windows)) if any(map(any, weights)) else []
    found = []
    for at, by_joint, variance in zip(tokenizers, weights, rare.variances(tokenizers), strict=True):
        tokens = [lane(total, at) / UNIT for total in each]
        whole = max(sum(tokens) + sum(map(mul, joints, by_joint)), 0.0)
        found.append(Expected(whole * scale, variance * scale * scale, _standard_error(tokens, sizes) * scale))
    return found


def _standard_error(tokens: Sequence[float], sizes: Sequence[int]) -> float:
    """Of the sum of windows of such sizes; 0 of a single one.

    By the differences of neighbours, as is usual for a systematic sample (Wolter, Introduction to Variance Estimation,
    section 8.2): of what each has more than its size lets expect.
    """
    if len(tokens) == 1:
        return 0.0
    density = sum(tokens) / sum(sizes)
    beyond = [count - density * size for count, size in zip(tokens, sizes, strict=True)]
    differences = sum((one - other) ** 2 for one, other in pairwise(beyond)) / (2 * (len(tokens) - 1))
    return math.sqrt(len(tokens) * differences)


def _bound(expected: Expected, at: int) -> int:
    """Expected tokens and their margin."""
    margin = table().margins[at]
    deviation = margin.deviations * math.sqrt(expected.variance + expected.tokens * margin.noise)
    return math.ceil(expected.tokens * (1 + margin.share) + deviation + _SAMPLED_DEVIATIONS * expected.sampling)


def _sampled(text: str | Buffer, tokenizers: Sequence[int]) -> list[Expected]:
    """By few windows, and by many where these differ."""
    for count in (_FEW_WINDOWS, _MANY_WINDOWS):
        windows, sizes = zip(*(_window(text, start) for start in _starts(len(text), count)), strict=True)
        each = _expected(windows, sizes, tokenizers, len(text) / sum(sizes))
        if all(one.sampling <= _ENOUGH * one.tokens for one in each):
            break
    return each


def _starts(size: int, count: int) -> Iterator[int]:
    """Where so many windows start, each at a place of its own in its stratum.

    By squares: were the places a multiple of their number, each would be at the same column of a table of some width.
    """
    stratum = size / count
    return (int(at * stratum + (at * at * _GOLDEN % 1) * (stratum - _READ)) for at in range(count))


def _window(text: str | Buffer, start: int) -> tuple[str, int]:
    """What is in a window (`_words`), and its size."""
    window = text[start : start + _READ]
    if isinstance(window, str):
        window = window[_words(window)]
        return window, len(window)
    raw = bytes(window)
    raw = raw[_words(raw.decode("latin-1"))]
    raw = raw[next((at for at, byte in enumerate(raw[:3]) if byte & 0xC0 != _INSIDE), 3) :]
    decoder = _DECODER("replace")
    return decoder.decode(raw), len(raw) - len(decoder.getstate()[0])


def _words(read: str) -> slice:
    """The words that begin in a window, with the spaces before them; where there are no spaces, all of it."""
    first, last = _first_run(read, 1, 1 + _REACH), _first_run(read, 1 + _WINDOW, _READ)
    return slice(first if first > 0 else 1, last if last > 0 else 1 + _WINDOW)


def _first_run(read: str, start: int, stop: int) -> int:
    """Where the first run of spaces begins between two places; below 0 if none does."""
    at = read.find(" ", start, stop)
    if at == start and read[start - 1] == " ":  # it has begun before
        at = read.find(" ", stop - len(read[start:stop].lstrip(" ")), stop)
    return at

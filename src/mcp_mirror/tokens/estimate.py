"""How many tokens a text costs at most, whole or by samples.

A text of up to 32 KiB is looked at whole. Of a larger one, windows are: one at a place of its own in each of equal
strata, so that nothing periodic can hide between them; and four times as many where the deviation between neighbours
says that they do not suffice. This bounds texts that change as texts do, in runs; of a text that somebody arranged so
that the windows miss what is dense, it can fall short.
"""

import codecs
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, pairwise
from operator import mul, not_
from typing import Final

from mcp_mirror.models import Buffer
from mcp_mirror.tokens.costs import UNIT, costs, guess, lane, table
from mcp_mirror.tokens.pieces import count_joints, split

_WHOLE: Final = 1 << 15
"""Bytes, or characters of a `str`, of the largest text that is looked at whole."""
_WINDOW: Final = 128
_FEW_WINDOWS: Final = 16
_MANY_WINDOWS: Final = 64
_ENOUGH: Final = 0.04
"""Share of the estimate that the standard error of few windows may be."""
_SAMPLED_DEVIATIONS: Final = 3.0
_GOLDEN: Final = (math.sqrt(5) - 1) / 2
_INSIDE: Final = 0x80
"""The upper two bits of a byte inside a character of UTF-8."""
_DECODER: Final = codecs.getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True)
class Expected:
    """Tokens expected of a text by one tokenizer, and the variance of those of rare pieces."""

    tokens: float
    variance: float


def estimate_text(text: str | Buffer) -> tuple[int, ...]:
    """Tokens that this text costs at most, by tokenizer in the order of the table.

    Bytes are UTF-8; what is not valid there costs as the replacement character does.
    """
    size = len(text)
    if not size:
        return (0,) * len(table().tokenizers)
    if size <= _WHOLE:
        return tuple(_bound(each, at, 0.0) for at, each in enumerate(_expected(_decoded(text))))
    return _sampled(text)


def _decoded(text: str | Buffer) -> str:
    return text if isinstance(text, str) else bytes(text).decode(errors="replace")


@dataclass(slots=True)
class _Rare:
    """Sums over rare pieces, in lanes: costs by class, and the variance of all.

    A rare piece that comes n times is n times as wrong: n squared its variance.
    """

    costs: dict[str, int] = field(default_factory=dict)
    spread: int = 0

    def add(self, pieces: Iterable[str]) -> int:
        """Take these in; what they cost."""
        total = 0
        for piece, times in Counter(pieces).items():
            guessed = guess(piece)
            cost = times * guessed.units
            total += cost
            self.costs[guessed.named] = self.costs.get(guessed.named, 0) + cost
            self.spread += times * times * guessed.variance
        return total

    def variance(self, at: int) -> float:
        """Of a tokenizer's tokens: of each piece, and of all of a class together."""
        rules = table().rules
        together = sum((rules[name][at].doubt * lane(cost, at) / UNIT) ** 2 for name, cost in self.costs.items())
        return lane(self.spread, at) / UNIT + together


def _count(text: str, rare: _Rare) -> int:
    """The sum over the pieces, in lanes; rare ones are also added up."""
    pieces = split(text)
    known = list(map(costs().__getitem__, pieces))
    total = sum(known)
    return total + rare.add(compress(pieces, map(not_, known))) if 0 in known else total


def _expected(text: str) -> list[Expected]:
    """By tokenizer: what the pieces cost, and the joints between them."""
    rare = _Rare()
    total, joints = _count(text, rare), count_joints(text)
    return [
        Expected(max(lane(total, at) / UNIT + sum(map(mul, joints, by_joint)), 0.0), rare.variance(at))
        for at, by_joint in enumerate(table().joints)
    ]


def _bound(expected: Expected, at: int, sampling: float) -> int:
    """Expected tokens and their margin; `sampling` is the standard error of the windows, in tokens."""
    margin = table().margins[at]
    deviation = margin.deviations * math.sqrt(expected.variance + expected.tokens * margin.noise)
    return math.ceil(expected.tokens * (1 + margin.share) + deviation + _SAMPLED_DEVIATIONS * sampling)


def _sampled(text: str | Buffer) -> tuple[int, ...]:
    """By few windows, and by many where these differ."""
    for count in (_FEW_WINDOWS, _MANY_WINDOWS):
        windows, sizes = zip(*map(_whole_characters, _windows(text, count)), strict=True)
        each = _by_windows(windows, len(text) / sum(sizes))
        if all(error <= _ENOUGH * whole.tokens for whole, error in each):
            break
    return tuple(_bound(whole, at, error) for at, (whole, error) in enumerate(each))


def _windows(text: str | Buffer, count: int) -> Iterator[str | Buffer]:
    """So many windows, each at a place of its own in its stratum."""
    stratum = len(text) / count
    for at in range(count):
        start = int(at * stratum + (at * _GOLDEN % 1) * (stratum - _WINDOW))
        yield text[start : start + _WINDOW]


def _whole_characters(window: str | Buffer) -> tuple[str, int]:
    """A window without what is left of a character at its edges, and its size."""
    if isinstance(window, str):
        return window, len(window)
    raw = bytes(window)
    raw = raw[next((at for at, byte in enumerate(raw[:3]) if byte & 0xC0 != _INSIDE), 3) :]
    decoder = _DECODER("replace")
    return decoder.decode(raw), len(raw) - len(decoder.getstate()[0])


def _by_windows(windows: Sequence[str], scale: float) -> list[tuple[Expected, float]]:
    """The whole of which these are windows, and the standard error of its tokens, by tokenizer.

    The error is by the differences of neighbours, as is usual for a systematic sample (Wolter, Introduction to
    Variance Estimation, section 8.2).
    """
    found = table()
    rare = _Rare()
    each = [_count(window, rare) for window in windows]
    joints = count_joints("\n".join(windows))
    wholes = []
    for at, by_joint in enumerate(found.joints):
        tokens = [lane(total, at) / UNIT for total in each]
        differences = sum((one - other) ** 2 for one, other in pairwise(tokens)) / (2 * (len(tokens) - 1))
        whole = sum(tokens) + sum(map(mul, joints, by_joint))
        expected = Expected(whole * scale, rare.variance(at) * scale * scale)
        wholes.append((expected, scale * math.sqrt(len(tokens) * differences)))
    return wholes

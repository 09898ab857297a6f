"""An upper bound for the tokens of a text, from the whole text or from samples.

A text of up to 32 KiB is examined whole; of its rare words, if it has very many different ones, a sample. A larger
text is sampled by windows: one in each of equally sized strata, at a different position in each so that nothing
periodic escapes; four times as many if the deviation between neighbours is large. A window contains the words that
begin in it, so that no word is cut. The bound covers texts that vary in runs, as texts do; a text arranged to hide its
dense parts from the windows or the sample can exceed it.
"""

import codecs
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache, partial
from itertools import chain, compress, pairwise
from operator import not_
from typing import Final, NamedTuple

import msgspec

from mcp_mirror.settings.policies import TokenProvider
from mcp_mirror.tokens.costs import (
    LANE,
    UNIT,
    Guess,
    Margin,
    RarePart,
    count_joints,
    guess,
    lane,
    split,
    split_rare,
    table,
)
from mcp_mirror.types import Buffer

_MAX_WHOLE: Final = 1 << 15
"""Bytes, or characters of a `str`, of the largest text that is examined whole."""
_MAX_REPEATED: Final = 1 << 14
"""Bytes, or characters of a `str`, of the largest text that models usually read whole."""
_RECENT: Final = 8
"""Such texts whose measurements are kept."""
_WINDOW: Final = 48
_EDGE_SEARCH: Final = 24
"""Characters after each edge of a window that are searched for a space, before which the window is cut."""
_READ_SIZE: Final = 1 + _WINDOW + _EDGE_SEARCH
"""Characters read for a window, including the one before it, which shows whether a space is the first."""
_FEW_WINDOWS: Final = 64
_MANY_WINDOWS: Final = 256
_MAX_RARE: Final = 3_000
"""Characters of pieces without a measured cost that are examined, equal ones once: a thousand takes 3 ms."""
_MAX_ERROR_SHARE: Final = 0.05
"""Maximum standard error of few windows as a share of the estimate."""
_SAMPLED_DEVIATIONS: Final = 3.5
_GOLDEN: Final = (math.sqrt(5) - 1) / 2
_LANE_MASK: Final = (1 << LANE) - 1
_CONTINUATION: Final = 0x80
"""The upper two bits of a UTF-8 continuation byte."""
_DECODER: Final = codecs.getincrementaldecoder("utf-8")


class Expected(msgspec.Struct, frozen=True):
    """Expected tokens of a text by one tokenizer, the variance of those of rare pieces, and the sampling error.

    The sampling error is a standard error in tokens, 0 for a text that was examined whole.
    """

    tokens: float
    variance: float
    sampling: float


class _Tokenizer(NamedTuple):
    """The constants of one tokenizer."""

    at: int
    """Its index in the table."""
    shift: int
    """The place of its lane in packed costs, in bits."""
    margin: Margin


class _Tokenizers(NamedTuple):
    """The constants of the tokenizers of an estimate."""

    each: tuple[_Tokenizer, ...]
    joints: tuple[tuple[float, ...], ...]
    """For each kind of joint, the tokens of one by each tokenizer."""


@lru_cache
def _read_tokenizers(indices: tuple[int, ...]) -> _Tokenizers:
    known = table()
    each = tuple(_Tokenizer(at, LANE * at, known.margins[at]) for at in indices)
    number = max(map(len, known.joints))
    return _Tokenizers(each, tuple(zip(*(known.joints[at] or (0.0,) * number for at in indices), strict=True)))


def upper_estimator(provider: TokenProvider) -> Callable[[Buffer], int]:
    """A function that estimates the tokens of a text for one provider, as an upper bound."""
    return partial(estimate_text, provider=provider)


@cache
def expected_estimator(provider: TokenProvider) -> Callable[[Buffer], int]:
    """A function that returns the expected tokens of a text (UTF-8) for one provider: a central estimate.

    For `default` it is the median over all tokenizers, for `anthropic` the count of the current models.
    """
    return partial(_expect_text, provider=provider)


def estimate_text(text: str | Buffer, provider: TokenProvider) -> int:
    """The maximum tokens of a text for one provider.

    Bytes are UTF-8; invalid bytes cost as much as the replacement character.
    """
    tokenizers = _select_tokenizers(provider)
    return max(_add_margins(_measure(text, tokenizers), _read_tokenizers(tokenizers).each))


def _expect_text(text: Buffer, provider: TokenProvider) -> int:
    tokenizers = _select_tokenizers(provider)
    measured = _measure(text, tokenizers if provider == "default" else tokenizers[:1])
    each = sorted(expected.tokens for expected in measured)
    return round(each[(len(each) - 1) // 2])


@cache
def _select_tokenizers(provider: TokenProvider) -> tuple[int, ...]:
    """The indices in the table of the tokenizers whose largest count is valid for this provider."""
    each = table().tokenizers
    named = {"default": each, "anthropic": ("anthropic", "anthropic-4.6")}.get(provider, (provider,))
    return tuple(map(each.index, named))


def _measure(text: str | Buffer, tokenizers: tuple[int, ...]) -> Sequence[Expected]:
    """Measure a small text whole, a larger one by windows."""
    if not len(text):
        return [Expected(0, 0, 0)] * len(tokenizers)
    if len(text) <= _MAX_REPEATED:
        return _measure_repeated(_decode(text), tokenizers)
    if len(text) <= _MAX_WHOLE:
        return _measure_whole(_decode(text), tokenizers)
    known = _read_tokenizers(tokenizers)
    for count in (_FEW_WINDOWS, _MANY_WINDOWS):
        windows, sizes = zip(
            *(_read_window(text, start) for start in _choose_places(len(text), count, _READ_SIZE)), strict=True
        )
        each = _expect(windows, sizes, known, len(text) / sum(sizes))
        if all(one.sampling <= _MAX_ERROR_SHARE * one.tokens for one in each):
            break  # few windows are enough, because they vary little
    return each


def _decode(text: str | Buffer) -> str:
    return text if isinstance(text, str) else bytes(text).decode(errors="replace")


class _Costs:
    """The costs of the pieces of texts. If they have very many rare parts, a sample of these is examined."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._known: list[int] = []
        """By text: the cost of its pieces with a measured cost, in lanes."""
        rare: list[list[str]] = []
        """By text: its other pieces."""
        for text in texts:
            pieces = split(text)
            costs = list(map(table().costs.known.__getitem__, pieces))
            self._known.append(sum(costs))
            rare.append(list(compress(pieces, map(not_, costs))) if 0 in costs else [])
        self._rare = [0] * len(rare)
        """By text: the cost of its examined parts, in lanes."""
        self._scale = 1.0
        """The characters of all rare parts for each examined one."""
        self._times: dict[RarePart, int] = {}
        self._squares: dict[RarePart, int] = {}
        """The errors of n occurrences of a rare piece are equal, so its variance counts n squared times."""
        self._guesses: dict[RarePart, Guess] = {}
        if any(rare):
            self._examine(rare)

    def _examine(self, rare: Sequence[Sequence[str]]) -> None:
        """Guess the costs of the rare pieces of each text, or of a sample."""
        for piece, times in Counter(chain.from_iterable(rare)).items():
            for part in split_rare(piece):
                self._times[part] = self._times.get(part, 0) + times
                self._squares[part] = self._squares.get(part, 0) + times * times
        parts = list(self._times)
        characters = sum(len(part.text) for part in parts)
        if characters > _MAX_RARE:
            parts = [parts[at] for at in _choose_places(len(parts), len(parts) * _MAX_RARE // characters)]
        self._guesses = {part: guess(part) for part in parts}
        examined = sum(self._times[part] * len(part.text) for part in self._guesses)
        self._scale = sum(len(piece) for pieces in rare for piece in pieces) / examined
        self._rare = [self._sum_examined(pieces) for pieces in rare]

    def _sum_examined(self, pieces: Iterable[str]) -> int:
        parts = (part for piece in pieces for part in split_rare(piece))
        return sum(self._guesses[part].units for part in parts if part in self._guesses)

    def totals(self, tokenizers: Sequence[_Tokenizer]) -> list[float]:
        """The cost of all texts, by tokenizer."""
        known, rare, scale = sum(self._known), sum(self._rare), self._scale
        return [(known >> one.shift & _LANE_MASK) + scale * (rare >> one.shift & _LANE_MASK) for one in tokenizers]

    def units(self, one: _Tokenizer) -> list[float]:
        """The cost of each text."""
        shift, scale = one.shift, self._scale
        return [
            (known >> shift & _LANE_MASK) + scale * (rare >> shift & _LANE_MASK)
            for known, rare in zip(self._known, self._rare, strict=True)
        ]

    def variances(self, tokenizers: Sequence[_Tokenizer]) -> list[float]:
        """The variance of each tokenizer's tokens: of single pieces, and of all pieces of a class together."""
        if not self._guesses:
            return [0.0] * len(tokenizers)
        costs: dict[str, int] = {}
        spread = 0
        for part, guessed in self._guesses.items():
            costs[guessed.named] = costs.get(guessed.named, 0) + self._times[part] * guessed.units
            spread += self._squares[part] * guessed.variance
        by_class = [(table().rules[named], cost) for named, cost in costs.items()]
        unit = self._scale / UNIT
        return [
            lane(spread, one.at) * unit
            + sum((rules[one.at].doubt * lane(cost, one.at) * unit) ** 2 for rules, cost in by_class)
            for one in tokenizers
        ]

    def sampling_errors(self, tokenizers: Sequence[_Tokenizer]) -> list[float]:
        """The standard error of each tokenizer's tokens if the rare parts are a sample; 0 if all are examined.

        The estimate is in proportion to the characters (Cochran, Sampling Techniques, section 6.4).
        """
        if self._scale == 1:
            return [0.0] * len(tokenizers)
        sizes = [self._times[part] * len(part.text) for part in self._guesses]
        factor = self._scale * (self._scale - 1) * len(sizes) / (len(sizes) - 1)
        errors = []
        for one in tokenizers:
            units = [self._times[part] * lane(guessed.units, one.at) for part, guessed in self._guesses.items()]
            density = sum(units) / sum(sizes)
            squares = sum((cost - density * size) ** 2 for cost, size in zip(units, sizes, strict=True))
            errors.append(math.sqrt(squares * factor) / UNIT)
        return errors


def _measure_whole(text: str, tokenizers: tuple[int, ...]) -> tuple[Expected, ...]:
    """Expected tokens, by tokenizer, of a text that is examined whole: pieces and joints."""
    known = _read_tokenizers(tokenizers)
    costs, each = _Costs((text,)), known.each
    tokens = _count_tokens(costs.totals(each), count_joints(text), known)
    return tuple(map(Expected, tokens, costs.variances(each), costs.sampling_errors(each)))


_measure_repeated: Final = lru_cache(_RECENT)(_measure_whole)
"""A call measures a result twice: to decide what is shown, and to count what the model reads."""


def _count_tokens(units: Sequence[float], joints: Sequence[int], tokenizers: _Tokenizers) -> list[float]:
    """The expected tokens, by tokenizer, of pieces, whose costs are given, and of the joints between them."""
    totals = [cost / UNIT for cost in units]
    for count, tokens in zip(joints, tokenizers.joints, strict=False):  # none, if all tokens are 0
        if count:  # a short text has few kinds of joints
            totals = [total + count * each for total, each in zip(totals, tokens, strict=True)]
    return [max(total, 0.0) for total in totals]


def _expect(windows: Sequence[str], sizes: Sequence[int], tokenizers: _Tokenizers, scale: float) -> list[Expected]:
    """Expected tokens, by tokenizer, of a text `scale` times as long as its windows."""
    costs, each = _Costs(windows), tokenizers.each
    whole_tokens = _count_tokens(costs.totals(each), count_joints("".join(windows)), tokenizers)
    found = []
    for one, whole, variance, sampled in zip(
        each, whole_tokens, costs.variances(each), costs.sampling_errors(each), strict=True
    ):
        tokens = [cost / UNIT for cost in costs.units(one)]
        error = math.hypot(_compute_standard_error(tokens, sizes), sampled)
        found.append(Expected(whole * scale, variance * scale * scale, error * scale))
    return found


def _compute_standard_error(tokens: Sequence[float], sizes: Sequence[int]) -> float:
    """The standard error of the sum of windows of these sizes.

    Computed from the differences of neighbours' residuals, as is usual for a systematic sample (Wolter, Introduction to
    Variance Estimation, section 8.2).
    """
    density = sum(tokens) / sum(sizes)
    beyond = [count - density * size for count, size in zip(tokens, sizes, strict=True)]
    differences = sum((one - other) ** 2 for one, other in pairwise(beyond)) / (2 * (len(tokens) - 1))
    return math.sqrt(len(tokens) * differences)


def _add_margins(each: Sequence[Expected], tokenizers: Sequence[_Tokenizer]) -> tuple[int, ...]:
    """Expected tokens plus margin, by tokenizer."""
    return tuple(
        [
            math.ceil(
                one.tokens * (1 + margin.share)
                + margin.deviations * math.sqrt(one.variance + one.tokens * margin.noise)
                + _SAMPLED_DEVIATIONS * one.sampling
            )
            for one, (_, _, margin) in zip(each, tokenizers, strict=True)
        ]
    )


def _choose_places(size: int, count: int, length: int = 0) -> Iterator[int]:
    """The starts of `count` samples of a length, each at a different offset in its stratum.

    Offsets grow quadratically: linear ones would hit the same column of a table with a certain width in every stratum.
    """
    stratum = size / count
    return (int(at * stratum + (at * at * _GOLDEN % 1) * (stratum - length)) for at in range(count))


def _read_window(text: str | Buffer, start: int) -> tuple[str, int]:
    """The contents of a window (`_select_words`) and their size."""
    window = text[start : start + _READ_SIZE]
    if isinstance(window, str):
        window = window[_select_words(window)]
        return window, len(window)
    raw = bytes(window)
    raw = raw[_select_words(raw.decode("latin-1"))]
    raw = raw[next((at for at, byte in enumerate(raw[:3]) if byte & 0xC0 != _CONTINUATION), 3) :]
    decoder = _DECODER("replace")
    return decoder.decode(raw), len(raw) - len(decoder.getstate()[0])


def _select_words(read: str) -> slice:
    """The words that begin in a window, with the spaces before them; all of it if it has no spaces."""
    first, last = _find_spaces(read, 1, 1 + _EDGE_SEARCH), _find_spaces(read, 1 + _WINDOW, _READ_SIZE)
    return slice(first if first > 0 else 1, last if last > 0 else 1 + _WINDOW)


def _find_spaces(read: str, start: int, stop: int) -> int:
    """The start of the first run of spaces between two positions; negative without a run."""
    at = read.find(" ", start, stop)
    if at == start and read[start - 1] == " ":  # the run began before `start`
        at = read.find(" ", stop - len(read[start:stop].lstrip(" ")), stop)
    return at

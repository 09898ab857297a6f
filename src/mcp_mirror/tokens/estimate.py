"""An upper bound for the tokens of a text, from the whole text or from samples.

A text of up to 16 KiB is examined whole; of its rare words, if it has very many different ones, a sample. A larger
text is sampled by windows: one in each of equally sized strata, at a different position in each so that nothing
periodic escapes; four times as many if the deviation between neighbours is large. A window contains the words that
begin in it, so that no word is cut. The bound covers texts that vary in runs, as texts do; a text arranged to hide its
dense parts from the windows or the sample can exceed it.
"""

import codecs
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from itertools import chain, pairwise
from operator import mul
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

_MAX_WHOLE: Final = 1 << 14
"""Bytes, or characters of a `str`, of the largest text that is examined whole."""
_MAX_REMEMBERED: Final = 1 << 17
"""The same of the largest text whose measurement is kept."""
_RECENT: Final = 8
"""The number of small and of sampled texts whose measurements are kept."""
_WINDOW: Final = 48
_EDGE_SEARCH: Final = 24
"""Characters after each edge of a window that are searched for a space, before which the window is cut."""
_READ_SIZE: Final = 1 + _WINDOW + _EDGE_SEARCH
"""Characters read for a window, including the one before it, which shows whether a space is the first."""
_FEW_WINDOWS: Final = 64
_MANY_WINDOWS: Final = 256
_MAX_RARE: Final = 1_500
"""Characters of pieces without a measured cost that are examined, equal ones once: a thousand takes 3 ms."""
_MAX_ERROR_SHARE: Final = 0.05
"""Maximum standard error of few windows as a share of the estimate."""
_SAMPLED_DEVIATIONS: Final = 3.5
_GOLDEN: Final = (math.sqrt(5) - 1) / 2
_LANE_MASK: Final = (1 << LANE) - 1
_CONTINUATION: Final = 0x80
"""The upper two bits of a UTF-8 continuation byte."""
_DECODER: Final = codecs.getincrementaldecoder("utf-8")


class _Tokenizer(NamedTuple):
    """The constants of one tokenizer."""

    at: int
    """Its index in the table."""
    shift: int
    """The place of its lane in packed costs, in bits."""
    margin: Margin
    joints: tuple[float, ...]
    """The tokens of each kind of joint; empty if all are 0."""


@lru_cache
def _read_tokenizers(indices: tuple[int, ...]) -> tuple[_Tokenizer, ...]:
    known = table()
    return tuple(_Tokenizer(at, LANE * at, known.margins[at], known.joints[at]) for at in indices)


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
    if not len(text):
        return 0
    return _measure(text, _select_tokenizers(provider)).upper_bound


def _expect_text(text: Buffer, provider: TokenProvider) -> int:
    if not len(text):
        return 0
    tokenizers = _select_tokenizers(provider)
    each = sorted(_measure(text, tokenizers if provider == "default" else tokenizers[:1]).tokens)
    return round(each[(len(each) - 1) // 2])


@cache
def _select_tokenizers(provider: TokenProvider) -> tuple[int, ...]:
    """The indices in the table of the tokenizers whose largest count is valid for this provider."""
    each = table().tokenizers
    named = {"default": each, "anthropic": ("anthropic", "anthropic-4.6")}.get(provider, (provider,))
    return tuple(map(each.index, named))


def _measure(text: str | Buffer, tokenizers: tuple[int, ...]) -> "_Measured":
    """Measure a small text, which is not empty, whole, a larger one by windows."""
    if len(text) <= _MAX_WHOLE:
        return _measure_whole(text if isinstance(text, str) else bytes(text).decode(errors="replace"), tokenizers)
    if len(text) <= _MAX_REMEMBERED:
        return _measure_recent(text if isinstance(text, str) else bytes(text), tokenizers)
    return _measure_sampled(text, tokenizers)


def _measure_sampled(text: str | Buffer, tokenizers: tuple[int, ...]) -> "_Measured":
    known = _read_tokenizers(tokenizers)
    for count in (_FEW_WINDOWS, _MANY_WINDOWS):
        places = _choose_places(len(text), count, _READ_SIZE)
        windows, sizes = zip(*(_read_window(text, start) for start in places), strict=True)
        measured = _measure_windows(windows, sizes, known, len(text) / sum(sizes))
        errors = zip(measured.sampling_errors, measured.tokens, strict=True)
        if all(error <= _MAX_ERROR_SHARE * tokens for error, tokens in errors):
            break  # few windows are enough, because they vary little
    return measured


_measure_recent: Final = lru_cache(_RECENT)(_measure_sampled)


class _Costs(msgspec.Struct, frozen=True):
    """The costs of the pieces of texts."""

    known: Sequence[int]
    """By text: the cost of its pieces with a measured cost, in lanes."""
    rare: Sequence[int]
    """By text: the cost of the examined parts of its other pieces, in lanes."""
    scale: float = 1.0
    """The characters of all rare parts for each examined one."""
    guesses: Mapping[RarePart, Guess] = msgspec.field(default_factory=dict)
    """The examined parts."""
    times: Mapping[RarePart, int] = msgspec.field(default_factory=dict)
    """Their occurrences."""
    squares: Mapping[RarePart, int] = msgspec.field(default_factory=dict)
    """The errors of n occurrences of a rare piece are equal, so its variance counts n squared times."""

    def totals(self, tokenizers: Sequence[_Tokenizer]) -> list[float]:
        """The cost of all texts, by tokenizer."""
        known, rare, scale = sum(self.known), sum(self.rare), self.scale
        return [(known >> one.shift & _LANE_MASK) + scale * (rare >> one.shift & _LANE_MASK) for one in tokenizers]

    def units(self, one: _Tokenizer) -> list[float]:
        """The cost of each text."""
        shift, scale = one.shift, self.scale
        return [
            (known >> shift & _LANE_MASK) + scale * (rare >> shift & _LANE_MASK)
            for known, rare in zip(self.known, self.rare, strict=True)
        ]

    def variances(self, tokenizers: Sequence[_Tokenizer]) -> list[float]:
        """The variance of each tokenizer's tokens: of single pieces, and of all pieces of a class together."""
        if not self.guesses:
            return [0.0] * len(tokenizers)
        costs: dict[str, int] = {}
        spread = 0
        for part, guessed in self.guesses.items():
            costs[guessed.named] = costs.get(guessed.named, 0) + self.times[part] * guessed.units
            spread += self.squares[part] * guessed.variance
        by_class = [(table().rules[named], cost) for named, cost in costs.items()]
        unit = self.scale / UNIT
        return [
            lane(spread, one.at) * unit
            + sum((rules[one.at].doubt * lane(cost, one.at) * unit) ** 2 for rules, cost in by_class)
            for one in tokenizers
        ]

    def sampling_errors(self, tokenizers: Sequence[_Tokenizer]) -> list[float]:
        """The standard error of each tokenizer's tokens if the rare parts are a sample; 0 if all are examined.

        The estimate is in proportion to the characters (Cochran, Sampling Techniques, section 6.4).
        """
        if self.scale == 1:
            return [0.0] * len(tokenizers)
        sizes = [self.times[part] * len(part.text) for part in self.guesses]
        factor = self.scale * (self.scale - 1) * len(sizes) / (len(sizes) - 1)
        errors = []
        for one in tokenizers:
            units = [self.times[part] * lane(guessed.units, one.at) for part, guessed in self.guesses.items()]
            density = sum(units) / sum(sizes)
            squares = sum((cost - density * size) ** 2 for cost, size in zip(units, sizes, strict=True))
            errors.append(math.sqrt(squares * factor) / UNIT)
        return errors


def _compute_costs(texts: Iterable[str]) -> _Costs:
    """The costs of the pieces of texts. If they have very many rare parts, a sample of these is examined."""
    known: list[int] = []
    rare: list[list[str]] = []
    find_cost = table().costs.known.__getitem__
    for text in texts:
        pieces = split(text)
        costs = list(map(find_cost, pieces))
        known.append(sum(costs))
        rare.append([piece for piece, cost in zip(pieces, costs, strict=True) if not cost])
    return _add_rare_costs(known, rare) if any(rare) else _Costs(known, [0] * len(known))


def _add_rare_costs(known: Sequence[int], rare: Sequence[Sequence[str]]) -> _Costs:
    """Guess the costs of the rare pieces of each text, or of a sample of their parts."""
    counts = Counter(chain.from_iterable(rare))
    split_pieces = {piece: split_rare(piece) for piece in counts}
    parts = list(dict.fromkeys(chain.from_iterable(split_pieces.values())))
    characters = sum(len(part.text) for part in parts)
    if characters > _MAX_RARE:
        parts = [parts[at] for at in _choose_places(len(parts), len(parts) * _MAX_RARE // characters)]
    guesses = {part: guess(part) for part in parts}
    units: dict[str, int] = dict.fromkeys(counts, 0)
    occurrences: dict[RarePart, int] = {}
    squares: dict[RarePart, int] = {}
    for piece, times in counts.items():
        for part in split_pieces[piece]:
            if guessed := guesses.get(part):
                units[piece] += guessed.units
                occurrences[part] = occurrences.get(part, 0) + times
                squares[part] = squares.get(part, 0) + times * times
    examined = sum(times * len(part.text) for part, times in occurrences.items())
    scale = sum(len(piece) * times for piece, times in counts.items()) / examined
    of_texts = [sum(map(units.__getitem__, pieces)) for pieces in rare]
    return _Costs(known, of_texts, scale, guesses, occurrences, squares)


@dataclass(frozen=True)
class _Measured:
    """The expected tokens of a text by each tokenizer, and what their margins need, which few estimates use."""

    tokenizers: tuple[_Tokenizer, ...]
    costs: _Costs
    """The costs of the text or of its windows."""
    tokens: Sequence[float]
    scale: float = 1.0
    """The size of the text as a multiple of its windows' size."""
    window_errors: Sequence[float] = ()
    """The standard error of the tokens by tokenizer, if windows were examined."""

    @property
    def sampling_errors(self) -> Sequence[float]:
        """The standard error of each tokenizer's tokens; 0 for a text that was examined whole."""
        return self.window_errors or self.costs.sampling_errors(self.tokenizers)

    @cached_property
    def upper_bound(self) -> int:
        """The expected tokens plus margin, of the tokenizer with the largest number."""
        square, variances = self.scale * self.scale, self.costs.variances(self.tokenizers)
        each = zip(self.tokenizers, self.tokens, variances, self.sampling_errors, strict=True)
        return max(
            math.ceil(
                tokens * (1 + one.margin.share)
                + one.margin.deviations * math.sqrt(variance * square + tokens * one.margin.noise)
                + _SAMPLED_DEVIATIONS * sampling
            )
            for one, tokens, variance, sampling in each
        )


# A call measures a result several times: to decide what is shown, and to count what the model reads.
@lru_cache(_RECENT)
def _measure_whole(text: str, tokenizers: tuple[int, ...]) -> _Measured:
    """Measure a text that is examined whole: pieces and joints."""
    known, costs = _read_tokenizers(tokenizers), _compute_costs((text,))
    return _Measured(known, costs, _count_tokens(costs.totals(known), text, known))


def _count_tokens(units: Sequence[float], text: str, tokenizers: Sequence[_Tokenizer]) -> list[float]:
    """The expected tokens, by tokenizer, of pieces, whose costs are given, and of the joints between them."""
    joints: Sequence[int] = ()
    tokens: list[float] = []
    for cost, one in zip(units, tokenizers, strict=True):
        count = cost / UNIT
        if one.joints:
            joints = joints or count_joints(text)
            count = max(sum(map(mul, joints, one.joints), count), 0.0)
        tokens.append(count)
    return tokens


def _measure_windows(
    windows: Sequence[str], sizes: Sequence[int], tokenizers: tuple[_Tokenizer, ...], scale: float
) -> _Measured:
    """Measure a text `scale` times as long as its windows."""
    costs = _compute_costs(windows)
    whole = _count_tokens(costs.totals(tokenizers), "".join(windows), tokenizers)
    errors = [
        math.hypot(_compute_standard_error([cost / UNIT for cost in costs.units(one)], sizes), sampled) * scale
        for one, sampled in zip(tokenizers, costs.sampling_errors(tokenizers), strict=True)
    ]
    return _Measured(tokenizers, costs, [tokens * scale for tokens in whole], scale, errors)


def _compute_standard_error(tokens: Sequence[float], sizes: Sequence[int]) -> float:
    """The standard error of the sum of windows of these sizes.

    Computed from the differences of neighbours' residuals, as is usual for a systematic sample (Wolter, Introduction to
    Variance Estimation, section 8.2).
    """
    density = sum(tokens) / sum(sizes)
    beyond = [count - density * size for count, size in zip(tokens, sizes, strict=True)]
    differences = sum((one - other) ** 2 for one, other in pairwise(beyond)) / (2 * (len(tokens) - 1))
    return math.sqrt(len(tokens) * differences)


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
    if raw.isascii():  # a third of the time
        read = raw.decode()
        read = read[_select_words(read)]
        return read, len(read)
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

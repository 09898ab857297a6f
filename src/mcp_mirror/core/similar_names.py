"""Finds the names that are similar to a name, for errors that say what was probably meant."""

from collections import Counter
from collections.abc import Callable, Iterable
from difflib import SequenceMatcher
from typing import Final

MAX_COMPARED_CHARACTERS: Final = 200
"""Characters of a name that are compared."""
MAX_NEAREST: Final = 3
_MIN_SIMILARITY: Final = 0.5
"""The ratio of equal characters from which a name counts as near."""
_MIN_PART: Final = 3
"""Characters of a name that makes another name near by being a part of it."""
_MAX_COMPARED_NAMES: Final = 40
"""Names that are compared in full: those with the most characters in common."""
_MAX_PAIRS: Final = 50_000
"""Pairs of equal characters of a name and those with which it is compared in full, in at most 100 ms."""


def find_nearest(text: str, names: Iterable[str]) -> list[str]:
    """Return up to three names that are similar to a text, the most similar first."""
    similarity, room = _make_similarity(text, SequenceMatcher.ratio), _MAX_PAIRS
    counts = Counter(text[:MAX_COMPARED_CHARACTERS].casefold())
    compared: dict[str, float] = {}
    for name in sort_by_similarity(text, names)[:_MAX_COMPARED_NAMES]:
        room -= sum(counts[one] for one in name[:MAX_COMPARED_CHARACTERS].casefold())
        if compared and room < 0:
            break
        compared[name] = similarity(name)
    near = (name for name in compared if compared[name] >= _MIN_SIMILARITY)
    return sorted(near, key=lambda name: -compared[name])[:MAX_NEAREST]


def measure_similarity(text: str, name: str) -> float:
    """Return the ratio of equal characters in the same order, 0 to 1; case is ignored."""
    return SequenceMatcher(None, name.casefold(), text.casefold(), autojunk=False).ratio()


def sort_by_similarity(text: str, names: Iterable[str]) -> list[str]:
    """Return all names, sorted by the characters that they have in common with a text; case is ignored."""
    similarity = _make_similarity(text, SequenceMatcher.quick_ratio)
    return sorted(names, key=lambda name: -similarity(name))


def _make_similarity(text: str, ratio: Callable[[SequenceMatcher[str]], float]) -> Callable[[str], float]:
    """A function that returns the similarity of a name: 0 to 1, or above 1 if one text contains the other."""
    wanted = text[:MAX_COMPARED_CHARACTERS].casefold()
    matcher = SequenceMatcher(None, "", wanted, autojunk=False)  # caches its analysis of the second text

    def similarity(name: str) -> float:
        other = name[:MAX_COMPARED_CHARACTERS].casefold()
        matcher.set_seq1(other)
        shorter, longer = sorted((wanted, other), key=len)
        return ratio(matcher) + (len(shorter) >= _MIN_PART and shorter in longer)

    return similarity

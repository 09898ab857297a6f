"""Measures the costs of pieces and parts of words with each tokenizer, each in a typical context."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from counts import TOKENIZERS, counted

JOINING: Final = frozenset({"anthropic", "anthropic-4.6", "google"})
"""Tokenizers that do not split at our pieces: the neighbours of a piece can change its cost."""


def measured(name: str, pieces: Sequence[str], spaced: Mapping[str, float]) -> Any:
    """Tokens of each piece, as an array; `spaced`: how often a space follows a sign."""
    placed = [_places(name, piece, spaced.get(piece, 0.3)) for piece in pieces]
    asked = [
        before + piece + after for piece, places in zip(pieces, placed, strict=True) for before, after, *_ in places
    ]
    counts = iter(counted(name, asked))
    return np.array([
        max(sum(weight * (next(counts) - beside) for *_, beside, weight in places), 0.0) for places in placed
    ])  # fmt: skip


def measured_parts(parts: Sequence[str]) -> Any:
    """Tokens of each part by each tokenizer."""
    return np.array([counted(f"{name} part", parts) for name in TOKENIZERS]).T


def _places(name: str, piece: str, spaced: float) -> list[tuple[str, str, int, float]]:
    """A context: the text before and after a piece, its tokens, and its frequency."""
    if name not in JOINING:
        return [("", "", 0, 1.0)]
    if not piece.strip():
        after = "1" if piece == " " else "b" if piece[-1] in "\r\n" else piece[-1] + "b"
        return [("a", after, 3 if after == "\tb" else 2, 1.0)]
    before, beside = ("a\n", 2) if piece[0].isalnum() else ("a", 1)
    if piece[-1] in "\r\n":
        return [(before, "b", beside + 1, 1.0)]
    if name == "google" or piece[-1].isalnum():
        return [(before, "", beside, 1.0)]
    return [(before, "b", beside + 1, 1 - spaced), (before, " b", beside + 1, spaced)]

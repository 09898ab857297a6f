"""Selects the pieces and the parts of pieces in the table.

A piece is in the table if it occurs in enough packages of a wide collection, or is a frequent word of a language. Each
entry also records whether it would be in the table without any one package, so that calibration texts can be treated as
texts of unknown packages.
"""

import lzma
import math
import random
import string
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise, product
from typing import Final, NamedTuple

from opencc import OpenCC
from wordfreq import top_n_list

from generated import STYLES
from mcp_mirror.tokens.costs import classify_piece, split
from texts import CORPORA, corpus

LETTERS: Final = ("prose", "code", "json", "html", "cjk", "de", "fr", "es", "ru", "hi", "ar", "pl", "el")
WORDS: Final = (
    dict.fromkeys(("en", "ar", "hi", "zh", "ja", "ko", "ru", "de", "fr", "es"), 5000)
    | dict.fromkeys(("it", "pt", "nl", "pl", "uk", "tr", "fa", "el", "he", "cs", "sv"), 2500)
    | dict.fromkeys(("ro", "hu", "fi", "da", "nb", "vi", "id", "bn", "ta", "ur", "bg"), 1500)
)
"""By language, how many of its most frequent words come in."""
FREQUENT: Final = 60_000
"""Words of each language whose parts may come in."""
PARTS: Final = 120_000
"""Parts of ASCII that are measured, and so many others of each class; those that say more than their own parts are
kept."""
BEHIND_BACKSLASH: Final = 2000
"""Words of code that also come in behind a backslash, as names have it in PHP and paths of Windows."""
_LONGEST_PART: Final = 9
_IDEOGRAPHS: Final = ((0x3041, 0x3100), (0x3400, 0xA000), (0xAC00, 0xD7A4))


class Seen(NamedTuple):
    """In how many packages, and in how many documents, a piece was seen."""

    packages: int
    documents: int


def wide_collection() -> dict[str, Seen]:
    """The pieces of the wide collection, but for those seen in one package and fewer than four documents."""
    lines = lzma.decompress((CORPORA / "pieces.fit.tsv.xz").read_bytes()).decode().split("\x1e")
    rows = (line.split("\t", 2) for line in lines)
    return {
        piece: Seen(int(packages), int(documents)) for packages, documents, piece in rows if split(piece) == [piece]
    }


def entries(wide: Mapping[str, Seen]) -> dict[str, bool]:
    """The pieces of the table, and whether each would be in it without any one package."""
    found: Counter[str] = Counter()
    for kind, (styles, _) in STYLES.items():
        for at, style in enumerate(styles):
            r = random.Random(f"vocab {kind} {at}")
            found.update(split("".join(style(r) for _ in range(300))))
    sure = {piece for piece, count in found.items() if count >= 5 and len(piece) <= 24}
    sure.update(_enumerated(), _words(), _names(wide))
    chosen = dict.fromkeys((piece for piece in sure if split(piece) == [piece]), True)
    for piece, seen in wide.items():
        if _is_common(piece, seen):
            chosen[piece] = chosen.get(piece, False) or _is_common(
                piece, Seen(seen.packages - 1, seen.documents * 2 // 3)
            )
    return {piece: chosen[piece] for piece in sorted(chosen) if _is_text(piece)}


def _frequent(language: str, count: int) -> list[str]:
    """The most frequent words; of Chinese in both ways to write it."""
    words = top_n_list(language, count)
    return [*dict.fromkeys([*words, *map(OpenCC("s2t").convert, words)])] if language == "zh" else words


def _words() -> Iterator[str]:
    """Frequent words, as they stand in a sentence; where a language has capitals, with one too."""
    for language, count in WORDS.items():
        for word in _frequent(language, count):
            yield from (word, f" {word}") if language in ("zh", "ja") else (f" {word}",)
            if word[0].upper() != word[0]:
                yield f" {word[0].upper()}{word[1:]}"


def _names(wide: Mapping[str, Seen]) -> Iterator[str]:
    """Frequent words of code behind a backslash."""
    words = Counter({
        piece.strip(): seen.packages for piece, seen in wide.items() if piece.strip().istitle() and piece.isascii()
    })  # fmt: skip
    yield from (f"\\{word}" for word, _ in words.most_common(BEHIND_BACKSLASH) if word.isalpha())


def _is_common(piece: str, seen: Seen) -> bool:
    return seen.packages >= 3 or (not piece.isascii() and seen.documents >= 5)


def _is_text(piece: str) -> bool:
    return "\0" not in piece and "\ufffd" not in piece and not {"Cs", "Co"} & set(map(unicodedata.category, piece))


def spaced_share() -> dict[str, float]:
    """Of signs, how often a space follows them in the calibration texts."""
    all_, spaced = Counter[str](), Counter[str]()
    for name in LETTERS:
        pieces = split(corpus(name, "fit"))
        for piece, after in pairwise(pieces):
            if not piece[-1].isalnum():
                all_[piece] += 1
                spaced[piece] += after[0] == " "
    return {piece: (spaced[piece] + 0.5) / (count + 1) for piece, count in all_.items()}


def candidate_parts(wide: Mapping[str, Seen]) -> list[str]:
    """The most frequent parts of up to 9 characters, and each character."""
    weights = _weights(wide)
    single = {character for piece in wide for character in piece} | set(map(chr, range(1, 256)))
    single.update(chr(code) for low, high in _IDEOGRAPHS for code in range(low, high))
    runs = {sign * count for sign in "-=*_#.~+/ \n\t─═·…•█░■━▀▄│" for count in range(2, 25)}
    seen, chosen = Counter[str](), list[str]()
    for part, _ in weights.most_common():
        named = "ASCII" if part.isascii() else classify_piece(part)
        seen[named] += 1
        if seen[named] <= PARTS:
            chosen.append(part)
    return sorted({*chosen, *filter(_is_text, single), *runs})


def _weights(wide: Mapping[str, Seen]) -> Counter[str]:
    """Parts of frequent pieces and words, by how often they come."""
    weights: Counter[str] = Counter()
    for piece, seen in wide.items():
        if len(piece) >= 2 and seen.documents >= 3 and _is_text(piece):
            weight = math.sqrt(seen.documents)
            for part in _substrings(piece):
                weights[part] += weight
    for language in WORDS:
        for word in _frequent(language, FREQUENT):
            for part in _substrings(word):
                weights[part] += 1
    return weights


def _substrings(piece: str) -> Iterator[str]:
    for start in range(len(piece)):
        for end in range(start + 2, min(len(piece), start + _LONGEST_PART) + 1):
            yield piece[start:end]


def _enumerated() -> Iterator[str]:
    """What is had whole: digits, pairs of letters, runs of white space and of signs, emoji."""
    marks = [chr(code) for low, high in ((0x1F000, 0x1FB00), (0x2600, 0x27C0)) for code in range(low, high)]
    emoji = [mark for mark in marks if unicodedata.category(mark) != "Cn"]
    yield from (f"{number:0{width}}" for width in (1, 2, 3) for number in range(10**width))
    yield from (one + other for one in string.ascii_letters for other in string.ascii_letters)
    yield from map(chr, range(1, 256))
    yield from (" " * count for count in range(1, 121))
    yield from (" " * count + "\n" for count in range(80))
    yield from ("\n" * count for count in range(1, 8))
    yield from ("\t" * count for count in range(1, 20))
    yield from ("\t" * tabs + " " * spaces for tabs in range(1, 6) for spaces in range(1, 9))
    yield from ("\r\n" * count for count in range(1, 4))
    yield from (before + sign * count for before in ("", " ") for sign in "-=*_#.~+/" for count in range(2, 101))
    yield from (sign * count + "\n" for sign in "-=*#~" for count in range(2, 101))
    flags = map(chr, range(0x1F1E6, 0x1F200))
    yield from (before + one + other for one, other in product(flags, repeat=2) for before in ("", " "))
    yield from (before + mark + after for before in ("", " ") for mark in emoji for after in ("", "\ufe0f"))
    yield from (
        chr(code) for low, high in ((0x2000, 0x2070), (0x2190, 0x2600), (0x3000, 0x3040)) for code in range(low, high)
    )

"""Which pieces, and which parts of pieces, the table has.

A piece comes in where it was seen in enough packages of a wide collection. So that calibration texts can be read as
texts of packages that nobody has seen, each entry is also marked whether it would be in without any one package.
"""

import lzma
import math
import random
import string
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

from generated import STYLES
from mcp_mirror.tokens.pieces import split
from texts import CORPORA, corpus

LETTERS: Final = ("prose", "code", "json", "html", "cjk", "de", "fr", "es", "ru", "hi", "ar", "pl", "el")
PARTS: Final = 120_000
"""Parts that are measured, of ASCII and as many others; those that say more than their own parts are kept."""
_LONGEST_PART: Final = 9


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
    sure = {piece for piece, count in found.items() if count >= 5 and len(piece) <= 24} | set(_enumerated())
    chosen = dict.fromkeys((piece for piece in sure if split(piece) == [piece]), True)
    for piece, seen in wide.items():
        if _is_common(piece, seen):
            chosen[piece] = chosen.get(piece, False) or _is_common(
                piece, Seen(seen.packages - 1, seen.documents * 2 // 3)
            )
    return {piece: chosen[piece] for piece in sorted(chosen) if _is_text(piece)}


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
    weights: Counter[str] = Counter()
    for piece, seen in wide.items():
        if len(piece) >= 2 and seen.documents >= 3 and _is_text(piece):
            weight = math.sqrt(seen.documents)
            for part in _substrings(piece):
                weights[part] += weight
    single = {character for piece in wide for character in piece} | set(map(chr, range(1, 256)))
    runs = {sign * count for sign in "-=*_#.~+/ \n\t─═·…•█░■━▀▄│" for count in range(2, 25)}
    ranked = [part for part, _ in weights.most_common()]
    chosen = [part for part in ranked if part.isascii()][:PARTS] + [part for part in ranked if not part.isascii()][
        :PARTS
    ]
    return sorted({*chosen, *filter(_is_text, single), *runs})


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
    yield from ("\r\n" * count for count in range(1, 4))
    yield from (before + sign * count for before in ("", " ") for sign in "-=*_#.~+/" for count in range(2, 101))
    yield from (sign * count + "\n" for sign in "-=*#~" for count in range(2, 101))
    yield from (before + mark + after for before in ("", " ") for mark in emoji for after in ("", "\ufe0f"))
    yield from (
        chr(code) for low, high in ((0x2000, 0x2070), (0x2190, 0x2600), (0x3000, 0x3040)) for code in range(low, high)
    )

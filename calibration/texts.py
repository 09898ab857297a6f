"""The texts that the estimates are calibrated on, and those that they are judged on.

Texts of people are cut from the corpora beside this file; texts of machines come from the styles in `generated.py`.
Neither documents, styles nor seeds of one set are in the other.
"""

import functools
import lzma
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from generated import STYLES

CORPORA: Final = Path(__file__).with_name("corpora")
CHARACTERS: Final = {
    "prose": 4.4, "code": 3.3, "JSON": 2.6, "logs": 2.3, "CSV": 1.8, "base64": 1.45, "UUIDs": 1.7, "CJK": 1.35,
    "emoji": 0.8, "HTML": 2.9, "mixed": 2.4, "German": 3.4, "French": 3.5, "Spanish": 3.7, "Russian": 3.0,
    "Hindi": 2.3, "Arabic": 2.6,
}  # fmt: skip
"""Characters of a token, about: only to say how long the texts are."""
CUT: Final = {
    "prose": "prose", "code": "code", "CJK": "cjk", "HTML": "html", "German": "de", "French": "fr", "Spanish": "es",
    "Russian": "ru", "Hindi": "hi", "Arabic": "ar",
}  # fmt: skip
"""Kinds cut from a corpus; JSON is, for a half."""
KINDS: Final = tuple(CHARACTERS)
_MIXED: Final = ("prose", "code", "JSON", "logs", "CSV", "base64", "UUIDs", "CJK", "emoji", "HTML")
_TOKENS: Final = {"fit": (215, 2500), "held": (330, 1000)}
_LONGEST: Final = 3000


class Text(NamedTuple):
    """One text and its kind."""

    kind: str
    text: str


@functools.cache
def corpus(name: str, split: str) -> str:
    """A corpus: `split` is `fit` or `held`."""
    return lzma.decompress((CORPORA / f"{name}.{split}.txt.xz").read_bytes()).decode()


def _cut(name: str, split: str, length: int, r: random.Random) -> str:
    whole = corpus(name, split)
    at = r.randrange(max(len(whole) - length, 1))
    return whole[at : at + length]


def _generated(kind: str, split: str, length: int, r: random.Random) -> str:
    style = r.choice(STYLES[kind][split == "held"])
    parts: list[str] = []
    size = 0
    while size < length:
        parts.append(style(r))
        size += len(parts[-1])
    return "".join(parts)[:length]


def _of_kind(kind: str, split: str, length: int, r: random.Random) -> str:
    if kind == "mixed":
        parts = r.randint(2, 6)
        return "\n".join(_of_kind(r.choice(_MIXED), split, length // parts, r) for _ in range(parts))
    if kind in CUT:
        return _cut(CUT[kind], split, length, r)
    if kind == "JSON" and r.random() < 0.5:
        return _cut("json", split, length, r)
    return _generated(kind, split, length, r)


def texts(split: str, count: int, kinds: tuple[str, ...] = KINDS) -> Iterator[Text]:
    """So many texts of each kind, short ones as often as long ones on a log scale.

    Those for calibration have 215 to 2,500 tokens about; of those held out most have 330 to 1,000, and one in twenty
    has up to 3,000.
    """
    fewest, most = _TOKENS[split]
    for kind in kinds:
        r = random.Random(f"{split} {kind}")
        for _ in range(count):
            tokens = math.exp(r.uniform(math.log(fewest), math.log(most)))
            if split == "held" and r.random() < 0.05:
                tokens = r.uniform(most, _LONGEST)
            yield Text(kind, _of_kind(kind, split, int(tokens * CHARACTERS[kind]), r))

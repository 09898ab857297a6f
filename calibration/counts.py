"""True counts, by every public tokenizer; those of the held-out texts are kept beside the corpora.

`ctok` counts 0.2 MB a second, so that a count of all texts takes an hour of one core; `RECOUNT=1` makes one.
"""

import hashlib
import json
import lzma
import os
import re
import sys
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from multiprocessing import Pool
from pathlib import Path
from typing import Any, Final

from texts import Text

HERE: Final = Path(__file__).parent
NPM: Final = HERE / "node_modules" / "@lenml"
TOKENIZERS: Final = ("openai", "anthropic", "anthropic-4.6", "google", "llama", "mistral")
"""In the order of the table in the package."""

Count = Callable[[str], int]

_PARTS: Final = {"anthropic part": "4.8", "anthropic-4.6 part": "3.0"}


def counter(name: str) -> Count:
    """What counts the tokens of a text for this tokenizer; of a part of a word, if it is named `NAME part`."""
    if name in _PARTS:
        return _anthropic_part(_PARTS[name])
    name = name.removesuffix(" part")
    return {
        "openai": _openai,
        "anthropic": lambda: _anthropic("4.8"),
        "anthropic-4.6": lambda: _anthropic("3.0"),
        "google": lambda: _from_file("tokenizer-gemma3"),
        "llama": lambda: _from_file("tokenizer-llama3_2"),
        "mistral": _mistral,
    }[name]()


def _openai() -> Count:
    import bpe_openai

    encoding = bpe_openai.get_encoding("o200k_base")
    at_once = 50_000  # the package refuses texts of more than 200,000 tokens
    return lambda text: sum(
        len(encoding.encode_ordinary(text[at : at + at_once])) for at in range(0, len(text), at_once)
    )


def _anthropic(version: str) -> Count:
    """What `ctok` counts, in a third of its time.

    No token of its vocabularies reaches over a mark of where words begin and end, so that the cost of what is between
    two marks is worked out once.
    """
    model, cost = _marked_cost(version)
    from ctok.constants import BOW_G, CAPS_G, EOW_G, SHIFT_G
    from ctok.engine import frame_tail
    from ctok.normalize import nfc, raw_head_space, stream_norm

    between = re.compile(f"[{SHIFT_G}{CAPS_G}]*{BOW_G}?[^{BOW_G}{EOW_G}{SHIFT_G}{CAPS_G}]*{EOW_G}?")

    def count(text: str) -> int:
        norm = nfc(text, fold_quotes=model.fold_quotes)
        marked = stream_norm(norm, model, raw_head_space=raw_head_space(text))
        tail = frame_tail(len(norm) - len(norm.rstrip("\n")), model)
        return sum(map(cost, filter(None, between.findall(marked)))) + len(tail)

    return count


def _anthropic_part(version: str) -> Count:
    """The cost of a part of a word: a part after a space begins its word, any other part is inside a word."""
    model, cost = _marked_cost(version)
    from ctok.constants import BOW_G
    from ctok.normalize import mark_case

    def count(part: str) -> int:
        if part[0] != " ":
            return cost(part)
        word = mark_case(part[1:], model.allcaps_min)
        body = word.lstrip("\ufdd3\ufdd4")
        return cost(word[: len(word) - len(body)] + BOW_G + body)

    return count


def _marked_cost(version: str) -> tuple[Any, Count]:
    """The model of `ctok`, and the cost of a text with its marks."""
    sys.path.insert(0, str(HERE / "packages"))  # its metadata wants Python 3.12; its code runs on 3.11
    from ctok.constants import MARKER_GLYPHS
    from ctok.engine import char_cost, min_vocab_tile
    from ctok.main import _family, _model

    model = _model(_family(version))

    @lru_cache(maxsize=1 << 18)
    def cost(marked: str) -> int:
        one = [1 if character in MARKER_GLYPHS else char_cost(model, character) for character in marked]
        return int(min_vocab_tile(marked, model.trie, one.__getitem__)[0])

    return model, cost


def _from_file(package: str) -> Count:
    from tokenizers import Tokenizer

    read = Tokenizer.from_file(str(NPM / package / "models" / "tokenizer.json"))
    return lambda text: len(read.encode(text, add_special_tokens=False).ids)


def _mistral() -> Count:
    import mistral_common
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    data = Path(str(mistral_common.__file__)).with_name("data")
    encoder = Tekkenizer.from_file(max(data.glob("tekken_*.json")))
    return lambda text: len(encoder.encode(text, bos=False, eos=False))


_loaded: dict[str, Count] = {}


def _count(job: tuple[str, list[str]]) -> list[int]:
    name, texts = job
    if name not in _loaded:
        _loaded[name] = counter(name)
    return [_loaded[name](text) for text in texts]


def counted(name: str, texts: Sequence[str]) -> list[int]:
    """The true counts of texts, by all processors there are."""
    at_once = max(64, len(texts) // 500)
    jobs = [(name, list(texts[at : at + at_once])) for at in range(0, len(texts), at_once)]
    with Pool(os.cpu_count()) as pool:
        return [count for counts in pool.imap(_count, jobs) for count in counts]


def kept(name: str, split: str, texts: Sequence[Text]) -> list[int]:
    """The true counts of a set of texts: as they were kept, where they are of these very texts, else counted and kept.

    A count of -1 is one that was not made.
    """
    digest = hashlib.sha256("\0".join(one.text for one in texts).encode(errors="surrogatepass")).hexdigest()
    path = HERE / "counts" / f"{split}.{name}.xz"
    if path.exists() and not os.environ.get("RECOUNT"):
        head, _, numbers = lzma.decompress(path.read_bytes()).partition(b"\n")
        if json.loads(head)["digest"] == digest:
            return list(array("i", numbers))
    print(f"counting {len(texts):,} texts by {name}", flush=True)
    counts = counted(name, [one.text for one in texts])
    keep(name, split, texts, counts)
    return counts


def keep(name: str, split: str, texts: Sequence[Text], counts: Sequence[int]) -> None:
    """Keep counts of these texts."""
    digest = hashlib.sha256("\0".join(one.text for one in texts).encode(errors="surrogatepass")).hexdigest()
    path = HERE / "counts" / f"{split}.{name}.xz"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(lzma.compress(json.dumps({"digest": digest}).encode() + b"\n" + array("i", counts).tobytes()))

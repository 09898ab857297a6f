"""How many tokens a text costs a model, estimated without a tokenizer and on the safe side.

Every provider's tokenizer falls back to bytes, so a text never costs more tokens than it has UTF-8 bytes. Below
that bound the classes of bytes differ: digits cost up to one token each (Gemini, Mistral), letters come in runs,
white space mostly melts into its neighbours. The weights are the worst that was measured per class.
"""

from typing import Final

from mcp_mirror.models import Buffer

_LETTERS: Final = bytes(range(ord("a"), ord("z") + 1)) + bytes(range(ord("A"), ord("Z") + 1))
_SPACES: Final = b" \t\r\n"
_LETTER_WEIGHT: Final = 0.45
_SPACE_WEIGHT: Final = 0.35
_SAMPLE_ABOVE: Final = 1 << 18
_SAMPLES: Final = 32
_SAMPLE_BYTES: Final = 4096


def estimate_tokens(text: Buffer) -> int:
    """Tokens that this UTF-8 text costs at most, for any provider.

    Over 256 KiB the estimate is scaled up from 32 evenly spread samples.
    """
    if len(text) <= _SAMPLE_ABOVE:
        return _weigh(bytes(text))
    step = (len(text) - _SAMPLE_BYTES) // (_SAMPLES - 1)
    sampled = sum(_weigh(bytes(text[at : at + _SAMPLE_BYTES])) for at in range(0, step * _SAMPLES, step))
    return round(sampled * len(text) / (_SAMPLES * _SAMPLE_BYTES))


def _weigh(text: bytes) -> int:
    letters = len(text) - len(text.translate(None, _LETTERS))
    spaces = len(text) - len(text.translate(None, _SPACES))
    rest = len(text) - letters - spaces
    return -int(-(rest + letters * _LETTER_WEIGHT + spaces * _SPACE_WEIGHT) // 1)

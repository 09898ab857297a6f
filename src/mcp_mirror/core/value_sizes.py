"""The size and tokens of a value in the form that a model reads: a text without quotes and escapes, else JSON.

The notices, the memory tools and all budgets use these counts, so that a value has the same size everywhere.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from mcp_mirror.payload.json_spans import kind_at, trim
from mcp_mirror.payload.json_strings import MAX_MEASURED_BYTES, measure_text, text_sample
from mcp_mirror.types import Buffer, Span, TextSize

Estimate = Callable[[Buffer], int]
"""Returns the tokens of a text (UTF-8) or of JSON text."""

_MAX_DECODED_BYTES: Final = 1 << 18
"""Bytes up to which a text is decoded for the estimate of its tokens; of a larger one, a sample of this size is."""


def size_text(blob: Buffer, span: Span) -> TextSize:
    """The size of the text at `span`; an estimate for a very large one."""
    if span.length <= MAX_MEASURED_BYTES:
        return measure_text(blob, span)
    sample, share = text_sample(blob, span, _MAX_DECODED_BYTES)
    return TextSize(round(len(sample) / share), 0)


def count_bytes(blob: Buffer, span: Span | None = None) -> int:
    """The bytes of the value at `span`, or of the whole value."""
    span = span or trim(blob)
    return size_text(blob, span).size if kind_at(blob, span.start) == "text" else span.length


def count_value_tokens(json_text: Buffer, estimate: Estimate) -> int:
    """The tokens of a value. Of a large text, only a sample is decoded."""
    if bytes(json_text[:1]) != b'"':
        return estimate(json_text)
    if len(json_text) <= _MAX_DECODED_BYTES:
        text = msgspec.json.decode(json_text, type=str).encode("utf-8", "replace")
        return estimate(text) if text else 0
    sample, share = text_sample(json_text, trim(json_text), _MAX_DECODED_BYTES)
    return round(estimate(sample) / share)


class TokenBudget(msgspec.Struct):
    """The tokens that texts of a notice may still take."""

    estimate: Estimate
    left: int
    _known: dict[str, int] = msgspec.field(default_factory=dict)
    """The tokens of the texts that were taken."""

    def take(self, text: str) -> bool:
        """Take the tokens of a line if it fits, and return whether it does. Its break and its mark are 2 tokens."""
        tokens = self._known[text] = self.estimate(text.encode())
        cost = tokens + 2
        if cost > self.left:
            return False
        self.left -= cost
        return True

    def exchange(self, old: str, new: str) -> bool:
        """Take the tokens of a text in place of those of one that was taken, if it fits; return whether it does."""
        cost = self.estimate(new.encode()) - self._known[old]
        if cost > self.left:
            return False
        self.left -= cost
        return True

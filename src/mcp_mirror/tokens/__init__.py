"""How many tokens texts and messages cost a model, estimated without a tokenizer and rarely too low.

The estimate of a text is what its pieces cost by measurement, and a margin for what was not measured: over 200 tokens
it is mostly the count or up to a tenth more (docs/reference/token-estimates.md has the measurements). Pure; the
measured costs are read once, when first needed.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Any, Final, get_args

from mcp_mirror.settings.policies import TokenProvider
from mcp_mirror.tokens.costs import table
from mcp_mirror.tokens.estimate import estimate_text, expect_text
from mcp_mirror.tokens.messages import Message, read_message
from mcp_mirror.types import Buffer

__all__ = ["PROVIDERS", "TokenProvider", "estimate_tokens", "estimator", "expecter"]

PROVIDERS: Final[tuple[TokenProvider, ...]] = get_args(TokenProvider)

Countable = str | Buffer | bytearray | Mapping[str, Any] | Sequence[Mapping[str, Any]]

_MESSAGE: Final[Mapping[TokenProvider, int]] = MappingProxyType(
    {"openai": 4, "anthropic": 12, "anthropic-4.6": 8, "google": 5, "llama": 5, "mistral": 4, "default": 12}
)
"""Tokens that a message costs beyond its texts: its role and what stands around it.

openai: 3 and 1 for the role (OpenAI cookbook, "How to count tokens with tiktoken"). anthropic: what `ctok` measured
for the frame of one user message, 7 until Opus 4.6, 11 in Opus 4.7 and 6 since, and one. google, llama, mistral: the
control tokens, role and line breaks of Gemma 3's, Llama 3.2's and Mistral's chat templates.
"""
_CALL: Final[Mapping[TokenProvider, int]] = MappingProxyType(dict.fromkeys(PROVIDERS, 16))
"""Tokens that a tool call or its result costs beyond name, arguments and texts: no provider states it. Llama's and
Mistral's templates take 5 to 12, with the id of the call."""


def estimate_tokens(what: Countable, provider: TokenProvider = "default") -> int:
    """Tokens that this costs, on the safe side.

    Args:
        what: A text; its UTF-8 bytes, of which what is invalid counts as replaced; one message as a mapping in the
            format of OpenAI (chat or Responses), Anthropic, Gemini or the AI SDK; or a list of messages, which costs
            the sum of its messages.
        provider: Whose tokenizer. `default` holds for each of them. `anthropic` holds for all of Anthropic's models,
            `anthropic-4.6` for Claude 3 to Opus 4.6 alone, which count some texts a third lower.

    An empty text costs 0 tokens. Up to 32 KiB a text is looked at whole; of a larger one windows are, so that a text
    arranged to deceive can cost more than its estimate.

    Raises:
        ValueError: There is no such provider.
    """
    if provider not in PROVIDERS:
        raise ValueError(f"{provider!r} is no provider. There are {', '.join(PROVIDERS)}.")
    if isinstance(what, str | bytes):
        return _of_text(what, provider)
    if isinstance(what, bytearray | memoryview):
        view = memoryview(what)
        return _of_text(view.cast("B") if view.c_contiguous else view.tobytes(), provider)
    if isinstance(what, Mapping):
        return _of_message(what, provider)
    return sum(_of_message(message, provider) for message in what)


def upper_estimator(provider: TokenProvider) -> Callable[[Buffer], int]:
    """`estimate_tokens` of a text for one provider."""
    return partial(_of_text, provider=provider)


def expected_estimator(provider: TokenProvider) -> Callable[[Buffer], int]:
    """The expected tokens of a text (UTF-8) for one provider: a central estimate, not an upper bound.

    For `default` it is the median over all tokenizers, for `anthropic` the count of the current models.
    """
    return partial(_expected_of, provider=provider)


def _expected_of(text: Buffer, provider: TokenProvider) -> int:
    each = sorted(expect_text(text, _tokenizers(provider)[:1] if provider != "default" else _tokenizers(provider)))
    return round(each[(len(each) - 1) // 2])


def _of_text(text: str | Buffer, provider: TokenProvider) -> int:
    return max(estimate_text(text, _tokenizers(provider)))


@cache
def _tokenizers(provider: TokenProvider) -> tuple[int, ...]:
    """The places in the table of those whose largest count holds for this provider."""
    each = table().tokenizers
    named = {"default": each, "anthropic": ("anthropic", "anthropic-4.6")}.get(provider, (provider,))
    return tuple(map(each.index, named))


def _of_message(message: Message, provider: TokenProvider) -> int:
    reading = read_message(message)
    texts = sum(_of_text(text, provider) for text in reading.texts)
    return _MESSAGE[provider] + _CALL[provider] * reading.calls + reading.media + texts

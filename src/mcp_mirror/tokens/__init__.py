"""Estimates the tokens of texts and messages for a model, without a tokenizer and rarely too low.

The estimate of a text is the measured cost of its pieces plus a margin for everything that was not measured: above 200
tokens it is mostly the exact count or up to 10 % more (docs/reference/token-estimates.md lists the
measurements). The table of costs is read once, when it is first needed.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

from mcp_mirror.settings.policies import TokenProvider
from mcp_mirror.tokens.estimate import estimate_text, expected_estimator, upper_estimator
from mcp_mirror.tokens.messages import CALL_PART, IMAGE_TOKENS, Message, read_parts
from mcp_mirror.types import Buffer

__all__ = ["IMAGE_TOKENS", "PROVIDERS", "TokenProvider", "estimate_tokens", "expected_estimator", "upper_estimator"]

PROVIDERS: Final[tuple[TokenProvider, ...]] = get_args(TokenProvider)

Countable = str | Buffer | bytearray | Mapping[str, Any] | Sequence[Mapping[str, Any]]

_MESSAGE_TOKENS: Final[Mapping[TokenProvider, int]] = {
    "openai": 4, "anthropic": 12, "anthropic-4.6": 8, "google": 5, "llama": 5, "mistral": 4, "default": 12,
}  # fmt: skip
"""Tokens that a message costs beyond its texts: its role and delimiters.

openai: 3 and 1 for the role (OpenAI cookbook, "How to count tokens with tiktoken"). anthropic: the frame of one user
message as measured by `ctok`, 7 until Opus 4.6, 11 in Opus 4.7 and 6 since, plus one. google, llama, mistral: the
control tokens, role and line breaks of the chat templates of Gemma 3, Llama 3.2 and Mistral.
"""
_CALL_TOKENS: Final = 16
"""Tokens of a call or result beyond name, arguments and texts. No provider documents them; templates take 5 to 12."""


def estimate_tokens(what: Countable, provider: TokenProvider = "default") -> int:
    """Estimate the tokens of a text or of messages; the result is an upper bound in nearly all cases.

    Args:
        what: A text; its UTF-8 bytes, where invalid bytes count as replaced; one message as a mapping in the format of
            OpenAI (chat or Responses), Anthropic, Gemini or the AI SDK; or a list of messages, whose costs are added.
        provider: The provider of the tokenizer. `default` is valid for all of them. `anthropic` is valid for all of
            Anthropic's models, `anthropic-4.6` only for Claude 3 to Opus 4.6, which count a third less for some texts.

    An empty text costs 0 tokens. A text of up to 32 KiB is examined whole, except for very many rare words; a larger
    one by samples. So a text designed to deceive can cost more than its estimate.

    Raises:
        ValueError: The provider is unknown.
    """
    if provider not in PROVIDERS:
        raise ValueError(f"Unknown provider {provider!r}. Use one of {', '.join(PROVIDERS)}.")
    if isinstance(what, str | bytes):
        return estimate_text(what, provider)
    if isinstance(what, bytearray | memoryview):
        view = memoryview(what)
        return estimate_text(view.cast("B") if view.c_contiguous else view.tobytes(), provider)
    if isinstance(what, Mapping):
        return _estimate_message(what, provider)
    return sum(_estimate_message(message, provider) for message in what)


def _estimate_message(message: Message, provider: TokenProvider) -> int:
    total = _MESSAGE_TOKENS[provider]
    for part in read_parts(message):
        if isinstance(part, str):
            total += estimate_text(part, provider)
        else:
            total += _CALL_TOKENS if part == CALL_PART else part
    return total

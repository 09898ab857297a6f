"""Samples of many cases: `make test` runs the sample, and `make test-slow` the other cases."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def sample(cases: Iterable[Any], is_quick: Callable[[Any], bool]) -> list[Any]:
    """Parameters for `pytest.mark.parametrize`: all cases, with the mark `slow` on those outside of the sample."""
    return [case if is_quick(case) else _mark(case) for case in cases]


def _mark(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
